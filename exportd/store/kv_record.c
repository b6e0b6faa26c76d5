/*
 * kv_record.c - records of the cluster map, to bytes and back.
 *
 * In:     values of ours; bytes from the kv (checked).
 * Ask:    the order of fields in cluster.c. Users' disks carry these bytes.
 */
#include "exportd/store/kv_record.h"

#include <assert.h>
#include <string.h>

#include "common/base/bytes.h"

void facts_begin(struct facts_out *f)
{
    f->bytes[0] = FACTS_FORMAT;
    f->len = 1;
}

void facts_put_bytes(struct facts_out *f, const void *p, size_t len)
{
    assert(f->len + len <= sizeof(f->bytes));
    if (len > 0)
        memcpy(f->bytes + f->len, p, len);
    f->len += len;
}

void facts_put_u32(struct facts_out *f, uint32_t v)
{
    uint8_t b[4];

    put_le32(b, v);
    facts_put_bytes(f, b, sizeof(b));
}

void facts_put_u64(struct facts_out *f, uint64_t v)
{
    facts_put_u32(f, (uint32_t)v);
    facts_put_u32(f, (uint32_t)(v >> 32));
}

void facts_put_text(struct facts_out *f, const char *text)
{
    size_t len = strlen(text);

    facts_put_u32(f, (uint32_t)len);
    facts_put_bytes(f, text, len);
}

void facts_read(struct facts_in *f, const uint8_t *p, size_t len)
{
    *f = (struct facts_in){ p, len, len == 0 || p[0] != FACTS_FORMAT };
    if (!f->bad) {
        f->p++;
        f->len--;
    }
}

void facts_get_bytes(struct facts_in *f, void *p, size_t len)
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

uint32_t facts_get_u32(struct facts_in *f)
{
    uint8_t b[4];

    facts_get_bytes(f, b, sizeof(b));
    return get_le32(b);
}

uint64_t facts_get_u64(struct facts_in *f)
{
    uint64_t low = facts_get_u32(f);

    return low | (uint64_t)facts_get_u32(f) << 32;
}

void facts_get_text(struct facts_in *f, char *text, size_t max)
{
    uint32_t len = facts_get_u32(f);

    if (len > max || len > f->len) {
        f->bad = true;
        len = 0;
    }
    facts_get_bytes(f, text, len);
    text[len] = '\0';
    if (strlen(text) != len)
        f->bad = true;
}

bool facts_end(const struct facts_in *f)
{
    return !f->bad && f->len == 0;
}
