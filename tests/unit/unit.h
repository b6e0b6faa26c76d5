/* unit.h - cmocka, with the headers that it needs included before it. */
#ifndef ROZO_UNIT_H
#define ROZO_UNIT_H

/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
/* clang-format on */

/* Long loops over seeds, and over points to cut at, take only every UNIT_STEP-th one in
 * builds that check each memory access: all seeds take the same few paths there, and the
 * release build does the whole loop. The step shares no factor with 2 and 3, so that seed
 * % 3 still visits every layout. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { UNIT_STEP = 13 };
#else
enum { UNIT_STEP = 1 };
#endif

/* Returns how many seeds a random test tries: half of n, unless ROZO_UNIT_LONG is set
 * (tests/soak/run.sh). Loops over each point to cut at are never shortened in this
 * build. */
static inline unsigned unit_seeds(unsigned n)
{
    return UNIT_STEP > 1 || getenv("ROZO_UNIT_LONG") != NULL ? n : (n + 1) / 2;
}

#endif
