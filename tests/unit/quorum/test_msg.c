/*
 * test_msg.c - messages of a quorum and lists of members, as bytes.
 *
 * Goal: what is packed comes back the same; whatever is out of range, missing or left
 * over is refused; nothing is read beyond the bytes.
 */
#include <stdio.h>

#include "common/base/bytes.h"
#include "common/base/err.h"
#include "exportd/quorum/raft/raft_msg.h"
#include "tests/unit/unit.h"

static const struct raft_msg_group group = { .cluster_id = "a cluster", .number = 0 };
static uint8_t mebibyte[RAFT_ENTRY_BYTES_MAX + 1];

/* A valid message of each kind. */
static const struct raft_msg samples[] = {
    { .kind = RAFT_MSG_APPEND, .term = 9, .index = 5, .index_term = 8, .commit = 4 },
    { .kind = RAFT_MSG_APPEND, .term = 9 },
    { .kind = RAFT_MSG_APPENDED, .term = 9, .echo_ns = 7, .last = 6 },
    { .kind = RAFT_MSG_APPENDED, .term = 9, .echo_ns = 7, .last = 6, .index = 7 },
    { .kind = RAFT_MSG_VOTE, .term = 9, .index = 3, .index_term = 2, .flags = 1 },
    { .kind = RAFT_MSG_VOTE, .term = 9, .index = 3, .index_term = 2, .flags = 2 },
    { .kind = RAFT_MSG_VOTED, .term = 9, .flags = RAFT_MSG_GRANTED | RAFT_MSG_PRE_VOTE },
    { .kind = RAFT_MSG_SEED, .term = 9, .index = 3, .index_term = 2 },
    { .kind = RAFT_MSG_SEED,
      .term = 9,
      .index = 3,
      .index_term = 2,
      .flags = RAFT_MSG_LOST },
    { .kind = RAFT_MSG_TIMEOUT_NOW, .term = 9, .index = 3, .index_term = 2 },
    { .kind = RAFT_MSG_APPEND, .term = 9, .covered = 3 },
};
enum { N_SAMPLES = sizeof(samples) / sizeof(samples[0]) };

static struct raft_msg sample(unsigned i)
{
    struct raft_msg m = samples[i];

    m.from = UINT64_MAX;
    m.to = 2;
    m.sent_ns = 77;
    return m;
}

static int decode(const uint8_t *head, size_t len, struct raft_msg *out)
{
    struct raft_log_entry entries[RAFT_MSG_ENTRIES_MAX];
    uint8_t *exact = malloc(len + 1);
    int rc;

    assert_non_null(exact);
    memcpy(exact, head, len);
    rc = raft_msg_decode(&group, 2, exact, len, "", 0, out, entries);
    free(exact);
    return rc;
}

static void test_each_kind_comes_back(void **state)
{
    uint8_t head[RAFT_MSG_HEAD_MAX];

    (void)state;
    for (unsigned i = 0; i < N_SAMPLES; i++) {
        struct raft_msg m = sample(i), got;
        size_t len = raft_msg_encode(&group, &m, NULL, head);

        memset(&got, 0x5a, sizeof(got));
        assert_int_equal(decode(head, len, &got), 0);
        assert_int_equal(got.kind, m.kind);
        assert_int_equal(got.flags, m.flags);
        assert_true(got.from == m.from && got.to == m.to && got.term == m.term &&
                    got.sent_ns == m.sent_ns && got.echo_ns == m.echo_ns &&
                    got.index == m.index && got.index_term == m.index_term &&
                    got.last == m.last && got.commit == m.commit && got.n == 0 &&
                    got.covered == m.covered);
        for (size_t cut = 0; cut < len; cut++)
            assert_int_equal(decode(head, cut, &got), -EBADMSG);
    }
}

/* Numbers that make a valid message invalid: kind of sample, place, bytes, value. */
static const struct {
    unsigned sample, at, bytes;
    uint64_t value;
    int rc;
} wrong[] = {
    { 0, 0, 1, 2, -ROZO_EUNKNOWN_FORMAT },
    { 0, 1, 1, 0, -EBADMSG },
    { 0, 1, 1, 7, -EBADMSG },
    { 0, 2, 1, 1, -EBADMSG }, /* flags of other kinds */
    { 4, 2, 1, 4, -EBADMSG },
    { 4, 2, 1, 3, -EBADMSG }, /* pre-vote and disrupt */
    { 6, 2, 1, 8, -EBADMSG },
    { 0, 3, 1, 1, -EBADMSG },
    { 0, 4, 4, 1, -ESTALE },   /* other group */
    { 0, 8, 8, 0, -ESTALE },   /* other cluster */
    { 0, 24, 8, 0, -EBADMSG }, /* no sender */
    { 0, 24, 8, 2, -EBADMSG }, /* from itself */
    { 0, 32, 8, 3, -ESTALE },  /* to an earlier member here */
    { 0, 40, 8, 0, -EBADMSG }, /* term */
    { 0, 40, 8, 1ull << 62, -EBADMSG },
    { 0, 40, 8, 7, -EBADMSG },          /* below that of the entry */
    { 0, 56, 8, 1ull << 62, -EBADMSG }, /* covered */
    { 4, 56, 8, 1, -EBADMSG },          /* echo */
    { 0, 64, 8, 0, -EBADMSG },          /* no entry, but its term */
    { 0, 64, 8, 1ull << 62, -EBADMSG },
    { 0, 72, 8, 0, -EBADMSG }, /* an entry without term */
    { 0, 80, 8, 1, -EBADMSG }, /* last */
    { 0, 88, 8, 1ull << 62, -EBADMSG },
    { 0, 96, 4, 1, -EBADMSG }, /* an entry that is not there */
    { 0, 96, 4, 65, -EBADMSG },
    { 0, 96, 4, UINT32_MAX, -EBADMSG },
    { 0, 100, 4, 1, -EBADMSG },
    { 2, 72, 8, 1, -EBADMSG },
    { 2, 80, 8, 1ull << 62, -EBADMSG },
    { 2, 88, 8, 1, -EBADMSG },
    { 3, 80, 8, 7, -EBADMSG }, /* has what it rejects */
    { 6, 64, 8, 1, -EBADMSG },
    { 7, 64, 8, 0, -EBADMSG },
};

static void test_fields_out_of_range_are_refused(void **state)
{
    uint8_t head[RAFT_MSG_HEAD_MAX], value[8];
    struct raft_msg m, got;

    (void)state;
    for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        size_t len;

        m = sample(wrong[i].sample);
        len = raft_msg_encode(&group, &m, NULL, head);
        put_le64(value, wrong[i].value);
        memcpy(head + wrong[i].at, value, wrong[i].bytes);
        if (decode(head, len, &got) != wrong[i].rc)
            fail_msg("line %u of the table", i);
    }
}

static struct raft_log_entry entry(uint64_t index, uint64_t term, uint32_t len)
{
    return (struct raft_log_entry){ .index = index,
                                    .term = term,
                                    .kind = RAFT_ENTRY_BATCH,
                                    .len = len,
                                    .data = mebibyte };
}

/* Packs m with n entries, and unpacks it with a payload of this length. */
static int decode_entries(struct raft_msg m, const struct raft_log_entry *e, unsigned n,
                          size_t payload_len, struct raft_log_entry *out)
{
    uint8_t head[RAFT_MSG_HEAD_MAX];
    struct raft_msg got;
    size_t len;

    m.n = n;
    len = raft_msg_encode(&group, &m, e, head);
    return raft_msg_decode(&group, 2, head, len, mebibyte, payload_len, &got, out);
}

static void test_entries_are_bounded(void **state)
{
    struct raft_log_entry e[65], out[RAFT_MSG_ENTRIES_MAX];
    struct raft_msg m = sample(0);

    (void)state;
    for (unsigned i = 0; i < 65; i++)
        e[i] = entry(6 + i, i < 10 ? 8 : 9, 1 + i);
    assert_int_equal(decode_entries(m, e, 64, 64 * 65 / 2, out), 0);
    assert_int_equal(out[63].index, 69);
    assert_int_equal(out[63].term, 9);
    assert_ptr_equal(out[1].data, mebibyte + 1); /* borrowed from the payload */
    assert_int_equal(decode_entries(m, e, 64, 64 * 65 / 2 - 1, out), -EBADMSG);
    assert_int_equal(decode_entries(m, e, 64, 64 * 65 / 2 + 1, out), -EBADMSG);
    assert_int_equal(raft_msg_fill(e, 65), 64);

    e[0].term = 7; /* below that of the entry before */
    assert_int_equal(decode_entries(m, e, 1, 1, out), -EBADMSG);
    e[0].term = 10; /* above that of the leader */
    assert_int_equal(decode_entries(m, e, 1, 1, out), -EBADMSG);
    e[0] = entry(6, 8, 0);
    assert_int_equal(decode_entries(m, e, 1, 0, out), -EBADMSG);
    e[0] = entry(6, 8, 1);
    e[0].kind = 4;
    assert_int_equal(decode_entries(m, e, 1, 1, out), -EBADMSG);
    e[0].kind = RAFT_ENTRY_CONFIG; /* zeros are no list of members */
    assert_int_equal(decode_entries(m, e, 1, 1, out), -EBADMSG);

    e[0] = entry(6, 8, RAFT_ENTRY_BYTES_MAX);
    e[1] = entry(7, 8, 1);
    assert_int_equal(raft_msg_fill(e, 2), 1);
    assert_int_equal(decode_entries(m, e, 1, RAFT_ENTRY_BYTES_MAX, out), 0);
    assert_int_equal(decode_entries(m, e, 1, RAFT_ENTRY_BYTES_MAX + 1, out), -EBADMSG);
    m.n = 1;
    raft_msg_advance(&m, &e[0]);
    assert_int_equal(m.index, 6);
    assert_int_equal(m.index_term, 8);
    assert_int_equal(decode_entries(m, e + 1, 1, 1, out), 0);
}

static void test_lists_of_members(void **state)
{
    struct raft_config c = { .n = 0 }, got;
    char long_address[RAFT_ADDRESS_MAX + 2];
    uint8_t buf[RAFT_CONFIG_BYTES_MAX];
    size_t len;

    (void)state;
    memset(long_address, 'x', sizeof(long_address));
    long_address[RAFT_ADDRESS_MAX + 1] = '\0';
    assert_int_equal(raft_config_set(&c, 0, RAFT_ROLE_VOTER, ""), -EINVAL);
    assert_int_equal(raft_config_set(&c, 1, 3, ""), -EINVAL);
    assert_int_equal(raft_config_set(&c, 1, RAFT_ROLE_VOTER, "a\n"), -EINVAL);
    assert_int_equal(raft_config_set(&c, 1, RAFT_ROLE_VOTER, long_address), -EINVAL);
    long_address[RAFT_ADDRESS_MAX] = '\0';
    for (unsigned i = 0; i < RAFT_SERVERS_MAX; i++) /* in no order */
        assert_int_equal(raft_config_set(&c, 1 + i * 7 % 15, i % 3, long_address), 0);
    assert_int_equal(raft_config_set(&c, 99, RAFT_ROLE_VOTER, ""), -ENOSPC);
    assert_int_equal(raft_config_set(&c, UINT64_MAX, RAFT_ROLE_VOTER, ""), -ENOSPC);
    assert_int_equal(c.n, 15);
    for (unsigned i = 0; i < 15; i++)
        assert_int_equal(c.members[i].id, 1 + i);
    assert_int_equal(raft_config_n_voters(&c), 5);
    len = raft_config_encode(&c, buf);
    assert_true(len <= sizeof(buf) && len % 8 == 0);
    assert_int_equal(raft_config_decode(buf, len, &got), 0);
    for (unsigned i = 0; i < 15; i++) {
        assert_int_equal(got.members[i].role, c.members[i].role);
        assert_string_equal(got.members[i].address, long_address);
    }
    for (unsigned i = 14; i > 0; i--)
        assert_int_equal(raft_config_remove(&c, 1 + i), 0);
    assert_int_equal(raft_config_remove(&c, 2), -ENOENT);
    assert_int_equal(raft_config_set(&c, 1, RAFT_ROLE_VOTER, "m1:4710"), 0);
    len = raft_config_encode(&c, buf);
    assert_int_equal(len, 9 + 8 + 16 + 1 + 7 + 1 + 1 + 5);
    assert_int_equal(raft_config_decode(buf, len, NULL), 0);
    for (size_t i = 0; i < len; i++) {
        assert_int_equal(raft_config_decode(buf, i, &got), -EBADMSG);
        if (i >= 9 + 8 + 17 && i < 9 + 8 + 17 + 7)
            continue; /* letters of the address */
        buf[i] ^= 0x10;
        assert_int_equal(raft_config_decode(buf, len, &got), -EBADMSG);
        buf[i] ^= 0x10;
    }
    assert_int_equal(raft_config_set(&c, 1, RAFT_ROLE_STANDBY, ""), 0);
    assert_int_equal(raft_config_decode(buf, raft_config_encode(&c, buf), &got),
                     -EBADMSG); /* no voter */
}

static void test_witnesses_are_in_the_list(void **state)
{
    struct raft_config c = { .n = 0 }, got;
    uint8_t buf[RAFT_CONFIG_BYTES_MAX];
    size_t len;

    (void)state;
    assert_int_equal(raft_config_set(&c, 1, RAFT_ROLE_VOTER, "m1:4710"), 0);
    assert_int_equal(raft_config_set(&c, 2, RAFT_ROLE_SPARE, "m2:4710"), 0);
    assert_int_equal(raft_config_set(&c, 3, RAFT_ROLE_VOTER, ""), 0);
    raft_config_set_witness(&c, 2);
    raft_config_set_witness(&c, 3);
    raft_config_set_witness(&c, 9); /* there is none */
    assert_int_equal(raft_config_n_voters(&c), 2);
    assert_int_equal(raft_config_n_witnesses(&c), 2);
    len = raft_config_encode(&c, buf);
    assert_int_equal(raft_config_decode(buf, len, &got), 0);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(got.members[i].is_witness, i > 0);
        assert_int_equal(got.members[i].role, c.members[i].role);
        assert_string_equal(got.members[i].address, c.members[i].address);
    }
    assert_false(raft_config_is_witness(&got, 1) || raft_config_is_witness(&got, 9));
    assert_true(raft_config_is_witness(&got, 2) && raft_config_is_witness(&got, 3));
    /* A member keeps its kind, whatever else changes; the next one has its own. */
    assert_int_equal(raft_config_set(&c, 2, RAFT_ROLE_VOTER, "m2:4711"), 0);
    assert_true(raft_config_is_witness(&c, 2));
    assert_int_equal(raft_config_remove(&c, 2), 0);
    assert_int_equal(raft_config_set(&c, 4, RAFT_ROLE_VOTER, "m2:4711"), 0);
    assert_false(raft_config_is_witness(&c, 4));
    /* Witnesses alone keep nothing. */
    raft_config_set_witness(&c, 4);
    assert_int_equal(raft_config_set(&c, 1, RAFT_ROLE_STANDBY, "m1:4710"), 0);
    assert_int_equal(raft_config_decode(buf, raft_config_encode(&c, buf), &got),
                     -EBADMSG);
}

static void test_groups_that_began_again_are_told_apart(void **state)
{
    struct raft_msg_group old = { .number = 0 }, next = old, other = old;
    struct raft_msg msg = { .kind = RAFT_MSG_VOTED, .from = 1, .to = 2, .term = 3 }, got;
    struct raft_log_entry entries[RAFT_MSG_ENTRIES_MAX];
    uint8_t head[RAFT_MSG_HEAD_MAX];
    size_t len;

    (void)state;
    assert_int_equal(raft_group_next(0, UINT32_MAX, &next.number), 0);
    assert_int_equal(next.number, 0x01ffffff);
    assert_int_equal(raft_group_next(0, 7, &other.number), 0);
    assert_int_equal(raft_group_next(UINT32_C(255) << 24, 0, &old.number), -EOVERFLOW);
    len = raft_msg_encode(&old, &msg, NULL, head);
    assert_int_equal(raft_msg_decode(&old, 2, head, len, NULL, 0, &got, entries), 0);
    assert_int_equal(raft_msg_decode(&next, 2, head, len, NULL, 0, &got, entries),
                     -ROZO_EDEPOSED);
    assert_int_equal(raft_msg_decode(&next, 9, head, len, NULL, 0, &got, entries),
                     -ROZO_EDEPOSED); /* whichever member it meant */
    len = raft_msg_encode(&next, &msg, NULL, head);
    assert_int_equal(raft_msg_decode(&old, 2, head, len, NULL, 0, &got, entries),
                     -ESTALE); /* a new one does not depose an old one */
    assert_int_equal(raft_msg_decode(&other, 2, head, len, NULL, 0, &got, entries),
                     -ESTALE);
    next.cluster_id[0] = 1;
    len = raft_msg_encode(&old, &msg, NULL, head);
    assert_int_equal(raft_msg_decode(&next, 2, head, len, NULL, 0, &got, entries),
                     -ESTALE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_kind_comes_back),
        cmocka_unit_test(test_fields_out_of_range_are_refused),
        cmocka_unit_test(test_entries_are_bounded),
        cmocka_unit_test(test_lists_of_members),
        cmocka_unit_test(test_witnesses_are_in_the_list),
        cmocka_unit_test(test_groups_that_began_again_are_told_apart),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
