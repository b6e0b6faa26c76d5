/*
 * hash.h - uthash with our settings, and shorter forms of it.
 *
 * For tables of some kind of struct by one of its fields; the order of addition is kept.
 * table.h is smaller and faster, for a hash that the caller has.
 */
#ifndef ROZO_COMMON_BASE_HASH_H
#define ROZO_COMMON_BASE_HASH_H

#include <assert.h>

/* Without memory uthash would call exit(); abort() leaves a core dump. */
#include <stdlib.h>
#define uthash_fatal(msg) abort()
#include <uthash.h>

/** Returns the member with this key, which must be an lvalue; NULL: there is none. */
#define hash_find(table, key)                              \
    __extension__({                                        \
        __typeof__(*(table)) *found_;                      \
        HASH_FIND(hh, table, &(key), sizeof(key), found_); \
        found_;                                            \
    })

/** Adds a member, whose key is `field`. */
#define hash_add(table, field, member) \
    HASH_ADD(hh, table, field, sizeof((member)->field), member)

/** Returns the member with this key. If there is none, adds what `make` returns. */
#define hash_find_or_make(table, field, key, make)             \
    __extension__({                                            \
        __typeof__(*(table)) *got_ = hash_find(table, key);    \
        static_assert(sizeof(key) == sizeof(got_->field), ""); \
        if (got_ == NULL && (got_ = (make)) != NULL) {         \
            got_->field = (key);                               \
            hash_add(table, field, got_);                      \
        }                                                      \
        got_;                                                  \
    })

#endif
