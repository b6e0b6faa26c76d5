/*
 * inodes.c - AD_INODES: the files of an export that own data, and their paths.
 *
 * In:     the call, from an administrator.
 * Out:    its answer. With paths it comes later: a file's inode does not know its names,
 *         so all names of the export are scanned, some in each turn of the loop, while
 *         other calls are served.
 * Keeps:  bounded in keys a turn, in inodes and bytes of paths an answer, in concurrent
 *         answers.
 */
#include <errno.h>
#include <stdio.h>

#include "common/base/bytes.h"
#include "common/base/log.h"
#include "exportd/cluster/answer.h"
#include "exportd/cluster/cluster.h"
#include "exportd/cluster/exportd_state.h"
#include "exportd/namespace/inode_ref.h"
#include "exportd/requests/requests.h"

enum {
    INODES_MAX = 4096,
    PATHS_MAX = 1024,      /* inodes of a call that wants paths, or names them */
    KEYS_A_CALL = 16384,   /* inodes looked at by one call */
    NAMES_A_TURN = 8192,   /* names looked at in one turn of the loop */
    DIRS_MAX = 65536,      /* directories whose names are remembered */
    PATH_MAX_BYTES = 4096, /* longer paths are cut at the front */
    PATHS_BYTES = 2 << 20, /* bytes, all paths of an answer */
    LISTINGS_MAX = 4,
};

/* One inode of the answer. */
struct listed {
    struct inode in; /* if removed: only ino and generation are set */
    bool removed;
    bool named;      /* a name was found */
    uint64_t parent; /* directory of the name */
    size_t name_len;
    uint8_t name[NAMESPACE_NAME_MAX];
    char *path; /* owned */
    UT_hash_handle hh;
};

/* Name of a directory. */
struct dir_name {
    uint64_t ino; /* key */
    uint64_t parent;
    size_t len;
    UT_hash_handle hh;
    uint8_t name[];
};

/* Directory with a file of the answer. Its name is noted when names of its parent are
 * scanned for another one. */
struct dir_wanted {
    uint64_t ino; /* key */
    uint64_t parent;
    UT_hash_handle hh;
};

enum listing_state {
    LISTING_NAMES, /* looking for a name of each file */
    LISTING_PATHS, /* looking for the directories above them */
    LISTING_DONE,
};

/* One AD_INODES, from its request until the answer. */
struct listing {
    struct list_node link; /* in the list of all */
    struct exportd *x;
    struct export *export; /* borrowed: exports are never removed */
    struct rpc_call *call; /* owned, with paths; else NULL */
    enum listing_state state;
    struct env_timer next; /* starts the next turn */
    uint64_t *unknown;     /* owned; numbers that belong to no file */
    size_t n_unknown;
    size_t n, n_max;
    struct listed *items;  /* owned */
    struct listed *by_ino; /* index of items */
    size_t n_unnamed;
    struct key cursor;
    struct dir_name *dirs; /* owned */
    unsigned n_dirs;
    bool any_type; /* part of the items may be no files */
    bool looking;  /* names of dir_parent are being scanned */
    /* directory looked for; 0: found, only others are still noted */
    uint64_t dir, dir_parent;
    struct dir_wanted *wanted;        /* owned; n_wanted of them */
    struct dir_wanted *wanted_by_ino; /* index of those without a name yet */
    size_t n_wanted, n_here;          /* all; those in dir_parent */
    size_t at;                        /* paths are made up to this item */
    size_t path_bytes;
    uint64_t after;
    bool end;
    int rc;
};

/* ---- choice of inodes ---- */

static struct listed *item_add(struct listing *l, const struct inode *in, bool removed)
{
    struct listed *item;

    item = hash_find(l->by_ino, in->ino);
    if (item != NULL || l->n == l->n_max)
        return item;
    item = &l->items[l->n++];
    item->in = *in;
    item->removed = removed;
    hash_add(l->by_ino, in.ino, item);
    l->n_unnamed += !removed && in->nlink > 0;
    return item;
}

static bool on_file(void *arg, const struct inode *in)
{
    struct listing *l = arg;

    if (!inode_may_have_data(in))
        return true;
    return item_add(l, in, false) != NULL;
}

/* Reads the generation from the record of a removed file under this key. */
static bool removed_get(struct exportd *x, const struct key *k, uint32_t *generation)
{
    const uint8_t *val;
    size_t len;

    if (store_get(x->store, k, &val, &len) != 0 || len < 6)
        return false;
    *generation = get_le32(val + 2);
    return true;
}

/* Lists a missing inode as removed if storages are still being asked to remove it. */
static void removed_look(struct listing *l, uint64_t ino)
{
    struct inode in = { .ino = ino };
    struct key k;
    bool found;

    key_ino(&k, KEY_DELETION, l->export->id, ino);
    found = removed_get(l->x, &k, &in.generation);
    LIST_FOREACH(node, &l->x->storages) {
        struct cluster_storage *s = container_of(node, struct cluster_storage, link);

        if (found || deletions_missed(s) == 0)
            continue;
        key_waiting(&k, s->facts.id, l->export->id, ino);
        found = removed_get(l->x, &k, &in.generation);
    }
    if (found)
        item_add(l, &in, true);
    else if (!namespace_was_given_out(&l->export->ns, ino))
        l->unknown[l->n_unknown++] = ino;
}

static int only_get(struct listing *l, const uint64_t *inos, size_t n)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < n; i++) {
        struct inode in;

        rc = namespace_getattr(&l->export->ns, inos[i], &in);
        if (rc == 0 && (l->any_type || inode_is_file(&in)))
            item_add(l, &in, false);
        else if (rc == 0) /* no file had this number, as far as is known */
            l->unknown[l->n_unknown++] = inos[i];
        else if (rc == -ESTALE)
            removed_look(l, inos[i]);
        rc = rc == -ESTALE ? 0 : rc;
    }
    l->end = true;
    return rc;
}

/* ---- the answer ---- */

/* Message and everything that it points at. */
struct inode_parts {
    Rozo__AdInodesResp__Inode msg;
    Rozo__FileRef ref;
    uint8_t id[FILE_ID_BYTES];
};

static void inode_message(const struct listing *l, const struct listed *item,
                          struct inode_parts *p)
{
    rozo__ad_inodes_resp__inode__init(&p->msg);
    inode_ref_fill(l->export->id, &item->in, p->id, &p->ref);
    p->msg.ref = &p->ref;
    p->msg.size = item->removed ? 0 : inode_final_size(&item->in);
    p->msg.has_data =
        (item->in.flags & (INODE_HAS_DATA | INODE_INLINE)) ==
        INODE_HAS_DATA; /* storages need not have anything of an inline file */
    p->msg.orphan = !item->removed && item->in.nlink == 0;
    p->msg.removed = item->removed;
    if (item->path != NULL)
        p->msg.path = item->path;
}

/* Fills an answer that borrows from *parts and *list; free() both. */
static int resp_fill(const struct listing *l, Rozo__AdInodesResp *resp,
                     struct inode_parts **parts, Rozo__AdInodesResp__Inode ***list)
{
    *parts = calloc(l->n + 1, sizeof(**parts));
    *list = calloc(l->n + 1, sizeof(**list));
    if (*parts == NULL || *list == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < l->n; i++) {
        inode_message(l, &l->items[i], &(*parts)[i]);
        (*list)[i] = &(*parts)[i].msg;
    }
    resp->n_inodes = l->n;
    resp->inodes = *list;
    resp->end = l->end;
    resp->after = l->after;
    resp->n_unknown = l->n_unknown;
    resp->unknown = l->unknown;
    return 0;
}

/* Answers in op, or later, without op, by the call. */
static int listing_answer(struct listing *l, struct md_op *op)
{
    Rozo__AdInodesResp resp = ROZO__AD_INODES_RESP__INIT;
    struct inode_parts *parts = NULL;
    Rozo__AdInodesResp__Inode **list = NULL;
    int rc = l->rc;

    if (rc == 0)
        rc = resp_fill(l, &resp, &parts, &list);
    if (op == NULL)
        call_answer(l->x, l->call, rc, rc == 0 ? &resp.base : NULL, true);
    else if (rc == 0)
        rc = md_op_pack(op, &resp.base);
    free(parts);
    free(list);
    return rc;
}

static void listing_free(struct listing *l)
{
    struct dir_name *d, *tmp;

    HASH_ITER(hh, l->dirs, d, tmp)
    {
        HASH_DEL(l->dirs, d);
        free(d);
    }
    HASH_CLEAR(hh, l->wanted_by_ino);
    free(l->wanted);
    HASH_CLEAR(hh, l->by_ino);
    for (size_t i = 0; i < l->n; i++)
        free(l->items[i].path);
    free(l->items);
    free(l->unknown);
    free(l);
}

/* ---- paths ---- */

static bool on_name(void *arg, const struct namespace_named *named)
{
    struct listing *l = arg;
    struct listed *item;

    if (!l->any_type && !S_ISREG(named->type))
        return true;
    item = hash_find(l->by_ino, named->ino);
    if (item == NULL || item->named || item->removed || item->in.nlink == 0 ||
        named->name.len > sizeof(item->name))
        return true;
    item->named = true;
    item->parent = named->dir;
    item->name_len = named->name.len;
    memcpy(item->name, named->name.bytes, named->name.len);
    return --l->n_unnamed > 0;
}

static int wanted_add(struct listing *l, uint64_t dir)
{
    struct dir_wanted *w;
    struct inode in;
    int rc;

    w = hash_find(l->wanted_by_ino, dir);
    if (w != NULL || dir == NAMESPACE_ROOT_INO)
        return 0;
    rc = namespace_getattr(&l->export->ns, dir, &in);
    if (rc != 0)
        return rc == -ESTALE ? 0 : rc;
    w = &l->wanted[l->n_wanted++];
    w->ino = dir;
    w->parent = in.parent;
    hash_add(l->wanted_by_ino, ino, w);
    return 0;
}

/* Collects the directories of all files whose names were found. */
static int wanted_collect(struct listing *l)
{
    int rc = 0;

    l->wanted = calloc(l->n + 1, sizeof(*l->wanted));
    if (l->wanted == NULL)
        return -ENOMEM;
    for (size_t i = 0; rc == 0 && i < l->n; i++)
        rc = l->items[i].named ? wanted_add(l, l->items[i].parent) : 0;
    return rc;
}

static int dir_add(struct listing *l, uint64_t ino, struct namespace_name name)
{
    struct dir_name *d = calloc(1, sizeof(*d) + name.len);
    struct dir_wanted *w;

    if (d == NULL)
        return -ENOMEM;
    w = hash_find(l->wanted_by_ino, ino);
    if (w != NULL)
        HASH_DEL(l->wanted_by_ino, w);
    d->ino = ino;
    d->parent = l->dir_parent;
    d->len = name.len;
    memcpy(d->name, name.bytes, name.len);
    hash_add(l->dirs, ino, d);
    l->n_dirs++;
    if (l->dir == ino)
        l->dir = 0;
    return 0;
}

static bool on_dir_name(void *arg, const struct namespace_named *named)
{
    struct listing *l = arg;
    struct dir_wanted *w;

    w = hash_find(l->wanted_by_ino, named->ino);
    if (w == NULL && named->ino != l->dir)
        return true;
    if (w != NULL && w->parent == l->dir_parent)
        l->n_here--;
    l->rc = dir_add(l, named->ino, named->name);
    l->looking = l->rc == 0 && (l->dir != 0 || l->n_here > 0);
    return l->looking;
}

/* Begins to look for a directory's name. One that cannot be found is shown below the root
 * as "?". */
static void dir_want(struct listing *l, uint64_t ino)
{
    struct inode in;

    l->dir = ino;
    l->cursor.len = 0;
    l->dir_parent = NAMESPACE_ROOT_INO;
    if (namespace_getattr(&l->export->ns, ino, &in) != 0 || !inode_is_dir(&in) ||
        in.nlink == 0) {
        l->rc = dir_add(l, ino, (struct namespace_name){ (const uint8_t *)"?", 1 });
        return;
    }
    l->looking = true;
    l->dir_parent = in.parent;
    l->n_here = 0;
    for (size_t i = 0; i < l->n_wanted; i++) {
        struct dir_wanted *w = &l->wanted[i], *unknown;

        unknown = hash_find(l->wanted_by_ino, w->ino);
        l->n_here += unknown == w && w->parent == in.parent;
    }
}

/* Scans names for one turn. */
static void dir_look(struct listing *l)
{
    bool end;
    int rc = namespace_names(&l->export->ns, l->dir_parent, &l->cursor, NAMES_A_TURN,
                             on_dir_name, l, &end);

    if (l->rc == 0)
        l->rc = rc;
    if (end)
        l->looking = false;
    if (l->rc == 0 && end && l->dir != 0) /* renamed meanwhile */
        l->rc = dir_add(l, l->dir, (struct namespace_name){ (const uint8_t *)"?", 1 });
}

/* Puts "/NAME" before the path that ends at the end of buf. */
static bool path_prepend(char buf[PATH_MAX_BYTES], size_t *start, const uint8_t *name,
                         size_t len)
{
    if (*start < len + 1 + sizeof("..."))
        return false;
    *start -= len;
    memcpy(buf + *start, name, len);
    buf[--*start] = '/';
    return true;
}

/* Makes the path of an item if all directories above have names; else begins to look for
 * one. */
static char *path_make(struct listing *l, const struct listed *item)
{
    char buf[PATH_MAX_BYTES];
    size_t start = sizeof(buf) - 1;
    uint64_t dir = item->parent;
    char *path;
    bool fits = path_prepend(buf, &start, item->name, item->name_len);

    buf[sizeof(buf) - 1] = '\0';
    while (fits && dir != NAMESPACE_ROOT_INO) {
        const struct dir_name *d = hash_find(l->dirs, dir);

        if (d == NULL && l->n_dirs < DIRS_MAX) {
            dir_want(l, dir);
            return NULL;
        }
        fits = d != NULL && path_prepend(buf, &start, d->name, d->len);
        dir = d == NULL ? NAMESPACE_ROOT_INO : d->parent;
    }
    if (!fits) {
        start -= 3;
        memcpy(buf + start, "...", 3);
    }
    path = strdup(buf + start + (fits ? 1 : 0));
    if (path == NULL)
        l->rc = -ENOMEM;
    return path;
}

/* Makes paths until a name is missing. */
static void paths_make(struct listing *l)
{
    while (l->rc == 0 && l->at < l->n && l->path_bytes < PATHS_BYTES) {
        struct listed *item = &l->items[l->at];

        if (item->named) {
            item->path = path_make(l, item);
            if (l->looking || l->rc != 0)
                return;
            if (item->path == NULL)
                continue; /* the name is known now, as "?" */
            l->path_bytes += strlen(item->path);
        }
        l->at++;
    }
    l->state = LISTING_DONE;
}

static void listing_end(struct listing *l)
{
    listing_answer(l, NULL);
    list_remove(&l->link);
    l->x->requests->listings.n--;
    listing_free(l);
}

static void listing_step(struct listing *l)
{
    bool end = l->n_unnamed == 0;

    switch (l->rc != 0 ? LISTING_DONE : l->state) {
    case LISTING_NAMES:
        if (!end)
            l->rc = namespace_names(&l->export->ns, 0, &l->cursor, NAMES_A_TURN, on_name,
                                    l, &end);
        if (l->rc == 0 && end) {
            l->rc = wanted_collect(l);
            l->state = LISTING_PATHS;
        }
        break;
    case LISTING_PATHS:
        if (l->looking)
            dir_look(l);
        else
            paths_make(l);
        break;
    case LISTING_DONE:
        listing_end(l);
        return;
    }
    env_timer_start(l->x->env, &l->next, 0);
}

static void on_next(struct env_timer *timer)
{
    listing_step(container_of(timer, struct listing, next));
}

void listings_init(struct listings *all)
{
    list_init(&all->list);
}

void listings_stop(struct exportd *x)
{
    LIST_FOREACH_SAFE(node, &x->requests->listings.list) {
        struct listing *l = container_of(node, struct listing, link);

        env_timer_stop(x->env, &l->next);
        l->rc = -EBUSY;
        listing_end(l);
    }
}

/* ---- the call ---- */

static int req_check(const Rozo__AdInodesReq *req)
{
    bool few = req->with_paths || req->n_only > 0;

    if (req->n_only > PATHS_MAX)
        return -EINVAL;
    if (req->n_only == 0 &&
        (req->max_inodes < 1 || req->max_inodes > (few ? PATHS_MAX : INODES_MAX)))
        return -EINVAL;
    return 0;
}

static int listing_new(struct exportd *x, struct export *e, const Rozo__AdInodesReq *req,
                       struct listing **out)
{
    struct listing *l = calloc(1, sizeof(*l));

    if (l == NULL)
        return -ENOMEM;
    l->x = x;
    l->export = e;
    l->after = req->after;
    l->any_type = req->any_type && req->n_only > 0;
    l->n_max = req->n_only > 0 ? req->n_only : req->max_inodes;
    l->items = calloc(l->n_max, sizeof(*l->items));
    l->unknown = calloc(req->n_only + 1, sizeof(*l->unknown));
    env_timer_init(&l->next, on_next);
    *out = l;
    if (l->items != NULL && l->unknown != NULL)
        return 0;
    listing_free(l);
    return -ENOMEM;
}

int ad_inodes(struct md_op *op, const ProtobufCMessage *msg)
{
    const Rozo__AdInodesReq *req = (const Rozo__AdInodesReq *)msg;
    struct exportd *x = op->x;
    struct export *e = export_find(x, req->export_id);
    struct listing *l;
    int rc = req_check(req);

    if (rc == 0 && e == NULL)
        rc = -ENOENT;
    if (rc == 0 && req->with_paths && x->requests->listings.n >= LISTINGS_MAX)
        rc = -EBUSY;
    if (rc == 0)
        rc = listing_new(x, e, req, &l);
    if (rc != 0)
        return rc;
    if (req->n_only > 0)
        rc = only_get(l, req->only, req->n_only);
    else
        rc = namespace_files(&e->ns, &l->after, KEYS_A_CALL, on_file, l, &l->end);
    if (rc == 0 && req->with_paths) {
        l->call = op->call;
        op->call = NULL;
        list_add_tail(&x->requests->listings.list, &l->link);
        x->requests->listings.n++;
        env_timer_start(x->env, &l->next, 0);
        return 0;
    }
    if (rc == 0)
        rc = listing_answer(l, op);
    listing_free(l);
    return rc;
}
