/*
 * fleet.h - requests to all storages at once.
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

/* One storage, and its request. Zero-initialised by fleet_open(). */
struct fleet_member {
    Rozo__Storage *st; /* borrowed from the status */
    uint32_t id;       /* the id of st */
    struct rpc_channel *channel;
    /* The request, set by the caller before fleet_ask(). NULL: this storage is not
     * asked. */
    const ProtobufCMessage *question; /* borrowed during fleet_ask() */
    /* Answer. */
    bool asked; /* the request was sent, and rc is valid */
    int rc;     /* 0: an answer came; else an error of the transport */
    uint16_t status;
    ProtobufCMessage *answer; /* owned; NULL unless status is OK */
    char words[FLEET_WORDS];  /* error message, if rc or status is not 0 */
    /* Private to fleet.c. */
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
    /* clock_ms() after which a refused connection counts as an error. */
    uint64_t refused_ms;
    struct progress *progress;
};

/**
 * Opens channels to all storages of the status, which must outlive the fleet. Does not
 * wait.
 */
int fleet_open(const Rozo__AdStatusResp *status, const char *node_key, struct fleet **out,
               struct err *err);
/** Closes all channels. NULL is fine. */
void fleet_close(struct fleet *f);
struct fleet_member *fleet_find(struct fleet *f, uint32_t id);
/** Removes all requests and frees the answers. */
void fleet_clear(struct fleet *f);
/**
 * Sends all requests and waits for the answers, deadline_ms at most. Each member then has
 * rc, status, answer and words. Returns 0, or -EINTR if a signal came
 * (fleet_catch_signals()).
 * @param progress drawn meanwhile; may be NULL.
 */
int fleet_ask(struct fleet *f, uint16_t op, const ProtobufCMessageDescriptor *answer_type,
              uint32_t deadline_ms, struct progress *progress);
/**
 * Keeps SIGINT and SIGTERM from ending the program; fleet_is_interrupted() tells whether
 * one came.
 */
void fleet_catch_signals(void);
bool fleet_is_interrupted(void);
/** Waits, or until a signal comes. */
void fleet_pause_ms(uint32_t ms);

#endif
