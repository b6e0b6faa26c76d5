/*
 * main.c - storaged: command line, config, loops.
 *
 * In:     --config FILE; SIGTERM and SIGINT.
 * Out:    exit status 0 after a clean stop, 1 with a message on stderr if it cannot
 *         start, 2 for wrong usage.
 * Keeps:  all acknowledged writes are on stable storage after a clean stop.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/config/args.h"
#include "common/config/config.h"
#include "common/system/boot_id.h"
#include "common/system/fds.h"
#include "common/system/systemd.h"
#include "storaged/daemon/data_dir.h"
#include "storaged/daemon/storio.h"

enum {
    WORKERS_DEFAULT = 8,
    WORKERS_MAX = 128,
    FILES_MAX = 16384, /* projection files held open by all loops together */
    FILES_MIN = 64,    /* per loop */
    CONNS_MAX = 4096,  /* per loop */
    CONNS_MIN = 32,
    PEERS_MIN = 32, /* channels to other storages */
    FDS_LOOP = 64,  /* per loop: WAL segments, polled descriptors, directories */
    NAME_LEN_MAX = 255,
    SCRUB_RATE_MB_DEFAULT = 50,
    SCRUB_DAYS_DEFAULT = 30,
    SCRUB_DAYS_MAX = 3650,
};

/* ---- config ---- */

/* AUTO is cached, which measured best, since data just written is often read soon. */
enum device_io { DEVICE_IO_AUTO, DEVICE_IO_CACHED, DEVICE_IO_UNCACHED, DEVICE_IO_DIRECT };

static const cyaml_strval_t device_ios[] = {
    { "auto", DEVICE_IO_AUTO },
    { "cached", DEVICE_IO_CACHED },
    { "uncached", DEVICE_IO_UNCACHED },
    { "direct", DEVICE_IO_DIRECT },
};

struct storaged_cluster_section {
    char *node_key;
    char *client_key;
};
struct storaged_section {
    char *data;
    char **listen;
    unsigned listen_count;
    char *host;
    char *rack;
    unsigned workers;            /* 0: WORKERS_DEFAULT */
    uint64_t *reserve_mb;        /* NULL: 1 %, at most 64 */
    unsigned journal_mb;         /* 0: see journal_bytes() */
    unsigned heal_rate_mb;       /* MiB per second; 0: no limit */
    unsigned stream_mb, link_mb; /* MB per second, see StInfoResp; 0: not configured */
    /* MiB per second, 0: no limit; NULL: SCRUB_RATE_MB_DEFAULT. */
    unsigned *scrub_rate_mb;
    unsigned *scrub_days; /* 0: never; NULL: SCRUB_DAYS_DEFAULT */
    enum device_io device_io;
};
struct storaged_settings {
    struct storaged_cluster_section cluster;
    struct storaged_section storaged;
    struct config_log log;
};

static const cyaml_schema_value_t text_schema = {
    CYAML_VALUE_STRING(CYAML_FLAG_POINTER, char, 1, 4096),
};
static const cyaml_schema_field_t cluster_fields[] = {
    CYAML_FIELD_STRING_PTR("node_key", CYAML_FLAG_POINTER,
                           struct storaged_cluster_section, node_key, 1, 4096),
    CYAML_FIELD_STRING_PTR("client_key", CYAML_FLAG_POINTER,
                           struct storaged_cluster_section, client_key, 1, 4096),
    CYAML_FIELD_END
};
static const cyaml_schema_field_t storaged_fields[] = {
    CYAML_FIELD_STRING_PTR("data", CYAML_FLAG_POINTER, struct storaged_section, data, 1,
                           4096),
    CYAML_FIELD_SEQUENCE("listen", CYAML_FLAG_POINTER, struct storaged_section, listen,
                         &text_schema, 1, STORIOS_MAX),
    CYAML_FIELD_STRING_PTR("host", CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL,
                           struct storaged_section, host, 1, NAME_LEN_MAX),
    CYAML_FIELD_STRING_PTR("rack", CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL,
                           struct storaged_section, rack, 0, NAME_LEN_MAX),
    CYAML_FIELD_UINT("workers", CYAML_FLAG_OPTIONAL, struct storaged_section, workers),
    CYAML_FIELD_UINT_PTR("reserve_mb", CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL,
                         struct storaged_section, reserve_mb),
    CYAML_FIELD_UINT("journal_mb", CYAML_FLAG_OPTIONAL, struct storaged_section,
                     journal_mb),
    CYAML_FIELD_UINT("heal_rate_mb", CYAML_FLAG_OPTIONAL, struct storaged_section,
                     heal_rate_mb),
    CYAML_FIELD_UINT("stream_mb", CYAML_FLAG_OPTIONAL, struct storaged_section,
                     stream_mb),
    CYAML_FIELD_UINT("link_mb", CYAML_FLAG_OPTIONAL, struct storaged_section, link_mb),
    CYAML_FIELD_UINT_PTR("scrub_rate_mb", CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL,
                         struct storaged_section, scrub_rate_mb),
    CYAML_FIELD_UINT_PTR("scrub_days", CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL,
                         struct storaged_section, scrub_days),
    CYAML_FIELD_ENUM("device_io", CYAML_FLAG_OPTIONAL | CYAML_FLAG_STRICT,
                     struct storaged_section, device_io, device_ios,
                     sizeof(device_ios) / sizeof(device_ios[0])),
    CYAML_FIELD_END
};
static const cyaml_schema_field_t config_fields[] = {
    CYAML_FIELD_MAPPING("cluster", CYAML_FLAG_DEFAULT, struct storaged_settings, cluster,
                        cluster_fields),
    CYAML_FIELD_MAPPING("storaged", CYAML_FLAG_DEFAULT, struct storaged_settings,
                        storaged, storaged_fields),
    CYAML_FIELD_MAPPING("log", CYAML_FLAG_OPTIONAL, struct storaged_settings, log,
                        config_log_fields),
    CYAML_FIELD_END
};
static const cyaml_schema_value_t config_schema = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_POINTER, struct storaged_settings, config_fields),
};

static int config_check(const struct storaged_settings *c, const char *path,
                        struct err *err)
{
    if (c->storaged.workers > WORKERS_MAX)
        return err_set(err, -EINVAL, "%s: storaged: workers: at most %d", path,
                       WORKERS_MAX);
    if (c->storaged.reserve_mb != NULL && *c->storaged.reserve_mb > UINT64_MAX >> 21)
        return err_set(err, -EINVAL, "%s: storaged: reserve_mb: too large", path);
    if (c->storaged.scrub_days != NULL && *c->storaged.scrub_days > SCRUB_DAYS_MAX)
        return err_set(err, -EINVAL, "%s: storaged: scrub_days: at most %d", path,
                       SCRUB_DAYS_MAX);
    return 0;
}

/* ---- command line ---- */

const char *argp_program_version = "storaged " ROZO_VERSION;

struct arguments {
    const char *config;
};

/* ---- steps of the start ---- */

static int keys_load(struct storaged_daemon *d, const struct storaged_settings *c,
                     struct err *err)
{
    int rc = rpc_keys_load(&d->keys, true, c->cluster.node_key, err);

    return rc != 0 ? rc : rpc_keys_load(&d->keys, false, c->cluster.client_key, err);
}

static unsigned n_workers(const struct storaged_settings *c)
{
    return c->storaged.workers == 0 ? WORKERS_DEFAULT : c->storaged.workers;
}

/* Divides the file descriptors among their uses. The share of peers also serves
 * short-lived descriptors. */
static int fds_share(struct storaged_daemon *d, const struct storaged_settings *c,
                     struct err *err)
{
    enum { KV, FILES, CONNS, PEERS, N };
    unsigned n_loops = c->storaged.listen_count;
    unsigned per_file = c->storaged.device_io == DEVICE_IO_DIRECT ? 2 : 1;
    struct fds_part parts[N] = {
        [KV] = FDS_KV_PART,
        [FILES] = { .least = n_loops * FILES_MIN * per_file,
                    .eighths = 4,
                    .most = FILES_MAX * per_file },
        [CONNS] = { .least = n_loops * CONNS_MIN,
                    .eighths = 2,
                    .most = n_loops * CONNS_MAX },
        [PEERS] = { .least = PEERS_MIN, .eighths = 1 },
    };
    int rc = fds_claim("storaged", FDS_PROCESS + n_workers(c) + n_loops * FDS_LOOP, parts,
                       N, err);

    if (rc != 0)
        return rc;
    d->kv_fds = parts[KV].share;
    d->files_max = parts[FILES].share / per_file / n_loops;
    d->conns_max = parts[CONNS].share / n_loops;
    return 0;
}

/* Returns the configured size; else 256 MiB, but at most a sixteenth of a small file
 * system. */
static uint64_t journal_bytes(int dir_fd, unsigned journal_mb)
{
    uint64_t bytes = UINT64_C(256) << 20, share;
    struct statvfs st;

    if (journal_mb != 0)
        return (uint64_t)journal_mb << 20;
    if (fstatvfs(dir_fd, &st) != 0)
        return bytes;
    share = (uint64_t)st.f_blocks * st.f_frsize / 16;
    return share < bytes ? share : bytes;
}

/* Returns a number that identifies the disk until the machine is restarted, like its
 * device number. */
static uint64_t disk_id(int dir_fd)
{
    struct stat st;

    if (fstat(dir_fd, &st) != 0)
        return 0;
    return (boot_number() ^ (uint64_t)st.st_dev * UINT64_C(0x9e3779b97f4a7c15)) | 1;
}

static enum disk_io disk_io_of(enum device_io io)
{
    switch (io) {
    case DEVICE_IO_UNCACHED:
        return DISK_IO_UNCACHED;
    case DEVICE_IO_DIRECT:
        return DISK_IO_DIRECT;
    case DEVICE_IO_AUTO:
    case DEVICE_IO_CACHED:
        break;
    }
    return DISK_IO_CACHED;
}

/* Returns "host:port" with the port that the kernel chose for "host:0". Owned by the
 * caller. */
static const char *real_address(const char *configured, uint16_t port)
{
    const char *colon = strrchr(configured, ':');
    char *text = NULL;

    if (colon == NULL ||
        asprintf(&text, "%.*s:%u", (int)(colon - configured), configured, port) < 0)
        return NULL;
    return text;
}

static int loops_open(struct storaged_daemon *d, const struct storaged_settings *c,
                      struct err *err)
{
    for (unsigned i = 0; i < c->storaged.listen_count; i++) {
        int rc;

        d->n_storios = i + 1;
        rc = storio_open(&d->storios[i], d, i, c->storaged.listen[i], err);
        if (rc != 0)
            return rc;
        d->storios[i].disk.io = disk_io_of(c->storaged.device_io);
        d->addresses[i] =
            real_address(c->storaged.listen[i], rpc_server_port(d->storios[i].server, 0));
        if (d->addresses[i] == NULL)
            return err_set(err, -ENOMEM, "out of memory");
    }
    return 0;
}

static int loops_start(struct storaged_daemon *d, const struct storaged_settings *c,
                       struct err *err)
{
    static char host[NAME_LEN_MAX + 1];
    struct storage_config config = {
        .version = ROZO_VERSION,
        .host = c->storaged.host,
        .rack = c->storaged.rack == NULL ? "" : c->storaged.rack,
        .data_dir = c->storaged.data,
        .addresses = d->addresses,
        .n_addresses = d->n_storios,
        .reserve_bytes =
            c->storaged.reserve_mb == NULL ? UINT64_MAX : *c->storaged.reserve_mb << 20,
        .files_max = d->files_max,
        .journal_bytes = journal_bytes(d->dir_fd, c->storaged.journal_mb),
        .boot = boot_number(),
        .disk_id = disk_id(d->dir_fd),
        .stream_bytes = (uint64_t)c->storaged.stream_mb * 1000000,
        .link_bytes = (uint64_t)c->storaged.link_mb * 1000000,
    };

    if (config.host == NULL) {
        gethostname(host, sizeof(host) - 1);
        config.host = host;
    }
    for (unsigned i = 0; i < d->n_storios; i++) {
        int rc = storio_start(&d->storios[i], &config, err);

        if (rc != 0)
            return rc;
    }
    return 0;
}

static int healer_open_as_configured(struct storaged_daemon *d,
                                     const struct storaged_settings *c, struct err *err)
{
    const struct storaged_section *s = &c->storaged;
    struct healer_config config = {
        .boot = boot_number(),
        .power_was_lost = generations_lost_any(&d->generations),
        .rate_bytes = (uint64_t)s->heal_rate_mb << 20,
        .stream_bytes = (uint64_t)s->stream_mb * 1000000,
        .scrub_rate_bytes = s->scrub_rate_mb == NULL
                                ? (uint64_t)SCRUB_RATE_MB_DEFAULT << 20
                                : (uint64_t)*s->scrub_rate_mb << 20,
        .scrub_days = s->scrub_days == NULL ? SCRUB_DAYS_DEFAULT : *s->scrub_days,
    };

    return healio_open(&d->healio, d, s->data, &config, err);
}

static void run_healer(void *arg)
{
    healio_run(arg);
}

static void run_thread(void *arg)
{
    storio_run(arg);
}

static struct stop_signals signals;

/* Holds or releases stop signals: a client that sees us listening may send one before a
 * clean stop is possible. */
static void stop_signals_hold(bool hold)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    pthread_sigmask(hold ? SIG_BLOCK : SIG_UNBLOCK, &set, NULL);
}

static void on_stop(void *arg)
{
    sd_tell_stopping();
    daemon_stop(arg);
    stop_signals_close(&signals);
}

static void on_serving(void)
{
    sd_tell_ready("serving");
}

static int daemon_run(struct storaged_daemon *d, struct err *err)
{
    uint32_t id = identity_storage_id(&d->identity);
    unsigned n = 1;
    int rc = stop_signals_start(&signals, &d->storios[0].loop, on_stop, d);

    if (rc != 0) {
        stop_signals_close(&signals);
        return err_wrap(err, rc, "catch signals");
    }
    stop_signals_hold(false);
    sync_generation_start(&d->sync_generation, &d->storios[0].env, &d->generations,
                          d->dir_fd);
    for (; n < d->n_storios; n++) {
        rc = uv_thread_create(&d->storios[n].thread, run_thread, &d->storios[n]);
        if (rc != 0) {
            log_error("start a thread: %s", uv_strerror(rc));
            exit(1); /* other loops run already; nothing was acknowledged yet */
        }
    }
    rc = uv_thread_create(&d->healio.thread, run_healer, &d->healio);
    if (rc != 0) {
        log_error("start a thread: %s", uv_strerror(rc));
        exit(1);
    }
    for (unsigned i = 0; i < d->n_storios; i++)
        log_info("listening on %s", d->addresses[i]);
    if (id == 0)
        log_info("this storage is not admitted to a cluster yet");
    else
        log_info("serving as storage %u", (unsigned)id);
    storio_run(&d->storios[0]);
    for (unsigned i = 1; i < n; i++)
        uv_thread_join(&d->storios[i].thread);
    uv_thread_join(&d->healio.thread);
    /* Covers writes without a sync, too. */
    sync_generation_end(&d->generations, d->dir_fd);
    log_info("stopped");
    return 0;
}

static int daemon_start(struct storaged_daemon *d, const struct storaged_settings *c,
                        struct err *err)
{
    int rc = keys_load(d, c, err);

    if (rc != 0)
        return rc;
    d->dir_fd = data_dir_open(c->storaged.data, &d->identity, err);
    if (d->dir_fd < 0)
        return d->dir_fd;
    rc = sync_generation_load(&d->generations, d->dir_fd, boot_number(), err);
    stop_signals_hold(true);
    if (rc == 0)
        rc = loops_open(d, c, err);
    if (rc == 0)
        rc = healer_open_as_configured(d, c, err);
    if (rc == 0)
        rc = loops_start(d, c, err);
    return rc == 0 ? daemon_run(d, err) : rc;
}

/* Frees all, when nothing runs any more. NULL and a partly built daemon are fine. */
static void daemon_free(struct storaged_daemon *d)
{
    if (d == NULL)
        return;
    healio_free(&d->healio);
    for (unsigned i = 0; i < d->n_storios; i++) {
        storio_free(&d->storios[i]);
        free((char *)(uintptr_t)d->addresses[i]);
    }
    if (d->dir_fd >= 0)
        close(d->dir_fd);
    free(d);
}

static void workers_set(const struct storaged_settings *c)
{
    char workers[16];

    snprintf(workers, sizeof(workers), "%u", n_workers(c));
    setenv("UV_THREADPOOL_SIZE", workers, 1);
}

static int start_with_config(const char *path, struct err *err)
{
    struct storaged_settings *c = NULL;
    struct storaged_daemon *d = calloc(1, sizeof(*d));
    int rc;

    if (d == NULL)
        return -ENOMEM;
    d->dir_fd = -1;
    d->on_serving = on_serving;
    rc = config_load(path, &config_schema, (void **)&c, err);
    if (rc == 0)
        rc = config_check(c, path, err);
    if (rc == 0)
        rc = fds_share(d, c, err);
    if (rc == 0) {
        config_log_apply(&c->log);
        workers_set(c);
        rc = daemon_start(d, c, err);
    }
    daemon_free(d);
    config_free(&config_schema, c);
    return rc;
}

int main(int argc, char **argv)
{
    static const struct args_option options[] = {
        { "config", 'c', "FILE", "Configuration, in YAML",
          ARGS_NEEDED(struct arguments, config) },
        { 0 },
    };
    static const struct args_syntax syntax = {
        .options = options,
        .doc = "Storage daemon of the rozo file system.\v"
               "Stays in the foreground and logs to standard error. SIGTERM ends it "
               "cleanly."
    };
    struct arguments args = { 0 };
    struct err err = { 0 };
    int rc;

    log_init("storaged");
    args_parse(&syntax, argc, argv, &args);
    rc = start_with_config(args.config, &err);
    if (rc != 0) {
        fprintf(stderr, "storaged: %s\n",
                err.text[0] != '\0' ? err.text : error_text(rc));
        return 1;
    }
    return 0;
}
