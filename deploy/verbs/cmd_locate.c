/*
 * cmd_locate.c - `rozo locate FILE`: shows where its projections are, as rozomount tells
 * by the virtual xattr rozo.locate.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

#include "deploy/cli/text_table.h"
#include "deploy/verbs/verbs.h"

enum { LOCATE_MAX = 1 << 16 };

struct locate_args {
    struct args_list files;
    bool json;
};

/* Returns the answer for one file, with all fields that locate_print() uses; NULL with a
 * message in err. */
static json_t *locate_ask(const char *file, struct err *err)
{
    char *text = malloc(LOCATE_MAX);
    json_error_t why;
    json_t *json = NULL;
    ssize_t len = text == NULL ? -1 : getxattr(file, "rozo.locate", text, LOCATE_MAX);

    if (text == NULL) {
        err_wrap(err, -ENOMEM, "%s", file);
    } else if (len < 0 && (errno == ENODATA || errno == EOPNOTSUPP)) {
        err_set(err, -errno, "%s is no regular file of a rozo file system", file);
    } else if (len < 0) {
        err_wrap(err, -errno, "%s", file);
    } else {
        json = json_loadb(text, (size_t)len, JSON_REJECT_DUPLICATES, &why);
        if (json == NULL)
            err_set(err, -EBADMSG, "%s: the mount answered what is no JSON: %s", file,
                    why.text);
        else if (!json_is_array(json_object_get(json, "storages"))) {
            err_set(err, -EBADMSG, "%s: the mount's answer lists no storages", file);
            json_decref(json);
            json = NULL;
        }
    }
    free(text);
    return json;
}

static json_int_t integer_of(const json_t *json, const char *key)
{
    return json_integer_value(json_object_get(json, key)); /* 0 if it is no number */
}

static const char *text_of(const json_t *json, const char *key)
{
    const char *text = json_string_value(json_object_get(json, key));

    return text == NULL ? "-" : text;
}

/* Writes a list of numbers or strings as "1, 2"; "-" if it is empty. */
static void list_text(const json_t *list, char *out, size_t size)
{
    size_t i, len = 0;
    json_t *item;

    snprintf(out, size, "-");
    json_array_foreach((json_t *)list, i, item)
    {
        if (len >= size)
            break;
        if (json_is_integer(item))
            len += (size_t)snprintf(out + len, size - len, "%s%lld", i == 0 ? "" : ", ",
                                    (long long)json_integer_value(item));
        else
            len += (size_t)snprintf(out + len, size - len, "%s%s", i == 0 ? "" : ", ",
                                    json_is_string(item) ? json_string_value(item) : "?");
    }
}

static void locate_print(const char *file, const json_t *json)
{
    static const char *const heads[] = { ">SLOT", ">STORAGE", "ROLE",      "PROJECTION",
                                         ">SIZE", ">ON DISK", "REACHABLE", "ADDRESSES" };
    char size[HUMAN_BYTES_TEXT], block[HUMAN_BYTES_TEXT], list[256];
    const json_t *storages = json_object_get(json, "storages");
    struct text_table t;
    size_t i;
    json_t *st;

    printf("%s: %s, layout %lld (any %lld of %lld projections), codec %s, blocks of %s\n",
           file, human_bytes(size, (uint64_t)integer_of(json, "size")),
           (long long)integer_of(json, "layout"), (long long)integer_of(json, "k"),
           (long long)integer_of(json, "n"), text_of(json, "codec"),
           human_bytes(block, (uint64_t)integer_of(json, "block_bytes")));
    printf("export %s, inode %lld, file id %s\n\n", text_of(json, "export"),
           (long long)integer_of(json, "ino"), text_of(json, "file_id"));
    if (json_is_true(json_object_get(json, "inline")))
        printf("exportd keeps its data; what follows is where they go when it grows\n\n");
    text_table_init(&t, heads, 8);
    json_array_foreach((json_t *)storages, i, st)
    {
        text_table_cell(&t, "%lld", (long long)integer_of(st, "slot"));
        text_table_cell(&t, "%lld", (long long)integer_of(st, "id"));
        text_table_cell(&t, "%.8s", text_of(st, "role"));
        list_text(json_object_get(st, "projections"), list, sizeof(list));
        text_table_cell(&t, "%s", list);
        text_table_cell(&t, "%s", human_bytes(size, (uint64_t)integer_of(st, "size")));
        text_table_cell(&t, "%s",
                        human_bytes(size, (uint64_t)integer_of(st, "allocated")));
        text_table_cell(&t, "%s",
                        json_is_true(json_object_get(st, "reachable")) ? "yes" : "NO");
        list_text(json_object_get(st, "addresses"), list, sizeof(list));
        text_table_cell(&t, "%s", list);
    }
    text_table_print(&t, stdout);
    text_table_free(&t);
}

static int locate_all(struct cli *cli, const struct locate_args *args)
{
    json_t *all = json_array();
    int status = CLI_DONE, rc;

    for (unsigned i = 0; i < args->files.n; i++) {
        struct err err = { 0 };
        json_t *json = locate_ask(args->files.all[i], &err);

        if (json == NULL) {
            status = cli_fail(cli, "%s", err.text);
            continue;
        }
        if (args->json) {
            json_object_set_new(json, "file", cli_json_path(args->files.all[i]));
            json_array_append(all, json);
        } else {
            if (i > 0)
                putchar('\n');
            locate_print(args->files.all[i], json);
        }
        json_decref(json);
    }
    if (!args->json)
        rc = cli_finish(cli);
    else if (args->files.n > 1)
        rc = cli_print_json(cli, json_incref(all));
    else if (json_array_size(all) == 1)
        rc = cli_print_json(cli, json_incref(json_array_get(all, 0)));
    else
        rc = CLI_DONE;
    json_decref(all);
    return status != CLI_DONE ? status : rc;
}

int cmd_locate(struct cli *cli, int argc, char **argv)
{
    static const struct args_option options[] = {
        { "json", 'j', NULL, "print JSON: an object, for several files a list of them",
          ARGS_FLAG(struct locate_args, json) },
        { NULL, 0, "FILE...", NULL, ARGS_LIST(struct locate_args, files) },
        { 0 },
    };
    static const struct args_syntax syntax = {
        .options = options,
        .doc =
            "Show where files lie: layout, and for each storage of the distribution "
            "which "
            "projections it holds, how large they are and whether it can be reached now. "
            "FILE is a path below a mount."
    };
    struct locate_args args = { 0 };

    args_parse(&syntax, argc, argv, &args);
    return locate_all(cli, &args);
}
