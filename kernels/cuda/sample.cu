/* sample.cu - draws and log-probabilities for the tail's rows. See struct kern_draw;
 * kernels/sample.c does the same on the host.
 *
 * A block processes one row at a time. Control flow is uniform within a block. The number of
 * threads does not affect results, because no sum depends on their order (pick.h). */
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/pick.h"
#include "kernels/own_math.h"

enum {
	THREADS_MIN = 128,
	THREADS_MAX = 1024,
	WARPS_MAX = THREADS_MAX / WARP,
	BLOCKS_MAX = 64,    /* each has a list and a copy of a row: 12 bytes per id */
	LEVELS = PICK_SUMS, /* see level_weight */
	ADDED_MAX = KERN_DRAFTED_MAX + 1
};
#define GREEDY_BELOW 1e-5f

struct sample_args {
	const struct kern_batch *batch;
	const float *logits; /* (tail_rows, vocab), rows ld apart */
	size_t ld;
	uint32_t vocab;
	float one; /* see struct picker */
	struct kern_drawn *results;
	struct kern_kept *kept; /* NULL: nothing is kept */
	uint64_t *lists;        /* (blocks, vocab) */
	/* (blocks, vocab) modified copies of the logits */
	float *edited;
};

struct shared {
	struct pick_shared pick;
	/* of the latest scan: the largest key of each warp's ids; 0: no ids */
	uint64_t warp_best[WARPS_MAX];
	uint64_t bound;
	uint64_t top[KERN_TOP_MAX];
	uint32_t lowest;
	uint32_t added[ADDED_MAX], was_seen[ADDED_MAX];
	struct kern_drawn drawn;
};

struct sample_block {
	const struct sample_args &a;
	struct shared *s;
	struct picker p;
};

/* --- log-probabilities --------------------------------------------------- */

/* Returns the largest key of a row of logits to all threads; *ret_finite: no logit is NaN or plus
 * infinity. */
static __device__ uint64_t scan(const struct sample_block &b, const float *logits, bool *ret_finite)
{
	uint64_t best = 0;
	bool finite = true;
	for (uint32_t id = threadIdx.x; id < b.a.vocab; id += blockDim.x) {
		float l = logits[id];
		uint64_t key = logit_key(l, id);
		finite &= l < INFINITY;
		best = key > best ? key : best;
	}
	best = block_largest(best, b.s->warp_best, blockDim.x);
	*ret_finite = !__syncthreads_or(!finite);
	return best;
}

/* A draw's candidates are the ids of at least the first of these weights that suffices for its
 * filters. */
static __device__ float level_weight(int level)
{
	return level == 0 ? 0x1p-7f : level == 1 ? 0x1p-14f : 0;
}

/* Sums, per level, number and mass of ids of at least that weight and more than 0. */
static __device__ void weigh(const struct sample_block &b, const struct weighing &v)
{
	uint32_t count[LEVELS] = {0};
	uint64_t mass[LEVELS] = {0};
	for (uint32_t id = threadIdx.x; id < b.a.vocab; id += blockDim.x) {
		float w = weight_at(v, id);
		uint64_t m = mass_of(b.p, w);
		for (int i = 0; i < LEVELS; i++)
			if (w > 0 && w >= level_weight(i)) {
				count[i]++;
				mass[i] += m;
			}
	}
	block_sums<LEVELS>(b.p.s, count, mass);
}

/* Log of the sum of exp(logit), for the unscaled distribution. */
static __device__ double log_sum(const struct sample_block &b, const float *logits, float max)
{
	weigh(b, {logits, max, 1, 0});
	return (double)max + own_log((double)tally_mass(b.p.s->sum[LEVELS - 1]) / (double)b.p.one);
}

static __device__ uint32_t rank_of(const struct sample_block &b, const float *logits, uint32_t id)
{
	uint64_t own = logit_key(logits[id], id);
	uint32_t above[1] = {0};
	for (uint32_t i = threadIdx.x; i < b.a.vocab; i += blockDim.x)
		above[0] += logit_key(logits[i], i) > own;
	block_sums<1>(b.p.s, above, {0});
	return b.p.s->sum[0].count + 1;
}

/* A lower bound that at least n ids' keys reach: the n-th largest of the warps' largest keys. 1
 * (all ids) if fewer warps have ids. */
static __device__ uint64_t bound_of(struct shared *s, uint32_t n)
{
	if (threadIdx.x == 0)
		s->bound = 1;
	__syncthreads();
	uint32_t warps = blockDim.x / WARP;
	if (threadIdx.x < warps) {
		uint64_t own = s->warp_best[threadIdx.x];
		uint32_t above = 0;
		for (uint32_t i = 0; i < warps; i++)
			above += s->warp_best[i] > own;
		if (own && above == n - 1)
			s->bound = own;
	}
	__syncthreads();
	return s->bound;
}

/* Finds the n largest logits, in descending order. Requires that scan() has run for them and
 * returned `best`. */
static __device__ void find_top(const struct sample_block &b, const float *logits, uint64_t best,
                                uint32_t n, double sum)
{
	uint64_t bound = bound_of(b.s, n);
	uint32_t listed = list_logits(b.p, logits, bound);
	struct pick_cut last = find_cut(b.p, {listed, bound, best, pick_keys::OF_LOGITS, {}}, BY_COUNT,
	                                n);
	list_begin(b.p.s);
	for (uint32_t i = threadIdx.x; i < listed; i += blockDim.x)
		if (b.p.list[i] >= last.lo)
			b.s->top[atomicAdd(&b.p.s->listed, 1u)] = b.p.list[i];
	list_end(b.p.s);
	if (threadIdx.x < n) {
		uint64_t own = b.s->top[threadIdx.x];
		uint32_t above = 0;
		for (uint32_t i = 0; i < n; i++)
			above += b.s->top[i] > own;
		b.s->drawn.top[above] = {key_id(own), (float)((double)key_logit(own) - sum)};
	}
}

/* Fills s->drawn except not_finite. Requires that scan() has run for these logits and returned
 * `best`. */
static __device__ void score(const struct sample_block &b, const float *logits, uint64_t best,
                             uint32_t id, int32_t logprobs)
{
	struct kern_drawn *drawn = &b.s->drawn;
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < sizeof *drawn / 4; i += blockDim.x)
		((uint32_t *)drawn)[i] = 0;
	__syncthreads();
	if (threadIdx.x == 0)
		drawn->id = id;
	if (logprobs < 0)
		return;
	double sum = log_sum(b, logits, key_logit(best));
	uint32_t rank = id == key_id(best) ? 1 : rank_of(b, logits, id);
	uint32_t n = logprobs > KERN_TOP_MAX ? (uint32_t)KERN_TOP_MAX : (uint32_t)logprobs;
	n = n < b.a.vocab ? n : b.a.vocab;
	if (threadIdx.x == 0) {
		drawn->logprob = (float)((double)logits[id] - sum);
		drawn->rank = rank;
		drawn->n_top = n;
	}
	if (n)
		find_top(b, logits, best, n, sum);
}

/* --- the draw ------------------------------------------------------------ */

static __device__ uint64_t within(double mass, uint64_t total)
{
	return !(mass > 1) ? 1 : mass < (double)total ? (uint64_t)mass : total;
}

/* The smallest mass that reaches this part of the total. */
static __device__ uint64_t reaching(float part, uint64_t total)
{
	return within(ceil((double)part * (double)total), total);
}

/* The smallest mass that exceeds this part of the total. */
static __device__ uint64_t passing(double u, uint64_t total)
{
	return within(floor(u * (double)total) + 1, total);
}

static __device__ bool is_typical(const struct kern_draw &d)
{
	return d.typical_p > 0 && d.typical_p < 1;
}

/* Whether these candidates, the largest ones, are all that the draw needs; total: the mass of all
 * ids. */
static __device__ bool enough(const struct kern_draw &d, const struct tally &t, uint64_t total,
                              double u)
{
	if (d.top_k)
		return t.count >= d.top_k;
	if (d.top_p < 1)
		return tally_mass(t) >= reaching(d.top_p, total);
	return !is_typical(d) && tally_mass(t) >= passing(u, total);
}

/* Of the candidates of mass *total, keeps those whose surprise is nearest to the entropy, up to
 * `part` of the mass: the others' keys become 0. Updates *total. */
static __device__ void keep_typical(const struct sample_block &b, const struct pick_keys &k,
                                    float part, uint64_t *total)
{
	uint64_t *list = b.p.list, sum[1] = {0};
	for (uint32_t i = threadIdx.x; i < k.n; i += blockDim.x) {
		double w = (double)key_weight(list[i]);
		if (list[i] >= k.lo)
			sum[0] += (uint64_t)(-w * own_log(w) * (double)b.p.one);
	}
	block_sums<1>(b.p.s, {0}, sum);
	/* the entropy is log(total) - mean, a surprise is log(total) - log(weight) */
	double mean = -(double)tally_mass(b.p.s->sum[0]) / (double)*total;
	for (uint32_t i = threadIdx.x; i < k.n; i += blockDim.x) {
		float far = (float)fabs(own_log((double)key_weight(list[i])) - mean);
		list[i] = list[i] >= k.lo ? key_of(0x7fffffff - kern_f32_bits(far), key_id(list[i])) : 0;
	}
	const struct pick_keys distances = {k.n, 1, key_of(0x7fffffff, 0), pick_keys::OF_DISTANCES,
	                                    k.weights};
	struct pick_cut c = find_cut(b.p, distances, BY_MASS, reaching(part, *total));
	for (uint32_t i = threadIdx.x; i < k.n; i += blockDim.x) {
		uint32_t id = key_id(list[i]);
		list[i] = list[i] >= c.lo ? weight_key(weight_at(k.weights, id), id) : 0;
	}
	*total = c.mass;
}

/* Draws from logits whose largest is finite. */
static __device__ uint32_t draw(const struct sample_block &b, const float *logits, uint64_t best,
                                const struct kern_draw &d)
{
	const struct weighing v = {logits, key_logit(best), 1.0f / d.temperature, d.min_p};
	double u = own_uniform(d.seed, d.index);
	int level = 0;
	weigh(b, v);
	const struct tally *sum = b.p.s->sum;
	uint64_t total = tally_mass(sum[LEVELS - 1]);
	while (level + 1 < LEVELS && !enough(d, sum[level], total, u))
		level++;
	uint64_t mass = tally_mass(sum[level]),
			 least = weight_key(level_weight(level), PICK_ID_LAST) | 1;
	struct pick_keys k = {list_weights(b.p, v, level_weight(level)), least, weight_key(1, 0),
	                      pick_keys::OF_WEIGHTS, v};
	if (!k.n)
		return key_id(best); /* min_p is above 1 */
	if (d.top_k)
		total = mass;
	if (d.top_k && d.top_k < k.n) {
		struct pick_cut c = find_cut(b.p, k, BY_COUNT, d.top_k);
		k.lo = c.lo;
		total = c.mass;
	}
	if (d.top_p < 1) {
		struct pick_cut c = find_cut(b.p, k, BY_MASS, reaching(d.top_p, total));
		k.lo = c.lo;
		total = c.mass;
	}
	if (is_typical(d))
		keep_typical(b, k, d.typical_p, &total);
	return cut_id(b.p, k.n, find_cut(b.p, k, BY_MASS, passing(u, total)));
}

/* --- edits of the logits before a draw ----------------------------------- */

/* Up to two masks. */
struct masks {
	const uint32_t *of[2];
};

static __device__ struct masks masks_of(const struct kern_batch *b, const struct kern_draw &d)
{
	return {{d.mask[0] ? batch_words(b, d.mask[0]) : NULL,
	         d.mask[1] ? batch_words(b, d.mask[1]) : NULL}};
}

static __device__ bool is_allowed(const struct masks &m, uint32_t id)
{
	uint32_t at = id / 32, bit = id % 32;
	return (!m.of[0] || m.of[0][at] >> bit & 1) && (!m.of[1] || m.of[1][at] >> bit & 1);
}

/* The lowest id in both masks; 0 if there is none. */
static __device__ uint32_t lowest_allowed(const struct sample_block &b, const struct masks &masks)
{
	uint32_t id = threadIdx.x;
	while (id < b.a.vocab && !is_allowed(masks, id))
		id += blockDim.x;
	if (threadIdx.x == 0)
		b.s->lowest = UINT32_MAX;
	__syncthreads();
	if (id < b.a.vocab)
		atomicMin(&b.s->lowest, id);
	__syncthreads();
	return b.s->lowest < b.a.vocab ? b.s->lowest : 0;
}

/* Copies the logits, with minus infinity for ids outside the masks. Returns whether the logits are
 * finite, like scan(). */
static __device__ bool copy_allowed(uint32_t vocab, const struct masks &masks, const float *logits,
                                    float *edited)
{
	bool finite = true;
	for (uint32_t id = threadIdx.x; id < vocab; id += blockDim.x) {
		float l = logits[id];
		finite &= l < INFINITY;
		edited[id] = is_allowed(masks, id) ? l : -INFINITY;
	}
	return !__syncthreads_or(!finite);
}

static __device__ void forbid(const struct sample_args &a, struct kern_list ids, float *edited)
{
	const uint32_t *id = batch_words(a.batch, ids.at);
	for (uint32_t i = threadIdx.x; i < ids.n; i += blockDim.x)
		if (id[i] < a.vocab)
			edited[id[i]] = -INFINITY;
	__syncthreads();
}

/* An id may have several biases; the thread of its first one adds them in order. */
static __device__ void add_bias(const struct sample_args &a, struct kern_list pairs, float *edited)
{
	const uint32_t *pair = batch_words(a.batch, pairs.at);
	for (uint32_t i = threadIdx.x; i < pairs.n; i += blockDim.x) {
		uint32_t id = pair[2 * i], first = 0;
		while (pair[2 * first] != id)
			first++;
		for (uint32_t k = i; first == i && id < a.vocab && k < pairs.n; k++)
			if (pair[2 * k] == id)
				edited[id] += kern_bits_to_f32(pair[2 * k + 1]);
	}
	__syncthreads();
}

static __device__ void penalise_one(const struct kern_draw &d, uint32_t vocab, uint32_t id,
                                    uint32_t times, float *edited)
{
	if (id >= vocab)
		return;
	float l = edited[id];
	l = l > 0 ? l / d.repetition : l * d.repetition;
	l -= d.frequency * (float)times;
	edited[id] = l - (times ? d.presence : 0);
}

static __device__ uint32_t count_id(const uint32_t *ids, uint32_t n, uint32_t id)
{
	uint32_t times = 0;
	for (uint32_t i = 0; i < n; i++)
		times += ids[i] == id;
	return times;
}

/* The token of a row of the tail. */
static __device__ uint32_t row_token(const struct kern_batch *b, uint32_t row)
{
	return batch_words(b, b->tokens)[batch_words(b, b->tail_index)[row]];
}

/* `added`: number of the answer's tokens that `seen` does not count: drafted ones, then the
 * row's own. */
static __device__ void penalise(const struct sample_block &b, const struct kern_draw &d,
                                uint32_t row, uint32_t added, float *edited)
{
	const uint32_t *drafted = batch_words(b.a.batch, d.drafted.at),
				   *seen = batch_words(b.a.batch, d.seen.at);
	uint32_t *add = b.s->added, *was_seen = b.s->was_seen, own = threadIdx.x;
	if (own < added) {
		add[own] = own < d.drafted.n ? drafted[own] : row_token(b.a.batch, row);
		was_seen[own] = 0;
	}
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < d.seen.n; i += blockDim.x) {
		uint32_t id = seen[2 * i], times = seen[2 * i + 1];
		for (uint32_t k = 0; k < added; k++)
			if (add[k] == id) {
				was_seen[k] = 1;
				times++;
			}
		penalise_one(d, b.a.vocab, id, times, edited);
	}
	__syncthreads();
	if (own < added && !was_seen[own] && !count_id(add, own, add[own]))
		penalise_one(d, b.a.vocab, add[own], count_id(add, added, add[own]), edited);
	__syncthreads();
}

/* Returns the logits themselves if the draw changes nothing; else a modified copy, and sets
 * *ret_finite. */
static __device__ const float *edit(const struct sample_block &b, const float *logits,
                                    const struct kern_draw &d, uint32_t row, bool *ret_finite)
{
	uint32_t added = d.drafted.n + d.pending;
	if (!d.mask[0] && !d.mask[1] && !d.forbidden.n && !d.bias.n && !d.seen.n && !added)
		return logits;
	float *edited = b.a.edited + (size_t)blockIdx.x * b.a.vocab;
	*ret_finite = copy_allowed(b.a.vocab, masks_of(b.a.batch, d), logits, edited);
	forbid(b.a, d.forbidden, edited);
	add_bias(b.a, d.bias, edited);
	if (d.seen.n || added)
		penalise(b, d, row, added, edited);
	return edited;
}

/* --- rows ---------------------------------------------------------------- */

/* Returns the drawn id. *ret_best is for the row's unmodified logits if log-probabilities are
 * requested. */
static __device__ uint32_t draw_row(const struct sample_block &b, const float *logits,
                                    const struct kern_draw &d, uint32_t row, uint64_t *ret_best,
                                    bool *ret_finite)
{
	bool seen_finite;
	const float *seen = edit(b, logits, d, row, ret_finite);
	uint64_t best = *ret_best = scan(b, seen, &seen_finite);
	uint32_t id = key_id(best);
	if (seen == logits)
		*ret_finite = seen_finite;
	if (key_logit(best) == -INFINITY)
		id = d.mask[0] || d.mask[1] ? lowest_allowed(b, masks_of(b.a.batch, d)) : 0;
	else if (d.temperature >= GREEDY_BELOW && isfinite(key_logit(best)))
		id = draw(b, seen, best, d);
	if (seen != logits && d.logprobs >= 0)
		*ret_best = scan(b, logits, ret_finite);
	return id;
}

static __device__ void sample_row(const struct sample_block &b, uint32_t r,
                                  const struct kern_draw &d)
{
	const float *logits = b.a.logits + r * b.a.ld;
	uint64_t best;
	bool finite;
	uint32_t id = d.id;
	if (d.ask == KERN_ASK_DRAW)
		id = draw_row(b, logits, d, r, &best, &finite);
	else
		best = scan(b, logits, &finite);
	score(b, logits, best, id, d.logprobs);
	uint32_t at = b.a.batch->first_result + r;
	__syncthreads();
	if (threadIdx.x == 0) {
		uint32_t token = row_token(b.a.batch, r);
		b.s->drawn.not_finite = !finite;
		b.s->drawn.token = token;
		if (b.a.kept)
			b.a.kept[at] = {token, id};
	}
	__syncthreads();
	struct kern_drawn *result = &b.a.results[at];
	for (uint32_t i = threadIdx.x; i < sizeof b.s->drawn / 4; i += blockDim.x)
		((uint32_t *)result)[i] = ((const uint32_t *)&b.s->drawn)[i];
}

KERNEL(sample_rows, THREADS_MAX, struct sample_args)
{
	struct shared *s = (struct shared *)shared_memory();
	const struct sample_block b = {
		a, s, {a.vocab, a.one, a.lists + (size_t)blockIdx.x * a.vocab, &s->pick}};
	const struct kern_draw *draws = (const struct kern_draw *)batch_words(a.batch, a.batch->draws);
	uint32_t rows = a.batch->draws ? a.batch->tail_rows : 0;
	for (uint32_t r = blockIdx.x; r < rows; r += gridDim.x)
		if (draws[r].ask != KERN_ASK_NOTHING)
			sample_row(b, r, draws[r]);
}

void plan_sample(struct plan *p)
{
	const struct kern_op *op = p->op;
	const struct kern_tensor *logits = &op->sample.logits;
	uint32_t vocab = p->limits->vocab, blocks = plan_least(plan_rows(p), BLOCKS_MAX);
	if (p->dev->group.rank)
		return;
	uint32_t warps = plan_least((vocab + WARP - 1) / WARP, WARPS_MAX), threads = warps * WARP;
	threads = threads < (uint32_t)THREADS_MIN ? (uint32_t)THREADS_MIN : threads;
	size_t ids = (size_t)blocks * vocab;
	uint64_t *lists = (uint64_t *)plan_room(p, ROOM_OTHER, ids * (sizeof *lists + sizeof(float)));
	struct sample_args a = {.batch = p->batch,
	                        .logits = (const float *)logits->at.v,
	                        .ld = logits->ld,
	                        .vocab = vocab,
	                        .one = pick_one(vocab),
	                        .results = (struct kern_drawn *)op->sample.results.v,
	                        .kept = (struct kern_kept *)op->sample.kept.v,
	                        .lists = lists,
	                        .edited = (float *)(lists + ids)};
	PLAN(p, sample_rows, blocks, 1, threads, sizeof(struct shared), a);
}
