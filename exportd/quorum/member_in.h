/*
 * member_in.h - shared by the files of a member; private to them.
 *
 * member.c: events of the core and their results. member_send.c: messages to others.
 * member_start.c: start and stop.
 */
#ifndef ROZO_EXPORTD_QUORUM_MEMBER_IN_H
#define ROZO_EXPORTD_QUORUM_MEMBER_IN_H

#include <stdatomic.h>

#include "common/base/list.h"
#include "exportd/quorum/member.h"
#include "exportd/quorum/quorum_log.h"
#include "exportd/quorum/raft/raft_core.h"

enum {
    STEP_DEADLINE_MS = 1000,
    STEPS_MAX = 64,      /* messages on their way to one member; more are dropped */
    APPLYING_MAX = 1024, /* entries given to the kv and not applied yet */
};

/* Link to another member. */
struct member_peer {
    struct list_node link;
    uint64_t id;
    char address[RAFT_ADDRESS_MAX + 1];
    struct rpc_channel *channel; /* owned; NULL: the address is not valid */
    unsigned n_steps;            /* messages on their way */
    bool is_gone;                /* left the list; freed with its last message */
    bool is_stranger;            /* something else answers at the address; logged */
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

enum member_state {
    MEMBER_NEW,
    MEMBER_LOG,  /* reads the log */
    MEMBER_TERM, /* saves a term that the vote lacks */
    MEMBER_RUNS,
    MEMBER_FAILED, /* waits for member_stop() */
    MEMBER_STOPS,  /* waits for steps and reads */
    MEMBER_LOG_STOPS,
    MEMBER_STOPPED,
};

struct member {
    struct member_config config;
    struct kv_quorum_place place;
    enum member_state state;
    struct raft_core *core; /* owned */
    struct quorum_log *log; /* owned */
    struct quorum_log_hooks log_hooks;
    struct env_timer timer;
    struct list_node peers, steps;
    struct raft_config members; /* for which there are peers */

    /* News of the core, as of its last event. */
    enum raft_core_role role;
    uint64_t term, leader, commit;
    bool is_ready;

    bool leads;              /* the kv's side leads, once it knows */
    unsigned n_leads, n_led; /* calls of hooks.lead and of member_led() */
    uint64_t lead_term;
    _Atomic uint64_t lease_until_ns;
    uint64_t confirm_ns; /* time to be confirmed; 0: none */

    /* Entries for the kv. */
    uint64_t given, applied, synced;
    struct quorum_log_read give_read;
    bool is_reading;
    bool is_syncing_below;

    /* Parts being submitted: the core gives their data back as entries. */
    struct quorum_entry *const *parts;
    unsigned n_parts;

    struct err *err;
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
uint64_t member_now_ns(const struct member *m);
/** Looks at the result of an event: 0, refused, or fatal. */
void member_event(struct member *m, int rc);

/* ---- member_send.c ---- */

/** Opens and closes links for a new list of members. */
void member_peers_update(struct member *m, const struct raft_config *members);
void member_peers_close(struct member *m);
/** Sends a message, with entries of the log. */
void member_send(struct member *m, const struct raft_msg *msg);

/* ---- member_start.c ---- */

/** Goes on with a stop, if nothing is under way any more. */
void member_stop_look(struct member *m);

#endif
