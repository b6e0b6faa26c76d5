/*
 * test_witness.c - two members with metadata and a witness: what was acknowledged
 * outlives the loss of any one of them, and the witness never serves.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exportd/store/key.h"
#include "tests/unit/quorum/written_world.h"
#include "tests/unit/unit.h"

enum { SEGMENT = 2 << 20, ENTRY_BYTES = 200 << 10, SEEDS = 24 };

static struct written_world *world_make(uint64_t seed, bool is_lazy)
{
    struct written_world *w = malloc(sizeof(*w));

    assert_non_null(w);
    written_init_witness(w, seed, is_lazy);
    member_world_wait_for_leader(&w->m);
    return w;
}

static void world_end(struct written_world *w)
{
    for (unsigned i = 0; i < MEMBERS; i++)
        assert_false(w->m.nodes[i].has_failed);
    written_free(w);
    free(w);
}

static struct member_node *witness_of(struct written_world *w)
{
    return &w->m.nodes[MEMBERS - 1];
}

/* Returns the other member with metadata. */
static struct member_node *other_of(struct written_world *w, const struct member_node *n)
{
    assert_false(n->is_witness);
    return &w->m.nodes[1 - n->i];
}

static struct member_status status_of(const struct member_node *n)
{
    struct member_status s;

    member_status(n->member, &s);
    return s;
}

/* Writes values, each with whoever leads then. */
static void write_some(struct written_world *w, unsigned n, size_t len)
{
    for (unsigned i = 0; i < n; i++) {
        written_write(w, member_world_wait_for_leader(&w->m), len);
        member_world_run_ms(&w->m, 30);
    }
}

/* Writes until so many more values are acknowledged. */
static void write_acked(struct written_world *w, unsigned n, size_t len)
{
    unsigned to = w->n_acked + n;

    for (unsigned i = 0; i < 50 * n && w->n_acked < to; i++)
        write_some(w, 1, len);
    assert_true(w->n_acked >= to);
}

/* Waits until all members take part and have the same, and checks what they hold. */
static void settle(struct written_world *w)
{
    bool is_done = false;

    member_world_connect_all(&w->m);
    for (unsigned i = 0; i < MEMBERS; i++)
        if (!w->m.nodes[i].is_up)
            member_node_start(&w->m.nodes[i]);
    for (unsigned ms = 0; ms < 60000 && !is_done; ms += 10) {
        is_done = member_world_leader(&w->m) != NULL;
        for (unsigned i = 0; i < MEMBERS; i++)
            is_done = is_done && status_of(&w->m.nodes[i]).seeding == SEED_NONE;
        member_world_run_ms(&w->m, 10);
    }
    assert_true(is_done);
    write_acked(w, 1, 8);
    member_world_run_ms(&w->m, 1000);
    written_leader_check(w, member_world_wait_for_leader(&w->m));
    written_all_are_equal(w);
}

static void wait_for_no_copy(struct written_world *w)
{
    for (unsigned i = 0; i < MEMBERS; i++)
        for (unsigned ms = 0;
             ms < 60000 && status_of(&w->m.nodes[i]).seeding != SEED_NONE; ms++)
            member_world_run_ms(&w->m, 1);
}

/* The store of a witness has keys of its place in the log only. */
static void has_no_metadata(const struct member_node *n)
{
    struct kv_iter *it;
    unsigned n_keys = 0;

    assert_true(n->is_witness);
    assert_int_equal(kv_iter_open(kv_memory_kv(n->below), &it), 0);
    for (kv_iter_seek(it, "", 0); kv_iter_valid(it); kv_iter_next(it), n_keys++) {
        size_t len;
        const uint8_t *key = kv_iter_key(it, &len);

        assert_int_equal(key[0], KEY_QUORUM);
    }
    assert_int_equal(kv_iter_error(it), 0);
    assert_in_range(n_keys, 2, 4);
    kv_iter_close(it);
}

static void keeps_no_metadata_and_is_handed_nothing(void **state)
{
    struct written_world *w = world_make(1, false);
    struct member_node *leader;

    (void)state;
    write_acked(w, 20, 100);
    leader = member_world_wait_for_leader(&w->m);
    assert_int_equal(member_transfer(leader->member, witness_of(w)->id), -EINVAL);
    assert_int_equal(member_transfer(leader->member, 0), 0);
    member_world_run_ms(&w->m, 1000);
    assert_ptr_equal(member_world_wait_for_leader(&w->m), other_of(w, leader));
    settle(w);
    leader = member_world_wait_for_leader(&w->m);
    member_node_kill(other_of(w, leader), false);
    assert_int_equal(member_transfer(leader->member, 0), 0);
    write_acked(w, 1, 100);
    for (unsigned term = 0; term < MEMBER_TERMS; term++)
        assert_true(w->m.leader_of[term] != witness_of(w)->id);
    settle(w);
    has_no_metadata(witness_of(w));
    assert_true(status_of(witness_of(w)).is_witness);
    assert_false(status_of(leader).is_witness);
    world_end(w);
}

/* Each of the three in turn, for good. */
static void the_loss_of_any_one_loses_nothing(void **state)
{
    (void)state;
    for (unsigned i = 0; i < MEMBERS; i++) {
        struct written_world *w = world_make(10 + i, i == 1);

        write_acked(w, 10, 100);
        member_node_kill(&w->m.nodes[i], true);
        write_acked(w, 10, 100);
        written_leader_check(w, member_world_wait_for_leader(&w->m));
        assert_false(w->m.nodes[i].is_up);
        world_end(w);
    }
}

/* The leader is lost for ever, with changes that only the witness has, too. */
static void feeds_a_member_that_was_away(void **state)
{
    struct written_world *w = world_make(20, false);
    struct member_node *a = member_world_wait_for_leader(&w->m), *b = other_of(w, a);
    unsigned n_acked;

    (void)state;
    write_acked(w, 5, 100);
    member_node_kill(b, false);
    write_acked(w, 15, ENTRY_BYTES);
    n_acked = w->n_acked;
    member_node_kill(a, true);
    member_world_run_ms(&w->m, 3000);
    assert_null(member_world_leader(&w->m)); /* no member with metadata is up */
    member_node_start(b);
    assert_ptr_equal(member_world_wait_for_leader(&w->m), b);
    written_leader_check(w, b);
    assert_int_equal(w->n_acked, n_acked);
    write_acked(w, 5, 100);
    assert_false(a->is_up);
    world_end(w);
}

/* Lets the witness drop what a member lacks. Returns that member, which is down; the
 * other one leads. */
static struct member_node *witness_is_short(struct written_world *w)
{
    struct member_node *a = member_world_wait_for_leader(&w->m), *b = other_of(w, a);
    struct member_status s;
    uint64_t last;

    write_acked(w, 5, 100);
    last = status_of(b).last;
    member_node_kill(b, false);
    for (unsigned i = 0; i < 100; i++) {
        write_acked(w, 2, ENTRY_BYTES);
        s = status_of(witness_of(w));
        if (s.first > last + 1)
            break;
    }
    assert_true(s.first > last + 1);
    assert_true(s.covered != 0 && s.covered <= last && s.first > s.covered + 1);
    return b;
}

/* The log of a witness has a limit. A member that was away for longer cannot serve
 * without the other one; it keeps its store, and copies when that one is back. */
static void a_member_that_lacks_what_was_dropped_keeps_its_store(void **state)
{
    struct written_world *w = world_make(30, false);
    struct member_node *b = witness_is_short(w), *a = other_of(w, b);
    uint64_t before[WRITTEN_KEYS];

    (void)state;
    for (unsigned k = 0; k < WRITTEN_KEYS; k++)
        before[k] = written_value(kv_memory_kv(b->below), k);
    member_node_kill(a, false);
    member_node_start(b);
    member_world_run_ms(&w->m, 20000);
    assert_null(member_world_leader(&w->m));
    assert_false(b->has_failed);
    assert_int_equal(status_of(b).seeding, SEED_NONE); /* no copy has begun */
    for (unsigned k = 0; k < WRITTEN_KEYS; k++)
        assert_int_equal(written_value(kv_memory_kv(b->below), k), before[k]);
    member_node_start(a);
    settle(w);
    has_no_metadata(witness_of(w));
    world_end(w);
}

/* A member that copies keeps its store, too, when only a witness is left: that says that
 * its log begins too late, but has no store to give. */
static void a_copy_does_not_begin_again_for_a_witness(void **state)
{
    struct written_world *w = world_make(31, false);
    struct member_node *b = witness_is_short(w), *a = other_of(w, b);
    uint64_t value = 0;

    (void)state;
    /* The leader trims its log, says so, and dies while the other one still asks. */
    member_node_start(b);
    for (unsigned ms = 0; ms < 20000 && status_of(b).seeding == SEED_NONE; ms++)
        member_world_run_ms(&w->m, 1);
    assert_int_equal(status_of(b).seeding, SEED_BEHIND);
    member_node_kill(a, false);
    for (unsigned k = 0; k < WRITTEN_KEYS && value == 0; k++)
        value = written_value(kv_memory_kv(b->below), k);
    if (value != 0) { /* the store was not being replaced yet: it stays */
        member_world_run_ms(&w->m, 20000);
        for (unsigned k = 0; k < WRITTEN_KEYS && value != 0; k++)
            if (written_value(kv_memory_kv(b->below), k) == value)
                value = 0;
        assert_int_equal(value, 0);
    }
    assert_null(member_world_leader(&w->m));
    settle(w);
    world_end(w);
}

/* A witness needs little space while all have everything, and more while one is away. */
static void drops_what_all_members_have(void **state)
{
    struct written_world *w = world_make(40, false);
    struct member_node *leader, *other;
    uint64_t last;

    (void)state;
    w->m.keep_bytes = 64 << 20;
    for (unsigned i = 0; i < MEMBERS; i++) {
        member_node_kill(&w->m.nodes[i], false);
        member_node_start(&w->m.nodes[i]);
    }
    leader = member_world_wait_for_leader(&w->m);
    write_acked(w, 120, ENTRY_BYTES); /* 24 MB */
    assert_true(status_of(leader).log_bytes > 10 * SEGMENT);
    assert_true(status_of(witness_of(w)).log_bytes < 8 * SEGMENT);
    leader = member_world_wait_for_leader(&w->m);
    other = other_of(w, leader);
    last = status_of(other).last;
    member_node_kill(other, false);
    write_acked(w, 120, ENTRY_BYTES);
    assert_true(status_of(witness_of(w)).first <= last + 1);
    assert_true(status_of(witness_of(w)).log_bytes > 10 * SEGMENT);
    member_node_start(other);
    for (unsigned ms = 0; ms < 60000 && status_of(witness_of(w)).log_bytes >= 8 * SEGMENT;
         ms += 100) {
        write_some(w, 1, 100);
        member_world_run_ms(&w->m, 70);
    }
    assert_true(status_of(witness_of(w)).log_bytes < 8 * SEGMENT);
    settle(w);
    world_end(w);
}

/* The leader is lost for ever: the other one comes back, and the witness feeds it. */
static void other_is_fed(struct written_world *w, struct member_node *leader)
{
    struct member_node *other = other_of(w, leader);
    unsigned n_acked = w->n_acked;

    member_node_kill(leader, true);
    member_node_start(other);
    assert_ptr_equal(member_world_wait_for_leader(&w->m), other);
    written_leader_check(w, other);
    assert_true(w->n_acked >= n_acked);
    write_acked(w, 3, 100);
    assert_false(leader->is_up);
}

/* A witness dropped as much as it may. To feed the member that is away it must know the
 * term of the last entry that this one has. */
static void feeds_a_member_whose_last_entry_all_have(void **state)
{
    struct written_world *w = world_make(50, false);
    struct member_node *leader, *other;
    uint64_t last;

    (void)state;
    w->m.keep_bytes = 64 << 20;
    for (unsigned i = 0; i < MEMBERS; i++) {
        member_node_kill(&w->m.nodes[i], false);
        member_node_start(&w->m.nodes[i]);
    }
    write_acked(w, 60, ENTRY_BYTES);
    member_world_run_ms(&w->m, 2000);
    leader = member_world_wait_for_leader(&w->m);
    other = other_of(w, leader);
    last = status_of(other).last;
    member_node_kill(other, false);
    write_acked(w, 120, ENTRY_BYTES);
    assert_true(status_of(witness_of(w)).log_bytes > 10 * SEGMENT);
    assert_in_range(status_of(witness_of(w)).first, last - 5, last + 1);
    other_is_fed(w, leader);
    world_end(w);
}

/* A witness that copied begins its log behind the copy. It starts again, with more. */
static void feeds_a_member_whose_last_entry_it_copied(void **state)
{
    struct written_world *w = world_make(51, false);
    struct member_node *n = witness_of(w), *leader, *other;

    (void)state;
    member_node_kill(n, false);
    write_acked(w, 100, ENTRY_BYTES); /* more than logs keep */
    member_world_run_ms(&w->m, 2000);
    member_node_start(n);
    for (unsigned ms = 0; ms < 60000 && status_of(n).first < 20; ms++)
        member_world_run_ms(&w->m, 1);
    member_world_run_ms(&w->m, 100);
    assert_int_equal(status_of(n).seeding, SEED_NONE);
    leader = member_world_wait_for_leader(&w->m);
    other = other_of(w, leader);
    assert_int_equal(status_of(n).last, status_of(other).last);
    assert_int_equal(status_of(n).first, status_of(n).last + 1); /* empty */
    member_node_kill(other, false);
    write_acked(w, 3, 100);
    member_node_kill(n, false);
    member_node_start(n);
    write_acked(w, 3, 100);
    other_is_fed(w, leader);
    has_no_metadata(n);
    world_end(w);
}

/* ---- whatever fails ---- */

/* Takes something from a witness that is down. */
static void lose(struct member_node *n, unsigned what)
{
    if (what == 0) {
        member_node_spoil(n, "vote", 0, 2 * MEM_PAGE);
    } else if (what == 1) {
        for (unsigned i = 0; i < 4; i++) {
            char path[32];

            snprintf(path, sizeof(path), "journal/0.%u", i);
            member_node_spoil(n, path, MEM_PAGE, 64 * MEM_PAGE);
        }
    } else if (what == 2) {
        member_node_empty(n);
    } else {
        kv_memory_close(n->below);
        assert_int_equal(kv_memory_open(&n->w->v->env, &n->below), 0);
    }
}

/* A witness loses log, vote, store or all while one of the others lags; it asks for no
 * key, and when it votes again either of the others may be lost. */
static void what_it_loses_it_gets_back(void **state)
{
    (void)state;
    for (unsigned i = 0; i < SEEDS; i += UNIT_STEP) {
        struct written_world *w = world_make(100 + i, i % 3 == 0);
        struct member_node *n = witness_of(w), *a, *b;

        write_acked(w, 10, i % 2 == 0 ? 100 : ENTRY_BYTES);
        a = member_world_wait_for_leader(&w->m);
        b = other_of(w, a);
        w->m.cut[a->i][b->i] = w->m.cut[b->i][a->i] = true; /* b lags */
        write_some(w, 5, 100);
        if (i % 4 == 1 && w->m.is_lazy)
            member_node_stop(n); /* damage shows where the log had been synced */
        else
            member_node_kill(n, i % 2 == 0);
        lose(n, i % 4);
        member_world_connect_all(&w->m);
        member_node_start(n);
        for (unsigned ms = 0; ms < 60000 && status_of(n).seeding != SEED_NONE; ms++)
            member_world_run_ms(&w->m, 1);
        assert_int_equal(status_of(n).seeding, SEED_NONE);
        has_no_metadata(n);
        /* At once: the one that led then is lost, and the other one has all. */
        member_node_kill(a, true);
        written_leader_check(w, member_world_wait_for_leader(&w->m));
        write_acked(w, 3, 100);
        settle(w);
        world_end(w);
    }
}

/* Kills, cuts, losses of power of one at a time, and writes meanwhile. */
static void one_failure_at_a_time_loses_nothing(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < SEEDS; seed += UNIT_STEP) {
        struct written_world *w = world_make(200 + seed, seed % 2 == 0);

        for (unsigned round = 0; round < 12; round++) {
            struct member_node *n = &w->m.nodes[env_virtual_below(&w->v, MEMBERS)];
            unsigned how = env_virtual_below(&w->v, 3);

            if (how < 2)
                member_node_kill(n, how == 1);
            else
                member_world_cut_off(&w->m, n->i);
            write_some(w, 1 + env_virtual_below(&w->v, 8),
                       env_virtual_below(&w->v, 2) == 0 ? 100 : ENTRY_BYTES);
            member_world_connect_all(&w->m);
            if (how < 2)
                member_node_start(n);
            /* The next one fails when all have the same, or while this one catches up. A
             * copy, or a doubt after a loss of power, would be a second failure. */
            if (how == 1 || env_virtual_below(&w->v, 2) == 0)
                settle(w);
            wait_for_no_copy(w);
            written_leader_check(w, member_world_wait_for_leader(&w->m));
        }
        settle(w);
        has_no_metadata(witness_of(w));
        assert_true(w->n_acked > 20);
        world_end(w);
    }
}

/* ---- members that come and go ---- */

struct wish {
    struct member_change change; /* must stay first */
    bool is_done;
    int rc;
};

static void on_changed(struct member_change *c, int rc)
{
    struct wish *wish = (struct wish *)c;

    wish->is_done = true;
    wish->rc = rc;
}

/* Asks leaders until one has an answer of its own. Returns it. */
static int change(struct written_world *w, struct wish *wish, struct member_change what)
{
    for (unsigned i = 0; i < 100; i++) {
        *wish = (struct wish){ .change = what };
        wish->change.done = on_changed;
        member_change(member_world_wait_for_leader(&w->m)->member, &wish->change);
        for (unsigned ms = 0; ms < 20000 && !wish->is_done; ms++) {
            member_world_run_ms(&w->m, 1);
            member_world_start_added(&w->m);
        }
        assert_true(wish->is_done);
        if (wish->rc != -EBUSY && wish->rc != -ROZO_ENOT_LEADER &&
            wish->rc != -EHOSTUNREACH)
            return wish->rc;
        member_world_run_ms(&w->m, 50);
    }
    fail_msg("no leader changes the list");
    return 0;
}

static int add(struct written_world *w, struct wish *wish, const struct member_node *n,
               bool is_witness)
{
    struct member_change what = { .kind = MEMBER_CHANGE_ADD, .is_witness = is_witness };

    snprintf(what.address, sizeof(what.address), "m%u", n->i);
    return change(w, wish, what);
}

static int drop(struct written_world *w, struct wish *wish, uint64_t id, bool is_forced)
{
    return change(w, wish,
                  (struct member_change){
                      .kind = MEMBER_CHANGE_REMOVE, .id = id, .is_forced = is_forced });
}

static void wait_for_vote(struct written_world *w, uint64_t id)
{
    for (unsigned ms = 0; ms < 60000; ms += 20) {
        struct member_status s = status_of(member_world_wait_for_leader(&w->m));
        const struct raft_member *m = raft_config_find(&s.members, id);

        if (m != NULL && m->role == RAFT_ROLE_VOTER)
            return;
        written_write(w, member_world_wait_for_leader(&w->m), 100);
        member_world_run_ms(&w->m, 20);
        member_world_start_added(&w->m);
    }
    fail_msg("it does not vote");
}

static void is_added_and_removed(void **state)
{
    struct written_world *w = malloc(sizeof(*w));
    struct member_node *n, *two;
    struct wish wish;

    (void)state;
    assert_non_null(w);
    written_init(w, 300); /* three with metadata */
    n = member_world_new(&w->m);
    two = member_world_new(&w->m);
    write_acked(w, 10, ENTRY_BYTES);
    assert_int_equal(add(w, &wish, n, true), 0);
    wait_for_vote(w, wish.change.id);
    assert_true(n->is_witness);
    has_no_metadata(n);
    assert_int_equal(add(w, &wish, n, false), -EEXIST);
    assert_int_equal(add(w, &wish, two, true), 0); /* 3 + 2 */
    wait_for_vote(w, wish.change.id);
    /* Two with metadata and two witnesses would let witnesses be a half. */
    for (unsigned i = 0; i < MEMBERS; i++)
        if (&w->m.nodes[i] != member_world_wait_for_leader(&w->m)) {
            assert_int_equal(drop(w, &wish, w->m.nodes[i].id, false), -EPERM);
            break;
        }
    assert_int_equal(drop(w, &wish, two->id, false), 0);
    assert_int_equal(drop(w, &wish, n->id, false), 0);
    write_acked(w, 5, 100);
    written_leader_check(w, member_world_wait_for_leader(&w->m));
    world_end(w);
}

static void a_second_one_for_two_members_is_refused(void **state)
{
    struct written_world *w = world_make(301, false);
    struct member_node *n = member_world_new(&w->m);
    struct member_node *leader = member_world_wait_for_leader(&w->m);
    struct wish wish;

    (void)state;
    assert_int_equal(add(w, &wish, n, true), -EPERM);
    assert_non_null(strstr(wish.change.err.text, "witnesses"));
    leader = member_world_wait_for_leader(&w->m);
    assert_int_equal(drop(w, &wish, other_of(w, leader)->id, false), -EPERM);
    /* One takes the place of the first, and is of its kind. */
    member_node_kill(witness_of(w), false);
    assert_int_equal(change(w, &wish,
                            (struct member_change){ .kind = MEMBER_CHANGE_ADD,
                                                    .address = "m3",
                                                    .replaces = witness_of(w)->id }),
                     0);
    wait_for_vote(w, wish.change.id);
    assert_true(n->is_witness);
    assert_int_equal(drop(w, &wish, witness_of(w)->id, false), 0);
    write_acked(w, 5, 100);
    has_no_metadata(n);
    world_end(w);
}

/* Removes a member with metadata that does not lead. Returns the result. */
static int drop_full(struct written_world *w, struct wish *wish, bool is_forced)
{
    struct member_status s = status_of(member_world_wait_for_leader(&w->m));

    for (unsigned i = 0; i < s.members.n; i++) {
        const struct raft_member *m = &s.members.members[i];

        if (raft_member_can_serve(m) && m->id != s.id)
            return drop(w, wish, m->id, is_forced);
    }
    fail_msg("one alone has metadata");
    return 0;
}

/* A witness that does not vote yet will. */
static void one_that_does_not_vote_yet_counts(void **state)
{
    struct written_world *w = malloc(sizeof(*w));
    struct member_node *a, *b;
    struct wish wish;

    (void)state;
    assert_non_null(w);
    written_init(w, 302); /* three with metadata */
    a = member_world_new(&w->m);
    b = member_world_new(&w->m);
    write_acked(w, 5, 100);
    assert_int_equal(drop_full(w, &wish, false), 0);
    assert_int_equal(add(w, &wish, a, true), 0);
    member_world_cut_off(&w->m, a->i);
    assert_int_equal(add(w, &wish, b, true), -EPERM);
    assert_int_equal(drop_full(w, &wish, false), -EPERM);
    written_free(w);
    free(w);
}

static void none_is_the_second_member(void **state)
{
    struct written_world *w = malloc(sizeof(*w));
    struct member_node *n;
    struct wish wish;

    (void)state;
    assert_non_null(w);
    written_init(w, 303); /* three with metadata */
    n = member_world_new(&w->m);
    write_acked(w, 5, 100);
    assert_int_equal(drop_full(w, &wish, true), 0);
    assert_int_equal(drop_full(w, &wish, true), 0);
    assert_int_equal(add(w, &wish, n, true), -EPERM);
    assert_non_null(strstr(wish.change.err.text, "1 voter with metadata and 1 witness "));
    assert_non_null(strstr(wish.change.err.text, "loss of either stops everything"));
    written_free(w);
    free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_no_metadata_and_is_handed_nothing),
        cmocka_unit_test(one_that_does_not_vote_yet_counts),
        cmocka_unit_test(none_is_the_second_member),
        cmocka_unit_test(the_loss_of_any_one_loses_nothing),
        cmocka_unit_test(feeds_a_member_that_was_away),
        cmocka_unit_test(a_member_that_lacks_what_was_dropped_keeps_its_store),
        cmocka_unit_test(a_copy_does_not_begin_again_for_a_witness),
        cmocka_unit_test(drops_what_all_members_have),
        cmocka_unit_test(feeds_a_member_whose_last_entry_all_have),
        cmocka_unit_test(feeds_a_member_whose_last_entry_it_copied),
        cmocka_unit_test(what_it_loses_it_gets_back),
        cmocka_unit_test(one_failure_at_a_time_loses_nothing),
        cmocka_unit_test(is_added_and_removed),
        cmocka_unit_test(a_second_one_for_two_members_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
