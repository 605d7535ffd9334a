/* sample.c - see sample.h and struct kern_draw.
 *
 * The vocabulary is large and the result is near its top, so nothing is sorted completely: one
 * vector pass turns logits into weights exp((l - max) / temperature) and records the largest of
 * each block of 64. Candidates are gathered, with falling thresholds, from blocks that can contain
 * them; top_k, top_p and the draw are found by selection. The same logits and parameters give the
 * same id and log-probabilities, bit for bit, on every machine and with any compiler options: no
 * operation is fused or reordered per instruction set (-ffp-contract=off in the Makefile), and the
 * logarithm is our own. Nothing here fails; the pass that first reads a row reports whether all of
 * it is finite. */
#include "kernels/sample.h"
#include "kernels/own_math.h"

#include <math.h>
#include <string.h>

#define BLOCK 64u
#define LANES 8u
#define GREEDY_BELOW 1e-5f

typedef float vf __attribute__((vector_size(32), aligned(4)));
typedef int32_t vi __attribute__((vector_size(32), aligned(4)));
/* half of a vf; a vector of all eight is larger than a register and would be summed in memory */
typedef double vd __attribute__((vector_size(32), aligned(8)));

struct kern_sampler {
	uint32_t vocab, blocks;
	float *edited;       /* (blocks * BLOCK) copy of the logits that a draw modifies */
	float *padded;       /* (BLOCK) the last, partial block of logits, padded with -inf */
	float *block_max;    /* (blocks) largest logit */
	float *weight;       /* (blocks * BLOCK) */
	float *block_weight; /* (blocks) largest weight */
	/* (vocab) candidates: the weight's bits above the complement of the id; a larger key comes
	 * first */
	uint64_t *key;
	uint32_t pivot_state;
	double (*weigh)(struct kern_sampler *s, const float *logits, float max, float inv_t,
	                float min_weight);
	int (*find_max)(struct kern_sampler *s, const float *logits);
	int (*copy)(struct kern_sampler *s, const float *logits, const uint32_t *mask_a,
	            const uint32_t *mask_b);
};

/* --- passes over all logits ---------------------------------------------- */

#define INLINE static inline __attribute__((always_inline))

#define SPLAT(x) ((vf){0} + (x))
/* a where the mask is set, else 0 */
#define MASKED(mask, a) ((vf)((vi)(mask) & (vi)(a)))
#define SELECT(mask, a, b) ((vf)(((vi)(mask) & (vi)(a)) | (~(vi)(mask) & (vi)(b))))

/* exp(x) for x <= 0; 0 for x <= -87 and NaN. 2^n times the Taylor series of the remainder, |r| <=
 * ln(2) / 2; relative error about 1e-7. */
INLINE void exp_below_zero(const vf *px, vf *ret)
{
	const vf shift = SPLAT(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
	vi live = *px > SPLAT(-87.0f);
	vf x = SELECT(live, *px, SPLAT(-87.0f));
	vf z = x * SPLAT(1.44269504f) + shift, n = z - shift;
	vf r = x - n * SPLAT(0.693359375f) - n * SPLAT(-2.12194440e-4f);
	vf p = SPLAT(1.0f / 5040);
	p = p * r + SPLAT(1.0f / 720);
	p = p * r + SPLAT(1.0f / 120);
	p = p * r + SPLAT(1.0f / 24);
	p = p * r + SPLAT(1.0f / 6);
	p = p * r + SPLAT(0.5f);
	p = p * r + SPLAT(1.0f);
	p = p * r + SPLAT(1.0f);
	vi bits = (vi)p + (((vi)z - (vi)shift) << 23);
	*ret = MASKED(live, (vf)bits);
}

/* Block b of the logits; the last, partial one from its padded copy. */
INLINE const float *block_at(const struct kern_sampler *s, const float *logits, uint32_t b)
{
	return b + 1 == s->blocks ? s->padded : logits + (size_t)b * BLOCK;
}

INLINE float lane_max(const vf *v)
{
	float m = (*v)[0];
	for (unsigned i = 1; i < LANES; i++)
		m = (*v)[i] > m ? (*v)[i] : m;
	return m;
}

INLINE int lane_all(const vi *v)
{
	int all = -1;
	for (unsigned i = 0; i < LANES; i++)
		all &= (*v)[i];
	return all != 0;
}

/* Fills block_max. Returns whether no logit is NaN or plus infinity. */
INLINE int find_max_body(struct kern_sampler *s, const float *logits)
{
	vi finite = ~(vi){0};
	for (uint32_t b = 0; b < s->blocks; b++) {
		const float *p = block_at(s, logits, b);
		vf m = SPLAT(-INFINITY);
		for (unsigned i = 0; i < BLOCK; i += LANES) {
			vf v = *(const vf *)(p + i);
			finite &= (vi)(v < SPLAT(INFINITY));
			m = SELECT(v > m, v, m);
		}
		s->block_max[b] = lane_max(&m);
	}
	return lane_all(&finite);
}

INLINE uint64_t mask_word(const uint32_t *mask, uint32_t i)
{
	uint64_t word = UINT64_MAX;
	if (mask)
		memcpy(&word, mask + 2 * (size_t)i, sizeof word);
	return word;
}

/* Ids in both masks; a missing mask allows all ids. */
INLINE uint64_t allowed_word(const uint32_t *a, const uint32_t *b, uint32_t i)
{
	return mask_word(a, i) & mask_word(b, i);
}

/* Copies the logits to `edited`, with minus infinity for ids outside the masks. A mask word covers
 * one block of logits. Returns whether all logits (not the copy) are finite, as find_max does. */
INLINE int copy_body(struct kern_sampler *s, const float *logits, const uint32_t *mask_a,
                     const uint32_t *mask_b)
{
	static const vi bit = {1, 2, 4, 8, 16, 32, 64, 128};
	vi finite = ~(vi){0};
	for (uint32_t b = 0; b < s->blocks; b++) {
		const float *p = block_at(s, logits, b);
		uint64_t word = allowed_word(mask_a, mask_b, b);
		for (unsigned i = 0; i < BLOCK; i += LANES) {
			vf v = *(const vf *)(p + i);
			vi in = (vi)((((vi){0} + (int32_t)(word >> i & 255)) & bit) != 0);
			finite &= (vi)(v < SPLAT(INFINITY));
			*(vf *)(s->edited + (size_t)b * BLOCK + i) = word == UINT64_MAX
			                                                 ? v
			                                                 : SELECT(in, v, SPLAT(-INFINITY));
		}
	}
	return lane_all(&finite);
}

/* Fills weight and block_weight; weights below min_weight become 0. Returns the sum, accumulated
 * per lane in a fixed order. */
INLINE double weigh_body(struct kern_sampler *s, const float *logits, float max, float inv_t,
                         float min_weight)
{
	vd low = {0}, high = {0};
	for (uint32_t b = 0; b < s->blocks; b++) {
		const float *p = block_at(s, logits, b);
		vf m = SPLAT(0.0f);
		for (unsigned i = 0; i < BLOCK; i += LANES) {
			vf x = (*(const vf *)(p + i) - SPLAT(max)) * SPLAT(inv_t), w;
			exp_below_zero(&x, &w);
			w = MASKED(w >= SPLAT(min_weight), w);
			*(vf *)(s->weight + (size_t)b * BLOCK + i) = w;
			m = SELECT(w > m, w, m);
			low += __builtin_convertvector(__builtin_shufflevector(w, w, 0, 1, 2, 3), vd);
			high += __builtin_convertvector(__builtin_shufflevector(w, w, 4, 5, 6, 7), vd);
		}
		s->block_weight[b] = lane_max(&m);
	}
	double total = 0;
	for (unsigned i = 0; i < LANES; i++)
		total += i < LANES / 2 ? low[i] : high[i - LANES / 2];
	return total;
}

static int find_max_plain(struct kern_sampler *s, const float *logits)
{
	return find_max_body(s, logits);
}

static int copy_plain(struct kern_sampler *s, const float *logits, const uint32_t *mask_a,
                      const uint32_t *mask_b)
{
	return copy_body(s, logits, mask_a, mask_b);
}

static double weigh_plain(struct kern_sampler *s, const float *logits, float max, float inv_t,
                          float min_weight)
{
	return weigh_body(s, logits, max, inv_t, min_weight);
}

#ifdef __x86_64__
/* without FMA, so that the results equal the plain pass bit for bit */
__attribute__((target("avx2"))) static int find_max_avx2(struct kern_sampler *s,
                                                         const float *logits)
{
	return find_max_body(s, logits);
}

__attribute__((target("avx2"))) static int copy_avx2(struct kern_sampler *s, const float *logits,
                                                     const uint32_t *mask_a, const uint32_t *mask_b)
{
	return copy_body(s, logits, mask_a, mask_b);
}

__attribute__((target("avx2"))) static double weigh_avx2(struct kern_sampler *s,
                                                         const float *logits, float max,
                                                         float inv_t, float min_weight)
{
	return weigh_body(s, logits, max, inv_t, min_weight);
}
#endif

static void pad(struct kern_sampler *s, const float *logits)
{
	uint32_t last = (s->blocks - 1) * BLOCK;
	for (uint32_t i = 0; i < BLOCK; i++)
		s->padded[i] = last + i < s->vocab ? logits[last + i] : -INFINITY;
}

/* Prepares the padded block and block_max. Returns the lowest id among the largest logits, or 0 if
 * there is none. */
static uint32_t scan(struct kern_sampler *s, const float *logits, int *ret_finite)
{
	uint32_t best = 0;
	pad(s, logits);
	*ret_finite = s->find_max(s, logits);
	for (uint32_t b = 1; b < s->blocks; b++)
		if (s->block_max[b] > s->block_max[best])
			best = b;
	for (uint32_t id = best * BLOCK; id < s->vocab; id++)
		if (logits[id] == s->block_max[best])
			return id;
	return 0;
}

/* --- log-probabilities --------------------------------------------------- */

static int before(float a, uint32_t id_a, float b, uint32_t id_b)
{
	return a > b || (a == b && id_a < id_b);
}

static uint32_t rank_of(const float *logits, uint32_t vocab, uint32_t id)
{
	uint32_t rank = 1;
	float l = logits[id];
	for (uint32_t i = 0; i < id; i++)
		rank += logits[i] >= l;
	for (uint32_t i = id + 1; i < vocab; i++)
		rank += logits[i] > l;
	return rank;
}

/* Finds the `want` largest logits by insertion, skipping blocks whose maximum is too small. Stores
 * logits in `logprob`. */
static uint32_t find_top(const struct kern_sampler *s, const float *logits, uint32_t want,
                         struct kern_top *top)
{
	uint32_t n = 0;
	for (uint32_t b = 0; b < s->blocks && want; b++) {
		if (n == want && !(s->block_max[b] > top[n - 1].logprob))
			continue;
		for (uint32_t id = b * BLOCK; id < (b + 1) * BLOCK && id < s->vocab; id++) {
			float l = isnan(logits[id]) ? -INFINITY : logits[id];
			if (n == want && !before(l, id, top[n - 1].logprob, top[n - 1].id))
				continue;
			uint32_t at = n < want ? n++ : n - 1;
			for (; at > 0 && before(l, id, top[at - 1].logprob, top[at - 1].id); at--)
				top[at] = top[at - 1];
			top[at] = (struct kern_top){id, l};
		}
	}
	return n;
}

/* Requires that scan() has run for these logits. total: the sum of exp(logit - max) if a draw has
 * computed it, else 0. */
static void score(struct kern_sampler *s, const float *logits, uint32_t best, uint32_t id,
                  int32_t logprobs, double total, struct kern_drawn *ret)
{
	*ret = (struct kern_drawn){.id = id};
	if (logprobs < 0)
		return;
	if (!(total > 0))
		total = s->weigh(s, logits, logits[best], 1.0f, 0.0f);
	double sum = (double)logits[best] + own_log(total);
	ret->logprob = (float)((double)logits[id] - sum);
	ret->rank = id == best ? 1 : rank_of(logits, s->vocab, id);
	uint32_t want = logprobs > KERN_TOP_MAX ? KERN_TOP_MAX : (uint32_t)logprobs;
	ret->n_top = find_top(s, logits, want, ret->top);
	for (uint32_t i = 0; i < ret->n_top; i++)
		ret->top[i].logprob = (float)((double)ret->top[i].logprob - sum);
}

/* --- the draw ------------------------------------------------------------ */

static float key_weight(uint64_t key)
{
	uint32_t bits = (uint32_t)(key >> 32);
	float w;
	memcpy(&w, &bits, sizeof w);
	return w;
}

static uint32_t key_id(uint64_t key)
{
	return ~(uint32_t)key;
}

/* The bits of non-negative floats compare like the floats. */
static uint32_t bits_of(float f)
{
	uint32_t bits;
	memcpy(&bits, &f, sizeof bits);
	return bits;
}

static uint64_t make_key(uint32_t first, uint32_t id)
{
	return (uint64_t)first << 32 | (uint32_t)~id;
}

/* Gathers candidates of at least this weight and more than 0; returns their number and their total
 * weight. */
static uint32_t gather(struct kern_sampler *s, float at_least, double *ret_mass)
{
	uint32_t n = 0;
	double mass = 0;
	for (uint32_t b = 0; b < s->blocks; b++) {
		if (!(s->block_weight[b] >= at_least))
			continue;
		for (uint32_t id = b * BLOCK; id < (b + 1) * BLOCK && id < s->vocab; id++) {
			float w = s->weight[id];
			if (!(w >= at_least) || !(w > 0))
				continue;
			s->key[n++] = make_key(bits_of(w), id);
			mass += (double)w;
		}
	}
	*ret_mass = mass;
	return n;
}

static uint64_t pick_pivot(struct kern_sampler *s, const uint64_t *key, uint32_t n)
{
	s->pivot_state = s->pivot_state * 1664525u + 1013904223u;
	return key[(uint64_t)s->pivot_state * n >> 32];
}

/* The weight of a key: its own, or, for keys ordered by another quantity, the table's entry for its
 * id. */
INLINE double mass_of(const float *weight, uint64_t key)
{
	return (double)(weight ? weight[key_id(key)] : key_weight(key));
}

/* Moves keys above the pivot to the front, followed by the pivot; returns the pivot's index. Keys
 * are distinct because ids are. */
static uint32_t partition(uint64_t *key, uint32_t n, uint64_t pivot, const float *weight,
                          double *ret_mass)
{
	uint32_t k = 0, at = 0;
	double mass = 0;
	for (uint32_t i = 0; i < n; i++) {
		uint64_t v = key[i];
		if (v < pivot)
			continue;
		key[i] = key[k];
		key[k] = v;
		if (v == pivot)
			at = k;
		mass += mass_of(weight, v);
		k++;
	}
	key[at] = key[k - 1];
	key[k - 1] = pivot;
	*ret_mass = mass - mass_of(weight, pivot);
	return k - 1;
}

/* Where a selection in descending order ends: at the `count`-th key, or at the first key whose
 * cumulative weight exceeds `mass`. */
struct sample_cut {
	uint32_t count; /* 0: by mass */
	double mass;
	int reach;           /* by mass: reaching it is enough; exceeding is not required */
	const float *weight; /* (vocab) see mass_of; NULL: the keys contain the weights */
};

static int beyond(const struct sample_cut *c, uint32_t keys, double mass)
{
	return c->count ? keys >= c->count : c->reach ? mass >= c->mass : mass > c->mass;
}

/* Returns the index of the key where the selection ends (the last key if none qualifies), with
 * larger keys before it. *ret_mass includes its weight. */
static uint32_t select_key(struct kern_sampler *s, uint32_t n, const struct sample_cut *c,
                           double *ret_mass)
{
	uint32_t lo = 0, hi = n;
	double base = 0;
	while (hi - lo > 1) {
		double above;
		uint32_t p = lo + partition(s->key + lo, hi - lo, pick_pivot(s, s->key + lo, hi - lo),
		                            c->weight, &above);
		double with = base + above + mass_of(c->weight, s->key[p]);
		if (p > lo && beyond(c, p, base + above)) {
			hi = p;
		} else if (beyond(c, p + 1, with) || p + 1 == hi) {
			*ret_mass = with;
			return p;
		} else {
			lo = p + 1;
			base = with;
		}
	}
	*ret_mass = base + mass_of(c->weight, s->key[lo]);
	return lo;
}

/* Of the n gathered candidates of weight *total, keeps those whose surprise is nearest to the
 * entropy, up to the fraction `part` of *total. Returns their number and updates *total. */
static uint32_t keep_typical(struct kern_sampler *s, uint32_t n, float part, double *total)
{
	double sum = 0;
	for (uint32_t i = 0; i < n; i++)
		sum += (double)key_weight(s->key[i]) * own_log((double)key_weight(s->key[i]));
	/* the entropy is log(total) - mean, a surprise is log(total) - log(weight) */
	double mean = sum / *total;
	for (uint32_t i = 0; i < n; i++) {
		float far = (float)fabs(own_log((double)key_weight(s->key[i])) - mean);
		s->key[i] = make_key(~bits_of(far), key_id(s->key[i]));
	}
	n = select_key(
			s, n,
			&(struct sample_cut){.mass = (double)part * *total, .reach = 1, .weight = s->weight},
			total) +
	    1;
	for (uint32_t i = 0; i < n; i++)
		s->key[i] = make_key(bits_of(s->weight[key_id(s->key[i])]), key_id(s->key[i]));
	return n;
}

/* Applies top_k, top_p, typical_p and the draw to the n gathered candidates; mass: their weight,
 * total: the weight of the vocabulary. Returns 0 if more candidates are needed. */
static int draw_among(struct kern_sampler *s, const struct kern_draw *p, double u, uint32_t n,
                      double mass, double total, int whole, uint32_t *ret_id)
{
	double ignored;
	int typical = p->typical_p > 0 && p->typical_p < 1;
	if (p->top_k && n < p->top_k && !whole)
		return 0;
	if (typical && !whole && !p->top_k && p->top_p >= 1.0f)
		return 0;
	if (p->top_k && p->top_k < n)
		n = select_key(s, n, &(struct sample_cut){.count = p->top_k}, &mass) + 1;
	if (p->top_k == n)
		total = mass; /* also where exactly top_k were gathered */
	if (p->top_p < 1.0f) {
		double want = (double)p->top_p * total;
		if (mass < want && !whole && !p->top_k)
			return 0;
		n = select_key(s, n, &(struct sample_cut){.mass = want, .reach = 1}, &total) + 1;
	} else if (!whole && !p->top_k && !(mass > u * total)) {
		return 0;
	}
	if (typical)
		n = keep_typical(s, n, p->typical_p, &total);
	*ret_id = key_id(s->key[select_key(s, n, &(struct sample_cut){.mass = u * total}, &ignored)]);
	return 1;
}

static uint32_t draw(struct kern_sampler *s, const float *logits, uint32_t best,
                     const struct kern_draw *p, double *ret_total)
{
	static const float levels[] = {0x1p-7f, 0x1p-14f, 0.0f};
	double total = s->weigh(s, logits, logits[best], 1.0f / p->temperature, p->min_p),
		   u = own_uniform(p->seed, p->index);
	uint32_t id = best;
	*ret_total = total;
	s->pivot_state = 1;
	for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
		double mass;
		uint32_t n = gather(s, levels[i], &mass);
		if (n && draw_among(s, p, u, n, mass, total, levels[i] == 0.0f, &id))
			break;
	}
	return id;
}

/* --- edits of the logits before a draw ----------------------------------- */

static const uint32_t *mask_at(const struct kern_batch *b, uint32_t at)
{
	return at ? kern_part(b, at) : NULL;
}

/* 0 if no id is allowed, or without masks. */
static uint32_t lowest_allowed(const struct kern_sampler *s, const uint32_t *mask_a,
                               const uint32_t *mask_b)
{
	for (uint32_t b = 0; b < s->blocks; b++) {
		uint64_t word = allowed_word(mask_a, mask_b, b);
		if (!word)
			continue;
		uint32_t id = b * BLOCK + (uint32_t)__builtin_ctzll(word);
		return id < s->vocab ? id : 0;
	}
	return 0;
}

static void forbid(const struct kern_sampler *s, const struct kern_batch *b, struct kern_list ids)
{
	const uint32_t *id = kern_part(b, ids.at);
	for (uint32_t i = 0; i < ids.n; i++)
		if (id[i] < s->vocab)
			s->edited[id[i]] = -INFINITY;
}

static void add_bias(const struct kern_sampler *s, const struct kern_batch *b,
                     struct kern_list pairs)
{
	const uint32_t *pair = kern_part(b, pairs.at);
	for (uint32_t i = 0; i < pairs.n; i++, pair += 2) {
		float bias;
		memcpy(&bias, &pair[1], sizeof bias);
		if (pair[0] < s->vocab)
			s->edited[pair[0]] += bias;
	}
}

static void penalise_one(const struct kern_sampler *s, const struct kern_draw *d, uint32_t id,
                         uint32_t times)
{
	if (id >= s->vocab)
		return;
	float l = s->edited[id];
	l = l > 0 ? l / d->repetition : l * d->repetition;
	l -= d->frequency * (float)times;
	s->edited[id] = l - (times ? d->presence : 0);
}

/* Occurrences of id among the first n ids. */
static uint32_t count_id(const uint32_t *ids, uint32_t n, uint32_t id)
{
	uint32_t times = 0;
	for (uint32_t i = 0; i < n; i++)
		times += ids[i] == id;
	return times;
}

/* Tokens of the answer that `seen` does not count yet: drafted and pending ones. */
struct sample_added {
	uint32_t id[KERN_DRAFTED_MAX + 1], n;
};

static struct sample_added added_of(const struct kern_batch *b, const struct kern_draw *d,
                                    uint32_t token)
{
	struct sample_added a = {.n = d->drafted.n + d->pending};
	memcpy(a.id, kern_part(b, d->drafted.at), d->drafted.n * sizeof *a.id);
	if (d->pending)
		a.id[d->drafted.n] = token;
	return a;
}

static void penalise(const struct kern_sampler *s, const struct kern_batch *b,
                     const struct kern_draw *d, const struct sample_added *a)
{
	const uint32_t *seen = kern_part(b, d->seen.at);
	uint8_t was_seen[sizeof a->id / sizeof *a->id] = {0};
	for (uint32_t i = 0; i < d->seen.n; i++, seen += 2) {
		for (uint32_t k = 0; k < a->n; k++)
			was_seen[k] |= a->id[k] == seen[0];
		penalise_one(s, d, seen[0], seen[1] + count_id(a->id, a->n, seen[0]));
	}
	for (uint32_t k = 0; k < a->n; k++)
		if (!was_seen[k] && !count_id(a->id, k, a->id[k]))
			penalise_one(s, d, a->id[k], count_id(a->id, a->n, a->id[k]));
}

/* Returns the logits themselves if the draw changes nothing; else a modified copy, and sets
 * *ret_finite. */
static const float *edit(struct kern_sampler *s, const float *logits, const struct kern_batch *b,
                         const struct kern_draw *d, uint32_t token, int *ret_finite)
{
	struct sample_added a = added_of(b, d, token);
	if (!d->mask[0] && !d->mask[1] && !d->forbidden.n && !d->bias.n && !d->seen.n && !a.n)
		return logits;
	pad(s, logits);
	*ret_finite = s->copy(s, logits, mask_at(b, d->mask[0]), mask_at(b, d->mask[1]));
	forbid(s, b, d->forbidden);
	add_bias(s, b, d->bias);
	if (d->seen.n || a.n)
		penalise(s, b, d, &a);
	return s->edited;
}

/* --- interface ----------------------------------------------------------- */

/* Takes aligned bytes from `mem`; with NULL only counts. */
static void *take(unsigned char *mem, size_t *used, size_t bytes)
{
	void *at = mem ? mem + *used : NULL;
	*used += (bytes + 63) / 64 * 64;
	return at;
}

static size_t carve(struct kern_sampler *s, unsigned char *mem, uint32_t vocab)
{
	size_t used = (sizeof *s + 63) / 64 * 64, blocks = (vocab + BLOCK - 1) / BLOCK;
	s->vocab = vocab;
	s->blocks = (uint32_t)blocks;
	s->edited = take(mem, &used, blocks * BLOCK * sizeof *s->edited);
	s->padded = take(mem, &used, BLOCK * sizeof *s->padded);
	s->block_max = take(mem, &used, blocks * sizeof *s->block_max);
	s->block_weight = take(mem, &used, blocks * sizeof *s->block_weight);
	s->weight = take(mem, &used, blocks * BLOCK * sizeof *s->weight);
	s->key = take(mem, &used, vocab * sizeof *s->key);
	return used;
}

size_t kern_sampler_bytes(uint32_t vocab)
{
	struct kern_sampler s = {0};
	return carve(&s, NULL, vocab);
}

struct kern_sampler *kern_sampler_init(void *mem, uint32_t vocab)
{
	struct kern_sampler *s = mem;
	carve(s, mem, vocab);
	s->find_max = find_max_plain;
	s->weigh = weigh_plain;
	s->copy = copy_plain;
#ifdef __x86_64__
	if (__builtin_cpu_supports("avx2")) {
		s->find_max = find_max_avx2;
		s->weigh = weigh_avx2;
		s->copy = copy_avx2;
	}
#endif
	return s;
}

static void draw_row(struct kern_sampler *s, const float *logits, const struct kern_batch *b,
                     const struct kern_draw *d, uint32_t token, struct kern_drawn *ret)
{
	int finite, of_copy;
	double total = 0;
	const float *seen = edit(s, logits, b, d, token, &finite);
	uint32_t best = scan(s, seen, seen == logits ? &finite : &of_copy), id = best;
	if (!(seen[best] > -INFINITY))
		id = lowest_allowed(s, mask_at(b, d->mask[0]), mask_at(b, d->mask[1]));
	else if (d->temperature >= GREEDY_BELOW && isfinite(seen[best]))
		id = draw(s, seen, best, d, &total);
	if (seen != logits && d->logprobs >= 0)
		best = scan(s, logits, &finite);
	if (seen != logits || d->temperature != 1.0f || d->min_p > 0)
		total = 0; /* of other weights */
	score(s, logits, best, id, d->logprobs, total, ret);
	ret->not_finite = !finite;
}

void kern_sample(struct kern_sampler *s, const float *logits, const struct kern_batch *b,
                 uint32_t row, const struct kern_op *op)
{
	int finite;
	const struct kern_draw *d = (const struct kern_draw *)kern_part(b, b->draws) + row;
	const uint32_t *tokens = kern_part(b, b->tokens), *index = kern_part(b, b->tail_index);
	struct kern_drawn *ret = (struct kern_drawn *)op->sample.results.v + b->first_result + row;
	struct kern_kept *kept = (struct kern_kept *)op->sample.kept.v;
	if (d->ask == KERN_ASK_NOTHING)
		return;
	if (d->ask == KERN_ASK_DRAW) {
		draw_row(s, logits, b, d, tokens[index[row]], ret);
	} else {
		score(s, logits, scan(s, logits, &finite), d->id, d->logprobs, 0, ret);
		ret->not_finite = !finite;
	}
	ret->token = tokens[index[row]];
	if (kept)
		kept[b->first_result + row] = (struct kern_kept){ret->token, ret->id};
}
