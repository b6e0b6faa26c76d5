/*
 * fsck_names.h - `rozo fsck`: faults of exportd's names.
 *
 * exportd compares its own keys (AD_NAMES); here its answers are collected, and printed
 * by path.
 */
#ifndef ROZO_DEPLOY_FSCK_FSCK_NAMES_H
#define ROZO_DEPLOY_FSCK_FSCK_NAMES_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "deploy/client/admin.h"

enum { FSCK_NAMES_PRINTED_MAX = 100 };

struct fsck_name_fault {
    uint32_t export_id;
    Rozo__AdNamesResp__Kind kind;
    uint64_t dir;
    uint64_t ino; /* 0: unknown */
    bool repaired;
    char *name;     /* owned; "": unknown */
    char *dir_path; /* owned; "" for the root; NULL: not found, or not looked for */
};

struct fsck_names {
    struct fsck_name_fault *faults; /* owned; by export */
    size_t n, max;
    uint64_t n_names; /* checked */
    bool unchecked;   /* exportd's build is older than the request */
};

void fsck_names_init(struct fsck_names *f);
void fsck_names_free(struct fsck_names *f);
/** Checks all names of an export, and adds the faults. */
int fsck_names_check(struct fsck_names *f, struct admin *a, const Rozo__Export *e,
                     bool repair, struct progress *progress, struct err *err);
/** Returns true if a name leads to this inode, which does not exist. */
bool fsck_names_lead_to(const struct fsck_names *f, uint32_t export_id, uint64_t ino);
/** Finds the paths of the directories of the first n_max faults. */
int fsck_names_find_paths(struct fsck_names *f, struct admin *a, size_t n_max,
                          struct progress *progress, struct err *err);
void fsck_names_print(const struct fsck_names *f, const Rozo__AdStatusResp *status,
                      bool repair);
json_t *fsck_names_json(const struct fsck_names *f, const Rozo__AdStatusResp *status);

/**
 * Writes a path, which may hold any bytes, for people: control characters and backslashes
 * become \xNN, and what does not fit is cut.
 */
void fsck_path_text(const char *path, char *out, size_t size);

#endif
