/*
 * healed.c - checks that everything is healed.
 *
 * In:     the run, when all faults are over. Out: an error text if I7 is violated.
 */
#include "tests/sim/cluster/checks/healed.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/proto/rozo.pb-c.h"

#include "codec/codec.h"
#include "common/wire/record.h"
#include "tests/sim/cluster/world/metas.h"
#include "tests/sim/cluster/world/servers.h"

enum { READ_BLOCKS = EXTENT_BLOCKS };

static char words[512];

static Rozo__StHealthResp *health_of(const struct sim_storage *s)
{
    Rozo__StHealthReq req = ROZO__ST_HEALTH_REQ__INIT;
    Rozo__StHealthResp *resp = NULL;
    struct answer a;

    req.to_storage = s->id;
    admin_ask(s->host, ROZO__OP__ST_HEALTH, &req.base, &a);
    if (a.rc == 0 && a.status == ROZO__STATUS__OK)
        resp = rozo__st_health_resp__unpack(NULL, a.msg_len, a.msg);
    answer_free(&a);
    return resp;
}

/* Reports, of several faults, one that names its subject. */
bool healed_is_quiet(char *why, size_t why_len)
{
    bool quiet = true, has_subject = false;

    for (unsigned i = 0; i < servers.n_storages && !has_subject; i++) {
        const struct sim_storage *s = &servers.storages[i];
        Rozo__StHealthResp *h = health_of(s);

        if (h == NULL) {
            quiet = false;
            snprintf(why, why_len, "storage %u does not answer", s->id);
        } else if (h->queued != 0 || h->unhealed != 0 || h->uncommitted != 0 ||
                   h->missed_ranges != 0 || h->rebuild_state == 1) {
            quiet = false;
            has_subject = h->problem[0] != '\0' && h->queued + h->unhealed > 0;
            snprintf(why, why_len,
                     "storage %u: %llu queued, %llu unhealed, %llu uncommitted of %llu "
                     "pending, "
                     "%llu missed ranges%s: %s",
                     s->id, (unsigned long long)h->queued,
                     (unsigned long long)h->unhealed, (unsigned long long)h->uncommitted,
                     (unsigned long long)h->pending_records,
                     (unsigned long long)h->missed_ranges,
                     h->rebuild_state == 1 ? ", a rebuild" : "", h->problem);
        }
        rozo__st_health_resp__free_unpacked(h, NULL);
    }
    return quiet;
}

void scrub_start_all(void)
{
    for (unsigned i = 0; i < servers.n_storages; i++) {
        const struct sim_storage *s = &servers.storages[i];
        Rozo__StHealReq req = ROZO__ST_HEAL_REQ__INIT;

        req.to_storage = s->id;
        req.scrub = 1;
        admin_tell(s->host, ROZO__OP__ST_HEAL, &req.base);
    }
}

bool scrub_is_done(uint64_t *found)
{
    bool done = true;

    *found = 0;
    for (unsigned i = 0; i < servers.n_storages; i++) {
        const struct sim_storage *s = &servers.storages[i];
        Rozo__StHealthResp *h = health_of(s);

        done = done && h != NULL && h->scrub_state == 2;
        *found += h == NULL ? 0 : h->scrub_found;
        for (size_t j = 0; h != NULL && done && j < h->n_scrub_findings && j < 3; j++)
            snprintf(words, sizeof(words), "storage %u: %s", s->id, h->scrub_findings[j]);
        rozo__st_health_resp__free_unpacked(h, NULL);
    }
    return done;
}

const char *scrub_words(void)
{
    return words;
}

/* ---- data at the homes ---- */

/* A record of one block at one home. */
struct seen {
    enum record_state state;
    uint64_t version;
};

static const struct sim_storage *storage_of(uint32_t id)
{
    for (unsigned i = 0; i < servers.n_storages; i++) {
        if (servers.storages[i].id == id)
            return &servers.storages[i];
    }
    return NULL;
}

/* Parses the records of an answer. Returns false if they are corrupt. */
static bool records_read(const struct codec *codec, const struct file_id *id, unsigned p,
                         uint64_t first, const struct answer *a, struct seen *seen)
{
    size_t head = RECORD_HEADER_BYTES + codec_overhang_bytes(codec, p);
    size_t at = READ_BLOCKS * head;

    if (a->payload_len < at)
        return false;
    for (unsigned i = 0; i < READ_BLOCKS; i++) {
        const uint8_t *h = a->payload + i * head;
        struct record_header header;
        size_t row;

        seen[i].state = record_inspect(h, file_id_hash(id), first + i, p, 4096, &header);
        seen[i].version = header.version;
        if (seen[i].state != RECORD_IS_DATA)
            continue;
        row = codec_row_bytes(codec, header.user_bytes);
        if (at + row > a->payload_len)
            return false;
        if (record_crc(h, h + RECORD_HEADER_BYTES, head - RECORD_HEADER_BYTES,
                       a->payload + at, row) != header.crc)
            seen[i].state = RECORD_IS_DAMAGED;
        at += row;
    }
    return true;
}

static bool candidate_read(const Rozo__FileRef *ref, const struct codec *codec,
                           unsigned candidate, unsigned p, uint64_t first,
                           struct seen *seen, bool *no_file)
{
    const struct sim_storage *s = storage_of(ref->storages[candidate]);
    Rozo__StReadReq req = ROZO__ST_READ_REQ__INIT;
    struct file_id id;
    struct answer a;
    bool good;

    file_id_get(ref->file_id.data, &id);
    req.ref = (Rozo__FileRef *)(uintptr_t)ref;
    req.projection = p;
    req.first_block = first;
    req.n_blocks = READ_BLOCKS;
    req.to_storage = ref->storages[candidate];
    admin_ask(s->host, ROZO__OP__ST_READ, &req.base, &a);
    *no_file = a.rc == 0 && a.status == ROZO__STATUS__NO_FILE;
    good = a.rc == 0 && a.status == ROZO__STATUS__OK &&
           records_read(codec, &id, p, first, &a, seen);
    if (!good && !*no_file)
        snprintf(words, sizeof(words),
                 "ino %llu projection %u at storage %u: rc %d status %u",
                 (unsigned long long)id.ino, p, ref->storages[candidate], a.rc, a.status);
    answer_free(&a);
    return good;
}

static const char *file_check(const Rozo__AdInodesResp__Inode *in, struct healed *out)
{
    const struct codec *codec =
        codec_get(in->ref->codec, in->ref->layout, in->ref->block_bytes);
    static struct seen seen[CODEC_N_MAX][READ_BLOCKS];
    unsigned n = codec_n(codec), n_missing = 0;
    struct file_id id;

    file_id_get(in->ref->file_id.data, &id);
    out->wrong_ino = id.ino;
    out->wrong_block = 0;
    for (unsigned p = 0; p < n; p++) {
        bool no_file;

        if (candidate_read(in->ref, codec, p, p, 0, seen[p], &no_file))
            continue;
        if (!no_file)
            return words;
        memset(seen[p], 0, sizeof(seen[p]));
        for (unsigned b = 0; b < READ_BLOCKS; b++)
            seen[p][b].state = RECORD_IS_HOLE;
        n_missing++;
    }
    if (n_missing == n)
        return NULL; /* the file was never written */
    for (unsigned b = 0; b < READ_BLOCKS; b++) {
        for (unsigned p = 0; p < n; p++) {
            if (seen[p][b].state == seen[0][b].state &&
                seen[p][b].state != RECORD_IS_DAMAGED &&
                (seen[p][b].version == seen[0][b].version))
                continue;
            out->wrong_block = b;
            snprintf(
                words, sizeof(words),
                "ino %llu block %u: home 0 (storage %u) has %s %llx, home %u (storage "
                "%u) "
                "has %s %llx",
                (unsigned long long)id.ino, b, in->ref->storages[0],
                seen[0][b].state == RECORD_IS_DATA   ? "data"
                : seen[0][b].state == RECORD_IS_HOLE ? "a hole"
                                                     : "damage",
                (unsigned long long)seen[0][b].version, p, in->ref->storages[p],
                seen[p][b].state == RECORD_IS_DATA   ? "data"
                : seen[p][b].state == RECORD_IS_HOLE ? "a hole"
                                                     : "damage",
                (unsigned long long)seen[p][b].version);
            return words;
        }
        out->n_records += seen[0][b].state == RECORD_IS_DATA;
        out->n_holes += seen[0][b].state == RECORD_IS_HOLE;
    }
    return NULL;
}

/* Checks that a candidate has no record of another home's projection that the home
 * has as new or newer. A candidate that does not know its state keeps nothing. */
static const char *spare_check(const Rozo__FileRef *ref, const struct codec *codec,
                               unsigned candidate, unsigned p, const struct seen *home)
{
    static struct seen seen[READ_BLOCKS];
    struct file_id id;
    bool no_file;

    if (!candidate_read(ref, codec, candidate, p, 0, seen, &no_file))
        return NULL;
    file_id_get(ref->file_id.data, &id);
    for (unsigned b = 0; b < READ_BLOCKS; b++) {
        if (seen[b].state != RECORD_IS_DATA || home[b].state != RECORD_IS_DATA ||
            seen[b].version > home[b].version)
            continue;
        snprintf(
            words, sizeof(words),
            "ino %llu block %u: storage %u keeps projection %u of %llx, and its home "
            "(storage %u) has %llx",
            (unsigned long long)id.ino, b, ref->storages[candidate], p,
            (unsigned long long)seen[b].version, ref->storages[p],
            (unsigned long long)home[b].version);
        return words;
    }
    return NULL;
}

static const char *spares_check(const Rozo__FileRef *ref)
{
    const struct codec *codec = codec_get(ref->codec, ref->layout, ref->block_bytes);
    static struct seen home[READ_BLOCKS];
    const char *wrong = NULL;
    bool no_file;

    for (unsigned p = 0; p < codec_n(codec) && wrong == NULL; p++) {
        if (!candidate_read(ref, codec, p, p, 0, home, &no_file))
            continue;
        for (unsigned i = 0; i < ref->n_storages && wrong == NULL; i++)
            wrong = i == p ? NULL : spare_check(ref, codec, i, p, home);
    }
    return wrong;
}

static Rozo__AdInodesResp *inodes_ask(uint64_t only)
{
    Rozo__AdInodesReq req = ROZO__AD_INODES_REQ__INIT;
    Rozo__AdInodesResp *resp = NULL;
    struct answer a;

    req.export_id = 1;
    req.max_inodes = 1000;
    req.n_only = only != 0;
    req.only = &only;
    metas_ask(ROZO__OP__AD_INODES, &req.base, &a);
    if (a.rc == 0 && a.status == ROZO__STATUS__OK)
        resp = rozo__ad_inodes_resp__unpack(NULL, a.msg_len, a.msg);
    answer_free(&a);
    return resp;
}

/* Tells whether the body matches its head. */
static bool body_is_right(const struct answer *a, const struct codec *codec, unsigned p,
                          const struct record_header *h)
{
    size_t head = RECORD_HEADER_BYTES + codec_overhang_bytes(codec, p);
    size_t row = codec_row_bytes(codec, h->user_bytes);

    return a->payload_len == head + row &&
           record_crc(a->payload, a->payload + RECORD_HEADER_BYTES,
                      head - RECORD_HEADER_BYTES, a->payload + head, row) == h->crc;
}

/* A record of one block, one projection at one candidate. */
struct one {
    bool is_here; /* false: the file does not exist */
    bool is_damaged;
    bool body_is_wrong; /* although the head is right */
    int rc;
    unsigned status;
    struct seen seen;
};

static struct one one_read(Rozo__FileRef *ref, const struct codec *codec,
                           unsigned candidate, unsigned p, uint64_t block)
{
    const struct sim_storage *s = storage_of(ref->storages[candidate]);
    Rozo__StReadReq req = ROZO__ST_READ_REQ__INIT;
    struct record_header h = { 0 };
    struct one one = { .seen.state = RECORD_IS_DAMAGED };
    struct file_id id;
    struct answer a;

    file_id_get(ref->file_id.data, &id);
    req.ref = ref;
    req.projection = p;
    req.first_block = block;
    req.n_blocks = 1;
    req.to_storage = s->id;
    admin_ask(s->host, ROZO__OP__ST_READ, &req.base, &a);
    one.rc = a.rc;
    one.status = a.status;
    one.is_here = a.rc != 0 || a.status != ROZO__STATUS__NO_FILE;
    if (a.rc == 0 && a.status == ROZO__STATUS__OK &&
        a.payload_len >= RECORD_HEADER_BYTES + codec_overhang_bytes(codec, p)) {
        one.seen.state =
            record_inspect(a.payload, file_id_hash(&id), block, p, ref->block_bytes, &h);
        one.seen.version = h.version;
        one.body_is_wrong =
            one.seen.state == RECORD_IS_DATA && !body_is_right(&a, codec, p, &h);
    }
    one.is_damaged =
        one.is_here && (one.seen.state == RECORD_IS_DAMAGED || one.body_is_wrong);
    answer_free(&a);
    return one;
}

static void dump_one(Rozo__FileRef *ref, const struct codec *codec, unsigned candidate,
                     unsigned p, uint64_t block)
{
    const struct one one = one_read(ref, codec, candidate, p, block);
    unsigned storage = ref->storages[candidate];

    if (!one.is_here)
        return;
    if (one.rc != 0 || one.status != ROZO__STATUS__OK) {
        fprintf(stderr, "  storage %u projection %u: rc %d status %u\n", storage, p,
                one.rc, one.status);
        return;
    }
    if (one.body_is_wrong)
        fprintf(stderr, "  storage %u projection %u, whose body is not right:\n", storage,
                p);
    fprintf(stderr, "  storage %u%s projection %u: %s %llx\n", storage,
            p == candidate ? " (home)" : "", p,
            one.seen.state == RECORD_IS_DATA   ? "data"
            : one.seen.state == RECORD_IS_HOLE ? "hole"
                                               : "damaged",
            (unsigned long long)one.seen.version);
}

void healed_dump(uint64_t ino, uint64_t block)
{
    Rozo__AdInodesResp *resp = inodes_ask(ino);

    for (size_t i = 0; resp != NULL && i < resp->n_inodes; i++) {
        Rozo__FileRef *ref = resp->inodes[i]->ref;
        const struct codec *codec = codec_get(ref->codec, ref->layout, ref->block_bytes);

        fprintf(stderr, "inode %llu block %llu:\n", (unsigned long long)ino,
                (unsigned long long)block);
        for (size_t c = 0; c < ref->n_storages; c++) {
            for (unsigned p = 0; p < codec_n(codec); p++)
                dump_one(ref, codec, (unsigned)c, p, block);
        }
    }
    rozo__ad_inodes_resp__free_unpacked(resp, NULL);
}

static bool is_lost(Rozo__FileRef *ref, uint64_t block)
{
    const struct codec *codec = codec_get(ref->codec, ref->layout, ref->block_bytes);
    unsigned c = (unsigned)ref->n_storages, k = codec_k(codec);
    uint32_t whole = 0, has = 0, damaged = 0;
    uint64_t newest = 0;

    for (unsigned i = 0; i < c; i++) {
        for (unsigned p = 0; p < codec_n(codec); p++) {
            const struct one one = one_read(ref, codec, i, p, block);

            damaged |= one.is_damaged ? 1u << i : 0;
            if (one.is_damaged || !one.is_here || one.seen.version < newest)
                continue;
            if (one.seen.version > newest)
                whole = has = 0;
            newest = one.seen.version;
            if (one.seen.state == RECORD_IS_DATA) {
                whole |= 1u << p;
                has |= 1u << i;
            }
        }
    }
    return (unsigned)__builtin_popcount(whole) < k &&
           (unsigned)__builtin_popcount(has | damaged) >=
               quorum_read(codec_layout(ref->layout), c, ref->full_quorum);
}

bool healed_is_lost(uint64_t ino, uint64_t block)
{
    Rozo__AdInodesResp *resp = inodes_ask(ino);
    bool lost =
        resp != NULL && resp->n_inodes == 1 && is_lost(resp->inodes[0]->ref, block);

    rozo__ad_inodes_resp__free_unpacked(resp, NULL);
    return lost;
}

const char *healed_check(struct healed *out)
{
    Rozo__AdInodesResp *resp = inodes_ask(0);
    const char *wrong = NULL;

    memset(out, 0, sizeof(*out));
    if (resp == NULL)
        return "exportd does not list its inodes";
    for (size_t i = 0; i < resp->n_inodes && wrong == NULL; i++) {
        if (resp->inodes[i]->removed)
            continue;
        out->n_files++;
        wrong = file_check(resp->inodes[i], out);
    }
    if (wrong == NULL)
        out->wrong_ino = 0;
    rozo__ad_inodes_resp__free_unpacked(resp, NULL);
    return wrong;
}

const char *healed_spares(void)
{
    Rozo__AdInodesResp *resp = inodes_ask(0);
    const char *wrong = NULL;

    for (size_t i = 0; resp != NULL && i < resp->n_inodes && wrong == NULL; i++)
        wrong = resp->inodes[i]->removed ? NULL : spares_check(resp->inodes[i]->ref);
    rozo__ad_inodes_resp__free_unpacked(resp, NULL);
    return wrong;
}

const char *healed_orphans(bool (*is_named)(uint64_t ino))
{
    Rozo__AdInodesResp *resp = inodes_ask(0);
    const char *wrong = NULL;

    if (resp == NULL)
        return "exportd does not list its inodes";
    for (size_t i = 0; i < resp->n_inodes && wrong == NULL; i++) {
        const Rozo__AdInodesResp__Inode *in = resp->inodes[i];
        struct file_id id;

        file_id_get(in->ref->file_id.data, &id);
        if (in->removed || (!in->orphan && is_named(id.ino)))
            continue;
        snprintf(words, sizeof(words), "inode %llu has no name, and is %s",
                 (unsigned long long)id.ino,
                 in->orphan ? "kept for a session that is gone" : "never deleted");
        wrong = words;
    }
    rozo__ad_inodes_resp__free_unpacked(resp, NULL);
    return wrong;
}

/* ---- ownerless projection files ---- */

enum { STRAYS_A_CALL = 256, STRAYS_MAX = 4096 };

/* The inodes with files on one disk; a number may occur more than once. */
struct on_disk {
    unsigned storage;
    unsigned n;
    uint64_t inos[STRAYS_MAX];
};

static void on_disk_name(void *arg, const char *path, struct disk_file *file)
{
    struct on_disk *d = arg;
    uint64_t ino;

    (void)file;
    if (sscanf(path, "objects/%*2x/%*2x/%*16x%16" SCNx64, &ino) == 1 && d->n < STRAYS_MAX)
        d->inos[d->n++] = ino;
}

static bool has_ino(const Rozo__AdInodesResp *resp, uint64_t ino)
{
    struct file_id id;

    for (size_t i = 0; i < resp->n_unknown; i++) {
        if (resp->unknown[i] == ino)
            return true;
    }
    for (size_t i = 0; i < resp->n_inodes; i++) {
        file_id_get(resp->inodes[i]->ref->file_id.data, &id);
        if (id.ino == ino)
            return !resp->inodes[i]->removed;
    }
    return false;
}

/* Checks with exportd that none of these is gone; inodes
 * whose deletion is in progress count as gone, too. */
static const char *strays_ask(const struct on_disk *d, unsigned from, unsigned n)
{
    Rozo__AdInodesReq req = ROZO__AD_INODES_REQ__INIT;
    Rozo__AdInodesResp *resp = NULL;
    const char *wrong = "exportd does not answer which inodes are gone";
    struct answer a;

    req.export_id = 1;
    req.n_only = n;
    req.only = (uint64_t *)(uintptr_t)d->inos + from;
    metas_ask(ROZO__OP__AD_INODES, &req.base, &a);
    if (a.rc == 0 && a.status == ROZO__STATUS__OK)
        resp = rozo__ad_inodes_resp__unpack(NULL, a.msg_len, a.msg);
    answer_free(&a);
    if (resp == NULL)
        return wrong;
    wrong = NULL;
    for (unsigned i = from; i < from + n && wrong == NULL; i++) {
        if (has_ino(resp, d->inos[i]))
            continue;
        snprintf(words, sizeof(words),
                 "storage %u has files of inode %llu, which is gone", d->storage,
                 (unsigned long long)d->inos[i]);
        wrong = words;
    }
    rozo__ad_inodes_resp__free_unpacked(resp, NULL);
    return wrong;
}

const char *healed_strays(void)
{
    static struct on_disk d;
    const char *wrong = NULL;

    for (unsigned s = 0; s < servers.n_storages && wrong == NULL; s++) {
        d.storage = servers.storages[s].id;
        d.n = 0;
        sim_disk_each(&servers.storages[s].disk, on_disk_name, &d);
        for (unsigned i = 0; i < d.n && wrong == NULL; i += STRAYS_A_CALL)
            wrong = strays_ask(&d, i, d.n - i < STRAYS_A_CALL ? d.n - i : STRAYS_A_CALL);
    }
    return wrong;
}
