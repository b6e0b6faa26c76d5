/*
 * keys.c - key files: 64 hex digits and a newline, for the owner's eyes only.
 *
 * In:     paths from configs and command lines; files are checked (I8).
 * Out:    struct rpc_keys; new key files.
 * Keeps:  a key file others can read is refused; an existing one is never replaced.
 */
#include "common/rpc/keys.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/crypto.h>

#include "common/base/err.h"
#include "common/rpc/rpc_tcp.h"

enum { KEY_TEXT_BYTES = 2 * RPC_KEY_BYTES }; /* a newline follows */

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

static int key_parse(const char *text, ssize_t len, uint8_t key[RPC_KEY_BYTES])
{
    if (len == KEY_TEXT_BYTES + 1 && text[KEY_TEXT_BYTES] == '\n')
        len--;
    if (len != KEY_TEXT_BYTES)
        return -EINVAL;
    for (unsigned i = 0; i < RPC_KEY_BYTES; i++) {
        int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);

        if (high < 0 || low < 0)
            return -EINVAL;
        key[i] = (uint8_t)(high << 4 | low);
    }
    return 0;
}

static int key_read(int fd, uint8_t key[RPC_KEY_BYTES], struct err *err)
{
    char text[KEY_TEXT_BYTES + 2];
    struct stat st;
    ssize_t len;
    int rc;

    if (fstat(fd, &st) != 0)
        return err_set(err, -errno, "stat: %s", strerror(errno));
    if (!S_ISREG(st.st_mode))
        return err_set(err, -EINVAL, "not a regular file");
    if ((st.st_mode & 077) != 0)
        return err_set(err, -EACCES,
                       "others may read or write it (mode %03o); chmod 600 it",
                       (unsigned)st.st_mode & 0777);
    len = read(fd, text, sizeof(text));
    if (len < 0)
        return err_set(err, -errno, "read: %s", strerror(errno));
    rc = key_parse(text, len, key);
    OPENSSL_cleanse(text, sizeof(text));
    if (rc != 0)
        return err_set(err, rc, "not a key: expected %d hex digits and a newline",
                       (int)KEY_TEXT_BYTES);
    return 0;
}

int rpc_keys_load(struct rpc_keys *keys, bool node, const char *path, struct err *err)
{
    uint8_t key[RPC_KEY_BYTES];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    int rc =
        fd < 0 ? err_set(err, -errno, "%s", strerror(errno)) : key_read(fd, key, err);

    if (fd >= 0)
        close(fd);
    if (rc != 0)
        return err_wrap(err, rc, "key file %s", path);
    memcpy(node ? keys->node : keys->client, key, sizeof(key));
    OPENSSL_cleanse(key, sizeof(key));
    if (node)
        keys->has_node = true;
    else
        keys->has_client = true;
    return 0;
}

/* Writes 64 random hex digits and a newline. */
static int key_write(int fd)
{
    static const char digits[] = "0123456789abcdef";
    uint8_t key[RPC_KEY_BYTES];
    char text[KEY_TEXT_BYTES + 1];
    ssize_t len;

    if (getrandom(key, sizeof(key), 0) != (ssize_t)sizeof(key))
        return -EIO; /* 256 bytes or less come whole */
    for (unsigned i = 0; i < RPC_KEY_BYTES; i++) {
        text[2 * i] = digits[key[i] >> 4];
        text[2 * i + 1] = digits[key[i] & 15];
    }
    text[KEY_TEXT_BYTES] = '\n';
    len = write(fd, text, sizeof(text));
    OPENSSL_cleanse(key, sizeof(key));
    OPENSSL_cleanse(text, sizeof(text));
    if (len < 0)
        return -errno;
    if (len != (ssize_t)sizeof(text))
        return -ENOSPC;
    return fsync(fd) == 0 ? 0 : -errno;
}

int rpc_key_generate(const char *path, struct err *err)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    int rc;

    if (fd < 0 && errno == EEXIST)
        return err_set(err, -EEXIST,
                       "key file %s exists, and is never replaced: choose another name",
                       path);
    if (fd < 0)
        return err_set(err, -errno, "make key file %s: %s", path, strerror(errno));
    rc = key_write(fd);
    if (close(fd) != 0 && rc == 0)
        rc = -errno;
    if (rc != 0) {
        unlink(path); /* half a key is worse than none */
        return err_set(err, rc, "make key file %s: %s", path, error_text(rc));
    }
    return 0;
}
