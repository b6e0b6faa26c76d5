/*
 * cmd_heal.c - `rozo rebuild`, `rozo scrub`: show how storages heal, and start, stop or
 * limit it.
 *
 * In:     the status of the cluster, for the addresses of storages; ST_HEALTH of each.
 * Out:    tables or JSON; ST_HEAL.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "deploy/cli/interrupt.h"
#include "deploy/cli/text_table.h"
#include "deploy/client/exportd_client.h"
#include "deploy/client/health.h"
#include "deploy/verbs/verbs.h"

enum { WATCH_MS = 1000, WATCH_QUIET = 3, HEAL_DEADLINE_MS = 5000, RATE_MAX_MB = 1 << 20 };

struct heal_args {
    struct target_options conn;
    bool json, watch;
    unsigned storage;  /* 0: all */
    unsigned rate_mib; /* 0: no limit */
};

/* State between two requests. */
struct heal {
    struct exportd_client asked;
    struct storage_clients *fleet;
    Rozo__StHealReq order;
};

static void rate_arg(struct argp_state *state, char *text, void *to)
{
    unsigned *rate_mib = to;

    *rate_mib = strcmp(text, "off") == 0
                    ? 0
                    : (unsigned)args_number(state, "MIB (or off)", text, 1, RATE_MAX_MB);
}

#define OPTION_STORAGE                                            \
    {                                                             \
        "storage", 0, "ID", "only this storage (default: all)",   \
            ARGS_NUMBER(struct heal_args, storage, 1, UINT32_MAX) \
    }

static void heal_close(struct heal *h)
{
    storage_clients_close(h->fleet);
    exportd_client_close(&h->asked);
}

/* Opens channels to the storages. */
static int heal_open(struct heal_args *args, struct heal *h, struct err *err)
{
    int rc;

    memset(h, 0, sizeof(*h));
    rc = exportd_client_status(&args->conn, &h->asked, err);
    if (rc == 0)
        rc = storage_clients_open(h->asked.status, args->conn.key, &h->fleet, err);
    if (rc == 0 && args->storage != 0 &&
        storage_clients_find(h->fleet, args->storage) == NULL)
        rc = err_set(err, -ENOENT, "there is no storage %u", args->storage);
    if (rc != 0)
        heal_close(h);
    return rc;
}

static bool is_meant(const struct heal_args *args, const struct storage_clients_member *m)
{
    return args->storage == 0 || args->storage == m->st->id;
}

/* ---- verbs that show ---- */

static void left_text(const struct health_work *w, char *out, size_t size)
{
    int64_t left_s = health_left_s(w);

    if (left_s < 0)
        snprintf(out, size, "-");
    else
        cli_duration_text((uint64_t)left_s, out, size);
}

/* Writes "5/12", or "5" if 12 is unknown. */
static void share_text(char *out, size_t size, const char *done, const char *all)
{
    if (all == NULL)
        snprintf(out, size, "%s", done);
    else
        snprintf(out, size, "%s/%s", done, all);
}

static void work_cells(struct text_table *t, const struct health_work *w)
{
    char text[64], a[HUMAN_BYTES_TEXT + 8], b[HUMAN_BYTES_TEXT + 8];

    health_work_text(w, isatty(STDOUT_FILENO), text, sizeof(text));
    text_table_cell(t, "%s", text);
    snprintf(a, sizeof(a), "%llu", (unsigned long long)w->files_done);
    snprintf(b, sizeof(b), "%llu", (unsigned long long)w->files);
    share_text(text, sizeof(text), a, w->files == 0 ? NULL : b);
    text_table_cell(t, "%s", text);
    human_bytes(a, w->bytes_done);
    human_bytes(b, w->bytes);
    share_text(text, sizeof(text), a, w->bytes == 0 ? NULL : b);
    text_table_cell(t, "%s", text);
}

static void empty_cells(struct text_table *t, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        text_table_cell(t, "-");
}

static void rebuild_row(struct text_table *t, const struct storage_clients_member *m)
{
    const Rozo__StHealthResp *h = (const Rozo__StHealthResp *)m->answer;
    char left[32], rate[HUMAN_BYTES_TEXT];
    struct health_work w;

    text_table_cell(t, "%u", m->st->id);
    if (h == NULL) {
        text_table_cell(t, "%s", m->st->up ? "?" : "DOWN");
        empty_cells(t, 4);
    } else {
        w = health_rebuild(h);
        work_cells(t, &w);
        left_text(&w, left, sizeof(left));
        text_table_cell(t, "%s/s", human_bytes(rate, health_rate(&w)));
        text_table_cell(t, "%s", left);
    }
    text_table_cell(t, "%.24s", m->st->host[0] == '\0' ? "-" : m->st->host);
}

static void scrub_row(struct text_table *t, const struct storage_clients_member *m)
{
    const Rozo__StHealthResp *h = (const Rozo__StHealthResp *)m->answer;
    char left[32];
    struct health_work w;

    text_table_cell(t, "%u", m->st->id);
    if (h == NULL) {
        text_table_cell(t, "%s", m->st->up ? "?" : "DOWN");
        empty_cells(t, 5);
    } else {
        w = health_scrub(h);
        work_cells(t, &w);
        text_table_cell(t, "%llu", (unsigned long long)h->scrub_found);
        text_table_cell(t, "%llu", (unsigned long long)h->scrub_healed);
        left_text(&w, left, sizeof(left));
        text_table_cell(t, "%s", left);
    }
    text_table_cell(t, "%.24s", m->st->host[0] == '\0' ? "-" : m->st->host);
}

/* Prints further notes about a storage, a line each. */
static void notes_print(const struct storage_clients_member *m, bool scrub)
{
    const Rozo__StHealthResp *h = (const Rozo__StHealthResp *)m->answer;
    char text[400], rate[HUMAN_BYTES_TEXT];

    if (h == NULL) {
        printf("storage %u: %.*s\n", m->st->id, 300,
               m->st->up                 ? m->ask.message
               : m->st->error[0] != '\0' ? m->st->error
                                         : "it is down");
        return;
    }
    if (scrub) {
        for (size_t i = 0; i < h->n_scrub_findings; i++)
            printf("storage %u: %.400s\n", m->st->id, h->scrub_findings[i]);
    } else if (health_line(h, text, sizeof(text))) {
        printf("storage %u: %s\n", m->st->id, text);
    }
    if (h->rate_bytes > 0)
        printf("storage %u: healing is limited to %s a second\n", m->st->id,
               human_bytes(rate, h->rate_bytes));
}

static void work_print(const struct heal_args *args, const struct heal *h, bool scrub)
{
    static const char *const rebuild_heads[] = { ">ID",   "REBUILD", ">FILES", ">BYTES",
                                                 ">RATE", ">LEFT",   "HOST" };
    static const char *const scrub_heads[] = { ">ID",    "SCRUB",   ">FILES", ">BYTES",
                                               ">FOUND", ">HEALED", ">LEFT",  "HOST" };
    struct text_table t;

    text_table_init(&t, scrub ? scrub_heads : rebuild_heads, scrub ? 8 : 7);
    for (size_t i = 0; i < h->fleet->n; i++) {
        if (!is_meant(args, &h->fleet->members[i]))
            continue;
        if (scrub)
            scrub_row(&t, &h->fleet->members[i]);
        else
            rebuild_row(&t, &h->fleet->members[i]);
    }
    text_table_print(&t, stdout);
    text_table_free(&t);
    for (size_t i = 0; i < h->fleet->n; i++) {
        if (is_meant(args, &h->fleet->members[i]))
            notes_print(&h->fleet->members[i], scrub);
    }
}

static json_t *work_json(const struct heal_args *args, const struct heal *h)
{
    json_t *all = json_array();

    for (size_t i = 0; i < h->fleet->n; i++) {
        const struct storage_clients_member *m = &h->fleet->members[i];

        if (!is_meant(args, m))
            continue;
        json_array_append_new(
            all,
            json_pack("{s:I, s:o, s:b, s:o, s:o}", "id", (json_int_t)m->st->id, "host",
                      cli_json_text(m->st->host), "up", (int)m->st->up, "error",
                      cli_json_text(m->answer != NULL ? ""
                                    : m->st->up       ? m->ask.message
                                                      : m->st->error),
                      "health",
                      m->answer == NULL
                          ? json_null()
                          : health_json((const Rozo__StHealthResp *)m->answer)));
    }
    return json_pack("{s:o}", "storages", all);
}

/* Sets whether any storage still runs or has tasks waiting, and whether any did not
 * answer. */
static void work_look(const struct heal_args *args, const struct heal *h, bool scrub,
                      bool *running, bool *unanswered)
{
    *running = *unanswered = false;
    for (size_t i = 0; i < h->fleet->n; i++) {
        const struct storage_clients_member *m = &h->fleet->members[i];
        const Rozo__StHealthResp *health = (const Rozo__StHealthResp *)m->answer;

        if (!is_meant(args, m))
            continue;
        if (health == NULL)
            *unanswered = true;
        else if (scrub)
            *running = *running || health_scrub(health).running;
        else
            *running = *running || health_rebuild(health).running || health->queued > 0;
    }
}

/* Asks once and shows the answers. */
static int work_show_once(struct cli *cli, const struct heal_args *args, struct heal *h,
                          bool scrub)
{
    /* Every picture on an empty screen. */
    if (args->watch && isatty(STDOUT_FILENO) && !args->json)
        fputs("\033[H\033[J", stdout);
    if (args->json)
        return cli_print_json(cli, work_json(args, h));
    work_print(args, h, scrub);
    return cli_finish(cli);
}

/* Refreshes the status, since a storage may have come up or moved. If exportd does not
 * answer, the old status stays. */
static void heal_refresh(struct heal_args *args, struct heal *h)
{
    struct heal fresh;
    struct err err = { 0 };

    if (heal_open(args, &fresh, &err) != 0)
        return;
    heal_close(h);
    *h = fresh;
}

/* Shows once, or with --watch repeatedly until nothing runs. A rebuild does not show at
 * once after its start, so it waits for several quiet answers. */
static int work_show(struct cli *cli, struct heal_args *args, struct heal *h, bool scrub)
{
    bool running, unanswered = false;
    unsigned n_quiet = 0;
    int rc = CLI_DONE;

    while (rc == CLI_DONE && n_quiet < WATCH_QUIET) {
        if (health_ask(h->fleet, args->storage, &h->asked.progress) == -EINTR)
            break;
        progress_end(&h->asked.progress);
        work_look(args, h, scrub, &running, &unanswered);
        rc = work_show_once(cli, args, h, scrub);
        n_quiet = running ? 0 : n_quiet + 1;
        if (!args->watch)
            break;
        if (n_quiet < WATCH_QUIET) {
            interrupt_pause_ms(WATCH_MS);
            heal_refresh(args, h);
        }
    }
    return rc != CLI_DONE ? rc : unanswered ? CLI_FAILED : CLI_DONE;
}

static int look(struct cli *cli, int argc, char **argv, const char *doc, bool scrub)
{
    static const struct args_option options[] = {
        OPTION_STORAGE,
        { "watch", 0, NULL, "again each second, until nothing runs any more (^C ends it)",
          ARGS_FLAG(struct heal_args, watch) },
        { "json", 'j', NULL, "print JSON", ARGS_FLAG(struct heal_args, json) },
        { 0 },
    };
    const struct args_syntax syntax = { .options = options,
                                        .doc = doc,
                                        .children = target_children };
    struct heal_args args = { 0 };
    struct heal h;
    struct err err = { 0 };
    int rc;

    args_parse(&syntax, argc, argv, &args);
    if (heal_open(&args, &h, &err) != 0)
        return cli_fail(cli, "%s", err.text);
    if (args.watch)
        interrupt_catch();
    rc = work_show(cli, &args, &h, scrub);
    heal_close(&h);
    return rc;
}

int cmd_rebuild_status(struct cli *cli, int argc, char **argv)
{
    return look(
        cli, argc, argv,
        "Show for each storage how far the rebuild of its projections is, and what "
        "else it has to heal. A rebuild goes through the files until a pass finds "
        "nothing to do, so its figures may begin again. Exit status 1 when a storage "
        "does not answer.",
        false);
}

int cmd_scrub_status(struct cli *cli, int argc, char **argv)
{
    return look(
        cli, argc, argv,
        "Show for each storage how far its scrub is, or how the last one ended, and "
        "what was found. Exit status 1 when a storage does not answer.",
        true);
}

/* ---- verbs that change ---- */

/* Sends the same request to all storages that are meant. */
static int order_give(struct cli *cli, const struct heal_args *args, struct heal *h,
                      const char *done)
{
    Rozo__StHealReq *orders = calloc(h->fleet->n + 1, sizeof(*orders));
    unsigned n_done = 0, n_meant = 0;

    if (orders == NULL)
        return cli_fail(cli, "out of memory");
    for (size_t i = 0; i < h->fleet->n; i++) {
        struct storage_clients_member *m = &h->fleet->members[i];

        orders[i] = h->order;
        orders[i].to_storage = m->st->id;
        m->question = is_meant(args, m) ? &orders[i].base : NULL;
    }
    storage_clients_ask(h->fleet, ROZO__OP__ST_HEAL, NULL, HEAL_DEADLINE_MS,
                        &h->asked.progress);
    progress_end(&h->asked.progress);
    for (size_t i = 0; i < h->fleet->n; i++) {
        struct storage_clients_member *m = &h->fleet->members[i];

        if (!m->asked)
            continue;
        n_meant++;
        n_done += m->ask.message[0] == '\0';
        if (m->ask.message[0] != '\0')
            cli_fail(cli, "storage %u: %s", m->st->id, m->ask.message);
        m->question = NULL;
    }
    free(orders);
    if (n_done > 0)
        printf("%u of %u storages: %s\n", n_done, n_meant, done);
    return n_done < n_meant ? CLI_FAILED : cli_finish(cli);
}

static int order(struct cli *cli, struct heal_args *args, const Rozo__StHealReq *what,
                 const char *done)
{
    struct heal h;
    struct err err = { 0 };
    int rc;

    if (heal_open(args, &h, &err) != 0)
        return cli_fail(cli, "%s", err.text);
    h.order = *what;
    rc = order_give(cli, args, &h, done);
    heal_close(&h);
    return rc;
}

static int order_scrub(struct cli *cli, int argc, char **argv, const char *doc,
                       uint32_t scrub, const char *done)
{
    static const struct args_option options[] = { OPTION_STORAGE, { 0 } };
    const struct args_syntax syntax = { .options = options,
                                        .doc = doc,
                                        .children = target_children };
    Rozo__StHealReq what = ROZO__ST_HEAL_REQ__INIT;
    struct heal_args args = { 0 };

    args_parse(&syntax, argc, argv, &args);
    what.scrub = scrub;
    return order(cli, &args, &what, done);
}

int cmd_scrub_start(struct cli *cli, int argc, char **argv)
{
    return order_scrub(
        cli, argc, argv,
        "Have storages read all they hold now, and heal what is damaged, stale "
        "or missing. `rozo scrub status --watch` shows how far they are.",
        1, "scrub started");
}

int cmd_scrub_stop(struct cli *cli, int argc, char **argv)
{
    return order_scrub(cli, argc, argv, "Stop scrubs that are under way.", 2,
                       "scrub stopped");
}

int cmd_rebuild_start(struct cli *cli, int argc, char **argv)
{
    static const struct args_option options[] = {
        { NULL, 0, "ID", NULL, ARGS_NUMBER(struct heal_args, storage, 1, UINT32_MAX) },
        { 0 },
    };
    static const struct args_syntax syntax = {
        .options = options,
        .doc =
            "Have storage ID rebuild all projections that it lacks: for one whose data "
            "directory lost files. What it has stays. After `rozo storage replace` this "
            "happens by itself.",
        .children = target_children
    };
    struct heal_args args = { 0 };
    Rozo__StHealReq what = ROZO__ST_HEAL_REQ__INIT;

    args_parse(&syntax, argc, argv, &args);
    what.rebuild = 1;
    return order(cli, &args, &what, "rebuild started");
}

int cmd_rebuild_rate(struct cli *cli, int argc, char **argv)
{
    static const struct args_option options[] = {
        OPTION_STORAGE,
        { NULL, 0, "MIB|off", NULL, ARGS_CALL(struct heal_args, rate_mib, rate_arg) },
        { 0 },
    };
    static const struct args_syntax syntax = {
        .options = options,
        .doc =
            "Limit what each storage reads and writes to heal (rebuild, resync, scrub) "
            "to so many MiB a second; off: no limit. It holds until the storage is "
            "restarted.",
        .children = target_children
    };
    struct heal_args args = { 0 };
    Rozo__StHealReq what = ROZO__ST_HEAL_REQ__INIT;

    args_parse(&syntax, argc, argv, &args);
    what.set_rate = true;
    what.rate_bytes = (uint64_t)args.rate_mib << 20;
    return order(cli, &args, &what, args.rate_mib == 0 ? "no limit" : "limited");
}
