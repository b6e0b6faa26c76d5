/*
 * meta_client.h - questions to the exportds of a quorum, each asked by itself.
 */
#ifndef ROZO_DEPLOY_CLIENT_META_CLIENT_H
#define ROZO_DEPLOY_CLIENT_META_CLIENT_H

#include <stdbool.h>

#include "common/proto/rozo.pb-c.h"

#include "common/base/err.h"
#include "common/rpc/rpc_tcp.h"
#include "deploy/client/daemon_asks.h"

struct meta_client;

/* One exportd of the list, and its answer. */
struct meta_client_member {
    char address[RPC_ADDR_TEXT_MAX];
    struct daemon_ask ask;          /* message: why there is no answer */
    Rozo__AdMetaStatusResp *answer; /* owned; NULL: it did not answer, or has no quorum */
    bool has_no_quorum;             /* instead of an answer */
    /* Private. */
    struct meta_client *client;
};

/* From meta_client_open() to meta_client_close(). */
struct meta_client {
    struct daemon_asks asks;
    unsigned n;
    struct meta_client_member members[RPC_ADDR_MAX];
    /* Private: the answer to a change. */
    uint64_t changed_id;
    struct err changed;
    Rozo__AdMetaInitResp *inited; /* owned; NULL: the answer was none */
};

/** Opens channels to all of "HOST:PORT,HOST:PORT". Does not wait for them. */
int meta_client_open(const char *list, const char *node_key, struct meta_client **out,
                     struct err *err);
/** Closes it. NULL is fine. */
void meta_client_close(struct meta_client *c);
/**
 * Asks all for their state; answers and messages are there afterwards. If none of them
 * leads, the leader that they name is asked as well, and is one of the members from then
 * on. Takes 2.5 s at most if one of them answers, 3 s if none does.
 */
void meta_client_ask(struct meta_client *c);
/**
 * Returns the answer that knows most, or NULL: of the highest term, if possible of its
 * leader.
 */
const Rozo__AdMetaStatusResp *meta_client_newest(const struct meta_client *c);
/** Returns 0, or -EOPNOTSUPP with a text: an exportd of the list is alone. */
int meta_client_alone_check(const struct meta_client *c, struct err *err);
/** Returns 0, or an error with a text: no member of a quorum has answered. */
int meta_client_answers_check(const struct meta_client *c, struct err *err);
/** Returns the member of the list in an answer, or NULL. */
const Rozo__AdMetaStatusResp__Member *meta_client_listed(const Rozo__AdMetaStatusResp *a,
                                                         uint64_t id);
/** Returns the member that leads and serves by these answers, or NULL. */
struct meta_client_member *meta_client_serving(struct meta_client *c);
/** Asks this member to hand leadership over; to 0: to any. Returns 0 or -errno. */
int meta_client_transfer(struct meta_client *c, struct meta_client_member *m, uint64_t to,
                         struct err *err);
/**
 * Asks this member, as the leader, to add one at this address, as a witness or not;
 * replaces: member that may have the same address, and whose kind the new one gets, 0:
 * none. Returns 0 with its *id: it is in the list; or -errno with a text.
 * -ROZO_ENOT_LEADER, -EBUSY, -ETIMEDOUT and -ENOTCONN: ask again.
 */
int meta_client_add(struct meta_client *c, struct meta_client_member *m,
                    const char *address, uint64_t replaces, bool is_witness, uint64_t *id,
                    struct err *err);
/** Asks it to remove a member. Returns as above; -ENOENT: there is no such member. */
int meta_client_remove(struct meta_client *c, struct meta_client_member *m, uint64_t id,
                       bool is_forced, struct err *err);

/**
 * Asks this exportd, which is alone, to become the first member of a quorum, reached at
 * this address ("": its own choice). Returns 0 and the answer, to be freed; or -errno
 * with a text.
 */
int meta_client_init(struct meta_client *c, struct meta_client_member *m,
                     const char *address, Rozo__AdMetaInitResp **out, struct err *err);

#endif
