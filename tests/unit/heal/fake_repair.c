/* fake_repair.c - see fake_repair.h. */
#include "tests/unit/heal/fake_repair.h"

#include <assert.h>
#include <stdlib.h>

#include "common/base/list.h"

struct fake_repairs fake_repairs;
struct repair_seen seen[SEEN_MAX];
unsigned n_seen;
struct repair_result next_result;

void fake_repairs_init(void)
{
    fake_repairs = (struct fake_repairs){ .takes_ms = 5 };
    next_result = (struct repair_result){ 0 };
    n_seen = 0;
}

struct repairer {
    struct repairer_config config;
    unsigned n;
};

struct repair {
    struct repairer *repairer;
    struct repair_request request;
    struct repair_result result;
    repair_done_cb *done;
    void *arg;
    struct env_timer timer;
};

int repairer_new(const struct repairer_config *config, struct repairer **out)
{
    struct repairer *m = calloc(1, sizeof(*m));

    assert(m != NULL);
    m->config = *config;
    *out = m;
    return 0;
}

void repairer_free(struct repairer *repairer)
{
    assert(repairer == NULL || repairer->n == 0);
    free(repairer);
}

static void repair_free(struct repair *repair)
{
    repair->repairer->n--;
    fake_repairs.n_running--;
    free(repair);
}

static void on_timer(struct env_timer *timer)
{
    struct repair *repair = container_of(timer, struct repair, timer);
    struct repair_result result = next_result;
    uint32_t own = repair->repairer->config.own_storage;
    repair_done_cb *done = repair->done;
    void *arg = repair->arg;

    assert(n_seen < SEEN_MAX);
    seen[n_seen++] = (struct repair_seen){ own, repair->request };
    if (fake_repairs.fn != NULL)
        fake_repairs.fn(fake_repairs.arg, own, &repair->request, &result);
    fake_repairs.n_ended++;
    repair_free(repair);
    done(arg, &result);
}

int repair_start(struct repairer *repairer, const struct repair_request *request,
                 repair_done_cb *done, void *arg, struct repair **out)
{
    struct repair *repair = calloc(1, sizeof(*repair));
    uint32_t wait;

    assert(repair != NULL);
    repair->repairer = repairer;
    repair->request = *request;
    repair->done = done;
    repair->arg = arg;
    repairer->n++;
    fake_repairs.n_started++;
    if (++fake_repairs.n_running > fake_repairs.n_running_most)
        fake_repairs.n_running_most = fake_repairs.n_running;
    wait = repairer->config.take(repairer->config.arg, fake_repairs.bytes);
    fake_repairs.waited_ms += wait;
    env_timer_init(&repair->timer, on_timer);
    env_timer_start(repairer->config.env, &repair->timer, fake_repairs.takes_ms + wait);
    *out = repair;
    return 0;
}

void repair_cancel(struct repair *repair)
{
    env_timer_stop(repair->repairer->config.env, &repair->timer);
    fake_repairs.n_cancelled++;
    repair_free(repair);
}

const struct repair_result *repair_progress(const struct repair *repair)
{
    return &repair->result;
}

uint64_t repair_position(const struct repair *repair)
{
    return repair->request.first_block;
}
