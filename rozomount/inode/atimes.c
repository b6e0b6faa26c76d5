/*
 * atimes.c - notes of reads: a hash by inode behind a mutex, in order of their times.
 */
#include "rozomount/inode/atimes.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "common/base/hash.h"
#include "common/base/list.h"
#include "rozomount/options/xalloc.h"

/* Age of a note before it is reported. Programs such as tar --atime-preserve restore the
 * access time after a read: a later report would undo that. */
static const wide_ns YOUNG_NS = NS_PER_S;

struct note {
    uint64_t ino; /* key */
    struct noted_read read;
    bool reported;         /* a report of it is sent or answered */
    struct list_node link; /* in atimes.reported or .waiting */
    UT_hash_handle hh;
};

/* Few hashes have a note: most lookups, such as those of a listing, take no lock. */
enum { HASHES = 1024 };

struct atimes {
    pthread_mutex_t mutex; /* guards the members up to n_waiting */
    struct note *by_ino;
    struct list_node reported, waiting; /* oldest first */
    unsigned n, n_waiting;
    atomic_uint n_of_hash[HASHES]; /* notes with a hash; changed with the mutex held */
    atomic_int mode; /* enum atimes_mode; set to NONE only with the mutex held */
    bool no_directories;
};

struct atimes *atimes_new(enum atimes_mode mode, bool no_directories)
{
    struct atimes *a = xzalloc(sizeof(*a));

    pthread_mutex_init(&a->mutex, NULL);
    atomic_init(&a->mode, mode);
    a->no_directories = no_directories;
    list_init(&a->reported);
    list_init(&a->waiting);
    return a;
}

bool atimes_counts(const struct atimes *a, bool is_directory)
{
    return atomic_load_explicit(&a->mode, memory_order_relaxed) != ATIMES_NONE &&
           !(is_directory && a->no_directories);
}

bool atimes_is_strict(const struct atimes *a)
{
    return atomic_load_explicit(&a->mode, memory_order_relaxed) == ATIMES_STRICT;
}

static atomic_uint *n_of_hash(struct atimes *a, uint64_t ino)
{
    return &a->n_of_hash[ino * UINT64_C(0x9e3779b97f4a7c15) >> 54];
}

/* Returns whether there is no note of this inode; false: perhaps. */
static bool has_none(struct atimes *a, uint64_t ino)
{
    return atomic_load_explicit(n_of_hash(a, ino), memory_order_acquire) == 0;
}

static void note_drop(struct atimes *a, struct note *n)
{
    HASH_DEL(a->by_ino, n);
    atomic_fetch_sub(n_of_hash(a, n->ino), 1);
    list_remove(&n->link);
    a->n--;
    a->n_waiting -= !n->reported;
    free(n);
}

static void note_drop_oldest(struct atimes *a)
{
    struct list_node *list = list_is_empty(&a->reported) ? &a->waiting : &a->reported;

    note_drop(a, container_of(list->next, struct note, link));
}

static void notes_drop(struct atimes *a)
{
    while (a->n > 0)
        note_drop_oldest(a);
}

void atimes_free(struct atimes *a)
{
    if (a == NULL)
        return;
    notes_drop(a);
    pthread_mutex_destroy(&a->mutex);
    free(a);
}

/* Adds a note that is in no list yet and counts as reported. */
static struct note *note_new(struct atimes *a, uint64_t ino)
{
    struct note *n;

    if (a->n >= ATIMES_MAX)
        note_drop_oldest(a);
    n = xzalloc(sizeof(*n));
    n->ino = ino;
    n->reported = true;
    list_init(&n->link);
    hash_add(a->by_ino, ino, n);
    atomic_fetch_add(n_of_hash(a, ino), 1);
    a->n++;
    return n;
}

static void note_set(struct atimes *a, struct note *n, const struct noted_read *read)
{
    n->read = *read;
    a->n_waiting += n->reported;
    n->reported = false;
    list_remove(&n->link);
    list_add_tail(&a->waiting, &n->link);
}

/* Sets the access time that exportd has now, or after the reports in flight. */
static void read_follows(struct noted_read *read, const struct note *n,
                         const struct inode_times *known)
{
    bool goes_on =
        n != NULL && (known == NULL || known->atime_ns == n->read.at_ns ||
                      (n->read.has_seen && known->atime_ns == n->read.seen_ns));

    if (goes_on && !n->reported) {
        read->has_seen = n->read.has_seen;
        read->seen_ns = n->read.seen_ns;
    } else if (goes_on) {
        read->has_seen = true;
        read->seen_ns = n->read.at_ns;
    } else if (known != NULL) {
        read->has_seen = true;
        read->seen_ns = known->atime_ns;
    }
}

static bool is_due(const struct atimes *a, const struct note *n,
                   const struct inode_times *known, int64_t at_ns)
{
    struct inode_times t = *known;

    if (n != NULL && atime_moves(&t, &n->read, atimes_is_strict(a)))
        t.atime_ns = n->read.at_ns; /* known may be older than the note */
    return atime_is_due(&t, at_ns, atimes_is_strict(a));
}

bool atimes_note(struct atimes *a, uint64_t ino, int64_t now_ns,
                 struct inode_times *known, bool others_change)
{
    bool decides = known != NULL && !others_change, noted;
    struct noted_read read = { .at_ns = decides ? time_of_read(now_ns, known) : now_ns };
    struct note *n;

    if (decides && !atime_is_due(known, read.at_ns, atimes_is_strict(a)))
        return false;
    pthread_mutex_lock(&a->mutex);
    n = hash_find(a->by_ino, ino);
    noted = atimes_counts(a, false) && !(decides && !is_due(a, n, known, read.at_ns));
    if (noted) {
        read_follows(&read, n, known);
        note_set(a, n != NULL ? n : note_new(a, ino), &read);
    }
    pthread_mutex_unlock(&a->mutex);
    if (noted && known != NULL)
        known->atime_ns = read.at_ns;
    return noted;
}

wide_ns atimes_of(struct atimes *a, const struct md_attr *attr)
{
    const struct inode_times t = { attr->atime_ns, attr->mtime_ns, attr->ctime_ns };
    wide_ns at = attr->atime_ns;
    const struct note *n;

    if (has_none(a, attr->ino))
        return at;
    pthread_mutex_lock(&a->mutex);
    n = hash_find(a->by_ino, attr->ino);
    if (n != NULL && atime_moves(&t, &n->read, atimes_is_strict(a)))
        at = n->read.at_ns;
    pthread_mutex_unlock(&a->mutex);
    return at;
}

void atimes_forget(struct atimes *a, uint64_t ino)
{
    struct note *n;

    if (has_none(a, ino))
        return;
    pthread_mutex_lock(&a->mutex);
    n = hash_find(a->by_ino, ino);
    if (n != NULL)
        note_drop(a, n);
    pthread_mutex_unlock(&a->mutex);
}

unsigned atimes_waiting(struct atimes *a)
{
    unsigned n;

    pthread_mutex_lock(&a->mutex);
    n = a->n_waiting;
    pthread_mutex_unlock(&a->mutex);
    return n;
}

/* Returns true if the read is less than a second old. A time in the future is not: the
 * clock was set back. */
static bool is_young(const struct noted_read *read, int64_t now_ns)
{
    return read->at_ns <= now_ns && now_ns - (wide_ns)read->at_ns < YOUNG_NS;
}

unsigned atimes_take(struct atimes *a, int64_t now_ns, struct atime_note *out,
                     unsigned max)
{
    unsigned n = 0;

    pthread_mutex_lock(&a->mutex);
    LIST_FOREACH_SAFE(link, &a->waiting) {
        struct note *note = container_of(link, struct note, link);

        if (n == max)
            break;
        if (is_young(&note->read, now_ns))
            continue;
        note->reported = true;
        a->n_waiting--;
        list_remove(&note->link);
        list_add_tail(&a->reported, &note->link);
        out[n++] = (struct atime_note){ note->ino, note->read };
    }
    pthread_mutex_unlock(&a->mutex);
    return n;
}

static void note_give_back(struct atimes *a, struct note *n,
                           const struct noted_read *reported)
{
    if (n->reported) {
        n->reported = false;
        a->n_waiting++;
        list_remove(&n->link);
        list_add_after(&a->waiting, &n->link);
    } else if (n->read.has_seen && n->read.seen_ns == reported->at_ns) {
        n->read.has_seen = reported->has_seen; /* was read again */
        n->read.seen_ns = reported->seen_ns;
    }
}

void atimes_give_back(struct atimes *a, const struct atime_note *notes, unsigned n)
{
    pthread_mutex_lock(&a->mutex);
    for (unsigned i = n; i-- > 0;) { /* each goes to the front */
        struct note *note = hash_find(a->by_ino, notes[i].ino);

        if (note != NULL)
            note_give_back(a, note, &notes[i].read);
    }
    pthread_mutex_unlock(&a->mutex);
}

void atimes_refused(struct atimes *a)
{
    pthread_mutex_lock(&a->mutex);
    atomic_store(&a->mode, ATIMES_NONE);
    notes_drop(a);
    pthread_mutex_unlock(&a->mutex);
}
