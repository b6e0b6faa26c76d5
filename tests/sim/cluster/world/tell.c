/*
 * tell.c - prints messages of the simulated network.
 */
#include "tests/sim/cluster/world/tell.h"

#include <stdio.h>

#include <protobuf-c/protobuf-c.h>

#include "common/proto/rozo.pb-c.h"

#include "common/base/bytes.h"
#include "common/wire/record.h"
#include "tests/sim/cluster/world/proc.h"

/* The descriptor of a message by its op: MD_WROTE -> rozo.MdWroteReq. */
static const ProtobufCMessageDescriptor *descriptor_of(uint16_t op)
{
    switch (op) {
#define TELL(name, type)   \
    case ROZO__OP__##name: \
        return &rozo__##type##_req__descriptor
        TELL(ST_WRITE, st_write);
        TELL(ST_READ, st_read);
        TELL(ST_MARK, st_mark);
        TELL(ST_SYNC, st_sync);
        TELL(ST_NEXT, st_next);
        TELL(ST_REMOVE, st_remove);
        TELL(ST_COMMIT, st_commit);
        TELL(ST_FENCE, st_fence);
        TELL(ST_DROP, st_drop);
        TELL(ST_LIST, st_list);
        TELL(ST_MISSED, st_missed);
        TELL(ST_MISSED_LIST, st_missed_list);
        TELL(ST_MISSED_DONE, st_missed_done);
        TELL(ST_CHECK, st_check);
        TELL(MD_SETATTR, md_setattr);
        TELL(MD_CREATE, md_create);
        TELL(MD_UNLINK, md_unlink);
        TELL(MD_LINK, md_link);
        TELL(MD_RENAME, md_rename);
        TELL(MD_OPEN, md_open);
        TELL(MD_CLOSE, md_close);
        TELL(MD_WROTE, md_wrote);
        TELL(MD_TRUNCATED, md_truncated);
        TELL(MD_SYNC, md_sync);
        TELL(MD_OPEN_SESSION, md_open_session);
        TELL(MD_LOCK, md_lock);
        TELL(MD_LOCK_CANCEL, md_lock_cancel);
        TELL(MD_EVENTS, md_events);
        TELL(MD_LOOKUP, md_lookup);
        TELL(MD_GETATTR, md_getattr);
        TELL(MD_READDIR, md_readdir);
        TELL(MD_RMDIR, md_rmdir);
        TELL(MD_TOKEN, md_token);
        TELL(MD_GIVE_BACK, md_give_back);
        TELL(MD_ATIMES, md_atimes);
        TELL(MD_WAIT_LEADER, md_wait_leader);
        TELL(MD_REAL_NAME, md_real_name);
#undef TELL
    default:
        return NULL;
    }
}

/* Returns the descriptor of an answer that is worth printing, or NULL. */
static const ProtobufCMessageDescriptor *answer_of(uint16_t op)
{
    switch (op) {
    case ROZO__OP__ST_WRITE:
        return &rozo__st_write_resp__descriptor;
    case ROZO__OP__MD_OPEN:
    case ROZO__OP__MD_TOKEN:
        return &rozo__md_open_resp__descriptor;
    case ROZO__OP__MD_CREATE:
        return &rozo__md_create_resp__descriptor;
    case ROZO__OP__MD_EVENTS:
        return &rozo__md_events_resp__descriptor;
    case ROZO__OP__MD_UNLINK:
    case ROZO__OP__MD_RMDIR:
    case ROZO__OP__MD_RENAME:
        return &rozo__md_removed_resp__descriptor;
    case ROZO__OP__MD_READDIR:
        return &rozo__md_readdir_resp__descriptor;
    case ROZO__OP__MD_LOOKUP:
    case ROZO__OP__MD_GETATTR:
    case ROZO__OP__MD_LINK:
    case ROZO__OP__MD_WROTE:
    case ROZO__OP__MD_SETATTR:
    case ROZO__OP__MD_TRUNCATED:
        return &rozo__md_entry_resp__descriptor;
    case ROZO__OP__MD_OPEN_SESSION:
        return &rozo__md_open_session_resp__descriptor;
    default:
        return NULL;
    }
}

static uint64_t number_at(const ProtobufCFieldDescriptor *f, const void *at)
{
    switch (f->type) {
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_INT64:
        return *(const uint64_t *)at;
    case PROTOBUF_C_TYPE_BOOL:
        return (uint64_t) * (const protobuf_c_boolean *)at;
    default:
        return *(const uint32_t *)at;
    }
}

static void tell_fields(const ProtobufCMessage *msg);

static void tell_one(const ProtobufCFieldDescriptor *f, const void *at)
{
    if (f->type == PROTOBUF_C_TYPE_MESSAGE) {
        const ProtobufCMessage *m = *(ProtobufCMessage *const *)at;

        fprintf(stderr, " %s{", f->name);
        if (m != NULL)
            tell_fields(m);
        fprintf(stderr, "}");
    } else if (f->type == PROTOBUF_C_TYPE_BYTES) {
        const ProtobufCBinaryData *b = at;

        if (b->len == FILE_ID_BYTES)
            fprintf(stderr, " ino=%llu", (unsigned long long)get_le64(b->data + 8));
        else if (b->len > 0 && b->len < 20 && f->name[0] != 'c')
            fprintf(stderr, " %s=%.*s", f->name, (int)b->len, b->data);
    } else if (f->type != PROTOBUF_C_TYPE_STRING && number_at(f, at) != 0) {
        fprintf(stderr, " %s=%llx", f->name, (unsigned long long)number_at(f, at));
    }
}

static size_t size_of(const ProtobufCFieldDescriptor *f)
{
    switch (f->type) {
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_INT64:
        return 8;
    case PROTOBUF_C_TYPE_MESSAGE:
        return sizeof(void *);
    default:
        return 4;
    }
}

static void tell_fields(const ProtobufCMessage *msg)
{
    for (unsigned i = 0; i < msg->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &msg->descriptor->fields[i];
        const char *at = (const char *)msg + f->offset;

        if (f->label != PROTOBUF_C_LABEL_REPEATED) {
            tell_one(f, at);
            continue;
        }
        for (size_t j = 0;
             j < *(const size_t *)((const char *)msg + f->quantifier_offset) &&
             f->name[0] != 's'; /* storages have no place here */
             j++)
            tell_one(f, *(const char *const *)at + j * size_of(f));
    }
}

static void tell_message(const ProtobufCMessageDescriptor *d, const uint8_t *msg,
                         size_t len)
{
    struct proc *before = proc_enter(&world_clock.world);
    ProtobufCMessage *m = protobuf_c_message_unpack(d, NULL, len, msg);

    if (m != NULL)
        tell_fields(m);
    protobuf_c_message_free_unpacked(m, NULL);
    proc_leave(before);
}

static const char *op_name(uint16_t op)
{
    const ProtobufCEnumValue *v =
        protobuf_c_enum_descriptor_get_value(&rozo__op__descriptor, op);

    return v == NULL ? "?" : v->name;
}

void tell_request(const char *from, const char *to, uint16_t op, const uint8_t *msg,
                  size_t len, const uint8_t *payload, size_t payload_len)
{
    const ProtobufCMessageDescriptor *d = descriptor_of(op);

    if (d == NULL)
        return;
    fprintf(stderr, "%10.4f   %s -> %s %s", (double)world_clock.now_ns / 1e9, from, to,
            op_name(op));
    tell_message(d, msg, len);
    if (op == ROZO__OP__ST_WRITE && payload_len >= RECORD_HEADER_BYTES)
        fprintf(stderr, " v=%llx", (unsigned long long)get_le64(payload + 16));
    fprintf(stderr, "\n");
}

void tell_answer(const char *from, const char *to, uint16_t op, uint16_t status,
                 const uint8_t *msg, size_t len)
{
    const ProtobufCEnumValue *v =
        protobuf_c_enum_descriptor_get_value(&rozo__status__descriptor, status);
    const ProtobufCMessageDescriptor *d;

    if (descriptor_of(op) == NULL)
        return;
    fprintf(stderr, "%10.4f   %s <- %s %s %s", (double)world_clock.now_ns / 1e9, to, from,
            op_name(op), v == NULL ? "?" : v->name);
    d = answer_of(op);
    if (d != NULL && len > 0)
        tell_message(d, msg, len);
    fprintf(stderr, "\n");
}
