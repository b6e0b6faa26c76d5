/*
 * ask.h - requests of an administrator to the daemons of the simulated cluster, one at a
 * time.
 *
 * The world runs until the answer has arrived.
 */
#ifndef ROZO_TESTS_SIM_CLUSTER_WORLD_ASK_H
#define ROZO_TESTS_SIM_CLUSTER_WORLD_ASK_H

#include <protobuf-c/protobuf-c.h>

#include "tests/sim/cluster/world/net.h"

/* A copy of the answer, in the world's memory. */
struct answer {
    int rc;          /* result of the channel */
    unsigned status; /* status of the daemon, if rc is 0 */
    uint8_t *msg, *payload;
    size_t msg_len, payload_len;
};

/** Makes a host for the administrator, with no other program in it. */
void admin_begin(void);
/** Stops the administrator's host. */
void admin_end(void);
/** Sends a request and waits for the answer; free it with answer_free(). */
void admin_ask(struct host *to, uint16_t op, const ProtobufCMessage *msg,
               struct answer *out);
void answer_free(struct answer *a);
/** Sends a request and waits. Returns 0, the status of the answer, or -errno. */
int admin_tell(struct host *to, uint16_t op, const ProtobufCMessage *msg);

/** Sends a request without waiting; calls done(arg, rc) in the world. One at a time. */
void admin_tell_later(struct host *to, uint16_t op, const ProtobufCMessage *msg,
                      void (*done)(void *arg, int rc), void *arg);
/** Tells whether such a request is in progress. */
bool admin_is_telling(void);
/** Returns the answer; valid in done(), if rc is 0. */
const uint8_t *admin_answer(size_t *len);

#endif
