/*
 * rpc_group.h - one channel to several exportds of which one leads.
 *
 * The group asks each member that is not known to lead with MD_WAIT_LEADER, which a
 * member answers when it leads. Requests go to the member that answered with the highest
 * number of starts; while none leads they wait until their deadline. Members with the
 * same number of starts are addresses of one exportd, and share the requests. A single
 * member is taken to lead until it answers NOT_LEADER.
 *
 * A request keeps one id, however often it is sent and to whom, so that a later leader
 * recognises what an earlier one has done. When another member leads, requests under way
 * are cancelled at the former leader, and their answers from it do not count any more.
 *
 * A channel that has not worked for some time pauses before it connects again. When no
 * member is known to lead any more the group ends these pauses (rpc_connect_now()): the
 * next leader may have returned just now.
 *
 * With its answers a member of a quorum tells where all of them are reached. The group
 * asks those that do not lead all the time, and those that do every RPC_GROUP_LOOK_MS;
 * its user opens channels to members that it did not know, and closes those to others.
 *
 * Everything belongs to one thread, that of the env. Core: no sockets.
 */
#ifndef ROZO_COMMON_GROUP_RPC_GROUP_H
#define ROZO_COMMON_GROUP_RPC_GROUP_H

#include "common/env/env.h"
#include "common/group/exportd_list.h"
#include "common/rpc/rpc.h"

enum {
    RPC_GROUP_MAX = EXPORTD_ADDRS_MAX, /* members */
    RPC_GROUP_LOOK_MS = 10000,         /* between questions to a member that leads */
};

struct rpc_group;

struct rpc_group_config {
    struct rpc_channel *const *members; /* copied; the channels are borrowed */
    unsigned n_members;                 /* 1..RPC_GROUP_MAX */
    /* Called when requests go to another member from now on, before those under way are
     * sent again: exportd may get them twice. Must not close the group. May be NULL. */
    void (*moved)(void *arg);
    /* Called with a list that a member tells and did not tell before; leads: that of one
     * that leads. Must not change or close the group. NULL: lists are not asked for. */
    void (*told)(void *arg, const struct exportd_list *list, bool leads);
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
/**
 * Adds a member. Returns its number, one that no member has now, or -ENOSPC. The channel
 * is borrowed until rpc_group_remove() or the end of the group.
 */
int rpc_group_add(struct rpc_group *g, struct rpc_channel *channel);
/**
 * Removes a member, but not the last one: requests at it go to another one. Afterwards
 * its channel may be closed. Not inside a call of the group.
 */
void rpc_group_remove(struct rpc_group *g, unsigned member);
/** Returns true if requests go to this member. */
bool rpc_group_leads(const struct rpc_group *g, unsigned member);

#endif
