/*
 * target_options.c - address and keys of exportd.
 *
 * Keeps:  an option has priority over the environment, and that over the config file.
 */
#include "deploy/client/target_options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/config/config.h"
#include "deploy/cli/fsutil.h"

static const char CONFIG_PATH[] = "/etc/rozo/rozo.yaml";

/* Content of rozo.yaml. Owned strings, NULL where the key is absent. */
struct target_file {
    char *exportd;
    char *key;
    char *client_key;
};

static const cyaml_schema_field_t target_file_fields[] = {
    CYAML_FIELD_STRING_PTR("exportd", CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL,
                           struct target_file, exportd, 1, 511),
    CYAML_FIELD_STRING_PTR("key", CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL,
                           struct target_file, key, 1, PATH_MAX - 1),
    CYAML_FIELD_STRING_PTR("client_key", CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL,
                           struct target_file, client_key, 1, PATH_MAX - 1),
    CYAML_FIELD_END,
};
static const cyaml_schema_value_t target_file_schema = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_POINTER, struct target_file, target_file_fields),
};

static int take(char *out, size_t size, const char *text, struct argp_state *state,
                const char *what)
{
    if (strlen(text) >= size || text[0] == '\0') {
        argp_error(state, "%s is %s", what, text[0] == '\0' ? "empty" : "too long");
        return EINVAL;
    }
    memcpy(out, text, strlen(text) + 1);
    return 0;
}

static error_t parse(int key, char *arg, struct argp_state *state, bool client)
{
    struct target_options *conn = state->input;

    switch (key) {
    case 'e':
        return take(conn->exportd, sizeof(conn->exportd), arg, state, "--exportd");
    case 'k':
        return take(client ? conn->client_key : conn->key, PATH_MAX, arg, state, "--key");
    case 'c':
        return take(conn->config, PATH_MAX, arg, state, "--config");
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_node(int key, char *arg, struct argp_state *state)
{
    return parse(key, arg, state, false);
}

static error_t parse_client(int key, char *arg, struct argp_state *state)
{
    return parse(key, arg, state, true);
}

static const struct argp_option node_options[] = {
    { NULL, 0, NULL, 0, "How to reach the cluster:", 10 },
    { "exportd", 'e', "HOST:PORT,...", 0,
      "where exportd listens, or each member of a quorum; else $ROZO_EXPORTD", 10 },
    { "key", 'k', "FILE", 0, "the node key; else $ROZO_KEY", 10 },
    { "config", 'c', "FILE", 0,
      "has 'exportd:', 'key:' and 'client_key:'; else $ROZO_CONFIG, else "
      "/etc/rozo/rozo.yaml",
      10 },
    { 0 },
};
static const struct argp_option client_options[] = {
    { NULL, 0, NULL, 0, "How to reach the cluster:", 10 },
    { "exportd", 'e', "HOST:PORT,...", 0,
      "where exportd listens, or each member of a quorum; else $ROZO_EXPORTD", 10 },
    { "key", 'k', "FILE", 0, "the client key; else $ROZO_CLIENT_KEY", 10 },
    { "config", 'c', "FILE", 0,
      "has 'exportd:', 'key:' and 'client_key:'; else $ROZO_CONFIG, else "
      "/etc/rozo/rozo.yaml",
      10 },
    { 0 },
};
const struct argp target_argp = { .options = node_options, .parser = parse_node };
const struct argp_child target_children[] = { { &target_argp, 0, NULL, 0 }, { 0 } };
const struct argp target_mount_argp = { .options = client_options,
                                        .parser = parse_client };

static void fill(char *out, size_t size, const char *text)
{
    if (out[0] == '\0' && text != NULL)
        snprintf(out, size, "%s", text);
}

/* Fills in from the config file. One that was not named explicitly may be absent. */
static int fill_from_file(struct target_options *conn, struct err *err)
{
    struct target_file *file;
    bool named = conn->config[0] != '\0' || getenv("ROZO_CONFIG") != NULL;
    int rc;

    fill(conn->config, sizeof(conn->config), getenv("ROZO_CONFIG"));
    fill(conn->config, sizeof(conn->config), CONFIG_PATH);
    if (!named && access(conn->config, F_OK) != 0)
        return 0;
    rc = config_load(conn->config, &target_file_schema, (void **)&file, err);
    if (rc != 0)
        return rc;
    fill(conn->exportd, sizeof(conn->exportd), file->exportd);
    fill(conn->key, sizeof(conn->key), file->key);
    fill(conn->client_key, sizeof(conn->client_key), file->client_key);
    config_free(&target_file_schema, file);
    return 0;
}

int target_resolve(struct target_options *conn, bool client, struct err *err)
{
    const char *key = client ? conn->client_key : conn->key;
    int rc = 0;

    fill(conn->exportd, sizeof(conn->exportd), getenv("ROZO_EXPORTD"));
    fill(conn->key, sizeof(conn->key), getenv("ROZO_KEY"));
    fill(conn->client_key, sizeof(conn->client_key), getenv("ROZO_CLIENT_KEY"));
    if (conn->exportd[0] == '\0' || key[0] == '\0')
        rc = fill_from_file(conn, err);
    if (rc != 0)
        return rc;
    if (conn->exportd[0] == '\0')
        return err_set(err, -EDESTADDRREQ,
                       "which cluster? Give --exportd HOST:PORT, or set ROZO_EXPORTD, or "
                       "write 'exportd: HOST:PORT' into %s",
                       conn->config);
    if (key[0] == '\0')
        return err_set(
            err, -ENOKEY,
            "the %s key is missing. Give --key FILE, or set %s, or write '%s: FILE' "
            "into %s",
            client ? "client" : "node", client ? "ROZO_CLIENT_KEY" : "ROZO_KEY",
            client ? "client_key" : "key", conn->config);
    return 0;
}
