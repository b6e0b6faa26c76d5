/*
 * kv_record.c - records of the cluster map, to bytes and back.
 *
 * In:     our values; bytes from the kv (checked).
 * Ask:    the order of fields in cluster.c. Users' disks carry these bytes.
 */
#include "exportd/store/kv_record.h"

#include <assert.h>
#include <string.h>

#include "common/base/bytes.h"

void kv_record_begin(struct kv_record_out *f)
{
    f->bytes[0] = KV_RECORD_FORMAT;
    f->len = 1;
}

void kv_record_put_bytes(struct kv_record_out *f, const void *p, size_t len)
{
    assert(f->len > 0 && (p != NULL || len == 0));
    assert(f->len + len <= sizeof(f->bytes));
    if (len > 0)
        memcpy(f->bytes + f->len, p, len);
    f->len += len;
}

void kv_record_put_u32(struct kv_record_out *f, uint32_t v)
{
    uint8_t b[4];

    put_le32(b, v);
    kv_record_put_bytes(f, b, sizeof(b));
}

void kv_record_put_u64(struct kv_record_out *f, uint64_t v)
{
    kv_record_put_u32(f, (uint32_t)v);
    kv_record_put_u32(f, (uint32_t)(v >> 32));
}

void kv_record_put_text(struct kv_record_out *f, const char *text)
{
    size_t len = strlen(text);

    kv_record_put_u32(f, (uint32_t)len);
    kv_record_put_bytes(f, text, len);
}

void kv_record_read(struct kv_record_in *f, const uint8_t *p, size_t len)
{
    *f = (struct kv_record_in){ p, len, len == 0 || p[0] != KV_RECORD_FORMAT };
    if (!f->bad) {
        f->p++;
        f->len--;
    }
}

void kv_record_get_bytes(struct kv_record_in *f, void *p, size_t len)
{
    if (f->bad || len > f->len) {
        f->bad = true;
        memset(p, 0, len);
        return;
    }
    memcpy(p, f->p, len);
    f->p += len;
    f->len -= len;
}

uint32_t kv_record_get_u32(struct kv_record_in *f)
{
    uint8_t b[4];

    kv_record_get_bytes(f, b, sizeof(b));
    return get_le32(b);
}

uint64_t kv_record_get_u64(struct kv_record_in *f)
{
    uint64_t low = kv_record_get_u32(f);

    return low | (uint64_t)kv_record_get_u32(f) << 32;
}

void kv_record_get_text(struct kv_record_in *f, char *text, size_t max)
{
    uint32_t len = kv_record_get_u32(f);

    assert(text != NULL && max < UINT32_MAX);
    if (len > max || len > f->len) {
        f->bad = true;
        len = 0;
    }
    kv_record_get_bytes(f, text, len);
    text[len] = '\0';
    if (strlen(text) != len)
        f->bad = true;
}

bool kv_record_end(const struct kv_record_in *f)
{
    return !f->bad && f->len == 0;
}
