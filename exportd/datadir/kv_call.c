/*
 * kv_call.c - waits for calls of a kv.
 */
#include "exportd/datadir/kv_call.h"

#include "common/base/list.h"

static void on_kv_done(struct kv_done *done, int rc)
{
    struct kv_call *c = container_of(done, struct kv_call, done);

    c->is_done = true;
    c->rc = rc;
}

void kv_call_init(struct kv_call *c, uv_loop_t *loop)
{
    *c = (struct kv_call){ .done.fn = on_kv_done, .loop = loop };
}

int kv_call_wait(struct kv_call *c, struct err *err)
{
    while (!c->is_done)
        uv_run(c->loop, UV_RUN_ONCE);
    c->is_done = false;
    return c->rc == 0 ? 0
                      : err_set(err, c->rc, "write to the metadata store: %s",
                                error_text(c->rc));
}

int kv_call_sync(struct kv_call *c, struct kv *kv, struct err *err)
{
    kv_sync(kv, &c->done);
    return kv_call_wait(c, err);
}

int kv_call_wait_stable(struct kv_call *c, struct kv *kv, struct err *err)
{
    int rc = kv_call_wait(c, err);

    return rc != 0 ? rc : kv_call_sync(c, kv, err);
}
