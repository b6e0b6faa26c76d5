/*
 * sim_records.c - records of a simulated storage, and the older ones kept until a commit.
 *
 * In:     requests and faults. Thread: one.
 * Keeps:  a watermark covers only versions that are stable on enough storages;
 *         net->n_unsafe counts violations.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/sim_net_in.h"

uint8_t *bytes_new(size_t len)
{
    uint32_t *p = malloc(sizeof(uint64_t) + len);

    assert(p != NULL);
    p[0] = 1;
    return (uint8_t *)p + sizeof(uint64_t);
}

static uint8_t *bytes_ref(uint8_t *bytes)
{
    if (bytes != NULL)
        ++*(uint32_t *)(void *)(bytes - sizeof(uint64_t));
    return bytes;
}

static void bytes_unref(uint8_t *bytes)
{
    uint32_t *p = bytes == NULL ? NULL : (uint32_t *)(void *)(bytes - sizeof(uint64_t));

    if (p != NULL && --p[0] == 0)
        free(p);
}

void record_set(struct sim_record *record, uint64_t version, uint8_t *bytes, uint32_t len)
{
    bytes_unref(record->bytes);
    *record = (struct sim_record){ .version = version, .bytes = bytes, .len = len };
}

void record_copy(struct sim_record *to, const struct sim_record *from)
{
    uint8_t *bytes = bytes_ref(from->bytes);

    record_set(to, from->version, bytes, from->len);
}

static void older_push(struct sim_older *older, const struct sim_record *record)
{
    if (older->n == older->n_max) {
        older->n_max = older->n_max == 0 ? 4 : older->n_max * 2;
        older->v = realloc(older->v, older->n_max * sizeof(*older->v));
        assert(older->v != NULL);
    }
    older->v[older->n] = (struct sim_record){ 0 };
    record_copy(&older->v[older->n++], record);
}

void older_forget(struct sim_older *older, uint64_t version)
{
    unsigned n = 0;

    for (unsigned i = 0; i < older->n; i++) {
        if (older->v[i].version < version)
            bytes_unref(older->v[i].bytes);
        else
            older->v[n++] = older->v[i];
    }
    older->n = n;
}

void older_forget_from(struct sim_older *older, uint64_t version)
{
    while (older->n > 0 && older->v[older->n - 1].version >= version)
        bytes_unref(older->v[--older->n].bytes);
    for (unsigned i = 0; i < older->n;) {
        if (!older->v[i].below) {
            i++;
            continue;
        }
        memmove(&older->v[i], &older->v[i + 1],
                (--older->n - i) * sizeof(older->v[0])); /* a mark has no bytes */
    }
}

void block_replace(const struct sim_net *net, struct sim_projection *p, uint64_t b,
                   uint64_t version, uint8_t *bytes, uint32_t len)
{
    bool is_first =
        p->now[b].version == 0 && p->now[b].bytes == NULL && p->older[b].n == 0;

    if (p->now[b].version != version && !(is_first && bytes != NULL) && !net->no_journal)
        older_push(&p->older[b], &p->now[b]);
    record_set(&p->now[b], version, bytes, len);
}

void block_mark_below(struct sim_projection *p, unsigned b, uint64_t version)
{
    struct sim_older *older = &p->older[b];
    unsigned at = older->n;

    while (at > 0 && older->v[at - 1].version > version)
        at--;
    if (at == 0 || older->v[at - 1].version == version) /* v[0] is the committed record */
        return;
    older_push(older, &(struct sim_record){ 0 });
    memmove(&older->v[at + 1], &older->v[at], (older->n - 1 - at) * sizeof(older->v[0]));
    older->v[at] = (struct sim_record){ .version = version, .below = true };
}

void older_synced(struct sim_older *older)
{
    for (unsigned i = 0; i < older->n; i++)
        older->v[i].below = false;
}

const struct sim_record *block_at(const struct sim_net *net,
                                  const struct sim_projection *p, uint64_t b,
                                  uint64_t at_most)
{
    if (at_most == 0 || net->no_at_most || p->now[b].version <= at_most)
        return &p->now[b];
    for (unsigned i = p->older[b].n; i > 0; i--) {
        if (p->older[b].v[i - 1].version <= at_most)
            return &p->older[b].v[i - 1];
    }
    return NULL;
}

void block_apply(struct sim_net *net, struct sim_projection *p, unsigned b,
                 uint64_t version)
{
    unsigned q = quorum_write(codec_layout(net->target.layout), net->target.n_storages);

    if (sim_net_count_since(net, b, version) < q)
        net->n_unsafe++;
    older_forget(&p->older[b], version);
    if (p->now[b].version == version) {
        record_copy(&p->stable[b], &p->now[b]);
    } else if (p->stable[b].version < version) {
        assert(p->older[b].n > 0 && p->older[b].v[0].version == version);
        record_copy(&p->stable[b], &p->older[b].v[0]);
    }
}

/* Returns the newest pending version that this watermark covers; 0: none. */
static uint64_t block_covered(const struct sim_projection *p, unsigned b,
                              uint64_t durable)
{
    uint64_t found = 0;

    if (p->older[b].n == 0)
        return 0;
    for (unsigned i = 1; i <= p->older[b].n; i++) { /* v[0] is the committed record */
        uint64_t v = i == p->older[b].n ? p->now[b].version : p->older[b].v[i].version;

        if (version_epoch(v) == version_epoch(durable) && v <= durable)
            found = v;
    }
    return found;
}

void storage_commit(struct sim_net *net, struct sim_storage *s, size_t n_durable,
                    const uint64_t *durable)
{
    for (size_t d = 0; d < n_durable; d++) {
        for (unsigned i = 0; i < codec_n(net->codec); i++) {
            struct sim_projection *p = &s->projections[i];

            for (unsigned b = 0; p->here && b < SIM_BLOCKS; b++) {
                uint64_t version = block_covered(p, b, durable[d]);

                if (version == 0)
                    continue;
                p->here_stable = true;
                block_apply(net, p, b, version);
            }
        }
    }
}

bool is_pending(const struct sim_projection *p, uint64_t first, uint64_t end)
{
    for (uint64_t b = first; p->here && b < end && b < SIM_BLOCKS; b++) {
        if (p->older[b].n > 0)
            return true;
    }
    return false;
}
