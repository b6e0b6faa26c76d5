/*
 * mount_run.c - a mount: session, kernel mount, loops, and the shutdown.
 *
 * In:     main.c.
 * Out:    libfuse for mount(2), threads, mails between loops.
 * Keeps:  at the end every file is written out and reported before the session closes.
 *         Steps of the shutdown, each when the last is done on every loop: stop reading
 *         the device; answer all operations; close the handles left by the kernel and
 *         write out files; close the session; close the channels; end the loops.
 */
#include "rozomount/daemon/mount_run.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/list.h"
#include "common/base/log.h"
#include "common/exportd_link/exportd_link.h"
#include "rozomount/daemon/takeover.h"
#include "rozomount/inode/open_dirs.h"
#include "rozomount/kcache/dir_places.h"
#include "rozomount/kcache/kernel_notify.h"
#include "rozomount/kcache/name_inval.h"
#include "rozomount/op/atimes_report.h"
#include "rozomount/op/fuse_op.h"
#include "rozomount/op/handle.h"
#include "rozomount/op/loop.h"
#include "rozomount/op/mount.h"
#include "rozomount/op/read_past_eof.h"
#include "rozomount/op/recall_inval.h"
#include "rozomount/op/token_recall.h"
#include "rozomount/ops/fs_privileges.h"
#include "rozomount/ops/fuse_ops.h"
#include "rozomount/options/mountpoint.h"
#include "rozomount/options/xalloc.h"
#include "rozomount/prefetch/next_files.h"
#include "rozomount/session/liveness.h"

enum {
    INIT_WAIT_MS = 10000,
    READ_AHEAD_KB = 4096, /* read-ahead of the kernel for sequential readers */
    QUIT_LOOK_MS = 20,    /* interval of looks for requests of the kernel after a stop */
    QUIT_LOOKS_MAX = 150, /* limit: some programs never stop */
    SYNC_WAIT_S = 20,
    DIRECT_IO_ALLOW_MMAP = 1 << 4, /* FUSE_DIRECT_IO_ALLOW_MMAP >> 32: Linux 6.6 */
    HAS_RESEND = 1 << 7,           /* FUSE_HAS_RESEND >> 32: Linux 6.9 */
    DRAIN_MS = 2000,               /* limit for work on storages that closed files left */
};

/* ---- messages to every loop ---- */

/* A message to a loop other than 0; freed there. */
struct news {
    struct env_mail mail;
    struct loop *loop;
    struct cluster_map *map; /* owned; NULL: no change */
    uint64_t session;        /* 0: no change */
    uint64_t start;          /* valid with a session: starts of exportd, 0: unknown */
    uint32_t losses;         /* valid with a session */
};

static void loop_take_session(struct loop *loop, uint64_t session, uint64_t start,
                              uint32_t losses)
{
    nodes_learn_losses(&loop->nodes, losses);
    if (token_cache_are_given(loop->mount->tokens))
        loop->nodes.config.file.cache_ms = FILE_CACHE_UNTIL_DROPPED;
    exportd_link_set_session(loop->exportd, session, start);
    storage_peers_set_session(&loop->peers, session);
    md_client_session_is_open(&loop->md);
    locks_ask_again(loop);
}

static void on_news(struct env_mail *mail)
{
    struct news *news = container_of(mail, struct news, mail);

    if (news->map != NULL)
        storage_peers_update(&news->loop->peers, news->map);
    if (news->session != 0)
        loop_take_session(news->loop, news->session, news->start, news->losses);
    free(news->map);
    free(news);
}

static void tell_other_loops(struct mount *m, const struct cluster_map *map,
                             uint64_t session, uint64_t start, uint32_t losses)
{
    for (unsigned i = 1; i < m->n_loops; i++) {
        struct news *news;

        if (!m->loops[i].ready)
            continue;
        news = xzalloc(sizeof(*news));
        news->mail.fn = on_news;
        news->loop = &m->loops[i];
        news->map = map == NULL ? NULL : cluster_map_copy(map);
        news->session = session;
        news->start = start;
        news->losses = losses;
        env_mailbox_post(&news->loop->env, &news->mail);
    }
}

static const uint64_t *find_dead_sessions(void *arg, size_t *n)
{
    struct mount *m = arg;
    const uint64_t *dead = liveness_find_dead(m->liveness, n);

    if (*n != 0)
        log_info("reporting sessions of dead mounts of this machine: %zu", *n);
    return dead;
}

static void on_dead_reported(void *arg)
{
    liveness_dead_are_reported(((struct mount *)arg)->liveness);
}

/* Notes what another process needs to continue the session. */
static void mount_note_session(struct mount *m, const struct mount_session_info *info)
{
    struct held_mount *held = held_mount(m->held);

    held->losses = info->losses;
    held->session = info->id;
    holder_give(&m->hold, HOLDER_LIVENESS, liveness_fd(m->liveness));
}

static void on_session_opened(void *arg, const struct mount_session_info *info)
{
    struct mount *m = arg;
    bool lost = m->info.id != 0 && m->info.losses != info->losses;
    uint64_t start = exportd_link_start(m->loops[0].exportd);

    liveness_note(m->liveness, info->cluster_id, info->id);
    mount_note_session(m, info);
    if (m->info.id == 0)
        m->info = *info;
    m->info.losses = info->losses;
    loop_take_session(&m->loops[0], info->id, start, info->losses);
    tell_other_loops(m, NULL, info->id, start, info->losses);
    if (lost) /* changes reported to the kernel may be lost */
        recalls_drop_kernel(&m->loops[0]);
}

/* A lock event for the loop that waits; freed there. */
struct lock_news {
    struct env_mail mail;
    struct loop *loop;
    uint64_t waiter;
    int rc;
};

static void on_lock_news(struct env_mail *mail)
{
    struct lock_news *news = container_of(mail, struct lock_news, mail);

    locks_event(news->loop, news->waiter, news->rc);
    free(news);
}

static void on_lock_event(void *arg, uint64_t waiter, int rc)
{
    struct mount *m = arg;
    struct loop *loop = locks_loop(m, waiter);
    struct lock_news *news;

    if (loop == NULL || !loop->ready)
        return;
    news = xzalloc(sizeof(*news));
    news->mail.fn = on_lock_news;
    news->loop = loop;
    news->waiter = waiter;
    news->rc = rc;
    env_mailbox_post(&loop->env, &news->mail);
}

static void on_recall(void *arg, uint64_t ino, enum token_mode keep, uint64_t grant,
                      uint64_t call)
{
    const struct recalled_token what = { ino, keep, grant, call };
    struct mount *m = arg;

    if (mount_owner(m, ino)->ready)
        recall_send(m, &what);
}

static void on_tokens_max(void *arg)
{
    struct mount *m = arg;

    if (m->loops[0].ready)
        recalls_trim(&m->loops[0]);
}

static void on_tokens_mail(struct env_mail *mail)
{
    recalls_lose_all(container_of(mail, struct loop, tokens_mail));
}

static void on_tokens_lost(void *arg)
{
    struct mount *m = arg;

    recalls_lose_all(&m->loops[0]);
    for (unsigned i = 1; i < m->n_loops; i++) {
        m->loops[i].tokens_mail.fn = on_tokens_mail;
        if (m->loops[i].ready)
            env_mailbox_post(&m->loops[i].env, &m->loops[i].tokens_mail);
    }
}

/* Drops kernel caches of an inode: data read under the lost lock may have changed. */
static void on_lock_lost(void *arg, uint64_t ino)
{
    struct mount *m = arg;

    if (m->inval != NULL)
        kernel_inval_add(m->inval, ino);
}

/*
 * Drops kernel caches of locked inodes, so that reads under a lock come to us and wait:
 * see fuse_op_under_lock().
 */
static void on_unsure(void *arg)
{
    struct mount *m = arg;
    size_t n;
    uint64_t *inos = lock_table_inodes(m->lock_table, &n);

    for (size_t i = 0; i < n; i++)
        on_lock_lost(m, inos[i]);
    free(inos);
    recalls_drop_kernel(&m->loops[0]);
}

static void on_map_changed(void *arg, const struct cluster_map *map)
{
    struct mount *m = arg;

    free(m->map);
    m->map = cluster_map_copy(map);
    storage_peers_update(&m->loops[0].peers, map);
    tell_other_loops(m, map, 0, 0, 0);
}

static void on_clock_is_ahead(void *arg, int64_t ns)
{
    struct mount *m = arg;

    atomic_fetch_add(&m->clock_ahead_ns, ns);
}

/* ---- the session, at start ---- */

struct opening {
    bool done;
    int rc;
};

static void on_first_open(void *arg, int rc)
{
    struct opening *o = arg;

    o->done = true;
    o->rc = rc;
}

static int opening_failed(struct mount *m, int rc, struct err *err)
{
    const struct options *opt = m->opt;
    const char *why = exportd_link_last_error(m->loops[0].exportd);

    switch (rc) {
    case -ENOENT:
        return err_set(
            err, rc,
            "exportd at %s has no export named \"%s\" (rozo export list shows them)",
            opt->exportd, opt->export_name);
    case -EACCES:
        return err_set(err, rc, "exportd at %s refuses this mount: %s", opt->exportd,
                       *why == '\0' ? "wrong key" : why);
    case -EIO:
        return err_set(err, rc, "exportd at %s does not answer%s%s", opt->exportd,
                       *why == '\0' ? "" : ": ", why);
    case -ROZO_ENO_SESSION:
        return err_set(err, rc, "exportd at %s has ended the session", opt->exportd);
    case -ENOSYS:
        return err_set(err, rc, "the daemon at %s is not exportd (but a storage?)",
                       opt->exportd);
    default:
        return err_set(err, rc, "open a session at exportd %s: %s", opt->exportd,
                       error_text(rc));
    }
}

static int mount_open_session(struct mount *m, struct err *err)
{
    struct loop *loop = &m->loops[0];
    struct mount_session_config config = {
        .export_name = m->opt->export_name,
        .client = m->client,
        .refs = m->refs,
        .lock_table = m->lock_table,
        .tokens = m->tokens,
        .unsynced = m->unsynced,
        .reads = &m->reads,
        .open_timeout_ms = m->opt->mount_timeout_ms,
        .find_dead = find_dead_sessions,
        .dead_are_reported = on_dead_reported,
        .opened = on_session_opened,
        .lock_event = on_lock_event,
        .recall = on_recall,
        .tokens_max = on_tokens_max,
        .tokens_lost = on_tokens_lost,
        .lock_lost = on_lock_lost,
        .unsure = on_unsure,
        .map_changed = on_map_changed,
        .clock_is_ahead = on_clock_is_ahead,
        .takes_over = mount_takes_over(m) ? held_mount(m->held)->session : 0,
        .inherited = mount_note_inherited,
        .arg = m,
    };
    struct opening opening = { 0 };
    char host[128] = "?";

    gethostname(host, sizeof(host) - 1);
    snprintf(m->client, sizeof(m->client), "%s:%d:%.100s", host, (int)getpid(),
             m->opt->mountpoint);
    m->session = mount_session_new(&loop->env.env, &loop->md, &config);
    mount_session_open(m->session, on_first_open, &opening);
    while (!opening.done) {
        uv_run(&loop->uv, UV_RUN_ONCE);
        if (!opening.done && exportd_link_key_is_refused(loop->exportd)) {
            mount_session_give_up(m->session);
            return err_set(err, -EACCES, "exportd at %s: %s (key file %s)",
                           m->opt->exportd, exportd_link_last_error(loop->exportd),
                           m->opt->key_file);
        }
    }
    return opening.rc == 0 ? 0 : opening_failed(m, opening.rc, err);
}

/* ---- the kernel ---- */

/*
 * Replies of other loops' sessions go to the loop's own clone of the device. Their answer
 * to INIT is dropped: loop 0 has given it.
 */
static _Thread_local enum {
    REPLY_GOES_OUT,
    REPLY_IS_SWALLOWED,
    REPLY_TO_INIT,
    REPLY_OPENS_PARALLEL,
} reply_is;

/* The kernel goes on with what the first process has agreed on. */
static void mount_check_reply(struct mount *m, const void *reply, size_t len)
{
    const struct held_mount *held = held_mount(m->held);

    m->takeover.replied_otherwise =
        held->reply_len != len || memcmp(held->reply, reply, len) != 0;
}

static void mount_note_reply(struct mount *m, const void *reply, size_t len)
{
    struct held_mount *held = held_mount(m->held);

    assert(len <= sizeof(held->reply));
    memcpy(held->reply, reply, len);
    held->reply_len = (uint32_t)len;
}

/* Adds flags to the INIT reply that libfuse 3.14 does not know. Writes, truncates and
 * chowns clear privileges here, so the kernel need not ask for a capability before every
 * write. Files that bypass the page cache can be mapped shared. */
static ssize_t writev_init_reply(struct mount *m, int fd, const struct iovec *iov,
                                 int count)
{
    struct fuse_init_out init;
    struct iovec out[2] = { iov[0], { .iov_base = &init, .iov_len = sizeof(init) } };

    if (count != 2 || iov[1].iov_len != sizeof(init)) /* an error, or an older protocol */
        return writev(fd, iov, count);
    memcpy(&init, iov[1].iov_base, sizeof(init));
    if (m->drops_privileges)
        init.flags |= FUSE_HANDLE_KILLPRIV_V2;
    if ((m->cache == CACHE_NONE || m->cache == CACHE_READS) && m->maps_direct) {
        init.flags |= FUSE_INIT_EXT;
        init.flags2 |= DIRECT_IO_ALLOW_MMAP;
    }
    if (mount_takes_over(m)) {
        mount_check_reply(m, &init, sizeof(init));
        return (ssize_t)(iov[0].iov_len + sizeof(init));
    }
    mount_note_reply(m, &init, sizeof(init));
    return writev(fd, out, 2);
}

/* Sets a flag that libfuse does not know. The open part comes last in both replies. */
static void reply_set_parallel(const struct iovec *last)
{
    struct fuse_open_out open;
    uint8_t *at = (uint8_t *)last->iov_base + last->iov_len - sizeof(open);

    if (last->iov_len < sizeof(open)) /* an error: header only */
        return;
    memcpy(&open, at, sizeof(open));
    open.open_flags |= FOPEN_PARALLEL_DIRECT_WRITES;
    memcpy(at, &open, sizeof(open));
}

static ssize_t clone_writev(int fd, struct iovec *iov, int count, void *userdata)
{
    const struct loop *loop = userdata;
    ssize_t len = 0;

    if (reply_is == REPLY_TO_INIT)
        return writev_init_reply(loop->mount, fd, iov, count);
    if (reply_is == REPLY_OPENS_PARALLEL && count == 2)
        reply_set_parallel(&iov[1]);
    if (reply_is != REPLY_IS_SWALLOWED)
        return writev(fd, iov, count);
    for (int i = 0; i < count; i++)
        len += (ssize_t)iov[i].iov_len;
    return len;
}

static int mount_reply_open(fuse_req_t req, const struct fuse_entry_param *e,
                            const struct fuse_file_info *fi, bool parallel)
{
    int rc;

    if (parallel)
        reply_is = REPLY_OPENS_PARALLEL;
    rc = e != NULL ? fuse_reply_create(req, e, fi) : fuse_reply_open(req, fi);
    reply_is = REPLY_GOES_OUT;
    return rc;
}

static ssize_t clone_read(int fd, void *buf, size_t len, void *userdata)
{
    (void)userdata;
    return read(fd, buf, len);
}

static const struct fuse_custom_io clone_io = { .writev = clone_writev,
                                                .read = clone_read };

/* Opens a clone of the device, for the requests of this loop. */
static int loop_open_clone(struct loop *loop, struct err *err)
{
    struct mount *m = loop->mount;
    uint32_t master = (uint32_t)m->device;
    int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC), rc = 0;

    if (fd < 0)
        return err_set(err, -errno, "open /dev/fuse: %s", strerror(errno));
    if (ioctl(fd, FUSE_DEV_IOC_CLONE, &master) != 0)
        rc = err_set(err, -errno, "clone the FUSE device: %s", strerror(errno));
    else if (fuse_session_custom_io(loop->se, &clone_io, fd) != 0)
        rc = err_set(err, -EINVAL, "libfuse refuses a cloned device");
    if (rc != 0) {
        close(fd);
        return rc;
    }
    loop->fd = fd; /* the session closes it */
    return 0;
}

/* Adds a value with commas and backslashes escaped, as an option list needs. */
static void add_escaped(char *to, size_t room, const char *value)
{
    size_t at = strlen(to);

    for (; *value != '\0' && at + 3 < room; value++) {
        if (*value == ',' || *value == '\\')
            to[at++] = '\\';
        to[at++] = *value;
    }
    to[at] = '\0';
}

static int mount_kernel(struct mount *m, struct err *err)
{
    const struct options *opt = m->opt;
    struct loop *loop = &m->loops[0];
    char text[4096] = "subtype=rozomount,default_permissions,fsname=";
    char *argv[] = { (char *)"rozomount", (char *)"-o", text, NULL };
    struct fuse_args args = FUSE_ARGS_INIT(3, argv);
    size_t at;

    add_escaped(text, sizeof(text) / 2, opt->spec);
    at = strlen(text);
    /*
     * Other file systems mount with suid,dev for root; libfuse's default is nosuid,nodev.
     */
    snprintf(text + at, sizeof(text) - at, ",max_read=%d%s%s%s%s", IO_MAX,
             geteuid() == 0 ? ",suid,dev" : "", opt->allow_other ? ",allow_other" : "",
             opt->kernel_opts == NULL ? "" : ",",
             opt->kernel_opts == NULL ? "" : opt->kernel_opts);
    loop->se = fuse_session_new(&args, &face_ops, sizeof(face_ops), loop);
    fuse_opt_free_args(&args);
    if (loop->se == NULL)
        return err_set(err, -EINVAL, "libfuse refuses the options \"%s\"", text);
    if (mount_takes_over(m)) {
        m->device = m->hold.device;
        return loop_open_clone(loop, err);
    }
    if (fuse_session_mount(loop->se, opt->mountpoint) != 0)
        return err_set(err, -EIO,
                       "mount on %s failed; the line above says why. In a container a "
                       "profile of AppArmor, SELinux or seccomp may forbid it: see "
                       "docs/CONTAINERS.md",
                       opt->mountpoint);
    m->device = fuse_session_fd(loop->se);
    if (mount_has_holder(m)) {
        holder_give(&m->hold, HOLDER_DEVICE, m->device);
        return loop_open_clone(loop, err);
    }
    loop->fd = m->device;
    if (fuse_session_custom_io(loop->se, &clone_io, loop->fd) != 0)
        return err_set(err, -EINVAL, "libfuse refuses I/O functions for the FUSE device");
    return 0;
}

/* Keeps INIT for a process that takes this mount over. */
static void mount_note_init(struct mount *m, const void *init, size_t len)
{
    struct held_mount *held = held_mount(m->held);

    if (len > sizeof(held->init))
        return; /* no process can take it over */
    memcpy(held->init, init, len);
    held->init_len = (uint32_t)len;
}

static void mount_answer_init(struct mount *m, void *buf, size_t len)
{
    struct fuse_buf fbuf = { .mem = buf, .size = len };
    const struct fuse_in_header *head = buf;
    const struct fuse_init_in *in = (const void *)(head + 1);
    bool is_init = len >= sizeof(*head) + sizeof(*in) && head->opcode == FUSE_INIT;

    m->drops_privileges = is_init && (in->flags & FUSE_HANDLE_KILLPRIV_V2) != 0;
    m->maps_direct = is_init && (in->flags & FUSE_INIT_EXT) != 0 &&
                     (in->flags2 & DIRECT_IO_ALLOW_MMAP) != 0;
    m->takeover.resends = mount_has_holder(m) && is_init &&
                          (in->flags & FUSE_INIT_EXT) != 0 &&
                          (in->flags2 & HAS_RESEND) != 0;
    reply_is = REPLY_TO_INIT;
    fuse_session_process_buf(m->loops[0].se, &fbuf);
    reply_is = REPLY_GOES_OUT;
}

/* Answers the INIT of the process before once more, to nobody. */
static int mount_repeat_init(struct mount *m, void *buf, size_t *len, struct err *err)
{
    const struct held_mount *held = held_mount(m->held);

    *len = held->init_len;
    memcpy(buf, held->init, *len);
    mount_answer_init(m, buf, *len);
    if (m->takeover.replied_otherwise)
        return err_set(err, -ROZO_ENO_SESSION,
                       "the kernel works with other features than this version of "
                       "rozomount has chosen: unmount, and mount anew");
    return 0;
}

/*
 * Reads the kernel's first request and lets loop 0 answer it. *buf: a copy for other
 * loops.
 */
static int mount_read_init(struct mount *m, void *buf, size_t *len, struct err *err)
{
    struct loop *loop = &m->loops[0];
    struct pollfd pfd = { .fd = loop->fd, .events = POLLIN };
    ssize_t n;
    int rc;

    if (mount_takes_over(m))
        return mount_repeat_init(m, buf, len, err);
    do /* signals to stop are handled when the loops run */
        rc = poll(&pfd, 1, INIT_WAIT_MS);
    while (rc < 0 && errno == EINTR);
    if (rc != 1)
        return err_set(err, -EIO, "the kernel sent no FUSE request after the mount");
    n = read(loop->fd, buf, REQUEST_BYTES);
    if (n < 0)
        return err_set(err, -errno, "read the kernel's first FUSE request: %s",
                       strerror(errno));
    *len = (size_t)n;
    mount_note_init(m, buf, *len);
    mount_answer_init(m, buf, *len);
    return 0;
}

static int loop_clone_device(struct loop *loop, void *init, size_t init_len,
                             struct err *err)
{
    char max_read[32];
    char *argv[] = { (char *)"rozomount", (char *)"-o", max_read, NULL };
    struct fuse_args args = FUSE_ARGS_INIT(3, argv);
    struct fuse_buf fbuf = { .mem = init, .size = init_len };
    int rc;

    snprintf(max_read, sizeof(max_read), "max_read=%d", IO_MAX);
    loop->se = fuse_session_new(&args, &face_ops, sizeof(face_ops), loop);
    fuse_opt_free_args(&args);
    if (loop->se == NULL)
        return err_set(err, -ENOMEM, "create a FUSE session for another loop");
    rc = loop_open_clone(loop, err);
    if (rc != 0)
        return rc;
    reply_is = REPLY_IS_SWALLOWED;
    fuse_session_process_buf(loop->se, &fbuf);
    reply_is = REPLY_GOES_OUT;
    return 0;
}

/* Finds our entry in the table of mounts. */
static void mount_note_device(struct mount *m)
{
    m->is_listed = mountpoint_find_now(m->opt->mountpoint, &m->at);
}

/* Raises the kernel's read-ahead for sequential readers. Needs root; best effort. */
static void mount_set_read_ahead(const struct mount *m)
{
    char path[128];
    FILE *f;

    snprintf(path, sizeof(path), "/sys/class/bdi/%u:%u/read_ahead_kb", m->at.dev_major,
             m->at.dev_minor);
    if (!m->is_listed)
        return;
    f = fopen(path, "we");
    if (f == NULL && errno == EROFS)
        log_warn("%s: read-only, so sequential reads may be slower. In a container: see "
                 "docs/CONTAINERS.md",
                 path);
    if (f == NULL)
        return;
    fprintf(f, "%d", READ_AHEAD_KB);
    fclose(f);
}

/* ---- start ---- */

static void *loop_run(void *arg)
{
    struct loop *loop = arg;

    uv_run(&loop->uv, UV_RUN_DEFAULT);
    return NULL;
}

static int start_other_loop(struct mount *m, unsigned i, void *init, size_t init_len,
                            struct err *err)
{
    struct loop *loop = &m->loops[i];
    int rc = loop_init(loop, m, i, err);

    if (rc != 0)
        return rc;
    storage_peers_update(&loop->peers, m->map);
    loop_take_session(loop, m->info.id, exportd_link_start(m->loops[0].exportd),
                      m->info.losses);
    rc = loop_clone_device(loop, init, init_len, err);
    if (rc == 0)
        rc = loop_start_reading(loop, err);
    return rc;
}

static unsigned loops_of_machine(void)
{
    long n_cpus = sysconf(_SC_NPROCESSORS_ONLN);

    if (n_cpus <= 3)
        return 1;
    return n_cpus / 2 > OPTIONS_LOOPS_MAX ? OPTIONS_LOOPS_MAX : (unsigned)(n_cpus / 2);
}

static int mount_start_loops(struct mount *m, struct err *err)
{
    void *init = xzalloc(REQUEST_BYTES);
    size_t init_len = 0;
    int rc = mount_read_init(m, init, &init_len, err);

    for (unsigned i = 1; i < m->n_loops && rc == 0; i++)
        rc = start_other_loop(m, i, init, init_len, err);
    free(init);
    if (rc != 0)
        return rc;
    m->inval = kernel_inval_start(m->loops[0].se, m->names_expire);
    m->notify = kernel_notify_start(m->loops[0].se, m->is_listed ? &m->at : NULL,
                                    m->names_expire);
    m->takeover.forgets_names =
        mount_has_holder(m) && (m->notify == NULL || !kernel_notify_has_aged(m->notify));
    for (unsigned i = 0; i < m->n_loops && m->takeover.resends; i++)
        holder_give(&m->hold, HOLDER_CLONE, m->loops[i].fd);
    if (mount_takes_over(m))
        mount_inherit(m);
    rc = loop_start_reading(&m->loops[0], err);
    for (unsigned i = 1; i < m->n_loops && rc == 0; i++) {
        rc = -pthread_create(&m->loops[i].thread, NULL, loop_run, &m->loops[i]);
        if (rc != 0) {
            log_error("start a thread: %s", error_text(rc));
            fuse_session_unmount(m->loops[0].se);
            _exit(1); /* other loops run; no data were acknowledged yet */
        }
    }
    return rc;
}

/* ---- shutdown ---- */

void mount_on_every_loop(struct mount *m, void (*fn)(struct env_mail *mail),
                         void (*next)(struct mount *m))
{
    m->n_loops_left = m->n_loops;
    m->next_step = next;
    for (unsigned i = 0; i < m->n_loops; i++) {
        m->loops[i].mail.fn = fn;
        env_mailbox_post(&m->loops[i].env, &m->loops[i].mail);
    }
}

static void on_loop_done(struct env_mail *mail)
{
    struct mount *m = container_of(mail, struct loop, mail)->mount;

    assert(m->n_loops_left != 0);
    if (--m->n_loops_left == 0)
        m->next_step(m);
}

void loop_is_done(struct loop *loop)
{
    loop->mail.fn = on_loop_done;
    env_mailbox_post(&loop->mount->loops[0].env, &loop->mail);
}

/* Step 5: channels. */

static void loop_end_if_closed(struct loop *loop)
{
    if (--loop->n_closing != 0)
        return;
    env_timer_stop(&loop->env.env, &loop->signal_timer);
    md_client_close(&loop->md);
    nodes_close(&loop->nodes);
    file_pool_free(loop->pool);
    storcli_free(loop->cli);
    loop->cli = NULL;
    env_uv_close(&loop->env); /* the loop has nothing left and ends */
}

static void on_loop_part_closed(void *arg)
{
    loop_end_if_closed(arg);
}

static void loop_close_channels(struct loop *loop)
{
    loop->n_closing = 3;
    storage_peers_close(&loop->peers, on_loop_part_closed, loop);
    exportd_link_close(loop->exportd, on_loop_part_closed, loop);
    loop_end_if_closed(loop);
}

static void on_engine_drained(void *arg, int rc)
{
    (void)rc; /* storages find out by themselves */
    loop_close_channels(arg);
}

static void on_close_channels(struct env_mail *mail)
{
    struct loop *loop = container_of(mail, struct loop, mail);

    recalls_close(loop);
    storcli_drain(loop->cli, DRAIN_MS, on_engine_drained, loop);
}

/* Step 4: session. */

static void on_session_closed(void *arg)
{
    struct mount *m = arg;

    if (m->before_end != NULL)
        m->before_end(m->before_end_arg);
    mount_on_every_loop(m, on_close_channels, NULL);
}

static void session_end_step(struct mount *m)
{
    kernel_notify_stop(m->notify); /* while the loops still take its mail */
    m->notify = NULL;
    mount_session_close(m->session, on_session_closed, m);
}

static void mount_close_session(struct mount *m)
{
    atimes_report_end(m, session_end_step);
}

/* Step 3: files. */

static void on_nodes_idle(void *arg)
{
    loop_is_done(arg);
}

static void on_close_files(struct env_mail *mail)
{
    struct loop *loop = container_of(mail, struct loop, mail);

    recalls_stop(loop);
    while (loop->handles != NULL)
        handle_free(loop, loop->handles);
    nodes_when_idle(&loop->nodes, on_nodes_idle, loop);
}

static void on_drained(struct env_mail *mail)
{
    struct mount *m = container_of(mail, struct mount, drained_mail);

    mount_on_every_loop(m, on_close_files, mount_close_session);
}

/* Step 2: operations. */

static void mount_drained(struct mount *m)
{
    if (atomic_exchange(&m->drained_sent, true))
        return;
    m->drained_mail.fn = on_drained;
    env_mailbox_post(&m->loops[0].env, &m->drained_mail);
}

static void mount_drain(struct mount *m)
{
    atomic_store(&m->draining, true);
    if (atomic_load(&m->n_ops) == 0)
        mount_drained(m);
}

/*
 * Step 1: the device. Requests queued by the kernel are still read: pages to write out.
 */

static bool device_has_requests(int fd)
{
    struct pollfd pfd = { .fd = fd, .events = POLLIN };

    return poll(&pfd, 1, 0) == 1 && (pfd.revents & (POLLIN | POLLERR)) == POLLIN;
}

static void loop_quit_when_quiet(struct loop *loop)
{
    bool quiet = !device_has_requests(loop->fd) && atomic_load(&loop->mount->n_ops) == 0;

    if (loop->poll_open && !quiet && loop->n_quit_looks++ < QUIT_LOOKS_MAX) {
        env_timer_start(&loop->env.env, &loop->quit_timer, QUIT_LOOK_MS);
        return;
    }
    loop_stop_reading(loop);
    loop_is_done(loop);
}

static void on_quit_timer(struct env_timer *timer)
{
    loop_quit_when_quiet(container_of(timer, struct loop, quit_timer));
}

static void on_quit_reading(struct env_mail *mail)
{
    struct loop *loop = container_of(mail, struct loop, mail);

    env_timer_init(&loop->quit_timer, on_quit_timer);
    locks_give_up(loop);
    loop_quit_when_quiet(loop);
}

static void on_stop(struct env_mail *mail)
{
    struct mount *m = container_of(mail, struct mount, stop_mail);

    if (m->takeover.hands_over) {
        m->takeover.stops_after = true;
        return;
    }
    log_info("%s: unmounted; writing out remaining data", m->opt->mountpoint);
    mount_on_every_loop(m, on_quit_reading, mount_drain);
}

void mount_stop(struct mount *m)
{
    if (atomic_exchange(&m->stop_sent, true))
        return;
    m->stop_mail.fn = on_stop;
    env_mailbox_post(&m->loops[0].env, &m->stop_mail);
}

/* Frees a loop that has ended, with everything closed. */
static void loop_free(struct loop *loop)
{
    if (loop->se != NULL)
        fuse_session_destroy(loop->se);
    loop_free_memory(loop);
    uv_loop_close(&loop->uv);
}

static void mount_free_memory(struct mount *m)
{
    liveness_free(m->liveness, m->session != NULL && mount_session_is_over(m->session));
    mount_session_free(m->session);
    held_close(m->held);
    open_refs_free(m->refs);
    lock_table_free(m->lock_table);
    token_cache_free(m->tokens);
    name_inval_free(m->name_inval);
    rename_barrier_free(m->rename_barrier);
    open_dirs_free(m->open_dirs);
    dir_places_free(m->dir_places);
    next_files_free(m->next_files);
    atimes_free(m->atimes);
    unsynced_inodes_free(m->unsynced);
    kernel_sizes_free(m->sizes);
    free(m->map);
    free(m->loops);
    m->loops = NULL;
}

int mount_run(struct mount *m)
{
    unsigned n_lost = 0;

    uv_run(&m->loops[0].uv, UV_RUN_DEFAULT);
    for (unsigned i = 1; i < m->n_loops; i++)
        pthread_join(m->loops[i].thread, NULL);
    if (m->unmounting)
        pthread_join(m->unmounter, NULL);
    kernel_inval_stop(m->inval);
    /* Otherwise (lazy unmount) libfuse would unmount whatever is mounted there now. */
    if (mountpoint_is_severed(m->loops[0].fd))
        fuse_session_unmount(m->loops[0].se); /* frees; there is nothing to unmount */
    for (unsigned i = m->n_loops; i-- > 0;) { /* loop 0 mounted: it goes last */
        n_lost += m->loops[i].nodes.n_lost;
        loop_free(&m->loops[i]);
    }
    mount_free_memory(m);
    return n_lost == 0 ? 0 : -EIO;
}

/* ---- a failed start: no other loop has a thread yet ---- */

static void on_closed_at_start(void *arg)
{
    *(bool *)arg = true;
}

static void loop_give_up(struct loop *loop)
{
    if (loop->env_below == NULL)
        return;
    loop_stop_reading(loop);
    if (loop->exportd != NULL)
        loop_close_channels(loop);
    else
        env_uv_close(&loop->env);
    uv_run(&loop->uv, UV_RUN_DEFAULT);
    loop_free(loop);
}

/* Undoes a start; exportd is informed if the session was open. */
static void mount_give_up(struct mount *m)
{
    bool closed = m->info.id == 0; /* never opened */

    m->giving_up = true;
    if (m->loops[0].fd > 0)
        fuse_session_unmount(m->loops[0].se);
    kernel_inval_stop(m->inval);
    kernel_notify_stop(m->notify);
    if (!closed)
        mount_session_close(m->session, on_closed_at_start, &closed);
    while (!closed)
        uv_run(&m->loops[0].uv, UV_RUN_ONCE);
    if (m->before_end != NULL)
        m->before_end(m->before_end_arg);
    for (unsigned i = m->n_loops; i-- > 0;)
        loop_give_up(&m->loops[i]);
    mount_free_memory(m);
}

static const struct mount_shell shell = {
    .return_buf = loop_return_buf,
    .drained = mount_drained,
    .reply_open = mount_reply_open,
};

int mount_open(struct mount *m, const struct options *opt, struct err *err)
{
    int rc;

    m->opt = opt;
    m->shell = &shell;
    m->n_loops = opt->loops == 0 ? loops_of_machine() : opt->loops;
    m->loops = xzalloc(m->n_loops * sizeof(*m->loops));
    m->refs = open_refs_new();
    m->lock_table = lock_table_new();
    m->tokens = token_cache_new();
    m->name_inval = name_inval_new();
    m->rename_barrier = rename_barrier_new();
    m->open_dirs = open_dirs_new();
    m->dir_places = dir_places_new();
    m->next_files = next_files_new(NEXT_FILES_RUN_MIN);
    m->atimes = atimes_new(opt->read_only ? ATIMES_NONE : opt->atimes, opt->nodiratime);
    m->unsynced = unsynced_inodes_new();
    m->liveness = liveness_new(NULL);
    m->sizes = opt->writeback_cache ? kernel_sizes_new() : NULL;
    m->device = -1;
    rc = rpc_keys_load(&m->keys, false, opt->key_file, err);
    if (rc == 0)
        rc = held_open(m->hold.table, &held_room_of_mount, &m->held, err);
    if (rc == 0 && mount_takes_over(m)) {
        unsynced_inodes_lost(m->unsynced, held_mount(m->held)->losses);
        unsynced_inodes_note_any(m->unsynced);
    }
    if (rc == 0)
        rc = loop_init(&m->loops[0], m, 0, err);
    if (rc == 0)
        rc = mount_open_session(m, err);
    if (rc != 0 && !mount_takes_over(m))
        mount_give_up(m);
    return rc;
}

int mount_start(struct mount *m, struct err *err)
{
    int rc = mount_kernel(m, err);

    if (rc == 0) {
        mount_note_device(m);
        rc = mount_start_loops(m, err);
    }
    if (rc != 0 && mount_takes_over(m))
        return rc;
    if (rc != 0) {
        mount_give_up(m);
        return rc;
    }
    mount_set_read_ahead(m);
    atimes_report_start(&m->loops[0]);
    return 0;
}

/* ---- unmount by ourselves ---- */

/*
 * Returns true if our mount is on the mount point. After a lazy unmount it may be another
 * one.
 */
static bool mount_is_there(const struct mount *m)
{
    struct mountpoint at;

    return m->is_listed && mountpoint_find_now(m->opt->mountpoint, &at) &&
           at.dev_major == m->at.dev_major && at.dev_minor == m->at.dev_minor;
}

static void unmount_busy(struct mount *m)
{
    const char *mountpoint = m->opt->mountpoint;
    int fd, rc;

    log_warn("%s is in use: writing out data, then unmounting lazily", mountpoint);
    fd = open(mountpoint, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        syncfs(fd);
        close(fd);
    }
    rc = mountpoint_unmount(mountpoint, true);
    if (rc != 0)
        log_error("unmount %s: %s", mountpoint, error_text(rc));
}

/*
 * Syncs a mount in use that no path of ours leads to any more: only sync(2) reaches its
 * pages, and that may wait for any other file system of the machine.
 */
static void *syncer_run(void *arg)
{
    (void)arg;
    sync();
    return NULL;
}

static void sync_unreachable(struct mount *m)
{
    struct timespec until;
    pthread_t syncer;

    log_warn("%s: unmounted, but some files, or copies of the mount in other mount "
             "namespaces, are still in use; writing out data",
             m->opt->mountpoint);
    if (pthread_create(&syncer, NULL, syncer_run, NULL) != 0)
        return;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += SYNC_WAIT_S;
    if (pthread_timedjoin_np(syncer, NULL, &until) != 0)
        pthread_detach(syncer);
}

/* Unmounts in a thread of its own: the kernel sends requests before it unmounts. */
static void *unmounter_run(void *arg)
{
    struct mount *m = arg;

    if (!mount_is_there(m))
        sync_unreachable(m);
    else if (mountpoint_unmount(m->opt->mountpoint, false) != 0)
        unmount_busy(m);
    else if (!mountpoint_is_severed(m->loops[0].fd)) /* other namespaces have it */
        sync_unreachable(m);
    mount_stop(m);
    return NULL;
}

void mount_unmount(struct mount *m)
{
    if (m->unmounting || m->giving_up)
        return;
    if (m->takeover.hands_over) {
        m->takeover.unmounts_after = true;
        return;
    }
    m->unmounting = pthread_create(&m->unmounter, NULL, unmounter_run, m) == 0;
    if (!m->unmounting)
        mount_stop(m);
}
