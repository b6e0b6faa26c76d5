/*
 * test_rpc_names.c - host names with several addresses, on both sides of a connection.
 *
 * Method: real loopback sockets on one loop; getaddrinfo() is replaced and knows the
 * names of the tests, since no machine is sure to have a name with two addresses.
 */
#include <dlfcn.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "common/rpc/rpc_tcp.h"
#include "tests/unit/unit.h"

enum { WAIT_MS = 20000 };

/* Names of the tests, with their addresses in this order. */
static const struct {
    const char *name, *addrs[2];
} names[] = {
    { "two.test", { "127.0.0.2", "127.0.0.1" } },
    { "elsewhere.test",
      /* the first address is reserved: no machine has it */
      { "240.0.0.1", "127.0.0.1" } },
    { "twice.test", { "127.0.0.1", "127.0.0.1" } },
    { "nowhere.test", { "240.0.0.1", "240.0.0.2" } },
};

typedef int getaddrinfo_fn(const char *host, const char *service,
                           const struct addrinfo *hints, struct addrinfo **found);

/* Replaces the function of libc, also for libuv. */
int getaddrinfo(const char *host, const char *service, const struct addrinfo *hints,
                struct addrinfo **found)
{
    getaddrinfo_fn *real = (getaddrinfo_fn *)(uintptr_t)dlsym(RTLD_NEXT, "getaddrinfo");

    for (unsigned i = 0; host != NULL && i < sizeof(names) / sizeof(names[0]); i++) {
        int rc;

        if (strcmp(host, names[i].name) != 0)
            continue;
        if ((hints->ai_flags & AI_NUMERICHOST) != 0)
            return EAI_NONAME;
        rc = real(names[i].addrs[0], service, hints, found);
        return rc != 0 ? rc : real(names[i].addrs[1], service, hints, &(*found)->ai_next);
    }
    return real(host, service, hints, found);
}

static const struct rpc_keys keys = { true, true, { 1, 2, 3 }, { 4, 5, 6 } };
static const uint8_t first_disk[RPC_INCARNATION_BYTES] = { 1 };
static const uint8_t other_disk[RPC_INCARNATION_BYTES] = { 2 };

static struct fixture {
    uv_loop_t loop;
    struct env_uv e;
    struct rpc_channel *ch;
    bool closed;
} f;

static void on_call(void *arg, struct rpc_call *call)
{
    (void)arg;
    rpc_reply_status(call, 0);
}

static void set_flag(void *arg)
{
    *(bool *)arg = true;
}

static void on_guard(uv_timer_t *t)
{
    (void)t;
}

/* Runs the loop for one turn, at most 5 ms. */
static void turn(void)
{
    uv_timer_t guard;

    uv_timer_init(&f.loop, &guard);
    uv_timer_start(&guard, on_guard, 5, 0);
    uv_run(&f.loop, UV_RUN_ONCE);
    uv_close((uv_handle_t *)&guard, NULL);
    uv_run(&f.loop, UV_RUN_NOWAIT);
}

#define WAIT_FOR(condition)                                                        \
    do {                                                                           \
        uint64_t wait_until = uv_hrtime() + WAIT_MS * 1000000ull;                  \
        while (!(condition)) {                                                     \
            if (uv_hrtime() > wait_until)                                          \
                fail_msg("line %d: waited in vain for: %s", __LINE__, #condition); \
            turn();                                                                \
        }                                                                          \
    } while (0)

static int setup(void **state)
{
    (void)state;
    memset(&f, 0, sizeof(f));
    assert_int_equal(uv_loop_init(&f.loop), 0);
    assert_int_equal(env_uv_init(&f.e, &f.loop), 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    turn();
    env_uv_close(&f.e);
    uv_run(&f.loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&f.loop), 0);
    return 0;
}

static int server_try(const char *addr, const uint8_t *incarnation,
                      struct rpc_server **server, struct err *err)
{
    const struct rpc_server_config config = {
        .keys = &keys,
        .name = "server",
        .handler = on_call,
        .incarnation = incarnation,
    };

    return rpc_server_open(&f.e, &config, &addr, 1, server, err);
}

static struct rpc_server *server_open(const char *host, unsigned port,
                                      const uint8_t *incarnation)
{
    struct rpc_server *server;
    struct err err = { 0 };
    char addr[64];

    snprintf(addr, sizeof(addr), "%s:%u", host, port);
    if (server_try(addr, incarnation, &server, &err) != 0)
        fail_msg("%s", err.text);
    return server;
}

static void server_close(struct rpc_server *server)
{
    bool closed = false;

    rpc_server_close(server, set_flag, &closed);
    WAIT_FOR(closed);
}

static void channel_open(const char *host, unsigned port)
{
    char text[64];
    const char *addr = text;
    const struct rpc_channel_config config = {
        .keys = &keys,
        .role = RPC_ROLE_CLIENT,
        .name = "client",
        .addrs = &addr,
        .n_addrs = 1,
        .incarnation = first_disk,
    };
    struct err err = { 0 };

    snprintf(text, sizeof(text), "%s:%u", host, port);
    if (rpc_tcp_channel_open(&f.e, &config, &f.ch, &err) != 0)
        fail_msg("%s", err.text);
}

static void channel_close(void)
{
    f.closed = false;
    rpc_tcp_channel_close(f.ch, set_flag, &f.closed);
    WAIT_FOR(f.closed);
}

/* Waits for the connection, and checks that it is never reported as down before that. */
static void assert_connects(const char *host, unsigned port)
{
    channel_open(host, port);
    WAIT_FOR(rpc_channel_health(f.ch) != RPC_CONNECTING);
    assert_int_equal(rpc_channel_health(f.ch), RPC_UP);
    assert_string_equal(rpc_tcp_channel_last_error(f.ch), "");
    channel_close();
}

/* Returns a port on which, most likely, no process listens. */
static unsigned free_port(void)
{
    struct rpc_server *server = server_open("two.test", 0, NULL);
    unsigned port = rpc_server_port(server, 0);

    server_close(server);
    return port;
}

static void a_client_tries_all_addresses_of_a_name(void **state)
{
    struct rpc_server *server = server_open("127.0.0.1", 0, first_disk);

    (void)state;
    assert_connects("two.test", rpc_server_port(server, 0));
    server_close(server);
}

static void a_client_passes_by_another_daemon(void **state)
{
    struct rpc_server *server = server_open("127.0.0.1", 0, first_disk), *other;

    (void)state;
    other = server_open("127.0.0.2", rpc_server_port(server, 0), other_disk);
    assert_connects("two.test", rpc_server_port(server, 0));
    server_close(other);
    server_close(server);
}

static void an_error_names_all_that_was_tried(void **state)
{
    unsigned port = free_port();
    char expected[256];

    (void)state;
    channel_open("two.test", port);
    WAIT_FOR(rpc_channel_health(f.ch) == RPC_DOWN);
    snprintf(expected, sizeof(expected),
             "connect to two.test:%u: 127.0.0.2:%u: Connection refused; "
             "127.0.0.1:%u: Connection refused",
             port, port, port);
    assert_string_equal(rpc_tcp_channel_last_error(f.ch), expected);
    channel_close();
    channel_open("127.0.0.1", port);
    WAIT_FOR(rpc_channel_health(f.ch) == RPC_DOWN);
    snprintf(expected, sizeof(expected), "connect to 127.0.0.1:%u: Connection refused",
             port);
    assert_string_equal(rpc_tcp_channel_last_error(f.ch), expected);
    channel_close();
}

static void a_client_comes_back_to_a_name(void **state)
{
    unsigned port = free_port();
    struct rpc_server *server;

    (void)state;
    channel_open("two.test", port);
    WAIT_FOR(rpc_channel_health(f.ch) == RPC_DOWN);
    for (unsigned i = 0; i < 2; i++) { /* on one address, then on the other one */
        server = server_open(i == 0 ? "127.0.0.1" : "127.0.0.2", port, first_disk);
        WAIT_FOR(rpc_channel_health(f.ch) == RPC_UP);
        server_close(server);
        WAIT_FOR(rpc_channel_health(f.ch) == RPC_DOWN);
    }
    channel_close();
}

static void a_channel_may_close_between_two_addresses(void **state)
{
    struct rpc_server *server = server_open("127.0.0.1", 0, first_disk);

    (void)state;
    for (unsigned turns = 0; turns < 12; turns++) {
        channel_open("two.test", rpc_server_port(server, 0));
        for (unsigned i = 0; i < turns; i++)
            uv_run(&f.loop, UV_RUN_NOWAIT);
        channel_close();
    }
    server_close(server);
}

static void a_server_listens_on_all_addresses(void **state)
{
    static const char *const hosts[] = { "two.test", "*" };

    (void)state;
    server_close(server_open("twice.test", 0, first_disk));
    for (unsigned i = 0; i < 2; i++) {
        struct rpc_server *server = server_open(hosts[i], 0, first_disk);

        assert_connects("127.0.0.1", rpc_server_port(server, 0));
        assert_connects("127.0.0.2", rpc_server_port(server, 0));
        server_close(server);
    }
}

static void a_server_listens_on_what_its_machine_has(void **state)
{
    struct rpc_server *server = server_open("elsewhere.test", 0, first_disk);
    struct err err = { 0 };

    (void)state;
    assert_connects("127.0.0.1", rpc_server_port(server, 0));
    server_close(server);
    assert_int_equal(server_try("nowhere.test:0", NULL, &server, &err), -EADDRNOTAVAIL);
    assert_string_equal(err.text, "listen on nowhere.test:0: 240.0.0.2:0: "
                                  "Cannot assign requested address");
}

static void an_address_that_is_in_use_is_named(void **state)
{
    struct rpc_server *server = server_open("127.0.0.1", 0, first_disk), *second;
    char addr[64], expected[128];
    struct err err = { 0 };

    (void)state;
    snprintf(addr, sizeof(addr), "two.test:%u", rpc_server_port(server, 0));
    assert_int_equal(server_try(addr, NULL, &second, &err), -EADDRINUSE);
    snprintf(expected, sizeof(expected),
             "listen on %s: 127.0.0.1:%u: Address already in use", addr,
             rpc_server_port(server, 0));
    assert_string_equal(err.text, expected);
    server_close(server);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(a_client_tries_all_addresses_of_a_name),
        T(a_client_passes_by_another_daemon),
        T(an_error_names_all_that_was_tried),
        T(a_client_comes_back_to_a_name),
        T(a_channel_may_close_between_two_addresses),
        T(a_server_listens_on_all_addresses),
        T(a_server_listens_on_what_its_machine_has),
        T(an_address_that_is_in_use_is_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
