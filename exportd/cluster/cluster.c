/*
 * cluster.c - the map of the cluster: storages, volumes, exports; in memory and in the
 * kv.
 *
 * In:     the kv at start; ad.c and admission.c for changes; storage_poll.c for what
 *         storages report.
 * Out:    the store's pending batch; channels of the storages.
 * Keeps:  an id is never given twice, not even over restarts.
 * Ask:    the order of the fields below. Users' disks carry them.
 */
#include "exportd/cluster/cluster.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>

#include "codec/codec.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "exportd/cluster/deletion.h"
#include "exportd/cluster/exportd_state.h"
#include "exportd/cluster/map_push.h"
#include "exportd/cluster/placement.h"
#include "exportd/cluster/storage_poll.h"
#include "exportd/namespace/fold.h"
#include "exportd/store/cluster_record.h"
#include "exportd/store/kv_record.h"

enum export_flags { EXPORT_SYNC = 1, EXPORT_INLINE = 2, EXPORT_FOLDED = 4 };
enum storage_flags { STORAGE_LOST = 1, STORAGE_CHANGES = 2 };
enum { MAP_START_SHIFT = 32 }; /* see StMapReq.version */

/* ---- the cluster's own record ---- */

static void cluster_put(struct exportd *x)
{
    struct cluster_record r = {
        .next_storage = x->numbers.next_storage,
        .next_volume = x->numbers.next_volume,
        .next_export = x->numbers.next_export,
        .n_starts = x->numbers.n_starts,
        .returns = x->numbers.returns,
    };
    struct kv_record_out f;
    struct key k;

    memcpy(r.cluster_id, x->cluster_id, sizeof(r.cluster_id));
    cluster_record_write(&f, &r);
    key_start(&k, KEY_CLUSTER);
    store_put(x->store, &k, f.bytes, f.len);
}

/* Makes a cluster if the kv is empty; without a record of a cluster it must be. */
static int cluster_make(struct exportd *x, struct err *err)
{
    struct kv_iter *it;
    bool empty;
    int rc = store_scan(x->store, &it);

    if (rc != 0)
        return err_set(err, rc, "scan the metadata store: %s", error_text(rc));
    kv_iter_seek(it, "", 0);
    empty = !kv_iter_valid(it) && kv_iter_error(it) == 0;
    kv_iter_close(it);
    if (!empty)
        return err_set(err, -ROZO_EDAMAGED,
                       "the metadata store is damaged: the cluster's record is missing");
    if (x->config.cluster_id != NULL)
        memcpy(x->cluster_id, x->config.cluster_id, sizeof(x->cluster_id));
    else
        env_random(x->env, x->cluster_id, sizeof(x->cluster_id));
    x->numbers.next_storage = x->numbers.next_volume = x->numbers.next_export = 1;
    return 0;
}

static int cluster_get(struct exportd *x, struct err *err)
{
    struct cluster_record r;
    struct key k;
    const uint8_t *val;
    size_t len;
    int rc;

    key_start(&k, KEY_CLUSTER);
    rc = store_get(x->store, &k, &val, &len);
    if (rc == -ENOENT)
        return cluster_make(x, err);
    if (rc != 0)
        return err_set(err, rc, "read the cluster's record from the metadata store: %s",
                       error_text(rc));
    if (!cluster_record_read(&r, val, len))
        return err_set(
            err, -EINVAL,
            "the cluster's record in the metadata store is corrupt (format %u, "
            "this build knows %u)",
            len > 0 ? val[0] : 0u, (unsigned)KV_RECORD_FORMAT);
    memcpy(x->cluster_id, r.cluster_id, sizeof(x->cluster_id));
    x->numbers.next_storage = r.next_storage;
    x->numbers.next_volume = r.next_volume;
    x->numbers.next_export = r.next_export;
    x->numbers.n_starts = r.n_starts;
    x->numbers.returns = r.returns;
    if (x->config.cluster_id != NULL &&
        memcmp(x->cluster_id, x->config.cluster_id, sizeof(x->cluster_id)) != 0)
        return err_set(err, -EINVAL, "the metadata store is that of another cluster");
    return 0;
}

/* ---- loss of power since the last run ---- */

static void boot_put(struct exportd *x)
{
    struct boot_record r = { .boot = x->config.boot,
                             .stopped_well = x->stopping,
                             .last_loss = x->numbers.last_loss };
    struct kv_record_out f;
    struct key k;

    boot_record_write(&f, &r);
    key_start(&k, KEY_BOOT);
    store_put(x->store, &k, f.bytes, f.len);
}

static int boot_get(struct exportd *x, struct err *err)
{
    struct boot_record r;
    struct key k;
    const uint8_t *val;
    size_t len;
    int rc;

    x->numbers.last_boot = x->config.boot;
    key_start(&k, KEY_BOOT);
    rc = store_get(x->store, &k, &val, &len);
    if (rc == -ENOENT)
        return 0;
    if (rc != 0)
        return err_set(err, rc, "read the boot record from the metadata store: %s",
                       error_text(rc));
    if (!boot_record_read(&r, val, len))
        return err_set(err, -EINVAL, "the boot record in the metadata store is corrupt");
    x->numbers.last_boot = r.boot;
    x->numbers.stopped_well = r.stopped_well;
    x->numbers.last_loss = r.last_loss;
    return 0;
}

/* Notes a loss of power. Stable together with the number of the start. */
static void boot_begin(struct exportd *x)
{
    if (x->numbers.last_boot != x->config.boot && !x->numbers.stopped_well) {
        if (x->numbers.last_boot == BOOT_OF_NO_MACHINE)
            log_warn("the metadata have gone back to an earlier state: changes that were "
                     "acknowledged may be lost");
        else
            log_warn("the machine went down while exportd ran: unsynced changes of its "
                     "last moments may be lost");
        x->numbers.last_loss = x->numbers.n_starts;
    }
    boot_put(x);
}

void cluster_end(struct exportd *x)
{
    boot_put(x);
}

uint32_t cluster_losses(const struct exportd *x)
{
    return x->numbers.last_loss;
}

uint32_t cluster_n_starts(const struct exportd *x)
{
    return x->numbers.n_starts;
}

uint32_t cluster_returns(const struct exportd *x)
{
    return x->numbers.returns;
}

uint64_t cluster_start_number(uint32_t returns, uint32_t start)
{
    return (uint64_t)returns << 32 | start;
}

void map_changed(struct exportd *x)
{
    x->map_version++;
}

/* Makes the first version of a start's maps. */
static uint64_t map_version_first(uint64_t start)
{
    return start << MAP_START_SHIFT;
}

uint64_t cluster_map_start(uint64_t version)
{
    return version >> MAP_START_SHIFT;
}

uint64_t cluster_start(const struct exportd *x)
{
    return cluster_map_start(x->map_version);
}

uint64_t cluster_start_at(const struct exportd *x, bool knows_returns)
{
    return cluster_start_number(knows_returns ? x->numbers.returns : 0,
                                (uint32_t)cluster_start(x));
}

void map_version_raise(struct exportd *x, uint64_t version, uint32_t returns)
{
    assert(returns > x->numbers.returns || version > x->map_version);
    if (version < x->map_version)
        version = x->map_version;
    x->map_version = map_version_first(cluster_map_start(version) + 1);
    x->numbers.returns = returns;
}

/* ---- storages ---- */

struct cluster_storage *storage_find(struct exportd *x, uint32_t id)
{
    LIST_FOREACH(node, &x->storages) {
        struct cluster_storage *s = container_of(node, struct cluster_storage, link);

        if (s->facts.id == id)
            return s;
    }
    return NULL;
}

bool storage_is_lost(struct exportd *x, uint32_t id)
{
    const struct cluster_storage *s = storage_find(x, id);

    return s != NULL && s->facts.lost;
}

struct cluster_storage *storage_find_incarnation(struct exportd *x,
                                                 const uint8_t *incarnation)
{
    LIST_FOREACH(node, &x->storages) {
        struct cluster_storage *s = container_of(node, struct cluster_storage, link);

        if (memcmp(s->facts.incarnation, incarnation, INCARNATION_BYTES) == 0)
            return s;
    }
    return NULL;
}

bool storage_is_cut_off(const struct cluster_storage *s)
{
    return s->channel != NULL && rpc_channel_health(s->channel) == RPC_DOWN;
}

bool storage_is_reachable(const struct cluster_storage *s)
{
    return s->up && s->channel != NULL && rpc_channel_health(s->channel) == RPC_UP;
}

bool storage_is_askable(const struct cluster_storage *s)
{
    return storage_is_reachable(s) && !s->x->is_deposed &&
           storage_has_map(s, map_version_first(cluster_start(s->x)));
}

void storage_send(struct cluster_storage *s, struct rpc_request *rq)
{
    rq->session = cluster_start_at(s->x, s->knows_returns);
    s->n_out++;
    rpc_send(s->channel, rq);
}

static void storage_put(struct cluster_storage *s)
{
    const struct storage_facts *facts = &s->facts;
    struct kv_record_out f;
    uint32_t flags;
    struct key k;

    kv_record_begin(&f);
    kv_record_put_u32(&f, facts->volume);
    kv_record_put_bytes(&f, facts->incarnation, INCARNATION_BYTES);
    kv_record_put_text(&f, facts->host);
    kv_record_put_text(&f, facts->rack);
    kv_record_put_u32(&f, facts->n_addrs);
    for (unsigned i = 0; i < facts->n_addrs; i++)
        kv_record_put_text(&f, facts->addrs[i]);
    flags = (facts->lost ? STORAGE_LOST : 0u) | (facts->changes ? STORAGE_CHANGES : 0u);
    if (flags != 0) /* older records have no flags */
        kv_record_put_u32(&f, flags);
    if (facts->changes)
        kv_record_put_bytes(&f, facts->next_incarnation, INCARNATION_BYTES);
    key_id(&k, KEY_STORAGE, facts->id);
    store_put(s->x->store, &k, f.bytes, f.len);
}

static int storage_get(struct storage_facts *facts, uint32_t id, const uint8_t *val,
                       size_t len)
{
    struct kv_record_in f;
    uint32_t flags;

    *facts = (struct storage_facts){ .id = id };
    kv_record_read(&f, val, len);
    facts->volume = kv_record_get_u32(&f);
    kv_record_get_bytes(&f, facts->incarnation, INCARNATION_BYTES);
    kv_record_get_text(&f, facts->host, HOST_MAX);
    kv_record_get_text(&f, facts->rack, HOST_MAX);
    facts->n_addrs = kv_record_get_u32(&f);
    if (facts->n_addrs > ADDRS_MAX)
        return -EINVAL;
    for (unsigned i = 0; i < facts->n_addrs; i++)
        kv_record_get_text(&f, facts->addrs[i], ADDR_MAX);
    flags = kv_record_end(&f) ? 0 : kv_record_get_u32(&f);
    facts->lost = (flags & STORAGE_LOST) != 0;
    facts->changes = (flags & STORAGE_CHANGES) != 0;
    if (facts->changes)
        kv_record_get_bytes(&f, facts->next_incarnation, INCARNATION_BYTES);
    if ((flags & ~(uint32_t)(STORAGE_LOST | STORAGE_CHANGES)) != 0)
        return -EINVAL;
    return kv_record_end(&f) && id != 0 ? 0 : -EINVAL;
}

static void channel_open(struct cluster_storage *s)
{
    const struct exportd_peers *peers = &s->x->config.peers;
    const char *addrs[ADDRS_MAX];

    for (unsigned i = 0; i < s->facts.n_addrs; i++)
        addrs[i] = s->facts.addrs[i];
    s->channel = peers->open(peers->arg, addrs, s->facts.n_addrs);
}

/* Closes the channel of a storage. Nothing may be outstanding on it. */
static void channel_close(struct cluster_storage *s)
{
    const struct exportd_peers *peers = &s->x->config.peers;

    storage_poll_stop(s);
    if (s->channel != NULL)
        peers->close(peers->arg, s->channel);
    s->channel = NULL;
}

/* Makes a storage and inserts it in the order of ids. */
static struct cluster_storage *storage_new(struct exportd *x,
                                           const struct storage_facts *facts)
{
    struct cluster_storage *s = calloc(1, sizeof(*s));

    if (s == NULL)
        return NULL;
    s->x = x;
    s->facts = *facts;
    s->n_on_disk = 1;
    list_add_tail(&x->storages, &s->link);
    x->n_storages++;
    channel_open(s);
    return s;
}

struct cluster_storage *storage_add(struct exportd *x, const struct storage_facts *facts)
{
    struct cluster_storage *s = storage_new(x, facts);

    if (s == NULL)
        return NULL;
    storage_put(s);
    map_changed(x);
    storage_poll(s);
    return s;
}

void storages_count_disks(struct exportd *x)
{
    LIST_FOREACH(node, &x->storages) {
        struct cluster_storage *s = container_of(node, struct cluster_storage, link);

        s->n_on_disk = 0;
        LIST_FOREACH(other, &x->storages) {
            const struct cluster_storage *o =
                container_of(other, struct cluster_storage, link);

            s->n_on_disk +=
                o == s || (s->disk_id != 0 && o->disk_id == s->disk_id && !o->facts.lost);
        }
    }
}

void storage_change(struct cluster_storage *s, const struct storage_facts *facts)
{
    bool moved = facts->n_addrs != s->facts.n_addrs,
         lost_changed = facts->lost != s->facts.lost;

    for (unsigned i = 0; !moved && i < facts->n_addrs; i++)
        moved = strcmp(facts->addrs[i], s->facts.addrs[i]) != 0;
    if (memcmp(facts->incarnation, s->facts.incarnation, INCARNATION_BYTES) != 0)
        map_push_forget(s);
    if (lost_changed) {
        s->facts.lost = facts->lost;
        storages_count_disks(s->x);
    }
    s->facts = *facts;
    storage_put(s);
    map_changed(s->x);
    s->moved = s->moved || moved;
    if (lost_changed)
        s->x->hooks->lost_changed(s->x);
}

void storage_follow(struct cluster_storage *s)
{
    if (!s->moved || s->n_out > 0)
        return;
    s->moved = false;
    channel_close(s);
    channel_open(s);
}

uint32_t storage_new_id(struct exportd *x)
{
    uint32_t id = x->numbers.next_storage++;

    cluster_put(x);
    return id;
}

void storage_id_is_taken(struct exportd *x, uint32_t id)
{
    if (id >= x->numbers.next_storage && id < UINT32_MAX)
        x->numbers.next_storage = id + 1;
    cluster_put(x);
}

void storage_message(struct cluster_storage *s, Rozo__Storage *msg, char **addrs)
{
    rozo__storage__init(msg);
    for (unsigned i = 0; i < s->facts.n_addrs; i++)
        addrs[i] = s->facts.addrs[i];
    msg->id = s->facts.id;
    msg->n_addresses = s->facts.n_addrs;
    msg->addresses = addrs;
    msg->host = s->facts.host;
    msg->rack = s->facts.rack;
    msg->up = s->up;
    msg->total_bytes = s->total_bytes;
    msg->free_bytes = s->free_bytes;
    msg->volume = s->facts.volume;
    msg->version = s->version;
    msg->error = s->error;
    msg->lost = s->facts.lost;
    msg->incarnation.data = s->facts.incarnation;
    msg->incarnation.len = INCARNATION_BYTES;
}

int storage_messages_make(struct exportd *x, struct storage_messages **out)
{
    size_t n = x->n_storages;
    struct storage_messages *m =
        malloc(sizeof(*m) + n * (sizeof(Rozo__Storage *) + sizeof(Rozo__Storage) +
                                 ADDRS_MAX * sizeof(char *)));
    Rozo__Storage *msgs;
    char **addrs;
    size_t i = 0;

    if (m == NULL)
        return -ENOMEM;
    m->n = n;
    m->list = (Rozo__Storage **)(m + 1);
    msgs = (Rozo__Storage *)(m->list + n);
    addrs = (char **)(msgs + n);
    LIST_FOREACH(node, &x->storages) {
        m->list[i] = &msgs[i];
        storage_message(container_of(node, struct cluster_storage, link), &msgs[i],
                        addrs + i * ADDRS_MAX);
        i++;
    }
    *out = m;
    return 0;
}

/* ---- volumes ---- */

struct volume *volume_find(struct exportd *x, uint32_t id)
{
    LIST_FOREACH(node, &x->volumes) {
        struct volume *v = container_of(node, struct volume, link);

        if (v->id == id)
            return v;
    }
    return NULL;
}

struct volume *volume_find_name(struct exportd *x, const char *name)
{
    LIST_FOREACH(node, &x->volumes) {
        struct volume *v = container_of(node, struct volume, link);

        if (strcmp(v->name, name) == 0)
            return v;
    }
    return NULL;
}

static struct volume *volume_new(struct exportd *x, uint32_t id, const char *name)
{
    struct volume *v = calloc(1, sizeof(*v));

    if (v == NULL)
        return NULL;
    v->id = id;
    snprintf(v->name, sizeof(v->name), "%s", name);
    list_add_tail(&x->volumes, &v->link);
    x->n_volumes++;
    return v;
}

struct volume *volume_add(struct exportd *x, const char *name)
{
    struct volume *v = volume_new(x, x->numbers.next_volume, name);
    struct kv_record_out f;
    struct key k;

    if (v == NULL)
        return NULL;
    x->numbers.next_volume++;
    cluster_put(x);
    kv_record_begin(&f);
    kv_record_put_text(&f, name);
    key_id(&k, KEY_VOLUME, v->id);
    store_put(x->store, &k, f.bytes, f.len);
    return v;
}

int volume_choose(struct exportd *x, const char *name, bool make, struct volume **out,
                  char message[MESSAGE_MAX + 1])
{
    if (name[0] != '\0') {
        *out = volume_find_name(x, name);
        if (*out == NULL)
            snprintf(message, MESSAGE_MAX + 1, "there is no volume %.63s", name);
        return *out == NULL ? -ENOENT : 0;
    }
    if (x->n_volumes > 1) {
        snprintf(message, MESSAGE_MAX + 1, "there are %u volumes: say which one",
                 x->n_volumes);
        return -EINVAL;
    }
    if (x->n_volumes == 0 && !make) {
        snprintf(message, MESSAGE_MAX + 1, "there is no volume yet: add storages first");
        return -ENOENT;
    }
    *out = x->n_volumes == 1 ? container_of(x->volumes.next, struct volume, link)
                             : volume_add(x, "default");
    return *out == NULL ? -ENOMEM : 0;
}

unsigned volume_n_candidates(const struct exportd *x, uint32_t id)
{
    unsigned n = 0;

    LIST_FOREACH(node, &x->storages) {
        const struct cluster_storage *s =
            container_of(node, struct cluster_storage, link);

        n += s->facts.volume == id && !s->facts.lost;
    }
    return n;
}

unsigned volume_n_storages(struct exportd *x, uint32_t id)
{
    unsigned n = 0;

    LIST_FOREACH(node, &x->storages)
        n += container_of(node, struct cluster_storage, link)->facts.volume == id;
    return n;
}

/* ---- exports ---- */

struct export *export_find(struct exportd *x, uint32_t id)
{
    LIST_FOREACH(node, &x->exports) {
        struct export *e = container_of(node, struct export, link);

        if (e->id == id)
            return e;
    }
    return NULL;
}

struct export *export_find_name(struct exportd *x, const char *name)
{
    LIST_FOREACH(node, &x->exports) {
        struct export *e = container_of(node, struct export, link);

        if (strcmp(e->name, name) == 0)
            return e;
    }
    return NULL;
}

static struct export *export_new(struct exportd *x, const struct export *facts)
{
    struct export *e = calloc(1, sizeof(*e));

    if (e == NULL)
        return NULL;
    *e = *facts;
    e->x = x;
    locks_init(&e->locks);
    tokens_init(&e->tokens, &x->hooks->tokens, &x->token_limits, &x->n_tokens);
    list_add_tail(&x->exports, &e->link);
    x->n_exports++;
    return e;
}

static struct namespace_hooks export_hooks(struct export *e)
{
    return (struct namespace_hooks){
        .place = export_place,
        .keeps = e->x->hooks->keeps,
        .deleted = export_deleted,
        .arg = e,
    };
}

struct export *export_add(struct exportd *x, const struct export *facts)
{
    struct export *e = export_new(x, facts);
    struct namespace_hooks hooks = export_hooks(e);
    struct kv_record_out f;
    uint32_t flags = (facts->sync ? EXPORT_SYNC : 0u) |
                     (facts->inline_max != 0 ? EXPORT_INLINE : 0u) |
                     (facts->fold_rules != 0 ? EXPORT_FOLDED : 0u);
    struct key k;

    if (e == NULL)
        return NULL;
    e->id = x->numbers.next_export++;
    cluster_put(x);
    kv_record_begin(&f);
    kv_record_put_text(&f, e->name);
    kv_record_put_u32(&f, e->volume);
    kv_record_put_u32(&f, e->codec);
    kv_record_put_u32(&f, e->layout);
    kv_record_put_u32(&f, e->block_bytes);
    if (flags != 0) /* older records have no flags */
        kv_record_put_u32(&f, flags);
    if (facts->inline_max != 0)
        kv_record_put_u32(&f, facts->inline_max);
    if (facts->fold_rules != 0)
        kv_record_put_u32(&f, facts->fold_rules);
    key_id(&k, KEY_EXPORT, e->id);
    store_put(x->store, &k, f.bytes, f.len);
    namespace_make(&e->ns, x->env, x->store, e->id, &hooks);
    e->ns.inline_max = e->inline_max;
    e->ns.fold_rules = e->fold_rules;
    e->ns.start = x->numbers.n_starts;
    e->ns.last_loss = x->numbers.last_loss;
    e->few_known = true; /* a new export has no files */
    return e;
}

static int export_get(struct export *e, uint32_t id, const uint8_t *val, size_t len)
{
    uint32_t codec, layout, block_bytes, flags;
    struct kv_record_in f;

    *e = (struct export){ .id = id };
    kv_record_read(&f, val, len);
    kv_record_get_text(&f, e->name, NAMES_MAX);
    e->volume = kv_record_get_u32(&f);
    codec = kv_record_get_u32(&f);
    layout = kv_record_get_u32(&f);
    block_bytes = kv_record_get_u32(&f);
    flags = kv_record_end(&f) ? 0 : kv_record_get_u32(&f);
    e->inline_max = (flags & EXPORT_INLINE) != 0 ? kv_record_get_u32(&f) : 0;
    e->fold_rules = (flags & EXPORT_FOLDED) != 0 ? kv_record_get_u32(&f) : 0;
    if (!kv_record_end(&f) ||
        (flags & ~(uint32_t)(EXPORT_SYNC | EXPORT_INLINE | EXPORT_FOLDED)) != 0 ||
        e->inline_max > NAMESPACE_INLINE_MAX || codec > UINT8_MAX ||
        block_bytes > UINT16_MAX || codec_layout(layout) == NULL ||
        codec_get(codec, layout, block_bytes) == NULL)
        return -EINVAL;
    e->codec = (uint8_t)codec;
    e->layout = (uint8_t)layout;
    e->block_bytes = (uint16_t)block_bytes;
    e->sync = (flags & EXPORT_SYNC) != 0;
    return 0;
}

/* ---- loading ---- */

/* Returns the number of a record; the key has no more. */
static int id_get(const struct loaded_record *r, uint32_t *id)
{
    *id = key_get_u32(r->key + 1);
    return r->key_len == 1 + sizeof(*id) ? 0 : -EINVAL;
}

static int load_storage(struct exportd *x, const struct loaded_record *r)
{
    struct storage_facts facts;
    uint32_t id;
    int rc = id_get(r, &id);

    if (rc == 0)
        rc = storage_get(&facts, id, r->val, r->len);

    if (rc == 0 && storage_new(x, &facts) == NULL)
        rc = -ENOMEM;
    return rc;
}

static int load_volume(struct exportd *x, const struct loaded_record *r)
{
    char name[NAMES_MAX + 1];
    struct kv_record_in f;
    uint32_t id;

    kv_record_read(&f, r->val, r->len);
    kv_record_get_text(&f, name, NAMES_MAX);
    if (id_get(r, &id) != 0 || !kv_record_end(&f))
        return -EINVAL;
    return volume_new(x, id, name) == NULL ? -ENOMEM : 0;
}

static int load_export(struct exportd *x, const struct loaded_record *r)
{
    struct export facts, *e;
    struct namespace_hooks hooks;
    uint32_t id;
    int rc = id_get(r, &id);

    if (rc == 0)
        rc = export_get(&facts, id, r->val, r->len);
    if (rc == 0 && facts.fold_rules > FOLD_RULES) {
        log_error(
            "export %s folds names by rules %u, and this build knows %u: an exportd "
            "of a later build made it",
            facts.name, facts.fold_rules, (unsigned)FOLD_RULES);
        rc = -EOPNOTSUPP; /* here the index would soon lack names */
    }
    if (rc != 0)
        return rc;
    e = export_new(x, &facts);
    if (e == NULL)
        return -ENOMEM;
    hooks = export_hooks(e);
    rc = namespace_open(&e->ns, x->env, x->store, id, &hooks);
    e->ns.inline_max = e->inline_max;
    e->ns.fold_rules = e->fold_rules;
    return rc;
}

int cluster_load_kind(struct exportd *x, enum key_kind kind, load_record_fn *load,
                      const char *what, struct err *err)
{
    struct kv_iter *it;
    struct key prefix;
    int rc = store_scan(x->store, &it);

    if (rc != 0)
        return err_set(err, rc, "scan the metadata store: %s", error_text(rc));
    key_start(&prefix, kind);
    kv_iter_seek(it, prefix.bytes, prefix.len);
    for (; rc == 0 && kv_iter_valid(it); kv_iter_next(it)) {
        struct loaded_record r;

        r.key = kv_iter_key(it, &r.key_len);
        r.val = kv_iter_val(it, &r.len);
        if (r.key[0] != kind)
            break;
        rc = r.key_len < 1 + sizeof(uint32_t) ? -EINVAL : load(x, &r);
        if (rc != 0)
            err_set(err, rc, "the record of %s %u in the metadata store: %s", what,
                    r.key_len < 1 + sizeof(uint32_t) ? 0 : key_get_u32(r.key + 1),
                    rc == -EINVAL ? "it is corrupt" : error_text(rc));
    }
    if (rc == 0 && kv_iter_error(it) != 0)
        rc = err_set(err, -EIO,
                     "scan the records of each %s in the metadata store: it is damaged",
                     what);
    kv_iter_close(it);
    return rc;
}

int cluster_load(struct exportd *x, struct err *err)
{
    int rc = cluster_get(x, err);

    if (rc == 0)
        rc = boot_get(x, err);
    if (rc == 0)
        rc = cluster_load_kind(x, KEY_VOLUME, load_volume, "volume", err);
    if (rc == 0)
        rc = cluster_load_kind(x, KEY_STORAGE, load_storage, "storage", err);
    if (rc == 0)
        rc = cluster_load_kind(x, KEY_EXPORT, load_export, "export", err);
    LIST_FOREACH(node, &x->exports) {
        struct export *e = container_of(node, struct export, link);

        if (rc == 0) {
            rc = namespace_gaps_load(&e->ns);
            if (rc != 0)
                err_set(
                    err, rc,
                    "the skipped inode numbers of export %s in the metadata store: %s",
                    e->name, rc == -EINVAL ? "they are corrupt" : error_text(rc));
        }
    }
    return rc;
}

void cluster_begin(struct exportd *x)
{
    uint32_t start = (uint32_t)x->config.starts_min;
    uint32_t returns = (uint32_t)(x->config.starts_min >> 32);

    if (x->numbers.n_starts < start)
        x->numbers.n_starts = start;
    if (x->numbers.returns < returns)
        x->numbers.returns = returns;
    x->numbers.n_starts++;
    x->last_grant = (uint64_t)x->numbers.n_starts << 40;
    x->map_version = map_version_first(x->numbers.n_starts);
    cluster_put(x);
    boot_begin(x);
    LIST_FOREACH(node, &x->exports)
        namespace_begin(&container_of(node, struct export, link)->ns, x->numbers.n_starts,
                        x->numbers.last_loss);
}

void cluster_free(struct exportd *x)
{
    LIST_FOREACH_SAFE(node, &x->storages) {
        struct cluster_storage *s = container_of(node, struct cluster_storage, link);

        assert(deletions_are_over(&s->deletions) && s->n_out == 0);
        channel_close(s);
        free(s);
    }
    LIST_FOREACH_SAFE(node, &x->volumes)
        free(container_of(node, struct volume, link));
    LIST_FOREACH_SAFE(node, &x->exports) {
        struct export *e = container_of(node, struct export, link);

        assert(e->opens == NULL);
        namespace_close(&e->ns);
        locks_free(&e->locks);
        tokens_free(&e->tokens);
        free(e);
    }
}
