/*
 * deadline.c - a deadline that becomes shorter once the user presses ^C.
 */
#include "deploy/cli/deadline.h"

#include "deploy/cli/progress.h"

bool deadline_is_over(struct deadline *p)
{
    uint64_t now_ms = clock_ms();

    if (p->stop != NULL && *p->stop != 0 && !p->hurried) {
        p->hurried = true;
        if (p->end_ms > now_ms + p->hurry_ms)
            p->end_ms = now_ms + p->hurry_ms;
    }
    return now_ms >= p->end_ms;
}
