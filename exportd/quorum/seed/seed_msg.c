/*
 * seed_msg.c - bytes of the messages of seeding.
 *
 * Keeps:  nothing that a peer sent is taken before its length, its numbers and its crc
 *         are checked.
 */
#include "exportd/quorum/seed/seed_msg.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "codec/codec.h"
#include "common/base/bytes.h"
#include "common/base/err.h"
#include "common/env/key_map.h"
#include "exportd/store/key.h"

/* Question: 0 version, 1 flags, 2 zeros, 4 group, 8 cluster, 24 from, 32 to, 40 index, 48
 * barrier, 56 its term, 64 key. */
enum {
    AT_FLAGS = 1,
    AT_ZEROS = 2,
    AT_GROUP = 4,
    AT_CLUSTER = 8,
    AT_FROM = 24,
    AT_TO = 32,
    AT_INDEX = 40,
    AT_BARRIER = 48,
    AT_BARRIER_TERM = 56,
    FLAG_BARRIER = 1,
};
/* Answers: 0 version, 1 flags, 2 zeros, 4 crc of the payload. RF_SEED: 8 applied, 16 its
 * term, 24 clock, 32 index of the list, 40 its bytes (4), 44 highest id or 0 (4), 48
 * list. RF_FETCH: 8 term, 16 first, 24 commit, 32 last, 40 barrier, 48 index, 56 n (4),
 * 60 zeros. RF_JOIN, with the crc of the list: 8 term, 16 last, 24 its term, 32 list. */
enum {
    AT_CRC = 4,
    AT_APPLIED = 8,
    AT_APPLIED_TERM = 16,
    AT_WALL = 24,
    AT_MEMBERS_INDEX = 32,
    AT_MEMBERS_LEN = 40,
    AT_HIGHEST = 44,
    AT_MEMBERS = 48,
    FLAG_LAST = 1,
    AT_TERM = 8,
    AT_FIRST = 16,
    AT_COMMIT = 24,
    AT_LAST = 32,
    AT_LOG_BARRIER = 40,
    AT_LOG_INDEX = 48,
    AT_N = 56,
    FLAG_LEADS = 1,
    FLAG_HELD = 2,
    AT_VOTER_LAST = 16,
    AT_VOTER_LAST_TERM = 24,
    AT_VOTER_LIST = 32,
    VOTER_LEADS = 1,
    VOTER_DOUBT = 2,
    VOTER_WHOLE = 4,
    VOTER_LOSS = 8,
    VOTER_REMOVED = 16,
    VOTER_ALL = 31,
};
/* Row of an entry: 0 term, 8 bytes of data, 12 kind, 13 zeros. */
enum { AT_ROW_LEN = 8, AT_ROW_KIND = 12 };
/* Item: 0 bytes of the key (2), 2 zeros, 4 bytes of the value, 8 key, value. */
enum { AT_ITEM_VAL = 4 };

/* ---- the end of all keys ---- */

enum { KEY_END = 0xff }; /* the first byte of a key is a letter */

void seed_key_set_end(struct seed_key *key)
{
    key->len = 1;
    key->bytes[0] = KEY_END;
}

/* ---- questions ---- */

size_t seed_ask_encode(const struct raft_msg_group *group, const struct seed_ask *ask,
                       uint8_t buf[SEED_ASK_BYTES_MAX])
{
    assert(ask->after.len <= SEED_KEY_MAX);
    memset(buf, 0, SEED_ASK_BYTES);
    buf[0] = SEED_MSG_VERSION;
    buf[AT_FLAGS] = ask->wants_barrier ? FLAG_BARRIER : 0;
    put_le32(buf + AT_GROUP, group->number);
    memcpy(buf + AT_CLUSTER, group->cluster_id, RAFT_MSG_CLUSTER_ID_BYTES);
    put_le64(buf + AT_FROM, ask->from);
    put_le64(buf + AT_TO, ask->to);
    put_le64(buf + AT_INDEX, ask->index);
    put_le64(buf + AT_BARRIER, ask->barrier);
    put_le64(buf + AT_BARRIER_TERM, ask->barrier_term);
    memcpy(buf + SEED_ASK_BYTES, ask->after.bytes, ask->after.len);
    return SEED_ASK_BYTES + ask->after.len;
}

int seed_ask_decode(const struct raft_msg_group *group, uint64_t to, const void *buf,
                    size_t len, struct seed_ask *ask)
{
    const uint8_t *p = buf;
    int rc;

    if (len < SEED_ASK_BYTES)
        return -EBADMSG;
    if (p[0] != SEED_MSG_VERSION)
        return -ROZO_EUNKNOWN_FORMAT;
    rc = raft_group_check(group, p + AT_CLUSTER, get_le32(p + AT_GROUP));
    if (rc != 0)
        return rc;
    if (get_le64(p + AT_TO) != to)
        return -ESTALE;
    if (len > SEED_ASK_BYTES_MAX || p[AT_FLAGS] > FLAG_BARRIER ||
        get_le16(p + AT_ZEROS) != 0)
        return -EBADMSG;
    *ask = (struct seed_ask){
        .from = get_le64(p + AT_FROM),
        .to = to,
        .index = get_le64(p + AT_INDEX),
        .wants_barrier = p[AT_FLAGS] != 0,
        .barrier = get_le64(p + AT_BARRIER),
        .barrier_term = get_le64(p + AT_BARRIER_TERM),
        .after.len = (uint32_t)(len - SEED_ASK_BYTES),
    };
    memcpy(ask->after.bytes, p + SEED_ASK_BYTES, ask->after.len);
    if (ask->from == 0 || ask->index > RAFT_NUMBER_MAX ||
        ask->barrier > RAFT_NUMBER_MAX || ask->barrier_term > RAFT_NUMBER_MAX)
        return -EBADMSG;
    return 0;
}

/* ---- keys ---- */

static void answer_put(uint8_t *buf, size_t len, uint8_t flags, uint32_t crc)
{
    memset(buf, 0, len);
    buf[0] = SEED_MSG_VERSION;
    buf[AT_FLAGS] = flags;
    put_le32(buf + AT_CRC, crc);
}

/* Checks what both answers have. */
static int answer_get(const uint8_t *p, size_t len, size_t len_min, uint8_t flags_max,
                      const void *payload, size_t payload_len)
{
    if (len < len_min)
        return -EBADMSG;
    if (p[0] != SEED_MSG_VERSION)
        return -ROZO_EUNKNOWN_FORMAT;
    return p[AT_FLAGS] <= flags_max && get_le16(p + AT_ZEROS) == 0 &&
                   get_le32(p + AT_CRC) == codec_crc32c(0, payload, payload_len)
               ? 0
               : -EBADMSG;
}

static bool is_number(uint64_t v)
{
    return v > 0 && v <= RAFT_NUMBER_MAX;
}

size_t seed_chunk_encode(const struct seed_chunk *chunk, const void *payload, size_t len,
                         uint8_t buf[SEED_CHUNK_BYTES_MAX])
{
    uint8_t list[RAFT_CONFIG_BYTES_MAX];
    size_t list_len = raft_config_encode(&chunk->members, list);

    answer_put(buf, AT_MEMBERS, chunk->is_last ? FLAG_LAST : 0,
               codec_crc32c(0, payload, len));
    put_le64(buf + AT_APPLIED, chunk->applied);
    put_le64(buf + AT_APPLIED_TERM, chunk->applied_term);
    put_le64(buf + AT_WALL, (uint64_t)chunk->wall_ns);
    put_le64(buf + AT_MEMBERS_INDEX, chunk->members_index);
    put_le32(buf + AT_MEMBERS_LEN, (uint32_t)list_len);
    put_le32(buf + AT_HIGHEST, chunk->highest_id == raft_config_highest(&chunk->members)
                                   ? 0
                                   : (uint32_t)chunk->highest_id);
    memcpy(buf + AT_MEMBERS, list, list_len);
    return AT_MEMBERS + list_len;
}

/* Takes the highest id; 0: it is in the list. */
static int highest_get(uint32_t id, struct seed_chunk *chunk)
{
    chunk->highest_id = raft_config_highest(&chunk->members);
    if (id == 0)
        return 0;
    if (id <= chunk->highest_id)
        return -EBADMSG;
    chunk->highest_id = id;
    return 0;
}

int seed_chunk_decode(const void *buf, size_t len, const void *payload,
                      size_t payload_len, struct seed_chunk *chunk)
{
    const uint8_t *p = buf;
    int rc = answer_get(p, len, AT_MEMBERS, FLAG_LAST, payload, payload_len);

    if (rc != 0)
        return rc;
    if (get_le32(p + AT_MEMBERS_LEN) != len - AT_MEMBERS)
        return -EBADMSG;
    *chunk = (struct seed_chunk){
        .is_last = p[AT_FLAGS] != 0,
        .applied = get_le64(p + AT_APPLIED),
        .applied_term = get_le64(p + AT_APPLIED_TERM),
        .wall_ns = (int64_t)get_le64(p + AT_WALL),
        .members_index = get_le64(p + AT_MEMBERS_INDEX),
    };
    if (!is_number(chunk->applied) || !is_number(chunk->applied_term) ||
        !is_number(chunk->members_index) || chunk->members_index > chunk->applied ||
        (payload_len == 0 && !chunk->is_last))
        return -EBADMSG;
    rc = raft_config_decode(p + AT_MEMBERS, len - AT_MEMBERS, &chunk->members);
    return rc != 0 ? rc : highest_get(get_le32(p + AT_HIGHEST), chunk);
}

size_t seed_item_put(uint8_t *buf, const void *key, size_t key_len, const void *val,
                     size_t val_len)
{
    assert(key_len > 0 && key_len <= SEED_KEY_MAX && val_len <= UINT32_MAX);
    put_le16(buf, (uint16_t)key_len);
    put_le16(buf + 2, 0);
    put_le32(buf + AT_ITEM_VAL, (uint32_t)val_len);
    memcpy(buf + SEED_ITEM_BYTES, key, key_len);
    if (val_len > 0)
        memcpy(buf + SEED_ITEM_BYTES + key_len, val, val_len);
    return SEED_ITEM_BYTES + key_len + val_len;
}

/* Reads the item at the start of p. Returns its bytes, or 0: it is not valid. */
static size_t item_get(const uint8_t *p, size_t len, struct kv_item *item)
{
    size_t key_len, val_len;

    if (len < SEED_ITEM_BYTES || get_le16(p + 2) != 0)
        return 0;
    key_len = get_le16(p);
    val_len = get_le32(p + AT_ITEM_VAL);
    if (key_len == 0 || key_len > SEED_KEY_MAX ||
        len - SEED_ITEM_BYTES < key_len + val_len ||
        key_is_of_member(p + SEED_ITEM_BYTES, key_len))
        return 0;
    *item = (struct kv_item){ p + SEED_ITEM_BYTES, key_len, p + SEED_ITEM_BYTES + key_len,
                              val_len };
    return SEED_ITEM_BYTES + key_len + val_len;
}

/* Checks the items, and counts them. Returns 0 or -EBADMSG. */
static int items_count(const uint8_t *p, size_t len, const struct seed_key *after,
                       size_t *n)
{
    struct kv_item item = { after->bytes, after->len, NULL, 0 }, next;
    size_t size;

    *n = 0;
    for (size_t at = 0; at < len; at += size, ++*n, item = next) {
        size = item_get(p + at, len - at, &next);
        if (size == 0 || key_compare(item.key, item.key_len, next.key, next.key_len) >= 0)
            return -EBADMSG;
    }
    return 0;
}

int seed_items_check(const uint8_t *p, size_t len, const struct seed_key *after)
{
    size_t n;

    return items_count(p, len, after, &n);
}

int seed_items_get(const uint8_t *p, size_t len, const struct seed_key *after,
                   struct kv_item **items, size_t *n_items)
{
    size_t n;
    int rc = items_count(p, len, after, &n);

    *items = NULL;
    if (rc != 0)
        return rc;
    *items = malloc((n + SEED_ITEMS_SPARE) * sizeof(**items));
    if (*items == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++)
        p += item_get(p, SIZE_MAX, &(*items)[i]);
    *n_items = n;
    return 0;
}

/* ---- entries ---- */

void seed_row_put(uint8_t buf[SEED_ROW_BYTES], const struct raft_log_entry *e)
{
    memset(buf, 0, SEED_ROW_BYTES);
    put_le64(buf, e->term);
    put_le32(buf + AT_ROW_LEN, e->len);
    buf[AT_ROW_KIND] = (uint8_t)e->kind;
}

/* Reads the entry at the start of p. Returns its bytes, or 0: it is not valid. */
static size_t row_get(const uint8_t *p, size_t len, struct raft_log_entry *e)
{
    if (len < SEED_ROW_BYTES || !bytes_are_zero(p + AT_ROW_KIND + 1, 3))
        return 0;
    e->term = get_le64(p);
    e->len = get_le32(p + AT_ROW_LEN);
    e->kind = (enum raft_entry_kind)p[AT_ROW_KIND];
    e->data = p + SEED_ROW_BYTES;
    if (!is_number(e->term) || e->len == 0 || e->len > RAFT_ENTRY_BYTES_MAX ||
        e->kind < RAFT_ENTRY_BATCH || e->kind > RAFT_ENTRY_CONFIG ||
        len - SEED_ROW_BYTES < e->len)
        return 0;
    return SEED_ROW_BYTES + e->len;
}

size_t seed_voter_encode(const struct seed_voter *voter,
                         uint8_t buf[SEED_VOTER_BYTES_MAX])
{
    uint8_t list[RAFT_CONFIG_BYTES_MAX];
    size_t list_len = raft_config_encode(&voter->list, list);

    answer_put(buf, AT_VOTER_LIST,
               (uint8_t)((voter->leads ? VOTER_LEADS : 0) |
                         (voter->in_doubt ? VOTER_DOUBT : 0) |
                         (voter->is_whole ? VOTER_WHOLE : 0) |
                         (voter->has_loss ? VOTER_LOSS : 0) |
                         (voter->is_removed ? VOTER_REMOVED : 0)),
               codec_crc32c(0, list, list_len));
    put_le64(buf + AT_TERM, voter->term);
    put_le64(buf + AT_VOTER_LAST, voter->last);
    put_le64(buf + AT_VOTER_LAST_TERM, voter->last_term);
    memcpy(buf + AT_VOTER_LIST, list, list_len);
    return AT_VOTER_LIST + list_len;
}

int seed_voter_decode(const void *buf, size_t len, struct seed_voter *voter)
{
    const uint8_t *p = buf;
    int rc = len < AT_VOTER_LIST ? -EBADMSG
                                 : answer_get(p, len, AT_VOTER_LIST, VOTER_ALL,
                                              p + AT_VOTER_LIST, len - AT_VOTER_LIST);

    if (rc != 0)
        return rc;
    *voter = (struct seed_voter){
        .leads = (p[AT_FLAGS] & VOTER_LEADS) != 0,
        .in_doubt = (p[AT_FLAGS] & VOTER_DOUBT) != 0,
        .is_whole = (p[AT_FLAGS] & VOTER_WHOLE) != 0,
        .has_loss = (p[AT_FLAGS] & VOTER_LOSS) != 0,
        .is_removed = (p[AT_FLAGS] & VOTER_REMOVED) != 0,
        .term = get_le64(p + AT_TERM),
        .last = get_le64(p + AT_VOTER_LAST),
        .last_term = get_le64(p + AT_VOTER_LAST_TERM),
    };
    if (voter->term > RAFT_NUMBER_MAX || voter->last > RAFT_NUMBER_MAX ||
        voter->last_term > RAFT_NUMBER_MAX)
        return -EBADMSG;
    return raft_config_decode(p + AT_VOTER_LIST, len - AT_VOTER_LIST, &voter->list);
}

void seed_log_encode(const struct seed_log *log, uint32_t crc,
                     uint8_t buf[SEED_LOG_BYTES])
{
    assert(log->n <= SEED_ENTRIES_MAX);
    answer_put(buf, SEED_LOG_BYTES,
               (uint8_t)((log->leads ? FLAG_LEADS : 0) | (log->is_held ? FLAG_HELD : 0)),
               crc);
    put_le64(buf + AT_TERM, log->term);
    put_le64(buf + AT_FIRST, log->first);
    put_le64(buf + AT_COMMIT, log->commit);
    put_le64(buf + AT_LAST, log->last);
    put_le64(buf + AT_LOG_BARRIER, log->barrier);
    put_le64(buf + AT_LOG_INDEX, log->index);
    put_le32(buf + AT_N, log->n);
}

/* Reads the entries. Returns 0 or -EBADMSG. */
static int rows_get(const uint8_t *p, size_t len, const struct seed_log *log,
                    struct raft_log_entry *entries)
{
    uint64_t term = 0;

    for (unsigned i = 0; i < log->n; i++) {
        size_t size = row_get(p, len, &entries[i]);

        if (size == 0 || entries[i].term < term ||
            (entries[i].kind == RAFT_ENTRY_CONFIG &&
             raft_config_decode(entries[i].data, entries[i].len, NULL) != 0))
            return -EBADMSG;
        entries[i].index = log->index + i;
        term = entries[i].term;
        p += size;
        len -= size;
    }
    return len == 0 ? 0 : -EBADMSG;
}

int seed_log_decode(const void *buf, size_t len, const uint8_t *payload,
                    size_t payload_len, struct seed_log *log,
                    struct raft_log_entry entries[SEED_ENTRIES_MAX])
{
    const uint8_t *p = buf;
    int rc =
        answer_get(p, len, SEED_LOG_BYTES, FLAG_LEADS | FLAG_HELD, payload, payload_len);

    if (rc != 0)
        return rc;
    *log = (struct seed_log){
        .leads = (p[AT_FLAGS] & FLAG_LEADS) != 0,
        .is_held = (p[AT_FLAGS] & FLAG_HELD) != 0,
        .term = get_le64(p + AT_TERM),
        .first = get_le64(p + AT_FIRST),
        .commit = get_le64(p + AT_COMMIT),
        .last = get_le64(p + AT_LAST),
        .barrier = get_le64(p + AT_LOG_BARRIER),
        .index = get_le64(p + AT_LOG_INDEX),
        .n = get_le32(p + AT_N),
    };
    if (len != SEED_LOG_BYTES || get_le32(p + AT_N + 4) != 0 ||
        log->n > SEED_ENTRIES_MAX || !is_number(log->term) || !is_number(log->first) ||
        log->commit > RAFT_NUMBER_MAX || log->last > RAFT_NUMBER_MAX ||
        log->barrier > RAFT_NUMBER_MAX || !is_number(log->index) ||
        (log->n > 0 && (log->index < log->first || log->commit > log->last ||
                        log->commit < log->index + log->n - 1)))
        return -EBADMSG;
    return rows_get(payload, payload_len, log, entries);
}
