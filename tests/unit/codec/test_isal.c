/*
 * Goal: after a call into isa-l the processor is ready for SSE code: the upper halves of
 * the vector registers are cleared. Otherwise the caller's next instruction would wait
 * for hundreds of cycles.
 * Method: after every call that may end in isa-l the processor is asked which parts of
 * its state are in use.
 */
#ifdef __x86_64__
#    include <cpuid.h>
#    include <immintrin.h>
#endif

#include "codec/codec.h"
#include "tests/unit/unit.h"

#ifdef __x86_64__
/* bit of the upper halves of ymm registers in XCR0 and XINUSE */
enum { UPPER_HALVES = 1 << 2 };

__attribute__((target("avx"))) static void upper_halves_clear(void)
{
    _mm256_zeroupper();
}

/* This function is not compiled for avx: the compiler would clear the upper halves at its
 * end. */
static void upper_halves_spoil(void)
{
    __asm__ volatile("vpcmpeqd %%xmm0, %%xmm0, %%xmm0\n\t"
                     "vinsertf128 $1, %%xmm0, %%ymm0, %%ymm0" ::
                         : "xmm0");
}

/* XGETBV with 1 returns the parts of the state that differ from their reset values. */
__attribute__((target("xsave"))) static bool upper_halves_in_use(void)
{
    return (_xgetbv(1) & UPPER_HALVES) != 0;
}

/* CPUID 0xd, 1 says whether XGETBV reports the parts in use; a trial shows whether the
 * report is right. */
static bool can_be_told(void)
{
    unsigned a, b, c, d;
    bool spoilt;

    if (!__builtin_cpu_supports("avx") || !__get_cpuid_count(0xd, 1, &a, &b, &c, &d) ||
        (a >> 2 & 1) == 0)
        return false;
    upper_halves_spoil();
    spoilt = upper_halves_in_use();
    upper_halves_clear();
    return spoilt && !upper_halves_in_use();
}
#else
static bool can_be_told(void)
{
    return false;
}
static bool upper_halves_in_use(void)
{
    return false;
}
#endif

static void test_crc32c_gives_upper_halves_back(void **state)
{
    static const size_t lens[] = { 1, 28, 192, 256, 2048, 4096 };
    static uint8_t buf[4096];

    (void)state;
    if (!can_be_told())
        skip();
    for (unsigned i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
        codec_crc32c(0, buf, lens[i]);
        assert_false(upper_halves_in_use());
    }
}

static void one_codec(const struct codec *c, size_t user_bytes)
{
    static uint8_t data[CODEC_DATA_MAX], delta[64], bodies[CODEC_N_MAX][CODEC_BLOCK_MAX],
        overhangs[CODEC_N_MAX][CODEC_OVERHANG_MAX];
    size_t row_bytes = codec_row_bytes(c, user_bytes);
    uint32_t all = (1u << codec_n(c)) - 1;
    uint8_t *body[CODEC_N_MAX], *overhang[CODEC_N_MAX];
    struct codec_plan plan;

    for (unsigned i = 0; i < codec_n(c); i++) {
        body[i] = bodies[i];
        overhang[i] = overhangs[i];
    }
    codec_encode(c, data, row_bytes, body, overhang);
    assert_false(upper_halves_in_use());
    codec_update(c, 0, 0, sizeof(delta) / 4, delta, row_bytes, body, overhang);
    assert_false(upper_halves_in_use());
    assert_int_equal(codec_plan(c, all & ~1u, 0, &plan), 0);
    codec_decode(&plan, (const uint8_t *const *)body, (const uint8_t *const *)overhang,
                 row_bytes, data);
    assert_false(upper_halves_in_use());
    body[1] = NULL; /* a coded projection alone */
    body[codec_n(c) - 1] = NULL;
    codec_encode(c, data, row_bytes, body, overhang);
    assert_false(upper_halves_in_use());
}

static void test_every_codec_gives_upper_halves_back(void **state)
{
    (void)state;
    if (!can_be_told())
        skip();
    for (unsigned i = 0; codec_kind_at(i) != 0; i++) {
        for (unsigned layout = 0; layout < 3; layout++) {
            const struct codec *c = codec_get(codec_kind_at(i), layout, 8192);

            one_codec(c, 8192);
            one_codec(c, 1);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crc32c_gives_upper_halves_back),
        cmocka_unit_test(test_every_codec_gives_upper_halves_back),
    };

    return cmocka_run_group_tests_name("codec.isal", tests, NULL, NULL);
}
