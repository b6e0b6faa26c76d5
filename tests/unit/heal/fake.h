/*
 * fake.h - storages in memory that keep versions below versions as rozo.proto says, and
 * channels of nodes to them on a virtual clock. There is one file. Tests make the writes
 * of clients by hand.
 */
#ifndef ROZO_TEST_HEAL_FAKE_H
#define ROZO_TEST_HEAL_FAKE_H

#include "codec/codec.h"
#include "common/wire/record.h"
#include "storcli/blocks.h"
#include "tests/lib/env_virtual.h"
#include "tests/unit/heal/made.h"
#include "tests/unit/unit.h"

enum { FAKE_BLOCKS = 512, FAKE_LAYERS = 24, FAKE_STORAGES = 16, FAKE_DRIVERS = 4 };

/* One version of a block of one projection. The newest one counts. */
struct fake_layer {
    uint64_t version;
    bool data;  /* false: a hole */
    bool range; /* a hole made by a large mark: it has no head of its own */
    /* damage of the head; `rotten` is damage of the body alone, which heads do not
     * show */
    bool damaged;
    bool rotten;
    bool pending; /* not committed: what is below must stay */
    bool stable;
};

struct fake_place { /* Versions of a block, oldest first; none: never written. */
    unsigned n;
    struct fake_layer layers[FAKE_LAYERS];
};

struct fake_projection {
    bool here, partial;
    /* the last one stands for all blocks behind */
    struct fake_place places[FAKE_BLOCKS + 1];
};

struct fake_storage {
    struct fake *fake;
    bool up;
    bool full; /* answers writes with NO_SPACE */
    bool serves_clients;
    bool may_be_torn;     /* had a power failure */
    size_t cut_bytes;     /* missing bytes at the end of bodies that are read */
    unsigned n_busy;      /* this many of the next writes and marks get BUSY */
    uint32_t fence_epoch; /* 0: no fence */
    uint64_t verifier;
    struct fake_projection *projections; /* owned; n of them */
};

struct fake_channel {
    struct rpc_channel ch; /* must be the first member */
    struct fake_storage *storage;
};

struct fake {
    struct env_virtual v;
    struct storcli_target target;
    const struct codec *codec;
    unsigned k, n, c, q;
    struct fake_storage storages[FAKE_STORAGES];
    struct fake_channel channels[FAKE_DRIVERS][FAKE_STORAGES];
    struct fake_call *calls; /* owned list of requests in flight */
    uint32_t delay_ms;
    /* tests make marks of any length as large ones: without heads */
    bool by_hand;
    uint64_t n_of[32];      /* requests carried out, by op */
    uint64_t n_read_blocks; /* bodies read */
    /* Called before each request is carried out; may change anything. NULL: not
     * called. */
    void (*before)(struct fake *fake, unsigned storage, uint16_t op);
    /* Returns a status; if it is not OK it is the answer, and nothing is carried out.
     * NULL: not called. */
    int (*refuse)(struct fake *fake, unsigned storage, uint16_t op);
};

void fake_init(struct fake *f, uint64_t seed, unsigned kind, unsigned layout);
void fake_close(struct fake *f);
struct storcli_peers fake_peers(struct fake *f, unsigned driver);

/** Writes one record at a storage as a client does. Returns false if it is refused
 * (fence, or newer version). */
bool fake_write(struct fake *f, unsigned storage, unsigned projection, uint64_t block,
                uint64_t version, bool sync);
/** Makes a mark as a client does, over every projection there and at least `projection`.
 * end UINT64_MAX: no end. Returns false if it is refused. */
bool fake_mark(struct fake *f, unsigned storage, unsigned projection, uint64_t first,
               uint64_t end, uint64_t version, bool sync);
/** Commits everything of the block up to this version at this storage. */
void fake_commit(struct fake *f, unsigned storage, uint64_t block, uint64_t version);
void fake_sync(struct fake *f, unsigned storage);
/** Cuts the power: all that is not stable is lost. */
void fake_power_cut(struct fake *f, unsigned storage);
/** Replaces the disk: everything is lost, and the storage knows that (its files are
 * partial). */
void fake_replace(struct fake *f, unsigned storage);

/** Returns the layer that counts at a block; NULL: never written, or no file. */
struct fake_layer *fake_top(struct fake *f, unsigned storage, unsigned projection,
                            uint64_t block);
/** Prints the layers of a block at all storages, for debugging. */
void fake_print(struct fake *f, uint64_t block);
/** Checks that all homes have `version` at this block, committed if `settled`. */
void fake_expect(struct fake *f, uint64_t block, uint64_t version, bool settled);

#endif
