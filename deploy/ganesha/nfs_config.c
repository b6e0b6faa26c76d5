/*
 * nfs_config.c - ganesha.conf, made from the settings of the gateway.
 *
 * Keeps:  file handles hold on every gateway and after each restart. They contain
 *         Export_Id, and f_fsid that fsid_preload.c fills, which are alike everywhere.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "deploy/cli/fsutil.h"
#include "deploy/ganesha/nfs_gateway.h"

/* Fixed ports of the helpers of v3, so that a firewall can name them. */
enum { PORT_MOUNTD = 20048, PORT_LOCKD = 32803 };

/* The halves of a UUID as two numbers, which clients see as the fsid. */
static void fsid_numbers(const char *uuid, unsigned long long out[2])
{
    char digits[NFS_FSID_TEXT], high[17];
    size_t n = 0;

    for (const char *c = uuid; *c != '\0' && n + 1 < sizeof(digits); c++) {
        if (*c != '-')
            digits[n++] = *c;
    }
    digits[n] = '\0';
    snprintf(high, sizeof(high), "%.16s", digits);
    out[0] = strtoull(high, NULL, 16);
    out[1] = strtoull(n > 16 ? digits + 16 : "", NULL, 16);
}

static void put_core(FILE *f, const struct nfs_gateway *g)
{
    fprintf(f,
            "NFS_CORE_PARAM {\n"
            "    NFS_Port = %u;\n"
            "    MNT_Port = %d;\n"
            "    NLM_Port = %d;\n"
            "    Protocols = %s;\n"
            "    Enable_NLM = %s;\n"
            "    Enable_RQUOTA = false;\n"
            "    Enable_UDP = false;\n"
            "    mount_path_pseudo = true;\n"
            "    Clustered = false;\n"
            "}\n",
            g->port, PORT_MOUNTD, PORT_LOCKD, g->v4_only ? "4" : "3, 4",
            g->v4_only ? "false" : "true");
    fprintf(f,
            "NFSv4 {\n"
            "    RecoveryBackend = fs_ng;\n"
            "    RecoveryRoot = \"%s\";\n"
            "    Grace_Period = %u;\n"
            "    Lease_Lifetime = %u;\n"
            "}\n",
            g->dir, g->grace_s, g->grace_s);
    fputs("NFS_KRB5 {\n    Active_krb5 = false;\n}\n", f);
    /* A file that another gateway removed keeps its space while ganesha has it open. By
     * default that is until 50 % of all descriptors are in use. */
    fputs("MDCACHE {\n    FD_LWMark_Percent = 0;\n    LRU_Run_Interval = 10;\n}\n", f);
}

static void put_export(FILE *f, const struct nfs_gateway *g, const struct nfs_export *e)
{
    const char *access = e->read_only ? "RO" : "RW";
    unsigned long long fsid[2];

    fsid_numbers(e->fsid, fsid);
    fprintf(f,
            "EXPORT {\n"
            "    Export_Id = %u;\n"
            "    Path = \"%s\";\n"
            "    Pseudo = \"%s\";\n"
            "    Filesystem_Id = %llu.%llu;\n"
            "    Protocols = %s;\n"
            "    Transports = TCP;\n"
            "    SecType = sys;\n"
            "    Squash = %s;\n"
            "    Access_Type = %s;\n",
            e->id, e->mount, e->pseudo, fsid[0], fsid[1], g->v4_only ? "4" : "3, 4",
            e->squash, e->clients[0] == '\0' ? access : "None");
    /* 0: other gateways and mounts change files, and ganesha learns nothing of it. */
    fputs("    Attr_Expiration_Time = 0;\n", f);
    if (e->clients[0] != '\0')
        fprintf(f,
                "    CLIENT {\n        Clients = %s;\n        Access_Type = %s;\n    }\n",
                e->clients, access);
    fputs("    FSAL {\n        Name = VFS;\n    }\n}\n", f);
}

char *nfs_config_text(const struct nfs_gateway *g)
{
    char local[PATH_MAX], *text = NULL;
    struct err err;
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);

    if (f == NULL)
        return NULL;
    fputs(
        "# Written by `rozo gateway nfs`; changes are lost. Further settings of ganesha\n"
        "# belong to local.conf in this folder; run the command again when it is new.\n",
        f);
    put_core(f, g);
    for (unsigned i = 0; i < g->n_exports; i++)
        put_export(f, g, &g->exports[i]);
    if (path_join(local, &err, "%s/local.conf", g->dir) == 0 && access(local, F_OK) == 0)
        fprintf(f, "%%include \"%s\"\n", local);
    if (fclose(f) == 0)
        return text;
    free(text);
    return NULL;
}
