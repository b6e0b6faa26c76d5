/*
 * check.h - checks that a kv is consistent in itself, key by key.
 */
#ifndef ROZO_TEST_EXPORTD_CHECK_H
#define ROZO_TEST_EXPORTD_CHECK_H

#include "common/env/kv.h"

/**
 * Checks each key, and that there are no other keys. In all exports, names, their order,
 * their keys in the index of folded names and their inodes belong together one to one,
 * links and counters are right, each directory hangs below the root, orphans are the
 * inodes without names, and nothing of a removed inode is left. Ends the process with an
 * error text otherwise. exportd may run, but must have committed.
 */
void kv_check(struct kv *kv);

#endif
