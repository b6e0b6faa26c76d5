/*
 * exportd_link.h - a client's links to exportd: to each address that it was given.
 *
 * The addresses are those of the members of a quorum, or of one exportd (rpc_group.h).
 * Each has a channel of its own with one link, so that nobody connects during a
 * fail-over, and answers of one member arrive in the order in which they were given.
 * Members tell where all of them are reached: links to new ones are opened. The link to
 * an address that is not in the list of the leader is closed when it does not work and
 * one of those in the list leads, so that the list is known to be of use here.
 * Shell; one thread, that of the env.
 */
#ifndef ROZO_COMMON_EXPORTD_LINK_EXPORTD_LINK_H
#define ROZO_COMMON_EXPORTD_LINK_EXPORTD_LINK_H

#include "common/rpc/rpc_tcp.h"

struct exportd_link;

struct exportd_link_config {
    const struct rpc_keys *keys; /* borrowed */
    enum rpc_role role;
    const char *name; /* name of this process; borrowed during the call */
    /* Borrowed during the call. */
    const char *const *addrs;
    unsigned n_addrs; /* 1..RPC_ADDR_MAX */
    /* Called when requests under way are sent again, to the same exportd or another one.
     * May be NULL. */
    void (*is_up)(void *arg);
    void *arg;
};

/**
 * Opens links to all addresses, without waiting. Returns 0, or -errno with a message.
 */
int exportd_link_open(struct env_uv *env, const struct exportd_link_config *config,
                      struct exportd_link **out, struct err *err);
/**
 * Closes the links. Outstanding requests end with -ENOTCONN (posted); then closed(arg).
 */
void exportd_link_close(struct exportd_link *l, void (*closed)(void *arg), void *arg);

/** Returns the channel for requests. */
struct rpc_channel *exportd_link_channel(struct exportd_link *l);
/**
 * Sets the session of requests that name none, from now on. Answers of an exportd with
 * fewer than `start` starts do not count any more: the session is open at a later one.
 */
void exportd_link_set_session(struct exportd_link *l, uint64_t session, uint64_t start);
/** Returns the highest number of starts that is known; 0: none. */
uint64_t exportd_link_start(const struct exportd_link *l);
/** Returns why there is no answer, "" if nothing is known; valid until the next call. */
const char *exportd_link_last_error(struct exportd_link *l);
/** Returns true if no address works and one refuses our key: waiting is useless. */
bool exportd_link_key_is_refused(struct exportd_link *l);

#endif
