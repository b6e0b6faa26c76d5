/*
 * isal.h - isa-l, and the duty of its callers. Private to codec/.
 *
 * Functions of isa-l leave the upper halves of vector registers in use. The next SSE
 * instruction, which compilers write everywhere, then waits for some 500 cycles: six
 * times as long as the crc of a row of 2 KB takes. A function that has called isa-l must
 * call isal_leave() before it returns.
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
