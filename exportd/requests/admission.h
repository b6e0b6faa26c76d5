/*
 * admission.h - admission and replacement of storages.
 */
#ifndef ROZO_EXPORTD_REQUESTS_ADMISSION_H
#define ROZO_EXPORTD_REQUESTS_ADMISSION_H

#include "exportd/cluster/answer.h"

/* Storage adds: the first is under way, the others wait. */
struct admissions {
    struct list_node list;
    unsigned n;
};

md_handler ad_storage_add, ad_storage_replace;
void admissions_init(struct admissions *all);
bool admissions_are_over(const struct admissions *all);
/** Ends admissions under way with -EBUSY, soon. */
void admissions_stop(struct exportd *x);

#endif
