/*
 * inode_ref.h - the reference by which storages know a file.
 */
#ifndef ROZO_EXPORTD_NAMESPACE_INODE_REF_H
#define ROZO_EXPORTD_NAMESPACE_INODE_REF_H

#include "common/proto/rozo.pb-c.h"

#include "common/wire/record.h"
#include "exportd/namespace/inode.h"

/**
 * Fills *ref from the inode of a regular file, without a capability. *ref borrows id and
 * in->storages.
 */
void inode_ref_fill(uint32_t export_id, const struct inode *in, uint8_t id[FILE_ID_BYTES],
                    Rozo__FileRef *ref);

#endif
