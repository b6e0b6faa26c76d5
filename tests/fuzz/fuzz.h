/*
 * fuzz.h - what every fuzz target defines.
 */
#ifndef ROZO_FUZZ_H
#define ROZO_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/** Feed the bytes to the reader under test. Returns 0; what is wrong ends the process. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
