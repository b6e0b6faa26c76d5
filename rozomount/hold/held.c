/*
 * held.c - a table in shared memory, see held.h.
 *
 * In:     fs_open.c, fs_dir.c, handle.c; mount_run.c, when it takes a mount over.
 * Out:    numbers for fi->fh. A number is the place of the handle, and above that how
 *         often the place was used, so that a late request finds no other file.
 * Keeps:  the entry is written before its kind, and its kind is cleared first: a process
 *         that is killed in between leaves no half entry.
 */
#include "rozomount/hold/held.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "rozomount/options/xalloc.h"

enum { VERSION = 2 };

const struct held_room held_room_of_mount = { 1 << 20, 1 << 16 };

struct held_place {
    struct held_handle h;
    atomic_uint_least64_t kind; /* enum held_kind */
};

struct held_lock_owner {
    uint64_t owner;
    atomic_uint_least64_t number; /* handle; 0: free */
};

/* The memory that outlives a process; behind it the places of handles and owners.
 * Untouched pages take no space. */
struct held_table {
    uint64_t version;
    struct held_room room;
    struct held_mount mount;
    atomic_uint_least64_t n_handles; /* places used so far */
};

/* Places that are free, newest first. */
struct free_places {
    uint32_t *list; /* owned */
    size_t n, room;
    uint32_t next; /* never used so far */
    uint32_t max;
};

struct held_files {
    struct held_table *t;
    size_t bytes; /* length of the mapping; 0: memory of this process */
    struct held_place *places;
    struct held_lock_owner *owner_list;
    void **users;         /* by place; owned */
    pthread_mutex_t lock; /* guards the members below */
    struct free_places handles, owners;
    uint32_t owners_end; /* no owner is noted from this place on */
};

/* ---- places ---- */

static bool place_take(struct free_places *f, uint32_t *out)
{
    if (f->n > 0)
        *out = f->list[--f->n];
    else if (f->next < f->max)
        *out = f->next++;
    else
        return false;
    return true;
}

static void place_free(struct free_places *f, uint32_t place)
{
    if (f->n == f->room) {
        f->room = f->room == 0 ? 64 : f->room * 2;
        f->list = xrealloc(f->list, f->room * sizeof(*f->list));
    }
    f->list[f->n++] = place;
}

/* ---- the table ---- */

static size_t table_bytes(const struct held_room *room)
{
    return sizeof(struct held_table) + room->handles * sizeof(struct held_place) +
           room->owners * sizeof(struct held_lock_owner);
}

int held_memory(const struct held_room *room)
{
    int fd = memfd_create("rozomount", MFD_CLOEXEC);

    if (fd < 0)
        return -errno;
    if (ftruncate(fd, (off_t)table_bytes(room)) != 0) {
        int rc = -errno;

        close(fd);
        return rc;
    }
    return fd;
}

/* Finds free places in a table that another process has used. */
static void held_load(struct held_files *h)
{
    h->handles.next = (uint32_t)atomic_load(&h->t->n_handles);
    for (uint32_t i = 0; i < h->handles.next; i++) {
        if (atomic_load(&h->places[i].kind) == HELD_FREE)
            place_free(&h->handles, i);
    }
    h->owners.next = h->owners.max;
    for (uint32_t i = h->owners.max; i-- > 0;) {
        if (atomic_load(&h->owner_list[i].number) == 0)
            place_free(&h->owners, i);
        else if (h->owners_end == 0)
            h->owners_end = i + 1;
    }
}

static void held_lay_out(struct held_files *h, const struct held_room *room)
{
    h->places = (struct held_place *)(h->t + 1);
    h->owner_list = (struct held_lock_owner *)(h->places + room->handles);
    h->handles.max = room->handles;
    h->owners.max = room->owners;
    h->users = xzalloc(room->handles * sizeof(*h->users));
}

static int held_map(struct held_files *h, int fd, const struct held_room *room)
{
    h->bytes = table_bytes(room);
    h->t = mmap(NULL, h->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (h->t != MAP_FAILED)
        return 0;
    h->t = NULL;
    return -errno;
}

static bool room_is(const struct held_room *a, const struct held_room *b)
{
    return a->handles == b->handles && a->owners == b->owners;
}

int held_open(int fd, const struct held_room *room, struct held_files **out,
              struct err *err)
{
    struct held_files *h = xzalloc(sizeof(*h));
    int rc = 0;

    *out = h;
    pthread_mutex_init(&h->lock, NULL);
    if (fd < 0)
        h->t = xzalloc(table_bytes(room));
    else
        rc = held_map(h, fd, room);
    if (rc != 0)
        return err_set(err, rc, "map the table of open files: %s", strerror(-rc));
    held_lay_out(h, room);
    if (h->t->version == 0) {
        h->t->version = VERSION;
        h->t->room = *room;
        return 0;
    }
    if (h->t->version != VERSION || !room_is(&h->t->room, room))
        return err_set(err, -EINVAL,
                       "the process before has another format of the table of open files "
                       "(%llu, here %d): unmount, and mount anew",
                       (unsigned long long)h->t->version, VERSION);
    held_load(h);
    return 0;
}

void held_close(struct held_files *h)
{
    if (h == NULL)
        return;
    if (h->bytes == 0)
        free(h->t);
    else if (h->t != NULL)
        munmap(h->t, h->bytes);
    free((void *)h->users);
    free(h->handles.list);
    free(h->owners.list);
    pthread_mutex_destroy(&h->lock);
    free(h);
}

struct held_mount *held_mount(struct held_files *h)
{
    return &h->t->mount;
}

/* ---- handles ---- */

static uint64_t number_of(const struct held_files *h, uint32_t place)
{
    return (uint64_t)h->places[place].h.reuse << 32 | (place + 1);
}

static uint32_t place_of(uint64_t number)
{
    return (uint32_t)number - 1;
}

static bool is_number(const struct held_files *h, uint64_t number)
{
    uint32_t place = place_of(number);

    return place < h->handles.max && number == number_of(h, place) &&
           atomic_load_explicit(&h->places[place].kind, memory_order_acquire) !=
               HELD_FREE;
}

uint64_t held_add(struct held_files *h, const struct held_handle *handle, void *user)
{
    uint32_t place, reuse;
    bool has_room;

    assert(handle->kind != HELD_FREE && user != NULL);
    pthread_mutex_lock(&h->lock);
    has_room = place_take(&h->handles, &place);
    atomic_store(&h->t->n_handles, h->handles.next);
    pthread_mutex_unlock(&h->lock);
    if (!has_room)
        return 0;
    reuse = h->places[place].h.reuse;
    h->places[place].h = *handle;
    h->places[place].h.reuse = reuse + 1;
    h->users[place] = user;
    atomic_store_explicit(&h->places[place].kind, handle->kind, memory_order_release);
    return number_of(h, place);
}

static void owners_remove(struct held_files *h, uint64_t number)
{
    for (uint32_t i = 0; i < h->owners_end; i++) {
        if (atomic_load(&h->owner_list[i].number) != number)
            continue;
        atomic_store(&h->owner_list[i].number, 0);
        place_free(&h->owners, i);
    }
}

void held_remove(struct held_files *h, uint64_t number)
{
    uint32_t place = place_of(number);

    assert(is_number(h, number));
    atomic_store_explicit(&h->places[place].kind, HELD_FREE, memory_order_release);
    h->users[place] = NULL;
    pthread_mutex_lock(&h->lock);
    if (h->places[place].h.has_owners)
        owners_remove(h, number);
    place_free(&h->handles, place);
    pthread_mutex_unlock(&h->lock);
}

void *held_user(const struct held_files *h, uint64_t number, uint64_t ino)
{
    uint32_t place = place_of(number);

    return is_number(h, number) && h->places[place].h.ino == ino ? h->users[place] : NULL;
}

uint64_t held_next(const struct held_files *h, uint64_t number, struct held_handle *out)
{
    uint64_t n = atomic_load(&h->t->n_handles);

    for (uint64_t place = (uint32_t)number; place < n; place++) {
        uint64_t kind = atomic_load(&h->places[place].kind);

        if (kind == HELD_FREE)
            continue;
        *out = h->places[place].h;
        out->kind = (uint32_t)kind;
        return number_of(h, (uint32_t)place);
    }
    return 0;
}

void held_give(struct held_files *h, uint64_t number, void *user)
{
    assert(is_number(h, number));
    h->users[place_of(number)] = user;
}

void held_owe_error(struct held_files *h, uint64_t number, bool owes)
{
    assert(is_number(h, number));
    h->places[place_of(number)].h.owes_error = owes;
}

/* ---- owners of locks ---- */

bool held_add_owner(struct held_files *h, uint64_t number, uint64_t owner)
{
    uint32_t place;
    bool has_room;

    assert(is_number(h, number));
    pthread_mutex_lock(&h->lock);
    has_room = place_take(&h->owners, &place);
    if (has_room) {
        h->owners_end = place >= h->owners_end ? place + 1 : h->owners_end;
        h->places[place_of(number)].h.has_owners = true;
        h->owner_list[place].owner = owner;
        atomic_store(&h->owner_list[place].number, number);
    }
    pthread_mutex_unlock(&h->lock);
    return has_room;
}

void held_each_owner(const struct held_files *h, uint64_t number,
                     void (*fn)(void *arg, uint64_t owner), void *arg)
{
    if (!h->places[place_of(number)].h.has_owners)
        return;
    for (uint32_t i = 0; i < h->owners_end; i++) {
        if (atomic_load(&h->owner_list[i].number) == number)
            fn(arg, h->owner_list[i].owner);
    }
}
