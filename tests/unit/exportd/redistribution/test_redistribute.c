/*
 * test_redistribute.c - files get the candidates that they lack.
 *
 * Goal:   at no moment can a client write under a distribution whose quorum does not
 *         cover what was acknowledged before.
 */
#include <stdlib.h>
#include <sys/stat.h>

#include "tests/unit/exportd/world.h"

enum { SEED = 77, SIZE = 100000, DONE_S = 200 };

static struct world w;

static int setup(void **state)
{
    (void)state;
    world_open(&w, SEED);
    world_start(&w);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    world_close(&w);
    return 0;
}

static void pass(unsigned seconds)
{
    struct seen s;

    for (; seconds > 0; seconds--) {
        env_virtual_advance_ms(&w.env, 1000);
        world_obey(&w);
        OK(t_getattr(&w, 1, &s));
    }
}

/* Returns the number of files with too few candidates; UINT64_MAX: not counted yet. */
static uint64_t n_few(void)
{
    Rozo__AdStatusReq req = ROZO__AD_STATUS_REQ__INIT;
    Rozo__AdStatusResp *resp;
    uint64_t n;

    OK(world_call_node(&w, ROZO__OP__AD_STATUS, &req.base,
                       &rozo__ad_status_resp__descriptor, &resp));
    n = resp->exports[0]->files_few_known ? resp->exports[0]->files_few : UINT64_MAX;
    rozo__ad_status_resp__free_unpacked(resp, NULL);
    return n;
}

static void pass_until_none_is_few(void)
{
    unsigned s = 0;

    for (; s < DONE_S && n_few() != 0; s++)
        pass(1);
    assert_true(s < DONE_S);
}

/* Makes a file with data that is not open. */
static uint64_t file_with_data(const char *name)
{
    struct seen s;

    OK(t_create_open(&w, 1, name, true, &s));
    OK(t_wrote(&w, s.ino, SIZE, NULL));
    OK(t_close_stored(&w, s.ino, 1));
    w.epochs_given = s.epoch;
    return s.ino;
}

/* Returns the answer to an open. */
static struct seen opened(uint64_t ino, bool write)
{
    struct seen s;

    OK(t_open(&w, ino, write, &s));
    OK(t_close(&w, ino, 1));
    return s;
}

/* Makes an export on n storages, with one file that is not open. *before, unless NULL:
 * what an open says of it. */
static uint64_t begin(unsigned n_storages, struct seen *before)
{
    uint64_t ino;

    world_make_export(&w, n_storages, 0);
    ino = file_with_data("f");
    if (before != NULL)
        *before = opened(ino, false);
    return ino;
}

/* Begins again with an empty world, which looks for strays every strays_s seconds. */
static void another_world(unsigned strays_s)
{
    world_close(&w);
    world_open(&w, SEED);
    w.strays_s = strays_s;
    world_start(&w);
}

static void add(unsigned i)
{
    uint32_t id;
    char error[256];

    OK(t_storage_add(&w, i, &id, error));
    assert_int_equal(id, i + 1);
}

static void lose(unsigned i)
{
    Rozo__AdStorageLostReq req = ROZO__AD_STORAGE_LOST_REQ__INIT;
    Rozo__AdStorageLostResp *resp;

    w.storages[i].down = true;
    pass(5);
    req.id = i + 1;
    req.lost = true;
    OK(world_call_node(&w, ROZO__OP__AD_STORAGE_LOST, &req.base,
                       &rozo__ad_storage_lost_resp__descriptor, &resp));
    rozo__ad_storage_lost_resp__free_unpacked(resp, NULL);
}

static const struct fake_moved *moved(unsigned storage, uint64_t ino)
{
    static const struct fake_moved none;
    const struct fake_storage *s = &w.storages[storage];

    for (unsigned i = 0; i < WORLD_MOVED_MAX; i++) {
        if (s->moved[i].ino == ino)
            return &s->moved[i];
    }
    return &none;
}

static unsigned n_of(unsigned (*counter)(const struct fake_storage *s))
{
    unsigned n = 0;

    for (unsigned i = 0; i < WORLD_STORAGES_MAX; i++)
        n += counter(&w.storages[i]);
    return n;
}

static unsigned repairs(const struct fake_storage *s)
{
    return s->n_repairs;
}

static unsigned fences(const struct fake_storage *s)
{
    return s->n_fences;
}

static unsigned leaves(const struct fake_storage *s)
{
    return s->n_leaves;
}

static unsigned redists(const struct fake_storage *s)
{
    return s->n_redists;
}

static void has_these(uint64_t ino, unsigned n, const uint32_t *ids)
{
    struct seen s = opened(ino, false);

    assert_int_equal(s.n_storages, n);
    assert_memory_equal(s.storages, ids, n * sizeof(*ids));
    for (unsigned i = 0; i < n; i++) {
        const struct fake_moved *m = moved(ids[i] - 1, ino);

        if (m->generation == 0)
            continue; /* a new spare has nothing */
        assert_false(m->prepared);
        assert_int_equal(m->generation, s.dist_generation);
        assert_int_equal(m->n_storages, n);
        assert_memory_equal(m->storages, ids, n * sizeof(*ids));
    }
}

static void stall_fill(void)
{
    for (unsigned i = 0; i < 4; i++)
        w.storages[i].unsound = true;
}

static void stall_fence(void)
{
    for (unsigned i = 0; i < 4; i++)
        w.storages[i].no_fences = true;
}

static void stall_prepare(void)
{
    w.storages[4].no_redists = true;
}

static void stall_rehead(void)
{
    for (unsigned i = 0; i < 4; i++)
        w.storages[i].no_redists = true;
}

static void stall_end(void)
{
    for (unsigned i = 0; i < 5; i++) {
        w.storages[i].unsound = w.storages[i].no_redists = w.storages[i].no_fences =
            false;
        w.storages[i].hangs_redists = false;
    }
}

static void test_a_file_gets_the_spare_that_it_lacks(void **state)
{
    uint32_t ids[4];
    struct seen s;
    uint64_t ino;

    (void)state;
    ino = begin(3, NULL);
    assert_int_equal(n_few(), 0); /* the volume has no more storages */
    s = opened(ino, false);
    assert_int_equal(s.n_storages, 3);
    add(3);
    assert_true(n_few() != 0);
    pass_until_none_is_few();
    memcpy(ids, s.storages, sizeof(ids));
    ids[3] = 4;
    has_these(ino, 4, ids);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(moved(i, ino)->generation, 1);
        assert_int_equal(moved(i, ino)->partial, 0);
        assert_true(moved(i, ino)->fenced >= w.epochs_given);
    }
    assert_int_equal(w.storages[3].n_redists, 0);
    assert_true(opened(ino, true).epoch > moved(0, ino)->fenced);
}

static void test_a_file_with_all_is_left_alone(void **state)
{
    (void)state;
    begin(4, NULL);
    add(4);
    pass(10);
    assert_int_equal(n_few(), 0);
    assert_int_equal(n_of(repairs) + n_of(fences) + n_of(redists), 0);
}

static void test_a_lost_storage_is_replaced_at_its_place(void **state)
{
    uint32_t ids[4];
    unsigned place = 0;
    struct seen s;
    uint64_t ino;

    (void)state;
    ino = begin(4, &s);
    lose(s.storages[1] - 1);
    assert_int_equal(n_few() == UINT64_MAX ? 0 : n_few(), 0);
    add(4);
    pass_until_none_is_few();
    memcpy(ids, s.storages, sizeof(ids));
    ids[1] = 5;
    has_these(ino, 4, ids);
    place = 1;
    assert_int_equal(moved(4, ino)->partial,
                     1u << place); /* partial: what it lacks is unknown */
    assert_int_equal(moved(s.storages[1] - 1, ino)->generation, 0);
}

/* Goal: the candidates do not become more while a home is lost, for then blocks are
 * on fewer than n storages. The lost home is replaced and filled first; a second
 * change adds the spare. */
static void test_a_lost_home_is_replaced_before_a_spare_is_added(void **state)
{
    uint32_t ids[4];
    struct seen s;
    uint64_t ino;

    (void)state;
    ino = begin(3, &s);
    lose(s.storages[1] - 1);
    w.storages[s.storages[0] - 1].repairs_wait = 1;
    add(3);
    add(4);
    for (unsigned i = 0; i < DONE_S && opened(ino, false).dist_generation == 0; i++)
        pass(1);
    memcpy(ids, s.storages, sizeof(ids));
    s = opened(ino, false);
    assert_int_equal(s.dist_generation, 1);
    assert_int_equal(s.n_storages, 3);
    assert_true(s.storages[0] == ids[0] && s.storages[1] > 3 && s.storages[2] == ids[2]);
    pass_until_none_is_few();
    s = opened(ino, false);
    assert_int_equal(s.dist_generation, 2);
    assert_int_equal(s.n_storages, 4);
}

/* Goal: blocks may be on k storages only when two of four are lost. The new home
 * makes up for one that a quorum lacks, as what it does not have is unknown; a new
 * spare, which is nearly full and so becomes no home, would make those two all that
 * readers wait for. */
static void test_a_spare_alone_is_not_replaced_below_a_quorum(void **state)
{
    struct seen s;
    uint64_t ino;

    (void)state;
    ino = begin(4, &s);
    lose(s.storages[2] - 1);
    lose(s.storages[3] - 1);
    w.storages[4].free = 1ull << 20;
    add(4);
    pass(60);
    assert_int_equal(opened(ino, false).dist_generation, 0);
    assert_int_equal(n_few(), 1);
    add(5);
    pass_until_none_is_few();
    s = opened(ino, false);
    assert_true(s.n_storages == 4 && s.storages[2] == 6 && s.storages[3] == 5);
}

/* Goal: files that were made while a storage was lost get it when it answers again,
 * without any command. */
static void test_storage_that_is_up_again_becomes_a_candidate(void **state)
{
    uint64_t ino;

    (void)state;
    world_make_export(&w, 4, 0);
    lose(3);
    ino = file_with_data("f");
    pass(5);
    assert_int_equal(opened(ino, false).n_storages, 3);
    assert_int_equal(n_few(), 0);
    w.storages[3].down = false;
    for (unsigned i = 0; i < 20 && n_few() == 0; i++)
        pass(1);
    assert_int_not_equal(n_few(), 0);
    pass_until_none_is_few();
    assert_int_equal(opened(ino, false).n_storages, 4);
}

/* Goal: a home that was to be replaced and is back before the rehead phase keeps
 * its place: it was not fenced, and the spare that stood in for it may have dropped
 * its copy. */
static void test_home_that_is_up_before_the_rehead_keeps_its_place(void **state)
{
    static void (*const stalls[])(void) = { stall_fill, stall_fence, stall_prepare };

    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        unsigned lost;
        struct seen s;
        uint64_t ino;

        if (i > 0)
            another_world(0);
        ino = begin(4, NULL);
        lost = opened(ino, false).storages[1] - 1;
        lose(lost);
        stalls[i]();
        add(4);
        while (n_of(repairs) == 0)
            pass(1);
        pass(i == 0 ? 1 : 4);
        w.storages[lost].down = false;
        pass(2);
        stall_end();
        pass(60);
        s = opened(ino, false);
        assert_int_equal(s.storages[1], lost + 1);
        assert_int_equal(s.dist_generation, 0);
        assert_int_equal(n_few(), 0);
    }
}

static void test_empty_file_gets_new_candidates_without_a_repair(void **state)
{
    struct seen s;

    (void)state;
    world_make_export(&w, 3, 0);
    OK(t_create(&w, 1, "empty", S_IFREG | 0644, &s));
    add(3);
    pass_until_none_is_few();
    s = opened(s.ino, false);
    assert_int_equal(s.n_storages, 4);
    assert_int_equal(s.dist_generation, 1);
    assert_int_equal(n_of(repairs) + n_of(fences) + n_of(redists), 0);
}

/* From the first old storage that has the new distribution on, an open waits until all is
 * done. */
static void test_open_waits_while_storages_take_the_new_distribution(void **state)
{
    Rozo__MdOpenReq req = ROZO__MD_OPEN_REQ__INIT;
    struct answer_got got = { 0 };
    Rozo__MdOpenResp *resp;
    uint8_t msg[64];
    uint64_t ino;

    (void)state;
    ino = begin(3, NULL);
    w.storages[1].no_redists = w.storages[2].no_redists = true;
    add(3);
    while (n_of(redists) == 0)
        pass(1);
    req.ino = ino;
    req.write = true;
    world_send(&w, ROZO__OP__MD_OPEN, RPC_ROLE_CLIENT, w.session, msg,
               rozo__md_open_req__pack(&req, msg), &got);
    pass(60);
    assert_false(got.came);
    w.storages[1].no_redists = w.storages[2].no_redists = false;
    pass(3);
    assert_true(got.came && got.status == ROZO__STATUS__OK);
    resp = rozo__md_open_resp__unpack(NULL, got.len, got.msg);
    assert_int_equal(resp->data->ref->n_storages, 4);
    assert_int_equal(resp->data->ref->dist_generation, 1);
    rozo__md_open_resp__free_unpacked(resp, NULL);
    free(got.msg);
    OK(t_close(&w, ino, 1));
}

/* When enough storages have the new distribution, the last one is not waited for. */
static void test_hung_storage_gets_the_distribution_later(void **state)
{
    unsigned slow;
    uint64_t ino;
    struct seen s;

    (void)state;
    ino = begin(3, NULL);
    slow = opened(ino, false).storages[2] - 1;
    w.storages[slow].hangs_redists = true;
    add(3);
    do {
        pass(1);
        s = opened(ino, false);
    } while (s.n_storages == 3);
    assert_int_equal(moved(slow, ino)->generation, 0);
    assert_true(n_few() > 0);
    w.storages[slow].hangs_redists = false;
    pass_until_none_is_few();
    assert_int_equal(moved(slow, ino)->generation, 1);
}

/* A file that is not sound stays unchanged, and clients go on with it. */
static void test_file_that_is_not_sound_keeps_its_distribution(void **state)
{
    uint64_t ino;

    (void)state;
    ino = begin(3, NULL);
    stall_fill();
    add(3);
    for (unsigned i = 0; i < 60; i++) {
        pass(1);
        assert_int_equal(opened(ino, i % 2 == 0).n_storages, 3);
    }
    assert_true(n_of(repairs) > 3 && n_of(redists) == 0 && n_few() == 1);
    stall_end();
    pass_until_none_is_few();
    assert_int_equal(opened(ino, true).n_storages, 4);
}

/* Goal: a new home that has its file before exportd abandons the change, as another
 * one refuses, does not count; with the next try it does. */
static void test_abandoned_change_counts_nowhere(void **state)
{
    const struct fake_moved *m;
    struct seen s;
    uint64_t ino;

    (void)state;
    world_make_export(&w, 8, 1);
    ino = file_with_data("f");
    s = opened(ino, false);
    lose(s.storages[0] - 1);
    lose(s.storages[1] - 1);
    w.storages[9].no_redists = true;
    add(8);
    add(9);
    for (unsigned i = 0; i < 100 && moved(8, ino)->generation == 0; i++)
        pass(1);
    pass(15);
    m = moved(8, ino);
    assert_true(m->generation > 0 && m->prepared);
    assert_int_equal(opened(ino, false).dist_generation, 0);
    w.storages[9].no_redists = false;
    pass_until_none_is_few();
    s = opened(ino, false);
    assert_true(s.dist_generation > 1);
    has_these(ino, 8, s.storages);
    assert_false(moved(8, ino)->prepared || moved(9, ino)->prepared);
}

static void test_nothing_changes_while_a_storage_is_down(void **state)
{
    uint64_t ino;

    (void)state;
    ino = begin(3, NULL);
    w.storages[2].down = true;
    pass(5);
    add(3);
    for (unsigned i = 0; i < 30; i++) {
        pass(1);
        assert_int_equal(opened(ino, i % 2 == 0).n_storages, 3);
    }
    assert_int_equal(n_of(redists), 0);
    w.storages[2].down = false;
    pass_until_none_is_few();
    assert_int_equal(opened(ino, false).n_storages, 4);
}

static void test_old_storages_are_left_alone(void **state)
{
    uint64_t ino;

    (void)state;
    ino = begin(3, NULL);
    for (unsigned i = 0; i < 3; i++)
        w.storages[i].no_repairs = true;
    add(3);
    pass(60);
    assert_int_equal(n_of(fences) + n_of(redists), 0);
    assert_int_equal(opened(ino, true).n_storages, 3);
    assert_int_equal(n_few(), 1);
}

/* Goal: a file is not closed, nor its distribution changed, unless all of its
 * storages can take a new distribution; they are asked again when they come back,
 * upgraded perhaps. */
static void test_storage_of_an_older_build_prevents_the_change(void **state)
{
    struct seen s;
    uint64_t ino;

    (void)state;
    ino = begin(3, &s);
    for (unsigned i = 1; i < 3; i++)
        w.storages[s.storages[i] - 1].no_repairs = true;
    add(3);
    for (unsigned i = 0; i < 40; i++) {
        pass(1);
        assert_int_equal(opened(ino, true).n_storages, 3);
    }
    assert_int_equal(n_of(fences) + n_of(redists), 0);
    assert_int_equal(n_few(), 1);
    for (unsigned i = 1; i < 3; i++) {
        w.storages[s.storages[i] - 1].no_repairs = false;
        w.storages[s.storages[i] - 1].down = true;
    }
    pass(5);
    for (unsigned i = 1; i < 3; i++)
        w.storages[s.storages[i] - 1].down = false;
    w.epochs_given = opened(ino, true).epoch;
    pass_until_none_is_few();
    assert_int_equal(opened(ino, true).n_storages, 4);
}

/* exportd's data were restored from a backup: n old storages have a later
 * distribution. */
static uint64_t file_with_later_headers(unsigned n)
{
    struct seen s;
    uint64_t ino;

    world_make_export(&w, 4, 0);
    lose(3);
    ino = file_with_data("f");
    s = opened(ino, false);
    assert_int_equal(s.n_storages, 3);
    for (unsigned i = 0; i < 3; i++) {
        struct fake_moved *m = &w.storages[s.storages[i] - 1].moved[0];

        m->ino = ino;
        m->fenced = w.epochs_given; /* before the first one had it */
        if (i >= n)
            continue;
        m->generation = 5;
        m->n_storages = 4;
        memcpy(m->storages, s.storages, 3 * sizeof(m->storages[0]));
        m->storages[3] = 4;
    }
    return ino;
}

/* Goal: a later distribution at storages is taken when a search meets it, whether so
 * many have it that it took effect before, or fewer; no change of our own is made
 * before. */
static void test_later_distribution_that_a_backup_lacks_is_found(void **state)
{
    (void)state;
    for (unsigned n = 1; n < 4; n++) {
        struct seen s;
        uint64_t ino;

        if (n > 1)
            another_world(0);
        ino = file_with_later_headers(n);
        w.storages[3].down = false;
        pass(20);
        pass_until_none_is_few();
        s = opened(ino, true);
        assert_int_equal(s.dist_generation, 5);
        assert_true(s.n_storages == 4 && s.storages[3] == 4);
        has_these(ino, 4, s.storages);
        for (unsigned i = 0; i < 3; i++)
            assert_int_equal(moved(s.storages[i] - 1, ino)->generation, 5);
    }
}

/* Goal: a later distribution is found soon when a client says that a storage refused its
 * ref; nothing changes when no storage has a later one. */
static void test_later_distribution_that_a_client_met_is_found(void **state)
{
    Rozo__MdOpenReq req = ROZO__MD_OPEN_REQ__INIT;
    Rozo__MdOpenResp *resp;
    uint32_t generation = 0;
    uint64_t ino;

    (void)state;
    for (unsigned n = 0; n < 3; n += 2) {
        if (n > 0)
            another_world(0);
        ino = file_with_later_headers(n);
        req.ino = ino;
        req.no_reference = req.moved = true;
        for (unsigned i = 0; i < 4; i++) {
            OK(world_call(&w, ROZO__OP__MD_OPEN, &req.base,
                          &rozo__md_open_resp__descriptor, &resp));
            generation = resp->data->ref->dist_generation;
            rozo__md_open_resp__free_unpacked(resp, NULL);
            pass(1);
        }
        assert_int_equal(generation, n == 0 ? 0 : 5);
    }
}

/* Goal: a storage that was replaced in a file and is back drops
 * what it has of the file once the change is complete; the others keep it. */
static void test_replaced_storage_drops_the_file_when_it_is_up(void **state)
{
    struct fake_storage *old;
    struct seen s;
    uint64_t ino;

    (void)state;
    another_world(5);
    ino = begin(4, &s);
    for (unsigned i = 0; i < 4; i++)
        w.storages[i].listed[w.storages[i].n_listed++] =
            (struct file_id){ 1, s.generation, ino };
    old = &w.storages[s.storages[1] - 1];
    lose(s.storages[1] - 1);
    add(4);
    pass_until_none_is_few();
    pass(20);
    assert_int_equal(n_of(leaves), 0); /* the storage is down */
    old->down = false;
    pass(20);
    assert_true(old->n_leaves > 0);
    assert_int_equal(n_of(leaves), old->n_leaves);
}

/* A session that does not give back its token, and exportd, wait for each other only
 * briefly. */
static void test_a_session_that_keeps_its_token(void **state)
{
    struct seen s;

    (void)state;
    world_make_export(&w, 3, 0);
    OK(t_create_open(&w, 1, "f", true, &s));
    OK(t_wrote(&w, s.ino, SIZE, NULL));
    w.epochs_given = s.epoch;
    w.disobeys = true;
    add(3);
    pass(5);
    assert_int_equal(n_of(fences), 0);
    w.disobeys = false;
    pass_until_none_is_few();
    OK(t_open(&w, s.ino, true, &s));
    assert_int_equal(s.n_storages, 4);
    OK(t_close_stored(&w, s.ino, 2));
}

/* A pending truncate may be of a dead writer: the next opener finishes it at all
 * storages. */
static void test_a_pending_truncate_stays_pending(void **state)
{
    struct seen s, cut;
    uint64_t ino;

    (void)state;
    ino = begin(3, NULL);
    OK(t_truncate(&w, ino, 10, &cut));
    assert_true(cut.truncate_pending);
    w.epochs_given = cut.epoch;
    add(3);
    pass_until_none_is_few();
    OK(t_open(&w, ino, true, &s));
    assert_true(s.n_storages == 4 && s.truncate_pending);
    assert_int_equal(s.truncate_version, cut.truncate_version);
    OK(t_truncated(&w, ino, s.truncate_version, &s));
    assert_int_equal(s.size, 10);
    OK(t_close(&w, ino, 1));
}

/* A file removed in any phase is removed from all storages that may have a projection
 * file. */
static void removed_in(void (*stall)(void), bool may_wait)
{
    Rozo__MdUnlinkReq req = ROZO__MD_UNLINK_REQ__INIT;
    struct answer_got got = { 0 };
    uint8_t msg[64];
    unsigned lost;
    uint64_t ino;

    ino = begin(4, NULL);
    lost = opened(ino, false).storages[0] - 1;
    lose(lost);
    stall();
    add(4);
    pass(8);
    req.parent = 1;
    req.name = (ProtobufCBinaryData){ 1, (uint8_t *)"f" };
    world_send(&w, ROZO__OP__MD_UNLINK, RPC_ROLE_CLIENT, w.session, msg,
               rozo__md_unlink_req__pack(&req, msg), &got);
    pass(2);
    assert_true(got.came || may_wait);
    stall_end();
    for (unsigned i = 0; i < 60 && !got.came; i++)
        pass(1);
    assert_true(got.came && got.status == ROZO__STATUS__OK);
    free(got.msg);
    pass(10);
    for (unsigned i = 0; i < 5; i++) {
        if (i != lost && (i < 4 || moved(4, ino)->generation != 0))
            assert_true(w.storages[i].n_removed > 0 &&
                        w.storages[i].removed[w.storages[i].n_removed - 1] == ino);
    }
    assert_int_equal(n_few(), 0);
}

static void test_removed_while_it_is_filled(void **state)
{
    (void)state;
    removed_in(stall_fill, false);
}

static void test_removed_while_it_is_fenced(void **state)
{
    (void)state;
    removed_in(stall_fence, true);
}

static void test_removed_while_new_homes_are_prepared(void **state)
{
    (void)state;
    removed_in(stall_prepare, true);
}

static void test_removed_while_old_storages_get_new_headers(void **state)
{
    (void)state;
    removed_in(stall_rehead, true);
}

/* Makes a file that lacks a spare, or whose third home was lost, right after a storage
 * was added. */
static uint64_t file_begun(unsigned seed, bool lost_home, struct seen *before)
{
    unsigned n = lost_home ? 4 : 3;
    uint64_t ino;

    world_open(&w, seed);
    world_start(&w);
    ino = begin(n, before);
    if (lost_home)
        lose(before->storages[2] - 1);
    w.storages[0].repairs_wait = 1;
    add(n);
    kv_memory_set_sync_ms(w.mem, 20); /* storages answer faster */
    return ino;
}

/* Returns the number of timers that fire until the file is complete. */
static unsigned steps_until_done(bool lost_home)
{
    struct seen before;
    unsigned n = 0;

    file_begun(1000, lost_home, &before);
    do {
        for (unsigned i = 0; i < 20; i++)
            env_virtual_run_next_timer(&w.env);
        n += 20;
    } while (n_few() != 0);
    world_close(&w);
    return n;
}

/* Cuts exportd's power after some timers, losing the newest commits. Then the file is
 * completed, and no storage has a later distribution than clients see. */
static void cut_after(unsigned steps, uint64_t n_lost, bool lost_home)
{
    unsigned lost = WORLD_STORAGES_MAX, n = lost_home ? 4 : 3;
    struct seen before, s;
    uint64_t ino = file_begun(1000, lost_home, &before);

    if (lost_home)
        lost = before.storages[2] - 1;
    for (unsigned i = 0; i < steps; i++)
        env_virtual_run_next_timer(&w.env);
    env_virtual_run_posted(&w.env);
    if (n_lost > kv_memory_n_unsynced(w.mem))
        n_lost = kv_memory_n_unsynced(w.mem);
    kv_memory_set_sync_ms(w.mem, 0);
    world_power_cut(&w, n_lost);
    world_reopen_session(&w);
    s = opened(ino, true); /* may wait */
    assert_true(s.n_storages == n || s.n_storages == 4);
    for (unsigned i = 0; i < n; i++) /* a lost one got nothing */
        assert_true(moved(i, ino)->generation <= s.dist_generation);
    if (s.dist_generation == 0)
        w.epochs_given = s.epoch;
    pass_until_none_is_few();
    s = opened(ino, true);
    assert_int_equal(s.n_storages, 4);
    assert_true(s.epoch > moved(before.storages[0] - 1, ino)->fenced);
    for (unsigned i = 0; i < n; i++) /* all others stay at their places */
        assert_int_equal(s.storages[i],
                         before.storages[i] == lost + 1 ? n + 1 : before.storages[i]);
    has_these(ino, 4, s.storages);
    world_close(&w);
}

static void test_a_power_cut_at_any_moment(void **state)
{
    (void)state;
    for (unsigned lost_home = 0; lost_home < 2; lost_home++) {
        unsigned n = steps_until_done(lost_home != 0);

        assert_true(n > 40 && n < 2000);
        for (uint64_t n_lost = 0; n_lost < 3; n_lost++) {
            for (unsigned steps = 0; steps < n; steps += UNIT_STEP)
                cut_after(steps, n_lost, lost_home != 0);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(test_a_file_gets_the_spare_that_it_lacks),
        TEST(test_a_file_with_all_is_left_alone),
        TEST(test_a_lost_storage_is_replaced_at_its_place),
        TEST(test_a_lost_home_is_replaced_before_a_spare_is_added),
        TEST(test_a_spare_alone_is_not_replaced_below_a_quorum),
        TEST(test_storage_that_is_up_again_becomes_a_candidate),
        TEST(test_home_that_is_up_before_the_rehead_keeps_its_place),
        TEST(test_empty_file_gets_new_candidates_without_a_repair),
        TEST(test_open_waits_while_storages_take_the_new_distribution),
        TEST(test_hung_storage_gets_the_distribution_later),
        TEST(test_file_that_is_not_sound_keeps_its_distribution),
        TEST(test_abandoned_change_counts_nowhere),
        TEST(test_nothing_changes_while_a_storage_is_down),
        TEST(test_old_storages_are_left_alone),
        TEST(test_storage_of_an_older_build_prevents_the_change),
        TEST(test_later_distribution_that_a_backup_lacks_is_found),
        TEST(test_later_distribution_that_a_client_met_is_found),
        TEST(test_replaced_storage_drops_the_file_when_it_is_up),
        TEST(test_a_session_that_keeps_its_token),
        TEST(test_a_pending_truncate_stays_pending),
        TEST(test_removed_while_it_is_filled),
        TEST(test_removed_while_it_is_fenced),
        TEST(test_removed_while_new_homes_are_prepared),
        TEST(test_removed_while_old_storages_get_new_headers),
        cmocka_unit_test(test_a_power_cut_at_any_moment),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
