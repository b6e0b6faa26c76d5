/*
 * remount.h - `mount -o remount,...`: other flags for a mount that is there.
 */
#ifndef ROZO_ROZOMOUNT_OPTIONS_REMOUNT_H
#define ROZO_ROZOMOUNT_OPTIONS_REMOUNT_H

#include "common/base/err.h"
#include "rozomount/options/options.h"

/**
 * Give the rozo mount on opt->mountpoint the flags of opt->kernel_opts, and no others, as mount(2)
 * does; its process hears nothing of it. Makes the path absolute. 0 or -errno with words.
 */
int remount(struct options *opt, struct err *err);

#endif
