/*
 * boot_id.h - tells whether the machine has been down in between.
 */
#ifndef ROZO_COMMON_SYSTEM_BOOT_ID_H
#define ROZO_COMMON_SYSTEM_BOOT_ID_H

#include <stdint.h>

/**
 * Returns a number that stays until the machine goes down, which is when unsynced bytes
 * are lost.
 */
uint64_t boot_number(void);

#endif
