/* keep.c - output caching: what a sequence has computed when it ends, prompt and answer, goes to
 * storage, so that the next turn of the conversation finds both there. It is only marked here; the
 * worker's write-out sends it in the background, and the blocks stay matchable meanwhile. Blocks
 * that storage is known to have are not sent again. On the schedule thread. */
#include "decode.h"

void keep_output(struct decode *d, struct sequence *q)
{
	if (!d->keep_outputs || q->failed || d->stop)
		return;
	uint32_t n = kv_pool_want_stored(d->w->pool, q->blocks,
	                                 q->published < q->n_blocks ? q->published : q->n_blocks);
	stat_add(svc_stats(d->w->svc), WS_KEPT, n);
}
