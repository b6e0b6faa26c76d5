/*
 * dev.c - private clusters: real daemons as processes of this machine, all in one folder.
 *
 * In:     the verbs of `rozo dev`.
 * Out:    processes, config files, calls to exportd, mounts.
 * Keeps:  data is never removed; a process is signalled only if it is proved to be ours
 *         (process.c); an interrupted run leaves nothing running that it started.
 * Yours:  the timeouts.
 */
#include "deploy/dev/dev.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include "codec/codec.h"
#include "deploy/cli/fsutil.h"
#include "deploy/cli/mounts.h"
#include "deploy/cli/ports.h"
#include "deploy/client/admin.h"
#include "deploy/dev/dev_config.h"

enum {
    START_MAX_MS = 60000, /* builds with sanitizers are slow on a busy machine */
    STOP_MAX_MS = 20000,
    BUSY_END_MS = 2000,    /* a mount in use does not end by itself */
    HURRY_MS = 2000,       /* left after ^C */
    MOUNT_STOP_MS = 15000, /* in addition to the time that io_timeout causes */
    STORAGES_UP_MS = 30000,
    LOCK_MAX_MS = 60000,
    PORT_TRIES = 5,
    TICK_US = 100000,
};

static volatile sig_atomic_t stop_asked;

static void on_stop_signal(int sig)
{
    stop_asked = sig;
}

static void stop_signals_watch(void)
{
    struct sigaction action = { .sa_handler = on_stop_signal };

    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
}

/* ---- the folder ---- */

static int dev_lock(struct dev *dev, struct err *err)
{
    uint64_t end_ms = clock_ms() + LOCK_MAX_MS;
    char path[PATH_MAX];
    int rc = path_join(path, err, "%s/etc/lock", dev->plan.dir);

    if (rc != 0)
        return rc;
    dev->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (dev->lock_fd < 0)
        return err_wrap(err, -errno, "open %s", path);
    progress_start(&dev->progress, 1);
    progress_at(&dev->progress, 0, "another rozo dev is at work here");
    while (flock(dev->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return err_wrap(err, -errno, "lock %s", path);
        if (clock_ms() > end_ms || stop_asked != 0)
            return err_set(err, -EBUSY, "another rozo dev is at work on %s",
                           dev->plan.dir);
        usleep(TICK_US);
        progress_tick(&dev->progress);
    }
    progress_end(&dev->progress);
    return 0;
}

static struct dev *dev_new(struct err *err)
{
    struct dev *dev = calloc(1, sizeof(*dev));

    if (dev == NULL)
        err_wrap(err, -ENOMEM, "open the cluster");
    else
        dev->lock_fd = -1;
    return dev;
}

void dev_close(struct dev *dev)
{
    if (dev == NULL)
        return;
    if (dev->lock_fd >= 0)
        close(dev->lock_fd);
    free(dev);
}

int dev_open(const char *dir, bool lock, struct dev **out, struct err *err)
{
    struct dev *dev = dev_new(err);
    char path[PATH_MAX];
    int rc;

    if (dev == NULL)
        return -ENOMEM;
    rc = path_absolute(dir, path, err);
    if (rc == 0)
        rc = dev_plan_load(path, &dev->plan, err);
    if (rc == 0 && lock) {
        rc = dev_lock(dev, err);
        if (rc == 0) /* the plan may have changed while we waited */
            rc = dev_plan_load(path, &dev->plan, err);
    }
    if (rc == 0)
        rc = path_join(dev->run_dir, err, "%s/run", path);
    if (rc == 0)
        *out = dev;
    else
        dev_close(dev);
    if (rc == -ENOENT)
        err_set(err, rc, "there is no cluster in %s; `rozo dev up --dir %s` makes one",
                dir, dir);
    return rc;
}

static void birth_make(char birth[DEV_BIRTH_DIGITS + 1])
{
    uint8_t bytes[DEV_BIRTH_DIGITS / 2];

    if (getrandom(bytes, sizeof(bytes), 0) != (ssize_t)sizeof(bytes))
        abort(); /* never short for so few bytes */
    for (size_t i = 0; i < sizeof(bytes); i++)
        snprintf(birth + 2 * i, 3, "%02x", bytes[i]);
}

/* Makes a new plan as wished; ports come later. */
static int plan_make(struct dev_plan *plan, const struct dev_wish *wish, struct err *err)
{
    const struct codec_layout *layout = codec_layout(wish->layout);

    plan->layout = wish->layout;
    plan->n_storages = wish->n_storages != 0 ? wish->n_storages : layout->safe;
    plan->n_links = wish->n_links != 0 ? wish->n_links : 1;
    plan->n_metas = (wish->n_metas != 0 ? wish->n_metas : 1) + wish->has_witness;
    plan->has_witness = wish->has_witness;
    plan->inline_max = wish->inline_max;
    plan->fold = wish->fold;
    snprintf(plan->codec, sizeof(plan->codec), "%s",
             wish->codec != NULL ? wish->codec : codec_kind_name(CODEC_MOJETTE));
    snprintf(plan->log_level, sizeof(plan->log_level), "%s",
             wish->log_level != NULL ? wish->log_level : "info");
    if (plan->n_metas > 1)
        birth_make(plan->birth);
    if (plan->n_storages < layout->n)
        return err_set(
            err, -EINVAL,
            "layout %u writes to %u storages, so it wants at least --storages %u",
            wish->layout, layout->n, layout->n);
    return 0;
}

/* Checks whether the existing cluster fits the wish. It may grow. */
static int plan_compare(struct dev_plan *plan, const struct dev_wish *wish,
                        struct err *err)
{
    const char *differs = NULL;

    if (wish->has_layout && wish->layout != plan->layout)
        differs = "--layout";
    else if (wish->codec != NULL && strcmp(wish->codec, plan->codec) != 0)
        differs = "--codec";
    else if (wish->has_inline_max && wish->inline_max != plan->inline_max)
        differs = "--inline";
    else if (wish->has_names && wish->fold != plan->fold)
        differs = "--names";
    else if (wish->n_links != 0 && wish->n_links != plan->n_links)
        differs = "--links";
    else if (wish->n_metas != 0 && wish->n_metas + wish->has_witness != plan->n_metas)
        differs = "--metas";
    else if (wish->n_metas != 0 && wish->has_witness != plan->has_witness)
        differs = "--witness";
    else if (wish->n_storages != 0 && wish->n_storages < plan->n_storages)
        differs = "--storages";
    if (differs != NULL)
        return err_set(
            err, -EINVAL,
            "the cluster in %s has layout %u, codec %s, %u storages with %u "
            "link%s, %u exportd%s: %s is another. Leave the option out, or give another "
            "--dir",
            plan->dir, plan->layout, plan->codec, plan->n_storages, plan->n_links,
            plan->n_links == 1 ? "" : "s", plan->n_metas, plan->n_metas == 1 ? "" : "s",
            differs);
    if (wish->log_level != NULL)
        snprintf(plan->log_level, sizeof(plan->log_level), "%s", wish->log_level);
    return 0;
}

static int folders_make(struct dev *dev, struct err *err)
{
    static const char *const below[] = { "etc", "run", "log", "data" };
    char path[PATH_MAX];
    int rc = folder_make(dev->plan.dir, 0755, err);

    for (unsigned i = 0; rc == 0 && i < sizeof(below) / sizeof(below[0]); i++) {
        rc = path_join(path, err, "%s/%s", dev->plan.dir, below[i]);
        if (rc == 0)
            rc = folder_make(path, 0755, err);
    }
    return rc;
}

/* Checks whether a cluster may be created in dir: new, empty, or half made by an earlier
 * run. */
static int folder_check(const char *dir, struct err *err)
{
    char lock[PATH_MAX];
    int empty = folder_is_empty(dir, err);

    if (empty < 0)
        return empty;
    if (path_join(lock, err, "%s/etc/lock", dir) != 0)
        return -ENAMETOOLONG;
    if (empty == 0 && access(lock, F_OK) != 0)
        return err_set(err, -ENOTEMPTY,
                       "%s is not empty and holds no cluster; give a new or empty folder",
                       dir);
    return 0;
}

int dev_open_or_make(const char *dir, const struct dev_wish *wish, struct dev **out,
                     struct err *err)
{
    char parent[PATH_MAX], *slash;
    struct dev *dev;
    int rc;

    stop_signals_watch();
    rc = dev_open(dir, true, out, err);
    if (rc == 0) {
        rc = plan_compare(&(*out)->plan, wish, err);
        if (rc != 0)
            dev_close(*out);
        return rc;
    }
    if (rc != -ENOENT)
        return rc;
    err->text[0] = '\0'; /* a missing cluster is no error here */
    /* Parents are created, too, so that the path can be made absolute. */
    rc = path_join(parent, err, "%s", dir);
    if (rc != 0)
        return rc;
    for (size_t len = strlen(parent); len > 1 && parent[len - 1] == '/'; len--)
        parent[len - 1] = '\0';
    slash = strrchr(parent, '/');
    if (slash != NULL && slash != parent) {
        *slash = '\0';
        rc = folder_make(parent, 0755, err);
        if (rc != 0)
            return rc;
    }
    dev = dev_new(err);
    if (dev == NULL)
        return -ENOMEM;
    rc = path_absolute(dir, dev->plan.dir, err);
    if (rc == 0 && strpbrk(dev->plan.dir, ",\\") != NULL)
        rc = err_set(err, -EINVAL,
                     "%s: a comma or backslash cannot stand in mount options",
                     dev->plan.dir);
    if (rc == 0)
        rc = folder_check(dev->plan.dir, err);
    if (rc == 0)
        rc = plan_make(&dev->plan, wish, err);
    if (rc == 0)
        rc = folders_make(dev, err);
    if (rc == 0)
        rc = path_join(dev->run_dir, err, "%s/run", dev->plan.dir);
    if (rc == 0)
        rc = dev_lock(dev, err);
    if (rc == 0)
        *out = dev;
    else
        dev_close(dev);
    return rc;
}

void dev_member_look(const struct dev *dev, unsigned member, struct process *out)
{
    char name[DEV_NAME_MAX];

    dev_plan_name(&dev->plan, member, name);
    process_look(dev->run_dir, name, out);
}

static bool member_runs(const struct dev *dev, unsigned member)
{
    struct process p;

    dev_member_look(dev, member, &p);
    return p.state == PROCESS_RUNNING || p.state == PROCESS_STOPPED;
}

/* Continues members that SIGSTOP has stopped. Returns their number. */
static unsigned members_continue(const struct dev *dev)
{
    unsigned n = 0;

    for (unsigned i = 0; i < dev_plan_members(&dev->plan); i++) {
        char name[DEV_NAME_MAX];
        struct process p;

        dev_member_look(dev, i, &p);
        dev_plan_name(&dev->plan, i, name);
        if (p.state == PROCESS_STOPPED &&
            process_signal(dev->run_dir, name, SIGCONT) == 0)
            n++;
    }
    return n;
}

/* ---- programs ---- */

/* Finds the program `name` beside our own, or in sbin or bin next to that. */
static int program_find(const char *name, char out[PATH_MAX], struct err *err)
{
    static const char *const places[] = { "", "/../sbin", "/../bin" };
    char self[PATH_MAX], path[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

    if (n < 0)
        return err_wrap(err, -errno, "find our own program");
    self[n] = '\0';
    *strrchr(self, '/') = '\0';
    for (unsigned i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        if (path_join(path, NULL, "%s%s/%s", self, places[i], name) == 0 &&
            access(path, X_OK) == 0 && realpath(path, out) != NULL)
            return 0;
    }
    return err_set(
        err, -ENOENT,
        "the program %s is not beside rozo (in %s). Build or install all of rozo", name,
        self);
}

static int launch(struct dev *dev, unsigned member, char *const *argv, struct launch *out,
                  struct err *err)
{
    char name[DEV_NAME_MAX], log_path[PATH_MAX];
    struct process_spec spec = { .name = name,
                                 .run_dir = dev->run_dir,
                                 .log_path = log_path,
                                 .work_dir = dev->plan.dir,
                                 .argv = argv };
    int rc;

    dev_plan_name(&dev->plan, member, name);
    rc = path_join(log_path, err, "%s/log/%s.log", dev->plan.dir, name);
    if (rc == 0)
        rc = process_launch(&spec, out, err);
    if (rc == 0 && !dev->started[member]) {
        dev->started[member] = true;
        dev->n_started++;
    }
    return rc;
}

static int daemon_launch(struct dev *dev, unsigned member, struct launch *out,
                         struct err *err)
{
    char program[PATH_MAX], config[PATH_MAX], name[DEV_NAME_MAX];
    char option[] = "--config";
    char *argv[] = { program, option, config, NULL };
    int rc = program_find(
        dev_plan_is_exportd(&dev->plan, member) ? "exportd" : "storaged", program, err);

    dev_plan_name(&dev->plan, member, name);
    if (rc == 0)
        rc = path_join(config, err, "%s/etc/%s.yaml", dev->plan.dir, name);
    return rc != 0 ? rc : launch(dev, member, argv, out, err);
}

/* Returns a port of a member that does not run, if another program has it; 0: none. */
static uint16_t port_taken(const struct dev *dev, unsigned member)
{
    unsigned n_ports;
    const uint16_t *ports = dev_plan_ports(&dev->plan, member, &n_ports);

    for (unsigned i = 0; i < n_ports; i++) {
        if (!port_is_free(ports[i]))
            return ports[i];
    }
    return 0;
}

static int port_tell(const struct dev *dev, unsigned member, uint16_t port,
                     struct err *err)
{
    char name[DEV_NAME_MAX];

    dev_plan_name(&dev->plan, member, name);
    return err_set(
        err, -EADDRINUSE,
        "%s cannot listen on 127.0.0.1:%u: another program has that port (`ss -ltnp "
        "sport = :%u` names it). Stop that, then run again",
        name, port, port);
}

/* Launches those of the daemons first..last that do not run, all at once, then waits for
 * each. */
static int daemons_start(struct dev *dev, unsigned first, unsigned last, struct err *err)
{
    struct launch *launches = calloc(last - first + 1, sizeof(*launches));
    unsigned n = 0;
    int rc = 0;

    if (launches == NULL)
        return err_wrap(err, -ENOMEM, "start daemons");
    for (unsigned i = first; i <= last && rc == 0; i++) {
        uint16_t port;

        if (member_runs(dev, i))
            continue;
        port = port_taken(dev, i);
        rc = port != 0 ? port_tell(dev, i, port, err)
                       : daemon_launch(dev, i, &launches[n], err);
        if (rc == 0)
            n++;
    }
    for (unsigned i = 0; i < n; i++) {
        progress_at(&dev->progress, dev->progress.n_done + 1, launches[i].name);
        if (rc == 0)
            rc =
                launch_wait(&launches[i], START_MAX_MS, &stop_asked, &dev->progress, err);
        else
            launch_forget(&launches[i]);
    }
    free(launches);
    return rc;
}

/* Runs a program of ours to its end; its output goes to the end of a log. */
static int program_run(char *const *argv, const char *log_path, struct err *err)
{
    posix_spawn_file_actions_t files;
    pid_t pid;
    int status, rc;

    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, STDERR_FILENO, log_path,
                                     O_WRONLY | O_CREAT | O_APPEND, 0644);
    rc = posix_spawn(&pid, argv[0], &files, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&files);
    if (rc != 0)
        return err_set(err, -rc, "start %s: %s", argv[0], strerror(rc));
    while (waitpid(pid, &status, 0) < 0) {
        if (errno != EINTR)
            return err_wrap(err, -errno, "wait for %s", argv[0]);
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return err_set(err, -ECHILD, "exportd cannot begin a quorum; see %s", log_path);
    return 0;
}

/* Makes the data directories of exportds that are a new quorum. */
static int metas_begin(struct dev *dev, struct err *err)
{
    char program[PATH_MAX], config[PATH_MAX], log_path[PATH_MAX], name[DEV_NAME_MAX];
    char option[] = "--config", begin[] = "--begin-quorum";
    char *argv[] = { program, option, config, begin, dev->plan.birth, NULL };
    int rc = 0;

    if (dev->plan.n_metas == 1 || dev->plan.created)
        return 0;
    rc = program_find("exportd", program, err);
    for (unsigned i = 0; i < dev->plan.n_metas && rc == 0; i++) {
        if (member_runs(dev, i))
            continue;
        dev_plan_name(&dev->plan, i, name);
        rc = path_join(config, err, "%s/etc/%s.yaml", dev->plan.dir, name);
        if (rc == 0)
            rc = path_join(log_path, err, "%s/log/%s.log", dev->plan.dir, name);
        if (rc == 0)
            rc = program_run(argv, log_path, err);
    }
    return rc;
}

/* ---- mounts ---- */

/* Time for an unmount: data that was unwritten at its start fails after io_timeout, and
 * is tried once more. */
static struct deadline mount_deadline(const struct dev_mount *m)
{
    return (struct deadline){
        .end_ms = clock_ms() + 2 * dev_mount_io_timeout_ms(m) + MOUNT_STOP_MS,
        .hurry_ms = HURRY_MS,
        .stop = &stop_asked,
    };
}

/* Unmounts. Once all is written out the process ends by itself, unless the mount is in
 * use. */
static void mount_let_go(struct dev *dev, const char *name, const char *path,
                         struct deadline *deadline)
{
    struct deadline soon = { .end_ms = clock_ms() + BUSY_END_MS };
    int rc = mount_remove(path, false, deadline, &dev->progress, NULL);

    if (rc == 0)
        process_wait_end(dev->run_dir, name, deadline, &dev->progress);
    if (rc != -EBUSY)
        return;
    progress_end(&dev->progress);
    fprintf(stderr,
            "rozo dev: %s is in use; it is detached now, and programs with open files "
            "there lose them\n",
            path);
    mount_remove(path, true, deadline, &dev->progress, NULL);
    process_wait_end(dev->run_dir, name, &soon, &dev->progress);
}

/* Removes a mount and ends its process. Nothing of it is left if it returns 0. */
static int mount_stop(struct dev *dev, unsigned member, struct err *err)
{
    const struct dev_mount *m = dev_plan_mount(&dev->plan, member);
    struct deadline deadline = mount_deadline(m);
    char name[DEV_NAME_MAX], type[64];
    struct process p;
    int rc, mounted;

    dev_plan_name(&dev->plan, member, name);
    dev_member_look(dev, member, &p);
    if (p.state == PROCESS_DOWN)
        return 0;
    mounted = mount_find(m->path, type, sizeof(type), err);
    if (mounted < 0)
        return mounted;
    process_signal(dev->run_dir, name, SIGCONT); /* a stopped process cannot write out */
    if (mounted != 0 && strncmp(type, "fuse", 4) == 0)
        mount_let_go(dev, name, m->path, &deadline);
    if (process_signal(dev->run_dir, name, SIGTERM) == 0)
        process_wait_end(dev->run_dir, name, &deadline, &dev->progress);
    rc = process_end(dev->run_dir, name, MOUNT_STOP_MS, &dev->progress, err);
    if (rc < 0)
        return rc;
    if (rc == 1)
        fprintf(stderr, "rozo dev: %s did not end on SIGTERM and was killed\n", name);
    /* A mount with a dead process can always be detached. */
    deadline.end_ms = clock_ms() + MOUNT_STOP_MS;
    if (mount_find(m->path, type, sizeof(type), NULL) == 1 &&
        strncmp(type, "fuse", 4) == 0)
        return mount_remove(m->path, true, &deadline, &dev->progress, err);
    return 0;
}

static int mount_start(struct dev *dev, unsigned member, struct err *err)
{
    const struct dev_mount *m = dev_plan_mount(&dev->plan, member);
    char program[PATH_MAX], source[DEV_EXPORTDS_TEXT + 8], path[PATH_MAX],
        options[PATH_MAX + 1024], type[64];
    char foreground[] = "-f", dash_o[] = "-o";
    char *argv[] = { program, source, path, foreground, dash_o, options, NULL };
    struct launch l;
    int rc = mount_stop(dev, member, err); /* removes what a crashed one left */

    if (rc == 0)
        rc = program_find("rozomount", program, err);
    if (rc != 0)
        return rc;
    if (mount_find(m->path, type, sizeof(type), NULL) == 1)
        return err_set(err, -EBUSY, "%s is a mount point of %s already; unmount it first",
                       m->path, type);
    rc = folder_make(m->path, 0755, err);
    if (rc != 0)
        return rc;
    dev_plan_exportds(&dev->plan, source);
    strcat(source, "/main");
    snprintf(path, sizeof(path), "%s", m->path);
    snprintf(options, sizeof(options), "key=%s/etc/client.key%s%s", dev->plan.dir,
             m->options[0] == '\0' ? "" : ",", m->options);
    rc = launch(dev, member, argv, &l, err);
    if (rc == 0)
        rc = launch_wait(&l, START_MAX_MS, &stop_asked, &dev->progress, err);
    if (rc == 0 && mount_find(m->path, type, sizeof(type), NULL) != 1)
        rc = err_set(err, -EIO, "mount-%u says that it serves, but %s is no mount point",
                     m->number, m->path);
    return rc;
}

static unsigned mount_number_free(const struct dev_plan *plan)
{
    for (unsigned number = 1;; number++) {
        bool taken = false;

        for (unsigned i = 0; i < plan->n_mounts; i++)
            taken = taken || plan->mounts[i].number == number;
        if (!taken)
            return number;
    }
}

static int mount_add(struct dev_plan *plan, const char *path, const char *options,
                     struct err *err)
{
    struct dev_mount *m;
    char *made;
    int rc;

    if (strlen(options) >= DEV_OPTIONS_MAX)
        return err_set(err, -ENAMETOOLONG, "--mount-options has more than %d characters",
                       DEV_OPTIONS_MAX - 1);
    for (unsigned i = 0; i < plan->n_mounts; i++) {
        if (strcmp(plan->mounts[i].path, path) == 0)
            return 0;
    }
    if (plan->n_mounts == DEV_MOUNTS_MAX)
        return err_set(err, -EMFILE, "a cluster has at most %d mounts here",
                       DEV_MOUNTS_MAX);
    m = &plan->mounts[plan->n_mounts];
    made = m->path;
    rc = path_join(made, err, "%s", path);
    if (rc != 0)
        return rc;
    snprintf(m->options, sizeof(m->options), "%s", options);
    m->number = mount_number_free(plan);
    plan->n_mounts++;
    return 0;
}

/* Plans the mounts: if any are wished, those mounted now and the wished ones; otherwise
 * the last planned ones. */
static int mounts_plan(struct dev *dev, const struct dev_wish *wish, struct err *err)
{
    struct dev_plan *plan = &dev->plan;
    char path[PATH_MAX];
    unsigned n_kept = 0;
    int rc = 0;

    if (wish->n_mounts == 0)
        return 0;
    for (unsigned i = 0; i < plan->n_mounts; i++) {
        struct process p;

        dev_member_look(dev, dev_plan_daemons(plan) + i, &p);
        if (p.state != PROCESS_DOWN)
            plan->mounts[n_kept++] = plan->mounts[i];
    }
    plan->n_mounts = n_kept;
    for (unsigned i = 0; i < wish->n_mounts && rc == 0; i++) {
        char type[32];

        rc = path_absolute(wish->mounts[i], path, err);
        if (rc == -ENOENT) { /* a parent folder is missing, too */
            rc = folder_make(wish->mounts[i], 0755, err);
            if (rc == 0)
                rc = path_absolute(wish->mounts[i], path, err);
        }
        if (rc == 0)
            rc = mount_find(path, type, sizeof(type), err);
        /* Only an unmounted path is accessed: in a mount without its exportd that takes a
         * minute. */
        if (rc == 0 && access(path, F_OK) != 0 && errno == ENOENT)
            rc = folder_make(path, 0755, err);
        else if (rc == 1)
            rc = 0;
        if (rc == 0)
            rc = mount_add(plan, path,
                           wish->mount_options == NULL ? "" : wish->mount_options, err);
    }
    return rc;
}

/* ---- up ---- */

/* Assigns ports to the daemons from `first` on. */
static int ports_plan(struct dev_plan *plan, unsigned first, struct err *err)
{
    uint16_t ports[2 * DEV_METAS_MAX + DEV_STORAGES_MAX * DEV_LINKS_MAX];
    unsigned n = 2 * plan->n_metas + plan->n_storages * plan->n_links, at = 0;
    int rc = ports_pick(plan->dir, ports, n, err);

    if (rc != 0)
        return rc;
    for (unsigned i = 0; i < plan->n_metas; i++) {
        for (unsigned l = 0; l < (plan->n_metas == 1 ? 1 : 2); l++, at++) {
            if (first == 0)
                plan->meta_ports[i][l] = ports[at];
        }
    }
    for (unsigned i = 0; i < plan->n_storages; i++) {
        for (unsigned l = 0; l < plan->n_links; l++, at++) {
            if (plan->n_metas + i >= first)
                plan->ports[i][l] = ports[at];
        }
    }
    return 0;
}

static bool storage_is_known(const Rozo__AdStatusResp *status, const char *address,
                             bool *is_up)
{
    for (size_t i = 0; i < status->n_storages; i++) {
        for (size_t j = 0; j < status->storages[i]->n_addresses; j++) {
            if (strcmp(status->storages[i]->addresses[j], address) == 0) {
                *is_up = status->storages[i]->up;
                return true;
            }
        }
    }
    return false;
}

static int storages_join(struct dev *dev, struct admin *admin,
                         const Rozo__AdStatusResp *status, struct err *err)
{
    char text[DEV_LINKS_MAX][32];
    char *addresses[DEV_LINKS_MAX];
    bool is_up;

    for (unsigned i = 0; i < dev->plan.n_storages; i++) {
        Rozo__AdStorageAddResp *answer;
        int rc;

        for (unsigned l = 0; l < dev->plan.n_links; l++) {
            snprintf(text[l], sizeof(text[l]), "127.0.0.1:%u", dev->plan.ports[i][l]);
            addresses[l] = text[l];
        }
        if (storage_is_known(status, text[0], &is_up))
            continue;
        rc = admin_storage_add(admin, addresses, dev->plan.n_links, "", &dev->progress,
                               &answer, err);
        if (rc != 0)
            return err_wrap(err, rc, "let storaged-%u join", i + 1);
        rozo__ad_storage_add_resp__free_unpacked(answer, NULL);
        if (stop_asked != 0)
            return err_set(err, -EINTR, "interrupted");
    }
    return 0;
}

static int export_make(struct dev *dev, struct admin *admin,
                       const Rozo__AdStatusResp *status, struct err *err)
{
    Rozo__AdExportCreateReq question = ROZO__AD_EXPORT_CREATE_REQ__INIT;
    Rozo__AdExportCreateResp *answer;
    char name[] = "main";
    int rc;

    for (size_t i = 0; i < status->n_exports; i++) {
        if (strcmp(status->exports[i]->name, name) == 0)
            return 0;
    }
    question.name = name;
    question.codec = dev->plan.codec;
    question.layout = dev->plan.layout;
    question.inline_max = dev->plan.inline_max;
    question.fold = dev->plan.fold;
    rc = admin_export_create(admin, &question, &dev->progress, &answer, err);
    if (rc != 0)
        return err_wrap(err, rc, "make the export");
    rozo__ad_export_create_resp__free_unpacked(answer, NULL);
    return 0;
}

/* Returns whether the storage has a new data directory and waits for `rozo storage
 * replace`. */
static bool storage_is_to_be_replaced(const Rozo__AdStatusResp *status,
                                      const char *address)
{
    for (size_t i = 0; i < status->n_storages; i++) {
        const Rozo__Storage *st = status->storages[i];

        if (!st->up && st->n_addresses > 0 && strcmp(st->addresses[0], address) == 0 &&
            strstr(st->error, "rozo storage replace") != NULL)
            return true;
    }
    return false;
}

/* Waits until exportd sees all our storages up. */
static int storages_wait(struct dev *dev, struct admin *admin, struct err *err)
{
    uint64_t end_ms = clock_ms() + STORAGES_UP_MS;

    for (;;) {
        Rozo__AdStatusResp *status;
        unsigned missing = 0;
        int rc = admin_status(admin, &dev->progress, &status, err);

        if (rc != 0)
            return rc;
        for (unsigned i = 0; i < dev->plan.n_storages; i++) {
            char address[32];
            bool is_up = false;

            snprintf(address, sizeof(address), "127.0.0.1:%u", dev->plan.ports[i][0]);
            if (!storage_is_known(status, address, &is_up) ||
                (!is_up && !storage_is_to_be_replaced(status, address)))
                missing = i + 1;
        }
        rozo__ad_status_resp__free_unpacked(status, NULL);
        if (missing == 0)
            return 0;
        if (stop_asked != 0)
            return err_set(err, -EINTR, "interrupted");
        if (clock_ms() > end_ms)
            return err_set(err, -ETIMEDOUT,
                           "exportd does not see storaged-%u after %d s; see %s/log",
                           missing, STORAGES_UP_MS / 1000, dev->plan.dir);
        usleep(TICK_US / 2);
    }
}

static int cluster_form(struct dev *dev, struct err *err)
{
    char exportd[DEV_EXPORTDS_TEXT], key[PATH_MAX];
    Rozo__AdStatusResp *status = NULL;
    struct admin *admin = NULL;
    int rc = path_join(key, err, "%s/etc/node.key", dev->plan.dir);

    dev_plan_exportds(&dev->plan, exportd);
    if (rc == 0)
        rc = admin_open(exportd, key, &admin, err);
    if (rc == 0)
        rc = admin_status(admin, &dev->progress, &status, err);
    if (rc == 0)
        rc = storages_join(dev, admin, status, err);
    if (rc == 0)
        rc = export_make(dev, admin, status, err);
    if (rc == 0)
        rc = storages_wait(dev, admin, err);
    if (status != NULL)
        rozo__ad_status_resp__free_unpacked(status, NULL);
    admin_close(admin);
    if (rc == 0 && !dev->plan.created) {
        dev->plan.created = true;
        rc = dev_plan_save(&dev->plan, err);
    }
    return rc;
}

/* Stops what this run has started. */
static void up_undo(struct dev *dev)
{
    char name[DEV_NAME_MAX];

    progress_end(&dev->progress);
    for (unsigned i = dev_plan_members(&dev->plan); i-- > 0;) {
        struct err why = { 0 };
        int rc;

        if (!dev->started[i])
            continue;
        dev_plan_name(&dev->plan, i, name);
        rc = dev_plan_mount(&dev->plan, i) != NULL
                 ? mount_stop(dev, i, &why)
                 : process_end(dev->run_dir, name, STOP_MAX_MS, &dev->progress, &why);
        if (rc < 0)
            fprintf(stderr, "rozo dev: %s\n", why.text);
        dev->started[i] = false;
    }
    dev->n_started = 0;
}

static bool any_port_taken(const struct dev *dev)
{
    for (unsigned i = 0; i < dev_plan_daemons(&dev->plan); i++) {
        if (!member_runs(dev, i) && port_taken(dev, i) != 0)
            return true;
    }
    return false;
}

/* Starts the daemons and makes them a cluster with an export. */
static int daemons_up(struct dev *dev, struct err *err)
{
    int rc = -EAGAIN;

    for (unsigned i = 0; i < PORT_TRIES && rc != 0; i++) {
        rc = dev_config_write(&dev->plan, err);
        if (rc == 0)
            rc = dev_plan_save(&dev->plan, err);
        if (rc == 0)
            rc = metas_begin(dev, err);
        if (rc == 0)
            rc = daemons_start(dev, 0, dev_plan_daemons(&dev->plan) - 1, err);
        if (rc == 0 || rc == -EINTR || dev->plan.created)
            break;
        /* Before the storages have joined, no other place has recorded their ports: take
         * others. A quorum has recorded its own. */
        up_undo(dev);
        if (dev->plan.n_metas > 1 || !any_port_taken(dev))
            break;
        if (i + 1 < PORT_TRIES) {
            fprintf(stderr,
                    "rozo dev: a port was taken by another program; trying others\n");
            if (ports_plan(&dev->plan, 0, err) != 0)
                break;
        }
    }
    if (rc != 0)
        return rc;
    progress_at(&dev->progress, dev->progress.n_done + 1, "forming the cluster");
    return cluster_form(dev, err);
}

static int up_step(struct dev *dev, const struct dev_wish *wish, struct err *err)
{
    struct dev_plan *plan = &dev->plan;
    unsigned n_had = plan->n_storages;
    int rc;

    /* First, since access to a mount may wait for them. */
    dev->n_continued = members_continue(dev);
    rc = mounts_plan(dev, wish, err);
    if (rc == 0 && plan->meta_ports[0][0] == 0)
        rc = ports_plan(plan, 0, err);
    if (rc == 0 && wish->n_storages > n_had) { /* the cluster grows */
        plan->n_storages = wish->n_storages;
        rc = ports_plan(plan, plan->n_metas + n_had, err);
    }
    if (rc == 0)
        rc = folders_make(dev, err);
    if (rc != 0)
        return rc;
    progress_start(&dev->progress, dev_plan_members(plan) + 1);
    rc = daemons_up(dev, err);
    for (unsigned i = 0; i < plan->n_mounts && rc == 0; i++) {
        unsigned member = dev_plan_daemons(plan) + i;

        progress_at(&dev->progress, dev->progress.n_done + 1, plan->mounts[i].path);
        if (!member_runs(dev, member))
            rc = mount_start(dev, member, err);
    }
    if (rc == 0 && stop_asked != 0)
        rc = err_set(err, -EINTR, "interrupted");
    return rc;
}

int dev_up(struct dev *dev, const struct dev_wish *wish, struct err *err)
{
    int rc = up_step(dev, wish, err);

    if (rc != 0)
        up_undo(dev);
    progress_end(&dev->progress);
    return rc;
}

/* ---- down, restart ---- */

static int daemon_stop(struct dev *dev, unsigned member, struct err *err)
{
    char name[DEV_NAME_MAX];
    int rc;

    dev_plan_name(&dev->plan, member, name);
    rc = process_end(dev->run_dir, name, STOP_MAX_MS, &dev->progress, err);
    if (rc == 1) {
        progress_end(&dev->progress);
        fprintf(stderr,
                "rozo dev: %s did not end within %d s of SIGTERM and was killed\n", name,
                STOP_MAX_MS / 1000);
    }
    return rc < 0 ? rc : 0;
}

int dev_down(struct dev *dev, struct err *err)
{
    unsigned n_all = dev_plan_members(&dev->plan);
    int rc = 0;

    /* C does not leave it half stopped: every wait here is bounded. */
    stop_signals_watch();
    progress_start(&dev->progress, n_all);
    members_continue(dev); /* mounts cannot write out to stopped storages */
    for (unsigned i = n_all; i-- > 0;) {
        char name[DEV_NAME_MAX];
        struct err why = { 0 };
        int stopped;

        dev_plan_name(&dev->plan, i, name);
        progress_at(&dev->progress, n_all - i, name);
        stopped = dev_plan_mount(&dev->plan, i) != NULL ? mount_stop(dev, i, &why)
                                                        : daemon_stop(dev, i, &why);
        if (stopped != 0 && rc == 0) { /* the others are stopped anyway */
            rc = stopped;
            err_set(err, rc, "%s", why.text);
        }
    }
    progress_end(&dev->progress);
    return rc;
}

static int member_find(const struct dev *dev, const char *name, unsigned *out)
{
    char have[DEV_NAME_MAX];

    for (unsigned i = 0; i < dev_plan_members(&dev->plan); i++) {
        dev_plan_name(&dev->plan, i, have);
        if (strcmp(have, name) == 0) {
            *out = i;
            return 0;
        }
    }
    return -ENOENT;
}

int dev_restart(struct dev *dev, const char *name, bool kill, struct err *err)
{
    struct deadline deadline = { .end_ms = clock_ms() + STOP_MAX_MS };
    unsigned member;
    bool is_mount;
    int rc = member_find(dev, name, &member);

    if (rc != 0)
        return err_set(err, rc,
                       "the cluster in %s has no %s; `rozo dev status` lists its members",
                       dev->plan.dir, name);
    stop_signals_watch();
    is_mount = dev_plan_mount(&dev->plan, member) != NULL;
    progress_start(&dev->progress, 2);
    progress_at(&dev->progress, 0, name);
    if (kill && process_signal(dev->run_dir, name, SIGKILL) == 0)
        process_wait_end(dev->run_dir, name, &deadline, &dev->progress);
    rc = is_mount ? mount_stop(dev, member, err) : daemon_stop(dev, member, err);
    progress_at(&dev->progress, 1, name);
    if (rc == 0)
        rc = is_mount ? mount_start(dev, member, err)
                      : daemons_start(dev, member, member, err);
    if (rc != 0)
        up_undo(dev);
    progress_end(&dev->progress);
    return rc;
}
