/* ops.c - what every variant shares of the operations: checks of the arguments, the split over threads, and the operations that
 * only move data. A row is always computed whole by one thread, so the number of threads never shows in a result.
 * Bad arguments return KERN_EINVAL and change nothing. */
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { INLINE_ELEMENTS = 16384 };  /* less work than this is done by the caller alone: waking costs more */

/* Runs a row function over rows, several rows an item. */
struct rows_job {
	const struct cpu_variant *v;
	float *y, *x;
	const float *a, *b, *w;
	const struct kern_weight *table;
	const struct kern_rope *rope;
	const uint32_t *index;
	size_t ld;
	uint32_t rows, rows_per_item, dim, heads;
	enum kern_act act;
	float eps;
	void (*row)(const struct rows_job *j, uint32_t row);
};

static void rows_item(void *ctx, uint32_t item, unsigned worker)
{
	(void)worker;
	const struct rows_job *j = ctx;
	uint32_t end = (item + 1) * j->rows_per_item;
	for (uint32_t r = item * j->rows_per_item; r < end && r < j->rows; r++)
		j->row(j, r);
}

static void rows_run(struct kern_device *dev, struct rows_job *j)
{
	size_t work = (size_t)j->rows * j->dim;
	uint32_t items = work < INLINE_ELEMENTS ? 1 : (uint32_t)(work / (INLINE_ELEMENTS / 2));
	if (items > j->rows)
		items = j->rows;
	if (!items)
		return;
	j->rows_per_item = (j->rows + items - 1) / items;
	pool_run(dev->pool, (j->rows + j->rows_per_item - 1) / j->rows_per_item, rows_item, j);
}

static int check_rows(struct kern_device *dev, const char *op, uint32_t rows)
{
	if (rows > dev->max_rows)
		return cpu_fail(dev, KERN_EINVAL, "%s of %u rows, the device was opened for %u", op, rows, dev->max_rows);
	return KERN_OK;
}

static void embed_row(const struct rows_job *j, uint32_t r)
{
	cpu_weight_row(j->table, j->index[r], j->y + (size_t)r * j->dim);
}

int cpu_op_embed(struct kern_stream *s, float *y, const struct kern_weight *w, const uint32_t *tokens, uint32_t rows)
{
	int rc = check_rows(s->dev, "embed", rows);
	for (uint32_t i = 0; !rc && i < rows; i++)
		if (tokens[i] >= w->n)
			rc = cpu_fail(s->dev, KERN_EINVAL, "embed of token %u, the table has %u rows", tokens[i], w->n);
	if (rc)
		return rc;
	struct rows_job j = { .y = y, .table = w, .index = tokens, .rows = rows, .dim = w->k, .row = embed_row };
	pthread_mutex_lock(&s->dev->lock);
	rows_run(s->dev, &j);
	pthread_mutex_unlock(&s->dev->lock);
	return KERN_OK;
}

static void norm_row(const struct rows_job *j, uint32_t r)
{
	size_t at = (size_t)r * j->dim;
	j->v->rms_norm(j->y + at, j->x + at, j->a ? j->a + at : NULL, j->w, j->dim, j->eps);
}

static int norm(struct kern_stream *s, float *y, float *x, const float *a, const float *w, uint32_t rows, uint32_t dim, float eps)
{
	int rc = check_rows(s->dev, "rms_norm", rows);
	if (rc)
		return rc;
	struct rows_job j = { .v = s->dev->variant, .y = y, .x = x, .a = a, .w = w, .rows = rows, .dim = dim, .eps = eps, .row = norm_row };
	pthread_mutex_lock(&s->dev->lock);
	rows_run(s->dev, &j);
	pthread_mutex_unlock(&s->dev->lock);
	return KERN_OK;
}

int cpu_op_rms_norm(struct kern_stream *s, float *y, const float *x, const float *w, uint32_t rows, uint32_t dim, float eps)
{
	return norm(s, y, (float *)x, NULL, w, rows, dim, eps);        /* x is written only when `a` is given */
}

int cpu_op_add_rms_norm(struct kern_stream *s, float *y, float *x, const float *a, const float *w, uint32_t rows, uint32_t dim,
                        float eps)
{
	return norm(s, y, x, a, w, rows, dim, eps);
}

static void head_norm_row(const struct rows_job *j, uint32_t r)
{
	uint32_t head_dim = j->dim / j->heads;
	for (uint32_t h = 0; h < j->heads; h++) {
		float *x = j->x + r * j->ld + (size_t)h * head_dim;
		j->v->rms_norm(x, x, NULL, j->w, head_dim, j->eps);
	}
}

int cpu_op_head_norm(struct kern_stream *s, float *x, size_t ldx, uint32_t heads, uint32_t head_dim, const float *w, uint32_t rows, float eps)
{
	int rc = check_rows(s->dev, "head_norm", rows);
	if (rc || !heads)
		return rc;
	struct rows_job j = { .v = s->dev->variant, .x = x, .ld = ldx, .w = w, .rows = rows, .dim = heads * head_dim, .heads = heads, .eps = eps,
	                      .row = head_norm_row };
	pthread_mutex_lock(&s->dev->lock);
	rows_run(s->dev, &j);
	pthread_mutex_unlock(&s->dev->lock);
	return KERN_OK;
}

int cpu_op_matmul(struct kern_stream *s, const float *x, uint32_t rows, const struct kern_product *p, uint32_t products)
{
	int rc = check_rows(s->dev, "matmul", rows);
	if (rc || !rows || !products)
		return rc;
	for (uint32_t i = 1; i < products; i++)
		if (p[i].w->k != p[0].w->k)
			return cpu_fail(s->dev, KERN_EINVAL, "matmul of a group with inner sizes %u and %u", p[0].w->k, p[i].w->k);
	pthread_mutex_lock(&s->dev->lock);
	rc = s->dev->variant->matmul(s->dev, x, rows, p, products);
	pthread_mutex_unlock(&s->dev->lock);
	return rc ? cpu_fail(s->dev, rc, "no memory for the activations of %u rows of %u", rows, p[0].w->k) : KERN_OK;
}

/* --- rope -------------------------------------------------------------------------------------------------------------- */

/* Own sine and cosine: a libm's last bit depends on its version and on the CPU. The angle is rounded to float first, as the models'
 * own code does. Error below 2e-9 for angles up to 1e7. */
static void sin_cos(float angle, float *sin_out, float *cos_out)
{
	double x = (double)angle, n = nearbyint(x * 0.63661977236758134308);
	double r = x - n * 1.57079632679489655800, z = r * r;
	double sn = r * (1 + z * (-1.0 / 6 + z * (1.0 / 120 + z * (-1.0 / 5040 + z * (1.0 / 362880 + z * (-1.0 / 39916800))))));
	double cs = 1 + z * (-1.0 / 2 + z * (1.0 / 24 + z * (-1.0 / 720 + z * (1.0 / 40320 + z * (-1.0 / 3628800 + z / 479001600)))));
	switch ((int64_t)n & 3) {
	case 0: *sin_out = (float)sn, *cos_out = (float)cs; break;
	case 1: *sin_out = (float)cs, *cos_out = (float)-sn; break;
	case 2: *sin_out = (float)-sn, *cos_out = (float)-cs; break;
	default: *sin_out = (float)-cs, *cos_out = (float)sn;
	}
}

static bool rope_cached(const struct cpu_rope_cache *c, const struct kern_rope *rope, const uint32_t *positions, uint32_t rows)
{
	return c->cos_sin && rows <= c->rows && c->dims == rope->dims && memcmp(&c->scale, &rope->scale, sizeof c->scale) == 0 &&
	       !memcmp(c->positions, positions, rows * sizeof *positions) &&
	       !memcmp(c->inv_freq, rope->inv_freq, rope->dims / 2 * sizeof(float));
}

/* room for `want` elements, contents lost; NULL when there is no memory */
static void *grow(void *mem, size_t *have, size_t want, size_t size)
{
	if (mem && want <= *have)
		return mem;
	free(mem);
	mem = malloc(want * size);
	*have = mem ? want : 0;
	return mem;
}

static int rope_table(struct kern_device *dev, const struct kern_rope *rope, const uint32_t *positions, uint32_t rows, const float **ret_cos_sin)
{
	uint32_t pairs = rope->dims / 2;
	for (unsigned i = 0; i < CPU_ROPE_CACHES; i++)
		if (rope_cached(&dev->rope[i], rope, positions, rows)) {
			*ret_cos_sin = dev->rope[i].cos_sin;
			return KERN_OK;
		}
	struct cpu_rope_cache *c = &dev->rope[dev->rope_oldest++ % CPU_ROPE_CACHES];
	c->rows = 0;               /* until the table is whole */
	c->positions = grow(c->positions, &c->positions_count, dev->max_rows, sizeof *c->positions);
	c->inv_freq = grow(c->inv_freq, &c->inv_freq_count, pairs + 1, sizeof *c->inv_freq);
	c->cos_sin = grow(c->cos_sin, &c->cos_sin_count, (size_t)dev->max_rows * rope->dims + 1, sizeof *c->cos_sin);
	if (!c->positions || !c->inv_freq || !c->cos_sin)
		return KERN_ENOMEM;
	memcpy(c->positions, positions, rows * sizeof *positions);
	memcpy(c->inv_freq, rope->inv_freq, pairs * sizeof(float));
	c->rows = rows;
	c->dims = rope->dims;
	c->scale = rope->scale;
	for (uint32_t r = 0; r < rows; r++)
		for (uint32_t i = 0; i < pairs; i++) {
			float *cs = c->cos_sin + (size_t)r * rope->dims, sn, co;
			sin_cos((float)positions[r] * rope->inv_freq[i], &sn, &co);
			cs[i] = co * rope->scale;
			cs[pairs + i] = sn * rope->scale;
		}
	*ret_cos_sin = c->cos_sin;
	return KERN_OK;
}

static void rope_row(const struct rows_job *j, uint32_t r)
{
	j->v->rope(j->x + r * j->ld, j->heads, j->dim / j->heads, j->rope, j->a + (size_t)r * j->rope->dims);
}

int cpu_op_rope(struct kern_stream *s, float *x, size_t ldx, uint32_t heads, uint32_t head_dim, const struct kern_rope *rope,
                const uint32_t *positions, uint32_t rows)
{
	int rc = check_rows(s->dev, "rope", rows);
	if (!rc && (rope->dims % 2 || rope->dims > head_dim || head_dim > CPU_MAX_HEAD_DIM))
		rc = cpu_fail(s->dev, KERN_EINVAL, "rope over %u of %u elements: must be even, no more than all, and all no more than %d",
		              rope->dims, head_dim, CPU_MAX_HEAD_DIM);
	if (rc || !rows || !heads)
		return rc;
	const float *cos_sin = NULL;
	pthread_mutex_lock(&s->dev->lock);
	rc = rope_table(s->dev, rope, positions, rows, &cos_sin);
	if (!rc) {
		struct rows_job j = { .v = s->dev->variant, .x = x, .ld = ldx, .rope = rope, .a = cos_sin, .rows = rows,
		                      .dim = heads * head_dim, .heads = heads, .row = rope_row };
		rows_run(s->dev, &j);
	}
	pthread_mutex_unlock(&s->dev->lock);
	return rc ? cpu_fail(s->dev, rc, "no memory for the angles of %u rows", rows) : KERN_OK;
}

/* --- attention ---------------------------------------------------------------------------------------------------------- */

int cpu_op_attention(struct kern_stream *s, float *out, const float *q, size_t ldq, uint32_t heads, const struct kern_kv_layer *kv,
                     float scale, uint32_t window, const float *sinks, const struct kern_batch *batch)
{
	int rc = cpu_kv_check(s->dev, kv);
	if (!rc && (!heads || heads % kv->kv_heads))
		rc = cpu_fail(s->dev, KERN_EINVAL, "attention with %u heads over %u KV heads: no whole group", heads, kv->kv_heads);
	if (rc)
		return rc;
	struct cpu_attention a = { out, q, ldq, heads, kv, scale, window, sinks, batch };
	pthread_mutex_lock(&s->dev->lock);
	rc = s->dev->variant->attention(s->dev, &a);
	pthread_mutex_unlock(&s->dev->lock);
	return rc ? cpu_fail(s->dev, rc, "no memory for the attention of %u rows", batch->rows) : KERN_OK;
}

/* --- element-wise ------------------------------------------------------------------------------------------------------- */

static void act_row(const struct rows_job *j, uint32_t r)
{
	j->v->act_mul(j->y + (size_t)r * j->dim, j->a + r * j->ld, j->b + r * j->ld, j->act, j->dim);
}

int cpu_op_act_mul(struct kern_stream *s, float *y, const float *gate, const float *up, size_t ld, enum kern_act act, uint32_t rows,
                   uint32_t dim)
{
	int rc = check_rows(s->dev, "act_mul", rows);
	if (rc)
		return rc;
	struct rows_job j = { .v = s->dev->variant, .y = y, .a = gate, .b = up, .ld = ld, .act = act, .rows = rows, .dim = dim, .row = act_row };
	pthread_mutex_lock(&s->dev->lock);
	rows_run(s->dev, &j);
	pthread_mutex_unlock(&s->dev->lock);
	return KERN_OK;
}

int cpu_op_gather_rows(struct kern_stream *s, float *y, const float *x, const uint32_t *index, uint32_t count, uint32_t dim)
{
	(void)s;
	for (uint32_t i = 0; i < count; i++)
		memmove(y + (size_t)i * dim, x + (size_t)index[i] * dim, dim * sizeof *y);
	return KERN_OK;
}

int cpu_op_scale(struct kern_stream *s, float *x, float factor, size_t count)
{
	(void)s;
	for (size_t i = 0; i < count; i++)
		x[i] *= factor;
	return KERN_OK;
}
