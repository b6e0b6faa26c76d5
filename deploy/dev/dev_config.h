/*
 * dev_config.h - keys and config files of a private cluster.
 */
#ifndef ROZO_DEPLOY_DEV_DEV_CONFIG_H
#define ROZO_DEPLOY_DEV_DEV_CONFIG_H

#include <stddef.h>

#include "deploy/dev/dev_plan.h"

/**
 * Creates DIR/etc/node.key and client.key if missing, and writes DIR/etc/NAME.yaml of
 * every daemon of the plan, and etc/rozo.yaml for `rozo` itself.
 */
int dev_config_write(const struct dev_plan *plan, struct err *err);
/**
 * Writes text as a double-quoted YAML scalar. Returns 0, or -ENAMETOOLONG if it does not
 * fit.
 */
int yaml_quote(const char *text, char *out, size_t size);

#endif
