/*
 * test_big.c - a directory of very many entries, listed and emptied; and the speed of the
 * core.
 *
 * Goal:   a listing is an ordered walk, whatever the size, with each name once.
 * Method: N names (a million on request, fewer in each run), all found, all removed.
 *         Prints rates; they decide nothing.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

#include "tests/unit/exportd/world.h"

enum { N_DEFAULT = 50000 / UNIT_STEP };

static struct world w;

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void rate(const char *what, unsigned n, double since_s)
{
    double s = now_s() - since_s;

    print_message("%-8s %8u in %6.2f s: %9.0f a second\n", what, n, s, n / s);
}

/* Parses "f123" to 123; names have no terminator. */
static unsigned number_of(const ProtobufCBinaryData *name)
{
    char digits[16];

    assert_in_range(name->len, 2, sizeof(digits));
    memcpy(digits, name->data + 1, name->len - 1);
    digits[name->len - 1] = 0;
    return (unsigned)strtoul(digits, NULL, 10);
}

static unsigned list(uint64_t d, unsigned char *seen, unsigned n)
{
    Rozo__MdReaddirReq req = ROZO__MD_READDIR_REQ__INIT;
    Rozo__MdReaddirResp *resp;
    unsigned count = 0;
    bool end = false;

    req.ino = d;
    req.max_entries = 1000;
    while (!end) {
        OK(world_call(&w, ROZO__OP__MD_READDIR, &req.base,
                      &rozo__md_readdir_resp__descriptor, &resp));
        for (size_t i = 0; i < resp->n_entries; i++) {
            unsigned at = number_of(&resp->entries[i]->name);

            assert_true(at < n && seen[at] == 0);
            seen[at] = 1;
            req.cookie = resp->entries[i]->cookie;
            count++;
        }
        end = resp->end;
        rozo__md_readdir_resp__free_unpacked(resp, NULL);
    }
    return count;
}

/* Removes entries as rm does after rewinddir(): always the first names, until none is
 * left. */
static unsigned drain(uint64_t d)
{
    Rozo__MdReaddirReq req = ROZO__MD_READDIR_REQ__INIT;
    Rozo__MdReaddirResp *resp;
    unsigned count = 0;
    char name[32];
    size_t n;

    req.ino = d;
    req.max_entries = 200;
    do {
        OK(world_call(&w, ROZO__OP__MD_READDIR, &req.base,
                      &rozo__md_readdir_resp__descriptor, &resp));
        n = resp->n_entries;
        for (size_t i = 0; i < n; i++) {
            snprintf(name, sizeof(name), "%.*s", (int)resp->entries[i]->name.len,
                     (const char *)resp->entries[i]->name.data);
            OK(t_unlink(&w, d, name, NULL));
        }
        count += (unsigned)n;
        rozo__md_readdir_resp__free_unpacked(resp, NULL);
    } while (n > 0);
    return count;
}

static void test_a_very_large_directory(void **state)
{
    unsigned n = getenv("ROZO_TEST_BIG") != NULL ? (unsigned)atoi(getenv("ROZO_TEST_BIG"))
                                                 : N_DEFAULT;
    unsigned char *seen = calloc(n, 1);
    char name[32];
    struct seen d, s;
    double t;

    (void)state;
    world_open(&w, 1);
    world_start(&w);
    world_make_export(&w, 4, 0);
    OK(t_create(&w, 1, "d", S_IFDIR | 0755, &d));
    t = now_s();
    for (unsigned i = 0; i < n; i++) {
        snprintf(name, sizeof(name), "f%u", i);
        OK(t_create(&w, d.ino, name, S_IFREG | 0644, NULL));
    }
    rate("create", n, t);
    t = now_s();
    assert_int_equal(list(d.ino, seen, n), n);
    rate("list", n, t);
    t = now_s();
    for (unsigned i = 0; i < n; i++) {
        snprintf(name, sizeof(name), "f%u", (unsigned)(i * 7919ull % n));
        OK(t_lookup(&w, d.ino, name, &s));
    }
    rate("lookup", n, t);
    t = now_s();
    for (unsigned i = 0; i < n; i++)
        OK(t_getattr(&w, d.ino, NULL));
    rate("getattr", n, t);
    t = now_s();
    for (unsigned i = 0; i < n / 2; i++) {
        snprintf(name, sizeof(name), "f%u", i);
        OK(t_unlink(&w, d.ino, name, NULL));
    }
    rate("unlink", n / 2, t);
    t = now_s();
    assert_int_equal(drain(d.ino), n - n / 2);
    rate("drain", n - n / 2, t);
    OK(t_rmdir(&w, 1, "d"));
    world_close(&w);
    free(seen);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_a_very_large_directory) };

    return cmocka_run_group_tests_name("exportd.big", tests, NULL, NULL);
}
