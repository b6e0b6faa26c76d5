/*
 * kv_place.c - values of the keys of kind KEY_QUORUM.
 *
 * Keeps:  a kv either says up to which entry it is complete, or that it is being copied;
 *         never both.
 */
#include "exportd/quorum/kv_place.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/bytes.h"
#include "common/base/err.h"
#include "exportd/store/key.h"

enum { NAME_BYTES = 2, MEMBERS_HEAD_BYTES = 8, SEED_FORMAT = 1 };
static const uint8_t applied_key[NAME_BYTES] = { KEY_QUORUM, 'A' };
static const uint8_t members_key[NAME_BYTES] = { KEY_QUORUM, 'M' };
static const uint8_t highest_key[NAME_BYTES] = { KEY_QUORUM, 'H' };
static const uint8_t copied_key[NAME_BYTES] = { KEY_QUORUM, 'C' };
static const uint8_t seed_key[NAME_BYTES] = { KEY_QUORUM, 'S' };

/* Mark: 0 format, 1 doubt, 2 flag: copied, 3 zeros, 8 needed, 16 index, 24 term, 32
 * newest, 40 clock, 48 cursor. */
enum {
    AT_DOUBT = 1,
    AT_COPIED = 2,
    AT_NEEDED = 8,
    AT_INDEX = 16,
    AT_TERM = 24,
    AT_NEWEST = 32,
    AT_WALL = 40,
    AT_CURSOR = 48
};

static_assert((int)SEED_KEY_MAX >= (int)KEY_BYTES_MAX, "a cursor holds each key");

struct kv_item kv_place_applied(uint8_t buf[PLACE_APPLIED_BYTES], uint64_t index,
                                uint64_t term, int64_t wall_ns)
{
    put_le64(buf, index);
    put_le64(buf + 8, term);
    put_le64(buf + 16, (uint64_t)wall_ns);
    return (struct kv_item){ applied_key, NAME_BYTES, buf, PLACE_APPLIED_BYTES };
}

struct kv_item kv_place_members(uint8_t buf[PLACE_MEMBERS_BYTES_MAX], uint64_t index,
                                const void *list, size_t len)
{
    assert(len <= RAFT_CONFIG_BYTES_MAX);
    put_le64(buf, index);
    memcpy(buf + MEMBERS_HEAD_BYTES, list, len);
    return (struct kv_item){ members_key, NAME_BYTES, buf, MEMBERS_HEAD_BYTES + len };
}

struct kv_item kv_place_highest(uint8_t buf[PLACE_HIGHEST_BYTES], uint64_t id)
{
    put_le64(buf, id);
    return (struct kv_item){ highest_key, NAME_BYTES, buf, PLACE_HIGHEST_BYTES };
}

struct kv_item kv_place_copied(uint8_t buf[PLACE_COPIED_BYTES], uint64_t index,
                               uint64_t term)
{
    put_le64(buf, index);
    put_le64(buf + 8, term);
    return (struct kv_item){ copied_key, NAME_BYTES, buf, PLACE_COPIED_BYTES };
}

struct kv_item kv_place_seed(uint8_t buf[PLACE_SEED_BYTES_MAX],
                             const struct seed_mark *mark)
{
    assert(mark->doubt != SEED_NONE && mark->cursor.len <= SEED_KEY_MAX);
    memset(buf, 0, AT_CURSOR);
    buf[0] = SEED_FORMAT;
    buf[AT_DOUBT] = (uint8_t)mark->doubt;
    buf[AT_COPIED] = mark->is_copied;
    put_le64(buf + AT_NEEDED, mark->needed);
    put_le64(buf + AT_INDEX, mark->index);
    put_le64(buf + AT_TERM, mark->term);
    put_le64(buf + AT_NEWEST, mark->newest);
    put_le64(buf + AT_WALL, (uint64_t)mark->wall_ns);
    memcpy(buf + AT_CURSOR, mark->cursor.bytes, mark->cursor.len);
    return (struct kv_item){ seed_key, NAME_BYTES, buf, AT_CURSOR + mark->cursor.len };
}

struct kv_item kv_place_no_applied(void)
{
    return (struct kv_item){ applied_key, NAME_BYTES, NULL, 0 };
}

struct kv_item kv_place_no_seed(void)
{
    return (struct kv_item){ seed_key, NAME_BYTES, NULL, 0 };
}

static int seed_load(struct kv *below, struct seed_mark *mark)
{
    uint8_t *p;
    void *val;
    size_t len;
    int rc = kv_get(below, seed_key, NAME_BYTES, &val, &len);

    if (rc != 0)
        return rc == -ENOENT ? 0 : rc;
    p = val;
    if (len < AT_CURSOR || len > PLACE_SEED_BYTES_MAX || p[0] != SEED_FORMAT ||
        p[AT_DOUBT] < SEED_BEHIND || p[AT_DOUBT] > SEED_VOTE_LOST) {
        rc = -ROZO_EDAMAGED;
    } else {
        *mark = (struct seed_mark){
            .doubt = (enum seed_doubt)p[AT_DOUBT],
            .is_copied = p[AT_COPIED] != 0,
            .needed = get_le64(p + AT_NEEDED),
            .index = get_le64(p + AT_INDEX),
            .term = get_le64(p + AT_TERM),
            .newest = get_le64(p + AT_NEWEST),
            .wall_ns = (int64_t)get_le64(p + AT_WALL),
            .cursor.len = (uint32_t)(len - AT_CURSOR),
        };
        memcpy(mark->cursor.bytes, p + AT_CURSOR, len - AT_CURSOR);
    }
    free(val);
    return rc;
}

/* Reads the index; without one nothing of a log was ever applied. */
static int applied_load(struct kv *below, struct kv_quorum_place *place, int64_t *wall_ns)
{
    void *val;
    size_t len;
    int rc = kv_get(below, applied_key, NAME_BYTES, &val, &len);

    if (rc != 0)
        return rc == -ENOENT ? 0 : rc;
    if (len == PLACE_APPLIED_BYTES) {
        place->applied = get_le64(val);
        place->applied_term = get_le64((uint8_t *)val + 8);
        *wall_ns = (int64_t)get_le64((uint8_t *)val + 16);
    }
    if (place->applied == 0 || place->applied_term == 0 || place->seed.doubt != SEED_NONE)
        rc = -ROZO_EDAMAGED;
    free(val);
    return rc;
}

static int members_load(struct kv *below, struct kv_quorum_place *place)
{
    void *val;
    size_t len;
    int rc = kv_get(below, members_key, NAME_BYTES, &val, &len);

    if (rc != 0)
        return rc == -ENOENT && place->applied == 0 ? 0
               : rc == -ENOENT                      ? -ROZO_EDAMAGED
                                                    : rc;
    if (len > MEMBERS_HEAD_BYTES) {
        place->members_index = get_le64(val);
        rc = raft_config_decode((uint8_t *)val + MEMBERS_HEAD_BYTES,
                                len - MEMBERS_HEAD_BYTES, &place->members);
    }
    free(val);
    if (rc != 0 || place->members_index == 0 ||
        (place->seed.doubt == SEED_NONE && place->members_index > place->applied))
        return -ROZO_EDAMAGED;
    return 0;
}

/* Reads a value of len bytes. Returns 0, -ENOENT, -ROZO_EDAMAGED or another error. */
static int value_load(struct kv *below, const void *key, void *buf, size_t len)
{
    void *val;
    size_t val_len;
    int rc = kv_get(below, key, NAME_BYTES, &val, &val_len);

    if (rc != 0)
        return rc;
    if (val_len == len)
        memcpy(buf, val, len);
    else
        rc = -ROZO_EDAMAGED;
    free(val);
    return rc;
}

/* Reads the highest id; without the key no member was ever removed. */
static int highest_load(struct kv *below, struct kv_quorum_place *place)
{
    uint8_t buf[PLACE_HIGHEST_BYTES];
    int rc = value_load(below, highest_key, buf, sizeof(buf));

    place->highest_id = raft_config_highest(&place->members);
    if (rc == 0 && get_le64(buf) > place->highest_id)
        place->highest_id = get_le64(buf);
    return rc == -ENOENT ? 0 : rc;
}

static int copied_load(struct kv *below, struct kv_quorum_place *place)
{
    uint8_t buf[PLACE_COPIED_BYTES];
    int rc = value_load(below, copied_key, buf, sizeof(buf));

    place->copied = place->copied_term = 1;
    if (rc != 0)
        return rc == -ENOENT ? 0 : rc;
    place->copied = get_le64(buf);
    place->copied_term = get_le64(buf + 8);
    return place->copied == 0 || place->copied_term == 0 ? -ROZO_EDAMAGED : 0;
}

int kv_place_load(struct kv *below, struct kv_quorum_place *place, int64_t *wall_ns)
{
    int rc;

    memset(place, 0, sizeof(*place));
    *wall_ns = 0;
    rc = seed_load(below, &place->seed);
    if (rc == 0)
        rc = applied_load(below, place, wall_ns);
    if (rc == 0)
        rc = members_load(below, place);
    if (rc == 0)
        rc = highest_load(below, place);
    return rc != 0 ? rc : copied_load(below, place);
}
