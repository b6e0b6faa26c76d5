/*
 * cli.c - the table of verbs, exit statuses, error messages, JSON.
 *
 * In:     argv, from main().
 * Out:    stdout for results, stderr for errors.
 * Keeps:  exit status 0 done, 1 failed, 2 wrong usage, for every verb.
 */
#include "deploy/cli/cli.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void verbs_print(FILE *to, const struct cli *cli, const struct cli_verb *verbs,
                        const char *doc)
{
    fprintf(to, "Usage: %s VERB [ARGUMENT...]\n%s\n\n", cli->verb, doc);
    for (const struct cli_verb *v = verbs; v->name != NULL; v++) {
        if (v->subs == NULL) {
            fprintf(to, "  %-16s %s\n", v->name, v->summary);
            continue;
        }
        for (const struct cli_verb *sub = v->subs; sub->name != NULL; sub++) {
            char name[64];

            snprintf(name, sizeof(name), "%s %s", v->name, sub->name);
            fprintf(to, "  %-16s %s\n", name, sub->summary);
        }
    }
    fprintf(to,
            "\nEvery verb has --help. Exit status: 0 done, 1 failed, 2 wrong usage.\n");
}

int cli_dispatch(struct cli *cli, const struct cli_verb *verbs, const char *doc, int argc,
                 char **argv)
{
    size_t len = strlen(cli->verb);
    const struct cli_verb *v = verbs;

    if (argc < 2) {
        verbs_print(stderr, cli, verbs, doc);
        return CLI_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-?") == 0 ||
        strcmp(argv[1], "-h") == 0) {
        verbs_print(stdout, cli, verbs, doc);
        return cli_finish(cli);
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("rozo %s\n", ROZO_VERSION);
        return cli_finish(cli);
    }
    while (v->name != NULL && strcmp(v->name, argv[1]) != 0)
        v++;
    if (v->name == NULL)
        return cli_usage(cli, "there is no verb '%s'", argv[1]);
    snprintf(cli->verb + len, sizeof(cli->verb) - len, " %s", v->name);
    if (v->subs != NULL)
        return cli_dispatch(cli, v->subs, v->summary, argc - 1, argv + 1);
    argv[1] = cli->verb;
    return v->run(cli, argc - 1, argv + 1);
}

static void complain(const struct cli *cli, const char *fmt, va_list ap)
{
    fflush(stdout);
    fprintf(stderr, "%s: ", cli->verb);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
}

int cli_fail(const struct cli *cli, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    complain(cli, fmt, ap);
    va_end(ap);
    return CLI_FAILED;
}

int cli_usage(const struct cli *cli, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    complain(cli, fmt, ap);
    va_end(ap);
    fprintf(stderr, "Try '%s --help'.\n", cli->verb);
    return CLI_USAGE;
}

int cli_print_json(const struct cli *cli, json_t *json)
{
    int rc = json == NULL ? -1 : json_dumpf(json, stdout, JSON_INDENT(2));

    json_decref(json); /* NULL is fine */
    if (rc != 0)
        return cli_fail(cli, "cannot print the answer: %s",
                        json == NULL ? "out of memory" : strerror(errno));
    putchar('\n');
    return cli_finish(cli);
}

int cli_finish(const struct cli *cli)
{
    if (fflush(stdout) != 0 || ferror(stdout))
        return cli_fail(cli, "cannot write to standard output: %s", strerror(errno));
    return CLI_DONE;
}

void cli_names_arg(struct argp_state *state, char *text, void *to)
{
    if (strcmp(text, "posix") != 0 && strcmp(text, "fold") != 0)
        argp_error(state, "--names is posix or fold, not '%s'", text);
    *(bool *)to = text[0] == 'f';
}

void cli_block_arg(struct argp_state *state, char *text, void *to)
{
    if (strcmp(text, "4096") != 0 && strcmp(text, "8192") != 0)
        argp_error(state, "--block-bytes is 4096 or 8192, not '%s'", text);
    *(unsigned *)to = text[0] == '4' ? 4096 : 8192;
}

void cli_addresses_arg(struct argp_state *state, char *text, void *to)
{
    struct cli_addresses *out = to;
    const size_t n_max = sizeof(out->all) / sizeof(out->all[0]);

    if (text[strspn(text, ",")] == '\0')
        argp_error(state, "'%s' is no address; say HOST:PORT", text);
    for (char *save, *word = strtok_r(text, ",", &save); word != NULL;
         word = strtok_r(NULL, ",", &save)) {
        if (out->n == n_max)
            argp_error(state, "a storage has at most %zu addresses", n_max);
        if (strchr(word, ':') == NULL)
            argp_error(state, "'%s' has no port; say HOST:PORT", word);
        out->all[out->n++] = word;
    }
}

json_t *cli_json_text(const char *text)
{
    json_t *json = json_string(text);

    return json != NULL ? json : json_string("?");
}

json_t *cli_json_path(const char *path)
{
    json_t *json = json_string(path);
    char *text;

    if (json != NULL)
        return json;
    text = calloc(4, strlen(path) + 1);
    for (size_t len = 0; text != NULL && *path != '\0'; path++) {
        unsigned char byte = (unsigned char)*path;

        if (byte < 128)
            text[len++] = (char)byte;
        else
            len += (size_t)sprintf(text + len, "\\x%02x", byte);
    }
    json = json_string(text == NULL ? "?" : text);
    free(text);
    return json;
}

void cli_duration_text(uint64_t s, char *out, size_t size)
{
    if (s < 120)
        snprintf(out, size, "%llu s", (unsigned long long)s);
    else if (s < 2 * 3600)
        snprintf(out, size, "%llu min", (unsigned long long)(s / 60));
    else if (s < 2 * 86400)
        snprintf(out, size, "%llu h", (unsigned long long)(s / 3600));
    else
        snprintf(out, size, "%llu days", (unsigned long long)(s / 86400));
}

void cli_exec(char **argv)
{
    static const char *const places[] = { "", "/../sbin", "/../bin" };
    char self[PATH_MAX], path[PATH_MAX + 64];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

    if (n > 0) {
        self[n] = '\0';
        *strrchr(self, '/') = '\0';
        for (unsigned i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
            snprintf(path, sizeof(path), "%s%s/%s", self, places[i], argv[0]);
            if (access(path, X_OK) == 0)
                execv(path, argv);
        }
    }
    execvp(argv[0], argv);
}
