/*
 * loop_run.c - one loop: requests from its clone of the FUSE device, and its own
 * channels.
 *
 * In:     the device, readable.
 * Out:    the handlers of fs_*.c, through libfuse.
 * Keeps:  I9: a loop whose request buffers are all in use reads no more until one is
 *         free; the kernel then makes its callers wait.
 */
#include <assert.h>
#include <errno.h>
#include <linux/fuse.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/list.h"
#include "common/base/log.h"
#include "common/exportd_link/exportd_link.h"
#include "rozomount/daemon/mount_run.h"
#include "rozomount/op/fuse_op.h"
#include "rozomount/op/handle.h"
#include "rozomount/op/loop.h"
#include "rozomount/op/mount.h"
#include "rozomount/op/read_past_eof.h"
#include "rozomount/op/recall_inval.h"
#include "rozomount/op/token_recall.h"
#include "rozomount/ops/fs_privileges.h"
#include "rozomount/ops/fuse_ops.h"
#include "rozomount/options/xalloc.h"

static_assert(REQUEST_HEAD_BYTES ==
                  sizeof(struct fuse_in_header) + sizeof(struct fuse_write_in),
              "a write's data begin on a page");

enum {
    OPCODE_TMPFILE = 51, /* FUSE_TMPFILE: not in the headers of Linux 6.1 */
    REQBUF_BYTES = IO_MAX + 2 * 4096,
    FILES_MEMORY = 40 << 20,     /* bytes for file data, over all loops */
    FILES_MEMORY_MIN = 16 << 20, /* bytes for file data of each loop, at least */
};

/* ---- request buffers ---- */

static struct reqbuf *buf_take(struct loop *loop)
{
    struct reqbuf *buf;

    if (!list_is_empty(&loop->free_bufs)) {
        buf = container_of(loop->free_bufs.next, struct reqbuf, link);
        list_remove(&buf->link);
        loop->n_free_bufs--;
        if (buf->is_long) {
            list_remove(&buf->link_long);
            loop->n_free_long--;
        }
        return buf;
    }
    if (loop->n_bufs == REQUESTS_MAX)
        return NULL;
    buf = xzalloc(sizeof(*buf));
    buf->base = mmap(NULL, REQBUF_BYTES, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (buf->base == MAP_FAILED) {
        free(buf);
        return NULL;
    }
    buf->mem = buf->base + 4096 - REQUEST_HEAD_BYTES;
    loop->n_bufs++;
    return buf;
}

static void buf_free(struct loop *loop, struct reqbuf *buf)
{
    munmap(buf->base, REQBUF_BYTES);
    free(buf);
    loop->n_bufs--;
}

static void loop_poll(struct loop *loop);

static void buf_shorten(struct loop *loop, struct reqbuf *buf)
{
    madvise(buf->base + REQUEST_SHORT_BYTES, REQBUF_BYTES - REQUEST_SHORT_BYTES,
            MADV_DONTNEED);
    buf->is_long = false;
    list_remove(&buf->link_long);
    loop->n_free_long--;
}

/* Keeps a free buffer. The last one freed is reused first, because the processor caches
 * it; so memory goes back to the system from the one unused for longest. Otherwise each
 * long request would begin with fresh pages. */
static void buf_keep(struct loop *loop, struct reqbuf *buf)
{
    list_add_after(&loop->free_bufs, &buf->link);
    loop->n_free_bufs++;
    if (!buf->is_long)
        return;
    list_add_after(&loop->free_long_bufs, &buf->link_long);
    loop->n_free_long++;
    if (loop->n_free_long > REQUESTS_KEPT_LONG)
        buf_shorten(loop,
                    container_of(loop->free_long_bufs.prev, struct reqbuf, link_long));
}

void loop_return_buf(struct loop *loop, struct reqbuf *buf)
{
    if (loop->n_free_bufs >= REQUESTS_KEPT)
        buf_free(loop, buf);
    else
        buf_keep(loop, buf);
    if (loop->poll_open && !loop->polling)
        loop_poll(loop);
}

void loop_free_memory(struct loop *loop)
{
    struct fuse_op *op;

    while (loop->n_free_bufs > 0)
        buf_free(loop, buf_take(loop));
    assert(loop->n_bufs == 0);
    while ((op = loop->free_ops) != NULL) {
        loop->free_ops = op->memory;
        free(op);
    }
}

/* ---- reading the device ---- */

/* Turns a FUSE_TMPFILE (Linux 6.2) into a FUSE_CREATE, which has the same request and
 * answer. libfuse 3.14 does not know it and would answer ENOSYS, for good. Delete when
 * libfuse has a handler for it. */
static void loop_note_nameless(struct loop *loop, struct fuse_in_header *head)
{
    loop->makes_nameless = head->opcode == OPCODE_TMPFILE;
    if (loop->makes_nameless)
        head->opcode = FUSE_CREATE;
}

static void loop_handle(struct loop *loop, struct reqbuf *buf, size_t len)
{
    struct fuse_in_header *head = (struct fuse_in_header *)buf->mem;
    struct fuse_buf fbuf = { .size = len, .mem = buf->mem };

    if (len < sizeof(*head) || head->len != len) {
        log_error("the kernel sent a FUSE request of %zu bytes; its header says %u", len,
                  len < sizeof(*head) ? 0 : head->len);
        loop_return_buf(loop, buf);
        return;
    }
    /* handled here: libfuse would look on this loop only */
    if (head->opcode == FUSE_INTERRUPT) {
        const struct fuse_interrupt_in *in = (const void *)(head + 1);

        if (len >= sizeof(*head) + sizeof(*in))
            fuse_op_interrupt(loop, in->unique);
        loop_return_buf(loop, buf);
        return;
    }
    loop->current = buf;
    loop->current_unique = head->unique;
    loop_note_nameless(loop, head);
    fuse_session_process_buf(loop->se, &fbuf);
    if (loop->current != NULL)
        loop_return_buf(loop, buf);
    loop->current = NULL;
}

/* Returns 0, -EAGAIN: no request; -EBUSY: no buffer; or -ENODEV: unmounted. */
static int loop_read_one(struct loop *loop)
{
    struct reqbuf *buf = buf_take(loop);
    ssize_t n;

    if (buf == NULL)
        return -EBUSY;
    n = read(loop->fd, buf->mem, REQUEST_BYTES);
    if (n < 0) {
        int rc = -errno;

        loop_return_buf(loop, buf);
        return rc == -EINTR || rc == -ENOENT ? 0 : rc; /* ENOENT: interrupted meanwhile */
    }
    buf->is_long |= (size_t)n + 4096 > REQUEST_SHORT_BYTES;
    loop_handle(loop, buf, (size_t)n);
    return 0;
}

static void on_device(uv_poll_t *poll, int status, int events)
{
    struct loop *loop = poll->data;
    int rc = 0;

    (void)status; /* read() reports the error */
    (void)events;
    for (unsigned i = 0; i < REQUESTS_PER_TURN && rc == 0; i++)
        rc = loop_read_one(loop);
    if (rc == 0 || rc == -EAGAIN)
        return;
    if (rc == -EBUSY) { /* loop_return_buf() starts to read again */
        uv_poll_stop(&loop->poll);
        loop->polling = false;
        return;
    }
    if (rc != -ENODEV)
        log_error("reading the FUSE device: %s", error_text(rc));
    loop_stop_reading(loop);
    mount_stop(loop->mount);
}

static void loop_poll(struct loop *loop)
{
    int rc = uv_poll_start(&loop->poll, UV_READABLE, on_device);

    assert(rc == 0);
    loop->polling = true;
}

int loop_start_reading(struct loop *loop, struct err *err)
{
    int rc = uv_poll_init(&loop->uv, &loop->poll, loop->fd);

    if (rc != 0)
        return err_set(err, rc, "wait for the FUSE device: %s", uv_strerror(rc));
    loop->poll.data = loop;
    loop->poll_open = true;
    loop_poll(loop);
    return 0;
}

void loop_stop_reading(struct loop *loop)
{
    if (!loop->poll_open)
        return;
    loop->poll_open = loop->polling = false;
    uv_close((uv_handle_t *)&loop->poll, NULL);
}

/* ---- start of a loop ---- */

/*
 * Returns this machine's clock shifted to exportd's: times of data and of names come from
 * one clock.
 */
static int64_t loop_wall_ns(struct env *env)
{
    struct loop *loop = container_of((struct env_uv *)env, struct loop, env);

    return loop->env_below->wall_ns(env) +
           atomic_load_explicit(&loop->mount->clock_ahead_ns, memory_order_relaxed);
}

static void on_lost_mail(struct env_mail *mail)
{
    struct loop *loop = container_of(mail, struct loop, lost_mail);

    atomic_store(&loop->lost_sent, false);
    mount_session_lost(loop->mount->session);
}

static void on_session_lost(void *arg)
{
    struct loop *loop = arg;

    if (atomic_exchange(&loop->lost_sent, true))
        return;
    loop->lost_mail.fn = on_lost_mail;
    env_mailbox_post(&loop->mount->loops[0].env, &loop->lost_mail);
}

static void on_heard(void *arg, uint64_t sent_ns)
{
    struct loop *loop = arg;

    mount_session_heard(loop->mount->session, sent_ns);
}

static void on_exportd_up(void *arg)
{
    struct loop *loop = arg;

    md_client_channel_is_up(&loop->md);
    if (loop->index == 0 && loop->mount->session != NULL)
        mount_session_link_is_up(loop->mount->session);
}

static void count_open(void *arg, uint64_t ino, int change)
{
    struct loop *loop = arg;

    atomic_fetch_add_explicit(&loop->mount->open_counts[mount_counter(ino)],
                              (unsigned)change, memory_order_acq_rel);
}

static void count_kept(void *arg, uint64_t ino, int change)
{
    struct loop *loop = arg;

    atomic_fetch_add_explicit(&loop->mount->kept_counts[mount_counter(ino)],
                              (unsigned)change, memory_order_acq_rel);
}

static void invalidate(void *arg, uint64_t ino)
{
    struct loop *loop = arg;

    if (loop->mount->inval != NULL)
        kernel_inval_add(loop->mount->inval, ino);
}

static int loop_init_md(struct loop *loop, struct err *err)
{
    const struct options *opt = loop->mount->opt;
    struct exportd_link_config config = {
        .keys = &loop->mount->keys,
        .role = RPC_ROLE_CLIENT,
        .name = "rozomount",
        .addrs = (const char *const *)opt->addrs,
        .n_addrs = opt->n_addrs,
        .is_up = on_exportd_up,
        .arg = loop,
    };
    struct md_client_config md = {
        .timeout_ms = opt->meta_timeout_ms,
        .mount_session_lost = on_session_lost,
        .heard = on_heard,
        .arg = loop,
    };
    int rc = exportd_link_open(&loop->env, &config, &loop->exportd, err);

    if (rc != 0)
        return err_wrap(err, rc, "exportd at %s", opt->exportd);
    loop->md_channel = exportd_link_channel(loop->exportd);
    md_client_init(&loop->md, &loop->env.env, loop->md_channel, &md);
    return 0;
}

static uint64_t files_memory(const struct mount *m)
{
    uint64_t share = FILES_MEMORY / m->n_loops;

    return share > FILES_MEMORY_MIN ? share : FILES_MEMORY_MIN;
}

static int loop_init_data(struct loop *loop, struct err *err)
{
    const struct options *opt = loop->mount->opt;
    struct storcli_config config = {
        .hedge_ms = opt->hedge_ms,
        .spare_ms = opt->spare_ms,
        .read_deadline_ms = opt->io_timeout_ms,
        .write_deadline_ms = opt->io_timeout_ms,
    };
    struct storcli_peers peers = { .channel = storage_peers_channel,
                                   .arg = &loop->peers };
    struct nodes_config nodes = {
        .file = { .write_behind_max = opt->write_behind_max,
                  .read_ahead_max = opt->read_ahead_max },
        .refs = loop->mount->refs,
        .unsynced = loop->mount->unsynced,
        .tokens = loop->mount->tokens,
        .sizes = loop->mount->sizes,
        .invalidate = invalidate,
        .count = count_open,
        .count_kept = count_kept,
        .arg = loop,
    };
    int rc;

    storage_peers_init(&loop->peers, &loop->env, &loop->mount->keys);
    rc = storcli_new(&loop->env.env, &config, &peers, &loop->cli);
    if (rc != 0)
        return err_wrap(err, rc, "start the data engine");
    rc = file_pool_new(files_memory(loop->mount), &loop->pool);
    if (rc != 0)
        return err_wrap(err, rc, "allocate memory for file data");
    nodes.file.pool = loop->pool;
    nodes_init(&loop->nodes, &loop->env.env, &loop->md, loop->cli, &nodes);
    list_init(&loop->givings);
    loop->giving_task.fn = on_giving_task;
    return 0;
}

int loop_init(struct loop *loop, struct mount *m, unsigned index, struct err *err)
{
    int rc;

    loop->mount = m;
    loop->index = index;
    loop->fd = -1;
    list_init(&loop->free_bufs);
    list_init(&loop->free_long_bufs);
    rc = uv_loop_init(&loop->uv);
    if (rc != 0)
        return err_set(err, rc, "start an event loop: %s", uv_strerror(rc));
    rc = env_uv_init(&loop->env, &loop->uv);
    if (rc != 0) {
        uv_loop_close(&loop->uv);
        return err_set(err, rc, "start an event loop: %s", uv_strerror(rc));
    }
    loop->env_below = loop->env.env.ops;
    loop->env_ops = *loop->env_below;
    loop->env_ops.wall_ns = loop_wall_ns;
    loop->env.env.ops = &loop->env_ops;
    fuse_op_init_signals(loop);
    rc = loop_init_md(loop, err);
    if (rc == 0)
        rc = loop_init_data(loop, err);
    loop->ready = rc == 0;
    return rc;
}
