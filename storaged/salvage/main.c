/*
 * main.c - rozo-salvage: list, verify and restore files from data directories alone.
 *
 * In:     directories and options; `rozo salvage` runs it.
 * Out:    DIR/EXPORT/INODE, a table or JSON on stdout, a line of progress on a terminal.
 *         Exit status 0: all files are whole, 1: something is missing, 2: wrong usage.
 * Keeps:  a restored file gets its name only when all that can be restored is in it;
 *         before that it is NAME.part.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/units.h"
#include "common/config/args.h"
#include "storaged/salvage/salvage.h"

enum {
    EXIT_WHOLE = 0,
    EXIT_MISSING = 1,
    DRAW_MS = 200,
    NAME_TEXT_MAX = 32,
    PART_TEXT_MAX = NAME_TEXT_MAX + 8,
};

struct salvage_args {
    const char *to;
    bool verify, list, json;
    unsigned export_id; /* 0: all */
    struct args_list dirs;
};

struct work {
    const struct salvage_args *o;
    struct salvage s;
    int to_fd;  /* -1: none */
    int out_fd; /* output, current file */
    bool is_terminal, is_drawn;
    uint64_t drawn_ms;
    size_t n_done, n_all; /* files */
    uint64_t n_bytes;     /* bytes read */
    size_t n_whole, n_missing;
    uint64_t n_written; /* bytes */
};

const char *argp_program_version = "rozo-salvage " ROZO_VERSION;

/* ---- a line of progress ---- */

static uint64_t now_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return ns_to_ms(timespec_to_ns(ts));
}

static void progress_wipe(struct work *w)
{
    if (w->is_drawn)
        fputs("\r\033[K", stderr);
    w->is_drawn = false;
}

static void on_tick(void *arg, uint64_t n_bytes)
{
    enum { BAR = 30 };
    struct work *w = arg;
    uint64_t now;
    unsigned full;
    char bar[BAR + 1];

    assert(w->n_done <= w->n_all);
    w->n_bytes += n_bytes;
    if (!w->is_terminal || (now = now_ms()) - w->drawn_ms < DRAW_MS)
        return;
    w->drawn_ms = now;
    w->is_drawn = true;
    full = w->n_all == 0 ? 0 : (unsigned)(w->n_done * BAR / w->n_all);
    memset(bar, '.', BAR);
    memset(bar, '#', full);
    bar[BAR] = '\0';
    fprintf(stderr, "\r\033[K[%s] %zu of %zu files, %" PRIu64 " MiB read", bar, w->n_done,
            w->n_all, w->n_bytes >> 20);
}

static void complain(struct work *w, const char *what, const char *why)
{
    progress_wipe(w);
    fprintf(stderr, "rozo salvage: %s%s%s\n", what, why[0] == '\0' ? "" : ": ", why);
}

static void on_warning(void *arg, const char *text)
{
    complain(arg, text, "");
}

/* ---- restoring ---- */

static int on_bytes(void *arg, uint64_t offset, const uint8_t *bytes, size_t len)
{
    struct work *w = arg;

    w->n_written += len;
    while (len > 0 && w->out_fd >= 0) {
        ssize_t n = pwrite(w->out_fd, bytes, len, (off_t)offset);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n == 0 ? -EIO : -errno;
        bytes += n;
        offset += (uint64_t)n;
        len -= (size_t)n;
    }
    return 0;
}

static void file_name(const struct file_id *id, char name[NAME_TEXT_MAX])
{
    snprintf(name, NAME_TEXT_MAX, "%08" PRIx32 "/%016" PRIx64, id->export_id, id->ino);
}

/* Opens NAME.part. Deletes what an interrupted run left there. */
static int out_open(struct work *w, const char *name)
{
    char dir[NAME_TEXT_MAX], part[PART_TEXT_MAX];
    struct stat st;

    assert(w->to_fd >= 0 && w->out_fd < 0);
    snprintf(dir, sizeof(dir), "%.8s", name);
    snprintf(part, sizeof(part), "%s.part", name);
    if (mkdirat(w->to_fd, dir, 0700) != 0 && errno != EEXIST)
        return -errno;
    if (fstatat(w->to_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0)
        return -EEXIST;
    unlinkat(w->to_fd, part, 0);
    w->out_fd = openat(w->to_fd, part,
                       O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    return w->out_fd < 0 ? -errno : 0;
}

static int out_rename(struct work *w, const char *part, const char *name)
{
    if (renameat2(w->to_fd, part, w->to_fd, name, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno != EINVAL || /* file systems without RENAME_NOREPLACE */
        renameat(w->to_fd, part, w->to_fd, name) != 0)
        return -errno;
    return 0;
}

/* Closes the file, and gives it its name unless nothing of it could be restored. */
static int out_close(struct work *w, const char *name, uint64_t size, bool keep)
{
    char part[PART_TEXT_MAX];
    int rc;

    assert(w->out_fd >= 0);
    rc = ftruncate(w->out_fd, (off_t)size) == 0 ? 0 : -errno;
    if (close(w->out_fd) != 0 && rc == 0)
        rc = -errno;
    w->out_fd = -1;
    snprintf(part, sizeof(part), "%s.part", name);
    if (rc == 0 && keep)
        rc = out_rename(w, part, name);
    if (rc != 0 || !keep)
        unlinkat(w->to_fd, part, 0);
    return rc;
}

/* ---- reporting ---- */

static void projections_text(uint32_t projections, char *out, size_t size)
{
    size_t at = 0;

    out[0] = '\0';
    for (unsigned p = 0; p < 32 && at + 4 < size; p++) {
        if ((projections >> p & 1) != 0)
            at += (size_t)snprintf(out + at, size - at, "%s%u", at == 0 ? "" : ",", p);
    }
}

static void state_text(const struct salvage_report *r, char *out, size_t size)
{
    size_t at = 0;

    if (r->codec == NULL) {
        snprintf(out, size, "no header page of the file is readable");
        return;
    }
    out[0] = '\0';
    if (r->n_unreadable > 0)
        at += (size_t)snprintf(out, size, "%" PRIu64 " blocks unreadable, first %" PRIu64,
                               r->n_unreadable, r->ranges[0].first);
    if (r->n_outdated > 0 && at < size)
        at += (size_t)snprintf(
            out + at, size - at,
            "%s%" PRIu64 " blocks may have newer versions in missing or damaged parts",
            at == 0 ? "" : "; ", r->n_outdated);
    if (r->is_unsure && at < size)
        at += (size_t)snprintf(out + at, size - at,
                               "%stoo few storages of the file: there may be more of it",
                               at == 0 ? "" : "; ");
    if (at == 0)
        at = (size_t)snprintf(out, size, "whole");
    if (r->n_damaged > 0 && at < size)
        at += (size_t)snprintf(out + at, size - at,
                               "; %" PRIu64 " blocks damaged in places", r->n_damaged);
    if (r->n_headers_damaged > 0 && at < size)
        at += (size_t)snprintf(out + at, size - at, "; %u of %u projection files damaged",
                               r->n_headers_damaged, r->n_files);
    if (r->n_older > r->n_outdated && at < size)
        snprintf(out + at, size - at, "; %" PRIu64 " torn overwrites undone",
                 r->n_older - r->n_outdated);
}

static void tell_json(struct work *w, const char *name, const struct file_id *id,
                      const struct salvage_report *r, int rc, bool is_written)
{
    const char *codec = r->codec == NULL ? NULL : codec_kind_name(r->ref.codec);
    bool is_first = true;

    printf("%s\n    {\"export\": %" PRIu32 ", \"inode\": \"%016" PRIx64
           "\", \"generation\": %" PRIu32 ", \"whole\": %s, \"size\": %" PRIu64 ",\n",
           w->n_done == 0 ? "" : ",", id->export_id, id->ino, id->generation,
           rc == 0 && salvage_is_whole(r) ? "true" : "false", r->size);
    printf("     \"codec\": %s%s%s, \"layout\": %u, \"block_bytes\": %" PRIu32
           ", \"needs\": %u, \"projections\": [",
           codec == NULL ? "" : "\"", codec == NULL ? "null" : codec,
           codec == NULL ? "" : "\"", r->ref.layout, r->ref.block_bytes,
           r->codec == NULL ? 0 : codec_k(r->codec));
    for (unsigned p = 0; p < 32; p++) {
        if ((r->projections >> p & 1) == 0)
            continue;
        printf("%s%u", is_first ? "" : ", ", p);
        is_first = false;
    }
    printf("],\n     \"blocks\": {\"data\": %" PRIu64 ", \"damaged\": %" PRIu64
           ", \"unreadable\": %" PRIu64 ", \"older\": %" PRIu64 ", \"outdated\": %" PRIu64
           "},\n     \"projection_files\": %u, \"projection_files_damaged\": %u, "
           "\"storages_missing\": %u, \"unsure\": %s,\n     \"unreadable\": [",
           r->n_data, r->n_damaged, r->n_unreadable, r->n_older, r->n_outdated,
           r->n_files, r->n_headers_damaged, r->n_absent_storages,
           r->is_unsure ? "true" : "false");
    for (unsigned i = 0; i < r->n_ranges; i++)
        printf("%s[%" PRIu64 ", %" PRIu64 "]", i == 0 ? "" : ", ", r->ranges[i].first,
               r->ranges[i].end);
    printf("], \"file\": %s%s%s, \"error\": %s%s%s}", is_written ? "\"" : "",
           is_written ? name : "null", is_written ? "\"" : "", rc != 0 ? "\"" : "",
           rc != 0 ? error_text(rc) : "null", rc != 0 ? "\"" : "");
}

static void tell_text(const char *name, const struct salvage_report *r)
{
    char projections[80], state[256];

    projections_text(r->projections, projections, sizeof(projections));
    state_text(r, state, sizeof(state));
    printf("%s  %14" PRIu64 "  %-12s  %s\n", name, r->size, projections, state);
}

/* ---- files ---- */

static void file_do(struct work *w, const struct salvage_file *file)
{
    enum salvage_mode mode = w->o->list ? SALVAGE_LOOK : SALVAGE_READ;
    struct salvage_report r;
    char name[NAME_TEXT_MAX];
    bool is_written = false;
    int rc = 0;

    assert(w->out_fd < 0 && w->n_done < w->n_all);
    file_name(&file->id, name);
    if (w->to_fd >= 0)
        rc = out_open(w, name);
    memset(&r, 0, sizeof(r));
    if (rc == 0)
        rc = salvage_run(&w->s, file, mode, w->to_fd >= 0 ? on_bytes : NULL, on_tick, w,
                         &r);
    if (w->out_fd >= 0) {
        bool keep = rc == 0 && r.codec != NULL;
        int close_rc = out_close(w, name, r.size, keep);

        is_written = keep && close_rc == 0;
        if (rc == 0)
            rc = close_rc;
    }
    progress_wipe(w);
    if (rc != 0)
        complain(w, name, error_text(rc));
    if (rc == 0 && salvage_is_whole(&r))
        w->n_whole++;
    else
        w->n_missing++;
    if (w->o->json)
        tell_json(w, name, &file->id, &r, rc, is_written);
    else if (rc == 0)
        tell_text(name, &r);
    w->n_done++;
}

static bool is_wanted(const struct work *w, const struct salvage_file *file)
{
    return w->o->export_id == 0 || file->id.export_id == w->o->export_id;
}

static int files_do(struct work *w)
{
    struct salvage_file file;
    size_t cursor = 0;

    while (salvage_next(&w->s, &cursor, &file))
        w->n_all += is_wanted(w, &file);
    if (w->o->json)
        printf("{\"files\": [");
    else if (w->n_all > 0)
        printf("%-25s  %14s  %-12s  %s\n", "EXPORT/INODE", "SIZE", "PROJECTIONS",
               "STATE");
    for (cursor = 0; salvage_next(&w->s, &cursor, &file);) {
        if (is_wanted(w, &file))
            file_do(w, &file);
    }
    if (w->o->json)
        printf("],\n \"summary\": {\"files\": %zu, \"whole\": %zu, \"missing\": %zu, "
               "\"bytes\": %" PRIu64 ", \"waiting\": %zu}}\n",
               w->n_all, w->n_whole, w->n_missing, w->n_written, w->s.n_waiting);
    else
        printf("%zu files: %zu whole, %zu with something missing\n", w->n_all, w->n_whole,
               w->n_missing);
    if (w->to_fd >= 0 && syncfs(w->to_fd) != 0) {
        complain(w, w->o->to, strerror(errno));
        w->n_missing++;
    }
    return w->n_missing == 0 ? EXIT_WHOLE : EXIT_MISSING;
}

static int work_run(const struct salvage_args *o)
{
    static struct work w;
    struct err err = { 0 };
    int rc;

    w = (struct work){ .o = o, .to_fd = -1, .out_fd = -1, .is_terminal = isatty(2) };
    w.drawn_ms = now_ms();
    salvage_init(&w.s);
    w.s.warn = on_warning;
    w.s.arg = &w;
    for (unsigned i = 0; i < o->dirs.n; i++) {
        if (salvage_add_dir(&w.s, o->dirs.all[i], &err) != 0) {
            complain(&w, err.text, "");
            return ARGS_WRONG;
        }
    }
    if (o->to != NULL) {
        if (mkdir(o->to, 0700) != 0 && errno != EEXIST) {
            complain(&w, o->to, strerror(errno));
            return ARGS_WRONG;
        }
        w.to_fd = open(o->to, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (w.to_fd < 0) {
            complain(&w, o->to, strerror(errno));
            return ARGS_WRONG;
        }
    }
    rc = salvage_index(&w.s);
    if (rc != 0) {
        complain(&w, "index", error_text(rc));
        return EXIT_MISSING;
    }
    rc = files_do(&w);
    salvage_free(&w.s);
    if (w.to_fd >= 0)
        close(w.to_fd);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        complain(&w, "output", strerror(errno));
        rc = EXIT_MISSING;
    }
    return rc;
}

static void check(struct argp_state *state, void *arg)
{
    struct salvage_args *o = arg;

    if (o->dirs.n > SALVAGE_DIRS_MAX)
        argp_error(state, "more than %d directories", SALVAGE_DIRS_MAX);
    if (o->to != NULL && (o->list || o->verify))
        argp_error(state, "--to restores; --list and --verify write nothing");
    if (o->to == NULL && !o->verify)
        o->list = true;
}

int main(int argc, char **argv)
{
    static const struct args_option options[] = {
        { "list", 0, NULL, "list the files (the default); does not check their data",
          ARGS_FLAG(struct salvage_args, list) },
        { "verify", 0, NULL, "read and check every block, write nothing",
          ARGS_FLAG(struct salvage_args, verify) },
        { "to", 0, "DIR", "restore to DIR/EXPORT/INODE, both in hex",
          ARGS_TEXT(struct salvage_args, to) },
        { "export", 0, "ID", "only files of this export",
          ARGS_NUMBER(struct salvage_args, export_id, 1, UINT32_MAX) },
        { "json", 0, NULL, "print JSON", ARGS_FLAG(struct salvage_args, json) },
        { NULL, 0, "DATA-DIR...", "name the data directories of at least k storages",
          ARGS_LIST(struct salvage_args, dirs) },
        { 0 },
    };
    static const struct args_syntax syntax = {
        .options = options,
        .doc =
            "List, verify or restore files from the data directories of storages alone: "
            "no "
            "daemon, no names. Nothing in the directories is changed; they may be "
            "mounted "
            "read-only.\vA file needs the directories of any k of its storages (2, 4 or "
            "8 in "
            "layouts 0, 1 and 2); data written while some were down may need more. Exit "
            "status: 0 all is whole, 1 something is missing, 2 wrong usage.",
        .check = check,
    };
    static struct salvage_args o;

    if (strcmp(program_invocation_short_name, "rozo-salvage") == 0) {
        static char name[] = "rozo salvage";

        argv[0] = name;
    }
    args_parse(&syntax, argc, argv, &o);
    return work_run(&o);
}
