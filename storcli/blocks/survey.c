/*
 * survey.c - which storages hold data that other clients wrote and that may not be
 * stable.
 *
 * In:     blk_sync.c, after the first sync of a file that others wrote. Thread: the
 *         env's.
 * Out:    reads of heads (blk_read.c); ranges and marks in the sync's list.
 * Keeps:  I1 for data of others: a range with too few holders is in the list with the
 *         missing projections, so that the sync writes them to another storage.
 * Yours:  how many blocks are looked at at a time.
 */
#include "storcli/blocks/survey.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void survey_init(struct survey *s, struct storcli_file *file)
{
    *s = (struct survey){ .file = file, .from = UINT64_MAX };
}

void survey_free(struct survey *s)
{
    free(s->ranges);
    free(s->versions);
    free(s->holders);
    survey_init(s, s->file);
}

/* ---- lists of unstable blocks from storages ---- */

static bool ranges_room(struct survey *s)
{
    unsigned max = s->ranges_max == 0 ? 16 : s->ranges_max * 2;
    struct survey_range *listed;

    if (s->n_ranges < s->ranges_max)
        return true;
    listed = realloc(s->ranges, max * sizeof(*listed));
    if (listed == NULL)
        return false;
    s->ranges = listed;
    s->ranges_max = max;
    return true;
}

static void range_add(struct survey *s, unsigned candidate,
                      const Rozo__StCommitReq__Range *range)
{
    struct survey_range listed = {
        .first_block = range->first_block,
        .end_block =
            range->n_blocks == 0 ? UINT64_MAX : range->first_block + range->n_blocks,
        .version = range->version,
        .who = 1u << candidate,
    };

    if (listed.end_block <= listed.first_block ||
        (listed.version == 0 && listed.end_block == UINT64_MAX) || !ranges_room(s)) {
        s->incomplete = true;
        return;
    }
    for (unsigned i = 0; i < s->n_ranges; i++) {
        struct survey_range *t = &s->ranges[i];

        if (t->first_block != listed.first_block || t->end_block != listed.end_block ||
            t->version != listed.version)
            continue;
        t->who |= listed.who;
        return;
    }
    s->ranges[s->n_ranges++] = listed;
}

void survey_heard(struct survey *s, unsigned candidate, const Rozo__StSyncResp *resp)
{
    if (resp->n_unstable == 0)
        return;
    if (resp->unstable_from < s->from)
        s->from = resp->unstable_from;
    for (size_t i = 0; i < resp->n_unstable && i < SURVEY_RANGES_MAX; i++)
        range_add(s, candidate, resp->unstable[i]);
    s->incomplete |= resp->n_unstable > SURVEY_RANGES_MAX;
}

/* Returns true if enough storages list this block, or mark, or none does. */
static bool is_listed_by_enough(const struct survey *s, uint64_t block, uint64_t version)
{
    uint32_t who = 0;

    for (unsigned i = 0; i < s->n_ranges; i++) {
        const struct survey_range *t = &s->ranges[i];

        if (t->version == version && t->first_block <= block && block < t->end_block)
            who |= t->who;
    }
    return who == 0 || (unsigned)__builtin_popcount(who) >= s->file->q_write;
}

bool survey_is_due(const struct survey *s, uint32_t synced)
{
    if (s->n_ranges == 0)
        return false;
    if (s->incomplete || (unsigned)__builtin_popcount(synced) < s->file->c)
        return true;
    for (unsigned i = 0; i < s->n_ranges; i++) {
        const struct survey_range *t = &s->ranges[i];

        /* the number of storages changes only where a range begins or ends */
        if (!is_listed_by_enough(s, t->first_block, t->version) ||
            !is_listed_by_enough(s, t->end_block, t->version))
            return true;
    }
    return false;
}

/* ---- the walk ---- */

static void note_lacks(const struct storcli_file *file, struct holders *held)
{
    uint32_t there = 0;

    for (unsigned i = 0; i < file->c; i++) {
        if ((held->all >> i & 1) != 0)
            there |= 1u << held->projection[i];
    }
    held->lacks = ~there & ((1u << file->n) - 1);
}

/* Returns the storages that have all of this mark, perhaps in other pieces. */
static uint32_t mark_holders(const struct survey *s, const struct survey_range *mark)
{
    uint32_t who = 0;

    for (unsigned i = 0; i < s->n_ranges; i++) {
        const struct survey_range *t = &s->ranges[i];

        if (t->version == mark->version && t->first_block <= mark->first_block &&
            t->end_block >= mark->end_block)
            who |= t->who;
    }
    return who;
}

/* Adds the marks that k storages or more have. With fewer, others know of a commit, or it
 * cannot have been acknowledged. */
static void add_marks(struct survey *s)
{
    const struct storcli_file *file = s->file;

    for (unsigned i = 0; i < s->n_ranges; i++) {
        const struct survey_range *t = &s->ranges[i];
        uint32_t who = mark_holders(s, t), has[DIST_MAX] = { 0 };
        struct holders held;

        if (t->version == 0 || (unsigned)__builtin_popcount(who) < file->k)
            continue;
        for (unsigned c = 0; c < file->c; c++) {
            if ((who >> c & 1) != 0)
                has[c] = holders_hole_projections(c, file->n);
        }
        held = holders_of(has, who);
        note_lacks(file, &held);
        s->found = true;
        unsynced_add_mark(s->into, t->version, t->first_block,
                          t->end_block == UINT64_MAX ? 0 : t->end_block - t->first_block,
                          &held);
    }
}

static bool same_holders(const struct holders *a, const struct holders *b)
{
    return a->all == b->all && a->any == b->any && a->bare == b->bare &&
           memcmp(a->projection, b->projection, sizeof(a->projection)) == 0;
}

static bool is_to_add(const struct survey *s, unsigned b)
{
    return s->versions[b] != 0 && s->versions[b] >= s->from &&
           !unsynced_knows(s->into, s->next_block + b);
}

static void add_blocks(struct survey *s)
{
    for (unsigned b = 0, past; b < s->n_blocks; b = past) {
        uint64_t version = s->versions[b];
        struct holders held = s->holders[b];

        past = b + 1;
        if (!is_to_add(s, b))
            continue;
        for (; past < s->n_blocks && is_to_add(s, past) &&
               same_holders(&held, &s->holders[past]);
             past++)
            version = s->versions[past] < version ? s->versions[past] : version;
        note_lacks(s->file, &held);
        unsynced_add(s->into, version, s->next_block + b, past - b, &held);
        s->found = true;
    }
}

static void survey_next(struct survey *s);

static void on_survey_read(void *arg, int rc)
{
    struct survey *s = arg;

    if (rc != 0) {
        s->done(s->arg, rc);
        return;
    }
    add_blocks(s);
    s->next_block += s->n_blocks;
    survey_next(s);
}

static int by_first(const void *a, const void *b)
{
    const struct survey_range *x = a, *y = b;

    return x->first_block < y->first_block ? -1 : x->first_block > y->first_block;
}

/* Moves to the next block that is listed and not known, each once. False: no more. */
static bool survey_seek(struct survey *s)
{
    for (; s->at < s->n_ranges; s->at++) {
        const struct survey_range *t = &s->ranges[s->at];

        if (t->version != 0 || t->end_block <= s->next_block)
            continue;
        if (t->first_block > s->next_block)
            s->next_block = t->first_block;
        while (s->next_block < t->end_block && unsynced_knows(s->into, s->next_block))
            s->next_block++;
        if (s->next_block < t->end_block)
            return true;
    }
    return false;
}

/* Reads the next blocks, or ends. */
static void survey_next(struct survey *s)
{
    const struct read_want want = { .versions = s->versions,
                                    .holders = s->holders,
                                    .heads_only = true };
    uint64_t left;

    if (!survey_seek(s)) {
        add_marks(s);
        s->done(s->arg, 0);
        return;
    }
    left = s->ranges[s->at].end_block - s->next_block;
    s->n_blocks = (unsigned)(left < STORCLI_RUN_MAX ? left : STORCLI_RUN_MAX);
    engine_read(s->file, s->next_block, s->n_blocks, &want, on_survey_read, s);
}

static void on_survey_begin(struct env_task *task)
{
    struct survey *s = container_of(task, struct survey, task);

    if (s->versions == NULL || s->holders == NULL)
        s->done(s->arg, -ENOMEM);
    else
        survey_next(s);
}

void survey_start(struct survey *s, struct unsynced *into, storcli_done_cb *done,
                  void *arg)
{
    s->into = into;
    s->done = done;
    s->arg = arg;
    s->versions = malloc(STORCLI_RUN_MAX * sizeof(s->versions[0]));
    s->holders = malloc(STORCLI_RUN_MAX * sizeof(s->holders[0]));
    qsort(s->ranges, s->n_ranges, sizeof(s->ranges[0]), by_first);
    s->task.fn = on_survey_begin;
    env_post(s->file->cli->env, &s->task);
}
