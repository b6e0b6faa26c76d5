/*
 * identity.h - the identity of a storage: the file DATA/storage.id, and its place in a
 * cluster.
 */
#ifndef ROZO_STORAGED_FORMAT_IDENTITY_H
#define ROZO_STORAGED_FORMAT_IDENTITY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

#define IDENTITY_FILE "storage.id"

enum {
    IDENTITY_FORMAT = 1,
    IDENTITY_ID_BYTES = 16, /* bytes of a cluster id and of an incarnation */
    IDENTITY_TEXT_MAX = 512,
};

/*
 * One per daemon, shared by its loops. incarnation never changes. storage_id is set once
 * (release) after cluster_id was written; a loop that reads it not 0 (acquire) may read
 * cluster_id.
 */
struct identity {
    uint8_t incarnation[IDENTITY_ID_BYTES];
    uint8_t cluster_id[IDENTITY_ID_BYTES];
    _Atomic uint32_t storage_id;  /* 0: not admitted to a cluster */
    _Atomic uint64_t map_version; /* version of the cluster map kept here; 0: none */
    _Atomic uint64_t map_start;   /* identity_start() of that map */
    /* the storage takes the place of a lost one and is not complete yet */
    _Atomic bool rebuild;
    /*
     * losses: how often a journal lost entries of unknown contents. losses_healed: the
     * value of losses up to which all files here were compared with the other storages
     * since.
     */
    _Atomic uint32_t losses, losses_healed;
};

/** Returns the id in the cluster, or 0 if the storage is not admitted. */
static inline uint32_t identity_storage_id(const struct identity *id)
{
    return atomic_load_explicit(&id->storage_id, memory_order_acquire);
}

/**
 * True while new projection files are partial: earlier ones may have been lost with their
 * contents.
 */
static inline bool identity_is_rebuilt(const struct identity *id)
{
    return atomic_load_explicit(&id->rebuild, memory_order_acquire);
}

/**
 * Checks the number of exportd's start that a request names, as identity_start() makes
 * it; 0: it names none. The known one is that of the cluster map on stable storage here.
 * Before an admission all are accepted. Returns 0; -ROZO_EDEPOSED: a later start is
 * known; -EBUSY: this one is not known yet.
 */
int identity_check_start(const struct identity *id, uint64_t start);
/** Returns the start of the exportd that made the map of this version. */
static inline uint64_t map_version_start(uint64_t version)
{
    return version >> 32;
}

/** Returns one number of the start that made a map: StMapReq.returns counts more. */
static inline uint64_t identity_start(uint64_t version, uint32_t returns)
{
    return (uint64_t)returns << 32 | map_version_start(version);
}

/** True if the data here may be older than what was acknowledged. */
static inline bool identity_is_in_doubt(const struct identity *id)
{
    return atomic_load_explicit(&id->losses, memory_order_acquire) !=
           atomic_load_explicit(&id->losses_healed, memory_order_acquire);
}

/**
 * Prints the text of the file. Returns its length. With storage_id 0 the cluster is left
 * out.
 */
size_t identity_print(char text[IDENTITY_TEXT_MAX],
                      const uint8_t incarnation[IDENTITY_ID_BYTES],
                      const uint8_t cluster_id[IDENTITY_ID_BYTES], uint32_t storage_id,
                      bool rebuild);
/**
 * Parses the text of the file. Returns 0, -ROZO_EUNKNOWN_FORMAT (unknown format) or
 * -ROZO_EDAMAGED (corrupt) with a message in err. *out is untouched on failure.
 */
int identity_parse(const char *text, size_t len, struct identity *out, struct err *err);

#endif
