/* quorum_world.c - see quorum_world.h. */
#include "tests/unit/quorum/quorum_world.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/bytes.h"
#include "common/base/units.h"

enum event_kind {
    EVENT_MESSAGE,
    EVENT_VOTE_WRITTEN,
    EVENT_WRITTEN,     /* entries are in the page cache of a lazy node */
    EVENT_LOG_WRITTEN, /* entries are synced */
    EVENT_TICK
};

enum { LAZY_MAX_US = 1000000 };

/* Something that happens to a node later. */
struct world_event {
    uint64_t at_ns, order;
    enum event_kind kind;
    unsigned node, life;
    uint64_t index, term; /* WRITTEN, LOG_WRITTEN; VOTE_WRITTEN: vote, term */
    uint64_t first;       /* LOG_WRITTEN: the log was changed from here on */
    uint8_t *bytes;       /* MESSAGE: owned; head, then payload */
    size_t head_len, len;
};

static const struct raft_msg_group group = { .cluster_id = "the quorum" };

uint64_t world_below(struct world *w, uint64_t bound)
{
    uint64_t z = w->random += 0x9e3779b97f4a7c15;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return (z ^ z >> 31) % bound;
}

uint64_t world_clock(const struct world *w, unsigned i)
{
    return w->nodes[i].offset_ns + w->now_ns / 1000 * w->nodes[i].rate;
}

/* Returns the world's time at which a node's clock shows ns. */
static uint64_t world_time(const struct world *w, unsigned i, uint64_t ns)
{
    const struct world_node *n = &w->nodes[i];

    return ns <= n->offset_ns ? 0 : ((ns - n->offset_ns) / n->rate + 1) * 1000;
}

static bool event_is_before(const struct world_event *a, const struct world_event *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->order < b->order;
}

static void heap_push(struct world *w, struct world_event event)
{
    size_t i = w->n_heap++;

    if (w->n_heap > w->heap_max) {
        w->heap_max = w->heap_max * 2 + 64;
        w->heap = realloc(w->heap, w->heap_max * sizeof(*w->heap));
        assert(w->heap != NULL);
    }
    event.order = w->n_events++;
    while (i > 0 && event_is_before(&event, &w->heap[(i - 1) / 2])) {
        w->heap[i] = w->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    w->heap[i] = event;
}

static struct world_event heap_pop(struct world *w)
{
    struct world_event first = w->heap[0], last = w->heap[--w->n_heap];
    size_t i = 0;

    for (;;) {
        size_t child = 2 * i + 1;

        if (child >= w->n_heap)
            break;
        if (child + 1 < w->n_heap &&
            event_is_before(&w->heap[child + 1], &w->heap[child]))
            child++;
        if (!event_is_before(&w->heap[child], &last))
            break;
        w->heap[i] = w->heap[child];
        i = child;
    }
    if (w->n_heap > 0)
        w->heap[i] = last;
    return first;
}

/* Returns the world's entry of this index and term, made now if it is new. */
static struct world_entry *entry_get(struct world *w, const struct raft_log_entry *e,
                                     uint64_t prev_term)
{
    struct world_entry *made;

    for (size_t i = w->n_entries; i > 0; i--) {
        made = w->entries[i - 1];
        if (made->index == e->index && made->term == e->term) {
            /* Log matching: same index and term, same entry, same log before it. */
            assert(made->kind == e->kind && made->len == e->len &&
                   memcmp(made->data, e->data, e->len) == 0 &&
                   made->prev_term == prev_term);
            return made;
        }
    }
    if (w->n_entries == w->entries_max) {
        w->entries_max = w->entries_max * 2 + 64;
        w->entries = realloc(w->entries, w->entries_max * sizeof(*w->entries));
        assert(w->entries != NULL);
    }
    made = calloc(1, sizeof(*made));
    assert(made != NULL);
    *made = (struct world_entry){ .index = e->index,
                                  .term = e->term,
                                  .prev_term = prev_term,
                                  .kind = e->kind,
                                  .len = e->len,
                                  .data = malloc(e->len) };
    assert(made->data != NULL);
    memcpy(made->data, e->data, e->len);
    w->entries[w->n_entries++] = made;
    return made;
}

static struct raft_log_entry entry_of(const struct world_entry *e)
{
    return (struct raft_log_entry){ .index = e->index,
                                    .term = e->term,
                                    .kind = e->kind,
                                    .len = e->len,
                                    .data = e->data };
}

struct world *world_new(uint64_t seed, unsigned n, unsigned n_voters)
{
    struct world *w = calloc(1, sizeof(*w));
    struct raft_config config = { .n = 0 };

    assert(w != NULL && n <= WORLD_NODES_MAX);
    w->random = seed * 1000003;
    w->n_nodes = n;
    w->delay_max_us = 500;
    w->write_max_us = 1000;
    for (unsigned i = 0; i < n; i++) {
        struct world_node *node = &w->nodes[i];

        node->id = (world_below(w, 1u << 20) + 1) << 40 | (i + 1);
        node->offset_ns = ms_to_ns(world_below(w, 1u << 20));
        node->rate = 1000;
        node->log.first = node->stable.first = 1;
        if (i < n_voters) {
            char address[32];

            snprintf(address, sizeof(address), "m%u:4710", i);
            assert(raft_config_set(&config, node->id, RAFT_ROLE_VOTER, address) == 0);
        }
    }
    for (unsigned i = 0; i < n_voters; i++) {
        struct world_node *node = &w->nodes[i];

        node->term = 1;
        node->store = (struct world_store){
            .applied = 1, .term = 1, .config_index = 1, .config = config
        };
        node->log.first = node->stable.first = 2;
        node->log.last = node->stable.last = 1;
    }
    w->n_committed = w->n_stable = 1;
    return w;
}

void world_free(struct world *w)
{
    for (unsigned i = 0; i < w->n_nodes; i++)
        raft_core_free(w->nodes[i].core);
    while (w->n_heap > 0)
        free(w->heap[--w->n_heap].bytes);
    for (size_t i = 0; i < w->n_entries; i++) {
        free(w->entries[i]->data);
        free(w->entries[i]);
    }
    free(w->entries);
    free(w->heap);
    free(w);
}

/* Returns the term of an entry of a node's log or store. */
static uint64_t node_term_of(const struct world_node *n, uint64_t index)
{
    if (index >= n->log.first && index <= n->log.last)
        return n->log.entries[index]->term;
    return index == n->store.applied ? n->store.term : 0;
}

static void bytes_send(struct world *w, unsigned from, unsigned to, uint64_t us_more,
                       const uint8_t *head, size_t head_len,
                       const struct raft_log_entry *entries, unsigned n)
{
    unsigned copies = 1 + (world_below(w, 1000) < w->dup);

    if (w->cut[from][to] || world_below(w, 1000) < w->loss)
        return;
    for (unsigned c = 0; c < copies; c++) {
        struct world_event e = { .kind = EVENT_MESSAGE,
                                 .node = to,
                                 .life = w->nodes[to].life,
                                 .head_len = head_len };
        uint64_t us = us_more + 50 + world_below(w, w->delay_max_us);

        if (world_below(w, 1000) < w->late)
            us += world_below(w, 2000000);
        e.at_ns = w->now_ns + us * 1000;
        e.bytes = malloc(head_len + (n == 0 ? 0 : RAFT_MSG_PAYLOAD_MAX));
        assert(e.bytes != NULL);
        memcpy(e.bytes, head, head_len);
        e.len = head_len;
        for (unsigned i = 0; i < n; i++) {
            memcpy(e.bytes + e.len, entries[i].data, entries[i].len);
            e.len += entries[i].len;
        }
        if (n > 0)
            e.bytes = realloc(e.bytes, e.len);
        heap_push(w, e);
    }
}

static void message_send(struct world *w, unsigned from, const struct raft_msg *msg)
{
    const struct world_log *log = &w->nodes[from].log;
    struct raft_log_entry entries[RAFT_MSG_ENTRIES_MAX];
    uint8_t head[RAFT_MSG_HEAD_MAX];
    struct raft_msg m = *msg;
    unsigned to = 0, left = m.n, done = 0;

    while (to < w->n_nodes && w->nodes[to].id != m.to)
        to++;
    if (to == w->n_nodes)
        return;
    for (unsigned i = 0; i < left; i++) {
        uint64_t index = m.index + 1 + i;

        assert(index >= log->first && index <= log->last);
        entries[i] = entry_of(log->entries[index]);
    }
    do {
        m.n = raft_msg_fill(entries + done, left);
        bytes_send(w, from, to, m.kind == RAFT_MSG_TIMEOUT_NOW ? w->handover_us : 0, head,
                   raft_msg_encode(&group, &m, entries + done, head), entries + done,
                   m.n);
        done += m.n;
        left -= m.n;
        if (left > 0)
            raft_msg_advance(&m, &entries[done - 1]);
    } while (left > 0);
}

/* Returns when the disk of a node has done one more write. */
static uint64_t write_done(struct world *w, struct world_node *n)
{
    uint64_t us = 20 + world_below(w, w->write_max_us);

    if (n->busy_until_ns < w->now_ns)
        n->busy_until_ns = w->now_ns;
    return n->busy_until_ns += us * 1000;
}

static void written_push(struct world *w, unsigned i, enum event_kind kind,
                         uint64_t at_ns, uint64_t first)
{
    struct world_node *n = &w->nodes[i];

    heap_push(w, (struct world_event){ .at_ns = at_ns,
                                       .kind = kind,
                                       .node = i,
                                       .life = n->life,
                                       .first = first,
                                       .index = n->log.last,
                                       .term = node_term_of(n, n->log.last) });
}

/* Syncs the log of a lazy node, if somebody waits for it. */
static void log_sync(struct world *w, unsigned i)
{
    struct world_node *n = &w->nodes[i];

    if (!n->is_lazy || n->out.may_wait || n->syncing == n->log.last ||
        n->log.last < n->log.first)
        return;
    n->syncing = n->log.last;
    written_push(w, i, EVENT_LOG_WRITTEN, write_done(w, n), n->log.last);
}

static void log_append(struct world *w, unsigned i)
{
    struct world_node *n = &w->nodes[i];
    struct raft_core_out *out = &n->out;

    if (out->truncate_from > 0) {
        assert(out->truncate_from >= n->log.first && out->truncate_from > out->commit &&
               out->truncate_from > n->store.applied);
        n->log.last = out->truncate_from - 1;
    }
    if (out->n_entries == 0)
        return;
    assert(out->entries[0].index == n->log.last + 1);
    for (unsigned k = 0; k < out->n_entries; k++) {
        const struct raft_log_entry *e = &out->entries[k];

        assert(e->index == n->log.last + 1 && e->index < WORLD_LOG_MAX);
        n->log.entries[e->index] = entry_get(w, e, node_term_of(n, e->index - 1));
        n->log.last = e->index;
    }
    n->syncing = 0;
    written_push(w, i, n->is_lazy ? EVENT_WRITTEN : EVENT_LOG_WRITTEN, write_done(w, n),
                 out->entries[0].index);
    if (n->is_lazy)
        written_push(w, i, EVENT_LOG_WRITTEN,
                     n->busy_until_ns + world_below(w, LAZY_MAX_US) * 1000,
                     out->entries[0].index);
}

/* Checks what is committed against all other nodes. */
static void node_see(struct world *w, struct world_node *n)
{
    while (n->seen < n->out.commit) {
        uint64_t index = ++n->seen;
        struct world_entry *e = n->log.entries[index];

        assert(index >= n->log.first && index <= n->log.last);
        if (index > w->n_committed) {
            assert(index == w->n_committed + 1);
            w->committed[++w->n_committed] = e;
            w->committed_term[index] = n->out.term;
        }
        assert(w->committed[index] == e);
    }
    assert(n->out.stable <= n->out.commit);
    if (n->out.stable > w->n_stable)
        w->n_stable = n->out.stable;
}

/* Applies what is stable. */
static void node_apply(struct world_node *n)
{
    while (n->store.applied < n->out.stable) {
        uint64_t index = n->store.applied + 1;
        struct world_entry *e = n->log.entries[index];

        assert(index >= n->log.first && index <= n->stable.last &&
               n->stable.entries[index] == e); /* persisted here */
        n->store.applied = index;
        n->store.term = e->term;
        if (e->kind == RAFT_ENTRY_CONFIG) {
            n->store.config_index = index;
            assert(raft_config_decode(e->data, e->len, &n->store.config) == 0);
        }
    }
}

/* Checks what holds at any time. */
static void world_check(struct world *w, unsigned i)
{
    struct world_node *n = &w->nodes[i];
    uint64_t *leader = &w->leader_of[n->out.term % WORLD_LOG_MAX];

    if (n->out.role == RAFT_CORE_LEADER) {
        assert(*leader == 0 || *leader == n->id);
        if (*leader == 0) {
            w->n_elections++;
            /* Later terms may have committed more, before all votes of this one came. */
            for (uint64_t k = n->log.first; k <= w->n_committed; k++)
                assert(w->committed_term[k] >= n->out.term ||
                       (k <= n->log.last && n->log.entries[k] == w->committed[k]));
            assert(n->log.first <= n->store.applied + 1);
        }
        *leader = n->id;
        if (n->out.commit > w->answered)
            w->answered = n->out.commit;
    }
    for (unsigned k = 0; k < w->n_nodes; k++) {
        const struct world_node *m = &w->nodes[k];

        if (m->core == NULL || m->lease_until_ns <= world_clock(w, k))
            continue;
        /* Answers under a lease are not stale, and nobody else has one. */
        assert(m->out.commit >= w->answered);
        for (unsigned j = 0; j < w->n_nodes; j++)
            assert(j == k || w->nodes[j].core == NULL ||
                   w->nodes[j].lease_until_ns <= world_clock(w, j));
    }
}

static void tick_plan(struct world *w, unsigned i)
{
    uint64_t at = world_time(w, i, w->nodes[i].out.next_ns);

    if (at <= w->now_ns)
        at = w->now_ns + 1000;
    heap_push(w, (struct world_event){ .at_ns = at,
                                       .kind = EVENT_TICK,
                                       .node = i,
                                       .life = w->nodes[i].life,
                                       .first = w->nodes[i].out.next_ns });
}

/* Replaces the store of a node by that of the leader, as seeding does. */
static void node_seed(struct world *w, unsigned i)
{
    struct world_node *n = &w->nodes[i];
    unsigned from = 0;

    while (from < w->n_nodes &&
           (w->nodes[from].core == NULL || w->nodes[from].id != n->out.leader))
        from++;
    if (from == w->n_nodes || from == i || w->nodes[from].store.applied < n->out.seed_to)
        return;
    world_stop(w, i, false);
    n->store = w->nodes[from].store;
    n->log.first = n->stable.first = n->store.applied + 1;
    n->log.last = n->stable.last = n->store.applied;
    if (n->term < n->store.term) {
        n->term = n->store.term;
        n->vote = 0;
    }
    n->n_seeds++;
    world_start(w, i);
}

void world_take(struct world *w, unsigned i, int rc)
{
    struct world_node *n = &w->nodes[i];
    uint64_t next = n->out.next_ns, commit = n->out.commit;

    assert(rc == 0);
    raft_core_take(n->core, &n->out);
    assert(n->out.commit >= commit || n->out.commit >= n->store.applied);
    n->lease_until_ns = raft_core_lease_until_ns(n->core);
    if (n->out.new_term != 0) {
        n->new_term = n->out.new_term;
        n->new_vote = n->out.new_vote;
        heap_push(w, (struct world_event){ .at_ns = write_done(w, n),
                                           .kind = EVENT_VOTE_WRITTEN,
                                           .node = i,
                                           .life = n->life,
                                           .index = n->out.new_vote,
                                           .term = n->out.new_term });
    }
    log_append(w, i);
    for (unsigned k = 0; k < n->out.n_messages; k++)
        message_send(w, i, &n->out.messages[k]);
    node_see(w, n);
    node_apply(n);
    log_sync(w, i);
    world_check(w, i);
    n->n_lost += n->out.lost != 0;
    if (n->out.next_ns != next)
        tick_plan(w, i);
    if (n->out.seed_to != 0)
        node_seed(w, i);
}

void world_start(struct world *w, unsigned i)
{
    struct world_node *n = &w->nodes[i];
    struct raft_core_options options = { .id = n->id,
                                         .group = group,
                                         .promise_ms = w->promise_ms,
                                         .is_lazy = n->is_lazy,
                                         .seed = (uint32_t)world_below(w, UINT32_MAX) };
    struct raft_core_saved saved = { .term = n->term,
                                     .vote = n->vote,
                                     .applied = n->store.applied,
                                     .applied_term = n->store.term,
                                     .config = n->store.config,
                                     .config_index = n->store.config_index };
    struct raft_log_entry *entries = calloc(WORLD_LOG_MAX, sizeof(*entries));
    struct err err = { .text = "" };
    int rc;

    assert(n->core == NULL && entries != NULL);
    n->life++;
    n->new_term = n->term;
    n->new_vote = n->vote;
    n->log = n->stable;
    n->busy_until_ns = w->now_ns;
    n->out.next_ns = 0;
    n->out.commit = n->syncing = 0;
    n->seen = n->store.applied;
    saved.entries = entries;
    for (uint64_t k = n->log.first; k <= n->log.last; k++)
        entries[saved.n_entries++] = entry_of(n->log.entries[k]);
    rc = raft_core_open(&options, &n->core);
    assert(rc == 0);
    rc = raft_core_start(n->core, world_clock(w, i), &saved, &err);
    if (rc != 0)
        fprintf(stderr, "node %u: %s\n", i, err.text);
    world_take(w, i, rc);
    free(entries);
}

void world_stop(struct world *w, unsigned i, bool power)
{
    struct world_node *n = &w->nodes[i];

    raft_core_free(n->core);
    n->core = NULL;
    n->lease_until_ns = 0;
    n->out.role = RAFT_CORE_FOLLOWER;
    n->out.is_ready = false;
    if (!power) {
        n->stable = n->log;
        n->term = n->new_term;
        n->vote = n->new_vote;
    }
    n->life++;
}

void world_power_cycle(struct world *w)
{
    bool was_up[WORLD_NODES_MAX];

    for (unsigned i = 0; i < w->n_nodes; i++) {
        was_up[i] = w->nodes[i].core != NULL;
        if (was_up[i])
            world_stop(w, i, true);
    }
    w->n_committed = w->n_stable;
    if (w->answered > w->n_stable)
        w->answered = w->n_stable;
    for (unsigned i = 0; i < w->n_nodes; i++)
        if (was_up[i] && world_below(w, 3) > 0)
            world_start(w, i);
}

/* Makes stable what a write had; a later truncation is not stable yet. */
static void log_written(struct world_node *n, const struct world_event *e)
{
    if (e->index > n->log.last || node_term_of(n, e->index) != e->term)
        return;
    if (e->index <= n->stable.last &&
        n->stable.entries[e->index] == n->log.entries[e->index])
        return; /* a later sync had it */
    for (uint64_t k = e->first; k <= e->index; k++)
        n->stable.entries[k] = n->log.entries[k];
    /* Earlier writes of this log were to come to an end before. */
    n->stable.last = e->index;
    for (uint64_t k = n->stable.first; k < e->first; k++)
        n->stable.entries[k] = n->log.entries[k];
}

static void message_receive(struct world *w, const struct world_event *e)
{
    struct world_node *n = &w->nodes[e->node];
    struct raft_log_entry entries[RAFT_MSG_ENTRIES_MAX];
    struct raft_msg msg;
    int rc = raft_msg_decode(&group, n->id, e->bytes, e->head_len, e->bytes + e->head_len,
                             e->len - e->head_len, &msg, entries);

    assert(rc == 0);
    rc = raft_core_receive(n->core, world_clock(w, e->node), &msg, entries);
    world_take(w, e->node, rc);
}

static void event_run(struct world *w, const struct world_event *e)
{
    struct world_node *n = &w->nodes[e->node];
    uint64_t now = world_clock(w, e->node);

    switch (e->kind) {
    case EVENT_MESSAGE:
        message_receive(w, e);
        break;
    case EVENT_VOTE_WRITTEN:
        n->term = e->term;
        n->vote = e->index;
        world_take(w, e->node, raft_core_vote_persisted(n->core, now, e->term, e->index));
        break;
    case EVENT_WRITTEN:
        world_take(w, e->node, raft_core_written(n->core, now, e->index, e->term));
        break;
    case EVENT_LOG_WRITTEN:
        log_written(n, e);
        world_take(w, e->node, raft_core_persisted(n->core, now, e->index, e->term));
        break;
    case EVENT_TICK:
        if (e->first != n->out.next_ns)
            return;
        n->out.next_ns = 0; /* plan again, also if it is the same */
        world_take(w, e->node, raft_core_tick(n->core, now));
        assert(n->out.next_ns > now); /* not again at once */
        break;
    }
}

/* Runs the next event, if it comes before end. */
static bool world_run_one(struct world *w, uint64_t end_ns)
{
    struct world_event e;
    struct world_node *n;

    if (w->n_heap == 0 || w->heap[0].at_ns > end_ns)
        return false;
    e = heap_pop(w);
    n = &w->nodes[e.node];
    if (e.at_ns > w->now_ns)
        w->now_ns = e.at_ns;
    if (n->core == NULL || n->life != e.life) {
        free(e.bytes);
        return true;
    }
    if (n->paused_until_ns > w->now_ns) {
        e.at_ns = n->paused_until_ns;
        heap_push(w, e);
        return true;
    }
    event_run(w, &e);
    free(e.bytes);
    return true;
}

void world_run_ms(struct world *w, uint64_t ms)
{
    uint64_t end_ns = w->now_ns + ms_to_ns(ms);

    while (world_run_one(w, end_ns))
        ;
    w->now_ns = end_ns;
}

int world_leader(const struct world *w)
{
    int found = -1;

    for (unsigned i = 0; i < w->n_nodes; i++) {
        const struct world_node *n = &w->nodes[i];

        if (n->core != NULL && n->out.is_ready &&
            (found < 0 || n->out.term > w->nodes[found].out.term))
            found = (int)i;
    }
    return found;
}

/* Returns true if all members of the leader's list that are up follow it. */
static bool world_follows(const struct world *w, int leader)
{
    if (leader < 0)
        return false;
    for (unsigned i = 0; i < w->n_nodes; i++) {
        const struct world_node *n = &w->nodes[i];
        const struct raft_member *m =
            raft_config_find(raft_core_config(w->nodes[leader].core), n->id);

        if (n->core != NULL && m != NULL && m->role != RAFT_ROLE_SPARE &&
            n->out.leader != w->nodes[leader].id)
            return false;
    }
    return true;
}

int world_elect(struct world *w)
{
    uint64_t end_ns = w->now_ns + ms_to_ns(10000);

    for (unsigned i = 0; i < w->n_nodes; i++)
        if (w->nodes[i].core == NULL)
            world_start(w, i);
    while (!world_follows(w, world_leader(w))) {
        bool runs = world_run_one(w, end_ns);

        assert(runs);
    }
    return world_leader(w);
}

uint64_t world_submit(struct world *w, unsigned i)
{
    struct world_node *n = &w->nodes[i];
    uint8_t data[16] = { 0 };
    struct raft_log_entry e = { .kind = RAFT_ENTRY_BATCH,
                                .len = 8 + (uint32_t)world_below(w, 9),
                                .data = data };
    int rc;

    put_le64(data, ++w->n_values);
    rc = raft_core_submit(n->core, world_clock(w, i), &e, 1);
    if (rc != 0)
        return 0;
    world_take(w, i, rc);
    return e.index;
}

/* Returns true if all members that get the log and are up have applied it up to index. */
static bool world_has_applied(const struct world *w, int leader, uint64_t index)
{
    for (unsigned i = 0; i < w->n_nodes; i++) {
        const struct world_node *n = &w->nodes[i];
        const struct raft_member *m =
            raft_config_find(raft_core_config(w->nodes[leader].core), n->id);

        if (n->core != NULL && m != NULL && m->role != RAFT_ROLE_SPARE &&
            n->store.applied < index)
            return false;
    }
    return true;
}

bool world_commit_one(struct world *w, uint64_t max_ms)
{
    uint64_t end_ns = w->now_ns + ms_to_ns(max_ms), index = 0, term = 0;

    for (;;) {
        int leader = world_leader(w);

        if (leader >= 0 && (index == 0 || w->nodes[leader].out.term != term)) {
            term = w->nodes[leader].out.term;
            index = world_submit(w, (unsigned)leader);
        }
        if (leader >= 0 && index > 0 && world_follows(w, leader) &&
            world_has_applied(w, leader, index))
            return true;
        if (!world_run_one(w, end_ns))
            return false;
    }
}

void world_trim(struct world *w, unsigned i, uint64_t keep)
{
    struct world_node *n = &w->nodes[i];
    uint64_t first = n->store.applied > keep ? n->store.applied - keep + 1 : 1;
    int rc;

    if (first <= n->log.first)
        return;
    rc = raft_core_trim(n->core, world_clock(w, i), n->store.applied, first);
    assert(rc == 0 || rc == -EAGAIN);
    if (rc != 0)
        return;
    n->log.first = n->stable.first = first;
    world_take(w, i, rc);
}

void world_print(const struct world *w)
{
    static const char *const roles[] = { "follower", "candidate", "leader" };

    for (unsigned i = 0; i < w->n_nodes; i++) {
        const struct world_node *n = &w->nodes[i];

        fprintf(stderr,
                "node %u: %s, term %llu, log %llu to %llu, commit %llu, list %llu%s%s\n",
                i, n->core == NULL ? "down" : roles[n->out.role],
                (unsigned long long)n->out.term, (unsigned long long)n->log.first,
                (unsigned long long)n->log.last, (unsigned long long)n->out.commit,
                n->core == NULL
                    ? 0
                    : (unsigned long long)raft_core_config_index(n->core, NULL),
                n->out.is_ready ? ", ready" : "",
                n->paused_until_ns > w->now_ns ? ", paused" : "");
        for (unsigned k = 0; n->core != NULL && k < w->n_nodes; k++) {
            const struct raft_member *m =
                raft_config_find(raft_core_config(n->core), w->nodes[k].id);
            uint64_t match = 0;

            if (m != NULL && raft_core_match(n->core, m->id, &match) == 0)
                fprintf(stderr, "  node %u: role %d, match %llu\n", k, (int)m->role,
                        (unsigned long long)match);
        }
    }
}

void world_mend(struct world *w)
{
    memset(w->cut, 0, sizeof(w->cut));
    w->loss = w->dup = w->late = w->handover_us = 0;
    w->delay_max_us = 500;
    w->write_max_us = 1000;
}
