/*
 * salvage.h - reads files out of data directories, without any daemon, for `rozo
 * salvage`.
 *
 * Everything is opened read only. The content of the directories is not trusted (I8): a
 * record counts only if its crc, file, block and projection are right. Memory: some 100
 * bytes for each projection file and each record in a journal, and a few MiB for the
 * current file, however large it is. One thread; blocking calls.
 */
#ifndef ROZO_STORAGED_SALVAGE_H
#define ROZO_STORAGED_SALVAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "codec/codec.h"
#include "common/base/err.h"
#include "common/wire/record.h"
#include "storaged/format/projfile.h"

enum {
    SALVAGE_DIRS_MAX = 64,
    /* Projection of a quarantined file, whose name does not tell it. */
    SALVAGE_QUARANTINED = 255,
    SALVAGE_RANGES_MAX = 64, /* ranges of unreadable blocks in a report */
};

/* A data directory. */
struct salvage_dir {
    const char *path; /* borrowed */
    int fd;           /* owned */
    bool has_identity, is_rebuilt;
    bool is_cut;         /* not all of its objects could be read */
    bool is_journal_cut; /* not all of its journal could be read */
    uint32_t storage_id;
    uint8_t incarnation[16];
};

/* A projection file in a directory. */
struct salvage_place {
    struct file_id id;
    uint8_t dir, projection;
};

/* A record or a mark in a journal. */
struct salvage_waiting {
    struct file_id id;
    uint64_t first, end; /* blocks; one for a record */
    uint64_t version;
    uint64_t head_at, body_at; /* offsets in the segment; unused for a mark */
    uint32_t segment;          /* index in segments */
    uint16_t body_len;         /* 0: a hole */
    uint16_t user_bytes;
    uint8_t dir, projection;
    bool is_mark;
};

/* A segment of a journal; opened when needed. */
struct salvage_segment {
    char name[24];
    uint8_t dir;
};

struct salvage {
    struct salvage_dir dirs[SALVAGE_DIRS_MAX];
    unsigned n_dirs;
    struct salvage_place *places; /* owned, sorted by file */
    size_t n_places, room_places;
    /* Owned, by file and first block, marks before records. */
    struct salvage_waiting *waiting;
    size_t n_waiting, room_waiting;
    /* Owned, sorted by file: descriptions of files in journals. */
    struct storage_file *refs;
    size_t n_refs, room_refs;
    struct salvage_segment *segments; /* owned */
    size_t n_segments, room_segments;
    int segment_fd; /* fd of segment_open; -1: none */
    uint32_t segment_open;
    uint64_t n_entries_damaged; /* damaged frames and segments of journals */
    /** Called with a warning for people; may be NULL. */
    void (*warn)(void *arg, const char *text);
    void *arg;
};

void salvage_init(struct salvage *s);
void salvage_free(struct salvage *s);
/**
 * Adds a data directory. path must live as long as s. Returns 0, or -errno with a message
 * in err; -EEXIST: the same storage was added before.
 */
int salvage_add_dir(struct salvage *s, const char *path, struct err *err);
/**
 * Indexes all directories. Returns 0 or -ENOMEM; unreadable directories cause a warning.
 */
int salvage_index(struct salvage *s);

/* The projection files of one file: places[first .. first + n - 1]. */
struct salvage_file {
    struct file_id id;
    size_t first, n;
};
/**
 * Gets the next file, in the order of ids; *cursor begins at 0. Returns false after the
 * last.
 */
bool salvage_next(const struct salvage *s, size_t *cursor, struct salvage_file *out);

enum salvage_mode {
    SALVAGE_LOOK, /* heads only: records count without a check of their crc */
    SALVAGE_READ, /* reads, checks and decodes every block */
};

/* The result for one file. A block counts once as data, hole (no counter) or
 * unreadable. */
struct salvage_report {
    struct storage_file ref; /* codec 0: the code of the file is unknown */
    const struct codec *codec;
    uint32_t projections; /* bitmap of those found in the directories */
    unsigned n_files, n_headers_damaged;
    unsigned n_absent_storages; /* storages of its distribution that were not given */
    uint64_t size;              /* end of the user bytes of its last data block */
    uint64_t n_data;            /* decoded blocks */
    uint64_t n_damaged;         /* subset of n_data with damage somewhere */
    uint64_t n_older; /* blocks with a newer version that has too few projections */
    /* Blocks with a newer version that may be complete on storages that were not given,
     * or in what is damaged. */
    uint64_t n_outdated;
    /* Too few storages are known: a hole may be data that they missed. */
    bool is_unsure;
    uint64_t n_unreadable;
    unsigned n_ranges;
    struct {
        uint64_t first, end;
    } ranges[SALVAGE_RANGES_MAX]; /* unreadable blocks */
};
/** Returns whether nothing is missing, as far as the directories show. */
bool salvage_is_whole(const struct salvage_report *r);

/**
 * Gets bytes of the file, in ascending order. Returns 0, or -errno to abandon the file.
 */
typedef int salvage_sink(void *arg, uint64_t offset, const uint8_t *bytes, size_t len);

/**
 * Reads the heads of a file, or all of it. sink may be NULL. tick(arg, bytes read) is
 * called now and then; may be NULL. Returns 0 (also if blocks are missing: see the
 * report), -ENOMEM, or the error of sink.
 */
int salvage_run(struct salvage *s, const struct salvage_file *file,
                enum salvage_mode mode, salvage_sink *sink,
                void (*tick)(void *arg, uint64_t n_bytes), void *arg,
                struct salvage_report *report);

/* ---- private to storaged/salvage ---- */

/**
 * Reads len bytes, or to the end of the file; unreadable pages become zeros. Returns how
 * many bytes are invalid or beyond the end (also zeros).
 */
size_t salvage_pread(int fd, uint8_t *buf, size_t len, uint64_t offset);
int salvage_index_journals(struct salvage *s);
/** Finds the journal entries of a file: waiting[*first .. *end - 1]. */
void salvage_waiting_of(const struct salvage *s, const struct file_id *id, size_t *first,
                        size_t *end);
const struct storage_file *salvage_ref_of(const struct salvage *s,
                                          const struct file_id *id);
int file_id_compare(const struct file_id *a, const struct file_id *b);
/** Makes room for one more item in an owned array. Returns 0 or -ENOMEM. */
int salvage_grow(void **array, size_t *room, size_t n, size_t item);
void salvage_warn(struct salvage *s, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

#endif
