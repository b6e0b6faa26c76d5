/*
 * options.c - parse SPEC, MNT and -o, also in the form that mount(8) passes them.
 *
 * In:     argv. Out: struct options, all of it checked.
 * Yours:  new options: a line in the table, one in options_help, one in
 *         docs/man/rozomount.8.
 */
#include "rozomount/options/options.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/group/exportd_list.h"
#include "rozomount/options/mountpoint.h"
#include "rozomount/options/xalloc.h"

enum { PORT_DEFAULT = 4700 };

const char options_help[] =
    "Usage: rozomount EXPORTD[:PORT][,EXPORTD...]/EXPORT MNT [-f] [-o OPTION[,...]]\n"
    "Mount an export of a rozo cluster on the directory MNT. Several EXPORTD are the\n"
    "members of a quorum, or addresses of one exportd.\n"
    "\n"
    "  -f, --foreground       stay in the foreground, log to standard error\n"
    "  -d, --debug            the same, and log every detail\n"
    "      --pid-file FILE    write the process id there once mounted\n"
    "  -o OPTION,...          options of mount(8), and:\n"
    "     key=FILE            the client key (default /etc/rozo/client.key)\n"
    "     ro                  mount read-only\n"
    "     remount             set these options of mount(8) on the existing mount\n"
    "     allow_other         let other users in (default for root)\n"
    "     no_allow_other      do not\n"
    "     nonempty            mount even if MNT has something in it\n"
    "     loops=N             event loops, each a thread (default: by the CPUs)\n"
    "     entry_timeout=SEC, attr_timeout=SEC, negative_timeout=SEC\n"
    "                         where exportd gives no tokens: how long the kernel\n"
    "                         believes names (1.0), attributes (1.0), and that a name\n"
    "                         is not there (0)\n"
    "     meta_timeout=SEC    calls exportd does not answer fail with EIO (60)\n"
    "     mount_timeout=SEC   how long to wait for exportd when mounting (10)\n"
    "     io_timeout=SEC      reads and writes that too few storages answer fail (20)\n"
    "     hedge_ms=MS         read without a storage that does not answer for this\n"
    "                         long, and ask others after a third of it (60)\n"
    "     spare_ms=MS         write to a spare if a storage does not answer for this\n"
    "                         long (400; O_SYNC writes: twice that)\n"
    "     write_behind=SIZE   unwritten bytes of one file before writers wait (8M)\n"
    "     read_ahead=SIZE     bytes read ahead of a sequential reader (2M)\n"
    "     cache=auto|page|direct\n"
    "                         what goes by way of the kernel's pages (auto)\n"
    "     relatime            a read moves the access time if the file was changed\n"
    "                         since, or after a day (the default; or: noatime,\n"
    "                         strictatime, nodiratime)\n"
    "     hold                another process keeps the mount if rozomount is\n"
    "                         killed, and starts it again: programs go on\n"
    "     writeback_cache     the kernel gathers writes; for files that no other\n"
    "                         mount uses\n"
    "     log_level=LEVEL     error, warn, info or debug\n"
    "      --help             this\n"
    "      --version          print the version\n"
    "\n"
    "In /etc/fstab:  HOST:PORT/EXPORT /mnt fuse.rozomount _netdev,key=FILE 0 0\n"
    "Unmount with umount MNT, or as a user with fusermount3 -u MNT.\n"
    "The manual page says more: man 8 rozomount\n";

/* ---- values ---- */

static int parse_seconds(const char *key, const char *value, double *out, struct err *err)
{
    char *end;
    double v = strtod(value, &end);

    if (end == value || *end != '\0' || !(v >= 0 && v <= 1e6))
        return err_set(err, -EINVAL, "option %s=%s: want seconds, such as 1.5", key,
                       value);
    *out = v;
    return 0;
}

static int parse_timeout_ms(const char *key, const char *value, uint32_t *out,
                            struct err *err)
{
    double s;
    int rc = parse_seconds(key, value, &s, err);

    if (rc == 0 && (s < 0.1 || s > 86400))
        rc = err_set(err, -EINVAL, "option %s=%s: want 0.1 to 86400 seconds", key, value);
    if (rc == 0)
        *out = (uint32_t)(s * 1000);
    return rc;
}

static int parse_number(const char *key, const char *value, uint64_t min, uint64_t max,
                        uint64_t *out, struct err *err)
{
    char *end;
    unsigned long long v;

    errno = 0;
    v = strtoull(value, &end, 10);
    if (*value < '0' || *value > '9' || *end != '\0' || errno != 0 || v < min || v > max)
        return err_set(err, -EINVAL, "option %s=%s: want a number from %llu to %llu", key,
                       value, (unsigned long long)min, (unsigned long long)max);
    *out = v;
    return 0;
}

static int parse_ms(const char *key, const char *value, uint32_t *out, struct err *err)
{
    uint64_t v = 0;
    int rc = parse_number(key, value, 1, 3600 * 1000, &v, err);

    if (rc == 0)
        *out = (uint32_t)v;
    return rc;
}

static int parse_size(const char *key, const char *value, uint64_t *out, struct err *err)
{
    char *end;
    unsigned long long v;
    unsigned shift = 0;

    errno = 0;
    v = strtoull(value, &end, 10);
    if (*end == 'k' || *end == 'K')
        shift = 10;
    else if (*end == 'm' || *end == 'M')
        shift = 20;
    else if (*end == 'g' || *end == 'G')
        shift = 30;
    if (shift != 0)
        end++;
    if (*value < '0' || *value > '9' || *end != '\0' || errno != 0 ||
        v > (1ULL << 40) >> shift)
        return err_set(err, -EINVAL, "option %s=%s: want a size, such as 8M", key, value);
    *out = v << shift;
    return 0;
}

/* ---- -o ---- */

static int parse_cache(const char *value, enum options_cache *out, struct err *err)
{
    static const char *const names[] = { [OPTIONS_CACHE_AUTO] = "auto",
                                         [OPTIONS_CACHE_PAGE] = "page",
                                         [OPTIONS_CACHE_DIRECT] = "direct" };

    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(value, names[i]) == 0) {
            *out = (enum options_cache)i;
            return 0;
        }
    }
    return err_set(err, -EINVAL, "option cache=%s: want auto, page or direct", value);
}

static void append_kernel_opt(struct options *opt, const char *key, const char *value)
{
    size_t old_len = opt->kernel_opts == NULL ? 0 : strlen(opt->kernel_opts);
    size_t len = old_len + strlen(key) + (value == NULL ? 0 : strlen(value)) + 3;
    char *text = xzalloc(len);

    snprintf(text, len, "%s%s%s%s%s", old_len == 0 ? "" : opt->kernel_opts,
             old_len == 0 ? "" : ",", key, value == NULL ? "" : "=",
             value == NULL ? "" : value);
    free(opt->kernel_opts);
    opt->kernel_opts = text;
}

static void set_text(char **to, const char *value)
{
    free(*to);
    *to = xstrdup(value);
}

/* Sets an option that has a value. Returns -ENOENT if the key is not one of these. */
static int set_valued(struct options *opt, const char *key, const char *value,
                      struct err *err)
{
    uint64_t n = 0;
    int rc = 0;

    if (strcmp(key, "key") == 0)
        set_text(&opt->key_file, value);
    else if (strcmp(key, "entry_timeout") == 0)
        rc = parse_seconds(key, value, &opt->entry_timeout_s, err);
    else if (strcmp(key, "attr_timeout") == 0)
        rc = parse_seconds(key, value, &opt->attr_timeout_s, err);
    else if (strcmp(key, "negative_timeout") == 0)
        rc = parse_seconds(key, value, &opt->negative_timeout_s, err);
    else if (strcmp(key, "meta_timeout") == 0)
        rc = parse_timeout_ms(key, value, &opt->meta_timeout_ms, err);
    else if (strcmp(key, "mount_timeout") == 0)
        rc = parse_timeout_ms(key, value, &opt->mount_timeout_ms, err);
    else if (strcmp(key, "io_timeout") == 0)
        rc = parse_timeout_ms(key, value, &opt->io_timeout_ms, err);
    else if (strcmp(key, "hedge_ms") == 0)
        rc = parse_ms(key, value, &opt->hedge_ms, err);
    else if (strcmp(key, "spare_ms") == 0)
        rc = parse_ms(key, value, &opt->spare_ms, err);
    else if (strcmp(key, "write_behind") == 0)
        rc = parse_size(key, value, &opt->write_behind_max, err);
    else if (strcmp(key, "read_ahead") == 0)
        rc = parse_size(key, value, &opt->read_ahead_max, err);
    else if (strcmp(key, "cache") == 0)
        rc = parse_cache(value, &opt->cache, err);
    else if (strcmp(key, "pid_file") == 0)
        set_text(&opt->pid_file, value);
    else if (strcmp(key, "log_level") == 0)
        rc = log_level_parse(value, &opt->log_level) == 0
                 ? 0
                 : err_set(err, -EINVAL,
                           "option log_level=%s: want error, warn, info or debug", value);
    else if (strcmp(key, "loops") == 0)
        rc = parse_number(key, value, 1, OPTIONS_LOOPS_MAX, &n, err);
    else
        return -ENOENT;
    if (n != 0)
        opt->loops = (unsigned)n;
    return rc;
}

/* Returns true for options of fstab that mount(8) or systemd reads and rozomount
 * ignores. */
static bool is_for_others(const char *key)
{
    static const char *const names[] = {
        "_netdev",  "defaults",   "auto",
        "noauto",   "user",       "nouser",
        "users",    "owner",      "group",
        "nofail",   "fail",       "mand",
        "nomand",   "norelatime", "nostrictatime",
        "lazytime", "nolazytime", "default_permissions"
    };

    if (strncmp(key, "x-", 2) == 0 || strncmp(key, "X-", 2) == 0 ||
        strcmp(key, "comment") == 0)
        return true;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(key, names[i]) == 0)
            return true;
    }
    return false;
}

/* Returns true for options that the kernel lists for a FUSE mount. mount(8) passes
 * them back on a remount if fstab has no line for the mount. */
static bool is_listed_by_the_kernel(const char *key)
{
    return strcmp(key, "user_id") == 0 || strcmp(key, "group_id") == 0 ||
           strcmp(key, "max_read") == 0;
}

/* Sets how reads update access times. Returns true if the option needs nothing else.
 * libfuse must also get noatime and atime, the only ones that it knows, and shows them
 * in /proc/mounts. */
static bool set_atimes(struct options *opt, const char *key)
{
    if (strcmp(key, "noatime") == 0)
        opt->atimes = ATIMES_NONE;
    else if (strcmp(key, "relatime") == 0 || strcmp(key, "atime") == 0)
        opt->atimes = ATIMES_RELATIVE;
    else if (strcmp(key, "strictatime") == 0)
        opt->atimes = ATIMES_STRICT;
    else if (strcmp(key, "nodiratime") == 0 || strcmp(key, "diratime") == 0)
        opt->nodiratime = key[0] == 'n';
    else
        return false;
    return strcmp(key, "noatime") != 0 && strcmp(key, "atime") != 0;
}

static int set_option(struct options *opt, const char *key, const char *value,
                      struct err *err)
{
    unsigned long flags = 0;
    int rc;

    if (is_for_others(key) || (value == NULL && set_atimes(opt, key)))
        return 0;
    if (value != NULL) {
        rc = set_valued(opt, key, value, err);
        if (rc == -ENOENT && opt->remount && is_listed_by_the_kernel(key))
            rc = 0;
        if (rc != -ENOENT)
            return rc;
        return err_set(err, -EINVAL, "unknown option %s=%s (see rozomount --help)", key,
                       value);
    }
    if (strcmp(key, "remount") == 0) {
        return 0; /* set_options() has handled it */
    } else if (strcmp(key, "allow_other") == 0) {
        opt->allow_other = true;
    } else if (strcmp(key, "no_allow_other") == 0) {
        opt->allow_other = false;
    } else if (strcmp(key, "nonempty") == 0) {
        opt->nonempty = true;
    } else if (strcmp(key, "writeback_cache") == 0) {
        opt->writeback_cache = true;
    } else if (strcmp(key, "hold") == 0) {
        opt->holder = HOLDER_WANTED;
    } else if (mountpoint_flag(key, &flags)) {
        if (strcmp(key, "ro") == 0 || strcmp(key, "rw") == 0)
            opt->read_only = flags != 0;
        append_kernel_opt(opt, key, NULL);
    } else {
        return err_set(err, -EINVAL, "unknown option %s (see rozomount --help)", key);
    }
    return 0;
}

static bool list_has(const char *list, const char *key)
{
    size_t len = strlen(key);

    for (; list != NULL; list = strchr(list, ',')) {
        list += *list == ',';
        if (strncmp(list, key, len) == 0 && (list[len] == ',' || list[len] == '\0'))
            return true;
    }
    return false;
}

static int set_options(struct options *opt, const char *list, struct err *err)
{
    char *copy = xstrdup(list);
    char *save = NULL;
    int rc = 0;

    opt->remount |= list_has(list, "remount");

    for (char *key = strtok_r(copy, ",", &save); key != NULL && rc == 0;
         key = strtok_r(NULL, ",", &save)) {
        char *value = strchr(key, '=');

        if (value != NULL)
            *value++ = '\0';
        rc = set_option(opt, key, value, err);
    }
    free(copy);
    return rc;
}

/* ---- SPEC ---- */

/* Returns "host", "host:port", "[v6]" or "[v6]:port" with a port, owned by the caller.
 * NULL: malformed. */
static char *address_complete(const char *text)
{
    const char *colon = strrchr(text, ':');
    const char *bracket = strrchr(text, ']');
    size_t len = strlen(text) + 8;
    char *end;
    char *out;
    bool has_port;

    if (*text == '\0' || *text == ':' || strlen(text) > 70)
        return NULL;
    has_port = colon != NULL && (bracket == NULL || colon > bracket);
    if (*text == '[' ? bracket == NULL : strchr(text, ':') != colon)
        return NULL; /* an IPv6 address needs brackets */
    if (has_port) {
        unsigned long port = strtoul(colon + 1, &end, 10);

        if (end == colon + 1 || *end != '\0' || port == 0 || port > 65535)
            return NULL;
    }
    out = xzalloc(len);
    if (has_port)
        snprintf(out, len, "%s", text);
    else
        snprintf(out, len, "%s:%d", text, PORT_DEFAULT);
    return out;
}

/* Joins the addresses, for people. */
static char *addresses_text(const struct options *opt)
{
    size_t len = 1;
    char *text;

    for (unsigned i = 0; i < opt->n_addrs; i++)
        len += strlen(opt->addrs[i]) + 1;
    text = xzalloc(len);
    for (unsigned i = 0; i < opt->n_addrs; i++) {
        strcat(text, i == 0 ? "" : ",");
        strcat(text, opt->addrs[i]);
    }
    return text;
}

static int set_spec(struct options *opt, const char *spec, struct err *err)
{
    const char *slash = strchr(spec, '/');
    const char *addrs[OPTIONS_ADDRS_MAX];
    unsigned n;
    char *copy;
    int rc = 0;

    if (slash == NULL || slash == spec || slash[1] == '\0' ||
        strchr(slash + 1, '/') != NULL)
        return err_set(err, -EINVAL, "what to mount is HOST[:PORT]/EXPORT, not \"%s\"",
                       spec);
    opt->spec = xstrdup(spec);
    opt->export_name = xstrdup(slash + 1);
    copy = xstrdup(spec);
    copy[slash - spec] = '\0';
    n = exportd_addrs_split(copy, addrs, OPTIONS_ADDRS_MAX);
    if (n > OPTIONS_ADDRS_MAX)
        rc = err_set(err, -EINVAL, "at most %d addresses of exportds can be named",
                     OPTIONS_ADDRS_MAX);
    for (unsigned i = 0; rc == 0 && i < n; i++) {
        opt->addrs[i] = address_complete(addrs[i]);
        if (opt->addrs[i] == NULL)
            rc =
                err_set(err, -EINVAL, "\"%s\" is no HOST[:PORT] of an exportd", addrs[i]);
        else
            opt->n_addrs++;
    }
    if (rc == 0 && opt->n_addrs == 0)
        rc = err_set(err, -EINVAL, "what to mount is HOST[:PORT]/EXPORT, not \"%s\"",
                     spec);
    opt->exportd = addresses_text(opt);
    free(copy);
    return rc;
}

static int set_positional(struct options *opt, unsigned n, const char *arg, int at,
                          struct err *err)
{
    if (n == 0)
        return set_spec(opt, arg, err);
    if (n > 1)
        return err_set(err, -EINVAL,
                       "too many arguments at \"%s\" (see rozomount --help)", arg);
    opt->mountpoint = xstrdup(arg);
    opt->mountpoint_at = at;
    return 0;
}

static void options_set_defaults(struct options *opt)
{
    opt->entry_timeout_s = 1.0;
    opt->attr_timeout_s = 1.0;
    opt->meta_timeout_ms = 60 * 1000;
    opt->mount_timeout_ms = 10 * 1000;
    opt->allow_other = geteuid() == 0;
    opt->log_level = LOG_LEVEL_INFO;
    opt->takes_over[0] = opt->takes_over[1] = opt->takes_over[2] = -1;
    opt->key_file = xstrdup("/etc/rozo/client.key");
}

/* Returns the value of "-o" or "--pid-file": the next argument, or the rest of this
 * one. NULL if there is none. */
static const char *value_of(int argc, char **argv, int *i, size_t glued_at)
{
    if (argv[*i][glued_at] != '\0')
        return argv[*i] + glued_at;
    if (*i + 1 >= argc)
        return NULL;
    return argv[++*i];
}

/* The holder starts rozomount with this option; it is not for users. */
static int set_takes_over(struct options *opt, const char *value, struct err *err)
{
    int *fds = opt->takes_over;

    if (sscanf(value, "%d,%d,%d", &fds[0], &fds[1], &fds[2]) != 3 || fds[0] < 0 ||
        fds[1] < 0 || fds[2] < 0)
        return err_set(err, -EINVAL, "--take-over=%s: only the holder of a mount uses it",
                       value);
    return 0;
}

static void run_at_least(struct options *opt, enum options_run run)
{
    if (opt->run < run)
        opt->run = run;
}

static int set_argument(struct options *opt, int argc, char **argv, int *i, unsigned *n,
                        struct err *err)
{
    const char *arg = argv[*i];
    const char *value;

    if (arg[0] != '-' || arg[1] == '\0')
        return set_positional(opt, (*n)++, arg, *i, err);
    if (strncmp(arg, "-o", 2) == 0) {
        value = value_of(argc, argv, i, 2);
        if (value == NULL)
            return err_set(err, -EINVAL, "-o wants options");
        return set_options(opt, value, err);
    }
    if (strcmp(arg, "--pid-file") == 0 || strncmp(arg, "--pid-file=", 11) == 0) {
        value = arg[10] == '=' ? arg + 11 : value_of(argc, argv, i, 10);
        if (value == NULL || *value == '\0')
            return err_set(err, -EINVAL, "--pid-file wants a file");
        set_text(&opt->pid_file, value);
        return 0;
    }
    if (strncmp(arg, "--take-over=", 12) == 0)
        return set_takes_over(opt, arg + 12, err);
    if (strcmp(arg, "-f") == 0 || strcmp(arg, "--foreground") == 0)
        run_at_least(opt, RUN_FOREGROUND);
    else if (strcmp(arg, "-d") == 0 || strcmp(arg, "--debug") == 0)
        run_at_least(opt, RUN_DEBUG);
    else if (strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0)
        opt->print = PRINT_HELP;
    else if (strcmp(arg, "--version") == 0 || strcmp(arg, "-V") == 0)
        opt->print = opt->print == PRINT_HELP ? PRINT_HELP : PRINT_VERSION;
    else if (strcmp(arg, "-n") != 0 && strcmp(arg, "-s") != 0 && strcmp(arg, "-v") != 0)
        return err_set(err, -EINVAL, "unknown option %s (see rozomount --help)", arg);
    return 0;
}

int options_parse(struct options *opt, int argc, char **argv, struct err *err)
{
    unsigned n = 0;
    int rc = 0;

    options_set_defaults(opt);
    for (int i = 1; i < argc && rc == 0; i++)
        rc = set_argument(opt, argc, argv, &i, &n, err);
    if (rc != 0 || opt->print != PRINT_NOTHING)
        return rc;
    if (n < 2)
        return err_set(err, -EINVAL,
                       "want what to mount and where (see rozomount --help)");
    if (opt->holder == HOLDER_WANTED && opt->writeback_cache)
        return err_set(err, -EINVAL,
                       "options hold and writeback_cache exclude each other: sizes that "
                       "only the kernel knows would be lost with the process");
    if (opt->run == RUN_DEBUG)
        opt->log_level = LOG_LEVEL_DEBUG;
    return 0;
}

void options_free(struct options *opt)
{
    for (unsigned i = 0; i < opt->n_addrs; i++)
        free(opt->addrs[i]);
    free(opt->spec);
    free(opt->exportd);
    free(opt->export_name);
    free(opt->mountpoint);
    free(opt->key_file);
    free(opt->pid_file);
    free(opt->kernel_opts);
    memset(opt, 0, sizeof(*opt));
}

/* ---- the mount point ---- */

static int check_empty(const char *path, struct err *err)
{
    DIR *dir = opendir(path);
    struct dirent *e;
    int rc = 0;

    if (dir == NULL)
        return err_wrap(err, -errno, "mount point %s", path);
    while (rc == 0 && (e = readdir(dir)) != NULL) {
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            rc =
                err_set(err, -ENOTEMPTY,
                        "mount point %s is not empty (-o nonempty mounts over it)", path);
    }
    closedir(dir);
    return rc;
}

/* Unmounts rozo mounts there whose process has died. */
static void drop_dead_mounts(const char *path)
{
    enum { STACKED_MAX = 16 };

    for (unsigned i = 0; i < STACKED_MAX && mountpoint_drop_dead(path); i++)
        log_warn("%s: unmounted a dead rozo mount", path);
}

static int check_resolved(const struct options *opt, struct err *err)
{
    const char *path = opt->mountpoint;
    struct stat st;

    drop_dead_mounts(path);
    if (mountpoint_is_ours(path))
        return err_set(err, -EBUSY,
                       "%s has a rozo export mounted already (umount it first)", path);
    if (stat(path, &st) != 0)
        return err_set(err, -errno, "mount point %s: %s", path, strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return err_set(err, -ENOTDIR, "mount point %s is not a directory", path);
    return opt->nonempty ? 0 : check_empty(path, err);
}

int options_check_mountpoint(struct options *opt, struct err *err)
{
    char *absolute = mountpoint_resolve(opt->mountpoint);

    if (absolute == NULL)
        return err_set(err, -errno, "mount point %s: %s", opt->mountpoint,
                       strerror(errno));
    free(opt->mountpoint);
    opt->mountpoint = absolute;
    return check_resolved(opt, err);
}
