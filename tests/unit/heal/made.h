/*
 * made.h - records as a client makes them: the contents of a block follow from its number
 * and version.
 */
#ifndef ROZO_TEST_HEAL_MADE_H
#define ROZO_TEST_HEAL_MADE_H

#include "storcli/blocks.h"

/** Returns the codec of the target's kind, layout and block size. */
const struct codec *made_codec(const struct storcli_target *t);
/** Returns the number of user bytes of this version of this block. */
uint16_t made_user_bytes(const struct storcli_target *t, uint64_t block,
                         uint64_t version);
/** Writes the sealed head with its overhang to `head` and the body to `body`. Returns the
 * length of the body. */
size_t made_record(const struct storcli_target *t, unsigned projection, uint64_t block,
                   uint64_t version, uint8_t *head, uint8_t *body);

/** Receives the payload of an answer as a channel does. Returns 0, or the error of
 * place(). */
int made_receive(struct rpc_request *rq, uint8_t *payload, size_t len);

#endif
