/*
 * run.c - one run: programs on several mounts, faults, and checks during the run and
 * after it.
 *
 * In:     a seed. Out: a message and the end of the process if a check fails.
 * Keeps:  the seed decides everything.
 */
#include "tests/sim/cluster/run.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/proto/rozo.pb-c.h"

#include "common/base/bytes.h"
#include "tests/sim/cluster/checks/healed.h"
#include "tests/sim/cluster/checks/revived.h"
#include "tests/sim/cluster/state.h"
#include "tests/sim/cluster/world/ask.h"
#include "tests/sim/cluster/world/quorum_laws.h"

struct run *run;
static bool records_are_believed;  /* RUN_MUTANT_NO_CRC */
static bool quorum_is_of_those_up; /* RUN_MUTANT_QUORUM_UP */

/* ---- mutants ---- */

uint32_t __real_record_crc(const uint8_t *p, const void *overhang, size_t overhang_bytes,
                           const void *body, size_t body_bytes);
uint32_t __wrap_record_crc(const uint8_t *p, const void *overhang, size_t overhang_bytes,
                           const void *body, size_t body_bytes);

/* Returns the record's own crc with the mutant.
 * Sealing of records does not pass through here. */
uint32_t __wrap_record_crc(const uint8_t *p, const void *overhang, size_t overhang_bytes,
                           const void *body, size_t body_bytes)
{
    if (records_are_believed)
        return get_le32(p);
    return __real_record_crc(p, overhang, overhang_bytes, body, body_bytes);
}

unsigned __real_quorum_write(const struct codec_layout *layout, unsigned c);
unsigned __wrap_quorum_write(const struct codec_layout *layout, unsigned c);

/* Makes the quorum smaller with the mutant: only storages that are up count. */
unsigned __wrap_quorum_write(const struct codec_layout *layout, unsigned c)
{
    unsigned n_up = 0;

    for (unsigned i = 0; i < servers.n_storages; i++)
        n_up += storage_node_is_up(&servers.storages[i]);
    if (quorum_is_of_those_up && n_up < c)
        return quorum_min(layout->k, n_up < layout->k ? layout->k : n_up);
    if (run != NULL && run->config.old_acks && run->n_grown == 0)
        return quorum_min(layout->k, c); /* as in builds with smaller quorums */
    return __real_quorum_write(layout, c);
}

/* ---- messages ---- */

void say(const char *fmt, ...)
{
    va_list args;

    if (!run->config.verbose)
        return;
    fprintf(stderr, "%10.4f ", (double)world_clock.now_ns / 1e9);
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fprintf(stderr, "\n");
}

void wrong(const char *fmt, ...)
{
    va_list args;

    fflush(stdout);
    fprintf(stderr, "VIOLATION at %.4f s, after %u operations: ",
            (double)world_clock.now_ns / 1e9, run->result.n_ops);
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fprintf(stderr, "\n");
    if (run->looked_at.ino != 0 && metas_serve())
        healed_dump(run->looked_at.ino, run->looked_at.block);
    abort();
}

void expect(const char *words_or_null, const struct program *p)
{
    if (words_or_null != NULL && p->file != NOBODY && model.bad_file == p->file) {
        run->looked_at.ino = model.files[p->file].ino;
        run->looked_at.block = model.bad_unit * UNIT / BLOCK;
    }
    if (words_or_null != NULL)
        wrong("%s (%s)", words_or_null, p->client->host->proc->name);
}

/* ---- creation of the cluster ---- */

static void cluster_make(bool sync_export)
{
    Rozo__AdExportCreateReq create = ROZO__AD_EXPORT_CREATE_REQ__INIT;
    struct answer a;

    admin_begin();
    for (unsigned i = 0; i < metas.n; i++)
        meta_start(&metas.list[i]);
    for (unsigned i = 0; i < servers.n_storages; i++)
        storage_node_start(&servers.storages[i]);
    while (!metas_serve())
        world_step();
    world_run_until(world_clock.now_ns + 1000000000);
    for (unsigned i = 0; i < servers.n_storages - run->config.n_more; i++) {
        Rozo__AdStorageAddReq add = ROZO__AD_STORAGE_ADD_REQ__INIT;
        char *addr = servers.storages[i].addr;

        add.n_addresses = 1;
        add.addresses = &addr;
        metas_ask(ROZO__OP__AD_STORAGE_ADD, &add.base, &a);
        if (a.rc != 0 || a.status != ROZO__STATUS__OK)
            wrong("%s is not admitted: %d", servers.storages[i].name,
                  a.rc != 0 ? a.rc : (int)a.status);
        storage_node_added(&servers.storages[i], a.msg, a.msg_len);
        answer_free(&a);
    }
    create.name = (char *)(uintptr_t) "main";
    create.layout = run->config.layout;
    create.block_bytes = BLOCK;
    create.sync = sync_export;
    create.inline_max = run->config.inlined ? INLINE_BYTES : 0;
    metas_ask(ROZO__OP__AD_EXPORT_CREATE, &create.base, &a);
    if (a.rc != 0 || a.status != ROZO__STATUS__OK)
        wrong("the export is not created: %d", a.rc != 0 ? a.rc : (int)a.status);
    answer_free(&a);
}

/* ---- data at storages ---- */

static void on_write_arrives(const struct sim_client *c, unsigned life,
                             const struct sim_storage *s, const struct rpc_call *call)
{
    struct proc *before = proc_enter(&world_clock.world);
    Rozo__StWriteReq *req = rozo__st_write_req__unpack(NULL, call->msg_len, call->msg);
    struct file_id id;

    if (req != NULL) {
        file_id_get(req->ref->file_id.data, &id);
        model_landed(id.ino, (int)c->index, life, s->index, req->first_block,
                     req->first_block + req->n_records);
    }
    rozo__st_write_req__free_unpacked(req, NULL);
    proc_leave(before);
}

/* Counts transfers of small files' data to exportd, and from there to storages. */
static void inline_count(const Rozo__MdWroteReq *req)
{
    int file = model_file_by_ino(req->ino);
    bool keeps = req->inline_version != 0;

    if (file == NOBODY)
        return;
    run->result.n_inlined += keeps && !model.files[file].inlined;
    run->result.n_inlined_again += keeps && model.files[file].inlined;
    run->result.n_outgrown += req->has_data && model.files[file].inlined;
    model.files[file].inlined = keeps || (model.files[file].inlined && !req->has_data);
}

/* Records that exportd got all data of a small file: as safe as on all storages. */
static void on_data_arrives(const struct sim_client *c, unsigned life,
                            const struct rpc_call *call)
{
    struct proc *before = proc_enter(&world_clock.world);
    Rozo__MdWroteReq *req = rozo__md_wrote_req__unpack(NULL, call->msg_len, call->msg);

    for (unsigned i = 0;
         req != NULL && req->inline_version != 0 && i < servers.n_storages; i++)
        model_landed(req->ino, (int)c->index, life, i, 0,
                     (req->inline_data.len + BLOCK - 1) / BLOCK);
    if (req != NULL)
        inline_count(req);
    rozo__md_wrote_req__free_unpacked(req, NULL);
    proc_leave(before);
}

static void on_request(const struct host *from, unsigned from_life, const struct host *to,
                       const struct rpc_call *call)
{
    const struct sim_client *c = NULL;

    if (call->role != RPC_ROLE_CLIENT) {
        revived_note(from, to, call);
        return;
    }
    for (unsigned i = 0; i < run->n_clients; i++) {
        if (run->clients[i].host == from &&
            (call->op == ROZO__OP__ST_WRITE || call->op == ROZO__OP__MD_WROTE))
            c = &run->clients[i];
    }
    run->result.n_xattrs_asked +=
        call->op == ROZO__OP__MD_GETXATTR || call->op == ROZO__OP__MD_LISTXATTR;
    if (c != NULL && call->op == ROZO__OP__MD_WROTE)
        on_data_arrives(c, from_life, call);
    for (unsigned i = 0; c != NULL && i < servers.n_storages; i++) {
        const struct sim_storage *s = &servers.storages[i];

        if (s->host == to && !storage_node_has_fenced(s, call->session))
            on_write_arrives(c, from_life, s, call);
    }
}

/* A fail-over: what exportd knew in memory is gone, as after its death. */
static void on_meta_started(uint64_t lost_ns)
{
    say("exportd starts on another member");
    if (lost_ns != 0) {
        say("changes since %.4f s are lost", (double)lost_ns / 1e9);
        exportd_is_cut(lost_ns);
    }
    run->exportd_started_ns = world_clock.now_ns;
    run->exportd_deaths++;
    run->result.n_fail_overs++;
}

/* ---- the run ---- */

static void run_all(void)
{
    const struct codec *codec = codec_get(CODEC_MOJETTE, run->config.layout, BLOCK);

    run->n = codec_n(codec);
    run->k = codec_k(codec);
    model.k = run->k;
    model.q = run->config.old_acks
                  ? run->k
                  : __real_quorum_write(codec_layout(run->config.layout), 0);
    net.on_request = on_request;
    run->n_clients = run->config.n_clients != 0 ? run->config.n_clients : CLIENTS;
    faults_begin();
    servers_begin(run->config.n_storages, 1 + (unsigned)world_below(2),
                  (uint64_t)1 << 40);
    if (run->config.n_metas > 1)
        metas_begin_quorum(run->config.n_metas, run->config.has_witness);
    metas.is_lazy = run->config.is_lazy;
    metas.token_limit = run->config.token_limit;
    metas.mutants = run->config.mutant;
    for (unsigned i = 0; i < servers.n_storages; i++)
        servers.storages[i].mutant = run->config.mutant & RUN_MUTANTS_OF_STORAGED;
    for (unsigned i = 0; i < servers.n_storages; i++)
        servers.storages[i].no_healer = !run->config.heals;
    for (unsigned i = 0; i < servers.n_storages; i++)
        servers.storages[i].disk.directories = run->config.directories;
    if ((run->config.mutant & RUN_MUTANT_NO_STRAYS) != 0)
        net.no_lists_for = metas.list[0].host;
    programs_make();
    cluster_make(world_chance(300000));
    metas.started = on_meta_started;
    for (unsigned i = 0; i < run->n_clients; i++)
        client_comes(&run->clients[i]);
    faults_start();
    while (run->result.n_ops < run->config.n_ops) {
        world_step();
        holders_check();
    }
    say("the end begins");
    faults_end();
    finish_programs();
    check_growth();
    if (run->config.heals)
        check_healing();
    check_everything();
    check_members();
    check_memory();
}

static void kernels_count(void)
{
    for (unsigned i = 0; i < CLIENTS + 1; i++) {
        struct kernel_counts c = { 0 };

        client_counts(&run->clients[i], &c);
        run->result.n_kernel_names += c.n_names;
        run->result.n_kernel_attrs += c.n_attrs;
        run->result.n_kernel_pages += c.n_pages;
        run->result.n_kernel_lists += c.n_lists;
        run->result.n_kernel_invalidated += c.n_invalidated;
        run->result.n_kernel_forgotten += c.n_forgotten;
        run->result.n_kernel_overtaken += c.n_overtaken;
        run->result.n_kernel_beside += c.n_beside;
    }
}

void run_once(const struct run_config *config, struct run_result *out)
{
    world_begin(config->seed);
    net_begin();
    model_begin(config->strict);
    xattrs_begin();
    revived_begin();
    model.gives_up = (config->faults & (FAULT_FULL | FAULT_ERRORS)) != 0;
    run = calloc(1, sizeof(*run));
    assert(run != NULL);
    run->config = *config;
    net.tells = config->tells;
    net.drops_missed = (config->mutant & RUN_MUTANT_NO_MISSED) != 0;
    records_are_believed = (config->mutant & RUN_MUTANT_NO_CRC) != 0;
    quorum_is_of_those_up = (config->mutant & RUN_MUTANT_QUORUM_UP) != 0;
    run_all();
    run->result.n_events = world_clock.n_events;
    run->result.virtual_ms = world_now_ms();
    run->result.trace = world_clock.trace;
    run->result.n_units = model.n_units_checked;
    run->result.n_names = model.n_names_checked;
    for (unsigned i = 0; i < servers.n_storages; i++) {
        run->result.n_doubts += servers.storages[i].n_doubts;
        run->result.n_doubts_ended += servers.storages[i].n_doubts_ended;
        run->result.n_doubtful_reads += servers.storages[i].n_doubtful_reads;
    }
    kernels_count();
    run->result.n_behind = metas.n_behind;
    run->result.n_copies = metas.n_copies;
    run->result.n_in_doubt = metas.n_in_doubt;
    run->result.n_counted = metas.losses.n_counted;
    run->result.n_lost = metas.losses.n_lost;
    if (metas_are_quorum())
        quorum_law_count(metas.laws, &run->result.n_witness_terms,
                         &run->result.n_witness_fed);
    *out = run->result;
    servers_end();
    model_end();
    world_end();
    run = NULL;
}
