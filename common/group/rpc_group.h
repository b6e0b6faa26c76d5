/*
 * rpc_group.h - one channel to several exportds of which one leads.
 *
 * The group asks each member that is not known to lead with MD_WAIT_LEADER, which a
 * member answers when it leads. Requests go to the member that answered with the highest
 * number of starts; while none leads they wait until their deadline. Members with the
 * same number of starts are addresses of one exportd, and share the requests. A single
 * member is taken to lead until it answers NOT_LEADER, so it is not asked.
 *
 * A request keeps one id, however often it is sent and to whom, so that a later leader
 * recognises what an earlier one has done. When another member leads, requests under way
 * are cancelled at the former leader, and their answers from it do not count any more.
 *
 * A channel that has not worked for some time pauses before it connects again. When no
 * member is known to lead any more the group ends these pauses (rpc_connect_now()): the
 * next leader may have returned just now.
 *
 * Everything belongs to one thread, that of the env. Core: no sockets.
 */
#ifndef ROZO_COMMON_GROUP_RPC_GROUP_H
#define ROZO_COMMON_GROUP_RPC_GROUP_H

#include "common/env/env.h"
#include "common/rpc/rpc.h"

enum { RPC_GROUP_MAX = 16 }; /* members */

struct rpc_group;

struct rpc_group_config {
    struct rpc_channel *const *members; /* copied; the channels are borrowed */
    unsigned n_members;                 /* 1..RPC_GROUP_MAX */
    /* Called when requests go to another member from now on, before those under way are
     * sent again: exportd may get them twice. Must not close the group. May be NULL. */
    void (*moved)(void *arg);
    void *arg;
};

/** Makes a group and asks its members. Returns 0 or -ENOMEM. */
int rpc_group_new(struct env *env, const struct rpc_group_config *config,
                  struct rpc_group **out);
/**
 * Closes a group: it sends nothing to its members any more. Requests end with -ENOTCONN
 * (posted); then closed(arg), after which the channels of the members may be closed.
 */
void rpc_group_close(struct rpc_group *g, void (*closed)(void *arg), void *arg);

/**
 * Returns the channel that requests are sent on. Besides what rpc.h says, a request ends
 * with -ENOTCONN if too many wait for a leader.
 */
struct rpc_channel *rpc_group_channel(struct rpc_group *g);
/** Sets the session of requests that name none, from now on. */
void rpc_group_set_session(struct rpc_group *g, uint64_t session);

/** Returns the highest number of starts that is known; 0: none. */
uint64_t rpc_group_start(const struct rpc_group *g);
/** Ignores members with a lower number of starts from now on. */
void rpc_group_at_least(struct rpc_group *g, uint64_t start);
/**
 * Reports that no link to a member works any more. If it led, the group has the others
 * connected at once, since one of them will lead.
 */
void rpc_group_down(struct rpc_group *g, unsigned member);
/** Returns true if requests go to this member. */
bool rpc_group_leads(const struct rpc_group *g, unsigned member);

#endif
