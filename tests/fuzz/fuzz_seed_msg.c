/*
 * fuzz_seed_msg.c - questions and answers of seeding with any bytes that a peer may send.
 *
 * Goal: the decoders read nothing out of bounds; what they accept encodes back the same,
 *       and has no key that is a member's own.
 * Input: a byte that says which message it is, the bytes of its head (2), head, payload.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "codec/codec.h"
#include "common/base/bytes.h"
#include "exportd/quorum/seed/seed_msg.h"
#include "exportd/store/key.h"
#include "tests/fuzz/fuzz.h"

enum { SELF = 2, AT_CLUSTER = 8, AT_TO = 32, AT_CRC = 4 };

static const struct raft_msg_group group = { .number = 0 };

static void ask_take(uint8_t *head, size_t len)
{
    static struct seed_ask ask;
    uint8_t again[SEED_ASK_BYTES_MAX];

    if (len >= SEED_ASK_BYTES) {
        put_le64(head + AT_TO, SELF);
        memset(head + AT_CLUSTER, 0, RAFT_MSG_CLUSTER_ID_BYTES);
    }
    if (seed_ask_decode(&group, SELF, head, len, &ask) != 0)
        return;
    assert(seed_ask_encode(&group, &ask, again) == len);
    assert(memcmp(again, head, len) == 0);
}

static void chunk_take(const uint8_t *head, size_t len, const uint8_t *payload,
                       size_t payload_len)
{
    static struct seed_chunk chunk;
    static const struct seed_key after = { 1, { 'A' } };
    uint8_t again[SEED_CHUNK_BYTES_MAX];
    struct kv_item *items;
    uint8_t *bytes;
    size_t n, at = 0;

    if (seed_chunk_decode(head, len, payload, payload_len, &chunk) != 0)
        return;
    assert(seed_chunk_encode(&chunk, payload, payload_len, again) == len);
    assert(memcmp(again, head, len) == 0);
    if (seed_items_get(payload, payload_len, &after, &items, &n) != 0)
        return;
    bytes = malloc(payload_len + 1);
    assert(bytes != NULL);
    for (size_t i = 0; i < n; i++) {
        assert(!key_is_of_member(items[i].key, items[i].key_len));
        at += seed_item_put(bytes + at, items[i].key, items[i].key_len, items[i].val,
                            items[i].val_len);
    }
    assert(at == payload_len && (at == 0 || memcmp(bytes, payload, at) == 0));
    free(bytes);
    free(items);
}

static void log_take(const uint8_t *head, size_t len, const uint8_t *payload,
                     size_t payload_len)
{
    static struct raft_log_entry entries[SEED_ENTRIES_MAX];
    struct seed_log log;
    uint8_t again[SEED_LOG_BYTES], row[SEED_ROW_BYTES];

    if (seed_log_decode(head, len, payload, payload_len, &log, entries) != 0)
        return;
    seed_log_encode(&log, codec_crc32c(0, payload, payload_len), again);
    assert(len == SEED_LOG_BYTES && memcmp(again, head, len) == 0);
    for (unsigned i = 0; i < log.n; i++) {
        const uint8_t *data = entries[i].data;

        assert(entries[i].index == log.index + i);
        seed_row_put(row, &entries[i]);
        assert(memcmp(row, data - SEED_ROW_BYTES, SEED_ROW_BYTES) == 0);
        assert(data + entries[i].len <= payload + payload_len);
    }
}

static void voter_take(uint8_t *head, size_t len)
{
    static struct seed_voter voter;
    uint8_t again[SEED_VOTER_BYTES_MAX];

    if (len >= SEED_VOTER_BYTES)
        put_le32(head + AT_CRC,
                 codec_crc32c(0, head + SEED_VOTER_BYTES, len - SEED_VOTER_BYTES));
    if (seed_voter_decode(head, len, &voter) != 0)
        return;
    assert(seed_voter_encode(&voter, again) == len);
    assert(memcmp(again, head, len) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t head_len, payload_len;
    uint8_t *head, *payload;

    if (size < 3)
        return 0;
    head_len = get_le16(data + 1);
    if (head_len > size - 3)
        head_len = size - 3;
    payload_len = size - 3 - head_len;
    head = malloc(head_len + 1); /* exact sizes, so that reads behind them are seen */
    payload = malloc(payload_len + 1);
    assert(head != NULL && payload != NULL);
    memcpy(head, data + 3, head_len);
    memcpy(payload, data + 3 + head_len, payload_len);
    if (data[0] % 4 != 0 && head_len >= AT_CRC + 4)
        put_le32(head + AT_CRC, codec_crc32c(0, payload, payload_len));
    if (data[0] % 4 == 0)
        ask_take(head, head_len);
    else if (data[0] % 4 == 1)
        chunk_take(head, head_len, payload, payload_len);
    else if (data[0] % 4 == 2)
        log_take(head, head_len, payload, payload_len);
    else
        voter_take(head, head_len);
    free(head);
    free(payload);
    return 0;
}
