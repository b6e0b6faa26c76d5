/*
 * admin.h - requests to exportd, one at a time.
 */
#ifndef ROZO_DEPLOY_CLIENT_ADMIN_H
#define ROZO_DEPLOY_CLIENT_ADMIN_H

#include <stdbool.h>
#include <stdint.h>

#include "common/proto/rozo.pb-c.h"

#include "common/base/err.h"
#include "deploy/cli/progress.h"

struct admin;

/**
 * Opens a connection, without waiting for it. @param node_key path of the node key file.
 */
int admin_open(const char *exportd, const char *node_key, struct admin **out,
               struct err *err);
/** Closes it. NULL is fine. */
void admin_close(struct admin *a);

/**
 * Sends a request and waits for the answer, 10 s at most, less if nothing listens there.
 * @param status  out: enum Rozo__Status of the answer.
 * @param answer  out: the message of type `answer_type`, without any field if none came;
 * free it with protobuf_c_message_free_unpacked().
 * @return 0 if an answer came; -errno with a message that says what to do about it.
 */
int admin_call(struct admin *a, uint16_t op, const ProtobufCMessage *question,
               const ProtobufCMessageDescriptor *answer_type, struct progress *progress,
               uint16_t *status, ProtobufCMessage **answer, struct err *err);

/** Lets later calls take this long, for requests that search a lot. */
void admin_wait_up_to(struct admin *a, uint32_t ms);

/* Calls of single requests. Each returns 0, or -errno with a message. Free the answers by
 * their free_unpacked. */
int admin_status(struct admin *a, struct progress *progress, Rozo__AdStatusResp **out,
                 struct err *err);
int admin_storage_add(struct admin *a, char **addresses, size_t n_addresses,
                      const char *volume, struct progress *progress,
                      Rozo__AdStorageAddResp **out, struct err *err);
int admin_volume_create(struct admin *a, const char *name, struct progress *progress,
                        Rozo__AdVolumeCreateResp **out, struct err *err);
int admin_export_create(struct admin *a, const Rozo__AdExportCreateReq *question,
                        struct progress *progress, Rozo__AdExportCreateResp **out,
                        struct err *err);
int admin_storage_replace(struct admin *a, const Rozo__AdStorageReplaceReq *question,
                          struct progress *progress, Rozo__AdStorageReplaceResp **out,
                          struct err *err);
int admin_storage_lost(struct admin *a, uint32_t id, bool lost, struct progress *progress,
                       Rozo__AdStorageLostResp **out, struct err *err);
int admin_stream_reserve(struct admin *a, Rozo__Stream *stream, struct progress *progress,
                         Rozo__AdStreamReserveResp **out, struct err *err);
int admin_stream_release(struct admin *a, const char *export, const char *host,
                         struct progress *progress, Rozo__AdStreamReleaseResp **out,
                         struct err *err);
int admin_stream_list(struct admin *a, struct progress *progress,
                      Rozo__AdStreamListResp **out, struct err *err);
int admin_inodes(struct admin *a, const Rozo__AdInodesReq *question,
                 struct progress *progress, Rozo__AdInodesResp **out, struct err *err);
/** -ENOSYS: exportd is of a build that does not know the request. */
int admin_names(struct admin *a, const Rozo__AdNamesReq *question,
                struct progress *progress, Rozo__AdNamesResp **out, struct err *err);

#endif
