/*
 * file_blocks.h - allocated blocks of the file, and those reserved by this mount.
 *
 * Private to storcli/file. Written by file_blocks.c only. Thread: the env's.
 */
#ifndef ROZO_STORCLI_FILE_FILE_BLOCKS_H
#define ROZO_STORCLI_FILE_FILE_BLOCKS_H

#include "common/base/range_map.h"
#include "storcli/file.h"

/* Search for unreported blocks of a dead client, in the holes that exportd knows. */
enum blocks_count {
    COUNT_NONE,
    COUNT_BUSY,
    COUNT_DONE, /* must be reported */
};

/* A change moves from the first set (to report) to the second (on its way) and the third
 * (reported), and leaves it when it is durable. */
struct file_blocks {
    bool is_known;          /* `known` has the blocks allocated by others, too */
    struct range_map known; /* value BLOCKS_ALLOCATED */
    struct range_map unreported, sent, reported; /* values of enum blocks_change */
    enum blocks_count count;
    bool seek_busy;              /* perhaps of a search that was stopped */
    uint64_t count_at, hole_end; /* blocks */
    uint64_t count_ns;           /* start of the search */
    uint64_t found;
    uint64_t n_freed, seek_n_freed; /* frees during a seek make its result invalid */
    struct range_map reserved;      /* blocks reserved by this mount, not freed since */
};

/** Adopts exportd's set of allocated blocks. */
void blocks_adopt(struct file *f, const struct file_attr *attr);
/** Forgets the set: another client may have changed it. */
void blocks_forget(struct file *f);
/** Records blocks as written or reserved; as freed. News is reported to exportd. */
void blocks_allocated(struct file *f, uint64_t first, uint64_t end);
void blocks_freed(struct file *f, uint64_t first, uint64_t end);
/**
 * Stops the search: another client wants the file, and its next opening for writing
 * searches again.
 */
void blocks_count_stop(struct file *f);
/** Forgets blocks beyond size, which exportd has cut off itself. */
void blocks_cut(struct file *f, uint64_t size);
/** Returns true if no block is allocated: no data, nothing reserved. */
bool blocks_are_none(const struct file *f);
/** Returns true if exportd has been sent all changes. */
bool blocks_are_reported(const struct file *f);
void blocks_lose(struct file *f);
/** Adds the changes to a report; false: there are more than fit. */
bool blocks_send(struct file *f, struct file_meta_call *call);
/** Ends a report. ok: it succeeded; durable: it and all before are durable. */
void blocks_sent(struct file *f, bool ok, bool durable);
/** Reports again the changes that exportd has not made durable. */
void blocks_report_again(struct file *f);
void blocks_free(struct file *f);

/** Notes that storages have reserved these blocks. */
void blocks_reserved(struct file *f, uint64_t first, uint64_t end);
/** Notes that a mark has freed what was reserved of these blocks. */
void blocks_unreserved(struct file *f, uint64_t first, uint64_t end);
/** Forgets reservations from block `first` on: they may have been freed. */
void blocks_forget_reserved(struct file *f, uint64_t first);
/** Narrows [first, end) to the blocks that are not known to be reserved. */
void blocks_not_reserved(const struct file *f, uint64_t *first, uint64_t *end);

#endif
