/*
 * check.h - is what lies in the kv in itself sound? Every key is looked at, and nothing else is there.
 */
#ifndef ROZO_TEST_EXPORTD_CHECK_H
#define ROZO_TEST_EXPORTD_CHECK_H

#include "common/env/kv.h"

/**
 * The name spaces of all exports: names, their order and their inodes belong together one to one,
 * links and counters are right, every directory hangs below the root, orphans are those without
 * names, nothing of a removed inode is left. Ends the process with words when not. exportd may
 * run, but must have committed.
 */
void kv_check(struct kv *kv);

#endif
