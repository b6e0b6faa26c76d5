/*
 * main.c - rozo, the command line of the file system: finds the verb and runs it.
 */
#include <signal.h>
#include <stdio.h>

#include "common/base/log.h"
#include "deploy/verbs/verbs.h"

static const struct cli_verb dev_verbs[] = {
    { "up", "start a private cluster on this machine and mount it", cmd_dev_up, NULL },
    { "down", "stop a private cluster; its data stays", cmd_dev_down, NULL },
    { "status", "list the processes of a private cluster", cmd_dev_status, NULL },
    { "restart", "restart processes of a private cluster", cmd_dev_restart, NULL },
    { 0 },
};
static const struct cli_verb storage_verbs[] = {
    { "list", "the storages of the cluster", cmd_storage_list, NULL },
    { "add", "let a storage join the cluster", cmd_storage_add, NULL },
    { "replace", "put a new disk in the place of a lost one", cmd_storage_replace, NULL },
    { "lost", "declare that a storage will not come back", cmd_storage_lost, NULL },
    { 0 },
};
static const struct cli_verb volume_verbs[] = {
    { "list", "the volumes and their storages", cmd_volume_list, NULL },
    { "create", "make a volume", cmd_volume_create, NULL },
    { 0 },
};
static const struct cli_verb export_verbs[] = {
    { "list", "the file systems that can be mounted", cmd_export_list, NULL },
    { "create", "make a file system", cmd_export_create, NULL },
    { 0 },
};
static const struct cli_verb meta_verbs[] = {
    { "status", "the members of the quorum, and which one leads", cmd_meta_status, NULL },
    { "transfer", "let another member lead", cmd_meta_transfer, NULL },
    { "add", "add a member", cmd_meta_add, NULL },
    { "remove", "remove a member", cmd_meta_remove, NULL },
    { "replace", "put a new member in the place of another one", cmd_meta_replace, NULL },
    { "init", "make a running exportd the first member of a quorum", cmd_meta_init,
      NULL },
    { "dump", "write a copy of all metadata to a file", cmd_meta_dump, NULL },
    { 0 },
};
static const struct cli_verb rebuild_verbs[] = {
    { "status", "how far storages are in healing", cmd_rebuild_status, NULL },
    { "start", "have a storage rebuild what it lacks", cmd_rebuild_start, NULL },
    { "rate", "limit how fast storages heal", cmd_rebuild_rate, NULL },
    { 0 },
};
static const struct cli_verb scrub_verbs[] = {
    { "start", "have storages read and heal all they hold", cmd_scrub_start, NULL },
    { "stop", "stop scrubs", cmd_scrub_stop, NULL },
    { "status", "how far scrubs are, and what they found", cmd_scrub_status, NULL },
    { 0 },
};
static const struct cli_verb key_verbs[] = {
    { "new", "make a key file", cmd_key_new, NULL },
    { 0 },
};
static const struct cli_verb gateway_verbs[] = {
    { "smb", "export a mounted file system by SMB", cmd_gateway_smb, NULL },
    { "nfs", "export a mounted file system by NFS", cmd_gateway_nfs, NULL },
    { "status", "the gateways of this machine, and what they export", cmd_gateway_status,
      NULL },
    { "remove", "stop a gateway, or remove a share or an export", cmd_gateway_remove,
      NULL },
    { "run", "run a gateway in the foreground", cmd_gateway_run, NULL },
    { 0 },
};
static const struct cli_verb bench_verbs[] = {
    { "codec", "how fast this machine codes", cmd_bench_codec, NULL },
    { "fs", "how fast a mounted file system is", cmd_bench_fs, NULL },
    { "streams", "how many streams an editor can play from it", cmd_bench_streams, NULL },
    { 0 },
};
static const struct cli_verb verbs[] = {
    { "status", "the cluster: storages, space, exports", cmd_status, NULL },
    { "storage", "Storages of a cluster.", NULL, storage_verbs },
    { "volume", "Volumes: sets of storages that exports draw on.", NULL, volume_verbs },
    { "export", "Exports: the file systems clients mount.", NULL, export_verbs },
    { "meta", "Metadata on several exportds: a quorum.", NULL, meta_verbs },
    { "rebuild", "Healing: storages rebuild what they lack.", NULL, rebuild_verbs },
    { "scrub", "Scrub: storages read and check all they hold.", NULL, scrub_verbs },
    { "fsck", "compare what exportd knows with what storages hold", cmd_fsck, NULL },
    { "mount", "mount an export", cmd_mount, NULL },
    { "gateway", "Gateways: this machine exports by SMB or NFS.", NULL, gateway_verbs },
    { "locate", "where a file lies", cmd_locate, NULL },
    { "salvage", "restore files from data directories alone", cmd_salvage, NULL },
    { "key", "Keys of a cluster.", NULL, key_verbs },
    { "bench", "How fast things are on this machine.", NULL, bench_verbs },
    { "dev", "Private clusters on one machine, to try things out and to test.", NULL,
      dev_verbs },
    { 0 },
};

int main(int argc, char **argv)
{
    struct cli cli = { .verb = "rozo" };

    log_init("rozo");
    log_set_level(LOG_LEVEL_ERROR); /* the verbs report errors themselves, once */
    signal(SIGPIPE, SIG_IGN);
    return cli_dispatch(&cli, verbs, "The command line of the rozo file system.", argc,
                        argv);
}
