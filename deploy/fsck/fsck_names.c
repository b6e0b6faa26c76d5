/*
 * fsck_names.c - collects the faults of exportd's names, and prints them by path.
 *
 * In:     AD_NAMES of each export, a few keys a call; AD_INODES for the paths of
 *         directories with faults.
 * Out:    lines and JSON. exportd repairs in the call that finds the fault.
 * Keeps:  nothing that the answers contain is believed to fit.
 */
#include "deploy/fsck/fsck_names.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/wire/record.h"
#include "deploy/cli/cli.h"
#include "deploy/cli/interrupt.h"

enum {
    NAMES_A_CALL = 512,
    PATHS_A_CALL = 1024,
    CURSOR_BYTES_MAX = 1024,
    ROOT_INO = 1,
};

/* Texts of a fault, for people and programs. */
struct kind_text {
    const char *word;   /* in JSON */
    const char *fault;  /* after the path */
    const char *repair; /* effect of --repair; NULL: none */
};

static const struct kind_text kinds[] = {
    [ROZO__AD_NAMES_RESP__KIND__NAME_CORRUPT] = { "name_corrupt",
                                                  "the record of this name is corrupt",
                                                  NULL },
    [ROZO__AD_NAMES_RESP__KIND__NAME_OF_NOTHING] = { "name_of_nothing",
                                                     "its inode is lost", NULL },
    [ROZO__AD_NAMES_RESP__KIND__NAME_OF_OTHER] = { "name_of_other",
                                                   "its inode is of another type, or has "
                                                   "no names",
                                                   NULL },
    [ROZO__AD_NAMES_RESP__KIND__NAME_OUTSIDE] = { "name_outside",
                                                  "what it lies in is no directory",
                                                  NULL },
    [ROZO__AD_NAMES_RESP__KIND__DIR_ELSEWHERE] = { "dir_elsewhere",
                                                   "this directory says that it lies in "
                                                   "another one",
                                                   NULL },
    [ROZO__AD_NAMES_RESP__KIND__NAME_UNLISTED] = { "name_unlisted",
                                                   "listings of its directory lack it",
                                                   "puts it there" },
    [ROZO__AD_NAMES_RESP__KIND__LISTED_OTHER] = { "listed_other",
                                                  "listings of its directory have "
                                                  "another name or inode in its place",
                                                  NULL },
    [ROZO__AD_NAMES_RESP__KIND__LISTED_NAMELESS] = { "listed_nameless",
                                                     "listings of its directory have it, "
                                                     "but it cannot be opened",
                                                     NULL },
    [ROZO__AD_NAMES_RESP__KIND__NAME_UNFOLDED] = { "name_unfolded",
                                                   "the index of folded names lacks it",
                                                   "puts it there" },
    [ROZO__AD_NAMES_RESP__KIND__FOLDED_NAMELESS] = { "folded_nameless",
                                                     "the index of folded names has an "
                                                     "entry without a name",
                                                     "removes that" },
    [ROZO__AD_NAMES_RESP__KIND__FOLDED_OTHER] = { "folded_other",
                                                  "the index of folded names finds it by "
                                                  "another name",
                                                  "removes that entry" },
};

void fsck_names_init(struct fsck_names *f)
{
    memset(f, 0, sizeof(*f));
}

void fsck_names_free(struct fsck_names *f)
{
    for (size_t i = 0; i < f->n; i++) {
        free(f->faults[i].name);
        free(f->faults[i].dir_path);
    }
    free(f->faults);
}

/* ---- faults ---- */

static int name_fault_add(struct fsck_names *f, uint32_t export_id,
                          const Rozo__AdNamesResp__Fault *msg)
{
    struct fsck_name_fault *list = f->faults, *fault;

    if ((unsigned)msg->kind >= sizeof(kinds) / sizeof(kinds[0]) ||
        kinds[msg->kind].word == NULL)
        return -EBADMSG;
    if (f->n == f->max) {
        list = realloc(list, (2 * f->max + 64) * sizeof(*list));
        if (list == NULL)
            return -ENOMEM;
        f->faults = list;
        f->max = 2 * f->max + 64;
    }
    fault = &f->faults[f->n];
    *fault = (struct fsck_name_fault){ .export_id = export_id,
                                       .kind = msg->kind,
                                       .dir = msg->dir,
                                       .ino = msg->ino,
                                       .repaired = msg->repaired };
    fault->name = msg->name.len == 0
                      ? strdup("")
                      : strndup((const char *)msg->name.data, msg->name.len);
    if (fault->name == NULL)
        return -ENOMEM;
    f->n++;
    return 0;
}

/* Takes an answer, and its cursor for the next question. */
static int names_take(struct fsck_names *f, uint32_t export_id,
                      const Rozo__AdNamesResp *answer, uint8_t cursor[CURSOR_BYTES_MAX],
                      Rozo__AdNamesReq *question)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < answer->n_faults; i++)
        rc = name_fault_add(f, export_id, answer->faults[i]);
    if (rc != 0)
        return rc;
    f->n_names += answer->n_names;
    if (answer->cursor.len > CURSOR_BYTES_MAX ||
        (answer->cursor.len > 0 && answer->cursor.len == question->cursor.len &&
         memcmp(answer->cursor.data, cursor, answer->cursor.len) == 0))
        return -EBADMSG;
    if (answer->cursor.len > 0)
        memcpy(cursor, answer->cursor.data, answer->cursor.len);
    question->cursor = (ProtobufCBinaryData){ answer->cursor.len, cursor };
    return 0;
}

int fsck_names_check(struct fsck_names *f, struct admin *a, const Rozo__Export *e,
                     bool repair, struct progress *progress, struct err *err)
{
    Rozo__AdNamesReq question = ROZO__AD_NAMES_REQ__INIT;
    uint8_t cursor[CURSOR_BYTES_MAX];
    int rc;

    question.export_id = e->id;
    question.max_keys = NAMES_A_CALL;
    question.repair = repair;
    do {
        Rozo__AdNamesResp *answer;
        struct err why = { 0 };
        char text[64];

        snprintf(text, sizeof(text), "names: %llu", (unsigned long long)f->n_names);
        progress_at(progress, 0, text);
        rc = admin_names(a, &question, progress, &answer, &why);
        if (rc == -ENOSYS) {
            f->unchecked = true;
            return 0;
        }
        if (rc != 0)
            return err_set(err, rc, "%s", why.text);
        rc = names_take(f, e->id, answer, cursor, &question);
        rozo__ad_names_resp__free_unpacked(answer, NULL);
        if (rc != 0)
            return err_set(err, rc, "the names of export %.64s: %s", e->name,
                           rc == -ENOMEM ? "out of memory"
                                         : "exportd's answer is invalid");
        if (interrupt_came())
            return err_set(err, -EINTR, "interrupted");
    } while (question.cursor.len > 0);
    return 0;
}

bool fsck_names_lead_to(const struct fsck_names *f, uint32_t export_id, uint64_t ino)
{
    for (size_t i = 0; i < f->n; i++) {
        const struct fsck_name_fault *fault = &f->faults[i];

        if (fault->ino == ino && fault->export_id == export_id &&
            fault->kind == ROZO__AD_NAMES_RESP__KIND__NAME_OF_NOTHING)
            return true;
    }
    return false;
}

/* ---- paths ---- */

static const char *path_of(const Rozo__AdInodesResp *answer, uint64_t ino)
{
    struct file_id id;

    for (size_t i = 0; i < answer->n_inodes; i++) {
        const Rozo__AdInodesResp__Inode *in = answer->inodes[i];

        if (in->ref == NULL || in->ref->file_id.len != FILE_ID_BYTES)
            continue;
        file_id_get(in->ref->file_id.data, &id);
        if (id.ino == ino && in->path[0] != '\0')
            return in->path;
    }
    return ino == ROOT_INO ? "" : NULL;
}

/* Finds the paths for faults of one export from *from on, up to PATHS_A_CALL. */
static int paths_ask(struct fsck_names *f, struct admin *a, size_t *from, size_t end,
                     struct progress *progress, struct err *err)
{
    Rozo__AdInodesReq question = ROZO__AD_INODES_REQ__INIT;
    struct fsck_name_fault *first = &f->faults[*from];
    uint64_t dirs[PATHS_A_CALL];
    Rozo__AdInodesResp *answer;
    size_t n = 0;
    int rc;

    for (; n < PATHS_A_CALL && *from + n < end && first[n].export_id == first->export_id;
         n++)
        dirs[n] = first[n].dir;
    question.export_id = first->export_id;
    question.only = dirs;
    question.n_only = n;
    question.with_paths = question.any_type = true;
    rc = admin_inodes(a, &question, progress, &answer, err);
    if (rc != 0)
        return rc;
    for (size_t i = 0; i < n; i++) {
        const char *path = path_of(answer, first[i].dir);

        first[i].dir_path = path == NULL ? NULL : strdup(path);
    }
    rozo__ad_inodes_resp__free_unpacked(answer, NULL);
    *from += n;
    return interrupt_came() ? err_set(err, -EINTR, "interrupted") : 0;
}

int fsck_names_find_paths(struct fsck_names *f, struct admin *a, size_t n_max,
                          struct progress *progress, struct err *err)
{
    size_t end = f->n < n_max ? f->n : n_max;
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < end;)
        rc = paths_ask(f, a, &i, end, progress, err);
    return rc;
}

/* ---- output ---- */

void fsck_path_text(const char *path, char *out, size_t size)
{
    size_t len = 0;

    for (; *path != '\0' && len + 5 < size; path++) {
        unsigned char c = (unsigned char)*path;

        if (c < 32 || c == 127 || c == '\\')
            len += (size_t)snprintf(out + len, size - len, "\\x%02x", c);
        else
            out[len++] = (char)c;
    }
    out[len] = '\0';
}

static const char *name_of_export(const Rozo__AdStatusResp *status, uint32_t id)
{
    for (size_t i = 0; i < status->n_exports; i++) {
        if (status->exports[i]->id == id)
            return status->exports[i]->name;
    }
    return "?";
}

/* Writes the path of a fault: of its name, or of the directory if that is unknown. */
static void fault_path(const struct fsck_name_fault *fault, char *out, size_t size)
{
    const char *dir = fault->dir_path, *name = fault->name;

    if (dir == NULL)
        snprintf(out, size, "directory %llu%s%s", (unsigned long long)fault->dir,
                 name[0] == '\0' ? "" : ": ", name);
    else if (dir[0] == '\0')
        snprintf(out, size, "%s", name[0] == '\0' ? "/" : name);
    else
        snprintf(out, size, "%s%s%s", dir, name[0] == '\0' ? "" : "/", name);
}

static void fault_print(const struct fsck_name_fault *fault, const char *export,
                        bool repair)
{
    const struct kind_text *kind = &kinds[fault->kind];
    char path[4600], text[4700];

    fault_path(fault, path, sizeof(path));
    fsck_path_text(path, text, sizeof(text));
    printf("%.64s: %s: %s", export, text, kind->fault);
    if (fault->ino != 0)
        printf(" (inode %llu)", (unsigned long long)fault->ino);
    if (fault->repaired)
        printf("; repaired\n");
    else if (kind->repair != NULL && !repair)
        printf("; --repair %s\n", kind->repair);
    else
        printf("; not repaired by fsck\n");
}

void fsck_names_print(const struct fsck_names *f, const Rozo__AdStatusResp *status,
                      bool repair)
{
    size_t n_open = 0;

    for (size_t i = 0; i < f->n; i++) {
        const struct fsck_name_fault *fault = &f->faults[i];

        if (i < FSCK_NAMES_PRINTED_MAX)
            fault_print(fault, name_of_export(status, fault->export_id), repair);
        n_open += !fault->repaired && (repair || kinds[fault->kind].repair == NULL);
    }
    if (f->n > FSCK_NAMES_PRINTED_MAX)
        printf("... and %zu names more; --json lists them all\n",
               f->n - FSCK_NAMES_PRINTED_MAX);
    if (n_open > 0)
        printf(
            "%zu fault%s of names cannot be repaired: exportd's data are damaged. Keep a "
            "copy (rozo meta dump), then see OPERATIONS.md, \"Names against "
            "inodes\"\n",
            n_open, n_open == 1 ? "" : "s");
    if (f->unchecked)
        printf("names: not looked at: exportd is of a build before this check\n");
    else
        printf("%llu names: %zu fault%s\n", (unsigned long long)f->n_names, f->n,
               f->n == 1 ? "" : "s");
}

json_t *fsck_names_json(const struct fsck_names *f, const Rozo__AdStatusResp *status)
{
    json_t *list = json_array();

    for (size_t i = 0; i < f->n; i++) {
        const struct fsck_name_fault *fault = &f->faults[i];

        json_array_append_new(
            list,
            json_pack("{s:s, s:s, s:I, s:o, s:o, s:I, s:b}", "export",
                      name_of_export(status, fault->export_id), "kind",
                      kinds[fault->kind].word, "dir", (json_int_t)fault->dir, "dir_path",
                      fault->dir_path == NULL ? json_null()
                                              : cli_json_path(fault->dir_path),
                      "name", cli_json_path(fault->name), "ino", (json_int_t)fault->ino,
                      "repaired", (int)fault->repaired));
    }
    return list;
}
