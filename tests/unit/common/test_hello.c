/* test_hello.c - frames and Hello as pure functions: both sides, and peers that lie. */
#include <errno.h>

#include "common/base/bytes.h"
#include "common/base/err.h"
#include "common/rpc/frame.h"
#include "common/rpc/hello.h"
#include "tests/unit/unit.h"

static const struct rpc_keys keys = { true, true, { 1, 2, 3 }, { 4, 5, 6 } };
static const struct rpc_keys other_keys = { true, true, { 7 }, { 8 } };
static const struct rpc_keys client_only = { .has_client = true, .client = { 4, 5, 6 } };
static const uint8_t cluster_a[RPC_CLUSTER_ID_BYTES] = { 0xaa, 1 };
static const uint8_t cluster_b[RPC_CLUSTER_ID_BYTES] = { 0xbb, 2 };

/* Two sides, and the four messages between them. */
struct pair {
    struct hello client, server;
    uint8_t msgs[4][HELLO_MSG_MAX];
    size_t lens[4];
};

static void pair_init(struct pair *p, const struct rpc_keys *client_keys,
                      enum rpc_role role, const uint8_t *client_cluster,
                      const uint8_t *server_cluster)
{
    static uint8_t count;
    uint8_t nonce[HELLO_NONCE_BYTES] = { ++count, 1 };

    memset(p, 0, sizeof(*p));
    hello_init(&p->client, false, client_keys, role, "mount 1", client_cluster, NULL,
               nonce);
    nonce[1] = 2;
    hello_init(&p->server, true, &keys, 0, "storaged", server_cluster, NULL, nonce);
}

/* Runs the handshake up to message n, and flips one bit of message `bad` on the way. */
static void pair_run(struct pair *p, int bad, size_t bad_byte)
{
    const uint8_t *in = NULL;
    size_t in_len = 0;

    for (int i = 0; i < 4; i++) {
        struct hello *h = i % 2 == 0 ? &p->client : &p->server;

        if (h->state >= HELLO_DONE)
            return;
        hello_step(h, in, in_len, p->msgs[i], &p->lens[i]);
        if (p->lens[i] == 0)
            return;
        assert_true(p->lens[i] <= HELLO_MSG_MAX);
        if (i == bad)
            p->msgs[i][bad_byte % p->lens[i]] ^= 0x10;
        in = p->msgs[i];
        in_len = p->lens[i];
    }
    if (p->client.state < HELLO_DONE) {
        uint8_t none[HELLO_MSG_MAX];
        size_t len;

        hello_step(&p->client, in, in_len, none, &len);
        assert_int_equal(len, 0);
    }
}

static void both_sides_agree(void **state)
{
    struct pair p;

    (void)state;
    for (int role = RPC_ROLE_CLIENT; role <= RPC_ROLE_NODE; role++) {
        pair_init(&p, &keys, (enum rpc_role)role, NULL, cluster_a);
        pair_run(&p, -1, 0);
        assert_int_equal(p.client.state, HELLO_DONE);
        assert_int_equal(p.server.state, HELLO_DONE);
        assert_int_equal(p.server.role, role);
        assert_string_equal(p.server.peer_name, "mount 1");
        assert_string_equal(p.client.peer_name, "storaged");
        assert_memory_equal(p.client.peer_cluster_id, cluster_a, sizeof(cluster_a));
    }
}

static void wrong_keys_and_roles_are_refused(void **state)
{
    struct pair p;

    (void)state;
    pair_init(&p, &other_keys, RPC_ROLE_CLIENT, NULL, NULL);
    pair_run(&p, -1, 0);
    assert_int_equal(p.server.state, HELLO_FAILED);
    assert_true(p.server.is_wrong_key);
    assert_int_equal(p.client.state, HELLO_FAILED);
    assert_string_equal(p.client.error, "peer refused our key");
    assert_true(p.client.is_wrong_key);

    /* A client that claims to be a node, with the client key in place of the node key. */
    {
        struct rpc_keys liar = { .has_node = true };

        memcpy(liar.node, keys.client, sizeof(liar.node));
        pair_init(&p, &liar, RPC_ROLE_NODE, NULL, NULL);
        pair_run(&p, -1, 0);
        assert_int_equal(p.server.state, HELLO_FAILED);
    }
    /* A server that knows only one key. */
    pair_init(&p, &keys, RPC_ROLE_NODE, NULL, NULL);
    p.server.keys = &client_only;
    pair_run(&p, -1, 0);
    assert_int_equal(p.server.state, HELLO_FAILED);
    assert_int_equal(p.client.state, HELLO_FAILED);
}

/* A client that wants one incarnation refuses another; if either side gives none, the
 * peer is accepted. */
static void another_incarnation_is_refused(void **state)
{
    static const uint8_t ours[RPC_INCARNATION_BYTES] = { 1, 2 };
    static const uint8_t other[RPC_INCARNATION_BYTES] = { 1, 3 };
    static const struct {
        const uint8_t *wants, *is;
        bool ok;
    } cases[] = {
        { ours, ours, true }, { ours, other, false }, { NULL, other, true },
        { ours, NULL, true }, { NULL, NULL, true },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct pair p;

        pair_init(&p, &keys, RPC_ROLE_CLIENT, cluster_a, cluster_a);
        if (cases[i].wants != NULL)
            memcpy(p.client.incarnation, cases[i].wants, sizeof(p.client.incarnation));
        if (cases[i].is != NULL)
            memcpy(p.server.incarnation, cases[i].is, sizeof(p.server.incarnation));
        pair_run(&p, -1, 0);
        assert_int_equal(p.client.state, cases[i].ok ? HELLO_DONE : HELLO_FAILED);
        if (!cases[i].ok)
            assert_non_null(strstr(p.client.error, "another data directory"));
    }
    /* The incarnation is covered by the proof: it cannot be changed on the way. */
    for (size_t byte = 64; byte < 64 + RPC_INCARNATION_BYTES; byte++) {
        struct pair p;

        pair_init(&p, &keys, RPC_ROLE_CLIENT, cluster_a, cluster_a);
        memcpy(p.server.incarnation, other, sizeof(p.server.incarnation));
        pair_run(&p, 1, byte);
        assert_int_equal(p.client.state, HELLO_FAILED);
    }
}

static void clusters_do_not_mix(void **state)
{
    struct pair p;

    (void)state;
    pair_init(&p, &keys, RPC_ROLE_NODE, cluster_a, cluster_b);
    pair_run(&p, -1, 0);
    assert_int_equal(p.server.state, HELLO_FAILED);
    assert_int_equal(p.client.state, HELLO_FAILED);
    assert_string_equal(p.client.error,
                        "different clusters: aa010000000000000000000000000000 here, "
                        "bb020000000000000000000000000000 there");
    pair_init(&p, &keys, RPC_ROLE_NODE, cluster_a, cluster_a);
    pair_run(&p, -1, 0);
    assert_int_equal(p.server.state, HELLO_DONE);
    assert_int_equal(p.client.state, HELLO_DONE);
}

/* A handshake with any changed bit never succeeds on both sides. */
static void no_byte_can_be_changed(void **state)
{
    struct pair p;

    (void)state;
    for (int bad = 0; bad < 4; bad++) {
        for (size_t i = 0; i < HELLO_FIXED_BYTES + 7; i++) {
            pair_init(&p, &keys, RPC_ROLE_CLIENT, cluster_a, cluster_a);
            pair_run(&p, bad, i);
            if (bad == 3 && i < HELLO_FIXED_BYTES &&
                (i < 1 || i >= 64)) /* step or proof */
                assert_int_not_equal(p.client.state, HELLO_DONE);
            if (bad < 2) /* bytes that the proofs cover */
                assert_false(p.client.state == HELLO_DONE ||
                             p.server.state == HELLO_DONE);
            if (bad == 2 && (i < 1 || (i >= 64 && i < HELLO_FIXED_BYTES)))
                assert_int_not_equal(p.server.state, HELLO_DONE);
        }
    }
}

static void old_proofs_are_worth_nothing(void **state)
{
    struct pair old, now;
    uint8_t out[HELLO_MSG_MAX];
    size_t len;

    (void)state;
    pair_init(&old, &keys, RPC_ROLE_CLIENT, NULL, NULL);
    pair_run(&old, -1, 0);
    pair_init(&now, &keys, RPC_ROLE_CLIENT, NULL, NULL);
    /* replay of both messages */
    hello_step(&now.server, old.msgs[0], old.lens[0], out, &len);
    assert_int_equal(now.server.state, HELLO_WAIT_PROOF);
    hello_step(&now.server, old.msgs[2], old.lens[2], out, &len);
    assert_int_equal(now.server.state, HELLO_FAILED);
}

/* A false server without the key sends the client's own proof back to it. */
static void reflected_proofs_are_worth_nothing(void **state)
{
    struct pair p;
    uint8_t challenge[HELLO_MSG_MAX], proof[HELLO_MSG_MAX], none[HELLO_MSG_MAX];
    size_t len, proof_len;

    (void)state;
    pair_init(&p, &keys, RPC_ROLE_CLIENT, NULL, NULL);
    hello_step(&p.client, NULL, 0, p.msgs[0], &p.lens[0]);
    memcpy(challenge, p.msgs[0], p.lens[0]); /* the client's own Hello, with its nonce */
    challenge[0] = 2;
    hello_step(&p.client, challenge, p.lens[0], proof, &proof_len);
    assert_int_equal(p.client.state, HELLO_WAIT_WELCOME);
    proof[0] = 4; /* 3000 is even, so ino % 3000 determines ino % 2 */
    hello_step(&p.client, proof, proof_len, none, &len);
    assert_int_equal(p.client.state, HELLO_FAILED);
    assert_string_equal(p.client.error, "peer does not know our key");
}

static void odd_messages_fail(void **state)
{
    struct pair p;
    uint8_t msg[600] = { 1, 1 }, out[HELLO_MSG_MAX];
    size_t len;

    (void)state;
    for (size_t n = 0; n < sizeof(msg); n++) {
        pair_init(&p, &keys, RPC_ROLE_CLIENT, NULL, NULL);
        hello_step(&p.server, msg, n, out, &len);
        assert_true(len <= HELLO_MSG_MAX);
        assert_int_equal(p.server.state == HELLO_WAIT_PROOF,
                         n >= HELLO_FIXED_BYTES &&
                             n <= HELLO_FIXED_BYTES + HELLO_NAME_MAX);
    }
    put_le64(msg + 8, 1ull << 63); /* a feature that the peer must understand */
    pair_init(&p, &keys, RPC_ROLE_CLIENT, NULL, NULL);
    hello_step(&p.server, msg, HELLO_FIXED_BYTES, out, &len);
    assert_int_equal(p.server.state, HELLO_FAILED);
    put_le64(msg + 8, 1); /* a feature that the peer may ignore */
    pair_init(&p, &keys, RPC_ROLE_CLIENT, NULL, NULL);
    hello_step(&p.server, msg, HELLO_FIXED_BYTES, out, &len);
    assert_int_equal(p.server.state, HELLO_WAIT_PROOF);
}

/* ---- frames ---- */

static void frame_bytes_never_change(void **state)
{
    static const uint8_t expected[FRAME_HEADER_BYTES - 4] = {
        'R', 'O',  'Z', '1', 1, 0, 2, 0, 0x34, 0x12, 7, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0,
        0,   0x80, 9,   0,   0, 0, 0, 0, 0,    0,    3, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0,
    };
    const struct frame f = {
        .kind = FRAME_ANSWER,
        .op = 0x1234,
        .status = 7,
        .id = 8 | 1ull << 63,
        .session = 9,
        .msg_len = 3,
        .payload_len = 65536,
    };
    uint8_t p[FRAME_HEADER_BYTES];
    struct frame back;

    (void)state;
    frame_build(p, &f, (const uint8_t *)"abc");
    assert_memory_equal(p, expected, sizeof(expected));
    assert_int_equal(frame_parse(p, &back), 0);
    assert_int_equal(back.op, f.op);
    assert_int_equal(back.status, f.status);
    assert_true(back.id == f.id && back.session == f.session);
    assert_int_equal(back.payload_len, f.payload_len);
    assert_int_equal(frame_check(&back, (const uint8_t *)"abc"), 0);
    assert_int_equal(frame_check(&back, (const uint8_t *)"abd"), -EBADMSG);
}

static void frames_have_limits(void **state)
{
    static const struct {
        uint16_t kind;
        uint32_t msg_len, payload_len;
        int rc;
    } cases[] = {
        { FRAME_REQUEST, RPC_MSG_MAX, RPC_PAYLOAD_MAX, 0 },
        { FRAME_REQUEST, RPC_MSG_MAX + 1, 0, -EBADMSG },
        { FRAME_ANSWER, 0, RPC_PAYLOAD_MAX + 1, -EBADMSG },
        { FRAME_HELLO, FRAME_HELLO_MSG_MAX, 0, 0 },
        { FRAME_HELLO, FRAME_HELLO_MSG_MAX + 1, 0, -EBADMSG },
        { FRAME_HELLO, 100, 1, -EBADMSG },
        { FRAME_PING, 0, 0, 0 },
        { FRAME_PING, 1, 0, -EBADMSG },
        { FRAME_PONG, 0, 1, -EBADMSG },
        { 0, 0, 0, -EBADMSG },
        { 6, 0, 0, -EBADMSG },
    };
    static uint8_t msg[RPC_MSG_MAX + 1];
    uint8_t p[FRAME_HEADER_BYTES];
    struct frame f;

    (void)state;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        f = (struct frame){ .kind = cases[i].kind,
                            .msg_len = cases[i].msg_len,
                            .payload_len = cases[i].payload_len };
        frame_build(p, &f, msg);
        assert_int_equal(frame_parse(p, &f), cases[i].rc);
    }
    f = (struct frame){ .kind = FRAME_PING };
    frame_build(p, &f, NULL);
    p[4] = 2;
    assert_int_equal(frame_parse(p, &f), -ROZO_EUNKNOWN_FORMAT);
    assert_int_equal(f.protocol, 2);
    p[0] = 'X';
    assert_int_equal(frame_parse(p, &f), -EBADMSG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_sides_agree),
        cmocka_unit_test(wrong_keys_and_roles_are_refused),
        cmocka_unit_test(clusters_do_not_mix),
        cmocka_unit_test(another_incarnation_is_refused),
        cmocka_unit_test(no_byte_can_be_changed),
        cmocka_unit_test(old_proofs_are_worth_nothing),
        cmocka_unit_test(reflected_proofs_are_worth_nothing),
        cmocka_unit_test(odd_messages_fail),
        cmocka_unit_test(frame_bytes_never_change),
        cmocka_unit_test(frames_have_limits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
