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

#endif
