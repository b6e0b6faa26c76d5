/*
 * uncalled_fuse.c - functions that operations of a mount link, and that no test of an
 * operation calls: each ends the test.
 */
#include <stdlib.h>

#include "rozomount/op/handle.h"
#include "tests/unit/rozomount/fake_notices.h"

int fuse_reply_entry(fuse_req_t req, const struct fuse_entry_param *e)
{
    (void)req;
    (void)e;
    abort();
}

int fuse_reply_attr(fuse_req_t req, const struct stat *attr, double attr_timeout)
{
    (void)req;
    (void)attr;
    (void)attr_timeout;
    abort();
}

int fuse_reply_write(fuse_req_t req, size_t count)
{
    (void)req;
    (void)count;
    abort();
}

int notice(fuse_ino_t ino, const char *text)
{
    (void)ino;
    (void)text;
    abort();
}
