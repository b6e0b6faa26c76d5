/*
 * hash.h - uthash with exportd's settings.
 */
#ifndef ROZO_EXPORTD_TOKENS_HASH_H
#define ROZO_EXPORTD_TOKENS_HASH_H

/* Without memory uthash would call exit(); abort() leaves a core dump. */
#include <stdlib.h>
#define uthash_fatal(msg) abort()
#include <uthash.h>

#endif
