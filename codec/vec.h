/*
 * vec.h - vectors of 16, 32 and 64 bytes for kernel.c and for the code that codec/gen
 * writes. Private to codec/. The flags of the compilation say which of them exist.
 *
 * ldN, stN: any address. ldN_part, stN_part: only the first n_pixels of 16 bytes, the
 * rest is zero or left alone. xor3_N: XOR of three, one instruction where possible.
 * joinN: the N bytes that start with pixel `by` of low, and go on in high. keepN: v.
 */
#ifndef ROZO_CODEC_VEC_H
#define ROZO_CODEC_VEC_H

#include <stddef.h>
#include <stdint.h>
#ifdef __AVX2__
#    include <immintrin.h>
#endif

#define VEC_INLINE static inline __attribute__((always_inline, unused))

/* One copy for all callers with different constants. */
#ifdef __clang__
#    define VEC_APART __attribute__((noinline))
#else
#    define VEC_APART __attribute__((noinline, noclone))
#endif

/* Keeps v in its register: a second use does not load it again. */
#if defined(__AVX512VL__)
#    define VEC_KEEP(v) __asm__("" : "+v"(v))
#elif defined(__x86_64__)
#    define VEC_KEEP(v) __asm__("" : "+x"(v))
#else
#    define VEC_KEEP(v) (void)(v)
#endif

#define VEC_DEFINE(bytes)                                                        \
    typedef long long vec##bytes __attribute__((vector_size(bytes), may_alias)); \
    typedef long long mem##bytes                                                 \
        __attribute__((vector_size(bytes), aligned(1), may_alias));              \
                                                                                 \
    VEC_INLINE vec##bytes zero##bytes(void)                                      \
    {                                                                            \
        return (vec##bytes){ 0 };                                                \
    }                                                                            \
                                                                                 \
    VEC_INLINE vec##bytes keep##bytes(vec##bytes v)                              \
    {                                                                            \
        VEC_KEEP(v);                                                             \
        return v;                                                                \
    }                                                                            \
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

/* Returns x, unknown to the compiler. */
VEC_INLINE size_t vec_unknown(size_t x)
{
    __asm__("" : "+r"(x));
    return x;
}

/* Makes later code load stored values again: they are not kept in registers, which are
 * all in use. */
VEC_INLINE void vec_stay(void)
{
    __asm__ volatile("" : : : "memory");
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

#ifdef __AVX2__
#    define join32(low, high, by) \
        ((vec32)_mm256_permute2x128_si256((__m256i)(low), (__m256i)(high), 0x21))

VEC_INLINE vec32 ld32_part(const uint8_t *from, unsigned n_pixels)
{
    (void)n_pixels; /* 1 */
    return (vec32)_mm256_zextsi128_si256((__m128i)ld16(from));
}

VEC_INLINE void st32_part(uint8_t *to, vec32 v, unsigned n_pixels)
{
    (void)n_pixels;
    st16(to, (vec16)_mm256_castsi256_si128((__m256i)v));
}
#endif

#ifdef __AVX512VL__
#    define join64(low, high, by) \
        ((vec64)_mm512_alignr_epi64((__m512i)(high), (__m512i)(low), 2 * (by)))

VEC_INLINE vec64 ld64_part(const uint8_t *from, unsigned n_pixels)
{
    return (vec64)_mm512_maskz_loadu_epi64((__mmask8)((1u << 2 * n_pixels) - 1), from);
}

VEC_INLINE void st64_part(uint8_t *to, vec64 v, unsigned n_pixels)
{
    __m512i z = (__m512i)v;

    if (n_pixels >= 2)
        st32(to, (vec32)_mm512_castsi512_si256(z));
    if (n_pixels == 3)
        st16(to + 32, (vec16)_mm512_extracti64x2_epi64(z, 2));
    if (n_pixels == 1)
        st16(to, (vec16)_mm512_castsi512_si128(z));
}
#endif

#endif
