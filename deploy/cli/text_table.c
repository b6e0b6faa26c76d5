/*
 * text_table.c - tables on a terminal, and numbers for people.
 */
#include "deploy/cli/text_table.h"

#include <assert.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static const char GAP[] = "  ";

enum {
    /* Columns that the last one needs beside the others; with less it goes below them. */
    LAST_MIN = 20,
    INDENT = 4,
};

static void cell_add(struct text_table *t, const char *text)
{
    char *copy = strdup(text);
    char **grown = realloc(t->cells, (t->n_cells + 1) * sizeof(*grown));

    /* Without memory for one line, there is nothing to print. */
    if (copy == NULL || grown == NULL)
        abort();
    for (char *p = copy; *p != '\0'; p++) {
        if ((unsigned char)*p < ' ' || *p == 0x7f)
            *p = '?';
    }
    t->cells = grown;
    t->cells[t->n_cells++] = copy;
}

void text_table_init(struct text_table *t, const char *const *heads, unsigned n_columns)
{
    assert(n_columns > 0 && n_columns <= TABLE_COLUMNS_MAX);
    memset(t, 0, sizeof(*t));
    t->n_columns = n_columns;
    for (unsigned i = 0; i < n_columns; i++) {
        t->right[i] = heads[i][0] == '>';
        cell_add(t, heads[i] + (t->right[i] ? 1 : 0));
    }
}

void text_table_cell(struct text_table *t, const char *fmt, ...)
{
    char *text;
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vasprintf(&text, fmt, ap);
    va_end(ap);
    if (n < 0)
        abort();
    cell_add(t, text);
    free(text);
}

/* Prints the last column, wrapped at commas to `width` and indented by `indent`. */
static void cell_print_wrapped(FILE *to, const char *text, size_t indent, size_t width)
{
    while (strlen(text) > width) {
        size_t cut = 0;

        for (size_t i = 0; text[i] != '\0' && (i < width || cut == 0); i++) {
            if (text[i] == ',')
                cut = i + 1;
        }
        if (cut == 0)
            break; /* one long word */
        fprintf(to, "%.*s\n%*s", (int)cut, text, (int)indent, "");
        text += cut;
        while (*text == ' ')
            text++;
    }
    fprintf(to, "%s\n", text);
}

void text_table_print(const struct text_table *t, FILE *to)
{
    size_t width[TABLE_COLUMNS_MAX] = { 0 };
    size_t before_last = 0, room;
    bool below;

    assert(t->n_cells % t->n_columns == 0);
    for (size_t i = 0; i < t->n_cells; i++) {
        size_t len = strlen(t->cells[i]);

        if (len > width[i % t->n_columns])
            width[i % t->n_columns] = len;
    }
    for (unsigned i = 0; i + 1 < t->n_columns; i++)
        before_last += width[i] + sizeof(GAP) - 1;
    room = before_last < TABLE_WIDTH_MAX ? TABLE_WIDTH_MAX - before_last : 0;
    below = room < LAST_MIN && room < width[t->n_columns - 1];
    if (below)
        room = TABLE_WIDTH_MAX - (before_last = INDENT);
    for (size_t i = 0; i < t->n_cells; i++) {
        unsigned column = i % t->n_columns;

        if (column + 1 == t->n_columns) {
            if (t->right[column] && width[column] <= room && !below)
                fprintf(to, "%*s\n", (int)width[column], t->cells[i]);
            else
                cell_print_wrapped(to, t->cells[i], before_last, room);
        } else {
            bool ends = below && column + 2 == t->n_columns;

            fprintf(to, t->right[column] ? "%*s" : "%-*s", (int)width[column],
                    t->cells[i]);
            if (ends)
                fprintf(to, "\n%*s", INDENT, "");
            else
                fputs(GAP, to);
        }
    }
}

void text_table_free(struct text_table *t)
{
    for (size_t i = 0; i < t->n_cells; i++)
        free(t->cells[i]);
    free(t->cells);
    memset(t, 0, sizeof(*t));
}

const char *human_bytes(char text[HUMAN_BYTES_TEXT], uint64_t n_bytes)
{
    static const char *const units[] = { "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
    double value = (double)n_bytes;
    unsigned unit = 0;

    if (n_bytes < 1024) {
        snprintf(text, HUMAN_BYTES_TEXT, "%u B", (unsigned)n_bytes);
        return text;
    }
    value /= 1024;
    while (value >= 1023.5 && unit + 1 < sizeof(units) / sizeof(units[0])) {
        value /= 1024;
        unit++;
    }
    snprintf(text, HUMAN_BYTES_TEXT, value < 9.95 ? "%.1f %s" : "%.0f %s", value,
             units[unit]);
    return text;
}
