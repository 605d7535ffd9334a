/* attached.h - the workers that have handed their memory to this daemon (kv/handover.h), one
 * connection each on RUNDIR/NAME.sock. The worker's end is daemons/worker/links/attach.h.
 *
 * A connection waits for the one hello, which is checked, mapped, given to the daemon's `attach`
 * and answered. From then on its end of file, or anything else that it sends, ends it: `detach`. At
 * most one worker of a name is attached while that one's socket lives, at most workers_max in all.
 * A connection that says no hello within five seconds is closed. What a worker does wrong is
 * answered with a sentence, logged and counted; nothing here ends the daemon, except that a device
 * which is lost to this process does (svc_leave). With no descriptor or memory left for a
 * connection, the listener rests for 100 ms and tries again.
 *
 * All on the loop's thread. */
#ifndef SVC_ATTACHED_H
#define SVC_ATTACHED_H

#include "kv/handover.h"
#include "kv/region.h"
#include "svc/svc.h"

struct attached;
struct ring;

struct attached_memory {
	const struct handover_hello *hello; /* valid during `attach` */
	struct kv_layout layout;
	struct kv_region region; /* mapped */
	/* NULL: the worker has none, or this daemon has no `bell` */
	struct ring *ring;
};

struct attached_hooks {
	struct svc *svc;
	void *arg;
	unsigned workers_max;
	int stat_workers, stat_refused; /* numbers of the daemon's gauge and counter; -1: none */
	/* Called before the worker is answered. 0: region and ring are the daemon's until it frees
	 * them, and *ret_worker, not NULL, is its own object for the worker. ERR_*: refused, err
	 * says why, region and ring are freed here. */
	int (*attach)(void *arg, const struct attached_memory *m, void **ret_worker, struct err *err);
	/* Once for each that was attached; the connection is closed, and the name is free. */
	void (*detach)(void *arg, void *worker, const char *why);
	/* a worker rang its doorbell; NULL: rings are not wanted */
	void (*bell)(void *arg);
};

/* hooks are copied. 0, or what sock_listen says. */
int attached_listen(const struct attached_hooks *hooks, struct attached **ret_a, struct err *err);
/* Detaches all for this reason. *a may be NULL. */
void attached_close(struct attached **a, const char *why);
/* the daemon's object, or NULL */
void *attached_find(const struct attached *a, const char *name, uint64_t epoch);
unsigned attached_workers(const struct attached *a);

#endif
