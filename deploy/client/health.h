/*
 * health.h - how storages heal, in words and as JSON: what `rozo status`, `rebuild` and `scrub` show.
 */
#ifndef ROZO_DEPLOY_CLIENT_HEALTH_H
#define ROZO_DEPLOY_CLIENT_HEALTH_H

#include <jansson.h>

#include "deploy/client/fleet.h"

/* Something long that a storage does: a rebuild or a scrub. */
struct health_work {
    bool running;
    const char *state; /* "never", "none", "running", "done", "stopped" */
    uint64_t files_done, files, bytes_done, bytes,
        seconds; /* files, bytes 0: not counted yet */
};
struct health_work health_rebuild(const Rozo__StHealthResp *h);
struct health_work health_scrub(const Rozo__StHealthResp *h);

/** Per mille of the bytes, or of the files where no bytes are known; -1: nobody knows. */
int health_permille(const struct health_work *w);
/** Bytes a second so far; 0: not known. */
uint64_t health_rate(const struct health_work *w);
/** Seconds to go; -1: nobody knows. */
int64_t health_left_s(const struct health_work *w);
/** "running  42%", with bar "[====------]  42%"; "done", "-". */
void health_work_text(const struct health_work *w, bool bar, char *out, size_t size);
/** One line of what is not as it should be, or on its way: false and empty when there is nothing. */
bool health_line(const Rozo__StHealthResp *h, char *out, size_t size);

json_t *health_json(const Rozo__StHealthResp *h);

/** Ask those that are up (id 0) or this one. Then m->answer is a Rozo__StHealthResp. */
int health_ask(struct fleet *f, uint32_t id, struct progress *progress);

#endif
