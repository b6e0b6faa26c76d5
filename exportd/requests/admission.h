/*
 * admission.h - admission and replacement of storages.
 */
#ifndef ROZO_EXPORTD_REQUESTS_ADMISSION_H
#define ROZO_EXPORTD_REQUESTS_ADMISSION_H

#include "exportd/cluster/answer.h"

md_handler ad_storage_add, ad_storage_replace;
/** Ends admissions under way with -EBUSY, soon. */
void admissions_stop(struct exportd *x);

#endif
