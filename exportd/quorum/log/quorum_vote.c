/*
 * quorum_vote.c - saves term and vote.
 *
 * Keeps:  a ballot is reported as saved only after both copies are on stable storage; the
 *         second one is not touched before the first one is. One that is found at a start
 *         may be of a process that was killed before that: it is made stable, too.
 */
#include "exportd/quorum/log/quorum_vote.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "codec/codec.h"
#include "common/base/bytes.h"
#include "common/base/err.h"

static const uint8_t magic[8] = "rozovote";

/* Page: 0 magic, 8 crc of the rest, 12 format, 16 number, 24 term, 32 vote. */
enum {
    FORMAT = 1,
    AT_CRC = 8,
    AT_FORMAT = 12,
    AT_NUMBER = 16,
    AT_TERM = 24,
    AT_VOTE = 32
};

static uint32_t page_crc(const uint8_t *page)
{
    return codec_crc32c(0, page + AT_FORMAT, QUORUM_VOTE_BYTES - AT_FORMAT);
}

static void page_put(uint8_t *page, uint64_t number, struct quorum_ballot ballot)
{
    memset(page, 0, QUORUM_VOTE_PAGE_BYTES);
    memcpy(page, magic, sizeof(magic));
    put_le32(page + AT_FORMAT, FORMAT);
    put_le64(page + AT_NUMBER, number);
    put_le64(page + AT_TERM, ballot.term);
    put_le64(page + AT_VOTE, ballot.vote);
    put_le32(page + AT_CRC, page_crc(page));
}

/* Returns 0, -ROZO_EUNKNOWN_FORMAT or -ROZO_EDAMAGED. */
static int page_get(const uint8_t *page, uint64_t *number, struct quorum_ballot *ballot)
{
    if (memcmp(page, magic, sizeof(magic)) != 0 ||
        get_le32(page + AT_CRC) != page_crc(page))
        return -ROZO_EDAMAGED;
    if (get_le32(page + AT_FORMAT) != FORMAT)
        return -ROZO_EUNKNOWN_FORMAT;
    *number = get_le64(page + AT_NUMBER);
    *ballot =
        (struct quorum_ballot){ get_le64(page + AT_TERM), get_le64(page + AT_VOTE) };
    return *number > 0 && ballot->term > 0 ? 0 : -ROZO_EDAMAGED;
}

/* Takes a copy that was read, if it is the newest valid one. rc -EIO: its page cannot be
 * read. */
static int copy_take(struct quorum_vote *v, int rc, uint64_t n_read)
{
    struct quorum_ballot ballot;
    uint64_t number;

    if (rc == 0 && (n_read < QUORUM_VOTE_PAGE_BYTES ||
                    bytes_are_zero(v->page, QUORUM_VOTE_PAGE_BYTES)))
        return 0; /* never written */
    v->is_there = true;
    if (rc == 0)
        rc = page_get(v->page, &number, &ballot);
    if (rc == 0)
        v->numbers[v->copy] = number;
    if (rc == 0 && number > v->number) {
        v->number = number;
        v->found = ballot;
    }
    return rc == -EIO || rc == -ROZO_EDAMAGED ? 0 : rc;
}

static void on_step(struct disk_req *dr, int rc);

static void submit(struct quorum_vote *v, struct disk_req dr)
{
    v->dr = dr;
    v->dr.done = on_step;
    v->dr.arg = v;
    disk_submit(v->disk, &v->dr);
}

static void copy_write(struct quorum_vote *v)
{
    v->iov = (struct iovec){ v->page, QUORUM_VOTE_PAGE_BYTES };
    submit(v, (struct disk_req){
                  .op = DISK_WRITE,
                  .file = v->file,
                  .offset = (uint64_t)v->copy * QUORUM_VOTE_PAGE_BYTES,
                  .len = QUORUM_VOTE_PAGE_BYTES,
                  .iov = &v->iov,
                  .n_iov = 1,
              });
}

static void write_next(struct quorum_vote *v)
{
    v->has_next = false;
    v->writing = v->next;
    v->number++;
    page_put(v->page, v->number, v->writing);
    v->copy = 0;
    v->state = VOTE_WRITE;
    copy_write(v);
}

static void file_sync(struct quorum_vote *v, enum quorum_vote_state state)
{
    v->state = state;
    submit(v, (struct disk_req){ .op = DISK_SYNC, .file = v->file });
}

static void started(struct quorum_vote *v)
{
    v->state = VOTE_IDLE;
    v->started(v->arg, 0);
}

/* Writes the other copy of a ballot that is stable if that copy is older, and syncs
 * again. One that is damaged stays until the next ballot. */
static void level(struct quorum_vote *v)
{
    v->copy = v->numbers[0] < v->numbers[1] ? 0 : 1;
    if (v->numbers[v->copy] == 0 || v->numbers[v->copy] == v->number) {
        started(v);
        return;
    }
    v->numbers[v->copy] = v->number;
    page_put(v->page, v->number, v->found);
    v->state = VOTE_LEVEL;
    copy_write(v);
}

static void fail(struct quorum_vote *v, int rc)
{
    bool is_starting = v->state < VOTE_IDLE;

    v->state = VOTE_FAILED;
    if (is_starting)
        v->started(v->arg, rc);
    else
        v->saved(v->arg, rc, v->writing);
}

/* Reads one copy: a page that cannot be read does not hide the other one. */
static void copy_read(struct quorum_vote *v)
{
    v->iov = (struct iovec){ v->page, QUORUM_VOTE_PAGE_BYTES };
    submit(v, (struct disk_req){
                  .op = DISK_READ,
                  .file = v->file,
                  .offset = (uint64_t)v->copy * QUORUM_VOTE_PAGE_BYTES,
                  .len = QUORUM_VOTE_PAGE_BYTES,
                  .iov = &v->iov,
                  .n_iov = 1,
              });
}

/* The file is open: reads it, or makes its name stable if it is new. */
static void opened(struct quorum_vote *v)
{
    v->file = v->dr.file;
    v->is_new = v->dr.size == 0;
    if (v->is_new) {
        v->state = VOTE_SYNC_NAME;
        submit(v, (struct disk_req){ .op = DISK_SYNC_NAME, .path = v->path });
        return;
    }
    v->state = VOTE_READ;
    v->copy = 0;
    copy_read(v);
}

static void on_step(struct disk_req *dr, int rc)
{
    struct quorum_vote *v = dr->arg;

    if (v->state == VOTE_READ)
        rc = copy_take(v, rc, dr->n_read);
    if (rc != 0) {
        fail(v, rc);
        return;
    }
    switch (v->state) {
    case VOTE_OPEN:
        opened(v);
        break;
    case VOTE_READ:
        if (v->copy++ == 0) {
            copy_read(v);
            break;
        }
        v->is_damaged = v->is_there && v->number == 0;
        file_sync(v, VOTE_SYNC_FOUND);
        break;
    case VOTE_SYNC_FOUND:
        level(v);
        break;
    case VOTE_LEVEL:
        file_sync(v, VOTE_SYNC_FOUND);
        break;
    case VOTE_SYNC_NAME:
        started(v);
        break;
    case VOTE_WRITE:
        file_sync(v, VOTE_SYNC);
        break;
    case VOTE_SYNC:
        if (v->copy++ == 0) {
            v->state = VOTE_WRITE;
            copy_write(v);
            break;
        }
        v->state = VOTE_IDLE;
        v->saved(v->arg, 0, v->writing);
        if (v->has_next && v->state == VOTE_IDLE)
            write_next(v);
        break;
    case VOTE_IDLE:
    case VOTE_FAILED:
        assert(!"a request in this state");
    }
}

void quorum_vote_start(struct quorum_vote *v)
{
    assert(v->state == VOTE_OPEN && v->file == NULL);
    submit(v, (struct disk_req){ .op = DISK_OPEN, .path = v->path, .create = true });
}

void quorum_vote_save(struct quorum_vote *v, struct quorum_ballot ballot)
{
    assert(v->state >= VOTE_IDLE && ballot.term > 0);
    if (v->state == VOTE_FAILED)
        return;
    v->next = ballot;
    v->has_next = true;
    if (v->state == VOTE_IDLE)
        write_next(v);
}

bool quorum_vote_is_idle(const struct quorum_vote *v)
{
    return v->state == VOTE_IDLE || v->state == VOTE_FAILED;
}

void quorum_vote_close(struct quorum_vote *v)
{
    if (v->file != NULL)
        disk_close(v->disk, v->file);
    v->file = NULL;
}
