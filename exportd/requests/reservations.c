/*
 * reservations.c - streams that are reserved for hosts, and what storages can carry.
 *
 * In:     requests of administrators, by ad_stream.c; the store at the start.
 * Out:    records of the store, and a new map of the cluster after each change.
 * Keeps:  at no storage more is reserved than it can carry, wherever files lie.
 */
#include "exportd/requests/reservations.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codec/codec.h"
#include "exportd/cluster/cluster.h"
#include "exportd/requests/requests.h"
#include "exportd/sessions/session.h"
#include "exportd/store/kv_record.h"
#include "exportd/store/store.h"

enum { KEY_HEAD = 1 + 4 }; /* bytes of a key before the host */

void reservations_init(struct reservations *all)
{
    list_init(&all->list);
}

void reservations_free(struct reservations *all)
{
    LIST_FOREACH_SAFE(node, &all->list)
        free(container_of(node, struct reservation, link));
    list_init(&all->list);
    all->n = 0;
}

struct reservation *reservation_find(const struct exportd *x, uint32_t export,
                                     const char *host)
{
    LIST_FOREACH(node, &x->requests->reservations.list) {
        struct reservation *r = container_of(node, struct reservation, link);

        if (r->export == export && strcmp(r->host, host) == 0)
            return r;
    }
    return NULL;
}

uint64_t reservation_rate_of(const struct session *session)
{
    struct exportd *x = session->export->x;

    LIST_FOREACH(node, &x->requests->reservations.list) {
        const struct reservation *r = container_of(node, struct reservation, link);

        if (r->export == session->export->id && session_is_of_host(session, r->host))
            return r->rate;
    }
    return 0;
}

/* ---- load and limits ---- */

/* Adds what a reservation may need of a storage of its volume. A read takes a projection
 * of each block from k storages, a write puts one onto n: each of them moves 1/k of the
 * bytes. */
static void load_add(struct reserved_load *load, const struct reservation *r,
                     const struct export *e)
{
    uint64_t k = codec_layout(e->layout)->k, share = (r->rate + k - 1) / k;

    load->read_bytes += r->n_reads * share;
    load->written_bytes += r->n_writes * share;
}

/* Sums up the reservations without the one of this host and export (NULL: with all). */
static struct reserved_load load_without(const struct cluster_storage *s,
                                         const struct reservation *without)
{
    struct reserved_load load = { 0 };

    LIST_FOREACH(node, &s->x->requests->reservations.list) {
        const struct reservation *r = container_of(node, struct reservation, link);
        const struct export *e = export_find(s->x, r->export);

        if (e != NULL && e->volume == s->facts.volume && r != without)
            load_add(&load, r, e);
    }
    return load;
}

struct reserved_load reserved_load_of(const struct cluster_storage *s)
{
    return load_without(s, NULL);
}

uint64_t reserved_bytes_of(const struct cluster_storage *s)
{
    struct reserved_load load = reserved_load_of(s);

    return load.read_bytes + load.written_bytes;
}

static double mb(uint64_t n_bytes)
{
    return (double)n_bytes / 1e6;
}

/* Returns 0 if a storage can carry so much more, or -errno with a message. */
static int storage_admit(const struct cluster_storage *s, struct reserved_load has,
                         struct reserved_load more, char message[MESSAGE_MAX + 1])
{
    uint64_t link_bytes = s->link_bytes * s->facts.n_addrs;
    uint64_t all = has.read_bytes + has.written_bytes;
    uint64_t all_more = more.read_bytes + more.written_bytes;
    bool reads = has.read_bytes + more.read_bytes > link_bytes;

    if (s->stream_bytes == 0) {
        snprintf(message, MESSAGE_MAX + 1, "storage %u (%.64s) %s", s->facts.id,
                 s->facts.host,
                 s->asked && s->up
                     ? "does not say how much it can carry: set storaged.stream_mb there"
                     : "is not up, and has not said how much it can carry");
        return -EINVAL;
    }
    if (all + all_more > s->stream_bytes) {
        snprintf(message, MESSAGE_MAX + 1,
                 "storage %u (%.64s) carries %.1f MB/s of streams: %.1f are reserved, "
                 "and this needs %.1f more",
                 s->facts.id, s->facts.host, mb(s->stream_bytes), mb(all), mb(all_more));
        return -ENOSPC;
    }
    if (link_bytes == 0 ||
        (!reads && has.written_bytes + more.written_bytes <= link_bytes))
        return 0;
    snprintf(message, MESSAGE_MAX + 1,
             "the links (%u) of storage %u (%.64s) carry %.1f MB/s %s it: %.1f are "
             "reserved, and this needs %.1f more",
             s->facts.n_addrs, s->facts.id, s->facts.host, mb(link_bytes),
             reads ? "from" : "to", mb(reads ? has.read_bytes : has.written_bytes),
             mb(reads ? more.read_bytes : more.written_bytes));
    return -ENOSPC;
}

int reservation_admit(struct exportd *x, const struct reservation *wanted,
                      char message[MESSAGE_MAX + 1])
{
    const struct reservation *old = reservation_find(x, wanted->export, wanted->host);
    const struct export *e = export_find(x, wanted->export);
    struct reserved_load more = { 0 };
    int rc = 0;

    assert(e != NULL);
    load_add(&more, wanted, e);
    LIST_FOREACH(node, &x->storages) {
        const struct cluster_storage *s =
            container_of(node, struct cluster_storage, link);

        if (rc == 0 && s->facts.volume == e->volume && !s->facts.lost)
            rc = storage_admit(s, load_without(s, old), more, message);
    }
    return rc;
}

/* ---- the store ---- */

static void key_stream(struct key *k, const struct reservation *r)
{
    key_id(k, KEY_STREAM, r->export);
    key_add_bytes(k, r->host, strlen(r->host));
}

static int reservation_new(struct reservations *all, const struct reservation *facts)
{
    struct reservation *r;

    if (all->n >= RESERVATIONS_MAX)
        return -EBUSY;
    r = malloc(sizeof(*r));
    if (r == NULL)
        return -ENOMEM;
    *r = *facts;
    list_add_tail(&all->list, &r->link);
    all->n++;
    return 0;
}

int reservation_put(struct exportd *x, const struct reservation *wanted)
{
    struct reservation *old = reservation_find(x, wanted->export, wanted->host);
    struct kv_record_out f;
    struct key k;

    if (old != NULL) {
        old->n_reads = wanted->n_reads;
        old->n_writes = wanted->n_writes;
        old->rate = wanted->rate;
    } else {
        int rc = reservation_new(&x->requests->reservations, wanted);

        if (rc != 0)
            return rc;
    }
    kv_record_begin(&f);
    kv_record_put_u32(&f, wanted->n_reads);
    kv_record_put_u32(&f, wanted->n_writes);
    kv_record_put_u64(&f, wanted->rate);
    key_stream(&k, wanted);
    store_put(x->store, &k, f.bytes, f.len);
    map_changed(x);
    return 0;
}

void reservation_drop(struct exportd *x, struct reservation *r)
{
    struct key k;

    key_stream(&k, r);
    store_delete(x->store, &k);
    map_changed(x);
    list_remove(&r->link);
    x->requests->reservations.n--;
    free(r);
}

static int load_reservation(struct exportd *x, const struct loaded_record *record)
{
    const uint8_t *key = record->key;
    size_t key_len = record->key_len;
    struct reservation r = { 0 };
    struct kv_record_in f;

    if (key_len <= KEY_HEAD || key_len > KEY_HEAD + HOST_MAX)
        return -EINVAL;
    r.export = key_get_u32(key + 1);
    memcpy(r.host, key + KEY_HEAD, key_len - KEY_HEAD);
    kv_record_read(&f, record->val, record->len);
    r.n_reads = kv_record_get_u32(&f);
    r.n_writes = kv_record_get_u32(&f);
    r.rate = kv_record_get_u64(&f);
    if (!kv_record_end(&f) || r.n_reads > RESERVED_STREAMS_MAX ||
        r.n_writes > RESERVED_STREAMS_MAX || r.rate == 0 || r.rate > RESERVED_RATE_MAX ||
        export_find(x, r.export) == NULL)
        return -EINVAL;
    return reservation_new(&x->requests->reservations, &r);
}

int reservations_load(struct exportd *x, struct err *err)
{
    return cluster_load_kind(x, KEY_STREAM, load_reservation, "streams of export", err);
}
