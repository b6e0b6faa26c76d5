/*
 * atimes_report.h - reports of access times to exportd.
 */
#ifndef ROZO_ROZOMOUNT_OP_ATIMES_REPORT_H
#define ROZO_ROZOMOUNT_OP_ATIMES_REPORT_H

#include "rozomount/op/mount.h"

/** Starts to report reads to exportd every few seconds. Called on the first loop. */
void atimes_report_start(struct loop *loop);
/** Sends the last report at the end of the mount, then calls ended(m). */
void atimes_report_end(struct mount *m, void (*ended)(struct mount *m));

#endif
