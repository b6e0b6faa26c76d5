/*
 * config.c - loads a config file by its schema; says where it is wrong.
 *
 * In:     files written by people: anything may be in them (I8).
 * Out:    the struct that the schema describes, or one sentence in struct err.
 * How:    libcyaml loads; our own walk over the tree of libyaml checks values that
 *         libcyaml lets pass ("5x" for 5, any word for true) and knows lines and keys
 *         where libcyaml is vague.
 */
#include "common/config/config.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <yaml.h>

#include "common/base/err.h"

/* ---- the walk ---- */

struct walk {
    const char *name; /* name of the file */
    yaml_document_t doc;
    struct err *err;
};

/* Current place: the node, and the key it belongs to. */
struct config_place {
    const yaml_node_t *node;
    const char *key; /* "" at the top */
};

static int refuse(struct walk *w, const yaml_node_t *node, const char *key,
                  const char *fmt, ...) __attribute__((format(printf, 4, 5)));

static int refuse(struct walk *w, const yaml_node_t *node, const char *key,
                  const char *fmt, ...)
{
    char text[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return err_set(w->err, -EINVAL, "%s:%zu: %.100s%s%s", w->name,
                   node->start_mark.line + 1, key, key[0] == '\0' ? "" : ": ", text);
}

static const char *scalar_text(const yaml_node_t *node)
{
    return node->type == YAML_SCALAR_NODE ? (const char *)node->data.scalar.value : "";
}

static const char *node_kind(const yaml_node_t *node)
{
    switch (node->type) {
    case YAML_SCALAR_NODE:
        return "a single value";
    case YAML_SEQUENCE_NODE:
        return "a list";
    case YAML_MAPPING_NODE:
        return "keys with values";
    default:
        return "nothing";
    }
}

static bool is_number(const char *text, bool is_signed)
{
    char *end;

    if (text[0] == '\0' || (!is_signed && text[0] == '-'))
        return false;
    errno = 0;
    if (is_signed)
        (void)strtoll(text, &end, 0);
    else
        (void)strtoull(text, &end, 0);
    return errno == 0 && *end == '\0' && text[0] != ' ' && text[0] != '+';
}

static bool is_float(const char *text)
{
    char *end;

    (void)strtod(text, &end);
    return end != text && *end == '\0';
}

static bool is_bool(const char *text)
{
    return strcmp(text, "true") == 0 || strcmp(text, "false") == 0 ||
           strcmp(text, "yes") == 0 || strcmp(text, "no") == 0;
}

/* Lists the allowed values "a, b, c", for people who mistyped one of them. */
static void list_words(char *out, size_t size, const cyaml_strval_t *words, uint32_t n)
{
    size_t len = 0;

    out[0] = '\0';
    for (uint32_t i = 0; i < n && len < size; i++)
        len += (size_t)snprintf(out + len, size - len, "%s%s", i == 0 ? "" : ", ",
                                words[i].str);
}

static bool is_word_of(const char *text, const cyaml_strval_t *words, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (strcmp(text, words[i].str) == 0)
            return true;
    }
    return false;
}

static int check_scalar(struct walk *w, const cyaml_schema_value_t *schema,
                        struct config_place at)
{
    const char *text = scalar_text(at.node);
    const char *wanted = NULL;
    char words[256];

    switch (schema->type) {
    case CYAML_INT:
        wanted = is_number(text, true) ? NULL : "a whole number";
        break;
    case CYAML_UINT:
        wanted = is_number(text, false) ? NULL : "a whole number, 0 or more";
        break;
    case CYAML_FLOAT:
        wanted = is_float(text) ? NULL : "a number";
        break;
    case CYAML_BOOL:
        wanted = is_bool(text) ? NULL : "true or false";
        break;
    case CYAML_ENUM:
        if (is_word_of(text, schema->enumeration.strings, schema->enumeration.count))
            break;
        list_words(words, sizeof(words), schema->enumeration.strings,
                   schema->enumeration.count);
        return refuse(w, at.node, at.key, "expected one of %s, found \"%.60s\"", words,
                      text);
    case CYAML_STRING:
        if (strlen(text) < schema->string.min || strlen(text) > schema->string.max)
            return refuse(w, at.node, at.key, "expected %u to %u characters, found %zu",
                          (unsigned)schema->string.min, (unsigned)schema->string.max,
                          strlen(text));
        break;
    default:
        /* CYAML_FLAGS, CYAML_BITFIELD are not single values; libcyaml checks them */
        break;
    }
    if (wanted != NULL)
        return refuse(w, at.node, at.key, "expected %s, found \"%.60s\"", wanted, text);
    return 0;
}

static int check_value(struct walk *w, const cyaml_schema_value_t *schema,
                       struct config_place at);

static const cyaml_schema_field_t *field_find(const cyaml_schema_field_t *fields,
                                              const char *key)
{
    for (; fields->key != NULL; fields++) {
        if (strcmp(fields->key, key) == 0)
            return fields;
    }
    return NULL;
}

static int refuse_unknown_key(struct walk *w, const yaml_node_t *node,
                              const cyaml_schema_field_t *fields)
{
    char known[384];
    size_t len = 0;

    known[0] = '\0';
    for (; fields->key != NULL && len < sizeof(known); fields++)
        len += (size_t)snprintf(known + len, sizeof(known) - len, "%s%s",
                                len == 0 ? "" : ", ", fields->key);
    return refuse(w, node, scalar_text(node), "no such key here; known: %s", known);
}

/* Returns true if the key is in one of the pairs before `end`. */
static bool has_key(struct walk *w, const yaml_node_t *node, const char *key,
                    const yaml_node_pair_t *end)
{
    for (yaml_node_pair_t *p = node->data.mapping.pairs.start; p < end; p++) {
        if (strcmp(scalar_text(yaml_document_get_node(&w->doc, p->key)), key) == 0)
            return true;
    }
    return false;
}

static int check_mapping(struct walk *w, const cyaml_schema_field_t *fields,
                         struct config_place at)
{
    const yaml_node_t *node = at.node;

    for (yaml_node_pair_t *p = node->data.mapping.pairs.start;
         p < node->data.mapping.pairs.top; p++) {
        const yaml_node_t *key = yaml_document_get_node(&w->doc, p->key);
        const cyaml_schema_field_t *field = field_find(fields, scalar_text(key));
        struct config_place below = { yaml_document_get_node(&w->doc, p->value),
                                      scalar_text(key) };
        int rc;

        if (field == NULL)
            return refuse_unknown_key(w, key, fields);
        if (has_key(w, node, below.key, p))
            return refuse(w, key, below.key, "this key is here twice");
        rc = check_value(w, &field->value, below);
        if (rc != 0)
            return rc;
    }
    for (; fields->key != NULL; fields++) {
        if ((fields->value.flags & CYAML_FLAG_OPTIONAL) == 0 &&
            !has_key(w, node, fields->key, node->data.mapping.pairs.top))
            return refuse(w, node, at.key, "the key \"%s\" is missing", fields->key);
    }
    return 0;
}

static int check_sequence(struct walk *w, const cyaml_schema_value_t *schema,
                          struct config_place at)
{
    const yaml_node_t *node = at.node;
    size_t n = (size_t)(node->data.sequence.items.top - node->data.sequence.items.start);

    if (n < schema->sequence.min || n > schema->sequence.max)
        return refuse(w, node, at.key, "expected %u to %u entries, found %zu",
                      (unsigned)schema->sequence.min, (unsigned)schema->sequence.max, n);
    for (size_t i = 0; i < n; i++) {
        struct config_place below = {
            yaml_document_get_node(&w->doc, node->data.sequence.items.start[i]), at.key
        };
        int rc = check_value(w, schema->sequence.entry, below);

        if (rc != 0)
            return rc;
    }
    return 0;
}

static int check_value(struct walk *w, const cyaml_schema_value_t *schema,
                       struct config_place at)
{
    switch (schema->type) {
    case CYAML_MAPPING:
        if (at.node->type != YAML_MAPPING_NODE)
            return refuse(w, at.node, at.key, "expected keys with values, found %s",
                          node_kind(at.node));
        return check_mapping(w, schema->mapping.fields, at);
    case CYAML_SEQUENCE:
    case CYAML_SEQUENCE_FIXED:
        if (at.node->type != YAML_SEQUENCE_NODE)
            return refuse(w, at.node, at.key, "expected a list, found %s",
                          node_kind(at.node));
        return check_sequence(w, schema, at);
    case CYAML_FLAGS:
    case CYAML_BITFIELD:
    case CYAML_IGNORE:
        return 0;
    default:
        if (at.node->type != YAML_SCALAR_NODE)
            return refuse(w, at.node, at.key, "expected a single value, found %s",
                          node_kind(at.node));
        return check_scalar(w, schema, at);
    }
}

static int check_text(const char *name, const void *text, size_t len,
                      const cyaml_schema_value_t *schema, struct err *err)
{
    struct walk w = { .name = name, .err = err };
    yaml_parser_t parser;
    const yaml_node_t *root;
    int rc;

    if (!yaml_parser_initialize(&parser))
        return err_set(err, -ENOMEM, "%s: out of memory", name);
    yaml_parser_set_input_string(&parser, text, len);
    if (!yaml_parser_load(&parser, &w.doc)) {
        rc = err_set(err, -EINVAL, "%s:%zu: not YAML: %s", name,
                     parser.problem_mark.line + 1,
                     parser.problem == NULL ? "unreadable" : parser.problem);
        yaml_parser_delete(&parser);
        return rc;
    }
    root = yaml_document_get_root_node(&w.doc);
    if (root == NULL)
        rc = err_set(err, -EINVAL, "%s:1: the file is empty", name);
    else
        rc = check_value(&w, schema, (struct config_place){ root, "" });
    yaml_document_delete(&w.doc);
    yaml_parser_delete(&parser);
    return rc;
}

/* ---- libcyaml ---- */

/* First complaint of libcyaml. */
struct complaint {
    char text[256];
};

static void on_cyaml_log(cyaml_log_t level, void *ctx, const char *fmt, va_list ap)
{
    struct complaint *c = ctx;

    if (level < CYAML_LOG_ERROR || c->text[0] != '\0')
        return;
    vsnprintf(c->text, sizeof(c->text), fmt, ap);
    c->text[strcspn(c->text, "\n")] = '\0';
}

static const cyaml_config_t free_config = { .mem_fn = cyaml_mem };

int config_parse(const char *name, const void *text, size_t len,
                 const cyaml_schema_value_t *schema, void **out, struct err *err)
{
    struct complaint complaint = { 0 };
    const cyaml_config_t config = {
        .log_fn = on_cyaml_log,
        .log_ctx = &complaint,
        .mem_fn = cyaml_mem,
        .log_level = CYAML_LOG_ERROR,
        .flags = CYAML_CFG_NO_ALIAS, /* aliases could blow up a small file */
    };
    cyaml_data_t *data = NULL;
    cyaml_err_t load;
    int rc = 0;

    assert(schema->type == CYAML_MAPPING && (schema->flags & CYAML_FLAG_POINTER) != 0);
    if (len == 0)
        return err_set(err, -EINVAL, "%s:1: the file is empty", name);
    load = cyaml_load_data(text, len, &config, schema, &data, NULL);
    if (load != CYAML_ERR_ALIAS)
        rc = check_text(name, text, len, schema, err);
    if (rc == 0 && load != CYAML_OK)
        rc = err_set(err, -EINVAL, "%s: %s (%s)", name,
                     complaint.text[0] == '\0' ? "cannot be loaded" : complaint.text,
                     cyaml_strerror(load));
    else if (rc == 0 && data == NULL)
        rc = err_set(err, -EINVAL, "%s:1: the file is empty", name);
    if (rc == 0)
        *out = data;
    else if (load == CYAML_OK)
        config_free(schema, data);
    return rc;
}

void config_free(const cyaml_schema_value_t *schema, void *config)
{
    if (config != NULL)
        cyaml_free(&free_config, schema, config, 0);
}

/* ---- files ---- */

static int file_read(int fd, char *text, size_t *len)
{
    *len = 0;
    for (;;) {
        ssize_t n = read(fd, text + *len, CONFIG_FILE_MAX + 1 - *len);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        *len += (size_t)n;
        if (*len > CONFIG_FILE_MAX)
            return -EFBIG;
        if (n == 0)
            return 0;
    }
}

int config_load(const char *path, const cyaml_schema_value_t *schema, void **out,
                struct err *err)
{
    char *text = malloc(CONFIG_FILE_MAX + 1);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not hang us */
    size_t len = 0;
    int rc = -ENOMEM;

    if (fd < 0)
        rc = -errno;
    else if (text != NULL)
        rc = file_read(fd, text, &len);
    if (fd >= 0)
        close(fd);
    if (rc != 0)
        err_set(err, rc, "config file %s: %s", path, error_text(rc));
    else
        rc = config_parse(path, text, len, schema, out, err);
    free(text);
    return rc;
}

/* ---- the section `log` ---- */

static const cyaml_strval_t log_levels[] = {
    { "error", LOG_LEVEL_ERROR },
    { "warn", LOG_LEVEL_WARN },
    { "info", LOG_LEVEL_INFO },
    { "debug", LOG_LEVEL_DEBUG },
};
const cyaml_schema_field_t config_log_fields[] = {
    CYAML_FIELD_ENUM_PTR(
        "level", CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL | CYAML_FLAG_STRICT,
        struct config_log, level, log_levels, sizeof(log_levels) / sizeof(log_levels[0])),
    CYAML_FIELD_END,
};

void config_log_apply(const struct config_log *log)
{
    if (log->level != NULL)
        log_set_level(*log->level);
}
