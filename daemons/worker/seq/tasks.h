/* tasks.h - a thread that works for the constraints of a worker's requests, one task after the
 * other. A worker has two: one compiles constraints, so that the loop, the steps and requests
 * without a constraint do not wait; the other computes the masks that are too expensive for the
 * schedule thread.
 *
 * Tasks of the same group (the same constraint) take turns with those of others: many answers of
 * one request do not go before a single one. */
#ifndef WORKER_TASKS_H
#define WORKER_TASKS_H

#include "util/err.h"
#include "util/list.h"

#include <stdatomic.h>
#include <stdint.h>

struct tasks;
struct request_copy;

/* Member of what owns the request. It belongs to the thread from tasks_put until it calls `done`,
 * after which the thread does not touch it. */
struct constraint_task {
	struct list node;
	struct request_copy *req;
	uint64_t group;
	uint64_t round; /* its group's turn */
	int (*work)(struct request_copy *req, struct err *err);
	const _Atomic int *cancelled; /* not 0: skip it (code is ERR_CANCELLED); may be NULL */
	void (*done)(struct constraint_task *t); /* on the thread */
	int code;                                /* of `work` */
	struct err err;
};

/* nice: how much the thread's priority is lowered; name: of at most 15 bytes. */
int tasks_new(struct tasks **ret_c, const char *name, int nice, struct err *err);
void tasks_destroy(struct tasks **c); /* its queue must be empty */
/* first 1: it goes before all others, because other jobs wait for this one */
void tasks_put(struct tasks *c, struct constraint_task *t, int first);
/* Takes a task back that the thread has not begun. 0: it has. */
int tasks_take_back(struct tasks *c, struct constraint_task *t);
/* Waits until the thread is done with a task that it has begun. */
void tasks_wait_for(struct tasks *c, const struct constraint_task *t);
/* Waits until the queue is empty. Cancelled tasks are skipped. */
void tasks_wait(struct tasks *c);

#endif
