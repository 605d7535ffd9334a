/* advance.cu - KERN_OP_ADVANCE (kernels/advance.h) in the device's copy of the batch, but not its
 * header, which products read before the kernels before them are done (KERNEL_EARLY). A block for
 * each span. */
#include "kernels/advance.h"
#include "kernels/cuda/kernel.h"

enum { THREADS = 512 };

struct advance_args {
	struct kern_batch *batch;
	const struct kern_kept *kept;
	uint32_t *histories; /* (histories, 1 + history_tokens): each its length and its tokens */
	uint32_t history_tokens, block_tokens, match;
};

/* Appends drawn tokens; returns the history's new length. A history that would overflow, which the
 * host prevents, is cleared first. */
static __device__ uint32_t remember(const struct advance_args &a, uint32_t *history,
                                    const struct kern_list &known, const struct kern_kept *drawn,
                                    uint32_t count)
{
	uint32_t n = known.n ? known.n : history[0];
	const uint32_t *words = (const uint32_t *)a.batch + known.at;
	__syncthreads(); /* all have read the length */
	for (uint32_t i = threadIdx.x; i < known.n; i += THREADS)
		history[1 + i] = words[i];
	if (n + count > a.history_tokens)
		n = 0;
	count = count < a.history_tokens ? count : a.history_tokens;
	for (uint32_t i = threadIdx.x; i < count; i += THREADS)
		history[1 + n + i] = drawn[i].id;
	if (threadIdx.x == 0)
		history[0] = n + count;
	__syncthreads();
	return n + count;
}

/* The place of the tokens that are expected next; 0: there is none. The largest key is the longest
 * match, of equally long ones the latest. */
static __device__ uint32_t expected_at(const uint32_t *token, uint32_t n, uint32_t least)
{
	static_assert(KERN_MATCH_LONG * (uint64_t)KERN_HISTORY_MAX + KERN_HISTORY_MAX <= 1ull << 32,
	              "a key has 32 bits");
	uint32_t best = 0;
	for (uint32_t place = 1 + threadIdx.x; place < n; place += THREADS) {
		uint32_t k = kern_alike(token, n, place), key = k * KERN_HISTORY_MAX + place;
		best = k >= least && key > best ? key : best;
	}
	return block_largest(best, (uint32_t *)shared_memory(), THREADS) % KERN_HISTORY_MAX;
}

KERNEL(advance_spans, THREADS, struct advance_args)
{
	struct kern_batch *b = a.batch;
	uint32_t *words = (uint32_t *)b;
	if (!b->advance || blockIdx.x >= b->spans)
		return;
	const struct kern_advance of = ((struct kern_advance *)(words + b->advance))[blockIdx.x];
	const struct kern_span s = ((struct kern_span *)(words + b->span))[blockIdx.x];
	if (of.from == KERN_NONE)
		return;
	const struct kern_kept *kept = a.kept + of.from;
	uint32_t right = kern_right(kept, of.rows), newest = kept[right].id;
	__syncthreads(); /* all have read the span */
	kern_move_span(b, &of, blockIdx.x, s, right, a.block_tokens, threadIdx.x, THREADS);
	if (threadIdx.x == 0)
		words[b->tokens + s.row] = newest;
	if (of.history == KERN_NONE)
		return;
	uint32_t *history = a.histories + (size_t)of.history * (1 + a.history_tokens);
	uint32_t n = remember(a, history, of.known, kept, right + 1);
	if (s.rows > 1)
		kern_draft(history + 1, n, expected_at(history + 1, n, a.match), newest,
		           words + b->tokens + s.row, s.rows, threadIdx.x, THREADS);
}

void plan_advance(struct plan *p)
{
	const struct kern_op *op = p->op;
	struct advance_args a = {(struct kern_batch *)(uintptr_t)p->batch,
	                         (const struct kern_kept *)op->advance.kept.v,
	                         (uint32_t *)op->advance.histories.v,
	                         p->limits->history_tokens,
	                         op->advance.block_tokens,
	                         op->advance.match};
	PLAN(p, advance_spans, p->spans, 1, THREADS, THREADS / WARP * sizeof(uint32_t), a);
}
