/*
 * smb_service.c - checks the configuration of an SMB gateway, runs it under systemd, and
 * finds its smbd.
 *
 * In:     answers of smbd -b, testparm, pdbedit, systemctl.
 * Keeps:  smb.conf is replaced only by one that testparm has accepted. A process is
 *         signalled only if it is an smbd, or its server of RPCs, with our smb.conf.
 */
#include "deploy/samba/smb_service.h"

#include <arpa/inet.h>
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "deploy/cli/deadline.h"
#include "deploy/cli/fsutil.h"
#include "deploy/cli/mounts.h"
#include "deploy/cli/text_table.h"

extern char **environ;

enum { OUTPUT_MAX = 64 << 10, SMBD_END_MS = 20000, TICK_MS = 100, WORDS_MAX = 700 };

#define RPC_SERVER "samba-dcerpcd"

static const char unit_path[] = "/etc/systemd/system/" SMB_UNIT;

const char *smb_dir(const char *dir)
{
    const char *env = getenv("ROZO_SMB_DIR");

    return dir != NULL ? dir : env != NULL && env[0] != '\0' ? env : SMB_DIR;
}

/* ---- programs ---- */

/* Finds a program in PATH and in the folders of the system's programs. */
static bool program_search(const char *name, char out[PATH_MAX])
{
    const char *path = getenv("PATH");
    char all[2 * PATH_MAX];

    snprintf(all, sizeof(all), "%s:/usr/sbin:/usr/bin:/sbin:/bin",
             path == NULL ? "" : path);
    for (char *save, *dir = strtok_r(all, ":", &save); dir != NULL;
         dir = strtok_r(NULL, ":", &save)) {
        if (path_join(out, NULL, "%s/%s", dir, name) == 0 && access(out, X_OK) == 0)
            return true;
    }
    return false;
}

/* Reads the pipe to its end; what does not fit is dropped. */
static void output_read(int fd, char *out, size_t size)
{
    char rest[4096];
    size_t len = 0;
    ssize_t n;

    do {
        bool fits = len + 1 < size;

        n = read(fd, fits ? out + len : rest, fits ? size - 1 - len : sizeof(rest));
        if (n > 0 && fits)
            len += (size_t)n;
    } while (n > 0 || (n < 0 && errno == EINTR));
    out[len] = '\0';
}

/*
 * Runs a program to its end. out[size] takes what it writes to `fd`, 1 or 2; the other is
 * dropped. Returns its exit status, or -errno.
 */
static int program_output(char *const *argv, int fd, char *out, size_t size,
                          struct err *err)
{
    posix_spawn_file_actions_t files;
    int pipes[2], status = 0, rc;
    pid_t pid;

    assert(fd == STDOUT_FILENO || fd == STDERR_FILENO);
    if (pipe2(pipes, O_CLOEXEC) != 0)
        return err_wrap(err, -errno, "make a pipe");
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files,
                                     fd == STDOUT_FILENO ? STDERR_FILENO : STDOUT_FILENO,
                                     "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_adddup2(&files, pipes[1], fd);
    rc = posix_spawn(&pid, argv[0], &files, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&files);
    close(pipes[1]);
    if (rc == 0)
        output_read(pipes[0], out, size);
    close(pipes[0]);
    if (rc != 0)
        return err_set(err, -rc, "run %s: %s", argv[0], strerror(rc));
    while (waitpid(pid, &status, 0) < 0) {
        if (errno != EINTR)
            return err_wrap(err, -errno, "wait for %s", argv[0]);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Checks that Samba has the modules of `vfs objects`. */
static int modules_check(char *smbd, struct err *err)
{
    static const char *const modules[] = { "catia", "fruit", "streams_xattr",
                                           "acl_xattr" };
    static const char key[] = "MODULESDIR: ";
    char option[] = "-b", path[PATH_MAX];
    char *out = malloc(OUTPUT_MAX), *at;
    int rc = out == NULL ? -ENOMEM
                         : program_output((char *[]){ smbd, option, NULL }, STDOUT_FILENO,
                                          out, OUTPUT_MAX, err);

    at = rc == 0 ? strstr(out, key) : NULL;
    if (at != NULL) {
        at += strlen(key);
        at[strcspn(at, "\n")] = '\0';
    } else {
        rc = err_set(err, rc < 0 ? rc : -EIO, "%s -b does not say where its modules are",
                     smbd);
    }
    for (unsigned i = 0; rc == 0 && i < sizeof(modules) / sizeof(modules[0]); i++) {
        rc = path_join(path, err, "%s/vfs/%s.so", at, modules[i]);
        if (rc == 0 && access(path, F_OK) != 0)
            rc = err_set(err, -ENOENT,
                         "Samba's module %s is not installed (%s). Install it: apt-get "
                         "install samba-vfs-modules",
                         modules[i], path);
    }
    free(out);
    return rc;
}

int smb_programs_find(struct smb_programs *p, struct err *err)
{
    const struct {
        const char *name, *package;
        char *path;
    } all[] = {
        { "smbd", "samba samba-vfs-modules", p->smbd },
        { "testparm", "samba-common-bin", p->testparm },
        { "pdbedit", "samba-common-bin", p->pdbedit },
        { "findmnt", "util-linux", p->findmnt },
    };

    for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        if (!program_search(all[i].name, all[i].path))
            return err_set(err, -ENOENT,
                           "%s is not installed. Install it: apt-get install %s",
                           all[i].name, all[i].package);
    }
    return modules_check(p->smbd, err);
}

/* ---- configuration ---- */

/* Has testparm read a configuration. */
static int conf_check(const struct smb_programs *p, char *path, struct err *err)
{
    char testparm[PATH_MAX], option[] = "-s", words[WORDS_MAX] = "";
    char *out = malloc(OUTPUT_MAX);
    size_t len = 0;
    int rc;

    if (out == NULL)
        return err_wrap(err, -ENOMEM, "run testparm");
    snprintf(testparm, sizeof(testparm), "%s", p->testparm);
    rc = program_output((char *[]){ testparm, option, path, NULL }, STDERR_FILENO, out,
                        OUTPUT_MAX, err);
    /* testparm accepts an unknown key with a message, and its effect would be missing. */
    for (char *save, *line = rc < 0 ? NULL : strtok_r(out, "\n", &save); line != NULL;
         line = strtok_r(NULL, "\n", &save)) {
        bool wrong = strstr(line, "nknown parameter") != NULL ||
                     strstr(line, "ERROR") != NULL || strstr(line, "nvalid") != NULL ||
                     strstr(line, "rror loading") != NULL;

        if (wrong && len < sizeof(words))
            len += (size_t)snprintf(words + len, sizeof(words) - len, "\n  %s", line);
    }
    if (rc > 0 || len > 0)
        rc =
            err_set(err, -EINVAL,
                    "testparm does not accept the configuration, so nothing was changed. "
                    "If the fault is in local.conf, mend it there:%s",
                    len > 0 ? words : "\n  it ended with a failure");
    free(out);
    return rc;
}

static int folders_make(const struct smb_gateway *g, struct err *err)
{
    static const char *const names[] = { "",     "/state", "/cache",   "/lock",
                                         "/run", "/log",   "/ncalrpc", "/private" };
    char path[PATH_MAX];
    int rc = 0;

    for (unsigned i = 0; rc == 0 && i < sizeof(names) / sizeof(names[0]); i++) {
        rc = path_join(path, err, "%s%s", g->dir, names[i]);
        if (rc == 0)
            rc = folder_make(path, strcmp(names[i], "/private") == 0 ? 0700 : 0755, err);
    }
    if (rc == 0)
        rc = path_join(path, err, "%s/local.conf", g->dir);
    if (rc == 0 && access(path, F_OK) != 0)
        rc = file_replace(path, 0644, smb_local_text(), strlen(smb_local_text()), err);
    return rc;
}

int smb_apply(const struct smb_gateway *g, const struct smb_programs *p, struct err *err)
{
    char path[PATH_MAX], trial[PATH_MAX];
    char *text;
    int rc = folders_make(g, err);

    if (rc == 0)
        rc = path_join(path, err, "%s/smb.conf", g->dir);
    if (rc == 0)
        rc = path_join(trial, err, "%s/smb.conf.new", g->dir);
    if (rc != 0)
        return rc;
    text = smb_conf_text(g, p->findmnt);
    rc = file_replace(trial, 0644, text, strlen(text), err);
    if (rc == 0)
        rc = conf_check(p, trial, err);
    unlink(trial);
    /* First what it is made from: a run that ends in between is repaired by the next. */
    if (rc == 0)
        rc = smb_gateway_store(g, err);
    if (rc == 0)
        rc = file_replace(path, 0644, text, strlen(text), err);
    free(text);
    return rc;
}

bool smb_user_has_password(const struct smb_gateway *g, const struct smb_programs *p,
                           const char *user)
{
    char pdbedit[PATH_MAX], dash_s[] = "-s", conf[PATH_MAX], dash_u[] = "-u", name[256],
                            out[4096], list[] = "-L";

    snprintf(pdbedit, sizeof(pdbedit), "%s", p->pdbedit);
    snprintf(name, sizeof(name), "%s", user);
    return path_join(conf, NULL, "%s/smb.conf", g->dir) == 0 &&
           program_output((char *[]){ pdbedit, dash_s, conf, list, dash_u, name, NULL },
                          STDOUT_FILENO, out, sizeof(out), NULL) == 0;
}

/* ---- its smbd ---- */

/* Tells whether a process is this program with our smb.conf; its arguments end with
 * zeros. */
static bool is_ours(const struct smb_gateway *g, pid_t pid, const char *program)
{
    char path[PATH_MAX], text[2 * PATH_MAX], want[PATH_MAX + 32];
    FILE *file;
    size_t len;

    snprintf(path, sizeof(path), "/proc/%d/cmdline", (int)pid);
    snprintf(want, sizeof(want), "%s/smb.conf", g->dir);
    file = fopen(path, "re");
    if (file == NULL)
        return false;
    len = fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    text[len] = '\0';
    if (strstr(text, program) == NULL)
        return false;
    for (const char *p = text; p < text + len; p += strlen(p) + 1) {
        const char *value = strchr(p, '=');

        if (strcmp(p, want) == 0 || (value != NULL && strcmp(value + 1, want) == 0))
            return true;
    }
    return false;
}

pid_t smb_pid(const struct smb_gateway *g)
{
    char path[PATH_MAX], text[32];
    long pid;

    if (path_join(path, NULL, "%s/run/smbd.pid", g->dir) != 0 ||
        file_read_text(path, text, sizeof(text), NULL) < 0)
        return 0;
    pid = strtol(text, NULL, 10);
    return pid > 0 && is_ours(g, (pid_t)pid, "smbd") ? (pid_t)pid : 0;
}

/* Tells whether a socket can be bound to an address and the port. */
static bool port_is_free(const char *address, unsigned port)
{
    struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
    struct sockaddr_in6 in6 = { .sin6_family = AF_INET6,
                                .sin6_port = htons((uint16_t)port) };
    bool six = strchr(address, ':') != NULL;
    int fd, on = 1, rc;

    if (inet_pton(six ? AF_INET6 : AF_INET, address,
                  six ? (void *)&in6.sin6_addr : (void *)&in.sin_addr) != 1)
        return true; /* the name of an interface, or an address that smbd will refuse */
    fd = socket(six ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return true;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    rc = bind(fd, six ? (struct sockaddr *)&in6 : (struct sockaddr *)&in,
              six ? sizeof(in6) : sizeof(in));
    if (rc != 0)
        rc = errno;
    close(fd);
    return rc != EADDRINUSE;
}

int smb_port_check(const struct smb_gateway *g, struct err *err)
{
    char all[SMB_LISTEN_MAX];

    snprintf(all, sizeof(all), "%s", g->listen[0] == '\0' ? "0.0.0.0" : g->listen);
    for (char *save, *word = strtok_r(all, ",", &save); word != NULL;
         word = strtok_r(NULL, ",", &save)) {
        word[strcspn(word, "/")] = '\0';
        if (!port_is_free(word, g->port))
            return err_set(err, -EADDRINUSE,
                           "another program listens on port %u. If it is Samba with "
                           "/etc/samba/smb.conf and not needed: systemctl disable --now "
                           "smbd; or let the gateway have its own addresses by --listen",
                           g->port);
    }
    return 0;
}

static int smbd_end(const struct smb_gateway *g, struct err *err)
{
    struct deadline deadline = { .end_ms = clock_ms() + SMBD_END_MS };
    pid_t pid = smb_pid(g);
    int fd = pid == 0 ? -1 : pidfd_open(pid, 0);

    if (fd < 0)
        return 0;
    /* Looked up again, since the pid may have got another process before the open. */
    if (smb_pid(g) == pid)
        pidfd_send_signal(fd, SIGTERM, NULL, 0);
    while (smb_pid(g) == pid && !deadline_is_over(&deadline))
        usleep(TICK_MS * 1000);
    close(fd);
    if (smb_pid(g) == pid)
        return err_set(err, -ETIMEDOUT, "smbd (pid %d) does not end", (int)pid);
    return 0;
}

/* Ends the server of RPCs that smbd has started for itself, which outlives it. */
static void rpc_server_end(const struct smb_gateway *g)
{
    DIR *proc = opendir("/proc");
    struct dirent *e;

    while (proc != NULL && (e = readdir(proc)) != NULL) {
        pid_t pid = (pid_t)strtol(e->d_name, NULL, 10);
        int fd = pid <= 0 || !is_ours(g, pid, RPC_SERVER) ? -1 : pidfd_open(pid, 0);

        if (fd < 0)
            continue;
        if (is_ours(g, pid, RPC_SERVER)) /* still the process that was opened */
            pidfd_send_signal(fd, SIGTERM, NULL, 0);
        close(fd);
    }
    if (proc != NULL)
        closedir(proc);
}

/* ---- systemd ---- */

bool smb_has_systemd(const struct smb_gateway *g)
{
    return strcmp(g->dir, SMB_DIR) == 0 && access("/run/systemd/system", F_OK) == 0;
}

/* Runs systemctl with words that end with NULL. */
static int systemctl(char *const *words, struct err *err)
{
    char program[PATH_MAX], out[WORDS_MAX];
    char *argv[8] = { program };
    int rc;

    if (!program_search("systemctl", program))
        return err_set(err, -ENOENT, "systemd runs, but there is no systemctl");
    for (unsigned i = 0; words[i] != NULL; i++) {
        assert(i < 6);
        argv[i + 1] = words[i];
    }
    rc = program_output(argv, STDERR_FILENO, out, sizeof(out), err);
    if (rc > 0)
        rc = err_set(err, -EIO, "systemctl %s failed: %s\nSee: journalctl -u " SMB_UNIT,
                     words[0], out);
    return rc;
}

int smb_unit_start(const struct smb_gateway *g, const struct smb_programs *p,
                   struct err *err)
{
    char reload[] = "daemon-reload", enable[] = "enable", unit[] = SMB_UNIT,
         start[] = "reload-or-restart";
    char *text = smb_unit_text(g, p->smbd);
    int rc = file_replace(unit_path, 0644, text, strlen(text), err);

    free(text);
    if (rc == 0)
        rc = systemctl((char *[]){ reload, NULL }, err);
    if (rc == 0)
        rc = systemctl((char *[]){ enable, unit, NULL }, err);
    if (rc == 0)
        rc = systemctl((char *[]){ start, unit, NULL }, err);
    return rc;
}

int smb_remove(const struct smb_gateway *g, struct err *err)
{
    char disable[] = "disable", now[] = "--now", unit[] = SMB_UNIT,
         reload[] = "daemon-reload", path[PATH_MAX];
    bool has_unit = smb_has_systemd(g) && access(unit_path, F_OK) == 0;
    int rc = has_unit ? systemctl((char *[]){ disable, now, unit, NULL }, err) : 0;

    if (rc == 0)
        rc = smbd_end(g, err);
    if (rc == 0)
        rpc_server_end(g);
    if (rc == 0 && has_unit) {
        unlink(unit_path);
        rc = systemctl((char *[]){ reload, NULL }, err);
    }
    if (rc == 0)
        rc = path_join(path, err, "%s/smb.conf", g->dir);
    if (rc == 0 && unlink(path) != 0 && errno != ENOENT)
        rc = err_wrap(err, -errno, "remove %s", path);
    if (rc == 0)
        rc = path_join(path, err, "%s/gateway.json", g->dir);
    if (rc == 0 && unlink(path) != 0 && errno != ENOENT)
        rc = err_wrap(err, -errno, "remove %s", path);
    return rc;
}

/* ---- status ---- */

static bool share_is_mounted(const struct smb_share *s)
{
    char type[64] = "";

    return mount_find(s->mount, type, sizeof(type), NULL) == 1 &&
           strcmp(type, ROZO_MOUNT_TYPE) == 0;
}

json_t *smb_status_json(const char *dir)
{
    struct smb_gateway *g = calloc(1, sizeof(*g));
    struct err err = { 0 };
    json_t *json, *shares;
    pid_t pid;

    if (g == NULL)
        return NULL;
    if (smb_gateway_load(g, dir, &err) != 0 || g->n_shares == 0) {
        json = err.text[0] == '\0'
                   ? json_null()
                   : json_pack("{s:s, s:s}", "dir", dir, "error", err.text);
        free(g);
        return json;
    }
    pid = smb_pid(g);
    json = smb_gateway_json(g);
    json_object_set_new(json, "running", json_boolean(pid != 0));
    json_object_set_new(json, "pid",
                        pid == 0 ? json_null() : json_integer((json_int_t)pid));
    shares = json_object_get(json, "shares");
    for (unsigned i = 0; i < g->n_shares; i++)
        json_object_set_new(json_array_get(shares, i), "mounted",
                            json_boolean(share_is_mounted(&g->shares[i])));
    free(g);
    return json;
}

void smb_status_print(const char *dir, const char *before, FILE *to)
{
    static const char *const heads[] = { "SHARE", "EXPORT", "PROFILE", "USERS", "MOUNT" };
    struct smb_gateway *g = calloc(1, sizeof(*g));
    struct err err = { 0 };
    struct text_table t;
    pid_t pid;

    if (g == NULL)
        return;
    if (smb_gateway_load(g, dir, &err) != 0) {
        fprintf(to, "%sSMB gateway of this machine: %s\n", before, err.text);
    } else if (g->n_shares > 0) {
        pid = smb_pid(g);
        fprintf(to, "%sSMB gateway of this machine: ", before);
        if (pid == 0)
            fprintf(to, "DOWN\n");
        else
            fprintf(to, "running on port %u (pid %d)\n", g->port, (int)pid);
        text_table_init(&t, heads, 5);
        for (unsigned i = 0; i < g->n_shares; i++) {
            const struct smb_share *s = &g->shares[i];

            text_table_cell(&t, "%s", s->name);
            text_table_cell(&t, "%s", s->export_name);
            text_table_cell(&t, "%s", s->exclusive ? "exclusive" : "shared");
            text_table_cell(&t, "%s", s->users[0] == '\0' ? "all" : s->users);
            text_table_cell(&t, "%s%s", s->mount,
                            share_is_mounted(s) ? "" : " (NOT MOUNTED)");
        }
        text_table_print(&t, to);
        text_table_free(&t);
    }
    free(g);
}
