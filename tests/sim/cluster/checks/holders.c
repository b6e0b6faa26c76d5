/*
 * holders.c - checks of I5: tokens in exportd's table and in the mounts' tables.
 *
 * In:     the tables in the daemons' memory. Out: an error message if two tokens exclude
 *         each other.
 */
#include <stdlib.h>
#include <string.h>

#include "common/base/range_map.h"
#include "rozomount/tokens/token_cache.h"
#include "tests/sim/cluster/state.h"

enum {
    HOLDINGS_MAX = 4096,
    EVENTS_BETWEEN = 8, /* events between two checks */
};

static struct {
    struct exportd_token list[HOLDINGS_MAX]; /* sorted by inode */
    size_t n;
} held;

static void on_token(void *arg, const struct exportd_token *token)
{
    (void)arg;
    if (held.n < HOLDINGS_MAX)
        held.list[held.n++] = *token;
}

static int by_ino(const void *a, const void *b)
{
    uint64_t x = ((const struct exportd_token *)a)->ino;
    uint64_t y = ((const struct exportd_token *)b)->ino;

    return x < y ? -1 : x > y;
}

/* Tells whether one holds a write range that overlaps a range of the other. */
static bool ranges_exclude(const struct range_map *a, const struct range_map *b)
{
    for (size_t i = 0; a != NULL && b != NULL && i < a->n; i++) {
        const struct mapped_range *s = &a->list[i];
        unsigned most = range_map_most(b, s->from, s->to);

        if (most == TOKEN_WRITE || (most != 0 && s->value == TOKEN_WRITE))
            return true;
    }
    return false;
}

/* Tells whether two tokens exclude each other; a: the mount's own belief. */
static bool tokens_exclude(unsigned a, const struct range_map *a_ranges, unsigned b,
                           const struct range_map *b_ranges)
{
    if (a == TOKEN_RANGES && b == TOKEN_RANGES)
        return ranges_exclude(a_ranges, b_ranges);
    return a >= TOKEN_RANGES || b >= TOKEN_RANGES;
}

static void exportd_check(void)
{
    for (size_t i = 0; i + 1 < held.n; i++) {
        const struct exportd_token *a = &held.list[i], *b = a + 1;

        run->result.n_ranges += a->mode == TOKEN_RANGES;
        for (; b < held.list + held.n && b->ino == a->ino; b++) {
            if (!tokens_exclude(a->mode, a->ranges, b->mode, b->ranges))
                continue;
            wrong("inode %llu: session %llx has token %u, and %llx has %u",
                  (unsigned long long)a->ino, (unsigned long long)a->session, a->mode,
                  (unsigned long long)b->session, b->mode);
        }
    }
}

static const struct exportd_token *held_first(uint64_t ino)
{
    size_t from = 0, to = held.n;

    while (from < to) {
        size_t middle = from + (to - from) / 2;

        if (held.list[middle].ino < ino)
            from = middle + 1;
        else
            to = middle;
    }
    return &held.list[from];
}

static void belief_check(const struct sim_client *c, uint64_t ino, enum token_mode mode,
                         const struct range_map *ranges)
{
    for (const struct exportd_token *t = held_first(ino);
         t < held.list + held.n && t->ino == ino; t++) {
        if (t->session != c->session && tokens_exclude(mode, ranges, t->mode, t->ranges))
            wrong("inode %llu: %s uses token %u, and session %llx has %u",
                  (unsigned long long)ino, c->host->proc->name, mode,
                  (unsigned long long)t->session, t->mode);
    }
}

static void beliefs_check(struct sim_client *c)
{
    struct proc *before = proc_enter(c->host->proc);
    size_t n;
    uint64_t *inos = token_cache_list(client_tokens(c), &n);

    proc_leave(before);
    for (size_t i = 0; i < n; i++)
        belief_check(c, inos[i], token_cache_mode(client_tokens(c), inos[i]),
                     token_cache_ranges(client_tokens(c), inos[i]));
    before = proc_enter(c->host->proc);
    free(inos);
    proc_leave(before);
}

void holders_check(void)
{
    const struct exportd *x;

    if (world_clock.n_events % EVENTS_BETWEEN != 0)
        return;
    x = meta_core(meta_leader());
    if (x == NULL)
        return;
    held.n = 0;
    exportd_each_token(x, on_token, NULL);
    qsort(held.list, held.n, sizeof(held.list[0]), by_ino);
    exportd_check();
    for (unsigned i = 0; i < run->n_clients; i++) {
        struct sim_client *c = &run->clients[i];

        if (!client_is_up(c) || !exportd_has_session(x, c->session))
            continue;
        beliefs_check(c);
    }
}
