/*
 * storage_poll.h - state of each storage, asked for regularly.
 */
#ifndef ROZO_EXPORTD_CLUSTER_STORAGE_POLL_H
#define ROZO_EXPORTD_CLUSTER_STORAGE_POLL_H

#include "exportd/cluster/exportd_state.h"

void storage_poll(struct storage *s);
/** The addresses others can reach it at: what it says of itself, unless that is a wildcard. */
void info_addresses(const Rozo__StInfoResp *info, struct storage_facts *facts);
/** Does an answer to ST_INFO make sense at all? NULL: no. */
Rozo__StInfoResp *info_unpack(const struct rpc_request *rq);

#endif
