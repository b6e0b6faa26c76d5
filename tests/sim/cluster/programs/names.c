/*
 * names.c - changes of names by programs.
 *
 * In:     the seed, answers of mounts. Out: requests to mounts; their answers, to the
 *         model.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/sim/cluster/state.h"

/* ---- changes of names ---- */

enum {
    NAMES_UNLINK,
    NAMES_RENAME,
    NAMES_LINK,
    NAMES_LIST,
    NAMES_MKDIR, /* this and the next kinds change directories */
    NAMES_RMDIR,
    NAMES_DIR_RENAME,
    NAMES_KINDS
};

/* Makes the names unsure after a call without a clear answer: old or new values. */
static void names_unsure(struct program *p, int value, int value2)
{
    model_name_maybe(p->name, value);
    program_name_is_cut(p, p->name);
    if (p->name2 == NOBODY)
        return;
    model_name_maybe(p->name2, value2);
    program_name_is_cut(p, p->name2);
}

/* Checks the answer against the values before the change. */
static void on_names_changed(struct program *p)
{
    int from = p->file, to = p->name2 == NOBODY ? NOBODY : (int)p->off - 1;
    int rc = p->req.rc, want = 0, value = from, value2 = to;

    p->file = NOBODY;
    switch (p->kind) {
    case NAMES_UNLINK:
        want = from == NOBODY ? -ENOENT : 0;
        value = NOBODY;
        break;
    case NAMES_RENAME:
        want = from == NOBODY ? -ENOENT : 0;
        if (want == 0 && from != to) { /* rename of two names of one inode does nothing */
            value = NOBODY;
            value2 = from;
        }
        break;
    case NAMES_LINK:
        want = to != NOBODY ? -EEXIST : 0;
        value2 = want == 0 ? from : to;
        break;
    }
    say("%s: %s %s %s: %s", p->client->host->proc->name,
        p->kind == NAMES_UNLINK   ? "unlink"
        : p->kind == NAMES_RENAME ? "rename"
                                  : "link",
        model.names[p->name].text, p->name2 == NOBODY ? "" : model.names[p->name2].text,
        strerror(-rc));
    if (p->exportd_cuts != run->exportd_cuts || (rc != want && rc != 0)) {
        if (p->exportd_cuts == run->exportd_cuts)
            program_fails(p, rc, "a change of names");
        names_unsure(p, value, value2);
    } else if (rc != want) {
        wrong("a change of names (%d) of %s succeeds but must fail", p->kind,
              model.names[p->name].text);
    } else if (rc == 0) {
        model_name_set(p->name, value, p->started_ns, NULL);
        if (p->name2 != NOBODY)
            model_name_set(p->name2, value2, p->started_ns,
                           p->kind == NAMES_LINK || p->kind == NAMES_RENAME ? &p->view
                                                                            : NULL);
    }
    program_end_episode(p);
}

/* Starts the change; the first name is known. */
static void names_do(struct program *p)
{
    const struct model_name *name = &model.names[p->name];
    const struct model_name *name2 = p->name2 == NOBODY ? NULL : &model.names[p->name2];
    int file = model_name_get(p->name);

    if (p->name2 != NOBODY)
        p->off = (uint64_t)(model_name_get(p->name2) + 1);
    /* the kernel looks the names up first */
    if (file == NOBODY || (p->kind == NAMES_LINK && p->off != 0)) {
        program_end_episode(p);
        return;
    }
    p->file = NOBODY;
    switch (p->kind) {
    case NAMES_UNLINK:
        client_unlink(p->client, program_asks(p, on_names_changed), name->parent,
                      name->text);
        break;
    case NAMES_RENAME:
        client_rename(p->client, program_asks(p, on_names_changed), name->parent,
                      name->text, name2->parent, name2->text);
        break;
    case NAMES_LINK:
        client_link(p->client, program_asks(p, on_names_changed), model.files[file].ino,
                    name2->parent, name2->text);
        break;
    }
    p->file = file; /* kept for on_names_changed(), not in use */
}

/* ---- directories ---- */

/* Loops over the names in a directory. */
#define CHILDREN(name, d)                                                        \
    for (int name = FIRST_CHILD + ((d)-FIRST_DIR) * CHILDREN_EACH, i_##name = 0; \
         i_##name < CHILDREN_EACH; i_##name++, name++)

static int dir_lock(void)
{
    int d = FIRST_DIR + (int)world_below(DIRS);
    struct model_name *n = &model.names[d];

    if (n->locked || n->n_inside != 0 || (model_name_is_unsure(d) && strays()))
        return NOBODY;
    n->locked = true;
    n->parent = 1;
    return d;
}

void dir_is_gone(int d)
{
    CHILDREN(name, d)
    {
        const char *words = model_name_seen(name, 0);

        if (words != NULL)
            wrong("%s is gone, but %s", model.names[d].text, words);
    }
}

/* Returns 1 if a name surely exists in it, 0 if none does, -1 if unknown. */
static int dir_is_full(int d)
{
    int full = 0;

    CHILDREN(name, d)
    {
        if (model_name_is_unsure(name))
            full = full == 1 ? 1 : -1;
        else if (model_name_get(name) != NOBODY)
            full = 1;
    }
    return full;
}

static bool dir_is_known(int d)
{
    bool known = true;

    CHILDREN(name, d)
    known = known && !model_name_is_unsure(name);
    return known;
}

static void value_maybe(const struct program *p, int name, int value)
{
    model_name_maybe(name, value);
    program_name_is_cut(p, name);
}

/* Records a change of a directory with unknown outcome. */
static void dir_unsure(struct program *p)
{
    int to = FIRST_CHILD + (p->name2 - FIRST_DIR) * CHILDREN_EACH;

    value_maybe(p, p->name, p->kind == NAMES_MKDIR ? p->made : NOBODY);
    if (p->kind != NAMES_DIR_RENAME)
        return;
    value_maybe(p, p->name2, p->made);
    CHILDREN(name, p->name)
    {
        int value = p->kids[name - FIRST_CHILD - (p->name - FIRST_DIR) * CHILDREN_EACH];

        if (value != NOBODY) {
            value_maybe(p, name, NOBODY);
            value_maybe(p, to, value);
        }
        to++;
    }
}

/* Records a successful change of a directory. */
static void dir_changed(struct program *p)
{
    int to = FIRST_CHILD + (p->name2 - FIRST_DIR) * CHILDREN_EACH;

    model_name_set(p->name, p->kind == NAMES_MKDIR ? p->made : NOBODY, p->started_ns,
                   NULL);
    if (p->kind == NAMES_RMDIR)
        dir_is_gone(p->name);
    if (p->kind != NAMES_DIR_RENAME)
        return;
    model_name_set(p->name2, p->made, p->started_ns, NULL);
    CHILDREN(name, p->name)
    {
        int value = model_name_get(name);

        if (value != NOBODY) {
            model_name_set(name, NOBODY, p->started_ns, NULL);
            model_name_set(to, value, p->started_ns, NULL);
        }
        to++;
    }
}

static void on_dir_changed(struct program *p)
{
    static const char *const words[] = { [NAMES_MKDIR] = "mkdir",
                                         [NAMES_RMDIR] = "rmdir",
                                         [NAMES_DIR_RENAME] = "rename of a directory" };
    int rc = p->req.rc == -EEXIST && p->kind != NAMES_MKDIR ? -ENOTEMPTY : p->req.rc;
    int over = p->kind == NAMES_RMDIR ? p->name : p->name2, full = 0;

    say("%s: %s %s %s: %s", p->client->host->proc->name, words[p->kind],
        model.names[p->name].text, p->name2 == NOBODY ? "" : model.names[p->name2].text,
        strerror(-rc));
    if (p->kind == NAMES_MKDIR && rc == 0)
        model.files[p->made].ino = p->req.entry.ino;
    if (p->exportd_cuts != run->exportd_cuts) {
        dir_unsure(p);
        program_end_episode(p);
        return;
    }
    if (p->kind != NAMES_MKDIR)
        full = dir_is_full(over);
    if (rc == 0 && full == 1)
        wrong("%s %s: but it is not empty", words[p->kind], model.names[over].text);
    if (rc == -ENOTEMPTY && full == 0)
        wrong("%s %s: but it is empty", words[p->kind], model.names[over].text);
    if (rc == 0)
        dir_changed(p);
    else if (rc != -ENOTEMPTY) {
        program_fails(p, rc, words[p->kind]);
        dir_unsure(p);
    }
    program_end_episode(p);
}

/* Starts the change; all its names are known. */
static void dir_do(struct program *p)
{
    int dir = model_name_get(p->name);

    if ((dir == NOBODY) != (p->kind == NAMES_MKDIR)) {
        program_end_episode(p);
        return;
    }
    p->made = dir;
    switch (p->kind) {
    case NAMES_MKDIR:
        p->made = file_new();
        if (p->made == NOBODY) {
            program_end_episode(p);
            return;
        }
        client_mkdir(p->client, program_asks(p, on_dir_changed), 1,
                     model.names[p->name].text);
        break;
    case NAMES_RMDIR:
        client_rmdir(p->client, program_asks(p, on_dir_changed), 1,
                     model.names[p->name].text);
        break;
    case NAMES_DIR_RENAME:
        if (!dir_is_known(p->name) || !dir_is_known(p->name2)) {
            program_end_episode(p);
            return;
        }
        CHILDREN(name, p->name)
        p->kids[(name - FIRST_CHILD) % CHILDREN_EACH] = model_name_get(name);
        client_rename(p->client, program_asks(p, on_dir_changed), 1,
                      model.names[p->name].text, 1, model.names[p->name2].text);
        break;
    }
}

/* ---- what is in a directory ---- */

/* Returns the name in the model, or NOBODY. */
static int name_find(int d, const char *text)
{
    for (unsigned i = 0; i < model.n_names; i++) {
        if (model.names[i].dir == d && strcmp(model.names[i].text, text) == 0)
            return (int)i;
    }
    return NOBODY;
}

/* Tells whether the name was not in use since the listing began. */
static bool name_was_quiet(const struct program *p, int name)
{
    const struct model_name *n = &model.names[name];

    return !n->locked && n->unlocked_ns < p->listing.begun_ns &&
           !model_name_is_unsure(name) && p->listing.exportd_cuts == run->exportd_cuts;
}

static void list_check(struct program *p)
{
    for (unsigned i = 0; i < model.n_names; i++) {
        struct model_name *n = &model.names[i];
        int file;

        if (n->dir != p->listing.dir || !name_was_quiet(p, (int)i))
            continue;
        file = model_name_get((int)i);
        model.n_names_checked++;
        if (p->listing.n_seen[i] != (file != NOBODY))
            wrong("%s is %u times in its directory, but must be %d times", n->text,
                  p->listing.n_seen[i], file != NOBODY);
        if (file != NOBODY && p->listing.ino[i] != model.files[file].ino)
            wrong("%s is inode %llu in its directory, but must be %llu", n->text,
                  (unsigned long long)p->listing.ino[i],
                  (unsigned long long)model.files[file].ino);
    }
}

static void on_dir_released(struct program *p)
{
    program_end_episode(p);
}

static void on_page(struct program *p)
{
    const struct sim_dirent *d = (const struct sim_dirent *)(const void *)p->data;
    uint64_t next = 0;

    if (p->req.rc != 0)
        program_fails(p, p->req.rc, "readdir");
    for (size_t i = 0; p->req.rc == 0 && i < p->req.data_len / sizeof(*d); i++) {
        int name = name_find(p->listing.dir, d[i].name);

        next = d[i].next;
        if (strcmp(d[i].name, ".") == 0 || strcmp(d[i].name, "..") == 0)
            continue;
        if (name == NOBODY)
            wrong("a name was never made: %s", d[i].name);
        p->listing.n_seen[name]++;
        p->listing.ino[name] = d[i].ino;
    }
    if (next != 0) {
        client_readdir(p->client, program_asks(p, on_page), p->listing.ino_of_dir, p->fh,
                       next);
        return;
    }
    if (p->req.rc == 0)
        list_check(p);
    client_releasedir(p->client, program_asks(p, on_dir_released), p->listing.ino_of_dir,
                      p->fh);
}

static void on_dir_opened(struct program *p)
{
    if (p->req.rc != 0) {
        program_fails(p, p->req.rc, "opendir");
        program_end_episode(p);
        return;
    }
    p->fh = p->req.fh;
    client_readdir(p->client, program_asks(p, on_page), p->listing.ino_of_dir, p->fh, 0);
}

/* Lists the root, or a directory that is locked against renames meanwhile. */
void names_list(struct program *p, int d)
{
    memset(&p->listing, 0, sizeof(p->listing));
    p->listing.dir = d;
    p->listing.ino_of_dir = 1;
    p->listing.begun_ns = world_clock.now_ns;
    p->listing.exportd_cuts = program_cuts(p);
    if (d != NOBODY) {
        if (model.names[d].locked || model_name_is_unsure(d) ||
            model_name_get(d) == NOBODY) {
            program_end_episode(p);
            return;
        }
        p->listing.inside = true;
        model.names[d].n_inside++;
        p->listing.ino_of_dir = model.files[model_name_get(d)].ino;
    }
    client_opendir(p->client, program_asks(p, on_dir_opened), p->listing.ino_of_dir);
}

/* ---- lookups of names that others may change ---- */

static void on_peeked_size(struct program *p)
{
    if (p->req.rc != 0)
        program_fails(p, p->req.rc, "getattr");
    else
        expect(model_check_size(p->file, &p->view, (uint64_t)p->req.st.st_size), p);
    program_end_episode(p);
}

static void on_peeked(struct program *p)
{
    int rc = p->req.rc, file, name = p->kind;

    if (rc != 0 && rc != -ENOENT) {
        program_fails(p, rc, "lookup");
        program_end_episode(p);
        return;
    }
    if (!name_was_quiet(p, name)) {
        program_end_episode(p);
        return;
    }
    run->result.n_peeked++;
    expect(model_name_seen(name, rc == 0 ? p->req.entry.ino : 0), p);
    file = model_name_get(name);
    if (file == NOBODY || (name >= FIRST_DIR && name < FIRST_CHILD)) {
        program_end_episode(p);
        return;
    }
    program_use_file(p, file);
    p->view.opened_ns = world_clock.now_ns;
    client_getattr(p->client, program_asks(p, on_peeked_size), model.files[file].ino);
}

void names_peek(struct program *p)
{
    int name = (int)world_below(SHARED_NAMES + DIRS + SHARED_NAMES), d = NOBODY;

    if (name >= SHARED_NAMES)
        name += FIRST_DIR - SHARED_NAMES;
    memset(&p->listing, 0, sizeof(p->listing));
    p->listing.begun_ns = world_clock.now_ns;
    p->listing.exportd_cuts = program_cuts(p);
    p->listing.ino_of_dir = 1;
    if (name >= FIRST_CHILD)
        d = p->listing.dir = model.names[name].dir;
    if (model.names[name].locked ||
        (d != NOBODY && (model.names[d].locked || model_name_is_unsure(d) ||
                         model_name_get(d) == NOBODY))) {
        program_end_episode(p);
        return;
    }
    if (d != NOBODY) {
        p->listing.inside = true;
        model.names[d].n_inside++;
        p->listing.ino_of_dir = model.files[model_name_get(d)].ino;
    }
    p->kind = name;
    client_lookup(p->client, program_asks(p, on_peeked), p->listing.ino_of_dir,
                  model.names[name].text);
}

/* ---- all of them ---- */

void names_step(struct program *p)
{
    if (p->name2 != NOBODY && model_name_is_unsure(p->name2)) {
        int name = p->name; /* look up the other one, too */

        p->name = p->name2;
        p->name2 = name;
        name_look(p);
        return;
    }
    if (p->kind >= NAMES_MKDIR)
        dir_do(p);
    else
        names_do(p);
}

void names_begin(struct program *p)
{
    bool two, dirs;

    p->kind = (int)world_below(NAMES_KINDS);
    if (p->kind == NAMES_LIST) {
        names_list(p, world_chance(300000) ? NOBODY : FIRST_DIR + (int)world_below(DIRS));
        return;
    }
    two = p->kind == NAMES_RENAME || p->kind == NAMES_LINK || p->kind == NAMES_DIR_RENAME;
    dirs = p->kind >= NAMES_MKDIR;
    p->name = dirs ? dir_lock() : name_lock();
    p->name2 = !two ? NOBODY : dirs ? dir_lock() : name_lock();
    if (p->name == NOBODY || (two && p->name2 == NOBODY)) {
        program_end_episode(p);
        return;
    }
    name_look(p);
}

void names_die(struct program *p)
{
    int from = p->file, to = p->name2 == NOBODY ? NOBODY : (int)p->off - 1;

    if (!p->req.under_way || p->episode == EPISODE_NONE)
        return;
    if (p->on_answer == on_dir_changed)
        dir_unsure(p);
    if (p->on_answer != on_names_changed)
        return;
    p->file = NOBODY;
    if (p->kind == NAMES_UNLINK)
        names_unsure(p, NOBODY, NOBODY);
    else if (p->kind == NAMES_RENAME)
        names_unsure(p, from == to ? from : NOBODY, from);
    else
        names_unsure(p, from, to == NOBODY ? from : to);
}

void names_make(void)
{
    model.n_names = NAMES;
    for (int i = 0; i < NAMES; i++) {
        struct model_name *n = &model.names[i];

        n->dir = NOBODY;
        if (i < FIRST_DIR)
            snprintf(n->text, sizeof(n->text), "f%d", i);
        else if (i < FIRST_CHILD)
            snprintf(n->text, sizeof(n->text), "d%d", i - FIRST_DIR);
        else
            snprintf(n->text, sizeof(n->text), "c%d", (i - FIRST_CHILD) % CHILDREN_EACH);
        if (i >= FIRST_CHILD)
            n->dir = FIRST_DIR + (i - FIRST_CHILD) / CHILDREN_EACH;
    }
}
