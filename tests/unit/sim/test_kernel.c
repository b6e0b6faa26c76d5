/*
 * test_kernel.c - the model of Linux above a mount caches, asks, drops and locks as Linux
 * does.
 *
 * Method: a fake mount below it answers when the test says so; each behaviour is one on
 * which coherence between mounts depends.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdalign.h>

#include "tests/sim/cluster/kernel/kernel.h"
#include "tests/sim/cluster/world/proc.h"
#include "tests/unit/unit.h"

enum { ASKED_MAX = 64, PAGE = 4096, DIR = 1, FILE_INO = 7 };

/* A request to the mount that is not answered yet. */
struct asked {
    struct fuse_req *req;
    struct request r;
    char name[64];
};

static struct {
    struct kernel *k;
    struct asked asked[ASKED_MAX];
    unsigned n_asked; /* requests since the start */
    unsigned n_answered;
} t;

/* A process that makes system calls. */
struct caller {
    struct fuse_req req;
    bool done;
    alignas(8) uint8_t data[64 << 10];
};
struct waiter {
    struct kernel_notice notice;
    bool done;
    int rc;
};

static void on_sent(void *arg, struct fuse_req *req, const struct request *r)
{
    struct asked *a = &t.asked[t.n_asked++ % ASKED_MAX];

    (void)arg;
    a->req = req;
    a->r = *r;
    a->name[0] = '\0';
    if (r->name != NULL)
        strncpy(a->name, r->name, sizeof(a->name) - 1);
}

static void settle(void)
{
    while (world_next_ns() <= world_clock.now_ns)
        world_step();
}

static void on_done(struct fuse_req *req)
{
    ((struct caller *)(void *)req)->done = true;
}

static void ask(struct caller *c, const struct request *r)
{
    memset(&c->req, 0, sizeof(c->req));
    c->done = false;
    c->req.done = on_done;
    c->req.data = c->data;
    kernel_ask(t.k, &c->req, r);
    settle();
}

/* Returns the oldest unanswered request, which must be of this kind. */
static struct asked *next(enum request_kind kind)
{
    struct asked *a = &t.asked[t.n_answered % ASKED_MAX];

    assert_true(t.n_answered < t.n_asked);
    assert_int_equal(a->r.kind, kind);
    t.n_answered++;
    return a;
}

static void nothing_asked(void)
{
    assert_int_equal(t.n_answered, t.n_asked);
}

static void answer(struct asked *a, int rc)
{
    request_answered(a->req, rc);
    settle();
}

static struct fuse_entry_param entry(uint64_t ino, uint64_t size, double name_s,
                                     double attr_s)
{
    return (struct fuse_entry_param){
        .ino = ino,
        .attr = { .st_ino = ino, .st_mode = S_IFREG | 0644, .st_size = (off_t)size },
        .entry_timeout = name_s,
        .attr_timeout = attr_s,
    };
}

static void answer_entry(struct asked *a, const struct fuse_entry_param *e)
{
    a->req->entry = *e;
    a->req->st = e->attr;
    answer(a, e->ino == 0 ? -ENOENT : 0);
}

static void answer_attr(struct asked *a, uint64_t size, double attr_s)
{
    a->req->st = entry(a->r.ino, size, 0, 0).attr;
    a->req->attr_timeout_s = attr_s;
    answer(a, 0);
}

/* Answers a read of a file that is full of this byte. */
static void answer_read(struct asked *a, uint64_t size, uint8_t byte)
{
    uint64_t n = a->r.off >= size             ? 0
                 : size - a->r.off < a->r.len ? size - a->r.off
                                              : a->r.len;

    memset(a->req->data, byte, n);
    a->req->data_len = n;
    answer(a, 0);
}

static void on_noticed(struct kernel_notice *notice, int rc)
{
    struct waiter *w = (struct waiter *)(void *)notice;

    w->done = true;
    w->rc = rc;
}

static void inval_inode(struct waiter *w, uint64_t ino, int64_t off, int64_t len)
{
    *w = (struct waiter){ .notice.done = on_noticed };
    kernel_inval_inode(t.k, ino, off, len, &w->notice);
    settle();
}

static void inval_entry(struct waiter *w, uint64_t parent, const char *name)
{
    *w = (struct waiter){ .notice.done = on_noticed };
    kernel_inval_entry(t.k, parent, name, &w->notice);
    settle();
}

static void expire_entry(struct waiter *w, uint64_t parent, const char *name)
{
    *w = (struct waiter){ .notice.done = on_noticed };
    kernel_expire_entry(t.k, parent, name, &w->notice);
    settle();
}

static int begin(void **state)
{
    const struct kernel_config config = { .send = on_sent };

    (void)state;
    world_begin(1);
    memset(&t, 0, sizeof(t));
    t.k = kernel_new(&config);
    return 0;
}

static int end(void **state)
{
    (void)state;
    kernel_free(t.k);
    world_end();
    return 0;
}

static const struct request look = { .kind = REQUEST_LOOKUP, .ino = DIR, .name = "f" };
static const struct request stat_it = { .kind = REQUEST_GETATTR, .ino = FILE_INO };

static void look_up(struct caller *c, uint64_t ino, uint64_t size, double name_s,
                    double attr_s)
{
    const struct fuse_entry_param e = entry(ino, size, name_s, attr_s);

    ask(c, &look);
    answer_entry(next(REQUEST_LOOKUP), &e);
    assert_true(c->done);
}

static void later(uint64_t ms)
{
    world_run_until(world_clock.now_ns + ms * 1000000);
}

/* ---- names ---- */

static void test_names_are_believed_for_their_time(void **state)
{
    static struct caller c;

    (void)state;
    look_up(&c, FILE_INO, 0, 1, 0);
    ask(&c, &look);
    assert_true(c.done && c.req.rc == 0 && c.req.entry.ino == FILE_INO);
    nothing_asked();
    later(1100);
    ask(&c, &look);
    answer_entry(next(REQUEST_LOOKUP), &(struct fuse_entry_param){ .entry_timeout = 1 });
    /* asked once more, under the lock of the directory */
    answer_entry(next(REQUEST_LOOKUP), &(struct fuse_entry_param){ .entry_timeout = 1 });
    assert_int_equal(c.req.rc, -ENOENT);
    ask(&c, &look);
    assert_true(c.done && c.req.rc == -ENOENT);
    nothing_asked();
}

static void test_an_invalidated_name_is_asked_for(void **state)
{
    static struct caller c;
    struct waiter w;

    (void)state;
    look_up(&c, FILE_INO, 0, 1000, 0);
    inval_entry(&w, DIR, "f");
    assert_true(w.done && w.rc == 0);
    ask(&c, &look);
    assert_false(c.done);
    next(REQUEST_LOOKUP);
    inval_entry(&w, DIR, "other"); /* waits for the lookup */
    assert_false(w.done);
}

static void test_an_answer_under_way_is_dropped_after_it_came(void **state)
{
    static struct caller c;
    struct waiter w;
    struct asked *a;

    (void)state;
    ask(&c, &look);
    a = next(REQUEST_LOOKUP);
    inval_entry(&w, DIR, "f");
    assert_false(w.done);
    answer_entry(a, &(struct fuse_entry_param){ .ino = FILE_INO, .entry_timeout = 1000 });
    assert_true(c.done && w.done);
    ask(&c, &look);
    next(REQUEST_LOOKUP);
}

static void test_an_expired_name_asked_about_is_not_kept_when_it_was_dropped(void **state)
{
    const struct fuse_entry_param e = entry(FILE_INO, 0, 1000, 0);
    static struct caller c;
    struct waiter w;
    struct asked *a;

    (void)state;
    look_up(&c, FILE_INO, 0, 0, 0);
    ask(&c, &look);
    a = next(REQUEST_LOOKUP);
    inval_entry(&w, DIR, "f");
    assert_true(w.done); /* no caller holds the directory */
    answer_entry(a, &e);
    assert_true(c.done && c.req.rc == 0);
    ask(&c, &look);
    next(REQUEST_LOOKUP);
}

static void test_an_expired_name_is_asked_about_without_a_lock(void **state)
{
    const struct request mkdir = { .kind = REQUEST_MKDIR, .ino = DIR, .name = "d" };
    const struct fuse_entry_param e = entry(FILE_INO, 0, 1000, 0);
    static struct caller c, d;
    struct waiter w;

    (void)state;
    look_up(&c, FILE_INO, 0, 1000, 0);
    ask(&d, &mkdir);
    expire_entry(&w, DIR, "f"); /* has to wait, too */
    assert_false(w.done);
    ask(&c, &look);
    assert_true(c.done && c.req.rc == 0);
    answer(next(REQUEST_MKDIR), -EIO);
    assert_true(w.done && w.rc == 0);
    ask(&d, &mkdir);
    next(REQUEST_MKDIR);
    ask(&c, &look);
    answer_entry(next(REQUEST_LOOKUP), &e);
    assert_true(c.done && c.req.rc == 0);
    ask(&c, &look);
    assert_true(c.done);
    nothing_asked();
}

/* Linux takes the time of an expired name from the answer of its lookup, even if the name
 * was expired again since the mount answered. */
static void
test_an_answer_about_an_expired_name_is_kept_when_it_expires_again(void **state)
{
    const struct fuse_entry_param e = entry(FILE_INO, 0, 1000, 0);
    static struct caller c;
    struct waiter w;
    struct asked *a;

    (void)state;
    look_up(&c, FILE_INO, 0, 0, 0);
    ask(&c, &look);
    a = next(REQUEST_LOOKUP);
    expire_entry(&w, DIR, "f");
    assert_true(w.done);
    answer_entry(a, &e);
    ask(&c, &look);
    assert_true(c.done && c.req.rc == 0);
    nothing_asked();
}

static void test_change_of_a_directory_delays_its_invalidations(void **state)
{
    const struct request mkdir = { .kind = REQUEST_MKDIR, .ino = DIR, .name = "d" };
    const struct request look_other = { .kind = REQUEST_LOOKUP,
                                        .ino = DIR,
                                        .name = "other" };
    const struct fuse_entry_param e = entry(9, 0, 0, 0);
    static struct caller c, d;
    struct waiter w;
    struct asked *a;

    (void)state;
    look_up(&c, FILE_INO, 0, 1000, 0);
    ask(&c, &mkdir);
    a = next(REQUEST_MKDIR);
    inval_entry(&w, DIR, "f");
    ask(&d, &look_other);
    nothing_asked();
    assert_false(w.done);
    answer_entry(a, &e);
    assert_true(c.done && w.done);
    next(REQUEST_LOOKUP);
}

static void test_a_renamed_name_takes_its_time_along(void **state)
{
    const struct request rename = {
        .kind = REQUEST_RENAME, .ino = DIR, .name = "f", .ino2 = DIR, .name2 = "g"
    };
    const struct request look_new = { .kind = REQUEST_LOOKUP, .ino = DIR, .name = "g" };
    static struct caller c;

    (void)state;
    look_up(&c, FILE_INO, 0, 1000, 0);
    ask(&c, &rename);
    answer(next(REQUEST_RENAME), 0);
    ask(&c, &look_new);
    assert_true(c.done && c.req.entry.ino == FILE_INO);
    nothing_asked();
    ask(&c, &look);
    next(REQUEST_LOOKUP);
}

static void test_a_failed_change_forgets_the_name_it_was_wrong_about(void **state)
{
    const struct request unlink = { .kind = REQUEST_UNLINK, .ino = DIR, .name = "f" };
    static struct caller c;

    (void)state;
    look_up(&c, FILE_INO, 0, 1000, 0);
    ask(&c, &unlink);
    answer(next(REQUEST_UNLINK), -EIO);
    ask(&c, &look);
    /* still believed: a mount that answers EIO must handle that */
    assert_true(c.done && c.req.rc == 0);
    ask(&c, &unlink);
    answer(next(REQUEST_UNLINK), -ENOENT);
    ask(&c, &look);
    next(REQUEST_LOOKUP);
}

/* ---- attributes ---- */

static void test_attributes_are_believed_until_they_are_invalidated(void **state)
{
    static struct caller c;
    struct waiter w;

    (void)state;
    look_up(&c, FILE_INO, 10, 0, 1000);
    ask(&c, &stat_it);
    assert_true(c.done && c.req.st.st_size == 10);
    nothing_asked();
    inval_inode(&w, FILE_INO, -1, 0);
    assert_true(w.done);
    ask(&c, &stat_it);
    answer_attr(next(REQUEST_GETATTR), 20, 1000);
    assert_int_equal(c.req.st.st_size, 20);
    ask(&c, &stat_it);
    assert_int_equal(c.req.st.st_size, 20);
    nothing_asked();
}

static void test_attributes_under_way_at_an_invalidation_are_not_kept(void **state)
{
    static struct caller c;
    struct waiter w;
    struct asked *a;

    (void)state;
    look_up(&c, FILE_INO, 10, 0, 0);
    ask(&c, &stat_it);
    a = next(REQUEST_GETATTR);
    inval_inode(&w, FILE_INO, -1, 0);
    assert_true(w.done);
    answer_attr(a, 10, 1000);
    assert_true(c.done && c.req.st.st_size == 10);
    ask(&c, &stat_it);
    next(REQUEST_GETATTR);
}

/* Linux believes the answers of a setattr, and the first attributes of an inode, whatever
 * arrived in between. */
static void test_answers_that_are_kept_all_the_same(void **state)
{
    const struct request cut = { .kind = REQUEST_TRUNCATE, .ino = FILE_INO, .off = 5 };
    const struct fuse_entry_param e = entry(FILE_INO, 10, 0, 1000);
    static struct caller c;
    struct waiter w;
    struct asked *a;

    (void)state;
    ask(&c, &look);
    a = next(REQUEST_LOOKUP);
    inval_inode(&w, FILE_INO, -1, 0);
    assert_true(w.done && w.rc == -ENOENT);
    answer_entry(a, &e);
    ask(&c, &stat_it);
    assert_true(c.done && c.req.st.st_size == 10);
    ask(&c, &cut);
    a = next(REQUEST_TRUNCATE);
    inval_inode(&w, FILE_INO, -1, 0);
    answer_attr(a, 5, 1000);
    ask(&c, &stat_it);
    assert_true(c.done && c.req.st.st_size == 5);
    nothing_asked();
}

/* ---- listings ---- */

static void open_dir(struct caller *c, uint64_t fh, bool keeps_names, bool keeps_cache)
{
    const struct request open = { .kind = REQUEST_OPENDIR, .ino = DIR };
    struct asked *a;

    ask(c, &open);
    a = next(REQUEST_OPENDIR);
    a->req->fh = fh;
    a->req->keeps_names = keeps_names;
    a->req->keeps_cache = keeps_cache;
    answer(a, 0);
}

static struct request list_of(uint64_t fh, uint64_t off)
{
    return (struct request){ .kind = REQUEST_READDIR, .ino = DIR, .fh = fh, .off = off };
}

/* Answers a listing: one name with this inode at offset 0, none at offset 1. */
static void answer_list(struct asked *a, uint64_t ino)
{
    const struct sim_dirent d = { .ino = ino, .next = 1, .name = "f" };

    a->req->data_len = a->r.off == 0 ? sizeof(d) : 0;
    memcpy(a->req->data, &d, a->req->data_len);
    answer(a, 0);
}

static void list_all(struct caller *c, uint64_t fh, uint64_t ino)
{
    const struct request first = list_of(fh, 0), rest = list_of(fh, 1);

    ask(c, &first);
    answer_list(next(REQUEST_READDIR), ino);
    ask(c, &rest);
    answer_list(next(REQUEST_READDIR), ino);
}

static void lists_from_memory(struct caller *c, uint64_t fh, uint64_t ino)
{
    const struct request first = list_of(fh, 0), rest = list_of(fh, 1);

    ask(c, &first);
    assert_true(c->done && c->req.rc == 0);
    assert_int_equal(c->req.data_len, sizeof(struct sim_dirent));
    assert_int_equal(((struct sim_dirent *)(void *)c->data)->ino, ino);
    ask(c, &rest);
    assert_true(c->done && c->req.data_len == 0);
    nothing_asked();
}

static void test_a_listing_is_kept_for_those_who_may_use_it(void **state)
{
    static struct caller c;

    (void)state;
    open_dir(&c, 1, true, true);
    list_all(&c, 1, 7);
    lists_from_memory(&c, 1, 7);
    open_dir(&c, 2, true, true);
    lists_from_memory(&c, 2, 7);
    open_dir(&c, 3, false, true);
    list_all(&c, 3, 8);
    lists_from_memory(&c, 2, 7);
    open_dir(&c, 4, true, false); /* drops the cached listing */
    list_all(&c, 4, 9);
    lists_from_memory(&c, 2, 9);
}

static void test_changes_and_invalidations_drop_a_listing(void **state)
{
    const struct request mkdir = { .kind = REQUEST_MKDIR, .ino = DIR, .name = "d" };
    const struct fuse_entry_param e = entry(9, 0, 1000, 0);
    static struct caller c;
    struct waiter w;

    (void)state;
    open_dir(&c, 1, true, true);
    list_all(&c, 1, 7);
    inval_inode(&w, DIR, -1, 0); /* only attributes are dropped */
    lists_from_memory(&c, 1, 7);
    inval_inode(&w, DIR, 0, 0);
    list_all(&c, 1, 8);
    lists_from_memory(&c, 1, 8);
    ask(&c, &mkdir);
    answer_entry(next(REQUEST_MKDIR), &e);
    list_all(&c, 1, 9);
    lists_from_memory(&c, 1, 9);
    expire_entry(&w, DIR, "d");
    list_all(&c, 1, 10);
}

static void test_a_list_under_way_at_an_invalidation_is_kept(void **state)
{
    const struct request first = list_of(1, 0), rest = list_of(1, 1);
    static struct caller c;
    struct waiter w;
    struct asked *a;

    (void)state;
    open_dir(&c, 1, true, true);
    ask(&c, &first);
    a = next(REQUEST_READDIR);
    inval_inode(&w, DIR, 0, 0);
    assert_true(w.done);
    answer_list(a, 7);
    ask(&c, &rest);
    answer_list(next(REQUEST_READDIR), 7);
    lists_from_memory(&c, 1, 7);
}

static void test_a_name_is_dropped_when_the_list_under_way_is_read(void **state)
{
    const struct request first = list_of(1, 0);
    static struct caller c;
    struct waiter w;
    struct asked *a;

    (void)state;
    open_dir(&c, 1, true, true);
    ask(&c, &first);
    a = next(REQUEST_READDIR);
    expire_entry(&w, DIR, "no such name");
    assert_false(w.done);
    answer_list(a, 7);
    assert_true(w.done);
}

/* ---- pages ---- */

static void open_file(struct caller *c, uint64_t size, bool keeps, bool direct)
{
    const struct request open = { .kind = REQUEST_OPEN,
                                  .ino = FILE_INO,
                                  .flags = O_RDWR };
    struct asked *a;

    look_up(c, FILE_INO, size, 0, 1000);
    ask(c, &open);
    a = next(REQUEST_OPEN);
    a->req->fh = 1;
    a->req->keeps_cache = keeps;
    a->req->is_direct = direct;
    answer(a, 0);
}

static struct request read_of(uint64_t off, uint64_t len)
{
    return (struct request){
        .kind = REQUEST_READ, .ino = FILE_INO, .fh = 1, .off = off, .len = len
    };
}

static void read_first(struct caller *c, uint64_t size, uint8_t byte)
{
    const struct request r = read_of(0, size);

    ask(c, &r);
    answer_read(next(REQUEST_READ), size, byte);
    assert_true(c->done);
    assert_int_equal(c->req.data_len, size);
}

static void test_pages_are_kept_until_they_are_dropped(void **state)
{
    const struct request r = read_of(100, 200), all = read_of(0, 3 * PAGE);
    static struct caller c;
    struct waiter w;
    struct asked *a;

    (void)state;
    open_file(&c, 3 * PAGE, false, false);
    read_first(&c, 3 * PAGE, 'a');
    ask(&c, &r);
    assert_true(c.done && c.req.data_len == 200 && c.data[0] == 'a');
    nothing_asked();
    inval_inode(&w, FILE_INO, PAGE, 1);
    ask(&c, &r); /* bytes of the first page */
    assert_true(c.done);
    ask(&c, &all);
    assert_false(c.done);
    a = next(REQUEST_READ);
    assert_int_equal(a->r.off, PAGE);
    assert_int_equal(a->r.len, PAGE);
    answer_read(a, 3 * PAGE, 'b');
    assert_true(c.done);
    assert_int_equal(c.data[0], 'a');
    assert_int_equal(c.data[PAGE], 'b');
    assert_int_equal(c.data[2 * PAGE], 'a');
}

static void test_an_open_without_keep_cache_drops_them(void **state)
{
    const struct request r = read_of(0, 100);
    static struct caller c;

    (void)state;
    open_file(&c, PAGE, false, false);
    read_first(&c, PAGE, 'a');
    open_file(&c, PAGE, true, false);
    ask(&c, &r);
    assert_true(c.done);
    open_file(&c, PAGE, false, false);
    ask(&c, &r);
    next(REQUEST_READ);
}

static void test_an_invalidation_waits_for_the_read_of_its_page(void **state)
{
    const struct request r = read_of(0, PAGE);
    static struct caller c;
    struct waiter w, other;
    struct asked *a;

    (void)state;
    open_file(&c, 2 * PAGE, false, false);
    ask(&c, &r);
    a = next(REQUEST_READ);
    inval_inode(&w, FILE_INO, 0, 0);
    inval_inode(&other, FILE_INO, 32 * PAGE, PAGE);
    assert_false(w.done);
    assert_true(other.done);
    answer_read(a, 2 * PAGE, 'a');
    assert_true(w.done);
    while (!c.done) /* woken too late for the page: the read is sent again */
        answer_read(next(REQUEST_READ), 2 * PAGE, 'b');
    ask(&c, &r);
    assert_true(c.done ? c.data[0] == 'b' : next(REQUEST_READ) != NULL);
}

static void test_reads_end_where_the_kernel_thinks_that_the_file_ends(void **state)
{
    const struct request inside = read_of(0, 10), beyond = read_of(0, 2 * PAGE);
    static struct caller c;
    struct waiter w;

    (void)state;
    open_file(&c, 10, false, false);
    ask(&c, &beyond);
    answer_read(next(REQUEST_READ), 10, 'a');
    assert_int_equal(c.req.data_len, 10);
    ask(&c, &beyond); /* believed without a request */
    assert_true(c.done && c.req.data_len == 10);
    inval_inode(&w, FILE_INO, -1, 0);
    ask(&c, &inside);
    assert_true(c.done);
    ask(&c, &beyond);
    answer_attr(next(REQUEST_GETATTR), PAGE, 1000);
    /* the size differs: all pages were dropped */
    answer_read(next(REQUEST_READ), PAGE, 'b');
    assert_true(c.done && c.req.data_len == PAGE && c.data[0] == 'b');
}

/* ---- writes ---- */

static struct request write_of(uint64_t off, uint64_t len, const void *data, int flags)
{
    return (struct request){ .kind = REQUEST_WRITE,
                             .ino = FILE_INO,
                             .fh = 1,
                             .off = off,
                             .len = len,
                             .flags = flags,
                             .data = data };
}

static void test_a_write_is_in_the_pages_before_the_mount_has_it(void **state)
{
    static uint8_t data[2 * PAGE];
    const struct request w = write_of(100, 50, data, 0), r = read_of(0, PAGE);
    static struct caller c, d;

    (void)state;
    memset(data, 'w', sizeof(data));
    open_file(&c, PAGE, false, false);
    read_first(&c, PAGE, 'a');
    ask(&c, &w);
    ask(&d, &r);
    assert_true(d.done && d.data[99] == 'a' && d.data[100] == 'w');
    answer(next(REQUEST_WRITE), -EIO); /* dirty no more */
    assert_int_equal(c.req.rc, -EIO);
    ask(&d, &r);
    answer_read(next(REQUEST_READ), PAGE, 'a');
    assert_int_equal(d.data[100], 'a');
}

static void test_a_piece_of_a_page_that_is_not_there_is_locked(void **state)
{
    static uint8_t data[3 * PAGE];
    const struct request w = write_of(100, 2 * PAGE, data, 0), r = read_of(0, 10);
    static struct caller c, d;
    struct asked *a;

    (void)state;
    open_file(&c, 4 * PAGE, false, false);
    ask(&c, &w);
    a = next(REQUEST_WRITE);
    assert_int_equal(a->r.len, PAGE - 100);
    ask(&d, &r);
    assert_false(d.done);
    nothing_asked();
    answer(a, 0);
    a = next(REQUEST_WRITE); /* comes before or after the read of d */
    assert_int_equal(a->r.off, PAGE);
    assert_int_equal(a->r.len, PAGE + 100);
    answer_read(next(REQUEST_READ), 4 * PAGE, 'x');
    assert_true(d.done && !c.done);
    answer(a, 0);
    assert_true(c.done && c.req.rc == 0);
}

static void test_an_append_goes_where_the_kernel_thinks_that_the_file_ends(void **state)
{
    static uint8_t data[10];
    const struct request w = write_of(0, 10, data, O_APPEND);
    static struct caller c;
    struct asked *a;

    (void)state;
    open_file(&c, 30, false, false);
    ask(&c, &w);
    a = next(REQUEST_WRITE);
    assert_int_equal(a->r.off, 30);
    answer(a, 0);
    ask(&c, &stat_it); /* the mount decides size and mtime */
    answer_attr(next(REQUEST_GETATTR), 40, 1000);
}

static void test_direct_files_pass_the_pages_by(void **state)
{
    static uint8_t data[PAGE];
    const struct request r = read_of(0, PAGE), w = write_of(0, PAGE, data, 0);
    static struct caller c;
    struct asked *a;

    (void)state;
    open_file(&c, PAGE, false, true);
    for (unsigned i = 0; i < 2; i++) {
        ask(&c, &r);
        answer_read(next(REQUEST_READ), PAGE, 'a');
        assert_true(c.done && c.data[0] == 'a');
    }
    ask(&c, &w);
    a = next(REQUEST_WRITE);
    answer(a, 0);
    ask(&c, &r);
    answer_read(next(REQUEST_READ), PAGE, 'b');
    assert_int_equal(c.data[0], 'b');
}

static void test_writers_take_turns(void **state)
{
    static uint8_t data[PAGE];
    const struct request w = write_of(0, PAGE, data, 0);
    static struct caller c, d;

    (void)state;
    open_file(&c, PAGE, false, false);
    ask(&c, &w);
    ask(&d, &w);
    answer(next(REQUEST_WRITE), 0);
    assert_true(c.done && !d.done);
    answer(next(REQUEST_WRITE), 0);
    assert_true(d.done);
    nothing_asked();
}

/* ---- the end ---- */

static void test_calls_of_a_dead_mount_never_end(void **state)
{
    static struct caller c, d;
    struct waiter w;

    (void)state;
    ask(&c, &look);
    inval_entry(&w, DIR, "f");
    ask(&d, &look);
    request_answered(next(REQUEST_LOOKUP)->req, -EIO);
    kernel_free(t.k);
    settle();
    assert_false(c.done || d.done || w.done);
    t.k = kernel_new(&(struct kernel_config){ .send = on_sent });
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = {
        T(test_names_are_believed_for_their_time),
        T(test_an_invalidated_name_is_asked_for),
        T(test_an_answer_under_way_is_dropped_after_it_came),
        T(test_an_expired_name_asked_about_is_not_kept_when_it_was_dropped),
        T(test_an_expired_name_is_asked_about_without_a_lock),
        T(test_an_answer_about_an_expired_name_is_kept_when_it_expires_again),
        T(test_change_of_a_directory_delays_its_invalidations),
        T(test_a_renamed_name_takes_its_time_along),
        T(test_a_failed_change_forgets_the_name_it_was_wrong_about),
        T(test_attributes_are_believed_until_they_are_invalidated),
        T(test_attributes_under_way_at_an_invalidation_are_not_kept),
        T(test_answers_that_are_kept_all_the_same),
        T(test_a_listing_is_kept_for_those_who_may_use_it),
        T(test_changes_and_invalidations_drop_a_listing),
        T(test_a_list_under_way_at_an_invalidation_is_kept),
        T(test_a_name_is_dropped_when_the_list_under_way_is_read),
        T(test_pages_are_kept_until_they_are_dropped),
        T(test_an_open_without_keep_cache_drops_them),
        T(test_an_invalidation_waits_for_the_read_of_its_page),
        T(test_reads_end_where_the_kernel_thinks_that_the_file_ends),
        T(test_a_write_is_in_the_pages_before_the_mount_has_it),
        T(test_a_piece_of_a_page_that_is_not_there_is_locked),
        T(test_an_append_goes_where_the_kernel_thinks_that_the_file_ends),
        T(test_direct_files_pass_the_pages_by),
        T(test_writers_take_turns),
        T(test_calls_of_a_dead_mount_never_end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
