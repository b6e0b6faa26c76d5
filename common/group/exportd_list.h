/*
 * exportd_list.h - where clients reach exportd: a list of addresses.
 *
 * A member of a quorum tells the list of all members with its answers to MD_WAIT_LEADER
 * (docs/internals/finding-the-leader.md). Pure.
 */
#ifndef ROZO_COMMON_GROUP_EXPORTD_LIST_H
#define ROZO_COMMON_GROUP_EXPORTD_LIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/proto/rozo.pb-c.h"

enum {
    EXPORTD_ADDRS_MAX = 16,
    EXPORTD_ADDR_BYTES = 80, /* "HOST:PORT" and the zero byte */
};

/* Addresses, in the order in which they were added, each once. */
struct exportd_list {
    unsigned n;
    char addrs[EXPORTD_ADDRS_MAX][EXPORTD_ADDR_BYTES];
};

/** Adds an address. Ignores one that is there, is empty, too long, or finds no room. */
void exportd_list_add(struct exportd_list *l, const char *addr);
bool exportd_list_has(const struct exportd_list *l, const char *addr);
/** Returns a number that differs from that of any other list; 0: the list is empty. */
uint64_t exportd_list_number(const struct exportd_list *l);

/* An answer to MD_WAIT_LEADER, with room for its list. Must stay where it is. */
struct exportd_list_answer {
    Rozo__MdWaitLeaderResp resp;
    char *addrs[EXPORTD_ADDRS_MAX];
};
/**
 * Makes an answer: with the list, if the question wants it and has another one.
 * @param l borrowed by the answer; NULL: there is none.
 * @return true if the question has another list.
 */
bool exportd_list_answer(const struct exportd_list *l, const Rozo__MdWaitLeaderReq *req,
                         struct exportd_list_answer *out);
/** Takes the list of an answer. Returns false if it has none. */
bool exportd_list_take(const Rozo__MdWaitLeaderResp *resp, struct exportd_list *out);

/**
 * Cuts "HOST:PORT,HOST:PORT" in place. Returns the number of addresses; max + 1: there
 * are more.
 */
unsigned exportd_addrs_split(char *text, const char **addrs, unsigned max);

#endif
