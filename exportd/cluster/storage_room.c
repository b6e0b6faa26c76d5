/*
 * storage_room.c - how much can still be written, and which storages must be homes for that.
 *
 * In:     statfs, placement; the storages as the polls left them.
 * Out:    bytes of user data; homes; the credits of storages.
 * Keeps:  what statfs promises and what placement does go by the same rows (storage_room.h).
 */
#include "exportd/cluster/storage_room.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "codec/codec.h"
#include "common/base/record.h"
#include "exportd/cluster/cluster.h"
#include "exportd/cluster/exportd_state.h"

enum { FULL_RESERVE_PART = 50 }; /* with less than a 50th free: no new files, */
static const uint64_t full_reserve_max = 4ull << 30; /* but this much is always enough */
static const double credit_max = 4; /* in files: one that was away does not get all */
static const double rank_jitter =
    0.5; /* less than what keeps a home with share 1 from being one */

uint64_t storage_room(const struct storage *s)
{
    uint64_t reserve = s->total_bytes / FULL_RESERVE_PART;

    if (reserve > full_reserve_max)
        reserve = full_reserve_max;
    return s->free_bytes <= reserve ? 0 : (s->free_bytes - reserve) / s->n_on_disk;
}

/* ---- rows ---- */

/* How many rows of one file a host and a rack may take. */
struct room_limits {
    unsigned per_host, per_rack;
};

/* The bytes that some storages take of rows of one length, and how fast they grow with it. */
struct room_taken {
    uint64_t bytes;
    unsigned slope;
};

static bool same_rack(const struct room_part *a, const struct room_part *b)
{
    return strcmp(a->s->facts.rack, b->s->facts.rack) == 0;
}

static bool same_host(const struct room_part *a, const struct room_part *b)
{
    return same_rack(a, b) && strcmp(a->s->facts.host, b->s->facts.host) == 0;
}

static int by_domain(const void *va, const void *vb)
{
    const struct room_part *a = va, *b = vb;
    int rc = strcmp(a->s->facts.rack, b->s->facts.rack);

    if (rc == 0)
        rc = strcmp(a->s->facts.host, b->s->facts.host);
    return rc != 0 ? rc : (a->order > b->order) - (a->order < b->order);
}

/* The end of the group that begins at part i. */
static unsigned group_end(const struct room_part *p, unsigned n, unsigned i,
                          bool (*same)(const struct room_part *,
                                       const struct room_part *))
{
    unsigned end = i + 1;

    while (end < n && same(&p[i], &p[end]))
        end++;
    return end;
}

static struct room_taken at_most(struct room_taken t, unsigned limit, uint64_t row)
{
    return t.bytes > limit * row ? (struct room_taken){ limit * row, limit } : t;
}

/* Cuts the shares of a group down to what it may take. */
static struct room_taken limit_group(struct room_part *p, unsigned n, struct room_taken t,
                                     unsigned limit, uint64_t row)
{
    struct room_taken limited = at_most(t, limit, row);

    if (limited.bytes == t.bytes)
        return t;
    for (unsigned i = 0; i < n; i++)
        p[i].share =
            (uint64_t)((double)p[i].share * ((double)limited.bytes / (double)t.bytes));
    return limited;
}

static struct room_taken host_takes(struct room_part *p, unsigned n, uint64_t row,
                                    unsigned limit)
{
    struct room_taken t = { 0, 0 };

    for (unsigned i = 0; i < n; i++) {
        p[i].share = p[i].room < row ? p[i].room : row;
        t.bytes += p[i].share;
        t.slope += p[i].room > row;
    }
    return limit_group(p, n, t, limit, row);
}

static struct room_taken rack_takes(struct room_part *p, unsigned n, uint64_t row,
                                    const struct room_limits *limits)
{
    struct room_taken t = { 0, 0 };

    for (unsigned i = 0, end; i < n; i = end) {
        struct room_taken host;

        end = group_end(p, n, i, same_host);
        host = host_takes(p + i, end - i, row, limits->per_host);
        t.bytes += host.bytes;
        t.slope += host.slope;
    }
    return limit_group(p, n, t, limits->per_rack, row);
}

static struct room_taken all_take(struct room_part *p, unsigned n, uint64_t row,
                                  const struct room_limits *limits)
{
    struct room_taken t = { 0, 0 };

    for (unsigned i = 0, end; i < n; i = end) {
        struct room_taken rack;

        end = group_end(p, n, i, same_rack);
        rack = rack_takes(p + i, end - i, row, limits);
        t.bytes += rack.bytes;
        t.slope += rack.slope;
    }
    return t;
}

static unsigned min_unsigned(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* Rows of one file that fit, by storages and limits alone. */
static unsigned rows_that_fit(const struct room_part *p, unsigned n,
                              const struct room_limits *limits)
{
    unsigned rows = 0;

    for (unsigned i = 0, end; i < n; i = end) {
        unsigned in_rack = 0;

        end = group_end(p, n, i, same_rack);
        for (unsigned j = i, host_end; j < end; j = host_end) {
            host_end = group_end(p, end, j, same_host);
            in_rack += min_unsigned(host_end - j, limits->per_host);
        }
        rows += min_unsigned(in_rack, limits->per_rack);
    }
    return rows;
}

/* The least crowded hosts, then racks, that are possible. n_parts >= n_rows. */
static struct room_limits find_limits(const struct room_part *p, unsigned n_parts,
                                      unsigned n_rows)
{
    struct room_limits limits = { .per_host = 1, .per_rack = n_rows };

    while (rows_that_fit(p, n_parts, &limits) < n_rows)
        limits.per_host++;
    limits.per_rack = 1;
    while (rows_that_fit(p, n_parts, &limits) < n_rows)
        limits.per_rack++;
    return limits;
}

/*
 * The bytes that all take are a concave function of the row, made of straight pieces. Newton's
 * method from a row that is too long never goes below the right one, and ends after a few.
 */
static uint64_t find_row(struct room_part *p, unsigned n_parts, unsigned n_rows,
                         const struct room_limits *limits)
{
    uint64_t row = 0;
    struct room_taken t;

    for (unsigned i = 0; i < n_parts; i++)
        row += p[i].room;
    row /= n_rows;
    t = all_take(p, n_parts, row, limits);
    while (row > 0 && t.bytes < n_rows * row) {
        row = (t.bytes - t.slope * row) / (n_rows - t.slope);
        t = all_take(p, n_parts, row, limits);
    }
    return row;
}

uint64_t room_row(struct room_part *parts, unsigned n_parts, unsigned n_rows)
{
    struct room_limits limits;

    if (n_rows == 0 || n_parts < n_rows)
        return 0;
    qsort(parts, n_parts, sizeof(*parts), by_domain);
    limits = find_limits(parts, n_parts, n_rows);
    return find_row(parts, n_parts, n_rows, &limits);
}

/* ---- homes ---- */

static double chance(struct env *env)
{
    uint32_t r;

    env_random(env, &r, sizeof(r));
    return r / 4294967296.0;
}

/* Rows that the host or rack of part i has already. */
static unsigned homes_beside(const struct room_part *p, unsigned n, unsigned i,
                             bool (*same)(const struct room_part *,
                                          const struct room_part *))
{
    unsigned homes = 0;

    for (unsigned j = 0; j < n; j++)
        homes += p[j].home && same(&p[i], &p[j]);
    return homes;
}

static struct room_part *next_home(struct room_part *p, unsigned n,
                                   const struct room_limits *limits)
{
    struct room_part *best = NULL;

    for (unsigned i = 0; i < n; i++) {
        if (p[i].home || (best != NULL && p[i].rank <= best->rank) ||
            homes_beside(p, n, i, same_host) >= limits->per_host ||
            homes_beside(p, n, i, same_rack) >= limits->per_rack)
            continue;
        best = &p[i];
    }
    return best;
}

/* With each file a storage's credit grows by its share; room_choose_homes() takes 1 from homes. */
static void add_credits(struct env *env, struct room_part *p, unsigned n, unsigned n_rows)
{
    uint64_t sum = 0;

    for (unsigned i = 0; i < n; i++)
        sum += p[i].share;
    for (unsigned i = 0; i < n; i++) {
        p[i].s->credit += (double)p[i].share * n_rows / (double)sum;
        if (p[i].s->credit > credit_max)
            p[i].s->credit = credit_max;
        p[i].rank = p[i].s->credit + rank_jitter * chance(env);
    }
}

void room_choose_homes(struct env *env, struct room_part *parts, unsigned n_parts,
                       unsigned n_rows)
{
    struct room_limits limits;

    if (room_row(parts, n_parts, n_rows) == 0)
        return;
    limits = find_limits(parts, n_parts, n_rows);
    add_credits(env, parts, n_parts, n_rows);
    for (unsigned i = 0; i < n_rows; i++) {
        struct room_part *home = next_home(parts, n_parts, &limits);

        if (home == NULL)
            return; /* the choice was unlucky with racks: the caller takes any */
        home->home = true;
        home->s->credit -= 1;
        if (home->s->credit < -credit_max)
            home->s->credit = -credit_max;
    }
}

/* ---- statfs ---- */

/* User bytes of so many bytes of rows: n_rows of them, of each block. */
static uint64_t user_bytes(const struct export *e, uint64_t row_bytes)
{
    const struct codec *codec = codec_get(e->codec, e->layout, e->block_bytes);
    uint64_t extent_bytes = 0;

    for (unsigned i = 0; i < codec_n(codec); i++)
        extent_bytes += record_extent_bytes(codec, i);
    return row_bytes / extent_bytes * EXTENT_BLOCKS * e->block_bytes;
}

/* With fewer storages than n there is one row on each, while a write can still succeed. */
static unsigned rows_of(const struct codec_layout *layout, unsigned n_usable)
{
    if (n_usable >= layout->n)
        return layout->n;
    return n_usable >= quorum_write(layout, layout->safe) ? n_usable : 0;
}

int export_room(const struct export *e, struct room *out)
{
    const struct codec_layout *layout = codec_layout(e->layout);
    struct room_part *parts = calloc(e->x->n_storages + 1, sizeof(*parts));
    uint64_t total = 0, unused = 0;
    unsigned n = 0, n_rows;

    if (parts == NULL)
        return -ENOMEM;
    LIST_FOREACH(node, &e->x->storages) {
        struct storage *s = container_of(node, struct storage, link);

        if (s->facts.volume != e->volume || s->facts.lost)
            continue;
        total += s->total_bytes / s->n_on_disk;
        unused += s->free_bytes / s->n_on_disk;
        parts[n] = (struct room_part){ .s = s, .room = storage_room(s), .order = n };
        n += storage_is_reachable(s) && parts[n].room > 0;
    }
    n_rows = rows_of(layout, n);
    out->total = user_bytes(e, total);
    out->unused = user_bytes(e, unused);
    out->available = user_bytes(e, room_row(parts, n, n_rows) * layout->n);
    free(parts);
    return 0;
}
