/* attached.h - the workers that have handed over their memory to this daemon (kv/handover.h), one
 * connection each on RUNDIR/NAME.sock. The worker's end is daemons/worker/links/attach.h.
 *
 * Memory is taken only from the process that has the link of the worker's name and epoch, so who
 * may have a name is decided in one place, by HELLO. A connection of another user's process (root's
 * excepted) is closed at once. One that is made before its process has a link waits for that: the
 * order of link and connection does not matter, and nobody else can have the name meanwhile.
 *
 * A connection waits for one hello, which is checked, mapped, passed to the daemon's `attach` and
 * answered, with the address where other hosts reach this daemon (svc_remote). After that its end
 * of file, or anything else that it sends, ends it: `detach`. At most one worker of a name is
 * attached at a time, and at most workers_max in total, half of them by one process. A connection
 * without a hello, or without a link, within five seconds is closed. A worker's errors are answered
 * with a sentence, logged and counted. Nothing here ends the daemon, except that this process has
 * lost a device (svc_leave). Without a descriptor or memory for a connection, the listener pauses
 * for 100 ms and retries.
 *
 * All functions run on the loop's thread. */
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
	/* NULL: the worker has no ring, or this daemon has no `bell` */
	struct ring *ring;
};

struct attached_hooks {
	struct svc *svc;
	void *arg;
	unsigned workers_max;
	uint64_t *workers, *refused; /* the daemon's gauge and counter; refused: may be NULL */
	/* Called before the worker gets its reply. 0: the daemon owns region and ring from now on, and
	 * *ret_worker, not NULL, is its own object for the worker. ERR_*: the worker is refused with
	 * the text in err, and region and ring are freed here. */
	int (*attach)(void *arg, const struct attached_memory *m, void **ret_worker, struct err *err);
	/* Called once for each attached worker; its connection is closed, and its name is free. */
	void (*detach)(void *arg, void *worker, const char *why);
	/* a worker rang its doorbell; NULL: this daemon needs no doorbell and no ring */
	void (*bell)(void *arg);
};

/* hooks are copied. 0, or an error of sock_listen. */
int attached_listen(const struct attached_hooks *hooks, struct attached **ret_a, struct err *err);
/* For the daemon's `up` hook. */
void attached_link_up(struct attached *a, const struct peer *p);
/* Detaches all workers with this reason. *a may be NULL. */
void attached_close(struct attached **a, const char *why);
/* the daemon's object for the worker, or NULL */
void *attached_find(const struct attached *a, const char *name, uint64_t epoch);
unsigned attached_workers(const struct attached *a);

#endif
