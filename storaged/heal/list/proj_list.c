/*
 * proj_list.c - walks the directories below objects/ and reads the first pages of the
 * files there.
 *
 * In:     proj_list_start(). Thread: the healer's.
 * Out:    struct disk: DISK_LIST, DISK_OPEN, DISK_READ, DISK_STAT; the callback.
 * Keeps:  a page of a file counts only if its crc and the file's name fit (I8); memory is
 *         bounded by LIST_FILES_MAX and one buffer of names.
 */
#include "storaged/heal/list/proj_list.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/list.h"
#include "storaged/format/projfile.h"
#include "storaged/heal/decide/repair_ask.h"

enum { NAMES_BYTES = 16384, ID_DIGITS = 32 };

/* NAMES -> (OPEN -> PAGES -> STAT) for each name -> NAMES ... -> the callback. */
struct list_op {
    struct env *env;   /* borrowed */
    struct disk *disk; /* borrowed */
    struct proj_list_request request;
    proj_list_done_cb *done;
    void *arg;
    bool cancelled;
    struct env_task task; /* first step */
    enum { LIST_NAMES, LIST_NAMED, LIST_OPENED, LIST_READ, LIST_SIZED } state;
    struct disk_req dr;
    int rc; /* result of dr */
    struct iovec iov;
    char names[NAMES_BYTES];
    size_t at, end;     /* in names */
    size_t last;        /* start of the last name */
    bool more;          /* the directory has more names */
    unsigned directory; /* directory of names */
    char behind[DISK_NAME_MAX];
    char path[PROJFILE_PATH_MAX];
    unsigned p; /* projection being read */
    struct disk_file *file;
    bool in_file;     /* files[n_files] is being filled */
    bool quarantined; /* the requested file has a quarantined copy */
    unsigned n_looked_at;
    struct proj_list_file *files; /* owned */
    unsigned n_files, files_room;
    uint8_t pages[PROJFILE_FRONT_BYTES];
    struct marks marks, written;
};

/* ---- order, targets ---- */

static unsigned directory_of(const struct file_id *id)
{
    char path[PROJFILE_PATH_MAX];
    unsigned hi = 0, lo = 0;

    projfile_path_prefix(path, id);
    sscanf(path, "objects/%2x/%2x/", &hi, &lo);
    return hi << 8 | lo;
}

static int order_u64(uint64_t a, uint64_t b)
{
    return a < b ? -1 : a > b;
}

int list_order(const struct file_id *a, const struct file_id *b)
{
    int d = order_u64(directory_of(a), directory_of(b));

    d = d != 0 ? d : order_u64(a->export_id, b->export_id);
    d = d != 0 ? d : order_u64(a->generation, b->generation);
    return d != 0 ? d : order_u64(a->ino, b->ino);
}

int heal_target_get(const Rozo__FileRef *ref, struct storcli_target *out)
{
    const struct codec *codec;

    if (ref == NULL || ref->file_id.len != FILE_ID_BYTES || ref->codec > UINT8_MAX ||
        ref->layout > UINT8_MAX || ref->stripe != 0)
        return -EBADMSG;
    codec = codec_get(ref->codec, ref->layout, ref->block_bytes);
    if (codec == NULL || ref->n_storages < codec_n(codec) || ref->n_storages > DIST_MAX)
        return -EBADMSG;
    memset(out, 0, sizeof(*out));
    file_id_get(ref->file_id.data, &out->id);
    out->codec = (uint8_t)ref->codec;
    out->layout = (uint8_t)ref->layout;
    out->block_bytes = (uint16_t)ref->block_bytes;
    out->n_storages = (uint8_t)ref->n_storages;
    memcpy(out->storages, ref->storages, ref->n_storages * sizeof(out->storages[0]));
    out->full_quorum = ref->full_quorum;
    out->dist_generation = ref->dist_generation;
    return heal_target_check(out) == 0 ? 0 : -EBADMSG;
}

bool heal_range_is_good(uint64_t first, uint64_t n_blocks)
{
    return first < PROJFILE_BLOCKS_MAX && n_blocks <= PROJFILE_BLOCKS_MAX - first;
}

void heal_ref_put(const struct storcli_target *target, struct heal_ref *out)
{
    assert(target->n_storages <= DIST_MAX);
    rozo__file_ref__init(&out->ref);
    file_id_put(out->id, &target->id);
    out->ref.file_id.data = out->id;
    out->ref.file_id.len = FILE_ID_BYTES;
    out->ref.codec = target->codec;
    out->ref.layout = target->layout;
    out->ref.block_bytes = target->block_bytes;
    out->ref.storages = (uint32_t *)(uintptr_t)target->storages;
    out->ref.n_storages = target->n_storages;
    out->ref.full_quorum = target->full_quorum;
    out->ref.dist_generation = target->dist_generation;
}

bool heal_same_target(const struct storcli_target *a, const struct storcli_target *b)
{
    return a->codec == b->codec && a->layout == b->layout &&
           a->block_bytes == b->block_bytes && a->n_storages == b->n_storages &&
           a->dist_generation == b->dist_generation &&
           memcmp(a->storages, b->storages, a->n_storages * sizeof(a->storages[0])) == 0;
}

unsigned heal_place(const struct storcli_target *target, uint32_t storage)
{
    for (unsigned i = 0; i < target->n_storages; i++) {
        if (target->storages[i] == storage)
            return i;
    }
    return DIST_MAX;
}

/* ---- names ---- */

/* Parses the name "32 hex digits.P" in a directory. Returns false for other names and for
 * quarantined files. */
static bool name_parse(const char *name, unsigned directory, struct file_id *id,
                       unsigned *p)
{
    char path[PROJFILE_PATH_MAX];
    int n = 0;

    if (sscanf(name, "%8" SCNx32 "%8" SCNx32 "%16" SCNx64 ".%2u%n", &id->export_id,
               &id->generation, &id->ino, p, &n) != 4 ||
        name[n] != '\0' || *p >= CODEC_N_MAX || directory_of(id) != directory)
        return false;
    projfile_path(path, id, *p);
    return strcmp(strrchr(path, '/') + 1, name) == 0;
}

static bool name_is_quarantined(const char *name, const struct file_id *id)
{
    char path[PROJFILE_PATH_MAX];

    projfile_path_quarantined(path, id);
    return strcmp(strrchr(path, '/') + 1, name) == 0;
}

static bool name_parse_quarantined(const char *name, unsigned directory,
                                   struct file_id *id)
{
    return sscanf(name, "%8" SCNx32 "%8" SCNx32 "%16" SCNx64, &id->export_id,
                  &id->generation, &id->ino) == 3 &&
           name_is_quarantined(name, id) && directory_of(id) == directory;
}

static void names_of(struct list_op *op, unsigned directory, const char *behind)
{
    assert(directory < DISK_DIRECTORIES);
    if (behind != NULL)
        snprintf(op->behind, sizeof(op->behind), "%s", behind);
    op->iov = (struct iovec){ .iov_base = op->names, .iov_len = sizeof(op->names) };
    op->dr.op = DISK_LIST;
    op->dr.offset = directory;
    op->dr.path = behind == NULL ? NULL : op->behind;
    op->dr.iov = &op->iov;
    op->dr.n_iov = 1;
    op->state = LIST_NAMED;
    disk_submit(op->disk, &op->dr);
}

/* Requests names from those of a file on, or after them: no name has '~' after its
 * point. */
static void names_at(struct list_op *op, const struct file_id *id, bool behind)
{
    char path[PROJFILE_PATH_MAX];
    size_t len;

    projfile_path_prefix(path, id);
    len = strlen(path);
    if (behind)
        snprintf(path + len, sizeof(path) - len, "~");
    names_of(op, directory_of(id), strrchr(path, '/') + 1);
}

/* Cuts the last file's names off a full buffer, as more of them may follow; a file's
 * names are adjacent. */
static void names_cut(struct list_op *op)
{
    size_t at = op->end, cut = op->end;

    if (!op->more)
        return;
    while (at > 0) {
        size_t start = at - 1;

        while (start > 0 && op->names[start - 1] != '\0')
            start--;
        if (cut != op->end && strncmp(op->names + start, op->names + cut, ID_DIGITS) != 0)
            break;
        at = cut = start;
    }
    if (cut > 0)
        op->end = cut;
}

static void names_take(struct list_op *op)
{
    op->at = 0;
    op->end = op->dr.n_read;
    op->more = op->dr.more;
    op->directory = (unsigned)op->dr.directory;
    assert(op->end <= sizeof(op->names));
    names_cut(op);
    op->last = op->end;
    while (op->last > 0 && (op->last == op->end || op->names[op->last - 1] != '\0'))
        op->last--;
}

/* ---- one file ---- */

static int file_begin(struct list_op *op, const struct file_id *id)
{
    assert(!op->in_file && op->n_files <= op->files_room);
    if (op->n_files == op->files_room) {
        unsigned room = op->files_room * 2 + 16;
        void *files = realloc(op->files, room * sizeof(op->files[0]));

        if (files == NULL)
            return -ENOMEM;
        op->files = files;
        op->files_room = room;
    }
    op->files[op->n_files] = (struct proj_list_file){ .target.id = *id };
    op->in_file = true;
    op->n_looked_at++;
    return 0;
}

static void file_end(struct list_op *op)
{
    const struct proj_list_file *f = &op->files[op->n_files];
    uint32_t with = op->request.with_storage;

    assert(op->in_file);
    op->in_file = false;
    op->request.has_after = true;
    op->request.after = f->target.id;
    if (f->projections == 0 && f->unfinished == 0)
        return; /* removed meanwhile */
    if (with != 0 &&
        (f->known ? heal_place(&f->target, with) == DIST_MAX : !op->request.damaged_too))
        return;
    op->n_files++;
}

static bool header_fits(const struct projfile_header *h, const struct proj_list_file *f,
                        unsigned p)
{
    return file_id_equal(&h->id, &f->target.id) && h->projection == p && h->stripe == 0;
}

/* Returns whether the file is partial, by its newest mark page if there is one, else by
 * its header. */
static bool pages_say_partial(struct list_op *op, const struct projfile_header *h)
{
    bool partial = h->partial;
    uint64_t sequence = 0;

    for (unsigned slot = 0; slot < 2; slot++) {
        struct marks_page page;
        int rc = projfile_marks_get(op->pages + PROJFILE_MARKS_AT +
                                        (size_t)slot * PROJFILE_PAGE_BYTES,
                                    &page, &op->marks, &op->written);

        if (rc == 0 && page.sequence > sequence) {
            sequence = page.sequence;
            partial = page.partial;
        }
    }
    return partial;
}

static void file_take_pages(struct list_op *op)
{
    struct proj_list_file *f = &op->files[op->n_files];
    uint32_t bit = UINT32_C(1) << op->p;
    struct projfile_header h;
    int rc = projfile_front_get(op->pages, &h);

    assert(op->in_file && op->p < CODEC_N_MAX);
    if (rc == 0 && h.prepared && header_fits(&h, f, op->p))
        return; /* only ST_REMOVE, ST_REDIST and requests of that generation know it */
    if (rc == -ENODATA) { /* creation did not end: counts as absent */
        f->unfinished |= bit;
        return;
    }
    f->projections |= bit;
    if (rc != 0 || !header_fits(&h, f, op->p)) {
        f->damaged |= bit;
        return;
    }
    if (pages_say_partial(op, &h))
        f->partial |= bit;
    f->target.full_quorum |= h.full_quorum; /* true for ever once it is true */
    if (f->known && h.dist_generation <= f->target.dist_generation)
        return;
    f->known = true;
    f->target.dist_generation = h.dist_generation;
    f->target.codec = h.codec;
    f->target.layout = h.layout;
    f->target.block_bytes = (uint16_t)h.block_bytes;
    f->target.n_storages = h.n_storages;
    memset(f->target.storages, 0, sizeof(f->target.storages));
    memcpy(f->target.storages, h.storages, h.n_storages * sizeof(h.storages[0]));
}

static void file_take_size(struct list_op *op)
{
    struct proj_list_file *f = &op->files[op->n_files];
    struct geometry g;
    uint64_t blocks;

    assert(op->in_file && op->p < CODEC_N_MAX);
    f->size += op->dr.size;
    f->allocated += op->dr.allocated;
    if (!f->known || (f->damaged >> op->p & 1) != 0)
        return;
    geometry_init(&g, codec_get(f->target.codec, f->target.layout, f->target.block_bytes),
                  op->p);
    blocks = geometry_blocks(&g, op->dr.size);
    if (blocks > f->blocks)
        f->blocks = blocks;
}

/* ---- walk over the names ---- */

static void op_free(struct list_op *op)
{
    free(op->files);
    free(op);
}

static void op_end(struct list_op *op, int rc)
{
    struct proj_list_result result = {
        .rc = rc == -ENODATA ? 0 : rc,
        .files = op->files,
        .n_files = op->n_files,
        .end = rc == -ENODATA,
        .after = op->request.after,
        .quarantined = op->quarantined,
    };

    assert(op->file == NULL && !op->cancelled);
    op->done(op->arg, &result);
    op_free(op);
}

/* Opens the file of the next name, unless names are enough. Returns false if there is no
 * next name. */
static bool next_name(struct list_op *op, int *rc)
{
    while (op->at < op->end && *rc == 0) {
        const char *name = op->names + op->at;
        struct file_id id;

        if (!name_parse(name, op->directory, &id, &op->p) &&
            !(op->request.ids_only && name_parse_quarantined(name, op->directory, &id))) {
            op->quarantined |=
                op->request.only && name_is_quarantined(name, &op->request.after);
            op->at += strlen(name) + 1;
            continue;
        }
        if (op->in_file && !file_id_equal(&id, &op->files[op->n_files].target.id))
            return false; /* ends the file before first */
        if (op->request.only && !file_id_equal(&id, &op->request.after))
            return false;
        if (!op->in_file)
            *rc = file_begin(op, &id);
        op->at += strlen(name) + 1;
        if (op->request.ids_only) {
            op->files[op->n_files].projections |= *rc == 0;
            continue;
        }
        projfile_path(op->path, &id, op->p);
        op->dr.op = DISK_OPEN;
        op->dr.create = false;
        op->dr.path = op->path;
        op->state = LIST_OPENED;
        if (*rc == 0)
            disk_submit(op->disk, &op->dr);
        return true;
    }
    return false;
}

static bool is_enough(const struct list_op *op)
{
    return op->n_files >= op->request.max_files || op->n_looked_at >= LIST_LOOKED_AT_MAX;
}

/* Continues between two names, or two buffers of names. */
static void walk_on(struct list_op *op)
{
    int rc = 0;

    for (;;) {
        if (next_name(op, &rc)) {
            if (rc != 0)
                op_end(op, rc);
            return;
        }
        if (!op->in_file)
            break;
        file_end(op);
        if (op->request.only || is_enough(op)) {
            op_end(op, op->request.only ? -ENODATA : 0);
            return;
        }
    }
    if (op->request.only)
        op_end(op, -ENODATA);
    else if (op->more)
        names_of(op, op->directory, op->names + op->last);
    else if (op->directory + 1 < DISK_DIRECTORIES)
        names_of(op, op->directory + 1, NULL);
    else
        op_end(op, -ENODATA);
}

static void read_pages(struct list_op *op)
{
    assert(op->file != NULL);
    memset(op->pages, 0, sizeof(op->pages));
    op->iov = (struct iovec){ .iov_base = op->pages, .iov_len = sizeof(op->pages) };
    op->dr.op = DISK_READ;
    op->dr.file = op->file;
    op->dr.offset = 0;
    op->dr.iov = &op->iov;
    op->dr.n_iov = 1;
    op->state = LIST_READ;
    disk_submit(op->disk, &op->dr);
}

static void read_size(struct list_op *op)
{
    assert(op->file != NULL);
    op->dr.op = DISK_STAT;
    op->dr.file = op->file;
    op->state = LIST_SIZED;
    disk_submit(op->disk, &op->dr);
}

static void list_step(struct list_op *op)
{
    switch (op->state) {
    case LIST_NAMES:
        if (op->request.only)
            names_at(op, &op->request.after, false);
        else if (op->request.has_after)
            names_at(op, &op->request.after, true);
        else
            names_of(op, 0, NULL);
        return;
    case LIST_NAMED:
        if (op->rc != 0) {
            op_end(op, op->rc);
            return;
        }
        names_take(op);
        break;
    case LIST_OPENED:
        if (op->rc == 0) {
            op->file = op->dr.file;
            read_pages(op);
            return;
        }
        if (op->rc == -EMFILE || op->rc == -ENOMEM) { /* not read, so not damaged */
            op_end(op, op->rc);
            return;
        }
        if (op->rc != -ENOENT) { /* any error other than "removed meanwhile" */
            op->files[op->n_files].projections |= UINT32_C(1) << op->p;
            op->files[op->n_files].damaged |= UINT32_C(1) << op->p;
        }
        break;
    case LIST_READ:
        if (op->rc == 0) {
            file_take_pages(op);
        } else {
            op->files[op->n_files].projections |= UINT32_C(1) << op->p;
            op->files[op->n_files].damaged |= UINT32_C(1) << op->p;
        }
        read_size(op);
        return;
    case LIST_SIZED:
        if (op->rc == 0)
            file_take_size(op);
        disk_close(op->disk, op->file);
        op->file = NULL;
        break;
    }
    walk_on(op);
}

static void op_go(struct list_op *op)
{
    if (!op->cancelled) {
        list_step(op);
        return;
    }
    if (op->state == LIST_OPENED && op->rc == 0)
        op->file = op->dr.file;
    if (op->file != NULL)
        disk_close(op->disk, op->file);
    op_free(op);
}

static void on_disk(struct disk_req *req, int rc)
{
    struct list_op *op = req->arg;

    op->rc = rc;
    op_go(op);
}

static void on_task(struct env_task *task)
{
    op_go(container_of(task, struct list_op, task));
}

int proj_list_start(struct env *env, struct disk *disk,
                    const struct proj_list_request *request, proj_list_done_cb *done,
                    void *arg, struct list_op **out)
{
    struct list_op *op = calloc(1, sizeof(*op));

    if (op == NULL)
        return -ENOMEM;
    assert(request->max_files > 0 || request->only);
    assert(done != NULL && request->max_files <= LIST_FILES_MAX);
    op->env = env;
    op->disk = disk;
    op->request = *request;
    op->done = done;
    op->arg = arg;
    op->dr.done = on_disk;
    op->dr.arg = op;
    op->task.fn = on_task;
    env_post(env, &op->task);
    *out = op;
    return 0;
}

void proj_list_cancel(struct list_op *op)
{
    assert(!op->cancelled);
    op->cancelled = true;
}
