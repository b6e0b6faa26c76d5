/*
 * locate.c - the virtual xattr rozo.locate: where a file's projections lie, as JSON.
 *
 * In:     a getxattr. Out: MD_OPEN without reference, storcli_locate(), the reply.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rozomount/op/fuse_op.h"
#include "rozomount/op/handle.h"
#include "rozomount/op/mount.h"
#include "rozomount/op/read_past_eof.h"
#include "rozomount/op/recall_inval.h"
#include "rozomount/op/token_recall.h"
#include "rozomount/ops/fs_privileges.h"
#include "rozomount/ops/fuse_ops.h"
#include "rozomount/options/xalloc.h"

/* State of a request to the storages. */
struct locate {
    struct xattr_op *x;
    /* owned; opened here, since the file may be open on another loop */
    struct storcli_file *file;
    struct storcli_place places[DIST_MAX];
};

/* A growing text; bytes are owned. */
struct text {
    char *bytes;
    size_t len, room;
};

static void text_add(struct text *t, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
static void text_add(struct text *t, const char *fmt, ...)
{
    va_list args;
    int n;

    for (;;) {
        size_t left = t->room - t->len;

        va_start(args, fmt);
        n = vsnprintf(t->bytes == NULL ? NULL : t->bytes + t->len, left, fmt, args);
        va_end(args);
        if (n >= 0 && (size_t)n < left)
            break;
        t->room = (t->room + (size_t)(n < 0 ? 0 : n)) * 2 + 1024;
        char *bigger = xzalloc(t->room);

        if (t->len != 0)
            memcpy(bigger, t->bytes, t->len);
        free(t->bytes);
        t->bytes = bigger;
    }
    t->len += (size_t)n;
}

/* Adds a JSON string: paths and addresses come from other machines. */
static void text_add_quoted(struct text *t, const char *s, size_t len_max)
{
    text_add(t, "\"");
    for (size_t i = 0; i < len_max && s[i] != '\0'; i++) {
        unsigned char c = (unsigned char)s[i];

        if (c == '"' || c == '\\')
            text_add(t, "\\%c", c);
        else if (c < 0x20 || c >= 0x7f)
            text_add(t, "\\u%04x", c);
        else
            text_add(t, "%c", c);
    }
    text_add(t, "\"");
}

static void text_add_addresses(struct text *t, const char *addresses)
{
    const char *sep = "";

    text_add(t, "[");
    while (*addresses != '\0') {
        size_t len = strcspn(addresses, " ");

        text_add(t, "%s", sep);
        text_add_quoted(t, addresses, len);
        addresses += len + strspn(addresses + len, " ");
        sep = ",";
    }
    text_add(t, "]");
}

static void text_add_place(struct text *t, struct fuse_op *op, unsigned slot, unsigned n,
                           const struct storcli_place *p)
{
    const char *sep = "";

    text_add(t, "{\"slot\":%u,\"id\":%u,\"role\":\"%s\",\"addresses\":", slot,
             p->storage_id, slot < n ? "home" : "spare");
    text_add_addresses(t, storage_peers_addresses(&op->loop->peers, p->storage_id));
    text_add(t, ",\"reachable\":%s,\"projections\":[", p->reachable ? "true" : "false");
    for (unsigned i = 0; i < 32; i++) {
        if ((p->projections >> i & 1) != 0) {
            text_add(t, "%s%u", sep, i);
            sep = ",";
        }
    }
    text_add(t, "],\"size\":%llu,\"allocated\":%llu,\"path\":",
             (unsigned long long)p->size_bytes, (unsigned long long)p->allocated_bytes);
    text_add_quoted(t, p->path, sizeof(p->path));
    text_add(t, "}");
}

static void locate_write(struct locate *l, struct text *t)
{
    struct fuse_op *op = &l->x->op;
    const struct storcli_target *target = &op->entry.target;
    const struct codec *codec = storcli_file_codec(l->file);
    const char *kind = codec_kind_name(target->codec);
    uint8_t id[FILE_ID_BYTES];

    file_id_put(id, &target->id);
    text_add(t, "{\"file_id\":\"");
    for (unsigned i = 0; i < FILE_ID_BYTES; i++)
        text_add(t, "%02x", id[i]);
    text_add(t, "\",\"ino\":%llu,\"export\":", (unsigned long long)op->ino);
    text_add_quoted(t, op->loop->mount->opt->export_name, SIZE_MAX);
    text_add(t, ",\"inline\":%s,\"layout\":%u,\"codec\":",
             op->entry.file.inline_version != 0 ? "true" : "false", target->layout);
    text_add_quoted(t, kind == NULL ? "" : kind, SIZE_MAX);
    text_add(t, ",\"k\":%u,\"n\":%u,\"block_bytes\":%u,\"size\":%llu,\"storages\":[",
             codec_k(codec), codec_n(codec), target->block_bytes,
             (unsigned long long)op->entry.attr.size);
    for (unsigned i = 0; i < target->n_storages; i++) {
        text_add(t, "%s", i == 0 ? "" : ",");
        text_add_place(t, op, i, codec_n(codec), &l->places[i]);
    }
    text_add(t, "]}");
}

static void on_located(void *arg, int rc)
{
    struct locate *l = arg;
    struct xattr_op *x = l->x;
    struct text text = { 0 };

    if (rc == 0)
        locate_write(l, &text);
    storcli_file_close(l->file);
    free(l);
    x->op.memory = text.bytes;
    if (rc != 0)
        fuse_op_reply_err(&x->op, md_client_user_errno(rc));
    else
        xattr_reply(x, text.bytes, text.len);
}

static enum step_end locate_ask(struct fuse_op *op)
{
    Rozo__MdOpenReq msg = ROZO__MD_OPEN_REQ__INIT;

    msg.ino = op->ino;
    msg.no_reference = true;
    return fuse_op_ask(op, ROZO__OP__MD_OPEN, &msg.base);
}

static int locate_take_answer(struct fuse_op *op)
{
    if (op->rc == 0 &&
        (md_decode_open(&op->call, &op->entry) != 0 || !op->entry.has_target))
        return -EIO;
    /* only regular files have projections */
    return op->rc == -EISDIR || op->rc == -EINVAL ? -ENODATA : op->rc;
}

static enum step_end locate_storages(struct fuse_op *op)
{
    int rc = locate_take_answer(op);
    struct locate *l;

    if (rc != 0)
        return fuse_op_end(op, rc);
    l = xzalloc(sizeof(*l));
    l->x = (struct xattr_op *)op;
    rc = storcli_file_open(op->loop->cli, &op->entry.target, &l->file);
    if (rc != 0) {
        free(l);
        return fuse_op_end(op, md_client_user_errno(rc));
    }
    storcli_locate(l->file, l->places, on_located, l);
    return STEP_WAIT;
}

void fs_locate(struct xattr_op *x)
{
    static fuse_op_step *const steps[] = { locate_ask, locate_storages, NULL };

    fuse_op_start(&x->op, steps);
}
