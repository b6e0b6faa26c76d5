/*
 * made.h - records as a client makes them: what is in a block follows from its number and version.
 */
#ifndef ROZO_TEST_HEAL_MADE_H
#define ROZO_TEST_HEAL_MADE_H

#include "storcli/blocks.h"

/** Of layout, kind and c of the target; its id. */
const struct codec *made_codec(const struct storcli_target *t);
/** How many user bytes this version of this block has. */
uint16_t made_user_bytes(const struct storcli_target *t, uint64_t block,
                         uint64_t version);
/** The sealed head with its overhang to `head`, the body to `body`; returns the body's length. */
size_t made_record(const struct storcli_target *t, unsigned projection, uint64_t block,
                   uint64_t version, uint8_t *head, uint8_t *body);

/** What a channel does with the payload of an answer: 0, or what place() returned. */
int made_receive(struct rpc_request *rq, uint8_t *payload, size_t len);

#endif
