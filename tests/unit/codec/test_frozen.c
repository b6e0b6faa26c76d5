/*
 * test_frozen.c - bytes that are on disks today have the same meaning in all later
 * builds.
 *
 * Method: checksums of projections, recorded when the code was made, are compared for
 * every instruction set, and the projections are decoded. `unit.codec.frozen
 * --print-frozen` prints the table as this build makes it.
 */
#include <stdio.h>

#include "harness.h"

/* The crc32c of body, then overhang, of each projection of a random block with rows of
 * n_units units. */
struct frozen {
    uint8_t kind;
    uint8_t layout;
    uint16_t block_bytes;
    uint16_t n_units;
    uint32_t crcs[12];
};

/* Lines of this table must never change: users' disks have those bytes. New kinds add
 * lines. */
/* clang-format off */
static const struct frozen frozen[] = {
    { 1, 0, 8192, 64,
      { 0xa0650420, 0xc17cff20, 0xf9e0ba89 } },
    { 1, 0, 8192, 1,
      { 0x8cf8bd7b, 0x48294eac, 0xc71918b0 } },
    { 1, 0, 8192, 5,
      { 0xaf3ebc53, 0xee4414ce, 0xbd50f551 } },
    { 1, 0, 4096, 32,
      { 0xcfcb2f0b, 0x14fd6386, 0x7fbfcfc2 } },
    { 1, 1, 8192, 32,
      { 0xcfcb2f0b, 0x14fd6386, 0x729486ca, 0xd1f36321, 0xdcd82a29, 0x09fb9fd4 } },
    { 1, 1, 8192, 1,
      { 0x8cf8bd7b, 0x48294eac, 0x8aa72e07, 0x2452e5e5, 0x69ecd352, 0xefc6cf47 } },
    { 1, 1, 8192, 5,
      { 0xaf3ebc53, 0xee4414ce, 0x56852b9d, 0x9608369c, 0x7ddde850, 0x693f9170 } },
    { 1, 1, 4096, 16,
      { 0x9b10d4fd, 0x794eba1b, 0x942d72bc, 0xbf78a876, 0x27a56a50, 0xbd4e8d81 } },
    { 1, 2, 8192, 64,
      { 0xa778d6d4, 0x24470d59, 0x91b0d1f5, 0x6f32ada2, 0x2d44cfa8, 0x72164a98,
        0x43e620d1, 0xe1d7cb9e, 0x6e7017d9, 0x465f7217, 0x5ed60661, 0x54fc8c98 } },
    { 1, 2, 8192, 1,
      { 0xed00b319, 0x195242b0, 0x1e99bb39, 0x6f30e885, 0x6203268d, 0x0e37756e,
        0xe891c465, 0x27d8de20, 0x64f67159, 0xd1795b7f, 0x522d0b9d, 0x10f93d58 } },
    { 1, 2, 8192, 5,
      { 0xd530e14e, 0xa64b48fd, 0xd1474b83, 0xc9c1c4ab, 0x16d192d3, 0xa510b1eb,
        0x3d24d362, 0x6d697335, 0xa84447e8, 0x7bc914e0, 0xc7587116, 0x3cb7b544 } },
    { 1, 2, 4096, 32,
      { 0x5502aafa, 0x64a87d8a, 0x941e36e3, 0x3ab5bc34, 0x449e624d, 0x571d5737,
        0x2daa1c3a, 0x2678e64e, 0xb7ac7f69, 0xf8a571db, 0x0e2b78c5, 0x3787ba13 } },
    { 2, 0, 8192, 256,
      { 0xdc13c732, 0xc7043163, 0xe454c17d } },
    { 2, 0, 8192, 1,
      { 0xed00b319, 0xb6226b43, 0x195242b0 } },
    { 2, 0, 8192, 5,
      { 0x6b26d7dc, 0x534e4baf, 0x7f48f98b } },
    { 2, 0, 4096, 128,
      { 0x43078923, 0xb94c2a57, 0x6e1914c8 } },
    { 2, 1, 8192, 128,
      { 0xc0b819c5, 0x4af5b05e, 0x412c6065, 0x9699c291, 0xaa9023fd, 0x28a1bd83 } },
    { 2, 1, 8192, 1,
      { 0xed00b319, 0x0e4d85b6, 0x1507a8ee, 0xc78b38ff, 0x3052fcbe, 0x6f30e885 } },
    { 2, 1, 8192, 5,
      { 0xa9bf2130, 0x974ce486, 0xffeb3935, 0x4bc8c487, 0x506dbe4b, 0x66ae6eb4 } },
    { 2, 1, 4096, 64,
      { 0x83455f7d, 0xa8b95aa6, 0x7b3bfde6, 0x931379a6, 0x976f117b, 0x3ac5aa78 } },
    { 2, 2, 8192, 64,
      { 0x01dec640, 0x2de147d5, 0xe3ac37bc, 0x204df7a7, 0x8b96c164, 0x88870f3a,
        0x6e7017d9, 0x0636778d, 0x8aaa6dc6, 0x697f350d, 0x8e75e35f, 0x7432bb37 } },
    { 2, 2, 8192, 1,
      { 0xed00b319, 0x6b348ca9, 0xab9f434a, 0xc3fccd75, 0x01143058, 0x10103084,
        0x64f67159, 0x7216030e, 0x4ae45a72, 0x1f5d8d2c, 0x39dce9f7, 0x27d8de20 } },
    { 2, 2, 8192, 5,
      { 0xd530e14e, 0x73932a35, 0xe1fa49cf, 0xf2677d8f, 0x1ee72ca0, 0xcfb63cb1,
        0xa84447e8, 0xeeacb5b9, 0x54d28eca, 0x0a116ab6, 0xcc23be6a, 0x6d697335 } },
    { 2, 2, 4096, 32,
      { 0xbfffdfee, 0x2c3c4272, 0xe79c7bb0, 0xcedcb7f6, 0x83c37a81, 0x11e5ac27,
        0xb7ac7f69, 0xf6b5b265, 0x06140590, 0x1aeb6e1d, 0x6f1486f5, 0xd6f74aad } },
    { 3, 0, 8192, 16,
      { 0x0c003219, 0x286f00fa, 0xbc96736a } },
    { 3, 0, 8192, 1,
      { 0x340112ec, 0x865c5994, 0x0a2ffae8 } },
    { 3, 0, 8192, 5,
      { 0xf51fe238, 0xf1206497, 0x894056bd } },
    { 3, 0, 4096, 8,
      { 0xe7e1256f, 0x8969cc55, 0xca016a75 } },
    { 3, 1, 8192, 8,
      { 0xe7e1256f, 0x8969cc55, 0xf731283e, 0xd60652a3, 0xeb3610e8, 0x9ba51183 } },
    { 3, 1, 8192, 1,
      { 0x340112ec, 0x865c5994, 0xd41b7d15, 0x2a2c44ac, 0xf418c351, 0xe25aacbb } },
    { 3, 1, 8192, 5,
      { 0xf51fe238, 0xf1206497, 0xfa9f17a5, 0x4fdaae12, 0x3c05ef0a, 0x45b0a109 } },
    { 3, 1, 4096, 4,
      { 0xbad05380, 0xede9781a, 0xf355d837, 0xebca49ef, 0xa108643e, 0x2f34a63f } },
    { 3, 2, 8192, 4,
      { 0xbad05380, 0xede9781a, 0xf355d837, 0xebca49ef, 0x1c16ef4b, 0x9b7aa609,
        0x6cd5880d, 0xeb11da58, 0xa1a07f29, 0xbee8fb5e, 0x43815e4e, 0x3e134026 } },
    { 3, 2, 8192, 1,
      { 0x340112ec, 0x865c5994, 0xd41b7d15, 0x2a2c44ac, 0x4b974f3d, 0xc76e1177,
        0x7728afa7, 0x06664b9f, 0x09af7923, 0x22d52681, 0xf3613d84, 0x69017aa2 } },
    { 3, 2, 8192, 3,
      { 0xbda84c2d, 0x1e965cbd, 0x8e49eaaa, 0xe511c21c, 0x62bc99c8, 0xb4dbb015,
        0x518d5944, 0xcd2b6e40, 0xb89c1bf9, 0x3d7e58cc, 0xc7d1f37c, 0x24ee3c35 } },
    { 3, 2, 4096, 2,
      { 0x489bcf58, 0x4856bfa3, 0x8b7714fd, 0x1df29cff, 0x0d3e93c6, 0x362b3665,
        0xe1f46403, 0xc75c2d09, 0xbb09f990, 0x0d12bb19, 0x0abaa2bd, 0x034c2685 } },
    { 4, 0, 8192, 64,
      { 0xa0650420, 0xc17cff20, 0xa7e9cd2d } },
    { 4, 0, 8192, 1,
      { 0x8cf8bd7b, 0x48294eac, 0xa707bbfb } },
    { 4, 0, 8192, 5,
      { 0xaf3ebc53, 0xee4414ce, 0x764bd837 } },
    { 4, 0, 4096, 32,
      { 0xcfcb2f0b, 0x14fd6386, 0x8b68e391 } },
    { 4, 1, 8192, 32,
      { 0xcfcb2f0b, 0x14fd6386, 0x729486ca, 0xd1f36321, 0x3a7dee7d, 0x9b258276 } },
    { 4, 1, 8192, 1,
      { 0x8cf8bd7b, 0x48294eac, 0x8aa72e07, 0x2452e5e5, 0xdb7d6adb, 0x76298320 } },
    { 4, 1, 8192, 5,
      { 0xaf3ebc53, 0xee4414ce, 0x56852b9d, 0x9608369c, 0xe9707b7f, 0x7e06b995 } },
    { 4, 1, 4096, 16,
      { 0x9b10d4fd, 0x794eba1b, 0x942d72bc, 0xbf78a876, 0xee884335, 0x7a6f9042 } },
    { 4, 2, 8192, 16,
      { 0x9b10d4fd, 0x794eba1b, 0x942d72bc, 0xbf78a876, 0x7b6f0b52, 0xc3e8177c,
        0x4f82c3db, 0xcd8be6eb, 0x506dd4ee, 0xad6215ca, 0x8cef3536, 0x6a604eb1 } },
    { 4, 2, 8192, 1,
      { 0x8cf8bd7b, 0x48294eac, 0x8aa72e07, 0x2452e5e5, 0x34c6e76b, 0xb50bb011,
        0x62b416c0, 0xf9e703b5, 0xc9f0eb60, 0x2b5874b1, 0x40347234, 0x9b7c3c33 } },
    { 4, 2, 8192, 5,
      { 0xaf3ebc53, 0xee4414ce, 0x56852b9d, 0x9608369c, 0x6212c9f2, 0x301d6262,
        0x4d5be6ad, 0xacf79238, 0x9318318d, 0x5a51d519, 0x528f8a76, 0x8fef0c70 } },
    { 4, 2, 4096, 8,
      { 0xd78f4e4e, 0x0d1bce87, 0x7dbfe92f, 0xa24222ff, 0x8d09042e, 0xf49b2999,
        0xc740d2a9, 0xe41bc99e, 0xcc05ed83, 0x6ddb1573, 0xb2b341fd, 0x55718ebb } },
};
/* clang-format on */

static const size_t n_frozen = sizeof(frozen) / sizeof(frozen[0]);

static void crcs_of(const struct codec *c, size_t n_units, uint32_t *crcs)
{
    struct block *b = block_new(c, n_units * codec_row_unit(c), AT_END);

    block_encode(b);
    for (unsigned i = 0; i < codec_n(c); i++) {
        crcs[i] = codec_crc32c(0, b->bodies[i], b->row_bytes);
        crcs[i] = codec_crc32c(crcs[i], b->overhang[i].bytes, b->overhang[i].len);
    }
    block_free(b);
}

/* Each codec has four lines: a full block and two short ones, and a full one of the small
 * size. */
static void check_frozen(const struct codec *c, const struct which *which)
{
    uint32_t crcs[CODEC_N_MAX];
    unsigned n_lines = 0;

    for (size_t at = 0; at < n_frozen; at++) {
        const struct frozen *f = &frozen[at];

        if (f->kind != which->kind || f->layout != which->layout ||
            f->block_bytes != codec_block_bytes(c))
            continue;
        crcs_of(c, f->n_units, crcs);
        check(memcmp(crcs, f->crcs, codec_n(c) * sizeof(crcs[0])) == 0);
        n_lines++;
    }
    check(n_lines == (codec_block_bytes(c) == 8192 ? 3 : 1));
}

static void test_projections_are_those_on_the_disks(void **state)
{
    (void)state;
    for_each_codec(check_frozen);
}

static void print_frozen(const struct codec *c, const struct which *which)
{
    size_t full = row_bytes_at(c, 0, false) / codec_row_unit(c);
    const size_t n_units[] = { full, 1, full < 5 ? 3 : 5 };
    uint32_t crcs[CODEC_N_MAX];

    for (unsigned i = 0; i < (codec_block_bytes(c) == 8192 ? 3 : 1); i++) {
        crcs_of(c, n_units[i], crcs);
        printf("    { %u, %u, %zu, %zu,\n      { ", which->kind, which->layout,
               codec_block_bytes(c), n_units[i]);
        for (unsigned x = 0; x < codec_n(c); x++)
            printf("0x%08x%s", crcs[x],
                   x + 1 == codec_n(c) ? " } },\n"
                   : x % 6 == 5        ? ",\n        "
                                       : ", ");
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_projections_are_those_on_the_disks),
    };

    if (argc == 2 && strcmp(argv[1], "--print-frozen") == 0) {
        for_each_code(print_frozen);
        return 0;
    }
    return cmocka_run_group_tests_name("codec.frozen", tests, NULL, NULL);
}
