/*
 * read_past_eof.c - READs that begin behind the end of a file which the kernel takes for longer: they wait.
 *
 * In:     answers of the file layer to READs, on the owner of the inode. Out: the READ, done once more.
 * Keeps:  when another mount has cut a file, a reader here ends where it ends. The kernel hears of that by the first answer to
 *         a READ that is short; what it had asked before it took that one tells it nothing any more. It asks for all that it
 *         wants at once, but for pages of which a write left a piece: for those when its reader comes to them. So there may be a
 *         READ that begins behind the end and says "the file ends here": taken before the answer to the one that comes to the
 *         true end, it would have zeros read from there on. It waits until that one is answered, and for some time to come. Then
 *         it is answered with zeros, which say nothing of the end, and nobody looks at them.
 * Yours:  the times. Nobody waits for them but who first reads behind the end of a file that was cut.
 */
#include "rozomount/op/read_past_eof.h"

#include "rozomount/op/fuse_op.h"
#include "rozomount/op/handle.h"
#include "rozomount/op/mount.h"
#include "rozomount/op/recall_inval.h"
#include "rozomount/op/token_recall.h"

enum {
    COMES_MS = 20, /* from one READ of a program to its next */
    TAKEN_MS = 6,  /* from our answer until its reader has been woken and took it */
    LOOK_MS = 1,   /* what the kernel has for us is read meanwhile, if we were late */
};

static void past_eof_go_on(struct fuse_op *op)
{
    env_timer_stop(&op->loop->env.env, &op->pause);
    fuse_op_wait_over(op);
    list_remove(&op->token_link);
    op->step(op);
}

static bool any_comes_to(const struct list_node *ops, uint64_t end)
{
    LIST_FOREACH(link, ops) {
        const struct fuse_op *op = container_of(link, struct fuse_op, token_link);

        if (op->fills_pages && op->offset <= end && end < op->offset + op->size)
            return true;
    }
    return false;
}

static bool end_will_be_told(const struct node *node)
{
    uint64_t end = file_size(node->file);

    return any_comes_to(&node->reading, end) || any_comes_to(&node->token_waiters, end);
}

static void past_eof_wait(struct fuse_op *op);

static void on_looked(struct env_timer *timer)
{
    struct fuse_op *op = container_of(timer, struct fuse_op, pause);

    if (!op->end_is_told && end_will_be_told(op->node)) {
        past_eof_wait(op);
        return;
    }
    op->has_waited = true;
    past_eof_go_on(op);
}

static void on_comes(struct env_timer *timer)
{
    struct fuse_op *op = container_of(timer, struct fuse_op, pause);

    env_timer_init(&op->pause, on_looked);
    env_timer_start(&op->loop->env.env, &op->pause, LOOK_MS);
}

static void past_eof_wait(struct fuse_op *op)
{
    struct env *env = &op->loop->env.env;

    env_timer_stop(env, &op->pause);
    env_timer_init(&op->pause, on_comes);
    env_timer_start(env, &op->pause, op->end_is_told ? TAKEN_MS : COMES_MS);
}

static void past_eof_interrupted(struct fuse_op *op)
{
    env_timer_stop(&op->loop->env.env, &op->pause);
    list_remove(&op->token_link);
    fuse_op_reply_err(op, -EINTR);
}

bool read_past_eof_waits(struct fuse_op *op, void (*again)(struct fuse_op *op))
{
    struct mount *m = op->loop->mount;

    if (!op->fills_pages || op->has_waited || m->notify == NULL ||
        !atomic_load(&m->was_recalled))
        return false;
    op->step = again;
    fuse_op_token_done(op);
    list_add_tail(&op->node->past_eof, &op->token_link);
    env_timer_init(&op->pause, NULL);
    past_eof_wait(op);
    fuse_op_wait_interruptibly(op, past_eof_interrupted);
    return true;
}

void node_eof_answered(struct node *node)
{
    LIST_FOREACH(link, &node->past_eof) {
        struct fuse_op *op = container_of(link, struct fuse_op, token_link);

        op->end_is_told = true;
        past_eof_wait(op);
    }
}

void node_past_eof_resume(struct node *node)
{
    while (!list_is_empty(&node->past_eof)) {
        struct fuse_op *op =
            container_of(node->past_eof.next, struct fuse_op, token_link);

        op->end_is_told = false; /* it may be another when it has the token again */
        past_eof_go_on(op);
    }
}
