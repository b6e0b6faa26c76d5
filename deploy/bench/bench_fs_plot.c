/*
 * bench_fs_plot.c - plots the results of bench_fs.c as SVG, for any browser.
 *
 * In:     results, of one place or two.
 * Out:    a bar for each row, to one scale within a group; below, rates against the
 *         number of clients.
 */
#include <stdlib.h>
#include <string.h>

#include "deploy/bench/bench_fs.h"

enum {
    WIDTH = 760,
    LABEL_WIDTH = 160, /* width of names, left of the bars */
    BARS_WIDTH = 480,
    ROW_HEIGHT = 22,
    TITLE_HEIGHT = 34,
    CHART_WIDTH = 360,
    CHART_HEIGHT = 240,
    CHART_LEFT = 70,
    CHART_TOP = 40,
};

static const char *const colors[] = { "#2b6cb0", "#b0b0b0", "#c05621", "#2f855a" };

/* Prints a path, which may hold any bytes, between tags. */
static void text_print(FILE *to, const char *text)
{
    for (; *text != '\0'; text++) {
        unsigned char byte = (unsigned char)*text;

        if (byte == '<' || byte == '&' || byte == '>')
            fprintf(to, "&#%u;", byte);
        else
            fputc(byte < ' ' || byte > 126 ? '?' : byte, to);
    }
}

static const char *unit_text(enum fsb_unit unit)
{
    return unit == FSB_MIB ? "MiB/s" : "operations a second";
}

static double median_at(const struct fsb_row *row, unsigned side)
{
    struct fsb_summary s;

    if (row->n_samples[side] == 0)
        return 0;
    fsb_summary(row, side, &s);
    return s.median;
}

static bool same_group(const struct fsb_row *a, const struct fsb_row *b)
{
    return strcmp(a->load->group, b->load->group) == 0 && a->load->unit == b->load->unit;
}

static bool is_first_of_group(const struct fsb_results *results, unsigned row)
{
    for (unsigned i = 0; i < row; i++) {
        if (same_group(&results->rows[i], &results->rows[row]))
            return false;
    }
    return true;
}

/* Returns the largest figure of the group of a row, at n_sides places. */
static double group_most(const struct fsb_results *results, const struct fsb_row *like,
                         unsigned n_sides)
{
    double most = 0;

    for (unsigned i = 0; i < results->n_rows; i++) {
        for (unsigned s = 0; s < n_sides && same_group(&results->rows[i], like); s++) {
            double median = median_at(&results->rows[i], s);

            most = median > most ? median : most;
        }
    }
    return most;
}

/* Prints the bars of one row, the upper one for the first place. Returns the next y. */
static unsigned row_print(FILE *to, const struct fsb_row *row, unsigned n_sides,
                          double most, unsigned y)
{
    unsigned thick = (ROW_HEIGHT - 6) / n_sides;

    fprintf(to, "<text x=\"%d\" y=\"%u\" text-anchor=\"end\">%s</text>\n",
            LABEL_WIDTH - 8, y + ROW_HEIGHT / 2 + 2, row->load->name);
    for (unsigned s = 0; s < n_sides; s++) {
        double median = median_at(row, s),
               width = most > 0 ? median / most * BARS_WIDTH : 0;
        unsigned top = y + 2 + s * thick;

        fprintf(to,
                "<rect x=\"%d\" y=\"%u\" width=\"%.1f\" height=\"%u\" fill=\"%s\"/>\n"
                "<text x=\"%.1f\" y=\"%u\" font-size=\"%u\">%.0f</text>\n",
                LABEL_WIDTH, top, width, thick, colors[s], LABEL_WIDTH + width + 4,
                top + thick - (n_sides == 1 ? 4 : 0), n_sides == 1 ? 11u : 8u, median);
    }
    return y + ROW_HEIGHT;
}

static unsigned bars_print(FILE *to, const struct fsb_results *results, unsigned n_sides,
                           unsigned y)
{
    for (unsigned first = 0; first < results->n_rows; first++) {
        const struct fsb_row *head = &results->rows[first];

        if (head->load->n_mounts > 0 || !is_first_of_group(results, first))
            continue;
        fprintf(to, "<text x=\"%d\" y=\"%u\" font-weight=\"bold\">%s, %s</text>\n",
                LABEL_WIDTH, y + TITLE_HEIGHT - 10, head->load->group,
                unit_text(head->load->unit));
        y += TITLE_HEIGHT;
        for (unsigned i = first; i < results->n_rows; i++) {
            if (same_group(&results->rows[i], head))
                y = row_print(to, &results->rows[i], n_sides,
                              group_most(results, head, n_sides), y);
        }
    }
    return y;
}

/* Prints the line of one load over 1, 2, .. clients, from the row where it begins. */
static void line_print(FILE *to, const struct fsb_results *results, unsigned first,
                       unsigned n_clients, double most, unsigned nth, unsigned left,
                       unsigned top)
{
    double step =
        n_clients > 1 ? (double)(CHART_WIDTH - CHART_LEFT - 20) / (n_clients - 1) : 0;
    unsigned high = CHART_HEIGHT - CHART_TOP;
    const struct fsb_load *load = results->rows[first].load;
    char path[64 * FSB_MOUNTS_MAX] = "";
    size_t len = 0;

    for (unsigned i = first; i < results->n_rows; i++) {
        const struct fsb_row *row = &results->rows[i];
        double x = left + CHART_LEFT + step * (row->load->n_mounts - 1);
        double y = top + CHART_HEIGHT - median_at(row, FSB_HERE) / most * high;

        if (strcmp(row->load->name, load->name) != 0 || row->n_samples[FSB_HERE] == 0)
            continue;
        len += (size_t)snprintf(path + len, sizeof(path) - len, "%.1f,%.1f ", x, y);
        fprintf(to, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n", x, y,
                colors[2 * nth]);
    }
    fprintf(to,
            "<polyline points=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\"/>\n"
            "<text x=\"%u\" y=\"%u\" fill=\"%s\">%s</text>\n",
            path, colors[2 * nth], left + CHART_LEFT, top + 14 + 16 * nth,
            colors[2 * nth], load->name);
}

static void axes_print(FILE *to, unsigned n_clients, double most, enum fsb_unit unit,
                       unsigned left, unsigned top)
{
    double step =
        n_clients > 1 ? (double)(CHART_WIDTH - CHART_LEFT - 20) / (n_clients - 1) : 0;
    unsigned x = left + CHART_LEFT, bottom = top + CHART_HEIGHT;

    fprintf(to, "<path d=\"M%u %u V%u H%u\" fill=\"none\" stroke=\"#000\"/>\n", x - 10,
            top + CHART_TOP - 10, bottom, left + CHART_WIDTH);
    for (unsigned i = 0; i <= 4; i++)
        fprintf(to,
                "<text x=\"%u\" y=\"%.1f\" text-anchor=\"end\" "
                "font-size=\"10\">%.0f</text>\n",
                x - 14, bottom - i / 4.0 * (CHART_HEIGHT - CHART_TOP) + 4, most * i / 4);
    for (unsigned i = 1; i <= n_clients; i++)
        fprintf(to, "<text x=\"%.1f\" y=\"%u\" text-anchor=\"middle\">%u</text>\n",
                x + step * (i - 1), bottom + 16, i);
    fprintf(to,
            "<text x=\"%u\" y=\"%u\" text-anchor=\"middle\">clients, 5 threads each; "
            "%s</text>\n",
            left + CHART_WIDTH / 2 + 20, bottom + 34, unit_text(unit));
}

/* Prints one chart per unit, side by side. Returns the next y. */
static unsigned charts_print(FILE *to, const struct fsb_results *results, unsigned y)
{
    unsigned left = 0;

    for (unsigned first = 0; first < results->n_rows; first++) {
        const struct fsb_row *head = &results->rows[first];
        double most = group_most(results, head, 1);
        unsigned n_clients = 0, nth = 0;

        if (head->load->n_mounts == 0 || !is_first_of_group(results, first) || most <= 0)
            continue;
        for (unsigned i = first; i < results->n_rows; i++) {
            const struct fsb_load *load = results->rows[i].load;

            if (same_group(&results->rows[i], head) && load->n_mounts > n_clients)
                n_clients = load->n_mounts;
        }
        for (unsigned i = first; i < results->n_rows; i++) {
            if (same_group(&results->rows[i], head) &&
                results->rows[i].load->n_mounts == 1)
                line_print(to, results, i, n_clients, most, nth++, left, y + 10);
        }
        axes_print(to, n_clients, most, head->load->unit, left, y + 10);
        left += CHART_WIDTH + 10;
    }
    return left > 0 ? y + 10 + CHART_HEIGHT + 50 : y;
}

static unsigned legend_print(FILE *to, const struct fsb_place place[FSB_SIDES],
                             unsigned n_sides)
{
    for (unsigned s = 0; s < n_sides; s++) {
        fprintf(to,
                "<rect x=\"%d\" y=\"%u\" width=\"12\" height=\"12\" fill=\"%s\"/>\n"
                "<text x=\"%d\" y=\"%u\">",
                LABEL_WIDTH, 10 + 20 * s, colors[s], LABEL_WIDTH + 20, 20 + 20 * s);
        text_print(to, place[s].mount[0]);
        fprintf(to, "</text>\n");
    }
    return 10 + 20 * n_sides;
}

char *fsb_plot(const struct fsb_results *results, const struct fsb_place place[FSB_SIDES])
{
    unsigned n_sides = place[FSB_THERE].n_mounts > 0 ? 2 : 1, height;
    char *body = NULL, *all = NULL;
    size_t len = 0;
    FILE *to = open_memstream(&body, &len);

    if (to == NULL)
        return NULL;
    height = charts_print(
        to, results, bars_print(to, results, n_sides, legend_print(to, place, n_sides)));
    if (fclose(to) != 0 ||
        asprintf(&all,
                 "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%u\" "
                 "font-family=\"sans-serif\" font-size=\"12\">\n"
                 "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n%s</svg>\n",
                 WIDTH, height + 10, body) < 0)
        all = NULL;
    free(body);
    return all;
}
