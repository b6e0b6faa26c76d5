/*
 * net.h - a simulated network: channels of one process, calls at another.
 *
 * Messages take time, overtake each other, arrive twice, or get lost, which is a broken link: the
 * request is sent again until its deadline, as the real channel does. A cut holds messages of one
 * direction up (and breaks links now and then). The end of a process is noticed at once, the end
 * of its machine is not.
 */
#ifndef ROZO_SIM_NET_H_CLUSTER
#define ROZO_SIM_NET_H_CLUSTER

#include "common/rpc/rpc.h"
#include "tests/sim/cluster/proc.h"

enum { HOSTS_MAX = 36 };

/* A machine with one process. */
struct host {
    struct proc *proc;
    unsigned index;
    bool power;
    /* The server in it; NULL: it does not listen. */
    rpc_handler_cb *handler;
    void *handler_arg;
    /** Bytes of a file segment of an answer. */
    void (*read_fd)(void *arg, int fd, uint64_t offset, void *buf, size_t len);
    void *read_fd_arg;
    uint8_t
        incarnation[16];    /* of its data, as it says in its Hello; zeros: it has none */
    struct net_call *calls; /* not answered or not sent */
    uint64_t
        unreached_since; /* its process hangs or its machine is off since; 0: neither */
};

/* How bad it is. */
struct net_weather {
    uint32_t delay_us; /* a message takes 20 us to this long */
    uint32_t loss_ppm, twice_ppm;
    uint32_t late_ppm;       /* takes up to 3 s; those to storages */
    uint32_t twice_late_ppm; /* of the second copies, the same */
    uint32_t dead_late_ppm;  /* all that a host had sent to storages when it died */
};

struct net {
    struct host hosts[HOSTS_MAX];
    unsigned n_hosts;
    struct net_weather weather;
    bool cut[HOSTS_MAX][HOSTS_MAX]; /* nothing gets from .. to .. */
    uint64_t cut_since[HOSTS_MAX][HOSTS_MAX];
    struct net_exchange
        *exchanges; /* all that a caller waits for, or a message is about */
    struct net_flight *flights;
    uint64_t last_id;
    uint64_t n_sent, n_lost, n_twice;
    bool tells;        /* every message, in words */
    bool drops_missed; /* a mutant: ST_MISSED is answered, and nobody hears of it */
    struct host *no_lists_for; /* a mutant: nobody knows its ST_LIST */
    /* Told when a watched host sends, or gets, something that changes data. */
    bool watched[HOSTS_MAX];
    void (*on_watched)(struct host *h);
    /** A request of a client arrives at a storage; from: in which life of it it was sent. */
    void (*on_request)(const struct host *from, unsigned from_life, const struct host *to,
                       const struct rpc_call *call);
};
extern struct net net; /* of the world */

void net_begin(void);
struct host *net_add_host(struct proc *proc);
/** Forget its requests and its calls; lost_ppm of its messages that are on their way. Before proc_kill(). */
void net_host_died(struct host *h, uint32_t lost_ppm);
/** Its power is back: its kernel knows nothing of what it was asked, and says so to who asks for it. */
void net_host_is_back(struct host *h);
void net_cut(unsigned from, unsigned to, bool cut);
/** Its process hangs, or its power is gone, or neither. */
void net_host_reachable(struct host *h, bool reachable);

/**
 * A channel of the process that runs, to another host; its memory is the process's. incarnation: as in
 * rpc_tcp.h. broke: a link was lost and came up again; may be NULL.
 */
struct rpc_channel *net_channel_new(struct host *from, struct host *to,
                                    enum rpc_role role, const uint8_t *incarnation,
                                    void (*broke)(void *arg), void *arg);
void net_channel_free(struct rpc_channel *ch);
/** The same with requests on it, which end with -ENOTCONN, later. */
void net_channel_close(struct rpc_channel *ch);
void net_channel_set_session(struct rpc_channel *ch, uint64_t session);
/** Requests to this host, on their way or in it, whose sender has died or does not wait any more. */
unsigned net_n_strays(const struct host *to);

#endif
