/*
 * raft_msg.c - packs and unpacks messages of a quorum and its list of members.
 *
 * In:     structs of raft_msg.h, or bytes of a peer or of the log. Any thread.
 * Out:    bytes, or structs in which every number is within its bounds and every field
 *         that a kind of message does not have is zero.
 * Keeps:  libraft gets nothing that it would have to assert (R6); entries are bounded in
 *         bytes (R7).
 * Ask:    members of other versions read these bytes, and logs carry lists of members.
 */
#include "exportd/quorum/raft/raft_msg.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/bytes.h"
#include "common/base/err.h"

enum {
    CONFIG_VERSION = 1, /* as libraft has it */
    ID_DIGITS = 16,
    CONFIG_HEAD_BYTES = 9,
    /* Behind the digits of a member. libraft looks at neither; a build that does not know
     * witnesses refuses the list. */
    MARK_MEMBER = ' ',
    MARK_WITNESS = 'w',
};

const struct raft_member *raft_config_find(const struct raft_config *config, uint64_t id)
{
    for (unsigned i = 0; i < config->n; i++) {
        if (config->members[i].id == id)
            return &config->members[i];
    }
    return NULL;
}

unsigned raft_config_n_voters(const struct raft_config *config)
{
    unsigned n = 0;

    for (unsigned i = 0; i < config->n; i++)
        n += config->members[i].role == RAFT_ROLE_VOTER;
    return n;
}

bool raft_config_is_witness(const struct raft_config *config, uint64_t id)
{
    const struct raft_member *member = raft_config_find(config, id);

    return member != NULL && member->is_witness;
}

bool raft_member_can_serve(const struct raft_member *member)
{
    return member->role == RAFT_ROLE_VOTER && !member->is_witness;
}

unsigned raft_config_n_witnesses(const struct raft_config *config)
{
    unsigned n = 0;

    for (unsigned i = 0; i < config->n; i++)
        n += config->members[i].is_witness;
    return n;
}

uint64_t raft_config_highest(const struct raft_config *config)
{
    return config->n == 0 ? 0 : config->members[config->n - 1].id;
}

static bool role_is_known(unsigned role)
{
    return role == RAFT_ROLE_STANDBY || role == RAFT_ROLE_VOTER ||
           role == RAFT_ROLE_SPARE;
}

/* Returns true if the text is short enough and has only printable characters. */
static bool address_is_valid(const char *address)
{
    size_t len = strnlen(address, RAFT_ADDRESS_MAX + 1);

    for (size_t i = 0; i < len; i++) {
        if (address[i] < 0x20 || address[i] > 0x7e)
            return false;
    }
    return len <= RAFT_ADDRESS_MAX;
}

int raft_config_set(struct raft_config *config, uint64_t id, enum raft_role role,
                    const char *address)
{
    unsigned i = 0;

    if (id == 0 || !role_is_known(role) || !address_is_valid(address))
        return -EINVAL;
    while (i < config->n && config->members[i].id < id)
        i++;
    if (i == config->n || config->members[i].id != id) {
        if (config->n == RAFT_SERVERS_MAX)
            return -ENOSPC;
        memmove(&config->members[i + 1], &config->members[i],
                (config->n - i) * sizeof(config->members[0]));
        config->n++;
        config->members[i].id = id;
        config->members[i].is_witness = false;
    }
    config->members[i].role = role;
    memmove(config->members[i].address, address, strlen(address) + 1);
    return 0;
}

void raft_config_set_witness(struct raft_config *config, uint64_t id)
{
    for (unsigned i = 0; i < config->n; i++) {
        if (config->members[i].id == id)
            config->members[i].is_witness = true;
    }
}

int raft_config_remove(struct raft_config *config, uint64_t id)
{
    const struct raft_member *member = raft_config_find(config, id);
    unsigned i;

    if (member == NULL)
        return -ENOENT;
    i = (unsigned)(member - config->members);
    config->n--;
    memmove(&config->members[i], &config->members[i + 1],
            (config->n - i) * sizeof(config->members[0]));
    return 0;
}

size_t raft_config_encode(const struct raft_config *config,
                          uint8_t buf[RAFT_CONFIG_BYTES_MAX])
{
    uint8_t *p = buf + CONFIG_HEAD_BYTES;

    assert(config->n > 0 && config->n <= RAFT_SERVERS_MAX);
    buf[0] = CONFIG_VERSION;
    put_le64(buf + 1, config->n);
    for (unsigned i = 0; i < config->n; i++) {
        const struct raft_member *m = &config->members[i];
        char text[ID_DIGITS + 1 + RAFT_ADDRESS_MAX + 1];
        int len;

        if (m->address[0] == '\0' && !m->is_witness)
            len = snprintf(text, sizeof(text), "%016" PRIx64, m->id);
        else
            len = snprintf(text, sizeof(text), "%016" PRIx64 "%c%s", m->id,
                           m->is_witness ? MARK_WITNESS : MARK_MEMBER, m->address);

        assert(len >= ID_DIGITS && (size_t)len < sizeof(text) && role_is_known(m->role));
        put_le64(p, m->id);
        memcpy(p + 8, text, (size_t)len + 1);
        p += 8 + len + 1;
        *p++ = (uint8_t)m->role;
    }
    while ((p - buf) % 8 != 0)
        *p++ = 0;
    return (size_t)(p - buf);
}

/* Unpacks one member at *p and moves *p behind it. Returns 0 or -EBADMSG. */
static int member_decode(const uint8_t **p, const uint8_t *end, struct raft_member *m)
{
    char digits[ID_DIGITS + 1];
    const char *text;
    size_t len, max;

    if (end - *p < 8 + ID_DIGITS + 2)
        return -EBADMSG;
    m->id = get_le64(*p);
    text = (const char *)*p + 8;
    max = (size_t)(end - *p) - 8 - 1; /* without the role */
    len = strnlen(text, max);
    snprintf(digits, sizeof(digits), "%016" PRIx64, m->id);
    if (m->id == 0 || len == max || len < ID_DIGITS ||
        memcmp(text, digits, ID_DIGITS) != 0)
        return -EBADMSG;
    m->address[0] = '\0';
    m->is_witness = text[ID_DIGITS] == MARK_WITNESS;
    if (len > ID_DIGITS) {
        if (!m->is_witness && (len == ID_DIGITS + 1 || text[ID_DIGITS] != MARK_MEMBER))
            return -EBADMSG;
        if (!address_is_valid(text + ID_DIGITS + 1))
            return -EBADMSG;
        memcpy(m->address, text + ID_DIGITS + 1, len - ID_DIGITS);
    }
    if (!role_is_known((uint8_t)text[len + 1]))
        return -EBADMSG;
    m->role = (enum raft_role)text[len + 1];
    *p += 8 + len + 2;
    return 0;
}

int raft_config_decode(const void *buf, size_t len, struct raft_config *config)
{
    const uint8_t *p = buf, *end = p + len;
    unsigned n_full = 0;
    uint64_t n, last_id = 0;

    if (len < CONFIG_HEAD_BYTES || len > RAFT_CONFIG_BYTES_MAX || len % 8 != 0 ||
        p[0] != CONFIG_VERSION)
        return -EBADMSG;
    n = get_le64(p + 1);
    if (n == 0 || n > RAFT_SERVERS_MAX)
        return -EBADMSG;
    p += CONFIG_HEAD_BYTES;
    for (unsigned i = 0; i < n; i++) {
        struct raft_member m;

        if (member_decode(&p, end, &m) != 0 || m.id <= last_id)
            return -EBADMSG;
        last_id = m.id;
        n_full += raft_member_can_serve(&m);
        if (config != NULL)
            config->members[i] = m;
    }
    if (n_full == 0 || end - p >= 8 || !bytes_are_zero(p, (size_t)(end - p)))
        return -EBADMSG;
    if (config != NULL)
        config->n = (unsigned)n;
    return 0;
}

static void fixed_put(uint8_t *p, const struct raft_msg_group *group,
                      const struct raft_msg *m)
{
    p[0] = RAFT_MSG_VERSION;
    p[1] = (uint8_t)m->kind;
    p[2] = (uint8_t)m->flags;
    p[3] = 0;
    put_le32(p + 4, group->number);
    memcpy(p + 8, group->cluster_id, RAFT_MSG_CLUSTER_ID_BYTES);
    put_le64(p + 24, m->from);
    put_le64(p + 32, m->to);
    put_le64(p + 40, m->term);
    put_le64(p + 48, m->sent_ns);
    put_le64(p + 56, m->kind == RAFT_MSG_APPEND ? m->covered : m->echo_ns);
    put_le64(p + 64, m->index);
    put_le64(p + 72, m->index_term);
    put_le64(p + 80, m->last);
    put_le64(p + 88, m->commit);
    put_le32(p + 96, m->n);
    put_le32(p + 100, 0);
}

static void fixed_get(const uint8_t *p, struct raft_msg *m)
{
    m->kind = (enum raft_msg_kind)p[1];
    m->flags = p[2];
    m->from = get_le64(p + 24);
    m->to = get_le64(p + 32);
    m->term = get_le64(p + 40);
    m->sent_ns = get_le64(p + 48);
    m->covered = m->kind == RAFT_MSG_APPEND ? get_le64(p + 56) : 0;
    m->echo_ns = m->kind == RAFT_MSG_APPEND ? 0 : get_le64(p + 56);
    m->index = get_le64(p + 64);
    m->index_term = get_le64(p + 72);
    m->last = get_le64(p + 80);
    m->commit = get_le64(p + 88);
    m->n = get_le32(p + 96);
}

size_t raft_msg_encode(const struct raft_msg_group *group, const struct raft_msg *msg,
                       const struct raft_log_entry *entries,
                       uint8_t head[RAFT_MSG_HEAD_MAX])
{
    uint8_t *p = head + RAFT_MSG_FIXED_BYTES;

    assert(msg->n == 0 ||
           (msg->kind == RAFT_MSG_APPEND && raft_msg_fill(entries, msg->n) == msg->n));
    fixed_put(head, group, msg);
    for (unsigned i = 0; i < msg->n; i++, p += RAFT_MSG_ROW_BYTES) {
        assert(entries[i].index == msg->index + 1 + i);
        memset(p, 0, RAFT_MSG_ROW_BYTES);
        put_le64(p, entries[i].term);
        put_le32(p + 8, entries[i].len);
        p[12] = (uint8_t)entries[i].kind;
    }
    return (size_t)(p - head);
}

unsigned raft_msg_fill(const struct raft_log_entry *entries, unsigned n)
{
    size_t bytes = 0;
    unsigned i;

    for (i = 0; i < n && i < RAFT_MSG_ENTRIES_MAX; i++) {
        bytes += entries[i].len;
        if (bytes > RAFT_MSG_PAYLOAD_MAX && i > 0)
            break;
    }
    return i;
}

void raft_msg_advance(struct raft_msg *msg, const struct raft_log_entry *last)
{
    assert(msg->kind == RAFT_MSG_APPEND && last->index == msg->index + msg->n);
    msg->index = last->index;
    msg->index_term = last->term;
}

/* Fields that a kind of message may have, apart from those that all have. */
enum fields {
    ECHO = 1,
    INDEX = 2,
    INDEX_TERM = 4,
    LAST = 8,
    COMMIT = 16,
    ENTRIES = 32,
};
static const struct {
    unsigned flags, fields;
} kinds[] = {
    [RAFT_MSG_APPEND] = { RAFT_MSG_LAZY | RAFT_MSG_LOSS,
                          INDEX | INDEX_TERM | COMMIT | ENTRIES },
    [RAFT_MSG_APPENDED] = { RAFT_MSG_LAZY | RAFT_MSG_LOSS, ECHO | INDEX | LAST },
    [RAFT_MSG_VOTE] = { RAFT_MSG_PRE_VOTE | RAFT_MSG_DISRUPT, INDEX | INDEX_TERM },
    [RAFT_MSG_VOTED] = { RAFT_MSG_PRE_VOTE | RAFT_MSG_GRANTED, 0 },
    [RAFT_MSG_SEED] = { RAFT_MSG_LOST, INDEX | INDEX_TERM },
    [RAFT_MSG_TIMEOUT_NOW] = { 0, INDEX | INDEX_TERM },
    [RAFT_MSG_SYNC] = { 0, INDEX | INDEX_TERM },
};

/* Returns true if a message has only the fields of its kind, within their bounds. */
static bool fields_are_valid(const struct raft_msg *m)
{
    unsigned fields;

    if (m->kind < RAFT_MSG_APPEND || m->kind > RAFT_MSG_SYNC ||
        (m->flags & ~kinds[m->kind].flags) != 0)
        return false;
    fields = kinds[m->kind].fields;
    if ((m->flags & RAFT_MSG_LAZY) != 0)
        fields |= LAST | COMMIT;
    return ((fields & ECHO) != 0 || m->echo_ns == 0) &&
           ((fields & INDEX) != 0 || m->index == 0) &&
           ((fields & INDEX_TERM) != 0 || m->index_term == 0) &&
           ((fields & LAST) != 0 || m->last == 0) &&
           ((fields & COMMIT) != 0 || m->commit == 0) &&
           ((fields & ENTRIES) != 0 || m->n == 0) && m->term >= 1 &&
           m->term <= RAFT_NUMBER_MAX && m->index <= RAFT_NUMBER_MAX &&
           m->last <= RAFT_NUMBER_MAX && m->commit <= RAFT_NUMBER_MAX &&
           m->covered <= RAFT_NUMBER_MAX && m->index_term <= m->term &&
           m->n <= RAFT_MSG_ENTRIES_MAX;
}

/* Returns true if the fields of a message go together. */
static bool msg_is_valid(const struct raft_msg *m)
{
    if (!fields_are_valid(m) || m->from == 0 || m->to == 0 || m->from == m->to)
        return false;
    switch (m->kind) {
    case RAFT_MSG_APPENDED:
        return m->commit <= m->last && (m->index == 0 || m->last < m->index);
    case RAFT_MSG_VOTE:
        if (m->flags == (RAFT_MSG_PRE_VOTE | RAFT_MSG_DISRUPT))
            return false;
        /* fall through */
    default:
        return (m->index == 0) == (m->index_term == 0) && m->last <= m->commit &&
               ((m->kind != RAFT_MSG_SEED && m->kind != RAFT_MSG_SYNC) || m->index > 0);
    case RAFT_MSG_VOTED:
        return true;
    }
}

/* Unpacks the table of entries. Returns 0 or -EBADMSG. */
static int entries_decode(const struct raft_msg *m, const uint8_t *p,
                          const uint8_t *payload, size_t payload_len,
                          struct raft_log_entry *entries)
{
    uint64_t term = m->index_term;
    size_t at = 0;

    for (unsigned i = 0; i < m->n; i++, p += RAFT_MSG_ROW_BYTES) {
        struct raft_log_entry *e = &entries[i];

        e->index = m->index + 1 + i;
        e->term = get_le64(p);
        e->len = get_le32(p + 8);
        e->kind = (enum raft_entry_kind)p[12];
        if (e->term == 0 || e->term < term || e->term > m->term ||
            !bytes_are_zero(p + 13, 3) || p[12] < RAFT_ENTRY_BATCH ||
            p[12] > RAFT_ENTRY_CONFIG || e->len == 0 || e->len > RAFT_ENTRY_BYTES_MAX ||
            e->len > payload_len - at)
            return -EBADMSG;
        e->data = payload + at;
        if (e->kind == RAFT_ENTRY_CONFIG &&
            raft_config_decode(e->data, e->len, NULL) != 0)
            return -EBADMSG;
        term = e->term;
        at += e->len;
    }
    return at == payload_len ? 0 : -EBADMSG;
}

/* ---- groups ---- */

enum { GROUP_SHIFT = 24, GROUP_BEGINNINGS_MAX = 255 };

static uint32_t group_beginning(uint32_t number)
{
    return number >> GROUP_SHIFT;
}

int raft_group_next(uint32_t number, uint32_t chance, uint32_t *next)
{
    uint32_t beginning = group_beginning(number) + 1;

    if (beginning > GROUP_BEGINNINGS_MAX)
        return -EOVERFLOW;
    *next = beginning << GROUP_SHIFT | (chance & ((UINT32_C(1) << GROUP_SHIFT) - 1));
    return 0;
}

int raft_group_check(const struct raft_msg_group *group,
                     const uint8_t cluster_id[RAFT_MSG_CLUSTER_ID_BYTES], uint32_t number)
{
    if (memcmp(cluster_id, group->cluster_id, RAFT_MSG_CLUSTER_ID_BYTES) != 0)
        return -ESTALE;
    if (group_beginning(number) < group_beginning(group->number))
        return -ROZO_EDEPOSED;
    return number == group->number ? 0 : -ESTALE;
}

int raft_msg_decode(const struct raft_msg_group *group, uint64_t to, const void *head,
                    size_t head_len, const void *payload, size_t payload_len,
                    struct raft_msg *msg,
                    struct raft_log_entry entries[RAFT_MSG_ENTRIES_MAX])
{
    const uint8_t *p = head;
    int rc;

    if (head_len < 1)
        return -EBADMSG;
    if (p[0] != RAFT_MSG_VERSION)
        return -ROZO_EUNKNOWN_FORMAT;
    if (head_len < RAFT_MSG_FIXED_BYTES || payload_len > RAFT_MSG_PAYLOAD_MAX)
        return -EBADMSG;
    fixed_get(p, msg);
    if (p[3] != 0 || get_le32(p + 100) != 0 || !msg_is_valid(msg) ||
        head_len != RAFT_MSG_FIXED_BYTES + (size_t)RAFT_MSG_ROW_BYTES * msg->n)
        return -EBADMSG;
    rc = raft_group_check(group, p + 8, get_le32(p + 4));
    if (rc != 0)
        return rc;
    if (msg->to != to)
        return -ESTALE;
    return entries_decode(msg, p + RAFT_MSG_FIXED_BYTES, payload, payload_len, entries);
}
