/* constraint.h - constrained output at a worker. Compiled constraints are cached by the hash of
 * their text and shared by all requests with the same text; each request keeps its own position. No
 * state is sent between workers: the answer's tokens determine the position (grammar.h).
 *
 * A request's constraint is taken on the loop, compiled by the compiler thread (milliseconds), and
 * used for draws on the schedule thread. The memory of all of them is bounded by
 * constraint_memory_mb. */
#ifndef WORKER_CONSTRAINT_H
#define WORKER_CONSTRAINT_H

#include "engine/engine.h"
#include "request.pb-c.h"
#include "util/buf.h"

#define CONSTRAINT_RETRY_US 1000000u /* when there may be memory again, after ERR_NOMEM */

struct constraints;
struct constraint;
struct request_copy;

/* Reads the vocabulary of the model at this path; without a vocabulary all constraints are refused.
 * Never NULL. */
struct constraints *constraints_new(const char *model_path, const struct engine_info *info,
                                    size_t memory_bytes);
void constraints_destroy(struct constraints **all); /* no request has one any more */
/* Appends JSON members for the status, each preceded by a comma. Any thread. */
void constraints_json(struct constraints *all, struct buf *out);

/* Copies r's constraint into req. 0, also if r has none (req is then ready). ERR_* with a sentence:
 * req has none; ERR_NOMEM: no memory at present. all may be NULL. */
int constraint_take(struct constraints *all, struct request_copy *req, const Pds__Request *r,
                    struct err *err);
int constraint_is_ready(const struct request_copy *req); /* nothing to compile, or not any more */
/* Any thread; bounded in time (grammar.h). 0: it is ready. ERR_* with a sentence; ERR_NOMEM: no
 * memory at present. */
int constraint_compile(struct request_copy *req, struct err *err);
void constraint_detach(struct request_copy *req);
/* Sets r->constraint; it points into req. */
void constraint_request(const struct request_copy *req, Pds__Request *r);

/* Computes which tokens req's next token may be, if it has a constraint (which is ready), and which
 * tokens may follow each of the `ahead` tokens drafted after its own. An end-of-sequence id is
 * allowed where the answer may end; with ignore_eos only where nothing else is allowed. Returns how
 * many of `ahead` may be drafted: fewer if memory or effort run out. ERR_*: the constraint cannot
 * be followed (the tokens so far do not match it, no token is allowed, it is too costly);
 * ERR_NOMEM: no memory at present. */
int constraint_prepare(struct request_copy *req, const struct engine_info *info, uint32_t ahead,
                       struct err *err);
/* The mask that constraint_prepare computed for the token after `ahead` drafted ones (struct
 * engine_draw's `allowed`); NULL: there is no constraint. */
const uint64_t *constraint_allowed(const struct request_copy *req, uint32_t ahead);
/* The fault of an attempt whose draw failed with this code: OVERLOADED for ERR_NOMEM, the only one
 * worth another attempt; INTERNAL for ERR_CORRUPT (logits not finite); else INVALID. */
Pds__Fault constraint_fault(int code);
/* How many of the n tokens drafted after req's own are allowed, from the first on. */
uint32_t constraint_leading(struct request_copy *req, uint32_t n);

#endif
