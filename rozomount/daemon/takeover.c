/*
 * takeover.c - a mount goes from one process to the next.
 *
 * In:     mount_run.c, at the start of a process that takes a mount over; a signal that
 *         ends one.
 * Out:    open files and directories as the kernel knows them; references, locks and
 *         tokens as exportd knows them.
 * Keeps:  I5: at exportd the tokens stay those of the mount. What the kernel has under
 *         them is right until one is recalled; then it drops all of the inode. Storages
 *         and exportd have all data that were written (fuse_op_store()).
 */
#include "rozomount/daemon/takeover.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "rozomount/daemon/mount_run.h"
#include "rozomount/hold/held.h"
#include "rozomount/kcache/kernel_notify.h"
#include "rozomount/op/handle.h"
#include "rozomount/op/mount.h"
#include "rozomount/op/token_recall.h"
#include "rozomount/ops/fuse_ops.h"
#include "rozomount/options/xalloc.h"

enum {
    DRAIN_LOOK_MS = 5,
    DRAIN_LOOKS_MAX = 200, /* calls that wait for longer are sent again by the kernel */
};

/* ---- the process that takes over ---- */

/* References to inodes that the session holds. */
struct inherited_session {
    uint64_t *exclusive; /* owned: inodes */
    size_t n_exclusive;
    size_t n;
    struct inherited_refs {
        uint64_t ino;
        uint32_t n;
    } refs[];
};

bool mount_takes_over(const struct mount *m)
{
    return m->hold.device >= 0;
}

static void inherit_lock(struct mount *m, const Rozo__Lock *l)
{
    const struct table_lock lock = { .ino = l->ino,
                                     .flock = l->flock,
                                     .owner = l->owner,
                                     .pid = l->pid,
                                     .from = l->from,
                                     .to = l->to,
                                     .mode = (unsigned)l->mode,
                                     .era = lock_table_era(m->lock_table) };

    lock_table_set(m->lock_table, &lock);
}

void mount_note_inherited(void *arg, const Rozo__MdOpenSessionResp *held)
{
    struct mount *m = arg;
    size_t n = held->n_held_inodes;

    for (size_t i = 0; i < held->n_held_locks; i++)
        inherit_lock(m, held->held_locks[i]);
    m->takeover.inherited = xzalloc(sizeof(*m->takeover.inherited) +
                                    n * sizeof(m->takeover.inherited->refs[0]));
    m->takeover.inherited->n_exclusive = held->n_held_exclusive;
    m->takeover.inherited->exclusive =
        xzalloc((held->n_held_exclusive + 1) * sizeof(*m->takeover.inherited->exclusive));
    memcpy(m->takeover.inherited->exclusive, held->held_exclusive,
           held->n_held_exclusive * sizeof(*m->takeover.inherited->exclusive));
    m->takeover.inherited->n = n;
    for (size_t i = 0; i < n; i++)
        m->takeover.inherited->refs[i] =
            (struct inherited_refs){ held->held_inodes[i]->ino,
                                     held->held_inodes[i]->n_references };
}

/* Makes the open files and directories that the kernel knows. */
static void inherit_handles(struct mount *m)
{
    struct held_handle held;
    uint64_t number = 0;

    while ((number = held_next(m->held, number, &held)) != 0) {
        struct loop *loop = mount_owner(m, held.ino);

        if (held.kind == HELD_DIR)
            dir_inherit(loop, number, &held);
        else
            handle_inherit(loop, number, &held);
    }
}

/* Takes the references of exportd's session: those of files that no program has open are
 * given back. */
static void inherit_refs(struct mount *m)
{
    for (size_t i = 0; i < m->takeover.inherited->n; i++) {
        const struct inherited_refs *r = &m->takeover.inherited->refs[i];
        struct node *node = node_get(&mount_owner(m, r->ino)->nodes, r->ino);

        node_count_inherited(node, r->n);
        node_put(node);
    }
}

/* Goes on with the mount. What the kernel keeps under SHARED tokens is right. Where the
 * process before had more, it may have data of calls that were under way or failed, and
 * drops all of the inode. */
void mount_inherit(struct mount *m)
{
    inherit_handles(m);
    inherit_refs(m);
    if (m->takeover.forgets_names)
        sleep(NAMES_HELD_S);
    if (m->takeover.resends && m->notify != NULL)
        kernel_notify_resend(m->notify);
    for (size_t i = 0; i < m->takeover.inherited->n_exclusive; i++)
        recalls_doubt(&m->loops[0], m->takeover.inherited->exclusive[i]);
    free(m->takeover.inherited->exclusive);
    free(m->takeover.inherited);
    m->takeover.inherited = NULL;
}

/* ---- the process that hands over ---- */

/* A file that is synced. */
struct file_to_sync {
    struct loop *loop;
    struct node *node; /* pinned */
};

static void hand_over_end(struct mount *m);

static void loop_file_is_over(struct loop *loop)
{
    if (--loop->n_closing == 0)
        loop_is_done(loop);
}

static void on_file_synced(void *arg, int rc)
{
    struct file_to_sync *f = arg;
    struct loop *loop = f->loop;
    struct node *node = f->node;

    if (rc != 0 || !file_is_clean(node->file)) {
        log_error("inode %llu: its data cannot be stored: %s",
                  (unsigned long long)node->ino, rc == 0 ? "it changes" : error_text(rc));
        atomic_store(&loop->mount->takeover.failed, true);
    }
    free(f);
    node_put(node);
    loop_file_is_over(loop);
}

static void file_sync_start(struct loop *loop, struct node *node)
{
    struct file_to_sync *f = xzalloc(sizeof(*f));

    f->loop = loop;
    f->node = node;
    node_pin(node);
    loop->n_closing++;
    file_sync(node->file, on_file_synced, f);
}

static void on_sync_files(struct env_mail *mail)
{
    struct loop *loop = container_of(mail, struct loop, mail);
    struct node *node, *next;

    loop->n_closing = 1;
    for (struct handle *h = loop->handles; h != NULL; h = h->next) {
        if (handle_has_lost(h) != 0) /* the next process says so */
            held_owe_error(loop->mount->held, h->number, true);
    }
    HASH_ITER(hh, loop->nodes.by_ino, node, next)
    {
        if (node->file != NULL && !node->closing && !file_is_clean(node->file))
            file_sync_start(loop, node);
    }
    loop_file_is_over(loop);
}

static void on_drain_timer(struct env_timer *timer)
{
    struct loop *loop = container_of(timer, struct loop, quit_timer);
    struct mount *m = loop->mount;

    if (atomic_load(&m->n_ops) != 0 && loop->n_quit_looks++ < DRAIN_LOOKS_MAX)
        env_timer_start(&loop->env.env, timer, DRAIN_LOOK_MS);
    else
        mount_on_every_loop(m, on_sync_files, hand_over_end);
}

/* Waits for calls under way, which the kernel need not send again then. */
static void hand_over_drain(struct mount *m)
{
    struct loop *loop = &m->loops[0];

    loop->n_quit_looks = 0;
    env_timer_init(&loop->quit_timer, on_drain_timer);
    on_drain_timer(&loop->quit_timer);
}

static void on_stop_reading(struct env_mail *mail)
{
    struct loop *loop = container_of(mail, struct loop, mail);

    loop_stop_reading(loop);
    if (!loop->mount->takeover.resends)
        locks_give_up(loop);
    loop_is_done(loop);
}

static void on_read_again(struct env_mail *mail)
{
    struct loop *loop = container_of(mail, struct loop, mail);
    struct err err = { 0 };

    if (loop_start_reading(loop, &err) != 0)
        log_error("%s", err.text);
    loop_is_done(loop);
}

static void hand_over_is_off(struct mount *m)
{
    m->takeover.hands_over = false;
    if (m->takeover.stops_after) {
        atomic_store(&m->stop_sent, false);
        mount_stop(m);
    } else if (m->takeover.unmounts_after) {
        mount_unmount(m);
    }
}

static void hand_over_end(struct mount *m)
{
    if (!atomic_load(&m->takeover.failed) && !m->takeover.stops_after &&
        !m->takeover.unmounts_after)
        _exit(HOLDER_EXIT_REPLACE); /* the session stays open for the next process */
    if (atomic_load(&m->takeover.failed))
        log_error("%s: not handed over to another process, since not all data are stored",
                  m->opt->mountpoint);
    mount_on_every_loop(m, on_read_again, hand_over_is_off);
}

void mount_hand_over(struct mount *m)
{
    if (!mount_has_holder(m)) {
        log_warn("%s: mounted without the option hold, so no other process can take it "
                 "over",
                 m->opt->mountpoint);
        return;
    }
    if (m->takeover.hands_over || m->unmounting || atomic_load(&m->stop_sent))
        return;
    log_info("%s: writing out data, then another process takes the mount over",
             m->opt->mountpoint);
    m->takeover.hands_over = true;
    atomic_store(&m->takeover.failed, false);
    mount_on_every_loop(m, on_stop_reading, hand_over_drain);
}
