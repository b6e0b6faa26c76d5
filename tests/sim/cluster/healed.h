/*
 * healed.h - is everything healed? What the storages say themselves, and what lies at every home.
 */
#ifndef ROZO_SIM_HEALED_H
#define ROZO_SIM_HEALED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What the checks have counted. */
struct healed {
    uint64_t n_files, n_records, n_holes;
    uint64_t wrong_ino, wrong_block; /* where healed_check() found something */
};

/** Nothing is queued, unhealed, pending without a commit, or noted as missed. why: words for the first that
 * is not, when it says false. */
bool healed_is_quiet(char *why, size_t why_len);
/** Let all storages scrub; true: they have done that. found: what they found. */
void scrub_start_all(void);
bool scrub_is_done(uint64_t *found);
/** One of the things it found. */
const char *scrub_words(void);
/**
 * Ask every home for its projection of every block of every file that has data: all of one version and whole
 * (I7). NULL, or words.
 */
const char *healed_check(struct healed *out);

/** Nobody has what all homes have, and is not its home. NULL, or words. */
const char *healed_spares(void);

/** Every inode has a name (I10: orphans are gone with their sessions). NULL, or words. */
const char *healed_orphans(bool (*is_named)(uint64_t ino));

/**
 * No storage has a projection file, or one that it put aside, of an inode that exportd says is gone for good.
 * NULL, or words. Looks at the disks, so storages need not run a healer.
 */
const char *healed_strays(void);

/**
 * So many may have acknowledged the newest version of a block, and of so many disks took it, that nobody can read it nor
 * may decide that it never was.
 */
bool healed_is_lost(uint64_t ino, uint64_t block);

/** Tell on stderr who has what of a block. */
void healed_dump(uint64_t ino, uint64_t block);

#endif
