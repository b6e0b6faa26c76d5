/*
 * fake_exportd.h - a channel whose other end is the test: it sees what was sent, and answers.
 */
#ifndef ROZO_TEST_FAKE_EXPORTD_H
#define ROZO_TEST_FAKE_EXPORTD_H

#include "common/proto/rozo.pb-c.h"

#include "common/rpc/rpc.h"
#include "tests/lib/env_virtual.h"

enum { FAKE_SENT_MAX = 64 };

struct fake_exportd {
    struct rpc_channel channel;              /* first */
    struct rpc_request *sent[FAKE_SENT_MAX]; /* not answered yet, oldest first */
    unsigned n_sent;
    unsigned n_sent_ever, n_cancelled;
    uint8_t msg[FAKE_SENT_MAX][4096]; /* of sent[i] */
    size_t msg_len[FAKE_SENT_MAX];
};

void fake_exportd_init(struct fake_exportd *f);
/** Answer the i-th waiting request; msg may be NULL. */
void fake_exportd_answer(struct fake_exportd *f, unsigned i, uint16_t status,
                         const ProtobufCMessage *msg);
void fake_exportd_answer_raw(struct fake_exportd *f, unsigned i, uint16_t status,
                             const void *msg, size_t len);
/** The i-th waiting request ends with rc, as when a deadline passes. */
void fake_exportd_fail(struct fake_exportd *f, unsigned i, int rc);

#endif
