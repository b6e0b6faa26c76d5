/*
 * main.c - rozo-sim: runs of the simulated cluster.
 *
 *     rozo-sim --seed 1 --seeds 100 --ops 500
 *
 * Exit status 0: no fault was found. Otherwise the last line on stderr is the command
 * that repeats the run.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "codec/codec.h"
#include "common/base/log.h"
#include "common/config/args.h"
#include "storaged/ops/storage.h"
#include "tests/sim/cluster/programs/model.h"
#include "tests/sim/cluster/run.h"
#include "tests/sim/cluster/world/metas.h"

/* Sets of faults by name. */
static const struct {
    const char *name;
    unsigned faults;
} modes[] = {
    { "calm", 0 },
    { "net", FAULT_WEATHER | FAULT_CUT },
    { "crash", FAULT_KILL_STORAGE | FAULT_KILL_EXPORTD | FAULT_KILL_CLIENT },
    { "client", FAULT_KILL_CLIENT },
    { "late", FAULT_LATE },
    { "dead", FAULT_LATE | FAULT_KILL_CLIENT },
    { "hang", FAULT_HANG | FAULT_SLOW_DISK | FAULT_KILL_CLIENT },
    { "power",
      FAULT_POWER_STORAGE | FAULT_POWER_EXPORTD | FAULT_POWER_ALL | FAULT_KILL_CLIENT },
    { "rot", FAULT_ROT | FAULT_KILL_STORAGE | FAULT_KILL_CLIENT },
    { "full", FAULT_FULL | FAULT_KILL_STORAGE },
    { "eio", FAULT_ERRORS | FAULT_SPOIL | FAULT_KILL_STORAGE | FAULT_POWER_STORAGE |
                 FAULT_KILL_CLIENT },
    { "pages", FAULT_PAGES | FAULT_ROT | FAULT_KILL_STORAGE | FAULT_POWER_STORAGE |
                   FAULT_KILL_CLIENT },
    { "lost", FAULT_LOSE | FAULT_KILL_STORAGE | FAULT_KILL_CLIENT },
    { "old", FAULT_LOSE | FAULT_OLD_DISK | FAULT_KILL_STORAGE | FAULT_KILL_CLIENT },
    { "replace",
      FAULT_REPLACE | FAULT_KILL_STORAGE | FAULT_KILL_EXPORTD | FAULT_KILL_CLIENT },
    { "few", FAULT_FEW | FAULT_KILL_STORAGE | FAULT_KILL_CLIENT },
    { "chaos", FAULT_WEATHER | FAULT_CUT | FAULT_KILL_STORAGE | FAULT_KILL_EXPORTD |
                   FAULT_KILL_CLIENT | FAULT_HANG | FAULT_SLOW_DISK |
                   FAULT_POWER_STORAGE | FAULT_POWER_EXPORTD | FAULT_POWER_ALL |
                   FAULT_ROT | FAULT_FULL },
};
static const struct {
    const char *name;
    unsigned bits;
} mutants[] = {
    { "none", 0 },
    { "journal", MUTANT_NO_JOURNAL },
    { "journal-sync", MUTANT_NO_JOURNAL_SYNC },
    { "commit", MUTANT_NO_COMMIT_RULE },
    { "version",
      MUTANT_NO_VERSION_CHECK | MUTANT_NO_JOURNAL }, /* in place: otherwise readers
                                                      * would see the newer version */
    { "frame-crc", MUTANT_NO_CRC_CHECK },
    { "crc", RUN_MUTANT_NO_CRC },
    { "missed", RUN_MUTANT_NO_MISSED },
    { "fenced", MUTANT_NO_FENCED },
    { "deaf", RUN_MUTANT_DEAF },
    { "quorum-up", RUN_MUTANT_QUORUM_UP },
    { "strays", RUN_MUTANT_NO_STRAYS },
    { "grow-first", RUN_MUTANT_GROW_FIRST },
    { "meta-early", RUN_MUTANT_META_EARLY },
    { "meta-lease", RUN_MUTANT_META_LEASE },
    { "meta-stays", RUN_MUTANT_META_STAYS },
    { "meta-sync", RUN_MUTANT_META_SYNC },
    { "meta-vote", RUN_MUTANT_META_VOTE },
    { "meta-apply", RUN_MUTANT_META_APPLY },
    { "meta-join", RUN_MUTANT_META_JOIN },
    { "meta-start", RUN_MUTANT_META_START },
    { "meta-synced", RUN_MUTANT_META_SYNCED },
    { "meta-doubt", RUN_MUTANT_META_DOUBT },
    { "meta-count", RUN_MUTANT_META_COUNT },
    { "witness-serves", RUN_MUTANT_WITNESS_SERVES },
    { "witness-keeps", RUN_MUTANT_WITNESS_KEEPS },
    { "witness-stays", RUN_MUTANT_WITNESS_STAYS },
    { "witness-drops", RUN_MUTANT_WITNESS_DROPS },
    { "witness-seeds", RUN_MUTANT_WITNESS_SEEDS },
    { "witness-joins", RUN_MUTANT_WITNESS_JOINS },
};
enum { N_MUTANTS = sizeof(mutants) / sizeof(mutants[0]) };
enum { LAYOUT_ANY = 3 };
enum { N_MODES = sizeof(modes) / sizeof(modes[0]) };

struct arguments {
    uint64_t seed;
    unsigned n_seeds, n_ops;
    unsigned layout;     /* LAYOUT_ANY: chosen by the seed */
    unsigned n_storages; /* 0: chosen by the seed */
    unsigned mutant;
    const char *mode;        /* NULL: chosen by the seed */
    const char *acknowledge; /* likewise */
    bool verbose, tells, quiet, torn, heals, twice, directories, kernel, shared, locks,
        xattrs, names, cuts, inlined, direct, old_acks, has_witness;
    unsigned strict;
    unsigned n_clients, token_limit, n_more, n_metas;
    char replay[340];
};
static struct arguments args = { .seed = 1,
                                 .n_seeds = 1,
                                 .n_ops = 500,
                                 .layout = LAYOUT_ANY,
                                 .n_metas = 1 };

static void on_abort(int sig)
{
    (void)sig;
    if (write(2, args.replay, strlen(args.replay)) < 0)
        _exit(3);
    _exit(2);
}

/* Derives the configuration from the seed, unless the command line sets it. */
static struct run_config config_of(uint64_t seed, unsigned *mode)
{
    static const unsigned storages[3][3] = { { 4, 4, 6 }, { 8, 8, 9 }, { 16, 16, 16 } };
    /* More storages than needed; sim.cluster.lost_safe has only the layouts' number. */
    static const unsigned many[3] = { 6, 11, 20 };
    uint64_t x = (seed + 77) * 0x9e3779b97f4a7c15u;
    struct run_config c = { .seed = seed, .n_ops = args.n_ops };

    x ^= x >> 32;
    c.layout = args.layout != LAYOUT_ANY ? args.layout
               : x % 16 < 11             ? 0
               : x % 16 < 15             ? 1
                                         : 2;
    x >>= 4;
    *mode = (unsigned)(x % N_MODES);
    for (unsigned i = 0; args.mode != NULL && i < N_MODES; i++) {
        if (strcmp(args.mode, modes[i].name) == 0)
            *mode = i;
    }
    x /= 13; /* independent of the number of modes: a seed keeps its meaning */
    c.faults = modes[*mode].faults;
    c.n_storages = args.n_storages > 0 ? args.n_storages : storages[c.layout][x % 3];
    if (args.n_storages == 0 && ((c.faults & (FAULT_PAGES | FAULT_LOSE)) != 0 ||
                                 strcmp(modes[*mode].name, "rot") == 0))
        c.n_storages = many[c.layout];
    c.mutant = mutants[args.mutant].bits;
    c.verbose = args.verbose;
    c.tells = args.tells;
    c.torn_is_fine = args.torn;
    c.directories = args.directories;
    c.kernel = args.kernel;
    c.shared = args.shared;
    c.inlined = args.inlined;
    c.strict = args.shared ? MODEL_STRICT : args.strict;
    c.locks = args.locks;
    c.xattrs = args.xattrs;
    c.names = args.names;
    c.cuts = args.cuts;
    c.direct = args.direct;
    c.n_clients = args.n_clients;
    c.token_limit = args.token_limit;
    c.n_more = args.n_more;
    c.n_metas = args.n_metas;
    c.has_witness = args.has_witness;
    c.is_lazy = args.n_metas > 1 &&
                (args.acknowledge == NULL ? (x >> 20) % 4 != 0
                                          : strcmp(args.acknowledge, "memory") == 0);
    c.old_acks = args.old_acks;
    c.heals = args.heals || (c.faults & (FAULT_REPLACE | FAULT_LOSE)) != 0;
    /* An unsynced write, torn by power at one home and unreadable at the next, cannot be
     * healed: no storage can tell that it was never acknowledged. So disks keep their
     * power in modes that must heal. */
    if (c.heals && (c.faults & (FAULT_SPOIL | FAULT_PAGES)) != 0)
        c.faults &= ~(unsigned)FAULT_POWER_STORAGE;
    return c;
}

static void run_seed(uint64_t seed, struct run_result *r)
{
    unsigned mode;
    struct run_config c = config_of(seed, &mode);

    snprintf(
        args.replay, sizeof(args.replay),
        "replay: rozo-sim --seed %llu --ops %u --mode %s --layout %u --storages %u "
        "--mutant %s%s%s%s%s%s%s%s%s%s%s%s%s --clients %u --token-limit %u --more %u "
        "--metas %u%s%s%s\n",
        (unsigned long long)seed, c.n_ops, modes[mode].name, c.layout, c.n_storages,
        mutants[args.mutant].name, c.torn_is_fine ? " --torn" : "",
        c.heals ? " --heal" : "", c.directories ? " --directories" : "",
        c.kernel ? " --kernel" : "",
        c.strict == MODEL_STRICT    ? " --strict"
        : c.strict != MODEL_LENIENT ? " --strict=sizes"
                                    : "",
        c.shared ? " --shared" : "", c.locks ? " --locks" : "",
        c.xattrs ? " --xattrs" : "", c.names ? " --names" : "", c.cuts ? " --cuts" : "",
        c.inlined ? " --inline" : "", c.direct ? " --direct" : "", c.n_clients,
        c.token_limit, c.n_more, c.n_metas, c.has_witness ? " --witness" : "",
        c.is_lazy       ? " --acknowledge memory"
        : c.n_metas > 1 ? " --acknowledge disk"
                        : "",
        c.old_acks ? " --old-acks" : "");
    run_once(&c, r);
    if (!args.quiet)
        printf("seed %llu %s layout %u of %u: %u operations (%u failed), %llu events, "
               "%llu s, %u kills, %u power losses, %u clients died, %u torn, "
               "%llu KiB, trace %016llx\n",
               (unsigned long long)seed, modes[mode].name, c.layout, c.n_storages,
               r->n_ops, r->n_errors, (unsigned long long)r->n_events,
               (unsigned long long)r->virtual_ms / 1000, r->n_kills, r->n_power,
               r->n_client_deaths, r->n_torn, (unsigned long long)r->bytes_most >> 10,
               (unsigned long long)r->trace);
}

static void mode_arg(struct argp_state *state, char *text, void *to)
{
    *(const char **)to = text;
    for (unsigned i = 0; i < N_MODES; i++) {
        if (strcmp(text, modes[i].name) == 0)
            return;
    }
    argp_error(state, "no such mode: %s", text);
}

static void acknowledge_arg(struct argp_state *state, char *text, void *to)
{
    if (strcmp(text, "memory") != 0 && strcmp(text, "disk") != 0)
        argp_error(state, "--acknowledge memory, or disk");
    *(const char **)to = text;
}

static void mutant_arg(struct argp_state *state, char *text, void *to)
{
    unsigned *mutant = to;

    for (*mutant = 0; *mutant < N_MUTANTS; ++*mutant) {
        if (strcmp(text, mutants[*mutant].name) == 0)
            return;
    }
    argp_error(state, "no such mutant: %s", text);
}

static void strict_arg(struct argp_state *state, char *text, void *to)
{
    if (text != NULL && strcmp(text, "sizes") != 0)
        argp_error(state, "--strict, or --strict=sizes");
    *(unsigned *)to = text == NULL ? MODEL_STRICT : MODEL_STRICT_SIZES;
}

int main(int argc, char **argv)
{
    static const struct args_option options[] = {
        { "seed", 's', "N", "First seed",
          ARGS_NUMBER(struct arguments, seed, 0, UINT64_MAX) },
        { "seeds", 'n', "N", "Number of seeds",
          ARGS_NUMBER(struct arguments, n_seeds, 0, UINT32_MAX) },
        { "ops", 'o', "N", "Operations of a run",
          ARGS_NUMBER(struct arguments, n_ops, 0, UINT32_MAX) },
        { "mode", 'm', "NAME",
          "calm, net, crash, few, client, late, dead, hang, power, rot, full, eio, "
          "replace, chaos",
          ARGS_CALL(struct arguments, mode, mode_arg) },
        { "layout", 'l', "N", "Layout: 0, 1, 2",
          ARGS_NUMBER(struct arguments, layout, 0, 2) },
        { "storages", 'c', "N", "Number of storages",
          ARGS_NUMBER(struct arguments, n_storages, 0, 64) },
        { "old-acks", 'a', NULL,
          "Until storages join, a write quorum is only a read quorum",
          ARGS_FLAG(struct arguments, old_acks) },
        { "more", 'g', "N", "Number of storages that join during the run",
          ARGS_NUMBER(struct arguments, n_more, 0, 64) },
        { "metas", 'M', "N", "Number of exportds; more than one are a quorum",
          ARGS_NUMBER(struct arguments, n_metas, 1, METAS_MAX) },
        { "witness", 'y', NULL, "One of three exportds is a witness",
          ARGS_FLAG(struct arguments, has_witness) },
        { "acknowledge", 'A', "WHAT",
          "Members of a quorum acknowledge what is written (memory) or synced (disk); "
          "by itself most seeds take memory",
          ARGS_CALL(struct arguments, acknowledge, acknowledge_arg) },
        { "mutant", 'x', "NAME",
          "Safety measure that is left out: journal, journal-sync, commit, version, "
          "frame-crc, crc, missed, fenced, deaf, quorum-up, strays, "
          "grow-first; of a quorum: meta-early, meta-lease, meta-stays, meta-sync, "
          "meta-vote, meta-apply, meta-join, meta-start; with --acknowledge memory: "
          "meta-synced, meta-doubt, meta-count; with --witness: witness-serves, "
          "witness-keeps, witness-stays, witness-drops, witness-seeds, witness-joins",
          ARGS_CALL(struct arguments, mutant, mutant_arg) },
        { "verbose", 'v', NULL, "Print events", ARGS_FLAG(struct arguments, verbose) },
        { "words", 'w', NULL, "Print events and every message",
          ARGS_FLAG(struct arguments, tells) },
        { "quiet", 'q', NULL, "Print only the sum", ARGS_FLAG(struct arguments, quiet) },
        { "torn", 't', NULL, "Count blocks that cannot be read, do not fail",
          ARGS_FLAG(struct arguments, torn) },
        { "heal", 'h', NULL, "Storages heal, and at the end all must be healed",
          ARGS_FLAG(struct arguments, heals) },
        { "directories", 'd', NULL,
          "The sync of a name covers all names in its directory",
          ARGS_FLAG(struct arguments, directories) },
        { "kernel", 'k', NULL,
          "A model of Linux, with its caches, stands before each mount",
          ARGS_FLAG(struct arguments, kernel) },
        { "strict", 'S', "sizes", "All mounts are equal at any time; sizes: only sizes",
          ARGS_CALL(struct arguments, strict, strict_arg), .optional = true },
        { "token-limit", 'K', "N", "Tokens that exportd gives to a session",
          ARGS_NUMBER(struct arguments, token_limit, 0, UINT32_MAX) },
        { "inline", 'I', NULL, "exportd keeps the data of small files",
          ARGS_FLAG(struct arguments, inlined) },
        { "shared", 'W', NULL, "Few names, and many writers of a file; with strict",
          ARGS_FLAG(struct arguments, shared) },
        { "locks", 'L', NULL, "Programs take locks", ARGS_FLAG(struct arguments, locks) },
        { "xattrs", 'X', NULL, "Programs change and read extended attributes",
          ARGS_FLAG(struct arguments, xattrs) },
        { "names", 'N', NULL, "Programs mostly use names",
          ARGS_FLAG(struct arguments, names) },
        { "cuts", 'U', NULL, "Programs mostly cut files, and read around their ends",
          ARGS_FLAG(struct arguments, cuts) },
        { "direct", 'D', NULL, "Most writers open with O_DIRECT",
          ARGS_FLAG(struct arguments, direct) },
        { "clients", 'C', "N", "Number of mounts with programs; 0: all three",
          ARGS_NUMBER(struct arguments, n_clients, 0, 3) },
        { "twice", '2', NULL, "Run each seed twice: both must be the same",
          ARGS_FLAG(struct arguments, twice) },
        { 0 },
    };
    static const struct args_syntax syntax = { .options = options };
    struct run_result sum = { 0 };
    struct timespec from, to;

    log_init("rozo-sim");
    args_parse(&syntax, argc, argv, &args);
    args.verbose |= args.tells;
    if (args.has_witness && args.n_metas != METAS_MAX) {
        fprintf(stderr, "rozo-sim: --witness needs --metas %d\n", METAS_MAX);
        return 1;
    }
    log_set_level(args.verbose ? LOG_LEVEL_DEBUG : LOG_LEVEL_ERROR);
    signal(SIGABRT, on_abort);
    /* Makes all codecs now, owned by no process; rotten bytes may name any of them. */
    for (unsigned kind = CODEC_MOJETTE; kind <= CODEC_RS; kind++) {
        for (unsigned layout = 0; layout < 3; layout++) {
            codec_get(kind, layout, 4096);
            codec_get(kind, layout, 8192);
        }
    }
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
    for (unsigned i = 0; i < args.n_seeds; i++) {
        struct run_result r, again;

        run_seed(args.seed + i, &r);
        sum.n_ops += r.n_ops;
        sum.n_events += r.n_events;
        sum.n_torn += r.n_torn;
        sum.n_units += r.n_units;
        sum.n_spoiled += r.n_spoiled;
        sum.n_worn += r.n_worn;
        sum.n_doubts += r.n_doubts;
        sum.n_doubts_ended += r.n_doubts_ended;
        sum.n_doubtful_reads += r.n_doubtful_reads;
        sum.n_replaced += r.n_replaced;
        sum.n_fail_overs += r.n_fail_overs;
        sum.n_behind += r.n_behind;
        sum.n_copies += r.n_copies;
        sum.n_transfers += r.n_transfers;
        sum.n_witness_terms += r.n_witness_terms;
        sum.n_witness_fed += r.n_witness_fed;
        sum.n_in_doubt += r.n_in_doubt;
        sum.n_counted += r.n_counted;
        sum.n_lost += r.n_lost;
        sum.n_lost_more += r.n_lost_more;
        sum.n_came_back += r.n_came_back;
        sum.n_peeked += r.n_peeked;
        sum.n_ranges += r.n_ranges;
        sum.n_locks += r.n_locks;
        sum.n_signals += r.n_signals;
        sum.n_xattrs += r.n_xattrs;
        sum.n_xattrs_asked += r.n_xattrs_asked;
        sum.n_inlined += r.n_inlined;
        sum.n_inlined_again += r.n_inlined_again;
        sum.n_outgrown += r.n_outgrown;
        sum.n_kernel_names += r.n_kernel_names;
        sum.n_kernel_attrs += r.n_kernel_attrs;
        sum.n_kernel_pages += r.n_kernel_pages;
        sum.n_kernel_lists += r.n_kernel_lists;
        sum.n_kernel_invalidated += r.n_kernel_invalidated;
        sum.n_kernel_forgotten += r.n_kernel_forgotten;
        sum.n_kernel_overtaken += r.n_kernel_overtaken;
        sum.n_kernel_beside += r.n_kernel_beside;
        if (!args.twice)
            continue;
        run_seed(args.seed + i, &again);
        if (again.trace != r.trace) {
            fprintf(stderr, "seed %llu runs differently the second time\n%s",
                    (unsigned long long)(args.seed + i), args.replay);
            return 1;
        }
    }
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
    printf("%u seeds, %u operations, %llu events, %llu units checked, %u torn blocks, "
           "%.1f s of CPU\n",
           args.n_seeds, sum.n_ops, (unsigned long long)sum.n_events,
           (unsigned long long)sum.n_units, sum.n_torn,
           (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) / 1e9);
    if (sum.n_spoiled + sum.n_doubts + sum.n_replaced > 0)
        printf(
            "met: %u pages spoiled, %u for good, %u doubts, %u ended, %u questions in "
            "doubt, %u disks replaced, %u lost during a rebuild, %u old ones came back\n",
            sum.n_spoiled, sum.n_worn, sum.n_doubts, sum.n_doubts_ended,
            sum.n_doubtful_reads, sum.n_replaced, sum.n_lost_more, sum.n_came_back);
    if (args.n_metas > 1)
        printf("quorum: %u fail-overs, %u transfers, %u copies of stores by members that "
               "were behind, %u by members that had lost something\n",
               sum.n_fail_overs, sum.n_transfers, sum.n_behind, sum.n_copies);
    if (args.has_witness)
        printf("witness: led %u terms, had %u entries that the next leader lacked\n",
               sum.n_witness_terms, sum.n_witness_fed);
    if (sum.n_in_doubt > 0)
        printf(
            "memory: %u starts of uncertain members, %u losses of power counted, %u of "
            "them took changes that were answered\n",
            sum.n_in_doubt, sum.n_counted, sum.n_lost);
    if (args.shared)
        printf(
            "shared: %llu names looked at unlocked, ranges of files held at %llu looks\n",
            (unsigned long long)sum.n_peeked, (unsigned long long)sum.n_ranges);
    if (args.locks)
        printf("locks: %llu taken, %llu signals to waiting programs\n",
               (unsigned long long)sum.n_locks, (unsigned long long)sum.n_signals);
    if (args.xattrs)
        printf("xattrs: %llu looked at, %llu questions to exportd\n",
               (unsigned long long)sum.n_xattrs, (unsigned long long)sum.n_xattrs_asked);
    if (args.inlined)
        printf(
            "inline: %llu files kept at exportd, %llu times written again, %llu of them "
            "moved to storages\n",
            (unsigned long long)sum.n_inlined, (unsigned long long)sum.n_inlined_again,
            (unsigned long long)sum.n_outgrown);
    if (args.kernel)
        printf(
            "kernel: knew %llu names, %llu attributes, %llu pages, %llu listings; "
            "dropped %llu names and pages, forgot %llu inodes; %llu answers overtaken, "
            "%llu writes beside others\n",
            (unsigned long long)sum.n_kernel_names,
            (unsigned long long)sum.n_kernel_attrs,
            (unsigned long long)sum.n_kernel_pages,
            (unsigned long long)sum.n_kernel_lists,
            (unsigned long long)sum.n_kernel_invalidated,
            (unsigned long long)sum.n_kernel_forgotten,
            (unsigned long long)sum.n_kernel_overtaken,
            (unsigned long long)sum.n_kernel_beside);
    return 0;
}
