/*
 * namespace_xattr.c - extended attributes and POSIX ACLs of inodes.
 *
 * In:     md.c, from requests; create and chmod, for ACLs.
 * Out:    the store's pending batch: one key with all names of an inode, one key a value.
 * Keeps:  an inode's flags say whether it has xattrs and ACLs, so that most requests need
 *         no look into the store. An access ACL that says no more than the mode bits is
 *         not stored.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/xattr.h>

#include "common/base/log.h"
#include "exportd/namespace/acl.h"
#include "exportd/namespace/namespace_int.h"

/* Classes of names, beside ACLs. */
static const struct {
    const char *prefix;
    uint32_t bit; /* enum namespace_xattr_classes */
} classes[] = {
    { "user.", NAMESPACE_XATTRS_USER },
    { "trusted.", NAMESPACE_XATTRS_TRUSTED },
    { "security.", NAMESPACE_XATTRS_SECURITY },
};

static bool name_is_of(struct namespace_name name, const char *prefix)
{
    size_t len = strlen(prefix);

    return name.len > len && memcmp(name.bytes, prefix, len) == 0;
}

static int xattr_name_check(struct namespace_name name)
{
    if (name.len > NAMESPACE_NAME_MAX)
        return -ERANGE;
    if (name.len == 0 || memchr(name.bytes, 0, name.len) != NULL)
        return -EINVAL;
    if (name_is(name, ACL_NAME_ACCESS) || name_is(name, ACL_NAME_DEFAULT))
        return 0;
    for (size_t i = 0; i < sizeof(classes) / sizeof(classes[0]); i++) {
        if (name_is_of(name, classes[i].prefix))
            return 0;
    }
    return -EOPNOTSUPP;
}

/* Checks a list of names from the disk: lengths and zero bytes. */
static bool names_make_sense(const uint8_t *names, size_t len)
{
    const uint8_t *end;

    if (len == 0 || len > NAMESPACE_XATTR_NAMES_MAX)
        return false;
    for (; len > 0; len -= (size_t)(end + 1 - names), names = end + 1) {
        end = memchr(names, 0, len);
        if (end == NULL || end == names || end - names > NAMESPACE_NAME_MAX)
            return false;
    }
    return true;
}

/* Reads the names of an inode, each with its zero byte; length 0: none. */
static int names_get(struct namespace *ns, const struct inode *in, const uint8_t **names,
                     size_t *len)
{
    struct key k;
    int rc;

    *names = (const uint8_t *)"";
    *len = 0;
    if ((in->flags & INODE_XATTRS) == 0)
        return 0;
    key_ino(&k, KEY_XATTRS, ns->export_id, in->ino);
    rc = store_get(ns->store, &k, names, len);
    if (rc == -ENOENT || (rc == 0 && !names_make_sense(*names, *len))) {
        log_error("export %u: the xattr names of inode %llu in the metadata store are "
                  "corrupt",
                  ns->export_id, (unsigned long long)in->ino);
        rc = -EIO;
    }
    return rc;
}

/* Returns the offset of a name in the list; len if it is not there. */
static size_t names_find(const uint8_t *names, size_t len, struct namespace_name name)
{
    size_t at = 0;

    while (at < len) {
        size_t n = strlen((const char *)names + at);

        if (n == name.len && memcmp(names + at, name.bytes, n) == 0)
            return at;
        at += n + 1;
    }
    return len;
}

static void names_put(struct namespace *ns, uint64_t ino, const uint8_t *names,
                      size_t len)
{
    struct key k;

    assert(len <= NAMESPACE_XATTR_NAMES_MAX);
    key_ino(&k, KEY_XATTRS, ns->export_id, ino);
    if (len == 0)
        store_delete(ns->store, &k);
    else
        store_put(ns->store, &k, names, len);
}

static void value_put(struct namespace *ns, uint64_t ino, struct namespace_name name,
                      const uint8_t *val, size_t len)
{
    struct key k;

    key_name(&k, KEY_XATTR, ns->export_id, ino, name.bytes, name.len);
    store_put(ns->store, &k, val, len);
}

static void value_delete(struct namespace *ns, uint64_t ino, struct namespace_name name)
{
    struct key k;

    key_name(&k, KEY_XATTR, ns->export_id, ino, name.bytes, name.len);
    store_delete(ns->store, &k);
}

static struct namespace_name name_of(const char *text)
{
    return (struct namespace_name){ (const uint8_t *)text, strlen(text) };
}

int acl_get(struct namespace *ns, const struct inode *in, const char *name,
            const uint8_t **acl, size_t *len)
{
    struct namespace_name n = name_of(name);
    struct key k;
    int rc;

    key_name(&k, KEY_XATTR, ns->export_id, in->ino, n.bytes, n.len);
    rc = store_get(ns->store, &k, acl, len);
    if (rc == -ENOENT || (rc == 0 && acl_check(*acl, *len) != 0)) {
        log_error("export %u: %s of inode %llu in the metadata store is corrupt",
                  ns->export_id, name, (unsigned long long)in->ino);
        rc = -EIO;
    }
    return rc;
}

void xattrs_make(struct namespace *ns, uint64_t ino, const char *const *names,
                 const uint8_t *const *vals, const size_t *lens, unsigned n)
{
    uint8_t list[2 * (NAMESPACE_NAME_MAX + 1)];
    size_t len = 0;

    assert(n <= 2);
    for (unsigned i = 0; i < n; i++) {
        struct namespace_name name = name_of(names[i]);

        assert(len + name.len + 1 <= sizeof(list));
        memcpy(list + len, names[i], name.len + 1);
        len += name.len + 1;
        value_put(ns, ino, name, vals[i], lens[i]);
    }
    names_put(ns, ino, list, len);
}

void xattr_replace(struct namespace *ns, uint64_t ino, const char *name,
                   const uint8_t *val, size_t len)
{
    value_put(ns, ino, name_of(name), val, len);
}

void xattrs_delete_all(struct namespace *ns, struct inode *in)
{
    const uint8_t *names;
    size_t len;

    if (names_get(ns, in, &names, &len) != 0)
        return; /* logged; values left behind take room and do no harm */
    for (size_t at = 0; at < len; at += strlen((const char *)names + at) + 1)
        value_delete(ns, in->ino, name_of((const char *)names + at));
    if (len > 0)
        names_put(ns, in->ino, NULL, 0);
    in->flags &= ~(uint32_t)(INODE_XATTRS | INODE_ACL_ACCESS | INODE_ACL_DEFAULT);
}

int namespace_getxattr(struct namespace *ns, uint64_t ino, struct namespace_name name,
                       const uint8_t **val, size_t *len)
{
    struct inode in;
    struct key k;
    int rc = inode_get(ns, ino, &in);

    if (rc == 0)
        rc = xattr_name_check(name);
    if (rc != 0)
        return rc;
    if ((in.flags & INODE_XATTRS) == 0 ||
        (name_is(name, ACL_NAME_ACCESS) && (in.flags & INODE_ACL_ACCESS) == 0))
        return -ENODATA;
    key_name(&k, KEY_XATTR, ns->export_id, ino, name.bytes, name.len);
    rc = store_get(ns->store, &k, val, len);
    return rc == -ENOENT ? -ENODATA : rc;
}

int namespace_listxattr(struct namespace *ns, uint64_t ino, const uint8_t **names,
                        size_t *len)
{
    struct inode in;
    int rc = inode_get(ns, ino, &in);

    return rc == 0 ? names_get(ns, &in, names, len) : rc;
}

uint32_t namespace_xattr_classes(struct namespace *ns, const struct inode *in)
{
    uint32_t bits = NAMESPACE_XATTRS_TOLD;
    const uint8_t *names;
    size_t len;

    if (names_get(ns, in, &names, &len) != 0)
        return 0; /* logged; a request for an xattr fails */
    if ((in->flags & INODE_ACL_ACCESS) != 0)
        bits |= NAMESPACE_XATTRS_ACL_ACCESS;
    if ((in->flags & INODE_ACL_DEFAULT) != 0)
        bits |= NAMESPACE_XATTRS_ACL_DEFAULT;
    for (size_t at = 0; at < len; at += strlen((const char *)names + at) + 1) {
        for (size_t i = 0; i < sizeof(classes) / sizeof(classes[0]); i++) {
            if (name_is_of(name_of((const char *)names + at), classes[i].prefix))
                bits |= classes[i].bit;
        }
    }
    return bits;
}

/* Copies a value, or a list of names. */
static int set_copy(struct namespace_xattr_set *set, uint8_t *room, size_t room_len,
                    const uint8_t *bytes, size_t len)
{
    if (len > NAMESPACE_XATTR_SET_BYTES || len > room_len - set->used)
        return -E2BIG;
    if (len > 0)
        memcpy(room + set->used, bytes, len);
    set->used += len;
    return 0;
}

int namespace_get_xattr_set(struct namespace *ns, const struct inode *in, uint8_t *room,
                            size_t room_len, struct namespace_xattr_set *out)
{
    const uint8_t *bytes;
    size_t len, names_len;
    int rc = names_get(ns, in, &bytes, &names_len);

    out->n = 0;
    out->used = 0;
    if (rc == 0)
        rc = set_copy(out, room, room_len, bytes, names_len);
    for (size_t at = 0; at < names_len && rc == 0; at += out->names[out->n++].len + 1) {
        struct namespace_name name = name_of((const char *)room + at);
        struct key k;

        if (out->n == NAMESPACE_XATTR_SET_MAX)
            return -E2BIG;
        key_name(&k, KEY_XATTR, ns->export_id, in->ino, name.bytes, name.len);
        rc = store_get(ns->store, &k, &bytes, &len);
        if (rc != 0)
            return rc;
        out->names[out->n] = name;
        out->values[out->n] = (struct namespace_name){ room + out->used, len };
        rc = set_copy(out, room, room_len, bytes, len);
    }
    return rc;
}

/* Change of one name of an inode, checked but not put yet. */
struct xattr_change {
    struct inode in;
    struct namespace_name name;
    const uint8_t *names; /* current list, borrowed from the store */
    size_t names_len;
    size_t at; /* offset of the name in the list; names_len: new name */
};

static int change_load(struct namespace *ns, uint64_t ino, struct namespace_name name,
                       struct xattr_change *c)
{
    int rc = inode_get(ns, ino, &c->in);

    c->name = name;
    if (rc == 0 && inode_is_fixed(&c->in))
        rc = -EPERM;
    if (rc == 0)
        rc = xattr_name_check(name);
    if (rc == 0)
        rc = names_get(ns, &c->in, &c->names, &c->names_len);
    if (rc == 0)
        c->at = names_find(c->names, c->names_len, name);
    return rc;
}

static bool change_is_new(const struct xattr_change *c)
{
    return c->at == c->names_len;
}

static uint32_t acl_flag(struct namespace_name name)
{
    if (name_is(name, ACL_NAME_ACCESS))
        return INODE_ACL_ACCESS;
    return name_is(name, ACL_NAME_DEFAULT) ? INODE_ACL_DEFAULT : 0;
}

/* Puts the inode last, with everything that changed in it. */
static void change_finish(struct namespace *ns, struct xattr_change *c)
{
    c->in.ctime_ns = store_stamp_ns(ns->store);
    inode_put(ns, &c->in);
}

static void change_remove(struct namespace *ns, struct xattr_change *c)
{
    size_t cut = c->name.len + 1;
    uint8_t list[NAMESPACE_XATTR_NAMES_MAX];

    assert(c->names_len <= sizeof(list));
    if (!change_is_new(c)) {
        assert(c->at + cut <= c->names_len);
        memcpy(list, c->names, c->at);
        memcpy(list + c->at, c->names + c->at + cut, c->names_len - c->at - cut);
        names_put(ns, c->in.ino, list, c->names_len - cut);
        value_delete(ns, c->in.ino, c->name);
        if (c->names_len == cut)
            c->in.flags &= ~(uint32_t)INODE_XATTRS;
        c->in.flags &= ~acl_flag(c->name);
    }
    change_finish(ns, c);
}

static void change_set(struct namespace *ns, struct xattr_change *c, const uint8_t *val,
                       size_t len)
{
    uint8_t list[NAMESPACE_XATTR_NAMES_MAX];

    assert(len <= NAMESPACE_XATTR_VALUE_MAX && c->at <= c->names_len);
    if (change_is_new(c)) {
        assert(c->names_len + c->name.len + 1 <= sizeof(list));
        memcpy(list, c->names, c->names_len);
        memcpy(list + c->names_len, c->name.bytes, c->name.len);
        list[c->names_len + c->name.len] = 0;
        names_put(ns, c->in.ino, list, c->names_len + c->name.len + 1);
    }
    value_put(ns, c->in.ino, c->name, val, len);
    c->in.flags |= INODE_XATTRS | acl_flag(c->name);
    change_finish(ns, c);
}

/*
 * Checks a new ACL and applies it to the mode. Returns 0: store it; 1: remove it; or
 * -errno.
 */
static int acl_set_check(struct xattr_change *c, const uint8_t *val, size_t len,
                         bool kill_sgid)
{
    bool exact;

    if (S_ISLNK(c->in.mode))
        return -EOPNOTSUPP;
    if (!acl_is_empty(val, len) && acl_check(val, len) != 0)
        return -EINVAL;
    if (name_is(c->name, ACL_NAME_DEFAULT)) {
        if (!inode_is_dir(&c->in))
            return acl_is_empty(val, len) ? 1 : -EACCES;
        return acl_is_empty(val, len) ? 1 : 0;
    }
    if (acl_is_empty(val, len))
        return 1;
    c->in.mode = (c->in.mode & ~(uint32_t)0777) | acl_mode(val, len, &exact);
    if (kill_sgid)
        c->in.mode &= ~(uint32_t)S_ISGID;
    return exact ? 1 : 0;
}

static int setxattr_check(const struct xattr_change *c, size_t len, uint32_t flags)
{
    if ((flags & ~(uint32_t)(XATTR_CREATE | XATTR_REPLACE)) != 0 ||
        flags == (XATTR_CREATE | XATTR_REPLACE))
        return -EINVAL;
    if (len > NAMESPACE_XATTR_VALUE_MAX)
        return -E2BIG;
    if ((flags & XATTR_CREATE) != 0 && !change_is_new(c))
        return -EEXIST;
    if ((flags & XATTR_REPLACE) != 0 && change_is_new(c))
        return -ENODATA;
    if (change_is_new(c) && c->names_len + c->name.len + 1 > NAMESPACE_XATTR_NAMES_MAX)
        return -ENOSPC;
    return 0;
}

int namespace_setxattr(struct namespace *ns, uint64_t ino, struct namespace_name name,
                       const uint8_t *val, size_t len, uint32_t flags, bool kill_sgid)
{
    struct xattr_change c;
    int rc = change_load(ns, ino, name, &c);

    if (rc == 0)
        rc = setxattr_check(&c, len, flags);
    if (rc == 0 && acl_flag(name) != 0)
        rc = acl_set_check(&c, val, len, kill_sgid);
    if (rc < 0)
        return rc;
    if (rc == 1)
        change_remove(ns, &c);
    else
        change_set(ns, &c, val, len);
    return 0;
}

int namespace_removexattr(struct namespace *ns, uint64_t ino, struct namespace_name name)
{
    struct xattr_change c;
    int rc = change_load(ns, ino, name, &c);

    if (rc != 0)
        return rc;
    if (change_is_new(&c))
        return -ENODATA;
    change_remove(ns, &c);
    return 0;
}
