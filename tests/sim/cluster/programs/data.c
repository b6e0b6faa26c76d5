/*
 * data.c - operations of programs on an open file.
 *
 * In:     the seed, answers of mounts. Out: requests to mounts; their answers, to the
 *         model.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <string.h>

#include "tests/sim/cluster/state.h"

/* ---- data ---- */

static uint64_t units(uint64_t max)
{
    return world_below(max / UNIT + 1) * UNIT;
}

static void data_next(struct program *p);

void data_again(struct program *p)
{
    program_later(p, think_us(), data_next);
}

static void on_data_read(struct program *p)
{
    const char *w = NULL;

    if (p->req.rc != 0)
        program_fails(p, p->req.rc, "read");
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
        program_fails(p, p->req.rc, "seek");
    if (p->req.rc == 0 || p->req.rc == -ENXIO) {
        end = end / UNIT * UNIT;
        if (end > hi)
            wrong("seek beyond the end: %llu > %llu", (unsigned long long)end,
                  (unsigned long long)hi);
        if (end > p->off) /* only zeros were skipped */
            expect(model_check_read(p->file, &p->view, p->off, end - p->off, zeros,
                                    end - p->off),
                   p);
    }
    data_again(p);
}

static void on_data_stat(struct program *p)
{
    if (p->req.rc != 0)
        program_fails(p, p->req.rc, "getattr");
    else
        expect(model_check_size(p->file, &p->view, (uint64_t)p->req.st.st_size), p);
    data_again(p);
}

static void on_data_written(struct program *p)
{
    p->appends = false;
    if (p->req.rc != 0)
        program_fails(p, p->req.rc, p->op == DATA_TRUNCATE ? "truncate" : "write");
    model_write_done(p->file, p->no, p->req.rc);
    if (p->req.rc == 0 && p->op == DATA_WRITE && (p->open_flags & O_DSYNC) != 0)
        expect(model_write_synced(p->file, p->no), p);
    data_again(p);
}

static void on_data_synced(struct program *p)
{
    if (p->req.rc != 0) {
        program_fails(p, p->req.rc, p->op == DATA_FSYNC ? "fsync" : "flush");
        if (p->op == DATA_FSYNC)
            model_fsync_failed(p->file);
        if (model.gives_up) /* the failed flush may have reported the loss */
            model_close_failed(p->file, p->view.client, p->view.life);
    } else {
        expect(model_stored(p->file, &p->view, p->op == DATA_FSYNC), p);
        if (p->op == DATA_FSYNC) {
            bool asked = metas_have_synced_since(p->started_ns);

            model_names_synced(p->started_ns, p->file, asked ? NULL : &p->view);
            model_own_names_synced(p->file, &p->view);
        }
    }
    data_again(p);
}

/* Tells whether no other writer changes the file: its
 * end is known and stays until an append is answered. */
static bool data_is_quiet(const struct program *p)
{
    const struct model_file *f = &model.files[p->file];

    for (unsigned i = 0; run->config.shared && i < f->n_writes; i++) {
        if (model_may_still_come(&f->writes[i]))
            return false;
    }
    return true;
}

/* Tells whether an append to the file is in progress. */
static bool data_is_taken(const struct program *p)
{
    for (unsigned i = 0; run->config.shared && i < CLIENTS * PROGRAMS; i++) {
        if (run->programs[i].file == p->file && run->programs[i].appends)
            return true;
    }
    return false;
}

/* Chooses a range in one mount's part; some ranges reach into the next part. */
static void place_in_part(const struct program *p, uint64_t *off, uint64_t *len)
{
    uint64_t part = world_chance(850000) ? p->client->index : world_below(CLIENTS);

    *off = part * PART_BYTES;
    *off += world_chance(500000) ? units(PART_BYTES - UNIT)
                                 : world_below(PART_BYTES / BLOCK) * BLOCK;
    *len = world_chance(500000) ? UNIT + units(2 * BLOCK) : BLOCK;
    if (*len > PARTS_BYTES - *off)
        *len = PARTS_BYTES - *off;
}

static void place_anywhere(const struct model_file *f, uint64_t *at, uint64_t *n)
{
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
    default: /* whole blocks, often the same ones */
        off = world_below(8) * BLOCK;
        len = (1 + world_below(2)) * BLOCK;
        break;
    }
    *at = off;
    *n = len;
}

/* Chooses a range at the front, so that a file is written
 * several times before it outgrows exportd's limit. */
static void place_in_front(uint64_t *off, uint64_t *len)
{
    *off = units(INLINE_BYTES);
    *len = UNIT + units(2 * BLOCK);
}

static uint64_t before_end(const struct model_file *f, uint64_t max)
{
    uint64_t before = UNIT + units(max);

    return f->now_size > before ? f->now_size - before : 0;
}

/* Chooses a range that does not make the file longer. */
static void place_before_end(const struct model_file *f, uint64_t *off, uint64_t *len)
{
    *off = before_end(f, 2 * BLOCK);
    *len = UNIT + units(f->now_size > *off ? f->now_size - *off - UNIT : 0);
}

static void data_write(struct program *p)
{
    struct model_file *f = &model.files[p->file];
    uint64_t off, len, lo, hi;
    int flags = p->open_flags & ~O_APPEND;

    if (p->in_part)
        place_in_part(p, &off, &len);
    else if (run->config.cuts && world_chance(500000))
        place_before_end(f, &off, &len);
    else if (run->config.inlined && world_chance(800000))
        place_in_front(&off, &len);
    else
        place_anywhere(f, &off, &len);
    if ((p->open_flags & O_APPEND) != 0 && !p->in_part &&
        data_is_quiet(p)) { /* O_APPEND: the kernel chooses the offset */
        model_size(p->file, &p->view, &lo, &hi);
        if (lo == hi && lo < FILE_BYTES_MAX_SIM - BLOCK) {
            flags = p->open_flags;
            off = lo;
            p->appends = true;
        }
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
    client_write(p->client, program_asks(p, on_data_written), f->ino, p->fh,
                 (flags & O_APPEND) != 0 ? units(8 * BLOCK) : off, p->data, len, flags);
}

static void data_truncate(struct program *p)
{
    struct model_file *f = &model.files[p->file];
    uint64_t size = p->in_part             ? PARTS_BYTES
                    : world_chance(300000) ? 0
                                           : units(20 * BLOCK);

    f->now_size = size;
    p->no =
        model_write_begin(p->file, size, UINT64_MAX, true, p->view.client, p->view.life);
    say("%s: file %d truncate to %llu", p->client->host->proc->name, p->file,
        (unsigned long long)size);
    client_truncate(p->client, program_asks(p, on_data_written), f->ino, size);
}

/* Makes a hole, zeros that may make the file longer, or only a longer file. */
static void data_fallocate(struct program *p)
{
    static const int modes[] = { FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                 FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                 FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE,
                                 FALLOC_FL_ZERO_RANGE,
                                 FALLOC_FL_KEEP_SIZE,
                                 0 };
    struct model_file *f = &model.files[p->file];
    uint64_t off = world_chance(500000) ? units(12 * BLOCK) : world_below(12) * BLOCK;
    uint64_t len = UNIT + (world_chance(500000) ? units(4 * BLOCK) : 2 * BLOCK - UNIT);
    int mode = modes[world_below(sizeof(modes) / sizeof(modes[0]))];
    bool keeps;

    if (p->in_part) {
        place_in_part(p, &off, &len);
        mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    }
    keeps = (mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE)) == 0;

    p->no =
        model_write_begin(p->file, off, off + len, true, p->view.client, p->view.life);
    model_write_is_allocation(p->file, p->no, keeps, (mode & FALLOC_FL_KEEP_SIZE) == 0);
    if ((mode & FALLOC_FL_KEEP_SIZE) == 0 && off + len > f->now_size)
        f->now_size = off + len;
    say("%s: file %d %s%s %llu+%llu", p->client->host->proc->name, p->file,
        keeps                                ? "allocate"
        : (mode & FALLOC_FL_PUNCH_HOLE) != 0 ? "punch"
                                             : "zeros",
        (mode & FALLOC_FL_KEEP_SIZE) != 0 ? "" : ", longer", (unsigned long long)off,
        (unsigned long long)len);
    client_fallocate(p->client, program_asks(p, on_data_written), f->ino, p->fh, mode,
                     off, len);
}

static void data_look(struct program *p)
{
    struct model_file *f = &model.files[p->file];

    p->off = world_chance(300000) ? 0 : units(16 * BLOCK);
    p->len = world_chance(300000) ? FILE_BYTES_MAX_SIM - p->off : UNIT + units(4 * BLOCK);
    if (run->config.cuts && world_chance(700000)) {
        p->off = before_end(f, 3 * BLOCK);
        p->len = UNIT + units(4 * BLOCK);
    }
    if (p->in_part && world_chance(800000))
        place_in_part(p, &p->off, &p->len);
    if (p->len > FILE_BYTES_MAX_SIM - p->off)
        p->len = FILE_BYTES_MAX_SIM - p->off;
    if (p->op == DATA_READ)
        client_read(
            p->client, program_asks(p, on_data_read), f->ino, p->fh, p->off, p->len,
            (p->open_flags & O_DIRECT) != 0 || world_chance(200000) ? O_DIRECT : 0);
    else if (p->op == DATA_SEEK)
        client_seek(p->client, program_asks(p, on_data_sought), f->ino, p->fh, p->off,
                    SEEK_DATA);
    else
        client_getattr(p->client, program_asks(p, on_data_stat), f->ino);
}

void on_released(struct program *p)
{
    if (p->req.rc != 0)
        wrong("release fails: %s", strerror(-p->req.rc));
    program_end_episode(p);
}

static void on_close_flushed(struct program *p)
{
    if (p->req.rc != 0) {
        program_fails(p, p->req.rc, "close");
        model_close_failed(p->file, p->view.client, p->view.life);
    } else if (p->writer)
        expect(model_stored(p->file, &p->view, false), p);
    client_release(p->client, program_asks(p, on_released), model.files[p->file].ino,
                   p->fh);
}

static enum data_op data_choose(const struct program *p)
{
    static const enum data_op writer[] = {
        DATA_WRITE,     DATA_WRITE,    DATA_WRITE, DATA_WRITE, DATA_WRITE, DATA_READ,
        DATA_READ,      DATA_READ,     DATA_FSYNC, DATA_FSYNC, DATA_FLUSH, DATA_STAT,
        DATA_FALLOCATE, DATA_TRUNCATE, DATA_SEEK,  DATA_WRITE,
    };
    static const enum data_op reader[] = { DATA_READ, DATA_READ, DATA_READ,
                                           DATA_READ, DATA_STAT, DATA_SEEK };
    static const enum data_op in_part[] = {
        DATA_WRITE, DATA_WRITE, DATA_WRITE, DATA_WRITE, DATA_WRITE,     DATA_WRITE,
        DATA_WRITE, DATA_READ,  DATA_READ,  DATA_READ,  DATA_READ,      DATA_READ,
        DATA_WRITE, DATA_FSYNC, DATA_FLUSH, DATA_SEEK,  DATA_FALLOCATE,
    };

    static const enum data_op cuts[] = {
        DATA_WRITE, DATA_WRITE, DATA_WRITE, DATA_READ,     DATA_READ,     DATA_READ,
        DATA_READ,  DATA_FSYNC, DATA_STAT,  DATA_TRUNCATE, DATA_TRUNCATE,
    };

    if (p->writer && p->in_part && !data_is_taken(p))
        return model.files[p->file].now_size < PARTS_BYTES
                   ? DATA_TRUNCATE
                   : in_part[world_below(sizeof(in_part) / sizeof(in_part[0]))];
    if (p->writer && run->config.cuts && !data_is_taken(p))
        return cuts[world_below(sizeof(cuts) / sizeof(cuts[0]))];
    if (p->writer && !data_is_taken(p))
        return writer[world_below(sizeof(writer) / sizeof(writer[0]))];
    return reader[world_below(sizeof(reader) / sizeof(reader[0]))];
}

static void data_next(struct program *p)
{
    uint64_t ino = model.files[p->file].ino;

    if (p->n_left == 0 || run->ending) {
        lock_drop(p); /* a close releases locks */
        client_flush(p->client, program_asks(p, on_close_flushed), ino, p->fh,
                     program_owner(p));
        return;
    }
    p->n_left--;
    if (run->config.locks && locks_do(p))
        return;
    if (run->config.xattrs && xattrs_do(p))
        return;
    p->op = data_choose(p);
    switch (p->op) {
    case DATA_WRITE:
        data_write(p);
        break;
    case DATA_TRUNCATE:
        data_truncate(p);
        break;
    case DATA_FALLOCATE:
        data_fallocate(p);
        break;
    case DATA_FSYNC:
        say("%s: file %d fsync", p->client->host->proc->name, p->file);
        client_fsync(p->client, program_asks(p, on_data_synced), ino, p->fh);
        break;
    case DATA_FLUSH: /* a close of another descriptor, which releases locks as well */
        lock_drop(p);
        client_flush(p->client, program_asks(p, on_data_synced), ino, p->fh,
                     program_owner(p));
        break;
    case DATA_READ:
    case DATA_SEEK:
    case DATA_STAT:
        data_look(p);
        break;
    }
}
