/*
 * cmd_stream.c - `rozo stream`: streams that are reserved for hosts.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "deploy/cli/text_table.h"
#include "deploy/client/exportd_client.h"
#include "deploy/verbs/verbs.h"

struct stream_args {
    struct target_options conn; /* must stay first */
    const char *export_name, *host;
    unsigned reads, writes;
    uint64_t rate; /* 0: not given */
    bool json;
};

#define OPTION_EXPORT                                                       \
    {                                                                       \
        NULL, 0, "EXPORT", NULL, ARGS_TEXT(struct stream_args, export_name) \
    }
#define OPTION_HOST                                                \
    {                                                              \
        NULL, 0, "HOST", NULL, ARGS_TEXT(struct stream_args, host) \
    }
#define OPTION_JSON                                                          \
    {                                                                        \
        "json", 'j', NULL, "print JSON", ARGS_FLAG(struct stream_args, json) \
    }

static double mb(uint64_t n_bytes)
{
    return (double)n_bytes / 1e6;
}

static void rate_arg(struct argp_state *state, char *text, void *to)
{
    char *end;
    double number = strtod(text, &end);

    if (!isdigit((unsigned char)text[0]) || *end != '\0' || !(number >= 0.001) ||
        number > 100000)
        argp_error(state, "--rate wants MB per second, 0.001 to 100000, not '%s'", text);
    *(uint64_t *)to = (uint64_t)(number * 1e6 + 0.5);
}

static json_t *stream_json(const Rozo__Stream *s)
{
    return json_pack("{s:o, s:o, s:I, s:I, s:f, s:I, s:I}", "export",
                     cli_json_text(s->export), "host", cli_json_text(s->host), "read",
                     (json_int_t)s->reads, "written", (json_int_t)s->writes, "rate_mb",
                     mb(s->rate), "reads", (json_int_t)s->n_reads, "late_reads",
                     (json_int_t)s->n_late);
}

/* The parts of a verb that differ: its question, and the use of the answer. */
struct stream_verb {
    int (*ask)(const struct stream_args *args, struct exportd_client *asked,
               ProtobufCMessage **answer, struct err *err);
    int (*show)(struct cli *cli, const struct stream_args *args,
                const ProtobufCMessage *answer);
};

static int stream_verb_run(struct cli *cli, int argc, char **argv,
                           const struct args_syntax *syntax, const struct stream_verb *v)
{
    struct exportd_client asked = { 0 };
    struct stream_args args = { 0 };
    ProtobufCMessage *answer = NULL;
    struct err err = { 0 };
    int rc;

    args_parse(syntax, argc, argv, &args);
    rc = exportd_client_open(&args.conn, &asked, &err);
    if (rc == 0)
        rc = v->ask(&args, &asked, &answer, &err);
    rc = rc != 0 ? cli_fail(cli, "%s", err.text) : v->show(cli, &args, answer);
    protobuf_c_message_free_unpacked(answer, NULL);
    exportd_client_close(&asked);
    return rc;
}

/* Prints one reservation that was made or released. */
static int stream_print(struct cli *cli, const struct stream_args *args,
                        const Rozo__Stream *s, const char *verb)
{
    if (args->json)
        return cli_print_json(cli, stream_json(s));
    printf("%s for %.255s: %u streams of %.63s read and %u written, %g MB/s each\n", verb,
           s->host, s->reads, s->export, s->writes, mb(s->rate));
    return cli_finish(cli);
}

static int reserve_ask(const struct stream_args *args, struct exportd_client *asked,
                       ProtobufCMessage **answer, struct err *err)
{
    Rozo__AdStreamReserveResp *resp = NULL;
    Rozo__Stream stream = ROZO__STREAM__INIT;
    int rc;

    stream.export = (char *)(uintptr_t)args->export_name;
    stream.host = (char *)(uintptr_t)args->host;
    stream.reads = args->reads;
    stream.writes = args->writes;
    stream.rate = args->rate;
    rc = admin_stream_reserve(asked->admin, &stream, &asked->progress, &resp, err);
    *answer = (ProtobufCMessage *)resp;
    return rc;
}

static int reserve_show(struct cli *cli, const struct stream_args *args,
                        const ProtobufCMessage *answer)
{
    return stream_print(cli, args, ((const Rozo__AdStreamReserveResp *)answer)->stream,
                        "reserved");
}

static void reserve_check(struct argp_state *state, void *arg)
{
    const struct stream_args *args = arg;

    if (args->rate == 0)
        argp_error(state, "--rate is missing: MB per second of each stream");
    if (args->reads + args->writes == 0)
        argp_error(state, "neither --read nor --write: nothing to reserve");
}

int cmd_stream_reserve(struct cli *cli, int argc, char **argv)
{
    static const struct args_option options[] = {
        { "read", 0, "N", "streams that are read at once (0)",
          ARGS_NUMBER(struct stream_args, reads, 0, 10000) },
        { "write", 0, "N", "streams that are written at once (0)",
          ARGS_NUMBER(struct stream_args, writes, 0, 10000) },
        { "rate", 0, "MB", "of each stream in a second; 1 MB is 1000000 bytes",
          ARGS_CALL(struct stream_args, rate, rate_arg) },
        OPTION_JSON,
        OPTION_EXPORT,
        OPTION_HOST,
        { 0 },
    };
    static const struct args_syntax syntax = {
        .options = options,
        .doc = "Reserve streams of an export for a host, in place of those that it has. "
               "Refused if a storage or its links cannot carry them beside what is "
               "reserved: each storage says in its config (storaged.stream_mb) how much "
               "that is. Healing leaves free what is reserved.",
        .children = target_children,
        .check = reserve_check,
    };
    static const struct stream_verb verb = { reserve_ask, reserve_show };

    return stream_verb_run(cli, argc, argv, &syntax, &verb);
}

static int release_ask(const struct stream_args *args, struct exportd_client *asked,
                       ProtobufCMessage **answer, struct err *err)
{
    Rozo__AdStreamReleaseResp *resp = NULL;
    int rc = admin_stream_release(asked->admin, args->export_name, args->host,
                                  &asked->progress, &resp, err);

    *answer = (ProtobufCMessage *)resp;
    return rc;
}

static int release_show(struct cli *cli, const struct stream_args *args,
                        const ProtobufCMessage *answer)
{
    return stream_print(cli, args, ((const Rozo__AdStreamReleaseResp *)answer)->stream,
                        "released");
}

int cmd_stream_release(struct cli *cli, int argc, char **argv)
{
    static const struct args_option options[] = {
        OPTION_JSON, OPTION_EXPORT, OPTION_HOST, { 0 }
    };
    static const struct args_syntax syntax = {
        .options = options,
        .doc = "Give back the streams of an export that are reserved for a host.",
        .children = target_children,
    };
    static const struct stream_verb verb = { release_ask, release_show };

    return stream_verb_run(cli, argc, argv, &syntax, &verb);
}

static json_t *streams_list_json(const Rozo__AdStreamListResp *a)
{
    json_t *streams = json_array(), *storages = json_array();

    for (size_t i = 0; i < a->n_streams; i++)
        json_array_append_new(streams, stream_json(a->streams[i]));
    for (size_t i = 0; i < a->n_limits; i++) {
        const Rozo__AdStreamListResp__Limit *l = a->limits[i];

        json_array_append_new(
            storages,
            json_pack("{s:I, s:f, s:f, s:f, s:f}", "id", (json_int_t)l->storage,
                      "stream_mb", mb(l->stream_bytes), "links_mb", mb(l->link_bytes),
                      "read_mb", mb(l->read_bytes), "written_mb", mb(l->written_bytes)));
    }
    return json_pack("{s:o, s:o}", "streams", streams, "storages", storages);
}

static void streams_list_print(const Rozo__AdStreamListResp *a)
{
    static const char *const heads[] = { "EXPORT",     "HOST",   ">READ", ">WRITTEN",
                                         ">MB/S EACH", ">READS", ">LATE" };
    static const char *const limit_heads[] = { ">STORAGE", ">CARRIES", ">LINKS", ">READ",
                                               ">WRITTEN" };
    struct text_table t = { 0 };

    text_table_init(&t, heads, 7);
    for (size_t i = 0; i < a->n_streams; i++) {
        const Rozo__Stream *s = a->streams[i];

        text_table_cell(&t, "%.24s", s->export);
        text_table_cell(&t, "%.32s", s->host);
        text_table_cell(&t, "%u", s->reads);
        text_table_cell(&t, "%u", s->writes);
        text_table_cell(&t, "%g", mb(s->rate));
        text_table_cell(&t, "%llu", (unsigned long long)s->n_reads);
        text_table_cell(&t, "%llu", (unsigned long long)s->n_late);
    }
    text_table_print(&t, stdout);
    text_table_free(&t);
    printf("\nreserved at storages, MB/s\n");
    text_table_init(&t, limit_heads, 5);
    for (size_t i = 0; i < a->n_limits; i++) {
        const Rozo__AdStreamListResp__Limit *l = a->limits[i];

        text_table_cell(&t, "%u", l->storage);
        text_table_cell(&t, l->stream_bytes == 0 ? "-" : "%.1f", mb(l->stream_bytes));
        text_table_cell(&t, l->link_bytes == 0 ? "-" : "%.1f", mb(l->link_bytes));
        text_table_cell(&t, "%.1f", mb(l->read_bytes));
        text_table_cell(&t, "%.1f", mb(l->written_bytes));
    }
    text_table_print(&t, stdout);
    text_table_free(&t);
}

static int list_ask(const struct stream_args *args, struct exportd_client *asked,
                    ProtobufCMessage **answer, struct err *err)
{
    Rozo__AdStreamListResp *resp = NULL;
    int rc = admin_stream_list(asked->admin, &asked->progress, &resp, err);

    (void)args;
    *answer = (ProtobufCMessage *)resp;
    return rc;
}

static int list_show(struct cli *cli, const struct stream_args *args,
                     const ProtobufCMessage *answer)
{
    const Rozo__AdStreamListResp *list = (const Rozo__AdStreamListResp *)answer;

    if (args->json)
        return cli_print_json(cli, streams_list_json(list));
    streams_list_print(list);
    return cli_finish(cli);
}

int cmd_stream_list(struct cli *cli, int argc, char **argv)
{
    static const struct args_option options[] = { OPTION_JSON, { 0 } };
    static const struct args_syntax syntax = {
        .options = options,
        .doc = "List reserved streams, and for each storage how much it can carry "
               "(storaged.stream_mb, storaged.link_mb) and how much is reserved there.",
        .children = target_children,
    };
    static const struct stream_verb verb = { list_ask, list_show };

    return stream_verb_run(cli, argc, argv, &syntax, &verb);
}
