/*
 * cli.h - shared by all verbs of `rozo`: the table of verbs, exit statuses, error
 * messages, JSON.
 */
#ifndef ROZO_DEPLOY_CLI_CLI_H
#define ROZO_DEPLOY_CLI_CLI_H

#include <jansson.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/config/args.h"

/* Exit status of every verb. */
enum { CLI_DONE = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

/* One run of the program. */
struct cli {
    char verb[64]; /* "rozo storage add", for error messages and usage */
};

/* A verb, or with `subs` a group of verbs; a table ends with a zero name. */
struct cli_verb {
    const char *name;
    const char *summary;                                /* one line of `rozo --help` */
    int (*run)(struct cli *cli, int argc, char **argv); /* argv[0] is cli->verb */
    const struct cli_verb *subs;
};

/** Finds the verb of argv in the table and runs it. Returns the exit status. */
int cli_dispatch(struct cli *cli, const struct cli_verb *verbs, const char *doc, int argc,
                 char **argv);

/** Prints an error on stderr, "rozo storage add: ...". Returns CLI_FAILED. */
int cli_fail(const struct cli *cli, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/** Prints an error about wrong arguments that argp cannot see. Returns CLI_USAGE. */
int cli_usage(const struct cli *cli, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/** Converts a peer's text, which may hold any bytes: invalid UTF-8 becomes "?". */
json_t *cli_json_text(const char *text);
/**
 * Converts a path, which may hold any bytes: in invalid UTF-8, those above 127 are
 * written as \xNN.
 */
json_t *cli_json_path(const char *path);
/** Prints indented JSON and a newline; takes the reference. Returns the exit status. */
int cli_print_json(const struct cli *cli, json_t *json);
/** Writes a duration: "90 s", "5 min", "3 h", "12 days". */
void cli_duration_text(uint64_t s, char *out, size_t size);
/**
 * Flushes stdout. Returns CLI_DONE; or prints an error (disk full, closed pipe) and
 * returns CLI_FAILED.
 */
int cli_finish(const struct cli *cli);

/** Parses the bytes of a block, 4096 or 8192, into an unsigned. An args_take_fn. */
void cli_block_arg(struct argp_state *state, char *text, void *to);

/** Parses the rules of an export's names, posix or fold, into a bool: fold. An
 * args_take_fn. */
void cli_names_arg(struct argp_state *state, char *text, void *to);

/* Addresses of one storage, as the user named them. */
struct cli_addresses {
    char *all[16]; /* borrowed from argv */
    size_t n;
};
/**
 * Adds HOST:PORT[,HOST:PORT...], which is cut up in place, to struct cli_addresses. An
 * args_take_fn.
 */
void cli_addresses_arg(struct argp_state *state, char *text, void *to);

/**
 * Replaces this program by another of ours: the one beside it, else the one in PATH.
 * argv[0] is its name. Returns only on failure, with errno set.
 */
void cli_exec(char **argv);

#endif
