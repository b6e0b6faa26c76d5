/*
 * state.h - state of one run, shared by its files.
 *
 * run.c starts and ends the run, program.c and data.c run the programs, names.c changes
 * names, faults.c causes faults, finish.c checks the cluster at the end.
 */
#ifndef ROZO_SIM_STATE_H
#define ROZO_SIM_STATE_H

#include "common/base/list.h"
#include "tests/sim/cluster/programs/model.h"
#include "tests/sim/cluster/programs/mount.h"
#include "tests/sim/cluster/run.h"
#include "tests/sim/cluster/world/metas.h"
#include "tests/sim/cluster/world/servers.h"

enum {
    CLIENTS = 3,
    PROGRAMS = 3,   /* per mount */
    FIRST_DIR = 10, /* order of names: files in the root,
                     * directories, names in directories */
    DIRS = 2,
    FIRST_CHILD = FIRST_DIR + DIRS,
    CHILDREN_EACH = 3,
    SHARED_NAMES = 3, /* names of each kind, for all programs with --shared */
    PARTS_NAME = 2,   /* ... its writers mostly write in their own mount's part */
    PART_BYTES = 12 * BLOCK,
    PARTS_BYTES = CLIENTS * PART_BYTES,
    INLINE_BYTES = 5 * BLOCK + 100, /* limit of a file that exportd keeps with --inline */
    NAMES = FIRST_CHILD + DIRS * CHILDREN_EACH,
};

enum episode {
    EPISODE_NONE,
    EPISODE_WRITER,
    EPISODE_READER,
    EPISODE_NAMES,
    EPISODE_PEEK,
};

enum data_op {
    DATA_WRITE,
    DATA_READ,
    DATA_FSYNC,
    DATA_FLUSH,
    DATA_TRUNCATE,
    DATA_FALLOCATE,
    DATA_SEEK,
    DATA_STAT,
};

/* A program on a mount: one request at a time, one episode after the other. */
struct program {
    struct fuse_req req; /* must be the first member */
    struct sim_client *client;
    unsigned life;
    struct env_timer timer;
    void (*on_timer)(struct program *p);
    void (*on_answer)(struct program *p);
    enum episode episode;
    int name, name2; /* locked names; NOBODY: none */
    int file;        /* file in use; NOBODY: none */
    bool writer, opened;
    bool only_one; /* no other writer can exist, and exportd knows that */
    bool in_part;  /* stays in its own part of a shared file */
    bool appends;  /* an append is in progress: no other program changes the file */
    struct {
        bool held, writes;
        bool unsure; /* may hold a lock that was granted during an absence */
        unsigned range;
        bool asked_writes, signalled; /* by the request in progress */
        unsigned asked_range;
    } lock;
    struct {
        unsigned which;
        uint32_t id;
    } xattr;                 /* by the request in progress */
    struct env_timer signal; /* signal during a wait for a lock */
    uint64_t fh;
    int open_flags;
    unsigned n_left; /* remaining data operations of this episode */
    struct model_view view;
    enum data_op op;
    uint32_t no; /* number of the write in progress */
    uint64_t off, len, started_ns;
    unsigned exportd_cuts; /* value when the operation began */
    int kind;
    unsigned begun_cuts;     /* as exportd_cuts, when the episode began */
    int made;                /* model file of the directory that is created or moved */
    int kids[CHILDREN_EACH]; /* contents before the change */
    struct {
        int dir; /* index of the name; NOBODY: the root */
        bool inside;
        uint64_t ino_of_dir, begun_ns;
        unsigned exportd_cuts, n_seen[NAMES];
        uint64_t ino[NAMES];
    } listing;
    _Alignas(16) uint8_t data[MOUNT_READ_MAX];
};

/* A fault that ends after a time. */
struct fault {
    struct env_timer timer;
    void (*end)(struct fault *f);
    bool active;
    unsigned a, b;
};

enum { FAULTS_MAX = 24 };

struct run {
    struct run_config config;
    struct run_result result;
    unsigned n, k;                          /* the layout's */
    unsigned n_clients;                     /* clients with programs */
    struct sim_client clients[CLIENTS + 1]; /* the last one reads everything at the end */
    struct program programs[CLIENTS * PROGRAMS];
    struct fault faults[FAULTS_MAX];
    struct env_timer fault_timer;
    bool ending;
    struct {
        uint64_t ino, block;
    } looked_at;                 /* block to print if a check fails */
    unsigned exportd_cuts;       /* exportd's power losses so far; in a quorum, those
                                  * that took something */
    uint64_t exportd_cut_ns;     /* the last one */
    uint64_t exportd_started_ns; /* the last start */
    unsigned exportd_deaths;
    bool armed_power[HOSTS_MAX]; /* the armed host loses its
                                  * power, not only its process */
    uint64_t fault_pause_us;     /* longest pause between two faults */
    /* the storage that lost its disk; NULL: none yet */
    const struct sim_storage *replacing;
    bool replaced;        /* exportd has admitted the new disk ... */
    uint64_t replaced_ns; /* ... at this time */
    struct env_timer replace_timer;
    struct env_timer grow_timer;
    unsigned n_grown; /* storages that joined during the run */
    /* Mode lost. */
    uint32_t lost;   /* bitmap of storages that lost their disk and are not rebuilt yet */
    unsigned old_in; /* 1 + the storage with a replaced disk in it; 0: none */
    unsigned asked;  /* storages asked whether everything is healed */
    bool asking;
    unsigned storage_kills, kills_seen; /* now, and when the last disk was lost */
    uint64_t ill_ns,
        client_died_ns;   /* last time a storage was down; last death of a client */
    unsigned rot_storage; /* the only storage with rot, so that rot does not add up */
};
extern struct run *run;

/* run.c */
/** Prints a line with the time, if the run is verbose. */
void say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/** Prints a message and ends the process: a check failed. */
void wrong(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
/** Fails with the model's text about the file of this program; NULL: no fault. */
void expect(const char *words_or_null, const struct program *p);

/* program.c */
void programs_make(void);
/** Returns a random pause: mostly short, sometimes long. */
uint64_t think_us(void);
void program_later(struct program *p, uint64_t max_us, void (*fn)(struct program *p));
/** Prepares a request; on_answer gets the answer. */
struct fuse_req *program_asks(struct program *p, void (*on_answer)(struct program *p));
/** Returns the number of exportd's power losses that an answer now can reflect. */
unsigned program_cuts(const struct program *p);
/** Checks that an error answer is allowed in this run. */
void program_fails(struct program *p, int rc, const char *what);
void program_end_episode(struct program *p);
void program_begin(struct program *p);
/** Returns the lock owner that identifies the program for the mount. */
uint64_t program_owner(const struct program *p);
/** If exportd lost its power since the program asked, the name may have any value. */
void program_name_is_cut(const struct program *p, int name);
/** Tells whether requests of dead clients are on their way to exportd. */
bool strays(void);
/** Returns a free place in the model, or NOBODY. */
int file_new(void);
/** Takes a file into use: for reading, or for writing if that is allowed. */
void program_use_file(struct program *p, int file);
/** Locks an unused name and returns it, or NOBODY. */
int name_lock(void);
/** Looks the name up; names_step() or an open follows. */
void name_look(struct program *p);
void client_comes(struct sim_client *c);
void client_dies(struct sim_client *c);

/* data.c: operations on an open file, until it is closed */
void data_again(struct program *p);
void on_released(struct program *p);

/* locks.c */
/** Sometimes takes or releases a lock of the
 * open file. Returns false if it does nothing. */
bool locks_do(struct program *p);
/** Records that the program asked for the release, or died. */
void lock_drop(struct program *p);
/** Records that the client may be taken for dead: its locks may be lost. */
void locks_client_away(int client);

/* xattrs.c */
void xattrs_begin(void);
/** Sometimes changes or reads an xattr of the
 * open file. Returns false if it does nothing. */
bool xattrs_do(struct program *p);
/** Records that exportd lost its power: as model_names_lost(). */
void xattrs_lost(uint64_t since_ns);
/** Checks all xattrs of a file at the end; wait() returns when the answer has arrived. */
void xattrs_check(struct program *p, int file, void (*wait)(struct program *p));

/* names.c */
void names_make(void);
/** Records that a directory is gone, with all names in it. */
void dir_is_gone(int d);
/** Reads a whole directory and compares it with
 * the model. The program has no other episode. */
void names_list(struct program *p, int d);
void names_begin(struct program *p);
void names_step(struct program *p);
/** Looks up a name that other programs may change, and checks the size of its file. */
void names_peek(struct program *p);
/** Records that the client died: a change in progress may have happened. */
void names_die(struct program *p);

/* faults.c */
/** Makes a fault that ends after a while with end(); NULL: there are too many. */
struct fault *fault_new(uint64_t for_ms, void (*end)(struct fault *f), unsigned a,
                        unsigned b);
/** Stops a process as SIGSTOP does, for a while. False: it runs on. */
bool host_hangs(struct host *h, uint64_t for_ms);
/** Kills an exportd, or cuts its power; it starts again later. False: it does not. */
bool meta_falls(struct sim_meta *e, uint64_t for_ms, bool power);
/** Prepares the faults, before the cluster exists. */
void faults_begin(void);
/** Starts the faults. */
void faults_start(void);
/** Ends all faults: everything is up. */
void faults_end(void);

/** Records that exportd lost its power: as model_names_lost(). */
void exportd_is_cut(uint64_t since_ns);

/* meta_faults.c */
/** Sometimes causes a fault of this kind among members. False: it caused none. */
bool meta_fault(unsigned fault);
/**
 * Returns whether the loss of its power is more than the group survives: it is the only
 * member that can lead, since the witness has dropped what the other one lacks.
 */
bool meta_needs_power(const struct sim_meta *e);
/** Ends all that its faults have left. */
void meta_faults_end(void);

/* holders.c */
/** Checks the tokens after some of the steps. */
void holders_check(void);

/* finish.c */
/** Stops the programs, the messages and the mounts. */
void finish_programs(void);
/** Checks every name and every byte through a fresh mount. */
void check_everything(void);
/** Waits until every file has all the storages that joined the cluster. */
void check_growth(void);
/** Waits until everything is healed, and checks that all data is at its homes. */
void check_healing(void);
/** Waits until all members of a quorum take part, and checks that they hold the same. */
void check_members(void);
/** Checks the memory of each process. */
void check_memory(void);

#endif
