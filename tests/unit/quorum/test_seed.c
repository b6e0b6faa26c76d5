/*
 * test_seed.c - a member that has lost its store, log or vote, or was away for too long,
 * copies the store of another one while the others work; whatever fails meanwhile. Each
 * test runs with acknowledge: disk and with memory: *state says which.
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

/* Ends a member that will lose something. Damage to its log shows where that had been
 * synced: behind it lies what the end of the process may have torn. */
static void end_before(struct member_node *n, enum loss loss, bool power)
{
    if (loss == LOSS_LOG && n->w->is_lazy) {
        member_node_stop(n);
        if (power)
            member_node_lose_power(n);
    } else {
        member_node_kill(n, power);
    }
}

/* Takes something from a member that is down. */
static void lose(struct written_world *w, struct member_node *n, enum loss loss)
{
    written_fault(w, n);
    if (loss == LOSS_VOTE) {
        member_node_spoil(n, "vote", 0, 2 * MEM_PAGE);
    } else if (loss == LOSS_LOG) {
        for (unsigned i = 0; i < 4; i++) {
            char path[32];

            snprintf(path, sizeof(path), "journal/0.%u", i);
            member_node_spoil(n, path, MEM_PAGE, 64 * MEM_PAGE);
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
        is_done = member_world_leader(&w->m) != NULL && written_all_take_part(w);
        member_world_run_ms(&w->m, 10);
        written_look(w);
    }
    assert_true(is_done);
    written_write(w, member_world_wait_for_leader(&w->m), 8);
    member_world_run_ms(&w->m, 2000); /* synced, and known to be stable */
    assert_false(w->may_lose);
    written_look(w);
    written_all_are_equal(w);
    for (unsigned i = 0; i < MEMBERS; i++) {
        assert_false(w->m.nodes[i].has_failed);
        stores_are_equal(kv_memory_kv(w->m.nodes[0].below),
                         kv_memory_kv(w->m.nodes[i].below));
    }
}

static struct written_world *world_make(void **state, uint64_t seed)
{
    struct written_world *w = malloc(sizeof(*w));

    assert_non_null(w);
    written_init_as(w, seed, **(bool **)state);
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

static void on_copied(struct kv_done *done, int rc)
{
    assert_int_equal(rc, 0);
    done->fn = NULL;
}

/* Starts all members with another size of their logs. */
static void restart_with_log(struct written_world *w, uint64_t keep_bytes)
{
    w->m.keep_bytes = keep_bytes;
    for (unsigned i = 0; i < MEMBERS; i++) {
        member_node_kill(&w->m.nodes[i], false);
        member_node_start(&w->m.nodes[i]);
    }
    member_world_wait_for_leader(&w->m);
}

/* Writes while a member is away, until its leader has no more what it lacks. */
static void leave_behind(struct written_world *w, struct member_node *n)
{
    struct member_status s, now = { .first = 0 };

    restart_with_log(w, 3 << 20);
    member_status(n->member, &s);
    member_node_kill(n, false);
    for (unsigned i = 0; i < 100 && now.first <= s.last + 1; i++) {
        write_for(w, 200, 256 << 10);
        member_status(member_world_wait_for_leader(&w->m)->member, &now);
    }
    assert_true(now.first > s.last + 1);
}

static void each_loss_is_made_good(void **state)
{
    static const enum seed_doubt doubts[LOSS_N] = { SEED_VOTE_LOST, SEED_LOG_LOST,
                                                    SEED_VOTE_LOST, SEED_LOG_LOST };

    for (unsigned loss = 0; loss < LOSS_N; loss++) {
        struct written_world *w = world_make(state, 1 + loss);
        struct member_node *n = follower(w);
        struct member_status s;

        write_for(w, 600, 100 << 10); /* several chunks */
        end_before(n, (enum loss)loss, false);
        write_for(w, 200, 100 << 10);
        lose(w, n, (enum loss)loss);
        member_node_start(n);
        assert_int_equal(seeding(n), doubts[loss]);
        write_for(w, 600, 20 << 10);
        settle(w);
        member_status(n->member, &s);
        assert_int_equal(s.seeding, SEED_NONE);
        /* a second loss, of another member: this one counts again */
        n = follower(w);
        member_node_kill(n, true);
        written_fault(w, n);
        write_for(w, 200, 8);
        assert_non_null(member_world_leader(&w->m));
        settle(w);
        assert_int_equal(w->n_may_lose, 0);
        world_end(w);
    }
}

static void a_member_that_was_away_for_too_long_copies_the_store(void **state)
{
    struct written_world *w = world_make(state, 10);
    struct member_node *n = follower(w);

    write_for(w, 500, 64 << 10);
    settle(w); /* a member that copies would leave no majority */
    leave_behind(w, n);
    member_node_start(n);
    for (unsigned i = 0; i < 3000 && seeding(n) != SEED_BEHIND; i++)
        member_world_run_ms(&w->m, 1);
    assert_int_equal(seeding(n), SEED_BEHIND);
    write_for(w, 300, 64 << 10);
    settle(w);
    world_end(w);
}

/* Image of a member that is down: its files, and its store. */
enum { IMAGE_FILES = 6, IMAGE_BYTES = 3 << 20 };
struct image {
    uint8_t *bytes[IMAGE_FILES]; /* owned; NULL: there is no such file */
    uint64_t sizes[IMAGE_FILES];
    struct kv_memory *below; /* owned */
};

static const char *const image_paths[IMAGE_FILES] = { "vote",        "heard",
                                                      "journal/0.0", "journal/0.1",
                                                      "journal/0.2", "journal/0.3" };

/* Copies a store into a new one. */
static struct kv_memory *store_copy(struct written_world *w, struct kv_memory *from)
{
    struct kv_memory *to;
    struct kv_iter *it;

    assert_int_equal(kv_memory_open(&w->v.env, &to), 0);
    assert_int_equal(kv_iter_open(kv_memory_kv(from), &it), 0);
    for (kv_iter_seek(it, "", 0); kv_iter_valid(it); kv_iter_next(it)) {
        struct kv_done put = { .fn = on_copied }, synced = { .fn = on_copied };
        struct kv_item item = { .key = NULL };

        item.key = kv_iter_key(it, &item.key_len);
        item.val = kv_iter_val(it, &item.val_len);
        kv_commit(kv_memory_kv(to), &item, 1, &put);
        kv_sync(kv_memory_kv(to), &synced);
        env_virtual_run_posted(&w->v);
        assert_true(put.fn == NULL && synced.fn == NULL);
    }
    kv_iter_close(it);
    return to;
}

static void image_take(struct written_world *w, struct member_node *n, struct image *im)
{
    for (unsigned i = 0; i < IMAGE_FILES; i++) {
        const struct disk_file *f = memdisk_find(&n->disk, image_paths[i]);

        im->bytes[i] = f == NULL ? NULL : malloc(IMAGE_BYTES);
        im->sizes[i] = f == NULL ? 0 : f->size;
        assert_true(im->sizes[i] <= IMAGE_BYTES);
        if (f != NULL)
            memdisk_peek(f, 0, im->bytes[i], im->sizes[i]);
    }
    im->below = store_copy(w, n->below);
}

/* Puts an image back, and frees it. Files that it lacks become empty. */
static void image_restore(struct member_node *n, struct image *im)
{
    for (unsigned i = 0; i < IMAGE_FILES; i++) {
        struct disk_file *f = memdisk_find(&n->disk, image_paths[i]);

        assert_true(f != NULL || im->bytes[i] == NULL);
        if (f == NULL)
            continue;
        memdisk_cut_file(f, 0);
        if (im->bytes[i] != NULL)
            memdisk_poke(&n->disk, f, 0, im->bytes[i], im->sizes[i]);
        free(im->bytes[i]);
    }
    kv_memory_close(n->below);
    n->below = im->below;
}

/* All are down, and one of them comes back from an older image. No leader knows of it,
 * but the others remember what it had. */
static void an_older_image_is_noticed_without_a_leader(void **state)
{
    for (unsigned at = 0; at < MEMBERS; at++) {
        struct written_world *w = world_make(state, 60 + at);
        struct member_node *n = &w->m.nodes[at], *up = &w->m.nodes[(at + 1) % MEMBERS];
        struct member_node *late = &w->m.nodes[(at + 2) % MEMBERS];
        unsigned n_acked;
        struct image im;

        write_for(w, 300, 200);
        member_node_stop(n);
        image_take(w, n, &im);
        write_for(w, 500, 200);
        member_node_start(n);
        write_for(w, 2000, 200);
        member_world_run_ms(&w->m, 2000); /* all have heard of all */
        for (unsigned i = 0; i < MEMBERS; i++)
            member_node_stop(&w->m.nodes[i]);
        image_restore(n, &im);
        n_acked = w->n_acked;
        member_node_start(up);
        member_node_start(n);
        /* a majority, but n must not vote before it has all again */
        write_for(w, 8000, 8);
        assert_int_equal(seeding(n), SEED_VOTE_LOST);
        assert_null(member_world_leader(&w->m));
        assert_int_equal(w->n_acked, n_acked);
        member_node_start(late);
        settle(w);
        assert_true(w->n_acked > n_acked);
        member_node_stop(n); /* not taken for an old one again */
        member_node_start(n);
        write_for(w, 3000, 8);
        assert_int_equal(seeding(n), SEED_NONE);
        world_end(w);
    }
}

/* The newest members of a group of three: one has lost its vote, one is away. */
static void without_its_vote_a_member_elects_nobody(void **state)
{
    struct written_world *w = world_make(state, 11);
    struct member_node *n = follower(w), *a = member_world_wait_for_leader(&w->m);
    struct member_node *b = &w->m.nodes[3 - n->i - a->i];
    unsigned n_acked;

    write_for(w, 200, 8);
    member_node_kill(n, false);
    lose(w, n, LOSS_VOTE);
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
    struct written_world *w = world_make(state, 12);
    struct member_node *n = follower(w), *a = member_world_wait_for_leader(&w->m);
    struct member_node *b = &w->m.nodes[3 - n->i - a->i];

    w->m.is_lossless = true; /* the log must not be trimmed before the copy ends */
    leave_behind(w, n);
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

    for (unsigned i = 0; i < 2; i++) {
        struct written_world *w = world_make(state, 14);
        struct member_node *n = follower(w);

        w->m.is_lossless = true; /* a lost question costs seconds */
        write_for(w, 600, 100 << 10);
        member_world_run_ms(&w->m, 2000); /* stores have it */
        member_node_kill(n, false);
        lose(w, n, LOSS_ALL);
        w->m.seed_rate = i == 0 ? 0 : 500 << 10;
        member_node_start(n);
        for (took_ms[i] = 0; seeding(n) != SEED_NONE; took_ms[i]++)
            member_world_run_ms(&w->m, 1);
        settle(w);
        world_end(w);
    }
    print_message("%u ms, %u ms\n", (unsigned)took_ms[0], (unsigned)took_ms[1]);
    assert_true(took_ms[1] > took_ms[0] + 2000);
}

/* The store is whole: all that is copied are entries. */
static void a_rate_holds_for_entries(void **state)
{
    struct written_world *w = world_make(state, 16);
    struct member_node *n = follower(w);
    struct member_status s = { .seed_bytes = 0 };
    uint64_t took_ms = 0, bytes = 0;

    w->m.is_lossless = true;
    member_node_kill(n, false);
    write_for(w, 600, 100 << 10);
    member_world_run_ms(&w->m, 2000); /* all of it may be given */
    lose(w, n, LOSS_VOTE);
    w->m.seed_rate = 500 << 10;
    member_node_start(n);
    for (; seeding(n) != SEED_NONE; took_ms++) {
        member_status(n->member, &s);
        assert_true(s.seed_has_keys || s.seed_index == 0);
        bytes = s.seed_bytes;
        member_world_run_ms(&w->m, 1);
    }
    print_message("%u KiB in %u ms\n", (unsigned)(bytes >> 10), (unsigned)took_ms);
    assert_true(bytes > 2 << 20);
    assert_true(bytes <= (500 << 10) * took_ms / 1000 + SEED_PAYLOAD);
    settle(w);
    world_end(w);
}

/* The log grows by four times the rate: a copy that kept to it would never end. */
static void a_rate_below_that_of_changes_lets_a_copy_end(void **state)
{
    struct written_world *w = world_make(state, 17);
    struct member_node *n;
    uint64_t took_ms = 0;

    w->m.is_lossless = true;
    restart_with_log(w, 16 << 20);
    n = follower(w);
    write_for(w, 1000, 200 << 10);
    member_world_run_ms(&w->m, 2000); /* stores have it: several chunks */
    member_node_kill(n, false);
    lose(w, n, LOSS_ALL);
    w->m.seed_rate = 500 << 10;
    member_node_start(n);
    for (; seeding(n) != SEED_NONE && took_ms < 60000; took_ms += 100) {
        write_for(w, 20, 200 << 10);
        member_world_run_ms(&w->m, 80);
    }
    print_message("%u ms\n", (unsigned)took_ms);
    assert_int_equal(seeding(n), SEED_NONE);
    settle(w);
    world_end(w);
}

/* The leader gives the first keys at most, before the member has heard who leads, and the
 * newest entries. */
static void the_leader_is_spared(void **state)
{
    struct written_world *w = world_make(state, 14);
    struct member_node *n = follower(w), *leader;
    uint64_t bytes = 0, of_leader = 0;

    w->m.is_lossless = true;
    write_for(w, 600, 100 << 10);
    member_world_run_ms(&w->m, 2000); /* stores have it */
    member_node_kill(n, false);
    lose(w, n, LOSS_ALL);
    w->m.seed_rate = 500 << 10;
    leader = member_world_wait_for_leader(&w->m);
    member_node_start(n);
    while (seeding(n) != SEED_NONE) {
        struct member_status s;

        member_status(n->member, &s);
        of_leader += s.seed_from == leader->id ? s.seed_bytes - bytes : 0;
        bytes = s.seed_bytes;
        member_world_run_ms(&w->m, 1);
    }
    assert_ptr_equal(member_world_leader(&w->m), leader);
    assert_true(bytes > SEED_PAYLOAD + SEED_PAYLOAD / 2);
    assert_true(of_leader < SEED_PAYLOAD + (64 << 10));
    settle(w);
    world_end(w);
}

/* The power of the joiner fails at each request to its disk, and after each few ms. */
static void a_joiner_that_crashes_goes_on(void **state)
{
    for (unsigned at = 1; at < 60; at += UNIT_STEP) {
        struct written_world *w = world_make(state, 20 + at);
        struct member_node *n = follower(w);

        write_for(w, 300, 200 << 10);
        end_before(n, at % LOSS_N, true);
        lose(w, n, at % LOSS_N);
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
        assert_int_equal(w->n_may_lose, 0);
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
    unsigned n_losses = 0, n_crashes = 0, n_may_lose = 0, n_lost = 0;

    for (uint64_t seed = 1000; seed < 1000 + unit_seeds(240); seed += UNIT_STEP) {
        struct written_world *w = world_make(state, seed);
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
                    bool power = env_virtual_below(&w->v, 2) == 0;
                    enum loss loss = (enum loss)env_virtual_below(&w->v, LOSS_N);

                    end_before(n, loss, power);
                    lose(w, n, loss);
                    lost = n;
                    n_losses++;
                }
                break;
            case 2:
                if (n->is_up && n_up(w) > 1) {
                    bool power = env_virtual_below(&w->v, 2) == 0;

                    n_crashes += seeding(n) != SEED_NONE;
                    member_node_kill(n, power);
                    if (power)
                        written_fault(w, n);
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
            case 10:
                if (n->is_up && n->leads)
                    written_sync(w, n);
                break;
            default:
                if (n->is_up && n->leads) /* a large one is in several entries */
                    written_write(w, n,
                                  env_virtual_below(&w->v, 100) == 0
                                      ? 2 << 20
                                      : 8 + env_virtual_below(&w->v, 30000));
            }
            member_world_run_ms(&w->m, (unsigned)env_virtual_below(&w->v, 60));
            written_look(w);
        }
        settle(w);
        n_may_lose += w->n_may_lose;
        n_lost += w->n_lost;
        world_end(w);
    }
    assert_true(n_losses > 100 / UNIT_STEP && n_crashes > 20 / UNIT_STEP);
    if (**(bool **)state)
        assert_true(n_may_lose > 20 / UNIT_STEP && n_lost > 0);
    else
        assert_int_equal(n_may_lose + n_lost, 0);
}

/* One member copies since it was away, and acknowledges nothing; a second one loses its
 * power: the third one has all that it may have lost. Whichever of both led. */
static void one_that_is_behind_and_one_without_power_lose_nothing(void **state)
{
    for (unsigned i = 0; i < 4; i++) {
        struct written_world *w = world_make(state, 15 + i);
        struct member_node *n = follower(w), *y;

        leave_behind(w, n);
        member_world_run_ms(&w->m, 2000);
        y = member_world_wait_for_leader(&w->m);
        if (i % 2 == 0)
            y = &w->m.nodes[3 - n->i - y->i];
        w->m.seed_rate = 2 << 20;
        member_node_start(n);
        for (unsigned ms = 0; ms < 3000 && seeding(n) != SEED_BEHIND; ms++)
            member_world_run_ms(&w->m, 1);
        assert_int_equal(seeding(n), SEED_BEHIND);
        write_for(w, 200, 8);
        member_node_kill(y, true);
        written_fault(w, y);
        member_node_start(y);
        assert_int_equal(seeding(n), SEED_BEHIND);
        settle(w);
        assert_int_equal(w->losses, 0);
        world_end(w);
    }
}

/* A test with acknowledge: disk, and with acknowledge: memory. */
#define IN_BOTH_MODES(fn)                         \
    { #fn ", disk", fn, NULL, NULL, &modes[0] },  \
    {                                             \
        #fn ", memory", fn, NULL, NULL, &modes[1] \
    }

int main(void)
{
    static bool modes[2] = { false, true };
    const struct CMUnitTest tests[] = {
        IN_BOTH_MODES(each_loss_is_made_good),
        IN_BOTH_MODES(an_older_image_is_noticed_without_a_leader),
        IN_BOTH_MODES(a_member_that_was_away_for_too_long_copies_the_store),
        IN_BOTH_MODES(without_its_vote_a_member_elects_nobody),
        IN_BOTH_MODES(a_member_that_is_behind_needs_no_leader),
        IN_BOTH_MODES(a_rate_makes_it_slower),
        IN_BOTH_MODES(a_rate_holds_for_entries),
        IN_BOTH_MODES(a_rate_below_that_of_changes_lets_a_copy_end),
        IN_BOTH_MODES(the_leader_is_spared),
        IN_BOTH_MODES(a_joiner_that_crashes_goes_on),
        IN_BOTH_MODES(one_that_is_behind_and_one_without_power_lose_nothing),
        IN_BOTH_MODES(by_chance),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
