/*
 * meta_dump.c - asks an exportd for a dump, piece by piece.
 *
 * In:     the states of the members. Out: AD_META_DUMP; bytes of the dump.
 * Keeps:  the dump has all entries that a leader had committed which was confirmed after
 *         the call.
 */
#include "deploy/client/meta_dump.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "common/wire/status.h"
#include "deploy/cli/interrupt.h"

enum {
    PIECE_MS = 20000,
    CONFIRM_MS = 10000,
    BEHIND_MS = 10000, /* a member may be so far behind the leader */
    ELECTION_MS = 10000,
    PAUSE_MS = 50,
    PROGRESS_STEPS = 1000,
};

static int ask(struct meta_dump *d, struct meta_client_member *m, uint16_t op,
               const ProtobufCMessage *question, uint32_t ms,
               void (*take)(struct daemon_ask *a, const struct rpc_request *rq))
{
    m->ask.arg = d;
    return daemon_ask_one(&m->ask, op, question, ms, take);
}

/* ---- which entry the dump must have ---- */

/* Asks the member that leads for something that it answers only while it leads; then for
 * its commit index. */
static int leader_ask(struct meta_dump *d, struct err *err)
{
    Rozo__AdStatusReq question = ROZO__AD_STATUS_REQ__INIT;
    struct meta_client_member *m = meta_client_serving(d->client);
    uint64_t term;
    int rc;

    if (m == NULL)
        return err_set(err, -ROZO_ENOT_LEADER,
                       "no member serves, so it is not known which one has the newest "
                       "changes; see `rozo meta status`");
    term = m->answer->term;
    rc = ask(d, m, ROZO__OP__AD_STATUS, &question.base, CONFIRM_MS, NULL);
    if (rc != 0)
        return err_wrap(err, rc, "exportd at %s", m->address);
    meta_client_ask(d->client);
    if (m->answer == NULL || !m->answer->leads || m->answer->term != term)
        return err_set(err, -ROZO_ENOT_LEADER,
                       "another member leads since a moment: try again");
    d->min_entry = m->answer->commit;
    return 0;
}

/* Sets which entry the dump must have; waits while members elect a leader. */
static int entry_find(struct meta_dump *d, struct err *err)
{
    uint64_t end_ms = clock_ms() + ELECTION_MS;
    int rc;

    for (;;) {
        meta_client_ask(d->client);
        rc = meta_client_newest(d->client) != NULL ? leader_ask(d, err) : 0;
        if ((rc != -ROZO_ENOT_LEADER && rc != -ENOTCONN) || clock_ms() > end_ms)
            return rc;
        interrupt_pause_ms(PAUSE_MS);
    }
}

/* ---- pieces ---- */

static void on_piece(struct daemon_ask *a, const struct rpc_request *rq)
{
    Rozo__AdMetaDumpResp *resp =
        rozo__ad_meta_dump_resp__unpack(NULL, rq->answer_msg_len, rq->answer_msg);
    struct meta_dump *d = a->arg;
    struct progress *progress = d->client->asks.progress;

    d->rc = status_to_errno(rq->status);
    if (resp == NULL) {
        d->rc = err_set(d->err, -EBADMSG, "the answer is invalid");
        return;
    }
    if (d->rc != 0 && resp->error[0] != '\0')
        err_set(d->err, d->rc, "%.400s", resp->error);
    if (d->rc == 0) {
        d->has_written = true;
        d->rc = d->write(d->arg, rq->answer_payload, rq->answer_payload_len, d->err);
    }
    if (d->rc == 0) {
        d->is_last = resp->is_last;
        d->bytes += rq->answer_payload_len;
        d->keys = resp->keys_done;
        d->entry = resp->entry;
        if (progress != NULL && resp->bytes_all > 0)
            progress_at(
                progress,
                resp->bytes_done >= resp->bytes_all
                    ? PROGRESS_STEPS - 1
                    : (unsigned)(resp->bytes_done * PROGRESS_STEPS / resp->bytes_all),
                "copying the metadata");
    }
    rozo__ad_meta_dump_resp__free_unpacked(resp, NULL);
}

/* Waits as long as the limit of the rate asks for. */
static void rate_wait(const struct meta_dump *d)
{
    while (d->rate > 0 && (clock_ms() - d->start_ms) * d->rate / 1000 < d->bytes &&
           !d->is_last)
        interrupt_pause_ms(PAUSE_MS);
}

static int piece_ask(struct meta_dump *d, uint64_t piece, struct err *err)
{
    Rozo__AdMetaDumpReq question = ROZO__AD_META_DUMP_REQ__INIT;
    int rc;

    question.dump = d->number;
    question.piece = piece;
    question.min_entry = d->min_entry;
    d->err = err;
    d->rc = 0;
    rc = ask(d, d->source, ROZO__OP__AD_META_DUMP, &question.base, PIECE_MS, on_piece);
    return d->rc != 0 ? d->rc : rc;
}

/* Asks for the first piece, until the member has the entry. */
static int first_ask(struct meta_dump *d, struct err *err)
{
    uint64_t end_ms = clock_ms() + BEHIND_MS;
    int rc;

    for (;;) {
        rc = piece_ask(d, 0, err);
        if (rc == 0 || d->source->ask.status != ROZO__STATUS__BUSY || clock_ms() > end_ms)
            return rc;
        interrupt_pause_ms(PAUSE_MS);
    }
}

static void over_tell(struct meta_dump *d)
{
    Rozo__AdMetaDumpReq question = ROZO__AD_META_DUMP_REQ__INIT;

    question.dump = d->number;
    question.is_over = true; /* without an answer the dump ends by itself, later */
    ask(d, d->source, ROZO__OP__AD_META_DUMP, &question.base, CONFIRM_MS, NULL);
}

static int source_copy(struct meta_dump *d, struct err *err)
{
    struct meta_client_member *leader = meta_client_serving(d->client);
    int rc = first_ask(d, err);

    /* The leader has all in any case. What is written cannot be taken back. */
    if (rc != 0 && !d->has_written && leader != NULL && leader != d->source) {
        d->source = leader;
        rc = first_ask(d, err);
    }
    d->start_ms = clock_ms();
    for (uint64_t piece = 1; rc == 0 && !d->is_last; piece++) {
        rate_wait(d);
        rc = piece_ask(d, piece, err);
    }
    if (rc != -ENOTCONN)
        over_tell(d);
    if (rc == -ENOSYS)
        err_set(err, rc, "it is older than dumps");
    return rc == 0 ? 0 : err_wrap(err, rc, "exportd at %s", d->source->address);
}

/* ---- the source ---- */

static bool is_witness(const Rozo__AdMetaStatusResp *a)
{
    for (size_t i = 0; i < a->n_members; i++) {
        if (a->members[i]->id == a->id)
            return a->members[i]->witness;
    }
    return false;
}

static bool is_follower(const struct meta_client_member *m)
{
    return m->answer != NULL && !m->answer->leads && !m->answer->seeding &&
           !is_witness(m->answer);
}

/* Chooses a follower that is near the leader, else the leader; or one that is alone. */
static int source_choose(struct meta_dump *d, struct err *err)
{
    struct meta_client *c = d->client;
    struct meta_client_member *best = NULL;

    for (unsigned i = 0; i < c->n; i++) {
        struct meta_client_member *m = &c->members[i];

        if (is_follower(m) &&
            (best == NULL || m->answer->applied > best->answer->applied))
            best = m;
    }
    d->source = best != NULL ? best : meta_client_serving(c);
    for (unsigned i = 0; i < c->n && d->source == NULL; i++) {
        if (c->members[i].has_no_quorum)
            d->source = &c->members[i];
    }
    return d->source != NULL ? 0 : meta_client_answers_check(c, err);
}

int meta_dump_fetch(struct meta_dump *d, struct err *err)
{
    int rc = entry_find(d, err);

    if (rc == 0)
        rc = source_choose(d, err);
    if (rc != 0)
        return rc;
    if (getrandom(&d->number, sizeof(d->number), 0) != sizeof(d->number))
        return err_set(err, -EIO, "no random number");
    if (d->client->asks.progress != NULL)
        progress_start(d->client->asks.progress, PROGRESS_STEPS);
    return source_copy(d, err);
}
