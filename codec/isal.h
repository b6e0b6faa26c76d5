/*
 * isal.h - isa-l, and what its callers owe everybody else. Private to codec/.
 *
 * Its functions leave the upper halves of vector registers in use. The next SSE instruction, and
 * compilers write those everywhere, then waits for some 500 cycles: six times what the crc of a
 * row of 2 KB takes. Whoever has called isa-l says so by isal_leave() before returning.
 */
#ifndef ROZO_CODEC_ISAL_H
#define ROZO_CODEC_ISAL_H

#include <isa-l.h>

#ifdef __x86_64__
__attribute__((target("avx"))) static inline void isal_upper_halves_give_back(void)
{
    __builtin_ia32_vzeroupper();
}
#endif

static inline void isal_leave(void)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx"))
        isal_upper_halves_give_back();
#endif
}

#endif
