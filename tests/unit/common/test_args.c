/* test_args.c - command lines: where values go, and the errors of wrong usage. */
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/config/args.h"
#include "tests/unit/unit.h"

struct values {
    bool force;
    const char *name, *dir;
    unsigned count;
    unsigned long big;
    unsigned n_calls;
    const char *first;
    struct args_list others;
};

static void count_arg(struct argp_state *state, char *text, void *to)
{
    (void)text;
    if (++*(unsigned *)to > 2)
        argp_error(state, "more than 2 --call");
}

static void check(struct argp_state *state, void *arg)
{
    const struct values *v = arg;

    if (v->force && v->name != NULL)
        argp_error(state, "--name is not for --force");
}

static const struct args_option options[] = {
    { "force", 'f', NULL, "a flag", ARGS_FLAG(struct values, force) },
    { "name", 0, "NAME", "a text", ARGS_TEXT(struct values, name) },
    { "dir", 'd', "DIR", "a text that is needed", ARGS_NEEDED(struct values, dir) },
    { "count", 'c', "N", "a number", ARGS_NUMBER(struct values, count, 2, 10) },
    { "big", 0, "N", "any number", ARGS_NUMBER(struct values, big, 0, UINT64_MAX) },
    { "call", 0, "WORD", "is counted", ARGS_CALL(struct values, n_calls, count_arg),
      .optional = true },
    { NULL, 0, "FIRST", "the first one", ARGS_TEXT(struct values, first) },
    { NULL, 0, "[OTHER...]", NULL, ARGS_LIST(struct values, others), .optional = true },
    { 0 },
};
static const struct args_syntax syntax = { .options = options,
                                           .doc = "A program.",
                                           .check = check };

/* Cuts a line into words, at spaces, and parses them. */
static struct values parse(const char *text)
{
    static char line[256], *argv[32];
    struct values v = { .count = 5 };
    int argc = 0;

    snprintf(line, sizeof(line), "prog %s", text);
    for (char *save, *word = strtok_r(line, " ", &save); word != NULL;
         word = strtok_r(NULL, " ", &save))
        argv[argc++] = strcmp(word, "''") == 0 ? word + 2 : word;
    argv[argc] = NULL;
    args_parse(&syntax, argc, argv, &v);
    return v;
}

static void values_go_where_the_table_says(void **state)
{
    struct values v = parse("-d x a");

    (void)state;
    assert_string_equal(v.dir, "x");
    assert_string_equal(v.first, "a");
    assert_true(!v.force && v.name == NULL && v.count == 5 && v.others.n == 0);

    v = parse(
        "a --call b --name=n -d x --big 18446744073709551615 c --call=w -c 10 -- -f");
    assert_string_equal(v.first, "a");
    assert_string_equal(v.name, "n");
    assert_true(v.big == UINT64_MAX && v.count == 10 && v.n_calls == 2 && !v.force);
    assert_int_equal(v.others.n, 3);
    assert_string_equal(v.others.all[0], "b");
    assert_string_equal(v.others.all[1], "c");
    assert_string_equal(v.others.all[2], "-f");
    assert_true(parse("-fd x a").force);
}

/* Returns the exit status of parse() in a child process, and its error messages. */
static int status_of(const char *text, char *out, size_t size)
{
    int ends[2], status;
    size_t len = 0;
    ssize_t n;
    pid_t pid;

    assert_int_equal(pipe(ends), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        parse(text);
        _exit(0);
    }
    close(ends[1]);
    while ((n = read(ends[0], out + len, size - 1 - len)) > 0)
        len += (size_t)n;
    out[len] = '\0';
    close(ends[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void wrong_usage_ends_the_program(void **state)
{
    static const struct {
        const char *line, *error;
    } wrong[] = {
        { "-d x", "FIRST is missing: the first one" },
        { "-d x ''", "FIRST is empty" },
        { "a", "--dir DIR is needed" },
        { "a -d ''", "--dir DIR is needed" },
        { "a -d x -c 1", "--count wants a number from 2 to 10, not '1'" },
        { "a -d x -c 11", "not '11'" },
        { "a -d x -c 5x", "not '5x'" },
        { "a -d x -c ''", "not ''" },
        { "a -d x -c -5", "not '-5'" },
        { "a -d x --big 18446744073709551616", "not '18446744073709551616'" },
        { "a -d x --call --call --call", "more than 2 --call" },
        { "a -d x -f --name n", "--name is not for --force" },
        { "a -d x --nonsense", "nonsense" },
    };
    char text[1024];

    (void)state;
    assert_int_equal(status_of("-d x a", text, sizeof(text)), 0);
    assert_string_equal(text, "");
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_int_equal(status_of(wrong[i].line, text, sizeof(text)), ARGS_WRONG);
        if (strstr(text, wrong[i].error) == NULL)
            fail_msg("%s: %s", wrong[i].line, text);
    }
}

static void arguments_end_where_no_table_entry_takes_them(void **state)
{
    static const struct args_option none[] = { { 0 } };
    static const struct args_syntax empty = { .options = none, .doc = "A program." };
    char program[] = "prog", *argv[] = { program, program, NULL };
    int status;
    pid_t pid;

    (void)state;
    args_parse(&empty, 1, argv, NULL);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        close(STDERR_FILENO);
        args_parse(&empty, 2, argv, NULL);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == ARGS_WRONG);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_go_where_the_table_says),
        cmocka_unit_test(wrong_usage_ends_the_program),
        cmocka_unit_test(arguments_end_where_no_table_entry_takes_them),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
