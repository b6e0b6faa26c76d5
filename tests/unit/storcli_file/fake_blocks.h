/*
 * fake_blocks.h - a block engine and an exportd in memory, for tests of the file layer.
 *
 * Answers come after seeded delays, in any order. Requests can be held back, can fail,
 * and can be refused for their epoch or capability. The fake asserts the promises of the
 * file layer to the real ones: one write or mark of a block at a time, versions that
 * grow, data that does not change while it is lent, and only sizes that storages have
 * acknowledged.
 */
#ifndef ROZO_TEST_FAKE_BLOCKS_H
#define ROZO_TEST_FAKE_BLOCKS_H

#include "common/base/list.h"
#include "storcli/file.h"
#include "tests/lib/env_virtual.h"

enum { FAKE_BS = 4096, FAKE_BLOCKS = 4096, FAKE_DELAY_MS = 20 };

struct fake_block {
    uint64_t version;
    uint16_t user_bytes; /* 0: a hole */
    uint8_t *data;       /* FAKE_BS bytes, owned, or NULL */
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

/* State of exportd and the storages, which outlives the client. */
struct fake_state {
    struct fake_block blocks[FAKE_BLOCKS];
    uint64_t size;
    bool has_data;
    uint32_t epoch;
    bool truncate_pending;
    uint64_t truncate_size, truncate_version;
    int64_t mtime_ns;
    uint8_t allocated[FAKE_BLOCKS]; /* per block, as reported to exportd */
    uint8_t reserved[FAKE_BLOCKS];  /* per block, at the storages */
    bool uncounted;                 /* a client died: allocated may lack blocks */
    /* Not 0: exportd has the data of the file until a report says has_data. */
    uint32_t inline_max;
    bool on_storages;
    uint64_t inline_version;
    const uint8_t *inline_data; /* borrowed */
    uint32_t inline_len;
};

struct fake {
    struct env_virtual v;
    struct fake_state s;
    struct list_node requests; /* in flight, oldest first */
    /* requests of a held kind stay in flight until fake_release() */
    bool held[FAKE_KINDS];
    int fail_next[FAKE_KINDS]; /* error for the next request of the kind; 0: none */
    int fail_all[FAKE_KINDS];
    unsigned fail_ppm, stale_ppm, denied_ppm, moved_ppm;
    /* generation at the storages: requests of files with a lower one end with
     * -ROZO_EMOVED */
    uint32_t dist_generation;
    uint32_t file_generation; /* generation of the file's ref */
    uint32_t told_generation; /* generation in exportd's answers */
    bool in_order;            /* delays of exactly one turn */
    uint32_t min_epoch;       /* older epochs are refused with -ESTALE */
    uint32_t cut_epoch;       /* exportd ignores sizes reported by older epochs */
    unsigned n_since_denied;
    bool denied; /* capability refused until the next renewal */
    bool dead;   /* all requests fail without an effect */
    bool unsynced;
    uint64_t losses;       /* result of storcli_file_losses() */
    uint64_t last_version; /* highest version of all writes */
    uint64_t acked_end;    /* end of the acknowledged data since the last truncate */
    uint64_t reserved_end; /* end of the reserved blocks since the last truncate */
    /* Counters of requests. */
    unsigned n[FAKE_KINDS];
    uint64_t blocks_read, blocks_written;
    unsigned n_allocs_again; /* calls of storcli_alloc() that repeat another */
    unsigned n_allocs; /* calls of storcli_alloc(); the blocks of the last one follow */
    uint64_t last_alloc_first, last_alloc_blocks;
    unsigned n_wrote_sync, n_write_sync, n_updates, n_completes;
    uint64_t last_completed;
    uint64_t session;      /* session under which the file writes */
    unsigned n_told_moved; /* calls to exportd which say so */
    unsigned n_moved;      /* requests that ended with -ROZO_EMOVED */
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
/** Does what MD_SETATTR(size) does at exportd, and fills attr with its answer. */
void fake_setattr_size(struct fake *k, uint64_t size, struct file_attr *attr);
/** Moves the file to other storages; a writer needs a new epoch then. */
void fake_move(struct fake *k);
/** Lets held requests of a kind go on. */
void fake_release(struct fake *k, enum fake_kind kind);
/** Kills the client: later requests have no effect, and some of those in flight have
 * one. */
void fake_kill(struct fake *k);
/** Starts another client in place of the killed one: no request is in flight. */
void fake_revive(struct fake *k);
unsigned fake_below(struct fake *k, unsigned bound);
bool fake_chance(struct fake *k, unsigned ppm);
/** Reads bytes as storages have them, zeros for holes. */
void fake_peek(const struct fake *k, uint64_t offset, uint8_t *buf, size_t len);

#endif
