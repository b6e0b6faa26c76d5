#include "tests/unit/rozomount/fake_notices.h"

#include <stdio.h>

static int notice_name(const char *what, fuse_ino_t dir, const char *name, size_t len)
{
    char text[64];

    snprintf(text, sizeof(text), "%s %d %.*s", what, (int)dir, (int)len, name);
    return notice(dir, text);
}

int fuse_lowlevel_notify_inval_inode(struct fuse_session *se, fuse_ino_t ino, off_t off,
                                     off_t len)
{
    char text[64];

    (void)se;
    snprintf(text, sizeof(text), "inode %d %d+%d", (int)ino, (int)off, (int)len);
    return notice(ino, text);
}

int fuse_lowlevel_notify_inval_entry(struct fuse_session *se, fuse_ino_t parent,
                                     const char *name, size_t namelen)
{
    (void)se;
    return notice_name("drop", parent, name, namelen);
}

#ifdef EXPIRE_ENTRY_HAS_FLAGS
int fuse_lowlevel_notify_expire_entry(struct fuse_session *se, fuse_ino_t parent,
                                      const char *name, size_t namelen,
                                      enum fuse_expire_flags flags)
{
    (void)se;
    return notice_name(flags == FUSE_LL_EXPIRE_ONLY ? "expire" : "drop", parent, name,
                       namelen);
}
#else
int fuse_lowlevel_notify_expire_entry(struct fuse_session *se, fuse_ino_t parent,
                                      const char *name, size_t namelen)
{
    (void)se;
    return notice_name("expire", parent, name, namelen);
}
#endif
