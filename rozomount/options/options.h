/*
 * options.h - the command line of rozomount: SPEC MNT -o key=value,...
 */
#ifndef ROZO_ROZOMOUNT_OPTIONS_OPTIONS_H
#define ROZO_ROZOMOUNT_OPTIONS_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/base/log.h"

enum {
    OPTIONS_ADDRS_MAX = 16,
    OPTIONS_LOOPS_MAX = 64,
};

/* Which opens use the kernel's page cache. */
enum options_cache {
    OPTIONS_CACHE_AUTO,   /* all opens but write-only ones */
    OPTIONS_CACHE_PAGE,   /* all opens */
    OPTIONS_CACHE_DIRECT, /* only memory mappings */
};

/* How reads update access times. */
enum atimes_mode {
    ATIMES_RELATIVE, /* relatime */
    ATIMES_STRICT,   /* each read counts */
    ATIMES_NONE,     /* no read counts */
};

/* Whether a holder keeps the mount if the process dies: hold/holder.h. */
enum options_holder { HOLDER_NONE, HOLDER_WANTED };

/* How the program runs. */
enum options_run {
    RUN_BACKGROUND,
    RUN_FOREGROUND,
    RUN_DEBUG, /* in the foreground, with debug messages */
};

/* A text to print, instead of mounting. */
enum options_print {
    PRINT_NOTHING,
    PRINT_VERSION,
    PRINT_HELP,
};

/* Checked options. Zero-initialise; options_free() frees all members. */
struct options {
    char *spec;                     /* as given, for /proc/mounts */
    char *exportd;                  /* all addresses, for people */
    char *addrs[OPTIONS_ADDRS_MAX]; /* "host:port" of exportd, or of its members */
    unsigned n_addrs;
    char *export_name;
    char *mountpoint; /* absolute after options_check_mountpoint() */
    char *key_file;
    char *pid_file;
    char *kernel_opts; /* for mount(2) and libfuse: "ro,nosuid,..." */
    enum options_run run;
    bool nonempty, allow_other;
    bool remount; /* change flags of the existing mount */
    bool writeback_cache;
    enum options_holder holder;
    /* descriptors of a mount that is taken over: link, table, device; -1: none */
    int takes_over[3];
    int mountpoint_at; /* place of the mount point in argv */
    bool read_only;
    enum atimes_mode atimes; /* default: relatime */
    bool nodiratime;
    enum options_cache cache;
    enum options_print print;
    unsigned loops; /* 0: chosen by the number of CPUs */
    double entry_timeout_s, attr_timeout_s, negative_timeout_s;
    /* calls to exportd fail with EIO after it */
    uint32_t meta_timeout_ms;
    uint32_t mount_timeout_ms;                  /* time to wait for exportd at mount */
    uint32_t hedge_ms, spare_ms, io_timeout_ms; /* 0: default of storcli */
    uint64_t write_behind_max, read_ahead_max;  /* bytes; 0: default of the file layer */
    enum log_level log_level;
};

/**
 * Parses the command line. Returns 0, or -EINVAL with a message in err: the caller prints
 * the usage and exits with status 2.
 */
int options_parse(struct options *opt, int argc, char **argv, struct err *err);
void options_free(struct options *opt);
/**
 * Checks that the mount point is a directory, is empty (unless nonempty is set) and is
 * not a rozo mount already. Makes its path absolute and unmounts dead rozo mounts.
 * Returns 0, or -errno with a message in err.
 */
int options_check_mountpoint(struct options *opt, struct err *err);
/** Text of --help. */
extern const char options_help[];

#endif
