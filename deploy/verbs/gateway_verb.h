/*
 * gateway_verb.h - what the kinds of gateways do for `rozo gateway`.
 */
#ifndef ROZO_DEPLOY_VERBS_GATEWAY_VERB_H
#define ROZO_DEPLOY_VERBS_GATEWAY_VERB_H

#include "deploy/cli/cli.h"

/**
 * Removes a share or an export of the gateway in a folder (NULL: the usual one); with the
 * last one, and with NULL, the gateway. Prints the result. Returns an exit status.
 */
int gateway_smb_remove(struct cli *cli, const char *dir, const char *share);
int gateway_nfs_remove(struct cli *cli, const char *dir, const char *export_name);

#endif
