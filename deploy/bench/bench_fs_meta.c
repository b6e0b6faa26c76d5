/*
 * bench_fs_meta.c - names, and files of a few KiB.
 *
 * In:     a run; a set of files for each number of jobs, with a folder for each job.
 * Out:    the counters of each job.
 * Keeps:  listings are complete, small files hold the data written; names cached by the
 *         kernel are dropped before they are looked up.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/err.h"
#include "deploy/bench/bench_fs.h"
#include "deploy/cli/fsutil.h"

enum { SMALL_SHARE = 4 }; /* divisor of the number of files, for small files */

static struct fsb_set *set_of(struct fsb_run *run)
{
    struct fsb_place *place = run->place;
    uint32_t bytes = run->load->record_bytes;
    unsigned n_all = run->wish->n_files / (bytes > 0 ? SMALL_SHARE : 1);
    struct fsb_set *set;
    char name[FSB_NAME_MAX];

    snprintf(name, sizeof(name), "files-%u-%u", run->n_jobs, bytes);
    for (unsigned i = 0; i < place->n_sets; i++) {
        if (strcmp(place->set[i].name, name) == 0)
            return &place->set[i];
    }
    if (place->n_sets == FSB_SETS_MAX)
        return NULL;
    set = &place->set[place->n_sets++];
    memcpy(set->name, name, sizeof(name));
    set->n_jobs = run->n_jobs;
    set->n_each = n_all / run->n_jobs > 0 ? n_all / run->n_jobs : 1;
    set->file_bytes = bytes;
    return set;
}

/* Writes the path of a job's folder, or of the folder of all (job NULL). */
static int set_path(const struct fsb_run *run, const struct fsb_set *set,
                    const struct fsb_job *job, char *out, struct err *err)
{
    if (job == NULL)
        return path_join(out, err, "%s/%s", run->place->folder[0], set->name);
    return path_join(out, err, "%s/%s/%u", job->folder, set->name, job->index);
}

static void file_name(char out[FSB_NAME_MAX], char prefix, unsigned i)
{
    snprintf(out, FSB_NAME_MAX, "%c%07u", prefix, i);
}

/* Creates empty folders. */
static int set_make_anew(struct fsb_run *run, struct fsb_set *set, struct err *err)
{
    char path[PATH_MAX];
    int rc = set_path(run, set, NULL, path, err);

    set->prefix = 0;
    if (rc == 0)
        rc = fsb_remove(path);
    if (rc == 0 && mkdir(path, 0700) != 0)
        rc = -errno;
    for (unsigned i = 0; i < run->n_jobs && rc == 0; i++) {
        rc = set_path(run, set, NULL, path, err);
        if (rc == 0)
            rc = path_join(path + strlen(path), err, "/%u", i);
        if (rc == 0 && mkdir(path, 0700) != 0)
            rc = -errno;
    }
    return rc == 0 ? 0 : err_wrap(err, rc, "create %s", set->name);
}

/* Returns the offset of a small file's data in the contents that all share. */
static uint64_t small_offset(const struct fsb_set *set, unsigned i)
{
    return (uint64_t)i * FSB_PAGE % (FSB_RECORD_MAX - set->file_bytes);
}

static int set_find(struct fsb_run *run, struct err *err)
{
    struct fsb_set *set = set_of(run);
    /* A file that is written nowhere: its seed determines its bytes. */
    struct fsb_file *contents = fsb_file_get(run->place, "small", FSB_RECORD_MAX);

    if (set == NULL || contents == NULL)
        return err_wrap(err, -ENOMEM, "prepare");
    for (unsigned i = 0; i < run->n_jobs; i++) {
        run->jobs[i].set = set;
        run->jobs[i].file = contents;
        if (set->file_bytes > 0) { /* contents to write are prepared, and touched */
            memset(contents->versions, 0, FSB_RECORD_MAX / FSB_PAGE);
            fsb_file_fill(contents, run->jobs[i].buf, 0, FSB_RECORD_MAX);
        }
    }
    return 0;
}

int fsb_create_prepare(struct fsb_run *run, struct err *err)
{
    int rc = set_find(run, err);

    return rc == 0 ? set_make_anew(run, run->jobs[0].set, err) : rc;
}

/* Does the work of another load for all jobs, untimed and one after the other. */
static int work_all(struct fsb_run *run, void (*work)(struct fsb_job *job),
                    struct err *err)
{
    uint64_t stop_ns = run->stop_ns;
    int rc = 0;

    run->stop_ns = UINT64_MAX;
    for (unsigned i = 0; i < run->n_jobs && rc == 0; i++) {
        struct fsb_job *job = &run->jobs[i];

        work(job);
        rc = job->rc;
        if (rc != 0)
            err_set(err, rc, "%s", job->err.text);
        job->n_ops = job->n_bytes = 0;
        memset(&job->latency, 0, sizeof(job->latency));
    }
    run->stop_ns = stop_ns;
    return rc;
}

static int forget(struct fsb_run *run, struct err *err)
{
    char path[PATH_MAX];
    int rc = set_path(run, run->jobs[0].set, NULL, path, err);

    if (rc == 0 && run->jobs[0].set->file_bytes > 0)
        fsb_forget_data_below(path);
    if (rc == 0)
        fsb_forget_names(path);
    return rc;
}

int fsb_names_prepare(struct fsb_run *run, struct err *err)
{
    int rc = set_find(run, err);
    struct fsb_set *set = run->jobs[0].set;

    if (rc == 0 && set->prefix != 'f' && set->prefix != 'g') {
        rc = set_make_anew(run, set, err);
        if (rc == 0)
            rc = work_all(run, fsb_create_work, err);
        if (rc == 0 && !fsb_interrupted)
            set->prefix = 'f';
    }
    return rc == 0 ? forget(run, err) : rc;
}

int fsb_folders_prepare(struct fsb_run *run, struct err *err)
{
    int rc = set_find(run, err);
    struct fsb_set *set = run->jobs[0].set;

    if (rc == 0 && set->prefix != 'd') {
        rc = set_make_anew(run, set, err);
        if (rc == 0)
            rc = work_all(run, fsb_mkdir_work, err);
        if (rc == 0 && !fsb_interrupted)
            set->prefix = 'd';
    }
    return rc == 0 ? forget(run, err) : rc;
}

/* Opens the folder of the job; -1: failed. */
static int open_folder(struct fsb_job *job)
{
    char path[PATH_MAX];
    int fd = -1, rc = set_path(job->run, job->set, job, path, &job->err);

    if (rc == 0) {
        fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0)
            rc = -errno;
    }
    if (rc != 0)
        fsb_job_fail(job, rc, "open %s: %s", path, error_text(rc));
    return fd;
}

static int create_one(struct fsb_job *job, int folder, const char *name, unsigned i)
{
    int fd = openat(folder, name, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    uint32_t n = job->set->file_bytes;
    int rc = fd < 0 ? -errno : 0;

    if (rc == 0 && n > 0) {
        ssize_t done = pwrite(fd, job->buf + small_offset(job->set, i), n, 0);

        rc = done < 0 ? -errno : (size_t)done < n ? -ENOSPC : 0;
    }
    if (fd >= 0 && close(fd) != 0 && rc == 0)
        rc = -errno;
    return rc;
}

static int stat_one(struct fsb_job *job, int folder, const char *name, unsigned i)
{
    struct stat st;

    (void)i;
    if (fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return -errno;
    return st.st_size == job->set->file_bytes ? 0 : -EBADMSG;
}

static int rename_one(struct fsb_job *job, int folder, const char *name, unsigned i)
{
    char to[FSB_NAME_MAX];

    file_name(to, job->set->prefix == 'f' ? 'g' : 'f', i);
    return renameat(folder, name, folder, to) == 0 ? 0 : -errno;
}

static int unlink_one(struct fsb_job *job, int folder, const char *name, unsigned i)
{
    (void)job;
    (void)i;
    return unlinkat(folder, name, 0) == 0 ? 0 : -errno;
}

static int mkdir_one(struct fsb_job *job, int folder, const char *name, unsigned i)
{
    (void)job;
    (void)i;
    return mkdirat(folder, name, 0700) == 0 ? 0 : -errno;
}

static int rmdir_one(struct fsb_job *job, int folder, const char *name, unsigned i)
{
    (void)job;
    (void)i;
    return unlinkat(folder, name, AT_REMOVEDIR) == 0 ? 0 : -errno;
}

static int read_one(struct fsb_job *job, int folder, const char *name, unsigned i)
{
    int fd = openat(folder, name, O_RDONLY | O_CLOEXEC);
    uint32_t n = job->set->file_bytes;
    int rc = fd < 0 ? -errno : 0;

    if (rc == 0) {
        ssize_t done = pread(fd, job->buf, n + 1, 0);

        if (done < 0)
            rc = -errno;
        else if (done != n ||
                 fsb_file_compare(job->file, job->buf, small_offset(job->set, i), n) != n)
            rc = -EBADMSG;
    }
    if (fd >= 0)
        close(fd);
    return rc;
}

static void fail_one(struct fsb_job *job, int rc, const char *what, const char *name)
{
    bool wrong = rc == -EBADMSG;

    fsb_job_fail(job, wrong ? -EIO : rc, "%s %s/%u/%s: %s", what, job->set->name,
                 job->index, name, wrong ? "it is not what was written" : error_text(rc));
}

/* Calls one() for all files of the job, in order. */
static void
each_name(struct fsb_job *job, char prefix, const char *what, uint32_t n_bytes,
          int (*one)(struct fsb_job *job, int folder, const char *name, unsigned i))
{
    int folder = open_folder(job), rc = 0;
    uint64_t begun = fsb_now_ns();
    char name[FSB_NAME_MAX];

    for (unsigned i = 0; i < job->set->n_each && folder >= 0 && !fsb_stopped(job); i++) {
        file_name(name, prefix, i);
        rc = one(job, folder, name, i);
        if (rc != 0) {
            fail_one(job, rc, what, name);
            break;
        }
        begun = fsb_job_did(job, begun, n_bytes);
    }
    if (folder >= 0)
        close(folder);
}

void fsb_create_work(struct fsb_job *job)
{
    each_name(job, 'f', "create", job->set->file_bytes, create_one);
}

void fsb_stat_work(struct fsb_job *job)
{
    each_name(job, job->set->prefix, "stat", 0, stat_one);
}

void fsb_rename_work(struct fsb_job *job)
{
    each_name(job, job->set->prefix, "rename", 0, rename_one);
}

void fsb_unlink_work(struct fsb_job *job)
{
    each_name(job, job->set->prefix, "remove", 0, unlink_one);
}

void fsb_mkdir_work(struct fsb_job *job)
{
    each_name(job, 'd', "make", 0, mkdir_one);
}

void fsb_rmdir_work(struct fsb_job *job)
{
    each_name(job, 'd', "remove", 0, rmdir_one);
}

void fsb_small_read_work(struct fsb_job *job)
{
    each_name(job, job->set->prefix, "read", job->set->file_bytes, read_one);
}

static void list(struct fsb_job *job, bool with_stat)
{
    int fd = open_folder(job);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    const struct dirent *entry;
    uint64_t begun = fsb_now_ns();
    unsigned n = 0;

    errno = 0;
    while (dir != NULL && !fsb_stopped(job) && (entry = readdir(dir)) != NULL) {
        int rc = 0;

        if (entry->d_name[0] == '.')
            continue;
        n++;
        if (with_stat)
            rc = stat_one(job, fd, entry->d_name, 0);
        if (rc != 0) {
            fail_one(job, rc, "stat", entry->d_name);
            break;
        }
        begun = fsb_job_did(job, begun, 0);
        errno = 0;
    }
    if (fd >= 0 && (dir == NULL || errno != 0))
        fsb_job_fail(job, -errno, "list %s/%u: %s", job->set->name, job->index,
                     strerror(errno));
    else if (fd >= 0 && !fsb_stopped(job) && n != job->set->n_each)
        fsb_job_fail(job, -EIO, "list %s/%u: %u of %u files are there", job->set->name,
                     job->index, n, job->set->n_each);
    if (dir != NULL)
        closedir(dir);
    else if (fd >= 0)
        close(fd);
}

void fsb_list_work(struct fsb_job *job)
{
    list(job, false);
}

void fsb_list_stat_work(struct fsb_job *job)
{
    list(job, true);
}

int fsb_created_check(struct fsb_run *run, struct err *err)
{
    (void)err;
    run->jobs[0].set->prefix = run->load->work == fsb_mkdir_work ? 'd' : 'f';
    return 0;
}

int fsb_renamed_check(struct fsb_run *run, struct err *err)
{
    struct fsb_set *set = run->jobs[0].set;

    (void)err;
    set->prefix = set->prefix == 'f' ? 'g' : 'f';
    return 0;
}

int fsb_gone_check(struct fsb_run *run, struct err *err)
{
    struct fsb_set *set = run->jobs[0].set;
    char path[PATH_MAX];
    int rc = 0;

    set->prefix = 0;
    for (unsigned i = 0; i < run->n_jobs && rc == 0; i++) {
        rc = set_path(run, set, &run->jobs[i], path, err);
        if (rc == 0 && folder_is_empty(path, err) == 0)
            rc = err_set(err, -EIO,
                         "%s is not empty, though all files in it were removed", path);
    }
    return rc;
}
