/*
 * arena.h - memory for one unpacked message, given back all at once.
 *
 * Most messages fit the room that the caller provides on its stack; the rest comes from
 * malloc() in ever larger pieces.
 */
#ifndef ROZO_COMMON_BASE_ARENA_H
#define ROZO_COMMON_BASE_ARENA_H

#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

enum { ARENA_ALIGN = 16, ARENA_PIECE_BYTES = 4096 };

struct arena_piece;

/* Embedded in its user; initialise with arena_init(). */
struct arena {
    ProtobufCAllocator allocator; /* messages unpacked with it live until arena_free() */
    uint8_t *at;
    size_t n_left;              /* bytes from there on */
    size_t next_bytes;          /* size of the next piece */
    struct arena_piece *pieces; /* owned */
};

/**
 * Initialises an arena. room: borrowed, aligned to ARENA_ALIGN; may be NULL.
 * likely_bytes: expected need beyond the room; 0: none.
 */
void arena_init(struct arena *a, void *room, size_t room_bytes, size_t likely_bytes);
/** Frees everything. Fine on a zeroed arena, and twice. */
void arena_free(struct arena *a);

#endif
