/*
 * journal_record.h - the entries of the overwrite journal; the write-ahead log stores
 * them as bytes.
 *
 * docs/FORMATS.md, "Journal", describes the same bytes in prose. They are on users'
 * disks: any change needs a new kind. Pure functions on memory; any thread. Bytes from a
 * disk are checked (I8).
 */
#ifndef ROZO_STORAGED_FORMAT_JOURNAL_RECORD_H
#define ROZO_STORAGED_FORMAT_JOURNAL_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "codec/codec.h"
#include "common/wire/record.h"
#include "storaged/format/projfile.h"

enum journal_record_kind {
    JOURNAL_RECORDS = 1, /* records of one projection that replace others */
    JOURNAL_MARK = 2,    /* a range becomes holes */
    /* writes of clients with this epoch or an earlier one are refused */
    JOURNAL_FENCE = 3,
    JOURNAL_DROP = 4,    /* pending records and marks are dropped, see StDropReq */
    JOURNAL_DAMAGED = 5, /* records that were here and cannot be read any more */
};

enum {
    JOURNAL_RECORD_BLOCKS_MAX = 128,
    /* JOURNAL_RECORDS: heads and then bodies follow */
    JOURNAL_RECORD_HEADER_BYTES = 216,
};

/* The unpacked header. */
struct journal_record {
    uint8_t kind; /* enum journal_record_kind, from the frame */
    struct storage_file file;
    const struct codec *codec; /* codec of `file` */
    uint8_t projection;        /* RECORDS; MARK: the one to create, 255: none */
    bool keep_newer;           /* MARK */
    uint32_t epoch;            /* FENCE, DROP */
    uint32_t projections;      /* DROP: a bitmap, see StDropReq */
    uint64_t first;            /* RECORDS, MARK, DROP: block */
    uint64_t end;              /* MARK, DROP: block; UINT64_MAX: no end */
    /* MARK: its version; DROP: the newest to keep; RECORDS, DAMAGED: the newest (0:
     * unknown) */
    uint64_t version;
    /* RECORDS, DAMAGED: bit i is block first + i */
    uint64_t blocks[JOURNAL_RECORD_BLOCKS_MAX / 64];
};

static inline bool journal_record_has_block(const struct journal_record *e, unsigned i)
{
    return (e->blocks[i / 64] >> i % 64 & 1) != 0;
}

void journal_record_put(uint8_t p[JOURNAL_RECORD_HEADER_BYTES],
                        const struct journal_record *e);
/** Returns how many bytes of a header are used; the rest are zero. */
size_t journal_record_head_bytes(const uint8_t p[JOURNAL_RECORD_HEADER_BYTES]);
/** Restores the whole header from its used bytes. Returns false if len is impossible. */
bool journal_record_head_widen(const uint8_t *head, size_t len,
                               uint8_t p[JOURNAL_RECORD_HEADER_BYTES]);
/**
 * Unpacks and checks an entry; of JOURNAL_RECORDS only the header. Returns 0 or
 * -ROZO_EDAMAGED (corrupt; *out is untouched).
 */
int journal_record_get(uint8_t kind, const uint8_t *p, size_t len,
                       struct journal_record *out);

/* One record of a JOURNAL_RECORDS entry. */
struct journal_block {
    uint64_t block;
    struct record_header header;
    size_t head_at, body_at; /* offsets in the entry */
    size_t body_len;         /* 0: a hole */
};
/**
 * Lists all records of an entry, ascending. Does not check their crcs.
 * @param out room for JOURNAL_RECORD_BLOCKS_MAX.
 * @return how many (at least 1), or -ROZO_EDAMAGED (corrupt).
 */
int journal_record_blocks(const struct journal_record *e, const uint8_t *p, size_t len,
                          struct journal_block *out);

#endif
