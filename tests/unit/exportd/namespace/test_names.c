/*
 * test_names.c - the name space, one rule of POSIX a test.
 */
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "exportd/namespace/namespace.h"
#include "tests/unit/exportd/world.h"

static struct world w;

static int setup(void **state)
{
    (void)state;
    world_open(&w, 7);
    world_start(&w);
    world_make_export(&w, 4, 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    world_close(&w);
    return 0;
}

static uint64_t mk(uint64_t parent, const char *name, uint32_t mode)
{
    struct seen s;

    OK(t_create(&w, parent, name, mode, &s));
    return s.ino;
}

static uint64_t dir(uint64_t parent, const char *name)
{
    return mk(parent, name, S_IFDIR | 0755);
}

static uint64_t file(uint64_t parent, const char *name)
{
    return mk(parent, name, S_IFREG | 0644);
}

static struct seen get(uint64_t ino)
{
    struct seen s;

    OK(t_getattr(&w, ino, &s));
    return s;
}

static void test_root(void **state)
{
    struct seen s;

    (void)state;
    s = get(1);
    assert_int_equal(s.mode, S_IFDIR | 0755);
    assert_int_equal(s.nlink, 2);
    assert_int_equal(s.generation, 0);
    OK(t_lookup(&w, 1, "..", &s));
    assert_int_equal(s.ino, 1);
    OK(t_lookup(&w, 1, ".", &s));
    assert_int_equal(s.ino, 1);
}

static void test_create_and_look(void **state)
{
    static const uint32_t types[] = { S_IFREG, S_IFDIR, S_IFCHR,
                                      S_IFBLK, S_IFIFO, S_IFSOCK };
    struct seen s, seen_again;
    char name[8];

    (void)state;
    for (unsigned i = 0; i < 6; i++) {
        Rozo__MdCreateReq req = ROZO__MD_CREATE_REQ__INIT;

        (void)req;
        snprintf(name, sizeof(name), "n%u", i);
        OK(t_create(&w, 1, name, types[i] | 0640, &s));
        assert_int_equal(s.mode, types[i] | 0640);
        assert_int_equal(s.nlink, types[i] == S_IFDIR ? 2 : 1);
        assert_int_equal(s.uid, 1000);
        assert_int_equal(s.gid, 1001);
        assert_int_not_equal(s.generation, 0);
        assert_true(s.atime_ns == s.mtime_ns && s.mtime_ns == s.ctime_ns &&
                    s.ctime_ns > 0);
        OK(t_lookup(&w, 1, name, &seen_again));
        assert_memory_equal(&s, &seen_again, offsetof(struct seen, with_data));
        IS(EXISTS, t_create(&w, 1, name, S_IFREG | 0600, NULL));
    }
    IS(NOT_FOUND, t_lookup(&w, 1, "nobody", NULL));
    IS(NOT_DIRECTORY, t_lookup(&w, s.ino, "x", NULL));
    IS(NOT_DIRECTORY, t_create(&w, s.ino, "x", S_IFREG | 0600, NULL));
    IS(STALE_HANDLE, t_create(&w, 999, "x", S_IFREG | 0600, NULL));
    IS(STALE_HANDLE, t_lookup(&w, 999, "x", NULL));
    IS(STALE_HANDLE, t_getattr(&w, 999, NULL));
    IS(INVALID, t_create(&w, 1, "bad", 0644, NULL));
    IS(INVALID, t_create(&w, 1, "bad", S_IFREG | 01000000, NULL));
    IS(EXISTS, t_create(&w, 1, ".", S_IFREG | 0600, NULL));
}

static void test_names_of_all_lengths(void **state)
{
    char name[300];

    (void)state;
    memset(name, 'x', sizeof(name));
    name[255] = '\0';
    file(1, name);
    OK(t_lookup(&w, 1, name, NULL));
    OK(t_unlink(&w, 1, name, NULL));
    name[255] = 'x';
    name[256] = '\0';
    IS(NAME_TOO_LONG, t_create(&w, 1, name, S_IFREG | 0644, NULL));
    IS(NAME_TOO_LONG, t_lookup(&w, 1, name, NULL));
    IS(NAME_TOO_LONG, t_rename(&w, 1, "a", 1, name, 0));
    IS(INVALID, t_create(&w, 1, "", S_IFREG | 0644, NULL));
    IS(INVALID, t_create(&w, 1, "a/b", S_IFREG | 0644, NULL));
    file(1, "\xff\xfe not utf-8 \x01");
    OK(t_lookup(&w, 1, "\xff\xfe not utf-8 \x01", NULL));
}

static void test_lookup_by_number_alone(void **state)
{
    uint64_t d = dir(1, "d"), e = dir(d, "e"), f = file(e, "f");
    struct seen s;

    (void)state;
    OK(t_lookup(&w, f, ".", &s));
    assert_int_equal(s.ino, f);
    OK(t_lookup(&w, e, "..", &s));
    assert_int_equal(s.ino, d);
    OK(t_lookup(&w, d, "..", &s));
    assert_int_equal(s.ino, 1);
    IS(NOT_DIRECTORY, t_lookup(&w, f, "..", NULL));
}

static void test_links_of_directories(void **state)
{
    uint64_t d = dir(1, "d");

    (void)state;
    assert_int_equal(get(1).nlink, 3);
    dir(d, "e");
    dir(d, "f");
    file(d, "g");
    assert_int_equal(get(d).nlink, 4);
    IS(NOT_EMPTY, t_rmdir(&w, 1, "d"));
    OK(t_rmdir(&w, d, "e"));
    assert_int_equal(get(d).nlink, 3);
    OK(t_rmdir(&w, d, "f"));
    OK(t_unlink(&w, d, "g", NULL));
    OK(t_rmdir(&w, 1, "d"));
    assert_int_equal(get(1).nlink, 2);
    IS(STALE_HANDLE, t_getattr(&w, d, NULL));
}

static void test_removals_and_their_refusals(void **state)
{
    struct seen s;

    (void)state;
    dir(1, "d");
    file(1, "f");
    IS(IS_DIRECTORY, t_unlink(&w, 1, "d", NULL));
    IS(NOT_DIRECTORY, t_rmdir(&w, 1, "f"));
    IS(NOT_FOUND, t_unlink(&w, 1, "x", NULL));
    IS(NOT_FOUND, t_rmdir(&w, 1, "x"));
    IS(INVALID, t_rmdir(&w, 1, "."));
    IS(NOT_EMPTY, t_rmdir(&w, 1, ".."));
    OK(t_unlink(&w, 1, "f", &s));
    assert_int_equal(s.nlink, 0);
    IS(NOT_FOUND, t_unlink(&w, 1, "f", NULL));
}

static void test_hard_links(void **state)
{
    uint64_t f = file(1, "f"), d = dir(1, "d");
    struct seen s;

    (void)state;
    OK(t_link(&w, f, d, "g"));
    assert_int_equal(get(f).nlink, 2);
    OK(t_lookup(&w, d, "g", &s));
    assert_int_equal(s.ino, f);
    IS(EXISTS, t_link(&w, f, d, "g"));
    IS(NOT_PERMITTED, t_link(&w, d, 1, "dd"));
    IS(NOT_DIRECTORY, t_link(&w, f, f, "x"));
    IS(STALE_HANDLE, t_link(&w, 999, 1, "x"));
    OK(t_unlink(&w, 1, "f", &s));
    assert_int_equal(s.nlink, 1);
    OK(t_unlink(&w, d, "g", &s));
    assert_int_equal(s.nlink, 0);
    IS(STALE_HANDLE, t_getattr(&w, f, NULL));
}

static void test_a_file_has_at_most_65000_names(void **state)
{
    uint64_t f = file(1, "f");
    char name[16];

    (void)state;
    for (unsigned i = 1; i < 65000; i++) {
        snprintf(name, sizeof(name), "l%u", i);
        OK(t_link(&w, f, 1, name));
    }
    assert_int_equal(get(f).nlink, 65000);
    IS(TOO_MANY_LINKS, t_link(&w, f, 1, "one more"));
    OK(t_unlink(&w, 1, "l77", NULL));
    OK(t_link(&w, f, 1, "one more"));
}

static void test_symlinks(void **state)
{
    char target[4200];
    Rozo__MdReadlinkReq req = ROZO__MD_READLINK_REQ__INIT;
    Rozo__MdReadlinkResp *resp;
    struct seen s;

    (void)state;
    memset(target, 't', sizeof(target));
    target[4095] = '\0';
    OK(t_symlink(&w, 1, "l", target, &s));
    assert_int_equal(s.mode, S_IFLNK | 0777);
    assert_int_equal(s.size, 4095);
    req.ino = s.ino;
    OK(world_call(&w, ROZO__OP__MD_READLINK, &req.base,
                  &rozo__md_readlink_resp__descriptor, &resp));
    assert_int_equal(resp->target.len, 4095);
    assert_memory_equal(resp->target.data, target, 4095);
    rozo__md_readlink_resp__free_unpacked(resp, NULL);
    req.ino = 1;
    IS(INVALID, world_call(&w, ROZO__OP__MD_READLINK, &req.base, NULL, NULL));
    target[4095] = 't';
    target[4096] = '\0';
    IS(NAME_TOO_LONG, t_symlink(&w, 1, "m", target, NULL));
    IS(INVALID, t_symlink(&w, 1, "m", "", NULL));
    OK(t_unlink(&w, 1, "l", NULL));
}

/* Results of rename, with a tree a/{x,sub/}, b/, full/{y}, f, g, h = f. */
static const struct rename_case {
    const char *from, *to;
    uint32_t flags;
    unsigned status;
} rename_cases[] = {
    { "f", "new", 0, ROZO__STATUS__OK },
    { "f", "g", 0, ROZO__STATUS__OK },
    { "f", "h", 0, ROZO__STATUS__OK }, /* names of one inode: no change */
    { "f", "f", 0, ROZO__STATUS__OK },
    { "full", "full", 0, ROZO__STATUS__OK },
    { "full", "full", RENAME_EXCHANGE, ROZO__STATUS__OK },
    { "f", "g", RENAME_NOREPLACE, ROZO__STATUS__EXISTS },
    { "f", "new", RENAME_NOREPLACE, ROZO__STATUS__OK },
    { "f", "b", 0, ROZO__STATUS__IS_DIRECTORY },
    { "b", "f", 0, ROZO__STATUS__NOT_DIRECTORY },
    { "a", "b", 0, ROZO__STATUS__OK },
    { "a", "full", 0, ROZO__STATUS__NOT_EMPTY },
    { "none", "new", 0, ROZO__STATUS__NOT_FOUND },
    { "f", "none", RENAME_EXCHANGE, ROZO__STATUS__NOT_FOUND },
    { "f", "a", RENAME_EXCHANGE, ROZO__STATUS__OK },
    { "f", "g", RENAME_EXCHANGE, ROZO__STATUS__OK },
    { "f", "g", RENAME_EXCHANGE | RENAME_NOREPLACE, ROZO__STATUS__INVALID },
    { "f", "new", RENAME_WHITEOUT, ROZO__STATUS__OK },
    { "f", "h", RENAME_WHITEOUT, ROZO__STATUS__OK }, /* names of one inode */
    { "f", "g", RENAME_WHITEOUT | RENAME_NOREPLACE, ROZO__STATUS__EXISTS },
    { "f", "g", RENAME_WHITEOUT | RENAME_EXCHANGE, ROZO__STATUS__INVALID },
    { "none", "new", RENAME_WHITEOUT, ROZO__STATUS__NOT_FOUND },
    { "f", "g", 8, ROZO__STATUS__INVALID },
    { "f", "..", 0, ROZO__STATUS__INVALID },
    { ".", "g", 0, ROZO__STATUS__INVALID },
};

static void rename_tree(uint64_t top)
{
    uint64_t a = dir(top, "a"), full, f;

    file(a, "x");
    dir(a, "sub");
    dir(top, "b");
    full = dir(top, "full");
    file(full, "y");
    f = file(top, "f");
    file(top, "g");
    OK(t_link(&w, f, top, "h"));
}

static void test_rename_says(void **state)
{
    char name[16];

    (void)state;
    for (unsigned i = 0; i < sizeof(rename_cases) / sizeof(rename_cases[0]); i++) {
        const struct rename_case *c = &rename_cases[i];
        uint64_t top;

        snprintf(name, sizeof(name), "t%u", i);
        top = dir(1, name);
        rename_tree(top);
        if (t_rename(&w, top, c->from, top, c->to, c->flags) != c->status)
            fail_msg("rename %s %s flags %u", c->from, c->to, c->flags);
    }
}

static void test_rename_replaces(void **state)
{
    struct seen f, g, s;

    (void)state;
    rename_tree(1);
    OK(t_lookup(&w, 1, "f", &f));
    OK(t_lookup(&w, 1, "g", &g));
    OK(t_rename(&w, 1, "f", 1, "g", RENAME_EXCHANGE));
    assert_true(w.moved[0] == f.ino &&
                w.moved[1] == g.ino); /* an fsync of these needs their numbers */
    OK(t_rename(&w, 1, "f", 1, "g", RENAME_EXCHANGE));
    OK(t_rename(&w, 1, "f", 1, "g", 0));
    assert_true(w.moved[0] == f.ino && w.moved[1] == 0);
    IS(NOT_FOUND, t_lookup(&w, 1, "f", NULL));
    OK(t_lookup(&w, 1, "g", &s));
    assert_int_equal(s.ino, f.ino);
    assert_int_equal(s.nlink, 2); /* h */
    IS(STALE_HANDLE, t_getattr(&w, g.ino, NULL));
    OK(t_rename(&w, 1, "g", 1, "h", 0)); /* names of one inode: both stay */
    OK(t_lookup(&w, 1, "g", NULL));
    OK(t_lookup(&w, 1, "h", NULL));
}

static uint64_t inodes_in_use(void)
{
    Rozo__MdStatfsReq req = ROZO__MD_STATFS_REQ__INIT;
    Rozo__MdStatfsResp *resp;
    uint64_t n;

    OK(world_call(&w, ROZO__OP__MD_STATFS, &req.base, &rozo__md_statfs_resp__descriptor,
                  &resp));
    n = resp->files;
    rozo__md_statfs_resp__free_unpacked(resp, NULL);
    return n;
}

/* Checks for a device 0/0 of this owner without permissions. */
static void is_whiteout(uint64_t parent, const char *name, uint32_t uid, uint32_t gid)
{
    struct seen s;

    OK(t_lookup(&w, parent, name, &s));
    assert_int_equal(s.mode, S_IFCHR);
    assert_int_equal(s.rdev, 0);
    assert_int_equal(s.nlink, 1);
    assert_true(s.uid == uid && s.gid == gid);
}

static void test_rename_leaves_a_whiteout(void **state)
{
    Rozo__MdRenameReq req = ROZO__MD_RENAME_REQ__INIT;
    uint64_t d, n;
    struct seen g, s;

    (void)state;
    rename_tree(1);
    n = inodes_in_use();
    d = mk(1, "sgid", S_IFDIR | S_ISGID | 0755);
    OK(t_lookup(&w, 1, "g", &g));
    OK(t_rename(&w, 1, "g", d, "g", RENAME_WHITEOUT));
    is_whiteout(1, "g", 0, 0);
    OK(t_lookup(&w, d, "g", &s));
    assert_int_equal(s.ino, g.ino);
    req.parent = d;
    req.name = (ProtobufCBinaryData){ 1, (uint8_t *)"g" };
    req.new_parent = 1;
    req.new_name = (ProtobufCBinaryData){ 1, (uint8_t *)"x" };
    req.flags = RENAME_WHITEOUT;
    req.uid = 7;
    req.gid = 8;
    OK(world_call(&w, ROZO__OP__MD_RENAME, &req.base, NULL, NULL));
    is_whiteout(d, "g", 7, 1001); /* the group of a set-gid directory */
    OK(t_rename(&w, 1, "a", d, "a", RENAME_WHITEOUT)); /* a directory */
    is_whiteout(1, "a", 0, 0);
    assert_int_equal(get(d).nlink, 3);
    OK(t_rename(&w, 1, "x", 1, "g", RENAME_WHITEOUT)); /* over the first whiteout */
    is_whiteout(1, "x", 0, 0);
    assert_int_equal(inodes_in_use(), n + 1 + 4 - 1);
    OK(t_unlink(&w, 1, "x", NULL));
}

static void test_rename_moves_directories(void **state)
{
    uint64_t a = dir(1, "a"), b = dir(1, "b"), c = dir(a, "c"), e = dir(c, "e");
    struct seen s;

    (void)state;
    IS(INVALID, t_rename(&w, 1, "a", e, "a", 0));
    IS(INVALID, t_rename(&w, 1, "a", a, "a", 0));
    IS(INVALID, t_rename(&w, 1, "a", c, "e", RENAME_EXCHANGE));
    IS(INVALID, t_rename(&w, c, "e", 1, "a", RENAME_EXCHANGE));
    IS(NOT_EMPTY, t_rename(&w, c, "e", 1, "a", 0));
    OK(t_rename(&w, a, "c", b, "cc", 0));
    OK(t_lookup(&w, c, "..", &s));
    assert_int_equal(s.ino, b);
    assert_int_equal(get(a).nlink, 2);
    assert_int_equal(get(b).nlink, 3);
    /* onto an empty directory elsewhere */
    dir(a, "empty");
    OK(t_rename(&w, b, "cc", a, "empty", 0));
    assert_int_equal(get(a).nlink, 3);
    assert_int_equal(get(b).nlink, 2);
    OK(t_rmdir(&w, 1, "b"));
    /* exchange a directory with a file in another directory */
    file(1, "f");
    OK(t_rename(&w, 1, "f", a, "empty", RENAME_EXCHANGE));
    assert_int_equal(get(a).nlink, 2);
    assert_int_equal(get(1).nlink, 4);
    OK(t_lookup(&w, c, "..", &s));
    assert_int_equal(s.ino, 1);
    OK(t_lookup(&w, 1, "f", &s));
    assert_int_equal(s.ino, c);
}

static void wait_a_moment(void)
{
    env_virtual_advance_ms(&w.env, 5);
}

static void test_times(void **state)
{
    uint64_t d = dir(1, "d"), f = file(d, "f");
    struct seen before, s;

    (void)state;
    wait_a_moment();
    before = get(d);
    file(d, "g");
    s = get(d);
    assert_true(s.mtime_ns > before.mtime_ns && s.ctime_ns == s.mtime_ns);
    assert_true(s.atime_ns == before.atime_ns);
    wait_a_moment();
    before = get(f);
    OK(t_link(&w, f, d, "h"));
    s = get(f);
    assert_true(s.ctime_ns > before.ctime_ns && s.mtime_ns == before.mtime_ns);
    wait_a_moment();
    before = s;
    OK(t_unlink(&w, d, "h", NULL));
    s = get(f);
    assert_true(s.ctime_ns > before.ctime_ns && s.mtime_ns == before.mtime_ns);
    wait_a_moment();
    before = get(d);
    OK(t_rename(&w, d, "f", 1, "f", 0));
    s = get(d);
    assert_true(s.mtime_ns > before.mtime_ns && s.ctime_ns == s.mtime_ns);
    assert_true(get(1).mtime_ns == s.mtime_ns);
    assert_true(get(f).ctime_ns == s.ctime_ns);
    wait_a_moment();
    before = get(1);
    IS(EXISTS, t_create(&w, 1, "d", S_IFREG | 0644, NULL));
    OK(t_rename(&w, 1, "f", 1, "f", 0));
    s = get(1);
    assert_true(s.mtime_ns == before.mtime_ns && s.change == before.change);
}

static void test_set_gid_directories(void **state)
{
    Rozo__MdSetattrReq req = ROZO__MD_SETATTR_REQ__INIT;
    uint64_t d = dir(1, "d");
    struct seen s;

    (void)state;
    req.ino = d;
    req.valid = ROZO__SETATTR_BITS__SET_MODE | ROZO__SETATTR_BITS__SET_GID;
    req.mode = 02775;
    req.gid = 77;
    OK(t_setattr(&w, req, &s));
    assert_int_equal(s.mode, S_IFDIR | 02775);
    OK(t_create(&w, d, "f", S_IFREG | 0644, &s));
    assert_int_equal(s.gid, 77);
    assert_int_equal(s.mode, S_IFREG | 0644);
    OK(t_create(&w, d, "sub", S_IFDIR | 0755, &s));
    assert_int_equal(s.gid, 77);
    assert_int_equal(s.mode, S_IFDIR | 02755);
}

static void test_umask(void **state)
{
    Rozo__MdCreateReq req = ROZO__MD_CREATE_REQ__INIT;
    Rozo__MdCreateResp *resp;

    (void)state;
    req.parent = 1;
    req.name = (ProtobufCBinaryData){ 1, (uint8_t *)(uintptr_t) "f" };
    req.mode = S_IFREG | 07777;
    req.umask = 0027;
    OK(world_call(&w, ROZO__OP__MD_CREATE, &req.base, &rozo__md_create_resp__descriptor,
                  &resp));
    assert_int_equal(resp->attr->mode, S_IFREG | 07750);
    rozo__md_create_resp__free_unpacked(resp, NULL);
}

static void test_inode_numbers_are_never_used_again(void **state)
{
    uint64_t last = 0;

    (void)state;
    for (unsigned i = 0; i < 50; i++) {
        uint64_t ino = file(1, "f");

        assert_true(ino > last);
        last = ino;
        OK(t_unlink(&w, 1, "f", NULL));
        if (i % 10 == 9) {
            world_kill(&w);
            world_reopen_session(&w);
        }
    }
}

/* ---- readdir ---- */

struct list {
    unsigned n;
    struct {
        char name[256];
        uint64_t ino, cookie;
        uint32_t type, nlink;
    } e[6000];
    bool end;
    uint64_t parent, next_cookie;
};

static unsigned list_some(uint64_t ino, uint64_t cookie, unsigned max, bool plus,
                          struct list *l)
{
    Rozo__MdReaddirReq req = ROZO__MD_READDIR_REQ__INIT;
    Rozo__MdReaddirResp *resp;
    unsigned status;

    req.ino = ino;
    req.cookie = cookie;
    req.max_entries = max;
    req.plus = plus;
    status = world_call(&w, ROZO__OP__MD_READDIR, &req.base,
                        &rozo__md_readdir_resp__descriptor, &resp);
    if (resp == NULL)
        return status;
    for (size_t i = 0; i < resp->n_entries; i++) {
        const Rozo__MdReaddirResp__Entry *e = resp->entries[i];

        assert_true(l->n < 6000);
        memcpy(l->e[l->n].name, e->name.data, e->name.len);
        l->e[l->n].name[e->name.len] = '\0';
        l->e[l->n].ino = e->ino;
        l->e[l->n].type = e->type;
        l->e[l->n].cookie = e->cookie;
        assert_true((e->attr != NULL) == plus);
        if (plus) {
            assert_int_equal(e->attr->ino, e->ino);
            assert_int_equal(e->attr->mode & S_IFMT, e->type);
        }
        l->n++;
    }
    l->end = resp->end;
    l->parent = resp->parent;
    l->next_cookie = resp->next_cookie;
    rozo__md_readdir_resp__free_unpacked(resp, NULL);
    return status;
}

static void list_all(uint64_t ino, unsigned step, bool plus, struct list *l)
{
    l->n = 0;
    do
        OK(list_some(ino, l->n == 0 ? 0 : l->e[l->n - 1].cookie, step, plus, l));
    while (!l->end);
}

static struct list list;

static unsigned below(unsigned bound)
{
    return (unsigned)env_virtual_below(&w.env, bound);
}

static void test_readdir(void **state)
{
    uint64_t d = dir(1, "d");
    char name[16];

    (void)state;
    list_all(d, 10, true, &list);
    assert_int_equal(list.n, 0);
    assert_int_equal(list.parent, 1);
    for (unsigned i = 0; i < 100; i++) {
        snprintf(name, sizeof(name), "%u", i);
        mk(d, name, i % 2 == 0 ? S_IFREG | 0644 : S_IFDIR | 0755);
    }
    for (unsigned step = 1; step < 250; step = step * 3 + 1) {
        list_all(d, step, step % 2 == 0, &list);
        assert_int_equal(list.n, 100);
        for (unsigned i = 0; i < 100; i++) {
            assert_int_equal(atoi(list.e[i].name), i);
            assert_int_equal(list.e[i].type, i % 2 == 0 ? S_IFREG : S_IFDIR);
            assert_true(list.e[i].cookie > 2 && list.e[i].cookie <= INT64_MAX);
        }
    }
    IS(INVALID, list_some(d, 0, 0, false, &list));
    IS(INVALID, list_some(d, 0, 4097, false, &list));
    IS(INVALID, list_some(d, UINT64_MAX, 10, false, &list));
    list.n = 0;
    OK(list_some(d, INT64_MAX, 10, false, &list));
    assert_true(list.end && list.n == 0);
    IS(NOT_DIRECTORY, list_some(list.e[0].ino, 0, 10, false, &list));
    IS(STALE_HANDLE, list_some(12345, 0, 10, false, &list));
}

/* A listing that stops at the next cookie of its beginning has no name that came
 * later. */
static void test_names_that_come_later_have_later_cookies(void **state)
{
    uint64_t d = dir(1, "d"), until;

    (void)state;
    mk(d, "a", S_IFREG | 0644);
    mk(d, "b", S_IFREG | 0644);
    list_all(d, 10, false, &list);
    until = list.next_cookie;
    assert_true(list.e[1].cookie < until);
    OK(t_rename(&w, d, "a", d, "c", 0));
    mk(d, "d", S_IFREG | 0644);
    list_all(d, 10, false, &list);
    assert_int_equal(list.n, 3);
    assert_string_equal(list.e[0].name, "b");
    assert_true(list.e[0].cookie < until && list.e[1].cookie >= until);
    assert_true(list.e[2].cookie > list.e[1].cookie &&
                list.e[2].cookie < list.next_cookie);
}

/* Goal: an entry that stays is listed exactly once. Method: names come, go, are renamed
 * and replaced during a listing, with restarts between its steps. */
static void test_readdir_under_churn(void **state)
{
    uint64_t d = dir(1, "d");
    uint64_t cookie = 0;
    unsigned char seen[500] = { 0 };
    unsigned n_other = 0;
    char name[16], other[16];

    (void)state;
    for (unsigned i = 0; i < 500; i++) {
        snprintf(name, sizeof(name), "stay%u", i);
        file(d, name);
        snprintf(name, sizeof(name), "go%u", i);
        file(d, name);
    }
    for (unsigned step = 0;; step++) {
        list.n = 0;
        OK(list_some(d, cookie, 1 + (unsigned)env_virtual_below(&w.env, 40), true,
                     &list));
        for (unsigned i = 0; i < list.n; i++) {
            assert_true(list.e[i].cookie > cookie);
            cookie = list.e[i].cookie;
            if (strncmp(list.e[i].name, "stay", 4) == 0)
                assert_int_equal(seen[atoi(list.e[i].name + 4)]++, 0);
        }
        if (list.end)
            break;
        for (unsigned i = 0; i < 20; i++) {
            snprintf(name, sizeof(name), "go%u",
                     (unsigned)env_virtual_below(&w.env, 500));
            snprintf(other, sizeof(other), "new%u", n_other % 300);
            switch (env_virtual_below(&w.env, 4)) {
            case 0:
                t_unlink(&w, d, name, NULL);
                break;
            case 1: /* a name that stays gets another inode */
                t_create(&w, d, "fresh", S_IFREG | 0644, NULL);
                snprintf(name, sizeof(name), "stay%u",
                         (unsigned)env_virtual_below(&w.env, 500));
                OK(t_rename(&w, d, "fresh", d, name, 0));
                break;
            case 2:
                t_rename(&w, d, name, d, other, 0);
                n_other++;
                break;
            case 3:
                if (t_create(&w, d, other, S_IFREG | 0644, NULL) == ROZO__STATUS__OK)
                    n_other++;
                break;
            }
        }
        if (step % 7 == 6) {
            world_kill(&w);
            world_reopen_session(&w);
        }
    }
    for (unsigned i = 0; i < 500; i++)
        assert_int_equal(seen[i], 1);
}

/* Goal: the remembered first cookies are never wrong. Method: two directories that share
 * a cache slot; names are put in, replaced, exchanged and taken out from the front, to
 * the last one and again. */
static void test_listings_from_the_start(void **state)
{
    uint64_t d[2] = { dir(1, "d0") };
    bool there[2][40] = { 0 };
    char name[16], other[16];

    (void)state;
    do
        d[1] = dir(1, "d1");
    while ((d[1] - d[0]) % NAMESPACE_FIRSTS != 0 &&
           t_rmdir(&w, 1, "d1") == ROZO__STATUS__OK);
    for (unsigned step = 0; step < 4000; step++) {
        unsigned i = below(2), k = below(40), other_k = below(40), n = 0;
        unsigned what = step % 500 < 350 ? below(4) : 4;

        snprintf(name, sizeof(name), "n%u", k);
        snprintf(other, sizeof(other), "n%u", other_k);
        if (what < 2) {
            there[i][k] |= t_create(&w, d[i], name, S_IFREG | 0644, NULL) == 0;
        } else if (what == 2 && k != other_k) {
            if (t_rename(&w, d[i], name, d[1 - i], other, 0) == 0) {
                there[i][k] = false;
                there[1 - i][other_k] = true;
            }
        } else if (what == 3) {
            t_rename(&w, d[i], name, d[1 - i], other, RENAME_EXCHANGE);
        } else {
            list_all(d[i], 5, false, &list);
            if (list.n > 0) {
                there[i][atoi(list.e[0].name + 1)] = false;
                OK(t_unlink(&w, d[i], list.e[0].name, NULL));
            }
        }
        list_all(d[i], 7, false, &list);
        for (unsigned j = 0; j < 40; j++)
            n += there[i][j];
        assert_int_equal(list.n, n);
        for (unsigned j = 0; j < list.n; j++)
            assert_true(there[i][atoi(list.e[j].name + 1)]);
    }
}

static void test_a_removed_directory_that_is_open(void **state)
{
    uint64_t d = dir(1, "d");

    (void)state;
    OK(t_open(&w, d, false, NULL));
    OK(t_rmdir(&w, 1, "d"));
    assert_int_equal(get(d).nlink, 0);
    IS(NOT_FOUND, t_create(&w, d, "x", S_IFREG | 0644, NULL));
    list_all(d, 10, false, &list);
    assert_int_equal(list.n, 0);
    env_virtual_advance_ms(&w.env, 15000);
    OK(t_getattr(&w, 1, NULL));
    env_virtual_advance_ms(&w.env, 10000); /* the grace is over */
    OK(t_close(&w, d, 1));
    IS(STALE_HANDLE, t_getattr(&w, d, NULL));
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_root),
        T(test_create_and_look),
        T(test_names_of_all_lengths),
        T(test_lookup_by_number_alone),
        T(test_links_of_directories),
        T(test_removals_and_their_refusals),
        T(test_hard_links),
        T(test_a_file_has_at_most_65000_names),
        T(test_symlinks),
        T(test_rename_says),
        T(test_rename_replaces),
        T(test_rename_leaves_a_whiteout),
        T(test_rename_moves_directories),
        T(test_times),
        T(test_set_gid_directories),
        T(test_umask),
        T(test_inode_numbers_are_never_used_again),
        T(test_readdir),
        T(test_names_that_come_later_have_later_cookies),
        T(test_readdir_under_churn),
        T(test_listings_from_the_start),
        T(test_a_removed_directory_that_is_open),
    };

    return cmocka_run_group_tests_name("exportd.names", tests, NULL, NULL);
}
