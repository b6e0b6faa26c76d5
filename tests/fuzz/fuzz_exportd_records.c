/*
 * fuzz_exportd_records.c - corrupt, foreign and missing records of the metadata store.
 *
 * Goal: no value of any record crashes exportd; it answers with an error, or refuses to
 * start with an error text. A value that a decoder accepts encodes to the same bytes.
 * Input: a kind of record, then changes of a good store: which key, flags, length, bytes.
 */
#include <stdlib.h>
#include <sys/stat.h>

#include "common/base/log.h"
#include "exportd/namespace/acl.h"
#include "exportd/namespace/inode.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/exportd/world.h"

enum { KEYS_MAX = 128, KEY_MAX = 300, VAL_MAX = 1024, INOS = 10 };

/* The good store, made once. */
static struct {
    unsigned n;
    size_t key_lens[KEYS_MAX], val_lens[KEYS_MAX];
    uint8_t keys[KEYS_MAX][KEY_MAX], vals[KEYS_MAX][VAL_MAX];
    uint64_t session;
} good;

static struct world w;

static void tree_make(void)
{
    static const uint8_t acl[] = { 2,    0,   0, 0, 1,   0,   7,   0,   255, 255,
                                   255,  255, 4, 0, 5,   0,   255, 255, 255, 255,
                                   0x20, 0,   5, 0, 255, 255, 255, 255 };
    struct seen f, g, d, s;

    OK(t_create_open(&w, 1, "f", true, &f));
    OK(t_wrote(&w, f.ino, 10000, NULL));
    OK(t_truncate(&w, f.ino, 100, NULL));
    OK(t_create(&w, 1, "d", S_IFDIR | 0755, &d));
    OK(t_setxattr(&w, d.ino, "system.posix_acl_default", acl, sizeof(acl), 0));
    OK(t_setxattr(&w, d.ino, "user.a", "x", 1, 0));
    OK(t_symlink(&w, d.ino, "s", "target", &s));
    OK(t_create_open(&w, d.ino, "g", true, &g));
    OK(t_wrote(&w, g.ino, 1, NULL));
    OK(t_link(&w, g.ino, 1, "h"));
    OK(t_create_open(&w, 1, "o", true, &s)); /* an orphan */
    OK(t_unlink(&w, 1, "o", NULL));
    w.storages[0].no_removes = true; /* a deletion that waits for a storage */
    OK(t_create_open(&w, 1, "t", true, &s));
    OK(t_wrote(&w, s.ino, 1, NULL));
    OK(t_close(&w, s.ino, 1));
    OK(t_unlink(&w, 1, "t", NULL));
    env_virtual_advance_ms(&w.env, 2000);
    OK(t_create_open(&w, 1, "t", true, &s)); /* a file in the trash */
    OK(t_wrote(&w, s.ino, 1, NULL));
    OK(t_close(&w, s.ino, 1));
    OK(t_unlink(&w, 1, "t", NULL));
    env_virtual_run_posted(&w.env);
}

static void good_make(void)
{
    struct kv_iter *it;

    world_open(&w, 1);
    world_start(&w);
    world_make_export(&w, 4, 0);
    tree_make();
    good.session = w.session;
    if (kv_iter_open(w.kv, &it) != 0)
        abort();
    for (kv_iter_seek(it, "", 0); kv_iter_valid(it); kv_iter_next(it), good.n++) {
        const void *p = kv_iter_key(it, &good.key_lens[good.n]);

        if (good.n == KEYS_MAX || good.key_lens[good.n] > KEY_MAX)
            abort();
        memcpy(good.keys[good.n], p, good.key_lens[good.n]);
        p = kv_iter_val(it, &good.val_lens[good.n]);
        if (good.val_lens[good.n] > VAL_MAX)
            abort();
        memcpy(good.vals[good.n], p, good.val_lens[good.n]);
    }
    kv_iter_close(it);
    w.damaged = true;
    world_close(&w);
}

/* Sends every kind of request on these inodes. Statuses do not matter. */
static void use(void)
{
    static const char *const names[] = { "f", "d", "s", "g", "h", "new" };
    static uint8_t val[65536];
    Rozo__MdStatfsReq statfs = ROZO__MD_STATFS_REQ__INIT;
    Rozo__AdStatusReq status = ROZO__AD_STATUS_REQ__INIT;
    struct seen s;
    size_t len;

    for (uint64_t ino = 1; ino < INOS; ino++) {
        Rozo__MdReaddirReq readdir = ROZO__MD_READDIR_REQ__INIT;
        Rozo__MdReadlinkReq readlink = ROZO__MD_READLINK_REQ__INIT;
        Rozo__MdListxattrReq listxattr = ROZO__MD_LISTXATTR_REQ__INIT;
        Rozo__MdSetattrReq set = ROZO__MD_SETATTR_REQ__INIT;

        t_getattr(&w, ino, &s);
        readdir.ino = readlink.ino = listxattr.ino = set.ino = ino;
        readdir.max_entries = 100;
        readdir.plus = ino % 2 == 0;
        world_call(&w, ROZO__OP__MD_READDIR, &readdir.base, NULL, NULL);
        world_call(&w, ROZO__OP__MD_READLINK, &readlink.base, NULL, NULL);
        world_call(&w, ROZO__OP__MD_LISTXATTR, &listxattr.base, NULL, NULL);
        t_getxattr(&w, ino, "user.a", val, &len);
        t_getxattr(&w, ino, "system.posix_acl_default", val, &len);
        set.valid = ROZO__SETATTR_BITS__SET_MODE;
        set.mode = 0700;
        world_call(&w, ROZO__OP__MD_SETATTR, &set.base, NULL, NULL);
        t_open(&w, ino, true, &s);
        t_wrote(&w, ino, 77, NULL);
        t_truncate(&w, ino, 5, NULL);
        for (unsigned i = 0; i < 6; i++)
            t_lookup(&w, ino, names[i], &s);
        t_lookup(&w, ino, "..", &s);
        t_create(&w, ino, "new", S_IFDIR | 0755, NULL);
        t_setxattr(&w, ino, "user.b", "y", 1, 0);
        t_removexattr(&w, ino, "user.a");
        t_rename(&w, ino, "s", 1, "f", 0);
        t_rename(&w, 1, "d", ino, "d2", 0);
        t_link(&w, ino, 1, "l");
        t_close(&w, ino, 1);
    }
    world_call(&w, ROZO__OP__MD_STATFS, &statfs.base, NULL, NULL);
    world_call_node(&w, ROZO__OP__AD_STATUS, &status.base, NULL, NULL);
    for (uint64_t ino = 1; ino < INOS; ino++) {
        for (unsigned i = 0; i < 6; i++) {
            t_unlink(&w, ino, names[i], NULL);
            t_rmdir(&w, ino, names[i]);
        }
    }
    env_virtual_advance_ms(&w.env, 30000);
}

/* Changes the good store as the input says. */
static void damage(const uint8_t *data, size_t size)
{
    for (unsigned i = 0; i < good.n; i++) {
        struct kv_item item = { good.keys[i], good.key_lens[i], good.vals[i],
                                good.val_lens[i] };

        world_put(&w, &item);
    }
    while (size >= 3) {
        unsigned at = data[0] % good.n;
        uint8_t flags = data[1];
        size_t len = data[2];
        uint8_t val[VAL_MAX];
        struct kv_item item = { good.keys[at], good.key_lens[at], val,
                                good.val_lens[at] };

        data += 3;
        size -= 3;
        len = len < size ? len : size;
        memcpy(val, good.vals[at], item.val_len);
        if ((flags & 3) == 0) { /* other bytes in the value */
            size_t where = item.val_len == 0 ? 0 : (flags >> 2) * 2u % item.val_len;

            for (size_t i = 0; i < len && where + i < item.val_len; i++)
                val[where + i] = data[i];
        } else if ((flags & 3) == 1) { /* new value */
            memcpy(val, data, len);
            item.val_len = len;
        } else if ((flags & 3) == 2) { /* new key */
            item.key = data;
            item.key_len = len;
        } else {
            item.val = NULL;
        }
        if (item.key_len > 0)
            world_put(&w, &item);
        data += len;
        size -= len;
    }
}

static void try_store(const uint8_t *data, size_t size)
{
    if (good.n == 0)
        good_make();
    world_open(&w, 1);
    for (unsigned i = 0; i < 4; i++)
        w.storages[i].id = 0;
    w.damaged = true;
    damage(data, size);
    if (world_try_start(&w)) {
        w.session = good.session;
        world_try_session(&w);
        use();
        world_stop(&w);
    }
    world_close(&w);
}

static void try_inode(const uint8_t *data, size_t size)
{
    uint8_t again[INODE_BYTES_MAX], back[INODE_BYTES_MAX];
    struct inode in;
    size_t n;

    if (inode_decode(&in, 5, data, size) != 0)
        return;
    n = inode_encode(&in, again);
    if (data[0] == INODE_FORMAT && n != size)
        abort();
    if (inode_decode(&in, 5, again, n) != 0 || inode_encode(&in, back) != n ||
        memcmp(again, back, n) != 0)
        abort();
}

static void try_acl(const uint8_t *data, size_t size)
{
    uint8_t acl[4096];
    bool exact;

    if (size < 2 || size - 2 > sizeof(acl))
        return;
    acl_is_empty(data + 2, size - 2);
    if (acl_check(data + 2, size - 2) != 0)
        return;
    memcpy(acl, data + 2, size - 2);
    acl_chmod(acl, size - 2, data[0]);
    if (acl_check(acl, size - 2) != 0 || acl_mode(acl, size - 2, &exact) != data[0])
        abort();
    acl_create(acl, size - 2, data[1], &exact);
    if (acl_check(acl, size - 2) != 0)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    log_set_level((enum log_level) - 1);
    if (size == 0)
        return 0;
    if (data[0] % 4 == 0)
        try_inode(data + 1, size - 1);
    else if (data[0] % 4 == 1)
        try_acl(data + 1, size - 1);
    else
        try_store(data + 1, size - 1);
    return 0;
}
