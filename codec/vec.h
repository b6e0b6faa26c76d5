/*
 * vec.h - vectors of 16, 32 and 64 bytes for the straight lines that codec/gen writes. Private to
 * codec/. Which of them exist follows from the flags of the compilation.
 *
 * ldN, stN: any address. xor3_N: of three, one instruction where there is one.
 */
#ifndef ROZO_CODEC_VEC_H
#define ROZO_CODEC_VEC_H

#include <stddef.h>
#include <stdint.h>
#ifdef __AVX2__
#    include <immintrin.h>
#endif

#define VEC_INLINE static inline __attribute__((always_inline, unused))

#define VEC_DEFINE(bytes)                                                        \
    typedef long long vec##bytes __attribute__((vector_size(bytes), may_alias)); \
    typedef long long mem##bytes                                                 \
        __attribute__((vector_size(bytes), aligned(1), may_alias));              \
                                                                                 \
    VEC_INLINE vec##bytes ld##bytes(const uint8_t *from)                         \
    {                                                                            \
        return *(const mem##bytes *)from;                                        \
    }                                                                            \
                                                                                 \
    VEC_INLINE void st##bytes(uint8_t *to, vec##bytes v)                         \
    {                                                                            \
        *(mem##bytes *)to = v;                                                   \
    }

#define VEC_XOR3(bytes, expression)                                              \
    VEC_INLINE vec##bytes xor3_##bytes(vec##bytes a, vec##bytes b, vec##bytes c) \
    {                                                                            \
        return expression;                                                       \
    }

VEC_DEFINE(16)
#ifdef __AVX2__
VEC_DEFINE(32)
#endif
#ifdef __AVX512VL__
VEC_DEFINE(64)
enum { VEC_XOR_OF_THREE = 0x96 }; /* truth table of a ^ b ^ c for vpternlog */
VEC_XOR3(16, (vec16)_mm_ternarylogic_epi64((__m128i)a, (__m128i)b, (__m128i)c,
                                           VEC_XOR_OF_THREE))
VEC_XOR3(32, (vec32)_mm256_ternarylogic_epi64((__m256i)a, (__m256i)b, (__m256i)c,
                                              VEC_XOR_OF_THREE))
VEC_XOR3(64, (vec64)_mm512_ternarylogic_epi64((__m512i)a, (__m512i)b, (__m512i)c,
                                              VEC_XOR_OF_THREE))
#else
VEC_XOR3(16, a ^ b ^ c)
#    ifdef __AVX2__
VEC_XOR3(32, a ^ b ^ c)
#    endif
#endif

#endif
