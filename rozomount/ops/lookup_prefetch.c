/*
 * lookup_prefetch.c - prefetch of names for a program that looks up name after name in a
 * directory.
 *
 * In:     LOOKUP, when exportd would have to be asked.
 * Out:    MD_READDIR with attributes; then the LOOKUP again.
 * Keeps:  prefetched answers came with tokens of the directory and of the inode that we
 *         still hold, and none of our own operations has changed either since. Files open
 *         here are not answered: their owner loop may know newer attributes.
 * Ask:    token_cache.c for the number of names to prefetch, and when.
 */
#include "rozomount/ops/lookup_prefetch.h"

#include "rozomount/op/fuse_op.h"
#include "rozomount/op/handle.h"
#include "rozomount/op/mount.h"
#include "rozomount/op/read_past_eof.h"
#include "rozomount/op/recall_inval.h"
#include "rozomount/op/token_recall.h"
#include "rozomount/ops/fs_privileges.h"
#include "rozomount/ops/fuse_ops.h"
#include "rozomount/ops/unalias.h"

/* One token lock covers all of this: an owner loop counts a file as closed only after
 * these attributes are dropped, and a recall either comes before, or sees what the kernel
 * got. */
bool lookup_prefetch_answers(struct fuse_op *op)
{
    struct mount *m = op->loop->mount;
    struct token_cache *t = m->tokens;
    struct md_entry *e = &op->entry;
    bool known;

    token_cache_lock(t);
    fuse_op_note_asked(op);
    known =
        loop_may_tell(op->loop) &&
        token_cache_take_prefetched(t, op->ino, op->name, &e->attr, &e->grant.number) &&
        !mount_may_be_open(m, e->attr.ino) && fuse_op_dir_is_free(op);
    if (known) {
        e->grant.dir = TOKEN_SHARED;
        e->grant.others = token_cache_has_others(t);
        fuse_op_answer_entry(op);
    }
    token_cache_unlock(t);
    return known;
}

/* Called with the token lock. */
static void keep_page(struct fuse_op *op, const Rozo__MdReaddirResp *page)
{
    for (size_t i = 0; i < page->n_entries; i++) {
        const Rozo__MdReaddirResp__Entry *e = page->entries[i];
        const struct listed_name name = { (const char *)e->name.data, e->name.len };
        struct md_attr attr;

        if (e->attr != NULL && md_attr_check(e->attr, &attr) == 0)
            token_cache_keep_prefetched(op->loop->mount->tokens, op->ino, &name, &attr,
                                        page->grant, op->changes.entry);
    }
}

enum step_end lookup_prefetch_answered(struct fuse_op *op)
{
    struct token_cache *t = op->loop->mount->tokens;
    const struct prefetch_answer part = { op->ino, ((struct lookup_op *)op)->after, 0 };
    Rozo__MdReaddirResp *page = NULL;
    struct arena arena;
    uint64_t next = 0;

    if (op->rc == 0)
        page = md_decode_readdir(&op->call, part.after, true, &arena);
    if (page != NULL && !page->end)
        next = page->entries[page->n_entries - 1]->cookie;
    if (page != NULL)
        fuse_op_take_page(op, page, part.after);
    token_cache_lock(t);
    if (page != NULL && loop_may_tell(op->loop))
        keep_page(op, page);
    token_cache_prefetch_came(t, &part, next);
    token_cache_unlock(t);
    if (page != NULL)
        arena_free(&arena);
    /* without an answer the LOOKUP has timed out, too */
    return op->rc != 0 && !op->call.answered ? STEP_END : STEP_GO;
}

bool lookup_prefetch_begin(struct lookup_op *l)
{
    struct fuse_op *op = &l->op;
    struct token_cache *t = op->loop->mount->tokens;
    Rozo__MdReaddirReq msg = ROZO__MD_READDIR_REQ__INIT;
    struct prefetch_answer part;
    bool goes;

    token_cache_lock(t);
    goes = loop_may_tell(op->loop) && token_cache_prefetch_next(t, op->ino, &part);
    token_cache_unlock(t);
    if (!goes)
        return false;
    l->after = part.after;
    msg.ino = op->ino;
    msg.cookie = part.after;
    msg.max_entries = part.n;
    msg.plus = true;
    msg.xattrs = mount_wants_xattrs(op->loop->mount, env_now_ns(&op->loop->env.env));
    fuse_op_ask(op, ROZO__OP__MD_READDIR, &msg.base);
    return true;
}
