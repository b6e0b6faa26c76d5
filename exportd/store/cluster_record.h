/*
 * cluster_record.h - the records of the kv that say which cluster this is and how often
 * exportd was started: as bytes, and after the kv has gone back in time.
 *
 * Pure, but for reads of a kv. docs/FORMATS.md, "Metadata keys", has the bytes.
 */
#ifndef ROZO_EXPORTD_STORE_CLUSTER_RECORD_H
#define ROZO_EXPORTD_STORE_CLUSTER_RECORD_H

#include "common/base/err.h"
#include "common/env/kv.h"
#include "exportd/store/kv_record.h"

enum {
    CLUSTER_ID_BYTES = 16,
    /*
     * Starts that are skipped when a kv has gone back, at least: more than exportd can
     * have had since. As many again at most, by chance, so that a kv which goes back
     * twice to one state has other starts. Not more, because each start takes 2^14 of the
     * 2^32 epochs of a file.
     */
    CLUSTER_STARTS_SKIPPED = 1 << 12,
};

/* Value of KEY_CLUSTER. Plain data. */
struct cluster_record {
    uint8_t cluster_id[CLUSTER_ID_BYTES];
    uint32_t next_storage, next_volume, next_export;
    uint32_t n_starts;
    uint32_t returns; /* how often the kv has gone back to an earlier state */
};
void cluster_record_write(struct kv_record_out *f, const struct cluster_record *r);
/** Returns false if the bytes are not valid. */
bool cluster_record_read(struct cluster_record *r, const void *val, size_t len);

/* Boot of a kv that has gone back to an earlier state. */
#define BOOT_OF_NO_MACHINE UINT64_MAX

/* Value of KEY_BOOT. Plain data. */
struct boot_record {
    uint64_t boot; /* number of the machine's boot when exportd last ran */
    bool stopped_well;
    uint32_t last_loss; /* number of the last start after a loss of power; 0: none */
};
void boot_record_write(struct kv_record_out *f, const struct boot_record *r);
/** Returns false if the bytes are not valid. */
bool boot_record_read(struct boot_record *r, const void *val, size_t len);

/* Changes of a kv that has lost its newest changes. */
struct cluster_return {
    struct cluster_record cluster;
    struct kv_record_out values[2];
    struct kv_item items[2]; /* point into values */
};
/**
 * Makes the changes by which a kv that lacks changes which were acknowledged can be used:
 * its next start has a higher number than any that storages know, counts as one after a
 * loss of power, and storages prefer it to those of exportds that have not gone back.
 *
 * @param chance random bits.
 * @param out    must stay where it is while its items are used.
 * @return 0; -ENOENT: it holds no cluster; or -errno, with a text.
 */
int cluster_return_make(struct kv *kv, uint32_t chance, struct cluster_return *out,
                        struct err *err);

#endif
