/*
 * journal_notes.c - fences and the doubt, and the drops whose frames are still wanted.
 *
 * In:     frames that were appended or found. Thread: the storio loop.
 * Keeps:  the frame of a drop stays while anything that it drops may lie in the log.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "storaged/journal/journal_in.h"

enum {
    FENCES_MAX = 65536,
    FENCE_HOURS = 24,
};

struct fence **journal_fence_link(struct journal *j, const struct file_id *id)
{
    struct fence **at = &j->fence_buckets[file_id_hash(id) % JOURNAL_FENCE_BUCKETS];

    while (*at != NULL && !file_id_equal(&(*at)->id, id))
        at = &(*at)->hash_next;
    return at;
}

uint32_t journal_fence(const struct journal *j, const struct file_id *id)
{
    const struct fence *f;

    if (j->n_fences == 0)
        return 0;
    f = *journal_fence_link((struct journal *)(uintptr_t)j, id);
    return f == NULL ? 0 : f->epoch;
}

bool journal_fence_is_good(const struct journal *j, const struct file_id *id)
{
    const struct fence *f = *journal_fence_link((struct journal *)(uintptr_t)j, id);

    assert(j->wal != NULL);
    return f != NULL && f->entry->failures == wal_failures(j->wal);
}

bool journal_has_failed(const struct journal *j)
{
    return wal_failures(j->wal) != 0;
}

bool journal_is_copying(const struct journal *j)
{
    return j->copying == COPY_FRAMES && j->copier.out != NULL;
}

static void fence_free(struct journal *j, struct fence **at)
{
    struct fence *f = *at;

    assert(f != NULL && j->n_fences > 0);
    *at = f->hash_next;
    list_remove(&f->link);
    journal_index_put_frame(&j->index, f->entry);
    free(f);
    j->n_fences--;
}

bool journal_is_doubt(const struct file_id *id)
{
    return id->export_id == 0 && id->generation == 0 && id->ino == 0;
}

static void doubt_note(struct journal *j, struct journal_frame *entry)
{
    assert(entry->n_refs > 0);
    if (j->doubt != NULL)
        journal_index_put_frame(&j->index, entry);
    else
        j->doubt = entry;
}

int journal_fence_note(struct journal *j, const struct file_id *id, uint32_t epoch,
                       struct journal_frame *entry)
{
    struct fence **at = journal_fence_link(j, id), *f = *at;

    assert(entry->n_refs > 0 && entry->kind == JOURNAL_FENCE);
    if (journal_is_doubt(id)) {
        doubt_note(j, entry);
        return 0;
    }
    if (f != NULL && f->epoch > epoch) {
        journal_index_put_frame(&j->index, entry);
        return 0;
    }
    if (f != NULL)
        fence_free(j, at);
    f = calloc(1, sizeof(*f));
    if (f == NULL) {
        journal_index_put_frame(&j->index, entry);
        return -ENOMEM;
    }
    *f = (struct fence){
        .id = *id, .epoch = epoch, .since_ns = journal_now(j), .entry = entry
    };
    at = &j->fence_buckets[file_id_hash(id) % JOURNAL_FENCE_BUCKETS];
    f->hash_next = *at;
    *at = f;
    list_add_tail(&j->fences, &f->link);
    if (++j->n_fences > FENCES_MAX)
        fence_free(j, journal_fence_link(
                          j, &container_of(j->fences.next, struct fence, link)->id));
    journal_timer_start(j);
    return 0;
}

/* Keeps the frame of a drop: without it, dropped records could come back. */
void journal_drop_note(struct journal *j, struct journal_frame *entry)
{
    struct drop_note *n = malloc(sizeof(*n));

    assert(entry->n_refs > 0);
    if (n == NULL)
        return; /* the frame stays wanted until the next start */
    n->entry = entry;
    list_add_tail(&j->drops, &n->link);
    journal_timer_start(j);
}

static void doubt_end(struct journal *j)
{
    if (j->doubt != NULL)
        journal_index_put_frame(&j->index, j->doubt);
    j->doubt = NULL;
}

void journal_notes_expire(struct journal *j)
{
    uint64_t oldest = wal_oldest(j->wal);

    if (!identity_is_in_doubt(j->config.identity)) {
        doubt_end(j);
        j->n_lost = 0;
    }
    while (!list_is_empty(&j->fences)) {
        struct fence *f = container_of(j->fences.next, struct fence, link);

        if (journal_now(j) - f->since_ns < ms_to_ns(FENCE_HOURS * 3600 * 1000))
            break;
        fence_free(j, journal_fence_link(j, &f->id));
    }
    LIST_FOREACH_SAFE(node, &j->drops) {
        struct drop_note *n = container_of(node, struct drop_note, link);

        if (oldest != 0 && oldest < n->entry->place.segment)
            continue;
        list_remove(&n->link);
        journal_index_put_frame(&j->index, n->entry);
        free(n);
    }
}

void journal_notes_free(struct journal *j)
{
    doubt_end(j);
    while (!list_is_empty(&j->fences))
        fence_free(j, journal_fence_link(
                          j, &container_of(j->fences.next, struct fence, link)->id));
    while (!list_is_empty(&j->drops)) {
        struct drop_note *n = container_of(j->drops.next, struct drop_note, link);

        list_remove(&n->link);
        free(n);
    }
}
