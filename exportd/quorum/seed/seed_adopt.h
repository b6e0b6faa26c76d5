/*
 * seed_adopt.h - RF_ADOPT: an exportd that waits learns that it is a member.
 *
 * The question is asked by the leader (member_change.c) and answered by an exportd that
 * waits, or by a member. Pure but for the answer.
 */
#ifndef ROZO_EXPORTD_QUORUM_SEED_SEED_ADOPT_H
#define ROZO_EXPORTD_QUORUM_SEED_SEED_ADOPT_H

#include "common/rpc/rpc.h"
#include "exportd/quorum/raft/raft_msg.h"

/* Question. Plain data. */
struct seed_adoption {
    struct raft_msg_group group;
    uint64_t id;             /* id of the new member; 0: would it be one? */
    bool is_witness;         /* the new member is one, or would be */
    struct raft_config list; /* has it; members that it may copy from. n 0 if id is 0 */
    uint64_t list_index;     /* entry of the list */
};

/* Bytes of a question: those of the list, and of four fields. */
enum { SEED_ADOPT_BYTES_MAX = RAFT_CONFIG_BYTES_MAX + 64 };

/** Packs a question. Returns the bytes written. */
size_t seed_adopt_encode(const struct seed_adoption *a,
                         uint8_t buf[SEED_ADOPT_BYTES_MAX]);
/** Unpacks and checks a question. Returns 0 or -EBADMSG. */
int seed_adopt_decode(const void *buf, size_t len, struct seed_adoption *a);
/** Answers a question; takes the call. error: text for people, "" if rc is 0. */
void seed_adopt_answer(struct rpc_call *call, int rc, const char *error);
#endif
