/*
 * cmd_meta_dump.c - `rozo meta dump`: a copy of all metadata in a file.
 *
 * Keeps:  FILE is a whole dump, on stable storage, or what it was before.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "deploy/cli/text_table.h"
#include "deploy/client/meta_dump.h"
#include "deploy/client/target_options.h"
#include "deploy/verbs/verbs.h"

struct dump_args {
    struct target_options conn;
    bool json;
    unsigned rate_mib; /* 0: no limit */
    const char *path;
};

/* Where the dump goes. */
struct dump_target {
    const char *path; /* "-": standard output */
    char part[PATH_MAX];
    int fd;
};

static int target_write(void *arg, const void *bytes, size_t len, struct err *err)
{
    const struct dump_target *t = arg;
    const uint8_t *p = bytes;

    while (len > 0) {
        ssize_t n = write(t->fd, p, len);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set(err, -errno, "write %s: %s", t->part, strerror(errno));
        p += n;
        len -= (size_t)n;
    }
    return 0;
}

static int target_open(struct dump_target *t, const char *path, struct err *err)
{
    t->path = path;
    if (strcmp(path, "-") == 0) {
        snprintf(t->part, sizeof(t->part), "standard output");
        t->fd = STDOUT_FILENO;
        return isatty(t->fd) ? err_set(err, -EINVAL, "standard output is a terminal") : 0;
    }
    if (snprintf(t->part, sizeof(t->part), "%s.part", path) >= (int)sizeof(t->part))
        return err_set(err, -ENAMETOOLONG, "%s: the name is too long", path);
    t->fd = open(t->part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    return t->fd >= 0 ? 0 : err_set(err, -errno, "open %s: %s", t->part, strerror(errno));
}

/* Makes the name of a file stable. */
static int folder_sync(const char *path)
{
    char folder[PATH_MAX];
    char *slash;
    int fd, rc;

    snprintf(folder, sizeof(folder), "%s", path);
    slash = strrchr(folder, '/');
    if (slash == NULL)
        snprintf(folder, sizeof(folder), ".");
    else
        slash[slash == folder] = '\0';
    fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    rc = fsync(fd) == 0 ? 0 : -errno;
    close(fd);
    return rc;
}

/* Ends the file: gives it its name after rc 0, removes it otherwise. Returns rc. */
static int target_close(struct dump_target *t, int rc, struct err *err)
{
    if (t->fd < 0 || t->fd == STDOUT_FILENO)
        return rc;
    if (rc == 0 && fsync(t->fd) != 0)
        rc = err_set(err, -errno, "sync %s: %s", t->part, strerror(errno));
    close(t->fd);
    if (rc == 0 && rename(t->part, t->path) != 0)
        rc = err_set(err, -errno, "rename %s: %s", t->part, strerror(errno));
    if (rc != 0) {
        unlink(t->part);
        return rc;
    }
    rc = folder_sync(t->path);
    return rc == 0
               ? 0
               : err_set(err, rc, "sync the folder of %s: %s", t->path, error_text(rc));
}

static int dump(struct dump_args *args, struct meta_dump *d, struct progress *progress,
                struct err *err)
{
    struct dump_target target = { .fd = -1 };
    int rc = target_open(&target, args->path, err);

    if (rc == 0) {
        d->client->progress = progress;
        d->rate = (uint64_t)args->rate_mib << 20;
        d->write = target_write;
        d->arg = &target;
        rc = meta_dump_fetch(d, err);
    }
    return target_close(&target, rc, err);
}

static int result_print(struct cli *cli, const struct meta_dump *d, const char *path)
{
    char bytes[HUMAN_BYTES_TEXT];

    printf("%s has all metadata: %llu keys, %s, from the exportd at %s", path,
           (unsigned long long)d->keys, human_bytes(bytes, d->bytes), d->source->address);
    if (d->entry != 0)
        printf(", up to entry %llu", (unsigned long long)d->entry);
    printf("\n");
    return cli_finish(cli);
}

static json_t *result_json(const struct meta_dump *d, const char *path)
{
    return json_pack("{s:o, s:s, s:I, s:I, s:o}", "file", cli_json_path(path), "address",
                     d->source->address, "bytes", (json_int_t)d->bytes, "keys",
                     (json_int_t)d->keys, "entry",
                     d->entry == 0 ? json_null() : json_integer((json_int_t)d->entry));
}

int cmd_meta_dump(struct cli *cli, int argc, char **argv)
{
    static const struct args_option options[] = {
        { "json", 'j', NULL, "print JSON", ARGS_FLAG(struct dump_args, json) },
        { "rate", 'r', "MIB", "copy at most so many MiB a second",
          ARGS_NUMBER(struct dump_args, rate_mib, 1, 100000) },
        { NULL, 0, "FILE", NULL, ARGS_TEXT(struct dump_args, path) },
        { 0 },
    };
    static const struct args_syntax syntax = {
        .options = options,
        .doc = "Write a copy of all metadata to FILE (-: standard output), exact as of "
               "one moment after the call, while the cluster is in use. Of a quorum a "
               "member that does not lead gives it. `exportd --load` makes a data "
               "directory from it. The file has names, attributes, keys of sessions and "
               "data of small files: keep it as secret as they are.",
        .children = target_children
    };
    struct dump_args args = { .path = NULL };
    struct progress progress = { 0 };
    struct meta_client *c = NULL;
    struct meta_dump d = { 0 };
    struct err err = { 0 };
    int rc;

    args_parse(&syntax, argc, argv, &args);
    if (args.json && strcmp(args.path, "-") == 0)
        return cli_usage(cli, "--json: the dump itself goes to standard output");
    rc = target_resolve(&args.conn, false, &err);
    if (rc == 0)
        rc = meta_client_open(args.conn.exportd, args.conn.key, &c, &err);
    d.client = c;
    if (rc == 0)
        rc = dump(&args, &d, &progress, &err);
    progress_end(&progress);
    if (rc != 0)
        rc = cli_fail(cli, "%s", err.text);
    else if (args.json)
        rc = cli_print_json(cli, result_json(&d, args.path));
    else if (strcmp(args.path, "-") != 0)
        rc = result_print(cli, &d, args.path);
    meta_client_close(c);
    return rc;
}
