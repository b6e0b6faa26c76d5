/*
 * healer.h - the healing half of a storage daemon: what others missed is noted, what we missed is
 * fetched, incomplete writes are settled, a lost disk is rebuilt, everything is looked at now and then.
 *
 * Serves ST_MAP, ST_MISSED, ST_MISSED_LIST, ST_MISSED_DONE, ST_CHECK, ST_HEALTH, ST_HEAL, ST_REPAIR
 * and ST_LIST; is a client (role NODE) of all storages, its own too. All repairing is done by repair.h.
 *
 *     healer_open(&config, &healer, &err);
 *     healer_start(healer);
 *     ... healer_handle(healer, call) ...
 *     healer_stop(healer, on_stopped, me);
 *     healer_close(healer);
 *
 * Core: one thread, that of the env, the disk, the kv and the channels. It has no sockets and no files of
 * its own, so that a simulator has one for each node.
 */
#ifndef ROZO_STORAGED_HEAL_HEALER_H
#define ROZO_STORAGED_HEAL_HEALER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/proto/rozo.pb-c.h"

#include "common/base/capability.h"
#include "common/base/err.h"
#include "common/env/env.h"
#include "common/env/kv.h"
#include "common/rpc/rpc.h"
#include "storaged/disk/disk.h"
#include "storaged/format/identity.h"
#include "storaged/object/revoked_sessions.h"
#include "storcli/blocks.h"

enum { HEAL_UNSETTLED_MAX = 64, HEAL_ADDRS_MAX = 16 };

/* How to reach storages, as a node. */
struct healer_peers {
    /** A channel to storage `id` of this incarnation (zeros: any) at these addresses; NULL when they
     * make no sense. */
    struct rpc_channel *(*open)(void *arg, uint32_t id,
                                const uint8_t incarnation[IDENTITY_ID_BYTES],
                                const char *const *addrs, unsigned n_addrs);
    /** Requests still on it end with an error, later. */
    void (*close)(void *arg, struct rpc_channel *ch);
    void *arg;
};

/* A file of which something waits in the journal without a commit (storage_next_unsettled()). */
struct heal_unsettled {
    struct storcli_target target;
    uint64_t first, end; /* blocks; end UINT64_MAX: to the end of everything */
    uint64_t age_ns;
};

/* A question to all loops of our own storage, which may live on other threads. */
struct heal_question {
    uint64_t older_than_ns; /* in: of unsettled */
    struct heal_unsettled unsettled[HEAL_UNSETTLED_MAX];
    unsigned n_unsettled;
    Rozo__StHealthResp health;                 /* the journal's part */
    void (*answered)(struct heal_question *q); /* on the healer's thread, later, once */
};

struct healer_config {
    struct env *env;           /* borrowed, as all the rest */
    struct disk *disk;         /* the data directory, for listing it and for storage.id */
    struct kv *kv;             /* ours alone; its syncs too */
    struct identity *identity; /* shared with the storage's loops */
    struct revoked_sessions *revoked; /* set from the map of the cluster */
    struct capability_key *key;       /* of this thread */
    struct healer_peers peers;
    /** Ask our own storage: files unsettled for that long, the journal's part of ST_HEALTH. */
    void (*ask_unsettled)(void *arg, struct heal_question *q);
    void (*ask_health)(void *arg, struct heal_question *q);
    void *arg;
    uint64_t boot;             /* of the machine */
    bool power_was_lost;       /* once, here: what was never synced may have gone */
    uint64_t rate_bytes;       /* of healing, per second; 0: no limit */
    uint64_t scrub_rate_bytes; /* of a scrub, beside that; 0: no limit */
    uint32_t scrub_days;  /* from the end of one to the beginning of the next; 0: never */
    uint32_t concurrency; /* repairs under way; 0: 4 */
    uint32_t settle_ms;   /* 0: 10000 */
    uint32_t return_ms;   /* how often peers are asked what we missed; 0: 10000 */
    uint64_t missed_ranges_max, missed_files_max; /* see hint_log.h */
};

struct healer;

/** Take up what lies in the kv. 0 or -errno with words in err. The config is copied. */
int healer_open(const struct healer_config *config, struct healer **out, struct err *err);
/** Our own storage answers now: begin. */
void healer_start(struct healer *h);
/**
 * A client gave our storage what `home` is to hold. When the client does not say so itself within some seconds, it is
 * noted that home missed it.
 */
void healer_handoff(struct healer *h, const struct storcli_target *target, uint32_t home,
                    uint64_t first, uint64_t end, uint64_t version);
/** Our own storage found these blocks damaged: they are looked at, whole, and repaired. end UINT64_MAX: all of the file. */
void healer_damaged(struct healer *h, const struct storcli_target *target, uint64_t first,
                    uint64_t end);
/** Is it one of ours? */
bool healer_serves(uint16_t op);
/** Any of those; takes the call. An rpc_handler_cb. */
void healer_handle(void *healer, struct rpc_call *call);
/**
 * Refuse with BUSY what comes from now on, let go of what is under way, answer what waits; then
 * done(arg), once, later. Channels are closed.
 */
void healer_stop(struct healer *h, void (*done)(void *arg), void *arg);
/** After that, or when it was never started. NULL is fine. */
void healer_close(struct healer *h);

#endif
