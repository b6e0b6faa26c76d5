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

/* What goes by way of the kernel's page cache. */
enum options_cache {
    OPTIONS_CACHE_AUTO,   /* all but what is opened for writing only */
    OPTIONS_CACHE_PAGE,   /* everything */
    OPTIONS_CACHE_DIRECT, /* what is mapped only */
};

/* How reads move access times. */
enum atimes_mode {
    ATIMES_RELATIVE, /* relatime */
    ATIMES_STRICT,   /* each read counts */
    ATIMES_NONE,     /* no read counts */
};

/* All of it checked. Owned; options_free(). Zero-initialise. */
struct options {
    char *spec;                     /* as given, for /proc/mounts */
    char *addrs[OPTIONS_ADDRS_MAX]; /* "host:port" of exportd */
    unsigned n_addrs;
    char *export_name;
    char *mountpoint; /* absolute once options_check_mountpoint() was happy */
    char *key_file;
    char *pid_file;
    char *kernel_opts; /* for mount(2) and libfuse: "ro,nosuid,..." */
    bool foreground, debug;
    bool nonempty, allow_other;
    bool remount; /* the mount that is there */
    bool writeback_cache;
    bool read_only;
    enum atimes_mode atimes; /* default: relatime */
    bool nodiratime;
    enum options_cache cache;
    bool help, version;
    unsigned loops; /* 0: by the machine */
    double entry_timeout_s, attr_timeout_s, negative_timeout_s;
    uint32_t meta_timeout_ms;                   /* a call exportd does not answer: EIO */
    uint32_t mount_timeout_ms;                  /* the same at mount */
    uint32_t hedge_ms, spare_ms, io_timeout_ms; /* 0: the engine's */
    uint64_t write_behind_max, read_ahead_max;  /* 0: the file layer's */
    enum log_level log_level;
};

/** Parse. 0; -EINVAL with words in err (usage: exit 2). */
int options_parse(struct options *opt, int argc, char **argv, struct err *err);
void options_free(struct options *opt);
/**
 * The mount point is a directory, empty (unless nonempty) and no mount of ours already; makes it
 * absolute. 0 or -errno with words.
 */
int options_check_mountpoint(struct options *opt, struct err *err);
/** What --help prints. */
extern const char options_help[];

#endif
