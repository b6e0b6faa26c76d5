/*
 * test_joiner.c - a member that copies a store, and others that answer what the test
 * says: which answers it takes, and when it takes part again.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/proto/rozo.pb-c.h"

#include "codec/codec.h"
#include "common/base/bytes.h"
#include "exportd/quorum/member_in.h"
#include "exportd/quorum/raft/raft_core.h"
#include "exportd/quorum/seed/seed_adopt.h"
#include "tests/unit/quorum/written_world.h"
#include "tests/unit/unit.h"

/* ALONE_MS: others may need an uncertain member when none of them has led for so long. */
enum { SELF = 100, AT_TO = 32, ALONE_MS = 4 * RAFT_ELECTION_MS };

/* Channel to a member that the test plays. */
struct script {
    struct rpc_channel channel; /* must stay first */
    struct joiner *j;
    struct rpc_request *tells; /* RF_TELL that waits; NULL: none */
};

/* Member of a world; the test plays the others. */
struct joiner {
    struct written_world w;
    struct member_node *n; /* the first one, or the witness */
    uint64_t id;           /* raft id: SELF, unless it is a witness */
    struct script scripts[MEMBERS];
    struct rpc_request *rq;   /* question that waits; NULL: none */
    struct rpc_request *tell; /* likewise, the last RF_TELL */
    uint64_t asked;           /* raft id of the member that it is for */
    struct seed_ask ask;
};

static void script_send(struct rpc_channel *ch, struct rpc_request *rq)
{
    static const struct raft_msg_group group = { .number = 0 };
    struct script *s = (struct script *)ch;

    if (rq->op == ROZO__OP__RF_TELL)
        s->tells = s->j->tell = rq;
    if (rq->op == ROZO__OP__RF_STEP || rq->op == ROZO__OP__RF_TELL)
        return; /* without an answer; the member cancels it */
    assert_null(s->j->rq);
    s->j->rq = rq;
    assert_true(rq->msg_len >= SEED_ASK_BYTES);
    s->j->asked = get_le64((const uint8_t *)rq->msg + AT_TO);
    assert_int_equal(
        seed_ask_decode(&group, s->j->asked, rq->msg, rq->msg_len, &s->j->ask), 0);
    assert_int_equal(s->j->ask.from, s->j->id);
}

static void script_cancel(struct rpc_channel *ch, struct rpc_request *rq)
{
    struct script *s = (struct script *)ch;

    if (s->j->rq == rq)
        s->j->rq = NULL;
    if (s->tells == rq)
        s->tells = NULL;
    if (s->j->tell == rq)
        s->j->tell = NULL;
}

static const struct rpc_channel_ops script_ops = { .send = script_send,
                                                   .cancel = script_cancel };

/* Makes a member that has been part of a quorum, and is down. */
static struct joiner *joiner_make(struct member_status *before, bool is_witness)
{
    struct joiner *j = calloc(1, sizeof(*j));

    assert_non_null(j);
    if (is_witness)
        written_init_witness(&j->w, 5, false);
    else
        written_init(&j->w, 5);
    written_write(&j->w, member_world_wait_for_leader(&j->w.m), 8);
    member_world_run_ms(&j->w.m, 500);
    j->n = &j->w.m.nodes[is_witness ? MEMBERS - 1 : 0];
    j->id = SELF + j->n->i;
    j->w.m.scripted_node = j->n->i;
    member_status(j->n->member, before);
    for (unsigned i = 0; i < MEMBERS; i++) {
        member_node_kill(&j->w.m.nodes[i], false);
        j->scripts[i] = (struct script){ .channel.ops = &script_ops, .j = j };
        j->w.m.scripted[i] = &j->scripts[i].channel;
    }
    return j;
}

static struct joiner *joiner_new(struct member_status *before)
{
    return joiner_make(before, false);
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

/* Answers RF_JOIN. */
static void answer_voter(struct joiner *j, const struct seed_voter *voter)
{
    uint8_t head[SEED_VOTER_BYTES_MAX];

    answer(j, head, seed_voter_encode(voter, head), NULL, 0);
}

/* Answers RF_SEED with one key; "": with none. */
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
    size_t len =
        key[0] == '\0' ? 0 : seed_item_put(payload, key, strlen(key), &applied, 8);

    answer(j, head, seed_chunk_encode(&chunk, payload, len, head), payload, len);
}

/* The member that is asked does not answer. */
static void answer_nothing(struct joiner *j)
{
    struct rpc_request *rq = j->rq;

    j->rq = NULL;
    rq->done(rq, -ETIMEDOUT);
}

/* A call of another member, and the answer to it. */
struct asked {
    struct rpc_call call; /* must stay first */
    bool is_answered;
    uint16_t status;
    uint8_t msg[SEED_VOTER_BYTES_MAX];
    size_t len;
};

static void on_reply(struct rpc_call *call, uint16_t status, const void *msg,
                     size_t msg_len, const struct rpc_seg *segs, unsigned n_segs,
                     void (*sent)(void *arg), void *arg)
{
    struct asked *a = (struct asked *)call;

    (void)segs, (void)sent, (void)arg;
    assert_int_equal(n_segs, 0);
    a->is_answered = true;
    a->status = status;
    a->len = msg_len < sizeof(a->msg) ? msg_len : sizeof(a->msg);
    if (msg_len > 0)
        memcpy(a->msg, msg, a->len);
}

static const struct rpc_call_ops asked_ops = { on_reply };

/* Asks the member. */
static void ask(struct joiner *j, struct asked *a, uint16_t op, const void *msg,
                size_t len)
{
    *a = (struct asked){ .call = { .ops = &asked_ops,
                                   .op = op,
                                   .role = RPC_ROLE_NODE,
                                   .msg = msg,
                                   .msg_len = len } };
    member_handle(j->n->member, &a->call);
}

static uint64_t value(const struct joiner *j, const char *key)
{
    void *val = NULL;
    size_t len;
    uint64_t v = 0;

    if (kv_get(kv_memory_kv(j->n->below), key, strlen(key), &val, &len) == 0)
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

/* Where the place in the log lies is a member's own business: these keys of another one
 * would pass for that of this one. */
static void a_chunk_has_no_key_of_a_member(void **state)
{
    static const char *const keys[] = { "ZA", "ZH", "ZM", "ZS", "Z" };
    struct member_status s;
    struct joiner *j = joiner_new(&s);
    struct kv_quorum_place place;
    struct seed_log log = { .leads = true, .term = s.term, .first = 1 };
    char text[ERR_TEXT_MAX];
    int64_t wall_ns;

    (void)state;
    kv_memory_close(j->n->below);
    assert_int_equal(kv_memory_open(&j->w.v.env, &j->n->below), 0);
    member_node_start(j->n);
    for (unsigned i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        wait_for_question(j, ROZO__OP__RF_SEED);
        assert_true(j->ask.after.len == 0 && j->ask.index == 0);
        answer_chunk(j, 50, keys[i], true);
        member_peers_say(j->n->member, NULL, text);
        assert_non_null(strstr(text, "gives what is not valid"));
    }
    wait_for_question(j, ROZO__OP__RF_SEED);
    assert_true(j->ask.after.len == 0 && j->ask.index == 0);
    answer_chunk(j, 50, "Y", true); /* the letter before */
    wait_for_question(j, ROZO__OP__RF_FETCH);
    log.index = 51;
    log.commit = log.last = 50;
    answer_log(j, log);
    member_world_run_ms(&j->w.m, 50);
    assert_int_equal(seeding(j), SEED_NONE);
    assert_int_equal(kv_place_load(kv_memory_kv(j->n->below), &place, &wall_ns), 0);
    assert_int_equal(place.applied, 50);
    assert_int_equal(place.highest_id, raft_config_highest(&j->w.m.first));
    joiner_free(j);
}

/* A witness asks behind all keys: a source that sends some all the same is not taken. */
static void a_witness_takes_no_key(void **state)
{
    struct member_status s;
    struct joiner *j = joiner_make(&s, true);

    (void)state;
    spoil_vote(j);
    member_node_start(j->n);
    wait_for_question(j, ROZO__OP__RF_SEED);
    answer_chunk(j, s.applied + 9, "\xff\xff", true);
    wait_for_question(j, ROZO__OP__RF_SEED);
    assert_int_equal(value(j, "\xff\xff"), 0);
    answer_chunk(j, s.applied + 9, "", true);
    wait_for_question(j, ROZO__OP__RF_FETCH);
    assert_int_equal(j->ask.index, s.applied + 10);
    joiner_free(j);
}

/* ---- whom it asks ---- */

/* Makes a member without a store, which asks for keys. */
static struct joiner *joiner_without_store(struct member_status *before)
{
    struct joiner *j = joiner_new(before);

    kv_memory_close(j->n->below);
    assert_int_equal(kv_memory_open(&j->w.v.env, &j->n->below), 0);
    member_node_start(j->n);
    wait_for_question(j, ROZO__OP__RF_SEED);
    return j;
}

/* A member says that it leads. */
static void hear_leader(struct joiner *j, uint64_t id, uint64_t term, uint64_t commit)
{
    static const struct raft_msg_group group = { .number = 0 };
    const struct raft_msg heartbeat = { .kind = RAFT_MSG_APPEND,
                                        .from = id,
                                        .to = SELF,
                                        .term = term,
                                        .sent_ns = 1,
                                        .index = commit,
                                        .index_term = term,
                                        .commit = commit };
    uint8_t msg[RAFT_MSG_HEAD_MAX];
    struct asked a;

    ask(j, &a, ROZO__OP__RF_STEP, msg, raft_msg_encode(&group, &heartbeat, NULL, msg));
    assert_int_equal(a.status, ROZO__STATUS__BUSY);
}

/* Goes on with the next chunk, up to the next question for keys. */
static void take_chunk(struct joiner *j, const char *key)
{
    answer_chunk(j, 50, key, false);
    wait_for_question(j, ROZO__OP__RF_SEED);
    assert_int_equal(j->ask.after.bytes[0], key[0]);
}

static void keys_come_from_a_follower(void **state)
{
    struct member_status s;
    struct joiner *j = joiner_without_store(&s);
    uint64_t leader = j->asked, follower = 2 * SELF + 3 - leader;

    (void)state;
    hear_leader(j, leader, s.term, 50);
    take_chunk(j, "B");
    assert_int_equal(j->asked, follower);
    take_chunk(j, "C");
    assert_int_equal(j->asked, follower);
    hear_leader(j, follower, s.term + 1, 50); /* the other one leads now */
    hear_leader(j, leader, s.term, 50);       /* does not know it yet */
    take_chunk(j, "D");
    assert_int_equal(j->asked, leader);
    joiner_free(j);
}

static void keys_come_from_the_leader_if_no_follower_gives_them(void **state)
{
    struct member_status s;
    struct joiner *j = joiner_without_store(&s);
    uint64_t leader = j->asked, follower = 2 * SELF + 3 - leader;

    (void)state;
    hear_leader(j, leader, s.term, 50);
    take_chunk(j, "B");
    assert_int_equal(j->asked, follower);
    answer_nothing(j);
    wait_for_question(j, ROZO__OP__RF_SEED);
    assert_int_equal(j->asked, leader);
    take_chunk(j, "C");
    assert_int_equal(j->asked, leader);
    member_world_run_ms(&j->w.m, SEED_AGAIN_MS); /* the follower may be back */
    take_chunk(j, "D");
    assert_int_equal(j->asked, follower);
    joiner_free(j);
}

/* The store of a follower that is far behind is taken only if there is no other one. */
static void a_follower_that_is_behind_is_not_preferred(void **state)
{
    struct member_status s;
    struct joiner *j = joiner_without_store(&s);
    uint64_t leader = j->asked, follower = 2 * SELF + 3 - leader;

    (void)state;
    hear_leader(j, leader, s.term, 50 + SEED_LATE_MAX + 1);
    take_chunk(j, "B"); /* keys of the leader are never late */
    assert_int_equal(j->asked, follower);
    answer_chunk(j, 50, "C", false);
    wait_for_question(j, ROZO__OP__RF_SEED);
    assert_int_equal(j->asked, leader);
    assert_int_equal(j->ask.after.bytes[0], 'B');
    answer_nothing(j);
    wait_for_question(j, ROZO__OP__RF_SEED);
    assert_int_equal(j->asked, follower);
    take_chunk(j, "C");
    joiner_free(j);
}

/* Only a leader says when a copy is complete: while changes come, the log of a follower
 * has always one more. */
static void the_newest_entries_come_from_the_leader(void **state)
{
    struct member_status s;
    struct joiner *j = joiner_new(&s);
    uint64_t next = s.applied + 1, leader, follower;
    struct seed_log log = { .term = s.term, .first = 1, .n = 1, .index = next };

    (void)state;
    spoil_vote(j);
    member_node_start(j->n);
    wait_for_question(j, ROZO__OP__RF_FETCH);
    follower = j->asked;
    leader = 2 * SELF + 3 - follower;
    hear_leader(j, leader, s.term + 1, next);            /* a late message has s.term */
    log.commit = log.last = next + SEED_ENTRIES_MAX + 1; /* many are missing there */
    answer_log(j, log);
    wait_for_question(j, ROZO__OP__RF_FETCH);
    assert_int_equal(j->asked, follower);
    log.index++;
    answer_log(j, log);
    wait_for_question(j, ROZO__OP__RF_FETCH);
    assert_int_equal(j->asked, leader);
    answer_nothing(j);
    wait_for_question(j, ROZO__OP__RF_FETCH);
    assert_int_equal(j->asked, follower);
    log.index++;
    answer_log(j, log); /* the leader is not asked again so soon */
    wait_for_question(j, ROZO__OP__RF_FETCH);
    assert_int_equal(j->asked, follower);
    member_world_run_ms(&j->w.m, SEED_AGAIN_MS + 1000);
    log.index++;
    answer_log(j, log);
    wait_for_question(j, ROZO__OP__RF_FETCH);
    assert_int_equal(j->asked, leader);
    assert_true(j->ask.wants_barrier);
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

/* ---- after a loss of power ---- */

/* Starts the member after it has lost its power: it asks who leads. */
static void start_uncertain(struct joiner *j)
{
    j->w.m.is_lazy = true;
    member_node_start(j->n);
    member_node_kill(j->n, true);
    member_node_start(j->n);
    wait_for_question(j, ROZO__OP__RF_JOIN);
}

static bool is_uncertain(const struct joiner *j)
{
    struct member_status s;

    member_status(j->n->member, &s);
    return s.is_uncertain;
}

static void an_uncertain_member_takes_a_newer_list(void **state)
{
    struct seed_adoption news = { .id = SELF, .list_index = 1000 };
    struct seed_voter leader = { .leads = true };
    uint8_t msg[SEED_ADOPT_BYTES_MAX];
    struct member_status s;
    struct joiner *j = joiner_new(&s);
    struct asked a;

    (void)state;
    start_uncertain(j);
    assert_int_equal(j->asked, SELF + 1);
    assert_int_equal(raft_config_set(&news.list, SELF, RAFT_ROLE_STANDBY, "m0"), 0);
    assert_int_equal(raft_config_set(&news.list, SELF + 5, RAFT_ROLE_VOTER, "m1"), 0);
    ask(j, &a, ROZO__OP__RF_ADOPT, msg, seed_adopt_encode(&news, msg));
    assert_int_equal(a.status, ROZO__STATUS__OK);
    wait_for_question(j, ROZO__OP__RF_JOIN);
    assert_int_equal(j->asked, SELF + 5);
    answer_nothing(j);
    wait_for_question(j, ROZO__OP__RF_JOIN); /* no other one is asked */
    assert_int_equal(j->asked, SELF + 5);
    member_status(j->n->member, &s);
    assert_int_equal(s.n_silent, 1);
    assert_int_equal(s.silent[0], SELF + 5);
    leader.term = s.term; /* leads since before the loss */
    leader.last = s.last + 1;
    leader.last_term = s.term;
    leader.list = news.list;
    for (unsigned i = 0; i < 2; i++) { /* the leader lasts */
        answer_voter(j, &leader);
        member_world_run_ms(&j->w.m, RAFT_ELECTION_MS);
    }
    answer_voter(j, &leader);
    wait_for_question(j, ROZO__OP__RF_FETCH);
    assert_int_equal(j->asked, SELF + 5);
    /* an older list is no news */
    news.list_index = 999;
    news.list.n = 1;
    news.list.members[0].role = RAFT_ROLE_VOTER;
    ask(j, &a, ROZO__OP__RF_ADOPT, msg, seed_adopt_encode(&news, msg));
    assert_int_equal(a.status, ROZO__STATUS__OK);
    member_status(j->n->member, &s);
    assert_int_equal(s.members.n, 2);
    joiner_free(j);
}

/* Answers of different times may fit together although a leader has led in between, with
 * whose help one of the members takes part again. */
static void answers_of_a_long_round_do_not_count(void **state)
{
    struct seed_voter voter = { .in_doubt = true, .last_term = 1 };
    struct member_status s;
    struct joiner *j = joiner_new(&s);

    (void)state;
    start_uncertain(j);
    member_status(j->n->member, &s);
    voter.term = s.term;
    voter.list = s.members;
    answer_voter(j, &voter);
    wait_for_question(j, ROZO__OP__RF_JOIN);
    member_world_run_ms(&j->w.m, RAFT_ELECTION_MS + 1);
    answer_voter(j, &voter);
    member_world_run_ms(&j->w.m, 1);
    assert_true(is_uncertain(j));
    for (unsigned i = 0; i < 2; i++) {
        wait_for_question(j, ROZO__OP__RF_JOIN);
        answer_voter(j, &voter);
    }
    member_world_run_ms(&j->w.m, 1);
    assert_false(is_uncertain(j));
    joiner_free(j);
}

/* An uncertain member, and the others: they are up, and none leads. */
struct doubtful {
    struct member_status was; /* before its power was lost */
    struct joiner *j;
    struct seed_voter voters[MEMBERS]; /* answers of the others */
    struct asked steps[16];            /* in turn: the member holds one of them */
    unsigned n_steps;
};

static void doubtful_init(struct doubtful *d)
{
    memset(d, 0, sizeof(*d));
    d->j = joiner_new(&d->was);
    start_uncertain(d->j);
    for (unsigned i = 1; i < MEMBERS; i++)
        d->voters[i] = (struct seed_voter){ .is_whole = true,
                                            .term = d->was.term + 1,
                                            .last = d->was.last + i,
                                            .last_term = d->was.term,
                                            .list = d->was.members };
}

static enum member_state doubtful_state(const struct doubtful *d)
{
    return d->j->n->member->state;
}

/* The others answer for a while, at once. */
static void answer_for(struct doubtful *d, unsigned for_ms)
{
    for (unsigned ms = 0; ms < for_ms; ms++) {
        member_world_run_ms(&d->j->w.m, 1);
        while (d->j->rq != NULL && d->j->rq->op == ROZO__OP__RF_JOIN)
            answer_voter(d->j, &d->voters[d->j->asked - SELF]);
        for (unsigned i = 1; i < MEMBERS; i++) {
            struct rpc_request *tells = d->j->scripts[i].tells;

            if (tells == NULL)
                continue;
            d->j->scripts[i].tells = NULL;
            tells->status = ROZO__STATUS__OK;
            tells->answer_msg_len = 0; /* the others remember nothing */
            tells->done(tells, 0);
        }
    }
}

/* Sends the member a message, which may have an entry. Returns whether it is refused at
 * once. */
static bool step_is_refused(struct doubtful *d, struct raft_msg msg,
                            const struct raft_log_entry *e)
{
    static const struct raft_msg_group group = { .number = 0 };
    static uint8_t payload[8];
    uint8_t head[RAFT_MSG_HEAD_MAX];
    struct asked *a = &d->steps[d->n_steps++ % 16];

    msg.to = SELF;
    msg.n = e != NULL;
    *a = (struct asked){ .call = { .ops = &asked_ops,
                                   .op = ROZO__OP__RF_STEP,
                                   .role = RPC_ROLE_NODE,
                                   .msg = head,
                                   .msg_len = raft_msg_encode(&group, &msg, e, head),
                                   .payload = payload,
                                   .payload_len = e != NULL ? e->len : 0 } };
    member_handle(d->j->n->member, &a->call);
    return a->is_answered && a->status == ROZO__STATUS__BUSY;
}

static void the_vote_goes_to_logs_that_have_all_that_others_had(void **state)
{
    struct raft_msg vote = { .kind = RAFT_MSG_VOTE, .from = SELF + 1 };
    struct raft_log_entry own, next = { .kind = RAFT_ENTRY_EMPTY, .len = 8, .data = "" };
    struct raft_msg append;
    struct member_status s;
    struct doubtful d;

    (void)state;
    doubtful_init(&d);
    d.voters[1].term = d.was.term; /* may still follow a leader of it */
    answer_for(&d, 2 * ALONE_MS);
    assert_int_equal(doubtful_state(&d), MEMBER_DOUBTS);
    assert_int_equal(d.j->ask.barrier_term, d.was.term + 1);
    d.voters[1].term = d.was.term + 1;
    answer_for(&d, 1000);
    assert_int_equal(doubtful_state(&d), MEMBER_RUNS);
    assert_true(is_uncertain(d.j));

    answer_for(&d, RAFT_ELECTION_MS); /* no vote before: promises */
    vote.term = d.was.term + 5;
    vote.index_term = d.was.term;
    vote.index = d.was.last + 1; /* the other one had more */
    assert_true(step_is_refused(&d, vote, NULL));
    vote.kind = RAFT_MSG_TIMEOUT_NOW;
    vote.term = d.was.term + 1;
    assert_true(step_is_refused(&d, vote, NULL));
    answer_for(&d, 4 * RAFT_ELECTION_MS);
    member_status(d.j->n->member, &s);
    assert_int_equal(s.term, d.was.term + 1); /* no campaign */
    vote.kind = RAFT_MSG_VOTE;
    vote.term = d.was.term + 5;
    vote.index = d.was.last + 2;
    assert_false(step_is_refused(&d, vote, NULL));
    answer_for(&d, 10);
    assert_int_equal(d.j->n->member->ballot.term, d.was.term + 5);
    assert_int_equal(d.j->n->member->ballot.vote, SELF + 1);

    own = member_newest(d.j->n->member);
    append = (struct raft_msg){ .kind = RAFT_MSG_APPEND,
                                .flags = RAFT_MSG_LAZY,
                                .from = SELF + 1,
                                .term = vote.term,
                                .sent_ns = 1,
                                .index = own.index,
                                .index_term = own.term };
    assert_false(step_is_refused(&d, append, NULL));
    answer_for(&d, 10);
    assert_true(is_uncertain(d.j));
    next.index = own.index + 1;
    next.term = vote.term;
    assert_false(step_is_refused(&d, append, &next));
    answer_for(&d, 10);
    assert_false(is_uncertain(d.j));
    member_node_kill(d.j->n, false);
    member_node_start(d.j->n); /* all is there again, as the boot record says */
    assert_int_equal(doubtful_state(&d), MEMBER_RUNS);
    joiner_free(d.j);
}

/* Goal: a member with a floor is uncertain for others, and after a restart. */
static void a_member_with_a_floor_says_that_it_lacks_something(void **state)
{
    static const struct raft_msg_group group = { .number = 0 };
    const struct seed_ask question = { .from = SELF + 1, .to = SELF, .index = 1 };
    uint8_t msg[SEED_ASK_BYTES_MAX];
    struct seed_voter voter;
    struct doubtful d;
    struct asked a;

    (void)state;
    doubtful_init(&d);
    answer_for(&d, 2 * ALONE_MS);
    assert_int_equal(doubtful_state(&d), MEMBER_RUNS);
    ask(d.j, &a, ROZO__OP__RF_JOIN, msg, seed_ask_encode(&group, &question, msg));
    assert_int_equal(seed_voter_decode(a.msg, a.len, &voter), 0);
    assert_true(voter.in_doubt);
    assert_false(voter.is_whole);
    member_node_kill(d.j->n, false);
    member_node_start(d.j->n);
    assert_int_equal(doubtful_state(&d), MEMBER_DOUBTS);

    /* no leader comes, since those who had the floor have lost it */
    for (unsigned i = 1; i < MEMBERS; i++)
        d.voters[i].term = d.was.term + 2;
    answer_for(&d, 2 * ALONE_MS);
    assert_int_equal(doubtful_state(&d), MEMBER_RUNS);
    d.voters[1].in_doubt = true;
    d.voters[1].is_whole = false;
    answer_for(&d, 20000);
    assert_int_equal(doubtful_state(&d), MEMBER_RUNS);
    assert_false(is_uncertain(d.j));
    assert_int_not_equal(d.j->n->member->loss.term, 0); /* which a leader must count */
    joiner_free(d.j);
}

/* Goal: a lower term never takes the place of one that was saved. Method: the member
 * begins to save a term, on a slow disk, right before it asks again. */
static void a_term_that_is_being_saved_stays(void **state)
{
    struct raft_msg vote = { .kind = RAFT_MSG_VOTE, .from = SELF + 1 };
    struct doubtful d;

    (void)state;
    doubtful_init(&d);
    answer_for(&d, 2 * ALONE_MS);
    assert_int_equal(doubtful_state(&d), MEMBER_RUNS);
    d.j->n->disk.hold_syncs = true;
    vote.term = d.was.term + 50;
    vote.index_term = d.was.term;
    vote.index = d.was.last + 2;
    assert_false(step_is_refused(&d, vote, NULL));
    answer_for(&d, 15000);
    assert_int_equal(doubtful_state(&d), MEMBER_RUNS);
    for (unsigned i = 1; i < MEMBERS; i++)
        d.voters[i].term = d.was.term + 60;
    for (unsigned i = 0; i < 40; i++) {
        memdisk_release(&d.j->n->disk);
        answer_for(&d, 200);
    }
    d.j->n->disk.hold_syncs = false;
    memdisk_release(&d.j->n->disk);
    answer_for(&d, 100);
    assert_int_equal(d.j->n->member->ballot.term, d.was.term + 51);
    joiner_free(d.j);
}

/* A leader of a later term sends what is missing; the log that is left stays. */
static void a_leader_of_a_later_term_is_a_floor(void **state)
{
    struct doubtful d;

    (void)state;
    doubtful_init(&d);
    d.voters[1].leads = true;
    answer_for(&d, 2 * RAFT_ELECTION_MS);
    assert_int_equal(doubtful_state(&d), MEMBER_RUNS);
    assert_true(is_uncertain(d.j));
    assert_int_equal(d.j->n->member->loss.floor_index, d.was.last + 1);
    joiner_free(d.j);
}

/* One that began with what was left of its log may lack what it acknowledged with this
 * member, so its log is no floor; nor can both wait for each other. */
static void one_with_a_loss_is_no_help(void **state)
{
    struct doubtful d;

    (void)state;
    doubtful_init(&d);
    d.voters[1].has_loss = true;
    d.voters[1].is_whole = false;
    answer_for(&d, ALONE_MS - 100); /* others might elect a leader, who counts the loss */
    assert_int_equal(doubtful_state(&d), MEMBER_DOUBTS);
    answer_for(&d, 1000);
    assert_int_equal(doubtful_state(&d), MEMBER_RUNS);
    assert_int_equal(d.j->n->member->loss.floor_term, 0);
    assert_int_not_equal(d.j->n->member->loss.term, 0);
    joiner_free(d.j);
}

/* One that copies, since it was behind, has no log to name. */
static void one_that_copies_names_nothing(void **state)
{
    struct doubtful d;

    (void)state;
    doubtful_init(&d);
    d.voters[1].is_whole = false;
    answer_for(&d, 2 * ALONE_MS);
    assert_int_equal(doubtful_state(&d), MEMBER_DOUBTS);
    joiner_free(d.j);
}

/* All others of its list may have been removed while it was away. */
static void members_that_others_know_are_asked(void **state)
{
    struct doubtful d;

    (void)state;
    doubtful_init(&d);
    for (unsigned i = 1; i < MEMBERS; i++) {
        d.voters[i].is_removed = true;
        d.voters[i].list.n = 0;
        assert_int_equal(raft_config_set(&d.voters[i].list, SELF, RAFT_ROLE_VOTER, "m0"),
                         0);
        assert_int_equal(
            raft_config_set(&d.voters[i].list, SELF + 5, RAFT_ROLE_VOTER, "m2"), 0);
        wait_for_question(d.j, ROZO__OP__RF_JOIN);
        assert_int_equal(d.j->asked, SELF + i);
        answer_voter(d.j, &d.voters[i]);
    }
    wait_for_question(d.j, ROZO__OP__RF_JOIN);
    assert_int_equal(d.j->asked, SELF + 5);
    d.voters[1].is_removed = false;
    d.voters[1].leads = true;
    for (unsigned i = 0; i < 20 && doubtful_state(&d) == MEMBER_DOUBTS; i++) {
        wait_for_question(d.j, ROZO__OP__RF_JOIN);
        answer_voter(d.j, &d.voters[d.j->asked == SELF + 5 ? 1 : 2]);
        member_world_run_ms(&d.j->w.m, 100);
    }
    assert_int_equal(doubtful_state(&d), MEMBER_RUNS);
    assert_int_equal(d.j->n->member->loss.floor_index, d.was.last + 1);
    joiner_free(d.j);
}

/* A member that starts, and may have lost nothing, does not say that it has. */
static void a_member_that_starts_says_nothing_before_it_takes_part(void **state)
{
    static const struct raft_msg_group group = { .number = 0 };
    const struct seed_ask question = { .from = SELF + 1, .to = SELF, .index = 1 };
    uint8_t msg[SEED_ASK_BYTES_MAX];
    struct member_status s;
    struct joiner *j = joiner_new(&s);
    unsigned n_busy = 0;
    struct seed_voter voter;
    struct asked a;

    (void)state;
    j->w.m.is_lazy = true;
    j->n->disk.hold_syncs = true; /* the record of this boot, too */
    member_node_begin(j->n);
    for (unsigned i = 0; i < 20 && !j->n->is_started; i++) {
        member_world_run_ms(&j->w.m, 1);
        if (j->n->is_started)
            break;
        ask(j, &a, ROZO__OP__RF_JOIN, msg, seed_ask_encode(&group, &question, msg));
        assert_int_equal(a.status, ROZO__STATUS__BUSY);
        n_busy++;
        memdisk_release(&j->n->disk);
    }
    assert_true(j->n->is_started && n_busy >= 2);
    j->n->disk.hold_syncs = false;
    memdisk_release(&j->n->disk);
    ask(j, &a, ROZO__OP__RF_JOIN, msg, seed_ask_encode(&group, &question, msg));
    assert_int_equal(a.status, ROZO__STATUS__OK);
    assert_int_equal(seed_voter_decode(a.msg, a.len, &voter), 0);
    assert_false(voter.in_doubt);
    assert_true(voter.is_whole);
    joiner_free(j);
}

/* ---- the quorum went on without it ---- */

static void hear_deposed(struct joiner *j, struct rpc_request **rq)
{
    struct rpc_request *asked;

    for (unsigned ms = 0; ms < 2000 && *rq == NULL; ms++)
        member_world_run_ms(&j->w.m, 1);
    asked = *rq;
    assert_non_null(asked);
    *rq = NULL;
    asked->status = ROZO__STATUS__DEPOSED;
    asked->done(asked, 0);
    member_world_run_ms(&j->w.m, 100);
    assert_true(j->n->has_failed);
    assert_null(*rq);
    joiner_free(j);
}

/* Whatever a member waits for, and whichever question is answered first. */
static void one_that_was_left_behind_ends(void **state)
{
    struct member_status s;
    struct joiner *j = joiner_without_store(&s);

    (void)state;
    hear_deposed(j, &j->rq); /* RF_SEED */
    for (unsigned i = 0; i < 2; i++) {
        j = joiner_new(&s);
        spoil_vote(j);
        member_node_start(j->n);
        wait_for_question(j, ROZO__OP__RF_FETCH);
        hear_deposed(j, i == 0 ? &j->rq : &j->tell);
        j = joiner_new(&s);
        start_uncertain(j);
        hear_deposed(j, i == 0 ? &j->rq : &j->tell);
    }
}

static void questions_of_one_that_was_left_behind_are_refused(void **state)
{
    static const uint16_t ops[] = { ROZO__OP__RF_SEED, ROZO__OP__RF_FETCH,
                                    ROZO__OP__RF_JOIN, ROZO__OP__RF_TELL };
    static const uint8_t cluster[RAFT_MSG_CLUSTER_ID_BYTES];
    struct raft_msg_group older = { .number = 0 }, other;
    struct seed_ask question = { .from = SELF + 1, .to = SELF, .index = 1 };
    Rozo__RfTellReq tell = ROZO__RF_TELL_REQ__INIT;
    uint8_t msg[SEED_ASK_BYTES_MAX];
    struct member_status s;
    struct joiner *j = joiner_new(&s);
    struct asked a;

    (void)state;
    assert_int_equal(raft_group_next(0, 5, &j->w.m.group.number), 0);
    other = j->w.m.group;
    other.number++;
    member_node_start(j->n);
    tell.cluster_id = (ProtobufCBinaryData){ sizeof(cluster), (uint8_t *)cluster };
    tell.from = SELF + 1;
    tell.to = SELF + 2; /* whichever member it means */
    question.to = SELF + 2;
    for (unsigned i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
        for (unsigned k = 0; k < 2; k++) {
            const struct raft_msg_group *g = k == 0 ? &older : &other;
            size_t len;

            tell.group = g->number;
            len = ops[i] == ROZO__OP__RF_TELL ? rozo__rf_tell_req__pack(&tell, msg)
                                              : seed_ask_encode(g, &question, msg);
            ask(j, &a, ops[i], msg, len);
            assert_int_equal(a.status, k == 0 ? ROZO__STATUS__DEPOSED
                                              : ROZO__STATUS__WRONG_STORAGE);
        }
    }
    joiner_free(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lost_vote_waits_until_the_barrier_is_held),
        cmocka_unit_test(a_lost_log_needs_a_leader_of_its_own_term_or_later),
        cmocka_unit_test(only_what_follows_is_taken),
        cmocka_unit_test(a_chunk_has_no_key_of_a_member),
        cmocka_unit_test(a_witness_takes_no_key),
        cmocka_unit_test(keys_come_from_a_follower),
        cmocka_unit_test(keys_come_from_the_leader_if_no_follower_gives_them),
        cmocka_unit_test(a_follower_that_is_behind_is_not_preferred),
        cmocka_unit_test(the_newest_entries_come_from_the_leader),
        cmocka_unit_test(a_member_whose_disk_fails_in_a_copy_has_a_state),
        cmocka_unit_test(an_uncertain_member_takes_a_newer_list),
        cmocka_unit_test(answers_of_a_long_round_do_not_count),
        cmocka_unit_test(the_vote_goes_to_logs_that_have_all_that_others_had),
        cmocka_unit_test(a_member_with_a_floor_says_that_it_lacks_something),
        cmocka_unit_test(a_term_that_is_being_saved_stays),
        cmocka_unit_test(a_leader_of_a_later_term_is_a_floor),
        cmocka_unit_test(one_with_a_loss_is_no_help),
        cmocka_unit_test(one_that_copies_names_nothing),
        cmocka_unit_test(members_that_others_know_are_asked),
        cmocka_unit_test(a_member_that_starts_says_nothing_before_it_takes_part),
        cmocka_unit_test(one_that_was_left_behind_ends),
        cmocka_unit_test(questions_of_one_that_was_left_behind_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
