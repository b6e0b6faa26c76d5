/*
 * redistribute.c - count and find files that lack candidates, and have them added.
 *
 * In:     the tick; a changed set of storages; a later distribution seen at a storage.
 * Out:    redist_file.c, for each such file.
 * Keeps:  at most FILES_MAX files of a search are under way.
 * Yours:  FILES_MAX, KEYS_A_TICK, the pauses.
 */
#include "exportd/redistribution/redistribute.h"

#include <errno.h>

#include "common/base/units.h"
#include "exportd/redistribution/redist_file.h"

enum {
    FILES_MAX = 4,      /* files under way at a time */
    ADOPTED_MAX = 64,   /* files under way, with those that clients ask for */
    KEYS_A_TICK = 4096, /* inodes looked at per tick */
    PAUSE_MIN_S = 2,
    PAUSE_MAX_S = 300,
};

static bool on_record_at_start(void *arg, uint64_t ino, const struct namespace_redist *r)
{
    struct export *e = arg;

    return r->phase != REDIST_BEGUN || redist_file_resume(e, ino, r) == 0;
}

int redistribute_load(struct exportd *x)
{
    x->redist = calloc(1, sizeof(*x->redist));
    if (x->redist == NULL)
        return -ENOMEM;
    x->redist->x = x;
    redist_files_init(x);
    LIST_FOREACH(node, &x->exports) {
        struct export *e = container_of(node, struct export, link);
        uint64_t after = 0;
        bool end = false;
        int rc =
            namespace_redists(&e->ns, &after, UINT32_MAX, on_record_at_start, e, &end);

        if (rc != 0 || !end)
            return rc != 0 ? rc : -ENOMEM;
    }
    redistribute_look(x);
    return 0;
}

static void search_from(struct exportd *x, int state)
{
    x->redist->state = state;
    x->redist->export_id = 0;
    x->redist->ino = 0;
}

void redistribute_look(struct exportd *x)
{
    search_from(x, SEARCH_COUNT);
    x->redist->next_ns = 0;
    x->redist->pause_ns = 0;
    LIST_FOREACH(node, &x->exports) {
        struct export *e = container_of(node, struct export, link);

        e->few_known = false;
        e->n_few_counting = 0;
    }
}

void redistribute_adopt(struct export *e, const struct inode *in)
{
    if (!inode_may_have_data(in) || e->x->redist->files.n >= ADOPTED_MAX ||
        redist_file_find(e, in->ino) != NULL)
        return;
    redist_file_adopt(e, in);
}

/* Returns the export whose turn it is; NULL: the search has seen all. */
static struct export *whose_turn(struct exportd *x)
{
    LIST_FOREACH(node, &x->exports) {
        struct export *e = container_of(node, struct export, link);

        if (e->id >= x->redist->export_id)
            return e;
    }
    return NULL;
}

static bool on_file_counted(void *arg, const struct inode *in)
{
    struct export *e = arg;

    e->n_few_counting += redist_is_few(e, in);
    return true;
}

static bool on_record_counted(void *arg, uint64_t ino, const struct namespace_redist *r)
{
    struct export *e = arg;

    (void)ino;
    e->n_few_counting += r->phase == REDIST_DONE;
    return true;
}

static bool on_record(void *arg, uint64_t ino, const struct namespace_redist *r)
{
    struct export *e = arg;

    if (r->phase != REDIST_DONE || redist_file_find(e, ino) != NULL)
        return true;
    if (e->x->redist->files.n >= FILES_MAX)
        return false;
    redist_file_resume(e, ino, r);
    return true;
}

/* Files with too few candidates, up to n_max. */
struct found {
    struct export *export;
    unsigned n, n_max;
    struct inode files[FILES_MAX];
};

static bool on_file(void *arg, const struct inode *in)
{
    struct found *found = arg;

    if (!redist_is_few(found->export, in) ||
        redist_file_find(found->export, in->ino) != NULL)
        return true;
    if (found->n == found->n_max)
        return false;
    found->files[found->n++] = *in;
    return true;
}

static void export_counted(struct export *e)
{
    uint64_t after = 0;
    bool end;

    namespace_redists(&e->ns, &after, UINT32_MAX, on_record_counted, e, &end);
    e->n_few = e->n_few_counting;
    e->n_few_counting = 0;
    e->few_known = true;
}

static uint64_t n_few(const struct exportd *x)
{
    uint64_t n = 0;

    LIST_FOREACH(node, &x->exports)
        n += container_of(node, struct export, link)->n_few;
    return n;
}

/* Starts the next phase of the search after all exports. */
static void search_next(struct exportd *x)
{
    struct redistribution *r = x->redist;

    if (r->state == SEARCH_COUNT) {
        redist_files_retry(x);
        search_from(x, n_few(x) > 0 ? SEARCH_RECORDS : SEARCH_IDLE);
    } else if (r->state == SEARCH_RECORDS) {
        search_from(x, SEARCH_FILES);
    } else if (r->files.n == 0 && !r->files.put_off && n_few(x) == 0) {
        search_from(x, SEARCH_IDLE);
    } else if (r->files.n == 0) {
        r->pause_ns = r->pause_ns == 0 ? s_to_ns(PAUSE_MIN_S) : 2 * r->pause_ns;
        if (r->pause_ns > s_to_ns(PAUSE_MAX_S))
            r->pause_ns = s_to_ns(PAUSE_MAX_S);
        r->next_ns = env_now_ns(x->env) + r->pause_ns;
        search_from(x, SEARCH_COUNT);
    }
}

/* Begins as many files as there is room for. */
static int search_files(struct export *e, bool *end)
{
    struct redistribution *r = e->x->redist;
    struct found found = { .export = e, .n_max = FILES_MAX - r->files.n };
    int rc;

    if (r->files.n >= FILES_MAX)
        return 0;
    rc = namespace_files(&e->ns, &r->ino, KEYS_A_TICK, on_file, &found, end);
    for (unsigned i = 0; i < found.n; i++) /* nothing may be put while a scan is open */
        redist_file_begin(e, &found.files[i]);
    return rc;
}

/* Looks at some inodes of this export. Returns true at its end. */
static bool search_export(struct export *e)
{
    struct redistribution *r = e->x->redist;
    bool end = false;
    int rc;

    if (r->state == SEARCH_COUNT)
        rc = namespace_files(&e->ns, &r->ino, KEYS_A_TICK, on_file_counted, e, &end);
    else if (r->state == SEARCH_RECORDS)
        rc = namespace_redists(&e->ns, &r->ino, KEYS_A_TICK, on_record, e, &end);
    else
        rc = search_files(e, &end);
    return rc != 0 || end;
}

void redistribute_tick(struct exportd *x)
{
    struct redistribution *r = x->redist;
    struct export *e;

    if (x->stopping || !x->is_ready || store_error(x->store) != 0)
        return;
    redist_files_step(x);
    if (r->state == SEARCH_IDLE || env_now_ns(x->env) < r->next_ns)
        return;
    e = whose_turn(x);
    if (e == NULL) {
        search_next(x);
        return;
    }
    if (!search_export(e))
        return;
    if (r->state == SEARCH_COUNT)
        export_counted(e);
    r->export_id = e->id + 1;
    r->ino = 0;
}

void redistribute_stop(struct exportd *x)
{
    redist_files_stop(x);
}

void redistribute_free(struct exportd *x)
{
    if (x->redist == NULL)
        return; /* the start failed earlier */
    redist_files_free(x);
    free(x->redist);
}
