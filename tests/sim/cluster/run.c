/*
 * run.c - one run: programs on several mounts, faults, and the checks as it goes and after.
 *
 * In:     a seed. Out: the words and the end of the process when something cannot be.
 * Keeps:  everything follows from the seed.
 */
#include "tests/sim/cluster/run.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/proto/rozo.pb-c.h"

#include "common/bytes.h"
#include "common/list.h"
#include "tests/sim/cluster/ask.h"
#include "tests/sim/cluster/healed.h"
#include "tests/sim/cluster/model.h"
#include "tests/sim/cluster/mount.h"
#include "tests/sim/cluster/servers.h"

enum {
    CLIENTS = 3,
    PROGRAMS = 3, /* on each mount */
    BLOCK = 4096,
    NAMES = 10,
};

enum episode {
    EPISODE_NONE,
    EPISODE_WRITER,
    EPISODE_READER,
    EPISODE_NAMES,
};

enum data_op {
    DATA_WRITE,
    DATA_READ,
    DATA_FSYNC,
    DATA_FLUSH,
    DATA_TRUNCATE,
    DATA_PUNCH,
    DATA_SEEK,
    DATA_STAT,
};

/* A program on a mount: one request at a time, one episode after the other. */
struct program {
    struct fuse_req req; /* first */
    struct sim_client *client;
    unsigned life;
    struct env_timer timer;
    void (*on_timer)(struct program *p);
    void (*on_answer)(struct program *p);
    enum episode episode;
    int name, name2; /* locked; NOBODY */
    int file;        /* in use; NOBODY */
    bool writer, opened;
    uint64_t fh;
    int open_flags;
    unsigned n_left; /* data operations of this episode */
    struct model_view view;
    enum data_op op;
    uint32_t no; /* of the write under way */
    uint64_t off, len, started_ns;
    unsigned exportd_cuts; /* seen when the operation began */
    int kind;
    uint8_t data[MOUNT_READ_MAX];
};

/* A fault that ends. */
struct fault {
    struct env_timer timer;
    void (*end)(struct fault *f);
    bool active;
    unsigned a, b;
};

enum { FAULTS_MAX = 24 };

struct run {
    struct run_config config;
    struct run_result result;
    unsigned n, k;                          /* of the layout */
    struct sim_client clients[CLIENTS + 1]; /* the last one looks at the end */
    struct program programs[CLIENTS * PROGRAMS];
    struct fault faults[FAULTS_MAX];
    struct env_timer fault_timer;
    bool ending;
    struct {
        uint64_t ino, block;
    } looked_at;                 /* when something is wrong, tell who has what */
    unsigned exportd_cuts;       /* losses of its power so far */
    bool armed_power[HOSTS_MAX]; /* a watched host loses its power */
    uint64_t fault_pause_us;     /* at most, between two */
    unsigned rot_storage;        /* rot is only here, so that it cannot add up */
};
static struct run *run;
static bool records_are_believed; /* RUN_MUTANT_NO_CRC */

/* ---- a mutant ---- */

uint32_t __real_record_crc(const uint8_t *p, const void *overhang, size_t overhang_bytes,
                           const void *body, size_t body_bytes);
uint32_t __wrap_record_crc(const uint8_t *p, const void *overhang, size_t overhang_bytes,
                           const void *body, size_t body_bytes);

/* What it is compared with is what it says. Sealing does not come through here. */
uint32_t __wrap_record_crc(const uint8_t *p, const void *overhang, size_t overhang_bytes,
                           const void *body, size_t body_bytes)
{
    if (records_are_believed)
        return get_le32(p);
    return __real_record_crc(p, overhang, overhang_bytes, body, body_bytes);
}

/* ---- words ---- */

static void say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *fmt, ...)
{
    va_list args;

    if (!run->config.verbose)
        return;
    fprintf(stderr, "%10.4f ", (double)world_clock.now_ns / 1e9);
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fprintf(stderr, "\n");
}

static void wrong(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
static void wrong(const char *fmt, ...)
{
    va_list args;

    fflush(stdout);
    fprintf(stderr, "VIOLATION at %.4f s, after %u operations: ",
            (double)world_clock.now_ns / 1e9, run->result.n_ops);
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fprintf(stderr, "\n");
    if (run->looked_at.ino != 0 && servers.exportd.host->proc->alive)
        healed_dump(run->looked_at.ino, run->looked_at.block);
    abort();
}

static void expect(const char *words_or_null, const struct program *p)
{
    if (words_or_null != NULL && p->file != NOBODY && model.bad_file == p->file) {
        run->looked_at.ino = model.files[p->file].ino;
        run->looked_at.block = model.bad_unit * UNIT / BLOCK;
    }
    if (words_or_null != NULL)
        wrong("%s (%s)", words_or_null, p->client->host->proc->name);
}

/* ---- programs ---- */

static void program_begin(struct program *p);

static void on_program_timer(struct env_timer *timer)
{
    struct program *p = container_of(timer, struct program, timer);

    if (client_is_up(p->client) && p->client->host->proc->life == p->life)
        p->on_timer(p);
}

/* Most programs are quick, some take a nap. */
static uint64_t think_us(void)
{
    uint64_t what = world_below(100);

    return world_below(what < 50 ? 4000 : what < 92 ? 250000 : 2500000);
}

static void program_later(struct program *p, uint64_t max_us,
                          void (*fn)(struct program *p))
{
    p->on_timer = fn;
    world_timer_start_us(&p->timer, world_below(max_us + 1));
}

static void on_req_done(struct fuse_req *req)
{
    struct program *p = container_of(req, struct program, req);

    if (!client_is_up(p->client) || p->client->host->proc->life != p->life)
        return; /* it died with the answer in its hands */
    p->on_answer(p);
}

/* Before a request: what comes then. */
static struct fuse_req *asking(struct program *p, void (*on_answer)(struct program *p))
{
    run->result.n_ops++;
    p->on_answer = on_answer;
    p->started_ns = p->view.started_ns = world_clock.now_ns;
    p->exportd_cuts = run->exportd_cuts;
    p->req.done = on_req_done;
    p->req.data = p->data;
    return &p->req;
}

/* What may go wrong here and now. */
static void expect_error(struct program *p, int rc, const char *what)
{
    unsigned f = run->config.faults;

    run->result.n_errors++;
    say("%s: %s fails: %s", p->client->host->proc->name, what, strerror(-rc));
    if (rc == -EIO && (f & ~(unsigned)FAULT_FULL) != 0)
        return;
    if (rc == -ENOSPC && (f & FAULT_FULL) != 0)
        return;
    if (rc == -ESTALE) /* removed, or its creation was lost with exportd's power */
        return;
    wrong("%s: %s fails: %s", p->client->host->proc->name, what, strerror(-rc));
}

static void unlock_names(struct program *p)
{
    if (p->name != NOBODY)
        model.names[p->name].locked = false;
    if (p->name2 != NOBODY)
        model.names[p->name2].locked = false;
    p->name = p->name2 = NOBODY;
}

static void program_end_episode(struct program *p)
{
    unlock_names(p);
    if (p->file != NOBODY) {
        struct model_file *f = &model.files[p->file];

        f->n_users--;
        f->n_reads--;
        if (p->writer)
            f->writer = NOBODY;
        model_collapse(p->file);
    }
    p->file = NOBODY;
    p->writer = p->opened = false;
    p->episode = EPISODE_NONE;
    program_later(p, think_us(), program_begin);
}

/* A file of the model that no name can mean any more is free for another. */
static void files_sweep(void)
{
    bool meant[FILES_MAX_SIM] = { false };

    for (unsigned i = 0; i < model.n_names; i++) {
        for (unsigned j = 0; j < model.names[i].n_values; j++) {
            if (model.names[i].values[j].file != NOBODY)
                meant[model.names[i].values[j].file] = true;
        }
    }
    for (int i = 0; i < FILES_MAX_SIM; i++) {
        if (model.files[i].used && !meant[i] && model.files[i].n_users == 0)
            model_file_free(i);
    }
}

static int file_new(void)
{
    int file = model_file_new();

    if (file != NOBODY)
        return file;
    files_sweep();
    return model_file_new();
}

static bool strays(void)
{
    return net_n_strays(servers.exportd.host) != 0;
}

static uint64_t units(uint64_t max)
{
    return world_below(max / UNIT + 1) * UNIT;
}

/* ---- data ---- */

static void data_next(struct program *p);

static void data_again(struct program *p)
{
    program_later(p, think_us(), data_next);
}

static void on_data_read(struct program *p)
{
    const char *w = NULL;

    if (p->req.rc != 0)
        expect_error(p, p->req.rc, "read");
    else
        w = model_check_read(p->file, &p->view, p->off, p->len, p->data, p->req.data_len);
    if (w != NULL)
        say("read %llu+%llu got %zu", (unsigned long long)p->off,
            (unsigned long long)p->len, p->req.data_len);
    expect(w, p);
    data_again(p);
}

static void on_data_sought(struct program *p)
{
    uint64_t lo, hi, end = p->req.n;
    static const uint8_t zeros[FILE_BYTES_MAX_SIM];

    model_size(p->file, &p->view, &lo, &hi);
    if (p->req.rc == -ENXIO)
        end = lo;
    else if (p->req.rc != 0)
        expect_error(p, p->req.rc, "seek");
    if (p->req.rc == 0 || p->req.rc == -ENXIO) {
        end = end / UNIT * UNIT;
        if (end > hi)
            wrong("seek beyond the end: %llu > %llu", (unsigned long long)end,
                  (unsigned long long)hi);
        if (end > p->off) /* nothing but zeros was passed over */
            expect(model_check_read(p->file, &p->view, p->off, end - p->off, zeros,
                                    end - p->off),
                   p);
    }
    data_again(p);
}

static void on_data_stat(struct program *p)
{
    if (p->req.rc != 0)
        expect_error(p, p->req.rc, "getattr");
    else
        expect(model_check_size(p->file, &p->view, (uint64_t)p->req.st.st_size), p);
    data_again(p);
}

static void on_data_written(struct program *p)
{
    if (p->req.rc != 0)
        expect_error(p, p->req.rc, p->op == DATA_TRUNCATE ? "truncate" : "write");
    model_write_done(p->file, p->no, p->req.rc);
    if (p->req.rc == 0 && p->op == DATA_WRITE && (p->open_flags & O_DSYNC) != 0)
        model_write_synced(p->file, p->no);
    data_again(p);
}

static void on_data_synced(struct program *p)
{
    if (p->req.rc != 0) {
        expect_error(p, p->req.rc, p->op == DATA_FSYNC ? "fsync" : "flush");
        if (p->op == DATA_FSYNC)
            model_fsync_failed(p->file);
    } else {
        model_stored(p->file, &p->view, p->op == DATA_FSYNC);
        if (p->op == DATA_FSYNC)
            model_names_synced(p->started_ns);
    }
    data_again(p);
}

static void data_write(struct program *p)
{
    struct model_file *f = &model.files[p->file];
    uint64_t off, len;

    switch (world_below(6)) {
    case 0: /* append */
        off = f->now_size;
        len = UNIT + units(2 * BLOCK);
        break;
    case 1: /* a piece of a block */
        off = units(16 * BLOCK);
        len = UNIT + units(BLOCK / 2);
        break;
    case 2: /* long */
        off = world_below(8) * BLOCK;
        len = (4 + world_below(16)) * BLOCK;
        break;
    case 3: /* across blocks */
        off = units(16 * BLOCK);
        len = UNIT + units(3 * BLOCK);
        break;
    default: /* whole blocks, often the same */
        off = world_below(8) * BLOCK;
        len = (1 + world_below(2)) * BLOCK;
        break;
    }
    if (off >= FILE_BYTES_MAX_SIM)
        off = 0;
    if (len > FILE_BYTES_MAX_SIM - off)
        len = FILE_BYTES_MAX_SIM - off;
    p->off = off;
    p->len = len;
    if (off + len > f->now_size)
        f->now_size = off + len;
    p->no =
        model_write_begin(p->file, off, off + len, false, p->view.client, p->view.life);
    say("%s: file %d write %u at %llu+%llu%s", p->client->host->proc->name, p->file,
        model.last_id, (unsigned long long)off, (unsigned long long)len,
        (p->open_flags & O_DSYNC) != 0 ? " sync" : "");
    model_fill(p->file, p->no, p->data, off, len);
    client_write(p->client, asking(p, on_data_written), f->ino, p->fh, off, p->data, len,
                 p->open_flags);
}

static void data_truncate(struct program *p)
{
    struct model_file *f = &model.files[p->file];
    uint64_t size = world_chance(300000) ? 0 : units(20 * BLOCK);

    f->now_size = size;
    p->no =
        model_write_begin(p->file, size, UINT64_MAX, true, p->view.client, p->view.life);
    say("%s: file %d truncate to %llu", p->client->host->proc->name, p->file,
        (unsigned long long)size);
    client_truncate(p->client, asking(p, on_data_written), f->ino, size);
}

static void data_punch(struct program *p)
{
    struct model_file *f = &model.files[p->file];
    uint64_t off = world_chance(500000) ? units(12 * BLOCK) : world_below(12) * BLOCK;
    uint64_t len = UNIT + (world_chance(500000) ? units(4 * BLOCK) : 2 * BLOCK - UNIT);

    p->no =
        model_write_begin(p->file, off, off + len, true, p->view.client, p->view.life);
    say("%s: file %d punch %llu+%llu", p->client->host->proc->name, p->file,
        (unsigned long long)off, (unsigned long long)len);
    client_punch(p->client, asking(p, on_data_written), f->ino, p->fh, off, len);
}

static void data_look(struct program *p)
{
    struct model_file *f = &model.files[p->file];

    p->off = world_chance(300000) ? 0 : units(16 * BLOCK);
    p->len = world_chance(300000) ? FILE_BYTES_MAX_SIM - p->off : UNIT + units(4 * BLOCK);
    if (p->len > FILE_BYTES_MAX_SIM - p->off)
        p->len = FILE_BYTES_MAX_SIM - p->off;
    if (p->op == DATA_READ)
        client_read(p->client, asking(p, on_data_read), f->ino, p->fh, p->off, p->len,
                    world_chance(200000) ? O_DIRECT : 0);
    else if (p->op == DATA_SEEK)
        client_seek(p->client, asking(p, on_data_sought), f->ino, p->fh, p->off,
                    SEEK_DATA);
    else
        client_getattr(p->client, asking(p, on_data_stat), f->ino);
}

static void on_released(struct program *p)
{
    if (p->req.rc != 0)
        wrong("release fails: %s", strerror(-p->req.rc));
    program_end_episode(p);
}

static void on_close_flushed(struct program *p)
{
    if (p->req.rc != 0) {
        expect_error(p, p->req.rc, "close");
        model_close_failed(p->file, p->view.client, p->view.life);
    } else if (p->writer)
        model_stored(p->file, &p->view, false);
    client_release(p->client, asking(p, on_released), model.files[p->file].ino, p->fh);
}

static enum data_op data_choose(const struct program *p)
{
    static const enum data_op writer[] = {
        DATA_WRITE, DATA_WRITE,    DATA_WRITE, DATA_WRITE, DATA_WRITE, DATA_READ,
        DATA_READ,  DATA_READ,     DATA_FSYNC, DATA_FSYNC, DATA_FLUSH, DATA_STAT,
        DATA_PUNCH, DATA_TRUNCATE, DATA_SEEK,  DATA_WRITE,
    };
    static const enum data_op reader[] = { DATA_READ, DATA_READ, DATA_READ,
                                           DATA_READ, DATA_STAT, DATA_SEEK };

    if (p->writer)
        return writer[world_below(sizeof(writer) / sizeof(writer[0]))];
    return reader[world_below(sizeof(reader) / sizeof(reader[0]))];
}

static void data_next(struct program *p)
{
    uint64_t ino = model.files[p->file].ino;

    if (p->n_left == 0 || run->ending) {
        client_flush(p->client, asking(p, on_close_flushed), ino, p->fh);
        return;
    }
    p->n_left--;
    p->op = data_choose(p);
    switch (p->op) {
    case DATA_WRITE:
        data_write(p);
        break;
    case DATA_TRUNCATE:
        data_truncate(p);
        break;
    case DATA_PUNCH:
        data_punch(p);
        break;
    case DATA_FSYNC:
        say("%s: file %d fsync", p->client->host->proc->name, p->file);
        client_fsync(p->client, asking(p, on_data_synced), ino, p->fh);
        break;
    case DATA_FLUSH:
        client_flush(p->client, asking(p, on_data_synced), ino, p->fh);
        break;
    case DATA_READ:
    case DATA_SEEK:
    case DATA_STAT:
        data_look(p);
        break;
    }
}

/* ---- finding and opening a file ---- */

static void use_file(struct program *p, int file)
{
    struct model_file *f = &model.files[file];

    p->file = file;
    f->n_users++;
    f->n_reads++; /* what it may see from its open on */
    if (p->episode == EPISODE_WRITER && f->writer == NOBODY && !strays()) {
        p->writer = true;
        f->writer = p->view.client;
    }
    p->n_left = 1 + (unsigned)world_below(p->writer ? 14 : 4);
}

static void on_opened(struct program *p)
{
    if (p->req.rc != 0) {
        expect_error(p, p->req.rc, "open");
        program_end_episode(p);
        return;
    }
    p->opened = true;
    p->fh = p->req.fh;
    unlock_names(p);
    data_again(p);
}

static void on_name_created(struct program *p)
{
    int rc = p->req.rc, file = p->kind; /* reserved */

    if (rc == 0 && model_file_by_ino(p->req.entry.ino) != NOBODY &&
        !run->config.torn_is_fine)
        wrong("inode number %llu was given out twice",
              (unsigned long long)p->req.entry.ino);
    if (rc == 0 && p->exportd_cuts == run->exportd_cuts) {
        model.files[file].ino = p->req.entry.ino;
        model_name_set(p->name, file);
        say("%s: created %s as file %d, inode %llu", p->client->host->proc->name,
            model.names[p->name].text, file, (unsigned long long)p->req.entry.ino);
        p->view.opened_ns = world_clock.now_ns;
        use_file(p, file);
        p->opened = true;
        p->fh = p->req.fh;
        unlock_names(p);
        data_again(p);
        return;
    }
    if (rc == 0) { /* answered before exportd's power was lost: may be lost, too */
        model.files[file].ino = p->req.entry.ino;
        model_name_maybe(p->name, file);
        model.names[p->name].n_possible = model.names[p->name].n_values;
        client_release(p->client, asking(p, on_released), p->req.entry.ino, p->req.fh);
        return;
    }
    expect_error(p, rc, "create");
    model_name_maybe(p->name, file);
    if (p->exportd_cuts != run->exportd_cuts)
        model.names[p->name].n_possible = model.names[p->name].n_values;
    program_end_episode(p);
}

static void name_create(struct program *p)
{
    p->kind = file_new();
    if (p->kind == NOBODY) {
        program_end_episode(p);
        return;
    }
    p->open_flags = O_RDWR | O_CREAT | O_EXCL | (world_chance(100000) ? O_DSYNC : 0);
    client_create(p->client, asking(p, on_name_created), 1, model.names[p->name].text,
                  p->open_flags);
}

static void name_open(struct program *p, int file)
{
    p->open_flags = p->episode == EPISODE_WRITER ? O_RDWR : O_RDONLY;
    if (p->episode == EPISODE_WRITER && world_chance(100000))
        p->open_flags |= O_DSYNC;
    use_file(p, file);
    p->view.opened_ns = world_clock.now_ns;
    client_open(p->client, asking(p, on_opened), model.files[file].ino,
                p->open_flags & ~(O_CREAT | O_EXCL));
}

static void names_step(struct program *p);

static void on_name_seen(struct program *p)
{
    int rc = p->req.rc, file;

    if (rc != 0 && rc != -ENOENT) {
        expect_error(p, rc, "lookup");
        program_end_episode(p);
        return;
    }
    if (p->exportd_cuts != run->exportd_cuts) { /* nobody knows of when that was true */
        program_end_episode(p);
        return;
    }
    expect(model_name_seen(p->name, rc == 0 ? p->req.entry.ino : 0), p);
    file = model_name_get(p->name);
    if (p->episode == EPISODE_NAMES)
        names_step(p);
    else if (file != NOBODY)
        name_open(p, file);
    else if (p->episode == EPISODE_WRITER)
        name_create(p);
    else
        program_end_episode(p);
}

static void name_look(struct program *p)
{
    client_lookup(p->client, asking(p, on_name_seen), 1, model.names[p->name].text);
}

static int name_lock(void)
{
    int name = (int)world_below(model.n_names);

    if (model.names[name].locked || (model_name_is_unsure(name) && strays()))
        return NOBODY;
    model.names[name].locked = true;
    return name;
}

/* ---- changes of names ---- */

enum { NAMES_UNLINK, NAMES_RENAME, NAMES_LINK, NAMES_KINDS };

/* What the names were is what they may be again, when nobody told. */
static void names_unsure(struct program *p, int value, int value2)
{
    bool cut = p->exportd_cuts != run->exportd_cuts;

    model_name_maybe(p->name, value);
    if (p->name2 != NOBODY)
        model_name_maybe(p->name2, value2);
    if (cut)
        model.names[p->name].n_possible = model.names[p->name].n_values;
    if (cut && p->name2 != NOBODY)
        model.names[p->name2].n_possible = model.names[p->name2].n_values;
}

/* The values before; the answer must follow from them. */
static void on_names_changed(struct program *p)
{
    int from = p->file, to = p->name2 == NOBODY ? NOBODY : (int)p->off - 1;
    int rc = p->req.rc, want = 0, value = from, value2 = to;

    p->file = NOBODY;
    switch (p->kind) {
    case NAMES_UNLINK:
        want = from == NOBODY ? -ENOENT : 0;
        value = NOBODY;
        break;
    case NAMES_RENAME:
        want = from == NOBODY ? -ENOENT : 0;
        if (want == 0 && from != to) { /* two names of one inode both stay */
            value = NOBODY;
            value2 = from;
        }
        break;
    case NAMES_LINK:
        want = to != NOBODY ? -EEXIST : 0;
        value2 = want == 0 ? from : to;
        break;
    }
    say("%s: %s %s %s: %s", p->client->host->proc->name,
        p->kind == NAMES_UNLINK   ? "unlink"
        : p->kind == NAMES_RENAME ? "rename"
                                  : "link",
        model.names[p->name].text, p->name2 == NOBODY ? "" : model.names[p->name2].text,
        strerror(-rc));
    if (p->exportd_cuts != run->exportd_cuts || (rc != want && rc != 0)) {
        if (p->exportd_cuts == run->exportd_cuts)
            expect_error(p, rc, "a change of names");
        names_unsure(p, value, value2);
    } else if (rc != want) {
        wrong("a change of names (%d) of %s succeeds where it should not", p->kind,
              model.names[p->name].text);
    } else if (rc == 0) {
        model_name_set(p->name, value);
        if (p->name2 != NOBODY)
            model_name_set(p->name2, value2);
    }
    program_end_episode(p);
}

/* The first name is known. */
static void names_do(struct program *p)
{
    int file = model_name_get(p->name);

    if (p->name2 != NOBODY)
        p->off = (uint64_t)(model_name_get(p->name2) + 1);
    /* the kernel looks before it asks */
    if (file == NOBODY || (p->kind == NAMES_LINK && p->off != 0)) {
        program_end_episode(p);
        return;
    }
    p->file = NOBODY;
    switch (p->kind) {
    case NAMES_UNLINK:
        client_unlink(p->client, asking(p, on_names_changed), 1,
                      model.names[p->name].text);
        break;
    case NAMES_RENAME:
        client_rename(p->client, asking(p, on_names_changed), 1,
                      model.names[p->name].text, 1, model.names[p->name2].text);
        break;
    case NAMES_LINK:
        client_link(p->client, asking(p, on_names_changed), model.files[file].ino, 1,
                    model.names[p->name2].text);
        break;
    }
    p->file = file; /* only remembered: not in use, see on_names_changed() */
}

static void names_step(struct program *p)
{
    if (p->name2 != NOBODY && model_name_is_unsure(p->name2)) {
        int name = p->name; /* look at the other one, too */

        p->name = p->name2;
        p->name2 = name;
        name_look(p);
        return;
    }
    names_do(p);
}

static void names_begin(struct program *p)
{
    p->kind = (int)world_below(NAMES_KINDS);
    p->name = name_lock();
    p->name2 = p->kind == NAMES_UNLINK ? NOBODY : name_lock();
    if (p->name == NOBODY || (p->kind != NAMES_UNLINK && p->name2 == NOBODY)) {
        program_end_episode(p);
        return;
    }
    name_look(p);
}

static void program_begin(struct program *p)
{
    uint64_t what = world_below(100);

    if (run->ending)
        return;
    p->view = (struct model_view){ .client = (int)p->client->index, .life = p->life };
    p->episode = what < 55 ? EPISODE_WRITER : what < 80 ? EPISODE_READER : EPISODE_NAMES;
    if (p->episode == EPISODE_NAMES) {
        names_begin(p);
        return;
    }
    p->name = name_lock();
    if (p->name == NOBODY)
        program_end_episode(p);
    else
        name_look(p);
}

/* ---- clients come and go ---- */

static void program_dies(struct program *p)
{
    timers_stop(&world_clock.world.timers, &p->timer);
    if (p->req.under_way && p->episode != EPISODE_NONE &&
        p->on_answer == on_names_changed) {
        int from = p->file, to = p->name2 == NOBODY ? NOBODY : (int)p->off - 1;

        p->file = NOBODY;
        if (p->kind == NAMES_UNLINK)
            names_unsure(p, NOBODY, NOBODY);
        else if (p->kind == NAMES_RENAME)
            names_unsure(p, from == to ? from : NOBODY, from);
        else
            names_unsure(p, from, to == NOBODY ? from : to);
    } else if (p->req.under_way && p->on_answer == on_name_created) {
        model_name_maybe(p->name, p->kind);
    }
    unlock_names(p);
    if (p->file != NOBODY) {
        model.files[p->file].n_users--;
        model.files[p->file].n_reads--;
    }
    p->file = NOBODY;
    p->writer = p->opened = false;
    p->episode = EPISODE_NONE;
    p->req.under_way = false;
}

static void client_dies(struct sim_client *c)
{
    unsigned life = c->host->proc->life;

    say("%s dies", c->host->proc->name);
    client_kill(c);
    for (unsigned i = 0; i < CLIENTS * PROGRAMS; i++) {
        if (run->programs[i].client == c)
            program_dies(&run->programs[i]);
    }
    model_client_died((int)c->index, life);
    run->result.n_client_deaths++;
}

static void client_watch(struct program *p);

static void programs_start(struct sim_client *c)
{
    for (unsigned i = 0; i < CLIENTS * PROGRAMS; i++) {
        struct program *p = &run->programs[i];

        if (p->client != c)
            continue;
        p->life = c->host->proc->life;
        p->name = p->name2 = p->file = NOBODY;
        program_later(p, think_us(), program_begin);
    }
}

/* Ends the wait for a mount that is on its way: one program of each client looks. */
static void on_mount_timer(struct env_timer *timer)
{
    struct program *p = container_of(timer, struct program, timer);

    client_watch(p);
}

static void client_watch(struct program *p)
{
    struct sim_client *c = p->client;

    if (c->mounted) {
        for (unsigned i = 0; i < CLIENTS * PROGRAMS; i++) {
            if (run->programs[i].client == c)
                env_timer_init(&run->programs[i].timer, on_program_timer);
        }
        programs_start(c);
        return;
    }
    if (c->stopped) { /* exportd did not answer in time: mount again */
        client_kill(c);
        client_start(c);
    }
    env_timer_init(&p->timer, on_mount_timer);
    world_timer_start_us(&p->timer, 5000);
}

static void client_comes(struct sim_client *c)
{
    say("%s mounts", c->host->proc->name);
    client_start(c);
    for (unsigned i = 0; i < CLIENTS * PROGRAMS; i++) {
        if (run->programs[i].client == c) {
            client_watch(&run->programs[i]);
            return;
        }
    }
}

/* ---- faults ---- */

static void on_fault_end(struct env_timer *timer)
{
    struct fault *f = container_of(timer, struct fault, timer);

    f->active = false;
    f->end(f);
}

static struct fault *fault_new(uint64_t for_ms, void (*end)(struct fault *f), unsigned a,
                               unsigned b)
{
    for (unsigned i = 0; i < FAULTS_MAX; i++) {
        struct fault *f = &run->faults[i];

        if (f->active)
            continue;
        *f = (struct fault){ .end = end, .active = true, .a = a, .b = b };
        env_timer_init(&f->timer, on_fault_end);
        world_timer_start_us(&f->timer, for_ms * 1000 + world_below(1000));
        return f;
    }
    return NULL;
}

static unsigned n_ill(void)
{
    unsigned n = 0;

    for (unsigned i = 0; i < servers.n_storages; i++) {
        const struct sim_storage *s = &servers.storages[i];

        n += !storage_node_is_up(s) || s->host->proc->hung || s->disk.health.hangs;
    }
    return n;
}

static void end_storage(struct fault *f)
{
    struct sim_storage *s = &servers.storages[f->a];

    if (storage_node_is_up(s))
        return;
    say("storage %u starts", s->index + 1);
    storage_node_start(s);
}

static void storage_dies(struct sim_storage *s, bool power)
{
    uint64_t for_ms = world_chance(200000) ? world_below(12000) : world_below(1500);

    if (!storage_node_is_up(s) || n_ill() >= run->n - run->k ||
        fault_new(for_ms, end_storage, s->index, 0) == NULL)
        return;
    say("storage %u %s", s->index + 1, power ? "loses power" : "is killed");
    storage_node_kill(s, power);
    if (power) {
        model_power_lost();
        run->result.n_power++;
    }
    run->result.n_kills++;
}

/* In the middle of something: soon after it next has to do with data. */
static bool arm(struct host *h, bool power)
{
    if (world_chance(300000))
        return false;
    net.watched[h->index] = true;
    run->armed_power[h->index] = power;
    return true;
}

static void fault_storage(bool power)
{
    struct sim_storage *s = &servers.storages[world_below(servers.n_storages)];

    if (storage_node_is_up(s) && !arm(s->host, power))
        storage_dies(s, power);
}

static void end_exportd(struct fault *f)
{
    (void)f;
    if (servers.exportd.host->proc->alive)
        return;
    say("exportd starts");
    exportd_node_start(&servers.exportd);
}

static void exportd_dies(bool power)
{
    say("exportd %s", power ? "loses power" : "is killed");
    exportd_node_kill(&servers.exportd, power);
    run->result.n_kills++;
    if (!power)
        return;
    run->result.n_power++;
    run->exportd_cuts++;
    model_power_lost();
    model_names_lost();
}

static void fault_exportd(bool power)
{
    if (!servers.exportd.host->proc->alive ||
        fault_new(world_below(2000), end_exportd, 0, 0) == NULL)
        return;
    exportd_dies(power);
}

static void end_power(struct fault *f)
{
    end_exportd(f);
    for (unsigned i = 0; i < servers.n_storages; i++) {
        f->a = i;
        end_storage(f);
    }
}

static void fault_power_all(void)
{
    if (fault_new(500 + world_below(2000), end_power, 0, 0) == NULL)
        return;
    say("the power fails everywhere");
    for (unsigned i = 0; i < servers.n_storages; i++)
        storage_node_kill(&servers.storages[i], true);
    exportd_dies(true);
}

static void end_client(struct fault *f)
{
    if (!run->clients[f->a].host->proc->alive)
        client_comes(&run->clients[f->a]);
}

static void client_falls(unsigned i)
{
    if (!client_is_up(&run->clients[i]) ||
        fault_new(world_below(4000), end_client, i, 0) == NULL)
        return;
    client_dies(&run->clients[i]);
}

static void fault_client(void)
{
    unsigned i = (unsigned)world_below(CLIENTS);

    if (client_is_up(&run->clients[i]) && !arm(run->clients[i].host, false))
        client_falls(i);
}

static void end_armed(struct fault *f)
{
    struct host *h = &net.hosts[f->a];

    if (run->ending)
        return;
    for (unsigned i = 0; i < servers.n_storages; i++) {
        if (servers.storages[i].host == h && storage_node_is_up(&servers.storages[i]))
            storage_dies(&servers.storages[i], f->b != 0);
    }
    for (unsigned i = 0; i < CLIENTS; i++) {
        if (run->clients[i].host == h)
            client_falls(i);
    }
}

static void on_watched(struct host *h)
{
    struct fault *f = fault_new(0, end_armed, h->index, run->armed_power[h->index]);

    if (f == NULL)
        return;
    net.watched[h->index] = false;
    world_timer_start_us(&f->timer, world_below(800));
}

static void end_cut(struct fault *f)
{
    net_cut(f->a, f->b, false);
}

static void fault_cut(void)
{
    unsigned a = (unsigned)world_below(net.n_hosts),
             b = (unsigned)world_below(net.n_hosts);
    uint64_t for_ms = world_chance(200000) ? world_below(15000) : world_below(2000);

    if (a == b || net.cut[a][b] || fault_new(for_ms, end_cut, a, b) == NULL)
        return;
    say("%s does not reach %s", net.hosts[a].proc->name, net.hosts[b].proc->name);
    net_cut(a, b, true);
    if (world_chance(600000) && !net.cut[b][a] &&
        fault_new(for_ms, end_cut, b, a) != NULL)
        net_cut(b, a, true);
}

static void end_hang(struct fault *f)
{
    struct host *h = &net.hosts[f->a];

    if (!h->proc->hung)
        return;
    h->proc->hung = false;
    net_host_reachable(h, h->power);
}

static void fault_hang(void)
{
    struct host *h = &net.hosts[world_below(net.n_hosts)];

    if (!h->proc->alive || h->proc->hung || n_ill() >= run->n - run->k ||
        fault_new(world_below(3000), end_hang, h->index, 0) == NULL)
        return;
    say("%s hangs", h->proc->name);
    h->proc->hung = true;
    net_host_reachable(h, false);
}

static void end_disk(struct fault *f)
{
    servers.storages[f->a].disk.health = (struct disk_health){ .delay_us = 300 };
}

static void fault_disk(void)
{
    struct sim_storage *s = &servers.storages[world_below(servers.n_storages)];

    if (n_ill() >= run->n - run->k ||
        fault_new(world_below(5000), end_disk, s->index, 0) == NULL)
        return;
    if ((run->config.faults & FAULT_ERRORS) != 0 && world_chance(300000)) {
        s->disk.health.error_ppm = 50000;
    } else if (world_chance(300000)) {
        s->disk.health.hangs = true;
    } else {
        s->disk.health.delay_us = 2000 + (uint32_t)world_below(200000);
    }
    say("the disk of storage %u is not well", s->index + 1);
}

static void fault_rot(void)
{
    struct sim_disk *d = &servers.storages[run->rot_storage].disk;

    if (sim_disk_rot(d, world_chance(600000) ? "objects/" : "journal/"))
        say("a bit of storage %u flips", run->rot_storage + 1);
}

static void end_full(struct fault *f)
{
    servers.storages[f->a].disk.pages_max = UINT64_MAX / PAGE / 4;
}

static void fault_full(void)
{
    struct sim_storage *s = &servers.storages[world_below(servers.n_storages)];

    if (fault_new(world_below(6000), end_full, s->index, 0) == NULL)
        return;
    s->disk.pages_max = s->disk.n_pages + world_below(200);
    say("the disk of storage %u fills up", s->index + 1);
}

static void fault_weather(void)
{
    net.weather.delay_us =
        world_chance(500000) ? 300 : 300 + (uint32_t)world_below(20000);
    net.weather.loss_ppm = world_chance(500000) ? 0 : (uint32_t)world_below(20000);
    net.weather.twice_ppm = world_chance(500000) ? 0 : (uint32_t)world_below(100000);
    net.weather.twice_late_ppm = world_chance(500000) ? 0 : 300000;
    net.weather.late_ppm = world_chance(700000) ? 0 : (uint32_t)world_below(5000);
}

static void fault_inject(unsigned fault)
{
    run->result.n_faults++;
    switch (fault) {
    case FAULT_WEATHER:
        fault_weather();
        break;
    case FAULT_CUT:
        fault_cut();
        break;
    case FAULT_KILL_STORAGE:
        fault_storage(false);
        break;
    case FAULT_KILL_EXPORTD:
        fault_exportd(false);
        break;
    case FAULT_KILL_CLIENT:
        fault_client();
        break;
    case FAULT_HANG:
        fault_hang();
        break;
    case FAULT_SLOW_DISK:
    case FAULT_ERRORS:
        fault_disk();
        break;
    case FAULT_POWER_STORAGE:
        fault_storage(true);
        break;
    case FAULT_POWER_EXPORTD:
        fault_exportd(true);
        break;
    case FAULT_POWER_ALL:
        if (world_chance(300000))
            fault_power_all();
        break;
    case FAULT_ROT:
        fault_rot();
        break;
    case FAULT_FULL:
        fault_full();
        break;
    }
}

static void on_fault_timer(struct env_timer *timer)
{
    unsigned on[16], n = 0;

    for (unsigned bit = 1; bit <= FAULT_ERRORS; bit *= 2) {
        if ((run->config.faults & bit) != 0)
            on[n++] = bit;
    }
    if (run->ending || n == 0)
        return;
    fault_inject(on[world_below(n)]);
    world_timer_start_us(timer, world_below(run->fault_pause_us));
}

/* Everything is up and well again. */
static void faults_end(void)
{
    struct fault none = { 0 };

    run->ending = true;
    for (unsigned i = 0; i < FAULTS_MAX; i++) {
        if (run->faults[i].active)
            timers_stop(&world_clock.world.timers, &run->faults[i].timer);
        run->faults[i].active = false;
    }
    net.weather = (struct net_weather){ .delay_us = 300 };
    memset(net.watched, 0, sizeof(net.watched));
    for (unsigned a = 0; a < net.n_hosts; a++) {
        for (unsigned b = 0; b < net.n_hosts; b++)
            net_cut(a, b, false);
        none.a = a;
        end_hang(&none);
    }
    for (unsigned i = 0; i < servers.n_storages; i++) {
        none.a = i;
        end_storage(&none);
        end_disk(&none);
        end_full(&none);
    }
    end_exportd(&none);
}

/* ---- a cluster is made ---- */

static void cluster_make(bool sync_export)
{
    Rozo__AdExportCreateReq create = ROZO__AD_EXPORT_CREATE_REQ__INIT;
    int rc;

    admin_begin();
    exportd_node_start(&servers.exportd);
    for (unsigned i = 0; i < servers.n_storages; i++)
        storage_node_start(&servers.storages[i]);
    while (!exportd_node_is_ready(&servers.exportd))
        world_step();
    world_run_until(world_clock.now_ns + 1000000000);
    for (unsigned i = 0; i < servers.n_storages; i++) {
        Rozo__AdStorageAddReq add = ROZO__AD_STORAGE_ADD_REQ__INIT;
        char *addr = servers.storages[i].addr;

        add.n_addresses = 1;
        add.addresses = &addr;
        rc = admin_tell(servers.exportd.host, ROZO__OP__AD_STORAGE_ADD, &add.base);
        if (rc != 0)
            wrong("storage %u is not taken: %d", i + 1, rc);
        servers.storages[i].id = i + 1;
    }
    create.name = (char *)(uintptr_t) "main";
    create.layout = run->config.layout;
    create.block_bytes = BLOCK;
    create.sync = sync_export;
    rc = admin_tell(servers.exportd.host, ROZO__OP__AD_EXPORT_CREATE, &create.base);
    if (rc != 0)
        wrong("the export is not made: %d", rc);
}

/* ---- the end ---- */

static bool programs_are_idle(void)
{
    for (unsigned i = 0; i < CLIENTS * PROGRAMS; i++) {
        if (run->programs[i].episode != EPISODE_NONE)
            return false;
    }
    return true;
}

static void wait_for(bool (*is)(void), uint64_t max_ms, const char *what)
{
    uint64_t until_ns = world_clock.now_ns + max_ms * 1000000;

    while (!is()) {
        if (world_clock.now_ns > until_ns)
            wrong("%s takes longer than %llu s", what, (unsigned long long)max_ms / 1000);
        world_step();
    }
}

static bool looker_is_done(void)
{
    return !run->programs[0].req.under_way;
}

static bool looker_is_mounted(void)
{
    return client_is_up(&run->clients[CLIENTS]);
}

static bool no_strays(void)
{
    return !strays();
}

static void on_looked(struct program *p)
{
    (void)p;
}

static struct fuse_req *looking(struct program *p)
{
    return asking(p, on_looked);
}

static int looked(struct program *p, const char *what)
{
    (void)p;
    wait_for(looker_is_done, 60000, what);
    return run->programs[0].req.rc;
}

/* Every byte of a file, from a mount that knows nothing. */
static void check_file(struct program *p, int file)
{
    struct sim_client *c = &run->clients[CLIENTS];
    struct model_file *f = &model.files[file];
    int rc;

    p->view.opened_ns = world_clock.now_ns;
    client_open(c, looking(p), f->ino, O_RDONLY);
    rc = looked(p, "an open after all is well");
    if (rc != 0)
        wrong("file %d (inode %llu) cannot be opened: %s", file,
              (unsigned long long)f->ino, strerror(-rc));
    p->fh = p->req.fh;
    client_getattr(c, looking(p), f->ino);
    rc = looked(p, "a getattr after all is well");
    if (rc != 0)
        wrong("file %d has no attributes: %s", file, strerror(-rc));
    expect(model_check_size(file, &p->view, (uint64_t)p->req.st.st_size), p);
    for (uint64_t off = 0; off < FILE_BYTES_MAX_SIM; off += BLOCK) {
        client_read(c, looking(p), f->ino, p->fh, off, BLOCK, 0);
        rc = looked(p, "a read after all is well");
        run->looked_at.ino = f->ino;
        run->looked_at.block = off / BLOCK;
        if (rc != 0 && run->config.torn_is_fine) {
            run->result.n_torn++;
            continue;
        }
        if (rc != 0)
            wrong(
                "block %llu of file %d (inode %llu) cannot be read after all is well: %s",
                (unsigned long long)off / BLOCK, file, (unsigned long long)f->ino,
                strerror(-rc));
        expect(model_check_read(file, &p->view, off, BLOCK, p->data, p->req.data_len), p);
        if (p->req.data_len < BLOCK)
            break;
    }
    client_release(c, looking(p), f->ino, p->fh);
    looked(p, "a release");
}

static void check_everything(void)
{
    struct sim_client *c = &run->clients[CLIENTS];
    struct program *p = &run->programs[0];

    client_start(c);
    wait_for(looker_is_mounted, 60000, "a mount after all is well");
    p->client = c;
    p->life = c->host->proc->life;
    p->view = (struct model_view){ .client = (int)c->index, .life = p->life };
    for (unsigned i = 0; i < model.n_names; i++) {
        int rc, file;

        client_lookup(c, looking(p), 1, model.names[i].text);
        rc = looked(p, "a lookup after all is well");
        if (rc != 0 && rc != -ENOENT)
            wrong("name %s cannot be looked up: %s", model.names[i].text, strerror(-rc));
        expect(model_name_seen((int)i, rc == 0 ? p->req.entry.ino : 0), p);
        file = model_name_get((int)i);
        if (file != NOBODY)
            check_file(p, file);
    }
}

/* Time passes until everything is healed, and everything is where it should be. */
static void check_healing(void)
{
    uint64_t until_ns = world_clock.now_ns + 300000000000, found = 0;
    struct healed counted;
    const char *w;
    char why[300] = "";

    for (unsigned round = 0; round < 2; round++) {
        while (!healed_is_quiet(why, sizeof(why))) {
            if (world_clock.now_ns > until_ns) {
                unsigned long long ino, block;
                const char *file = strstr(why, "file ");

                if (file != NULL && strlen(file) > 37 &&
                    sscanf(file + 21, "%16llx: block %llu", &ino, &block) == 2) {
                    run->looked_at.ino = ino;
                    run->looked_at.block = block;
                }
                wrong("healing does not end: %s", why);
            }
            world_run_until(world_clock.now_ns + 1000000000);
        }
        say("all is quiet");
        scrub_start_all();
        while (!scrub_is_done(&found)) {
            if (world_clock.now_ns > until_ns)
                wrong("the scrub does not end");
            world_run_until(world_clock.now_ns + 500000000);
        }
        say("the scrub has found %llu", (unsigned long long)found);
        if (found == 0)
            break;
        if (round == 0 && (run->config.faults & FAULT_ROT) == 0)
            wrong("after healing a scrub finds %llu things: %s",
                  (unsigned long long)found, scrub_words());
    }
    if (found != 0)
        wrong("after healing a second scrub finds %llu things: %s",
              (unsigned long long)found, scrub_words());
    w = healed_check(&counted);
    run->looked_at.ino = counted.wrong_ino;
    run->looked_at.block = counted.wrong_block;
    if (w != NULL)
        wrong("not healed: %s", w);
    run->result.n_records = counted.n_records;
}

static void check_memory(void)
{
    for (unsigned i = 1; i < world_clock.n_procs; i++) {
        if (world_clock.procs[i]->n_bytes_most > run->result.bytes_most)
            run->result.bytes_most = world_clock.procs[i]->n_bytes_most;
    }
    if (run->result.bytes_most > (size_t)96 << 20)
        wrong("a process has used %llu MiB of memory",
              (unsigned long long)(run->result.bytes_most >> 20));
}

/* ---- all of it ---- */

static void programs_make(void)
{
    for (unsigned i = 0; i < CLIENTS + 1; i++)
        client_init(&run->clients[i], i);
    for (unsigned i = 0; i < CLIENTS * PROGRAMS; i++) {
        struct program *p = &run->programs[i];

        p->client = &run->clients[i / PROGRAMS];
        p->name = p->name2 = p->file = NOBODY;
        env_timer_init(&p->timer, on_program_timer);
    }
    model.n_names = NAMES;
    for (unsigned i = 0; i < NAMES; i++)
        snprintf(model.names[i].text, sizeof(model.names[i].text), "f%u", i);
}

static void run_all(void)
{
    const struct codec *codec = codec_get(CODEC_MOJETTE, run->config.layout, BLOCK);

    run->n = codec_n(codec);
    run->k = codec_k(codec);
    run->fault_pause_us =
        run->config.faults == FAULT_KILL_CLIENT ? 400000 : 200000 + world_below(3000000);
    run->rot_storage = (unsigned)world_below(run->config.n_storages);
    servers_begin(run->config.n_storages, 1 + (unsigned)world_below(2),
                  (uint64_t)1 << 40);
    for (unsigned i = 0; i < servers.n_storages; i++)
        servers.storages[i].mutant = run->config.mutant & RUN_MUTANTS_OF_STORAGED;
    for (unsigned i = 0; i < servers.n_storages; i++)
        servers.storages[i].no_healer = !run->config.heals;
    programs_make();
    cluster_make(world_chance(300000));
    for (unsigned i = 0; i < CLIENTS; i++)
        client_comes(&run->clients[i]);
    env_timer_init(&run->fault_timer, on_fault_timer);
    world_timer_start_us(&run->fault_timer, 500000);
    if ((run->config.faults & FAULT_LATE) != 0)
        net.weather = (struct net_weather){ .delay_us = 2000,
                                            .twice_ppm = 500000,
                                            .late_ppm = 5000,
                                            .twice_late_ppm = 700000 };
    while (run->result.n_ops < run->config.n_ops)
        world_step();
    say("the end begins");
    faults_end();
    wait_for(programs_are_idle, 240000, "the end of all programs");
    wait_for(no_strays, 60000, "the end of all messages");
    for (unsigned i = 0; i < CLIENTS; i++) {
        if (client_is_up(&run->clients[i]))
            client_stop(&run->clients[i]);
    }
    world_run_until(world_clock.now_ns + 10000000000);
    if (run->config.heals)
        check_healing();
    check_everything();
    check_memory();
}

void run_once(const struct run_config *config, struct run_result *out)
{
    world_begin(config->seed);
    net_begin();
    model_begin();
    run = calloc(1, sizeof(*run));
    assert(run != NULL);
    run->config = *config;
    net.tells = config->tells;
    net.on_watched = on_watched;
    net.drops_missed = (config->mutant & RUN_MUTANT_NO_MISSED) != 0;
    records_are_believed = (config->mutant & RUN_MUTANT_NO_CRC) != 0;
    run_all();
    run->result.n_events = world_clock.n_events;
    run->result.virtual_ms = world_now_ms();
    run->result.trace = world_clock.trace;
    run->result.n_units = model.n_units_checked;
    *out = run->result;
    servers_end();
    model_end();
    world_end();
    run = NULL;
}
