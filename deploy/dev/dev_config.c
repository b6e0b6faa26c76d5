/*
 * dev_config.c - keys and config files of a private cluster.
 *
 * The YAML follows docs/OPERATIONS.md, so that a dev cluster's files serve as examples.
 */
#include "deploy/dev/dev_config.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/rpc/keys.h"
#include "deploy/cli/fsutil.h"

enum { CONFIG_TEXT_MAX = 3 * 4 * PATH_MAX };

int yaml_quote(const char *text, char *out, size_t size)
{
    size_t len = 0;

    if (size < 3)
        return -ENAMETOOLONG;
    out[len++] = '"';
    for (const unsigned char *p = (const unsigned char *)text; *p != '\0'; p++) {
        if (len + 6 > size) /* \xNN, quote, end */
            return -ENAMETOOLONG;
        if (*p == '"' || *p == '\\')
            out[len++] = '\\';
        if (*p < ' ' || *p == 0x7f)
            len += (size_t)snprintf(out + len, size - len, "\\x%02x", *p);
        else
            out[len++] = (char)*p;
    }
    out[len++] = '"';
    out[len] = '\0';
    return 0;
}

static int key_make(const struct dev_plan *plan, const char *name, struct err *err)
{
    char path[PATH_MAX];
    int rc = path_join(path, err, "%s/etc/%s", plan->dir, name);

    if (rc != 0 || access(path, F_OK) == 0)
        return rc;
    return rpc_key_generate(path, err);
}

/* Writes the path of `below` in the cluster's folder, quoted. */
static int quote_below(const struct dev_plan *plan, const char *below,
                       char out[4 * PATH_MAX], struct err *err)
{
    char path[PATH_MAX];
    int rc = path_join(path, err, "%s/%s", plan->dir, below);

    if (rc == 0)
        rc = yaml_quote(path, out, 4 * PATH_MAX);
    return rc;
}

/* Writes the section `quorum`. Returns its length. */
static size_t quorum_print(const struct dev_plan *plan, unsigned member, char *out,
                           size_t size)
{
    size_t len = (size_t)snprintf(out, size,
                                  "quorum:\n  id: %u\n  listen:\n"
                                  "    - \"127.0.0.1:%u\"\n  members:\n",
                                  member + 1, plan->meta_ports[member][1]);

    for (unsigned i = 0; i < plan->n_metas; i++)
        len += (size_t)snprintf(out + len, size - len,
                                "    - {id: %u, address: \"127.0.0.1:%u\"%s}\n", i + 1,
                                plan->meta_ports[i][1],
                                dev_plan_is_witness(plan, i) ? ", witness: true" : "");
    if (dev_plan_is_witness(plan, member))
        len += (size_t)snprintf(out + len, size - len, "  witness: true\n");
    return len;
}

static int daemon_write(const struct dev_plan *plan, unsigned member, struct err *err)
{
    char name[DEV_NAME_MAX], path[PATH_MAX], below[64], text[CONFIG_TEXT_MAX + 4096];
    bool is_exportd = dev_plan_is_exportd(plan, member);
    char node_key[4 * PATH_MAX], client_key[4 * PATH_MAX], data[4 * PATH_MAX];
    unsigned n_ports;
    const uint16_t *ports = dev_plan_ports(plan, member, &n_ports);
    size_t len;
    int rc;

    dev_plan_name(plan, member, name);
    snprintf(below, sizeof(below), "data/%s", name);
    rc = quote_below(plan, below, data, err);
    if (rc == 0)
        rc = quote_below(plan, "etc/node.key", node_key, err);
    if (rc == 0)
        rc = quote_below(plan, "etc/client.key", client_key, err);
    if (rc == 0)
        rc = path_join(path, err, "%s/etc/%s.yaml", plan->dir, name);
    if (rc != 0)
        return err_wrap(err, rc, "config of %s", name);
    len =
        (size_t)snprintf(text, sizeof(text),
                         "cluster:\n  node_key: %s\n  client_key: %s\n%s:\n  data: %s\n"
                         "  listen:\n",
                         node_key, client_key, is_exportd ? "exportd" : "storaged", data);
    for (unsigned i = 0; i < (is_exportd ? 1 : n_ports); i++)
        len += (size_t)snprintf(text + len, sizeof(text) - len,
                                "    - \"127.0.0.1:%u\"\n", ports[i]);
    /* One machine, but each storage is a failure domain of its own, as in a real
     * cluster. */
    if (!is_exportd)
        len += (size_t)snprintf(text + len, sizeof(text) - len, "  host: %s\n", name);
    else if (plan->n_metas > 1)
        len += quorum_print(plan, member, text + len, sizeof(text) - len);
    len += (size_t)snprintf(text + len, sizeof(text) - len, "log:\n  level: %s\n",
                            plan->log_level);
    return file_replace(path, 0644, text, len, err);
}

static int admin_write(const struct dev_plan *plan, struct err *err)
{
    char path[PATH_MAX], text[CONFIG_TEXT_MAX];
    char node_key[4 * PATH_MAX], client_key[4 * PATH_MAX], exportds[DEV_EXPORTDS_TEXT];
    int rc = quote_below(plan, "etc/node.key", node_key, err);
    int len;

    if (rc == 0)
        rc = quote_below(plan, "etc/client.key", client_key, err);
    if (rc == 0)
        rc = path_join(path, err, "%s/etc/rozo.yaml", plan->dir);
    if (rc != 0)
        return err_wrap(err, rc, "config of rozo");
    dev_plan_exportds(plan, exportds);
    len = snprintf(text, sizeof(text), "exportd: \"%s\"\nkey: %s\nclient_key: %s\n",
                   exportds, node_key, client_key);
    return file_replace(path, 0644, text, (size_t)len, err);
}

int dev_config_write(const struct dev_plan *plan, struct err *err)
{
    int rc = key_make(plan, "node.key", err);

    if (rc == 0)
        rc = key_make(plan, "client.key", err);
    for (unsigned i = 0; rc == 0 && i < dev_plan_daemons(plan); i++)
        rc = daemon_write(plan, i, err);
    return rc != 0 ? rc : admin_write(plan, err);
}
