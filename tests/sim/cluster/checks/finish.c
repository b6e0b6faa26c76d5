/*
 * finish.c - checks at the end: every name, every byte, every projection.
 *
 * In:     a cluster without faults. Out: an error message if a state is not allowed.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "tests/sim/cluster/checks/healed.h"
#include "tests/sim/cluster/checks/revived.h"
#include "tests/sim/cluster/state.h"
#include "tests/sim/cluster/world/ask.h"

enum {
    SPARES_SCRUBS_MAX = 3,
    HEALED_MS = 300000,
    STRAYS_MS = 60000,
    STRAYS_SWEEP_MS =
        900000, /* the first sweep begins 10 minutes after exportd's start */
};

/* ---- the end ---- */

static bool programs_are_idle(void)
{
    for (unsigned i = 0; i < CLIENTS * PROGRAMS; i++) {
        if (run->programs[i].episode != EPISODE_NONE)
            return false;
    }
    return true;
}

static void wait_for(bool (*is)(void), uint64_t max_ms, const char *what)
{
    uint64_t until_ns = world_clock.now_ns + max_ms * 1000000;

    while (!is()) {
        if (world_clock.now_ns > until_ns)
            wrong("%s took longer than %llu s", what, (unsigned long long)max_ms / 1000);
        world_step();
    }
}

static bool looker_is_done(void)
{
    return !run->programs[0].req.under_way;
}

static bool looker_is_mounted(void)
{
    return client_is_up(&run->clients[CLIENTS]);
}

static bool no_strays(void)
{
    return !strays();
}

static void on_looked(struct program *p)
{
    (void)p;
}

static struct fuse_req *looking(struct program *p)
{
    return program_asks(p, on_looked);
}

static int looked(struct program *p, const char *what)
{
    (void)p;
    wait_for(looker_is_done, 60000, what);
    return run->programs[0].req.rc;
}

static void look_at_xattr(struct program *p)
{
    looked(p, "a look at xattrs at the end");
}

/* Checks every byte of a file through a fresh mount. */
static void check_file(struct program *p, int file)
{
    struct sim_client *c = &run->clients[CLIENTS];
    struct model_file *f = &model.files[file];
    int rc;

    p->view.opened_ns = world_clock.now_ns;
    client_open(c, looking(p), f->ino, O_RDONLY);
    rc = looked(p, "an open at the end");
    if (rc != 0)
        wrong("file %d (inode %llu) cannot be opened: %s", file,
              (unsigned long long)f->ino, strerror(-rc));
    p->fh = p->req.fh;
    client_getattr(c, looking(p), f->ino);
    rc = looked(p, "a getattr at the end");
    if (rc != 0)
        wrong("file %d has no attributes: %s", file, strerror(-rc));
    expect(model_check_size(file, &p->view, (uint64_t)p->req.st.st_size), p);
    for (uint64_t off = 0; off < FILE_BYTES_MAX_SIM; off += BLOCK) {
        client_read(c, looking(p), f->ino, p->fh, off, BLOCK, 0);
        rc = looked(p, "a read at the end");
        run->looked_at.ino = f->ino;
        run->looked_at.block = off / BLOCK;
        /* a file lost by power on all storages reads as an
         * error, not as zeros: exportd knows that it had data */
        if (rc != 0 && (run->config.torn_is_fine ||
                        (rc == -EIO && run->result.n_power > 0 &&
                         model_may_be_nothing(file, &p->view, off, BLOCK)))) {
            run->result.n_torn++;
            continue;
        }
        if (rc != 0)
            wrong("block %llu of file %d (inode %llu) cannot be read at the end: %s",
                  (unsigned long long)off / BLOCK, file, (unsigned long long)f->ino,
                  strerror(-rc));
        expect(model_check_read(file, &p->view, off, BLOCK, p->data, p->req.data_len), p);
        if (p->req.data_len < BLOCK)
            break;
    }
    if (run->config.xattrs)
        xattrs_check(p, file, look_at_xattr);
    client_release(c, looking(p), f->ino, p->fh);
    looked(p, "a release");
}

static void check_name(struct program *p, int i)
{
    const struct model_name *n = &model.names[i];
    int rc, file, dir = n->dir == NOBODY ? NOBODY : model_name_get(n->dir);

    if (n->dir != NOBODY && dir == NOBODY) {
        expect(model_name_seen(i, 0), p);
        return;
    }
    client_lookup(p->client, looking(p), dir == NOBODY ? 1 : model.files[dir].ino,
                  n->text);
    rc = looked(p, "a lookup at the end");
    if (rc != 0 && rc != -ENOENT)
        wrong("name %s cannot be looked up: %s", n->text, strerror(-rc));
    expect(model_name_seen(i, rc == 0 ? p->req.entry.ino : 0), p);
    file = model_name_get(i);
    if (file != NOBODY && (i < FIRST_DIR || i >= FIRST_CHILD))
        check_file(p, file);
}

/* Checks that a directory lists exactly its names. */
static void check_listing(struct program *p, int d)
{
    if (d != NOBODY && model_name_get(d) == NOBODY)
        return;
    world_run_until(world_clock.now_ns + 1000000);
    p->episode = EPISODE_NAMES;
    names_list(p, d);
    wait_for(programs_are_idle, 60000, "a listing at the end");
}

static bool is_named(uint64_t ino)
{
    for (unsigned i = 0; i < model.n_names; i++) {
        int file = model_name_get((int)i);

        if (file != NOBODY && model.files[file].ino == ino)
            return true;
    }
    return false;
}

/* Waits until no file of a deleted inode is left. A deleted file can come back by a power
 * loss before a sync, by healing from a storage that was down, or in a rebuild that lists
 * it before its deletion and creates it after. exportd finds it in the storages' lists;
 * without a healer they give none. */
static void check_strays(void)
{
    bool come_back = run->result.n_power > 0 || revived_any() ||
                     (run->config.faults & (FAULT_LOSE | FAULT_REPLACE)) != 0;
    uint64_t ms = come_back ? STRAYS_SWEEP_MS : STRAYS_MS;
    uint64_t until_ns = world_clock.now_ns + ms * 1000000;
    const char *w;

    if (come_back && !run->config.heals)
        return;
    while ((w = healed_strays()) != NULL) {
        if (world_clock.now_ns > until_ns)
            wrong("%s", w);
        world_run_until(world_clock.now_ns + 1000000000);
    }
}

void check_everything(void)
{
    const char *words;
    struct sim_client *c = &run->clients[CLIENTS];
    struct program *p = &run->programs[0];

    client_start(c);
    wait_for(looker_is_mounted, 60000, "a mount at the end");
    p->client = c;
    p->life = c->host->proc->life;
    p->view = (struct model_view){ .client = (int)c->index, .life = p->life };
    for (int i = 0; i < NAMES; i++)
        check_name(p, i);
    for (int d = FIRST_DIR; d < FIRST_CHILD; d++)
        check_listing(p, d);
    check_listing(p, NOBODY);
    words = healed_orphans(is_named);
    if (words != NULL)
        wrong("%s", words);
    check_strays();
}

/* Tells whether a scrub may find faults that nothing else does: rot; unreadable pages
 * that no reader met; bodies torn by power; removed files that healing created; blocks
 * left incomplete by a client that died when exportd had lost (or was about to lose) its
 * list of open files. */
static bool scrub_may_find(void)
{
    return (run->config.faults & (FAULT_ROT | FAULT_SPOIL | FAULT_PAGES)) != 0 ||
           run->result.n_power > 0 || revived_any() ||
           (run->result.n_client_deaths > 0 && run->exportd_deaths > 0);
}

/* Notes the block that the text names, if any. */
static void look_at_words(const char *why)
{
    unsigned long long ino, block;
    const char *file = strstr(why, "file ");

    if (file != NULL && strlen(file) > 37 &&
        sscanf(file + 21, "%16llx: block %llu", &ino, &block) == 2) {
        run->looked_at.ino = ino;
        run->looked_at.block = block;
    }
}

/* Waits until all is healed. Returns false if
 * that is impossible: disks destroyed too much. */
static bool wait_until_healed(uint64_t until_ns)
{
    char why[300] = "";

    while (!healed_is_quiet(why, sizeof(why))) {
        if (world_clock.now_ns > until_ns) {
            look_at_words(why);
            if (run->config.torn_is_fine && run->looked_at.ino != 0 &&
                healed_is_lost(run->looked_at.ino, run->looked_at.block)) {
                say("not healed, and it cannot be: %s", why);
                return false;
            }
            wrong("healing does not end: %s", why);
        }
        world_run_until(world_clock.now_ns + 1000000000);
    }
    return true;
}

/* Tells whether the replacement is done. */
static bool is_replaced(void)
{
    return run->replacing == NULL || run->replaced;
}

/* Scrubs all storages; returns the number of findings. */
static uint64_t scrub_all(uint64_t until_ns)
{
    uint64_t found;

    scrub_start_all();
    while (!scrub_is_done(&found)) {
        if (world_clock.now_ns > until_ns)
            wrong("the scrub does not end");
        world_run_until(world_clock.now_ns + 500000000);
    }
    say("the scrub has found %llu", (unsigned long long)found);
    return found;
}

/*
 * Checks that spares keep nothing in the end. Several scrubs may be needed: a home that
 * stands in for another one must drop that data before its own spare is dropped.
 */
static void check_spares(uint64_t until_ns)
{
    const char *w;

    for (unsigned round = 0; (w = healed_spares()) != NULL; round++) {
        if (round == SPARES_SCRUBS_MAX)
            wrong("after %u more scrubs: %s", round, w);
        scrub_all(until_ns);
    }
}

/* Healing cannot end for a removed file that is back at too few storages to be decided:
 * it ends when exportd's first sweep has the file removed again. */
void check_healing(void)
{
    uint64_t ms = revived_any() ? STRAYS_SWEEP_MS : HEALED_MS, found = 0;
    uint64_t until_ns = world_clock.now_ns + ms * 1000000;
    struct healed counted;
    const char *w;

    wait_for(is_replaced, 60000, "that a new disk is taken");
    for (unsigned round = 0; round < 2; round++) {
        if (!wait_until_healed(until_ns))
            return;
        say("all is quiet");
        found = scrub_all(until_ns);
        if (found == 0)
            break;
        if (round == 0 && !scrub_may_find())
            wrong("a scrub after healing has %llu findings: %s",
                  (unsigned long long)found, scrub_words());
    }
    if (found != 0)
        wrong("a second scrub after healing has %llu findings: %s",
              (unsigned long long)found, scrub_words());
    if (!wait_until_healed(
            until_ns)) /* undecided findings are checked again and resolved */
        return;
    w = healed_check(&counted);
    run->looked_at.ino = counted.wrong_ino;
    run->looked_at.block = counted.wrong_block;
    if (w != NULL)
        wrong("not healed: %s", w);
    check_spares(until_ns);
    run->result.n_records = counted.n_records;
}

static bool all_have_joined(void)
{
    return run->n_grown == run->config.n_more && !admin_is_telling();
}

/* Returns the number of files with too few storages; UINT64_MAX: not counted yet. */
static uint64_t files_few(void)
{
    Rozo__AdStatusReq req = ROZO__AD_STATUS_REQ__INIT;
    Rozo__AdStatusResp *resp;
    uint64_t n = UINT64_MAX;
    struct answer a;

    metas_ask(ROZO__OP__AD_STATUS, &req.base, &a);
    resp = a.rc == 0 ? rozo__ad_status_resp__unpack(NULL, a.msg_len, a.msg) : NULL;
    if (resp != NULL && resp->n_exports > 0 && resp->exports[0]->files_few_known)
        n = resp->exports[0]->files_few;
    rozo__ad_status_resp__free_unpacked(resp, NULL);
    answer_free(&a);
    return n;
}

/*
 * Waits until every file has all storages of the cluster; a file with an undecidable
 * block (--torn) keeps its old ones.
 */
void check_growth(void)
{
    uint64_t until_ns = world_clock.now_ns + 1200000000000;

    if (run->config.n_more == 0)
        return;
    wait_for(all_have_joined, 60000, "that all storages join");
    while (run->config.heals && files_few() != 0) {
        if (world_clock.now_ns > until_ns && run->config.torn_is_fine)
            return;
        if (world_clock.now_ns > until_ns)
            wrong("%llu files have too few storages", (unsigned long long)files_few());
        world_run_until(world_clock.now_ns + 1000000000);
    }
}

void check_memory(void)
{
    for (unsigned i = 1; i < world_clock.n_procs; i++) {
        if (world_clock.procs[i]->n_bytes_most > run->result.bytes_most)
            run->result.bytes_most = world_clock.procs[i]->n_bytes_most;
    }
    if (run->result.bytes_most > (size_t)96 << 20)
        wrong("a process has used %llu MiB of memory",
              (unsigned long long)(run->result.bytes_most >> 20));
}

void finish_programs(void)
{
    wait_for(programs_are_idle, 240000, "the end of all programs");
    wait_for(no_strays, 60000, "the end of all messages");
    for (unsigned i = 0; i < CLIENTS; i++) {
        if (client_is_up(&run->clients[i]))
            client_stop(&run->clients[i]);
    }
    /* Leases of dead clients run out; then exportd has their files checked. In a quorum
     * power fails often, and a mount holds a file until its writes fail: io_timeout. */
    world_run_until(world_clock.now_ns + (run->config.heals || metas_are_quorum()
                                              ? 45000000000
                                              : 10000000000));
}
