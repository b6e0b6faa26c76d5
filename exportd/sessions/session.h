/*
 * session.h - sessions of mounts: their leases, and the inodes that they hold open.
 */
#ifndef ROZO_EXPORTD_SESSIONS_SESSION_H
#define ROZO_EXPORTD_SESSIONS_SESSION_H

#include "exportd/cluster/exportd_state.h"
#include "exportd/sessions/reply_cache.h"

/* A session's or an inode's count of references, by inode number. */
struct open_file {
    uint64_t ino; /* key */
    uint32_t n_refs;
    uint32_t n_writers; /* of an export: sessions of which it `writes` */
    bool clean;  /* of an export: nobody could have written it before it was opened */
    bool writes; /* of a session: it got an epoch, or may have */
    UT_hash_handle hh;
};

struct session {
    uint64_t id;           /* key */
    struct export *export; /* borrowed */
    char client[WORDS_MAX + 1];
    bool read_only;
    bool ends; /* it is over, and storages that may still write for it are waited for */
    uint64_t expires_ns;
    struct open_file *refs; /* owned */
    struct open_file
        *cuts; /* owned: truncates begun without a reference, and not ended */
    struct reply_cache replies;
    struct reply_cache
        before; /* to what was done before we ran, or in the session that its client had before: DONE_BEFORE */
    uint64_t n_done; /* of reply_log.c: number of the next one */
    struct lock_holder locks;
    struct lock_call *lock_calls; /* by waiter: the locks it waits for */
    struct token_holder tokens;
    uint32_t tokens_max;     /* of which it is told that it may have them */
    struct list_node parked; /* its calls that wait for tokens of others */
    unsigned n_parked;
    struct list_node events; /* it is to be told of, ascending */
    unsigned n_events;
    struct list_node news_link; /* in x->news: some of them are new */
    uint64_t last_event;
    struct rpc_call *events_call; /* owned: held until there is one; NULL: none is */
    uint64_t events_held_ns;      /* since when */
    UT_hash_handle hh;
};

struct session *session_find(struct exportd *x, uint64_t id);
/**
 * id 0: a new one, remembered; so, too, when the one asked for is over: then *out has another id. -EBUSY when
 * there are too many, -EEXIST when id belongs to another export.
 */
int session_open(struct exportd *x, struct export *e, uint64_t id, const char *client,
                 bool read_only, struct session **out);
void session_touch(struct exportd *x, struct session *s);
/** Room for one more inode? */
bool session_may_ref(const struct session *s);
/** One more reference. clean: see struct open_file. -ENOMEM, also when it holds too many. */
int session_ref(struct session *s, uint64_t ino, bool clean);
/** At least n references, for a session that is taken up again. */
int session_claim(struct session *s, uint64_t ino, uint32_t n);
/** Up to n fewer; the last one of an inode without names removes it. */
void session_unref(struct exportd *x, struct session *s, uint64_t ino, uint32_t n,
                   bool nothing_stored);
/** It got an epoch of this inode: by opening it, or to truncate it. */
void session_writes(struct session *s, uint64_t ino);
/** Can nobody be writing it but maybe, with own_too, this session? Right after our start nobody knows. */
bool session_is_alone(struct session *s, uint64_t ino, bool own_too);
/** A truncate is done. */
void session_has_cut(struct session *s, uint64_t ino);
/** Its process is gone for sure: it ends now, as if its lease were over. Not known: nothing. */
void session_is_dead(struct exportd *x, uint64_t id);
/** Gives back all it holds and frees it. gone: it did not say so, what it wrote is to be looked at. */
void session_end(struct exportd *x, struct session *s, bool gone);
/** For slept_ns we heard nobody, and that was our own doing: leases and grace last longer. */
void sessions_extend_leases(struct exportd *x, uint64_t slept_ns);
/** End what has been silent too long; after the grace, remove orphans nobody holds. */
void sessions_tick(struct exportd *x);
/** What is held for them is answered BUSY: it will be sent to the next of us. */
void sessions_stop(struct exportd *x);
void sessions_free(struct exportd *x);
/** Does a session hold it open? During the grace any inode may be. */
bool export_is_open(struct export *e, uint64_t ino);
/** Nobody needs it any more: when it has no name, it goes. */
void export_reap(struct export *e, uint64_t ino);

#endif
