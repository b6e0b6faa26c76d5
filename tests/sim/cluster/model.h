/*
 * model.h - what POSIX allows: every value a unit of a file, a size, a name may have.
 *
 * Files are looked at in units of 16 bytes; each unit that is written says which write it comes from, so
 * a read is checked by looking. Of each file all writes (truncates and punches are writes of zeros) are
 * kept in order until nobody can see past them. The promises that are checked:
 *
 * - Each file has one writing client at a time, but for --shared; readers are anywhere.
 * - A program sees what programs of its own client were acknowledged before. Of another client's writes
 *   it sees at its open all that a flush, close or fsync had acknowledged there before.
 * - A write of a client that died, or that failed, may be there or not (for ever, or until it is
 *   overwritten); each unit by itself.
 * - ... and is not there, as long as fewer storages than give a block got it before they knew that its session was over.
 * - What an fsync acknowledged is there, whatever happens. Between, any loss of power may take it.
 * - What was written beyond the end of the file as exportd knows it (its client died before it reported
 *   the size, or exportd's power failed) may show when the file grows, even after a truncate or punch
 *   there; until somebody opens the file for writing whom exportd knows to be the only one.
 * - An fsync says nothing of what a loss of power took before the file was opened.
 * - After a loss of exportd's power, an fsync speaks of the names that its client made, linked or gave by renaming, of no others.
 * - An fsync that fails tells once of what a loss of power took, as Linux does.
 * - A name has a value it was given since the last fsync anywhere that exportd was asked for, or of who gave it, or of the file
 *   it was given to; and without a loss of power of exportd the last one. (An fsync with nothing to do asks nobody.)
 *
 * With --strict there is no difference between mounts: what any program's request was answered is so for whoever asks
 * after that, reads, sizes, seeks; a file may have many writers (--shared), and of two writes at the same time either may be the later one.
 * --strict=sizes asks that of what a stat tells, and not of reads.
 * What a client had accepted and not stored is lost with it when it dies, or is away for so long that its session may have ended.
 * Where disks refuse what was accepted (full, eio), what nobody flushed may be given up when others come.
 *
 * Of the invariants of the design, what is checked in a run, and where:
 *
 * I1  what an fsync acknowledged is there at every later read, and in the end (here, finish.c); what a flush, close or
 *     fsync acknowledged went to q storages (here; --mode few has fewer of them up); the faults of a
 *     mode leave enough storages (faults.c says why): rot and pages that cannot be read are on one of them, a disk is
 *     lost when all is healed, or during a rebuild while nobody else has been away.
 * I2  every read, and a seek for data, is held against all writes (here).
 * I3  units of a block are written by one write or the one before; in the end every block can be read (without
 *     --torn), and with healing by all homes.
 * I4  names after crashes of exportd: lookups, listings, and what follows from them (here, names.c).
 * I5  no two sessions hold tokens that exclude each other, and no mount believes in one that another one has (holders.c). What a dead
 *     client had on its way arrives late, twice, and after it is followed by others: it never takes the place of what they
 *     wrote (here; --mode late, dead).
 * I6  storages come back after writes they missed, after their disks were replaced (--mode replace, lost), and after their
 *     journals lost what nobody can name (--mode pages; main.c counts such doubts): reads as I2.
 * I7  with --heal, when all faults are over: nothing is left to do, a scrub finds nothing, all homes have all
 *     projections (finish.c, healed.c). Whoever is repaired as the run goes is read as I2.
 * I8  hostile bytes are the fuzz targets'; rot, torn writes and pages that cannot be read are here.
 * I9  the memory of each process (finish.c).
 * I10 in the end no inode is there without a name: orphans went with the sessions that held them (healed.c).
 * I11 every process has a wall clock of its own, an hour off.
 * I12 --mode full: ENOSPC is an answer, and what is stored stays as it is.
 */
#ifndef ROZO_SIM_MODEL_H
#define ROZO_SIM_MODEL_H

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

/* One write, truncate or punch, in the order they were asked for. */
struct model_write {
    uint32_t id;       /* 0: zeros */
    uint32_t no;       /* counts in its file; never 0 */
    uint64_t off, end; /* end UINT64_MAX: a truncate to off */
    bool keeps,
        grows; /* an allocation: what lies there stays; the file is as long as this at least */
    int client; /* who wrote, and in which life */
    unsigned life;
    bool orphan; /* which is over */
    bool
        answered; /* else, without orphan, it is under way still, whatever else may be said of it */
    bool unknown;   /* failed, or its client died */
    bool shaky;     /* power was lost since, and no fsync */
    bool was_shaky; /* before an fsync */
    uint64_t begun_ns, acked_ns, stored_ns, synced_ns; /* 0: not */
    uint64_t gone_ns; /* unknown: after this it does not come about any more */
    uint32_t storages
        [FILE_BLOCKS]; /* bits: who got its block while they took it from its client */
    uint64_t
        cut_off; /* from this byte on it was left untold, and never shows any more; 0: nothing is */
};

struct model_file {
    bool used;
    uint64_t ino; /* 0: nobody has told yet */
    unsigned n_names;
    int writer;                 /* client that may write, or NOBODY */
    unsigned n_users;           /* episodes under way on it */
    struct model_write *writes; /* oldest first */
    unsigned n_writes, writes_room;
    uint32_t last_no;
    uint64_t size_lo, size_hi; /* before all of writes */
    uint32_t base[FILE_UNITS]; /* ids, before all of writes */
    unsigned n_reads;          /* who may look: nothing they may see is forgotten */
    uint64_t now_size;         /* as its writer sees it */
    uint64_t left_ns;          /* when somebody last closed it, or ... */
    uint64_t deserted_ns;      /* ... died with it open; 0: nobody did */
    uint64_t unlocked_ns;      /* when somebody last gave up a lock */
    bool inlined; /* exportd was told all its data, and nothing of storages since */
};

/* A value a name had: index of a file, NOBODY: none; from its acknowledgement on. */
struct model_value {
    int file;
    int client; /* who gave it to a file that an fsync then speaks of, and in which life; or NOBODY */
    unsigned life;
    uint64_t acked_ns;
};

struct model_name {
    char text[16];
    int dir; /* the name of the directory it is in; NOBODY: the root */
    bool locked;
    unsigned n_inside; /* a directory: who use names in it */
    uint64_t parent, unlocked_ns;
    unsigned
        n_possible; /* it is one of that many newest values, nobody knows which; 0: the last one */
    unsigned n_values;
    struct model_value values[NAME_VALUES_MAX];
};

/* A mount that may be taken for dead: what it wrote and has not stored may be lost. */
struct model_absence {
    unsigned life;
    uint64_t until_ns;
};

/* What others were answered: seen when it was stored there before an open here; or at once. */
enum model_strictness {
    MODEL_LENIENT,
    MODEL_STRICT_SIZES, /* that a stat tells */
    MODEL_STRICT,
};

struct model {
    enum model_strictness strict;
    unsigned k; /* storages that give a block */
    unsigned q; /* storages that get what is acknowledged, whoever is away */
    bool
        gives_up; /* disks refuse what was accepted: without a flush it may be given up when others come, and the next fsync says so */
    struct model_absence absences[MODEL_CLIENTS];
    struct model_file files[FILES_MAX_SIM];
    struct model_name names[NAMES_MAX];
    unsigned n_names;
    uint32_t last_id;
    uint64_t n_units_checked, n_names_checked, n_resurfaced;
    int bad_file; /* where a read was wrong */
    uint64_t bad_unit;
};
extern struct model model;

void model_begin(enum model_strictness strict);
void model_end(void);

/* Who looks: its client, and since when it may rely on what others stored and on its own. */
struct model_view {
    int client;
    unsigned life;
    uint64_t opened_ns, started_ns;
};

int model_file_new(void);
void model_file_free(int file);

/** Asked for. Returns its number. */
uint32_t model_write_begin(int file, uint64_t off, uint64_t end, bool zeros, int client,
                           unsigned life);
/** It is by fallocate(): keeps what lies there, makes the file longer. */
void model_write_is_allocation(int file, uint32_t no, bool keeps, bool grows);
/** rc 0: it is accepted. */
void model_write_done(int file, uint32_t no, int rc);
/** It is under way, or its mount may yet bring it about without being asked. */
bool model_may_still_come(const struct model_write *w);
/** Bytes of a write that model_write_begin() was told of. */
void model_fill(int file, uint32_t no, uint8_t *data, uint64_t off, size_t len);
/**
 * A flush or close (or, synced, an fsync) of whoever has this view, that began at view->started_ns, ended
 * well. Words when something that it speaks of is on fewer storages than the quorum.
 */
const char *model_stored(int file, const struct model_view *view, bool synced);
/** A close that failed: what was not stored yet may be given up. */
void model_close_failed(int file, int client, unsigned life);
/** This mount lives, but its session does not: what waits in its memory is given up, and told at the next fsync or close. */
void model_session_lost(int client, unsigned life);
/** An fsync that failed: what a loss of power may have taken is lost, and later ones do not speak of it. */
void model_fsync_failed(int file);
/** One write that was O_SYNC ended well. Words as of model_stored(). */
const char *model_write_synced(int file, uint32_t no);

/** NULL: fine; else what is wrong, in words. */
const char *model_check_read(int file, const struct model_view *view, uint64_t off,
                             size_t len, const uint8_t *data, size_t got);
/** May all of these bytes be as if nobody had ever written them? So nothing of them was made stable. */
bool model_may_be_nothing(int file, const struct model_view *view, uint64_t off,
                          size_t len);
const char *model_check_size(int file, const struct model_view *view, uint64_t size);
/** What it may be. */
void model_size(int file, const struct model_view *view, uint64_t *lo, uint64_t *hi);

/** Its only writer has opened it and found it so long: what was left beyond is cut off. */
void model_settled(int file, uint64_t size);

void model_client_died(int client, unsigned life);
/** Its session may end, although it lives, until then. */
void model_client_away(int client, unsigned life, uint64_t until_ns);
bool model_is_away(int client, unsigned life);
/** A storage got blocks [first, end) of a client whose session it does not know to be over. */
void model_landed(uint64_t ino, int client, unsigned life, unsigned storage,
                  uint64_t first, uint64_t end);
/** Some machine lost its power: storages or exportd. */
void model_power_lost(void);
/** exportd's did: names, too. */
void model_names_lost(void);
/** Names acknowledged before since_ns are stable: all (by is NULL), or those that `by` gave, and those of the file. */
void model_names_synced(uint64_t since_ns, int file, const struct model_view *by);

/** The name is now that file (or NOBODY). by: whose fsync of it speaks of that, too; NULL: nobody's. */
void model_name_set(int name, int file, const struct model_view *by);
/** An fsync of whoever has this view, that began at view->started_ns, ended well: its own names of the file are there. */
void model_own_names_synced(int file, const struct model_view *view);
/** It may be, or not. */
void model_name_maybe(int name, int file);
/** The current value, when it is sure. */
int model_name_get(int name);
/** Somebody looked. NULL: fine. Settles what was unsure. */
const char *model_name_seen(int name, uint64_t ino);

int model_file_by_ino(uint64_t ino);
/** Forget what nobody can see any more. */
void model_collapse(int file);

static inline bool model_name_is_unsure(int name)
{
    return model.names[name].n_possible != 0;
}

#endif
