/*
 * boot.h - has the machine been down since?
 */
#ifndef ROZO_COMMON_BASE_BOOT_H
#define ROZO_COMMON_BASE_BOOT_H

#include <stdint.h>

/** The same until the machine goes down, which is when unsynced bytes are lost. */
uint64_t boot_number(void);

#endif
