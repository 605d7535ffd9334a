/* pace.c - see pace.h. */
#include "pace.h"
#include "util/check.h"
#include "util/clock.h"

#include <event2/event.h>

#define TURN_US 1000u

/* A timer of no time: the loop looks at its descriptors before it calls it, which an event that
 * activates itself would not let it do. */
static void wake(struct pace *pace)
{
	static const struct timeval now = {0, 0};
	CHECK(event_add(pace->ev, &now) == 0);
}

static void on_turn(evutil_socket_t fd, short what, void *arg)
{
	struct pace *pace = arg;
	uint64_t end = clock_us() + TURN_US;
	(void)fd;
	(void)what;
	do {
		if (list_empty(&pace->waiting))
			return;
		struct list *n = pace->waiting.next;
		struct paced *p = list_entry(n, struct paced, node);
		list_remove(n);
		if (p->step(p))
			pace_add(pace, p);
	} while (clock_us() < end);
	if (!list_empty(&pace->waiting))
		wake(pace);
}

void pace_init(struct pace *pace, struct event_base *base)
{
	list_init(&pace->waiting);
	pace->ev = event_new(base, -1, 0, on_turn, pace);
	CHECK(pace->ev);
}

void pace_fini(struct pace *pace)
{
	if (pace->ev)
		event_free(pace->ev);
	pace->ev = NULL;
}

void paced_init(struct paced *p, int (*step)(struct paced *p))
{
	list_init(&p->node);
	p->step = step;
}

void pace_add(struct pace *pace, struct paced *p)
{
	if (!list_empty(&p->node))
		return;
	if (list_empty(&pace->waiting))
		wake(pace);
	list_push_back(&pace->waiting, &p->node);
}

void pace_remove(struct paced *p)
{
	list_remove(&p->node);
}
