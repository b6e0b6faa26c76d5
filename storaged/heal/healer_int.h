/*
 * healer_int.h - declarations shared by the parts of the healer. Inside storaged/heal
 * only.
 *
 * A part (resync, rebuild, scrub, checks) makes jobs; heal_jobs.c runs a limited number
 * of them, in the order of their rank; repair.c does the work. Operations that will call
 * back count in n_busy, so that a stop knows when nothing points to the healer any more.
 */
#ifndef ROZO_STORAGED_HEAL_HEALER_INT_H
#define ROZO_STORAGED_HEAL_HEALER_INT_H

#include "common/base/list.h"
#include "storaged/disk/bad_page_disk.h"
#include "storaged/heal/healer.h"
#include "storaged/heal/hint_log.h"
#include "storaged/heal/proj_list.h"
#include "storaged/heal/repair/repair.h"

enum {
    ASK_DEADLINE_MS = 15000,
    LIST_DEADLINE_MS = 60000,
    PEERS_MAX = 4096,
    PAGE_FILES = 256,  /* in one ST_LIST */
    CHECKS_MAX = 4096, /* files waiting to be checked */
    GATHER_MS = 1000,  /* longest wait for all peers to be up before a walk begins */
    GATHER_STEP_MS = 20,
    FINDINGS_MAX = 100,
    FINDING_TEXT_MAX = 256,
};

struct healer;

/* ---- requests to a storage ---- */

enum ask_state {
    ASK_IDLE,
    ASK_NO_CHANNEL, /* the timer ends it */
    ASK_SENT,
};

/* One request to one storage. Embedded; zero-initialise. */
struct heal_ask {
    struct healer *h;
    struct rpc_request rq;
    struct env_timer timer;
    enum ask_state state;
    void (*done)(struct heal_ask *ask,
                 int rc); /* rc: transport or status; rq's answer is valid at 0 */
    void *arg;
    uint32_t storage;
    struct list_node link; /* in h->asks, unless idle */
};
/**
 * Sends a request. done() comes later, once; not if the healer stops. The message is
 * packed in this call.
 */
void heal_ask_send(struct healer *h, struct heal_ask *ask, uint32_t storage, uint16_t op,
                   const ProtobufCMessage *msg, uint32_t deadline_ms);

/* ---- the map ---- */

/* One storage of the cluster map, our own too. */
struct heal_peer {
    uint32_t id;
    bool lost;                              /* lost for good */
    uint8_t incarnation[IDENTITY_ID_BYTES]; /* zeros: unknown */
    unsigned n_addrs;
    char *addrs[HEAL_ADDRS_MAX]; /* owned */
    struct rpc_channel *channel; /* owned; NULL: no valid address */
    bool in_map;                 /* mark while a new map is applied */
};

/* ---- jobs ---- */

/* Kinds of jobs, the most urgent first. */
enum heal_rank { RANK_CHECK, RANK_RETURN, RANK_REBUILD, RANK_SCRUB, RANK_N };

struct job_move;
/* One repair that waits or runs. Embedded in the part that made it. */
struct heal_job {
    struct list_node link; /* in waiting, running or moving */
    enum heal_rank rank;
    struct repair_request request;
    struct repair *repair; /* under way; borrowed */
    /* Only for the request's distribution: -EREMOTE if there is a later one. */
    bool fixed;
    unsigned n_moves;      /* later distributions that the job moved to */
    struct job_move *move; /* owned; search for a later distribution */
    struct healer *h;
    void (*done)(struct heal_job *job, const struct repair_result *result);
};
/**
 * Submits a job. done() comes later, once; not if the healer stops. If storages know a
 * later distribution of the file, it is looked up and the request changed to it.
 */
void heal_job_submit(struct healer *h, struct heal_job *job, enum heal_rank rank);
/** Returns whether all blocks looked at are as they should be. */
bool repair_is_good(const struct repair_result *result);
/**
 * Returns whether blocks stay undecided though every storage answered: then only a fence
 * can decide them.
 */
bool repair_wants_fence(const struct repair_result *result);
/**
 * Returns the number of blocks that could not be healed; at least 1 if the result is not
 * good.
 */
uint64_t repair_n_unhealed(const struct repair_result *result);

/* A rate limit in bytes per second, kept as the time from which more may be taken. */
struct rate {
    uint64_t bytes_per_s; /* 0: no limit */
    uint64_t free_at_ns;
};

/* ---- a walk over files in the order of lists ---- */

/* A walk over files, of all peers (with us in their distribution) or of our own disk. A
 * page ends when its user calls heal_walk_next(). */
struct heal_walk_file {
    struct proj_list_file file;
    /* Bitmaps of our own projection files. */
    uint32_t own_projections, own_damaged, own_partial;
};
struct heal_walk;
/**
 * Gets a page, later; files are valid until heal_walk_next(). end: this is the last page.
 */
typedef void heal_walk_page_cb(struct heal_walk *w, struct heal_walk_file *files,
                               unsigned n, bool end);

/* One peer's list in a walk. */
struct heal_walk_peer {
    struct heal_ask ask;
    struct heal_walk *w;
    bool heard, end;
    struct file_id after;
};
struct heal_walk {
    struct healer *h;
    bool own; /* our own disk instead of the peers */
    heal_walk_page_cb *page;
    bool has_after;
    struct file_id after;         /* all files up to this one were given */
    bool unheard;                 /* a peer that is not lost did not answer for a page */
    struct heal_walk_peer *peers; /* owned */
    unsigned n_peers, n_waiting;
    struct heal_walk_file *files; /* owned */
    unsigned n_files, files_room;
    bool under_way, end;
    struct env_task task;
};
/** Starts a walk after w->after (if has_after). Set own and page before. */
void heal_walk_begin(struct healer *h, struct heal_walk *w);
/** Ends the page and asks for the next. */
void heal_walk_next(struct heal_walk *w);
/** Frees the memory of a walk; no page comes any more. */
void heal_walk_end(struct heal_walk *w);

/* ---- location of a file ---- */

/* A search for the distribution of a file at other storages. Embedded; zero-initialise,
 * set done and min_generation. */
struct heal_locate {
    struct heal_ask ask;
    struct healer *h;
    struct file_id id;
    uint32_t min_generation; /* earlier distributions do not count */
    bool is_elsewhere;       /* a peer knows its distribution, and we are not in it */
    uint32_t asked;          /* last peer asked */
    bool known;
    struct storcli_target target; /* if known; we are in it */
    /* Some peer has the file, or may have it, and does not know its distribution. */
    bool in_doubt;
    bool unsure; /* some peer may have had it, or a lost storage may */
    void (*done)(struct heal_locate *l);
};
/**
 * Starts a search. done() comes once, before this returns if there is no peer to ask; not
 * if the healer stops.
 */
void heal_locate_start(struct healer *h, struct heal_locate *l, const struct file_id *id);

/* ---- parts ---- */

/* One hint of a peer about a write that we missed. */
struct hint {
    struct storcli_target target;
    uint64_t first, end, version, note;
    unsigned peer; /* index in round.peers */
    unsigned group;
};
/* Hints that are repaired together. */
struct hint_group {
    struct heal_job job;
    struct healer *h;
    bool good;
};
/* One peer's list of hints in a round. */
struct resync_peer {
    struct heal_ask ask;
    uint32_t id;
    bool heard, end;
    bool has_after;
    uint8_t after[FILE_ID_BYTES];
};
/* One round of asking all peers for writes that we missed. */
struct resync {
    bool under_way;
    struct env_timer timer;
    struct resync_peer *peers; /* owned */
    unsigned n_peers, n_waiting, max_ranges;
    struct hint *entries; /* owned */
    unsigned n_entries, entries_room;
    struct hint_group *groups; /* owned */
    unsigned n_groups, n_running;
    unsigned n_bad;                     /* rounds in a row that left something unhealed */
    uint64_t unhealed, unhealed_before; /* blocks; in this round, in the one before */
};

enum check_state {
    CHECK_WAITS, /* for ready_ns */
    CHECK_RUNS,  /* repairs the file, or searches its distribution */
    /* Runs, and was extended meanwhile, so it runs once more. */
    CHECK_RUNS_AGAIN,
};

/* A check of one file, which is repeated until its result is good. */
struct heal_check {
    struct heal_job job;   /* first */
    struct list_node link; /* in h->checks */
    uint64_t first, end;
    uint32_t flags;
    enum check_state state;
    bool unproven;             /* only a client described its distribution: no fence */
    struct heal_locate locate; /* search for its distribution at other storages */
    uint64_t since_ns;         /* time of the request, or of its last extension */
    uint64_t undecided_ns;     /* since when something of it is undecided; 0: nothing */
    uint64_t ready_ns;         /* earliest time of the next try */
    uint64_t unhealed;         /* blocks, in the last try */
};

/* One file of a walk of the rebuild or the scrub, which is repaired. */
struct sweep_file {
    struct heal_job job; /* first */
    struct heal_ask ask;
    struct healer *h;
    struct heal_walk_file f;
    enum heal_rank rank;
    unsigned place;   /* healer_home() */
    unsigned n_asked; /* homes after ours that were asked whether they have the file */
    struct heal_locate locate;
    bool was_unknown; /* distribution unknown here before */
    unsigned n_looks; /* failed attempts to have our own storage look at its file again */
    bool is_whole;    /* was partial before, and is complete now */
    struct repair_result result;
    /* Called after the job and what follows it. */
    void (*done)(struct sweep_file *s, bool good);
};
/**
 * Submits the job; if the result is good and our file was not complete, declares it
 * complete.
 */
void sweep_submit(struct sweep_file *s, enum heal_rank rank, uint32_t flags);
/**
 * Asks all peers for the distribution of an ownerless file. If none has anything of it,
 * or it was only begun here, it is removed. done() says whether it is located or removed.
 */
void ownerless_ask(struct sweep_file *s);

enum rebuild_state {
    REBUILD_NONE,
    REBUILD_WAITS, /* for the timer: a pass begins then */
    REBUILD_RUNS,
    REBUILD_RESTARTS, /* runs; then it starts again from the beginning */
    REBUILD_DONE,
};

/* State of the rebuild of this storage. */
struct rebuild {
    enum rebuild_state state;
    bool forced; /* all files, complete ones too */
    bool lost;   /* files where we, a spare, replace a storage that is lost for good */
    bool first;  /* the first pass, whose place is kept */
    bool in_identity; /* storage.id says that a rebuild is under way */
    struct heal_walk walk;
    struct heal_walk count;   /* walk that counts files and bytes, for progress */
    struct sweep_file *files; /* owned, of the page */
    unsigned n_files_page;
    unsigned n_running;
    bool failed;       /* in this pass */
    uint64_t unhealed; /* blocks, in this pass */
    uint64_t files_done, n_files, bytes_done, n_bytes;
    uint64_t counted_files, counted_bytes;
    uint64_t began_ns, ran_s; /* ran_s: in earlier processes */
    struct env_timer timer;   /* starts the next pass */
    uint64_t gather_until_ns; /* limit of the wait for peers that are not up */
    struct disk_req dr;
    struct iovec iov;
    char text[IDENTITY_TEXT_MAX];
    struct heal_ask done_ask;
    unsigned n_told;
    struct {
        uint32_t peer;
        uint64_t note;
    } everything[64]; /* peers whose hints say "everything" */
    unsigned n_everything;
};

/* As in StHealthResp.scrub_state and the key "scrub". */
enum scrub_state {
    SCRUB_NEVER = 0,
    SCRUB_RUNNING = 1,
    SCRUB_DONE = 2,
    SCRUB_STOPPED = 3,
};

/* State of the scrub of this storage. */
struct scrub {
    enum scrub_state state;
    bool heads_only;
    bool stop; /* a stop was requested */
    struct heal_walk walk;
    struct heal_walk count;
    struct sweep_file *files; /* owned, of the page */
    unsigned n_running;
    uint64_t counted_files, counted_bytes;
    uint64_t files_done, n_files, bytes_done, n_bytes, found, healed;
    uint64_t n_unseen; /* files that could not be looked at as a whole */
    uint32_t losses;   /* identity's count of losses when the scrub began */
    uint64_t began_ns, ran_s;
    int64_t ended_wall_ns; /* end of the last scrub; or when the schedule began */
    char findings[FINDINGS_MAX][FINDING_TEXT_MAX];
    unsigned n_findings;
    struct env_timer timer; /* checks whether a scrub is due */
    struct env_timer gather_timer;
    uint64_t gather_until_ns; /* limit of the wait for peers that are not up */
};

struct healer {
    struct healer_config config;
    struct env *env;
    struct bad_page_disk disk; /* wraps config.disk and remembers its bad pages */
    uint32_t us;               /* our storage id; 0: not admitted */
    struct hint_log *hints;
    struct repairer *repairer, *scrub_repairer; /* NULL before we are admitted */
    bool started, stopping;
    unsigned n_busy; /* lists, questions, saves and syncs under way */
    struct list_node asks;
    void (*stop_done)(void *arg);
    void *stop_arg;
    struct hint_log_wait stop_wait;
    struct env_task stop_task;

    struct list_node handoff; /* oldest first */
    unsigned n_handoff;
    struct env_timer handoff_timer;

    uint64_t map_version;
    struct heal_peer *peers; /* owned, ascending by id */
    unsigned n_peers;

    struct list_node waiting[RANK_N], running, moving;
    unsigned n_running, n_of_rank[RANK_N]; /* n_of_rank: running */
    unsigned n_waiting;
    struct rate rate, scrub_rate;
    struct env_task pump;
    uint64_t healed, read_bytes, written_bytes;
    uint64_t checks_unhealed; /* blocks, sum over checks that wait for another try */
    char problem[160];

    struct list_node proofs; /* struct proof; oldest first */
    unsigned n_proofs;
    struct resync round;
    struct list_node checks;
    unsigned n_checks;
    unsigned n_damaged_told;
    struct env_timer check_timer, settle_timer;
    struct heal_question question; /* for the recovery of uncommitted files */
    bool asking;
    struct hint_log_wait boot_wait;
    struct rebuild rebuild;
    struct scrub scrub;
};

/** Returns the channel to a storage, borrowed; NULL: none. healer is a struct healer. */
struct rpc_channel *healer_channel(void *healer, uint32_t storage);
/** Returns our incarnation, for messages; borrowed. */
ProtobufCBinaryData healer_incarnation(const struct healer *h);
/**
 * Returns whether the map has another incarnation of this storage; false if either is
 * unknown.
 */
bool healer_is_replaced(const struct healer *h, uint32_t storage,
                        const ProtobufCBinaryData *incarnation);
bool healer_peer_is_up(const struct healer *h, const struct heal_peer *peer);
/**
 * Returns until when a walk that begins now waits for peers that are not up: after a
 * start there are no links to all peers yet, nor to our own storage.
 */
uint64_t healer_gather_until_ns(const struct healer *h);
/**
 * Returns true if it is not until_ns yet and a storage that is not lost, ours included,
 * is not up. Then the timer runs again.
 */
bool healer_gathers(struct healer *h, struct env_timer *timer, uint64_t until_ns);
/** Returns whether the map says that this storage is lost for good. */
bool healer_is_lost(const struct healer *h, uint32_t storage);
/**
 * Returns the projection that we must hold: that of our place, or, as a spare, that of a
 * lost home (as repair.h assigns them). DIST_MAX: none.
 */
unsigned healer_home(const struct healer *h, const struct storcli_target *target);
/** Ends an operation that was counted in n_busy. */
void healer_idle(struct healer *h);
/** Writes a key, without waiting for it. val NULL: deletes it. */
void healer_put(struct healer *h, const char *key, const void *val, size_t len);
/**
 * Reads a key of exactly len bytes into val. Returns 0, -ENOENT, or -EUCLEAN for another
 * length.
 */
int healer_get(struct healer *h, const char *key, void *val, size_t len);
/** Answers a call with OK and a message. */
void heal_reply(struct rpc_call *call, const ProtobufCMessage *msg);

void heal_jobs_init(struct healer *h);
void heal_jobs_stop(struct healer *h);

void hints_handle(struct healer *h, struct rpc_call *call);
void hints_handle_list(struct healer *h, struct rpc_call *call);
void hints_handle_done(struct healer *h, struct rpc_call *call);

void handoff_start(struct healer *h);
void handoff_stop(struct healer *h);

void resync_start(struct healer *h);
void resync_stop(struct healer *h);

void heal_check_handle(struct healer *h, struct rpc_call *call);
/**
 * Adds a check, which is repeated until its result is good. end UINT64_MAX: no end.
 * Returns 0, -ENOMEM, or -EBUSY if there are too many.
 */
int heal_check_add(struct healer *h, const struct storcli_target *target, uint64_t first,
                   uint64_t end, uint32_t flags);
void heal_checks_start(struct healer *h);
void heal_checks_stop(struct healer *h);

void prove_handle(struct healer *h, struct rpc_call *call);
void proofs_stop(struct healer *h);

int rebuild_load(struct healer *h);
void rebuild_start(struct healer *h);
/** Starts a rebuild from the beginning; of all files, complete ones too. */
void rebuild_force(struct healer *h);
/** Starts a rebuild if the new map has a storage that was not known to be lost. */
void rebuild_lost(struct healer *h);
/** Starts a rebuild because a peer reports that we missed too much to be listed. */
void rebuild_everything(struct healer *h, uint32_t peer, uint64_t note);
void rebuild_stop(struct healer *h);
void rebuild_health(struct healer *h, Rozo__StHealthResp *resp);

int scrub_load(struct healer *h);
void scrub_start(struct healer *h);
void scrub_begin(struct healer *h, bool heads_only);
void scrub_end(struct healer *h);
void scrub_stop(struct healer *h);
void scrub_health(struct healer *h, Rozo__StHealthResp *resp, char **findings);

#endif
