/*
 * bench_fs_tree.c - copies in the user's tree, reads it back and deletes it.
 *
 * In:     a folder, FSB_TREE by default.
 * Out:    the counters of each job: files, folders and links.
 * Keeps:  files read back are compared with the original tree, byte by byte.
 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/err.h"
#include "deploy/bench/bench_fs.h"
#include "deploy/cli/fsutil.h"

enum { FDS_MAX = 16, PIECE = FSB_RECORD_MAX / 2 };

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path) == 0 || errno == ENOENT ? 0 : -errno;
}

int fsb_remove(const char *path)
{
    int rc = nftw(path, remove_one, FDS_MAX, FTW_DEPTH | FTW_PHYS);

    return rc == -1 ? (errno == ENOENT ? 0 : -errno) : rc;
}

static int forget_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    int fd =
        type == FTW_F && S_ISREG(st->st_mode) ? open(path, O_RDONLY | O_CLOEXEC) : -1;

    (void)ftw;
    if (fd >= 0) {
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        close(fd);
    }
    return fsb_interrupted;
}

void fsb_forget_data_below(const char *path)
{
    nftw(path, forget_one, FDS_MAX, FTW_PHYS);
}

/* State of the scan, since nftw() passes no argument to its callback; one thread
 * scans. */
static struct {
    struct fsb_place *place;
    size_t n_max, root_len;
} scan;

static int scan_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    struct fsb_place *place = scan.place;
    struct fsb_entry *entry;

    /* Unreadable files are not copied. */
    if (ftw->level == 0 || type == FTW_NS || type == FTW_DNR)
        return 0;
    if (!S_ISREG(st->st_mode) && !S_ISDIR(st->st_mode) && !S_ISLNK(st->st_mode))
        return 0;
    if (S_ISREG(st->st_mode) && access(path, R_OK) != 0)
        return 0;
    if (place->n_entries == scan.n_max) {
        size_t n_max = scan.n_max == 0 ? 1024 : 2 * scan.n_max;
        struct fsb_entry *grown = realloc(place->tree, n_max * sizeof(*grown));

        if (grown == NULL)
            return -ENOMEM;
        place->tree = grown;
        scan.n_max = n_max;
    }
    entry = &place->tree[place->n_entries];
    entry->path = strdup(path + scan.root_len + 1);
    if (entry->path == NULL)
        return -ENOMEM;
    entry->mode = st->st_mode;
    entry->size_bytes = S_ISREG(st->st_mode) ? (uint64_t)st->st_size : 0;
    place->n_entries++;
    return 0;
}

int fsb_tree_scan(struct fsb_place *place, const char *tree, struct err *err)
{
    char root[PATH_MAX];
    int rc;

    if (realpath(tree, root) == NULL)
        return err_wrap(err, -errno, "look at the tree %s", tree);
    scan.place = place;
    scan.n_max = 0;
    scan.root_len = strlen(root);
    rc = nftw(root, scan_one, FDS_MAX, FTW_PHYS);
    if (rc != 0)
        return err_wrap(err, rc == -1 ? -errno : rc, "look at the tree %s", tree);
    if (place->n_entries == 0)
        return err_set(err, -ENOENT, "there is nothing to copy in the tree %s", tree);
    return 0;
}

/* Writes the paths of an entry in the tree and of its copy. */
static int entry_paths(const struct fsb_run *run, const char *folder,
                       const struct fsb_entry *entry, char *from, char *to,
                       struct err *err)
{
    int rc = path_join(from, err, "%s/%s", run->wish->tree, entry->path);

    return rc == 0 ? path_join(to, err, "%s/tree/%s", folder, entry->path) : rc;
}

int fsb_tree_away_prepare(struct fsb_run *run, struct err *err)
{
    struct fsb_place *place = run->place;
    char path[PATH_MAX];
    int rc = 0;

    if (strcmp(run->wish->tree, FSB_TREE) == 0 && access(FSB_TREE, R_OK) != 0)
        return -EOPNOTSUPP; /* no message: a row without a figure */
    if (place->tree == NULL)
        rc = fsb_tree_scan(place, run->wish->tree, err);
    if (rc == 0)
        rc = path_join(path, err, "%s/tree", place->folder[0]);
    if (rc == 0 && (rc = fsb_remove(path)) != 0)
        rc = err_wrap(err, rc, "remove %s", path);
    place->tree_is_there = false;
    /* The tree is read into the kernel's cache before. */
    for (size_t i = 0; i < place->n_entries && rc == 0 && !fsb_interrupted; i++) {
        int fd = -1;

        rc = path_join(path, err, "%s/%s", run->wish->tree, place->tree[i].path);
        if (rc == 0 && S_ISREG(place->tree[i].mode))
            fd = open(path, O_RDONLY | O_CLOEXEC);
        while (fd >= 0 && read(fd, run->jobs[0].buf, PIECE) > 0)
            ;
        if (fd >= 0)
            close(fd);
    }
    return rc;
}

int fsb_tree_there_prepare(struct fsb_run *run, struct err *err)
{
    struct fsb_job *job = &run->jobs[0];
    char path[PATH_MAX];
    int rc = 0;

    if (!run->place->tree_is_there) {
        rc = fsb_tree_away_prepare(run, err);
        if (rc == 0) {
            fsb_tree_copy_work(job);
            job->n_ops = job->n_bytes = 0;
            memset(&job->latency, 0, sizeof(job->latency));
            rc = job->rc == 0 ? 0 : err_set(err, job->rc, "%s", job->err.text);
        }
    }
    if (rc == 0)
        rc = path_join(path, err, "%s/tree", run->place->folder[0]);
    if (rc == 0) {
        fsb_forget_data_below(path);
        fsb_forget_names(path);
    }
    return rc;
}

/* Reads the rest of the file, at most PIECE bytes. */
static ssize_t read_piece(int fd, uint8_t *buf)
{
    ssize_t n, sum = 0;

    do {
        n = read(fd, buf + sum, (size_t)(PIECE - sum));
        sum += n > 0 ? n : 0;
    } while (n > 0 && sum < PIECE);
    return n < 0 ? -errno : sum;
}

static int copy_file(struct fsb_job *job, const char *from, const char *to, mode_t mode)
{
    int in = open(from, O_RDONLY | O_CLOEXEC);
    int out =
        in < 0 ? -1 : open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode & 0777);
    int rc = out < 0 ? -errno : 0;
    ssize_t n = PIECE;

    while (rc == 0 && n == PIECE) {
        n = read_piece(in, job->buf);
        if (n < 0)
            rc = (int)n;
        for (ssize_t at = 0; rc == 0 && at < n;) {
            ssize_t done = write(out, job->buf + at, (size_t)(n - at));

            if (done < 0)
                rc = -errno;
            at += done;
        }
        job->n_bytes += n > 0 ? (uint64_t)n : 0;
    }
    if (in >= 0)
        close(in);
    if (out >= 0 && close(out) != 0 && rc == 0)
        rc = -errno;
    return rc;
}

static int copy_link(const char *from, const char *to)
{
    char text[PATH_MAX];
    ssize_t n = readlink(from, text, sizeof(text) - 1);

    if (n < 0)
        return -errno;
    text[n] = '\0';
    return symlink(text, to) == 0 ? 0 : -errno;
}

static int copy_one(struct fsb_job *job, const char *from, const char *to,
                    const struct fsb_entry *entry)
{
    if (S_ISDIR(entry->mode))
        return mkdir(to, 0700) == 0 ? 0 : -errno;
    if (S_ISLNK(entry->mode))
        return copy_link(from, to);
    return copy_file(job, from, to, entry->mode);
}

static int compare_file(struct fsb_job *job, const char *from, const char *to)
{
    int ours = open(to, O_RDONLY | O_CLOEXEC);
    int theirs = ours < 0 ? -1 : open(from, O_RDONLY | O_CLOEXEC);
    int rc = theirs < 0 ? -errno : 0;
    ssize_t n = PIECE, m;

    while (rc == 0 && n == PIECE) {
        n = read_piece(ours, job->buf);
        m = read_piece(theirs, job->buf + PIECE);
        if (n < 0 || m < 0)
            rc = (int)(n < 0 ? n : m);
        else if (n != m || memcmp(job->buf, job->buf + PIECE, (size_t)n) != 0)
            rc = -EBADMSG;
        job->n_bytes += n > 0 ? (uint64_t)n : 0;
    }
    if (ours >= 0)
        close(ours);
    if (theirs >= 0)
        close(theirs);
    return rc;
}

static int compare_link(const char *from, const char *to)
{
    char text[2][PATH_MAX];
    ssize_t n = readlink(from, text[0], PATH_MAX), m = readlink(to, text[1], PATH_MAX);

    if (n < 0 || m < 0)
        return -errno;
    return n == m && memcmp(text[0], text[1], (size_t)n) == 0 ? 0 : -EBADMSG;
}

static int read_one(struct fsb_job *job, const char *from, const char *to,
                    const struct fsb_entry *entry)
{
    struct stat st;

    if (S_ISREG(entry->mode))
        return compare_file(job, from, to);
    if (S_ISLNK(entry->mode))
        return compare_link(from, to);
    if (lstat(to, &st) != 0)
        return -errno;
    return S_ISDIR(st.st_mode) ? 0 : -EBADMSG;
}

static int delete_one(struct fsb_job *job, const char *from, const char *to,
                      const struct fsb_entry *entry)
{
    (void)job;
    (void)from;
    return (S_ISDIR(entry->mode) ? rmdir(to) : unlink(to)) == 0 ? 0 : -errno;
}

static void each_entry(struct fsb_job *job, const char *what, bool backwards,
                       int (*one)(struct fsb_job *job, const char *from, const char *to,
                                  const struct fsb_entry *entry))
{
    struct fsb_place *place = job->run->place;
    uint64_t begun = fsb_now_ns();
    char from[PATH_MAX], to[PATH_MAX];

    for (size_t i = 0; i < place->n_entries && !fsb_stopped(job); i++) {
        const struct fsb_entry *entry =
            &place->tree[backwards ? place->n_entries - 1 - i : i];
        int rc = entry_paths(job->run, job->folder, entry, from, to, &job->err);

        if (rc == 0)
            rc = one(job, from, to, entry);
        if (rc != 0) {
            fsb_job_fail(job, rc == -EBADMSG ? -EIO : rc, "%s %s: %s", what, to,
                         rc == -EBADMSG ? "it is not what was copied" : error_text(rc));
            return;
        }
        begun = fsb_job_did(job, begun, 0);
    }
}

void fsb_tree_copy_work(struct fsb_job *job)
{
    char path[PATH_MAX];
    int rc = path_join(path, &job->err, "%s/tree", job->folder);

    if (rc == 0 && mkdir(path, 0700) != 0)
        rc = -errno;
    if (rc != 0)
        fsb_job_fail(job, rc, "make %s: %s", path, error_text(rc));
    else
        each_entry(job, "copy to", false, copy_one);
    job->run->place->tree_is_there = true;
}

void fsb_tree_read_work(struct fsb_job *job)
{
    each_entry(job, "read", false, read_one);
}

void fsb_tree_delete_work(struct fsb_job *job)
{
    char path[PATH_MAX];

    each_entry(job, "delete", true, delete_one);
    if (!fsb_stopped(job) && path_join(path, NULL, "%s/tree", job->folder) == 0 &&
        rmdir(path) != 0)
        fsb_job_fail(job, -errno, "delete %s: %s", path, strerror(errno));
    job->run->place->tree_is_there = false;
}
