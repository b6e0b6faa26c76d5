/*
 * healer_int.h - what the parts of the healer share. Inside storaged/heal only.
 *
 * A part (return, rebuild, scrub, checks) makes jobs; heal_jobs.c lets so many of them run, in the order of
 * their rank; repair.c does the work. Whoever waits for something counts in n_busy, so that a stop knows
 * when nothing points at anything any more.
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
    PAGE_FILES = 256,  /* of one ST_LIST */
    CHECKS_MAX = 4096, /* files waiting to be checked */
    GATHER_MS = 1000,  /* until all peers have had their say, at the latest */
    GATHER_STEP_MS = 20,
    FINDINGS_MAX = 100,
    FINDING_TEXT_MAX = 256,
};

struct healer;

/* ---- asking a storage ---- */

/* One request to one storage. Embedded; zero-initialise. */
struct heal_ask {
    struct healer *h;
    struct rpc_request rq;
    struct env_timer timer; /* when there is no channel */
    bool under_way, sent;
    void (*done)(struct heal_ask *ask,
                 int rc); /* rc: transport or status; rq's answer is valid at 0 */
    void *arg;
    uint32_t storage;
    struct list_node link; /* in h->asks */
};
/** Later done(), once; not when the healer stops. The message is packed here. */
void heal_ask_send(struct healer *h, struct heal_ask *ask, uint32_t storage, uint16_t op,
                   const ProtobufCMessage *msg, uint32_t deadline_ms);

/* ---- the map ---- */

struct heal_peer {
    uint32_t id;
    bool lost;                              /* it will not come back */
    uint8_t incarnation[IDENTITY_ID_BYTES]; /* zeros: not known */
    unsigned n_addrs;
    char *addrs[HEAL_ADDRS_MAX]; /* owned */
    struct rpc_channel *channel; /* owned; NULL: no address that makes sense */
    bool in_map;                 /* a mark while a new map comes in */
};

/* ---- jobs ---- */

enum heal_rank { RANK_CHECK, RANK_RETURN, RANK_REBUILD, RANK_SCRUB, RANK_N };

struct job_move;
struct heal_job {
    struct list_node link; /* waiting, running, or asking where the file lies by now */
    enum heal_rank rank;
    struct repair_request request;
    struct repair *repair; /* under way */
    bool fixed;       /* of this distribution only: -EREMOTE where there is a later one */
    unsigned n_moves; /* later distributions that were taken over */
    struct job_move *move; /* owned; looking for one */
    struct healer *h;
    void (*done)(struct heal_job *job, const struct repair_result *result);
};
/**
 * done() comes later, once; not when the healer stops. Where storages know of a later distribution of
 * the file, that is looked up, and the request has it then.
 */
void heal_job_submit(struct healer *h, struct heal_job *job, enum heal_rank rank);
/** Everything that was looked at is as it should be. */
bool repair_is_good(const struct repair_result *result);
/** Blocks stay undecided though every storage answered: only a fence can settle them. */
bool repair_wants_fence(const struct repair_result *result);
/** Blocks that are not, at least 1 when it is not good. */
uint64_t repair_n_unhealed(const struct repair_result *result);

/* Bytes per second, as a moment from which on more may be taken. */
struct rate {
    uint64_t bytes_per_s; /* 0: no limit */
    uint64_t free_at_ns;
};

/* ---- a walk over files in the order of lists ---- */

/* Files of all peers (with us in their distribution) or of our own disk, page by page; each page ends when
 * its user says so. */
struct heal_walk_file {
    struct proj_list_file file;
    uint32_t own_projections, own_damaged, own_partial; /* bitmaps of what is here */
};
struct heal_walk;
/** Later, once a page; files are valid until heal_walk_next(). end: there is nothing behind them. */
typedef void heal_walk_page_cb(struct heal_walk *w, struct heal_walk_file *files,
                               unsigned n, bool end);

struct heal_walk_peer {
    struct heal_ask ask;
    struct heal_walk *w;
    bool heard, end;
    struct file_id after;
};
struct heal_walk {
    struct healer *h;
    bool own; /* our own disk, not the peers' */
    heal_walk_page_cb *page;
    bool has_after;
    struct file_id after;         /* all up to it was given */
    bool unheard;                 /* a peer that is not lost did not answer for a page */
    struct heal_walk_peer *peers; /* owned */
    unsigned n_peers, n_waiting;
    struct heal_walk_file *files; /* owned */
    unsigned n_files, files_room;
    bool under_way, end;
    struct env_task task;
};
/** Ask for the first page, behind w->after when has_after. Set own and page before. */
void heal_walk_begin(struct healer *h, struct heal_walk *w);
/** The page is done with: the next. */
void heal_walk_next(struct heal_walk *w);
/** Free what it holds; nothing comes any more. */
void heal_walk_end(struct heal_walk *w);

/* ---- where does a file lie? ---- */

/* By the word of other storages. Embedded; zero-initialise, set done and min_generation. */
struct heal_locate {
    struct heal_ask ask;
    struct healer *h;
    struct file_id id;
    uint32_t min_generation; /* an earlier distribution is not what is looked for */
    bool is_elsewhere;       /* a peer says where it lies, and we are not in that */
    uint32_t asked;          /* the last peer that was */
    bool known;
    struct storcli_target target; /* when known; we are in it */
    bool in_doubt; /* some peer has it, or may, and does not say where it lies */
    bool unsure;   /* ... or may have had it; or one that is given up may */
    void (*done)(struct heal_locate *l);
};
/** done() once, at once when there is nobody to ask; not when the healer stops. */
void heal_locate_start(struct healer *h, struct heal_locate *l, const struct file_id *id);

/* ---- parts ---- */

struct hint {
    struct storcli_target target;
    uint64_t first, end, version, note;
    unsigned peer; /* index in round.peers */
    unsigned group;
};
struct hint_group {
    struct heal_job job;
    struct healer *h;
    bool good;
};
struct resync_peer {
    struct heal_ask ask;
    uint32_t id;
    bool heard, end;
    bool has_after;
    uint8_t after[FILE_ID_BYTES];
};
/* One round of asking all peers what we missed. */
struct resync {
    bool under_way;
    struct env_timer timer;
    struct resync_peer *peers; /* owned */
    unsigned n_peers, n_waiting, max_ranges;
    struct hint *entries; /* owned */
    unsigned n_entries, entries_room;
    struct hint_group *groups; /* owned */
    unsigned n_groups, n_running;
    unsigned n_bad;                     /* rounds in a row that left something */
    uint64_t unhealed, unhealed_before; /* blocks; in this round, in the one before */
};

struct heal_check {
    struct heal_job job;   /* first */
    struct list_node link; /* in h->checks */
    uint64_t first, end;
    uint32_t flags;
    bool running, again;
    bool unproven; /* only a client said where the file lies: never under a fence */
    struct heal_locate locate; /* ... before a storage says so, too */
    uint64_t since_ns;         /* asked for, or asked for more */
    uint64_t undecided_ns;     /* something of it is, since then; 0: nothing */
    uint64_t ready_ns;         /* not before */
    uint64_t unhealed;         /* blocks, the last time */
};

/* A walk whose files are repaired. Of the rebuild, and of the scrub. */
struct sweep_file {
    struct heal_job job; /* first */
    struct heal_ask ask;
    struct healer *h;
    struct heal_walk_file f;
    enum heal_rank rank;
    unsigned place;   /* healer_home() */
    unsigned n_asked; /* homes after ours that were asked whether they have it */
    struct heal_locate locate;
    bool was_unknown; /* its distribution was not known here */
    unsigned n_looks; /* at what lies here, in vain */
    bool is_whole;    /* it was partial, and is so no more */
    struct repair_result result;
    void (*done)(struct sweep_file *s, bool good); /* with the job and what follows it */
};
/** Submit the job; when it is good and the file was not whole here, say that it is now. */
void sweep_submit(struct sweep_file *s, enum heal_rank rank, uint32_t flags);
/**
 * A file that is not known: ask all peers where it lies, so that it is; or it goes, where it never was more than begun, or
 * nobody else has anything of it. done(): whether one of the two came about.
 */
void ownerless_ask(struct sweep_file *s);

struct rebuild {
    uint32_t state; /* as StHealthResp.rebuild_state */
    bool forced;    /* all files, also those that are whole here */
    bool lost;      /* those where we, a spare, stand in for a storage that is given up */
    bool first;     /* the first pass, whose place is kept */
    bool again;     /* asked to begin from the start */
    bool waiting;   /* for the timer */
    bool in_identity; /* storage.id says that it is under way */
    struct heal_walk walk;
    struct heal_walk count;   /* how much is it? */
    struct sweep_file *files; /* owned, of the page */
    unsigned n_files_page;
    unsigned n_running;
    bool failed;       /* of this pass */
    uint64_t unhealed; /* blocks, in this pass */
    uint64_t files_done, n_files, bytes_done, n_bytes;
    uint64_t counted_files, counted_bytes;
    uint64_t began_ns, ran_s; /* ran_s: by earlier processes */
    struct env_timer timer;   /* the next pass */
    uint64_t gather_until_ns; /* a pass waits so long for peers that are not up */
    struct disk_req dr;
    struct iovec iov;
    char text[IDENTITY_TEXT_MAX];
    struct heal_ask done_ask;
    unsigned n_told;
    struct {
        uint32_t peer;
        uint64_t note;
    } everything[64]; /* who told us that we missed too much */
    unsigned n_everything;
};

struct scrub {
    uint32_t state; /* as StHealthResp.scrub_state */
    bool heads_only;
    bool stop; /* asked for */
    struct heal_walk walk;
    struct heal_walk count;
    struct sweep_file *files; /* owned, of the page */
    unsigned n_running;
    uint64_t counted_files, counted_bytes;
    uint64_t files_done, n_files, bytes_done, n_bytes, found, healed;
    uint64_t n_unseen; /* files that could not be looked at as a whole */
    uint32_t losses;   /* identity's, when it began */
    uint64_t began_ns, ran_s;
    int64_t ended_wall_ns; /* of the last; or when scrubs were first heard of */
    char findings[FINDINGS_MAX][FINDING_TEXT_MAX];
    unsigned n_findings;
    struct env_timer timer; /* is it time? */
    struct env_timer gather_timer;
    uint64_t gather_until_ns; /* it waits so long for peers that are not up */
};

struct healer {
    struct healer_config config;
    struct env *env;
    struct bad_page_disk disk; /* above config.disk, and what that says from then on */
    uint32_t us;               /* storage id; 0: not admitted */
    struct hint_log *hints;
    struct repairer *repairer, *scrub_repairer; /* NULL before we are admitted */
    bool started, stopping;
    unsigned n_busy; /* lists, questions, saves, syncs under way */
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
    unsigned n_running, n_of_rank[RANK_N]; /* running */
    unsigned n_waiting;
    struct rate rate, scrub_rate;
    struct env_task pump;
    uint64_t healed, read_bytes, written_bytes;
    uint64_t checks_unhealed; /* blocks, summed over checks that wait to be tried again */
    char problem[160];

    struct list_node proofs; /* struct proof: oldest first */
    unsigned n_proofs;
    struct resync round;
    struct list_node checks;
    unsigned n_checks;
    unsigned n_damaged_told;
    struct env_timer check_timer, settle_timer;
    struct heal_question question; /* of settling */
    bool asking;
    struct hint_log_wait boot_wait;
    struct rebuild rebuild;
    struct scrub scrub;
};

struct rpc_channel *healer_channel(void *healer, uint32_t storage);
/** Ours, for messages. Borrowed. */
ProtobufCBinaryData healer_incarnation(const struct healer *h);
/** The map has another incarnation for this storage; not so when either is not known. */
bool healer_is_replaced(const struct healer *h, uint32_t storage,
                        const ProtobufCBinaryData *incarnation);
bool healer_peer_is_up(const struct healer *h, const struct heal_peer *peer);
/** What begins now waits so long for peers that are not up: who has just started is not linked to all others yet, or to its own storage. */
uint64_t healer_gather_until_ns(const struct healer *h);
/** Not all that are not given up, we too, are up, and it is not until_ns yet: the timer comes again. */
bool healer_gathers(struct healer *h, struct env_timer *timer, uint64_t until_ns);
/** The map says that it will not come back. */
bool healer_is_lost(const struct healer *h, uint32_t storage);
/**
 * The projection that we are to hold: of our place, or, as a spare, that of a lost home (as repair.h places them).
 * DIST_MAX: none.
 */
unsigned healer_home(const struct healer *h, const struct storcli_target *target);
/** Something that was counted in n_busy ended. */
void healer_idle(struct healer *h);
/** Write a key; nobody waits. val NULL: delete. */
void healer_put(struct healer *h, const char *key, const void *val, size_t len);
/** -ENOENT, or 0 and exactly len bytes in val; anything else there is -EUCLEAN. */
int healer_get(struct healer *h, const char *key, void *val, size_t len);
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
/** 0, -EBUSY: there are too many, -ENOMEM. Tried again until it is good. end UINT64_MAX: of everything. */
int heal_check_add(struct healer *h, const struct storcli_target *target, uint64_t first,
                   uint64_t end, uint32_t flags);
void heal_checks_start(struct healer *h);
void heal_checks_stop(struct healer *h);

void prove_handle(struct healer *h, struct rpc_call *call);
void proofs_stop(struct healer *h);

int rebuild_load(struct healer *h);
void rebuild_start(struct healer *h);
/** Begin from the start; all files, whole ones too. */
void rebuild_force(struct healer *h);
/** The map came: is a storage given up of which we did not know? */
void rebuild_lost(struct healer *h);
/** A peer says that we missed too much to be told. */
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
