/*
 * salvage.h - files out of data directories, without any daemon: what `rozo salvage` does.
 *
 * Everything is read only. What lies in the directories is not believed (I8): a record counts when its crc,
 * file, block and projection are right. Memory: some 100 bytes for each projection file and each record in a
 * journal, and a few MiB for the file at hand, however large it is. One thread; blocking calls.
 */
#ifndef ROZO_STORAGED_SALVAGE_H
#define ROZO_STORAGED_SALVAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "codec/codec.h"
#include "common/base/err.h"
#include "common/base/record.h"
#include "storaged/format/projfile.h"

enum {
    SALVAGE_DIRS_MAX = 64,
    SALVAGE_ASIDE =
        255, /* projection of a file that was put aside: not told by its name */
    SALVAGE_RANGES_MAX = 64, /* of unreadable blocks that a report tells of */
};

/* A data directory. */
struct salvage_dir {
    const char *path; /* borrowed */
    int fd;           /* owned */
    bool has_identity, is_rebuilt;
    bool is_cut;         /* not all of its objects could be looked at */
    bool is_journal_cut; /* the same of its journal */
    uint32_t storage_id;
    uint8_t incarnation[16];
};

/* A projection file that lies in a directory. */
struct salvage_place {
    struct file_id id;
    uint8_t dir, projection;
};

/* A record or a mark in a journal. */
struct salvage_waiting {
    struct file_id id;
    uint64_t first, end; /* blocks; of a record one */
    uint64_t version;
    uint64_t head_at, body_at; /* in the segment; a mark has none */
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
    struct salvage_place *places; /* owned, by file */
    size_t n_places, room_places;
    struct salvage_waiting
        *waiting; /* owned, by file and first block, marks before records */
    size_t n_waiting, room_waiting;
    struct storage_file *refs; /* owned, by file: what journals say of files */
    size_t n_refs, room_refs;
    struct salvage_segment *segments; /* owned */
    size_t n_segments, room_segments;
    int segment_fd; /* of segment_open; -1: none */
    uint32_t segment_open;
    uint64_t n_entries_damaged; /* frames and segments of journals */
    /** Something a human should know; may be NULL. */
    void (*warn)(void *arg, const char *text);
    void *arg;
};

void salvage_init(struct salvage *s);
void salvage_free(struct salvage *s);
/** path lives as long as s. 0 or -errno with words; -EEXIST: that storage was given already. */
int salvage_add_dir(struct salvage *s, const char *path, struct err *err);
/** Find what there is. 0, or -ENOMEM; directories that cannot be read are warned of. */
int salvage_index(struct salvage *s);

/* The projection files of one file: places[first .. first + n - 1]. */
struct salvage_file {
    struct file_id id;
    size_t first, n;
};
/** The next file, in the order of ids; *cursor begins at 0. False: no more. */
bool salvage_next(const struct salvage *s, size_t *cursor, struct salvage_file *out);

enum salvage_mode {
    SALVAGE_LOOK, /* heads only: records count without their crc */
    SALVAGE_READ, /* read, check and decode every block */
};

/* What became of a file. Blocks are counted once in data, holes (not told) or unreadable. */
struct salvage_report {
    struct storage_file ref; /* codec 0: nothing tells how the file is coded */
    const struct codec *codec;
    uint32_t projections; /* that lie in the directories */
    unsigned n_files, n_headers_damaged;
    unsigned n_silent;  /* storages of its distribution that were not given */
    uint64_t size;      /* end of the user bytes of its last data block */
    uint64_t n_data;    /* blocks that were decoded */
    uint64_t n_damaged; /* of these: something of them is damaged somewhere */
    uint64_t n_older;   /* blocks of which a newer version has too few projections */
    uint64_t
        n_outdated; /* blocks of which a newer one may be whole on storages that were not given, or with
                            what is damaged */
    bool
        is_unsure; /* so few storages tell of it that what looks like a hole may be data they missed */
    uint64_t n_unreadable;
    unsigned n_ranges;
    struct {
        uint64_t first, end;
    } ranges[SALVAGE_RANGES_MAX]; /* of unreadable blocks */
};
/** Nothing is missing, as far as the directories can tell. */
bool salvage_is_whole(const struct salvage_report *r);

/** Bytes of the file, in ascending order. Return 0, or -errno to give up with it. */
typedef int salvage_sink(void *arg, uint64_t offset, const uint8_t *bytes, size_t len);

/**
 * Look at a file, or read it whole. sink may be NULL.
 * tick(arg, bytes read) comes now and then; may be NULL.
 * Returns 0 (also when blocks are missing: see the report), -ENOMEM, or what sink returned.
 */
int salvage_run(struct salvage *s, const struct salvage_file *file,
                enum salvage_mode mode, salvage_sink *sink,
                void (*tick)(void *arg, uint64_t n_bytes), void *arg,
                struct salvage_report *report);

/* ---- inside ---- */

/** Read all of it or up to the end of the file, pages that cannot be read as zeros. Returns how many bytes are not
 * to be believed or lie behind the end (zeros as well). */
size_t salvage_pread(int fd, uint8_t *buf, size_t len, uint64_t offset);
int salvage_index_journals(struct salvage *s);
/** What waits for a file: waiting[*first .. *end - 1]. */
void salvage_waiting_of(const struct salvage *s, const struct file_id *id, size_t *first,
                        size_t *end);
const struct storage_file *salvage_ref_of(const struct salvage *s,
                                          const struct file_id *id);
int file_id_compare(const struct file_id *a, const struct file_id *b);
/** Room for one more in an owned array. 0 or -ENOMEM. */
int salvage_grow(void **array, size_t *room, size_t n, size_t item);
void salvage_warn(struct salvage *s, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

#endif
