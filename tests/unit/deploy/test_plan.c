/*
 * test_plan.c - cluster.json: a printed plan parses back; an invalid one is refused with
 * an explanation.
 */
#include <stdio.h>
#include <stdlib.h>

#include "deploy/dev/dev_config.h"
#include "deploy/dev/dev_plan.h"
#include "tests/unit/unit.h"

static struct dev_plan *plan_new(void)
{
    struct dev_plan *plan = calloc(1, sizeof(*plan));

    assert_non_null(plan);
    plan->created = true;
    plan->layout = 1;
    plan->n_storages = 8;
    plan->n_links = 2;
    plan->inline_max = 4096;
    plan->fold = true;
    plan->n_metas = 1;
    plan->meta_ports[0][0] = 20000;
    strcpy(plan->codec, "mojette");
    strcpy(plan->log_level, "debug");
    for (unsigned i = 0; i < plan->n_storages; i++) {
        plan->ports[i][0] = (uint16_t)(20001 + 2 * i);
        plan->ports[i][1] = (uint16_t)(20002 + 2 * i);
    }
    plan->n_mounts = 2;
    plan->mounts[0].number = 1;
    strcpy(plan->mounts[0].path, "/mnt/with \"quotes\" and \xc3\xa4");
    plan->mounts[1].number = 4;
    strcpy(plan->mounts[1].path, "/mnt/b");
    strcpy(plan->mounts[1].options, "loops=2,ro");
    return plan;
}

static void a_plan_comes_back(void **state)
{
    struct dev_plan *plan = plan_new(), *back = calloc(1, sizeof(*back));
    char *text = dev_plan_print(plan);
    struct err err = { 0 };

    (void)state;
    assert_non_null(text);
    assert_int_equal(dev_plan_parse(text, back, &err), 0);
    assert_memory_equal(plan, back, sizeof(*plan));
    free(text);
    free(plan);
    free(back);
}

static void a_mount_knows_its_io_timeout(void **state)
{
    static const struct {
        const char *options;
        uint32_t ms;
    } tries[] = {
        { "", 20000 },
        { "loops=2,ro", 20000 },
        { "io_timeout=3", 3000 },
        { "ro,io_timeout=0.5,loops=1", 500 },
        { "io_timeout=3,io_timeout=60", 60000 },
        { ",,io_timeout=7,", 7000 },
        { "xio_timeout=3,io_timeout", 20000 },
        { "io_timeout=", 20000 },
        { "io_timeout=-3", 20000 },
        { "io_timeout=3x", 20000 },
        { "io_timeout=1e9", 20000 },
        { "io_timeout=nan", 20000 },
    };
    struct dev_mount m;

    (void)state;
    for (unsigned i = 0; i < sizeof(tries) / sizeof(tries[0]); i++) {
        strcpy(m.options, tries[i].options);
        assert_int_equal(dev_mount_io_timeout_ms(&m), tries[i].ms);
    }
}

static void members_are_numbered_exportd_storages_mounts(void **state)
{
    struct dev_plan *plan = plan_new();
    char name[DEV_NAME_MAX];
    unsigned n;

    (void)state;
    assert_int_equal(dev_plan_members(plan), 11);
    dev_plan_name(plan, 0, name);
    assert_string_equal(name, "exportd");
    dev_plan_name(plan, 8, name);
    assert_string_equal(name, "storaged-8");
    dev_plan_name(plan, 10, name);
    assert_string_equal(name, "mount-4");
    assert_int_equal(dev_plan_ports(plan, 8, &n)[1], 20016);
    assert_int_equal(n, 2);
    assert_null(dev_plan_ports(plan, 9, &n));
    assert_int_equal(n, 0);
    free(plan);
}

static void quorum_add(struct dev_plan *plan)
{
    plan->n_metas = 3;
    strcpy(plan->birth, "0123456789abcdef0123456789abcdef");
    for (unsigned i = 0; i < 3; i++) {
        plan->meta_ports[i][0] = (uint16_t)(20000 + 100 * i);
        plan->meta_ports[i][1] = (uint16_t)(20050 + 100 * i);
    }
}

static void several_exportds_come_first(void **state)
{
    struct dev_plan *plan = plan_new(), *back = calloc(1, sizeof(*back));
    char name[DEV_NAME_MAX], list[DEV_EXPORTDS_TEXT], *text;
    struct err err = { 0 };
    unsigned n;

    (void)state;
    quorum_add(plan);
    assert_int_equal(dev_plan_members(plan), 13);
    dev_plan_name(plan, 2, name);
    assert_string_equal(name, "exportd-3");
    assert_true(dev_plan_is_exportd(plan, 2) && !dev_plan_is_exportd(plan, 3));
    dev_plan_name(plan, 3, name);
    assert_string_equal(name, "storaged-1");
    assert_int_equal(dev_plan_ports(plan, 1, &n)[1], 20150);
    assert_int_equal(n, 2);
    dev_plan_exportds(plan, list);
    assert_string_equal(list, "127.0.0.1:20000,127.0.0.1:20100,127.0.0.1:20200");
    text = dev_plan_print(plan);
    assert_int_equal(dev_plan_parse(text, back, &err), 0);
    assert_memory_equal(plan, back, sizeof(*plan));
    free(text);
    free(plan);
    free(back);
}

/* Returns a valid plan in which one text is replaced by another. */
static char *spoilt(const char *from, const char *to)
{
    struct dev_plan *plan = plan_new();
    char *text, *at, *out = NULL;

    quorum_add(plan);
    text = dev_plan_print(plan);
    at = strstr(text, from);
    assert_non_null(at);
    assert_true(
        asprintf(&out, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from)) > 0);
    free(text);
    free(plan);
    return out;
}

static void what_is_wrong_is_refused(void **state)
{
    static const struct {
        const char *from, *to, *words;
    } cases[] = {
        { "{", "", "line 2" },
        { "\"format\": 1", "\"format\": 2", "format 2, this build knows 1" },
        { "\"format\": 1", "\"format\": \"1\"", "" },
        { "\"layout\": 1", "\"layout\": 3", "out of range" },
        { "\"layout\": 1", "\"layout\": -4294967296", "out of range" },
        { "\"links\": 2", "\"links\": 0", "out of range" },
        { "\"inline_max\": 4096", "\"inline_max\": 65537", "out of range" },
        { "\"inline_max\": 4096", "\"inline_max\": -1", "out of range" },
        { "\"names\": \"fold\"", "\"names\": \"ntfs\"", "out of range" },
        { "\"links\": 2", "\"links\": 3", "storage_ports" },
        { "\"links\": 2", "\"links\": 900", "out of range" },
        { "\"mojette\"", "\"nojette\"", "out of range" },
        { "\"mojette\"", "\"moj\\u0000ette\"", "" },
        { "20001", "0", "storage_ports" },
        { "20001", "65536", "storage_ports" },
        { "20000", "\"x\"", "out of range" },
        { "\"number\": 4", "\"number\": 0", "mounts" },
        { "\"/mnt/b\"", "\"mnt/b\"", "mounts" },
        { "\"created\": true", "\"created\": 1", "" },
        { "20050", "0", "quorum" },
        { "20050", "20050, 1", "quorum" },
        { "abcdef0123", "abcdef012", "quorum" },
        { "abcdef0123", "ABCDEF0123", "quorum" },
        { "\"ports\"", "\"port\"", "quorum" },
    };

    (void)state;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct dev_plan *plan = calloc(1, sizeof(*plan));
        char *text = spoilt(cases[i].from, cases[i].to);
        struct err err = { 0 };

        assert_true(dev_plan_parse(text, plan, &err) < 0);
        assert_true(err.text[0] != '\0');
        if (strstr(err.text, cases[i].words) == NULL)
            fail_msg("case %u says: %s", i, err.text);
        free(text);
        free(plan);
    }
}

/* Goal: I8. Method: every prefix of a valid plan, and every byte of it changed. */
static void damaged_text_never_gives_a_plan_out_of_bounds(void **state)
{
    struct dev_plan *plan = plan_new(), *back = calloc(1, sizeof(*back));
    char *text;
    size_t len;

    (void)state;
    quorum_add(plan);
    text = dev_plan_print(plan);
    len = strlen(text);
    for (size_t i = 0; i < 2 * len; i++) {
        char was = text[i / 2];

        text[i / 2] = i % 2 == 0 ? '\0' : (char)('0' + i % 10);
        memset(back, 0, sizeof(*back));
        if (dev_plan_parse(text, back, NULL) == 0) {
            assert_in_range(back->n_storages, 1, DEV_STORAGES_MAX);
            assert_in_range(back->n_links, 1, DEV_LINKS_MAX);
            assert_in_range(back->n_mounts, 0, DEV_MOUNTS_MAX);
            assert_in_range(back->layout, 0, 2);
            assert_in_range(back->n_metas, 1, DEV_METAS_MAX);
        }
        text[i / 2] = was;
    }
    free(text);
    free(plan);
    free(back);
}

static void yaml_quoting(void **state)
{
    char out[64];

    (void)state;
    assert_int_equal(yaml_quote("/a b/\"c\\\n", out, sizeof(out)), 0);
    assert_string_equal(out, "\"/a b/\\\"c\\\\\\x0a\"");
    assert_true(yaml_quote("a long text", out, 8) < 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_comes_back),
        cmocka_unit_test(a_mount_knows_its_io_timeout),
        cmocka_unit_test(members_are_numbered_exportd_storages_mounts),
        cmocka_unit_test(several_exportds_come_first),
        cmocka_unit_test(what_is_wrong_is_refused),
        cmocka_unit_test(damaged_text_never_gives_a_plan_out_of_bounds),
        cmocka_unit_test(yaml_quoting),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
