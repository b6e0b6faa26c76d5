/*
 * tokens.c - see tokens.h.
 *
 * In:     token_wait.c and md_token.c; sessions that end.
 * Out:    recalls; waiters are woken to look again.
 * Keeps:  I5: a holder of EXCLUSIVE is the only holder of the inode. Beside RANGES,
 *         others have at most RANGES, and none that overlaps one to write.
 */
#include "exportd/tokens/tokens.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "common/base/units.h"

enum {
    COOL_AGAIN = 4, /* a recall within this many cooling times counts as soon */
};

/* Token of one inode that one session holds. */
struct token_holding {
    struct token_holding *next; /* in inode->holdings */
    struct token_inode *inode;
    struct token_holder *holder;
    struct range_map *ranges; /* owned; values of enum token_access; NULL: not RANGES */
    uint64_t grant;           /* serial of the newest grant */
    uint64_t call;
    uint8_t mode;
    uint8_t keep;          /* mode it is recalled down to; equal to mode: not recalled */
    uint8_t claimed;       /* mode claimed, between tokens_claim() and tokens_claimed() */
    uint64_t recalled_ns;  /* ns, monotonic; time of the first recall */
    struct list_node link; /* in holder->all */
    struct list_node recall_link; /* in holder->recalled */
};

/* Inode. Members that each answer reads come first, to fit two or three cache lines. */
struct token_inode {
    struct table_link by_ino; /* the hash is the inode number */
    struct token_holding *holdings;
    struct token_holding *exclusive; /* the only holding then, or NULL */
    uint32_t n, n_ranged;            /* holdings; those with RANGES: all or none */
    struct list_node places;
    uint64_t cool_ns;           /* ns, end of cooling; 0: not cooling */
    struct token_holding first; /* storage for one holding: most inodes have no other */
    struct list_node cool_link; /* in tokens->cooling */
    uint64_t cooled_ns;         /* ns, end of the newest cooling */
    uint32_t cool_ms;           /* ms, length of the newest cooling */
    struct token_recents *recents; /* owned, or NULL */
};

void tokens_init(struct tokens *t, const struct token_hooks *hooks,
                 const struct token_limits *limits, size_t *n_all)
{
    assert(limits != NULL && n_all != NULL);
    *t = (struct tokens){ .hooks = *hooks, .limits = limits, .n_all = n_all };
    list_init(&t->cooling);
}

void token_holder_init(struct token_holder *holder)
{
    *holder = (struct token_holder){ 0 };
    list_init(&holder->all);
    list_init(&holder->recalled);
}

/* ---- holdings ---- */

static struct token_inode *inode_of(struct table_link *link)
{
    return link == NULL ? NULL : container_of(link, struct token_inode, by_ino);
}

static uint64_t ino_of(const struct token_inode *i)
{
    return i->by_ino.hash;
}

static struct token_inode *inode_find(const struct tokens *t, uint64_t ino)
{
    return inode_of(table_find(&t->by_ino, ino));
}

static struct token_inode *inode_make(struct tokens *t, uint64_t ino)
{
    struct token_inode *i = inode_find(t, ino);

    if (i != NULL)
        return i;
    i = calloc(1, sizeof(*i));
    if (i == NULL || table_add(&t->by_ino, &i->by_ino, ino) != 0) {
        free(i);
        return NULL;
    }
    list_init(&i->places);
    list_init(&i->cool_link);
    return i;
}

static void inode_free_if_empty(struct tokens *t, struct token_inode *i)
{
    if (i->holdings != NULL || !list_is_empty(&i->places) || i->cool_ns != 0)
        return;
    assert(i->n == 0 && i->n_ranged == 0 && i->exclusive == NULL);
    assert(list_is_empty(&i->cool_link));
    table_remove(&t->by_ino, &i->by_ino);
    free(i->recents);
    free(i);
    if (t->by_ino.n == 0)
        table_free(&t->by_ino);
}

static struct token_holding *holding_find(const struct token_inode *i,
                                          const struct token_holder *holder)
{
    struct token_holding *h = i == NULL ? NULL : i->holdings;

    while (h != NULL && h->holder != holder)
        h = h->next;
    return h;
}

static struct token_holding *holding_make(struct tokens *t, struct token_inode *i,
                                          struct token_holder *holder)
{
    struct token_holding *h = i->first.holder == NULL ? &i->first : malloc(sizeof(*h));

    assert(i->exclusive == NULL);
    if (h == NULL)
        return NULL;
    *h = (struct token_holding){ 0 };
    h->inode = i;
    h->holder = holder;
    h->next = i->holdings;
    i->holdings = h;
    i->n++;
    list_add_tail(&holder->all, &h->link);
    list_init(&h->recall_link);
    holder->n++;
    (*t->n_all)++;
    return h;
}

static void holding_set_mode(struct token_holding *h, enum token_mode mode)
{
    struct token_inode *i = h->inode;

    if (i->exclusive == h)
        i->exclusive = NULL;
    if (mode == TOKEN_EXCLUSIVE)
        i->exclusive = h;
    if (h->mode == TOKEN_RANGES && mode != TOKEN_RANGES) {
        i->n_ranged--;
        range_map_free(h->ranges);
        free(h->ranges);
        h->ranges = NULL;
    } else if (h->mode != TOKEN_RANGES && mode == TOKEN_RANGES) {
        i->n_ranged++;
    }
    h->mode = (uint8_t)mode;
    assert(i->exclusive == NULL || i->n == 1); /* I5 */
    assert(i->n_ranged <= i->n);
    assert((h->ranges != NULL) == (mode == TOKEN_RANGES));
}

static void holding_free(struct tokens *t, struct token_holding *h)
{
    struct token_holding **at = &h->inode->holdings;

    assert(h->inode->n > 0 && h->holder->n > 0 && *t->n_all > 0);
    while (*at != h) {
        assert(*at != NULL);
        at = &(*at)->next;
    }
    *at = h->next;
    holding_set_mode(h, TOKEN_NONE);
    h->inode->n--;
    list_remove(&h->link);
    list_remove(&h->recall_link);
    h->holder->n--;
    (*t->n_all)--;
    if (h == &h->inode->first)
        h->holder = NULL;
    else
        free(h);
}

static bool is_recalled(const struct token_holding *h)
{
    return h != NULL && h->keep < h->mode;
}

static const struct token_hooks *hooks_of(const struct tokens *t,
                                          const struct token_holder *holder)
{
    return holder->hooks != NULL ? holder->hooks : &t->hooks;
}

static void recall_from(const struct tokens *t, struct token_holder *holder,
                        const struct token_recall *recall)
{
    hooks_of(t, holder)->recall(holder, recall);
}

static void wake(const struct tokens *t, struct token_waiter *waiter)
{
    hooks_of(t, waiter->holder)->wake(waiter);
}

static void wake_all(struct tokens *t, struct token_inode *i)
{
    LIST_FOREACH(node, &i->places)
        wake(t, container_of(node, struct token_place, link)->waiter);
}

/* ---- conflicts ---- */

/* Returns the mode that another holder may keep beside this kind of request. */
static enum token_mode kept_beside(enum want_kind kind)
{
    return kind == WANT_CHANGE ? TOKEN_NONE : TOKEN_SHARED;
}

/* Returns true if a request waits behind an earlier one: WANT_SEE takes nothing from
 * earlier waiters. */
static bool waits_behind(enum want_kind kind, enum want_kind before)
{
    return kind == WANT_CHANGE || (kind == WANT_SHARE && before == WANT_CHANGE);
}

/* Returns true if another holder waits for this inode with a smaller number; number 0 is
 * behind all. */
static bool is_behind_another(const struct token_inode *i,
                              const struct token_holder *holder, enum want_kind kind,
                              uint64_t number)
{
    LIST_FOREACH(node, &i->places) {
        const struct token_place *p = container_of(node, struct token_place, link);

        if (number != 0 && p->waiter->number >= number)
            break;
        if (p->waiter->holder != holder && waits_behind(kind, p->kind))
            return true;
    }
    return false;
}

static bool has_others(const struct token_inode *i, const struct token_holding *mine)
{
    return i->n > (mine != NULL);
}

/* Returns true if a holder without the whole inode should get a range of it: if others
 * have ranges, or if there are no others but some used the file elsewhere recently. */
static bool is_for_ranges(const struct token_inode *i, const struct token_holder *holder,
                          const struct token_holding *mine, const struct token_want *want)
{
    if (want->range.to == 0 || (mine != NULL && (mine->mode != TOKEN_RANGES ||
                                                 mine->ranges->n >= TOKEN_RANGES_MAX)))
        return false;
    if (has_others(i, mine))
        return i->n_ranged != 0;
    return (want->kind == WANT_CHANGE || mine != NULL) &&
           recents_are_apart(i->recents, holder->number);
}

/* Returns true if this range of another holder excludes the request. */
static bool excludes(const struct token_holding *h, const struct token_want *want)
{
    unsigned most;

    assert(h->mode == TOKEN_RANGES);
    most = range_map_most(h->ranges, want->range.from, want->range.to);
    return most == TOKEN_WRITE || (most != 0 && want->kind == WANT_CHANGE);
}

static bool is_excluded(const struct token_inode *i, const struct token_holding *mine,
                        const struct token_want *want)
{
    for (const struct token_holding *h = i->holdings; h != NULL; h = h->next)
        if (h != mine && excludes(h, want))
            return true;
    return false;
}

static bool is_held_by_another(const struct token_inode *i,
                               const struct token_holder *holder,
                               const struct token_holding *mine,
                               const struct token_want *want)
{
    if (i->n_ranged != 0 && has_others(i, mine))
        return !is_for_ranges(i, holder, mine, want) || is_excluded(i, mine, want);
    if (want->kind == WANT_CHANGE)
        return has_others(i, mine);
    return i->exclusive != NULL && i->exclusive != mine;
}

static bool is_in_way(const struct token_inode *i, const struct token_holder *holder,
                      const struct token_want *want, uint64_t number)
{
    const struct token_holding *mine = holding_find(i, holder);

    if (mine != NULL && mine->mode == TOKEN_EXCLUSIVE)
        return false;
    return is_held_by_another(i, holder, mine, want) ||
           is_behind_another(i, holder, want->kind, number);
}

void tokens_note_work(struct tokens *t, struct token_holder *holder, uint64_t ino,
                      const struct token_range *range)
{
    struct token_inode *i = inode_find(t, ino);

    if (i == NULL) /* no other holder is there */
        return;
    if (holder->number == 0)
        holder->number = ++t->n_holders;
    recents_note(&i->recents, holder->number, range);
}

enum token_verdict tokens_judge(const struct tokens *t, const struct token_holder *holder,
                                const struct token_waiter *waiter,
                                const struct token_want *wants, unsigned n)
{
    bool in_way = false, asked = false;

    assert(n <= TOKEN_WANTS_MAX && (waiter == NULL || waiter->holder == holder));
    for (unsigned k = 0; k < n; k++) {
        const struct token_inode *i =
            wants[k].ino == 0 ? NULL : inode_find(t, wants[k].ino);

        if (i == NULL)
            continue;
        in_way = in_way ||
                 is_in_way(i, holder, &wants[k], waiter == NULL ? 0 : waiter->number);
        asked = asked || is_recalled(holding_find(i, holder));
    }
    return !in_way ? TOKENS_FREE : asked ? TOKENS_ASKED : TOKENS_IN_WAY;
}

/* ---- recalls ---- */

static void recall_send(struct tokens *t, struct token_holding *h)
{
    const struct token_recall recall = {
        .ino = ino_of(h->inode),
        .keep = (enum token_mode)h->keep,
        .grant = h->grant,
        .call = h->call,
    };

    recall_from(t, h->holder, &recall);
}

static void recall(struct tokens *t, struct token_holding *h, enum token_mode keep,
                   uint64_t now_ns)
{
    if (h->keep <= keep)
        return;
    assert(h->keep <= h->mode && keep < TOKEN_RANGES);
    if (!is_recalled(h)) {
        h->recalled_ns = now_ns;
        list_add_tail(&h->holder->recalled, &h->recall_link);
    }
    h->keep = (uint8_t)keep;
    recall_send(t, h);
    LIST_FOREACH(node, &h->inode->places) { /* waiters that now must not wait any more */
        struct token_waiter *w = container_of(node, struct token_place, link)->waiter;

        if (w->holder == h->holder)
            wake(t, w);
    }
}

static struct token_want place_want(const struct token_place *p)
{
    return (struct token_want){ ino_of(p->inode), p->kind, p->range };
}

/* Recalls what stands in the way of the first waiter in the queue. */
static void place_recall(struct tokens *t, struct token_place *p, uint64_t now_ns)
{
    const struct token_holding *mine = holding_find(p->inode, p->waiter->holder);
    const struct token_want want = place_want(p);

    if (mine != NULL && mine->mode == TOKEN_EXCLUSIVE)
        return;
    if (is_behind_another(p->inode, p->waiter->holder, p->kind, p->waiter->number))
        return;
    for (struct token_holding *h = p->inode->holdings; h != NULL; h = h->next) {
        if (h->holder == p->waiter->holder)
            continue;
        if (h->mode != TOKEN_RANGES)
            recall(t, h, kept_beside(p->kind), now_ns);
        else if (!is_for_ranges(p->inode, p->waiter->holder, mine, &want) ||
                 excludes(h, &want))
            recall(t, h, TOKEN_NONE, now_ns);
    }
}

/* Stops unasked grants for a while, since several holders want the inode: asking each
 * time is cheaper than a recall each time. */
static void inode_cool(struct tokens *t, struct token_inode *i, uint64_t now_ns)
{
    if (i->cool_ms == 0 || now_ns > i->cooled_ns + ms_to_ns(i->cool_ms * COOL_AGAIN))
        i->cool_ms = TOKEN_COOL_MS;
    else if (now_ns > i->cooled_ns && i->cool_ms < TOKEN_COOL_MAX_MS)
        i->cool_ms *= 2; /* granted, and wanted again at once */
    list_remove(&i->cool_link);
    i->cool_ns = i->cooled_ns = now_ns + ms_to_ns(i->cool_ms);
    list_add_tail(&t->cooling, &i->cool_link);
}

/* ---- waiters ---- */

/* Inserts a waiter into the queue, by number. */
static void place_add(struct token_inode *i, struct token_place *p)
{
    struct list_node *where = i->places.prev;

    while (where != &i->places &&
           container_of(where, struct token_place, link)->waiter->number >
               p->waiter->number)
        where = where->prev;
    list_add_after(where, &p->link);
}

int tokens_wait(struct tokens *t, struct token_waiter *waiter,
                const struct token_want *wants, unsigned n, uint64_t now_ns)
{
    assert(waiter->n == 0 && n <= TOKEN_WANTS_MAX);
    assert(waiter->holder != NULL);
    if (waiter->number == 0)
        waiter->number = ++t->n_waits;
    for (unsigned k = 0; k < n; k++) {
        struct token_inode *i = wants[k].ino == 0 ? NULL : inode_make(t, wants[k].ino);

        if (wants[k].ino == 0)
            continue;
        if (i == NULL) {
            tokens_leave(t, waiter);
            return -ENOMEM;
        }
        waiter->places[waiter->n] = (struct token_place){
            .inode = i, .waiter = waiter, .kind = wants[k].kind, .range = wants[k].range
        };
        place_add(i, &waiter->places[waiter->n++]);
    }
    for (unsigned k = 0; k < waiter->n; k++)
        place_recall(t, &waiter->places[k], now_ns);
    return 0;
}

enum token_verdict tokens_look(struct tokens *t, struct token_waiter *waiter,
                               uint64_t now_ns)
{
    struct token_want wants[TOKEN_WANTS_MAX];

    for (unsigned k = 0; k < waiter->n; k++) {
        wants[k] = place_want(&waiter->places[k]);
        place_recall(t, &waiter->places[k], now_ns);
    }
    return tokens_judge(t, waiter->holder, waiter, wants, waiter->n);
}

void tokens_leave(struct tokens *t, struct token_waiter *waiter)
{
    while (waiter->n > 0) {
        struct token_place *p = &waiter->places[--waiter->n];

        assert(p->waiter == waiter);
        list_remove(&p->link);
        wake_all(t, p->inode);
        inode_free_if_empty(t, p->inode);
    }
}

/* ---- grants ---- */

static bool holders_have_room(const struct tokens *t, const struct token_holder *holder,
                              size_t n, bool reserve)
{
    size_t mine = t->limits->session, all = t->limits->all;

    if (reserve) {
        mine += mine / TOKENS_RESERVE_PART;
        all += all / TOKENS_RESERVE_PART;
    }
    return holder->n + n <= mine && *t->n_all + n <= all;
}

bool tokens_have_room(const struct tokens *t, const struct token_holder *holder,
                      unsigned n)
{
    return holders_have_room(t, holder, n, true);
}

/* Returns true if the inode may be granted along with an answer. */
static bool is_free_to_give(const struct tokens *t, const struct token_inode *i,
                            const struct token_holding *mine,
                            const struct token_holder *holder, uint64_t now_ns)
{
    const struct token_want see = { ino_of(i), WANT_SEE, { 0 } };

    return list_is_empty(&i->places) && i->cool_ns <= now_ns &&
           !is_held_by_another(i, holder, mine, &see) &&
           holders_have_room(t, holder, 1, false);
}

/* Renews a holding under a new grant, and raises its mode to `mode`. */
static enum token_mode holding_grant(struct tokens *t, struct token_holding *h,
                                     const struct token_grant *grant,
                                     enum token_mode mode)
{
    bool asked = is_recalled(h);

    assert(grant->serial >= h->grant);
    if (h->mode < mode)
        holding_set_mode(h, mode);
    if (!asked)
        h->keep = h->mode;
    h->grant = grant->serial;
    h->call = grant->call;
    if (asked)
        recall_send(t, h); /* the recall under way names an older grant */
    return (enum token_mode)h->mode;
}

static void holding_free_if_new(struct tokens *t, struct token_holding *h)
{
    struct token_inode *i = h->inode;

    if (h->mode == TOKEN_NONE)
        holding_free(t, h);
    inode_free_if_empty(t, i);
}

/* Adds a range to a holding. */
static int holding_raise(struct token_holding *h, const struct token_range *range,
                         enum token_access access)
{
    int rc = 0;

    assert(h->mode == TOKEN_NONE || h->mode == TOKEN_RANGES);
    if (h->ranges == NULL)
        h->ranges = calloc(1, sizeof(*h->ranges));
    if (h->ranges == NULL)
        return -ENOMEM;
    if (range_map_least(h->ranges, range->from, range->to) < (unsigned)access)
        rc = range_map_raise(h->ranges, range->from, range->to, access);
    if (rc != 0 && h->mode == TOKEN_NONE) {
        range_map_free(h->ranges);
        free(h->ranges);
        h->ranges = NULL;
    }
    return rc;
}

/* Grants the needed range, widened into free space, so that holders that work apart
 * seldom ask again. */
static enum token_mode grant_range(struct tokens *t, struct token_inode *i,
                                   struct token_holder *holder,
                                   const struct token_grant *grant)
{
    struct token_range limit = { 0, SPAN_END };
    struct token_holding *h = holding_find(i, holder);

    for (const struct token_holding *other = i->holdings; other != NULL;
         other = other->next)
        if (other != h)
            ranges_limit(other->ranges, &grant->range, &limit);
    recents_limit(i->recents, holder->number, &grant->range, &limit);
    if (h == NULL)
        h = holding_make(t, i, holder);
    if (h == NULL) {
        inode_free_if_empty(t, i);
        return TOKEN_NONE;
    }
    if (holding_raise(h, &limit,
                      grant->mode == TOKEN_EXCLUSIVE ? TOKEN_WRITE : TOKEN_READ) != 0) {
        holding_free_if_new(t, h);
        return TOKEN_NONE;
    }
    assert(limit.from <= grant->range.from && limit.to >= grant->range.to);
    *grant->given = limit;
    return holding_grant(t, h, grant, TOKEN_RANGES);
}

enum token_mode tokens_grant(struct tokens *t, struct token_holder *holder,
                             const struct token_grant *grant, uint64_t now_ns)
{
    struct token_want want = { grant->ino,
                               grant->mode == TOKEN_EXCLUSIVE ? WANT_CHANGE : WANT_SHARE,
                               { 0 } };
    struct token_inode *i = inode_make(t, grant->ino);
    struct token_holding *h = holding_find(i, holder);
    enum token_mode mode = grant->mode;
    bool unasked = grant->how == GRANT_UNASKED;

    assert(mode != TOKEN_RANGES || (h != NULL && h->mode == mode));
    assert(grant->range.to == 0 || grant->given != NULL);
    if (i == NULL || (unasked && is_recalled(h)))
        return TOKEN_NONE;
    if (unasked && !is_free_to_give(t, i, h, holder, now_ns))
        mode = TOKEN_NONE;
    if (mode == TOKEN_EXCLUSIVE && unasked && is_held_by_another(i, holder, h, &want))
        mode = TOKEN_SHARED;
    want.range = grant->range;
    if (is_for_ranges(i, holder, h, &want))
        return grant_range(t, i, holder, grant);
    /* no other holder is there */
    if (h != NULL && h->mode == TOKEN_RANGES && mode == TOKEN_SHARED)
        mode = TOKEN_EXCLUSIVE;
    if (h == NULL && mode != TOKEN_NONE)
        h = holding_make(t, i, holder);
    if (h == NULL) {
        inode_free_if_empty(t, i);
        return TOKEN_NONE;
    }
    return holding_grant(t, h, grant, mode);
}

/* Lowers a holding. */
static void holding_lower(struct tokens *t, struct token_holding *h, enum token_mode mode)
{
    struct token_inode *i = h->inode;

    assert(mode < h->mode);
    holding_set_mode(h, mode);
    if (h->keep > mode)
        h->keep = (uint8_t)mode;
    if (!is_recalled(h))
        list_remove(&h->recall_link);
    if (mode == TOKEN_NONE)
        holding_free(t, h);
    wake_all(t, i);
    inode_free_if_empty(t, i);
}

void tokens_give_back(struct tokens *t, struct token_holder *holder, uint64_t ino,
                      enum token_mode keep, uint64_t grant, uint64_t now_ns)
{
    struct token_holding *h = holding_find(inode_find(t, ino), holder);

    assert(keep != TOKEN_RANGES); /* nothing is known of the ranges */
    if (h == NULL || h->mode <= keep || h->grant > grant)
        return;
    if (h->mode == TOKEN_RANGES)
        keep = TOKEN_NONE;
    if (is_recalled(h) && keep <= h->keep)
        inode_cool(t, h->inode, now_ns);
    holding_lower(t, h, keep);
}

void tokens_inode_gone(struct tokens *t, uint64_t ino)
{
    struct token_inode *i = inode_find(t, ino);

    if (i == NULL)
        return;
    while (i->holdings != NULL)
        holding_free(t, i->holdings);
    wake_all(t, i);
    inode_free_if_empty(t, i);
}

void token_holder_end(struct tokens *t, struct token_holder *holder)
{
    LIST_FOREACH_SAFE(node, &holder->all)
        holding_lower(t, container_of(node, struct token_holding, link), TOKEN_NONE);
}

void tokens_ask_oldest(struct tokens *t, struct token_holder *holder, size_t n)
{
    if (n > holder->n)
        n = holder->n;
    for (; n > 0; n--) {
        struct token_holding *h =
            container_of(holder->all.next, struct token_holding, link);
        const struct token_recall recall = {
            .ino = ino_of(h->inode),
            .keep = TOKEN_NONE,
            .grant = h->grant,
            .call = h->call,
        };

        list_remove(&h->link); /* do not ask for it again if it is given back late */
        list_add_tail(&holder->all, &h->link);
        if (!is_recalled(h))
            recall_from(t, holder, &recall);
    }
}

/* ---- queries ---- */

enum token_mode tokens_held(const struct tokens *t, const struct token_holder *holder,
                            uint64_t ino)
{
    const struct token_holding *h = holding_find(inode_find(t, ino), holder);

    return h == NULL ? TOKEN_NONE : (enum token_mode)h->mode;
}

uint64_t tokens_held_grant(const struct tokens *t, const struct token_holder *holder,
                           uint64_t ino)
{
    const struct token_holding *h = holding_find(inode_find(t, ino), holder);

    return h == NULL || h->mode == TOKEN_NONE ? 0 : h->grant;
}

bool tokens_is_written(const struct tokens *t, const struct token_holder *holder,
                       uint64_t ino)
{
    const struct token_want see = { ino, WANT_SEE, { 0 } };
    const struct token_inode *i = inode_find(t, ino);

    return i != NULL && is_held_by_another(i, holder, holding_find(i, holder), &see);
}

bool tokens_is_recalled(const struct tokens *t, const struct token_holder *holder,
                        uint64_t ino)
{
    return is_recalled(holding_find(inode_find(t, ino), holder));
}

void tokens_each(const struct tokens *t,
                 void (*fn)(void *arg, const struct token_holder *holder, uint64_t ino,
                            enum token_mode mode, const struct range_map *ranges),
                 void *arg)
{
    for (size_t k = 0; k < t->by_ino.n_chains; k++) {
        for (struct table_link *link = t->by_ino.chains[k]; link != NULL;
             link = link->next) {
            const struct token_inode *i = inode_of(link);

            for (const struct token_holding *h = i->holdings; h != NULL; h = h->next)
                fn(arg, h->holder, ino_of(i), (enum token_mode)h->mode, h->ranges);
        }
    }
}

size_t token_holder_list(const struct token_holder *holder, uint64_t *inos)
{
    size_t n = 0, end = holder->n;

    LIST_FOREACH(node, &holder->all) {
        const struct token_holding *h = container_of(node, struct token_holding, link);

        if (h->mode == TOKEN_SHARED)
            inos[n++] = ino_of(h->inode);
        else
            inos[--end] = ino_of(h->inode);
    }
    assert(n == end);
    return n;
}

uint64_t token_holder_owes_since(const struct token_holder *holder)
{
    assert(holder->n > 0 || list_is_empty(&holder->recalled));
    if (list_is_empty(&holder->recalled))
        return UINT64_MAX;
    return container_of(holder->recalled.next, struct token_holding, recall_link)
        ->recalled_ns;
}

uint64_t token_holder_owes_shared_since(const struct token_holder *holder)
{
    LIST_FOREACH(node, &holder->recalled) {
        const struct token_holding *h =
            container_of(node, struct token_holding, recall_link);

        if (h->mode == TOKEN_SHARED)
            return h->recalled_ns;
    }
    return UINT64_MAX;
}

void token_holder_extend(struct token_holder *holder, uint64_t slept_ns)
{
    LIST_FOREACH(node, &holder->recalled)
        container_of(node, struct token_holding, recall_link)->recalled_ns += slept_ns;
}

/* ---- claims ---- */

int tokens_claim(struct tokens *t, struct token_holder *holder, uint64_t ino,
                 enum token_mode mode, bool fresh)
{
    struct token_inode *i = fresh ? inode_make(t, ino) : inode_find(t, ino);
    struct token_holding *h = holding_find(i, holder);

    assert(mode == TOKEN_SHARED || mode == TOKEN_EXCLUSIVE);
    if (fresh && i == NULL)
        return -ENOMEM;
    if (fresh && h == NULL) {
        const struct token_want want = {
            ino, mode == TOKEN_EXCLUSIVE ? WANT_CHANGE : WANT_SHARE, { 0 }
        };
        bool is_free = !is_held_by_another(i, holder, h, &want);

        if (is_free)
            h = holding_make(t, i, holder);
        if (h != NULL) {
            holding_set_mode(h, mode);
            h->keep = h->mode;
        }
        inode_free_if_empty(t, i);
    }
    if (h == NULL || h->mode < mode || h->mode == TOKEN_RANGES)
        return -EAGAIN;
    if (h->claimed < mode)
        h->claimed = (uint8_t)mode;
    return 0;
}

/* Accepts the claim of a range by a holder that exportd knows nothing of. */
static int claim_fresh_range(struct tokens *t, struct token_holder *holder, uint64_t ino,
                             const struct token_range *range, enum token_access access)
{
    const struct token_want want = { ino,
                                     access == TOKEN_WRITE ? WANT_CHANGE : WANT_SHARE,
                                     *range };
    struct token_inode *i = inode_make(t, ino);
    struct token_holding *h = holding_find(i, holder);
    bool is_free;
    int rc;

    if (i == NULL)
        return -ENOMEM;
    is_free = i->n == i->n_ranged && !is_excluded(i, h, &want);
    if (is_free && h == NULL)
        h = holding_make(t, i, holder);
    if (!is_free || h == NULL) {
        inode_free_if_empty(t, i);
        return -EAGAIN;
    }
    rc = holding_raise(h, range, access);
    if (rc == 0) {
        holding_set_mode(h, TOKEN_RANGES);
        h->keep = h->mode;
    }
    holding_free_if_new(t, h);
    return rc;
}

int tokens_claim_range(struct tokens *t, struct token_holder *holder, uint64_t ino,
                       const struct token_range *range, enum token_access access,
                       bool fresh)
{
    struct token_holding *h;
    int rc = fresh ? claim_fresh_range(t, holder, ino, range, access) : 0;

    assert(range->from < range->to && (access == TOKEN_READ || access == TOKEN_WRITE));
    if (rc != 0)
        return rc;
    h = holding_find(inode_find(t, ino), holder);
    if (h == NULL || h->mode < TOKEN_RANGES)
        return -EAGAIN;
    if (h->mode == TOKEN_RANGES &&
        range_map_least(h->ranges, range->from, range->to) < (unsigned)access)
        return -EAGAIN;
    h->claimed = h->mode; /* ranges it does not claim are given back when recalled */
    return 0;
}

void tokens_claim_all(struct token_holder *holder)
{
    LIST_FOREACH(node, &holder->all) {
        struct token_holding *h = container_of(node, struct token_holding, link);

        h->claimed = h->mode;
    }
}

void tokens_claimed(struct tokens *t, struct token_holder *holder, uint64_t serial)
{
    LIST_FOREACH_SAFE(node, &holder->all) {
        struct token_holding *h = container_of(node, struct token_holding, link);
        enum token_mode mode = (enum token_mode)h->claimed;

        assert(h->holder == holder && serial >= h->grant);
        h->claimed = TOKEN_NONE;
        h->grant = serial;
        h->call = 0;
        if (is_recalled(h) && h->keep < mode)
            recall_send(t, h);
        if (h->mode > mode)
            holding_lower(t, h, mode);
    }
}

void tokens_tick(struct tokens *t, uint64_t now_ns)
{
    LIST_FOREACH_SAFE(node, &t->cooling) {
        struct token_inode *i = container_of(node, struct token_inode, cool_link);

        assert(i->cool_ns != 0);
        if (i->cool_ns > now_ns)
            continue;
        list_remove(&i->cool_link);
        i->cool_ns = 0;
        if (i->n_ranged < 2) {
            free(i->recents);
            i->recents = NULL;
        }
        inode_free_if_empty(t, i);
    }
}

void tokens_free(struct tokens *t)
{
    tokens_tick(t, UINT64_MAX);
    assert(t->by_ino.n == 0);
}
