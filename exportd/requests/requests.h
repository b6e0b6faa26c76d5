/*
 * requests.h - handlers of requests, by the op they answer.
 */
#ifndef ROZO_EXPORTD_REQUESTS_REQUESTS_H
#define ROZO_EXPORTD_REQUESTS_REQUESTS_H

#include "exportd/cluster/answer.h"
#include "exportd/requests/admission.h"
#include "exportd/requests/reservations.h"

/* Listings of inodes.c that are under way. */
struct listings {
    struct list_node list;
    unsigned n;
};

/* The state of this room. */
struct requests {
    struct exportd *x; /* borrowed */
    struct admissions admissions;
    struct listings listings;
    struct reservations reservations;
    /* the rest belongs to exportd.c */
    uint64_t started_ns;
    uint64_t n_by_op[OPS_MAX]; /* requests since the start */
    struct env_timer tick;
    uint64_t ticked_ns;           /* ns, monotonic; last tick */
    struct store_wait ready_wait; /* for the start to be stable */
    struct store_wait stop_wait;
    struct env_task stop_task;   /* checks whether everything has come to rest */
    struct env_timer stop_again; /* next check, while the kv is waited for */
    void (*stopped)(void *arg, int rc);
    void *stopped_arg;
};

/* md.c */
md_handler md_open_session, md_keep_alive, md_close_session, md_lookup, md_getattr,
    md_setattr, md_create, md_unlink, md_rmdir, md_link, md_rename, md_readlink,
    md_readdir, md_open, md_close, md_wrote, md_truncated, md_getxattr, md_setxattr,
    md_listxattr, md_removexattr, md_statfs, md_sync, md_token, md_atimes, md_wait_leader,
    md_real_name;
/* md_lock.c */
md_handler md_lock, md_lock_test, md_lock_cancel;
/* ad.c */
md_handler ad_status, ad_volume_create, ad_export_create, ad_storage_lost, ad_meta;
/* ad_stream.c */
md_handler ad_stream_reserve, ad_stream_release, ad_stream_list;
/* names.c */
md_handler ad_names;
/* inodes.c */
md_handler ad_inodes;
void listings_init(struct listings *all);
/** Ends listings of inodes that are under way with -EBUSY, now. */
void listings_stop(struct exportd *x);

#endif
