/*
 * fuzz_exportd_ops.c - every request of exportd's core, with crashes, pauses and
 * repetitions.
 *
 * Goal: no sequence of requests crashes exportd or leaves corrupt metadata; every call is
 * answered. Method: a world with a kv in memory and storages that answer; at the end
 * exportd is stopped, started and checked. Input: steps of op, flags, length (2 bytes),
 * message.
 */
#include <stdlib.h>

#include "common/base/log.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/exportd/world.h"

enum {
    STEPS_MAX = 64,
    CALLS_MAX = 64,
    /* flags */
    AS_NODE = 1,
    OTHER_SESSION = 2, /* second mount's session; with AS_NODE: no session */
    LATER = 4,         /* does not wait for the answer */
    AGAIN = 8,         /* uses the id of the previous request */
    SLEEP = 16,        /* 1100 ms pass; with AGAIN: 30 s */
    CRASH = 32,        /* then exportd is killed and started again */
    NO_STORAGES = 64,  /* storages hang from now on; without the flag: they answer */
};

static const uint16_t ops[] = {
    ROZO__OP__MD_OPEN_SESSION,
    ROZO__OP__MD_KEEP_ALIVE,
    ROZO__OP__MD_CLOSE_SESSION,
    ROZO__OP__MD_LOOKUP,
    ROZO__OP__MD_GETATTR,
    ROZO__OP__MD_SETATTR,
    ROZO__OP__MD_CREATE,
    ROZO__OP__MD_UNLINK,
    ROZO__OP__MD_RMDIR,
    ROZO__OP__MD_LINK,
    ROZO__OP__MD_RENAME,
    ROZO__OP__MD_READLINK,
    ROZO__OP__MD_READDIR,
    ROZO__OP__MD_OPEN,
    ROZO__OP__MD_CLOSE,
    ROZO__OP__MD_WROTE,
    ROZO__OP__MD_TRUNCATED,
    ROZO__OP__MD_GETXATTR,
    ROZO__OP__MD_SETXATTR,
    ROZO__OP__MD_LISTXATTR,
    ROZO__OP__MD_REMOVEXATTR,
    ROZO__OP__MD_STATFS,
    ROZO__OP__MD_SYNC,
    ROZO__OP__AD_STATUS,
    ROZO__OP__AD_STORAGE_ADD,
    ROZO__OP__AD_VOLUME_CREATE,
    ROZO__OP__AD_EXPORT_CREATE,
    ROZO__OP__ST_WRITE,
    ROZO__OP__AD_STORAGE_REPLACE,
    ROZO__OP__AD_INODES,
    ROZO__OP__AD_STORAGE_LOST,
    ROZO__OP__MD_EVENTS,
    ROZO__OP__MD_LOCK,
    ROZO__OP__MD_LOCK_TEST,
    ROZO__OP__MD_LOCK_CANCEL,
    ROZO__OP__MD_TOKEN,
    ROZO__OP__MD_GIVE_BACK,
    ROZO__OP__MD_ATIMES,
    ROZO__OP__MD_WAIT_LEADER,
    ROZO__OP__AD_META_STATUS,
    ROZO__OP__AD_META_TRANSFER,
    ROZO__OP__AD_META_DUMP,
    ROZO__OP__MD_REAL_NAME,
    ROZO__OP__AD_STREAM_RESERVE,
    ROZO__OP__AD_STREAM_RELEASE,
    ROZO__OP__AD_STREAM_LIST,
    ROZO__OP__AD_NAMES,
};

static struct world w;
static uint64_t other;

static void wait_for(struct answer_got *got)
{
    for (unsigned i = 0; !got->came; i++) {
        if (i > 20000)
            abort();
        env_virtual_advance_ms(&w.env, 1);
        world_obey(&w); /* a call may wait for a token that the other session holds */
    }
    free(got->msg);
}

/* Opens the sessions of both mounts again, or new ones. */
static void try_sessions(void)
{
    uint64_t first = w.session;

    w.session = other;
    world_try_session(&w);
    other = w.session;
    w.session = first;
    world_try_session(&w);
}

struct calls {
    unsigned n;
    struct answer_got got[CALLS_MAX];
};

static void wait_for_all(struct calls *c)
{
    for (unsigned i = 0; i < c->n; i++)
        wait_for(&c->got[i]);
    c->n = 0;
}

static void step(struct calls *c, uint8_t op, uint8_t flags, const uint8_t *msg,
                 size_t len)
{
    uint64_t session = (flags & OTHER_SESSION) == 0 ? w.session
                       : (flags & AS_NODE) != 0     ? 0
                                                    : other;

    for (unsigned i = 0; i < 4; i++)
        w.storages[i].hung = (flags & NO_STORAGES) != 0;
    w.again_id = (flags & AGAIN) != 0 ? w.n_ids : 0;
    world_send(&w, ops[op % (sizeof(ops) / sizeof(ops[0]))],
               (flags & AS_NODE) != 0 ? RPC_ROLE_NODE : RPC_ROLE_CLIENT, session, msg,
               len, &c->got[c->n++]);
    w.again_id = 0;
    if (c->n == CALLS_MAX || (flags & (CRASH | LATER)) == 0)
        wait_for_all(c);
    if ((flags & CRASH) != 0) {
        world_kill(&w);
        wait_for_all(c);
        try_sessions();
    }
    if ((flags & SLEEP) != 0) {
        env_virtual_advance_ms(&w.env, (flags & AGAIN) != 0 ? 30000 : 1100);
        try_sessions();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct calls c;

    log_set_level((enum log_level) - 1);
    world_open(&w, 1);
    w.inline_max = 8192;
    w.fold = true;
    world_start(&w);
    world_make_export(&w, 4, 0);
    other = 0;
    try_sessions();
    for (unsigned i = 0; i < STEPS_MAX && size >= 4; i++) {
        size_t len = data[2] | (size_t)data[3] << 8;

        if (len > size - 4)
            len = size - 4;
        step(&c, data[0], data[1], data + 4, len);
        data += 4 + len;
        size -= 4 + len;
    }
    wait_for_all(&c);
    for (unsigned i = 0; i < 4; i++)
        w.storages[i].hung = false;
    world_kill(&w);
    env_virtual_advance_ms(&w.env, 30000); /* sessions end, orphans are deleted */
    world_close(&w);
    return 0;
}
