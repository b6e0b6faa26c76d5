/*
 * redist_hold.c - close a file for clients with a token of exportd's own.
 *
 * In:     the phases of redist_file.c; recalls.
 * Out:    the token table of the export. A wake-up steps the files.
 * Keeps:  while the file is closed, no session has a token of it, and export->n_closed
 *         counts it.
 */
#include "exportd/redistribution/redist_hold.h"

#include <assert.h>

#include "exportd/redistribution/redist_file.h"
#include "exportd/sessions/session.h"

static uint64_t now_ns(const struct redist_file *f)
{
    return env_now_ns(f->x->env);
}

/* Notes that a session waits for the file. */
static void on_recall(struct token_holder *holder, const struct token_recall *recall)
{
    struct redist_file *f = container_of(holder, struct redist_file, hold.holder);

    (void)recall;
    if (f->hold.state != HOLD_CLOSED)
        return;
    f->hold.state = HOLD_WANTED;
    f->hold.wanted_ns = now_ns(f);
}

/* Steps the file: the wait for it may be over. */
static void on_wake(struct token_waiter *waiter)
{
    redist_files_soon(container_of(waiter, struct redist_file, hold.waiter)->x);
}

static const struct token_hooks hooks = { on_recall, on_wake };

void redist_hold_init(struct redist_file *f)
{
    token_holder_init(&f->hold.holder);
    f->hold.holder.hooks = &hooks;
    f->hold.waiter.holder = &f->hold.holder;
}

static enum redist_result when_free(enum token_verdict verdict)
{
    return verdict == TOKENS_FREE ? REDIST_NEXT : REDIST_WAIT;
}

enum redist_result redist_hold_start(struct redist_file *f)
{
    const struct token_want want = { f->in.ino, WANT_CHANGE, { 0 } };
    struct tokens *t = &f->export->tokens;
    enum token_verdict verdict = tokens_judge(t, &f->hold.holder, NULL, &want, 1);

    assert(f->hold.state == HOLD_NONE);
    if (verdict != TOKENS_FREE &&
        tokens_wait(t, &f->hold.waiter, &want, 1, now_ns(f)) != 0)
        return REDIST_FAILED;
    return when_free(verdict);
}

enum redist_result redist_hold_look(struct redist_file *f)
{
    assert(f->hold.state == HOLD_NONE);
    return when_free(tokens_look(&f->export->tokens, &f->hold.waiter, now_ns(f)));
}

bool redist_hold_take(struct redist_file *f)
{
    struct tokens *t = &f->export->tokens;
    const struct token_grant g = { .ino = f->in.ino,
                                   .mode = TOKEN_EXCLUSIVE,
                                   .how = GRANT_ASKED,
                                   .serial = ++f->x->last_grant };

    assert(f->hold.state == HOLD_NONE);
    tokens_leave(t, &f->hold.waiter);
    if (tokens_grant(t, &f->hold.holder, &g, now_ns(f)) != TOKEN_EXCLUSIVE) {
        tokens_give_back(t, &f->hold.holder, f->in.ino, TOKEN_NONE, UINT64_MAX,
                         now_ns(f));
        return false;
    }
    f->hold.state = export_is_open(f->export, f->in.ino) ? HOLD_WANTED : HOLD_CLOSED;
    f->hold.wanted_ns = now_ns(f);
    f->export->n_closed++;
    return true;
}

void redist_hold_release(struct redist_file *f)
{
    struct tokens *t = &f->export->tokens;

    tokens_leave(t, &f->hold.waiter);
    if (f->hold.state == HOLD_NONE)
        return;
    f->hold.state = HOLD_NONE;
    assert(f->export->n_closed > 0);
    f->export->n_closed--;
    tokens_give_back(t, &f->hold.holder, f->in.ino, TOKEN_NONE, UINT64_MAX, now_ns(f));
}

void redist_hold_end(struct redist_file *f)
{
    redist_hold_release(f);
    token_holder_end(&f->export->tokens, &f->hold.holder);
}

bool redist_hold_is_overdue(const struct redist_file *f, uint64_t ns)
{
    return f->hold.state == HOLD_WANTED && now_ns(f) >= f->hold.wanted_ns + ns;
}
