/*
 * ask.h - questions of an administrator to the daemons of the simulated cluster, one at a time: the world
 * runs until the answer is there.
 */
#ifndef ROZO_SIM_ASK_H
#define ROZO_SIM_ASK_H

#include <protobuf-c/protobuf-c.h>

#include "tests/sim/cluster/net.h"

/* The answer, copied; the world's. */
struct answer {
    int rc;          /* of the channel */
    unsigned status; /* of the daemon, with rc 0 */
    uint8_t *msg, *payload;
    size_t msg_len, payload_len;
};

/** A host for the administrator, with nothing in it but this. */
void admin_begin(void);
void admin_end(void);
void admin_ask(struct host *to, uint16_t op, const ProtobufCMessage *msg,
               struct answer *out);
void answer_free(struct answer *a);
/** Ask, and nothing of the answer but whether it was OK: 0, a status, or -errno. */
int admin_tell(struct host *to, uint16_t op, const ProtobufCMessage *msg);

/**
 * The same without waiting; done(arg, rc) comes in the world. One at a time.
 */
void admin_tell_later(struct host *to, uint16_t op, const ProtobufCMessage *msg,
                      void (*done)(void *arg, int rc), void *arg);
bool admin_is_telling(void);
/** In done(), with rc 0: the answer. */
const uint8_t *admin_told(size_t *len);

#endif
