/*
 * test_change.c - members that come and go while values are written: each id is used
 * once, nothing that was acknowledged is missing, whoever crashes at whichever step.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exportd/quorum/kv_place.h"
#include "tests/unit/quorum/written_world.h"
#include "tests/unit/unit.h"

enum { SEEDS = 25, ROUNDS = 24 };

/* A change that a test asks for. */
struct wish {
    struct member_change change; /* must stay first */
    bool is_done;
    int rc;
};

struct changed {
    struct written_world w;
    bool keeps_power; /* only processes end */
    struct wish wish;
    bool is_checked[MEMBER_TERMS]; /* leader of this term has what was acknowledged */
};

static struct changed *changed_new_as(uint64_t seed, bool is_lazy)
{
    struct changed *c = calloc(1, sizeof(*c));

    assert_non_null(c);
    written_init_as(&c->w, seed, is_lazy);
    c->wish.is_done = true;
    return c;
}

static struct changed *changed_new(uint64_t seed)
{
    return changed_new_as(seed, false);
}

static void changed_free(struct changed *c)
{
    written_free(&c->w);
    free(c);
}

static void on_wish(struct member_change *change, int rc)
{
    struct wish *wish = (struct wish *)change;

    assert_false(wish->is_done);
    wish->is_done = true;
    wish->rc = rc;
}

static void run_ms(struct changed *c, unsigned ms)
{
    for (unsigned i = 0; i < ms; i++) {
        struct member_node *n = member_world_leader(&c->w.m);

        member_world_start_added(&c->w.m);
        if (n != NULL && !c->is_checked[n->term]) {
            written_leader_check(&c->w, n);
            c->is_checked[n->term] = true;
        }
        member_world_run_ms(&c->w.m, 1);
    }
}

/* Writes for so many ms, wherever a member leads. */
static void write_for(struct changed *c, unsigned ms)
{
    for (unsigned i = 0; i < ms; i += 20) {
        if (member_world_leader(&c->w.m) != NULL)
            written_write(&c->w, member_world_leader(&c->w.m), 2000);
        run_ms(c, 20);
    }
}

static void wish_begin(struct changed *c, struct member_node *leader)
{
    c->wish.is_done = false;
    c->wish.change.done = on_wish;
    c->wish.change.err.text[0] = '\0';
    member_change(leader->member, &c->wish.change);
}

static void add_begin(struct changed *c, const struct member_node *n, uint64_t replaces)
{
    c->wish.change =
        (struct member_change){ .kind = MEMBER_CHANGE_ADD, .replaces = replaces };
    snprintf(c->wish.change.address, sizeof(c->wish.change.address), "m%u", n->i);
    wish_begin(c, member_world_wait_for_leader(&c->w.m));
}

static void remove_begin(struct changed *c, uint64_t id, bool is_forced)
{
    c->wish.change = (struct member_change){ .kind = MEMBER_CHANGE_REMOVE,
                                             .id = id,
                                             .is_forced = is_forced };
    wish_begin(c, member_world_wait_for_leader(&c->w.m));
}

/* Waits for the end of a change. Returns its result. */
static int wish_end(struct changed *c)
{
    for (unsigned ms = 0; ms < 20000 && !c->wish.is_done; ms++)
        run_ms(c, 1);
    assert_true(c->wish.is_done);
    return c->wish.rc;
}

/* Asks until the leader has an answer: links lose messages. */
static void added(struct changed *c, const struct member_node *n, uint64_t replaces)
{
    do {
        add_begin(c, n, replaces);
    } while (wish_end(c) != 0);
}

static void status_of(const struct member_node *n, struct member_status *s)
{
    memset(s, 0, sizeof(*s));
    if (n->member != NULL)
        member_status(n->member, s);
}

static enum raft_role role_of(struct changed *c, uint64_t id)
{
    struct member_status s;
    const struct raft_member *m;

    status_of(member_world_wait_for_leader(&c->w.m), &s);
    m = raft_config_find(&s.members, id);
    assert_non_null(m);
    return m->role;
}

static void wait_for_vote(struct changed *c, uint64_t id)
{
    for (unsigned ms = 0; ms < 60000 && role_of(c, id) != RAFT_ROLE_VOTER; ms += 20)
        write_for(c, 20);
    assert_int_equal(role_of(c, id), RAFT_ROLE_VOTER);
}

static void wait_until_removed(struct changed *c, const struct member_node *n)
{
    struct member_status s;

    for (unsigned ms = 0; ms < 60000; ms++) {
        status_of(n, &s);
        if (s.is_removed)
            return;
        run_ms(c, 1);
    }
    fail_msg("node %u does not know that it was removed", n->i);
}

/* ---- one change ---- */

static void a_member_is_added_and_votes(void **state)
{
    struct changed *c = changed_new(1);
    struct member_node *n = member_world_new(&c->w.m);

    (void)state;
    write_for(c, 200);
    added(c, n, 0);
    assert_int_equal(c->wish.change.id, 103);
    added(c, n, 0); /* again: the same */
    assert_int_equal(c->wish.change.id, 103);
    wait_for_vote(c, 103);
    assert_int_equal(n->id, 103);
    /* With two of four away nobody leads, with three somebody does: its vote counts. */
    member_node_kill(&c->w.m.nodes[0], false);
    member_node_kill(&c->w.m.nodes[1], false);
    run_ms(c, 4000);
    assert_null(member_world_leader(&c->w.m));
    member_node_start(&c->w.m.nodes[0]);
    write_for(c, 4000);
    assert_non_null(member_world_leader(&c->w.m));
    changed_free(c);
}

static void a_removed_member_learns_it_and_is_not_heard(void **state)
{
    struct changed *c = changed_new(2);
    struct member_node *leader = member_world_wait_for_leader(&c->w.m), *n;
    struct member_status before, s;

    (void)state;
    n = &c->w.m.nodes[(leader->i + 1) % MEMBERS];
    remove_begin(c, leader->id, true);
    assert_int_equal(wish_end(c), -EDEADLK);
    remove_begin(c, 77, false);
    assert_int_equal(wish_end(c), -ENOENT);
    write_for(c, 200);
    member_world_cut_off(&c->w.m, n->i); /* n does not get the list */
    remove_begin(c, n->id, false);
    assert_int_equal(wish_end(c), 0);
    status_of(leader, &before);
    run_ms(c, 3000);
    status_of(n, &s);
    assert_false(s.is_removed);
    member_world_connect_all(&c->w.m);
    wait_until_removed(c, n);
    member_node_kill(n, false);
    member_node_start(n); /* with its old directory */
    wait_until_removed(c, n);
    write_for(c, 3000);
    status_of(leader, &s);
    assert_true(s.leads && s.term == before.term); /* without a disturbance */
    changed_free(c);
}

static void a_leader_that_was_cut_off_learns_that_it_was_removed(void **state)
{
    struct changed *c = changed_new(3);
    struct member_node *old = member_world_wait_for_leader(&c->w.m);

    (void)state;
    write_for(c, 200);
    member_world_cut_off(&c->w.m, old->i);
    run_ms(c, 3000);
    remove_begin(c, old->id, false);
    assert_int_equal(wish_end(c), 0);
    member_world_connect_all(&c->w.m);
    wait_until_removed(c, old);
    assert_false(old->leads);
    changed_free(c);
}

static void no_majority_without_it_needs_force(void **state)
{
    struct changed *c = changed_new(4);
    struct member_node *leader = member_world_wait_for_leader(&c->w.m);
    struct member_node *a = &c->w.m.nodes[(leader->i + 1) % MEMBERS];
    struct member_node *b = &c->w.m.nodes[(leader->i + 2) % MEMBERS];

    (void)state;
    write_for(c, 200);
    member_node_kill(b, false);
    run_ms(c, 2000);
    remove_begin(c, a->id, false);
    assert_int_equal(wish_end(c), -EPERM);
    assert_non_null(strstr(c->wish.change.err.text, "--force"));
    remove_begin(c, b->id, false); /* the one that is away may go */
    assert_int_equal(wish_end(c), 0);
    write_for(c, 200);
    remove_begin(c, a->id, true);
    assert_int_equal(wish_end(c), 0);
    write_for(c, 200);
    written_leader_check(&c->w, member_world_wait_for_leader(&c->w.m));
    changed_free(c);
}

static void what_does_not_wait_is_refused(void **state)
{
    struct changed *c = changed_new(5);
    struct member_node *away = &c->w.m.nodes[0], *leader;
    struct member_status s;

    (void)state;
    leader = member_world_wait_for_leader(&c->w.m);
    away = &c->w.m.nodes[(leader->i + 1) % MEMBERS];
    /* in place of itself: a member answers there, or nothing */
    do {
        add_begin(c, away, away->id);
    } while (wish_end(c) == -EHOSTUNREACH); /* the question was lost */
    assert_int_equal(c->wish.rc, -EEXIST);
    assert_non_null(strstr(c->wish.change.err.text, "of this quorum already"));
    member_node_kill(away, false);
    add_begin(c, away, away->id);
    assert_int_equal(wish_end(c), -EHOSTUNREACH);
    status_of(leader, &s);
    assert_int_equal(s.members.n, MEMBERS);
    changed_free(c);
}

/* Returns a member that votes, does not lead, and is none of these. */
static struct member_node *other_voter(struct changed *c, const struct member_node *a)
{
    struct member_node *leader = member_world_wait_for_leader(&c->w.m);

    for (unsigned i = 0;; i++) {
        struct member_node *n = &c->w.m.nodes[i];

        assert_true(i < MEMBERS);
        if (n != leader && n != a)
            return n;
    }
}

static void refused_as_a_repeat(struct changed *c, uint64_t replaces,
                                const struct member_node *n, int rc, const char *words)
{
    do {
        add_begin(c, n, replaces);
    } while (wish_end(c) == -EBUSY); /* the last change is not stable yet */
    assert_int_equal(c->wish.rc, rc);
    assert_non_null(strstr(c->wish.change.err.text, words));
}

/* A member takes the place of another one only if it came for that. */
static void no_member_takes_the_place_of_another_one(void **state)
{
    struct changed *c = changed_new(9);
    struct member_node *a = other_voter(c, NULL), *b = other_voter(c, a), *d, *e;
    struct member_node *leader = member_world_wait_for_leader(&c->w.m);
    char words[64];

    (void)state;
    c->w.m.is_lossless = true;
    write_for(c, 200);
    /* three first members, whichever has the highest id */
    refused_as_a_repeat(c, a->id, b, -EEXIST, "votes already");
    refused_as_a_repeat(c, b->id, a, -EEXIST, "votes already");
    refused_as_a_repeat(c, a->id, leader, -EEXIST, "votes already");
    snprintf(words, sizeof(words), "`rozo meta remove %u`", (unsigned)a->id);
    refused_as_a_repeat(c, a->id, b, -EEXIST, words);
    refused_as_a_repeat(c, 777, b, -ENOENT, "no member 777");
    /* the place of `a` is taken, and the command that did it is repeated at each step */
    d = member_world_new(&c->w.m);
    added(c, d, a->id);
    assert_int_equal(c->wish.change.id, 103);
    added(c, d, a->id);
    assert_int_equal(c->wish.change.id, 103);
    wait_for_vote(c, 103);
    added(c, d, a->id);
    assert_int_equal(c->wish.change.id, 103);
    refused_as_a_repeat(c, a->id, b, -EEXIST, "votes already"); /* not the newest one */
    do {
        leader = member_world_wait_for_leader(&c->w.m);
        remove_begin(c, a->id, false);
    } while (wish_end(c) != 0);
    added(c, d, a->id);
    assert_int_equal(c->wish.change.id, 103);
    /* the newest one has come in the place of `a`, not of `b` */
    refused_as_a_repeat(c, b->id, d, -EEXIST, "votes already");
    /* one that does not vote yet is being added, whatever came later */
    d = member_world_new(&c->w.m);
    e = member_world_new(&c->w.m);
    added(c, d, b->id);
    assert_int_equal(c->wish.change.id, 104);
    member_world_cut_off(&c->w.m, d->i);
    added(c, e, 0);
    assert_int_equal(c->wish.change.id, 105);
    assert_int_not_equal(role_of(c, 104), RAFT_ROLE_VOTER);
    added(c, d, b->id);
    assert_int_equal(c->wish.change.id, 104);
    changed_free(c);
}

/* The highest id leaves, and the store that knows of it is copied. */
static void ids_are_not_used_twice(void **state)
{
    struct changed *c = changed_new(6);
    struct member_node *a = member_world_new(&c->w.m), *b, *leader;
    struct kv_quorum_place place;
    int64_t wall_ns;

    (void)state;
    added(c, a, 0);
    wait_for_vote(c, 103);
    do {
        leader = member_world_wait_for_leader(&c->w.m);
        if (leader == a) {
            member_transfer(a->member, 0);
            run_ms(c, 2000);
            continue;
        }
        remove_begin(c, 103, false);
    } while (leader == a || wish_end(c) != 0);
    write_for(c, 200);
    b = member_world_new(&c->w.m); /* for a copy of the store */
    added(c, b, 0);
    assert_int_equal(c->wish.change.id, 104);
    wait_for_vote(c, 104);
    assert_int_equal(kv_place_load(kv_memory_kv(b->below), &place, &wall_ns), 0);
    assert_int_equal(place.highest_id, 104);
    do {
        leader = member_world_wait_for_leader(&c->w.m);
        if (leader == b) {
            member_transfer(b->member, 0);
            run_ms(c, 2000);
            continue;
        }
        remove_begin(c, 104, false);
    } while (leader == b || wish_end(c) != 0);
    for (unsigned i = 0; i < MEMBERS; i++) { /* all lose their power, and remember */
        member_node_kill(&c->w.m.nodes[i], true);
        member_node_start(&c->w.m.nodes[i]);
    }
    added(c, member_world_new(&c->w.m), 0);
    assert_int_equal(c->wish.change.id, 105);
    changed_free(c);
}

/* ---- whoever crashes ---- */

static struct member_node *any_node(struct changed *c)
{
    return &c->w.m.nodes[env_virtual_below(&c->w.v, c->w.m.n_nodes)];
}

static void change_something(struct changed *c)
{
    struct member_node *leader = member_world_leader(&c->w.m);
    struct member_status s;
    uint64_t id;

    if (leader == NULL || !c->wish.is_done)
        return;
    status_of(leader, &s);
    if (s.members.n < 4 && c->w.m.n_nodes < NODES_MAX) {
        add_begin(c, member_world_new(&c->w.m), 0);
        return;
    }
    id = s.members.members[env_virtual_below(&c->w.v, s.members.n)].id;
    if (s.members.n <= 3)
        return;
    if (id == leader->id)
        member_transfer(leader->member, 0);
    else
        remove_begin(c, id, false);
}

/* Ends a process. With acknowledge: memory a loss of power may take what was
 * acknowledged, if it is the second one. */
static void crash(struct changed *c, struct member_node *n)
{
    bool power = env_virtual_below(&c->w.v, 2) == 0 && !c->keeps_power;

    member_node_kill(n, power);
    if (power && c->w.m.is_lazy)
        memset(c->w.acked, 0, sizeof(c->w.acked));
}

static void crash_something(struct changed *c)
{
    struct member_node *n = any_node(c);

    if (n->member == NULL && n->id != 0 && !n->is_up)
        member_node_start(n);
    else if (n->member != NULL)
        crash(c, n);
    if (env_virtual_below(&c->w.v, 4) == 0)
        member_world_cut_off(&c->w.m, any_node(c)->i);
    else if (env_virtual_below(&c->w.v, 2) == 0)
        member_world_connect_all(&c->w.m);
}

static void all_up(struct changed *c)
{
    member_world_connect_all(&c->w.m);
    for (unsigned i = 0; i < c->w.m.n_nodes; i++) {
        struct member_node *n = &c->w.m.nodes[i];

        if (!n->is_up && n->id != 0)
            member_node_start(n);
    }
}

/* Returns whether all members vote and have the same, and all others know that they are
 * none. */
/* Returns whether a member that was removed knows one that is a member now: that one says
 * so. The others may have been removed as well, without knowing of its removal. */
static bool can_learn(const struct member_status *s, const struct member_status *leader)
{
    for (unsigned i = 0; i < s->members.n; i++)
        if (raft_config_find(&leader->members, s->members.members[i].id) != NULL)
            return true;
    return false;
}

static bool is_settled(struct changed *c)
{
    struct member_node *leader = member_world_leader(&c->w.m);
    struct member_status l, s;

    if (leader == NULL)
        return false;
    status_of(leader, &l);
    for (unsigned i = 0; i < c->w.m.n_nodes; i++) {
        const struct member_node *n = &c->w.m.nodes[i];
        const struct raft_member *m = raft_config_find(&l.members, n->id);

        status_of(n, &s);
        if (n->id == 0)
            continue;
        if (m == NULL ? !s.is_removed && can_learn(&s, &l)
                      : m->role != RAFT_ROLE_VOTER || s.applied != l.last)
            return false;
    }
    return true;
}

static void states_print(struct changed *c)
{
    for (unsigned i = 0; i < c->w.m.n_nodes; i++) {
        struct member_status s;

        status_of(&c->w.m.nodes[i], &s);
        print_message("node %u: id %u, up %d, leads %d, term %u, applied %u, last %u, "
                      "seeding %d, removed %d:",
                      i, (unsigned)c->w.m.nodes[i].id, c->w.m.nodes[i].is_up, s.leads,
                      (unsigned)s.term, (unsigned)s.applied, (unsigned)s.last, s.seeding,
                      s.is_removed);
        for (unsigned k = 0; k < s.members.n; k++)
            print_message(" %u=%d", (unsigned)s.members.members[k].id,
                          s.members.members[k].role);
        print_message("\n");
    }
}

static void settle(struct changed *c)
{
    struct member_node *leader;
    struct member_status s;

    all_up(c);
    for (unsigned ms = 0; ms < 120000 && !is_settled(c); ms += 10)
        run_ms(c, 10);
    if (!is_settled(c)) {
        states_print(c);
        fail_msg("the members wait for each other");
    }
    leader = member_world_leader(&c->w.m);
    status_of(leader, &s);
    for (unsigned i = 0; i < c->w.m.n_nodes; i++) {
        struct member_node *n = &c->w.m.nodes[i];

        if (n->id == 0 || raft_config_find(&s.members, n->id) == NULL)
            continue;
        for (unsigned k = 0; k < WRITTEN_KEYS; k++) {
            uint64_t v = written_value(kv_memory_kv(n->below), k);

            assert_true(v >= c->w.acked[k] && v <= c->w.written[k]);
            assert_int_equal(v, written_value(kv_memory_kv(leader->below), k));
        }
    }
}

static void survive_crashes(bool is_lazy, bool keeps_power)
{
    unsigned n_left = 0, n_added = 0, n_seeds = 0;

    for (uint64_t seed = 1; seed <= SEEDS; seed += UNIT_STEP) {
        struct changed *c = changed_new_as(1000 + seed, is_lazy);

        c->keeps_power = keeps_power;
        for (unsigned round = 0; round < ROUNDS; round++) {
            change_something(c);
            write_for(c, (unsigned)env_virtual_below(&c->w.v, 1000));
            crash_something(c);
            write_for(c, (unsigned)env_virtual_below(&c->w.v, 1500));
            if (env_virtual_below(&c->w.v, 2) == 0)
                all_up(c);
        }
        settle(c);
        for (unsigned i = 0; i < c->w.m.n_nodes; i++) {
            struct member_status s;

            status_of(&c->w.m.nodes[i], &s);
            n_left += s.is_removed;
            n_added += i >= MEMBERS && c->w.m.nodes[i].id != 0;
        }
        changed_free(c);
        n_seeds++;
    }
    assert_true(n_added >= n_seeds && n_left >= n_seeds); /* changes did happen */
}

static void changes_survive_crashes(void **state)
{
    (void)state;
    survive_crashes(false, false);
}

static void changes_survive_ends_of_processes_in_memory(void **state)
{
    (void)state;
    survive_crashes(true, true);
}

static void changes_survive_losses_of_power_in_memory(void **state)
{
    (void)state;
    survive_crashes(true, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_member_is_added_and_votes),
        cmocka_unit_test(a_removed_member_learns_it_and_is_not_heard),
        cmocka_unit_test(a_leader_that_was_cut_off_learns_that_it_was_removed),
        cmocka_unit_test(no_majority_without_it_needs_force),
        cmocka_unit_test(what_does_not_wait_is_refused),
        cmocka_unit_test(no_member_takes_the_place_of_another_one),
        cmocka_unit_test(ids_are_not_used_twice),
        cmocka_unit_test(changes_survive_crashes),
        cmocka_unit_test(changes_survive_ends_of_processes_in_memory),
        cmocka_unit_test(changes_survive_losses_of_power_in_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
