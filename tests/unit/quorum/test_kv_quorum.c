/*
 * test_kv_quorum.c - the kv of a member: what a commit shows before and after the quorum
 * has it, what another leader's entries do, and the bytes of batches.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/bytes.h"
#include "common/env/key_map.h"
#include "exportd/quorum/kv_quorum.h"
#include "exportd/quorum/seed_store.h"
#include "exportd/store/key.h"
#include "tests/lib/env_virtual.h"
#include "tests/lib/kv_memory.h"
#include "tests/unit/unit.h"

enum { LOG_MAX = 4096, KEYS = 40 };

/* A member that is not there: it keeps what is submitted until the test commits it. */
struct fake {
    struct env_virtual v;
    struct kv_memory *below;
    struct kv_quorum *q;
    struct kv_quorum_hooks hooks;
    struct quorum_entry *log[LOG_MAX]; /* [i]: entry i + 1 */
    unsigned n_log, n_applied;
    uint64_t term;
    uint64_t told_applied, told_synced, asked_ns;
    uint64_t lease_until_ns, now_ns;
    unsigned n_failed, n_wanted, n_seeded;
    int failure;  /* the error that is expected; 0: -EIO */
    bool is_lazy; /* committed entries are not stable at once */
};

struct waiter {
    struct kv_done done;
    int rc;
    unsigned n;
};

static void on_done(struct kv_done *done, int rc)
{
    struct waiter *w = (struct waiter *)done;

    w->rc = rc;
    w->n++;
}

static struct waiter waiter(void)
{
    return (struct waiter){ .done.fn = on_done };
}

static void on_submit(void *arg, struct quorum_entry *const *parts, unsigned n_parts)
{
    struct fake *f = arg;

    for (unsigned i = 0; i < n_parts; i++) {
        assert_true(f->n_log < LOG_MAX);
        f->log[f->n_log] = quorum_entry_use(parts[i]);
        f->log[f->n_log]->e.index = f->n_log + 1;
        f->log[f->n_log++]->e.term = f->term;
    }
}

static void on_applied(void *arg, uint64_t index, uint64_t term)
{
    struct fake *f = arg;

    assert_true(index >= f->told_applied && term > 0);
    f->told_applied = index;
}

static void on_synced(void *arg, uint64_t index)
{
    ((struct fake *)arg)->told_synced = index;
}

static void on_confirm(void *arg, uint64_t asked_ns)
{
    ((struct fake *)arg)->asked_ns = asked_ns;
}

static uint64_t lease_until(void *arg)
{
    return ((struct fake *)arg)->lease_until_ns;
}

static uint64_t now(void *arg)
{
    return ((struct fake *)arg)->now_ns;
}

static void on_failed(void *arg, int rc, const char *what)
{
    struct fake *f = arg;

    assert_int_equal(rc, f->failure != 0 ? f->failure : -EIO);
    assert_non_null(what);
    f->n_failed++;
}

static void on_want(void *arg)
{
    ((struct fake *)arg)->n_wanted++;
}

static int quorum_open(struct fake *f)
{
    struct kv_quorum_config config = { .env = &f->v.env,
                                       .below = kv_memory_kv(f->below),
                                       .hooks = &f->hooks };
    struct err err = { 0 };

    return kv_quorum_open(&config, &f->q, &err);
}

static void fake_open(struct fake *f)
{
    *f = (struct fake){ .term = 1 };
    env_virtual_init(&f->v, 1);
    f->hooks = (struct kv_quorum_hooks){ on_submit,   on_applied, on_synced, on_confirm,
                                         lease_until, now,        on_failed, f,
                                         NULL,        on_want };
    assert_int_equal(kv_memory_open(&f->v.env, &f->below), 0);
    assert_int_equal(quorum_open(f), 0);
}

static void log_cut(struct fake *f, unsigned n)
{
    while (f->n_log > n)
        quorum_entry_free(f->log[--f->n_log]);
}

static void fake_close(struct fake *f)
{
    kv_quorum_depose(f->q);
    env_virtual_run_posted(&f->v);
    kv_quorum_close(f->q);
    log_cut(f, 0);
    kv_memory_close(f->below);
    env_virtual_close(&f->v);
}

/* The next n entries are committed. */
static void apply(struct fake *f, unsigned n)
{
    for (; n > 0 && f->n_applied < f->n_log; n--)
        kv_quorum_apply(f->q, f->log[f->n_applied++]);
    if (!f->is_lazy)
        kv_quorum_stable(f->q, f->n_applied);
}

static void entry_add(struct fake *f, enum raft_entry_kind kind, const void *data,
                      size_t len)
{
    struct quorum_entry *e = quorum_entry_new(kind, len);

    assert_non_null(e);
    memcpy(e->bytes, data, len);
    on_submit(f, &e, 1);
    quorum_entry_free(e);
}

/* A list of member 7 and another one; 0: alone. */
static void list_add(struct fake *f, uint64_t other)
{
    uint8_t buf[RAFT_CONFIG_BYTES_MAX];
    struct raft_config c = { 0 };

    assert_int_equal(raft_config_set(&c, 7, RAFT_ROLE_VOTER, "m1:1"), 0);
    if (other != 0)
        assert_int_equal(raft_config_set(&c, other, RAFT_ROLE_VOTER, "m2:1"), 0);
    entry_add(f, RAFT_ENTRY_CONFIG, buf, raft_config_encode(&c, buf));
}

static void members_add(struct fake *f)
{
    list_add(f, 0);
}

/* A list of members and the first entry of a leader are applied; we lead. */
static void lead(struct fake *f)
{
    if (f->n_log == 0)
        members_add(f);
    entry_add(f, RAFT_ENTRY_EMPTY, "", 1);
    apply(f, UINT32_MAX);
    env_virtual_run_posted(&f->v);
    kv_quorum_lead(f->q);
}

static struct kv_item put(const char *key, const char *val)
{
    return (struct kv_item){ key, strlen(key), val, val == NULL ? 0 : strlen(val) };
}

static void commit_one(struct fake *f, const char *key, const char *val, struct waiter *w)
{
    struct kv_item item = put(key, val);

    kv_commit(kv_quorum_kv(f->q), &item, 1, &w->done);
}

/* Asserts the value of a key; NULL: there is none. */
static void expect(struct kv *kv, const char *key, const char *val)
{
    void *found = NULL;
    size_t len;
    int rc = kv_get(kv, key, strlen(key), &found, &len);

    assert_int_equal(rc, val == NULL ? -ENOENT : 0);
    if (val != NULL) {
        assert_int_equal(len, strlen(val));
        assert_memory_equal(found, val, len);
    }
    free(found);
}

static void a_commit_is_seen_at_once_and_done_when_the_quorum_has_it(void **state)
{
    struct waiter a = waiter(), b = waiter(), s = waiter(), e = waiter();
    struct fake f;

    (void)state;
    fake_open(&f);
    lead(&f);
    commit_one(&f, "a", "1", &a);
    commit_one(&f, "a", "2", &b);
    kv_commit(kv_quorum_kv(f.q), NULL, 0, &e.done); /* empty: done with those before */
    kv_sync(kv_quorum_kv(f.q), &s.done);
    expect(kv_quorum_kv(f.q), "a", "2");
    expect(kv_memory_kv(f.below), "a", NULL);
    env_virtual_run_posted(&f.v);
    assert_int_equal(a.n + b.n + s.n + e.n, 0);
    apply(&f, 1);
    env_virtual_run_posted(&f.v);
    assert_int_equal(a.n, 1);
    assert_int_equal(b.n + s.n + e.n, 0);
    expect(kv_memory_kv(f.below), "a", "1");
    expect(kv_quorum_kv(f.q), "a", "2");
    apply(&f, 1);
    env_virtual_run_posted(&f.v);
    assert_true(b.n == 1 && s.n == 1 && e.n == 1);
    assert_int_equal(a.rc | b.rc | s.rc | e.rc, 0);
    assert_int_equal(f.told_applied, f.n_log);
    expect(kv_memory_kv(f.below), "a", "2");
    commit_one(&f, "a", NULL, &a);
    expect(kv_quorum_kv(f.q), "a", NULL);
    fake_close(&f);
}

/* Committed entries that are not stable end commits; syncs and the kv below wait. A sync
 * waits for no later commit: with many of them there would always be another one. */
static void a_sync_and_the_kv_below_wait_until_entries_are_stable(void **state)
{
    struct waiter a = waiter(), b = waiter(), s = waiter(), t = waiter();
    struct fake f;

    (void)state;
    fake_open(&f);
    lead(&f);
    f.is_lazy = true;
    commit_one(&f, "a", "1", &a);
    kv_sync(kv_quorum_kv(f.q), &s.done);
    assert_int_equal(f.n_wanted, 1);
    commit_one(&f, "b", "1", &b);
    apply(&f, 2);
    env_virtual_run_posted(&f.v);
    assert_true(a.n == 1 && a.rc == 0 && b.n == 1 && b.rc == 0);
    assert_int_equal(s.n, 0);
    expect(kv_memory_kv(f.below), "a", NULL);
    expect(kv_quorum_kv(f.q), "a", "1");
    kv_quorum_stable(f.q, f.n_applied - 1);
    env_virtual_run_posted(&f.v);
    assert_true(s.n == 1 && s.rc == 0);
    kv_sync(kv_quorum_kv(f.q), &t.done); /* for the later one, which is committed */
    env_virtual_run_posted(&f.v);
    assert_int_equal(t.n, 0);
    expect(kv_memory_kv(f.below), "a", "1");
    expect(kv_memory_kv(f.below), "b", NULL);
    expect(kv_quorum_kv(f.q), "b", "1");
    kv_quorum_stable(f.q, f.n_applied);
    env_virtual_run_posted(&f.v);
    assert_true(t.n == 1 && t.rc == 0);
    assert_int_equal(f.told_applied, f.n_log);
    fake_close(&f);
}

/* ---- writes of several entries ---- */

static void reopen(struct fake *f)
{
    kv_quorum_depose(f->q);
    env_virtual_run_posted(&f->v);
    kv_quorum_close(f->q);
    assert_int_equal(quorum_open(f), 0);
}

/* Commits these values of "a" and "b", which are committed by the quorum, not stable. */
static void commit_lazily(struct fake *f, const char *a, const char *b)
{
    struct waiter w[3] = { waiter(), waiter(), waiter() };

    f->is_lazy = true;
    commit_one(f, "a", "first", &w[0]);
    commit_one(f, "b", b, &w[1]);
    commit_one(f, "a", a, &w[2]);
    apply(f, 3);
    env_virtual_run_posted(&f->v);
    for (unsigned i = 0; i < 3; i++)
        assert_true(w[i].n == 1 && w[i].rc == 0);
}

static void entries_that_become_stable_together_are_one_write(void **state)
{
    uint64_t n_before;
    struct fake f;

    (void)state;
    fake_open(&f);
    lead(&f);
    commit_lazily(&f, "1", "1");
    commit_lazily(&f, "2", NULL);
    n_before = kv_memory_n_commits(f.below);
    kv_quorum_stable(f.q, f.n_log);
    assert_int_equal(kv_memory_n_commits(f.below), n_before + 1);
    assert_int_equal(kv_quorum_place(f.q)->applied, 2); /* the write has not ended */
    env_virtual_run_posted(&f.v);
    assert_int_equal(f.told_applied, f.n_log);
    expect(kv_memory_kv(f.below), "a", "2");
    expect(kv_memory_kv(f.below), "b", NULL);
    expect(kv_quorum_kv(f.q), "a", "2");
    reopen(&f);
    assert_int_equal(kv_quorum_place(f.q)->applied, f.n_log);
    fake_close(&f);
}

/* The clock of the place is that of its entry, not of later ones that have come. */
static void a_write_leaves_out_what_is_not_stable(void **state)
{
    struct waiter w[3] = { waiter(), waiter(), waiter() };
    struct fake f;

    (void)state;
    fake_open(&f);
    lead(&f);
    f.is_lazy = true;
    commit_one(&f, "a", "1", &w[0]);
    kv_stamp_ns(kv_quorum_kv(f.q), INT64_MAX - 2);
    commit_one(&f, "b", "1", &w[1]);
    kv_stamp_ns(kv_quorum_kv(f.q), INT64_MAX - 1);
    commit_one(&f, "c", "1", &w[2]);
    apply(&f, 3);
    kv_quorum_stable(f.q, f.n_log - 1);
    reopen(&f);
    assert_int_equal(kv_quorum_place(f.q)->applied, f.n_log - 1);
    assert_int_equal(kv_quorum_wall_ns(f.q), INT64_MAX - 2);
    expect(kv_quorum_kv(f.q), "b", "1");
    expect(kv_quorum_kv(f.q), "c", NULL);
    kv_quorum_apply(f.q, f.log[f.n_log - 1]); /* the log gives it again */
    kv_quorum_stable(f.q, f.n_log);
    expect(kv_quorum_kv(f.q), "c", "1");
    fake_close(&f);
}

/* Until the failure is known, reads show what the quorum has and the kv below lacks. */
static void a_write_that_fails_leaves_out_all_its_entries(void **state)
{
    struct fake f;

    (void)state;
    fake_open(&f);
    lead(&f);
    commit_lazily(&f, "1", "1");
    kv_memory_kill(f.below);
    kv_quorum_stable(f.q, f.n_log);
    expect(kv_quorum_kv(f.q), "a", "1");
    env_virtual_run_posted(&f.v);
    assert_int_equal(f.n_failed, 1);
    assert_int_equal(f.told_applied, 2);
    assert_int_equal(kv_quorum_place(f.q)->applied, 2);
    kv_memory_revive(f.below);
    reopen(&f);
    assert_int_equal(kv_quorum_place(f.q)->applied, 2);
    expect(kv_quorum_kv(f.q), "a", NULL);
    expect(kv_quorum_kv(f.q), "b", NULL);
    fake_close(&f);
}

static void a_loss_of_power_takes_a_write_whole(void **state)
{
    struct fake f;

    (void)state;
    fake_open(&f);
    lead(&f);
    commit_lazily(&f, "1", "1");
    kv_quorum_stable(f.q, f.n_log);
    commit_lazily(&f, "2", NULL);
    kv_quorum_stable(f.q, f.n_log);
    env_virtual_run_posted(&f.v);
    assert_int_equal(f.told_applied, 8);
    kv_memory_power_cut(f.below, 1);
    reopen(&f);
    assert_int_equal(kv_quorum_place(f.q)->applied, 5);
    expect(kv_quorum_kv(f.q), "a", "1");
    expect(kv_quorum_kv(f.q), "b", "1");
    for (unsigned i = 5; i < 8; i++)
        kv_quorum_apply(f.q, f.log[i]);
    kv_quorum_stable(f.q, 8);
    env_virtual_run_posted(&f.v);
    assert_int_equal(kv_quorum_place(f.q)->applied, 8);
    expect(kv_quorum_kv(f.q), "a", "2");
    expect(kv_quorum_kv(f.q), "b", NULL);
    fake_close(&f);
}

static void lists_of_members_may_lie_within_a_write(void **state)
{
    const struct kv_quorum_place *place;
    uint64_t n_before;
    struct fake f;

    (void)state;
    fake_open(&f);
    lead(&f);
    commit_lazily(&f, "1", "1");
    list_add(&f, 9);
    list_add(&f, 8);
    apply(&f, 2);
    commit_lazily(&f, "2", "2");
    n_before = kv_memory_n_commits(f.below);
    kv_quorum_stable(f.q, f.n_log);
    assert_int_equal(kv_memory_n_commits(f.below), n_before + 1);
    for (unsigned i = 0; i < 2; i++) {
        reopen(&f); /* then again, with nothing but what the kv below has */
        place = kv_quorum_place(f.q);
        assert_int_equal(place->applied, f.n_log);
        assert_int_equal(place->members_index, 7);
        assert_int_equal(place->members.n, 2);
        assert_non_null(raft_config_find(&place->members, 8));
        assert_int_equal(place->highest_id, 9);
        expect(kv_quorum_kv(f.q), "b", "2");
    }
    fake_close(&f);
}

/* A write is bounded, but takes an entry of any size. */
static void many_bytes_are_several_writes(void **state)
{
    const size_t len = (size_t)3 << 20;
    struct waiter w[3] = { waiter(), waiter(), waiter() };
    struct kv_item item = put("big", NULL);
    char *big = calloc(1, len);
    uint64_t n_before;
    struct fake f;

    (void)state;
    assert_non_null(big);
    item.val = big;
    item.val_len = len;
    fake_open(&f);
    lead(&f);
    f.is_lazy = true;
    commit_one(&f, "a", "1", &w[0]);
    kv_commit(kv_quorum_kv(f.q), &item, 1, &w[1].done);
    kv_commit(kv_quorum_kv(f.q), &item, 1, &w[2].done);
    apply(&f, UINT32_MAX);
    n_before = kv_memory_n_commits(f.below);
    kv_quorum_stable(f.q, f.n_log);
    assert_int_equal(kv_memory_n_commits(f.below), n_before + 2);
    env_virtual_run_posted(&f.v);
    assert_int_equal(kv_quorum_place(f.q)->applied, f.n_log);
    fake_close(&f);
    free(big);
}

static void a_deposed_member_ends_what_waits_and_takes_nothing(void **state)
{
    struct waiter a = waiter(), b = waiter(), s = waiter(), c = waiter(), l = waiter();
    struct fake f;

    (void)state;
    fake_open(&f);
    lead(&f);
    commit_one(&f, "a", "1", &a);
    kv_sync(kv_quorum_kv(f.q), &s.done);
    assert_false(kv_confirm(kv_quorum_kv(f.q), &c.done));
    kv_quorum_depose(f.q);
    commit_one(&f, "b", "1", &b);
    assert_false(kv_confirm(kv_quorum_kv(f.q), &l.done));
    env_virtual_run_posted(&f.v);
    assert_true(a.n == 1 && b.n == 1 && s.n == 1 && c.n == 1 && l.n == 1);
    assert_int_equal(a.rc, -ROZO_ENOT_LEADER);
    assert_int_equal(b.rc, -ROZO_ENOT_LEADER);
    assert_int_equal(s.rc, -ROZO_ENOT_LEADER);
    assert_int_equal(c.rc, -ROZO_ENOT_LEADER);
    assert_int_equal(l.rc, -ROZO_ENOT_LEADER);
    expect(kv_quorum_kv(f.q), "a", NULL);
    apply(&f, 1); /* the new leader found it in its log */
    env_virtual_run_posted(&f.v);
    expect(kv_quorum_kv(f.q), "a", "1");
    f.term = 2;
    lead(&f);
    commit_one(&f, "a", "3", &a);
    apply(&f, 1);
    env_virtual_run_posted(&f.v);
    assert_true(a.n == 2 && a.rc == 0);
    fake_close(&f);
}

static void a_restart_goes_on_behind_the_last_whole_batch(void **state)
{
    struct waiter a = waiter();
    const struct kv_quorum_place *place;
    struct fake f;

    (void)state;
    fake_open(&f);
    assert_int_equal(kv_quorum_place(f.q)->applied, 0);
    assert_int_equal(kv_quorum_place(f.q)->members.n, 0);
    lead(&f);
    commit_one(&f, "a", "1", &a);
    apply(&f, 1);
    env_virtual_run_posted(&f.v);
    kv_quorum_sync_below(f.q);
    env_virtual_run_posted(&f.v);
    assert_int_equal(f.told_synced, 3);
    kv_quorum_depose(f.q);
    kv_quorum_close(f.q);
    assert_int_equal(quorum_open(&f), 0);
    place = kv_quorum_place(f.q);
    assert_int_equal(place->applied, 3);
    assert_int_equal(place->applied_term, 1);
    assert_int_equal(place->members_index, 1);
    assert_int_equal(place->members.n, 1);
    assert_int_equal(place->members.members[0].id, 7);
    expect(kv_quorum_kv(f.q), "a", "1");
    fake_close(&f);
}

static void a_batch_that_is_too_large_for_an_entry_is_applied_as_one(void **state)
{
    const size_t len = (size_t)3 << 20;
    struct waiter a = waiter(), b = waiter();
    char *big = malloc(len + 1);
    struct kv_item items[2] = { put("big", NULL), put("small", "1") };
    struct fake f;

    (void)state;
    memset(big, 'x', len);
    big[len] = '\0';
    items[0].val = big;
    items[0].val_len = len;
    fake_open(&f);
    lead(&f);
    kv_commit(kv_quorum_kv(f.q), items, 2, &a.done);
    assert_int_equal(f.n_log, 2 + 4);
    apply(&f, 3);
    env_virtual_run_posted(&f.v);
    assert_int_equal(a.n, 0);
    assert_int_equal(kv_quorum_place(f.q)->applied, 2);
    apply(&f, 1);
    env_virtual_run_posted(&f.v);
    assert_true(a.n == 1 && a.rc == 0);
    assert_int_equal(kv_quorum_place(f.q)->applied, 6);
    expect(kv_memory_kv(f.below), "big", big);
    expect(kv_memory_kv(f.below), "small", "1");
    /* A leader that ends in the middle of a batch: nothing of it is applied. */
    items[1].val = "2";
    kv_commit(kv_quorum_kv(f.q), items, 2, &b.done);
    kv_quorum_depose(f.q);
    log_cut(&f, 6 + 2);
    f.term = 2;
    lead(&f);
    expect(kv_quorum_kv(f.q), "small", "1");
    commit_one(&f, "small", "3", &a);
    apply(&f, 1);
    env_virtual_run_posted(&f.v);
    expect(kv_memory_kv(f.below), "small", "3");
    assert_int_equal(b.rc, -ROZO_ENOT_LEADER);
    fake_close(&f);
    free(big);
}

static void an_answer_waits_for_a_round_that_began_after_its_question(void **state)
{
    struct waiter a = waiter(), b = waiter(), c = waiter();
    struct fake f;

    (void)state;
    fake_open(&f);
    lead(&f);
    f.now_ns = 1000;
    f.lease_until_ns = 1001;
    assert_true(kv_confirm(kv_quorum_kv(f.q), &a.done));
    f.now_ns = 1001; /* the lease has ended while the operation ran */
    assert_false(kv_confirm(kv_quorum_kv(f.q), &a.done));
    assert_int_equal(f.asked_ns, 1001);
    f.now_ns = 1005;
    assert_false(kv_confirm(kv_quorum_kv(f.q), &b.done));
    assert_int_equal(f.asked_ns, 1001);
    kv_quorum_confirmed(f.q, 1000);
    env_virtual_run_posted(&f.v);
    assert_int_equal(a.n, 0);
    f.now_ns = 1010;
    kv_quorum_confirmed(f.q, 1007); /* after both came, but the second was not asked */
    env_virtual_run_posted(&f.v);
    assert_true(a.n == 1 && a.rc == 0 && b.n == 0);
    assert_int_equal(f.asked_ns, 1010);
    kv_quorum_confirmed(f.q, 1010);
    env_virtual_run_posted(&f.v);
    assert_true(b.n == 1 && b.rc == 0);
    f.lease_until_ns = 2000;
    assert_true(kv_confirm(kv_quorum_kv(f.q), &c.done));
    fake_close(&f);
}

/* Others may commit what this member submitted: its user hears that it does not lead. */
static void a_failure_below_is_told_and_lasts(void **state)
{
    struct waiter a = waiter(), b = waiter(), c = waiter(), d = waiter();
    struct fake f;

    (void)state;
    fake_open(&f);
    lead(&f);
    f.lease_until_ns = UINT64_MAX;
    commit_one(&f, "a", "1", &a);
    kv_memory_kill(f.below);
    apply(&f, 1);
    assert_int_equal(f.n_failed, 0);
    env_virtual_run_posted(&f.v);
    assert_int_equal(f.n_failed, 1);
    assert_true(a.n == 1 && a.rc == 0); /* the quorum has it */
    assert_int_equal(kv_quorum_error(f.q), -EIO);
    assert_int_equal(kv_quorum_place(f.q)->applied, 2);
    commit_one(&f, "a", "1", &b);
    kv_sync(kv_quorum_kv(f.q), &c.done);
    assert_false(kv_confirm(kv_quorum_kv(f.q), &d.done)); /* reads miss what it lost */
    assert_false(kv_confirm(kv_quorum_kv(f.q), NULL));
    env_virtual_run_posted(&f.v);
    assert_int_equal(b.rc, -ROZO_ENOT_LEADER);
    assert_int_equal(c.rc, -ROZO_ENOT_LEADER);
    assert_true(d.n == 1 && d.rc == -ROZO_ENOT_LEADER);
    assert_int_equal(f.n_failed, 1);
    fake_close(&f);
}

/* A leader whose clock is behind stamps as its predecessor did, and never less again. */
/* Commits a change that has one key of a member among others. */
static void commit_with_a_members_key(struct fake *f, const char *key, const char *val)
{
    const struct kv_item items[3] = { put("Da", "1"), put(key, val), put("Db", "2") };
    struct waiter w = waiter();

    kv_commit(kv_quorum_kv(f->q), items, 3, &w.done);
    env_virtual_run_posted(&f->v);
    assert_int_equal(w.n, 1);
    assert_int_equal(w.rc, -ROZO_ENOT_LEADER);
}

static void keys_of_a_member_are_not_its_users(void **state)
{
    static const char *const keys[] = { "ZA", "ZS", "ZX", "Z" };
    struct kv_quorum_place place;
    int64_t wall_ns;
    struct fake f;
    void *val;
    size_t len;

    (void)state;
    for (unsigned i = 0; i < 2 * sizeof(keys) / sizeof(keys[0]); i++) {
        fake_open(&f);
        lead(&f);
        expect(kv_quorum_kv(f.q), "ZA", NULL); /* though it is there */
        assert_int_equal(kv_get(kv_memory_kv(f.below), "ZA", 2, &val, &len), 0);
        free(val);
        f.failure = -EINVAL;
        commit_with_a_members_key(&f, keys[i / 2], i % 2 == 0 ? "1" : NULL);
        assert_int_equal(f.n_failed, 1);
        assert_int_equal(kv_quorum_error(f.q), -EINVAL);
        assert_int_equal(f.n_log, f.n_applied); /* nothing of it went into the log */
        assert_int_equal(kv_place_load(kv_memory_kv(f.below), &place, &wall_ns), 0);
        assert_int_equal(place.applied, f.n_applied);
        fake_close(&f);
    }
}

static void times_do_not_go_back(void **state)
{
    const struct kv_item item = put("a", "1");
    struct quorum_batch_head late = { .reign = 5, .number = 1 };
    struct quorum_entry *parts[QUORUM_PARTS_MAX];
    struct waiter a = waiter();
    struct kv *kv;
    struct fake f;

    (void)state;
    fake_open(&f);
    kv = kv_quorum_kv(f.q);
    members_add(&f);
    late.wall_ns = 2000;
    assert_int_equal(quorum_batch_new(&item, 1, &late, parts), 1);
    on_submit(&f, parts, 1);
    quorum_entry_free(parts[0]);
    lead(&f);
    assert_int_equal(kv_quorum_wall_ns(f.q), 2000);
    assert_int_equal(kv_stamp_ns(kv, 1999), 2000);
    assert_int_equal(kv_stamp_ns(kv, 2001), 2001);
    assert_int_equal(kv_stamp_ns(kv, INT64_MAX - 1), INT64_MAX - 1);
    assert_int_equal(kv_stamp_ns(kv, 3), INT64_MAX - 1); /* the clock went back */
    commit_one(&f, "a", "2", &a);
    apply(&f, 1);
    assert_int_equal(kv_quorum_wall_ns(f.q), INT64_MAX - 1); /* for the next leader */
    env_virtual_run_posted(&f.v);
    fake_close(&f);
}

static void free_bytes_are_those_of_the_fullest(void **state)
{
    struct fake f;

    (void)state;
    fake_open(&f);
    kv_memory_set_free(f.below, 1000);
    assert_int_equal(kv_free_bytes(kv_quorum_kv(f.q)), 1000);
    kv_quorum_set_free(f.q, 10);
    assert_int_equal(kv_free_bytes(kv_quorum_kv(f.q)), 10);
    fake_close(&f);
}

/* ---- by chance, against a model ---- */

struct model {
    struct fake f;
    struct key_map all;     /* keys that reads must show */
    struct key_map applied; /* keys that the kv below must hold */
    struct waiter waiters[LOG_MAX];
    unsigned n_waiters;
};

static void map_change(struct key_map *m, const struct kv_item *item)
{
    struct key_map_node *n = key_map_get(m, item->key, item->key_len);

    if (item->val != NULL)
        assert_non_null(
            key_map_put(m, item->key, item->key_len, item->val, item->val_len));
    else if (n != NULL)
        key_map_remove(m, n);
}

static void iter_compare(struct kv *kv, const struct key_map *m, const char *from)
{
    struct key_map_node *n = key_map_seek(m, from, strlen(from));
    struct kv_iter *it;
    size_t len;

    assert_int_equal(kv_iter_open(kv, &it), 0);
    for (kv_iter_seek(it, from, strlen(from)); kv_iter_valid(it); kv_iter_next(it)) {
        const uint8_t *key = kv_iter_key(it, &len);

        assert_non_null(n);
        assert_int_equal(len, n->key_len);
        assert_memory_equal(key, n->key, len);
        key = kv_iter_val(it, &len);
        assert_int_equal(len, n->val_len);
        assert_memory_equal(key, n->val, len);
        n = n->next[0];
    }
    assert_null(n);
    assert_int_equal(kv_iter_error(it), 0);
    kv_iter_close(it);
}

static void model_commit(struct model *m)
{
    struct env_virtual *v = &m->f.v;
    char keys[8][8], vals[8][8];
    struct kv_item items[8];
    unsigned n = (unsigned)env_virtual_below(v, 8);

    for (unsigned i = 0; i < n; i++) {
        snprintf(keys[i], sizeof(keys[i]), "%c%02u", 'A' + (int)i,
                 (unsigned)env_virtual_below(v, KEYS));
        snprintf(vals[i], sizeof(vals[i]), "%u", (unsigned)env_virtual_below(v, 1000));
        items[i] = put(keys[i], env_virtual_below(v, 3) == 0 ? NULL : vals[i]);
        map_change(&m->all, &items[i]);
    }
    m->waiters[m->n_waiters] = waiter();
    kv_commit(kv_quorum_kv(m->f.q), items, n, &m->waiters[m->n_waiters++].done);
}

static void model_apply(struct model *m)
{
    const struct quorum_entry *e;
    struct kv_item *items;
    const uint8_t *part;
    size_t len, n;
    struct quorum_batch_head head;
    bool more;

    if (m->f.n_applied == m->f.n_log)
        return;
    m->f.is_lazy = env_virtual_below(&m->f.v, 4) != 0;
    e = m->f.log[m->f.n_applied];
    apply(&m->f, 1);
    if (e->e.kind != RAFT_ENTRY_BATCH)
        return;
    assert_int_equal(quorum_part_get(e, &part, &len, &more), 0);
    assert_int_equal(quorum_batch_get(part, len, &items, &n, &head), 0);
    for (size_t i = 0; i < n; i++)
        map_change(&m->applied, &items[i]);
    free(items);
}

/* Lets another member lead for a while, then this one again. */
static void model_depose(struct model *m)
{
    kv_quorum_depose(m->f.q);
    log_cut(&m->f, m->f.n_applied + (unsigned)env_virtual_below(
                                        &m->f.v, m->f.n_log - m->f.n_applied + 1));
    while (m->f.n_applied < m->f.n_log)
        model_apply(m);
    m->f.is_lazy = false;
    apply(&m->f, 0);
    env_virtual_run_posted(&m->f.v);
    for (unsigned i = 0; i < m->n_waiters; i++)
        assert_int_equal(m->waiters[i].n, 1);
    key_map_free(&m->all);
    assert_int_equal(key_map_init(&m->all), 0);
    for (struct key_map_node *n = key_map_seek(&m->applied, "", 0); n != NULL;
         n = n->next[0])
        assert_non_null(key_map_put(&m->all, n->key, n->key_len, n->val, n->val_len));
    m->f.term++;
    lead(&m->f);
}

static void reads_show_the_model(void **state)
{
    struct model *m = calloc(1, sizeof(*m));
    struct kv_quorum_hooks hooks;

    (void)state;
    fake_open(&m->f);
    hooks = m->f.hooks;
    assert_ptr_equal(hooks.arg, &m->f);
    assert_int_equal(key_map_init(&m->all) | key_map_init(&m->applied), 0);
    lead(&m->f);
    for (unsigned i = 0; i < 3000; i++) {
        char from[8];

        switch (env_virtual_below(&m->f.v, 12)) {
        case 0:
        case 1:
        case 2:
        case 3:
        case 4:
            model_commit(m);
            break;
        case 5:
        case 6:
        case 7:
        case 8:
            model_apply(m);
            break;
        case 9:
            env_virtual_run_posted(&m->f.v);
            break;
        case 10:
            if (env_virtual_below(&m->f.v, 20) == 0)
                model_depose(m);
            break;
        default:
            snprintf(from, sizeof(from), "%c%02u",
                     '@' + (int)env_virtual_below(&m->f.v, 9),
                     (unsigned)env_virtual_below(&m->f.v, KEYS));
            iter_compare(kv_quorum_kv(m->f.q), &m->all, from);
        }
    }
    while (m->f.n_applied < m->f.n_log)
        model_apply(m);
    m->f.is_lazy = false;
    apply(&m->f, 0);
    env_virtual_run_posted(&m->f.v);
    for (unsigned i = 0; i < m->n_waiters; i++)
        assert_int_equal(m->waiters[i].n, 1);
    iter_compare(kv_quorum_kv(m->f.q), &m->all, "");
    iter_compare(kv_quorum_kv(m->f.q), &m->applied, "");
    key_map_free(&m->all);
    key_map_free(&m->applied);
    fake_close(&m->f);
    free(m);
}

static void bytes_that_are_no_batch_are_refused(void **state)
{
    struct kv_item items[3] = { put("a", "1"), put("bb", NULL), put("c", "") };
    const struct quorum_batch_head put_head = { -5, 9, 7 };
    struct quorum_entry *parts[QUORUM_PARTS_MAX];
    struct kv_item *found;
    const uint8_t *part;
    size_t len, n;
    struct quorum_batch_head head;
    bool more;

    (void)state;
    assert_int_equal(quorum_batch_new(items, 3, &put_head, parts), 1);
    assert_int_equal(quorum_part_get(parts[0], &part, &len, &more), 0);
    assert_false(more);
    assert_int_equal(quorum_batch_get(part, len, &found, &n, &head), 0);
    assert_true(n == 3 && head.wall_ns == -5 && head.reign == 9 && head.number == 7);
    assert_true(found[1].val == NULL && found[2].val != NULL && found[2].val_len == 0);
    free(found);
    for (size_t cut = 0; cut < len; cut++) {
        assert_int_equal(quorum_batch_get(part, cut, &found, &n, &head), -ROZO_EDAMAGED);
        assert_null(found);
    }
    /* "a" becomes the first letter of a member's own keys */
    assert_int_equal(part[QUORUM_BATCH_HEAD_BYTES + QUORUM_BATCH_ITEM_BYTES], 'a');
    parts[0]->bytes[(size_t)(part - parts[0]->bytes) + QUORUM_BATCH_HEAD_BYTES +
                    QUORUM_BATCH_ITEM_BYTES] = KEY_QUORUM;
    assert_int_equal(quorum_batch_get(part, len, &found, &n, &head), -ROZO_EDAMAGED);
    put_le32(parts[0]->bytes + QUORUM_PART_HEAD_BYTES, UINT32_MAX); /* number of items */
    assert_int_equal(quorum_batch_get(part, len, &found, &n, &head), -ROZO_EDAMAGED);
    put_le16(parts[0]->bytes, QUORUM_BATCH_FORMAT + 1);
    assert_int_equal(quorum_part_get(parts[0], &part, &len, &more),
                     -ROZO_EUNKNOWN_FORMAT);
    put_le16(parts[0]->bytes, QUORUM_BATCH_FORMAT);
    put_le16(parts[0]->bytes + 2, 2);
    assert_int_equal(quorum_part_get(parts[0], &part, &len, &more), -ROZO_EDAMAGED);
    quorum_entry_free(parts[0]);
}

/* A chunk says that it contains an entry as soon as reads show it. */
static void on_chunk(void *arg, struct seed_job *job)
{
    struct fake *f = arg;

    assert_int_equal(job->rc, 0);
    assert_int_equal(job->chunk.applied, f->n_applied);
    assert_int_equal(job->chunk.members_index, 1);
    assert_true(job->chunk.is_last && job->len > 0);
    f->n_seeded++;
}

static void a_chunk_contains_what_reads_show(void **state)
{
    struct seed_job *job = calloc(1, sizeof(*job));
    struct waiter w = waiter();
    struct fake f;

    (void)state;
    assert_non_null(job);
    fake_open(&f);
    f.hooks.seeded = on_chunk;
    lead(&f);
    commit_one(&f, "Da", "1", &w);
    apply(&f, 1);
    assert_int_not_equal(f.told_applied, f.n_applied); /* the kv has not answered yet */
    job->kind = SEED_JOB_READ;
    kv_quorum_seed(f.q, job);
    env_virtual_run_posted(&f.v);
    assert_int_equal(f.told_applied, f.n_applied);
    assert_int_equal(f.n_seeded, 1);
    seed_job_free(job);
    fake_close(&f);
}

/* Reads between a write and its end, of which nobody knows yet that it has failed. */
static void on_no_chunk(void *arg, struct seed_job *job)
{
    assert_int_equal(job->rc, -EIO);
    ((struct fake *)arg)->n_seeded++;
}

static void no_chunk_says_that_it_contains_a_write_that_failed(void **state)
{
    struct seed_job jobs[2] = { { .kind = SEED_JOB_READ }, { .kind = SEED_JOB_READ } };
    struct fake f;

    (void)state;
    fake_open(&f);
    f.hooks.seeded = on_no_chunk;
    lead(&f);
    commit_lazily(&f, "1", "1");
    kv_memory_kill(f.below);
    kv_quorum_stable(f.q, f.n_log);
    kv_quorum_seed(f.q, &jobs[0]);
    kv_quorum_seed(f.q, &jobs[1]);
    assert_int_equal(f.n_seeded, 0);
    env_virtual_run_posted(&f.v);
    assert_int_equal(f.n_seeded, 2);
    fake_close(&f);
}

/* A copy that begins here while a write is under way, and others wait for stability:
 * the mark replaces the place of that write. */
static void on_begun(void *arg, struct seed_job *job)
{
    struct fake *f = arg;

    assert_int_equal(job->rc, 0);
    assert_int_equal(job->mark.index, f->n_applied - 1);
    assert_int_equal(job->place.applied, 0);
    assert_int_equal(job->place.seed.index, f->n_applied - 1);
    f->n_seeded++;
}

static void a_copy_may_begin_while_a_write_is_under_way(void **state)
{
    struct seed_job job = { .kind = SEED_JOB_BEGIN,
                            .mark = { .doubt = SEED_BEHIND, .is_copied = true } };
    struct fake f;

    (void)state;
    fake_open(&f);
    f.hooks.seeded = on_begun;
    lead(&f);
    commit_lazily(&f, "1", "1");
    kv_quorum_depose(f.q);
    kv_quorum_stable(f.q, f.n_log - 1);
    kv_quorum_seed(f.q, &job);
    env_virtual_run_posted(&f.v);
    assert_int_equal(f.n_seeded, 1);
    expect(kv_quorum_kv(f.q), "a", "first");
    expect(kv_quorum_kv(f.q), "b", "1");
    fake_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chunk_contains_what_reads_show),
        cmocka_unit_test(no_chunk_says_that_it_contains_a_write_that_failed),
        cmocka_unit_test(a_copy_may_begin_while_a_write_is_under_way),
        cmocka_unit_test(entries_that_become_stable_together_are_one_write),
        cmocka_unit_test(a_write_leaves_out_what_is_not_stable),
        cmocka_unit_test(a_write_that_fails_leaves_out_all_its_entries),
        cmocka_unit_test(a_loss_of_power_takes_a_write_whole),
        cmocka_unit_test(lists_of_members_may_lie_within_a_write),
        cmocka_unit_test(many_bytes_are_several_writes),
        cmocka_unit_test(a_commit_is_seen_at_once_and_done_when_the_quorum_has_it),
        cmocka_unit_test(a_sync_and_the_kv_below_wait_until_entries_are_stable),
        cmocka_unit_test(a_deposed_member_ends_what_waits_and_takes_nothing),
        cmocka_unit_test(a_restart_goes_on_behind_the_last_whole_batch),
        cmocka_unit_test(a_batch_that_is_too_large_for_an_entry_is_applied_as_one),
        cmocka_unit_test(an_answer_waits_for_a_round_that_began_after_its_question),
        cmocka_unit_test(a_failure_below_is_told_and_lasts),
        cmocka_unit_test(keys_of_a_member_are_not_its_users),
        cmocka_unit_test(times_do_not_go_back),
        cmocka_unit_test(free_bytes_are_those_of_the_fullest),
        cmocka_unit_test(reads_show_the_model),
        cmocka_unit_test(bytes_that_are_no_batch_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
