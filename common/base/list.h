/*
 * list.h - doubly linked rings of embedded nodes.
 */
#ifndef ROZO_COMMON_BASE_LIST_H
#define ROZO_COMMON_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

/* Head (an empty ring is a head that points at itself) or node embedded in a struct. */
struct list_node {
    struct list_node *next, *prev;
};

/** Returns the struct whose member is at ptr. */
#define container_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

/** Walks a list. The body may remove only node itself, and only in the _SAFE variant. */
#define LIST_FOREACH(node, head) \
    for (struct list_node *node = (head)->next; node != (head); node = node->next)
#define LIST_FOREACH_SAFE(node, head)                                      \
    for (struct list_node *node = (head)->next, *node##_next = node->next; \
         node != (head); node = node##_next, node##_next = node->next)

static inline void list_init(struct list_node *head)
{
    head->next = head->prev = head;
}
static inline bool list_is_empty(const struct list_node *head)
{
    return head->next == head;
}
static inline void list_add_after(struct list_node *where, struct list_node *node)
{
    node->next = where->next;
    node->prev = where;
    where->next->prev = node;
    where->next = node;
}
static inline void list_add_tail(struct list_node *head, struct list_node *node)
{
    list_add_after(head->prev, node);
}
/** Removes the node. It then points at itself: removing it again does no harm. */
static inline void list_remove(struct list_node *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    list_init(node);
}

#endif
