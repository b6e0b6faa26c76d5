/*
 * frame.c - packs, unpacks and checks frame headers.
 *
 * In:     48 bytes from a peer (I8), or a struct frame of ours.
 * Ask:    every position; processes of other versions read them.
 */
#include "common/rpc/frame.h"

#include <errno.h>

#include "codec/codec.h"
#include "common/base/bytes.h"
#include "common/base/err.h"
#include "common/rpc/rpc.h"

static const uint8_t magic[4] = { 'R', 'O', 'Z', '1' };

enum { CRC_AT = 44 };

static int frame_check_lengths(const struct frame *f)
{
    uint32_t msg_max = f->kind == FRAME_HELLO ? FRAME_HELLO_MSG_MAX : RPC_MSG_MAX;
    uint32_t payload_max = RPC_PAYLOAD_MAX;

    if (f->kind == FRAME_PING || f->kind == FRAME_PONG)
        msg_max = 0;
    if (f->kind != FRAME_REQUEST && f->kind != FRAME_ANSWER)
        payload_max = 0;
    return f->msg_len > msg_max || f->payload_len > payload_max ? -EBADMSG : 0;
}

int frame_parse(const uint8_t p[FRAME_HEADER_BYTES], struct frame *f)
{
    for (unsigned i = 0; i < sizeof(magic); i++) {
        if (p[i] != magic[i])
            return -EBADMSG;
    }
    *f = (struct frame){ .protocol = get_le16(p + 4) };
    if (f->protocol != FRAME_PROTOCOL)
        return -ROZO_EUNKNOWN_FORMAT;
    f->kind = get_le16(p + 6);
    f->op = get_le16(p + 8);
    f->status = get_le16(p + 10);
    f->id = get_le64(p + 16);
    f->session = get_le64(p + 24);
    f->msg_len = get_le32(p + 32);
    f->payload_len = get_le32(p + 36);
    f->start = get_le32(p + 40);
    f->crc = get_le32(p + CRC_AT);
    if (f->kind < FRAME_REQUEST || f->kind > FRAME_PONG)
        return -EBADMSG;
    if (get_le32(p + 12) != 0 || (f->start != 0 && f->kind != FRAME_REQUEST))
        return -EBADMSG;
    f->header_crc = codec_crc32c(0, p, CRC_AT);
    return frame_check_lengths(f);
}

int frame_check(const struct frame *f, const uint8_t *msg)
{
    uint32_t crc = f->header_crc;

    if (f->msg_len != 0)
        crc = codec_crc32c(crc, msg, f->msg_len);
    return crc == f->crc ? 0 : -EBADMSG;
}

void frame_build(uint8_t p[FRAME_HEADER_BYTES], const struct frame *f, const uint8_t *msg)
{
    uint32_t crc;

    for (unsigned i = 0; i < sizeof(magic); i++)
        p[i] = magic[i];
    put_le16(p + 4, FRAME_PROTOCOL);
    put_le16(p + 6, f->kind);
    put_le16(p + 8, f->op);
    put_le16(p + 10, f->status);
    put_le32(p + 12, 0);
    put_le64(p + 16, f->id);
    put_le64(p + 24, f->session);
    put_le32(p + 32, f->msg_len);
    put_le32(p + 36, f->payload_len);
    put_le32(p + 40, f->start);
    crc = codec_crc32c(0, p, CRC_AT);
    if (f->msg_len != 0)
        crc = codec_crc32c(crc, msg, f->msg_len);
    put_le32(p + CRC_AT, crc);
}
