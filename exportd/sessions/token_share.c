/*
 * token_share.c - the number of tokens that each session may hold, and requests to hold
 * fewer.
 *
 * In:     the tick. Out: MD_EVENTS with another tokens_max; recalls of tokens that a
 *         session seems to have forgotten.
 * Keeps:  no session is left without tokens because others, maybe idle, hold all there
 *         are; nor because its count differs from exportd's: an answer that a session did
 *         not take leaves tokens that only exportd counts.
 */
#include "exportd/sessions/token_share.h"

#include "exportd/cluster/exportd_state.h"
#include "exportd/sessions/session_events.h"
#include "exportd/sessions/sessions.h"

enum {
    ASK_AT_A_TIME = 256, /* tokens, a tick */
    SHARE_MIN = 16,
};

/* Returns the largest n for which the sessions, each cut down to n, hold no more than
 * this. */
static size_t level_for(const struct exportd *x, size_t target)
{
    size_t n_above = HASH_COUNT(x->sessions->table.by_id), below = 0, level = 0, before;

    do {
        const struct session *s, *tmp;

        before = level;
        level = n_above == 0 || target < below ? before : (target - below) / n_above;
        n_above = below = 0;
        HASH_ITER(hh, x->sessions->table.by_id, s, tmp)
        {
            if (s->tokens.n > level)
                n_above++;
            else
                below += s->tokens.n;
        }
    } while (level > before);
    return level < SHARE_MIN ? SHARE_MIN : level;
}

/* Recalls the oldest tokens of a session above seven eighths of its limit. A mount gives
 * back from three quarters on, so this one has lost count, or its build knows no
 * limit. */
static void session_ask_oldest(struct session *s)
{
    if (s->tokens.n > s->tokens_max / 8 * 7 && s->n_events < ASK_AT_A_TIME)
        tokens_ask_oldest(&s->export->tokens, &s->tokens, ASK_AT_A_TIME);
}

void sessions_trim_tokens(struct exportd *x)
{
    const struct token_limits *limits = &x->token_limits;
    size_t level = limits->session;
    struct session *s, *tmp;

    if (x->n_tokens > limits->all / 4 * 3)
        x->sessions->shares.are_scarce = true;
    else if (x->n_tokens < limits->all / 2)
        x->sessions->shares.are_scarce = false;
    if (x->sessions->shares.are_scarce)
        level = level_for(x, limits->all / 8 * 5);
    if (level > limits->session)
        level = limits->session;
    HASH_ITER(hh, x->sessions->table.by_id, s, tmp)
    {
        if (s->ends)
            continue;
        session_ask_oldest(s); /* by the limit that it has known for a tick or longer */
        if (!x->sessions->shares.are_scarce || level < s->tokens_max)
            session_tell_tokens_max(s, (uint32_t)level);
    }
}
