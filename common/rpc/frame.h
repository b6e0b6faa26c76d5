/*
 * frame.h - the fixed header of every frame between processes. Pure functions;
 * docs/FORMATS.md describes the bytes in prose.
 *
 * A frame is FRAME_HEADER_BYTES of header, msg_len bytes of message, payload_len of
 * payload.
 */
#ifndef ROZO_COMMON_RPC_FRAME_H
#define ROZO_COMMON_RPC_FRAME_H

#include <stddef.h>
#include <stdint.h>

enum {
    FRAME_HEADER_BYTES = 48,
    FRAME_PROTOCOL = 1,        /* version of frames and Hello */
    FRAME_HELLO_MSG_MAX = 512, /* bytes of message in a Hello frame */
};

enum frame_kind {
    FRAME_REQUEST = 1,
    FRAME_ANSWER = 2,
    FRAME_HELLO = 3,
    FRAME_PING = 4, /* answered at once by a pong with the same id */
    FRAME_PONG = 5, /* may come without a ping: a busy server shows that it is alive */
};

/* Header, unpacked. */
struct frame {
    uint16_t protocol;
    uint16_t kind;    /* enum frame_kind */
    uint16_t op;      /* requests; an answer repeats it */
    uint16_t status;  /* answers */
    uint64_t id;      /* id of the request, unique on its connection */
    uint64_t session; /* requests */
    uint32_t msg_len;
    uint32_t payload_len;
    uint32_t start;      /* requests: rpc_request.start */
    uint32_t crc;        /* crc32c over the header up to here, then the message */
    uint32_t header_crc; /* not on the wire: sum of frame_parse() so far */
};

/**
 * Unpacks a header from a peer. Everything but the crc is checked, so that the lengths
 * can be used: msg_len <= RPC_MSG_MAX (Hello: FRAME_HELLO_MSG_MAX), payload_len <=
 * RPC_PAYLOAD_MAX, both 0 for pings and pongs.
 * @return 0; -ROZO_EUNKNOWN_FORMAT for another protocol version (f->protocol has it,
 * the rest
 *         of f is not filled); -EBADMSG for any other invalid header.
 */
int frame_parse(const uint8_t p[FRAME_HEADER_BYTES], struct frame *f);
/** Checks the crc, once the message is here. Returns 0 or -EBADMSG. */
int frame_check(const struct frame *f, const uint8_t *msg);
/** Packs a header, computing the crc over it and msg (f->msg_len bytes). */
void frame_build(uint8_t p[FRAME_HEADER_BYTES], const struct frame *f,
                 const uint8_t *msg);

#endif
