/*
 * defaults.h - default values of options that more than one room must know.
 */
#ifndef ROZO_COMMON_CONFIG_DEFAULTS_H
#define ROZO_COMMON_CONFIG_DEFAULTS_H

enum {
    /* Time after which reads and writes that too few storages answer fail: rozomount's
     * io_timeout, and the deadlines of the engine. Its help and its manual say 20. */
    DEFAULT_IO_TIMEOUT_MS = 20000,
};

#endif
