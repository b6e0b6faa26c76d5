/*
 * repair_ask.c - requests of the healer about one file.
 *
 * In:     messages from the other files of this folder. Thread: that of the env.
 * Out:    rpc_send(); answers to their owners, never inside repair_ask_send().
 * Keeps:  a storage that is known to be down is not waited for: it counts as unanswered
 *         at once.
 */
#include "storaged/heal/decide/repair_ask.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "common/base/list.h"
#include "common/wire/record.h"

int heal_target_check(const struct storcli_target *t)
{
    const struct codec_layout *layout = codec_layout(t->layout);

    if (layout == NULL || codec_get(t->codec, t->layout, t->block_bytes) == NULL)
        return -EINVAL;
    if (t->n_storages < layout->n || t->n_storages > DIST_MAX)
        return -EINVAL;
    if (quorum_write(layout, t->n_storages) > layout->n)
        return -EINVAL;
    for (unsigned i = 0; i < t->n_storages; i++) {
        for (unsigned j = 0; j < i; j++) {
            if (t->storages[i] == t->storages[j])
                return -EINVAL;
        }
    }
    return 0;
}

/* Assigns homes. All healers get the same result: the first lost home gets the first
 * spare, and so on. */
static void place_homes(struct heal_file *file)
{
    unsigned spare = file->n;

    for (unsigned p = 0; p < file->n; p++) {
        file->home[p] = (uint8_t)p;
        if ((file->lost >> p & 1) == 0)
            continue;
        while (spare < file->c && (file->lost >> spare & 1) != 0)
            spare++;
        file->home[p] = spare < file->c ? (uint8_t)spare++ : (uint8_t)HEAL_NO_CANDIDATE;
    }
}

int heal_file_init(struct heal_file *file, struct env *env,
                   const struct storcli_peers *peers, uint32_t deadline_ms,
                   const struct storcli_target *target, uint32_t lost)
{
    const struct codec_layout *layout = codec_layout(target->layout);
    int rc = heal_target_check(target);

    if (rc != 0)
        return rc;
    *file = (struct heal_file){
        .env = env,
        .peers = *peers,
        .deadline_ms = deadline_ms,
        .target = *target,
        .codec = codec_get(target->codec, target->layout, target->block_bytes),
        .k = layout->k,
        .n = layout->n,
        .c = target->n_storages,
        .q = quorum_read(layout, target->n_storages, target->full_quorum),
        .q_commit = quorum_write(layout, target->n_storages),
        .file_hash = file_id_hash(&target->id),
        .lost = lost,
    };
    file->row_bytes = codec_row_bytes(file->codec, target->block_bytes);
    place_homes(file);
    file_id_put(file->id, &target->id);
    rozo__file_ref__init(&file->ref);
    file->ref.file_id.data = file->id;
    file->ref.file_id.len = sizeof(file->id);
    file->ref.codec = target->codec;
    file->ref.layout = target->layout;
    file->ref.block_bytes = target->block_bytes;
    file->ref.n_storages = target->n_storages;
    file->ref.storages = file->target.storages;
    file->ref.full_quorum = target->full_quorum;
    file->ref.dist_generation = target->dist_generation;
    return 0;
}

uint32_t heal_file_all(const struct heal_file *file)
{
    return file->c == 32 ? UINT32_MAX : (1u << file->c) - 1;
}

bool heal_file_is_up(const struct heal_file *file, unsigned candidate)
{
    struct rpc_channel *ch =
        file->peers.channel(file->peers.arg, file->target.storages[candidate]);

    assert(candidate < file->c);
    return ch != NULL && rpc_channel_health(ch) == RPC_UP;
}

size_t heal_head_bytes(const struct heal_file *file, unsigned p)
{
    assert(p < file->n);
    return RECORD_HEADER_BYTES + codec_overhang_bytes(file->codec, p);
}

size_t heal_row(const struct heal_file *file, uint64_t block, unsigned p,
                const uint8_t *head)
{
    struct record_header h;

    assert(p < file->n);
    if ((head[6] & RECORD_DAMAGED) != 0 ||
        record_inspect(head, file->file_hash, block, p, file->target.block_bytes, &h) !=
            RECORD_IS_DATA)
        return 0;
    return codec_row_bytes(file->codec, h.user_bytes);
}

size_t heal_bodies(const struct heal_file *file, uint64_t first, unsigned n, unsigned p,
                   uint8_t *buf, struct iovec *iov, unsigned *n_iov)
{
    size_t head_bytes = heal_head_bytes(file, p), sum = 0;
    uint8_t *body = buf + n * head_bytes;

    assert(n <= EXTENT_BLOCKS);
    for (unsigned i = 0; i < n; i++, body += file->row_bytes) {
        size_t row = heal_row(file, first + i, p, buf + i * head_bytes);
        struct iovec *last = iov == NULL || *n_iov == 0 ? NULL : &iov[*n_iov - 1];

        sum += row;
        if (row == 0 || iov == NULL)
            continue;
        if (last != NULL && (uint8_t *)last->iov_base + last->iov_len == body)
            last->iov_len += row;
        else
            iov[(*n_iov)++] = (struct iovec){ .iov_base = body, .iov_len = row };
    }
    return sum;
}

int heal_bodies_place(const struct heal_file *file, uint64_t first, unsigned n,
                      unsigned p, uint8_t *buf, size_t rest_len, struct iovec *iov)
{
    unsigned n_iov = 0;

    static_assert((int)EXTENT_BLOCKS <= (int)RPC_IOV_MAX, "one for each body");
    return heal_bodies(file, first, n, p, buf, iov, &n_iov) == rest_len ? (int)n_iov
                                                                        : -EBADMSG;
}

static void on_ask_answer(struct rpc_request *rq, int rc)
{
    struct repair_ask *ask = container_of(rq, struct repair_ask, rq);

    assert(ask->sent);
    ask->sent = false;
    if (rc == 0 && rq->status == ROZO__STATUS__STALE_DISTRIBUTION)
        ask->file->moved |= 1u << ask->candidate;
    if (rc != 0 || (ask->file->moved >> ask->candidate & 1) != 0)
        ask->file->unanswered |= 1u << ask->candidate;
    ask->done(ask, rc);
}

int repair_ask_send(struct repair_ask *ask, struct heal_file *file, unsigned candidate,
                    uint16_t op, const ProtobufCMessage *msg, const struct iovec *payload,
                    unsigned n_payload, repair_ask_done_cb *done)
{
    size_t len = protobuf_c_message_get_packed_size(msg);
    uint8_t *packed;

    assert(!ask->sent && candidate < file->c);
    assert(done != NULL && (n_payload == 0 || payload != NULL));
    if (!heal_file_is_up(file, candidate)) {
        file->unanswered |= 1u << candidate;
        return -ENOTCONN;
    }
    packed = malloc(len + 1);
    if (packed == NULL)
        return -ENOMEM;
    protobuf_c_message_pack(msg, packed);
    ask->file = file;
    ask->done = done;
    ask->candidate = (uint8_t)candidate;
    ask->sent = true;
    ask->rq = (struct rpc_request){
        .op = op,
        .deadline_ms = file->deadline_ms,
        .msg = packed,
        .msg_len = len,
        .payload = payload,
        .n_payload = n_payload,
        .recv_head = ask->recv_head,
        .recv_head_len = ask->recv_head_len,
        .place = ask->place,
        .done = on_ask_answer,
    };
    rpc_send(file->peers.channel(file->peers.arg, file->target.storages[candidate]),
             &ask->rq);
    ask->rq.msg = NULL; /* the message was copied */
    free(packed);
    return 0;
}

void repair_ask_cancel(struct repair_ask *ask)
{
    if (ask->sent)
        rpc_cancel(&ask->rq);
    ask->sent = false;
}
