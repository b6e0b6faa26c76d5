/*
 * systemd.c - sd_notify and stop signals.
 *
 * In:     signals. Thread: main's loop.
 * Out:    notifications to the service manager; stop(arg).
 */
#include "common/system/systemd.h"

#include <signal.h>
#include <systemd/sd-daemon.h>

#include "common/base/log.h"

void sd_tell_ready(const char *status)
{
    sd_notifyf(0, "READY=1\nSTATUS=%s", status);
}

void sd_tell_stopping(void)
{
    sd_notify(0, "STOPPING=1");
}

static void on_stop_signal(uv_signal_t *handle, int signum)
{
    struct stop_signals *s = handle->data;

    if (s->n_seen++ > 0) { /* SIGKILL stops at once; half a stop would lose data */
        log_warn("signal %d: already stopping", signum);
        return;
    }
    log_info("signal %d: stopping", signum);
    s->stop(s->arg);
}

int stop_signals_start(struct stop_signals *s, uv_loop_t *loop, void (*stop)(void *arg),
                       void *arg)
{
    int rc;

    signal(SIGPIPE, SIG_IGN);
    s->stop = stop;
    s->arg = arg;
    s->n_seen = 0;
    uv_signal_init(loop, &s->term);
    uv_signal_init(loop, &s->interrupt);
    s->term.data = s->interrupt.data = s;
    rc = uv_signal_start(&s->term, on_stop_signal, SIGTERM);
    if (rc == 0)
        rc = uv_signal_start(&s->interrupt, on_stop_signal, SIGINT);
    uv_unref((uv_handle_t *)&s->term);
    uv_unref((uv_handle_t *)&s->interrupt);
    return rc;
}

void stop_signals_close(struct stop_signals *s)
{
    uv_close((uv_handle_t *)&s->term, NULL);
    uv_close((uv_handle_t *)&s->interrupt, NULL);
}
