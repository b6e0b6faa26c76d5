/*
 * meta_faults.c - what goes wrong among the members of a quorum, beside their deaths.
 *
 * In:     the seed. Out: calls of members, their disks and links.
 * Keeps:  one member at a time loses something that it had on stable storage, and only
 *         while the others lack nothing: a group of three survives no more.
 */
#include "tests/sim/cluster/state.h"
#include "tests/sim/cluster/world/kv.h"
#include "tests/sim/cluster/world/quorum_laws.h"

/* Time within which the log notes on stable storage what was synced. If the last frame
 * rots before that, nothing tells it from one that was never synced. */
static const uint64_t noted_ns = 1000000000;

enum loss {
    LOSS_BITS,
    LOSS_PAGES,
    LOSS_VOTE,
    LOSS_VOTE_PAGE,
    LOSS_LOG,
    LOSS_STORE,
    LOSS_N
};

static const char *const loss_texts[LOSS_N] = {
    [LOSS_BITS] = "a bit of its log flips",
    [LOSS_PAGES] = "pages of its log cannot be read any more",
    [LOSS_VOTE] = "its vote is lost",
    [LOSS_VOTE_PAGE] = "a copy of its vote rots",
    [LOSS_LOG] = "its log is lost",
    [LOSS_STORE] = "its store is lost",
};

/* Takes something from a member that is down. */
static void lose(struct sim_meta *e, enum loss loss)
{
    unsigned n = 1 + (unsigned)world_below(3);

    switch (loss) {
    case LOSS_BITS:
        sim_disk_rot_old(&e->disk, "journal/", noted_ns);
        break;
    case LOSS_PAGES:
        for (unsigned i = 0; i < n; i++)
            sim_disk_spoil(&e->disk, "journal/", false);
        break;
    case LOSS_VOTE:
        sim_disk_ruin(&e->disk, "vote");
        break;
    case LOSS_VOTE_PAGE:
        sim_disk_rot_head(&e->disk, "vote");
        break;
    case LOSS_LOG:
        sim_disk_ruin(&e->disk, "journal/");
        break;
    default:
        sim_kv_wipe(e->kv);
        break;
    }
}

/* Returns the member that has lost something and does not have it again; or NULL. */
static struct sim_meta *ill_find(void)
{
    struct member_status s;

    for (unsigned i = 0; i < metas.n; i++) {
        struct sim_meta *e = &metas.list[i];

        if (e->ill_before_life == 0)
            continue;
        if (e->host->proc->life < e->ill_before_life || !meta_status(e, &s) ||
            s.seeding != SEED_NONE || e->disk.health.error_ppm != 0)
            return e;
        say("%s has all again", e->host->proc->name);
        sim_disk_unspoil(&e->disk); /* pages of segments that are free now, too */
        e->ill_before_life = 0;
    }
    return NULL;
}

/* Kills a member, and takes something from it while it is down. */
static bool fault_loss(bool power)
{
    struct sim_meta *e = &metas.list[world_below(metas.n)];
    enum loss loss = (enum loss)world_below(LOSS_N);

    if (e->host->proc->hung || e->disk.health.hangs || ill_find() != NULL ||
        !metas_are_whole() ||
        !meta_falls(e, world_below(world_chance(300000) ? 20000 : 2000), power))
        return false;
    say("%s: %s", e->host->proc->name, loss_texts[loss]);
    e->ill_before_life = e->host->proc->life + 1;
    lose(e, loss);
    return true;
}

static void end_errors(struct fault *f)
{
    metas.list[f->a].disk.health.error_ppm = 0;
}

/* Lets reads, writes and syncs of a member fail for a while. What it cannot read when it
 * starts is lost for it. */
static bool fault_errors(void)
{
    struct sim_meta *e = &metas.list[world_below(metas.n)];

    if (ill_find() != NULL || !metas_are_whole() ||
        fault_new(world_below(3000), end_errors, e->index, 0) == NULL)
        return false;
    say("the disk of %s fails", e->host->proc->name);
    e->ill_before_life = e->host->proc->life;
    e->disk.health.error_ppm = world_chance(300000) ? 600000 : 50000;
    return true;
}

/* Cuts the power of a member whose disk may have failed before. */
static bool fault_power(void)
{
    struct sim_meta *e = &metas.list[world_below(metas.n)];

    return e->host->proc->alive && meta_falls(e, world_below(2000), true);
}

/* A member is away for long: the others trim what it needs. */
static bool fault_absence(bool power)
{
    struct sim_meta *e = &metas.list[world_below(metas.n)];

    return e->host->proc->alive && meta_falls(e, 3000 + world_below(17000), power);
}

/* A member that copies the store of another one dies. */
static bool fault_copying(bool power)
{
    struct member_status s;

    for (unsigned i = 0; i < metas.n; i++) {
        struct sim_meta *e = &metas.list[i];

        if (e->host->proc->alive && meta_status(e, &s) && s.seeding != SEED_NONE)
            return meta_falls(e, world_below(2000), power);
    }
    return false;
}

static bool fault_transfer(void)
{
    struct sim_meta *e = meta_leader();

    if (!meta_transfer(e))
        return false;
    say("%s hands leadership over", e->host->proc->name);
    run->result.n_transfers++;
    return true;
}

/* ---- a witness ---- */

static struct sim_meta *other_of(const struct sim_meta *e);

/* Known limit, metadata-quorum.md, "No acknowledged entry is lost with a machine". */
bool meta_needs_power(const struct sim_meta *e)
{
    return metas.witness != NULL && !e->is_witness && metas.is_lazy &&
           quorum_law_lacks(metas.laws, other_of(e));
}

enum { TURNS_SOUND = 1, TURNS_LOSE = 2 };

static struct sim_meta *other_of(const struct sim_meta *e)
{
    for (unsigned i = 0; i < metas.n; i++) {
        if (!metas.list[i].is_witness && &metas.list[i] != e)
            return &metas.list[i];
    }
    return NULL;
}

/* Returns whether the witness takes part, and has all that this member lacks. */
static bool witness_can_feed(const struct sim_meta *e)
{
    const struct sim_meta *w = metas.witness;

    return w->host->proc->alive && !w->host->proc->hung && w->ill_before_life == 0 &&
           quorum_law_feeds(metas.laws, quorum_law_held(metas.laws, e));
}

static void lose_while_down(struct sim_meta *e)
{
    enum loss loss = (enum loss)world_below(LOSS_N);

    say("%s: %s", e->host->proc->name, loss_texts[loss]);
    e->ill_before_life = e->host->proc->life + 1;
    lose(e, loss);
    if (world_chance(500000)) { /* all of it */
        sim_disk_ruin(&e->disk, "journal/");
        sim_kv_wipe(e->kv);
    }
}

/* The second one of the turns: a member with metadata, or the witness. */
static void end_turns(struct fault *f)
{
    struct sim_meta *e = &metas.list[f->a];
    struct sim_meta *away = e->is_witness ? NULL : other_of(e);
    bool is_sound = (f->b & TURNS_SOUND) != 0 && away != NULL && witness_can_feed(away);
    uint64_t for_ms = e->is_witness ? world_below(1000) : 3000 + world_below(40000);

    if (run->ending || !e->host->proc->alive || e->host->proc->hung ||
        e->disk.health.hangs || (away != NULL && away->host->proc->alive))
        return;
    if (e->is_witness)
        is_sound = (f->b & TURNS_SOUND) != 0;
    if (!meta_falls(e, for_ms, world_chance(500000)))
        return;
    if (is_sound && (f->b & TURNS_LOSE) != 0 && ill_find() == NULL)
        lose_while_down(e);
}

/* A member with metadata is away, changes go on, then the other one falls, and the first
 * one comes back: only the witness has what happened meanwhile. Or the witness falls. */
static bool fault_turns(bool power, bool may_lose)
{
    struct sim_meta *away =
        world_chance(500000) ? meta_leader() : &metas.list[world_below(metas.n)];
    struct sim_meta *next = world_chance(700000) ? other_of(away) : metas.witness;
    uint64_t after_ms = 200 + world_below(4000);
    bool is_sound = !power || !metas.is_lazy;

    if (away->is_witness || ill_find() != NULL || !metas_are_whole() ||
        away->host->proc->hung || away->disk.health.hangs)
        return false;
    if (!meta_falls(away, after_ms + world_below(world_chance(500000) ? 500 : 8000),
                    power))
        return false;
    fault_new(after_ms, end_turns, next->index,
              (is_sound ? TURNS_SOUND : 0) | (may_lose ? TURNS_LOSE : 0));
    return true;
}

/* Sometimes causes a fault that needs a witness. */
static bool fault_witness(unsigned fault)
{
    unsigned loses = FAULT_ROT | FAULT_SPOIL | FAULT_PAGES | FAULT_LOSE | FAULT_REPLACE;
    unsigned kills = FAULT_KILL_EXPORTD | FAULT_POWER_EXPORTD;

    if (metas.witness == NULL || (fault & (loses | kills)) == 0 || !world_chance(250000))
        return false;
    return fault_turns((fault & FAULT_POWER_EXPORTD) != 0 && world_chance(500000),
                       (run->config.faults & loses) != 0);
}

static void end_cut(struct fault *f)
{
    net_cut(f->a, f->b, false);
}

/* Cuts one direction between two members. */
static bool fault_one_way(void)
{
    unsigned i = (unsigned)world_below(metas.n);
    unsigned a = metas.list[i].host->index;
    unsigned b = metas.list[(i + 1 + world_below(metas.n - 1)) % metas.n].host->index;
    uint64_t for_ms = world_chance(200000) ? world_below(15000) : world_below(4000);

    if (net.cut[a][b] || fault_new(for_ms, end_cut, a, b) == NULL)
        return false;
    say("%s does not reach %s", net.hosts[a].proc->name, net.hosts[b].proc->name);
    net_cut(a, b, true);
    return true;
}

/* Stops a member: its clock goes on. */
static bool fault_stop(void)
{
    struct sim_meta *e =
        world_chance(500000) ? meta_leader() : &metas.list[world_below(metas.n)];

    return host_hangs(e->host, world_below(world_chance(300000) ? 12000 : 2000));
}

static void cut_both(unsigned a, unsigned b, uint64_t for_ms)
{
    if (!net.cut[a][b] && fault_new(for_ms, end_cut, a, b) != NULL)
        net_cut(a, b, true);
    if (!net.cut[b][a] && fault_new(for_ms, end_cut, b, a) != NULL)
        net_cut(b, a, true);
}

/* The follower that the leader still hears starts again at once, cut off from it. */
static void end_quick(struct fault *f)
{
    struct sim_meta *leader = &metas.list[f->a], *e = &metas.list[f->b];

    if (leader != meta_leader() || !e->host->proc->alive)
        return;
    cut_both(leader->host->index, e->host->index, 1500);
    meta_falls(e, world_below(100), false);
}

/* One follower campaigns while the other one starts: the lease of the leader lasts. */
static bool fault_quick(void)
{
    const struct sim_meta *leader = meta_leader();
    unsigned a = leader->index;
    unsigned b = (a + 1 + (unsigned)world_below(metas.n - 1)) % metas.n;

    if (!metas_are_whole() ||
        fault_new(1500 + world_below(1500), end_quick, a, b) == NULL)
        return false;
    for (unsigned i = 0; i < metas.n; i++) {
        if (i != a && i != b)
            cut_both(leader->host->index, metas.list[i].host->index, 4000);
    }
    say("%s reaches one other member only", leader->host->proc->name);
    return true;
}

static bool fault_cut_off(void)
{
    return (run->config.faults & FAULT_KILL_EXPORTD) != 0 && world_chance(500000)
               ? fault_quick()
               : fault_one_way();
}

/* The power of a member fails: of one of a majority. */
static void end_majority(struct fault *f)
{
    if (!run->ending && metas.list[f->a].host->proc->alive)
        meta_falls(&metas.list[f->a], world_below(f->b), true);
}

/* Cuts the power of a majority, or of all: at once, or one after the other. */
static void majority_falls(void)
{
    unsigned spared = world_chance(700000) ? metas.n : (unsigned)world_below(metas.n);
    uint64_t within_ms = world_chance(600000) ? 1 : 2000;
    unsigned away_ms = world_chance(200000) ? 8000 : 1500;

    for (unsigned i = 0; i < metas.n; i++) {
        if (i != spared)
            fault_new(world_below(within_ms), end_majority, i, away_ms);
    }
}

/* Waits until something is at stake: a change was answered that is not stable. */
static void end_wait(struct fault *f)
{
    if (run->ending)
        return;
    if (f->a > 0 && metas_stable_ns() == world_clock.now_ns)
        fault_new(1, end_wait, f->a - 1, 0);
    else
        majority_falls();
}

static bool fault_majority(void)
{
    return fault_new(0, end_wait, world_chance(800000) ? 3000 : 0, 0) != NULL;
}

static bool fault_death(bool power)
{
    switch (world_below(6)) {
    case 0:
        return fault_absence(power);
    case 1:
        return fault_copying(power);
    case 2:
        return fault_transfer();
    case 3:
        return power && metas.is_lazy && fault_majority();
    default:
        return false;
    }
}

bool meta_fault(unsigned fault)
{
    if (fault_witness(fault))
        return true;
    switch (fault) {
    case FAULT_CUT:
        return world_chance(300000) && fault_cut_off();
    case FAULT_HANG:
        return world_chance(300000) && fault_stop();
    case FAULT_KILL_EXPORTD:
        return fault_death(false);
    case FAULT_POWER_EXPORTD:
        return fault_death(true);
    case FAULT_ROT:
    case FAULT_SPOIL:
    case FAULT_PAGES:
    case FAULT_LOSE:
    case FAULT_REPLACE:
        return world_chance(400000) && fault_loss(world_chance(500000));
    case FAULT_ERRORS:
        return world_chance(400000) &&
               (world_chance(300000) ? fault_power() : fault_errors());
    default:
        return false;
    }
}

void meta_faults_end(void)
{
    for (unsigned i = 0; i < metas.n; i++)
        metas.list[i].disk.health.error_ppm = 0;
}
