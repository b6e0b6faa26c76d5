/*
 * progress.c - a bar on the terminal for work that takes longer than a moment.
 */
#include "deploy/cli/progress.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/units.h"

enum { BAR_WIDTH = 24 };

uint64_t clock_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return ns_to_ms(timespec_to_ns(now));
}

void progress_start(struct progress *p, unsigned n_all)
{
    memset(p, 0, sizeof(*p));
    p->terminal = isatty(STDERR_FILENO);
    p->start_ms = clock_ms();
    p->n_all = n_all;
}

void progress_at(struct progress *p, unsigned n_done, const char *what)
{
    p->n_done = n_done < p->n_all ? n_done : p->n_all;
    snprintf(p->what, sizeof(p->what), "%s", what);
    progress_tick(p);
}

void progress_tick(struct progress *p)
{
    uint64_t passed_ms = clock_ms() - p->start_ms;
    unsigned full = p->n_all == 0 ? 0 : p->n_done * BAR_WIDTH / p->n_all;
    char bar[BAR_WIDTH + 1];

    if (!p->terminal || passed_ms < PROGRESS_DELAY_MS)
        return;
    memset(bar, '-', BAR_WIDTH);
    memset(bar, '=', full);
    bar[BAR_WIDTH] = '\0';
    fprintf(stderr, "\r[%s] %u/%u %3llu s  %-34.34s", bar, p->n_done, p->n_all,
            (unsigned long long)(passed_ms / 1000), p->what);
    fflush(stderr);
    p->drawn = true;
}

void progress_end(struct progress *p)
{
    if (p->drawn)
        fprintf(stderr, "\r%79s\r", "");
    fflush(stderr);
    p->drawn = false;
}
