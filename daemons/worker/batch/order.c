/* order.c - which of the runs that have their blocks a step takes first; on the batcher's thread.
 *
 * By arrival (fifo), or the shortest rest first (srpt). The rest of a run shrinks with the time
 * that it has waited and is 0 after ageing_us; then it comes before all others, by arrival, so that
 * no prompt starves. */
#include "batch.h"

/* The tokens left to compute, or those that others wait for, less the share of ageing_us that it
 * has waited. */
static uint64_t order_key(const struct batcher *b, const struct run *r, uint64_t now)
{
	uint64_t waited = now > r->born_us ? now - r->born_us : 0, ageing_us = b->config.ageing_us;
	uint32_t computed = r->computed, left = r->req.n_tokens - computed,
			 wanted = r->shared->wanted * b->w->info->kv.block_tokens;
	if (b->config.order == ORDER_FIFO || waited >= ageing_us)
		return 0;
	if (wanted > computed && wanted - computed < left)
		left = wanted - computed;
	return 1 + left * (ageing_us - waited) / ageing_us;
}

static int before(const struct run *a, const struct run *b)
{
	uint64_t a_turn = a->shared->turn, b_turn = b->shared->turn;
	return a->key != b->key   ? a->key < b->key
	       : a_turn != b_turn ? a_turn < b_turn
	                          : a->seq < b->seq;
}

/* By insertion: the list is nearly in order from the step before. */
void order_sort(struct batcher *b, uint64_t now_us)
{
	struct list *all = &b->own.running;
	list_each(it, all) {
		struct run *r = list_entry(it, struct run, node);
		r->key = order_key(b, r, now_us);
	}
	list_each_safe(it, nx, all) {
		struct list *at = it->prev;
		while (at != all &&
		       before(list_entry(it, struct run, node), list_entry(at, struct run, node)))
			at = at->prev;
		if (at == it->prev)
			continue;
		list_remove(it);
		list_push_front(at, it); /* behind `at` */
	}
}
