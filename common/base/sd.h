/*
 * sd.h - what a service manager is told, and the signals it sends. Shell code.
 */
#ifndef ROZO_COMMON_BASE_SD_H
#define ROZO_COMMON_BASE_SD_H

#include <uv.h>

/** We serve. status: one line for `systemctl status`. Does nothing when no manager listens. */
void sd_tell_ready(const char *status);
/** We are on our way out. */
void sd_tell_stopping(void);

/* SIGTERM and SIGINT as one event. Embedded in main's struct. */
struct stop_signals {
    uv_signal_t term, interrupt;
    void (*stop)(void *arg); /* once, on the loop's thread */
    void *arg;
    int n_seen;
};

/** Also ignores SIGPIPE. The handles do not keep the loop alive. 0 or -errno. */
int stop_signals_start(struct stop_signals *s, uv_loop_t *loop, void (*stop)(void *arg),
                       void *arg);
/** Once after a successful start; run the loop afterwards to let the handles close. */
void stop_signals_close(struct stop_signals *s);

#endif
