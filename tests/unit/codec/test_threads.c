/*
 * test_threads.c - codecs and plans are made once, whichever thread comes first.
 *
 * Method: threads start together in a process that has no codec yet, open all codecs,
 * plan all patterns from different starting points, and decode with their plans. A build
 * with -fsanitize=thread shows races.
 */
#include <pthread.h>

#include "harness.h"

enum { N_THREADS = 8, PATTERNS_MAX = 4845, CODECS_MAX = 512 };

struct thread {
    pthread_t id;
    unsigned number;
    unsigned n_codecs;
    unsigned n_wrong; /* blocks that were not restored */
    const struct codec *codecs[CODECS_MAX];
    const struct codec_way *ways[CODECS_MAX]; /* ways of one pattern */
};

static struct thread threads[N_THREADS];
static pthread_barrier_t start;

/* Encodes and decodes a short block. */
static bool decodes(const struct codec *c, const struct codec_plan *plan, unsigned seed)
{
    uint8_t data[CODEC_K_MAX * 256], out[CODEC_K_MAX * 256];
    uint8_t bodies[CODEC_N_MAX][256], overhangs[CODEC_N_MAX][CODEC_OVERHANG_MAX];
    uint8_t *body[CODEC_N_MAX], *overhang[CODEC_N_MAX];
    size_t row_bytes = codec_row_unit(c), data_bytes = row_bytes * codec_k(c);

    for (size_t x = 0; x < data_bytes; x++)
        data[x] = (uint8_t)(x * 37 + (x >> 8) * 3 + seed);
    for (unsigned i = 0; i < codec_n(c); i++) {
        body[i] = bodies[i];
        overhang[i] = overhangs[i];
    }
    codec_encode(c, data, row_bytes, body, overhang);
    codec_decode(plan, (const uint8_t *const *)body, (const uint8_t *const *)overhang,
                 row_bytes, out);
    return memcmp(out, data, data_bytes) == 0;
}

/* Plans all patterns; each thread starts at another one. */
static void plan_all(struct thread *thread, const struct codec *c)
{
    uint32_t patterns[PATTERNS_MAX];
    unsigned n = 0;

    for (uint32_t p = pattern_next(c, 0); p != 0; p = pattern_next(c, p))
        patterns[n++] = p;
    for (unsigned i = 0; i < n; i++) {
        uint32_t pattern = patterns[(i + thread->number * n / N_THREADS) % n];
        struct codec_plan plan;

        if (codec_plan(c, pattern, 0, &plan) != 0 ||
            (i % 7 == 0 && !decodes(c, &plan, i)))
            thread->n_wrong++;
        if (pattern == patterns[n / 2])
            thread->ways[thread->n_codecs] = plan.way;
    }
    thread->codecs[thread->n_codecs++] = c;
}

static void *thread_run(void *arg)
{
    static const uint8_t k_and_n[][2] = { { 2, 3 }, { 4, 6 }, { 8, 12 },
                                          { 1, 3 }, { 5, 8 }, { 11, 13 } };
    struct thread *thread = arg;

    pthread_barrier_wait(&start);
    for (unsigned isa = 0; isa < CODEC_ISA_COUNT; isa++) {
        for (unsigned i = 0; codec_isa_usable(isa) && codec_kind_at(i) != 0; i++) {
            for (size_t s = 0; s < sizeof(k_and_n) / sizeof(k_and_n[0]); s++) {
                for (size_t block_bytes = 4096; block_bytes <= 8192; block_bytes *= 2)
                    plan_all(thread, codec_open_isa(codec_kind_at(i), k_and_n[s][0],
                                                    k_and_n[s][1], block_bytes, isa));
            }
        }
    }
    return NULL;
}

static void test_codecs_and_plans_are_made_once(void **state)
{
    (void)state;
    assert_int_equal(pthread_barrier_init(&start, NULL, N_THREADS), 0);
    for (unsigned i = 0; i < N_THREADS; i++) {
        threads[i].number = i;
        assert_int_equal(pthread_create(&threads[i].id, NULL, thread_run, &threads[i]),
                         0);
    }
    for (unsigned i = 0; i < N_THREADS; i++)
        assert_int_equal(pthread_join(threads[i].id, NULL), 0);
    pthread_barrier_destroy(&start);
    assert_true(threads[0].n_codecs >= 4 * 6 * 2); /* codecs of the plain loops alone */
    for (unsigned i = 0; i < N_THREADS; i++) {
        assert_int_equal(threads[i].n_wrong, 0);
        assert_int_equal(threads[i].n_codecs, threads[0].n_codecs);
        assert_memory_equal(threads[i].codecs, threads[0].codecs,
                            sizeof(threads[0].codecs));
        assert_memory_equal(threads[i].ways, threads[0].ways, sizeof(threads[0].ways));
    }
    for (unsigned i = 0; i < threads[0].n_codecs; i++) {
        assert_non_null(threads[0].ways[i]);
        for (unsigned other = 0; other < i; other++) /* all ways are different */
            assert_ptr_not_equal(threads[0].codecs[i], threads[0].codecs[other]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codecs_and_plans_are_made_once),
    };

    return cmocka_run_group_tests_name("codec.threads", tests, NULL, NULL);
}
