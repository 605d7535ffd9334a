/* watch.h - what `pdctl top` knows of the daemons: the last two answers of each.
 *
 * Every daemon has a thread that asks it once an interval. So one that hangs delays neither the
 * others nor the screen. */
#ifndef PDCTL_WATCH_H
#define PDCTL_WATCH_H

#include "pdctl.h"

struct sample {
	uint64_t at_us;           /* monotonic; 0: there is no answer yet */
	json_t *status, *workers; /* workers: of a router, else NULL */
	char *metrics;            /* of a router or messager, else NULL */
};

struct watched {
	struct target at;
	struct sample now, before;
	int code;          /* exit code of the last question */
	unsigned rounds;   /* questions that were answered or failed */
	unsigned waited;   /* rounds when watch_wait began */
	uint64_t first_us; /* when it was first asked */
};

struct watcher;

/* The options must outlive the process's threads. */
struct watcher *watch_new(const struct options *o, uint64_t interval_us);
/* Starts to watch daemons that are new; call it now and then. Returns the number of daemons. */
size_t watch_find(struct watcher *w);
/* Waits until every daemon was asked `rounds` more times; 1 if so, 0 after timeout_us. */
int watch_wait(struct watcher *w, unsigned rounds, uint64_t timeout_us);
/* Between these the daemons, ordered by kind and name, do not change. */
struct watched *const *watch_lock(struct watcher *w, size_t *ret_n);
void watch_unlock(struct watcher *w);

#endif
