/*
 * key.h - the keys of exportd's kv.
 *
 * docs/FORMATS.md lists them; they lie on users' disks. A key begins with one byte that
 * says its kind. Numbers follow big-endian, so that byte order is number order. A name
 * comes last.
 */
#ifndef ROZO_EXPORTD_STORE_KEY_H
#define ROZO_EXPORTD_STORE_KEY_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum {
    NAMESPACE_NAME_MAX = 255,
    KEY_BYTES_MAX = 1 + 4 + 8 + NAMESPACE_NAME_MAX,
};

enum key_kind {
    KEY_CLUSTER = 'A', /* -> cluster id and counters */
    KEY_BOOT = 'B',    /* -> boot id of the machine when exportd last ran */
    KEY_STORAGE = 'S', /* storage */
    KEY_VOLUME = 'V',  /* volume */
    KEY_EXPORT = 'E',  /* export */
    KEY_SESSION = 'C', /* session (64 bits) */
    KEY_FENCE = 'F', /* number (64 bits) -> an ended session that storages must refuse */
    /* session, number modulo REPLIES_MAX (32 bits): an executed request */
    KEY_DONE = 'R',
    /* export, ino: start of a range of numbers that were never given out */
    KEY_GAP = 'G',
    KEY_SEED = 'K',     /* export, ino -> seed of generations from here on */
    KEY_COUNTERS = 'N', /* export -> next inode number, inodes in use */
    KEY_INODE = 'I',    /* export, ino */
    KEY_DENTRY = 'D',   /* export, directory, name -> ino, type, cookie */
    KEY_ORDER = 'O',    /* export, directory, cookie -> ino, type, name */
    /* export, directory, hash of the folded name, cookie: a name, if names are folded */
    KEY_FOLDED = 'J',
    KEY_INLINE = 'M',   /* export, ino -> all data of a small file */
    KEY_BLOCKS = 'P',   /* export, ino -> set of allocated blocks */
    KEY_SYMLINK = 'L',  /* export, ino -> target */
    KEY_XATTRS = 'Y',   /* export, ino -> names of the xattrs, each with its zero byte */
    KEY_XATTR = 'X',    /* export, ino, name -> value */
    KEY_ORPHAN = 'U',   /* export, ino: inode without a name that was still open */
    KEY_DELETION = 'T', /* export, ino: removed inode; storages have not been asked yet */
    /* export, ino: change of its distribution, see namespace_redist.c */
    KEY_REDIST = 'Q',
    /* storage, export, ino: removal that this storage has not confirmed */
    KEY_WAITING = 'W',
    KEY_LOSSES = 'H', /* -> number of the last loss of power that members counted */
    KEY_QUORUM = 'Z', /* place of this member in the metadata log, see kv_place.c */
};

/**
 * Returns whether a key is a member's own: it says what the kv of that member holds, so
 * no batch, chunk or dump has it, and the user of the kv neither sees nor sets it.
 */
static inline bool key_is_of_member(const void *key, size_t len)
{
    return len > 0 && *(const uint8_t *)key == KEY_QUORUM;
}

struct key {
    size_t len;
    uint8_t bytes[KEY_BYTES_MAX];
};

static inline void key_start(struct key *k, enum key_kind kind)
{
    k->bytes[0] = (uint8_t)kind;
    k->len = 1;
}
static inline void key_add_u32(struct key *k, uint32_t v)
{
    assert(k->len + 4 <= sizeof(k->bytes));
    for (int shift = 24; shift >= 0; shift -= 8)
        k->bytes[k->len++] = (uint8_t)(v >> shift);
}
static inline void key_add_u64(struct key *k, uint64_t v)
{
    key_add_u32(k, (uint32_t)(v >> 32));
    key_add_u32(k, (uint32_t)v);
}
static inline void key_add_bytes(struct key *k, const void *p, size_t len)
{
    assert(k->len + len <= sizeof(k->bytes));
    memcpy(k->bytes + k->len, p, len);
    k->len += len;
}
/** Makes a key of kind and one 32-bit number: storages, volumes, exports, counters. */
static inline void key_id(struct key *k, enum key_kind kind, uint32_t id)
{
    key_start(k, kind);
    key_add_u32(k, id);
}
/**
 * Makes a key of kind, export and inode number: inodes, symlinks, xattr lists, orphans,
 * removals.
 */
static inline void key_ino(struct key *k, enum key_kind kind, uint32_t export_id,
                           uint64_t ino)
{
    key_id(k, kind, export_id);
    key_add_u64(k, ino);
}
/** Makes a key of kind, export, inode number and name: dentries, xattrs. */
static inline void key_name(struct key *k, enum key_kind kind, uint32_t export_id,
                            uint64_t ino, const void *name, size_t len)
{
    key_ino(k, kind, export_id, ino);
    key_add_bytes(k, name, len);
}
static inline void key_order(struct key *k, uint32_t export_id, uint64_t dir,
                             uint64_t cookie)
{
    key_ino(k, KEY_ORDER, export_id, dir);
    key_add_u64(k, cookie);
}
static inline void key_folded(struct key *k, uint32_t export_id, uint64_t dir,
                              uint64_t hash, uint64_t cookie)
{
    key_ino(k, KEY_FOLDED, export_id, dir);
    key_add_u64(k, hash);
    key_add_u64(k, cookie);
}
static inline void key_waiting(struct key *k, uint32_t storage_id, uint32_t export_id,
                               uint64_t ino)
{
    key_id(k, KEY_WAITING, storage_id);
    key_add_u32(k, export_id);
    key_add_u64(k, ino);
}

/* Reads a number of a key. The caller has checked the length. */
static inline uint32_t key_get_u32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}
static inline uint64_t key_get_u64(const uint8_t *p)
{
    return (uint64_t)key_get_u32(p) << 32 | key_get_u32(p + 4);
}

#endif
