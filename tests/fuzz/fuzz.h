/*
 * fuzz.h - the function that every fuzz target defines.
 */
#ifndef ROZO_FUZZ_H
#define ROZO_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/** Feeds the bytes to the reader under test.
 * Returns 0; aborts the process on a wrong result. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
