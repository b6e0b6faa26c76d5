/*
 * test_model.c - random operations on a tree, against a simple tree in memory; with
 * crashes.
 *
 * Goal:   each answer is what POSIX says; after a kill no acknowledged change is missing
 *         (I4); after a power cut the tree is that after some earlier operation, not
 *         before the last sync, and consistent in itself.
 * Method: each operation is made on the model, too, which keeps a copy of itself for each
 *         commit. Every other run has an export with an index of folded names.
 */
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "tests/unit/exportd/check.h"
#include "tests/unit/exportd/world.h"

enum {
    NODES = 40,
    NAMES = 10,
    STEPS = 4000,
    NONE = -1,
};

static const char *const posix_names[NAMES] = { "a", "b", "c", "d", "e",
                                                "f", "g", "h", "i", "j" };

/* Names that fold to one have one class. */
static const char *const fold_names[NAMES] = { "a",      "A",      "\u00e9", "e\u0301",
                                               "\u00c9", "\u03c3", "\u03c2", "\xe9",
                                               "\xc9",   "Ab" };
static const unsigned fold_classes_of[NAMES] = { 0, 0, 1, 1, 1, 2, 2, 3, 4, 5 };
static const char *const *names;

struct node {
    uint64_t ino; /* 0: unused */
    uint32_t type;
    unsigned nlink;
    int parent; /* for a directory */
    int entry[NAMES];
};

struct model {
    struct node n[NODES]; /* 0 is the root */
};

static struct world w;
static struct model m;
static struct model *copies; /* by number of commits */
static size_t copies_room, copied;
static bool grace; /* a start was not long ago */

static unsigned below(unsigned bound)
{
    return (unsigned)env_virtual_below(&w.env, bound);
}

static int pick_node(void)
{
    for (;;) {
        int i = (int)below(NODES);

        if (m.n[i].ino != 0 && (m.n[i].type == S_IFDIR || below(10) == 0))
            return i;
    }
}

static int free_node(void)
{
    for (int i = 1; i < NODES; i++) {
        if (m.n[i].ino == 0)
            return i;
    }
    return NONE;
}

static bool is_dir(int i)
{
    return m.n[i].type == S_IFDIR;
}

static bool is_empty(int i)
{
    for (int k = 0; k < NAMES; k++) {
        if (m.n[i].entry[k] != NONE)
            return false;
    }
    return true;
}

/* Returns true if `above` is the node or one of its ancestors. */
static bool is_below(int node, int above)
{
    for (;; node = m.n[node].parent) {
        if (node == above)
            return true;
        if (node == 0)
            return false;
    }
}

static void drop_name(int i)
{
    if (is_dir(i) || --m.n[i].nlink == 0)
        m.n[i].ino = 0;
}

static void step_create(void)
{
    static const uint32_t types[] = { S_IFREG, S_IFREG, S_IFDIR, S_IFDIR, S_IFIFO };
    int d = pick_node(), k = (int)below(NAMES), i = free_node();
    uint32_t type = types[below(5)];
    struct seen s;
    unsigned status;

    if (i == NONE)
        return;
    status = t_create(&w, m.n[d].ino, names[k], type | 0600, &s);
    if (!is_dir(d)) {
        IS(NOT_DIRECTORY, status);
    } else if (m.n[d].entry[k] != NONE) {
        IS(EXISTS, status);
    } else {
        OK(status);
        m.n[i] = (struct node){ s.ino, type, type == S_IFDIR ? 2 : 1, d, { 0 } };
        for (int j = 0; j < NAMES; j++)
            m.n[i].entry[j] = NONE;
        m.n[d].entry[k] = i;
        m.n[d].nlink += type == S_IFDIR;
    }
}

static void step_unlink(void)
{
    int d = pick_node(), k = (int)below(NAMES), i = m.n[d].entry[k];
    unsigned status = t_unlink(&w, m.n[d].ino, names[k], NULL);

    if (!is_dir(d)) {
        IS(NOT_DIRECTORY, status);
    } else if (i == NONE) {
        IS(NOT_FOUND, status);
    } else if (is_dir(i)) {
        IS(IS_DIRECTORY, status);
    } else {
        OK(status);
        m.n[d].entry[k] = NONE;
        drop_name(i);
    }
}

static void step_rmdir(void)
{
    int d = pick_node(), k = (int)below(NAMES), i = m.n[d].entry[k];
    unsigned status = t_rmdir(&w, m.n[d].ino, names[k]);

    if (!is_dir(d)) {
        IS(NOT_DIRECTORY, status);
    } else if (i == NONE) {
        IS(NOT_FOUND, status);
    } else if (!is_dir(i)) {
        IS(NOT_DIRECTORY, status);
    } else if (!is_empty(i)) {
        IS(NOT_EMPTY, status);
    } else {
        OK(status);
        m.n[d].entry[k] = NONE;
        m.n[d].nlink--;
        drop_name(i);
    }
}

static void step_link(void)
{
    int d = pick_node(), k = (int)below(NAMES), i;
    unsigned status;

    do
        i = (int)below(NODES);
    while (m.n[i].ino == 0);
    status = t_link(&w, m.n[i].ino, m.n[d].ino, names[k]);
    if (!is_dir(d)) {
        IS(NOT_DIRECTORY, status);
    } else if (is_dir(i)) {
        IS(NOT_PERMITTED, status);
    } else if (m.n[d].entry[k] != NONE) {
        IS(EXISTS, status);
    } else {
        OK(status);
        m.n[d].entry[k] = i;
        m.n[i].nlink++;
    }
}

/* Moves a directory from one parent to another. */
static void reparent(int i, int from, int to)
{
    if (!is_dir(i))
        return;
    m.n[i].parent = to;
    m.n[from].nlink--;
    m.n[to].nlink++;
}

static unsigned rename_expected(int d, int i, int nd, int ni, uint32_t flags)
{
    if (!is_dir(d) || !is_dir(nd))
        return ROZO__STATUS__NOT_DIRECTORY;
    if (i == NONE)
        return ROZO__STATUS__NOT_FOUND;
    if ((flags & RENAME_NOREPLACE) != 0 && ni != NONE)
        return ROZO__STATUS__EXISTS;
    if ((flags & RENAME_EXCHANGE) != 0 && ni == NONE)
        return ROZO__STATUS__NOT_FOUND;
    if (is_dir(i) && is_below(nd, i))
        return ROZO__STATUS__INVALID;
    if ((flags & RENAME_EXCHANGE) != 0)
        return is_dir(ni) && is_below(d, ni) ? ROZO__STATUS__INVALID : ROZO__STATUS__OK;
    if (ni == NONE || ni == i)
        return ROZO__STATUS__OK;
    if (is_dir(i) != is_dir(ni))
        return is_dir(i) ? ROZO__STATUS__NOT_DIRECTORY : ROZO__STATUS__IS_DIRECTORY;
    return is_dir(ni) && !is_empty(ni) ? ROZO__STATUS__NOT_EMPTY : ROZO__STATUS__OK;
}

/* Notes the whiteout that a rename left. */
static void whiteout(int d, int k, int i)
{
    struct seen s;

    OK(t_lookup(&w, m.n[d].ino, names[k], &s));
    m.n[i] = (struct node){ s.ino, S_IFCHR, 1, d, { 0 } };
    m.n[d].entry[k] = i;
}

static void step_rename(void)
{
    static const uint32_t all[] = {
        0, 0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_WHITEOUT
    };
    int d = pick_node(), nd = below(3) == 0 ? d : pick_node();
    int k = (int)below(NAMES), nk = (int)below(NAMES);
    int i = m.n[d].entry[k], ni = m.n[nd].entry[nk];
    int white = free_node();
    uint32_t flags = all[below(white == NONE ? 5 : 6)];
    unsigned expected = rename_expected(d, i, nd, ni, flags);

    assert_int_equal(t_rename(&w, m.n[d].ino, names[k], m.n[nd].ino, names[nk], flags),
                     expected);
    if (expected != ROZO__STATUS__OK || i == ni)
        return;
    m.n[nd].entry[nk] = i;
    if ((flags & RENAME_EXCHANGE) != 0) {
        m.n[d].entry[k] = ni;
        reparent(ni, nd, d);
    } else {
        m.n[d].entry[k] = NONE;
        if ((flags & RENAME_WHITEOUT) != 0)
            whiteout(d, k, white);
        if (ni != NONE) {
            m.n[nd].nlink -= is_dir(ni);
            drop_name(ni);
        }
    }
    reparent(i, d, nd);
}

/* ---- the whole tree ---- */

static int name_number(const ProtobufCBinaryData *name)
{
    for (int k = 0; k < NAMES; k++) {
        if (strlen(names[k]) == name->len && memcmp(names[k], name->data, name->len) == 0)
            return k;
    }
    fail_msg("a name that was never given");
    return NONE;
}

/* Checks that a name is found as it is, or else as one that folds to the same. */
static void check_real_name(int d, int k)
{
    char found[256];
    unsigned status = t_real_name(&w, m.n[d].ino, names[k], found);
    bool any = false, right = false;

    for (int j = 0; j < NAMES; j++) {
        if (fold_classes_of[j] != fold_classes_of[k] || m.n[d].entry[j] == NONE)
            continue;
        any = true;
        right = right || strcmp(found, names[j]) == 0;
    }
    if (!any) {
        IS(NOT_FOUND, status);
        return;
    }
    OK(status);
    assert_true(m.n[d].entry[k] == NONE ? right : strcmp(found, names[k]) == 0);
}

static void check_dir(int d)
{
    Rozo__MdReaddirReq req = ROZO__MD_READDIR_REQ__INIT;
    Rozo__MdReaddirResp *resp;
    unsigned n = 0;

    req.ino = m.n[d].ino;
    req.max_entries = 100;
    req.plus = true;
    OK(world_call(&w, ROZO__OP__MD_READDIR, &req.base, &rozo__md_readdir_resp__descriptor,
                  &resp));
    assert_true(resp->end);
    assert_true(resp->parent == m.n[m.n[d].parent].ino);
    for (int k = 0; k < NAMES; k++)
        n += m.n[d].entry[k] != NONE;
    assert_int_equal(resp->n_entries, n);
    for (size_t e = 0; e < resp->n_entries; e++) {
        int k = name_number(&resp->entries[e]->name);
        int i = m.n[d].entry[k];

        assert_true(i != NONE && resp->entries[e]->ino == m.n[i].ino);
        assert_int_equal(resp->entries[e]->type, m.n[i].type);
        assert_int_equal(resp->entries[e]->attr->nlink, m.n[i].nlink);
    }
    rozo__md_readdir_resp__free_unpacked(resp, NULL);
    for (int k = 0; k < NAMES; k++) {
        int i = m.n[d].entry[k];
        struct seen s;

        if (w.fold)
            check_real_name(d, k);
        if (i == NONE) {
            IS(NOT_FOUND, t_lookup(&w, m.n[d].ino, names[k], NULL));
            continue;
        }
        OK(t_lookup(&w, m.n[d].ino, names[k], &s));
        assert_true(s.ino == m.n[i].ino && s.nlink == m.n[i].nlink);
        if (is_dir(i)) {
            OK(t_lookup(&w, m.n[i].ino, "..", &s));
            assert_true(s.ino == m.n[d].ino);
        }
    }
}

static void check_tree(void)
{
    Rozo__MdStatfsReq req = ROZO__MD_STATFS_REQ__INIT;
    Rozo__MdStatfsResp *resp;
    unsigned n = 0;
    struct seen s;

    for (int i = 0; i < NODES; i++) {
        if (m.n[i].ino == 0)
            continue;
        n++;
        OK(t_getattr(&w, m.n[i].ino, &s));
        assert_int_equal(s.nlink, m.n[i].nlink);
        if (is_dir(i))
            check_dir(i);
    }
    OK(world_call(&w, ROZO__OP__MD_STATFS, &req.base, &rozo__md_statfs_resp__descriptor,
                  &resp));
    /* a removed file may be held open by a session that has not come back yet */
    if (grace)
        assert_true(resp->files >= n);
    else
        assert_int_equal(resp->files, n);
    rozo__md_statfs_resp__free_unpacked(resp, NULL);
}

static void check_all(void)
{
    check_tree();
    kv_check(w.kv);
}

static void copy_keep(void)
{
    size_t n = (size_t)kv_memory_n_commits(w.mem);

    if (n >= copies_room) {
        copies_room = n * 2 + 64;
        copies = realloc(copies, copies_room * sizeof(*copies));
        assert_non_null(copies);
    }
    for (size_t i = n; i > copied && i > 0; i--) /* not all commits are operations */
        copies[i] = m;
    copies[n] = m;
    copied = n;
}

static void crash(void)
{
    uint64_t n_lost;

    if (below(2) == 0) {
        world_kill(&w);
    } else {
        n_lost = env_virtual_below(&w.env, kv_memory_n_unsynced(w.mem) + 1);
        m = copies[kv_memory_n_commits(w.mem) - n_lost];
        copied = (size_t)(kv_memory_n_commits(w.mem) - n_lost);
        world_power_cut(&w, n_lost);
    }
    copy_keep(); /* the start made a commit */
    world_reopen_session(&w);
    copy_keep();
    grace = true;
    check_all();
    if (below(2) == 0) {
        env_virtual_advance_ms(&w.env, 23000);
        world_reopen_session(&w);
        grace = false;
        copy_keep();
        check_all();
    }
}

/* Sends a request and kills exportd before the commit: the change must not have
 * happened. */
static void crash_before_commit(void)
{
    Rozo__MdUnlinkReq req = ROZO__MD_UNLINK_REQ__INIT;
    struct answer_got got;
    uint8_t msg[64];

    for (int k = 0; k < NAMES; k++) {
        if (m.n[0].entry[k] == NONE || is_dir(m.n[0].entry[k]))
            continue;
        req.parent = 1;
        req.name =
            (ProtobufCBinaryData){ strlen(names[k]), (uint8_t *)(uintptr_t)names[k] };
        world_send(&w, ROZO__OP__MD_UNLINK, RPC_ROLE_CLIENT, w.session, msg,
                   rozo__md_unlink_req__pack(&req, msg), &got);
        assert_false(got.came);
        world_kill(&w);
        assert_true(got.came && got.status == ROZO__STATUS__IO_ERROR);
        free(got.msg);
        copy_keep();
        world_reopen_session(&w);
        copy_keep();
        grace = true;
        check_tree();
        return;
    }
}

static void run(uint64_t seed)
{
    static void (*const steps[])(void) = {
        step_create, step_create, step_create, step_create, step_unlink,
        step_unlink, step_rmdir,  step_link,   step_rename, step_rename,
    };
    Rozo__MdSyncReq sync = ROZO__MD_SYNC_REQ__INIT;

    copied = 0;
    grace = false;
    world_open(&w, seed);
    w.fold = seed % 2 == 0;
    names = w.fold ? fold_names : posix_names;
    world_start(&w);
    world_make_export(&w, 4, 0);
    memset(&m, 0, sizeof(m));
    m.n[0] = (struct node){ 1, S_IFDIR, 2, 0, { 0 } };
    for (int k = 0; k < NAMES; k++)
        m.n[0].entry[k] = NONE;
    OK(world_call(&w, ROZO__OP__MD_SYNC, &sync.base, NULL, NULL));
    copy_keep();
    for (unsigned i = 0; i < STEPS; i++) {
        steps[below(10)]();
        env_virtual_run_posted(&w.env);
        copy_keep();
        if (below(50) == 0) {
            OK(world_call(&w, ROZO__OP__MD_SYNC, &sync.base, NULL, NULL));
            assert_int_equal(kv_memory_n_unsynced(w.mem), 0);
        }
        if (below(60) == 0)
            crash();
        if (below(200) == 0)
            crash_before_commit();
        if (below(20) == 0)
            check_tree();
    }
    check_tree();
    world_close(&w);
}

static void test_random_operations(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 6; seed++) {
        print_message("seed %u\n", (unsigned)seed);
        run(seed);
    }
    free(copies);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_random_operations) };

    return cmocka_run_group_tests_name("exportd.model", tests, NULL, NULL);
}
