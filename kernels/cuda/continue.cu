/* continue.cu - KERN_OP_ADVANCE: completes the batch's spans that continue others, in the device's
 * copy of the batch, but not its header, which products read before the kernels before them are
 * done (KERNEL_EARLY). kernels/continue.c does the same on the host. A block for each span. */
#include "kernels/continue.h"
#include "kernels/cuda/kernel.h"

enum { THREADS = 512 };

struct continue_args {
	struct kern_batch *batch;
	const struct kern_kept *kept;
	uint32_t *histories; /* (histories, 1 + history_tokens): each its length and its tokens */
	uint32_t history_tokens, block_tokens, match;
};

static __device__ void add_index(struct kern_draw *d, uint32_t by)
{
	d->index[0] += by;
	d->index[1] += d->index[0] < by;
}

/* All threads have read the span. */
static __device__ void move_on(const struct continue_args &a, const struct kern_continued &c,
                               struct kern_span s, uint32_t by)
{
	struct kern_batch *b = a.batch;
	uint32_t *words = (uint32_t *)b;
	struct kern_span *tail = (struct kern_span *)(words + b->tail_span);
	bool draws = c.tail_span != KERN_NONE && b->draws;
	struct kern_draw *draw = (struct kern_draw *)(words + b->draws) +
	                         (draws ? tail[c.tail_span].row : 0);
	for (uint32_t i = threadIdx.x; i < s.rows; i += THREADS) {
		uint32_t position = s.position + by + i;
		words[b->positions + s.row + i] = position;
		words[b->slots + s.row + i] = words[b->table + s.table + position / a.block_tokens] *
		                                  a.block_tokens +
		                              position % a.block_tokens;
		if (draws)
			add_index(&draw[i], by);
	}
	if (threadIdx.x == 0) {
		((struct kern_span *)(words + b->span))[blockIdx.x].position += by;
		if (c.tail_span != KERN_NONE)
			tail[c.tail_span].position += by;
	}
}

/* Returns the history's new length. More tokens than it can hold, which the host prevents, begin it
 * anew. */
static __device__ uint32_t remember(const struct continue_args &a, uint32_t *history,
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

/* The place of the tokens that are expected next; 0: nothing is. The largest key is the longest
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

/* tokens (rows): the first is `newest`. A token behind the last one repeats the draft, which begins
 * at place `at`. */
static __device__ void draft(const uint32_t *token, uint32_t n, uint32_t at, uint32_t newest,
                             uint32_t *tokens, uint32_t rows)
{
	for (uint32_t i = 1 + threadIdx.x; i < rows; i += THREADS)
		tokens[i] = at ? token[at + (i - 1) % (n - at)] : newest;
}

KERNEL(continue_spans, THREADS, struct continue_args)
{
	struct kern_batch *b = a.batch;
	uint32_t *words = (uint32_t *)b;
	if (!b->continued || blockIdx.x >= b->spans)
		return;
	const struct kern_continued c = ((const struct kern_continued *)(words +
	                                                                 b->continued))[blockIdx.x];
	const struct kern_span s = ((const struct kern_span *)(words + b->span))[blockIdx.x];
	if (c.from == KERN_NONE)
		return;
	const struct kern_kept *kept = a.kept + c.from;
	uint32_t right = kern_right(kept, c.rows), newest = kept[right].id;
	__syncthreads();
	move_on(a, c, s, right);
	if (threadIdx.x == 0)
		words[b->tokens + s.row] = newest;
	if (c.history == KERN_NONE)
		return;
	uint32_t *history = a.histories + (size_t)c.history * (1 + a.history_tokens);
	uint32_t n = remember(a, history, c.known, kept, right + 1);
	if (s.rows == 1)
		return;
	uint32_t at = expected_at(history + 1, n, a.match);
	draft(history + 1, n, at, newest, words + b->tokens + s.row, s.rows);
}

void plan_advance(struct plan *p)
{
	const struct kern_op *op = p->op;
	struct continue_args a = {(struct kern_batch *)(uintptr_t)p->batch,
	                          (const struct kern_kept *)op->advance.kept.v,
	                          (uint32_t *)op->advance.histories.v,
	                          p->limits->history_tokens,
	                          op->advance.block_tokens,
	                          op->advance.match};
	PLAN(p, continue_spans, p->spans, 1, THREADS, THREADS / WARP * sizeof(uint32_t), a);
}
