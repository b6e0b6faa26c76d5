/*
 * member_tell.c - what members tell each other once a second: where clients reach them,
 * and how much they have on their disks.
 *
 * In:     RF_TELL of others, answers to our own; entries that are synced.
 * Out:    RF_TELL; hooks.clients; a file with what others have said.
 * Keeps:  an older image of this member's disk is noticed if a voter remembers more than
 *         it holds: votes of a member count here, and ours there, only when that member
 *         has said what it remembers. docs/internals/metadata-quorum.md says what is
 *         missed.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/proto/rozo.pb-c.h"

#include "codec/codec.h"
#include "common/base/bytes.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "exportd/quorum/member_in.h"

enum {
    TELL_MS = 1000,
    TELL_AGAIN_MS = 50, /* until a member has answered */
    TELL_DEADLINE_MS = 1000,
    SAVE_MS = 10000, /* between two writes of the file */
    FORMAT = 1,
    ROW_BYTES = 24,
    HEAD_BYTES = 24,
    AT_CRC = 8,
    AT_FORMAT = 12,
    AT_GROUP = 16,
    AT_N = 20,
};

static const char path[] = "heard";
static const uint8_t magic[8] = "rozohear";

static_assert(HEAD_BYTES + HEARD_MAX * ROW_BYTES <= HEARD_BYTES, "one page");

/* ---- what others have said ---- */

static const struct member_heard *heard_find(const struct member *m, uint64_t id)
{
    for (unsigned i = 0; i < HEARD_MAX; i++) {
        if (m->tell.heard[i].id == id)
            return &m->tell.heard[i];
    }
    return NULL;
}

/* Returns the place of a member, which may be new; NULL: there is no room. */
static struct member_heard *heard_make(struct member *m, uint64_t id)
{
    struct member_heard *room = NULL;

    assert(id != 0);
    for (unsigned i = 0; i < HEARD_MAX; i++) {
        struct member_heard *h = &m->tell.heard[i];

        if (h->id == id)
            return h;
        if (room == NULL && (h->id == 0 || member_is_former(m, h->id)))
            room = h;
    }
    if (room != NULL)
        *room = (struct member_heard){ .id = id };
    return room;
}

/* ---- the file ---- */

static void rows_get(struct member *m)
{
    const uint8_t *p = m->tell.page;
    uint32_t n = get_le32(p + AT_N);

    if (memcmp(p, magic, sizeof(magic)) != 0 || get_le32(p + AT_FORMAT) != FORMAT ||
        get_le32(p + AT_CRC) != codec_crc32c(0, p + AT_FORMAT, HEARD_BYTES - AT_FORMAT) ||
        get_le32(p + AT_GROUP) != m->config.group.number || n > HEARD_MAX)
        return; /* nothing is remembered */
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *row = p + HEAD_BYTES + (size_t)i * ROW_BYTES;

        m->tell.heard[i] = (struct member_heard){ .id = get_le64(row),
                                                  .term = get_le64(row + 8),
                                                  .index = get_le64(row + 16) };
    }
}

static void rows_put(struct member *m)
{
    uint8_t *p = m->tell.page;
    uint32_t n = 0;

    memset(p, 0, HEARD_BYTES);
    for (unsigned i = 0; i < HEARD_MAX; i++) {
        const struct member_heard *h = &m->tell.heard[i];
        uint8_t *row = p + HEAD_BYTES + (size_t)n * ROW_BYTES;

        if (h->id == 0 || h->term == 0)
            continue;
        put_le64(row, h->id);
        put_le64(row + 8, h->term);
        put_le64(row + 16, h->index);
        n++;
    }
    memcpy(p, magic, sizeof(magic));
    put_le32(p + AT_FORMAT, FORMAT);
    put_le32(p + AT_GROUP, m->config.group.number);
    put_le32(p + AT_N, n);
    put_le32(p + AT_CRC, codec_crc32c(0, p + AT_FORMAT, HEARD_BYTES - AT_FORMAT));
}

static void submit(struct member *m, enum disk_op op, disk_done_cb *done)
{
    struct member_telling *t = &m->tell;

    t->iov = (struct iovec){ t->page, HEARD_BYTES };
    t->dr = (struct disk_req){
        .op = op,
        .file = t->file,
        .path = op == DISK_OPEN ? path : NULL,
        .create = op == DISK_OPEN,
        .len = HEARD_BYTES,
        .iov = &t->iov,
        .n_iov = 1,
        .done = done,
        .arg = m,
    };
    t->is_busy = true;
    disk_submit(m->config.disk, &t->dr);
}

/* The file is read, or there is none. */
static void loaded(struct member *m)
{
    m->tell.is_loaded = true;
    member_log_start(m);
}

static void on_file_read(struct disk_req *dr, int rc)
{
    struct member *m = dr->arg;

    m->tell.is_busy = false;
    if (rc == 0 && dr->n_read == HEARD_BYTES)
        rows_get(m);
    loaded(m);
}

static void on_file_open(struct disk_req *dr, int rc)
{
    struct member *m = dr->arg;

    m->tell.is_busy = false;
    if (rc == 0)
        m->tell.file = dr->file;
    if (rc == 0 && dr->size > 0)
        submit(m, DISK_READ, on_file_read);
    else
        loaded(m);
}

static void on_file_synced(struct disk_req *dr, int rc)
{
    struct member *m = dr->arg;

    (void)rc; /* a disk that fails fails the log, too */
    m->tell.is_busy = false;
    member_stop_look(m);
}

static void on_file_written(struct disk_req *dr, int rc)
{
    struct member *m = dr->arg;

    if (rc == 0)
        submit(m, DISK_SYNC, on_file_synced);
    else
        on_file_synced(dr, rc);
}

static void save(struct member *m)
{
    struct member_telling *t = &m->tell;

    if (!t->is_changed || t->is_busy || t->file == NULL)
        return;
    t->is_changed = false;
    t->saved_ns = member_now_ns(m);
    rows_put(m);
    submit(m, DISK_WRITE, on_file_written);
}

/* ---- where clients reach the members ---- */

static bool is_any_host(const char *addr, size_t host_len)
{
    static const char *const any[] = { "*", "0.0.0.0", "[::]", "" };

    for (size_t i = 0; i < sizeof(any) / sizeof(any[0]); i++) {
        if (strlen(any[i]) == host_len && strncmp(addr, any[i], host_len) == 0)
            return true;
    }
    return false;
}

/* Adds an address of this member. One that stands for all addresses of the machine gets
 * the host at which other members reach it. */
static void own_add(const struct member *m, const char *addr, struct member_clients *out)
{
    const struct raft_member *own = raft_config_find(&m->members, m->config.id);
    const char *port = strrchr(addr, ':'), *end;
    char text[RAFT_ADDRESS_MAX + EXPORTD_ADDR_BYTES];
    int len;

    if (port == NULL || strcmp(port, ":0") == 0)
        return;
    if (!is_any_host(addr, (size_t)(port - addr))) {
        len = snprintf(text, sizeof(text), "%s", addr);
    } else {
        end = own == NULL ? NULL : strrchr(own->address, ':');
        if (end == NULL)
            return;
        len = snprintf(text, sizeof(text), "%.*s%s", (int)(end - own->address),
                       own->address, port);
    }
    if (len < EXPORTD_ADDR_BYTES)
        memcpy(out->addrs[out->n++], text, (size_t)len + 1);
}

void member_clients_of(const struct member *m, uint64_t id, struct member_clients *out)
{
    const struct member_heard *h = heard_find(m, id);

    out->n = 0;
    if (id != m->config.id) {
        if (h != NULL)
            *out = h->clients;
        return;
    }
    for (unsigned i = 0; i < m->config.clients.n; i++)
        own_add(m, m->config.clients.addrs[i], out);
}

void member_clients_look(struct member *m)
{
    struct member_clients of[RAFT_SERVERS_MAX];
    struct exportd_list list = { .n = 0 };

    for (unsigned i = 0; i < m->members.n; i++)
        member_clients_of(m, m->members.members[i].id, &of[i]);
    for (unsigned k = 0; k < MEMBER_CLIENTS_MAX; k++) {
        for (unsigned i = 0; i < m->members.n; i++) {
            if (k < of[i].n)
                exportd_list_add(&list, of[i].addrs[k]);
        }
    }
    if (exportd_list_number(&list) == m->tell.list || m->config.hooks.clients == NULL)
        return;
    m->tell.list = exportd_list_number(&list);
    m->config.hooks.clients(m->config.hooks.arg, &list);
}

/* ---- an older image ---- */

/* Begins a copy, since another member remembers more than this one held at its start: it
 * may have forgotten votes and entries. */
static void image_noticed(struct member *m, uint64_t by, uint64_t term)
{
    log_error("quorum: member %" PRIu64 " knows that this member had more on its disk "
              "than it has now, as after a restore of an older image: it has lost its "
              "vote, too",
              by);
    if (m->tell.forgotten_term < term)
        m->tell.forgotten_term = term;
    member_depose(m);
    member_seed_begin(m,
                      (struct seed_mark){ .doubt = SEED_VOTE_LOST, .is_copied = true });
}

void member_tell_synced(struct member *m, uint64_t index, uint64_t term)
{
    struct member_telling *t = &m->tell;

    if (member_is_less(t->synced_term, t->synced_index, term, index)) {
        t->synced_term = term;
        t->synced_index = index;
    }
}

/* Returns what is on the disk of this member: its term, and the newest entry of that
 * term, 0: none. It never goes back: a term's entries are replaced only in a later one.
 */
static void own_held(const struct member *m, uint64_t *term, uint64_t *index)
{
    *term = m->ballot.term;
    *index = m->tell.synced_term == *term ? m->tell.synced_index : 0;
}

void member_tell_begin(struct member *m)
{
    struct member_telling *t = &m->tell;
    struct raft_log_entry newest = member_newest(m);

    t->synced_term = newest.term;
    t->synced_index = newest.index;
    own_held(m, &t->base_term, &t->base_index);
    for (unsigned i = 0; i < HEARD_MAX; i++)
        t->heard[i].has_answered = false;
    member_tell_soon(m);
}

/* Asks a member now that has not answered, since it is there. A question that has been
 * under way for a while may be lost: it went to an earlier process. */
static void tell_now(struct member *m, struct member_peer *p)
{
    if (p->tells && member_now_ns(m) >= p->tell_ns) {
        rpc_cancel(&p->tell_rq);
        p->tells = false;
        member_peer_unuse(m, p);
    }
    member_tell_soon(m);
}

bool member_tell_lets_vote(struct member *m, uint64_t from)
{
    const struct member_heard *h = heard_find(m, from);
    struct member_peer *p = member_peer_find(m, from);

    if (p == NULL || p->channel == NULL || (h != NULL && h->has_answered))
        return true; /* one without a link cannot be asked */
    tell_now(m, p);
    return false;
}

/* ---- questions ---- */

static void answered(struct member *m, uint64_t id, const Rozo__RfTellResp *r)
{
    struct member_heard *h = heard_make(m, id);
    bool is_first = h != NULL && !h->has_answered;

    if (m->state != MEMBER_RUNS || !is_first)
        return;
    h->has_answered = true;
    if (member_is_less(m->tell.base_term, m->tell.base_index, r->term, r->index))
        image_noticed(m, id, r->term);
}

static void on_told(struct rpc_request *rq, int rc)
{
    struct member_peer *p = rq->arg;
    struct member *m = p->m;
    Rozo__RfTellResp none = ROZO__RF_TELL_RESP__INIT, *r = NULL;

    p->tells = false;
    if (rc == 0 && rq->status == ROZO__STATUS__NOT_FOUND)
        member_removed(m);
    if (rc == 0 && rq->status == ROZO__STATUS__DEPOSED)
        member_outlived(m, p->id);
    if (rc == 0 && rq->status == ROZO__STATUS__UNKNOWN_OP)
        answered(m, p->id, &none); /* an earlier build remembers nothing */
    if (rc == 0 && rq->status == ROZO__STATUS__OK)
        r = rozo__rf_tell_resp__unpack(NULL, rq->answer_msg_len, rq->answer_msg);
    if (r != NULL) {
        answered(m, p->id, r);
        rozo__rf_tell_resp__free_unpacked(r, NULL);
    }
    member_peer_unuse(m, p);
}

static void tell(struct member *m, struct member_peer *p, bool has_answered)
{
    Rozo__RfTellReq req = ROZO__RF_TELL_REQ__INIT;
    char *clients[MEMBER_CLIENTS_MAX];
    struct member_clients own;

    member_clients_of(m, m->config.id, &own);
    for (unsigned i = 0; i < own.n; i++)
        clients[i] = own.addrs[i];
    req.cluster_id.data = m->config.group.cluster_id;
    req.cluster_id.len = sizeof(m->config.group.cluster_id);
    req.group = m->config.group.number;
    req.from = m->config.id;
    req.to = p->id;
    req.clients = clients;
    req.n_clients = own.n;
    if (has_answered && m->state == MEMBER_RUNS)
        own_held(m, &req.term, &req.index);
    assert(rozo__rf_tell_req__get_packed_size(&req) <= sizeof(p->tell_msg));
    p->tells = true;
    p->tell_ns = member_now_ns(m) + ms_to_ns(has_answered ? TELL_MS : TELL_AGAIN_MS);
    p->n_steps++;
    p->tell_rq = (struct rpc_request){
        .op = ROZO__OP__RF_TELL,
        .deadline_ms = TELL_DEADLINE_MS,
        .msg = p->tell_msg,
        .msg_len = rozo__rf_tell_req__pack(&req, p->tell_msg),
        .done = on_told,
        .arg = p,
    };
    rpc_send(p->channel, &p->tell_rq);
}

static void on_timer(struct env_timer *timer)
{
    struct member *m = container_of(timer, struct member, tell.timer);
    uint64_t now_ns = member_now_ns(m);
    unsigned next_ms = TELL_MS;

    if (m->state > MEMBER_RUNS)
        return;
    LIST_FOREACH(node, &m->peers) {
        struct member_peer *p = container_of(node, struct member_peer, link);
        const struct member_heard *h = heard_find(m, p->id);
        bool has_answered = h != NULL && h->has_answered;

        if (p->is_gone || p->channel == NULL)
            continue;
        if (!has_answered)
            next_ms = TELL_AGAIN_MS;
        if (!p->tells && now_ns >= p->tell_ns)
            tell(m, p, has_answered);
    }
    if (now_ns - m->tell.saved_ns >= ms_to_ns(SAVE_MS))
        save(m);
    env_timer_start(m->config.env, timer, next_ms);
}

void member_tell_soon(struct member *m)
{
    if (m->tell.is_loaded && m->state <= MEMBER_RUNS)
        env_timer_start(m->config.env, &m->tell.timer, 0);
}

/* ---- questions of others ---- */

static void told_take(struct member *m, const Rozo__RfTellReq *req)
{
    struct member_heard *h = heard_make(m, req->from);
    struct member_peer *p = member_peer_find(m, req->from);
    struct member_clients clients = { .n = 0 };

    if (h == NULL)
        return;
    if (member_is_less(h->term, h->index, req->term, req->index)) {
        h->term = req->term;
        h->index = req->index;
        m->tell.is_changed = true;
    }
    for (size_t i = 0; i < req->n_clients && clients.n < MEMBER_CLIENTS_MAX; i++) {
        if (strlen(req->clients[i]) < EXPORTD_ADDR_BYTES)
            strcpy(clients.addrs[clients.n++], req->clients[i]);
    }
    if (memcmp(&h->clients, &clients, sizeof(clients)) != 0) {
        h->clients = clients;
        member_clients_look(m);
    }
    if (!h->has_answered && p != NULL)
        tell_now(m, p); /* perhaps a new process */
}

static uint16_t told_check(const struct member *m, const Rozo__RfTellReq *req)
{
    int rc;

    if (req == NULL || req->from == 0 || req->term > RAFT_NUMBER_MAX ||
        req->index > RAFT_NUMBER_MAX)
        return ROZO__STATUS__BAD_REQUEST;
    rc = req->cluster_id.len != RAFT_MSG_CLUSTER_ID_BYTES
             ? -ESTALE
             : raft_group_check(&m->config.group, req->cluster_id.data, req->group);
    if (rc == -ROZO_EDEPOSED)
        return ROZO__STATUS__DEPOSED;
    if (rc != 0 || req->to != m->config.id)
        return ROZO__STATUS__WRONG_STORAGE;
    if (!m->tell.is_loaded || m->state > MEMBER_RUNS)
        return ROZO__STATUS__BUSY;
    return member_is_former(m, req->from) ? ROZO__STATUS__NOT_FOUND : ROZO__STATUS__OK;
}

void member_tell_handle(struct member *m, struct rpc_call *call)
{
    Rozo__RfTellReq *req = rozo__rf_tell_req__unpack(NULL, call->msg_len, call->msg);
    uint16_t status = told_check(m, req);
    Rozo__RfTellResp resp = ROZO__RF_TELL_RESP__INIT;
    const struct member_heard *h;
    uint8_t msg[32];

    if (status == ROZO__STATUS__OK) {
        told_take(m, req);
        h = heard_find(m, req->from);
        resp.term = h == NULL ? 0 : h->term;
        resp.index = h == NULL ? 0 : h->index;
    }
    rpc_reply(call, status, msg, rozo__rf_tell_resp__pack(&resp, msg), NULL, 0, NULL,
              NULL);
    if (req != NULL)
        rozo__rf_tell_req__free_unpacked(req, NULL);
}

/* ---- life ---- */

void member_tell_start(struct member *m)
{
    env_timer_init(&m->tell.timer, on_timer);
    submit(m, DISK_OPEN, on_file_open);
}

void member_tell_stop(struct member *m)
{
    env_timer_stop(m->config.env, &m->tell.timer);
    LIST_FOREACH_SAFE(node, &m->peers) {
        struct member_peer *p = container_of(node, struct member_peer, link);

        if (!p->tells)
            continue;
        rpc_cancel(&p->tell_rq);
        p->tells = false;
        member_peer_unuse(m, p);
    }
    save(m);
}

void member_tell_close(struct member *m)
{
    if (m->tell.file != NULL)
        disk_close(m->config.disk, m->tell.file);
    m->tell.file = NULL;
}
