/* fair.c - see fair.h. What always holds: an owner is in `owners` exactly while it has items, and
 * `owners` is sorted by turn; among equal turns the one that came first is first. */
#include "util/fair.h"

void fair_init(struct fair_queue *t)
{
	list_init(&t->owners);
	t->now = t->n = 0;
}

void fair_owner_init(struct fair_owner *o)
{
	list_init(&o->node);
	list_init(&o->items);
	o->turn = o->n = 0;
}

void fair_item_init(struct fair_item *i)
{
	list_init(&i->node);
}

/* Its place is searched from the end, where an owner that has just been served belongs. */
static void place(struct fair_queue *t, struct fair_owner *o)
{
	list_remove(&o->node);
	if (!o->n)
		return;
	struct list *at = t->owners.prev;
	while (at != &t->owners && list_entry(at, struct fair_owner, node)->turn > o->turn)
		at = at->prev;
	list_push_front(at, &o->node);
}

void fair_put(struct fair_queue *t, struct fair_owner *o, struct fair_item *i, uint64_t cost)
{
	i->owner = o;
	i->cost = cost;
	list_push_back(&o->items, &i->node);
	t->n++;
	if (o->n++)
		return;
	if (o->turn < t->now)
		o->turn = t->now;
	place(t, o);
}

void fair_drop(struct fair_queue *t, struct fair_item *i)
{
	if (!fair_waits(i))
		return;
	list_remove(&i->node);
	t->n--;
	if (--i->owner->n == 0)
		list_remove(&i->owner->node);
}

static void serve(struct fair_queue *t, struct fair_owner *o, uint64_t cost)
{
	if (t->now < o->turn)
		t->now = o->turn;
	o->turn += cost;
	place(t, o);
}

void fair_take(struct fair_queue *t, struct fair_item *i)
{
	fair_drop(t, i);
	serve(t, i->owner, i->cost);
}

void fair_charge(struct fair_queue *t, struct fair_owner *o, uint64_t cost)
{
	if (!o->n && o->turn < t->now)
		o->turn = t->now;
	serve(t, o, cost);
}
