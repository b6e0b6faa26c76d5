/*
 * kernel.h - model of Linux between the programs and one mount: its caches, requests and
 * locks.
 *
 * The model follows fs/fuse of Linux 6.14 and later without writeback_cache, as far as
 * coherence depends on it:
 *
 * - Names: an answer is valid for entry_timeout, also the answer that a name does not
 *   exist. An expired name is looked up again without its directory's lock, an unknown
 *   one under it (shared). A rename keeps the time: the new name is valid for as long as
 *   the old one was.
 * - Attributes are valid for attr_timeout. Each inode has a version that counts all
 *   changes of its attributes; an answer to a question from before the last change is not
 *   cached (but the caller gets it). Answers to SETATTR, CREATE, MKDIR and LINK are
 *   always cached, and so is the first answer about an inode.
 * - Pages: a READ locks its pages until it is answered. A WRITE goes through the cache:
 *   whole pages, and cached pages, get the new bytes before the mount is asked, and are
 *   not locked; a part of an uncached page locks that page. The kernel's own size counts:
 *   reads end there, appends go there; only a read beyond it asks for the size first, if
 *   the attributes are not valid. When an answer has another size, all pages are dropped.
 * - A reader asks for some more pages (readahead); if that fails, for its own page alone
 *   (read_folio). Missing pages after cached ones are requested at the same time. A page
 *   with only a piece from a WRITE counts as cached here, and is read alone when the
 *   reader reaches it. A short answer sets the end of the file; it takes effect when it
 *   is given, except for a page that is read alone: there its reader must wake up first.
 * - keep_cache at open keeps the pages; without it they are dropped. direct_io and
 *   O_DIRECT bypass them; direct writes drop them, before and after.
 * - Listings: a reader that reads a directory opened with cache_readdir from beginning to
 *   end leaves a listing, which others read that opened the directory so. The listing is
 *   dropped by an open without keep_cache, by inval_inode (with pages), by a change or a
 *   drop of a name through this mount, and when the directory's known mtime changes. The
 *   answer to a READDIR in progress during an inval_inode goes into the next listing.
 * - Extended attributes are not cached.
 * - Locks (i_rwsem), first come, first served: changes of names hold their directories
 *   exclusively, LOOKUP and READDIR share them; WRITE, SETATTR, SETXATTR, REMOVEXATTR,
 *   FALLOCATE, FSYNC and LSEEK hold the file exclusively.
 * - A change of names that is answered ESTALE is repeated once from its start, with new
 *   lookups.
 * - inval_inode: attributes become invalid; pages in the range are dropped one after the
 *   other, each when its READ is answered. No effect for an inode that the kernel does
 *   not know (yet).
 * - inval_entry: drops the name, under the exclusive lock of its directory. So it ends
 *   only when every earlier LOOKUP, READDIR and change of a name in that directory is
 *   answered: a mount that delays one of those until an inval_entry of the same directory
 *   ends waits forever.
 * - age_names (FUSE_NOTIFY_INC_EPOCH of Linux 6.16): all names, also absent ones, are
 *   looked up again at their next use, and listings are read again; this includes answers
 *   on their way to a LOOKUP or to the creation of a name. No lock is taken. Entries of a
 *   READDIRPLUS are valid from the time when its answer is taken.
 * - expire_entry: as inval_entry, but the name stays, and is looked up again at its next
 *   use. An answer on its way to the lookup of an expired name (without a lock) is valid
 *   nevertheless, and for all of its time.
 * - Anything unused may be forgotten at any time.
 *
 * The model is kinder than Linux in one respect. A read beyond the known end asks for the
 * attributes; if an invalidation overtakes that answer, Linux ignores it and ends the
 * read at the old end. Likewise Linux ignores a READ that ends early because the file is
 * shorter than the kernel knows, if an invalidation overtakes the answer, or while a call
 * of this kernel is in progress that may change the size (unless that call brings another
 * size): it gives zeros up to the old end, also to later reads of these pages, until
 * another answer brings the size. The model counts both cases and uses the answer,
 * because a mount cannot prevent them except by direct_io. It is as strict as Linux when
 * the overtaking answer was that of another READ that ended early, further back.
 *
 * An answer is taken a moment after it was given, when the process wakes up; an
 * invalidation between the two is done first. Not modelled: mapped pages, targets of
 * links, ACLs.
 */
#ifndef ROZO_TESTS_SIM_CLUSTER_KERNEL_KERNEL_H
#define ROZO_TESTS_SIM_CLUSTER_KERNEL_KERNEL_H

#include "tests/sim/cluster/programs/request.h"

struct kernel;

struct kernel_config {
    /** Sends a request to the mount, which answers with request_answered(). */
    void (*send)(void *arg, struct fuse_req *req, const struct request *r);
    /** Sends a signal to the program that waits for the answer. */
    void (*interrupt)(void *arg, struct fuse_req *req);
    void *arg;
    bool naps;    /* processes wake up some time after their answer */
    bool forgets; /* unused objects are forgotten at any time */
    bool plus;    /* some listings ask for attributes (READDIRPLUS) */
    bool deaf;    /* mutant: ignores all invalidations */
};

/* Statistics of the caches. */
struct kernel_counts {
    uint64_t n_names, n_attrs, n_pages, n_lists; /* answered without the mount */
    uint64_t n_invalidated, n_forgotten;         /* dropped names and
                                                  * pages; forgotten inodes */
    uint64_t n_overtaken; /* reads that Linux would have ended too early */
    uint64_t n_beside;    /* writes concurrent with another one of the same file */
};

/* A caller that waits for an invalidation; embedded. */
struct kernel_notice {
    /** Called in the world, within the call or later. */
    void (*done)(struct kernel_notice *notice, int rc);
};

struct kernel *kernel_new(const struct kernel_config *config);
/** Frees the kernel of a dead mount; no callback comes any more. NULL is allowed. */
void kernel_free(struct kernel *k);
const struct kernel_counts *kernel_counts(const struct kernel *k);

/** Starts a request of a program. The mount is
 * asked only if the caches have no answer. */
void kernel_ask(struct kernel *k, struct fuse_req *req, const struct request *r);

/** Sends a signal to the program; it interrupts only a wait for a lock. */
void kernel_interrupt(struct kernel *k, const struct fuse_req *req);

/** Works as fuse_lowlevel_notify_inval_inode(): off
 * < 0: only attributes; len 0: all from off on. */
void kernel_inval_inode(struct kernel *k, uint64_t ino, int64_t off, int64_t len,
                        struct kernel_notice *notice);
/** Works as FUSE_NOTIFY_INC_EPOCH, at once. */
void kernel_age_names(struct kernel *k);
/** Works as fuse_lowlevel_notify_inval_entry(). */
void kernel_inval_entry(struct kernel *k, uint64_t parent, const char *name,
                        struct kernel_notice *notice);
/** Works as fuse_lowlevel_notify_expire_entry(). */
void kernel_expire_entry(struct kernel *k, uint64_t parent, const char *name,
                         struct kernel_notice *notice);

#endif
