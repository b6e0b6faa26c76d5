/*
 * token_cache.c - a hash of tokens behind a mutex.
 *
 * In:     answers and recalls, from any loop. Out: what the kernel may cache, and what it
 *         caches.
 * Keeps:  I5, our half: whatever the kernel is given under a token is noted while no
 *         recall can begin. Nothing is given under a token that is being recalled, or was
 *         recalled since the answer was made.
 */
#include "rozomount/tokens/token_cache.h"

#include <assert.h>
#include <linux/limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/proto/rozo.pb-c.h"

#include "common/base/list.h"
#include "common/base/range_map.h"
#include "rozomount/options/xalloc.h"
#include "rozomount/tokens/md_attr.h"

enum {
    N_SLOTS = 8192,
    AHEAD_MISSES_MIN = 4, /* lookups of unknown names that start a prefetch */
    AHEAD_MISSES_MAX = 1024,
    AHEAD_ENTRIES_MIN = 64,
    AHEAD_ENTRIES_MAX = 1024,
};

/* Attributes for the kernel's next request. */
struct kept_attr {
    struct md_attr attr;
    uint64_t grant;
    struct list_node ahead; /* in token_cache->ahead if prefetched */
};

/* State of the prefetch in a directory. */
struct aheads {
    uint64_t next; /* cookie where the next part begins */
    unsigned n;    /* entries in the last request */
    unsigned hits; /* LOOKUPs that used these entries */
    /* unknown names since; at misses_max the next request is sent */
    unsigned misses, misses_max;
    bool is_out;
};

/* Names of a directory: those that the kernel caches and, if it is being or was
 * listed, all that may exist. */
struct kernel_names {
    struct table by_name;
    struct kernel_name *first, **end;
    bool all;           /* no other name exists */
    bool listed;        /* all names up to listed_to are here */
    uint64_t listed_to; /* cookie */
    uint64_t since;     /* n_changes at the start; older answers cannot be used */
};

/* A token is lost with its session, and until it is given back. */
enum token_loss {
    LOSS_NONE,
    LOSS_FOUND,   /* lost: ignores grants */
    LOSS_REPORTED /* lost, and returned by token_cache_lost_one() */
};

/* A token that token_cache_surplus() has returned leaves, and counts as this. */
enum token_leave {
    LEAVE_NOT,
    LEAVE_PLAIN, /* the kernel caches only attributes under it */
    LEAVE_HEAVY
};

struct token {
    struct table_link by_ino; /* hash: the inode number */
    enum token_mode mode;
    enum token_mode ceiling; /* highest mode usable for answers; lower during a recall */
    bool listing;            /* a listing cached by the kernel is valid */
    enum token_loss loss;
    bool has_pages; /* the kernel may have pages under it */
    bool has_data;  /* the kernel was given some data */
    enum token_leave leave;
    size_t n_names_leaving;
    uint64_t grant;              /* newest grant known */
    uint64_t lowered;            /* EXCLUSIVE from grants up to this one was given back */
    struct kernel_names *names;  /* owned; NULL: none */
    struct kept_attr *kept;      /* owned; NULL: none */
    struct aheads *aheads;       /* owned; NULL: no unknown name was looked up */
    uint32_t xattrs;             /* XattrBits; 0: not known */
    struct xattr_set *xattr_set; /* owned; NULL: none is known */
    struct list_node link;       /* in token_cache->all */
    struct list_node named;      /* in token_cache->named if it has names */
    struct range_map ranges;     /* RANGES: values of enum token_access; never empty */
    uint64_t size;               /* RANGES: file size, fixed while held */
};

struct token_cache {
    pthread_mutex_t lock; /* guards all members below */
    atomic_bool given;    /* opened_grant is not 0 */
    atomic_bool others;
    struct table by_ino;
    struct list_node all;   /* least recently used first */
    struct list_node named; /* tokens with names, least recently used first */
    size_t n_names;
    size_t max; /* tokens that exportd grants */
    bool trims, trims_names;
    size_t n_leaving, n_leaving_heavy, n_names_leaving;
    struct list_node ahead; /* prefetched attributes, oldest first */
    size_t n_ahead;
    uint64_t opened_grant;        /* grants below are void; 0: all are */
    uint64_t given_back[N_SLOTS]; /* by hash of the inode: newest void grant */
    uint64_t changed[N_SLOTS];    /* by hash of the inode: n_changes at our last change */
    uint32_t xattrs_changing[N_SLOTS]; /* by hash of the inode: xattr changes under way */
    struct xattr_cache xattrs;
    atomic_ullong n_changes;
};

struct token_cache *token_cache_new(void)
{
    struct token_cache *t = xzalloc(sizeof(*t));

    pthread_mutex_init(&t->lock, NULL);
    list_init(&t->all);
    list_init(&t->named);
    list_init(&t->ahead);
    t->max = TOKENS_MAX;
    xattr_cache_init(&t->xattrs);
    return t;
}

void token_cache_lock(struct token_cache *t)
{
    pthread_mutex_lock(&t->lock);
}

void token_cache_unlock(struct token_cache *t)
{
    pthread_mutex_unlock(&t->lock);
}

static struct token *token_find(struct token_cache *t, uint64_t ino)
{
    struct table_link *link = table_find(&t->by_ino, ino);

    return link == NULL ? NULL : container_of(link, struct token, by_ino);
}

static uint64_t ino_of(const struct token *k)
{
    return k->by_ino.hash;
}

static void table_put(struct table *table, struct table_link *link, uint64_t hash)
{
    if (table_add(table, link, hash) != 0)
        abort(); /* out of memory, as in xzalloc() */
}

static size_t names_max(const struct token_cache *t)
{
    return t->max * TOKENS_NAMES_PER;
}

static unsigned slot_of(uint64_t ino)
{
    return (ino * 0x9e3779b97f4a7c15u >> 40) % N_SLOTS;
}

static bool grant_is_good(struct token_cache *t, uint64_t ino, uint64_t grant)
{
    return grant != 0 && t->opened_grant != 0 && grant >= t->opened_grant &&
           grant > t->given_back[slot_of(ino)];
}

static void token_comes_last(struct token_cache *t, struct token *k)
{
    list_remove(&k->link);
    list_add_tail(&t->all, &k->link);
}

/* Marks the token as most recently used. */
static void token_use(struct token_cache *t, struct token *k)
{
    token_comes_last(t, k);
    if (k->names != NULL) {
        list_remove(&k->named);
        list_add_tail(&t->named, &k->named);
    }
}

void kernel_names_free(struct kernel_name *names)
{
    for (struct kernel_name *next; names != NULL; names = next) {
        next = names->next;
        free(names);
    }
}

static void kept_drop(struct token_cache *t, struct token *k)
{
    if (k->kept == NULL)
        return;
    if (!list_is_empty(&k->kept->ahead)) {
        list_remove(&k->kept->ahead);
        t->n_ahead--;
    }
    free(k->kept);
    k->kept = NULL;
}

static void xattrs_drop(struct token_cache *t, struct token *k)
{
    k->xattrs = 0;
    xattr_cache_drop(&t->xattrs, &k->xattr_set);
}

/* Takes all names from a token; the caller owns them. */
static struct kernel_name *token_take_names(struct token_cache *t, struct token *k)
{
    struct kernel_names *names = k->names;
    struct kernel_name *first;

    if (names == NULL)
        return NULL;
    first = names->first;
    t->n_names -= names->by_name.n;
    table_free(&names->by_name);
    free(names);
    k->names = NULL;
    list_remove(&k->named);
    t->n_names_leaving -= k->n_names_leaving;
    k->n_names_leaving = 0;
    return first;
}

/* Marks the names as incomplete: others may exist, and the noted ones may belong to
 * other inodes. */
static void token_doubt_names(struct token *k)
{
    struct kernel_names *names = k->names;

    if (names == NULL)
        return;
    names->all = names->listed = false;
    names->listed_to = 0;
    for (struct kernel_name *n = names->first; n != NULL; n = n->next)
        n->ino = 0;
}

/* Clears the marks of a token that is no longer being given back. */
static void token_left(struct token_cache *t, struct token *k)
{
    t->n_leaving -= k->leave != LEAVE_NOT;
    t->n_leaving_heavy -= k->leave == LEAVE_HEAVY;
    t->n_names_leaving -= k->n_names_leaving;
    k->leave = LEAVE_NOT;
    k->n_names_leaving = 0;
}

static void token_free(struct token_cache *t, struct token *k)
{
    token_left(t, k);
    kernel_names_free(token_take_names(t, k));
    kept_drop(t, k);
    xattrs_drop(t, k);
    free(k->aheads);
    range_map_free(&k->ranges);
    list_remove(&k->link);
    table_remove(&t->by_ino, &k->by_ino);
    free(k);
}

void token_cache_free(struct token_cache *t)
{
    if (t == NULL)
        return;
    LIST_FOREACH_SAFE(node, &t->all)
        token_free(t, container_of(node, struct token, link));
    table_free(&t->by_ino);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

/* ---- the session ---- */

/* Needs the lock. */
static uint64_t *list_held(struct token_cache *t, enum token_mode least,
                           enum token_mode most, size_t *n)
{
    uint64_t *list = NULL;

    *n = 0;
    if (t->by_ino.n != 0)
        list = xzalloc(t->by_ino.n * sizeof(*list));
    LIST_FOREACH(node, &t->all) {
        const struct token *k = container_of(node, struct token, link);

        if (k->mode >= least && k->mode <= most)
            list[(*n)++] = ino_of(k);
    }
    return list;
}

uint64_t *token_cache_list(struct token_cache *t, size_t *n)
{
    uint64_t *list;

    token_cache_lock(t);
    list = list_held(t, TOKEN_SHARED, TOKEN_EXCLUSIVE, n);
    token_cache_unlock(t);
    return list;
}

/* Needs the lock. */
static void list_ranges(struct token_cache *t, struct token_cache_claim *out)
{
    size_t n = 0;

    LIST_FOREACH(node, &t->all)
        n += container_of(node, struct token, link)->ranges.n;
    out->n_ranges = 0;
    out->ranges = n == 0 ? NULL : xzalloc(n * sizeof(*out->ranges));
    LIST_FOREACH(node, &t->all) {
        const struct token *k = container_of(node, struct token, link);

        for (size_t i = 0; i < k->ranges.n; i++) {
            const struct mapped_range *s = &k->ranges.list[i];

            out->ranges[out->n_ranges++] = (struct held_range){
                .ino = ino_of(k),
                .from = s->from,
                .to = s->to,
                .write = s->value == TOKEN_WRITE,
                .size = k->size,
            };
        }
    }
}

/* Tokens of locks are not claimed: an exportd of an earlier build would not keep them. */
static void lock_tokens_drop(struct token_cache *t)
{
    LIST_FOREACH_SAFE(node, &t->all) {
        struct token *k = container_of(node, struct token, link);

        if (token_is_of_locks(ino_of(k)))
            token_free(t, k);
    }
}

void token_cache_claim(struct token_cache *t, struct token_cache_claim *out)
{
    token_cache_lock(t);
    t->opened_grant = 0;
    lock_tokens_drop(t);
    out->shared = list_held(t, TOKEN_SHARED, TOKEN_SHARED, &out->n_shared);
    out->exclusive = list_held(t, TOKEN_EXCLUSIVE, TOKEN_EXCLUSIVE, &out->n_exclusive);
    list_ranges(t, out);
    token_cache_unlock(t);
}

void token_cache_opened(struct token_cache *t, uint64_t grant, bool lost)
{
    token_cache_lock(t);
    t->opened_grant = grant;
    atomic_store(&t->given, grant != 0);
    LIST_FOREACH(node, &t->all) {
        struct token *k = container_of(node, struct token, link);

        k->grant = grant;
        kept_drop(t, k); /* exportd may have lost changes in a power failure */
        xattrs_drop(t, k);
        token_doubt_names(k);
        if (lost || grant == 0) {
            k->loss = LOSS_FOUND;
            k->mode = k->ceiling = TOKEN_NONE;
            range_map_free(&k->ranges);
        }
    }
    token_cache_unlock(t);
}

bool token_cache_are_given(struct token_cache *t)
{
    return atomic_load(&t->given);
}

uint64_t token_cache_lost_one(struct token_cache *t)
{
    uint64_t ino = 0;

    token_cache_lock(t);
    LIST_FOREACH(node, &t->all) {
        struct token *k = container_of(node, struct token, link);

        if (k->loss == LOSS_FOUND) {
            k->loss = LOSS_REPORTED;
            ino = ino_of(k);
            token_comes_last(t, k);
            break;
        }
    }
    token_cache_unlock(t);
    return ino;
}

bool token_cache_is_lost(struct token_cache *t, uint64_t ino)
{
    const struct token *k;
    bool lost;

    token_cache_lock(t);
    k = token_find(t, ino);
    lost = k != NULL && k->loss != LOSS_NONE;
    token_cache_unlock(t);
    return lost;
}

/* ---- grants ---- */

/* Returns the token of ino, made if there is none. Needs the lock and a valid grant. */
static struct token *token_make(struct token_cache *t, uint64_t ino)
{
    struct token *k = token_find(t, ino);

    if (k != NULL)
        return k;
    k = xzalloc(sizeof(*k));
    k->ceiling = TOKEN_EXCLUSIVE;
    list_init(&k->named);
    list_add_tail(&t->all, &k->link);
    table_put(&t->by_ino, &k->by_ino, ino);
    return k;
}

void token_cache_inherit(struct token_cache *t, const uint64_t *inos, size_t n)
{
    token_cache_lock(t);
    for (size_t i = 0; i < n; i++) {
        struct token *k = token_make(t, inos[i]);

        k->mode = TOKEN_SHARED;
        k->has_pages = k->has_data = true;
    }
    token_cache_unlock(t);
}

static void token_note_grant(struct token_cache *t, struct token *k, uint64_t grant)
{
    token_use(t, k);
    if (grant > k->grant)
        k->grant = grant;
}

void token_cache_grant_locked(struct token_cache *t, uint64_t ino, enum token_mode mode,
                              uint64_t grant)
{
    struct token *k;

    if (mode == TOKEN_NONE || !grant_is_good(t, ino, grant))
        return;
    k = mode == TOKEN_RANGES ? token_find(t, ino) : token_make(t, ino);
    if (k == NULL)
        return;
    if (mode == TOKEN_EXCLUSIVE && grant <= k->lowered)
        mode = TOKEN_SHARED;
    if (mode > k->mode && mode != TOKEN_RANGES && k->loss == LOSS_NONE) {
        k->mode = mode;
        range_map_free(&k->ranges);
    }
    k->has_pages |= mode == TOKEN_EXCLUSIVE;
    token_note_grant(t, k, grant);
}

void token_cache_grant(struct token_cache *t, uint64_t ino, enum token_mode mode,
                       uint64_t grant)
{
    token_cache_lock(t);
    token_cache_grant_locked(t, ino, mode, grant);
    token_cache_unlock(t);
}

void token_cache_grant_range(struct token_cache *t, const struct held_range *range,
                             uint64_t grant)
{
    struct token *k;

    token_cache_lock(t);
    if (grant_is_good(t, range->ino, grant)) {
        k = token_make(t, range->ino);
        if (k->loss == LOSS_NONE && (k->mode == TOKEN_NONE || k->mode == TOKEN_RANGES)) {
            k->mode = TOKEN_RANGES;
            k->has_pages = true;
            k->size = range->size;
            if (range_map_raise(&k->ranges, range->from, range->to,
                                range->write ? TOKEN_WRITE : TOKEN_READ) != 0)
                abort(); /* out of memory, as in xzalloc() */
        }
        token_note_grant(t, k, grant);
    }
    token_cache_unlock(t);
}

bool token_cache_takes(struct token_cache *t, uint64_t ino, uint64_t grant)
{
    const struct token *k;
    bool takes;

    token_cache_lock(t);
    k = token_find(t, ino);
    takes = grant_is_good(t, ino, grant) && (k == NULL || k->loss == LOSS_NONE);
    token_cache_unlock(t);
    return takes;
}

void token_cache_note_others(struct token_cache *t, bool others)
{
    atomic_store(&t->others, others);
}

bool token_cache_has_others(struct token_cache *t)
{
    return atomic_load(&t->others);
}

enum token_mode token_cache_mode_locked(struct token_cache *t, uint64_t ino)
{
    const struct token *k = token_find(t, ino);

    return k == NULL ? TOKEN_NONE : k->mode;
}

enum token_mode token_cache_mode(struct token_cache *t, uint64_t ino)
{
    enum token_mode mode;

    token_cache_lock(t);
    mode = token_cache_mode_locked(t, ino);
    token_cache_unlock(t);
    return mode;
}

/* Needs the lock. */
static bool token_covers(const struct token *k, const struct token_need *need)
{
    uint64_t to = need->to;

    if (k->mode != TOKEN_RANGES)
        return k->mode >= need->mode;
    if (to == 0 || (need->mode == TOKEN_EXCLUSIVE && to > k->size))
        return false;
    if (to > k->size)
        to = k->size;
    return need->from >= to ||
           range_map_least(&k->ranges, need->from, to) >=
               (need->mode == TOKEN_EXCLUSIVE ? TOKEN_WRITE : TOKEN_READ);
}

bool token_cache_cover(struct token_cache *t, uint64_t ino, const struct token_need *need)
{
    struct token *k;
    bool covers;

    token_cache_lock(t);
    k = token_find(t, ino);
    covers = k != NULL && token_covers(k, need);
    if (k != NULL) {
        token_use(t, k);
        k->has_pages = true;
    }
    token_cache_unlock(t);
    return covers;
}

/* Needs the lock. */
static uint64_t ranges_readable_to(const struct token *k, uint64_t from)
{
    const struct mapped_range *s = range_map_find(&k->ranges, from);

    for (; s != NULL && s->from <= from; s = range_map_find(&k->ranges, from)) {
        if (s->to == SPAN_END)
            return SPAN_END;
        from = s->to;
    }
    return from;
}

uint64_t token_cache_readable_to(struct token_cache *t, uint64_t ino, uint64_t from)
{
    const struct token *k;
    uint64_t to = UINT64_MAX;

    token_cache_lock(t);
    k = token_find(t, ino);
    if (k != NULL && k->mode == TOKEN_RANGES)
        to = ranges_readable_to(k, from);
    token_cache_unlock(t);
    return to;
}

const struct range_map *token_cache_ranges(struct token_cache *t, uint64_t ino)
{
    const struct token *k = token_find(t, ino);

    return k == NULL || k->ranges.n == 0 ? NULL : &k->ranges;
}

/* ---- what the kernel may cache ---- */

/* Returns the token if it allows caching in the kernel under SHARED. */
static struct token *token_to_tell(struct token_cache *t, uint64_t ino)
{
    struct token *k = token_find(t, ino);

    if (k == NULL || k->mode == TOKEN_NONE || k->mode == TOKEN_RANGES ||
        k->ceiling == TOKEN_NONE)
        return NULL;
    token_use(t, k);
    return k;
}

bool token_cache_tell_attr(struct token_cache *t, uint64_t ino, uint64_t grant)
{
    return grant_is_good(t, ino, grant) && token_to_tell(t, ino) != NULL;
}

static struct kernel_name *name_new(const char *name, size_t len, bool is_dir)
{
    struct kernel_name *n = xzalloc(sizeof(*n) + len + 1);

    n->is_dir = is_dir;
    memcpy(n->name, name, len);
    return n;
}

static struct kernel_name *name_find(const struct token *k, const char *name, size_t len,
                                     uint64_t hash)
{
    struct table_link *link =
        k->names == NULL ? NULL : table_find(&k->names->by_name, hash);

    for (; link != NULL; link = table_next(link->next, hash)) {
        struct kernel_name *n = container_of(link, struct kernel_name, link);

        if (strncmp(n->name, name, len) == 0 && n->name[len] == '\0')
            return n;
    }
    return NULL;
}

static struct kernel_names *token_names(struct token_cache *t, struct token *k)
{
    if (k->names == NULL) {
        k->names = xzalloc(sizeof(*k->names));
        k->names->end = &k->names->first;
        list_add_tail(&t->named, &k->named);
    }
    return k->names;
}

/* Returns the note of a name, made if there is none. */
static struct kernel_name *token_name(struct token_cache *t, struct token *k,
                                      const char *name, size_t len)
{
    uint64_t hash = table_hash(name, len);
    struct kernel_name *n = name_find(k, name, len, hash);
    struct kernel_names *names = token_names(t, k);

    if (n != NULL)
        return n;
    n = name_new(name, len, false);
    n->at = names->end;
    *n->at = n;
    names->end = &n->next;
    table_put(&names->by_name, &n->link, hash);
    t->n_names++;
    return n;
}

static void token_tell_name(struct token_cache *t, struct token *k, const char *name,
                            uint64_t ino, bool is_dir)
{
    struct kernel_name *n = token_name(t, k, name, strlen(name));

    n->is_dir = is_dir;
    n->is_cached = true;
    n->hint = ino;
}

/* Returns true if the notes hold all names that may exist up to listed_to. */
static bool names_are_listed(const struct token *k)
{
    return k->names != NULL && (k->names->all || k->names->listed);
}

static void token_drop_name(struct token_cache *t, struct token *k, struct kernel_name *n)
{
    if (n->next == NULL)
        k->names->end = n->at;
    else
        n->next->at = n->at;
    *n->at = n->next;
    table_remove(&k->names->by_name, &n->link);
    free(n);
    t->n_names--;
    if (k->names->first == NULL && !names_are_listed(k))
        token_take_names(t, k);
}

bool token_cache_tell_name(struct token_cache *t, uint64_t dir, const char *name,
                           uint64_t ino, bool is_dir, uint64_t grant)
{
    struct token *k = grant_is_good(t, dir, grant) ? token_to_tell(t, dir) : NULL;

    if (k != NULL)
        token_tell_name(t, k, name, ino, is_dir);
    return k != NULL;
}

uint64_t token_cache_guess_inode(struct token_cache *t, uint64_t dir, const char *name)
{
    size_t len = strlen(name);
    const struct kernel_name *n = NULL;
    const struct token *k;
    uint64_t ino;

    token_cache_lock(t);
    k = token_find(t, dir);
    if (k != NULL)
        n = name_find(k, name, len, table_hash(name, len));
    ino = n == NULL ? 0 : n->hint;
    token_cache_unlock(t);
    return ino;
}

bool token_cache_tell_listing(struct token_cache *t, uint64_t dir, bool *kept)
{
    struct token *k = token_to_tell(t, dir);

    if (k == NULL)
        return false;
    *kept = k->listing;
    k->listing = true;
    return true;
}

static void forget_name(struct kernel_name *n)
{
    n->is_cached = false;
    n->ino = n->hint = 0;
}

/* Notes that the kernel no longer caches a name. Returns true if it did. gone_since:
 * n_changes since when the name does not exist; 0: it may exist. */
static bool name_untell(struct token_cache *t, uint64_t dir, const char *name,
                        uint64_t gone_since)
{
    size_t len = strlen(name);
    struct kernel_name *n = NULL;
    struct token *k;
    bool is_cached;

    token_cache_lock(t);
    k = token_find(t, dir);
    if (k != NULL)
        n = name_find(k, name, len, table_hash(name, len));
    is_cached = n != NULL && n->is_cached;
    if (n != NULL && (gone_since >= k->names->since || !names_are_listed(k)))
        token_drop_name(t, k, n);
    else if (n != NULL)
        forget_name(n);
    token_cache_unlock(t);
    return is_cached;
}

bool token_cache_name_gone(struct token_cache *t, uint64_t dir, const char *name,
                           uint64_t changes)
{
    return name_untell(t, dir, name, changes);
}

bool token_cache_name_moved(struct token_cache *t, uint64_t dir, const char *name)
{
    return name_untell(t, dir, name, 0);
}

/* ---- known names ---- */

void token_cache_name_comes(struct token_cache *t, uint64_t dir, const char *name)
{
    size_t len = strlen(name);
    struct kernel_name *n;
    struct token *k;

    token_cache_lock(t);
    k = token_find(t, dir);
    if (k != NULL && names_are_listed(k))
        token_name(t, k, name, len);
    n = k == NULL ? NULL : name_find(k, name, len, table_hash(name, len));
    if (n != NULL)
        n->ino = n->hint = 0;
    token_cache_unlock(t);
}

static void names_begin(struct token_cache *t, struct kernel_names *names)
{
    names->since = atomic_fetch_add(&t->n_changes, 1) + 1;
}

/* Returns the token of a directory if an answer with this grant may add names. */
static struct token *token_to_list(struct token_cache *t, uint64_t dir, uint64_t grant)
{
    return grant_is_good(t, dir, grant) ? token_to_tell(t, dir) : NULL;
}

void token_cache_dir_is_new(struct token_cache *t, uint64_t dir, uint64_t grant)
{
    struct token *k = token_to_list(t, dir, grant);

    if (k == NULL || k->names != NULL)
        return;
    token_names(t, k)->all = true;
    names_begin(t, k->names);
}

/* Returns true if there is room for n names that may never be looked up. One directory
 * gets at most half of the room. */
static bool has_room_for_names(const struct token_cache *t, const struct token *k,
                               size_t n)
{
    size_t mine = k->names == NULL ? 0 : k->names->by_name.n;

    return t->n_names + n <= names_max(t) && mine + n <= names_max(t) / 2;
}

void token_cache_names_listed(struct token_cache *t, const struct listed_names *l)
{
    struct token *k = token_to_list(t, l->dir, l->grant);
    struct kernel_names *names = k == NULL ? NULL : k->names;

    if (k == NULL || (names != NULL && names->all) || !has_room_for_names(t, k, l->n))
        return;
    if (names == NULL || !names->listed) { /* names created meanwhile are not noted yet */
        if (l->after != 0 || t->changed[slot_of(l->dir)] > l->changes)
            return;
        names = token_names(t, k);
        names_begin(t, names);
    } else if (l->after > names->listed_to || l->changes < names->since) {
        return;
    }
    for (size_t i = 0; i < l->n; i++)
        token_name(t, k, l->names[i].name, l->names[i].len);
    names->listed = true;
    if (l->to > names->listed_to)
        names->listed_to = l->to;
    names->all = l->end;
}

bool token_cache_name_absent(struct token_cache *t, uint64_t dir, const char *name,
                             uint64_t *grant)
{
    const struct token *k = token_to_tell(t, dir);
    size_t len = strlen(name);

    if (k == NULL || k->names == NULL || !k->names->all ||
        name_find(k, name, len, table_hash(name, len)) != NULL)
        return false;
    *grant = k->grant;
    return true;
}

/* ---- attributes ---- */

uint64_t token_cache_changes(struct token_cache *t)
{
    return atomic_load(&t->n_changes);
}

/* Returns the token if data of an answer with this grant may be kept: no newer answer
 * came before it. */
static struct token *token_to_keep(struct token_cache *t, uint64_t ino, uint64_t grant,
                                   uint64_t changes)
{
    struct token *k = grant_is_good(t, ino, grant) ? token_to_tell(t, ino) : NULL;

    return k == NULL || grant < k->grant || t->changed[slot_of(ino)] > changes ? NULL : k;
}

void token_cache_keep_attr(struct token_cache *t, const struct md_attr *attr,
                           uint64_t grant, uint64_t changes)
{
    struct token *k = token_to_keep(t, attr->ino, grant, changes);

    if (k == NULL)
        return;
    kept_drop(t, k);
    k->kept = xzalloc(sizeof(*k->kept));
    k->kept->attr = *attr;
    k->kept->grant = grant;
    list_init(&k->kept->ahead);
}

/* Needs the lock. */
static bool take_attr(struct token_cache *t, uint64_t ino, struct md_attr *out,
                      uint64_t *grant)
{
    struct token *k = token_to_tell(t, ino);

    if (k == NULL || k->kept == NULL)
        return false;
    *out = k->kept->attr;
    *grant = k->kept->grant;
    if (!S_ISDIR(out->mode) && k->mode != TOKEN_EXCLUSIVE)
        kept_drop(t, k);
    return true;
}

bool token_cache_take_attr(struct token_cache *t, uint64_t ino, struct md_attr *out,
                           uint64_t *grant)
{
    bool taken;

    token_cache_lock(t);
    taken = take_attr(t, ino, out, grant);
    token_cache_unlock(t);
    return taken;
}

void tokens_note_data(struct token_cache *t, uint64_t ino)
{
    struct token *k;

    token_cache_lock(t);
    k = token_find(t, ino);
    if (k != NULL)
        k->has_data = true;
    token_cache_unlock(t);
}

bool tokens_have_data(struct token_cache *t, uint64_t ino)
{
    const struct token *k;
    bool has_data;

    token_cache_lock(t);
    k = token_find(t, ino);
    has_data = k != NULL && k->has_data;
    token_cache_unlock(t);
    return has_data;
}

void tokens_note_atime(struct token_cache *t, uint64_t ino, wide_ns atime_ns)
{
    struct token *k;

    token_cache_lock(t);
    k = token_find(t, ino);
    if (k != NULL && k->kept != NULL)
        k->kept->attr.atime_ns = atime_ns;
    token_cache_unlock(t);
}

uint64_t token_cache_forget_attr(struct token_cache *t, uint64_t ino, uint64_t changes)
{
    uint64_t *changed = &t->changed[slot_of(ino)];
    bool is_newest;
    struct token *k;

    token_cache_lock(t);
    is_newest = *changed <= changes;
    *changed = atomic_fetch_add(&t->n_changes, 1) + 1;
    if (is_newest)
        changes = *changed;
    k = token_find(t, ino);
    if (k != NULL) {
        kept_drop(t, k);
        k->has_pages |= k->listing; /* the kernel still caches the pages of the listing */
        /* a reader that seeks to its middle would not notice the change */
        k->listing = false;
    }
    token_cache_unlock(t);
    return changes;
}

/* ---- extended attributes ---- */

static struct token *token_to_keep_xattrs(struct token_cache *t, uint64_t ino,
                                          uint64_t grant, uint64_t changes)
{
    return t->xattrs_changing[slot_of(ino)] != 0 ? NULL
                                                 : token_to_keep(t, ino, grant, changes);
}

void token_cache_note_xattrs(struct token_cache *t, uint64_t ino, uint32_t classes,
                             uint64_t grant, uint64_t changes)
{
    struct token *k = token_to_keep_xattrs(t, ino, grant, changes);

    if (k != NULL && (classes & ROZO__XATTR_BITS__XATTRS_TOLD) != 0)
        k->xattrs = classes;
}

void token_cache_keep_xattr(struct token_cache *t, uint64_t ino, const char *name,
                            const struct cached_xattr *x, uint64_t grant,
                            uint64_t changes)
{
    struct token *k = token_to_keep_xattrs(t, ino, grant, changes);

    if (k != NULL)
        xattr_cache_put(&t->xattrs, &k->xattr_set, name, x);
}

/* Adds the list of their names, as listxattr(2) gives it. */
static void keep_names(struct token_cache *t, struct token *k,
                       const struct all_xattrs *all)
{
    uint8_t list[XATTR_CACHED_MAX];
    struct cached_xattr x = { .is_there = true, .value = list };

    for (unsigned i = 0; i < all->n; i++) {
        assert(x.len + all->names[i].len < sizeof(list));
        memcpy(list + x.len, all->names[i].name, all->names[i].len);
        x.len += all->names[i].len;
        list[x.len++] = '\0';
    }
    xattr_cache_put(&t->xattrs, &k->xattr_set, "", &x);
}

void token_cache_keep_all_xattrs(struct token_cache *t, uint64_t ino,
                                 const struct all_xattrs *all, uint64_t grant,
                                 uint64_t changes)
{
    struct token *k = token_to_keep_xattrs(t, ino, grant, changes);
    char name[NAME_MAX + 1];

    if (k == NULL)
        return;
    xattr_cache_drop(&t->xattrs, &k->xattr_set);
    for (unsigned i = 0; i < all->n; i++) {
        assert(all->names[i].len <= NAME_MAX);
        memcpy(name, all->names[i].name, all->names[i].len);
        name[all->names[i].len] = '\0';
        xattr_cache_put(&t->xattrs, &k->xattr_set, name, &all->values[i]);
    }
    keep_names(t, k, all);
    xattr_cache_is_all(k->xattr_set, all->n + 1);
}

/* Returns the class of an attribute, a bit of XattrBits; 0: exportd knows it alone. */
static uint32_t class_of_xattr(const char *name)
{
    static const struct {
        const char *prefix;
        uint32_t bit;
    } classes[] = {
        { "security.", ROZO__XATTR_BITS__XATTRS_SECURITY },
        { "system.posix_acl_access", ROZO__XATTR_BITS__XATTRS_ACL_ACCESS },
        { "system.posix_acl_default", ROZO__XATTR_BITS__XATTRS_ACL_DEFAULT },
        { "user.", ROZO__XATTR_BITS__XATTRS_USER },
        { "trusted.", ROZO__XATTR_BITS__XATTRS_TRUSTED },
    };

    for (size_t i = 0; i < sizeof(classes) / sizeof(classes[0]); i++) {
        if (strncmp(name, classes[i].prefix, strlen(classes[i].prefix)) == 0)
            return classes[i].bit;
    }
    return 0;
}

/* Returns true if the inode has no attribute of this name; for "": no attribute at all,
 * so that the list is empty. Called if the name is not among those that are kept. */
static bool xattr_is_absent(const struct token *k, const char *name)
{
    if (name[0] == '\0')
        return k->xattrs == ROZO__XATTR_BITS__XATTRS_TOLD;
    return class_of_xattr(name) != 0 &&
           (xattr_cache_has_all(k->xattr_set) ||
            (k->xattrs != 0 && (k->xattrs & class_of_xattr(name)) == 0));
}

/* Needs the lock. */
static bool find_xattr(struct token_cache *t, uint64_t ino, const char *name,
                       struct known_xattr *out)
{
    const struct token *k = token_to_tell(t, ino);
    struct cached_xattr x = { .is_there = name[0] == '\0' };

    if (k == NULL || t->xattrs_changing[slot_of(ino)] != 0 ||
        (!xattr_cache_find(k->xattr_set, name, &x) && !xattr_is_absent(k, name)))
        return false;
    out->is_there = x.is_there;
    out->len = x.len;
    if (x.len != 0)
        memcpy(out->value, x.value, x.len);
    return true;
}

bool token_cache_find_xattr(struct token_cache *t, uint64_t ino, const char *name,
                            struct known_xattr *out)
{
    bool known;

    token_cache_lock(t);
    known = find_xattr(t, ino, name, out);
    token_cache_unlock(t);
    return known;
}

void token_cache_xattrs_change(struct token_cache *t, uint64_t ino, bool begins)
{
    uint32_t *changing = &t->xattrs_changing[slot_of(ino)];
    struct token *k;

    token_cache_lock(t);
    assert(begins || *changing != 0);
    *changing += begins ? 1 : -1u;
    k = token_find(t, ino);
    if (k != NULL)
        xattrs_drop(t, k);
    token_cache_unlock(t);
}

/* ---- prefetch ---- */

bool token_cache_prefetch_next(struct token_cache *t, uint64_t dir,
                               struct prefetch_answer *out)
{
    struct token *k = token_to_tell(t, dir);
    struct aheads *a;

    if (k == NULL)
        return false;
    if (k->aheads == NULL) {
        k->aheads = xzalloc(sizeof(*a));
        k->aheads->misses_max = AHEAD_MISSES_MIN;
    }
    a = k->aheads;
    if (a->is_out || ++a->misses < a->misses_max)
        return false;
    if (a->n == 0) {
        a->n = AHEAD_ENTRIES_MIN;
    } else if (a->hits >= a->n / 4) {
        a->n = a->n < AHEAD_ENTRIES_MAX / 4 ? 4 * a->n : AHEAD_ENTRIES_MAX;
        a->misses_max = AHEAD_MISSES_MIN;
    } else if (a->misses_max < AHEAD_MISSES_MAX) {
        a->misses_max *= 2;
    }
    a->misses = 0;
    a->is_out = true;
    *out = (struct prefetch_answer){ dir, a->next, a->n };
    return true;
}

void token_cache_prefetch_came(struct token_cache *t, const struct prefetch_answer *ahead,
                               uint64_t next)
{
    struct token *k = token_find(t, ahead->dir);

    if (k == NULL || k->aheads == NULL)
        return;
    k->aheads->is_out = false;
    k->aheads->next = next;
    k->aheads->hits = 0;
}

void token_cache_keep_prefetched(struct token_cache *t, uint64_t dir,
                                 const struct listed_name *name,
                                 const struct md_attr *attr, uint64_t grant,
                                 uint64_t changes)
{
    struct token *k = token_to_list(t, dir, grant), *of;

    if (k == NULL || t->changed[slot_of(dir)] > changes || !has_room_for_names(t, k, 1))
        return;
    token_cache_keep_attr(t, attr, grant, changes);
    of = token_find(t, attr->ino);
    if (of == NULL || of->kept == NULL)
        return;
    token_name(t, k, name->name, name->len)->ino = attr->ino;
    if (list_is_empty(&of->kept->ahead)) {
        list_add_tail(&t->ahead, &of->kept->ahead);
        t->n_ahead++;
    }
    if (t->n_ahead > TOKENS_AHEAD_MAX) {
        struct kept_attr *oldest = container_of(t->ahead.next, struct kept_attr, ahead);

        kept_drop(t, token_find(t, oldest->attr.ino));
    }
}

bool token_cache_take_prefetched(struct token_cache *t, uint64_t dir, const char *name,
                                 struct md_attr *out, uint64_t *grant)
{
    struct token *k = token_to_tell(t, dir);
    size_t len = strlen(name);
    const struct kernel_name *n =
        k == NULL ? NULL : name_find(k, name, len, table_hash(name, len));

    if (n == NULL || n->ino == 0 || !take_attr(t, n->ino, out, grant))
        return false;
    if (k->aheads != NULL)
        k->aheads->hits++;
    return true;
}

/* ---- giving back ---- */

void token_cache_recall(struct token_cache *t, uint64_t ino, enum token_mode keep)
{
    struct token *k;

    token_cache_lock(t);
    k = token_find(t, ino);
    if (k != NULL && keep < k->ceiling)
        k->ceiling = keep;
    if (k != NULL)
        kept_drop(t, k);
    if (k != NULL && keep == TOKEN_NONE) /* above NONE no other mount can change them */
        xattrs_drop(t, k);
    token_cache_unlock(t);
}

/* Returns the names that the kernel caches, and frees the others. */
static struct kernel_name *names_cached(struct kernel_name *names)
{
    struct kernel_name *cached = NULL, **end = &cached;

    for (struct kernel_name *next; names != NULL; names = next) {
        next = names->next;
        names->next = NULL;
        if (names->is_cached) {
            *end = names;
            end = &names->next;
        } else {
            free(names);
        }
    }
    return cached;
}

struct kernel_name *token_cache_take_names(struct token_cache *t, uint64_t dir)
{
    struct kernel_name *names = NULL;
    struct token *k;

    token_cache_lock(t);
    k = token_find(t, dir);
    if (k != NULL)
        names = token_take_names(t, k);
    token_cache_unlock(t);
    return names_cached(names);
}

struct kernel_name *token_cache_copy_names(struct token_cache *t, uint64_t dir)
{
    struct kernel_name *copy = NULL, **end = &copy;
    const struct token *k;

    token_cache_lock(t);
    k = token_find(t, dir);
    for (const struct kernel_name *n = k == NULL || k->names == NULL ? NULL
                                                                     : k->names->first;
         n != NULL; n = n->next) {
        if (!n->is_cached)
            continue;
        *end = name_new(n->name, strlen(n->name), n->is_dir);
        end = &(*end)->next;
    }
    token_cache_unlock(t);
    return copy;
}

void token_cache_forget_names(struct token_cache *t,
                              bool (*is_old)(void *arg, uint64_t dir), void *arg)
{
    LIST_FOREACH(node, &t->all) {
        struct token *k = container_of(node, struct token, link);

        if (k->names != NULL && is_old(arg, ino_of(k)))
            kernel_names_free(token_take_names(t, k));
    }
}

uint64_t token_cache_gave_back(struct token_cache *t, uint64_t ino, enum token_mode keep,
                               uint64_t grant)
{
    uint64_t *slot = &t->given_back[slot_of(ino)];
    struct token *k;

    token_cache_lock(t);
    k = token_find(t, ino);
    if (k != NULL && k->grant > grant)
        grant = k->grant;
    if (keep == TOKEN_NONE || k == NULL) {
        if (grant > *slot)
            *slot = grant;
        if (k != NULL)
            token_free(t, k);
    } else {
        k->mode = keep < k->mode ? keep : k->mode;
        k->ceiling = TOKEN_EXCLUSIVE;
        k->lowered = k->grant = grant;
        token_left(t, k);
    }
    token_cache_unlock(t);
    return grant;
}

void token_cache_inode_gone(struct token_cache *t, uint64_t ino)
{
    struct token *k;

    token_cache_lock(t);
    k = token_find(t, ino);
    if (k != NULL && k->loss == LOSS_NONE && token_cache_has_others(t)) {
        list_remove(&k->link);
        list_add_after(&t->all, &k->link);
    } else if (k != NULL && k->loss == LOSS_NONE) {
        token_free(t, k);
    }
    token_cache_unlock(t);
}

/* ---- the limit ---- */

void token_cache_set_max(struct token_cache *t, size_t max)
{
    token_cache_lock(t);
    t->max = max == 0 ? TOKENS_MAX : max;
    token_cache_unlock(t);
}

/* Returns true if n tokens are too many: above three quarters of max, or above five
 * eighths if trimming already runs (does). */
static bool trims(bool does, size_t n, size_t max)
{
    return n > max - max / 4 || (does && n > max - max / 8 * 3);
}

/* Returns true if the kernel caches only attributes under the token. */
static bool token_is_plain(const struct token *k)
{
    return k->mode == TOKEN_SHARED && k->ceiling == TOKEN_EXCLUSIVE && !k->has_pages &&
           !k->listing && k->names == NULL;
}

static struct token *token_of(struct list_node *link, bool named)
{
    return named ? container_of(link, struct token, named)
                 : container_of(link, struct token, link);
}

/* Returns the least recently used token; NULL: all are being given back. */
static struct token *token_least_used(struct token_cache *t, bool named)
{
    LIST_FOREACH(link, named ? &t->named : &t->all) {
        struct token *k = token_of(link, named);

        if (k->leave == LEAVE_NOT && k->mode != TOKEN_NONE)
            return k;
    }
    return NULL;
}

static void token_leaves(struct token_cache *t, struct token *k,
                         struct token_surplus *out)
{
    *out = (struct token_surplus){ ino_of(k), token_is_plain(k) };
    token_use(t, k); /* skipped by the next searches */
    k->leave = out->is_plain ? LEAVE_PLAIN : LEAVE_HEAVY;
    k->n_names_leaving = k->names == NULL ? 0 : k->names->by_name.n;
    t->n_leaving++;
    t->n_leaving_heavy += k->leave == LEAVE_HEAVY;
    t->n_names_leaving += k->n_names_leaving;
}

/* Returns true if a token (named: with names) must go now. */
static bool surplus_is(const struct token_cache *t, bool named)
{
    if (t->n_leaving >= TOKENS_LEAVING_MAX ||
        t->n_leaving_heavy >= TOKENS_LEAVING_HEAVY_MAX)
        return false;
    return named ? t->trims_names &&
                       trims(true, t->n_names - t->n_names_leaving, names_max(t))
                 : t->trims && trims(true, t->by_ino.n - t->n_leaving, t->max);
}

size_t token_cache_surplus(struct token_cache *t, struct token_surplus *out, size_t max)
{
    size_t n = 0;

    token_cache_lock(t);
    t->trims = trims(t->trims, t->by_ino.n, t->max);
    t->trims_names = trims(t->trims_names, t->n_names, names_max(t));
    while (n < max && (surplus_is(t, true) || surplus_is(t, false))) {
        struct token *k = token_least_used(t, surplus_is(t, true));

        if (k == NULL)
            break;
        token_leaves(t, k, &out[n++]);
    }
    token_cache_unlock(t);
    return n;
}

bool token_cache_recall_plain(struct token_cache *t, uint64_t ino)
{
    struct token *k;
    bool plain;

    token_cache_lock(t);
    k = token_find(t, ino);
    plain = k != NULL && token_is_plain(k);
    if (plain) {
        k->ceiling = TOKEN_NONE;
        kept_drop(t, k);
        xattrs_drop(t, k);
    }
    token_cache_unlock(t);
    return plain;
}
