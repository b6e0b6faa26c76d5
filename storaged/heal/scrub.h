/*
 * scrub.h - the scrub of this storage. Inside storaged/heal only.
 *
 * Only scrub.c writes these members.
 */
#ifndef ROZO_STORAGED_HEAL_SCRUB_H
#define ROZO_STORAGED_HEAL_SCRUB_H

#include "storaged/heal/jobs/sweep.h"
#include "storaged/heal/list/hint_log.h"

enum { FINDINGS_MAX = 100, FINDING_TEXT_MAX = 256 };

/* As in StHealthResp.scrub_state and the key "scrub". */
enum scrub_state {
    SCRUB_NEVER = 0,
    SCRUB_RUNNING = 1,
    SCRUB_DONE = 2,
    SCRUB_STOPPED = 3,
};

/* State of the scrub of this storage. */
struct scrub {
    enum scrub_state state;
    bool heads_only;
    bool stop; /* a stop was requested */
    struct heal_walk walk;
    struct heal_walk count;
    struct sweep_file *files; /* owned, of the page */
    unsigned n_running;
    uint64_t counted_files, counted_bytes;
    uint64_t files_done, n_files, bytes_done, n_bytes, found, healed;
    uint64_t n_unseen; /* files that could not be looked at as a whole */
    uint32_t losses;   /* identity's count of losses when the scrub began */
    uint64_t began_ns, ran_s;
    int64_t ended_wall_ns; /* end of the last scrub; or when the schedule began */
    char findings[FINDINGS_MAX][FINDING_TEXT_MAX];
    unsigned n_findings;
    struct env_timer timer; /* checks whether a scrub is due */
    struct env_timer gather_timer;
    uint64_t gather_until_ns; /* limit of the wait for peers that are not up */
    struct hint_log_wait boot_wait;
};

int scrub_load(struct healer *h);
void scrub_start(struct healer *h);
void scrub_begin(struct healer *h, bool heads_only);
void scrub_end(struct healer *h);
void scrub_stop(struct healer *h);
void scrub_health(struct healer *h, Rozo__StHealthResp *resp, char **findings);

#endif
