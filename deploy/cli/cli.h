/*
 * cli.h - what the verbs of `rozo` share: the table of verbs, exit statuses, complaints, JSON.
 */
#ifndef ROZO_DEPLOY_CLI_CLI_H
#define ROZO_DEPLOY_CLI_CLI_H

#include <argp.h>
#include <jansson.h>
#include <stdint.h>

#include "common/base/err.h"

/* Exit status of every verb. */
enum { CLI_DONE = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

/* One run of the program. */
struct cli {
    char verb[64]; /* "rozo storage add", for complaints and usage */
};

/* A verb, or with `subs` a group of verbs; a table ends with a zero name. */
struct cli_verb {
    const char *name;
    const char *summary;                                /* one line of `rozo --help` */
    int (*run)(struct cli *cli, int argc, char **argv); /* argv[0] is cli->verb */
    const struct cli_verb *subs;
};

/** Find the verb of argv in the table and run it. Returns the exit status. */
int cli_dispatch(struct cli *cli, const struct cli_verb *verbs, const char *doc, int argc,
                 char **argv);

/** argp_parse() with our exit status for wrong usage (it exits for --help and on errors). */
void cli_parse(const struct argp *argp, int argc, char **argv, void *input);

/** Complain on stderr, "rozo storage add: ...". Returns CLI_FAILED. */
int cli_fail(const struct cli *cli, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/** The same for wrong arguments that argp cannot see. Returns CLI_USAGE. */
int cli_usage(const struct cli *cli, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/** A peer's text, which may hold anything: what is no UTF-8 becomes "?". */
json_t *cli_json_text(const char *text);
/** A path, which may be any bytes: when it is no UTF-8, those above 127 are written as \xNN. */
json_t *cli_json_path(const char *path);
/** Print as indented JSON and a newline; takes the reference. Returns the exit status. */
int cli_print_json(const struct cli *cli, json_t *json);
/** "90 s", "5 min", "3 h", "12 days". */
void cli_duration_text(uint64_t s, char *out, size_t size);
/** Flush stdout. Returns CLI_DONE, or complains (disk full, closed pipe) and CLI_FAILED. */
int cli_finish(const struct cli *cli);

/** A whole number min..max in decimal, nothing else. 0 or -EINVAL. */
int cli_number(const char *text, unsigned long min, unsigned long max,
               unsigned long *out);

/** The argument of an option as such a number; else argp_error(). */
unsigned long cli_number_arg(struct argp_state *state, const char *option,
                             const char *arg, unsigned long min, unsigned long max);

/** The same for the bytes of a block: 4096 or 8192. */
unsigned cli_block_arg(struct argp_state *state, const char *arg);

/* Of one storage, as the user named them. */
struct cli_addresses {
    char *all[16]; /* borrowed from argv */
    size_t n;
};
/** Add HOST:PORT[,HOST:PORT...], which is cut up in place; else argp_error(). */
void cli_addresses_arg(struct argp_state *state, char *arg, struct cli_addresses *out);

/**
 * Become another of our programs: the one beside us, else the one in PATH. argv[0] is its name. Returns
 * only when that failed; errno says why.
 */
void cli_exec(char **argv);

#endif
