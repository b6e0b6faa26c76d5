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
#include <sys/stat.h>
#include <unistd.h>

#include "deploy/cli/text_table.h"
#include "deploy/client/meta_dump.h"
#include "deploy/verbs/meta_verb.h"
#include "deploy/verbs/verbs.h"

/* Arguments and result. */
struct dump_args {
    struct meta_verb verb; /* must be the first member */
    unsigned rate_mib;     /* 0: no limit */
    const char *path;
    struct meta_dump dump;
};

static struct dump_args *args_of(struct meta_verb *v)
{
    return (struct dump_args *)v;
}

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
    struct stat st;

    t->path = path;
    if (strcmp(path, "-") == 0) {
        snprintf(t->part, sizeof(t->part), "standard output");
        t->fd = STDOUT_FILENO;
        return isatty(t->fd) ? err_set(err, -EINVAL, "standard output is a terminal") : 0;
    }
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return err_set(err, -EEXIST,
                       "%s is there and no file: to write to it, send standard output "
                       "there (-)",
                       path);
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

static void check(struct argp_state *state, void *to)
{
    const struct dump_args *args = to;

    if (args->verb.json && strcmp(args->path, "-") == 0)
        argp_error(state, "--json: the dump itself goes to standard output");
}

static int dump(struct meta_verb *v, struct err *err)
{
    struct dump_args *args = args_of(v);
    struct dump_target target = { .fd = -1 };
    int rc = target_open(&target, args->path, err);

    if (rc == 0) {
        args->dump = (struct meta_dump){ .client = v->client,
                                         .rate = (uint64_t)args->rate_mib << 20,
                                         .write = target_write,
                                         .arg = &target };
        rc = meta_dump_fetch(&args->dump, err);
    }
    return target_close(&target, rc, err);
}

static void result_print(struct meta_verb *v)
{
    const struct meta_dump *d = &args_of(v)->dump;
    char bytes[HUMAN_BYTES_TEXT];

    if (strcmp(args_of(v)->path, "-") == 0)
        return;
    printf("%s has all metadata: %llu keys, %s, from the exportd at %s", args_of(v)->path,
           (unsigned long long)d->keys, human_bytes(bytes, d->bytes), d->source->address);
    if (d->entry != 0)
        printf(", up to entry %llu", (unsigned long long)d->entry);
    printf("\n");
}

static json_t *result_json(struct meta_verb *v)
{
    const struct meta_dump *d = &args_of(v)->dump;

    return json_pack("{s:o, s:s, s:I, s:I, s:o}", "file", cli_json_path(args_of(v)->path),
                     "address", d->source->address, "bytes", (json_int_t)d->bytes, "keys",
                     (json_int_t)d->keys, "entry",
                     d->entry == 0 ? json_null() : json_integer((json_int_t)d->entry));
}

int cmd_meta_dump(struct cli *cli, int argc, char **argv)
{
    static const struct args_option options[] = {
        META_OPTION_JSON,
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
        .children = target_children,
        .check = check
    };
    struct dump_args args = {
        .verb = { .act = dump, .to_json = result_json, .print = result_print }
    };

    return meta_verb_run(cli, argc, argv, &syntax, &args.verb);
}
