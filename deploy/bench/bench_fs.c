/*
 * bench_fs.c - measures a mounted file system, or two in turn.
 *
 * In:     places, a wish, rows with their loads.
 * Out:    samples of each row. A bar on the terminal meanwhile.
 * Keeps:  preparation and checks are not timed; buffers are touched before the clock
 *         runs; of two places, each goes first in every second round; all files are
 *         removed, also after ^C and failures.
 *
 * A run has a thread of its own, which starts those of the jobs, so that the first thread
 * can draw and react to signals while a mount does not answer.
 */
#include "deploy/bench/bench_fs.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/list.h"
#include "common/base/units.h"
#include "deploy/cli/fsutil.h"
#include "deploy/cli/progress.h"

enum { TICK_MS = 100 };

volatile sig_atomic_t fsb_interrupted;

static void on_signal(int sig)
{
    (void)sig;
    fsb_interrupted = 1;
}

void fsb_catch_signals(void)
{
    struct sigaction sa = { .sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND };

    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
}

uint64_t fsb_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return timespec_to_ns(now);
}

bool fsb_stopped(const struct fsb_job *job)
{
    return fsb_interrupted ||
           atomic_load_explicit(&job->run->failed, memory_order_relaxed) ||
           (job->run->stop_ns != UINT64_MAX && fsb_now_ns() >= job->run->stop_ns);
}

int fsb_job_fail(struct fsb_job *job, int rc, const char *fmt, ...)
{
    char text[ERR_TEXT_MAX];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    atomic_store(&job->run->failed, true);
    if (job->rc != 0)
        return rc;
    job->rc = rc;
    return err_set(&job->err, rc, "%s", text);
}

uint64_t fsb_job_did(struct fsb_job *job, uint64_t begun_ns, uint64_t n_bytes)
{
    uint64_t now = fsb_now_ns();

    fsb_hist_add(&job->latency, now - begun_ns);
    job->n_ops++;
    job->n_bytes += n_bytes;
    return now;
}

bool fsb_forget_names(const char *folder)
{
    int dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int fd = open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC);
    bool done;

    /* The kernel does not drop inodes that are not written out. */
    if (dir >= 0 && fd >= 0)
        syncfs(dir);
    done = fd >= 0 && write(fd, "2\n", 2) == 2;
    if (dir >= 0)
        close(dir);
    if (fd >= 0)
        close(fd);
    return done;
}

int fsb_place_add(struct fsb_place *place, char *list, unsigned n_max, struct err *err)
{
    char *save;

    for (char *word = list == NULL ? NULL : strtok_r(list, ",", &save); word != NULL;
         word = strtok_r(NULL, ",", &save)) {
        if (place->n_mounts == n_max)
            return err_set(err, -E2BIG, "more than %u mounts", n_max);
        place->mount[place->n_mounts++] = word;
    }
    return 0;
}

int fsb_place_open(struct fsb_place *place, struct err *err)
{
    const char *name;
    struct stat st;
    int rc;

    for (unsigned i = 0; i < place->n_mounts; i++) {
        if (stat(place->mount[i], &st) != 0)
            return err_wrap(err, -errno, "look at %s", place->mount[i]);
        if (!S_ISDIR(st.st_mode))
            return err_set(err, -ENOTDIR, "%s is no folder", place->mount[i]);
    }
    rc = path_join(place->folder[0], err, "%s/rozo-bench-XXXXXX", place->mount[0]);
    if (rc == 0 && mkdtemp(place->folder[0]) == NULL)
        rc = err_wrap(err, -errno, "make a folder in %s", place->mount[0]);
    if (rc != 0) {
        place->folder[0][0] = '\0';
        return rc;
    }
    name = strrchr(place->folder[0], '/') + 1;
    for (unsigned i = 1; i < place->n_mounts; i++) {
        rc = path_join(place->folder[i], err, "%s/%s", place->mount[i], name);
        if (rc == 0 && stat(place->folder[i], &st) != 0)
            rc = err_set(err, -ENOENT,
                         "%s does not show what was made in %s: they are not "
                         "mounts of one file system",
                         place->mount[i], place->mount[0]);
        if (rc != 0)
            return rc;
    }
    return 0;
}

int fsb_place_close(struct fsb_place *place, struct err *err)
{
    int rc = place->folder[0][0] == '\0' ? 0 : fsb_remove(place->folder[0]);

    if (rc != 0)
        err_wrap(err, rc, "cannot remove %s, which remains", place->folder[0]);
    for (unsigned i = 0; i < place->n_files; i++)
        free(place->file[i].versions);
    for (size_t i = 0; i < place->n_entries; i++)
        free(place->tree[i].path);
    free(place->tree);
    free(place->cluster);
    memset(place, 0, sizeof(*place));
    return rc;
}

/* A run under way. */
struct measure {
    struct fsb_run run;
    struct fsb_job jobs[FSB_JOBS_MAX];
    pthread_barrier_t barrier;
    struct fsb_sample *sample; /* borrowed; written if rc is 0 */
    int rc;
    struct err err;
    atomic_bool done;
};

static void *job_main(void *arg)
{
    struct fsb_job *job = arg;
    struct measure *m = container_of(job->run, struct measure, run);

    pthread_barrier_wait(&m->barrier);
    job->run->load->work(job);
    job->end_ns = fsb_now_ns();
    return NULL;
}

/* Starts the jobs, waits for them, and gets the CPU time used. */
static int jobs_run(struct measure *m, struct fsb_cpu *cpu)
{
    struct fsb_run *run = &m->run;
    pthread_t threads[FSB_JOBS_MAX];
    struct fsb_cpu before, after;

    pthread_barrier_init(&m->barrier, NULL, run->n_jobs + 1);
    for (unsigned i = 0; i < run->n_jobs; i++) {
        /* Earlier threads wait for it; without threads a benchmark is useless. */
        if (pthread_create(&threads[i], NULL, job_main, &run->jobs[i]) != 0)
            abort();
    }
    fsb_cpu_now(run->place->cluster, &before);
    run->start_ns = fsb_now_ns();
    run->stop_ns = UINT64_MAX;
    if (run->load->flags & (FSB_RANDOM | FSB_SYNC_EACH) && !(run->load->flags & FSB_ONCE))
        run->stop_ns = run->start_ns + s_to_ns(run->wish->seconds);
    pthread_barrier_wait(&m->barrier);
    for (unsigned i = 0; i < run->n_jobs; i++)
        pthread_join(threads[i], NULL);
    fsb_cpu_now(run->place->cluster, &after);
    fsb_cpu_since(&before, &after, cpu);
    pthread_barrier_destroy(&m->barrier);
    for (unsigned i = 0; i < run->n_jobs; i++) {
        if (run->jobs[i].rc != 0)
            return err_set(&m->err, run->jobs[i].rc, "%s", run->jobs[i].err.text);
    }
    return 0;
}

static void sample_fill(const struct fsb_run *run, struct fsb_sample *sample)
{
    struct fsb_hist *all = calloc(1, sizeof(*all));
    uint64_t end_ns = run->start_ns + 1;

    for (unsigned i = 0; i < run->n_jobs; i++) {
        const struct fsb_job *job = &run->jobs[i];

        sample->n_ops += job->n_ops;
        sample->n_bytes += job->n_bytes;
        if (job->end_ns > end_ns)
            end_ns = job->end_ns;
        if (all != NULL)
            fsb_hist_merge(all, &job->latency);
    }
    sample->wall_s = (double)(end_ns - run->start_ns) / 1e9;
    sample->figure = (run->load->unit == FSB_MIB ? (double)sample->n_bytes / (1 << 20)
                                                 : (double)sample->n_ops) /
                     sample->wall_s;
    if (all != NULL && !(run->load->flags & FSB_NO_LATENCY)) {
        sample->p50_us = (double)fsb_hist_share(all, 0.5) / 1e3;
        sample->p99_us = (double)fsb_hist_share(all, 0.99) / 1e3;
        sample->max_us = (double)all->max_ns / 1e3;
    }
    free(all);
}

static void *measure_main(void *arg)
{
    struct measure *m = arg;
    struct fsb_run *run = &m->run;
    struct fsb_sample sample = { 0 };

    run->stop_ns = UINT64_MAX;
    m->rc = run->load->prepare(run, &m->err);
    if (m->rc == 0 && !fsb_interrupted)
        m->rc = jobs_run(m, &sample.cpu);
    for (unsigned i = 0; i < run->n_jobs; i++) {
        if (run->jobs[i].fd >= 0)
            close(run->jobs[i].fd);
        run->jobs[i].fd = -1;
    }
    if (m->rc == 0 && !fsb_interrupted && run->load->check != NULL)
        m->rc = run->load->check(run, &m->err);
    if (m->rc == 0 && fsb_interrupted)
        m->rc = -EINTR;
    if (m->rc == 0) {
        sample_fill(run, &sample);
        *m->sample = sample;
    }
    atomic_store(&m->done, true);
    return NULL;
}

/* Runs in a thread; draws meanwhile. */
static int measure_wait(struct measure *m, struct progress *progress)
{
    struct timespec tick = { .tv_nsec = TICK_MS * NS_PER_MS };
    sigset_t ours, were;
    pthread_t thread;
    int rc;

    sigemptyset(&ours);
    sigaddset(&ours, SIGINT);
    sigaddset(&ours, SIGTERM);
    /* Threads inherit it: signals come to this one. */
    pthread_sigmask(SIG_BLOCK, &ours, &were);
    rc = pthread_create(&thread, NULL, measure_main, m);
    pthread_sigmask(SIG_SETMASK, &were, NULL);
    if (rc != 0)
        return -rc;
    for (unsigned i = 0; !atomic_load(&m->done); i++) {
        struct timespec soon = { .tv_nsec = 2 * NS_PER_MS };

        nanosleep(i < 50 ? &soon : &tick, NULL); /* short runs are not delayed */
        progress_tick(progress);
    }
    pthread_join(thread, NULL);
    return m->rc;
}

static void measure_init(struct measure *m, const struct fsb_wish *wish,
                         struct fsb_place *place, const struct fsb_load *load,
                         uint8_t *buffers)
{
    unsigned n_mounts = load->n_mounts > 0 ? load->n_mounts : 1;

    memset(m, 0, sizeof(*m));
    m->run = (struct fsb_run){ .wish = wish,
                               .load = load,
                               .place = place,
                               .jobs = m->jobs,
                               .n_jobs = load->n_jobs * n_mounts };
    assert(m->run.n_jobs <= FSB_JOBS_MAX && n_mounts <= place->n_mounts);
    for (unsigned i = 0; i < m->run.n_jobs; i++) {
        m->jobs[i] = (struct fsb_job){ .run = &m->run,
                                       .index = i,
                                       .folder = place->folder[i / load->n_jobs],
                                       .buf = buffers + (size_t)i * FSB_RECORD_MAX,
                                       .fd = -1,
                                       .random = fsb_now_ns() + i };
        fsb_buffer_init(m->jobs[i].buf);
    }
}

/* Measures one row at one place in one round. */
static int measure_row(struct measure *m, struct fsb_row *row, unsigned side,
                       unsigned round, struct progress *progress, struct err *err)
{
    int rc;

    m->sample = &row->samples[side][round];
    m->run.first = round == 0;
    rc = measure_wait(m, progress);
    if (rc == 0)
        row->n_samples[side]++;
    if (rc == -EOPNOTSUPP && m->err.text[0] == '\0') {
        row->impossible[side] = true;
        return 0;
    }
    if (rc == 0 || rc == -EINTR || fsb_interrupted)
        return fsb_interrupted ? -EINTR : rc;
    return err_set(err, rc, "%s in %s: %s", row->load->name, m->run.place->mount[0],
                   m->err.text[0] != '\0' ? m->err.text : error_text(rc));
}

static bool row_has_place(const struct fsb_row *row, const struct fsb_place *place)
{
    return place->n_mounts > 0 && row->load->n_mounts <= place->n_mounts;
}

int fsb_measure(struct fsb_place place[FSB_SIDES], const struct fsb_wish *wish,
                struct fsb_results *results, struct err *err)
{
    uint8_t *buffers = aligned_alloc(FSB_PAGE, (size_t)FSB_JOBS_MAX * FSB_RECORD_MAX);
    struct measure *m = malloc(sizeof(*m));
    unsigned n_sides = place[FSB_THERE].n_mounts > 0 ? 2 : 1, n_done = 0;
    struct progress progress;
    int rc = buffers == NULL || m == NULL ? -ENOMEM : 0;

    for (unsigned i = 0; i < results->n_rows * FSB_SIDES && rc == 0; i++) {
        struct fsb_row *row = &results->rows[i / FSB_SIDES];

        row->samples[i % FSB_SIDES] = calloc(wish->n_rounds, sizeof(*row->samples[0]));
        if (row->samples[i % FSB_SIDES] == NULL)
            rc = -ENOMEM;
    }
    if (rc != 0)
        err_wrap(err, rc, "measure");
    progress_start(&progress, wish->n_rounds * results->n_rows * n_sides);
    for (unsigned round = 0; round < wish->n_rounds && rc == 0; round++) {
        for (unsigned i = 0; i < results->n_rows * n_sides && rc == 0; i++) {
            struct fsb_row *row = &results->rows[i / n_sides];
            unsigned side = n_sides == 1 ? FSB_HERE : (i + round) % 2;
            char what[64];

            snprintf(what, sizeof(what), "%s, round %u", row->load->name, round + 1);
            progress_at(&progress, n_done++, what);
            if (!row_has_place(row, &place[side]) || row->impossible[side])
                continue;
            measure_init(m, wish, &place[side], row->load, buffers);
            rc = measure_row(m, row, side, round, &progress, err);
        }
    }
    progress_end(&progress);
    for (unsigned s = 0; s < n_sides; s++)
        fsb_peak_now(place[s].cluster, results->peak_bytes[s]);
    results->warm_names = access("/proc/sys/vm/drop_caches", W_OK) != 0;
    free(buffers);
    free(m);
    return rc;
}

void fsb_results_free(struct fsb_results *results)
{
    for (unsigned i = 0; i < results->n_rows; i++) {
        for (unsigned s = 0; s < FSB_SIDES; s++)
            free(results->rows[i].samples[s]);
    }
    free(results);
}
