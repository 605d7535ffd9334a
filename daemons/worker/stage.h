/* stage.h - the interface between a worker and its stage (prefill or decode). A worker runs one
 * stage at a time.
 *
 * All functions run on the loop's thread. A stage has its own schedule thread, the only thread that
 * calls the engine between start and stop. */
#ifndef WORKER_STAGE_H
#define WORKER_STAGE_H

#include "worker.h"

struct stage_ops {
	const char *name;
	const struct svc_msg *messages; /* for svc_handle */
	int (*start)(struct worker *w, struct err *err);
	/* refuse new requests (DRAINING); what runs continues to its end */
	void (*drain)(struct worker *w);
	/* after drain: fail everything that runs, with retry, so that the stage is idle soon; fences
	 * are still waited for */
	void (*abort)(struct worker *w, const char *why);
	/* w->role has changed to another role of this stage; NULL: it has none */
	void (*role_changed)(struct worker *w);
	/* the workers that routers named; NULL: the stage connects to none */
	void (*peers)(struct worker *w, const Pds__Peers *m);
	/* 1: nothing runs, nothing is fenced, nothing is in flight at storage */
	int (*idle)(struct worker *w);
	/* join threads, free memory; also if a drain has not finished */
	void (*stop)(struct worker *w);
	void (*peer_up)(struct worker *w, struct peer *p);
	void (*peer_down)(struct worker *w, struct peer *p, const char *why);
	/* blocks that storage was reading can be taken again; may be NULL */
	void (*room)(struct worker *w);
	/* the messager of this epoch cannot write any more */
	void (*messager_gone)(struct worker *w, uint64_t epoch);
	void (*heartbeat)(struct worker *w, Pds__Heartbeat *hb);
	/* append a JSON array: state, age, tokens of each job or sequence */
	void (*requests)(struct worker *w, struct buf *out);
	/* append JSON members, each with a leading comma */
	void (*status)(struct worker *w, struct buf *out);
	/* why a block is held, if not by a request; returns NULL if there is nothing to report; may
	 * itself be NULL */
	const char *(*reason)(struct worker *w, uint32_t block);
};

extern const struct stage_ops prefill_stage, decode_stage;

#endif
