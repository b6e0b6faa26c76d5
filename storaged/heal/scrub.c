/*
 * scrub.c - reads and checks everything on this storage, and heals what is wrong.
 *
 * In:     the schedule, ST_HEAL, a power loss. Thread: the healer's.
 * Out:    jobs of RANK_SCRUB; ST_STAT to the homes after ours, ST_CHECK to those that
 *         lack the file; the keys "scrub" and "findings".
 * Keeps:  its place, over restarts. Unknown losses of this storage count as healed only
 *         after a scrub that began later has seen everything.
 *
 * A home that lost a whole file cannot find that out from its own disk. Any n - k + 1
 * homes in a row cannot all have lost it if it was on all of them, so each home asks the
 * n - k after it. It also asks the homes that the repair found without the file, since
 * more may have lost it where spares took their records.
 */
#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codec/codec.h"
#include "common/base/bytes.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "storaged/heal/healer_int.h"

enum {
    KEPT_FORMAT = 1,
    KEPT_BYTES = 96,
    SCHEDULE_MS = 60000,
    DOUBT_AGAIN_S = 600, /* pause after a scrub that could not clear unknown losses */
};

static const char scrub_key[] = "scrub", findings_key[] = "findings";
static const char running_key[] = "running";

/* ---- saved state ---- */

static uint64_t run_seconds(const struct healer *h)
{
    const struct scrub *s = &h->parts->scrub;

    return s->ran_s + (s->state == SCRUB_RUNNING && s->began_ns != 0
                           ? ns_to_s(env_now_ns(h->env) - s->began_ns)
                           : 0);
}

static void state_save(struct healer *h)
{
    const struct scrub *s = &h->parts->scrub;
    uint8_t val[KEPT_BYTES] = { KEPT_FORMAT, (uint8_t)s->state, s->walk.has_after,
                                s->heads_only };

    file_id_put(val + 4, &s->walk.after);
    put_le64(val + 20, s->files_done);
    put_le64(val + 28, s->n_files);
    put_le64(val + 36, s->bytes_done);
    put_le64(val + 44, s->n_bytes);
    put_le64(val + 52, s->found);
    put_le64(val + 60, s->healed);
    put_le64(val + 68, run_seconds(h));
    put_le64(val + 76, (uint64_t)s->ended_wall_ns);
    put_le64(val + 84, s->n_unseen);
    healer_put(h, scrub_key, val, sizeof(val));
}

static void findings_save(struct healer *h)
{
    const struct scrub *s = &h->parts->scrub;

    assert(s->n_findings <= FINDINGS_MAX);
    if (s->n_findings == 0)
        healer_put(h, findings_key, NULL, 0);
    else
        healer_put(h, findings_key, s->findings,
                   (size_t)s->n_findings * FINDING_TEXT_MAX);
}

static void findings_load(struct healer *h)
{
    struct scrub *s = &h->parts->scrub;
    void *val;
    size_t len;

    if (kv_get(h->config.kv, findings_key, strlen(findings_key), &val, &len) != 0)
        return;
    if (len % FINDING_TEXT_MAX == 0 && len <= sizeof(s->findings)) {
        memcpy(s->findings, val, len);
        s->n_findings = (unsigned)(len / FINDING_TEXT_MAX);
        for (unsigned i = 0; i < s->n_findings; i++)
            s->findings[i][FINDING_TEXT_MAX - 1] = '\0';
    }
    free(val);
}

int scrub_load(struct healer *h)
{
    struct scrub *s = &h->parts->scrub;
    uint8_t val[KEPT_BYTES];
    int rc = healer_get(h, scrub_key, val, sizeof(val));

    if (rc != 0 || val[0] != KEPT_FORMAT || val[1] > SCRUB_STOPPED) {
        /* The first scrub is due after a whole period. */
        s->ended_wall_ns = env_wall_ns(h->env);
        return rc == -ENOENT || rc == -ROZO_EDAMAGED ? 0 : rc;
    }
    s->state = (enum scrub_state)val[1];
    s->walk.has_after = val[2] != 0;
    s->heads_only = val[3] != 0;
    file_id_get(val + 4, &s->walk.after);
    s->files_done = get_le64(val + 20);
    s->n_files = get_le64(val + 28);
    s->bytes_done = get_le64(val + 36);
    s->n_bytes = get_le64(val + 44);
    s->found = get_le64(val + 52);
    s->healed = get_le64(val + 60);
    s->ran_s = get_le64(val + 68);
    s->ended_wall_ns = (int64_t)get_le64(val + 76);
    s->n_unseen = get_le64(val + 84);
    findings_load(h);
    return 0;
}

/* ---- findings ---- */

static void finding_add(struct healer *h, const char text[FINDING_TEXT_MAX])
{
    struct scrub *s = &h->parts->scrub;

    log_warn("scrub: %s", text);
    if (s->n_findings < FINDINGS_MAX)
        memcpy(s->findings[s->n_findings++], text, FINDING_TEXT_MAX);
}

static void finding(struct healer *h, const struct file_id *id, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void finding(struct healer *h, const struct file_id *id, const char *fmt, ...)
{
    char text[FINDING_TEXT_MAX] = "";
    va_list args;
    int n = snprintf(text, sizeof(text), "file %08x%08x%016llx: ", id->export_id,
                     id->generation, (unsigned long long)id->ino);

    va_start(args, fmt);
    vsnprintf(text + n, sizeof(text) - (size_t)n, fmt, args);
    va_end(args);
    finding_add(h, text);
}

static void result_count(struct sweep_file *f, bool good)
{
    struct healer *h = f->h;
    const struct repair_result *r = &f->result;
    uint64_t found = r->damaged + r->stale + r->missing;

    h->parts->scrub.n_unseen += !good;
    h->parts->scrub.found += found;
    if (found > 0) /* otherwise it only became known which blocks were never written */
        h->parts->scrub.healed += r->healed;
    if (found > 0)
        finding(h, &f->f.file.target.id,
                "%llu records damaged, %llu stale, %llu missing; %llu healed%s%s",
                (unsigned long long)r->damaged, (unsigned long long)r->stale,
                (unsigned long long)r->missing, (unsigned long long)r->healed,
                r->problem[0] != '\0' ? ": " : "", r->problem);
    else if (!good)
        finding(h, &f->f.file.target.id, "cannot be checked as a whole: %s",
                r->problem[0] != '\0' ? r->problem : "too few storages answer");
}

/* ---- homes after ours ---- */

static void page_done(struct healer *h);
static void homes_next(struct sweep_file *f);

static void file_done(struct sweep_file *f)
{
    struct healer *h = f->h;

    assert(h->parts->scrub.n_running > 0);
    h->parts->scrub.files_done++;
    h->parts->scrub.bytes_done += f->f.file.allocated;
    if (--h->parts->scrub.n_running == 0)
        page_done(h);
}

static const struct codec *file_codec(const struct sweep_file *f)
{
    const struct storcli_target *t = &f->f.file.target;

    return codec_get(t->codec, t->layout, t->block_bytes);
}

static void on_home_told(struct heal_ask *ask, int rc)
{
    (void)rc; /* on an error the next scrub, of any home, finds it again */
    homes_next(container_of(ask, struct sweep_file, ask));
}

static void home_tell(struct sweep_file *f, uint32_t home)
{
    Rozo__StCheckReq req = ROZO__ST_CHECK_REQ__INIT;
    struct heal_ref ref;

    assert(f->place < DIST_MAX);
    finding(f->h, &f->f.file.target.id,
            "storage %u lacks the file and is asked to check it", (unsigned)home);
    f->h->parts->scrub.found++;
    heal_ref_put(&f->f.file.target, &ref);
    req.ref = &ref.ref;
    req.to_storage = home;
    f->ask.done = on_home_told;
    heal_ask_send(f->h, &f->ask, home, ROZO__OP__ST_CHECK, &req.base, ASK_DEADLINE_MS);
}

static bool has_projection(const struct heal_ask *ask, unsigned p)
{
    Rozo__StStatResp *resp =
        rozo__st_stat_resp__unpack(NULL, ask->rq.answer_msg_len, ask->rq.answer_msg);
    bool has = false;

    for (size_t i = 0; resp != NULL && i < resp->n_projections; i++)
        has |= resp->projections[i]->projection == p;
    rozo__st_stat_resp__free_unpacked(resp, NULL);
    return has;
}

static void on_home(struct heal_ask *ask, int rc)
{
    struct sweep_file *f = container_of(ask, struct sweep_file, ask);
    unsigned n = codec_n(file_codec(f));
    unsigned place = (f->place + f->n_asked) % n;

    assert(f->place < DIST_MAX);
    if (rc == -ROZO_ENO_FILE || rc == -ROZO_EDAMAGED ||
        (rc == 0 && !has_projection(ask, place)))
        home_tell(f, ask->storage);
    else
        homes_next(f);
}

/* Returns whether this home is asked: the n - k after ours, and those that the repair
 * found without the file. */
static bool is_asked(const struct sweep_file *f, const struct codec *codec)
{
    unsigned home = (f->place + f->n_asked) % codec_n(codec);

    assert(f->place < DIST_MAX);
    return f->n_asked <= codec_n(codec) - codec_k(codec) ||
           (f->result.none >> home & 1) != 0;
}

static void homes_next(struct sweep_file *f)
{
    const struct codec *codec = file_codec(f);
    Rozo__StStatReq req = ROZO__ST_STAT_REQ__INIT;
    struct heal_ref ref;

    do {
        if (f->place == DIST_MAX || ++f->n_asked >= codec_n(codec)) {
            file_done(f);
            return;
        }
    } while (!is_asked(f, codec));
    heal_ref_put(&f->f.file.target, &ref);
    req.ref = &ref.ref;
    req.to_storage = f->f.file.target.storages[(f->place + f->n_asked) % codec_n(codec)];
    f->ask.done = on_home;
    heal_ask_send(f->h, &f->ask, req.to_storage, ROZO__OP__ST_STAT, &req.base,
                  ASK_DEADLINE_MS);
}

/* ---- the walk ---- */

static void scrub_finish(struct healer *h, enum scrub_state state)
{
    struct scrub *s = &h->parts->scrub;

    assert(s->state == SCRUB_RUNNING && s->n_running == 0);
    s->ran_s = run_seconds(h);
    s->state = state;
    s->ended_wall_ns = env_wall_ns(h->env);
    s->walk.has_after = false;
    heal_walk_end(&s->walk);
    state_save(h);
    findings_save(h);
    if (state == SCRUB_DONE && s->n_unseen == 0)
        atomic_store(&h->config.identity->losses_healed, s->losses);
    log_info("scrub: %s, %llu files (%llu could not be checked as a whole), "
             "%llu records were wrong, %llu healed",
             state == SCRUB_DONE ? "done" : "stopped", (unsigned long long)s->files_done,
             (unsigned long long)s->n_unseen, (unsigned long long)s->found,
             (unsigned long long)s->healed);
}

static void page_done(struct healer *h)
{
    struct scrub *s = &h->parts->scrub;

    assert(s->n_running == 0);
    free(s->files);
    s->files = NULL;
    if (s->walk.incomplete) {
        s->n_unseen++;
        finding_add(h,
                    (char[FINDING_TEXT_MAX]){ "files on this storage cannot be listed" });
    }
    if (s->stop || s->walk.end) {
        scrub_finish(h, s->stop ? SCRUB_STOPPED : SCRUB_DONE);
        return;
    }
    state_save(h);
    findings_save(h);
    heal_walk_next(&s->walk);
}

static void on_file(struct sweep_file *f, bool good)
{
    assert(f->h->parts->scrub.n_running > 0);
    result_count(f, good);
    if (!good) /* the next scrub is a long time off */
        heal_check_add(f->h, &f->f.file.target, 0, UINT64_MAX,
                       f->job.request.flags & ~(uint32_t)REPAIR_PARTIAL);
    else if (f->result.n_torn > 0) /* a write under way, or left incomplete */
        heal_check_add(f->h, &f->f.file.target, f->result.torn_first, f->result.torn_end,
                       0);
    if (f->result.rc == 0 && f->result.has_content && !f->h->parts->scrub.stop)
        homes_next(f);
    else
        file_done(f);
}

static void file_scrub(struct sweep_file *f)
{
    f->done = on_file;
    sweep_submit(f, RANK_SCRUB,
                 REPAIR_CLEAN_SPARES |
                     (f->h->parts->scrub.heads_only ? 0 : REPAIR_VERIFY_OWN));
}

/* Handles a file whose distribution is unknown here. good: it was located, or the file
 * was removed. */
static void on_unknown(struct sweep_file *f, bool good)
{
    struct healer *h = f->h;
    const struct file_id *id = &f->f.file.target.id;
    const char *more = f->f.file.known ? ""
                       : good ? "; no other storage has any of it, so it is removed"
                              : ", and no storage knows its distribution";

    if (f->f.file.projections != 0) {
        finding(h, id, "its projection file is damaged%s", more);
        h->parts->scrub.found++;
        h->parts->scrub.healed += !f->f.file.known && good;
        h->parts->scrub.n_unseen += !f->f.file.known && !good;
    } else if (!good) {
        log_info(
            "scrub: file %08x%08x%016llx was begun here, and some storage may have more "
            "of it",
            id->export_id, id->generation, (unsigned long long)id->ino);
    }
    if (f->f.file.known)
        file_scrub(f);
    else
        file_done(f);
}

static void on_page(struct heal_walk *w, struct heal_walk_file *files, unsigned n,
                    bool end)
{
    struct healer *h = w->h;
    struct scrub *s = &h->parts->scrub;

    assert(w == &s->walk && s->files == NULL && s->n_running == 0);
    (void)end; /* same as w->end */
    s->files = calloc(n + 1, sizeof(s->files[0]));
    if (s->files == NULL && n > 0)
        s->n_unseen += n;
    if (s->files == NULL || s->stop)
        n = 0;
    s->n_running = 1; /* one for this function, until all are submitted */
    for (unsigned i = 0; i < n; i++) {
        struct sweep_file *f = &s->files[i];

        f->h = h;
        f->f = files[i];
        s->n_running++;
        if (!files[i].file.known) {
            f->done = on_unknown;
            ownerless_ask(f);
            continue;
        }
        file_scrub(f);
    }
    if (--s->n_running == 0)
        page_done(h);
}

static void on_count_page(struct heal_walk *w, struct heal_walk_file *files, unsigned n,
                          bool end)
{
    struct scrub *s = &w->h->parts->scrub;

    assert(w == &s->count);
    for (unsigned i = 0; i < n; i++) {
        s->counted_files++;
        s->counted_bytes += files[i].file.allocated;
    }
    if (!end) {
        heal_walk_next(w);
        return;
    }
    s->n_files = s->counted_files;
    s->n_bytes = s->counted_bytes;
    heal_walk_end(w);
}

static void count_begin(struct healer *h)
{
    struct scrub *s = &h->parts->scrub;

    if (s->count.under_way)
        return;
    s->counted_files = s->counted_bytes = 0;
    s->count = (struct heal_walk){ .own = true, .page = on_count_page };
    heal_walk_begin(h, &s->count);
}

static void on_gather(struct env_timer *timer)
{
    struct healer *h = container_of(timer, struct heal_parts, scrub.gather_timer)->h;
    struct scrub *s = &h->parts->scrub;

    assert(s->state == SCRUB_RUNNING);
    if (healer_gathers(h, timer, s->gather_until_ns))
        return;
    heal_walk_begin(h, &s->walk);
    count_begin(h);
}

/* Walks from the place that was kept, or from the start. */
static void walk_on(struct healer *h)
{
    struct scrub *s = &h->parts->scrub;

    assert(!s->walk.under_way);
    s->stop = false;
    s->state = SCRUB_RUNNING;
    s->losses = atomic_load(&h->config.identity->losses);
    s->began_ns = env_now_ns(h->env);
    s->walk.own = true;
    s->walk.page = on_page;
    s->gather_until_ns = healer_gather_until_ns(h);
    env_timer_init(&s->gather_timer, on_gather);
    env_timer_start(h->env, &s->gather_timer, 0);
}

void scrub_begin(struct healer *h, bool heads_only)
{
    struct scrub *s = &h->parts->scrub;

    if (s->state == SCRUB_RUNNING) {
        s->stop = false;
        s->heads_only &= heads_only;
        return;
    }
    log_info("scrub: begins%s", heads_only ? ", of versions only" : "");
    s->heads_only = heads_only;
    s->walk.has_after = false;
    s->files_done = s->bytes_done = s->n_files = s->n_bytes = 0;
    s->found = s->healed = s->ran_s = s->n_unseen = 0;
    s->n_findings = 0;
    walk_on(h);
    state_save(h);
}

/* Stops the scrub at the end of its page; repairs under way are finished. */
void scrub_end(struct healer *h)
{
    h->parts->scrub.stop = h->parts->scrub.state == SCRUB_RUNNING;
}

/* ---- start and stop ---- */

static void on_schedule(struct env_timer *timer)
{
    struct healer *h = container_of(timer, struct heal_parts, scrub.timer)->h;
    struct scrub *s = &h->parts->scrub;
    int64_t period = (int64_t)s_to_ns(h->config.scrub_days * UINT64_C(86400));
    int64_t age_ns = env_wall_ns(h->env) - s->ended_wall_ns;

    env_timer_start(h->env, &s->timer, SCHEDULE_MS);
    if (s->state == SCRUB_RUNNING || h->us == 0)
        return;
    if (identity_is_in_doubt(h->config.identity) &&
        age_ns >= (int64_t)s_to_ns(DOUBT_AGAIN_S))
        scrub_begin(h, true);
    else if (h->config.scrub_days != 0 && age_ns >= period)
        scrub_begin(h, false);
}

static void on_running_noted(struct hint_log_wait *w, int rc)
{
    (void)rc;
    healer_idle(container_of(w, struct heal_parts, scrub.boot_wait)->h);
}

/* Returns whether the machine stopped while this storage ran, so that unsynced data may
 * be lost. Marks the storage as running now. */
static bool was_power_lost(struct healer *h)
{
    uint8_t val[9];
    bool lost = healer_get(h, running_key, val, sizeof(val)) == 0 && val[8] != 0 &&
                get_le64(val) != h->config.boot;

    put_le64(val, h->config.boot);
    val[8] = 1;
    healer_put(h, running_key, val, sizeof(val));
    h->parts->scrub.boot_wait.done = on_running_noted;
    h->n_busy++;
    hint_log_sync(h->hints, &h->parts->scrub.boot_wait);
    return lost;
}

void scrub_start(struct healer *h)
{
    struct scrub *s = &h->parts->scrub;
    bool lost = was_power_lost(h), doubt = identity_is_in_doubt(h->config.identity);

    env_timer_init(&s->timer, on_schedule);
    env_timer_start(h->env, &s->timer, SCHEDULE_MS);
    if (s->state == SCRUB_NEVER)
        state_save(h); /* the first period begins now */
    if (h->us == 0)
        return;
    if (s->state == SCRUB_RUNNING && doubt) {
        /* Files already checked may have been checked before the loss. */
        s->state = SCRUB_STOPPED;
        scrub_begin(h, s->heads_only);
    } else if (s->state == SCRUB_RUNNING)
        walk_on(h);
    else if (lost || doubt)
        scrub_begin(h, true);
}

/* Stops. Jobs and requests were cancelled before. */
void scrub_stop(struct healer *h)
{
    struct scrub *s = &h->parts->scrub;
    uint8_t val[9] = { 0 };

    if (h->started) {
        env_timer_stop(h->env, &s->timer);
        if (s->gather_timer.fn != NULL)
            env_timer_stop(h->env, &s->gather_timer);
        put_le64(val, h->config.boot);
        healer_put(h, running_key, val, sizeof(val));
    }
    heal_walk_end(&s->walk);
    heal_walk_end(&s->count);
    free(s->files);
    s->files = NULL;
}

void scrub_health(struct healer *h, Rozo__StHealthResp *resp, char **findings)
{
    struct scrub *s = &h->parts->scrub;

    assert(s->n_findings <= FINDINGS_MAX);
    resp->scrub_state = s->state;
    resp->scrub_files_done = s->files_done;
    resp->scrub_files = s->n_files;
    resp->scrub_bytes_done = s->bytes_done;
    resp->scrub_bytes = s->n_bytes;
    resp->scrub_found = s->found;
    resp->scrub_healed = s->healed;
    resp->scrub_unseen = s->n_unseen;
    resp->doubt = identity_is_in_doubt(h->config.identity);
    resp->scrub_ended_ns =
        s->state == SCRUB_DONE || s->state == SCRUB_STOPPED ? s->ended_wall_ns : 0;
    resp->scrub_s = run_seconds(h);
    for (unsigned i = 0; i < s->n_findings; i++)
        findings[i] = s->findings[i];
    resp->scrub_findings = findings;
    resp->n_scrub_findings = s->n_findings;
}
