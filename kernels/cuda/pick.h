/* pick.h - finds the k-th largest of a vocabulary, and the first id where a sum of weights exceeds
 * a mass, with a block of threads: keys, exact sums, lists of candidates, cuts.
 *
 * No result depends on the number of threads or their order. Weights are therefore added as
 * integers (mass_of), and every id has a unique key: its sort value above the complement of the id,
 * so that a larger key comes first, and the lowest id among equals. Nothing is sorted: candidates
 * are gathered in a list, in any order, and a cut is a key of the list, found by a histogram of the
 * upper bits, then of the next ones, and so on. */
#ifndef CUDA_PICK_H
#define CUDA_PICK_H

#include "kernels/cuda/kernel.h"

enum {
	PICK_DIGIT_BITS = 8,
	PICK_BINS = 1 << PICK_DIGIT_BITS,
	/* ids are below CUDA_MAX_COLUMNS */
	PICK_ID_BITS = 24,
	PICK_ID_LAST = (1 << PICK_ID_BITS) - 1,
	PICK_SUMS = 3 /* most sums computed at once */
};

/* Number and mass of ids; the mass in two words because shared memory has no fast 64-bit
 * addition. */
struct tally {
	uint32_t count, low, high;
};

struct pick_shared {
	struct tally bin[PICK_BINS], part[PICK_SUMS][WARP], sum[PICK_SUMS];
	/* result of find_bin */
	struct {
		uint32_t bin, count;
		uint64_t above, mass_above, mass;
	} step;
	uint32_t listed, found;
};

/* A block's state for picking. */
struct picker {
	uint32_t vocab;
	/* mass of weight 1, a power of two such that vocab * one <= 2^62 */
	float one;
	uint64_t *list; /* (vocab) keys */
	struct pick_shared *s;
};

/* --- keys ---------------------------------------------------------------- */

static __device__ inline uint64_t key_of(uint32_t first, uint32_t id)
{
	return (uint64_t)first << PICK_ID_BITS | (PICK_ID_LAST - id);
}

static __device__ inline uint32_t key_id(uint64_t key)
{
	return PICK_ID_LAST - (uint32_t)(key & PICK_ID_LAST);
}

static __device__ inline uint32_t key_first(uint64_t key)
{
	return (uint32_t)(key >> PICK_ID_BITS);
}

/* NaN counts as minus infinity; the two zeros are equal. Never 0. */
static __device__ inline uint64_t logit_key(float l, uint32_t id)
{
	uint32_t u = kern_f32_bits(isnan(l) ? -INFINITY : l == 0 ? 0.0f : l);
	return key_of(u >> 31 ? ~u : u | 0x80000000u, id);
}

static __device__ inline float key_logit(uint64_t key)
{
	uint32_t u = key_first(key);
	return kern_bits_to_f32(u >> 31 ? u & 0x7fffffff : ~u);
}

/* Weights are not negative, so their bits sort like them. */
static __device__ inline uint64_t weight_key(float w, uint32_t id)
{
	return key_of(kern_f32_bits(w), id);
}

static __device__ inline float key_weight(uint64_t key)
{
	return kern_bits_to_f32(key_first(key));
}

/* --- weights ------------------------------------------------------------- */

/* Parameters of a row's weights: exp((logit - max) * inv_t), or 0 if below min_weight. */
struct weighing {
	const float *logits;
	float max, inv_t, min_weight;
};

/* exp(x) for x <= 0; 0 for x <= -87 and NaN. Bit-identical to kernels/sample.c. */
static __device__ inline float exp_below_zero(float x)
{
	const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
	if (!(x > -87.0f))
		return 0;
	float z = x * 1.44269504f + shift, n = z - shift;
	float r = x - n * 0.693359375f - n * -2.12194440e-4f;
	float p = 1.0f / 5040;
	p = p * r + 1.0f / 720;
	p = p * r + 1.0f / 120;
	p = p * r + 1.0f / 24;
	p = p * r + 1.0f / 6;
	p = p * r + 0.5f;
	p = p * r + 1.0f;
	p = p * r + 1.0f;
	return kern_bits_to_f32(kern_f32_bits(p) + ((kern_f32_bits(z) - kern_f32_bits(shift)) << 23));
}

static __device__ inline float weight_at(const struct weighing &v, uint32_t id)
{
	float w = exp_below_zero((v.logits[id] - v.max) * v.inv_t);
	return w >= v.min_weight ? w : 0;
}

/* In units of 1 / one, truncated. With 2^18 ids the unit is 2^-44. */
static __device__ inline uint64_t mass_of(const struct picker &p, float w)
{
	return (uint64_t)(w * p.one);
}

/* The largest power of two (see struct picker) such that vocab * one <= 2^62. */
static inline float pick_one(uint32_t vocab)
{
	float one = 0x1p62f;
	for (uint32_t i = vocab - 1; i; i /= 2)
		one /= 2;
	return one;
}

/* --- sums ---------------------------------------------------------------- */

static __device__ inline void tally_add(struct tally *t, uint32_t count, uint64_t mass)
{
	uint32_t low = (uint32_t)mass, high = (uint32_t)(mass >> 32);
	atomicAdd(&t->count, count);
	if (low)
		high += atomicAdd(&t->low, low) + low < low;
	if (high)
		atomicAdd(&t->high, high);
}

static __device__ inline uint64_t tally_mass(const struct tally &t)
{
	return (uint64_t)t.high << 32 | t.low;
}

/* Sets sum[0 .. N) to the block's sums; sums per lane first, to reduce contention. */
template <int N>
static __device__ void block_sums(struct pick_shared *s, const uint32_t (&count)[N],
                                  const uint64_t (&mass)[N])
{
	static_assert(N <= PICK_SUMS, "more sums than there is room for");
	uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
	__syncthreads();
	if (warp < N) {
		s->part[warp][lane] = {};
		s->sum[warp] = {};
	}
	__syncthreads();
	for (int i = 0; i < N; i++)
		tally_add(&s->part[i][lane], count[i], mass[i]);
	__syncthreads();
	if (warp < N)
		tally_add(&s->sum[warp], s->part[warp][lane].count, tally_mass(s->part[warp][lane]));
	__syncthreads();
}

/* --- lists --------------------------------------------------------------- */

static __device__ inline void list_begin(struct pick_shared *s)
{
	__syncthreads();
	if (threadIdx.x == 0)
		s->listed = 0;
	__syncthreads();
}

/* Returns the number of keys, which all threads may then read. */
static __device__ inline uint32_t list_end(const struct pick_shared *s)
{
	__syncthreads();
	return s->listed;
}

/* Adds a key if `wanted`. All lanes of a warp must call it. */
static __device__ inline void list_add(const struct picker &p, bool wanted, uint64_t key)
{
	uint32_t lane = threadIdx.x % WARP, lanes = __ballot_sync(ALL_LANES, wanted), at = 0;
	if (!lanes)
		return;
	if (lane == 0)
		at = atomicAdd(&p.s->listed, (uint32_t)__popc(lanes));
	at = __shfl_sync(ALL_LANES, at, 0);
	if (wanted)
		p.list[at + (uint32_t)__popc(lanes & ((1u << lane) - 1))] = key;
}

/* Lists the keys of all ids; key_for(id) is 0 for an id that is left out. */
template <typename F> static __device__ inline uint32_t list_keys(const struct picker &p, F key_for)
{
	list_begin(p.s);
	for (uint32_t first = 0; first < p.vocab; first += blockDim.x) {
		uint32_t id = first + threadIdx.x;
		uint64_t key = id < p.vocab ? key_for(id) : 0;
		list_add(p, key != 0, key);
	}
	return list_end(p.s);
}

/* Lists the weight keys of ids that weigh at least at_least and more than 0. */
static __device__ inline uint32_t list_weights(const struct picker &p, const struct weighing &v,
                                               float at_least)
{
	return list_keys(p, [&](uint32_t id) -> uint64_t {
		float w = weight_at(v, id);
		return w > 0 && w >= at_least ? weight_key(w, id) : 0;
	});
}

/* Lists the logit keys of at least at_least. */
static __device__ inline uint32_t list_logits(const struct picker &p, const float *logits,
                                              uint64_t at_least)
{
	return list_keys(p, [&](uint32_t id) -> uint64_t {
		uint64_t key = logit_key(logits[id], id);
		return key >= at_least ? key : 0;
	});
}

/* --- cuts ---------------------------------------------------------------- */

/* The keys to search for a cut: those in lo .. hi among the first n of the list. Thread i %
 * blockDim.x reads key i, and may have written it without a barrier since. */
struct pick_keys {
	uint32_t n;
	uint64_t lo, hi;
	/* kind of keys; logits have no mass */
	enum order { OF_WEIGHTS, OF_DISTANCES, OF_LOGITS } order;
	struct weighing weights; /* OF_DISTANCES: the weights that give the mass */
};

enum pick_by { BY_COUNT, BY_MASS };

/* A cut: the only key of the list in lo .. hi. mass: its own and that of all keys above it. */
struct pick_cut {
	uint64_t lo, hi, mass;
};

static __device__ inline float weight_of_key(const struct pick_keys &k, uint64_t key)
{
	if (k.order == pick_keys::OF_LOGITS)
		return 0;
	return k.order == pick_keys::OF_WEIGHTS ? key_weight(key) : weight_at(k.weights, key_id(key));
}

static __device__ inline void fill_bins(const struct picker &p, const struct pick_keys &k,
                                        uint32_t shift)
{
	for (uint32_t i = threadIdx.x; i < PICK_BINS; i += blockDim.x)
		p.s->bin[i] = {};
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < k.n; i += blockDim.x) {
		uint64_t key = p.list[i];
		if (key >= k.lo && key <= k.hi)
			tally_add(&p.s->bin[key >> shift & (PICK_BINS - 1)], 1,
			          mass_of(p, weight_of_key(k, key)));
	}
	__syncthreads();
}

/* Finds the first bin, in descending order, at which the count or mass reaches `want`. For one
 * warp: each lane sums its part of the bins and computes the sum above it. */
static __device__ inline void find_bin(struct pick_shared *s, enum pick_by by, uint64_t want)
{
	enum { PART = PICK_BINS / WARP };
	uint32_t lane = threadIdx.x, top = PICK_BINS - 1 - lane * PART;
	uint64_t count = 0, mass = 0;
	for (uint32_t i = 0; i < PART; i++) {
		count += s->bin[top - i].count;
		mass += tally_mass(s->bin[top - i]);
	}
	uint64_t own = by == BY_COUNT ? count : mass, own_mass = mass;
	for (uint32_t step = 1; step < WARP; step *= 2) {
		uint64_t more = __shfl_up_sync(ALL_LANES, count, step),
				 heavier = __shfl_up_sync(ALL_LANES, mass, step);
		count += lane >= step ? more : 0;
		mass += lane >= step ? heavier : 0;
	}
	uint64_t above = (by == BY_COUNT ? count : mass) - own, mass_above = mass - own_mass;
	if (!(above < want && want <= above + own))
		return;
	for (uint32_t i = 0; i < PART; i++) {
		const struct tally &t = s->bin[top - i];
		uint64_t more = by == BY_COUNT ? t.count : tally_mass(t);
		if (above + more >= want) {
			s->step = {top - i, t.count, above, mass_above, tally_mass(t)};
			return;
		}
		above += more;
		mass_above += tally_mass(t);
	}
}

/* Finds the key, in descending order, at which the count or mass reaches `want`, which is at least
 * 1 and at most the total. */
static __device__ inline struct pick_cut find_cut(const struct picker &p, struct pick_keys k,
                                                  enum pick_by by, uint64_t want)
{
	uint64_t mass = 0;
	for (;;) {
		uint32_t shift = 0;
		while ((k.lo ^ k.hi) >> shift >= PICK_BINS)
			shift++;
		fill_bins(p, k, shift);
		if (threadIdx.x < WARP)
			find_bin(p.s, by, want);
		__syncthreads();
		uint64_t lo = (k.hi >> shift >> PICK_DIGIT_BITS << PICK_DIGIT_BITS | p.s->step.bin)
		              << shift;
		uint64_t hi = lo + ((uint64_t)1 << shift) - 1;
		k.lo = k.lo > lo ? k.lo : lo;
		k.hi = k.hi < hi ? k.hi : hi;
		want -= p.s->step.above;
		mass += p.s->step.mass_above;
		if (p.s->step.count == 1)
			return {k.lo, k.hi, mass + p.s->step.mass};
	}
}

/* The id of the cut's key, among the first n of the list. */
static __device__ inline uint32_t cut_id(const struct picker &p, uint32_t n,
                                         const struct pick_cut &c)
{
	for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
		if (p.list[i] >= c.lo && p.list[i] <= c.hi)
			p.s->found = key_id(p.list[i]);
	__syncthreads();
	return p.s->found;
}

#endif
