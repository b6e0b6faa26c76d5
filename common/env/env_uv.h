/*
 * env_uv.h - a struct env on a libuv loop. Shell code.
 */
#ifndef ROZO_COMMON_ENV_ENV_UV_H
#define ROZO_COMMON_ENV_ENV_UV_H

#include <uv.h>

#include "common/env/env.h"

/* Embedded in the thread's own struct; env first, so that &e->env is all a core needs. */
struct env_uv {
    struct env env;
    uv_loop_t *loop; /* borrowed */
    void *impl;      /* timers, posted tasks, mailbox; owned */
    /*
     * Set after env_uv_init(), or NULL: closes files that can be opened again and whose descriptors are smaller than
     * `below`; others would not help. True: some were closed.
     */
    bool (*close_idle)(void *arg, unsigned below);
    void *close_idle_arg;
};

/* A task for another thread's env. Owned by its sender until fn runs. */
struct env_mail {
    void (*fn)(struct env_mail *mail);
    struct env_mail *next;
};

/**
 * 0 or -errno. Until env_uv_close() the mailbox keeps uv_run() from returning, so that a thread
 * may wait for mail alone.
 */
int env_uv_init(struct env_uv *e, uv_loop_t *loop);
/** Nothing may be running or posted any more. Run the loop once afterwards to let handles close. */
void env_uv_close(struct env_uv *e);
/** As env_post(), but behind all that was posted, and what that posts: for what gathers their work. */
void env_uv_post_last(struct env_uv *e, struct env_task *task);
/**
 * Says whether a call that failed with `error` can be tried once more: it lacked a descriptor (EMFILE, ENFILE), and idle
 * files were closed. On e's thread.
 */
bool env_uv_frees_fds(struct env_uv *e, int error);
/** Run mail->fn on e's thread soon. From any thread; wake-ups are coalesced; order is kept. */
void env_mailbox_post(struct env_uv *e, struct env_mail *mail);

#endif
