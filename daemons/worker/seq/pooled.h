/* pooled.h - a request for an embedding: what steps give of its prompt's hidden states, and the
 * vector on its way to the router.
 *
 * The states are summed in float64, in the order of positions: the vector does not depend on chunks
 * and batches. A mean needs every token, so its prompt is computed as a whole: nothing of it is
 * matched in the prefix index, and if it loses its blocks it begins again. */
#ifndef WORKER_SEQ_POOLED_H
#define WORKER_SEQ_POOLED_H

#include "copy.h"
#include "daemons/worker/worker.h"

/* Requests that the worker may hold before it refuses this one: embeddings leave a quarter to those
 * that generate. */
static inline uint32_t pooled_jobs_max(const struct request_copy *req, uint32_t max_jobs)
{
	return req->pooling ? max_jobs - max_jobs / 4 : max_jobs;
}
/* (info.hidden) zeros; the caller frees it. */
double *pooled_new(const struct engine_info *info);
/* What the span, whose tokens are set, gives of req's prompt: added to sum, if anything. */
void pooled_ask(const struct request_copy *req, double *sum, struct engine_span *span);
/* After the step. 0, or ERR_CORRUPT with a sentence: a state is not finite. */
int pooled_check(const struct engine_span *span, const struct engine_info *info, struct err *err);
/* To the request's router, if that is still there. On the loop. */
void pooled_send(const struct request_copy *req, struct worker *w, const double *sum,
                 const Pds__Timing *timing);

#endif
