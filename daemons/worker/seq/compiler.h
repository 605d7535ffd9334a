/* compiler.h - the thread that compiles the constraints of a worker's requests, one after the
 * other: neither the loop nor a step nor a prompt without one waits for that. */
#ifndef WORKER_COMPILER_H
#define WORKER_COMPILER_H

#include "util/err.h"
#include "util/list.h"

#include <stdatomic.h>

struct compiler;
struct request_copy;

/* Member of whatever has the request. The compiler's from compiler_put until `done` is called,
 * which is then the last thing that it does with it. */
struct compile_task {
	struct list node;
	struct request_copy *req;
	const _Atomic int *cancelled;         /* not 0: it need not be compiled any more */
	void (*done)(struct compile_task *t); /* on the compiler's thread */
	int code;                             /* as constraint_compile gave it */
	struct err err;
};

int compiler_new(struct compiler **ret_c, struct err *err);
void compiler_destroy(struct compiler **c); /* nothing is there any more */
/* first: others wait for it */
void compiler_put(struct compiler *c, struct compile_task *t, int first);
/* until nothing is there; what was cancelled is not compiled first */
void compiler_wait(struct compiler *c);

#endif
