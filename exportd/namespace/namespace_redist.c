/*
 * namespace_redist.c - the records of files whose distribution changes.
 *
 * In:     redistribute.c; namespace.c, when such a file is removed. Bytes from the kv are
 *         checked.
 * Out:    KEY_REDIST records, and the distribution in the inode.
 * Keeps:  INODE_MOVED marks a file with a record, so that no other file is looked up. A
 *         build that knows neither refuses such an inode.
 */
#include <assert.h>
#include <errno.h>

#include "common/base/bytes.h"
#include "common/base/log.h"
#include "exportd/namespace/namespace_int.h"

enum {
    REDIST_FORMAT = 1,
    /* format, phase, n storages, zero, generation; then the storages */
    REDIST_HEAD_BYTES = 8,
    REDIST_BYTES_MAX = REDIST_HEAD_BYTES + 4 * DIST_MAX,
};

static int redist_decode(struct namespace_redist *out, const uint8_t *buf, size_t len)
{
    if (len < REDIST_HEAD_BYTES || buf[0] != REDIST_FORMAT || buf[1] < REDIST_PREPARED ||
        buf[1] > REDIST_GIVEN_UP || buf[2] == 0 || buf[2] > DIST_MAX || buf[3] != 0 ||
        len != REDIST_HEAD_BYTES + 4 * (size_t)buf[2] || get_le32(buf + 4) == 0)
        return -EIO;
    *out = (struct namespace_redist){ .phase = (enum redist_phase)buf[1],
                                      .generation = get_le32(buf + 4),
                                      .n_storages = buf[2] };
    for (uint32_t i = 0; i < out->n_storages; i++)
        out->storages[i] = get_le32(buf + REDIST_HEAD_BYTES + 4 * i);
    return 0;
}

int namespace_redist_get(struct namespace *ns, uint64_t ino, struct namespace_redist *out)
{
    const uint8_t *val;
    struct key k;
    size_t len;
    int rc;

    key_ino(&k, KEY_REDIST, ns->export_id, ino);
    rc = store_get(ns->store, &k, &val, &len);
    return rc == 0 ? redist_decode(out, val, len) : rc;
}

static void inode_take(struct inode *in, const struct namespace_redist *r)
{
    assert(r->n_storages > 0 && r->n_storages <= DIST_MAX && r->generation > 0);
    in->dist_generation = r->generation;
    in->n_storages = r->n_storages;
    memcpy(in->storages, r->storages, r->n_storages * sizeof(in->storages[0]));
}

int namespace_redist_put(struct namespace *ns, uint64_t ino,
                         const struct namespace_redist *r)
{
    uint8_t buf[REDIST_BYTES_MAX] = { REDIST_FORMAT, (uint8_t)r->phase,
                                      (uint8_t)r->n_storages };
    struct inode in;
    struct key k;
    int rc = inode_get(ns, ino, &in);

    if (rc == 0 && !inode_is_file(&in))
        rc = -EINVAL;
    if (rc != 0)
        return rc;
    assert(r->n_storages > 0 && r->n_storages <= DIST_MAX && r->generation > 0);
    put_le32(buf + 4, r->generation);
    for (uint32_t i = 0; i < r->n_storages; i++)
        put_le32(buf + REDIST_HEAD_BYTES + 4 * i, r->storages[i]);
    key_ino(&k, KEY_REDIST, ns->export_id, ino);
    store_put(ns->store, &k, buf, REDIST_HEAD_BYTES + 4 * (size_t)r->n_storages);
    if (r->phase == REDIST_DONE)
        inode_take(&in, r);
    else if ((in.flags & INODE_MOVED) != 0)
        return 0;
    in.flags |= INODE_MOVED;
    inode_put(ns, &in);
    return 0;
}

void namespace_redist_delete(struct namespace *ns, uint64_t ino)
{
    struct key k;

    key_ino(&k, KEY_REDIST, ns->export_id, ino);
    store_delete(ns->store, &k);
}

void redist_drop(struct namespace *ns, struct inode *in)
{
    struct namespace_redist r;

    if ((in->flags & INODE_MOVED) == 0 || namespace_redist_get(ns, in->ino, &r) != 0)
        return;
    inode_take(in, &r); /* the record has all storages of the inode except lost ones */
    namespace_redist_delete(ns, in->ino);
}

struct redist_scan {
    struct namespace *ns;
    namespace_redist_cb *fn;
    void *arg;
};

static int on_redist(void *arg, uint64_t ino, const uint8_t *val, size_t len)
{
    const struct redist_scan *s = arg;
    struct namespace_redist r;

    if (redist_decode(&r, val, len) != 0) {
        log_error("export %u: the record of how inode %llu is redistributed is corrupt",
                  s->ns->export_id, (unsigned long long)ino);
        return 0;
    }
    return s->fn(s->arg, ino, &r) ? 0 : SCAN_STOP;
}

int namespace_redists(struct namespace *ns, uint64_t *after, unsigned max,
                      namespace_redist_cb *fn, void *arg, bool *end)
{
    struct redist_scan s = { ns, fn, arg };

    return scan_inos(ns, KEY_REDIST, after, max, on_redist, &s, end);
}
