/*
 * token.h - modes of a token, as exportd grants them and mounts hold them.
 */
#ifndef ROZO_COMMON_WIRE_TOKEN_H
#define ROZO_COMMON_WIRE_TOKEN_H

#include <stdbool.h>
#include <stdint.h>

/* Values are those of Rozo__TokenMode. */
enum token_mode { TOKEN_NONE, TOKEN_SHARED, TOKEN_RANGES, TOKEN_EXCLUSIVE };
enum token_access { TOKEN_READ = 1, TOKEN_WRITE = 2 }; /* access to a range */

/**
 * Returns the number under which the token of an inode's fcntl locks is held: SHARED of
 * it says that no other session has, or gets, such a lock (docs/internals/locks.md).
 * Numbers of inodes are below.
 */
static inline uint64_t token_of_locks(uint64_t ino)
{
    return ino | UINT64_C(1) << 63;
}
static inline bool token_is_of_locks(uint64_t number)
{
    return number >> 63 != 0;
}

#endif
