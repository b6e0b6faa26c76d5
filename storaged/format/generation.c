/*
 * generation.c - count generations, know the lost ones, read and print their file.
 *
 *     rozo-generations
 *     format: 1
 *     boot: 16 hex digits
 *     failures: 0
 *     stable: 41
 *     last: 44
 *     lost: 12 14            (a line for each range)
 *
 * In:     the bytes of the file; they are checked, since anybody may have edited
 *         them (I8).
 * Keeps:  a generation that a power loss may have cut is never called kept again.
 */
#include "storaged/format/generation.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/err.h"

bool generation_is_kept(const struct generations *g, uint64_t generation)
{
    uint64_t current = atomic_load_explicit(&g->current, memory_order_acquire);

    /* the file was lost or replaced by an older one */
    if (generation == 0 || generation > current + 1)
        return false;
    for (unsigned i = 0; i < g->file.n_lost; i++) {
        if (generation >= g->file.lost[i].first && generation <= g->file.lost[i].last)
            return false;
    }
    return true;
}

/* Frees one entry: merges the two closest ranges, and counts what lies between them as
 * lost, too. */
static void lost_merge_closest(struct generations_file *f)
{
    unsigned best = 0;

    for (unsigned i = 1; i + 1 < f->n_lost; i++) {
        if (f->lost[i + 1].first - f->lost[i].last <
            f->lost[best + 1].first - f->lost[best].last)
            best = i;
    }
    f->lost[best].last = f->lost[best + 1].last;
    f->n_lost--;
    memmove(&f->lost[best + 1], &f->lost[best + 2],
            (f->n_lost - best - 1) * sizeof(f->lost[0]));
}

void generations_begin(struct generations *g, const struct generations_file *file,
                       uint64_t boot)
{
    struct generations_file *f = &g->file;

    *f = *file;
    if (f->stable < GENERATION_STABLE)
        f->stable = GENERATION_STABLE;
    if (f->last < f->stable)
        f->last = f->stable;
    if (f->boot != boot && f->last > f->stable) {
        if (f->n_lost == GENERATIONS_LOST_MAX)
            lost_merge_closest(f);
        f->lost[f->n_lost].first = f->stable + 1;
        f->lost[f->n_lost].last = f->last;
        f->n_lost++;
        f->stable = f->last;
    }
    f->boot = boot;
    atomic_store(&g->failures, f->failures);
    atomic_store(&g->stable, f->stable);
    atomic_store(&g->current, f->last + 1);
    atomic_store(&g->n_open, f->last > f->stable ? 2 : 0);
    f->last += 3;
}

bool generations_may_advance(struct generations *g)
{
    uint64_t needed = atomic_load(&g->current) + 2;

    if (g->file.last >= needed)
        return true;
    g->file.last = needed;
    return false;
}

uint64_t generations_advance(struct generations *g)
{
    uint64_t ended = atomic_load(&g->current);
    unsigned n = atomic_load(&g->n_open);

    assert(g->file.last >= ended + 2);
    atomic_store_explicit(&g->current, ended + 1, memory_order_release);
    if (n > 0) /* a note made right now counts again in the next one */
        atomic_compare_exchange_strong(&g->n_open, &n, n - 1);
    return ended;
}

void generations_mark_stable(struct generations *g, uint64_t ended)
{
    if (ended > g->file.stable)
        g->file.stable = ended;
    atomic_store_explicit(&g->stable, g->file.stable, memory_order_release);
    g->file.last = atomic_load(&g->current) + 2;
}

void generations_end(struct generations *g)
{
    g->file.stable = g->file.last;
}

void generations_prepare(struct generations *g)
{
    g->file.failures = generations_failures(g);
}

size_t generations_print(char text[GENERATIONS_TEXT_MAX],
                         const struct generations_file *f)
{
    int n = snprintf(text, GENERATIONS_TEXT_MAX,
                     "rozo-generations\nformat: %d\nboot: %016" PRIx64
                     "\nfailures: %" PRIu64 "\nstable: %" PRIu64 "\nlast: %" PRIu64 "\n",
                     GENERATIONS_FORMAT, f->boot, f->failures, f->stable, f->last);

    for (unsigned i = 0; i < f->n_lost; i++)
        n += snprintf(text + n, GENERATIONS_TEXT_MAX - (size_t)n,
                      "lost: %" PRIu64 " %" PRIu64 "\n", f->lost[i].first,
                      f->lost[i].last);
    assert(n > 0 && n < GENERATIONS_TEXT_MAX);
    return (size_t)n;
}

/* Reads a number in base 10 or 16 and the character `end`; accepts no sign and no
 * spaces. */
static bool number_take(const char **at, unsigned base, char end, uint64_t *out)
{
    uint64_t v = 0;
    const char *p = *at;

    for (; *p != end; p++) {
        unsigned digit = 99;

        if (*p >= '0' && *p <= '9')
            digit = (unsigned)(*p - '0');
        else if (*p >= 'a' && *p <= 'f')
            digit = (unsigned)(*p - 'a') + 10;
        if (digit >= base || v > (UINT64_MAX - digit) / base)
            return false;
        v = v * base + digit;
    }
    if (p == *at)
        return false;
    *at = p + 1;
    *out = v;
    return true;
}

static bool word_take(const char **at, const char *word)
{
    size_t n = strlen(word);

    if (strncmp(*at, word, n) != 0)
        return false;
    *at += n;
    return true;
}

static bool lost_take(const char **at, struct generations_file *f)
{
    uint64_t first, last;

    if (f->n_lost == GENERATIONS_LOST_MAX || !word_take(at, "lost: ") ||
        !number_take(at, 10, ' ', &first) || !number_take(at, 10, '\n', &last))
        return false;
    if (first > last || last > f->stable ||
        (f->n_lost > 0 && first <= f->lost[f->n_lost - 1].last))
        return false;
    f->lost[f->n_lost].first = first;
    f->lost[f->n_lost].last = last;
    f->n_lost++;
    return true;
}

int generations_parse(const char *text, size_t len, struct generations_file *out,
                      struct err *err)
{
    char copy[GENERATIONS_TEXT_MAX + 1];
    struct generations_file f = { .n_lost = 0 };
    const char *at = copy;
    uint64_t format;

    if (len > GENERATIONS_TEXT_MAX || memchr(text, '\0', len) != NULL)
        return err_set(err, -ROZO_EDAMAGED, "not the generations of a storage");
    memcpy(copy, text, len);
    copy[len] = '\0';
    if (!word_take(&at, "rozo-generations\nformat: ") ||
        !number_take(&at, 10, '\n', &format))
        return err_set(err, -ROZO_EDAMAGED, "not the generations of a storage");
    if (format != GENERATIONS_FORMAT)
        return err_set(err, -ROZO_EUNKNOWN_FORMAT,
                       "format %" PRIu64 ", this build reads up to %d", format,
                       GENERATIONS_FORMAT);
    if (!word_take(&at, "boot: ") || !number_take(&at, 16, '\n', &f.boot) ||
        !word_take(&at, "failures: ") || !number_take(&at, 10, '\n', &f.failures) ||
        !word_take(&at, "stable: ") || !number_take(&at, 10, '\n', &f.stable) ||
        !word_take(&at, "last: ") || !number_take(&at, 10, '\n', &f.last))
        return err_set(err, -ROZO_EDAMAGED,
                       "lines 3 to 6 are not boot, failures, stable and last");
    if (f.stable > f.last || f.last > UINT64_MAX / 2)
        return err_set(err, -ROZO_EDAMAGED, "stable and last do not fit together");
    while (*at != '\0') {
        if (!lost_take(&at, &f))
            return err_set(err, -ROZO_EDAMAGED,
                           "a line that is not \"lost: FIRST LAST\"");
    }
    *out = f;
    return 0;
}
