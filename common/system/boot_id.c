/*
 * boot_id.c - the kernel's id of this boot, as a number.
 */
#include "common/system/boot_id.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include "codec/codec.h"
#include "common/base/bytes.h"

uint64_t boot_number(void)
{
    char text[64] = "";
    uint8_t bytes[8] = { 0 };
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text));

    if (fd >= 0)
        close(fd);
    if (n < 36 && getrandom(bytes, sizeof(bytes), 0) == (ssize_t)sizeof(bytes))
        return get_le64(bytes); /* then every start counts as a boot */
    put_le32(bytes, codec_crc32c(0, text, 18));
    put_le32(bytes + 4, codec_crc32c(0, text + 18, 18));
    return get_le64(bytes);
}
