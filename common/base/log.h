/*
 * log.h - one line per event: time, level, component, text. The only global besides
 * signals.
 *
 * Lines go to stderr (a service manager or `rozo dev` sends that to a file), whole lines
 * in one write:
 * "2026-01-31T12:00:00.123456Z info  storaged: listening on 127.0.0.1:4711".
 */
#ifndef ROZO_COMMON_BASE_LOG_H
#define ROZO_COMMON_BASE_LOG_H

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

/**
 * Starts the log; called once, first thing in main(). component: "exportd"; must outlive
 * the process. Level info.
 */
void log_init(const char *component);
void log_set_level(enum log_level level);
/** Parses "error" "warn" "info" "debug"; -EINVAL if text is none of them. */
int log_level_parse(const char *text, enum log_level *out);
void log_write(enum log_level level, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/**
 * Logs that memory has run out while `what` was done, and ends the process: what it had
 * begun must not stay half done. what: "during a change of metadata".
 */
_Noreturn void log_out_of_memory(const char *what);

#define log_error(...) log_write(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warn(...)  log_write(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_info(...)  log_write(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_write(LOG_LEVEL_DEBUG, __VA_ARGS__)

#endif
