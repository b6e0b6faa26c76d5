/*
 * test_guards.c - the defects of libraft 0.22.1, and raft_core's guards against them.
 *
 * Goal: each guard of docs/internals/metadata-quorum.md does what it says, and is needed.
 * Method: each test first shows the defect with libraft alone, then sends the same events
 * to a core. If its first part fails, libraft has changed: look at the guard.
 */
#include <assert.h>
#include <raft.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/units.h"
#include "exportd/quorum/raft/raft_core.h"
#include "tests/unit/unit.h"

extern char *__progname; /* libraft looks at it (R11) */

enum { E_MS = RAFT_ELECTION_MS };

static const char *const addresses[] = { "0", "1", "2", "3", "4" };
static uint8_t no_batch, eight[8], mebibyte[RAFT_ENTRY_BYTES_MAX];

/* libraft alone: a member with id 1. */

struct lib {
    struct raft r;
    struct raft_update update;
    raft_time now;
    int rv;
};

static struct raft_configuration lib_config(unsigned n_voters)
{
    struct raft_configuration c;

    raft_configuration_init(&c);
    for (unsigned i = 1; i <= n_voters; i++)
        assert_int_equal(raft_configuration_add(&c, i, addresses[i], RAFT_VOTER), 0);
    return c;
}

static void lib_step(struct lib *lib, struct raft_event *event)
{
    memset(&lib->update, 0, sizeof(lib->update));
    event->time = lib->now;
    event->capacity = 0;
    lib->rv = raft_step(&lib->r, event, &lib->update);
}

/* Starts with a store up to `applied`, and no log. */
static void lib_open(struct lib *lib, unsigned n_voters, raft_index applied)
{
    struct raft_snapshot_metadata store = { .index = applied,
                                            .term = 1,
                                            .configuration = lib_config(n_voters),
                                            .configuration_index = 1 };
    struct raft_event event = { .type = RAFT_START };

    memset(lib, 0, sizeof(*lib));
    lib->now = 1000;
    assert_int_equal(raft_init(&lib->r, NULL, NULL, 1, addresses[1]), 0);
    lib->r.tracer = NULL;
    raft_set_election_timeout(&lib->r, E_MS);
    raft_set_pre_vote(&lib->r, true);
    event.start.term = 1;
    event.start.metadata = &store;
    event.start.start_index = applied + 1;
    lib_step(lib, &event);
    assert_int_equal(lib->rv, 0);
}

static void lib_close(struct lib *lib)
{
    raft_close(&lib->r, NULL);
}

static void lib_receive(struct lib *lib, raft_id from, struct raft_message *m)
{
    struct raft_event event = { .type = RAFT_RECEIVE, .receive.message = m };

    m->server_id = from;
    m->server_address = addresses[from];
    lib_step(lib, &event);
}

/* Receives entries of one term; a kind each. */
static void lib_append(struct lib *lib, raft_id from, raft_term term, raft_index prev,
                       raft_term prev_term, raft_index commit, struct raft_entry *entries,
                       unsigned n)
{
    struct raft_message m = { .type = RAFT_APPEND_ENTRIES };
    void *batch = n == 0 ? NULL : raft_malloc(1);

    for (unsigned i = 0; i < n; i++)
        entries[i].batch = batch;
    m.append_entries.term = term;
    m.append_entries.prev_log_index = prev;
    m.append_entries.prev_log_term = prev_term;
    m.append_entries.leader_commit = commit;
    m.append_entries.entries = entries;
    m.append_entries.n_entries = n;
    lib_receive(lib, from, &m);
    if ((lib->update.flags & (RAFT_UPDATE_ENTRIES)) != 0)
        raft_free(batch);
}

static struct raft_entry lib_entry(raft_term term, enum raft_entry_type type)
{
    struct raft_entry e = { .term = term, .type = type, .batch = &no_batch };

    e.buf.base = eight;
    e.buf.len = sizeof(eight);
    return e;
}

/* Makes a list of members as an entry; the caller frees buf.base. */
static struct raft_entry lib_change(raft_term term, unsigned n_voters)
{
    struct raft_configuration c = lib_config(n_voters);
    struct raft_entry e = lib_entry(term, RAFT_CHANGE);

    assert_int_equal(raft_configuration_encode(&c, &e.buf), 0);
    raft_configuration_close(&c);
    return e;
}

static void lib_submit(struct lib *lib, struct raft_entry *entries, unsigned n)
{
    struct raft_event event = { .type = RAFT_SUBMIT };

    event.submit.entries = entries;
    event.submit.n = n;
    lib_step(lib, &event);
}

static void lib_persisted(struct lib *lib, raft_index index)
{
    struct raft_event event = { .type = RAFT_PERSISTED_ENTRIES };

    event.persisted_entries.index = index;
    lib_step(lib, &event);
    assert_int_equal(lib->rv, 0);
}

static void lib_timeout(struct lib *lib)
{
    struct raft_event event = { .type = RAFT_TIMEOUT };

    if (lib->now < raft_timeout(&lib->r))
        lib->now = raft_timeout(&lib->r);
    lib_step(lib, &event);
    assert_int_equal(lib->rv, 0);
}

static void lib_voted(struct lib *lib, raft_id from, raft_term term, bool pre_vote)
{
    struct raft_message m = { .type = RAFT_REQUEST_VOTE_RESULT };

    m.request_vote_result.version = 2;
    m.request_vote_result.term = term;
    m.request_vote_result.vote_granted = true;
    m.request_vote_result.pre_vote = pre_vote;
    lib_receive(lib, from, &m);
}

static void lib_free_barrier(struct lib *lib)
{
    if ((lib->update.flags & (RAFT_UPDATE_ENTRIES)) != 0)
        raft_free(lib->update.entries.batch[0].batch);
}

/* Elects by the votes of 2; libraft may append a barrier. */
static void lib_elect(struct lib *lib)
{
    raft_index last = raft_last_index(&lib->r);

    lib_timeout(lib);
    lib_voted(lib, 2, raft_current_term(&lib->r) + 1, true);
    lib_voted(lib, 2, raft_current_term(&lib->r), false);
    assert_int_equal(raft_state(&lib->r), RAFT_LEADER);
    if (raft_last_index(&lib->r) > last)
        lib_free_barrier(lib);
}

static void lib_appended(struct lib *lib, raft_id from, raft_index rejected,
                         raft_index last)
{
    struct raft_message m = { .type = RAFT_APPEND_ENTRIES_RESULT };

    m.append_entries_result.version = 2;
    m.append_entries_result.term = raft_current_term(&lib->r);
    m.append_entries_result.rejected = rejected;
    m.append_entries_result.last_log_index = last;
    lib_receive(lib, from, &m);
}

static void lib_configuration(struct lib *lib, raft_index index, unsigned n_voters)
{
    struct raft_event event = { .type = RAFT_CONFIGURATION };

    event.configuration.index = index;
    event.configuration.conf = lib_config(n_voters);
    lib_step(lib, &event);
}

/* Returns the message of a kind to a member in the last update, or NULL. */
static const struct raft_message *lib_message(const struct lib *lib, int type, raft_id to)
{
    for (unsigned i = 0; i < lib->update.messages.n; i++) {
        const struct raft_message *m = &lib->update.messages.batch[i];

        if ((int)m->type == type && m->server_id == to)
            return m;
    }
    return NULL;
}

/* A core with id 1. */

struct one {
    struct raft_core *core;
    struct raft_core_out out;
    uint64_t now_ns;
};

static struct raft_config core_config(unsigned n_voters)
{
    struct raft_config c = { .n = 0 };

    for (unsigned i = 1; i <= n_voters; i++)
        assert_int_equal(raft_config_set(&c, i, RAFT_ROLE_VOTER, ""), 0);
    return c;
}

/* Takes the results; term and vote are persisted at once. */
static void one_take(struct one *o, int rc)
{
    assert_int_equal(rc, 0);
    raft_core_take(o->core, &o->out);
    while (o->out.new_term != 0) {
        struct raft_core_out first = o->out;

        assert_int_equal(raft_core_vote_persisted(o->core, o->now_ns, o->out.new_term,
                                                  o->out.new_vote),
                         0);
        raft_core_take(o->core, &o->out);
        if (first.n_entries > 0) {
            o->out.n_entries = first.n_entries;
            o->out.truncate_from = first.truncate_from;
        }
    }
}

static void one_open_saved(struct one *o, const struct raft_core_saved *saved)
{
    const struct raft_core_options options = { .id = 1, .seed = 7 };

    memset(o, 0, sizeof(*o));
    o->now_ns = s_to_ns(1);
    assert_int_equal(raft_core_open(&options, &o->core), 0);
    one_take(o, raft_core_start(o->core, o->now_ns, saved, NULL));
}

static void one_open(struct one *o, unsigned n_voters, uint64_t applied)
{
    struct raft_core_saved saved = { .term = 1,
                                     .applied = applied,
                                     .applied_term = 1,
                                     .config = core_config(n_voters),
                                     .config_index = 1 };

    one_open_saved(o, &saved);
}

static struct raft_msg msg_make(enum raft_msg_kind kind, uint64_t from, uint64_t term)
{
    return (struct raft_msg){ .kind = kind, .from = from, .to = 1, .term = term };
}

static struct raft_log_entry entry_make(uint64_t index, uint64_t term)
{
    return (struct raft_log_entry){ .index = index,
                                    .term = term,
                                    .kind = RAFT_ENTRY_BATCH,
                                    .len = sizeof(eight),
                                    .data = eight };
}

/* Makes a list of members as an entry; its bytes are in buf. */
static struct raft_log_entry change_make(uint64_t index, uint64_t term,
                                         const struct raft_config *config,
                                         uint8_t buf[RAFT_CONFIG_BYTES_MAX])
{
    struct raft_log_entry e = entry_make(index, term);

    e.kind = RAFT_ENTRY_CONFIG;
    e.len = (uint32_t)raft_config_encode(config, buf);
    e.data = buf;
    return e;
}

static int one_append_rc(struct one *o, uint64_t from, uint64_t term, uint64_t prev,
                         uint64_t prev_term, uint64_t commit,
                         const struct raft_log_entry *entries, unsigned n)
{
    struct raft_msg m = msg_make(RAFT_MSG_APPEND, from, term);

    m.index = prev;
    m.index_term = prev_term;
    m.commit = commit;
    m.n = n;
    m.sent_ns = o->now_ns;
    return raft_core_receive(o->core, o->now_ns, &m, entries);
}

static void one_append(struct one *o, uint64_t from, uint64_t term, uint64_t prev,
                       uint64_t prev_term, uint64_t commit,
                       const struct raft_log_entry *entries, unsigned n)
{
    one_take(o, one_append_rc(o, from, term, prev, prev_term, commit, entries, n));
}

static void one_persisted(struct one *o, uint64_t index)
{
    one_take(o, raft_core_persisted(o->core, o->now_ns, index,
                                    raft_core_term_of(o->core, index)));
}

static void one_tick(struct one *o)
{
    if (o->now_ns < o->out.next_ns)
        o->now_ns = o->out.next_ns;
    one_take(o, raft_core_tick(o->core, o->now_ns));
}

static void one_voted(struct one *o, uint64_t from, uint64_t term, unsigned flags)
{
    struct raft_msg m = msg_make(RAFT_MSG_VOTED, from, term);

    m.flags = flags;
    one_take(o, raft_core_receive(o->core, o->now_ns, &m, NULL));
}

/* Elects by the votes of 2. Its first entry is appended, not persisted. */
static void one_elect(struct one *o)
{
    while (o->out.role != RAFT_CORE_CANDIDATE)
        one_tick(o);
    one_voted(o, 2, o->out.term + 1, RAFT_MSG_GRANTED | RAFT_MSG_PRE_VOTE);
    one_voted(o, 2, o->out.term, RAFT_MSG_GRANTED);
    assert_int_equal(o->out.role, RAFT_CORE_LEADER);
    assert_int_equal(o->out.n_entries, 1);
}

static void one_appended(struct one *o, uint64_t from, uint64_t rejected, uint64_t last)
{
    struct raft_msg m = msg_make(RAFT_MSG_APPENDED, from, o->out.term);

    m.index = rejected;
    m.last = last;
    m.echo_ns = o->now_ns;
    one_take(o, raft_core_receive(o->core, o->now_ns, &m, NULL));
}

/* Elects, and commits the first entry with the help of 2. */
static void one_lead(struct one *o)
{
    one_elect(o);
    one_persisted(o, raft_core_last_index(o->core));
    one_appended(o, 2, 0, raft_core_last_index(o->core));
    assert_true(o->out.is_ready);
}

static const struct raft_msg *one_message(const struct one *o, enum raft_msg_kind kind,
                                          uint64_t to)
{
    for (unsigned i = 0; i < o->out.n_messages; i++) {
        if (o->out.messages[i].kind == kind && o->out.messages[i].to == to)
            return &o->out.messages[i];
    }
    return NULL;
}

static void one_close(struct one *o)
{
    raft_core_free(o->core);
}

/* Runs fn in a process of its own. Returns its result, 0 to 9; -1: it was aborted. */
static int run_apart(int (*fn)(void))
{
    int status;
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        static const int signals[] = { SIGABRT, SIGSEGV, SIGBUS, SIGILL, SIGFPE };

        for (unsigned i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
            signal(signals[i], SIG_DFL); /* cmocka would go on with other tests */
        assert(freopen("/dev/null", "w", stderr) != NULL);
        assert(freopen("/dev/null", "w", stdout) != NULL);
        _exit(fn());
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* R1: a list of members inside a batch is noted under the index of the batch. */
static void test_a_list_inside_a_batch_is_noted_rightly(void **state)
{
    struct raft_config four = core_config(3);
    uint8_t buf[RAFT_CONFIG_BYTES_MAX];
    struct raft_entry e[2] = { lib_entry(2, RAFT_COMMAND), lib_change(2, 3) };
    struct raft_log_entry c[2] = { entry_make(2, 2) };
    struct lib lib;
    struct one o;

    (void)state;
    lib_open(&lib, 3, 1);
    lib_append(&lib, 2, 2, 1, 1, 1, e, 2);
    assert_int_equal(lib.r.configuration_uncommitted_index, 2); /* the list is at 3 */
    lib_persisted(&lib, 3);
    lib_append(&lib, 2, 2, 3, 2, 3, NULL, 0);
    assert_int_equal(raft_commit_index(&lib.r), 3);
    lib_configuration(&lib, 3, 3);
    lib_elect(&lib);
    lib_submit(&lib, &e[1], 1);
    assert_int_equal(lib.rv, RAFT_CANTCHANGE); /* for ever */
    lib_close(&lib);
    raft_free(e[1].buf.base);

    one_open(&o, 3, 1);
    assert_int_equal(raft_config_set(&four, 4, RAFT_ROLE_STANDBY, ""), 0);
    c[1] = change_make(3, 2, &four, buf);
    one_append(&o, 2, 2, 1, 1, 1, c, 2);
    assert_int_equal(o.out.n_entries, 2);
    assert_int_equal(raft_core_config_index(o.core, NULL), 3);
    one_persisted(&o, 3);
    one_append(&o, 2, 2, 3, 2, 3, NULL, 0);
    one_lead(&o);
    assert_int_equal(raft_config_remove(&four, 4), 0);
    one_take(&o, raft_core_change(o.core, o.now_ns, &four));
    assert_int_equal(o.out.n_entries, 1);
    one_close(&o);
}

/* R2: members are changed before an entry of the leader's term is committed. */
static void test_a_change_waits_for_an_entry_of_the_term(void **state)
{
    struct raft_config four = core_config(3);
    struct raft_entry e[2] = { lib_entry(1, RAFT_COMMAND) };
    struct raft_log_entry c = entry_make(2, 1);
    struct lib lib;
    struct one o;
    bool is_committed = true;

    (void)state;
    lib_open(&lib, 3, 1);
    lib_append(&lib, 3, 1, 1, 1, 1, e, 1);
    lib_persisted(&lib, 2);
    lib_elect(&lib);
    e[1] = lib_change(2, 4);
    lib_submit(&lib, &e[1], 1);
    assert_int_equal(lib.rv, 0); /* entry 2 and the barrier are not committed */
    assert_int_equal(raft_commit_index(&lib.r), 1);
    lib_close(&lib);
    raft_free(e[1].buf.base);

    one_open(&o, 3, 1);
    one_append(&o, 3, 1, 1, 1, 1, &c, 1);
    one_persisted(&o, 2);
    one_elect(&o);
    assert_int_equal(raft_config_set(&four, 4, RAFT_ROLE_STANDBY, ""), 0);
    assert_int_equal(raft_core_change(o.core, o.now_ns, &four), -EAGAIN);
    one_persisted(&o, 3);
    one_appended(&o, 2, 0, 3);
    one_take(&o, raft_core_change(o.core, o.now_ns, &four));
    assert_int_equal(raft_core_config_index(o.core, &is_committed), 4);
    assert_false(is_committed);
    assert_int_equal(raft_config_remove(&four, 4), 0);
    assert_int_equal(raft_core_change(o.core, o.now_ns, &four), -EAGAIN);
    one_close(&o);
}

/* R3: a follower that lost entries never gets them again. */
static void test_a_follower_that_lost_entries_must_join(void **state)
{
    struct raft_entry e[5];
    struct raft_log_entry c[5];
    struct lib lib;
    struct one o;
    uint64_t match = 0;

    (void)state;
    for (unsigned i = 0; i < 5; i++) {
        e[i] = lib_entry(2, RAFT_COMMAND);
        c[i] = entry_make(0, 0);
    }
    lib_open(&lib, 3, 1);
    lib_elect(&lib);
    lib_submit(&lib, e, 5);
    lib_persisted(&lib, 6);
    lib_appended(&lib, 2, 0, 6);
    for (unsigned i = 0; i < 20; i++) {
        const struct raft_message *m;

        lib_timeout(&lib);
        m = lib_message(&lib, RAFT_APPEND_ENTRIES, 2);
        assert_true(m == NULL || m->append_entries.prev_log_index == 6);
        lib_appended(&lib, 2, 6, 3); /* "my log ends at 3" */
        assert_null(lib_message(&lib, RAFT_APPEND_ENTRIES, 2));
    }
    lib_close(&lib);

    one_open(&o, 3, 1);
    one_lead(&o);
    one_take(&o, raft_core_submit(o.core, o.now_ns, c, 5));
    one_persisted(&o, 7);
    one_appended(&o, 2, 0, 7);
    assert_int_equal(o.out.lost, 0);
    o.now_ns++;
    one_appended(&o, 2, 7, 3);
    assert_int_equal(o.out.lost, 2);
    assert_int_equal(raft_core_match(o.core, 2, &match), 0);
    assert_int_equal(match, 7);
    for (unsigned i = 0; i < 20; i++) { /* the leader stays in contact */
        one_tick(&o);
        one_appended(&o, 2, 7, 3);
        assert_int_equal(o.out.role, RAFT_CORE_LEADER);
    }
    one_close(&o);
}

/* A message of an earlier term comes late, from a leader that leads again: the answer has
 * the new term and refuses, and is no sign of a loss. */
static void test_answers_to_an_earlier_term_are_no_loss(void **state)
{
    struct raft_log_entry c[5];
    struct raft_msg answer;
    struct one o;

    (void)state;
    one_open(&o, 3, 1);
    one_append(&o, 2, 5, 1, 1, 1, NULL, 0);
    one_append(&o, 2, 6, 1, 1, 1, NULL, 0);
    o.now_ns += s_to_ns(1);
    one_append(&o, 2, 5, 7, 5, 1, NULL, 0);
    assert_non_null(one_message(&o, RAFT_MSG_APPENDED, 2));
    answer = *one_message(&o, RAFT_MSG_APPENDED, 2);
    assert_true(answer.term == 6 && answer.index == 7 && answer.last == 0);
    one_close(&o);

    for (unsigned i = 0; i < 5; i++)
        c[i] = entry_make(0, 0);
    one_open(&o, 3, 1);
    one_lead(&o);
    one_take(&o, raft_core_submit(o.core, o.now_ns, c, 5));
    one_persisted(&o, 7);
    one_appended(&o, 2, 0, 7);
    o.now_ns += s_to_ns(1);
    answer.from = 2;
    answer.to = 1;
    answer.term = o.out.term;
    if (answer.echo_ns != 0) /* newest message of the term that 2 has accepted */
        answer.echo_ns = o.now_ns;
    one_take(&o, raft_core_receive(o.core, o.now_ns, &answer, NULL));
    assert_int_equal(o.out.lost, 0);
    one_close(&o);
}

/* R4: the commit index passes what is persisted here. */
static void test_nothing_is_applied_before_it_is_persisted(void **state)
{
    struct raft_entry e[2] = { lib_entry(2, RAFT_COMMAND), lib_entry(2, RAFT_COMMAND) };
    struct raft_log_entry c[2] = { entry_make(2, 2), entry_make(3, 2) };
    struct lib lib;
    struct one o;

    (void)state;
    lib_open(&lib, 3, 1);
    lib_append(&lib, 2, 2, 1, 1, 3, e, 2);
    assert_int_equal(raft_commit_index(&lib.r), 3); /* follower */
    assert_int_equal(lib.r.last_stored, 1);
    lib_close(&lib);
    lib_open(&lib, 3, 1);
    lib_elect(&lib);
    lib_submit(&lib, e, 1);
    lib_appended(&lib, 2, 0, 2);
    lib_appended(&lib, 3, 0, 2);
    assert_int_equal(raft_commit_index(&lib.r), 2); /* leader */
    assert_int_equal(lib.r.last_stored, 1);
    lib_close(&lib);

    one_open(&o, 3, 1);
    one_append(&o, 2, 2, 1, 1, 3, c, 2);
    assert_int_equal(o.out.commit, 1);
    one_persisted(&o, 2);
    assert_int_equal(o.out.commit, 2);
    one_persisted(&o, 3);
    assert_int_equal(o.out.commit, 3);
    one_close(&o);
    one_open(&o, 3, 1);
    one_elect(&o);
    one_appended(&o, 2, 0, 2);
    one_appended(&o, 3, 0, 2);
    assert_int_equal(o.out.commit, 1);
    assert_false(o.out.is_ready);
    assert_int_equal(raft_core_lease_until_ns(o.core), 0);
    one_persisted(&o, 2);
    assert_int_equal(o.out.commit, 2);
    assert_true(o.out.is_ready);
    one_close(&o);
}

static void lib_vote_request(struct lib *lib, raft_id from, raft_term term, bool disrupt)
{
    struct raft_message m = { .type = RAFT_REQUEST_VOTE };

    m.request_vote.version = 2;
    m.request_vote.term = term;
    m.request_vote.candidate_id = from;
    m.request_vote.last_log_index = 1;
    m.request_vote.last_log_term = 1;
    m.request_vote.disrupt_leader = disrupt;
    lib_receive(lib, from, &m);
}

static void one_vote_request(struct one *o, uint64_t from, uint64_t term, unsigned flags)
{
    struct raft_msg m = msg_make(RAFT_MSG_VOTE, from, term);

    m.index = 1;
    m.index_term = 1;
    m.flags = flags;
    one_take(o, raft_core_receive(o->core, o->now_ns, &m, NULL));
}

/* R5: a voter that restarts forgets what it promised to its leader, and votes. */
static void test_a_restarted_voter_does_not_vote_at_once(void **state)
{
    const struct raft_message *lm;
    const struct raft_msg *m;
    struct lib lib;
    struct one o;

    (void)state;
    lib_open(&lib, 3, 1);
    lib_vote_request(&lib, 2, 2, false);
    lm = lib_message(&lib, RAFT_REQUEST_VOTE_RESULT, 2);
    assert_true(lm != NULL && lm->request_vote_result.vote_granted);
    lib_close(&lib);

    one_open(&o, 3, 1);
    one_vote_request(&o, 2, 2, 0);
    one_vote_request(&o, 2, 2, RAFT_MSG_DISRUPT);
    assert_int_equal(o.out.n_messages, 0);
    assert_int_equal(o.out.term, 1);
    o.now_ns += ms_to_ns(E_MS) - 1;
    one_vote_request(&o, 2, 2, RAFT_MSG_PRE_VOTE);
    assert_int_equal(o.out.n_messages, 0);
    o.now_ns += 1;
    one_vote_request(&o, 2, 2, 0);
    m = one_message(&o, RAFT_MSG_VOTED, 2);
    assert_true(m != NULL && m->flags == RAFT_MSG_GRANTED);
    one_close(&o);
}

/* R5: a transfer of leadership makes voters vote within the leader's lease. */
static void test_the_lease_ends_before_a_transfer(void **state)
{
    const struct raft_message *lm;
    const struct raft_msg *m;
    struct raft_log_entry e = entry_make(0, 0);
    struct lib lib;
    struct one o;

    (void)state;
    lib_open(&lib, 3, 1);
    lib_append(&lib, 3, 1, 1, 1, 1, NULL, 0); /* a leader, 3 */
    lib_vote_request(&lib, 2, 2, true);
    lm = lib_message(&lib, RAFT_REQUEST_VOTE_RESULT, 2);
    assert_true(lm != NULL && lm->request_vote_result.vote_granted);
    lib_close(&lib);

    one_open(&o, 3, 1);
    one_lead(&o);
    assert_int_equal(raft_core_lease_until_ns(o.core), o.now_ns + ms_to_ns(E_MS * 3 / 4));
    one_take(&o, raft_core_transfer(o.core, o.now_ns, 3)); /* has to catch up first */
    assert_null(one_message(&o, RAFT_MSG_TIMEOUT_NOW, 3));
    assert_int_equal(raft_core_lease_until_ns(o.core), 0);
    assert_int_equal(raft_core_submit(o.core, o.now_ns, &e, 1), -ROZO_ENOT_LEADER);
    assert_int_equal(raft_core_transfer(o.core, o.now_ns, 2), -EBUSY);
    one_appended(&o, 3, 0, 2);
    m = one_message(&o, RAFT_MSG_TIMEOUT_NOW, 3);
    assert_true(m != NULL && m->index == 2);
    for (unsigned i = 0; i < 20; i++) { /* the transfer fails */
        one_tick(&o);
        one_appended(&o, 2, 0, 2);
        assert_int_equal(raft_core_lease_until_ns(o.core), 0);
        if (o.out.n_entries > 0 || raft_core_last_index(o.core) > 2)
            break;
    }
    /* An empty entry makes that message void, once it is committed. */
    assert_int_equal(raft_core_last_index(o.core), 3);
    assert_int_not_equal(raft_core_confirmed_ns(o.core), 0);
    one_persisted(&o, 3);
    assert_int_equal(raft_core_lease_until_ns(o.core), 0);
    one_appended(&o, 2, 0, 3);
    assert_int_not_equal(raft_core_lease_until_ns(o.core), 0);
    one_close(&o);
}

/*
 * R22: libraft sends TIMEOUT_NOW at the first acknowledgement after a transfer began, and
 * a follower that has not persisted all entries ignores it.
 */
static void test_a_transfer_waits_for_all_entries(void **state)
{
    struct raft_entry e[2] = { lib_entry(2, RAFT_COMMAND), lib_entry(2, RAFT_COMMAND) };
    struct raft_log_entry c = entry_make(0, 0);
    struct raft_event event = { .type = RAFT_TRANSFER, .transfer.server_id = 3 };
    const struct raft_message *lm;
    const struct raft_msg *m;
    struct lib lib;
    struct one o;

    (void)state;
    lib_open(&lib, 3, 1);
    lib_elect(&lib);
    lib_appended(&lib, 3, 0, 1);
    lib_submit(&lib, e, 2); /* up to 3 */
    lib_step(&lib, &event);
    lib_appended(&lib, 3, 0, 2);
    lm = lib_message(&lib, RAFT_TIMEOUT_NOW, 3);
    assert_true(lm != NULL && lm->timeout_now.last_log_index == 3);
    lib_close(&lib);

    one_open(&o, 3, 1);
    one_lead(&o);
    one_appended(&o, 3, 0, 2);
    for (unsigned i = 0; i < 2; i++)
        one_take(&o, raft_core_submit(o.core, o.now_ns, &c, 1));
    one_persisted(&o, 4);
    one_take(&o, raft_core_transfer(o.core, o.now_ns, 3));
    one_appended(&o, 3, 0, 3);
    assert_null(one_message(&o, RAFT_MSG_TIMEOUT_NOW, 3));
    assert_int_equal(raft_core_submit(o.core, o.now_ns, &c, 1), -ROZO_ENOT_LEADER);
    one_appended(&o, 3, 0, 4);
    m = one_message(&o, RAFT_MSG_TIMEOUT_NOW, 3);
    assert_true(m != NULL && m->index == 4);
    one_close(&o);
}

/* A transfer to a member that does not catch up ends by itself: nothing was sent. */
static void test_a_transfer_to_a_slow_member_ends(void **state)
{
    struct raft_log_entry c = entry_make(0, 0);
    struct one o;

    (void)state;
    one_open(&o, 3, 1);
    one_lead(&o);
    one_take(&o, raft_core_submit(o.core, o.now_ns, &c, 1));
    one_persisted(&o, 3);
    one_take(&o, raft_core_transfer(o.core, o.now_ns, 3));
    for (uint64_t until = o.now_ns + ms_to_ns(E_MS); o.now_ns < until;) {
        assert_int_equal(raft_core_lease_until_ns(o.core), 0);
        one_tick(&o);
        one_appended(&o, 2, 0, 3);
        assert_null(one_message(&o, RAFT_MSG_TIMEOUT_NOW, 3));
    }
    assert_int_not_equal(raft_core_lease_until_ns(o.core), 0);
    one_take(&o, raft_core_submit(o.core, o.now_ns, &c, 1));
    one_close(&o);
}

/* Gives libraft entries with falling terms; returns 1 if it takes them. */
static int lib_takes_falling_terms(void)
{
    struct raft_entry e[2] = { lib_entry(5, RAFT_COMMAND), lib_entry(3, RAFT_COMMAND) };
    struct lib lib;

    lib_open(&lib, 3, 1);
    lib_append(&lib, 2, 5, 1, 1, 1, e, 2);
    return lib.rv == 0 && raft_last_index(&lib.r) == 3;
}

/* Gives a leader of libraft an APPEND of its own term; returns 1 if it takes it. */
static int lib_takes_two_leaders(void)
{
    struct lib lib;

    lib_open(&lib, 3, 1);
    lib_elect(&lib);
    lib_append(&lib, 2, raft_current_term(&lib.r), 1, 1, 1, NULL, 0);
    return lib.rv == 0;
}

/* R6: what a peer sends is asserted, or not even that, as in Debian's package. */
static void test_impossible_messages_are_refused(void **state)
{
    struct raft_log_entry e[2] = { entry_make(2, 5), entry_make(3, 3) }, out[64];
    struct raft_msg m = msg_make(RAFT_MSG_APPEND, 2, 5), got;
    const struct raft_msg_group group = { .number = 0 };
    uint8_t head[RAFT_MSG_HEAD_MAX];
    struct one o;

    (void)state;
    assert_int_not_equal(run_apart(lib_takes_falling_terms), 0);
    assert_int_not_equal(run_apart(lib_takes_two_leaders), 0);

    m.index = m.index_term = 1;
    m.n = 2;
    assert_int_equal(raft_msg_decode(&group, 1, head,
                                     raft_msg_encode(&group, &m, e, head), mebibyte, 16,
                                     &got, out),
                     -EBADMSG);
    one_open(&o, 3, 1);
    one_lead(&o);
    assert_int_equal(one_append_rc(&o, 2, o.out.term, 1, 1, 1, NULL, 0), -EBADMSG);
    one_append(&o, 2, o.out.term + 1, 1, 1, 1, NULL, 0); /* a refusal does no harm */
    assert_int_equal(o.out.role, RAFT_CORE_FOLLOWER);
    assert_int_equal(one_append_rc(&o, 3, o.out.term, 1, 1, 1, NULL, 0), -EBADMSG);
    one_close(&o);
}

/* R7: messages are limited in entries, not in bytes. */
static void test_messages_are_limited_in_bytes(void **state)
{
    struct raft_entry e[40];
    struct raft_log_entry c[40];
    const struct raft_message *lm;
    struct lib lib;
    struct one o;

    (void)state;
    for (unsigned i = 0; i < 40; i++) {
        e[i] = lib_entry(2, RAFT_COMMAND);
        e[i].buf.base = mebibyte;
        e[i].buf.len = sizeof(mebibyte);
        c[i] = entry_make(3 + i, 2);
        c[i].data = mebibyte;
        c[i].len = sizeof(mebibyte);
    }
    lib_open(&lib, 3, 1);
    lib_elect(&lib);
    lib_submit(&lib, e, 1);
    lib_appended(&lib, 2, 0, 2);
    lib_submit(&lib, e + 1, 39);
    lm = lib_message(&lib, RAFT_APPEND_ENTRIES, 2);
    assert_true(lm != NULL && lm->append_entries.n_entries == 32); /* 32 MiB */
    lib_close(&lib);

    one_open(&o, 3, 1);
    one_lead(&o);
    c[1].len++;
    assert_int_equal(raft_core_submit(o.core, o.now_ns, c, 2), -EMSGSIZE);
    c[1].len--;
    one_take(&o, raft_core_submit(o.core, o.now_ns, c, 40));
    assert_int_equal(one_message(&o, RAFT_MSG_APPEND, 2)->n, 40);
    assert_int_equal(raft_msg_fill(c, 40), 1);
    one_close(&o);
}

static int lib_traces(void)
{
    char path[] = "/tmp/rozo-test-XXXXXX";
    int fd = mkstemp(path);
    struct lib lib;
    struct one o;
    off_t n;

    unlink(path);
    dup2(fd, STDERR_FILENO);
    setenv("LIBRAFT_TRACE", "1", 1);
    lib_open(&lib, 3, 1);
    assert(raft_init(&lib.r, NULL, NULL, 1, "1") == 0 && lib.r.tracer != NULL);
    lib_vote_request(&lib, 2, 2, false);
    fflush(stderr);
    n = lseek(fd, 0, SEEK_END);
    one_open(&o, 3, 1);
    one_lead(&o);
    fflush(stderr);
    return n > 0 && lseek(fd, 0, SEEK_END) == n;
}

/* R8: traces are made even if nobody reads them, in one static buffer of all threads. */
static void test_nothing_is_traced(void **state)
{
    (void)state;
    assert_int_equal(run_apart(lib_traces), 1);
}

/* Counts libraft's memory. */
static size_t n_blocks;

static void *count_malloc(void *data, size_t size)
{
    (void)data;
    n_blocks++;
    return malloc(size);
}
static void *count_calloc(void *data, size_t n, size_t size)
{
    (void)data;
    n_blocks++;
    return calloc(n, size);
}
static void *count_realloc(void *data, void *p, size_t size)
{
    (void)data;
    n_blocks += p == NULL;
    return realloc(p, size);
}
static void count_free(void *data, void *p)
{
    (void)data;
    n_blocks -= p != NULL;
    free(p);
}

/* Has a core do all that takes memory. */
static void core_use_memory(void)
{
    struct raft_config config = core_config(3);
    uint8_t buf[RAFT_CONFIG_BYTES_MAX], buf2[RAFT_CONFIG_BYTES_MAX];
    struct raft_log_entry log[2] = { entry_make(2, 1) }, e[3];
    struct raft_core_saved saved = { .term = 1,
                                     .applied = 1,
                                     .applied_term = 1,
                                     .config = config,
                                     .config_index = 1,
                                     .entries = log,
                                     .n_entries = 2 };
    struct one o;

    assert_int_equal(raft_config_set(&config, 4, RAFT_ROLE_STANDBY, ""), 0);
    log[1] = change_make(3, 1, &config, buf);
    one_open_saved(&o, &saved);
    e[0] = entry_make(4, 2);
    e[1] = entry_make(5, 2);
    one_append(&o, 2, 2, 3, 1, 1, e, 2);
    one_append(&o, 2, 2, 3, 1, 1, e, 2); /* again */
    one_append(&o, 2, 2, 9, 2, 1, e, 0); /* does not match */
    one_append(&o, 2, 1, 3, 1, 1, e, 2); /* earlier term */
    e[0] = entry_make(4, 3);
    assert_int_equal(raft_config_set(&config, 4, RAFT_ROLE_VOTER, ""), 0);
    e[1] = change_make(5, 3, &config, buf2);
    e[2] = entry_make(6, 3);
    one_append(&o, 3, 3, 3, 1, 3, e, 3); /* truncates */
    assert_int_equal(o.out.truncate_from, 4);
    one_persisted(&o, 6);
    one_append(&o, 3, 3, 6, 3, 6, NULL, 0);
    one_take(&o, raft_core_trim(o.core, o.now_ns, 6, 5));
    while (o.out.role != RAFT_CORE_CANDIDATE) /* one of four voters */
        one_tick(&o);
    one_voted(&o, 2, o.out.term + 1, RAFT_MSG_GRANTED | RAFT_MSG_PRE_VOTE);
    one_voted(&o, 3, o.out.term + 1, RAFT_MSG_GRANTED | RAFT_MSG_PRE_VOTE);
    one_voted(&o, 2, o.out.term, RAFT_MSG_GRANTED);
    one_voted(&o, 3, o.out.term, RAFT_MSG_GRANTED);
    assert_int_equal(o.out.role, RAFT_CORE_LEADER);
    one_persisted(&o, raft_core_last_index(o.core));
    one_appended(&o, 2, 0, raft_core_last_index(o.core));
    one_appended(&o, 3, 0, raft_core_last_index(o.core));
    assert_true(o.out.is_ready);
    assert_int_equal(raft_config_remove(&config, 4), 0);
    one_take(&o, raft_core_change(o.core, o.now_ns, &config));
    one_take(&o, raft_core_transfer(o.core, o.now_ns, 2));
    one_close(&o);
}

/* R9: who frees the memory of events is not in libraft's header, and changes. */
static void test_memory_of_events_is_freed_once(void **state)
{
    static struct raft_heap heap = { .malloc = count_malloc,
                                     .free = count_free,
                                     .calloc = count_calloc,
                                     .realloc = count_realloc };
    struct raft_event event = { .type = RAFT_START };
    struct raft_entry e = lib_entry(2, RAFT_COMMAND);
    struct raft_configuration c;
    struct lib lib;
    size_t n;

    (void)state;
    raft_heap_set(&heap);
    lib_open(&lib, 3, 1); /* takes the list, or the count would not get to 0 */
    lib_append(&lib, 2, 2, 9, 2, 1, &e, 1); /* rejected: frees the batch */
    lib_append(&lib, 2, 2, 1, 1, 1, &e, 1); /* taken: lib_append() frees it */
    lib_close(&lib);
    assert_int_equal(n_blocks, 0);

    memset(&lib, 0, sizeof(lib)); /* a start that succeeds leaves the entries to us */
    assert_int_equal(raft_init(&lib.r, NULL, NULL, 1, "1"), 0);
    lib.r.tracer = NULL;
    c = lib_config(3);
    event.start.term = 1;
    event.start.start_index = 1;
    event.start.n_entries = 1;
    event.start.entries = raft_calloc(1, sizeof(*event.start.entries));
    event.start.entries[0].term = 1;
    event.start.entries[0].type = RAFT_CHANGE;
    assert_int_equal(raft_configuration_encode(&c, &event.start.entries[0].buf), 0);
    raft_configuration_close(&c);
    lib_step(&lib, &event);
    assert_int_equal(lib.rv, 0);
    n = n_blocks;
    raft_free(event.start.entries[0].buf.base);
    raft_free(event.start.entries);
    assert_int_equal(n_blocks, n - 2);
    lib_close(&lib);
    assert_int_equal(n_blocks, 0);

    core_use_memory();
    assert_int_equal(n_blocks, 0);
    raft_heap_set_default();
}

/* Fills the stack below the caller. */
static void __attribute__((noinline)) stack_fill(void)
{
    volatile uint8_t bytes[8192];

    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = 0xa5;
}

/* R10: the refusal of an earlier term carries an index that nobody has set. */
static void test_refusals_carry_no_unset_index(void **state)
{
    const struct raft_message *lm;
    const struct raft_msg *m;
    struct lib lib;
    struct one o;

    (void)state;
    lib_open(&lib, 3, 1);
    lib_append(&lib, 2, 5, 1, 1, 1, NULL, 0);
    stack_fill();
    lib_append(&lib, 3, 4, 0, 0, 1, NULL, 0);
    lm = lib_message(&lib, RAFT_APPEND_ENTRIES_RESULT, 3);
    assert_non_null(lm);
    assert_int_equal(lm->append_entries_result.rejected, 0); /* looks like success */
    assert_int_not_equal(lm->append_entries_result.last_log_index, 0);
    lib_close(&lib);

    one_open(&o, 3, 1);
    one_append(&o, 2, 5, 1, 1, 1, NULL, 0);
    stack_fill();
    one_append(&o, 3, 4, 0, 0, 1, NULL, 0);
    m = one_message(&o, RAFT_MSG_APPENDED, 3);
    assert_true(m != NULL && m->term == 5 && m->index == 0 && m->last == 0);
    assert_int_equal(m->echo_ns, 0);
    one_close(&o);
}

/* R11: a program of one name gets other entries. */
static void test_the_name_of_the_program_changes_nothing(void **state)
{
    char *name = __progname;
    static char special[] = "unit-test";
    struct lib lib;
    struct one o;

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        if (i == 1)
            __progname = special;
        lib_open(&lib, 3, 1);
        lib_elect(&lib);
        assert_int_equal(raft_last_index(&lib.r), 1 + i);
        lib_close(&lib);
        one_open(&o, 3, 1);
        one_elect(&o);
        assert_int_equal(raft_core_last_index(o.core), 2);
        one_close(&o);
    }
    __progname = name;
}

/* Gives out an address whose second byte is 0 for the name of a leader. */
static uint8_t arena[1 << 17];

static void *place_malloc(void *data, size_t size)
{
    (void)data;
    return size == 2 || size == 17 ? arena + (1 << 16) - ((uintptr_t)arena & 0xffff) + 16
                                   : malloc(size);
}
static void place_free(void *data, void *p)
{
    (void)data;
    if ((uint8_t *)p < arena || (uint8_t *)p >= arena + sizeof(arena))
        free(p);
}

/* R12: a late pre-vote makes a follower leave the term of its leader. */
static void test_late_votes_reach_candidates_only(void **state)
{
    static struct raft_heap heap = { .malloc = place_malloc,
                                     .free = place_free,
                                     .calloc = count_calloc,
                                     .realloc = count_realloc };
    struct lib lib;
    struct one o;

    (void)state;
    lib_open(&lib, 3, 1);
    lib_timeout(&lib); /* asks for pre-votes for term 2 */
    raft_heap_set(&heap);
    lib_append(&lib, 2, 1, 1, 1, 1, NULL, 0);
    assert_int_equal(raft_state(&lib.r), RAFT_FOLLOWER);
    lib_voted(&lib, 3, 2, true);
    assert_int_equal(raft_current_term(&lib.r), 2); /* the leader has to step down */
    lib_close(&lib);
    raft_heap_set_default();

    one_open(&o, 3, 1);
    while (o.out.role != RAFT_CORE_CANDIDATE)
        one_tick(&o);
    raft_heap_set(&heap);
    one_append(&o, 2, 1, 1, 1, 1, NULL, 0);
    one_voted(&o, 3, 2, RAFT_MSG_GRANTED | RAFT_MSG_PRE_VOTE);
    assert_int_equal(o.out.role, RAFT_CORE_FOLLOWER);
    assert_int_equal(o.out.term, 1);
    one_close(&o);
    raft_heap_set_default();
}

/* R13: a refused pre-vote hides the term of the voter, so its candidate stays behind. */
static void test_a_refused_pre_vote_tells_the_term(void **state)
{
    struct raft_message lm = { .type = RAFT_REQUEST_VOTE };
    const struct raft_message *answer;
    const struct raft_msg *m;
    struct lib lib;
    struct one o;

    (void)state;
    lib_open(&lib, 3, 1);
    lib_append(&lib, 3, 7, 1, 1, 1, NULL, 0);
    lib_timeout(&lib); /* no leader, term 7 */
    lm.request_vote.version = 2;
    lm.request_vote.term = 6; /* a candidate in term 5 with a longer log */
    lm.request_vote.candidate_id = 2;
    lm.request_vote.last_log_index = 9;
    lm.request_vote.last_log_term = 5;
    lm.request_vote.pre_vote = true;
    lib_receive(&lib, 2, &lm);
    answer = lib_message(&lib, RAFT_REQUEST_VOTE_RESULT, 2);
    assert_non_null(answer);
    assert_false(answer->request_vote_result.vote_granted);
    assert_int_equal(answer->request_vote_result.term,
                     6); /* the candidate will ask for 6 again */
    lib_close(&lib);

    one_open(&o, 3, 1);
    one_append(&o, 3, 7, 1, 1, 1, NULL, 0);
    while (o.out.role != RAFT_CORE_CANDIDATE)
        one_tick(&o);
    one_vote_request(&o, 2, 6, RAFT_MSG_PRE_VOTE);
    m = one_message(&o, RAFT_MSG_VOTED, 2);
    assert_true(m != NULL && m->term == 7 && m->flags == RAFT_MSG_PRE_VOTE);
    one_close(&o);
    one_open(&o, 3, 1); /* the candidate learns it */
    while (o.out.role != RAFT_CORE_CANDIDATE)
        one_tick(&o);
    one_voted(&o, 2, 7, RAFT_MSG_PRE_VOTE);
    assert_int_equal(o.out.term, 7);
    one_close(&o);
}

/* Sends libraft a late copy of entries that it has trimmed; returns 1 if it is wrong. */
static int lib_appends_trimmed_entries(void)
{
    struct raft_entry e[2] = { lib_entry(1, RAFT_COMMAND), lib_entry(1, RAFT_COMMAND) };
    struct lib lib;

    lib_open(&lib, 3, 5);
    lib_append(&lib, 2, 1, 0, 0, 1, e, 2);
    return raft_last_index(&lib.r) != 5; /* as 6 and 7 */
}

/* R14: entries below the log are appended at its end. */
static void test_entries_below_the_log_are_passed_over(void **state)
{
    struct raft_log_entry e[6];
    const struct raft_msg *m;
    struct one o;

    (void)state;
    assert_int_not_equal(run_apart(lib_appends_trimmed_entries), 0);

    for (unsigned i = 0; i < 6; i++)
        e[i] = entry_make(1 + i, 1);
    one_open(&o, 3, 5);
    one_append(&o, 2, 1, 0, 0, 1, e, 2);
    assert_int_equal(o.out.n_entries, 0);
    assert_int_equal(raft_core_last_index(o.core), 5);
    m = one_message(&o, RAFT_MSG_APPENDED, 2);
    assert_true(m != NULL && m->index == 0 && m->last == 5);
    one_append(&o, 2, 1, 0, 0, 1, e, 6);
    assert_int_equal(o.out.n_entries, 1);
    assert_int_equal(o.out.entries[0].index, 6);
    e[4].term = 2; /* other than what is committed here */
    assert_int_equal(one_append_rc(&o, 2, 2, 4, 1, 1, e + 4, 1), -EBADMSG);
    one_close(&o);
}

/* R15: a truncated list takes the one before it along, though that is committed. */
static void test_a_later_list_commits_the_one_before(void **state)
{
    struct raft_config two = core_config(2), three = core_config(2);
    uint8_t buf[2][RAFT_CONFIG_BYTES_MAX];
    struct raft_entry e[2] = { lib_change(2, 2), lib_change(3, 3) }, cut;
    struct raft_log_entry c[3];
    struct lib lib;
    struct one o;

    (void)state;
    lib_open(&lib, 3, 1);
    lib_append(&lib, 2, 2, 1, 1, 1, e, 1);
    lib_append(&lib, 2, 3, 2, 2, 1, e + 1, 1); /* 2 is committed: 3 came after it */
    lib_persisted(&lib, 3);
    cut = lib_entry(4, RAFT_BARRIER);
    lib_append(&lib, 2, 4, 2, 2, 1, &cut, 1);
    assert_int_equal(lib.r.configuration.n, 3); /* the list of 1, not of 2 */
    lib_close(&lib);
    raft_free(e[0].buf.base);
    raft_free(e[1].buf.base);

    one_open(&o, 3, 1);
    assert_int_equal(raft_config_set(&three, 3, RAFT_ROLE_STANDBY, ""), 0);
    c[0] = change_make(2, 2, &two, buf[0]);
    c[1] = change_make(3, 3, &three, buf[1]);
    one_append(&o, 2, 2, 1, 1, 1, c, 1);
    one_append(&o, 2, 3, 2, 2, 1, c + 1, 1);
    c[2] = entry_make(3, 4);
    one_append(&o, 2, 4, 2, 2, 1, c + 2, 1);
    assert_int_equal(o.out.truncate_from, 3);
    assert_int_equal(raft_core_config_index(o.core, NULL), 2);
    one_persisted(&o, 3);
    while (o.out.role != RAFT_CORE_CANDIDATE)
        one_tick(&o);
    assert_non_null(one_message(&o, RAFT_MSG_VOTE, 2));
    assert_null(one_message(&o, RAFT_MSG_VOTE, 3)); /* no member of that list */
    one_close(&o);
}

/* R16: the commit index of a follower goes back. */
static void test_the_commit_index_does_not_go_back(void **state)
{
    struct raft_entry e[4], other;
    struct raft_log_entry c[4], d = entry_make(4, 3);
    struct lib lib;
    struct one o;

    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        e[i] = lib_entry(2, RAFT_COMMAND);
        c[i] = entry_make(2 + i, 2);
    }
    lib_open(&lib, 3, 1);
    lib_append(&lib, 2, 2, 1, 1, 5, e, 4);
    assert_int_equal(raft_commit_index(&lib.r), 5);
    lib_append(&lib, 2, 2, 2, 2, 9, NULL, 0);
    assert_int_equal(raft_commit_index(&lib.r), 2);
    other = lib_entry(3, RAFT_COMMAND);
    lib_append(&lib, 3, 3, 3, 2, 2, &other, 1); /* not the committed entry 4 */
    assert_int_equal(lib.rv, 0);
    lib_close(&lib);

    one_open(&o, 3, 1);
    one_append(&o, 2, 2, 1, 1, 5, c, 4);
    one_append(&o, 2, 2, 2, 2, 9, NULL, 0);
    assert_int_equal(one_append_rc(&o, 3, 3, 3, 2, 2, &d, 1), -ROZO_EDAMAGED);
    assert_int_equal(raft_core_tick(o.core, o.now_ns),
                     -EIO); /* no event is taken after that */
    one_close(&o);
}

/* R17: a leader whose log begins at 2 does not see that a new member needs its store. */
static void test_a_new_member_of_a_new_group_is_seeded(void **state)
{
    const struct raft_message *lm;
    const struct raft_msg *m;
    struct lib lib;
    struct one o;

    (void)state;
    lib_open(&lib, 3, 1);
    lib_elect(&lib);
    lib_appended(&lib, 3, 1, 0);
    lib_timeout(&lib);
    lm = lib_message(&lib, RAFT_APPEND_ENTRIES, 3);
    assert_true(lm != NULL && lm->append_entries.prev_log_index == 0 &&
                lm->append_entries.n_entries == 0); /* for ever */
    assert_null(lib_message(&lib, RAFT_INSTALL_SNAPSHOT, 3));
    lib_close(&lib);

    one_open(&o, 3, 1);
    one_lead(&o);
    one_appended(&o, 3, 1, 0);
    one_tick(&o);
    assert_int_equal(o.out.seeding, 3);
    m = one_message(&o, RAFT_MSG_SEED, 3);
    assert_true(m != NULL && m->index == 1 && m->index_term == 1);
    one_close(&o);
    one_open(&o, 3, 1); /* the new member */
    struct raft_msg seed = msg_make(RAFT_MSG_SEED, 2, 2);
    seed.index = 9;
    seed.index_term = 2;
    one_take(&o, raft_core_receive(o.core, o.now_ns, &seed, NULL));
    assert_int_equal(o.out.seed_to, 9);
    one_close(&o);
}

/* R18: a leader waits without end for heartbeats to a member that became a spare. */
static void test_no_member_becomes_a_spare(void **state)
{
    struct raft_configuration c;
    struct raft_config config = core_config(3);
    struct raft_entry e = lib_entry(2, RAFT_CHANGE);
    struct lib lib;
    struct one o;

    (void)state;
    lib_open(&lib, 3, 1);
    lib_elect(&lib);
    c = lib_config(3);
    c.servers[2].role = RAFT_SPARE;
    assert_int_equal(raft_configuration_encode(&c, &e.buf), 0);
    raft_configuration_close(&c);
    lib_submit(&lib, &e, 1);
    for (unsigned i = 0; i < 5; i++) {
        lib_timeout(&lib);
        lib_appended(&lib, 2, 0, 1);
    }
    assert_true(raft_timeout(&lib.r) <= lib.now); /* due again, at once */
    lib_close(&lib);
    raft_free(e.buf.base);

    one_open(&o, 3, 1);
    one_lead(&o);
    assert_int_equal(raft_config_set(&config, 3, RAFT_ROLE_SPARE, ""), 0);
    assert_int_equal(raft_core_change(o.core, o.now_ns, &config), -EINVAL);
    assert_int_equal(raft_config_set(&config, 3, RAFT_ROLE_VOTER, ""), 0);
    assert_int_equal(raft_config_set(&config, 4, RAFT_ROLE_SPARE, ""), 0);
    one_take(&o, raft_core_change(o.core, o.now_ns, &config));
    one_persisted(&o, 3);
    one_appended(&o, 2, 0, 3);
    one_appended(&o, 4, 0, 3); /* a late answer, from before it was removed */
    assert_null(one_message(&o, RAFT_MSG_APPEND, 4));
    for (unsigned i = 0; i < 5; i++) {
        one_tick(&o);
        one_appended(&o, 2, 0, 3);
        assert_true(o.out.next_ns > o.now_ns);
    }
    one_close(&o);
}

/* R19: an only voter elects itself without a new term: entries of it may differ. */
static void test_an_only_voter_begins_a_new_term(void **state)
{
    struct raft_message lm = { .type = RAFT_TIMEOUT_NOW };
    struct raft_msg m = msg_make(RAFT_MSG_TIMEOUT_NOW, 2, 2);
    struct raft_config one_voter = core_config(2);
    uint8_t buf[RAFT_CONFIG_BYTES_MAX];
    struct raft_log_entry c = { .index = 0 };
    struct raft_entry e = lib_change(2, 1);
    struct lib lib;
    struct one o;

    (void)state;
    lib_open(&lib, 1, 1);
    assert_int_equal(raft_state(&lib.r), RAFT_LEADER);
    assert_int_equal(raft_current_term(&lib.r), 1); /* the term before its restart */
    lib_close(&lib);
    lib_open(&lib, 2, 1); /* 2 leads in term 2, and hands over to the only voter left */
    lib_append(&lib, 2, 2, 1, 1, 1, &e, 1);
    lib_persisted(&lib, 2);
    lm.timeout_now.term = 2;
    lm.timeout_now.last_log_index = lm.timeout_now.last_log_term = 2;
    lib_receive(&lib, 2, &lm);
    assert_int_equal(raft_state(&lib.r), RAFT_LEADER);
    assert_int_equal(raft_current_term(&lib.r), 2); /* as 2 does */
    lib_close(&lib);
    raft_free(e.buf.base);

    one_open(&o, 1, 1);
    assert_int_equal(o.out.role, RAFT_CORE_LEADER);
    assert_int_equal(o.out.term, 2);
    one_close(&o);
    one_open(&o, 2, 1);
    assert_int_equal(raft_config_remove(&one_voter, 2), 0);
    c = change_make(2, 2, &one_voter, buf);
    one_append(&o, 2, 2, 1, 1, 1, &c, 1);
    one_persisted(&o, 2);
    m.index = m.index_term = 2;
    one_take(&o, raft_core_receive(o.core, o.now_ns, &m, NULL));
    assert_int_equal(o.out.role, RAFT_CORE_FOLLOWER);
    one_tick(&o);
    assert_int_equal(o.out.role, RAFT_CORE_LEADER);
    assert_int_equal(o.out.term, 3);
    one_close(&o);
}

/* R20: a new voter that does not know it yet does not vote, and the group needs it. */
static void test_a_member_on_standby_votes(void **state)
{
    struct raft_snapshot_metadata store = { .index = 1,
                                            .term = 1,
                                            .configuration_index = 1 };
    struct raft_event event = { .type = RAFT_START };
    struct raft_core_saved saved = {
        .term = 1, .applied = 1, .applied_term = 1, .config_index = 1
    };
    const struct raft_message *lm;
    const struct raft_msg *m;
    struct lib lib;
    struct one o;

    (void)state;
    memset(&lib, 0, sizeof(lib));
    assert_int_equal(raft_init(&lib.r, NULL, NULL, 1, "1"), 0);
    lib.r.tracer = NULL;
    raft_configuration_init(&store.configuration);
    raft_configuration_add(&store.configuration, 1, "1", RAFT_STANDBY);
    raft_configuration_add(&store.configuration, 2, "2", RAFT_VOTER);
    event.start.term = 1;
    event.start.metadata = &store;
    event.start.start_index = 2;
    lib_step(&lib, &event);
    lib_vote_request(&lib, 2, 2, false);
    lm = lib_message(&lib, RAFT_REQUEST_VOTE_RESULT, 2);
    assert_true(lm != NULL && !lm->request_vote_result.vote_granted);
    lib_close(&lib);

    assert_int_equal(raft_config_set(&saved.config, 1, RAFT_ROLE_STANDBY, ""), 0);
    assert_int_equal(raft_config_set(&saved.config, 2, RAFT_ROLE_VOTER, ""), 0);
    one_open_saved(&o, &saved);
    o.now_ns += s_to_ns(1);
    one_append(&o, 2, 1, 1, 1, 1, NULL, 0);
    one_vote_request(&o, 3, 2, 0);
    m = one_message(&o, RAFT_MSG_VOTED, 3); /* promised to 2 */
    assert_true(m != NULL && (m->flags & RAFT_MSG_GRANTED) == 0);
    o.now_ns += ms_to_ns(E_MS);
    one_vote_request(&o, 3, 2, 0);
    m = one_message(&o, RAFT_MSG_VOTED, 3);
    assert_true(m != NULL && (m->flags & RAFT_MSG_GRANTED) != 0);
    while (o.now_ns < s_to_ns(20)) { /* no campaign */
        one_tick(&o);
        assert_int_equal(o.out.role, RAFT_CORE_FOLLOWER);
    }
    one_close(&o);
}

/* R21: a member on its way out does not campaign, though its log is the longest. */
static void test_voters_do_not_leave_by_themselves(void **state)
{
    struct raft_config config = core_config(3);
    struct raft_configuration c = lib_config(3);
    struct raft_entry e = lib_entry(2, RAFT_CHANGE);
    struct lib lib;
    struct one o;

    (void)state;
    lib_open(&lib, 3, 1); /* the entry is not committed; others may never get it */
    c.servers[0].role = RAFT_STANDBY;
    assert_int_equal(raft_configuration_encode(&c, &e.buf), 0);
    raft_configuration_close(&c);
    lib_append(&lib, 2, 2, 1, 1, 1, &e, 1);
    lib_persisted(&lib, 2);
    for (unsigned i = 0; i < 10; i++) {
        lib_timeout(&lib);
        assert_int_equal(raft_state(&lib.r), RAFT_FOLLOWER);
    }
    lib_close(&lib);
    raft_free(e.buf.base);

    one_open(&o, 3, 1);
    one_lead(&o);
    assert_int_equal(raft_config_set(&config, 3, RAFT_ROLE_STANDBY, ""), 0);
    assert_int_equal(raft_core_change(o.core, o.now_ns, &config), -EINVAL);
    config = core_config(3);
    assert_int_equal(raft_config_remove(&config, 1), 0);
    assert_int_equal(raft_core_change(o.core, o.now_ns, &config), -EINVAL);
    config = core_config(2);
    one_take(&o, raft_core_change(o.core, o.now_ns, &config));
    assert_null(one_message(&o, RAFT_MSG_APPEND, 3)); /* not even of its removal */
    one_close(&o);
}

/* Two followers of libraft whose leader has died, with an ideal network. */
struct pair {
    struct lib members[2];
};

static void pair_open(struct pair *p, bool pre_vote, unsigned seed)
{
    for (unsigned i = 0; i < 2; i++) {
        struct lib *lib = &p->members[i];

        lib_open(lib, 3, 1);
        lib->r.id = i + 1;
        raft_seed(&lib->r, seed * 2654435761u + i * 40503u);
        raft_set_election_timeout(&lib->r, 1000);
        raft_set_pre_vote(&lib->r, pre_vote);
        lib_append(lib, 3, 1, 1, 1, 1, NULL, 0);
    }
}

/* Carries the messages of a member to the other one, and their answers back. */
static void pair_deliver(struct pair *p, unsigned from)
{
    struct lib *lib = &p->members[from], *other = &p->members[1 - from];
    struct raft_message messages[8];
    unsigned n = 0;

    for (unsigned i = 0; i < lib->update.messages.n; i++) {
        if (lib->update.messages.batch[i].server_id == 2 - from)
            messages[n++] = lib->update.messages.batch[i];
        assert_true(n < 8);
    }
    lib->update.messages.n = 0;
    other->now = lib->now;
    for (unsigned i = 0; i < n; i++) {
        if (messages[i].type == RAFT_APPEND_ENTRIES)
            continue;
        lib_receive(other, from + 1, &messages[i]);
        assert_int_equal(other->rv, 0);
        pair_deliver(p, 1 - from);
    }
}

/* Returns the time until one of two survivors leads, in ms. */
static unsigned pair_election_ms(bool pre_vote, unsigned seed)
{
    struct pair p;
    raft_time start = 1000, end = 0;

    pair_open(&p, pre_vote, seed);
    while (end == 0) {
        raft_time at[2] = { raft_timeout(&p.members[0].r),
                            raft_timeout(&p.members[1].r) };
        unsigned i = at[1] < at[0];
        raft_index last = raft_last_index(&p.members[i].r);

        assert_true(at[i] < start + 60000);
        p.members[i].now = at[i];
        lib_timeout(&p.members[i]);
        pair_deliver(&p, i);
        for (unsigned k = 0; k < 2; k++) {
            if (raft_state(&p.members[k].r) == RAFT_LEADER)
                end = at[i];
        }
        assert_int_equal(raft_last_index(&p.members[i].r), last); /* no barrier */
    }
    for (unsigned k = 0; k < 2; k++)
        lib_close(&p.members[k]);
    return (unsigned)(end - start);
}

static int unsigned_compare(const void *a, const void *b)
{
    return *(const unsigned *)a < *(const unsigned *)b ? -1 : 1;
}

/* Without pre-vote, the first survivor to ask is refused and leaves the term. */
static void test_elections_are_slow_without_pre_vote(void **state)
{
    enum { N = 400 };
    unsigned ms[2][N];

    (void)state;
    for (unsigned k = 0; k < 2; k++) {
        for (unsigned i = 0; i < N; i++)
            ms[k][i] = pair_election_ms(k == 1, i + 1);
        qsort(ms[k], N, sizeof(ms[k][0]), unsigned_compare);
        print_message("%s pre-vote: p50 %u ms, p99 %u ms, max %u ms\n",
                      k == 0 ? "without" : "with", ms[k][N / 2], ms[k][N * 99 / 100],
                      ms[k][N - 1]);
    }
    assert_true(ms[0][N / 2] > ms[1][N / 2] + 500);
    assert_true(ms[1][N - 1] <= 2000); /* the later timer at most */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_list_inside_a_batch_is_noted_rightly),
        cmocka_unit_test(test_a_change_waits_for_an_entry_of_the_term),
        cmocka_unit_test(test_a_follower_that_lost_entries_must_join),
        cmocka_unit_test(test_answers_to_an_earlier_term_are_no_loss),
        cmocka_unit_test(test_nothing_is_applied_before_it_is_persisted),
        cmocka_unit_test(test_a_restarted_voter_does_not_vote_at_once),
        cmocka_unit_test(test_the_lease_ends_before_a_transfer),
        cmocka_unit_test(test_a_transfer_waits_for_all_entries),
        cmocka_unit_test(test_a_transfer_to_a_slow_member_ends),
        cmocka_unit_test(test_impossible_messages_are_refused),
        cmocka_unit_test(test_messages_are_limited_in_bytes),
        cmocka_unit_test(test_nothing_is_traced),
        cmocka_unit_test(test_memory_of_events_is_freed_once),
        cmocka_unit_test(test_refusals_carry_no_unset_index),
        cmocka_unit_test(test_the_name_of_the_program_changes_nothing),
        cmocka_unit_test(test_late_votes_reach_candidates_only),
        cmocka_unit_test(test_a_refused_pre_vote_tells_the_term),
        cmocka_unit_test(test_entries_below_the_log_are_passed_over),
        cmocka_unit_test(test_a_later_list_commits_the_one_before),
        cmocka_unit_test(test_the_commit_index_does_not_go_back),
        cmocka_unit_test(test_a_new_member_of_a_new_group_is_seeded),
        cmocka_unit_test(test_no_member_becomes_a_spare),
        cmocka_unit_test(test_an_only_voter_begins_a_new_term),
        cmocka_unit_test(test_a_member_on_standby_votes),
        cmocka_unit_test(test_voters_do_not_leave_by_themselves),
        cmocka_unit_test(test_elections_are_slow_without_pre_vote),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
