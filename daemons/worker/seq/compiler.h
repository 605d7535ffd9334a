/* compiler.h - the thread that compiles the constraints of a worker's requests, one after the
 * other. The loop, the steps and requests without a constraint do not wait for it. */
#ifndef WORKER_COMPILER_H
#define WORKER_COMPILER_H

#include "util/err.h"
#include "util/list.h"

#include <stdatomic.h>

struct compiler;
struct request_copy;

/* Member of the job or sequence that owns the request. It belongs to the compiler from compiler_put
 * until it calls `done`, after which it does not touch it. */
struct compile_task {
	struct list node;
	struct request_copy *req;
	const _Atomic int *cancelled;         /* not 0: skip it (code is ERR_CANCELLED) */
	void (*done)(struct compile_task *t); /* on the compiler's thread */
	int code;                             /* of constraint_compile */
	struct err err;
};

int compiler_new(struct compiler **ret_c, struct err *err);
void compiler_destroy(struct compiler **c); /* its queue must be empty */
/* first 1: it goes before all others, because other jobs wait for this one */
void compiler_put(struct compiler *c, struct compile_task *t, int first);
/* Waits until the queue is empty. Cancelled tasks are skipped. */
void compiler_wait(struct compiler *c);

#endif
