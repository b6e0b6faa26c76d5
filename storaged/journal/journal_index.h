/*
 * journal_index.h - the records and marks that wait in the journal, by file.
 *
 * Reads, writes and the applier look them up here. Memory only; bodies are in the
 * journal. A file has a struct pending_file while anything of it is pending, independent
 * of the cache of objects. Several versions of one block and projection may be pending; a
 * commit leaves only the newest of those it covers. For the journal and storaged/ops. One
 * thread, no I/O. A lookup is cheap if nothing is pending.
 */
#ifndef ROZO_STORAGED_JOURNAL_JOURNAL_INDEX_H
#define ROZO_STORAGED_JOURNAL_JOURNAL_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "codec/codec.h"
#include "common/base/list.h"
#include "common/wal/wal.h"
#include "common/wire/record.h"
#include "storaged/format/projfile.h"

enum { PENDING_EPOCHS_MAX = 16, PENDING_MARKS_MAX = 4096 };

/* A frame of the journal that is still wanted. */
struct journal_frame {
    struct list_node link; /* in index.entries, in the order of the journal */
    struct wal_place place;
    uint64_t number;  /* grows with every frame appended */
    unsigned n_refs;  /* references: records and marks in it, reads that send from it */
    unsigned n_bytes; /* bytes of records still wanted */
    /* records still wanted that are committed; damaged */
    unsigned n_committed, n_damaged;
    uint8_t kind; /* enum journal_record_kind */
    /* failures of the log when it was appended; a later failure may have lost it */
    uint64_t failures;
    bool copied;   /* has been appended again */
    bool suspect;  /* found damaged at the start; perhaps only a torn end */
    uint8_t loop;  /* loop in whose log it was found */
    uint8_t *data; /* owned; the whole frame, while it lies in no segment of this log */
};

struct pending_file;

/* One version of one block of one projection. */
struct pending_record {
    struct list_node link;            /* in file->records[committed] */
    struct pending_record *hash_next; /* set for the newest version of a block */
    struct pending_record *older;     /* next older version of the block, owned */
    struct pending_file *file;
    struct journal_frame *entry; /* referenced */
    uint64_t block, version;
    uint64_t since_ns; /* ns, monotonic; when it came */
    uint32_t body_at;  /* bytes, in the entry */
    uint16_t body_len; /* bytes; 0: a hole */
    uint16_t head_len;
    uint8_t projection;
    bool damaged; /* the bytes are lost; the version is known */
    /* the applier could not read it: the same version may be written again */
    bool unread;
    bool committed;
    bool applied; /* written in place, maybe not stable */
    uint8_t head[];
};

/** Walks over all records of a file. With _SAFE the current one may be removed. */
#define PENDING_FOREACH(node, file)              \
    for (unsigned list_ = 0; list_ < 2; list_++) \
        LIST_FOREACH(node, &(file)->records[list_])
#define PENDING_FOREACH_SAFE(node, file)         \
    for (unsigned list_ = 0; list_ < 2; list_++) \
        LIST_FOREACH_SAFE(node, &(file)->records[list_])

struct pending_mark {
    struct list_node link; /* in file->marks, by version */
    struct journal_frame *entry;
    uint64_t first, end, version;
    uint64_t since_ns;
    uint8_t projection; /* from the request; 255: none */
    bool keep_newer, committed, applied;
    bool passed; /* a newer record may lie in place under it */
    /* reserved blocks, which keep their space; keep_end 0: none. Only in memory */
    uint64_t keep_first, keep_end;
};

struct pending_file {
    struct pending_file *hash_next;
    struct list_node link;       /* in index.files, in the order of serial */
    struct list_node apply_link; /* in journal.queue, of files to be applied */
    uint64_t serial;
    struct storage_file ref;
    const struct codec *codec;
    uint32_t hash; /* file_id_hash() */
    /* [0]: uncommitted, [1]: committed; in order of arrival */
    struct list_node records[2];
    struct list_node marks;
    unsigned n_records, n_marks;
    unsigned n_committed;                    /* committed records and marks */
    unsigned n_users;                        /* holders, which keep the struct alive */
    bool applying, wanted_now, is_abandoned; /* private to the journal */
    /* found at the start, when the file could not be read: it may have newer records
     * in place */
    bool unresolved;
    uint64_t last_number; /* number of the newest frame with anything of this file */
    /* ns, monotonic; when the oldest committed one was committed */
    uint64_t committed_ns;
    uint64_t added_ns; /* ns, monotonic; when the newest record came */
    uint64_t retry_ns; /* ns, monotonic; earliest next try to apply */
    unsigned n_durable;
    /* watermarks, one per epoch: versions up to it are committed */
    uint64_t durable[PENDING_EPOCHS_MAX];
};

struct journal_index {
    struct pending_file **buckets;
    unsigned n_buckets, n_files;
    struct pending_record **blocks; /* hash table of the newest version of each block */
    unsigned n_blocks_buckets, n_blocks;
    struct list_node files, entries;
    uint64_t n_serials, n_numbers;
    uint64_t n_records, n_marks, n_uncommitted;
    /**
     * Called when nothing of a frame is wanted any more; it is freed when this returns.
     */
    void (*unwanted)(void *arg, struct journal_frame *entry);
    void *arg;
};

int journal_index_init(struct journal_index *p,
                       void (*unwanted)(void *arg, struct journal_frame *entry),
                       void *arg);
/** Frees all; unwanted() is not called. */
void journal_index_close(struct journal_index *p);

/** Returns a file, or NULL if nothing of it is pending. */
struct pending_file *journal_index_find(const struct journal_index *p,
                                        const struct file_id *id);
/**
 * Finds or makes a file; NULL without memory. A file that has records keeps its code. One
 * without records and marks is freed by the next journal_index_put() or removal.
 */
struct pending_file *journal_index_get(struct journal_index *p,
                                       const struct storage_file *ref,
                                       const struct codec *codec);
void pending_file_hold(struct pending_file *f);
void journal_index_put(struct journal_index *p, struct pending_file *f);

/**
 * Adds a frame that was appended or found. The caller gets a reference. NULL without
 * memory.
 */
struct journal_frame *journal_index_add_frame(struct journal_index *p,
                                              const struct wal_place *place);
void journal_index_put_frame(struct journal_index *p, struct journal_frame *e);

/** Returns the newest pending version of a block, or NULL; ->older has the others. */
struct pending_record *journal_index_newest(const struct journal_index *p,
                                            const struct pending_file *f,
                                            unsigned projection, uint64_t block);
/** Returns the newest version of a block up to at_most, or NULL. */
struct pending_record *journal_index_at_most(const struct journal_index *p,
                                             const struct pending_file *f,
                                             unsigned projection, uint64_t block,
                                             uint64_t at_most);
/** Returns the newest mark over block up to version at_most, or NULL. */
const struct pending_mark *pending_file_mark_at(const struct pending_file *f,
                                                uint64_t block, uint64_t at_most);
/** Returns the version of pending_file_mark_at(), or 0. */
uint64_t pending_file_mark_over(const struct pending_file *f, uint64_t block,
                                uint64_t at_most);
/**
 * Notes that a record of this version is written in place in [first, end) while older
 * marks wait.
 */
void pending_file_marks_pass(struct pending_file *f, uint64_t first, uint64_t end,
                             uint64_t version);
/** Returns the newest version of the marks that touch [first, end), or 0. */
uint64_t pending_file_marks_newest(const struct pending_file *f, uint64_t first,
                                   uint64_t end);

/**
 * Adds a record; copies head_len bytes of head. The same version again replaces the old
 * one. It is committed at once if a commit of its epoch covers it. h->flags
 * RECORD_DAMAGED: its bytes are lost; then it does not replace an intact one. Returns 0
 * or -ENOMEM.
 */
int journal_index_add_record(struct journal_index *p, struct pending_file *f,
                             struct journal_frame *e, unsigned projection,
                             const uint8_t *head, size_t head_len,
                             const struct record_header *h, size_t body_at,
                             size_t body_len, uint64_t now_ns);
int journal_index_add_mark(struct journal_index *p, struct pending_file *f,
                           struct journal_frame *e, const struct pending_mark *mark);
/** Marks r as damaged: its bytes are lost, but its version is known. */
void pending_record_spoil(struct pending_record *r);
void journal_index_remove_record(struct journal_index *p, struct pending_record *r);
void journal_index_remove_mark(struct journal_index *p, struct pending_file *f,
                               struct pending_mark *m);
/** Removes all records and marks of a file, as when it is removed. f may be freed. */
void journal_index_remove_all(struct journal_index *p, struct pending_file *f);

/**
 * Commits the versions of one epoch up to `durable`. Returns true if any was uncommitted.
 */
bool journal_index_commit(struct journal_index *p, struct pending_file *f,
                          uint64_t durable, uint64_t now_ns);
/**
 * Commits the records and marks in these blocks up to a version. Returns true if any was
 * uncommitted.
 */
bool journal_index_commit_range(struct journal_index *p, struct pending_file *f,
                                uint64_t first, uint64_t end, uint64_t version,
                                uint64_t now_ns);

/*
 * The target of an ST_DROP. With projections 0: records and marks newer than keep, up to
 * this epoch. Else: records of these projections up to keep, and, if epoch is not 0,
 * marks up to keep.
 */
struct pending_drop {
    uint64_t first, end;
    uint64_t keep;
    uint32_t epoch;
    uint32_t projections;
};
/** True if a version of this projection (255: a mark) must be dropped. */
bool pending_drop_covers(const struct pending_drop *d, unsigned projection,
                         uint64_t version);
/**
 * Drops records and marks; f may be freed. Returns how many it changed, or -ENOMEM; then
 * some marks may remain.
 */
int journal_index_drop(struct journal_index *p, struct pending_file *f,
                       const struct pending_drop *d);

#endif
