/*
 * isa.c - the instruction sets, and the choice of one for the codecs.
 *
 * In:     codec.c, tests. Thread: any; found once.
 * Out:    CPUID and XGETBV by the compiler's own functions, ROZO_CODEC_ISA.
 * Yours:  the list of instruction sets. A table goes with each: that of kernel.c,
 *         compiled once for each, or kernel_ref.c.
 */
#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "codec/codec.h"
#include "codec/kernel.h"

extern const struct kernels kernels_ref, kernels_128;
#ifdef __x86_64__
extern const struct kernels kernels_avx2, kernels_avx512;
#endif

static const char *const names[CODEC_ISA_COUNT] = {
    [CODEC_ISA_REF] = "ref",
#ifdef __aarch64__
    [CODEC_ISA_128] = "neon",
#else
    [CODEC_ISA_128] = "sse2",
#endif
    [CODEC_ISA_AVX2] = "avx2",
    [CODEC_ISA_AVX512] = "avx512",
};

static pthread_once_t default_once = PTHREAD_ONCE_INIT;
static enum codec_isa default_isa;

const char *codec_isa_name(enum codec_isa isa)
{
    return (unsigned)isa < CODEC_ISA_COUNT ? names[isa] : NULL;
}

const struct kernels *kernels_of(enum codec_isa isa)
{
    switch (isa) {
    case CODEC_ISA_REF:
        return &kernels_ref;
    case CODEC_ISA_128:
        return &kernels_128;
#ifdef __x86_64__
    case CODEC_ISA_AVX2:
        return __builtin_cpu_supports("avx2") ? &kernels_avx2 : NULL;
    case CODEC_ISA_AVX512:
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                       __builtin_cpu_supports("avx512vl") &&
                       __builtin_cpu_supports("avx512dq")
                   ? &kernels_avx512
                   : NULL;
#endif
    default:
        return NULL;
    }
}

bool codec_isa_usable(enum codec_isa isa)
{
    return kernels_of(isa) != NULL;
}

static void default_find(void)
{
    const char *wish = getenv("ROZO_CODEC_ISA");

    for (unsigned isa = 0; isa < CODEC_ISA_COUNT; isa++) {
        if (codec_isa_usable(isa))
            default_isa = isa;
    }
    for (unsigned isa = 0; wish != NULL && isa < CODEC_ISA_COUNT; isa++) {
        if (strcmp(names[isa], wish) == 0 && codec_isa_usable(isa))
            default_isa = isa;
    }
}

enum codec_isa codec_isa_default(void)
{
    pthread_once(&default_once, default_find);
    return default_isa;
}
