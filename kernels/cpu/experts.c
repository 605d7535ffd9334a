/* experts.c - mixture of experts: choosing them (route), their products, and products of one matrix for each head. All variants share this
 * file; the products themselves are the variant's.
 *
 * Rows are gathered by expert, so that an expert's matrices are read once for all rows that chose it. A row's choice comes from that row
 * alone, each of its products does (kernels.h), and they are added up in ascending order of the experts' numbers: so neither the batch nor
 * the number of threads shows in a result. Logits that are no numbers choose some experts all the same, and their weights are no numbers. */
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <string.h>

enum { INLINE_ELEMENTS = 16384 };  /* less work than this is done by the caller alone: waking costs more */

/* Runs fn for each of `count` items, alone when they are `work` elements in all and that is little. */
static void run_items(struct kern_device *dev, uint32_t count, size_t work, pool_fn *fn, void *ctx)
{
	if (work >= INLINE_ELEMENTS)
		pool_run(dev->pool, count, fn, ctx);
	else
		for (uint32_t i = 0; i < count; i++)
			fn(ctx, i, 0);
}

/* --- route -------------------------------------------------------------------------------------------------------------- */

/* e^x within 1e-15 of itself. A libm's last bit depends on its version and on the CPU, and routing must not. */
static double own_exp(double x)
{
	static const double inverse[] = { 1, 1, 1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040, 1.0 / 40320, 1.0 / 362880, 1.0 / 3628800,
	                                  1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800.0 };
	if (isnan(x))
		return x;
	x = x < -700 ? -700 : x > 700 ? 700 : x;
	double n = nearbyint(x * 1.4426950408889634), r = x - n * 0.693147180369123816490, sum = 0;
	r -= n * 1.90821492927058770002e-10;   /* ln 2 in two parts, the first exact in its product */
	for (int i = sizeof inverse / sizeof *inverse; i-- > 0;)
		sum = sum * r + inverse[i];
	return ldexp(sum, (int)n);
}

static void softmax(float *s, const float *logits, uint32_t n)
{
	float max = logits[0];
	double sum = 0, e[KERN_EXPERTS_MAX];
	for (uint32_t i = 1; i < n; i++)
		max = logits[i] > max ? logits[i] : max;
	for (uint32_t i = 0; i < n; i++)
		sum += e[i] = own_exp((double)logits[i] - (double)max);
	for (uint32_t i = 0; i < n; i++)
		s[i] = (float)(e[i] / sum);
}

/* The number of the largest value that is not out yet; of equals the lowest. Always one that is not out. */
static uint32_t largest(const float *v, const bool *out, uint32_t n)
{
	uint32_t best = n;
	for (uint32_t i = 0; i < n; i++)
		if (!out[i] && (best == n || v[i] > v[best]))
			best = i;
	return best;
}

/* Marks the experts of all but the best groups as out. */
static void limit_groups(const struct kern_router *r, const float *c, bool *out)
{
	float worth[KERN_EXPERTS_MAX / 2];
	bool chosen[KERN_EXPERTS_MAX / 2] = { false };
	uint32_t size = r->experts / r->groups;
	for (uint32_t g = 0; g < r->groups; g++) {
		bool first[KERN_EXPERTS_MAX] = { false };
		uint32_t best = largest(c + g * size, first, size);
		first[best] = true;
		worth[g] = c[g * size + best] + c[g * size + largest(c + g * size, first, size)];
	}
	for (uint32_t i = 0; i < r->groups_used; i++)
		chosen[largest(worth, chosen, r->groups)] = true;
	for (uint32_t e = 0; e < r->experts; e++)
		out[e] = !chosen[e / size];
}

struct route_job {
	uint32_t *ids;
	float *weights;
	const float *logits;
	const struct kern_router *r;
};

static void route_row(void *ctx, uint32_t row, unsigned worker)
{
	(void)worker;
	const struct route_job *j = ctx;
	const struct kern_router *r = j->r;
	const float *logits = j->logits + (size_t)row * r->experts;
	uint32_t *ids = j->ids + (size_t)row * r->used;
	float s[KERN_EXPERTS_MAX], c[KERN_EXPERTS_MAX], *weight = j->weights + (size_t)row * r->used, sum = 0;
	bool out[KERN_EXPERTS_MAX] = { false };
	if (r->score == KERN_SCORE_SOFTMAX)
		softmax(s, logits, r->experts);
	else
		for (uint32_t e = 0; e < r->experts; e++)
			s[e] = (float)(1.0 / (1.0 + own_exp(-(double)logits[e])));
	for (uint32_t e = 0; e < r->experts; e++)
		c[e] = r->bias ? s[e] + r->bias[e] : s[e];
	if (r->groups > 1)
		limit_groups(r, c, out);
	for (uint32_t i = 0; i < r->used; i++) {
		ids[i] = largest(c, out, r->experts);
		out[ids[i]] = true;
		weight[i] = s[ids[i]];
		sum += weight[i];
	}
	float divisor = r->normalise ? (sum < r->norm_min ? r->norm_min : sum) + r->norm_add : 1.0f;
	for (uint32_t i = 0; i < r->used; i++)
		weight[i] = weight[i] / divisor * r->scale;
}

static int check_rows(struct kern_device *dev, const char *op, uint32_t rows)
{
	if (rows > dev->max_rows)
		return cpu_fail(dev, KERN_EINVAL, "%s of %u rows, the device was opened for %u", op, rows, dev->max_rows);
	return KERN_OK;
}

static int check_router(struct kern_device *dev, const struct kern_router *r)
{
	uint32_t groups = r->groups > 1 ? r->groups : 1, of = r->groups > 1 ? r->groups_used : 1;
	if (!r->experts || r->experts > KERN_EXPERTS_MAX || !r->used || r->used > KERN_EXPERTS_USED_MAX)
		return cpu_fail(dev, KERN_EINVAL, "route to %u of %u experts, limits are %d and %d", r->used, r->experts, KERN_EXPERTS_USED_MAX, KERN_EXPERTS_MAX);
	if (r->experts % groups || (groups > 1 && r->experts / groups < 2) || of < 1 || of > groups || r->used > r->experts / groups * of)
		return cpu_fail(dev, KERN_EINVAL, "route to %u of %u experts in %u of %u groups", r->used, r->experts, of, groups);
	return KERN_OK;
}

int cpu_op_route(struct kern_stream *s, uint32_t *ids, float *weights, const float *logits, const struct kern_router *router, uint32_t rows)
{
	int rc = check_rows(s->dev, "route", rows);
	if (rc || (rc = check_router(s->dev, router)))
		return rc;
	struct route_job j = { ids, weights, logits, router };
	pthread_mutex_lock(&s->dev->lock);
	run_items(s->dev, rows, (size_t)rows * router->experts * 8, route_row, &j);
	pthread_mutex_unlock(&s->dev->lock);
	return KERN_OK;
}

/* --- experts ------------------------------------------------------------------------------------------------------------ */

/* Pairs (row, slot), numbered row * used + slot, sorted by expert and then by number. */
struct grouping {
	uint32_t *first;           /* (experts + 1): where an expert's pairs begin */
	uint32_t *pair;            /* (rows * used) */
	float *gathered;           /* (rows, width): what an expert takes, and (rows, out) what it gives */
	float *given;
};

static int check_experts(struct kern_device *dev, const char *op, const uint32_t *ids, size_t pairs, uint32_t used, const struct kern_experts *x)
{
	if (!used || used > KERN_EXPERTS_USED_MAX || !x->experts || x->experts > KERN_EXPERTS_MAX)
		return cpu_fail(dev, KERN_EINVAL, "%s: %u of %u experts, limits are %d and %d", op, used, x->experts, KERN_EXPERTS_USED_MAX, KERN_EXPERTS_MAX);
	for (size_t i = 0; i < pairs; i++)
		if (ids[i] >= x->experts)
			return cpu_fail(dev, KERN_EINVAL, "%s: expert %u, there are %u", op, ids[i], x->experts);
	return KERN_OK;
}

/* Room for all rows that the device may be given, at the first call: later ones allocate nothing. */
static int group_rows(struct kern_device *dev, const uint32_t *ids, uint32_t rows, uint32_t used, uint32_t experts, uint32_t width, uint32_t out,
                      struct grouping *g)
{
	size_t words = (experts + 1 + (size_t)dev->max_rows * used + 15) & ~(size_t)15, floats = (size_t)dev->max_rows * ((size_t)width + out);
	g->first = cpu_scratch(dev, CPU_SCRATCH_GATHERED, words * sizeof(uint32_t) + floats * sizeof(float));
	if (!g->first)
		return KERN_ENOMEM;
	g->pair = g->first + experts + 1;
	g->gathered = (float *)(void *)(g->first + words);
	g->given = g->gathered + (size_t)dev->max_rows * width;
	memset(g->first, 0, (experts + 1) * sizeof *g->first);
	for (size_t i = 0; i < (size_t)rows * used; i++)
		g->first[ids[i] + 1]++;
	for (uint32_t e = 0; e < experts; e++)
		g->first[e + 1] += g->first[e];
	for (uint32_t i = 0; i < rows * used; i++)
		g->pair[g->first[ids[i]]++] = i;
	memmove(g->first + 1, g->first, experts * sizeof *g->first);   /* each was moved on to the next one's */
	g->first[0] = 0;
	return KERN_OK;
}

struct act_job {
	struct kern_device *dev;
	const uint32_t *pair;
	float *y;
	const float *gate_up;      /* (pairs, 2 ffn) */
	uint32_t ffn;
	enum kern_act act;
};

static void act_pair(void *ctx, uint32_t i, unsigned worker)
{
	(void)worker;
	const struct act_job *j = ctx;
	const float *gate = j->gate_up + 2 * (size_t)i * j->ffn;
	j->dev->variant->act_mul(j->y + (size_t)j->pair[i] * j->ffn, gate, gate + j->ffn, j->act, j->ffn);
}

static const float *bias_of(const float *all, uint32_t expert, uint32_t n)
{
	return all ? all + (size_t)expert * n : NULL;
}

/* A single row's experts share its activations: one group of products. */
static int act_single(struct kern_device *dev, const float *x, const uint32_t *ids, uint32_t used, const struct kern_experts *experts, float *gate_up,
                      uint32_t ffn)
{
	struct kern_product p[2 * KERN_EXPERTS_USED_MAX];
	for (uint32_t j = 0; j < used; j++) {
		uint32_t e = ids[j];
		p[2 * j] = (struct kern_product){ experts->gate[e], bias_of(experts->gate_bias, e, ffn), gate_up + 2 * (size_t)j * ffn, ffn };
		p[2 * j + 1] = (struct kern_product){ experts->up[e], bias_of(experts->up_bias, e, ffn), gate_up + (2 * (size_t)j + 1) * ffn, ffn };
	}
	return dev->variant->matmul(dev, x, 1, p, 2 * used);
}

/* One expert's rows: gathered, unless there is but one. */
static const float *gather_pairs(const struct grouping *g, const float *x, uint32_t from, uint32_t count, uint32_t width, uint32_t pairs_per_row)
{
	if (count == 1)
		return x + (size_t)(g->pair[from] / pairs_per_row) * width;
	for (uint32_t i = 0; i < count; i++)
		memcpy(g->gathered + (size_t)i * width, x + (size_t)(g->pair[from + i] / pairs_per_row) * width, width * sizeof *x);
	return g->gathered;
}

static int act_each(struct kern_device *dev, float *y, const float *x, const struct grouping *g, uint32_t used, const struct kern_experts *experts,
                    enum kern_act act)
{
	uint32_t hidden = experts->gate[0]->k, ffn = experts->gate[0]->n;
	int rc = KERN_OK;
	for (uint32_t e = 0; e < experts->experts && !rc; e++) {
		uint32_t from = g->first[e], count = g->first[e + 1] - from;
		if (!count)
			continue;
		const struct kern_product p[] = {
			{ experts->gate[e], bias_of(experts->gate_bias, e, ffn), g->given, 2 * (size_t)ffn },
			{ experts->up[e], bias_of(experts->up_bias, e, ffn), g->given + ffn, 2 * (size_t)ffn },
		};
		rc = dev->variant->matmul(dev, gather_pairs(g, x, from, count, hidden, used), count, p, 2);
		struct act_job j = { dev, g->pair + from, y, g->given, ffn, act };
		if (!rc)
			run_items(dev, count, (size_t)count * ffn, act_pair, &j);
	}
	return rc;
}

int cpu_op_experts_act(struct kern_stream *s, float *y, const float *x, const uint32_t *ids, uint32_t used, const struct kern_experts *experts,
                       enum kern_act act, uint32_t rows)
{
	struct kern_device *dev = s->dev;
	int rc = check_rows(dev, "experts_act", rows);
	if (rc || (rc = check_experts(dev, "experts_act", ids, (size_t)rows * used, used, experts)) || !rows)
		return rc;
	uint32_t hidden = experts->gate[0]->k, ffn = experts->gate[0]->n;
	struct grouping g;
	pthread_mutex_lock(&dev->lock);
	/* room for a single row's experts side by side, too */
	rc = group_rows(dev, ids, rows, used, experts->experts, hidden, 2 * ffn * (dev->max_rows < used ? used : 1), &g);
	if (!rc && rows == 1) {
		for (uint32_t j = 0; j < used; j++)
			g.pair[j] = j;
		rc = act_single(dev, x, ids, used, experts, g.given, ffn);
		struct act_job j = { dev, g.pair, y, g.given, ffn, act };
		if (!rc)
			run_items(dev, used, (size_t)used * ffn, act_pair, &j);
	} else if (!rc)
		rc = act_each(dev, y, x, &g, used, experts, act);
	pthread_mutex_unlock(&dev->lock);
	return rc ? cpu_fail(dev, rc, "no memory for the experts of %u rows of %u", rows, hidden) : KERN_OK;
}

struct add_job {
	const uint32_t *pair;
	float *y;
	size_t ldy;
	const float *given, *weights;
	uint32_t used, n;
};

static void add_pair(void *ctx, uint32_t i, unsigned worker)
{
	(void)worker;
	const struct add_job *j = ctx;
	float *y = j->y + j->pair[i] / j->used * j->ldy, weight = j->weights[j->pair[i]];
	const float *given = j->given + (size_t)i * j->n;
	for (uint32_t c = 0; c < j->n; c++)
		y[c] += weight * given[c];
}

int cpu_op_experts_down(struct kern_stream *s, float *y, size_t ldy, const float *x, const uint32_t *ids, const float *weights, uint32_t used,
                        const struct kern_experts *experts, int add, uint32_t rows)
{
	struct kern_device *dev = s->dev;
	int rc = check_rows(dev, "experts_down", rows);
	if (rc || (rc = check_experts(dev, "experts_down", ids, (size_t)rows * used, used, experts)) || !rows)
		return rc;
	uint32_t k = experts->down[0]->k, n = experts->down[0]->n;
	struct grouping g;
	pthread_mutex_lock(&dev->lock);
	rc = group_rows(dev, ids, rows, used, experts->experts, k, n, &g);
	for (uint32_t r = 0; !rc && !add && r < rows; r++)
		memset(y + r * ldy, 0, n * sizeof *y);
	for (uint32_t e = 0; e < experts->experts && !rc; e++) {
		uint32_t from = g.first[e], count = g.first[e + 1] - from;
		if (!count)
			continue;
		const struct kern_product p = { experts->down[e], bias_of(experts->down_bias, e, n), g.given, n };
		rc = dev->variant->matmul(dev, gather_pairs(&g, x, from, count, k, 1), count, &p, 1);
		struct add_job j = { g.pair + from, y, ldy, g.given, weights, used, n };
		if (!rc)
			run_items(dev, count, (size_t)count * n, add_pair, &j);
	}
	pthread_mutex_unlock(&dev->lock);
	return rc ? cpu_fail(dev, rc, "no memory for the experts of %u rows of %u", rows, k) : KERN_OK;
}

/* --- one matrix for each head --------------------------------------------------------------------------------------------- */

int cpu_op_heads_matmul(struct kern_stream *s, float *y, size_t ldy, const float *x, size_t ldx, struct kern_weight *const *w, uint32_t heads,
                        uint32_t tail, uint32_t rows)
{
	struct kern_device *dev = s->dev;
	int rc = check_rows(dev, "heads_matmul", rows);
	if (rc || !rows || !heads)
		return rc;
	uint32_t n = w[0]->n, k = w[0]->k;
	pthread_mutex_lock(&dev->lock);
	float *in = cpu_scratch(dev, CPU_SCRATCH_GATHERED, (size_t)dev->max_rows * k * sizeof *in);
	rc = in ? KERN_OK : KERN_ENOMEM;
	for (uint32_t h = 0; h < heads && !rc; h++) {
		const float *from = x + h * ((size_t)k + tail);
		float *to = y + h * ((size_t)n + tail);
		struct kern_product p = { w[h], NULL, to, ldy };
		for (uint32_t r = 0; r < rows; r++) {
			memcpy(in + (size_t)r * k, from + r * ldx, k * sizeof *in);
			memcpy(to + r * ldy + n, from + r * ldx + k, tail * sizeof *to);
		}
		rc = dev->variant->matmul(dev, in, rows, &p, 1);
	}
	pthread_mutex_unlock(&dev->lock);
	return rc ? cpu_fail(dev, rc, "no memory for %u heads of %u rows of %u", heads, rows, k) : KERN_OK;
}
