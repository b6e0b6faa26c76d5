/*
 * env_uv.h - a struct env on a libuv loop. Shell code.
 */
#ifndef ROZO_COMMON_ENV_ENV_UV_H
#define ROZO_COMMON_ENV_ENV_UV_H

#include <uv.h>

#include "common/env/env.h"

/* Embedded in the thread's own struct; env comes first, so that &e->env is all a core
 * needs. */
struct env_uv {
    struct env env;
    uv_loop_t *loop; /* borrowed */
    void *impl;      /* timers, posted tasks, mailbox; owned */
    /* Closes idle files that can be opened again. Only descriptors smaller than `below`:
     * others do not help. Returns true if some were closed. Set after env_uv_init(), or
     * NULL. */
    bool (*close_idle)(void *arg, unsigned below);
    void *close_idle_arg;
};

/**
 * Starts an env on a loop. Returns 0 or -errno. Until env_uv_close() the mailbox keeps
 * uv_run() from returning, so that a thread may wait for mail alone.
 */
int env_uv_init(struct env_uv *e, uv_loop_t *loop);
/**
 * Closes the env. No timer may be running and no task posted. Run the loop once
 * afterwards to close handles.
 */
void env_uv_close(struct env_uv *e);
/**
 * Posts a task that runs after all posted tasks, and those that they post: for users that
 * gather their work.
 */
void env_uv_post_last(struct env_uv *e, struct env_task *task);
/**
 * Returns true if a call that failed with `error` may be tried once more: the error was
 * EMFILE or ENFILE, and idle files were closed. Called on e's thread.
 */
bool env_uv_frees_fds(struct env_uv *e, int error);
/**
 * Runs mail->fn on e's thread soon. From any thread; wake-ups are coalesced; order is
 * kept.
 */
void env_mailbox_post(struct env_uv *e, struct env_mail *mail);

#endif
