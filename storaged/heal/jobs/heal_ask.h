/*
 * heal_ask.h - requests of the healer to storages. Inside storaged/heal only.
 *
 * Only heal_ask.c writes these members, but for done and arg.
 */
#ifndef ROZO_STORAGED_HEAL_JOBS_HEAL_ASK_H
#define ROZO_STORAGED_HEAL_JOBS_HEAL_ASK_H

#include "common/proto/rozo.pb-c.h"

#include "common/base/list.h"
#include "common/env/env.h"
#include "common/rpc/rpc.h"

struct healer;

enum ask_state {
    ASK_IDLE,
    ASK_NO_CHANNEL, /* the timer ends it */
    ASK_SENT,
};

/* One request to one storage. Embedded; zero-initialise. */
struct heal_ask {
    struct healer *h;
    struct rpc_request rq;
    struct env_timer timer;
    enum ask_state state;
    void (*done)(struct heal_ask *ask,
                 int rc); /* rc: transport or status; rq's answer is valid at 0 */
    void *arg;
    uint32_t storage;
    struct list_node link; /* in h->asks, unless idle */
};
/**
 * Sends a request. done() comes later, once; not if the healer stops. The message is
 * packed in this call.
 */
void heal_ask_send(struct healer *h, struct heal_ask *ask, uint32_t storage, uint16_t op,
                   const ProtobufCMessage *msg, uint32_t deadline_ms);

void heal_asks_init(struct healer *h);
/** Cancels all requests: done() is not called. */
void heal_asks_cancel(struct healer *h);

#endif
