/*
 * atimes_report.c - reports to exportd, every few seconds, the inodes that were read.
 *
 * In:     a timer of the first loop; the end of the mount. Thread: the first loop.
 * Out:    MD_ATIMES, one at a time.
 * Keeps:  no read waits for a report. A report that fails is repeated with the next one.
 *         No report is sent after exportd did not know the message, or refused it.
 */
#include "rozomount/op/atimes_report.h"

#include <stdlib.h>

#include "rozomount/inode/atimes.h"
#include "rozomount/op/loop.h"
#include "rozomount/op/mount.h"
#include "rozomount/options/xalloc.h"

enum {
    LOOK_MS = 1000,
    REPORT_LOOKS = 5,      /* looks between two reports, unless many reads wait */
    REPORT_MS = 5000,      /* timeout of a report */
    LAST_REPORT_MS = 3000, /* timeout of the report at the end of the mount */
};

struct atimes_report {
    struct loop *loop; /* borrowed */
    struct env_timer timer;
    struct md_call call;
    unsigned n_looks; /* since the last report */
    bool is_out;
    unsigned n;
    struct atime_note notes[ATIMES_REPORT_MAX];
    void (*ended)(struct mount *m); /* set at the end of the mount */
};

static void report_end(struct atimes_report *r)
{
    struct mount *m = r->loop->mount;
    void (*ended)(struct mount *) = r->ended;

    m->atimes_report = NULL;
    free(r);
    ended(m);
}

static void report_send(struct atimes_report *r);

static void on_reported(struct md_call *call, int rc)
{
    struct atimes_report *r = call->arg;
    struct atimes *atimes = r->loop->mount->atimes;

    r->is_out = false;
    if (call->answered && (call->status == ROZO__STATUS__UNKNOWN_OP ||
                           call->status == ROZO__STATUS__READ_ONLY))
        atimes_refused(atimes);
    else if (rc != 0)
        atimes_give_back(atimes, r->notes, r->n);
    if (rc == 0)
        report_send(r); /* if more reads wait */
    if (r->ended != NULL && !r->is_out)
        report_end(r);
}

static void read_pack(Rozo__MdAtimesReq__Read *out, const struct atime_note *note)
{
    rozo__md_atimes_req__read__init(out);
    out->ino = note->ino;
    out->at_ns = note->read.at_ns;
    out->has_seen = note->read.has_seen;
    out->seen_ns = wide_ns_near(note->read.seen_ns);
    out->seen_more_s = wide_ns_more_s(note->read.seen_ns);
}

static void report_send(struct atimes_report *r)
{
    struct atimes *atimes = r->loop->mount->atimes;
    int64_t now_ns = r->ended != NULL ? INT64_MAX : env_wall_ns(&r->loop->env.env);
    Rozo__MdAtimesReq__Read reads[ATIMES_REPORT_MAX], *list[ATIMES_REPORT_MAX];
    Rozo__MdAtimesReq msg = ROZO__MD_ATIMES_REQ__INIT;

    r->n = atimes_take(atimes, now_ns, r->notes, ATIMES_REPORT_MAX);
    if (r->n == 0)
        return;
    for (unsigned i = 0; i < r->n; i++) {
        read_pack(&reads[i], &r->notes[i]);
        list[i] = &reads[i];
    }
    msg.reads = list;
    msg.n_reads = r->n;
    msg.strict = atimes_is_strict(atimes);
    r->is_out = true;
    md_client_send_within(&r->loop->md, &r->call, ROZO__OP__MD_ATIMES, &msg.base, 0,
                          r->ended == NULL ? (uint32_t)REPORT_MS
                                           : (uint32_t)LAST_REPORT_MS,
                          on_reported, r);
}

static void on_report_timer(struct env_timer *timer)
{
    struct atimes_report *r = container_of(timer, struct atimes_report, timer);

    env_timer_start(&r->loop->env.env, &r->timer, LOOK_MS);
    r->n_looks++;
    if (r->is_out || (r->n_looks < REPORT_LOOKS &&
                      atimes_waiting(r->loop->mount->atimes) < ATIMES_REPORT_MAX))
        return;
    r->n_looks = 0;
    report_send(r);
}

void atimes_report_start(struct loop *loop)
{
    struct atimes_report *r = xzalloc(sizeof(*r));

    r->loop = loop;
    env_timer_init(&r->timer, on_report_timer);
    loop->mount->atimes_report = r;
    env_timer_start(&loop->env.env, &r->timer, LOOK_MS);
}

void atimes_report_end(struct mount *m, void (*ended)(struct mount *m))
{
    struct atimes_report *r = m->atimes_report;

    if (r == NULL) {
        ended(m);
        return;
    }
    env_timer_stop(&r->loop->env.env, &r->timer);
    r->ended = ended;
    if (r->is_out && md_client_cancel(&r->call, false)) {
        r->is_out = false;
        atimes_give_back(m->atimes, r->notes, r->n);
    }
    if (!r->is_out)
        report_send(r);
    if (!r->is_out)
        report_end(r);
}
