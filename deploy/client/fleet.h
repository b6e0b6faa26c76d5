/*
 * fleet.h - asking all storages at once.
 */
#ifndef ROZO_DEPLOY_CLIENT_FLEET_H
#define ROZO_DEPLOY_CLIENT_FLEET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/proto/rozo.pb-c.h"

#include "common/base/err.h"
#include "common/rpc/rpc.h"
#include "deploy/cli/progress.h"

enum { FLEET_WORDS = 200 };

/* One storage, and the question it is asked. Zero-initialised by fleet_open(). */
struct fleet_member {
    Rozo__Storage *st; /* borrowed from the status */
    uint32_t id;       /* its */
    struct rpc_channel *channel;
    /* The question, set by the caller before fleet_ask(). NULL: this one is not asked. */
    const ProtobufCMessage *question; /* borrowed during fleet_ask() */
    /* The answer. */
    bool asked; /* it was, and rc counts */
    int rc;     /* 0: it answered; else nobody did */
    uint16_t status;
    ProtobufCMessage *answer; /* owned; NULL but for status OK */
    char words[FLEET_WORDS];  /* why not, when rc or status is not 0 */
    /* fleet.c's */
    struct fleet *fleet;
    const ProtobufCMessageDescriptor *answer_type;
    struct rpc_request rq;
    bool out;
};

struct wire;
/* All storages of the cluster, by id. From fleet_open() to fleet_close(). */
struct fleet {
    struct wire *wire;
    size_t n;
    struct fleet_member *members;
    size_t n_out;
    bool done;
    uint64_t refused_ms; /* clock_ms() from when on a refusal is believed */
    struct progress *progress;
};

/** Channels to all storages of the status, which must outlive the fleet. Does not wait. */
int fleet_open(const Rozo__AdStatusResp *status, const char *node_key, struct fleet **out,
               struct err *err);
/** NULL is fine. */
void fleet_close(struct fleet *f);
struct fleet_member *fleet_find(struct fleet *f, uint32_t id);
/** Nobody is to be asked, until a question is set again. Answers are freed. */
void fleet_clear(struct fleet *f);
/**
 * Ask all who have a question, and wait for their answers, deadline_ms at most. 0, or -EINTR when a
 * signal came (fleet_catch_signals()). Each member then has rc, status, answer and words.
 * @param progress drawn meanwhile; may be NULL.
 */
int fleet_ask(struct fleet *f, uint16_t op, const ProtobufCMessageDescriptor *answer_type,
              uint32_t deadline_ms, struct progress *progress);
/** From now on SIGINT and SIGTERM do not end the program: fleet_is_interrupted() tells of them. */
void fleet_catch_signals(void);
bool fleet_is_interrupted(void);
/** Wait, while no signal comes. */
void fleet_pause_ms(uint32_t ms);

#endif
