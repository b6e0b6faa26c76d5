/*
 * state.h - what the files of one run share: run.c starts and ends it, program.c and data.c are what programs do,
 * names.c how they change names, faults.c what goes wrong, finish.c the checks after all of it.
 */
#ifndef ROZO_SIM_STATE_H
#define ROZO_SIM_STATE_H

#include "common/base/list.h"
#include "tests/sim/cluster/model.h"
#include "tests/sim/cluster/mount.h"
#include "tests/sim/cluster/run.h"
#include "tests/sim/cluster/servers.h"

enum {
    CLIENTS = 3,
    PROGRAMS = 3,   /* on each mount */
    FIRST_DIR = 10, /* of the names: files in the root, directories, names in them */
    DIRS = 2,
    FIRST_CHILD = FIRST_DIR + DIRS,
    CHILDREN_EACH = 3,
    SHARED_NAMES = 3, /* of each kind that programs fight for with --shared */
    PARTS_NAME = 2,   /* ... and who writes this one does it mostly in his mount's part */
    PART_BYTES = 12 * BLOCK,
    PARTS_BYTES = CLIENTS * PART_BYTES,
    INLINE_BYTES = 5 * BLOCK + 100, /* of a file that exportd keeps with --inline */
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
    struct fuse_req req; /* first */
    struct sim_client *client;
    unsigned life;
    struct env_timer timer;
    void (*on_timer)(struct program *p);
    void (*on_answer)(struct program *p);
    enum episode episode;
    int name, name2; /* locked; NOBODY */
    int file;        /* in use; NOBODY */
    bool writer, opened;
    bool only_one; /* nobody else can be writing what it opens, and exportd knows that */
    bool in_part;  /* of a file in which others work elsewhere */
    bool appends;  /* an append is under way: nobody else changes the file */
    struct {
        bool held, writes;
        bool unsure; /* it may have one that it was told of while it was away */
        unsigned range;
        bool asked_writes, signalled; /* of the request under way */
        unsigned asked_range;
    } lock;
    struct {
        unsigned which;
        uint32_t id;
    } xattr;                 /* of the request under way */
    struct env_timer signal; /* comes while it waits for a lock */
    uint64_t fh;
    int open_flags;
    unsigned n_left; /* data operations of this episode */
    struct model_view view;
    enum data_op op;
    uint32_t no; /* of the write under way */
    uint64_t off, len, started_ns;
    unsigned exportd_cuts; /* seen when the operation began */
    int kind;
    unsigned begun_cuts;     /* as exportd_cuts, when the episode began */
    int made;                /* a directory: the one that is made or moved */
    int kids[CHILDREN_EACH]; /* what was in it */
    struct {
        int dir; /* NOBODY: the root */
        bool inside;
        uint64_t ino_of_dir, begun_ns;
        unsigned exportd_cuts, n_seen[NAMES];
        uint64_t ino[NAMES];
    } listing;
    _Alignas(16) uint8_t data[MOUNT_READ_MAX];
};

/* A fault that ends. */
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
    unsigned n, k;                          /* of the layout */
    unsigned n_clients;                     /* with programs */
    struct sim_client clients[CLIENTS + 1]; /* the last one looks at the end */
    struct program programs[CLIENTS * PROGRAMS];
    struct fault faults[FAULTS_MAX];
    struct env_timer fault_timer;
    bool ending;
    struct {
        uint64_t ino, block;
    } looked_at;                 /* when something is wrong, tell who has what */
    unsigned exportd_cuts;       /* losses of its power so far */
    uint64_t exportd_cut_ns;     /* the last time */
    uint64_t exportd_started_ns; /* the last time */
    unsigned exportd_deaths;
    bool armed_power[HOSTS_MAX]; /* a watched host loses its power */
    uint64_t fault_pause_us;     /* at most, between two */
    unsigned replacing;   /* the id of a storage that has lost its disk; 0: none yet */
    bool replaced;        /* exportd has put the new one in its place ... */
    uint64_t replaced_ns; /* ... at this time */
    struct env_timer replace_timer;
    struct env_timer grow_timer;
    unsigned n_grown; /* storages that joined during the run */
    /* Mode lost. */
    uint32_t lost;   /* storages that have lost their disk and are not whole again */
    unsigned old_in; /* 1 + the storage in which the disk is that was replaced; 0: none */
    unsigned asked;  /* of all storages: is everything healed? */
    bool asking;
    unsigned storage_kills, kills_seen; /* then, or when the last disk was lost */
    uint64_t ill_ns,
        client_died_ns;   /* when a storage was last away, a client last died */
    unsigned rot_storage; /* rot is only here, so that it cannot add up */
};
extern struct run *run;

/* run.c */
void say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void wrong(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
/** Words of the model, of a file this program uses: NULL is fine. */
void expect(const char *words_or_null, const struct program *p);

/* program.c */
void programs_make(void);
/** Most are quick, some take a nap. */
uint64_t think_us(void);
void program_later(struct program *p, uint64_t max_us, void (*fn)(struct program *p));
/** Before a request: what comes then. */
struct fuse_req *program_asks(struct program *p, void (*on_answer)(struct program *p));
/** Losses of exportd's power that an answer that comes now can know of. */
unsigned program_cuts(const struct program *p);
/** An error was answered: may that be, here and now? */
void program_fails(struct program *p, int rc, const char *what);
void program_end_episode(struct program *p);
void program_begin(struct program *p);
/** As the kernel tells processes apart. */
uint64_t program_owner(const struct program *p);
/** Requests of the dead are on their way to exportd. */
bool strays(void);
/** A place in the model, or NOBODY. */
int file_new(void);
/** It is looked at from now on; or written, when it may be. */
void program_use_file(struct program *p, int file);
/** A name that nobody uses, or NOBODY; look it up: names_step(), or an open, follows. */
int name_lock(void);
void name_look(struct program *p);
void client_comes(struct sim_client *c);
void client_dies(struct sim_client *c);

/* data.c: the file is open; then operations until it is closed */
void data_again(struct program *p);
void on_released(struct program *p);

/* locks.c */
/** Take or release a lock of the file it has open, perhaps; false: it does not. */
bool locks_do(struct program *p);
/** It has asked for the release, or is dead. */
void lock_drop(struct program *p);
/** It may be taken for dead: what it has may be lost. */
void locks_client_away(int client);

/* xattrs.c */
void xattrs_begin(void);
/** Change or look at an extended attribute of the file it has open, perhaps; false: it does not. */
bool xattrs_do(struct program *p);
/** exportd lost its power. */
void xattrs_lost(void);
/** After all is well: all of a file; wait() ends when the answer is there. */
void xattrs_check(struct program *p, int file, void (*wait)(struct program *p));

/* names.c */
void names_make(void);
/** A directory is not there: nor is anything in it. */
void dir_is_gone(int d);
/** Read a whole directory, and compare. No other episode. */
void names_list(struct program *p, int d);
void names_begin(struct program *p);
void names_step(struct program *p);
/** Look at a name that others may change meanwhile, and how long the file is. */
void names_peek(struct program *p);
/** Its client died: if a change was under way, it may have come about. */
void names_die(struct program *p);

/* faults.c */
/** Before there is a cluster. */
void faults_begin(void);
/** From now on. */
void faults_start(void);
/** Everything is up and well again. */
void faults_end(void);

/* holders.c */
/** After each step; looks after some. */
void holders_check(void);

/* finish.c */
/** No more programs, no more messages, no more mounts. */
void finish_programs(void);
/** Every name and every byte, from a mount that knows nothing. */
void check_everything(void);
/** Time passes until everything is healed, and everything is where it should be. */
/** Every file gets the storages that the cluster got meanwhile. */
void check_growth(void);
void check_healing(void);
void check_memory(void);

#endif
