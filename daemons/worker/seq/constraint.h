/* constraint.h - constrained output at a worker: compiled constraints are kept by the hash of their
 * text and shared by all requests that have the same; each request has its place in one. No state
 * travels: where an answer stands is told by its tokens (grammar.h).
 *
 * Taken on the loop, compiled by a thread (milliseconds), drawn from on the schedule thread.
 * What they take of memory, live and cached, is bounded by one setting. */
#ifndef WORKER_CONSTRAINT_H
#define WORKER_CONSTRAINT_H

#include "engine/engine.h"
#include "request.pb-c.h"
#include "util/buf.h"

#define CONSTRAINT_RETRY_US 1000000u /* when there may be memory again, after ERR_NOMEM */

struct constraints;
struct constraint;
struct request_copy;

/* The vocabulary of the model there, if it has one; without, constraints are refused. Never
 * NULL. */
struct constraints *constraints_new(const char *model_path, const struct engine_info *info,
                                    size_t memory_bytes);
void constraints_destroy(struct constraints **all); /* no request has one any more */
/* members for the status, each behind a comma. Any thread */
void constraints_json(struct constraints *all, struct buf *out);

/* A copy of what the request asks for. Nothing asked for: 0, and it is ready. ERR_* with a
 * sentence; req has none then; ERR_NOMEM: there is no memory now. all may be NULL. */
int constraint_take(struct constraints *all, struct request_copy *req, const Pds__Request *r,
                    struct err *err);
int constraint_is_ready(const struct request_copy *req); /* nothing to compile, or not any more */
/* Any thread; bounded in time (grammar.h). 0: it is ready. ERR_* with a sentence; ERR_NOMEM:
 * there is no memory now. */
int constraint_compile(struct request_copy *req, struct err *err);
void constraint_detach(struct request_copy *req);
/* Into the message; the text stays the request's. */
void constraint_request(const struct request_copy *req, Pds__Request *r);

/* Finds what req's next token may be, if it has a constraint (it is ready), and what the tokens may
 * be that follow the first ones of `ahead` drafted ones behind its own. An end-of-sequence id is
 * allowed where the answer may end; with ignore_eos only where nothing else is. Returns how many of
 * `ahead` may be drafted: fewer when it cannot tell what follows. ERR_*: the constraint cannot
 * be followed (the tokens so far are not its, no token leads on, it is too costly); ERR_NOMEM:
 * there is no memory for it now. */
int constraint_prepare(struct request_copy *req, const struct engine_info *info, uint32_t ahead,
                       struct err *err);
/* What was found, behind `ahead` drafted tokens (struct engine_draw's `allowed`); NULL: there is
 * no constraint. */
const uint64_t *constraint_allowed(const struct request_copy *req, uint32_t ahead);
/* How the attempt fails when it cannot be followed, or for logits that are not finite
 * (ERR_CORRUPT): OVERLOADED for ERR_NOMEM, which alone is worth another one; INTERNAL for
 * ERR_CORRUPT; else INVALID. */
Pds__Fault constraint_fault(int code);
/* How many of the n tokens drafted behind req's own are allowed, one after the other. */
uint32_t constraint_leading(struct request_copy *req, uint32_t n);

#endif
