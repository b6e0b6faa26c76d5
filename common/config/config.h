/*
 * config.h - YAML config files with a schema (libcyaml), refused with a text that says
 * where.
 *
 *    static const cyaml_schema_field_t fields[] = { ... CYAML_FIELD_END };
 *    static const cyaml_schema_value_t schema = {
 *        CYAML_VALUE_MAPPING(CYAML_FLAG_POINTER, struct my_config, fields),
 *    };
 *    struct my_config *config;
 *    rc = config_load("/etc/rozo/x.yaml", &schema, (void **)&config, &err);
 *
 * err then reads like "/etc/rozo/x.yaml:7: lisen: no such key here; known: data_dir,
 * listen". Stricter than libcyaml: "5x" is no number, booleans are true, false, yes or
 * no; aliases are refused; a file may have CONFIG_FILE_MAX bytes.
 */
#ifndef ROZO_COMMON_CONFIG_CONFIG_H
#define ROZO_COMMON_CONFIG_CONFIG_H

#include <cyaml/cyaml.h>
#include <stddef.h>

#include "common/base/err.h"
#include "common/base/log.h"

enum { CONFIG_FILE_MAX = 1 << 20 };

/**
 * Loads a file. The schema must be a mapping with CYAML_FLAG_POINTER.
 * @param out the struct of the schema; free it with config_free(). Untouched on failure.
 * @return 0, -errno of reading it, or -EINVAL for its content.
 */
int config_load(const char *path, const cyaml_schema_value_t *schema, void **out,
                struct err *err);
/** Loads a config from memory; name takes the place of the path in err. */
int config_parse(const char *name, const void *text, size_t len,
                 const cyaml_schema_value_t *schema, void **out, struct err *err);
/** Frees a config. NULL is fine. */
void config_free(const cyaml_schema_value_t *schema, void *config);

/* The section `log` of every daemon's config: use it in a CYAML_FIELD_MAPPING. */
struct config_log {
    enum log_level *level; /* NULL: not set */
};
extern const cyaml_schema_field_t config_log_fields[];
/** Sets the log as the section says. */
void config_log_apply(const struct config_log *log);

#endif
