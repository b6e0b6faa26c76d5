/*
 * hash.h - uthash, as exportd uses it.
 */
#ifndef ROZO_EXPORTD_TOKENS_HASH_H
#define ROZO_EXPORTD_TOKENS_HASH_H

/* uthash reports with exit() when memory is out; we would rather leave a trace. */
#include <stdlib.h>
#define uthash_fatal(msg) abort()
#include <uthash.h>

#endif
