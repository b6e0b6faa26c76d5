/*
 * held.h - open files as the kernel knows them, for the next process of the mount: their
 * numbers, and the owners of their locks.
 *
 * The table lies in memory that outlives the process if the mount has a holder
 * (holder.h). A change is complete before the kernel is answered, so a process that is
 * killed leaves at most one entry per thread that the kernel does not know. Any thread.
 */
#ifndef ROZO_ROZOMOUNT_HOLD_HELD_H
#define ROZO_ROZOMOUNT_HOLD_HELD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

enum { HELD_INIT_MAX = 4096 }; /* bytes; INIT and its answer are about 100 */

/* Sizes of a table. */
struct held_room {
    uint32_t handles; /* open files and directories of a mount */
    uint32_t owners;  /* lock owners, each once for each handle */
};
extern const struct held_room held_room_of_mount;

enum held_kind { HELD_FREE, HELD_FILE, HELD_DIR };

/* An open file or directory, as the kernel knows it. The caller zeroes the rest. */
struct held_handle {
    uint64_t ino;
    uint32_t flags; /* as in open(2) */
    uint32_t reuse; /* part of the number: uses of this place so far */
    uint32_t kind;  /* enum held_kind */
    uint16_t past_pages;
    uint8_t has_owners;
    uint8_t owes_error; /* data are lost, and no fsync through it said so yet */
};

/* Facts about the mount that all its processes must go by. */
struct held_mount {
    uint64_t session; /* 0: none */
    uint32_t losses;  /* see struct mount_session_info */
    uint32_t init_len, reply_len;
    uint8_t init[HELD_INIT_MAX], reply[HELD_INIT_MAX];
};

struct held_files;

/** Returns a descriptor of memory for a table that outlives a process, or -errno. */
int held_memory(const struct held_room *room);
/**
 * Opens a table of this size. fd: from held_memory(), borrowed; -1: memory of this
 * process only. Returns 0, or -errno with a message in err.
 */
int held_open(int fd, const struct held_room *room, struct held_files **out,
              struct err *err);
void held_close(struct held_files *h);
/** Returns the facts about the mount, in the table. */
struct held_mount *held_mount(struct held_files *h);

/**
 * Adds a handle that points at `user`. Returns its number, for fi->fh; 0: the table is
 * full.
 */
uint64_t held_add(struct held_files *h, const struct held_handle *handle, void *user);
/** Removes a handle and the owners of its locks. */
void held_remove(struct held_files *h, uint64_t number);
/** Returns the user of a handle of this inode; NULL: there is none with this number. */
void *held_user(const struct held_files *h, uint64_t number, uint64_t ino);
/**
 * Returns the number of the next handle behind `number` that a process before has left,
 * and copies it; 0: there is no more. Start with 0. held_give() must follow.
 */
uint64_t held_next(const struct held_files *h, uint64_t number, struct held_handle *out);
/** Sets the user of a handle that a process before has left. */
void held_give(struct held_files *h, uint64_t number, void *user);

/** Sets or clears owes_error of a handle. */
void held_owe_error(struct held_files *h, uint64_t number, bool owes);

/** Notes an owner of a lock taken through the handle. Returns false: no room. */
bool held_add_owner(struct held_files *h, uint64_t number, uint64_t owner);
/** Calls fn for each owner noted for the handle. */
void held_each_owner(const struct held_files *h, uint64_t number,
                     void (*fn)(void *arg, uint64_t owner), void *arg);

#endif
