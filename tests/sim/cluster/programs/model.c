/*
 * model.c - model of POSIX: allowed results of reads, sizes and names.
 *
 * In:     requests of programs and their answers. Out: an error text if a result is not
 *         allowed.
 */
#include "tests/sim/cluster/programs/model.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/bytes.h"
#include "tests/sim/cluster/world/proc.h"

/* A dead client's requests to exportd may take effect until its session is over. */
#define STRAYS_NS UINT64_C(7000000000)

struct model model;
static char words[512];

void model_begin(enum model_strictness strict)
{
    memset(&model, 0, sizeof(model));
    model.strict = strict;
    model.bad_file = NOBODY;
    for (unsigned i = 0; i < NAMES_MAX; i++) {
        model.names[i].n_values = 1; /* the name does not exist */
        model.names[i].values[0].file = NOBODY;
    }
}

void model_end(void)
{
    for (unsigned i = 0; i < FILES_MAX_SIM; i++)
        free(model.files[i].writes);
}

/* ---- units ---- */

static uint64_t mix(uint32_t id, uint64_t unit)
{
    uint64_t x = ((uint64_t)id << 32 ^ unit) * 0x9e3779b97f4a7c15u;

    x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9u;
    return x ^ x >> 29;
}

static void unit_put(uint8_t *p, uint32_t id, uint64_t unit)
{
    put_le32(p, id);
    put_le32(p + 4, (uint32_t)unit);
    put_le64(p + 8, mix(id, unit));
}

/* Reads the id of a unit's write. Returns false if the bytes come from no write. */
static bool unit_get(const uint8_t *p, uint64_t unit, uint32_t *id)
{
    static const uint8_t zeros[UNIT];

    *id = 0;
    if (memcmp(p, zeros, UNIT) == 0)
        return true;
    *id = get_le32(p);
    return *id != 0 && get_le32(p + 4) == (uint32_t)unit &&
           get_le64(p + 8) == mix(*id, unit);
}

/* ---- writes ---- */

int model_file_new(void)
{
    for (int i = 0; i < FILES_MAX_SIM; i++) {
        struct model_file *f = &model.files[i];

        if (f->used)
            continue;
        free(f->writes);
        memset(f, 0, sizeof(*f));
        f->used = true;
        f->writer = NOBODY;
        return i;
    }
    return NOBODY;
}

void model_file_free(int file)
{
    model.files[file].used = false;
}

/* Makes the outcome of a write unknown; it may still take effect until by_ns. */
static void write_doubt(struct model_write *w, uint64_t by_ns)
{
    if (!w->unknown || w->gone_ns < by_ns)
        w->gone_ns = by_ns;
    w->unknown = true;
}

static struct model_write *write_find(struct model_file *f, uint32_t no)
{
    for (unsigned i = f->n_writes; i-- > 0;) {
        if (f->writes[i].no == no)
            return &f->writes[i];
    }
    return NULL;
}

uint32_t model_write_begin(int file, uint64_t off, uint64_t end, bool zeros, int client,
                           unsigned life)
{
    struct model_file *f = &model.files[file];
    struct model_write *w;

    assert(off % UNIT == 0 && (end % UNIT == 0 || end == UINT64_MAX));
    if (f->n_writes == f->writes_room) {
        f->writes_room = f->writes_room * 2 + 16;
        f->writes = realloc(f->writes, f->writes_room * sizeof(f->writes[0]));
        assert(f->writes != NULL);
    }
    w = &f->writes[f->n_writes++];
    *w = (struct model_write){ .id = zeros ? 0 : ++model.last_id,
                               .no = ++f->last_no,
                               .off = off,
                               .end = end,
                               .client = client,
                               .life = life,
                               .begun_ns = world_clock.now_ns };
    return w->no;
}

void model_write_is_allocation(int file, uint32_t no, bool keeps, bool grows)
{
    struct model_write *w = write_find(&model.files[file], no);

    w->keeps = keeps;
    w->grows = grows;
}

bool model_may_still_come(const struct model_write *w)
{
    return (!w->answered && !w->orphan) ||
           (w->unknown && w->gone_ns >= world_clock.now_ns);
}

bool model_is_away(int client, unsigned life)
{
    const struct model_absence *a = &model.absences[client];

    return a->life == life && world_clock.now_ns < a->until_ns;
}

uint64_t model_moment(void)
{
    return ++model.last_moment;
}

void model_write_done(int file, uint32_t no, int rc)
{
    struct model_write *w = write_find(&model.files[file], no);

    assert(w != NULL);
    w->answered = true;
    if (rc == 0) {
        w->acked_ns = world_clock.now_ns;
        w->acked_no = model_moment();
    }
    if (rc != 0 || w->unknown)
        write_doubt(w, world_clock.now_ns);
    if (rc == 0 && model.strict && model_is_away(w->client, w->life))
        write_doubt(w, model.absences[w->client].until_ns);
}

void model_fill(int file, uint32_t no, uint8_t *data, uint64_t off, size_t len)
{
    struct model_write *w = write_find(&model.files[file], no);

    assert(w != NULL && len % UNIT == 0);
    for (size_t at = 0; at < len; at += UNIT)
        unit_put(data + at, w->id, (off + at) / UNIT);
}

/* Tells whether a later truncate or punch may
 * have covered the block before it was sent. */
static bool is_cut_since(const struct model_file *f, const struct model_write *w,
                         uint64_t block)
{
    for (const struct model_write *z = w + 1; z < f->writes + f->n_writes; z++) {
        if (z->id == 0 && !z->keeps && z->off < (block + 1) * BLOCK &&
            block * BLOCK < z->end)
            return true;
    }
    return false;
}

/*
 * Returns an error text if fewer storages got this acknowledged write than the quorum,
 * whichever were up.
 */
static const char *write_check_quorum(int file, const struct model_write *w)
{
    const struct model_file *f = &model.files[file];

    for (uint64_t b = w->off / BLOCK; w->id != 0 && b * BLOCK < w->end; b++) {
        if ((unsigned)__builtin_popcount(w->storages[b]) >= model.q ||
            is_cut_since(f, w, b))
            continue;
        model.bad_file = file;
        model.bad_unit = b * BLOCK / UNIT;
        return "acknowledged, but fewer storages than the quorum got it";
    }
    return NULL;
}

const char *model_write_synced(int file, uint32_t no)
{
    struct model_write *w = write_find(&model.files[file], no);

    w->stored_ns = w->synced_ns = world_clock.now_ns;
    w->shaky = w->unknown = false;
    return write_check_quorum(file, w);
}

/* Tells whether the write was acknowledged before the observer asked. At one time the
 * mount may get a request before it acknowledges the write of another program. */
static bool was_acked(const struct model_write *w, const struct model_view *v)
{
    return w->acked_ns != 0 && w->acked_no < v->started_no;
}

/* Tells whether a flush or fsync by this observer covers the write. */
static bool is_covered(const struct model_write *w, const struct model_view *v)
{
    bool own = w->client == v->client && w->life == v->life;

    if (w->unknown)
        return false;
    if (own && w->begun_ns >= v->opened_ns)
        return was_acked(w, v);
    if (w->shaky)
        return false;
    if (own)
        return was_acked(w, v);
    return w->stored_ns != 0 && w->stored_ns <= v->started_ns;
}

const char *model_stored(int file, const struct model_view *view, bool synced)
{
    struct model_file *f = &model.files[file];
    const char *wrong = NULL;

    for (unsigned i = 0; i < f->n_writes; i++) {
        struct model_write *w = &f->writes[i];

        if (!is_covered(w, view))
            continue;
        if (wrong == NULL && w->client == view->client && w->life == view->life)
            wrong = write_check_quorum(file, w);
        if (w->stored_ns == 0)
            w->stored_ns = world_clock.now_ns;
        if (synced && w->synced_ns == 0) {
            w->synced_ns = world_clock.now_ns;
            w->shaky = false;
        }
    }
    model_collapse(file);
    return wrong;
}

/* Tells whether the observer can see no write older than this one. */
static bool is_definite_as(const struct model_write *w, const struct model_view *v,
                           bool strict)
{
    bool own = strict || (w->client == v->client && w->life == v->life);
    uint64_t by_ns = own ? v->started_ns : v->opened_ns;

    if (w->synced_ns != 0 && w->synced_ns <= by_ns)
        return true;
    if (w->unknown || w->shaky || w->was_shaky) /* may be lost until it is synced */
        return false;
    if (own && !model.gives_up)
        return was_acked(w, v);
    return w->stored_ns != 0 && w->stored_ns <= by_ns;
}

static bool is_definite(const struct model_write *w, const struct model_view *v)
{
    return is_definite_as(w, v, model.strict == MODEL_STRICT);
}

static bool covers(const struct model_write *w, uint64_t unit)
{
    return !w->keeps && w->off <= unit * UNIT && unit * UNIT < w->end;
}

/* Tells whether fewer than k storages got the
 * unit in time: only its client can have it. */
static bool is_refused(const struct model_write *w, uint64_t unit)
{
    return w->orphan && w->id != 0 &&
           (unsigned)__builtin_popcount(w->storages[unit * UNIT / BLOCK]) < model.k;
}

static bool is_cut_off(const struct model_write *w, uint64_t unit)
{
    return w->cut_off != 0 && unit * UNIT >= w->cut_off;
}

static void size_step(const struct model_write *w, bool definite, uint64_t *lo,
                      uint64_t *hi)
{
    if (w->end == UINT64_MAX) { /* a truncate */
        if (definite || w->off < *lo)
            *lo = w->off;
        if (definite || w->off > *hi)
            *hi = w->off;
    } else if (w->id != 0 || w->grows) {
        if (definite && w->end > *lo)
            *lo = w->end;
        if (w->end > *hi)
            *hi = w->end;
    }
}

/* ---- many writers ---- */

/* Returns the end of a write: later writes that begin after it come after it in order. */
static uint64_t ended_ns(const struct model_write *w)
{
    if (!w->answered && !w->orphan)
        return UINT64_MAX;
    return w->unknown ? w->gone_ns : w->acked_ns;
}

static bool is_truncate(const struct model_write *w)
{
    return w->end == UINT64_MAX;
}

/* Tells whether a concurrent write may have made
 * the file shorter or, for a truncate, longer. */
static bool size_is_contended(const struct model_file *f, const struct model_write *w)
{
    for (unsigned i = 0; i < f->n_writes; i++) {
        const struct model_write *o = &f->writes[i];

        if (o != w && (is_truncate(o) || is_truncate(w)) && o->begun_ns <= ended_ns(w) &&
            w->begun_ns <= ended_ns(o))
            return true;
    }
    return false;
}

static void size_strictly(const struct model_file *f, const struct model_view *view,
                          uint64_t *lo, uint64_t *hi)
{
    for (unsigned i = 0; i < f->n_writes; i++) {
        const struct model_write *w = &f->writes[i];

        size_step(w, is_definite_as(w, view, true) && !size_is_contended(f, w), lo, hi);
    }
}

static bool unit_is_allowed_strictly(const struct model_file *f,
                                     const struct model_view *view, uint64_t unit,
                                     uint32_t id)
{
    uint64_t since_ns = 0,
             data_since_ns = 0; /* writes that ended earlier are not visible */

    for (unsigned i = 0; i < f->n_writes; i++) {
        const struct model_write *w = &f->writes[i];

        if (!covers(w, unit) || !is_definite(w, view))
            continue;
        since_ns = w->begun_ns; /* writes are sorted by start */
        if (w->id != 0)
            data_since_ns = w->begun_ns;
    }
    if (since_ns == 0 && unit < FILE_UNITS && f->base[unit] == id)
        return true;
    for (unsigned i = 0; i < f->n_writes; i++) {
        const struct model_write *w = &f->writes[i];

        if (!covers(w, unit) || w->id != id || is_refused(w, unit) ||
            (id != 0 && is_cut_off(w, unit)))
            continue;
        if (ended_ns(w) >= since_ns)
            return true;
        if (id != 0 && ended_ns(w) >= data_since_ns && (w->unknown || w->was_shaky)) {
            model.n_resurfaced++; /* see model.h: data beyond the end */
            return true;
        }
    }
    return false;
}

/* ---- reading ---- */

static void size_as(int file, const struct model_view *view, bool strict, uint64_t *lo,
                    uint64_t *hi)
{
    struct model_file *f = &model.files[file];

    *lo = f->size_lo;
    *hi = f->size_hi;
    if (strict) {
        size_strictly(f, view, lo, hi);
        return;
    }
    for (unsigned i = 0; i < f->n_writes; i++)
        size_step(&f->writes[i], is_definite(&f->writes[i], view), lo, hi);
}

/* Tells whether the write overlaps later ones;
 * otherwise its place in the order is fixed. */
static bool is_contended(const struct model_file *f, unsigned n)
{
    return model.strict && n + 1 < f->n_writes &&
           f->writes[n + 1].begun_ns <= ended_ns(&f->writes[n]);
}

void model_collapse(int file)
{
    struct model_file *f = &model.files[file];
    unsigned n = 0;

    if (f->n_reads != 0)
        return;
    /* stable writes at the beginning become the base of the file */
    while (n < f->n_writes && f->writes[n].synced_ns != 0 && !f->writes[n].was_shaky &&
           !is_contended(f, n)) {
        const struct model_write *w = &f->writes[n++];
        uint64_t end = w->end < FILE_BYTES_MAX_SIM ? w->end : FILE_BYTES_MAX_SIM;

        size_step(w, true, &f->size_lo, &f->size_hi);
        for (uint64_t u = w->off / UNIT; !w->keeps && u < end / UNIT; u++)
            f->base[u] = w->id;
    }
    if (n == 0)
        return;
    memmove(f->writes, f->writes + n, (f->n_writes - n) * sizeof(f->writes[0]));
    f->n_writes -= n;
}

static bool unit_is_allowed(const struct model_file *f, const struct model_view *view,
                            uint64_t unit, uint32_t id)
{
    unsigned i = f->n_writes;
    bool passed = false; /* a definite write of data or of zeros was passed */

    if (model.strict == MODEL_STRICT)
        return unit_is_allowed_strictly(f, view, unit, id);
    while (i-- > 0 && !passed) {
        const struct model_write *w = &f->writes[i];

        if (!covers(w, unit))
            continue;
        if (w->id == id)
            return id == 0 || !(is_cut_off(w, unit) || is_refused(w, unit));
        passed = is_definite(w, view);
        if (passed && w->id != 0)
            return false;
    }
    if (!passed)
        return unit < FILE_UNITS && f->base[unit] == id;
    for (i++; i-- > 0;) { /* see model.h: data beyond the end */
        const struct model_write *w = &f->writes[i];

        if (covers(w, unit) && w->id == id && (w->unknown || w->was_shaky)) {
            model.n_resurfaced++;
            return !is_cut_off(w, unit) && !is_refused(w, unit);
        }
    }
    return false;
}

static const char *say_unit(int file, const struct model_view *view, uint64_t unit,
                            uint32_t id, bool known)
{
    const struct model_file *f = &model.files[file];
    int n;

    model.bad_file = file;
    model.bad_unit = unit;
    n = snprintf(words, sizeof(words),
                 "file %d (ino %llu) bytes %llu (block %llu): read %s%u, allowed:", file,
                 (unsigned long long)f->ino, (unsigned long long)unit * UNIT,
                 (unsigned long long)unit * UNIT / 4096, known ? "write " : "garbage ",
                 id);

    for (unsigned i = f->n_writes; i-- > 0 && n < (int)sizeof(words) - 60;) {
        const struct model_write *w = &f->writes[i];

        if (!covers(w, unit))
            continue;
        n += snprintf(words + n, sizeof(words) - (size_t)n, " %u%s%s%s%s%s%s", w->id,
                      w->acked_ns ? "a" : "", w->stored_ns ? "s" : "",
                      w->synced_ns ? "S" : "", w->unknown ? "?" : "", w->shaky ? "~" : "",
                      is_refused(w, unit) ? "!" : "");
        if (is_definite(w, view))
            return words;
    }
    if (n < (int)sizeof(words) - 20)
        snprintf(words + n, sizeof(words) - (size_t)n, " base %u", f->base[unit]);
    return words;
}

void model_size(int file, const struct model_view *view, uint64_t *lo, uint64_t *hi)
{
    size_as(file, view, model.strict == MODEL_STRICT, lo, hi);
}

const char *model_check_read(int file, const struct model_view *view, uint64_t off,
                             size_t len, const uint8_t *data, size_t got)
{
    const struct model_file *f = &model.files[file];
    uint64_t lo, hi;

    assert(off % UNIT == 0 && len % UNIT == 0);
    model_size(file, view, &lo, &hi);
    if (off + got > hi && got != 0) {
        snprintf(words, sizeof(words),
                 "file %d: read up to %llu, but it is at most %llu long (asked at %.4f, "
                 "opened at %.4f)",
                 file, (unsigned long long)(off + got), (unsigned long long)hi,
                 (double)view->started_ns / 1e9, (double)view->opened_ns / 1e9);
        return words;
    }
    if (got < len && off + got < lo) {
        snprintf(words, sizeof(words),
                 "file %d: read %zu of %zu bytes at %llu, but it is at least %llu long",
                 file, got, len, (unsigned long long)off, (unsigned long long)lo);
        return words;
    }
    for (size_t at = 0; at + UNIT <= got; at += UNIT) {
        uint64_t unit = (off + at) / UNIT;
        uint32_t id;
        bool known = unit_get(data + at, unit, &id);

        model.n_units_checked++;
        if (!known || !unit_is_allowed(f, view, unit, id))
            return say_unit(file, view, unit, id, known);
    }
    return NULL;
}

bool model_may_be_nothing(int file, const struct model_view *view, uint64_t off,
                          size_t len)
{
    const struct model_file *f = &model.files[file];

    for (uint64_t unit = off / UNIT; unit < (off + len) / UNIT; unit++) {
        if (!unit_is_allowed(f, view, unit, 0))
            return false;
    }
    return true;
}

const char *model_check_size(int file, const struct model_view *view, uint64_t size)
{
    uint64_t lo, hi;

    size_as(file, view, model.strict != MODEL_LENIENT, &lo, &hi);
    if (size >= lo && size <= hi)
        return NULL;
    snprintf(words, sizeof(words), "file %d (ino %llu): size %llu, allowed %llu to %llu",
             file, (unsigned long long)model.files[file].ino, (unsigned long long)size,
             (unsigned long long)lo, (unsigned long long)hi);
    return words;
}

void model_opened_by_only_writer(int file, uint64_t size)
{
    struct model_file *f = &model.files[file];

    for (unsigned i = 0; i < f->n_writes; i++) {
        struct model_write *w = &f->writes[i];

        if ((w->unknown || w->was_shaky) && w->cut_off == 0)
            w->cut_off = size > 0 ? size : 1; /* the first unit stays */
    }
}

/* ---- what happens to all of them ---- */

void model_close_failed(int file, int client, unsigned life)
{
    struct model_file *f = &model.files[file];

    for (unsigned i = 0; i < f->n_writes; i++) {
        struct model_write *w = &f->writes[i];

        if (w->client == client && w->life == life && w->stored_ns == 0)
            write_doubt(w, world_clock.now_ns);
    }
}

void model_session_lost(int client, unsigned life)
{
    for (int i = 0; i < FILES_MAX_SIM; i++) {
        if (model.files[i].used)
            model_close_failed(i, client, life);
    }
}

void model_fsync_failed(int file)
{
    struct model_file *f = &model.files[file];

    for (unsigned j = 0; j < model.n_names; j++) {
        for (unsigned k = 0; k < model.names[j].n_values; k++) {
            if (model.names[j].values[k].file == file)
                model.names[j].values[k].client = NOBODY; /* the failed fsync
                                                           * reported it */
        }
    }
    for (unsigned i = 0; i < f->n_writes; i++) {
        if (f->writes[i].shaky && f->writes[i].synced_ns == 0)
            write_doubt(&f->writes[i], world_clock.now_ns);
    }
}

static void unstored_doubt(const struct model_file *f, int client, unsigned life,
                           uint64_t by_ns)
{
    for (unsigned j = 0; f->used && j < f->n_writes; j++) {
        struct model_write *w = &f->writes[j];

        if (w->client == client && w->life == life && w->stored_ns == 0)
            write_doubt(w, by_ns);
    }
}

void model_client_away(int client, unsigned life, uint64_t until_ns)
{
    model.absences[client] = (struct model_absence){ life, until_ns };
    for (unsigned i = 0; model.strict && i < FILES_MAX_SIM; i++)
        unstored_doubt(&model.files[i], client, life, until_ns);
}

void model_client_died(int client, unsigned life)
{
    for (unsigned i = 0; i < FILES_MAX_SIM; i++) {
        struct model_file *f = &model.files[i];

        unstored_doubt(f, client, life, world_clock.now_ns + STRAYS_NS);
        for (unsigned j = 0; f->used && j < f->n_writes; j++)
            f->writes[j].orphan |=
                f->writes[j].client == client && f->writes[j].life == life;
        if (f->used && f->writer == client)
            f->writer = NOBODY;
    }
}

static void file_landed(struct model_file *f, int client, unsigned life, unsigned storage,
                        uint64_t first, uint64_t end)
{
    for (unsigned j = 0; j < f->n_writes; j++) {
        struct model_write *w = &f->writes[j];

        if (w->client != client || w->life != life)
            continue;
        for (uint64_t b = first; b < end && b < FILE_BLOCKS; b++)
            w->storages[b] |= UINT32_C(1) << storage;
    }
}

/* Marks the writes whose blocks arrived. After exportd's
 * power loss two files may have had the same number. */
void model_landed(uint64_t ino, int client, unsigned life, unsigned storage,
                  uint64_t first, uint64_t end)
{
    for (unsigned i = 0; i < FILES_MAX_SIM; i++) {
        if (model.files[i].used && model.files[i].ino == ino)
            file_landed(&model.files[i], client, life, storage, first, end);
    }
}

void model_power_lost(uint64_t since_ns)
{
    for (unsigned i = 0; i < FILES_MAX_SIM; i++) {
        struct model_file *f = &model.files[i];

        for (unsigned j = 0; f->used && j < f->n_writes; j++) {
            struct model_write *w = &f->writes[j];

            if (w->synced_ns == 0 && (w->stored_ns == 0 || w->stored_ns >= since_ns))
                w->shaky = w->was_shaky = true;
        }
    }
}

/* ---- names ---- */

static void value_add(struct model_name *n, int file, uint64_t begun_ns,
                      uint64_t acked_ns, const struct model_view *by)
{
    if (n->n_values == NAME_VALUES_MAX) { /* rare: the oldest value is dropped */
        memmove(n->values + 1, n->values + 2, (n->n_values - 2) * sizeof(n->values[0]));
        n->n_values--;
    }
    n->values[n->n_values++] =
        (struct model_value){ .file = file,
                              .client = by == NULL ? NOBODY : by->client,
                              .life = by == NULL ? 0 : by->life,
                              .begun_ns = begun_ns,
                              .acked_ns = acked_ns };
}

void model_name_set(int name, int file, uint64_t begun_ns, const struct model_view *by)
{
    value_add(&model.names[name], file, begun_ns, world_clock.now_ns, by);
    model.names[name].n_possible = 0;
}

void model_name_maybe(int name, int file)
{
    struct model_name *n = &model.names[name];
    int now = n->n_values == 0 ? NOBODY : n->values[n->n_values - 1].file;

    value_add(n, file, 0, UINT64_MAX, NULL);
    value_add(n, now, 0, UINT64_MAX, NULL);
    n->n_possible = n->n_possible == 0 ? 2 : n->n_possible + 2;
    if (n->n_possible > n->n_values)
        n->n_possible = n->n_values;
}

int model_name_get(int name)
{
    const struct model_name *n = &model.names[name];

    assert(n->n_possible == 0);
    return n->n_values == 0 ? NOBODY : n->values[n->n_values - 1].file;
}

int model_file_by_ino(uint64_t ino)
{
    for (int i = 0; i < FILES_MAX_SIM; i++) {
        if (model.files[i].used && model.files[i].ino == ino)
            return i;
    }
    return NOBODY;
}

const char *model_name_seen(int name, uint64_t ino)
{
    struct model_name *n = &model.names[name];
    unsigned possible = n->n_possible != 0 ? n->n_possible : 1;
    unsigned first = possible > n->n_values ? 0 : n->n_values - possible;
    int file = ino == 0 ? NOBODY : model_file_by_ino(ino);
    bool fits = n->n_values == 0 && ino == 0;

    for (unsigned i = n->n_values; i-- > first && !fits;) {
        int v = n->values[i].file;

        if (ino != 0 && v != NOBODY && model.files[v].used && model.files[v].ino == 0 &&
            file == NOBODY) { /* the number of this file was never answered */
            model.files[v].ino = ino;
            file = v;
        }
        fits = ino == 0 ? v == NOBODY : v == file && file != NOBODY;
    }
    if (fits) {
        if (n->n_possible != 0) {
            n->n_possible = 0;
            value_add(n, file, 0, world_clock.now_ns, NULL);
        }
        return NULL;
    }
    snprintf(words, sizeof(words),
             "name %s: is inode %llu (file %d), which is not allowed", n->text,
             (unsigned long long)ino, file);
    for (unsigned i = first; i < n->n_values && strlen(words) < sizeof(words) - 32; i++)
        snprintf(words + strlen(words), sizeof(words) - strlen(words), "; %d (%llu)",
                 n->values[i].file,
                 (unsigned long long)(n->values[i].file == NOBODY
                                          ? 0
                                          : model.files[n->values[i].file].ino));
    return words;
}

/* Drops answered values whose requests were sent since then. */
static void values_drop(struct model_name *n, uint64_t since_ns)
{
    unsigned first = n->n_values - n->n_possible, left = 0, n_left = 0;

    for (unsigned i = 0; i < n->n_values; i++) {
        const struct model_value *v = &n->values[i];

        if (v->begun_ns >= since_ns && v->acked_ns != UINT64_MAX)
            continue;
        n->values[left++] = *v;
        n_left += i >= first;
    }
    n->n_values = left;
    n->n_possible = n_left;
}

/* The newest value that was answered before, or any one after it. */
static void name_lost(struct model_name *n, uint64_t since_ns)
{
    unsigned safe = n->n_values;

    while (safe > 0 && n->values[safe - 1].acked_ns >= since_ns)
        safe--;
    if (safe == n->n_values)
        return;
    if (n->n_possible < n->n_values - safe + (safe > 0))
        n->n_possible = n->n_values - safe + (safe > 0);
    if (since_ns != 0)
        values_drop(n, since_ns);
}

void model_names_lost(uint64_t since_ns)
{
    for (unsigned i = 0; i < model.n_names; i++)
        name_lost(&model.names[i], since_ns);
}

void model_own_names_synced(int file, const struct model_view *view)
{
    for (unsigned i = 0; i < model.n_names; i++) {
        struct model_name *n = &model.names[i];
        const struct model_value *v = n->values + n->n_values - 1;

        if (n->n_values != 0 && v->file == file && v->client == view->client &&
            v->life == view->life && v->acked_ns <= view->started_ns)
            n->n_possible = 0;
    }
}

void model_names_synced(uint64_t since_ns, int file, const struct model_view *by)
{
    for (unsigned i = 0; i < model.n_names; i++) {
        struct model_name *n = &model.names[i];
        unsigned keep = 0;

        if (n->n_possible != 0) /* unknown value: no lookup since the loss */
            continue;
        for (unsigned j = 0; j < n->n_values; j++) {
            const struct model_value *v = &n->values[j];

            if (v->acked_ns <= since_ns &&
                (by == NULL || v->file == file ||
                 (v->client == by->client && v->life == by->life)))
                keep = j;
        }
        memmove(n->values, n->values + keep, (n->n_values - keep) * sizeof(n->values[0]));
        n->n_values -= keep;
    }
}
