/*
 * fake_exportd.h - a channel whose other end is the test, which sees each request and
 * answers it.
 */
#ifndef ROZO_TEST_FAKE_EXPORTD_H
#define ROZO_TEST_FAKE_EXPORTD_H

#include "common/proto/rozo.pb-c.h"

#include "common/rpc/rpc.h"
#include "tests/lib/env_virtual.h"

enum { FAKE_SENT_MAX = 64 };

struct fake_exportd {
    struct rpc_channel channel; /* must be the first member */
    /* requests without an answer, oldest first */
    struct rpc_request *sent[FAKE_SENT_MAX];
    unsigned n_sent;
    unsigned n_sent_ever, n_cancelled;
    uint8_t msg[FAKE_SENT_MAX][4096]; /* message of sent[i] */
    size_t msg_len[FAKE_SENT_MAX];
};

void fake_exportd_init(struct fake_exportd *f);
/** Answers the i-th waiting request; msg may be NULL. */
void fake_exportd_answer(struct fake_exportd *f, unsigned i, uint16_t status,
                         const ProtobufCMessage *msg);
void fake_exportd_answer_raw(struct fake_exportd *f, unsigned i, uint16_t status,
                             const void *msg, size_t len);
/** Ends the i-th waiting request with rc, as a passed deadline does. */
void fake_exportd_fail(struct fake_exportd *f, unsigned i, int rc);

#endif
