/*
 * verbs.h - the verbs of `rozo`, one cmd_*.c per group. main.c has their table.
 */
#ifndef ROZO_DEPLOY_VERBS_VERBS_H
#define ROZO_DEPLOY_VERBS_VERBS_H

#include "deploy/cli/cli.h"

int cmd_status(struct cli *cli, int argc, char **argv);
int cmd_storage_list(struct cli *cli, int argc, char **argv);
int cmd_storage_add(struct cli *cli, int argc, char **argv);
int cmd_storage_replace(struct cli *cli, int argc, char **argv);
int cmd_storage_lost(struct cli *cli, int argc, char **argv);
int cmd_volume_list(struct cli *cli, int argc, char **argv);
int cmd_volume_create(struct cli *cli, int argc, char **argv);
int cmd_export_list(struct cli *cli, int argc, char **argv);
int cmd_export_create(struct cli *cli, int argc, char **argv);
int cmd_stream_reserve(struct cli *cli, int argc, char **argv);
int cmd_stream_list(struct cli *cli, int argc, char **argv);
int cmd_stream_release(struct cli *cli, int argc, char **argv);
int cmd_meta_status(struct cli *cli, int argc, char **argv);
int cmd_meta_add(struct cli *cli, int argc, char **argv);
int cmd_meta_remove(struct cli *cli, int argc, char **argv);
int cmd_meta_replace(struct cli *cli, int argc, char **argv);
int cmd_meta_transfer(struct cli *cli, int argc, char **argv);
int cmd_meta_init(struct cli *cli, int argc, char **argv);
int cmd_meta_dump(struct cli *cli, int argc, char **argv);
int cmd_mount(struct cli *cli, int argc, char **argv);
int cmd_gateway_nfs(struct cli *cli, int argc, char **argv);
int cmd_gateway_run(struct cli *cli, int argc, char **argv);
int cmd_gateway_status(struct cli *cli, int argc, char **argv);
int cmd_gateway_remove(struct cli *cli, int argc, char **argv);
/**
 * Removes a share or an export of the gateway in a folder (NULL: the usual one); with the
 * last one, and with NULL, the gateway. Prints the result. Returns an exit status.
 */
int gateway_smb_remove(struct cli *cli, const char *dir, const char *share);
int gateway_nfs_remove(struct cli *cli, const char *dir, const char *export_name);
int cmd_locate(struct cli *cli, int argc, char **argv);
int cmd_salvage(struct cli *cli, int argc, char **argv);
int cmd_fsck(struct cli *cli, int argc, char **argv);
int cmd_rebuild_status(struct cli *cli, int argc, char **argv);
int cmd_rebuild_start(struct cli *cli, int argc, char **argv);
int cmd_rebuild_rate(struct cli *cli, int argc, char **argv);
int cmd_scrub_start(struct cli *cli, int argc, char **argv);
int cmd_scrub_stop(struct cli *cli, int argc, char **argv);
int cmd_scrub_status(struct cli *cli, int argc, char **argv);
int cmd_key_new(struct cli *cli, int argc, char **argv);
int cmd_bench_codec(struct cli *cli, int argc, char **argv);
int cmd_bench_fs(struct cli *cli, int argc, char **argv);
int cmd_bench_streams(struct cli *cli, int argc, char **argv);
int cmd_gateway_smb(struct cli *cli, int argc, char **argv);
int cmd_dev_up(struct cli *cli, int argc, char **argv);
int cmd_dev_down(struct cli *cli, int argc, char **argv);
int cmd_dev_status(struct cli *cli, int argc, char **argv);
int cmd_dev_restart(struct cli *cli, int argc, char **argv);

#endif
