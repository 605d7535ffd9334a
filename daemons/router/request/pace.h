/* pace.h - work on the event loop whose amount a client decides, done in small steps: those that
 * have some take turns, for about a millisecond in each turn of the loop, so that nobody else
 * waits for it. */
#ifndef ROUTER_PACE_H
#define ROUTER_PACE_H

#include "util/list.h"

struct event;
struct event_base;

struct paced {
	struct list node; /* in pace.waiting; by itself: nothing to do now */
	/* a fraction of a millisecond's work. 1: there is more. 0: none now, or *p is gone */
	int (*step)(struct paced *p);
};

struct pace {
	struct event *ev;
	struct list waiting;
};

void pace_init(struct pace *pace, struct event_base *base);
void pace_fini(struct pace *pace);
void paced_init(struct paced *p, int (*step)(struct paced *p));
/* its step is called soon, and again while it says 1; in the list already: nothing */
void pace_add(struct pace *pace, struct paced *p);
void pace_remove(struct paced *p);

#endif
