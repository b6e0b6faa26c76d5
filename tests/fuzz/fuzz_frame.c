/*
 * fuzz_frame.c - frame headers and Hello messages.
 *
 * Goal: no input reads out of bounds; an accepted header packs to the same bytes; no peer
 * without the key completes a Hello. Input: a header with its message, then messages for
 * a Hello, each after a byte with its length.
 */
#include <assert.h>
#include <string.h>

#include "common/rpc/frame.h"
#include "common/rpc/hello.h"
#include "tests/fuzz/fuzz.h"

static void try_frame(const uint8_t *data, size_t size)
{
    uint8_t again[FRAME_HEADER_BYTES];
    struct frame f;

    if (size < FRAME_HEADER_BYTES || frame_parse(data, &f) != 0)
        return;
    if (f.msg_len > size - FRAME_HEADER_BYTES)
        return;
    if (frame_check(&f, data + FRAME_HEADER_BYTES) != 0)
        return;
    frame_build(again, &f, data + FRAME_HEADER_BYTES);
    assert(memcmp(again, data, sizeof(again)) == 0);
}

static void try_hello(bool is_server, const uint8_t *data, size_t size)
{
    static const struct rpc_keys keys = { true, true, { 1 }, { 2 } };
    static const uint8_t nonce[HELLO_NONCE_BYTES] = { 3 };
    uint8_t out[HELLO_MSG_MAX];
    struct hello h;
    size_t out_len;

    hello_init(&h, is_server, &keys, is_server ? 0 : RPC_ROLE_NODE, "fuzz", NULL, NULL,
               nonce);
    if (!is_server)
        hello_step(&h, NULL, 0, out, &out_len);
    while (size > 0 && h.state < HELLO_DONE) {
        size_t len = data[0] * 2u;

        data++;
        size--;
        len = len < size ? len : size;
        hello_step(&h, data, len, out, &out_len);
        assert(out_len <= sizeof(out));
        data += len;
        size -= len;
    }
    assert(h.state != HELLO_DONE);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    try_frame(data, size);
    try_hello(true, data, size);
    try_hello(false, data, size);
    return 0;
}
