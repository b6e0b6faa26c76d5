/*
 * fuzz_raft_msg.c - messages of a quorum with any bytes that a peer may send.
 *
 * Goal: the decoder reads nothing out of bounds; what it accepts encodes back the same;
 * and a member that gets any accepted messages never asserts or does anything undefined,
 * whatever libraft assumes.
 * Input: records of a length (2 bytes) and a message: a head and, behind it, the payload.
 * A bit of the length makes time pass; a message that is not for this member is made so.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/bytes.h"
#include "common/base/units.h"
#include "exportd/quorum/raft/raft_core.h"
#include "tests/fuzz/fuzz.h"

enum {
    SELF = 2,
    TICK = 0x8000, /* in a length: time passes before the message */
    RECORDS_MAX = 64,
};

static const struct raft_msg_group group = { .number = 0 };

/* Member with a short log, as its caller sees it. */
struct member {
    struct raft_core *core;
    uint64_t now_ns, last, commit;
    uint64_t term_of[4096];
};

/* Carries out the results; all is persisted at once. */
static void member_take(struct member *m, int rc)
{
    struct raft_core_out out;

    if (rc != 0)
        return;
    raft_core_take(m->core, &out);
    if (out.truncate_from != 0) {
        assert(out.truncate_from > m->commit && out.truncate_from <= m->last);
        m->last = out.truncate_from - 1;
    }
    for (unsigned i = 0; i < out.n_entries; i++) {
        assert(out.entries[i].index == m->last + 1 && out.entries[i].term > 0);
        m->last++;
        if (m->last < 4096)
            m->term_of[m->last] = out.entries[i].term;
    }
    assert(out.commit >= m->commit && out.commit <= m->last);
    m->commit = out.commit;
    for (unsigned i = 0; i < out.n_messages; i++) {
        assert(out.messages[i].from == SELF && out.messages[i].to != SELF);
        assert(out.messages[i].n == 0 ||
               out.messages[i].index + out.messages[i].n <= m->last);
    }
    assert(raft_core_last_index(m->core) == m->last);
    if (out.new_term != 0)
        member_take(
            m, raft_core_vote_persisted(m->core, m->now_ns, out.new_term, out.new_vote));
    if (out.n_entries > 0)
        member_take(m, raft_core_persisted(m->core, m->now_ns, m->last,
                                           raft_core_term_of(m->core, m->last)));
}

static void member_open(struct member *m)
{
    const struct raft_core_options options = { .id = SELF, .seed = 1 };
    struct raft_log_entry log[4];
    struct raft_core_saved saved = { .term = 3,
                                     .applied = 5,
                                     .applied_term = 2,
                                     .config_index = 1,
                                     .entries = log,
                                     .n_entries = 4 };

    memset(m, 0, sizeof(*m));
    for (unsigned i = 0; i < 4; i++)
        log[i] = (struct raft_log_entry){
            .index = 4 + i, .term = i < 3 ? 2 : 3, .kind = RAFT_ENTRY_BATCH, .len = 8
        };
    for (uint64_t id = 1; id <= 3; id++)
        assert(raft_config_set(&saved.config, id, RAFT_ROLE_VOTER, "") == 0);
    assert(raft_core_open(&options, &m->core) == 0);
    m->now_ns = s_to_ns(1);
    m->last = 7;
    m->commit = 5;
    assert(raft_core_start(m->core, m->now_ns, &saved, NULL) == 0);
    member_take(m, 0);
}

static void message_receive(struct member *m, const uint8_t *head, size_t head_len,
                            const uint8_t *payload, size_t payload_len)
{
    struct raft_log_entry entries[RAFT_MSG_ENTRIES_MAX];
    uint8_t again[RAFT_MSG_HEAD_MAX];
    struct raft_msg msg;

    if (raft_msg_decode(&group, SELF, head, head_len, payload, payload_len, &msg,
                        entries) != 0)
        return;
    assert(raft_msg_encode(&group, &msg, entries, again) == head_len);
    assert(memcmp(again, head, head_len) == 0);
    if (msg.index > 4000) /* term_of is short */
        return;
    member_take(m, raft_core_receive(m->core, m->now_ns, &msg, entries));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct member m;
    unsigned n = 0;

    member_open(&m);
    while (size >= 2 && n++ < RECORDS_MAX) {
        size_t len = get_le16(data) & (TICK - 1), head_len;
        uint8_t *exact;

        if ((get_le16(data) & TICK) != 0) {
            m.now_ns += ms_to_ns(700);
            member_take(&m, raft_core_tick(m.core, m.now_ns));
        }
        data += 2;
        size -= 2;
        if (len > size)
            len = size;
        head_len = len < RAFT_MSG_FIXED_BYTES
                       ? len
                       : RAFT_MSG_FIXED_BYTES +
                             (size_t)RAFT_MSG_ROW_BYTES * (get_le32(data + 96) & 63);
        if (head_len > len)
            head_len = len;
        exact = malloc(len + 1);
        assert(exact != NULL);
        memcpy(exact, data, len);
        if (head_len >= RAFT_MSG_FIXED_BYTES) {
            put_le64(exact + 32, SELF);
            memset(exact + 8, 0, RAFT_MSG_CLUSTER_ID_BYTES);
        }
        message_receive(&m, exact, head_len, exact + head_len, len - head_len);
        free(exact);
        data += len;
        size -= len;
    }
    raft_core_free(m.core);
    return 0;
}
