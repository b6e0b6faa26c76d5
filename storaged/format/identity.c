/*
 * identity.c - the text of DATA/storage.id; whose requests of exportd count.
 *
 *     rozo-storage
 *     format: 1
 *     incarnation: 32 hex digits
 *     cluster: 32 hex digits        (this line and the next: only when admitted)
 *     storage: 3
 *     rebuild: yes                  (only during a rebuild)
 *
 * In:     the bytes of the file; they are checked, since anybody may have edited
 *         them (I8).
 * Out:    struct identity, or an error message for the operator.
 */
#include "storaged/format/identity.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"

int identity_check_start(const struct identity *id, uint64_t start)
{
    uint64_t known = atomic_load_explicit(&id->map_start, memory_order_acquire);

    if (start == 0 || identity_storage_id(id) == 0)
        return 0;
    if (start < known)
        return -ROZO_EDEPOSED;
    return start == known ? 0 : -EBUSY;
}

static void hex_put(char out[2 * IDENTITY_ID_BYTES + 1],
                    const uint8_t id[IDENTITY_ID_BYTES])
{
    for (unsigned i = 0; i < IDENTITY_ID_BYTES; i++)
        snprintf(out + (size_t)2 * i, 3, "%02x", id[i]);
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool hex_get(const char *text, uint8_t id[IDENTITY_ID_BYTES])
{
    if (strlen(text) != 2 * IDENTITY_ID_BYTES)
        return false;
    for (unsigned i = 0; i < IDENTITY_ID_BYTES; i++) {
        int hi = hex_digit(text[2 * i]), lo = hex_digit(text[2 * i + 1]);

        if (hi < 0 || lo < 0)
            return false;
        id[i] = (uint8_t)(hi << 4 | lo);
    }
    return true;
}

/* Reads a decimal number without sign and spaces; 0 is refused. */
static bool number_get(const char *text, uint32_t *out)
{
    uint64_t v = 0;

    if (*text == '\0' || *text == '0')
        return false;
    for (; *text != '\0'; text++) {
        if (*text < '0' || *text > '9')
            return false;
        v = v * 10 + (uint64_t)(*text - '0');
        if (v > UINT32_MAX)
            return false;
    }
    *out = (uint32_t)v;
    return true;
}

size_t identity_print(char text[IDENTITY_TEXT_MAX],
                      const uint8_t incarnation[IDENTITY_ID_BYTES],
                      const uint8_t cluster_id[IDENTITY_ID_BYTES], uint32_t storage_id,
                      bool rebuild)
{
    char hex[2 * IDENTITY_ID_BYTES + 1];
    int n;

    hex_put(hex, incarnation);
    n = snprintf(text, IDENTITY_TEXT_MAX, "rozo-storage\nformat: %d\nincarnation: %s\n",
                 IDENTITY_FORMAT, hex);
    if (storage_id != 0) {
        hex_put(hex, cluster_id);
        n += snprintf(text + n, IDENTITY_TEXT_MAX - (size_t)n,
                      "cluster: %s\nstorage: %" PRIu32 "\n%s", hex, storage_id,
                      rebuild ? "rebuild: yes\n" : "");
    }
    return (size_t)n;
}

/* Returns the value of the line "key: value" at *at, NUL-terminated in place, and
 * moves *at on. NULL if the line is a different one. */
static char *line_take(char **at, const char *key)
{
    char *end = strchr(*at, '\n');
    size_t n = strlen(key);
    char *value;

    if (end == NULL || strncmp(*at, key, n) != 0 || strncmp(*at + n, ": ", 2) != 0)
        return NULL;
    value = *at + n + 2;
    *end = '\0';
    *at = end + 1;
    return value;
}

int identity_parse(const char *text, size_t len, struct identity *out, struct err *err)
{
    static const char first_line[] = "rozo-storage\n";
    char copy[IDENTITY_TEXT_MAX + 1];
    char *at = copy, *value;
    struct identity got = { .storage_id = 0 };
    uint32_t format, storage_id = 0;
    bool rebuild = false;

    if (len > IDENTITY_TEXT_MAX || memchr(text, '\0', len) != NULL)
        return err_set(err, -ROZO_EDAMAGED, "not the identity of a storage");
    memcpy(copy, text, len);
    copy[len] = '\0';
    if (strncmp(at, first_line, sizeof(first_line) - 1) != 0)
        return err_set(err, -ROZO_EDAMAGED, "not the identity of a storage");
    at += sizeof(first_line) - 1;
    value = line_take(&at, "format");
    if (value == NULL || !number_get(value, &format))
        return err_set(err, -ROZO_EDAMAGED, "line 2 is not \"format: NUMBER\"");
    if (format != IDENTITY_FORMAT)
        return err_set(err, -ROZO_EUNKNOWN_FORMAT,
                       "format %" PRIu32 ", this build reads up to %d", format,
                       IDENTITY_FORMAT);
    value = line_take(&at, "incarnation");
    if (value == NULL || !hex_get(value, got.incarnation))
        return err_set(err, -ROZO_EDAMAGED,
                       "line 3 is not \"incarnation: 32 HEX DIGITS\"");
    if (*at != '\0') {
        value = line_take(&at, "cluster");
        if (value == NULL || !hex_get(value, got.cluster_id))
            return err_set(err, -ROZO_EDAMAGED,
                           "line 4 is not \"cluster: 32 HEX DIGITS\"");
        value = line_take(&at, "storage");
        if (value == NULL || !number_get(value, &storage_id))
            return err_set(err, -ROZO_EDAMAGED, "line 5 is not \"storage: NUMBER\"");
        if (*at != '\0') {
            value = line_take(&at, "rebuild");
            rebuild = value != NULL && strcmp(value, "yes") == 0;
            if (!rebuild)
                return err_set(err, -ROZO_EDAMAGED, "line 6 is not \"rebuild: yes\"");
        }
    }
    if (*at != '\0')
        return err_set(err, -ROZO_EDAMAGED, "unknown lines at the end");
    memcpy(out->incarnation, got.incarnation, sizeof(out->incarnation));
    memcpy(out->cluster_id, got.cluster_id, sizeof(out->cluster_id));
    atomic_store(&out->rebuild, rebuild);
    atomic_store(&out->storage_id, storage_id);
    return 0;
}
