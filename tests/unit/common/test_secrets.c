/* test_secrets.c - key files, capabilities, and the table of statuses. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/rpc/keys.h"
#include "common/rpc/rpc_tcp.h"
#include "common/wire/capability.h"
#include "common/wire/status.h"
#include "tests/unit/unit.h"

static char dir[] = "/tmp/rozo-test-XXXXXX";
static char path[64];

static void write_file(const char *text, mode_t mode)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    fchmod(fd, mode);
    close(fd);
}

static void keys_are_made_and_read(void **state)
{
    struct rpc_keys keys = { 0 }, again = { 0 };
    struct err err = { 0 };
    struct stat st;

    (void)state;
    unlink(path);
    assert_int_equal(rpc_key_generate(path, &err), 0);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(st.st_size, 65);
    assert_int_equal(rpc_keys_load(&keys, true, path, &err), 0);
    assert_true(keys.has_node && !keys.has_client);
    assert_int_equal(rpc_keys_load(&keys, false, path, &err), 0);
    assert_true(keys.has_client);
    assert_memory_equal(keys.node, keys.client, RPC_KEY_BYTES);
    assert_int_equal(rpc_key_generate(path, &err), -EEXIST);
    unlink(path);
    assert_int_equal(rpc_key_generate(path, &err), 0);
    assert_int_equal(rpc_keys_load(&again, true, path, &err), 0);
    assert_memory_not_equal(keys.node, again.node, RPC_KEY_BYTES);
}

static void bad_key_files_are_refused(void **state)
{
    static const char good[] =
        "00112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF\n";
    char text[128];
    struct rpc_keys keys = { 0 };
    struct err err = { 0 };

    (void)state;
    write_file(good, 0400);
    assert_int_equal(rpc_keys_load(&keys, true, path, &err), 0);
    assert_int_equal(keys.node[31], 0xff);
    chmod(path, 0640);
    assert_int_equal(rpc_keys_load(&keys, false, path, &err), -EACCES);
    assert_non_null(strstr(err.text, "chmod 600"));
    assert_non_null(strstr(err.text, path));
    chmod(path, 0600);
    write_file("", 0600);
    assert_int_equal(rpc_keys_load(&keys, false, path, &err), -EINVAL);
    snprintf(text, sizeof(text), "%s\n", good);
    write_file(text, 0600);
    assert_int_equal(rpc_keys_load(&keys, false, path, &err), -EINVAL);
    snprintf(text, sizeof(text), "%s", good);
    text[5] = 'g';
    write_file(text, 0600);
    assert_int_equal(rpc_keys_load(&keys, false, path, &err), -EINVAL);
    assert_int_equal(rpc_keys_load(&keys, false, dir, &err), -EINVAL);
    unlink(path);
    assert_int_equal(rpc_keys_load(&keys, false, path, &err), -ENOENT);
    assert_false(keys.has_client);
}

static void capabilities_fit_one_file_and_right(void **state)
{
    const uint8_t node_key[32] = { 1 }, other_key[32] = { 2 };
    const struct file_id id = { 1, 2, 3 }, other = { 1, 2, 4 };
    struct capability_key *key, *stranger, *renewed;
    uint8_t cap[CAPABILITY_BYTES], rw[CAPABILITY_BYTES];

    (void)state;
    assert_int_equal(capability_key_new(node_key, 0, &key), 0);
    assert_int_equal(capability_key_new(other_key, 0, &stranger), 0);
    assert_int_equal(capability_key_new(node_key, 1, &renewed), 0);
    capability_sign(key, &id, CAPABILITY_READ | CAPABILITY_WRITE, rw);
    capability_sign(key, &id, CAPABILITY_READ, cap); /* the context starts again */
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(capability_verify(key, &id, CAPABILITY_READ, cap, sizeof(cap)),
                         0);
        assert_int_equal(capability_verify(key, &id, CAPABILITY_WRITE, rw, sizeof(rw)),
                         0);
    }
    assert_int_equal(capability_verify(key, &id, CAPABILITY_WRITE, cap, sizeof(cap)),
                     -EACCES);
    assert_int_equal(capability_verify(key, &other, CAPABILITY_READ, cap, sizeof(cap)),
                     -EACCES);
    assert_int_equal(capability_verify(stranger, &id, CAPABILITY_READ, cap, sizeof(cap)),
                     -EACCES);
    assert_int_equal(capability_verify(renewed, &id, CAPABILITY_READ, cap, sizeof(cap)),
                     -EACCES);
    assert_int_equal(capability_verify(key, &id, CAPABILITY_READ, cap, 23), -EACCES);
    assert_int_equal(capability_verify(key, &id, CAPABILITY_READ, NULL, 0), -EACCES);
    for (unsigned i = 0; i < sizeof(cap); i++) {
        cap[i] ^= 2;
        assert_int_equal(capability_verify(key, &id, CAPABILITY_READ, cap, sizeof(cap)),
                         -EACCES);
        cap[i] ^= 2;
    }
    capability_key_free(key);
    capability_key_free(stranger);
    capability_key_free(renewed);
    capability_key_free(NULL);
}

static void every_status_leads_back(void **state)
{
    const ProtobufCEnumDescriptor *d = &rozo__status__descriptor;

    (void)state;
    for (unsigned i = 0; i < d->n_values; i++) {
        int rc = status_to_errno((unsigned)d->values[i].value);

        assert_int_equal(status_from_errno(rc), d->values[i].value);
        assert_string_equal(status_name((unsigned)d->values[i].value), d->values[i].name);
    }
    assert_int_equal(status_to_errno(0), 0);
    assert_int_equal(status_to_errno(ROZO__STATUS__NO_SPACE), -ENOSPC);
    assert_int_equal(status_to_errno(60000), -EIO);
    assert_int_equal(status_from_errno(-EMEDIUMTYPE), ROZO__STATUS__IO_ERROR);
    assert_int_equal(status_from_errno(-EAGAIN), ROZO__STATUS__LOCKED);
    assert_string_equal(status_name(60000), "UNKNOWN");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_are_made_and_read),
        cmocka_unit_test(bad_key_files_are_refused),
        cmocka_unit_test(capabilities_fit_one_file_and_right),
        cmocka_unit_test(every_status_leads_back),
    };
    int rc;

    if (mkdtemp(dir) == NULL)
        return 1;
    snprintf(path, sizeof(path), "%s/key", dir);
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    rmdir(dir);
    return rc;
}
