/*
 * frame_clock.c - the times of a stream's frames.
 *
 * Keeps:  times are computed from the frame's number, never added up, so a stream does
 *         not drift; each frame is counted once, as in time or as late.
 */
#include "deploy/bench/frame_clock.h"

#include <assert.h>

#include "common/base/units.h"

uint64_t frame_begin_ns(const struct frame_clock *c, uint64_t frame)
{
    return c->start_ns +
           (uint64_t)((unsigned __int128)frame * c->frame_bytes * NS_PER_S / c->rate);
}

uint64_t frame_due_ns(const struct frame_clock *c, uint64_t frame)
{
    return frame_begin_ns(c, frame) + c->ahead_ns;
}

uint64_t frame_clock_end_ns(const struct frame_clock *c)
{
    assert(c->n_frames > 0);
    return frame_due_ns(c, c->n_frames - 1);
}

uint64_t frame_clock_wait_ns(const struct frame_clock *c, uint64_t now_ns)
{
    uint64_t begin_ns = frame_begin_ns(c, c->n_done);

    return begin_ns > now_ns ? begin_ns - now_ns : 0;
}

void frame_clock_done(struct frame_clock *c, uint64_t begun_ns, uint64_t now_ns, bool ok)
{
    uint64_t due_ns = frame_due_ns(c, c->n_done);
    uint64_t spare_ns = ok && now_ns <= due_ns ? due_ns - now_ns : 0;

    assert(c->n_done < c->n_frames && begun_ns <= now_ns);
    if (c->n_done == 0 || spare_ns < c->spare_ns)
        c->spare_ns = spare_ns;
    c->n_late += !ok || now_ns > due_ns;
    c->n_failed += !ok;
    c->n_done++;
    fsb_hist_add(&c->took, now_ns - begun_ns);
}

/* Returns how many frames had to be there before that time. */
static uint64_t frames_due(const struct frame_clock *c, uint64_t now_ns)
{
    uint64_t low = 0, high = c->n_frames;

    while (low < high) {
        uint64_t middle = low + (high - low) / 2;

        if (frame_due_ns(c, middle) < now_ns)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

uint64_t frame_clock_late(const struct frame_clock *c, uint64_t now_ns)
{
    uint64_t n_due = frames_due(c, now_ns);

    return c->n_late + (n_due > c->n_done ? n_due - c->n_done : 0);
}

uint64_t frame_clock_skip(struct frame_clock *c, uint64_t now_ns)
{
    uint64_t n = frame_clock_late(c, now_ns) - c->n_late;

    if (n > 0)
        c->spare_ns = 0;
    c->n_done += n;
    c->n_late += n;
    c->n_skipped += n;
    return n;
}

bool stream_find_next(struct stream_find *find, bool held)
{
    unsigned step;

    if (held)
        find->held = find->n;
    else
        find->broke = find->n;
    if (find->broke == 0) {
        find->n = find->held > find->max / 2 ? find->max : find->held * 2;
        return find->held < find->max;
    }
    step = (find->broke - find->held) / 2;
    find->n = find->held + step;
    return step > 0 && step * 40 > find->held; /* half of the gap is over 2.5 % */
}
