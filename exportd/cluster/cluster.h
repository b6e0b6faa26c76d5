/*
 * cluster.h - the map of the cluster: volumes, storages, exports.
 */
#ifndef ROZO_EXPORTD_CLUSTER_CLUSTER_H
#define ROZO_EXPORTD_CLUSTER_CLUSTER_H

#include "exportd/cluster/exportd_state.h"

/* Load the map from the store, or make one. Puts nothing. */
int cluster_load(struct exportd *x, struct err *err);
/** Everything is loaded: we have started once more. */
void cluster_begin(struct exportd *x);
/** x->stopping: nothing is put any more, and what was put is about to be synced. */
void cluster_end(struct exportd *x);
void cluster_free(struct exportd *x);

struct storage *storage_find(struct exportd *x, uint32_t id);
/** True if the storage with this id was declared lost. An unknown id is not. */
bool storage_is_lost(struct exportd *x, uint32_t id);
struct storage *storage_find_incarnation(struct exportd *x, const uint8_t *incarnation);
/** A new member, put into the store; its channel is opened and it is polled. NULL: no memory. */
struct storage *storage_add(struct exportd *x, const struct storage_facts *facts);
/** Changed facts, put into the store; a changed address opens a new channel. */
void storage_change(struct storage *s, const struct storage_facts *facts);
/** Open a channel to where it has moved, when nothing is out on the old one. */
void storage_follow(struct storage *s);
/** As far as its channel knows at this moment. */
bool storage_is_reachable(const struct storage *s);
/** Is no connection to it left, or was the last try refused? The poll says so only at its deadline. */
bool storage_is_cut_off(const struct storage *s);
/** Storages that share a file system share what is free: sets n_on_disk of all. */
void storages_count_disks(struct exportd *x);
/** An id that no storage has or will have but the one about to be admitted. Put into the store. */
uint32_t storage_new_id(struct exportd *x);
/** This id was found on a storage of ours: give it to nobody else. Put into the store. */
void storage_id_is_taken(struct exportd *x, uint32_t id);

struct volume *volume_find(struct exportd *x, uint32_t id);
struct volume *volume_find_name(struct exportd *x, const char *name);
/** "" is the only one; or, when there is none and make is set, a new one called default. */
int volume_choose(struct exportd *x, const char *name, bool make, struct volume **out,
                  char words[WORDS_MAX + 1]);
struct volume *volume_add(struct exportd *x, const char *name);
unsigned volume_n_storages(struct exportd *x, uint32_t id);
/** Storages of the volume that new files can have: those that were not given up. */
unsigned volume_n_candidates(const struct exportd *x, uint32_t id);

struct export *export_find(struct exportd *x, uint32_t id);
struct export *export_find_name(struct exportd *x, const char *name);
struct export *export_add(struct exportd *x, const struct export *facts);

/** The map as clients see it has changed. */
void map_changed(struct exportd *x);
/** Fill a message; strings are borrowed from s. addrs: room for ADDRS_MAX pointers. */
void storage_message(struct storage *s, Rozo__Storage *msg, char **addrs);
/* All storages as messages. Free with free(). */
struct storage_messages {
    size_t n;
    Rozo__Storage **list; /* in the same piece of memory as all below it */
};
int storage_messages_make(struct exportd *x, struct storage_messages **out);

#endif
