/*
 * arena.c - a bump allocator over a list of pieces.
 */
#include "common/base/arena.h"

#include <stdalign.h>
#include <stdlib.h>

struct arena_piece {
    struct arena_piece *next;
    alignas(ARENA_ALIGN) uint8_t bytes[];
};

static void *piece_new(struct arena *a, size_t size)
{
    size_t n = size > a->next_bytes ? size : a->next_bytes;
    struct arena_piece *p = n > SIZE_MAX - sizeof(*p) ? NULL : malloc(sizeof(*p) + n);

    if (p == NULL)
        return NULL;
    p->next = a->pieces;
    a->pieces = p;
    a->next_bytes = 2 * n;
    a->at = p->bytes + size;
    a->n_left = n - size;
    return p->bytes;
}

static void *arena_alloc(void *arg, size_t size)
{
    struct arena *a = arg;
    uint8_t *p = a->at;

    if (size > SIZE_MAX / 4)
        return NULL;
    size =
        size == 0 ? ARENA_ALIGN : (size + ARENA_ALIGN - 1) & ~(size_t)(ARENA_ALIGN - 1);
    if (size > a->n_left)
        return piece_new(a, size);
    a->at += size;
    a->n_left -= size;
    return p;
}

static void arena_keep(void *arg, void *p)
{
    (void)arg;
    (void)p;
}

void arena_init(struct arena *a, void *room, size_t room_bytes, size_t likely_bytes)
{
    *a = (struct arena){
        .allocator = { arena_alloc, arena_keep, a },
        .at = room,
        .n_left = room_bytes & ~(size_t)(ARENA_ALIGN - 1),
        .next_bytes = likely_bytes > ARENA_PIECE_BYTES ? likely_bytes : ARENA_PIECE_BYTES,
    };
}

void arena_free(struct arena *a)
{
    while (a->pieces != NULL) {
        struct arena_piece *p = a->pieces;

        a->pieces = p->next;
        free(p);
    }
    a->at = NULL;
    a->n_left = 0;
}
