/*
 * bench_fs_data.c - files with contents: streams, random I/O, fsync.
 *
 * In:     a run; its load says how large records are, where, and whether they are read or
 *         written.
 * Out:    the counters of each job.
 * Keeps:  all data read are compared with the last data written there, while the clock
 *         runs: it costs 0.05 s per GiB, the same at every place. Randomly written data
 *         are read back afterwards.
 * Yours:  sizes.
 *
 * A sector of 512 bytes begins with a number made of its file, place and version; the
 * rest is the same in every 128 KiB, so that filling a large record costs almost nothing,
 * and yet nothing can be compressed.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/err.h"
#include "deploy/bench/bench_fs.h"
#include "deploy/cli/fsutil.h"

enum { SECTOR = 512, BASE_BYTES = 128 << 10, SIZE_MIN = 1 << 20 };

static uint8_t base[BASE_BYTES];
static pthread_once_t base_once = PTHREAD_ONCE_INIT;

static uint64_t mix(uint64_t x) /* the finalizer of splitmix64 */
{
    x += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

static void base_fill(void)
{
    for (uint64_t i = 0; i < BASE_BYTES / sizeof(i); i++) {
        uint64_t word = mix(i);

        memcpy(base + i * sizeof(word), &word, sizeof(word));
    }
}

static uint64_t stamp_of(const struct fsb_file *file, uint64_t offset)
{
    return mix(file->seed ^ offset) + file->versions[offset / FSB_PAGE];
}

void fsb_buffer_init(uint8_t *buf)
{
    pthread_once(&base_once, base_fill);
    for (size_t at = 0; at < FSB_RECORD_MAX; at += BASE_BYTES)
        memcpy(buf + at, base, BASE_BYTES);
}

void fsb_file_fill(struct fsb_file *file, uint8_t *buf, uint64_t offset, size_t n_bytes)
{
    for (uint64_t page = offset / FSB_PAGE; page * FSB_PAGE < offset + n_bytes; page++)
        file->versions[page] =
            file->versions[page] == UINT8_MAX ? 1 : file->versions[page] + 1;
    for (size_t at = 0; at < n_bytes; at += SECTOR) {
        uint64_t stamp = stamp_of(file, offset + at);

        if (n_bytes % BASE_BYTES != 0) /* otherwise present since fsb_buffer_init() */
            memcpy(buf + at, base + (offset + at) % BASE_BYTES, SECTOR);
        memcpy(buf + at, &stamp, sizeof(stamp));
    }
}

size_t fsb_file_compare(const struct fsb_file *file, const uint8_t *buf, uint64_t offset,
                        size_t n_bytes)
{
    for (size_t at = 0; at < n_bytes; at += SECTOR) {
        uint64_t stamp = stamp_of(file, offset + at);

        if (memcmp(buf + at, &stamp, sizeof(stamp)) != 0 ||
            memcmp(buf + at + sizeof(stamp),
                   base + (offset + at) % BASE_BYTES + sizeof(stamp),
                   SECTOR - sizeof(stamp)) != 0)
            return at;
    }
    return n_bytes;
}

struct fsb_file *fsb_file_get(struct fsb_place *place, const char *name,
                              uint64_t size_bytes)
{
    struct fsb_file *file = NULL;

    for (unsigned i = 0; i < place->n_files && file == NULL; i++) {
        if (strcmp(place->file[i].name, name) == 0)
            file = &place->file[i];
    }
    if (file == NULL && place->n_files < FSB_FILES_MAX) {
        file = &place->file[place->n_files];
        file->versions = calloc(1, size_bytes / FSB_PAGE);
        if (file->versions == NULL)
            return NULL;
        snprintf(file->name, sizeof(file->name), "%s", name);
        file->size_bytes = size_bytes;
        file->seed = mix(place->n_files++);
    }
    return file;
}

/* Reads all bytes. Returns 0, or -errno; -ENODATA if the file ends before. */
static int read_all(int fd, uint8_t *buf, size_t n_bytes, uint64_t offset)
{
    while (n_bytes > 0) {
        ssize_t n = pread(fd, buf, n_bytes, (off_t)offset);

        if (n < 0 && errno == EINTR && !fsb_interrupted)
            continue;
        if (n <= 0)
            return n == 0 ? -ENODATA : -errno;
        buf += n;
        n_bytes -= (size_t)n;
        offset += (uint64_t)n;
    }
    return 0;
}

static int write_all(int fd, const uint8_t *buf, size_t n_bytes, uint64_t offset)
{
    while (n_bytes > 0) {
        ssize_t n = pwrite(fd, buf, n_bytes, (off_t)offset);

        if (n < 0 && errno == EINTR && !fsb_interrupted)
            continue;
        if (n < 0)
            return -errno;
        buf += n;
        n_bytes -= (size_t)n;
        offset += (uint64_t)n;
    }
    return 0;
}

/* Reads a record and compares it. */
static int read_right(struct fsb_file *file, int fd, uint8_t *buf, size_t n_bytes,
                      uint64_t offset, struct err *err)
{
    int rc = read_all(fd, buf, n_bytes, offset);
    size_t right;

    if (rc == -ENODATA)
        return err_set(err, -EIO,
                       "%s ends within %zu bytes from %llu, all of which were written",
                       file->name, n_bytes, (unsigned long long)offset);
    if (rc != 0)
        return err_wrap(err, rc, "read %s at %llu", file->name,
                        (unsigned long long)offset);
    right = fsb_file_compare(file, buf, offset, n_bytes);
    if (right != n_bytes)
        return err_set(err, -EIO,
                       "%s holds other bytes than were written, from byte %llu on",
                       file->name, (unsigned long long)(offset + right));
    return 0;
}

/* Reads and compares the whole file. */
static int read_whole(struct fsb_file *file, int fd, uint8_t *buf, struct err *err)
{
    int rc = 0;

    for (uint64_t at = 0; at < file->size_bytes && rc == 0 && !fsb_interrupted;) {
        uint64_t left = file->size_bytes - at;
        size_t n = left < FSB_RECORD_MAX ? (size_t)left : FSB_RECORD_MAX;

        rc = read_right(file, fd, buf, n, at, err);
        at += n;
    }
    return rc;
}

/* Writes the whole file, and syncs. */
static int write_whole(struct fsb_file *file, int fd, uint8_t *buf, struct err *err)
{
    int rc = 0;

    for (uint64_t at = 0; at < file->size_bytes && rc == 0 && !fsb_interrupted;) {
        uint64_t left = file->size_bytes - at;
        size_t n = left < FSB_RECORD_MAX ? (size_t)left : FSB_RECORD_MAX;

        fsb_file_fill(file, buf, at, n);
        rc = write_all(fd, buf, n, at);
        at += n;
    }
    if (rc == 0 && fsync(fd) != 0)
        rc = -errno;
    return rc == 0 ? 0 : err_wrap(err, rc, "write %s", file->name);
}

/* Returns the file of a job. Jobs of streams have one each; all together have the wish's
 * size. */
static struct fsb_file *file_of(struct fsb_run *run, unsigned job)
{
    uint64_t size = run->wish->size_bytes;
    char name[FSB_NAME_MAX];

    if (run->load->flags & FSB_ONCE) {
        snprintf(name, sizeof(name), "once-%llu", (unsigned long long)size);
        return fsb_file_get(run->place, name, size);
    }
    if (run->load->flags & FSB_RANDOM) {
        snprintf(name, sizeof(name), "random");
        size /= 4;
    } else if (run->load->flags & FSB_SYNC_EACH) {
        snprintf(name, sizeof(name), "sync-%u", job);
        size /= 64;
    } else {
        snprintf(name, sizeof(name), "stream-%u-%u", run->n_jobs, job);
        size /= run->n_jobs;
    }
    size -= size % FSB_RECORD_MAX;
    return fsb_file_get(run->place, name, size < SIZE_MIN ? SIZE_MIN : size);
}

static int ensure_written(struct fsb_job *job, const char *path, struct err *err)
{
    struct fsb_file *file = job->file;
    int fd, rc;

    if (memchr(file->versions, 0, file->size_bytes / FSB_PAGE) == NULL)
        return 0;
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_wrap(err, -errno, "make %s", path);
    rc = write_whole(file, fd, job->buf, err);
    close(fd);
    return rc;
}

static int job_prepare(struct fsb_job *job, struct err *err)
{
    unsigned flags = job->run->load->flags;
    char path[PATH_MAX];
    int rc;

    job->file = file_of(job->run, job->index);
    if (job->file == NULL)
        return err_wrap(err, -ENOMEM, "prepare");
    rc = path_join(path, err, "%s/%s", job->folder, job->file->name);
    if (rc == 0 && (flags & FSB_NEW)) {
        if (unlink(path) != 0 && errno != ENOENT)
            return err_wrap(err, -errno, "remove %s", path);
        memset(job->file->versions, 0, job->file->size_bytes / FSB_PAGE);
    } else if (rc == 0) {
        rc = ensure_written(job, path, err);
    }
    if (rc != 0)
        return rc;
    job->fd = open(path,
                   (flags & FSB_READS ? O_RDONLY : O_WRONLY) |
                       (flags & FSB_NEW ? O_CREAT | O_EXCL : 0) |
                       (flags & FSB_DIRECT ? O_DIRECT : 0) | O_CLOEXEC,
                   0600);
    /* No message: a row without a figure. */
    if (job->fd < 0 && errno == EINVAL && (flags & FSB_DIRECT))
        return -EOPNOTSUPP;
    if (job->fd < 0)
        return err_wrap(err, -errno, "open %s", path);
    if (flags & FSB_WARM)
        return read_whole(job->file, job->fd, job->buf, err);
    if (flags & FSB_READS)
        posix_fadvise(job->fd, 0, 0, POSIX_FADV_DONTNEED);
    return 0;
}

int fsb_data_prepare(struct fsb_run *run, struct err *err)
{
    int rc = 0;

    for (unsigned i = 0; i < run->n_jobs && rc == 0; i++)
        rc = job_prepare(&run->jobs[i], err);
    return rc;
}

/* Returns whether the load runs for `seconds`; otherwise it does all records once. */
static bool is_timed(const struct fsb_load *load)
{
    return load->flags & (FSB_RANDOM | FSB_SYNC_EACH) && !(load->flags & FSB_ONCE);
}

/* Does one record. Returns false if the job must end. */
static bool do_record(struct fsb_job *job, uint64_t offset)
{
    const struct fsb_load *load = job->run->load;
    uint64_t begun = fsb_now_ns();
    struct err err = { 0 };
    int rc;

    if (load->flags & FSB_READS) {
        rc = read_right(job->file, job->fd, job->buf, load->record_bytes, offset, &err);
        if (rc != 0)
            fsb_job_fail(job, rc, "%s", err.text);
    } else {
        fsb_file_fill(job->file, job->buf, offset, load->record_bytes);
        rc = write_all(job->fd, job->buf, load->record_bytes, offset);
        if (rc == 0 && (load->flags & FSB_SYNC_EACH) && fsync(job->fd) != 0)
            rc = -errno;
        if (rc != 0)
            fsb_job_fail(job, rc, "write %s at %llu: %s", job->file->name,
                         (unsigned long long)offset, error_text(rc));
    }
    if (rc == 0)
        fsb_job_did(job, begun, load->record_bytes);
    return rc == 0;
}

void fsb_data_work(struct fsb_job *job)
{
    const struct fsb_load *load = job->run->load;
    uint64_t n_records = job->file->size_bytes / load->record_bytes;

    if (is_timed(load)) {
        /* Jobs of one file have separate records, so the last version of each is
         * known. */
        uint64_t step = load->flags & FSB_RANDOM ? job->run->n_jobs : 1;
        uint64_t first = load->flags & FSB_RANDOM ? job->index : 0;

        while (!fsb_stopped(job)) {
            job->random = mix(job->random);
            if (!do_record(job, (job->random % (n_records / step) * step + first) *
                                    load->record_bytes))
                return;
        }
    } else {
        /* An odd stride visits all records of a power of two, each once. */
        uint64_t stride = load->flags & FSB_RANDOM ? n_records * 5 / 8 | 1 : 1;

        for (uint64_t i = 0; i < n_records && !fsb_stopped(job); i++) {
            if (!do_record(job, i * stride % n_records * load->record_bytes))
                return;
        }
    }
    if (!(load->flags & (FSB_READS | FSB_SYNC_EACH)) && fsync(job->fd) != 0)
        fsb_job_fail(job, -errno, "fsync of %s: %s", job->file->name, strerror(errno));
}

static int read_back(struct fsb_job *job, struct err *err)
{
    char path[PATH_MAX];
    int rc = path_join(path, err, "%s/%s", job->folder, job->file->name);
    int fd = rc == 0 ? open(path, O_RDONLY | O_CLOEXEC) : -1;

    if (rc == 0 && fd < 0)
        rc = err_wrap(err, -errno, "open %s", path);
    if (rc != 0)
        return rc;
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    rc = read_whole(job->file, fd, job->buf, err);
    close(fd);
    return rc;
}

int fsb_data_check(struct fsb_run *run, struct err *err)
{
    unsigned flags = run->load->flags;
    bool scattered = is_timed(run->load);
    int rc = 0;

    for (unsigned i = 0; i < run->n_jobs && !(flags & FSB_READS) && rc == 0; i++) {
        if (run->first || (scattered && (i == 0 || (flags & FSB_SYNC_EACH))))
            rc = read_back(&run->jobs[i], err);
        if (flags & FSB_RANDOM)
            break; /* one file for all jobs */
    }
    return rc;
}
