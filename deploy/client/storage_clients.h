/*
 * storage_clients.h - requests to all storages at once.
 */
#ifndef ROZO_DEPLOY_CLIENT_STORAGE_CLIENTS_H
#define ROZO_DEPLOY_CLIENT_STORAGE_CLIENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/proto/rozo.pb-c.h"

#include "common/base/err.h"
#include "common/rpc/rpc.h"
#include "deploy/cli/progress.h"

enum { STORAGE_MESSAGE_MAX = 200 };

/* One storage, and its request. Zero-initialised by storage_clients_open(). */
struct storage_clients_member {
    Rozo__Storage *st; /* borrowed from the status */
    uint32_t id;       /* the id of st */
    struct rpc_channel *channel;
    /* The request, set by the caller before storage_clients_ask(). NULL: this
     * storage is not asked. */
    const ProtobufCMessage *question; /* borrowed during storage_clients_ask() */
    /* Answer. */
    bool asked; /* the request was sent, and rc is valid */
    int rc;     /* 0: an answer came; else an error of the transport */
    uint16_t status;
    ProtobufCMessage *answer;          /* owned; NULL unless status is OK */
    char message[STORAGE_MESSAGE_MAX]; /* error message, if rc or status is not 0 */
    /* Private to storage_clients.c. */
    struct storage_clients *fleet;
    const ProtobufCMessageDescriptor *answer_type;
    struct rpc_request rq;
    bool out;
};

struct rpc_loop;
/* All storages of the cluster, by id. From storage_clients_open() to
 * storage_clients_close(). */
struct storage_clients {
    struct rpc_loop *loop;
    size_t n;
    struct storage_clients_member *members;
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
int storage_clients_open(const Rozo__AdStatusResp *status, const char *node_key,
                         struct storage_clients **out, struct err *err);
/** Closes all channels. NULL is fine. */
void storage_clients_close(struct storage_clients *f);
struct storage_clients_member *storage_clients_find(struct storage_clients *f,
                                                    uint32_t id);
/** Removes all requests and frees the answers. */
void storage_clients_clear(struct storage_clients *f);
/**
 * Sends all requests and waits for the answers, deadline_ms at most. Each member then has
 * rc, status, answer and words. Returns 0, or -EINTR if a signal came
 * (storage_clients_catch_signals()).
 * @param progress drawn meanwhile; may be NULL.
 */
int storage_clients_ask(struct storage_clients *f, uint16_t op,
                        const ProtobufCMessageDescriptor *answer_type,
                        uint32_t deadline_ms, struct progress *progress);
/**
 * Keeps SIGINT and SIGTERM from ending the program; storage_clients_is_interrupted()
 * tells whether one came.
 */
void storage_clients_catch_signals(void);
bool storage_clients_is_interrupted(void);
/** Waits, or until a signal comes. */
void storage_clients_pause_ms(uint32_t ms);

#endif
