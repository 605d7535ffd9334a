/* constraint.h - constrained output at a worker. Compiled constraints are cached by the hash of
 * their text and shared by all requests with the same text; each request keeps its own position. No
 * state is sent between workers: the answer's tokens determine the position (grammar.h).
 *
 * A request's constraint is taken on the loop, compiled by the compiler thread (milliseconds), and
 * used for draws on the schedule thread. A mask for which a step has no time is computed by a
 * thread beside the steps, in which the request takes no part until then. The memory of all of them
 * is bounded by constraint_memory_mb. */
#ifndef WORKER_CONSTRAINT_H
#define WORKER_CONSTRAINT_H

#include "engine/engine.h"
#include "request.pb-c.h"
#include "util/buf.h"

#define CONSTRAINT_RETRY_US 1000000u /* when there may be memory again, after ERR_NOMEM */
/* of the automaton: what the masks of one step may take of the schedule thread, about 1 ms */
#define CONSTRAINT_STEPS 100000u

struct constraints;
struct constraint;
struct request_copy;

/* Reads the vocabulary of the model at this path; without a vocabulary all constraints are refused.
 * Never NULL. */
struct constraints *constraints_new(const char *model_path, const struct engine_info *info,
                                    size_t memory_bytes);
void constraints_destroy(struct constraints **all); /* no request has one any more */
/* The stage's, before its threads start: called on the mask thread after each mask. */
void constraints_on_mask(struct constraints *all, void (*done)(void *arg), void *arg);
/* Returns when that will not be called any more; no request has a constraint any more. */
void constraints_wait(struct constraints *all);
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
void constraint_detach(struct request_copy *req); /* waits for the mask thread, if that has req */
/* Sets r->constraint; it points into req. */
void constraint_request(const struct request_copy *req, Pds__Request *r);

/* Computes which tokens req's next token may be, if it has a constraint (which is ready), and which
 * tokens may follow each of the `ahead` tokens drafted after its own. An end-of-sequence id is
 * allowed where the answer may end; with ignore_eos only where nothing else is allowed. Takes at
 * most about *steps, from which it subtracts what it took. Returns how many of `ahead` may be
 * drafted: fewer if memory or steps run out. ERR_*: the constraint cannot be followed (the tokens
 * so far do not match it, no token is allowed, it is too expensive); ERR_NOMEM: no memory at
 * present; ERR_TIMEOUT: the steps are too few, and the mask thread has req until constraint_is_busy
 * says otherwise: the same call then returns what that thread found. */
int constraint_prepare(struct request_copy *req, const struct engine_info *info, uint32_t ahead,
                       uint64_t *steps, struct err *err);
/* The mask thread has req: its tokens must not move, nor may it be freed. */
int constraint_is_busy(const struct request_copy *req);
/* Takes req back if the mask thread has not begun. Returns whether req is not busy now. */
int constraint_stop(struct request_copy *req);
/* The mask that constraint_prepare computed for the token after `ahead` drafted ones (struct
 * engine_draw's `allowed`); NULL: there is no constraint. */
const uint64_t *constraint_allowed(const struct request_copy *req, uint32_t ahead);
/* The fault of an attempt whose draw failed with this code: OVERLOADED for ERR_NOMEM, the only one
 * worth another attempt; INTERNAL for ERR_CORRUPT (logits not finite); else INVALID. */
Pds__Fault constraint_fault(int code);
/* How many of the n tokens drafted after req's own are allowed, from the first on; *steps: as
 * above. req is not busy. */
uint32_t constraint_leading(struct request_copy *req, uint32_t n, uint64_t *steps);

#endif
