/* made.c - records as a client makes them. */
#include "tests/unit/heal/made.h"

#include <assert.h>
#include <string.h>

const struct codec *made_codec(const struct storcli_target *t)
{
    return codec_get(t->codec, t->layout, t->block_bytes);
}

uint16_t made_user_bytes(const struct storcli_target *t, uint64_t block, uint64_t version)
{
    return (uint16_t)(1 + (block * 2654435761u + version * 40503u) % t->block_bytes);
}

size_t made_record(const struct storcli_target *t, unsigned projection, uint64_t block,
                   uint64_t version, uint8_t *head, uint8_t *body)
{
    const struct codec *codec = made_codec(t);
    uint16_t user = made_user_bytes(t, block, version);
    size_t row = codec_row_bytes(codec, user);
    uint8_t data[CODEC_DATA_MAX] = { 0 };
    uint8_t *bodies[CODEC_N_MAX] = { 0 }, *overhangs[CODEC_N_MAX] = { 0 };
    const struct record_header h = {
        .format = RECORD_FORMAT,
        .projection = (uint8_t)projection,
        .user_bytes = user,
        .file_hash = file_id_hash(&t->id),
        .version = version,
        .block = block,
    };

    for (unsigned i = 0; i < user; i++)
        data[i] = (uint8_t)(i * 7 + block * 31 + version * 13 + (version >> 32));
    bodies[projection] = body;
    overhangs[projection] = head + RECORD_HEADER_BYTES;
    if (projection < codec_k(codec) && codec_is_systematic(codec))
        memcpy(body, data + projection * row, row);
    else
        codec_encode(codec, data, row, bodies, overhangs);
    record_header_put(head, &h);
    record_seal(head, head + RECORD_HEADER_BYTES, codec_overhang_bytes(codec, projection),
                body, row);
    return row;
}

int made_receive(struct rpc_request *rq, uint8_t *payload, size_t len)
{
    size_t at = len < rq->recv_head_len ? len : rq->recv_head_len;
    struct iovec iov[RPC_IOV_MAX];
    int n;

    rq->answer_payload_len = len;
    rq->answer_payload = rq->place == NULL ? payload : NULL;
    if (rq->place == NULL)
        return 0;
    memcpy(rq->recv_head, payload, at);
    n = at == len ? 0 : rq->place(rq, len - at, iov);
    for (int i = 0; i < n; i++) {
        assert(iov[i].iov_len <= len - at);
        memcpy(iov[i].iov_base, payload + at, iov[i].iov_len);
        at += iov[i].iov_len;
    }
    assert(n < 0 || at == len); /* as place() promises */
    return n < 0 ? n : 0;
}
