/*
 * keys.h - making key files; rpc_keys_load() (rpc_tcp.h) reads them.
 */
#ifndef ROZO_COMMON_RPC_KEYS_H
#define ROZO_COMMON_RPC_KEYS_H

#include "common/base/err.h"

/**
 * Makes a new random key file, mode 0600, on stable storage at return. Never replaces
 * one: -EEXIST when the file is there.
 */
int rpc_key_generate(const char *path, struct err *err);

#endif
