/*
 * cmd_cluster.c - `rozo status`, `storage`, `volume`, `export`: show the cluster as
 * exportd knows it, and request changes.
 */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codec/codec.h"
#include "common/wire/record.h"
#include "deploy/cli/text_table.h"
#include "deploy/client/exportd_client.h"
#include "deploy/client/health.h"
#include "deploy/client/meta_client.h"
#include "deploy/ganesha/nfs_gateway.h"
#include "deploy/samba/smb_service.h"
#include "deploy/verbs/verbs.h"

enum {
    INLINE_MAX = 65536,
    INLINE_DEFAULT = INLINE_MAX + 1, /* --inline is not given */
    INLINE_REPLICATED = 16384,       /* then, if metadata are on several machines */
    REPLICATED_MEMBERS = 3,
    MEMBER_VOTES = 1, /* RAFT_ROLE_VOTER of raft_msg.h, which is on the wire */
};

struct cluster_args {
    struct target_options conn;
    bool json;
    const char *name;               /* name of the volume or export to create */
    struct cli_addresses addresses; /* storage to add */
    const char *volume;
    const char *codec;
    unsigned layout;
    unsigned block_bytes;
    bool sync;
    unsigned inline_max;
    bool fold;
};

#define OPTION_JSON                                                           \
    {                                                                         \
        "json", 'j', NULL, "print JSON", ARGS_FLAG(struct cluster_args, json) \
    }
#define OPTION_VOLUME                                                     \
    {                                                                     \
        "volume", 0, "NAME", "the volume; needed when there are several", \
            ARGS_TEXT(struct cluster_args, volume)                        \
    }
#define OPTION_NAME                                                 \
    {                                                               \
        NULL, 0, "NAME", NULL, ARGS_TEXT(struct cluster_args, name) \
    }

/* ---- text ---- */

static const char *volume_name(const Rozo__AdStatusResp *s, uint32_t id)
{
    for (size_t i = 0; i < s->n_volumes; i++) {
        if (s->volumes[i]->id == id)
            return s->volumes[i]->name;
    }
    return "?";
}

static const char *codec_name(uint32_t kind)
{
    const char *name = codec_kind_name(kind);

    return name == NULL ? "?" : name;
}

/* Writes "a:1, a:2". */
static void addresses_text(const Rozo__Storage *st, char *out, size_t size)
{
    size_t len = 0;

    out[0] = '\0';
    for (size_t i = 0; i < st->n_addresses && len < size; i++)
        len += (size_t)snprintf(out + len, size - len, "%s%s", i == 0 ? "" : ", ",
                                st->addresses[i]);
}

static void storages_print(const Rozo__AdStatusResp *s)
{
    static const char *const heads[] = { ">ID",  "STATE",  ">SIZE",    ">FREE",
                                         "HOST", "VOLUME", "ADDRESSES" };
    struct text_table t;

    text_table_init(&t, heads, 7);
    for (size_t i = 0; i < s->n_storages; i++) {
        const Rozo__Storage *st = s->storages[i];
        char total[HUMAN_BYTES_TEXT], free_text[HUMAN_BYTES_TEXT], addresses[512];

        addresses_text(st, addresses, sizeof(addresses));
        text_table_cell(&t, "%u", st->id);
        text_table_cell(&t, "%s", st->up ? "up" : st->lost ? "LOST" : "DOWN");
        text_table_cell(&t, "%s",
                        st->total_bytes == 0 ? "-" : human_bytes(total, st->total_bytes));
        text_table_cell(&t, "%s",
                        st->total_bytes == 0 ? "-"
                                             : human_bytes(free_text, st->free_bytes));
        text_table_cell(&t, "%.24s", st->host[0] == '\0' ? "-" : st->host);
        text_table_cell(&t, "%.16s", volume_name(s, st->volume));
        text_table_cell(&t, "%s", addresses);
    }
    text_table_print(&t, stdout);
    text_table_free(&t);
    for (size_t i = 0; i < s->n_storages; i++) {
        if (!s->storages[i]->up && s->storages[i]->error[0] != '\0')
            printf("storage %u: %.400s\n", s->storages[i]->id, s->storages[i]->error);
    }
}

/* Prints what a volume that is too small for the layout of this export means. */
static void export_print_missing(const Rozo__Export *e)
{
    const struct codec_layout *l = codec_layout(e->layout);

    if (l == NULL || e->storages_missing == 0 || e->storages_missing > l->safe)
        return;
    printf("export %.64s: its volume has %u of the %u storages that layout %u wants;\n"
           "  files have fewer spares, and writes wait while fewer than %u are up\n",
           e->name, l->safe - e->storages_missing, l->safe, e->layout,
           quorum_write(l, l->safe));
}

/* Prints how many files wait for further storages of their volume. */
static void export_print_few(const Rozo__Export *e)
{
    if (!e->files_few_known)
        printf("export %.64s: files with too few storages are being counted\n", e->name);
    else if (e->files_few > 0)
        printf(
            "export %.64s: %llu files have fewer storages than they should;\n"
            "  they get others automatically; until then they survive fewer failures\n",
            e->name, (unsigned long long)e->files_few);
}

static const char *names_text(const Rozo__Export *e)
{
    return e->fold_rules != 0 ? "fold" : "posix";
}

static void exports_print(const Rozo__AdStatusResp *s)
{
    static const char *const heads[] = { "EXPORT", "VOLUME", ">LAYOUT", "CODEC",
                                         ">BLOCK", "NAMES",  ">FILES",  ">CLIENTS" };
    struct text_table t;

    text_table_init(&t, heads, 8);
    for (size_t i = 0; i < s->n_exports; i++) {
        const Rozo__Export *e = s->exports[i];
        char block[HUMAN_BYTES_TEXT];

        text_table_cell(&t, "%.24s", e->name);
        text_table_cell(&t, "%.16s", volume_name(s, e->volume));
        text_table_cell(&t, "%u", e->layout);
        text_table_cell(&t, "%s", codec_name(e->codec));
        text_table_cell(&t, "%s", human_bytes(block, e->block_bytes));
        text_table_cell(&t, "%s", names_text(e));
        text_table_cell(&t, "%llu", (unsigned long long)e->files);
        text_table_cell(&t, "%u", e->sessions);
    }
    text_table_print(&t, stdout);
    text_table_free(&t);
    for (size_t i = 0; i < s->n_exports; i++) {
        export_print_missing(s->exports[i]);
        export_print_few(s->exports[i]);
    }
}

/* Returns "1-12, 14", owned by the caller. */
static char *ids_text(const Rozo__Volume *v)
{
    char *text = malloc(v->n_storages * 24 + 2);
    size_t len = 0;

    if (text == NULL)
        abort();
    strcpy(text, "-");
    for (size_t i = 0, past; i < v->n_storages; i = past) {
        past = i + 1;
        while (past < v->n_storages && v->storages[past] == v->storages[past - 1] + 1)
            past++;
        if (past - i < 3) /* a range has three ids or more */
            past = i + 1;
        len += (size_t)sprintf(text + len, "%s%u", i == 0 ? "" : ", ", v->storages[i]);
        if (past > i + 1)
            len += (size_t)sprintf(text + len, "-%u", v->storages[past - 1]);
    }
    return text;
}

static void volumes_print(const Rozo__AdStatusResp *s)
{
    static const char *const heads[] = { ">ID", "VOLUME", ">STORAGES", "THEIR IDS" };
    struct text_table t;

    text_table_init(&t, heads, 4);
    for (size_t i = 0; i < s->n_volumes; i++) {
        const Rozo__Volume *v = s->volumes[i];
        char *ids = ids_text(v);

        text_table_cell(&t, "%u", v->id);
        text_table_cell(&t, "%.32s", v->name);
        text_table_cell(&t, "%zu", v->n_storages);
        text_table_cell(&t, "%s", ids);
        free(ids);
    }
    text_table_print(&t, stdout);
    text_table_free(&t);
}

static void cluster_id_text(const ProtobufCBinaryData *id, char out[33])
{
    out[0] = '\0';
    for (size_t i = 0; i < id->len && i < 16; i++)
        snprintf(out + 2 * i, 3, "%02x", id->data[i]);
}

/* ---- JSON. Strings of a peer may hold any bytes: invalid UTF-8 is left out. ---- */

static json_t *storage_json(const Rozo__AdStatusResp *s, const Rozo__Storage *st)
{
    json_t *addresses = json_array();

    for (size_t i = 0; i < st->n_addresses; i++)
        json_array_append_new(addresses, cli_json_text(st->addresses[i]));
    return json_pack("{s:I, s:b, s:b, s:o, s:o, s:o, s:o, s:I, s:I, s:o, s:o}", "id",
                     (json_int_t)st->id, "up", (int)st->up, "lost", (int)st->lost,
                     "addresses", addresses, "host", cli_json_text(st->host), "rack",
                     cli_json_text(st->rack), "volume",
                     cli_json_text(s == NULL ? "" : volume_name(s, st->volume)),
                     "total_bytes", (json_int_t)st->total_bytes, "free_bytes",
                     (json_int_t)st->free_bytes, "version", cli_json_text(st->version),
                     "error", cli_json_text(st->error));
}

static json_t *storages_json(const Rozo__AdStatusResp *s)
{
    json_t *json = json_array();

    for (size_t i = 0; i < s->n_storages; i++)
        json_array_append_new(json, storage_json(s, s->storages[i]));
    return json;
}

static json_t *volume_json(const Rozo__Volume *v)
{
    json_t *ids = json_array();

    for (size_t i = 0; i < v->n_storages; i++)
        json_array_append_new(ids, json_integer(v->storages[i]));
    return json_pack("{s:I, s:o, s:o}", "id", (json_int_t)v->id, "name",
                     cli_json_text(v->name), "storages", ids);
}

static json_t *volumes_json(const Rozo__AdStatusResp *s)
{
    json_t *json = json_array();

    for (size_t i = 0; i < s->n_volumes; i++)
        json_array_append_new(json, volume_json(s->volumes[i]));
    return json;
}

static json_t *export_json(const Rozo__AdStatusResp *s, const Rozo__Export *e)
{
    json_t *few =
        e->files_few_known ? json_integer((json_int_t)e->files_few) : json_null();

    return json_pack("{s:I, s:o, s:o, s:I, s:s, s:I, s:I, s:I, s:b, s:I, s:s, s:I, s:o}",
                     "id", (json_int_t)e->id, "name", cli_json_text(e->name), "volume",
                     cli_json_text(s == NULL ? "" : volume_name(s, e->volume)), "layout",
                     (json_int_t)e->layout, "codec", codec_name(e->codec), "block_bytes",
                     (json_int_t)e->block_bytes, "files", (json_int_t)e->files, "clients",
                     (json_int_t)e->sessions, "sync", e->sync, "inline_max",
                     (json_int_t)e->inline_max, "names", names_text(e),
                     "storages_missing", (json_int_t)e->storages_missing, "files_few",
                     few);
}

static json_t *exports_json(const Rozo__AdStatusResp *s)
{
    json_t *json = json_array();

    for (size_t i = 0; i < s->n_exports; i++)
        json_array_append_new(json, export_json(s, s->exports[i]));
    return json;
}

/* ---- verbs that show ---- */

/* Shows one part of the status, as JSON or text. */
static int list_verb(struct cli *cli, int argc, char **argv, const char *doc,
                     json_t *(*json)(const Rozo__AdStatusResp *),
                     void (*print)(const Rozo__AdStatusResp *))
{
    static const struct args_option options[] = { OPTION_JSON, { 0 } };
    const struct args_syntax syntax = { .options = options,
                                        .doc = doc,
                                        .children = target_children };
    struct cluster_args args = { 0 };
    struct exportd_client asked;
    struct err err = { 0 };
    int rc;

    args_parse(&syntax, argc, argv, &args);
    if (exportd_client_status(&args.conn, &asked, &err) != 0)
        return cli_fail(cli, "%s", err.text);
    if (args.json) {
        rc = cli_print_json(cli, json(asked.status));
    } else {
        print(asked.status);
        rc = cli_finish(cli);
    }
    exportd_client_close(&asked);
    return rc;
}

/* Writes "lookup" for MD_LOOKUP; an operation that only a newer exportd knows goes by its
 * number. */
static void op_name(uint32_t op, char *out, size_t size)
{
    const ProtobufCEnumValue *value =
        protobuf_c_enum_descriptor_get_value(&rozo__op__descriptor, (int)op);
    const char *at = value == NULL ? NULL : strchr(value->name, '_');
    size_t len = 0;

    if (at == NULL) {
        snprintf(out, size, "op_%u", op);
        return;
    }
    while (*++at != '\0' && len + 1 < size)
        out[len++] = (char)tolower((unsigned char)*at);
    out[len] = '\0';
}

static json_t *requests_json(const Rozo__AdStatusResp *s)
{
    json_t *json = json_object();
    char name[32];

    for (size_t i = 0; i < s->n_requests; i++) {
        op_name(s->requests[i]->op, name, sizeof(name));
        json_object_set_new(json, name, json_integer((json_int_t)s->requests[i]->count));
    }
    return json;
}

static json_t *status_json(const Rozo__AdStatusResp *s)
{
    char id[33];

    cluster_id_text(&s->cluster_id, id);
    return json_pack("{s:s, s:o, s:I, s:I, s:o, s:o, s:o, s:{s:o}}", "cluster_id", id,
                     "version", cli_json_text(s->version), "uptime_s",
                     (json_int_t)s->uptime_s, "trash", (json_int_t)s->trash, "storages",
                     storages_json(s), "volumes", volumes_json(s), "exports",
                     exports_json(s), "exportd", "requests", requests_json(s));
}

static void status_print(const Rozo__AdStatusResp *s)
{
    char id[33], up_for[32], total[HUMAN_BYTES_TEXT], free_text[HUMAN_BYTES_TEXT];
    uint64_t total_bytes = 0, free_bytes = 0;
    size_t n_up = 0;

    for (size_t i = 0; i < s->n_storages; i++) {
        n_up += s->storages[i]->up;
        total_bytes += s->storages[i]->total_bytes;
        free_bytes += s->storages[i]->free_bytes;
    }
    cluster_id_text(&s->cluster_id, id);
    cli_duration_text(s->uptime_s, up_for, sizeof(up_for));
    printf("cluster  %s\n", id);
    printf("exportd  %.32s, up for %s\n", s->version, up_for);
    printf("storages %zu of %zu up, %s free of %s (raw, before coding)\n", n_up,
           s->n_storages, human_bytes(free_text, free_bytes),
           human_bytes(total, total_bytes));
    if (s->trash > 0)
        printf("removing %llu files whose projections still lie on storages\n",
               (unsigned long long)s->trash);
    if (s->n_storages > 0) {
        putchar('\n');
        storages_print(s);
    }
    if (s->n_exports > 0) {
        putchar('\n');
        exports_print(s);
    }
    if (s->n_storages == 0)
        printf("\nNo storage has joined yet: rozo storage add HOST:PORT\n");
    else if (s->n_exports == 0)
        printf("\nThere is nothing to mount yet: rozo export create NAME\n");
}

/* Prints what storages have to heal, a line each; skips storages that did not answer. */
static void healing_print(const struct storage_clients *f)
{
    char text[400];
    bool any = false;

    for (size_t i = 0; i < f->n; i++) {
        const struct storage_clients_member *m = &f->members[i];

        if (m->answer == NULL ||
            !health_line((const Rozo__StHealthResp *)m->answer, text, sizeof(text)))
            continue;
        if (!any)
            putchar('\n');
        any = true;
        printf("storage %u: %s\n", m->st->id, text);
    }
}

/* Adds the same to the JSON of the storages. */
static void healing_add(json_t *json, struct storage_clients *f)
{
    json_t *storages = json_object_get(json, "storages");

    for (size_t i = 0; i < f->n; i++) {
        json_t *st = json_array_get(storages, i);
        const struct storage_clients_member *m = storage_clients_find(
            f, (uint32_t)json_integer_value(json_object_get(st, "id")));
        const ProtobufCMessage *answer = m == NULL ? NULL : m->answer;

        json_object_set_new(st, "health",
                            answer == NULL
                                ? json_null()
                                : health_json((const Rozo__StHealthResp *)answer));
    }
}

int cmd_status(struct cli *cli, int argc, char **argv)
{
    static const struct args_option options[] = { OPTION_JSON, { 0 } };
    static const struct args_syntax syntax = {
        .options = options,
        .doc =
            "Show the cluster: its storages and whether they are up, their space, what "
            "they "
            "have to heal, the exports and how many clients have them mounted.",
        .children = target_children
    };
    struct cluster_args args = { 0 };
    struct storage_clients *fleet = NULL;
    struct exportd_client asked;
    struct err err = { 0 };
    int rc;

    args_parse(&syntax, argc, argv, &args);
    if (exportd_client_status(&args.conn, &asked, &err) != 0)
        return cli_fail(cli, "%s", err.text);
    if (storage_clients_open(asked.status, args.conn.key, &fleet, &err) == 0)
        health_ask(fleet, 0, &asked.progress);
    progress_end(&asked.progress);
    if (args.json) {
        json_t *json = status_json(asked.status);

        if (fleet != NULL)
            healing_add(json, fleet);
        json_object_set_new(json, "gateways",
                            json_pack("{s:o, s:o}", "smb", smb_status_json(smb_dir(NULL)),
                                      "nfs", nfs_status_json(nfs_dir(NULL))));
        rc = cli_print_json(cli, json);
    } else {
        status_print(asked.status);
        if (fleet != NULL)
            healing_print(fleet);
        smb_status_print(smb_dir(NULL), "\n", stdout);
        nfs_status_print(nfs_dir(NULL), "\n", stdout);
        rc = cli_finish(cli);
    }
    storage_clients_close(fleet);
    exportd_client_close(&asked);
    return rc;
}

int cmd_storage_list(struct cli *cli, int argc, char **argv)
{
    return list_verb(cli, argc, argv, "List the storages of the cluster.", storages_json,
                     storages_print);
}

int cmd_volume_list(struct cli *cli, int argc, char **argv)
{
    return list_verb(cli, argc, argv,
                     "List the volumes: sets of storages that exports draw on.",
                     volumes_json, volumes_print);
}

int cmd_export_list(struct cli *cli, int argc, char **argv)
{
    return list_verb(cli, argc, argv, "List the exports: the file systems clients mount.",
                     exports_json, exports_print);
}

/* ---- verbs that change ---- */

int cmd_storage_add(struct cli *cli, int argc, char **argv)
{
    static const struct args_option options[] = {
        OPTION_VOLUME,
        OPTION_JSON,
        { NULL, 0, "HOST:PORT[,HOST:PORT...]", "an address the storage listens on",
          ARGS_CALL(struct cluster_args, addresses, cli_addresses_arg) },
        { 0 },
    };
    static const struct args_syntax syntax = {
        .options = options,
        .doc =
            "Let a storage join the cluster: exportd asks for its identity, gives it its "
            "number and adds it to the volume. The storage must run, with the keys of "
            "this "
            "cluster. Name all the addresses it listens on; adding it again is harmless.",
        .children = target_children
    };
    struct cluster_args args = { 0 };
    Rozo__AdStorageAddResp *answer = NULL;
    struct exportd_client asked;
    struct err err = { 0 };
    int rc;

    args_parse(&syntax, argc, argv, &args);
    rc = exportd_client_open(&args.conn, &asked, &err);
    if (rc == 0)
        rc = admin_storage_add(asked.admin, args.addresses.all, args.addresses.n,
                               args.volume == NULL ? "" : args.volume, &asked.progress,
                               &answer, &err);
    exportd_client_close(&asked);
    if (rc != 0)
        return cli_fail(cli, "%s", err.text);
    if (args.json) {
        rc = cli_print_json(cli, storage_json(NULL, answer->storage));
    } else {
        printf("storage %u is a member\n", answer->storage->id);
        rc = cli_finish(cli);
    }
    rozo__ad_storage_add_resp__free_unpacked(answer, NULL);
    return rc;
}

int cmd_volume_create(struct cli *cli, int argc, char **argv)
{
    static const struct args_option options[] = { OPTION_JSON, OPTION_NAME, { 0 } };
    static const struct args_syntax syntax = {
        .options = options,
        .doc = "Make a volume: an empty set of storages. Fill it by `rozo storage add "
               "--volume "
               "NAME`.",
        .children = target_children
    };
    struct cluster_args args = { 0 };
    Rozo__AdVolumeCreateResp *answer = NULL;
    struct exportd_client asked;
    struct err err = { 0 };
    int rc;

    args_parse(&syntax, argc, argv, &args);
    rc = exportd_client_open(&args.conn, &asked, &err);
    if (rc == 0)
        rc = admin_volume_create(asked.admin, args.name, &asked.progress, &answer, &err);
    exportd_client_close(&asked);
    if (rc != 0)
        return cli_fail(cli, "%s", err.text);
    if (args.json) {
        rc = cli_print_json(cli, volume_json(answer->volume));
    } else {
        printf("volume %.64s is there\n", answer->volume->name);
        rc = cli_finish(cli);
    }
    rozo__ad_volume_create_resp__free_unpacked(answer, NULL);
    return rc;
}

/* Returns whether names, and inline data with them, survive the loss of a machine as file
 * data do: at least three members keep them; a witness does not. */
static bool metadata_is_replicated(const struct target_options *conn)
{
    struct meta_client *c;
    bool is = false;

    if (meta_client_open(conn->exportd, conn->key, &c, NULL) != 0)
        return false;
    meta_client_ask(c);
    for (unsigned i = 0; i < c->n; i++) {
        const Rozo__AdMetaStatusResp *a = c->members[i].answer;
        unsigned n_full = 0;

        for (size_t m = 0; a != NULL && m < a->n_members; m++)
            n_full += a->members[m]->role == MEMBER_VOTES && !a->members[m]->witness;
        is = is || n_full >= REPLICATED_MEMBERS;
    }
    meta_client_close(c);
    return is;
}

/* Checks that exportd has done what it was asked for. */
static int export_made_check(const Rozo__AdExportCreateReq *req, const Rozo__Export *e,
                             struct err *err)
{
    if (!req->fold || e->fold_rules != 0)
        return 0;
    return err_set(
        err, -EOPNOTSUPP,
        "export %.64s was made without an index of folded names: exportd is of "
        "an earlier build that does not know --names=fold. Upgrade exportd, and "
        "make an export of another name",
        e->name);
}

int cmd_export_create(struct cli *cli, int argc, char **argv)
{
    static const struct args_option options[] = {
        OPTION_VOLUME,
        { "layout", 0, "0|1|2",
          "0: any 2 of 3 projections, 1: 4 of 6, 2: 8 of 12 (default 0)",
          ARGS_NUMBER(struct cluster_args, layout, 0, 2) },
        { "codec", 0, "NAME",
          "mojette (default), mojette-finite, rs, mojette-nonsystematic",
          ARGS_TEXT(struct cluster_args, codec) },
        { "block-bytes", 0, "4096|8192", "unit of coding (default 8192)",
          ARGS_CALL(struct cluster_args, block_bytes, cli_block_arg) },
        { "sync", 0, NULL,
          "names and attributes are on stable storage before a change of them returns "
          "(default: within a second or so, and at fsync)",
          ARGS_FLAG(struct cluster_args, sync) },
        { "inline", 0, "BYTES",
          "files of up to so many bytes (65536 at most) are kept by exportd, as their "
          "names are; 0: all data are coded and spread over storages (default: 16384 if "
          "exportd is a quorum of three or more that keep metadata, else 0)",
          ARGS_NUMBER(struct cluster_args, inline_max, 0, INLINE_MAX) },
        { "names", 0, "posix|fold",
          "fold: exportd finds names in another case or Unicode normalisation for SMB "
          "gateways; in mounts, names differ as in posix (default posix)",
          ARGS_CALL(struct cluster_args, fold, cli_names_arg) },
        OPTION_JSON,
        OPTION_NAME,
        { 0 },
    };
    static const struct args_syntax syntax = {
        .options = options,
        .doc = "Make an export: an empty file system. All options stay for "
               "good; the volume must have enough storages for the layout.",
        .children = target_children
    };
    struct cluster_args args = { .inline_max = INLINE_DEFAULT };
    Rozo__AdExportCreateReq question = ROZO__AD_EXPORT_CREATE_REQ__INIT;
    Rozo__AdExportCreateResp *answer = NULL;
    struct exportd_client asked;
    struct err err = { 0 };
    int rc;

    args_parse(&syntax, argc, argv, &args);
    question.name = (char *)args.name;
    question.layout = args.layout;
    question.block_bytes = args.block_bytes;
    question.sync = args.sync;
    if (args.volume != NULL)
        question.volume = (char *)args.volume;
    if (args.codec != NULL)
        question.codec = (char *)args.codec;
    rc = exportd_client_open(&args.conn, &asked, &err);
    if (rc == 0) {
        if (args.inline_max == INLINE_DEFAULT)
            args.inline_max = metadata_is_replicated(&args.conn) ? INLINE_REPLICATED : 0;
        question.inline_max = args.inline_max;
        question.fold = args.fold;
        rc = admin_export_create(asked.admin, &question, &asked.progress, &answer, &err);
    }
    exportd_client_close(&asked);
    if (rc == 0 && export_made_check(&question, answer->export, &err) != 0) {
        rozo__ad_export_create_resp__free_unpacked(answer, NULL);
        return cli_fail(cli, "%s", err.text);
    }
    if (rc != 0)
        return cli_fail(cli, "%s", err.text);
    if (args.json) {
        rc = cli_print_json(cli, export_json(NULL, answer->export));
    } else {
        printf("export %.64s is there; mount it: rozo mount %.64s MNT\n",
               answer->export->name, answer->export->name);
        if (answer->export->inline_max != 0)
            printf("files of up to %u bytes are kept by exportd, with their names\n",
                   answer->export->inline_max);
        if (answer->export->fold_rules != 0)
            printf("names are also found in another case or normalisation, by SMB "
                   "gateways\n");
        export_print_missing(answer->export);
        rc = cli_finish(cli);
    }
    rozo__ad_export_create_resp__free_unpacked(answer, NULL);
    return rc;
}
