/*
 * cluster_record.c - records of the cluster and of its starts, as bytes.
 *
 * In:     structs, or values of the kv. Out: the other.
 * Ask:    the order of the fields. Users' disks carry them.
 */
#include "exportd/store/cluster_record.h"

#include <stdlib.h>

#include "exportd/store/key.h"

void cluster_record_write(struct kv_record_out *f, const struct cluster_record *r)
{
    kv_record_begin(f);
    kv_record_put_bytes(f, r->cluster_id, sizeof(r->cluster_id));
    kv_record_put_u32(f, r->next_storage);
    kv_record_put_u32(f, r->next_volume);
    kv_record_put_u32(f, r->next_export);
    kv_record_put_u32(f, r->n_starts);
    if (r->returns != 0) /* older records have no such number */
        kv_record_put_u32(f, r->returns);
}

bool cluster_record_read(struct cluster_record *r, const void *val, size_t len)
{
    struct kv_record_in f;

    kv_record_read(&f, val, len);
    kv_record_get_bytes(&f, r->cluster_id, sizeof(r->cluster_id));
    r->next_storage = kv_record_get_u32(&f);
    r->next_volume = kv_record_get_u32(&f);
    r->next_export = kv_record_get_u32(&f);
    r->n_starts = kv_record_get_u32(&f);
    r->returns = f.bad || kv_record_end(&f) ? 0 : kv_record_get_u32(&f);
    return kv_record_end(&f);
}

void boot_record_write(struct kv_record_out *f, const struct boot_record *r)
{
    kv_record_begin(f);
    kv_record_put_u64(f, r->boot);
    kv_record_put_u32(f, r->stopped_well);
    kv_record_put_u32(f, r->last_loss);
}

bool boot_record_read(struct boot_record *r, const void *val, size_t len)
{
    struct kv_record_in f;

    kv_record_read(&f, val, len);
    r->boot = kv_record_get_u64(&f);
    r->stopped_well = kv_record_get_u32(&f) != 0;
    r->last_loss = kv_record_get_u32(&f);
    return kv_record_end(&f);
}

static int cluster_raise(struct kv *kv, uint32_t chance, struct cluster_return *out,
                         struct err *err)
{
    static const uint8_t key[1] = { KEY_CLUSTER };
    void *val;
    size_t len;
    bool is_valid;
    int rc = kv_get(kv, key, sizeof(key), &val, &len);

    if (rc == -ENOENT)
        return err_set(err, rc, "there are no metadata of a cluster yet");
    if (rc != 0)
        return err_set(err, rc, "read the metadata store: %s", error_text(rc));
    is_valid = cluster_record_read(&out->cluster, val, len);
    free(val);
    if (!is_valid)
        return err_set(err, -ROZO_EDAMAGED, "the cluster's record is corrupt");
    if (out->cluster.n_starts > UINT32_MAX - 2 * CLUSTER_STARTS_SKIPPED ||
        out->cluster.returns == UINT32_MAX)
        return err_set(err, -EOVERFLOW, "no numbers are left for starts of exportd");
    out->cluster.n_starts += CLUSTER_STARTS_SKIPPED + chance % CLUSTER_STARTS_SKIPPED;
    out->cluster.returns++;
    cluster_record_write(&out->values[0], &out->cluster);
    out->items[0] =
        (struct kv_item){ key, sizeof(key), out->values[0].bytes, out->values[0].len };
    return 0;
}

static int loss_note(struct kv *kv, struct cluster_return *out, struct err *err)
{
    static const uint8_t key[1] = { KEY_BOOT };
    struct boot_record boot = { .last_loss = 0 };
    bool is_valid = true;
    void *val;
    size_t len;
    int rc = kv_get(kv, key, sizeof(key), &val, &len);

    if (rc == 0) {
        is_valid = boot_record_read(&boot, val, len);
        free(val);
    } else if (rc != -ENOENT) {
        return err_set(err, rc, "read the metadata store: %s", error_text(rc));
    }
    if (!is_valid)
        return err_set(err, -ROZO_EDAMAGED, "the boot record is corrupt");
    boot.boot = BOOT_OF_NO_MACHINE;
    boot.stopped_well = false;
    boot_record_write(&out->values[1], &boot);
    out->items[1] =
        (struct kv_item){ key, sizeof(key), out->values[1].bytes, out->values[1].len };
    return 0;
}

int cluster_return_make(struct kv *kv, uint32_t chance, struct cluster_return *out,
                        struct err *err)
{
    int rc = cluster_raise(kv, chance, out, err);

    return rc != 0 ? rc : loss_note(kv, out, err);
}
