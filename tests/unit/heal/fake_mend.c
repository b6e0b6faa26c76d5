/*
 * fake_mend.c - see fake_mend.h.
 */
#include "tests/unit/heal/fake_mend.h"

#include <assert.h>
#include <stdlib.h>

#include "common/base/list.h"

struct fake_mends fake_mends;

struct mender {
    struct mender_config config;
    unsigned n;
};

struct mend {
    struct mender *mender;
    struct mend_request request;
    struct mend_result result;
    mend_done_cb *done;
    void *arg;
    struct env_timer timer;
};

int mender_new(const struct mender_config *config, struct mender **out)
{
    struct mender *m = calloc(1, sizeof(*m));

    assert(m != NULL);
    m->config = *config;
    *out = m;
    return 0;
}

void mender_free(struct mender *mender)
{
    assert(mender == NULL || mender->n == 0);
    free(mender);
}

static void mend_free(struct mend *mend)
{
    mend->mender->n--;
    fake_mends.n_running--;
    free(mend);
}

static void on_timer(struct env_timer *timer)
{
    struct mend *mend = container_of(timer, struct mend, timer);
    struct mend_result result = { 0 };
    mend_done_cb *done = mend->done;
    void *arg = mend->arg;

    fake_mends.fn(fake_mends.arg, mend->mender->config.own_storage, &mend->request,
                  &result);
    fake_mends.n_ended++;
    mend_free(mend);
    done(arg, &result);
}

int mend_start(struct mender *mender, const struct mend_request *request,
               mend_done_cb *done, void *arg, struct mend **out)
{
    struct mend *mend = calloc(1, sizeof(*mend));
    uint32_t wait;

    assert(mend != NULL);
    mend->mender = mender;
    mend->request = *request;
    mend->done = done;
    mend->arg = arg;
    mender->n++;
    fake_mends.n_started++;
    if (++fake_mends.n_running > fake_mends.n_running_most)
        fake_mends.n_running_most = fake_mends.n_running;
    wait = mender->config.take(mender->config.arg, fake_mends.bytes);
    fake_mends.waited_ms += wait;
    env_timer_init(&mend->timer, on_timer);
    env_timer_start(mender->config.env, &mend->timer, fake_mends.takes_ms + wait);
    *out = mend;
    return 0;
}

void mend_cancel(struct mend *mend)
{
    env_timer_stop(mend->mender->config.env, &mend->timer);
    fake_mends.n_cancelled++;
    mend_free(mend);
}

const struct mend_result *mend_progress(const struct mend *mend)
{
    return &mend->result;
}

uint64_t mend_position(const struct mend *mend)
{
    return mend->request.first_block;
}
