/*
 * daemon_config.c - the keys of exportd's config file, and what their values may be.
 *
 * Keeps:  settings that were loaded can be used as they are.
 */
#include "exportd/datadir/daemon_config.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/rpc/rpc_tcp.h"

enum {
    LEASE_MIN_S = 3,
    LEASE_MAX_S = 3600,
    EVICT_MIN_S = 3,
    EVICT_MAX_S = 3600,
    STRAYS_MAX_S = 31 * 86400,
    TOKENS_MIN = 64,
    SESSION_TOKENS_MAX = 524288,
    TOKENS_MAX = 64 << 20,
    /* a log has 32 segments of 64 MiB, of which some must be free */
    LOG_KEEP_MIN_MB = 64,
    LOG_KEEP_MAX_MB = 1536,
    SEED_RATE_MAX_MB = 100000,
};

static const cyaml_schema_value_t text_schema = {
    CYAML_VALUE_STRING(CYAML_FLAG_POINTER, char, 1, 4096),
};
static const cyaml_schema_field_t cluster_fields[] = {
    CYAML_FIELD_STRING_PTR("node_key", CYAML_FLAG_POINTER, struct exportd_cluster_section,
                           node_key, 1, 4096),
    CYAML_FIELD_STRING_PTR("client_key", CYAML_FLAG_POINTER,
                           struct exportd_cluster_section, client_key, 1, 4096),
    CYAML_FIELD_END,
};
static const cyaml_schema_field_t exportd_fields[] = {
    CYAML_FIELD_STRING_PTR("data", CYAML_FLAG_POINTER, struct exportd_section, data, 1,
                           4096),
    CYAML_FIELD_SEQUENCE("listen", CYAML_FLAG_POINTER, struct exportd_section, listen,
                         &text_schema, 1, RPC_ADDR_MAX),
    CYAML_FIELD_UINT("lease_s", CYAML_FLAG_OPTIONAL, struct exportd_section, lease_s),
    CYAML_FIELD_UINT("evict_s", CYAML_FLAG_OPTIONAL, struct exportd_section, evict_s),
    CYAML_FIELD_UINT("session_tokens_max", CYAML_FLAG_OPTIONAL, struct exportd_section,
                     session_tokens_max),
    CYAML_FIELD_UINT("tokens_max", CYAML_FLAG_OPTIONAL, struct exportd_section,
                     tokens_max),
    CYAML_FIELD_UINT("strays_s", CYAML_FLAG_OPTIONAL, struct exportd_section, strays_s),
    CYAML_FIELD_END,
};
static const cyaml_schema_field_t member_fields[] = {
    CYAML_FIELD_UINT("id", CYAML_FLAG_DEFAULT, struct quorum_member_section, id),
    CYAML_FIELD_STRING_PTR("address", CYAML_FLAG_POINTER, struct quorum_member_section,
                           address, 1, 4096),
    CYAML_FIELD_BOOL("witness", CYAML_FLAG_OPTIONAL, struct quorum_member_section,
                     witness),
    CYAML_FIELD_END,
};
static const cyaml_schema_value_t member_schema = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_DEFAULT, struct quorum_member_section, member_fields),
};
static const cyaml_strval_t acknowledge_values[] = { { "disk", ACKNOWLEDGE_DISK },
                                                     { "memory", ACKNOWLEDGE_MEMORY } };
static const cyaml_schema_field_t quorum_fields[] = {
    CYAML_FIELD_UINT("id", CYAML_FLAG_OPTIONAL, struct quorum_section, id),
    CYAML_FIELD_SEQUENCE("listen", CYAML_FLAG_POINTER, struct quorum_section, listen,
                         &text_schema, 1, RPC_ADDR_MAX),
    CYAML_FIELD_SEQUENCE("members", CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL,
                         struct quorum_section, members, &member_schema, 1,
                         RAFT_SERVERS_MAX),
    CYAML_FIELD_UINT("log_keep_mb", CYAML_FLAG_OPTIONAL, struct quorum_section,
                     log_keep_mb),
    CYAML_FIELD_UINT("seed_rate_mb", CYAML_FLAG_OPTIONAL, struct quorum_section,
                     seed_rate_mb),
    CYAML_FIELD_ENUM("acknowledge", CYAML_FLAG_OPTIONAL | CYAML_FLAG_STRICT,
                     struct quorum_section, acknowledge, acknowledge_values, 2),
    CYAML_FIELD_BOOL("witness", CYAML_FLAG_OPTIONAL, struct quorum_section, witness),
    CYAML_FIELD_END,
};
static const cyaml_schema_field_t config_fields[] = {
    CYAML_FIELD_MAPPING("cluster", CYAML_FLAG_DEFAULT, struct exportd_settings, cluster,
                        cluster_fields),
    CYAML_FIELD_MAPPING("exportd", CYAML_FLAG_DEFAULT, struct exportd_settings, exportd,
                        exportd_fields),
    CYAML_FIELD_MAPPING_PTR("quorum", CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL,
                            struct exportd_settings, quorum, quorum_fields),
    CYAML_FIELD_MAPPING("log", CYAML_FLAG_OPTIONAL, struct exportd_settings, log,
                        config_log_fields),
    CYAML_FIELD_END,
};
static const cyaml_schema_value_t config_schema = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_POINTER, struct exportd_settings, config_fields),
};

static bool is_default_or(unsigned value, unsigned min, unsigned max)
{
    return value == 0 || (value >= min && value <= max);
}

bool quorum_section_is_wildcard(const char *address)
{
    static const char *const hosts[] = { "*:", "0.0.0.0:", "[::]:", ":::" };

    for (size_t i = 0; i < sizeof(hosts) / sizeof(hosts[0]); i++) {
        size_t len = strlen(hosts[i]);

        if (strncmp(address, hosts[i], len) == 0 && strchr(address + len, ':') == NULL)
            return true;
    }
    return false;
}

bool quorum_section_is_address(const char *text)
{
    const char *colon = strrchr(text, ':');
    char *end;
    unsigned long port = colon == NULL ? 0 : strtoul(colon + 1, &end, 10);

    return colon > text && port > 0 && port <= UINT16_MAX && *end == '\0' &&
           isdigit((unsigned char)colon[1]) && strlen(text) < RPC_ADDR_TEXT_MAX &&
           strpbrk(text, " ,\t") == NULL && !quorum_section_is_wildcard(text);
}

static int member_check(const struct quorum_section *q, unsigned at, const char *path,
                        struct err *err)
{
    const struct quorum_member_section *m = &q->members[at];

    if (m->id == 0)
        return err_set(err, -EINVAL, "%s: quorum: members: an id is 1 or more", path);
    if (!quorum_section_is_address(m->address))
        return err_set(err, -EINVAL,
                       "%s: quorum: members: \"%s\" is no HOST:PORT by which other "
                       "members reach member %u",
                       path, m->address, m->id);
    for (unsigned i = 0; i < at; i++) {
        if (q->members[i].id == m->id)
            return err_set(err, -EINVAL,
                           "%s: quorum: members: two have the id %u: give each its own",
                           path, m->id);
        if (strcmp(q->members[i].address, m->address) == 0)
            return err_set(err, -EINVAL,
                           "%s: quorum: members: %u and %u have the same address %s",
                           path, q->members[i].id, m->id, m->address);
    }
    return 0;
}

/* Checks which of the first members are witnesses. */
static int witnesses_check(const struct quorum_section *q, const char *path,
                           struct err *err)
{
    unsigned n = 0;
    bool is_own = false;

    for (unsigned i = 0; i < q->members_count; i++) {
        n += q->members[i].witness;
        is_own = is_own || (q->members[i].id == q->id && q->members[i].witness);
    }
    if (2 * n >= q->members_count)
        return err_set(err, -EINVAL,
                       "%s: quorum: members: %u of %u are witnesses: more than half must "
                       "keep metadata",
                       path, n, q->members_count);
    if (is_own != q->witness)
        return err_set(err, -EINVAL,
                       "%s: quorum: `witness: true` belongs into the section and to "
                       "member %u in its list of members, or to neither",
                       path, q->id);
    return 0;
}

/* Checks what is for a quorum that begins: its members, and which one this is. */
static int members_check(const struct quorum_section *q, const char *path,
                         struct err *err)
{
    bool is_listed = false;
    int rc = 0;

    if (q->members_count == 0 && q->id == 0)
        return 0;
    for (unsigned i = 0; i < q->members_count && rc == 0; i++) {
        rc = member_check(q, i, path, err);
        is_listed = is_listed || q->members[i].id == q->id;
    }
    if (rc == 0 && (q->members_count == 0 || q->id == 0))
        return err_set(err, -EINVAL,
                       "%s: quorum: `id` and `members` are for exportd --begin-quorum "
                       "and come together, or not at all",
                       path);
    if (rc == 0 && q->members_count % 2 == 0)
        return err_set(err, -EINVAL,
                       "%s: quorum: members: %u survive no more losses than %u: name an "
                       "odd number, 3 or 5",
                       path, q->members_count, q->members_count - 1);
    if (rc == 0 && !is_listed)
        return err_set(err, -EINVAL,
                       "%s: quorum: id: %u is none of the members: write the id under "
                       "which this exportd is listed there",
                       path, q->id);
    if (rc == 0)
        rc = witnesses_check(q, path, err);
    return rc;
}

static int quorum_check(const struct quorum_section *q, const char *path, struct err *err)
{
    if (!is_default_or(q->log_keep_mb, LOG_KEEP_MIN_MB, LOG_KEEP_MAX_MB))
        return err_set(err, -EINVAL, "%s: quorum: log_keep_mb: %d to %d", path,
                       LOG_KEEP_MIN_MB, LOG_KEEP_MAX_MB);
    if (q->seed_rate_mb > SEED_RATE_MAX_MB)
        return err_set(err, -EINVAL, "%s: quorum: seed_rate_mb: 1 to %d", path,
                       SEED_RATE_MAX_MB);
    return members_check(q, path, err);
}

static int settings_check(const struct exportd_settings *c, const char *path,
                          struct err *err)
{
    unsigned lease_s = c->exportd.lease_s, evict_s = c->exportd.evict_s;

    if (lease_s != 0 && (lease_s < LEASE_MIN_S || lease_s > LEASE_MAX_S))
        return err_set(err, -EINVAL, "%s: exportd: lease_s: %d to %d", path, LEASE_MIN_S,
                       LEASE_MAX_S);
    if (evict_s != 0 && (evict_s < EVICT_MIN_S || evict_s > EVICT_MAX_S))
        return err_set(err, -EINVAL, "%s: exportd: evict_s: %d to %d", path, EVICT_MIN_S,
                       EVICT_MAX_S);
    if (!is_default_or(c->exportd.session_tokens_max, TOKENS_MIN, SESSION_TOKENS_MAX))
        return err_set(err, -EINVAL, "%s: exportd: session_tokens_max: %d to %d", path,
                       TOKENS_MIN, SESSION_TOKENS_MAX);
    if (!is_default_or(c->exportd.tokens_max, TOKENS_MIN, TOKENS_MAX))
        return err_set(err, -EINVAL, "%s: exportd: tokens_max: %d to %d", path,
                       TOKENS_MIN, TOKENS_MAX);
    if (c->exportd.strays_s > STRAYS_MAX_S)
        return err_set(err, -EINVAL, "%s: exportd: strays_s: 1 to %d", path,
                       STRAYS_MAX_S);
    if (evict_s != 0 && evict_s < lease_s)
        log_warn(
            "%s: exportd: evict_s is less than lease_s: tokens and locks of a mount "
            "that is evicted after %u s go to others only when its lease of %u s is over",
            path, evict_s, lease_s);
    return c->quorum == NULL ? 0 : quorum_check(c->quorum, path, err);
}

int exportd_settings_load(const char *path, struct exportd_settings **out,
                          struct err *err)
{
    struct exportd_settings *c;
    int rc = config_load(path, &config_schema, (void **)&c, err);

    if (rc != 0)
        return rc;
    rc = settings_check(c, path, err);
    if (rc == 0)
        *out = c;
    else
        exportd_settings_free(c);
    return rc;
}

void exportd_settings_free(struct exportd_settings *c)
{
    config_free(&config_schema, c);
}

void quorum_section_members(const struct quorum_section *q, struct raft_config *out)
{
    memset(out, 0, sizeof(*out));
    for (unsigned i = 0; i < q->members_count; i++) {
        int rc = raft_config_set(out, q->members[i].id, RAFT_ROLE_VOTER,
                                 q->members[i].address);

        assert(rc == 0); /* members_check() */
        if (q->members[i].witness)
            raft_config_set_witness(out, q->members[i].id);
    }
}
