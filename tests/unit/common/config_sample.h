/*
 * config_sample.h - a schema like those of the daemons, for the config test and its fuzz
 * target.
 */
#ifndef ROZO_CONFIG_SAMPLE_H
#define ROZO_CONFIG_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/config/config.h"

struct sample_device {
    char *path;
    uint32_t weight;
};
struct sample {
    char *name;
    uint16_t port;
    int32_t offset;
    bool sync;
    int mode;
    double ratio;
    char **listen;
    unsigned listen_count;
    struct sample_device *devices;
    unsigned devices_count;
    struct config_log log;
};

static const cyaml_strval_t sample_modes[] = { { "fast", 1 }, { "slow", 2 } };
static const cyaml_schema_field_t sample_device_fields[] = {
    CYAML_FIELD_STRING_PTR("path", CYAML_FLAG_POINTER, struct sample_device, path, 1, 64),
    CYAML_FIELD_UINT("weight", CYAML_FLAG_OPTIONAL, struct sample_device, weight),
    CYAML_FIELD_END,
};
static const cyaml_schema_value_t sample_device_schema = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_DEFAULT, struct sample_device, sample_device_fields),
};
static const cyaml_schema_value_t sample_listen_schema = {
    CYAML_VALUE_STRING(CYAML_FLAG_POINTER, char, 1, 64),
};
static const cyaml_schema_field_t sample_fields[] = {
    CYAML_FIELD_STRING_PTR("name", CYAML_FLAG_POINTER, struct sample, name, 1, 16),
    CYAML_FIELD_UINT("port", CYAML_FLAG_DEFAULT, struct sample, port),
    CYAML_FIELD_INT("offset", CYAML_FLAG_OPTIONAL, struct sample, offset),
    CYAML_FIELD_BOOL("sync", CYAML_FLAG_OPTIONAL, struct sample, sync),
    CYAML_FIELD_ENUM("mode", CYAML_FLAG_OPTIONAL | CYAML_FLAG_STRICT, struct sample, mode,
                     sample_modes, 2),
    CYAML_FIELD_FLOAT("ratio", CYAML_FLAG_OPTIONAL, struct sample, ratio),
    CYAML_FIELD_SEQUENCE("listen", CYAML_FLAG_POINTER, struct sample, listen,
                         &sample_listen_schema, 1, 4),
    CYAML_FIELD_SEQUENCE("devices", CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL,
                         struct sample, devices, &sample_device_schema, 0, 4),
    CYAML_FIELD_MAPPING("log", CYAML_FLAG_OPTIONAL, struct sample, log,
                        config_log_fields),
    CYAML_FIELD_END,
};
static const cyaml_schema_value_t sample_schema = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_POINTER, struct sample, sample_fields),
};

#endif
