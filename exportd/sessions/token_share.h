/*
 * token_share.h - limits on the tokens of each session.
 */
#ifndef ROZO_EXPORTD_SESSIONS_TOKEN_SHARE_H
#define ROZO_EXPORTD_SESSIONS_TOKEN_SHARE_H

#include "exportd/cluster/exportd_state.h"

/**
 * Asks sessions to give back tokens if they hold too many, alone or as a share of all
 * that are held.
 */
void sessions_trim_tokens(struct exportd *x);

#endif
