/*
 * quorum_boot.c - the boot record: boot of the machine, and whether all is synced.
 *
 * Keeps:  the record says "may be lost" on stable storage before anything that is not
 *         synced is acknowledged.
 */
#include <assert.h>

#include "exportd/quorum/log/quorum_log_in.h"

/* As a ballot: the term is the boot, the vote one of these; with a loss that is not
 * counted, BOOT_LOSS and 4 times its term. */
enum { BOOT_OPEN = 0, BOOT_SYNCED = 1, BOOT_LOSS = 2, BOOT_STATES = 4 };

static void on_started(void *arg, int rc)
{
    struct quorum_boot *b = arg;
    const struct quorum_vote *f = &b->file;

    b->in_doubt = f->is_damaged || (f->found.term != 0 && f->found.term != b->boot &&
                                    f->found.vote != BOOT_SYNCED);
    b->loss_term = !b->in_doubt && f->found.vote % BOOT_STATES == BOOT_LOSS
                       ? f->found.vote / BOOT_STATES
                       : 0;
    b->is_noted = f->is_damaged || f->found.term != 0;
    b->started(b->arg, rc);
}

static void on_saved(void *arg, int rc, struct quorum_ballot ballot)
{
    struct quorum_boot *b = arg;

    (void)ballot;
    b->saved(b->arg, rc);
}

void quorum_boot_start(struct quorum_boot *b, struct disk *disk,
                       void (*started)(void *arg, int rc))
{
    b->started = started;
    if (b->boot == 0) {
        b->started(b->arg, 0);
        return;
    }
    b->file = (struct quorum_vote){
        .disk = disk, .path = "boot", .started = on_started, .saved = on_saved, .arg = b
    };
    quorum_vote_start(&b->file);
}

static void save(struct quorum_boot *b)
{
    uint64_t state = b->loss_term != 0 ? BOOT_LOSS + BOOT_STATES * b->loss_term
                     : b->is_open      ? BOOT_OPEN
                                       : BOOT_SYNCED;

    quorum_vote_save(&b->file, (struct quorum_ballot){ b->boot, state });
}

bool quorum_boot_begin(struct quorum_boot *b, uint64_t loss_term)
{
    assert(!b->is_open);
    if (b->boot == 0 || (!b->is_lazy && !b->is_noted))
        return false;
    b->is_open = b->is_lazy;
    b->loss_term = loss_term;
    save(b);
    return true;
}

void quorum_boot_counted(struct quorum_boot *b)
{
    b->loss_term = 0;
    if (b->boot != 0)
        save(b);
}

bool quorum_boot_end(struct quorum_boot *b)
{
    if (!b->is_open)
        return false;
    b->is_open = false;
    save(b);
    return true;
}

bool quorum_boot_is_idle(const struct quorum_boot *b)
{
    return b->boot == 0 || quorum_vote_is_idle(&b->file);
}

void quorum_boot_close(struct quorum_boot *b)
{
    quorum_vote_close(&b->file);
}
