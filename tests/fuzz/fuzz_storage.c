/*
 * fuzz_storage.c - requests to a storage.
 *
 * Goal: every request is answered exactly once and reads nothing out of bounds, after any
 * others. Input: for each request a byte of op, one of role and flags, two of the
 * message's length, two of the payload's length, then both.
 */
#include <assert.h>

#include "common/base/bytes.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/storaged/world.h"

enum {
    CALLS_MAX = 16,
    AS_NODE = 1,
    AT_ONCE = 2,
    RESTART = 4,
    OPS_FIRST = ROZO__OP__ST_WRITE,
    OPS_N = ROZO__OP__ST_REDIST
};

static size_t cut(size_t len, size_t max)
{
    return len < max ? len : max;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct test_call *calls[CALLS_MAX];
    struct world w;
    unsigned n = 0;

    world_init(&w, 1);
    while (size >= 6 && n < CALLS_MAX) {
        unsigned op = OPS_FIRST + data[0] % 32 % OPS_N, flags = data[1];
        size_t msg_len = cut(get_le16(data + 2), size - 6);
        size_t payload_len = cut(get_le16(data + 4), size - 6 - msg_len);

        w.role = (flags & AS_NODE) != 0 ? RPC_ROLE_NODE : RPC_ROLE_CLIENT;
        storage_route((uint16_t)op, data + 6, msg_len);
        calls[n++] = call_start_raw(&w, (uint16_t)op, data + 6, msg_len,
                                    data + 6 + msg_len, payload_len);
        data += 6 + msg_len + payload_len;
        size -= 6 + msg_len + payload_len;
        if ((flags & AT_ONCE) == 0)
            env_virtual_run_posted(&w.v);
        if ((flags & (AT_ONCE | RESTART)) == RESTART)
            world_restart(&w, false);
    }
    env_virtual_run_posted(&w.v);
    for (unsigned i = 0; i < n; i++) {
        assert(calls[i]->done);
        call_free(calls[i]);
    }
    world_free(&w);
    return 0;
}
