/*
 * member_in.h - shared by the files of a member; private to them.
 *
 * member.c: events of the core and their results. member_send.c: messages to others.
 * member_start.c: start and stop. member_seed.c: copying the store of another member.
 * member_source.c: giving others what they ask for. member_change.c: members that come
 * and go. member_tell.c: older images. member_space.c: full disks. member_doubt.c: after
 * a loss of power. member_witness.c: a member without metadata.
 */
#ifndef ROZO_EXPORTD_QUORUM_MEMBER_IN_H
#define ROZO_EXPORTD_QUORUM_MEMBER_IN_H

#include <stdatomic.h>

#include "common/base/list.h"
#include "exportd/quorum/log/quorum_log.h"
#include "exportd/quorum/log/quorum_vote.h"
#include "exportd/quorum/member.h"
#include "exportd/quorum/raft/raft_core.h"
#include "exportd/quorum/seed/seed_adopt.h"
#include "exportd/quorum/seed_store.h"

enum {
    STEP_DEADLINE_MS = 1000,
    HELD_MS = 500,       /* then a call is answered without a message */
    STEPS_MAX = 64,      /* messages on their way to one member; more are dropped */
    APPLYING_MAX = 1024, /* entries given to the kv and not applied yet */
    SOURCES_MAX = 4,     /* questions of other members being answered */
    SEED_DEADLINE_MS = 5000,
    /* without progress for so long, the log names the members waited for; then again */
    SEED_WAIT_MS = 3000,
    SEED_DOUBT_MS = 6000,
    SEED_WAIT_AGAIN_MS = 60000,
    SEED_STUCK_MS = 20000, /* a copy without progress for so long may never be complete */
    SEED_PAUSE_MS = 50,    /* before the next question after one without result */
    SEED_AGAIN_MS =
        60000, /* before a follower that did not give keys is preferred again */
    SEED_LATE_MAX = 4096, /* entries that the store of a preferred follower may lack */
    SPACE_LOOK_MS = 1000,
    SPACE_FULL_MS = 2000, /* a leader whose log finds no space for so long hands over */
    SPACE_OLD_MS = 5000,  /* an older answer about space does not count */
    /* a leader whose disk has less hands over, before exportd refuses growth: its
     * METADATA_RESERVE, and what LevelDB needs to merge tables */
    SPACE_LOW_BYTES = 256 << 20,
    MEMBER_FREE_BYTES = 8, /* answer to RF_STEP: free bytes of the disk */
    MEMBER_NAME_MAX = RAFT_ADDRESS_MAX + 40,
    HEARD_MAX = 2 * RAFT_SERVERS_MAX,
    HEARD_BYTES = 4096, /* the file with what others have said */
    /* packed RF_TELL: cluster id, group, four numbers, addresses with two bytes each */
    TELL_BYTES_MAX =
        18 + 6 + 2 * 9 + 2 * 11 + MEMBER_CLIENTS_MAX * (EXPORTD_ADDR_BYTES + 2),
};

/* Memory of another member. By id, since links come and go. */
struct member_heard {
    uint64_t id; /* 0: nothing is here */
    /* the most that it said it had on its disk: its term, newest entry of that term */
    uint64_t term, index;
    bool has_answered; /* since our start: it has said what it remembers of us */
    struct member_clients clients;
};

/* State of RF_TELL. */
struct member_telling {
    bool is_loaded;
    struct member_heard heard[HEARD_MAX];
    uint64_t base_term, base_index;     /* contents of the disk at the start */
    uint64_t synced_term, synced_index; /* newest entry that is synced */
    uint64_t forgotten_term; /* this member may have voted in terms up to this one */
    uint64_t list;           /* number of the list that hooks.clients got */
    struct env_timer timer;
    struct disk_file *file; /* NULL: it could not be opened */
    struct disk_req dr;
    struct iovec iov;
    bool is_busy;    /* dr is under way */
    bool is_changed; /* since the file was written */
    uint64_t saved_ns;
    uint8_t page[HEARD_BYTES];
};

/* Call that the next message to its sender answers. */
struct member_held {
    struct rpc_call *call; /* owned; NULL: none waits */
    uint64_t since_ns;
};

/* Link to another member. */
struct member_peer {
    struct list_node link;
    uint64_t id;
    char address[RAFT_ADDRESS_MAX + 1];
    struct rpc_channel *channel; /* owned; NULL: the address is not valid */
    unsigned n_steps;            /* messages on their way */
    struct member_held held;
    bool is_gone;     /* left the list; freed with its last message */
    bool is_stranger; /* something else answers at the address; logged */
    /* last answer to a question of a member that copies or is uncertain, for people;
     * NULL: it helped, or was not asked */
    const char *says;
    bool is_silent;      /* there was no answer to it */
    uint64_t keys_ns;    /* copying: not preferred to the leader before; 0: it is */
    uint64_t free_bytes; /* space of its disk, by its answer at free_ns */
    uint64_t free_ns;    /* 0: never */
    struct member *m;
    bool tells; /* tell_rq is under way; counts as a step */
    struct rpc_request tell_rq;
    uint64_t tell_ns; /* not again before */
    uint8_t tell_msg[TELL_BYTES_MAX];
};

/* Message to a peer, while its entries are read and it is on its way. */
struct member_step {
    struct list_node link;
    struct member *m;
    struct member_peer *peer;
    struct raft_msg msg;
    unsigned n_have;
    struct quorum_entry *entries[RAFT_MSG_ENTRIES_MAX]; /* n_have uses */
    struct quorum_log_read read;
    uint8_t head[RAFT_MSG_HEAD_MAX];
    struct iovec payload[RAFT_MSG_ENTRIES_MAX];
    struct rpc_request rq;
    bool is_sent;
};

/* Question of another member (RF_SEED, RF_FETCH) being answered. */
struct member_source {
    struct list_node link;
    struct member *m;
    struct rpc_call *call;
    struct seed_ask ask;
    struct seed_job *job; /* RF_SEED: owned; lent to the kv's side */
    struct seed_log log;  /* RF_FETCH: the answer */
    size_t len;           /* bytes of entries so far */
    struct quorum_entry *entries[SEED_ENTRIES_MAX]; /* log.n uses */
    struct quorum_log_read read;
    uint8_t rows[SEED_ENTRIES_MAX][SEED_ROW_BYTES];
};

/* Questions of an uncertain member, in rounds: to one voter after the other, then to
 * others that may lead. */
struct member_doubt {
    struct raft_config list; /* newest list of members that this one knows, its entry */
    uint64_t list_index;
    struct raft_config all; /* members of that list, and of those that others know */
    unsigned at;            /* next one to ask: of the list, then of all */
    bool voters_asked;      /* all voters of the list, in this round */
    uint64_t asked;         /* raft id of the last one asked */
    uint64_t began_ns;      /* this round */
    unsigned n_answers, n_in_doubt, n_with_loss;
    uint64_t last_term; /* newest one in which the member may have acknowledged entries */
    /* sound ones that acknowledge nothing of those terms any more; the longest log of
     * theirs, which has all that was committed with this member's help */
    unsigned n_named;
    uint64_t floor_term, floor_index;
    uint64_t alone_ns; /* no leader has been heard since then */
    bool is_longest;   /* no answer so far had a longer log */
    /* member that leads with a lease, its term, and since when; 0: none, as of the last
     * round and this one */
    uint64_t leader, leader_term, leader_ns;
    bool hears_leader; /* in this round */
    bool asks;
    uint64_t told_ns; /* last said that it waits, and for whom; 0: never */
    struct env_timer timer;
    struct rpc_request rq;
    uint8_t msg[SEED_ASK_BYTES_MAX];
};

/* Loss of power of a majority. */
struct member_loss {
    bool is_noted; /* quorum_log_begin() has been called for this log */
    /* term in which this member left doubt without the help of a leader, if that is not
     * counted yet; 0: it did not */
    uint64_t term;
    uint64_t quiet_until_ns; /* no campaign before: others have more */
    /* Until the log reaches the floor, or an entry of a term above last_term, the member
     * votes for nobody with less than the floor, and does not campaign. Term 0: none. */
    uint64_t floor_term, floor_index, last_term;
    uint64_t floor_ns; /* the leader was last heard, or the floor was set */
    bool is_fed;       /* the log has changed since it was set */
    /* leader: one must be counted; entry that counts it, 0: none, and its term */
    bool is_due;
    uint64_t count_index, count_term;
};

/* Copying of another member's store. A member that does so has no raft core running: it
 * neither votes nor campaigns. */
struct member_seeding {
    enum member_seed_step {
        MEMBER_SEED_OFF,
        MEMBER_SEED_SYNCS,   /* waits for a sync of the kv */
        MEMBER_SEED_MARKS,   /* SEED_JOB_BEGIN */
        MEMBER_SEED_CLEARS,  /* stops and removes the log */
        MEMBER_SEED_OPENS,   /* starts an empty log */
        MEMBER_SEED_PAUSES,  /* timer */
        MEMBER_SEED_ASKS,    /* question on its way */
        MEMBER_SEED_APPLIES, /* SEED_JOB_CHUNK, SEED_JOB_ENTRIES */
        MEMBER_SEED_VOTES,   /* saves a vote in place of the one that is lost */
        MEMBER_SEED_ENDS,    /* SEED_JOB_END */
    } step;
    struct seed_mark mark;
    uint64_t fed;    /* newest entry given to the kv's side; mark.index follows */
    uint64_t bytes;  /* copied so far */
    uint64_t rated;  /* bytes of the answer that is applied, for the rate */
    uint64_t lag;    /* entries that a source had more when a fetch last paused */
    uint64_t source; /* raft id of the member that is asked */
    /* member that leads, by the APPENDs that come meanwhile, and its term; 0: not known.
     * The entry up to which all are stable there */
    uint64_t leader, leader_term, leader_stable;
    unsigned n_short, n_failed; /* members in a row that could not help */
    uint64_t wait_ns;  /* no progress since then, or the wait was logged; 0: neither */
    uint64_t stuck_ns; /* no progress since then; 0: there is some */
    bool is_wait_logged;
    bool to_doubt; /* when it ends, the member asks how it may take part */
    /* when all entries up to this one are there the copy is complete; 0: not known */
    uint64_t target;
    uint64_t barrier, barrier_term, barrier_leader;
    struct env_timer timer;
    struct rpc_request rq;
    uint8_t msg[SEED_ASK_BYTES_MAX];
    struct disk_req dr;
};

/* A member without metadata. */
struct member_witness {
    uint64_t covered;  /* as of struct raft_core_out; kept when a new core starts */
    uint64_t led_term; /* term in which it leads; logged */
    uint64_t again_ns; /* no further try to hand over before */
    bool is_short;     /* entries were dropped that a member lacks; logged */
    bool is_stuck;     /* leader: a member lacks such entries; logged */
};

/* Free space of the members. */
struct member_space {
    struct env_timer timer;
    struct disk_req dr;
    bool is_asking;
    uint64_t free_bytes; /* space of the own disk; UINT64_MAX: not known */
    unsigned n_full;     /* tries of the log in a row that found no space */
    uint64_t sent;       /* number that the kv's side has, in reign sent_in */
    unsigned sent_in;
};

enum member_state {
    MEMBER_NEW,
    MEMBER_LOG,    /* reads the log */
    MEMBER_DOUBTS, /* may have lost what it acknowledged: asks who leads */
    MEMBER_SEEDS,  /* copies the store of another member */
    MEMBER_BOOT,   /* notes that it may acknowledge what is not synced */
    MEMBER_TERM,   /* saves a term that the vote lacks */
    MEMBER_RUNS,
    MEMBER_REMOVED, /* is no member any more: takes no part */
    MEMBER_FAILED,  /* waits for member_stop() */
    MEMBER_STOPS,   /* waits for steps and reads */
    MEMBER_LOG_STOPS,
    MEMBER_STOPPED,
};

/* Changes of the list of members, of the member that leads. */
struct member_changing {
    /* newest list up to `given` that is not stable yet, its index (0: there is none), and
     * the highest id of all lists up to it */
    struct raft_config coming;
    uint64_t coming_index, coming_highest;
    struct member_change *asked; /* NULL: nobody asks for one */
    /* Members on standby vote when they have what was committed at the last look. */
    uint64_t look_ns, look_commit;
    /* Question to a new member: */
    struct rpc_request rq;
    struct member_peer *peer; /* counts as a step to it; NULL: no question is out */
    uint64_t asked_id;        /* spare of the last question */
    uint64_t again_ns;        /* no question before */
    bool is_refused;          /* the last one was; logged */
    /* Question of one that hears nobody, whether it is still a member: */
    uint64_t heard_ns; /* the last message came */
    struct rpc_request lonely_rq;
    struct member_peer *lonely_peer; /* counts as a step to it; NULL: none is out */
    uint64_t lonely_id;              /* member of the last question */
    uint8_t lonely_msg[SEED_ASK_BYTES_MAX];
    uint8_t msg[SEED_ADOPT_BYTES_MAX], probe[SEED_ADOPT_BYTES_MAX];
};

struct member {
    struct member_config config;
    struct kv_quorum_place place;
    enum member_state state;
    struct raft_core *core; /* owned */
    struct quorum_log *log; /* owned; NULL while it is removed */
    bool log_runs;
    struct quorum_ballot ballot; /* as saved */
    struct quorum_log_hooks log_hooks;
    struct env_timer timer;
    struct list_node peers, steps, sources;
    /* The sender, held_from, has no link: the list here is older. */
    struct member_held held;
    uint64_t held_from;
    bool is_held_new; /* the call being handled is held, or answered by a message */
    unsigned n_sources;
    struct member_seeding seed;
    struct member_space space;
    struct member_doubt doubt;
    struct member_loss loss;
    struct member_witness witness;
    unsigned n_jobs;            /* lent to the kv's side */
    struct raft_config members; /* for which there are peers */

    /* News of the core, as of its last event. */
    enum raft_core_role role;
    uint64_t term, leader, commit, stable;
    bool is_ready;

    bool leads;              /* the kv's side leads, once it knows */
    unsigned n_leads, n_led; /* calls of hooks.lead and of member_led() */
    uint64_t lead_term;
    _Atomic uint64_t lease_until_ns;
    uint64_t confirm_ns; /* time to be confirmed; 0: none */

    /* Entries for the kv. */
    uint64_t given, stable_given, applied, synced;
    struct raft_config listed; /* newest list that is stable, or one before it */
    uint64_t highest_id;       /* highest id of all lists up to there */
    struct member_changing change;
    struct member_telling tell;
    struct quorum_log_read give_read;
    bool is_reading;
    bool is_syncing_below;

    /* Parts being submitted: the core gives their data back as entries. */
    struct quorum_entry *const *parts;
    unsigned n_parts;

    struct err *err; /* borrowed during the start, then own_err */
    struct err own_err;
    void (*started)(void *arg, int rc);
    void *started_arg;
    void (*stopped)(void *arg);
    void *stopped_arg;
    struct env_task stop_task;
};

/* ---- member.c ---- */

/** Carries out the results of the core's last event. */
void member_pump(struct member *m);
void member_fail(struct member *m, int rc, const char *what);
/* Ends the kv's leadership, and the lease before. Does nothing if it does not lead. */
void member_depose(struct member *m);
/** Stops taking part: what is under way ends, and this member follows nobody. */
void member_part_stop(struct member *m);
uint64_t member_now_ns(const struct member *m);
/** Compares two places in logs, in the order of votes. */
static inline bool member_is_less(uint64_t term, uint64_t index, uint64_t than_term,
                                  uint64_t than_index)
{
    return term < than_term || (term == than_term && index < than_index);
}
/** Returns the first and last entry of the log; an empty one begins behind the store. */
void member_log_range(const struct member *m, uint64_t *first, uint64_t *last);
/** Looks at the result of an event: 0, refused, or fatal. */
void member_event(struct member *m, int rc);

/** Takes a message that came as the answer to one of this member. */
void member_answer_take(struct member *m, const void *head, size_t len);

/* ---- member_send.c ---- */

/** Writes "member 2 at HOST:PORT", for people. Returns buf. */
const char *member_name(const struct member *m, uint64_t id, char buf[MEMBER_NAME_MAX]);
/**
 * Ends this member: as another one answers (DEPOSED), the quorum began again without it,
 * and nothing that it has or votes counts.
 */
void member_outlived(struct member *m, uint64_t by);
/** Notes how a member has answered (member_peer.says). */
void member_peer_says(struct member *m, uint64_t id, const char *says, bool is_silent);
/**
 * Writes how the others have answered, for people; those with nothing to say as
 * `otherwise`, or not at all if that is NULL.
 */
void member_peers_say(const struct member *m, const char *otherwise,
                      char text[ERR_TEXT_MAX]);
/** Opens and closes links for a new list of members. */
void member_peers_update(struct member *m, const struct raft_config *members);
void member_peers_close(struct member *m);
/** Returns the link to a member, or NULL. */
struct member_peer *member_peer_find(const struct member *m, uint64_t id);
/**
 * Takes an RF_STEP with this message that is about to be handled. If the message will be
 * answered by one without entries, or if there is no link to its sender, the next such
 * message to that member becomes the answer to the call.
 */
void member_step_hold(struct member *m, struct rpc_call *call,
                      const struct raft_msg *msg);
/**
 * The call from this member has been handled: answers it, unless it is answered or waits
 * for that.
 */
void member_step_end(struct member *m, struct rpc_call *call, uint64_t from,
                     uint16_t status);
/** Answers calls that have waited for HELD_MS; all: every call that waits. */
void member_steps_release(struct member *m, bool all);
/** Ends a use of a link, which n_steps counts. */
void member_peer_unuse(struct member *m, struct member_peer *p);
/** Sends a message, with entries of the log. */
void member_send(struct member *m, const struct raft_msg *msg);
/**
 * Unpacks and checks a question (RF_JOIN, RF_SEED, RF_FETCH). If it is not for this
 * member, answers the call with the reason and returns false.
 */
bool member_ask_read(const struct member *m, struct rpc_call *call, struct seed_ask *ask);

/* ---- member_start.c ---- */

/** Goes on with a stop, if nothing is under way any more. */
void member_stop_look(struct member *m);
/** Makes a core and a log that have not started. Returns 0 or -ENOMEM. */
int member_core_open(struct member *m);
int member_log_open(struct member *m);
void member_log_start(struct member *m);
/** Starts the core from log, vote and place; then the member runs. */
void member_core_start(struct member *m);
/** The start has failed; or the member, if it has started already. */
void member_start_end(struct member *m, int rc);

/* ---- member_doubt.c ---- */

/** Asks the other voters who leads; does not take part before that is answered. */
void member_doubt_begin(struct member *m);
/** Ends at once. */
void member_doubt_stop(struct member *m);
/** Answers RF_JOIN: takes the call. */
void member_doubt_handle(struct member *m, struct rpc_call *call);
/** A leader says who the members are: asks those if the list is a newer one. */
void member_doubt_list(struct member *m, const struct raft_config *list, uint64_t index);
/** Returns the newest entry of the log, or of the store if the log is empty. */
struct raft_log_entry member_newest(const struct member *m);
/** Counts a loss of power as leader, if there is one that nobody counted. */
void member_loss_count(struct member *m);
/** Returns whether a message must not reach the core of a member that has a floor. */
bool member_floor_forbids(const struct member *m, const struct raft_msg *msg);
/** The log is written up to an entry: the floor may have been reached. */
void member_floor_look(struct member *m, uint64_t index, uint64_t term);
/** Asks the others again if no leader brings the log up to the floor. */
void member_floor_wait(struct member *m);
/** Returns whether this member leads, is ready, and no loss is left to count. */
bool member_leads_for_sure(const struct member *m);

/* ---- member_seed.c ---- */

/**
 * Stops taking part, and copies the store of another member. With mark.is_copied it keeps
 * its own store if the others still have the entries behind it.
 */
void member_seed_begin(struct member *m, struct seed_mark mark);
/** Goes on with a copy that was not complete when the process ended. */
void member_seed_resume(struct member *m);
void member_seed_synced(struct member *m);
/** No message, read or job is under way: goes on with a copy that waits for that. */
void member_seed_idle(struct member *m);
void member_seed_log_started(struct member *m, int rc);
void member_seed_voted(struct member *m);
/** Looks at an RF_STEP that comes while this member copies: one of a leader names it. */
void member_seed_hear(struct member *m, const struct rpc_call *call);
/** Ends at once what can be ended. Returns whether nothing is under way. */
bool member_seed_stop(struct member *m);
/** Returns whether a copy has made no progress for long. */
bool member_seed_is_stuck(const struct member *m);
/** Copies the state, for people. */
void member_seed_status(const struct member *m, struct member_status *out);

/* ---- member_space.c ---- */

/** Looks at the space of the disk from now on, until member_space_stop(). */
void member_space_start(struct member *m);
void member_space_stop(struct member *m);
/** The log finds no space, or has some again: quorum_log_hooks.full. */
void member_log_full(struct member *m, bool is_full);
/** Packs the answer to RF_STEP. */
void member_space_put(const struct member *m, uint8_t buf[MEMBER_FREE_BYTES]);
/** Takes the answer of another member. */
void member_space_heard(struct member *m, struct member_peer *p, const void *msg,
                        size_t len);
/* ---- member_change.c ---- */

/** Takes note of a committed entry that the kv gets. */
void member_change_given(struct member *m, const struct quorum_entry *entry);
/** Entries up to stable_given are stable: takes over a list among them. */
void member_change_stable(struct member *m);
/** Takes the next step of changes under way, if this member leads. */
void member_change_look(struct member *m);
/** Ends what is under way. */
void member_change_stop(struct member *m);
/** Returns whether this id was a member's and is none's any more. */
bool member_is_former(const struct member *m, uint64_t id);
/** This member is none any more. */
void member_removed(struct member *m);
/** Answers RF_ADOPT: takes the call. */
void member_adopt_handle(struct member *m, struct rpc_call *call);

/* ---- member_tell.c ---- */

/** Reads what others have said before, then calls member_log_start(). */
void member_tell_start(struct member *m);
/** Ends what is under way, and saves what others have said: member_telling.is_busy. */
void member_tell_stop(struct member *m);
void member_tell_close(struct member *m);
/** The core starts with what is on the disk: others must say what they remember. */
void member_tell_begin(struct member *m);
/** Tells others as soon as possible. */
void member_tell_soon(struct member *m);
/** Entries up to this one are synced. */
void member_tell_synced(struct member *m, uint64_t index, uint64_t term);
/** Returns whether votes for and of a member count: it has said what it remembers. */
bool member_tell_lets_vote(struct member *m, uint64_t from);
/** Answers RF_TELL: takes the call. */
void member_tell_handle(struct member *m, struct rpc_call *call);
/** Returns where clients reach a member, as far as is known. */
void member_clients_of(const struct member *m, uint64_t id, struct member_clients *out);
/** The list of members, or an address of one, may have changed. */
void member_clients_look(struct member *m);

/* ---- member_witness.c ---- */

/** Returns whether the member with this id is a witness, by the newest list. */
bool member_is_witness(const struct member *m, uint64_t id);
/** Takes news of the core; a witness that leads hands over to a member that can serve. */
void member_witness_look(struct member *m, uint64_t covered);
/** Returns whether a message must not be sent: a witness has no store to copy. */
bool member_witness_drops(struct member *m, const struct raft_msg *msg);
/** Returns how much of the log is kept, in bytes. */
uint64_t member_keep_bytes(const struct member *m);
/**
 * Returns the first entry that stays when the log shall begin with this one: a witness
 * drops nothing that a member lacks unless it must.
 */
uint64_t member_witness_trim_to(struct member *m, uint64_t to);

/* ---- member_source.c ---- */

/** Answers RF_SEED or RF_FETCH: takes the call. */
void member_source_handle(struct member *m, struct rpc_call *call);
/** A chunk has been read for another member. */
void member_source_read(struct member *m, struct seed_job *job);

#endif
