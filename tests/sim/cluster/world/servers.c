/*
 * servers.c - the daemons of the simulated cluster: starts, kills, power cuts.
 *
 * In:     the run. Out: storage_* cores, each in its process; metas.c for exportd.
 * Keeps:  a daemon starts only with the contents of its disk or kv.
 */
#include "tests/sim/cluster/world/servers.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/list.h"
#include "storaged/heal/healer.h"
#include "tests/sim/cluster/world/kv.h"
#include "tests/sim/cluster/world/metas.h"

struct servers servers;

static const uint8_t node_key[CAPABILITY_NODE_KEY_BYTES] = SIM_NODE_KEY;

/* The daemon of a storage while it runs, in its memory. */
struct storage_process {
    struct sim_storage *s;
    struct identity identity;
    struct revoked_sessions revoked;
    struct generations generations;
    struct storage *loops[LOOPS_MAX];
    unsigned n_started;
    bool in_doubt;         /* the journal has lost unknown records */
    struct healer *healer; /* NULL: none */
    struct env_task answer;
    struct heal_question *questions; /* the task answers them */
};

/* ---- storages ---- */

static void generations_save(struct storage_process *p)
{
    generations_prepare(&p->generations);
    p->s->generations_saved = p->generations.file;
    p->s->has_generations = true;
}

static void on_stable_timer(struct env_timer *timer)
{
    struct sim_storage *s = container_of(timer, struct sim_storage, stable_timer);
    struct storage_process *p = s->process;
    struct proc *before;
    uint64_t ended;

    if (!storage_node_is_up(s) || s->host->proc->life != s->stable_life)
        return;
    world_timer_start_us(timer, (uint64_t)s->uncommitted_ms * 1000);
    if (s->host->proc->hung || atomic_load(&p->generations.n_open) == 0)
        return;
    before = proc_enter(s->host->proc);
    if (!generations_may_advance(&p->generations))
        generations_save(p);
    ended = generations_advance(&p->generations);
    proc_leave(before);
    if (!sim_disk_sync_all(&s->disk))
        return;
    before = proc_enter(s->host->proc);
    generations_mark_stable(&p->generations, ended);
    generations_save(p);
    proc_leave(before);
}

/* ---- healing ---- */

static struct rpc_channel *heal_peer_open(void *arg, uint32_t id,
                                          const uint8_t incarnation[IDENTITY_ID_BYTES],
                                          const char *const *addrs, unsigned n_addrs)
{
    struct storage_process *p = arg;

    (void)id;
    for (unsigned i = 0; n_addrs > 0 && i < servers.n_storages; i++) {
        if (strcmp(servers.storages[i].addr, addrs[0]) == 0)
            return net_channel_new(p->s->host, servers.storages[i].host, RPC_ROLE_NODE,
                                   incarnation, NULL, NULL);
    }
    return NULL;
}

static void heal_peer_close(void *arg, struct rpc_channel *ch)
{
    (void)arg;
    net_channel_close(ch);
}

static struct storcli_target target_of(const struct storage_file *file)
{
    struct storcli_target target = { .id = file->id,
                                     .codec = file->codec,
                                     .layout = file->layout,
                                     .block_bytes = (uint16_t)file->block_bytes,
                                     .n_storages = file->n_storages,
                                     .full_quorum = file->full_quorum,
                                     .dist_generation = file->dist_generation };

    memcpy(target.storages, file->storages, sizeof(target.storages));
    return target;
}

static void on_answer_task(struct env_task *task)
{
    struct storage_process *p = container_of(task, struct storage_process, answer);
    struct heal_question *q = p->questions;

    p->questions = NULL;
    q->answered(q);
}

static void question_answer(struct storage_process *p, struct heal_question *q)
{
    assert(p->questions == NULL);
    p->questions = q;
    p->answer.fn = on_answer_task;
    env_post(&p->s->host->proc->env, &p->answer);
}

static void ask_uncommitted(void *arg, struct heal_question *q)
{
    struct storage_process *p = arg;

    for (unsigned i = 0; i < p->s->n_loops; i++) {
        struct storage_uncommitted u;
        uint64_t cursor = 0;

        while (q->n_uncommitted < HEAL_UNCOMMITTED_MAX &&
               storage_next_uncommitted(p->loops[i], q->older_than_ns, &cursor, &u))
            q->uncommitted[q->n_uncommitted++] =
                (struct heal_uncommitted){ .target = target_of(&u.file),
                                           .first = u.first,
                                           .end = u.end,
                                           .age_ns = u.age_ns };
    }
    question_answer(p, q);
}

static void ask_health(void *arg, struct heal_question *q)
{
    struct storage_process *p = arg;

    for (unsigned i = 0; i < p->s->n_loops; i++)
        storage_health(p->loops[i], &q->health);
    question_answer(p, q);
}

static void on_handoff(void *arg, const struct storage_handoff *what)
{
    struct storage_process *p = arg;
    struct storcli_target target = target_of(&what->file);

    if (p->healer != NULL)
        healer_handoff(p->healer, &target, target.storages[what->projection], what->first,
                       what->end, what->version);
}

static void on_damaged(void *arg, const struct storage_damaged *what)
{
    struct storage_process *p = arg;
    struct storcli_target target = target_of(&what->file);

    if (p->healer != NULL)
        healer_damaged(p->healer, &target, what->first, what->end);
}

static void healer_begin(struct storage_process *p)
{
    struct healer_config config = {
        .env = &p->s->host->proc->env,
        .disk = &p->s->disk.disk,
        .kv = sim_kv_kv(p->s->kv),
        .identity = &p->identity,
        .revoked = &p->revoked,
        .key = p->s->key,
        .peers = { .open = heal_peer_open, .close = heal_peer_close, .arg = p },
        .ask_uncommitted = ask_uncommitted,
        .ask_health = ask_health,
        .arg = p,
        .boot = p->s->boot,
        .power_was_lost = generations_lost_any(&p->generations),
        .uncommitted_ms = 3000,
        .return_ms = 3000,
    };
    struct err err = { 0 };
    int rc;

    if (p->s->no_healer)
        return;
    rc = healer_open(&config, &p->healer, &err);
    if (rc != 0) {
        fprintf(stderr, "a healer refuses its kv: %s\n", err.text);
        abort();
    }
    healer_start(p->healer);
}

static void doubt_count(struct storage_process *p)
{
    bool now = identity_is_in_doubt(&p->identity);

    p->s->n_doubts += now && !p->in_doubt;
    p->s->n_doubts_ended += !now && p->in_doubt;
    p->in_doubt = now;
}

/* Stands in for the map of this start, which only a healer keeps. */
static void start_take(struct storage_process *p, const struct rpc_call *call)
{
    if (p->healer != NULL || call->role != RPC_ROLE_NODE || call->session == 0)
        return;
    atomic_store(&p->identity.map_version, call->session << 32);
    atomic_store(&p->identity.map_start, call->session);
}

static void storage_node_call(void *arg, struct rpc_call *call)
{
    struct storage_process *p = arg;
    unsigned n = p->s->n_loops;

    start_take(p, call);
    doubt_count(p);
    p->s->n_doubtful_reads += p->in_doubt && call->op == ROZO__OP__ST_READ;
    if (p->healer != NULL && healer_serves(call->op))
        healer_handle(p->healer, call);
    else
        storage_handle(p->loops[storage_route(call->op, call->msg, call->msg_len) % n],
                       call);
}

/* Starts to serve: all loops have read their journals. */
static void storage_node_serve(struct storage_process *p)
{
    for (unsigned i = 0; i < p->s->n_loops; i++)
        storage_serve(p->loops[i]);
    doubt_count(p);
    healer_begin(p);
    p->s->host->handler = storage_node_call;
    p->s->host->handler_arg = p;
}

static void on_restart(struct env_timer *timer)
{
    struct sim_storage *s = container_of(timer, struct sim_storage, restart);

    storage_node_kill(s, false);
    storage_node_start(s);
}

static void on_storage_started(void *arg, int rc)
{
    struct storage_process *p = arg;

    if (rc != 0) { /* the daemon ends with an error, and its supervisor restarts it */
        p->s->n_starts_failed++;
        world_timer_start_us(&p->s->restart, 1000000);
        return;
    }
    if (++p->n_started == p->s->n_loops)
        storage_node_serve(p);
}

static void identity_load(struct storage_process *p)
{
    struct sim_disk *d = &p->s->disk;
    struct err err = { 0 };
    int rc;

    if (d->identity_len == 0) { /* a new data directory */
        char text[IDENTITY_TEXT_MAX];

        env_random(&p->s->host->proc->env, p->identity.incarnation, IDENTITY_ID_BYTES);
        d->identity_len = identity_print(text, p->identity.incarnation,
                                         p->identity.cluster_id, 0, false);
        memcpy(d->identity, text, d->identity_len);
        return;
    }
    rc = identity_parse((const char *)d->identity, d->identity_len, &p->identity, &err);
    assert(rc == 0);
}

void storage_node_start(struct sim_storage *s)
{
    struct storage_config config = {
        .env = &s->host->proc->env,
        .disk = &s->disk.disk,
        .key = s->key,
        .version = "sim",
        .host = s->name,
        .rack = "",
        .data_dir = "/data",
        .addresses = s->addrs,
        .n_addresses = 1,
        .reserve_bytes = 64 << 10,
        .files_max = 24,
        .boot = s->boot,
        .n_loops = s->n_loops,
        .journal_bytes = s->journal_bytes,
        .mutant = s->mutant,
    };
    struct generations_file none = { 0 };
    struct storage_process *p;
    struct proc *before;
    int rc;

    s->host->power = true;
    net_host_reachable(s->host, true);
    net_host_is_back(s->host);
    proc_start(s->host->proc);
    before = proc_enter(s->host->proc);
    p = s->process = calloc(1, sizeof(*p));
    assert(p != NULL);
    p->s = s;
    identity_load(p);
    memcpy(s->host->incarnation, p->identity.incarnation, sizeof(s->host->incarnation));
    generations_begin(&p->generations, s->has_generations ? &s->generations_saved : &none,
                      s->boot);
    generations_save(p);
    config.identity = &p->identity;
    config.revoked = &p->revoked;
    config.generations = &p->generations;
    config.handoff = on_handoff;
    config.handoff_arg = p;
    config.damaged = on_damaged;
    config.damaged_arg = p;
    for (unsigned i = 0; i < s->n_loops; i++) {
        config.loop = i;
        rc = storage_open(&config, &p->loops[i]);
        assert(rc == 0);
    }
    for (unsigned i = 0; i < s->n_loops; i++)
        storage_start(p->loops[i], on_storage_started, p);
    proc_leave(before);
    s->host->read_fd = sim_disk_read_fd;
    s->host->read_fd_arg = &s->disk;
    s->stable_life = s->host->proc->life;
    env_timer_init(&s->stable_timer, on_stable_timer);
    env_timer_init(&s->restart, on_restart);
    world_timer_start_us(&s->stable_timer, (uint64_t)s->uncommitted_ms * 1000);
}

void storage_node_kill(struct sim_storage *s, bool power)
{
    if (power) {
        s->host->power = false;
        net_host_reachable(s->host, false);
    }
    sim_disk_proc_died(&s->disk); /* first, because it writes from the network's memory */
    net_host_died(s->host, 0);
    timers_stop(&world_clock.world.timers, &s->stable_timer);
    timers_stop(&world_clock.world.timers, &s->restart);
    sim_kv_proc_died(s->kv);
    proc_kill(s->host->proc);
    s->process = NULL;
    if (power) {
        sim_kv_power_cut(s->kv);
        sim_disk_power_cut(&s->disk);
        s->boot++;
    }
}

void storage_node_wipe(struct sim_storage *s, bool keep)
{
    assert(!s->host->proc->alive);
    if (keep)
        s->old = (struct sim_data){ .here = true,
                                    .generations_saved = s->generations_saved,
                                    .has_generations = s->has_generations,
                                    .kv = s->kv };
    sim_disk_wipe(&s->disk, keep ? &s->old.disk : NULL);
    s->kv = sim_kv_new(s->host->proc);
    s->has_generations = false;
}

void storage_node_swap(struct sim_storage *s)
{
    struct sim_data now = { .here = true,
                            .generations_saved = s->generations_saved,
                            .has_generations = s->has_generations,
                            .kv = s->kv };

    assert(!s->host->proc->alive && s->old.here);
    sim_disk_swap(&s->disk, &s->old.disk);
    s->generations_saved = s->old.generations_saved;
    s->has_generations = s->old.has_generations;
    s->kv = s->old.kv;
    s->old.generations_saved = now.generations_saved;
    s->old.has_generations = now.has_generations;
    s->old.kv = now.kv;
}

void storage_node_added(struct sim_storage *s, const uint8_t *msg, size_t len)
{
    Rozo__AdStorageAddResp *resp = rozo__ad_storage_add_resp__unpack(NULL, len, msg);

    assert(resp != NULL && resp->storage != NULL && resp->storage->id != 0);
    s->id = resp->storage->id;
    rozo__ad_storage_add_resp__free_unpacked(resp, NULL);
}

bool storage_node_is_rebuilt(const struct sim_storage *s)
{
    return s->process != NULL && identity_is_rebuilt(&s->process->identity);
}

bool storage_node_has_fenced(const struct sim_storage *s, uint64_t session)
{
    return s->process != NULL && revoked_sessions_have(&s->process->revoked, session);
}

bool storage_node_is_up(const struct sim_storage *s)
{
    return s->host->power && s->host->proc->alive;
}

/* ---- all daemons ---- */

static struct capability_key *key_new(void)
{
    struct capability_key *key;
    int rc = capability_key_new(node_key, 0, &key);

    assert(rc == 0);
    return key;
}

void servers_begin(unsigned n_storages, unsigned n_loops, uint64_t disk_bytes)
{
    memset(&servers, 0, sizeof(servers));
    servers.n_storages = n_storages;
    metas_begin();
    for (unsigned i = 0; i < n_storages; i++) {
        struct sim_storage *s = &servers.storages[i];

        snprintf(s->name, sizeof(s->name), "storage%u", i + 1);
        snprintf(s->addr, sizeof(s->addr), "s%u:1", i + 1);
        s->addrs[0] = s->addr;
        s->index = i;
        s->n_loops = n_loops;
        s->boot = 1000 + i * 100;
        s->uncommitted_ms = 7000;
        s->journal_bytes = 8 << 20;
        s->key = key_new();
        s->host = net_add_host(proc_new(s->name));
        s->kv = sim_kv_new(s->host->proc);
        sim_disk_init(&s->disk, s->host->proc, disk_bytes / PAGE);
    }
}

void servers_end(void)
{
    metas_end();
    for (unsigned i = 0; i < servers.n_storages; i++)
        capability_key_free(servers.storages[i].key);
}
