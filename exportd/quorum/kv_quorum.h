/*
 * kv_quorum.h - the kv of a member: commits go through the log of the quorum.
 *
 * On a leader a commit is visible at once (in an overlay), and done when its entries are
 * committed by the quorum. The kv below gets entries when they are *stable*: synced by
 * this member and by a majority, so that no loss of power takes them back; a sync waits
 * for that, too. All members apply the same entries in the same order, so each one's kv
 * holds the same keys, except its own (key_is_of_member()): those are hidden, and a
 * commit of one fails.
 *
 * One thread, that of exportd's core. The member (member.h) may have another one: hooks
 * carry over to it, and its results come back as the functions below.
 */
#ifndef ROZO_EXPORTD_QUORUM_KV_QUORUM_H
#define ROZO_EXPORTD_QUORUM_KV_QUORUM_H

#include "common/base/err.h"
#include "common/env/env.h"
#include "common/env/kv.h"
#include "exportd/quorum/kv_place.h"
#include "exportd/quorum/log/quorum_entry.h"

struct kv_quorum;
struct seed_job;

/* Functions of the member. They never call back inside. */
struct kv_quorum_hooks {
    /**
     * Appends the entries of a batch to the log, together. Takes a use of each. If the
     * member no longer leads it ignores them: kv_quorum_depose() is on its way.
     */
    void (*submit)(void *arg, struct quorum_entry *const *parts, unsigned n_parts);
    /** The kv below holds all entries up to this one. */
    void (*applied)(void *arg, uint64_t index, uint64_t term);
    /** The kv below holds all entries up to this one on stable storage. */
    void (*synced)(void *arg, uint64_t index);
    /** Asks for kv_quorum_confirmed() with this time or a later one. */
    void (*confirm)(void *arg, uint64_t asked_ns);
    /** Returns until when no other member can lead; 0: there is no lease. */
    uint64_t (*lease_until_ns)(void *arg);
    /** Reads the clock of the lease: CLOCK_BOOTTIME, not a value of this turn. */
    uint64_t (*now_ns)(void *arg);
    /** The kv below has failed, see kv_quorum_error(). Called once. what: a constant. */
    void (*failed)(void *arg, int rc, const char *what);
    void *arg;
    /** A job of kv_quorum_seed() is done; it belongs to the member again. */
    void (*seeded)(void *arg, struct seed_job *job);
    /** Asks for all that was submitted to become stable soon. */
    void (*want_stable)(void *arg);
};

struct kv_quorum_config {
    struct env *env;                     /* borrowed */
    struct kv *below;                    /* borrowed */
    const struct kv_quorum_hooks *hooks; /* borrowed */
    bool is_witness; /* the kv below keeps keys of kind KEY_QUORUM only */
};

/**
 * Makes a kv the store of a new quorum with these members: its keys count as entry 1. All
 * first members begin with the same keys and the same list. Sync it before the open.
 */
void kv_quorum_begin(struct kv *below, const struct raft_config *members,
                     struct kv_done *done);
/**
 * Makes an empty kv the store of a member that has lost its own: it is copied from
 * another member before it counts. Sync it before the open.
 */
void kv_quorum_begin_copy(struct kv *below, struct kv_done *done);
/**
 * Opens the kv over a kv. Returns 0, -EIO, -ENOMEM, or -ROZO_EDAMAGED if the keys of kind
 * KEY_QUORUM are not valid.
 */
int kv_quorum_open(const struct kv_quorum_config *config, struct kv_quorum **out,
                   struct err *err);
/**
 * Closes the kv. No commit of its user may be pending, no iterator open; nothing may be
 * under way below (kv_quorum_is_idle()). NULL is fine.
 */
void kv_quorum_close(struct kv_quorum *q);
bool kv_quorum_is_idle(const struct kv_quorum *q);
/** Returns the kv for exportd. It takes commits between lead and depose only. */
struct kv *kv_quorum_kv(struct kv_quorum *q);
const struct kv_quorum_place *kv_quorum_place(const struct kv_quorum *q);

/**
 * Takes an entry that is committed; its index follows that of the last one. Takes a use
 * of it. The kv below gets it when it is stable.
 */
void kv_quorum_apply(struct kv_quorum *q, struct quorum_entry *entry);
/**
 * Entries up to this one, which have come, are stable: applies them. A failure of the kv
 * below is kv_quorum_error() from then on.
 */
void kv_quorum_stable(struct kv_quorum *q, uint64_t index);
/**
 * The member leads, and every entry of earlier leaders is stable: commits are taken from
 * now on.
 */
void kv_quorum_lead(struct kv_quorum *q);
/**
 * The member does not lead any more. Commits, syncs and confirmations that wait end with
 * -ROZO_ENOT_LEADER, and so do later ones. They may have been committed, or may be.
 */
void kv_quorum_depose(struct kv_quorum *q);
/** The member led at this time or later: see raft_core_confirmed_ns(). */
void kv_quorum_confirmed(struct kv_quorum *q, uint64_t at_ns);
/** Sets what kv_free_bytes() returns at most: free bytes that a majority has. */
void kv_quorum_set_free(struct kv_quorum *q, uint64_t free_bytes);
/** Syncs the kv below; then hooks.synced comes. */
void kv_quorum_sync_below(struct kv_quorum *q);
/**
 * Carries out a job of seeding (seed_store.h), one at a time except reads; then
 * hooks.seeded comes with it. Between BEGIN and END the kv holds a part of a copy: the
 * member does not lead, applies nothing and asks for no sync. END makes place what it
 * says.
 */
void kv_quorum_seed(struct kv_quorum *q, struct seed_job *job);
/**
 * Returns 0, or the error of the kv below: this member cannot go on. The user of the kv
 * gets -ROZO_ENOT_LEADER: others may have its changes.
 */
int kv_quorum_error(const struct kv_quorum *q);
/** Returns the wall clock of the newest entry applied, ns since 1970; 0: none. */
int64_t kv_quorum_wall_ns(const struct kv_quorum *q);
/**
 * Returns the term in which the newest loss of power of a majority was counted, as far as
 * the kv below knows; 0: there was none. Any thread.
 */
uint64_t kv_quorum_losses(const struct kv_quorum *q);

#endif
