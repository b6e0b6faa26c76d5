/*
 * cmd_dev.c - the verbs of `rozo dev`: arguments in, text or JSON out; dev.c does the
 * work.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "codec/codec.h"
#include "common/base/log.h"
#include "deploy/cli/text_table.h"
#include "deploy/dev/dev.h"
#include "deploy/verbs/verbs.h"

struct dev_args {
    const char *dir;
    struct dev_wish wish;
    bool json;
    bool kill;
    const char *names[DEV_MEMBERS_MAX];
    unsigned n_names;
};

enum {
    OPT_CODEC = 256,
    OPT_INLINE,
    OPT_STORAGES,
    OPT_LINKS,
    OPT_MOUNT_OPTIONS,
    OPT_LOG_LEVEL,
    OPT_KILL
};

static void codec_arg(struct argp_state *state, struct dev_wish *wish, const char *arg)
{
    char known[256] = "";
    size_t len = 0;

    wish->codec = arg;
    if (codec_kind_by_name(arg) != 0)
        return;
    for (unsigned i = 0; codec_kind_at(i) != 0 && len < sizeof(known); i++)
        len += (size_t)snprintf(known + len, sizeof(known) - len, "%s%s",
                                i == 0 ? "" : ", ", codec_kind_name(codec_kind_at(i)));
    argp_error(state, "there is no codec '%s'; known: %s", arg, known);
}

/* Parses --dir and --json, which every verb has, and names where a verb takes them. */
static error_t parse_common(int key, char *arg, struct argp_state *state)
{
    struct dev_args *args = state->input;

    switch (key) {
    case 'd':
        args->dir = arg;
        return 0;
    case 'j':
        args->json = true;
        return 0;
    case OPT_KILL:
        args->kill = true;
        return 0;
    case ARGP_KEY_END:
        if (args->dir == NULL || args->dir[0] == '\0')
            argp_error(state, "--dir is missing: the folder of the cluster");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_up(int key, char *arg, struct argp_state *state)
{
    struct dev_args *args = state->input;
    struct dev_wish *wish = &args->wish;
    enum log_level level;

    switch (key) {
    case 'l':
        wish->layout = (unsigned)cli_number_arg(state, "--layout", arg, 0, 2);
        wish->has_layout = true;
        return 0;
    case OPT_CODEC:
        codec_arg(state, wish, arg);
        return 0;
    case OPT_INLINE:
        wish->inline_max =
            (unsigned)cli_number_arg(state, "--inline", arg, 0, DEV_INLINE_MAX);
        wish->has_inline_max = true;
        return 0;
    case OPT_STORAGES:
        wish->n_storages =
            (unsigned)cli_number_arg(state, "--storages", arg, 1, DEV_STORAGES_MAX);
        return 0;
    case OPT_LINKS:
        wish->n_links = (unsigned)cli_number_arg(state, "--links", arg, 1, DEV_LINKS_MAX);
        return 0;
    case 'm':
        if (wish->n_mounts == DEV_MOUNTS_MAX)
            argp_error(state, "more than %d --mount", DEV_MOUNTS_MAX);
        wish->mounts[wish->n_mounts++] = arg;
        return 0;
    case OPT_MOUNT_OPTIONS:
        wish->mount_options = arg;
        return 0;
    case OPT_LOG_LEVEL:
        if (log_level_parse(arg, &level) != 0)
            argp_error(state, "--log-level is one of error, warn, info, debug, not '%s'",
                       arg);
        wish->log_level = arg;
        return 0;
    default:
        return parse_common(key, arg, state);
    }
}

static error_t parse_names(int key, char *arg, struct argp_state *state)
{
    struct dev_args *args = state->input;

    switch (key) {
    case ARGP_KEY_ARG:
        if (args->n_names == DEV_MEMBERS_MAX)
            argp_error(state, "too many names");
        args->names[args->n_names++] = arg;
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "which one? Such as storaged-2; `rozo dev status` lists them");
        return 0;
    default:
        return parse_common(key, arg, state);
    }
}

#define OPTION_DIR                                                                 \
    {                                                                              \
        "dir", 'd', "DIR", 0, "the folder of the cluster; all of it lies there", 0 \
    }
#define OPTION_JSON                           \
    {                                         \
        "json", 'j', NULL, 0, "print JSON", 0 \
    }

static const char *state_of(unsigned n_running, unsigned n_all)
{
    return n_running == 0 ? "down" : n_running == n_all ? "up" : "partly up";
}

static json_t *member_json(const struct dev *dev, unsigned member,
                           const struct process *p)
{
    const struct dev_mount *m = dev_plan_mount(&dev->plan, member);
    json_t *addresses = json_array(), *json;
    char name[DEV_NAME_MAX];
    unsigned n_ports;
    const uint16_t *ports = dev_plan_ports(&dev->plan, member, &n_ports);

    dev_plan_name(&dev->plan, member, name);
    for (unsigned i = 0; i < n_ports; i++)
        json_array_append_new(addresses, json_sprintf("127.0.0.1:%u", ports[i]));
    json = json_pack("{s:s, s:s, s:s, s:o}", "name", name, "kind",
                     m != NULL     ? "mount"
                     : member == 0 ? "exportd"
                                   : "storaged",
                     "state", process_state_name(p->state), "addresses", addresses);
    json_object_set_new(json, "pid",
                        p->state == PROCESS_RUNNING || p->state == PROCESS_STOPPED
                            ? json_integer(p->pid)
                            : json_null());
    if (m != NULL)
        json_object_set_new(json, "mount", json_string(m->path));
    json_object_set_new(json, "log", json_sprintf("%s/log/%s.log", dev->plan.dir, name));
    return json;
}

static int status_print_json(const struct cli *cli, const struct dev *dev)
{
    const struct dev_plan *plan = &dev->plan;
    unsigned n_all = dev_plan_members(plan), n_running = 0;
    json_t *members = json_array();

    for (unsigned i = 0; i < n_all; i++) {
        struct process p;

        dev_member_look(dev, i, &p);
        n_running += p.state == PROCESS_RUNNING;
        json_array_append_new(members, member_json(dev, i, &p));
    }
    return cli_print_json(
        cli,
        json_pack("{s:s, s:s, s:i, s:s, s:i, s:i, s:s, s:o, s:o, s:o, s:o}", "dir",
                  plan->dir, "state", state_of(n_running, n_all), "layout",
                  (int)plan->layout, "codec", plan->codec, "storages",
                  (int)plan->n_storages, "links", (int)plan->n_links, "export", "main",
                  "exportd", json_sprintf("127.0.0.1:%u", plan->exportd_port), "node_key",
                  json_sprintf("%s/etc/node.key", plan->dir), "client_key",
                  json_sprintf("%s/etc/client.key", plan->dir), "members", members));
}

static void status_print(const struct dev *dev)
{
    static const char *const heads[] = { "NAME", ">PID", "STATE", "ADDRESSES" };
    const struct dev_plan *plan = &dev->plan;
    unsigned n_all = dev_plan_members(plan), n_running = 0;
    struct text_table t;

    text_table_init(&t, heads, 4);
    for (unsigned i = 0; i < n_all; i++) {
        const struct dev_mount *m = dev_plan_mount(plan, i);
        unsigned n_ports;
        const uint16_t *ports = dev_plan_ports(plan, i, &n_ports);
        char name[DEV_NAME_MAX], text[512] = "", pid[16] = "-";
        size_t len = 0;
        struct process p;

        dev_plan_name(plan, i, name);
        dev_member_look(dev, i, &p);
        n_running += p.state == PROCESS_RUNNING;
        if (p.state == PROCESS_RUNNING || p.state == PROCESS_STOPPED)
            snprintf(pid, sizeof(pid), "%d", (int)p.pid);
        for (unsigned l = 0; l < n_ports; l++)
            len += (size_t)snprintf(text + len, sizeof(text) - len, "%s127.0.0.1:%u",
                                    l == 0 ? "" : ", ", ports[l]);
        text_table_cell(&t, "%s", name);
        text_table_cell(&t, "%s", pid);
        text_table_cell(&t, "%s", process_state_name(p.state));
        text_table_cell(&t, "%s", m != NULL ? m->path : text);
    }
    printf("%s: %s; layout %u, codec %s, %u storages\n\n", plan->dir,
           state_of(n_running, n_all), plan->layout, plan->codec, plan->n_storages);
    text_table_print(&t, stdout);
    text_table_free(&t);
}

int cmd_dev_up(struct cli *cli, int argc, char **argv)
{
    static const struct argp_option options[] = {
        OPTION_DIR,
        { "layout", 'l', "0|1|2", 0,
          "0: any 2 of 3 projections, 1: 4 of 6, 2: 8 of 12 (default 0)", 0 },
        { "codec", OPT_CODEC, "NAME", 0,
          "mojette (default), mojette-finite, rs, mojette-nonsystematic", 0 },
        { "inline", OPT_INLINE, "BYTES", 0,
          "exportd keeps files of up to so many bytes, 65536 at most (default 0: none)",
          0 },
        { "storages", OPT_STORAGES, "N", 0,
          "how many (default 4, 8, 16 for layouts 0, 1, 2); more than there are lets it "
          "grow",
          0 },
        { "links", OPT_LINKS, "L", 0, "addresses each storage listens on (default 1)",
          0 },
        { "mount", 'm', "MNT", 0, "mount it there; again for a further client", 0 },
        { "mount-options", OPT_MOUNT_OPTIONS, "OPTS", 0,
          "further -o options of these mounts", 0 },
        { "log-level", OPT_LOG_LEVEL, "LEVEL", 0, "error, warn, info (default) or debug",
          0 },
        OPTION_JSON,
        { 0 },
    };
    static const struct argp argp = {
        .options = options,
        .parser = parse_up,
        .doc =
            "Start a private cluster on this machine: exportd and storages as processes "
            "of "
            "their own on loopback, on ports it picks, all their files in DIR; make the "
            "export `main` and mount it.\vRunning members stay; one stopped by a "
            "signal continues; one that crashed is started again. Without --mount the "
            "last mounts are mounted again."
    };
    struct dev_args args = { 0 };
    struct err err = { 0 };
    struct dev *dev;
    int rc;

    cli_parse(&argp, argc, argv, &args);
    rc = dev_open_or_make(args.dir, &args.wish, &dev, &err);
    if (rc != 0)
        return cli_fail(cli, "%s", err.text);
    rc = dev_up(dev, &args.wish, &err);
    if (rc != 0) {
        dev_close(dev);
        return cli_fail(cli, "%s", err.text);
    }
    if (args.json) {
        rc = status_print_json(cli, dev);
    } else {
        printf(dev->n_started != 0     ? "Started. "
               : dev->n_continued != 0 ? "Continued. "
                                       : "Running already. ");
        status_print(dev);
        printf("\nLook at it:  rozo status --config %s/etc/rozo.yaml\n"
               "Stop it:     rozo dev down --dir %s\n",
               dev->plan.dir, dev->plan.dir);
        rc = cli_finish(cli);
    }
    dev_close(dev);
    return rc;
}

int cmd_dev_down(struct cli *cli, int argc, char **argv)
{
    static const struct argp_option options[] = { OPTION_DIR, { 0 } };
    static const struct argp argp = {
        .options = options,
        .parser = parse_common,
        .doc = "Unmount and stop a private cluster. All its data stays; `rozo dev up` "
               "finds it again. A mount may take as long as its io_timeout says to write "
               "out "
               "what it has; ^C makes it short."
    };
    struct dev_args args = { 0 };
    struct err err = { 0 };
    struct dev *dev;
    int rc;

    cli_parse(&argp, argc, argv, &args);
    if (dev_open(args.dir, true, &dev, &err) != 0)
        return cli_fail(cli, "%s", err.text);
    rc = dev_down(dev, &err);
    dev_close(dev);
    return rc != 0 ? cli_fail(cli, "%s", err.text) : CLI_DONE;
}

int cmd_dev_status(struct cli *cli, int argc, char **argv)
{
    static const struct argp_option options[] = { OPTION_DIR, OPTION_JSON, { 0 } };
    static const struct argp argp = {
        .options = options,
        .parser = parse_common,
        .doc = "Show the processes of a private cluster: name, pid, state (running, "
               "stopped by "
               "a signal, crashed, down), addresses or mount point."
    };
    struct dev_args args = { 0 };
    struct err err = { 0 };
    struct dev *dev;
    int rc;

    cli_parse(&argp, argc, argv, &args);
    if (dev_open(args.dir, false, &dev, &err) != 0)
        return cli_fail(cli, "%s", err.text);
    if (args.json) {
        rc = status_print_json(cli, dev);
    } else {
        status_print(dev);
        rc = cli_finish(cli);
    }
    dev_close(dev);
    return rc;
}

int cmd_dev_restart(struct cli *cli, int argc, char **argv)
{
    static const struct argp_option options[] = {
        OPTION_DIR,
        { "kill", OPT_KILL, NULL, 0, "by SIGKILL, as a crash would", 0 },
        { 0 },
    };
    static const struct argp argp = {
        .options = options,
        .parser = parse_names,
        .args_doc = "NAME...",
        .doc = "Stop processes of a private cluster and start them again: exportd, "
               "storaged-1, mount-1 and so on. One that is down is started."
    };
    struct dev_args args = { 0 };
    struct err err = { 0 };
    struct dev *dev;
    int rc = 0;

    cli_parse(&argp, argc, argv, &args);
    if (dev_open(args.dir, true, &dev, &err) != 0)
        return cli_fail(cli, "%s", err.text);
    for (unsigned i = 0; i < args.n_names && rc == 0; i++)
        rc = dev_restart(dev, args.names[i], args.kill, &err);
    dev_close(dev);
    return rc != 0 ? cli_fail(cli, "%s", err.text) : CLI_DONE;
}
