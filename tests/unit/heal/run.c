/* run.c - see run.h. */
#include "tests/unit/heal/run.h"

#include "tests/unit/unit.h"

static void on_run_done(void *arg, const struct repair_result *result)
{
    struct run *run = arg;

    assert_false(run->done);
    run->done = true;
    run->result = *result;
}

void run_begin(struct run *run, const struct repairer_config *config,
               const struct repair_request *request)
{
    *run = (struct run){ 0 };
    assert_int_equal(repairer_new(config, &run->repairer), 0);
    run_again(run, request);
}

void run_again(struct run *run, const struct repair_request *request)
{
    run->done = false;
    assert_int_equal(repair_start(run->repairer, request, on_run_done, run, &run->repair),
                     0);
    assert_false(run->done);
}

struct repair_result run_end(struct run *run)
{
    assert_true(run->done);
    repairer_free(run->repairer);
    return run->result;
}
