/* list.h - intrusive doubly linked list. A node that is in no list points to itself. */
#ifndef UTIL_LIST_H
#define UTIL_LIST_H

#include <stddef.h>

struct list {
	struct list *next, *prev;
};

#define LIST_INIT(l) \
	{                \
		&(l), &(l)   \
	}
#define list_entry(p, type, member) ((type *)((char *)(p)-offsetof(type, member)))
#define list_each(it, head) for (struct list *it = (head)->next; it != (head); it = it->next)
/* the current node may be removed inside the body */
#define list_each_safe(it, nx, head) \
	for (struct list *it = (head)->next, *nx = it->next; it != (head); it = nx, nx = it->next)

static inline void list_init(struct list *l)
{
	l->next = l->prev = l;
}
static inline int list_empty(const struct list *l)
{
	return l->next == l;
}
static inline void list_remove(struct list *n)
{
	n->prev->next = n->next;
	n->next->prev = n->prev;
	list_init(n);
}
static inline void list_push_back(struct list *head, struct list *n)
{
	n->prev = head->prev;
	n->next = head;
	head->prev->next = n;
	head->prev = n;
}
static inline void list_push_front(struct list *head, struct list *n)
{
	n->next = head->next;
	n->prev = head;
	head->next->prev = n;
	head->next = n;
}

#endif
