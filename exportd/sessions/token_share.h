/*
 * token_share.h - limits on the tokens of each session.
 */
#ifndef ROZO_EXPORTD_SESSIONS_TOKEN_SHARE_H
#define ROZO_EXPORTD_SESSIONS_TOKEN_SHARE_H

#include "exportd/cluster/exportd_state.h"

/* Shares of sessions in all tokens. */
struct token_shares {
    bool are_scarce; /* sessions have a lower limit than they would have alone */
};

/**
 * Asks sessions to give back tokens if they hold too many, alone or as a share of all
 * that are held.
 */
void sessions_trim_tokens(struct exportd *x);

#endif
