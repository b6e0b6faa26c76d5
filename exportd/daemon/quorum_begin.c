/*
 * quorum_begin.c - the data directory of a first member.
 *
 * In:     exportd --begin-quorum.
 * Out:    DATA/kv, DATA/quorum/identity, DATA/format, in this order; connections to the
 *         other members, to see whether one runs.
 * Keeps:  a directory with a format is whole. What the operator names twice makes the
 *         same, or nothing.
 */
#include "exportd/daemon/quorum_begin.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <uv.h>

#include "common/base/list.h"
#include "common/base/log.h"
#include "common/kv/kv_leveldb.h"
#include "common/rpc/rpc_tcp.h"
#include "common/system/fds.h"
#include "exportd/daemon/datadir.h"
#include "exportd/daemon/first_member.h"

enum { BIRTH_BYTES = 16, LOOK_MS = 3000, LOOK_PAUSE_MS = 20, PATH_BYTES = 4352 };

/* The loop of a run, and the channel that it waits for. */
struct beginning {
    const struct exportd_settings *config;
    struct rpc_keys keys;
    uv_loop_t loop;
    struct env_uv env;
    struct env_timer tick;
    bool is_done, is_due;
};

static int birth_parse(const char *text, uint8_t out[BIRTH_BYTES], struct err *err)
{
    char hex[2 * BIRTH_BYTES + 1] = "";
    size_t n = 0;

    for (const char *p = text; *p != '\0'; p++) {
        if (*p == '-')
            continue;
        if (!isxdigit((unsigned char)*p) || n == 2 * BIRTH_BYTES)
            n = 2 * BIRTH_BYTES + 1; /* wrong */
        if (n > 2 * BIRTH_BYTES)
            break;
        hex[n++] = *p;
    }
    if (n != 2 * BIRTH_BYTES)
        return err_set(err, -EINVAL,
                       "--begin-quorum: \"%s\" is not 32 hexadecimal digits, as "
                       "/proc/sys/kernel/random/uuid gives them",
                       text);
    for (n = 0; n < BIRTH_BYTES; n++) {
        char byte[3] = { hex[2 * n], hex[2 * n + 1], '\0' };

        out[n] = (uint8_t)strtoul(byte, NULL, 16);
    }
    return 0;
}

/* ---- does another member run? ---- */

static void on_tick(struct env_timer *timer)
{
    container_of(timer, struct beginning, tick)->is_due = true;
}

static void on_channel_closed(void *arg)
{
    ((struct beginning *)arg)->is_done = true;
}

static void turn(struct beginning *b)
{
    b->is_due = false;
    env_timer_start(&b->env.env, &b->tick, LOOK_PAUSE_MS);
    while (!b->is_due)
        uv_run(&b->loop, UV_RUN_ONCE);
}

/* Returns whether a member answers at this address. */
static bool member_answers(struct beginning *b, const char *address)
{
    struct rpc_channel_config config = {
        .keys = &b->keys,
        .role = RPC_ROLE_NODE,
        .name = "exportd",
        .addrs = &address,
        .n_addrs = 1,
    };
    struct rpc_channel *ch;
    bool answers = false;

    if (rpc_tcp_channel_open(&b->env, &config, &ch, NULL) != 0)
        return false;
    for (unsigned i = 0; i < LOOK_MS / LOOK_PAUSE_MS && !answers; i++) {
        turn(b);
        answers = rpc_channel_health(ch) == RPC_UP;
        if (rpc_channel_health(ch) == RPC_DOWN &&
            rpc_tcp_channel_last_error(ch)[0] != '\0')
            break;
    }
    b->is_done = false;
    rpc_tcp_channel_close(ch, on_channel_closed, b);
    while (!b->is_done)
        uv_run(&b->loop, UV_RUN_ONCE);
    return answers;
}

static int others_check(struct beginning *b, struct err *err)
{
    const struct quorum_section *q = b->config->quorum;

    for (unsigned i = 0; i < q->members_count; i++) {
        const struct quorum_member_section *m = &q->members[i];

        if (m->id != q->id && member_answers(b, m->address))
            return err_set(err, -EBUSY,
                           "member %u at %s runs: all first members begin before one of "
                           "them is started. If this one was a member and has lost its "
                           "data, it must not begin again: it would forget how it voted",
                           m->id, m->address);
    }
    return 0;
}

/* ---- the directory ---- */

static int member_make(struct beginning *b, const struct raft_config *members,
                       const struct quorum_identity *id, struct err *err)
{
    struct first_member m = { .loop = &b->loop,
                              .data = b->config->exportd.data,
                              .members = members,
                              .identity = *id };
    char dir[PATH_BYTES];
    struct kv_leveldb *kv;
    int rc;

    snprintf(dir, sizeof(dir), "%s/kv", m.data);
    if (mkdir(dir, 0700) != 0 && errno != EEXIST)
        return err_set(err, -errno, "make %s: %s", dir, strerror(errno));
    rc = kv_leveldb_open(&b->env.env, &b->loop, dir, true, FDS_KV_MIN, &kv, err);
    if (rc != 0)
        return rc;
    m.kv = kv_leveldb_kv(kv);
    rc = first_member_make(&m, err);
    kv_leveldb_close(kv);
    return rc;
}

/* Compares with what an earlier run has made. */
static int identity_compare(const char *data, const struct quorum_identity *wished,
                            struct err *err)
{
    struct quorum_identity id = { .member = 0 };
    int rc = quorum_identity_read(data, &id, err);

    if (rc == -ENOENT)
        return err_set(
            err, rc, "%s/quorum/identity is missing: its disk may not be mounted", data);
    if (rc == 0 &&
        (id.member != wished->member ||
         memcmp(id.cluster_id, wished->cluster_id, sizeof(id.cluster_id)) != 0))
        return err_set(err, -EEXIST,
                       "%s belongs to member %u of a quorum that began with another "
                       "number or list of members: give this one a new data directory",
                       data, id.member);
    return rc;
}

static int folder_make_member(struct beginning *b, const uint8_t birth[BIRTH_BYTES],
                              struct err *err)
{
    const char *data = b->config->exportd.data;
    struct quorum_identity id;
    struct raft_config members;
    int lock_fd = -1, rc;
    bool is_new;

    quorum_section_members(b->config->quorum, &members);
    quorum_identity_make(&id, birth, &members, b->config->quorum->id);
    rc = datadir_open(data, true, &lock_fd, &is_new, err);
    if (rc != 0)
        return rc;
    if (!is_new) {
        rc = identity_compare(data, &id, err);
    } else {
        rc = others_check(b, err);
        if (rc == 0)
            rc = member_make(b, &members, &id, err);
    }
    close(lock_fd);
    if (rc == 0)
        log_info("%s is that of member %u of a new quorum; start it when all first "
                 "members have begun",
                 data, id.member);
    return rc;
}

int quorum_begin(const struct exportd_settings *c, const char *birth, struct err *err)
{
    struct beginning b = { .config = c };
    uint8_t bytes[BIRTH_BYTES];
    int rc;

    if (c->quorum == NULL || c->quorum->members_count == 0)
        return err_set(err, -EINVAL,
                       "--begin-quorum: the config has no section `quorum` that lists "
                       "the members");
    rc = birth_parse(birth, bytes, err);
    if (rc == 0)
        rc = rpc_keys_load(&b.keys, true, c->cluster.node_key, err);
    if (rc == 0)
        rc = uv_loop_init(&b.loop);
    if (rc != 0)
        return rc;
    rc = env_uv_init(&b.env, &b.loop);
    if (rc == 0) {
        env_timer_init(&b.tick, on_tick);
        rc = folder_make_member(&b, bytes, err);
        env_uv_close(&b.env);
    }
    uv_run(&b.loop, UV_RUN_DEFAULT);
    uv_loop_close(&b.loop);
    return rc;
}
