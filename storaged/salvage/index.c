/*
 * index.c - finds the projection files and journal entries in the data directories.
 *
 * In:     directories; names and bytes in them are not trusted (I8).
 * Out:    sorted lists in struct salvage.
 */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/wal/wal_frame.h"
#include "storaged/format/identity.h"
#include "storaged/format/journal_record.h"
#include "storaged/salvage/salvage.h"

enum { PAGE = 4096, ID_DIGITS = 32, LEVELS = 3 };

void salvage_warn(struct salvage *s, const char *fmt, ...)
{
    char text[512];
    va_list ap;

    if (s->warn == NULL)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    s->warn(s->arg, text);
}

int salvage_grow(void **array, size_t *room, size_t n, size_t item)
{
    size_t more = *room < 64 ? 64 : *room * 2;
    void *p;

    assert(n <= *room && item > 0);
    if (n < *room)
        return 0;
    p = realloc(*array, more * item);
    if (p == NULL)
        return -ENOMEM;
    *array = p;
    *room = more;
    return 0;
}

size_t salvage_pread(int fd, uint8_t *buf, size_t len, uint64_t offset)
{
    size_t at = 0, missing = 0, step = len;

    while (at < len) {
        size_t n = step < len - at ? step : len - at;
        ssize_t got = pread(fd, buf + at, n, (off_t)(offset + at));

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && step > PAGE) {
            step = PAGE;
            continue;
        }
        if (got == 0) {
            memset(buf + at, 0, len - at);
            return missing + len - at;
        }
        if (got < 0) {
            memset(buf + at, 0, n);
            missing += n;
            got = (ssize_t)n;
        }
        at += (size_t)got;
    }
    assert(missing <= len);
    return missing;
}

int file_id_compare(const struct file_id *a, const struct file_id *b)
{
    if (a->export_id != b->export_id)
        return a->export_id < b->export_id ? -1 : 1;
    if (a->ino != b->ino)
        return a->ino < b->ino ? -1 : 1;
    return a->generation < b->generation ? -1 : a->generation > b->generation;
}

/* ---- directories ---- */

void salvage_init(struct salvage *s)
{
    *s = (struct salvage){ .segment_fd = -1 };
}

void salvage_free(struct salvage *s)
{
    for (unsigned i = 0; i < s->n_dirs; i++)
        close(s->dirs[i].fd);
    if (s->segment_fd >= 0)
        close(s->segment_fd);
    free(s->places);
    free(s->waiting);
    free(s->refs);
    free(s->segments);
    salvage_init(s);
}

static void dir_identify(struct salvage *s, struct salvage_dir *d)
{
    char text[IDENTITY_TEXT_MAX];
    struct identity id;
    struct err err = { 0 };
    int fd = openat(d->fd, IDENTITY_FILE, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text));

    if (fd >= 0)
        close(fd);
    memset(&id, 0, sizeof(id));
    if (n < 0 || identity_parse(text, (size_t)n, &id, &err) != 0) {
        salvage_warn(s, "%s: no readable storage.id; its files are used nevertheless",
                     d->path);
        return;
    }
    d->has_identity = true;
    d->storage_id = identity_storage_id(&id);
    d->is_rebuilt = identity_is_rebuilt(&id);
    memcpy(d->incarnation, id.incarnation, sizeof(d->incarnation));
    if (flock(d->fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        salvage_warn(s, "%s: a storaged serves it; what it changes now may be missed",
                     d->path);
}

int salvage_add_dir(struct salvage *s, const char *path, struct err *err)
{
    struct salvage_dir *d = &s->dirs[s->n_dirs];
    struct stat st, other;

    assert(path != NULL && s->n_dirs <= SALVAGE_DIRS_MAX);
    if (s->n_dirs == SALVAGE_DIRS_MAX)
        return err_set(err, -E2BIG, "more than %d directories", SALVAGE_DIRS_MAX);
    *d = (struct salvage_dir){ .path = path };
    d->fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (d->fd < 0)
        return err_wrap(err, -errno, "%s", path);
    fstat(d->fd, &st);
    if (faccessat(d->fd, "objects", F_OK, 0) != 0 &&
        faccessat(d->fd, "storage.id", F_OK, 0) != 0) {
        close(d->fd);
        return err_set(err, -ENOTDIR, "%s is not the data directory of a storage", path);
    }
    dir_identify(s, d);
    for (unsigned i = 0; i < s->n_dirs; i++) {
        const struct salvage_dir *o = &s->dirs[i];

        fstat(o->fd, &other);
        if ((st.st_dev == other.st_dev && st.st_ino == other.st_ino) ||
            (d->has_identity && o->has_identity &&
             memcmp(d->incarnation, o->incarnation, sizeof(d->incarnation)) == 0)) {
            close(d->fd);
            return err_set(err, -EEXIST, "%s and %s are the same storage", o->path, path);
        }
    }
    s->n_dirs++;
    return 0;
}

/* ---- projection files ---- */

static int hex_digit(char c)
{
    const char *digits = "0123456789abcdef", *p = c == '\0' ? NULL : strchr(digits, c);

    return p == NULL ? -1 : (int)(p - digits);
}

/* Parses "FILE_ID.P" or "FILE_ID.damaged". */
static bool name_parse(const char *name, struct salvage_place *out)
{
    uint64_t part[2] = { 0, 0 };
    const char *p = name + ID_DIGITS + 1;

    for (unsigned i = 0; i < ID_DIGITS; i++) {
        int digit = hex_digit(name[i]);

        if (digit < 0)
            return false;
        part[i / 16] = part[i / 16] << 4 | (unsigned)digit;
    }
    if (name[ID_DIGITS] != '.')
        return false;
    out->id = (struct file_id){ .export_id = (uint32_t)(part[0] >> 32),
                                .generation = (uint32_t)part[0],
                                .ino = part[1] };
    if (strcmp(p, "damaged") == 0) {
        out->projection = SALVAGE_QUARANTINED;
        return true;
    }
    if (p[0] < '0' || p[0] > '9' ||
        (p[1] != '\0' && (p[0] == '0' || p[1] < '0' || p[1] > '9' || p[2] != '\0')))
        return false;
    out->projection = (uint8_t)atoi(p);
    return out->projection < CODEC_N_MAX;
}

static int place_add(struct salvage *s, unsigned dir, const char *name)
{
    struct salvage_place place = { .dir = (uint8_t)dir };
    void *array = s->places;

    assert(dir < s->n_dirs);
    if (!name_parse(name, &place))
        return 0;
    if (salvage_grow(&array, &s->room_places, s->n_places, sizeof(place)) != 0)
        return -ENOMEM;
    s->places = array;
    s->places[s->n_places++] = place;
    return 0;
}

/* Walks a directory; level 0: objects, 1: XX, 2: YY. Closes fd. */
static int walk(struct salvage *s, unsigned dir, int fd, unsigned level)
{
    assert(dir < s->n_dirs && level < LEVELS);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *e;
    int rc = 0;

    if (d == NULL) {
        salvage_warn(s, "%s: a directory of objects cannot be read: %s",
                     s->dirs[dir].path, strerror(errno));
        s->dirs[dir].is_cut = true;
        if (fd >= 0)
            close(fd);
        return 0;
    }
    while (rc == 0 && (errno = 0, e = readdir(d)) != NULL) {
        if (e->d_name[0] == '.')
            continue;
        if (level + 1 == LEVELS)
            rc = place_add(s, dir, e->d_name);
        else if (strlen(e->d_name) == 2)
            rc = walk(s, dir,
                      openat(dirfd(d), e->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC),
                      level + 1);
    }
    if (rc == 0 && errno != 0) {
        salvage_warn(s, "%s: a directory of objects ends early: %s", s->dirs[dir].path,
                     strerror(errno));
        s->dirs[dir].is_cut = true;
    }
    closedir(d);
    return rc;
}

static int place_compare(const void *a, const void *b)
{
    const struct salvage_place *x = a, *y = b;
    int c = file_id_compare(&x->id, &y->id);

    if (c != 0)
        return c;
    return x->projection != y->projection ? x->projection - y->projection
                                          : x->dir - y->dir;
}

int salvage_index(struct salvage *s)
{
    for (unsigned i = 0; i < s->n_dirs; i++) {
        int fd = openat(s->dirs[i].fd, "objects", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        int rc = fd < 0 && errno == ENOENT ? 0 : walk(s, i, fd, 0);

        if (rc != 0)
            return rc;
    }
    if (s->n_places > 0)
        qsort(s->places, s->n_places, sizeof(s->places[0]), place_compare);
    return salvage_index_journals(s);
}

bool salvage_next(const struct salvage *s, size_t *cursor, struct salvage_file *out)
{
    size_t i = *cursor;

    assert(s->n_places <= s->room_places);
    if (i >= s->n_places)
        return false;
    *out = (struct salvage_file){ .id = s->places[i].id, .first = i };
    while (i < s->n_places && file_id_compare(&s->places[i].id, &out->id) == 0)
        i++;
    out->n = i - out->first;
    *cursor = i;
    return true;
}

/* ---- journals ---- */

struct segment_scan {
    struct salvage *s;
    unsigned dir;
    uint32_t segment;
};

/* Counts damaged entries, which may have held anything. A torn end of a segment does not
 * count: it was never acknowledged as stable. */
static void entries_damaged(struct segment_scan *scan, uint64_t n)
{
    scan->s->n_entries_damaged += n;
    scan->s->dirs[scan->dir].is_journal_cut |= n > 0;
}

static int waiting_add(struct salvage *s, const struct salvage_waiting *w)
{
    void *array = s->waiting;

    assert(w->first < w->end && w->dir < s->n_dirs);
    if (salvage_grow(&array, &s->room_waiting, s->n_waiting, sizeof(*w)) != 0)
        return -ENOMEM;
    s->waiting = array;
    s->waiting[s->n_waiting++] = *w;
    return 0;
}

static int ref_add(struct salvage *s, const struct storage_file *ref)
{
    void *array = s->refs;

    if (s->n_refs > 0 && file_id_compare(&s->refs[s->n_refs - 1].id, &ref->id) == 0)
        return 0; /* entries of a file are often adjacent */
    if (salvage_grow(&array, &s->room_refs, s->n_refs, sizeof(*ref)) != 0)
        return -ENOMEM;
    s->refs = array;
    s->refs[s->n_refs++] = *ref;
    return 0;
}

static int records_add(struct segment_scan *scan, const struct journal_record *e,
                       const struct wal_place *place, const uint8_t *data, size_t len)
{
    static struct journal_block records[JOURNAL_RECORD_BLOCKS_MAX];
    int n = journal_record_blocks(e, data, len, records), rc = 0;

    assert(scan->segment < scan->s->n_segments);
    if (n < 0) {
        entries_damaged(scan, 1);
        return 0;
    }
    for (int i = 0; i < n && rc == 0; i++) {
        const struct journal_block *r = &records[i];

        rc = waiting_add(scan->s,
                         &(struct salvage_waiting){ .id = e->file.id,
                                                    .first = r->block,
                                                    .end = r->block + 1,
                                                    .version = r->header.version,
                                                    .head_at = place->offset + r->head_at,
                                                    .body_at = place->offset + r->body_at,
                                                    .segment = scan->segment,
                                                    .body_len = (uint16_t)r->body_len,
                                                    .user_bytes = r->header.user_bytes,
                                                    .dir = (uint8_t)scan->dir,
                                                    .projection = e->projection });
    }
    return rc;
}

static int on_entry(void *arg, unsigned loop, uint8_t kind, const struct wal_place *place,
                    const uint8_t *data, size_t len)
{
    struct segment_scan *scan = arg;
    struct journal_record e;
    int rc;

    (void)loop;
    /* segment_parse() counts it, unless it is the torn end. */
    if (place->is_damaged)
        return 0;
    if (kind == JOURNAL_DAMAGED) {
        entries_damaged(scan, 1);
        return 0;
    }
    if (journal_record_get(kind, data, len, &e) != 0) {
        entries_damaged(scan, 1);
        return 0;
    }
    rc = ref_add(scan->s, &e.file);
    if (rc != 0)
        return rc;
    if (e.kind == JOURNAL_RECORDS)
        return records_add(scan, &e, place, data, len);
    if (e.kind == JOURNAL_MARK)
        return waiting_add(scan->s, &(struct salvage_waiting){ .id = e.file.id,
                                                               .first = e.first,
                                                               .end = e.end,
                                                               .version = e.version,
                                                               .dir = (uint8_t)scan->dir,
                                                               .is_mark = true });
    return 0; /* dropped versions have too few projections anyway */
}

static int segment_scan_bytes(struct segment_scan *scan, const uint8_t *bytes, size_t len)
{
    struct wal_scan_result result = { 0 };
    struct segment_header h;
    int rc = segment_header_get(bytes, len >= 2 * PAGE ? bytes + len - PAGE : NULL, &h);

    assert(scan->segment < scan->s->n_segments && scan->dir < scan->s->n_dirs);
    if (rc == -ENODATA)
        return 0;
    if (rc != 0) {
        entries_damaged(scan, 1);
        salvage_warn(scan->s, "%s/%s: %s", scan->s->dirs[scan->dir].path,
                     scan->s->segments[scan->segment].name,
                     rc == -ROZO_EUNKNOWN_FORMAT
                         ? "of a format this program does not know"
                         : "both headers are damaged");
        return 0;
    }
    rc = segment_parse(bytes, len, &h, 0, on_entry, scan, &result);
    entries_damaged(scan, result.n_damaged);
    return rc;
}

static int segment_index(struct salvage *s, unsigned dir, const char *name)
{
    struct segment_scan scan = { s, dir, (uint32_t)s->n_segments };
    struct salvage_segment *segment;
    void *array = s->segments;
    struct stat st;
    uint8_t *bytes;
    int fd, rc;

    assert(dir < s->n_dirs && s->n_places <= s->room_places);
    if (salvage_grow(&array, &s->room_segments, s->n_segments, sizeof(*segment)) != 0)
        return -ENOMEM;
    s->segments = array;
    segment = &s->segments[s->n_segments++];
    segment->dir = (uint8_t)dir;
    rc = snprintf(segment->name, sizeof(segment->name), "journal/%s", name);
    assert(rc > 0 && (size_t)rc < sizeof(segment->name));
    fd = openat(s->dirs[dir].fd, segment->name,
                O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) ||
        st.st_size > WAL_SEGMENT_MAX || st.st_size < PAGE) {
        salvage_warn(s, "%s/%s is not a segment of a journal", s->dirs[dir].path,
                     segment->name);
        s->dirs[dir].is_journal_cut |= fd < 0;
        if (fd >= 0)
            close(fd);
        return 0;
    }
    bytes = malloc((size_t)st.st_size);
    rc = bytes == NULL ? -ENOMEM : 0;
    if (rc == 0) {
        /* Where it is unreadable it looks torn. */
        if (salvage_pread(fd, bytes, (size_t)st.st_size, 0) > 0)
            entries_damaged(&scan, 1);
        rc = segment_scan_bytes(&scan, bytes, (size_t)st.st_size);
    }
    free(bytes);
    close(fd);
    return rc;
}

static bool is_segment_name(const char *name)
{
    unsigned loop, slot;
    char end;

    return strlen(name) < 12 && sscanf(name, "%u.%u%c", &loop, &slot, &end) == 2;
}

static int waiting_compare(const void *a, const void *b)
{
    const struct salvage_waiting *x = a, *y = b;
    int c = file_id_compare(&x->id, &y->id);

    if (c != 0)
        return c;
    if (x->is_mark != y->is_mark)
        return x->is_mark ? -1 : 1;
    if (x->first != y->first)
        return x->first < y->first ? -1 : 1;
    return x->version > y->version ? -1 : x->version < y->version; /* newest first */
}

static int ref_compare(const void *a, const void *b)
{
    return file_id_compare(&((const struct storage_file *)a)->id,
                           &((const struct storage_file *)b)->id);
}

int salvage_index_journals(struct salvage *s)
{
    int rc = 0;

    for (unsigned i = 0; i < s->n_dirs && rc == 0; i++) {
        int fd = openat(s->dirs[i].fd, "journal", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        DIR *d = fd < 0 ? NULL : fdopendir(fd);
        struct dirent *e;

        if (d == NULL && (fd >= 0 || errno != ENOENT)) {
            salvage_warn(s, "%s: the journal cannot be read: %s", s->dirs[i].path,
                         strerror(errno));
            s->dirs[i].is_journal_cut = true;
        }
        if (d == NULL && fd >= 0)
            close(fd);
        while (d != NULL && rc == 0 && (e = readdir(d)) != NULL) {
            if (is_segment_name(e->d_name))
                rc = segment_index(s, i, e->d_name);
        }
        if (d != NULL)
            closedir(d);
    }
    if (s->n_waiting > 0)
        qsort(s->waiting, s->n_waiting, sizeof(s->waiting[0]), waiting_compare);
    if (s->n_refs > 0)
        qsort(s->refs, s->n_refs, sizeof(s->refs[0]), ref_compare);
    if (s->n_entries_damaged > 0)
        salvage_warn(s, "%" PRIu64 " entries of journals are damaged",
                     s->n_entries_damaged);
    return rc;
}

void salvage_waiting_of(const struct salvage *s, const struct file_id *id, size_t *first,
                        size_t *end)
{
    size_t lo = 0, hi = s->n_waiting;

    while (lo < hi) {
        size_t mid = (lo + hi) / 2;

        if (file_id_compare(&s->waiting[mid].id, id) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    assert(lo <= s->n_waiting);
    *first = lo;
    while (lo < s->n_waiting && file_id_compare(&s->waiting[lo].id, id) == 0)
        lo++;
    *end = lo;
}

const struct storage_file *salvage_ref_of(const struct salvage *s,
                                          const struct file_id *id)
{
    struct storage_file key = { .id = *id };

    return s->n_refs == 0 ? NULL
                          : bsearch(&key, s->refs, s->n_refs, sizeof(key), ref_compare);
}
