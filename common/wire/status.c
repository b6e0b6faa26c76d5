/*
 * status.c - the one table of statuses and errnos.
 *
 * Keeps:  every status but OK has an errno of its own, so that both ways lead back.
 * Ask:    no one; but a new status of rozo.proto needs its line here (a test counts
 *         them).
 */
#include "common/wire/status.h"

#include <errno.h>
#include <stddef.h>

#include "common/base/err.h"

static const struct {
    uint16_t status;
    int error;
} table[] = {
    { ROZO__STATUS__OK, 0 },
    { ROZO__STATUS__BAD_REQUEST, EBADMSG },
    { ROZO__STATUS__DENIED, EACCES },
    { ROZO__STATUS__UNKNOWN_OP, ENOSYS },
    { ROZO__STATUS__BUSY, EBUSY },
    { ROZO__STATUS__TIMED_OUT, ETIMEDOUT },
    { ROZO__STATUS__IO_ERROR, EIO },
    { ROZO__STATUS__NO_SPACE, ENOSPC },
    { ROZO__STATUS__NO_MEMORY, ENOMEM },
    { ROZO__STATUS__NO_SESSION, ROZO_ENO_SESSION },
    { ROZO__STATUS__FENCED, ROZO_EFENCED },
    { ROZO__STATUS__NOT_LEADER, ROZO_ENOT_LEADER },
    { ROZO__STATUS__DEPOSED, ROZO_EDEPOSED },
    { ROZO__STATUS__STALE_VERSION, ROZO_ESTALE_VERSION },
    { ROZO__STATUS__NO_FILE, ROZO_ENO_FILE },
    { ROZO__STATUS__DAMAGED, ROZO_EDAMAGED },
    { ROZO__STATUS__NOT_ADMITTED, ROZO_ENOT_ADMITTED },
    { ROZO__STATUS__WRONG_STORAGE, ROZO_EWRONG_STORAGE },
    { ROZO__STATUS__STALE_DISTRIBUTION, ROZO_EMOVED },
    { ROZO__STATUS__NOT_FOUND, ENOENT },
    { ROZO__STATUS__EXISTS, EEXIST },
    { ROZO__STATUS__NOT_DIRECTORY, ENOTDIR },
    { ROZO__STATUS__IS_DIRECTORY, EISDIR },
    { ROZO__STATUS__NOT_EMPTY, ENOTEMPTY },
    { ROZO__STATUS__NOT_PERMITTED, EPERM },
    { ROZO__STATUS__INVALID, EINVAL },
    { ROZO__STATUS__NAME_TOO_LONG, ENAMETOOLONG },
    { ROZO__STATUS__QUOTA, EDQUOT },
    { ROZO__STATUS__STALE_HANDLE, ESTALE },
    { ROZO__STATUS__CROSS_DEVICE, EXDEV },
    { ROZO__STATUS__TOO_MANY_LINKS, EMLINK },
    { ROZO__STATUS__NO_DATA, ENODATA },
    { ROZO__STATUS__OUT_OF_RANGE, ERANGE },
    { ROZO__STATUS__TOO_BIG, E2BIG },
    { ROZO__STATUS__NOT_SUPPORTED, EOPNOTSUPP },
    { ROZO__STATUS__FILE_TOO_BIG, EFBIG },
    { ROZO__STATUS__READ_ONLY, EROFS },
    { ROZO__STATUS__TOO_MANY_SYMLINKS, ELOOP },
    { ROZO__STATUS__LOCKED, EAGAIN },
    { ROZO__STATUS__DEADLOCK, EDEADLK },
    { ROZO__STATUS__NO_LOCKS, ENOLCK },
    { ROZO__STATUS__IN_PROGRESS, EINPROGRESS },
    { ROZO__STATUS__RETRY, ROZO_ERETRY },
    { ROZO__STATUS__DONE_BEFORE, ROZO_EDONE_BEFORE },
};

int status_to_errno(unsigned status)
{
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        if (table[i].status == status)
            return -table[i].error;
    }
    return -EIO;
}

uint16_t status_from_errno(int rc)
{
    if (rc == -EMFILE) /* passes by itself: the disk is not at fault */
        return ROZO__STATUS__BUSY;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        if (table[i].error == -rc)
            return table[i].status;
    }
    return ROZO__STATUS__IO_ERROR;
}

const char *status_name(unsigned status)
{
    const ProtobufCEnumValue *value =
        protobuf_c_enum_descriptor_get_value(&rozo__status__descriptor, (int)status);

    return value == NULL ? "UNKNOWN" : value->name;
}
