/*
 * test_read_past_eof.c - READs behind the end of a file that another mount made shorter.
 *
 * Goal: the kernel gets zeros behind the end only when it has surely taken the end, for
 * programs would read them. Method: READs of a mount with one loop, on a virtual clock,
 * in a file without data, for which no storage is asked.
 */
#include <fcntl.h>
#include <stdlib.h>

#include "rozomount/kcache/kernel_notify.h"
#include "rozomount/op/handle.h"
#include "rozomount/ops/fuse_ops.h"
#include "tests/lib/env_virtual.h"
#include "tests/unit/rozomount/fake_notices.h"
#include "tests/unit/unit.h"

enum {
    INO = 42,
    SIZE = 20480,
    BEHIND = 40960, /* offset of a READ behind the end */
    LEN = 24576,    /* bytes of a READ */
    WAIT_MS = 100,  /* more than any READ waits here */
    UNDER_WAY = -1,
};

struct fuse_req {
    struct loop *loop;
    int got; /* bytes of the answer, or UNDER_WAY */
};

struct fixture {
    struct env_virtual env;
    struct options opt;
    struct mount *mount;
    struct loop *loop;
    struct node *node;
    struct handle handle;
    struct notify_job *drop; /* one that the kernel has not done yet; NULL: none */
};
static struct fixture fx;

/* ---- the clock of the loop ---- */

static uint64_t loop_now_ns(struct env *env)
{
    (void)env;
    return env_now_ns(&fx.env.env);
}

static int64_t loop_wall_ns(struct env *env)
{
    (void)env;
    return env_wall_ns(&fx.env.env);
}

static void loop_timer_start(struct env *env, struct env_timer *timer, uint64_t after_ms)
{
    (void)env;
    env_timer_start(&fx.env.env, timer, after_ms);
}

static void loop_timer_stop(struct env *env, struct env_timer *timer)
{
    (void)env;
    env_timer_stop(&fx.env.env, timer);
}

static void loop_post(struct env *env, struct env_task *task)
{
    (void)env;
    env_post(&fx.env.env, task);
}

static const struct env_ops loop_ops = {
    .now_ns = loop_now_ns,
    .wall_ns = loop_wall_ns,
    .timer_start = loop_timer_start,
    .timer_stop = loop_timer_stop,
    .post = loop_post,
};

/* ---- the kernel ---- */

void kernel_notify_submit(struct kernel_notify *r, struct notify_job *job)
{
    (void)r;
    assert_null(fx.drop);
    fx.drop = job;
}

void *fuse_req_userdata(fuse_req_t req)
{
    return req->loop;
}

int fuse_reply_iov(fuse_req_t req, const struct iovec *iov, int count)
{
    assert_int_equal(req->got, UNDER_WAY);
    req->got = 0;
    for (int i = 0; i < count; i++)
        req->got += (int)iov[i].iov_len;
    return 0;
}

int fuse_reply_buf(fuse_req_t req, const char *buf, size_t size)
{
    (void)buf;
    assert_int_equal(req->got, UNDER_WAY);
    req->got = (int)size;
    return 0;
}

/* Functions that no operation of this test calls. */

bool kernel_notify_can_age(const struct kernel_notify *r)
{
    (void)r;
    abort();
}

bool kernel_notify_age(const struct kernel_notify *r)
{
    (void)r;
    abort();
}

bool kernel_notify_can_prune(const struct kernel_notify *r)
{
    (void)r;
    abort();
}

void kernel_notify_prune(const struct kernel_notify *r, uint64_t ino)
{
    (void)r;
    (void)ino;
    abort();
}

bool kernel_notify_is_known(const struct kernel_notify *r, uint64_t ino)
{
    (void)r;
    (void)ino;
    abort();
}

const struct fuse_ctx *fuse_req_ctx(fuse_req_t req)
{
    (void)req;
    abort();
}

int fuse_req_getgroups(fuse_req_t req, int size, gid_t list[])
{
    (void)req;
    (void)size;
    (void)list;
    abort();
}

int fuse_reply_err(fuse_req_t req, int err)
{
    (void)req;
    (void)err;
    abort();
}

int fuse_reply_lseek(fuse_req_t req, off_t off)
{
    (void)req;
    (void)off;
    abort();
}

/* ---- the mount ---- */

static int setup(void **state)
{
    const struct held_room held_room = { 1, 1 };
    const struct held_handle held = { .ino = INO, .kind = HELD_FILE };
    struct err err = { 0 };
    static const struct storcli_config storcli = { .read_deadline_ms = 1000,
                                                   .write_deadline_ms = 1000 };
    static const struct storcli_peers no_peers = { 0 };
    struct nodes_config nodes = { 0 };
    struct md_entry entry = { .has_target = true, .file.size = SIZE };

    (void)state;
    fx = (struct fixture){ 0 };
    env_virtual_init(&fx.env, 1);
    fx.loop = calloc(1, sizeof(*fx.loop));
    fx.mount = calloc(1, sizeof(*fx.mount));
    assert_true(fx.loop != NULL && fx.mount != NULL);
    fx.loop->env.env.ops = &loop_ops;
    fx.loop->mount = fx.mount;
    fuse_op_init_signals(fx.loop);
    fx.mount->opt = &fx.opt;
    fx.mount->loops = fx.loop;
    fx.mount->n_loops = 1;
    fx.mount->hold.link = -1;
    fx.mount->tokens = token_cache_new();
    fx.mount->atimes = atimes_new(ATIMES_RELATIVE, false);
    fx.mount->notify = (struct kernel_notify *)&fx; /* kernel_notify_submit() is ours */
    fx.mount->was_recalled = true;
    assert_int_equal(storcli_new(&fx.env.env, &storcli, &no_peers, &fx.loop->cli), 0);
    assert_int_equal(file_pool_new(0, &fx.loop->pool), 0);
    nodes.file.pool = fx.loop->pool;
    nodes.tokens = fx.mount->tokens;
    nodes_init(&fx.loop->nodes, &fx.env.env, &fx.loop->md, fx.loop->cli, &nodes);
    fx.node = node_get(&fx.loop->nodes, INO);
    entry.attr.ino = INO;
    entry.attr.mode = S_IFREG | 0644;
    entry.attr.size = SIZE;
    entry.target.id.ino = INO;
    entry.target.codec = CODEC_MOJETTE;
    entry.target.block_bytes = 4096;
    entry.target.n_storages = 4;
    for (unsigned i = 0; i < 4; i++)
        entry.target.storages[i] = i + 1;
    assert_int_equal(node_adopt(fx.node, &entry, false), 0);
    fx.handle.node = fx.node;
    assert_int_equal(held_open(-1, &held_room, &fx.mount->held, &err), 0);
    fx.handle.number = held_add(fx.mount->held, &held, &fx.handle);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    assert_int_equal(fx.mount->n_ops, 0);
    node_put(fx.node);
    env_virtual_advance_ms(&fx.env, WAIT_MS);
    if (fx.drop != NULL)
        fx.drop->mail.fn(&fx.drop->mail);
    while (fx.loop->free_ops != NULL) {
        struct fuse_op *op = fx.loop->free_ops;

        fx.loop->free_ops = op->memory;
        free(op);
    }
    nodes_close(&fx.loop->nodes);
    file_pool_free(fx.loop->pool);
    storcli_free(fx.loop->cli);
    atimes_free(fx.mount->atimes);
    held_close(fx.mount->held);
    token_cache_free(fx.mount->tokens);
    free(fx.mount);
    free(fx.loop);
    env_virtual_close(&fx.env);
    return 0;
}

static void reads(struct fuse_req *req, off_t offset)
{
    struct fuse_file_info fi = { .fh = fx.handle.number };

    *req = (struct fuse_req){ .loop = fx.loop, .got = UNDER_WAY };
    fx.loop->current_unique++;
    fs_read(req, INO, LEN, offset, &fi);
    env_virtual_run_posted(&fx.env);
}

/* The kernel has ended the file: nobody reads the zeros, and they do not end it again. */
static void test_zeros_follow_an_end_that_was_taken(void **state)
{
    struct fuse_req behind, across;

    (void)state;
    reads(&behind, BEHIND);
    assert_int_equal(behind.got, UNDER_WAY);
    reads(&across, 0);
    assert_int_equal(across.got, SIZE);
    assert_int_equal(behind.got, UNDER_WAY); /* the reader has to wake up */
    env_virtual_advance_ms(&fx.env, WAIT_MS);
    assert_int_equal(behind.got, LEN);
    assert_null(fx.drop);
}

/* A notice to the kernel overtook the READ that comes to the end: the kernel ignores the
 * end, and so it must learn from the READ behind that there is nothing. */
static void test_no_zeros_follow_an_end_that_was_overtaken(void **state)
{
    struct fuse_req behind, across;

    (void)state;
    reads(&behind, BEHIND);
    fx.node->went_round_ns = env_now_ns(&fx.env.env);
    reads(&across, 0);
    assert_int_equal(across.got, SIZE);
    assert_non_null(fx.drop); /* the kernel asks again */
    assert_int_equal(behind.got, UNDER_WAY);
    env_virtual_advance_ms(&fx.env, WAIT_MS);
    assert_int_equal(behind.got, 0);
}

/* ... but zeros may follow when a later READ has brought the end. */
static void test_zeros_follow_the_next_end(void **state)
{
    struct fuse_req behind, across;

    (void)state;
    reads(&behind, BEHIND);
    fx.node->went_round_ns = env_now_ns(&fx.env.env);
    reads(&across, 0);
    fx.node->went_round_ns = 0;
    reads(&across, 0);
    env_virtual_advance_ms(&fx.env, WAIT_MS);
    assert_int_equal(behind.got, LEN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_zeros_follow_an_end_that_was_taken, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_no_zeros_follow_an_end_that_was_overtaken,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_zeros_follow_the_next_end, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
