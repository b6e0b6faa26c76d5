/*
 * systemd.h - notifications to a service manager, and the signals it sends. Shell code.
 */
#ifndef ROZO_COMMON_SYSTEM_SYSTEMD_H
#define ROZO_COMMON_SYSTEM_SYSTEMD_H

#include <uv.h>

/**
 * Reports that the service is ready. status: one line for `systemctl status`. Does
 * nothing without a manager.
 */
void sd_tell_ready(const char *status);
/** Reports that the service is stopping. */
void sd_tell_stopping(void);

/* SIGTERM and SIGINT as one event. Embedded in main's struct. */
struct stop_signals {
    uv_signal_t term, interrupt;
    void (*stop)(void *arg); /* called once, on the loop's thread */
    void *arg;
    int n_seen;
};

/**
 * Starts to watch the signals; also ignores SIGPIPE. The handles do not keep the loop
 * alive. Returns 0 or -errno.
 */
int stop_signals_start(struct stop_signals *s, uv_loop_t *loop, void (*stop)(void *arg),
                       void *arg);
/**
 * Closes the handles, once after a successful start; run the loop afterwards to finish
 * closing.
 */
void stop_signals_close(struct stop_signals *s);

#endif
