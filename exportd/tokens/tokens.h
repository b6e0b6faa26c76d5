/*
 * tokens.h - what sessions may keep of the inodes of one export until they are asked for it.
 *
 * SHARED: attributes, names of a directory, data that were read. EXCLUSIVE (regular files): besides, what was written
 * need not be told yet; nobody else holds anything then (I5). RANGES, of a file that several write in different places: data alone, and
 * of it only ranges, to read or to write; others may have RANGES, too, but none that overlaps one to write; nobody has the size
 * changed, or is told attributes to keep. Who needs what others hold waits: they are asked to give
 * it back (a recall), and who came first is served first. Waiters have numbers, ascending with their arrival; who
 * comes to wait at another inode keeps its number, so no two of them wait for each other.
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
#include "exportd/tokens/token_ranges.h"

/* Values are those of Rozo__TokenMode. */
enum token_mode { TOKEN_NONE, TOKEN_SHARED, TOKEN_RANGES, TOKEN_EXCLUSIVE };
enum token_access { TOKEN_READ = 1, TOKEN_WRITE = 2 }; /* of a range */

enum want_kind {
    WANT_SEE,    /* what is known of it must be true: in conflict with EXCLUSIVE */
    WANT_SHARE,  /* the same, and to keep that: not before those who came earlier */
    WANT_CHANGE, /* in conflict with whatever others hold */
};

enum {
    SESSION_TOKENS_DEFAULT = 262144, /* of a session */
    TOKENS_DEFAULT = 4 << 20,        /* of all sessions and exports */
    CLAIMS_MAX = 1 << 20,  /* of a session that comes back: whatever limits were before */
    TOKEN_RANGES_MAX = 64, /* of one inode and session: then it gets all of it */
    TOKENS_RESERVE_PART = 4, /* one part in so many more for those who must get one */
    TOKEN_WANTS_MAX = 4,  /* of one waiter: rename has two directories and two inodes */
    TOKEN_COOL_MS = 1000, /* after a recall nothing is given unasked, */
    TOKEN_COOL_MAX_MS = 16000, /* ever longer when it is recalled again soon after */
};

struct token_want {
    uint64_t ino; /* 0: none */
    enum want_kind kind;
    struct token_range range; /* SHARE, CHANGE: only this is needed */
};

struct token_hooks;

/* A session, or exportd itself. Embedded; token_holder_init(). */
struct token_holder {
    struct list_node all;      /* struct token_holding */
    struct list_node recalled; /* those that it is asked for, longest waiting first */
    size_t n;
    uint64_t number;                 /* 0: not yet */
    const struct token_hooks *hooks; /* borrowed; NULL: those of the table */
};

struct token_waiter;
/* Its place at one inode. */
struct token_place {
    struct list_node link; /* in inode->places, by number */
    struct token_inode *inode;
    struct token_waiter *waiter;
    enum want_kind kind;
    struct token_range range;
};

/* Who waits. Embedded; zeroed, then tokens_wait(). */
struct token_waiter {
    struct token_holder *holder; /* borrowed */
    uint64_t number;             /* 0 before its first wait */
    unsigned n;
    struct token_place places[TOKEN_WANTS_MAX];
};

/* What a holder is asked for. */
struct token_recall {
    uint64_t ino;
    enum token_mode keep;
    uint64_t grant, call;
};

struct token_hooks {
    /** Ask for it. What was asked before under another grant, or down to a higher mode, is out of date. */
    void (*recall)(struct token_holder *holder, const struct token_recall *recall);
    /** Something has changed there: tokens_judge() may say something else now. Not at once. */
    void (*wake)(struct token_waiter *waiter);
};

/* Beyond these nothing is given unasked, and a quarter more to those who must get one. */
struct token_limits {
    size_t session, all;
};

struct tokens {
    struct token_hooks hooks;
    const struct token_limits *limits; /* borrowed */
    struct table by_ino; /* those that somebody holds or waits for, or that cool down */
    struct list_node cooling; /* in no order */
    size_t *n_all;            /* borrowed: holdings of all exports */
    uint64_t n_waits;         /* since the start */
    uint64_t n_holders;       /* that were given numbers */
};

void tokens_init(struct tokens *t, const struct token_hooks *hooks,
                 const struct token_limits *limits, size_t *n_all);
/** Nobody holds anything or waits. */
void tokens_free(struct tokens *t);
void token_holder_init(struct token_holder *holder);
/** The session is gone. It must not wait for anything. */
void token_holder_end(struct tokens *t, struct token_holder *holder);

enum token_verdict {
    TOKENS_FREE,   /* nothing is in the way */
    TOKENS_IN_WAY, /* somebody is */
    TOKENS_ASKED, /* somebody is, and who asks has itself been asked for something there */
};
/** Where holder is at work, for what is judged and granted from now on. */
void tokens_note_work(struct tokens *t, struct token_holder *holder, uint64_t ino,
                      const struct token_range *range);
/** May this be done now? waiter: who waited until now, or NULL. Changes nothing. */
enum token_verdict tokens_judge(const struct tokens *t, const struct token_holder *holder,
                                const struct token_waiter *waiter,
                                const struct token_want *wants, unsigned n);
/** Wait, or wait for something else; who is in the way, and came before nobody else, is asked. -ENOMEM. */
int tokens_wait(struct tokens *t, struct token_waiter *waiter,
                const struct token_want *wants, unsigned n, uint64_t now_ns);
/** The same wants once more: tokens_judge(), and who has come into the way is asked. */
enum token_verdict tokens_look(struct tokens *t, struct token_waiter *waiter,
                               uint64_t now_ns);
/** It waits no more. Not waiting: nothing. */
void tokens_leave(struct tokens *t, struct token_waiter *waiter);

/* How something is granted. */
enum token_grant_how {
    GRANT_UNASKED, /* with an answer: when nobody wants it */
    GRANT_ASKED,   /* tokens_judge() was asked for it */
};
struct token_grant {
    uint64_t ino;
    enum token_mode mode;
    enum token_grant_how how;
    uint64_t serial; /* above all before */
    uint64_t call;
    struct token_range range; /* ASKED: all that is needed of a file */
    struct token_range
        *given; /* out, with that: what is, when it is not all of the file; may be NULL */
};
/** The mode that the holder has after it; NONE also when it is asked to give it back. */
enum token_mode tokens_grant(struct tokens *t, struct token_holder *holder,
                             const struct token_grant *grant, uint64_t now_ns);
/** Room for n more that must be given. */
bool tokens_have_room(const struct tokens *t, const struct token_holder *holder,
                      unsigned n);
/** Lower what it has to `keep`, unless it was granted after `grant`. */
void tokens_give_back(struct tokens *t, struct token_holder *holder, uint64_t ino,
                      enum token_mode keep, uint64_t grant, uint64_t now_ns);
/** The inode is gone for ever. */
void tokens_inode_gone(struct tokens *t, uint64_t ino);

/**
 * Ask the holder for up to n of those that it was granted first, though nobody waits for them: it may have forgotten that it
 * holds them. Those are not owed: nobody is ended for them.
 */
void tokens_ask_oldest(struct tokens *t, struct token_holder *holder, size_t n);

/** What the holder has of it. */
enum token_mode tokens_held(const struct tokens *t, const struct token_holder *holder,
                            uint64_t ino);
/** ... and the number of the newest answer that gave it; 0: nothing. */
uint64_t tokens_held_grant(const struct tokens *t, const struct token_holder *holder,
                           uint64_t ino);
/** Does another one have it EXCLUSIVE, or RANGES of it? */
bool tokens_is_written(const struct tokens *t, const struct token_holder *holder,
                       uint64_t ino);
/** Was it asked for this? */
bool tokens_is_recalled(const struct tokens *t, const struct token_holder *holder,
                        uint64_t ino);
/** Who has what, in no order; ranges NULL: not RANGES. For checks. */
void tokens_each(const struct tokens *t,
                 void (*fn)(void *arg, const struct token_holder *holder, uint64_t ino,
                            enum token_mode mode, const struct spans *ranges),
                 void *arg);
/** Since when the holder has owed an answer; UINT64_MAX: it owes none. */
uint64_t token_holder_owes_since(const struct token_holder *holder);
/** The same, of what it has SHARED: that takes long only when its kernel cannot let go of it. */
uint64_t token_holder_owes_shared_since(const struct token_holder *holder);
/** That was our own doing: as if it had been asked so much later. */
void token_holder_extend(struct token_holder *holder, uint64_t slept_ns);

/**
 * A holder that comes back says what it has: for each one tokens_claim(), then tokens_claimed(). fresh: nothing is
 * known of it yet, it is believed as long as nobody else is in the way; else it keeps of what it has what it claims.
 * -EAGAIN: it has not got that, -ENOMEM.
 */
int tokens_claim(struct tokens *t, struct token_holder *holder, uint64_t ino,
                 enum token_mode mode, bool fresh);
/** The same of one of its RANGES. */
int tokens_claim_range(struct tokens *t, struct token_holder *holder, uint64_t ino,
                       const struct token_range *range, enum token_access access,
                       bool fresh);
/** What was not claimed goes; the rest has this serial. */
void tokens_claimed(struct tokens *t, struct token_holder *holder, uint64_t serial);

/** Forget what has cooled down. */
void tokens_tick(struct tokens *t, uint64_t now_ns);

#endif
