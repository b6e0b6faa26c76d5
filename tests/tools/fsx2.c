/*
 * fsx2.c - random operations on one file through one or two paths, compared with a copy
 * in memory.
 *
 * In:     a seed, and one path, or two that lead to the same file through two mounts.
 * Out:    exit status 0; or 1 with the first wrong byte, size or error, the step that
 *         wrote those bytes, the last operations, and the command that repeats the run.
 *         2: wrong usage.
 * Keeps:  seed, options and number of paths decide every operation; answers of the file
 *         system decide nothing.
 * Yours:  the weights of the operations. They change the operations of a seed.
 *
 * Each path has descriptors of every kind (read-write, read only, write only, append) and
 * mappings, all open for long, so that data cached for them by a mount can become
 * outdated. After every step the size and the bytes of the step are checked through a
 * path that the seed chooses, sometimes the whole file through all paths.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    PATHS_MAX = 2,
    HISTORY = 24,       /* operations printed on a failure */
    BLOCK_BYTES = 8192, /* offsets prefer its multiples */
    SLACK_BYTES = 64,   /* looked at on each side of what a step touched */
    MODE_STEPS = 400,   /* then paths alternate in another way */
    FULL_STEPS = 200,   /* between looks at all of the file */
    SIZE_DEFAULT = 300000,
    OP_BYTES_MAX = 65536,
};

/* The descriptors of a path. */
enum { FD_RW, FD_READ, FD_WRITE, FD_APPEND, N_FDS };
static const int fd_flags[N_FDS] = { O_RDWR, O_RDONLY, O_WRONLY, O_WRONLY | O_APPEND };

enum { MAP_RW, MAP_READ, N_MAPS };

enum op_kind {
    OP_READ,
    OP_WRITE,
    OP_MAP_READ,
    OP_MAP_WRITE,
    OP_APPEND,
    OP_TRUNCATE,
    OP_PUNCH,
    OP_ZERO,
    OP_ALLOCATE,
    OP_FSYNC,
    OP_REOPEN,
    N_OPS
};

static const struct {
    const char *name;
    unsigned weight;
} kinds[N_OPS] = {
    [OP_READ] = { "read", 20 },        [OP_WRITE] = { "write", 22 },
    [OP_MAP_READ] = { "map read", 9 }, [OP_MAP_WRITE] = { "map write", 10 },
    [OP_APPEND] = { "append", 9 },     [OP_TRUNCATE] = { "truncate", 8 },
    [OP_PUNCH] = { "punch hole", 5 },  [OP_ZERO] = { "zero range", 3 },
    [OP_ALLOCATE] = { "allocate", 4 }, [OP_FSYNC] = { "fsync", 4 },
    [OP_REOPEN] = { "reopen", 6 },
};

/* One operation as the seed wants it. */
struct op {
    enum op_kind kind;
    unsigned path;       /* through which it is done */
    unsigned check_path; /* through which it is looked at afterwards */
    unsigned how;        /* which descriptor or system call, by kind; a random number */
    uint64_t off, len;   /* TRUNCATE: off is the new size */
};

struct path {
    const char *name;
    int fds[N_FDS];
    uint8_t *maps[N_MAPS]; /* size_max bytes each, or NULL while not mapped */
};

struct run {
    struct path paths[PATHS_MAX];
    unsigned n_paths;
    uint64_t seed, random; /* state of the random operations */
    uint64_t n_steps, step;
    uint64_t size_max;
    bool lazy, trace;

    uint8_t *bytes;   /* expected content, size_max bytes */
    uint32_t *writer; /* for each byte: the step that wrote it; 0: none, a zero */
    uint64_t size;
    uint8_t *buf; /* size_max, for what is read and written */

    unsigned path;    /* path of the last operation */
    unsigned stay_pc; /* how likely the next one is on the same, per cent */
    struct op history[HISTORY];
    uint64_t counts[N_OPS];
};

static sigjmp_buf on_bus_error;

/* ---- numbers ---- */

static uint64_t mix(uint64_t x)
{
    x ^= x >> 31;
    x *= 0x7fb5d329728ea185;
    x ^= x >> 27;
    x *= 0x81dadef4bc2dd44d;
    return x ^ x >> 33;
}

static uint64_t below(struct run *run, uint64_t n)
{
    run->random += 0x9e3779b97f4a7c15;
    return mix(run->random) % n;
}

/* Returns the byte that step `step` writes at `off`: any eight bytes in a row identify
 * the step. */
static uint8_t byte_of(const struct run *run, uint64_t step, uint64_t off)
{
    uint64_t word = mix(mix(run->seed + (step << 24)) + off / 8);

    return (uint8_t)(word >> 8 * (off % 8));
}

/* ---- telling ---- */

static void print_op(const struct run *run, const struct op *op, uint64_t step)
{
    fprintf(stderr, "%8" PRIu64 " path %u  %-10s how %-2u", step, op->path + 1,
            kinds[op->kind].name, op->how);
    if (op->kind == OP_TRUNCATE)
        fprintf(stderr, " to %" PRIu64, op->off);
    else if (op->kind != OP_FSYNC && op->kind != OP_REOPEN)
        fprintf(stderr, " at %" PRIu64 " len %" PRIu64 " (to %" PRIu64 ")", op->off,
                op->len, op->off + op->len);
    fprintf(stderr, run->n_paths > 1 ? ", looked at through %u\n" : "\n",
            op->check_path + 1);
}

static void print_history(const struct run *run)
{
    uint64_t first = run->step > HISTORY ? run->step - HISTORY + 1 : 1;

    fprintf(stderr, "the last operations:\n");
    for (uint64_t s = first; s <= run->step; s++)
        print_op(run, &run->history[s % HISTORY], s);
    fprintf(stderr,
            "replay: fsx2 --seed %" PRIu64 " --ops %" PRIu64 " --size %" PRIu64 "%s",
            run->seed, run->step, run->size_max, run->lazy ? " --lazy" : "");
    for (unsigned p = 0; p < run->n_paths; p++)
        fprintf(stderr, " %s", run->paths[p].name);
    fprintf(stderr, "\n");
}

__attribute__((format(printf, 2, 3), noreturn)) static void fail(const struct run *run,
                                                                 const char *format, ...)
{
    va_list args;

    fprintf(stderr, "fsx2: seed %" PRIu64 ", step %" PRIu64 ": ", run->seed, run->step);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\n");
    print_history(run);
    exit(1);
}

__attribute__((noreturn)) static void fail_call(const struct run *run, unsigned p,
                                                const char *call)
{
    fail(run, "%s through path %u: %s", call, p + 1, strerror(errno));
}

/* The step, this one or before, that wrote those bytes there; 0: none did. */
static uint64_t step_that_wrote(const struct run *run, const uint8_t *found, uint64_t off,
                                uint64_t len)
{
    for (uint64_t s = run->step; s > 0; s--) {
        uint64_t i = 0;

        while (i < len && found[i] == byte_of(run, s, off + i))
            i++;
        if (i == len)
            return s;
    }
    return 0;
}

__attribute__((noreturn)) static void fail_bytes(const struct run *run, unsigned p,
                                                 const char *how, uint64_t off,
                                                 const uint8_t *found, uint64_t len)
{
    uint64_t first = 0, end = len, n_same, step;
    bool zero = true;
    char whose[64] = "bytes that nobody wrote there";

    while (found[first] == run->bytes[off + first])
        first++;
    while (found[end - 1] == run->bytes[off + end - 1])
        end--;
    n_same = end - first < 8 ? end - first : 8;
    for (uint64_t i = 0; i < n_same; i++)
        zero = zero && found[first + i] == 0;
    step = zero ? 0 : step_that_wrote(run, found + first, off + first, n_same);
    if (zero)
        snprintf(whose, sizeof(whose), "zeros");
    else if (step > 0)
        snprintf(whose, sizeof(whose), "what step %" PRIu64 " wrote", step);
    fail(run,
         "%s through path %u: bytes %" PRIu64 " to %" PRIu64
         " are wrong. The first is 0x%02x and must be 0x%02x, "
         "%s step %" PRIu32 "; there is %s. The size is %" PRIu64,
         how, p + 1, off + first, off + end - 1, found[first], run->bytes[off + first],
         run->writer[off + first] == 0 ? "a zero; since" : "written in",
         run->writer[off + first], whose, run->size);
}

/* ---- the copy ---- */

static void copy_write(struct run *run, uint64_t off, uint64_t len)
{
    for (uint64_t i = off; i < off + len; i++) {
        run->bytes[i] = byte_of(run, run->step, i);
        run->writer[i] = (uint32_t)run->step;
    }
    if (off + len > run->size)
        run->size = off + len;
}

static void copy_zero(struct run *run, uint64_t off, uint64_t len)
{
    memset(run->bytes + off, 0, len);
    memset(run->writer + off, 0, len * sizeof(*run->writer));
}

static void copy_resize(struct run *run, uint64_t size)
{
    if (size < run->size)
        copy_zero(run, size, run->size - size);
    run->size = size;
}

static void compare(const struct run *run, unsigned p, const char *how, uint64_t off,
                    const uint8_t *found, uint64_t len)
{
    if (memcmp(found, run->bytes + off, len) != 0)
        fail_bytes(run, p, how, off, found, len);
}

/* ---- calls ---- */

static void open_fd(struct run *run, unsigned p, unsigned which, int more)
{
    struct path *path = &run->paths[p];

    path->fds[which] = open(path->name, fd_flags[which] | more, 0644);
    if (path->fds[which] < 0)
        fail_call(run, p, "open");
}

static void close_fd(struct run *run, unsigned p, unsigned which)
{
    if (close(run->paths[p].fds[which]) != 0)
        fail_call(run, p, "close");
}

static void unmap(struct run *run, unsigned p, unsigned which)
{
    uint8_t **map = &run->paths[p].maps[which];

    if (*map != NULL && munmap(*map, run->size_max) != 0)
        fail_call(run, p, "munmap");
    *map = NULL;
}

static uint8_t *map(struct run *run, unsigned p, unsigned which)
{
    struct path *path = &run->paths[p];

    if (path->maps[which] == NULL) {
        void *at = mmap(NULL, run->size_max,
                        which == MAP_RW ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED,
                        path->fds[which == MAP_RW ? FD_RW : FD_READ], 0);

        if (at == MAP_FAILED)
            fail_call(run, p, "mmap");
        path->maps[which] = at;
    }
    return path->maps[which];
}

static void check_size(struct run *run, unsigned p, bool by_name)
{
    struct stat st;

    if ((by_name ? stat(run->paths[p].name, &st)
                 : fstat(run->paths[p].fds[FD_RW], &st)) != 0)
        fail_call(run, p, by_name ? "stat" : "fstat");
    if ((uint64_t)st.st_size != run->size)
        fail(run, "%s through path %u tells a size of %lld, not %" PRIu64,
             by_name ? "stat" : "fstat", p + 1, (long long)st.st_size, run->size);
}

/* Read up to len bytes, also beyond the end, and compare. */
static void read_and_compare(struct run *run, unsigned p, unsigned which, uint64_t off,
                             uint64_t len)
{
    uint64_t there = off >= run->size ? 0 : run->size - off, done = 0;
    uint64_t want = len < there ? len : there;

    while (done < len) {
        ssize_t n = pread(run->paths[p].fds[which], run->buf + done, len - done,
                          (off_t)(off + done));

        if (n < 0)
            fail_call(run, p, "read");
        if (n == 0)
            break;
        done += (uint64_t)n;
    }
    if (done != want)
        fail(run,
             "read at %" PRIu64 " through path %u ends at %" PRIu64 ", not at %" PRIu64,
             off, p + 1, off + done, off + want);
    compare(run, p, "read", off, run->buf, done);
}

/* A page beyond the end of the file raises SIGBUS. */
static void expect_no_bus_error(struct run *run, unsigned p)
{
    if (run->n_paths == 1)
        return;
    /* A page fault does not request the size of the file: the kernel uses the size
     * that it got last. */
    check_size(run, p, false);
}

static void on_sigbus(int sig)
{
    (void)sig;
    siglongjmp(on_bus_error, 1);
}

/* ---- operations ---- */

static void do_read(struct run *run, const struct op *op)
{
    read_and_compare(run, op->path, op->how % 2 ? FD_READ : FD_RW, op->off, op->len);
}

static void fill(struct run *run, const struct op *op)
{
    for (uint64_t i = 0; i < op->len; i++)
        run->buf[i] = byte_of(run, run->step, op->off + i);
}

static void do_write(struct run *run, const struct op *op)
{
    bool append = op->kind == OP_APPEND;
    int fd = run->paths[op->path].fds[append             ? FD_APPEND
                                      : op->how % 3 == 0 ? FD_WRITE
                                                         : FD_RW];
    uint64_t done = 0;

    fill(run, op);
    while (done < op->len) {
        ssize_t n =
            append ? write(fd, run->buf + done, op->len - done)
                   : pwrite(fd, run->buf + done, op->len - done, (off_t)(op->off + done));

        if (n <= 0)
            fail_call(run, op->path, append ? "append" : "write");
        done += (uint64_t)n;
    }
    copy_write(run, op->off, op->len);
}

static void do_map_read(struct run *run, const struct op *op)
{
    const uint8_t *at = map(run, op->path, op->how % 2 ? MAP_READ : MAP_RW);

    expect_no_bus_error(run, op->path);
    if (sigsetjmp(on_bus_error, 1) != 0)
        fail(run, "SIGBUS in a mapped read through path %u, size %" PRIu64, op->path + 1,
             run->size);
    memcpy(run->buf, at + op->off, op->len);
    compare(run, op->path, "mapped read", op->off, run->buf, op->len);
}

static void do_map_write(struct run *run, const struct op *op)
{
    static const uint64_t page = 4096;
    uint8_t *at = map(run, op->path, MAP_RW);
    uint64_t first = op->off / page * page;

    expect_no_bus_error(run, op->path);
    fill(run, op);
    if (sigsetjmp(on_bus_error, 1) != 0)
        fail(run, "SIGBUS in a mapped write through path %u, size %" PRIu64, op->path + 1,
             run->size);
    memcpy(at + op->off, run->buf, op->len);
    copy_write(run, op->off, op->len);
    if (run->lazy && op->how % 2)
        return;
    if (msync(at + first, op->off + op->len - first, MS_SYNC) != 0)
        fail_call(run, op->path, "msync");
}

static void do_truncate(struct run *run, const struct op *op)
{
    const struct path *path = &run->paths[op->path];

    if (op->off == 0 && op->how % 2) { /* as an editor does */
        close_fd(run, op->path, FD_WRITE);
        open_fd(run, op->path, FD_WRITE, O_TRUNC);
    } else if ((op->how % 3 == 0
                    ? truncate(path->name, (off_t)op->off)
                    : ftruncate(path->fds[op->how % 3 == 1 ? FD_RW : FD_WRITE],
                                (off_t)op->off)) != 0) {
        fail_call(run, op->path, "truncate");
    }
    copy_resize(run, op->off);
}

static void do_fallocate(struct run *run, const struct op *op)
{
    bool keep = op->kind == OP_PUNCH || op->how % 2;
    int mode = (op->kind == OP_PUNCH  ? FALLOC_FL_PUNCH_HOLE
                : op->kind == OP_ZERO ? FALLOC_FL_ZERO_RANGE
                                      : 0) |
               (keep ? FALLOC_FL_KEEP_SIZE : 0);
    uint64_t end = op->off + op->len;

    if (fallocate(run->paths[op->path].fds[FD_RW], mode, (off_t)op->off,
                  (off_t)op->len) != 0)
        fail_call(run, op->path, kinds[op->kind].name);
    if (op->kind != OP_ALLOCATE && op->off < run->size)
        copy_zero(run, op->off, (end < run->size ? end : run->size) - op->off);
    if (!keep && end > run->size)
        copy_resize(run, end);
}

static void do_fsync(struct run *run, const struct op *op)
{
    int fd = run->paths[op->path].fds[op->how % N_FDS];

    if ((op->how % 2 ? fsync(fd) : fdatasync(fd)) != 0)
        fail_call(run, op->path, "fsync");
}

/* A mapping may outlive the descriptor it was made of. */
static void do_reopen(struct run *run, const struct op *op)
{
    unsigned what = op->how % (N_FDS + N_MAPS + 1);

    for (unsigned m = 0; m < N_MAPS; m++) {
        if (what == N_FDS + m || what == N_FDS + N_MAPS)
            unmap(run, op->path, m);
    }
    for (unsigned f = 0; f < N_FDS; f++) {
        if (what == f || what == N_FDS + N_MAPS)
            close_fd(run, op->path, f);
    }
    for (unsigned f = 0; f < N_FDS; f++) {
        if (what == f || what == N_FDS + N_MAPS)
            open_fd(run, op->path, f, 0);
    }
}

static void (*const actions[N_OPS])(struct run *, const struct op *) = {
    [OP_READ] = do_read,           [OP_WRITE] = do_write,    [OP_MAP_READ] = do_map_read,
    [OP_MAP_WRITE] = do_map_write, [OP_APPEND] = do_write,   [OP_TRUNCATE] = do_truncate,
    [OP_PUNCH] = do_fallocate,     [OP_ZERO] = do_fallocate, [OP_ALLOCATE] = do_fallocate,
    [OP_FSYNC] = do_fsync,         [OP_REOPEN] = do_reopen,
};

/* ---- the seed's wishes ---- */

static uint64_t pick_offset(struct run *run)
{
    uint64_t off = below(run, run->size_max);
    uint64_t near = below(run, 33);

    switch (below(run, 4)) {
    case 0:
        off = off / BLOCK_BYTES * BLOCK_BYTES + near;
        off = off < 16 ? 0 : off - 16;
        break;
    case 1:
        off = run->size + near < 16 ? 0 : run->size + near - 16;
        break;
    case 2:
        off = run->size == 0 ? 0 : off % run->size;
        break;
    }
    return off < run->size_max ? off : run->size_max - 1;
}

static uint64_t pick_length(struct run *run)
{
    uint64_t most = below(run, 2) ? 512 : below(run, 2) ? 2 * BLOCK_BYTES : OP_BYTES_MAX;

    return 1 + below(run, most);
}

static enum op_kind pick_kind(struct run *run)
{
    unsigned sum = 0, at, k;

    for (k = 0; k < N_OPS; k++)
        sum += kinds[k].weight;
    at = (unsigned)below(run, sum);
    for (k = 0; at >= kinds[k].weight; k++)
        at -= kinds[k].weight;
    return (enum op_kind)k;
}

static unsigned pick_path(struct run *run)
{
    static const unsigned stays[] = { 50, 0, 90, 97 };

    if (run->step % MODE_STEPS == 1)
        run->stay_pc = stays[below(run, 4)];
    if (run->n_paths > 1 && below(run, 100) >= run->stay_pc)
        run->path = 1 - run->path;
    return run->path;
}

static void pick(struct run *run, struct op *op)
{
    op->path = pick_path(run);
    op->check_path = (unsigned)below(run, run->n_paths);
    op->how = (unsigned)below(run, 60);
    op->kind = pick_kind(run);
    op->off = pick_offset(run);
    op->len = pick_length(run);
    if (op->kind == OP_MAP_READ || op->kind == OP_MAP_WRITE) {
        if (run->size == 0)
            op->kind = OP_WRITE;
        else if (op->off >= run->size)
            op->off %= run->size;
        if (op->kind != OP_WRITE && op->len > run->size - op->off)
            op->len = run->size - op->off;
    }
    if (op->kind == OP_APPEND && run->size + op->len > run->size_max)
        op->kind = OP_TRUNCATE; /* room again */
    if (op->kind == OP_APPEND)
        op->off = run->size;
    if (op->kind == OP_TRUNCATE && op->how % 5 == 0)
        op->off = 0;
    if (op->off + op->len > run->size_max)
        op->len = run->size_max - op->off;
}

/* ---- a run ---- */

static void check_step(struct run *run, const struct op *op)
{
    uint64_t first = op->off < SLACK_BYTES ? 0 : op->off - SLACK_BYTES;
    uint64_t end = op->off + (op->kind == OP_TRUNCATE ? 0 : op->len) + SLACK_BYTES;

    if (op->kind == OP_FSYNC || op->kind == OP_REOPEN)
        return;
    check_size(run, op->check_path, op->how % 2);
    read_and_compare(run, op->check_path, op->how % 4 < 2 ? FD_READ : FD_RW, first,
                     (end < run->size_max ? end : run->size_max) - first);
}

static void check_all(struct run *run)
{
    for (unsigned p = 0; p < run->n_paths; p++) {
        check_size(run, p, true);
        read_and_compare(run, p, FD_READ, 0, run->size_max);
    }
}

static void run_steps(struct run *run)
{
    for (run->step = 1; run->step <= run->n_steps; run->step++) {
        struct op *op = &run->history[run->step % HISTORY];

        pick(run, op);
        if (run->trace)
            print_op(run, op, run->step);
        run->counts[op->kind]++;
        actions[op->kind](run, op);
        check_step(run, op);
        if (run->step % FULL_STEPS == 0)
            check_all(run);
    }
    run->step = run->n_steps;
    check_all(run);
}

static void begin(struct run *run)
{
    const struct sigaction action = { .sa_handler = on_sigbus };

    run->random = mix(run->seed + 1);
    run->bytes = calloc(run->size_max, 1);
    run->writer = calloc(run->size_max, sizeof(*run->writer));
    run->buf = malloc(run->size_max);
    if (run->bytes == NULL || run->writer == NULL || run->buf == NULL) {
        fprintf(stderr, "fsx2: no memory for a file of %" PRIu64 " bytes\n",
                run->size_max);
        exit(2);
    }
    sigaction(SIGBUS, &action, NULL);
    for (unsigned p = 0; p < run->n_paths; p++) {
        for (unsigned f = 0; f < N_FDS; f++)
            open_fd(run, p, f, p == 0 && f == 0 ? O_CREAT | O_TRUNC : 0);
    }
}

static void end(struct run *run)
{
    for (unsigned p = 0; p < run->n_paths; p++) {
        for (unsigned m = 0; m < N_MAPS; m++)
            unmap(run, p, m);
        for (unsigned f = 0; f < N_FDS; f++)
            close_fd(run, p, f);
    }
    if (unlink(run->paths[0].name) != 0)
        fail_call(run, 0, "unlink");
    printf("fsx2: seed %" PRIu64 ", %" PRIu64 " operations, all right:", run->seed,
           run->n_steps);
    for (unsigned k = 0; k < N_OPS; k++)
        printf("%s %" PRIu64 " %s", k > 0 ? "," : "", run->counts[k], kinds[k].name);
    printf("\n");
    free(run->bytes);
    free(run->writer);
    free(run->buf);
}

/* ---- the command line ---- */

static const char usage[] =
    "Usage: fsx2 [--seed N] [--ops N] [--size BYTES] [--lazy] [--trace] PATH "
    "[SAME_FILE]\n"
    "Random operations on a file that it makes, through both paths when there are two.\n"
    "\n"
    "  --seed N      decides all operations (1)\n"
    "  --ops N       how many (10000)\n"
    "  --size BYTES  the file is never longer (300000)\n"
    "  --lazy        what is written to a mapping is not always synced; one path only\n"
    "  --trace       print each operation before it is done\n";

static uint64_t number(const char *text, uint64_t least, uint64_t most)
{
    char *rest;
    unsigned long long n = strtoull(text, &rest, 10);

    if (*text < '0' || *text > '9' || *rest != '\0' || n < least || n > most) {
        fprintf(stderr, "fsx2: %s: want a number from %" PRIu64 " to %" PRIu64 "\n", text,
                least, most);
        exit(2);
    }
    return n;
}

static void parse(struct run *run, int argc, char **argv)
{
    static const struct option options[] = {
        { "seed", required_argument, NULL, 's' }, { "ops", required_argument, NULL, 'n' },
        { "size", required_argument, NULL, 'm' }, { "lazy", no_argument, NULL, 'l' },
        { "trace", no_argument, NULL, 't' },      { NULL, 0, NULL, 0 },
    };
    int c;

    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (c == 's')
            run->seed = number(optarg, 0, UINT32_MAX);
        else if (c == 'n')
            run->n_steps = number(optarg, 1, UINT32_MAX);
        else if (c == 'm')
            run->size_max = number(optarg, 4096, 1 << 30);
        else if (c == 'l')
            run->lazy = true;
        else if (c == 't')
            run->trace = true;
        else
            exit((fputs(usage, stderr), 2));
    }
    run->n_paths = (unsigned)(argc - optind);
    if (run->n_paths < 1 || run->n_paths > PATHS_MAX || (run->lazy && run->n_paths > 1))
        exit((fputs(usage, stderr), 2));
    for (unsigned p = 0; p < run->n_paths; p++)
        run->paths[p].name = argv[optind + (int)p];
}

int main(int argc, char **argv)
{
    static struct run run = { .seed = 1, .n_steps = 10000, .size_max = SIZE_DEFAULT };

    parse(&run, argc, argv);
    begin(&run);
    run_steps(&run);
    end(&run);
    return 0;
}
