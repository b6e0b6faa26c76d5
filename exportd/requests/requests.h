/*
 * requests.h - handlers of requests, by the op they answer.
 */
#ifndef ROZO_EXPORTD_REQUESTS_REQUESTS_H
#define ROZO_EXPORTD_REQUESTS_REQUESTS_H

#include "exportd/cluster/answer.h"

/* md.c */
md_handler md_open_session, md_keep_alive, md_close_session, md_lookup, md_getattr,
    md_setattr, md_create, md_unlink, md_rmdir, md_link, md_rename, md_readlink,
    md_readdir, md_open, md_close, md_wrote, md_truncated, md_getxattr, md_setxattr,
    md_listxattr, md_removexattr, md_statfs, md_sync, md_token, md_atimes;
/* md_lock.c */
md_handler md_lock, md_lock_test, md_lock_cancel;
/* ad.c */
md_handler ad_status, ad_volume_create, ad_export_create, ad_storage_lost;
/* inodes.c */
md_handler ad_inodes;
/** Ends listings of inodes that are under way with -EBUSY, now. */
void listings_stop(struct exportd *x);

#endif
