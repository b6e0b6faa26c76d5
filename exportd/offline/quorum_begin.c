/*
 * quorum_begin.c - the data directory of a first member.
 *
 * In:     exportd --begin-quorum.
 * Out:    DATA/kv, DATA/quorum/identity, DATA/format, in this order; connections to the
 *         other members, to see whether one runs.
 * Keeps:  a directory with a format is whole. What the operator names twice makes the
 *         same, or nothing.
 */
#include "exportd/offline/quorum_begin.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/log.h"
#include "exportd/datadir/datadir.h"
#include "exportd/datadir/first_member.h"
#include "exportd/datadir/quorum_identity.h"
#include "exportd/offline/offline.h"

enum { BIRTH_BYTES = 16 };

static int birth_parse(const char *text, uint8_t out[BIRTH_BYTES], struct err *err)
{
    char hex[2 * BIRTH_BYTES + 1] = "";
    size_t n = 0;

    for (const char *p = text; *p != '\0'; p++) {
        if (*p == '-')
            continue;
        if (!isxdigit((unsigned char)*p) || n == 2 * BIRTH_BYTES)
            n = 2 * BIRTH_BYTES + 1; /* wrong */
        if (n > 2 * BIRTH_BYTES)
            break;
        hex[n++] = *p;
    }
    if (n != 2 * BIRTH_BYTES)
        return err_set(err, -EINVAL,
                       "--begin-quorum: \"%s\" is not 32 hexadecimal digits, as "
                       "/proc/sys/kernel/random/uuid gives them",
                       text);
    for (n = 0; n < BIRTH_BYTES; n++) {
        char byte[3] = { hex[2 * n], hex[2 * n + 1], '\0' };

        out[n] = (uint8_t)strtoul(byte, NULL, 16);
    }
    return 0;
}

/* ---- does another member run? ---- */

static int others_check(struct offline *o, struct err *err)
{
    const struct quorum_section *q = o->config->quorum;

    for (unsigned i = 0; i < q->members_count; i++) {
        const struct quorum_member_section *m = &q->members[i];

        if (m->id != q->id && offline_member_answers(o, m->address))
            return err_set(err, -EBUSY,
                           "member %u at %s runs: all first members begin before one of "
                           "them is started. If this one was a member and has lost its "
                           "data, it must not begin again: it would forget how it voted",
                           m->id, m->address);
    }
    return 0;
}

/* ---- the directory ---- */

static int member_make(struct offline *o, const struct raft_config *members,
                       const struct quorum_identity *id, struct err *err)
{
    struct first_member m = { .loop = &o->loop,
                              .data = o->config->exportd.data,
                              .members = members,
                              .identity = *id };
    struct kv_leveldb *kv;
    int rc = offline_store_open(o, "kv", true, &kv, err);

    if (rc != 0)
        return rc;
    m.kv = kv_leveldb_kv(kv);
    rc = first_member_make(&m, err);
    kv_leveldb_close(kv);
    return rc;
}

/* Compares with what an earlier run has made. */
static int identity_compare(const char *data, const struct quorum_identity *wished,
                            struct err *err)
{
    struct quorum_identity id = { .member = 0 };
    int rc = quorum_identity_read(data, &id, err);

    if (rc == -ENOENT)
        return err_set(
            err, rc, "%s/quorum/identity is missing: its disk may not be mounted", data);
    if (rc == 0 &&
        (id.member != wished->member ||
         memcmp(id.cluster_id, wished->cluster_id, sizeof(id.cluster_id)) != 0))
        return err_set(err, -EEXIST,
                       "%s belongs to member %u of a quorum that began with another "
                       "number or list of members: give this one a new data directory",
                       data, id.member);
    return rc;
}

static int folder_make_member(struct offline *o, const uint8_t birth[BIRTH_BYTES],
                              struct err *err)
{
    const char *data = o->config->exportd.data;
    struct quorum_identity id;
    struct raft_config members;
    int lock_fd = -1, rc;
    bool is_new;

    quorum_section_members(o->config->quorum, &members);
    quorum_identity_make(&id, birth, &members, o->config->quorum->id);
    rc = datadir_open(data, true, &lock_fd, &is_new, err);
    if (rc != 0)
        return rc;
    if (!is_new) {
        rc = identity_compare(data, &id, err);
    } else {
        rc = others_check(o, err);
        if (rc == 0)
            rc = member_make(o, &members, &id, err);
    }
    close(lock_fd);
    if (rc == 0)
        log_info("%s is that of member %u of a new quorum; start it when all first "
                 "members have begun",
                 data, id.member);
    return rc;
}

int quorum_begin(const struct exportd_settings *c, const char *birth, struct err *err)
{
    uint8_t bytes[BIRTH_BYTES];
    struct offline o;
    int rc;

    if (c->quorum == NULL || c->quorum->members_count == 0)
        return err_set(err, -EINVAL,
                       "--begin-quorum: the config has no section `quorum` that lists "
                       "the members");
    rc = birth_parse(birth, bytes, err);
    if (rc == 0)
        rc = offline_open(&o, c, err);
    if (rc != 0)
        return rc;
    rc = folder_make_member(&o, bytes, err);
    offline_close(&o);
    return rc;
}
