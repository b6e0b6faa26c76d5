/*
 * nfs_unit.c - the systemd unit of the gateway of NFS.
 */
#include <ctype.h>
#include <errno.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "deploy/cli/fsutil.h"
#include "deploy/ganesha/nfs_gateway.h"

#define UNIT_PATH "/etc/systemd/system/" NFS_UNIT

bool nfs_has_unit(const struct nfs_gateway *g)
{
    return strcmp(g->dir, NFS_DIR) == 0 && access("/run/systemd/system", F_OK) == 0;
}

/* Prints the name of a mount unit: "mnt-rozo.mount" of /mnt/rozo. */
static void put_mount_unit(FILE *to, const char *path)
{
    if (strcmp(path, "/") == 0)
        fputc('-', to);
    for (const char *c = path + 1; *c != '\0' && path[1] != '\0'; c++) {
        if (*c == '/')
            fputc('-', to);
        else if (isalnum((unsigned char)*c) || strchr(":_", *c) != NULL ||
                 (*c == '.' && c != path + 1))
            fputc(*c, to);
        else
            fprintf(to, "\\x%02x", (unsigned char)*c);
    }
    fputs(".mount", to);
}

char *nfs_unit_text(const struct nfs_gateway *g, const char *program)
{
    char *text = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);

    if (f == NULL)
        return NULL;
    fputs("# Written by `rozo gateway nfs`; changes are lost.\n"
          "[Unit]\n"
          "Description=NFS gateway of rozo\n"
          "Documentation=man:rozo(8) man:ganesha-config(8)\n"
          "# Two servers cannot have one port.\n"
          "Conflicts=nfs-ganesha.service nfs-server.service\n"
          "Wants=network-online.target\n"
          "After=network-online.target\n"
          "# Started again for as long as it takes: the mount may come back some time.\n"
          "StartLimitIntervalSec=0\n",
          f);
    if (!g->v4_only)
        fputs("Wants=rpcbind.service rpc-statd.service\n"
              "After=rpcbind.service rpc-statd.service\n",
              f);
    for (unsigned i = 0; i < g->n_exports; i++) {
        fputs("Requires=", f);
        put_mount_unit(f, g->exports[i].mount);
        fputs("\nAfter=", f);
        put_mount_unit(f, g->exports[i].mount);
        fputc('\n', f);
    }
    fprintf(f,
            "\n[Service]\n"
            "Type=exec\n"
            "ExecStart=%s gateway run nfs\n"
            "Restart=on-failure\n"
            "RestartSec=1s\n"
            "TimeoutStopSec=60s\n"
            "LimitNOFILE=262144\n"
            "\n[Install]\n"
            "WantedBy=multi-user.target\n",
            program);
    if (fclose(f) == 0)
        return text;
    free(text);
    return NULL;
}

/* Runs systemctl, whose messages go to our stderr. */
static int systemctl(const char *verb, const char *option, const char *unit,
                     struct err *err)
{
    char name[] = "systemctl";
    char *argv[5] = { name, (char *)verb };
    unsigned n = 2;
    pid_t child;
    int status = 0, rc;

    if (option != NULL)
        argv[n++] = (char *)option;
    if (unit != NULL)
        argv[n++] = (char *)unit;
    rc = posix_spawnp(&child, name, NULL, NULL, argv, environ);
    if (rc != 0)
        return err_wrap(err, -rc, "run systemctl");
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    return err_set(err, -EIO, "systemctl %s failed; see journalctl -u " NFS_UNIT, verb);
}

int nfs_unit_start(const struct nfs_gateway *g, struct err *err)
{
    char program[PATH_MAX];
    ssize_t len = readlink("/proc/self/exe", program, sizeof(program) - 1);
    char *text = NULL;
    int rc = len < 0 ? err_wrap(err, -errno, "find this program") : 0;

    if (rc == 0) {
        program[len] = '\0';
        text = nfs_unit_text(g, program);
        rc = text == NULL ? err_wrap(err, -ENOMEM, "write the unit")
                          : file_replace(UNIT_PATH, 0644, text, strlen(text), err);
    }
    free(text);
    if (rc == 0)
        rc = systemctl("daemon-reload", NULL, NULL, err);
    if (rc == 0)
        rc = systemctl("enable", NULL, NFS_UNIT, err);
    return rc != 0 ? rc : systemctl("restart", NULL, NFS_UNIT, err);
}

static int file_remove(const struct nfs_gateway *g, const char *name, struct err *err)
{
    char path[PATH_MAX];
    int rc = path_join(path, err, "%s/%s", g->dir, name);

    if (rc == 0 && unlink(path) != 0 && errno != ENOENT)
        rc = err_wrap(err, -errno, "remove %s", path);
    return rc;
}

int nfs_remove(const struct nfs_gateway *g, struct err *err)
{
    bool has_unit = nfs_has_unit(g) && access(UNIT_PATH, F_OK) == 0;
    int rc = has_unit ? systemctl("disable", "--now", NFS_UNIT, err) : 0;

    if (rc == 0 && nfs_runs(g->dir))
        rc = err_set(err, -EBUSY,
                     "the gateway of %s runs: end its `rozo gateway run` first", g->dir);
    if (rc == 0 && has_unit) {
        unlink(UNIT_PATH);
        rc = systemctl("daemon-reload", NULL, NULL, err);
    }
    if (rc == 0)
        rc = file_remove(g, "ganesha.conf", err);
    return rc != 0 ? rc : file_remove(g, "gateway.json", err);
}
