/*
 * fake.h - storages in memory that keep versions below versions as rozo.proto says, and channels of
 * nodes to them on a virtual clock. One file. Writes of clients are put in by hand.
 */
#ifndef ROZO_TEST_HEAL_FAKE_H
#define ROZO_TEST_HEAL_FAKE_H

#include "codec/codec.h"
#include "common/base/record.h"
#include "storcli/blocks.h"
#include "tests/lib/env_virtual.h"
#include "tests/unit/heal/made.h"
#include "tests/unit/unit.h"

enum { FAKE_BLOCKS = 512, FAKE_LAYERS = 24, FAKE_STORAGES = 16, FAKE_DRIVERS = 4 };

/* One version of one block of one projection; the newest counts. */
struct fake_layer {
    uint64_t version;
    bool data;    /* else a hole */
    bool range;   /* a hole of a large mark: no head of its own */
    bool damaged; /* its head; `rotten` only its body, which heads do not tell */
    bool rotten;
    bool pending; /* not committed: what is below must stay */
    bool stable;
};

struct fake_place { /* oldest first; none: never written */
    unsigned n;
    struct fake_layer layers[FAKE_LAYERS];
};

struct fake_projection {
    bool here, partial;
    struct fake_place places[FAKE_BLOCKS + 1]; /* the last one stands for all beyond */
};

struct fake_storage {
    struct fake *fake;
    bool up;
    bool full; /* NO_SPACE for writes */
    bool serves_clients;
    bool may_be_torn;     /* its power failed once */
    size_t cut_bytes;     /* missing at the end of bodies that are read */
    unsigned n_busy;      /* so many writes and marks from now on get BUSY */
    uint32_t fence_epoch; /* 0: none */
    uint64_t verifier;
    struct fake_projection *projections; /* owned; n */
};

struct fake_channel {
    struct rpc_channel ch; /* first */
    struct fake_storage *storage;
};

struct fake {
    struct env_virtual v;
    struct storcli_target target;
    const struct codec *codec;
    unsigned k, n, c, q;
    struct fake_storage storages[FAKE_STORAGES];
    struct fake_channel channels[FAKE_DRIVERS][FAKE_STORAGES];
    struct fake_call *calls; /* owned list */
    uint32_t delay_ms;
    bool by_hand;           /* the range is marked as large ones are, however small */
    uint64_t n_of[32];      /* requests carried out, by op */
    uint64_t n_read_blocks; /* bodies that were read */
    /* Called before each request is carried out; may change anything. NULL: nothing. */
    void (*before)(struct fake *fake, unsigned storage, uint16_t op);
    /* A status that is no OK is the answer, and nothing is carried out. NULL: nobody refuses. */
    int (*refuse)(struct fake *fake, unsigned storage, uint16_t op);
};

void fake_init(struct fake *f, uint64_t seed, unsigned kind, unsigned layout);
void fake_close(struct fake *f);
struct storcli_peers fake_peers(struct fake *f, unsigned driver);

/** A client's write of one record reaches a storage; false: refused (fence, newer). */
bool fake_write(struct fake *f, unsigned storage, unsigned projection, uint64_t block,
                uint64_t version, bool sync);
/** The same of a mark, over every projection there and at least `projection`. end UINT64_MAX: all. */
bool fake_mark(struct fake *f, unsigned storage, unsigned projection, uint64_t first,
               uint64_t end, uint64_t version, bool sync);
/** Everything of the block up to this version is committed there. */
void fake_commit(struct fake *f, unsigned storage, uint64_t block, uint64_t version);
void fake_sync(struct fake *f, unsigned storage);
/** What is not stable goes. */
void fake_power_cut(struct fake *f, unsigned storage);
/** Everything goes; the storage knows that it is a replacement (files are partial). */
void fake_replace(struct fake *f, unsigned storage);

/** What counts at a block; NULL: never written, or not here. */
struct fake_layer *fake_top(struct fake *f, unsigned storage, unsigned projection,
                            uint64_t block);
/** Print who holds what of a block, for people who hunt a bug. */
void fake_print(struct fake *f, uint64_t block);
/** All homes have `version` at this block, committed when `settled`; fails the test otherwise. */
void fake_expect(struct fake *f, uint64_t block, uint64_t version, bool settled);

#endif
