/*
 * test_first_member.c - a data directory becomes that of a first member of a quorum.
 *
 * Goal:   a directory that was left after any step is still that of an exportd that is
 *         alone, or that of a member which has everything; each start goes on from it.
 * Method: a store with a key, in a folder; steps up to each one, then a new start.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <uv.h>

#include "common/env/env_uv.h"
#include "common/kv/kv_leveldb.h"
#include "common/system/fds.h"
#include "exportd/daemon/quorum_init.h"
#include "exportd/datadir/datadir.h"
#include "exportd/datadir/first_member.h"
#include "exportd/quorum/kv_place.h"
#include "tests/unit/unit.h"

static uv_loop_t loop;
static struct env_uv env;
static char dir[64];

static int setup(void **state)
{
    (void)state;
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(env_uv_init(&env, &loop), 0);
    snprintf(dir, sizeof(dir), "/tmp/rozo-test-first.XXXXXX");
    assert_non_null(mkdtemp(dir));
    return 0;
}

static int teardown(void **state)
{
    char command[128];

    (void)state;
    env_uv_close(&env);
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    return system(command);
}

static bool is_done;

static void on_done(struct kv_done *done, int rc)
{
    (void)done;
    assert_int_equal(rc, 0);
    is_done = true;
}

static struct kv_leveldb *store_open(bool is_new)
{
    struct kv_leveldb *k;
    struct err err = { 0 };
    char path[96];

    snprintf(path, sizeof(path), "%s/kv", dir);
    if (is_new)
        assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(kv_leveldb_open(&env.env, &loop, path, is_new, FDS_KV_MIN, &k, &err),
                     0);
    return k;
}

/* Makes the directory of an exportd that is alone. */
static struct kv_leveldb *alone_make(void)
{
    struct kv_leveldb *k = store_open(true);
    struct kv_done done = { .fn = on_done };
    struct kv_item item = { "Akey", 4, "value", 5 };

    is_done = false;
    kv_commit(kv_leveldb_kv(k), &item, 1, &done);
    while (!is_done)
        uv_run(&loop, UV_RUN_ONCE);
    assert_int_equal(datadir_begin(dir, false, NULL), 0);
    return k;
}

static void members_make(struct raft_config *members)
{
    memset(members, 0, sizeof(*members));
    assert_int_equal(raft_config_set(members, 1, RAFT_ROLE_VOTER, "here:1"), 0);
}

static struct first_member first_member(struct kv_leveldb *k, struct raft_config *members)
{
    struct first_member m = { .loop = &loop,
                              .kv = kv_leveldb_kv(k),
                              .data = dir,
                              .members = members,
                              .identity.member = 1 };

    memset(m.identity.cluster_id, 7, sizeof(m.identity.cluster_id));
    members_make(members);
    return m;
}

/* The directory opens as what it says it is, and as nothing else. */
static void opens_check(bool is_member)
{
    bool is_new;
    int fd = -1;

    assert_int_equal(datadir_is_alone(dir), !is_member);
    assert_int_equal(datadir_open(dir, !is_member, &fd, &is_new, NULL), -EINVAL);
    assert_int_equal(datadir_open(dir, is_member, &fd, &is_new, NULL), 0);
    assert_false(is_new);
    close(fd);
}

static void member_check(struct kv_leveldb *k)
{
    struct kv_quorum_place place;
    struct quorum_identity id;
    int64_t wall_ns;
    size_t len;
    void *val;

    assert_int_equal(kv_place_load(kv_leveldb_kv(k), &place, &wall_ns), 0);
    assert_int_equal(place.applied, 1);
    assert_int_equal(place.applied_term, 1);
    assert_int_equal(place.members_index, 1);
    assert_int_equal(place.members.n, 1);
    assert_int_equal(place.seed.doubt, SEED_NONE);
    assert_string_equal(place.members.members[0].address, "here:1");
    assert_int_equal(quorum_identity_read(dir, &id, NULL), 0);
    assert_int_equal(id.member, 1);
    assert_int_equal(id.cluster_id[0], 7);
    assert_int_equal(kv_get(kv_leveldb_kv(k), "Akey", 4, &val, &len), 0);
    assert_int_equal(len, 5);
    assert_memory_equal(val, "value", len);
    free(val);
}

/* A process that ends after any step leaves one kind of directory or the other. */
static void test_directory_after_each_step(void **state)
{
    struct raft_config members;
    struct first_member m;
    struct kv_leveldb *k = alone_make();

    (void)state;
    kv_leveldb_close(k);
    for (unsigned n = 0; n < FIRST_MEMBER_STEPS; n++) {
        opens_check(false);
        k = store_open(false);
        m = first_member(k, &members);
        for (unsigned step = 0; step < n; step++) /* again, as a second request does */
            assert_int_equal(first_member_step(&m, step, NULL), 0);
        assert_int_equal(first_member_step(&m, n, NULL), 0);
        kv_leveldb_close(k);
        assert_int_equal(first_member_check(dir, NULL), 0);
    }
    opens_check(true);
    k = store_open(false);
    member_check(k);
    kv_leveldb_close(k);
}

static void test_all_steps_at_once(void **state)
{
    struct kv_leveldb *k = alone_make();
    struct raft_config members;
    struct first_member m = first_member(k, &members);

    (void)state;
    assert_int_equal(first_member_make(&m, NULL), 0);
    member_check(k);
    kv_leveldb_close(k);
    opens_check(true);
}

/* A step that fails leaves the format as it was. */
static void test_identity_that_cannot_be_written(void **state)
{
    struct kv_leveldb *k = alone_make();
    struct raft_config members;
    struct first_member m = first_member(k, &members);
    struct err err = { 0 };
    char path[96];
    int fd;

    (void)state;
    snprintf(path, sizeof(path), "%s/quorum", dir);
    fd = open(path, O_CREAT | O_WRONLY, 0600); /* a file in the place of the folder */
    close(fd);
    assert_int_equal(first_member_make(&m, &err), -ENOTDIR);
    assert_non_null(strstr(err.text, "quorum"));
    kv_leveldb_close(k);
    opens_check(false);
}

/* A log of another life would be taken for that of the new quorum. */
static void test_folder_with_a_vote_is_refused(void **state)
{
    struct err err = { 0 };
    char path[96];

    (void)state;
    assert_int_equal(first_member_check(dir, &err), 0);
    snprintf(path, sizeof(path), "%s/quorum", dir);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(first_member_check(dir, &err), 0);
    snprintf(path, sizeof(path), "%s/quorum/vote", dir);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    assert_int_equal(first_member_check(dir, &err), -EEXIST);
    assert_non_null(strstr(err.text, "holds vote"));
}

static void test_address_of_the_first_member(void **state)
{
    static const struct {
        char *listen, *wished;
        const char *taken, *text;
    } cases[] = {
        { "10.0.0.1:4701", "", "10.0.0.1:4701", NULL },
        { "[2001:db8::7]:4701", "", "[2001:db8::7]:4701", NULL },
        { "10.0.0.1:4701", "meta1:4701", "meta1:4701", NULL },
        { "*:4701", "10.0.0.1:4701", "10.0.0.1:4701", NULL },
        { "127.0.0.1:4701", "127.0.0.1:4701", "127.0.0.1:4701", NULL }, /* asked for */
        { "*:4701", "", NULL, "all addresses" },
        { "[::]:4701", "", NULL, "all addresses" },
        { "10.0.0.1:4701", "0.0.0.0:4701", NULL, "all addresses" },
        { "127.0.0.1:4701", "", NULL, "no other machine" },
        { "127.9.9.9:4701", "", NULL, "no other machine" },
        { "[::1]:4701", "", NULL, "no other machine" },
        { "localhost:4701", "", NULL, "no other machine" },
        { "10.0.0.1:4701", "meta1", NULL, "no HOST:PORT" },
        { "10.0.0.1:0", "", NULL, "no HOST:PORT" },
        { "10.0.0.1:4701", "m\xc3\xa9ta:4701", NULL, "no HOST:PORT" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char *listen[] = { cases[i].listen };
        const struct quorum_section section = { .listen = listen, .listen_count = 1 };
        struct raft_config members;
        struct err err = { 0 };
        int rc = quorum_init_members(&section, cases[i].wished, &members, &err);

        if (cases[i].taken == NULL) {
            assert_int_equal(rc, -EINVAL);
            assert_non_null(strstr(err.text, cases[i].text));
            continue;
        }
        assert_int_equal(rc, 0);
        assert_int_equal(members.n, 1);
        assert_int_equal(members.members[0].id, QUORUM_INIT_ID);
        assert_int_equal(members.members[0].role, RAFT_ROLE_VOTER);
        assert_string_equal(members.members[0].address, cases[i].taken);
    }
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_directory_after_each_step),       T(test_all_steps_at_once),
        T(test_identity_that_cannot_be_written), T(test_folder_with_a_vote_is_refused),
        T(test_address_of_the_first_member),
    };

    return cmocka_run_group_tests_name("exportd.first_member", tests, NULL, NULL);
}
