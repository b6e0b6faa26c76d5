/*
 * test_nfs.c - the gateway of NFS: when its mount has ended, its unit, its ganesha.conf.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "deploy/ganesha/nfs_gateway.h"
#include "tests/unit/unit.h"

static void only_a_mount_that_has_ended_stops_the_gateway(void **state)
{
    static const int ended[] = { ENOTCONN, ECONNABORTED, ENOENT, EXDEV, ENODATA };
    static const int lives[] = {
        0, EIO, ETIMEDOUT, EINTR, EACCES, ENOMEM, EMFILE, ESTALE
    };

    (void)state;
    for (unsigned i = 0; i < sizeof(ended) / sizeof(ended[0]); i++)
        assert_true(nfs_mount_has_ended(-ended[i]));
    for (unsigned i = 0; i < sizeof(lives) / sizeof(lives[0]); i++)
        assert_false(nfs_mount_has_ended(-lives[i]));
}

/* Expected names are those of `systemd-escape --path --suffix=mount`. */
static void mount_units_have_the_names_that_systemd_gives(void **state)
{
    static const struct {
        const char *path, *unit;
    } cases[] = {
        { "/srv/main", "Requires=srv-main.mount\n" },
        { "/", "Requires=-.mount\n" },
        { "/a-b/c.d", "Requires=a\\x2db-c.d.mount\n" },
        { "/.hid/e f", "Requires=\\x2ehid-e\\x20f.mount\n" },
        { "/\xc3\xa9_:", "Requires=\\xc3\\xa9_:.mount\n" },
    };
    struct nfs_gateway *g = calloc(1, sizeof(*g));

    (void)state;
    assert_non_null(g);
    g->n_exports = 1;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char *text;

        snprintf(g->exports[0].mount, sizeof(g->exports[0].mount), "%s", cases[i].path);
        text = nfs_unit_text(g, "/usr/bin/rozo");
        assert_non_null(text);
        assert_non_null(strstr(text, cases[i].unit));
        assert_non_null(strstr(text, "\nExecStart=/usr/bin/rozo gateway run nfs\n"));
        free(text);
    }
    free(g);
}

static void the_fsid_of_clients_is_the_uuid(void **state)
{
    struct nfs_gateway *g = calloc(1, sizeof(*g));
    char *text;

    (void)state;
    assert_non_null(g);
    g->n_exports = 1;
    strcpy(g->exports[0].fsid, "00000000-0000-0001-ffff-ffffffffffff");
    text = nfs_config_text(g);
    assert_non_null(text);
    assert_non_null(strstr(text, "Filesystem_Id = 1.18446744073709551615;"));
    free(text);
    free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_a_mount_that_has_ended_stops_the_gateway),
        cmocka_unit_test(mount_units_have_the_names_that_systemd_gives),
        cmocka_unit_test(the_fsid_of_clients_is_the_uuid),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
