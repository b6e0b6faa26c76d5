/*
 * faults.c - faults of machines, disks and links.
 *
 * In:     the seed. Out: calls of the network, disks and processes; their effect on the
 *         model.
 */
#include <string.h>

#include "common/proto/rozo.pb-c.h"

#include "tests/sim/cluster/state.h"
#include "tests/sim/cluster/world/ask.h"
#include "tests/sim/cluster/world/kv.h"

/* ---- faults ---- */

/* Time until everyone knows the new map: exportd sends it to storages within
 * a second, and to clients with their keepalives, every third of a lease. */
static const uint64_t map_heard_ns = 3000000000;
/* Time after an absence until the session is open again and its state is recovered. */
#define AWAY_NS UINT64_C(6000000000)

/* Returns the number of storages that may be down at a time. */
static unsigned n_ill_max(void)
{
    return (run->config.faults & FAULT_FEW) != 0 ? servers.n_storages : run->n - run->k;
}

static void on_fault_end(struct env_timer *timer)
{
    struct fault *f = container_of(timer, struct fault, timer);

    f->active = false;
    f->end(f);
}

struct fault *fault_new(uint64_t for_ms, void (*end)(struct fault *f), unsigned a,
                        unsigned b)
{
    for (unsigned i = 0; i < FAULTS_MAX; i++) {
        struct fault *f = &run->faults[i];

        if (f->active)
            continue;
        *f = (struct fault){ .end = end, .active = true, .a = a, .b = b };
        env_timer_init(&f->timer, on_fault_end);
        world_timer_start_us(&f->timer, for_ms * 1000 + world_below(1000));
        return f;
    }
    return NULL;
}

static unsigned n_ill(void)
{
    unsigned n = 0;

    for (unsigned i = 0; i < servers.n_storages; i++) {
        const struct sim_storage *s = &servers.storages[i];

        n += !storage_node_is_up(s) || s->host->handler == NULL || s->host->proc->hung ||
             s->disk.health.hangs || s->disk.health.error_ppm != 0 ||
             run->replacing == s || (run->lost >> i & 1) != 0 || run->old_in == i + 1;
    }
    return n;
}

static void end_storage(struct fault *f)
{
    struct sim_storage *s = &servers.storages[f->a];

    if (storage_node_is_up(s))
        return;
    say("storage %u starts", s->index + 1);
    run->ill_ns = world_clock.now_ns;
    storage_node_start(s);
}

static void storage_dies(struct sim_storage *s, bool power)
{
    uint64_t for_ms = world_chance(200000) ? world_below(12000) : world_below(1500);

    if (!storage_node_is_up(s) || n_ill() >= n_ill_max() ||
        fault_new(for_ms, end_storage, s->index, 0) == NULL)
        return;
    say("storage %u %s", s->index + 1, power ? "loses power" : "is killed");
    storage_node_kill(s, power);
    if (power) {
        model_power_lost(0);
        run->result.n_power++;
    }
    run->result.n_kills++;
    run->storage_kills++;
}

/* Sometimes arms a host: the fault comes soon
 * after its next request that changes data. */
static bool arm(struct host *h, bool power)
{
    if (world_chance(300000))
        return false;
    net.watched[h->index] = true;
    run->armed_power[h->index] = power;
    return true;
}

static void fault_storage(bool power)
{
    struct sim_storage *s = &servers.storages[world_below(servers.n_storages)];

    if (storage_node_is_up(s) && !arm(s->host, power))
        storage_dies(s, power);
}

static void meta_comes(struct sim_meta *e)
{
    if (e->host->proc->alive)
        return;
    say("%s starts", e->host->proc->name);
    if (!metas_are_quorum())
        run->exportd_started_ns = world_clock.now_ns;
    meta_start(e);
}

static void end_exportd(struct fault *f)
{
    meta_comes(&metas.list[f->a]);
}

void exportd_is_cut(uint64_t since_ns)
{
    run->exportd_cuts++;
    run->exportd_cut_ns = world_clock.now_ns;
    model_power_lost(since_ns);
    model_names_lost(since_ns);
    xattrs_lost(since_ns);
}

/* The losses of a quorum are known when its next core starts (run.c). */
static void exportd_dies(struct sim_meta *e, bool power)
{
    say("%s %s", e->host->proc->name, power ? "loses power" : "is killed");
    meta_kill(e, power);
    run->result.n_kills++;
    run->exportd_deaths++;
    if (!power)
        return;
    run->result.n_power++;
    if (!metas_are_quorum())
        exportd_is_cut(0);
}

/* Chooses an exportd: often the one that leads. */
static struct sim_meta *meta_choose(void)
{
    if (!metas_are_quorum())
        return &metas.list[0];
    return world_chance(500000) ? meta_leader() : &metas.list[world_below(metas.n)];
}

bool meta_falls(struct sim_meta *e, uint64_t for_ms, bool power)
{
    bool falls = fault_new(for_ms, end_exportd, e->index, 0) != NULL;

    if (falls)
        exportd_dies(e, power && !meta_needs_power(e));
    return falls;
}

static void fault_exportd(bool power)
{
    struct sim_meta *e = meta_choose();

    if (e->host->proc->alive && (!metas_are_quorum() || !arm(e->host, power)))
        meta_falls(e, world_below(2000), power);
}

static void end_power(struct fault *f)
{
    for (unsigned i = 0; i < metas.n; i++)
        meta_comes(&metas.list[i]);
    for (unsigned i = 0; i < servers.n_storages; i++) {
        f->a = i;
        end_storage(f);
    }
}

static void fault_power_all(void)
{
    if (fault_new(500 + world_below(2000), end_power, 0, 0) == NULL)
        return;
    say("the power fails everywhere");
    for (unsigned i = 0; i < servers.n_storages; i++)
        storage_node_kill(&servers.storages[i], true);
    model_power_lost(0);
    for (unsigned i = 0; i < metas.n; i++)
        exportd_dies(&metas.list[i], true);
}

static void end_client(struct fault *f)
{
    if (!run->clients[f->a].host->proc->alive)
        client_comes(&run->clients[f->a]);
}

static void client_falls(unsigned i)
{
    if (!client_is_up(&run->clients[i]) ||
        fault_new(world_below(4000), end_client, i, 0) == NULL)
        return;
    client_dies(&run->clients[i]);
    run->client_died_ns = world_clock.now_ns;
}

static void fault_client(void)
{
    unsigned i = (unsigned)world_below(CLIENTS);

    if (client_is_up(&run->clients[i]) && !arm(run->clients[i].host, false))
        client_falls(i);
}

static void end_armed(struct fault *f)
{
    struct host *h = &net.hosts[f->a];

    if (run->ending)
        return;
    for (unsigned i = 0; i < servers.n_storages; i++) {
        if (servers.storages[i].host == h && storage_node_is_up(&servers.storages[i]))
            storage_dies(&servers.storages[i], f->b != 0);
    }
    for (unsigned i = 0; i < CLIENTS; i++) {
        if (run->clients[i].host == h)
            client_falls(i);
    }
    for (unsigned i = 0; i < metas.n; i++) {
        if (metas.list[i].host == h && h->proc->alive)
            meta_falls(&metas.list[i], world_below(2000), f->b != 0);
    }
}

static void on_watched(struct host *h)
{
    struct fault *f = fault_new(0, end_armed, h->index, run->armed_power[h->index]);

    if (f == NULL)
        return;
    net.watched[h->index] = false;
    world_timer_start_us(&f->timer, world_below(800));
}

/* Tells the model if the absence is long enough for
 * exportd, or a waiter for a token, to evict a client. */
static void clients_may_be_away(unsigned host, uint64_t for_ms)
{
    for (unsigned i = 0; for_ms > 1000 && i < CLIENTS; i++) {
        const struct sim_client *c = &run->clients[i];

        if (c->host->index == host) {
            model_client_away((int)i, c->host->proc->life,
                              world_clock.now_ns + for_ms * 1000000 + AWAY_NS);
            locks_client_away((int)i);
        }
    }
}

static void end_cut(struct fault *f)
{
    net_cut(f->a, f->b, false);
}

/* Cuts the member that leads off from the others, which clients and storages reach. */
static void fault_isolate(void)
{
    unsigned a = meta_leader()->host->index;
    uint64_t for_ms = world_chance(200000) ? world_below(15000) : world_below(4000);
    bool hears = world_chance(300000), says = !hears && world_chance(300000);

    say("%s does not reach the other members", net.hosts[a].proc->name);
    for (unsigned i = 0; i < metas.n; i++) {
        unsigned b = metas.list[i].host->index;

        if (a == b)
            continue;
        if (!says && !net.cut[a][b] && fault_new(for_ms, end_cut, a, b) != NULL)
            net_cut(a, b, true);
        if (!hears && !net.cut[b][a] && fault_new(for_ms, end_cut, b, a) != NULL)
            net_cut(b, a, true);
    }
}

static void fault_cut(void)
{
    unsigned a = (unsigned)world_below(net.n_hosts),
             b = (unsigned)world_below(net.n_hosts);
    uint64_t for_ms = world_chance(200000) ? world_below(15000) : world_below(2000);

    if (a == b || net.cut[a][b] || fault_new(for_ms, end_cut, a, b) == NULL)
        return;
    say("%s does not reach %s", net.hosts[a].proc->name, net.hosts[b].proc->name);
    net_cut(a, b, true);
    clients_may_be_away(a, for_ms);
    clients_may_be_away(b, for_ms);
    if (world_chance(600000) && !net.cut[b][a] &&
        fault_new(for_ms, end_cut, b, a) != NULL)
        net_cut(b, a, true);
}

static void end_hang(struct fault *f)
{
    struct host *h = &net.hosts[f->a];

    if (!h->proc->hung)
        return;
    h->proc->hung = false;
    net_host_reachable(h, h->power);
}

bool host_hangs(struct host *h, uint64_t for_ms)
{
    if (!h->proc->alive || h->proc->hung ||
        fault_new(for_ms, end_hang, h->index, 0) == NULL)
        return false;
    say("%s hangs", h->proc->name);
    h->proc->hung = true;
    net_host_reachable(h, false);
    clients_may_be_away(h->index, for_ms);
    return true;
}

static void fault_hang(void)
{
    struct host *h = &net.hosts[world_below(net.n_hosts)];

    if (h->proc->alive && !h->proc->hung && n_ill() < run->n - run->k)
        host_hangs(h, world_below(3000));
}

static void end_disk(struct fault *f)
{
    servers.storages[f->a].disk.health = (struct disk_health){ .delay_us = 300 };
}

static void end_meta_disk(struct fault *f)
{
    metas.list[f->a].disk.health = (struct disk_health){ .delay_us = 300 };
    sim_kv_slow(metas.list[f->a].kv, 0);
}

/* Makes the log of a member slow for a while, or hang, and perhaps its store slow. */
static void fault_meta_disk(void)
{
    struct sim_meta *e = meta_choose();

    if (fault_new(world_below(5000), end_meta_disk, e->index, 0) == NULL)
        return;
    say("the disk of %s is slow", e->host->proc->name);
    e->disk.health.hangs = world_chance(300000);
    e->disk.health.delay_us = 2000 + (uint32_t)world_below(200000);
    if (world_chance(300000))
        sim_kv_slow(e->kv, (uint32_t)world_below(200000));
}

static void fault_disk(unsigned fault)
{
    struct sim_storage *s = &servers.storages[world_below(servers.n_storages)];

    if (metas_are_quorum() && fault == FAULT_SLOW_DISK && world_chance(300000)) {
        fault_meta_disk();
        return;
    }
    if (n_ill() >= run->n - run->k ||
        fault_new(world_below(5000), end_disk, s->index, 0) == NULL)
        return;
    if (fault == FAULT_ERRORS) {
        s->disk.health.error_ppm = world_chance(300000) ? 600000 : 50000;
    } else if (world_chance(300000)) {
        s->disk.health.hangs = true;
    } else {
        s->disk.health.delay_us = 2000 + (uint32_t)world_below(200000);
    }
    say("the disk of storage %u is not well", s->index + 1);
}

static void fault_rot(void)
{
    struct sim_disk *d = &servers.storages[run->rot_storage].disk;

    if (sim_disk_rot(d, world_chance(600000) ? "objects/" : "journal/"))
        say("a bit of storage %u flips", run->rot_storage + 1);
}

static void fault_spoil(void)
{
    struct sim_disk *d = &servers.storages[run->rot_storage].disk;

    if (sim_disk_spoil(d, "objects/", false))
        say("a page of storage %u cannot be read any more", run->rot_storage + 1);
}

/*
 * Makes a page unreadable, always on the same storage: data synced while others were down
 * is on q candidates, and q - k is 1 for every layout.
 */
static void fault_page(void)
{
    struct sim_disk *d = &servers.storages[run->rot_storage].disk;
    const char *what = world_chance(500000) ? "journal/" : "";
    bool worn = world_chance(150000);

    if (!sim_disk_spoil(d, what, worn))
        return;
    run->result.n_spoiled++;
    run->result.n_worn += worn;
    say("a page of storage %u%s cannot be read any more%s", run->rot_storage + 1,
        what[0] == 'j' ? "'s journal" : "", worn ? ", nor written" : "");
}

static void end_full(struct fault *f)
{
    servers.storages[f->a].disk.pages_max = UINT64_MAX / PAGE / 4;
}

static void fault_full(void)
{
    struct sim_storage *s = &servers.storages[world_below(servers.n_storages)];

    if (fault_new(world_below(6000), end_full, s->index, 0) == NULL)
        return;
    s->disk.pages_max = s->disk.n_pages + world_below(200);
    say("the disk of storage %u fills up", s->index + 1);
}

/* ---- another disk ---- */

static void replace_ask(void);
static void on_lose_more(struct env_timer *timer);

static void on_replace_timer(struct env_timer *timer)
{
    (void)timer;
    replace_ask();
}

static void replace_again(uint64_t after_ms)
{
    env_timer_init(&run->replace_timer, on_replace_timer);
    world_timer_start_us(&run->replace_timer, after_ms * 1000);
}

static void on_replaced(void *arg, int rc)
{
    (void)arg;
    if (rc != 0) { /* exportd is down, or still takes the old one for up */
        replace_again(300);
        return;
    }
    say("storage %u has its new disk", run->replacing->id);
    run->replaced = true;
    run->replaced_ns = world_clock.now_ns;
    if ((run->config.faults & FAULT_LOSE) == 0 || !world_chance(700000))
        return;
    env_timer_init(&run->replace_timer, on_lose_more);
    world_timer_start_us(&run->replace_timer, world_below(200000));
}

static void replace_ask(void)
{
    Rozo__AdStorageReplaceReq req = ROZO__AD_STORAGE_REPLACE_REQ__INIT;

    if (admin_is_telling()) {
        replace_again(100);
        return;
    }
    req.id = run->replacing->id;
    admin_tell_later(meta_leader()->host, ROZO__OP__AD_STORAGE_REPLACE, &req.base,
                     on_replaced, NULL);
}

/* ---- more storages ---- */

static void grow_ask(void);

static void on_grow_timer(struct env_timer *timer)
{
    (void)timer;
    grow_ask();
}

static void grow_after(uint64_t ms)
{
    env_timer_init(&run->grow_timer, on_grow_timer);
    world_timer_start_us(&run->grow_timer, ms * 1000);
}

static void on_grown(void *arg, int rc)
{
    struct sim_storage *s = arg;
    size_t len;
    const uint8_t *answer = admin_answer(&len);

    if (rc != 0) { /* exportd or the new storage is down */
        grow_after(300);
        return;
    }
    storage_node_added(s, answer, len);
    say("storage %u has joined", s->id);
    if (++run->n_grown < run->config.n_more)
        grow_after(world_below(10000));
}

static void grow_ask(void)
{
    Rozo__AdStorageAddReq req = ROZO__AD_STORAGE_ADD_REQ__INIT;
    unsigned i = servers.n_storages - run->config.n_more + run->n_grown;
    struct sim_storage *s = &servers.storages[i];
    char *addr = s->addr;

    if (admin_is_telling()) {
        grow_after(100);
        return;
    }
    req.n_addresses = 1;
    req.addresses = &addr;
    admin_tell_later(meta_leader()->host, ROZO__OP__AD_STORAGE_ADD, &req.base, on_grown,
                     s);
}

/* Loses one disk per run: a second loss before the rebuild ends would lose data. A
 * storage that has not joined has nothing to lose. */
static void fault_replace(void)
{
    unsigned i = (unsigned)world_below(servers.n_storages);
    struct sim_storage *s = &servers.storages[i];

    if (run->replacing != NULL || n_ill() != 0 || !world_chance(300000) || s->id == 0 ||
        fault_new(200 + world_below(3000), end_storage, i, 0) == NULL)
        return;
    say("storage %u loses its disk", i + 1);
    storage_node_kill(s, true);
    storage_node_wipe(s, false);
    model_power_lost(0);
    run->result.n_replaced++;
    run->replacing = s;
    replace_again(500);
}

/* ---- disks lost one after the other (mode lost) ---- */

static void disk_is_lost(unsigned i, bool more)
{
    struct sim_storage *s = &servers.storages[i];

    if (s->id == 0 || fault_new(200 + world_below(3000), end_storage, i, 0) == NULL)
        return;
    say("storage %u loses its disk%s", i + 1, more ? ", too" : "");
    storage_node_kill(s, true);
    storage_node_wipe(s, !more && (run->config.faults & FAULT_OLD_DISK) != 0);
    model_power_lost(0);
    run->result.n_replaced++;
    run->result.n_lost_more += more;
    run->kills_seen = run->storage_kills;
    run->lost |= 1u << i;
    run->replaced = false;
    run->replacing = s;
    replace_again(500);
}

/* Loses another disk during a rebuild, if no
 * other storage was down since all was healed. */
static void on_lose_more(struct env_timer *timer)
{
    unsigned i = (unsigned)world_below(servers.n_storages), ill = n_ill();

    (void)timer;
    if (!run->ending && run->lost != 0 && (run->lost >> i & 1) == 0 &&
        ill < run->n - run->k && ill == (unsigned)__builtin_popcount(run->lost) &&
        run->kills_seen == run->storage_kills)
        disk_is_lost(i, true);
}

/* Loses the next disk. All must be healed first, also what dead clients left incomplete:
 * exportd (which never dies in this mode) has that checked when leases are over. Then n
 * storages have all data, as long as only the lost disks' storages are down. */
static void all_is_well(void)
{
    run->lost = 0;
    run->replacing = NULL;
    if (!run->ending && n_ill() == 0 && run->kills_seen == run->storage_kills)
        disk_is_lost((unsigned)world_below(servers.n_storages), false);
}

static void health_ask(void);

static void on_health(void *arg, int rc)
{
    size_t len;
    const uint8_t *answer = admin_answer(&len);
    Rozo__StHealthResp *h =
        rc == 0 ? rozo__st_health_resp__unpack(NULL, len, answer) : NULL;
    bool well = h != NULL && h->queued == 0 && h->unhealed == 0 &&
                h->missed_ranges == 0 && h->rebuild_state != 1 &&
                !storage_node_is_rebuilt(&servers.storages[run->asked]);

    (void)arg;
    rozo__st_health_resp__free_unpacked(h, NULL);
    run->asking = well && ++run->asked < servers.n_storages;
    if (run->asking)
        health_ask();
    else if (well)
        all_is_well();
}

static void health_ask(void)
{
    Rozo__StHealthReq req = ROZO__ST_HEALTH_REQ__INIT;

    req.to_storage = servers.storages[run->asked].id;
    admin_tell_later(servers.storages[run->asked].host, ROZO__OP__ST_HEALTH, &req.base,
                     on_health, NULL);
}

static void end_old_disk(struct fault *f)
{
    struct sim_storage *s = &servers.storages[f->a];

    if (run->old_in != f->a + 1)
        return;
    say("storage %u has its new disk again", f->a + 1);
    if (s->host->proc->alive)
        storage_node_kill(s, false);
    storage_node_swap(s);
    run->old_in = 0;
    run->ill_ns = world_clock.now_ns;
    storage_node_start(s);
}

/* Puts a replaced disk back by mistake; no peer may take it for its replacement. */
static void old_disk_comes_back(struct sim_storage *s)
{
    if (fault_new(1000 + world_below(5000), end_old_disk, s->index, 0) == NULL)
        return;
    say("storage %u has the disk again that was replaced", s->index + 1);
    storage_node_kill(s, false);
    storage_node_swap(s);
    run->old_in = s->index + 1;
    run->result.n_came_back++;
    run->storage_kills++;
    storage_node_start(s);
}

static void fault_lose(void)
{
    unsigned i = (unsigned)world_below(servers.n_storages), ill = n_ill();
    struct sim_storage *s = &servers.storages[i];
    bool is_lost = (run->lost >> i & 1) != 0;

    if (run->old_in != 0 || (run->lost != 0 && !run->replaced) || run->asking)
        return;
    if (s->old.here && storage_node_is_up(s) && (is_lost || ill < run->n - run->k)) {
        if (world_clock.now_ns < run->replaced_ns + map_heard_ns)
            return; /* a peer without the new map would accept the old one */
        old_disk_comes_back(s);
    } else if (!admin_is_telling() && world_clock.now_ns > run->ill_ns + 2000000000 &&
               world_clock.now_ns > run->client_died_ns + 7000000000) {
        if (run->lost == 0)
            run->kills_seen = run->storage_kills;
        run->asked = 0;
        run->asking = true;
        health_ask();
    }
}

static void fault_weather(void)
{
    net.weather.delay_us =
        world_chance(500000) ? 300 : 300 + (uint32_t)world_below(20000);
    net.weather.loss_ppm = world_chance(500000) ? 0 : (uint32_t)world_below(20000);
    net.weather.twice_ppm = world_chance(500000) ? 0 : (uint32_t)world_below(100000);
    net.weather.twice_late_ppm = world_chance(500000) ? 0 : 300000;
    net.weather.late_ppm = world_chance(700000) ? 0 : (uint32_t)world_below(5000);
}

static void fault_inject(unsigned fault)
{
    if ((run->config.faults & FAULT_LOSE) != 0 && fault != FAULT_LOSE &&
        !world_chance(80000))
        return; /* the cluster needs time to heal */
    run->result.n_faults++;
    if (metas_are_quorum() && meta_fault(fault))
        return;
    switch (fault) {
    case FAULT_WEATHER:
        fault_weather();
        break;
    case FAULT_CUT:
        if (metas_are_quorum() && world_chance(400000))
            fault_isolate();
        else
            fault_cut();
        break;
    case FAULT_KILL_STORAGE:
        fault_storage(false);
        break;
    case FAULT_KILL_EXPORTD:
        fault_exportd(false);
        break;
    case FAULT_KILL_CLIENT:
        fault_client();
        break;
    case FAULT_HANG:
        fault_hang();
        break;
    case FAULT_SLOW_DISK:
    case FAULT_ERRORS:
        fault_disk(fault);
        break;
    case FAULT_POWER_STORAGE:
        fault_storage(true);
        break;
    case FAULT_POWER_EXPORTD:
        fault_exportd(true);
        break;
    case FAULT_POWER_ALL:
        if (world_chance(300000))
            fault_power_all();
        break;
    case FAULT_ROT:
        fault_rot();
        break;
    case FAULT_FULL:
        fault_full();
        break;
    case FAULT_SPOIL:
        fault_spoil();
        break;
    case FAULT_PAGES:
        fault_page();
        break;
    case FAULT_LOSE:
        fault_lose();
        break;
    case FAULT_REPLACE:
        fault_replace();
        break;
    }
}

static void on_fault_timer(struct env_timer *timer)
{
    unsigned on[32], n = 0;

    for (unsigned bit = 1; bit <= FAULT_LAST; bit *= 2) {
        if ((bit & (FAULT_LATE | FAULT_OLD_DISK | FAULT_FEW)) == 0 &&
            (run->config.faults & bit) != 0)
            on[n++] = bit;
    }
    if (run->ending || n == 0)
        return;
    fault_inject(on[world_below(n)]);
    world_timer_start_us(timer, world_below(run->fault_pause_us));
}

/* Ends all faults: everything is up. */
void faults_end(void)
{
    struct fault none = { 0 };

    run->ending = true;
    for (unsigned i = 0; i < FAULTS_MAX; i++) {
        if (run->faults[i].active)
            timers_stop(&world_clock.world.timers, &run->faults[i].timer);
        run->faults[i].active = false;
    }
    net.weather = (struct net_weather){ .delay_us = 300 };
    memset(net.watched, 0, sizeof(net.watched));
    for (unsigned a = 0; a < net.n_hosts; a++) {
        for (unsigned b = 0; b < net.n_hosts; b++)
            net_cut(a, b, false);
        none.a = a;
        end_hang(&none);
    }
    for (unsigned i = 0; i < servers.n_storages; i++) {
        none.a = i;
        end_old_disk(&none);
        end_storage(&none);
        end_disk(&none);
        end_full(&none);
        sim_disk_unwear(&servers.storages[i].disk);
    }
    for (unsigned i = 0; i < metas.n; i++) {
        none.a = i;
        if (metas_are_quorum())
            end_meta_disk(&none);
        end_exportd(&none);
    }
    meta_faults_end();
}

void faults_begin(void)
{
    net.on_watched = on_watched;
    run->fault_pause_us = run->config.faults == FAULT_KILL_CLIENT ||
                                  (run->config.faults & (FAULT_SPOIL | FAULT_PAGES |
                                                         FAULT_LOSE | FAULT_FEW)) != 0
                              ? 400000
                              : 200000 + world_below(3000000);
    run->rot_storage = (unsigned)world_below(run->config.n_storages);
}

void faults_start(void)
{
    env_timer_init(&run->fault_timer, on_fault_timer);
    world_timer_start_us(&run->fault_timer, 500000);
    if (run->config.n_more > 0)
        grow_after(5000 + world_below(20000));
    if ((run->config.faults & FAULT_LATE) != 0)
        net.weather = (struct net_weather){ .delay_us = 2000,
                                            .twice_ppm = 500000,
                                            .late_ppm = 5000,
                                            .twice_late_ppm = 700000,
                                            .dead_late_ppm = 500000 };
}
