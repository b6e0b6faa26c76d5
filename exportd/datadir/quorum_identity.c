/*
 * quorum_identity.c - the identity of a member, as a small file.
 *
 * In:     begin and start of a member.
 * Out:    DATA/quorum/identity.
 * Ask:    its text. Users' disks carry it.
 */
#include "exportd/datadir/quorum_identity.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/evp.h>

#include "common/system/small_file.h"

#define IDENTITY_TEXT   "rozo quorum format 1\ncluster %s\nmember %u\n"
#define IDENTITY_TEXT_2 "rozo quorum format 2\ncluster %s\nmember %u\ngroup %08x\n"
#define IDENTITY_TEXT_3 \
    "rozo quorum format 3\ncluster %s\nmember %u\ngroup %08x\n" WITNESS_LINE
#define WITNESS_LINE     "witness\n"
#define CLUSTER_ID_WORDS "rozo quorum 1"

enum { FORMAT_MAX = 3 };
enum { BIRTH_BYTES = 16, PATH_BYTES = 4352, HEX_BYTES = 2 * RAFT_MSG_CLUSTER_ID_BYTES };

void quorum_identity_make(struct quorum_identity *out, const uint8_t birth[16],
                          const struct raft_config *members, unsigned member)
{
    uint8_t text[sizeof(CLUSTER_ID_WORDS) - 1 + BIRTH_BYTES + RAFT_CONFIG_BYTES_MAX];
    uint8_t hash[EVP_MAX_MD_SIZE];
    size_t len = sizeof(CLUSTER_ID_WORDS) - 1;
    int ok;

    memcpy(text, CLUSTER_ID_WORDS, len);
    memcpy(text + len, birth, BIRTH_BYTES);
    len += BIRTH_BYTES;
    len += raft_config_encode(members, text + len);
    ok = EVP_Digest(text, len, hash, NULL, EVP_sha256(), NULL);
    assert(ok == 1);
    memcpy(out->cluster_id, hash, sizeof(out->cluster_id));
    out->member = member;
    out->group = 0;
    out->is_witness = raft_config_is_witness(members, member);
}

int quorum_folder_open(const char *data, struct err *err)
{
    char path[PATH_BYTES];
    int fd;

    snprintf(path, sizeof(path), "%s/quorum", data);
    fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd >= 0 ? fd : err_set(err, -errno, "open %s: %s", path, strerror(errno));
}

static void hex_of(const uint8_t *bytes, size_t n, char *text)
{
    for (size_t i = 0; i < n; i++)
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
}

/* Writes the text of a file. A group that never began again has format 1, which earlier
 * builds read; a witness has format 3, which those that know no witness refuse. */
static size_t identity_text(const struct quorum_identity *id, char *text, size_t size)
{
    char hex[HEX_BYTES + 1];
    int n;

    hex_of(id->cluster_id, sizeof(id->cluster_id), hex);
    if (id->is_witness)
        n = snprintf(text, size, IDENTITY_TEXT_3, hex, id->member, id->group);
    else
        n = id->group == 0
                ? snprintf(text, size, IDENTITY_TEXT, hex, id->member)
                : snprintf(text, size, IDENTITY_TEXT_2, hex, id->member, id->group);
    return (size_t)n;
}

static int identity_parse(const char *text, struct quorum_identity *out)
{
    char hex[HEX_BYTES + 1] = "", again[256];
    unsigned format = 0;
    int n;

    *out = (struct quorum_identity){ .member = 0 };
    n = sscanf(text, "rozo quorum format %u\ncluster %32[0-9a-f]\nmember %u\ngroup %8x\n",
               &format, hex, &out->member, &out->group);
    out->is_witness = format == 3;
    if (n != (format >= 2 ? 4 : 3) || strlen(hex) != HEX_BYTES || out->member == 0)
        return -ROZO_EDAMAGED;
    for (size_t i = 0; i < sizeof(out->cluster_id); i++) {
        unsigned byte = 0;

        sscanf(hex + 2 * i, "%2x", &byte);
        out->cluster_id[i] = (uint8_t)byte;
    }
    identity_text(out, again, sizeof(again));
    return strcmp(again, text) == 0 ? 0 : -ROZO_EDAMAGED;
}

int quorum_identity_read(const char *data, struct quorum_identity *out, struct err *err)
{
    char path[PATH_BYTES], text[256] = "";
    unsigned format;
    ssize_t n;
    int fd;

    snprintf(path, sizeof(path), "%s/quorum/identity", data);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return -ENOENT;
    if (fd < 0)
        return err_set(err, -errno, "open %s: %s", path, strerror(errno));
    n = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (n >= 0 && sscanf(text, "rozo quorum format %u", &format) == 1 &&
        format > FORMAT_MAX)
        return err_set(
            err, -ROZO_EUNKNOWN_FORMAT,
            "%s has format %u, this build reads up to format %d: a newer rozo wrote "
            "it; install that one",
            path, format, (int)FORMAT_MAX);
    if (n < 0 || identity_parse(text, out) != 0)
        return err_set(err, -ROZO_EDAMAGED, "%s is damaged", path);
    return 0;
}

/* Makes DATA/quorum, and its name stable: a member without it would be taken for one that
 * has lost it. */
static int folder_make(const char *data, const char *path, struct err *err)
{
    int fd, rc;

    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return err_set(err, -errno, "make %s: %s", path, strerror(errno));
    fd = open(data, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_set(err, -errno, "open %s: %s", data, strerror(errno));
    rc = fsync(fd) == 0 ? 0 : err_set(err, -errno, "sync %s: %s", data, strerror(errno));
    close(fd);
    return rc;
}

int quorum_identity_write(const char *data, const struct quorum_identity *id,
                          struct err *err)
{
    char path[PATH_BYTES], text[256];
    int fd, rc;

    snprintf(path, sizeof(path), "%s/quorum", data);
    rc = folder_make(data, path, err);
    if (rc != 0)
        return rc;
    fd = quorum_folder_open(data, err);
    if (fd < 0)
        return fd;
    rc = small_file_replace(fd, "identity", text, identity_text(id, text, sizeof(text)));
    close(fd);
    return rc == 0 ? 0 : err_set(err, rc, "write %s/identity: %s", path, error_text(rc));
}
