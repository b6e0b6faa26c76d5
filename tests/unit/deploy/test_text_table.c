/* test_text_table.c - tables fit 80 columns; numbers are easy to read. */
#include <stdio.h>
#include <stdlib.h>

#include "deploy/cli/text_table.h"
#include "tests/unit/unit.h"

static char *printed(const struct text_table *t)
{
    char *text = NULL;
    size_t len = 0;
    FILE *to = open_memstream(&text, &len);

    assert_non_null(to);
    text_table_print(t, to);
    fclose(to);
    return text;
}

static void columns_are_aligned(void **state)
{
    static const char *const heads[] = { "NAME", ">PID", "WHERE" };
    struct text_table t;
    char *text;

    (void)state;
    text_table_init(&t, heads, 3);
    text_table_cell(&t, "exportd");
    text_table_cell(&t, "%d", 7);
    text_table_cell(&t, "here");
    text_table_cell(&t, "x");
    text_table_cell(&t, "%d", 12345);
    text_table_cell(&t, "a\nb");
    text = printed(&t);
    assert_string_equal(text, "NAME       PID  WHERE\n"
                              "exportd      7  here\n"
                              "x        12345  a?b\n");
    free(text);
    text_table_free(&t);
}

static void last_column_wraps_at_commas(void **state)
{
    static const char *const heads[] = { "NAME", "ADDRESSES" };
    struct text_table t;
    char *text;

    (void)state;
    text_table_init(&t, heads, 2);
    text_table_cell(&t, "storaged-1");
    text_table_cell(&t,
                    "127.0.0.1:20001, 127.0.0.1:20002, 127.0.0.1:20003, 127.0.0.1:20004, "
                    "127.0.0.1:20005");
    text_table_cell(&t, "storaged-2");
    text_table_cell(
        &t, "one-word-that-is-much-longer-than-a-line-of-a-terminal-has-columns-left-for-"
            "it-so-it-stands");
    text = printed(&t);
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        if (strstr(line, "one-word") == NULL)
            assert_true(strlen(line) <= TABLE_WIDTH_MAX);
    }
    free(text);
    text = printed(&t);
    assert_non_null(strstr(text, "\n            127.0.0.1:20005\n"));
    free(text);
    text_table_free(&t);
}

/* A row of any length is printed in full, and no line is wider than a terminal. */
static void a_wide_row_has_its_last_column_below(void **state)
{
    static const char *const heads[] = { ">ID", "HOST", "VOLUME", "ADDRESSES" };
    char many[2000] = "";
    struct text_table t;
    char *text;

    (void)state;
    for (unsigned i = 0; i < 80; i++)
        sprintf(many + strlen(many), "%s10.0.0.%u:20001", i == 0 ? "" : ", ", 100 + i);
    text_table_init(&t, heads, 4);
    text_table_cell(&t, "%d", 1);
    text_table_cell(&t, "a-host-with-a-name-of-forty-characters--");
    text_table_cell(&t, "a-volume-with-a-long-name");
    text_table_cell(&t, "%s", many);
    text = printed(&t);
    assert_non_null(strstr(text, "10.0.0.179:20001\n"));
    assert_non_null(strstr(text, "long-name\n    10.0.0.100:20001, 10"));
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n"))
        assert_true(strlen(line) <= TABLE_WIDTH_MAX);
    free(text);
    text_table_free(&t);
}

static void bytes_for_people(void **state)
{
    static const struct {
        uint64_t n_bytes;
        const char *text;
    } cases[] = {
        { 0, "0 B" },
        { 1023, "1023 B" },
        { 1024, "1.0 KiB" },
        { 10188, "9.9 KiB" },
        { 10240, "10 KiB" },
        { 1048575, "1.0 MiB" },
        { (uint64_t)118 << 30, "118 GiB" },
        { UINT64_MAX, "16 EiB" },
    };
    char text[HUMAN_BYTES_TEXT];

    (void)state;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_string_equal(human_bytes(text, cases[i].n_bytes), cases[i].text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(columns_are_aligned),
        cmocka_unit_test(last_column_wraps_at_commas),
        cmocka_unit_test(a_wide_row_has_its_last_column_below),
        cmocka_unit_test(bytes_for_people),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
