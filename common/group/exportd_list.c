/*
 * exportd_list.c - see exportd_list.h.
 *
 * Keeps:  a list that comes from the network is bounded (I8).
 */
#include "common/group/exportd_list.h"

#include <string.h>

bool exportd_list_has(const struct exportd_list *l, const char *addr)
{
    for (unsigned i = 0; i < l->n; i++) {
        if (strcmp(l->addrs[i], addr) == 0)
            return true;
    }
    return false;
}

void exportd_list_add(struct exportd_list *l, const char *addr)
{
    size_t len = strnlen(addr, EXPORTD_ADDR_BYTES);

    if (len == 0 || len == EXPORTD_ADDR_BYTES || l->n == EXPORTD_ADDRS_MAX ||
        exportd_list_has(l, addr))
        return;
    memcpy(l->addrs[l->n++], addr, len + 1);
}

uint64_t exportd_list_number(const struct exportd_list *l)
{
    uint64_t h = 0xcbf29ce484222325; /* FNV-1a */

    for (unsigned i = 0; i < l->n; i++) {
        const char *p = l->addrs[i];

        do
            h = (h ^ (uint8_t)*p) * 0x100000001b3;
        while (*p++ != '\0');
    }
    return l->n == 0 ? 0 : h | 1;
}

bool exportd_list_answer(const struct exportd_list *l, const Rozo__MdWaitLeaderReq *req,
                         struct exportd_list_answer *out)
{
    uint64_t number = l == NULL || !req->wants_list ? 0 : exportd_list_number(l);

    rozo__md_wait_leader_resp__init(&out->resp);
    if (number == 0)
        return false;
    out->resp.list = number;
    if (number == req->list)
        return false;
    for (unsigned i = 0; i < l->n; i++)
        out->addrs[i] = (char *)l->addrs[i];
    out->resp.addresses = out->addrs;
    out->resp.n_addresses = l->n;
    return true;
}

bool exportd_list_take(const Rozo__MdWaitLeaderResp *resp, struct exportd_list *out)
{
    out->n = 0;
    for (size_t i = 0; i < resp->n_addresses; i++)
        exportd_list_add(out, resp->addresses[i]);
    return out->n > 0;
}

unsigned exportd_addrs_split(char *text, const char **addrs, unsigned max)
{
    char *save = NULL;
    unsigned n = 0;

    for (char *a = strtok_r(text, ",", &save); a != NULL;
         a = strtok_r(NULL, ",", &save)) {
        if (n == max)
            return max + 1;
        addrs[n++] = a;
    }
    return n;
}
