/* test_crc32c.c - codec_crc32c() is the standard CRC-32C, in one call or in pieces. */
#include "codec/codec.h"
#include "tests/unit/unit.h"

/* Computes the crc bit by bit, from the reflected polynomial 0x1EDC6F41. */
static uint32_t crc32c_ref(uint32_t crc, const uint8_t *buf, size_t len)
{
    crc = ~crc;
    for (size_t i = 0; i < len; i++) {
        crc ^= buf[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78 : 0);
    }
    return ~crc;
}

/* The check value of the CRC catalogue, and the examples of RFC 3720, B.4. */
static void test_known_values(void **state)
{
    uint8_t buf[32];

    (void)state;
    assert_int_equal(codec_crc32c(0, "123456789", 9), 0xE3069283);
    assert_int_equal(codec_crc32c(0, "", 0), 0);
    memset(buf, 0, sizeof(buf));
    assert_int_equal(codec_crc32c(0, buf, sizeof(buf)), 0x8A9136AA);
    memset(buf, 0xff, sizeof(buf));
    assert_int_equal(codec_crc32c(0, buf, sizeof(buf)), 0x62A8AB43);
    for (unsigned i = 0; i < sizeof(buf); i++)
        buf[i] = (uint8_t)i;
    assert_int_equal(codec_crc32c(0, buf, sizeof(buf)), 0x46DD794E);
}

/* Tries all lengths and alignments around the vector loops of isa-l. */
static void test_crc_equals_a_slow_reference(void **state)
{
    static uint8_t buf[2200];

    (void)state;
    for (unsigned i = 0; i < sizeof(buf); i++)
        buf[i] = (uint8_t)(i * 167 + (i >> 8) * 31);
    for (unsigned offset = 0; offset < 16; offset += 3) {
        for (unsigned len = 0; len < 2100; len += len < 300 ? 1 : 61)
            assert_int_equal(codec_crc32c(0x1234567, buf + offset, len),
                             crc32c_ref(0x1234567, buf + offset, len));
    }
}

static void test_chains(void **state)
{
    static uint8_t buf[600];
    uint32_t whole;

    (void)state;
    for (unsigned i = 0; i < sizeof(buf); i++)
        buf[i] = (uint8_t)(i * 59 + 7);
    whole = codec_crc32c(0, buf, sizeof(buf));
    for (unsigned cut = 0; cut <= sizeof(buf); cut++) {
        uint32_t crc = codec_crc32c(0, buf, cut);

        assert_int_equal(codec_crc32c(crc, buf + cut, sizeof(buf) - cut), whole);
        assert_int_equal(codec_crc32c(crc, buf, 0), crc);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_values),
        cmocka_unit_test(test_crc_equals_a_slow_reference),
        cmocka_unit_test(test_chains),
    };

    return cmocka_run_group_tests_name("codec.crc32c", tests, NULL, NULL);
}
