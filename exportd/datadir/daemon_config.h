/*
 * daemon_config.h - the config file of exportd. Shell code.
 */
#ifndef ROZO_EXPORTD_DATADIR_DAEMON_CONFIG_H
#define ROZO_EXPORTD_DATADIR_DAEMON_CONFIG_H

#include <stdbool.h>

#include "common/base/err.h"
#include "common/config/config.h"
#include "exportd/quorum/raft/raft_msg.h"

struct exportd_cluster_section {
    char *node_key, *client_key; /* paths */
};
struct exportd_section {
    char *data;
    char **listen;
    unsigned listen_count;
    unsigned lease_s;                        /* 0: LEASE_DEFAULT_MS of the core */
    unsigned evict_s;                        /* 0: EVICT_DEFAULT_MS */
    unsigned strays_s;                       /* 0: STRAYS_DEFAULT_S */
    unsigned session_tokens_max, tokens_max; /* 0: defaults of the core */
};
struct quorum_member_section {
    unsigned id;
    bool witness;
    char *address; /* where other members reach it, HOST:PORT */
};
/* This exportd is a member of a quorum, or may become one. */
struct quorum_section {
    unsigned id;   /* id of this exportd, one of the members; 0: not given */
    bool witness;  /* this exportd votes and keeps the log, but no metadata */
    char **listen; /* for other members */
    unsigned listen_count;
    /* Members with which a new quorum begins; none if id is 0. */
    struct quorum_member_section *members;
    unsigned members_count;
    unsigned log_keep_mb;  /* MiB of the log before it is trimmed; 0: MEMBER_KEEP_BYTES */
    unsigned seed_rate_mb; /* MiB a second of keys and entries of a copy; 0: no limit */
    /* when a change is answered: a majority has it in memory, or has synced it */
    enum { ACKNOWLEDGE_MEMORY, ACKNOWLEDGE_DISK } acknowledge; /* default: 0 */
};
struct exportd_settings {
    struct exportd_cluster_section cluster;
    struct exportd_section exportd;
    struct quorum_section *quorum; /* NULL: exportd is alone */
    struct config_log log;
};

/** Loads and checks the file. Free it with exportd_settings_free(). */
int exportd_settings_load(const char *path, struct exportd_settings **out,
                          struct err *err);
/** Frees the settings. NULL is fine. */
void exportd_settings_free(struct exportd_settings *c);
/** Returns whether HOST stands for all addresses of a machine: good to listen on only. */
bool quorum_section_is_wildcard(const char *address);
/**
 * Returns whether this is HOST:PORT by which others may reach a member, as far as that
 * shows without asking for HOST.
 */
bool quorum_section_is_address(const char *text);
/** Makes the list with which a new quorum begins: all vote. */
void quorum_section_members(const struct quorum_section *q, struct raft_config *out);

#endif
