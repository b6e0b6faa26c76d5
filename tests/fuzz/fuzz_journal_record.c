/*
 * fuzz_journal_record.c - records of the overwrite journal.
 *
 * Goal: journal_record_put() restores the bytes that journal_record_get() accepts; the
 * blocks lie inside the journal record, in order, and fill it.
 * Input: the kind, then the journal record.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "storaged/format/journal_record.h"
#include "tests/fuzz/fuzz.h"

static void check_records(const struct journal_record *e, const uint8_t *p, size_t len)
{
    struct journal_block r[JOURNAL_RECORD_BLOCKS_MAX];
    int n = journal_record_blocks(e, p, len, r);
    size_t at;

    if (n < 0)
        return;
    assert(n > 0 && n <= JOURNAL_RECORD_BLOCKS_MAX);
    at = r[0].body_at;
    for (int i = 0; i < n; i++) {
        assert(r[i].head_at + RECORD_HEADER_BYTES <= r[0].body_at);
        assert(r[i].body_at == at && at + r[i].body_len <= len);
        assert(i == 0 || r[i].block > r[i - 1].block);
        assert(r[i].header.block == r[i].block && r[i].header.version != 0);
        at += r[i].body_len;
    }
    assert(at == len);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t again[JOURNAL_RECORD_HEADER_BYTES], *copy;
    struct journal_record e;

    if (size == 0)
        return 0;
    copy = malloc(size); /* sanitizers see reads after its end */
    assert(copy != NULL);
    memcpy(copy, data + 1, size - 1);
    if (journal_record_get(data[0], copy, size - 1, &e) == 0) {
        journal_record_put(again, &e);
        assert(memcmp(again, copy, sizeof(again)) == 0);
        if (e.kind == JOURNAL_RECORDS)
            check_records(&e, copy, size - 1);
    }
    free(copy);
    return 0;
}
