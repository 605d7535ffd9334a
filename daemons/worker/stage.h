/* stage.h - the narrow interface between a worker and its stage (prefill or decode). A worker runs
 * one stage at a time.
 *
 * All functions run on the loop's thread. A stage has its own schedule thread, the only one that
 * calls the engine between start and stop. */
#ifndef WORKER_STAGE_H
#define WORKER_STAGE_H

#include "worker.h"

struct stage_msg {
	const ProtobufCMessageDescriptor *body;
	void (*fn)(struct worker *w, struct peer *p, const struct msg_head *head,
	           const ProtobufCMessage *body);
};

struct stage_ops {
	const char *name;
	const struct stage_msg *messages; /* ended by {0} */
	int (*start)(struct worker *w, struct err *err);
	/* take nothing new (it is refused as DRAINING); what runs goes on to its end */
	void (*drain)(struct worker *w);
	/* after drain: all that runs fails with retry, so that idle comes soon; fences are waited
	 * for */
	void (*abort)(struct worker *w, const char *why);
	/* w->role is another one of those that this stage serves */
	void (*role_changed)(struct worker *w);
	/* 1: nothing runs, nothing is fenced, nothing of it is in flight at storage */
	int (*idle)(struct worker *w);
	/* threads joined, memory freed; also after a drain that did not end */
	void (*stop)(struct worker *w);
	void (*peer_up)(struct worker *w, struct peer *p);
	void (*peer_down)(struct worker *w, struct peer *p, const char *why);
	/* blocks that storage was reading can be had again; may be NULL */
	void (*room)(struct worker *w);
	/* that messager process writes no more */
	void (*messager_gone)(struct worker *w, uint64_t epoch);
	void (*heartbeat)(struct worker *w, Pds__Heartbeat *hb);
	/* JSON array: state, age, tokens of each */
	void (*requests)(struct worker *w, struct buf *out);
	/* JSON members, each begins with a comma */
	void (*status)(struct worker *w, struct buf *out);
	/* why a block is held, where that is not simply a request; NULL: nothing to say, also
	 * instead of the function */
	const char *(*reason)(struct worker *w, uint32_t block);
};

extern const struct stage_ops prefill_stage, decode_stage, no_stage;

#endif
