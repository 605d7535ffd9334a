/* fair.c - see fair.h. What always holds: an owner is in `owners` exactly while it has items, and
 * `owners` is sorted by turn; among equal turns the one that came first is first. */
#include "util/fair.h"

void fair_init(struct fair_queue *q)
{
	list_init(&q->owners);
	q->now = q->n = 0;
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
static void place(struct fair_queue *q, struct fair_owner *o)
{
	list_remove(&o->node);
	if (!o->n)
		return;
	struct list *at = q->owners.prev;
	while (at != &q->owners && list_entry(at, struct fair_owner, node)->turn > o->turn)
		at = at->prev;
	list_push_front(at, &o->node);
}

void fair_put(struct fair_queue *q, struct fair_owner *o, struct fair_item *i, uint64_t cost)
{
	i->owner = o;
	i->cost = cost;
	list_push_back(&o->items, &i->node);
	q->n++;
	if (o->n++)
		return;
	if (o->turn < q->now)
		o->turn = q->now;
	place(q, o);
}

void fair_drop(struct fair_queue *q, struct fair_item *i)
{
	if (!fair_waits(i))
		return;
	list_remove(&i->node);
	q->n--;
	if (--i->owner->n == 0)
		list_remove(&i->owner->node);
}

/* `now` passes no turn that waits: an owner may be served that is not the next. */
static void serve(struct fair_queue *q, struct fair_owner *o, uint64_t cost)
{
	uint64_t first = list_empty(&q->owners)
	                     ? o->turn
	                     : list_entry(q->owners.next, struct fair_owner, node)->turn;
	uint64_t now = o->turn < first ? o->turn : first;
	if (q->now < now)
		q->now = now;
	o->turn += cost;
	place(q, o);
}

void fair_take(struct fair_queue *q, struct fair_item *i)
{
	fair_drop(q, i);
	serve(q, i->owner, i->cost);
}

void fair_charge(struct fair_queue *q, struct fair_owner *o, uint64_t cost)
{
	if (!o->n && o->turn < q->now)
		o->turn = q->now;
	serve(q, o, cost);
}
