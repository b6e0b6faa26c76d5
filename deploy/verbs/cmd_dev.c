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
    struct args_list names;
};

static void layout_arg(struct argp_state *state, char *text, void *to)
{
    struct dev_wish *wish = to;

    wish->layout = (unsigned)args_number(state, "--layout", text, 0, 2);
    wish->has_layout = true;
}

static void inline_arg(struct argp_state *state, char *text, void *to)
{
    struct dev_wish *wish = to;

    wish->inline_max = (unsigned)args_number(state, "--inline", text, 0, DEV_INLINE_MAX);
    wish->has_inline_max = true;
}

static void fold_arg(struct argp_state *state, char *text, void *to)
{
    struct dev_wish *wish = to;

    cli_names_arg(state, text, &wish->fold);
    wish->has_names = true;
}

static void metas_arg(struct argp_state *state, char *text, void *to)
{
    unsigned n = (unsigned)args_number(state, "--metas", text, 1, DEV_METAS_MAX);

    *(unsigned *)to = n;
}

/* Checks that the exportds make a quorum that is worth its size. Returns a text, or
 * NULL. */
static const char *metas_check(const struct dev_wish *wish)
{
    unsigned n = wish->n_metas;

    if (wish->has_witness && n != 2 && n != 4)
        return "--witness goes with --metas 2 or 4";
    if (!wish->has_witness && n > 0 && n % 2 == 0)
        return n == 2 ? "--metas is 1, 3 or 5, or 2 --witness: two alone survive no loss"
                      : "--metas is 1, 3 or 5: 4 survive no more losses than 3";
    return NULL;
}

static void codec_arg(struct argp_state *state, char *text, void *to)
{
    char known[256] = "";
    size_t len = 0;

    *(const char **)to = text;
    if (codec_kind_by_name(text) != 0)
        return;
    for (unsigned i = 0; codec_kind_at(i) != 0 && len < sizeof(known); i++)
        len += (size_t)snprintf(known + len, sizeof(known) - len, "%s%s",
                                i == 0 ? "" : ", ", codec_kind_name(codec_kind_at(i)));
    argp_error(state, "there is no codec '%s'; known: %s", text, known);
}

static void mount_arg(struct argp_state *state, char *text, void *to)
{
    struct dev_wish *wish = to;

    if (wish->n_mounts == DEV_MOUNTS_MAX)
        argp_error(state, "more than %d --mount", DEV_MOUNTS_MAX);
    wish->mounts[wish->n_mounts++] = text;
}

static void log_level_arg(struct argp_state *state, char *text, void *to)
{
    enum log_level level;

    if (log_level_parse(text, &level) != 0)
        argp_error(state, "--log-level is one of error, warn, info, debug, not '%s'",
                   text);
    *(const char **)to = text;
}

#define OPTION_DIR                                                            \
    {                                                                         \
        "dir", 'd', "DIR", "the folder of the cluster; all of it lies there", \
            ARGS_NEEDED(struct dev_args, dir)                                 \
    }
#define OPTION_JSON                                                       \
    {                                                                     \
        "json", 'j', NULL, "print JSON", ARGS_FLAG(struct dev_args, json) \
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
                     m != NULL                                 ? "mount"
                     : dev_plan_is_exportd(&dev->plan, member) ? "exportd"
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
    char exportds[DEV_EXPORTDS_TEXT];
    json_t *members = json_array();

    dev_plan_exportds(plan, exportds);
    for (unsigned i = 0; i < n_all; i++) {
        struct process p;

        dev_member_look(dev, i, &p);
        n_running += p.state == PROCESS_RUNNING;
        json_array_append_new(members, member_json(dev, i, &p));
    }
    return cli_print_json(
        cli,
        json_pack("{s:s, s:s, s:i, s:s, s:i, s:i, s:i, s:s, s:o, s:o, s:o, s:o}", "dir",
                  plan->dir, "state", state_of(n_running, n_all), "layout",
                  (int)plan->layout, "codec", plan->codec, "storages",
                  (int)plan->n_storages, "links", (int)plan->n_links, "metas",
                  (int)plan->n_metas, "export", "main", "exportd", json_string(exportds),
                  "node_key", json_sprintf("%s/etc/node.key", plan->dir), "client_key",
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
    static const struct args_option options[] = {
        OPTION_DIR,
        { "layout", 'l', "0|1|2",
          "0: any 2 of 3 projections, 1: 4 of 6, 2: 8 of 12 (default 0)",
          ARGS_CALL(struct dev_args, wish, layout_arg) },
        { "codec", 0, "NAME",
          "mojette (default), mojette-finite, rs, mojette-nonsystematic",
          ARGS_CALL(struct dev_args, wish.codec, codec_arg) },
        { "inline", 0, "BYTES",
          "exportd keeps files of up to so many bytes, 65536 at most (default 0: none)",
          ARGS_CALL(struct dev_args, wish, inline_arg) },
        { "names", 0, "posix|fold",
          "fold: exportd finds names in another case or normalisation (default posix)",
          ARGS_CALL(struct dev_args, wish, fold_arg) },
        { "storages", 0, "N",
          "how many (default 4, 8, 16 for layouts 0, 1, 2); more than there are lets it "
          "grow",
          ARGS_NUMBER(struct dev_args, wish.n_storages, 1, DEV_STORAGES_MAX) },
        { "links", 0, "L", "addresses each storage listens on (default 1)",
          ARGS_NUMBER(struct dev_args, wish.n_links, 1, DEV_LINKS_MAX) },
        { "metas", 0, "1|3|5",
          "exportds; 3 or 5 keep one log, and any majority of them serves (default 1)",
          ARGS_CALL(struct dev_args, wish.n_metas, metas_arg) },
        { "witness", 0, NULL,
          "with --metas 2 or 4: one more that votes and keeps the log, but no metadata",
          ARGS_FLAG(struct dev_args, wish.has_witness) },
        { "mount", 'm', "MNT", "mount it there; again for a further client",
          ARGS_CALL(struct dev_args, wish, mount_arg) },
        { "mount-options", 0, "OPTS", "further -o options of these mounts",
          ARGS_TEXT(struct dev_args, wish.mount_options) },
        { "log-level", 0, "LEVEL", "error, warn, info (default) or debug",
          ARGS_CALL(struct dev_args, wish.log_level, log_level_arg) },
        OPTION_JSON,
        { 0 },
    };
    static const struct args_syntax syntax = {
        .options = options,
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

    args_parse(&syntax, argc, argv, &args);
    if (metas_check(&args.wish) != NULL)
        return cli_fail(cli, "%s", metas_check(&args.wish));
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
    static const struct args_option options[] = { OPTION_DIR, { 0 } };
    static const struct args_syntax syntax = {
        .options = options,
        .doc = "Unmount and stop a private cluster. All its data stays; `rozo dev up` "
               "finds it again. A mount may take as long as its io_timeout says to write "
               "out "
               "what it has; ^C makes it short."
    };
    struct dev_args args = { 0 };
    struct err err = { 0 };
    struct dev *dev;
    int rc;

    args_parse(&syntax, argc, argv, &args);
    if (dev_open(args.dir, true, &dev, &err) != 0)
        return cli_fail(cli, "%s", err.text);
    rc = dev_down(dev, &err);
    dev_close(dev);
    return rc != 0 ? cli_fail(cli, "%s", err.text) : CLI_DONE;
}

int cmd_dev_status(struct cli *cli, int argc, char **argv)
{
    static const struct args_option options[] = { OPTION_DIR, OPTION_JSON, { 0 } };
    static const struct args_syntax syntax = {
        .options = options,
        .doc = "Show the processes of a private cluster: name, pid, state (running, "
               "stopped by "
               "a signal, crashed, down), addresses or mount point."
    };
    struct dev_args args = { 0 };
    struct err err = { 0 };
    struct dev *dev;
    int rc;

    args_parse(&syntax, argc, argv, &args);
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
    static const struct args_option options[] = {
        OPTION_DIR,
        { "kill", 0, NULL, "by SIGKILL, as a crash would",
          ARGS_FLAG(struct dev_args, kill) },
        { NULL, 0, "NAME...", "such as storaged-2; `rozo dev status` lists them",
          ARGS_LIST(struct dev_args, names) },
        { 0 },
    };
    static const struct args_syntax syntax = {
        .options = options,
        .doc = "Stop processes of a private cluster and start them again: exportd, "
               "storaged-1, mount-1 and so on. One that is down is started."
    };
    struct dev_args args = { 0 };
    struct err err = { 0 };
    struct dev *dev;
    int rc = 0;

    args_parse(&syntax, argc, argv, &args);
    if (dev_open(args.dir, true, &dev, &err) != 0)
        return cli_fail(cli, "%s", err.text);
    for (unsigned i = 0; i < args.names.n && rc == 0; i++)
        rc = dev_restart(dev, args.names.all[i], args.kill, &err);
    dev_close(dev);
    return rc != 0 ? cli_fail(cli, "%s", err.text) : CLI_DONE;
}
