/*
 * node.h - what one loop knows of the inodes in use: their struct file, their references.
 *
 * A node lives as long as someone holds a pin: an open handle, or an operation that needs it.
 * With the last pin the file is written out and closed, then its references go back to exportd.
 * What was only read may be kept for a while, by a pin of the table's own: opening it again asks nobody.
 * Core: reaches the world through the env, the md and storcli. One thread.
 */
#ifndef ROZO_ROZOMOUNT_INODE_NODE_H
#define ROZO_ROZOMOUNT_INODE_NODE_H

#include <uthash.h>

#include "common/base/inode_times.h"
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
    struct kernel_sizes
        *sizes; /* borrowed; NULL: the kernel asks us how long files are */
    /** Someone else changed the data of ino: drop the kernel's pages. May be NULL. */
    void (*invalidate)(void *arg, uint64_t ino);
    /** A node came into use or went out of it (+1, -1). May be NULL. */
    void (*count)(void *arg, uint64_t ino, int change);
    /** The same of those that are only kept. May be NULL. */
    void (*count_kept)(void *arg, uint64_t ino, int change);
    void *arg;
};

/* An inode's change counter as exportd last told us, when nothing of ours was under way. Size and
 * times are no substitute: cp -p and rsync -t set them back. Not valid: others may have changed it
 * besides; but an answer that tells of less is an older one all the same. */
struct seen {
    bool valid;
    uint64_t change;
};

/* Someone waits until a node is not closing any more. Embedded. */
struct node_wait {
    void (*ready)(struct node_wait *wait);
    struct list_node link; /* in node->waiters */
};

struct nodes;

/* One inode in use. */
struct node {
    uint64_t ino;
    struct nodes *nodes; /* borrowed */
    struct file *file;   /* owned; NULL before the first open and after closing */
    unsigned n_pins;
    uint32_t n_refs; /* references exportd counts for us */
    bool untold;     /* storages may have bytes of it that exportd does not know of */
    bool has_stored; /* file_has_stored(), of a file that was closed */
    bool closing;    /* file_close() is under way: `file` is not to be used */
    bool nameless;   /* it has lost a name, perhaps the last: it is not kept */
    bool gone;       /* it has lost the last, or never had one */
    bool stale; /* another mount has changed its size, and the kernel will not know */
    uint64_t n_syncs; /* fsyncs begun */
    uint64_t
        synced_no; /* those up to here have a durable WROTE that was sent after them */
    uint64_t
        settled; /* of the token under which that was sent: see node_is_settled(); 0: none */
    unsigned n_changing; /* our own changes under way at exportd */
    struct seen seen;
    int64_t changed_ns; /* the latest ctime of it that we know of, by exportd's clock */
    struct inode_times times; /* from exportd; atime_ns also from reads here */
    uint64_t times_change;    /* change counter of the inode with `times`; 0: none */
    /* Privileges that a write takes away, as exportd told us shortly ago. */
    uint32_t mode;
    gid_t gid;
    uint64_t mode_until_ns;          /* then mode is too old */
    uint32_t file_flags;             /* FileFlags, exact under a token to write */
    uint64_t flags_change;           /* change counter of the attributes they came with */
    uint64_t no_capability_until_ns; /* there is no security.capability; then ask again */
    struct file_meta meta;
    struct list_node waiters;
    /* Tokens: token_recall.c. */
    unsigned long long lowered; /* mount->n_lowered, when its token was the last time */
    uint64_t n_given_up; /* times that something written was, for others to go on */
    int given_up_rc;     /* why, the last time */
    struct list_node token_waiters; /* operations, in order */
    struct acquire *acquiring;      /* an MD_TOKEN is out */
    struct list_node exclusive;     /* operations under way by an exclusive token */
    struct list_node reading;       /* READs under way that fill pages */
    struct list_node past_eof;      /* READs that wait in read_past_eof.c */
    uint64_t went_round_ns; /* a recall was last taken round a READ; 0: none was */
    bool dropping_ends, drops_ends_again; /* see fuse_op_read_ended() */
    struct list_node kept_link;           /* in nodes->kept, or alone */
    UT_hash_handle hh;
};

enum {
    CLOSES_MAX = 128, /* told to exportd in one message */
    SEEN_MAX = 16384, /* closed inodes whose state we remember */
    KEPT_MAX = 2048,  /* files that nobody has open and that are open all the same */
};

/* Embedded in its loop. */
struct nodes {
    struct env *env;
    struct md_client *md; /* borrowed */
    struct storcli *cli;  /* borrowed */
    struct nodes_config config;
    uint32_t losses; /* of exportd's power, as this loop last heard */
    struct node *by_ino;
    struct closed_node *closed; /* remembered, oldest first */
    struct list_node kept;      /* longest unused first */
    unsigned n_kept;
    unsigned n_lost; /* files closed with data that could not be stored */
    struct give_back
        *gathering; /* owned; closes that exportd is not told yet; NULL: none */
    struct env_timer gather_timer;
    unsigned n_giving_back;  /* MD_CLOSE under way */
    void (*idle)(void *arg); /* from nodes_when_idle() */
    void *idle_arg;
    struct env_task idle_task;
};

void nodes_init(struct nodes *nodes, struct env *env, struct md_client *md,
                struct storcli *cli, const struct nodes_config *config);
/** No node may be left. */
void nodes_close(struct nodes *nodes);
/** exportd is told at once of what was closed: before it is asked for something that would take the file for open. */
void nodes_tell_closes(struct nodes *nodes);
/** Call idle once, later, when no node and no MD_CLOSE is left. */
void nodes_when_idle(struct nodes *nodes, void (*idle)(void *arg), void *arg);

/**
 * exportd has lost its power so often. When that is news, what it was told of open files and nobody synced is told
 * again, and what cannot be told again counts as lost.
 */
void nodes_learn_losses(struct nodes *nodes, uint32_t losses);

/** The node of ino, NULL when it is not in use. Not pinned. */
struct node *node_find(struct nodes *nodes, uint64_t ino);
/** The node of ino, made when needed; pinned: node_put() it. */
struct node *node_get(struct nodes *nodes, uint64_t ino);
/** One more pin. */
void node_pin(struct node *node);
void node_put(struct node *node);
/**
 * It stays open when nobody has it open any more, until node_let_go() or until many others were used since. The caller
 * holds a pin; the file is clean and has no epoch.
 */
void node_keep(struct node *node);
/** It does not any more. The node may be gone, unless the caller holds a pin. */
void node_let_go(struct node *node);
/** None does. */
void nodes_let_go(struct nodes *nodes);
/** Call wait->ready later, once the node is not closing. Only while it is; the caller holds a pin. */
void node_wait(struct node *node, struct node_wait *wait);

/**
 * exportd told how to reach the data: open the file, or refresh the open one. The node must be
 * pinned and not closing.
 * @param counted  the answer took a reference for us (MD_OPEN, MD_CREATE with open).
 */
int node_adopt(struct node *node, const struct md_entry *entry, bool counted);
/**
 * The same of an open file, with the answer that gives us its token: whoever wrote before has told, and what of ours is on its way
 * to exportd makes it no longer.
 */
void node_adopt_granted(struct node *node, const struct md_entry *entry);
/** A reference may have been taken: exportd did not answer. */
void node_count_unanswered(struct node *node);

/** Our own change is sent to exportd / was answered (attr NULL: no). Calls come in pairs. */
void node_change_sent(struct node *node);
void node_change_answered(struct node *node, const struct md_attr *attr);
/** Attributes exportd gave to a question: notes what others changed. */
void node_note_attr(struct node *node, const struct md_attr *attr);
/**
 * At open: true when the kernel's pages, if any, are still what exportd has. Call before
 * node_adopt().
 */
bool node_cache_is_fresh(struct node *node, const struct md_attr *attr);

/** At open, before node_adopt(): does the kernel believe in another size, and will not learn? */
bool node_is_stale(struct node *node, const struct md_attr *attr);
/** exportd has set the size as we asked; before node_change_answered(). */
void node_size_set(struct node *node, const struct md_attr *attr);

/**
 * When no WROTE had to be sent, is the inode stable at exportd all the same? Since a durable one was answered nobody else can have
 * changed it, for we have held it exclusively, and whatever we have changed there, anywhere, is stable.
 */
bool node_is_settled(const struct node *node);

/** exportd just told us the mode, and whose it is. */
void node_note_mode(struct node *node, const struct md_attr *attr);
/** They are good for another while. */
void node_renew_mode(struct node *node);
/** exportd just told us that there is no security.capability. */
void node_note_no_capability(struct node *node);

struct atimes;
/** Notes a read by a program. Returns true if the access time moves. */
bool node_note_read(struct node *node, struct atimes *atimes);

/** What this client knows better than exportd: size and times of data on its way. */
void node_overlay(const struct node *node, struct stat *st);

#endif
