/*
 * test_core.c - a raft core: its start, what it holds back, how long elections take.
 */
#include <stdio.h>

#include "common/base/units.h"
#include "exportd/quorum/raft/raft_synced.h"
#include "tests/unit/quorum/quorum_world.h"
#include "tests/unit/unit.h"

enum { TRIALS = 100 };

static void test_the_library_is_the_right_one(void **state)
{
    struct err err = { .text = "" };

    (void)state;
    assert_int_equal(raft_core_check_library(&err), 0);
    assert_string_equal(err.text, "");
}

/* A member that may start: a store up to 5, a log of 4 to 7. */
struct start {
    struct raft_core_saved saved;
    struct raft_log_entry log[4];
    uint8_t list[RAFT_CONFIG_BYTES_MAX];
};

static void start_init(struct start *s)
{
    memset(s, 0, sizeof(*s));
    s->saved = (struct raft_core_saved){ .term = 3,
                                         .vote = 2,
                                         .applied = 5,
                                         .applied_term = 2,
                                         .config_index = 1,
                                         .entries = s->log,
                                         .n_entries = 4 };
    for (uint64_t id = 1; id <= 3; id++)
        assert_int_equal(raft_config_set(&s->saved.config, id, RAFT_ROLE_VOTER, ""), 0);
    for (unsigned i = 0; i < 4; i++)
        s->log[i] = (struct raft_log_entry){
            .index = 4 + i, .term = i < 2 ? 2 : 3, .kind = RAFT_ENTRY_BATCH, .len = 1
        };
    s->log[3].kind = RAFT_ENTRY_CONFIG;
    s->log[3].data = s->list;
    s->log[3].len = (uint32_t)raft_config_encode(&s->saved.config, s->list);
}

/* Starts a core. Returns its result; the core is freed unless out is not NULL. */
static int start_as(const struct start *s, bool is_lazy, struct raft_core **out)
{
    const struct raft_core_options options = { .id = 1, .is_lazy = is_lazy };
    struct err err = { .text = "" };
    struct raft_core *core;
    int rc;

    assert_int_equal(raft_core_open(&options, &core), 0);
    rc = raft_core_start(core, 0, &s->saved, &err);
    assert_true((rc == 0) == (err.text[0] == '\0'));
    if (out != NULL)
        *out = core;
    else
        raft_core_free(core);
    return rc;
}

static int start(const struct start *s, struct raft_core **out)
{
    return start_as(s, false, out);
}

static void test_a_start_needs_state_that_goes_together(void **state)
{
    struct raft_core_out out;
    struct raft_core *core;
    struct start s;
    bool is_committed = true;

    (void)state;
    start_init(&s);
    assert_int_equal(start(&s, &core), 0);
    raft_core_take(core, &out);
    assert_int_equal(out.commit, 5);
    assert_int_equal(out.term, 3);
    assert_int_equal(out.role, RAFT_CORE_FOLLOWER);
    assert_int_equal(raft_core_last_index(core), 7);
    assert_int_equal(raft_core_term_of(core, 3), 0);
    assert_int_equal(raft_core_term_of(core, 5), 2);
    assert_int_equal(raft_core_term_of(core, 7), 3);
    assert_int_equal(raft_core_config_index(core, &is_committed), 7);
    assert_false(is_committed);
    assert_int_equal(raft_core_submit(core, 0, s.log, 1), -ROZO_ENOT_LEADER);
    assert_int_equal(raft_core_transfer(core, 0, 2), -ROZO_ENOT_LEADER);
    assert_int_equal(raft_core_change(core, 0, &s.saved.config), -ROZO_ENOT_LEADER);
    raft_core_free(core);

    for (unsigned i = 0; i < 16; i++) {
        start_init(&s);
        switch (i) {
        case 0: /* the term was lost */
            s.saved.term = s.saved.vote = 0;
            break;
        case 1: /* an older vote came back */
            s.saved.term = 2;
            break;
        case 2: /* a gap in the log */
            s.log[2].index++;
            break;
        case 3: /* terms that fall */
            s.log[2].term = 1;
            break;
        case 4: /* a gap between store and log */
            s.saved.applied = 2;
            break;
        case 5: /* the log is shorter than the store */
            s.saved.applied = 8;
            break;
        case 6: /* other entry */
            s.saved.applied_term = 1;
            break;
        case 7: /* a term that falls at the end */
            s.log[3].term = 1;
            break;
        case 8:
            s.list[0]++;
            break;
        case 9:
            s.saved.config.n = 0;
            break;
        case 10:
            s.saved.config_index = 6;
            break;
        case 11: /* a list that the store does not know */
            s.log[0] = s.log[3];
            s.log[0].index = 4;
            s.log[0].term = 2;
            break;
        case 12:
            s.log[1].kind = 4;
            break;
        case 13: /* no list of members at all */
            s.saved.applied = s.saved.applied_term = s.saved.config_index = 0;
            s.saved.config.n = 0;
            break;
        case 14:
            s.saved.applied_term = 0;
            break;
        case 15: /* no voter */
            for (unsigned k = 0; k < 3; k++)
                s.saved.config.members[k].role = RAFT_ROLE_STANDBY;
            break;
        }
        if (start(&s, NULL) != -ROZO_EDAMAGED)
            fail_msg("case %u", i);
    }
    memset(&s, 0, sizeof(s)); /* a new member: it waits to be added */
    assert_int_equal(start(&s, &core), 0);
    raft_core_take(core, &out);
    for (unsigned i = 0; i < 5; i++) {
        assert_int_equal(raft_core_tick(core, out.next_ns), 0);
        raft_core_take(core, &out);
        assert_int_equal(out.role, RAFT_CORE_FOLLOWER);
    }
    raft_core_free(core);
}

/* Nothing leaves, and nothing is applied, before term and vote are on disk. */
static void test_a_vote_is_persisted_before_it_is_sent(void **state)
{
    struct raft_msg vote = {
        .kind = RAFT_MSG_VOTE, .from = 2, .to = 1, .term = 4, .index = 9, .index_term = 3
    };
    struct raft_core_out out;
    struct raft_core *core;
    struct start s;
    uint64_t now = s_to_ns(1);

    (void)state;
    start_init(&s);
    assert_int_equal(start(&s, &core), 0);
    raft_core_take(core, &out);
    assert_int_equal(raft_core_receive(core, now, &vote, NULL), 0);
    raft_core_take(core, &out);
    assert_int_equal(out.new_term, 4);
    assert_int_equal(out.new_vote, 2);
    assert_int_equal(out.n_messages, 0);
    vote.term = 5;
    vote.from = 3;
    assert_int_equal(raft_core_receive(core, now, &vote, NULL), 0);
    raft_core_take(core, &out);
    assert_int_equal(out.new_term, 5);
    assert_int_equal(raft_core_vote_persisted(core, now, 4, 2), 0); /* not the newest */
    raft_core_take(core, &out);
    assert_int_equal(out.new_term, 0);
    assert_int_equal(out.n_messages, 0);
    assert_int_equal(raft_core_vote_persisted(core, now, 5, 3), 0);
    raft_core_take(core, &out);
    assert_int_equal(out.n_messages, 2);
    assert_int_equal(out.messages[1].to, 3);
    assert_int_equal(raft_core_tick(core, now), 0); /* once */
    raft_core_take(core, &out);
    assert_int_equal(out.n_messages, 0);
    raft_core_free(core);
}

static int compare(const void *a, const void *b)
{
    return *(const unsigned *)a < *(const unsigned *)b ? -1 : 1;
}

/* End of a leader. */
enum end { KILLED, REFUSES, CUT_OFF, HANDS_OVER };

/* Returns the time until another member leads and is ready, in ms. */
static unsigned failover_ms(uint64_t seed, enum end end)
{
    struct world *w = world_new(seed, 3, 3);
    uint64_t start_ns, now_ns;
    int leader, next;

    w->promise_ms = end == REFUSES ? RAFT_PROMISE_MS : 0;
    leader = world_elect(w);
    world_run_ms(w, 500 + world_below(w, 1000));
    assert_int_equal(world_leader(w), leader);
    start_ns = w->now_ns;
    for (unsigned i = 0; i < 3; i++) {
        if (end == CUT_OFF)
            w->cut[leader][i] = w->cut[i][leader] = i != (unsigned)leader;
    }
    if (end == KILLED || end == REFUSES)
        world_stop(w, (unsigned)leader, true);
    for (unsigned i = 0; i < 3 && end == REFUSES; i++) {
        if (i != (unsigned)leader)
            world_take(w, i,
                       raft_core_refused(w->nodes[i].core, world_clock(w, i),
                                         w->nodes[leader].id));
    }
    if (end == HANDS_OVER)
        world_take(w, (unsigned)leader,
                   raft_core_transfer(w->nodes[leader].core,
                                      world_clock(w, (unsigned)leader), 0));
    do {
        world_run_ms(w, 1);
        next = world_leader(w);
        assert_true(w->now_ns < start_ns + s_to_ns(20));
    } while (next < 0 || next == leader);
    now_ns = w->now_ns;
    world_free(w);
    return (unsigned)ns_to_ms(now_ns - start_ns);
}

static void test_another_member_leads_soon(void **state)
{
    static const struct {
        const char *name;
        unsigned p50_ms, max_ms;
    } ends[] = { { "killed", 1400, 3000 },
                 { "killed, links refused", 500, 1500 },
                 { "cut off", 1400, 3000 },
                 { "hands over", 50, 100 } };

    (void)state;
    for (unsigned end = 0; end < 4; end++) {
        unsigned ms[TRIALS];

        for (unsigned i = 0; i < TRIALS; i++)
            ms[i] = failover_ms(i + 1, (enum end)end);
        qsort(ms, TRIALS, sizeof(ms[0]), compare);
        print_message("%s: p50 %u ms, max %u ms\n", ends[end].name, ms[TRIALS / 2],
                      ms[TRIALS - 1]);
        assert_true(ms[TRIALS / 2] <= ends[end].p50_ms);
        assert_true(ms[TRIALS - 1] <= ends[end].max_ms);
    }
}

static void refused(struct world *w, unsigned i, int peer)
{
    world_take(w, i,
               raft_core_refused(w->nodes[i].core, world_clock(w, i), w->nodes[peer].id));
}

/* Links to the leader are refused for seconds though it lives: one member has this
 * evidence, all of them, one that does not hear the leader either, or all, of which one
 * does not hear it. */
static void test_false_evidence_of_death_deposes_no_leader(void **state)
{
    enum { ONE, ALL, ONE_CUT_OFF, ALL_ONE_CUT_OFF, N_CASES };

    (void)state;
    for (unsigned i = 0; i < N_CASES * 5; i++) {
        struct world *w = world_new(i + 1, 3, 3);
        unsigned a, b;
        uint64_t term;
        int leader;

        w->promise_ms = RAFT_PROMISE_MS;
        leader = world_elect(w);
        world_run_ms(w, 500);
        a = ((unsigned)leader + 1) % 3;
        b = ((unsigned)leader + 2) % 3;
        term = w->nodes[leader].out.term;
        if (i % N_CASES >= ONE_CUT_OFF)
            w->cut[a][leader] = w->cut[leader][a] = true;
        for (unsigned ms = 0; ms < 3000; ms++) {
            refused(w, a, leader);
            if (i % N_CASES == ALL || i % N_CASES == ALL_ONE_CUT_OFF)
                refused(w, b, leader);
            world_run_ms(w, 1);
            assert_int_equal(world_leader(w), leader);
            assert_true(w->nodes[leader].lease_until_ns >
                        world_clock(w, (unsigned)leader));
        }
        assert_int_equal(w->nodes[leader].out.term, term);
        assert_int_equal(w->nodes[b].out.term, term);
        world_free(w);
    }
}

/* A firewall cuts the leader off and refuses links to it: its lease ends before another
 * member leads. world_run_ms() checks that. */
static void test_a_lease_ends_before_members_with_evidence_elect(void **state)
{
    (void)state;
    for (unsigned seed = 1; seed <= 50; seed++) {
        struct world *w = world_new(seed, 3, 3);
        uint64_t end_ns;
        int leader, next;

        w->promise_ms = RAFT_PROMISE_MS;
        for (unsigned k = 0; k < 3; k++)
            w->nodes[k].rate = 1000;
        leader = world_elect(w);
        world_run_ms(w, 500 + world_below(w, 100));
        for (unsigned k = 0; k < 3; k++)
            w->cut[leader][k] = w->cut[k][leader] = k != (unsigned)leader;
        for (unsigned k = 0; k < 3; k++) {
            if (k != (unsigned)leader)
                refused(w, k, leader);
        }
        end_ns = w->now_ns + ms_to_ns(10000);
        do {
            world_run_ms(w, 1);
            next = world_leader(w);
            assert_true(w->now_ns < end_ns);
        } while (next < 0 || next == leader);
        assert_true(w->nodes[leader].lease_until_ns <= world_clock(w, (unsigned)leader));
        assert_int_not_equal(world_submit(w, (unsigned)next), 0);
        world_run_ms(w, 100);
        world_free(w);
    }
}

/* A candidate was cut off after it had won the pre-vote: its term is higher than that of
 * the leader, which went on. It is back when leadership is handed over. */
static void test_a_candidate_of_a_higher_term_disturbs_no_hand_over(void **state)
{
    (void)state;
    for (unsigned seed = 1; seed <= 50; seed++) {
        struct world *w = world_new(seed, 3, 3);
        unsigned to, c;
        uint64_t term, end_ns;
        int leader;

        leader = world_elect(w);
        world_run_ms(w, 500);
        to = ((unsigned)leader + 1) % 3;
        c = ((unsigned)leader + 2) % 3;
        world_stop(w, c, false);
        w->nodes[c].term++;
        w->nodes[c].vote = w->nodes[c].id;
        for (unsigned k = 0; k < 3; k++)
            w->cut[c][k] = w->cut[k][c] = k != c;
        world_start(w, c);
        world_run_ms(w, 200 + world_below(w, 200));
        memset(w->cut, 0, sizeof(w->cut));
        world_run_ms(w, world_below(w, 2) * world_below(w, 60));
        if (world_leader(w) == leader) { /* no heartbeat has met the candidate yet */
            world_take(w, (unsigned)leader,
                       raft_core_transfer(w->nodes[leader].core,
                                          world_clock(w, (unsigned)leader),
                                          w->nodes[to].id));
            end_ns = w->now_ns + ms_to_ns(100);
            while (world_leader(w) != (int)to) {
                world_run_ms(w, 1);
                assert_true(w->now_ns < end_ns);
            }
            term = w->nodes[to].out.term;
            world_run_ms(w, 3000);
            assert_int_equal(world_leader(w), to);
            assert_int_equal(w->nodes[c].out.term, term);
        }
        world_free(w);
    }
}

/* A voter with this evidence does not wait for its own timer: it votes at P. */
static void test_a_voter_with_evidence_votes_at_the_end_of_its_promise(void **state)
{
    (void)state;
    for (unsigned seed = 1; seed <= 20; seed++) {
        struct world *w = world_new(seed, 3, 3);
        struct raft_core_out *out;
        struct raft_msg vote = { .kind = RAFT_MSG_VOTE, .flags = RAFT_MSG_PRE_VOTE };
        unsigned voter, other;
        uint64_t heard_ns, now;
        int leader;

        w->promise_ms = RAFT_PROMISE_MS;
        leader = world_elect(w);
        world_run_ms(w, 1000);
        voter = ((unsigned)leader + 1) % 3;
        other = ((unsigned)leader + 2) % 3;
        world_stop(w, (unsigned)leader, true);
        world_run_ms(w, 5); /* messages arrive */
        heard_ns = world_clock(w, voter);
        refused(w, voter, leader);
        out = &w->nodes[voter].out;
        vote.from = w->nodes[other].id;
        vote.to = w->nodes[voter].id;
        vote.term = out->term + 1;
        vote.index = w->nodes[other].log.last;
        vote.index_term = w->nodes[other].log.entries[vote.index]->term;
        /* RAFT_HEARTBEAT_MS and more before, it has heard the leader. */
        now = heard_ns + ms_to_ns(RAFT_PROMISE_MS - RAFT_HEARTBEAT_MS - 10);
        assert_int_equal(raft_core_receive(w->nodes[voter].core, now, &vote, NULL), 0);
        raft_core_take(w->nodes[voter].core, out);
        assert_int_equal(out->n_messages, 1);
        assert_int_equal(out->messages[0].flags & RAFT_MSG_GRANTED, 0);
        now = heard_ns + ms_to_ns(RAFT_PROMISE_MS);
        assert_int_equal(raft_core_receive(w->nodes[voter].core, now, &vote, NULL), 0);
        raft_core_take(w->nodes[voter].core, out);
        assert_int_equal(out->n_messages, 1);
        assert_int_not_equal(out->messages[0].flags & RAFT_MSG_GRANTED, 0);
        world_free(w);
    }
}

/* Two followers have the same log, and one of them is dead: leadership goes to the other
 * one. */
static void test_leadership_is_handed_to_a_member_that_is_heard(void **state)
{
    (void)state;
    for (unsigned dead_at = 1; dead_at <= 2; dead_at++) {
        struct world *w = world_new(7, 3, 3);
        int leader, next;
        unsigned dead;

        leader = world_elect(w);
        world_run_ms(w, 500);
        dead = ((unsigned)leader + dead_at) % 3;
        world_stop(w, dead, true);
        world_run_ms(w, 2000);
        assert_int_equal(world_leader(w), leader);
        world_take(w, (unsigned)leader,
                   raft_core_transfer(w->nodes[leader].core,
                                      world_clock(w, (unsigned)leader), 0));
        world_run_ms(w, 200);
        next = world_leader(w);
        assert_true(next >= 0 && next != leader && next != (int)dead);
        world_free(w);
    }
}

/* Two survivors: the one with the longer log is in an earlier term (R13). */
static void test_a_survivor_behind_in_terms_is_elected(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < 20; seed++) {
        struct world *w = world_new(seed, 3, 3);
        int leader;
        unsigned a, b, c;

        leader = world_elect(w);
        a = (unsigned)leader;
        b = (a + 1) % 3;
        c = (a + 2) % 3;
        for (unsigned i = 0; i < 3; i++)
            w->cut[a][i] = w->cut[i][a] = i != a;
        assert_int_not_equal(world_submit(w, a), 0); /* only a has it */
        world_run_ms(w, 5000);
        for (unsigned i = 0; i < 4; i++) { /* b and c go on, in later terms */
            int l = world_leader(w);

            assert_true(l == (int)b || l == (int)c);
            world_stop(w, (unsigned)l, false);
            world_start(w, (unsigned)l);
            world_run_ms(w, 4000);
        }
        world_stop(w, c, false);
        world_mend(w);
        assert_true(world_commit_one(w, 15000));
        world_free(w);
    }
}

/* The member that asks for a barrier does not count. */
static void test_a_barrier_is_held_by_others(void **state)
{
    struct world *w = world_new(7, 3, 3);
    unsigned a, b, c;
    uint64_t index = 0;
    int leader;

    (void)state;
    leader = world_elect(w);
    a = (unsigned)leader;
    b = (a + 1) % 3;
    c = (a + 2) % 3;
    assert_int_equal(raft_core_barrier(w->nodes[b].core, world_clock(w, b), &index),
                     -ROZO_ENOT_LEADER);
    w->cut[a][c] = w->cut[c][a] = true;
    assert_int_equal(raft_core_barrier(w->nodes[a].core, world_clock(w, a), &index), 0);
    world_take(w, a, 0);
    assert_int_equal(index, raft_core_last_index(w->nodes[a].core));
    assert_false(raft_core_is_held(w->nodes[a].core, index, 0));
    world_run_ms(w, 200);
    assert_true(raft_core_is_held(w->nodes[a].core, index, w->nodes[c].id));
    assert_false(raft_core_is_held(w->nodes[a].core, index, w->nodes[b].id));
    world_mend(w);
    world_run_ms(w, 2000);
    assert_true(raft_core_is_held(w->nodes[a].core, index, w->nodes[b].id));
    world_free(w);
}

static void event(struct raft_core *core, int rc, struct raft_core_out *out)
{
    assert_int_equal(rc, 0);
    raft_core_take(core, out);
}

static void voted(struct raft_core *core, uint64_t now_ns, unsigned flags,
                  struct raft_core_out *out)
{
    const struct raft_msg msg = { .kind = RAFT_MSG_VOTED,
                                  .flags = RAFT_MSG_GRANTED | flags,
                                  .from = 2,
                                  .to = 1,
                                  .term = 4 };

    event(core, raft_core_receive(core, now_ns, &msg, NULL), out);
}

static void appended(struct raft_core *core, uint64_t now_ns, uint64_t last,
                     struct raft_core_out *out)
{
    const struct raft_msg msg = {
        .kind = RAFT_MSG_APPENDED, .from = 2, .to = 1, .term = 4, .last = last
    };

    event(core, raft_core_receive(core, now_ns, &msg, NULL), out);
}

/* Makes a core lead in term 4: its first entry is the one at 8. */
static struct raft_core *lead(bool is_lazy, uint64_t now_ns, struct raft_core_out *out)
{
    struct raft_core *core;
    struct start s;

    start_init(&s);
    assert_int_equal(start_as(&s, is_lazy, &core), 0);
    raft_core_take(core, out);
    event(core, raft_core_tick(core, now_ns), out);
    voted(core, now_ns, RAFT_MSG_PRE_VOTE, out);
    assert_int_equal(out->new_term, 4);
    event(core, raft_core_vote_persisted(core, now_ns, 4, out->new_vote), out);
    voted(core, now_ns, 0, out);
    assert_int_equal(out->role, RAFT_CORE_LEADER);
    assert_int_equal(out->entries[0].index, 8);
    return core;
}

/* Figure 8 of the paper on Raft: another member may still win without these entries. */
static void test_entries_of_earlier_terms_wait_for_one_of_the_own(void **state)
{
    uint64_t now_ns = ms_to_ns(2 * RAFT_ELECTION_MS);
    struct raft_core_out out;
    struct raft_core *core = lead(false, now_ns, &out);

    (void)state;
    appended(core, now_ns, 7, &out); /* a majority has all entries of earlier terms */
    assert_int_equal(out.commit, 5);
    event(core, raft_core_persisted(core, now_ns, 8, 4), &out);
    assert_int_equal(out.commit, 5);
    appended(core, now_ns, 8, &out);
    assert_int_equal(out.commit, 8);
    assert_true(out.is_ready);
    raft_core_free(core);
}

/* The disk hangs while the vote of a new term is saved: so many answers wait for it that
 * the core drops some. What the new leader has in place of an entry is not there. */
static void test_entries_that_do_not_match_are_never_acknowledged(void **state)
{
    enum { ANSWERS = 2000 };
    const struct raft_msg ask = { .kind = RAFT_MSG_VOTE,
                                  .flags = RAFT_MSG_PRE_VOTE,
                                  .from = 2,
                                  .to = 1,
                                  .term = 5,
                                  .index = 9,
                                  .index_term = 4 };
    const uint64_t now = s_to_ns(1);
    const struct raft_core_options options = { .id = 1, .is_lazy = true };
    struct raft_log_entry e = {
        .index = 8, .term = 3, .kind = RAFT_ENTRY_BATCH, .len = 1, .data = ""
    };
    struct raft_msg msg = { .kind = RAFT_MSG_APPEND,
                            .flags = RAFT_MSG_LAZY,
                            .from = 2,
                            .to = 1,
                            .term = 3,
                            .index = 7,
                            .index_term = 3,
                            .n = 1 };
    struct err err = { .text = "" };
    struct raft_core_out out;
    struct raft_core *core;
    uint64_t vote;
    struct start s;

    (void)state;
    start_init(&s);
    assert_int_equal(raft_core_open(&options, &core), 0);
    event(core, raft_core_start(core, 0, &s.saved, &err), &out);
    event(core, raft_core_receive(core, now, &msg, &e), &out);
    event(core, raft_core_written(core, now, 8, 3), &out);
    assert_int_equal(out.messages[out.n_messages - 1].last, 8);
    msg.from = 3;
    msg.term = msg.index_term = 4;
    msg.index = 8;
    msg.n = 0;
    event(core, raft_core_receive(core, now, &msg, NULL), &out);
    assert_int_equal(out.new_term, 4);
    vote = out.new_vote;
    for (unsigned i = 0; i < ANSWERS; i++) {
        event(core, raft_core_receive(core, now, &ask, NULL), &out);
        event(core, raft_core_receive(core, now, &msg, NULL), &out);
        assert_int_equal(out.n_messages, 0);
    }
    event(core, raft_core_vote_persisted(core, now, 4, vote), &out);
    assert_true(out.n_messages > 0);
    for (unsigned i = 0; i < out.n_messages; i++)
        assert_int_equal(out.messages[i].index,
                         out.messages[i].kind == RAFT_MSG_APPENDED ? 8 : 0); /* refused */
    event(core, raft_core_persisted(core, now, 8, 3), &out);
    for (unsigned i = 0; i < out.n_messages; i++)
        assert_true(out.messages[i].index != 0 || out.messages[i].last < 8);
    raft_core_free(core);
}

/* A leader knows how far each member of its list has synced, however many have left since
 * it began to lead; and nothing of others. */
static void test_members_that_follow_former_ones_are_counted(void **state)
{
    struct raft_synced synced = { .n_peers = 0 };

    (void)state;
    raft_synced_lead(&synced);
    for (uint64_t id = 2; id < 3 * RAFT_SERVERS_MAX; id++) {
        struct raft_config list = { .n = 0 };

        assert_int_equal(raft_config_set(&list, 1, RAFT_ROLE_VOTER, ""), 0);
        assert_int_equal(raft_config_set(&list, id, RAFT_ROLE_VOTER, ""), 0);
        raft_synced_peer(&synced, &list, id, 10 * id);
        raft_synced_peer(&synced, &list, id + 1, 10 * id);
        assert_int_equal(raft_synced_of(&synced, 1, id), 10 * id);
        assert_int_equal(raft_synced_of(&synced, 1, id + 1), 0);
    }
}

/* Returns the newest message of a kind to a member, or NULL. */
static const struct raft_msg *sent(const struct raft_core_out *out,
                                   enum raft_msg_kind kind, uint64_t to)
{
    for (unsigned i = out->n_messages; i > 0; i--)
        if (out->messages[i - 1].kind == kind && out->messages[i - 1].to == to)
            return &out->messages[i - 1];
    return NULL;
}

/* Member 2 has written its log up to `last` and synced a part of it. */
static void wrote(struct raft_core *core, uint64_t now_ns, uint64_t last, uint64_t synced,
                  struct raft_core_out *out)
{
    const struct raft_msg msg = { .kind = RAFT_MSG_APPENDED,
                                  .flags = RAFT_MSG_LAZY,
                                  .from = 2,
                                  .to = 1,
                                  .term = 4,
                                  .last = last,
                                  .commit = synced };

    event(core, raft_core_receive(core, now_ns, &msg, NULL), out);
}

/* Figure 8 again, on disks: entries of earlier terms that a majority has synced may be
 * replaced by a leader of a term between, while the own entry is in memory only. */
static void test_earlier_entries_are_stable_with_one_of_the_own(void **state)
{
    uint64_t now_ns = ms_to_ns(2 * RAFT_ELECTION_MS);
    struct raft_core_out out;
    struct raft_core *core = lead(true, now_ns, &out);

    (void)state;
    assert_false(out.may_wait); /* clients wait for the own entry */
    for (uint64_t id = 2; id <= 3; id++) {
        assert_non_null(sent(&out, RAFT_MSG_SYNC, id));
        assert_int_equal(sent(&out, RAFT_MSG_SYNC, id)->index, 8);
    }
    event(core, raft_core_written(core, now_ns, 8, 4), &out);
    wrote(core, now_ns, 8, 7, &out);
    assert_int_equal(out.commit, 8);
    assert_int_equal(out.stable, 5); /* though both have synced the one at 7 */
    assert_false(out.is_ready);
    event(core, raft_core_persisted(core, now_ns, 8, 4), &out);
    assert_int_equal(out.stable, 5);
    assert_false(out.is_ready);
    wrote(core, now_ns, 8, 8, &out);
    assert_int_equal(out.stable, 8);
    assert_true(out.is_ready);
    assert_true(out.may_wait);
    raft_core_free(core);
}

/* Receives entries 8 and 9 (n 2), or a heartbeat behind them, from the leader of a term.
 * Returns the answer. */
static const struct raft_msg *heard(struct raft_core *core, uint64_t now_ns,
                                    uint64_t term, unsigned flags, unsigned n,
                                    struct raft_core_out *out)
{
    static const uint8_t data[8];
    const struct raft_msg msg = { .kind = RAFT_MSG_APPEND,
                                  .flags = flags,
                                  .from = term % 2 == 0 ? 2 : 3,
                                  .to = 1,
                                  .term = term,
                                  .sent_ns = now_ns,
                                  .index = n > 0 ? 7 : 9,
                                  .index_term = n > 0 ? 3 : 4,
                                  .commit = 5,
                                  .last = (flags & RAFT_MSG_LAZY) != 0 ? 5 : 0,
                                  .n = n };
    struct raft_log_entry entries[2];

    for (unsigned i = 0; i < 2; i++)
        entries[i] = (struct raft_log_entry){ .index = 8 + i,
                                              .term = 4,
                                              .kind = RAFT_ENTRY_BATCH,
                                              .len = sizeof(data),
                                              .data = data };
    event(core, raft_core_receive(core, now_ns, &msg, entries), out);
    if (out->new_term != 0)
        event(core, raft_core_vote_persisted(core, now_ns, out->new_term, out->new_vote),
              out);
    return sent(out, RAFT_MSG_APPENDED, msg.from);
}

/* Members differ while their configs are changed: the mode of the leader counts. What is
 * written and not synced was acknowledged to one leader and is not to the next one. */
static void test_a_leader_hears_of_what_its_own_mode_counts(void **state)
{
    uint64_t now_ns = s_to_ns(2);
    const struct raft_msg *m;
    struct raft_core_out out;
    struct raft_core *core;
    struct start s;

    (void)state;
    start_init(&s);
    s.log[3].kind = RAFT_ENTRY_BATCH;
    assert_int_equal(start_as(&s, true, &core), 0);
    raft_core_take(core, &out);
    heard(core, now_ns, 4, RAFT_MSG_LAZY, 2, &out);
    event(core, raft_core_written(core, now_ns, 9, 4), &out);
    m = sent(&out, RAFT_MSG_APPENDED, 2);
    assert_non_null(m);
    assert_int_equal(m->last, 9);
    assert_int_equal(m->flags, RAFT_MSG_LAZY);
    assert_int_equal(m->commit, 7); /* synced */
    m = heard(core, now_ns, 5, 0, 0, &out);
    assert_non_null(m);
    assert_int_equal(m->index, 0);
    assert_int_equal(m->last, 7);
    assert_int_equal(m->flags, 0);
    event(core, raft_core_persisted(core, now_ns, 8, 4), &out);
    m = heard(core, now_ns, 5, 0, 0, &out);
    assert_int_equal(m->last, 8);
    event(core, raft_core_persisted(core, now_ns, 9, 4), &out);
    m = heard(core, now_ns, 5, 0, 0, &out);
    assert_int_equal(m->last, 9);
    m = heard(core, now_ns, 6, RAFT_MSG_LAZY, 0, &out);
    assert_int_equal(m->flags, RAFT_MSG_LAZY);
    raft_core_free(core);
}

/* Receives an entry behind the one before it, from the leader of a term, and writes it.
 * Returns up to where the log is acknowledged. */
static uint64_t written(struct raft_core *core, const struct raft_log_entry *e,
                        uint64_t term_before, struct raft_core_out *out)
{
    const struct raft_msg msg = { .kind = RAFT_MSG_APPEND,
                                  .flags = RAFT_MSG_LAZY,
                                  .from = e->term % 2 == 0 ? 2 : 3,
                                  .to = 1,
                                  .term = e->term,
                                  .sent_ns = s_to_ns(2),
                                  .index = e->index - 1,
                                  .index_term = term_before,
                                  .commit = 5,
                                  .last = 5,
                                  .n = 1 };
    const struct raft_msg *m;

    event(core, raft_core_receive(core, s_to_ns(2), &msg, e), out);
    if (out->new_term != 0)
        event(core,
              raft_core_vote_persisted(core, s_to_ns(2), out->new_term, out->new_vote),
              out);
    event(core, raft_core_written(core, s_to_ns(2), e->index, e->term), out);
    m = sent(out, RAFT_MSG_APPENDED, msg.from);
    return m == NULL ? 0 : m->last;
}

/* A loss of power must not leave a member with an older list than one by which a leader
 * has counted it; nor with a newer one that was dropped. */
static void test_lists_are_synced_before_they_are_acknowledged(void **state)
{
    uint8_t list[RAFT_CONFIG_BYTES_MAX];
    struct raft_log_entry e = {
        .index = 8, .term = 4, .kind = RAFT_ENTRY_BATCH, .len = 8, .data = list
    };
    struct raft_core_out out;
    struct raft_core *core;
    struct start s;

    (void)state;
    start_init(&s);
    s.log[3].kind = RAFT_ENTRY_BATCH;
    assert_int_equal(raft_config_set(&s.saved.config, 4, RAFT_ROLE_SPARE, "d"), 0);
    assert_int_equal(start_as(&s, true, &core), 0);
    raft_core_take(core, &out);
    assert_int_equal(written(core, &e, 3, &out), 8);
    assert_true(out.may_wait);

    e.kind = RAFT_ENTRY_CONFIG;
    e.index = 9;
    assert_int_equal(raft_config_remove(&s.saved.config, 4), 0);
    e.len = (uint32_t)raft_config_encode(&s.saved.config, list);
    assert_int_equal(written(core, &e, 4, &out), 0);
    assert_false(out.may_wait);
    event(core, raft_core_persisted(core, s_to_ns(2), 8, 4), &out);
    assert_false(out.may_wait);
    event(core, raft_core_persisted(core, s_to_ns(2), 9, 4), &out);
    assert_int_equal(sent(&out, RAFT_MSG_APPENDED, 2)->last, 9);
    assert_true(out.may_wait);

    e.kind = RAFT_ENTRY_BATCH;
    e.term = 5;
    assert_int_equal(written(core, &e, 4, &out), 0); /* in the place of the list */
    assert_int_equal(out.truncate_from, 0);
    assert_false(out.may_wait);
    event(core, raft_core_persisted(core, s_to_ns(2), 9, 5), &out);
    assert_int_equal(sent(&out, RAFT_MSG_APPENDED, 3)->last, 9);
    assert_true(out.may_wait);
    e.index = 10;
    assert_int_equal(written(core, &e, 5, &out), 10);

    e.kind = RAFT_ENTRY_CONFIG; /* a list that is dropped, with the entry before it */
    e.len = (uint32_t)raft_config_encode(&s.saved.config, list);
    e.index = 11;
    assert_int_equal(written(core, &e, 5, &out), 0);
    e.kind = RAFT_ENTRY_BATCH;
    e.len = 8;
    e.index = 10;
    e.term = 6;
    assert_int_equal(written(core, &e, 5, &out), 0);
    event(core, raft_core_persisted(core, s_to_ns(2), 10, 6), &out);
    assert_int_equal(sent(&out, RAFT_MSG_APPENDED, 2)->last, 10);
    raft_core_free(core);

    start_init(&s); /* the log ends with a list */
    assert_int_equal(start_as(&s, true, &core), 0);
    raft_core_take(core, &out);
    e.index = 7;
    e.term = 4;
    assert_int_equal(written(core, &e, 3, &out), 0);
    event(core, raft_core_persisted(core, s_to_ns(2), 7, 4), &out);
    assert_int_equal(sent(&out, RAFT_MSG_APPENDED, 2)->last, 7);
    raft_core_free(core);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_library_is_the_right_one),
        cmocka_unit_test(test_a_start_needs_state_that_goes_together),
        cmocka_unit_test(test_a_vote_is_persisted_before_it_is_sent),
        cmocka_unit_test(test_another_member_leads_soon),
        cmocka_unit_test(test_leadership_is_handed_to_a_member_that_is_heard),
        cmocka_unit_test(test_a_survivor_behind_in_terms_is_elected),
        cmocka_unit_test(test_a_barrier_is_held_by_others),
        cmocka_unit_test(test_false_evidence_of_death_deposes_no_leader),
        cmocka_unit_test(test_a_candidate_of_a_higher_term_disturbs_no_hand_over),
        cmocka_unit_test(test_a_lease_ends_before_members_with_evidence_elect),
        cmocka_unit_test(test_a_voter_with_evidence_votes_at_the_end_of_its_promise),
        cmocka_unit_test(test_entries_of_earlier_terms_wait_for_one_of_the_own),
        cmocka_unit_test(test_entries_that_do_not_match_are_never_acknowledged),
        cmocka_unit_test(test_members_that_follow_former_ones_are_counted),
        cmocka_unit_test(test_earlier_entries_are_stable_with_one_of_the_own),
        cmocka_unit_test(test_a_leader_hears_of_what_its_own_mode_counts),
        cmocka_unit_test(test_lists_are_synced_before_they_are_acknowledged),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
