/*
 * remount.h - `mount -o remount,...`: changes the flags of an existing mount.
 */
#ifndef ROZO_ROZOMOUNT_OPTIONS_REMOUNT_H
#define ROZO_ROZOMOUNT_OPTIONS_REMOUNT_H

#include "common/base/err.h"
#include "rozomount/options/options.h"

/**
 * Sets the flags of the rozo mount on opt->mountpoint to those of opt->kernel_opts with
 * mount(2). The rozomount process gets no notice. Makes the path absolute. Returns 0, or
 * -errno with a message in err.
 */
int remount(struct options *opt, struct err *err);

#endif
