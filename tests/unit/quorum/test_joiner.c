/*
 * test_joiner.c - a member that copies a store, and others that answer what the test
 * says: which answers it takes, and when it takes part again.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/proto/rozo.pb-c.h"

#include "codec/codec.h"
#include "tests/unit/quorum/written_world.h"
#include "tests/unit/unit.h"

enum { SELF = 100 };

/* Channel to a member that the test plays. */
struct script {
    struct rpc_channel channel; /* must stay first */
    struct joiner *j;
    uint64_t id;
};

/* Member 0 of a world; the test plays the others. */
struct joiner {
    struct written_world w;
    struct member_node *n;
    struct script scripts[MEMBERS];
    struct rpc_request *rq; /* question that waits; NULL: none */
    uint64_t asked;         /* raft id of the member that it is for */
    struct seed_ask ask;
};

static void script_send(struct rpc_channel *ch, struct rpc_request *rq)
{
    static const struct raft_msg_group group = { .number = 0 };
    struct script *s = (struct script *)ch;

    if (rq->op == ROZO__OP__RF_STEP)
        return; /* without an answer; the member cancels it */
    assert_null(s->j->rq);
    s->j->rq = rq;
    s->j->asked = s->id;
    assert_int_equal(seed_ask_decode(&group, s->id, rq->msg, rq->msg_len, &s->j->ask), 0);
    assert_int_equal(s->j->ask.from, SELF);
}

static void script_cancel(struct rpc_channel *ch, struct rpc_request *rq)
{
    struct script *s = (struct script *)ch;

    if (s->j->rq == rq)
        s->j->rq = NULL;
}

static const struct rpc_channel_ops script_ops = { .send = script_send,
                                                   .cancel = script_cancel };

/* Makes a member that has been part of a quorum, and is down. */
static struct joiner *joiner_new(struct member_status *before)
{
    struct joiner *j = calloc(1, sizeof(*j));

    assert_non_null(j);
    written_init(&j->w, 5);
    written_write(&j->w, member_world_wait_for_leader(&j->w.m), 8);
    member_world_run_ms(&j->w.m, 500);
    j->n = &j->w.m.nodes[0];
    member_status(j->n->member, before);
    for (unsigned i = 0; i < MEMBERS; i++) {
        member_node_kill(&j->w.m.nodes[i], false);
        j->scripts[i] =
            (struct script){ .channel.ops = &script_ops, .j = j, .id = SELF + i };
        j->w.m.scripted[i] = &j->scripts[i].channel;
    }
    return j;
}

static void joiner_free(struct joiner *j)
{
    written_free(&j->w);
    free(j);
}

static enum seed_doubt seeding(const struct joiner *j)
{
    struct member_status s;

    member_status(j->n->member, &s);
    return s.seeding;
}

/* Runs until the member asks. */
static void wait_for_question(struct joiner *j, uint16_t op)
{
    for (unsigned ms = 0; ms < 1000 && j->rq == NULL; ms++)
        member_world_run_ms(&j->w.m, 1);
    assert_non_null(j->rq);
    assert_int_equal(j->rq->op, op);
}

static void answer(struct joiner *j, const uint8_t *msg, size_t msg_len, uint8_t *payload,
                   size_t len)
{
    struct rpc_request *rq = j->rq;

    assert_non_null(rq);
    j->rq = NULL;
    rq->status = ROZO__STATUS__OK;
    rq->answer_msg = msg;
    rq->answer_msg_len = msg_len;
    rq->answer_payload = payload;
    rq->answer_payload_len = len;
    rq->done(rq, 0);
    env_virtual_run_posted(&j->w.v);
}

/* Answers RF_FETCH with log->n entries from log->index on, each puts keys "A" and "D". */
static void answer_log(struct joiner *j, struct seed_log log)
{
    static uint8_t payload[4096];
    uint8_t head[SEED_LOG_BYTES];
    size_t len = 0;

    for (unsigned i = 0; i < log.n; i++) {
        const struct quorum_batch_head batch = { .number = log.index + i };
        uint64_t val = log.index + i;
        const struct kv_item items[2] = { { "A", 1, &val, 8 }, { "D", 1, &val, 8 } };
        struct quorum_entry *parts[QUORUM_PARTS_MAX];

        assert_int_equal(quorum_batch_new(items, 2, &batch, parts), 1);
        parts[0]->e.term = log.term;
        seed_row_put(payload + len, &parts[0]->e);
        memcpy(payload + len + SEED_ROW_BYTES, parts[0]->bytes, parts[0]->e.len);
        len += SEED_ROW_BYTES + parts[0]->e.len;
        quorum_entry_free(parts[0]);
    }
    seed_log_encode(&log, codec_crc32c(0, payload, len), head);
    answer(j, head, sizeof(head), payload, len);
}

/* Answers RF_SEED with one key. */
static void answer_chunk(struct joiner *j, uint64_t applied, const char *key,
                         bool is_last)
{
    static uint8_t payload[64];
    uint8_t head[SEED_CHUNK_BYTES_MAX];
    struct seed_chunk chunk = { .is_last = is_last,
                                .applied = applied,
                                .applied_term = 2,
                                .members_index = 1,
                                .members = j->w.m.first };
    size_t len = seed_item_put(payload, key, 1, &applied, 8);

    answer(j, head, seed_chunk_encode(&chunk, payload, len, head), payload, len);
}

static uint64_t value(const struct joiner *j, const char *key)
{
    void *val = NULL;
    size_t len;
    uint64_t v = 0;

    if (kv_get(kv_memory_kv(j->n->below), key, 1, &val, &len) == 0)
        memcpy(&v, val, 8);
    free(val);
    return v;
}

static void spoil_vote(struct joiner *j)
{
    static const uint8_t bad[2 * MEM_PAGE] = { 1 };
    uint8_t both[2 * MEM_PAGE];

    memset(both, bad[0], sizeof(both));
    memdisk_poke(&j->n->disk, memdisk_find(&j->n->disk, "vote"), 0, both, sizeof(both));
}

/* Runs for so long that the member asks again, if it still copies. */
static void is_still_copying(struct joiner *j, uint16_t op)
{
    wait_for_question(j, op);
    assert_int_not_equal(seeding(j), SEED_NONE);
}

static void a_lost_vote_waits_until_the_barrier_is_held(void **state)
{
    struct member_status s;
    struct joiner *j = joiner_new(&s);
    uint64_t next = s.applied + 1, leader, ballot[2];
    struct seed_log log = {
        .leads = true, .term = 7, .first = 1, .commit = next, .last = next, .index = next
    };

    (void)state;
    spoil_vote(j);
    member_node_start(j->n);
    is_still_copying(j, ROZO__OP__RF_FETCH);
    assert_true(j->ask.wants_barrier && j->ask.barrier == 0 && j->ask.index == next);
    /* a leader makes a barrier; the entries up to it come, and it is not held */
    log.barrier = next;
    log.n = 1;
    answer_log(j, log);
    is_still_copying(j, ROZO__OP__RF_FETCH);
    assert_int_equal(j->ask.barrier, next);
    assert_int_equal(j->ask.barrier_term, 7);
    log.index = next + 1;
    log.n = 0;
    answer_log(j, log);
    is_still_copying(j, ROZO__OP__RF_FETCH);
    /* held, as somebody says that does not lead; or in another term */
    log.leads = false;
    log.is_held = true;
    answer_log(j, log);
    is_still_copying(j, ROZO__OP__RF_FETCH);
    log.leads = true;
    log.term = 8;
    answer_log(j, log);
    is_still_copying(j, ROZO__OP__RF_FETCH);
    assert_int_equal(j->ask.barrier_term, 8);
    leader = j->asked;
    answer_log(j, log);
    for (unsigned ms = 0; ms < 100 && seeding(j) != SEED_NONE; ms++)
        member_world_run_ms(&j->w.m, 1);
    assert_int_equal(seeding(j), SEED_NONE);
    member_status(j->n->member, &s);
    assert_int_equal(s.term, 8);
    assert_int_equal(s.applied, next);
    assert_int_equal(value(j, "A"), next);
    /* The vote in that term is for this leader. */
    memdisk_peek(memdisk_find(&j->n->disk, "vote"), 24, ballot, sizeof(ballot));
    assert_int_equal(ballot[0], 8);
    assert_int_equal(ballot[1], leader);
    joiner_free(j);
}

static void a_lost_log_needs_a_leader_of_its_own_term_or_later(void **state)
{
    struct member_status s;
    struct joiner *j = joiner_new(&s);
    struct seed_log log = { .leads = true, .term = s.term - 1, .first = 1 };

    (void)state;
    assert_true(s.term > 1);
    kv_memory_close(j->n->below);
    assert_int_equal(kv_memory_open(&j->w.v.env, &j->n->below), 0);
    member_node_start(j->n);
    wait_for_question(j, ROZO__OP__RF_SEED);
    answer_chunk(j, 50, "B", true);
    wait_for_question(j, ROZO__OP__RF_FETCH);
    log.index = 51;
    log.commit = log.last = 50;
    answer_log(j, log); /* deposed, and does not know it */
    is_still_copying(j, ROZO__OP__RF_FETCH);
    log.term = s.term;
    log.last = 51;
    answer_log(j, log);
    is_still_copying(j, ROZO__OP__RF_FETCH);
    assert_int_equal(seeding(j), SEED_LOG_LOST);
    log.commit = 51;
    log.n = 1;
    answer_log(j, log);
    member_world_run_ms(&j->w.m, 50);
    assert_int_equal(seeding(j), SEED_NONE);
    joiner_free(j);
}

/* Answers that do not go together with what is there are not taken. */
static void only_what_follows_is_taken(void **state)
{
    struct member_status s;
    struct joiner *j = joiner_new(&s);
    struct seed_log log = { .leads = true, .term = s.term, .first = 1 };

    (void)state;
    kv_memory_close(j->n->below);
    assert_int_equal(kv_memory_open(&j->w.v.env, &j->n->below), 0);
    member_node_start(j->n);
    wait_for_question(j, ROZO__OP__RF_SEED);
    assert_true(j->ask.after.len == 0 && j->ask.index == 0);
    answer_chunk(j, 50, "B", false);
    wait_for_question(j, ROZO__OP__RF_SEED);
    assert_true(j->ask.after.len == 1 && j->ask.after.bytes[0] == 'B');
    answer_chunk(j, 49, "C", true); /* from a store that lacks entry 50 */
    is_still_copying(j, ROZO__OP__RF_SEED);
    assert_true(j->ask.after.bytes[0] == 'B' && j->ask.index == 50);
    answer_chunk(j, 52, "B", true); /* not behind the cursor */
    is_still_copying(j, ROZO__OP__RF_SEED);
    assert_true(j->ask.after.bytes[0] == 'B' && j->ask.index == 50);
    answer_chunk(j, 52, "C", false);
    wait_for_question(j, ROZO__OP__RF_FETCH); /* up to that chunk first */
    assert_int_equal(j->ask.index, 51);
    log.commit = log.last = 53;
    log.index = 52;
    log.n = 1;
    answer_log(j, log); /* without entry 51 */
    is_still_copying(j, ROZO__OP__RF_FETCH);
    assert_int_equal(j->ask.index, 51);
    assert_int_equal(value(j, "A"), 0);
    log.index = 51;
    log.n = 2;
    answer_log(j, log);
    wait_for_question(j, ROZO__OP__RF_SEED);
    assert_int_equal(value(j, "A"), 52);
    assert_int_equal(value(j, "D"), 0); /* behind the cursor: a chunk has it, or not */
    answer_chunk(j, 53, "E", true);
    is_still_copying(j, ROZO__OP__RF_FETCH); /* entry 53 changed keys before E */
    log.index = 53;
    log.n = 1;
    answer_log(j, log);
    member_world_run_ms(&j->w.m, 50);
    assert_int_equal(seeding(j), SEED_NONE);
    assert_int_equal(value(j, "A"), 53);
    assert_int_equal(value(j, "D"), 53);
    assert_int_equal(value(j, "B"), 50);
    assert_int_equal(value(j, "E"), 53);
    joiner_free(j);
}

/* The disk fails when the log is removed, or when an empty one starts. */
static void a_member_whose_disk_fails_in_a_copy_has_a_state(void **state)
{
    static const struct {
        enum disk_op op;
        const char *path;
        unsigned at;
    } fails[] = { { DISK_REMOVE, "journal/", 1 },
                  { DISK_OPEN, "vote", 2 },
                  { DISK_OPEN, "boot", 2 } };

    (void)state;
    for (unsigned i = 0; i < sizeof(fails) / sizeof(fails[0]); i++) {
        struct member_status s;
        struct joiner *j = joiner_new(&s);

        kv_memory_close(j->n->below);
        assert_int_equal(kv_memory_open(&j->w.v.env, &j->n->below), 0);
        j->n->disk.fail_at = fails[i].at;
        j->n->disk.fail_rc = -EIO;
        j->n->disk.fail_op = (int)fails[i].op;
        j->n->disk.fail_path = fails[i].path;
        member_node_start(j->n);
        member_world_run_ms(&j->w.m, 100);
        assert_true(j->n->has_failed);
        member_status(j->n->member, &s);
        assert_int_equal(s.log_bytes, 0);
        joiner_free(j);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lost_vote_waits_until_the_barrier_is_held),
        cmocka_unit_test(a_lost_log_needs_a_leader_of_its_own_term_or_later),
        cmocka_unit_test(only_what_follows_is_taken),
        cmocka_unit_test(a_member_whose_disk_fails_in_a_copy_has_a_state),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
