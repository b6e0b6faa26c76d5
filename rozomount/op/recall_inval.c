/*
 * recall_inval.c - drops what the kernel keeps by a token that is recalled or may be
 * lost.
 *
 * In:     token_recall.c, on the owner of the inode; READs that end early.
 * Out:    notices to the kernel; recall_step() when it has dropped all.
 * Keeps:  no deadlock with the kernel. It keeps pages locked under a READ, and the last
 *         page of a WRITE that covers it in part, until we answer: such pages hold
 *         nothing old, so no recall waits until they are dropped.
 */
#include "rozomount/op/recall_inval.h"

#include <fcntl.h>
#include <stdlib.h>

#include "common/base/range_map.h"
#include "common/base/units.h"
#include "rozomount/kcache/dir_places.h"
#include "rozomount/kcache/kernel_notify.h"
#include "rozomount/kcache/name_inval.h"
#include "rozomount/op/fuse_op.h"
#include "rozomount/op/handle.h"
#include "rozomount/op/loop.h"
#include "rozomount/op/mount.h"
#include "rozomount/op/read_past_eof.h"
#include "rozomount/op/token_recall.h"
#include "rozomount/op/token_recall_int.h"
#include "rozomount/options/xalloc.h"

enum {
    /* longest way of a READ from the kernel to us, unless all hangs */
    READ_COMES_NS = NS_PER_S,
};

/* One invalidation sent to the kernel. */
struct drop {
    struct notify_job job;
    struct loop *loop;
    struct recall *recall; /* waits for it; NULL: nothing waits, or op does */
    struct fuse_op *op;
    struct list_node link; /* in recall->drops */
    struct dropped_names names;
    bool sent;
};

static void on_dropped(struct env_mail *mail)
{
    struct drop *d = container_of(mail, struct drop, job.mail);
    struct recall *r = d->recall;

    list_remove(&d->link);
    name_inval_end(d->loop->mount->name_inval, &d->names);
    free(d);
    if (r != NULL && list_is_empty(&r->drops)) {
        r->busy = false;
        recall_step(r);
    }
}

static struct drop *drop_new(struct loop *loop, uint64_t ino, uint64_t from, uint64_t to)
{
    struct drop *d = xzalloc(sizeof(*d));

    d->loop = loop;
    list_init(&d->link);
    list_init(&d->names.link);
    d->job.ino = ino;
    d->job.from = from;
    d->job.to = to;
    d->job.env = &loop->env;
    d->job.mail.fn = on_dropped;
    return d;
}

static void drop_add(struct recall *r, uint64_t from, uint64_t to)
{
    struct drop *d = drop_new(r->loop, r->ino, from, to);

    d->recall = r;
    list_add_tail(&r->drops, &d->link);
}

static void drops_send(struct recall *r)
{
    if (list_is_empty(&r->drops))
        drop_add(r, 0, 0); /* no pages */
    LIST_FOREACH(link, &r->drops) {
        struct drop *d = container_of(link, struct drop, link);

        if (d->sent)
            continue;
        d->sent = true;
        kernel_notify_submit(r->loop->mount->notify, &d->job);
    }
}

/* Finds the pages that the kernel may keep locked until the request with t, which waits,
 * is answered: those of a READ, which hold nothing yet; and the last page of a WRITE that
 * covers it in part, if that page holds nothing old. */
static bool token_use_locks(const struct token_use *t, uint64_t *from, uint64_t *to)
{
    bool fills = t->pages == PAGES_FILL;
    uint64_t end = t->to;

    if (t->from == end ||
        (!fills && t->pages != PAGES_WRITE && t->pages != PAGES_WRITE_BACK))
        return false;
    *from = (fills ? t->from : end - 1) / PAGE_BYTES * PAGE_BYTES;
    *to = (end + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    return fills || t->from > *from || end < *to;
}

/*
 * Makes the recall not wait for the pages [from, to) of d; other jobs drop those around
 * them.
 */
static void drop_go_round(struct drop *d, uint64_t from, uint64_t to)
{
    struct recall *r = d->recall;

    r->node->went_round_ns = env_now_ns(&r->loop->env.env);
    if (d->job.from < from)
        drop_add(r, d->job.from, from);
    if (to < d->job.to)
        drop_add(r, to, d->job.to);
    list_remove(&d->link);
    d->recall = NULL;
    /* A page with old data is not locked by a WRITE, and dropped at once. */
    if (!d->sent) {
        d->job.from = from;
        d->job.to = to;
        kernel_notify_submit(r->loop->mount->notify, &d->job);
    }
}

static void drops_part(struct recall *r, const struct fuse_op *op)
{
    uint64_t from, to;

    if (!token_use_locks(&op->token, &from, &to))
        return;
    LIST_FOREACH_SAFE(link, &r->drops) {
        struct drop *d = container_of(link, struct drop, link);

        if (d->job.from < to && from < d->job.to)
            drop_go_round(d, from, to);
    }
}

static void drop_names(struct drop *d, struct kernel_name *names)
{
    d->job.names = names;
    name_inval_begin(d->loop->mount->name_inval, &d->names, d->job.ino,
                     env_now_ns(&d->loop->env.env));
}

void recall_inval_begin(struct recall *r)
{
    struct kernel_name *names = token_cache_take_names(tokens_of(r->loop), r->ino);

    r->was_asked = true;
    if (r->loop->mount->notify == NULL) { /* the kernel keeps nothing */
        kernel_names_free(names);
        return;
    }
    node_past_eof_resume(r->node); /* waiting READs keep pages locked */
    drop_add(r, 0, names == NULL ? SPAN_END : 0);
    if (names != NULL) {
        drop_names(container_of(r->drops.next, struct drop, link), names);
        drop_add(r, 0, SPAN_END);
    }
    LIST_FOREACH(link, &r->node->token_waiters)
        drops_part(r, container_of(link, struct fuse_op, token.link));
    r->busy = true;
    drops_send(r);
}

void inval_skip_locked(struct recall *r, const struct fuse_op *op)
{
    if (list_is_empty(&r->drops))
        return;
    drops_part(r, op);
    drops_send(r);
}

/* ---- READs that end early ---- */

static void drop_ends(struct loop *loop, struct node *node);

static void on_ends_dropped(struct env_mail *mail)
{
    struct drop *d = container_of(mail, struct drop, job.mail);
    struct loop *loop = d->loop;
    struct node *node = node_find(&loop->nodes, d->job.ino);
    bool again;

    free(d);
    if (node == NULL)
        return;
    again = node->ends == ENDS_DROPPED_AGAIN;
    node->ends = ENDS_KEPT;
    if (again)
        drop_ends(loop, node);
}

static void drop_ends(struct loop *loop, struct node *node)
{
    struct drop *d;

    if (node->ends != ENDS_KEPT)
        node->ends = ENDS_DROPPED_AGAIN;
    if (node->ends != ENDS_KEPT || loop->mount->notify == NULL)
        return;
    node->ends = ENDS_DROPPED;
    d = drop_new(loop, node->ino, 0, SPAN_END);
    d->job.mail.fn = on_ends_dropped;
    kernel_notify_submit(loop->mount->notify, &d->job);
}

bool fuse_op_read_ended(struct read_op *r)
{
    struct node *node = r->op.node;

    if (r->op.token.pages != PAGES_FILL || node->went_round_ns == 0 ||
        r->started_ns >= node->went_round_ns + READ_COMES_NS)
        return true;
    drop_ends(r->op.loop, node);
    return false;
}

/* ---- for one operation ---- */

static void on_dropped_for_op(struct env_mail *mail)
{
    struct drop *d = container_of(mail, struct drop, job.mail);
    struct fuse_op *op = d->op;

    free(d);
    fuse_op_next(op);
}

static enum step_end op_drop_to(struct fuse_op *op, uint64_t to)
{
    struct drop *d;

    if (op->loop->mount->notify == NULL)
        return STEP_GO;
    d = drop_new(op->loop, op->ino, 0, to);
    d->op = op;
    d->job.mail.fn = on_dropped_for_op;
    kernel_notify_submit(op->loop->mount->notify, &d->job);
    return STEP_WAIT;
}

enum step_end fuse_op_drop_pages(struct fuse_op *op)
{
    fuse_op_token_done(op);
    return op_drop_to(op, SPAN_END);
}

enum step_end fuse_op_drop_attr(struct fuse_op *op)
{
    return op_drop_to(op, 0);
}

/* ---- expired names ---- */

/* Asks a loop to end waits for invalidations that are not needed any more. */
struct old_news {
    struct env_mail mail;
    struct loop *loop;
};

static bool drops_forget_old(struct recall *r)
{
    struct name_inval *names = r->loop->mount->name_inval;
    bool any = false;

    LIST_FOREACH_SAFE(link, &r->drops) {
        struct drop *d = container_of(link, struct drop, link);

        if (!name_inval_is_old(names, &d->names))
            continue;
        any = true;
        list_remove(link); /* on_dropped() runs when the kernel gets the lock */
        d->recall = NULL;
    }
    return any && list_is_empty(&r->drops);
}

/*
 * Returns a recall that may go on; NULL: none. Starts over each time: the end of a recall
 * may begin or end others.
 */
static struct recall *recall_free_to_go(struct loop *loop)
{
    struct recall *r, *next;

    HASH_ITER(hh, loop->recalls, r, next)
    {
        if (drops_forget_old(r))
            return r;
    }
    return NULL;
}

static void on_old_news(struct env_mail *mail)
{
    struct old_news *news = container_of(mail, struct old_news, mail);
    struct loop *loop = news->loop;
    struct recall *r;

    free(news);
    while ((r = recall_free_to_go(loop)) != NULL) {
        r->busy = false;
        recall_step(r);
    }
}

bool recalls_age_names(struct loop *loop, const uint64_t *locked)
{
    struct mount *m = loop->mount;
    bool done;

    if (m->notify == NULL || !kernel_notify_can_age(m->notify))
        return false;
    token_cache_lock(m->tokens);
    done = kernel_notify_age(m->notify);
    if (done)
        name_inval_made_old(m->name_inval, m->tokens, locked);
    token_cache_unlock(m->tokens);
    for (unsigned i = 0; i < m->n_loops && done; i++) {
        struct old_news *news = xzalloc(sizeof(*news));

        news->mail.fn = on_old_news;
        news->loop = &m->loops[i];
        env_mailbox_post(&news->loop->env, &news->mail);
    }
    return done;
}

/* ---- exportd may have ended our session ---- */

void recalls_drop_kernel(struct loop *loop)
{
    uint64_t *inos;
    size_t n;

    if (loop->mount->notify == NULL)
        return;
    inos = token_cache_list(tokens_of(loop), &n);
    for (size_t i = 0; i < n; i++) {
        struct drop *d;

        if (token_is_of_locks(inos[i])) /* the kernel keeps nothing by it */
            continue;
        d = drop_new(loop, inos[i], 0, SPAN_END);
        /*
         * A copy: this invalidation is not waited for, but a recall of the token must
         * wait for one of its own.
         */
        d->job.names = token_cache_copy_names(tokens_of(loop), inos[i]);
        kernel_notify_submit(loop->mount->notify, &d->job);
    }
    free(inos);
}

bool mount_prunes(const struct mount *m)
{
    return m->notify != NULL && kernel_notify_can_prune(m->notify);
}

void note_untokened_name(struct mount *m, uint64_t dir, const char *name, bool is_dir)
{
    if (mount_prunes(m) && token_cache_are_given(m->tokens))
        dir_places_note_untokened(m->dir_places, dir, name, is_dir);
}
