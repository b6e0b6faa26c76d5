/*
 * fake_blocks.h - a block engine and an exportd in memory, for tests of the byte layer.
 *
 * Answers come after seeded delays, in any order; requests can be held back, fail, be refused
 * for their epoch or capability. It asserts what the byte layer promises the real ones: no two
 * writes or marks of one block at a time, versions that grow, data that does not change while
 * it is lent, sizes that storages have acknowledged.
 */
#ifndef ROZO_TEST_FAKE_BLOCKS_H
#define ROZO_TEST_FAKE_BLOCKS_H

#include "common/base/list.h"
#include "storcli/file.h"
#include "tests/lib/env_virtual.h"

enum { FAKE_BS = 4096, FAKE_BLOCKS = 4096, FAKE_DELAY_MS = 20 };

struct fake_block {
    uint64_t version;
    uint16_t user_bytes; /* 0: hole */
    uint8_t *data;       /* FAKE_BS bytes, or NULL */
};

enum fake_kind {
    FAKE_WRITE,
    FAKE_READ,
    FAKE_MARK,
    FAKE_SYNC,
    FAKE_SEEK,
    FAKE_ALLOC,
    FAKE_RENEW,
    FAKE_LOAD,
    FAKE_WROTE,
    FAKE_TRUNCATED,
    FAKE_KINDS
};

/* What exportd and the storages know: what is left when a client dies. */
struct fake_state {
    struct fake_block blocks[FAKE_BLOCKS];
    uint64_t size;
    bool has_data;
    uint32_t epoch;
    bool truncate_pending;
    uint64_t truncate_size, truncate_version;
    int64_t mtime_ns;
    uint8_t allocated[FAKE_BLOCKS]; /* as exportd was told */
    uint8_t reserved[FAKE_BLOCKS];  /* at the storages */
    bool uncounted;                 /* a client died */
};

struct fake {
    struct env_virtual v;
    struct fake_state s;
    struct list_node requests; /* under way, oldest first */
    bool held[FAKE_KINDS];     /* they stay under way until fake_release() */
    int fail_next[FAKE_KINDS]; /* the next one fails with this; 0: does not */
    int fail_all[FAKE_KINDS];
    unsigned fail_ppm, stale_ppm, denied_ppm, moved_ppm;
    uint32_t
        dist_generation; /* that storages know of: requests of files with a lower one end with -EREMOTE */
    uint32_t file_generation; /* of the ref that the file has */
    uint32_t told_generation; /* that exportd's answers have */
    bool in_order;            /* no delays but one turn */
    uint32_t min_epoch;       /* older ones are refused with -ESTALE */
    uint32_t cut_epoch;       /* exportd takes no size of older ones */
    unsigned n_since_denied;
    bool denied; /* until the next renewal */
    bool dead;   /* everything fails, nothing has an effect */
    bool unsynced;
    uint64_t last_version; /* of any write */
    uint64_t acked_end;    /* since the last truncate */
    uint64_t reserved_end; /* the same of what was reserved */
    /* What came. */
    unsigned n[FAKE_KINDS];
    uint64_t blocks_read, blocks_written;
    unsigned n_allocs; /* calls of storcli_alloc(), and the last one's blocks */
    uint64_t last_alloc_first, last_alloc_blocks;
    unsigned n_wrote_sync, n_write_sync, n_updates, n_completes;
    uint64_t last_completed;
    uint64_t session;      /* that the file writes under */
    unsigned n_told_moved; /* calls to exportd which say so */
    unsigned n_moved;      /* requests that ended with -EREMOTE */
    const uint8_t *last_write_data;
    uint32_t last_write_blocks, last_user_bytes;
    uint64_t last_write_first, last_mark_version, last_mark_first, last_mark_blocks;
    uint64_t last_wrote_size;
    uint32_t max_write_blocks, max_read_blocks;
};

void fake_init(struct fake *k, uint64_t seed);
void fake_free(struct fake *k);
struct file *fake_open(struct fake *k, const struct file_config *config, uint32_t epoch);
void fake_attr(const struct fake *k, struct file_attr *attr);
void fake_target(struct storcli_target *target);
/** What MD_SETATTR(size) does at exportd. Fills attr with its answer. */
void fake_setattr_size(struct fake *k, uint64_t size, struct file_attr *attr);
/** The file lies elsewhere from now on, and whoever writes needs a fresh epoch. */
void fake_move(struct fake *k);
/** Let held requests of a kind go on. */
void fake_release(struct fake *k, enum fake_kind kind);
/** The client dies: nothing it sent any more has an effect, some of what is under way has. */
void fake_kill(struct fake *k);
/** It is replaced: what was under way is forgotten by all. */
void fake_revive(struct fake *k);
unsigned fake_below(struct fake *k, unsigned bound);
bool fake_chance(struct fake *k, unsigned ppm);
/** Bytes as storages have them, zeros for holes. */
void fake_peek(const struct fake *k, uint64_t offset, uint8_t *buf, size_t len);

#endif
