/*
 * cmd_meta.c - `rozo meta`: the exportds that are members of a quorum.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "deploy/cli/text_table.h"
#include "deploy/client/meta_client.h"
#include "deploy/client/storage_clients.h"
#include "deploy/client/target_options.h"
#include "deploy/verbs/verbs.h"

/* Numbers of enum raft_role (raft_msg.h), which are on the wire. */
enum { ROLE_STANDBY = 0, ROLE_VOTER = 1, ROLE_SPARE = 2 };
enum { SERVES_MAX_MS = 10000, SERVES_PAUSE_MS = 50 };

struct meta_args {
    struct target_options conn;
    bool json;
    unsigned to;
    const char *address; /* init; NULL: not given */
};

#define OPTION_JSON                                                        \
    {                                                                      \
        "json", 'j', NULL, "print JSON", ARGS_FLAG(struct meta_args, json) \
    }

static int client_open(struct meta_args *args, struct meta_client **out,
                       struct progress *progress, struct err *err)
{
    int rc = target_resolve(&args->conn, false, err);

    if (rc == 0)
        rc = meta_client_open(args->conn.exportd, args->conn.key, out, err);
    if (rc != 0)
        return rc;
    progress_start(progress, 1);
    progress_at(progress, 0, "asking the members of the quorum");
    (*out)->progress = progress;
    return 0;
}

/* Returns the answer that knows most: of the highest term, if possible of its leader. */
static const Rozo__AdMetaStatusResp *newest(const struct meta_client *c)
{
    const Rozo__AdMetaStatusResp *best = NULL;

    for (unsigned i = 0; i < c->n; i++) {
        const Rozo__AdMetaStatusResp *a = c->members[i].answer;

        if (a != NULL && (best == NULL || a->term > best->term ||
                          (a->term == best->term && a->leads && !best->leads)))
            best = a;
    }
    return best;
}

/* Fails if no member has answered; then err says why. */
static int answers_check(const struct meta_client *c, struct err *err)
{
    if (newest(c) != NULL)
        return 0;
    for (unsigned i = 0; i < c->n; i++) {
        if (c->members[i].has_no_quorum)
            return err_set(err, -EOPNOTSUPP, "exportd at %s is alone: %s",
                           c->members[i].address, c->members[i].message);
    }
    return err_set(err, -ENOTCONN, "no exportd answers: %s: %s", c->members[0].address,
                   c->members[0].message);
}

static const Rozo__AdMetaStatusResp__Member *listed(const Rozo__AdMetaStatusResp *a,
                                                    uint64_t id)
{
    for (size_t i = 0; i < a->n_members; i++) {
        if (a->members[i]->id == id)
            return a->members[i];
    }
    return NULL;
}

static const char *role_name(const Rozo__AdMetaStatusResp *a)
{
    const Rozo__AdMetaStatusResp__Member *self = listed(a, a->id);

    if (a->leads)
        return "leader";
    if (a->id == 0)
        return "waits";
    if (a->removed)
        return "removed";
    if (a->seeding)
        return "copies";
    if (self == NULL)
        return "none";
    if (self->role == ROLE_VOTER && self->witness)
        return "witness";
    return self->role == ROLE_VOTER     ? "follower"
           : self->role == ROLE_STANDBY ? "stand-by"
           : self->role == ROLE_SPARE   ? "spare"
                                        : "?";
}

/* Returns whether a member of the list has answered. */
static bool has_answered(const struct meta_client *c, uint64_t id)
{
    for (unsigned i = 0; i < c->n; i++) {
        if (c->members[i].answer != NULL && c->members[i].answer->id == id)
            return true;
    }
    return false;
}

/* ---- JSON ---- */

static json_t *member_json(const struct meta_client_member *m)
{
    const Rozo__AdMetaStatusResp *a = m->answer;
    const Rozo__AdMetaStatusResp__Member *self;

    if (a == NULL)
        return json_pack("{s:n, s:s, s:b, s:o}", "id", "address", m->address, "answers",
                         0, "error", cli_json_text(m->message));
    self = listed(a, a->id);
    return json_pack(
        "{s:I, s:s, s:b, s:o, s:s, s:b, s:b, s:I, s:I, s:I, s:I, s:I, s:I, "
        "s:I, s:b, s:I, s:I, s:b, s:I, s:s}",
        "id", (json_int_t)a->id, "address", m->address, "answers", 1, "quorum_address",
        cli_json_text(self == NULL ? "" : self->address), "role", role_name(a), "leads",
        (int)a->leads, "serves", (int)a->serves, "term", (json_int_t)a->term, "leader",
        (json_int_t)a->leader, "first", (json_int_t)a->first, "last", (json_int_t)a->last,
        "commit", (json_int_t)a->commit, "applied", (json_int_t)a->applied, "log_bytes",
        (json_int_t)a->log_bytes, "seeding", (int)a->seeding, "seed_bytes",
        (json_int_t)a->seed_bytes, "seed_from", (json_int_t)a->seed_from, "witness",
        self != NULL && self->witness, "covered", (json_int_t)a->covered, "error", "");
}

static json_t *silent_json(const struct meta_client *c)
{
    const Rozo__AdMetaStatusResp *a = newest(c);
    json_t *json = json_array();

    for (size_t i = 0; i < a->n_members; i++) {
        if (!has_answered(c, a->members[i]->id))
            json_array_append_new(json, json_integer((json_int_t)a->members[i]->id));
    }
    return json;
}

static json_t *status_json(struct meta_client *c)
{
    const struct meta_client_member *serving = meta_client_serving(c);
    json_t *members = json_array();

    for (unsigned i = 0; i < c->n; i++)
        json_array_append_new(members, member_json(&c->members[i]));
    return json_pack(
        "{s:o, s:o, s:o, s:o}", "serving",
        serving == NULL ? json_null() : json_integer((json_int_t)serving->answer->id),
        "address", serving == NULL ? json_null() : json_string(serving->address),
        "silent", silent_json(c), "members", members);
}

/* ---- text ---- */

static void member_print(struct text_table *t, const struct meta_client_member *m)
{
    const Rozo__AdMetaStatusResp *a = m->answer;
    char bytes[HUMAN_BYTES_TEXT];

    if (a == NULL) {
        text_table_cell(t, "-");
        text_table_cell(t, "%s", m->address);
        text_table_cell(t, "NO ANSWER");
        for (unsigned i = 0; i < 6; i++)
            text_table_cell(t, "-");
        return;
    }
    text_table_cell(t, "%llu", (unsigned long long)a->id);
    text_table_cell(t, "%s", m->address);
    text_table_cell(t, "%s", role_name(a));
    text_table_cell(t, "%s", a->serves ? "yes" : "no");
    text_table_cell(t, "%llu", (unsigned long long)a->term);
    text_table_cell(t, "%llu", (unsigned long long)a->last);
    text_table_cell(t, "%llu", (unsigned long long)a->commit);
    text_table_cell(t, "%llu", (unsigned long long)a->applied);
    text_table_cell(t, "%s", human_bytes(bytes, a->log_bytes));
}

/* Says what a member copies from another one. */
static void seeding_print(const Rozo__AdMetaStatusResp *a)
{
    char bytes[HUMAN_BYTES_TEXT];

    printf("member %llu copies the metadata of member %llu, %s so far: it does not vote "
           "until it has them all\n",
           (unsigned long long)a->id, (unsigned long long)a->seed_from,
           human_bytes(bytes, a->seed_bytes));
}

/* Says what a witness lacks, or waits for. */
static void witness_print(const Rozo__AdMetaStatusResp *a)
{
    const Rozo__AdMetaStatusResp__Member *self = listed(a, a->id);

    if (self == NULL || !self->witness)
        return;
    if (a->leads)
        printf("member %llu, a witness, has the longest log: it waits for a member with "
               "metadata that can take over\n",
               (unsigned long long)a->id);
    if (a->covered != 0 && a->first > a->covered + 1)
        printf("member %llu, a witness, has dropped entries %llu to %llu, which a member "
               "that is away lacks: until that is back, or replaced, the metadata are "
               "lost with the disk of the other one\n",
               (unsigned long long)a->id, (unsigned long long)(a->covered + 1),
               (unsigned long long)(a->first - 1));
}

/* Says what the list has that does not vote. */
static void roles_print(const Rozo__AdMetaStatusResp *a)
{
    for (size_t i = 0; i < a->n_members; i++) {
        const Rozo__AdMetaStatusResp__Member *m = a->members[i];

        if (m->role == ROLE_SPARE)
            printf("member %llu at %.80s is being added: it does not know yet\n",
                   (unsigned long long)m->id, m->address);
        else if (m->role == ROLE_STANDBY)
            printf("member %llu at %.80s is being added: it votes when it has all "
                   "metadata\n",
                   (unsigned long long)m->id, m->address);
    }
}

static void status_print(struct meta_client *c)
{
    static const char *const heads[] = { ">ID",     "ADDRESS",  "ROLE",
                                         "SERVES",  ">TERM",    ">LAST",
                                         ">COMMIT", ">APPLIED", ">LOG" };
    const Rozo__AdMetaStatusResp *a = newest(c);
    struct text_table t;

    text_table_init(&t, heads, 9);
    for (unsigned i = 0; i < c->n; i++)
        member_print(&t, &c->members[i]);
    text_table_print(&t, stdout);
    text_table_free(&t);
    for (unsigned i = 0; i < c->n; i++) {
        if (c->members[i].answer != NULL && c->members[i].answer->seeding)
            seeding_print(c->members[i].answer);
        if (c->members[i].answer != NULL)
            witness_print(c->members[i].answer);
        if (c->members[i].answer == NULL)
            printf("%s: %.200s\n", c->members[i].address, c->members[i].message);
    }
    for (size_t i = 0; i < a->n_members; i++) {
        if (!has_answered(c, a->members[i]->id))
            printf("member %llu (%.80s for members) has not answered\n",
                   (unsigned long long)a->members[i]->id, a->members[i]->address);
    }
    roles_print(a);
    if (meta_client_serving(c) == NULL)
        printf("No member serves: names and attributes wait until one leads\n");
}

/* ---- the verbs ---- */

int cmd_meta_status(struct cli *cli, int argc, char **argv)
{
    static const struct args_option options[] = { OPTION_JSON, { 0 } };
    static const struct args_syntax syntax = {
        .options = options,
        .doc =
            "Show the exportds that are members of a quorum, each as it sees itself: "
            "whether it leads and serves clients, its term, the last entry of its log, "
            "the last one that is committed and that its store has, and the disk space "
            "of the log. A witness has no store. Asks every address of --exportd.",
        .children = target_children
    };
    struct meta_args args = { 0 };
    struct progress progress = { 0 };
    struct meta_client *c = NULL;
    struct err err = { 0 };
    int rc;

    args_parse(&syntax, argc, argv, &args);
    rc = client_open(&args, &c, &progress, &err);
    if (rc == 0) {
        meta_client_ask(c);
        progress_end(&progress);
        rc = answers_check(c, &err);
    }
    if (rc != 0) {
        rc = cli_fail(cli, "%s", err.text);
    } else if (args.json) {
        rc = cli_print_json(cli, status_json(c));
    } else {
        status_print(c);
        rc = cli_finish(cli);
    }
    meta_client_close(c);
    return rc;
}

/* Waits until another member than this one serves. Returns it, or NULL. */
static struct meta_client_member *other_wait(struct meta_client *c, uint64_t not_id)
{
    uint64_t end_ms = clock_ms() + SERVES_MAX_MS;

    for (;;) {
        struct meta_client_member *m;

        meta_client_ask(c);
        m = meta_client_serving(c);
        if (m != NULL && m->answer->id != not_id)
            return m;
        if (clock_ms() > end_ms)
            return NULL;
        storage_clients_pause_ms(SERVES_PAUSE_MS);
    }
}

static int transfer(struct meta_client *c, unsigned to, struct meta_client_member **now,
                    struct err *err)
{
    struct meta_client_member *m;
    uint64_t from;
    int rc;

    meta_client_ask(c);
    rc = answers_check(c, err);
    if (rc != 0)
        return rc;
    m = meta_client_serving(c);
    if (m == NULL)
        return err_set(err, -ROZO_ENOT_LEADER,
                       "no member serves that could hand over; see `rozo meta status`");
    *now = m;
    from = m->answer->id;
    if (from == to)
        return 0;
    rc = meta_client_transfer(c, m, to, err);
    if (rc != 0)
        return rc;
    *now = other_wait(c, from);
    if (*now == NULL)
        return err_set(err, -ETIMEDOUT,
                       "member %llu does not lead any more, but no other one of the list "
                       "serves; see `rozo meta status`",
                       (unsigned long long)from);
    return 0;
}

int cmd_meta_transfer(struct cli *cli, int argc, char **argv)
{
    static const struct args_option options[] = {
        OPTION_JSON,
        { NULL, 0, "[ID]", NULL, ARGS_NUMBER(struct meta_args, to, 1, UINT32_MAX),
          .optional = true },
        { 0 },
    };
    static const struct args_syntax syntax = {
        .options = options,
        .doc = "Hand leadership over to member ID of a quorum, or to the one that is "
               "furthest: before its machine is stopped. A witness is refused. Ends when "
               "another one serves. Nothing is lost, and clients notice a short pause.",
        .children = target_children
    };
    struct meta_args args = { 0 };
    struct meta_client_member *now = NULL;
    struct progress progress = { 0 };
    struct meta_client *c = NULL;
    struct err err = { 0 };
    int rc;

    args_parse(&syntax, argc, argv, &args);
    rc = client_open(&args, &c, &progress, &err);
    if (rc == 0)
        rc = transfer(c, args.to, &now, &err);
    progress_end(&progress);
    if (rc != 0) {
        rc = cli_fail(cli, "%s", err.text);
    } else if (args.json) {
        rc = cli_print_json(cli, json_pack("{s:I, s:s}", "serving",
                                           (json_int_t)now->answer->id, "address",
                                           now->address));
    } else {
        printf("member %llu serves now, at %s\n", (unsigned long long)now->answer->id,
               now->address);
        rc = cli_finish(cli);
    }
    meta_client_close(c);
    return rc;
}

/* Returns the exportd that becomes a member: the first that answers and is alone. */
static int alone_find(struct meta_client *c, struct meta_client_member **out,
                      struct err *err)
{
    meta_client_ask(c);
    *out = NULL;
    for (unsigned i = 0; i < c->n; i++) {
        struct meta_client_member *m = &c->members[i];

        if (m->answer != NULL)
            return err_set(err, -EEXIST,
                           "exportd at %s is member %llu of a quorum already", m->address,
                           (unsigned long long)m->answer->id);
        if (m->has_no_quorum && *out == NULL)
            *out = m;
    }
    return *out != NULL ? 0 : answers_check(c, err);
}

static int init(struct meta_client *c, const char *address, Rozo__AdMetaInitResp **made,
                struct meta_client_member **now, struct err *err)
{
    struct meta_client_member *m;
    int rc = alone_find(c, &m, err);

    if (rc == 0)
        rc = meta_client_init(c, m, address, made, err);
    if (rc != 0)
        return rc;
    *now = other_wait(c, 0);
    return *now != NULL
               ? 0
               : err_set(err, -ETIMEDOUT,
                         "exportd at %s is a member now, but does not serve yet; "
                         "see `rozo meta status` and its log",
                         m->address);
}

int cmd_meta_init(struct cli *cli, int argc, char **argv)
{
    static const struct args_option options[] = {
        OPTION_JSON,
        { "address", 'a', "HOST:PORT",
          "where other members will reach it (default: its first address of quorum: "
          "listen)",
          ARGS_TEXT(struct meta_args, address) },
        { 0 },
    };
    static const struct args_syntax syntax = {
        .options = options,
        .doc = "Make a running exportd, with all its metadata, the first member of a "
               "quorum, to which others can be added. Its config needs a section "
               "`quorum` with `listen`. It ends when that member serves. Nothing is "
               "unmounted or lost, and clients notice a short pause. There is no way "
               "back.",
        .children = target_children
    };
    struct meta_args args = { .address = "" };
    struct meta_client_member *now = NULL;
    Rozo__AdMetaInitResp *made = NULL;
    struct progress progress = { 0 };
    struct meta_client *c = NULL;
    struct err err = { 0 };
    int rc;

    args_parse(&syntax, argc, argv, &args);
    rc = client_open(&args, &c, &progress, &err);
    if (rc == 0)
        rc = init(c, args.address, &made, &now, &err);
    progress_end(&progress);
    if (rc != 0) {
        rc = cli_fail(cli, "%s", err.text);
    } else if (args.json) {
        rc = cli_print_json(cli, json_pack("{s:I, s:s, s:o}", "id", (json_int_t)made->id,
                                           "address", now->address, "quorum_address",
                                           cli_json_text(made->address)));
    } else {
        printf(
            "exportd at %s is member %llu of a quorum now, the only one; other members "
            "reach it at %.255s\n",
            now->address, (unsigned long long)made->id, made->address);
        rc = cli_finish(cli);
    }
    if (made != NULL)
        rozo__ad_meta_init_resp__free_unpacked(made, NULL);
    meta_client_close(c);
    return rc;
}
