/*
 * defaults.h - what more than one room must know of options that nobody gave.
 */
#ifndef ROZO_COMMON_CONFIG_DEFAULTS_H
#define ROZO_COMMON_CONFIG_DEFAULTS_H

enum {
    /* Reads and writes that too few storages answer fail after so long: rozomount's io_timeout, and the deadlines of
     * the engine. Its help and its manual say 20. */
    DEFAULT_IO_TIMEOUT_MS = 20000,
};

#endif
