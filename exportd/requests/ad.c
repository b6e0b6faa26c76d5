/*
 * ad.c - administration: AD_STATUS, AD_STORAGE_LOST, AD_VOLUME_CREATE, AD_EXPORT_CREATE.
 *
 * AD_STORAGE_ADD and _REPLACE are in admission.c, AD_INODES is in inodes.c.
 *
 * In:     requests of nodes (administrators), decoded; every field is checked here.
 * Out:    the map, changed; answers, with an error text if refused.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "codec/codec.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "exportd/cluster/answer.h"
#include "exportd/cluster/cluster.h"
#include "exportd/cluster/exportd_state.h"
#include "exportd/namespace/fold.h"
#include "exportd/requests/requests.h"

static bool name_is_good(const char *name)
{
    size_t len = strlen(name);
    static const char good[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
        "._-";

    return len >= 1 && len <= NAMES_MAX && strspn(name, good) == len && name[0] != '.' &&
           name[0] != '-';
}

/* Ids of a volume's storages, and the message that points at them. */
struct volume_message {
    Rozo__Volume msg;
    Rozo__Volume *ptr;
    uint32_t ids[];
};

static struct volume_message *volume_message_make(struct exportd *x, struct volume *v)
{
    struct volume_message *m =
        malloc(sizeof(*m) + volume_n_storages(x, v->id) * sizeof(m->ids[0]));

    if (m == NULL)
        return NULL;
    rozo__volume__init(&m->msg);
    m->msg.id = v->id;
    m->msg.name = v->name;
    m->msg.storages = m->ids;
    LIST_FOREACH(node, &x->storages) {
        struct cluster_storage *s = container_of(node, struct cluster_storage, link);

        if (s->facts.volume == v->id)
            m->ids[m->msg.n_storages++] = s->facts.id;
    }
    return m;
}

static void export_message(struct export *e, Rozo__Export *msg)
{
    unsigned safe = codec_layout(e->layout)->safe,
             n = volume_n_candidates(e->x, e->volume);

    rozo__export__init(msg);
    msg->id = e->id;
    msg->name = e->name;
    msg->volume = e->volume;
    msg->codec = e->codec;
    msg->layout = e->layout;
    msg->block_bytes = e->block_bytes;
    msg->files = e->ns.n_inodes;
    msg->sessions = e->n_sessions;
    msg->sync = e->sync;
    msg->inline_max = e->inline_max;
    msg->fold_rules = e->fold_rules;
    msg->storages_missing = n < safe ? safe - n : 0;
    msg->files_few = e->n_few;
    msg->files_few_known = e->few_known;
}

/* Everything that the answer to AD_STATUS points at. */
struct status_parts {
    struct storage_messages *storages;
    struct volume_message *volumes[VOLUMES_MAX];
    Rozo__Volume *volume_list[VOLUMES_MAX];
    Rozo__Export exports[EXPORTS_MAX];
    Rozo__Export *export_list[EXPORTS_MAX];
    Rozo__Requests requests[OPS_MAX];
    Rozo__Requests *request_list[OPS_MAX];
};

static void requests_collect(const struct exportd *x, struct status_parts *p,
                             Rozo__AdStatusResp *resp)
{
    resp->requests = p->request_list;
    for (unsigned op = 0; op < OPS_MAX; op++) {
        Rozo__Requests *msg = &p->requests[resp->n_requests];

        if (x->requests->n_by_op[op] == 0)
            continue;
        rozo__requests__init(msg);
        msg->op = op;
        msg->count = x->requests->n_by_op[op];
        p->request_list[resp->n_requests++] = msg;
    }
}

/* Adds what the channels know: a refused connection shows at once, a poll only at its
 * deadline. It goes only into this answer: the map changes with polls, so that a short
 * break of a connection does not reach all mounts. */
static void status_look(struct exportd *x, Rozo__Storage **list)
{
    const struct exportd_peers *peers = &x->config.peers;

    LIST_FOREACH(node, &x->storages) {
        struct cluster_storage *s = container_of(node, struct cluster_storage, link);
        Rozo__Storage *msg = *list++;
        const char *why;

        if (!s->up || !storage_is_cut_off(s))
            continue;
        why = peers->last_error(peers->arg, s->channel);
        msg->up = false;
        msg->error = (char *)(uintptr_t)(why[0] != '\0' ? why : "it is not connected");
    }
}

static int status_collect(struct exportd *x, struct status_parts *p,
                          Rozo__AdStatusResp *resp)
{
    int rc = storage_messages_make(x, &p->storages);

    if (rc != 0)
        return rc;
    resp->n_storages = p->storages->n;
    resp->storages = p->storages->list;
    status_look(x, resp->storages);
    resp->volumes = p->volume_list;
    LIST_FOREACH(node, &x->volumes) {
        struct volume_message *m =
            volume_message_make(x, container_of(node, struct volume, link));

        if (m == NULL)
            return -ENOMEM;
        p->volumes[resp->n_volumes] = m;
        p->volume_list[resp->n_volumes++] = &m->msg;
    }
    resp->exports = p->export_list;
    LIST_FOREACH(node, &x->exports) {
        Rozo__Export *msg = &p->exports[resp->n_exports];

        export_message(container_of(node, struct export, link), msg);
        p->export_list[resp->n_exports++] = msg;
    }
    return 0;
}

int ad_status(struct md_op *op, const ProtobufCMessage *req)
{
    Rozo__AdStatusResp resp = ROZO__AD_STATUS_RESP__INIT;
    struct exportd *x = op->x;
    struct status_parts *p = calloc(1, sizeof(*p));
    int rc = p == NULL ? -ENOMEM : status_collect(x, p, &resp);

    (void)req;
    if (rc == 0) {
        resp.cluster_id = (ProtobufCBinaryData){ CLUSTER_ID_BYTES, x->cluster_id };
        resp.version = (char *)ROZO_VERSION;
        resp.trash = deletions_waiting(x);
        resp.uptime_s = ns_to_s(env_now_ns(x->env) - x->requests->started_ns);
        requests_collect(x, p, &resp);
        rc = md_op_pack(op, &resp.base);
    }
    if (p != NULL) {
        free(p->storages);
        for (size_t i = 0; i < resp.n_volumes; i++)
            free(p->volumes[i]);
    }
    free(p);
    return rc;
}

static int message_set(char message[MESSAGE_MAX + 1], int rc, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static int message_set(char message[MESSAGE_MAX + 1], int rc, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(message, MESSAGE_MAX + 1, fmt, ap);
    va_end(ap);
    return rc;
}

static int lost_check(struct exportd *x, const Rozo__AdStorageLostReq *req,
                      struct cluster_storage **out, char message[MESSAGE_MAX + 1])
{
    *out = storage_find(x, req->id);
    if (*out == NULL)
        return message_set(message, -ENOENT, "there is no storage %u", req->id);
    if (req->lost && (*out)->up && !storage_is_cut_off(*out))
        return message_set(message, -EBUSY, "storage %u is up at %s: it is not lost",
                           req->id, (*out)->facts.addrs[0]);
    return 0;
}

int ad_storage_lost(struct md_op *op, const ProtobufCMessage *msg)
{
    const Rozo__AdStorageLostReq *req = (const Rozo__AdStorageLostReq *)msg;
    Rozo__AdStorageLostResp resp = ROZO__AD_STORAGE_LOST_RESP__INIT;
    char message[MESSAGE_MAX + 1] = "";
    Rozo__Storage storage_msg;
    char *addrs[ADDRS_MAX];
    struct storage_facts facts;
    struct cluster_storage *s;
    int rc = lost_check(op->x, req, &s, message), packed;

    if (rc == 0 && s->facts.lost != req->lost) {
        facts = s->facts;
        facts.lost = req->lost;
        storage_change(s, &facts);
        log_info("storage %u is %s", req->id,
                 req->lost ? "declared lost" : "not lost any more");
    }
    if (rc == 0) {
        storage_message(s, &storage_msg, addrs);
        resp.storage = &storage_msg;
    }
    resp.error = message;
    op->sync = true;
    packed = md_op_pack(op, &resp.base);
    return rc != 0 ? rc : packed;
}

/* Refuses questions about a quorum: of a member they never reach the core. */
int ad_meta(struct md_op *op, const ProtobufCMessage *msg)
{
    (void)op;
    (void)msg;
    return -EOPNOTSUPP;
}

static int volume_create(struct exportd *x, const char *name, struct volume **out,
                         char message[MESSAGE_MAX + 1])
{
    if (!name_is_good(name))
        return message_set(message, -EINVAL,
                           "a volume's name has 1 to %d letters, digits, dots, dashes or "
                           "underscores, and begins with none of . -",
                           (int)NAMES_MAX);
    if (volume_find_name(x, name) != NULL)
        return message_set(message, -EEXIST, "there is a volume %s already", name);
    if (x->n_volumes >= VOLUMES_MAX)
        return message_set(message, -EBUSY, "there are %d volumes, no more are possible",
                           (int)VOLUMES_MAX);
    *out = volume_add(x, name);
    return *out == NULL ? message_set(message, -ENOMEM, "out of memory") : 0;
}

int ad_volume_create(struct md_op *op, const ProtobufCMessage *msg)
{
    const Rozo__AdVolumeCreateReq *req = (const Rozo__AdVolumeCreateReq *)msg;
    Rozo__AdVolumeCreateResp resp = ROZO__AD_VOLUME_CREATE_RESP__INIT;
    struct volume_message *m = NULL;
    char message[MESSAGE_MAX + 1] = "";
    struct volume *v;
    int rc = volume_create(op->x, req->name, &v, message), packed;

    if (rc == 0) {
        m = volume_message_make(op->x, v);
        resp.volume = m == NULL ? NULL : &m->msg;
    }
    resp.error = message;
    op->sync = true;
    packed = md_op_pack(op, &resp.base);
    free(m);
    return rc != 0 ? rc : packed;
}

/* Checks the request for a new export. Returns 0 and the facts, or -errno and an error
 * text. */
static int export_check(struct exportd *x, const Rozo__AdExportCreateReq *req,
                        struct export *facts, char message[MESSAGE_MAX + 1])
{
    const struct codec_layout *layout = codec_layout(req->layout);
    const char *codec = req->codec[0] == '\0' ? "mojette" : req->codec;
    unsigned kind = codec_kind_by_name(codec);
    uint32_t block_bytes = req->block_bytes == 0 ? CODEC_BLOCK_MAX : req->block_bytes;
    struct volume *v;
    unsigned n;
    int rc;

    if (!name_is_good(req->name))
        return message_set(
            message, -EINVAL,
            "an export's name has 1 to %d letters, digits, dots, dashes or "
            "underscores, and begins with none of . -",
            (int)NAMES_MAX);
    if (export_find_name(x, req->name) != NULL)
        return message_set(message, -EEXIST, "there is an export %s already", req->name);
    if (x->n_exports >= EXPORTS_MAX)
        return message_set(message, -EBUSY, "there are %d exports, no more are possible",
                           (int)EXPORTS_MAX);
    if (layout == NULL)
        return message_set(message, -EINVAL, "there is no layout %u; known: 0, 1, 2",
                           req->layout);
    if (kind == 0)
        return message_set(message, -EINVAL,
                           "there is no codec %.63s; the default is mojette", codec);
    if (codec_get(kind, req->layout, block_bytes) == NULL)
        return message_set(message, -EINVAL, "blocks have 4096 or 8192 bytes, not %u",
                           block_bytes);
    if (req->inline_max > NAMESPACE_INLINE_MAX)
        return message_set(message, -EINVAL,
                           "files of up to %d bytes can be kept by exportd, not %u",
                           (int)NAMESPACE_INLINE_MAX, req->inline_max);
    rc = volume_choose(x, req->volume, false, &v, message);
    if (rc != 0)
        return rc;
    n = volume_n_candidates(x, v->id);
    if (n < layout->n)
        return message_set(
            message, -EINVAL,
            "layout %u wants %u storages at least (%u to be safe), volume %s has %u",
            req->layout, layout->n, layout->safe, v->name, n);
    *facts = (struct export){ .volume = v->id,
                              .codec = (uint8_t)kind,
                              .layout = (uint8_t)req->layout,
                              .block_bytes = (uint16_t)block_bytes,
                              .sync = req->sync,
                              .inline_max = req->inline_max,
                              .fold_rules = req->fold ? FOLD_RULES : 0 };
    snprintf(facts->name, sizeof(facts->name), "%s", req->name);
    return 0;
}

int ad_export_create(struct md_op *op, const ProtobufCMessage *msg)
{
    const Rozo__AdExportCreateReq *req = (const Rozo__AdExportCreateReq *)msg;
    Rozo__AdExportCreateResp resp = ROZO__AD_EXPORT_CREATE_RESP__INIT;
    char message[MESSAGE_MAX + 1] = "";
    Rozo__Export export_msg;
    struct export facts, *e;
    int rc = export_check(op->x, req, &facts, message), packed;

    if (rc == 0) {
        e = export_add(op->x, &facts);
        if (e == NULL) {
            rc = message_set(message, -ENOMEM, "out of memory");
        } else {
            export_message(e, &export_msg);
            resp.export = &export_msg;
            log_info("export %u created: %s", e->id, e->name);
        }
    }
    resp.error = message;
    op->sync = true;
    packed = md_op_pack(op, &resp.base);
    return rc != 0 ? rc : packed;
}
