/*
 * bench_streams.c - plays streams of frames against the clock.
 *
 * In:     a place, how many streams are read and written, their rate.
 * Out:    for each trial: frames that were late or failed, and how long they took.
 * Keeps:  each frame that is read is compared with what was written, after its time was
 *         taken; frames that were written are read back after the trial.
 *
 * Each stream has a thread and a file. Files are read in a circle, and the kernel drops
 * each frame after it was read, so that each pass comes from the servers. A written
 * stream begins a new file at the end of a circle, and syncs each second: that counts in
 * the time of the frame after which it happened.
 */
#include "deploy/bench/bench_streams.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/units.h"
#include "deploy/cli/fsutil.h"
#include "deploy/cli/progress.h"

enum { TICK_MS = 100, LEAD_MS = 200 /* from the start of the threads to frame 0 */ };

/* One stream. Main thread: clock and second_spare_ns under the lock. */
struct played_stream {
    struct streams_play *play; /* borrowed */
    const char *folder;        /* the place's, through this stream's mount */
    enum streams_kind kind;
    unsigned index; /* among its kind */
    struct fsb_file file;
    bool is_made;      /* file has its contents: of a stream that is read */
    uint64_t n_sound;  /* frames of the newest written file; its frames have versions */
    uint64_t circle;   /* number of that file: its frames divided by those of a file */
    uint64_t unsynced; /* first frame of it that no sync has covered */
    uint8_t *buf;      /* owned; one frame */
    int fd;
    pthread_t thread;
    pthread_mutex_t lock;
    struct frame_clock clock;
    uint64_t second_spare_ns; /* least of this second; UINT64_MAX: no frame ended */
    int rc;
    struct err err;
};

/* All streams, and the trial under way. */
struct streams_play {
    const struct fsb_place *place;   /* all pointers here are borrowed */
    const struct streams_wish *wish; /* n_reads here is where a search begins */
    FILE *live;
    struct played_stream *streams[STREAMS_KINDS]; /* owned; STREAMS_MAX of each */
    unsigned n[STREAMS_KINDS];                    /* streams of this trial */
    uint64_t n_file_frames;
    atomic_bool stop; /* one stream failed, or a search knows enough */
    atomic_bool done; /* the thread that prepares or checks has ended */
    int rc;
    struct err err;
};

static uint64_t frame_offset(const struct played_stream *s, uint64_t frame)
{
    return frame % s->play->n_file_frames * s->play->wish->frame_bytes;
}

static int stream_path(const struct played_stream *s, char *out, struct err *err)
{
    return s->kind == STREAMS_READ
               ? path_join(out, err, "%s/read-%u", s->folder, s->index)
               : path_join(out, err, "%s/written-%u-%llu", s->folder, s->index,
                           (unsigned long long)s->circle);
}

static bool is_stopped(const struct played_stream *s)
{
    return fsb_interrupted || atomic_load(&s->play->stop);
}

/* Reads or writes one frame. Returns 0, or -errno; -ENODATA: the file ends before. */
static int frame_move(const struct played_stream *s, uint64_t offset)
{
    size_t n_bytes = s->play->wish->frame_bytes;

    for (size_t at = 0; at < n_bytes;) {
        off_t where = (off_t)(offset + at);
        ssize_t n = s->kind == STREAMS_READ
                        ? pread(s->fd, s->buf + at, n_bytes - at, where)
                        : pwrite(s->fd, s->buf + at, n_bytes - at, where);

        if (n < 0 && errno == EINTR && !fsb_interrupted)
            continue;
        if (n <= 0)
            return n == 0 ? -ENODATA : -errno;
        at += (size_t)n;
    }
    return 0;
}

/* Compares the frame in the buffer with what was written. A difference ends it all. */
static int frame_check(struct played_stream *s, uint64_t offset, int rc)
{
    size_t n_bytes = s->play->wish->frame_bytes, right = 0;

    if (rc == 0)
        right = fsb_file_compare(&s->file, s->buf, offset, n_bytes);
    if (right == n_bytes)
        return 0;
    if (rc == -ENODATA)
        return err_set(&s->err, -EIO, "%s in %s ends before byte %llu, which was written",
                       s->file.name, s->folder, (unsigned long long)(offset + n_bytes));
    return err_set(&s->err, -EIO,
                   "%s in %s holds other bytes than were written, from byte %llu on",
                   s->file.name, s->folder, (unsigned long long)(offset + right));
}

/* Closes the file; removes one that was written. */
static void stream_close(struct played_stream *s)
{
    struct err err = { 0 };
    char path[PATH_MAX];

    if (s->fd < 0)
        return;
    close(s->fd);
    s->fd = -1;
    if (s->kind == STREAMS_WRITE && stream_path(s, path, &err) == 0)
        unlink(path); /* if that fails, it is removed with the folder */
}

/* Begins the next file of a written stream, and removes the one before. */
static int written_begin(struct played_stream *s, uint64_t circle)
{
    char path[PATH_MAX];
    int rc;

    stream_close(s);
    s->circle = circle;
    rc = stream_path(s, path, &s->err);
    if (rc != 0)
        return rc;
    s->fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (s->fd < 0)
        return -errno;
    memset(s->file.versions, 0, s->file.size_bytes / FSB_PAGE);
    s->n_sound = s->unsynced = 0;
    return 0;
}

/* Forgets what these frames hold: their writes failed, so they may hold anything. */
static void frames_forget(struct played_stream *s, uint64_t from, uint64_t to)
{
    uint64_t n_pages = s->play->wish->frame_bytes / FSB_PAGE;

    memset(s->file.versions + from * n_pages, 0, (to - from) * n_pages);
}

static int frame_write(struct played_stream *s, uint64_t frame)
{
    const struct streams_wish *wish = s->play->wish;
    uint64_t offset = frame_offset(s, frame), at = frame % s->play->n_file_frames;
    uint64_t circle = frame / s->play->n_file_frames;
    int rc = 0;

    if (circle != s->circle || s->fd < 0)
        rc = written_begin(s, circle);
    if (rc != 0)
        return rc;
    fsb_file_fill(&s->file, s->buf, offset, wish->frame_bytes);
    rc = frame_move(s, offset);
    s->n_sound = at + 1;
    if (rc != 0)
        frames_forget(s, at, at + 1);
    if (rc != 0 || (at + 1 - s->unsynced) * wish->frame_bytes < wish->rate)
        return rc;
    if (fdatasync(s->fd) != 0) {
        rc = -errno;
        frames_forget(s, s->unsynced, at + 1);
    }
    s->unsynced = at + 1;
    return rc;
}

/* Moves one frame, and counts it. Returns 0, also if the file system failed. */
static int stream_frame(struct played_stream *s, uint64_t frame)
{
    uint64_t offset = frame_offset(s, frame), begun_ns = fsb_now_ns(), now_ns, due_ns;
    int rc = s->kind == STREAMS_READ ? frame_move(s, offset) : frame_write(s, frame);

    if (rc == -EINTR)
        return 0;
    now_ns = fsb_now_ns();
    due_ns = frame_due_ns(&s->clock, frame);
    pthread_mutex_lock(&s->lock);
    frame_clock_done(&s->clock, begun_ns, now_ns, rc == 0);
    if (rc != 0 || now_ns > due_ns)
        s->second_spare_ns = 0;
    else if (due_ns - now_ns < s->second_spare_ns)
        s->second_spare_ns = due_ns - now_ns;
    pthread_mutex_unlock(&s->lock);
    if (s->kind == STREAMS_WRITE)
        return 0;
    if (rc == 0 || rc == -ENODATA)
        rc = frame_check(s, offset, rc);
    else
        rc = 0;
    posix_fadvise(s->fd, (off_t)offset, (off_t)s->play->wish->frame_bytes,
                  POSIX_FADV_DONTNEED);
    return rc;
}

static void *stream_main(void *arg)
{
    struct played_stream *s = arg;
    struct frame_clock *c = &s->clock;

    while (c->n_done < c->n_frames && !is_stopped(s) && s->rc == 0) {
        uint64_t now_ns = fsb_now_ns(), wait_ns;
        struct timespec t;

        pthread_mutex_lock(&s->lock);
        if (frame_clock_skip(c, now_ns) > 0)
            s->second_spare_ns = 0;
        pthread_mutex_unlock(&s->lock);
        if (c->n_done == c->n_frames)
            break;
        wait_ns = frame_clock_wait_ns(c, now_ns);
        if (wait_ns > ms_to_ns(TICK_MS))
            wait_ns = ms_to_ns(TICK_MS);
        t = (struct timespec){ .tv_nsec = (long)wait_ns };
        if (wait_ns > 0)
            nanosleep(&t, NULL);
        else
            s->rc = stream_frame(s, c->n_done);
    }
    if (s->rc != 0)
        atomic_store(&s->play->stop, true);
    return NULL;
}

/* Makes and syncs the file of a stream that is read, unless an earlier trial did. */
static int stream_make(struct played_stream *s)
{
    char path[PATH_MAX];
    int rc = stream_path(s, path, &s->err);

    if (rc != 0)
        return rc;
    s->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (s->fd < 0)
        return err_wrap(&s->err, -errno, "make %s", path);
    s->kind = STREAMS_WRITE; /* for frame_move() */
    for (uint64_t i = 0;
         i < s->play->n_file_frames && !s->is_made && rc == 0 && !fsb_interrupted; i++) {
        fsb_file_fill(&s->file, s->buf, frame_offset(s, i), s->play->wish->frame_bytes);
        rc = frame_move(s, frame_offset(s, i));
    }
    s->kind = STREAMS_READ;
    if (rc == 0 && !s->is_made && fsync(s->fd) != 0)
        rc = -errno;
    if (rc != 0)
        return err_wrap(&s->err, rc, "write %s", path);
    s->is_made = !fsb_interrupted;
    posix_fadvise(s->fd, 0, 0, POSIX_FADV_DONTNEED);
    return 0;
}

static int stream_init(struct streams_play *play, enum streams_kind kind, unsigned index)
{
    const struct streams_wish *wish = play->wish;
    struct played_stream *s = &play->streams[kind][index];
    size_t room = (wish->frame_bytes + FSB_RECORD_MAX - 1) / FSB_RECORD_MAX;

    if (s->buf != NULL)
        return 0;
    s->play = play;
    s->kind = kind;
    s->index = index;
    s->folder = play->place->folder[index % play->place->n_mounts];
    s->fd = -1;
    s->file.size_bytes = play->n_file_frames * wish->frame_bytes;
    s->file.seed = ((uint64_t)kind << 32 | index) * 0x9e3779b97f4a7c15;
    s->file.versions = calloc(1, s->file.size_bytes / FSB_PAGE);
    s->buf = aligned_alloc(FSB_PAGE, room * FSB_RECORD_MAX);
    if (s->buf == NULL || s->file.versions == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < room; i++)
        fsb_buffer_init(s->buf + i * FSB_RECORD_MAX);
    snprintf(s->file.name, sizeof(s->file.name), "%s-%u",
             kind == STREAMS_READ ? "read" : "written", index);
    pthread_mutex_init(&s->lock, NULL);
    return 0;
}

static void *prepare_main(void *arg)
{
    struct streams_play *play = arg;

    for (unsigned k = 0; k < STREAMS_KINDS; k++) {
        for (unsigned i = 0; i < play->n[k] && play->rc == 0 && !fsb_interrupted; i++) {
            struct played_stream *s = &play->streams[k][i];

            play->rc = stream_init(play, k, i);
            if (play->rc == 0 && k == STREAMS_READ)
                play->rc = stream_make(s);
            if (play->rc != 0)
                err_set(&play->err, play->rc, "%s",
                        s->err.text[0] != '\0' ? s->err.text : error_text(play->rc));
        }
    }
    atomic_store(&play->done, true);
    return NULL;
}

/* Syncs the newest file of a written stream, and compares its frames. */
static int written_check(struct played_stream *s)
{
    const struct streams_wish *wish = s->play->wish;
    int rc = 0;

    if (s->fd < 0)
        return 0;
    if (fsync(s->fd) != 0)
        return err_wrap(&s->err, -errno, "sync %s", s->file.name);
    posix_fadvise(s->fd, 0, 0, POSIX_FADV_DONTNEED);
    s->kind = STREAMS_READ; /* for frame_move() */
    for (uint64_t i = 0; i < s->n_sound && rc == 0 && !fsb_interrupted; i++) {
        uint64_t offset = i * wish->frame_bytes;

        if (s->file.versions[offset / FSB_PAGE] == 0)
            continue; /* skipped, or its write failed */
        rc = frame_move(s, offset);
        if (rc == 0 || rc == -ENODATA)
            rc = frame_check(s, offset, rc);
        else
            err_wrap(&s->err, rc, "read %s back", s->file.name);
    }
    s->kind = STREAMS_WRITE;
    return rc;
}

static void *check_main(void *arg)
{
    struct streams_play *play = arg;

    for (unsigned i = 0; i < play->n[STREAMS_WRITE] && play->rc == 0; i++) {
        struct played_stream *s = &play->streams[STREAMS_WRITE][i];

        play->rc = written_check(s);
        if (play->rc != 0)
            err_set(&play->err, play->rc, "%s", s->err.text);
    }
    atomic_store(&play->done, true);
    return NULL;
}

/* Threads inherit the mask: signals come to the first thread, which alone can react while
 * a mount does not answer. */
static int thread_start(pthread_t *thread, void *(*run)(void *), void *arg)
{
    sigset_t ours, were;
    int rc;

    sigemptyset(&ours);
    sigaddset(&ours, SIGINT);
    sigaddset(&ours, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &ours, &were);
    rc = pthread_create(thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &were, NULL);
    return -rc;
}

static void tick(struct progress *progress)
{
    struct timespec t = { .tv_nsec = TICK_MS * NS_PER_MS };

    nanosleep(&t, NULL);
    progress_tick(progress);
}

/* Runs it in a thread, and draws meanwhile. */
static int part_run(struct streams_play *play, void *(*run)(void *), const char *what)
{
    struct progress progress;
    pthread_t thread;
    int rc;

    atomic_store(&play->done, false);
    play->rc = 0;
    rc = thread_start(&thread, run, play);
    if (rc != 0)
        return err_wrap(&play->err, rc, "start a thread");
    progress_start(&progress, 1);
    progress_at(&progress, 0, what);
    while (!atomic_load(&play->done))
        tick(&progress);
    pthread_join(thread, NULL);
    progress_end(&progress);
    return play->rc == 0 && fsb_interrupted ? -EINTR : play->rc;
}

/* Sums over all streams. */
struct streams_count {
    uint64_t n_frames, n_late, n_failed, spare_ns;
};

static void streams_count(struct streams_play *play, uint64_t now_ns,
                          struct streams_count *out)
{
    memset(out, 0, sizeof(*out));
    out->spare_ns = UINT64_MAX;
    for (unsigned k = 0; k < STREAMS_KINDS; k++) {
        for (unsigned i = 0; i < play->n[k]; i++) {
            struct played_stream *s = &play->streams[k][i];

            pthread_mutex_lock(&s->lock);
            out->n_frames += s->clock.n_done;
            out->n_late += frame_clock_late(&s->clock, now_ns);
            out->n_failed += s->clock.n_failed;
            if (s->second_spare_ns < out->spare_ns)
                out->spare_ns = s->second_spare_ns;
            pthread_mutex_unlock(&s->lock);
        }
    }
}

static void spare_reset(struct streams_play *play)
{
    for (unsigned k = 0; k < STREAMS_KINDS; k++) {
        for (unsigned i = 0; i < play->n[k]; i++) {
            struct played_stream *s = &play->streams[k][i];

            pthread_mutex_lock(&s->lock);
            s->second_spare_ns = UINT64_MAX;
            pthread_mutex_unlock(&s->lock);
        }
    }
}

static void live_line(FILE *live, uint64_t second, const struct streams_count *was,
                      const struct streams_count *now)
{
    fprintf(live, "%8llu %8llu %8llu %8llu ", (unsigned long long)second,
            (unsigned long long)(now->n_frames - was->n_frames),
            (unsigned long long)(now->n_late - was->n_late),
            (unsigned long long)(now->n_failed - was->n_failed));
    if (now->spare_ns == UINT64_MAX)
        fprintf(live, "%8s\n", "-");
    else
        fprintf(live, "%7.2fs\n", (double)now->spare_ns / 1e9);
    fflush(live);
}

/* Draws and prints until the trial's last frame must be there, or it is stopped. */
static void streams_watch(struct streams_play *play, uint64_t start_ns, uint64_t end_ns,
                          bool until_late)
{
    uint64_t next_ns = start_ns + NS_PER_S, now_ns;
    struct streams_count now, was = { 0 };
    uint64_t n_all = play->streams[play->n[STREAMS_READ] == 0][0].clock.n_frames *
                     (play->n[STREAMS_READ] + play->n[STREAMS_WRITE]);
    struct progress progress;

    progress_start(&progress, (unsigned)ns_to_ms(end_ns - start_ns) / TICK_MS);
    if (play->live != NULL)
        fprintf(play->live, "%8s %8s %8s %8s %8s\n", "SECOND", "FRAMES", "LATE", "FAILED",
                "SPARE");
    while ((now_ns = fsb_now_ns()) <= end_ns && !fsb_interrupted &&
           !atomic_load(&play->stop)) {
        char what[64];

        streams_count(play, now_ns, &now);
        snprintf(what, sizeof(what), "%u read, %u written: %llu late",
                 play->n[STREAMS_READ], play->n[STREAMS_WRITE],
                 (unsigned long long)now.n_late);
        progress_at(&progress,
                    now_ns < start_ns ? 0
                                      : (unsigned)ns_to_ms(now_ns - start_ns) / TICK_MS,
                    what);
        if (play->live != NULL && now_ns >= next_ns) {
            progress_end(&progress);
            live_line(play->live, ns_to_s(next_ns - start_ns), &was, &now);
            was = now;
            spare_reset(play);
            next_ns += NS_PER_S;
        }
        if (until_late && now.n_late > 0)
            atomic_store(&play->stop, true);
        if (now.n_frames == n_all)
            break; /* all in memory: what is left is only shown */
        tick(&progress);
    }
    progress_end(&progress);
}

static void sum_up(struct streams_play *play, enum streams_kind kind, uint64_t now_ns,
                   struct streams_sum *sum)
{
    struct fsb_hist *all = calloc(1, sizeof(*all));
    uint64_t spare_ns = UINT64_MAX;

    for (unsigned i = 0; i < play->n[kind]; i++) {
        struct frame_clock *c = &play->streams[kind][i].clock;

        frame_clock_skip(c, now_ns);
        sum->n_frames += c->n_done;
        sum->n_late += c->n_late;
        sum->n_failed += c->n_failed;
        if (c->n_done > 0 && c->spare_ns < spare_ns)
            spare_ns = c->spare_ns;
        if (all != NULL)
            fsb_hist_merge(all, &c->took);
    }
    sum->spare_s = spare_ns == UINT64_MAX ? 0 : (double)spare_ns / 1e9;
    if (all != NULL) {
        sum->p50_us = (double)fsb_hist_share(all, 0.5) / 1e3;
        sum->p99_us = (double)fsb_hist_share(all, 0.99) / 1e3;
        sum->max_us = (double)all->max_ns / 1e3;
    }
    free(all);
}

/* Sets the clocks: streams begin one after the other within the time of a frame. */
static uint64_t clocks_set(struct streams_play *play)
{
    const struct streams_wish *wish = play->wish;
    uint64_t start_ns = fsb_now_ns() + ms_to_ns(LEAD_MS);
    uint64_t n_frames = wish->seconds * wish->rate / wish->frame_bytes;
    unsigned n = play->n[STREAMS_READ] + play->n[STREAMS_WRITE], at = 0;

    for (unsigned k = 0; k < STREAMS_KINDS; k++) {
        for (unsigned i = 0; i < play->n[k]; i++) {
            struct played_stream *s = &play->streams[k][i];

            s->clock = (struct frame_clock){ .start_ns = start_ns,
                                             .frame_bytes = wish->frame_bytes,
                                             .rate = wish->rate,
                                             .ahead_ns = ms_to_ns(wish->ahead_ms),
                                             .n_frames = n_frames > 0 ? n_frames : 1 };
            s->clock.start_ns += (frame_begin_ns(&s->clock, 1) - start_ns) * at++ / n;
            s->second_spare_ns = UINT64_MAX;
        }
    }
    return start_ns;
}

/* Plays until the time of the last frame, and waits for calls that still hang. */
static int trial_play(struct streams_play *play, struct streams_trial *trial,
                      struct err *err)
{
    uint64_t start_ns = clocks_set(play), end_ns = start_ns;
    unsigned n_started[STREAMS_KINDS] = { 0 };
    int rc = 0;

    atomic_store(&play->stop, false);
    for (unsigned k = 0; k < STREAMS_KINDS; k++) {
        for (unsigned i = 0; i < play->n[k] && rc == 0; i++) {
            struct played_stream *s = &play->streams[k][i];

            if (frame_clock_end_ns(&s->clock) > end_ns)
                end_ns = frame_clock_end_ns(&s->clock);
            rc = thread_start(&s->thread, stream_main, s);
            n_started[k] += rc == 0;
        }
    }
    if (rc == 0)
        streams_watch(play, start_ns, end_ns, play->wish->find);
    else
        err_wrap(err, rc, "start a thread for each stream");
    if (rc != 0)
        atomic_store(&play->stop, true);
    /* Frames that are not due yet do not count when it was interrupted. */
    if (fsb_now_ns() < end_ns)
        end_ns = fsb_now_ns();
    for (unsigned k = 0; k < STREAMS_KINDS; k++) {
        for (unsigned i = 0; i < n_started[k]; i++) {
            struct played_stream *s = &play->streams[k][i];

            pthread_join(s->thread, NULL);
            if (rc == 0 && s->rc != 0)
                rc = err_set(err, s->rc, "%s", s->err.text);
        }
    }
    for (unsigned k = 0; k < STREAMS_KINDS; k++)
        sum_up(play, k, end_ns + 1, &trial->of[k]);
    trial->held = rc == 0 && !fsb_interrupted && trial->of[STREAMS_READ].n_late == 0 &&
                  trial->of[STREAMS_WRITE].n_late == 0;
    return rc == 0 && fsb_interrupted ? -EINTR : rc;
}

static int trial_run(struct streams_play *play, struct streams_trial *trial,
                     struct err *err)
{
    int rc = part_run(play, prepare_main, "making files");

    if (rc != 0)
        return rc == -EINTR ? rc : err_set(err, rc, "%s", play->err.text);
    rc = trial_play(play, trial, err);
    if (rc == 0) {
        rc = part_run(play, check_main, "reading back what was written");
        if (rc != 0 && rc != -EINTR)
            err_set(err, rc, "%s", play->err.text);
    }
    for (unsigned k = 0; k < STREAMS_KINDS; k++) {
        for (unsigned i = 0; i < play->n[k]; i++)
            stream_close(&play->streams[k][i]);
    }
    return rc;
}

static void play_free(struct streams_play *play)
{
    for (unsigned k = 0; k < STREAMS_KINDS && play->streams[k] != NULL; k++) {
        for (unsigned i = 0; i < STREAMS_MAX; i++) {
            if (play->streams[k][i].buf != NULL)
                pthread_mutex_destroy(&play->streams[k][i].lock);
            free(play->streams[k][i].file.versions);
            free(play->streams[k][i].buf);
        }
        free(play->streams[k]);
    }
    free(play);
}

int streams_measure(const struct fsb_place *place, const struct streams_wish *wish,
                    FILE *live, struct streams_results *results, struct err *err)
{
    struct streams_play *play = calloc(1, sizeof(*play));
    struct stream_find find = { .n = wish->n_reads, .max = STREAMS_MAX - wish->n_writes };
    int rc = 0;

    if (play == NULL)
        return err_wrap(err, -ENOMEM, "play");
    play->place = place;
    play->wish = wish;
    play->live = live;
    play->n_file_frames = wish->file_bytes / wish->frame_bytes;
    assert(play->n_file_frames > 0);
    for (unsigned k = 0; k < STREAMS_KINDS && rc == 0; k++) {
        play->streams[k] = calloc(STREAMS_MAX, sizeof(*play->streams[k]));
        if (play->streams[k] == NULL)
            rc = err_wrap(err, -ENOMEM, "play");
    }
    while (rc == 0 && results->n_trials < STREAM_TRIALS_MAX) {
        struct streams_trial *trial = &results->trial[results->n_trials++];

        trial->n_reads = play->n[STREAMS_READ] = find.n;
        trial->n_writes = play->n[STREAMS_WRITE] = wish->n_writes;
        rc = trial_run(play, trial, err);
        if (rc != 0 || !wish->find || !stream_find_next(&find, trial->held))
            break;
    }
    play_free(play);
    return rc;
}
