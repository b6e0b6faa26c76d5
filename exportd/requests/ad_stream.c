/*
 * ad_stream.c - AD_STREAM_RESERVE, AD_STREAM_RELEASE, AD_STREAM_LIST.
 *
 * In:     requests of nodes (administrators), decoded; every field is checked here.
 * Out:    reservations, changed; answers, with an error text if refused.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "exportd/cluster/answer.h"
#include "exportd/cluster/cluster.h"
#include "exportd/requests/requests.h"
#include "exportd/sessions/session.h"

/* Returns whether it can be the name of a host: printable, without spaces. */
static bool host_is_good(const char *host)
{
    size_t len = strlen(host);

    if (len == 0 || len > HOST_MAX)
        return false;
    for (size_t i = 0; i < len; i++) {
        if (host[i] <= ' ' || host[i] > '~')
            return false;
    }
    return true;
}

static void stream_message(const struct exportd *x, const struct reservation *r,
                           Rozo__Stream *msg)
{
    struct export *e = export_find((struct exportd *)(uintptr_t)x, r->export);

    rozo__stream__init(msg);
    if (e != NULL)
        msg->export = e->name;
    msg->host = (char *)(uintptr_t)r->host;
    msg->reads = r->n_reads;
    msg->writes = r->n_writes;
    msg->rate = r->rate;
}

static int wanted_check(struct exportd *x, const Rozo__Stream *msg,
                        struct reservation *out, char message[MESSAGE_MAX + 1])
{
    const struct export *e = msg == NULL ? NULL : export_find_name(x, msg->export);
    int rc = 0;

    if (msg == NULL || msg->reads > RESERVED_STREAMS_MAX ||
        msg->writes > RESERVED_STREAMS_MAX || msg->reads + msg->writes == 0 ||
        msg->rate == 0 || msg->rate > RESERVED_RATE_MAX)
        rc = -EINVAL;
    if (rc != 0)
        snprintf(message, MESSAGE_MAX + 1,
                 "1 to %d streams of 1 byte/s to %.0f MB/s can be reserved",
                 (int)RESERVED_STREAMS_MAX, (double)RESERVED_RATE_MAX / 1e6);
    else if (e == NULL)
        rc = -ENOENT,
        snprintf(message, MESSAGE_MAX + 1, "there is no export %.63s", msg->export);
    else if (!host_is_good(msg->host))
        rc = -EINVAL, snprintf(message, MESSAGE_MAX + 1,
                               "a host's name has 1 to %d printable characters without "
                               "spaces",
                               (int)HOST_MAX);
    if (rc != 0)
        return rc;
    *out = (struct reservation){
        .export = e->id, .n_reads = msg->reads, .n_writes = msg->writes, .rate = msg->rate
    };
    snprintf(out->host, sizeof(out->host), "%s", msg->host);
    return 0;
}

int ad_stream_reserve(struct md_op *op, const ProtobufCMessage *msg)
{
    const Rozo__AdStreamReserveReq *req = (const Rozo__AdStreamReserveReq *)msg;
    Rozo__AdStreamReserveResp resp = ROZO__AD_STREAM_RESERVE_RESP__INIT;
    char message[MESSAGE_MAX + 1] = "";
    struct reservation wanted;
    Rozo__Stream stream;
    int rc = wanted_check(op->x, req->stream, &wanted, message), packed;

    if (rc == 0)
        rc = reservation_admit(op->x, &wanted, message);
    if (rc == 0) {
        rc = reservation_put(op->x, &wanted);
        if (rc != 0)
            snprintf(message, sizeof(message), "%s",
                     rc == -EBUSY ? "no more reservations are possible" : error_text(rc));
    }
    if (rc == 0) {
        stream_message(op->x, &wanted, &stream);
        resp.stream = &stream;
        log_info("streams of %s reserved for %s: %u read, %u written, %.1f MB/s each",
                 stream.export, wanted.host, wanted.n_reads, wanted.n_writes,
                 (double)wanted.rate / 1e6);
    }
    resp.error = message;
    op->sync = true;
    packed = md_op_pack(op, &resp.base);
    return rc != 0 ? rc : packed;
}

int ad_stream_release(struct md_op *op, const ProtobufCMessage *msg)
{
    const Rozo__AdStreamReleaseReq *req = (const Rozo__AdStreamReleaseReq *)msg;
    Rozo__AdStreamReleaseResp resp = ROZO__AD_STREAM_RELEASE_RESP__INIT;
    const struct export *e = export_find_name(op->x, req->export);
    struct reservation *r = e == NULL ? NULL : reservation_find(op->x, e->id, req->host);
    char message[MESSAGE_MAX + 1] = "";
    struct reservation was;
    Rozo__Stream stream;
    int rc = r == NULL ? -ENOENT : 0, packed;

    if (rc == 0) {
        was = *r;
        reservation_drop(op->x, r);
        stream_message(op->x, &was, &stream);
        resp.stream = &stream;
        log_info("streams of %s released: %s", stream.export, was.host);
    } else {
        snprintf(message, sizeof(message), "%.64s has no streams of export %.63s",
                 req->host, req->export);
    }
    resp.error = message;
    op->sync = true;
    packed = md_op_pack(op, &resp.base);
    return rc != 0 ? rc : packed;
}

/* Everything that the answer to AD_STREAM_LIST points at. */
struct stream_list_parts {
    Rozo__Stream *streams, **stream_ptrs;
    Rozo__AdStreamListResp__Limit *limits, **limit_ptrs;
};

static void list_fill(struct exportd *x, struct stream_list_parts *p,
                      Rozo__AdStreamListResp *resp)
{
    resp->streams = p->stream_ptrs;
    resp->limits = p->limit_ptrs;
    LIST_FOREACH(node, &x->requests->reservations.list) {
        Rozo__Stream *msg = &p->streams[resp->n_streams];

        const struct reservation *r = container_of(node, struct reservation, link);

        stream_message(x, r, msg);
        sessions_count_reads(x, r->export, r->host, &msg->n_reads, &msg->n_late);
        p->stream_ptrs[resp->n_streams++] = msg;
    }
    LIST_FOREACH(node, &x->storages) {
        const struct cluster_storage *s =
            container_of(node, struct cluster_storage, link);
        struct reserved_load load = reserved_load_of(s);
        Rozo__AdStreamListResp__Limit *msg = &p->limits[resp->n_limits];

        rozo__ad_stream_list_resp__limit__init(msg);
        msg->storage = s->facts.id;
        msg->stream_bytes = s->stream_bytes;
        msg->link_bytes = s->link_bytes * s->facts.n_addrs;
        msg->read_bytes = load.read_bytes;
        msg->written_bytes = load.written_bytes;
        p->limit_ptrs[resp->n_limits++] = msg;
    }
}

int ad_stream_list(struct md_op *op, const ProtobufCMessage *req)
{
    unsigned n = op->x->requests->reservations.n + 1, n_storages = op->x->n_storages + 1;
    Rozo__AdStreamListResp resp = ROZO__AD_STREAM_LIST_RESP__INIT;
    struct stream_list_parts p = {
        .streams = calloc(n, sizeof(*p.streams)),
        .stream_ptrs = calloc(n, sizeof(*p.stream_ptrs)),
        .limits = calloc(n_storages, sizeof(*p.limits)),
        .limit_ptrs = calloc(n_storages, sizeof(*p.limit_ptrs)),
    };
    int rc = -ENOMEM;

    (void)req;
    if (p.streams != NULL && p.stream_ptrs != NULL && p.limits != NULL &&
        p.limit_ptrs != NULL) {
        list_fill(op->x, &p, &resp);
        rc = md_op_pack(op, &resp.base);
    }
    free(p.streams);
    free(p.stream_ptrs);
    free(p.limits);
    free(p.limit_ptrs);
    return rc;
}
