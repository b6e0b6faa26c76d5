/*
 * cmd_fsck.c - `rozo fsck`: checks that the files exportd knows and those that storages
 * hold agree, and exportd's names with its inodes.
 *
 * In:     AD_NAMES (fsck_names.c) and AD_INODES of all exports, then ST_LIST of all
 *         storages that are up; fsck_join.c compares.
 * Out:    all faults, by path; with --repair, requests to heal them.
 * Keeps:  reads only, unless --repair is given. Every fault is checked with exportd again
 *         before it counts, since files are created and removed meanwhile. Only files
 *         that exportd confirms to have given out and removed are deleted.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "deploy/cli/interrupt.h"
#include "deploy/cli/text_table.h"
#include "deploy/client/exportd_client.h"
#include "deploy/client/storage_clients.h"
#include "deploy/fsck/fsck_join.h"
#include "deploy/fsck/fsck_names.h"
#include "deploy/verbs/verbs.h"

enum {
    FSCK_FINDINGS = 4, /* exit status, as of other fscks: faults were found and remain */
    INODES_A_CALL = 4096,
    FILES_A_CALL = 1024,
    ONLY_MAX = 1024,
    UNKNOWN_MAX = 100, /* printed storages that exportd does not know */
    PRINTED_MAX = FSCK_NAMES_PRINTED_MAX, /* findings of a kind; --json has all */
    LIST_DEADLINE_MS = 20000,
    ORDER_DEADLINE_MS = 20000,
    PATHS_DEADLINE_MS = 300000,
};

struct fsck_args {
    struct target_options conn;
    bool json, repair, repair_unknown;
};

/* A storage being listed. */
struct fsck_storage {
    Rozo__StListReq question;
    uint8_t after[FILE_ID_BYTES];
    bool has_after;
    bool listed;       /* has listed everything */
    bool failed;       /* will not */
    char message[200]; /* the reason */
    size_t at;         /* repair: where the search for its next request begins */
};

/* A file with a fault; it counts once exportd has confirmed that the file still
 * exists. */
struct fsck_finding {
    size_t file; /* index in join.files */
    struct fsck_lack lack;
    char *path;    /* owned; NULL: none */
    bool believed; /* confirmed by exportd */
};

/* One run. */
struct fsck_run {
    const struct fsck_args *args;
    struct exportd_client asked;
    struct storage_clients *fleet;
    struct fsck_storage *storages; /* owned; in the order of fleet->members */
    struct fsck join;
    struct fsck_names names;
    struct fsck_finding *findings; /* owned */
    size_t n_findings, findings_max;
    size_t n_removed, n_ordered, n_refused; /* repair */
    struct progress progress;
};

static int interrupted(struct err *err)
{
    return interrupt_came() ? err_set(err, -EINTR, "interrupted") : 0;
}

static void at(struct fsck_run *r, unsigned n_done, const char *what, uint64_t n)
{
    char text[64];

    snprintf(text, sizeof(text), "%s: %llu", what, (unsigned long long)n);
    progress_at(&r->progress, n_done, text);
}

/* ---- files of exportd ---- */

static int export_collect(struct fsck_run *r, const Rozo__Export *e, unsigned n_done,
                          struct err *err)
{
    Rozo__AdInodesReq question = ROZO__AD_INODES_REQ__INIT;
    bool end = false;
    int rc = 0;

    question.export_id = e->id;
    question.max_inodes = INODES_A_CALL;
    while (rc == 0 && !end) {
        Rozo__AdInodesResp *answer;

        at(r, n_done, "files", r->join.n_files);
        rc = admin_inodes(r->asked.admin, &question, &r->progress, &answer, err);
        if (rc != 0)
            return rc;
        for (size_t i = 0; rc == 0 && i < answer->n_inodes; i++) {
            rc = fsck_add_inode(&r->join, answer->inodes[i]);
            if (rc != 0)
                err_wrap(err, rc, "the files of export %.64s", e->name);
        }
        end = answer->end;
        if (rc == 0 && !end && answer->after <= question.after)
            rc = err_set(err, -EBADMSG,
                         "exportd lists the files of export %.64s for ever", e->name);
        question.after = answer->after;
        rozo__ad_inodes_resp__free_unpacked(answer, NULL);
        if (rc == 0)
            rc = interrupted(err);
    }
    return rc;
}

/* ---- files of storages ---- */

static void storage_fail(struct fsck_storage *s, const char *why)
{
    s->failed = true;
    snprintf(s->message, sizeof(s->message), "%.190s", why);
}

/* Takes one page of a storage's list. */
static int page_take(struct fsck_run *r, struct storage_clients_member *m,
                     struct fsck_storage *s)
{
    const Rozo__StListResp *list = (const Rozo__StListResp *)m->answer;

    if (list == NULL) {
        storage_fail(s, m->ask.message);
        return 0;
    }
    for (size_t i = 0; i < list->n_files; i++) {
        int rc = fsck_add_listed(&r->join, m->st->id, list->files[i]);

        if (rc == -EBADMSG)
            storage_fail(s, "the list is invalid");
        if (rc != 0)
            return rc == -EBADMSG ? 0 : rc;
    }
    s->listed = list->end;
    if (list->end)
        return 0;
    if (list->after.len != FILE_ID_BYTES ||
        (s->has_after && memcmp(s->after, list->after.data, FILE_ID_BYTES) == 0)) {
        storage_fail(s, "its list does not end");
        return 0;
    }
    memcpy(s->after, list->after.data, FILE_ID_BYTES);
    s->has_after = true;
    s->question.after = (ProtobufCBinaryData){ FILE_ID_BYTES, s->after };
    return 0;
}

static int storages_collect(struct fsck_run *r, unsigned n_done, struct err *err)
{
    size_t n_asked = 1;
    int rc = 0;

    for (size_t i = 0; i < r->fleet->n; i++) {
        struct storage_clients_member *m = &r->fleet->members[i];
        struct fsck_storage *s = &r->storages[i];

        rozo__st_list_req__init(&s->question);
        s->question.to_storage = m->st->id;
        s->question.max_files = FILES_A_CALL;
        if (!m->st->up)
            storage_fail(s, m->st->error[0] != '\0' ? m->st->error : "it is down");
    }
    while (rc == 0 && n_asked > 0) {
        n_asked = 0;
        for (size_t i = 0; i < r->fleet->n; i++) {
            struct fsck_storage *s = &r->storages[i];
            bool more = !s->listed && !s->failed;

            r->fleet->members[i].question = more ? &s->question.base : NULL;
            n_asked += more;
        }
        at(r, n_done, "projection files", r->join.n_projections);
        storage_clients_ask(r->fleet, ROZO__OP__ST_LIST, &rozo__st_list_resp__descriptor,
                            LIST_DEADLINE_MS, &r->progress);
        rc = interrupted(err);
        for (size_t i = 0; rc == 0 && i < r->fleet->n; i++) {
            struct storage_clients_member *m = &r->fleet->members[i];

            if (m->asked && page_take(r, m, &r->storages[i]) != 0)
                rc = err_set(err, -ENOMEM, "out of memory");
        }
    }
    storage_clients_clear(r->fleet);
    return rc;
}

/* ---- faults ---- */

static enum fsck_heard storage_heard(void *arg, uint32_t id)
{
    struct fsck_run *r = arg;
    const struct storage_clients_member *m = storage_clients_find(r->fleet, id);

    if (m != NULL && r->storages[m - r->fleet->members].listed)
        return FSCK_LISTED;
    return m != NULL && m->st->lost ? FSCK_GONE : FSCK_UNLISTED;
}

static int finding_add(struct fsck_run *r, size_t file, const struct fsck_lack *lack,
                       struct err *err)
{
    if (r->n_findings == r->findings_max) {
        size_t max = r->findings_max == 0 ? 64 : 2 * r->findings_max;
        struct fsck_finding *list = realloc(r->findings, max * sizeof(*list));

        if (list == NULL)
            return err_set(err, -ENOMEM, "out of memory");
        r->findings = list;
        r->findings_max = max;
    }
    r->findings[r->n_findings++] = (struct fsck_finding){ .file = file, .lack = *lack };
    return 0;
}

static int lacks_find(struct fsck_run *r, struct err *err)
{
    struct fsck_lack lack;
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < r->join.n_files; i++) {
        if (fsck_lacks(&r->join, &r->join.files[i], storage_heard, r, &lack))
            rc = finding_add(r, i, &lack, err);
    }
    return rc;
}

/* Asks exportd again about some inodes of one export. */
static int only_ask(struct fsck_run *r, uint32_t export_id, uint64_t *inos, size_t n,
                    bool paths, Rozo__AdInodesResp **out, struct err *err)
{
    Rozo__AdInodesReq question = ROZO__AD_INODES_REQ__INIT;

    question.export_id = export_id;
    question.only = inos;
    question.n_only = n;
    question.with_paths = paths;
    return admin_inodes(r->asked.admin, &question, &r->progress, out, err);
}

static const Rozo__AdInodesResp__Inode *inode_of(const Rozo__AdInodesResp *answer,
                                                 uint64_t ino, struct file_id *id)
{
    for (size_t i = 0; i < answer->n_inodes; i++) {
        const Rozo__AdInodesResp__Inode *in = answer->inodes[i];

        if (in->ref == NULL || in->ref->file_id.len != FILE_ID_BYTES)
            continue;
        file_id_get(in->ref->file_id.data, id);
        if (id->ino == ino)
            return in;
    }
    return NULL;
}

/* Returns whether exportd still has the file, and has not taken its later distribution
 * since. */
static bool is_still_so(const struct fsck_file *file, const Rozo__AdInodesResp__Inode *in,
                        const struct file_id *id)
{
    return !in->removed && id->generation == file->id.generation &&
           (file->later == 0 || in->ref->dist_generation < file->dist_generation);
}

/* Confirms findings of one export from *from on, at most ONLY_MAX, and gets their paths.
 * exportd has to search all names for a path, so only those that will be printed ask for
 * it. */
static int findings_confirm(struct fsck_run *r, size_t *from, size_t *n_believed,
                            struct err *err)
{
    uint32_t export_id = r->join.files[r->findings[*from].file].id.export_id;
    uint64_t inos[ONLY_MAX];
    Rozo__AdInodesResp *answer;
    size_t n = 0;
    int rc;

    while (n < ONLY_MAX && *from + n < r->n_findings) {
        const struct file_id *id = &r->join.files[r->findings[*from + n].file].id;

        if (id->export_id != export_id)
            break;
        inos[n++] = id->ino;
    }
    rc = only_ask(r, export_id, inos, n, r->args->json || *n_believed < PRINTED_MAX,
                  &answer, err);
    if (rc != 0)
        return rc;
    for (size_t i = 0; i < n; i++) {
        struct fsck_finding *found = &r->findings[*from + i];
        struct file_id id;
        const Rozo__AdInodesResp__Inode *in = inode_of(answer, inos[i], &id);

        found->believed = in != NULL && is_still_so(&r->join.files[found->file], in, &id);
        *n_believed += found->believed;
        if (found->believed && in->path[0] != '\0')
            found->path = strdup(in->path);
    }
    rozo__ad_inodes_resp__free_unpacked(answer, NULL);
    *from += n;
    return interrupted(err);
}

static int by_id(const void *a, const void *b)
{
    return memcmp(&((const struct fsck_stray *)a)->id,
                  &((const struct fsck_stray *)b)->id, sizeof(struct file_id));
}

static bool is_unknown(const Rozo__AdInodesResp *answer, uint64_t ino)
{
    for (size_t i = 0; i < answer->n_unknown; i++) {
        if (answer->unknown[i] == ino)
            return true;
    }
    return false;
}

/* Decides about an ownerless file by exportd's current answer, and by its names: data of
 * an inode that was lost while names lead to it are the last of the file. */
static void stray_judge(const struct fsck_run *r, struct fsck_stray *s,
                        const Rozo__AdInodesResp *answer)
{
    struct file_id id;
    const Rozo__AdInodesResp__Inode *in = inode_of(answer, s->id.ino, &id);

    s->named = in == NULL && fsck_names_lead_to(&r->names, s->id.export_id, s->id.ino);
    if (in != NULL && in->removed && id.generation == s->id.generation)
        s->dropped = true; /* storages are removing it */
    else if (in != NULL && id.generation == s->id.generation)
        s->dropped = !s->misplaced; /* created meanwhile */
    else
        s->unknown = in != NULL || is_unknown(answer, s->id.ino);
}

/* Confirms the next ownerless files of one export, at most ONLY_MAX different inodes. An
 * export that did not exist at the start may have been created since, so exportd is asked
 * about those, too. */
static int strays_confirm(struct fsck_run *r, size_t *from, struct err *err)
{
    struct fsck_stray *s = &r->join.strays[*from];
    uint64_t inos[ONLY_MAX];
    Rozo__AdInodesResp *answer;
    struct err why = { 0 };
    size_t n = 0, n_inos = 0;
    int rc;

    while (*from + n < r->join.n_strays && s[n].id.export_id == s[0].id.export_id) {
        if (n_inos == 0 || inos[n_inos - 1] != s[n].id.ino) {
            if (n_inos == ONLY_MAX)
                break;
            inos[n_inos++] = s[n].id.ino;
        }
        n++;
    }
    *from += n;
    rc = only_ask(r, s[0].id.export_id, inos, n_inos, false, &answer, &why);
    if (rc != 0 && rc != -ENOENT)
        return err_set(err, rc, "%s", why.text);
    /* The export does not exist. */
    for (size_t i = 0; i < n && rc == -ENOENT; i++)
        s[i].unknown = true;
    if (rc == -ENOENT)
        return interrupted(err);
    for (size_t i = 0; i < n; i++)
        stray_judge(r, &s[i], answer);
    rozo__ad_inodes_resp__free_unpacked(answer, NULL);
    return interrupted(err);
}

static int all_confirm(struct fsck_run *r, unsigned n_done, struct err *err)
{
    size_t n_believed = 0;
    int rc = lacks_find(r, err);

    admin_wait_up_to(r->asked.admin, PATHS_DEADLINE_MS);
    if (r->join.n_strays > 1)
        qsort(r->join.strays, r->join.n_strays, sizeof(r->join.strays[0]), by_id);
    for (size_t i = 0; rc == 0 && i < r->join.n_strays;) {
        at(r, n_done, "asking again", i);
        rc = strays_confirm(r, &i, err);
    }
    for (size_t i = 0; rc == 0 && i < r->n_findings;) {
        at(r, n_done, "looking for paths", i);
        rc = findings_confirm(r, &i, &n_believed, err);
    }
    return rc;
}

/* ---- repair ---- */

/* A FileRef with its id. */
struct ref_parts {
    Rozo__FileRef msg;
    uint8_t id[FILE_ID_BYTES];
};

static void ref_fill(const struct fsck_run *r, const struct fsck_file *file,
                     struct ref_parts *p)
{
    rozo__file_ref__init(&p->msg);
    file_id_put(p->id, &file->id);
    p->msg.file_id = (ProtobufCBinaryData){ sizeof(p->id), p->id };
    p->msg.codec = file->codec;
    p->msg.layout = file->layout;
    p->msg.block_bytes = file->block_4k ? 4096 : 8192;
    p->msg.n_storages = file->n_storages;
    p->msg.storages = (uint32_t *)fsck_storages(&r->join, file);
    p->msg.dist_generation = file->dist_generation;
    p->msg.full_quorum = file->full_quorum;
}

static bool stray_is_to_go(const struct fsck_run *r, const struct fsck_stray *s)
{
    return !s->dropped && !s->misplaced && !s->named &&
           (!s->unknown || r->args->repair_unknown);
}

/* Returns the next ownerless file to remove from this storage; NULL: none. */
static const struct fsck_stray *stray_next(struct fsck_run *r, uint32_t storage,
                                           struct fsck_storage *s)
{
    while (s->at < r->join.n_strays) {
        const struct fsck_stray *stray = &r->join.strays[s->at++];

        if (stray->storage == storage && stray_is_to_go(r, stray))
            return stray;
    }
    return NULL;
}

/* Returns the next file whose projection this storage must heal; NULL: none. */
static const struct fsck_file *file_next(struct fsck_run *r, uint32_t storage,
                                         struct fsck_storage *s)
{
    while (s->at < r->n_findings) {
        const struct fsck_finding *found = &r->findings[s->at++];
        const struct fsck_file *file = &r->join.files[found->file];
        const uint32_t *ids = fsck_storages(&r->join, file);

        for (unsigned i = 0; found->believed && i < file->n_storages; i++) {
            if (ids[i] == storage &&
                ((found->lack.missing | found->lack.damaged) >> i & 1) != 0)
                return file;
        }
    }
    return NULL;
}

/* One request to a storage. */
struct order {
    Rozo__StRemoveReq removal;
    Rozo__StCheckReq check;
    struct ref_parts ref;
};

static const ProtobufCMessage *order_next(struct fsck_run *r,
                                          struct storage_clients_member *m,
                                          struct fsck_storage *s, bool remove,
                                          struct order *o)
{
    const struct fsck_stray *stray =
        remove && s->listed ? stray_next(r, m->st->id, s) : NULL;
    const struct fsck_file *file =
        !remove && s->listed ? file_next(r, m->st->id, s) : NULL;

    if (stray != NULL) {
        rozo__st_remove_req__init(&o->removal);
        file_id_put(o->ref.id, &stray->id);
        o->removal.file_id = (ProtobufCBinaryData){ sizeof(o->ref.id), o->ref.id };
        o->removal.to_storage = m->st->id;
        return &o->removal.base;
    }
    if (file != NULL) {
        rozo__st_check_req__init(&o->check);
        ref_fill(r, file, &o->ref);
        o->check.ref = &o->ref.msg;
        o->check.to_storage = m->st->id;
        return &o->check.base;
    }
    return NULL;
}

/* Sends all requests of one kind, one per storage at a time. */
static int orders_give(struct fsck_run *r, bool remove, struct err *err)
{
    struct order *orders = calloc(r->fleet->n + 1, sizeof(*orders));
    size_t n = 1, n_done = 0;
    int rc = orders == NULL ? err_set(err, -ENOMEM, "out of memory") : 0;

    for (size_t i = 0; i < r->fleet->n; i++)
        r->storages[i].at = 0;
    while (rc == 0 && n > 0) {
        n = 0;
        for (size_t i = 0; i < r->fleet->n; i++) {
            struct storage_clients_member *m = &r->fleet->members[i];

            m->question = order_next(r, m, &r->storages[i], remove, &orders[i]);
            n += m->question != NULL;
        }
        at(r, 0, remove ? "removing" : "healing", n_done);
        storage_clients_ask(r->fleet, remove ? ROZO__OP__ST_REMOVE : ROZO__OP__ST_CHECK,
                            NULL, ORDER_DEADLINE_MS, &r->progress);
        for (size_t i = 0; i < r->fleet->n; i++) {
            const struct storage_clients_member *m = &r->fleet->members[i];

            if (!m->asked)
                continue;
            n_done += m->ask.message[0] == '\0';
            r->n_refused += m->ask.message[0] != '\0';
        }
        rc = interrupted(err);
    }
    storage_clients_clear(r->fleet);
    free(orders);
    *(remove ? &r->n_removed : &r->n_ordered) = n_done;
    return rc;
}

/* ---- output ---- */

static const char *export_name(const struct fsck_run *r, uint32_t id)
{
    for (size_t i = 0; i < r->asked.status->n_exports; i++) {
        if (r->asked.status->exports[i]->id == id)
            return r->asked.status->exports[i]->name;
    }
    return "?";
}

/* Writes "2, 3": those of n storages that are in the bitmap. */
static void storages_text(const uint32_t *ids, unsigned n, uint32_t bitmap, char *out,
                          size_t size)
{
    size_t len = 0;

    out[0] = '\0';
    for (unsigned i = 0; i < n && len < size; i++) {
        if ((bitmap >> i & 1) != 0)
            len += (size_t)snprintf(out + len, size - len, "%s%u", len == 0 ? "" : ", ",
                                    ids[i]);
    }
}

static void moved_print(const struct fsck_run *r, const struct fsck_file *file)
{
    char now[200], before[200];
    unsigned n;
    const uint32_t *ids = fsck_later(&r->join, file, &n);

    storages_text(ids, n, UINT32_MAX, now, sizeof(now));
    storages_text(fsck_storages(&r->join, file), file->n_storages, UINT32_MAX, before,
                  sizeof(before));
    printf(" is on storages %s by now; exportd's data say %s\n", now, before);
}

static void finding_print(const struct fsck_run *r, const struct fsck_finding *found)
{
    const struct fsck_file *file = &r->join.files[found->file];
    const struct codec_layout *layout = codec_layout(file->layout);
    const uint32_t *ids = fsck_storages(&r->join, file);
    char path[4200], list[200];

    if (found->path != NULL)
        fsck_path_text(found->path, path, sizeof(path));
    else
        snprintf(path, sizeof(path), "inode %llu (%s)", (unsigned long long)file->id.ino,
                 file->orphan ? "removed, still open" : "no name was found");
    printf("%.64s: %s:", export_name(r, file->id.export_id), path);
    if (found->lack.moved) {
        moved_print(r, file);
        return;
    }
    if (found->lack.unreadable)
        printf(" UNREADABLE, %u of the %u projections it needs are there;",
               found->lack.n_there, layout->k);
    if (found->lack.missing != 0) {
        storages_text(ids, file->n_storages, found->lack.missing, list, sizeof(list));
        printf(" missing on storage %s;", list);
    }
    if (found->lack.damaged != 0) {
        storages_text(ids, file->n_storages, found->lack.damaged, list, sizeof(list));
        printf(" damaged on storage %s;", list);
    }
    printf(" %u of %u there\n", found->lack.n_there, layout->n);
}

/* Sums for the summary. */
struct fsck_counts {
    size_t n_lacking, n_unreadable, n_moved;
    size_t n_orphans, n_unknown, n_named,
        n_misplaced; /* counted per storage: one file on three storages is three */
    uint64_t orphan_bytes, unknown_bytes;
    size_t n_unlisted, n_listed; /* storages; those lost for good are in neither */
    size_t n_few;                /* files, see candidates_of() */
    size_t n_names;              /* faults of names */
};

static size_t n_faults(const struct fsck_counts *c)
{
    return c->n_lacking + c->n_moved + c->n_orphans + c->n_unknown + c->n_misplaced +
           c->n_named + c->n_names;
}

/* Counts the storages that a file may be on, without those lost for good. */
static unsigned candidates_of(const struct fsck_run *r, const struct fsck_file *file)
{
    const uint32_t *ids = fsck_storages(&r->join, file);
    unsigned n = 0;

    for (unsigned i = 0; i < file->n_storages; i++) {
        const struct storage_clients_member *m = storage_clients_find(r->fleet, ids[i]);

        n += m != NULL && !m->st->lost;
    }
    return n;
}

/* Returns whether a file has fewer candidates than its layout wants: not a fault, but its
 * writes wait earlier than those of other files. */
static bool has_few(const struct fsck_run *r, const struct fsck_file *file)
{
    return candidates_of(r, file) < codec_layout(file->layout)->safe;
}

static struct fsck_counts count(const struct fsck_run *r)
{
    struct fsck_counts c = { .n_names = r->names.n };

    for (size_t i = 0; i < r->n_findings; i++) {
        if (!r->findings[i].believed)
            continue;
        c.n_lacking += !r->findings[i].lack.moved;
        c.n_moved += r->findings[i].lack.moved;
        c.n_unreadable += r->findings[i].lack.unreadable;
    }
    for (size_t i = 0; i < r->join.n_strays; i++) {
        const struct fsck_stray *s = &r->join.strays[i];

        if (s->dropped)
            continue;
        if (s->misplaced) {
            c.n_misplaced++;
        } else if (s->named) {
            c.n_named++;
        } else if (s->unknown) {
            c.n_unknown++;
            c.unknown_bytes += s->bytes;
        } else {
            c.n_orphans++;
            c.orphan_bytes += s->bytes;
        }
    }
    for (size_t i = 0; i < r->join.n_files; i++)
        c.n_few += has_few(r, &r->join.files[i]);
    for (size_t i = 0; i < r->fleet->n; i++) {
        c.n_listed += r->storages[i].listed;
        c.n_unlisted += !r->storages[i].listed && !r->fleet->members[i].st->lost;
    }
    return c;
}

static void strays_print(const struct fsck_run *r)
{
    for (size_t i = 0; i < r->fleet->n; i++) {
        uint32_t id = r->fleet->members[i].st->id;
        size_t n[4] = { 0 };
        uint64_t bytes[4] = { 0 };
        static const char *const message[] = {
            "that no file owns",
            "of files that exportd never knew (see rozo(8), --repair-unknown)",
            "of files that should lie elsewhere",
            "of files with a name and without an inode (not removed)",
        };

        for (size_t j = 0; j < r->join.n_strays; j++) {
            const struct fsck_stray *s = &r->join.strays[j];
            unsigned kind = s->misplaced ? 2 : s->named ? 3 : s->unknown ? 1 : 0;

            if (s->storage != id || s->dropped)
                continue;
            n[kind] += (size_t)__builtin_popcount(s->projections);
            bytes[kind] += s->bytes;
        }
        for (unsigned kind = 0; kind < 4; kind++) {
            char text[HUMAN_BYTES_TEXT];

            if (n[kind] > 0)
                printf("storage %u: %zu projection file%s (%s) %s\n", id, n[kind],
                       n[kind] == 1 ? "" : "s", human_bytes(text, bytes[kind]),
                       message[kind]);
        }
    }
}

static bool has_number(const uint32_t *list, size_t n, uint32_t number)
{
    for (size_t i = 0; i < n; i++) {
        if (list[i] == number)
            return true;
    }
    return false;
}

static int by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

/* Prints the storages that files moved to, and that exportd does not know. */
static void unknown_storages_print(const struct fsck_run *r)
{
    uint32_t unknown[UNKNOWN_MAX];
    size_t n_unknown = 0;

    for (size_t i = 0; i < r->n_findings; i++) {
        const struct fsck_finding *found = &r->findings[i];
        const uint32_t *ids;
        unsigned n;

        if (!found->believed || !found->lack.moved)
            continue;
        ids = fsck_later(&r->join, &r->join.files[found->file], &n);
        for (unsigned j = 0; j < n; j++) {
            if (storage_clients_find(r->fleet, ids[j]) == NULL &&
                n_unknown < UNKNOWN_MAX && !has_number(unknown, n_unknown, ids[j]))
                unknown[n_unknown++] = ids[j];
        }
    }
    qsort(unknown, n_unknown, sizeof(unknown[0]), by_number);
    for (size_t i = 0; i < n_unknown; i++)
        printf("storage %u: exportd does not know it, and files are there: add it again "
               "(rozo storage add)\n",
               unknown[i]);
}

static void repaired_print(const struct fsck_run *r)
{
    if (r->n_removed > 0)
        printf("removed from storages: %zu\n", r->n_removed);
    if (r->n_ordered > 0)
        printf("being healed: %zu; look again when `rozo rebuild status` is quiet\n",
               r->n_ordered);
    if (r->n_refused > 0)
        printf("requests that storages did not accept: %zu; try again later\n",
               r->n_refused);
}

static void print(const struct fsck_run *r, const struct fsck_counts *c)
{
    char bytes[HUMAN_BYTES_TEXT];
    size_t n = 0;

    fsck_names_print(&r->names, r->asked.status, r->args->repair);
    for (size_t i = 0; i < r->n_findings; i++) {
        if (r->findings[i].believed && n++ < PRINTED_MAX)
            finding_print(r, &r->findings[i]);
    }
    if (n > PRINTED_MAX)
        printf("... and %zu files more; --json lists them all\n", n - PRINTED_MAX);
    strays_print(r);
    for (size_t i = 0; i < r->fleet->n; i++) {
        if (!r->storages[i].listed)
            printf("storage %u: not looked at: %s\n", r->fleet->members[i].st->id,
                   r->storages[i].message);
    }
    unknown_storages_print(r);
    if (c->n_moved > 0)
        printf(
            "%zu file%s on other storages than exportd's data say, for example after a "
            "restore from a backup: read each of them once, and exportd finds out "
            "where it is\n",
            c->n_moved, c->n_moved == 1 ? " is" : "s are");
    repaired_print(r);
    if (c->n_few > 0)
        printf("files with fewer storages to lie on than their layout wants: %zu\n",
               c->n_few);
    printf("%zu files, %llu projection files (%s) on %zu of %zu storages: ",
           r->join.n_files, (unsigned long long)r->join.n_projections,
           human_bytes(bytes, r->join.bytes), c->n_listed, r->fleet->n);
    if (n_faults(c) == 0)
        printf("%s\n", c->n_unlisted == 0 ? "clean" : "nothing wrong was found there");
    else
        printf("%zu files lack projections, %zu of them are unreadable; %zu projection "
               "files are ownerless\n",
               c->n_lacking, c->n_unreadable, c->n_orphans + c->n_unknown);
}

static json_t *bitmap_json(const struct fsck_run *r, const struct fsck_file *file,
                           uint32_t bitmap)
{
    const uint32_t *ids = fsck_storages(&r->join, file);
    json_t *list = json_array();

    for (unsigned i = 0; i < file->n_storages; i++) {
        if ((bitmap >> i & 1) != 0)
            json_array_append_new(list, json_integer(ids[i]));
    }
    return list;
}

static void id_text(const struct file_id *id, char out[2 * FILE_ID_BYTES + 1])
{
    uint8_t bytes[FILE_ID_BYTES];

    file_id_put(bytes, id);
    for (unsigned i = 0; i < FILE_ID_BYTES; i++)
        snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

static json_t *findings_json(const struct fsck_run *r)
{
    json_t *list = json_array();

    for (size_t i = 0; i < r->n_findings; i++) {
        const struct fsck_finding *found = &r->findings[i];
        const struct fsck_file *file = &r->join.files[found->file];
        char id[2 * FILE_ID_BYTES + 1];

        if (!found->believed || found->lack.moved)
            continue;
        id_text(&file->id, id);
        json_array_append_new(
            list,
            json_pack("{s:s, s:o, s:I, s:s, s:I, s:b, s:I, s:o, s:o, s:o}", "export",
                      export_name(r, file->id.export_id), "path",
                      found->path == NULL ? json_null() : cli_json_path(found->path),
                      "ino", (json_int_t)file->id.ino, "file_id", id, "size",
                      (json_int_t)file->size, "unreadable", (int)found->lack.unreadable,
                      "there", (json_int_t)found->lack.n_there, "missing_on",
                      bitmap_json(r, file, found->lack.missing), "damaged_on",
                      bitmap_json(r, file, found->lack.damaged), "not_looked_at",
                      bitmap_json(r, file, found->lack.unlisted)));
    }
    return list;
}

static json_t *moved_json(const struct fsck_run *r)
{
    json_t *list = json_array();

    for (size_t i = 0; i < r->n_findings; i++) {
        const struct fsck_finding *found = &r->findings[i];
        const struct fsck_file *file = &r->join.files[found->file];
        char id[2 * FILE_ID_BYTES + 1];
        json_t *storages;
        const uint32_t *ids;
        unsigned n;

        if (!found->believed || !found->lack.moved)
            continue;
        id_text(&file->id, id);
        ids = fsck_later(&r->join, file, &n);
        storages = json_array();
        for (unsigned j = 0; j < n; j++)
            json_array_append_new(storages, json_integer(ids[j]));
        json_array_append_new(
            list,
            json_pack(
                "{s:s, s:o, s:I, s:s, s:o}", "export", export_name(r, file->id.export_id),
                "path", found->path == NULL ? json_null() : cli_json_path(found->path),
                "ino", (json_int_t)file->id.ino, "file_id", id, "storages", storages));
    }
    return list;
}

static json_t *few_json(const struct fsck_run *r)
{
    json_t *list = json_array();

    for (size_t i = 0; i < r->join.n_files; i++) {
        const struct fsck_file *file = &r->join.files[i];

        if (has_few(r, file))
            json_array_append_new(list,
                                  json_pack("{s:s, s:I, s:I}", "export",
                                            export_name(r, file->id.export_id), "ino",
                                            (json_int_t)file->id.ino, "candidates",
                                            (json_int_t)candidates_of(r, file)));
    }
    return list;
}

static json_t *strays_json(const struct fsck_run *r)
{
    json_t *list = json_array();

    for (size_t i = 0; i < r->join.n_strays; i++) {
        const struct fsck_stray *s = &r->join.strays[i];
        char id[2 * FILE_ID_BYTES + 1];

        if (s->dropped)
            continue;
        id_text(&s->id, id);
        json_array_append_new(list, json_pack("{s:s, s:I, s:I, s:I, s:I, s:s}", "file_id",
                                              id, "ino", (json_int_t)s->id.ino, "storage",
                                              (json_int_t)s->storage, "projections",
                                              (json_int_t)s->projections, "bytes",
                                              (json_int_t)s->bytes, "kind",
                                              s->misplaced ? "misplaced"
                                              : s->named   ? "named"
                                              : s->unknown ? "unknown"
                                                           : "orphan"));
    }
    return list;
}

/* Returns whether everything was looked at. */
static bool is_whole(const struct fsck_run *r, const struct fsck_counts *c)
{
    return c->n_unlisted == 0 && !r->names.unchecked;
}

static json_t *run_json(const struct fsck_run *r, const struct fsck_counts *c)
{
    json_t *unlisted = json_array();

    for (size_t i = 0; i < r->fleet->n; i++) {
        if (!r->storages[i].listed)
            json_array_append_new(
                unlisted,
                json_pack("{s:I, s:o}", "id", (json_int_t)r->fleet->members[i].st->id,
                          "error", cli_json_text(r->storages[i].message)));
    }
    return json_pack(
        "{s:b, s:b, s:I, s:o, s:I, s:I, s:I, s:o, s:o, s:o, s:I, s:I, s:I, s:o, s:o}",
        "clean", (int)(n_faults(c) == 0 && is_whole(r, c)), "whole", (int)is_whole(r, c),
        "names", (json_int_t)r->names.n_names, "names_wrong",
        fsck_names_json(&r->names, r->asked.status), "files", (json_int_t)r->join.n_files,
        "projections", (json_int_t)r->join.n_projections, "bytes",
        (json_int_t)r->join.bytes, "lacking", findings_json(r), "strays", strays_json(r),
        "not_looked_at", unlisted, "removed", (json_int_t)r->n_removed, "being_healed",
        (json_int_t)r->n_ordered, "refused", (json_int_t)r->n_refused, "few_candidates",
        few_json(r), "moved", moved_json(r));
}

/* ---- the verb ---- */

static int run_open(struct fsck_run *r, struct fsck_args *args, struct err *err)
{
    int rc;

    memset(r, 0, sizeof(*r));
    r->args = args;
    fsck_init(&r->join);
    fsck_names_init(&r->names);
    rc = exportd_client_status(&args->conn, &r->asked, err);
    if (rc == 0)
        rc = storage_clients_open(r->asked.status, args->conn.key, &r->fleet, err);
    if (rc != 0)
        return rc;
    r->storages = calloc(r->fleet->n + 1, sizeof(*r->storages));
    return r->storages == NULL ? err_set(err, -ENOMEM, "out of memory") : 0;
}

static void run_close(struct fsck_run *r)
{
    for (size_t i = 0; i < r->n_findings; i++)
        free(r->findings[i].path);
    free(r->findings);
    fsck_free(&r->join);
    fsck_names_free(&r->names);
    free(r->storages);
    storage_clients_close(r->fleet);
    exportd_client_close(&r->asked);
}

static int run(struct fsck_run *r, struct err *err)
{
    unsigned n = (unsigned)r->asked.status->n_exports;
    int rc = 0;

    progress_start(&r->progress, n + 2);
    for (unsigned i = 0; rc == 0 && i < n; i++)
        rc = fsck_names_check(&r->names, r->asked.admin, r->asked.status->exports[i],
                              r->args->repair, &r->progress, err);
    for (unsigned i = 0; rc == 0 && i < n; i++)
        rc = export_collect(r, r->asked.status->exports[i], i, err);
    if (rc == 0)
        rc = storages_collect(r, n, err);
    if (rc == 0)
        rc = all_confirm(r, n + 1, err);
    if (rc == 0)
        rc = fsck_names_find_paths(&r->names, r->asked.admin,
                                   r->args->json ? SIZE_MAX : PRINTED_MAX, &r->progress,
                                   err);
    if (rc == 0 && r->args->repair)
        rc = orders_give(r, true, err);
    if (rc == 0 && r->args->repair)
        rc = orders_give(r, false, err);
    progress_end(&r->progress);
    return rc;
}

int cmd_fsck(struct cli *cli, int argc, char **argv)
{
    static const struct args_option options[] = {
        { "repair", 0, NULL,
          "put right what exportd's names say of each other, remove what no file owns, "
          "and have storages heal what is missing or damaged",
          ARGS_FLAG(struct fsck_args, repair) },
        { "repair-unknown", 0, NULL,
          "also remove what exportd never knew: not after its data were restored from a "
          "backup, for then these are the files that are newer than that",
          ARGS_FLAG(struct fsck_args, repair_unknown) },
        { "json", 'j', NULL, "print JSON", ARGS_FLAG(struct fsck_args, json) },
        { 0 },
    };
    static const struct args_syntax syntax = {
        .options = options,
        .doc =
            "Hold exportd's names against its inodes and its indexes of names, and what "
            "it knows of files against what storages hold: projection "
            "files that "
            "no file owns, and files that lack projections or are on other storages than "
            "exportd's data say, by path. Changes nothing "
            "unless "
            "--repair is given; the cluster goes on working meanwhile. It checks that "
            "projection "
            "files exist; `rozo scrub` checks their content.\v"
            "Exit status: 0 clean, 1 something could not be looked at (and nothing "
            "wrong was "
            "found elsewhere), 2 wrong usage, 4 something is wrong, or was until now.",
        .children = target_children
    };
    struct fsck_args args = { 0 };
    struct fsck_counts counts;
    struct fsck_run r;
    struct err err = { 0 };
    int rc;

    args_parse(&syntax, argc, argv, &args);
    args.repair |= args.repair_unknown;
    interrupt_catch();
    rc = run_open(&r, &args, &err);
    if (rc == 0)
        rc = run(&r, &err);
    if (rc != 0) {
        progress_end(&r.progress);
        rc = cli_fail(cli, "%s", err.text);
        run_close(&r);
        return rc;
    }
    counts = count(&r);
    if (args.json) {
        rc = cli_print_json(cli, run_json(&r, &counts));
    } else {
        print(&r, &counts);
        rc = cli_finish(cli);
    }
    if (rc == CLI_DONE && !is_whole(&r, &counts))
        rc = CLI_FAILED;
    if (n_faults(&counts) > 0)
        rc = FSCK_FINDINGS;
    run_close(&r);
    return rc;
}
