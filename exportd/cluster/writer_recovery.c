/*
 * writer_recovery.c - ST_CHECK: storages check files whose writer is gone.
 *
 * In:     session.c, when a session ends without having closed them; the tick.
 * Out:    ST_CHECK with `abandoned` to the first storage of the file that is up, and to
 *         the next if that fails.
 * Keeps:  incomplete writes of a dead client are recovered soon, not when they are next
 *         read. Bounded, and in memory only: what a restart forgets is recovered by the
 *         storages' own timers, and by scrub. It does no harm while others write the
 *         file: a fence only makes a writer take a fresh epoch.
 * Yours:  the limits below.
 */
#include "exportd/cluster/writer_recovery.h"

#include <assert.h>
#include <errno.h>

#include "common/base/log.h"
#include "common/base/units.h"
#include "exportd/cluster/cluster.h"
#include "exportd/cluster/exportd_state.h"
#include "exportd/namespace/inode_ref.h"

enum {
    CHECKS_MAX = 1 << 16, /* files in the queue */
    CHECKS_OUT_MAX = 32,  /* requests at a time */
    CHECKS_A_TURN = 1024, /* files looked at per tick */
    CHECK_DEADLINE_MS = 5000,
    CHECK_RETRY_MS = 5000,
    CHECK_MAX_MS = 3600 * 1000,
};

/* File, until a storage has taken its check. */
struct check {
    struct list_node link; /* in the queue */
    struct exportd *x;
    struct inode in;   /* as it was when its session ended */
    struct file_id id; /* key */
    struct rpc_request rq;
    struct cluster_storage *storage; /* storage asked now; NULL: none */
    unsigned next;                   /* place in the distribution to try next */
    uint64_t retry_ns, end_ns;
    UT_hash_handle hh;
};

static void checks_send(struct exportd *x);

static void check_free(struct check *c)
{
    struct exportd *x = c->x;

    list_remove(&c->link);
    HASH_DEL(x->writer_recovery.by_id, c);
    x->writer_recovery.n--;
    free(c);
}

/* Puts off a check behind all others. */
static void check_put_off(struct check *c)
{
    uint64_t now_ns = env_now_ns(c->x->env);

    c->next = 0;
    c->retry_ns = now_ns + ms_to_ns(CHECK_RETRY_MS);
    if (now_ns >= c->end_ns) {
        log_warn(
            "inode %llu of export %u: its writer is gone, and no storage could be asked "
            "for an hour to check the file; scrub will repair it",
            (unsigned long long)c->id.ino, c->id.export_id);
        check_free(c);
        return;
    }
    list_remove(&c->link);
    list_add_tail(&c->x->writer_recovery.queue, &c->link);
}

static void on_check_answer(struct rpc_request *rq, int rc)
{
    struct check *c = container_of(rq, struct check, rq);
    struct exportd *x = c->x;
    bool taken = rc == 0 && (rq->status == ROZO__STATUS__OK ||
                             rq->status == ROZO__STATUS__UNKNOWN_OP);

    c->storage->n_out--;
    c->storage = NULL;
    x->writer_recovery.n_out--;
    if (taken)
        check_free(c);
    checks_send(x);
}

static void check_send(struct check *c, struct cluster_storage *s)
{
    Rozo__StCheckReq msg = ROZO__ST_CHECK_REQ__INIT;
    Rozo__FileRef ref;
    uint8_t id[FILE_ID_BYTES], buf[64 + FILE_ID_BYTES + 5 * DIST_MAX];

    inode_ref_fill(c->id.export_id, &c->in, id, &ref);
    msg.ref = &ref;
    msg.to_storage = s->facts.id;
    msg.abandoned = true;
    assert(rozo__st_check_req__get_packed_size(&msg) <= sizeof(buf));
    c->rq = (struct rpc_request){
        .op = ROZO__OP__ST_CHECK,
        .deadline_ms = CHECK_DEADLINE_MS,
        .msg = buf,
        .msg_len = rozo__st_check_req__pack(&msg, buf),
        .done = on_check_answer,
    };
    c->storage = s;
    c->x->writer_recovery.n_out++;
    storage_send(s, &c->rq);
}

/* Returns true if the file still exists with its generation. */
static bool check_is_wanted(const struct check *c)
{
    struct export *e = export_find(c->x, c->id.export_id);
    struct inode in;

    return e != NULL && namespace_getattr(&e->ns, c->id.ino, &in) == 0 &&
           in.generation == c->id.generation;
}

/* Asks the next storage that is up, or puts the check off. */
static void check_step(struct check *c)
{
    if (!check_is_wanted(c)) {
        check_free(c);
        return;
    }
    while (c->next < c->in.n_storages) {
        struct cluster_storage *s = storage_find(c->x, c->in.storages[c->next++]);

        if (s != NULL && storage_is_askable(s)) {
            check_send(c, s);
            return;
        }
    }
    check_put_off(c);
}

static void checks_send(struct exportd *x)
{
    uint64_t now_ns = env_now_ns(x->env);
    unsigned n_steps = 0;

    if (x->stopping)
        return;
    LIST_FOREACH_SAFE(node, &x->writer_recovery.queue) {
        struct check *c = container_of(node, struct check, link);

        if (x->writer_recovery.n_out >= CHECKS_OUT_MAX || n_steps >= CHECKS_A_TURN)
            return;
        if (c->storage != NULL || now_ns < c->retry_ns)
            continue;
        n_steps++;
        check_step(c);
    }
}

void writer_recovery_begin(struct exportd *x)
{
    list_init(&x->writer_recovery.queue);
}

bool writer_recovery_has_room(const struct exportd *x)
{
    return x->writer_recovery.n < CHECKS_MAX;
}

void writer_recovery_add(struct export *e, const struct inode *in)
{
    struct exportd *x = e->x;
    struct file_id id = { e->id, in->generation, in->ino };
    struct check *c;

    if (!inode_is_file(in) || !inode_may_have_data(in))
        return;
    c = hash_find(x->writer_recovery.by_id, id);
    if (c != NULL) {
        c->next = 0;
        return;
    }
    c = writer_recovery_has_room(x) ? calloc(1, sizeof(*c)) : NULL;
    if (c == NULL) {
        log_warn(
            "inode %llu of export %u: its writer is gone, and too many files wait for "
            "a check; scrub will repair it",
            (unsigned long long)in->ino, e->id);
        return;
    }
    c->x = x;
    c->in = *in;
    c->id = id;
    c->end_ns = env_now_ns(x->env) + ms_to_ns(CHECK_MAX_MS);
    list_add_tail(&x->writer_recovery.queue, &c->link);
    hash_add(x->writer_recovery.by_id, id, c);
    x->writer_recovery.n++;
}

void writer_recovery_tick(struct exportd *x)
{
    checks_send(x);
}

void writer_recovery_stop(struct exportd *x)
{
    LIST_FOREACH(node, &x->writer_recovery.queue) {
        struct check *c = container_of(node, struct check, link);

        if (c->storage == NULL)
            continue;
        rpc_cancel(&c->rq);
        c->storage->n_out--;
        c->storage = NULL;
        x->writer_recovery.n_out--;
    }
}

void writer_recovery_free(struct exportd *x)
{
    LIST_FOREACH_SAFE(node, &x->writer_recovery.queue)
        check_free(container_of(node, struct check, link));
}
