/*
 * main.c - the metadata daemon: arguments, config, loop, sockets, signals.
 *
 * In:     exportd --config FILE [--begin-quorum NUMBER | --load DUMP | --force-alone].
 * Out:    the core on LevelDB and TCP; exit status 0: stopped cleanly, 1: failed, 2:
 *         wrong usage.
 * Keeps:  SIGTERM loses nothing: all acknowledged changes are on stable storage before
 *         the end.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <uv.h>

#include "common/proto/rozo.pb-c.h"

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/config/args.h"
#include "common/kv/kv_leveldb.h"
#include "common/rpc/rpc_tcp.h"
#include "common/system/boot_id.h"
#include "common/system/fds.h"
#include "common/system/systemd.h"
#include "exportd/backup/dump_source.h"
#include "exportd/daemon/quorum_init.h"
#include "exportd/daemon/quorum_node.h"
#include "exportd/daemon/quorum_wait.h"
#include "exportd/datadir/daemon_config.h"
#include "exportd/datadir/datadir.h"
#include "exportd/datadir/quorum_store.h"
#include "exportd/offline/meta_load.h"
#include "exportd/offline/quorum_alone.h"
#include "exportd/offline/quorum_begin.h"
#include "exportd/quorum/raft/raft_core.h"
#include "exportd/requests/exportd.h"

enum {
    CONNS_MAX = 4096,
    CONNS_MIN = 64,
    PEERS_MIN = 64, /* channels to storages */
};

/* ---- the daemon ---- */

struct exportd_daemon {
    struct exportd_settings *config;       /* owned */
    unsigned kv_fds, conns_max, peers_max; /* shares of the descriptors */
    unsigned n_peer_links;                 /* to storages, on all open channels */
    struct rpc_keys keys;
    struct capability_key *capabilities;
    uv_loop_t loop;
    struct env_uv env;
    int lock_fd;
    struct kv_leveldb *kv;
    bool is_member;           /* by its data directory */
    struct exportd *core;     /* without a quorum */
    struct quorum_node *node; /* with one */
    /* Becomes a member: the core has stopped with init_rc; a signal came meanwhile. */
    struct quorum_init init;
    bool init_runs, init_is_due, stop_is_due;
    int init_rc;
    struct dump_source *dumps;
    struct rpc_server *server;
    struct stop_signals signals;
    bool env_open, signals_open;
    unsigned n_closing; /* channels */
    enum { RUNNING, STOPPING, STOPPED } state;
    int rc;
};

/* Returns how many connections clients may have. Each address of a storage needs a link:
 * links beyond peers_max are taken from the share of connections. */
static unsigned conns_that_fit(const struct exportd_daemon *d)
{
    unsigned beyond = d->n_peer_links > d->peers_max ? d->n_peer_links - d->peers_max : 0;

    return d->conns_max > CONNS_MIN + beyond ? d->conns_max - beyond : CONNS_MIN;
}

static void peers_count(struct exportd_daemon *d, int n)
{
    d->n_peer_links += (unsigned)n;
    if (d->server != NULL)
        rpc_server_set_conns_max(d->server, conns_that_fit(d));
}

static struct rpc_channel *peer_open(void *arg, const char *const *addrs,
                                     unsigned n_addrs)
{
    struct exportd_daemon *d = arg;
    struct rpc_channel_config config = {
        .keys = &d->keys,
        .role = RPC_ROLE_NODE,
        .name = "exportd",
        .addrs = addrs,
        .n_addrs = n_addrs,
    };
    struct rpc_channel *ch;
    struct err err = { 0 };

    if (rpc_tcp_channel_open(&d->env, &config, &ch, &err) == 0) {
        peers_count(d, (int)n_addrs);
        return ch;
    }
    log_warn("channel to %s: %s", n_addrs > 0 ? addrs[0] : "nowhere", err.text);
    return NULL;
}

static void on_channel_closed(void *arg)
{
    ((struct exportd_daemon *)arg)->n_closing--;
}

static void peer_close(void *arg, struct rpc_channel *ch)
{
    struct exportd_daemon *d = arg;
    unsigned n_up, n_all;

    rpc_tcp_channel_links(ch, &n_up, &n_all);
    peers_count(d, -(int)n_all);
    d->n_closing++;
    rpc_tcp_channel_close(ch, on_channel_closed, d);
}

static const char *peer_last_error(void *arg, struct rpc_channel *ch)
{
    (void)arg;
    return rpc_tcp_channel_last_error(ch);
}

static void on_stopped(void *arg, int rc)
{
    struct exportd_daemon *d = arg;

    d->state = STOPPED;
    d->rc = rc;
}

static void on_server_closed(void *arg)
{
    ((struct exportd_daemon *)arg)->server = NULL;
}

static void on_end_conns(void *arg)
{
    const struct exportd_daemon *d = arg;

    if (d->server != NULL)
        rpc_server_end_conns(d->server);
}

static void core_stop(struct exportd_daemon *d)
{
    d->stop_is_due = d->init_runs;
    if (d->state != RUNNING || d->init_runs)
        return;
    d->state = STOPPING;
    if (d->node != NULL)
        quorum_node_stop(d->node, on_stopped, d);
    else
        exportd_stop(d->core, on_stopped, d);
}

static void on_stop_signal(void *arg)
{
    sd_tell_stopping();
    core_stop(arg);
}

static int keys_load(struct exportd_daemon *d, struct err *err)
{
    int rc = rpc_keys_load(&d->keys, true, d->config->cluster.node_key, err);

    if (rc == 0)
        rc = rpc_keys_load(&d->keys, false, d->config->cluster.client_key, err);
    if (rc == 0) {
        rc = capability_key_new(d->keys.node, 0, &d->capabilities);
        if (rc != 0)
            err_set(err, rc, "out of memory");
    }
    return rc;
}

/* Refuses a member without data: nobody knows here whether it has lost them. */
static int no_data_tell(const char *data, unsigned member, struct err *err)
{
    if (member == 0)
        return err_set(err, -ENODATA,
                       "%s is empty, and the section `quorum` of the config does not say "
                       "with which members a new quorum begins",
                       data);
    return err_set(
        err, -ENODATA,
        "%s is empty, and this exportd is to be member %u of a quorum. If the "
        "quorum is new: `exportd --config FILE --begin-quorum NUMBER`, once on "
        "each member, before one is started (man 8 exportd). If it is not, "
        "this member has lost its data and must not begin again: take `id` and "
        "`members` out of the config, start it, and `rozo meta replace %u HOST:PORT`",
        data, member, member);
}

/* Waits until a quorum has added this exportd, which has no data. */
static int wait_to_be_added(struct exportd_daemon *d, struct err *err)
{
    struct quorum_wait_config config = {
        .env = &d->env,
        .keys = &d->keys,
        .settings = d->config,
        .conns_max = conns_that_fit(d),
    };

    return quorum_wait(&config, err);
}

static int store_open_in(struct exportd_daemon *d, struct err *err)
{
    const char *data = d->config->exportd.data;
    const struct quorum_section *quorum = d->config->quorum;
    bool is_new;
    int rc;

    if (quorum != NULL && quorum->witness && datadir_is_alone(data))
        return err_set(err, -EINVAL,
                       "%s has metadata of an exportd without a quorum, and the config "
                       "says `quorum: witness: true`: give the witness an empty data "
                       "directory",
                       data);
    d->is_member = quorum != NULL && !(quorum->id == 0 && datadir_is_alone(data));
    rc = datadir_open(data, d->is_member, &d->lock_fd, &is_new, err);
    if (rc != 0)
        return rc;
    if (is_new && d->is_member && quorum->id != 0)
        return no_data_tell(data, quorum->id, err);
    if (is_new && d->is_member)
        rc = wait_to_be_added(d, err);
    if (rc != 0)
        return rc;
    if (d->is_member)
        return quorum_store_open(&d->env, data, d->kv_fds, &d->kv, err);
    rc = datadir_store_open(&d->env, data, "kv", is_new, d->kv_fds, &d->kv, err);
    return rc == 0 && is_new ? datadir_begin(data, false, err) : rc;
}

static void on_core_stopped(void *arg, int rc)
{
    struct exportd_daemon *d = arg;

    d->init_is_due = true;
    d->init_rc = rc;
}

static void init_begin(struct exportd_daemon *d, struct rpc_call *call)
{
    if (d->state != RUNNING || d->init_runs) {
        rpc_reply_status(call, ROZO__STATUS__BUSY);
        return;
    }
    if (!quorum_init_take(&d->init, call, d->node != NULL))
        return;
    log_info("becomes the first member of a quorum; clients wait for a moment");
    d->init_runs = true;
    exportd_stop(d->core, on_core_stopped, d);
}

/* ---- dumps ---- */

static int dump_freeze(void *arg, struct kv **out)
{
    return kv_leveldb_freeze(((struct exportd_daemon *)arg)->kv, out);
}

static void dump_thaw(void *arg)
{
    kv_leveldb_thaw(((struct exportd_daemon *)arg)->kv);
}

static uint64_t dump_bytes(void *arg)
{
    return kv_leveldb_bytes(((struct exportd_daemon *)arg)->kv);
}

static int dumps_open(struct exportd_daemon *d, struct err *err)
{
    const struct dump_source_config config = {
        .env = &d->env.env,
        .freeze = dump_freeze,
        .thaw = dump_thaw,
        .bytes = dump_bytes,
        .arg = d,
    };
    int rc = dump_source_open(&config, &d->dumps);

    if (rc == 0 && d->node != NULL)
        dump_source_set_group(d->dumps, quorum_node_group(d->node));
    return rc == 0 ? 0 : err_set(err, rc, "out of memory");
}

/* Returns whether this member has no metadata. */
static bool is_witness(const struct exportd_daemon *d)
{
    return d->node != NULL && quorum_node_is_witness(d->node);
}

static void on_request(void *arg, struct rpc_call *call)
{
    struct exportd_daemon *d = arg;

    if (call->op == ROZO__OP__AD_META_INIT)
        init_begin(d, call);
    else if (call->op == ROZO__OP__AD_META_DUMP && is_witness(d))
        rpc_reply_status(call, ROZO__STATUS__NOT_SUPPORTED);
    else if (call->op == ROZO__OP__AD_META_DUMP)
        dump_source_handle(d->dumps, call);
    else if (d->node != NULL)
        quorum_node_handle(d->node, call);
    else if (d->init_runs || d->core == NULL)
        rpc_reply_status(call, ROZO__STATUS__NOT_LEADER);
    else
        exportd_handle(d->core, call);
}

static void on_conn_closed(void *arg, uint64_t conn_id)
{
    const struct exportd_daemon *d = arg;

    if (d->node != NULL)
        quorum_node_conn_closed(d->node, conn_id);
}

static int server_open(struct exportd_daemon *d, struct err *err)
{
    const struct exportd_section *section = &d->config->exportd;
    struct rpc_server_config config = {
        .keys = &d->keys,
        .name = "exportd",
        .conns_max = conns_that_fit(d),
        .handler = on_request,
        .conn_closed = on_conn_closed,
        .arg = d,
        .cluster_id = d->node != NULL ? quorum_node_cluster_id(d->node)
                                      : exportd_cluster_id(d->core),
    };

    return rpc_server_open(&d->env, &config, (const char *const *)section->listen,
                           section->listen_count, &d->server, err);
}

static int fds_share(struct exportd_daemon *d, struct err *err)
{
    enum { KV, CONNS, PEERS, N };
    struct fds_part parts[N] = {
        [KV] = FDS_KV_PART,
        [CONNS] = { .least = CONNS_MIN, .eighths = 4, .most = CONNS_MAX },
        [PEERS] = { .least = PEERS_MIN, .eighths = 3 },
    };
    unsigned fixed =
        d->config->quorum == NULL ? FDS_PROCESS : FDS_PROCESS + QUORUM_NODE_FDS;
    int rc = fds_claim("exportd", fixed, parts, N, err);

    if (rc != 0)
        return rc;
    d->kv_fds = parts[KV].share;
    d->conns_max = parts[CONNS].share;
    d->peers_max = parts[PEERS].share;
    return 0;
}

static struct exportd_config core_config(struct exportd_daemon *d)
{
    return (struct exportd_config){
        .peers = { peer_open, peer_close, peer_last_error, d },
        .capabilities = d->capabilities,
        .boot = boot_number(),
        .lease_ms = d->config->exportd.lease_s * 1000,
        .evict_ms = d->config->exportd.evict_s * 1000,
        .session_tokens_max = d->config->exportd.session_tokens_max,
        .tokens_max = d->config->exportd.tokens_max,
        .strays_s = d->config->exportd.strays_s,
    };
}

/* Opens the core, alone, and waits until it serves. */
static int core_open(struct exportd_daemon *d, struct err *err)
{
    struct exportd_config config = core_config(d);
    int rc = exportd_open(&d->env.env, kv_leveldb_kv(d->kv), &config, &d->core, err);

    while (rc == 0 && exportd_is_ready(d->core) == 0)
        uv_run(&d->loop, UV_RUN_ONCE);
    if (rc == 0 && exportd_is_ready(d->core) < 0)
        rc = err_set(err, exportd_is_ready(d->core), "write to the metadata store: %s",
                     error_text(exportd_is_ready(d->core)));
    return rc;
}

/* Opens the member of a quorum, and waits until it takes part. */
static int node_open(struct exportd_daemon *d, struct err *err)
{
    struct quorum_node_config config = {
        .env = &d->env,
        .below = kv_leveldb_kv(d->kv),
        .keys = &d->keys,
        .data = d->config->exportd.data,
        .section = d->config->quorum,
        .listen = (const char *const *)d->config->exportd.listen,
        .listen_count = d->config->exportd.listen_count,
        .core = core_config(d),
        .end_conns = on_end_conns,
        .arg = d,
    };
    struct quorum_node *node;
    int rc = raft_core_check_library(err);

    if (rc == 0)
        rc = quorum_node_open(&config, &node, err);
    if (rc == 0)
        d->node = node;
    return rc;
}

static int daemon_start(struct exportd_daemon *d, struct err *err)
{
    int rc = fds_share(d, err);

    if (rc == 0)
        rc = keys_load(d, err);
    if (rc == 0)
        rc = env_uv_init(&d->env, &d->loop);
    if (rc != 0)
        return rc;
    d->env_open = true;
    rc = store_open_in(d, err);
    if (rc == 0)
        rc = d->is_member ? node_open(d, err) : core_open(d, err);
    if (rc == 0) { /* a script that sees the port open may send SIGTERM at once */
        rc = stop_signals_start(&d->signals, &d->loop, on_stop_signal, d);
        d->signals_open = true;
    }
    if (rc == 0)
        rc = dumps_open(d, err);
    if (rc == 0)
        rc = server_open(d, err);
    return rc;
}

/* ---- becoming a member ---- */

/* Opens the member, or the core again if the data directory is not that of a member. */
static int member_or_core_open(struct exportd_daemon *d, int rc, struct err *err)
{
    struct err again = { 0 };

    if (rc == 0)
        return node_open(d, err);
    log_error("does not become a member of a quorum: %s; it goes on alone", err->text);
    rc = core_open(d, &again);
    if (rc != 0)
        log_error("cannot go on alone: %s", again.text);
    return rc;
}

/* Closes the core and makes the data directory that of a member. */
static int member_make(struct exportd_daemon *d, struct err *err)
{
    uint8_t cluster_id[RPC_CLUSTER_ID_BYTES];

    memcpy(cluster_id, exportd_cluster_id(d->core), sizeof(cluster_id));
    exportd_close(d->core);
    d->core = NULL;
    while (d->n_closing > 0)
        uv_run(&d->loop, UV_RUN_ONCE);
    return quorum_init_data(&d->init, kv_leveldb_kv(d->kv), cluster_id, err);
}

static void init_end(struct exportd_daemon *d, int rc, int goes_on, const struct err *err)
{
    quorum_init_answer(&d->init, rc != 0 ? rc : goes_on, err);
    d->init_runs = false;
    if (d->node != NULL) {
        quorum_node_tell(d->node);
        sd_tell_ready("member of a quorum");
    }
    if (goes_on != 0 && d->core == NULL) {
        log_error("ends: %s", err->text);
        on_stopped(d, goes_on);
    } else if (goes_on != 0 || d->stop_is_due) {
        core_stop(d);
    }
}

/* Turns this exportd, whose core has stopped, into the first member of a quorum. Clients
 * are answered NOT_LEADER meanwhile, and come back. */
static void become_member(struct exportd_daemon *d)
{
    struct err err = { 0 };
    int rc = d->init_rc;

    d->init_is_due = false;
    if (rc == 0) {
        rc = member_make(d, &err);
        init_end(d, rc, member_or_core_open(d, rc, &err), &err);
    } else { /* the core has stopped, and its store has failed */
        err_set(&err, rc, "write to the metadata store: %s", error_text(rc));
        quorum_init_answer(&d->init, rc, &err);
        d->init_runs = false;
        on_stopped(d, rc);
    }
}

static void daemon_serve(struct exportd_daemon *d)
{
    for (unsigned i = 0; i < d->config->exportd.listen_count; i++)
        log_info("listening on %s (port %u)", d->config->exportd.listen[i],
                 rpc_server_port(d->server, i));
    if (d->node != NULL)
        quorum_node_tell(d->node);
    else if (d->config->quorum != NULL)
        log_info("this exportd is alone; `rozo meta init` makes it the first member of a "
                 "quorum");
    sd_tell_ready(d->node == NULL ? "serving metadata" : "member of a quorum");
    while (d->state != STOPPED) {
        uv_run(&d->loop, UV_RUN_ONCE);
        if (d->init_is_due)
            become_member(d);
    }
}

/* Undoes daemon_start(), however far it came. */
static void daemon_end(struct exportd_daemon *d)
{
    if (d->core != NULL || d->node != NULL)
        core_stop(d); /* after a start that failed */
    while ((d->core != NULL || d->node != NULL) && d->state != STOPPED)
        uv_run(&d->loop, UV_RUN_ONCE);
    if (d->server != NULL)
        rpc_server_close(d->server, on_server_closed, d);
    while (d->server != NULL)
        uv_run(&d->loop, UV_RUN_ONCE);
    exportd_close(d->core);
    quorum_node_close(d->node);
    while (d->n_closing > 0)
        uv_run(&d->loop, UV_RUN_ONCE);
    dump_source_close(d->dumps);
    kv_leveldb_close(d->kv);
    if (d->signals_open)
        stop_signals_close(&d->signals);
    if (d->env_open)
        env_uv_close(&d->env);
    uv_run(&d->loop, UV_RUN_DEFAULT);
    uv_loop_close(&d->loop);
    if (d->lock_fd >= 0)
        close(d->lock_fd);
    capability_key_free(d->capabilities);
    exportd_settings_free(d->config);
}

static int run(const char *config_path)
{
    struct exportd_daemon *d = calloc(1, sizeof(*d));
    struct err err = { 0 };
    int rc;

    if (d == NULL)
        return 1;
    d->lock_fd = -1;
    d->init = (struct quorum_init){ .keys = &d->keys, .env = &d->env };
    rc = exportd_settings_load(config_path, &d->config, &err);
    if (rc == 0) {
        d->init.config = d->config;
        config_log_apply(&d->config->log);
        rc = uv_loop_init(&d->loop);
    }
    if (rc == 0) {
        rc = daemon_start(d, &err);
        if (rc == 0)
            daemon_serve(d);
        else if (rc == -ECANCELED)
            rc = 0; /* stopped while it waited to be added to a quorum */
        else
            log_error("cannot start: %s",
                      err.text[0] != '\0' ? err.text : error_text(rc));
        daemon_end(d);
        if (rc == 0)
            rc = d->rc;
        log_info(rc == 0 ? "stopped, everything is stored" : "ended with an error");
    } else {
        log_error("cannot start: %s", err.text[0] != '\0' ? err.text : error_text(rc));
        exportd_settings_free(d->config);
    }
    free(d);
    return rc == 0 ? 0 : 1;
}

/* ---- the command line ---- */

const char *argp_program_version = "exportd " ROZO_VERSION;

struct main_args {
    const char *config;
    /* One of these; NULL, false: not given. */
    const char *birth; /* --begin-quorum */
    const char *dump;  /* --load */
    bool alone;        /* --force-alone */
    bool yes;
};

/* Does what is done while exportd does not run. Returns the exit status. */
static int offline(const struct main_args *args)
{
    struct exportd_settings *config = NULL;
    struct err err = { 0 };
    int rc = exportd_settings_load(args->config, &config, &err);

    if (rc == 0) {
        config_log_apply(&config->log);
        rc = args->birth != NULL  ? quorum_begin(config, args->birth, &err)
             : args->dump != NULL ? meta_load(config, args->dump, &err)
                                  : quorum_alone(config, args->yes, &err);
    }
    if (rc != 0)
        log_error("%s: %s",
                  args->birth != NULL  ? "cannot begin"
                  : args->dump != NULL ? "cannot load"
                                       : "cannot go on alone",
                  err.text[0] != '\0' ? err.text : error_text(rc));
    exportd_settings_free(config);
    return rc == 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
    static const struct args_option options[] = {
        { "config", 'c', "FILE", "Read the configuration from FILE (YAML)",
          ARGS_NEEDED(struct main_args, config) },
        { "begin-quorum", 0, "NUMBER",
          "Make the data directory of a first member of a new quorum, and end. "
          "NUMBER: 32 random hexadecimal digits, the same on all first members",
          ARGS_TEXT(struct main_args, birth) },
        { "load", 0, "DUMP",
          "Make an empty data directory that of the metadata in DUMP, a file of `rozo "
          "meta dump`, and end. With a section `quorum`: of a quorum of this member "
          "alone",
          ARGS_TEXT(struct main_args, dump) },
        { "force-alone", 0, NULL,
          "Make this member a quorum of itself alone, and end: when so many members are "
          "gone for ever that none leads. Changes that were acknowledged may be missing",
          ARGS_FLAG(struct main_args, alone) },
        { "yes", 0, NULL, "With --force-alone: do not ask",
          ARGS_FLAG(struct main_args, yes) },
        { 0 },
    };
    static const struct args_syntax syntax = {
        .options = options,
        .doc = "The metadata daemon of a rozo cluster. Runs in the foreground until "
               "SIGTERM."
    };
    struct main_args args = { 0 };

    log_init("exportd");
    args_parse(&syntax, argc, argv, &args);
    if ((args.birth != NULL) + (args.dump != NULL) + args.alone > 1) {
        log_error("--begin-quorum, --load and --force-alone: give one of them");
        return 2;
    }
    return args.birth != NULL || args.dump != NULL || args.alone ? offline(&args)
                                                                 : run(args.config);
}
