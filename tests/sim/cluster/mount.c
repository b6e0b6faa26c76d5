/*
 * mount.c - a client of the simulated cluster.
 *
 * In:     requests of programs, as the kernel would send them; answers of libfuse's functions, which
 *         are made here. Thread: one.
 * Out:    rozomount's handlers, in the client's process.
 * Keeps:  a program hears its answer later, in the world, and not if the client dies first.
 */
#include "tests/sim/cluster/mount.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rozomount/mem.h"

struct map_channel {
    uint32_t id;
    uint8_t incarnation[16];
    struct rpc_channel *ch;
};

/* The mount while it runs. In its process. */
struct sim_mount {
    struct sim_client *client;
    struct mount m;
    struct loop loop;
    struct options opt;
    struct rpc_channel *md_channel;
    struct map_channel peers[STORAGES_MAX];
    unsigned n_peers;
    struct env_task lost;
    uint64_t last_unique; /* of the kernel's numbers for requests */
};

/* ---- what libfuse and the shell of rozomount would do ---- */

void loop_take_request(struct loop *loop, struct op *op)
{
    assert(loop->current != NULL && op->home == loop);
    op->buf = loop->current;
    loop->current = NULL;
}

void loop_return_buf(struct loop *loop, struct reqbuf *buf)
{
    (void)loop;
    free(buf->base);
    free(buf);
}

void op_after_pages(struct op *op, void (*step)(struct op *op))
{
    step(op);
}

void mount_drained(struct mount *m)
{
    (void)m;
}

const char *peers_addresses(const struct peers *peers, uint32_t storage_id)
{
    (void)peers;
    (void)storage_id;
    return "";
}

static struct proc *world_enter(void)
{
    return proc_enter(&world_clock.world);
}

/* Answered: its program hears of it in the world, later. */
static int answered(fuse_req_t req, int rc)
{
    struct proc *before = world_enter();

    assert(req->under_way);
    req->rc = rc;
    world_trace((uint64_t)rc << 8 ^ req->client->index);
    tasks_push(&world_clock.world.tasks, &req->task);
    proc_leave(before);
    return 0;
}

static void on_answer_task(struct env_task *task)
{
    struct fuse_req *req = container_of(task, struct fuse_req, task);

    req->under_way = false;
    req->done(req);
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
    req->fh = fi->fh;
    return answered(req, 0);
}

int fuse_reply_attr(fuse_req_t req, const struct stat *attr, double attr_timeout)
{
    (void)attr_timeout;
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
    return answered(req, 0);
}

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

int fuse_reply_xattr(fuse_req_t req, size_t count)
{
    req->n = count;
    return answered(req, 0);
}

int fuse_reply_lock(fuse_req_t req, const struct flock *lock)
{
    (void)lock; /* no program of ours asks yet */
    return answered(req, 0);
}

int fuse_reply_lseek(fuse_req_t req, off_t off)
{
    req->n = (uint64_t)off;
    return answered(req, 0);
}

size_t fuse_add_direntry(fuse_req_t req, char *buf, size_t bufsize, const char *name,
                         const struct stat *st, off_t off)
{
    struct sim_dirent d = { .ino = st->st_ino, .next = (uint64_t)off };

    (void)req;
    assert(strlen(name) < sizeof(d.name));
    memcpy(d.name, name, strlen(name));
    if (bufsize >= sizeof(d))
        memcpy(buf, &d, sizeof(d));
    return sizeof(d);
}

size_t fuse_add_direntry_plus(fuse_req_t req, char *buf, size_t bufsize, const char *name,
                              const struct fuse_entry_param *e, off_t off)
{
    return fuse_add_direntry(req, buf, bufsize, name, &e->attr, off);
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

/* A storage is new, or its disk was replaced. */
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

static void on_session_opened(void *arg, const struct session_info *info)
{
    struct sim_mount *sm = arg;

    sm->client->session = info->id;
    net_channel_set_session(sm->md_channel, info->id);
    for (unsigned i = 0; i < sm->n_peers; i++)
        net_channel_set_session(sm->peers[i].ch, info->id);
    nodes_learn_losses(&sm->loop.nodes, info->losses);
    md_session_is_open(&sm->loop.md);
    locks_ask_again(&sm->loop);
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
    session_lost(container_of(task, struct sim_mount, lost)->m.session);
}

static void on_session_lost(void *arg)
{
    struct sim_mount *sm = arg;

    sm->lost.fn = on_lost_task;
    env_post(&sm->loop.env.env, &sm->lost);
}

static void on_md_broke(void *arg)
{
    md_channel_is_up(&((struct sim_mount *)arg)->loop.md);
}

static void count_open(void *arg, uint64_t ino, int change)
{
    struct sim_mount *sm = arg;

    atomic_fetch_add(mount_open_count(&sm->m, ino), (unsigned)change);
}

static void loop_begin(struct sim_mount *sm)
{
    struct loop *loop = &sm->loop;
    struct env *env = &loop->env.env;
    struct md_config md = { .timeout_ms = sm->opt.meta_timeout_ms,
                            .session_lost = on_session_lost,
                            .arg = sm };
    struct storcli_config storcli = { .read_deadline_ms = sm->opt.io_timeout_ms,
                                      .write_deadline_ms = sm->opt.io_timeout_ms };
    struct storcli_peers peers = { .channel = on_peer_wanted, .arg = sm };
    struct nodes_config nodes = {
        .refs = sm->m.refs, .unstable = sm->m.unstable, .count = count_open, .arg = sm
    };
    int rc;

    loop->mount = &sm->m;
    loop->env_below = sm->client->host->proc->env.ops;
    loop->env_ops = *loop->env_below;
    loop->env_ops.wall_ns = mount_wall_ns;
    env->ops = &loop->env_ops;
    op_init_signals(loop);
    loop->md_channel = sm->md_channel;
    md_init(&loop->md, env, loop->md_channel, &md);
    rc = storcli_new(env, &storcli, &peers, &loop->cli);
    assert(rc == 0);
    rc = file_pool_new(0, &loop->pool);
    assert(rc == 0);
    nodes.file.pool = loop->pool;
    nodes_init(&loop->nodes, env, &loop->md, loop->cli, &nodes);
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
    struct session_config session = {
        .export_name = "main",
        .client = c->host->proc->name,
        .open_timeout_ms = 30000,
        .opened = on_session_opened,
        .lock_event = on_lock_event,
        .map_changed = on_map_changed,
        .clock_is_ahead = on_clock_is_ahead,
    };
    struct sim_mount *sm;
    struct proc *before;

    proc_start(c->host->proc);
    before = proc_enter(c->host->proc);
    sm = c->mount = mem_new(sizeof(*sm));
    c->mounted = c->stopped = false;
    c->session = 0;
    sm->client = c;
    sm->opt.meta_timeout_ms = 20000;
    sm->opt.io_timeout_ms = 20000;
    sm->opt.export_name = (char *)(uintptr_t) "main";
    sm->m.opt = &sm->opt;
    sm->m.loops = &sm->loop;
    sm->m.n_loops = 1;
    sm->m.refs = refs_new();
    sm->m.held = held_new();
    sm->m.unstable = unstable_new();
    sm->md_channel = net_channel_new(c->host, servers.exportd.host, RPC_ROLE_CLIENT, NULL,
                                     on_md_broke, sm);
    loop_begin(sm);
    session.refs = sm->m.refs;
    session.held = sm->m.held;
    session.unstable = sm->m.unstable;
    session.arg = sm;
    sm->m.session = session_new(&sm->loop.env.env, &sm->loop.md, &session);
    session_open(sm->m.session, on_first_open, sm);
    proc_leave(before);
}

void client_kill(struct sim_client *c)
{
    static const uint32_t losses[] = { 0, 500000, 500000, 1000000 };

    net_host_died(c->host, losses[world_below(4)]);
    proc_kill(c->host->proc);
    c->mount = NULL;
    c->mounted = false;
}

static void on_session_closed(void *arg)
{
    ((struct sim_mount *)arg)->client->stopped = true;
}

static void on_nodes_idle(void *arg)
{
    struct sim_mount *sm = arg;

    session_close(sm->m.session, on_session_closed, sm);
}

void client_stop(struct sim_client *c)
{
    struct proc *before = proc_enter(c->host->proc);

    c->mounted = false;
    nodes_when_idle(&c->mount->loop.nodes, on_nodes_idle, c->mount);
    proc_leave(before);
}

bool client_is_up(const struct sim_client *c)
{
    return c->host->proc->alive && c->mounted;
}

/* ---- requests ---- */

static struct proc *begin(struct sim_client *c, struct fuse_req *req)
{
    assert(!req->under_way && client_is_up(c));
    req->client = c;
    req->under_way = true;
    req->task = (struct env_task){ .fn = on_answer_task };
    req->data_len = 0;
    c->mount->loop.current_unique = ++c->mount->last_unique;
    return proc_enter(c->host->proc);
}

void client_lookup(struct sim_client *c, struct fuse_req *req, uint64_t parent,
                   const char *name)
{
    struct proc *before = begin(c, req);

    face_ops.lookup(req, parent, name);
    proc_leave(before);
}

void client_create(struct sim_client *c, struct fuse_req *req, uint64_t parent,
                   const char *name, int flags)
{
    struct fuse_file_info fi = { .flags = flags };
    struct proc *before = begin(c, req);

    face_ops.create(req, parent, name, 0644, &fi);
    proc_leave(before);
}

void client_mkdir(struct sim_client *c, struct fuse_req *req, uint64_t parent,
                  const char *name)
{
    struct proc *before = begin(c, req);

    face_ops.mkdir(req, parent, name, 0755);
    proc_leave(before);
}

void client_open(struct sim_client *c, struct fuse_req *req, uint64_t ino, int flags)
{
    struct fuse_file_info fi = { .flags = flags };
    struct proc *before = begin(c, req);

    face_ops.open(req, ino, &fi);
    proc_leave(before);
}

void client_release(struct sim_client *c, struct fuse_req *req, uint64_t ino, uint64_t fh)
{
    struct fuse_file_info fi = { .fh = fh };
    struct proc *before = begin(c, req);

    face_ops.release(req, ino, &fi);
    proc_leave(before);
}

void client_read(struct sim_client *c, struct fuse_req *req, uint64_t ino, uint64_t fh,
                 uint64_t offset, size_t len, int flags)
{
    struct fuse_file_info fi = { .fh = fh, .flags = flags };
    struct proc *before = begin(c, req);

    assert(len <= MOUNT_READ_MAX);
    face_ops.read(req, ino, len, (off_t)offset, &fi);
    proc_leave(before);
}

void client_write(struct sim_client *c, struct fuse_req *req, uint64_t ino, uint64_t fh,
                  uint64_t offset, const void *data, size_t len, int flags)
{
    struct fuse_file_info fi = { .fh = fh, .flags = flags };
    struct proc *before = begin(c, req);
    struct loop *loop = &c->mount->loop;
    struct reqbuf *buf = mem_new(sizeof(*buf));
    struct fuse_bufvec bufv = FUSE_BUFVEC_INIT(len);

    if (posix_memalign((void **)&buf->base, 4096, len + 1) != 0)
        abort();
    memcpy(buf->base, data, len);
    bufv.buf[0].mem = buf->base;
    loop->current = buf;
    face_ops.write_buf(req, ino, &bufv, (off_t)offset, &fi);
    if (loop->current != NULL)
        loop_return_buf(loop, buf);
    loop->current = NULL;
    proc_leave(before);
}

void client_fsync(struct sim_client *c, struct fuse_req *req, uint64_t ino, uint64_t fh)
{
    struct fuse_file_info fi = { .fh = fh };
    struct proc *before = begin(c, req);

    face_ops.fsync(req, ino, 0, &fi);
    proc_leave(before);
}

void client_flush(struct sim_client *c, struct fuse_req *req, uint64_t ino, uint64_t fh)
{
    struct fuse_file_info fi = { .fh = fh };
    struct proc *before = begin(c, req);

    face_ops.flush(req, ino, &fi);
    proc_leave(before);
}

void client_truncate(struct sim_client *c, struct fuse_req *req, uint64_t ino,
                     uint64_t size)
{
    struct stat st = { .st_size = (off_t)size };
    struct proc *before = begin(c, req);

    face_ops.setattr(req, ino, &st, FUSE_SET_ATTR_SIZE, NULL);
    proc_leave(before);
}

void client_fallocate(struct sim_client *c, struct fuse_req *req, uint64_t ino,
                      uint64_t fh, int mode, uint64_t offset, uint64_t len)
{
    struct fuse_file_info fi = { .fh = fh };
    struct proc *before = begin(c, req);

    face_ops.fallocate(req, ino, mode, (off_t)offset, (off_t)len, &fi);
    proc_leave(before);
}

void client_seek(struct sim_client *c, struct fuse_req *req, uint64_t ino, uint64_t fh,
                 uint64_t offset, int whence)
{
    struct fuse_file_info fi = { .fh = fh };
    struct proc *before = begin(c, req);

    face_ops.lseek(req, ino, (off_t)offset, whence, &fi);
    proc_leave(before);
}

void client_getattr(struct sim_client *c, struct fuse_req *req, uint64_t ino)
{
    struct proc *before = begin(c, req);

    face_ops.getattr(req, ino, NULL);
    proc_leave(before);
}

void client_unlink(struct sim_client *c, struct fuse_req *req, uint64_t parent,
                   const char *name)
{
    struct proc *before = begin(c, req);

    face_ops.unlink(req, parent, name);
    proc_leave(before);
}

void client_rmdir(struct sim_client *c, struct fuse_req *req, uint64_t parent,
                  const char *name)
{
    struct proc *before = begin(c, req);

    face_ops.rmdir(req, parent, name);
    proc_leave(before);
}

void client_link(struct sim_client *c, struct fuse_req *req, uint64_t ino,
                 uint64_t parent, const char *name)
{
    struct proc *before = begin(c, req);

    face_ops.link(req, ino, parent, name);
    proc_leave(before);
}

void client_rename(struct sim_client *c, struct fuse_req *req, uint64_t parent,
                   const char *name, uint64_t new_parent, const char *new_name)
{
    struct proc *before = begin(c, req);

    face_ops.rename(req, parent, name, new_parent, new_name, 0);
    proc_leave(before);
}

void client_opendir(struct sim_client *c, struct fuse_req *req, uint64_t ino)
{
    struct fuse_file_info fi = { 0 };
    struct proc *before = begin(c, req);

    face_ops.opendir(req, ino, &fi);
    proc_leave(before);
}

void client_releasedir(struct sim_client *c, struct fuse_req *req, uint64_t ino,
                       uint64_t fh)
{
    struct fuse_file_info fi = { .fh = fh };
    struct proc *before = begin(c, req);

    face_ops.releasedir(req, ino, &fi);
    proc_leave(before);
}

void client_readdir(struct sim_client *c, struct fuse_req *req, uint64_t ino, uint64_t fh,
                    uint64_t offset)
{
    struct fuse_file_info fi = { .fh = fh };
    struct proc *before = begin(c, req);

    face_ops.readdir(req, ino, 5 * sizeof(struct sim_dirent), (off_t)offset, &fi);
    proc_leave(before);
}
