/*
 * fuzz_projfile.c - projection files with any bytes that a disk may return.
 *
 * Goal: whatever a projection file contains, no request on it reads out of bounds or
 * hangs, and no read returns bytes that were never written; accepted pages pack to the
 * same bytes. Input: a byte of flags, four of a size, then patches of a good file: offset
 * (3 bytes), length (1 byte), bytes.
 */
#include <assert.h>
#include <string.h>

#include "codec/codec.h"
#include "common/base/bytes.h"
#include "storaged/format/projfile.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/storaged/world.h"

enum {
    SEAL_PAGES = 7,  /* bits: header and both marks pages get a right checksum */
    CUT = 8,         /* cuts the file to the size */
    LAYOUT_AT = 4,   /* shift of the layout's two bits */
    POWER = 64,      /* the power failed before the restart */
    SEAL_COPY = 128, /* the header's copy gets a right checksum */
};

static void check_header(const uint8_t *page)
{
    uint8_t again[PROJFILE_PAGE_BYTES];
    struct projfile_header h;

    memset(&h, 0, sizeof(h));
    if (projfile_header_get(page, &h) != 0)
        return;
    projfile_header_put(again, &h);
    assert(memcmp(again, page, sizeof(again)) == 0);
}

static void check_marks(const uint8_t *page)
{
    uint8_t again[PROJFILE_PAGE_BYTES];
    static struct marks marks, written;
    struct marks_page h;

    if (projfile_marks_get(page, &h, &marks, &written) != 0)
        return;
    projfile_marks_put(again, &h, &marks, &written);
    assert(memcmp(again, page, sizeof(again)) == 0);
    for (unsigned i = 0; i < written.n; i++)
        assert(marks_find(&written, written.ranges[i].first) != 0);
}

static void seal(struct world *w, struct disk_file *f, unsigned page_index)
{
    uint8_t page[PROJFILE_PAGE_BYTES];

    memdisk_peek(f, page_index * sizeof(page), page, sizeof(page));
    put_le32(page + 12, 0);
    put_le32(page + 12, codec_crc32c(0, page, sizeof(page)));
    memdisk_poke(&w->disk, f, page_index * sizeof(page), page, sizeof(page));
}

static void patch(struct world *w, struct disk_file *f, const uint8_t *data, size_t size)
{
    while (size > 4) {
        uint64_t offset = (get_le32(data) & 0xffffff) % (f->size + 1);
        size_t len = data[3] < size - 4 ? data[3] : size - 4;

        memdisk_poke(&w->disk, f, offset, data + 4, len);
        data += 4 + len;
        size -= 4 + len;
    }
}

/* Sends every kind of request. world_read() compares the bytes with those written. */
static void use(struct world *w, unsigned p)
{
    struct seen seen[128];
    uint64_t block, epoch = 0;

    for (uint64_t b = 0; b < 600; b += 120)
        world_read(w, p, b, 120, seen, NULL);
    world_read(w, 255, PROJFILE_BLOCKS_MAX - 128, 128, seen, NULL);
    world_next(w, 3, &block);
    world_sync(w);
    for (unsigned i = 0; i < 3; i++) { /* damage may refuse the first ones */
        world_write(w, p, 100, 60, (100 + epoch) << 32 | 1, 5000, false, &block);
        world_mark(w, p, 140, 10, (100 + epoch) << 32 | 2);
        world_mark(w, p, 200, 0, (100 + epoch) << 32 | 3);
        epoch += 1000;
    }
    world_read(w, p, 90, 100, seen, NULL);
    world_sync(w);
    world_restart(w, false);
    world_read(w, p, 90, 100, seen, NULL);
    world_remove(w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct world w;
    struct disk_file *f;
    uint8_t page[PROJFILE_PAGE_BYTES];
    uint64_t v1 = UINT64_C(1) << 32 | 1;
    unsigned p;

    if (size < 5)
        return 0;
    world_init(&w, 1);
    w.layout = (data[0] >> LAYOUT_AT & 3) % 3;
    p = codec_n(world_codec(&w)) - 1;
    world_write(&w, p, 0, 40, v1, 8192, false, NULL);
    world_write(&w, p, 120, 20, v1 + 1, 8192, true, NULL);
    world_mark(&w, p, 400, 0, v1 + 2);
    world_write(&w, p, 410, 1, v1 + 3, 100, false, NULL);
    if ((data[0] & POWER) == 0)
        world_settle(&w);
    f = world_file(&w, p);
    patch(&w, f, data + 5, size - 5);
    for (unsigned i = 0; i < 3; i++) {
        if ((data[0] & SEAL_PAGES & 1u << i) != 0)
            seal(&w, f, i);
        memdisk_peek(f, i * sizeof(page), page, sizeof(page));
        if (i == 0)
            check_header(page);
        else
            check_marks(page);
    }
    if ((data[0] & SEAL_COPY) != 0)
        seal(&w, f, 3);
    memdisk_peek(f, PROJFILE_COPY_AT, page, sizeof(page));
    check_header(page);
    if ((data[0] & CUT) != 0 && get_le32(data + 1) < f->size)
        memdisk_cut_file(f, get_le32(data + 1));
    world_restart(&w, (data[0] & POWER) != 0);
    use(&w, p);
    world_free(&w);
    return 0;
}
