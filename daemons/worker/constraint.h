/* constraint.h - constrained output at a worker: compiled constraints are kept by the hash of their text and shared by all requests that have the same; each request has its
 * place in one. No state travels: where an answer stands is told by its tokens (grammar.h).
 *
 * The cache is the loop's; draws are the schedule thread's. */
#ifndef WORKER_CONSTRAINT_H
#define WORKER_CONSTRAINT_H

#include "engine/engine.h"
#include "engine/sample.h"
#include "request.pb-c.h"

struct constraints;
struct constraint;
struct work;

/* The vocabulary of the model there, if it has one; without, constraints are refused. Never NULL. */
struct constraints *constraints_new(const char *model_path, const struct engine_info *info);
void constraints_destroy(struct constraints **all);      /* no request has one any more */

/* Compiles what the request asks for, or finds it. Nothing asked for: 0. ERR_* with a sentence; w has none then. Bounded in time (grammar.h). all may be NULL. */
int constraint_attach(struct constraints *all, struct work *w, const Pds__Request *r, struct err *err);
void constraint_detach(struct work *w);
/* Into the message; the text stays the work's. */
void constraint_request(const struct work *w, Pds__Request *r);

/* Draws the next token of w, among those that its constraint allows. An end-of-sequence id is allowed where the answer may end; with ignore_eos only where nothing else is.
 * ERR_*: the constraint cannot be followed (the tokens so far are not its, no token leads on, it is too costly); always 0 without one. */
int constraint_draw(struct work *w, const struct engine_info *info, struct sampler *s, const float *logits, struct sample_result *ret, struct err *err);
/* How many of the n tokens drafted behind w's own are allowed, one after the other. */
uint32_t constraint_leading(struct work *w, uint32_t n);

#endif
