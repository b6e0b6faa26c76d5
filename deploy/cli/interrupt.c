/*
 * interrupt.c - signals that end a wait instead of the program.
 */
#include "deploy/cli/interrupt.h"

#include <signal.h>
#include <time.h>

#include "deploy/cli/progress.h"

static volatile sig_atomic_t interrupted;

static void on_signal(int number)
{
    (void)number;
    interrupted = 1;
}

void interrupt_catch(void)
{
    struct sigaction act = { .sa_handler = on_signal };

    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
}

bool interrupt_came(void)
{
    return interrupted != 0;
}

void interrupt_pause_ms(uint32_t ms)
{
    for (uint64_t end_ms = clock_ms() + ms; !interrupted && clock_ms() < end_ms;) {
        struct timespec slice = { .tv_nsec = 20000000 };

        nanosleep(&slice, NULL); /* short, since a signal may come before it begins */
    }
}
