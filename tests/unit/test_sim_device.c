/* test_sim_device.c - the simulated device by itself, driven by programs: what a step costs, when
 * progress is told, what is refused.
 *
 * The model is a small transformer, recorded as an engine would; test_sim.c has the engine, and
 * faults in the KV. Times are the device's own counter; wall time is compared with it in one
 * direction only, so that a busy machine does not fail a test. */
#include "kernels/device.h"
#include "kernels/ops.h"
#include "kernels/sim/options.h"
#include "util/clock.h"

#include <check.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LAYERS = 3, HIDDEN = 64, HEADS = 4, KV_HEADS = 2, DIM = 16, FFN = 96, VOCAB = 200 };
enum {
	ROWS = 64,
	TAIL = 8,
	SPANS = 8,
	POSITIONS = 1024,
	BLOCK = 16,
	BLOCKS = 256,
	PIECE = BLOCK * 16
};
enum {
	QKV = HIDDEN * DIM * (HEADS + 2 * KV_HEADS),
	REST = HIDDEN * DIM * HEADS + 3 * HIDDEN * FFN,
	HEAD = HIDDEN * VOCAB
};
enum { MAX_OPS = 2 + 11 * LAYERS + 8, FLOATS = 1 << 16 };

static const struct kern_ops *const sim = &kern_sim_ops;
static const struct sim_options options = {.weight_flops = 2,
                                           .weight_bytes = 2,
                                           .kv_bytes = 2,
                                           .tp = 1,
                                           .flops = 1e9,
                                           .bandwidth = 1e8,
                                           .link_bandwidth = 1e9,
                                           .launch_us = 10,
                                           .step_us = 100,
                                           .time_scale = 1,
                                           .seed = 7};

struct rig {
	struct kern_device *dev;
	struct kern_stream *stream;
	struct kern_program *p;
	struct kern_mem pool, act, logits, batch, board;
	struct kern_weight *w[8];
	struct kern_op op[MAX_OPS];
	size_t ops;
	uint64_t told_ns[LAYERS], told[LAYERS][LAYERS];
	unsigned tellings;
};

static uint64_t *word(const struct rig *r, uint32_t layer)
{
	return (uint64_t *)r->board.host + layer;
}

static void progressed(void *arg)
{
	struct rig *r = arg;
	ck_assert_uint_lt(r->tellings, LAYERS);
	for (uint32_t l = 0; l < LAYERS; l++)
		r->told[r->tellings][l] = __atomic_load_n(word(r, l), __ATOMIC_ACQUIRE);
	r->told_ns[r->tellings++] = clock_ns();
}

/* --- recording ----------------------------------------------------------- */

enum buffer { X, H, Q, K, V, ATT, SUM, GATE, UP, ACT, TAIL_X };

static struct kern_tensor buffer(const struct rig *r, enum buffer b, size_t ld)
{
	return (struct kern_tensor){kern_at(r->act.dev, b * FLOATS * sizeof(float)), ld, KERN_F32};
}

static struct kern_op *add(struct rig *r, enum kern_op_kind kind, enum kern_rows rows)
{
	r->op[r->ops] = (struct kern_op){.kind = kind, .rows = rows};
	return &r->op[r->ops++];
}

static void norm(struct rig *r, enum kern_rows rows, enum buffer x, int adds)
{
	struct kern_op *op = add(r, KERN_OP_NORM, rows);
	op->norm.x = buffer(r, x, HIDDEN);
	op->norm.y = buffer(r, H, HIDDEN);
	op->norm.w = r->act.dev;
	op->norm.dim = HIDDEN;
	if (adds)
		op->norm.a = buffer(r, SUM, HIDDEN);
}

static void matmul(struct rig *r, enum kern_rows rows, struct kern_tensor x, struct kern_tensor y,
                   const struct kern_weight *w)
{
	struct kern_op *op = add(r, KERN_OP_MATMUL, rows);
	op->matmul.x = x;
	op->matmul.products = 1;
	op->matmul.p[0] = (struct kern_product){.w = w, .y = y};
}

static struct kern_kv_layer kv_of(const struct rig *r, uint32_t layer)
{
	return (struct kern_kv_layer){.base = kern_at(r->pool.dev, (size_t)layer * BLOCKS * PIECE),
	                              .block_stride_bytes = PIECE,
	                              .kv_heads = KV_HEADS,
	                              .head_dim = DIM,
	                              .block_tokens = BLOCK,
	                              .dtype = KERN_BF16,
	                              .layer = layer};
}

static void attention_in(struct rig *r, uint32_t layer)
{
	struct kern_op *op = add(r, KERN_OP_MATMUL, KERN_ROWS_ALL);
	op->matmul.x = buffer(r, H, HIDDEN);
	op->matmul.products = 3;
	for (int i = 0; i < 3; i++)
		op->matmul.p[i] = (struct kern_product){.w = r->w[1 + i],
		                                        .y = buffer(r, Q + (enum buffer)i, HIDDEN)};
	op = add(r, KERN_OP_ROPE, KERN_ROWS_ALL);
	op->rope.x = buffer(r, Q, HIDDEN);
	op->rope.heads = HEADS;
	op->rope.head_dim = DIM;
	op = add(r, KERN_OP_KV_WRITE, KERN_ROWS_ALL);
	op->kv_write.kv = kv_of(r, layer);
	op->kv_write.k = buffer(r, K, HIDDEN);
	op->kv_write.v = buffer(r, V, HIDDEN);
	add(r, KERN_OP_PROGRESS, KERN_ROWS_ALL)->progress.layer = layer;
}

static void rest_of_layer(struct rig *r, uint32_t layer, enum kern_rows rows, enum buffer x)
{
	struct kern_op *op = add(r, KERN_OP_ATTENTION, rows);
	op->attention.kv = kv_of(r, layer);
	op->attention.q = buffer(r, Q, HIDDEN);
	op->attention.out = buffer(r, ATT, HEADS * DIM);
	op->attention.heads = HEADS;
	matmul(r, rows, buffer(r, ATT, HEADS * DIM), buffer(r, SUM, HIDDEN), r->w[4]);
	norm(r, rows, x, 1);
	matmul(r, rows, buffer(r, H, HIDDEN), buffer(r, GATE, FFN), r->w[5]);
	matmul(r, rows, buffer(r, H, HIDDEN), buffer(r, UP, FFN), r->w[6]);
	op = add(r, KERN_OP_ACT_MUL, rows);
	op->act_mul.gate = buffer(r, GATE, FFN);
	op->act_mul.up = buffer(r, UP, FFN);
	op->act_mul.y = buffer(r, ACT, FFN);
	op->act_mul.dim = FFN;
	matmul(r, rows, buffer(r, ACT, FFN), buffer(r, SUM, HIDDEN), r->w[7]);
	norm(r, rows, x, 1);
}

static void record(struct rig *r)
{
	struct kern_op *op = add(r, KERN_OP_EMBED, KERN_ROWS_ALL);
	op->embed.y = buffer(r, X, HIDDEN);
	op->embed.w = r->w[0];
	norm(r, KERN_ROWS_ALL, X, 0);
	for (uint32_t l = 0; l < LAYERS; l++) {
		attention_in(r, l);
		if (l + 1 < LAYERS)
			rest_of_layer(r, l, KERN_ROWS_ALL, X);
	}
	op = add(r, KERN_OP_GATHER_ROWS, KERN_ROWS_TAIL);
	op->gather_rows.x = buffer(r, X, HIDDEN);
	op->gather_rows.y = buffer(r, TAIL_X, HIDDEN);
	op->gather_rows.dim = HIDDEN;
	rest_of_layer(r, LAYERS - 1, KERN_ROWS_TAIL, TAIL_X);
	matmul(r, KERN_ROWS_TAIL, buffer(r, H, HIDDEN),
	       (struct kern_tensor){r->logits.dev, VOCAB, KERN_F32}, r->w[0]);
}

/* --- life ---------------------------------------------------------------- */

static const struct kern_limits limits = {
	.rows = ROWS, .tail_rows = TAIL, .spans = SPANS, .positions = POSITIONS, .batch_bytes = 16384};

static struct rig *rig_open(struct sim_options o)
{
	static const uint32_t shape[8][2] = {{VOCAB, HIDDEN},
	                                     {HEADS * DIM, HIDDEN},
	                                     {KV_HEADS * DIM, HIDDEN},
	                                     {KV_HEADS * DIM, HIDDEN},
	                                     {HIDDEN, HEADS * DIM},
	                                     {FFN, HIDDEN},
	                                     {FFN, HIDDEN},
	                                     {HIDDEN, FFN}};
	struct rig *r = calloc(1, sizeof *r);
	struct kern_config conf = {.options = &o, .progressed = progressed, .progressed_arg = r};
	char text[200] = "";
	ck_assert_msg(!sim->open(&conf, &r->dev, text, sizeof text), "%s", text);
	ck_assert(!sim->stream_new(r->dev, &r->stream));
	ck_assert(!sim->mem_new(r->dev, KERN_MEM_SHARED, LAYERS * BLOCKS * PIECE, &r->pool));
	ck_assert(
		!sim->mem_new(r->dev, KERN_MEM_DEVICE, (TAIL_X + 1) * FLOATS * sizeof(float), &r->act));
	ck_assert(!sim->mem_new(r->dev, KERN_MEM_PINNED, TAIL * VOCAB * sizeof(float), &r->logits));
	ck_assert(!sim->mem_new(r->dev, KERN_MEM_PINNED, limits.batch_bytes, &r->batch));
	ck_assert(!sim->mem_new(r->dev, KERN_MEM_SHARED, 4096, &r->board));
	for (int i = 0; i < 8; i++)
		ck_assert(!sim->weight_new(r->dev, KERN_BF16, 1, shape[i][0], shape[i][1], &r->w[i]));
	record(r);
	ck_assert_msg(!sim->program_new(r->dev, r->op, r->ops, &limits, &r->p), "%s",
	              sim->last_error(r->dev));
	return r;
}

static void rig_close(struct rig *r)
{
	struct kern_mem *const mem[] = {&r->pool, &r->act, &r->logits, &r->batch, &r->board};
	sim->program_destroy(&r->p);
	for (int i = 0; i < 8; i++)
		sim->weight_destroy(r->dev, &r->w[i]);
	for (size_t i = 0; i < sizeof mem / sizeof *mem; i++)
		sim->mem_free(r->dev, mem[i]);
	sim->stream_destroy(&r->stream);
	sim->close(&r->dev);
	free(r);
}

static struct kern_counters counters(const struct rig *r)
{
	struct kern_counters c;
	sim->counters(r->dev, &c);
	return c;
}

/* --- batches ------------------------------------------------------------- */

/* `rows` tokens of sequence `seq` from `position` on; the last `wanted` go to the head. Its
 * blocks are seq * 16 and those that follow. */
struct piece {
	uint32_t seq, position, rows, wanted;
};

static uint32_t token(uint32_t seq, uint32_t position)
{
	return (seq * 31 + position * 7) % VOCAB;
}

static struct kern_batch *lay_out(struct rig *r, const struct piece *piece, uint32_t pieces,
                                  int tell)
{
	enum { TABLE = POSITIONS / BLOCK };
	uint32_t *at = r->batch.host, next = sizeof(struct kern_batch) / 4;
	struct kern_batch *b = r->batch.host;
	*b = (struct kern_batch){.spans = pieces, .progress = tell ? next : 0};
	next += SPANS * sizeof(struct kern_progress) / 4;
	uint32_t *const part[] = {&b->tokens, &b->positions, &b->slots, &b->tail_index};
	for (size_t i = 0; i < sizeof part / sizeof *part; i++, next += ROWS)
		*part[i] = next;
	b->span = next;
	b->tail_span = next + SPANS * sizeof(struct kern_span) / 4;
	b->table = b->tail_span + SPANS * sizeof(struct kern_span) / 4;
	b->words = b->table + pieces * TABLE;
	for (uint32_t i = 0; i < pieces; i++) {
		const struct piece *p = &piece[i];
		struct kern_progress told = {.word = r->board.dev,
		                             .value = p->position + p->rows,
		                             .stride = 1};
		struct kern_span sp = {b->rows, p->rows, p->position, i * TABLE};
		struct kern_span tail = {b->tail_rows, p->wanted, p->position + p->rows - p->wanted,
		                         i * TABLE};
		memcpy(at + b->span + i * sizeof sp / 4, &sp, sizeof sp);
		if (p->wanted)
			memcpy(at + b->tail_span + b->tail_spans++ * sizeof tail / 4, &tail, sizeof tail);
		if (tell)
			memcpy(at + b->progress + i * sizeof told / 4, &told, sizeof told);
		for (uint32_t k = 0; k < TABLE; k++)
			at[b->table + i * TABLE + k] = (p->seq * 16 + k) % BLOCKS;
		for (uint32_t k = 0; k < p->rows; k++) {
			uint32_t position = p->position + k;
			at[b->tokens + b->rows + k] = token(p->seq, position);
			at[b->positions + b->rows + k] = position;
			at[b->slots + b->rows + k] = at[b->table + i * TABLE + position / BLOCK] * BLOCK +
			                             position % BLOCK;
		}
		for (uint32_t k = 0; k < p->wanted; k++)
			at[b->tail_index + b->tail_rows++] = sp.row + p->rows - p->wanted + k;
		b->rows += p->rows;
	}
	return b;
}

static int run_rc(struct rig *r, struct piece p)
{
	lay_out(r, &p, 1, 0);
	int rc = sim->run(r->stream, r->p, &r->batch);
	ck_assert(!sim->sync(r->stream));
	return rc;
}

static void run(struct rig *r, struct piece p)
{
	ck_assert_msg(!run_rc(r, p), "%s", sim->last_error(r->dev));
}

/* What a step took, in modelled microseconds. */
static double took_us(struct rig *r, const struct piece *p, uint32_t n)
{
	uint64_t before = counters(r).busy_ns;
	lay_out(r, p, n, 0);
	ck_assert_msg(!sim->run(r->stream, r->p, &r->batch), "%s", sim->last_error(r->dev));
	ck_assert(!sim->sync(r->stream));
	return (double)(counters(r).busy_ns - before) / 1e3;
}

/* --- cost ---------------------------------------------------------------- */

static double us(double flops, double bytes)
{
	double compute = flops / 1e9 * 1e6, memory = bytes / 1e8 * 1e6;
	return compute > memory ? compute : memory;
}

/* q, k, v up to the first progress; then the rest of a layer with the next one's; the last for
 * the tail, with the head. */
static double step_us(double rows, double attended, double context, double tail,
                      double tail_attended, double tail_context)
{
	double flops = 4.0 * HEADS * DIM, kv = 2.0 * KV_HEADS * DIM * 2;
	double first = us(2.0 * QKV * rows, 2.0 * QKV);
	double layer = us(2.0 * (REST + QKV) * rows + flops * attended,
	                  2.0 * (REST + QKV) + kv * context);
	double last = tail > 0 ? us(2.0 * (REST + HEAD) * tail + flops * tail_attended,
	                            2.0 * (REST + HEAD) + kv * tail_context)
	                       : 0;
	return 100 + 10 * LAYERS + first + (LAYERS - 1) * layer + last;
}

TEST_CASE("programs", .timeout_s = 60);

TEST(test_a_step_costs_what_its_operations_do)
{
	struct rig *r = rig_open(options);
	/* a chunk that nobody wants logits of, then one whose last row is wanted, then that sequence
	 * decodes beside a prompt */
	ck_assert_double_eq_tol(took_us(r, (struct piece[]){{0, 0, 40, 0}}, 1),
	                        step_us(40, 40 * 41 / 2, 40, 0, 0, 0), 0.01);
	ck_assert_double_eq_tol(took_us(r, (struct piece[]){{0, 40, 20, 1}}, 1),
	                        step_us(20, 60 * 61 / 2 - 40 * 41 / 2, 60, 1, 60, 60), 0.01);
	ck_assert_double_eq_tol(took_us(r, (struct piece[]){{0, 60, 1, 1}, {1, 0, 30, 1}}, 2),
	                        step_us(31, 61 + 30 * 31 / 2, 61 + 30, 2, 61 + 30, 61 + 30), 0.01);
	/* one row: memory is what takes the time */
	ck_assert_double_eq_tol(took_us(r, (struct piece[]){{0, 61, 1, 1}}, 1),
	                        step_us(1, 62, 62, 1, 62, 62), 0.01);
	struct kern_counters c = counters(r);
	ck_assert_uint_eq(c.steps, 4);
	ck_assert_uint_eq(c.rows, 40 + 20 + 31 + 1);
	ck_assert_uint_gt(c.pulse, 4 * LAYERS);
	rig_close(r);
}

/* One more product in the program: its weights' time more, and nothing else. */
TEST(test_an_operation_more_costs_more)
{
	struct rig *r = rig_open(options);
	double before = took_us(r, (struct piece[]){{0, 0, 40, 1}}, 1);
	sim->program_destroy(&r->p);
	memmove(&r->op[3], &r->op[2], (r->ops++ - 2) * sizeof *r->op);
	r->op[2] = r->op[3];
	r->op[2].matmul.products = 1;
	ck_assert(!sim->program_new(r->dev, r->op, r->ops, &limits, &r->p));
	ck_assert_double_eq_tol(took_us(r, (struct piece[]){{1, 0, 40, 1}}, 1),
	                        before + us(2.0 * HIDDEN * HEADS * DIM * 40, 0), 0.01);
	rig_close(r);
}

/* Tensor parallel: all but what is fixed is divided, and each sum for the residual stream is
 * exchanged. */
TEST(test_tensor_parallel)
{
	struct sim_options o = options;
	o.tp = 4;
	o.exchange_us = 6;
	o.link_bandwidth = 1e7;
	struct rig *r = rig_open(o);
	double alone = step_us(40, 40 * 41 / 2, 40, 1, 40, 40) - 100 - 10 * LAYERS;
	double row_us = 2.0 * HIDDEN * 2 * 3 / 4 / 1e7 * 1e6,
		   want = alone / 4 + 100 + 10 * LAYERS + 6 * LAYERS + 2 * ((LAYERS - 1) * 40 + 1) * row_us;
	ck_assert_double_eq_tol(took_us(r, (struct piece[]){{0, 0, 40, 1}}, 1), want, 0.01);
	rig_close(r);
}

/* --- idle time ----------------------------------------------------------- */

/* An operation costs the weights that it reads, and for each row those that the row uses. */
TEST(test_experts_cost_what_they_read)
{
	enum { EXPERTS = 4, USED = 2 };
	struct rig *r = rig_open(options);
	struct kern_weight *down = NULL;
	struct piece many = {0, 0, 40, 0}, one = {1, 0, 1, 0};
	double before = took_us(r, &many, 1), before_one = took_us(r, &one, 1);
	ck_assert(!sim->weight_new(r->dev, KERN_BF16, EXPERTS, HIDDEN, FFN, &down));
	struct kern_op *op = add(r, KERN_OP_EXPERTS_DOWN, KERN_ROWS_ALL);
	op->experts_down.experts = (struct kern_experts){.experts = EXPERTS,
	                                                 .count = EXPERTS,
	                                                 .down = down};
	op->experts_down.ids = op->experts_down.weights = r->act.dev;
	op->experts_down.used = USED;
	op->experts_down.x = buffer(r, ACT, FFN);
	op->experts_down.y = buffer(r, SUM, HIDDEN);
	sim->program_destroy(&r->p);
	ck_assert_msg(!sim->program_new(r->dev, r->op, r->ops, &limits, &r->p), "%s",
	              sim->last_error(r->dev));
	double weights = 2.0 * EXPERTS * HIDDEN * FFN, each = 2.0 * USED * HIDDEN * FFN;
	ck_assert_double_eq_tol(took_us(r, &many, 1) - before, us(40 * each, weights), 0.01);
	ck_assert_double_eq_tol(took_us(r, &one, 1) - before_one, us(each, weights), 0.01);
	sim->program_destroy(&r->p);
	sim->weight_destroy(r->dev, &down);
	rig_close(r);
}

/* The host is busy beyond the end of what runs, a step or, with two in flight, the later one: the
 * next step does not begin before the host starts it. */
TEST_LOOP(test_a_busy_host_leaves_the_device_idle, 0, 2)
{
	enum { BUSY_US = 15000 };
	struct sim_options o = options;
	int overlap = _i;
	o.step_us = 2000;
	struct rig *r = rig_open(o);
	double step_us = took_us(r, (struct piece[]){{0, 0, 1, 1}}, 1);
	uint64_t begin = clock_ns();
	for (int i = 0; i < 1 + overlap; i++)
		ck_assert(!sim->run(r->stream, r->p, &r->batch));
	usleep(BUSY_US);
	ck_assert(!(overlap ? sim->sync_previous : sim->sync)(r->stream));
	ck_assert(!sim->run(r->stream, r->p, &r->batch));
	ck_assert(!sim->sync(r->stream));
	ck_assert_double_ge((double)(clock_ns() - begin) / 1e3, BUSY_US + step_us - 60);
	rig_close(r);
}

/* --- progress ------------------------------------------------------------ */

/* A layer's word is stored when the modelled device has that layer's KV, not before, and the
 * layers come one after the other. */
TEST(test_progress_in_time_order)
{
	struct rig *r = rig_open(options);
	lay_out(r, (struct piece[]){{3, 0, 64, 1}}, 1, 1);
	uint64_t begin = clock_ns();
	double first = us(2.0 * QKV * 64, 0),
		   layer = us(2.0 * (REST + QKV) * 64 + 4.0 * HEADS * DIM * 64 * 65 / 2, 0);
	ck_assert_msg(!sim->run(r->stream, r->p, &r->batch), "%s", sim->last_error(r->dev));
	ck_assert(!sim->sync(r->stream));
	ck_assert_uint_ge(clock_ns() - begin + 60000, counters(r).busy_ns);
	ck_assert_uint_eq(r->tellings, LAYERS);
	for (uint32_t l = 0; l < LAYERS; l++) {
		double due_us = 100 + 10 * (l + 1) + first + layer * l;
		ck_assert_msg((double)(r->told_ns[l] - begin) / 1e3 > due_us - 60,
		              "layer %u is told after %.0f us, the device has it after %.0f us", l,
		              (double)(r->told_ns[l] - begin) / 1e3, due_us);
		for (uint32_t k = 0; k < LAYERS; k++)
			ck_assert_uint_eq(r->told[l][k], k <= l ? 64 : 0);
	}
	rig_close(r);
}

/* --- refused ------------------------------------------------------------- */

TEST(test_operations_that_a_simulated_model_has_not)
{
	struct rig *r = rig_open(options);
	struct kern_program *p = NULL;
	add(r, KERN_OPS, KERN_ROWS_TAIL);
	ck_assert_int_eq(sim->program_new(r->dev, r->op, r->ops, &limits, &p), KERN_ENOTSUP);
	ck_assert_msg(strstr(sim->last_error(r->dev), "unknown") != NULL, "%s",
	              sim->last_error(r->dev));
	r->op[r->ops - 1] = (struct kern_op){
		.kind = KERN_OP_ATTENTION, .attention = {.kv = kv_of(r, 0), .heads = HEADS, .window = 512}};
	r->op[r->ops - 1].attention.q = buffer(r, Q, HIDDEN);
	r->op[r->ops - 1].attention.out = buffer(r, ATT, HEADS * DIM);
	ck_assert_int_eq(sim->program_new(r->dev, r->op, r->ops, &limits, &p), KERN_ENOTSUP);
	ck_assert_msg(strstr(sim->last_error(r->dev), "attention with a window of 512") != NULL, "%s",
	              sim->last_error(r->dev));
	r->op[r->ops - 1] = (struct kern_op){
		.kind = KERN_OP_KV_WRITE,
		.kv_write = {.kv = kv_of(r, 0), .k = buffer(r, K, HIDDEN), .v = buffer(r, V, HIDDEN)}};
	r->op[r->ops - 1].kv_write.kv.block_stride_bytes = 8;
	ck_assert_int_eq(sim->program_new(r->dev, r->op, r->ops, &limits, &p), KERN_EINVAL);
	ck_assert_msg(strstr(sim->last_error(r->dev), "16 bytes a token") != NULL, "%s",
	              sim->last_error(r->dev));
	ck_assert_ptr_null(p);
	rig_close(r);
}

/* One thing of an operation is changed at a time: it is refused by its name, and nothing of it is
 * looked at. */
#define REFUSED(I, CHANGE)                                                                       \
	do {                                                                                         \
		struct kern_op keep = r->op[I], *op = &r->op[I];                                         \
		CHANGE;                                                                                  \
		ck_assert_msg(sim->program_new(r->dev, r->op, r->ops, &l, &p) == KERN_EINVAL && !p,      \
		              "made: %s", #CHANGE);                                                      \
		ck_assert_msg(strstr(sim->last_error(r->dev), kern_op_name(op->kind)) != NULL, "%s: %s", \
		              #CHANGE, sim->last_error(r->dev));                                         \
		r->op[I] = keep;                                                                         \
	} while (0)

static size_t first_of(const struct rig *r, enum kern_op_kind kind)
{
	size_t i = 0;
	while (r->op[i].kind != kind)
		i++;
	return i;
}

TEST(test_operations_of_what_is_not_there)
{
	struct rig *r = rig_open(options);
	struct kern_limits l = limits;
	struct kern_program *p = NULL;
	struct kern_weight *w = NULL;
	size_t head = r->ops - 1, sample = r->ops;
	l.vocab = VOCAB;
	add(r, KERN_OP_SAMPLE, KERN_ROWS_TAIL)->sample.logits = (struct kern_tensor){r->logits.dev,
	                                                                             VOCAB, KERN_F32};
	r->op[sample].sample.results = r->logits.dev;
	ck_assert_msg(!sim->program_new(r->dev, r->op, r->ops, &l, &p), "%s", sim->last_error(r->dev));
	sim->program_destroy(&p);
	REFUSED(first_of(r, KERN_OP_EMBED), op->embed.w = NULL);
	REFUSED(first_of(r, KERN_OP_MATMUL), op->matmul.p[2].w = NULL);
	REFUSED(first_of(r, KERN_OP_MATMUL), op->matmul.products = KERN_PRODUCTS_MAX + 1);
	REFUSED(first_of(r, KERN_OP_ACT_MUL), op->act_mul.act = (enum kern_act)7);
	REFUSED(first_of(r, KERN_OP_NORM), op->rows = (enum kern_rows)2);
	REFUSED(first_of(r, KERN_OP_KV_WRITE), op->kv_write.kv.dtype = KERN_Q8_0);
	REFUSED(first_of(r, KERN_OP_KV_WRITE), op->kv_write.kv.base.v = 0);
	REFUSED(first_of(r, KERN_OP_KV_WRITE), op->kv_write.kv.kv_heads = 0);
	REFUSED(first_of(r, KERN_OP_ATTENTION), op->attention.heads = 3);
	REFUSED(head, op->matmul.p[0].y.at.v = 0);
	REFUSED(head, op->matmul.p[0].y.ld = VOCAB - 1);
	REFUSED(sample, op->sample.results.v = 0);
	REFUSED(sample, op->sample.logits.at.v = 0);
	REFUSED(sample, op->sample.logits.ld = VOCAB - 1);
	REFUSED(sample, op->rows = KERN_ROWS_ALL);
	REFUSED(sample, op->sample.kept.v += 2);
	ck_assert_int_eq(sim->weight_new(r->dev, KERN_DTYPE_COUNT, 1, 3, 32, &w), KERN_EINVAL);
	ck_assert_int_eq(sim->weight_new(r->dev, KERN_BF16, 0, 3, 32, &w), KERN_EINVAL);
	ck_assert_ptr_null(w);
	ck_assert_int_eq(sim->weight_new(r->dev, KERN_E4M3, 2, 3, 200, &w), 0);
	ck_assert_int_eq(sim->weight_load(r->dev, w, 1, NULL, 0), 0);
	sim->weight_destroy(r->dev, &w);
	rig_close(r);
}

static void set_rows(struct kern_batch *b)
{
	b->rows = ROWS + 1;
}
static void set_no_rows(struct kern_batch *b)
{
	b->rows = 0;
}
static void set_spans(struct kern_batch *b)
{
	b->spans = SPANS + 1;
}
static void set_tail(struct kern_batch *b)
{
	b->tail_rows = TAIL + 1;
}
static void set_words(struct kern_batch *b)
{
	b->words = 16384 / 4 + 1;
}
static void set_part(struct kern_batch *b)
{
	b->slots = b->words - 1;
}
static void set_far(struct kern_batch *b)
{
	b->tail_span = UINT32_MAX;
}

TEST(test_a_batch_beyond_the_limits)
{
	static void (*const set[])(struct kern_batch * b) = {set_rows, set_no_rows, set_spans,
	                                                     set_tail, set_words,   set_part,
	                                                     set_far};
	static const unsigned char untouched[LAYERS * BLOCKS * PIECE];
	struct rig *r = rig_open(options);
	for (size_t i = 0; i < sizeof set / sizeof *set; i++) {
		set[i](lay_out(r, (struct piece[]){{0, 0, 40, 1}}, 1, 0));
		ck_assert_msg(sim->run(r->stream, r->p, &r->batch) == KERN_EINVAL, "case %zu", i);
		ck_assert_str_ne(sim->last_error(r->dev), "");
	}
	ck_assert_uint_eq(counters(r).steps, 0);
	ck_assert_mem_eq(r->pool.host, untouched, sizeof untouched);
	run(r, (struct piece){0, 0, 40, 1});
	rig_close(r);
}

TEST(test_options_that_are_no_device)
{
	struct kern_device *dev = NULL;
	struct sim_options o = options;
	struct kern_config conf = {0};
	char text[200] = "";
	ck_assert_int_eq(sim->open(&conf, &dev, text, sizeof text), KERN_EINVAL);
	conf.options = &o;
	o.flops = 0;
	ck_assert_int_eq(sim->open(&conf, &dev, text, sizeof text), KERN_EINVAL);
	ck_assert(strstr(text, "simulated device") && !dev);
}

/* --- words --------------------------------------------------------------- */

static uint32_t drawn(const struct rig *r, uint32_t row)
{
	const float *l = (const float *)r->logits.host + (size_t)row * VOCAB;
	uint32_t best = 0;
	for (uint32_t i = 1; i < VOCAB; i++)
		best = l[i] > l[best] ? i : best;
	return best;
}

TEST(test_chunks_and_batches_do_not_show)
{
	struct rig *r = rig_open(options);
	run(r, (struct piece){5, 0, 60, 8});
	uint32_t want[8];
	for (uint32_t i = 0; i < 8; i++)
		want[i] = drawn(r, i);
	sim->mem_free(r->dev, &r->batch);
	ck_assert(!sim->mem_new(r->dev, KERN_MEM_PINNED, limits.batch_bytes, &r->batch));
	run(r, (struct piece){5, 0, 23, 1});
	run(r, (struct piece){5, 23, 29, 0});
	lay_out(r, (struct piece[]){{2, 0, 17, 2}, {5, 52, 8, 6}}, 2, 0);
	ck_assert(!sim->run(r->stream, r->p, &r->batch) && !sim->sync(r->stream));
	for (uint32_t i = 0; i < 6; i++)
		ck_assert_uint_eq(drawn(r, 2 + i), want[2 + i]);
	ck_assert_uint_eq(counters(r).kv_faults, 0);
	rig_close(r);
}

/* Two programs that write the same logits: what one left above the floor is gone when the other
 * has run. */
TEST(test_programs_share_their_logits)
{
	struct rig *r = rig_open(options);
	struct kern_program *two[2] = {r->p, NULL};
	ck_assert(!sim->program_new(r->dev, r->op, r->ops, &limits, &two[1]));
	for (uint32_t i = 0; i < 12; i++) {
		r->p = two[i % 2];
		run(r, (struct piece){i, 0, 10 + i, 3});
		for (uint32_t row = 0; row < 3; row++) {
			unsigned above = 0;
			for (uint32_t id = 0; id < VOCAB; id++)
				above += ((const float *)r->logits.host)[row * VOCAB + id] != 0;
			ck_assert_uint_ge(above, 2);
			ck_assert_uint_le(above, 5);
		}
	}
	sim->program_destroy(&two[0]);
	rig_close(r);
}

/* A word of the context that is not what was written: the run fails and says where, nothing
 * after it is told. */
TEST(test_wrong_kv)
{
	struct rig *r = rig_open(options);
	run(r, (struct piece){1, 0, 40, 1});
	/* layer 1, third block of the sequence */
	((uint64_t *)r->pool.host)[((size_t)1 * BLOCKS + 16 + 2) * PIECE / 8 + 6] ^= 1;
	ck_assert_int_eq(run_rc(r, (struct piece){1, 40, 1, 1}), KERN_EDEVICE);
	ck_assert_msg(strstr(sim->last_error(r->dev), "KV fault: layer 1, block 18 ") != NULL, "%s",
	              sim->last_error(r->dev));
	ck_assert_uint_eq(counters(r).kv_faults, 1);
	rig_close(r);
}

/* --- memory -------------------------------------------------------------- */

TEST(test_kinds_of_memory)
{
	struct rig *r = rig_open(options);
	struct kern_mem mapped = {0}, pinned = {0}, none = {0};
	uint32_t in[4] = {1, 2, 3, 4}, out[4] = {0};
	int fd = -1;
	ck_assert_ptr_null(r->act.host);
	ck_assert(r->batch.host && !(r->batch.dev.v % 64));
	ck_assert(!sim->upload(r->stream, kern_at(r->act.dev, 64), in, sizeof in) &&
	          !sim->download(r->stream, out, kern_at(r->act.dev, 64), sizeof out));
	ck_assert_mem_eq(in, out, sizeof in);
	ck_assert(!sim->mem_share(r->dev, &r->board, &fd));
	ck_assert(!sim->mem_map(r->dev, fd, 4096, &mapped) && mapped.host != r->board.host);
	close(fd);
	*word(r, 2) = 77;
	ck_assert_uint_eq(((uint64_t *)mapped.host)[2], 77);
	ck_assert_int_ne(sim->mem_share(r->dev, &r->batch, &fd), 0);
	ck_assert(!sim->mem_pin(r->dev, in, sizeof in, &pinned));
	ck_assert(pinned.host == in && pinned.kind == KERN_MEM_PINNED);
	sim->mem_free(r->dev, &pinned);
	sim->mem_free(r->dev, &mapped);
	sim->mem_free(r->dev, &none);
	ck_assert(!mapped.host && in[3] == 4);
	rig_close(r);
}

static size_t in_use(void)
{
	struct mallinfo2 m = mallinfo2();
	return m.uordblks + m.hblkhd + m.arena;
}

TEST(test_a_replay_allocates_nothing)
{
	struct sim_options o = options;
	o.time_scale = 0;
	struct rig *r = rig_open(o);
	size_t before = in_use();
	for (uint32_t i = 0; i < 500; i++) {
		ck_assert(!lay_out(r, (struct piece[]){{0, i, 1, 1}, {4, i, 1, 1}, {8, i, 1, 0}}, 3, 0)
		               ->progress);
		int rc = sim->run(r->stream, r->p, &r->batch);
		ck_assert_msg(!rc && !sim->sync(r->stream), "%s", sim->last_error(r->dev));
	}
	ck_assert_uint_eq(in_use(), before);
	rig_close(r);
}
