/*
 * quorum_status.h - the answer to AD_META_STATUS. Shell code, any thread.
 */
#ifndef ROZO_EXPORTD_DAEMON_QUORUM_STATUS_H
#define ROZO_EXPORTD_DAEMON_QUORUM_STATUS_H

#include "common/rpc/rpc.h"
#include "exportd/quorum/member.h"

/**
 * Answers with the state of a member: takes the call. Others than nodes are refused.
 * @param serves a core serves clients here.
 */
void quorum_status_answer(struct rpc_call *call, const struct member_status *s,
                          bool serves);

#endif
