/*
 * member_port.h - connects a member with the kv of exportd's core, on two threads.
 *
 * Each side's hooks become mail for the other side, in order. The shell gives the post
 * functions: mailboxes of the two loops; in tests both are the same env.
 */
#ifndef ROZO_EXPORTD_QUORUM_MEMBER_PORT_H
#define ROZO_EXPORTD_QUORUM_MEMBER_PORT_H

#include "common/env/env.h"
#include "exportd/quorum/kv_quorum.h"
#include "exportd/quorum/member.h"

struct member_port {
    /* Set by the user. */
    void (*post_member)(void *arg, struct env_mail *mail); /* to the member's thread */
    void (*post_core)(void *arg, struct env_mail *mail);   /* to the core's thread */
    void *post_arg;
    uint64_t (*now_ns)(void *arg); /* clock of the lease; any thread */
    void *now_arg;
    /* On the core's thread: the kv takes commits from now on, or does not any more; the
     * member or the kv below cannot go on. */
    void (*lead)(void *arg, uint64_t term);
    void (*depose)(void *arg);
    void (*failed)(void *arg, int rc, const char *text);
    /* likewise: where clients reach the members; NULL: nobody wants to know */
    void (*clients)(void *arg, const struct exportd_list *list);
    void *arg;
    /* Set by the user before either side starts. */
    struct member *member; /* borrowed */
    struct kv_quorum *kv;  /* borrowed */
};

/** Returns the hooks for the two sides; port must stay where it is. */
struct member_hooks member_port_member_hooks(struct member_port *port);
struct kv_quorum_hooks member_port_kv_hooks(struct member_port *port);

#endif
