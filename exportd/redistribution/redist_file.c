/*
 * redist_file.c - change the distribution of one file, phase by phase.
 *
 * In:     redistribute.c; the tick; answers and wake-ups (redist_files_soon()).
 * Out:    the requests of redist_ask.c; the distribution in the inode; KEY_REDIST
 *         records.
 * Keeps:  a file's candidates grow only while no client can write it (exportd holds it
 *         EXCLUSIVE, and all epochs are fenced) and each block is at all homes: a write
 *         under the new distribution could have left the same state. No storage gets the
 *         new distribution before the record of it is on stable storage.
 *         docs/internals/redistribution.md.
 * Yours:  the deadlines, how often a file is checked.
 */
#include "exportd/redistribution/redist_file.h"

#include <assert.h>
#include <errno.h>

#include "codec/codec.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "exportd/cluster/cluster.h"
#include "exportd/cluster/placement.h"
#include "exportd/sessions/session_store.h"

enum {
    FILLS_MAX = 3,     /* checks of a file that is being written; then it is closed */
    TAILS_MAX = 20,    /* checks of a flipped file before it is put off */
    CLOSED_MS = 10000, /* longest time closed while a session waits for the file */
    CLOSED_ALONE_MS = 600000, /* longest time closed otherwise */
    INFORM_MS = 10000,        /* time for storages to take a new distribution */
    LATE_MS = 60000,          /* time for storages that were down */
};

static bool is_new(const struct redist_file *f)
{
    return f->progress == PHASE_IS_NEW;
}

/* ---- places ---- */

/* Returns the places of the old distribution whose storages are not lost. */
static uint32_t places_old(const struct redist_file *f)
{
    uint32_t places = 0;

    for (uint32_t i = 0; i < f->in.n_storages; i++)
        places |= storage_is_lost(f->x, f->in.storages[i]) ? 0 : UINT32_C(1) << i;
    return places & ~f->fresh;
}

/* Returns the places of new homes. A new spare has nothing, and needs nothing. */
static uint32_t places_fresh_homes(const struct redist_file *f)
{
    return f->fresh & ((UINT32_C(1) << codec_layout(f->in.layout)->n) - 1);
}

/* Returns the places that have other storages after the change than before. */
static uint32_t places_changed(const struct redist_file *f)
{
    uint32_t places = 0;

    for (uint32_t i = 0; i < f->want.n_storages; i++) {
        if (i >= f->in.n_storages || f->in.storages[i] != f->want.storages[i])
            places |= UINT32_C(1) << i;
    }
    return places;
}

static bool all_are_reachable(const struct redist_file *f)
{
    for (uint32_t i = 0; i < f->in.n_storages; i++) {
        if (!storage_is_lost(f->x, f->in.storages[i]) &&
            redist_storage_at(f, f->in.storages[i]) == NULL)
            return false;
    }
    return true;
}

/* Returns whether enough of the old storages are in a bitmap of places: every write and
 * every decision about a block under the old distribution must meet one of them. A
 * decision needs c - q + 1 answers at least, with the smaller q = max(k, c - k + 1). */
static bool is_enough(const struct redist_file *f, uint32_t places)
{
    return (unsigned)__builtin_popcount(places & places_old(f)) >=
           codec_layout(f->in.layout)->k;
}

/* ---- time ---- */

static void wait_begin(struct redist_file *f, uint64_t ms)
{
    f->until_ns = env_now_ns(f->x->env) + ms_to_ns(ms);
}

static bool wait_is_over(const struct redist_file *f)
{
    return env_now_ns(f->x->env) >= f->until_ns;
}

/* Returns true if the file was closed too long for a phase that can still fail. */
static bool is_closed_too_long(const struct redist_file *f)
{
    return wait_is_over(f) || redist_hold_is_overdue(f, ms_to_ns(CLOSED_MS));
}

/* ---- the record ---- */

static void on_stored(struct store_wait *wait, int rc)
{
    struct redist_file *f = container_of(wait, struct redist_file, stored);

    assert(f->progress == PHASE_STORING);
    if (rc != 0)
        return; /* nothing can be changed any more */
    f->progress = PHASE_IS_OPEN;
    redist_files_soon(f->x);
}

/* Waits until all puts so far are on stable storage. */
static enum redist_result store(struct redist_file *f)
{
    f->stored.fn = on_stored;
    f->progress = PHASE_STORING;
    store_when_synced(f->x->store, &f->stored);
    return REDIST_WAIT;
}

static int want_put(struct redist_file *f, enum redist_phase phase)
{
    enum redist_phase before = f->want.phase;
    int rc;

    f->want.phase = phase;
    rc = namespace_redist_put(&f->export->ns, f->in.ino, &f->want);
    if (rc != 0)
        f->want.phase = before;
    return rc;
}

/* ---- phases ---- */

/* Returns true if storages have nothing of the file, so that no proof and no request is
 * needed. */
static bool is_simple(const struct redist_file *f)
{
    return !inode_may_have_data(&f->in) || f->x->config.grows_first;
}

/* NEXT: a storage has a later distribution; FAILED: none has. */
static enum redist_result find(struct redist_file *f)
{
    if (!redist_find(f))
        return REDIST_WAIT;
    if (f->want.generation <= f->in.dist_generation)
        return REDIST_FAILED;
    log_warn("inode %llu of export %u has generation %u of its distribution here, and %u "
             "at storages: taken from there (was exportd restored from a backup?)",
             (unsigned long long)f->in.ino, f->export->id, f->in.dist_generation,
             f->want.generation);
    f->want.phase = REDIST_PREPARED;
    f->fresh = places_changed(f);
    return REDIST_NEXT;
}

static enum redist_result fill(struct redist_file *f)
{
    enum redist_result r;

    if (is_simple(f))
        return grace_is_over(f->export) ? REDIST_NEXT : REDIST_FAILED;
    r = redist_probe(f);
    if (r != REDIST_NEXT)
        return r;
    r = redist_repair(f, false);
    /* Concurrent writers make a file look incomplete: the next tick asks again, then it
     * is closed. */
    if (r == REDIST_FAILED && f->repair.answer != REPAIR_TOO_OLD)
        r = f->repair.n_checks < FILLS_MAX ? REDIST_WAIT : REDIST_NEXT;
    if (r == REDIST_NEXT && (!all_are_reachable(f) || !grace_is_over(f->export)))
        return REDIST_FAILED;
    return r;
}

static enum redist_result close_file(struct redist_file *f)
{
    enum redist_result r;

    if (f->x->config.grows_first)
        return REDIST_NEXT;
    if (is_new(f)) {
        r = redist_hold_start(f);
        wait_begin(f, CLOSED_MS);
    } else {
        r = redist_hold_look(f);
    }
    if (r == REDIST_WAIT && wait_is_over(f))
        return REDIST_FAILED;
    if (r != REDIST_NEXT)
        return r;
    if (!redist_hold_take(f))
        return REDIST_FAILED;
    wait_begin(f, CLOSED_ALONE_MS);
    return REDIST_NEXT;
}

static enum redist_result fence(struct redist_file *f)
{
    if (is_simple(f))
        return REDIST_NEXT;
    if (is_new(f)) {
        if (namespace_fence_epoch(&f->export->ns, f->in.ino, &f->in) != 0)
            return REDIST_FAILED;
        return store(f);
    }
    if (is_closed_too_long(f) || !all_are_reachable(f))
        return REDIST_FAILED;
    return redist_ask_all(f, places_old(f), REQUEST_FENCE) ? REDIST_NEXT : REDIST_WAIT;
}

static enum redist_result prove(struct redist_file *f)
{
    enum redist_result r = is_simple(f) ? REDIST_NEXT : redist_repair(f, false);

    return r == REDIST_WAIT && is_closed_too_long(f) ? REDIST_FAILED : r;
}

static enum redist_result prepare(struct redist_file *f)
{
    struct namespace_redist before;

    if (is_new(f)) {
        f->want.generation = f->in.dist_generation + 1;
        if ((f->in.flags & INODE_MOVED) != 0 &&
            namespace_redist_get(&f->export->ns, f->in.ino, &before) == 0 &&
            before.generation >= f->want.generation)
            f->want.generation = before.generation + 1;
        if (is_simple(f))
            return REDIST_NEXT;
        wait_begin(f, INFORM_MS);
        return want_put(f, REDIST_PREPARED) != 0 ? REDIST_FAILED : store(f);
    }
    if (redist_ask_all(f, places_fresh_homes(f), REQUEST_PREPARE))
        return REDIST_NEXT;
    return wait_is_over(f) ? REDIST_FAILED : REDIST_WAIT;
}

/* Asks all storages that are not lost to take the new distribution. */
static bool all_have_taken(struct redist_file *f)
{
    return redist_ask_all(f, places_old(f) | places_fresh_homes(f), REQUEST_TAKE);
}

static enum redist_result rehead(struct redist_file *f)
{
    if (is_simple(f))
        return REDIST_NEXT;
    if (is_new(f) && f->want.phase == REDIST_PREPARED) {
        wait_begin(f, INFORM_MS);
        return want_put(f, REDIST_BEGUN) != 0 ? REDIST_FAILED : store(f);
    }
    if (all_have_taken(f))
        return REDIST_NEXT;
    return wait_is_over(f) && is_enough(f, f->asks.acked) ? REDIST_NEXT : REDIST_WAIT;
}

static enum redist_result flip(struct redist_file *f)
{
    if (is_new(f)) {
        if (want_put(f, REDIST_DONE) != 0)
            return REDIST_FAILED;
        if (!inode_may_have_data(&f->in))
            namespace_redist_delete(&f->export->ns, f->in.ino);
        return store(f);
    }
    redist_hold_release(f);
    return REDIST_NEXT;
}

static enum redist_result inform(struct redist_file *f)
{
    if (!inode_may_have_data(&f->in))
        return REDIST_NEXT;
    if (is_new(f))
        wait_begin(f, LATE_MS);
    if (all_have_taken(f))
        return REDIST_NEXT;
    return wait_is_over(f) ? REDIST_FAILED : REDIST_WAIT;
}

static enum redist_result complete(struct redist_file *f)
{
    enum redist_result r;

    if (!inode_may_have_data(&f->in))
        return REDIST_NEXT;
    r = redist_repair(f, true);
    if (r == REDIST_FAILED && f->repair.answer != REPAIR_TOO_OLD &&
        f->repair.n_checks < TAILS_MAX)
        return REDIST_WAIT;
    if (r == REDIST_NEXT)
        namespace_redist_delete(&f->export->ns, f->in.ino);
    return r;
}

static enum redist_result (*const phases[])(struct redist_file *f) = {
    [PHASE_FIND] = find,       [PHASE_FILL] = fill,   [PHASE_CLOSE] = close_file,
    [PHASE_FENCE] = fence,     [PHASE_PROVE] = prove, [PHASE_PREPARE] = prepare,
    [PHASE_REHEAD] = rehead,   [PHASE_FLIP] = flip,   [PHASE_INFORM] = inform,
    [PHASE_REPAIR] = complete,
};

/* Files that were fenced and proved before are not fenced and proved again: writes with
 * the old distribution since then had to pass storages that have the new one. A change
 * that enough old storages have may have taken effect. */
static enum redist_file_phase phase_after(const struct redist_file *f)
{
    if (f->adopts && f->phase == PHASE_FIND)
        return is_enough(f, f->asks.found) ? PHASE_FLIP : PHASE_CLOSE;
    if (f->adopts && f->phase == PHASE_CLOSE)
        return PHASE_REHEAD;
    return f->phase + 1;
}

static void phase_begin(struct redist_file *f, enum redist_file_phase phase)
{
    f->phase = phase;
    f->progress = PHASE_IS_NEW;
    redist_asks_begin(f);
}

/* Returns true if a storage to be replaced is not lost any more. It was not fenced and
 * has blocks that its stand-in may have dropped, so it stays unless old storages got the
 * change already. */
static bool is_overtaken(const struct redist_file *f)
{
    if (f->phase > PHASE_PREPARE || f->adopts)
        return false;
    for (uint32_t i = 0; i < f->in.n_storages; i++) {
        if ((f->fresh >> i & 1) != 0 && !storage_is_lost(f->x, f->in.storages[i]))
            return true;
    }
    return false;
}

/* ---- a file's life ---- */

static struct redist_file *file_new(struct export *e, const struct inode *in,
                                    enum redist_file_phase phase)
{
    struct redist_file *f = calloc(1, sizeof(*f));

    if (f == NULL)
        return NULL;
    f->x = e->x;
    f->export = e;
    f->in = *in;
    f->counted = e->few_known;
    redist_asks_init(f);
    redist_hold_init(f);
    phase_begin(f, phase);
    list_add_tail(&e->x->redist->files.all, &f->link);
    e->x->redist->files.n++;
    return f;
}

static void file_free(struct redist_file *f)
{
    struct redist_files *files = &f->x->redist->files;

    redist_asks_cancel(f);
    redist_hold_end(f);
    list_remove(&f->link);
    assert(files->n > 0);
    files->n--;
    free(f);
}

bool redist_is_few(const struct export *e, const struct inode *in)
{
    return in->nlink > 0 && export_has_more_for(e, in);
}

/* Returns true if the file lacks storages after a change, too: lost homes are replaced
 * before others are added. */
static bool lacks_more(const struct redist_file *f)
{
    struct inode in;

    return namespace_getattr(&f->export->ns, f->in.ino, &in) == 0 &&
           in.generation == f->in.generation && redist_is_few(f->export, &in);
}

/* Ends a file that is done or gone, or puts it off. */
static void file_end(struct redist_file *f, bool done)
{
    struct export *e = f->export;

    done = done && !lacks_more(f);
    if (!done && f->phase == PHASE_PREPARE && f->want.phase == REDIST_PREPARED)
        want_put(f, REDIST_GIVEN_UP);
    f->x->redist->files.put_off |= !done;
    if (done && f->counted)
        e->n_few -= e->n_few > 0;
    file_free(f);
}

/* Returns true from REHEAD on: retried with each tick until it works. */
static bool is_forward_only(const struct redist_file *f)
{
    return f->phase == PHASE_REHEAD || f->phase == PHASE_FLIP;
}

/* Reads the inode. Returns 0, -ESTALE if the file is gone, or another error. */
static int file_reload(struct redist_file *f)
{
    struct inode in;
    int rc = namespace_getattr(&f->export->ns, f->in.ino, &in);

    if (rc == 0 && in.generation != f->in.generation)
        rc = -ESTALE;
    if (rc == 0 && f->phase <= PHASE_FENCE && is_new(f))
        f->in = in; /* later it is the one that was fenced and proved */
    return rc;
}

/* Looks for the file at its storages instead. */
static void adopt(struct redist_file *f)
{
    redist_asks_forget(f);
    redist_hold_release(f);
    f->adopts = true;
    f->fresh = 0;
    f->want = (struct namespace_redist){ .generation = f->in.dist_generation };
    phase_begin(f, PHASE_FIND);
    redist_files_soon(f->x);
}

static void file_step(struct redist_file *f)
{
    enum redist_result r = REDIST_NEXT;
    int rc;

    while (r == REDIST_NEXT) {
        if (f->x->stopping || f->progress == PHASE_STORING ||
            store_error(f->x->store) != 0)
            return;
        rc = file_reload(f);
        if (rc == -ESTALE) {
            file_end(f, true);
            return;
        }
        r = rc != 0 || is_overtaken(f) ? REDIST_FAILED : phases[f->phase](f);
        if (r == REDIST_FAILED)
            break; /* a beginning that failed is repeated */
        if (r == REDIST_WAIT && is_new(f))
            f->progress = PHASE_IS_OPEN;
        if (r == REDIST_WAIT)
            break;
        if (f->phase == PHASE_REPAIR) {
            file_end(f, true);
            return;
        }
        phase_begin(f, phase_after(f));
    }
    if (r == REDIST_FAILED && f->repair.answer == REPAIR_OUTDATED &&
        f->phase <= PHASE_PROVE && !f->adopts)
        adopt(f);
    else if (r == REDIST_FAILED && !is_forward_only(f))
        file_end(f, false);
}

struct redist_file *redist_file_find(const struct export *e, uint64_t ino)
{
    LIST_FOREACH(node, &e->x->redist->files.all) {
        struct redist_file *f = container_of(node, struct redist_file, link);

        if (f->export == e && f->in.ino == ino)
            return f;
    }
    return NULL;
}

void redist_file_adopt(struct export *e, const struct inode *in)
{
    struct redist_file *f = file_new(e, in, PHASE_FIND);

    if (f == NULL)
        return; /* the client asks again */
    f->counted = false;
    adopt(f);
}

void redist_file_begin(struct export *e, const struct inode *in)
{
    struct inode want;
    unsigned n_new = 0;
    struct redist_file *f;

    if (export_complete(e, in, &want, &n_new) != 0 || n_new == 0 ||
        (f = file_new(e, in, PHASE_FILL)) == NULL) {
        e->x->redist->files.put_off = true;
        return;
    }
    f->want.n_storages = want.n_storages;
    memcpy(f->want.storages, want.storages, sizeof(f->want.storages));
    f->fresh = places_changed(f);
    file_step(f);
}

static int file_resume(struct export *e, uint64_t ino, const struct namespace_redist *r)
{
    struct redist_file *f;
    struct inode in;
    int rc = namespace_getattr(&e->ns, ino, &in);

    if (rc == -ESTALE)
        return 0; /* a leftover; such records are deleted with their inode */
    if (rc != 0)
        return rc;
    f = file_new(e, &in, r->phase == REDIST_DONE ? PHASE_INFORM : PHASE_REHEAD);
    if (f == NULL)
        return -ENOMEM;
    f->want = *r;
    f->fresh = r->phase == REDIST_DONE ? 0 : places_changed(f);
    if (r->phase == REDIST_BEGUN && !redist_hold_take(f))
        return -ENOMEM;
    return 0;
}

int redist_file_resume(struct export *e, uint64_t ino, const struct namespace_redist *r)
{
    int rc = file_resume(e, ino, r);

    e->x->redist->files.put_off |= rc != 0;
    return rc;
}

/* ---- all files ---- */

static void on_files_task(struct env_task *task)
{
    redist_files_step(container_of(task, struct redistribution, files.task)->x);
}

void redist_files_init(struct exportd *x)
{
    list_init(&x->redist->files.all);
    x->redist->files.task.fn = on_files_task;
}

void redist_files_step(struct exportd *x)
{
    LIST_FOREACH_SAFE(node, &x->redist->files.all)
        file_step(container_of(node, struct redist_file, link));
}

/* A stop frees the sessions, which wakes the waiters of their tokens. */
void redist_files_soon(struct exportd *x)
{
    if (!x->stopping)
        env_post(x->env, &x->redist->files.task);
}

void redist_files_retry(struct exportd *x)
{
    x->redist->files.put_off = false;
}

void redist_files_stop(struct exportd *x)
{
    LIST_FOREACH(node, &x->redist->files.all)
        redist_asks_cancel(container_of(node, struct redist_file, link));
}

void redist_files_free(struct exportd *x)
{
    LIST_FOREACH_SAFE(node, &x->redist->files.all)
        file_free(container_of(node, struct redist_file, link));
}
