/*
 * inode_ref.c - fill the reference of a file from its inode.
 */
#include "exportd/namespace/inode_ref.h"

void inode_ref_fill(uint32_t export_id, const struct inode *in, uint8_t id[FILE_ID_BYTES],
                    Rozo__FileRef *ref)
{
    const struct file_id file = { export_id, in->generation, in->ino };

    rozo__file_ref__init(ref);
    file_id_put(id, &file);
    ref->file_id = (ProtobufCBinaryData){ FILE_ID_BYTES, id };
    ref->codec = in->codec;
    ref->layout = in->layout;
    ref->block_bytes = in->block_bytes;
    ref->full_quorum = (in->flags & INODE_FULL_QUORUM) != 0;
    ref->dist_generation = in->dist_generation;
    ref->n_storages = in->n_storages;
    ref->storages = (uint32_t *)in->storages;
}
