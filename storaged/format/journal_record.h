/*
 * journal_record.h - the entries of the overwrite journal: what wal.h stores as bytes. docs/FORMATS.md, "Journal", has
 * the same in prose.
 *
 * Every disk of every user carries these bytes: change nothing without a new kind. Pure functions on
 * memory; any thread. What comes from a disk is not believed (I8).
 */
#ifndef ROZO_STORAGED_FORMAT_JOURNAL_RECORD_H
#define ROZO_STORAGED_FORMAT_JOURNAL_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "codec/codec.h"
#include "common/base/record.h"
#include "storaged/format/projfile.h"

enum journal_record_kind {
    JOURNAL_RECORDS = 1, /* records of one projection that replace others */
    JOURNAL_MARK = 2,    /* a range becomes holes */
    JOURNAL_FENCE = 3,   /* no client of this epoch or before writes here any more */
    JOURNAL_DROP = 4,    /* what is pending and newer goes */
    JOURNAL_DAMAGED = 5, /* records that were here, and nobody can read any more */
};

enum {
    JOURNAL_RECORD_BLOCKS_MAX = 128,
    JOURNAL_RECORD_HEADER_BYTES =
        216, /* then, of JOURNAL_RECORDS, the heads and behind them the bodies */
};

/* The header, unpacked. */
struct journal_record {
    uint8_t kind; /* of the frame */
    struct storage_file file;
    const struct codec *codec; /* as the file says */
    uint8_t projection;        /* RECORDS; MARK: the one to be made, 255: none */
    bool keep_newer;           /* MARK */
    uint32_t epoch;            /* FENCE, DROP */
    uint32_t projections;      /* DROP: see StDropReq */
    uint64_t first;            /* RECORDS, MARK, DROP: block */
    uint64_t end;              /* MARK, DROP; UINT64_MAX: to the end of everything */
    uint64_t
        version; /* MARK: its own, DROP: to be kept; RECORDS, DAMAGED: the newest (0: unknown) */
    uint64_t blocks[JOURNAL_RECORD_BLOCKS_MAX /
                    64]; /* RECORDS, DAMAGED: bit i: block first + i is here */
};

static inline bool journal_record_has_block(const struct journal_record *e, unsigned i)
{
    return (e->blocks[i / 64] >> i % 64 & 1) != 0;
}

void journal_record_put(uint8_t p[JOURNAL_RECORD_HEADER_BYTES],
                        const struct journal_record *e);
/** The bytes of a header that say something; behind them it is zero. */
size_t journal_record_head_bytes(const uint8_t p[JOURNAL_RECORD_HEADER_BYTES]);
/** The whole header from those bytes. False: there were not enough, or too many. */
bool journal_record_head_widen(const uint8_t *head, size_t len,
                               uint8_t p[JOURNAL_RECORD_HEADER_BYTES]);
/** 0 or -EUCLEAN, *out untouched then. Of JOURNAL_RECORDS only the header is looked at. */
int journal_record_get(uint8_t kind, const uint8_t *p, size_t len,
                       struct journal_record *out);

/* One record of an JOURNAL_RECORDS. */
struct journal_block {
    uint64_t block;
    struct record_header header;
    size_t head_at, body_at; /* in the entry */
    size_t body_len;         /* 0: a hole */
};
/**
 * All records of an entry, ascending; crcs are not looked at.
 * @param out room for JOURNAL_RECORD_BLOCKS_MAX.
 * @return how many (at least 1), or -EUCLEAN.
 */
int journal_record_blocks(const struct journal_record *e, const uint8_t *p, size_t len,
                          struct journal_block *out);

#endif
