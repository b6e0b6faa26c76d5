/*
 * test_file_fsx.c - random operations on one file, several at a time, against a model.
 *
 * Goal: a read returns what the history allows (I2), nothing flushed is lost when the
 * client dies (I1 as far as this layer goes), and the promises that fake_blocks.c asserts
 * are kept.
 * Method: writes of all kinds, reads, truncates, punches, allocations, flushes, closes
 * and deaths at random offsets, above an engine that answers late, in any order, with
 * failures and refusals. The model knows the newest value of every byte, and all values
 * that a dead client may have left.
 *
 *     test_file_fsx [--seed N] [--steps N]     replays one seed
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "fake_blocks.h"
#include "tests/unit/unit.h"

enum {
    FILE_MAX = 30 * FAKE_BS,
    LEN_MAX = 6 * FAKE_BS,
    CALLS_MAX = 8,
    SEEDS = 24,
    STEPS = 4000,
    WAIT_MS = 3600 * 1000,
};

/* A byte of the file. */
struct cell {
    uint64_t allowed[4]; /* values that a read after a death may return */
    uint64_t touched;    /* step of the last call that changed it */
    uint8_t value;
    uint8_t n_busy; /* calls in flight that change it */
    bool unknown;   /* any allowed value is right: a change failed */
};

enum kind { READ, WRITE, TRUNCATE, PUNCH, ALLOCATE, FLUSH, SEEK };

struct fsx;
struct call {
    struct fsx *x;
    enum kind kind;
    bool active;
    int rc;
    uint64_t step, offset, end, found;
    uint8_t data[LEN_MAX];
    /* for reads: bytes that a call was changing when the read began */
    bool skip[LEN_MAX];
    bool hole, alone;
    unsigned flags;
};

struct fsx {
    struct fake k;
    struct file_config config;
    struct file *f;
    struct cell cells[FILE_MAX];
    uint64_t size, step, n_compared, n_deaths, n_failed;
    bool failing;        /* failures are being injected */
    bool has_failed;     /* failures were injected before */
    uint64_t least_left; /* size after a death; bytes behind it may show */
    bool size_unknown;   /* a call that changes the size failed, or is in flight */
    struct call calls[CALLS_MAX];
    unsigned n_active;
    bool closed;
    int close_rc;
};

static uint64_t the_seed, the_steps;

#define CHECK(x, cond)                                                           \
    do {                                                                         \
        if (!(cond)) {                                                           \
            fprintf(stderr,                                                      \
                    "step %llu: " #cond                                          \
                    "\nreplay: test_file_fsx --seed %llu --steps %llu\n",        \
                    (unsigned long long)(x)->step, (unsigned long long)the_seed, \
                    (unsigned long long)the_steps);                              \
            abort();                                                             \
        }                                                                        \
    } while (0)

static bool is_allowed(const struct cell *c, uint8_t value)
{
    return (c->allowed[value / 64] >> value % 64 & 1) != 0;
}

static void allow(struct cell *c, uint8_t value)
{
    c->allowed[value / 64] |= 1ull << value % 64;
}

static void allow_only(struct cell *c, uint8_t value)
{
    memset(c->allowed, 0, sizeof(c->allowed));
    allow(c, value);
}

/* ---- what calls change ---- */

static void cells_begin(struct call *c)
{
    for (uint64_t i = c->offset; i < c->end; i++) {
        struct cell *cell = &c->x->cells[i];

        cell->value = c->kind == WRITE ? c->data[i - c->offset] : 0;
        cell->unknown = false;
        cell->touched = c->step;
        cell->n_busy++;
        allow(cell, cell->value);
    }
}

static void cells_end(struct call *c)
{
    for (uint64_t i = c->offset; i < c->end; i++) {
        struct cell *cell = &c->x->cells[i];

        cell->n_busy--;
        /* A write that should have extended the file this far may have failed before the
         * punch. */
        if (c->rc != 0 || (c->kind == PUNCH && i >= file_size(c->x->f)))
            cell->unknown = true;
    }
}

static void call_end(struct call *c, int rc)
{
    struct fsx *x = c->x;

    c->rc = rc;
    c->active = false;
    x->n_active--;
    if (rc != 0 && c->kind != SEEK) {
        CHECK(x, x->failing || x->k.dead);
        x->n_failed++;
        x->size_unknown = true;
    }
}

static void on_changed(void *arg, int rc)
{
    struct call *c = arg;

    call_end(c, rc);
    cells_end(c);
}

static void on_other(void *arg, int rc)
{
    call_end(arg, rc);
}

static void check_byte(struct call *c, uint64_t i, uint8_t got)
{
    struct fsx *x = c->x;
    struct cell *cell = &x->cells[c->offset + i];

    if (c->skip[i] || cell->touched > c->step || cell->unknown) {
        CHECK(x, is_allowed(cell, got));
        return;
    }
    if (cell->value != got)
        fprintf(stderr, "byte %llu: %u, not %u\n", (unsigned long long)(c->offset + i),
                got, cell->value);
    CHECK(x, cell->value == got);
    x->n_compared++;
}

static void on_read(void *arg, int rc, const struct iovec *iov, unsigned n_iov)
{
    struct call *c = arg;
    struct fsx *x = c->x;
    uint64_t n = 0;

    call_end(c, rc);
    if (rc != 0)
        return;
    for (unsigned i = 0; i < n_iov; i++)
        for (size_t j = 0; j < iov[i].iov_len; j++, n++)
            check_byte(c, n, ((const uint8_t *)iov[i].iov_base)[j]);
    CHECK(x, c->offset + n <= c->end);
    if (c->alone && c->found == x->size && !x->size_unknown)
        CHECK(x, c->offset + n == (c->end < x->size      ? c->end
                                   : c->offset < x->size ? x->size
                                                         : c->offset));
}

/* ---- waiting ---- */

static void run_some(struct fsx *x)
{
    env_virtual_run_posted(&x->k.v);
    if (fake_chance(&x->k, 20000))
        env_virtual_advance_ms(&x->k.v, 1200);
    else
        env_virtual_advance_ms(&x->k.v, fake_below(&x->k, 6));
}

static void run_until_idle(struct fsx *x)
{
    uint64_t limit_ns = x->k.v.now_ns + WAIT_MS * 1000000ull;

    env_virtual_run_posted(&x->k.v);
    while (x->n_active > 0) {
        CHECK(x, x->k.v.now_ns < limit_ns);
        CHECK(x, env_virtual_run_next_timer(&x->k.v) || x->n_active == 0);
    }
}

static struct call *call_new(struct fsx *x, enum kind kind)
{
    struct call *c = NULL;

    while (x->n_active == CALLS_MAX)
        run_some(x);
    for (unsigned i = 0; i < CALLS_MAX; i++)
        if (!x->calls[i].active)
            c = &x->calls[i];
    c->x = x;
    c->kind = kind;
    c->active = true;
    c->step = x->step;
    c->flags = 0;
    x->n_active++;
    return c;
}

static void choose_range(struct call *c, uint64_t max)
{
    struct fake *k = &c->x->k;
    unsigned grain = fake_below(k, 3) == 0 ? FAKE_BS : fake_below(k, 2) == 0 ? 512 : 1;
    uint64_t len = fake_below(k, 2) == 0 ? fake_below(k, 600) : fake_below(k, LEN_MAX);

    c->offset = fake_below(k, (unsigned)max);
    c->offset -= c->offset % grain;
    len += grain - len % grain;
    c->end = c->offset + len > max ? max : c->offset + len;
    c->end = c->end - c->offset > LEN_MAX ? c->offset + LEN_MAX : c->end;
}

/* ---- operations ---- */

static void op_read(struct fsx *x)
{
    struct call *c = call_new(x, READ);

    choose_range(c, FILE_MAX);
    c->alone = x->n_active == 1;
    c->found = x->size;
    for (uint64_t i = c->offset; i < c->end; i++)
        c->skip[i - c->offset] = x->cells[i].n_busy > 0;
    file_read(x->f, c->offset, c->end - c->offset, fake_below(&x->k, 4) == 0, on_read, c);
}

static void op_write(struct fsx *x)
{
    static const unsigned flags[] = { 0, 0, 0, 0, FILE_WRITE_THROUGH, FILE_WRITE_SYNC };
    struct call *c = call_new(x, WRITE);
    struct iovec iov[2];
    uint64_t len, cut;

    choose_range(c, FILE_MAX);
    c->flags = flags[fake_below(&x->k, 6)];
    if (x->n_active == 1 && !x->size_unknown && fake_below(&x->k, 3) == 0) {
        len = c->end - c->offset;
        c->offset = x->size;
        c->end = x->size + len > FILE_MAX ? FILE_MAX : x->size + len;
        c->flags |= FILE_WRITE_APPEND;
    }
    len = c->end - c->offset;
    cut = fake_below(&x->k, 2) == 0 ? len : fake_below(&x->k, (unsigned)len + 1);
    memset(c->data, (int)fake_below(&x->k, 255) + 1, len);
    for (uint64_t i = 0; i < len; i += 97)
        c->data[i] = (uint8_t)(fake_below(&x->k, 255) + 1);
    iov[0] = (struct iovec){ .iov_base = c->data, .iov_len = cut };
    iov[1] = (struct iovec){ .iov_base = c->data + cut, .iov_len = len - cut };
    cells_begin(c);
    x->size = c->end > x->size && len > 0 ? c->end : x->size;
    file_write(x->f, (c->flags & FILE_WRITE_APPEND) != 0 ? 0 : c->offset, iov, 2,
               c->flags, on_changed, c);
}

static void op_punch(struct fsx *x)
{
    struct call *c;
    uint64_t len;

    if (x->size_unknown)
        return;
    c = call_new(x, PUNCH);
    choose_range(c, FILE_MAX);
    len = c->end - c->offset;
    c->end = c->end > x->size ? x->size : c->end; /* stays within the size */
    c->end = c->end < c->offset ? c->offset : c->end;
    cells_begin(c);
    file_punch(x->f, c->offset, len, on_changed, c);
}

static void op_allocate(struct fsx *x)
{
    struct call *c = call_new(x, ALLOCATE);
    bool keep = fake_below(&x->k, 2) == 0;

    choose_range(c, FILE_MAX);
    if (!keep && c->end > x->size)
        x->size = c->end;
    file_allocate(x->f, c->offset, c->end - c->offset, keep, on_other, c);
}

static void cells_truncate(struct fsx *x, uint64_t size)
{
    for (uint64_t i = size; i < FILE_MAX && size < x->size; i++) {
        struct cell *cell = &x->cells[i];

        cell->value = 0;
        cell->unknown = false;
        cell->touched = x->step;
        allow(cell, 0);
    }
    x->size = size;
}

static void on_held(void *arg, int rc)
{
    struct call *c = arg;
    struct storcli_target target;
    struct file_attr attr;

    if (rc != 0 || fake_below(&c->x->k, 10) == 0) {
        if (rc == 0)
            file_truncate_cancel(c->x->f);
        call_end(c, rc);
        c->found = 0;
        return;
    }
    if (fake_below(&c->x->k, 8) == 0) { /* the request was lost */
        file_truncate_unsure(c->x->f);
        c->found = 0;
        call_end(c, 0);
        return;
    }
    c->found = 1;
    fake_target(&target);
    fake_setattr_size(&c->x->k, c->offset, &attr);
    if (fake_below(&c->x->k, 8) == 0) { /* the answer was lost */
        file_truncate_unsure(c->x->f);
        c->found = 2;
        call_end(c, 0);
        return;
    }
    file_truncate(c->x->f, &target, &attr, on_other, c);
}

/* Truncates with no other call in flight in the model; test_file.c tests calls that wait
 * behind a truncate. */
static void op_truncate(struct fsx *x)
{
    struct call *c;

    run_until_idle(x);
    c = call_new(x, TRUNCATE);
    c->offset = fake_below(&x->k, FILE_MAX);
    file_truncate_begin(x->f, on_held, c);
    if (fake_below(&x->k, 2) == 0)
        op_read(x);
    run_until_idle(x);
    if (c->found == 0)
        return;
    for (unsigned i = 0; c->found == 2 && i < 100; i++) { /* until the outcome is known */
        env_virtual_advance_ms(&x->k.v, FAKE_DELAY_MS + 1);
        if (file_size(x->f) == c->offset)
            break;
        file_truncate_unsure(x->f);
    }
    CHECK(x, file_size(x->f) == c->offset);
    x->size_unknown = false;
    if (c->offset < x->size || c->rc == 0)
        cells_truncate(x, c->offset);
    x->size = c->offset;
}

static void op_seek(struct fsx *x)
{
    struct call *c;
    int rc;

    run_until_idle(x);
    c = call_new(x, SEEK);
    c->hole = fake_below(&x->k, 2) == 0;
    c->offset = fake_below(&x->k, FILE_MAX);
    file_seek(x->f, c->offset, c->hole, &c->found, on_other, c);
    run_until_idle(x);
    rc = c->rc;
    CHECK(x, rc == 0 || rc == -ENXIO || x->failing);
    if (rc != 0 && rc != -ENXIO)
        return;
    if (rc == -ENXIO)
        c->found = x->size > c->offset ? x->size : c->offset;
    CHECK(x,
          c->found >= c->offset && (x->size_unknown || rc != 0 || c->found <= x->size));
    for (uint64_t i = c->offset; !c->hole && i < c->found; i++)
        CHECK(x, x->cells[i].value == 0 || x->cells[i].unknown || x->size_unknown);
    if (c->hole && rc == 0 && c->found < x->size && !x->size_unknown)
        CHECK(x, x->cells[c->found].value == 0 || x->cells[c->found].unknown);
}

/*
 * Checks that exportd knows of all data at the storages and of no other, unless the file
 * is uncounted and may have more. Behind the end a truncate may be unfinished.
 */
static void check_blocks(struct fsx *x)
{
    bool is_exact = x->n_deaths == 0 && !x->has_failed;
    uint64_t n = 0;

    if (x->k.s.uncounted || x->has_failed)
        return;
    for (uint64_t b = 0; b < FAKE_BLOCKS; b++) {
        const bool is_there = x->k.s.blocks[b].user_bytes != 0 || x->k.s.reserved[b] != 0;

        if (b * FAKE_BS < x->k.s.size && b * FAKE_BS < x->least_left)
            CHECK(x, x->k.s.allocated[b] >= (x->k.s.blocks[b].user_bytes != 0));
        if (is_exact) /* more than requested may be reserved */
            CHECK(x, x->k.s.allocated[b] <= is_there);
        n += x->k.s.allocated[b];
    }
    CHECK(x, file_allocated(x->f, n * FAKE_BS) == n * FAKE_BS);
}

/* Flushes: after that, a death may only bring back what was written later. */
static void op_flush(struct fsx *x)
{
    struct call *c;

    run_until_idle(x);
    c = call_new(x, FLUSH);
    if (fake_below(&x->k, 2) == 0)
        file_sync(x->f, on_other, c);
    else
        file_flush(x->f, on_other, c);
    run_until_idle(x);
    if (c->rc != 0)
        return;
    CHECK(x, file_size(x->f) == x->k.s.size);
    for (uint64_t i = 0; i < x->k.s.size && i < FILE_MAX; i++)
        if (!x->cells[i].unknown)
            allow_only(&x->cells[i], x->cells[i].value);
    if (!x->size_unknown)
        CHECK(x, x->size == x->k.s.size);
    x->size = x->k.s.size;
    x->size_unknown = false;
    check_blocks(x);
}

static void on_closed(void *arg, int rc)
{
    struct fsx *x = arg;

    x->closed = true;
    x->close_rc = rc;
}

static void close_file(struct fsx *x)
{
    uint64_t limit_ns = x->k.v.now_ns + WAIT_MS * 1000000ull;

    x->closed = false;
    file_close(x->f, on_closed, x);
    CHECK(x, !x->closed);
    env_virtual_run_posted(&x->k.v);
    while (!x->closed) {
        CHECK(x, x->k.v.now_ns < limit_ns);
        CHECK(x, env_virtual_run_next_timer(&x->k.v) || x->closed);
    }
    CHECK(x, x->n_active == 0);
}

static void open_file(struct fsx *x)
{
    x->f = fake_open(&x->k, &x->config, x->k.s.epoch + 1);
    x->size = x->k.s.size;
    x->size_unknown = false;
}

/* Takes over what the storages and exportd have after a death; each byte must be one that
 * is allowed. Bytes behind the size were never promised, and may show up when the file
 * grows over them. */
static void adopt_remains(struct fsx *x)
{
    static uint8_t remains[FILE_MAX];
    uint64_t size = x->k.s.size;

    CHECK(x, size <= FILE_MAX);
    fake_peek(&x->k, 0, remains, FILE_MAX);
    for (uint64_t i = 0; i < FILE_MAX; i++) {
        struct cell *cell = &x->cells[i];
        bool cut = x->k.s.truncate_pending && i >= x->k.s.truncate_size;
        uint8_t value = i < size && !cut && x->k.s.has_data ? remains[i] : 0;

        CHECK(x, i >= size || is_allowed(cell, value));
        cell->value = value;
        cell->unknown = i >= size && remains[i] != 0;
        if (!cell->unknown)
            allow_only(cell, value);
        allow(cell, remains[i]);
        allow(cell, 0);
    }
}

static void op_death(struct fsx *x)
{
    x->n_deaths++;
    fake_kill(&x->k);
    close_file(x);
    fake_revive(&x->k);
    x->least_left = x->k.s.size < x->least_left ? x->k.s.size : x->least_left;
    adopt_remains(x);
    open_file(x);
}

static void op_reopen(struct fsx *x)
{
    uint64_t size = x->size;
    bool size_known;

    run_until_idle(x);
    size_known = !x->size_unknown;
    close_file(x);
    CHECK(x, x->close_rc == 0 || x->failing);
    if (x->close_rc != 0) {
        fake_revive(&x->k);
        adopt_remains(x);
    } else if (size_known) {
        CHECK(x, size == x->k.s.size);
    }
    open_file(x);
}

/* Gives the file back: flushed data stays and the rest is dropped. From then on the file
 * is what the storages and exportd have. */
static void op_give_up(struct fsx *x)
{
    unsigned n_writes, n_told;
    struct call *c;

    run_until_idle(x);
    c = call_new(x, FLUSH);
    file_abandon(x->f, on_other, c);
    run_until_idle(x);
    CHECK(x, c->rc == 0 || x->failing);
    CHECK(x, file_is_clean(x->f));
    CHECK(x, file_size(x->f) == x->k.s.size);
    CHECK(x, c->rc != 0 || x->size_unknown || x->size == x->k.s.size);
    n_writes = x->k.n[FAKE_WRITE] + x->k.n[FAKE_MARK];
    n_told = x->k.n[FAKE_WROTE];
    env_virtual_advance_ms(&x->k.v, 100 * 1000);
    CHECK(x, x->k.n[FAKE_WRITE] + x->k.n[FAKE_MARK] == n_writes);
    CHECK(x, x->k.n[FAKE_WROTE] == n_told);
    adopt_remains(x);
    x->size = x->k.acked_end = x->k.s.size;
    x->size_unknown = false;
}

/* Stops all failures: everything must reach the storages, and be right. */
static void op_heal(struct fsx *x)
{
    static uint8_t stored[FILE_MAX];

    run_until_idle(x);
    x->failing = false;
    x->k.fail_ppm = 0;
    op_flush(x);
    fake_peek(&x->k, 0, stored, FILE_MAX);
    for (uint64_t i = 0; i < x->size; i++)
        if (!x->cells[i].unknown && x->k.s.has_data &&
            !(x->k.s.truncate_pending && i >= x->k.s.truncate_size))
            CHECK(x, stored[i] == x->cells[i].value);
    for (uint64_t at = 0; at < FILE_MAX; at += LEN_MAX) {
        struct call *c = call_new(x, READ);

        c->alone = true;
        c->found = x->size;
        c->offset = at;
        c->end = at + LEN_MAX > FILE_MAX ? FILE_MAX : at + LEN_MAX;
        memset(c->skip, 0, sizeof(c->skip));
        file_read(x->f, at, c->end - at, false, on_read, c);
        run_until_idle(x);
    }
}

static void one_step(struct fsx *x)
{
    unsigned dice = fake_below(&x->k, 1000);

    x->step++;
    if (dice < 350)
        op_read(x);
    else if (dice < 800)
        op_write(x);
    else if (dice < 830)
        op_truncate(x);
    else if (dice < 860)
        op_punch(x);
    else if (dice < 880)
        op_allocate(x);
    else if (dice < 930)
        op_flush(x);
    else if (dice < 960)
        op_seek(x);
    else if (dice < 970)
        op_reopen(x);
    else if (dice < 975)
        op_death(x);
    else if (dice < 980)
        op_heal(x);
    else if (dice < 985)
        x->failing = x->has_failed = true, x->k.fail_ppm = 30000;
    else if (dice < 990)
        file_drop_cache(x->f);
    else if (dice < 993)
        op_give_up(x);
    else
        run_some(x);
    if (fake_below(&x->k, 3) == 0)
        run_some(x);
}

static void run_seed(uint64_t seed, uint64_t steps)
{
    struct fsx *x = calloc(1, sizeof(*x));

    the_seed = seed;
    the_steps = steps;
    x->least_left = UINT64_MAX;
    fake_init(&x->k, seed);
    x->k.stale_ppm = 5000;
    x->k.denied_ppm = 2000;
    x->k.moved_ppm = 2000;
    x->config = (struct file_config){
        .write_behind_max = (4 + fake_below(&x->k, 12)) * FAKE_BS,
        .write_run_bytes = (1 + fake_below(&x->k, 8)) * FAKE_BS,
        .write_delay_ms = 1 + fake_below(&x->k, 300),
        .read_ahead_max = (1 + fake_below(&x->k, 8)) * FAKE_BS,
        .report_delay_ms = 1 + fake_below(&x->k, 300),
        .cache_ms = 1 + fake_below(&x->k, 500),
    };
    for (unsigned i = 0; i < FILE_MAX; i++)
        allow(&x->cells[i], 0);
    open_file(x);
    while (x->step < steps)
        one_step(x);
    op_heal(x);
    CHECK(x, x->n_compared > steps * 10);
    close_file(x);
    CHECK(x, x->close_rc == 0);
    if (steps > STEPS)
        printf(
            "seed %llu: %llu bytes compared, %llu calls failed, %llu deaths, %u writes\n",
            (unsigned long long)seed, (unsigned long long)x->n_compared,
            (unsigned long long)x->n_failed, (unsigned long long)x->n_deaths,
            x->k.n[FAKE_WRITE]);
    fake_free(&x->k);
    free(x);
}

static void reads_return_what_the_history_allows(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= unit_seeds(SEEDS); seed += UNIT_STEP)
        run_seed(seed, STEPS);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(
        reads_return_what_the_history_allows) };
    uint64_t seed = 0, steps = STEPS;

    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--seed") == 0)
            seed = strtoull(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--steps") == 0)
            steps = strtoull(argv[i + 1], NULL, 10);
    }
    if (seed != 0) {
        run_seed(seed, steps);
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
