/*
 * config.h - YAML config files with a schema (libcyaml), refused with words that say where.
 *
 *     static const cyaml_schema_field_t fields[] = { ... CYAML_FIELD_END };
 *     static const cyaml_schema_value_t schema = {
 *         CYAML_VALUE_MAPPING(CYAML_FLAG_POINTER, struct my_config, fields),
 *     };
 *     struct my_config *config;
 *     rc = config_load("/etc/rozo/x.yaml", &schema, (void **)&config, &err);
 *
 * err then reads like "/etc/rozo/x.yaml:7: lisen: no such key here; known: data_dir, listen".
 * Stricter than libcyaml: "5x" is no number, booleans are true, false, yes or no; aliases are
 * refused; a file may have CONFIG_FILE_MAX bytes.
 */
#ifndef ROZO_COMMON_CONFIG_CONFIG_H
#define ROZO_COMMON_CONFIG_CONFIG_H

#include <cyaml/cyaml.h>
#include <stddef.h>

#include "common/base/err.h"
#include "common/base/log.h"

enum { CONFIG_FILE_MAX = 1 << 20 };

/**
 * Load a file. The schema must be a mapping with CYAML_FLAG_POINTER.
 * @param out the struct of the schema; config_free() it. Untouched on failure.
 * @return 0, -errno of reading it, or -EINVAL for what stands in it.
 */
int config_load(const char *path, const cyaml_schema_value_t *schema, void **out,
                struct err *err);
/** The same from memory; name stands in for the path in err. */
int config_parse(const char *name, const void *text, size_t len,
                 const cyaml_schema_value_t *schema, void **out, struct err *err);
/** NULL is fine. */
void config_free(const cyaml_schema_value_t *schema, void *config);

/* The section `log` that every daemon's config may have: CYAML_FIELD_MAPPING it with these. */
struct config_log {
    enum log_level *level; /* NULL: it does not stand there */
};
extern const cyaml_schema_field_t config_log_fields[];
/** Log from now on as the section says. */
void config_log_apply(const struct config_log *log);

#endif
