/*
 * fsid_preload.c - a library that is preloaded into ganesha.nfsd (LD_PRELOAD): fills
 * f_fsid of rozo mounts.
 *
 * FUSE leaves f_fsid 0, and then ganesha takes st_dev, which differs on every gateway and
 * changes with each mount, as the file system's part of its file handles: they would be
 * stale (ESTALE) after either. Kernel file systems fold their UUID into f_fsid, and so
 * does this library with the xattr rozo.fsid.
 *
 * In:     statfs() and statfs64() of the program. Thread: any.
 * Keeps:  other file systems are left alone. If the mount does not answer, statfs()
 *         fails: handles made with st_dev would be lost later.
 */
#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <linux/magic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statfs.h>
#include <sys/xattr.h>

enum { UUID_DIGITS = 32, UUID_TEXT = 36 };

static_assert(sizeof(struct statfs) == sizeof(struct statfs64), "a 64-bit system");

/* Folds the two halves of the UUID into one word, as uuid_to_fsid() of Linux does. */
static bool fsid_fold(const char *text, size_t len, uint64_t *out)
{
    uint8_t bytes[UUID_DIGITS / 2] = { 0 };
    unsigned n = 0;

    for (size_t i = 0; i < len; i++) {
        static const char digits[] = "0123456789abcdef";
        const char *digit = memchr(digits, text[i], sizeof(digits) - 1);

        if (text[i] == '-')
            continue;
        if (digit == NULL || n == UUID_DIGITS)
            return false;
        bytes[n / 2] = (uint8_t)(bytes[n / 2] << 4 | (digit - digits));
        n++;
    }
    *out = 0;
    for (unsigned i = 0; i < sizeof(bytes); i++)
        *out ^= (uint64_t)bytes[i] << 8 * (i % 8);
    if (*out == 0)
        *out = 1;
    return n == UUID_DIGITS;
}

/* Fills f_fsid if path is in a rozo mount. Returns 0, or -1 with errno. */
static int fsid_fill(const char *path, struct statfs *st)
{
    char text[UUID_TEXT + 1];
    uint64_t fsid;
    ssize_t len;

    if (st->f_type != FUSE_SUPER_MAGIC || st->f_fsid.__val[0] != 0 ||
        st->f_fsid.__val[1] != 0)
        return 0;
    len = getxattr(path, "rozo.fsid", text, sizeof(text));
    if (len < 0)
        return errno == ENODATA || errno == EOPNOTSUPP ? 0 : -1; /* 0: another FUSE */
    if (!fsid_fold(text, (size_t)len, &fsid)) {
        errno = EIO;
        return -1;
    }
    st->f_fsid.__val[0] = (int)(uint32_t)fsid;
    st->f_fsid.__val[1] = (int)(uint32_t)(fsid >> 32);
    return 0;
}

int statfs(const char *path, struct statfs *st)
{
    int (*real)(const char *, struct statfs *) =
        (int (*)(const char *, struct statfs *))dlsym(RTLD_NEXT, "statfs");

    if (real == NULL) {
        errno = ENOSYS;
        return -1;
    }
    return real(path, st) != 0 ? -1 : fsid_fill(path, st);
}

int statfs64(const char *path, struct statfs64 *st)
{
    return statfs(path, (struct statfs *)st);
}
