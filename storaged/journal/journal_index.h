/*
 * journal_index.h - which records and marks wait in the journal, by file: the index that reads, writes and
 * the applier look into. Memory only; the bodies are in the journal.
 *
 * A file has a struct pending_file as long as anything of it is pending; it does not depend on the cache
 * of objects. Of one block and projection several versions may be pending; of those up to a commit
 * only the newest stays.
 *
 * For the journal and storaged/ops. One thread, no I/O. Lookups cost nothing where a file has none pending.
 */
#ifndef ROZO_STORAGED_JOURNAL_JOURNAL_INDEX_H
#define ROZO_STORAGED_JOURNAL_JOURNAL_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "codec/codec.h"
#include "common/base/list.h"
#include "common/base/record.h"
#include "storaged/format/projfile.h"
#include "storaged/wal/wal.h"

enum { PENDING_EPOCHS_MAX = 16, PENDING_MARKS_MAX = 4096 };

/* A frame of the journal that something is wanted of. */
struct journal_frame {
    struct list_node link; /* in pending.entries, in the order of the journal */
    struct wal_place place;
    uint64_t number;  /* grows with every frame appended */
    unsigned n_refs;  /* records and marks that lie in it, reads that send of it */
    unsigned n_bytes; /* of records still wanted */
    unsigned n_committed, n_damaged; /* of them */
    uint8_t kind;                    /* enum journal_record_kind */
    uint64_t failures; /* of the log when it was appended: one since may have lost it */
    bool copied;       /* has been appended anew */
    bool suspect;      /* found damaged: perhaps it was only torn */
    uint8_t loop;      /* whose log it was found in */
    uint8_t
        *data; /* owned; the whole frame, as long as it lies in no segment of this log */
};

struct pending_file;

/* One version of one block of one projection. */
struct pending_record {
    struct list_node link;            /* in file->records[committed] */
    struct pending_record *hash_next; /* of the newest of its block only */
    struct pending_record *older;     /* of the same block, owned */
    struct pending_file *file;
    struct journal_frame *entry; /* referenced */
    uint64_t block, version;
    uint64_t since_ns; /* came at */
    uint32_t body_at;  /* in the entry */
    uint16_t body_len; /* 0: a hole */
    uint16_t head_len;
    uint8_t projection;
    bool damaged; /* was here, but its bytes are lost */
    bool unread;  /* the applier could not read it: who sends it again is let to */
    bool committed;
    bool applied; /* lies in place, maybe not on stable storage */
    uint8_t head[];
};

/** Walk over all records of a file, not removing any but `node` with the _SAFE one. */
#define PENDING_FOREACH(node, file)              \
    for (unsigned list_ = 0; list_ < 2; list_++) \
        LIST_FOREACH(node, &(file)->records[list_])
#define PENDING_FOREACH_SAFE(node, file)         \
    for (unsigned list_ = 0; list_ < 2; list_++) \
        LIST_FOREACH_SAFE(node, &(file)->records[list_])

struct pending_mark {
    struct list_node link; /* in file->marks, oldest version first */
    struct journal_frame *entry;
    uint64_t first, end, version;
    uint64_t since_ns;
    uint8_t projection; /* of the request; 255: none */
    bool keep_newer, committed, applied;
    bool passed; /* something newer may lie in place under it */
    uint64_t keep_first,
        keep_end; /* blocks that were reserved since: they keep their space.
                                      keep_end 0: none. Only in memory */
};

struct pending_file {
    struct pending_file *hash_next;
    struct list_node link; /* in pending.files, in the order of serial */
    struct list_node
        apply_link; /* the journal's: in its queue of files with something to apply */
    uint64_t serial;
    struct storage_file ref;
    const struct codec *codec;
    uint32_t hash;               /* file_id_hash() */
    struct list_node records[2]; /* [1]: those committed; as they came */
    struct list_node marks;
    unsigned n_records, n_marks;
    unsigned n_committed;               /* of both */
    unsigned n_users;                   /* who hold it; it stays until they are done */
    bool applying, wanted_now, gave_up; /* the journal's */
    bool
        unresolved; /* found at the start, and what lies in place could not be read: that may be newer */
    uint64_t last_number;  /* of the newest frame of it */
    uint64_t committed_ns; /* when the oldest of those committed was */
    uint64_t added_ns;     /* when the newest record came */
    uint64_t retry_ns;     /* not to be applied before */
    unsigned n_durable;
    uint64_t durable[PENDING_EPOCHS_MAX]; /* one for each epoch: committed up to there */
};

struct journal_index {
    struct pending_file **buckets;
    unsigned n_buckets, n_files;
    struct pending_record **blocks; /* hash of the newest ones of each block */
    unsigned n_blocks_buckets, n_blocks;
    struct list_node files, entries;
    uint64_t n_serials, n_numbers;
    uint64_t n_records, n_marks, n_uncommitted;
    /** Of this frame nothing is wanted any more; it is freed when this returns. */
    void (*unwanted)(void *arg, struct journal_frame *entry);
    void *arg;
};

int journal_index_init(struct journal_index *p,
                       void (*unwanted)(void *arg, struct journal_frame *entry),
                       void *arg);
/** Forgets all; unwanted() does not come. */
void journal_index_close(struct journal_index *p);

/** NULL: nothing of it is pending. */
struct pending_file *journal_index_find(const struct journal_index *p,
                                        const struct file_id *id);
/** Find or make; NULL: out of memory. The code of a file that has records already stays what it is. One with nothing in it goes at the next journal_index_put() or removal. */
struct pending_file *journal_index_get(struct journal_index *p,
                                       const struct storage_file *ref,
                                       const struct codec *codec);
void pending_file_hold(struct pending_file *f);
void journal_index_put(struct journal_index *p, struct pending_file *f);

/** A frame was appended, or found. One reference is the caller's. NULL: out of memory. */
struct journal_frame *journal_index_add_frame(struct journal_index *p,
                                              const struct wal_place *place);
void journal_index_put_frame(struct journal_index *p, struct journal_frame *e);

/** The newest pending version of a block; ->older has the others. NULL: none. */
struct pending_record *journal_index_newest(const struct journal_index *p,
                                            const struct pending_file *f,
                                            unsigned projection, uint64_t block);
/** The newest not above at_most. */
struct pending_record *journal_index_at_most(const struct journal_index *p,
                                             const struct pending_file *f,
                                             unsigned projection, uint64_t block,
                                             uint64_t at_most);
/** The newest mark over block that is not above at_most; NULL: none. */
const struct pending_mark *pending_file_mark_at(const struct pending_file *f,
                                                uint64_t block, uint64_t at_most);
/** Its version; 0: none. */
uint64_t pending_file_mark_over(const struct pending_file *f, uint64_t block,
                                uint64_t at_most);
/** Something of this version goes in place in [first, end), whatever older marks wait there. */
void pending_file_marks_pass(struct pending_file *f, uint64_t first, uint64_t end,
                             uint64_t version);
/** The newest mark that touches [first, end); 0: none. */
uint64_t pending_file_marks_newest(const struct pending_file *f, uint64_t first,
                                   uint64_t end);

/**
 * Add a record (head_len bytes of head are copied). The same version again takes the place of the old one.
 * 0 or -ENOMEM. It is committed already when a commit of its epoch covers it. h->flags RECORD_DAMAGED: its bytes are lost; then it
 * takes no place of one that is whole.
 */
int journal_index_add_record(struct journal_index *p, struct pending_file *f,
                             struct journal_frame *e, unsigned projection,
                             const uint8_t *head, size_t head_len,
                             const struct record_header *h, size_t body_at,
                             size_t body_len, uint64_t now_ns);
int journal_index_add_mark(struct journal_index *p, struct pending_file *f,
                           struct journal_frame *e, const struct pending_mark *mark);
/** The journal lost the bytes of r: all that is known of it is that it was here. */
void pending_record_spoil(struct pending_record *r);
void journal_index_remove_record(struct journal_index *p, struct pending_record *r);
void journal_index_remove_mark(struct journal_index *p, struct pending_file *f,
                               struct pending_mark *m);
/** Everything of it, as when the file is removed. f may be gone then. */
void journal_index_remove_all(struct journal_index *p, struct pending_file *f);

/** Versions of the same epoch up to `durable` are committed. True: that was news to some. */
bool journal_index_commit(struct journal_index *p, struct pending_file *f,
                          uint64_t durable, uint64_t now_ns);
/** What is in these blocks and not above version is committed. */
bool journal_index_commit_range(struct journal_index *p, struct pending_file *f,
                                uint64_t first, uint64_t end, uint64_t version,
                                uint64_t now_ns);

/*
 * What ST_DROP takes away: projections 0: what is newer than keep, of this epoch or before; else records of these
 * projections that are not newer, and, when there is an epoch, marks that are not.
 */
struct pending_drop {
    uint64_t first, end;
    uint64_t keep;
    uint32_t epoch;
    uint32_t projections;
};
/** Is a version of this projection (marks: 255) to be dropped? */
bool pending_drop_covers(const struct pending_drop *d, unsigned projection,
                         uint64_t version);
/** Drop; f may be gone then. Returns how many records and marks it changed. -ENOMEM: nothing was done to a mark. */
int journal_index_drop(struct journal_index *p, struct pending_file *f,
                       const struct pending_drop *d);

#endif
