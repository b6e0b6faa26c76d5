/*
 * arena.h - memory that is given back all at once: what one message is unpacked into.
 *
 * Most messages fit the room that the caller has for them, on his stack; what does not comes from malloc() in ever larger pieces.
 */
#ifndef ROZO_COMMON_BASE_ARENA_H
#define ROZO_COMMON_BASE_ARENA_H

#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

enum { ARENA_ALIGN = 16, ARENA_PIECE_BYTES = 4096 };

struct arena_piece;

/* Embedded; arena_init(). */
struct arena {
    ProtobufCAllocator allocator; /* what is unpacked with it lives until arena_free() */
    uint8_t *at;
    size_t n_left;              /* bytes from there on */
    size_t next_bytes;          /* how large the next piece is to be */
    struct arena_piece *pieces; /* owned */
};

/** room: borrowed, aligned to ARENA_ALIGN; may be NULL. likely_bytes: beyond that; 0: nothing. */
void arena_init(struct arena *a, void *room, size_t room_bytes, size_t likely_bytes);
/** Everything goes. Of a zeroed one, and twice: nothing. */
void arena_free(struct arena *a);

#endif
