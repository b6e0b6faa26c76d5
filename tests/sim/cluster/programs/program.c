/*
 * program.c - programs: one episode after the other, on mounts that come and go.
 *
 * In:     the seed, answers of mounts. Out: requests to mounts; their answers, to the
 *         model.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "tests/sim/cluster/state.h"

/* CLOSED: exportd surely knows of a close. GONE: it knows
 * that a client is gone, or all clients have returned. */
#define CLOSED_NS UINT64_C(2000000000)
#define GONE_NS   UINT64_C(8000000000)
/* Time in which a kernel executes an invalidation. */
#define KERNEL_DROPS_NS UINT64_C(100000000)

/* ---- programs ---- */

static void on_program_timer(struct env_timer *timer)
{
    struct program *p = container_of(timer, struct program, timer);

    if (client_is_up(p->client) && p->client->host->proc->life == p->life)
        p->on_timer(p);
}

/* Returns a random pause: mostly short, sometimes long. */
uint64_t think_us(void)
{
    uint64_t what = world_below(100);

    return world_below(what < 50 ? 4000 : what < 92 ? 250000 : 2500000);
}

void program_later(struct program *p, uint64_t max_us, void (*fn)(struct program *p))
{
    p->on_timer = fn;
    world_timer_start_us(&p->timer, world_below(max_us + 1));
}

static void on_req_done(struct fuse_req *req)
{
    struct program *p = container_of(req, struct program, req);

    if (!client_is_up(p->client) || p->client->host->proc->life != p->life)
        return; /* the program died before it used the answer */
    p->on_answer(p);
}

/* Returns exportd's power losses that an answer now can reflect: a mount uses its old
 * state until it learns of the loss, and its kernel until invalidations are done (waiting
 * calls delay them). Older answers decide nothing in the model. */
unsigned program_cuts(const struct program *p)
{
    const struct sim_client *c = p->client;
    bool has_not_heard = metas_are_quorum() ? !loss_law_is_known(&metas.losses, c->losses)
                                            : c->opened_ns < run->exportd_cut_ns;
    bool drops =
        c->kernel != NULL &&
        (world_clock.now_ns < c->opened_ns + KERNEL_DROPS_NS || client_is_dropping(c));

    return run->exportd_cuts - (run->exportd_cuts > 0 && (has_not_heard || drops));
}

/* Prepares a request; on_answer gets the answer. */
struct fuse_req *program_asks(struct program *p, void (*on_answer)(struct program *p))
{
    run->result.n_ops++;
    p->on_answer = on_answer;
    p->started_ns = p->view.started_ns = world_clock.now_ns;
    p->view.started_no = model_moment();
    p->exportd_cuts = program_cuts(p);
    p->req.done = on_req_done;
    p->req.data = p->data;
    return &p->req;
}

/* In a quorum the model knows what is lost. */
void program_name_is_cut(const struct program *p, int name)
{
    if (p->exportd_cuts != run->exportd_cuts && !metas_are_quorum())
        model.names[name].n_possible = model.names[name].n_values;
}

/* Checks that an error answer is allowed in this run. */
void program_fails(struct program *p, int rc, const char *what)
{
    unsigned f = run->config.faults;

    run->result.n_errors++;
    say("%s: %s fails: %s", p->client->host->proc->name, what, strerror(-rc));
    if (rc == -EIO && (f & ~(unsigned)FAULT_FULL) != 0)
        return;
    if (rc == -ENOSPC && (f & FAULT_FULL) != 0)
        return;
    if (rc == -ENOENT && p->begun_cuts != run->exportd_cuts)
        return; /* the directory was lost */
    if (rc == -EEXIST && p->begun_cuts != run->exportd_cuts)
        return;        /* the removal of the name was lost */
    if (rc == -ESTALE) /* removed, or its creation was lost with exportd's power */
        return;
    wrong("%s: %s fails: %s", p->client->host->proc->name, what, strerror(-rc));
}

static void name_unlock(int name)
{
    struct model_name *n = &model.names[name];

    n->locked = false;
    n->unlocked_ns = world_clock.now_ns;
    if (n->dir != NOBODY)
        model.names[n->dir].n_inside--;
}

static void names_unlock(struct program *p)
{
    if (p->name != NOBODY)
        name_unlock(p->name);
    if (p->name2 != NOBODY)
        name_unlock(p->name2);
    if (p->listing.inside)
        model.names[p->listing.dir].n_inside--;
    p->listing.inside = false;
    p->name = p->name2 = NOBODY;
}

void program_end_episode(struct program *p)
{
    names_unlock(p);
    lock_drop(p);
    p->lock.unsure = false;
    if (p->file != NOBODY) {
        struct model_file *f = &model.files[p->file];

        f->n_users--;
        f->n_reads--;
        f->left_ns = world_clock.now_ns;
        if (p->writer)
            f->writer = NOBODY;
        model_collapse(p->file);
    }
    p->file = NOBODY;
    p->writer = p->opened = false;
    p->episode = EPISODE_NONE;
    program_later(p, think_us(), program_begin);
}

static void on_created(struct program *p);

/* Marks files in creation, which have no name yet. */
static void files_being_made(bool *meant)
{
    for (unsigned i = 0; i < CLIENTS * PROGRAMS; i++) {
        const struct program *p = &run->programs[i];

        if (p->episode == EPISODE_WRITER && p->on_answer == on_created)
            meant[p->kind] = true;
        else if (p->episode == EPISODE_NAMES && p->made != NOBODY)
            meant[p->made] = true;
    }
}

/* Frees the model's files that no name can mean any more. */
static void files_sweep(void)
{
    bool meant[FILES_MAX_SIM] = { false };

    files_being_made(meant);
    for (unsigned i = 0; i < model.n_names; i++) {
        for (unsigned j = 0; j < model.names[i].n_values; j++) {
            if (model.names[i].values[j].file != NOBODY)
                meant[model.names[i].values[j].file] = true;
        }
    }
    for (int i = 0; i < FILES_MAX_SIM; i++) {
        if (model.files[i].used && !meant[i] && model.files[i].n_users == 0)
            model_file_free(i);
    }
}

int file_new(void)
{
    int file = model_file_new();

    if (file != NOBODY)
        return file;
    files_sweep();
    return model_file_new();
}

uint64_t program_owner(const struct program *p)
{
    return (uint64_t)(p - run->programs) + 1;
}

bool strays(void)
{
    return metas_n_strays() != 0;
}

/* ---- finding and opening a file ---- */

void program_use_file(struct program *p, int file)
{
    struct model_file *f = &model.files[file];

    p->file = file;
    f->n_users++;
    f->n_reads++; /* the file as it may be from its open on */
    if (p->episode == EPISODE_WRITER && (f->writer == NOBODY || run->config.shared) &&
        !strays()) {
        p->writer = true;
        f->writer = p->view.client;
    }
    p->in_part = run->config.shared && p->name == PARTS_NAME;
    p->n_left = 1 + (unsigned)world_below(p->writer && p->in_part ? 40
                                          : p->writer             ? 14
                                                                  : 4);
}

static void on_size_at_open(struct program *p)
{
    if (p->req.rc != 0)
        program_fails(p, p->req.rc, "getattr");
    else
        model_opened_by_only_writer(p->file, (uint64_t)p->req.st.st_size);
    data_again(p);
}

static void on_opened(struct program *p)
{
    if (p->req.rc != 0) {
        program_fails(p, p->req.rc, "open");
        program_end_episode(p);
        return;
    }
    p->opened = true;
    p->fh = p->req.fh;
    names_unlock(p);
    if (p->only_one)
        client_getattr(p->client, program_asks(p, on_size_at_open),
                       model.files[p->file].ino);
    else
        data_again(p);
}

static void on_created(struct program *p)
{
    int rc = p->req.rc, file = p->kind; /* the reserved place */

    if (rc == 0 && model_file_by_ino(p->req.entry.ino) != NOBODY &&
        !run->config.torn_is_fine)
        wrong("inode number %llu was given out twice",
              (unsigned long long)p->req.entry.ino);
    if (rc == 0 && p->exportd_cuts == run->exportd_cuts) {
        model.files[file].ino = p->req.entry.ino;
        model_name_set(p->name, file, p->started_ns, &p->view);
        say("%s: created %s as file %d, inode %llu", p->client->host->proc->name,
            model.names[p->name].text, file, (unsigned long long)p->req.entry.ino);
        p->view.opened_ns = world_clock.now_ns;
        program_use_file(p, file);
        p->opened = true;
        p->fh = p->req.fh;
        names_unlock(p);
        data_again(p);
        return;
    }
    if (rc == 0) { /* answered before exportd lost its power: may be lost as well */
        model.files[file].ino = p->req.entry.ino;
        model_name_maybe(p->name, file);
        program_name_is_cut(p, p->name);
        client_release(p->client, program_asks(p, on_released), p->req.entry.ino,
                       p->req.fh);
        return;
    }
    program_fails(p, rc, "create");
    model_name_maybe(p->name, file);
    program_name_is_cut(p, p->name);
    program_end_episode(p);
}

static void name_create(struct program *p)
{
    p->kind = file_new();
    if (p->kind == NOBODY) {
        program_end_episode(p);
        return;
    }
    p->open_flags = O_RDWR | O_CREAT | O_EXCL | (world_chance(100000) ? O_DSYNC : 0) |
                    (world_chance(100000) ? O_APPEND : 0);
    client_create(p->client, program_asks(p, on_created), model.names[p->name].parent,
                  model.names[p->name].text, p->open_flags);
}

/* O_DIRECT lets writers run in parallel in the kernel. */
static int flag_direct(void)
{
    return run->config.direct && world_chance(950000) ? O_DIRECT : 0;
}

/* Tells whether all other users closed the file or lost
 * their sessions, and exportd has been up for long. */
static bool is_only_one(int file)
{
    const struct model_file *f = &model.files[file];
    uint64_t now_ns = world_clock.now_ns;

    return !run->config.shared &&
           (run->config.faults & (FAULT_CUT | FAULT_HANG | FAULT_WEATHER)) == 0 &&
           f->n_users == 0 && now_ns - f->left_ns > CLOSED_NS &&
           (f->deserted_ns == 0 || now_ns - f->deserted_ns > GONE_NS) &&
           now_ns - run->exportd_started_ns > GONE_NS;
}

static void name_open(struct program *p, int file)
{
    p->open_flags = p->episode == EPISODE_WRITER ? O_RDWR : O_RDONLY;
    if (p->episode == EPISODE_WRITER && world_chance(100000))
        p->open_flags |= O_DSYNC;
    if (p->episode == EPISODE_WRITER && world_chance(100000))
        p->open_flags |= O_APPEND;
    p->open_flags |= flag_direct();
    p->only_one = p->episode == EPISODE_WRITER && is_only_one(file);
    program_use_file(p, file);
    p->view.opened_ns = world_clock.now_ns;
    client_open(p->client, program_asks(p, on_opened), model.files[file].ino,
                p->open_flags & ~(O_CREAT | O_EXCL));
}

static void on_name_seen(struct program *p)
{
    int rc = p->req.rc, file;

    if (rc != 0 && rc != -ENOENT) {
        program_fails(p, rc, "lookup");
        program_end_episode(p);
        return;
    }
    if (p->exportd_cuts != run->exportd_cuts) { /* the time of this answer is unknown */
        program_end_episode(p);
        return;
    }
    expect(model_name_seen(p->name, rc == 0 ? p->req.entry.ino : 0), p);
    file = model_name_get(p->name);
    if (file == NOBODY && p->name >= FIRST_DIR && p->name < FIRST_CHILD)
        dir_is_gone(p->name);
    if (p->episode == EPISODE_NAMES)
        names_step(p);
    else if (file != NOBODY)
        name_open(p, file);
    else if (p->episode == EPISODE_WRITER)
        name_create(p);
    else
        program_end_episode(p);
}

void name_look(struct program *p)
{
    client_lookup(p->client, program_asks(p, on_name_seen), model.names[p->name].parent,
                  model.names[p->name].text);
}

/* Chooses a name in the root or in a directory. */
static int name_choose(void)
{
    int name;

    if (run->config.shared)
        return world_chance(700000) ? (int)world_below(SHARED_NAMES)
                                    : FIRST_CHILD + (int)world_below(SHARED_NAMES);
    name = (int)world_below(NAMES - DIRS);
    return name + (name >= FIRST_DIR ? DIRS : 0);
}

int name_lock(void)
{
    int name = name_choose();
    struct model_name *n;

    n = &model.names[name];
    if (n->locked || (model_name_is_unsure(name) && strays()))
        return NOBODY;
    if (n->dir != NOBODY && (model.names[n->dir].locked || model_name_is_unsure(n->dir) ||
                             model_name_get(n->dir) == NOBODY))
        return NOBODY;
    n->parent = 1;
    if (n->dir != NOBODY) {
        n->parent = model.files[model_name_get(n->dir)].ino;
        model.names[n->dir].n_inside++;
    }
    n->locked = true;
    return name;
}

void program_begin(struct program *p)
{
    uint64_t what = world_below(100);

    if (run->ending)
        return;
    p->view = (struct model_view){ .client = (int)p->client->index, .life = p->life };
    p->begun_cuts = program_cuts(p);
    p->episode = what < 50 ? EPISODE_WRITER : what < 80 ? EPISODE_READER : EPISODE_NAMES;
    if (run->config.names && world_chance(400000)) {
        p->episode = EPISODE_NAMES;
        names_list(p, world_chance(300000) ? NOBODY : FIRST_DIR + (int)world_below(DIRS));
        return;
    }
    if ((run->config.shared && world_chance(300000)) ||
        (run->config.names && world_chance(600000))) {
        p->episode = EPISODE_PEEK;
        names_peek(p);
        return;
    }
    if (p->episode == EPISODE_NAMES) {
        names_begin(p);
        return;
    }
    p->name = name_lock();
    if (p->name == NOBODY)
        program_end_episode(p);
    else
        name_look(p);
}

/* ---- clients come and go ---- */

static void program_dies(struct program *p)
{
    timers_stop(&world_clock.world.timers, &p->timer);
    names_die(p);
    if (p->req.under_way && p->on_answer == on_created) {
        model_name_maybe(p->name, p->kind);
    }
    names_unlock(p);
    lock_drop(p);
    p->lock.unsure = false;
    if (p->file != NOBODY) {
        model.files[p->file].n_users--;
        model.files[p->file].n_reads--;
        model.files[p->file].deserted_ns = world_clock.now_ns;
    }
    p->file = NOBODY;
    p->writer = p->opened = p->appends = false;
    p->episode = EPISODE_NONE;
    p->req.under_way = false;
}

void client_dies(struct sim_client *c)
{
    unsigned life = c->host->proc->life;

    say("%s dies", c->host->proc->name);
    client_kill(c);
    for (unsigned i = 0; i < CLIENTS * PROGRAMS; i++) {
        if (run->programs[i].client == c)
            program_dies(&run->programs[i]);
    }
    for (unsigned i = 0; i < FILES_MAX_SIM;
         i++) { /* exportd may not know of the close yet */
        if (world_clock.now_ns - model.files[i].left_ns < CLOSED_NS)
            model.files[i].deserted_ns = world_clock.now_ns;
    }
    model_client_died((int)c->index, life);
    run->result.n_client_deaths++;
}

static void programs_start(struct sim_client *c)
{
    for (unsigned i = 0; i < CLIENTS * PROGRAMS; i++) {
        struct program *p = &run->programs[i];

        if (p->client != c)
            continue;
        p->life = c->host->proc->life;
        p->name = p->name2 = p->file = NOBODY;
        program_later(p, think_us(), program_begin);
    }
}

static void client_watch(struct program *p);

/* Ends the wait for a mount that is starting; one program of each client checks. */
static void on_mount_timer(struct env_timer *timer)
{
    struct program *p = container_of(timer, struct program, timer);

    client_watch(p);
}

static void client_watch(struct program *p)
{
    struct sim_client *c = p->client;

    if (c->mounted) {
        for (unsigned i = 0; i < CLIENTS * PROGRAMS; i++) {
            if (run->programs[i].client == c)
                env_timer_init(&run->programs[i].timer, on_program_timer);
        }
        programs_start(c);
        return;
    }
    if (c->stopped) { /* exportd did not answer in time: mount again */
        client_kill(c);
        client_start(c);
    }
    env_timer_init(&p->timer, on_mount_timer);
    world_timer_start_us(&p->timer, 5000);
}

void client_comes(struct sim_client *c)
{
    say("%s mounts", c->host->proc->name);
    client_start(c);
    for (unsigned i = 0; i < CLIENTS * PROGRAMS; i++) {
        if (run->programs[i].client == c) {
            client_watch(&run->programs[i]);
            return;
        }
    }
}

void programs_make(void)
{
    for (unsigned i = 0; i < CLIENTS + 1; i++) {
        client_init(&run->clients[i], i);
        run->clients[i].has_kernel = run->config.kernel;
        run->clients[i].has_old_kernel = run->config.seed % 2 == 1;
        run->clients[i].has_deaf_kernel = (run->config.mutant & RUN_MUTANT_DEAF) != 0;
    }
    for (unsigned i = 0; i < CLIENTS * PROGRAMS; i++) {
        struct program *p = &run->programs[i];

        p->client = &run->clients[i / PROGRAMS];
        p->name = p->name2 = p->file = NOBODY;
        env_timer_init(&p->timer, on_program_timer);
        env_timer_init(&p->signal, NULL);
    }
    names_make();
}
