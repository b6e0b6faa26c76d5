/*
 * Goal: a file is opened, shared and written out, and then its references are given back,
 * in that order. Changes of other mounts are noticed, and this mount's own are not taken
 * for theirs.
 * Method: the test plays the file layer and exportd.
 */
#include <errno.h>
#include <stdlib.h>

#include "rozomount/inode/atimes.h"
#include "rozomount/inode/node.h"
#include "tests/unit/rozomount/fake_exportd.h"
#include "tests/unit/unit.h"

/* ---- a fake file layer ---- */

struct file {
    const struct file_meta *meta;
    uint64_t size, session;
    int64_t mtime_ns;
    uint64_t allocated_more;
    file_done_cb *closed;
    void *closed_arg;
    bool has_stored;
};
static struct file *the_file; /* the file opened last */
static unsigned n_opened, n_refreshed, n_dropped, n_told_again;

int file_open(struct env *env, struct storcli *cli, const struct file_config *config,
              const struct file_meta *meta, const struct storcli_target *target,
              const struct file_attr *attr, struct file **out)
{
    (void)env;
    (void)cli;
    (void)config;
    the_file = *out = calloc(1, sizeof(struct file));
    assert_non_null(the_file);
    the_file->meta = meta;
    the_file->size = attr->size;
    the_file->session = target->session;
    n_opened++;
    return 0;
}
void file_refresh(struct file *f, const struct storcli_target *target,
                  const struct file_attr *attr)
{
    if (attr->size_age == SIZE_NEW ||
        (attr->size_age == SIZE_PERHAPS_OLD && attr->size > f->size))
        f->size = attr->size;
    if (target != NULL && target->session != 0)
        f->session = target->session;
    n_refreshed++;
}
void file_close(struct file *f, file_done_cb *done, void *arg)
{
    f->closed = done;
    f->closed_arg = arg;
}
void file_drop_cache(struct file *f)
{
    (void)f;
    n_dropped++;
}
bool file_has_unreported(const struct file *f)
{
    (void)f;
    return false;
}
bool file_is_clean(const struct file *f)
{
    (void)f;
    return true;
}
uint32_t file_epoch(const struct file *f)
{
    (void)f;
    return 0;
}
bool file_has_stored(const struct file *f)
{
    return f->has_stored;
}
void file_report_again(struct file *f)
{
    (void)f;
    n_told_again++;
}
uint64_t file_size(const struct file *f)
{
    return f->size;
}
bool file_has_data(const struct file *f)
{
    return f->size != 0;
}
uint64_t file_allocated(const struct file *f, uint64_t told)
{
    return told + f->allocated_more;
}

int64_t file_mtime_ns(const struct file *f)
{
    return f->mtime_ns;
}

static void end_close(struct file *f, int rc)
{
    file_done_cb *closed = f->closed;
    void *arg = f->closed_arg;

    assert_non_null(closed);
    free(f);
    closed(arg, rc);
}

static void finish_close(struct file *f)
{
    end_close(f, 0);
}

/* ---- the rest ---- */

struct fixture {
    struct env_virtual env;
    struct fake_exportd exportd;
    struct md_client md;
    struct open_refs *refs;
    struct unsynced_inodes *unsynced;
    struct nodes nodes;
    unsigned n_invalidated, n_idle, n_ready;
    int n_nodes;
    struct node_wait wait;
};
static struct fixture fx;

static void on_lost(void *arg)
{
    (void)arg;
}
static void on_invalidate(void *arg, uint64_t ino)
{
    (void)arg;
    (void)ino;
    fx.n_invalidated++;
}
static void on_count(void *arg, uint64_t ino, int change)
{
    (void)arg;
    (void)ino;
    fx.n_nodes += change;
}
static void on_idle(void *arg)
{
    (void)arg;
    fx.n_idle++;
}
static void on_ready(struct node_wait *wait)
{
    (void)wait;
    fx.n_ready++;
}

static int setup(void **state)
{
    struct md_client_config md = { .timeout_ms = 1000, .mount_session_lost = on_lost };
    struct nodes_config config = { .invalidate = on_invalidate, .count = on_count };

    (void)state;
    memset(&fx, 0, sizeof(fx));
    n_opened = n_refreshed = n_dropped = n_told_again = 0;
    env_virtual_init(&fx.env, 1);
    fake_exportd_init(&fx.exportd);
    md_client_init(&fx.md, &fx.env.env, &fx.exportd.channel, &md);
    md_client_session_is_open(&fx.md);
    fx.refs = config.refs = open_refs_new();
    fx.unsynced = config.unsynced = unsynced_inodes_new();
    nodes_init(&fx.nodes, &fx.env.env, &fx.md, NULL, &config);
    return 0;
}

static int teardown(void **state)
{
    size_t n;

    (void)state;
    nodes_when_idle(&fx.nodes, on_idle, NULL);
    env_virtual_run_posted(&fx.env);
    assert_int_equal(fx.n_idle, 1);
    assert_int_equal(fx.n_nodes, 0);
    assert_null(open_refs_list(fx.refs, &n));
    nodes_close(&fx.nodes);
    open_refs_free(fx.refs);
    unsynced_inodes_free(fx.unsynced);
    md_client_close(&fx.md);
    env_virtual_close(&fx.env);
    return 0;
}

static struct md_entry entry_of(uint64_t ino, uint64_t size, uint64_t change)
{
    struct md_entry e = { .has_target = true };

    e.attr.ino = ino;
    e.attr.mode = S_IFREG | 0644;
    e.attr.size = size;
    e.attr.change = change;
    e.attr.mtime_ns = (int64_t)change;
    e.file.size = size;
    return e;
}

static struct node *open_node(uint64_t ino, uint64_t size, uint64_t change, bool *fresh)
{
    struct node *node = node_get(&fx.nodes, ino);
    struct md_entry e = entry_of(ino, size, change);
    bool is_fresh = node_cache_is_fresh(node, &e.attr);

    if (fresh != NULL)
        *fresh = is_fresh;
    assert_int_equal(node_adopt(node, &e, true), 0);
    return node;
}

static void close_node(struct node *node)
{
    struct file *file = node->file;

    node_put(node);
    finish_close(file);
    nodes_tell_closes(&fx.nodes);
    assert_int_equal(fx.exportd.n_sent, 1);
    assert_int_equal(fx.exportd.sent[0]->op, ROZO__OP__MD_CLOSE);
    fake_exportd_answer(&fx.exportd, 0, ROZO__STATUS__OK, NULL);
}

static void test_references_go_back_after_the_last_close(void **state)
{
    struct node *node = open_node(5, 100, 1, NULL);
    Rozo__MdCloseReq *req;
    size_t n;
    uint64_t *list;

    (void)state;
    assert_ptr_equal(open_node(5, 100, 1, NULL), node);
    assert_int_equal(n_opened, 1);
    assert_int_equal(n_refreshed, 1);
    list = open_refs_list(fx.refs, &n);
    assert_int_equal(n, 1);
    free(list);
    node_put(node);
    assert_null(the_file->closed);
    node_put(node);
    assert_int_equal(fx.exportd.n_sent, 0); /* the data must be written first */
    finish_close(the_file);
    env_virtual_advance_ms(&fx.env, 100);
    assert_int_equal(fx.exportd.n_sent, 1);
    req = rozo__md_close_req__unpack(NULL, fx.exportd.msg_len[0], fx.exportd.msg[0]);
    assert_int_equal(req->ino, 5);
    assert_int_equal(req->n_references, 2);
    rozo__md_close_req__free_unpacked(req, NULL);
    list = open_refs_list(fx.refs, &n); /* still held if the session is lost now */
    assert_int_equal(n, 1);
    free(list);
    fake_exportd_fail(&fx.exportd, 0, -ETIMEDOUT);
    assert_int_equal(fx.exportd.n_sent, 1); /* sent again until exportd answers */
    fake_exportd_answer(&fx.exportd, 0, ROZO__STATUS__OK, NULL);
    assert_int_equal(fx.exportd.n_sent, 0);
}

/* A close says whether storages may have anything of the file, even a reservation:
 * exportd asks storages to remove only such files. */
static void test_a_close_says_whether_storages_have_any(void **state)
{
    Rozo__MdCloseReq *req;
    struct node *node;

    (void)state;
    node_put(open_node(5, 100, 1, NULL));
    finish_close(the_file);
    node = open_node(6, 100, 1, NULL);
    the_file->has_stored = true;
    node_put(node);
    finish_close(the_file);
    env_virtual_advance_ms(&fx.env, 100);
    req = rozo__md_close_req__unpack(NULL, fx.exportd.msg_len[0], fx.exportd.msg[0]);
    assert_true(req->n_more == 1 && req->nothing_stored && !req->more[0]->nothing_stored);
    rozo__md_close_req__free_unpacked(req, NULL);
    fake_exportd_answer(&fx.exportd, 0, ROZO__STATUS__OK, NULL);
}

/* Checks that request i closes n inodes, ascending from `first`, one reference each. */
static void check_closes(unsigned i, uint64_t first, size_t n)
{
    Rozo__MdCloseReq *req =
        rozo__md_close_req__unpack(NULL, fx.exportd.msg_len[i], fx.exportd.msg[i]);

    assert_int_equal(fx.exportd.sent[i]->op, ROZO__OP__MD_CLOSE);
    assert_int_equal(req->ino, first);
    assert_int_equal(req->n_references, 1);
    assert_int_equal(req->n_more, n - 1);
    for (size_t k = 0; k < req->n_more; k++) {
        assert_int_equal(req->more[k]->ino, first + 1 + k);
        assert_int_equal(req->more[k]->n_references, 1);
    }
    rozo__md_close_req__free_unpacked(req, NULL);
}

static void close_many(uint64_t first, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        node_put(open_node(first + i, 100, 1, NULL));
        finish_close(the_file);
    }
}

/* A close with unreported data is sent at once: exportd must know of it before others
 * open the file, or bytes behind the size could show when they extend it. */
static void test_a_close_with_bytes_unreported_does_not_wait(void **state)
{
    Rozo__MdCloseReq *req;

    (void)state;
    close_many(10, 2);
    node_put(open_node(12, 100, 1, NULL));
    end_close(the_file, -EIO);
    assert_int_equal(fx.exportd.n_sent, 1);
    req = rozo__md_close_req__unpack(NULL, fx.exportd.msg_len[0], fx.exportd.msg[0]);
    assert_int_equal(req->n_more, 2);
    assert_true(!req->unreported && !req->more[0]->unreported &&
                req->more[1]->unreported);
    rozo__md_close_req__free_unpacked(req, NULL);
    fake_exportd_answer(&fx.exportd, 0, ROZO__STATUS__OK, NULL);
}

static void test_closes_are_sent_together(void **state)
{
    size_t n;
    uint64_t *list;

    (void)state;
    close_many(10, 3);
    assert_int_equal(fx.exportd.n_sent, 0);
    nodes_tell_closes(&fx.nodes);
    nodes_tell_closes(&fx.nodes);
    assert_int_equal(fx.exportd.n_sent, 1);
    check_closes(0, 10, 3);
    close_many(20, CLOSES_MAX);
    assert_int_equal(fx.exportd.n_sent, 2);
    check_closes(1, 20, CLOSES_MAX);
    list = open_refs_list(fx.refs, &n);
    assert_int_equal(n, 3 + CLOSES_MAX);
    free(list);
    fake_exportd_fail(&fx.exportd, 0, -ETIMEDOUT);
    assert_int_equal(fx.exportd.n_sent, 2);
    check_closes(1, 10, 3);
    fake_exportd_answer(&fx.exportd, 0, ROZO__STATUS__OK, NULL);
    fake_exportd_answer(&fx.exportd, 0, ROZO__STATUS__OK, NULL);
    close_many(30, 2);
    nodes_when_idle(&fx.nodes, on_idle, NULL); /* the end does not wait for more closes */
    assert_int_equal(fx.exportd.n_sent, 1);
    check_closes(0, 30, 2);
    env_virtual_run_posted(&fx.env);
    assert_int_equal(fx.n_idle, 0);
    fake_exportd_answer(&fx.exportd, 0, ROZO__STATUS__OK, NULL);
    env_virtual_run_posted(&fx.env);
    assert_int_equal(fx.n_idle, 1);
    fx.n_idle = 0;
}

static uint64_t session_after(struct node *node, uint64_t session, uint64_t grant)
{
    struct md_entry e = entry_of(node->ino, 100, 1);

    e.target.session = session;
    e.grant.number = grant;
    assert_int_equal(node_adopt(node, &e, false), 0);
    return node->file->session;
}

/* Requests in flight when a token is lost must not run under the next session, so the
 * session changes with the token. */
static void test_a_session_changes_with_the_token(void **state)
{
    struct token_cache *t = fx.nodes.config.tokens = token_cache_new();
    struct node *node = node_get(&fx.nodes, 5);
    struct token_cache_claim claim;

    (void)state;
    token_cache_opened(t, 10, false);
    assert_int_equal(session_after(node, 7, 11), 7);
    token_cache_grant(t, 5, TOKEN_EXCLUSIVE, 11);
    token_cache_claim(t, &claim);
    free(claim.shared);
    free(claim.exclusive);
    token_cache_opened(t, 20, true);
    assert_int_equal(session_after(node, 9, 21), 7); /* lost, and not given back yet */
    token_cache_gave_back(t, 5, TOKEN_NONE, 0);
    assert_int_equal(session_after(node, 9, 0), 7); /* this answer grants nothing */
    assert_int_equal(session_after(node, 7, 12), 7);
    assert_int_equal(session_after(node, 9, 22), 9);
    assert_int_equal(session_after(node, 7, 12), 9); /* a late answer */
    node_put(node);
    finish_close(the_file);
    token_cache_free(t);
}

/* A file that was removed while it is open keeps its token until the last close, and no
 * longer. */
static void test_token_of_a_removed_file_goes_with_the_last_close(void **state)
{
    struct token_cache *t = fx.nodes.config.tokens = token_cache_new();
    struct node *node = node_get(&fx.nodes, 5);

    (void)state;
    token_cache_opened(t, 10, false);
    session_after(node, 7, 11);
    token_cache_grant(t, 5, TOKEN_EXCLUSIVE, 11);
    node->names = NODE_GONE;
    assert_int_equal(token_cache_mode(t, 5), TOKEN_EXCLUSIVE);
    node_put(node);
    assert_int_equal(token_cache_mode(t, 5), TOKEN_EXCLUSIVE);
    finish_close(the_file);
    assert_int_equal(token_cache_mode(t, 5), TOKEN_NONE);
    token_cache_free(t);
}

/* A file that is kept open without a user is reported as closed before the request that
 * removes its name; one with a user is not. */
static void test_kept_file_is_reported_closed_at_once(void **state)
{
    struct node *node = open_node(5, 100, 1, NULL);
    struct file *file = the_file;

    (void)state;
    node_keep(node);
    node_let_go_first(node);
    nodes_tell_closes(&fx.nodes);
    assert_int_equal(fx.exportd.n_sent, 0);
    node_keep(node);
    node_put(node);
    node_let_go_first(node);
    assert_true(node->closing);
    nodes_tell_closes(&fx.nodes);
    assert_int_equal(fx.exportd.n_sent, 1);
    assert_int_equal(fx.exportd.sent[0]->op, ROZO__OP__MD_CLOSE);
    fake_exportd_answer(&fx.exportd, 0, ROZO__STATUS__OK, NULL);
    finish_close(file);
    nodes_tell_closes(&fx.nodes);
    assert_int_equal(fx.exportd.n_sent, 0); /* the close is reported once */
    assert_null(node_find(&fx.nodes, 5));
}

static void test_user_of_a_node_waits_until_it_is_closed(void **state)
{
    struct node *node = open_node(5, 100, 1, NULL);
    struct file *file = the_file;

    (void)state;
    node_put(node);
    assert_ptr_equal(node_get(&fx.nodes, 5), node);
    assert_true(node->closing);
    fx.wait.ready = on_ready;
    node_wait(node, &fx.wait);
    assert_int_equal(fx.n_ready, 0);
    finish_close(file);
    assert_int_equal(fx.n_ready, 1);
    assert_false(node->closing);
    assert_null(node->file);
    node_put(node);
    nodes_tell_closes(&fx.nodes);
    assert_int_equal(fx.exportd.sent[0]->op, ROZO__OP__MD_CLOSE);
    fake_exportd_answer(&fx.exportd, 0, ROZO__STATUS__OK, NULL);
}

static void test_pages_stay_when_nothing_changed(void **state)
{
    bool fresh;

    (void)state;
    close_node(open_node(5, 100, 1, &fresh));
    assert_false(fresh); /* never seen before */
    close_node(open_node(5, 100, 1, &fresh));
    assert_true(fresh);
    close_node(open_node(5, 100, 2, &fresh));
    assert_false(fresh);
    close_node(open_node(5, 200, 3, &fresh));
    assert_false(fresh);
}

static void test_our_own_changes_are_not_taken_for_others(void **state)
{
    struct node *node = open_node(5, 100, 7, NULL);
    struct md_entry e = entry_of(5, 100, 8);
    bool fresh;

    (void)state;
    node_change_sent(node);
    node_note_attr(node, &e.attr); /* a getattr whose answer came first */
    assert_int_equal(fx.n_invalidated, 0);
    node_change_answered(node, &e.attr);
    assert_int_equal(fx.n_invalidated, 0);
    node_note_attr(node, &e.attr);
    assert_int_equal(fx.n_invalidated, 0);
    close_node(node);
    close_node(open_node(5, 100, 8, &fresh));
    assert_true(fresh);
}

static void test_others_changes_drop_the_pages(void **state)
{
    struct node *node = open_node(5, 100, 7, NULL);
    struct md_entry e = entry_of(5, 100, 8);

    (void)state;
    node_note_attr(node, &e.attr);
    assert_int_equal(fx.n_invalidated, 1);
    assert_int_equal(n_dropped, 1);
    e = entry_of(5, 300, 9);
    node_note_attr(node, &e.attr);
    assert_int_equal(fx.n_invalidated, 2);
    assert_int_equal(node->file->size, 300);
    /* A change of another mount, between the request and its answer, shows in the change
     * counter. */
    node_change_sent(node);
    e = entry_of(5, 300, 11);
    node_change_answered(node, &e.attr);
    assert_int_equal(fx.n_invalidated, 3);
    close_node(node);
}

static void test_a_loss_of_power_is_news_once(void **state)
{
    struct node *node = open_node(5, 100, 1, NULL);

    (void)state;
    nodes_learn_losses(&fx.nodes, 0);
    assert_int_equal(n_told_again, 0);
    unsynced_inodes_note(fx.unsynced, 5, fx.nodes.losses);
    nodes_learn_losses(&fx.nodes, 3);
    nodes_learn_losses(&fx.nodes, 3);
    assert_int_equal(n_told_again, 1);
    assert_true(unsynced_inodes_take_lost(fx.unsynced, 5));
    close_node(node);
}

static void test_any_change_elsewhere_makes_pages_worthless(void **state)
{
    struct node *node = open_node(5, 100, 7, NULL);
    struct md_entry e = entry_of(5, 100, 8);

    (void)state;
    e.attr.mtime_ns = 7; /* unknown whether the bytes are the same */
    node_note_attr(node, &e.attr);
    assert_int_equal(fx.n_invalidated, 1);
    close_node(node);
}

/* Some other mount extended the file before the answer to this mount's report: the next
 * getattr, at the latest, must show the size. */
static void test_a_size_hidden_behind_our_own_change_is_heard_of(void **state)
{
    struct node *node = open_node(5, 100, 7, NULL);
    /* 8 was the other mount's change, 9 is this one's */
    struct md_entry e = entry_of(5, 300, 9);

    (void)state;
    node_change_sent(node);
    node_change_answered(node, &e.attr);
    node_note_attr(node, &e.attr); /* stat(2), later */
    assert_int_equal(node->file->size, 300);
    close_node(node);
}

/* ... also one that is answered while our report is under way: its token allows reads. */
static void test_a_longer_file_is_heard_of_beside_our_own_change(void **state)
{
    struct node *node = open_node(5, 100, 7, NULL);
    struct md_entry longer = entry_of(5, 300, 8), older = entry_of(5, 200, 6);

    (void)state;
    node_change_sent(node);
    node_note_attr(node, &older.attr);
    assert_int_equal(node->file->size, 100);
    node_note_attr(node, &longer.attr);
    assert_int_equal(node->file->size, 300);
    assert_int_equal(fx.n_invalidated, 0);
    longer = entry_of(5, 100, 9); /* perhaps from before our report */
    node_note_attr(node, &longer.attr);
    assert_int_equal(node->file->size, 300);
    node_change_answered(node, NULL);
    close_node(node);
}

/* A report got no answer: changes of other mounts must still be noticed. */
static void test_changes_of_others_show_after_an_unanswered_change(void **state)
{
    struct node *node = open_node(5, 100, 7, NULL);
    struct md_entry e = entry_of(5, 300, 12);

    (void)state;
    node_change_sent(node);
    node_change_answered(node, NULL);
    node_note_attr(node, &e.attr);
    assert_int_equal(node->file->size, 300);
    assert_int_equal(fx.n_invalidated, 1);
    close_node(node);
}

/* exportd answers a repeated request as it did the first time. A refused report and later
 * changes are newer than that answer of an open. */
static void test_an_opening_that_is_answered_late_does_not_make_it_shorter(void **state)
{
    struct node *node = open_node(5, 0, 7, NULL);
    struct md_entry late = entry_of(5, 0, 8), e = entry_of(5, 300, 10);

    (void)state;
    node_change_sent(node);
    /* refused: its epoch is older than that of the open */
    node_change_answered(node, NULL);
    node_change_sent(node);
    node_change_answered(node, &e.attr);
    node->file->size = 300;
    assert_false(node_cache_is_fresh(node, &late.attr));
    assert_int_equal(node_adopt(node, &late, true), 0);
    assert_int_equal(node->file->size, 300);
    node_note_attr(node, &late.attr);
    assert_int_equal(node->file->size, 300);
    /* exportd lost these changes, and counts from an earlier value again */
    nodes_learn_losses(&fx.nodes, 1);
    node_note_attr(node, &late.attr);
    assert_int_equal(node->file->size, 0);
    close_node(node);
}

/* cp -p, rsync -t and touch -r leave other data with the same size and mtime. */
static void test_other_data_of_the_same_mtime_is_noticed(void **state)
{
    struct md_entry e = entry_of(5, 100, 9);
    struct node *node = open_node(5, 100, 7, NULL);

    (void)state;
    e.attr.mtime_ns = 7; /* set back */
    close_node(node);
    node = node_get(&fx.nodes, 5);
    assert_false(node_cache_is_fresh(node, &e.attr));
    node_put(node);
}

static unsigned n_meta_done;
static int meta_rc;
static void on_meta_done(struct file_meta_call *call, int rc)
{
    (void)call;
    n_meta_done++;
    meta_rc = rc;
}

static void test_requests_of_the_file_layer_are_sent_to_exportd(void **state)
{
    struct node *node = open_node(5, 100, 7, NULL);
    struct file_meta_call call = { .done = on_meta_done };
    Rozo__MdEntryResp answer = ROZO__MD_ENTRY_RESP__INIT;
    Rozo__Attr attr = ROZO__ATTR__INIT;
    Rozo__MdWroteReq *req;

    (void)state;
    n_meta_done = 0;
    the_file->meta->wrote(the_file->meta->arg, &call, 200, 7, true, 55, 0, true);
    assert_int_equal(fx.exportd.sent[0]->op, ROZO__OP__MD_WROTE);
    req = rozo__md_wrote_req__unpack(NULL, fx.exportd.msg_len[0], fx.exportd.msg[0]);
    assert_int_equal(req->size, 200);
    assert_int_equal(req->epoch, 7);
    assert_true(req->has_data && req->sync);
    assert_int_equal(req->mtime_ns, 55);
    rozo__md_wrote_req__free_unpacked(req, NULL);
    fake_exportd_answer(&fx.exportd, 0, ROZO__STATUS__STALE_HANDLE, NULL);
    assert_int_equal(n_meta_done, 1);
    assert_int_equal(meta_rc, -ESTALE);
    assert_int_equal(node->synced_no, 0);
    /* A durable report says nothing about an fsync that began after it was sent. */
    node->n_syncs = 1;
    the_file->meta->wrote(the_file->meta->arg, &call, 0, 7, true, 0, 0, true);
    node->n_syncs = 2;
    answer.attr = &attr;
    attr.ino = 5;
    attr.mode = S_IFREG | 0644;
    answer.cut = true;
    fake_exportd_answer(&fx.exportd, 0, ROZO__STATUS__OK, &answer.base);
    assert_true(call.is_cut);
    assert_int_equal(meta_rc, 0);
    assert_int_equal(node->synced_no, 1);
    n_meta_done--;
    the_file->meta->renew(the_file->meta->arg, &call);
    assert_int_equal(fx.exportd.sent[0]->op, ROZO__OP__MD_OPEN);
    fake_exportd_answer_raw(&fx.exportd, 0, ROZO__STATUS__OK, "\xff", 1);
    assert_int_equal(meta_rc, -EIO);
    the_file->meta->truncated(the_file->meta->arg, &call, 1);
    fake_exportd_fail(&fx.exportd, 0, -ETIMEDOUT);
    assert_int_equal(meta_rc, -EIO);
    assert_int_equal(n_meta_done, 3);
    close_node(node);
}

/* exportd accepts a report of file 5. */
static void report_answer(void)
{
    Rozo__MdEntryResp answer = ROZO__MD_ENTRY_RESP__INIT;
    Rozo__Attr attr = ROZO__ATTR__INIT;

    answer.attr = &attr;
    attr.ino = 5;
    attr.mode = S_IFREG | 0644;
    fake_exportd_answer(&fx.exportd, 0, ROZO__STATUS__OK, &answer.base);
}

/* Sends a durable MD_WROTE; is_answered: exportd accepts it. */
static void tell_durably(struct file_meta_call *call, bool is_answered)
{
    *call = (struct file_meta_call){ .done = on_meta_done };
    the_file->meta->wrote(the_file->meta->arg, call, 0, 7, true, 55, 0, true);
    if (is_answered)
        report_answer();
    else
        fake_exportd_answer(&fx.exportd, 0, ROZO__STATUS__STALE_HANDLE, NULL);
}

static void test_node_is_durable_while_its_exclusive_token_is_held(void **state)
{
    struct token_cache *t = fx.nodes.config.tokens = token_cache_new();
    struct node *node = open_node(5, 100, 7, NULL);
    struct file_meta_call call;

    (void)state;
    token_cache_opened(t, 10, false);
    tell_durably(&call, true);
    assert_false(node_is_durable(node)); /* others may have changed the file */
    token_cache_grant(t, 5, TOKEN_EXCLUSIVE, 11);
    assert_false(node_is_durable(node)); /* the report was sent before the grant */
    tell_durably(&call, false);
    assert_false(node_is_durable(node));
    tell_durably(&call, true);
    assert_true(node_is_durable(node));
    unsynced_inodes_note(fx.unsynced, 6, fx.nodes.losses);
    assert_false(node_is_durable(node));
    tell_durably(&call, true);
    assert_true(node_is_durable(node));
    node->lowered++; /* the token was given back, and granted again */
    assert_false(node_is_durable(node));
    tell_durably(&call, true);
    assert_true(node_is_durable(node));
    token_cache_gave_back(t, 5, TOKEN_NONE, 11);
    assert_false(node_is_durable(node));
    close_node(node);
    token_cache_free(t);
    fx.nodes.config.tokens = NULL;
}

/* Tells durably of bytes beyond the end that exportd knows. */
static void report_begins(struct file_meta_call *call)
{
    *call = (struct file_meta_call){ .done = on_meta_done };
    n_meta_done = 0;
    the_file->meta->wrote(the_file->meta->arg, call, 200, 7, true, 55, 0, true);
}

/*
 * exportd ended the session before it heard that the file has grown, and others may have
 * written there since. Under the next session it would accept the report, but do nothing.
 */
static void test_a_report_ends_with_the_token_of_its_data(void **state)
{
    struct token_cache *t = fx.nodes.config.tokens = token_cache_new();
    struct node *node = open_node(5, 100, 7, NULL);
    struct file_meta_call call;

    (void)state;
    token_cache_opened(t, 10, false);
    token_cache_grant(t, 5, TOKEN_EXCLUSIVE, 11);
    /* exportd was started again, and the session keeps its tokens */
    report_begins(&call);
    fake_exportd_answer(&fx.exportd, 0, ROZO__STATUS__NO_SESSION, NULL);
    token_cache_opened(t, 20, false);
    md_client_session_is_open(&fx.md);
    report_answer();
    assert_int_equal(n_meta_done, 1);
    assert_int_equal(meta_rc, 0);
    /* the session is over */
    report_begins(&call);
    fake_exportd_answer(&fx.exportd, 0, ROZO__STATUS__NO_SESSION, NULL);
    token_cache_opened(t, 30, true);
    md_client_session_is_open(&fx.md);
    assert_int_equal(fx.exportd.n_sent, 0);
    assert_int_equal(n_meta_done, 1);
    assert_int_equal(meta_rc, -EIO);
    /* one that begins before the loss of the token has been dealt with */
    report_begins(&call);
    report_answer();
    assert_int_equal(n_meta_done, 1);
    assert_int_equal(meta_rc, -EIO);
    token_cache_gave_back(t, 5, TOKEN_NONE, 0);
    token_cache_grant(t, 5, TOKEN_EXCLUSIVE, 31);
    report_begins(&call);
    report_answer();
    assert_int_equal(meta_rc, 0);
    close_node(node);
    token_cache_free(t);
    fx.nodes.config.tokens = NULL;
}

/* Returns the time that the next write gets. */
static int64_t stamp(void)
{
    return the_file->meta->clock_ns(the_file->meta->arg);
}

static void test_a_write_is_later_than_what_is_known_of_its_file(void **state)
{
    const int64_t second_ns = 1000000000;
    struct node *node = open_node(5, 100, 7, NULL);
    struct md_entry e = entry_of(5, 100, 8);
    int64_t now_ns = stamp();

    (void)state;
    assert_int_equal(stamp(), now_ns + 1); /* later than any other write */
    e.attr.ctime_ns = now_ns + second_ns;  /* the estimate of exportd's clock lags */
    node_note_attr(node, &e.attr);
    assert_int_equal(stamp(), now_ns + second_ns + 1);
    fx.env.now_ns += 2 * (uint64_t)second_ns;
    assert_int_equal(stamp(), now_ns + 2 * second_ns);
    node_change_sent(node);
    e.attr.change++;
    e.attr.ctime_ns = now_ns + 3 * second_ns;
    node_change_answered(node, &e.attr);
    assert_int_equal(stamp(), now_ns + 3 * second_ns + 1);
    e.attr.ctime_ns = now_ns + 3600 * second_ns; /* exportd's clock was set back */
    node_note_attr(node, &e.attr);
    assert_int_equal(stamp(), now_ns + 2 * second_ns);
    close_node(node);
}

/* A read counts depending on the latest reported, written and read times. */
static void test_reads_count_once_a_change(void **state)
{
    const int64_t second_ns = 1000000000;
    struct atimes *a = atimes_new(ATIMES_RELATIVE, false);
    struct node *node = open_node(5, 100, 7, NULL);
    struct md_entry e = entry_of(5, 100, 8);
    struct atime_note note;
    int64_t first_ns;

    (void)state;
    e.attr.ctime_ns = stamp();
    e.attr.atime_ns = 3 * second_ns;
    node_note_attr(node, &e.attr);
    assert_true(node_note_read(node, a));
    assert_false(node_note_read(node, a));
    assert_int_equal(atimes_take(a, INT64_MAX, &note, 1), 1);
    first_ns = note.read.at_ns;
    assert_true(first_ns > e.attr.ctime_ns && note.read.seen_ns == 3 * second_ns);
    node_note_attr(node, &e.attr); /* exportd has not heard of it */
    assert_false(node_note_read(node, a));
    node->file->mtime_ns = stamp(); /* a write not reported to exportd */
    assert_true(node_note_read(node, a));
    assert_int_equal(atimes_take(a, INT64_MAX, &note, 1), 1);
    assert_true(note.read.at_ns > node->file->mtime_ns && note.read.seen_ns == first_ns);
    e.attr.change = 7; /* an older answer */
    e.attr.ctime_ns += 60 * second_ns;
    node_note_attr(node, &e.attr);
    assert_false(node_note_read(node, a));
    close_node(node);
    atimes_free(a);
}

/* Others write to other ranges, and this mount does not hear of it: exportd decides. */
static void test_reads_beside_writers_are_all_reported(void **state)
{
    struct atimes *a = atimes_new(ATIMES_RELATIVE, false);
    struct token_cache *t = fx.nodes.config.tokens = token_cache_new();
    const struct held_range range = { .ino = 5, .to = 4096, .size = 8192 };
    struct node *node = open_node(5, 100, 7, NULL);
    struct atime_note note;

    (void)state;
    token_cache_opened(t, 1, false);
    assert_true(node_note_read(node, a));
    assert_false(node_note_read(node, a));
    token_cache_grant_range(t, &range, 11);
    assert_int_equal(token_cache_mode(t, 5), TOKEN_RANGES);
    assert_int_equal(atimes_take(a, INT64_MAX, &note, 1), 1);
    assert_true(node_note_read(node, a));
    assert_int_equal(atimes_take(a, INT64_MAX, &note, 1), 1);
    token_cache_gave_back(t, 5, TOKEN_NONE, 11);
    close_node(node);
    token_cache_free(t);
    fx.nodes.config.tokens = NULL;
    atimes_free(a);
}

static void test_overlay(void **state)
{
    struct node *node = open_node(5, 100, 7, NULL);
    struct stat st = { .st_size = 100 };

    (void)state;
    node_overlay(node, &st);
    assert_int_equal(st.st_mtim.tv_sec, 0);
    node->file->size = 5000;
    node->file->mtime_ns = 3000000001;
    node_overlay(node, &st);
    assert_int_equal(st.st_size, 5000);
    assert_int_equal(st.st_mtim.tv_sec, 3);
    assert_int_equal(st.st_mtim.tv_nsec, 1);
    assert_int_equal(st.st_ctim.tv_sec, 3);
    assert_int_equal(st.st_blocks, 0);
    node->file->allocated_more = 8192;
    node_overlay(node, &st);
    assert_int_equal(st.st_blocks, 16);
    close_node(node);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            test_a_size_hidden_behind_our_own_change_is_heard_of, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_changes_of_others_show_after_an_unanswered_change, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_an_opening_that_is_answered_late_does_not_make_it_shorter, setup,
            teardown),
        cmocka_unit_test_setup_teardown(test_other_data_of_the_same_mtime_is_noticed,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_close_says_whether_storages_have_any,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_close_with_bytes_unreported_does_not_wait,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_closes_are_sent_together, setup, teardown),
        cmocka_unit_test_setup_teardown(test_references_go_back_after_the_last_close,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_report_ends_with_the_token_of_its_data,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_session_changes_with_the_token, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(
            test_token_of_a_removed_file_goes_with_the_last_close, setup, teardown),
        cmocka_unit_test_setup_teardown(test_kept_file_is_reported_closed_at_once, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_user_of_a_node_waits_until_it_is_closed,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_pages_stay_when_nothing_changed, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_our_own_changes_are_not_taken_for_others,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_others_changes_drop_the_pages, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_a_loss_of_power_is_news_once, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_any_change_elsewhere_makes_pages_worthless,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_requests_of_the_file_layer_are_sent_to_exportd, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_node_is_durable_while_its_exclusive_token_is_held, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_a_write_is_later_than_what_is_known_of_its_file, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_a_longer_file_is_heard_of_beside_our_own_change, setup, teardown),
        cmocka_unit_test_setup_teardown(test_reads_count_once_a_change, setup, teardown),
        cmocka_unit_test_setup_teardown(test_reads_beside_writers_are_all_reported, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_overlay, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
