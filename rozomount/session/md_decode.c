/*
 * md_decode.c - checks and unpacks answers of exportd.
 *
 * In:     packed messages from the wire. Out: structs whose fields are in range. Core.
 * Keeps:  I8: no code outside this file sees an unchecked field.
 */
#include "rozomount/session/md_decode.h"

#include <errno.h>
#include <linux/limits.h>
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>

#include "rozomount/options/xalloc.h"
#include "rozomount/tokens/xattr_cache.h"

/* Memory of an unpacked page of a directory, as a multiple of its bytes on the wire. */
enum { UNPACKED_GROWS = 5 };

/* The end of the largest file, in blocks of the smallest size. */
#define BLOCKS_END (FILE_DATA_END_MAX / 4096)

/* An unpacked answer, valid until unpacked_free(). Most answers fit the inline room. */
struct unpacked {
    struct arena arena;
    alignas(ARENA_ALIGN) uint8_t room[2048];
};

static void *unpack(struct unpacked *u, const struct md_call *call,
                    const ProtobufCMessageDescriptor *type)
{
    arena_init(&u->arena, u->room, sizeof(u->room), 0);
    return protobuf_c_message_unpack(type, &u->arena.allocator, call->answer_len,
                                     call->answer);
}

static void unpacked_free(struct unpacked *u)
{
    arena_free(&u->arena);
}

static bool mode_is_known(uint32_t mode)
{
    if ((mode & ~(uint32_t)(S_IFMT | 07777)) != 0)
        return false;
    switch (mode & S_IFMT) {
    case S_IFREG:
    case S_IFDIR:
    case S_IFLNK:
    case S_IFCHR:
    case S_IFBLK:
    case S_IFIFO:
    case S_IFSOCK:
        return true;
    default:
        return false;
    }
}

int md_attr_check(const Rozo__Attr *attr, struct md_attr *out)
{
    wide_ns atime_ns, mtime_ns;

    if (attr == NULL || attr->ino == 0 || !mode_is_known(attr->mode) ||
        attr->size > INT64_MAX || attr->blocks > INT64_MAX / 512 ||
        (unsigned)attr->token > TOKEN_EXCLUSIVE)
        return -EBADMSG;
    atime_ns = wide_ns_join((int64_t)attr->atime_ns, attr->atime_more_s);
    mtime_ns = wide_ns_join((int64_t)attr->mtime_ns, attr->mtime_more_s);
    if (!wide_ns_is_fine(atime_ns) || !wide_ns_is_fine(mtime_ns))
        return -EBADMSG;
    *out = (struct md_attr){
        .ino = attr->ino,
        .generation = attr->generation,
        .mode = attr->mode,
        .nlink = attr->nlink,
        .uid = attr->uid,
        .gid = attr->gid,
        .rdev = attr->rdev,
        .size = attr->size,
        .atime_ns = atime_ns,
        .mtime_ns = mtime_ns,
        .ctime_ns = (int64_t)attr->ctime_ns,
        .has_data = attr->has_data,
        .blocks = attr->blocks,
        .blocks_unsure = attr->blocks_unsure,
        .change = attr->change,
        .token = (enum token_mode)attr->token,
        .xattrs = attr->xattrs,
        .file_flags = attr->file_flags,
    };
    return 0;
}

static int grant_check(uint64_t number, unsigned dir, unsigned new_dir, bool others,
                       struct md_grant *out)
{
    /* EXCLUSIVE: a LOOKUP of "." may be about a file */
    if (dir > TOKEN_EXCLUSIVE || new_dir > TOKEN_EXCLUSIVE)
        return -EBADMSG;
    *out = (struct md_grant){ number, (enum token_mode)dir, (enum token_mode)new_dir,
                              others };
    return 0;
}

void md_entry_drop(struct md_entry *entry)
{
    free((void *)(uintptr_t)entry->file.inline_data);
    entry->file.inline_data = NULL;
    range_map_free(&entry->file.blocks);
}

/* Checks the data part. storcli_file_open() checks codec, layout and counts against
 * each other. */
static int data_check(const Rozo__FileData *data, struct md_entry *entry)
{
    const Rozo__FileRef *ref = data->ref;
    struct storcli_target target = { 0 };

    if (ref == NULL || ref->file_id.len != FILE_ID_BYTES || ref->codec > UINT8_MAX ||
        ref->layout > UINT8_MAX || ref->block_bytes > UINT16_MAX || ref->stripe != 0 ||
        ref->n_storages == 0 || ref->n_storages > DIST_MAX ||
        ref->capability.len > sizeof(target.capability) ||
        data->truncate_size > INT64_MAX || data->inline_max > FILE_INLINE_MAX ||
        data->inline_data.len > FILE_INLINE_MAX ||
        (data->inline_version != 0) != (data->inline_data.len != 0) ||
        (data->inline_version != 0 && (data->inline_max == 0 || data->on_storages)))
        return -EBADMSG;
    file_id_get(ref->file_id.data, &target.id);
    if (target.id.ino != entry->attr.ino || !S_ISREG(entry->attr.mode))
        return -EBADMSG;
    target.codec = (uint8_t)ref->codec;
    target.layout = (uint8_t)ref->layout;
    target.block_bytes = (uint16_t)ref->block_bytes;
    target.full_quorum = ref->full_quorum;
    target.dist_generation = ref->dist_generation;
    target.n_storages = (uint8_t)ref->n_storages;
    for (unsigned i = 0; i < target.n_storages; i++)
        target.storages[i] = ref->storages[i];
    target.capability_len = (uint8_t)ref->capability.len;
    if (target.capability_len != 0)
        memcpy(target.capability, ref->capability.data, target.capability_len);
    entry->has_target = true;
    entry->target = target;
    entry->file = (struct file_attr){
        .size = entry->attr.size,
        .has_data = entry->attr.has_data,
        .epoch = data->epoch,
        .truncate_pending = data->truncate_pending,
        .truncate_size = data->truncate_size,
        .truncate_version = data->truncate_version,
        .inline_max = data->inline_max,
        .on_storages = data->on_storages,
        .inline_version = data->inline_version,
        .inline_len = (uint32_t)data->inline_data.len,
    };
    if (data->blocks_known) {
        int rc = range_map_unpack(&entry->file.blocks, data->blocks.data,
                                  data->blocks.len, BLOCKS_END, FILE_RANGES_MAX, 1);

        entry->file.blocks_known =
            entry->attr.blocks_unsure ? BLOCKS_AT_LEAST : BLOCKS_ALL;
        if (rc != 0) {
            range_map_free(&entry->file.blocks);
            return rc == -EINVAL ? -EBADMSG : rc;
        }
    }
    if (data->inline_version != 0) {
        uint8_t *bytes = xzalloc(data->inline_data.len);

        memcpy(bytes, data->inline_data.data, data->inline_data.len);
        entry->file.inline_data = bytes;
    }
    return 0;
}

static int entry_check(const struct md_call *call, const Rozo__Attr *attr,
                       const Rozo__FileData *data, bool existed, struct md_entry *out)
{
    struct md_entry entry = { .existed = existed };
    int rc = md_attr_check(attr, &entry.attr);

    if (rc == 0 && data != NULL)
        rc = data_check(data, &entry);
    entry.target.session = call->rq.session;
    if (rc == 0)
        *out = entry;
    return rc;
}

/* Decodes the attributes of a directory that the call has changed, if the answer has
 * them. */
static int dir_check(const Rozo__Attr *attr, struct md_attr *out)
{
    *out = (struct md_attr){ 0 };
    return attr == NULL ? 0 : md_attr_check(attr, out);
}

/* Fields that all answers with an entry have. */
struct entry_answer {
    const Rozo__Attr *attr, *dir;
    const Rozo__FileData *data;
    uint64_t grant;
    unsigned dir_token;
    bool others, existed;
};

static int entry_answer_check(const struct md_call *call, const struct entry_answer *a,
                              struct md_entry *out)
{
    struct md_attr dir;
    struct md_grant grant;
    int rc = grant_check(a->grant, a->dir_token, 0, a->others, &grant);

    if (rc == 0)
        rc = dir_check(a->dir, &dir);
    if (rc == 0)
        rc = entry_check(call, a->attr, a->data, a->existed, out);
    if (rc == 0) {
        out->grant = grant;
        out->dir = dir;
    }
    return rc;
}

/* Returns true if the set is one that XattrSet allows, or there is none. */
static bool xattr_set_is_fine(const Rozo__XattrSet *set)
{
    size_t bytes = 0;

    if (set == NULL)
        return true;
    if (set->n_names != set->n_values || set->n_names > XATTR_SET_MAX)
        return false;
    for (size_t i = 0; i < set->n_names; i++) {
        const ProtobufCBinaryData *name = &set->names[i];

        bytes += name->len + 1;
        if (name->len == 0 || name->len > NAME_MAX ||
            memchr(name->data, '\0', name->len) != NULL ||
            set->values[i].len > XATTR_CACHED_MAX)
            return false;
    }
    return bytes <= XATTR_CACHED_MAX;
}

int md_decode_entry(const struct md_call *call, struct md_entry *out)
{
    struct unpacked u;
    const Rozo__MdEntryResp *msg = unpack(&u, call, &rozo__md_entry_resp__descriptor);
    int rc = -EBADMSG;

    if (msg != NULL) {
        const struct entry_answer a = { msg->attr,  msg->dir,       msg->data,
                                        msg->grant, msg->dir_token, msg->others,
                                        false };

        rc = xattr_set_is_fine(msg->xattrs) ? entry_answer_check(call, &a, out) : rc;
    }
    if (rc == 0) {
        out->losses = msg->losses;
        out->cut = msg->cut;
    }
    unpacked_free(&u);
    return rc;
}

const Rozo__XattrSet *md_decode_entry_xattrs(const struct md_call *call,
                                             struct arena *arena)
{
    const Rozo__MdEntryResp *msg;

    arena_init(arena, NULL, 0, UNPACKED_GROWS * call->answer_len);
    msg = (const Rozo__MdEntryResp *)protobuf_c_message_unpack(
        &rozo__md_entry_resp__descriptor, &arena->allocator, call->answer_len,
        call->answer);
    if (msg != NULL && msg->xattrs != NULL && xattr_set_is_fine(msg->xattrs))
        return msg->xattrs;
    arena_free(arena);
    return NULL;
}

int md_decode_done(const struct md_call *call, uint64_t *ino)
{
    struct unpacked u;
    const Rozo__MdDoneResp *msg = unpack(&u, call, &rozo__md_done_resp__descriptor);

    if (msg != NULL)
        *ino = msg->ino;
    unpacked_free(&u);
    return msg == NULL ? -EBADMSG : 0;
}

int md_decode_no_entry(const struct md_call *call, struct md_grant *out)
{
    struct unpacked u;
    Rozo__MdEntryResp *msg = unpack(&u, call, &rozo__md_entry_resp__descriptor);
    int rc = msg == NULL ? -EBADMSG
                         : grant_check(msg->grant, msg->dir_token, 0, msg->others, out);

    unpacked_free(&u);
    return rc;
}

static int xattr_check(ProtobufCBinaryData bytes, size_t max, uint64_t grant,
                       struct md_xattr *out)
{
    if (bytes.len > max)
        return -EBADMSG;
    *out = (struct md_xattr){ .len = bytes.len, .grant = grant };
    if (bytes.len != 0) {
        out->value = xzalloc(bytes.len);
        memcpy(out->value, bytes.data, bytes.len);
    }
    return 0;
}

int md_decode_xattr(const struct md_call *call, struct md_xattr *out)
{
    struct unpacked u;
    Rozo__MdGetxattrResp *msg = unpack(&u, call, &rozo__md_getxattr_resp__descriptor);
    int rc =
        msg == NULL ? -EBADMSG : xattr_check(msg->value, XATTR_SIZE_MAX, msg->grant, out);

    unpacked_free(&u);
    return rc;
}

int md_decode_xattr_names(const struct md_call *call, struct md_xattr *out)
{
    struct unpacked u;
    Rozo__MdListxattrResp *msg = unpack(&u, call, &rozo__md_listxattr_resp__descriptor);
    int rc = msg == NULL ||
                     (msg->names.len != 0 && msg->names.data[msg->names.len - 1] != '\0')
                 ? -EBADMSG
                 : xattr_check(msg->names, XATTR_LIST_MAX, msg->grant, out);

    unpacked_free(&u);
    return rc;
}

int md_decode_real_name(const struct md_call *call, struct md_xattr *out)
{
    struct unpacked u;
    const Rozo__MdRealNameResp *msg =
        unpack(&u, call, &rozo__md_real_name_resp__descriptor);
    int rc = -EBADMSG;

    if (msg != NULL && msg->name.len > 0 && msg->name.len <= NAME_MAX &&
        memchr(msg->name.data, 0, msg->name.len) == NULL &&
        memchr(msg->name.data, '/', msg->name.len) == NULL) {
        *out = (struct md_xattr){ .len = msg->name.len + 1 };
        out->value = xzalloc(out->len);
        memcpy(out->value, msg->name.data, msg->name.len);
        rc = 0;
    }
    unpacked_free(&u);
    return rc;
}

void md_xattr_drop(struct md_xattr *x)
{
    free(x->value);
    x->value = NULL;
}

int md_decode_create(const struct md_call *call, struct md_entry *out)
{
    struct unpacked u;
    const Rozo__MdCreateResp *msg = unpack(&u, call, &rozo__md_create_resp__descriptor);
    int rc = -EBADMSG;

    if (msg != NULL) {
        const struct entry_answer a = { msg->attr,   msg->dir,       msg->data,
                                        msg->grant,  msg->dir_token, msg->others,
                                        msg->existed };

        rc = entry_answer_check(call, &a, out);
    }
    unpacked_free(&u);
    return rc;
}

int md_decode_removed(const struct md_call *call, struct md_removed *out)
{
    struct unpacked u;
    Rozo__MdRemovedResp *msg = unpack(&u, call, &rozo__md_removed_resp__descriptor);
    struct md_removed r = { 0 };
    int rc = msg == NULL || msg->n_moved > 2
                 ? -EBADMSG
                 : grant_check(msg->grant, msg->dir_token, msg->new_dir_token, false,
                               &r.grant);

    if (rc == 0 && msg->removed != NULL)
        rc = md_attr_check(msg->removed, &r.removed);
    if (rc == 0)
        rc = dir_check(msg->dir, &r.dir);
    if (rc == 0)
        rc = dir_check(msg->new_dir, &r.new_dir);
    if (rc == 0) {
        for (unsigned i = 0; i < msg->n_moved; i++)
            r.moved[i] = msg->moved[i];
        *out = r;
    }
    unpacked_free(&u);
    return rc;
}

int md_decode_open(const struct md_call *call, struct md_entry *out)
{
    struct unpacked u;
    Rozo__MdOpenResp *msg = unpack(&u, call, &rozo__md_open_resp__descriptor);
    int rc = msg == NULL || msg->data == NULL
                 ? -EBADMSG
                 : entry_check(call, msg->attr, msg->data, true, out);

    if (rc == 0 && msg->range_to != 0 &&
        (msg->range_from >= msg->range_to || out->attr.token != TOKEN_RANGES)) {
        md_entry_drop(out);
        rc = -EBADMSG;
    }
    if (rc == 0) {
        out->grant.number = msg->grant;
        out->range_from = msg->range_from;
        out->range_to = msg->range_to;
    }
    unpacked_free(&u);
    return rc;
}

void md_attr_to_stat(const struct md_attr *attr, struct stat *st)
{
    memset(st, 0, sizeof(*st));
    st->st_ino = attr->ino;
    st->st_mode = attr->mode;
    st->st_nlink = attr->nlink;
    st->st_uid = attr->uid;
    st->st_gid = attr->gid;
    st->st_rdev = attr->rdev;
    st->st_size = (off_t)attr->size;
    st->st_blocks = (blkcnt_t)attr->blocks;
    st->st_blksize = MD_BLKSIZE;
    st->st_atim = wide_ns_to_timespec(attr->atime_ns);
    st->st_mtim = wide_ns_to_timespec(attr->mtime_ns);
    st->st_ctim = wide_ns_to_timespec(attr->ctime_ns);
}

static bool name_is_fine(const ProtobufCBinaryData *name)
{
    if (name->len == 0 || name->len > 255)
        return false;
    if (memchr(name->data, '/', name->len) != NULL ||
        memchr(name->data, '\0', name->len) != NULL)
        return false;
    return !(name->data[0] == '.' &&
             (name->len == 1 || (name->len == 2 && name->data[1] == '.')));
}

/* Returns true if the page is valid. */
static bool page_is_fine(const Rozo__MdReaddirResp *msg, uint64_t after_cookie, bool plus)
{
    struct md_attr attr;

    for (size_t i = 0; i < msg->n_entries; i++) {
        const Rozo__MdReaddirResp__Entry *e = msg->entries[i];

        if (!name_is_fine(&e->name) || e->ino == 0 || !mode_is_known(e->type) ||
            e->cookie <= after_cookie || e->cookie > MD_COOKIE_MAX ||
            (plus && e->attr != NULL &&
             (md_attr_check(e->attr, &attr) != 0 || attr.ino != e->ino)) ||
            !xattr_set_is_fine(e->xattrs))
            return false;
        after_cookie = e->cookie;
    }
    /* a page without entries must be the last */
    return (msg->n_entries != 0 || msg->end) &&
           (unsigned)msg->dir_token <= TOKEN_EXCLUSIVE;
}

Rozo__MdReaddirResp *md_decode_readdir(const struct md_call *call, uint64_t after_cookie,
                                       bool plus, struct arena *arena)
{
    Rozo__MdReaddirResp *msg;

    arena_init(arena, NULL, 0, UNPACKED_GROWS * call->answer_len);
    msg = (Rozo__MdReaddirResp *)protobuf_c_message_unpack(
        &rozo__md_readdir_resp__descriptor, &arena->allocator, call->answer_len,
        call->answer);
    if (msg != NULL && !page_is_fine(msg, after_cookie, plus))
        msg = NULL;
    if (msg == NULL)
        arena_free(arena);
    return msg;
}
