/*
 * fs_dir.c - reading directories.
 *
 * In:     the kernel's requests; a directory's state lives on the owner loop of its
 *         inode.
 * Out:    MD_READDIR in pages, replies.
 * Keeps:  offsets are exportd's cookies (plus 2, for "." and ".."): a stream may be
 *         continued anywhere, after any restart, also through another handle. Attributes
 *         are given only if they were fetched for this request: the kernel would take
 *         older ones for newer than those it has seen since.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "rozomount/inode/open_dirs.h"
#include "rozomount/kcache/dir_places.h"
#include "rozomount/kcache/name_inval.h"
#include "rozomount/op/fuse_op.h"
#include "rozomount/op/handle.h"
#include "rozomount/op/loop.h"
#include "rozomount/op/mount.h"
#include "rozomount/op/read_past_eof.h"
#include "rozomount/op/recall_inval.h"
#include "rozomount/op/token_recall.h"
#include "rozomount/ops/fs_privileges.h"
#include "rozomount/ops/fuse_ops.h"
#include "rozomount/options/xalloc.h"
#include "rozomount/prefetch/file_prefetch.h"

enum {
    OFFSET_DOT = 1,     /* comes after "." */
    OFFSET_DOT_DOT = 2, /* comes after ".."; then cookie + this */
    PAGE_ENTRIES_MAX = 1000,
    PAGE_ENTRIES_MIN = 16,
    ENTRY_BYTES = 48,       /* usual bytes of an entry in the kernel's buffer */
    ENTRY_PLUS_BYTES = 180, /* usual bytes of an entry with attributes */
};

/* An open directory. Thread: the owner loop of its inode. */
struct dir {
    uint64_t ino;
    uint64_t number;           /* fi->fh, see held.h */
    bool no_atime;             /* opened O_NOATIME */
    Rozo__MdReaddirResp *page; /* names only; NULL: none */
    struct arena page_arena;   /* memory of page */
    size_t next;               /* index in page */
    uint64_t next_after;       /* the cookie before page->entries[next] */
    uint64_t until; /* the listing contains only smaller cookies; 0: not begun */
    /*
     * An answer with attributes is on its way: the kernel has taken it when it asks for
     * more, or closes.
     */
    bool is_listing;
};

/* OPENDIR that waits for an invalidation. */
struct opendir_op {
    struct fuse_op op; /* must be first */
    struct dir *dir;
    struct fuse_file_info fi;
};

/* READDIR, READDIRPLUS, RELEASEDIR. */
struct readdir_op {
    struct fuse_op op; /* must be first */
    struct dir *dir;
    bool plus;       /* with attributes */
    uint64_t offset; /* offset of the next entry to add */
    size_t size;     /* room in op.memory */
    size_t n_bytes;  /* filled */
};

/* Returns NULL if a process before has closed it without an answer. */
static struct dir *dir_of(fuse_req_t req, uint64_t ino, const struct fuse_file_info *fi)
{
    const struct loop *loop = fuse_req_userdata(req);

    return held_user(loop->mount->held, fi->fh, ino);
}

static void dir_free(struct loop *loop, struct dir *dir)
{
    open_dirs_remove(loop->mount->open_dirs, dir->ino);
    held_remove(loop->mount->held, dir->number);
    free(dir);
}

void dir_inherit(struct loop *loop, uint64_t number, const struct held_handle *held)
{
    struct dir *dir = xzalloc(sizeof(*dir));

    dir->ino = held->ino;
    dir->number = number;
    dir->no_atime = (held->flags & O_NOATIME) != 0;
    open_dirs_add(loop->mount->open_dirs, dir->ino, NULL);
    held_give(loop->mount->held, number, dir);
}

static bool dir_counts_reads(const struct loop *loop, const struct dir *dir)
{
    return !dir->no_atime && atimes_counts(loop->mount->atimes, true);
}

static struct inode_times times_of(const struct md_attr *attr)
{
    return (struct inode_times){ attr->atime_ns, attr->mtime_ns, attr->ctime_ns };
}

static void dir_note_read(struct loop *loop, const struct dir *dir)
{
    struct mount *m = loop->mount;
    struct inode_times t;
    struct md_attr attr;
    uint64_t grant;
    bool known;

    if (!dir_counts_reads(loop, dir))
        return;
    known = token_cache_take_attr(m->tokens, dir->ino, &attr, &grant);
    if (known)
        t = times_of(&attr);
    if (atimes_note(m->atimes, dir->ino, env_wall_ns(&loop->env.env), known ? &t : NULL,
                    !known) &&
        known)
        tokens_note_atime(m->tokens, dir->ino, t.atime_ns);
}

static bool dir_is_due(struct loop *loop, const struct dir *dir,
                       const struct md_attr *attr)
{
    const struct inode_times t = times_of(attr);

    return dir_counts_reads(loop, dir) &&
           atime_is_due(&t, env_wall_ns(&loop->env.env),
                        atimes_is_strict(loop->mount->atimes));
}

static void opendir_reply(struct loop *loop, struct dir *dir, fuse_req_t req,
                          const struct fuse_file_info *fi)
{
    if (fuse_reply_open(req, fi) == -ENOENT)
        dir_free(loop, dir);
}

/* Sets what the kernel may keep. Called with the token lock, held until the answer. */
static void opendir_tell(struct loop *loop, uint64_t ino, struct fuse_file_info *fi)
{
    bool kept = false;

    fi->cache_readdir =
        loop_may_tell(loop) && token_cache_tell_listing(loop->mount->tokens, ino, &kept);
    fi->keep_cache = kept;
}

static enum step_end opendir_answer(struct fuse_op *op)
{
    struct opendir_op *o = (struct opendir_op *)op;
    struct token_cache *t = op->loop->mount->tokens;
    fuse_req_t req = op->req;

    op->req = NULL;
    token_cache_lock(t);
    opendir_tell(op->loop, op->ino, &o->fi);
    opendir_reply(op->loop, o->dir, req, &o->fi);
    token_cache_unlock(t);
    return fuse_op_finish(op);
}

/* Counts an open as a read, because the kernel sends no READDIR for a cached listing. */
static void opendir_note_read(fuse_req_t req, struct dir *dir,
                              const struct fuse_file_info *fi)
{
    static fuse_op_step *const steps[] = { fuse_op_drop_attr, opendir_answer, NULL };
    struct opendir_op *o = fuse_op_begin(req, sizeof(*o));

    o->op.ino = dir->ino;
    o->dir = dir;
    o->fi = *fi;
    dir_note_read(o->op.loop, dir);
    fuse_op_start(&o->op, steps);
}

void fs_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct loop *loop = fuse_req_userdata(req);
    struct token_cache *t = loop->mount->tokens;
    struct held_handle held = { .ino = ino,
                                .flags = (uint32_t)fi->flags,
                                .kind = HELD_DIR };
    struct dir *dir = xzalloc(sizeof(*dir));
    struct md_attr attr;
    uint64_t grant;
    bool known, counts;

    dir->ino = ino;
    dir->no_atime = (fi->flags & O_NOATIME) != 0;
    dir->number = held_add(loop->mount->held, &held, dir);
    if (dir->number == 0) {
        free(dir);
        fuse_reply_err(req, ENFILE);
        return;
    }
    fi->fh = dir->number;
    known = token_cache_take_attr(t, ino, &attr, &grant);
    open_dirs_add(loop->mount->open_dirs, ino, known ? &attr : NULL);
    counts = known && dir_is_due(loop, dir, &attr);
    token_cache_lock(t);
    opendir_tell(loop, ino, fi);
    counts = counts && fi->keep_cache;
    if (!counts)
        opendir_reply(loop, dir, req, fi);
    token_cache_unlock(t);
    if (counts)
        opendir_note_read(req, dir, fi);
}

static void dir_drop_page(struct dir *dir)
{
    arena_free(&dir->page_arena);
    dir->page = NULL;
}

static void dir_listing_came(struct loop *loop, struct dir *dir)
{
    if (dir->is_listing)
        name_inval_listing_came(loop->mount->name_inval, dir->ino);
    dir->is_listing = false;
}

static enum step_end releasedir(struct fuse_op *op)
{
    struct dir *dir = ((struct readdir_op *)op)->dir;

    if (dir == NULL)
        return fuse_op_end(op, 0);
    dir_listing_came(op->loop, dir);
    dir_drop_page(dir);
    dir_free(op->loop, dir);
    return fuse_op_end(op, 0);
}

void fs_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    static fuse_op_step *const steps[] = { fuse_op_goto_owner, releasedir, NULL };
    struct readdir_op *r = fuse_op_begin(req, sizeof(*r));

    r->op.ino = ino;
    r->dir = dir_of(req, ino, fi);
    fuse_op_start(&r->op, steps);
}

/* ---- filling the kernel's buffer ---- */

/*
 * Fills the attributes of an entry; none if another loop may know newer ones: then the
 * kernel asks for them.
 */
static void entry_fill(struct fuse_op *op, const Rozo__MdReaddirResp__Entry *entry,
                       const char *name, bool may_tell, struct fuse_entry_param *e)
{
    struct mount *m = op->loop->mount;

    if (entry->attr != NULL && md_attr_check(entry->attr, &op->entry.attr) == 0 &&
        (mount_owner(m, entry->ino) == op->loop || !mount_may_be_open(m, entry->ino))) {
        fuse_op_fill_entry(op, op->ino, name, may_tell, e);
    } else {
        *e = (struct fuse_entry_param){ .attr = { .st_ino = entry->ino,
                                                  .st_mode = entry->type } };
    }
}

/* Returns false if the entry does not fit. */
static bool add_entry(struct readdir_op *r, const char *name,
                      const struct fuse_entry_param *e, uint64_t offset)
{
    char *at = (char *)r->op.memory + r->n_bytes;
    size_t room = r->size - r->n_bytes;
    size_t len =
        r->plus ? fuse_add_direntry_plus(r->op.req, at, room, name, e, (off_t)offset)
                : fuse_add_direntry(r->op.req, at, room, name, &e->attr, (off_t)offset);

    if (len > room)
        return false;
    r->n_bytes += len;
    return true;
}

static bool add_dots(struct readdir_op *r, uint64_t parent)
{
    struct fuse_entry_param e = { .attr = { .st_ino = r->op.ino, .st_mode = S_IFDIR } };

    if (r->offset < OFFSET_DOT) {
        if (!add_entry(r, ".", &e, OFFSET_DOT))
            return false;
        r->offset = OFFSET_DOT;
    }
    if (r->offset < OFFSET_DOT_DOT) {
        e.attr.st_ino = parent;
        if (!add_entry(r, "..", &e, OFFSET_DOT_DOT))
            return false;
        r->offset = OFFSET_DOT_DOT;
    }
    return true;
}

/*
 * Ends the listing at the names that exist now. A name renamed meanwhile gets a cookie
 * after all others: a program that renames all it reads would never reach the end.
 */
static void listing_begin(struct dir *dir, const Rozo__MdReaddirResp *page, bool rewound)
{
    if (rewound || dir->until == 0)
        dir->until = page->next_cookie;
}

static bool listing_has(const struct dir *dir, uint64_t cookie)
{
    return dir->until == 0 || cookie < dir->until; /* 0: exportd is too old to send it */
}

/* Adds entries from r->offset on until the buffer is full. */
static void fill_from_page(struct readdir_op *r)
{
    struct fuse_op *op = &r->op;
    struct dir *dir = r->dir;
    const Rozo__MdReaddirResp *page = dir->page;
    bool may_tell = r->plus && loop_may_tell(op->loop);
    char name[NAME_BYTES_MAX + 1];
    struct fuse_entry_param e;

    if (!add_dots(r, page->parent))
        return;
    /* The tokens that came with the page are those of each entry. */
    op->entry.grant = (struct md_grant){ .number = page->grant,
                                         .dir = (enum token_mode)page->dir_token,
                                         .others = page->others };
    for (; dir->next < page->n_entries; dir->next++) {
        const Rozo__MdReaddirResp__Entry *entry = page->entries[dir->next];

        if (!listing_has(dir, entry->cookie))
            return;
        memcpy(name, entry->name.data, entry->name.len);
        name[entry->name.len] = '\0';
        entry_fill(op, entry, name, may_tell, &e);
        if (!add_entry(r, name, &e, entry->cookie + OFFSET_DOT_DOT))
            return;
        if (r->plus && e.ino != 0 && S_ISDIR(e.attr.st_mode))
            dir_places_note(op->loop->mount->dir_places,
                            &(struct dir_place){ e.ino, op->ino, name });
        dir->next_after = entry->cookie;
    }
}

static void readdir_answer(struct readdir_op *r)
{
    fuse_req_t req = r->op.req;

    r->op.req = NULL;
    fuse_reply_buf(req, r->op.memory, r->n_bytes);
}

/*
 * Records the names of a page, so that a LOOKUP of a name that is not there needs no
 * request. Called with the token lock.
 */
static void page_note_names(struct fuse_op *op, const Rozo__MdReaddirResp *page,
                            uint64_t after)
{
    struct listed_name *names = xzalloc((page->n_entries + 1) * sizeof(*names));
    struct listed_names l = {
        .dir = op->ino,
        .grant = page->grant,
        .after = after,
        .to = after,
        .end = page->end,
        .changes = op->changes.entry,
        .n = page->n_entries,
        .names = names,
    };

    for (size_t i = 0; i < l.n; i++) {
        const Rozo__MdReaddirResp__Entry *entry = page->entries[i];

        names[i] =
            (struct listed_name){ (const char *)entry->name.data, entry->name.len };
        l.to = entry->cookie;
    }
    token_cache_names_listed(op->loop->mount->tokens, &l);
    free(names);
}

void fuse_op_take_page(struct fuse_op *op, const Rozo__MdReaddirResp *page,
                       uint64_t after)
{
    struct token_cache *t = op->loop->mount->tokens;

    if (page->grant == 0)
        return;
    token_cache_note_others(t, page->others);
    token_cache_lock(t);
    token_cache_grant_locked(t, op->ino, (enum token_mode)page->dir_token, page->grant);
    if (page->dir_token != ROZO__TOKEN_MODE__TOKEN_NONE)
        page_note_names(op, page, after);
    for (size_t i = 0; i < page->n_entries; i++) {
        struct md_attr attr;

        if (page->entries[i]->attr != NULL &&
            md_attr_check(page->entries[i]->attr, &attr) == 0) {
            fuse_op_take_attr_grant(op, &attr, page->grant);
            if (page->entries[i]->xattrs != NULL)
                fuse_op_keep_xattrs(op, attr.ino, page->entries[i]->xattrs, page->grant);
        }
    }
    token_cache_unlock(t);
    file_prefetch_listed(op->loop->mount, op->ino, after, page);
    recalls_trim(op->loop);
}

/* Returns the cookie before the entries wanted. */
static uint64_t readdir_after(const struct readdir_op *r)
{
    return r->offset <= OFFSET_DOT_DOT ? 0 : r->offset - OFFSET_DOT_DOT;
}

/* Answers from the page of an earlier request if it has what follows. */
static enum step_end readdir_continue(struct fuse_op *op)
{
    struct readdir_op *r = (struct readdir_op *)op;
    struct dir *dir = r->dir;
    bool continues = dir->page != NULL && r->offset > OFFSET_DOT_DOT && !r->plus &&
                     r->offset - OFFSET_DOT_DOT == dir->next_after &&
                     (dir->next < dir->page->n_entries || dir->page->end);

    dir_listing_came(op->loop, dir);
    op->memory = xrealloc(NULL, r->size); /* only the used part is filled */
    if (!continues)
        return STEP_GO;
    fill_from_page(r);
    readdir_answer(r);
    return fuse_op_finish(op);
}

static enum step_end readdir_ask(struct fuse_op *op)
{
    const struct readdir_op *r = (struct readdir_op *)op;
    Rozo__MdReaddirReq msg = ROZO__MD_READDIR_REQ__INIT;
    size_t n = r->plus ? r->size / ENTRY_PLUS_BYTES : PAGE_ENTRIES_MAX;

    if (!r->plus && r->offset <= OFFSET_DOT_DOT) /* most directories are small */
        n = 2 * r->size / ENTRY_BYTES;
    if (n < PAGE_ENTRIES_MIN)
        n = PAGE_ENTRIES_MIN;
    if (n > PAGE_ENTRIES_MAX)
        n = PAGE_ENTRIES_MAX;
    msg.ino = op->ino;
    msg.cookie = readdir_after(r);
    msg.max_entries = (uint32_t)n;
    msg.plus = r->plus;
    msg.xattrs =
        r->plus && mount_wants_xattrs(op->loop->mount, env_now_ns(&op->loop->env.env));
    return fuse_op_ask(op, ROZO__OP__MD_READDIR, &msg.base);
}

static int readdir_take_page(struct readdir_op *r)
{
    struct dir *dir = r->dir;

    dir_drop_page(dir);
    if (r->op.rc != 0)
        return r->op.rc == -ENOENT ? -ESTALE : r->op.rc;
    dir->page =
        md_decode_readdir(&r->op.call, readdir_after(r), r->plus, &dir->page_arena);
    return dir->page == NULL ? -EIO : 0;
}

static enum step_end readdir_answered(struct fuse_op *op)
{
    struct readdir_op *r = (struct readdir_op *)op;
    uint64_t after = readdir_after(r);
    struct dir *dir = r->dir;
    int rc = readdir_take_page(r);

    if (rc == -ESTALE) { /* removed while open: empty */
        readdir_answer(r);
        return fuse_op_finish(op);
    }
    if (rc != 0)
        return fuse_op_end(op, rc);
    dir_note_read(op->loop, dir);
    dir->next = 0;
    dir->next_after = after;
    listing_begin(dir, dir->page, r->offset <= OFFSET_DOT_DOT);
    fuse_op_take_page(op, dir->page, after);
    token_cache_lock(op->loop->mount->tokens);
    fill_from_page(r);
    if (r->plus) {
        dir_drop_page(dir); /* entries that did not fit are too old next time */
        dir->is_listing = true;
        name_inval_listing_goes(op->loop->mount->name_inval, dir->ino);
    }
    readdir_answer(r);
    token_cache_unlock(op->loop->mount->tokens);
    return fuse_op_finish(op);
}

static void readdir_start(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
                          bool plus, struct fuse_file_info *fi)
{
    static fuse_op_step *const steps[] = {
        fuse_op_goto_owner, readdir_continue, readdir_ask, readdir_answered, NULL,
    };
    struct readdir_op *r = fuse_op_begin(req, sizeof(*r));

    r->op.ino = ino;
    r->size = size;
    r->offset = (uint64_t)off;
    r->plus = plus;
    r->dir = dir_of(req, ino, fi);
    if (r->dir == NULL)
        fuse_op_reply_err(&r->op, -EBADF);
    else if (off < 0 || size > IO_MAX)
        fuse_op_reply_err(&r->op, -EINVAL);
    else
        fuse_op_start(&r->op, steps);
}

void fs_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
                struct fuse_file_info *fi)
{
    readdir_start(req, ino, size, off, false, fi);
}

void fs_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
                    struct fuse_file_info *fi)
{
    readdir_start(req, ino, size, off, true, fi);
}
