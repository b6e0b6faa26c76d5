/*
 * cluster.h - the map of the cluster: volumes, storages, exports.
 */
#ifndef ROZO_EXPORTD_CLUSTER_CLUSTER_H
#define ROZO_EXPORTD_CLUSTER_CLUSTER_H

#include "exportd/cluster/exportd_state.h"

/* Record while it is loaded; borrowed. */
struct loaded_record {
    const uint8_t *key, *val;
    size_t key_len, len; /* key_len: 5 or more */
};
/** Takes a record. Returns 0, -EINVAL (it is corrupt) or another -errno. */
typedef int load_record_fn(struct exportd *x, const struct loaded_record *r);
/**
 * Loads all records of a kind, whose keys begin with a number. what: for messages, with
 * the number behind it.
 */
int cluster_load_kind(struct exportd *x, enum key_kind kind, load_record_fn *load,
                      const char *what, struct err *err);
/** Loads the map from the store, or makes one. Puts nothing. */
int cluster_load(struct exportd *x, struct err *err);
/** Begins this start of exportd after everything was loaded: puts its number. */
void cluster_begin(struct exportd *x);
/**
 * Notes an orderly stop. Called when x->stopping is set and the last change was put; a
 * sync must follow.
 */
void cluster_end(struct exportd *x);
void cluster_free(struct exportd *x);
/** Returns the number of the last start after a loss of power; 0: none. */
uint32_t cluster_losses(const struct exportd *x);
/** Returns the number of starts; that of this one, from cluster_begin() on. */
uint32_t cluster_n_starts(const struct exportd *x);
/** Returns how often the metadata have gone back to an earlier state. */
uint32_t cluster_returns(const struct exportd *x);
/**
 * Returns one number of a start, which is higher than that of any start before it, also
 * if the metadata went back to an earlier state in between.
 */
uint64_t cluster_start_number(uint32_t returns, uint32_t start);

/**
 * Returns the number of this start at storages, which requests name: they refuse those of
 * a lower one. It is above cluster_n_starts() if exportd was restored from a backup.
 */
uint64_t cluster_start(const struct exportd *x);
/** Returns what requests to a storage name; StInfoResp.knows_returns. */
uint64_t cluster_start_at(const struct exportd *x, bool knows_returns);
/** Returns the number of the start of a map with this version. */
uint64_t cluster_map_start(uint64_t version);
/** Sends a request to a storage in the name of this start. n_out counts it. */
void storage_send(struct cluster_storage *s, struct rpc_request *rq);

struct cluster_storage *storage_find(struct exportd *x, uint32_t id);
/**
 * Returns true if the storage with this id was declared lost. False for an unknown id.
 */
bool storage_is_lost(struct exportd *x, uint32_t id);
struct cluster_storage *storage_find_incarnation(struct exportd *x,
                                                 const uint8_t *incarnation);
/**
 * Adds a storage: puts it into the store, opens a channel and polls it. Returns NULL
 * without memory.
 */
struct cluster_storage *storage_add(struct exportd *x, const struct storage_facts *facts);
/**
 * Changes the facts of a storage and puts them into the store. A changed address opens a
 * new channel.
 */
void storage_change(struct cluster_storage *s, const struct storage_facts *facts);
/**
 * Opens a channel to the new addresses of a storage if nothing is outstanding on the old
 * one.
 */
void storage_follow(struct cluster_storage *s);
/** Returns true if the storage's channel is up at this moment. */
bool storage_is_reachable(const struct cluster_storage *s);
/**
 * Returns true if the storage's channel is up and it has a map of this start: it accepts
 * requests of this start from then on. False if this exportd was replaced.
 */
bool storage_is_askable(const struct cluster_storage *s);
/**
 * Returns true if no connection to the storage is left, or the last attempt was refused.
 * The poll would report that only at its deadline.
 */
bool storage_is_cut_off(const struct cluster_storage *s);
/** Sets n_on_disk of all storages: storages on one file system share its free space. */
void storages_count_disks(struct exportd *x);
/**
 * Chooses an id that no storage ever had, for one to be admitted, and puts it into the
 * store.
 */
uint32_t storage_new_id(struct exportd *x);
/**
 * Notes that an admitted storage carries this id, so that it is given to no other. Puts
 * it into the store.
 */
void storage_id_is_taken(struct exportd *x, uint32_t id);

struct volume *volume_find(struct exportd *x, uint32_t id);
struct volume *volume_find_name(struct exportd *x, const char *name);
/**
 * Finds a volume. "" means the only one; if there is none and make is set, a new one
 * named "default".
 */
int volume_choose(struct exportd *x, const char *name, bool make, struct volume **out,
                  char message[MESSAGE_MAX + 1]);
struct volume *volume_add(struct exportd *x, const char *name);
unsigned volume_n_storages(struct exportd *x, uint32_t id);
/**
 * Returns the number of storages of the volume that are not lost: those that new files
 * can have.
 */
unsigned volume_n_candidates(const struct exportd *x, uint32_t id);

struct export *export_find(struct exportd *x, uint32_t id);
struct export *export_find_name(struct exportd *x, const char *name);
struct export *export_add(struct exportd *x, const struct export *facts);

/** Records a change of the map that clients see. */
void map_changed(struct exportd *x);
/** Continues as a later start than that of this map. */
void map_version_raise(struct exportd *x, uint64_t version, uint32_t returns);
/** Fills a message. Strings are borrowed from s. addrs: room for ADDRS_MAX pointers. */
void storage_message(struct cluster_storage *s, Rozo__Storage *msg, char **addrs);
/* Messages of all storages. Free with free(). */
struct storage_messages {
    size_t n;
    Rozo__Storage **list; /* in one piece of memory with everything it points at */
};
int storage_messages_make(struct exportd *x, struct storage_messages **out);

#endif
