/* test_conform_refused.c - what cannot be is refused in a sentence, and then nothing has run: weights, programs, batches, backends. */
#include "tests/conform/conform.h"

CONFORM_TEST(weights_that_cannot_be)
{
	static const struct { enum kern_dtype type; uint32_t n, k; const char *text; } cases[] = {
		{KERN_Q8_0, 3, 33, "q8_0"}, {KERN_Q6_K, 3, 32, "q6_k"}, {KERN_DTYPE_COUNT, 3, 32, ""}, {KERN_I8, 3, 32, "int8"}, {KERN_F8, 3, 32, "fp8"}, {KERN_F32, 0, 32, "f32"},
		{KERN_F32, 3, 0, "f32"},
	};
	unsigned char data[3 * 33 * 4] = {0};
	EACH_TARGET(dev, 1)
		for (size_t i = 0; i < LEN(cases); i++) {
			struct kern_weight *w = NULL;
			int rc = dev->ops->weight_new(dev->d, cases[i].type, cases[i].n, cases[i].k, data, 0, &w);
			EXPECT((rc == KERN_EINVAL || rc == KERN_ENOTSUP) && !w, "case %zu returned %d", i, rc);
			EXPECT(strstr(dev->ops->last_error(dev->d), cases[i].text), "case %zu: \"%s\" lacks \"%s\"", i, dev->ops->last_error(dev->d), cases[i].text);
		}
}

/* What operations of these tests work on. */
struct things { struct kern_mem mem; struct kern_weight *w64, *w32; struct kern_kv_layer kv; struct kern_tensor x; };

static struct things things_new(const struct device *dev)
{
	float *data = rand_floats(3 * 64, 1);
	struct things t = {.mem = mem_get(dev, KERN_MEM_DEVICE, 1 << 20)};
	t.x = (struct kern_tensor){t.mem.dev, 64, KERN_F32};
	t.kv = (struct kern_kv_layer){.base = kern_at(t.mem.dev, 1 << 19), .block_stride_bytes = 4096, .kv_heads = 2, .head_dim = 8, .block_tokens = 16, .dtype = KERN_F32};
	device_ok(dev, dev->ops->weight_new(dev->d, KERN_F32, 3, 64, data, 0, &t.w64), "weight_new");
	device_ok(dev, dev->ops->weight_new(dev->d, KERN_F32, 3, 32, data, 0, &t.w32), "weight_new");
	return t;
}

static void things_free(const struct device *dev, struct things *t)
{
	dev->ops->weight_destroy(dev->d, &t->w64);
	dev->ops->weight_destroy(dev->d, &t->w32);
	EXPECT(!t->w64 && !t->w32, "weight_destroy leaves a pointer");
	dev->ops->mem_free(dev->d, &t->mem);
}

/* One operation of each kind that can be; cases change one thing. */
static struct kern_op op_good(const struct things *t, enum kern_op_kind kind)
{
	struct kern_op op = {.kind = kind};
	switch (kind) {
	case KERN_OP_EMBED: op.embed.y = t->x, op.embed.w = t->w64; break;
	case KERN_OP_MATMUL:
		op.matmul.x = t->x;
		op.matmul.products = 1;
		op.matmul.p[0] = op.matmul.p[1] = (struct kern_product){t->w64, {0}, {kern_at(t->mem.dev, 1 << 18), 3, KERN_F32}};
		break;
	case KERN_OP_ROPE:
		op.rope.x = t->x;
		op.rope.heads = 2;
		op.rope.head_dim = 32;
		op.rope.rope = (struct kern_rope){KERN_ROPE_HALF, 32, 1, kern_at(t->mem.dev, 1 << 18)};
		break;
	case KERN_OP_KV_WRITE: op.kv_write.kv = t->kv, op.kv_write.k = op.kv_write.v = t->x; break;
	case KERN_OP_ATTENTION:
		op.attention.kv = t->kv;
		op.attention.q = t->x;
		op.attention.out = (struct kern_tensor){kern_at(t->mem.dev, 1 << 18), 64, KERN_F32};
		op.attention.heads = 4;
		op.attention.scale = 1;
		break;
	case KERN_OP_ROUTE:
		op.route.router = (struct kern_router){KERN_SCORE_SOFTMAX, 8, 2, 0, 0, {0}, 0, 0, 0, 1};
		op.route.logits = t->x;
		op.route.ids = op.route.weights = kern_at(t->mem.dev, 1 << 18);
		break;
	default: break;
	}
	return op;
}

static void expect_refused(const struct device *dev, const struct kern_op *op, const struct kern_limits *limits, const char *what)
{
	struct kern_program *p = NULL;
	int rc = dev->ops->program_new(dev->d, op, 1, limits, &p);
	const char *text = dev->ops->last_error(dev->d);
	EXPECT((rc == KERN_EINVAL || rc == KERN_ENOTSUP) && !p, "%s: program_new returned %d", what, rc);
	EXPECT(op->kind >= KERN_OPS || strstr(text, kern_op_name(op->kind)), "%s: \"%s\" does not name %s", what, text, kern_op_name(op->kind));
}

static const struct kern_limits small = {.rows = 4, .tail_rows = 4, .spans = 2, .positions = 64, .batch_bytes = 4096};

#define REFUSED(KIND, CHANGE) do { struct kern_op op = op_good(&t, KIND); CHANGE; expect_refused(dev, &op, &small, #KIND ", " #CHANGE); } while (0)

static void refuse_rows_and_products(const struct device *dev, const struct things *of)
{
	struct things t = *of;
	REFUSED(KERN_OP_MATMUL, (op.matmul.products = 2, op.matmul.p[1].w = t.w32));
	REFUSED(KERN_OP_MATMUL, op.matmul.products = 0);
	REFUSED(KERN_OP_MATMUL, op.matmul.products = KERN_PRODUCTS_MAX + 1);
	REFUSED(KERN_OP_MATMUL, op.matmul.x.type = KERN_Q8_0);
	REFUSED(KERN_OP_MATMUL, op.matmul.p[0].y.type = KERN_I8);
	REFUSED(KERN_OP_MATMUL, op.matmul.p[0].y.ld = 2);
	REFUSED(KERN_OP_EMBED, op.embed.y.ld = 63);
	REFUSED(KERN_OP_ROPE, op.rope.rope.dims = 31);
	REFUSED(KERN_OP_ROPE, op.rope.rope.dims = 34);
	REFUSED(KERN_OP_ROPE, op.rope.head_dim = 1 << 20);
}

static void refuse_kv(const struct device *dev, const struct things *of)
{
	struct things t = *of;
	REFUSED(KERN_OP_KV_WRITE, op.kv_write.kv.head_dim = 6);
	REFUSED(KERN_OP_KV_WRITE, op.kv_write.kv.head_dim = 0);
	REFUSED(KERN_OP_KV_WRITE, op.kv_write.kv.block_tokens = 0);
	REFUSED(KERN_OP_KV_WRITE, op.kv_write.kv.kv_heads = 0);
	REFUSED(KERN_OP_KV_WRITE, op.kv_write.kv.dtype = KERN_Q8_0);
	REFUSED(KERN_OP_ATTENTION, op.attention.kv.dtype = KERN_Q4_0);
	REFUSED(KERN_OP_ATTENTION, op.attention.kv.latent = 12);
	REFUSED(KERN_OP_ATTENTION, op.attention.kv.latent = 6);
	REFUSED(KERN_OP_ATTENTION, op.attention.heads = 3);
	REFUSED(KERN_OP_ATTENTION, op.attention.heads = 0);
	REFUSED(KERN_OP_ATTENTION, op.attention.kv.head_dim = 1 << 20);
}

static void refuse_experts(const struct device *dev, const struct things *of)
{
	struct things t = *of;
	REFUSED(KERN_OP_ROUTE, op.route.router.experts = 0);
	REFUSED(KERN_OP_ROUTE, op.route.router.experts = KERN_EXPERTS_MAX + 1);
	REFUSED(KERN_OP_ROUTE, op.route.router.used = 0);
	REFUSED(KERN_OP_ROUTE, op.route.router.used = 9);
	REFUSED(KERN_OP_ROUTE, (op.route.router.experts = 128, op.route.router.used = KERN_EXPERTS_USED_MAX + 1));
	REFUSED(KERN_OP_ROUTE, (op.route.router.groups = 3, op.route.router.groups_used = 2));
	REFUSED(KERN_OP_ROUTE, (op.route.router.groups = 8, op.route.router.groups_used = 4));
	REFUSED(KERN_OP_ROUTE, (op.route.router.groups = 4, op.route.router.groups_used = 2, op.route.router.used = 5));
	REFUSED(KERN_OP_ROUTE, (op.route.router.groups = 4, op.route.router.groups_used = 0));
	REFUSED(KERN_OP_ROUTE, (op.route.router.groups = 4, op.route.router.groups_used = 5));
	REFUSED(KERN_OP_EXPERTS_ACT, op.experts_act.used = 1);
	REFUSED(KERN_OP_EXPERTS_DOWN, op.experts_down.used = KERN_EXPERTS_USED_MAX + 1);
	REFUSED(KERN_OPS, op.rows = KERN_ROWS_ALL);
}

CONFORM_TEST(programs_that_cannot_be)
{
	static const enum kern_op_kind good[] = {KERN_OP_EMBED, KERN_OP_MATMUL, KERN_OP_ROPE, KERN_OP_KV_WRITE, KERN_OP_ATTENTION, KERN_OP_ROUTE};
	EACH_TARGET(dev, 1) {
		struct things t = things_new(dev);
		for (size_t i = 0; i < LEN(good); i++) {
			struct kern_op op = op_good(&t, good[i]);
			struct kern_program *p = program_get(dev, &op, 1, &small);
			dev->ops->program_destroy(&p);
		}
		refuse_rows_and_products(dev, &t);
		refuse_kv(dev, &t);
		refuse_experts(dev, &t);
		struct kern_limits none = small;
		struct kern_op op = op_good(&t, KERN_OP_MATMUL);
		struct kern_program *p = NULL;
		none.rows = 0;
		EXPECT(dev->ops->program_new(dev->d, &op, 1, &none, &p) == KERN_EINVAL && !p, "a program for no rows was made");
		things_free(dev, &t);
	}
}

/* Every batch beyond the limits is refused, and then nothing has run: neither KV nor rows were written. */
CONFORM_TEST(batches_beyond_the_limits)
{
	enum { DIM = 16 };
	static const struct sequence seq[SEQUENCES] = {{0, 5}, {9, 2}};
	struct world *w = world_new(seq, 16);
	struct schedule s = schedule_make(w, ORDER_WHOLE, 0, false);
	struct kern_limits exact = {.rows = 7, .tail_rows = 4, .spans = 2, .positions = 11, .batch_bytes = batch_bytes(w)};
	EACH_TARGET(dev, 2) {
		struct kern_mem m = mem_get(dev, KERN_MEM_DEVICE, 4096), batch = batch_get(dev, w, &s.step[0], NULL);
		struct kern_op op = op_scale(m.dev, m.dev, 2, DIM);
		struct kern_batch *b = batch.host, whole = *b;
		float before[7 * DIM], after[7 * DIM];
		EXPECT(b->rows == 7 && b->tail_rows == 4 && b->spans == 2, "the batch has %u rows, %u of the tail, %u spans", b->rows, b->tail_rows, b->spans);
		for (int i = 0; i < 7; i++) {
			struct kern_limits l = exact;
			*(i == 1 ? &l.rows : i == 2 ? &l.tail_rows : i == 3 ? &l.spans : i == 4 ? &l.positions : &l.tail_rows) -= i > 0 && i < 5;
			l.batch_bytes = i == 5 ? whole.words * 4 - 4 : l.batch_bytes;
			*b = whole;
			b->rows = i == 6 ? 0 : whole.rows;
			struct kern_program *p = program_get(dev, &op, 1, &l);
			memset(before, 0x3f, sizeof before);
			mem_put(dev, m.dev, before, sizeof before);
			int rc = dev->ops->run(dev->s, p, &batch);
			device_ok(dev, dev->ops->sync(dev->s), "sync");
			mem_take(dev, after, m.dev, sizeof after);
			EXPECT(rc == (i ? KERN_EINVAL : 0), "case %d: run returned %d", i, rc);
			EXPECT(!i == (memcmp(before, after, sizeof after) != 0), "case %d: rows were%s written", i, i ? "" : " not");
			dev->ops->program_destroy(&p);
		}
		dev->ops->mem_free(dev->d, &batch);
		dev->ops->mem_free(dev->d, &m);
	}
}

CONFORM_TEST(backends_that_are_not_there)
{
	static const char *const names[] = {"no_such", "", "../cpu"};
	for (size_t i = 0; i < 2 * LEN(names); i++) {
		char err[200] = "";
		EXPECT(!kern_backend(names[i / 2], i % 2 ? "/nonexistent" : NULL, err, sizeof err) && strlen(err) > 10, "backend \"%s\": \"%s\"", names[i / 2], err);
	}
	for (unsigned t = 0; t < conform_target_count; t++)
		EXPECT(conform_targets[t].ops->abi == KERN_ABI && !strcmp(conform_targets[t].ops->name, conform_targets[t].backend), "%s: ABI %u, name %s", conform_targets[t].name,
		       conform_targets[t].ops->abi, conform_targets[t].ops->name);
}
