/*
 * metas.c - exportds: one alone, or members of a quorum.
 *
 * In:     the run. Out: cores, each in its process.
 * Keeps:  a member starts only with the contents of its disk and its kv.
 */
#include "tests/sim/cluster/world/metas.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/proto/rozo.pb-c.h"

#include "common/base/bytes.h"
#include "common/base/list.h"
#include "common/group/rpc_group.h"
#include "exportd/quorum/member_port.h"
#include "exportd/store/key.h"
#include "tests/sim/cluster/state.h"
#include "tests/sim/cluster/world/hasty_kv.h"
#include "tests/sim/cluster/world/kv.h"
#include "tests/sim/cluster/world/quorum_laws.h"
#include "tests/sim/cluster/world/servers.h"

enum {
    LEASE_MS = 5000,
    CACHE_BYTES = 64 << 10,
    MEMBER_ID = 100,       /* raft id of the first one */
    LOG_SEGMENT = 2 << 20, /* bytes */
    RESTART_US = 1000000,
    CLOCK_PPM_MAX = 500, /* two clocks differ by 1e-3 at most */
};

struct metas metas;

/* A killed process frees no memory that the shared libraft has allocated. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libraft.so\n";
}

/* The daemon of a member while it runs, in its memory. */
struct meta_process {
    struct sim_meta *e;
    struct kv_quorum *kv;
    struct kv_quorum_hooks kv_hooks;
    struct member *member;
    struct member_port port;
    struct hasty_kv hasty; /* kv of the leader, above `kv` */
    struct leader *leader;
    bool has_core;   /* the leader knows that it leads */
    bool is_started; /* log and vote are read: it takes part, or copies a store */
    uint64_t led;    /* number of the last lead, of all members */
    uint64_t term;   /* ... and its term */
    struct env_mail *mail, **mail_last;
    struct env_task mail_task;
    struct err err;
};

/* ---- storages, as exportd reaches them ---- */

static struct rpc_channel *peer_open(void *arg, const char *const *addrs,
                                     unsigned n_addrs)
{
    struct sim_meta *e = arg;

    for (unsigned i = 0; n_addrs > 0 && i < servers.n_storages; i++) {
        if (strcmp(servers.storages[i].addr, addrs[0]) == 0)
            return net_channel_new(e->host, servers.storages[i].host, RPC_ROLE_NODE, NULL,
                                   NULL, NULL);
    }
    return NULL;
}

static void peer_close(void *arg, struct rpc_channel *ch)
{
    (void)arg;
    net_channel_free(ch);
}

static const char *peer_last_error(void *arg, struct rpc_channel *ch)
{
    (void)arg;
    (void)ch;
    return "";
}

static struct exportd_config core_config(struct sim_meta *e)
{
    return (struct exportd_config){
        .peers = { peer_open, peer_close, peer_last_error, e },
        .capabilities = metas.key,
        .cache_max = CACHE_BYTES,
        .lease_ms = LEASE_MS,
        .boot = e->boot, /* a leader takes the losses that its quorum has counted */
        .session_tokens_max = metas.token_limit,
        .grows_first = (metas.mutants & RUN_MUTANT_GROW_FIRST) != 0,
    };
}

/* ---- an exportd that is alone ---- */

static void alone_start(struct sim_meta *e)
{
    struct exportd_config config = core_config(e);
    struct err err = { 0 };
    int rc = exportd_open(&e->host->proc->env, sim_kv_kv(e->kv), &config, &e->x, &err);

    if (rc != 0) {
        fprintf(stderr, "exportd refuses its kv: %s\n", err.text);
        abort();
    }
    e->host->handler = exportd_handle;
    e->host->handler_arg = e->x;
}

/* ---- a member ---- */

static void on_mail_task(struct env_task *task)
{
    struct meta_process *p = container_of(task, struct meta_process, mail_task);

    while (p->mail != NULL) {
        struct env_mail *m = p->mail;

        p->mail = m->next;
        if (p->mail == NULL)
            p->mail_last = &p->mail;
        m->fn(m);
    }
}

static void post(void *arg, struct env_mail *mail)
{
    struct meta_process *p = arg;

    mail->next = NULL;
    *p->mail_last = mail;
    p->mail_last = &mail->next;
    env_post(&p->e->host->proc->env, &p->mail_task);
}

static uint64_t now_ns(void *arg)
{
    const struct sim_meta *e = ((struct meta_process *)arg)->e;

    return e->clock_offset_ns +
           world_clock.now_ns / 1000 * (uint64_t)(1000000 + e->clock_ppm) / 1000;
}

/* Returns the number of losses of power that the quorum has counted. */
static uint64_t losses_counted(const struct meta_process *p)
{
    const uint8_t key = KEY_LOSSES;
    uint64_t counted = 0;
    void *val = NULL;
    size_t len;
    int rc = kv_get(kv_quorum_kv(p->kv), &key, 1, &val, &len);

    assert(rc == -ENOENT || (rc == 0 && len == sizeof(counted)));
    if (rc == 0)
        counted = get_le64(val);
    free(val);
    return counted;
}

static void on_lead(void *arg, uint64_t term)
{
    struct meta_process *p = arg;
    uint64_t counted = losses_counted(p), lost_ns;
    struct proc *before;

    if (p->e->is_witness)
        wrong("%s is a witness, and opens a core", p->e->host->proc->name);
    p->led = ++metas.n_leads;
    p->term = term;
    if (!p->has_core)
        leader_lead(p->leader, term);
    p->has_core = true;
    before = proc_enter(&world_clock.world);
    lost_ns = quorum_law_leads(metas.laws, p->e, term, counted);
    if (metas.started != NULL)
        metas.started(lost_ns);
    proc_leave(before);
}

static void on_confirmed(void *arg)
{
    const struct meta_process *p = arg;

    quorum_law_answers(metas.laws, p->e, p->term);
    if (leader_serves(p->leader) && p->led == metas.n_leads)
        loss_law_told(&metas.losses, p->e, core_losses(leader_core(p->leader)));
}

static void on_depose(void *arg)
{
    struct meta_process *p = arg;

    if ((metas.mutants & RUN_MUTANT_META_STAYS) != 0)
        return;
    leader_depose(p->leader);
    p->has_core = false;
}

static void on_restart(struct env_timer *timer)
{
    struct sim_meta *e = container_of(timer, struct sim_meta, restart);

    meta_kill(e, false);
    meta_start(e);
}

/* Ends the process, soon: its supervisor starts it again. */
static void on_failed(void *arg, int rc, const char *text)
{
    struct meta_process *p = arg;

    if (rc != -EIO && p->e->ill_before_life == 0) {
        fprintf(stderr, "%s ends: %s: %s\n", p->e->host->proc->name, text,
                error_text(rc));
        abort();
    }
    world_timer_start_us(&p->e->restart, RESTART_US);
}

static void on_started(void *arg, int rc)
{
    struct meta_process *p = arg;
    struct member_status s;

    if (rc != 0) {
        on_failed(p, rc, p->err.text);
        return;
    }
    p->is_started = true;
    member_status(p->member, &s);
    if (s.seeding == SEED_NONE || s.seeding == SEED_BEHIND ||
        p->e->ill_before_life != 0 || p->e->copies_after_loss)
        return;
    fprintf(stderr, "%s has lost what it had synced\n", p->e->host->proc->name);
    abort();
}

static struct rpc_channel *member_channel_open(void *arg, const char *address)
{
    struct meta_process *p = arg;
    unsigned to = (unsigned)(address[1] - '0');

    assert(to < metas.n);
    return net_channel_new(p->e->host, metas.list[to].host, RPC_ROLE_NODE, NULL, NULL,
                           NULL);
}

static void member_channel_close(void *arg, struct rpc_channel *ch)
{
    (void)arg;
    net_channel_close(ch);
}

static void on_call(void *arg, struct rpc_call *call)
{
    struct meta_process *p = arg;

    if (call->op == ROZO__OP__RF_STEP || call->op == ROZO__OP__RF_SEED ||
        call->op == ROZO__OP__RF_FETCH || call->op == ROZO__OP__RF_JOIN ||
        call->op == ROZO__OP__RF_TELL)
        member_handle(p->member, call);
    else
        leader_handle(p->leader, call);
}

static void must(int rc, const struct meta_process *p)
{
    if (rc == 0)
        return;
    fprintf(stderr, "%s does not start: %s\n", p->e->host->proc->name, p->err.text);
    abort();
}

static void member_begin(struct sim_meta *e)
{
    struct env *env = &e->host->proc->env;
    struct meta_process *p = e->p = calloc(1, sizeof(*p));
    struct kv_quorum_config kv = {
        .env = env,
        .below = sim_kv_kv(e->kv),
        .hooks = &p->kv_hooks,
        .is_witness = e->is_witness && (metas.mutants & RUN_MUTANT_WITNESS_KEEPS) == 0
    };
    struct leader_config leader = {
        .env = env, .exportd = core_config(e), .failed = on_failed, .arg = p
    };
    struct member_config member = {
        .env = env,
        .disk = &e->disk.disk,
        .peers = { member_channel_open, member_channel_close, p },
        .id = MEMBER_ID + e->index,
        .now_ns = now_ns,
        .now_arg = p,
        .keep_bytes = META_LOG_KEPT,
        .segment_bytes = LOG_SEGMENT,
        .sources = &metas.members,
        .is_lazy = metas.is_lazy,
        .is_witness = e->is_witness && (metas.mutants & RUN_MUTANT_WITNESS_SERVES) == 0,
        .boot = e->boot,
    };

    p->e = e;
    p->mail_last = &p->mail;
    p->mail_task.fn = on_mail_task;
    p->port = (struct member_port){ .post_member = post,
                                    .post_core = post,
                                    .post_arg = p,
                                    .now_ns = now_ns,
                                    .now_arg = p,
                                    .lead = on_lead,
                                    .depose = on_depose,
                                    .failed = on_failed,
                                    .arg = p };
    p->kv_hooks = member_port_kv_hooks(&p->port);
    must(kv_quorum_open(&kv, &p->kv, &p->err), p);
    member.hooks = member_port_member_hooks(&p->port);
    member.place = kv_quorum_place(p->kv);
    must(member_open(&member, &p->member), p);
    hasty_kv_init(&p->hasty, env, kv_quorum_kv(p->kv));
    p->hasty.is_early = (metas.mutants & RUN_MUTANT_META_EARLY) != 0;
    p->hasty.confirms_all = (metas.mutants & RUN_MUTANT_META_LEASE) != 0;
    p->hasty.confirmed = on_confirmed;
    p->hasty.arg = p;
    e->disk.lies = (metas.mutants & RUN_MUTANT_META_SYNC) != 0   ? ""
                   : (metas.mutants & RUN_MUTANT_META_VOTE) != 0 ? "vote"
                                                                 : NULL;
    leader.kv = &p->hasty.kv;
    must(leader_open(&leader, &p->leader), p);
    p->port.kv = p->kv;
    p->port.member = p->member;
    e->host->handler = on_call;
    e->host->handler_arg = p;
    member_start(p->member, &p->err, on_started, p);
}

/* ---- starts and ends ---- */

void meta_start(struct sim_meta *e)
{
    struct proc *before;

    e->host->power = true;
    net_host_reachable(e->host, true);
    net_host_is_back(e->host);
    proc_start(e->host->proc);
    before = proc_enter(e->host->proc);
    if (metas_are_quorum())
        member_begin(e);
    else
        alone_start(e);
    proc_leave(before);
}

void meta_kill(struct sim_meta *e, bool power)
{
    if (power) {
        e->host->power = false;
        net_host_reachable(e->host, false);
    }
    if (metas_are_quorum()) {
        sim_disk_proc_died(&e->disk);
        timers_stop(&world_clock.world.timers, &e->restart);
    }
    net_host_died(e->host, 0);
    sim_kv_proc_died(e->kv);
    proc_kill(e->host->proc);
    e->x = NULL;
    e->p = NULL;
    e->in_doubt = NULL;
    if (!power)
        return;
    e->boot++;
    sim_kv_power_cut(e->kv);
    if (metas_are_quorum()) {
        sim_disk_power_cut(&e->disk);
        e->clock_offset_ns = world_below(1000000000000); /* the boot sets it to zero */
        loss_law_power(&metas.losses, e);
    }
}

/* ---- the one that leads ---- */

const struct exportd *meta_core(const struct sim_meta *e)
{
    if (!e->host->power || !e->host->proc->alive)
        return NULL;
    if (e->p != NULL) /* an earlier leader may hang, and its tables are of then */
        return e->p->led == metas.n_leads ? leader_core(e->p->leader) : NULL;
    return e->x != NULL && exportd_is_ready(e->x) == 1 ? e->x : NULL;
}

struct sim_meta *meta_leader(void)
{
    struct sim_meta *best = &metas.list[0];

    for (unsigned i = 0; metas_are_quorum() && i < metas.n; i++) {
        struct sim_meta *e = &metas.list[i];

        if (e->p != NULL && (best->p == NULL || (leader_serves(e->p->leader) &&
                                                 (!leader_serves(best->p->leader) ||
                                                  e->p->led > best->p->led))))
            best = e;
    }
    return best;
}

bool metas_serve(void)
{
    return meta_core(meta_leader()) != NULL;
}

struct sim_meta *meta_current(void)
{
    for (unsigned i = 0; i < metas.n; i++) {
        if (metas.list[i].host->proc == proc_current)
            return &metas.list[i];
    }
    return NULL;
}

bool meta_status(const struct sim_meta *e, struct member_status *out)
{
    if (e->p == NULL || !e->p->is_started)
        return false;
    member_status(e->p->member, out);
    return true;
}

uint64_t meta_log_term(const struct sim_meta *e, uint64_t index)
{
    return e->p == NULL ? 0 : member_log_term(e->p->member, index);
}

bool metas_are_whole(void)
{
    struct member_status s[METAS_MAX];
    uint64_t commit = 0;

    for (unsigned i = 0; i < metas.n; i++) {
        if (!meta_status(&metas.list[i], &s[i]) || s[i].seeding != SEED_NONE ||
            metas.losses.members[i].is_uncertain)
            return false;
        commit = s[i].commit > commit ? s[i].commit : commit;
    }
    for (unsigned i = 0; i < metas.n; i++) {
        if (s[i].last < commit)
            return false;
    }
    return metas_serve();
}

bool meta_transfer(struct sim_meta *e)
{
    struct proc *before;
    bool begins;

    if (e->p == NULL || e->host->proc->hung)
        return false;
    before = proc_enter(e->host->proc);
    begins = member_transfer(e->p->member, 0) == 0;
    proc_leave(before);
    return begins;
}

bool metas_have_synced_since(uint64_t ns)
{
    return metas_stable_ns() >= ns;
}

uint64_t metas_stable_ns(void)
{
    return metas_are_quorum() ? quorum_stable_ns(metas.laws)
                              : sim_kv_synced_ns(metas.list[0].kv);
}

unsigned metas_n_strays(void)
{
    unsigned n = 0;

    for (unsigned i = 0; i < metas.n; i++)
        n += net_n_strays(metas.list[i].host);
    return n;
}

void metas_ask(uint16_t op, const ProtobufCMessage *msg, struct answer *out)
{
    for (;;) {
        admin_ask(meta_leader()->host, op, msg, out);
        if (!metas_are_quorum() ||
            (out->rc == 0 && out->status != ROZO__STATUS__NOT_LEADER))
            return;
        answer_free(out);
        world_run_until(world_clock.now_ns + 10000000);
    }
}

/* ---- clients ---- */

/* Channel of a client to one member, in the client's memory. */
struct member_link {
    struct rpc_group **group;
    unsigned index;
    void (*broke)(void *arg);
    void *arg;
};

static void on_link_broke(void *arg)
{
    const struct member_link *l = arg;

    if (*l->group != NULL && rpc_group_leads(*l->group, l->index))
        l->broke(l->arg);
}

struct rpc_channel *metas_channel_new(struct host *from, void (*broke)(void *arg),
                                      void *arg, struct rpc_group **group)
{
    struct rpc_channel *members[METAS_MAX];
    struct rpc_group_config config = {
        .members = members, .n_members = metas.n, .moved = broke, .arg = arg
    };

    *group = NULL;
    if (!metas_are_quorum())
        return net_channel_new(from, metas.list[0].host, RPC_ROLE_CLIENT, NULL, broke,
                               arg);
    for (unsigned i = 0; i < metas.n; i++) {
        struct member_link *l = malloc(sizeof(*l));

        assert(l != NULL);
        *l = (struct member_link){ group, i, broke, arg };
        members[i] = net_channel_new(from, metas.list[i].host, RPC_ROLE_CLIENT, NULL,
                                     on_link_broke, l);
    }
    if (rpc_group_new(&from->proc->env, &config, group) != 0)
        abort();
    return rpc_group_channel(*group);
}

void metas_channel_set_session(struct rpc_channel *ch, struct rpc_group *group,
                               uint64_t session)
{
    if (group == NULL)
        net_channel_set_session(ch, session);
    else
        rpc_group_set_session(group, session);
}

/* ---- all of them ---- */

void metas_begin(void)
{
    static const uint8_t node_key[CAPABILITY_NODE_KEY_BYTES] = SIM_NODE_KEY;
    struct sim_meta *e = &metas.list[0];

    memset(&metas, 0, sizeof(metas));
    metas.n = 1;
    e->host = net_add_host(proc_new("exportd"));
    if (capability_key_new(node_key, 0, &metas.key) != 0)
        abort();
    e->kv = sim_kv_new(e->host->proc);
}

static void on_begun(struct kv_done *done, int rc)
{
    assert(rc == 0);
    done->fn = NULL;
}

static void witness_choose(struct raft_config *members)
{
    static const unsigned more_entries[] = { 0, 20, 200, 1000000 };
    struct sim_meta *e = &metas.list[world_below(metas.n)];

    e->is_witness = true;
    metas.witness = e;
    metas.witness_entries_max = metas.log_entries_max + more_entries[world_below(4)];
    sim_kv_is_of_witness(e->kv);
    raft_config_set_witness(members, MEMBER_ID + e->index);
}

/* Puts the list of members into a store. */
static void store_begin(struct sim_meta *e, const struct raft_config *members)
{
    struct kv_done put = { .fn = on_begun }, synced = { .fn = on_begun };
    struct proc *before;

    proc_start(e->host->proc);
    before = proc_enter(e->host->proc);
    kv_quorum_begin(sim_kv_kv(e->kv), members, &put);
    kv_sync(sim_kv_kv(e->kv), &synced);
    proc_leave(before);
    while (put.fn != NULL || synced.fn != NULL)
        world_step();
    proc_kill(e->host->proc);
}

void metas_begin_quorum(unsigned n, bool has_witness)
{
    static const unsigned log_entries[] = { 3, 6, 20, 100, 1000000 };
    struct raft_config *members = &metas.members;

    assert(n > 1 && n <= METAS_MAX && metas.n == 1);
    metas.n = n;
    metas.laws = quorum_laws_new();
    metas.log_entries_max =
        log_entries[world_below(sizeof(log_entries) / sizeof(log_entries[0]))];
    for (unsigned i = 0; i < n; i++) {
        struct sim_meta *e = &metas.list[i];
        char name[24], address[8];

        snprintf(name, sizeof(name), "exportd%u", i + 1);
        snprintf(address, sizeof(address), "m%u", i);
        if (i > 0) {
            e->host = net_add_host(proc_new(name));
            e->kv = sim_kv_new(e->host->proc);
        }
        e->index = i;
        e->boot = 1;
        e->clock_offset_ns = world_below(1000000000000);
        e->clock_ppm = (int64_t)world_below(2 * CLOCK_PPM_MAX + 1) - CLOCK_PPM_MAX;
        env_timer_init(&e->restart, on_restart);
        sim_disk_init(&e->disk, e->host->proc, (UINT64_C(1) << 40) / PAGE);
        e->disk.directories = true; /* a log is one directory, removed as one */
        if (raft_config_set(members, MEMBER_ID + i, RAFT_ROLE_VOTER, address) != 0)
            abort();
    }
    if (has_witness)
        witness_choose(members);
    for (unsigned i = 0; i < n; i++)
        store_begin(&metas.list[i], members);
}

void metas_end(void)
{
    capability_key_free(metas.key);
}
