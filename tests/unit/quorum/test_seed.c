/*
 * test_seed.c - a member that has lost its store, log or vote, or was away for too long,
 * copies the store of another one while the others work; whatever fails meanwhile.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/units.h"
#include "exportd/store/key.h"
#include "tests/unit/quorum/written_world.h"
#include "tests/unit/unit.h"

/* Loss of a member. */
enum loss { LOSS_VOTE, LOSS_LOG, LOSS_ALL, LOSS_STORE, LOSS_N };

static enum seed_doubt seeding(const struct member_node *n)
{
    struct member_status s;

    if (!n->is_up)
        return SEED_NONE;
    member_status(n->member, &s);
    return s.seeding;
}

static void spoil(struct member_node *n, const char *path, uint64_t from, uint64_t to)
{
    struct disk_file *f = memdisk_find(&n->disk, path);
    uint8_t bad[64];

    memset(bad, 0x5a, sizeof(bad));
    for (uint64_t at = from; f != NULL && at < to; at += MEM_PAGE)
        memdisk_poke(&n->disk, f, at, bad, sizeof(bad));
}

/* Takes something from a member that is down. */
static void lose(struct member_node *n, enum loss loss)
{
    if (loss == LOSS_VOTE) {
        spoil(n, "vote", 0, 2 * MEM_PAGE);
    } else if (loss == LOSS_LOG) {
        for (unsigned i = 0; i < 4; i++) {
            char path[32];

            snprintf(path, sizeof(path), "journal/0.%u", i);
            spoil(n, path, MEM_PAGE, 64 * MEM_PAGE);
        }
    } else if (loss == LOSS_ALL) {
        member_node_empty(n);
    } else {
        kv_memory_close(n->below);
        assert_int_equal(kv_memory_open(&n->w->v->env, &n->below), 0);
    }
}

/* Compares all keys that are not a member's own. */
static void stores_are_equal(struct kv *a, struct kv *b)
{
    struct kv_iter *i, *j;
    unsigned n = 0;

    assert_int_equal(kv_iter_open(a, &i), 0);
    assert_int_equal(kv_iter_open(b, &j), 0);
    kv_iter_seek(i, "", 0);
    kv_iter_seek(j, "", 0);
    for (;; kv_iter_next(i), kv_iter_next(j), n++) {
        size_t i_len, j_len;
        const uint8_t *p, *q;

        while (kv_iter_valid(i) && *(p = kv_iter_key(i, &i_len)) == KEY_QUORUM)
            kv_iter_next(i);
        while (kv_iter_valid(j) && *(q = kv_iter_key(j, &j_len)) == KEY_QUORUM)
            kv_iter_next(j);
        assert_int_equal(kv_iter_valid(i), kv_iter_valid(j));
        if (!kv_iter_valid(i))
            break;
        p = kv_iter_key(i, &i_len);
        q = kv_iter_key(j, &j_len);
        assert_int_equal(i_len, j_len);
        assert_memory_equal(p, q, i_len);
        p = kv_iter_val(i, &i_len);
        q = kv_iter_val(j, &j_len);
        assert_int_equal(i_len, j_len);
        assert_memory_equal(p, q, i_len);
    }
    assert_true(n > 0);
    kv_iter_close(i);
    kv_iter_close(j);
}

/* Heals everything, and waits until all members take part and hold the same. */
static void settle(struct written_world *w)
{
    bool is_done = false;

    memset(w->m.cut, 0, sizeof(w->m.cut));
    for (unsigned i = 0; i < MEMBERS; i++)
        if (!w->m.nodes[i].is_up)
            member_node_start(&w->m.nodes[i]);
    for (unsigned ms = 0; ms < 60000 && !is_done; ms += 10) {
        is_done = member_world_leader(&w->m) != NULL;
        for (unsigned i = 0; i < MEMBERS; i++)
            is_done = is_done && seeding(&w->m.nodes[i]) == SEED_NONE;
        member_world_run_ms(&w->m, 10);
    }
    assert_true(is_done);
    written_write(w, member_world_wait_for_leader(&w->m), 8);
    member_world_run_ms(&w->m, 500);
    written_leader_check(w, member_world_wait_for_leader(&w->m));
    written_all_are_equal(w);
    for (unsigned i = 0; i < MEMBERS; i++) {
        assert_false(w->m.nodes[i].has_failed);
        stores_are_equal(kv_memory_kv(w->m.nodes[0].below),
                         kv_memory_kv(w->m.nodes[i].below));
    }
}

static struct written_world *world_make(uint64_t seed)
{
    struct written_world *w = malloc(sizeof(*w));

    assert_non_null(w);
    written_init(w, seed);
    return w;
}

static void world_end(struct written_world *w)
{
    written_free(w);
    free(w);
}

/* Writes values for so many ms, wherever a member leads. */
static void write_for(struct written_world *w, unsigned ms, size_t len)
{
    for (unsigned i = 0; i < ms; i += 20) {
        if (member_world_leader(&w->m) != NULL)
            written_write(w, member_world_leader(&w->m), len);
        member_world_run_ms(&w->m, 20);
    }
}

/* Returns a member that does not lead. */
static struct member_node *follower(struct written_world *w)
{
    return &w->m.nodes[(member_world_wait_for_leader(&w->m)->i + 1) % MEMBERS];
}

static void each_loss_is_made_good(void **state)
{
    static const enum seed_doubt doubts[LOSS_N] = { SEED_VOTE_LOST, SEED_LOG_LOST,
                                                    SEED_VOTE_LOST, SEED_LOG_LOST };

    (void)state;
    for (unsigned loss = 0; loss < LOSS_N; loss++) {
        struct written_world *w = world_make(1 + loss);
        struct member_node *n = follower(w);
        struct member_status s;

        write_for(w, 600, 100 << 10); /* several chunks */
        member_node_kill(n, false);
        write_for(w, 200, 100 << 10);
        lose(n, (enum loss)loss);
        member_node_start(n);
        assert_int_equal(seeding(n), doubts[loss]);
        write_for(w, 600, 20 << 10);
        settle(w);
        member_status(n->member, &s);
        assert_int_equal(s.seeding, SEED_NONE);
        /* a second loss, of another member: this one counts again */
        n = follower(w);
        member_node_kill(n, true);
        write_for(w, 200, 8);
        assert_non_null(member_world_leader(&w->m));
        settle(w);
        world_end(w);
    }
}

static void a_member_that_was_away_for_too_long_copies_the_store(void **state)
{
    struct written_world *w = world_make(10);
    struct member_node *n = follower(w);
    struct member_status s;

    (void)state;
    for (unsigned i = 0; i < MEMBERS; i++) { /* with a smaller log */
        w->m.keep_bytes = 3 << 20;
        member_node_kill(&w->m.nodes[i], false);
        member_node_start(&w->m.nodes[i]);
    }
    write_for(w, 500, 64 << 10);
    member_node_kill(n, false);
    write_for(w, 1500, 256 << 10);
    member_status(member_world_wait_for_leader(&w->m)->member, &s);
    assert_true(s.first > 30); /* the entries that n lacks are gone */
    member_node_start(n);
    for (unsigned i = 0; i < 3000 && seeding(n) != SEED_BEHIND; i++)
        member_world_run_ms(&w->m, 1);
    assert_int_equal(seeding(n), SEED_BEHIND);
    write_for(w, 300, 64 << 10);
    settle(w);
    world_end(w);
}

/* The newest members of a group of three: one has lost its vote, one is away. */
static void without_its_vote_a_member_elects_nobody(void **state)
{
    struct written_world *w = world_make(11);
    struct member_node *n = follower(w), *a = member_world_wait_for_leader(&w->m);
    struct member_node *b = &w->m.nodes[3 - n->i - a->i];
    unsigned n_acked;

    (void)state;
    write_for(w, 200, 8);
    member_node_kill(n, false);
    lose(n, LOSS_VOTE);
    member_node_kill(b, false);
    member_node_start(n);
    member_world_run_ms(&w->m, 2000);
    n_acked = w->n_acked;
    write_for(w, 8000, 8);
    assert_int_equal(seeding(n), SEED_VOTE_LOST);
    assert_null(member_world_leader(&w->m));
    assert_int_equal(w->n_acked, n_acked);
    settle(w);
    assert_true(w->n_acked > n_acked);
    world_end(w);
}

/* A member that is only behind needs one other member, leader or not. */
static void a_member_that_is_behind_needs_no_leader(void **state)
{
    struct written_world *w = world_make(12);
    struct member_node *n = follower(w), *a = member_world_wait_for_leader(&w->m);
    struct member_node *b = &w->m.nodes[3 - n->i - a->i];

    (void)state;
    w->m.is_lossless = true; /* the log must not be trimmed before the copy ends */
    for (unsigned i = 0; i < MEMBERS; i++) {
        w->m.keep_bytes = 3 << 20;
        member_node_kill(&w->m.nodes[i], false);
        member_node_start(&w->m.nodes[i]);
    }
    member_world_wait_for_leader(&w->m);
    member_node_kill(n, false);
    write_for(w, 1500, 256 << 10);
    member_node_kill(b, false);
    member_node_start(n);
    write_for(w, 20000, 8);
    assert_non_null(member_world_leader(&w->m)); /* without b */
    settle(w);
    world_end(w);
}

static void a_rate_makes_it_slower(void **state)
{
    uint64_t took_ms[2];

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        struct written_world *w = world_make(14);
        struct member_node *n = follower(w);

        write_for(w, 600, 100 << 10);
        member_node_kill(n, false);
        member_node_empty(n);
        w->m.seed_rate = i == 0 ? 0 : 500 << 10;
        member_node_start(n);
        for (took_ms[i] = 0; seeding(n) != SEED_NONE; took_ms[i]++)
            member_world_run_ms(&w->m, 1);
        settle(w);
        world_end(w);
    }
    assert_true(took_ms[1] > took_ms[0] + 2000);
}

/* The power of the joiner fails at each request to its disk, and after each few ms. */
static void a_joiner_that_crashes_goes_on(void **state)
{
    (void)state;
    for (unsigned at = 1; at < 60; at++) {
        struct written_world *w = world_make(20 + at);
        struct member_node *n = follower(w);

        write_for(w, 300, 200 << 10);
        member_node_kill(n, true);
        lose(n, at % LOSS_N);
        member_node_start(n);
        assert_int_not_equal(seeding(n), SEED_NONE);
        if (at % 2 == 0)
            n->disk.cut_at = n->disk.n_requests + at / 2;
        for (unsigned ms = 0; ms < 3 * at && !n->disk.is_cut; ms++)
            member_world_run_ms(&w->m, 1);
        member_node_kill(n, true);
        member_node_start(n);
        write_for(w, 100, 200);
        settle(w);
        world_end(w);
    }
}

/* Returns whether no member lacks anything now. A loss while another member copies, or is
 * about to, is more than a group of three survives without an operator. */
static bool all_are_whole(struct written_world *w, const struct member_node *lost)
{
    struct member_status s[MEMBERS];
    uint64_t commit = 0;

    for (unsigned i = 0; i < MEMBERS; i++) {
        member_status(w->m.nodes[i].member, &s[i]);
        if (s[i].seeding != SEED_NONE)
            return false;
        if (s[i].commit > commit)
            commit = s[i].commit;
    }
    for (unsigned i = 0; i < MEMBERS; i++)
        if (s[i].last < commit)
            return false;
    return lost == NULL || member_world_leader(&w->m) != NULL;
}

/* Starts one of the members that are down. */
static void start_one(struct written_world *w)
{
    for (unsigned i = 0; i < MEMBERS; i++)
        if (!w->m.nodes[i].is_up) {
            member_node_start(&w->m.nodes[i]);
            return;
        }
}

static unsigned n_up(const struct written_world *w)
{
    unsigned n = 0;

    for (unsigned i = 0; i < MEMBERS; i++)
        n += w->m.nodes[i].is_up;
    return n;
}

static void by_chance(void **state)
{
    unsigned n_losses = 0, n_crashes = 0;

    (void)state;
    for (uint64_t seed = 1000; seed < 1000 + unit_seeds(240); seed++) {
        struct written_world *w = world_make(seed);
        struct member_node *lost = NULL; /* only this one has lost something */

        w->m.keep_bytes = seed % 3 == 0 ? 1 : 6 << 20; /* logs are trimmed at once */
        for (unsigned i = 0; i < MEMBERS; i++) {
            member_node_kill(&w->m.nodes[i], false);
            member_node_start(&w->m.nodes[i]);
        }
        write_for(w, 100, 1 + env_virtual_below(&w->v, 100 << 10));
        for (unsigned i = 0; i < 120; i++) {
            struct member_node *n = &w->m.nodes[env_virtual_below(&w->v, MEMBERS)];

            switch (env_virtual_below(&w->v, 24)) {
            case 0:
            case 1:
                if (n_up(w) == MEMBERS && all_are_whole(w, lost)) {
                    member_node_kill(n, env_virtual_below(&w->v, 2) == 0);
                    lose(n, (enum loss)env_virtual_below(&w->v, LOSS_N));
                    lost = n;
                    n_losses++;
                }
                break;
            case 2:
                if (n->is_up && n_up(w) > 1) {
                    n_crashes += seeding(n) != SEED_NONE;
                    member_node_kill(n, env_virtual_below(&w->v, 2) == 0);
                }
                break;
            case 3:
            case 4:
            case 5:
                start_one(w);
                break;
            case 6:
                for (unsigned j = 0; j < MEMBERS; j++)
                    w->m.cut[n->i][j] = env_virtual_below(&w->v, 2) == 0;
                break;
            case 7:
            case 8:
                memset(w->m.cut, 0, sizeof(w->m.cut));
                break;
            case 9:
                if (n->is_up)
                    member_transfer(n->member, 0);
                break;
            default:
                if (n->is_up && n->leads) /* a large one is in several entries */
                    written_write(w, n,
                                  env_virtual_below(&w->v, 100) == 0
                                      ? 2 << 20
                                      : 8 + env_virtual_below(&w->v, 30000));
            }
            member_world_run_ms(&w->m, (unsigned)env_virtual_below(&w->v, 60));
            if (member_world_leader(&w->m) != NULL)
                written_leader_check(w, member_world_leader(&w->m));
        }
        settle(w);
        world_end(w);
    }
    assert_true(n_losses > 100 / UNIT_STEP && n_crashes > 20 / UNIT_STEP);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_loss_is_made_good),
        cmocka_unit_test(a_member_that_was_away_for_too_long_copies_the_store),
        cmocka_unit_test(without_its_vote_a_member_elects_nobody),
        cmocka_unit_test(a_member_that_is_behind_needs_no_leader),
        cmocka_unit_test(a_rate_makes_it_slower),
        cmocka_unit_test(a_joiner_that_crashes_goes_on),
        cmocka_unit_test(by_chance),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
