/*
 * acl.c - POSIX ACLs.
 *
 * In:     xattr values from clients and from the kv.
 * Out:    verdicts and mode bits; changed in place. Pure.
 */
#include "exportd/namespace/acl.h"

#include <errno.h>

#include "common/base/bytes.h"

enum {
    ACL_VERSION = 2,
    ACL_HEAD_BYTES = 4,
    ACL_ENTRY_BYTES = 8,
};

enum acl_tag {
    TAG_USER_OBJ = 0x01,
    TAG_USER = 0x02,
    TAG_GROUP_OBJ = 0x04,
    TAG_GROUP = 0x08,
    TAG_MASK = 0x10,
    TAG_OTHER = 0x20,
};

static size_t acl_n_entries(size_t len)
{
    return (len - ACL_HEAD_BYTES) / ACL_ENTRY_BYTES;
}

static unsigned entry_tag(const uint8_t *acl, size_t i)
{
    return get_le16(acl + ACL_HEAD_BYTES + i * ACL_ENTRY_BYTES);
}

static unsigned entry_perm(const uint8_t *acl, size_t i)
{
    return get_le16(acl + ACL_HEAD_BYTES + i * ACL_ENTRY_BYTES + 2);
}

static void entry_set_perm(uint8_t *acl, size_t i, unsigned perm)
{
    put_le16(acl + ACL_HEAD_BYTES + i * ACL_ENTRY_BYTES + 2, (uint16_t)(perm & 7));
}

static uint32_t entry_id(const uint8_t *acl, size_t i)
{
    return get_le32(acl + ACL_HEAD_BYTES + i * ACL_ENTRY_BYTES + 4);
}

static bool acl_has_form(const uint8_t *acl, size_t len)
{
    return len >= ACL_HEAD_BYTES && (len - ACL_HEAD_BYTES) % ACL_ENTRY_BYTES == 0 &&
           get_le32(acl) == ACL_VERSION;
}

bool acl_is_empty(const uint8_t *acl, size_t len)
{
    return len == 0 || (acl_has_form(acl, len) && len == ACL_HEAD_BYTES);
}

/*
 * Returns the tags that may follow a tag. The mask may be missing only without named
 * entries.
 */
static unsigned tags_after(unsigned tag, bool named)
{
    unsigned end = named ? TAG_MASK : TAG_MASK | TAG_OTHER;

    switch (tag) {
    case 0:
        return TAG_USER_OBJ;
    case TAG_USER_OBJ:
    case TAG_USER:
        return TAG_USER | TAG_GROUP_OBJ;
    case TAG_GROUP_OBJ:
    case TAG_GROUP:
        return TAG_GROUP | end;
    case TAG_MASK:
        return TAG_OTHER;
    }
    return 0;
}

int acl_check(const uint8_t *acl, size_t len)
{
    unsigned last = 0;
    bool named = false;

    if (!acl_has_form(acl, len))
        return -EINVAL;
    for (size_t i = 0; i < acl_n_entries(len); i++) {
        unsigned tag = entry_tag(acl, i);

        if (tag == TAG_USER || tag == TAG_GROUP) {
            if (entry_id(acl, i) == UINT32_MAX)
                return -EINVAL;
            named = true;
        }
        if (tag == 0 || (tag & (tag - 1)) != 0 || (tags_after(last, named) & tag) == 0 ||
            entry_perm(acl, i) > 7)
            return -EINVAL;
        last = tag;
    }
    return last == TAG_OTHER ? 0 : -EINVAL;
}

/*
 * Finds the entry of the group bits of the mode: the mask, or the group if there is no
 * mask.
 */
static size_t group_class_entry(const uint8_t *acl, size_t len)
{
    size_t found = 0;

    for (size_t i = 0; i < acl_n_entries(len); i++) {
        if (entry_tag(acl, i) == TAG_MASK)
            return i;
        if (entry_tag(acl, i) == TAG_GROUP_OBJ)
            found = i;
    }
    return found;
}

uint32_t acl_mode(const uint8_t *acl, size_t len, bool *exact)
{
    size_t n = acl_n_entries(len);

    *exact = n == 3;
    return entry_perm(acl, 0) << 6 | entry_perm(acl, group_class_entry(acl, len)) << 3 |
           entry_perm(acl, n - 1);
}

void acl_chmod(uint8_t *acl, size_t len, uint32_t mode)
{
    entry_set_perm(acl, 0, mode >> 6);
    entry_set_perm(acl, group_class_entry(acl, len), mode >> 3);
    entry_set_perm(acl, acl_n_entries(len) - 1, mode);
}

uint32_t acl_create(uint8_t *acl, size_t len, uint32_t mode, bool *exact)
{
    uint32_t limited = mode & acl_mode(acl, len, exact);

    acl_chmod(acl, len, limited);
    return (mode & ~(uint32_t)0777) | limited;
}
