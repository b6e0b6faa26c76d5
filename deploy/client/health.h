/*
 * health.h - the healing of storages as text and JSON, for `rozo status`, `rebuild` and
 * `scrub`.
 */
#ifndef ROZO_DEPLOY_CLIENT_HEALTH_H
#define ROZO_DEPLOY_CLIENT_HEALTH_H

#include <jansson.h>

#include "deploy/client/storage_clients.h"

/* A long task of a storage: a rebuild or a scrub. */
struct health_work {
    bool running;
    const char *state; /* "never", "none", "running", "done", "stopped" */
    uint64_t files_done, files, bytes_done, bytes,
        seconds; /* files, bytes: 0 until they are counted */
};
struct health_work health_rebuild(const Rozo__StHealthResp *h);
struct health_work health_scrub(const Rozo__StHealthResp *h);

/** Returns per mille of the bytes, or of the files if bytes are unknown; -1: unknown. */
int health_permille(const struct health_work *w);
/** Returns bytes per second so far; 0: unknown. */
uint64_t health_rate(const struct health_work *w);
/** Returns the seconds left; -1: unknown. */
int64_t health_left_s(const struct health_work *w);
/** Writes "running  42%", with bar "[====------]  42%"; "done", "-". */
void health_work_text(const struct health_work *w, bool bar, char *out, size_t size);
/**
 * Writes one line about damage and healing. Returns false, with an empty line, if there
 * is nothing.
 */
bool health_line(const Rozo__StHealthResp *h, char *out, size_t size);

json_t *health_json(const Rozo__StHealthResp *h);

/**
 * Asks the storages that are up (id 0) or only this one. Then m->answer is a
 * Rozo__StHealthResp.
 */
int health_ask(struct storage_clients *f, uint32_t id, struct progress *progress);

#endif
