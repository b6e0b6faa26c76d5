/*
 * loss_laws.h - what a loss of power may take from a quorum whose members acknowledge
 * what is only written (acknowledge: memory).
 *
 * The run says what happened to members; a law ends the run with a message if a member
 * concludes something else. A member is *uncertain* from a loss of its power until it
 * takes part again. It has *left doubt* if it began with what was left of its log, until
 * a leader said that this loss is counted. Committed entries may be lost only while most
 * of the members are uncertain, have left doubt, or lost a disk.
 */
#ifndef ROZO_TESTS_SIM_CLUSTER_WORLD_LOSS_LAWS_H
#define ROZO_TESTS_SIM_CLUSTER_WORLD_LOSS_LAWS_H

#include <stdbool.h>
#include <stdint.h>

enum { LOSS_MEMBERS_MAX = 3 };

struct sim_meta;

struct loss_of_member {
    bool is_open;       /* may have acknowledged what is not synced */
    bool is_uncertain;  /* lost its power since, and does not take part yet */
    bool has_left;      /* left doubt, and that is not counted, as far as it knows */
    uint64_t left_term; /* in which it last did; 0: never */
};

/* Plain data; zeros at the beginning. */
struct loss_laws {
    struct loss_of_member members[LOSS_MEMBERS_MAX];
    /* Last times when most members were no help to an uncertain one, and when most had
     * lost something; 0: never. */
    uint64_t helpless_ns, powerless_ns;
    uint64_t led_ns; /* start of the last core */
    /* since the last core: committed entries are gone, the first of which was committed
     * then; 0: none */
    uint64_t lost_ns;
    bool may_count;   /* a member has left doubt since the last count */
    uint64_t counted; /* number of losses in the store of the last core (key H) */
    /* exportd's number of losses, as mounts learn it, and the count that it stands for */
    uint64_t told, told_for;
    uint64_t lost_told; /* exportd's number since entries were lost; 0: not known yet */
    unsigned n_counted, n_lost; /* counts; those that took committed entries */
};

/** The machine of a member lost its power. */
void loss_law_power(struct loss_laws *l, const struct sim_meta *e);
/** A member decides to begin with what is left of its log. */
void loss_law_leaves(struct loss_laws *l, const struct sim_meta *e);
/** A member takes part. loss_term: term in which it left doubt, not counted; 0: none. */
void loss_law_runs(struct loss_laws *l, const struct sim_meta *e, uint64_t loss_term);
/** A leader has said to this member that its loss is counted. */
void loss_law_counted(struct loss_laws *l, const struct sim_meta *e);
/** Returns whether a member that is about to take part may lack what it had
 * acknowledged. */
bool loss_law_excuses(const struct loss_laws *l, const struct sim_meta *e);
/** A committed entry, of that time, will be on no member any more. */
void loss_law_lost(struct loss_laws *l, uint64_t committed_ns);
/**
 * A core starts, with this number of counted losses in its store. Returns the time since
 * which all that was committed is lost; 0: nothing is.
 */
uint64_t loss_law_leads(struct loss_laws *l, const struct sim_meta *e, uint64_t counted);
/** The newest core answers mounts, and tells them this number of losses. */
void loss_law_told(struct loss_laws *l, const struct sim_meta *e, uint64_t told);
/** Returns whether a mount that learned this number knows of the last lost entries. */
bool loss_law_is_known(const struct loss_laws *l, uint64_t told);

#endif
