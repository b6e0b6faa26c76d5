/*
 * member_port.c - mail between a member and the kv.
 *
 * Keeps:  mail arrives in the order in which it was posted. Running out of memory ends
 *         the process: a lost message would leave the two sides in different states.
 */
#include "exportd/quorum/member_port.h"

#include <stdlib.h>

#include "common/base/list.h"
#include "common/base/log.h"

enum mail_kind {
    /* to the core */
    MAIL_APPLY,
    MAIL_STABLE,
    MAIL_LEAD,
    MAIL_DEPOSE,
    MAIL_CONFIRMED,
    MAIL_SYNC_BELOW,
    MAIL_FAILED,
    MAIL_SEED,
    MAIL_SPACE,
    MAIL_CLIENTS,
    /* to the member */
    MAIL_LED,
    MAIL_SUBMIT,
    MAIL_APPLIED,
    MAIL_SYNCED,
    MAIL_CONFIRM,
    MAIL_WANT_STABLE,
    MAIL_SEEDED,
};

struct port_mail {
    struct env_mail mail;
    struct member_port *port;
    enum mail_kind kind;
    uint64_t number; /* index, term or time */
    int rc;
    const char *text;
    struct seed_job *job;      /* lent */
    struct exportd_list *list; /* owned */
    unsigned n_entries;
    struct quorum_entry *entries[]; /* uses */
};

static void on_mail(struct env_mail *mail);

static struct port_mail *mail_new(struct member_port *port, enum mail_kind kind,
                                  uint64_t number, unsigned n_entries)
{
    struct port_mail *m = calloc(1, sizeof(*m) + n_entries * sizeof(m->entries[0]));

    if (m == NULL)
        log_out_of_memory("in the quorum");
    m->mail.fn = on_mail;
    m->port = port;
    m->kind = kind;
    m->number = number;
    m->n_entries = n_entries;
    return m;
}

static void mail_post(struct port_mail *m)
{
    struct member_port *port = m->port;

    if (m->kind < MAIL_LED)
        port->post_core(port->post_arg, &m->mail);
    else
        port->post_member(port->post_arg, &m->mail);
}

static void core_take(struct member_port *port, const struct port_mail *m)
{
    switch (m->kind) {
    case MAIL_APPLY:
        kv_quorum_apply(port->kv, m->entries[0]);
        break;
    case MAIL_STABLE:
        kv_quorum_stable(port->kv, m->number);
        break;
    case MAIL_LEAD:
        kv_quorum_lead(port->kv);
        mail_post(mail_new(port, MAIL_LED, 0, 0));
        port->lead(port->arg, m->number);
        break;
    case MAIL_DEPOSE:
        kv_quorum_depose(port->kv);
        port->depose(port->arg);
        break;
    case MAIL_CONFIRMED:
        kv_quorum_confirmed(port->kv, m->number);
        break;
    case MAIL_SYNC_BELOW:
        kv_quorum_sync_below(port->kv);
        break;
    case MAIL_SPACE:
        kv_quorum_set_free(port->kv, m->number);
        break;
    case MAIL_SEED:
        kv_quorum_seed(port->kv, m->job);
        break;
    case MAIL_CLIENTS:
        if (port->clients != NULL)
            port->clients(port->arg, m->list);
        break;
    default:
        port->failed(port->arg, m->rc, m->text);
        break;
    }
}

static void member_take(struct member_port *port, const struct port_mail *m)
{
    switch (m->kind) {
    case MAIL_LED:
        member_led(port->member);
        break;
    case MAIL_SUBMIT:
        member_submit(port->member, m->entries, m->n_entries);
        break;
    case MAIL_APPLIED:
        member_applied(port->member, m->number);
        break;
    case MAIL_SYNCED:
        member_synced(port->member, m->number);
        break;
    case MAIL_WANT_STABLE:
        member_want_stable(port->member);
        break;
    case MAIL_SEEDED:
        member_seeded(port->member, m->job);
        break;
    default:
        member_confirm(port->member, m->number);
        break;
    }
}

static void on_mail(struct env_mail *mail)
{
    struct port_mail *m = container_of(mail, struct port_mail, mail);

    if (m->kind < MAIL_LED)
        core_take(m->port, m);
    else
        member_take(m->port, m);
    for (unsigned i = 0; i < m->n_entries; i++)
        quorum_entry_free(m->entries[i]);
    free(m->list);
    free(m);
}

/* ---- hooks of the member ---- */

static void on_apply(void *arg, struct quorum_entry *entry)
{
    struct port_mail *m = mail_new(arg, MAIL_APPLY, 0, 1);

    m->entries[0] = entry;
    mail_post(m);
}

static void on_stable(void *arg, uint64_t index)
{
    mail_post(mail_new(arg, MAIL_STABLE, index, 0));
}

static void on_lead(void *arg, uint64_t term)
{
    mail_post(mail_new(arg, MAIL_LEAD, term, 0));
}

static void on_depose(void *arg)
{
    mail_post(mail_new(arg, MAIL_DEPOSE, 0, 0));
}

static void on_confirmed(void *arg, uint64_t at_ns)
{
    mail_post(mail_new(arg, MAIL_CONFIRMED, at_ns, 0));
}

static void on_sync_below(void *arg)
{
    mail_post(mail_new(arg, MAIL_SYNC_BELOW, 0, 0));
}

static void on_failed(void *arg, int rc, const char *text)
{
    struct port_mail *m = mail_new(arg, MAIL_FAILED, 0, 0);

    m->rc = rc;
    m->text = text;
    mail_post(m);
}

static void on_seed(void *arg, struct seed_job *job)
{
    struct port_mail *m = mail_new(arg, MAIL_SEED, 0, 0);

    m->job = job;
    mail_post(m);
}

static void on_space(void *arg, uint64_t free_bytes)
{
    mail_post(mail_new(arg, MAIL_SPACE, free_bytes, 0));
}

static void on_clients(void *arg, const struct exportd_list *list)
{
    struct port_mail *m = mail_new(arg, MAIL_CLIENTS, 0, 0);

    m->list = malloc(sizeof(*m->list));
    if (m->list == NULL)
        log_out_of_memory("in the quorum");
    *m->list = *list;
    mail_post(m);
}

struct member_hooks member_port_member_hooks(struct member_port *port)
{
    return (struct member_hooks){
        .apply = on_apply,
        .stable = on_stable,
        .lead = on_lead,
        .depose = on_depose,
        .confirmed = on_confirmed,
        .sync_below = on_sync_below,
        .failed = on_failed,
        .arg = port,
        .seed = on_seed,
        .space = on_space,
        .clients = on_clients,
    };
}

/* ---- hooks of the kv ---- */

static void on_submit(void *arg, struct quorum_entry *const *parts, unsigned n_parts)
{
    struct port_mail *m = mail_new(arg, MAIL_SUBMIT, 0, n_parts);

    for (unsigned i = 0; i < n_parts; i++)
        m->entries[i] = quorum_entry_use(parts[i]);
    mail_post(m);
}

static void on_applied(void *arg, uint64_t index, uint64_t term)
{
    (void)term;
    mail_post(mail_new(arg, MAIL_APPLIED, index, 0));
}

static void on_synced(void *arg, uint64_t index)
{
    mail_post(mail_new(arg, MAIL_SYNCED, index, 0));
}

static void on_confirm(void *arg, uint64_t asked_ns)
{
    mail_post(mail_new(arg, MAIL_CONFIRM, asked_ns, 0));
}

static void on_want_stable(void *arg)
{
    mail_post(mail_new(arg, MAIL_WANT_STABLE, 0, 0));
}

static uint64_t on_lease_until(void *arg)
{
    const struct member_port *port = arg;

    return member_lease_until_ns(port->member);
}

static uint64_t on_now(void *arg)
{
    const struct member_port *port = arg;

    return port->now_ns(port->now_arg);
}

static void on_seeded(void *arg, struct seed_job *job)
{
    struct port_mail *m = mail_new(arg, MAIL_SEEDED, 0, 0);

    m->job = job;
    mail_post(m);
}

/* By mail like all news: never inside a call of the kv. */
static void on_kv_failed(void *arg, int rc, const char *what)
{
    on_failed(arg, rc, what);
}

struct kv_quorum_hooks member_port_kv_hooks(struct member_port *port)
{
    return (struct kv_quorum_hooks){
        .submit = on_submit,
        .applied = on_applied,
        .synced = on_synced,
        .confirm = on_confirm,
        .lease_until_ns = on_lease_until,
        .now_ns = on_now,
        .failed = on_kv_failed,
        .arg = port,
        .seeded = on_seeded,
        .want_stable = on_want_stable,
    };
}
