/*
 * Goal: a group sends each request, as the same request, to the member that leads, and
 * believes no member that has been deposed. Method: members are fake channels whose other
 * end is the test, on a virtual clock.
 */
#include <errno.h>
#include <stdio.h>

#include "common/proto/rozo.pb-c.h"

#include "common/base/list.h"
#include "common/group/rpc_group.h"
#include "tests/lib/env_virtual.h"
#include "tests/unit/unit.h"

enum { N = 3, SENT_MAX = 32, DEADLINE_MS = 5000, OP = ROZO__OP__MD_CREATE };

/* A member: requests that it got and has not answered, oldest first. */
struct fake {
    struct rpc_channel channel; /* must be the first member */
    struct rpc_request *sent[SENT_MAX];
    unsigned n_sent, n_cancelled;
    unsigned n_ever; /* requests, MD_WAIT_LEADER not counted */
    enum rpc_health health;
    unsigned n_connects; /* calls of rpc_connect_now() */
    uint8_t asked[32];   /* message of the newest MD_WAIT_LEADER */
    size_t asked_len;
};

/* A request of the user, and how it ended. */
struct user {
    struct rpc_request rq;
    struct fixture *f;
    unsigned n_done, n_placed;
    int rc;
    uint16_t status;
    char answer[16];
    uint8_t bytes[16];
    bool closes; /* done() closes the group */
};

struct fixture {
    struct env_virtual env;
    struct fake members[N];
    struct rpc_group *g; /* NULL: closed */
    struct rpc_channel *channel;
    unsigned n_moved, n_closed;
    struct user users[SENT_MAX];
    unsigned n_told;
    struct exportd_list told; /* the newest one */
    bool told_leads;
};

static void fake_send(struct rpc_channel *ch, struct rpc_request *rq)
{
    struct fake *m = (struct fake *)ch;

    assert_true(m->n_sent < SENT_MAX && rq->deadline_ms != 0);
    assert_true(rq->again != 0); /* all ids are the group's */
    rq->id = rq->again;
    m->n_ever += rq->op != ROZO__OP__MD_WAIT_LEADER;
    if (rq->op == ROZO__OP__MD_WAIT_LEADER) {
        assert_true(rq->msg_len <= sizeof(m->asked) && rq->start == 0);
        m->asked_len = rq->msg_len;
        memcpy(m->asked, rq->msg, rq->msg_len);
    }
    m->sent[m->n_sent++] = rq;
}

static struct rpc_request *fake_take(struct fake *m, unsigned i)
{
    struct rpc_request *rq = m->sent[i];

    assert_true(i < m->n_sent);
    m->n_sent--;
    memmove(&m->sent[i], &m->sent[i + 1], (m->n_sent - i) * sizeof(m->sent[0]));
    return rq;
}

static void fake_cancel(struct rpc_channel *ch, struct rpc_request *rq)
{
    struct fake *m = (struct fake *)ch;
    unsigned i = 0;

    while (i < m->n_sent && m->sent[i] != rq)
        i++;
    fake_take(m, i);
    m->n_cancelled++;
}

static enum rpc_health fake_health(struct rpc_channel *ch)
{
    return ((struct fake *)ch)->health;
}

static void fake_connect_now(struct rpc_channel *ch)
{
    ((struct fake *)ch)->n_connects++;
}

static const struct rpc_channel_ops fake_ops = { fake_send, fake_cancel, fake_health,
                                                 fake_connect_now };

/* Returns the place of MD_WAIT_LEADER among the requests of a member; -1: none. */
static int asked_at(struct fixture *f, unsigned member)
{
    const struct fake *m = &f->members[member];
    int found = -1;

    for (unsigned i = 0; i < m->n_sent; i++) {
        if (m->sent[i]->op == ROZO__OP__MD_WAIT_LEADER) {
            assert_int_equal(found, -1); /* one at a time */
            found = (int)i;
        }
    }
    return found;
}

static unsigned n_at(struct fixture *f, unsigned member)
{
    return f->members[member].n_sent - (asked_at(f, member) >= 0);
}

static void answer_rq(struct fixture *f, unsigned member, unsigned i, uint16_t status,
                      const void *msg, size_t len)
{
    struct rpc_request *rq = fake_take(&f->members[member], i);

    rq->status = status;
    rq->answer_msg = msg;
    rq->answer_msg_len = len;
    rq->answer_payload = NULL;
    rq->answer_payload_len = 0;
    rq->done(rq, 0);
}

/* Answers the question of the group to a member with `status`. */
static void says(struct fixture *f, unsigned member, uint16_t status)
{
    int i = asked_at(f, member);

    assert_true(i >= 0);
    answer_rq(f, member, (unsigned)i, status, NULL, 0);
}

/* The member says that it leads, after so many starts. */
static void leads(struct fixture *f, unsigned member, uint64_t start)
{
    Rozo__MdWaitLeaderResp resp = ROZO__MD_WAIT_LEADER_RESP__INIT;
    uint8_t msg[16];
    int i;

    for (unsigned ms = 0; asked_at(f, member) < 0 && ms < 1000; ms++)
        env_virtual_advance_ms(&f->env, 1);
    i = asked_at(f, member);
    assert_true(i >= 0);
    resp.start = start;
    answer_rq(f, member, (unsigned)i, ROZO__STATUS__OK, msg,
              rozo__md_wait_leader_resp__pack(&resp, msg));
}

/* Returns the place of the user's request at a member; it must be there. */
static unsigned find(struct fixture *f, unsigned member, const struct user *u)
{
    struct fake *m = &f->members[member];
    unsigned i = 0;

    while (i < m->n_sent && m->sent[i]->id != u->rq.id)
        i++;
    assert_true(i < m->n_sent);
    assert_int_equal(m->sent[i]->op, OP);
    return i;
}

static bool is_at(struct fixture *f, unsigned member, const struct user *u)
{
    struct fake *m = &f->members[member];

    for (unsigned i = 0; i < m->n_sent; i++) {
        if (m->sent[i]->id == u->rq.id)
            return true;
    }
    return false;
}

static void answer(struct fixture *f, unsigned member, const struct user *u,
                   uint16_t status)
{
    answer_rq(f, member, find(f, member, u), status, "answer", 7);
}

static void on_closed(void *arg)
{
    struct fixture *f = arg;

    f->n_closed++;
    f->g = NULL;
}

static void on_moved(void *arg)
{
    ((struct fixture *)arg)->n_moved++;
}

static void on_done(struct rpc_request *rq, int rc)
{
    struct user *u = rq->arg;

    u->n_done++;
    u->rc = rc;
    u->status = rq->status;
    if (rc == 0)
        snprintf(u->answer, sizeof(u->answer), "%.*s", (int)rq->answer_msg_len,
                 (const char *)rq->answer_msg);
    if (u->closes)
        rpc_group_close(u->f->g, on_closed, u->f);
}

static void on_list(void *arg, const struct exportd_list *list, bool leads)
{
    struct fixture *f = arg;

    f->n_told++;
    f->told = *list;
    f->told_leads = leads;
}

static void fixture_begin_as(struct fixture *f, unsigned n, bool wants_lists)
{
    struct rpc_channel *channels[N];
    struct rpc_group_config config = {
        .members = channels, .n_members = n, .moved = on_moved, .arg = f
    };

    if (wants_lists)
        config.told = on_list;
    memset(f, 0, sizeof(*f));
    env_virtual_init(&f->env, 1);
    for (unsigned i = 0; i < N; i++) {
        f->members[i].channel.ops = &fake_ops;
        f->members[i].health = RPC_UP;
        channels[i] = &f->members[i].channel;
    }
    assert_int_equal(rpc_group_new(&f->env.env, &config, &f->g), 0);
    f->channel = rpc_group_channel(f->g);
    rpc_group_set_session(f->g, 77);
}

static void fixture_begin(struct fixture *f, unsigned n)
{
    fixture_begin_as(f, n, false);
}

static void fixture_end(struct fixture *f)
{
    if (f->g != NULL)
        rpc_group_close(f->g, on_closed, f);
    env_virtual_run_posted(&f->env);
    assert_int_equal(f->n_closed, 1);
    for (unsigned i = 0; i < N; i++)
        assert_int_equal(f->members[i].n_sent, 0);
    assert_false(env_virtual_run_next_timer(&f->env)); /* none is left */
    env_virtual_close(&f->env);
}

static int setup(void **state)
{
    static struct fixture f;

    fixture_begin(&f, N);
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    fixture_end(*state);
    return 0;
}

static struct user *send_again(struct fixture *f, unsigned i, uint64_t again)
{
    struct user *u = &f->users[i];
    char msg[8] = "message";

    memset(u, 0, sizeof(*u));
    u->f = f;
    u->rq = (struct rpc_request){
        .op = OP,
        .deadline_ms = DEADLINE_MS,
        .msg = msg,
        .msg_len = sizeof(msg),
        .done = on_done,
        .arg = u,
        .again = again,
    };
    rpc_send(f->channel, &u->rq);
    memset(msg, 0, sizeof(msg)); /* copied by then */
    assert_int_equal(u->n_done, 0);
    assert_true(u->rq.id != 0);
    return u;
}

static struct user *send(struct fixture *f, unsigned i)
{
    return send_again(f, i, 0);
}

static void assert_sent_whole(struct fixture *f, unsigned member, const struct user *u)
{
    const struct rpc_request *rq = f->members[member].sent[find(f, member, u)];

    assert_int_equal(rq->msg_len, 8);
    assert_string_equal(rq->msg, "message");
    assert_int_equal(rq->session, 77);
}

static void assert_ok(const struct user *u)
{
    assert_int_equal(u->n_done, 1);
    assert_int_equal(u->rc, 0);
    assert_int_equal(u->status, ROZO__STATUS__OK);
    assert_string_equal(u->answer, "answer");
}

static void test_requests_wait_for_a_leader(void **state)
{
    struct fixture *f = *state;
    struct user *a, *b;

    for (unsigned i = 0; i < N; i++)
        assert_true(asked_at(f, i) >= 0);
    a = send(f, 0);
    b = send(f, 1);
    assert_int_equal(rpc_channel_health(f->channel), RPC_SUSPECT);
    assert_int_equal(n_at(f, 0) + n_at(f, 1) + n_at(f, 2), 0);
    leads(f, 1, 5);
    assert_int_equal(rpc_channel_health(f->channel), RPC_UP);
    assert_int_equal(rpc_group_start(f->g), 5);
    assert_true(rpc_group_leads(f->g, 1));
    assert_int_equal(f->n_moved, 1);
    assert_true(find(f, 1, a) < find(f, 1, b)); /* in order of arrival */
    assert_sent_whole(f, 1, a);
    answer(f, 1, a, ROZO__STATUS__OK);
    answer(f, 1, b, ROZO__STATUS__OK);
    assert_ok(a);
    assert_ok(b);
    assert_int_equal(asked_at(f, 1), -1); /* the others are still asked */
    assert_true(asked_at(f, 0) >= 0 && asked_at(f, 2) >= 0);
}

static void test_a_refused_request_is_the_same_one_at_the_next_leader(void **state)
{
    struct fixture *f = *state;
    struct user *u;
    uint64_t id;

    leads(f, 0, 5);
    u = send(f, 0);
    id = u->rq.id;
    answer(f, 0, u, ROZO__STATUS__NOT_LEADER);
    assert_int_equal(u->n_done, 0);
    assert_false(rpc_group_leads(f->g, 0));
    leads(f, 2, 6);
    assert_int_equal(u->rq.id, id);
    assert_sent_whole(f, 2, u);
    answer(f, 2, u, ROZO__STATUS__OK);
    assert_ok(u);
}

static void test_an_answer_of_a_deposed_leader_does_not_count(void **state)
{
    struct fixture *f = *state;
    struct user *u;

    leads(f, 0, 5);
    u = send(f, 0);
    leads(f, 1, 6);               /* member 0 hangs, and has the request */
    assert_false(is_at(f, 0, u)); /* cancelled: no answer from there can come */
    assert_int_equal(f->members[0].n_cancelled, 1);
    assert_int_equal(f->n_moved, 2);
    answer(f, 1, u, ROZO__STATUS__OK);
    assert_ok(u);
}

static void test_a_stale_leader_is_not_believed(void **state)
{
    struct fixture *f = *state;
    struct user *u;

    leads(f, 1, 6);
    leads(f, 0, 5); /* deposed, without knowing */
    assert_false(rpc_group_leads(f->g, 0));
    u = send(f, 0);
    assert_int_equal(n_at(f, 0), 0);
    answer(f, 1, u, ROZO__STATUS__NOT_LEADER);
    leads(f, 0, 5); /* still not, though nobody else leads */
    assert_int_equal(n_at(f, 0), 0);
    assert_int_equal(rpc_group_start(f->g), 6);
    leads(f, 0, 7);
    answer(f, 0, u, ROZO__STATUS__OK);
    assert_ok(u);
}

static void test_the_same_member_leads_again(void **state)
{
    struct fixture *f = *state;
    struct user *u;

    leads(f, 0, 5);
    u = send(f, 0);
    answer(f, 0, u, ROZO__STATUS__NOT_LEADER);
    assert_int_equal(asked_at(f, 0), -1); /* not at once: it may refuse for long */
    leads(f, 0, 6);
    answer(f, 0, u, ROZO__STATUS__OK);
    assert_ok(u);
}

static void test_a_start_that_others_know_deposes(void **state)
{
    struct fixture *f = *state;
    struct user *u;

    leads(f, 0, 5);
    u = send(f, 0);
    rpc_group_at_least(f->g, 5);
    assert_true(is_at(f, 0, u));
    rpc_group_at_least(f->g, 6);
    assert_false(is_at(f, 0, u));
    leads(f, 0, 5);
    assert_false(is_at(f, 0, u));
    leads(f, 2, 6);
    answer(f, 2, u, ROZO__STATUS__OK);
    assert_ok(u);
}

static void test_deadlines_hold_without_a_leader(void **state)
{
    struct fixture *f = *state;
    struct user *a, *b;

    a = send(f, 0);
    env_virtual_advance_ms(&f->env, DEADLINE_MS - 1);
    assert_int_equal(a->n_done, 0);
    env_virtual_advance_ms(&f->env, 1);
    assert_int_equal(a->n_done, 1);
    assert_int_equal(a->rc, -ETIMEDOUT);
    for (unsigned i = 0; i < N; i++)
        f->members[i].health = RPC_DOWN;
    assert_int_equal(rpc_channel_health(f->channel), RPC_DOWN);
    b = send(f, 1);
    env_virtual_advance_ms(&f->env, DEADLINE_MS);
    assert_int_equal(b->rc, -ENOTCONN);
}

static void test_a_deadline_does_not_begin_again_at_the_next_leader(void **state)
{
    struct fixture *f = *state;
    struct user *u;

    leads(f, 0, 5);
    u = send(f, 0);
    assert_int_equal(f->members[0].sent[find(f, 0, u)]->deadline_ms, DEADLINE_MS);
    env_virtual_advance_ms(&f->env, 1000);
    answer(f, 0, u, ROZO__STATUS__NOT_LEADER);
    env_virtual_advance_ms(&f->env, 1000);
    leads(f, 1, 6);
    assert_int_equal(f->members[1].sent[find(f, 1, u)]->deadline_ms, DEADLINE_MS - 2000);
    env_virtual_advance_ms(&f->env, 1000);
    answer(f, 1, u, ROZO__STATUS__NOT_LEADER);
    env_virtual_advance_ms(&f->env, DEADLINE_MS - 3000);
    assert_int_equal(u->n_done, 1);
    assert_int_equal(u->rc, -ETIMEDOUT);
}

static void test_errors_of_the_channel_pass(void **state)
{
    struct fixture *f = *state;
    struct user *u;
    struct rpc_request *rq;

    leads(f, 0, 5);
    u = send(f, 0);
    rq = fake_take(&f->members[0], find(f, 0, u));
    rq->done(rq, -ETIMEDOUT);
    assert_int_equal(u->n_done, 1);
    assert_int_equal(u->rc, -ETIMEDOUT);
}

static void test_cancel_in_every_state(void **state)
{
    struct fixture *f = *state;
    struct user *u;

    u = send(f, 0);
    rpc_cancel(&u->rq); /* waits for a leader */
    leads(f, 0, 5);
    assert_int_equal(n_at(f, 0), 0);
    u = send(f, 1);
    rpc_cancel(&u->rq); /* at the leader */
    assert_int_equal(n_at(f, 0), 0);
    u = send(f, 2);
    answer(f, 0, u, ROZO__STATUS__NOT_LEADER);
    rpc_cancel(&u->rq); /* refused, waits for the next */
    u = send(f, 3);
    leads(f, 1, 6);
    rpc_cancel(&u->rq); /* moved */
    assert_int_equal(n_at(f, 1), 0);
    u = send(f, 4);
    rpc_group_close(f->g, on_closed, f);
    rpc_cancel(&u->rq); /* done() is posted */
    env_virtual_run_posted(&f->env);
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(f->users[i].n_done, 0);
}

static void test_close_ends_requests_in_every_state(void **state)
{
    struct fixture *f = *state;
    struct user *sent, *waits;

    leads(f, 0, 5);
    sent = send(f, 0);
    waits = send(f, 1);
    answer(f, 0, waits, ROZO__STATUS__NOT_LEADER);
    assert_true(is_at(f, 0, sent));
    rpc_group_close(f->g, on_closed, f);
    assert_int_equal(sent->n_done + waits->n_done + f->n_closed, 0); /* posted */
    send(f, 2);
    env_virtual_run_posted(&f->env);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(f->users[i].n_done, 1);
        assert_int_equal(f->users[i].rc, -ENOTCONN);
    }
}

static void test_an_answer_may_close_the_group(void **state)
{
    struct fixture *f = *state;
    struct user *u, *other;

    leads(f, 0, 5);
    u = send(f, 0);
    other = send(f, 1);
    u->closes = true;
    answer(f, 0, u, ROZO__STATUS__OK);
    assert_ok(u);
    env_virtual_run_posted(&f->env);
    assert_int_equal(other->rc, -ENOTCONN);
}

static void test_a_deadline_may_close_the_group(void **state)
{
    struct fixture *f = *state;
    struct user *u = send(f, 0);

    u->closes = true;
    env_virtual_advance_ms(&f->env, DEADLINE_MS);
    assert_int_equal(u->rc, -ETIMEDOUT);
}

static void test_one_member_is_not_asked_until_it_refuses(void **state)
{
    struct fixture f;
    struct user *u;

    (void)state;
    fixture_begin(&f, 1);
    env_virtual_advance_ms(&f.env, 60000);
    assert_int_equal(asked_at(&f, 0), -1);
    u = send(&f, 0);
    answer(&f, 0, u, ROZO__STATUS__OK);
    assert_ok(u);
    f.members[0].health = RPC_DOWN;
    assert_int_equal(rpc_channel_health(f.channel), RPC_DOWN);
    u = send(&f, 1); /* the channel waits for a link */
    assert_true(is_at(&f, 0, u));
    answer(&f, 0, u, ROZO__STATUS__NOT_LEADER);
    leads(&f, 0, 9);
    answer(&f, 0, u, ROZO__STATUS__OK);
    assert_ok(u);
    fixture_end(&f);
}

static void test_an_exportd_that_knows_no_quorum_leads(void **state)
{
    struct fixture *f = *state;
    struct user *u;

    u = send(f, 0);
    says(f, 2, ROZO__STATUS__UNKNOWN_OP);
    answer(f, 2, u, ROZO__STATUS__OK);
    assert_ok(u);
    leads(f, 0, 1); /* a newer one has priority */
    u = send(f, 1);
    answer(f, 0, u, ROZO__STATUS__OK);
    assert_ok(u);
}

static void test_members_are_asked_again(void **state)
{
    static const uint16_t statuses[] = { ROZO__STATUS__NOT_LEADER, ROZO__STATUS__BUSY,
                                         ROZO__STATUS__DENIED };
    struct fixture *f = *state;
    struct rpc_request *rq;

    for (unsigned i = 0; i < 3; i++) {
        says(f, 0, statuses[i]);
        assert_int_equal(asked_at(f, 0), -1);
        env_virtual_advance_ms(&f->env, 20);
        assert_int_equal(asked_at(f, 0), -1); /* not in a hurry */
        env_virtual_advance_ms(&f->env, 200);
        assert_true(asked_at(f, 0) >= 0);
    }
    env_virtual_advance_ms(&f->env, 20000);
    says(f, 0, ROZO__STATUS__NOT_LEADER); /* held for a lease */
    env_virtual_advance_ms(&f->env, 1);
    assert_true(asked_at(f, 0) >= 0);
    rq = fake_take(&f->members[0], (unsigned)asked_at(f, 0));
    rq->done(rq, -ENOTCONN);
    answer_rq(f, 1, (unsigned)asked_at(f, 1), ROZO__STATUS__OK, "\xff\xff", 2); /* I8 */
    assert_false(rpc_group_leads(f->g, 1));
    leads(f, 0, 5);
    assert_true(rpc_group_leads(f->g, 0));
}

static void test_addresses_of_one_exportd_share_requests(void **state)
{
    struct fixture *f = *state;
    struct user *u;

    leads(f, 0, 5);
    leads(f, 1, 5);
    assert_int_equal(f->n_moved, 1);
    for (unsigned i = 0; i < 6; i++)
        send(f, i);
    assert_int_equal(n_at(f, 0), 3);
    assert_int_equal(n_at(f, 1), 3);
    f->members[0].health = RPC_DOWN;
    u = send(f, 6);
    assert_true(is_at(f, 1, u)); /* new requests avoid it at once */
    env_virtual_advance_ms(&f->env, 500);
    assert_int_equal(n_at(f, 0), 0); /* requests under way move */
    assert_int_equal(n_at(f, 1), 7);
    assert_int_equal(f->n_moved, 2);
    for (unsigned i = 0; i < 7; i++) {
        answer(f, 1, &f->users[i], ROZO__STATUS__OK);
        assert_ok(&f->users[i]);
    }
}

static void test_a_hung_address_gives_its_requests_away(void **state)
{
    struct fixture *f = *state;
    struct user *a, *b;

    leads(f, 0, 5);
    leads(f, 1, 5);
    a = send(f, 0);
    b = send(f, 1);
    assert_int_equal(is_at(f, 0, a) + is_at(f, 0, b), 1);
    f->members[0].health = RPC_SUSPECT;
    env_virtual_advance_ms(&f->env, 1000);
    assert_int_equal(n_at(f, 0), 1); /* a stall of exportd */
    env_virtual_advance_ms(&f->env, 2000);
    assert_int_equal(n_at(f, 0), 0);
    assert_int_equal(n_at(f, 1), 2);
    f->members[0].health = f->members[1].health = RPC_SUSPECT;
    env_virtual_advance_ms(&f->env, 2100); /* nowhere to go: they stay */
    assert_int_equal(n_at(f, 1), 2);
}

static void test_only_so_much_waits(void **state)
{
    static uint8_t bytes[RPC_PAYLOAD_MAX];
    struct iovec iov = { bytes, sizeof(bytes) };
    struct fixture *f = *state;
    unsigned n = 0;

    for (unsigned i = 0; i < 10; i++) {
        struct user *u = &f->users[i];

        u->rq = (struct rpc_request){ .op = OP,
                                      .deadline_ms = DEADLINE_MS,
                                      .payload = &iov,
                                      .n_payload = 1,
                                      .done = on_done,
                                      .arg = u };
        rpc_send(f->channel, &u->rq);
    }
    env_virtual_run_posted(&f->env);
    for (unsigned i = 0; i < 10; i++) {
        n += f->users[i].n_done;
        assert_true(f->users[i].n_done == 0 || f->users[i].rc == -ENOTCONN);
    }
    assert_int_equal(n, 3); /* 7 times 8 MiB are below 64 MiB */
    leads(f, 0, 1);
    assert_int_equal(n_at(f, 0), 7);
}

static int on_place(struct rpc_request *rq, size_t rest_len, struct iovec *iov)
{
    struct user *u = rq->arg;

    u->n_placed++;
    assert_int_equal(rq->answer_payload_len, rest_len);
    iov[0] = (struct iovec){ u->bytes, rest_len };
    return 1;
}

static void test_no_answer_is_placed_twice(void **state)
{
    struct fixture *f = *state;
    struct user *u = &f->users[0];
    struct rpc_request *inner;
    struct iovec iov;

    leads(f, 0, 5);
    u->rq = (struct rpc_request){
        .op = OP, .deadline_ms = DEADLINE_MS, .place = on_place, .done = on_done, .arg = u
    };
    rpc_send(f->channel, &u->rq);
    inner = f->members[0].sent[find(f, 0, u)];
    inner->answer_payload_len = 8;
    assert_int_equal(inner->place(inner, 8, &iov), 1);
    assert_ptr_equal(iov.iov_base, u->bytes);
    leads(f, 1, 6);
    assert_int_equal(n_at(f, 1), 0);
    env_virtual_run_posted(&f->env);
    assert_int_equal(u->n_done, 1);
    assert_int_equal(u->rc, -ENOTCONN);
    assert_int_equal(u->n_placed, 1);
}

static void test_a_request_that_was_answered_before_keeps_its_id(void **state)
{
    struct fixture *f = *state;
    struct user *u;

    leads(f, 0, 5);
    u = send_again(f, 0, 4711);
    assert_int_equal(u->rq.id, 4711);
    answer(f, 0, u, ROZO__STATUS__NOT_LEADER);
    leads(f, 1, 6);
    assert_int_equal(u->rq.id, 4711);
    assert_sent_whole(f, 1, u);
}

/*
 * Random fail-overs: one member leads at a time, a deposed one may go on answering. Each
 * request ends once, and what the members executed under its id is one change.
 */
static void run_seed(uint64_t seed)
{
    struct fixture f;
    uint64_t start = 1, led[N] = { 1 }; /* the newest start of each member */
    unsigned leader = 0, n_out = 0;

    fixture_begin(&f, N);
    f.env.random_state = seed;
    for (unsigned step = 0; step < 300; step++) {
        unsigned m = (unsigned)env_virtual_below(&f.env, N);
        struct fake *member = &f.members[m];

        switch (env_virtual_below(&f.env, 6)) {
        case 0: /* a fail-over */
            leader = m;
            led[m] = ++start;
            break;
        case 1:
            if (n_out < SENT_MAX)
                send(&f, n_out++);
            break;
        case 2: /* a member answers the group's question */
            if (asked_at(&f, m) < 0)
                break;
            if (m == leader || (led[m] != 0 && env_virtual_below(&f.env, 4) == 0))
                leads(&f, m, led[m]);
            else
                says(&f, m, ROZO__STATUS__NOT_LEADER);
            break;
        case 3: /* a member answers a request */
            if (n_at(&f, m) == 0)
                break;
            for (unsigned i = 0; i < member->n_sent; i++) {
                if (member->sent[i]->op != OP)
                    continue;
                answer_rq(&f, m, i,
                          m == leader ? ROZO__STATUS__OK : ROZO__STATUS__NOT_LEADER,
                          "answer", 7);
                break;
            }
            break;
        default:
            env_virtual_advance_ms(&f.env, env_virtual_below(&f.env, 30));
        }
        for (unsigned i = 0; i < n_out; i++) {
            unsigned n = 0;

            for (unsigned k = 0; k < N; k++)
                n += is_at(&f, k, &f.users[i]);
            assert_true(n <= 1); /* at one member at a time */
            assert_true(f.users[i].n_done + n <= 1);
        }
    }
    if (!rpc_group_leads(f.g, leader))
        leads(&f, leader, start);
    for (unsigned i = 0; i < n_out; i++) {
        if (f.users[i].n_done == 0)
            answer(&f, leader, &f.users[i], ROZO__STATUS__OK);
        assert_int_equal(f.users[i].n_done, 1);
    }
    fixture_end(&f);
}

static void test_random_fail_overs(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= unit_seeds(400); seed += UNIT_STEP)
        run_seed(seed);
}

/* A member that was down for long is tried again at once when it may be the next
 * leader. */
static void test_members_are_connected_when_the_leader_refuses(void **state)
{
    struct fixture *f = *state;
    struct user *u;

    leads(f, 0, 5);
    f->members[2].health = RPC_DOWN;
    u = send(f, 0);
    env_virtual_advance_ms(&f->env, 100);
    assert_int_equal(f->members[2].n_connects, 0); /* there is a leader */
    answer(f, 0, u, ROZO__STATUS__NOT_LEADER);
    assert_int_equal(f->members[2].n_connects, 1);
    assert_int_equal(f->members[0].n_connects + f->members[1].n_connects, 0); /* are up */
    f->members[2].health = RPC_UP;
    leads(f, 2, 6);
    answer(f, 2, u, ROZO__STATUS__OK);
    assert_ok(u);
    assert_int_equal(f->members[2].n_connects, 1);
}

static void test_members_are_connected_when_the_leader_is_down(void **state)
{
    struct fixture *f = *state;

    leads(f, 0, 5);
    f->members[1].health = RPC_CONNECTING;
    f->members[2].health = RPC_DOWN;
    rpc_group_down(f->g, 2); /* no leader */
    assert_int_equal(f->members[1].n_connects + f->members[2].n_connects, 0);
    f->members[0].health = RPC_DOWN;
    rpc_group_down(f->g, 0);
    for (unsigned i = 0; i < N; i++)
        assert_int_equal(f->members[i].n_connects, 1);
    f->members[1].health = RPC_UP;
    leads(f, 1, 6);
    rpc_group_down(f->g, 0); /* member 1 leads */
    assert_int_equal(f->members[2].n_connects, 1);
}

/* One exportd with two addresses: the other one works. */
static void test_no_member_is_connected_if_an_address_fails(void **state)
{
    struct fixture *f = *state;

    leads(f, 0, 5);
    leads(f, 1, 5);
    f->members[0].health = f->members[2].health = RPC_DOWN;
    rpc_group_down(f->g, 0);
    assert_int_equal(f->members[0].n_connects + f->members[2].n_connects, 0);
}

/* ---- lists of members ---- */

/* The member answers the group's question with a list of addresses, with commas. */
static void tells(struct fixture *f, unsigned member, uint16_t status, uint64_t start,
                  const char *addrs)
{
    Rozo__MdWaitLeaderReq *req = rozo__md_wait_leader_req__unpack(
        NULL, f->members[member].asked_len, f->members[member].asked);
    struct exportd_list list = { .n = 0 };
    struct exportd_list_answer a;
    const char *split[EXPORTD_ADDRS_MAX];
    char text[256];
    uint8_t msg[2048];
    unsigned n;

    snprintf(text, sizeof(text), "%s", addrs);
    n = exportd_addrs_split(text, split, EXPORTD_ADDRS_MAX);
    for (unsigned i = 0; i < n; i++)
        exportd_list_add(&list, split[i]);
    assert_true(req != NULL && req->wants_list && asked_at(f, member) >= 0);
    exportd_list_answer(&list, req, &a);
    rozo__md_wait_leader_req__free_unpacked(req, NULL);
    a.resp.start = start;
    answer_rq(f, member, (unsigned)asked_at(f, member), status, msg,
              rozo__md_wait_leader_resp__pack(&a.resp, msg));
}

static void test_a_member_tells_where_the_others_are(void **state)
{
    struct fixture f;
    struct user *u;

    (void)state;
    fixture_begin_as(&f, 1, true);
    u = send(&f, 0);
    tells(&f, 0, ROZO__STATUS__NOT_LEADER, 0, "a:1,b:1");
    assert_int_equal(f.n_told, 1);
    assert_false(f.told_leads);
    assert_true(f.told.n == 2 && exportd_list_has(&f.told, "b:1"));
    assert_int_equal(rpc_group_add(f.g, &f.members[1].channel), 1);
    answer(&f, 0, u, ROZO__STATUS__NOT_LEADER);
    tells(&f, 1, ROZO__STATUS__OK, 5, "a:1,b:1");
    assert_true(f.n_told == 2 && f.told_leads);
    answer(&f, 1, u, ROZO__STATUS__OK);
    assert_ok(u);

    /* the leader is asked now and then; a known list does not come again */
    assert_int_equal(asked_at(&f, 1), -1);
    env_virtual_advance_ms(&f.env, RPC_GROUP_LOOK_MS);
    tells(&f, 1, ROZO__STATUS__OK, 5, "a:1,b:1");
    assert_int_equal(f.n_told, 2);
    env_virtual_advance_ms(&f.env, RPC_GROUP_LOOK_MS);
    tells(&f, 1, ROZO__STATUS__OK, 5, "b:1,c:1");
    assert_true(f.n_told == 3 && !exportd_list_has(&f.told, "a:1"));
    fixture_end(&f);
}

static void test_members_come_and_go(void **state)
{
    struct fixture f;
    struct user *u, *waits;

    (void)state;
    fixture_begin_as(&f, 2, true);
    tells(&f, 0, ROZO__STATUS__OK, 5, "a:1,b:1");
    u = send(&f, 0);
    assert_true(is_at(&f, 0, u));
    assert_int_equal(rpc_group_add(f.g, &f.members[2].channel), 2);
    tells(&f, 2, ROZO__STATUS__OK, 5, "a:1,c:1"); /* the leader has two addresses */
    rpc_group_remove(f.g, 0);
    assert_true(is_at(&f, 2, u)); /* same id */
    assert_int_equal(f.members[0].n_sent, 0);
    rpc_group_remove(f.g, 2);
    assert_int_equal(rpc_group_add(f.g, &f.members[0].channel), 0); /* free again */
    waits = send(&f, 1);
    assert_false(is_at(&f, 0, waits) || is_at(&f, 1, waits));
    tells(&f, 0, ROZO__STATUS__OK, 6, "a:1");
    answer(&f, 0, u, ROZO__STATUS__OK);
    answer(&f, 0, waits, ROZO__STATUS__OK);
    assert_ok(u);
    assert_ok(waits);
    assert_int_equal(rpc_channel_health(f.channel), RPC_UP);
    fixture_end(&f);
}

static void test_a_leader_that_is_asked_again(void **state)
{
    struct fixture f;
    struct user *u;
    unsigned n;

    (void)state;
    fixture_begin_as(&f, 2, true);
    tells(&f, 0, ROZO__STATUS__OK, 5, "a:1");
    u = send(&f, 0);
    n = f.n_moved;
    env_virtual_advance_ms(&f.env, RPC_GROUP_LOOK_MS);
    f.users[0].rq.deadline_ms = 0; /* not used any more */
    assert_true(asked_at(&f, 0) >= 0);
    u = send(&f, 1);
    tells(&f, 0, ROZO__STATUS__OK, 7, "a:1"); /* deposed in between */
    assert_int_equal(f.n_moved, n + 1);
    assert_int_equal(f.members[0].sent[find(&f, 0, u)]->start, 7);
    env_virtual_advance_ms(&f.env, RPC_GROUP_LOOK_MS);
    u = send(&f, 2);
    answer(&f, 0, u, ROZO__STATUS__NOT_LEADER); /* while it is asked */
    says(&f, 0, ROZO__STATUS__NOT_LEADER);
    assert_false(rpc_group_leads(f.g, 0));
    tells(&f, 1, ROZO__STATUS__OK, 8, "b:1");
    answer(&f, 1, u, ROZO__STATUS__OK);
    assert_ok(u);
    fixture_end(&f);
}

/* A request names the start that it is meant for. */
static void test_requests_name_the_start(void **state)
{
    struct fixture f;
    struct user *u;

    (void)state;
    fixture_begin(&f, N);
    leads(&f, 0, UINT64_C(3) << 32 | 5);
    u = send(&f, 0);
    assert_int_equal(f.members[0].sent[find(&f, 0, u)]->start, 5);
    leads(&f, 1, UINT64_C(4) << 32 | 2); /* the metadata went back in between */
    assert_int_equal(f.members[1].sent[find(&f, 1, u)]->start, 2);
    answer(&f, 1, u, ROZO__STATUS__OK);
    assert_ok(u);
    fixture_end(&f);
}

static void test_lists_are_bounded(void **state)
{
    struct exportd_list l = { .n = 0 }, other;
    const char *addrs[3];
    char text[128], *many[20];
    Rozo__MdWaitLeaderResp resp = ROZO__MD_WAIT_LEADER_RESP__INIT;

    (void)state;
    assert_int_equal(exportd_list_number(&l), 0);
    memset(text, 'x', 80);
    text[80] = '\0';
    exportd_list_add(&l, text); /* too long */
    exportd_list_add(&l, "");
    exportd_list_add(&l, "a:1");
    exportd_list_add(&l, "a:1");
    assert_int_equal(l.n, 1);
    other = l;
    exportd_list_add(&other, "b:1");
    assert_true(exportd_list_number(&l) != exportd_list_number(&other));
    for (unsigned i = 0; i < 20; i++) {
        many[i] = malloc(8);
        snprintf(many[i], 8, "m%u:1", i);
    }
    resp.addresses = many;
    resp.n_addresses = 20;
    assert_true(exportd_list_take(&resp, &l) && l.n == EXPORTD_ADDRS_MAX);
    for (unsigned i = 0; i < 20; i++)
        free(many[i]);
    snprintf(text, sizeof(text), "a:1,b:1,,c:1");
    assert_int_equal(exportd_addrs_split(text, addrs, 3), 3);
    assert_string_equal(addrs[2], "c:1");
    snprintf(text, sizeof(text), "a:1,b:1,c:1,d:1");
    assert_int_equal(exportd_addrs_split(text, addrs, 3), 4); /* more than fit */
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_member_tells_where_the_others_are),
        cmocka_unit_test(test_members_come_and_go),
        cmocka_unit_test(test_a_leader_that_is_asked_again),
        cmocka_unit_test(test_requests_name_the_start),
        cmocka_unit_test(test_lists_are_bounded),
        T(test_requests_wait_for_a_leader),
        T(test_a_refused_request_is_the_same_one_at_the_next_leader),
        T(test_an_answer_of_a_deposed_leader_does_not_count),
        T(test_a_stale_leader_is_not_believed),
        T(test_the_same_member_leads_again),
        T(test_a_start_that_others_know_deposes),
        T(test_deadlines_hold_without_a_leader),
        T(test_a_deadline_does_not_begin_again_at_the_next_leader),
        T(test_errors_of_the_channel_pass),
        T(test_cancel_in_every_state),
        T(test_close_ends_requests_in_every_state),
        T(test_an_answer_may_close_the_group),
        T(test_a_deadline_may_close_the_group),
        cmocka_unit_test(test_one_member_is_not_asked_until_it_refuses),
        T(test_an_exportd_that_knows_no_quorum_leads),
        T(test_members_are_asked_again),
        T(test_addresses_of_one_exportd_share_requests),
        T(test_a_hung_address_gives_its_requests_away),
        T(test_only_so_much_waits),
        T(test_no_answer_is_placed_twice),
        T(test_a_request_that_was_answered_before_keeps_its_id),
        cmocka_unit_test(test_random_fail_overs),
        T(test_members_are_connected_when_the_leader_refuses),
        T(test_members_are_connected_when_the_leader_is_down),
        T(test_no_member_is_connected_if_an_address_fails),
    };

    return cmocka_run_group_tests_name("rpc_group", tests, NULL, NULL);
}
