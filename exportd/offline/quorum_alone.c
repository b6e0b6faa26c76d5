/*
 * quorum_alone.c - a member goes on alone, because the others are gone for ever.
 *
 * In:     exportd --force-alone; the operator's yes.
 * Out:    DATA/quorum/identity with the number of a new group; then DATA/kv with all that
 *         the log has, a list of this member alone and a raised number of starts; then no
 *         log and no boot record. In this order.
 * Keeps:  once anything of the old group is changed here, the identity is no longer of
 *         that group. So nothing that this member holds or votes counts there, and the
 *         reverse.
 */
#include "exportd/offline/quorum_alone.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/list.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "common/disk/disk_uv.h"
#include "exportd/datadir/datadir.h"
#include "exportd/datadir/quorum_identity.h"
#include "exportd/offline/offline.h"
#include "exportd/quorum/kv_quorum.h"
#include "exportd/quorum/log/quorum_log.h"
#include "exportd/store/cluster_record.h"

struct alone {
    struct offline o;
    const char *data;
    struct quorum_identity identity;
    int lock_fd, dir_fd; /* dir: DATA/quorum */
    struct disk_uv disk;
    struct quorum_log_hooks log_hooks;
    struct quorum_log *log; /* owned; NULL: there is none that can be read */
    struct kv_leveldb *below;
    struct kv_quorum_hooks kv_hooks;
    struct kv_quorum *kv;
    struct raft_config members; /* newest list in store and log */
    uint64_t index, term;       /* newest entry in store and log */
    uint64_t applied;           /* newest entry in the store */
    int64_t wall_ns;            /* clock of the newest batch; 0: none */
    struct quorum_entry *entry; /* being read */
};

/* ---- hooks ---- */

static void on_persisted(void *arg, uint64_t index, uint64_t term)
{
    (void)arg, (void)index, (void)term; /* nothing is appended */
}

static void on_voted(void *arg, uint64_t term, uint64_t vote)
{
    struct alone *a = arg;

    (void)term, (void)vote;
    a->o.is_done = true;
    a->o.rc = 0;
}

static void on_failed(void *arg, int rc)
{
    struct alone *a = arg;

    a->o.is_done = true;
    a->o.rc = rc;
}

static void on_log_started(void *arg, int rc)
{
    on_failed(arg, rc);
}

static void on_log_stopped(void *arg)
{
    on_failed(arg, 0);
}

static void on_applied(void *arg, uint64_t index, uint64_t term)
{
    (void)arg, (void)index, (void)term;
}

static void on_kv_failed(void *arg, int rc, const char *what)
{
    (void)arg;
    log_error("%s: %s", what, error_text(rc));
}

/* ---- entries ---- */

static void on_read(struct quorum_log_read *r, int rc, struct quorum_entry *entry);

/* Read of an entry from the disk. */
struct alone_read {
    struct quorum_log_read read;
    struct alone *a;
};

static void on_read(struct quorum_log_read *r, int rc, struct quorum_entry *entry)
{
    struct alone *a = container_of(r, struct alone_read, read)->a;

    a->entry = entry;
    on_failed(a, rc);
}

/* Returns a use of an entry of the log in *out. */
static int entry_get(struct alone *a, uint64_t index, struct quorum_entry **out,
                     struct err *err)
{
    struct alone_read r = { .read = { .index = index, .done = on_read }, .a = a };
    struct quorum_entry *entry;

    quorum_log_get(a->log, index, &entry);
    if (entry != NULL) {
        *out = quorum_entry_use(entry);
        return 0;
    }
    a->entry = NULL;
    quorum_log_read(a->log, &r.read);
    offline_wait(&a->o);
    if (a->o.rc != 0)
        return err_set(err, a->o.rc, "read entry %" PRIu64 " of the metadata log: %s",
                       index, error_text(a->o.rc));
    *out = a->entry;
    return 0;
}

/* Returns the clock of a batch that is one entry; 0 for others. */
static int64_t entry_wall_ns(const struct quorum_entry *entry)
{
    struct quorum_batch_head head = { .wall_ns = 0 };
    struct kv_item *items;
    const uint8_t *part;
    size_t len, n;
    bool more;

    if (entry->e.kind != RAFT_ENTRY_BATCH ||
        quorum_part_get(entry, &part, &len, &more) != 0 || more ||
        quorum_batch_get(part, len, &items, &n, &head) != 0)
        return 0;
    free(items);
    return head.wall_ns;
}

/* Does something with each entry of the log that the store lacks. */
static int entries_each(struct alone *a,
                        void (*fn)(struct alone *a, struct quorum_entry *),
                        struct err *err)
{
    int rc = 0;

    for (uint64_t i = a->applied + 1; rc == 0 && i <= a->index; i++) {
        struct quorum_entry *entry;

        rc = entry_get(a, i, &entry, err);
        if (rc != 0)
            break;
        fn(a, entry);
        quorum_entry_free(entry);
    }
    return rc;
}

static void entry_look(struct alone *a, struct quorum_entry *entry)
{
    int64_t wall_ns = entry_wall_ns(entry);

    if (wall_ns > a->wall_ns)
        a->wall_ns = wall_ns;
    if (entry->e.kind == RAFT_ENTRY_CONFIG)
        raft_config_decode(entry->e.data, entry->e.len, &a->members);
}

static void entry_apply(struct alone *a, struct quorum_entry *entry)
{
    kv_quorum_apply(a->kv, entry);
    kv_quorum_stable(a->kv, entry->e.index); /* the start of the log has synced it */
    uv_run(&a->o.loop, UV_RUN_NOWAIT);       /* ends what is done */
}

/* ---- what there is ---- */

/* Takes the place of the store: complete, or a copy that lacks nothing but entries. */
static int place_take(struct alone *a, struct err *err)
{
    const struct kv_quorum_place *p = kv_quorum_place(a->kv);
    const struct seed_mark *mark = &p->seed;

    if (p->applied == 0 && (mark->doubt == SEED_NONE || !mark->is_copied ||
                            mark->index == 0 || mark->index < mark->newest))
        return err_set(err, -ENODATA,
                       "%s has only a part of the metadata: it was being copied from "
                       "another member. Use another survivor, or load a dump",
                       a->data);
    a->members = p->members;
    a->applied = a->index = p->applied != 0 ? p->applied : mark->index;
    a->term = p->applied != 0 ? p->applied_term : mark->term;
    a->wall_ns = p->applied != 0 ? kv_quorum_wall_ns(a->kv) : mark->wall_ns;
    return 0;
}

static int kv_open(struct alone *a, struct err *err)
{
    struct kv_quorum_config config = { .env = &a->o.env.env, .hooks = &a->kv_hooks };
    int rc = offline_store_open(&a->o, "kv", false, &a->below, err);

    if (rc != 0)
        return rc;
    a->kv_hooks = (struct kv_quorum_hooks){ .applied = on_applied,
                                            .failed = on_kv_failed,
                                            .arg = a };
    config.below = kv_leveldb_kv(a->below);
    rc = kv_quorum_open(&config, &a->kv, err);
    return rc == 0 ? place_take(a, err) : rc;
}

/* Takes the newest entry of the log, if it goes on where the store ends. */
static void log_look(struct alone *a)
{
    const struct quorum_log_found *found = quorum_log_found(a->log);
    uint64_t first = quorum_log_first(a->log), last = quorum_log_last(a->log);
    bool fits = last >= a->applied && first <= a->applied + 1 &&
                kv_quorum_place(a->kv)->applied != 0;

    if (fits && first <= a->applied &&
        quorum_log_get(a->log, a->applied, NULL).term != a->term)
        fits = false;
    if (found->lost != 0)
        log_warn("entries from %" PRIu64 " on are damaged in its log, and missing",
                 found->lost);
    if (!fits && last >= first)
        log_warn("its log does not go on where its store ends: what the log has is left "
                 "out");
    if (fits && last > a->applied) {
        a->index = last;
        a->term = quorum_log_get(a->log, last, NULL).term;
    }
}

static int log_open(struct alone *a, struct err *err)
{
    struct quorum_log_config config = {
        .env = &a->o.env.env,
        .disk = &a->disk.disk,
        .hooks = &a->log_hooks,
    };
    int rc;

    a->dir_fd = quorum_folder_open(a->data, err);
    if (a->dir_fd < 0)
        return a->dir_fd;
    disk_uv_init(&a->disk, &a->o.env, a->dir_fd);
    a->log_hooks = (struct quorum_log_hooks){
        .persisted = on_persisted, .voted = on_voted, .failed = on_failed, .arg = a
    };
    rc = quorum_log_open(&config, &a->log);
    if (rc != 0)
        return err_set(err, rc, "out of memory");
    quorum_log_start(a->log, on_log_started, a);
    offline_wait(&a->o);
    if (a->o.rc != 0) {
        rc = a->o.rc;
        quorum_log_free(a->log);
        a->log = NULL;
        return err_set(err, rc, "read the metadata log: %s", error_text(rc));
    }
    log_look(a);
    return entries_each(a, entry_look, err);
}

/* ---- the operator ---- */

/* A member that runs has what this one lacks, and would be thrown out. */
static int others_check(struct alone *a, struct err *err)
{
    for (unsigned i = 0; i < a->members.n; i++) {
        const struct raft_member *m = &a->members.members[i];

        if (m->id != a->identity.member && offline_member_answers(&a->o, m->address))
            return err_set(err, -EBUSY,
                           "member %" PRIu64 " at %s runs: it may have what this one "
                           "lacks. Start this one in the ordinary way; or stop the "
                           "other, if it is to have no part any more",
                           m->id, m->address);
    }
    return 0;
}

static void facts_tell(struct alone *a)
{
    time_t at = (time_t)(a->wall_ns / (int64_t)s_to_ns(1));
    int64_t age_s = (env_wall_ns(&a->o.env.env) - a->wall_ns) / (int64_t)s_to_ns(1);
    char text[64] = "";
    struct tm tm;

    if (a->wall_ns != 0 && gmtime_r(&at, &tm) != NULL)
        strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &tm);
    log_warn("the newest entry of member %u is %" PRIu64 " of term %" PRIu64
             ", its newest change was made at %s, %lld s ago",
             a->identity.member, a->index, a->term, text[0] == '\0' ? "?" : text,
             (long long)(age_s < 0 ? 0 : age_s));
    log_warn("changes that the others acknowledged after it are lost, and none of the "
             "other %u members can come back with what it has",
             a->members.n > 0 ? a->members.n - 1 : 0);
}

static int operator_ask(bool yes, struct err *err)
{
    char line[16] = "";

    if (yes)
        return 0;
    if (!isatty(STDIN_FILENO))
        return err_set(err, -ECANCELED, "this needs --yes, or a terminal to ask on");
    fprintf(stderr, "Type `alone` if this member is to go on alone: ");
    if (fgets(line, sizeof(line), stdin) == NULL || strcmp(line, "alone\n") != 0)
        return err_set(err, -ECANCELED, "nothing was changed");
    return 0;
}

/* ---- the change ---- */

static int group_begin(struct alone *a, struct err *err)
{
    uint32_t next;
    int rc = raft_group_next(a->identity.group, offline_chance(&a->o), &next);

    if (rc != 0)
        return err_set(err, rc, "no numbers are left for this quorum: load a dump");
    a->identity.group = next;
    return quorum_identity_write(a->data, &a->identity, err);
}

/* Saves a vote of the new group: for nobody, in a term above all that the log has. */
static int vote_save(struct alone *a, struct err *err)
{
    uint64_t term = quorum_log_found(a->log)->term;

    quorum_log_vote(a->log, (term > a->term ? term : a->term) + 1, 0);
    offline_wait(&a->o);
    return a->o.rc == 0
               ? 0
               : err_set(err, a->o.rc, "write the vote: %s", error_text(a->o.rc));
}

static int log_apply(struct alone *a, struct err *err)
{
    int rc = entries_each(a, entry_apply, err);

    while (!kv_quorum_is_idle(a->kv) && kv_quorum_error(a->kv) == 0)
        uv_run(&a->o.loop, UV_RUN_ONCE);
    if (rc == 0 && kv_quorum_error(a->kv) != 0)
        rc = err_set(err, kv_quorum_error(a->kv), "apply the metadata log: %s",
                     error_text(kv_quorum_error(a->kv)));
    return rc;
}

/* Makes the store that of a quorum of this member alone. */
static int store_change(struct alone *a, struct err *err)
{
    const struct raft_member *self = raft_config_find(&a->members, a->identity.member);
    uint8_t applied[PLACE_APPLIED_BYTES], val[PLACE_MEMBERS_BYTES_MAX];
    uint8_t list[RAFT_CONFIG_BYTES_MAX];
    struct kv *below = kv_leveldb_kv(a->below);
    struct raft_config members = { .n = 0 };
    struct cluster_return back;
    struct kv_item items[5];
    int rc = cluster_return_make(below, offline_chance(&a->o), &back, err);

    if (rc != 0)
        return rc;
    if (self == NULL ||
        raft_config_set(&members, self->id, RAFT_ROLE_VOTER, self->address) != 0)
        return err_set(err, -EINVAL, "member %u is not in the list of members",
                       a->identity.member);
    memcpy(items, back.items, sizeof(back.items));
    items[2] = kv_place_members(val, a->index, list, raft_config_encode(&members, list));
    items[3] = kv_place_applied(applied, a->index, a->term, a->wall_ns);
    items[4] = kv_place_no_seed();
    rc = offline_commit(&a->o, below, items, 5, err);
    return rc == 0 ? offline_sync(&a->o, below, err) : rc;
}

static void log_close(struct alone *a)
{
    if (a->log == NULL)
        return;
    quorum_log_stop(a->log, on_log_stopped, a);
    offline_wait(&a->o);
    quorum_log_free(a->log);
    a->log = NULL;
}

static void on_removed(struct disk_req *dr, int rc)
{
    on_failed(dr->arg, rc);
}

/* Removes the log: members that are added later get the store, which has more. */
static int log_remove(struct alone *a, struct err *err)
{
    struct disk_req dr = {
        .op = DISK_REMOVE,
        .path = "journal/0.",
        .n_names = WAL_SLOTS_MAX,
        .done = on_removed,
        .arg = a,
    };

    log_close(a);
    disk_submit(&a->disk.disk, &dr);
    offline_wait(&a->o);
    return a->o.rc == 0 || a->o.rc == -ENOENT
               ? 0
               : err_set(err, a->o.rc, "remove the metadata log: %s",
                         error_text(a->o.rc));
}

/* Removes the boot record: all that the new group begins with is on stable storage. */
static int boot_remove(struct alone *a, struct err *err)
{
    if (unlinkat(a->dir_fd, "boot", 0) != 0 && errno != ENOENT)
        return err_set(err, -errno, "remove quorum/boot: %s", strerror(errno));
    return fsync(a->dir_fd) == 0
               ? 0
               : err_set(err, -errno, "sync quorum: %s", strerror(errno));
}

static int change(struct alone *a, struct err *err)
{
    int rc = group_begin(a, err);

    if (rc == 0)
        rc = vote_save(a, err);
    if (rc == 0)
        rc = log_apply(a, err);
    if (rc == 0)
        rc = store_change(a, err);
    if (rc == 0)
        rc = log_remove(a, err);
    if (rc == 0)
        rc = boot_remove(a, err);
    return rc == 0 ? 0
                   : err_wrap(err, rc,
                              "this member is not alone yet, and takes part in nothing "
                              "until `--force-alone` is repeated");
}

static int run(struct alone *a, bool yes, struct err *err)
{
    bool is_new;
    int rc = datadir_open(a->data, true, &a->lock_fd, &is_new, err);

    if (rc != 0)
        return rc;
    if (is_new)
        rc = err_set(err, -ENODATA, "%s is empty: this member has nothing", a->data);
    if (rc == 0)
        rc = quorum_identity_read(a->data, &a->identity, err);
    if (rc == -ENOENT)
        err_set(err, rc, "%s/quorum/identity is missing", a->data);
    if (rc == 0 && a->identity.is_witness)
        rc = err_set(err, -EINVAL,
                     "%s belongs to a witness, which has no metadata: nothing could be "
                     "served. Run this on a member that has them, or load a dump",
                     a->data);
    if (rc == 0)
        rc = kv_open(a, err);
    if (rc == 0)
        rc = log_open(a, err);
    if (rc == 0)
        rc = others_check(a, err);
    if (rc == 0) {
        facts_tell(a);
        rc = operator_ask(yes, err);
    }
    if (rc == 0 && !yes) /* people take their time */
        rc = others_check(a, err);
    if (rc == 0)
        rc = change(a, err);
    if (rc == 0)
        log_info(
            "member %u is a quorum of itself alone: start it. The others must not be "
            "started again; add members with empty data directories",
            a->identity.member);
    return rc;
}

int quorum_alone(const struct exportd_settings *c, bool yes, struct err *err)
{
    struct alone a = { .data = c->exportd.data, .lock_fd = -1, .dir_fd = -1 };
    int rc;

    if (c->quorum == NULL)
        return err_set(err, -EINVAL,
                       "--force-alone: this exportd is no member of a quorum (its config "
                       "has no section `quorum`)");
    rc = offline_open(&a.o, c, err);
    if (rc != 0)
        return rc;
    rc = run(&a, yes, err);
    log_close(&a);
    while (a.kv != NULL && !kv_quorum_is_idle(a.kv))
        uv_run(&a.o.loop, UV_RUN_ONCE);
    kv_quorum_close(a.kv);
    kv_leveldb_close(a.below);
    if (a.dir_fd >= 0)
        close(a.dir_fd);
    if (a.lock_fd >= 0)
        close(a.lock_fd);
    offline_close(&a.o);
    return rc;
}
