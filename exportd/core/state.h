/*
 * state.h - what the parts of exportd's state machine share.
 *
 * exportd.c holds it together and dispatches; md.c and ad.c are the handlers; the others do what their
 * heads say. One thread.
 */
#ifndef ROZO_EXPORTD_STATE_H
#define ROZO_EXPORTD_STATE_H

#include "common/proto/rozo.pb-c.h"

#include "common/base/list.h"
#include "exportd/core/exportd.h"
#include "exportd/core/fs.h"
#include "exportd/core/hash.h"
#include "exportd/core/locks.h"
#include "exportd/core/replies.h"
#include "exportd/core/tokens.h"

enum {
    CLUSTER_ID_BYTES = 16,
    INCARNATION_BYTES = 16,
    STORAGES_MAX = 4096,
    VOLUMES_MAX = 256,
    EXPORTS_MAX = 1024,
    SESSIONS_MAX = 4096,
    FENCES_MAX =
        SESSIONS_MAX, /* all sessions may end in one night, and come back as late */
    SESSION_REFS_MAX =
        500000, /* inodes a session may hold open: one MD_OPEN_SESSION names all */
    REFS_MAX = 4 << 20,    /* of all sessions together */
    ANSWERS_MAX = 1 << 16, /* calls waiting for a commit; more are told BUSY */
    OPS_MAX = 256,         /* requests are counted by op below this */
    NAMES_MAX = 63,        /* bytes of a volume's or export's name */
    HOST_MAX = 255,        /* bytes of a host or rack */
    WORDS_MAX = 255,       /* bytes of an error for people */
    ADDR_MAX = 80,         /* bytes of "host:port" */
    ADDRS_MAX = 16,        /* addresses of a storage */
    TICK_MS = 1000,
    ASLEEP_MS = 3000, /* no tick for so long: we were not running */
    INFO_DEADLINE_MS = 3000,
    METADATA_RESERVE =
        64 << 20, /* bytes kept free below the kv: the tree may shrink, not grow */
};

struct exportd;

/* ---- the cluster map: cluster.c ---- */

/* What a storage is. A value: copied, compared, kept in the kv. */
struct storage_facts {
    uint32_t id;
    uint32_t volume;
    uint8_t incarnation[INCARNATION_BYTES];
    unsigned n_addrs;
    char addrs[ADDRS_MAX][ADDR_MAX + 1];
    char host[HOST_MAX + 1];
    char rack[HOST_MAX + 1];
    bool lost;    /* it will not come back */
    bool changes; /* next_incarnation was told that it takes this one's place ... */
    uint8_t
        next_incarnation[INCARNATION_BYTES]; /* ... and we do not know yet that it did */
};

/* One storage of the cluster, from its admission on. */
struct storage {
    struct list_node link; /* in x->storages, by id */
    struct exportd *x;     /* borrowed */
    struct storage_facts facts;
    struct rpc_channel *channel; /* owned; NULL when its addresses make no sense */
    struct rpc_request info;     /* the poll under way */
    bool polling;
    bool asked; /* since our start, one poll has ended */
    bool up;    /* the last one ended well */
    uint64_t total_bytes, free_bytes;
    uint64_t disk_id;   /* the file system that it is on; 0: it does not say */
    unsigned n_on_disk; /* storages on that, not less than 1: they share what is free */
    double credit;      /* in files: how many more it should be a home of (room.h) */
    char version[NAMES_MAX + 1];
    char error[WORDS_MAX + 1]; /* why it is not up */
    bool moved;     /* its addresses changed: a new channel when this one is idle */
    unsigned n_out; /* requests but the poll that are out on the channel */
    struct rpc_request map_rq;
    bool map_out;                  /* it is */
    uint64_t map_sent;             /* the version in it */
    uint64_t map_told;             /* the last one it took; 0: none */
    uint64_t map_told_ns;          /* when */
    uint64_t map_known;            /* what it says it knows; 0: it does not say */
    struct trash_round *round;     /* removals it missed, when some are being sent */
    struct key trash_cursor;       /* how far */
    struct trash_batch *gathering; /* removals about to be sent; NULL: none */
    uint64_t n_waiting;            /* removals it has not confirmed */
    uint64_t retry_ns;             /* not before: the last round failed */
    bool too_old;                  /* redistribute.c said so */
};

struct volume {
    struct list_node link;
    uint32_t id;
    char name[NAMES_MAX + 1];
};

/* A session's or an inode's count of references, by inode number. */
struct open_file {
    uint64_t ino; /* key */
    uint32_t n_refs;
    uint32_t n_writers; /* of an export: sessions of which it `writes` */
    bool clean;  /* of an export: nobody could have written it before it was opened */
    bool writes; /* of a session: it got an epoch, or may have */
    UT_hash_handle hh;
};

struct export
{
    struct list_node link;
    struct exportd *x; /* borrowed */
    uint32_t id;
    uint32_t volume;
    uint8_t codec;
    uint8_t layout;
    uint16_t block_bytes;
    bool sync;           /* changes are answered when durable */
    uint32_t inline_max; /* as fs.inline_max */
    char name[NAMES_MAX + 1];
    struct fs fs;
    struct locks locks;
    struct tokens tokens;
    unsigned n_sessions;
    struct open_file *opens;     /* owned; over all sessions */
    struct lingering *lingering; /* owned; of linger.c */
    bool tight;                  /* a storage of the volume is nearly full */
    unsigned n_closed;           /* files that redistribute.c holds EXCLUSIVE */
    bool few_known;              /* n_few was counted */
    uint64_t n_few;              /* files with fewer candidates than they could have */
    uint64_t n_few_counting;
};

/* Load the map from the store, or make one. Puts nothing. */
int cluster_load(struct exportd *x, struct err *err);
/** Everything is loaded: we have started once more. */
void cluster_begin(struct exportd *x);
/** x->stopping: nothing is put any more, and what was put is about to be synced. */
void cluster_end(struct exportd *x);
void cluster_free(struct exportd *x);

struct storage *storage_find(struct exportd *x, uint32_t id);
struct storage *storage_find_incarnation(struct exportd *x, const uint8_t *incarnation);
/** A new member, put into the store; its channel is opened and it is polled. NULL: no memory. */
struct storage *storage_add(struct exportd *x, const struct storage_facts *facts);
/** Changed facts, put into the store; a changed address opens a new channel. */
void storage_change(struct storage *s, const struct storage_facts *facts);
/** Open a channel to where it has moved, when nothing is out on the old one. */
void storage_follow(struct storage *s);
/** As far as its channel knows at this moment. */
bool storage_is_reachable(const struct storage *s);
/** Is no connection to it left, or was the last try refused? The poll says so only at its deadline. */
bool storage_is_cut_off(const struct storage *s);
/** Storages that share a file system share what is free: sets n_on_disk of all. */
void storages_count_disks(struct exportd *x);
/** An id that no storage has or will have but the one about to be admitted. Put into the store. */
uint32_t storage_new_id(struct exportd *x);
/** This id was found on a storage of ours: give it to nobody else. Put into the store. */
void storage_id_is_taken(struct exportd *x, uint32_t id);

struct volume *volume_find(struct exportd *x, uint32_t id);
struct volume *volume_find_name(struct exportd *x, const char *name);
/** "" is the only one; or, when there is none and make is set, a new one called default. */
int volume_choose(struct exportd *x, const char *name, bool make, struct volume **out,
                  char words[WORDS_MAX + 1]);
struct volume *volume_add(struct exportd *x, const char *name);
unsigned volume_n_storages(struct exportd *x, uint32_t id);
/** Storages of the volume that new files can have: those that were not given up. */
unsigned volume_n_candidates(const struct exportd *x, uint32_t id);

struct export *export_find(struct exportd *x, uint32_t id);
struct export *export_find_name(struct exportd *x, const char *name);
struct export *export_add(struct exportd *x, const struct export *facts);

/** The map as clients see it has changed. */
void map_changed(struct exportd *x);
/** Fill a message; strings are borrowed from s. addrs: room for ADDRS_MAX pointers. */
void storage_message(struct storage *s, Rozo__Storage *msg, char **addrs);
/* All storages as messages. Free with free(). */
struct storage_messages {
    size_t n;
    Rozo__Storage **list; /* in the same piece of memory as all below it */
};
int storage_messages_make(struct exportd *x, struct storage_messages **out);

/* ---- place.c ---- */
/** A hook of fs: choose the distribution of a new file of this export. */
int export_place(void *arg, struct inode *in);
/** Is a storage of its volume nearly full? */
bool export_is_tight(const struct export *e);
/** True if the volume has storages that this file could have beside its own that are not lost. */
bool export_has_more_for(const struct export *e, const struct inode *in);
/**
 * The distribution that a file should have: lost storages are replaced at their own places, and
 * others are appended until it has as many as the layout wants. *n_new: how many; 0: none now.
 */
int export_complete(struct export *e, const struct inode *in, struct inode *out,
                    unsigned *n_new);

/* ---- poll.c: how storages are ---- */
void storage_poll(struct storage *s);
/** The addresses others can reach it at: what it says of itself, unless that is a wildcard. */
void info_addresses(const Rozo__StInfoResp *info, struct storage_facts *facts);
/** Does an answer to ST_INFO make sense at all? NULL: no. */
Rozo__StInfoResp *info_unpack(const struct rpc_request *rq);

/* ---- map_push.c: storages are told the map ---- */
/** Tell a storage that is up, if it lacks the map of today. */
void storage_push_map(struct storage *s);
/** What it says it knows. */
void storage_knows_map(struct storage *s, uint64_t known);
void map_push_stop(struct storage *s);

/* ---- abandoned.c: files whose writer is gone ---- */
struct check;
/** Have a storage look at it. What is no file with data is passed over. */
void abandoned_add(struct export *e, const struct inode *in);
/** Would it be remembered? */
bool abandoned_has_room(const struct exportd *x);
void abandoned_tick(struct exportd *x);
/** Cancel what is under way. */
void abandoned_stop(struct exportd *x);
void abandoned_free(struct exportd *x);

/* ---- session.c ---- */

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
    struct replies replies;
    struct replies
        before; /* to what was done before we ran, or in the session that its client had before: DONE_BEFORE */
    uint64_t n_done; /* of done.c: number of the next one */
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
void sessions_excuse(struct exportd *x, uint64_t slept_ns);
/** End what has been silent too long; after the grace, remove orphans nobody holds. */
void sessions_tick(struct exportd *x);
/** What is held for them is answered BUSY: it will be sent to the next of us. */
void sessions_stop(struct exportd *x);
void sessions_free(struct exportd *x);
/** Does a session hold it open? During the grace any inode may be. */
bool export_is_open(struct export *e, uint64_t ino);
/** Nobody needs it any more: when it has no name, it goes. */
void export_reap(struct export *e, uint64_t ino);

/* ---- linger.c: inodes that have just lost their last name ---- */

struct lingering;
/** A hook of fs: it loses its last name. While others are there it stays for a moment. */
bool export_keeps(void *arg, uint64_t ino);
/** It is open, or lingers. */
bool export_needs(struct export *e, uint64_t ino);
/** Something was removed: a few that have lingered long enough go with it. */
void linger_removed(struct exportd *x);
void linger_tick(struct exportd *x);
void linger_free(struct exportd *x);

/* ---- remember.c: sessions over our restarts ---- */

enum grace {
    GRACE_FOR_AWAITED, /* those that were open at our start may come back, */
    GRACE_FOR_ANY,     /* as anybody may: who ran before us remembered none */
    GRACE_ENDS,        /* nobody may any more; this is on its way to stable storage, */
    GRACE_FOR_FENCES,  /* or was, and storages may not know it yet */
    GRACE_OVER,
};

/** What the store has. */
int sessions_load(struct exportd *x, struct err *err);
/** Everything is loaded, x->n_starts still that of before. */
void grace_begin(struct exportd *x);
void grace_tick(struct exportd *x);
/** Something that it waits for has happened. */
void grace_look(struct exportd *x);
/** Those from before our start are back, or had the time to and can write no more. */
bool grace_is_over(const struct exportd *x);
/** Who starts after us is to wait for it; or not. Put into the store. */
void session_remember(struct session *s);
void session_forget(struct exportd *x, uint64_t id);
/** Was it open at our start, and may it still come back? */
bool session_is_awaited(struct exportd *x, const struct export *e, uint64_t id);
/** It has, with all that it holds; or it has said good-bye. False: nobody waited for it. */
bool session_came_back(struct exportd *x, uint64_t id);
/** It will not. */
void awaited_is_dead(struct exportd *x, uint64_t id);
unsigned sessions_awaited(const struct exportd *x);
void awaited_free_all(struct exportd *x);

/* ---- done.c: requests that were done, over our restarts ---- */

/** In the batch of its changes. made_ino: what a CREATE made. */
void done_remember(struct session *s, const struct reply_to *to, uint64_t made_ino);
/**
 * Into s->before, what is kept for the session of this id: its own, when it comes back, or the one that its client had
 * before. -ENOMEM, -EIO. Scans the store.
 */
int done_load(struct session *s, uint64_t id);
/** What is kept for sessions that are over goes. */
void done_tick(struct exportd *x);

/* ---- fence.c: sessions that are over, until storages know it ---- */

/** What the store has. */
int fences_load(struct exportd *x, struct err *err);
/**
 * This session is over: the record of it that is remembered goes, and when enough storages know of that, so does
 * what it holds here. in_grace: the grace lasts until then. False: there is no room now.
 */
bool fence_add(struct exportd *x, uint32_t export_id, uint64_t session, bool in_grace);
/** A storage has confirmed a map, or is down: may somebody's holdings go? */
void fences_look(struct exportd *x);
void fences_tick(struct exportd *x);
/** May its client, which does not know that it is over, still come and repeat what it asked in it? */
bool fence_is_young(const struct exportd *x, uint64_t session);
/** Those of the newest map; how many. */
size_t fences_list(const struct exportd *x, uint64_t sessions[FENCES_MAX]);
/** Maps so far count for nothing: storages took them for old ones. */
void fences_tell_again(struct exportd *x);
void fences_free(struct exportd *x);

/* ---- events.c: what a session is told without having asked ---- */

enum { EVENTS_AN_ANSWER = 256 };

/** Of a lock that it has waited for. */
void session_tell_lock(struct session *s, uint64_t waiter, int rc);
/** Of a token that it is asked for; session_tell_now() follows, so that several go together. */
void session_tell_recall(struct session *s, const struct token_recall *recall);
void session_tell_now(struct session *s);
/** How many tokens it may hold from now on. */
void session_tell_tokens_max(struct session *s, uint32_t max);
/** A call that has been held long enough is answered. */
void session_events_tick(struct session *s);
/** A call that is held is answered with rc. Events are forgotten, unless rc is -EBUSY. */
void session_events_end(struct session *s, int rc);

/* ---- md_lock.c: locks of a session ---- */

/** It held this before our start. -EAGAIN: somebody else has got it. */
int session_claim_lock(struct session *s, const Rozo__Lock *msg);
/** It waits for no lock and has none any more. */
void session_drop_locks(struct session *s);

/* ---- wants.c: tokens of sessions, and calls that wait for them ---- */

struct op;
struct parked;
enum {
    PARKED_MAX = 1 << 16, /* calls that wait for tokens; more are told BUSY */
    SESSION_PARKED_MAX = 1 << 12,
};

/* A call that must wait, of a session that is itself asked for a token there: giving it back may need that the call ends. */
enum when_asked {
    ASKED_WAITS,  /* it does not */
    ASKED_PASSES, /* the call is part of giving back */
    ASKED_FAILS,  /* the call ends with -ERESTART: its kernel holds locks until then */
};

/** Nothing of others can be in the way of this call, and nothing is asked of its session. */
bool op_is_alone(const struct op *op);
/**
 * Before anything is changed: may the call do all this now? 0: go on. -EINPROGRESS: it was taken, and runs again from
 * its start when it may. -ERESTART, -EBUSY, -ENOMEM: the answer.
 */
int op_wants(struct op *op, const struct token_want *wants, unsigned n,
             enum when_asked when_asked);
/** What the session holds of it after this answer; given when nobody else wants it. */
Rozo__TokenMode op_grant(struct op *op, uint64_t ino, enum token_mode mode);
/** It is given: op_wants() has asked for as much. call: see MdTokenReq. */
Rozo__TokenMode op_grant_asked(struct op *op, uint64_t ino, enum token_mode mode,
                               uint64_t call);
/** The same, or, where others use the file elsewhere, of a range that has *range in it. *range: then that; to 0: all of it. */
Rozo__TokenMode op_grant_range(struct op *op, uint64_t ino, enum token_mode mode,
                               uint64_t call, struct token_range *range);
void export_tokens_init(struct export *e);
/**
 * It says what it holds; nothing else is left to it. fresh: it was made just now, in the grace, and is believed as long
 * as nobody else is in the way. False: it holds nothing. *grant: what it has is of this serial.
 */
bool session_claim_tokens(struct session *s, const Rozo__MdOpenSessionReq *req,
                          bool fresh, uint64_t *grant);
/** What changes names and waits is not done, and to be asked again (RETRY). */
void session_send_back(struct session *s);
/** Its calls that wait are answered with rc. */
void session_parked_end(struct session *s, int rc);
/** It waits for no token and holds none any more. */
void session_drop_tokens(struct session *s);
void on_tokens_turn(struct env_task *task);

/* ---- token_share.c ---- */

/**
 * Tells sessions to give tokens back if they hold too many, alone or as a share of all
 * that are held.
 */
void sessions_trim_tokens(struct exportd *x);

/* ---- trash.c: removed files, until every storage has confirmed ---- */

struct trash_round;
int trash_load(struct exportd *x);
void trash_tick(struct exportd *x);
/** A hook of fs. */
void export_trashed(void *arg, const struct inode *in);
/** This storage has something of a file that is gone. False: it is being told, or will be with the others. */
bool trash_add(struct storage *s, const struct file_id *id);
/** Cancel what is under way. */
void trash_free(struct exportd *x);

/* ---- strays.c: what storages have of inodes that are gone ---- */

/* One sweep over all storages, or the pause before the next. */
struct strays {
    struct rpc_request rq;
    struct storage *asked; /* borrowed; NULL: nothing is out */
    uint32_t storage_id;   /* whose turn it is, or the next one's behind it */
    bool has_after;
    uint8_t after[FILE_ID_BYTES]; /* of its list: looked at up to here */
    uint64_t n_found;             /* in this sweep */
    uint64_t next_ns;             /* not before */
};
/** We have started. */
void strays_begin(struct exportd *x);
void strays_tick(struct exportd *x);
/** Cancel what is under way. */
void strays_stop(struct exportd *x);

/* ---- redistribute.c: files get the candidates that they lack ---- */

/* One search for such files, or the pause before the next. */
struct redistribution {
    struct list_node files; /* struct redist_file, under way */
    unsigned n_files;
    enum { REDIST_IDLE, REDIST_COUNT, REDIST_RECORDS, REDIST_SEARCH } state;
    uint32_t export_id; /* the next one to look at */
    uint64_t ino;       /* in it, looked at up to here */
    bool again;         /* files were left out: once more after the pause */
    uint64_t next_ns;   /* not before */
    uint64_t pause_ns;
    struct env_task task; /* steps all files */
};
/** Holds files closed whose change has begun. Before any request. 0, -EIO, -ENOMEM. */
int redistribute_load(struct exportd *x);
/** The set of storages has changed, or we have started: count and search anew. */
void redistribute_look(struct exportd *x);
void redistribute_tick(struct exportd *x);
/** A session wants what we hold. */
void redistribute_wanted(struct token_holder *holder);
/** What we wait for may be free. */
void redistribute_woken(struct token_waiter *waiter);
/** Cancel what is under way. */
void redistribute_stop(struct exportd *x);
void redistribute_free(struct exportd *x);

/* ---- exportd.c ---- */

/* One request, from its arrival until its answer is queued. */
struct op {
    struct exportd *x;
    struct rpc_call *call; /* taken by an async handler: then NULL */
    struct session *session;
    struct export *export;
    struct fs *fs;         /* of the export */
    bool sync;             /* answer only when durable */
    uint64_t made_ino;     /* CREATE: of what it made */
    bool is_large;         /* its answer has data of a file */
    uint64_t grant;        /* serial of what this answer grants; 0: nothing */
    struct parked *parked; /* it has waited, and runs again; borrowed */
    struct answer *answer;
};

/** Pack what will be answered (also with an error, when the handler fails). -ENOMEM. */
int op_pack(struct op *op, const ProtobufCMessage *msg);
/**
 * The same, of what holds nothing but numbers: up to three Attr, one FileData, tokens and the like. Twice what that can be has room.
 */
enum { ANSWER_ROOM = 2048 };
int op_pack_inode(struct op *op, const ProtobufCMessage *msg);
/** Answer a call that an async handler took: after the commit of all that was put; sync: when it is durable. */
void call_answer(struct exportd *x, struct rpc_call *call, int rc,
                 const ProtobufCMessage *msg, bool sync);
/** Takes the call, and answers it or parks it (again). */
void call_run(struct exportd *x, struct rpc_call *call, struct parked *parked);

typedef int op_handler(struct op *op, const ProtobufCMessage *req);
/* md.c */
op_handler md_open_session, md_keep_alive, md_close_session, md_lookup, md_getattr,
    md_setattr, md_create, md_unlink, md_rmdir, md_link, md_rename, md_readlink,
    md_readdir, md_open, md_close, md_wrote, md_truncated, md_getxattr, md_setxattr,
    md_listxattr, md_removexattr, md_statfs, md_sync, md_token, md_atimes;
/* events.c */
op_handler md_events;
/* md_lock.c */
op_handler md_lock, md_lock_test, md_lock_cancel;
/* wants.c */
op_handler md_give_back;
/* ad.c, admit.c */
op_handler ad_status, ad_storage_add, ad_volume_create, ad_export_create,
    ad_storage_replace, ad_storage_lost, ad_inodes;
/** Those under way end with -EBUSY, soon. */
void admissions_stop(struct exportd *x);
/** The same for listings of inodes, now. */
void listings_stop(struct exportd *x);

struct exportd {
    struct env *env;     /* borrowed */
    struct store *store; /* owned */
    struct exportd_config config;
    uint8_t cluster_id[CLUSTER_ID_BYTES];
    uint64_t started_ns;
    enum grace grace;
    uint64_t grace_ends_ns;  /* until then clients from before our start may come back */
    struct awaited *awaited; /* owned: the sessions of those that have not */
    struct store_wait grace_wait;
    struct list_node fences;
    uint64_t last_fence; /* number */
    unsigned n_fences, n_unconfirmed;
    unsigned n_grace_fences;  /* of those */
    uint64_t fence_words_ns;  /* not before then another line about them */
    uint32_t lease_before_ms; /* what mounts were told before our start */
    uint64_t ticked_ns;       /* when the tick last ran */
    uint64_t map_version;
    uint32_t next_storage_id, next_volume_id, next_export_id;
    uint32_t n_starts;
    uint32_t
        last_loss; /* number of the last start that found the power had been lost; 0: none */
    uint64_t last_boot; /* the machine's, when we ran before */
    bool stopped_well;  /* and stopped then with all on stable storage */
    bool is_ready;      /* that is on stable storage: epochs depend on it */
    struct store_wait ready_wait;
    struct list_node storages, volumes, exports;
    unsigned n_storages, n_volumes, n_exports;
    struct session *sessions;
    uint64_t n_refs;            /* inodes held open, once for each session that does */
    unsigned n_cuts;            /* struct session.cuts of all */
    bool orphans_seen;          /* the grace is over and they were looked at */
    uint64_t orphan_cursor_ino; /* how far */
    uint32_t orphan_cursor_export;
    uint64_t done_cursor;       /* session */
    uint64_t done_look_ns;      /* not before then is it looked whose requests are kept */
    struct list_node lingering; /* of all exports, oldest first */
    unsigned n_lingering;
    bool space_low;
    uint64_t
        inline_room; /* bytes of small files that there is room for until it is looked again */

    struct list_node checks; /* of abandoned.c, longest waiting first */
    struct check *checks_by_id;
    unsigned n_checks, n_checks_out;

    uint64_t n_trash; /* removed files of which no storage was told yet */
    struct key trash_cursor;
    struct trash_round *round;
    struct strays strays;
    struct redistribution redist;

    struct list_node
        admissions; /* storage adds: the first is under way, the others wait */
    unsigned n_admissions;
    struct list_node listings; /* of inodes.c, under way */
    unsigned n_listings;

    uint64_t last_grant; /* serials grow over our restarts */
    size_t n_tokens;     /* of all sessions */
    struct token_limits token_limits;
    bool tokens_scarce;          /* sessions are told to hold less than they may alone */
    struct list_node ready;      /* parked calls that may be able to go on */
    struct list_node news;       /* sessions that have been asked for tokens */
    struct env_task tokens_turn; /* sees to both */
    unsigned n_parked;

    uint64_t n_requests[OPS_MAX]; /* since our start, by op */
    unsigned n_answers;           /* waiting for a commit or sync */
    struct env_timer tick;
    bool stopping;
    struct store_wait stop_wait;
    struct env_task stop_task; /* looks whether all has come to rest */
    void (*stopped)(void *arg, int rc);
    void *stopped_arg;
};

#endif
