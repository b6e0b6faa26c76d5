/*
 * text_table.h - tables on a terminal, 80 columns wide, and numbers for people.
 */
#ifndef ROZO_DEPLOY_CLI_TEXT_TABLE_H
#define ROZO_DEPLOY_CLI_TEXT_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum {
    TABLE_COLUMNS_MAX = 10,
    TABLE_WIDTH_MAX = 80,
};

/* Zero-initialise, then text_table_init(). Cells are copied. Any thread, one at a
 * time. */
struct text_table {
    unsigned n_columns;
    bool right[TABLE_COLUMNS_MAX]; /* right-aligned columns, for numbers */
    char **cells;                  /* owned; n_cells of them, row by row, heads first */
    size_t n_cells;
};

/**
 * Starts a table.
 * @param heads n_columns titles; one beginning with '>' aligns its column to the right.
 */
void text_table_init(struct text_table *t, const char *const *heads, unsigned n_columns);
/**
 * Adds the next cell, left to right, top to bottom. Ends the program if out of memory.
 */
void text_table_cell(struct text_table *t, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/**
 * Prints the table. Columns are as wide as their widest cell. If that exceeds 80 columns,
 * the last column wraps at commas onto further lines, below its row when little room is
 * left beside it; longer words stay whole. Control characters in cells print as '?'.
 */
void text_table_print(const struct text_table *t, FILE *to);
void text_table_free(struct text_table *t);

enum { HUMAN_BYTES_TEXT = 16 };
/**
 * Writes "0 B", "1023 B", "4.0 KiB", "118 GiB": at most three digits of precision.
 * Returns text.
 */
const char *human_bytes(char text[HUMAN_BYTES_TEXT], uint64_t n_bytes);

#endif
