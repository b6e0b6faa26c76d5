/*
 * file_seek.c - SEEK_DATA and SEEK_HOLE over runs in memory and the storages' data.
 *
 * In:     file_seek(). Core.
 * Out:    storcli_seek().
 */
#include <errno.h>

#include "storcli/file/file_int.h"

struct seek_fop {
    struct fop op;
    uint64_t offset, pos;
    bool want_hole, drained;
    enum file_answer answer;
    uint64_t before_id;
    int rc;
    uint64_t block; /* the storages' answer */
    uint64_t *found;
};

static void on_sought(void *arg, int rc)
{
    struct seek_fop *s = arg;

    s->answer = ANSWER_HERE;
    s->rc = rc;
    fop_ready(&s->op);
}

static struct frun *run_in_memory(struct file *f, uint64_t block)
{
    struct frun *run = frunset_find(&f->runs.dirty, block);

    return run != NULL ? run : frunset_find(&f->runs.writing, block);
}

/* Asks the storages for the next data or hole from pos on. 1: s->block is the answer; 0:
 * waits; -errno. */
static int ask(struct seek_fop *s)
{
    struct file *f = s->op.f;

    if (s->answer == ANSWER_AWAITED)
        return 0;
    if (f->inl.place == PLACE_EXPORTD &&
        s->answer == ANSWER_NONE) { /* all up to storage_end() */
        s->block = s->want_hole ? block_past(f, storage_end(f)) : block_of(f, s->pos);
        return 1;
    }
    if (s->answer == ANSWER_NONE) {
        s->answer = ANSWER_AWAITED;
        storcli_seek(f->sf, block_of(f, s->pos), block_past(f, storage_end(f)),
                     s->want_hole, &s->block, on_sought, s);
        return 0;
    }
    s->answer = ANSWER_NONE;
    if (fop_denied(&s->op, s->rc) || fop_moved(&s->op, s->rc))
        return 0;
    return s->rc != 0 ? plain_errno(s->rc) : 1;
}

/* Returns the offset of the answer, at or after pos; UINT64_MAX: none. */
static uint64_t answer_at(const struct seek_fop *s)
{
    const struct file *f = s->op.f;

    return s->block > UINT64_MAX / f->bs ? UINT64_MAX
                                         : max_u64(s->pos, block_start(f, s->block));
}

static int seek_data(struct seek_fop *s)
{
    struct file *f = s->op.f;
    uint64_t block = block_of(f, s->pos), found = UINT64_MAX, in_memory;
    int rc;

    if (s->pos < storage_end(f)) {
        rc = ask(s);
        if (rc <= 0)
            return rc;
        found = answer_at(s);
        if (found >= storage_end(f))
            found = UINT64_MAX;
    }
    in_memory = min_u64(frunset_next(&f->runs.dirty, block),
                        frunset_next(&f->runs.writing, block));
    if (in_memory != UINT64_MAX)
        found = min_u64(found, max_u64(s->pos, block_start(f, in_memory)));
    if (found >= f->size.now)
        return -ENXIO;
    *s->found = found;
    return 1;
}

static int seek_hole(struct seek_fop *s)
{
    struct file *f = s->op.f;
    struct frun *run;
    int rc;

    while (s->pos < f->size.now) {
        run = run_in_memory(f, block_of(f, s->pos));
        if (run != NULL) {
            s->pos = block_start(f, run->end);
            continue;
        }
        if (s->pos >= storage_end(f))
            break;
        rc = ask(s);
        if (rc <= 0)
            return rc;
        s->pos = min_u64(answer_at(s), f->size.now);
        if (run_in_memory(f, block_of(f, s->pos)) == NULL)
            break;
    }
    *s->found = min_u64(s->pos, f->size.now);
    return 1;
}

/* Writes the bytes accepted before this op to the storages first: else a run could land
 * between their answer and our look at memory, and be in neither. Runs that cannot be
 * written stay in memory. */
static bool drain(struct seek_fop *s)
{
    struct file *f = s->op.f;
    int rc = 0;

    if (s->before_id == 0)
        s->before_id = f->runs.next_id;
    s->drained |= !file_is_pending(f, block_of(f, s->offset), UINT64_MAX, s->before_id,
                                   s->op.clock, &rc);
    if (!s->drained)
        fop_wait(&s->op, &f->runs.waiters);
    return s->drained;
}

static void seek_step(struct fop *op)
{
    struct seek_fop *s = container_of(op, struct seek_fop, op);
    int rc;

    if (!s->drained && !drain(s))
        return;
    rc = inline_know(op);
    if (rc < 0)
        fop_end(op, rc);
    if (rc != 1)
        return;
    if (s->offset >= op->f->size.now)
        rc = s->answer == ANSWER_AWAITED ? 0 : -ENXIO;
    else
        rc = s->want_hole ? seek_hole(s) : seek_data(s);
    if (rc != 0)
        fop_end(op, rc < 0 ? rc : 0);
}

void file_seek(struct file *f, uint64_t offset, bool want_hole, uint64_t *found,
               file_done_cb *done, void *arg)
{
    struct seek_fop *s = fop_new(f, sizeof(*s), FOP_SEEK, seek_step, done, arg);

    s->offset = s->pos = offset;
    s->want_hole = want_hole;
    s->found = found;
    fop_queue(&s->op);
}
