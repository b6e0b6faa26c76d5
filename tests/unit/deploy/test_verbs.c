/*
 * test_verbs.c - rozo fsck, rebuild, scrub, storage replace and lost, export create, with
 * daemons that a thread plays: real connections, made-up answers.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/proto/rozo.pb-c.h"

#include "common/rpc/rpc_tcp.h"
#include "common/wire/record.h"
#include "deploy/verbs/verbs.h"
#include "tests/unit/unit.h"

enum { STORAGES = 5, FILES_MAX = 32, LISTED_MAX = 32, PAGE = 2, HELD_MAX = 16 };

struct fake_file {
    uint64_t ino;
    uint32_t generation;
    uint32_t storages[4];
    bool has_data;
    const char *path; /* NULL: the inode has no name */
    bool late;        /* created after the listing: found only by its number */
    bool gone;        /* removed after the listing */
    bool moves;       /* exportd takes its later distribution after the listing */
};

struct fake_listed {
    uint64_t ino;
    uint32_t generation, projections, damaged;
    const uint32_t *later; /* 4 storages of a later distribution in the header, or NULL */
};

struct fake_daemon {
    uint32_t id; /* 0: exportd */
    struct rpc_server *server;
    char addr[32];
    bool up, lost;
    bool silent; /* takes requests and never answers */
    bool old;    /* knows no requests of healing */
    struct fake_listed listed[LISTED_MAX];
    unsigned n_listed, n_removed, n_checked;
    uint64_t removed[LISTED_MAX], checked[LISTED_MAX];
    Rozo__StHealthResp health;
    Rozo__StHealReq order;
    unsigned n_orders;
};

static struct fake_daemon daemons[STORAGES + 1];
static struct fake_file files[FILES_MAX];
static unsigned n_files;
static unsigned n_busy; /* listings to answer with "another one is running" */
static uint64_t next_ino;
static uint32_t replaced_id;
static bool folds; /* exportd knows AdExportCreateReq.fold */
static char refusal[64];

static uv_loop_t loop;
static struct env_uv env;
static uv_async_t stop;
static struct rpc_keys keys;
static pthread_t thread;
static struct rpc_call *held[HELD_MAX];
static unsigned n_held, n_closed;
static char key_path[] = "/tmp/rozo-test-verbs-XXXXXX";

/* ---- the daemons ---- */

static void answer(struct rpc_call *call, unsigned status, const ProtobufCMessage *msg)
{
    size_t len = msg == NULL ? 0 : protobuf_c_message_get_packed_size(msg);
    uint8_t *packed = malloc(len + 1);

    if (msg != NULL)
        protobuf_c_message_pack(msg, packed);
    rpc_reply(call, (uint16_t)status, packed, len, NULL, 0, NULL, NULL);
    free(packed);
}

static void answer_status(struct rpc_call *call)
{
    Rozo__AdStatusResp resp = ROZO__AD_STATUS_RESP__INIT;
    Rozo__Storage storages[STORAGES], *list[STORAGES];
    Rozo__Export export = ROZO__EXPORT__INIT, *exports[1] = { &export };
    char *addrs[STORAGES];

    for (unsigned i = 0; i < STORAGES; i++) {
        rozo__storage__init(&storages[i]);
        storages[i].id = i + 1;
        storages[i].up = daemons[i + 1].up;
        storages[i].lost = daemons[i + 1].lost;
        storages[i].error = (char *)(uintptr_t)(daemons[i + 1].up ? "" : "Host is down");
        addrs[i] = daemons[i + 1].addr;
        storages[i].n_addresses = 1;
        storages[i].addresses = &addrs[i];
        list[i] = &storages[i];
    }
    export.id = 1;
    export.name = (char *)(uintptr_t) "main";
    resp.n_storages = STORAGES;
    resp.storages = list;
    resp.n_exports = 1;
    resp.exports = exports;
    answer(call, ROZO__STATUS__OK, &resp.base);
}

struct inode_parts {
    Rozo__AdInodesResp__Inode msg, *list;
    Rozo__FileRef ref;
    uint8_t id[FILE_ID_BYTES];
};

static void inode_fill(struct inode_parts *p, struct fake_file *file, bool path,
                       bool only)
{
    struct file_id id = { 1, file->generation, file->ino };

    rozo__ad_inodes_resp__inode__init(&p->msg);
    rozo__file_ref__init(&p->ref);
    file_id_put(p->id, &id);
    p->ref.file_id = (ProtobufCBinaryData){ sizeof(p->id), p->id };
    p->ref.codec = 1;
    p->ref.block_bytes = 8192;
    p->ref.n_storages = 4;
    p->ref.storages = file->storages;
    p->ref.dist_generation = file->moves && only;
    p->msg.ref = &p->ref;
    p->msg.has_data = file->has_data;
    if (path && file->path != NULL)
        p->msg.path = (char *)(uintptr_t)file->path;
    p->list = &p->msg;
}

static bool is_wanted(const Rozo__AdInodesReq *req, const struct fake_file *file)
{
    if (req->n_only == 0)
        return !file->late && file->ino > req->after;
    for (size_t i = 0; i < req->n_only; i++) {
        if (req->only[i] == file->ino)
            return !file->gone;
    }
    return false;
}

static void answer_inodes(struct rpc_call *call)
{
    Rozo__AdInodesReq *req = rozo__ad_inodes_req__unpack(NULL, call->msg_len, call->msg);
    Rozo__AdInodesResp resp = ROZO__AD_INODES_RESP__INIT;
    Rozo__AdInodesResp__Inode *list[FILES_MAX];
    uint64_t unknown[LISTED_MAX];
    struct inode_parts parts[FILES_MAX];

    resp.inodes = list;
    resp.end = true;
    resp.after = req->after;
    for (unsigned i = 0; i < n_files; i++) {
        if (!is_wanted(req, &files[i]))
            continue;
        if (req->n_only == 0 && resp.n_inodes == PAGE) {
            resp.end = false;
            break;
        }
        inode_fill(&parts[resp.n_inodes], &files[i], req->with_paths, req->n_only > 0);
        list[resp.n_inodes] = &parts[resp.n_inodes].msg;
        resp.n_inodes++;
        resp.after = files[i].ino;
    }
    resp.unknown = unknown;
    for (size_t i = 0; i < req->n_only; i++) {
        if (req->only[i] >= next_ino)
            unknown[resp.n_unknown++] = req->only[i];
    }
    answer(call, ROZO__STATUS__OK, &resp.base);
    rozo__ad_inodes_req__free_unpacked(req, NULL);
}

/* Fault of a name that exportd will name. */
struct fake_fault {
    Rozo__AdNamesResp__Kind kind;
    uint64_t dir, ino;
    const char *name;
};
static struct fake_fault faults[8];
static unsigned n_faults, n_names_asked;
static bool no_names, repairs; /* exportd of an earlier build; faults can be repaired */

/* One fault an answer; the cursor is the number of the next one. */
static void answer_names(struct rpc_call *call)
{
    Rozo__AdNamesReq *req = rozo__ad_names_req__unpack(NULL, call->msg_len, call->msg);
    Rozo__AdNamesResp resp = ROZO__AD_NAMES_RESP__INIT;
    Rozo__AdNamesResp__Fault fault = ROZO__AD_NAMES_RESP__FAULT__INIT, *list = &fault;
    uint8_t at = req->cursor.len > 0 ? req->cursor.data[0] : 0, next = at + 1;

    n_names_asked++;
    resp.n_names = 10;
    resp.faults = &list;
    if (at < n_faults) {
        resp.n_faults = 1;
        fault.kind = faults[at].kind;
        fault.dir = faults[at].dir;
        fault.ino = faults[at].ino;
        fault.name = (ProtobufCBinaryData){ strlen(faults[at].name),
                                            (uint8_t *)(uintptr_t)faults[at].name };
        fault.repaired = req->repair && repairs;
    }
    resp.cursor = (ProtobufCBinaryData){ next < n_faults ? 1 : 0, &next };
    answer(call, ROZO__STATUS__OK, &resp.base);
    rozo__ad_names_req__free_unpacked(req, NULL);
}

static void answer_list(struct fake_daemon *d, struct rpc_call *call)
{
    Rozo__StListReq *req = rozo__st_list_req__unpack(NULL, call->msg_len, call->msg);
    Rozo__StListResp resp = ROZO__ST_LIST_RESP__INIT;
    Rozo__StListResp__File files_msg[PAGE], *list[PAGE];
    Rozo__FileRef refs[PAGE];
    uint8_t ids[PAGE][FILE_ID_BYTES];
    struct file_id id;
    unsigned at = 0;

    if (req->after.len == FILE_ID_BYTES) {
        file_id_get(req->after.data, &id);
        while (d->listed[at].ino != id.ino)
            at++;
        at++;
    }
    resp.files = list;
    for (; at < d->n_listed && resp.n_files < PAGE; at++) {
        size_t n = resp.n_files++;

        id = (struct file_id){ 1, d->listed[at].generation, d->listed[at].ino };
        file_id_put(ids[n], &id);
        rozo__st_list_resp__file__init(&files_msg[n]);
        rozo__file_ref__init(&refs[n]);
        refs[n].file_id = (ProtobufCBinaryData){ FILE_ID_BYTES, ids[n] };
        files_msg[n].ref = &refs[n];
        if (d->listed[at].later != NULL) {
            refs[n].storages = (uint32_t *)(uintptr_t)d->listed[at].later;
            refs[n].n_storages = 4;
            refs[n].dist_generation = 1;
        }
        files_msg[n].projections = d->listed[at].projections;
        files_msg[n].damaged = d->listed[at].damaged;
        files_msg[n].size = 1000;
        list[n] = &files_msg[n];
        resp.after = (ProtobufCBinaryData){ FILE_ID_BYTES, ids[n] };
    }
    resp.end = at == d->n_listed;
    answer(call, ROZO__STATUS__OK, &resp.base);
    rozo__st_list_req__free_unpacked(req, NULL);
}

static void take_order(struct fake_daemon *d, struct rpc_call *call)
{
    Rozo__StHealReq *req = rozo__st_heal_req__unpack(NULL, call->msg_len, call->msg);

    d->order = *req;
    d->n_orders++;
    rozo__st_heal_req__free_unpacked(req, NULL);
    answer(call, ROZO__STATUS__OK, NULL);
}

static void take_remove(struct fake_daemon *d, struct rpc_call *call)
{
    Rozo__StRemoveReq *req = rozo__st_remove_req__unpack(NULL, call->msg_len, call->msg);
    struct file_id id;

    file_id_get(req->file_id.data, &id);
    d->removed[d->n_removed++] = req->to_storage == d->id ? id.ino : 0;
    rozo__st_remove_req__free_unpacked(req, NULL);
    answer(call, ROZO__STATUS__OK, NULL);
}

static void take_check(struct fake_daemon *d, struct rpc_call *call)
{
    Rozo__StCheckReq *req = rozo__st_check_req__unpack(NULL, call->msg_len, call->msg);
    struct file_id id;

    file_id_get(req->ref->file_id.data, &id);
    d->checked[d->n_checked++] =
        req->to_storage == d->id && req->ref->n_storages == 4 && !req->abandoned ? id.ino
                                                                                 : 0;
    rozo__st_check_req__free_unpacked(req, NULL);
    answer(call, ROZO__STATUS__OK, NULL);
}

static void answer_replace(struct rpc_call *call)
{
    Rozo__AdStorageReplaceReq *req =
        rozo__ad_storage_replace_req__unpack(NULL, call->msg_len, call->msg);
    Rozo__AdStorageReplaceResp resp = ROZO__AD_STORAGE_REPLACE_RESP__INIT;
    Rozo__Storage st = ROZO__STORAGE__INIT;

    replaced_id = req->id + 100 * (uint32_t)req->n_addresses;
    st.id = req->id;
    resp.error = refusal;
    if (refusal[0] == '\0')
        resp.storage = &st;
    answer(call, refusal[0] == '\0' ? ROZO__STATUS__OK : ROZO__STATUS__BUSY, &resp.base);
    rozo__ad_storage_replace_req__free_unpacked(req, NULL);
}

static void answer_export_create(struct rpc_call *call)
{
    Rozo__AdExportCreateReq *req =
        rozo__ad_export_create_req__unpack(NULL, call->msg_len, call->msg);
    Rozo__AdExportCreateResp resp = ROZO__AD_EXPORT_CREATE_RESP__INIT;
    Rozo__Export export = ROZO__EXPORT__INIT;

    export.name = req->name;
    export.fold_rules = folds && req->fold ? 1 : 0;
    resp.export = &export;
    answer(call, ROZO__STATUS__OK, &resp.base);
    rozo__ad_export_create_req__free_unpacked(req, NULL);
}

static void handle(void *arg, struct rpc_call *call)
{
    struct fake_daemon *d = arg;

    if (d->silent) {
        if (n_held == HELD_MAX)
            abort();           /* cmocka's tests do not run in this thread */
        held[n_held++] = call; /* answered at the end, when no caller waits any more */
        return;
    }
    if (d->old)
        answer(call, ROZO__STATUS__UNKNOWN_OP, NULL);
    else if (call->op == ROZO__OP__AD_STATUS)
        answer_status(call);
    else if (call->op == ROZO__OP__AD_INODES && n_busy > 0 && n_busy-- > 0)
        answer(call, ROZO__STATUS__BUSY, NULL);
    else if (call->op == ROZO__OP__AD_INODES)
        answer_inodes(call);
    else if (call->op == ROZO__OP__AD_NAMES && !no_names)
        answer_names(call);
    else if (call->op == ROZO__OP__AD_STORAGE_REPLACE)
        answer_replace(call);
    else if (call->op == ROZO__OP__AD_EXPORT_CREATE)
        answer_export_create(call);
    else if (call->op == ROZO__OP__ST_LIST)
        answer_list(d, call);
    else if (call->op == ROZO__OP__ST_HEALTH)
        answer(call, ROZO__STATUS__OK, &d->health.base);
    else if (call->op == ROZO__OP__ST_HEAL)
        take_order(d, call);
    else if (call->op == ROZO__OP__ST_REMOVE)
        take_remove(d, call);
    else if (call->op == ROZO__OP__ST_CHECK)
        take_check(d, call);
    else
        answer(call, ROZO__STATUS__UNKNOWN_OP, NULL);
}

static void on_stop_closed(uv_handle_t *async)
{
    (void)async;
    env_uv_close(&env);
}

static void on_closed(void *arg)
{
    (void)arg;
    if (++n_closed == STORAGES + 1)
        uv_close((uv_handle_t *)&stop, on_stop_closed);
}

static void on_stop(uv_async_t *async)
{
    (void)async;
    while (n_held > 0)
        rpc_reply_status(held[--n_held], ROZO__STATUS__BUSY);
    for (unsigned i = 0; i <= STORAGES; i++)
        rpc_server_close(daemons[i].server, on_closed, NULL);
}

static void *serve(void *arg)
{
    (void)arg;
    uv_run(&loop, UV_RUN_DEFAULT);
    return NULL;
}

static int daemons_start(void **state)
{
    struct err err = { 0 };
    int fd = mkstemp(key_path);

    (void)state;
    assert_true(fd >= 0);
    for (unsigned i = 0; i < 32; i++)
        dprintf(fd, "07");
    dprintf(fd, "\n");
    close(fd);
    assert_int_equal(rpc_keys_load(&keys, true, key_path, &err), 0);
    assert_int_equal(rpc_keys_load(&keys, false, key_path, &err), 0);
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(env_uv_init(&env, &loop), 0);
    uv_async_init(&loop, &stop, on_stop);
    for (unsigned i = 0; i <= STORAGES; i++) {
        const struct rpc_server_config config = {
            .keys = &keys, .name = "fake", .handler = handle, .arg = &daemons[i]
        };
        const char *addr = "127.0.0.1:0";

        assert_int_equal(
            rpc_server_open(&env, &config, &addr, 1, &daemons[i].server, &err), 0);
        daemons[i].id = i;
        snprintf(daemons[i].addr, sizeof(daemons[i].addr), "127.0.0.1:%u",
                 rpc_server_port(daemons[i].server, 0));
    }
    setenv("ROZO_EXPORTD", daemons[0].addr, 1);
    setenv("ROZO_KEY", key_path, 1);
    return pthread_create(&thread, NULL, serve, NULL);
}

static int daemons_stop(void **state)
{
    (void)state;
    uv_async_send(&stop);
    pthread_join(thread, NULL);
    uv_loop_close(&loop);
    unlink(key_path);
    return 0;
}

/* ---- the verbs ---- */

static char out[1 << 16];

/* Runs a verb; its output is in `out`. Returns its exit status. */
static int verb(int (*run)(struct cli *cli, int argc, char **argv), const char *name, ...)
{
    struct cli cli = { 0 };
    char *argv[8] = { cli.verb };
    int argc = 1, saved, rc;
    FILE *to = tmpfile();
    va_list ap;
    size_t len;

    snprintf(cli.verb, sizeof(cli.verb), "rozo %s", name);
    va_start(ap, name);
    for (const char *arg = va_arg(ap, char *); arg != NULL; arg = va_arg(ap, char *))
        argv[argc++] = strdup(arg);
    va_end(ap);
    fflush(stdout);
    saved = dup(STDOUT_FILENO);
    dup2(fileno(to), STDOUT_FILENO);
    rc = run(&cli, argc, argv);
    fflush(stdout);
    dup2(saved, STDOUT_FILENO);
    close(saved);
    rewind(to);
    len = fread(out, 1, sizeof(out) - 1, to);
    out[len] = '\0';
    fclose(to);
    for (int i = 1; i < argc; i++)
        free(argv[i]);
    return rc;
}

static json_t *out_json(void)
{
    json_error_t why;
    json_t *json = json_loads(out, 0, &why);

    if (json == NULL)
        fail_msg("%s: %s", why.text, out);
    return json;
}

#define PRINTED(text)                                  \
    do {                                               \
        if (strstr(out, text) == NULL)                 \
            fail_msg("'%s' is not in: %s", text, out); \
    } while (0)

/* Starts five storages, with three complete files on storages 1..4. */
static int setup(void **state)
{
    static const uint32_t abcd[4] = { 1, 2, 3, 4 };

    (void)state;
    n_files = 0;
    next_ino = 100;
    refusal[0] = '\0';
    for (unsigned i = 0; i <= STORAGES; i++) {
        struct fake_daemon *d = &daemons[i];

        d->up = true;
        d->lost = d->silent = d->old = false;
        d->n_listed = d->n_removed = d->n_checked = d->n_orders = 0;
        rozo__st_health_resp__init(&d->health);
    }
    n_faults = n_names_asked = 0;
    no_names = repairs = false;
    for (uint64_t ino = 10; ino < 15; ino++) {
        struct fake_file *file = &files[n_files++];
        static const char *const paths[] = { "a", "dir/b", "dir/c d", "e\xff", "f" };

        *file = (struct fake_file){
            .ino = ino, .generation = 7, .has_data = true, .path = paths[ino - 10]
        };
        memcpy(file->storages, abcd, sizeof(abcd));
        for (uint32_t i = 0; i < 3; i++) {
            struct fake_daemon *d = &daemons[i + 1];

            d->listed[d->n_listed++] = (struct fake_listed){ ino, 7, 1u << i, 0, NULL };
        }
    }
    return 0;
}

static void test_fsck_of_a_clean_cluster(void **state)
{
    json_t *json;

    (void)state;
    assert_int_equal(verb(cmd_fsck, "fsck", NULL), 0);
    PRINTED("5 files, 15 projection files (15 KiB) on 5 of 5 storages: clean\n");
    assert_int_equal(verb(cmd_fsck, "fsck", "--json", NULL), 0);
    json = out_json();
    assert_true(json_is_true(json_object_get(json, "clean")));
    assert_int_equal(json_integer_value(json_object_get(json, "files")), 5);
    json_decref(json);
    assert_int_equal(verb(cmd_fsck, "fsck", "--repair", NULL), 0);
    for (unsigned i = 1; i <= STORAGES; i++)
        assert_true(daemons[i].n_removed == 0 && daemons[i].n_checked == 0);
}

static void test_fsck_tells_faults_of_names_by_path(void **state)
{
    json_t *json, *found;

    (void)state;
    faults[0] = (struct fake_fault){ ROZO__AD_NAMES_RESP__KIND__NAME_UNFOLDED, 11, 77,
                                     "Clip.mov" };
    faults[1] =
        (struct fake_fault){ ROZO__AD_NAMES_RESP__KIND__FOLDED_NAMELESS, 11, 0, "" };
    faults[2] =
        (struct fake_fault){ ROZO__AD_NAMES_RESP__KIND__NAME_OF_NOTHING, 1, 9, "a\x01" };
    faults[3] =
        (struct fake_fault){ ROZO__AD_NAMES_RESP__KIND__LISTED_OTHER, 99, 10, "z" };
    n_faults = 4;
    assert_int_equal(verb(cmd_fsck, "fsck", NULL), 4);
    PRINTED("main: dir/b/Clip.mov: the index of folded names lacks it (inode 77); "
            "--repair puts it there\n");
    PRINTED("main: dir/b: the index of folded names has an entry without a name; "
            "--repair removes that\n");
    PRINTED("main: a\\x01: its inode is lost (inode 9); not repaired by fsck\n");
    PRINTED("main: directory 99: z: listings of its directory have another name or inode "
            "in its place (inode 10); not repaired by fsck\n");
    PRINTED("2 faults of names cannot be repaired");
    PRINTED("40 names: 4 faults\n");
    assert_int_equal(n_names_asked, 4);
    assert_int_equal(verb(cmd_fsck, "fsck", "--json", NULL), 4);
    json = out_json();
    assert_false(json_is_true(json_object_get(json, "clean")));
    assert_true(json_is_true(json_object_get(json, "whole")));
    assert_int_equal(json_array_size(json_object_get(json, "names_wrong")), 4);
    found = json_array_get(json_object_get(json, "names_wrong"), 0);
    assert_string_equal(json_string_value(json_object_get(found, "dir_path")), "dir/b");
    assert_string_equal(json_string_value(json_object_get(found, "name")), "Clip.mov");
    assert_string_equal(json_string_value(json_object_get(found, "kind")),
                        "name_unfolded");
    json_decref(json);
    repairs = true;
    n_faults = 2;
    assert_int_equal(verb(cmd_fsck, "fsck", "--repair", NULL), 4);
    PRINTED("main: dir/b/Clip.mov: the index of folded names lacks it (inode 77); "
            "repaired\n");
    assert_null(strstr(out, "cannot be repaired"));
    n_faults = 0;
    assert_int_equal(verb(cmd_fsck, "fsck", "--repair", NULL), 0);
    PRINTED("10 names: 0 faults\n");
}

/* Goal: what is left of a file whose inode is lost is not removed as ownerless. */
static void test_fsck_keeps_data_that_a_name_leads_to(void **state)
{
    (void)state;
    faults[0] =
        (struct fake_fault){ ROZO__AD_NAMES_RESP__KIND__NAME_OF_NOTHING, 1, 50, "a" };
    n_faults = 1;
    for (unsigned i = 0; i < 2; i++) /* numbers that exportd has given out, or never */
        daemons[1].listed[5 + i] = (struct fake_listed){ 50 + i * 450, 9, 1, 0, NULL };
    daemons[1].n_listed = 7;
    assert_int_equal(verb(cmd_fsck, "fsck", "--repair-unknown", NULL), 4);
    PRINTED("storage 1: 1 projection file (1000 B) of files with a name and without an "
            "inode (not removed)\n");
    assert_int_equal(daemons[1].n_removed, 1);
    assert_int_equal(daemons[1].removed[0], 500);
    faults[0].ino = 500;
    assert_int_equal(verb(cmd_fsck, "fsck", "--repair-unknown", NULL), 4);
    assert_int_equal(daemons[1].n_removed, 2);
    assert_int_equal(daemons[1].removed[1], 50);
}

static void test_fsck_of_an_exportd_that_cannot_check_names(void **state)
{
    json_t *json;

    (void)state;
    no_names = true;
    assert_int_equal(verb(cmd_fsck, "fsck", NULL), 1);
    PRINTED("names: not looked at: exportd is of a build before this check\n");
    assert_int_equal(verb(cmd_fsck, "fsck", "--json", NULL), 1);
    json = out_json();
    assert_false(json_is_true(json_object_get(json, "whole")));
    json_decref(json);
}

static void test_fsck_waits_while_others_list(void **state)
{
    (void)state;
    n_busy = 3;
    assert_int_equal(verb(cmd_fsck, "fsck", NULL), 0);
    assert_int_equal(n_busy, 0);
    PRINTED("5 files, 15 projection files (15 KiB) on 5 of 5 storages: clean\n");
}

static void test_fsck_finds_and_repairs(void **state)
{
    json_t *json, *found;

    (void)state;
    daemons[2].n_listed = 2;                     /* c; d, e, f are not there */
    daemons[3].listed[0].damaged = 4;            /* a */
    daemons[3].listed[3] = daemons[3].listed[4]; /* e: one of two it needs */
    daemons[3].n_listed = 4;
    /* a file that no inode has */
    daemons[1].listed[5] = (struct fake_listed){ 50, 9, 1, 0, NULL };
    /* a number that was never used */
    daemons[1].listed[6] = (struct fake_listed){ 500, 9, 3, 0, NULL };
    daemons[1].listed[7] =
        (struct fake_listed){ 14, 8, 1, 0, NULL }; /* wrong generation */
    daemons[1].n_listed = 8;
    /* not the place of that projection */
    daemons[5].listed[0] = (struct fake_listed){ 11, 7, 1, 0, NULL };
    daemons[5].n_listed = 1;
    assert_int_equal(verb(cmd_fsck, "fsck", NULL), 4);
    PRINTED("main: a: damaged on storage 3; 2 of 3 there\n");
    PRINTED("main: dir/c d: missing on storage 2; 2 of 3 there\n");
    PRINTED(
        "main: e\xff: UNREADABLE, 1 of the 2 projections it needs are there; missing on "
        "storage 2, 3; 1 of 3 there\n");
    PRINTED("storage 1: 1 projection file (1000 B) that no file owns\n");
    PRINTED("storage 1: 3 projection files (2.0 KiB) of files that exportd never knew");
    PRINTED("storage 5: 1 projection file (1000 B) of files that should lie elsewhere\n");
    PRINTED("4 files lack projections, 1 of them are unreadable");
    /* fsck only reads */
    assert_int_equal(daemons[1].n_removed + daemons[2].n_checked, 0);
    assert_int_equal(verb(cmd_fsck, "fsck", "--json", NULL), 4);
    json = out_json();
    assert_false(json_is_true(json_object_get(json, "clean")));
    assert_int_equal(json_array_size(json_object_get(json, "lacking")), 4);
    found = json_array_get(json_object_get(json, "lacking"), 2);
    assert_string_equal(json_string_value(json_object_get(found, "path")), "e\\xff");
    assert_true(json_is_true(json_object_get(found, "unreadable")));
    assert_int_equal(json_array_size(json_object_get(json, "strays")), 4);
    json_decref(json);
    assert_int_equal(verb(cmd_fsck, "fsck", "--repair", NULL), 4);
    assert_int_equal(daemons[1].n_removed, 1); /* the file of an unused number stays */
    assert_int_equal(daemons[1].removed[0], 50);
    assert_int_equal(daemons[2].n_checked, 3);
    assert_int_equal(daemons[2].checked[0], 12);
    assert_int_equal(daemons[3].n_checked, 2);
    assert_int_equal(daemons[3].checked[0], 10);
    assert_int_equal(daemons[5].n_removed, 0);
    assert_int_equal(verb(cmd_fsck, "fsck", "--repair-unknown", NULL), 4);
    assert_int_equal(daemons[1].n_removed, 4);
}

/* exportd's data come from a backup: headers have a later distribution. Storage 9 has
 * taken the place of storage 2 in file c, and exportd does not know it. */
static void test_fsck_names_files_that_moved(void **state)
{
    static const uint32_t grown[4] = { 1, 2, 3, 5 }, replaced[4] = { 1, 9, 3, 4 };
    json_t *json, *found;

    (void)state;
    daemons[1].listed[1].later = daemons[3].listed[1].later = grown; /* dir/b */
    daemons[5].listed[0] = (struct fake_listed){ 11, 7, 1, 0, grown };
    daemons[5].n_listed = 1;
    daemons[1].listed[2].later = daemons[3].listed[2].later = replaced; /* dir/c d */
    daemons[2].listed[2] = daemons[2].listed[--daemons[2].n_listed];
    assert_int_equal(verb(cmd_fsck, "fsck", NULL), 4);
    PRINTED("main: dir/b: is on storages 1, 2, 3, 5 by now; exportd's data say 1, 2, 3, "
            "4\n");
    PRINTED(
        "main: dir/c d: is on storages 1, 9, 3, 4 by now; exportd's data say 1, 2, 3, "
        "4\n");
    PRINTED("storage 9: exportd does not know it, and files are there: add it again "
            "(rozo storage add)\n");
    PRINTED("2 files are on other storages than exportd's data say, for example after a "
            "restore from a backup: read each of them once, and exportd finds out where "
            "it is\n");
    PRINTED("0 files lack projections");
    assert_int_equal(verb(cmd_fsck, "fsck", "--json", NULL), 4);
    json = out_json();
    assert_false(json_is_true(json_object_get(json, "clean")));
    assert_int_equal(json_array_size(json_object_get(json, "lacking")), 0);
    assert_int_equal(json_array_size(json_object_get(json, "strays")), 0);
    assert_int_equal(json_array_size(json_object_get(json, "moved")), 2);
    found = json_array_get(json_object_get(json, "moved"), 1);
    assert_string_equal(json_string_value(json_object_get(found, "path")), "dir/c d");
    assert_int_equal(
        json_integer_value(json_array_get(json_object_get(found, "storages"), 1)), 9);
    json_decref(json);
    assert_int_equal(verb(cmd_fsck, "fsck", "--repair", NULL), 4);
    for (unsigned i = 1; i <= STORAGES; i++)
        assert_true(daemons[i].n_removed == 0 && daemons[i].n_checked == 0);
    files[1].moves = files[2].moves = true;
    assert_int_equal(verb(cmd_fsck, "fsck", NULL), 0);
}

/* Goal: files that are created or removed during fsck are not reported. */
static void test_fsck_while_files_come_and_go(void **state)
{
    (void)state;
    files[0].gone = true; /* the projections are removed, too */
    daemons[1].listed[0] =
        (struct fake_listed){ 60, 3, 1, 0, NULL }; /* a file is created */
    for (unsigned i = 2; i <= 3; i++) {
        daemons[i].listed[0] = daemons[i].listed[4];
        daemons[i].n_listed = 4;
    }
    files[n_files++] = (struct fake_file){
        .ino = 60, .generation = 3, .storages = { 1, 2, 3, 4 }, .late = true
    };
    assert_int_equal(verb(cmd_fsck, "fsck", "--repair", NULL), 0);
    for (unsigned i = 1; i <= STORAGES; i++)
        assert_true(daemons[i].n_removed == 0 && daemons[i].n_checked == 0);
}

static void test_fsck_reports_storages_that_do_not_answer(void **state)
{
    (void)state;
    daemons[2].up = false;
    daemons[4].old = true;
    assert_int_equal(verb(cmd_fsck, "fsck", NULL), 1);
    PRINTED("storage 2: not looked at: Host is down\n");
    PRINTED("storage 4: not looked at: its version does not know this request\n");
    PRINTED("on 3 of 5 storages: nothing wrong was found there\n");
    daemons[2].lost = true; /* fsck does not wait for a lost storage */
    daemons[4].old = false;
    /* missing until they are rebuilt */
    assert_int_equal(verb(cmd_fsck, "fsck", NULL), 4);
    PRINTED("lack projections");
}

static void test_rebuild_and_scrub_status(void **state)
{
    Rozo__StHealthResp *h = &daemons[2].health;
    char *finding = (char *)(uintptr_t) "main: dir/b: block 5 was damaged, healed";
    json_t *json, *st;

    (void)state;
    h->rebuild_state = 1;
    h->rebuild_files_done = 10;
    h->rebuild_files = 40;
    h->rebuild_bytes_done = 1ull << 30;
    h->rebuild_bytes = 4ull << 30;
    h->rebuild_s = 10;
    h->unhealed = 3;
    h->problem = (char *)(uintptr_t) "too few storages are up";
    h->rate_bytes = 100 << 20;
    h->scrub_state = 2;
    h->scrub_found = 1;
    h->scrub_healed = 1;
    h->n_scrub_findings = 1;
    h->scrub_findings = &finding;
    daemons[3].up = false;
    /* storage 3 is down */
    assert_int_equal(verb(cmd_rebuild_status, "rebuild status", NULL), 1);
    PRINTED("running  25%  10/40  1.0 GiB/4.0 GiB  102 MiB/s  30 s");
    PRINTED("storage 2: rebuilding, 25%, 3 blocks not healed yet "
            "(too few storages are up)\n");
    PRINTED("storage 2: healing is limited to 100 MiB a second\n");
    PRINTED("storage 3: Host is down\n");
    assert_int_equal(
        verb(cmd_rebuild_status, "rebuild status", "--storage", "2", "--json", NULL), 0);
    json = out_json();
    assert_int_equal(json_array_size(json_object_get(json, "storages")), 1);
    st = json_object_get(json_array_get(json_object_get(json, "storages"), 0), "health");
    st = json_object_get(st, "rebuild");
    assert_string_equal(json_string_value(json_object_get(st, "state")), "running");
    assert_int_equal(json_integer_value(json_object_get(st, "left_s")), 30);
    json_decref(json);
    daemons[3].up = true;
    assert_int_equal(verb(cmd_scrub_status, "scrub status", NULL), 0);
    PRINTED("done");
    PRINTED("storage 2: main: dir/b: block 5 was damaged, healed\n");
    for (unsigned i = 1; i <= STORAGES; i++)
        daemons[i].health.rebuild_state = UINT32_MAX; /* invalid values do no harm */
    assert_int_equal(verb(cmd_rebuild_status, "rebuild status", NULL), 0);
    assert_int_equal(verb(cmd_rebuild_status, "rebuild status", "--storage", "77", NULL),
                     1);
}

static void test_a_hung_storage_costs_two_seconds(void **state)
{
    (void)state;
    daemons[1].silent = true;
    assert_int_equal(verb(cmd_rebuild_status, "rebuild status", NULL), 1);
    PRINTED("storage 1: it does not answer\n");
}

static void test_orders(void **state)
{
    (void)state;
    assert_int_equal(verb(cmd_scrub_start, "scrub start", NULL), 0);
    PRINTED("5 of 5 storages: scrub started\n");
    for (unsigned i = 1; i <= STORAGES; i++)
        assert_true(daemons[i].n_orders == 1 && daemons[i].order.scrub == 1 &&
                    daemons[i].order.to_storage == i && !daemons[i].order.set_rate);
    assert_int_equal(verb(cmd_scrub_stop, "scrub stop", "--storage", "4", NULL), 0);
    assert_true(daemons[4].n_orders == 2 && daemons[4].order.scrub == 2);
    assert_int_equal(daemons[3].n_orders, 1);
    assert_int_equal(verb(cmd_rebuild_rate, "rebuild rate", "50", NULL), 0);
    assert_true(daemons[5].order.set_rate && daemons[5].order.rate_bytes == 50 << 20);
    assert_int_equal(verb(cmd_rebuild_rate, "rebuild rate", "off", NULL), 0);
    assert_true(daemons[5].order.set_rate && daemons[5].order.rate_bytes == 0);
    assert_int_equal(verb(cmd_rebuild_start, "rebuild start", "3", NULL), 0);
    assert_true(daemons[3].order.rebuild == 1 && daemons[4].order.rebuild == 0);
    daemons[2].old = true; /* the storages that can scrub do so */
    assert_int_equal(verb(cmd_scrub_start, "scrub start", NULL), 1);
    PRINTED("4 of 5 storages: scrub started\n");
}

static void test_replace(void **state)
{
    (void)state;
    assert_int_equal(verb(cmd_storage_replace, "storage replace", "3", NULL), 0);
    PRINTED("storage 3 has its new disk");
    assert_int_equal(replaced_id, 3);
    assert_int_equal(verb(cmd_storage_replace, "storage replace", "3", "a:1,b:2", NULL),
                     0);
    assert_int_equal(replaced_id, 203);
    snprintf(refusal, sizeof(refusal), "storage at a:1: its data directory is not empty");
    assert_int_equal(verb(cmd_storage_replace, "storage replace", "3", NULL), 1);
    assert_string_equal(out, "");
}

static void test_an_older_exportd_makes_no_index_of_names(void **state)
{
    (void)state;
    folds = false;
    assert_int_equal(verb(cmd_export_create, "export create", "--names=posix", "e", NULL),
                     0);
    assert_int_equal(verb(cmd_export_create, "export create", "--names=fold", "e", NULL),
                     1);
    assert_string_equal(out, "");
    folds = true;
    assert_int_equal(verb(cmd_export_create, "export create", "--names=fold", "e", NULL),
                     0);
    PRINTED("names are also found in another case");
}

#define T(name) cmocka_unit_test_setup(name, setup)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_fsck_of_a_clean_cluster),
        T(test_fsck_tells_faults_of_names_by_path),
        T(test_fsck_keeps_data_that_a_name_leads_to),
        T(test_fsck_of_an_exportd_that_cannot_check_names),
        T(test_fsck_waits_while_others_list),
        T(test_fsck_finds_and_repairs),
        T(test_fsck_names_files_that_moved),
        T(test_fsck_while_files_come_and_go),
        T(test_fsck_reports_storages_that_do_not_answer),
        T(test_rebuild_and_scrub_status),
        T(test_orders),
        T(test_replace),
        T(test_a_hung_storage_costs_two_seconds),
        T(test_an_older_exportd_makes_no_index_of_names),
    };

    return cmocka_run_group_tests_name("deploy.verbs", tests, daemons_start,
                                       daemons_stop);
}
