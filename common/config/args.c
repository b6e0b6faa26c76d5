/*
 * args.c - command lines: a table of options and arguments says where their values go.
 */
#include "common/config/args.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_FIRST = 256 /* option without a letter */ };

/* One call of args_parse(). */
struct args_parser {
    const struct args_syntax *syntax;
    char *args;                         /* the program's own struct */
    const struct args_option *argument; /* the next one; NULL: there are no more */
    bool is_repeated; /* argument has taken one and takes all that follow */
};

static bool is_end(const struct args_option *o)
{
    return o->name == NULL && o->value == NULL;
}

static int key_of(const struct args_parser *p, const struct args_option *o)
{
    return o->letter != 0 ? o->letter : KEY_FIRST + (int)(o - p->syntax->options);
}

/* Returns the first argument at `o` or after it, or NULL. */
static const struct args_option *argument_from(const struct args_option *o)
{
    while (!is_end(o) && o->name != NULL)
        o++;
    return is_end(o) ? NULL : o;
}

unsigned long args_number(struct argp_state *state, const char *what, const char *text,
                          unsigned long min, unsigned long max)
{
    bool is_number = text[0] >= '0' && text[0] <= '9';
    char *end = NULL;
    unsigned long value;

    errno = 0;
    value = is_number ? strtoul(text, &end, 10) : 0;
    if (!is_number || errno != 0 || *end != '\0' || value < min || value > max)
        argp_error(state, "%s wants a number from %lu to %lu, not '%s'", what, min, max,
                   text);
    return value;
}

static unsigned long number(const struct args_option *o, const char *text,
                            struct argp_state *state)
{
    char what[64];

    snprintf(what, sizeof(what), "%s%s", o->name == NULL ? "" : "--",
             o->name == NULL ? o->value : o->name);
    return args_number(state, what, text, o->min, o->max);
}

static void list_add(struct args_list *list, struct argp_state *state)
{
    if (list->n++ == 0) /* argp has moved all arguments to the end of argv */
        list->all = &state->argv[state->next - 1];
}

static void value_take(const struct args_parser *p, const struct args_option *o,
                       char *text, struct argp_state *state)
{
    void *to = p->args + o->at;

    switch (o->type) {
    case ARGS_IS_FLAG:
        *(bool *)to = true;
        break;
    case ARGS_IS_TEXT:
    case ARGS_IS_NEEDED:
        if (o->name == NULL && text[0] == '\0')
            argp_error(state, "%s is empty", o->value);
        *(const char **)to = text;
        break;
    case ARGS_IS_NUMBER:
        *(unsigned *)to = (unsigned)number(o, text, state);
        break;
    case ARGS_IS_LONG:
        *(unsigned long *)to = number(o, text, state);
        break;
    case ARGS_IS_LIST:
        list_add(to, state);
        break;
    case ARGS_IS_CALL:
        o->take(state, text, to);
        break;
    }
}

static void argument_take(struct args_parser *p, char *text, struct argp_state *state)
{
    const struct args_option *o = p->argument;

    if (o == NULL)
        argp_error(state, "unexpected argument '%s'", text);
    value_take(p, o, text, state);
    p->is_repeated = strstr(o->value, "...") != NULL;
    if (!p->is_repeated)
        p->argument = argument_from(o + 1);
}

static bool is_lacking(const struct args_parser *p, const struct args_option *o)
{
    const char *text;

    if (o->type != ARGS_IS_NEEDED)
        return false;
    text = *(const char **)(p->args + o->at);
    return text == NULL || text[0] == '\0';
}

static void end(const struct args_parser *p, struct argp_state *state)
{
    const struct args_option *o = p->argument;

    if (o != NULL && !o->optional && !p->is_repeated)
        argp_error(state, "%.*s is missing%s%s", (int)strcspn(o->value, "[."), o->value,
                   o->doc == NULL ? "" : ": ", o->doc == NULL ? "" : o->doc);
    for (o = p->syntax->options; !is_end(o); o++) {
        if (is_lacking(p, o))
            argp_error(state, "--%s %s is needed", o->name, o->value);
    }
    if (p->syntax->check != NULL)
        p->syntax->check(state, p->args);
}

static error_t on_key(int key, char *text, struct argp_state *state)
{
    struct args_parser *p = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        if (p->syntax->children != NULL)
            state->child_inputs[0] = p->args;
        return 0;
    case ARGP_KEY_ARG:
        argument_take(p, text, state);
        return 0;
    case ARGP_KEY_END:
        end(p, state);
        return 0;
    default:
        for (const struct args_option *o = p->syntax->options; !is_end(o); o++) {
            if (o->name != NULL && key_of(p, o) == key) {
                value_take(p, o, text, state);
                return 0;
            }
        }
        return ARGP_ERR_UNKNOWN;
    }
}

void args_parse(const struct args_syntax *syntax, int argc, char **argv, void *args)
{
    struct argp_option options[ARGS_MAX + 1] = { 0 };
    char arguments[256] = "";
    size_t n = 0, len = 0;
    struct argp argp = { .options = options,
                         .parser = on_key,
                         .doc = syntax->doc,
                         .children = syntax->children };
    struct args_parser p = { .syntax = syntax,
                             .args = args,
                             .argument = argument_from(syntax->options) };

    for (const struct args_option *o = syntax->options; !is_end(o); o++) {
        assert(n < ARGS_MAX && len < sizeof(arguments));
        if (o->name != NULL)
            options[n++] = (struct argp_option){
                .name = o->name,
                .key = key_of(&p, o),
                .arg = o->value,
                .flags = o->optional ? OPTION_ARG_OPTIONAL : 0,
                .doc = o->doc,
            };
        else
            len += (size_t)snprintf(arguments + len, sizeof(arguments) - len, "%s%s",
                                    len == 0 ? "" : " ", o->value);
    }
    argp.args_doc = len == 0 ? NULL : arguments;
    argp_err_exit_status = ARGS_WRONG;
    if (argp_parse(&argp, argc, argv, 0, NULL, &p) != 0)
        exit(ARGS_WRONG); /* argp has printed why */
}
