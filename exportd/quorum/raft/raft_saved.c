/*
 * raft_saved.c - is what a member has on disk a state from which it may start?
 *
 * In:     struct raft_core_saved, read from a disk. Out: 0, or a text for people. Pure.
 * Keeps:  a member whose term, log and store do not go together takes no part: it could
 *         vote twice, or lead without entries that are committed.
 */
#include "exportd/quorum/raft/raft_saved.h"

#include <inttypes.h>

/* Checks the log with which a member starts. */
static int saved_log_check(const struct raft_core_saved *s, struct err *err)
{
    uint64_t term = 0, last = s->applied;

    for (size_t i = 0; i < s->n_entries; i++) {
        const struct raft_log_entry *e = &s->entries[i];

        if (e->index != s->entries[0].index + i || e->term == 0 || e->term < term ||
            e->term > s->term || e->index > RAFT_NUMBER_MAX ||
            e->kind < RAFT_ENTRY_BATCH || e->kind > RAFT_ENTRY_CONFIG)
            return err_set(err, -ROZO_EDAMAGED,
                           "entry %" PRIu64 " of the log does not follow the one before",
                           e->index);
        if (e->kind == RAFT_ENTRY_CONFIG && e->index > s->config_index &&
            (e->index <= s->applied || raft_config_decode(e->data, e->len, NULL) != 0))
            return err_set(err, -ROZO_EDAMAGED,
                           "entry %" PRIu64 " of the log is no valid list of members",
                           e->index);
        if (e->index == s->applied && e->term != s->applied_term)
            return err_set(err, -ROZO_EDAMAGED,
                           "entry %" PRIu64 " of the log is not the one that the store "
                           "holds",
                           e->index);
        term = e->term;
        last = e->index;
    }
    if (s->n_entries > 0 && (s->entries[0].index > s->applied + 1 || last < s->applied))
        return err_set(err, -ROZO_EDAMAGED,
                       "the log has the entries %" PRIu64 " to %" PRIu64
                       ", the store ends at %" PRIu64,
                       s->entries[0].index, last, s->applied);
    return 0;
}

int raft_saved_check(const struct raft_core_saved *s, struct err *err)
{
    uint8_t buf[RAFT_CONFIG_BYTES_MAX];

    if (s->term > RAFT_NUMBER_MAX ||
        (s->term == 0 && (s->vote != 0 || s->applied != 0 || s->n_entries != 0)))
        return err_set(err, -ROZO_EDAMAGED, "the term is lost, the log is not");
    if (s->applied == 0 && s->n_entries > 0 &&
        (s->entries[0].index != 1 || s->entries[0].kind != RAFT_ENTRY_CONFIG))
        return err_set(err, -ROZO_EDAMAGED,
                       "the log does not begin with a list of members");
    if (s->applied == 0
            ? s->config.n != 0 || s->config_index != 0
            : s->applied > RAFT_NUMBER_MAX || s->applied_term == 0 ||
                  s->applied_term > s->term || s->config_index == 0 ||
                  s->config_index > s->applied || s->config.n == 0 ||
                  s->config.n > RAFT_SERVERS_MAX ||
                  raft_config_decode(buf, raft_config_encode(&s->config, buf), NULL) != 0)
        return err_set(err, -ROZO_EDAMAGED, "the store holds no valid list of members");
    return saved_log_check(s, err);
}
