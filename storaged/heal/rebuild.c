/*
 * rebuild.c - restores everything that this storage should have from the other storages.
 *
 * In:     storage.id; ST_HEAL; a peer that reports that we missed too much to be listed.
 *         Thread: the healer's.
 * Out:    jobs of RANK_REBUILD; DISK_REPLACE; the key "rebuild".
 * Keeps:  storage.id says "rebuild" until a whole pass, begun when new files were no
 *         longer partial, has found nothing missing or partial here and has had an answer
 *         of every peer that is not lost.
 *
 * FIRST PASS (its place is kept; after a crash it continues there) -> new files count as
 * complete -> passes from the start until one is clean -> storage.id. Files that are
 * complete here are skipped.
 */
#include <assert.h>
#include <errno.h>
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
    KEPT_BYTES = 44,
    RETRY_MS = 15000,
};

static const char rebuild_key[] = "rebuild", lost_key[] = "lost";

static void pass_begin(struct healer *h);

static bool is_running(const struct rebuild *r)
{
    return r->state == REBUILD_RUNS || r->state == REBUILD_RESTARTS;
}

static bool is_under_way(const struct rebuild *r)
{
    return r->state == REBUILD_WAITS || is_running(r);
}

/* ---- saved place ---- */

static uint64_t run_seconds(const struct healer *h)
{
    const struct rebuild *r = &h->parts->rebuild;

    return r->ran_s + (is_under_way(r) ? ns_to_s(env_now_ns(h->env) - r->began_ns) : 0);
}

static void place_save(struct healer *h)
{
    struct rebuild *r = &h->parts->rebuild;
    uint8_t val[KEPT_BYTES] = { KEPT_FORMAT,
                                r->walk.has_after && r->state != REBUILD_RESTARTS,
                                r->forced, r->failed || r->walk.incomplete };

    file_id_put(val + 4, &r->walk.after);
    put_le64(val + 20, r->files_done);
    put_le64(val + 28, r->bytes_done);
    put_le64(val + 36, run_seconds(h));
    healer_put(h, rebuild_key, val, sizeof(val));
}

int rebuild_load(struct healer *h)
{
    struct rebuild *r = &h->parts->rebuild;
    uint8_t val[KEPT_BYTES];
    int rc = healer_get(h, rebuild_key, val, sizeof(val));

    r->first = true;
    if (rc == -ENOENT || rc == -ROZO_EDAMAGED || val[0] != KEPT_FORMAT)
        return rc == -ROZO_EDAMAGED ? 0 : (rc == -ENOENT ? 0 : rc);
    r->walk.has_after = val[1] != 0;
    r->forced = val[2] != 0;
    r->failed = val[3] != 0;
    file_id_get(val + 4, &r->walk.after);
    r->files_done = get_le64(val + 20);
    r->bytes_done = get_le64(val + 28);
    r->ran_s = get_le64(val + 36);
    return 0;
}

/* ---- lost storages ---- */

static bool is_in(const uint8_t *ids, size_t len, uint32_t id)
{
    for (size_t at = 0; at + 4 <= len; at += 4) {
        if (get_le32(ids + at) == id)
            return true;
    }
    return false;
}

static void lost_save(struct healer *h)
{
    uint8_t *ids = malloc((size_t)h->n_peers * 4 + 4);
    size_t len = 0;

    if (ids == NULL)
        return; /* the rebuild for them is repeated then */
    for (unsigned i = 0; i < h->n_peers; i++) {
        if (!h->peers[i].lost)
            continue;
        put_le32(ids + len, h->peers[i].id);
        len += 4;
    }
    healer_put(h, lost_key, ids, len);
    free(ids);
}

/* Returns whether a storage was lost that no finished rebuild took into account. Forgets
 * storages that are no longer lost. */
static bool lost_is_news(struct healer *h)
{
    void *ids = NULL;
    size_t len = 0;
    unsigned n_known = 0;
    bool news = false;

    if (kv_get(h->config.kv, lost_key, strlen(lost_key), &ids, &len) != 0)
        len = 0;
    for (unsigned i = 0; i < h->n_peers; i++) {
        bool known = is_in(ids, len, h->peers[i].id);

        news |= h->peers[i].lost && !known;
        n_known += h->peers[i].lost && known;
    }
    free(ids);
    if (!news && n_known < len / 4)
        lost_save(h);
    return news;
}

/* ---- amount of work ---- */

static bool is_home(const struct healer *h, const struct proj_list_file *f)
{
    return f->known && healer_home(h, &f->target) < DIST_MAX;
}

/* Bytes of one projection. */
static uint64_t file_bytes(const struct proj_list_file *f)
{
    unsigned n = (unsigned)__builtin_popcount(f->projections);

    return n == 0 ? 0 : f->allocated / n;
}

static void on_count_page(struct heal_walk *w, struct heal_walk_file *files, unsigned n,
                          bool end)
{
    struct rebuild *r = &w->h->parts->rebuild;

    assert(w == &r->count);
    for (unsigned i = 0; i < n; i++) {
        if (is_home(w->h, &files[i].file)) {
            r->counted_files++;
            r->counted_bytes += file_bytes(&files[i].file);
        }
    }
    if (!end) {
        heal_walk_next(w);
        return;
    }
    r->n_files = r->counted_files;
    r->n_bytes = r->counted_bytes;
    heal_walk_end(w);
}

static void count_begin(struct healer *h)
{
    struct rebuild *r = &h->parts->rebuild;

    if (r->count.under_way)
        return;
    r->counted_files = r->counted_bytes = 0;
    r->count = (struct heal_walk){ .page = on_count_page };
    heal_walk_begin(h, &r->count);
}

/* ---- end of a rebuild ---- */

static void tell_everything(struct healer *h);

static void on_told_everything(struct heal_ask *ask, int rc)
{
    (void)rc; /* on an error the peer reports "everything" again */
    tell_everything(ask->h);
}

static void tell_everything(struct healer *h)
{
    struct rebuild *r = &h->parts->rebuild;
    Rozo__StMissedDoneReq req = ROZO__ST_MISSED_DONE_REQ__INIT;

    assert(r->n_notified <= r->n_everything);
    if (r->n_notified == r->n_everything) {
        r->n_notified = r->n_everything = 0;
        return;
    }
    req.storage = h->us;
    req.to_storage = r->everything[r->n_notified].peer;
    req.everything = r->everything[r->n_notified].note;
    req.incarnation = healer_incarnation(h);
    r->n_notified++;
    r->done_ask.done = on_told_everything;
    heal_ask_send(h, &r->done_ask, req.to_storage, ROZO__OP__ST_MISSED_DONE, &req.base,
                  ASK_DEADLINE_MS);
}

/* Starts another pass from the beginning, later; a first pass if one was requested
 * meanwhile. */
static void pass_later(struct healer *h, uint32_t ms)
{
    struct rebuild *r = &h->parts->rebuild;

    assert(is_running(r));
    r->first = r->state == REBUILD_RESTARTS;
    r->walk.has_after = false;
    r->state = REBUILD_WAITS;
    env_timer_start(h->env, &r->timer, ms);
}

static void rebuild_done(struct healer *h)
{
    struct rebuild *r = &h->parts->rebuild;

    assert(is_running(r));
    r->in_identity = false;
    if (r->state == REBUILD_RESTARTS) { /* requested while storage.id was written */
        pass_later(h, 1);
        return;
    }
    r->ran_s = run_seconds(h);
    r->state = REBUILD_DONE;
    r->forced = false;
    r->first = true;
    r->walk.has_after = false;
    healer_put(h, rebuild_key, NULL, 0);
    if (r->lost)
        lost_save(h);
    r->lost = false;
    log_info("rebuild: done, %llu files checked; this storage is complete",
             (unsigned long long)r->files_done);
    tell_everything(h);
}

static void on_saved(struct disk_req *dr, int rc)
{
    struct healer *h = dr->arg;

    if (rc != 0) {
        log_error("cannot write storage.id: %s", error_text(rc));
        if (!h->stopping)
            pass_later(h, RETRY_MS);
    } else if (!h->stopping) {
        rebuild_done(h);
    }
    healer_idle(h);
}

static void identity_save(struct healer *h)
{
    struct rebuild *r = &h->parts->rebuild;
    struct identity *id = h->config.identity;

    assert(is_running(r) && r->in_identity);
    r->iov.iov_base = r->text;
    r->iov.iov_len =
        identity_print(r->text, id->incarnation, id->cluster_id, h->us, false);
    r->dr = (struct disk_req){ .op = DISK_REPLACE,
                               .path = IDENTITY_FILE,
                               .iov = &r->iov,
                               .n_iov = 1,
                               .len = r->iov.iov_len,
                               .done = on_saved,
                               .arg = h };
    h->n_busy++;
    disk_submit(h->config.disk, &r->dr);
}

static void pass_end(struct healer *h)
{
    struct rebuild *r = &h->parts->rebuild;
    bool again = r->state == REBUILD_RESTARTS;
    bool clean = !r->failed && !r->walk.incomplete && !again;
    bool was_partial = identity_is_rebuilt(h->config.identity);

    assert(is_running(r) && r->n_running == 0);
    r->first = false;
    heal_walk_end(&r->walk);
    r->walk.has_after = false;
    if (!clean) {
        pass_later(h, again ? 1 : RETRY_MS);
        return;
    }
    r->forced = false;
    if (was_partial) {
        /* Files created meanwhile were partial and may lie behind the cursor: one more
         * pass. */
        atomic_store(&h->config.identity->rebuild, false);
        pass_begin(h);
    } else if (r->in_identity) {
        /* The identity is saved last: a restart before that begins the passes again. */
        identity_save(h);
    } else {
        rebuild_done(h);
    }
}

/* ---- one pass ---- */

static void page_done(struct healer *h)
{
    struct rebuild *r = &h->parts->rebuild;

    assert(r->n_running == 0);
    free(r->files);
    r->files = NULL;
    r->n_files_page = 0;
    if (r->walk.end || r->state == REBUILD_RESTARTS) {
        pass_end(h);
        return;
    }
    if (r->first)
        place_save(h);
    heal_walk_next(&r->walk);
}

static void on_file(struct sweep_file *s, bool good)
{
    struct healer *h = s->h;
    struct rebuild *r = &h->parts->rebuild;

    assert(r->n_running > 0);
    if (!good) {
        r->failed = true;
        r->unhealed += repair_n_unhealed(&s->result);
        if (repair_wants_fence(&s->result) && !r->first)
            heal_check_add(h, &s->job.request.target, 0, UINT64_MAX,
                           REPAIR_FENCE | REPAIR_ALL_HOMES | REPAIR_PARTIAL);
    }
    r->files_done++;
    r->bytes_done += file_bytes(&s->f.file);
    if (--r->n_running == 0)
        page_done(h);
}

/* Returns whether our projection is here and complete. A file where we are a spare is
 * complete unless we may have to replace its lost home. */
static bool is_whole(const struct healer *h, const struct heal_walk_file *f)
{
    unsigned p = healer_home(h, &f->file.target);
    uint32_t bit = UINT32_C(1) << p;

    if (heal_place(&f->file.target, h->us) != p)
        return !h->parts->rebuild.lost && !h->parts->rebuild.in_identity;
    return (f->own_projections & bit) != 0 &&
           ((f->own_damaged | f->own_partial) & bit) == 0;
}

/* Returns whether a file of which we hold only a copy for another home is damaged
 * here. */
static bool has_spoiled(const struct healer *h, const struct heal_walk_file *f)
{
    unsigned p = f->file.known ? healer_home(h, &f->file.target) : DIST_MAX;
    uint32_t others = p < DIST_MAX ? ~(UINT32_C(1) << p) : UINT32_MAX;

    return f->file.known && (f->own_damaged & others) != 0;
}

static void on_page(struct heal_walk *w, struct heal_walk_file *files, unsigned n,
                    bool end)
{
    struct healer *h = w->h;
    struct rebuild *r = &h->parts->rebuild;

    assert(w == &r->walk && r->files == NULL && r->n_running == 0);
    (void)end; /* same as w->end */
    r->files = calloc(n + 1, sizeof(r->files[0]));
    if (r->files == NULL) {
        r->failed = true;
        n = 0;
    }
    r->n_running = 1; /* one for this function, until all are submitted */
    for (unsigned i = 0; i < n; i++) {
        struct sweep_file *s = &r->files[r->n_running - 1];

        bool is_spoiled = has_spoiled(h, &files[i]);

        if (!is_home(h, &files[i].file) && !is_spoiled)
            continue;
        if (!r->forced && !is_spoiled && is_whole(h, &files[i])) {
            r->files_done++;
            r->bytes_done += file_bytes(&files[i].file);
            continue;
        }
        s->h = h;
        s->f = files[i];
        s->done = on_file;
        r->n_running++;
        sweep_submit(s, RANK_REBUILD, is_spoiled ? REPAIR_CLEAN_SPARES : 0);
    }
    r->n_files_page = r->n_running - 1;
    if (--r->n_running == 0)
        page_done(h);
}

static void pass_begin(struct healer *h)
{
    struct rebuild *r = &h->parts->rebuild;

    assert(is_running(r));
    if (!r->walk.has_after) {
        r->files_done = r->bytes_done = 0;
        r->failed = false;
    }
    r->unhealed = 0;
    r->walk.own = false;
    r->walk.page = on_page;
    heal_walk_begin(h, &r->walk);
    if (r->first)
        count_begin(h);
}

static void on_timer(struct env_timer *timer)
{
    struct healer *h = container_of(timer, struct heal_parts, rebuild.timer)->h;
    struct rebuild *r = &h->parts->rebuild;

    assert(r->state == REBUILD_WAITS);
    if (healer_gathers(h, timer, r->gather_until_ns))
        return;
    r->state = REBUILD_RUNS;
    pass_begin(h);
}

static void rebuild_begin(struct healer *h, uint32_t after_ms)
{
    struct rebuild *r = &h->parts->rebuild;

    assert(!is_running(r));
    r->state = REBUILD_WAITS;
    r->began_ns = env_now_ns(h->env);
    env_timer_start(h->env, &r->timer, after_ms);
}

void rebuild_start(struct healer *h)
{
    struct rebuild *r = &h->parts->rebuild;

    if (r->timer.fn == NULL)
        env_timer_init(&r->timer, on_timer);
    if (h->us == 0 || is_under_way(r))
        return;
    r->in_identity = identity_is_rebuilt(h->config.identity);
    r->lost |= lost_is_news(h);
    if (!r->in_identity && !r->forced && !r->lost)
        return;
    log_info("rebuild: %s", r->walk.has_after ? "continues" : "begins");
    r->gather_until_ns = healer_gather_until_ns(h);
    rebuild_begin(h, 1);
}

/* Requests a restart from the beginning. Work under way ends first, but a restart of the
 * process does not continue it. */
static void begin_again(struct healer *h)
{
    assert(is_running(&h->parts->rebuild));
    h->parts->rebuild.state = REBUILD_RESTARTS;
    place_save(h);
}

void rebuild_lost(struct healer *h)
{
    struct rebuild *r = &h->parts->rebuild;

    if (!h->started || !lost_is_news(h))
        return;
    r->lost = true;
    if (is_running(r)) {
        begin_again(h);
        return;
    }
    log_info("a storage is lost: rebuilding its projections on spares");
    r->first = true;
    r->walk.has_after = false;
    r->ran_s = 0;
    place_save(h);
    rebuild_begin(h, 1);
}

void rebuild_force(struct healer *h)
{
    struct rebuild *r = &h->parts->rebuild;

    r->forced = true;
    r->ran_s = 0;
    if (is_running(r)) {
        begin_again(h);
        return;
    }
    r->first = true;
    r->walk.has_after = false;
    place_save(h);
    r->in_identity = identity_is_rebuilt(h->config.identity);
    rebuild_begin(h, 1);
}

void rebuild_everything(struct healer *h, uint32_t peer, uint64_t note)
{
    struct rebuild *r = &h->parts->rebuild;

    if (r->n_notified > 0 || r->n_everything == 64 ||
        (is_under_way(r) && !(r->state == REBUILD_WAITS && r->first && r->forced)))
        return; /* the peer reports it again */
    for (unsigned i = 0; i < r->n_everything; i++) {
        if (r->everything[i].peer == peer) {
            r->everything[i].note = note;
            return;
        }
    }
    r->everything[r->n_everything].peer = peer;
    r->everything[r->n_everything++].note = note;
    if (r->state == REBUILD_WAITS)
        return;
    log_info("storage %u reports too many missed writes to list: checking all files",
             (unsigned)peer);
    r->forced = r->first = true;
    r->walk.has_after = false;
    r->ran_s = 0;
    rebuild_begin(h, GATHER_MS); /* waits for other peers that may report it, too */
}

/* Stops. Jobs and requests were cancelled before. */
void rebuild_stop(struct healer *h)
{
    struct rebuild *r = &h->parts->rebuild;

    if (r->timer.fn != NULL)
        env_timer_stop(h->env, &r->timer);
    heal_walk_end(&r->walk);
    heal_walk_end(&r->count);
    free(r->files);
    r->files = NULL;
    r->n_files_page = 0;
}

/* Bytes already written of files under repair, since large ones take long. */
static uint64_t bytes_under_way(const struct rebuild *r)
{
    uint64_t sum = 0;

    for (unsigned i = 0; i < r->n_files_page; i++) {
        const struct sweep_file *s = &r->files[i];
        uint64_t done =
            s->job.repair == NULL ? 0 : repair_progress(s->job.repair)->written_bytes;
        uint64_t all = file_bytes(&s->f.file);

        sum += done < all ? done : all;
    }
    return sum;
}

void rebuild_health(struct healer *h, Rozo__StHealthResp *resp)
{
    const struct rebuild *r = &h->parts->rebuild;

    resp->rebuild_state = is_under_way(r) ? 1 : r->state == REBUILD_DONE ? 2 : 0;
    resp->rebuild_files_done = r->files_done;
    resp->rebuild_files =
        r->n_files < r->files_done && r->n_files != 0 ? r->files_done : r->n_files;
    resp->rebuild_bytes_done = r->bytes_done + bytes_under_way(r);
    resp->rebuild_bytes = r->n_bytes < resp->rebuild_bytes_done && r->n_bytes != 0
                              ? resp->rebuild_bytes_done
                              : r->n_bytes;
    resp->rebuild_s = run_seconds(h);
}
