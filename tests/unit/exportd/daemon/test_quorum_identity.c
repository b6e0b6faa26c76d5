/*
 * test_quorum_identity.c - which member of which quorum a data directory belongs to.
 *
 * Goal:   what was written is read again; a damaged file is no other identity.
 * Method: a file in a folder, of which every byte is changed.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "exportd/datadir/quorum_identity.h"
#include "tests/unit/unit.h"

static char dir[64];

static int setup(void **state)
{
    (void)state;
    snprintf(dir, sizeof(dir), "/tmp/rozo-test-identity.XXXXXX");
    assert_non_null(mkdtemp(dir));
    return 0;
}

static int teardown(void **state)
{
    char command[128];

    (void)state;
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    return system(command);
}

static struct quorum_identity identity(uint8_t birth, unsigned n_members, unsigned member)
{
    uint8_t bytes[16] = { birth };
    struct raft_config list = { 0 };
    struct quorum_identity id;

    for (unsigned i = 1; i <= n_members; i++)
        assert_int_equal(raft_config_set(&list, i, RAFT_ROLE_VOTER, "h:1"), 0);
    quorum_identity_make(&id, bytes, &list, member);
    return id;
}

static bool is_same_cluster(struct quorum_identity a, struct quorum_identity b)
{
    return memcmp(a.cluster_id, b.cluster_id, sizeof(a.cluster_id)) == 0;
}

static void test_members_of_one_quorum_have_one_cluster_id(void **state)
{
    (void)state;
    assert_true(is_same_cluster(identity(1, 3, 1), identity(1, 3, 2)));
    assert_false(is_same_cluster(identity(1, 3, 1), identity(2, 3, 1)));
    assert_false(is_same_cluster(identity(1, 3, 1), identity(1, 5, 1)));
}

static void test_a_witness_is_one_by_its_list(void **state)
{
    const uint8_t birth[16] = { 1 };
    struct raft_config list = { 0 };
    struct quorum_identity id, other;

    (void)state;
    for (unsigned i = 1; i <= 3; i++)
        assert_int_equal(raft_config_set(&list, i, RAFT_ROLE_VOTER, "h:1"), 0);
    raft_config_set_witness(&list, 3);
    quorum_identity_make(&id, birth, &list, 3);
    quorum_identity_make(&other, birth, &list, 2);
    assert_true(id.is_witness && !other.is_witness && is_same_cluster(id, other));
    assert_false(is_same_cluster(id, identity(1, 3, 3))); /* the list is another one */
}

static size_t file_read(const char *path, char *text, size_t size)
{
    FILE *f = fopen(path, "r");
    size_t n;

    assert_non_null(f);
    n = fread(text, 1, size, f);
    fclose(f);
    return n;
}

static void file_write(const char *path, const char *text, size_t len)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

static void identity_round(uint32_t group, bool is_witness)
{
    struct quorum_identity id = identity(1, 3, 2), back = { 0 };
    struct err err = { 0 };
    char path[128], text[256];
    size_t len;

    id.group = group;
    id.is_witness = is_witness;
    assert_int_equal(quorum_identity_write(dir, &id, &err), 0);
    assert_int_equal(quorum_identity_read(dir, &back, &err), 0);
    assert_true(is_same_cluster(back, id) && back.member == id.member);
    assert_true(back.group == group && back.is_witness == is_witness);
    snprintf(path, sizeof(path), "%s/quorum/identity", dir);
    len = file_read(path, text, sizeof(text));
    for (size_t cut = 0; cut < len; cut++) {
        file_write(path, text, cut);
        assert_true(quorum_identity_read(dir, &back, &err) < 0);
    }
    for (size_t at = 0; at < len; at++) {
        char was = text[at];

        text[at] = 'x';
        file_write(path, text, len);
        assert_true(quorum_identity_read(dir, &back, &err) < 0);
        text[at] = was;
    }
    text[len] = '\n'; /* more than there should be */
    file_write(path, text, len + 1);
    assert_int_equal(quorum_identity_read(dir, &back, &err), -ROZO_EDAMAGED);
}

static void test_identity_is_read_back_or_refused(void **state)
{
    struct quorum_identity id;
    struct err err = { 0 };

    (void)state;
    assert_int_equal(quorum_identity_read(dir, &id, &err), -ENOENT);
    identity_round(0, false);
    identity_round(0x01abcdef, false);
    identity_round(0, true);
    identity_round(0x01abcdef, true);
}

static void test_a_later_format_is_named(void **state)
{
    struct quorum_identity id = identity(1, 1, 1);
    struct err err = { 0 };
    char path[128];

    (void)state;
    assert_int_equal(quorum_identity_write(dir, &id, &err), 0);
    snprintf(path, sizeof(path), "%s/quorum/identity", dir);
    file_write(path, "rozo quorum format 4\nwhatever\n", 30);
    assert_int_equal(quorum_identity_read(dir, &id, &err), -ROZO_EUNKNOWN_FORMAT);
    assert_non_null(strstr(err.text, "a newer rozo"));
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_members_of_one_quorum_have_one_cluster_id),
        T(test_a_witness_is_one_by_its_list),
        T(test_identity_is_read_back_or_refused),
        T(test_a_later_format_is_named),
    };

    return cmocka_run_group_tests_name("exportd.quorum_identity", tests, NULL, NULL);
}
