/* test_conform_refused.c - weights, programs and backends that cannot be are refused in a sentence,
 * programs in one that names the operation. */
#include "tests/conform/conform.h"

#include <stdlib.h>

CONFORM_TEST(weights_that_cannot_be)
{
	static const struct {
		enum kern_dtype type;
		uint32_t count, n, k;
		const char *text;
	} cases[] = {
		{KERN_Q8_0, 1, 3, 33, "q8_0"},
		{KERN_Q6_K, 1, 3, 32, "q6_k"},
		{KERN_DTYPE_COUNT, 1, 3, 32, ""},
		{KERN_I8, 1, 3, 32, "int8"},
		{KERN_F8, 1, 3, 32, "fp8"},
		{KERN_F32, 1, 0, 32, "f32"},
		{KERN_F32, 1, 3, 0, "f32"},
		{KERN_F32, 0, 3, 32, "0 matrices"},
		{KERN_F32, UINT32_MAX, 3, 32, "4294967295 matrices"},
	};
	EACH_TARGET(dev, 1)
	for (size_t i = 0; i < LEN(cases); i++) {
		struct kern_weight *w = NULL;
		int rc = dev->ops->weight_new(dev->d, cases[i].type, cases[i].count, cases[i].n, cases[i].k,
		                              &w);
		EXPECT((rc == KERN_EINVAL || rc == KERN_ENOTSUP) && !w, "case %zu returned %d", i, rc);
		EXPECT(strstr(dev->ops->last_error(dev->d), cases[i].text), "case %zu: \"%s\" lacks \"%s\"",
		       i, dev->ops->last_error(dev->d), cases[i].text);
	}
}

/* Rows nearer to each other than they are long, no data at all, and a matrix too many. */
CONFORM_TEST(loads_that_cannot_be)
{
	unsigned char data[3 * 32 * 4] = {0};
	static const struct {
		uint32_t matrix;
		size_t row_bytes;
		const char *text;
	} cases[] = {{0, 127, "127"}, {1, 0, "data"}, {2, 128, "2 matrices has no matrix 2"}};
	EACH_TARGET(dev, 1)
	{
		struct kern_weight *w = NULL;
		device_ok(dev, dev->ops->weight_new(dev->d, KERN_F32, 2, 3, 32, &w), "weight_new");
		for (size_t i = 0; i < LEN(cases); i++) {
			int rc = dev->ops->weight_load(dev->d, w, cases[i].matrix,
			                               cases[i].row_bytes ? data : NULL, cases[i].row_bytes);
			EXPECT(rc == KERN_EINVAL, "case %zu returned %d", i, rc);
			EXPECT(strstr(dev->ops->last_error(dev->d), cases[i].text), "case %zu: \"%s\"", i,
			       dev->ops->last_error(dev->d));
		}
		dev->ops->weight_destroy(dev->d, &w);
	}
}

/* What operations of these tests work on: weights (2, 3, 64), (2, 3, 32), (2, 5, 3), (2, 5, 64) and
 * (1, 3, 64). */
struct things {
	struct kern_mem mem;
	struct kern_weight *w64, *w32, *w3, *w5, *one;
	struct kern_kv_layer kv;
	struct kern_tensor x, y;
	kern_ptr words;
};

static struct things things_new(const struct device *dev)
{
	float *data = rand_floats(2 * 5 * 64, 1);
	struct things t = {.mem = mem_get(dev, KERN_MEM_DEVICE, 1 << 20),
	                   .w64 = weight_get(dev, KERN_F32, 2, 3, 64, data),
	                   .w32 = weight_get(dev, KERN_F32, 2, 3, 32, data),
	                   .w3 = weight_get(dev, KERN_F32, 2, 5, 3, data),
	                   .w5 = weight_get(dev, KERN_F32, 2, 5, 64, data),
	                   .one = weight_get(dev, KERN_F32, 1, 3, 64, data)};
	t.x = (struct kern_tensor){t.mem.dev, 64, KERN_F32};
	t.y = (struct kern_tensor){kern_at(t.mem.dev, 1 << 18), 64, KERN_F32};
	t.words = kern_at(t.mem.dev, 3 << 17);
	t.kv = (struct kern_kv_layer){.base = kern_at(t.mem.dev, 1 << 19),
	                              .block_stride_bytes = 4096,
	                              .kv_heads = 2,
	                              .head_dim = 8,
	                              .block_tokens = 16,
	                              .dtype = KERN_F32};
	return t;
}

static void things_free(const struct device *dev, struct things *t)
{
	dev->ops->weight_destroy(dev->d, &t->w64);
	dev->ops->weight_destroy(dev->d, &t->w32);
	dev->ops->weight_destroy(dev->d, &t->w3);
	dev->ops->weight_destroy(dev->d, &t->w5);
	dev->ops->weight_destroy(dev->d, &t->one);
	EXPECT(!t->w64 && !t->w32 && !t->w3 && !t->w5 && !t->one, "weight_destroy leaves a pointer");
	dev->ops->mem_free(dev->d, &t->mem);
}

/* One operation of each kind that can be; cases change one thing. */
static struct kern_op op_good(struct things *t, enum kern_op_kind kind)
{
	struct kern_op op = {.kind = kind};
	switch (kind) {
	case KERN_OP_EMBED: op.embed.y = t->y, op.embed.w = t->w64; break;
	case KERN_OP_GATHER_ROWS:
		op.rows = KERN_ROWS_TAIL, op.gather_rows.y = t->y, op.gather_rows.x = t->x,
		op.gather_rows.dim = 64;
		break;
	case KERN_OP_SCALE: op.scale.y = t->y, op.scale.x = t->x, op.scale.dim = 64; break;
	case KERN_OP_NORM:
		op.norm.y = t->y, op.norm.x = op.norm.a = t->x, op.norm.w = t->words, op.norm.dim = 64;
		break;
	case KERN_OP_HEAD_NORM:
		op.head_norm.x = t->x, op.head_norm.w = t->words, op.head_norm.heads = 2,
		op.head_norm.head_dim = 32;
		break;
	case KERN_OP_MATMUL:
		op.matmul.x = t->x;
		op.matmul.products = 1;
		op.matmul.p[0] = op.matmul.p[1] = (struct kern_product){t->w64,
		                                                        {0},
		                                                        {t->y.at, 3, KERN_F32}};
		break;
	case KERN_OP_ROPE:
		op.rope.x = t->x, op.rope.heads = 2, op.rope.head_dim = 32,
		op.rope.rope = (struct kern_rope){KERN_ROPE_HALF, 32, 1, t->words};
		break;
	case KERN_OP_KV_WRITE: op.kv_write.kv = t->kv, op.kv_write.k = op.kv_write.v = t->x; break;
	case KERN_OP_ATTENTION:
		op.attention.kv = t->kv, op.attention.q = t->x, op.attention.out = t->y,
		op.attention.heads = 4, op.attention.scale = 1;
		break;
	case KERN_OP_ACT_MUL:
		op.act_mul.y = t->y, op.act_mul.gate = op.act_mul.up = t->x, op.act_mul.dim = 64;
		break;
	case KERN_OP_ROUTE:
		op.route.router = (struct kern_router){KERN_SCORE_SOFTMAX, 8, 2, 0, 0, {0}, 0, 0, 0, 1};
		op.route.logits = t->x;
		op.route.ids = t->words;
		op.route.weights = kern_at(t->words, 4096);
		break;
	case KERN_OP_EXPERTS_ACT:
		op.experts_act.experts = (struct kern_experts){
			.experts = 2, .count = 2, .gate = t->w64, .up = t->w64};
		op.experts_act.ids = t->words;
		op.experts_act.used = 2;
		op.experts_act.x = t->x;
		op.experts_act.y = t->y;
		break;
	case KERN_OP_EXPERTS_DOWN:
		op.experts_down.experts = (struct kern_experts){.experts = 2, .count = 2, .down = t->w3};
		op.experts_down.ids = t->words;
		op.experts_down.weights = kern_at(t->words, 4096);
		op.experts_down.used = 2;
		op.experts_down.x = t->x;
		op.experts_down.y = t->y;
		break;
	case KERN_OP_EXPERTS_SUM:
		op.experts_sum.ids = t->words;
		op.experts_sum.weights = kern_at(t->words, 4096);
		op.experts_sum.used = 2, op.experts_sum.dim = 64;
		op.experts_sum.x = t->x;
		op.experts_sum.y = t->y;
		break;
	case KERN_OP_HEADS_MATMUL:
		op.heads_matmul.x = t->x, op.heads_matmul.y = t->y, op.heads_matmul.w = t->w3,
		op.heads_matmul.heads = 2;
		break;
	case KERN_OP_GATHER:
		op.gather.tensors = 1, op.gather.t[0] = (struct kern_gathered){t->x, 1, 64, 16, 0, {0}};
		break;
	case KERN_OP_BROADCAST: op.broadcast.at = t->words, op.broadcast.bytes = 64; break;
	case KERN_OP_REDUCE:
		op.reduce.x = t->x, op.reduce.x.type = KERN_F32, op.reduce.dim = (uint32_t)t->x.ld;
		break;
	case KERN_OP_SAMPLE:
		op.rows = KERN_ROWS_TAIL, op.sample.logits = t->x, op.sample.results = t->words;
		break;
	default: break;
	}
	return op;
}

static const struct kern_limits small = {
	.rows = 4, .tail_rows = 4, .spans = 2, .positions = 64, .vocab = 64, .batch_bytes = 4096};

static void expect_refused(const struct device *dev, const struct kern_op *op,
                           const struct kern_limits *limits, const char *what)
{
	struct kern_program *p = NULL;
	const char *name = (unsigned)op->kind < KERN_OPS ? kern_op_name(op->kind) : "";
	int rc = dev->ops->program_new(dev->d, op, 1, limits, &p);
	const char *text = dev->ops->last_error(dev->d), *at = strstr(text, name);
	EXPECT((rc == KERN_EINVAL || rc == KERN_ENOTSUP) && !p, "%s: program_new returned %d", what,
	       rc);
	while (
		at && at > text &&
		(at[-1] == '_' ||
	     (at[-1] >= 'a' && at[-1] <= 'z'))) /* "matmul" within "heads_matmul" names another one */
		at = strstr(at + 1, name);
	EXPECT(at && strlen(text) > strlen(name) + 8, "%s: \"%s\" is no sentence that names %s", what,
	       text, name);
}

#define REFUSED(KIND, CHANGE)                                 \
	do {                                                      \
		struct things t = *of;                                \
		struct kern_op op = op_good(&t, KIND);                \
		CHANGE;                                               \
		expect_refused(dev, &op, &small, #KIND ", " #CHANGE); \
	} while (0)

/* Of a tensor: no address, rows that overlap, types that no activations have. */
#define TENSOR_REFUSED(KIND, T)               \
	do {                                      \
		REFUSED(KIND, op.T.at.v = 0);         \
		REFUSED(KIND, op.T.ld = 1);           \
		REFUSED(KIND, op.T.type = KERN_Q8_0); \
		REFUSED(KIND, op.T.type = KERN_I8);   \
	} while (0)

static void refuse_tensors(const struct device *dev, const struct things *of)
{
	TENSOR_REFUSED(KERN_OP_EMBED, embed.y);
	TENSOR_REFUSED(KERN_OP_GATHER_ROWS, gather_rows.y);
	TENSOR_REFUSED(KERN_OP_GATHER_ROWS, gather_rows.x);
	TENSOR_REFUSED(KERN_OP_GATHER, gather.t[0].x);
	REFUSED(KERN_OP_GATHER, op.gather.tensors = 0);
	REFUSED(KERN_OP_GATHER, op.gather.tensors = KERN_GATHERED_MAX + 1);
	REFUSED(KERN_OP_GATHER, op.gather.t[0].parts = 0);
	REFUSED(KERN_OP_GATHER, op.gather.t[0].unit = 0);
	REFUSED(KERN_OP_GATHER, op.gather.t[0].dim = 0);
	REFUSED(KERN_OP_GATHER, op.gather.t[0].chosen = t.words);
	REFUSED(KERN_OP_GATHER, (op.gather.t[0].chosen.v = 2, op.gather.t[0].ids = 8));
	REFUSED(KERN_OP_GATHER,
	        (op.gather.t[0].chosen = t.words, op.gather.t[0].ids = 8, op.gather.to_first = 1));
	REFUSED(KERN_OP_BROADCAST, op.broadcast.at.v = 0);
	REFUSED(KERN_OP_BROADCAST, op.broadcast.at.v += 2);
	REFUSED(KERN_OP_BROADCAST, op.broadcast.bytes = 0);
	REFUSED(KERN_OP_BROADCAST, op.broadcast.bytes = 6);
	TENSOR_REFUSED(KERN_OP_REDUCE, reduce.x);
	REFUSED(KERN_OP_REDUCE, op.reduce.dim--);
	REFUSED(KERN_OP_REDUCE, op.reduce.x.type = KERN_F16);
	/* without a pipeline; more in test_conform_stages.c */
	REFUSED(KERN_OP_SEND, (op.send.x = t.x, op.send.dim = (uint32_t)t.x.ld, op.send.peer = 1));
	REFUSED(KERN_OP_RECV, (op.recv.x = t.x, op.recv.dim = (uint32_t)t.x.ld));
	TENSOR_REFUSED(KERN_OP_SCALE, scale.y);
	TENSOR_REFUSED(KERN_OP_SCALE, scale.x);
	TENSOR_REFUSED(KERN_OP_NORM, norm.y);
	TENSOR_REFUSED(KERN_OP_NORM, norm.x);
	REFUSED(KERN_OP_NORM, op.norm.a.ld = 63);
	REFUSED(KERN_OP_NORM, op.norm.a.type = KERN_I8);
	TENSOR_REFUSED(KERN_OP_HEAD_NORM, head_norm.x);
	TENSOR_REFUSED(KERN_OP_MATMUL, matmul.x);
	TENSOR_REFUSED(KERN_OP_MATMUL, matmul.p[0].y);
	TENSOR_REFUSED(KERN_OP_ROPE, rope.x);
	TENSOR_REFUSED(KERN_OP_KV_WRITE, kv_write.k);
	TENSOR_REFUSED(KERN_OP_KV_WRITE, kv_write.v);
	TENSOR_REFUSED(KERN_OP_ATTENTION, attention.q);
	TENSOR_REFUSED(KERN_OP_ATTENTION, attention.out);
	TENSOR_REFUSED(KERN_OP_ACT_MUL, act_mul.y);
	TENSOR_REFUSED(KERN_OP_ACT_MUL, act_mul.gate);
	TENSOR_REFUSED(KERN_OP_ACT_MUL, act_mul.up);
	TENSOR_REFUSED(KERN_OP_ROUTE, route.logits);
	TENSOR_REFUSED(KERN_OP_EXPERTS_ACT, experts_act.x);
	TENSOR_REFUSED(KERN_OP_EXPERTS_ACT, experts_act.y);
	TENSOR_REFUSED(KERN_OP_EXPERTS_DOWN, experts_down.x);
	TENSOR_REFUSED(KERN_OP_EXPERTS_DOWN, experts_down.y);
	TENSOR_REFUSED(KERN_OP_EXPERTS_SUM, experts_sum.x);
	TENSOR_REFUSED(KERN_OP_EXPERTS_SUM, experts_sum.y);
	TENSOR_REFUSED(KERN_OP_HEADS_MATMUL, heads_matmul.x);
	TENSOR_REFUSED(KERN_OP_HEADS_MATMUL, heads_matmul.y);
}

static void refuse_products(const struct device *dev, const struct things *of)
{
	REFUSED(KERN_OP_MATMUL, (op.matmul.products = 2, op.matmul.p[1].w = t.w32));
	REFUSED(KERN_OP_MATMUL, op.matmul.products = 0);
	REFUSED(KERN_OP_MATMUL, op.matmul.products = KERN_PRODUCTS_MAX + 1);
	REFUSED(KERN_OP_MATMUL, op.matmul.p[0].y.ld = 2);
	REFUSED(KERN_OP_HEADS_MATMUL, op.heads_matmul.heads = 0);
	REFUSED(KERN_OP_HEADS_MATMUL, op.heads_matmul.tail = 30);
	REFUSED(KERN_OP_HEADS_MATMUL, op.heads_matmul.w = t.w64);
	REFUSED(KERN_OP_HEADS_MATMUL,
	        (op.heads_matmul.w = t.one, op.heads_matmul.heads = 1, op.heads_matmul.tail = 1));
	REFUSED(KERN_OP_HEADS_MATMUL, op.heads_matmul.heads = 1);
	REFUSED(KERN_OP_HEADS_MATMUL, (op.heads_matmul.w = t.one, op.heads_matmul.x.ld = 999));
}

static void refuse_rope_and_kv(const struct device *dev, const struct things *of)
{
	REFUSED(KERN_OP_ROPE, op.rope.rope.dims = 31);
	REFUSED(KERN_OP_ROPE, op.rope.rope.dims = 34);
	REFUSED(KERN_OP_ROPE, op.rope.head_dim = 1 << 20);
	REFUSED(KERN_OP_ROPE, op.rows = KERN_ROWS_TAIL);
	REFUSED(KERN_OP_GATHER_ROWS, op.rows = KERN_ROWS_ALL);
	REFUSED(KERN_OP_KV_WRITE, op.rows = KERN_ROWS_TAIL);
	REFUSED(KERN_OP_KV_WRITE, op.kv_write.kv.head_dim = 6);
	REFUSED(KERN_OP_KV_WRITE, op.kv_write.kv.head_dim = 0);
	REFUSED(KERN_OP_KV_WRITE, op.kv_write.kv.block_tokens = 0);
	REFUSED(KERN_OP_KV_WRITE, op.kv_write.kv.kv_heads = 0);
	REFUSED(KERN_OP_KV_WRITE, op.kv_write.kv.kv_heads = 0x80000000u);
	REFUSED(KERN_OP_KV_WRITE, op.kv_write.kv.dtype = KERN_Q8_0);
	REFUSED(KERN_OP_KV_WRITE, op.kv_write.kv.dtype = KERN_DTYPE_COUNT);
	REFUSED(KERN_OP_ATTENTION, op.attention.kv.dtype = KERN_Q4_0);
	REFUSED(KERN_OP_ATTENTION, op.attention.kv.latent = 12);
	REFUSED(KERN_OP_ATTENTION, op.attention.kv.latent = 6);
	REFUSED(KERN_OP_ATTENTION, op.attention.kv.block_tokens = 0);
	REFUSED(KERN_OP_ATTENTION, op.attention.kv.kv_heads = 0);
	REFUSED(KERN_OP_ATTENTION, op.attention.heads = 3);
	REFUSED(KERN_OP_ATTENTION, op.attention.heads = 0);
	REFUSED(KERN_OP_ATTENTION, op.attention.kv.head_dim = 1 << 20);
}

static void refuse_experts(const struct device *dev, const struct things *of)
{
	REFUSED(KERN_OP_ROUTE, op.route.router.experts = 0);
	REFUSED(KERN_OP_ROUTE,
	        (op.route.router.experts = KERN_EXPERTS_MAX + 1, op.route.logits.ld = 9999));
	REFUSED(KERN_OP_ROUTE, op.route.router.used = 0);
	REFUSED(KERN_OP_ROUTE, op.route.router.used = 9);
	REFUSED(KERN_OP_ROUTE, (op.route.router.experts = 128, op.route.logits.ld = 9999,
	                        op.route.router.used = KERN_EXPERTS_USED_MAX + 1));
	REFUSED(KERN_OP_ROUTE, (op.route.router.groups = 3, op.route.router.groups_used = 2));
	REFUSED(KERN_OP_ROUTE, (op.route.router.groups = 8, op.route.router.groups_used = 4));
	REFUSED(KERN_OP_ROUTE, (op.route.router.groups = 4, op.route.router.groups_used = 2,
	                        op.route.router.used = 5));
	REFUSED(KERN_OP_ROUTE, (op.route.router.groups = 4, op.route.router.groups_used = 0));
	REFUSED(KERN_OP_ROUTE, (op.route.router.groups = 4, op.route.router.groups_used = 5));
	REFUSED(KERN_OP_EXPERTS_ACT, op.experts_act.experts.experts = 0);
	REFUSED(KERN_OP_EXPERTS_ACT, op.experts_act.experts.experts = KERN_EXPERTS_MAX + 1);
	REFUSED(KERN_OP_EXPERTS_ACT, op.experts_act.used = 0);
	REFUSED(KERN_OP_EXPERTS_ACT, op.experts_act.used = KERN_EXPERTS_USED_MAX + 1);
	REFUSED(KERN_OP_EXPERTS_ACT, op.experts_act.experts.gate = t.one);
	REFUSED(KERN_OP_EXPERTS_ACT, op.experts_act.experts.up = t.one);
	REFUSED(KERN_OP_EXPERTS_ACT, op.experts_act.experts.up = t.w32);
	REFUSED(KERN_OP_EXPERTS_ACT, (op.experts_act.experts.up = t.w5, op.experts_act.y.ld = 99));
	REFUSED(KERN_OP_EXPERTS_ACT, op.experts_act.experts.first = 1);
	REFUSED(KERN_OP_EXPERTS_ACT, op.experts_act.experts.first = UINT32_MAX);
	REFUSED(KERN_OP_EXPERTS_ACT,
	        (op.experts_act.experts.first = 3, op.experts_act.experts.count = 0));
	REFUSED(KERN_OP_EXPERTS_DOWN, op.experts_down.used = KERN_EXPERTS_USED_MAX + 1);
	REFUSED(KERN_OP_EXPERTS_DOWN, op.experts_down.used = 0);
	REFUSED(KERN_OP_EXPERTS_DOWN, op.experts_down.experts.down = t.one);
	REFUSED(KERN_OP_EXPERTS_DOWN, op.experts_down.experts.count = 3);
	REFUSED(KERN_OP_EXPERTS_DOWN, op.experts_down.pairs = op.experts_down.add = 1);
	REFUSED(KERN_OP_EXPERTS_SUM, op.experts_sum.used = 0);
	REFUSED(KERN_OP_EXPERTS_SUM, op.experts_sum.used = KERN_EXPERTS_USED_MAX + 1);
	REFUSED(KERN_OP_EXPERTS_SUM, op.experts_sum.dim = 0);
	REFUSED(KERN_OPS, op.rows = KERN_ROWS_ALL);
}

static void refuse_sample(const struct device *dev, const struct things *of)
{
	struct kern_limits none = small;
	none.vocab = 0;
	REFUSED(KERN_OP_SAMPLE, op.rows = KERN_ROWS_ALL);
	REFUSED(KERN_OP_SAMPLE, op.sample.logits.ld = 63);
	REFUSED(KERN_OP_SAMPLE, op.sample.logits.type = KERN_BF16);
	REFUSED(KERN_OP_SAMPLE, op.sample.logits.at.v = 0);
	REFUSED(KERN_OP_SAMPLE, op.sample.results.v = 0);
	REFUSED(KERN_OP_SAMPLE, op.sample.kept.v += 2);
	struct things t = *of;
	struct kern_op op = op_good(&t, KERN_OP_SAMPLE);
	expect_refused(dev, &op, &none, "sample from no ids");
}

/* Values that no enum of the contract has. */
static void refuse_unknown_values(const struct device *dev, const struct things *of)
{
	REFUSED(KERN_OP_SCALE, op.rows = (enum kern_rows)2);
	REFUSED(KERN_OP_MATMUL, op.rows = (enum kern_rows)UINT32_MAX);
	REFUSED(KERN_OP_PROGRESS, op.rows = (enum kern_rows)2);
	REFUSED(KERN_OP_ROPE, op.rope.rope.style = (enum kern_rope_style)2);
	REFUSED(KERN_OP_ACT_MUL, op.act_mul.act = (enum kern_act)3);
	REFUSED(KERN_OP_EXPERTS_ACT, op.experts_act.act = (enum kern_act)3);
	REFUSED(KERN_OP_ROUTE, op.route.router.score = (enum kern_score)2);
	REFUSED(KERN_OP_KV_WRITE, op.kv_write.kv.dtype = (enum kern_dtype)UINT32_MAX);
	REFUSED(KERN_OP_SCALE, op.scale.x.type = (enum kern_dtype)UINT32_MAX);
	REFUSED((enum kern_op_kind)UINT32_MAX, op.rows = KERN_ROWS_ALL);
}

static void refuse_missing_weights(const struct device *dev, const struct things *of)
{
	REFUSED(KERN_OP_EMBED, op.embed.w = NULL);
	REFUSED(KERN_OP_MATMUL, op.matmul.p[0].w = NULL);
	REFUSED(KERN_OP_MATMUL, (op.matmul.products = 2, op.matmul.p[1].w = NULL));
	REFUSED(KERN_OP_HEADS_MATMUL, op.heads_matmul.w = NULL);
	REFUSED(KERN_OP_EXPERTS_ACT, op.experts_act.experts.gate = NULL);
	REFUSED(KERN_OP_EXPERTS_ACT, op.experts_act.experts.up = NULL);
	REFUSED(KERN_OP_EXPERTS_DOWN, op.experts_down.experts.down = NULL);
}

/* Constants and ids that an operation cannot do without, and addresses that no float32 has. */
static void refuse_addresses(const struct device *dev, const struct things *of)
{
	REFUSED(KERN_OP_NORM, op.norm.w.v = 0);
	REFUSED(KERN_OP_NORM, op.norm.w.v++);
	REFUSED(KERN_OP_NORM, op.norm.x.at.v++);
	REFUSED(KERN_OP_HEAD_NORM, op.head_norm.w.v = 0);
	REFUSED(KERN_OP_ROPE, op.rope.rope.inv_freq.v = 0);
	REFUSED(KERN_OP_ROUTE, op.route.ids.v = 0);
	REFUSED(KERN_OP_ROUTE, op.route.weights.v = 0);
	REFUSED(KERN_OP_ROUTE, op.route.router.bias.v = 3);
	REFUSED(KERN_OP_EXPERTS_ACT, op.experts_act.ids.v = 0);
	REFUSED(KERN_OP_EXPERTS_ACT, op.experts_act.experts.up_bias.v = 2);
	REFUSED(KERN_OP_EXPERTS_DOWN, op.experts_down.ids.v = 0);
	REFUSED(KERN_OP_EXPERTS_DOWN, op.experts_down.weights.v = 0);
	REFUSED(KERN_OP_EXPERTS_SUM, op.experts_sum.ids.v = 0);
	REFUSED(KERN_OP_EXPERTS_SUM, op.experts_sum.weights.v = 0);
	REFUSED(KERN_OP_MATMUL, op.matmul.p[0].bias.v = 1);
	REFUSED(KERN_OP_ATTENTION, op.attention.sinks.v = 2);
	REFUSED(KERN_OP_KV_WRITE, op.kv_write.kv.base.v = 0);
	REFUSED(KERN_OP_KV_WRITE, op.kv_write.kv.base.v += 2);
	REFUSED(KERN_OP_ATTENTION, op.attention.kv.base.v = 0);
}

/* Shapes of nothing, beyond what a device has, and blocks that overlap. */
static void refuse_shapes(const struct device *dev, const struct things *of)
{
	REFUSED(KERN_OP_SCALE, op.scale.dim = 0);
	REFUSED(KERN_OP_SCALE, op.scale.dim = op.scale.x.ld = op.scale.y.ld = UINT32_MAX);
	REFUSED(KERN_OP_NORM, op.norm.dim = 0);
	REFUSED(KERN_OP_ACT_MUL, op.act_mul.dim = 0);
	REFUSED(KERN_OP_HEAD_NORM, op.head_norm.heads = 0);
	REFUSED(KERN_OP_HEAD_NORM, op.head_norm.head_dim = 0);
	REFUSED(KERN_OP_ROPE, op.rope.heads = 0);
	REFUSED(KERN_OP_ROPE, (op.rope.heads = UINT32_MAX, op.rope.x.ld = SIZE_MAX / 64));
	REFUSED(KERN_OP_ATTENTION, (op.attention.heads = 1 << 30,
	                            op.attention.q.ld = op.attention.out.ld = SIZE_MAX / 64));
	REFUSED(KERN_OP_KV_WRITE, op.kv_write.kv.block_stride_bytes = 2 * 2 * 8 * 16 * 4 - 4);
	REFUSED(KERN_OP_ATTENTION, op.attention.kv.block_stride_bytes = 0);
	REFUSED(KERN_OP_ATTENTION, op.attention.kv.block_stride_bytes = 4098);
	REFUSED(KERN_OP_EXPERTS_ACT, op.experts_act.used = 3);
	REFUSED(KERN_OP_HEADS_MATMUL, (op.heads_matmul.heads = 1, op.heads_matmul.tail = UINT32_MAX,
	                               op.heads_matmul.x.ld = op.heads_matmul.y.ld = SIZE_MAX / 64));
}

CONFORM_TEST(programs_of_what_is_not_there)
{
	EACH_TARGET(dev, 1)
	{
		struct things t = things_new(dev);
		refuse_unknown_values(dev, &t);
		refuse_missing_weights(dev, &t);
		refuse_addresses(dev, &t);
		refuse_shapes(dev, &t);
		things_free(dev, &t);
	}
}

CONFORM_TEST(programs_that_cannot_be)
{
	EACH_TARGET(dev, 1)
	{
		struct things t = things_new(dev);
		for (int k = 0; k < KERN_OPS; k++) {
			struct kern_limits none = small;
			struct kern_op op = op_good(&t, (enum kern_op_kind)k);
			if (!memcmp(&op, &(struct kern_op){.kind = (enum kern_op_kind)k}, sizeof op))
				continue; /* nothing of it is checked here */
			struct kern_program *p = program_get(dev, &op, 1, &small);
			dev->ops->program_destroy(&p);
			none.tail_rows = 0;
			if (op.rows == KERN_ROWS_TAIL)
				expect_refused(dev, &op, &none, "no rows of the tail");
			none.rows = 0;
			EXPECT(dev->ops->program_new(dev->d, &op, 1, &none, &p) == KERN_EINVAL && !p,
			       "a program for no rows was made");
		}
		refuse_tensors(dev, &t);
		refuse_products(dev, &t);
		refuse_rope_and_kv(dev, &t);
		refuse_experts(dev, &t);
		refuse_sample(dev, &t);
		things_free(dev, &t);
	}
}

CONFORM_TEST(backends_that_are_not_there)
{
	static const char *const names[] = {"no_such", "", "../cpu"};
	const char *was = getenv("PDSERVE_BACKENDS");
	char *folder = was ? strdup(was) : NULL;
	for (size_t i = 0; i < 2 * LEN(names); i++) {
		char err[200] = "";
		if (i % 2)
			setenv("PDSERVE_BACKENDS", "/nonexistent", 1);
		EXPECT(!kern_backend(names[i / 2], err, sizeof err) && strlen(err) > 10,
		       "backend \"%s\": \"%s\"", names[i / 2], err);
	}
	if (folder)
		setenv("PDSERVE_BACKENDS", folder, 1);
	else
		unsetenv("PDSERVE_BACKENDS");
	free(folder);
	for (unsigned t = 0; t < conform_target_count; t++)
		EXPECT(conform_targets[t].ops->abi == KERN_ABI &&
		           !strcmp(conform_targets[t].ops->name, conform_targets[t].backend),
		       "%s: ABI %u, name %s", conform_targets[t].name, conform_targets[t].ops->abi,
		       conform_targets[t].ops->name);
}
