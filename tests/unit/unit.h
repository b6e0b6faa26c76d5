/*
 * unit.h - cmocka with what it wants included before it.
 */
#ifndef ROZO_UNIT_H
#define ROZO_UNIT_H

/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
/* clang-format on */

#endif
