/*
 * tell.h - prints messages of the simulated network, for debugging.
 */
#ifndef ROZO_TESTS_SIM_CLUSTER_WORLD_TELL_H
#define ROZO_TESTS_SIM_CLUSTER_WORLD_TELL_H

#include <stddef.h>
#include <stdint.h>

/** Prints one line on stderr. */
void tell_request(const char *from, const char *to, uint16_t op, const uint8_t *msg,
                  size_t len, const uint8_t *payload, size_t payload_len);
void tell_answer(const char *from, const char *to, uint16_t op, uint16_t status,
                 const uint8_t *msg, size_t len);

#endif
