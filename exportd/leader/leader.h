/*
 * leader.h - exportd's core on the member of a quorum that leads.
 *
 * While the member leads, a core runs on its kv; a fail-over is a start of a core. While
 * no core serves, clients get NOT_LEADER, but a call MD_WAIT_LEADER is held until then.
 * A core that meets a storage which knows a later start is abandoned. The next one has a
 * higher number; it starts if the member still leads, as with metadata from a backup.
 *
 * One thread, that of the kv_quorum and its env. member_port's hooks lead, depose and
 * failed call this.
 */
#ifndef ROZO_EXPORTD_LEADER_LEADER_H
#define ROZO_EXPORTD_LEADER_LEADER_H

#include "exportd/quorum/kv_quorum.h"
#include "exportd/requests/exportd.h"

struct leader;

struct leader_config {
    struct env *env; /* borrowed */
    struct kv *kv;   /* borrowed: kv_quorum_kv() */
    /* Config of each core. Its `ready` and `deposed` are not used. */
    struct exportd_config exportd;
    /**
     * No core can run on this member: the process must end, so that another one leads.
     * Not inside a call.
     */
    void (*failed)(void *arg, int rc, const char *text);
    /**
     * Returns true if no other member can lead. Then a storage that knows a later start
     * has met metadata that are newer than ours, which are from a backup: the next core
     * gets a number above that one at once. NULL: never.
     */
    bool (*is_alone)(void *arg);
    /** Called when a core begins to serve, and when it ends that. NULL: nobody. */
    void (*serves)(void *arg, bool serves);
    /**
     * A core was abandoned, and has answered all its calls. Ends the connections of
     * clients: what they sent and nobody has read was meant for that core. Another member
     * may have led since, so the next core here must not carry it out. NULL: no sockets.
     */
    void (*end_conns)(void *arg);
    void *arg;
    /* where clients reach the members; borrowed. After a change: leader_clients() */
    const struct exportd_list *clients;
};

enum {
    LEADER_WAIT_MS = 20000, /* an MD_WAIT_LEADER is held no longer */
    LEADER_HELD_MAX = 8192, /* more are answered BUSY */
};

/** Makes a leader that does not lead. Returns 0 or -ENOMEM. */
int leader_open(const struct leader_config *config, struct leader **out);
/** The kv takes commits from now on: starts a core. */
void leader_lead(struct leader *l, uint64_t term);
/** The kv takes no commits any more, or never did: answers NOT_LEADER to everybody. */
void leader_depose(struct leader *l);
/** Handles a request of a client: an rpc_handler_cb whose arg is the struct leader. */
void leader_handle(void *arg, struct rpc_call *call);
/** Answers those who wait for a leader with the new list: config.clients has changed. */
void leader_clients(struct leader *l);
/** A connection is gone: calls of it are not held any longer. */
void leader_conn_closed(struct leader *l, uint64_t conn_id);
/** Returns true if requests reach a core that is ready. */
bool leader_serves(const struct leader *l);
/** Returns the core while it serves, for checks of its tables; else NULL. */
const struct exportd *leader_core(const struct leader *l);
/**
 * Stops the core, answers NOT_LEADER to all from now on, then calls done(arg). If the
 * core cannot make its changes stable, it comes after leader_depose(). Lead and depose
 * may come until leader_close().
 */
void leader_stop(struct leader *l, void (*done)(void *arg), void *arg);
/** Frees a leader that has stopped. NULL is fine. */
void leader_close(struct leader *l);

#endif
