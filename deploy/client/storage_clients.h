/*
 * storage_clients.h - requests to all storages at once.
 */
#ifndef ROZO_DEPLOY_CLIENT_STORAGE_CLIENTS_H
#define ROZO_DEPLOY_CLIENT_STORAGE_CLIENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/proto/rozo.pb-c.h"

#include "deploy/client/daemon_asks.h"

/* One storage, and its request. Zero-initialised by storage_clients_open(). */
struct storage_clients_member {
    Rozo__Storage *st; /* borrowed from the status */
    uint32_t id;       /* the id of st */
    /* The request, set by the caller before storage_clients_ask(). NULL: this
     * storage is not asked. */
    const ProtobufCMessage *question; /* borrowed during storage_clients_ask() */
    /* Answer. */
    struct daemon_ask ask;    /* result, and an error message */
    bool asked;               /* the request was sent, and `ask` is valid */
    ProtobufCMessage *answer; /* owned; NULL unless status is OK */
    /* Private to storage_clients.c. */
    const ProtobufCMessageDescriptor *answer_type;
};

/* All storages of the cluster, by id. From storage_clients_open() to
 * storage_clients_close(). */
struct storage_clients {
    struct daemon_asks asks;
    size_t n;
    struct storage_clients_member *members; /* owned */
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
 * a result and an answer, or a message. Returns 0, or -EINTR if a signal came
 * (interrupt.h).
 * @param progress drawn meanwhile; may be NULL.
 */
int storage_clients_ask(struct storage_clients *f, uint16_t op,
                        const ProtobufCMessageDescriptor *answer_type,
                        uint32_t deadline_ms, struct progress *progress);

#endif
