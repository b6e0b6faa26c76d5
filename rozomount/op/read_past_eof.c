/*
 * read_past_eof.c - delay of READs that begin past the end of a file, while the kernel
 * takes the file for longer.
 *
 * In:     answers of the file layer to READs, on the owner of the inode.
 * Out:    the READ, done once more.
 * Keeps:  when another mount has truncated a file, a reader here ends at the new end. The
 *         kernel learns the end from the first short answer; READs that it sent before it
 *         took that answer tell it nothing more. It sends READs for all that it wants at
 *         once, except for pages that a write filled in part: those it reads when its
 *         reader comes to them. So a READ past the end may be answered "the file ends
 *         here" before the READ that reaches the true end; then zeros would be read from
 *         the true end on. It waits until the other is answered, and some ms longer. Then
 *         it is answered with zeros, which do not move the end and which no program sees.
 *         If the kernel may have ignored the other answer, since a notice overtook it,
 *         programs would see them: then it waits once more and is answered as it is.
 * Yours:  the times. Only the first reader past the end of a truncated file waits for
 *         them.
 */
#include "rozomount/op/read_past_eof.h"

#include "rozomount/op/fuse_op.h"
#include "rozomount/op/handle.h"
#include "rozomount/op/mount.h"
#include "rozomount/op/recall_inval.h"
#include "rozomount/op/token_recall.h"

enum {
    COMES_MS = 20, /* from one READ of a program to its next */
    TAKEN_MS = 6,  /* from our answer until its reader has woken up and taken it */
    LOOK_MS = 1,   /* extra time to read the device, in case this loop was slow */
};

static struct read_op *read_op_at(const struct list_node *link)
{
    return (struct read_op *)container_of(link, struct fuse_op, token.link);
}

static struct read_op *read_op_of(struct env_timer *pause)
{
    return (struct read_op *)container_of(pause, struct fuse_op, pause);
}

static void past_eof_go_on(struct read_op *r)
{
    env_timer_stop(&r->op.loop->env.env, &r->op.pause);
    list_remove(&r->op.token.link);
    fuse_op_next(&r->op);
}

static bool any_comes_to(const struct list_node *ops, uint64_t end)
{
    LIST_FOREACH(link, ops) {
        const struct token_use *t = container_of(link, struct token_use, link);

        if (t->pages == PAGES_FILL && t->from <= end && end < t->to)
            return true;
    }
    return false;
}

static bool end_will_be_told(const struct node *node)
{
    uint64_t end = file_size(node->file);

    return any_comes_to(&node->reading, end) || any_comes_to(&node->token_waiters, end);
}

static void past_eof_wait(struct read_op *r);

static void on_looked(struct env_timer *timer)
{
    struct read_op *r = read_op_of(timer);

    if (r->eof == EOF_WAIT && end_will_be_told(r->op.node)) {
        past_eof_wait(r);
        return;
    }
    r->eof = r->eof == EOF_WAIT ? EOF_WAITED : EOF_WAITED_TAKEN;
    past_eof_go_on(r);
}

static void on_comes(struct env_timer *timer)
{
    struct fuse_op *op = container_of(timer, struct fuse_op, pause);

    env_timer_init(&op->pause, on_looked);
    env_timer_start(&op->loop->env.env, &op->pause, LOOK_MS);
}

static void past_eof_wait(struct read_op *r)
{
    struct env *env = &r->op.loop->env.env;

    env_timer_stop(env, &r->op.pause);
    env_timer_init(&r->op.pause, on_comes);
    env_timer_start(env, &r->op.pause, r->eof == EOF_WAIT_TAKEN ? TAKEN_MS : COMES_MS);
}

static void past_eof_interrupted(struct fuse_op *op)
{
    env_timer_stop(&op->loop->env.env, &op->pause);
    list_remove(&op->token.link);
    fuse_op_reply_err(op, -EINTR);
}

bool read_past_eof_waits(struct read_op *r)
{
    struct fuse_op *op = &r->op;
    struct mount *m = op->loop->mount;

    if (op->token.pages != PAGES_FILL || r->eof >= EOF_WAITED || m->notify == NULL ||
        !atomic_load(&m->was_recalled))
        return false;
    fuse_op_token_done(op);
    list_add_tail(&op->node->past_eof, &op->token.link);
    env_timer_init(&op->pause, NULL);
    past_eof_wait(r);
    fuse_op_wait_interruptibly(op, past_eof_interrupted);
    return true;
}

void node_eof_answered(struct node *node, bool is_taken)
{
    LIST_FOREACH(link, &node->past_eof) {
        struct read_op *r = read_op_at(link);

        if (is_taken)
            r->eof = EOF_WAIT_TAKEN;
        past_eof_wait(r);
    }
}

void node_past_eof_resume(struct node *node)
{
    while (!list_is_empty(&node->past_eof)) {
        struct read_op *r = read_op_at(node->past_eof.next);

        r->eof = EOF_WAIT; /* the next token may bring a new end */
        past_eof_go_on(r);
    }
}
