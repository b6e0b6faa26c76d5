/*
 * token.h - modes of a token, as exportd grants them and mounts hold them.
 */
#ifndef ROZO_COMMON_WIRE_TOKEN_H
#define ROZO_COMMON_WIRE_TOKEN_H

/* Values are those of Rozo__TokenMode. */
enum token_mode { TOKEN_NONE, TOKEN_SHARED, TOKEN_RANGES, TOKEN_EXCLUSIVE };
enum token_access { TOKEN_READ = 1, TOKEN_WRITE = 2 }; /* access to a range */

#endif
