/*
 * xattrs.c - extended attributes of programs' open files, with checks.
 *
 * In:     the seed, answers of mounts. Out: requests to mounts; an error message if a
 *         value is not allowed.
 * Keeps:  strict in every run: an attribute has the value of a change that may be the
 *         last one. An answered change replaces all changes answered before it was sent,
 *         on every mount from then on. A change without an answer may take effect at any
 *         time. No answer reports what exportd's power loss took, so older values may
 *         return; in a quorum, those before changes that were answered since the first
 *         one was lost.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/sim/cluster/state.h"

enum { XATTRS = 3, CHANGES_MAX = 48, VALUE_BYTES_MAX = 1500 };

/* Names of three classes. */
static const char *const names[XATTRS] = { "user.a", "trusted.b", "security.c" };

struct change {
    uint32_t id;                    /* id of its value; 0: removed */
    uint64_t begun_ns, answered_ns; /* 0: none, or an error: it may take effect or not */
};

struct xattr {
    struct change changes[CHANGES_MAX];
    unsigned n;
};

/* Attributes of the model's files. */
static struct {
    uint64_t ino; /* the owner: the place is used again later */
    struct xattr xattrs[XATTRS];
} files[FILES_MAX_SIM];

static uint32_t last_id;

void xattrs_begin(void)
{
    memset(files, 0, sizeof(files));
    last_id = 0;
}

static struct xattr *xattr_of(int file, unsigned which)
{
    if (files[file].ino != model.files[file].ino) {
        memset(&files[file], 0, sizeof(files[file]));
        files[file].ino = model.files[file].ino;
        for (unsigned i = 0; i < XATTRS; i++) /* no attribute at the beginning */
            files[file].xattrs[i] =
                (struct xattr){ .n = 1, .changes = { { .answered_ns = 1 } } };
    }
    return &files[file].xattrs[which];
}

static void on_xattr_looked(struct program *p);
static void on_xattr_changed(struct program *p);

/* ---- what it may be ---- */

/* Tells whether a later change has replaced this one for an observer that began then. */
static bool is_over(const struct xattr *x, const struct change *c, uint64_t since_ns)
{
    for (unsigned i = 0; c->answered_ns != 0 && i < x->n; i++) {
        const struct change *later = &x->changes[i];

        if (later->answered_ns != 0 && later->answered_ns < since_ns &&
            later->begun_ns > c->answered_ns)
            return true;
    }
    return false;
}

/* Tells whether the attribute may have this value, or any value (`any`). */
static bool may_be(const struct xattr *x, uint32_t id, bool any, uint64_t since_ns)
{
    for (unsigned i = 0; i < x->n; i++) {
        const struct change *c = &x->changes[i];

        if ((any ? c->id != 0 : c->id == id) && !is_over(x, c, since_ns))
            return true;
    }
    return false;
}

/* Returns the start of the oldest check in progress. */
static uint64_t oldest_look_ns(void)
{
    uint64_t oldest_ns = world_clock.now_ns;

    for (unsigned i = 0; i < CLIENTS * PROGRAMS; i++) {
        const struct program *p = &run->programs[i];

        if (p->req.under_way && p->started_ns < oldest_ns &&
            (p->on_answer == on_xattr_looked || p->on_answer == on_xattr_changed))
            oldest_ns = p->started_ns;
    }
    return oldest_ns;
}

/* Drops changes that no observer can see, unless a power loss may bring them back. */
static void xattr_collapse(struct xattr *x)
{
    uint64_t since_ns = oldest_look_ns();
    unsigned left = 0;

    if (!metas_are_quorum() &&
        (run->config.faults & (FAULT_POWER_EXPORTD | FAULT_POWER_ALL)) != 0)
        return;
    if (metas_are_quorum() && metas_stable_ns() < since_ns)
        since_ns = metas_stable_ns();
    for (unsigned i = 0; i < x->n; i++) {
        if (!is_over(x, &x->changes[i], since_ns))
            x->changes[left++] = x->changes[i];
    }
    x->n = left;
}

/* Makes changes unsure that were answered since then, and drops those that were also
 * sent since then: if it is known when, all since then are lost. */
static void xattr_lost(struct xattr *x, uint64_t since_ns)
{
    unsigned left = 0;

    for (unsigned i = 0; i < x->n; i++) {
        struct change c = x->changes[i];

        if (since_ns != 0 && c.answered_ns != 0 && c.begun_ns >= since_ns)
            continue;
        if (c.answered_ns >= since_ns)
            c.answered_ns = 0;
        x->changes[left++] = c;
    }
    x->n = left;
}

void xattrs_lost(uint64_t since_ns)
{
    for (unsigned i = 0; i < FILES_MAX_SIM; i++) {
        for (unsigned j = 0; j < XATTRS; j++)
            xattr_lost(&files[i].xattrs[j], since_ns);
    }
}

static void seen(const struct program *p, unsigned which, uint32_t id, bool any)
{
    run->result.n_xattrs++;
    if (!may_be(xattr_of(p->file, which), id, any, p->started_ns))
        wrong("%s: %s of file %d (inode %llu) is %s%u, which is not allowed",
              p->client->host->proc->name, names[which], p->file,
              (unsigned long long)model.files[p->file].ino,
              any ? "there, not " : "value ", id);
}

/* ---- operations of programs ---- */

/* Returns a length; some values are too long to be cached. */
static unsigned value_len(uint32_t id)
{
    return 16 + id % 7 * (id % 5 == 0 ? 200 : 10);
}

/* Returns the id in the value, after a check of all its bytes. */
static uint32_t value_id(const struct program *p)
{
    unsigned id = 0;
    char head[17] = { 0 };

    if (p->req.data_len < 16)
        wrong("an attribute has only %zu bytes", p->req.data_len);
    memcpy(head, p->data, 16);
    if (sscanf(head, "%u", &id) != 1 || id == 0 || p->req.data_len != value_len(id))
        wrong("an attribute that was never set: %s", head);
    for (size_t i = 16; i < p->req.data_len; i++) {
        if (p->data[i] != (uint8_t)(id + i))
            wrong("an attribute differs from what was set, at byte %zu", i);
    }
    return id;
}

/* Checks that a list has every existing name once, and no other. */
static void list_seen(const struct program *p)
{
    unsigned n[XATTRS] = { 0 };

    for (size_t at = 0; at < p->req.data_len;
         at += strlen((const char *)p->data + at) + 1) {
        unsigned which = 0;

        while (which < XATTRS && strcmp(names[which], (const char *)p->data + at) != 0)
            which++;
        if (which == XATTRS || n[which]++ != 0)
            wrong("a list of attributes has %s", (const char *)p->data + at);
    }
    for (unsigned i = 0; i < XATTRS; i++)
        seen(p, i, 0, n[i] != 0);
}

static void xattr_seen(const struct program *p)
{
    if (p->xattr.which == XATTRS)
        list_seen(p);
    else
        seen(p, p->xattr.which, p->req.rc == 0 ? value_id(p) : 0, false);
}

static void on_xattr_looked(struct program *p)
{
    if (p->req.rc != 0 && p->req.rc != -ENODATA)
        program_fails(p, p->req.rc, "getxattr");
    else if (p->exportd_cuts == run->exportd_cuts) /* otherwise the time of
                                                    * the value is unknown */
        xattr_seen(p);
    data_again(p);
}

static void on_xattr_changed(struct program *p)
{
    struct xattr *x = xattr_of(p->file, p->xattr.which);
    int rc = p->req.rc;

    if (rc != 0 && rc != -ENODATA)
        program_fails(p, rc, "setxattr");
    for (unsigned i = 0; p->exportd_cuts == run->exportd_cuts && i < x->n; i++) {
        struct change *c = &x->changes[i];

        if (c->id != p->xattr.id || c->begun_ns != p->started_ns)
            continue;
        if (rc == 0)
            c->answered_ns = world_clock.now_ns;
        else if (rc == -ENODATA) /* the attribute did not exist: no change */
            *c = x->changes[--x->n];
    }
    if (rc == -ENODATA && p->exportd_cuts == run->exportd_cuts)
        seen(p, p->xattr.which, 0, false);
    data_again(p);
}

static void xattr_change(struct program *p, struct xattr *x)
{
    const char *name = names[p->xattr.which];
    uint64_t ino = model.files[p->file].ino;
    uint32_t id = world_chance(300000) ? 0 : ++last_id;
    unsigned len = value_len(id);

    p->xattr.id = id;
    x->changes[x->n++] = (struct change){ id, world_clock.now_ns, 0 };
    say("%s: file %d %s becomes %u", p->client->host->proc->name, p->file, name, id);
    if (id == 0) {
        client_removexattr(p->client, program_asks(p, on_xattr_changed), ino, name);
        return;
    }
    snprintf((char *)p->data, sizeof(p->data), "%-15u", id);
    for (unsigned i = 16; i < len; i++)
        p->data[i] = (uint8_t)(id + i);
    client_setxattr(p->client, program_asks(p, on_xattr_changed), ino, name, p->data,
                    len);
}

static void xattr_look(struct program *p, void (*on_answer)(struct program *p))
{
    uint64_t ino = model.files[p->file].ino;

    if (p->xattr.which == XATTRS)
        client_listxattr(p->client, program_asks(p, on_answer), ino, VALUE_BYTES_MAX);
    else
        client_getxattr(p->client, program_asks(p, on_answer), ino, names[p->xattr.which],
                        VALUE_BYTES_MAX);
}

bool xattrs_do(struct program *p)
{
    struct xattr *x;

    if (!world_chance(400000))
        return false;
    p->xattr.which = (unsigned)world_below(XATTRS);
    x = xattr_of(p->file, p->xattr.which);
    xattr_collapse(x);
    if (world_chance(350000) && x->n < CHANGES_MAX) {
        xattr_change(p, x);
        return true;
    }
    if (world_chance(250000))
        p->xattr.which = XATTRS; /* list of all names */
    xattr_look(p, on_xattr_looked);
    return true;
}

static void on_xattr_checked(struct program *p)
{
    (void)p;
}

void xattrs_check(struct program *p, int file, void (*wait)(struct program *p))
{
    p->file = file;
    for (p->xattr.which = 0; p->xattr.which <= XATTRS; p->xattr.which++) {
        xattr_look(p, on_xattr_checked);
        wait(p);
        if (p->req.rc != 0 && p->req.rc != -ENODATA)
            wrong("attributes of file %d cannot be read at the end: %s", file,
                  strerror(-p->req.rc));
        xattr_seen(p);
    }
    p->file = NOBODY;
}
