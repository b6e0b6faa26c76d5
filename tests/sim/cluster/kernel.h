/*
 * kernel.h - Linux between the programs and one mount: what it keeps, when it asks, and what it locks meanwhile.
 *
 * It stands for fs/fuse of Linux 6.14 and later without writeback_cache, as far as coherence depends on it:
 *
 * - Names are believed for as long as the answer said (entry_timeout), also that there are none. An expired name is
 *   looked up again without its directory's lock, an unknown one under it (shared). A rename takes the time along: the
 *   new name is believed for as long as the old one was.
 * - Attributes are believed for attr_timeout. Each inode has a version that counts with whatever changes them; what was
 *   asked before the last change is not believed (but given to who asked). Answers to SETATTR, CREATE, MKDIR and LINK
 *   are believed whatever came meanwhile, and so is the first answer of all about an inode.
 * - Pages: a READ locks its pages until it is answered. A WRITE goes through the cache: whole pages, and pages that
 *   are there, have the new bytes before the mount is asked, and are not locked; a piece of a page that is not there locks
 *   it. The file is as long as the kernel thinks: reads end there, appends go there; only who wants to read beyond has the size
 *   asked for again when it is not believed any more. When an answer says another size, all pages go.
 * - Who reads asks for some pages more; when that fails, for the page that he wants alone (read_folio). Those behind pages that are there he asks for at the same time. A page of which a WRITE left a
 *   piece only counts as there for that, and is read alone when he comes to it. An answer that is short says where the file ends, and is
 *   taken as soon as it is given, but for that of a page that is read alone: its reader has to be woken first.
 * - keep_cache at open; without it pages go. direct_io and O_DIRECT pass them by; direct writes drop them, before and after.
 * - Listings: who reads a directory that was opened with cache_readdir from its beginning to its end leaves a listing behind, out of
 *   which others read who opened it so. It goes when the directory is opened without keep_cache, when inval_inode (with
 *   pages), a change of names through this mount or the dropping of a name comes, and when the directory is known to have another mtime. An
 *   answer to a READDIR that is under way at an inval_inode goes into the next listing.
 * - Extended attributes: nothing is kept.
 * - Locks (i_rwsem), first come first served: changes of names hold their directories alone, LOOKUP and READDIR share them;
 *   WRITE, SETATTR, SETXATTR, REMOVEXATTR, FALLOCATE, FSYNC, LSEEK hold the file alone.
 * - A change of names that is answered ESTALE is done once more, from its start, and names are looked up anew.
 * - inval_inode: attributes are not believed any more; pages in the range are dropped one after the other, each when its READ
 *   is answered. Of an inode that the kernel does not know (yet) it does nothing.
 * - inval_entry: the name is dropped, under the lock of its directory, alone. So it ends only when every LOOKUP, READDIR
 *   and change of a name in it that this mount has been asked before is answered: whoever lets one of those wait for
 *   an inval_entry of the same directory waits for ever.
 * - age_names (FUSE_NOTIFY_INC_EPOCH of Linux 6.16): all names, and that there are none, are looked up again when they are next used, and
 *   listings read again; also those that are on their way to who looks up or makes a name. No lock is taken. But what a READDIRPLUS brings
 *   is believed from when its answer is taken.
 * - expire_entry: as inval_entry, but the name stays, and is looked up again when it is next used. An answer that is on its
 *   way to who looks up an expired name (without a lock) is believed all the same, and for all of its time.
 * - What nobody uses may be forgotten at any time.
 *
 * In one thing we are kinder than Linux: who reads beyond the end as the kernel knows it has the attributes asked for, and when an
 * invalidation overtakes that answer Linux does not take it, and ends the read where the file ended before. So, too, when it overtakes
 * the answer to a READ that ends early, because the file is shorter than the kernel knows, and while a call of its own is under way that
 * may change the size, when it learns no other: Linux then gives zeros up to the
 * end of before, also to later reads of these pages until something else tells it the size. We count both, and go by the answer: a mount cannot help it but by direct_io.
 * We are as hard as Linux when it was another READ that ended early, further back, whose answer was taken meanwhile.
 *
 * An answer is taken in a moment after it was given, as a process is woken: an invalidation that comes between is done before it.
 * Not modelled: mapped pages, links' targets, ACLs.
 */
#ifndef ROZO_SIM_KERNEL_H
#define ROZO_SIM_KERNEL_H

#include "tests/sim/cluster/request.h"

struct kernel;

struct kernel_config {
    /** To the mount, which answers with request_answered(). */
    void (*send)(void *arg, struct fuse_req *req, const struct request *r);
    /** A signal for who waits for the answer. */
    void (*interrupt)(void *arg, struct fuse_req *req);
    void *arg;
    bool naps;    /* processes wake up some time after their answer */
    bool forgets; /* at any time what is not in use */
    bool plus;    /* asks for attributes with listings, now and then */
    bool deaf;    /* a mutant: it drops nothing when it is told to */
};

/* How much it was good for. */
struct kernel_counts {
    uint64_t n_names, n_attrs, n_pages, n_lists; /* answered without the mount */
    uint64_t n_invalidated, n_forgotten;         /* names and pages dropped; inodes */
    uint64_t n_overtaken; /* reads that Linux would have ended too early */
    uint64_t n_beside;    /* writes of a file that another one was in */
};

/* Somebody waits for an invalidation. Embedded. */
struct kernel_notice {
    void (*done)(struct kernel_notice *notice,
                 int rc); /* in the world; within the call, or later */
};

struct kernel *kernel_new(const struct kernel_config *config);
/** The mount is dead: nobody hears of anything any more. NULL is fine. */
void kernel_free(struct kernel *k);
const struct kernel_counts *kernel_counts(const struct kernel *k);

/** A program asks. The mount has not been asked when the kernel knows. */
void kernel_ask(struct kernel *k, struct fuse_req *req, const struct request *r);

/** A signal comes to the program; only who waits for a lock hears it. */
void kernel_interrupt(struct kernel *k, const struct fuse_req *req);

/** As fuse_lowlevel_notify_inval_inode(): off < 0: only attributes; len 0: all from there on. */
void kernel_inval_inode(struct kernel *k, uint64_t ino, int64_t off, int64_t len,
                        struct kernel_notice *notice);
/** As FUSE_NOTIFY_INC_EPOCH, at once. */
void kernel_age_names(struct kernel *k);
/** As fuse_lowlevel_notify_inval_entry(). */
void kernel_inval_entry(struct kernel *k, uint64_t parent, const char *name,
                        struct kernel_notice *notice);
/** As fuse_lowlevel_notify_expire_entry(). */
void kernel_expire_entry(struct kernel *k, uint64_t parent, const char *name,
                         struct kernel_notice *notice);

#endif
