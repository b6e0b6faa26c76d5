/*
 * token_recall.c - tokens of inodes in use: operations wait for them, recalled ones go
 * back.
 *
 * In:     fuse_op_with_token() and the ends of such operations; recalls of exportd, on
 *         the owner of the inode.
 * Out:    MD_TOKEN, MD_GIVE_BACK; flushes of the file layer; invalidations by
 *         recall_inval.c.
 * Keeps:  I5, our half: a token is given back only when nothing is left that it allowed:
 *         no operation that changes the file, no unflushed data, nothing cached by us or
 *         the kernel. An operation that waits for a token is let through once when it is
 *         granted, even if it is recalled meanwhile.
 */
#include "rozomount/op/token_recall.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "rozomount/kcache/kernel_notify.h"
#include "rozomount/op/fuse_op.h"
#include "rozomount/op/handle.h"
#include "rozomount/op/loop.h"
#include "rozomount/op/mount.h"
#include "rozomount/op/read_past_eof.h"
#include "rozomount/op/recall_inval.h"
#include "rozomount/op/token_recall_int.h"
#include "rozomount/options/xalloc.h"

enum {
    LOST_AT_A_TIME = 256,  /* tokens of a lost session */
    TRIM_AT_A_TIME = 256,  /* surplus tokens */
    GIVEN_AT_A_TIME = 256, /* tokens in one message */
};

/* One MD_TOKEN request. */
struct acquire {
    struct md_call call;
    struct loop *loop;
    struct node *node; /* pinned */
    uint64_t number;
    struct token_need need;
    uint64_t changes; /* token_cache_changes() when it was sent */
};

static void node_acquire(struct loop *loop, struct node *node);
static void node_run_waiters(struct node *node, bool granted);
static void node_seek_token(struct loop *loop, struct node *node);
static void lose(struct loop *loop, uint64_t ino);
static void give_now(struct loop *loop);

static struct recall *recall_find(struct loop *loop, uint64_t ino)
{
    struct recall *r;

    HASH_FIND(hh, loop->recalls, &ino, sizeof(ino), r);
    return r;
}

/* ---- waiting for a token ---- */

/* Returns the token that we certainly hold. */
static enum token_mode node_holds(struct loop *loop, const struct node *node)
{
    if (!mount_session_is_sure(loop->mount->session, env_now_ns(&loop->env.env)))
        return TOKEN_NONE;
    return token_cache_mode(tokens_of(loop), node->ino);
}

bool node_is_open_still(struct loop *loop, const struct node *node)
{
    return !mount_writes_back(loop->mount) && node->file != NULL && !node->closing &&
           node->n_refs != 0 && recall_find(loop, node->ino) == NULL &&
           node_holds(loop, node) >= TOKEN_SHARED &&
           node_holds(loop, node) != TOKEN_RANGES;
}

/* Examples: `git status`, compilers, servers. */
bool node_is_worth_keeping(struct loop *loop, const struct node *node)
{
    return !loop->kernel_is_gone && node->names == NODE_NAMED &&
           node_is_open_still(loop, node) && file_epoch(node->file) == 0 &&
           file_is_clean(node->file);
}

/* Returns true if the tokens held cover op. */
static bool op_is_covered(const struct fuse_op *op)
{
    struct loop *loop = op->loop;

    return mount_session_is_sure(loop->mount->session, env_now_ns(&loop->env.env)) &&
           token_cache_cover(tokens_of(loop), op->token.node->ino, &op->token.need);
}

static enum step_end op_start(struct fuse_op *op)
{
    struct node *node = op->token.node;

    if (is_exclusive(op))
        list_add_tail(&node->exclusive, &op->token.link);
    else if (op->token.pages == PAGES_FILL)
        list_add_tail(&node->reading, &op->token.link);
    else
        op->token.node = NULL;
    /* lost while op waited? */
    return fuse_op_has_lost_its_lock(op) ? fuse_op_end(op, -EIO) : STEP_GO;
}

/* Returns true if op may start although the token is being recalled. */
static bool recall_lets_by(const struct recall *r, const struct fuse_op *op)
{
    if (r->lost)
        return false;
    /* the kernel writes out pages that it must drop */
    if (op->token.pages == PAGES_WRITE_BACK)
        return true;
    return op->token.need.mode <= r->keep || (!is_exclusive(op) && !r->was_asked);
}

/* Returns true if the READ and the change touch a page in common. */
static bool share_pages(const struct fuse_op *read, const struct fuse_op *change)
{
    const struct token_use *r = &read->token, *c = &change->token;

    return c->pages == PAGES_NONE || (c->from / PAGE_BYTES <= r->to / PAGE_BYTES &&
                                      r->from / PAGE_BYTES <= c->to / PAGE_BYTES);
}

static bool any_shares_pages(const struct list_node *ops, const struct fuse_op *read)
{
    LIST_FOREACH(link, ops) {
        const struct fuse_op *op = container_of(link, struct fuse_op, token.link);

        if (is_exclusive(op) && share_pages(read, op))
            return true;
    }
    return false;
}

/* Makes a READ wait for a WRITE of the same page: that page may be dropped since, and the
 * READ would fill a new one with old data for good. Not while a recall drops all pages:
 * that recall may wait for the READ. */
static bool op_comes_second(const struct fuse_op *op, const struct recall *r)
{
    const struct node *node = op->token.node;

    return op->token.pages == PAGES_FILL && (r == NULL || r->keep != TOKEN_NONE) &&
           (any_shares_pages(&node->exclusive, op) ||
            any_shares_pages(&node->token_waiters, op));
}

static void op_overtakes_reads(const struct fuse_op *op)
{
    LIST_FOREACH(link, &op->token.node->reading) {
        struct fuse_op *read = container_of(link, struct fuse_op, token.link);

        if (share_pages(read, op))
            ((struct read_op *)read)->overtaken = true;
    }
}

static bool op_may_start(struct fuse_op *op)
{
    struct recall *r = recall_find(op->loop, op->token.node->ino);

    if (op_comes_second(op, r))
        return false;
    if (op->token.pages == PAGES_WRITE_BACK && r != NULL &&
        node_holds(op->loop, op->token.node) != TOKEN_NONE)
        return recall_lets_by(r, op);
    return op_is_covered(op) && (r == NULL || recall_lets_by(r, op));
}

/* Returns true for a page that a mapping changed under a token that is lost. */
static bool op_is_lost(const struct fuse_op *op, const struct recall *r)
{
    return op->token.pages == PAGES_WRITE_BACK && r != NULL && r->lost;
}

static void op_unqueue(struct fuse_op *op)
{
    fuse_op_wait_over(op);
    list_remove(&op->token.link);
}

/* Starts waiting operations after one that blocked them has ended. */
static void node_look_again(struct loop *loop, struct node *node)
{
    if (!list_is_empty(&node->token_waiters) && node->acquiring == NULL &&
        recall_find(loop, node->ino) == NULL)
        node_run_waiters(node, false);
}

static void give_up_waiting(struct fuse_op *op)
{
    struct node *node = op->token.node;

    list_remove(&op->token.link);
    op->token.node = NULL;
    if (is_exclusive(op))
        node_look_again(op->loop, node);
    fuse_op_reply_err(op, -EINTR);
}

enum step_end fuse_op_with_token(struct fuse_op *op, struct node *node,
                                 enum token_mode mode)
{
    return fuse_op_with_range(op, node, &(struct token_need){ .mode = mode });
}

enum step_end fuse_op_with_range(struct fuse_op *op, struct node *node,
                                 const struct token_need *need)
{
    struct loop *loop = op->loop;
    struct recall *r;

    if (!token_cache_are_given(tokens_of(loop)))
        return STEP_GO;
    assert(op->token.node == NULL);
    op->token.node = node;
    op->token.need = *need;
    if (is_exclusive(op))
        op_overtakes_reads(op);
    if (op_may_start(op))
        return op_start(op);
    if (recall_find(loop, node->ino) == NULL &&
        token_cache_is_lost(tokens_of(loop), node->ino))
        lose(loop, node->ino);
    r = recall_find(loop, node->ino);
    if (op_is_lost(op, r)) {
        op->token.node = NULL;
        return fuse_op_end(op, -EIO);
    }
    list_add_tail(&node->token_waiters, &op->token.link);
    if (r != NULL)
        inval_skip_locked(r, op);
    else if (!op_is_covered(op))
        node_acquire(loop, node);
    if (op->req != NULL)
        fuse_op_wait_interruptibly(op, give_up_waiting);
    return STEP_WAIT;
}

void fuse_op_token_done(struct fuse_op *op)
{
    struct node *node = op->token.node;
    struct recall *r;

    if (node == NULL)
        return;
    op->token.node = NULL;
    list_remove(&op->token.link);
    if (!is_exclusive(op))
        return;
    r = list_is_empty(&node->exclusive) ? recall_find(op->loop, node->ino) : NULL;
    if (r != NULL)
        recall_step(r);
    else
        node_look_again(op->loop, node);
}

/*
 * Returns true if op may start by the token just granted, even if it is being recalled.
 */
static bool op_may_start_once(const struct fuse_op *op)
{
    return token_cache_cover(tokens_of(op->loop), op->token.node->ino, &op->token.need) &&
           !op_comes_second(op, recall_find(op->loop, op->token.node->ino));
}

/* Starts all waiting operations that may start. granted: a token was granted just now. */
static void node_run_waiters(struct node *node, bool granted)
{
    struct list_node all;

    list_init(&all);
    LIST_FOREACH_SAFE(link, &node->token_waiters) {
        list_remove(link);
        list_add_tail(&all, link);
    }
    node_pin(node); /* the last operation may unpin it */
    while (!list_is_empty(&all)) {
        struct fuse_op *op = container_of(all.next, struct fuse_op, token.link);

        list_remove(&op->token.link);
        if (op_may_start(op) || (granted && op_may_start_once(op)))
            fuse_op_resume(op, op_start(op));
        else
            list_add_tail(&node->token_waiters, &op->token.link);
    }
    node_put(node);
}

/* ---- acquiring ---- */

static void waiters_fail(struct node *node, int rc)
{
    while (!list_is_empty(&node->token_waiters)) {
        struct fuse_op *op =
            container_of(node->token_waiters.next, struct fuse_op, token.link);

        op_unqueue(op);
        op->token.node = NULL;
        fuse_op_reply_err(op, rc == -ENOENT ? -ESTALE : rc);
    }
}

static void acquire_grant(const struct acquire *a, const struct md_entry *entry)
{
    struct token_cache *t = tokens_of(a->loop);
    const struct held_range range = {
        .ino = entry->attr.ino,
        .from = entry->range_from,
        .to = entry->range_to,
        .write = a->need.mode == TOKEN_EXCLUSIVE,
        .size = entry->attr.size,
    };

    if (entry->range_to != 0)
        token_cache_grant_range(t, &range, entry->grant.number);
    else
        token_cache_grant(t, entry->attr.ino, entry->attr.token, entry->grant.number);
    token_cache_lock(t);
    token_cache_note_xattrs(t, entry->attr.ino, entry->attr.xattrs, entry->grant.number,
                            a->changes);
    token_cache_unlock(t);
}

static int acquire_entry(struct acquire *a, const struct md_entry *entry)
{
    struct node *node = a->node;

    if (entry->attr.ino != node->ino ||
        (entry->attr.token < a->need.mode && entry->range_to == 0))
        return -EBADMSG;
    acquire_grant(a, entry);
    node_note_mode(node, &entry->attr);
    node_note_nlink(node, &entry->attr);
    if (node->file == NULL || node->closing || !entry->has_target)
        return 0;
    if (entry->range_to != 0) /* others may have written there without a report yet */
        file_drop_cache(node->file);
    node_cache_is_fresh(node, &entry->attr);
    node_adopt_granted(node, entry);
    return 0;
}

static int acquire_take(struct acquire *a, const struct md_call *call)
{
    struct md_entry entry;
    int rc = md_decode_open(call, &entry);

    if (rc != 0)
        return rc;
    rc = acquire_entry(a, &entry);
    md_entry_drop(&entry);
    return rc;
}

/* Returns true if an operation waits for more than we hold. */
static bool waiters_lack_it(const struct node *node)
{
    LIST_FOREACH(link, &node->token_waiters) {
        if (!op_is_covered(container_of(link, struct fuse_op, token.link)))
            return true;
    }
    return false;
}

static void on_acquired(struct md_call *call, int rc)
{
    struct acquire *a = call->arg;
    struct loop *loop = a->loop;
    struct node *node = a->node;
    struct recall *r;

    assert(node->acquiring == a);
    if (rc == 0)
        rc = acquire_take(a, call);
    node->acquiring = NULL;
    r = recall_find(loop, node->ino);
    if (rc != 0)
        waiters_fail(node, md_client_user_errno(rc));
    else if (r == NULL || !r->lost)
        node_run_waiters(node, true);
    free(a);
    r = recall_find(loop, node->ino);
    if (r != NULL)
        recall_step(r);
    else if (waiters_lack_it(node))
        node_seek_token(loop, node);
    node_put(node);
}

/*
 * Returns the need to ask for: a change, which covers most waiters, else the first.
 * Ranges are asked for one by one.
 */
static struct token_need waiters_want(struct loop *loop, const struct node *node)
{
    bool ranges = token_cache_mode(tokens_of(loop), node->ino) == TOKEN_RANGES;
    const struct fuse_op *first = NULL;

    LIST_FOREACH(link, &node->token_waiters) {
        const struct fuse_op *op = container_of(link, struct fuse_op, token.link);

        if (op_is_covered(op))
            continue;
        if (first == NULL || (!ranges && is_exclusive(op) && !is_exclusive(first)))
            first = op;
    }
    return first == NULL ? (struct token_need){ .mode = TOKEN_SHARED }
                         : first->token.need;
}

static void node_acquire(struct loop *loop, struct node *node)
{
    Rozo__MdTokenReq req = ROZO__MD_TOKEN_REQ__INIT;
    struct acquire *a;

    if (node->acquiring != NULL)
        return;
    give_now(loop);
    a = node->acquiring = xzalloc(sizeof(*a));
    a->loop = loop;
    a->node = node;
    node_pin(node);
    a->number = ++loop->last_token_call << 8 | loop->index;
    a->need = waiters_want(loop, node);
    a->changes = token_cache_changes(tokens_of(loop));
    req.ino = node->ino;
    req.mode = (Rozo__TokenMode)a->need.mode;
    req.offset = a->need.from;
    req.length = a->need.to == 0 ? 0 : a->need.to - a->need.from;
    req.call = a->number;
    req.knows_flags = true;
    req.epoch = node->file == NULL || node->closing ? 0 : file_epoch(node->file);
    md_client_send_within(&loop->md, &a->call, ROZO__OP__MD_TOKEN, &req.base, 0,
                          loop->mount->opt->meta_timeout_ms, on_acquired, a);
}

/* ---- giving back ---- */

/* Tokens that go back in one turn of the loop. The request is repeated until exportd
 * has answered, since another mount may wait for them. */
struct giving {
    struct md_call call;
    struct loop *loop;
    struct list_node link; /* in loop->givings */
    size_t n, room;
    Rozo__MdGiveBackReq__Token *tokens; /* owned */
};

static void giving_send(struct giving *g);

static void giving_free(struct giving *g)
{
    list_remove(&g->link);
    free(g->tokens);
    free(g);
}

static void on_given_back(struct md_call *call, int rc)
{
    struct giving *g = call->arg;

    if (rc != 0 && !call->answered && !atomic_load(&g->loop->mount->stop_sent)) {
        giving_send(g);
        return;
    }
    giving_free(g);
}

static void giving_send(struct giving *g)
{
    Rozo__MdGiveBackReq req = ROZO__MD_GIVE_BACK_REQ__INIT;
    Rozo__MdGiveBackReq__Token *list[GIVEN_AT_A_TIME];

    for (size_t i = 0; i < g->n; i++)
        list[i] = &g->tokens[i];
    req.tokens = list;
    req.n_tokens = g->n;
    md_client_send(&g->loop->md, &g->call, ROZO__OP__MD_GIVE_BACK, &req.base, 0,
                   on_given_back, g);
}

/* Sends pending tokens now: exportd must get them before the next request. */
static void give_now(struct loop *loop)
{
    struct giving *g = loop->giving;

    loop->giving = NULL;
    if (g != NULL)
        giving_send(g);
}

void on_giving_task(struct env_task *task)
{
    give_now(container_of(task, struct loop, giving_task));
}

static void give_back(struct loop *loop, uint64_t ino, enum token_mode keep,
                      uint64_t grant)
{
    struct giving *g = loop->giving;
    Rozo__MdGiveBackReq__Token *token;

    if (g == NULL) {
        g = loop->giving = xzalloc(sizeof(*g));
        g->loop = loop;
        list_add_tail(&loop->givings, &g->link);
        env_post(&loop->env.env, &loop->giving_task);
    }
    if (g->n == g->room) {
        g->room = g->room == 0 ? 1 : 4 * g->room;
        g->tokens = xrealloc(g->tokens, g->room * sizeof(*g->tokens));
    }
    token = &g->tokens[g->n++];
    rozo__md_give_back_req__token__init(token);
    token->ino = ino;
    token->keep = (Rozo__TokenMode)keep;
    token->grant = token_cache_gave_back(tokens_of(loop), ino, keep, grant);
    if (g->n == GIVEN_AT_A_TIME)
        give_now(loop);
}

/* ---- a recall, step by step ---- */

static void on_recall_flushed(void *arg, int rc)
{
    struct recall *r = arg;

    if (rc != 0) {
        log_error("inode %llu: written data could not be stored before another client "
                  "gets the file; they are lost: %s",
                  (unsigned long long)r->ino, error_text(rc));
        r->node->n_abandoned++;
        r->node->abandoned_rc = rc;
    }
    r->busy = false;
    recall_step(r);
}

static void on_recall_closed(struct node_wait *wait)
{
    struct recall *r = container_of(wait, struct recall, wait);

    r->busy = false;
    recall_step(r);
}

static void recall_free(struct recall *r)
{
    struct node *node = r->node;

    HASH_DEL(r->loop->recalls, r);
    free(r);
    node_put(node);
}

static void lost_next(struct loop *loop);

static void recall_end(struct recall *r)
{
    struct loop *loop = r->loop;
    struct node *node = r->node;
    bool lost = r->lost;

    if (r->keep == TOKEN_NONE) {
        node->mode_until_ns = node->no_capability_until_ns = 0;
        if (node->file != NULL)
            file_drop_cache(node->file);
        node_let_go(node);
    }
    node->durable_no = 0;
    if (token_cache_mode(tokens_of(loop), r->ino) >= TOKEN_RANGES)
        node->lowered = atomic_fetch_add(&loop->mount->n_lowered, 1) + 1;
    give_back(loop, r->ino, r->keep, r->grant);
    node_pin(node);
    recall_free(r);
    if (waiters_lack_it(node))
        node_seek_token(loop, node);
    node_put(node);
    if (lost)
        lost_next(loop);
}

/* Decide what comes next. */
void recall_step(struct recall *r)
{
    struct node *node = r->node;
    struct acquire *a = node->acquiring;

    if (r->busy)
        return;
    /* granted: the answer is on its way */
    if (a != NULL && r->call != 0 && r->call == a->number)
        return;
    if (!list_is_empty(&node->exclusive))
        return;
    token_cache_recall(tokens_of(r->loop), r->ino, r->keep);
    /*
     * Operations that wait for less than we hold may keep pages locked: they start first.
     */
    if (!r->was_asked && !r->lost) {
        r->busy = true;
        node_run_waiters(node, false);
        r->busy = false;
    }
    if (node->closing) {
        r->busy = true;
        r->wait.ready = on_recall_closed;
        node_wait(node, &r->wait);
    } else if (node->file != NULL && !file_is_clean(node->file)) {
        r->busy = true;
        if (r->lost)
            file_lose_all(node->file, on_recall_flushed, r);
        else
            file_abandon(node->file, on_recall_flushed, r);
    } else if (r->keep == TOKEN_NONE && !r->was_asked) {
        recall_inval_begin(r);
        if (!r->busy)
            recall_step(r);
    } else {
        recall_end(r);
    }
}

static struct recall *recall_new(struct loop *loop, uint64_t ino, enum token_mode keep,
                                 uint64_t grant, uint64_t call)
{
    struct recall *r = xzalloc(sizeof(*r));

    r->loop = loop;
    r->ino = ino;
    r->keep = keep;
    r->grant = grant;
    r->call = call;
    list_init(&r->drops);
    r->node = node_get(&loop->nodes, ino);
    HASH_ADD(hh, loop->recalls, ino, sizeof(r->ino), r);
    return r;
}

static void lose_pages(struct recall *r);

static void recall_begin(struct loop *loop, const struct recalled_token *asked)
{
    struct recalled_token it = *asked, *what = &it;
    struct recall *r = recall_find(loop, what->ino);
    bool lost = token_cache_is_lost(tokens_of(loop), what->ino);
    struct node *node = node_find(&loop->nodes, what->ino);
    bool in_flight = node != NULL && node->acquiring != NULL && what->call != 0 &&
                     node->acquiring->number == what->call;

    /* no data depend on it, and the kernel keeps nothing by it */
    if (token_is_of_locks(what->ino)) {
        give_back(loop, what->ino, TOKEN_NONE, what->grant);
        return;
    }
    /* part of a range token is nothing */
    if (token_cache_mode(tokens_of(loop), what->ino) == TOKEN_RANGES)
        what->keep = TOKEN_NONE;
    if (r != NULL) {
        if (what->keep < r->keep)
            r->keep = what->keep;
        if (what->grant > r->grant)
            r->grant = what->grant;
        if (in_flight)
            r->call = what->call;
        token_cache_recall(tokens_of(loop), what->ino, r->keep);
        return; /* the recall in progress ends later */
    }
    if ((!in_flight && !lost &&
         token_cache_mode(tokens_of(loop), what->ino) <= what->keep) ||
        (node == NULL && loop->kernel_is_gone)) {
        give_back(loop, what->ino, what->keep, what->grant);
        return;
    }
    /*
     * The kernel still keeps all that a lost session allowed: a lost token goes as a
     * whole.
     */
    r = recall_new(loop, what->ino, lost ? TOKEN_NONE : what->keep, what->grant,
                   lost ? 0 : what->call);
    r->lost = lost;
    if (lost)
        lose_pages(r);
    recall_step(r);
}

/* ---- a session that is over ---- */

/* A lost token, reported to the owner of the inode. */
struct lost_news {
    struct env_mail mail;
    struct loop *loop;
    uint64_t ino;
};

/*
 * Fails writes of pages changed in a mapping: the kernel keeps them locked until we
 * answer.
 */
static void lose_pages(struct recall *r)
{
    LIST_FOREACH_SAFE(link, &r->node->token_waiters) {
        struct fuse_op *op = container_of(link, struct fuse_op, token.link);

        if (!op_is_lost(op, r))
            continue;
        op_unqueue(op);
        op->token.node = NULL;
        fuse_op_reply_err(op, -EIO);
    }
}

static void lose(struct loop *loop, uint64_t ino)
{
    struct recall *r = recall_find(loop, ino);

    if (r != NULL) {
        r->lost = true;
        r->keep = TOKEN_NONE;
        r->call = 0;
    } else {
        r = recall_new(loop, ino, TOKEN_NONE, 0, 0);
        r->lost = true;
    }
    lose_pages(r);
    recall_step(r);
}

/* Acquires a token for waiting operations. A lost one is cleaned up first. */
static void node_seek_token(struct loop *loop, struct node *node)
{
    if (token_cache_is_lost(tokens_of(loop), node->ino))
        lose(loop, node->ino);
    else
        node_acquire(loop, node);
}

static void on_lost_news(struct env_mail *mail)
{
    struct lost_news *news = container_of(mail, struct lost_news, mail);
    struct loop *loop = news->loop;
    bool kept = !loop->kernel_is_gone || node_find(&loop->nodes, news->ino) != NULL;

    /* Otherwise the clean-up is done, and the token perhaps granted again. */
    if (kept && token_cache_is_lost(tokens_of(loop), news->ino))
        lose(loop, news->ino);
    free(news);
}

/*
 * Cleans up one token of the lost session: data written under it must not reach storages
 * later.
 */
static void lost_next(struct loop *loop)
{
    uint64_t ino = token_cache_lost_one(tokens_of(loop));
    struct lost_news *news;

    if (ino == 0 || loop->kernel_is_gone)
        return;
    news = xzalloc(sizeof(*news));
    news->mail.fn = on_lost_news;
    news->loop = mount_owner(loop->mount, ino);
    news->ino = ino;
    env_mailbox_post(&news->loop->env, &news->mail);
}

void recalls_lose_all(struct loop *loop)
{
    struct node *node, *next;

    nodes_let_go(&loop->nodes);
    HASH_ITER(hh, loop->nodes.by_ino, node, next)
    {
        if (node->file != NULL && !node->closing && !file_is_clean(node->file))
            lose(loop, node->ino);
    }
    for (unsigned i = 0; i < LOST_AT_A_TIME; i++)
        lost_next(loop);
}

/* ---- the end ---- */

void recalls_stop(struct loop *loop)
{
    struct node *node, *next;

    loop->kernel_is_gone = true;
    nodes_let_go(&loop->nodes);
    HASH_ITER(hh, loop->nodes.by_ino, node, next)
    {
        struct acquire *a = node->acquiring;

        if (a == NULL || !md_client_cancel(&a->call, false))
            continue;
        node->acquiring = NULL;
        waiters_fail(node, -EIO);
        free(a);
        node_put(node);
    }
}

void recalls_close(struct loop *loop)
{
    LIST_FOREACH_SAFE(link, &loop->givings) {
        struct giving *g = container_of(link, struct giving, link);

        if (g == loop->giving || md_client_cancel(&g->call, false))
            giving_free(g);
    }
    loop->giving = NULL;
}

/* ---- surplus tokens ---- */

/* Tokens by which the kernel keeps attributes only: given back together. */
struct trim {
    struct notify_job job;
    struct loop *loop;
    size_t n;
    uint64_t inos[TRIM_AT_A_TIME];
};

static void on_trimmed(struct env_mail *mail)
{
    struct trim *trim = container_of(mail, struct trim, job.mail);
    struct loop *loop = trim->loop;

    for (size_t i = 0; i < trim->n; i++) {
        struct recall *r = recall_find(loop, trim->inos[i]);

        r->busy = false;
        recall_step(r);
    }
    free(trim);
    recalls_trim(loop);
}

/*
 * Begins a recall for an inode that is not open and has no pages in the kernel, so none
 * that is locked.
 */
static bool trim_begin(struct loop *loop, uint64_t ino)
{
    struct recall *r;

    if (loop->kernel_is_gone || token_is_of_locks(ino) ||
        recall_find(loop, ino) != NULL || node_find(&loop->nodes, ino) != NULL ||
        !token_cache_recall_plain(tokens_of(loop), ino))
        return false;
    r = recall_new(loop, ino, TOKEN_NONE, 0, 0);
    r->busy = r->was_asked = true;
    return true;
}

/* Runs on the loop that owns the inodes. */
static void on_trim(struct env_mail *mail)
{
    struct trim *trim = container_of(mail, struct trim, job.mail);
    struct loop *loop = trim->loop;
    size_t n = 0;

    for (size_t i = 0; i < trim->n; i++) {
        uint64_t ino = trim->inos[i];

        if (trim_begin(loop, ino))
            trim->inos[n++] = ino;
        else
            recall_begin(loop,
                         &(struct recalled_token){ .ino = ino, .keep = TOKEN_NONE });
    }
    trim->n = n;
    trim->job.mail.fn = on_trimmed;
    trim->job.env = &loop->env;
    trim->job.more = trim->inos;
    trim->job.n_more = n;
    if (n == 0)
        free(trim);
    else if (loop->mount->notify == NULL) /* the kernel keeps nothing */
        on_trimmed(&trim->job.mail);
    else
        kernel_notify_submit(loop->mount->notify, &trim->job);
}

static void trim_send(struct trim *trim)
{
    trim->job.mail.fn = on_trim;
    env_mailbox_post(&trim->loop->env, &trim->job.mail);
}

static void trim_plain(struct loop *owner, const struct token_surplus *list, size_t n)
{
    struct trim *trim = NULL;

    for (size_t i = 0; i < n; i++) {
        if (!list[i].is_plain || mount_owner(owner->mount, list[i].ino) != owner)
            continue;
        if (trim == NULL)
            trim = xzalloc(sizeof(*trim));
        trim->loop = owner;
        trim->inos[trim->n++] = list[i].ino;
    }
    if (trim != NULL)
        trim_send(trim);
}

void recalls_trim(struct loop *loop)
{
    struct mount *m = loop->mount;
    struct token_surplus list[TRIM_AT_A_TIME];
    size_t n = token_cache_surplus(tokens_of(loop), list, TRIM_AT_A_TIME);

    for (unsigned i = 0; n > 0 && i < m->n_loops; i++)
        trim_plain(&m->loops[i], list, n);
    for (size_t i = 0; i < n; i++) {
        if (!list[i].is_plain)
            recall_send(m, &(struct recalled_token){ .ino = list[i].ino });
    }
}

void recalls_doubt(struct loop *loop, uint64_t ino)
{
    const struct recalled_token what = { .ino = ino, .keep = TOKEN_NONE };

    if (ino != 0 && token_cache_mode(tokens_of(loop), ino) != TOKEN_NONE)
        recall_send(loop->mount, &what);
}

/* A removed name, reported to the owner of the inode. */
struct let_go {
    struct env_mail mail;
    struct loop *loop;
    uint64_t ino;
    bool gone;
};

static void let_go(struct loop *loop, uint64_t ino, bool gone)
{
    struct node *node = node_find(&loop->nodes, ino);

    if (node != NULL) {
        if (node->names != NODE_GONE)
            node->names = gone ? NODE_GONE : NODE_LOST_A_NAME;
        node_let_go(node);
    } else if (gone) {
        token_cache_inode_gone(tokens_of(loop), ino);
    }
}

static void on_let_go(struct env_mail *mail)
{
    struct let_go *news = container_of(mail, struct let_go, mail);

    let_go(news->loop, news->ino, news->gone);
    free(news);
}

void recalls_let_go(struct loop *loop, uint64_t ino, bool gone)
{
    struct let_go *news;

    if (!mount_may_be_open(loop->mount, ino) && !mount_may_be_kept(loop->mount, ino)) {
        if (gone)
            token_cache_inode_gone(tokens_of(loop), ino);
        return;
    }
    if (mount_owner(loop->mount, ino) == loop) {
        let_go(loop, ino, gone);
        return;
    }
    news = xzalloc(sizeof(*news));
    news->mail.fn = on_let_go;
    news->loop = mount_owner(loop->mount, ino);
    news->ino = ino;
    news->gone = gone;
    env_mailbox_post(&news->loop->env, &news->mail);
}

static void on_recall_news(struct env_mail *mail)
{
    struct recall_news *news = container_of(mail, struct recall_news, mail);

    /*
     * Waits for renames in progress only: exportd refuses those that begin after its
     * recall.
     */
    if (!news->has_waited &&
        rename_barrier_wait(news->loop->mount->rename_barrier, &news->waiter))
        return;
    recall_begin(news->loop, &news->what);
    free(news);
}

void recall_send(struct mount *m, const struct recalled_token *what)
{
    struct recall_news *news = xzalloc(sizeof(*news));

    if (what->grant != 0) /* 0: our own wish */
        atomic_store(&m->was_recalled, true);
    news->mail.fn = on_recall_news;
    news->waiter.dir = what->ino;
    news->loop = mount_owner(m, what->ino);
    news->what = *what;
    env_mailbox_post(&news->loop->env, &news->mail);
}

void fuse_op_rename_over(struct fuse_op *op)
{
    struct list_node ready;

    if (op->renaming == NULL)
        return;
    list_init(&ready);
    rename_barrier_end(op->loop->mount->rename_barrier, &op->renaming->dirs, &ready);
    LIST_FOREACH_SAFE(link, &ready) {
        struct rename_waiter *w = container_of(link, struct rename_waiter, link);
        struct recall_news *news = container_of(w, struct recall_news, waiter);

        list_remove(link);
        news->has_waited = true;
        env_mailbox_post(&news->loop->env, &news->mail);
    }
}
