/*
 * test_hostile.c - I8: no message makes exportd crash, and no refused one changes
 * anything.
 *
 * Method: each op with random bytes, with valid messages cut and flipped, with fields at
 *         their extremes, in each role, with and without a session; then everything must
 *         be as before. Corrupt records in the kv as well.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "common/base/bytes.h"
#include "exportd/namespace/inode.h"
#include "exportd/store/key.h"
#include "tests/unit/exportd/world.h"

static struct world w;

static const unsigned ops[] = {
    0,   1,   5,   99,  100, 101, 103, 104, 105, 106, 107, 108, 109, 110, 111,
    112, 113, 114, 115, 116, 117, 118, 119, 120, 121, 122, 123, 124, 125, 126,
    127, 128, 129, 199, 200, 201, 202, 203, 204, 205, 206, 207, 208, 209, 65535,
};

static unsigned below(unsigned bound)
{
    return (unsigned)env_virtual_below(&w.env, bound);
}

static int setup(void **state)
{
    struct seen s;

    (void)state;
    world_open(&w, 5);
    world_start(&w);
    world_make_export(&w, 4, 0);
    OK(t_create_open(&w, 1, "f", true, &s));
    OK(t_wrote(&w, s.ino, 100, NULL));
    OK(t_create(&w, 1, "d", S_IFDIR | 0755, NULL));
    OK(t_setxattr(&w, s.ino, "user.a", "x", 1, 0));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    world_close(&w);
    return 0;
}

static unsigned send(unsigned op, enum rpc_role role, uint64_t session,
                     const uint8_t *msg, size_t len)
{
    struct answer_got got;

    world_send(&w, op, role, session, msg, len, &got);
    for (unsigned i = 0; !got.came; i++) {
        assert_true(i < 20000);
        env_virtual_advance_ms(&w.env, 1);
    }
    free(got.msg);
    return got.status;
}

static void test_random_bytes(void **state)
{
    uint8_t msg[200];

    (void)state;
    for (unsigned i = 0; i < 20000; i++) {
        size_t len = below(sizeof(msg));
        enum rpc_role role = below(2) == 0 ? RPC_ROLE_CLIENT : RPC_ROLE_NODE;

        env_random(&w.env.env, msg, sizeof(msg));
        send(ops[below(sizeof(ops) / sizeof(ops[0]))], role,
             below(4) == 0 ? below(3) : w.session, msg, len);
        if (i % 1000 == 0)
            world_reopen_session(&w); /* a request may have closed it */
    }
    OK(t_lookup(&w, 1, "f", NULL));
}

/* Makes a message of small numbers and short strings in random fields: it parses, but has
 * no meaning. */
static size_t nonsense(uint8_t *msg)
{
    static const uint64_t numbers[] = { 0,    1,    2,     3,         16,
                                        4096, 4097, 65535, INT64_MAX, UINT64_MAX };
    size_t len = 0;

    for (unsigned n = below(8); n > 0; n--) {
        unsigned field = 1 + below(11), size;
        uint64_t v = numbers[below(10)];

        switch (below(3)) {
        case 0:
            msg[len++] = (uint8_t)(field << 3);
            for (; v > 127; v >>= 7)
                msg[len++] = (uint8_t)(v | 0x80);
            msg[len++] = (uint8_t)v;
            break;
        case 1:
            msg[len++] = (uint8_t)(field << 3 | 1);
            memcpy(msg + len, &v, 8);
            len += 8;
            break;
        case 2:
            size = below(20);
            msg[len++] = (uint8_t)(field << 3 | 2);
            msg[len++] = (uint8_t)size;
            for (; size > 0; size--)
                msg[len++] = "abfd./\0user.x"[below(13)];
            break;
        }
    }
    return len;
}

static void test_messages_of_nonsense(void **state)
{
    uint8_t msg[400];

    (void)state;
    for (unsigned i = 0; i < 60000; i++) {
        size_t len = nonsense(msg);

        send(ops[below(sizeof(ops) / sizeof(ops[0]))],
             below(3) == 0 ? RPC_ROLE_NODE : RPC_ROLE_CLIENT, w.session, msg, len);
        if (i % 100 == 0)
            world_reopen_session(&w);
    }
    OK(t_getattr(&w, 1, NULL));
}

static void test_unknown_ops_and_roles(void **state)
{
    (void)state;
    IS(UNKNOWN_OP, send(0, RPC_ROLE_NODE, w.session, NULL, 0));
    IS(UNKNOWN_OP, send(99, RPC_ROLE_NODE, w.session, NULL, 0));
    IS(UNKNOWN_OP, send(132, RPC_ROLE_NODE, w.session, NULL, 0));
    IS(UNKNOWN_OP, send(199, RPC_ROLE_NODE, w.session, NULL, 0));
    IS(NOT_SUPPORTED, send(207, RPC_ROLE_NODE, w.session, NULL, 0));
    IS(UNKNOWN_OP, send(209, RPC_ROLE_NODE, w.session, NULL, 0));
    IS(UNKNOWN_OP, send(ROZO__OP__ST_WRITE, RPC_ROLE_NODE, w.session, NULL, 0));
    for (unsigned op = 200; op <= 208; op++)
        IS(DENIED, send(op, RPC_ROLE_CLIENT, w.session, NULL, 0));
    IS(BAD_REQUEST, send(ROZO__OP__MD_LOOKUP, RPC_ROLE_CLIENT, w.session,
                         (const uint8_t *)"\xff\xff", 2));
}

static void test_inodes_of_any_bytes(void **state)
{
    uint8_t buf[INODE_BYTES_MAX + 8], back[INODE_BYTES_MAX];
    struct inode in;

    (void)state;
    for (unsigned i = 0; i < 200000; i++) {
        size_t len = below(sizeof(buf) + 1);

        env_random(&w.env.env, buf, sizeof(buf));
        if (below(2) == 0) { /* nearly right */
            memset(buf, 0, 24);
            buf[0] = (uint8_t)(1 + below(2));
            buf[3] = (uint8_t)below(2);
            buf[5] = 0x20;
            buf[6] = (uint8_t)below(34);
            buf[8] = (uint8_t)below(64);
            buf[17] = (uint8_t)(below(16) << 4);
            len = (buf[0] == INODE_FORMAT ? INODE_BYTES_MIN : INODE_BYTES_MIN_NS) +
                  4 * (size_t)buf[6];
            if (len > sizeof(buf))
                continue;
        }
        if (inode_decode(&in, 5, buf, len) == 0)
            assert_int_equal(inode_encode(&in, back),
                             INODE_BYTES_MIN + 4 * (size_t)in.n_storages);
    }
}

/* An inode of format 1 is read completely, and written in the current format. */
static void test_an_inode_of_the_older_format(void **state)
{
    uint8_t buf[INODE_BYTES_MIN_NS + 16] = { 1, 1, 0, 1 }, back[INODE_BYTES_MAX];
    struct inode in, again;

    (void)state;
    put_le16(buf + 4, 8192);
    put_le16(buf + 6, 4);
    put_le32(buf + 8, INODE_HAS_DATA);
    put_le32(buf + 16, S_IFREG | 0644);
    put_le32(buf + 20, 1);
    put_le64(buf + 40, 12345);
    put_le64(buf + 48, (uint64_t)-1);
    put_le64(buf + 56, (uint64_t)-5000000001);
    put_le64(buf + 64, 1767225600123456789);
    put_le64(buf + 72, 77);
    for (unsigned i = 0; i < 4; i++)
        put_le32(buf + INODE_BYTES_MIN_NS + 4 * i, i + 1);
    assert_int_equal(inode_decode(&in, 5, buf, sizeof(buf)), 0);
    assert_true(in.atime_ns == -1 && in.mtime_ns == -5000000001);
    assert_true(in.ctime_ns == 1767225600123456789 && in.change == 77);
    assert_true(in.size == 12345 && in.storages[0] == 1 && in.storages[3] == 4);
    assert_int_equal(inode_encode(&in, back), INODE_BYTES_MIN + 16);
    assert_int_equal(back[0], 2);
    assert_int_equal(inode_decode(&again, 5, back, INODE_BYTES_MIN + 16), 0);
    assert_true(again.atime_ns == in.atime_ns && again.mtime_ns == in.mtime_ns);
    assert_true(again.ctime_ns == in.ctime_ns && again.storages[3] == 4);
    put_le32(back + 116, NS_PER_S); /* no nanoseconds */
    assert_int_equal(inode_decode(&again, 5, back, INODE_BYTES_MIN + 16), -EINVAL);
}

/* Each value of the kv is corrupted, one after another: errors, no crash, and other
 * sessions go on. */
static void test_damaged_records(void **state)
{
    static uint8_t keys[256][300];
    static size_t key_lens[256], val_lens[256];
    static uint8_t vals[256][5000];
    Rozo__MdCloseSessionReq bye = ROZO__MD_CLOSE_SESSION_REQ__INIT;
    uint64_t session = w.session;
    struct kv_iter *it;
    unsigned n = 0;

    (void)state;
    w.damaged = true;
    OK(t_symlink(&w, 1, "s", "target", NULL));
    world_stop(&w);
    assert_int_equal(kv_iter_open(w.kv, &it), 0);
    for (kv_iter_seek(it, "A", 1); kv_iter_valid(it); kv_iter_next(it), n++) {
        assert_true(n < 256);
        const void *p = kv_iter_key(it, &key_lens[n]);

        memcpy(keys[n], p, key_lens[n]);
        p = kv_iter_val(it, &val_lens[n]);
        memcpy(vals[n], p, val_lens[n]);
    }
    kv_iter_close(it);
    assert_true(n > 15);
    for (unsigned i = 0; i < n * 20; i++) {
        static const unsigned few[] = { 103, 104, 105, 106, 107, 110,
                                        111, 112, 113, 117, 119, 121 };
        unsigned at = i % n;
        size_t len = below(3) == 0 ? below((unsigned)val_lens[at] + 8) : val_lens[at];
        struct kv_item item = { keys[at], key_lens[at], vals[at], len };
        uint8_t msg[400], good[5000];

        memcpy(good, vals[at], sizeof(good));
        for (unsigned flips = 1 + below(3); flips > 0; flips--)
            vals[at][below((unsigned)len + 1)] ^= (uint8_t)(1u << below(8));
        world_put(&w, &item);
        if (world_try_start(&w)) {
            world_try_session(&w);
            for (unsigned k = 0; k < 30; k++) {
                size_t msg_len = nonsense(msg);

                if (k < 24) { /* a good inode number and name */
                    msg_len = 0;
                    msg[msg_len++] = 1 << 3 | 1;
                    memset(msg + msg_len, 0, 8);
                    msg[msg_len] = (uint8_t)(1 + k % 4);
                    msg_len += 8;
                    msg[msg_len++] = 2 << 3 | 2;
                    msg[msg_len++] = 1;
                    msg[msg_len++] = "fds"[k % 3];
                }
                send(few[below(12)], RPC_ROLE_CLIENT, w.session, msg, msg_len);
            }
            env_virtual_advance_ms(&w.env, 2000);
            if (w.session != session) /* the record of the session was corrupt */
                world_call(&w, ROZO__OP__MD_CLOSE_SESSION, &bye.base, NULL, NULL);
            w.session = session;
            world_stop(&w);
        }
        memcpy(vals[at], good, sizeof(good));
        item.val_len = val_lens[at];
        for (unsigned k = 0; k < n; k++) { /* restores all values */
            struct kv_item all = { keys[k], key_lens[k], vals[k], val_lens[k] };

            world_put(&w, &all);
        }
    }
    world_start(&w);
    world_reopen_session(&w);
    OK(t_lookup(&w, 1, "f", NULL));
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_random_bytes),
        T(test_messages_of_nonsense),
        T(test_unknown_ops_and_roles),
        T(test_inodes_of_any_bytes),
        T(test_an_inode_of_the_older_format),
        T(test_damaged_records),
    };

    return cmocka_run_group_tests_name("exportd.hostile", tests, NULL, NULL);
}
