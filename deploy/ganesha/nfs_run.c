/*
 * nfs_run.c - runs ganesha.nfsd, and ends it when a mount below is gone.
 *
 * In:     the settings. Out: a child that becomes ganesha.nfsd.
 * Keeps:  clients get no bytes of a mount whose rozomount has died. The kernel goes on to
 *         answer reads of open files from its cache then, while other mounts change them.
 *         The server is killed at once: clients wait for another one, or for its return.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include "deploy/cli/fsutil.h"
#include "deploy/ganesha/nfs_gateway.h"

enum { WATCH_S = 1 };

/* The mounts that are watched, and the server. */
struct mount_watch {
    const struct nfs_gateway *g; /* borrowed; not changed while the thread runs */
    pid_t server;
    pthread_mutex_t lock;
    bool over;      /* under lock: the server has ended, its pid means nothing any more */
    struct err err; /* under lock: why the server was killed, else empty */
};

/* ---- ganesha ---- */

/* Finds the library to preload, beside the folder of this program: ../lib/rozo. */
static int preload_find(char *out, struct err *err)
{
    char exe[PATH_MAX];
    ssize_t len = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
    char *slash;
    int rc;

    if (len < 0)
        return err_wrap(err, -errno, "find this program");
    exe[len] = '\0';
    for (unsigned i = 0; i < 2 && (slash = strrchr(exe, '/')) != NULL; i++)
        *slash = '\0';
    rc = path_join(out, err, "%s/lib/rozo/rozo_fsid.so", exe);
    if (rc == 0 && access(out, R_OK) != 0)
        rc = err_set(err, -errno, "there is no %s. Install all of rozo", out);
    return rc;
}

int nfs_program_check(struct err *err)
{
    const char *at = getenv("PATH");
    char path[PATH_MAX];

    for (at = at == NULL ? "" : at; *at != '\0'; at += strspn(at, ":")) {
        size_t len = strcspn(at, ":");

        if ((size_t)snprintf(path, sizeof(path), "%.*s/ganesha.nfsd", (int)len, at) <
                sizeof(path) &&
            access(path, X_OK) == 0)
            return 0;
        at += len;
    }
    return err_set(err, -ENOENT,
                   "ganesha.nfsd is not installed: apt-get install nfs-ganesha-vfs");
}

/*
 * Becomes ganesha.nfsd; returns only on failure. Its epoch is the write verifier: clients
 * see by it that unstable writes may be lost, so two gateways must not have the same.
 */
static int ganesha_become(const struct nfs_gateway *g, struct err *err)
{
    char conf[PATH_MAX], pid[PATH_MAX], preload[PATH_MAX], epoch[16];
    char program[] = "ganesha.nfsd", f[] = "-F", l[] = "-L", to[] = "STDERR", c[] = "-f",
         p[] = "-p", e[] = "-E", n[] = "-N", level[] = "NIV_EVENT";
    uint32_t random;
    int rc = preload_find(preload, err);

    if (rc == 0)
        rc = path_join(conf, err, "%s/ganesha.conf", g->dir);
    if (rc == 0)
        rc = path_join(pid, err, "%s/ganesha.pid", g->dir);
    if (rc != 0)
        return rc;
    if (getrandom(&random, sizeof(random), 0) != sizeof(random))
        return err_wrap(err, -errno, "get a random number");
    snprintf(epoch, sizeof(epoch), "%u", random | 1);
    if (setenv("LD_PRELOAD", preload, 1) != 0)
        return err_wrap(err, -errno, "set LD_PRELOAD");
    execvp(program,
           (char *[]){ program, f, l, to, c, conf, p, pid, e, epoch, n, level, NULL });
    return err_wrap(err, -errno, "run ganesha.nfsd");
}

/* ---- the mounts ---- */

static int mounts_check(const struct nfs_gateway *g, struct err *err)
{
    int rc = 0;

    for (unsigned i = 0; i < g->n_exports && rc == 0; i++)
        rc = nfs_export_check(&g->exports[i], err);
    return rc;
}

/* The thread that watches. A mount that hangs blocks it, and nothing else. */
static void *watch_mounts(void *arg)
{
    struct mount_watch *w = arg;
    struct err err = { 0 };

    while (!nfs_mount_has_ended(mounts_check(w->g, &err)))
        sleep(WATCH_S);
    pthread_mutex_lock(&w->lock);
    if (!w->over) {
        w->err = err;
        kill(w->server, SIGKILL);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* ---- the child ---- */

static void signals_of_ours(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGHUP);
    sigaddset(set, SIGCHLD);
}

/*
 * Waits for the end of the server and passes signals on to it. Returns its wait status;
 * *asked becomes true if a signal asked it to end.
 */
static int server_wait(pid_t server, bool *asked)
{
    sigset_t set;
    int status = 0;

    signals_of_ours(&set);
    for (;;) {
        int sig = sigwaitinfo(&set, NULL);

        if (sig == SIGCHLD && waitpid(server, &status, WNOHANG) == server)
            return status;
        if (sig == SIGTERM || sig == SIGINT)
            *asked = true;
        if (sig > 0 && sig != SIGCHLD)
            kill(server, sig);
    }
}

static void server_become(const struct nfs_gateway *g, pid_t parent)
{
    struct err err = { 0 };
    sigset_t set;

    signals_of_ours(&set);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    if (prctl(PR_SET_PDEATHSIG, SIGTERM) == 0 && getppid() == parent)
        ganesha_become(g, &err);
    fprintf(stderr, "rozo gateway run: %s\n", err.text);
    _exit(127);
}

/* Says why the server ended. Returns 0 if it was asked to. */
static int server_ended(struct mount_watch *w, int status, bool asked, struct err *err)
{
    int rc = -ECHILD;

    pthread_mutex_lock(&w->lock);
    w->over = true;
    if (w->err.text[0] != '\0')
        err_set(err, rc,
                "%s. ganesha.nfsd was ended; start it again when that is mounted",
                w->err.text);
    else if (WIFSIGNALED(status))
        err_set(err, rc, "ganesha.nfsd was ended by signal %d", WTERMSIG(status));
    else if (WEXITSTATUS(status) != 0 || !asked)
        err_set(err, rc,
                "ganesha.nfsd ended by itself, with status %d; see the lines above",
                WEXITSTATUS(status));
    else
        rc = 0;
    pthread_mutex_unlock(&w->lock);
    return rc;
}

int nfs_run(const struct nfs_gateway *g, struct err *err)
{
    /* Lives as long as the process: the thread may hang in a mount. */
    static struct mount_watch w = { .lock = PTHREAD_MUTEX_INITIALIZER };
    pid_t parent = getpid();
    pthread_t thread;
    bool asked = false;
    sigset_t set;
    int rc = nfs_lock(g, err), status;

    if (rc == 0)
        rc = mounts_check(g, err);
    if (rc != 0)
        return rc;
    signals_of_ours(&set);
    sigprocmask(SIG_BLOCK, &set, NULL);
    w.g = g;
    w.server = fork();
    if (w.server < 0)
        return err_wrap(err, -errno, "start ganesha.nfsd");
    if (w.server == 0)
        server_become(g, parent);
    rc = pthread_create(&thread, NULL, watch_mounts, &w);
    if (rc != 0) {
        kill(w.server, SIGKILL);
        return err_wrap(err, -rc, "watch the mounts");
    }
    pthread_detach(thread);
    status = server_wait(w.server, &asked);
    return server_ended(&w, status, asked, err);
}
