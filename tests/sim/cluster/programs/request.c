/*
 * request.c - requests from their start to their answer.
 *
 * In:     callers and answers. Out: done(), in the world.
 */
#include "tests/sim/cluster/programs/request.h"

#include <assert.h>
#include <string.h>

#include "common/base/list.h"
#include "tests/sim/cluster/world/proc.h"

static void on_answer_task(struct env_task *task)
{
    struct fuse_req *req = container_of(task, struct fuse_req, task);

    req->under_way = false;
    req->done(req);
}

void request_begin(struct fuse_req *req)
{
    assert(!req->under_way);
    req->under_way = true;
    req->task = (struct env_task){ .fn = on_answer_task };
    req->data_len = 0;
}

void request_answered(struct fuse_req *req, int rc)
{
    struct proc *before = proc_enter(&world_clock.world);

    assert(req->under_way);
    req->rc = rc;
    tasks_push(&world_clock.world.tasks, &req->task);
    proc_leave(before);
}
