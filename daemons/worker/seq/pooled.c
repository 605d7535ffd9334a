/* pooled.c - see pooled.h. */
#include "pooled.h"
#include "util/mem.h"

#include <math.h>
#include <stdlib.h>

double *pooled_new(const struct engine_info *info)
{
	return mem_zalloc(info->hidden * sizeof(double));
}

void pooled_ask(const struct request_copy *req, double *sum, struct engine_span *span)
{
	if (req->pooling == PDS__POOLING__POOLING_MEAN)
		span->logits = ENGINE_LOGITS_ALL;
	else if (span->position + span->n == req->n_tokens)
		span->logits = ENGINE_LOGITS_LAST;
	else
		return;
	span->hidden = sum;
}

int pooled_check(const struct engine_span *span, const struct engine_info *info, struct err *err)
{
	for (uint32_t i = 0; span->hidden && i < info->hidden; i++)
		if (!isfinite(span->hidden[i]))
			return err_set(err, ERR_CORRUPT,
			               "the model's hidden states of tokens %u to %u are not finite: its "
			               "weights are damaged, or its numbers overflow",
			               span->position, span->position + span->n - 1);
	return 0;
}

void pooled_send(const struct request_copy *req, struct worker *w, const double *sum,
                 const Pds__Timing *timing)
{
	struct peer *p = worker_router(w, req->router, req->router_epoch);
	Pds__Embedding m = PDS__EMBEDDING__INIT;
	double of = req->pooling == PDS__POOLING__POOLING_MEAN ? req->n_tokens : 1;
	struct msg_head h;
	if (!p)
		return;
	request_copy_head(req, &h);
	m.n_values = w->info->hidden;
	m.values = mem_array(m.n_values, sizeof *m.values);
	for (size_t i = 0; i < m.n_values; i++)
		m.values[i] = (float)(sum[i] / of);
	m.timing = (Pds__Timing *)timing;
	worker_send_awaited(w, p, MSG_REQUEST_EMBEDDING, &h, &m.base);
	free(m.values);
}
