/*
 * healed.h - checks that everything is healed, by the storages' reports and by every
 * home's data.
 */
#ifndef ROZO_TESTS_SIM_CLUSTER_CHECKS_HEALED_H
#define ROZO_TESTS_SIM_CLUSTER_CHECKS_HEALED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Counters of the checks. */
struct healed {
    uint64_t n_files, n_records, n_holes;
    uint64_t wrong_ino, wrong_block; /* place of the first fault
                                      * that healed_check() found */
};

/** Tells whether nothing is queued, unhealed, pending without a
 * commit, or noted as missed. why: the first exception, as text. */
bool healed_is_quiet(char *why, size_t why_len);
/** Starts a scrub of every storage. */
void scrub_start_all(void);
/** Tells whether all scrubs have ended; found: number of findings. */
bool scrub_is_done(uint64_t *found);
/** Describes one of the findings. */
const char *scrub_words(void);
/**
 * Reads the projection of every block of every file with data from its home: all must be
 * complete and of one version (I7). Returns NULL, or an error text.
 */
const char *healed_check(struct healed *out);

/** Checks that no storage keeps data that all homes have
 * without being its home. Returns NULL, or an error text. */
const char *healed_spares(void);

/** Checks that every inode has a name (I10: orphans end
 * with their sessions). Returns NULL, or an error text. */
const char *healed_orphans(bool (*is_named)(uint64_t ino));

/**
 * Checks that no storage has a projection file, in use or in quarantine, of an inode that
 * exportd reports as gone. Returns NULL, or an error text. Reads the disks, so that
 * storages need no healer.
 */
const char *healed_strays(void);

/**
 * Tells whether the newest version of a block is lost: disks destroyed so much of it that
 * it cannot be read, and so many storages may have acknowledged it that it cannot be
 * rolled back either.
 */
bool healed_is_lost(uint64_t ino, uint64_t block);

/** Prints on stderr the records of a block on every storage. */
void healed_dump(uint64_t ino, uint64_t block);

#endif
