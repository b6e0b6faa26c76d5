/*
 * node.h - inodes in use on one loop: their struct file and their references at exportd.
 *
 * A node lives while it is pinned by an open handle or by an operation. When the last pin
 * goes, the file is written out and closed, then its references are given back to
 * exportd. A file that was only read may be kept open for a while by a pin of the table,
 * so that opening it again needs no request. Core: uses the env, the md client and
 * storcli. One thread.
 */
#ifndef ROZO_ROZOMOUNT_INODE_NODE_H
#define ROZO_ROZOMOUNT_INODE_NODE_H

#include "common/base/hash.h"
#include "common/wire/inode_times.h"
#include "rozomount/kcache/kernel_sizes.h"
#include "rozomount/session/md_client.h"
#include "rozomount/session/md_decode.h"
#include "rozomount/session/open_refs.h"
#include "rozomount/session/unsynced_inodes.h"
#include "rozomount/tokens/token_cache.h"
#include "storcli/file.h"

struct nodes_config {
    struct file_config file;
    struct open_refs *refs;           /* borrowed */
    struct unsynced_inodes *unsynced; /* borrowed */
    struct token_cache *tokens;       /* borrowed */
    /* borrowed; NULL: the kernel requests file sizes from us */
    struct kernel_sizes *sizes;
    /**
     * Called when another mount changed the data of ino: the kernel's pages must be
     * dropped. May be NULL.
     */
    void (*invalidate)(void *arg, uint64_t ino);
    /** Called when a node comes into use (+1) or goes out of use (-1). May be NULL. */
    void (*count)(void *arg, uint64_t ino, int change);
    /**
     * Called when a node becomes kept open (+1) or stops being kept (-1). May be NULL.
     */
    void (*count_kept)(void *arg, uint64_t ino, int change);
    void *arg;
};

/* Change counter of an inode, as exportd last reported it while no change of ours was
 * under way. Size and times do not identify a state: cp -p and rsync -t set them back.
 * Not valid: others may have changed it besides; an answer with a smaller counter is
 * still older. */
struct seen {
    bool valid;
    uint64_t change;
};

/* A waiter for the end of node->closing. Embedded in its owner. */
struct node_wait {
    void (*ready)(struct node_wait *wait);
    struct list_node link; /* in node->waiters */
};

/* Names of an inode in use, as far as known. */
enum node_names {
    NODE_NAMED,
    NODE_LOST_A_NAME, /* perhaps the last: not kept open */
    NODE_GONE,        /* has no name */
};

/* Invalidation of the ends of READs that were answered short: recall_inval.c. */
enum ends_drop {
    ENDS_KEPT,
    ENDS_DROPPED,       /* under way */
    ENDS_DROPPED_AGAIN, /* under way, and one more follows */
};

struct nodes;

/* One inode in use. */
struct node {
    uint64_t ino;
    struct nodes *nodes; /* borrowed */
    struct file *file;   /* owned; NULL before the first open and after closing */
    unsigned n_pins;
    enum node_names names;
    uint32_t n_refs;  /* references that exportd counts for this mount */
    bool unreported;  /* storages may have bytes not yet reported to exportd */
    bool has_stored;  /* file_has_stored() of a file that was closed */
    bool closing;     /* file_close() is under way: do not use `file` */
    bool stale;       /* size changed by another mount; unknown to the kernel */
    uint64_t n_syncs; /* number of fsyncs begun */
    /* fsyncs up to this number have a durable WROTE sent after them */
    uint64_t synced_no;
    /* exclusive_no() of the token of that WROTE, see node_is_durable(); 0: none */
    uint64_t durable_no;
    unsigned n_changing; /* own changes under way at exportd */
    struct seen seen;
    int64_t changed_ns;       /* latest ctime known, by exportd's clock */
    struct inode_times times; /* from exportd; atime_ns also from reads here */
    uint64_t times_change;    /* change counter that came with `times`; 0: none */
    /* Mode and group, to know the privileges that a write must clear; from exportd. */
    uint32_t mode;
    gid_t gid;
    uint64_t mode_until_ns;          /* end of the validity of mode and gid */
    uint32_t file_flags;             /* FileFlags, exact under a token to write */
    uint64_t flags_change;           /* change counter that came with file_flags */
    uint64_t no_capability_until_ns; /* until then the inode has no security.capability */
    struct file_meta meta;
    struct list_node waiters;
    /* The members below belong to token_recall.c. */
    unsigned long long lowered; /* mount->n_lowered when the token was last lowered */
    /* number of times that written data was dropped for other mounts */
    uint64_t n_abandoned;
    int abandoned_rc;               /* reason of the last one, -errno */
    struct list_node token_waiters; /* operations that wait for a token, in order */
    struct acquire *acquiring;      /* MD_TOKEN under way; NULL: none */
    struct list_node exclusive;     /* operations under way under an exclusive token */
    struct list_node reading;       /* READs under way that fill kernel pages */
    struct list_node past_eof;      /* READs that wait in read_past_eof.c */
    uint64_t went_round_ns;     /* time when a recall last bypassed a READ; 0: never */
    enum ends_drop ends;        /* see fuse_op_read_ended() */
    struct list_node kept_link; /* in nodes->kept, or alone */
    UT_hash_handle hh;
};

enum {
    CLOSES_MAX = 128, /* files closed in one message */
    SEEN_MAX = 16384, /* closed inodes whose change counter is remembered */
    KEPT_MAX = 2048,  /* files kept open without a user */
};

/* Embedded in its loop. */
struct nodes {
    struct env *env;
    struct md_client *md; /* borrowed */
    struct storcli *cli;  /* borrowed */
    struct nodes_config config;
    uint32_t losses; /* power losses of exportd, as last known by this loop */
    struct node *by_ino;
    struct closed_node *closed; /* remembered change counters, oldest first */
    struct list_node kept;      /* least recently used first */
    unsigned n_kept;
    unsigned n_lost; /* number of files closed with data that could not be stored */
    /* owned; closes not yet reported to exportd; NULL: none */
    struct give_back *gathering;
    struct env_timer gather_timer;
    unsigned n_giving_back;  /* number of MD_CLOSE under way */
    void (*idle)(void *arg); /* set by nodes_when_idle() */
    void *idle_arg;
    struct env_task idle_task;
};

void nodes_init(struct nodes *nodes, struct env *env, struct md_client *md,
                struct storcli *cli, const struct nodes_config *config);
/** Frees the table. No node may be left. */
void nodes_close(struct nodes *nodes);
/**
 * Reports closed files to exportd now, not after a delay. Call it before a request that
 * would treat these files as open.
 */
void nodes_tell_closes(struct nodes *nodes);
/** Calls idle once, later, when no node and no MD_CLOSE is left. */
void nodes_when_idle(struct nodes *nodes, void (*idle)(void *arg), void *arg);

/**
 * Notes the number of power losses of exportd. If it is new, reports of open files that
 * are not synced at exportd are sent again; changes that cannot be sent again count as
 * lost.
 */
void nodes_learn_losses(struct nodes *nodes, uint32_t losses);

/** Returns the node of ino, not pinned; NULL if not in use. */
struct node *node_find(struct nodes *nodes, uint64_t ino);
/** Returns the node of ino, pinned, made if needed. The caller calls node_put(). */
struct node *node_get(struct nodes *nodes, uint64_t ino);
/** Adds a pin. */
void node_pin(struct node *node);
/** Removes a pin. The last one closes the file and then frees the node. */
void node_put(struct node *node);
/**
 * Keeps the file open after its last user, until node_let_go() or until many other files
 * were used since. The caller holds a pin; the file is clean and has no epoch.
 */
void node_keep(struct node *node);
/** Stops keeping the file open. May free the node unless the caller holds a pin. */
void node_let_go(struct node *node);
/**
 * Does the same. The next request to exportd finds the file closed, if nothing else uses
 * it, even though it is closed here a little later.
 */
void node_let_go_first(struct node *node);
/** Stops keeping files open, for all nodes. */
void nodes_let_go(struct nodes *nodes);
/**
 * Calls wait->ready later, when the node has finished closing. The node must be closing;
 * the caller holds a pin.
 */
void node_wait(struct node *node, struct node_wait *wait);

/**
 * Opens the file, or refreshes the open one, with the location of the data that exportd
 * sent. The node must be pinned and not closing. Returns 0 or -errno.
 * @param counted  the answer took a reference for us (MD_OPEN, MD_CREATE with open).
 */
int node_adopt(struct node *node, const struct md_entry *entry, bool counted);
/**
 * Refreshes an open file with the answer that granted its token. All earlier writers have
 * reported, and our own changes on their way to exportd do not make the file longer.
 */
void node_adopt_granted(struct node *node, const struct md_entry *entry);
/** Counts a reference that exportd may have taken for a request without an answer. */
void node_count_unanswered(struct node *node);
/** Counts references that exportd has taken for a process before. */
void node_count_inherited(struct node *node, uint32_t n);

/**
 * Notes that our own change was sent to exportd, or answered (attr NULL: no answer).
 * Calls come in pairs.
 */
void node_change_sent(struct node *node);
void node_change_answered(struct node *node, const struct md_attr *attr);
/** Notes attributes from a request that changes nothing, and so changes by others. */
void node_note_attr(struct node *node, const struct md_attr *attr);
/**
 * Returns true, at open, if the kernel's pages, if any, match the data at exportd. Call
 * it before node_adopt().
 */
bool node_cache_is_fresh(struct node *node, const struct md_attr *attr);

/**
 * Returns true, at open, if the kernel has a wrong size and will not learn the right one.
 * Call it before node_adopt().
 */
bool node_is_stale(struct node *node, const struct md_attr *attr);
/**
 * Notes that exportd has set the size at our request. Call it before
 * node_change_answered().
 */
void node_size_set(struct node *node, const struct md_attr *attr);

/**
 * Returns true if the inode is durable at exportd without a further WROTE: since a
 * durable WROTE was answered, no other mount can have changed the inode (its token is
 * held exclusively), and all changes by this mount, of any inode, are durable.
 */
bool node_is_durable(const struct node *node);

/** Notes mode, group and file flags that exportd has just sent. */
void node_note_mode(struct node *node, const struct md_attr *attr);
/** Notes whether the inode has lost its last name, as exportd has just said. */
void node_note_nlink(struct node *node, const struct md_attr *attr);
/** Extends the validity of mode and group. */
void node_renew_mode(struct node *node);
/** Notes that exportd has just reported no security.capability. */
void node_note_no_capability(struct node *node);

struct atimes;
/** Notes a read by a program. Returns true if the access time moves. */
bool node_note_read(struct node *node, struct atimes *atimes);

/** Puts the size and times of data on its way over those from exportd. */
void node_overlay(const struct node *node, struct stat *st);

#endif
