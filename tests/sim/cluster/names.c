/*
 * names.c - how programs change names.
 *
 * In:     the seed, answers of mounts. Out: requests to them; what they were told, to the model.
 */
#include <errno.h>
#include <string.h>

#include "tests/sim/cluster/state.h"

/* ---- changes of names ---- */

enum { NAMES_UNLINK, NAMES_RENAME, NAMES_LINK, NAMES_KINDS };

/* What the names were is what they may be again, when nobody told. */
static void names_unsure(struct program *p, int value, int value2)
{
    bool cut = p->exportd_cuts != run->exportd_cuts;

    model_name_maybe(p->name, value);
    if (p->name2 != NOBODY)
        model_name_maybe(p->name2, value2);
    if (cut)
        model.names[p->name].n_possible = model.names[p->name].n_values;
    if (cut && p->name2 != NOBODY)
        model.names[p->name2].n_possible = model.names[p->name2].n_values;
}

/* The values before; the answer must follow from them. */
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
        if (want == 0 && from != to) { /* two names of one inode both stay */
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
        wrong("a change of names (%d) of %s succeeds where it should not", p->kind,
              model.names[p->name].text);
    } else if (rc == 0) {
        model_name_set(p->name, value);
        if (p->name2 != NOBODY)
            model_name_set(p->name2, value2);
    }
    program_end_episode(p);
}

/* The first name is known. */
static void names_do(struct program *p)
{
    int file = model_name_get(p->name);

    if (p->name2 != NOBODY)
        p->off = (uint64_t)(model_name_get(p->name2) + 1);
    /* the kernel looks before it asks */
    if (file == NOBODY || (p->kind == NAMES_LINK && p->off != 0)) {
        program_end_episode(p);
        return;
    }
    p->file = NOBODY;
    switch (p->kind) {
    case NAMES_UNLINK:
        client_unlink(p->client, program_asks(p, on_names_changed), 1,
                      model.names[p->name].text);
        break;
    case NAMES_RENAME:
        client_rename(p->client, program_asks(p, on_names_changed), 1,
                      model.names[p->name].text, 1, model.names[p->name2].text);
        break;
    case NAMES_LINK:
        client_link(p->client, program_asks(p, on_names_changed), model.files[file].ino,
                    1, model.names[p->name2].text);
        break;
    }
    p->file = file; /* only remembered: not in use, see on_names_changed() */
}

void names_step(struct program *p)
{
    if (p->name2 != NOBODY && model_name_is_unsure(p->name2)) {
        int name = p->name; /* look at the other one, too */

        p->name = p->name2;
        p->name2 = name;
        name_look(p);
        return;
    }
    names_do(p);
}

void names_begin(struct program *p)
{
    p->kind = (int)world_below(NAMES_KINDS);
    p->name = name_lock();
    p->name2 = p->kind == NAMES_UNLINK ? NOBODY : name_lock();
    if (p->name == NOBODY || (p->kind != NAMES_UNLINK && p->name2 == NOBODY)) {
        program_end_episode(p);
        return;
    }
    name_look(p);
}

void names_die(struct program *p)
{
    int from = p->file, to = p->name2 == NOBODY ? NOBODY : (int)p->off - 1;

    if (!p->req.under_way || p->episode == EPISODE_NONE ||
        p->on_answer != on_names_changed)
        return;
    p->file = NOBODY;
    if (p->kind == NAMES_UNLINK)
        names_unsure(p, NOBODY, NOBODY);
    else if (p->kind == NAMES_RENAME)
        names_unsure(p, from == to ? from : NOBODY, from);
    else
        names_unsure(p, from, to == NOBODY ? from : to);
}
