/*
 * redistribute.c - replace lost candidates of files, and add the ones that are missing.
 *
 * In:     the tick; a changed set of storages; answers of storages (checked).
 * Out:    ST_REPAIR, ST_FENCE, ST_REDIST; the distribution in the inode; KEY_REDIST
 *         records.
 * Keeps:  a file's candidates grow only while no client can write it (exportd holds it
 *         EXCLUSIVE, and all epochs are fenced) and each block is at all homes: a write
 *         under the new distribution could have left the same state. No storage gets the
 *         new distribution before the record of it is on stable storage.
 *         docs/internals/redistribution.md.
 * Yours:  FILES_MAX, KEYS_A_TICK, the deadlines.
 */
#include "exportd/redistribution/redistribute.h"

#include <assert.h>
#include <errno.h>

#include "codec/codec.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "exportd/cluster/cluster.h"
#include "exportd/cluster/exportd_state.h"
#include "exportd/cluster/placement.h"
#include "exportd/namespace/inode_ref.h"
#include "exportd/sessions/session.h"
#include "exportd/sessions/session_store.h"

enum {
    FILES_MAX = 4,      /* files under way at a time */
    ADOPTED_MAX = 64,   /* files under way, with those that clients ask for */
    KEYS_A_TICK = 4096, /* inodes looked at per tick */
    FILLS_MAX = 3,      /* checks of a file that is being written; then it is closed */
    TAILS_MAX = 20,     /* checks of a flipped file before it is put off */
    CLOSED_MS = 10000,  /* longest time closed while a session waits for the file */
    CLOSED_ALONE_MS = 600000, /* longest time closed otherwise */
    TELL_MS = 10000,          /* time for storages to take a new distribution */
    LATE_MS = 60000,          /* time for storages that were down */
    REQUEST_MS = 8000,
    PAUSE_MIN_S = 2,
    PAUSE_MAX_S = 300,
};

enum phase {
    PHASE_FIND,    /* adopted files only: storages tell their headers */
    PHASE_FILL,    /* a home repairs the file while clients use it */
    PHASE_CLOSE,   /* no other session may hold anything of it */
    PHASE_FENCE,   /* no epoch given out before can write */
    PHASE_PROVE,   /* the file is sound, and stays so */
    PHASE_PREPARE, /* new homes get partial files: what they lack is unknown */
    PHASE_REHEAD,  /* old storages take the new distribution */
    PHASE_FLIP,    /* the inode takes it */
    PHASE_TELL,    /* storages that were down take it */
    PHASE_REPAIR,  /* a home fills the new ones */
};

enum result { WAIT, NEXT, FAILED };

/* Search for such files, or the pause before the next search. */
struct redistribution {
    struct exportd *x;      /* borrowed */
    struct list_node files; /* struct redist_file, under way */
    unsigned n_files;
    enum { REDIST_IDLE, REDIST_COUNT, REDIST_RECORDS, REDIST_SEARCH } state;
    uint32_t export_id; /* next export to look at */
    uint64_t ino;       /* last inode of it that was looked at */
    bool again;         /* files were put off: search again after the pause */
    uint64_t next_ns;   /* ns, monotonic; earliest next search */
    uint64_t pause_ns;
    struct env_task task; /* steps all files */
};

struct redist_file;

/* Request to one storage. */
struct redist_ask {
    struct rpc_request rq;
    struct redist_file *file;
    struct cluster_storage *storage; /* NULL: not outstanding */
    unsigned place;
};

struct redist_file {
    struct list_node link; /* in x->redist->files */
    struct exportd *x;     /* borrowed, like export */
    struct export *export;
    struct inode in;              /* inode, or inode before the change */
    struct namespace_redist want; /* new distribution */
    uint32_t fresh;               /* bitmap of places: new storages */
    enum phase phase;
    bool in_phase;     /* the phase has begun */
    bool holds;        /* the file is closed */
    bool counted;      /* counted in export->n_few */
    bool adopts;       /* storages had the new distribution before us */
    bool storing;      /* `wait` is queued */
    bool is_wanted;    /* a session waits for the file */
    uint64_t until_ns; /* ns, monotonic; end of the current wait */
    uint64_t wanted_ns;
    struct token_holder holder;
    struct token_waiter waiter;
    struct store_wait wait;
    struct redist_ask asks[DIST_MAX];
    uint32_t took; /* bitmap of places: answered OK in this phase */
    uint32_t told; /* bitmap of old places whose headers have `want` */
    /* ST_REPAIR */
    struct redist_ask repair;
    unsigned repair_at, n_looks;
    uint64_t run; /* 0: none */
    bool answered, refused, is_sound, is_outdated;
};

/* Steps the files soon, unless exportd stops: freeing its sessions wakes the waiters of
 * their tokens. */
static void files_soon(struct exportd *x)
{
    if (!x->stopping)
        env_post(x->env, &x->redist->task);
}

/* ---- requests ---- */

static struct cluster_storage *storage_at(const struct redist_file *f, uint32_t id)
{
    struct cluster_storage *s = storage_find(f->x, id);

    return s != NULL && s->up && storage_is_reachable(s) ? s : NULL;
}

/* Fills the reference with the distribution before or after the change. */
static void ref_fill(const struct redist_file *f, bool after, uint8_t id[FILE_ID_BYTES],
                     Rozo__FileRef *ref)
{
    inode_ref_fill(f->export->id, &f->in, id, ref);
    if (!after)
        return;
    ref->dist_generation = f->want.generation;
    ref->n_storages = f->want.n_storages;
    ref->storages = (uint32_t *)f->want.storages;
}

static void ask_send(struct redist_ask *a, struct cluster_storage *s, uint16_t op,
                     const ProtobufCMessage *msg,
                     void (*done)(struct rpc_request *rq, int rc))
{
    uint8_t buf[128 + FILE_ID_BYTES + 5 * DIST_MAX];

    assert(a->storage == NULL && protobuf_c_message_get_packed_size(msg) <= sizeof(buf));
    a->rq = (struct rpc_request){
        .op = op,
        .deadline_ms = REQUEST_MS,
        .msg = buf,
        .msg_len = protobuf_c_message_pack(msg, buf),
        .done = done,
    };
    a->storage = s;
    s->n_out++;
    rpc_send(s->channel, &a->rq);
}

static void ask_ended(struct redist_ask *a)
{
    a->storage->n_out--;
    a->storage = NULL;
}

static void on_told(struct rpc_request *rq, int rc)
{
    struct redist_ask *a = container_of(rq, struct redist_ask, rq);
    struct redist_file *f = a->file;

    ask_ended(a);
    if (rc == 0 && rq->status == ROZO__STATUS__OK)
        f->took |= UINT32_C(1) << a->place;
    files_soon(f->x);
}

static void fence_send(struct redist_file *f, unsigned place, struct cluster_storage *s)
{
    Rozo__StFenceReq msg = ROZO__ST_FENCE_REQ__INIT;
    uint8_t id[FILE_ID_BYTES];
    Rozo__FileRef ref;

    ref_fill(f, false, id, &ref);
    msg.ref = &ref;
    msg.epoch = f->in.epoch;
    msg.to_storage = s->facts.id;
    ask_send(&f->asks[place], s, ROZO__OP__ST_FENCE, &msg.base, on_told);
}

static void redist_send(struct redist_file *f, unsigned place, struct cluster_storage *s)
{
    Rozo__StRedistReq msg = ROZO__ST_REDIST_REQ__INIT;
    uint8_t id[FILE_ID_BYTES];
    Rozo__FileRef ref;

    ref_fill(f, true, id, &ref);
    msg.ref = &ref;
    msg.to_storage = s->facts.id;
    if ((f->fresh >> place & 1) != 0)
        msg.make_partial = UINT32_C(1) << place;
    msg.prepare = f->phase == PHASE_PREPARE;
    ask_send(&f->asks[place], s, ROZO__OP__ST_REDIST, &msg.base, on_told);
}

/* Asks those of the places that have not answered OK. Returns true if all have. */
static bool all_told(struct redist_file *f, uint32_t places, bool fence)
{
    const uint32_t *ids = fence ? f->in.storages : f->want.storages;

    for (unsigned i = 0; i < DIST_MAX; i++) {
        struct cluster_storage *s;

        if ((places >> i & 1) == 0 || (f->took >> i & 1) != 0 ||
            f->asks[i].storage != NULL)
            continue;
        s = storage_at(f, ids[i]);
        if (s != NULL && fence)
            fence_send(f, i, s);
        else if (s != NULL)
            redist_send(f, i, s);
    }
    return (f->took & places) == places;
}

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

static bool all_are_reachable(const struct redist_file *f)
{
    for (uint32_t i = 0; i < f->in.n_storages; i++) {
        if (!storage_is_lost(f->x, f->in.storages[i]) &&
            storage_at(f, f->in.storages[i]) == NULL)
            return false;
    }
    return true;
}

/* ---- builds that know nothing of this ---- */

static void storage_is_too_old(struct cluster_storage *s)
{
    if (s->redist != REDIST_TOO_OLD)
        log_warn("storage %u is too old for files to get other storages: those that have "
                 "it keep the storages that they have; upgrade it",
                 s->facts.id);
    s->redist = REDIST_TOO_OLD;
}

static void on_probed(struct rpc_request *rq, int rc)
{
    struct redist_ask *a = container_of(rq, struct redist_ask, rq);

    if (rc == 0 && rq->status == ROZO__STATUS__UNKNOWN_OP)
        storage_is_too_old(a->storage);
    else if (rc == 0)
        a->storage->redist = REDIST_KNOWN;
    ask_ended(a);
    files_soon(a->file->x);
}

/* Asks for what every build refuses: one that knows the request names another reason. */
static void probe_send(struct redist_file *f, unsigned place, struct cluster_storage *s)
{
    Rozo__StRedistReq msg = ROZO__ST_REDIST_REQ__INIT;
    uint8_t id[FILE_ID_BYTES];
    Rozo__FileRef ref;

    ref_fill(f, false, id, &ref);
    msg.ref = &ref;
    ask_send(&f->asks[place], s, ROZO__OP__ST_REDIST, &msg.base, on_probed);
}

/* After the old storages got the new distribution there is no way back, so all must know
 * ST_REDIST. NEXT: all do. FAILED: one is too old, or down. */
static enum result all_know_redist(struct redist_file *f)
{
    enum result r = NEXT;

    for (uint32_t i = 0; i < f->want.n_storages; i++) {
        struct cluster_storage *s = storage_find(f->x, f->want.storages[i]);

        if (s == NULL || s->facts.lost || s->redist == REDIST_KNOWN)
            continue;
        if (s->redist == REDIST_TOO_OLD || storage_at(f, f->want.storages[i]) == NULL)
            return FAILED;
        if (f->asks[i].storage == NULL)
            probe_send(f, i, s);
        r = WAIT;
    }
    return r;
}

/* ---- ST_REPAIR ---- */

static void on_repaired(struct rpc_request *rq, int rc)
{
    struct redist_ask *a = container_of(rq, struct redist_ask, rq);
    struct redist_file *f = a->file;
    Rozo__StRepairResp *resp = NULL;

    f->refused = rc == 0 && rq->status == ROZO__STATUS__UNKNOWN_OP;
    f->is_outdated = rc == 0 && rq->status == ROZO__STATUS__STALE_DISTRIBUTION;
    if (f->refused)
        storage_is_too_old(a->storage);
    if (rc == 0 && rq->status == ROZO__STATUS__OK)
        resp = rozo__st_repair_resp__unpack(NULL, rq->answer_msg_len, rq->answer_msg);
    f->answered = rc != 0 || rq->status != ROZO__STATUS__IN_PROGRESS;
    f->is_sound = resp != NULL && resp->sound;
    rozo__st_repair_resp__free_unpacked(resp, NULL); /* NULL is fine */
    if (f->answered)
        f->run = 0;
    ask_ended(a);
    files_soon(f->x);
}

/* Chooses a home to ask; a different one after each check. */
static struct cluster_storage *repair_choose(struct redist_file *f, bool after)
{
    const uint32_t *ids = after ? f->want.storages : f->in.storages;
    unsigned n = codec_layout(f->in.layout)->n;

    for (unsigned i = 0; i < n; i++) {
        unsigned place = (f->repair_at + i) % n;
        struct cluster_storage *s =
            place < (after ? f->want.n_storages : f->in.n_storages)
                ? storage_at(f, ids[place])
                : NULL;

        if (s != NULL && (after || (f->fresh >> place & 1) == 0)) {
            f->repair_at = place;
            return s;
        }
    }
    return NULL;
}

/* Lets a home check and repair the whole file. NEXT: sound; FAILED: not sound, or no home
 * answers. */
static enum result repair(struct redist_file *f, bool after)
{
    Rozo__StRepairReq msg = ROZO__ST_REPAIR_REQ__INIT;
    uint8_t id[FILE_ID_BYTES];
    struct cluster_storage *s;
    Rozo__FileRef ref;

    if (f->repair.storage != NULL)
        return WAIT;
    if (f->answered) {
        f->answered = false;
        f->n_looks++;
        f->repair_at++;
        return f->is_sound ? NEXT : FAILED;
    }
    s = repair_choose(f, after);
    if (s == NULL) {
        f->n_looks = TAILS_MAX;
        return FAILED;
    }
    while (f->run == 0)
        env_random(f->x->env, &f->run, sizeof(f->run));
    ref_fill(f, after, id, &ref);
    msg.ref = &ref;
    msg.to_storage = s->facts.id;
    msg.run = f->run;
    ask_send(&f->repair, s, ROZO__OP__ST_REPAIR, &msg.base, on_repaired);
    return WAIT;
}

/* ---- a later distribution that storages have ---- */

/* Takes what a header says if it is later, and fits the file as it was. */
static void found_take(struct redist_file *f, unsigned place, const Rozo__FileRef *ref)
{
    if (ref == NULL || ref->dist_generation <= f->in.dist_generation ||
        ref->dist_generation < f->want.generation || ref->n_storages > DIST_MAX ||
        ref->n_storages < f->in.n_storages || ref->codec != f->in.codec ||
        ref->layout != f->in.layout || ref->block_bytes != f->in.block_bytes)
        return;
    for (size_t i = 0; i < ref->n_storages; i++) {
        if (storage_find(f->x, ref->storages[i]) == NULL) {
            log_error(
                "inode %llu of export %u lies on storage %u, which is not known here: "
                "add it (rozo storage add), then the file can be read again",
                (unsigned long long)f->in.ino, f->export->id, ref->storages[i]);
            return;
        }
    }
    if (ref->dist_generation > f->want.generation)
        f->told = 0;
    f->told |= UINT32_C(1) << place;
    f->want.generation = ref->dist_generation;
    f->want.n_storages = (uint32_t)ref->n_storages;
    memcpy(f->want.storages, ref->storages, ref->n_storages * sizeof(ref->storages[0]));
}

static void on_found(struct rpc_request *rq, int rc)
{
    struct redist_ask *a = container_of(rq, struct redist_ask, rq);
    struct redist_file *f = a->file;
    Rozo__StListResp *resp = NULL;
    uint8_t id[FILE_ID_BYTES];
    Rozo__FileRef ref;

    ref_fill(f, false, id, &ref);
    if (rc == 0 && rq->status == ROZO__STATUS__OK)
        resp = rozo__st_list_resp__unpack(NULL, rq->answer_msg_len, rq->answer_msg);
    for (size_t i = 0; resp != NULL && i < resp->n_files; i++) {
        const Rozo__FileRef *got = resp->files[i]->ref;

        if (got != NULL && got->file_id.len == FILE_ID_BYTES &&
            memcmp(got->file_id.data, id, FILE_ID_BYTES) == 0)
            found_take(f, a->place, got);
    }
    rozo__st_list_resp__free_unpacked(resp, NULL);
    f->took |= UINT32_C(1) << a->place;
    ask_ended(a);
    files_soon(f->x);
}

static void find_send(struct redist_file *f, unsigned place, struct cluster_storage *s)
{
    Rozo__StListReq msg = ROZO__ST_LIST_REQ__INIT;
    uint8_t id[FILE_ID_BYTES];
    Rozo__FileRef ref;

    ref_fill(f, false, id, &ref);
    msg.to_storage = s->facts.id;
    msg.after = ref.file_id;
    msg.only = true;
    msg.max_files = 1;
    ask_send(&f->asks[place], s, ROZO__OP__ST_LIST, &msg.base, on_found);
}

/* ---- the file, closed ---- */

static void file_open(struct redist_file *f)
{
    struct tokens *t = &f->export->tokens;

    tokens_leave(t, &f->waiter);
    if (!f->holds)
        return;
    f->holds = false;
    f->export->n_closed--;
    tokens_give_back(t, &f->holder, f->in.ino, TOKEN_NONE, UINT64_MAX,
                     env_now_ns(f->x->env));
}

static bool file_hold(struct redist_file *f)
{
    struct tokens *t = &f->export->tokens;
    const struct token_grant g = { .ino = f->in.ino,
                                   .mode = TOKEN_EXCLUSIVE,
                                   .how = GRANT_ASKED,
                                   .serial = ++f->x->last_grant };

    tokens_leave(t, &f->waiter);
    if (tokens_grant(t, &f->holder, &g, env_now_ns(f->x->env)) != TOKEN_EXCLUSIVE) {
        tokens_give_back(t, &f->holder, f->in.ino, TOKEN_NONE, UINT64_MAX,
                         env_now_ns(f->x->env));
        return false;
    }
    f->holds = true;
    f->is_wanted = export_is_open(f->export, f->in.ino);
    f->wanted_ns = env_now_ns(f->x->env);
    f->export->n_closed++;
    return true;
}

/* Notes that a session waits for the file. */
static void on_recall(struct token_holder *holder, const struct token_recall *recall)
{
    struct redist_file *f = container_of(holder, struct redist_file, holder);

    (void)recall;
    if (!f->is_wanted)
        f->wanted_ns = env_now_ns(f->x->env);
    f->is_wanted = true;
}

/* Steps the file: the wait for it may be over. */
static void on_wake(struct token_waiter *waiter)
{
    struct redist_file *f = container_of(waiter, struct redist_file, waiter);

    files_soon(f->x);
}

static const struct token_hooks hooks = { on_recall, on_wake };

/* Returns true if the file was closed too long for a phase that can still fail. */
static bool is_closed_too_long(const struct redist_file *f)
{
    uint64_t now = env_now_ns(f->x->env);

    return now >= f->until_ns ||
           (f->is_wanted && now >= f->wanted_ns + ms_to_ns(CLOSED_MS));
}

/* ---- phases: WAIT, NEXT, or FAILED ---- */

/* Returns true if storages have nothing of the file, so that no proof and no request is
 * needed. */
static bool is_simple(const struct redist_file *f)
{
    return !inode_may_have_data(&f->in) || f->x->config.grows_first;
}

/* Places of the distribution after the change that have other storages than before. */
static uint32_t places_changed(const struct redist_file *f);

/* Asks all old storages once. NEXT: one has a later distribution; FAILED: none has. */
static enum result find(struct redist_file *f)
{
    enum result r = NEXT;

    for (uint32_t i = 0; i < f->in.n_storages; i++) {
        struct cluster_storage *s = storage_at(f, f->in.storages[i]);

        if (s == NULL || (f->took >> i & 1) != 0)
            continue;
        if (f->asks[i].storage == NULL)
            find_send(f, i, s);
        r = WAIT;
    }
    if (r == NEXT && f->want.generation <= f->in.dist_generation)
        return FAILED;
    if (r == NEXT) {
        log_warn(
            "inode %llu of export %u has generation %u of its distribution here, and %u "
            "at storages: taken from there (was exportd restored from a backup?)",
            (unsigned long long)f->in.ino, f->export->id, f->in.dist_generation,
            f->want.generation);
        f->want.phase = REDIST_PREPARED;
        f->fresh = places_changed(f);
    }
    return r;
}

static enum result fill(struct redist_file *f)
{
    enum result r;

    if (is_simple(f))
        return grace_is_over(f->x) ? NEXT : FAILED;
    r = all_know_redist(f);
    if (r != NEXT)
        return r;
    r = repair(f, false);
    /* Concurrent writers make a file look incomplete: the next tick asks again, then it
     * is closed. */
    if (r == FAILED && !f->refused)
        r = f->n_looks < FILLS_MAX ? WAIT : NEXT;
    if (r == NEXT && (!all_are_reachable(f) || !grace_is_over(f->x)))
        return FAILED;
    return r;
}

static enum result close_file(struct redist_file *f)
{
    const struct token_want want = { f->in.ino, WANT_CHANGE, { 0 } };
    struct tokens *t = &f->export->tokens;
    uint64_t now = env_now_ns(f->x->env);
    enum token_verdict verdict;

    if (f->x->config.grows_first)
        return NEXT;
    if (!f->in_phase) {
        verdict = tokens_judge(t, &f->holder, NULL, &want, 1);
        if (verdict != TOKENS_FREE && tokens_wait(t, &f->waiter, &want, 1, now) != 0)
            return FAILED;
        f->until_ns = now + ms_to_ns(CLOSED_MS);
    } else {
        verdict = tokens_look(t, &f->waiter, now);
    }
    if (verdict != TOKENS_FREE)
        return now < f->until_ns ? WAIT : FAILED;
    if (!file_hold(f))
        return FAILED;
    f->until_ns = now + ms_to_ns(CLOSED_ALONE_MS);
    return NEXT;
}

static void on_stored(struct store_wait *wait, int rc)
{
    struct redist_file *f = container_of(wait, struct redist_file, wait);

    f->storing = false;
    if (rc == 0)
        files_soon(f->x);
}

/* Waits until all puts so far are on stable storage. */
static enum result store(struct redist_file *f)
{
    f->wait.fn = on_stored;
    f->storing = true;
    store_when_synced(f->x->store, &f->wait);
    return WAIT;
}

static enum result fence(struct redist_file *f)
{
    if (is_simple(f))
        return NEXT;
    if (!f->in_phase) {
        if (namespace_fence_epoch(&f->export->ns, f->in.ino, &f->in) != 0)
            return FAILED;
        return store(f);
    }
    if (is_closed_too_long(f) || !all_are_reachable(f))
        return FAILED;
    return all_told(f, places_old(f), true) ? NEXT : WAIT;
}

static enum result prove(struct redist_file *f)
{
    enum result r = is_simple(f) ? NEXT : repair(f, false);

    return r == WAIT && is_closed_too_long(f) ? FAILED : r;
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

static enum result prepare(struct redist_file *f)
{
    struct namespace_redist before;

    if (!f->in_phase) {
        f->want.generation = f->in.dist_generation + 1;
        if ((f->in.flags & INODE_MOVED) != 0 &&
            namespace_redist_get(&f->export->ns, f->in.ino, &before) == 0 &&
            before.generation >= f->want.generation)
            f->want.generation = before.generation + 1;
        if (is_simple(f))
            return NEXT;
        f->until_ns = env_now_ns(f->x->env) + ms_to_ns(TELL_MS);
        return want_put(f, REDIST_PREPARED) != 0 ? FAILED : store(f);
    }
    if (all_told(f, places_fresh_homes(f), false))
        return NEXT;
    return env_now_ns(f->x->env) < f->until_ns ? WAIT : FAILED;
}

/* Returns how many old storages need the new distribution so that every write and every
 * decision about a block under the old one meets one of them. A decision needs c - q + 1
 * answers at least, with the smaller q = max(k, c - k + 1). */
static unsigned n_enough(const struct redist_file *f)
{
    return codec_layout(f->in.layout)->k;
}

static bool enough_took(const struct redist_file *f)
{
    return (unsigned)__builtin_popcount(f->took & places_old(f)) >= n_enough(f);
}

static enum result rehead(struct redist_file *f)
{
    if (is_simple(f))
        return NEXT;
    if (!f->in_phase && f->want.phase == REDIST_PREPARED) {
        f->until_ns = env_now_ns(f->x->env) + ms_to_ns(TELL_MS);
        return want_put(f, REDIST_BEGUN) != 0 ? FAILED : store(f);
    }
    if (all_told(f, places_old(f) | places_fresh_homes(f), false))
        return NEXT;
    return env_now_ns(f->x->env) >= f->until_ns && enough_took(f) ? NEXT : WAIT;
}

static enum result flip(struct redist_file *f)
{
    if (!f->in_phase) {
        if (want_put(f, REDIST_DONE) != 0)
            return FAILED;
        if (!inode_may_have_data(&f->in))
            namespace_redist_delete(&f->export->ns, f->in.ino);
        return store(f);
    }
    file_open(f);
    return NEXT;
}

static enum result tell(struct redist_file *f)
{
    if (!inode_may_have_data(&f->in))
        return NEXT;
    if (!f->in_phase)
        f->until_ns = env_now_ns(f->x->env) + ms_to_ns(LATE_MS);
    if (all_told(f, places_old(f) | places_fresh_homes(f), false))
        return NEXT;
    return env_now_ns(f->x->env) < f->until_ns ? WAIT : FAILED;
}

static enum result complete(struct redist_file *f)
{
    enum result r;

    if (!inode_may_have_data(&f->in))
        return NEXT;
    r = repair(f, true);
    if (r == FAILED && !f->refused && f->n_looks < TAILS_MAX)
        return WAIT;
    if (r == NEXT)
        namespace_redist_delete(&f->export->ns, f->in.ino);
    return r;
}

static enum result (*const phases[])(struct redist_file *f) = {
    [PHASE_FIND] = find,       [PHASE_FILL] = fill,   [PHASE_CLOSE] = close_file,
    [PHASE_FENCE] = fence,     [PHASE_PROVE] = prove, [PHASE_PREPARE] = prepare,
    [PHASE_REHEAD] = rehead,   [PHASE_FLIP] = flip,   [PHASE_TELL] = tell,
    [PHASE_REPAIR] = complete,
};

/* True if enough old storages have the change that it may have taken effect. */
static bool enough_told(const struct redist_file *f)
{
    return (unsigned)__builtin_popcount(f->told & places_old(f)) >= n_enough(f);
}

/* Files that were fenced and proved before are not fenced and proved again: writes with
 * the old distribution since then had to pass storages that have the new one. */
static enum phase phase_after(const struct redist_file *f)
{
    if (f->adopts && f->phase == PHASE_FIND)
        return enough_told(f) ? PHASE_FLIP : PHASE_CLOSE;
    if (f->adopts && f->phase == PHASE_CLOSE)
        return PHASE_REHEAD;
    return f->phase + 1;
}

/* True if a storage to be replaced is not lost any more. It was not fenced and has blocks
 * that its stand-in may have dropped, so it stays unless old storages got the change
 * already. */
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

static void asks_cancel(struct redist_file *f)
{
    for (unsigned i = 0; i <= DIST_MAX; i++) {
        struct redist_ask *a = i < DIST_MAX ? &f->asks[i] : &f->repair;

        if (a->storage == NULL)
            continue;
        rpc_cancel(&a->rq);
        ask_ended(a);
    }
}

static void file_free(struct redist_file *f)
{
    asks_cancel(f);
    file_open(f);
    token_holder_end(&f->export->tokens, &f->holder);
    list_remove(&f->link);
    f->x->redist->n_files--;
    free(f);
}

static bool is_few(const struct export *e, const struct inode *in)
{
    return in->nlink > 0 && export_has_more_for(e, in);
}

/* True if the file lacks storages after a change, too: lost homes are replaced before
 * others are added. */
static bool lacks_more(const struct redist_file *f)
{
    struct inode in;

    return namespace_getattr(&f->export->ns, f->in.ino, &in) == 0 &&
           in.generation == f->in.generation && is_few(f->export, &in);
}

/* Ends a file that is done or gone, or puts it off. */
static void file_end(struct redist_file *f, bool done)
{
    struct export *e = f->export;

    done = done && !lacks_more(f);
    if (!done && f->phase == PHASE_PREPARE && f->want.phase == REDIST_PREPARED)
        want_put(f, REDIST_GIVEN_UP);
    f->x->redist->again |= !done;
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
    if (rc == 0 && f->phase <= PHASE_FENCE && !f->in_phase)
        f->in = in; /* later it is the one that was fenced and proved */
    return rc;
}

/* The file is looked for at its storages instead. */
static void adopt(struct redist_file *f)
{
    asks_cancel(f);
    file_open(f);
    f->adopts = true;
    f->is_outdated = false;
    f->phase = PHASE_FIND;
    f->in_phase = false;
    f->took = f->told = f->fresh = 0;
    f->want = (struct namespace_redist){ .generation = f->in.dist_generation };
    files_soon(f->x);
}

static void file_step(struct redist_file *f)
{
    enum result r = NEXT;
    int rc;

    while (r == NEXT) {
        if (f->x->stopping || f->storing || store_error(f->x->store) != 0)
            return;
        rc = file_reload(f);
        if (rc == -ESTALE) {
            file_end(f, true);
            return;
        }
        r = rc != 0 || is_overtaken(f) ? FAILED : phases[f->phase](f);
        if (r == FAILED)
            break; /* a beginning that failed is repeated */
        f->in_phase = r == WAIT;
        if (r == WAIT)
            break;
        f->took = 0;
        f->n_looks = 0;
        if (f->phase == PHASE_REPAIR) {
            file_end(f, true);
            return;
        }
        f->phase = phase_after(f);
    }
    if (r == FAILED && f->is_outdated && f->phase <= PHASE_PROVE && !f->adopts)
        adopt(f);
    else if (r == FAILED && !is_forward_only(f))
        file_end(f, false);
}

static void files_step(struct exportd *x)
{
    LIST_FOREACH_SAFE(node, &x->redist->files)
        file_step(container_of(node, struct redist_file, link));
}

static void on_files_task(struct env_task *task)
{
    files_step(container_of(task, struct redistribution, task)->x);
}

static struct redist_file *file_new(struct export *e, const struct inode *in,
                                    enum phase phase)
{
    struct redist_file *f = calloc(1, sizeof(*f));

    if (f == NULL)
        return NULL;
    f->x = e->x;
    f->export = e;
    f->in = *in;
    f->phase = phase;
    f->counted = e->few_known;
    f->repair.file = f;
    for (unsigned i = 0; i < DIST_MAX; i++) {
        f->asks[i].file = f;
        f->asks[i].place = i;
    }
    token_holder_init(&f->holder);
    f->holder.hooks = &hooks;
    f->waiter.holder = &f->holder;
    list_add_tail(&e->x->redist->files, &f->link);
    e->x->redist->n_files++;
    return f;
}

static struct redist_file *file_find(const struct export *e, uint64_t ino)
{
    LIST_FOREACH(node, &e->x->redist->files) {
        struct redist_file *f = container_of(node, struct redist_file, link);

        if (f->export == e && f->in.ino == ino)
            return f;
    }
    return NULL;
}

void redistribute_adopt(struct export *e, const struct inode *in)
{
    struct redist_file *f;

    if (!inode_may_have_data(in) || e->x->redist->n_files >= ADOPTED_MAX ||
        file_find(e, in->ino) != NULL)
        return;
    f = file_new(e, in, PHASE_FIND);
    if (f == NULL)
        return; /* the client asks again */
    f->counted = false;
    adopt(f);
}

static uint32_t places_changed(const struct redist_file *f)
{
    uint32_t places = 0;

    for (uint32_t i = 0; i < f->want.n_storages; i++) {
        if (i >= f->in.n_storages || f->in.storages[i] != f->want.storages[i])
            places |= UINT32_C(1) << i;
    }
    return places;
}

/* Begins a file with too few candidates, or puts it off if no storage is available
 * now. */
static void file_begin(struct export *e, const struct inode *in)
{
    struct inode want;
    unsigned n_new = 0;
    struct redist_file *f;

    if (export_complete(e, in, &want, &n_new) != 0 || n_new == 0 ||
        (f = file_new(e, in, PHASE_FILL)) == NULL) {
        e->x->redist->again = true;
        return;
    }
    f->want.n_storages = want.n_storages;
    memcpy(f->want.storages, want.storages, sizeof(f->want.storages));
    f->fresh = places_changed(f);
    file_step(f);
}

/* Resumes a change that had begun before this start. Returns 0 or -ENOMEM. */
static int file_resume(struct export *e, uint64_t ino, const struct namespace_redist *r)
{
    struct redist_file *f;
    struct inode in;
    int rc = namespace_getattr(&e->ns, ino, &in);

    if (rc == -ESTALE)
        return 0; /* a leftover; such records are deleted with their inode */
    if (rc != 0)
        return rc;
    f = file_new(e, &in, r->phase == REDIST_DONE ? PHASE_TELL : PHASE_REHEAD);
    if (f == NULL)
        return -ENOMEM;
    f->want = *r;
    f->fresh = r->phase == REDIST_DONE ? 0 : places_changed(f);
    if (r->phase == REDIST_BEGUN && !file_hold(f))
        return -ENOMEM;
    return 0;
}

/* ---- the search ---- */

static bool on_record_at_start(void *arg, uint64_t ino, const struct namespace_redist *r)
{
    struct export *e = arg;

    return r->phase != REDIST_BEGUN || file_resume(e, ino, r) == 0;
}

int redistribute_load(struct exportd *x)
{
    x->redist = calloc(1, sizeof(*x->redist));
    if (x->redist == NULL)
        return -ENOMEM;
    x->redist->x = x;
    x->redist->task.fn = on_files_task;
    list_init(&x->redist->files);
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
    search_from(x, REDIST_COUNT);
    x->redist->next_ns = 0;
    x->redist->pause_ns = 0;
    LIST_FOREACH(node, &x->exports) {
        struct export *e = container_of(node, struct export, link);

        e->few_known = false;
        e->n_few_counting = 0;
    }
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

    e->n_few_counting += is_few(e, in);
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

    if (r->phase != REDIST_DONE || file_find(e, ino) != NULL)
        return true;
    if (e->x->redist->n_files >= FILES_MAX)
        return false;
    e->x->redist->again |= file_resume(e, ino, r) != 0;
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

    if (!is_few(found->export, in) || file_find(found->export, in->ino) != NULL)
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

    if (r->state == REDIST_COUNT) {
        r->again = false;
        search_from(x, n_few(x) > 0 ? REDIST_RECORDS : REDIST_IDLE);
    } else if (r->state == REDIST_RECORDS) {
        search_from(x, REDIST_SEARCH);
    } else if (r->n_files == 0 && !r->again && n_few(x) == 0) {
        search_from(x, REDIST_IDLE);
    } else if (r->n_files == 0) {
        r->pause_ns = r->pause_ns == 0 ? s_to_ns(PAUSE_MIN_S) : 2 * r->pause_ns;
        if (r->pause_ns > s_to_ns(PAUSE_MAX_S))
            r->pause_ns = s_to_ns(PAUSE_MAX_S);
        r->next_ns = env_now_ns(x->env) + r->pause_ns;
        search_from(x, REDIST_COUNT);
    }
}

/* Begins as many files as there is room for. */
static int search_files(struct export *e, bool *end)
{
    struct redistribution *r = e->x->redist;
    struct found found = { .export = e, .n_max = FILES_MAX - r->n_files };
    int rc;

    if (r->n_files >= FILES_MAX)
        return 0;
    rc = namespace_files(&e->ns, &r->ino, KEYS_A_TICK, on_file, &found, end);
    for (unsigned i = 0; i < found.n; i++) /* nothing may be put while a scan is open */
        file_begin(e, &found.files[i]);
    return rc;
}

/* Looks at some inodes of this export. Returns true at its end. */
static bool search_export(struct export *e)
{
    struct redistribution *r = e->x->redist;
    bool end = false;
    int rc;

    if (r->state == REDIST_COUNT)
        rc = namespace_files(&e->ns, &r->ino, KEYS_A_TICK, on_file_counted, e, &end);
    else if (r->state == REDIST_RECORDS)
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
    files_step(x);
    if (r->state == REDIST_IDLE || env_now_ns(x->env) < r->next_ns)
        return;
    e = whose_turn(x);
    if (e == NULL) {
        search_next(x);
        return;
    }
    if (!search_export(e))
        return;
    if (r->state == REDIST_COUNT)
        export_counted(e);
    r->export_id = e->id + 1;
    r->ino = 0;
}

void redistribute_stop(struct exportd *x)
{
    LIST_FOREACH(node, &x->redist->files)
        asks_cancel(container_of(node, struct redist_file, link));
}

void redistribute_free(struct exportd *x)
{
    if (x->redist == NULL)
        return; /* the start failed earlier */
    LIST_FOREACH_SAFE(node, &x->redist->files)
        file_free(container_of(node, struct redist_file, link));
    free(x->redist);
}
