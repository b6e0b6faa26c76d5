/*
 * node.c - inodes in use: from the first pin to the last, and their reports to exportd.
 *
 * In:     node_* by the operations of one loop; struct file_meta by storcli's files.
 * Out:    md calls (OPEN for new epochs, WROTE, TRUNCATED, CLOSE),
 *         file_open/refresh/close.
 * Keeps:  references are given back only after the file is written out and reported.
 * Yours:  SEEN_MAX, KEPT_MAX, CLOSES_MAX, GATHER_MS.
 */
#include "rozomount/inode/node.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "rozomount/inode/atimes.h"
#include "rozomount/options/xalloc.h"

enum {
    STAT_BLOCK_BYTES = 512,   /* unit of st_blocks */
    PRIVILEGES_NS = NS_PER_S, /* as long as the kernel caches attributes */
    GATHER_MS = 10,           /* time that a close waits for others */
};

static void on_gather_timer(struct env_timer *timer);

/* State of an inode that is not in use, to check kernel pages at the next open. */
struct closed_node {
    uint64_t ino;
    struct seen seen;
    UT_hash_handle hh; /* in order of closing */
};

void nodes_init(struct nodes *nodes, struct env *env, struct md_client *md,
                struct storcli *cli, const struct nodes_config *config)
{
    memset(nodes, 0, sizeof(*nodes));
    nodes->env = env;
    nodes->md = md;
    nodes->cli = cli;
    nodes->config = *config;
    list_init(&nodes->kept);
    env_timer_init(&nodes->gather_timer, on_gather_timer);
}

static void closed_forget_all(struct nodes *nodes)
{
    struct closed_node *c, *next;

    HASH_ITER(hh, nodes->closed, c, next)
    {
        HASH_DEL(nodes->closed, c);
        free(c);
    }
}

void nodes_close(struct nodes *nodes)
{
    assert(nodes->by_ino == NULL);
    closed_forget_all(nodes);
}

static void on_idle_task(struct env_task *task)
{
    struct nodes *nodes = container_of(task, struct nodes, idle_task);
    void (*idle)(void *arg) = nodes->idle;

    if (idle == NULL || nodes->by_ino != NULL || nodes->n_giving_back != 0)
        return;
    nodes->idle = NULL;
    idle(nodes->idle_arg);
}

static void nodes_check_idle(struct nodes *nodes)
{
    if (nodes->idle != NULL && nodes->by_ino == NULL && nodes->n_giving_back == 0)
        env_post(nodes->env, &nodes->idle_task);
}

void nodes_when_idle(struct nodes *nodes, void (*idle)(void *arg), void *arg)
{
    nodes->idle = idle;
    nodes->idle_arg = arg;
    nodes->idle_task.fn = on_idle_task;
    nodes_tell_closes(nodes);
    nodes_check_idle(nodes);
}

void nodes_learn_losses(struct nodes *nodes, uint32_t losses)
{
    struct node *node, *next;

    if (losses == nodes->losses)
        return;
    nodes->losses = losses;
    unsynced_inodes_lost(nodes->config.unsynced, losses);
    closed_forget_all(nodes);
    HASH_ITER(hh, nodes->by_ino, node, next)
    {
        /* after the loss exportd may count from a smaller number */
        node->seen = (struct seen){ 0 };
        node->flags_change = node->times_change = 0;
        if (node->file != NULL)
            file_report_again(node->file);
    }
}

/* ---- validity of the kernel's pages ---- */

static void seen_set(struct seen *seen, const struct md_attr *attr)
{
    *seen = (struct seen){ .valid = true, .change = attr->change };
}

static void closed_remember(struct nodes *nodes, uint64_t ino, const struct seen *seen)
{
    struct closed_node *c;

    if (!seen->valid)
        return;
    if (HASH_COUNT(nodes->closed) >= SEEN_MAX) {
        c = nodes->closed; /* the oldest one */
        HASH_DEL(nodes->closed, c);
    } else {
        c = xzalloc(sizeof(*c));
    }
    c->ino = ino;
    c->seen = *seen;
    hash_add(nodes->closed, ino, c);
}

static void closed_take(struct nodes *nodes, uint64_t ino, struct seen *seen)
{
    struct closed_node *c = hash_find(nodes->closed, ino);

    if (c == NULL)
        return;
    *seen = c->seen;
    HASH_DEL(nodes->closed, c);
    free(c);
}

/* Handles a change by another mount: the kernel's pages and our blocks are outdated. */
static void node_foreign_change(struct node *node, const struct md_attr *attr)
{
    node->mode_until_ns = node->no_capability_until_ns = 0;
    seen_set(&node->seen, attr);
    if (node->file != NULL && !node->closing)
        file_drop_cache(node->file);
    /* With tokens, the kernel has dropped its pages before others could change the
     * file. */
    if (node->nodes->config.invalidate != NULL &&
        !(node->nodes->config.tokens != NULL &&
          token_cache_are_given(node->nodes->config.tokens)))
        node->nodes->config.invalidate(node->nodes->config.arg, node->ino);
}

void node_note_mode(struct node *node, const struct md_attr *attr)
{
    node->mode = attr->mode;
    node->gid = attr->gid;
    node_renew_mode(node);
    if (attr->change < node->flags_change) /* an older answer */
        return;
    node->file_flags = attr->file_flags;
    node->flags_change = attr->change;
}

void node_renew_mode(struct node *node)
{
    node->mode_until_ns = env_now_ns(node->nodes->env) + PRIVILEGES_NS;
}

/* ---- the kernel's sizes ---- */

static struct kernel_size size_said(const struct md_attr *attr)
{
    return (struct kernel_size){ .ino = attr->ino,
                                 .size = attr->size,
                                 .change = attr->change };
}

static void node_note_stale(struct node *node, bool stale)
{
    if (stale && !node->stale)
        log_error(
            "inode %llu: another mount has changed its size; with writeback_cache the "
            "kernel does not learn that: reads and writes fail until the kernel "
            "drops the inode from its cache (or the export is mounted again)",
            (unsigned long long)node->ino);
    node->stale |= stale;
}

bool node_is_stale(struct node *node, const struct md_attr *attr)
{
    const struct kernel_size said = size_said(attr);

    if (node->nodes->config.sizes != NULL && node->n_changing == 0)
        node_note_stale(node, kernel_sizes_is_stale(node->nodes->config.sizes, &said));
    return node->stale;
}

void node_size_set(struct node *node, const struct md_attr *attr)
{
    const struct kernel_size said = size_said(attr);

    if (node->nodes->config.sizes != NULL)
        kernel_sizes_own(node->nodes->config.sizes, &said);
}

/* Notes the size after a change of ours. attr NULL: outcome unknown. */
static void node_note_own_size(struct node *node, const struct md_attr *attr)
{
    struct kernel_sizes *sizes = node->nodes->config.sizes;
    struct kernel_size said;

    if (sizes == NULL)
        return;
    if (attr == NULL) {
        kernel_sizes_unsure(sizes, node->ino);
    } else if (node->n_changing == 0) { /* if not, the last answer decides */
        said = size_said(attr);
        node_note_stale(
            node,
            kernel_sizes_wrote(sizes, &said,
                               node->file == NULL ? UINT64_MAX : file_size(node->file)));
    }
}

/* ---- changes ---- */

static void node_note_time(struct node *node, const struct md_attr *attr)
{
    if (attr->ctime_ns > node->changed_ns)
        node->changed_ns = attr->ctime_ns;
    if (attr->change < node->times_change) /* an older answer */
        return;
    node->times = (struct inode_times){ attr->atime_ns, attr->mtime_ns, attr->ctime_ns };
    node->times_change = attr->change;
}

/* Returns the time of a write. */
static int64_t on_meta_clock(void *arg)
{
    struct node *node = arg;

    node->changed_ns = time_after_change(env_wall_ns(node->nodes->env), node->changed_ns);
    return node->changed_ns;
}

void node_change_sent(struct node *node)
{
    node->n_changing++;
}

void node_change_answered(struct node *node, const struct md_attr *attr)
{
    assert(node->n_changing != 0);
    node->n_changing--;
    node_note_own_size(node, attr);
    if (attr == NULL) { /* outcome unknown */
        node->mode_until_ns = 0;
        node->seen.valid = false;
        return;
    }
    node_note_mode(node, attr);
    node_note_time(node, attr);
    if (attr->change <= node->seen.change)
        return;
    if (!node->seen.valid) /* others may have changed it, too */
        node->seen.change = attr->change;
    else if (attr->change == node->seen.change + 1)
        seen_set(&node->seen, attr);
    else
        node_foreign_change(node, attr);
}

/* Refreshes the size of the open file: reads must reach the end that exportd knows. */
static void node_note_size(struct node *node, const struct md_attr *attr,
                           enum file_size_age age)
{
    struct file_attr file = { .size = attr->size,
                              .size_age = age,
                              .has_data = attr->has_data };

    if (node->file != NULL && !node->closing)
        file_refresh(node->file, NULL, &file);
}

void node_note_nlink(struct node *node, const struct md_attr *attr)
{
    if (attr->nlink == 0 && node->names == NODE_NAMED)
        node->names = NODE_LOST_A_NAME;
}

void node_note_attr(struct node *node, const struct md_attr *attr)
{
    node_note_time(node, attr);
    if (attr->nlink != 0 && node->names == NODE_GONE) /* an O_TMPFILE has got a name */
        node->names = NODE_LOST_A_NAME;
    if (attr->change < node->seen.change)
        return;
    if (node->n_changing != 0) { /* the token may come with this answer alone */
        node_note_size(node, attr, SIZE_PERHAPS_OLD);
        return;
    }
    if (!node->seen.valid || attr->change > node->seen.change)
        node_foreign_change(node, attr);
    node_is_stale(node, attr);
    /* needed even for a known change: it may have come with an answer to a change of
     * ours when the file could not adopt the size */
    node_note_size(node, attr, SIZE_NEW);
}

bool node_cache_is_fresh(struct node *node, const struct md_attr *attr)
{
    bool fresh = node->seen.valid && attr->change == node->seen.change;

    node_note_time(node, attr);
    /* a change of ours is under way; its answer decides */
    if (node->n_changing != 0 && node->seen.valid)
        return true;
    if (!fresh && node->file != NULL && !node->closing)
        file_drop_cache(node->file);
    if (attr->change < node->seen.change)
        return false; /* overtaken by a later answer */
    seen_set(&node->seen, attr);
    return fresh;
}

void node_note_no_capability(struct node *node)
{
    node->no_capability_until_ns = env_now_ns(node->nodes->env) + PRIVILEGES_NS;
}

/* Puts times of writes here over those from exportd. */
static void times_overlay(const struct node *node, struct inode_times *t)
{
    int64_t mtime_ns;

    if (node->file == NULL || node->closing)
        return;
    mtime_ns = file_mtime_ns(node->file);
    if (mtime_ns == 0)
        return;
    t->mtime_ns = mtime_ns;
    if (t->ctime_ns < mtime_ns)
        t->ctime_ns = mtime_ns;
}

bool node_note_read(struct node *node, struct atimes *atimes)
{
    struct token_cache *tokens = node->nodes->config.tokens;
    struct inode_times t = node->times;
    bool others;

    if (!atimes_counts(atimes, false))
        return false;
    others = tokens != NULL && token_cache_mode(tokens, node->ino) == TOKEN_RANGES;
    times_overlay(node, &t);
    if (!atimes_note(atimes, node->ino, env_wall_ns(node->nodes->env),
                     node->times_change == 0 ? NULL : &t, others))
        return false;
    if (others) /* exportd decides */
        return true;
    node->times.atime_ns = t.atime_ns;
    if (tokens != NULL)
        tokens_note_atime(tokens, node->ino, t.atime_ns);
    return true;
}

void node_overlay(const struct node *node, struct stat *st)
{
    int64_t mtime_ns;
    uint64_t reported;

    if (node->file == NULL || node->closing)
        return;
    st->st_size = (off_t)file_size(node->file);
    reported = (uint64_t)st->st_blocks * STAT_BLOCK_BYTES;
    st->st_blocks = (blkcnt_t)(file_allocated(node->file, reported) / STAT_BLOCK_BYTES);
    /* The kernel may have data of it; programs take 0 blocks for a hole. */
    if (node->nodes->config.sizes != NULL && st->st_blocks == 0)
        st->st_blocks = 1;
    mtime_ns = file_mtime_ns(node->file);
    if (mtime_ns != 0) {
        struct timespec ts = wide_ns_to_timespec(mtime_ns);

        st->st_mtim = ts;
        if (ts.tv_sec > st->st_ctim.tv_sec ||
            (ts.tv_sec == st->st_ctim.tv_sec && ts.tv_nsec > st->st_ctim.tv_nsec))
            st->st_ctim = ts;
    }
}

/* ---- requests of the file layer to exportd ---- */

/* Drops kept attributes, so that the kernel's next request goes to exportd. */
static void node_forget_attr(struct node *node)
{
    if (node->nodes->config.tokens != NULL)
        token_cache_forget_attr(node->nodes->config.tokens, node->ino, 0);
}

/* Returns a number that identifies the exclusive token held; 0: none is held. */
static uint64_t exclusive_no(const struct node *node)
{
    struct token_cache *t = node->nodes->config.tokens;

    return t != NULL && token_cache_mode(t, node->ino) == TOKEN_EXCLUSIVE
               ? node->lowered + 1
               : 0;
}

bool node_is_durable(const struct node *node)
{
    return node->durable_no != 0 && node->durable_no == exclusive_no(node) &&
           unsynced_inodes_is_empty(node->nodes->config.unsynced);
}

/* A call of a file to exportd. */
struct meta_op {
    struct md_call call;
    struct node *node; /* lives until its file is closed */
    struct file_meta_call *meta;
    uint64_t sync_no;     /* durable WROTE: node->n_syncs when it was sent */
    uint64_t unstable_no; /* answered when durable: number of unsynced_inodes when sent */
    uint64_t durable_no;  /* exclusive_no() when it was sent; 0: none */
    bool sync;
};

static void on_changed(struct md_call *call, int rc);

static bool has_lost_token(const struct node *node)
{
    struct token_cache *t = node->nodes->config.tokens;

    return t != NULL && token_cache_is_lost(t, node->ino);
}

/*
 * Stops a report that waits for the next session if the token of its data is lost: others
 * may have written there since, and exportd cannot know.
 */
static bool report_may_go(const struct md_call *call)
{
    return !has_lost_token(((const struct meta_op *)call->arg)->node);
}

static void meta_send(struct node *node, struct file_meta_call *meta, uint16_t op,
                      bool sync, const ProtobufCMessage *msg, md_done_cb *done)
{
    struct meta_op *m = xzalloc(sizeof(*m));

    m->node = node;
    m->meta = meta;
    m->sync_no = sync ? node->n_syncs : 0;
    m->sync = sync || op == ROZO__OP__MD_TRUNCATED;
    m->durable_no = sync ? exclusive_no(node) : 0;
    m->unstable_no = m->sync ? unsynced_inodes_begin(node->nodes->config.unsynced) : 0;
    md_client_send(node->nodes->md, &m->call, op, msg, 0, done, m);
    if (done == on_changed)
        m->call.may_go = report_may_go;
}

static void on_renewed(struct md_call *call, int rc)
{
    struct meta_op *m = call->arg;
    struct file_meta_call *meta = m->meta;
    struct md_entry entry;

    if (rc == 0)
        rc = md_decode_open(call, &entry);
    if (rc == 0 && !entry.has_target)
        rc = -EBADMSG;
    if (rc == 0) {
        meta->attr = entry.file;
        meta->target = entry.target;
    }
    free(m);
    meta->done(meta, md_client_user_errno(rc));
    if (rc == 0)
        md_entry_drop(&entry);
}

static void open_again(struct node *node, struct file_meta_call *meta, bool write)
{
    Rozo__MdOpenReq req = ROZO__MD_OPEN_REQ__INIT;

    req.ino = node->ino;
    req.write = write;
    req.no_reference = true;
    req.moved = meta->moved;
    req.dist_generation = meta->dist_generation;
    meta_send(node, meta, ROZO__OP__MD_OPEN, false, &req.base, on_renewed);
}

static void meta_renew(void *arg, struct file_meta_call *meta)
{
    open_again(arg, meta, true);
}

static void meta_load(void *arg, struct file_meta_call *meta)
{
    open_again(arg, meta, false);
}

/* Handles answers of WROTE and TRUNCATED. */
static void on_changed(struct md_call *call, int rc)
{
    struct meta_op *m = call->arg;
    struct file_meta_call *meta = m->meta;
    struct node *node = m->node;
    struct md_entry entry;

    if (rc == 0)
        rc = md_decode_entry(call, &entry);
    if (rc == 0 && has_lost_token(node)) { /* sent before it was known here */
        md_entry_drop(&entry);
        rc = -EIO;
    }
    node_forget_attr(node); /* kept attributes lack this change */
    node_change_answered(node, rc == 0 ? &entry.attr : NULL);
    if (rc == 0) {
        nodes_learn_losses(node->nodes, entry.losses);
        meta->has_size = true;
        meta->is_cut = entry.cut;
        meta->attr.size = entry.attr.size;
        md_entry_drop(&entry);
    }
    if (rc == 0 && m->sync)
        unsynced_inodes_synced(node->nodes->config.unsynced, m->unstable_no);
    if (rc == 0 && m->sync_no > node->synced_no)
        node->synced_no = m->sync_no;
    if (rc == 0 && m->durable_no != 0)
        node->durable_no = m->durable_no;
    free(m);
    meta->done(meta, rc == -ROZO_ESTALE_VERSION ? -ESTALE : md_client_user_errno(rc));
}

static void meta_wrote(void *arg, struct file_meta_call *meta, uint64_t size,
                       uint32_t epoch, bool has_data, int64_t mtime_ns, int64_t atime_ns,
                       bool sync)
{
    struct node *node = arg;
    Rozo__MdWroteReq req = ROZO__MD_WROTE_REQ__INIT;

    req.ino = node->ino;
    req.size = size;
    req.epoch = epoch;
    req.has_data = has_data;
    req.mtime_ns = mtime_ns;
    req.atime_ns = atime_ns;
    req.sync = sync;
    req.reports_blocks = meta->reports_blocks;
    req.blocks_counted = meta->blocks_counted;
    req.allocated =
        (ProtobufCBinaryData){ meta->allocated_len, (uint8_t *)meta->allocated };
    req.freed = (ProtobufCBinaryData){ meta->freed_len, (uint8_t *)meta->freed };
    req.inline_version = meta->inline_version;
    req.inline_data =
        (ProtobufCBinaryData){ meta->inline_len, (uint8_t *)meta->inline_data };
    node_change_sent(node);
    meta_send(node, meta, ROZO__OP__MD_WROTE, sync, &req.base, on_changed);
}

static void meta_truncated(void *arg, struct file_meta_call *meta, uint64_t version)
{
    struct node *node = arg;
    Rozo__MdTruncatedReq req = ROZO__MD_TRUNCATED_REQ__INIT;

    req.ino = node->ino;
    req.version = version;
    node_change_sent(node);
    meta_send(node, meta, ROZO__OP__MD_TRUNCATED, false, &req.base, on_changed);
}

/* ---- from the first pin to the last ---- */

static bool is_kept(const struct node *node)
{
    return !list_is_empty(&node->kept_link);
}

static void node_count(struct node *node, int change)
{
    const struct nodes_config *config = &node->nodes->config;

    if (config->count != NULL)
        config->count(config->arg, node->ino, change);
}

static void node_count_kept(struct node *node, int change)
{
    const struct nodes_config *config = &node->nodes->config;

    if (config->count_kept != NULL)
        config->count_kept(config->arg, node->ino, change);
}

struct node *node_find(struct nodes *nodes, uint64_t ino)
{
    return hash_find(nodes->by_ino, ino);
}

void node_pin(struct node *node)
{
    if (is_kept(node) && node->n_pins == 1)
        node_count(node, 1);
    node->n_pins++;
}

struct node *node_get(struct nodes *nodes, uint64_t ino)
{
    struct node *node = node_find(nodes, ino);

    if (node == NULL) {
        node = xzalloc(sizeof(*node));
        node->ino = ino;
        node->nodes = nodes;
        node->meta = (struct file_meta){
            .renew = meta_renew,
            .load = meta_load,
            .wrote = meta_wrote,
            .truncated = meta_truncated,
            .clock_ns = on_meta_clock,
            .arg = node,
        };
        list_init(&node->waiters);
        list_init(&node->token_waiters);
        list_init(&node->exclusive);
        list_init(&node->reading);
        list_init(&node->past_eof);
        list_init(&node->kept_link);
        closed_take(nodes, ino, &node->seen);
        hash_add(nodes->by_ino, ino, node);
        node_count(node, 1);
    }
    node_pin(node);
    return node;
}

/* References of one inode. */
struct closed_refs {
    uint64_t ino;
    uint32_t n_refs;
    bool unreported, nothing_stored;
};

/* References being given back to exportd, of files that were closed shortly after one
 * another. No operation waits for it. Repeated until exportd has answered: a lost one
 * would keep an unlinked file for ever. */
struct give_back {
    struct md_call call;
    struct nodes *nodes;
    unsigned n;
    struct closed_refs of[CLOSES_MAX];
};

static void give_back_send(struct give_back *g);

static void on_given_back(struct md_call *call, int rc)
{
    struct give_back *g = call->arg;
    struct nodes *nodes = g->nodes;

    if (rc != 0 && !call->answered && nodes->idle == NULL) {
        give_back_send(g);
        return;
    }
    for (unsigned i = 0; i < g->n; i++)
        open_refs_remove(nodes->config.refs, g->of[i].ino, g->of[i].n_refs);
    nodes->n_giving_back--;
    free(g);
    nodes_check_idle(nodes);
}

static void give_back_send(struct give_back *g)
{
    Rozo__MdCloseReq req = ROZO__MD_CLOSE_REQ__INIT;
    Rozo__MdCloseReq__Closed closed[CLOSES_MAX], *more[CLOSES_MAX];

    assert(g->n != 0);
    req.ino = g->of[0].ino;
    req.n_references = g->of[0].n_refs;
    req.unreported = g->of[0].unreported;
    req.nothing_stored = g->of[0].nothing_stored;
    req.n_more = g->n - 1;
    req.more = more;
    for (unsigned i = 0; i < req.n_more; i++) {
        more[i] = &closed[i];
        rozo__md_close_req__closed__init(more[i]);
        more[i]->ino = g->of[i + 1].ino;
        more[i]->n_references = g->of[i + 1].n_refs;
        more[i]->unreported = g->of[i + 1].unreported;
        more[i]->nothing_stored = g->of[i + 1].nothing_stored;
    }
    md_client_send(g->nodes->md, &g->call, ROZO__OP__MD_CLOSE, &req.base, 0,
                   on_given_back, g);
}

void nodes_tell_closes(struct nodes *nodes)
{
    struct give_back *g = nodes->gathering;

    if (g == NULL)
        return;
    nodes->gathering = NULL;
    env_timer_stop(nodes->env, &nodes->gather_timer);
    give_back_send(g);
}

static void on_gather_timer(struct env_timer *timer)
{
    nodes_tell_closes(container_of(timer, struct nodes, gather_timer));
}

static struct give_back *nodes_gather(struct nodes *nodes)
{
    struct give_back *g = nodes->gathering;

    if (g == NULL) {
        g = nodes->gathering = xzalloc(sizeof(*g));
        g->nodes = nodes;
        nodes->n_giving_back++;
        env_timer_start(nodes->env, &nodes->gather_timer, GATHER_MS);
    }
    return g;
}

static void node_give_back(struct node *node)
{
    struct nodes *nodes = node->nodes;
    struct give_back *g;

    if (node->n_refs == 0)
        return;
    g = nodes_gather(nodes);
    g->of[g->n++] = (struct closed_refs){ node->ino, node->n_refs, node->unreported,
                                          !node->has_stored };
    node->n_refs = 0;
    if (g->n == CLOSES_MAX || node->unreported || nodes->idle != NULL)
        nodes_tell_closes(nodes);
}

static void node_free(struct node *node)
{
    struct nodes *nodes = node->nodes;

    assert(list_is_empty(&node->waiters) && node->n_changing == 0);
    assert(list_is_empty(&node->token_waiters) && node->acquiring == NULL);
    node_give_back(node);
    node_forget_attr(node); /* sizes and times that were newer here go with the node */
    if (node->names == NODE_GONE)
        token_cache_inode_gone(nodes->config.tokens, node->ino);
    closed_remember(nodes, node->ino, &node->seen);
    HASH_DEL(nodes->by_ino, node);
    node_count(node, -1);
    free(node);
    nodes_check_idle(nodes);
}

static void on_file_closed(void *arg, int rc)
{
    struct node *node = arg;

    if (rc != 0) {
        node->unreported = true;
        node->nodes->n_lost++;
        log_error("inode %llu: data written earlier could not be stored: %s",
                  (unsigned long long)node->ino, error_text(rc));
    }
    node->closing = false;
    node->file = NULL;
    if (node->n_pins == 0) {
        node_free(node);
        return;
    }
    node_pin(node); /* a waiter may drop the last pin */
    while (!list_is_empty(&node->waiters)) {
        struct node_wait *wait = container_of(node->waiters.next, struct node_wait, link);

        list_remove(&wait->link);
        wait->ready(wait);
    }
    node_put(node);
}

void node_put(struct node *node)
{
    assert(node->n_pins != 0);
    if (--node->n_pins == 1 && is_kept(node))
        node_count(node, -1);
    if (node->n_pins != 0 || node->closing)
        return;
    if (node->file == NULL) {
        node_free(node);
        return;
    }
    node->closing = true;
    node->unreported |= file_has_unreported(node->file);
    node->has_stored |= file_has_stored(node->file);
    file_close(node->file, on_file_closed, node);
}

void node_keep(struct node *node)
{
    struct nodes *nodes = node->nodes;

    assert(node->n_pins != 0 && node->file != NULL && !node->closing);
    if (!is_kept(node)) {
        node->n_pins++;
        nodes->n_kept++;
        node_count_kept(node, 1);
    }
    list_remove(&node->kept_link);
    list_add_tail(&nodes->kept, &node->kept_link);
    if (nodes->n_kept > KEPT_MAX)
        node_let_go(container_of(nodes->kept.next, struct node, kept_link));
}

void node_let_go(struct node *node)
{
    if (!is_kept(node))
        return;
    if (node->n_pins == 1)
        node_count(node, 1); /* counts as in use until closed */
    list_remove(&node->kept_link);
    node->nodes->n_kept--;
    node_count_kept(node, -1);
    node_put(node);
}

void node_let_go_first(struct node *node)
{
    if (is_kept(node) && node->n_pins == 1 && file_is_clean(node->file) &&
        file_epoch(node->file) == 0) {
        node->has_stored |= file_has_stored(node->file);
        node_give_back(node);
    }
    node_let_go(node);
}

void nodes_let_go(struct nodes *nodes)
{
    while (!list_is_empty(&nodes->kept))
        node_let_go(container_of(nodes->kept.next, struct node, kept_link));
}

void node_wait(struct node *node, struct node_wait *wait)
{
    assert(node->closing && node->n_pins != 0);
    list_add_tail(&node->waiters, &wait->link);
}

/* Returns the target of the data. Session 0 leaves the file in its session: operations
 * under a lost token stay in the session that held it, and fail. */
static struct storcli_target node_target(const struct node *node,
                                         const struct md_entry *entry)
{
    struct token_cache *tokens = node->nodes->config.tokens;
    struct storcli_target target = entry->target;

    if (tokens != NULL && token_cache_are_given(tokens) &&
        !token_cache_takes(tokens, node->ino, entry->grant.number))
        target.session = 0;
    return target;
}

int node_adopt(struct node *node, const struct md_entry *entry, bool counted)
{
    struct nodes *nodes = node->nodes;

    assert(node->n_pins != 0 && !node->closing && entry->attr.ino == node->ino);
    if (counted) {
        node->n_refs++;
        open_refs_add(nodes->config.refs, node->ino);
    }
    if (!entry->has_target)
        return -EBADMSG;
    if (node->file != NULL) {
        const struct storcli_target target = node_target(node, entry);
        struct file_attr attr = entry->file;

        if (entry->attr.change < node->seen.change)
            attr.size_age = SIZE_OLD;
        else if (node->n_changing != 0)
            attr.size_age = SIZE_PERHAPS_OLD;
        file_refresh(node->file, &target, &attr);
        return 0;
    }
    return file_open(nodes->env, nodes->cli, &nodes->config.file, &node->meta,
                     &entry->target, &entry->file, &node->file);
}

void node_adopt_granted(struct node *node, const struct md_entry *entry)
{
    const struct storcli_target target = node_target(node, entry);

    assert(node->file != NULL && !node->closing && entry->has_target);
    file_refresh(node->file, &target, &entry->file);
}

void node_count_unanswered(struct node *node)
{
    node->n_refs++;
    open_refs_add(node->nodes->config.refs, node->ino);
}

void node_count_inherited(struct node *node, uint32_t n)
{
    node->n_refs += n;
    for (uint32_t i = 0; i < n; i++)
        open_refs_add(node->nodes->config.refs, node->ino);
}
