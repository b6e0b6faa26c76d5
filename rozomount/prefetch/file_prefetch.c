/*
 * file_prefetch.c - opens and reads small files before a program opens them.
 *
 * In:     pages of listings with attributes; files that programs open for reading.
 * Out:    MD_OPEN and reads of the file layer, for many files in one turn, so that
 *         exportd and the storages wake up once for all. The data waits in the file
 *         layer; the mount keeps the file open as it keeps files closed by programs
 *         (node_keep()).
 * Keeps:  I5: only files whose token we hold are read, and their data goes with the
 *         token. A wrong guess never makes another mount give back a token.
 * Ask:    next_files.h for the choice of files.
 */
#include "rozomount/prefetch/file_prefetch.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "rozomount/op/fuse_op.h"
#include "rozomount/op/handle.h"
#include "rozomount/op/loop.h"
#include "rozomount/op/mount.h"
#include "rozomount/op/read_past_eof.h"
#include "rozomount/op/recall_inval.h"
#include "rozomount/op/token_recall.h"
#include "rozomount/options/xalloc.h"
#include "rozomount/prefetch/next_files.h"

enum { EARLY_TIMEOUT_MS = 1000 }; /* no program waits for the call */

/* One file being prefetched. Runs on the loop that owns the inode. */
struct early {
    struct env_mail mail;
    struct md_call call;
    struct loop *loop;
    uint64_t ino;
    struct node *node; /* pinned */
};

void file_prefetch_listed(struct mount *m, uint64_t dir, uint64_t after,
                          const Rozo__MdReaddirResp *page)
{
    struct next_file *files = xzalloc((page->n_entries + 1) * sizeof(*files));
    uint64_t to = after;
    size_t n = 0;

    for (size_t i = 0; i < page->n_entries; i++) {
        const Rozo__MdReaddirResp__Entry *e = page->entries[i];

        to = e->cookie;
        if (e->attr != NULL && S_ISREG(e->attr->mode) && e->attr->size > 0 &&
            e->attr->size <= NEXT_FILE_BYTES_MAX &&
            e->attr->token != ROZO__TOKEN_MODE__TOKEN_NONE)
            files[n++] = (struct next_file){ e->ino, e->attr->size };
    }
    next_files_listed(m->next_files, dir, after, to, files, n);
    free(files);
}

/* Ends the prefetch of one file. A prefetch counts as an operation of the mount. */
static void early_end(struct early *e)
{
    struct mount *m = e->loop->mount;

    if (e->node != NULL && node_is_worth_keeping(e->loop, e->node))
        node_keep(e->node);
    if (e->node != NULL)
        node_put(e->node);
    free(e);
    fuse_op_is_over(m);
}

static void on_early_read(void *arg, int rc, const struct iovec *iov, unsigned n_iov)
{
    (void)rc; /* on an error the program's own read fails again */
    (void)iov;
    (void)n_iov;
    early_end(arg);
}

static void early_read(struct early *e)
{
    struct file *file = e->node->file;
    uint64_t size = file_size(file);

    if (size > NEXT_FILE_BYTES_MAX)
        size = NEXT_FILE_BYTES_MAX;
    file_read(file, 0, (size_t)size, false, on_early_read, e);
}

static int early_take(struct early *e, const struct md_entry *entry)
{
    struct node *node = e->node;

    if (entry->attr.ino != node->ino || !entry->has_target)
        return -EBADMSG;
    loop_take_grant(e->loop, entry);
    node_cache_is_fresh(node, &entry->attr);
    node_note_mode(node, &entry->attr);
    node_note_nlink(node, &entry->attr);
    return node_adopt(node, entry, true);
}

static void on_early_opened(struct md_call *call, int rc)
{
    struct early *e = call->arg;
    struct md_entry entry;
    bool may_be_taken = rc == 0 || !call->answered;

    if (rc == 0)
        rc = md_decode_open(call, &entry);
    if (rc == 0) {
        rc = early_take(e, &entry);
        may_be_taken = rc == -EBADMSG;
        md_entry_drop(&entry);
    }
    if (rc != 0 && may_be_taken)
        node_count_unanswered(e->node);
    if (rc == 0 && node_is_worth_keeping(e->loop, e->node))
        early_read(e);
    else
        early_end(e);
}

/* Starts the prefetch. A file with a node is skipped: the program that has it open, or
 * had, reads for itself. */
static void early_begin(struct early *e)
{
    struct loop *loop = e->loop;
    Rozo__MdOpenReq msg = ROZO__MD_OPEN_REQ__INIT;

    if (loop->kernel_is_gone || node_find(&loop->nodes, e->ino) != NULL ||
        !loop_may_tell(loop) ||
        token_cache_mode(loop->mount->tokens, e->ino) == TOKEN_NONE) {
        early_end(e);
        return;
    }
    e->node = node_get(&loop->nodes, e->ino);
    msg.ino = e->ino;
    nodes_tell_closes(&loop->nodes);
    md_client_send_within(&loop->md, &e->call, ROZO__OP__MD_OPEN, &msg.base, 0,
                          EARLY_TIMEOUT_MS, on_early_opened, e);
}

static void on_early_mail(struct env_mail *mail)
{
    early_begin(container_of(mail, struct early, mail));
}

void file_prefetch_opened(struct loop *loop, uint64_t ino)
{
    struct mount *m = loop->mount;
    uint64_t inos[NEXT_FILES_MAX];
    unsigned n = mount_writes_back(m) ? 0 : next_files_opened(m->next_files, ino, inos);

    for (unsigned i = 0; i < n; i++) {
        struct early *e = xzalloc(sizeof(*e));

        e->loop = mount_owner(m, inos[i]);
        e->ino = inos[i];
        atomic_fetch_add(&m->n_ops, 1);
        e->mail.fn = on_early_mail;
        if (e->loop == loop)
            early_begin(e);
        else
            env_mailbox_post(&e->loop->env, &e->mail);
    }
}
