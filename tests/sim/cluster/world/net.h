/*
 * net.h - a simulated network: channels of one process, calls at another.
 *
 * Messages take time, overtake each other, arrive twice, or get lost. A lost message is a
 * broken link: the request is sent again until its deadline, as the real channel does. A
 * cut delays the messages of one direction (and breaks links sometimes). Peers notice the
 * end of a process at once, but not the end of its machine.
 */
#ifndef ROZO_SIM_NET_H_CLUSTER
#define ROZO_SIM_NET_H_CLUSTER

#include "common/rpc/rpc.h"
#include "tests/sim/cluster/world/proc.h"

enum { HOSTS_MAX = 36 };

/* A machine with one process. */
struct host {
    struct proc *proc;
    unsigned index;
    bool power;
    /* Server of the host; NULL: it does not listen. */
    rpc_handler_cb *handler;
    void *handler_arg;
    /** Reads the bytes of a file segment of an answer. */
    void (*read_fd)(void *arg, int fd, uint64_t offset, void *buf, size_t len);
    void *read_fd_arg;
    uint8_t incarnation[16];  /* incarnation of the data, sent in Hello; zeros: none */
    struct net_call *calls;   /* calls without an answer, or with an unsent one */
    uint64_t unreached_since; /* ns: process hung or machine off since; 0: reachable */
};

/* Quality of the network. */
struct net_weather {
    uint32_t delay_us; /* a message takes from 20 us to this time */
    uint32_t loss_ppm, twice_ppm;
    uint32_t late_ppm;       /* share of messages to storages delayed by up to LATE_MS */
    uint32_t twice_late_ppm; /* share of second copies delayed likewise */
    uint32_t dead_late_ppm;  /* share delayed likewise of a dead
                              * host's messages to storages */
};

struct net {
    struct host hosts[HOSTS_MAX];
    unsigned n_hosts;
    struct net_weather weather;
    bool cut[HOSTS_MAX][HOSTS_MAX]; /* cut[from][to]: no message gets through */
    uint64_t cut_since[HOSTS_MAX][HOSTS_MAX];
    struct net_exchange *exchanges; /* requests with a waiting caller or a message */
    struct net_flight *flights;
    uint64_t last_id;
    uint64_t n_sent, n_lost, n_twice;
    bool tells;                /* prints every message */
    bool drops_missed;         /* mutant: ST_MISSED is answered and has no effect */
    struct host *no_lists_for; /* mutant: answers of this host to ST_LIST are dropped */
    /* Called when a watched host sends or gets a request that changes data. */
    bool watched[HOSTS_MAX];
    void (*on_watched)(struct host *h);
    /** Called when a request of a client arrives at a
     * storage; from_life: the client's life that sent it. */
    void (*on_request)(const struct host *from, unsigned from_life, const struct host *to,
                       const struct rpc_call *call);
};
extern struct net net; /* owned by the world */

void net_begin(void);
struct host *net_add_host(struct proc *proc);
/** Ends its requests and calls, and loses lost_ppm of
 * its messages in flight. Call it before proc_kill(). */
void net_host_died(struct host *h, uint32_t lost_ppm);
/** Records that its power is back: its kernel rejects calls from before. */
void net_host_is_back(struct host *h);
void net_cut(unsigned from, unsigned to, bool cut);
/** Sets whether the host is reachable: process not hung and power on. */
void net_host_reachable(struct host *h, bool reachable);

/**
 * Makes a channel of the current process to another host, in the process's memory.
 * incarnation: as in rpc_tcp.h. broke: called when a link was lost and connected again;
 * may be NULL.
 */
struct rpc_channel *net_channel_new(struct host *from, struct host *to,
                                    enum rpc_role role, const uint8_t *incarnation,
                                    void (*broke)(void *arg), void *arg);
void net_channel_free(struct rpc_channel *ch);
/** Frees a channel with requests on it; they end with -ENOTCONN, later. */
void net_channel_close(struct rpc_channel *ch);
void net_channel_set_session(struct rpc_channel *ch, uint64_t session);
/** Returns the number of requests to this host, in flight
 * or in work, whose sender died or stopped waiting. */
unsigned net_n_strays(const struct host *to);

#endif
