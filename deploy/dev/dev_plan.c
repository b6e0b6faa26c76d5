/*
 * dev_plan.c - the members and options of a private cluster, as kept in
 * DIR/etc/cluster.json.
 *
 * Keeps:  a plan in memory is always within its bounds, whatever the file contains (I8).
 */
#include "deploy/dev/dev_plan.h"

#include <assert.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codec/codec.h"
#include "common/config/defaults.h"
#include "deploy/cli/fsutil.h"

enum {
    PLAN_FILE_MAX = 1 << 20,
    IO_TIMEOUT_MAX_S = 86400,
};

static json_t *quorum_json(const struct dev_plan *plan)
{
    json_t *ports = json_array();

    for (unsigned i = 0; i < plan->n_metas; i++)
        json_array_append_new(ports, json_pack("[i, i]", (int)plan->meta_ports[i][0],
                                               (int)plan->meta_ports[i][1]));
    return json_pack("{s:s, s:b, s:o}", "birth", plan->birth, "witness",
                     (int)plan->has_witness, "ports", ports);
}

char *dev_plan_print(const struct dev_plan *plan)
{
    json_t *storages = json_array(), *mounts = json_array(), *root;
    char *text;

    for (unsigned i = 0; i < plan->n_storages; i++) {
        json_t *ports = json_array();

        for (unsigned l = 0; l < plan->n_links; l++)
            json_array_append_new(ports, json_integer(plan->ports[i][l]));
        json_array_append_new(storages, ports);
    }
    for (unsigned i = 0; i < plan->n_mounts; i++) {
        const struct dev_mount *m = &plan->mounts[i];

        json_array_append_new(mounts,
                              json_pack("{s:i, s:s, s:s}", "number", (int)m->number,
                                        "path", m->path, "options", m->options));
    }
    root = json_pack("{s:i, s:b, s:i, s:s, s:i, s:s, s:i, s:i, s:o, s:o}", "format",
                     DEV_PLAN_FORMAT, "created", (int)plan->created, "layout",
                     (int)plan->layout, "codec", plan->codec, "inline_max",
                     (int)plan->inline_max, "log_level", plan->log_level, "links",
                     (int)plan->n_links, "exportd_port", (int)plan->meta_ports[0][0],
                     "storage_ports", storages, "mounts", mounts);
    if (root != NULL && plan->fold)
        json_object_set_new(root, "names", json_string("fold"));
    if (root != NULL && plan->n_metas > 1)
        json_object_set_new(root, "quorum", quorum_json(plan));
    text = root == NULL ? NULL : json_dumps(root, JSON_INDENT(2));
    json_decref(root);
    return text;
}

/* Copies a JSON string into a buffer. Returns false if it is too long or has a zero
 * byte. */
static bool text_take(const char *from, size_t len, char *out, size_t size)
{
    if (len >= size || strlen(from) != len)
        return false;
    memcpy(out, from, len + 1);
    return true;
}

static bool port_take(const json_t *json, uint16_t *out)
{
    json_int_t value = json_integer_value(json);

    *out = (uint16_t)value;
    return json_is_integer(json) && value > 0 && value <= UINT16_MAX;
}

/* quorum NULL: there is one exportd, whose port is known. */
static int parse_quorum(json_t *quorum, struct dev_plan *plan)
{
    const char *birth;
    size_t len, n;
    int witness = 0; /* absent in older files */
    json_t *ports;

    plan->n_metas = 1;
    if (quorum == NULL)
        return 0;
    if (json_unpack(quorum, "{s:s%, s?b, s:o}", "birth", &birth, &len, "witness",
                    &witness, "ports", &ports) != 0 ||
        len != DEV_BIRTH_DIGITS ||
        !text_take(birth, len, plan->birth, sizeof(plan->birth)) ||
        strspn(birth, "0123456789abcdef") != len)
        return -EINVAL;
    n = json_array_size(ports);
    if (n < 2 || n > DEV_METAS_MAX)
        return -EINVAL;
    for (size_t i = 0; i < n; i++) {
        const json_t *both = json_array_get(ports, i);

        if (json_array_size(both) != 2 ||
            !port_take(json_array_get(both, 0), &plan->meta_ports[i][0]) ||
            !port_take(json_array_get(both, 1), &plan->meta_ports[i][1]))
            return -EINVAL;
    }
    plan->n_metas = (unsigned)n;
    plan->has_witness = witness != 0;
    return 0;
}

static int parse_storages(json_t *storages, struct dev_plan *plan)
{
    size_t n = json_array_size(storages);

    if (n < 1 || n > DEV_STORAGES_MAX)
        return -EINVAL;
    for (size_t i = 0; i < n; i++) {
        const json_t *ports = json_array_get(storages, i);

        if (json_array_size(ports) != plan->n_links)
            return -EINVAL;
        for (unsigned l = 0; l < plan->n_links; l++) {
            if (!port_take(json_array_get(ports, l), &plan->ports[i][l]))
                return -EINVAL;
        }
    }
    plan->n_storages = (unsigned)n;
    return 0;
}

static int parse_mounts(json_t *mounts, struct dev_plan *plan)
{
    size_t n = json_array_size(mounts);

    if (!json_is_array(mounts) || n > DEV_MOUNTS_MAX)
        return -EINVAL;
    for (size_t i = 0; i < n; i++) {
        struct dev_mount *m = &plan->mounts[i];
        const char *path, *options;
        size_t path_len, options_len;
        json_int_t number;

        if (json_unpack(json_array_get(mounts, i), "{s:I, s:s%, s:s%}", "number", &number,
                        "path", &path, &path_len, "options", &options,
                        &options_len) != 0 ||
            number < 1 || number > 9999 || path[0] != '/' ||
            !text_take(path, path_len, m->path, sizeof(m->path)) ||
            !text_take(options, options_len, m->options, sizeof(m->options)))
            return -EINVAL;
        m->number = (unsigned)number;
    }
    plan->n_mounts = (unsigned)n;
    return 0;
}

int dev_plan_parse(const char *text, struct dev_plan *plan, struct err *err)
{
    json_error_t why;
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &why);
    json_t *port, *storages, *mounts, *quorum = NULL;
    json_int_t format = 0, layout, links, inline_max = 0; /* absent in older files */
    const char *codec, *level, *names = "posix";          /* absent in older files */
    size_t codec_len, level_len;
    int created, rc = -EINVAL;

    if (root == NULL)
        return err_set(err, rc, "line %d: %s", why.line, why.text);
    if (json_unpack_ex(root, &why, 0, "{s:I}", "format", &format) == 0 &&
        format != DEV_PLAN_FORMAT) {
        err_set(err, rc, "the file has format %lld, this build knows %d",
                (long long)format, DEV_PLAN_FORMAT);
        goto out;
    }
    if (json_unpack_ex(root, &why, 0,
                       "{s:I, s:b, s:I, s:s%, s?I, s?s, s:s%, s:I, s:o, s:o, s:o, s?o}",
                       "format", &format, "created", &created, "layout", &layout, "codec",
                       &codec, &codec_len, "inline_max", &inline_max, "names", &names,
                       "log_level", &level, &level_len, "links", &links, "exportd_port",
                       &port, "storage_ports", &storages, "mounts", &mounts, "quorum",
                       &quorum) != 0) {
        err_set(err, rc, "%s", why.text);
        goto out;
    }
    plan->created = created != 0;
    if (layout < 0 || codec_layout((unsigned)layout) == NULL || links < 1 ||
        links > DEV_LINKS_MAX || inline_max < 0 || inline_max > DEV_INLINE_MAX ||
        !text_take(codec, codec_len, plan->codec, sizeof(plan->codec)) ||
        codec_kind_by_name(plan->codec) == 0 ||
        (strcmp(names, "posix") != 0 && strcmp(names, "fold") != 0) ||
        !text_take(level, level_len, plan->log_level, sizeof(plan->log_level)) ||
        !port_take(port, &plan->meta_ports[0][0])) {
        err_set(
            err, rc,
            "layout, codec, inline_max, names, log_level, links or exportd_port is out "
            "of range");
        goto out;
    }
    plan->layout = (unsigned)layout;
    plan->n_links = (unsigned)links;
    plan->inline_max = (unsigned)inline_max;
    plan->fold = names[0] == 'f';
    if (parse_quorum(quorum, plan) != 0)
        err_set(err, rc,
                "quorum: expected a birth of %d digits and ports of 2 to %d exportds",
                DEV_BIRTH_DIGITS, DEV_METAS_MAX);
    else if (parse_storages(storages, plan) != 0)
        err_set(err, rc, "storage_ports: expected 1 to %d lists of %u ports",
                DEV_STORAGES_MAX, plan->n_links);
    else if (parse_mounts(mounts, plan) != 0)
        err_set(err, rc, "mounts: expected at most %d of number, path, options",
                DEV_MOUNTS_MAX);
    else
        rc = 0;
out:
    json_decref(root);
    return rc;
}

int dev_plan_load(const char *dir, struct dev_plan *plan, struct err *err)
{
    char path[PATH_MAX];
    char *text = malloc(PLAN_FILE_MAX);
    ssize_t len;
    int rc;

    memset(plan, 0, sizeof(*plan));
    if (text == NULL)
        return err_wrap(err, -ENOMEM, "read the cluster in %s", dir);
    rc = path_join(plan->dir, err, "%s", dir);
    if (rc == 0)
        rc = path_join(path, err, "%s/etc/cluster.json", dir);
    if (rc == 0) {
        len = file_read_text(path, text, PLAN_FILE_MAX, err);
        rc = len < 0 ? (int)len : dev_plan_parse(text, plan, err);
        if (rc == -EINVAL)
            err_wrap(err, rc, "%s", path);
    }
    free(text);
    return rc;
}

int dev_plan_save(const struct dev_plan *plan, struct err *err)
{
    char path[PATH_MAX];
    char *text;
    int rc = path_join(path, err, "%s/etc/cluster.json", plan->dir);

    if (rc != 0)
        return rc;
    text = dev_plan_print(plan);
    if (text == NULL)
        return err_wrap(err, -ENOMEM, "write %s", path);
    rc = file_replace(path, 0644, text, strlen(text), err);
    free(text);
    return rc;
}

unsigned dev_plan_daemons(const struct dev_plan *plan)
{
    return plan->n_metas + plan->n_storages;
}

unsigned dev_plan_members(const struct dev_plan *plan)
{
    return dev_plan_daemons(plan) + plan->n_mounts;
}

bool dev_plan_is_witness(const struct dev_plan *plan, unsigned member)
{
    return plan->has_witness && member + 1 == plan->n_metas;
}

bool dev_plan_is_exportd(const struct dev_plan *plan, unsigned member)
{
    return member < plan->n_metas;
}

const struct dev_mount *dev_plan_mount(const struct dev_plan *plan, unsigned member)
{
    unsigned n_daemons = dev_plan_daemons(plan);

    assert(member < dev_plan_members(plan));
    return member < n_daemons ? NULL : &plan->mounts[member - n_daemons];
}

void dev_plan_name(const struct dev_plan *plan, unsigned member, char name[DEV_NAME_MAX])
{
    const struct dev_mount *m = dev_plan_mount(plan, member);

    if (m != NULL)
        snprintf(name, DEV_NAME_MAX, "mount-%u", m->number);
    else if (!dev_plan_is_exportd(plan, member))
        snprintf(name, DEV_NAME_MAX, "storaged-%u", member - plan->n_metas + 1);
    else if (plan->n_metas == 1)
        snprintf(name, DEV_NAME_MAX, "exportd");
    else if (dev_plan_is_witness(plan, member))
        snprintf(name, DEV_NAME_MAX, "witness");
    else
        snprintf(name, DEV_NAME_MAX, "exportd-%u", member + 1);
}

void dev_plan_exportds(const struct dev_plan *plan, char text[DEV_EXPORTDS_TEXT])
{
    size_t len = 0;

    for (unsigned i = 0; i < plan->n_metas; i++)
        len += (size_t)snprintf(text + len, DEV_EXPORTDS_TEXT - len, "%s127.0.0.1:%u",
                                i == 0 ? "" : ",", plan->meta_ports[i][0]);
}

uint32_t dev_mount_io_timeout_ms(const struct dev_mount *m)
{
    static const char key[] = "io_timeout=";
    uint32_t ms = DEFAULT_IO_TIMEOUT_MS;

    for (const char *o = m->options; o != NULL; o = strchr(o, ',')) {
        char *end;
        double s;

        o += *o == ',';
        if (strncmp(o, key, sizeof(key) - 1) != 0)
            continue;
        s = strtod(o + sizeof(key) - 1,
                   &end); /* rozomount has checked it, or did not start */
        if ((*end == ',' || *end == '\0') && s > 0 && s <= IO_TIMEOUT_MAX_S)
            ms = (uint32_t)(s * 1000);
    }
    return ms;
}

const uint16_t *dev_plan_ports(const struct dev_plan *plan, unsigned member, unsigned *n)
{
    *n = 0;
    if (dev_plan_mount(plan, member) != NULL)
        return NULL;
    if (dev_plan_is_exportd(plan, member)) {
        *n = plan->n_metas == 1 ? 1 : 2;
        return plan->meta_ports[member];
    }
    *n = plan->n_links;
    return plan->ports[member - plan->n_metas];
}
