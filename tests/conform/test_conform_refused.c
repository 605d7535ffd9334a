/* test_conform_refused.c - weights, programs and backends that cannot be are refused in a sentence,
 * programs in one that names the operation. */
#include "tests/conform/conform.h"

#include <stdlib.h>

CONFORM_TEST(weights_that_cannot_be)
{
	static const struct {
		enum kern_dtype type;
		uint32_t n, k;
		const char *text;
	} cases[] = {
		{KERN_Q8_0, 3, 33, "q8_0"}, {KERN_Q6_K, 3, 32, "q6_k"}, {KERN_DTYPE_COUNT, 3, 32, ""},
		{KERN_I8, 3, 32, "int8"},   {KERN_F8, 3, 32, "fp8"},    {KERN_F32, 0, 32, "f32"},
		{KERN_F32, 3, 0, "f32"},
	};
	unsigned char data[3 * 33 * 4] = {0};
	EACH_TARGET(dev, 1)
	for (size_t i = 0; i < LEN(cases); i++) {
		struct kern_weight *w = NULL;
		int rc = dev->ops->weight_new(dev->d, cases[i].type, cases[i].n, cases[i].k, data, 0, &w);
		EXPECT((rc == KERN_EINVAL || rc == KERN_ENOTSUP) && !w, "case %zu returned %d", i, rc);
		EXPECT(strstr(dev->ops->last_error(dev->d), cases[i].text), "case %zu: \"%s\" lacks \"%s\"",
		       i, dev->ops->last_error(dev->d), cases[i].text);
	}
}

/* Rows nearer to each other than they are long, and no data at all. */
CONFORM_TEST(weights_whose_rows_overlap)
{
	unsigned char data[3 * 32 * 4] = {0};
	EACH_TARGET(dev, 1)
	for (int i = 0; i < 2; i++) {
		struct kern_weight *w = NULL;
		int rc = dev->ops->weight_new(dev->d, KERN_F32, 3, 32, i ? NULL : data, i ? 0 : 127, &w);
		EXPECT(rc == KERN_EINVAL && !w, "case %d returned %d", i, rc);
		EXPECT(strstr(dev->ops->last_error(dev->d), i ? "data" : "127"), "case %d: \"%s\"", i,
		       dev->ops->last_error(dev->d));
	}
}

/* What operations of these tests work on: matrices (3, 64), (3, 32), (5, 3), (5, 64) of float32 and
 * (3, 64) of bf16. */
struct things {
	struct kern_mem mem;
	struct kern_weight *w64, *w32, *w3, *w5, *w_half, *gate[2], *up[2], *down[2];
	struct kern_kv_layer kv;
	struct kern_tensor x, y;
	kern_ptr words;
};

static struct things things_new(const struct device *dev)
{
	float *data = rand_floats(5 * 64, 1);
	struct things t = {.mem = mem_get(dev, KERN_MEM_DEVICE, 1 << 20)};
	const struct {
		struct kern_weight **w;
		enum kern_dtype type;
		uint32_t n, k;
	} weights[] = {
		{&t.w64, KERN_F32, 3, 64}, {&t.w32, KERN_F32, 3, 32},     {&t.w3, KERN_F32, 5, 3},
		{&t.w5, KERN_F32, 5, 64},  {&t.w_half, KERN_BF16, 3, 64},
	};
	for (size_t i = 0; i < LEN(weights); i++)
		device_ok(dev,
		          dev->ops->weight_new(dev->d, weights[i].type, weights[i].n, weights[i].k, data, 0,
		                               weights[i].w),
		          "weight_new");
	for (int i = 0; i < 2; i++) {
		t.gate[i] = t.up[i] = t.w64;
		t.down[i] = t.w3;
	}
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
	dev->ops->weight_destroy(dev->d, &t->w_half);
	EXPECT(!t->w64 && !t->w32 && !t->w3 && !t->w5 && !t->w_half, "weight_destroy leaves a pointer");
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
		op.experts_act.experts = (struct kern_experts){.experts = 2, .gate = t->gate, .up = t->up};
		op.experts_act.ids = t->words;
		op.experts_act.used = 2;
		op.experts_act.x = t->x;
		op.experts_act.y = t->y;
		break;
	case KERN_OP_EXPERTS_DOWN:
		op.experts_down.experts = (struct kern_experts){.experts = 2, .down = t->down};
		op.experts_down.ids = t->words;
		op.experts_down.weights = kern_at(t->words, 4096);
		op.experts_down.used = 2;
		op.experts_down.x = t->x;
		op.experts_down.y = t->y;
		break;
	case KERN_OP_HEADS_MATMUL:
		op.heads_matmul.x = t->x, op.heads_matmul.y = t->y, op.heads_matmul.w = t->down,
		op.heads_matmul.heads = 2;
		break;
	case KERN_OP_GATHER:
		op.gather.tensors = 1, op.gather.t[0] = (struct kern_gathered){t->x, 1, 64, 16, 0};
		break;
	case KERN_OP_BROADCAST: op.broadcast.at = t->words, op.broadcast.bytes = 64; break;
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
	REFUSED(KERN_OP_BROADCAST, op.broadcast.at.v = 0);
	REFUSED(KERN_OP_BROADCAST, op.broadcast.at.v += 2);
	REFUSED(KERN_OP_BROADCAST, op.broadcast.bytes = 0);
	REFUSED(KERN_OP_BROADCAST, op.broadcast.bytes = 6);
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
	REFUSED(KERN_OP_HEADS_MATMUL, t.down[1] = t.w64);
	REFUSED(KERN_OP_HEADS_MATMUL,
	        (op.heads_matmul.w = t.gate, op.heads_matmul.x.ld = 999, t.gate[1] = t.w5));
	REFUSED(KERN_OP_HEADS_MATMUL, (op.heads_matmul.w = t.gate, op.heads_matmul.heads = 1,
	                               t.gate[0] = t.w64, op.heads_matmul.tail = 1));
	REFUSED(KERN_OP_HEADS_MATMUL,
	        (op.heads_matmul.w = t.gate, op.heads_matmul.x.ld = 999, t.gate[1] = t.w_half));
	REFUSED(KERN_OP_HEADS_MATMUL,
	        (op.heads_matmul.w = t.gate, op.heads_matmul.x.ld = 999, t.gate[1] = t.w32));
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
	REFUSED(KERN_OP_EXPERTS_ACT, t.gate[1] = t.w32);
	REFUSED(KERN_OP_EXPERTS_ACT, t.gate[1] = t.w3);
	REFUSED(KERN_OP_EXPERTS_ACT, t.gate[1] = t.w_half);
	REFUSED(KERN_OP_EXPERTS_ACT, t.up[1] = t.w32);
	REFUSED(KERN_OP_EXPERTS_ACT, t.up[1] = t.w_half);
	REFUSED(KERN_OP_EXPERTS_ACT, (t.up[1] = t.w5, op.experts_act.y.ld = 99));
	REFUSED(KERN_OP_EXPERTS_ACT, t.up[0] = t.up[1] = t.w32);
	REFUSED(KERN_OP_EXPERTS_ACT, (t.up[0] = t.up[1] = t.w5, op.experts_act.y.ld = 99));
	REFUSED(KERN_OP_EXPERTS_DOWN, op.experts_down.used = KERN_EXPERTS_USED_MAX + 1);
	REFUSED(KERN_OP_EXPERTS_DOWN, op.experts_down.used = 0);
	REFUSED(KERN_OP_EXPERTS_DOWN, t.down[1] = t.w32);
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
	REFUSED(KERN_OP_HEADS_MATMUL, t.down[0] = NULL);
	REFUSED(KERN_OP_HEADS_MATMUL, t.down[1] = NULL);
	REFUSED(KERN_OP_EXPERTS_ACT, op.experts_act.experts.gate = NULL);
	REFUSED(KERN_OP_EXPERTS_ACT, op.experts_act.experts.up = NULL);
	REFUSED(KERN_OP_EXPERTS_ACT, t.gate[0] = NULL);
	REFUSED(KERN_OP_EXPERTS_ACT, t.up[1] = NULL);
	REFUSED(KERN_OP_EXPERTS_DOWN, op.experts_down.experts.down = NULL);
	REFUSED(KERN_OP_EXPERTS_DOWN, t.down[1] = NULL);
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
