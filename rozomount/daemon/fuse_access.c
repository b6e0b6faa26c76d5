/*
 * fuse_access.c - see fuse_access.h.
 *
 * In:     /dev/fuse and the capabilities of this process.
 * Keeps:  a container that was started without its device or capability hears of it
 *         before exportd does, and in words that say what to add.
 */
#include "rozomount/daemon/fuse_access.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <stdbool.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char DEVICE[] = "/dev/fuse";

static int device_check(struct err *err)
{
    int fd = open(DEVICE, O_RDWR | O_CLOEXEC);

    if (fd >= 0) {
        close(fd);
        return 0;
    }
    if (errno == ENOENT)
        return err_set(err, -ENOENT,
                       "there is no %s. On a machine: modprobe fuse. A container gets it "
                       "by --device %s",
                       DEVICE, DEVICE);
    if (errno == ENODEV || errno == ENXIO)
        return err_set(err, -errno, "%s: the kernel has no FUSE. Try modprobe fuse",
                       DEVICE);
    if (geteuid() != 0 && errno == EACCES) /* fusermount3 may open it */
        return 0;
    return err_set(err, -errno, "cannot open %s: %s. A container gets it by --device %s",
                   DEVICE, strerror(errno), DEVICE);
}

/* Root mounts by itself; for other users the setuid program fusermount3 does. */
static bool may_mount(void)
{
    struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = { 0 };

    if (geteuid() != 0)
        return prctl(PR_CAPBSET_READ, CAP_SYS_ADMIN) != 0;
    return syscall(SYS_capget, &head, data) != 0 ||
           (data[CAP_TO_INDEX(CAP_SYS_ADMIN)].effective & CAP_TO_MASK(CAP_SYS_ADMIN)) !=
               0;
}

int fuse_access_check(struct err *err)
{
    int rc = device_check(err);

    if (rc == 0 && !may_mount())
        rc = err_set(err, -EPERM,
                     "mounting needs the capability CAP_SYS_ADMIN, and this process has "
                     "it not. A container gets it by --cap-add SYS_ADMIN");
    return rc;
}
