/*
 * kv_record.h - the records of the cluster map as bytes in the kv: numbers and counted strings.
 */
#ifndef ROZO_EXPORTD_STORE_KV_RECORD_H
#define ROZO_EXPORTD_STORE_KV_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    FACTS_FORMAT = 1,
    FACTS_BYTES_MAX = 4096, /* more than the largest record */
};

/* Bytes being written; too many are a bug of ours. */
struct facts_out {
    size_t len;
    uint8_t bytes[FACTS_BYTES_MAX];
};
void facts_begin(struct facts_out *f);
void facts_put_u32(struct facts_out *f, uint32_t v);
void facts_put_u64(struct facts_out *f, uint64_t v);
void facts_put_bytes(struct facts_out *f, const void *p, size_t len);
void facts_put_text(struct facts_out *f, const char *text);

/* Bytes being read; `bad` once something did not fit, and everything after it is zero. */
struct facts_in {
    const uint8_t *p;
    size_t len;
    bool bad;
};
void facts_read(struct facts_in *f, const uint8_t *p, size_t len);
uint32_t facts_get_u32(struct facts_in *f);
uint64_t facts_get_u64(struct facts_in *f);
void facts_get_bytes(struct facts_in *f, void *p, size_t len);
/** At most max bytes and a zero byte. */
void facts_get_text(struct facts_in *f, char *text, size_t max);
/** All was there, and nothing more. */
bool facts_end(const struct facts_in *f);

#endif
