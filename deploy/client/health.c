/*
 * health.c - the healing of storages as text and JSON.
 *
 * In:     answers to ST_HEALTH. They come from the network: any numbers, any text.
 */
#include "deploy/client/health.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "deploy/cli/cli.h"
#include "deploy/cli/text_table.h"

enum { HEALTH_DEADLINE_MS = 2000, BAR_WIDTH = 10 };

static const char *name_of(const char *const *names, size_t n, uint32_t i)
{
    return i < n ? names[i] : "?";
}

struct health_work health_rebuild(const Rozo__StHealthResp *h)
{
    static const char *const names[] = { "none", "running", "done" };

    return (struct health_work){
        .running = h->rebuild_state == 1,
        .state = name_of(names, 3, h->rebuild_state),
        .files_done = h->rebuild_files_done,
        .files = h->rebuild_files,
        .bytes_done = h->rebuild_bytes_done,
        .bytes = h->rebuild_bytes,
        .seconds = h->rebuild_s,
    };
}

struct health_work health_scrub(const Rozo__StHealthResp *h)
{
    static const char *const names[] = { "never", "running", "done", "stopped" };

    return (struct health_work){
        .running = h->scrub_state == 1,
        .state = h->scrub_state == 2 && h->scrub_unseen > 0
                     ? "incomplete"
                     : name_of(names, 4, h->scrub_state),
        .files_done = h->scrub_files_done,
        .files = h->scrub_files,
        .bytes_done = h->scrub_bytes_done,
        .bytes = h->scrub_bytes,
        .seconds = h->scrub_s,
    };
}

int health_permille(const struct health_work *w)
{
    double done = w->bytes > 0 ? (double)w->bytes_done : (double)w->files_done;
    double all = w->bytes > 0 ? (double)w->bytes : (double)w->files;

    if (all <= 0)
        return -1;
    return done >= all ? 1000 : (int)(done / all * 1000);
}

uint64_t health_rate(const struct health_work *w)
{
    return w->seconds == 0 ? 0 : w->bytes_done / w->seconds;
}

int64_t health_left_s(const struct health_work *w)
{
    int permille = health_permille(w);
    double left;

    if (!w->running || permille <= 0 || w->seconds == 0)
        return -1;
    left = (double)w->seconds * (1000 - permille) / permille;
    return left < 1e9 ? (int64_t)left : -1;
}

void health_work_text(const struct health_work *w, bool bar, char *out, size_t size)
{
    int permille = health_permille(w);
    int full = permille < 0 ? 0 : permille * BAR_WIDTH / 1000;
    char line[BAR_WIDTH + 1];

    if (!w->running || permille < 0) {
        snprintf(out, size, "%s",
                 strcmp(w->state, "none") == 0 || strcmp(w->state, "never") == 0
                     ? "-"
                     : w->state);
        return;
    }
    memset(line, '-', BAR_WIDTH);
    memset(line, '=', (size_t)full);
    line[BAR_WIDTH] = '\0';
    if (bar)
        snprintf(out, size, "[%s] %3d%%", line, permille / 10);
    else
        snprintf(out, size, "running %3d%%", permille / 10);
}

/* Appends ", 5 tasks": counts that are not zero, one after the other. */
static void count_add(char *out, size_t size, uint64_t n, const char *one,
                      const char *many)
{
    size_t len = strlen(out);

    if (n > 0 && len < size)
        snprintf(out + len, size - len, "%s%llu %s", len == 0 ? "" : ", ",
                 (unsigned long long)n, n == 1 ? one : many);
}

bool health_line(const Rozo__StHealthResp *h, char *out, size_t size)
{
    struct health_work rebuild = health_rebuild(h);
    struct health_work scrub = health_scrub(h);
    size_t len;

    out[0] = '\0';
    if (rebuild.running)
        snprintf(out, size, "rebuilding, %d%%",
                 health_permille(&rebuild) < 0 ? 0 : health_permille(&rebuild) / 10);
    if (scrub.running && out[0] == '\0')
        snprintf(out, size, "scrubbing, %d%%",
                 health_permille(&scrub) < 0 ? 0 : health_permille(&scrub) / 10);
    count_add(out, size, h->unhealed, "block not healed yet", "blocks not healed yet");
    count_add(out, size, h->missed_ranges, "range noted that others missed",
              "ranges noted that others missed");
    count_add(out, size, h->unreadable_pages, "page that its disk cannot read",
              "pages that its disk cannot read");
    count_add(out, size, h->queued, "task to heal", "tasks to heal");
    count_add(out, size, h->pending_records, "overwrite in the journal",
              "overwrites in the journal");
    len = strlen(out);
    if (h->doubt && len < size)
        snprintf(out + len, size - len, "%sits journal lost something: to be scrubbed",
                 len == 0 ? "" : ", ");
    len = strlen(out);
    if (h->unhealed + h->disk_errors > 0 && h->problem[0] != '\0' && len < size)
        snprintf(out + len, size - len, len > 0 ? " (%.120s)" : "%.120s", h->problem);
    return out[0] != '\0';
}

static json_t *work_json(const struct health_work *w)
{
    int64_t left_s = health_left_s(w);

    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "state", w->state,
                     "files_done", (json_int_t)w->files_done, "files",
                     (json_int_t)w->files, "bytes_done", (json_int_t)w->bytes_done,
                     "bytes", (json_int_t)w->bytes, "seconds", (json_int_t)w->seconds,
                     "bytes_per_s", (json_int_t)health_rate(w), "left_s",
                     left_s < 0 ? json_null() : json_integer(left_s));
}

json_t *health_json(const Rozo__StHealthResp *h)
{
    struct health_work rebuild = health_rebuild(h), scrub = health_scrub(h);
    json_t *findings = json_array(), *scrub_json = work_json(&scrub);

    for (size_t i = 0; i < h->n_scrub_findings; i++)
        json_array_append_new(findings, cli_json_text(h->scrub_findings[i]));
    json_object_set_new(scrub_json, "found", json_integer((json_int_t)h->scrub_found));
    json_object_set_new(scrub_json, "healed", json_integer((json_int_t)h->scrub_healed));
    json_object_set_new(scrub_json, "unseen", json_integer((json_int_t)h->scrub_unseen));
    json_object_set_new(scrub_json, "ended_ns",
                        json_integer((json_int_t)h->scrub_ended_ns));
    json_object_set_new(scrub_json, "findings", findings);
    return json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:b, s:I, "
        "s:o, s:o}",
        "journal_bytes", (json_int_t)h->journal_bytes, "journal_max_bytes",
        (json_int_t)h->journal_max_bytes, "pending_records",
        (json_int_t)h->pending_records, "uncommitted", (json_int_t)h->uncommitted,
        "missed_ranges", (json_int_t)h->missed_ranges, "queued", (json_int_t)h->queued,
        "healed_records", (json_int_t)h->healed_records, "heal_read_bytes",
        (json_int_t)h->heal_read_bytes, "heal_written_bytes",
        (json_int_t)h->heal_written_bytes, "unhealed", (json_int_t)h->unhealed,
        "unreadable_pages", (json_int_t)h->unreadable_pages, "disk_errors",
        (json_int_t)h->disk_errors, "problem", cli_json_text(h->problem), "doubt",
        (int)h->doubt, "rate_bytes", (json_int_t)h->rate_bytes, "rebuild",
        work_json(&rebuild), "scrub", scrub_json);
}

int health_ask(struct storage_clients *f, uint32_t id, struct progress *progress)
{
    Rozo__StHealthReq *questions = calloc(f->n + 1, sizeof(*questions));
    int rc;

    storage_clients_clear(f);
    for (size_t i = 0; questions != NULL && i < f->n; i++) {
        struct storage_clients_member *m = &f->members[i];

        rozo__st_health_req__init(&questions[i]);
        questions[i].to_storage = m->st->id;
        if (m->st->up && (id == 0 || id == m->st->id))
            m->question = &questions[i].base;
    }
    rc = questions == NULL ? -ENOMEM
                           : storage_clients_ask(f, ROZO__OP__ST_HEALTH,
                                                 &rozo__st_health_resp__descriptor,
                                                 HEALTH_DEADLINE_MS, progress);
    for (size_t i = 0; i < f->n; i++)
        f->members[i].question = NULL;
    free(questions);
    return rc;
}
