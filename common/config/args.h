/*
 * args.h - command lines: a table of options and arguments says where their values go.
 *
 * argp does the work and adds --help, --usage and --version. Wrong usage ends the program
 * with an error message and status ARGS_WRONG.
 */
#ifndef ROZO_COMMON_CONFIG_ARGS_H
#define ROZO_COMMON_CONFIG_ARGS_H

#include <argp.h>
#include <stdbool.h>
#include <stddef.h>

enum { ARGS_WRONG = 2, ARGS_MAX = 40 /* options and arguments of a program */ };

enum args_type {
    ARGS_IS_FLAG,   /* bool, becomes true */
    ARGS_IS_TEXT,   /* const char *, borrowed from argv */
    ARGS_IS_NEEDED, /* text of an option that must be given, and not empty */
    ARGS_IS_NUMBER, /* unsigned, min to max */
    ARGS_IS_LONG,   /* unsigned long, min to max */
    ARGS_IS_LIST,   /* struct args_list, of an argument with "..." */
    ARGS_IS_CALL,   /* any type: take() parses the value */
};

struct args_list {
    char **all; /* borrowed from argv */
    unsigned n;
};

/* Parses the value of an option or an argument; calls argp_error() if it is wrong. */
typedef void args_take_fn(struct argp_state *state, char *text, void *to);

/* One option, or without a name one argument; an argument takes all that follow when its
 * value contains "...". A table ends with { 0 }. */
struct args_option {
    const char *name;  /* --name */
    int letter;        /* -l; 0: none */
    const char *value; /* as --help names it; NULL: the option has none */
    const char *doc;   /* an argument: printed when it is missing, if not NULL */
    enum args_type type;
    size_t at; /* offset in the program's own struct */
    unsigned long min, max;
    args_take_fn *take;
    bool optional; /* the argument, or the value of the option, may be absent */
};

/* The end of an entry: member m of struct s, whose type is checked, has the value. */
#define ARGS_FLAG(s, m)   .type = ARGS_IS_FLAG, .at = ARGS_AT_(s, m, bool)
#define ARGS_TEXT(s, m)   .type = ARGS_IS_TEXT, .at = ARGS_AT_(s, m, const char *)
#define ARGS_NEEDED(s, m) .type = ARGS_IS_NEEDED, .at = ARGS_AT_(s, m, const char *)
#define ARGS_LIST(s, m)   .type = ARGS_IS_LIST, .at = ARGS_AT_(s, m, struct args_list)
#define ARGS_CALL(s, m, function) \
    .type = ARGS_IS_CALL, .at = offsetof(s, m), .take = (function)
#define ARGS_NUMBER(s, m, from, to)                                                   \
    .type =                                                                           \
        _Generic(((s *)0)->m, unsigned: ARGS_IS_NUMBER, unsigned long: ARGS_IS_LONG), \
    .at = offsetof(s, m), .min = (from), .max = (to)
#define ARGS_AT_(s, m, t) offsetof(s, m) + _Generic(((s *)0)->m, t: 0)

/* The command line of a program. The first of the children gets the program's struct. */
struct args_syntax {
    const struct args_option *options; /* with the arguments, in their order */
    const char *doc;
    const struct argp_child *children;                   /* NULL: none */
    void (*check)(struct argp_state *state, void *args); /* NULL: none */
};

/** Parses argv into the program's own struct. */
void args_parse(const struct args_syntax *syntax, int argc, char **argv, void *args);

/** Parses a whole decimal number min..max; otherwise calls argp_error() about `what`. */
unsigned long args_number(struct argp_state *state, const char *what, const char *text,
                          unsigned long min, unsigned long max);

#endif
