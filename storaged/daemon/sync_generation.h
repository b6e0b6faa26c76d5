/*
 * sync_generation.h - ends a generation (format/generation.h) every few minutes. Shell
 * code.
 */
#ifndef ROZO_STORAGED_DAEMON_SYNC_GENERATION_H
#define ROZO_STORAGED_DAEMON_SYNC_GENERATION_H

#include <stdbool.h>

#include <uv.h>

#include "common/env/env_uv.h"
#include "storaged/format/generation.h"

/* Belongs to the first loop of the daemon; `work` to a worker while it is busy. */
struct sync_generation {
    struct env_uv *env;      /* borrowed */
    struct generations *all; /* borrowed */
    int dir_fd;              /* borrowed */
    struct env_timer timer;
    uv_work_t work;
    bool busy, stopping;
};

/** Begins with DATA/storage.generations, and saves it before anything is noted. */
int sync_generation_load(struct generations *all, int dir_fd, uint64_t boot,
                         struct err *err);
/** Starts the timer. Called on the first loop, before it runs. */
void sync_generation_start(struct sync_generation *s, struct env_uv *env,
                           struct generations *all, int dir_fd);
/** Starts no more rounds; one under way keeps the loop running until it is done. */
void sync_generation_stop(struct sync_generation *s);
/**
 * Records that everything is on stable storage. Called after a clean stop, when no loop
 * runs any more.
 */
void sync_generation_end(struct generations *all, int dir_fd);

#endif
