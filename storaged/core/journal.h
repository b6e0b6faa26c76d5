/*
 * journal.h - the overwrite journal of one loop: what replaces something waits in it until it is committed,
 * then it is applied. docs/ARCHITECTURE.md, "The overwrite journal".
 *
 * It ties together the log (log.h), the index of what is pending (pending.h), fences, and the applier, which
 * writes in place with the ops of write.c and mark.c. Inside storaged/core only; one thread.
 */
#ifndef ROZO_STORAGED_JOURNAL_H
#define ROZO_STORAGED_JOURNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "storaged/core/entry.h"
#include "storaged/core/pending.h"

struct journal;
struct op;
struct file_ref;

/** 0 or -ENOMEM. */
int journal_new(struct storage *st, struct journal **out);
/** Nothing under way. NULL is fine. */
void journal_free(struct journal *j);
/** See storage_start(). */
void journal_start(struct journal *j, void (*done)(void *arg, int rc), void *arg);
/** See storage_serve(): done(arg) when requests may be taken. */
void journal_serve(struct journal *j, void (*done)(void *arg), void *arg);
/** Apply what is committed, as far as that works, and bring all to stable storage; then done(arg). No
 * requests are under way, and none come any more. */
void journal_stop(struct journal *j, void (*done)(void *arg), void *arg);

struct pending *journal_pending(struct journal *j);
/** Filled above five eighths: clients should sync and commit. */
bool journal_has_pressure(const struct journal *j);
/** Failed syncs of the journal go into the verifier, as those of projection files. */
void journal_tell_failures(struct journal *j);
void journal_health(const struct journal *j, Rozo__StHealthResp *out);
struct storage_file journal_file(const struct file_ref *ref);

/** Versions that are durable, as requests carry them (StCommitReq.durable). */
void journal_commit(struct journal *j, const struct file_id *id, const uint64_t *durable,
                    size_t n);
void journal_commit_range(struct journal *j, const struct file_id *id, uint64_t first,
                          uint64_t end, uint64_t version);

/** Writes of clients with this epoch or an earlier one are refused; 0: none are. */
uint32_t journal_fence(const struct journal *j, const struct file_id *id);
/** Was it appended since the last sync of the journal that failed, if one did? */
bool journal_fence_is_good(const struct journal *j, const struct file_id *id);
/** A sync failed in this life: frames that were appended before it may be lost. */
bool journal_has_failed(const struct journal *j);
/** A frame is being appended anew: it may come to lie behind one that takes back what is in it. */
bool journal_is_copying(const struct journal *j);
/** A frame of kind ENTRY_FENCE was appended (its reference is taken). 0 or -ENOMEM. */
int journal_fence_note(struct journal *j, const struct file_id *id, uint32_t epoch,
                       struct pending_entry *entry);
/** A frame of kind ENTRY_DROP was: kept as long as what it takes away may lie in the log. */
void journal_drop_note(struct journal *j, struct pending_entry *entry);

/** Some of it could not be applied, and stays: it is tried again in a while. */
void journal_apply_later(const struct journal *j, struct pending_file *f);
/** Of a file something may be there to be applied: sees to it. */
void journal_poke(struct journal *j, struct pending_file *f);

#endif
