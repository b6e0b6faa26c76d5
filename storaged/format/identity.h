/*
 * identity.h - who a storage is: its file DATA/storage.id, and who it was admitted as.
 */
#ifndef ROZO_STORAGED_FORMAT_IDENTITY_H
#define ROZO_STORAGED_FORMAT_IDENTITY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

enum {
    IDENTITY_FORMAT = 1,
    IDENTITY_ID_BYTES = 16, /* of a cluster id, of an incarnation */
    IDENTITY_TEXT_MAX = 512,
};

/*
 * Shared by all loops of a daemon. incarnation never changes; storage_id becomes not 0 once
 * (release), after cluster_id was written; who sees it not 0 (acquire) may read cluster_id.
 */
struct identity {
    uint8_t incarnation[IDENTITY_ID_BYTES];
    uint8_t cluster_id[IDENTITY_ID_BYTES];
    _Atomic uint32_t storage_id;  /* 0: not admitted */
    _Atomic uint64_t map_version; /* of the map of the cluster that is kept; 0: none */
    _Atomic bool
        rebuild; /* in place of a lost one, and not all it should have is here yet */
    /* How often a journal was found to have lost something that nobody can name; and up to which of these all
     * that lies here was compared with the other storages since. */
    _Atomic uint32_t losses, losses_healed;
};

/** 0: not admitted. */
static inline uint32_t identity_storage_id(const struct identity *id)
{
    return atomic_load_explicit(&id->storage_id, memory_order_acquire);
}

/** True: projection files made now are partial, since others may have been lost with what was in them. */
static inline bool identity_is_rebuilt(const struct identity *id)
{
    return atomic_load_explicit(&id->rebuild, memory_order_acquire);
}

/** True: what lies here may be older than what was acknowledged. */
static inline bool identity_is_in_doubt(const struct identity *id)
{
    return atomic_load_explicit(&id->losses, memory_order_acquire) !=
           atomic_load_explicit(&id->losses_healed, memory_order_acquire);
}

/** The text of the file; returns its length. storage_id 0 leaves the cluster out. */
size_t identity_print(char text[IDENTITY_TEXT_MAX],
                      const uint8_t incarnation[IDENTITY_ID_BYTES],
                      const uint8_t cluster_id[IDENTITY_ID_BYTES], uint32_t storage_id,
                      bool rebuild);
/**
 * Read such a text. 0, -EPROTONOSUPPORT (a format this build does not know) or -EUCLEAN, with
 * words in err. *out is untouched on failure.
 */
int identity_parse(const char *text, size_t len, struct identity *out, struct err *err);

#endif
