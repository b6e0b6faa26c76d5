/*
 * mount.c - a client of the simulated cluster.
 *
 * In:     requests of programs, as the kernel sends them; answers, through this file's
 *         versions of libfuse's functions. Thread: one.
 * Out:    calls of rozomount's handlers, in the client's process.
 * Keeps:  the caller gets its answer later, in the world, and not if the client dies
 *         first.
 */
#include "tests/sim/cluster/programs/mount.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rozomount/inode/open_dirs.h"
#include "rozomount/kcache/dir_places.h"
#include "rozomount/kcache/name_inval.h"
#include "rozomount/op/atimes_report.h"
#include "rozomount/options/xalloc.h"
#include "rozomount/prefetch/next_files.h"
#include "tests/sim/cluster/kernel/sim_inval.h"
#include "tests/sim/cluster/kernel/sim_notify.h"
#include "tests/sim/cluster/programs/model.h"
#include "tests/sim/cluster/state.h"

struct map_channel {
    uint32_t id;
    uint8_t incarnation[16];
    struct rpc_channel *ch;
};

/* State of a running mount, in its process's memory. */
enum { OPENED_MAX = 16, GUESSES = 4 };

struct sim_mount {
    struct sim_client *client;
    struct mount m;
    struct loop loop;
    struct options opt;
    struct rpc_channel *md_channel;
    struct rpc_group *md_group; /* NULL: exportd is alone */
    struct map_channel peers[STORAGES_MAX];
    unsigned n_peers;
    struct env_task lost;
    uint64_t last_unique;        /* last request number, as the kernel counts them */
    uint64_t opened[OPENED_MAX]; /* recently opened files */
    unsigned n_opened;
};

/* ---- replacements of libfuse and of rozomount's shell ---- */

static void return_buf(struct loop *loop, struct reqbuf *buf)
{
    (void)loop;
    free(buf->base);
    free(buf);
}

static void drained(struct mount *m)
{
    (void)m;
}

const char *storage_peers_addresses(const struct storage_peers *peers,
                                    uint32_t storage_id)
{
    (void)peers;
    (void)storage_id;
    return "";
}

/* Records an answer; the caller gets it later, in the world. */
static int answered(fuse_req_t req, int rc)
{
    world_trace((uint64_t)rc << 8 ^ req->client->index);
    request_answered(req, rc);
    return 0;
}

void *fuse_req_userdata(fuse_req_t req)
{
    return &req->client->mount->loop;
}

const struct fuse_ctx *fuse_req_ctx(fuse_req_t req)
{
    static const struct fuse_ctx ctx = { .uid = 0, .gid = 0, .pid = 0, .umask = 022 };

    (void)req;
    return &ctx;
}

int fuse_req_getgroups(fuse_req_t req, int size, gid_t list[])
{
    (void)req;
    (void)size;
    (void)list;
    return 0;
}

int fuse_reply_err(fuse_req_t req, int err)
{
    return answered(req, -err);
}

void fuse_reply_none(fuse_req_t req)
{
    answered(req, 0);
}

int fuse_reply_entry(fuse_req_t req, const struct fuse_entry_param *e)
{
    req->entry = *e;
    req->st = e->attr;
    return answered(req, e->ino == 0 ? -ENOENT : 0);
}

int fuse_reply_create(fuse_req_t req, const struct fuse_entry_param *e,
                      const struct fuse_file_info *fi)
{
    req->entry = *e;
    req->st = e->attr;
    return fuse_reply_open(req, fi);
}

int fuse_reply_attr(fuse_req_t req, const struct stat *attr, double attr_timeout)
{
    req->attr_timeout_s = attr_timeout;
    req->st = *attr;
    return answered(req, 0);
}

int fuse_reply_readlink(fuse_req_t req, const char *link)
{
    (void)link;
    return answered(req, 0);
}

int fuse_reply_open(fuse_req_t req, const struct fuse_file_info *fi)
{
    req->fh = fi->fh;
    req->keeps_cache = fi->keep_cache;
    req->is_direct = fi->direct_io;
    req->keeps_names = fi->cache_readdir;
    return answered(req, 0);
}

static int reply_open(fuse_req_t req, const struct fuse_entry_param *e,
                      const struct fuse_file_info *fi, bool parallel)
{
    req->is_parallel = parallel;
    return e != NULL ? fuse_reply_create(req, e, fi) : fuse_reply_open(req, fi);
}

static const struct mount_shell shell = {
    .return_buf = return_buf,
    .drained = drained,
    .reply_open = reply_open,
};

int fuse_reply_write(fuse_req_t req, size_t count)
{
    req->n = count;
    return answered(req, 0);
}

int fuse_reply_buf(fuse_req_t req, const char *buf, size_t size)
{
    req->data_len = size;
    if (size > 0)
        memcpy(req->data, buf, size);
    return answered(req, 0);
}

int fuse_reply_iov(fuse_req_t req, const struct iovec *iov, int count)
{
    req->data_len = 0;
    for (int i = 0; i < count; i++) {
        assert(req->data_len + iov[i].iov_len <= MOUNT_READ_MAX);
        memcpy(req->data + req->data_len, iov[i].iov_base, iov[i].iov_len);
        req->data_len += iov[i].iov_len;
    }
    return answered(req, 0);
}

int fuse_reply_statfs(fuse_req_t req, const struct statvfs *st)
{
    (void)st;
    return answered(req, 0);
}

int fuse_reply_ioctl(fuse_req_t req, int result, const void *buf, size_t size)
{
    (void)result;
    return fuse_reply_buf(req, buf, size);
}

int fuse_reply_xattr(fuse_req_t req, size_t count)
{
    req->n = count;
    return answered(req, 0);
}

int fuse_reply_lock(fuse_req_t req, const struct flock *lock)
{
    (void)lock; /* no program asks for it */
    return answered(req, 0);
}

int fuse_reply_lseek(fuse_req_t req, off_t off)
{
    req->n = (uint64_t)off;
    return answered(req, 0);
}

static struct sim_dirent dirent_of(const char *name, const struct stat *st, off_t off)
{
    struct sim_dirent d = { .ino = st->st_ino, .next = (uint64_t)off };

    assert(strlen(name) < sizeof(d.name));
    memcpy(d.name, name, strlen(name));
    return d;
}

size_t fuse_add_direntry(fuse_req_t req, char *buf, size_t bufsize, const char *name,
                         const struct stat *st, off_t off)
{
    struct sim_dirent d = dirent_of(name, st, off);

    (void)req;
    if (bufsize >= sizeof(d))
        memcpy(buf, &d, sizeof(d));
    return sizeof(d);
}

size_t fuse_add_direntry_plus(fuse_req_t req, char *buf, size_t bufsize, const char *name,
                              const struct fuse_entry_param *e, off_t off)
{
    struct sim_direntplus p = { .d = dirent_of(name, &e->attr, off), .entry = *e };

    (void)req;
    if (bufsize >= sizeof(p))
        memcpy(buf, &p, sizeof(p));
    return sizeof(p);
}

/* ---- the mount ---- */

static struct sim_mount *mount_of_env(struct env *env)
{
    struct loop *loop = container_of((struct env_uv *)(void *)env, struct loop, env);

    return container_of(loop, struct sim_mount, loop);
}

static int64_t mount_wall_ns(struct env *env)
{
    struct sim_mount *sm = mount_of_env(env);

    return sm->loop.env_below->wall_ns(env) + atomic_load(&sm->m.clock_ahead_ns);
}

static struct map_channel *peer_find(struct sim_mount *sm, uint32_t storage_id)
{
    for (unsigned i = 0; i < sm->n_peers; i++) {
        if (sm->peers[i].id == storage_id)
            return &sm->peers[i];
    }
    return NULL;
}

static struct rpc_channel *on_peer_wanted(void *arg, uint32_t storage_id)
{
    struct map_channel *peer = peer_find(arg, storage_id);

    return peer == NULL ? NULL : peer->ch;
}

/* Connects to a storage that is new or has a new disk. */
static void peer_connect(struct sim_mount *sm, struct map_channel *peer,
                         const struct map_storage *s, struct host *host)
{
    if (peer == NULL) {
        assert(sm->n_peers < STORAGES_MAX);
        peer = &sm->peers[sm->n_peers++];
    } else {
        net_channel_close(peer->ch);
    }
    peer->id = s->id;
    memcpy(peer->incarnation, s->incarnation, sizeof(peer->incarnation));
    peer->ch = net_channel_new(sm->client->host, host, RPC_ROLE_CLIENT, s->incarnation,
                               NULL, NULL);
    net_channel_set_session(peer->ch, sm->client->session);
}

static void on_map_changed(void *arg, const struct cluster_map *map)
{
    struct sim_mount *sm = arg;

    for (unsigned i = 0; i < map->n_storages; i++) {
        const struct map_storage *s = &map->storages[i];
        struct map_channel *peer = peer_find(sm, s->id);

        if (s->n_addrs == 0 || (peer != NULL && memcmp(peer->incarnation, s->incarnation,
                                                       sizeof(s->incarnation)) == 0))
            continue;
        for (unsigned j = 0; j < servers.n_storages; j++) {
            if (strcmp(servers.storages[j].addr, s->addrs[0]) == 0)
                peer_connect(sm, peer, s, servers.storages[j].host);
        }
    }
}

static void on_lock_event(void *arg, uint64_t waiter, int rc)
{
    struct sim_mount *sm = arg;

    locks_event(&sm->loop, waiter, rc);
}

static void on_recall(void *arg, uint64_t ino, enum token_mode keep, uint64_t grant,
                      uint64_t call)
{
    struct sim_mount *sm = arg;
    const struct recalled_token recall = { ino, keep, grant, call };

    recall_send(&sm->m, &recall);
}

static void on_tokens_max(void *arg)
{
    struct sim_mount *sm = arg;

    recalls_trim(&sm->loop);
}

static void on_tokens_lost(void *arg)
{
    struct sim_mount *sm = arg;

    model_session_lost((int)sm->client->index, sm->client->host->proc->life);
    recalls_lose_all(&sm->loop);
}

static void on_unsure(void *arg)
{
    struct sim_mount *sm = arg;

    recalls_drop_kernel(&sm->loop);
}

static void on_lock_lost(void *arg, uint64_t ino)
{
    (void)arg;
    (void)ino;
}

static void on_session_opened(void *arg, const struct mount_session_info *info)
{
    struct sim_mount *sm = arg;
    bool lost = sm->m.info.id != 0 && sm->m.info.losses != info->losses;

    sm->client->session = info->id;
    sm->client->opened_ns = world_clock.now_ns;
    sm->client->losses = info->losses;
    sm->m.info = *info;
    metas_channel_set_session(sm->md_channel, sm->md_group, info->id);
    for (unsigned i = 0; i < sm->n_peers; i++)
        net_channel_set_session(sm->peers[i].ch, info->id);
    nodes_learn_losses(&sm->loop.nodes, info->losses);
    md_client_session_is_open(&sm->loop.md);
    locks_ask_again(&sm->loop);
    if (lost)
        recalls_drop_kernel(&sm->loop);
}

static void on_clock_is_ahead(void *arg, int64_t ns)
{
    struct sim_mount *sm = arg;

    atomic_fetch_add(&sm->m.clock_ahead_ns, ns);
}

static void on_first_open(void *arg, int rc)
{
    struct sim_mount *sm = arg;

    if (rc == 0)
        sm->client->mounted = true;
    else
        sm->client->stopped = true; /* the mount failed */
}

static void on_lost_task(struct env_task *task)
{
    mount_session_lost(container_of(task, struct sim_mount, lost)->m.session);
}

static void on_session_lost(void *arg)
{
    struct sim_mount *sm = arg;

    sm->lost.fn = on_lost_task;
    env_post(&sm->loop.env.env, &sm->lost);
}

static void on_md_broke(void *arg)
{
    md_client_channel_is_up(&((struct sim_mount *)arg)->loop.md);
}

static void count_open(void *arg, uint64_t ino, int change)
{
    struct sim_mount *sm = arg;

    atomic_fetch_add(&sm->m.open_counts[mount_counter(ino)], (unsigned)change);
}

static void count_kept(void *arg, uint64_t ino, int change)
{
    struct sim_mount *sm = arg;

    atomic_fetch_add(&sm->m.kept_counts[mount_counter(ino)], (unsigned)change);
}

static void on_invalidate(void *arg, uint64_t ino)
{
    struct sim_mount *sm = arg;

    if (sm->m.inval != NULL)
        kernel_inval_add(sm->m.inval, ino);
}

static void loop_begin(struct sim_mount *sm)
{
    struct loop *loop = &sm->loop;
    struct env *env = &loop->env.env;
    struct md_client_config md = { .timeout_ms = sm->opt.meta_timeout_ms,
                                   .mount_session_lost = on_session_lost,
                                   .arg = sm };
    struct storcli_config storcli = { .read_deadline_ms = sm->opt.io_timeout_ms,
                                      .write_deadline_ms = sm->opt.io_timeout_ms };
    struct storcli_peers peers = { .channel = on_peer_wanted, .arg = sm };
    struct nodes_config nodes = {
        .refs = sm->m.refs,
        .unsynced = sm->m.unsynced,
        .tokens = sm->m.tokens,
        .invalidate = on_invalidate,
        .count = count_open,
        .count_kept = count_kept,
        .arg = sm,
    };
    int rc;

    loop->mount = &sm->m;
    loop->env_below = sm->client->host->proc->env.ops;
    loop->env_ops = *loop->env_below;
    loop->env_ops.wall_ns = mount_wall_ns;
    env->ops = &loop->env_ops;
    fuse_op_init_signals(loop);
    list_init(&loop->givings);
    loop->giving_task.fn = on_giving_task;
    loop->md_channel = sm->md_channel;
    md_client_init(&loop->md, env, loop->md_channel, &md);
    rc = storcli_new(env, &storcli, &peers, &loop->cli);
    assert(rc == 0);
    rc = file_pool_new(0, &loop->pool);
    assert(rc == 0);
    nodes.file.pool = loop->pool;
    nodes_init(&loop->nodes, env, &loop->md, loop->cli, &nodes);
    list_init(&loop->givings);
    loop->giving_task.fn = on_giving_task;
}

static void client_send(void *arg, struct fuse_req *req, const struct request *r);
static void interrupt_send(void *arg, struct fuse_req *req);

/* Every other mount is reported by its successor, as on one machine. */
static const uint64_t *find_dead(void *arg, size_t *n)
{
    struct sim_client *c = ((struct sim_mount *)arg)->client;

    *n = c->dead != 0;
    return &c->dead;
}

static void on_dead_reported(void *arg)
{
    ((struct sim_mount *)arg)->client->dead = 0;
}

void client_init(struct sim_client *c, unsigned index)
{
    char name[16];

    *c = (struct sim_client){ .index = index };
    snprintf(name, sizeof(name), "client%u", index + 1);
    c->host = net_add_host(proc_new(name));
}

void client_start(struct sim_client *c)
{
    struct mount_session_config session = {
        .export_name = "main",
        .client = c->host->proc->name,
        .open_timeout_ms = 30000,
        .opened = on_session_opened,
        .lock_event = on_lock_event,
        .lock_lost = on_lock_lost,
        .recall = on_recall,
        .tokens_max = on_tokens_max,
        .tokens_lost = on_tokens_lost,
        .unsure = on_unsure,
        .map_changed = on_map_changed,
        .clock_is_ahead = on_clock_is_ahead,
    };
    const struct kernel_config kernel = { .send = client_send,
                                          .interrupt = interrupt_send,
                                          .arg = c,
                                          .naps = true,
                                          .forgets = true,
                                          .plus = true,
                                          .deaf = c->has_deaf_kernel };
    const struct held_room room = { 1 << 14, 1 << 10 };
    struct err err = { 0 };
    struct sim_mount *sm;
    struct proc *before;

    if (c->has_kernel)
        c->kernel = kernel_new(&kernel);
    proc_start(c->host->proc);
    before = proc_enter(c->host->proc);
    sm = c->mount = xzalloc(sizeof(*sm));
    c->mounted = c->stopped = false;
    c->session = 0;
    c->losses = 0;
    if (c->dead % 2 != 0) {
        session.find_dead = find_dead;
        session.dead_are_reported = on_dead_reported;
    }
    sm->client = c;
    sm->opt.meta_timeout_ms = 20000;
    sm->opt.io_timeout_ms = 20000;
    sm->opt.export_name = (char *)(uintptr_t) "main";
    sm->m.opt = &sm->opt;
    sm->m.shell = &shell;
    sm->m.hold.link = -1;
    sm->m.maps_direct = run->config.direct;
    sm->m.cache = run->config.direct ? CACHE_READS : CACHE_PAGES;
    sm->m.loops = &sm->loop;
    sm->m.n_loops = 1;
    if (held_open(-1, &room, &sm->m.held, &err) != 0)
        abort();
    sm->m.refs = open_refs_new();
    sm->m.lock_table = lock_table_new();
    sm->m.tokens = token_cache_new();
    sm->m.name_inval = name_inval_new();
    sm->m.rename_barrier = rename_barrier_new();
    sm->m.open_dirs = open_dirs_new();
    sm->m.dir_places = dir_places_new();
    sm->m.next_files = next_files_new(0);
    sm->m.atimes = atimes_new(ATIMES_RELATIVE, false);
    sm->m.unsynced = unsynced_inodes_new();
    if (c->kernel != NULL) {
        sm->m.names_expire = c->index % 2 == 0;
        sm->m.inval = sim_kernel_inval_new(c->host->proc, c->kernel, sm->m.names_expire);
        sm->m.notify = sim_kernel_notify_new(c->host->proc, c->kernel, sm->m.names_expire,
                                             !c->has_old_kernel);
    }
    sm->md_channel = metas_channel_new(c->host, on_md_broke, sm, &sm->md_group);
    loop_begin(sm);
    session.reads = &sm->m.reads;
    session.refs = sm->m.refs;
    session.lock_table = sm->m.lock_table;
    session.tokens = sm->m.tokens;
    session.unsynced = sm->m.unsynced;
    session.arg = sm;
    sm->m.session = mount_session_new(&sm->loop.env.env, &sm->loop.md, &session);
    atimes_report_start(&sm->loop);
    mount_session_open(sm->m.session, on_first_open, sm);
    proc_leave(before);
}

static void counts_add(struct kernel_counts *sum, const struct kernel_counts *more)
{
    sum->n_names += more->n_names;
    sum->n_attrs += more->n_attrs;
    sum->n_pages += more->n_pages;
    sum->n_lists += more->n_lists;
    sum->n_invalidated += more->n_invalidated;
    sum->n_forgotten += more->n_forgotten;
    sum->n_overtaken += more->n_overtaken;
    sum->n_beside += more->n_beside;
}

static void kernel_end(struct sim_client *c)
{
    if (c->kernel == NULL)
        return;
    counts_add(&c->counts, kernel_counts(c->kernel));
    kernel_free(c->kernel);
    c->kernel = NULL;
}

void client_kill(struct sim_client *c)
{
    static const uint32_t losses[] = { 0, 500000, 500000, 1000000 };

    net_host_died(c->host, losses[world_below(4)]);
    if (c->session != 0)
        c->dead = c->session;
    kernel_end(c);
    proc_kill(c->host->proc);
    c->mount = NULL;
    c->mounted = false;
}

void client_counts(const struct sim_client *c, struct kernel_counts *sum)
{
    counts_add(sum, &c->counts);
    if (c->kernel != NULL)
        counts_add(sum, kernel_counts(c->kernel));
}

static void on_session_closed(void *arg)
{
    struct sim_mount *sm = arg;

    recalls_close(&sm->loop);
    sm->client->stopped = true;
}

static void on_atimes_reported(struct mount *m)
{
    struct sim_mount *sm = container_of(m, struct sim_mount, m);

    mount_session_close(sm->m.session, on_session_closed, sm);
}

static void on_nodes_idle(void *arg)
{
    struct sim_mount *sm = arg;

    atimes_report_end(&sm->m, on_atimes_reported);
}

void client_stop(struct sim_client *c)
{
    struct proc *before = proc_enter(c->host->proc);

    c->mounted = false;
    recalls_stop(&c->mount->loop);
    nodes_when_idle(&c->mount->loop.nodes, on_nodes_idle, c->mount);
    proc_leave(before);
}

bool client_is_up(const struct sim_client *c)
{
    return c->host->proc->alive && c->mounted;
}

bool client_is_dropping(const struct sim_client *c)
{
    return c->kernel != NULL && sim_recaller_is_busy(c->mount->m.notify);
}

struct token_cache *client_tokens(const struct sim_client *c)
{
    return c->mount->m.tokens;
}

/* ---- requests ---- */

static void write_send(struct loop *loop, struct fuse_req *req, const struct request *r,
                       struct fuse_file_info *fi)
{
    struct reqbuf *buf = xzalloc(sizeof(*buf));
    struct fuse_bufvec bufv = FUSE_BUFVEC_INIT(r->len);

    if (posix_memalign((void **)&buf->base, 4096, r->len + 1) != 0)
        abort();
    memcpy(buf->base, r->data, r->len);
    bufv.buf[0].mem = buf->base;
    loop->current = buf;
    face_ops.write_buf(req, r->ino, &bufv, (off_t)r->off, fi);
    if (loop->current != NULL)
        return_buf(loop, buf);
    loop->current = NULL;
}

static void name_send(struct fuse_req *req, const struct request *r,
                      struct fuse_file_info *fi)
{
    switch (r->kind) {
    case REQUEST_LOOKUP:
        face_ops.lookup(req, r->ino, r->name);
        break;
    case REQUEST_CREATE:
        face_ops.create(req, r->ino, r->name, 0644, fi);
        break;
    case REQUEST_MKDIR:
        face_ops.mkdir(req, r->ino, r->name, 0755);
        break;
    case REQUEST_UNLINK:
        face_ops.unlink(req, r->ino, r->name);
        break;
    case REQUEST_RMDIR:
        face_ops.rmdir(req, r->ino, r->name);
        break;
    case REQUEST_LINK:
        face_ops.link(req, r->ino2, r->ino, r->name);
        break;
    case REQUEST_RENAME:
        face_ops.rename(req, r->ino, r->name, r->ino2, r->name2, 0);
        break;
    case REQUEST_OPENDIR:
        face_ops.opendir(req, r->ino, fi);
        break;
    case REQUEST_READDIR:
        face_ops.readdir(req, r->ino, 5 * sizeof(struct sim_dirent), (off_t)r->off, fi);
        break;
    case REQUEST_READDIRPLUS:
        face_ops.readdirplus(req, r->ino, 5 * sizeof(struct sim_direntplus),
                             (off_t)r->off, fi);
        break;
    case REQUEST_RELEASEDIR:
        face_ops.releasedir(req, r->ino, fi);
        break;
    default: /* FORGET */
        face_ops.forget(req, r->ino, r->len);
        break;
    }
}

/* Lists random files as those that are opened next: wrong guesses must do no harm. */
static void guess_wildly(struct sim_mount *sm, uint64_t ino)
{
    struct next_file files[1 + GUESSES] = { { ino, 1 } };
    unsigned n = sm->n_opened < OPENED_MAX ? sm->n_opened : OPENED_MAX;

    for (unsigned i = 0; n > 0 && i < GUESSES; i++)
        files[1 + i] = (struct next_file){ sm->opened[world_below(n)], 1 };
    next_files_listed(sm->m.next_files, 1, 0, 1, files, n > 0 ? 1 + GUESSES : 1);
    sm->opened[sm->n_opened++ % OPENED_MAX] = ino;
}

static void file_send(struct loop *loop, struct fuse_req *req, const struct request *r,
                      struct fuse_file_info *fi)
{
    struct stat st = { .st_size = (off_t)r->off };
    struct flock lock = { .l_type = (short)r->flags,
                          .l_whence = SEEK_SET,
                          .l_start = (off_t)r->off,
                          .l_len = (off_t)r->len };

    switch (r->kind) {
    case REQUEST_OPEN:
        guess_wildly(container_of(loop, struct sim_mount, loop), r->ino);
        face_ops.open(req, r->ino, fi);
        break;
    case REQUEST_RELEASE:
        face_ops.release(req, r->ino, fi);
        break;
    case REQUEST_READ:
        assert(r->len <= MOUNT_READ_MAX);
        face_ops.read(req, r->ino, r->len, (off_t)r->off, fi);
        break;
    case REQUEST_WRITE:
        write_send(loop, req, r, fi);
        break;
    case REQUEST_FSYNC:
        face_ops.fsync(req, r->ino, 0, fi);
        break;
    case REQUEST_FLUSH:
        face_ops.flush(req, r->ino, fi);
        break;
    case REQUEST_TRUNCATE:
        face_ops.setattr(req, r->ino, &st, FUSE_SET_ATTR_SIZE, NULL);
        break;
    case REQUEST_FALLOCATE:
        face_ops.fallocate(req, r->ino, r->flags, (off_t)r->off, (off_t)r->len, fi);
        break;
    case REQUEST_SEEK:
        face_ops.lseek(req, r->ino, (off_t)r->off, r->flags, fi);
        break;
    case REQUEST_SETLK:
        face_ops.setlk(req, r->ino, fi, &lock, r->waits);
        break;
    default: /* GETATTR */
        face_ops.getattr(req, r->ino, r->fh == 0 ? NULL : fi);
        break;
    }
}

static void xattr_send(struct fuse_req *req, const struct request *r)
{
    if (r->kind == REQUEST_GETXATTR)
        face_ops.getxattr(req, r->ino, r->name, r->len);
    else if (r->kind == REQUEST_LISTXATTR)
        face_ops.listxattr(req, r->ino, r->len);
    else if (r->kind == REQUEST_SETXATTR)
        face_ops.setxattr(req, r->ino, r->name, r->data, r->len, 0);
    else
        face_ops.removexattr(req, r->ino, r->name);
}

/* Sends a request to the mount; arg: the client. */
static void client_send(void *arg, struct fuse_req *req, const struct request *r)
{
    struct sim_client *c = arg;
    struct loop *loop = &c->mount->loop;
    struct fuse_file_info fi = { .fh = r->fh, .lock_owner = r->owner };
    struct proc *before = proc_enter(c->host->proc);

    if (r->kind == REQUEST_CREATE || r->kind == REQUEST_OPEN || r->kind == REQUEST_READ ||
        r->kind == REQUEST_WRITE)
        fi.flags = r->flags;
    req->client = c;
    req->unique = loop->current_unique = ++c->mount->last_unique;
    switch (r->kind) {
    case REQUEST_OPEN:
    case REQUEST_RELEASE:
    case REQUEST_READ:
    case REQUEST_WRITE:
    case REQUEST_FSYNC:
    case REQUEST_FLUSH:
    case REQUEST_TRUNCATE:
    case REQUEST_FALLOCATE:
    case REQUEST_SEEK:
    case REQUEST_SETLK:
    case REQUEST_GETATTR:
        file_send(loop, req, r, &fi);
        break;
    case REQUEST_GETXATTR:
    case REQUEST_LISTXATTR:
    case REQUEST_SETXATTR:
    case REQUEST_REMOVEXATTR:
        xattr_send(req, r);
        break;
    default:
        name_send(req, r, &fi);
        break;
    }
    proc_leave(before);
}

static void client_ask(struct sim_client *c, struct fuse_req *req,
                       const struct request *r)
{
    assert(client_is_up(c));
    req->client = c;
    if (c->kernel != NULL) {
        kernel_ask(c->kernel, req, r);
        return;
    }
    request_begin(req);
    client_send(c, req, r);
}

void client_lookup(struct sim_client *c, struct fuse_req *req, uint64_t parent,
                   const char *name)
{
    const struct request r = { .kind = REQUEST_LOOKUP, .ino = parent, .name = name };

    client_ask(c, req, &r);
}

void client_create(struct sim_client *c, struct fuse_req *req, uint64_t parent,
                   const char *name, int flags)
{
    const struct request r = {
        .kind = REQUEST_CREATE, .ino = parent, .name = name, .flags = flags
    };

    client_ask(c, req, &r);
}

void client_mkdir(struct sim_client *c, struct fuse_req *req, uint64_t parent,
                  const char *name)
{
    const struct request r = { .kind = REQUEST_MKDIR, .ino = parent, .name = name };

    client_ask(c, req, &r);
}

void client_open(struct sim_client *c, struct fuse_req *req, uint64_t ino, int flags)
{
    const struct request r = { .kind = REQUEST_OPEN, .ino = ino, .flags = flags };

    client_ask(c, req, &r);
}

void client_release(struct sim_client *c, struct fuse_req *req, uint64_t ino, uint64_t fh)
{
    const struct request r = { .kind = REQUEST_RELEASE, .ino = ino, .fh = fh };

    client_ask(c, req, &r);
}

void client_read(struct sim_client *c, struct fuse_req *req, uint64_t ino, uint64_t fh,
                 uint64_t offset, size_t len, int flags)
{
    const struct request r = { .kind = REQUEST_READ,
                               .ino = ino,
                               .fh = fh,
                               .off = offset,
                               .len = len,
                               .flags = flags };

    client_ask(c, req, &r);
}

void client_write(struct sim_client *c, struct fuse_req *req, uint64_t ino, uint64_t fh,
                  uint64_t offset, const void *data, size_t len, int flags)
{
    const struct request r = { .kind = REQUEST_WRITE,
                               .ino = ino,
                               .fh = fh,
                               .off = offset,
                               .len = len,
                               .flags = flags,
                               .data = data };

    client_ask(c, req, &r);
}

void client_fsync(struct sim_client *c, struct fuse_req *req, uint64_t ino, uint64_t fh)
{
    const struct request r = { .kind = REQUEST_FSYNC, .ino = ino, .fh = fh };

    client_ask(c, req, &r);
}

void client_flush(struct sim_client *c, struct fuse_req *req, uint64_t ino, uint64_t fh,
                  uint64_t owner)
{
    const struct request r = {
        .kind = REQUEST_FLUSH, .ino = ino, .fh = fh, .owner = owner
    };

    client_ask(c, req, &r);
}

void client_setlk(struct sim_client *c, struct fuse_req *req, uint64_t ino, uint64_t fh,
                  uint64_t owner, int type, uint64_t offset, uint64_t len, bool waits)
{
    const struct request r = { .kind = REQUEST_SETLK,
                               .ino = ino,
                               .fh = fh,
                               .off = offset,
                               .len = len,
                               .flags = type,
                               .owner = owner,
                               .waits = waits };

    client_ask(c, req, &r);
}

/* Sends an interrupt to the mount; arg: the client. */
static void interrupt_send(void *arg, struct fuse_req *req)
{
    struct sim_client *c = arg;
    struct proc *before = proc_enter(c->host->proc);

    fuse_op_interrupt(&c->mount->loop, req->unique);
    proc_leave(before);
}

void client_interrupt(struct sim_client *c, struct fuse_req *req)
{
    if (c->kernel != NULL)
        kernel_interrupt(c->kernel, req);
    else if (!req->task.queued)
        interrupt_send(c, req);
}

void client_truncate(struct sim_client *c, struct fuse_req *req, uint64_t ino,
                     uint64_t size)
{
    const struct request r = { .kind = REQUEST_TRUNCATE, .ino = ino, .off = size };

    client_ask(c, req, &r);
}

void client_fallocate(struct sim_client *c, struct fuse_req *req, uint64_t ino,
                      uint64_t fh, int mode, uint64_t offset, uint64_t len)
{
    const struct request r = { .kind = REQUEST_FALLOCATE,
                               .ino = ino,
                               .fh = fh,
                               .flags = mode,
                               .off = offset,
                               .len = len };

    client_ask(c, req, &r);
}

void client_seek(struct sim_client *c, struct fuse_req *req, uint64_t ino, uint64_t fh,
                 uint64_t offset, int whence)
{
    const struct request r = {
        .kind = REQUEST_SEEK, .ino = ino, .fh = fh, .off = offset, .flags = whence
    };

    client_ask(c, req, &r);
}

void client_getattr(struct sim_client *c, struct fuse_req *req, uint64_t ino)
{
    const struct request r = { .kind = REQUEST_GETATTR, .ino = ino };

    client_ask(c, req, &r);
}

void client_getxattr(struct sim_client *c, struct fuse_req *req, uint64_t ino,
                     const char *name, size_t len)
{
    const struct request r = {
        .kind = REQUEST_GETXATTR, .ino = ino, .name = name, .len = len
    };

    client_ask(c, req, &r);
}

void client_listxattr(struct sim_client *c, struct fuse_req *req, uint64_t ino,
                      size_t len)
{
    const struct request r = { .kind = REQUEST_LISTXATTR, .ino = ino, .len = len };

    client_ask(c, req, &r);
}

void client_setxattr(struct sim_client *c, struct fuse_req *req, uint64_t ino,
                     const char *name, const void *value, size_t len)
{
    const struct request r = {
        .kind = REQUEST_SETXATTR, .ino = ino, .name = name, .data = value, .len = len
    };

    client_ask(c, req, &r);
}

void client_removexattr(struct sim_client *c, struct fuse_req *req, uint64_t ino,
                        const char *name)
{
    const struct request r = { .kind = REQUEST_REMOVEXATTR, .ino = ino, .name = name };

    client_ask(c, req, &r);
}

void client_unlink(struct sim_client *c, struct fuse_req *req, uint64_t parent,
                   const char *name)
{
    const struct request r = { .kind = REQUEST_UNLINK, .ino = parent, .name = name };

    client_ask(c, req, &r);
}

void client_rmdir(struct sim_client *c, struct fuse_req *req, uint64_t parent,
                  const char *name)
{
    const struct request r = { .kind = REQUEST_RMDIR, .ino = parent, .name = name };

    client_ask(c, req, &r);
}

void client_link(struct sim_client *c, struct fuse_req *req, uint64_t ino,
                 uint64_t parent, const char *name)
{
    const struct request r = {
        .kind = REQUEST_LINK, .ino = parent, .name = name, .ino2 = ino
    };

    client_ask(c, req, &r);
}

void client_rename(struct sim_client *c, struct fuse_req *req, uint64_t parent,
                   const char *name, uint64_t new_parent, const char *new_name)
{
    const struct request r = { .kind = REQUEST_RENAME,
                               .ino = parent,
                               .name = name,
                               .ino2 = new_parent,
                               .name2 = new_name };

    client_ask(c, req, &r);
}

void client_opendir(struct sim_client *c, struct fuse_req *req, uint64_t ino)
{
    const struct request r = { .kind = REQUEST_OPENDIR, .ino = ino };

    client_ask(c, req, &r);
}

void client_releasedir(struct sim_client *c, struct fuse_req *req, uint64_t ino,
                       uint64_t fh)
{
    const struct request r = { .kind = REQUEST_RELEASEDIR, .ino = ino, .fh = fh };

    client_ask(c, req, &r);
}

void client_readdir(struct sim_client *c, struct fuse_req *req, uint64_t ino, uint64_t fh,
                    uint64_t offset)
{
    const struct request r = {
        .kind = REQUEST_READDIR, .ino = ino, .fh = fh, .off = offset
    };

    client_ask(c, req, &r);
}
