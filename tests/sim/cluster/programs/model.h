/*
 * model.h - model of POSIX: every value that a unit of a file, a size or a name may have.
 *
 * Files consist of units of 16 bytes; each written unit names its write, so that a read
 * can be checked by its bytes alone. The model keeps all writes of a file (truncates and
 * punches are writes of zeros), in order, until no reader can see older ones. Checked
 * rules:
 *
 * - Each file has one writing client at a time, except with --shared; readers are
 *   anywhere.
 * - A program sees all earlier acknowledged writes of its own client. Of another client's
 *   writes it sees at its open those that a flush, close or fsync had acknowledged there
 *   before.
 * - A write that failed, or whose client died, may exist or not (forever, or until it is
 *   overwritten); each unit by itself. It must not exist if fewer than k storages got it
 *   before they knew that its session was over.
 * - Data acknowledged by fsync stays, whatever happens. Other data may be lost by any
 *   power loss.
 * - Data written beyond the end of the file as exportd knows it (its client died before
 *   it reported the size, or exportd's power failed) may appear when the file grows, even
 *   after a truncate or punch there; until a client opens the file for writing and
 *   exportd knows that it is the only one.
 * - An fsync does not cover data that a power loss took before the file was opened.
 * - After a power loss of exportd, an fsync covers only the names that its client made,
 *   linked or gave by renaming.
 * - In a quorum (--metas 3) exportd loses power if a majority does. The run knows from
 *   which moment on all that was committed is lost: what was answered before stays, and
 *   what was sent later is gone (loss_laws.h).
 * - A failed fsync reports data that a power loss took once, as Linux does.
 * - A name has any value given since the last fsync that reached exportd, by any client,
 *   by the client that gave the value, or of its file; without a power loss of exportd it
 *   has the last one. (An fsync with nothing to do sends no request.)
 *
 * With --strict all mounts are equal: an answer to any program is true for every later
 * request of any program (reads, sizes, seeks); a file may have many writers (--shared),
 * and either of two concurrent writes may be the later one. --strict=sizes demands that
 * of sizes in stat only, not of reads. Data that a client accepted and did not store is
 * lost when the client dies, or is unreachable for so long that its session may have
 * ended. If disks refuse accepted data (full, eio), unflushed data may be dropped when
 * other clients use the file.
 *
 * Invariants of the design, how a run checks them, and where:
 *
 * I1  data acknowledged by fsync is in every later read, and at the end (here, finish.c);
 *     data acknowledged by a flush, close or fsync was sent to q storages (here; in
 *     --mode few fewer of them are up); the faults of a mode leave enough storages
 *     (reasons in faults.c): rot and unreadable pages are on one of them only; a disk is
 *     lost when all is healed, or during a rebuild while no other storage has been down.
 * I2  every read, and a seek for data, is compared with all writes (here).
 * I3  units of a block come from one write or the previous one; at the end every block is
 *     readable (without --torn), and with healing at all homes.
 * I4  names after crashes of exportd: lookups, listings, and their consequences (here,
 *     names.c).
 * I5  no two sessions hold tokens that exclude each other, and no mount uses a token that
 *     another one has (holders.c). Requests in flight of a dead client arrive delayed,
 *     twice, and after later requests: they never replace newer writes (here; --mode
 *     late, dead).
 * I6  storages return after missed writes, with replaced disks (--mode replace, lost),
 *     and with journals that lost unknown records (--mode pages; main.c counts these
 *     cases): reads as in I2.
 * I7  with --heal, when all faults are over: nothing is left to do, a scrub finds
 *     nothing, all homes have all projections (finish.c, healed.c). Repairs during the
 *     run: reads as in I2.
 * I8  fuzz targets send hostile bytes; rot, torn writes and unreadable pages are here.
 * I9  the memory of each process (finish.c).
 * I10 at the end no inode is without a name: orphans end with the sessions that hold them
 *     (healed.c).
 * I11 every process has its own wall clock, up to an hour wrong.
 * I12 --mode full: ENOSPC is a valid answer, and stored data stays as it is.
 */
#ifndef ROZO_TESTS_SIM_CLUSTER_PROGRAMS_MODEL_H
#define ROZO_TESTS_SIM_CLUSTER_PROGRAMS_MODEL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    UNIT = 16,
    FILE_BYTES_MAX_SIM = 160 << 10,
    FILE_UNITS = FILE_BYTES_MAX_SIM / UNIT,
    BLOCK = 4096,
    FILE_BLOCKS = FILE_BYTES_MAX_SIM / BLOCK,
    FILES_MAX_SIM = 64,
    NAMES_MAX = 20,
    NAME_VALUES_MAX = 64,
    MODEL_CLIENTS = 8,
    NOBODY = -1,
};

/* One write, truncate or punch, in the order of the requests. */
struct model_write {
    uint32_t id;       /* 0: zeros */
    uint32_t no;       /* number in its file, from 1 */
    uint64_t off, end; /* end UINT64_MAX: a truncate to off */
    bool keeps, grows; /* an allocation: keeps data; sets a minimum size */
    int client;        /* writer, and in which life */
    unsigned life;
    bool orphan;    /* the life is over */
    bool answered;  /* false, without orphan: still in progress */
    bool unknown;   /* failed, or its client died */
    bool shaky;     /* a power loss happened since, and no fsync */
    bool was_shaky; /* was shaky before an fsync */
    uint64_t begun_ns, acked_ns, stored_ns, synced_ns; /* 0: not yet */
    uint64_t acked_no;                                 /* model_moment() of acked_ns */
    uint64_t gone_ns; /* unknown: has no effect later than this */
    /* Bitmap for each block: storages that got it while the session was valid. */
    uint32_t storages[FILE_BLOCKS];
    uint64_t
        cut_off; /* from this byte on never reported, so never visible again; 0: none */
};

struct model_file {
    bool used;
    uint64_t ino; /* 0: not known yet */
    unsigned n_names;
    int writer;                 /* client that may write; NOBODY: none */
    unsigned n_users;           /* episodes in progress on it */
    struct model_write *writes; /* owned; oldest first */
    unsigned n_writes, writes_room;
    uint32_t last_no;
    uint64_t size_lo, size_hi; /* before all writes */
    uint32_t base[FILE_UNITS]; /* ids before all writes */
    unsigned n_reads;          /* readers: no state that they may see is dropped */
    uint64_t now_size;         /* for its writer */
    uint64_t left_ns;          /* last close, or ... */
    uint64_t deserted_ns;      /* ... last death of a client that had it open; 0: none */
    uint64_t unlocked_ns;      /* last release of a lock */
    bool inlined; /* exportd got all its data, and no word about storages since */
};

/* A value of a name, from its acknowledgement on: index of a file; NOBODY: none. */
struct model_value {
    int file;
    int client; /* giver whose fsync of the file covers
                 * the name, and its life; NOBODY: none */
    unsigned life;
    uint64_t begun_ns; /* time of its request; 0: not known */
    uint64_t acked_ns; /* UINT64_MAX: never, or at any time */
};

struct model_name {
    char text[16];
    int dir; /* index of its directory's name; NOBODY: the root */
    bool locked;
    unsigned n_inside; /* a directory: users of the names in it */
    uint64_t parent, unlocked_ns;
    unsigned n_possible; /* the value is one of this many newest ones; 0: the last one */
    unsigned n_values;
    struct model_value values[NAME_VALUES_MAX];
};

/* A mount that may be taken for dead: its unstored writes may be lost. */
struct model_absence {
    unsigned life;
    uint64_t until_ns;
};

/* Visibility of other clients' acknowledged changes: from the next open on, if they are
 * stored; or at once. */
enum model_strictness {
    MODEL_LENIENT,
    MODEL_STRICT_SIZES, /* only sizes in stat */
    MODEL_STRICT,
};

struct model {
    enum model_strictness strict;
    unsigned k;    /* projections needed to read a block */
    unsigned q;    /* storages that get acknowledged data, whichever are down */
    bool gives_up; /* disks refuse accepted data: unflushed data may be dropped
                    * when other clients use the file; the next fsync reports it */
    struct model_absence absences[MODEL_CLIENTS];
    struct model_file files[FILES_MAX_SIM];
    struct model_name names[NAMES_MAX];
    unsigned n_names;
    uint32_t last_id;
    uint64_t last_moment;
    uint64_t n_units_checked, n_names_checked, n_resurfaced;
    int bad_file; /* place of the first wrong read */
    uint64_t bad_unit;
};
extern struct model model;

void model_begin(enum model_strictness strict);
void model_end(void);

/* An observer: it must see others' writes stored before opened_ns, and its own ones
 * acknowledged before started_ns. */
struct model_view {
    int client;
    unsigned life;
    uint64_t opened_ns, started_ns;
    uint64_t started_no; /* model_moment() of started_ns */
};

/** Returns a number that grows: the order of what programs do at one time. */
uint64_t model_moment(void);

int model_file_new(void);
void model_file_free(int file);

/** Records a request to write; returns its number. */
uint32_t model_write_begin(int file, uint64_t off, uint64_t end, bool zeros, int client,
                           unsigned life);
/** Makes the write a fallocate(): keeps old data, makes the file longer. */
void model_write_is_allocation(int file, uint32_t no, bool keeps, bool grows);
/** Records the answer; rc 0: accepted. */
void model_write_done(int file, uint32_t no, int rc);
/** Tells whether the write is in progress, or its mount may still send it by itself. */
bool model_may_still_come(const struct model_write *w);
/** Fills in bytes of a write that model_write_begin() recorded. */
void model_fill(int file, uint32_t no, uint8_t *data, uint64_t off, size_t len);
/**
 * Records that a flush or close (synced: an fsync) by this observer, begun at
 * view->started_ns, succeeded. Returns an error text if a covered write is on fewer
 * storages than the quorum.
 */
const char *model_stored(int file, const struct model_view *view, bool synced);
/** Records a failed close: unstored data may be dropped. */
void model_close_failed(int file, int client, unsigned life);
/** Records that the mount lives but its session ended: data in
 * its memory is dropped, which the next fsync or close reports. */
void model_session_lost(int client, unsigned life);
/** Records a failed fsync: later ones do not
 * cover data that a power loss may have taken. */
void model_fsync_failed(int file);
/** Records that an O_SYNC write succeeded.
 * Returns an error text as model_stored() does. */
const char *model_write_synced(int file, uint32_t no);

/** Checks the result of a read. Returns NULL, or an error text. */
const char *model_check_read(int file, const struct model_view *view, uint64_t off,
                             size_t len, const uint8_t *data, size_t got);
/** Tells whether all of these bytes may be as if
 * never written: no part of them was stable. */
bool model_may_be_nothing(int file, const struct model_view *view, uint64_t off,
                          size_t len);
/** Checks the size in an answer. Returns NULL, or an error text. */
const char *model_check_size(int file, const struct model_view *view, uint64_t size);
/** Returns the smallest and the largest valid size. */
void model_size(int file, const struct model_view *view, uint64_t *lo, uint64_t *hi);

/** Records that its only writer opened it with
 * this size: older data beyond is cut off. */
void model_opened_by_only_writer(int file, uint64_t size);

/** Records that the client died: its writes in flight may have any outcome. */
void model_client_died(int client, unsigned life);
/** Records that the session of a live client may end, until that time. */
void model_client_away(int client, unsigned life, uint64_t until_ns);
bool model_is_away(int client, unsigned life);
/** Records that a storage got blocks [first, end)
 * of a client whose session was valid there. */
void model_landed(uint64_t ino, int client, unsigned life, unsigned storage,
                  uint64_t first, uint64_t end);
/** Records a power loss of a machine, which may take what was stored since then. */
void model_power_lost(uint64_t since_ns);
/**
 * Records a power loss of exportd: names may be lost, too. since_ns: all changes that
 * were committed from then on are lost, and no other; 0: not known which ones are.
 */
void model_names_lost(uint64_t since_ns);
/** Makes names acknowledged before since_ns stable: all (by
 * is NULL), or those given by `by` and those of the file. */
void model_names_synced(uint64_t since_ns, int file, const struct model_view *by);

/** Sets a name to a file (or NOBODY), by a request that was sent at begun_ns. by:
 * observer whose fsync of the file covers the name; NULL: none. */
void model_name_set(int name, int file, uint64_t begun_ns, const struct model_view *by);
/** Records that an fsync by this observer, begun at view->started_ns,
 * succeeded: the names it gave the file are stable. */
void model_own_names_synced(int file, const struct model_view *view);
/** Adds a value that the name may have. */
void model_name_maybe(int name, int file);
/** Returns the current value; the name must be sure. */
int model_name_get(int name);
/** Checks the result of a lookup; it decides an
 * unsure name. Returns NULL, or an error text. */
const char *model_name_seen(int name, uint64_t ino);

/** Returns the file with this inode number, or NOBODY. */
int model_file_by_ino(uint64_t ino);
/** Drops writes that no observer can see any more. */
void model_collapse(int file);

static inline bool model_name_is_unsure(int name)
{
    return model.names[name].n_possible != 0;
}

#endif
