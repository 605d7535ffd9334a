/* test_conform_sizes.c - a row's bits beside many others: steps of a model in batches of 1 to 600
 * rows, where devices change what they run with (the number of rows that a product's kernel is for,
 * the size of a norm's block, the tile of attention, how its context is cut). Deep in a prompt
 * of 600 tokens, rows that come alone, in tens, in hundreds and all at once must be alike. */
#include "tests/conform/conform.h"
#include "tests/unit/skip.h"

#include <string.h>

enum {
	DEEP = 600,
	HIDDEN = 96,
	HEADS = 4,
	KV_HEADS = 2,
	HEAD = 24,
	WIDTH = HEADS * HEAD,
	KV_WIDTH = KV_HEADS * HEAD,
	INNER = 544,
	TYPES = 3
};

/* Products whose inner dimension is no multiple of what a device may cut it into, and long
 * enough for several cuts; a norm over as many columns. */
static const enum kern_dtype types[TYPES] = {KERN_BF16, KERN_Q8_0, KERN_F32};

/* Where each matrix is: q, k, v of x; o of what attention gives; a wide one that is narrowed
 * again. */
enum { Q, K, V, O, WIDE, NARROW, MATRICES };

struct deep {
	const struct device *dev;
	struct world *w;
	struct kern_mem mem, norm, pool, batch;
	struct kern_weight *m[MATRICES];
	struct kern_tensor x, h, q, k, v, att, wide, y;
	struct kern_kv_layer kv;
	struct kern_program *p;
	float *in;
};

static struct kern_op product(struct kern_tensor x, const struct kern_weight *w,
                              struct kern_tensor y)
{
	struct kern_op op = {.kind = KERN_OP_MATMUL};
	op.matmul.x = x;
	op.matmul.products = 1;
	op.matmul.p[0] = (struct kern_product){w, {0}, y};
	return op;
}

static uint32_t deep_record(const struct deep *d, struct kern_op *op)
{
	uint32_t n = 0;
	op[n].kind = KERN_OP_NORM;
	op[n].norm.y = d->h, op[n].norm.x = d->x, op[n].norm.w = d->norm.dev, op[n].norm.dim = HIDDEN,
	op[n++].norm.eps = 1e-5f;
	op[n++] = product(d->h, d->m[Q], d->q);
	op[n++] = product(d->h, d->m[K], d->k);
	op[n++] = product(d->h, d->m[V], d->v);
	op[n].kind = KERN_OP_KV_WRITE;
	op[n].kv_write.kv = d->kv, op[n].kv_write.k = d->k, op[n++].kv_write.v = d->v;
	op[n].kind = KERN_OP_ATTENTION;
	op[n].attention.kv = d->kv, op[n].attention.q = d->q, op[n].attention.out = d->att,
	op[n].attention.heads = HEADS, op[n++].attention.scale = 0.2f;
	op[n++] = product(d->att, d->m[O], d->h);
	op[n++] = product(d->h, d->m[WIDE], d->wide);
	op[n].kind = KERN_OP_ACT_MUL;
	op[n].act_mul.y = op[n].act_mul.gate = op[n].act_mul.up = d->wide, op[n++].act_mul.dim = INNER;
	op[n].kind = KERN_OP_NORM;
	op[n].norm.y = op[n].norm.x = d->wide, op[n].norm.w = d->norm.dev, op[n].norm.dim = INNER,
	op[n++].norm.eps = 1e-5f;
	op[n++] = product(d->wide, d->m[NARROW], d->y);
	return n;
}

static struct kern_tensor take(const struct deep *d, size_t *at, uint32_t columns)
{
	struct kern_tensor t = {kern_at(d->mem.dev, *at), columns, KERN_F32};
	*at += DEEP * columns * sizeof(float);
	return t;
}

static void deep_new(struct deep *d, const struct device *dev, enum kern_dtype type)
{
	static const uint32_t n[MATRICES] = {WIDTH, KV_WIDTH, KV_WIDTH, HIDDEN, INNER, HIDDEN},
						  k[MATRICES] = {HIDDEN, HIDDEN, HIDDEN, WIDTH, HIDDEN, INNER};
	static const struct sequence seq[SEQUENCES] = {{0, DEEP}};
	struct kern_op op[16] = {0};
	size_t at = 0;
	float ones[INNER];
	*d = (struct deep){.dev = dev, .w = world_new(seq, 16)};
	struct kern_limits limits = world_limits(d->w);
	d->mem = mem_get(dev, KERN_MEM_DEVICE,
	                 DEEP * sizeof(float) * (3 * HIDDEN + 2 * WIDTH + 2 * KV_WIDTH + INNER));
	d->norm = mem_get(dev, KERN_MEM_DEVICE, sizeof ones);
	d->batch = mem_get(dev, KERN_MEM_PINNED, batch_bytes(d->w));
	for (uint32_t i = 0; i < INNER; i++)
		ones[i] = 1 + rand_unit() / 2;
	mem_put(dev, d->norm.dev, ones, sizeof ones);
	d->kv = (struct kern_kv_layer){
		.kv_heads = KV_HEADS, .head_dim = HEAD, .block_tokens = 16, .dtype = KERN_BF16};
	d->kv.block_stride_bytes = kern_kv_planes(&d->kv) * kern_kv_plane_bytes(&d->kv);
	d->pool = mem_get(dev, KERN_MEM_SHARED, d->w->blocks * d->kv.block_stride_bytes);
	d->kv.base = d->pool.dev;
	d->x = take(d, &at, HIDDEN), d->h = take(d, &at, HIDDEN), d->q = take(d, &at, WIDTH),
	d->k = take(d, &at, KV_WIDTH), d->v = take(d, &at, KV_WIDTH);
	d->att = take(d, &at, WIDTH), d->wide = take(d, &at, INNER), d->y = take(d, &at, HIDDEN);
	for (int i = 0; i < MATRICES; i++) {
		enum kern_dtype t = kern_dtype_bytes(type, k[i]) ? type : KERN_F16;
		d->m[i] = weight_get(dev, t, 1, n[i], k[i], rand_weight(t, n[i], k[i]));
	}
	d->in = rand_floats(DEEP * HIDDEN, 1);
	d->p = program_get(dev, op, deep_record(d, op), &limits);
}

static void deep_free(struct deep *d)
{
	const struct kern_ops *k = d->dev->ops;
	k->program_destroy(&d->p);
	for (int i = 0; i < MATRICES; i++)
		k->weight_destroy(d->dev->d, &d->m[i]);
	k->mem_free(d->dev->d, &d->mem);
	k->mem_free(d->dev->d, &d->norm);
	k->mem_free(d->dev->d, &d->pool);
	k->mem_free(d->dev->d, &d->batch);
}

/* Positions [from, from + rows) in one step; their results to y. */
static void deep_run(struct deep *d, uint32_t from, uint32_t rows, float *y)
{
	struct step st = {.parts = 1, .part = {{0, from, rows, 0}}};
	mem_put(d->dev, d->x.at, d->in + (size_t)from * HIDDEN, rows * HIDDEN * sizeof(float));
	batch_write(d->w, &st, 0, NULL, d->batch.host);
	program_run(d->dev, d->p, &d->batch);
	mem_take(d->dev, y, d->y.at, rows * HIDDEN * sizeof(float));
}

static void deep_compare(struct deep *d, const float *all)
{
	static const struct {
		uint32_t from, rows;
	} parts[] = {{599, 1},  {0, 1},    {255, 2},  {511, 8},   {256, 9},
	             {300, 64}, {190, 65}, {88, 256}, {260, 257}, {80, 513}};
	for (size_t i = 0; i < LEN(parts); i++) {
		size_t mark = conform_mark(), n = (size_t)parts[i].rows * HIDDEN;
		float *y = conform_alloc(n, sizeof *y);
		const float *want = all + (size_t)parts[i].from * HIDDEN;
		deep_run(d, parts[i].from, parts[i].rows, y);
		for (size_t e = 0; e < n; e++)
			EXPECT(!memcmp(&y[e], &want[e], sizeof *y),
			       "%u rows from %u: column %zu of position %zu is %.9g, among %d rows %.9g",
			       parts[i].rows, parts[i].from, e % HIDDEN, parts[i].from + e / HIDDEN,
			       (double)y[e], DEEP, (double)want[e]);
		conform_release(mark);
	}
}

CONFORM_TEST(rows_among_many)
{
	for (unsigned t = 0; t < conform_target_count; t++)
		for (int i = 0; i < TYPES; i++) {
			struct device *dev = device_get(&conform_targets[t], 2);
			size_t mark = conform_mark();
			struct deep d;
			if (!dev || (conform_thin > 1 && i))
				continue;
			if (dev->target->precision.rows_vary) {
				SKIP_PART("%s: a row's bits may depend on its batch", dev->target->name);
				break;
			}
			conform_about(0, "%s, %s", dev->target->name, kern_dtype_name(types[i]));
			rand_seed(1 + (uint32_t)i);
			deep_new(&d, dev, types[i]);
			float *all = conform_alloc((size_t)DEEP * HIDDEN, sizeof *all);
			deep_run(&d, 0, DEEP, all);
			deep_compare(&d, all);
			deep_free(&d);
			conform_release(mark);
		}
}
