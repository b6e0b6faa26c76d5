/*
 * check.c - the metadata checked against itself, key by key.
 *
 * In:     a kv as exportd leaves it.
 * Out:    nothing, or an error text and the end of the process.
 */
#include "tests/unit/exportd/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/bytes.h"
#include "exportd/namespace/fold.h"
#include "exportd/namespace/namespace.h"
#include "exportd/store/key.h"
#include "exportd/store/kv_record.h"

/* Inode with the facts that other keys have about it. */
struct node {
    uint32_t export_id;
    struct inode in;
    uint64_t n_names, n_subdirs, n_entries, last_cookie;
    uint64_t named_in; /* for a directory: its parent */
    bool orphan, symlink, xattrs, data, blocks, moved;
};

struct check {
    struct kv *kv;
    struct kv_iter *it;
    struct node *nodes; /* owned; in order of export and number */
    size_t n, room;
    uint64_t n_folded; /* names of exports that have an index of folded names */
};

static void wrong(const char *what, const uint8_t *key, size_t len)
{
    fprintf(stderr, "kv_check: %s; key:", what);
    for (size_t i = 0; i < len; i++)
        fprintf(stderr, " %02x", key[i]);
    fprintf(stderr, "\n");
    abort();
}

/* Returns the current key, or NULL past the last one of this kind. Checks its length. */
static const uint8_t *key_of_kind(struct check *c, enum key_kind kind, size_t len_min,
                                  size_t len_max, size_t *len)
{
    const uint8_t *key;

    if (!kv_iter_valid(c->it))
        return NULL;
    key = kv_iter_key(c->it, len);
    if (key[0] != kind)
        return NULL;
    if (*len < len_min || *len > len_max)
        wrong("a key of the wrong length", key, *len);
    return key;
}

static struct node *node_find(struct check *c, const uint8_t *key)
{
    uint32_t export_id = key_get_u32(key + 1);
    uint64_t ino = key_get_u64(key + 5);
    size_t low = 0, high = c->n;

    while (low < high) {
        size_t mid = (low + high) / 2;
        struct node *n = &c->nodes[mid];

        if (n->export_id == export_id && n->in.ino == ino)
            return n;
        if (n->export_id < export_id || (n->export_id == export_id && n->in.ino < ino))
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}

static struct node *node_need(struct check *c, const uint8_t *key, size_t key_len)
{
    struct node *n = node_find(c, key);

    if (n == NULL)
        wrong("of an inode that is not there", key, key_len);
    return n;
}

static bool kv_has(struct kv *kv, const struct key *k, uint8_t *out, size_t room,
                   size_t *len)
{
    void *val;

    if (kv_get(kv, k->bytes, k->len, &val, len) != 0)
        return false;
    if (*len > room)
        wrong("a value that is too long", k->bytes, k->len);
    memcpy(out, val, *len);
    free(val);
    return true;
}

static void load_inodes(struct check *c)
{
    const uint8_t *key, *val;
    size_t key_len, len;

    for (kv_iter_seek(c->it, "I", 1);
         (key = key_of_kind(c, KEY_INODE, 13, 13, &key_len)) != NULL;
         kv_iter_next(c->it)) {
        struct node *n;

        if (c->n == c->room) {
            c->room = c->room * 2 + 64;
            c->nodes = realloc(c->nodes, c->room * sizeof(*c->nodes));
            if (c->nodes == NULL)
                abort();
        }
        n = &c->nodes[c->n++];
        *n = (struct node){ .export_id = key_get_u32(key + 1) };
        val = kv_iter_val(c->it, &len);
        if (inode_decode(&n->in, key_get_u64(key + 5), val, len) != 0)
            wrong("an inode that makes no sense", key, key_len);
    }
}

/* Returns true if an export has an index of folded names. */
static bool folds(struct check *c, uint32_t export_id)
{
    enum {
        NUMBERS = 4,
        INLINED = 2,
        FOLDED = 4
    }; /* volume, codec, layout, block bytes */
    uint8_t record[KV_RECORD_BYTES_MAX];
    char name[KV_RECORD_BYTES_MAX + 1];
    struct kv_record_in f;
    uint32_t flags;
    size_t len;
    struct key k;

    key_id(&k, KEY_EXPORT, export_id);
    if (!kv_has(c->kv, &k, record, sizeof(record), &len))
        wrong("an export without a record", k.bytes, k.len);
    kv_record_read(&f, record, len);
    kv_record_get_text(&f, name, KV_RECORD_BYTES_MAX);
    for (unsigned i = 0; i < NUMBERS; i++)
        kv_record_get_u32(&f);
    flags = kv_record_end(&f) ? 0 : kv_record_get_u32(&f);
    if ((flags & INLINED) != 0)
        kv_record_get_u32(&f);
    return (flags & FOLDED) != 0 && kv_record_get_u32(&f) == FOLD_RULES;
}

/* Checks that a name has its key in the index of folded names, if there is one. */
static void check_folded(struct check *c, const uint8_t *key, size_t key_len,
                         uint64_t cookie)
{
    struct folded f;
    uint8_t none[1];
    size_t len;
    struct key k;

    if (!folds(c, key_get_u32(key + 1)))
        return;
    fold_name(key + 13, key_len - 13, &f);
    key_folded(&k, key_get_u32(key + 1), key_get_u64(key + 5), fold_hash(&f), cookie);
    if (!kv_has(c->kv, &k, none, 0, &len))
        wrong("a name that is not in the index of folded names", key, key_len);
    c->n_folded++;
}

/* Checks that the index has no more keys than names: each name has one. */
static void check_index(struct check *c)
{
    const uint8_t *key;
    size_t key_len;
    uint64_t n = 0;

    for (kv_iter_seek(c->it, "J", 1);
         (key = key_of_kind(c, KEY_FOLDED, 29, 29, &key_len)) != NULL;
         kv_iter_next(c->it))
        n++;
    if (n != c->n_folded)
        wrong("keys of folded names without names", (const uint8_t *)"J", 1);
}

static void check_dentries(struct check *c)
{
    const uint8_t *key, *val;
    size_t key_len, len;

    for (kv_iter_seek(c->it, "D", 1);
         (key = key_of_kind(c, KEY_DENTRY, 14, 13 + NAMESPACE_NAME_MAX, &key_len)) !=
         NULL;
         kv_iter_next(c->it)) {
        struct node *dir = node_need(c, key, key_len), *n;
        uint8_t order[512], of_ino[13];
        size_t order_len;
        struct key k;

        val = kv_iter_val(c->it, &len);
        if (len != 21 || val[0] != 1)
            wrong("a name that makes no sense", key, key_len);
        memcpy(of_ino, key, 5);
        for (unsigned i = 0; i < 8; i++)
            of_ino[5 + i] = val[8 - i];
        n = node_find(c, of_ino);
        if (n == NULL || get_le32(val + 9) != (n->in.mode & S_IFMT))
            wrong("a name of nothing, or of another type", key, key_len);
        key_order(&k, dir->export_id, dir->in.ino, get_le64(val + 13));
        if (!kv_has(c->kv, &k, order, sizeof(order), &order_len) ||
            order_len != key_len || memcmp(order, val, 13) != 0 ||
            memcmp(order + 13, key + 13, key_len - 13) != 0)
            wrong("a name without its place in the order", key, key_len);
        if (get_le64(val + 13) >= dir->in.next_cookie ||
            get_le64(val + 13) < NAMESPACE_COOKIE_FIRST)
            wrong("a cookie that was not given yet", key, key_len);
        check_folded(c, key, key_len, get_le64(val + 13));
        dir->n_entries++;
        n->n_names++;
        if (inode_is_dir(&n->in)) {
            dir->n_subdirs++;
            n->named_in = dir->in.ino;
        }
    }
}

/* Checks that there are as many places as names: each name has one, so each place has a
 * name. */
static void check_order(struct check *c)
{
    const uint8_t *key;
    size_t key_len;
    uint64_t n = 0, n_names = 0;

    for (kv_iter_seek(c->it, "O", 1);
         (key = key_of_kind(c, KEY_ORDER, 21, 21, &key_len)) != NULL; kv_iter_next(c->it))
        n++;
    for (size_t i = 0; i < c->n; i++)
        n_names += c->nodes[i].n_names;
    if (n != n_names)
        wrong("places in the order without names", (const uint8_t *)"O", 1);
}

static void check_marks(struct check *c, enum key_kind kind, size_t offset)
{
    const uint8_t first = (uint8_t)kind, *key;
    size_t key_len;

    for (kv_iter_seek(c->it, &first, 1);
         (key = key_of_kind(c, kind, 13, 13, &key_len)) != NULL; kv_iter_next(c->it))
        *((bool *)((char *)node_need(c, key, key_len) + offset)) = true;
}

/* Checks that each xattr is in the list of names of its inode. */
static void check_xattrs(struct check *c)
{
    static uint8_t list[NAMESPACE_XATTR_NAMES_MAX];
    const uint8_t *key;
    size_t key_len, len;
    uint64_t n_values = 0, n_names = 0;

    for (kv_iter_seek(c->it, "X", 1);
         (key = key_of_kind(c, KEY_XATTR, 14, 13 + NAMESPACE_NAME_MAX, &key_len)) != NULL;
         kv_iter_next(c->it)) {
        struct node *n = node_need(c, key, key_len);
        struct key k;
        bool found = false;

        n_values++;
        key_ino(&k, KEY_XATTRS, n->export_id, n->in.ino);
        if (!kv_has(c->kv, &k, list, sizeof(list), &len))
            wrong("an xattr of an inode that has none", key, key_len);
        for (size_t at = 0; at < len; at += strlen((char *)list + at) + 1)
            found = found || (strlen((char *)list + at) == key_len - 13 &&
                              memcmp(list + at, key + 13, key_len - 13) == 0);
        if (!found)
            wrong("an xattr that is not listed", key, key_len);
    }
    for (kv_iter_seek(c->it, "Y", 1);
         (key = key_of_kind(c, KEY_XATTRS, 13, 13, &key_len)) != NULL;
         kv_iter_next(c->it)) {
        const uint8_t *val = kv_iter_val(c->it, &len);

        if (len == 0 || val[len - 1] != 0)
            wrong("a list of xattrs without an end", key, key_len);
        for (size_t i = 0; i < len; i++)
            n_names += val[i] == 0;
    }
    if (n_names != n_values)
        wrong("as many xattr names as values", (const uint8_t *)"Y", 1);
}

/* Checks that no removal, new or unconfirmed, is of an existing inode. */
static void check_removed(struct check *c, enum key_kind kind, size_t skip)
{
    const uint8_t first = (uint8_t)kind, *key;
    size_t key_len;

    for (kv_iter_seek(c->it, &first, 1);
         (key = key_of_kind(c, kind, skip + 13, skip + 13, &key_len)) != NULL;
         kv_iter_next(c->it)) {
        if (node_find(c, key + skip) != NULL)
            wrong("a removal of an inode that is there", key, key_len);
    }
}

static void check_counters(struct check *c)
{
    const uint8_t *key, *val;
    size_t key_len, len;

    for (kv_iter_seek(c->it, "N", 1);
         (key = key_of_kind(c, KEY_COUNTERS, 5, 5, &key_len)) != NULL;
         kv_iter_next(c->it)) {
        uint64_t n = 0;

        val = kv_iter_val(c->it, &len);
        for (size_t i = 0; i < c->n; i++) {
            if (c->nodes[i].export_id != key_get_u32(key + 1))
                continue;
            n++;
            if (c->nodes[i].in.ino >= get_le64(val + 1))
                wrong("an inode number that was not given yet", key, key_len);
        }
        if (get_le64(val + 9) != n)
            wrong("another number of inodes than counted", key, key_len);
    }
}

/* Checks that no inode has a skipped number, and that gaps ascend and do not meet. */
static void check_gaps(struct check *c)
{
    uint64_t end = 0;
    uint32_t export_id = 0;
    const uint8_t *key, *val;
    size_t key_len, len;

    for (kv_iter_seek(c->it, "G", 1);
         (key = key_of_kind(c, KEY_GAP, 13, 13, &key_len)) != NULL; kv_iter_next(c->it)) {
        uint64_t from = key_get_u64(key + 5), to;

        val = kv_iter_val(c->it, &len);
        to = len == 9 ? get_le64(val + 1) : 0;
        if (key_get_u32(key + 1) != export_id)
            end = 0;
        export_id = key_get_u32(key + 1);
        if (to <= from || from <= end)
            wrong("a gap of inode numbers that makes no sense", key, key_len);
        end = to;
        for (size_t i = 0; i < c->n; i++) {
            if (c->nodes[i].export_id == export_id && c->nodes[i].in.ino >= from &&
                c->nodes[i].in.ino < to)
                wrong("an inode whose number was never given out", key, key_len);
        }
    }
}

static void check_node(struct check *c, const struct node *n)
{
    const struct inode *in = &n->in;
    bool root = in->ino == NAMESPACE_ROOT_INO;
    uint64_t up = in->ino;
    struct key k;

    key_ino(&k, KEY_INODE, n->export_id, in->ino);
    if (n->orphan != (in->nlink == 0))
        wrong("orphans are the ones without links", k.bytes, k.len);
    if (n->blocks != ((in->flags & INODE_BLOCKS) != 0))
        wrong("a map of blocks and no flag that says so, or the other way round", k.bytes,
              k.len);
    if (n->data != ((in->flags & INODE_INLINE) != 0))
        wrong("inline files are the ones with data", k.bytes, k.len);
    if (n->moved && (in->flags & INODE_MOVED) == 0)
        wrong("a distribution changes and no flag says so", k.bytes, k.len);
    if (n->symlink != S_ISLNK(in->mode))
        wrong("symlinks are the ones with targets", k.bytes, k.len);
    if (n->xattrs != ((in->flags & INODE_XATTRS) != 0))
        wrong("the flag says whether there are xattrs", k.bytes, k.len);
    if (!inode_is_dir(in)) {
        if (in->nlink != n->n_names)
            wrong("as many links as names", k.bytes, k.len);
        return;
    }
    if (in->n_entries != n->n_entries)
        wrong("another number of entries than counted", k.bytes, k.len);
    if (in->nlink == 0) {
        if (n->n_names != 0 || n->n_entries != 0)
            wrong("a removed directory with names", k.bytes, k.len);
        return;
    }
    if (n->n_names != (root ? 0 : 1) || in->nlink != 2 + n->n_subdirs)
        wrong("links of a directory: 2 and its subdirectories", k.bytes, k.len);
    if (in->parent != (root ? NAMESPACE_ROOT_INO : n->named_in))
        wrong("the parent of a directory is where its name is", k.bytes, k.len);
    for (size_t steps = 0; up != NAMESPACE_ROOT_INO; steps++) {
        const struct node *parent;

        key_ino(&k, KEY_INODE, n->export_id, up);
        parent = node_find(c, k.bytes);
        if (parent == NULL || steps > c->n)
            wrong("a directory that does not hang below the root", k.bytes, k.len);
        up = parent->in.parent;
    }
}

/* Checks that there are no keys of unknown kinds. */
static void check_kinds(struct check *c)
{
    for (kv_iter_seek(c->it, "", 0); kv_iter_valid(c->it); kv_iter_next(c->it)) {
        size_t len;
        const uint8_t *key = kv_iter_key(c->it, &len);

        if (strchr("ABCFRSVEGKNIDOJMPLYXUTWQ", key[0]) == NULL)
            wrong("a key of no kind", key, len);
    }
}

void kv_check(struct kv *kv)
{
    struct check c = { .kv = kv };

    if (kv_iter_open(kv, &c.it) != 0)
        abort();
    check_kinds(&c);
    load_inodes(&c);
    check_dentries(&c);
    check_order(&c);
    check_index(&c);
    check_marks(&c, KEY_ORPHAN, offsetof(struct node, orphan));
    check_marks(&c, KEY_INLINE, offsetof(struct node, data));
    check_marks(&c, KEY_BLOCKS, offsetof(struct node, blocks));
    check_marks(&c, KEY_REDIST, offsetof(struct node, moved));
    check_marks(&c, KEY_SYMLINK, offsetof(struct node, symlink));
    check_marks(&c, KEY_XATTRS, offsetof(struct node, xattrs));
    check_xattrs(&c);
    check_removed(&c, KEY_DELETION, 0);
    check_removed(&c, KEY_WAITING, 4);
    check_counters(&c);
    check_gaps(&c);
    for (size_t i = 0; i < c.n; i++)
        check_node(&c, &c.nodes[i]);
    kv_iter_close(c.it);
    free(c.nodes);
}
