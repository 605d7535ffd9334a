/* test_conform_large.c - what is counted in 16 or 32 bits where it may not be: more rows, spans and
 * items of a phase than 2^16 and 2^18; offsets beyond 4 GiB. */
#include "tests/conform/conform.h"
#include "tests/unit/skip.h"

/* Rows repeat after PERIOD of them, in new blocks of KV: so each must have the bits of the row that
 * it repeats. */
enum {
	PERIOD = 61,
	PERIOD_SPANS = 40,
	PERIODS = 1148,
	ROWS = PERIOD * PERIODS,
	SPANS = PERIOD_SPANS * PERIODS,
	BLOCK = 4
};
enum { HID = 16, HEADS = 6, HEAD_DIM = 4, WIDE = HEADS * HEAD_DIM, EXPERTS = 4, USED = 2, FFN = 8 };
enum {
	H,
	N,
	Q,
	K,
	V,
	ATT,
	O,
	GATE,
	UP,
	ACT,
	LOGITS,
	IDS,
	WEIGHTS,
	EX_ACT,
	HEADS_Y,
	Y,
	T,
	FIELDS_LARGE
};
enum {
	W_TABLE,
	W_Q,
	W_K,
	W_V,
	W_O,
	W_GATE,
	W_UP,
	W_ROUTER,
	W_HEADS,
	W_EXPERTS, /* gate, up, down */
	W_ALL = W_EXPERTS + 3
};

/* Words of a row; experts' rows are pairs. */
static const uint32_t columns[FIELDS_LARGE] = {HID,  HID,       WIDE,      WIDE, WIDE,    WIDE,
                                               HID,  HID,       HID,       HID,  EXPERTS, USED,
                                               USED, USED *FFN, HEADS * 2, HID,  HID};

struct large {
	const struct device *dev;
	struct kern_mem mem, pool, batch;
	struct kern_tensor field[FIELDS_LARGE];
	struct kern_weight *w[W_ALL];
	struct kern_kv_layer kv;
	kern_ptr ones;
	struct kern_program *p;
};

/* Lengths 1 and 2 in turn, one of a period a row longer. */
static uint32_t span_rows(uint32_t span)
{
	return 1 + span % 2 + (span % PERIOD_SPANS == 4);
}

static size_t large_words(void)
{
	return sizeof(struct kern_batch) / 4 + 4 * (size_t)ROWS +
	       (size_t)SPANS * sizeof(struct kern_span) / 4 + SPANS;
}

/* All rows, or those of one period; the tail is all of them as well. */
static void large_batch(void *to, uint32_t rows, uint32_t spans)
{
	struct kern_batch b = {.rows = rows,
	                       .spans = spans,
	                       .tail_rows = rows,
	                       .tail_spans = spans,
	                       .tokens = sizeof b / 4};
	uint32_t *word = to;
	b.positions = b.tokens + rows;
	b.slots = b.positions + rows;
	b.tail_index = b.slots + rows;
	b.span = b.tail_span = b.tail_index + rows;
	b.table = b.span + spans * (uint32_t)(sizeof(struct kern_span) / 4);
	b.words = b.table + spans;
	memcpy(word, &b, sizeof b);
	struct kern_span *span = (struct kern_span *)(void *)(word + b.span);
	for (uint32_t i = 0, row = 0; i < spans; i++) {
		uint32_t block = (uint32_t)((uint64_t)i * 7919 % SPANS);
		span[i] = (struct kern_span){row, span_rows(i), 0, i};
		word[b.table + i] = block;
		for (uint32_t r = 0; r < span_rows(i); r++, row++) {
			word[b.tokens + row] = row % PERIOD;
			word[b.positions + row] = r;
			word[b.slots + row] = block * BLOCK + r;
			word[b.tail_index + row] = row;
		}
	}
}

static struct kern_op large_matmul(const struct large *l, uint32_t x, uint32_t w, uint32_t y)
{
	struct kern_op op = {.kind = KERN_OP_MATMUL};
	op.matmul.x = l->field[x];
	op.matmul.products = 1;
	op.matmul.p[0] = (struct kern_product){l->w[w], {0}, l->field[y]};
	return op;
}

/* Every operation on rows once. */
static uint32_t large_ops(struct large *l, struct kern_op *op)
{
	const struct kern_tensor *f = l->field;
	uint32_t n = 0;
	op[n].kind = KERN_OP_EMBED, op[n].embed.y = f[H], op[n++].embed.w = l->w[W_TABLE];
	op[n].kind = KERN_OP_NORM, op[n].norm.y = f[N], op[n].norm.x = f[H], op[n].norm.w = l->ones,
	op[n].norm.dim = HID, op[n++].norm.eps = 1e-5f;
	for (uint32_t i = 0; i < 3; i++)
		op[n++] = large_matmul(l, N, W_Q + i, Q + i);
	op[n].kind = KERN_OP_HEAD_NORM, op[n].head_norm.x = f[Q], op[n].head_norm.w = l->ones,
	op[n].head_norm.heads = HEADS, op[n].head_norm.head_dim = HEAD_DIM;
	op[n++].head_norm.eps = 1e-5f;
	op[n].kind = KERN_OP_ROPE, op[n].rope.x = f[K],
	op[n].rope.rope = (struct kern_rope){KERN_ROPE_HALF, HEAD_DIM, 1, l->ones},
	op[n].rope.heads = HEADS;
	op[n++].rope.head_dim = HEAD_DIM;
	op[n].kind = KERN_OP_KV_WRITE, op[n].kv_write.kv = l->kv, op[n].kv_write.k = f[K],
	op[n++].kv_write.v = f[V];
	op[n].kind = KERN_OP_ATTENTION, op[n].attention.kv = l->kv, op[n].attention.q = f[Q],
	op[n].attention.out = f[ATT], op[n].attention.heads = HEADS;
	op[n++].attention.scale = 0.5f;
	op[n++] = large_matmul(l, ATT, W_O, O);
	op[n++] = large_matmul(l, O, W_GATE, GATE);
	op[n++] = large_matmul(l, O, W_UP, UP);
	op[n].kind = KERN_OP_ACT_MUL, op[n].act_mul.y = f[ACT], op[n].act_mul.gate = f[GATE],
	op[n].act_mul.up = f[UP], op[n++].act_mul.dim = HID;
	op[n++] = large_matmul(l, ACT, W_ROUTER, LOGITS);
	op[n].kind = KERN_OP_ROUTE, op[n].route.router = (struct kern_router){
									.experts = EXPERTS, .used = USED, .normalise = 1, .scale = 1};
	op[n].route.ids = f[IDS].at, op[n].route.weights = f[WEIGHTS].at,
	op[n++].route.logits = f[LOGITS];
	const struct kern_experts e = {.experts = EXPERTS,
	                               .count = EXPERTS,
	                               .gate = l->w[W_EXPERTS],
	                               .up = l->w[W_EXPERTS + 1],
	                               .down = l->w[W_EXPERTS + 2]};
	op[n].kind = KERN_OP_EXPERTS_ACT, op[n].experts_act.experts = e,
	op[n].experts_act.ids = f[IDS].at, op[n].experts_act.used = USED;
	op[n].experts_act.x = f[ACT], op[n++].experts_act.y = f[EX_ACT];
	op[n].kind = KERN_OP_EXPERTS_DOWN, op[n].experts_down.experts = e,
	op[n].experts_down.ids = f[IDS].at, op[n].experts_down.weights = f[WEIGHTS].at;
	op[n].experts_down.used = USED, op[n].experts_down.x = f[EX_ACT], op[n++].experts_down.y = f[Y];
	op[n].kind = KERN_OP_HEADS_MATMUL, op[n].heads_matmul.x = f[ATT],
	op[n].heads_matmul.y = f[HEADS_Y], op[n].heads_matmul.w = l->w[W_HEADS],
	op[n++].heads_matmul.heads = HEADS;
	op[n].kind = KERN_OP_GATHER_ROWS, op[n].rows = KERN_ROWS_TAIL, op[n].gather_rows.y = f[T],
	op[n].gather_rows.x = f[Y], op[n++].gather_rows.dim = HID;
	op[n] = op_scale(f[T].at, f[T].at, 3, HID), op[n++].rows = KERN_ROWS_TAIL;
	return n;
}

static void large_weights(struct large *l)
{
	for (uint32_t i = 0; i < W_ALL; i++) {
		bool wide = i >= W_Q && i <= W_V, head = i == W_HEADS, down = i == W_EXPERTS + 2;
		uint32_t n = i == W_TABLE              ? PERIOD
		             : wide                    ? WIDE
		             : i == W_ROUTER           ? EXPERTS
		             : head                    ? 2
		             : i >= W_EXPERTS && !down ? FFN
		                                       : HID;
		uint32_t k = i == W_O ? WIDE
		             : head   ? HEAD_DIM
		             : down   ? FFN
		                      : HID,
				 count = head             ? HEADS
		                 : i >= W_EXPERTS ? EXPERTS
		                                  : 1;
		l->w[i] = weight_get(l->dev, KERN_BF16, count, n, k, rand_weight(KERN_BF16, count * n, k));
	}
}

static void large_new(struct large *l, const struct device *dev)
{
	static const float ones[HID] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
	const struct kern_limits limits = {.rows = ROWS,
	                                   .tail_rows = ROWS,
	                                   .spans = SPANS,
	                                   .positions = 8,
	                                   .batch_bytes = large_words() * 4};
	struct kern_op op[32] = {0};
	size_t bytes = 64;
	*l = (struct large){.dev = dev};
	for (uint32_t f = 0; f < FIELDS_LARGE; f++)
		bytes += (size_t)ROWS * columns[f] * 4;
	l->mem = mem_get(dev, KERN_MEM_DEVICE, bytes);
	l->batch = mem_get(dev, KERN_MEM_PINNED, large_words() * 4);
	l->kv = (struct kern_kv_layer){
		.kv_heads = HEADS, .head_dim = HEAD_DIM, .block_tokens = BLOCK, .dtype = KERN_BF16};
	l->kv.block_stride_bytes = kern_kv_planes(&l->kv) * kern_kv_plane_bytes(&l->kv);
	l->pool = mem_get(dev, KERN_MEM_SHARED, SPANS * l->kv.block_stride_bytes);
	l->kv.base = l->pool.dev;
	l->ones = l->mem.dev;
	mem_put(dev, l->ones, ones, sizeof ones);
	bytes = 64;
	for (uint32_t f = 0; f < FIELDS_LARGE; bytes += (size_t)ROWS * columns[f++] * 4)
		l->field[f] = (struct kern_tensor){kern_at(l->mem.dev, bytes),
		                                   f == EX_ACT ? FFN : columns[f], KERN_F32};
	large_weights(l);
	uint32_t n = large_ops(l, op);
	l->p = program_get(dev, op, n, &limits);
}

static void large_free(struct large *l)
{
	const struct kern_ops *k = l->dev->ops;
	k->program_destroy(&l->p);
	for (uint32_t i = 0; i < W_ALL; i++)
		k->weight_destroy(l->dev->d, &l->w[i]);
	k->mem_free(l->dev->d, &l->mem);
	k->mem_free(l->dev->d, &l->pool);
	k->mem_free(l->dev->d, &l->batch);
}

CONFORM_TEST(rows_beyond_16_bits)
{
	static const unsigned threads = 2;
	EACH_TARGET(dev, threads)
	{
		struct large l;
		size_t mark = conform_mark();
		if (conform_thin > 1 && conform_target_count > 4 && t_ % 4 != 2)
			continue;
		if (dev->target->precision.rows_vary) {
			SKIP_PART("%s: a row's bits may depend on its batch", dev->target->name);
			continue;
		}
		large_new(&l, dev);
		float *all = conform_alloc((size_t)ROWS * WIDE, sizeof *all),
			  *one = conform_alloc((size_t)PERIOD * WIDE * FIELDS_LARGE, sizeof *one);
		large_batch(l.batch.host, PERIOD, PERIOD_SPANS);
		program_run(dev, l.p, &l.batch);
		for (uint32_t f = 0; f < FIELDS_LARGE; f++)
			mem_take(dev, one + (size_t)f * PERIOD * WIDE, l.field[f].at,
			         (size_t)PERIOD * columns[f] * 4);
		large_batch(l.batch.host, ROWS, SPANS);
		program_run(dev, l.p, &l.batch);
		for (uint32_t f = 0; f < FIELDS_LARGE; f++) {
			const float *first = one + (size_t)f * PERIOD * WIDE;
			mem_take(dev, all, l.field[f].at, (size_t)ROWS * columns[f] * 4);
			for (uint32_t r = 0; r < ROWS; r++)
				EXPECT(!memcmp(all + (size_t)r * columns[f],
				               first + (size_t)(r % PERIOD) * columns[f], columns[f] * 4),
				       "field %u: row %u has other bits than row %u of %d", f, r, r % PERIOD,
				       PERIOD);
		}
		large_free(&l);
		conform_release(mark);
	}
}

/* --- far apart ----------------------------------------------------------- */

/* Memory is not touched but for the rows in it. */
enum { FAR_DIM = 32, FAR_ROWS = 7 };
static const size_t far_ld = ((size_t)1 << 32) / (FAR_ROWS - 1) + 1, far_stride = (size_t)7 << 28;

/* What comes out: of the product, of attention; rows and blocks where they must lie. */
enum { FAR_OUT = FAR_ROWS * FAR_DIM };
struct far_seen {
	float product[FAR_OUT], attention[FAR_OUT], row[FAR_OUT],
		block[(FAR_ROWS + 1) / 2][4 * FAR_DIM];
};

/* x is scaled into rows that are far apart, which a product reads; their K and V go to blocks that
 * are far apart. */
static void far_run(const struct device *dev, const struct world *w, const struct step *st,
                    kern_ptr rows, size_t ld, size_t stride, struct far_seen *seen)
{
	struct kern_limits limits = world_limits(w);
	size_t near = limits.rows * FAR_DIM * 4;
	struct kern_mem m = mem_get(dev, KERN_MEM_DEVICE, 3 * near),
					batch = batch_get(dev, w, st, NULL);
	const struct kern_tensor x = {m.dev, FAR_DIM, KERN_F32},
							 y = {kern_at(m.dev, near), FAR_DIM, KERN_F32},
							 z = {kern_at(m.dev, 2 * near), FAR_DIM, KERN_F32};
	struct kern_kv_layer kv = {.base = rows,
	                           .kv_heads = 2,
	                           .head_dim = FAR_DIM / 2,
	                           .block_tokens = 2,
	                           .dtype = KERN_F32,
	                           .block_stride_bytes = stride};
	struct kern_op op[4] = {op_scale(x.at, x.at, 0.3f, FAR_DIM),
	                        {.kind = KERN_OP_MATMUL},
	                        {.kind = KERN_OP_KV_WRITE},
	                        {.kind = KERN_OP_ATTENTION}};
	struct kern_weight *wt;
	float *in = conform_alloc(limits.rows * FAR_DIM, sizeof *in);
	rand_seed(5);
	memcpy(in, rand_floats(FAR_ROWS * FAR_DIM, 1), FAR_ROWS * FAR_DIM * sizeof *in);
	mem_put(dev, m.dev, in, near);
	wt = weight_get(dev, KERN_BF16, 1, FAR_DIM, FAR_DIM, rand_weight(KERN_BF16, FAR_DIM, FAR_DIM));
	op[0].scale.y.at = kern_at(rows, 4096);
	op[0].scale.y.ld = ld;
	op[1].matmul.x = op[0].scale.y;
	op[1].matmul.products = 1;
	op[1].matmul.p[0] = (struct kern_product){wt, {0}, y};
	op[2].kv_write.kv = op[3].attention.kv = kv;
	op[2].kv_write.k = y;
	op[2].kv_write.v = x;
	op[3].attention.q = y;
	op[3].attention.out = z;
	op[3].attention.heads = 2;
	op[3].attention.scale = 0.3f;
	struct kern_program *p = program_get(dev, op, 4, &limits);
	program_run(dev, p, &batch);
	memset(seen, 0, sizeof *seen);
	mem_take(dev, seen->product, y.at, sizeof seen->product);
	mem_take(dev, seen->attention, z.at, sizeof seen->attention);
	for (uint32_t r = 0; r < FAR_ROWS; r++) {
		mem_take(dev, seen->row + r * FAR_DIM, kern_at(op[0].scale.y.at, r * ld * 4), FAR_DIM * 4);
		mem_take(dev, seen->block[r / 2], kern_at(rows, w->table[0][r / 2] * stride),
		         sizeof seen->block[0]);
	}
	dev->ops->program_destroy(&p);
	dev->ops->weight_destroy(dev->d, &wt);
	dev->ops->mem_free(dev->d, &m);
	dev->ops->mem_free(dev->d, &batch);
}

CONFORM_TEST(offsets_beyond_32_bits)
{
	static const struct sequence seq[SEQUENCES] = {{0, FAR_ROWS}};
	struct world *w = world_new(seq, 2);
	struct schedule s = schedule_make(w, ORDER_WHOLE, 0, false);
	EACH_TARGET(dev, 2)
	{
		struct far_seen want, got;
		size_t rows = FAR_ROWS * far_ld * 4, blocks = w->blocks * far_stride;
		struct kern_mem far, near = mem_get(dev, KERN_MEM_SHARED, 1 << 20);
		int rc = dev->ops->mem_new(dev->d, KERN_MEM_SHARED, (rows > blocks ? rows : blocks) + 8192,
		                           &far);
		if (rc == KERN_ENOMEM) {
			SKIP_PART("%s: %s", dev->target->name, dev->ops->last_error(dev->d));
			dev->ops->mem_free(dev->d, &near);
			continue;
		}
		device_ok(dev, rc, "mem_new");
		far_run(dev, w, &s.step[0], near.dev, FAR_DIM + 1, 512, &want);
		far_run(dev, w, &s.step[0], far.dev, far_ld, far_stride, &got);
		EXPECT(!memcmp(&want, &got, sizeof want),
		       "other bits, or in another place, when rows are %zu bytes apart and blocks "
		       "%zu",
		       far_ld * 4, far_stride);
		dev->ops->mem_free(dev->d, &near);
		dev->ops->mem_free(dev->d, &far);
	}
}
