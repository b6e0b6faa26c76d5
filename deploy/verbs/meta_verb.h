/*
 * meta_verb.h - the frame of the verbs of `rozo meta`: connect, act, print.
 */
#ifndef ROZO_DEPLOY_VERBS_META_VERB_H
#define ROZO_DEPLOY_VERBS_META_VERB_H

#include "deploy/cli/cli.h"
#include "deploy/client/meta_client.h"
#include "deploy/client/target_options.h"

/* Numbers of enum raft_role (raft_msg.h), which are on the wire. */
enum { META_STANDBY = 0, META_VOTER = 1, META_SPARE = 2 };

/* One run of a verb: the first member of its arguments. */
struct meta_verb {
    struct target_options conn; /* must stay first */
    bool json;
    /** Does the work. Returns 0, or -errno with a text. */
    int (*act)(struct meta_verb *v, struct err *err);
    /* Say the result, after act(). */
    json_t *(*to_json)(struct meta_verb *v);
    void (*print)(struct meta_verb *v);
    struct meta_client *client; /* owned: to all of --exportd */
    struct progress progress;   /* drawn until act() returns; of one step */
};

#define META_OPTION_JSON                                                   \
    {                                                                      \
        "json", 'j', NULL, "print JSON", ARGS_FLAG(struct meta_verb, json) \
    }

/** Parses the arguments into the struct that begins with v, and runs the verb. */
int meta_verb_run(struct cli *cli, int argc, char **argv,
                  const struct args_syntax *syntax, struct meta_verb *v);

/**
 * Waits until a member serves. Returns it; or NULL with a text: none did before end_ms, a
 * signal came, or, unless may_be_alone, one of them has no quorum.
 */
struct meta_client_member *meta_verb_serving(struct meta_verb *v, uint64_t end_ms,
                                             bool may_be_alone, struct err *err);

/**
 * Returns whether one member with metadata and witnesses are all that votes, or will vote
 * when member `without` has left (0: none has): the metadata are lost with that one.
 */
bool meta_verb_rests_on_one(const Rozo__AdMetaStatusResp *a, uint64_t without);
#define META_RESTS_ON_ONE                                                               \
    "only one of the members that vote has metadata: all are lost with its disk, and "  \
    "nothing is served without it, or without the witness. Add an exportd (`rozo meta " \
    "add HOST:PORT`)\n"

/* How leadership is handed over. */
struct meta_hand_over {
    uint64_t from, to; /* `to` leads in the end; 0: any other than `from` */
    uint64_t end_ms;   /* not tried again after that */
    /** Asks this member, which leads. Returns 0, -EAGAIN: asks again, or an error. */
    int (*ask)(struct meta_verb *v, struct meta_client_member *m, struct err *err);
};
/**
 * Asks who leads until the right member serves: on a machine with much to do one may miss
 * its moment. *m: the one that serves, before and after. Returns 0, or -errno with a
 * text: -ROZO_ENOT_LEADER if none serves.
 */
int meta_verb_hand_over(struct meta_verb *v, const struct meta_hand_over *h,
                        struct meta_client_member **m, struct err *err);

#endif
