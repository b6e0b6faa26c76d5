/*
 * test_config.c - config files: valid ones are loaded; for invalid ones the error names
 * the line.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/unit/common/config_sample.h"
#include "tests/unit/unit.h"

static const char good[] = "name: s1\n"
                           "port: 4711\n"
                           "offset: -5\n"
                           "sync: yes\n"
                           "mode: slow\n"
                           "ratio: 0.5\n"
                           "listen: [\"127.0.0.1:1\", \"127.0.0.1:2\"]\n"
                           "devices:\n"
                           "  - path: /a\n"
                           "    weight: 3\n"
                           "  - path: /b\n"
                           "log: {level: warn}\n";

static void good_files_are_loaded(void **state)
{
    struct sample *s = NULL;
    struct err err = { 0 };

    (void)state;
    if (config_parse("x", good, strlen(good), &sample_schema, (void **)&s, &err) != 0)
        fail_msg("%s", err.text);
    assert_string_equal(s->name, "s1");
    assert_int_equal(s->port, 4711);
    assert_int_equal(s->offset, -5);
    assert_true(s->sync);
    assert_int_equal(s->mode, 2);
    assert_true(s->ratio == 0.5);
    assert_int_equal(s->listen_count, 2);
    assert_string_equal(s->listen[1], "127.0.0.1:2");
    assert_int_equal(s->devices_count, 2);
    assert_int_equal(s->devices[0].weight, 3);
    assert_non_null(s->log.level);
    assert_int_equal(*s->log.level, LOG_LEVEL_WARN);
    config_free(&sample_schema, s);
    config_free(&sample_schema, NULL);
}

static void wrong_files_are_named_with_line_and_key(void **state)
{
    static const struct {
        const char *text, *expected;
    } cases[] = {
        { "name: a\nport: 1\nlisen: [a]\n",
          "x:3: lisen: no such key here; known: name, port, offset, sync, mode, ratio, "
          "listen, devices, log" },
        { "name: a\nport: 1\nlisten: [a]\nlog:\n  level: loud\n",
          "x:5: level: expected one of error, warn, info, debug, found \"loud\"" },
        { "name: a\nport: 1\nlisten: [a]\nlog: {level: }\n",
          "x:4: level: expected one of error, warn, info, debug, found \"\"" },
        { "name: a\nport: 5x\nlisten: [a]\n",
          "x:2: port: expected a whole number, 0 or more, found \"5x\"" },
        { "name: a\nport: -1\nlisten: [a]\n",
          "x:2: port: expected a whole number, 0 or more, found \"-1\"" },
        { "name: a\nport:\nlisten: [a]\n",
          "x:2: port: expected a whole number, 0 or more, found \"\"" },
        { "name: a\nlisten: [a]\n", "x:1: the key \"port\" is missing" },
        { "name: a\nport: 1\nlisten: a\n",
          "x:3: listen: expected a list, found a single value" },
        { "name: a\nport: 1\nlisten: []\n",
          "x:3: listen: expected 1 to 4 entries, found 0" },
        { "name: [a]\nport: 1\nlisten: [a]\n",
          "x:1: name: expected a single value, found a list" },
        { "name: a\nport: 1\nlisten: [a]\nsync: maybe\n",
          "x:4: sync: expected true or false, found \"maybe\"" },
        { "name: a\nport: 1\nlisten: [a]\nmode: 2\n",
          "x:4: mode: expected one of fast, slow, found \"2\"" },
        { "name: a\nport: 1\nlisten: [a]\ndevices:\n - path: /a\n - weight: 2\n",
          "x:6: devices: the key \"path\" is missing" },
        { "name: a\nport: 1\nlisten: [a]\ndevices:\n - path: /a\n   wait: 2\n",
          "x:6: wait: no such key here; known: path, weight" },
        { "name: a\nname: b\nport: 1\nlisten: [a]\n",
          "x:2: name: this key is here twice" },
        { "name: abcdefghijklmnopq\nport: 1\nlisten: [a]\n",
          "x:1: name: expected 1 to 16 characters, found 17" },
        { "- a\n", "x:1: expected keys with values, found a list" },
        { "", "x:1: the file is empty" },
        { "# nothing\n", "x:1: the file is empty" },
    };
    struct err err;

    (void)state;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        void *out = &err;

        err.text[0] = '\0';
        assert_int_equal(config_parse("x", cases[i].text, strlen(cases[i].text),
                                      &sample_schema, &out, &err),
                         -EINVAL);
        assert_string_equal(err.text, cases[i].expected);
        assert_ptr_equal(out, &err);
    }
}

static void what_libcyaml_says_is_passed_on(void **state)
{
    static const struct {
        const char *text, *part;
    } cases[] = {
        /* does not fit into 16 bits */
        { "name: a\nport: 70000\nlisten: [a]\n", "70000" },
        { "name: &n a\nport: 1\nlisten: [*n]\n", "x: " }, /* aliases are refused */
        { "name: a\n\tport: 1\n", "x:2: not YAML" },
    };
    struct err err = { 0 };
    void *out;

    (void)state;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(config_parse("x", cases[i].text, strlen(cases[i].text),
                                      &sample_schema, &out, &err),
                         -EINVAL);
        assert_non_null(strstr(err.text, cases[i].part));
    }
}

static void files_are_read_with_care(void **state)
{
    char path[] = "/tmp/rozo-config-XXXXXX";
    int fd = mkstemp(path);
    struct sample *s = NULL;
    struct err err = { 0 };

    (void)state;
    assert_int_equal(write(fd, good, strlen(good)), strlen(good));
    assert_int_equal(config_load(path, &sample_schema, (void **)&s, &err), 0);
    config_free(&sample_schema, s);
    assert_int_equal(ftruncate(fd, CONFIG_FILE_MAX + 1), 0);
    assert_int_equal(config_load(path, &sample_schema, (void **)&s, &err), -EFBIG);
    close(fd);
    unlink(path);
    assert_int_equal(config_load(path, &sample_schema, (void **)&s, &err), -ENOENT);
    assert_non_null(strstr(err.text, path));
    assert_int_equal(config_load("/tmp", &sample_schema, (void **)&s, &err), -EISDIR);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_files_are_loaded),
        cmocka_unit_test(wrong_files_are_named_with_line_and_key),
        cmocka_unit_test(what_libcyaml_says_is_passed_on),
        cmocka_unit_test(files_are_read_with_care),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
