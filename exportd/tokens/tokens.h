/*
 * tokens.h - tokens: the right of a session to cache an inode of one export until it is
 * recalled.
 *
 * SHARED: attributes, names of a directory, data that were read. EXCLUSIVE (regular
 * files): besides, writes may be reported late; no other session holds anything of the
 * inode (I5). RANGES, for a file that several sessions write in different places: only
 * data, and only in ranges, to read or to write. Others may have RANGES, too, except
 * where they overlap one to write; meanwhile no session changes the size or may keep
 * attributes.
 *
 * A session that needs what others hold waits, and they are asked to give it back (a
 * recall). Waiters are served in the order of arrival. A waiter has a number, ascending
 * by arrival, and keeps it when it waits at another inode, so that no two waiters wait
 * for each other.
 *
 * Pure: no clock, no I/O. One thread.
 */
#ifndef ROZO_EXPORTD_TOKENS_TOKENS_H
#define ROZO_EXPORTD_TOKENS_TOKENS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/list.h"
#include "common/base/table.h"
#include "common/wire/token.h"
#include "exportd/tokens/token_ranges.h"

enum want_kind {
    WANT_SEE,    /* read attributes that must be true: conflicts with EXCLUSIVE */
    WANT_SHARE,  /* read and keep them: also waits behind earlier waiters */
    WANT_CHANGE, /* conflicts with everything that others hold */
};

enum {
    SESSION_TOKENS_DEFAULT = 262144, /* tokens of one session */
    TOKENS_DEFAULT = 4 << 20,        /* tokens of all sessions and exports */
    /* claims of a session that comes back; limits may have been higher before */
    CLAIMS_MAX = 1 << 20,
    /* ranges of one inode and session; beyond, it gets the whole file */
    TOKEN_RANGES_MAX = 64,
    /* one part in so many is added for grants that must succeed */
    TOKENS_RESERVE_PART = 4,
    /* inodes of one waiter: rename has two directories and two inodes */
    TOKEN_WANTS_MAX = 4,
    TOKEN_COOL_MS = 1000, /* ms; after a recall nothing is granted unasked for so long */
    TOKEN_COOL_MAX_MS = 16000, /* ms; doubles up to this if recalled again soon after */
};

struct token_want {
    uint64_t ino; /* 0: none */
    enum want_kind kind;
    /* with SHARE or CHANGE: only this range is needed; to 0: the whole inode */
    struct token_range range;
};

struct token_hooks;

/* Session, or exportd itself, as the holder of tokens. Embedded; token_holder_init(). */
struct token_holder {
    struct list_node all;      /* struct token_holding */
    struct list_node recalled; /* recalled holdings, longest waiting first */
    size_t n;
    uint64_t number;                 /* 0: none yet */
    const struct token_hooks *hooks; /* borrowed; NULL: hooks of the table */
};

struct token_waiter;
/* Place of a waiter in the queue of one inode. */
struct token_place {
    struct list_node link; /* in inode->places, by number */
    struct token_inode *inode;
    struct token_waiter *waiter;
    enum want_kind kind;
    struct token_range range;
};

/* Waiter. Embedded; zeroed, then tokens_wait(). */
struct token_waiter {
    struct token_holder *holder; /* borrowed */
    uint64_t number;             /* 0 before the first wait */
    unsigned n;
    struct token_place places[TOKEN_WANTS_MAX];
};

/* Request to a holder to give back a token. */
struct token_recall {
    uint64_t ino;
    enum token_mode keep;
    uint64_t grant, call;
};

struct token_hooks {
    /**
     * Sends a recall. Earlier recalls of the inode under another grant, or down to a
     * higher mode, are obsolete.
     */
    void (*recall)(struct token_holder *holder, const struct token_recall *recall);
    /**
     * Wakes a waiter, since tokens_judge() may answer differently now. Must not act
     * inside the call.
     */
    void (*wake)(struct token_waiter *waiter);
};

/*
 * Largest numbers of tokens for unasked grants; a quarter more for grants that must
 * succeed.
 */
struct token_limits {
    size_t session, all;
};

struct tokens {
    struct token_hooks hooks;
    const struct token_limits *limits; /* borrowed */
    struct table by_ino;      /* inodes that are held, waited for or cooling down */
    struct list_node cooling; /* inodes that cool down, in no order */
    size_t *n_all;            /* borrowed: holdings of all exports */
    uint64_t n_waits;         /* waiters since the start */
    uint64_t n_holders;       /* holders that have a number */
};

void tokens_init(struct tokens *t, const struct token_hooks *hooks,
                 const struct token_limits *limits, size_t *n_all);
/** Frees the table. No session may hold anything or wait. */
void tokens_free(struct tokens *t);
void token_holder_init(struct token_holder *holder);
/** Drops all tokens of a session that ended. It must not be waiting. */
void token_holder_end(struct tokens *t, struct token_holder *holder);

enum token_verdict {
    TOKENS_FREE,   /* nothing is in the way */
    TOKENS_IN_WAY, /* other sessions hold something in conflict */
    /* as TOKENS_IN_WAY, and the asking session has itself been recalled there */
    TOKENS_ASKED,
};
/** Notes the range that a holder uses, for later decisions and grants. */
void tokens_note_work(struct tokens *t, struct token_holder *holder, uint64_t ino,
                      const struct token_range *range);
/**
 * Decides whether a request may go on now. waiter: the waiter of this request if it has
 * waited, else NULL. Changes nothing.
 */
enum token_verdict tokens_judge(const struct tokens *t, const struct token_holder *holder,
                                const struct token_waiter *waiter,
                                const struct token_want *wants, unsigned n);
/**
 * Enters the queues of these inodes, in place of earlier wants. Recalls conflicting
 * tokens where the waiter is first in the queue. Returns 0 or -ENOMEM.
 */
int tokens_wait(struct tokens *t, struct token_waiter *waiter,
                const struct token_want *wants, unsigned n, uint64_t now_ns);
/**
 * Decides again for a waiter, see tokens_judge(), and recalls tokens that conflict now.
 */
enum token_verdict tokens_look(struct tokens *t, struct token_waiter *waiter,
                               uint64_t now_ns);
/** Ends a wait. Does nothing if the waiter does not wait. */
void tokens_leave(struct tokens *t, struct token_waiter *waiter);

/* Reason of a grant. */
enum token_grant_how {
    GRANT_UNASKED, /* along with an answer: only if no other session wants the inode */
    GRANT_ASKED,   /* tokens_judge() has allowed it */
};
struct token_grant {
    uint64_t ino;
    enum token_mode mode;
    enum token_grant_how how;
    uint64_t serial; /* above all serials before */
    uint64_t call;
    struct token_range range; /* GRANT_ASKED: the range that is needed */
    /* out, may be NULL: the range granted, unless it is the whole file */
    struct token_range *given;
};
/**
 * Grants a token. Returns the mode that the holder has then; NONE also if the token is
 * recalled.
 */
enum token_mode tokens_grant(struct tokens *t, struct token_holder *holder,
                             const struct token_grant *grant, uint64_t now_ns);
/** Returns true if n more tokens fit that must be granted. */
bool tokens_have_room(const struct tokens *t, const struct token_holder *holder,
                      unsigned n);
/** Lowers a holding to `keep`, unless it was granted after `grant`. */
void tokens_give_back(struct tokens *t, struct token_holder *holder, uint64_t ino,
                      enum token_mode keep, uint64_t grant, uint64_t now_ns);
/** Forgets an inode that is gone for good. */
void tokens_inode_gone(struct tokens *t, uint64_t ino);

/**
 * Recalls up to n of the holder's oldest tokens although no session waits for them: the
 * holder may have forgotten them. A session that ignores such a recall is not evicted.
 */
void tokens_ask_oldest(struct tokens *t, struct token_holder *holder, size_t n);

/** Returns the mode that a holder has of an inode. */
enum token_mode tokens_held(const struct tokens *t, const struct token_holder *holder,
                            uint64_t ino);
/** Returns the serial of the holder's newest grant of an inode; 0: none. */
uint64_t tokens_held_grant(const struct tokens *t, const struct token_holder *holder,
                           uint64_t ino);
/** Returns true if another holder has the inode EXCLUSIVE, or RANGES of it. */
bool tokens_is_written(const struct tokens *t, const struct token_holder *holder,
                       uint64_t ino);
/** Returns true if the holder has been asked to give back this inode. */
bool tokens_is_recalled(const struct tokens *t, const struct token_holder *holder,
                        uint64_t ino);
/** Lists all holdings, in no order; ranges NULL: not RANGES. For checks. */
void tokens_each(const struct tokens *t,
                 void (*fn)(void *arg, const struct token_holder *holder, uint64_t ino,
                            enum token_mode mode, const struct range_map *ranges),
                 void *arg);
/**
 * Lists the inodes of a holder's tokens in inos[holder->n]: SHARED ones from its start
 * on, the others from its end on. Returns the number of SHARED ones.
 */
size_t token_holder_list(const struct token_holder *holder, uint64_t *inos);
/**
 * Returns since when the holder has owed an answer to a recall (ns, monotonic);
 * UINT64_MAX: it owes none.
 */
uint64_t token_holder_owes_since(const struct token_holder *holder);
/**
 * Returns since when the holder has owed an answer for a SHARED token (ns, monotonic);
 * UINT64_MAX: it owes none. Such an answer takes long only if the client's kernel cannot
 * drop the inode.
 */
uint64_t token_holder_owes_shared_since(const struct token_holder *holder);
/** Moves the times of recalls forward by time in which exportd itself was suspended. */
void token_holder_extend(struct token_holder *holder, uint64_t slept_ns);

/**
 * Claims a token for a holder that comes back; tokens_claimed() follows after all claims.
 * fresh: exportd knows nothing of the holder and believes it unless another holder is in
 * the way; else it keeps those of its tokens that it claims. Returns 0, -ENOMEM, or
 * -EAGAIN: it has no such token.
 */
int tokens_claim(struct tokens *t, struct token_holder *holder, uint64_t ino,
                 enum token_mode mode, bool fresh);
/** Claims one range, see tokens_claim(). */
int tokens_claim_range(struct tokens *t, struct token_holder *holder, uint64_t ino,
                       const struct token_range *range, enum token_access access,
                       bool fresh);
/** Claims all tokens of a holder whose client has been replaced by another one. */
void tokens_claim_all(struct token_holder *holder);
/** Drops the tokens that were not claimed; the others get this serial. */
void tokens_claimed(struct tokens *t, struct token_holder *holder, uint64_t serial);

/** Forgets inodes that have cooled down. */
void tokens_tick(struct tokens *t, uint64_t now_ns);

#endif
