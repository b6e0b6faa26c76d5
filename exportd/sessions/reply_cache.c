/*
 * reply_cache.c - a small table of answers by request id; the oldest are dropped first.
 *
 * In:     requests and their answers, from exportd.c.
 * Out:    the same answer again. Core: no clock, memory bounded (I9).
 * Keeps:  an answer is repeated only to a request that is identical to the last byte.
 */
#include "exportd/sessions/reply_cache.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "codec/codec.h"
#include "common/base/err.h"
#include "common/base/units.h"

enum { N_BUCKETS = 512 };

void reply_cache_init(struct reply_cache *r)
{
    *r = (struct reply_cache){ 0 };
    list_init(&r->all);
}

static struct reply **bucket_of(const struct reply_cache *r, uint64_t id)
{
    return &r->buckets[id % N_BUCKETS]; /* ids are consecutive */
}

static void reply_forget(struct reply_cache *r, struct reply *reply)
{
    struct reply **at = bucket_of(r, reply->to.id);

    assert(r->n > 0);
    while (*at != reply) {
        assert(*at != NULL);
        at = &(*at)->next;
    }
    *at = reply->next;
    list_remove(&reply->link);
    r->n--;
    free(reply);
}

static struct reply *oldest(const struct reply_cache *r)
{
    assert(!list_is_empty(&r->all));
    return container_of(r->all.next, struct reply, link);
}

struct reply_to reply_cache_to(const struct rpc_call *call)
{
    return (struct reply_to){
        .id = call->id,
        .crc = call->msg_len == 0 ? 0 : codec_crc32c(0, call->msg, call->msg_len),
        .op = call->op,
    };
}

const struct reply *reply_cache_find(const struct reply_cache *r,
                                     const struct rpc_call *call)
{
    const struct reply *reply = r->buckets == NULL ? NULL : *bucket_of(r, call->id);

    while (reply != NULL && reply->to.id != call->id)
        reply = reply->next;
    if (reply == NULL || reply->to.op != call->op ||
        reply->to.crc != reply_cache_to(call).crc)
        return NULL;
    return reply;
}

void reply_cache_keep(struct reply_cache *r, const struct reply_to *to, int rc, bool sync,
                      const uint8_t *msg, size_t len, uint64_t now_ns)
{
    struct reply *reply;

    if ((rc == -ROZO_ERETRY || rc == -EBUSY) && (to->id & RPC_ID_CHOSEN) != 0)
        return;
    reply = len > REPLY_BYTES_MAX ? NULL : malloc(sizeof(*reply) + len);
    if (r->buckets == NULL)
        r->buckets = calloc(N_BUCKETS, sizeof(struct reply *));
    if (reply == NULL || r->buckets == NULL) {
        free(reply);
        return;
    }
    assert(r->n <= REPLIES_MAX && (msg != NULL || len == 0));
    if (r->n == REPLIES_MAX)
        reply_forget(r, oldest(r));
    *reply = (struct reply){
        .next = *bucket_of(r, to->id),
        .to = *to,
        .kept_ns = now_ns,
        .sync = sync,
        .rc = rc,
        .len = len,
    };
    if (len > 0)
        memcpy(reply->msg, msg, len);
    *bucket_of(r, to->id) = reply;
    list_add_tail(&r->all, &reply->link);
    r->n++;
}

void reply_cache_trim(struct reply_cache *r, uint64_t now_ns)
{
    while (!list_is_empty(&r->all) &&
           now_ns - oldest(r)->kept_ns > ms_to_ns(REPLY_KEEP_MS))
        reply_forget(r, oldest(r));
    if (r->n == 0) {
        free(r->buckets);
        r->buckets = NULL;
    }
}

void reply_cache_free(struct reply_cache *r)
{
    while (!list_is_empty(&r->all))
        reply_forget(r, oldest(r));
    free(r->buckets);
    r->buckets = NULL;
}
