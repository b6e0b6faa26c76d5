/*
 * storage_room.c - the room that is left, and the homes that use it evenly.
 *
 * In:     statfs, placement; the storages as the polls left them.
 * Out:    bytes of user data; homes; the credits of storages.
 * Keeps:  statfs and placement go by the same rows (storage_room.h).
 */
#include "exportd/cluster/storage_room.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "codec/codec.h"
#include "common/wire/record.h"
#include "exportd/cluster/cluster.h"
#include "exportd/cluster/exportd_state.h"

enum { FULL_RESERVE_PART = 50 }; /* with less than a 50th free there are no new files */
/* bytes free that are always enough */
static const uint64_t full_reserve_max = 4ull << 30;
/* in files: limits how much a storage that was down catches up */
static const double credit_max = 4;
/* small enough that a storage with share 1 stays a home */
static const double rank_jitter = 0.5;

uint64_t storage_room(const struct cluster_storage *s)
{
    uint64_t reserve = s->total_bytes / FULL_RESERVE_PART;

    if (reserve > full_reserve_max)
        reserve = full_reserve_max;
    return s->free_bytes <= reserve ? 0 : (s->free_bytes - reserve) / s->n_on_disk;
}

/* ---- rows ---- */

/* Rows of one file that a host and a rack may take. */
struct room_limits {
    unsigned per_host, per_rack;
};

/* Bytes that some storages take for rows of one length, and their growth with it. */
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

/* Returns the end of the group that begins at part i. */
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

/* Cuts the shares of a group down to its limit. */
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

/* Returns the number of rows of one file that fit, by storages and limits alone. */
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

/* Finds the smallest limits of rows per host, then per rack, that are possible. n_parts
 * >= n_rows. */
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

/* Finds the row. The bytes that all take are a concave function of the row, made of
 * straight pieces, so Newton's method from a row that is too long never goes below the
 * right one, and ends after a few steps. */
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

/* Returns the number of homes in the host or rack of part i. */
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

/* Adds to each storage's credit its share of a file; room_choose_homes() takes 1 from
 * each home. */
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
            return; /* unlucky choice of racks: the caller takes any storages */
        home->home = true;
        home->s->credit -= 1;
        if (home->s->credit < -credit_max)
            home->s->credit = -credit_max;
    }
}

/* ---- statfs ---- */

/* Converts bytes of rows to bytes of user data: a block has n_rows rows. */
static uint64_t user_bytes(const struct export *e, uint64_t row_bytes)
{
    const struct codec *codec = codec_get(e->codec, e->layout, e->block_bytes);
    uint64_t extent_bytes = 0;

    for (unsigned i = 0; i < codec_n(codec); i++)
        extent_bytes += record_extent_bytes(codec, i);
    return row_bytes / extent_bytes * EXTENT_BLOCKS * e->block_bytes;
}

/* Returns the number of rows of a block: fewer storages than n take one row each, while a
 * write can still succeed. */
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
        struct cluster_storage *s = container_of(node, struct cluster_storage, link);

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
