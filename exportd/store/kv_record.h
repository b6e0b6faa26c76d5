/*
 * kv_record.h - the records of the cluster map in the kv: numbers and counted strings.
 */
#ifndef ROZO_EXPORTD_STORE_KV_RECORD_H
#define ROZO_EXPORTD_STORE_KV_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    KV_RECORD_FORMAT = 1,
    KV_RECORD_BYTES_MAX = 4096, /* more than the largest record */
};

/* Record being written. Running out of room is a bug and asserts. */
struct kv_record_out {
    size_t len;
    uint8_t bytes[KV_RECORD_BYTES_MAX];
};
void kv_record_begin(struct kv_record_out *f);
void kv_record_put_u32(struct kv_record_out *f, uint32_t v);
void kv_record_put_u64(struct kv_record_out *f, uint64_t v);
void kv_record_put_bytes(struct kv_record_out *f, const void *p, size_t len);
void kv_record_put_text(struct kv_record_out *f, const char *text);

/*
 * Record being read. `bad` is set if something did not fit; all later values are then
 * zero.
 */
struct kv_record_in {
    const uint8_t *p;
    size_t len;
    bool bad;
};
void kv_record_read(struct kv_record_in *f, const uint8_t *p, size_t len);
uint32_t kv_record_get_u32(struct kv_record_in *f);
uint64_t kv_record_get_u64(struct kv_record_in *f);
void kv_record_get_bytes(struct kv_record_in *f, void *p, size_t len);
/**
 * Reads a string of at most max bytes and adds a zero byte: text has room for max + 1.
 */
void kv_record_get_text(struct kv_record_in *f, char *text, size_t max);
/** Returns true if all values were there and no byte is left. */
bool kv_record_end(const struct kv_record_in *f);

#endif
