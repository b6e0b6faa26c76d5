/*
 * storage_poll.h - state of each storage, polled regularly.
 */
#ifndef ROZO_EXPORTD_CLUSTER_STORAGE_POLL_H
#define ROZO_EXPORTD_CLUSTER_STORAGE_POLL_H

#include "exportd/cluster/exportd_state.h"

void storage_poll(struct cluster_storage *s);
/** Cancels the poll under way. */
void storage_poll_stop(struct cluster_storage *s);
/**
 * Sets the addresses at which others reach a storage: those it reports, unless they are
 * wildcards.
 */
void info_addresses(const Rozo__StInfoResp *info, struct storage_facts *facts);
/** Unpacks and checks an answer to ST_INFO. Returns NULL if it is malformed. */
Rozo__StInfoResp *info_unpack(const struct rpc_request *rq);

#endif
