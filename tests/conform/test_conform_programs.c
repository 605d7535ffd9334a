/* test_conform_programs.c - programs of many operations: a whole step of a model, and random
 * programs. What one operation writes another takes, so a device that begins one too early, or
 * keeps what is stale, gives other bits than a program for each operation does. */
/* run: threads long */
#include "tests/conform/conform.h"
#include "tests/unit/skip.h"

#include <math.h>
#include <string.h>

enum { DIM = 32, FFN = 80, HEADS = 4, KV_HEADS = 2, HEAD_DIM = 8 };

/* --- a step of a model --------------------------------------------------- */

enum { H, N, Q, K, V, ATT, O, GATE, UP, ACT, T, LOGITS, STEP_FIELDS };
static const struct {
	const char *name;
	uint32_t columns;
} step_fields[STEP_FIELDS] = {
	{"h", DIM},
	{"n", DIM},
	{"q", HEADS *HEAD_DIM},
	{"k", KV_HEADS *HEAD_DIM},
	{"v", KV_HEADS *HEAD_DIM},
	{"att", HEADS *HEAD_DIM},
	{"o", DIM},
	{"gate", FFN},
	{"up", FFN},
	{"act", FFN},
	{"t", DIM},
	{"logits", VOCABULARY},
};
static const struct {
	enum kern_dtype type;
	uint32_t n, k;
} step_matrices[] = {
	{KERN_BF16, VOCABULARY, DIM},
	{KERN_Q8_0, HEADS *HEAD_DIM, DIM},
	{KERN_Q4_0, KV_HEADS *HEAD_DIM, DIM},
	{KERN_BF16, KV_HEADS *HEAD_DIM, DIM},
	{KERN_Q4_1, DIM, HEADS *HEAD_DIM},
	{KERN_Q5_0, FFN, DIM},
	{KERN_F16, FFN, DIM},
	{KERN_F32, DIM, FFN},
};
enum { W_EMBED, W_Q, W_K, W_V, W_O, W_GATE, W_UP, W_DOWN };

static struct kern_op op_matmul(const struct live *l, uint32_t x, uint32_t products,
                                const uint32_t *w, const uint32_t *y)
{
	struct kern_op op = {.kind = KERN_OP_MATMUL};
	op.matmul.x = l->field[x];
	op.matmul.products = products;
	for (uint32_t i = 0; i < products; i++)
		op.matmul.p[i] = (struct kern_product){l->w[w[i]], {0}, l->field[y[i]]};
	return op;
}

static struct kern_op op_norm(const struct live *l, uint32_t y, uint32_t x, int a)
{
	struct kern_op op = {.kind = KERN_OP_NORM};
	op.norm.y = l->field[y];
	op.norm.x = l->field[x];
	op.norm.a = a < 0 ? (struct kern_tensor){0} : l->field[a];
	op.norm.w = l->constant[0];
	op.norm.dim = DIM;
	op.norm.eps = 1e-5f;
	return op;
}

/* Of the same frequencies. */
static const struct kern_rope ropes[] = {{KERN_ROPE_HALF, HEAD_DIM, 1, {0}},
                                         {KERN_ROPE_INTERLEAVED, HEAD_DIM, 1, {0}},
                                         {KERN_ROPE_HALF, HEAD_DIM / 2, 1.25f, {0}},
                                         {KERN_ROPE_HALF, HEAD_DIM, 1.25f, {0}}};

static struct kern_op op_rope(const struct live *l, uint32_t x, uint32_t heads,
                              const struct kern_rope *rope)
{
	struct kern_op op = {.kind = KERN_OP_ROPE};
	op.rope.x = l->field[x];
	op.rope.rope = *rope;
	op.rope.rope.inv_freq = l->constant[1];
	op.rope.heads = heads;
	op.rope.head_dim = HEAD_DIM;
	return op;
}

/* Up to the KV: what the history needs. */
static uint32_t step_to_kv(const struct job *j, const struct live *l, struct kern_op *op)
{
	(void)j;
	uint32_t n = 0;
	op[n].kind = KERN_OP_EMBED;
	op[n].embed.y = l->field[H];
	op[n++].embed.w = l->w[W_EMBED];
	op[n++] = op_norm(l, N, H, -1);
	op[n++] = op_matmul(l, N, 3, (const uint32_t[]){W_Q, W_K, W_V}, (const uint32_t[]){Q, K, V});
	op[n].kind = KERN_OP_HEAD_NORM;
	op[n].head_norm.x = l->field[Q];
	op[n].head_norm.w = l->constant[0];
	op[n].head_norm.heads = HEADS;
	op[n].head_norm.head_dim = HEAD_DIM;
	op[n++].head_norm.eps = 1e-5f;
	op[n++] = op_rope(l, Q, HEADS, &ropes[0]);
	op[n++] = op_rope(l, K, KV_HEADS, &ropes[0]);
	op[n].kind = KERN_OP_KV_WRITE;
	op[n].kv_write.kv = l->kv;
	op[n].kv_write.k = l->field[K];
	op[n++].kv_write.v = l->field[V];
	op[n++].kind = KERN_OP_PROGRESS;
	return n;
}

static uint32_t step_record(const struct job *j, const struct live *l, struct kern_op *op)
{
	uint32_t n = step_to_kv(j, l, op);
	op[n].kind = KERN_OP_ATTENTION;
	op[n].attention.kv = l->kv;
	op[n].attention.out = l->field[ATT];
	op[n].attention.q = l->field[Q];
	op[n].attention.heads = HEADS;
	op[n++].attention.scale = 0.35f;
	op[n++] = op_matmul(l, ATT, 1, &(const uint32_t){W_O}, &(const uint32_t){O});
	op[n].kind = KERN_OP_GATHER;
	op[n].gather.tensors = 1;
	op[n++].gather.t[0] = (struct kern_gathered){
		.x = l->field[O], .parts = 1, .dim = (uint32_t)l->field[O].ld, .unit = 16};
	op[n++].kind = KERN_OP_BARRIER;
	op[n++] = op_norm(l, N, H, O);
	op[n++] = op_matmul(l, N, 2, (const uint32_t[]){W_GATE, W_UP}, (const uint32_t[]){GATE, UP});
	op[n].kind = KERN_OP_ACT_MUL;
	op[n].act_mul.y = l->field[ACT];
	op[n].act_mul.gate = l->field[GATE];
	op[n].act_mul.up = l->field[UP];
	op[n++].act_mul.dim = FFN;
	op[n++] = op_matmul(l, ACT, 1, &(const uint32_t){W_DOWN}, &(const uint32_t){O});
	op[n++] = op_norm(l, N, H, O);
	op[n].kind = KERN_OP_GATHER_ROWS;
	op[n].rows = KERN_ROWS_TAIL;
	op[n].gather_rows.y = l->field[T];
	op[n].gather_rows.x = l->field[N];
	op[n++].gather_rows.dim = DIM;
	op[n] = op_matmul(l, T, 1, &(const uint32_t){W_EMBED}, &(const uint32_t){LOGITS});
	op[n++].rows = KERN_ROWS_TAIL;
	op[n].kind = KERN_OP_SCALE;
	op[n].rows = KERN_ROWS_TAIL;
	op[n].scale.y = op[n].scale.x = l->field[LOGITS];
	op[n].scale.factor = 0.1f;
	op[n++].scale.dim = VOCABULARY;
	return n;
}

static struct job *step_job(const struct sequence *seq, uint32_t block_tokens, enum kern_dtype kv)
{
	float *inv_freq = conform_alloc(HEAD_DIM / 2, sizeof *inv_freq);
	struct job *j = job_new(KERN_OP_MATMUL, world_new(seq, block_tokens),
	                        "a step of a model, KV of %s", kern_dtype_name(kv));
	job_kv(j, kv, KV_HEADS, HEAD_DIM, 0);
	for (uint32_t f = 0; f < STEP_FIELDS; f++)
		job_field(j, step_fields[f].name, OUT, f < T ? KERN_ROWS_ALL : KERN_ROWS_TAIL, 1,
		          step_fields[f].columns, 0);
	for (uint32_t i = 0; i < HEAD_DIM / 2; i++)
		inv_freq[i] = powf(10000, -2.0f * (float)i / HEAD_DIM);
	job_constant(j, rand_floats(DIM, 1), DIM * sizeof(float));
	job_constant(j, inv_freq, HEAD_DIM / 2 * sizeof *inv_freq);
	job_matrices(j, LEN(step_matrices));
	for (uint32_t i = 0; i < LEN(step_matrices); i++)
		job_matrix(j, i, step_matrices[i].type, step_matrices[i].n, step_matrices[i].k);
	j->record = step_record;
	j->record_history = step_to_kv;
	return j;
}

CONFORM_TEST(step_of_a_model)
{
	static const struct {
		struct sequence seq[SEQUENCES];
		uint32_t block_tokens;
		enum kern_dtype kv;
	} cases[] = {
		{{{0, 1}}, 16, KERN_F32},
		{{{0, 70}, {9, 1}, {300, 5}}, 16, KERN_BF16},
		{{{0, 2}, {0, 3}, {5, 1}, {17, 1}}, 64, KERN_F8},
		{{{100, 130}, {1, 1}}, 7, KERN_I8},
		{{{0, 31}, {500, 2}}, 16, KERN_F16},
	};
	for (uint32_t i = 0; i < LEN(cases); i++) {
		size_t mark = conform_mark();
		job_check(step_job(cases[i].seq, cases[i].block_tokens, cases[i].kv));
		conform_release(mark);
	}
}

/* --- random programs ----------------------------------------------------- */

/* Fields 0 to 4 have rows for all, 5 to 7 for the tail; a field of ids and one of weights. */
enum { ALL_FIELDS = 5, TAIL_FIELDS = 3, PROGRAM_OPS = 48, RANDOM_OPS = 28, EXPERTS = 6, USED = 2 };
enum { R_IDS = ALL_FIELDS + TAIL_FIELDS, R_WEIGHTS, R_LOGITS };
enum {
	R_SQUARE,
	R_NARROW,
	R_FLOAT,
	R_SQUARE_2,
	R_HEADS,
	R_EXPERTS = R_HEADS + HEADS,
	R_ROUTER = R_EXPERTS + 3 * EXPERTS,
	R_MATRICES
};

struct random_op {
	uint32_t kind, a, b, c;
	bool tail, flag;
};
struct random_program {
	struct random_op op[PROGRAM_OPS];
	uint32_t ops;
};

/* Three different fields of a kind; often the one that is read, b, or changed in place, a, is
 * what the operation before wrote. */
static void three(struct random_op *op, const struct random_op *before)
{
	uint32_t n = op->tail ? TAIL_FIELDS : ALL_FIELDS, base = op->tail ? ALL_FIELDS : 0,
			 first = rand_below(n), step = 1 + rand_below(n > 3 ? 2 : 1);
	uint32_t written = before && before->kind == KERN_OP_NORM && before->flag ? before->b
	                   : before                                               ? before->a
	                                                                          : UINT32_MAX;
	bool in_place = op->kind == KERN_OP_HEAD_NORM || op->kind == KERN_OP_ROPE ||
	                (op->kind == KERN_OP_SCALE && op->flag);
	if (written - base < n && rand_below(3))
		first = (written - base + n - (in_place ? 0 : step)) % n;
	op->a = base + first;
	op->b = base + (first + step) % n;
	op->c = base + (first + 2 * step) % n;
}

static struct random_program *program_random(void)
{
	static const uint32_t kinds[] = {KERN_OP_SCALE,       KERN_OP_NORM,      KERN_OP_NORM,
	                                 KERN_OP_HEAD_NORM,   KERN_OP_MATMUL,    KERN_OP_MATMUL,
	                                 KERN_OP_ROPE,        KERN_OP_ACT_MUL,   KERN_OP_HEADS_MATMUL,
	                                 KERN_OP_GATHER_ROWS, KERN_OP_ATTENTION, KERN_OP_EXPERTS_DOWN,
	                                 KERN_OP_EMBED};
	struct random_program *p = conform_alloc(1, sizeof *p);
	bool written = false;
	p->ops = RANDOM_OPS;
	for (uint32_t i = 0; i < p->ops; i++) {
		struct random_op *op = &p->op[i];
		op->kind = kinds[rand_below(LEN(kinds))];
		op->tail = rand_below(3) == 0 && op->kind != KERN_OP_ROPE &&
		           op->kind != KERN_OP_EXPERTS_DOWN && op->kind != KERN_OP_EMBED;
		op->flag = rand_bits() % 2;
		three(op, i ? op - 1 : NULL);
		if (op->kind == KERN_OP_ATTENTION && !written) {
			/* KV is written once, and read after it */
			op->kind = KERN_OP_KV_WRITE;
			op->tail = false;
			three(op, NULL);
			written = true;
		}
	}
	return p;
}

/* The experts of a row in three operations; the others are one. */
static uint32_t experts_ops(const struct live *l, const struct random_op *r, struct kern_op *op)
{
	struct kern_experts e = {.experts = EXPERTS,
	                         .count = EXPERTS,
	                         .gate = l->w[R_EXPERTS],
	                         .up = l->w[R_EXPERTS + EXPERTS],
	                         .down = l->w[R_EXPERTS + 2 * EXPERTS]};
	op[0] = op_matmul(l, r->b, 1, &(const uint32_t){R_ROUTER}, &(const uint32_t){R_LOGITS});
	op[1].kind = KERN_OP_ROUTE;
	op[1].route.router = (struct kern_router){
		.experts = EXPERTS, .used = USED, .normalise = 1, .scale = 1};
	op[1].route.ids = l->field[R_IDS].at;
	op[1].route.weights = l->field[R_WEIGHTS].at;
	op[1].route.logits = l->field[R_LOGITS];
	op[2].kind = KERN_OP_EXPERTS_ACT;
	op[2].experts_act.experts = e;
	op[2].experts_act.ids = l->field[R_IDS].at;
	op[2].experts_act.used = USED;
	op[2].experts_act.x = l->field[r->b];
	op[2].experts_act.y = l->field[R_LOGITS + 1];
	op[3].kind = KERN_OP_EXPERTS_DOWN;
	op[3].experts_down.experts = e;
	op[3].experts_down.ids = l->field[R_IDS].at;
	op[3].experts_down.weights = l->field[R_WEIGHTS].at;
	op[3].experts_down.used = USED;
	op[3].experts_down.add = r->flag;
	op[3].experts_down.x = l->field[R_LOGITS + 1];
	op[3].experts_down.y = l->field[r->a];
	return 4;
}

static uint32_t random_op_record(const struct live *l, const struct random_op *r,
                                 struct kern_op *op)
{
	switch (r->kind) {
	case KERN_OP_SCALE:
		op->scale.y = l->field[r->a];
		op->scale.x = l->field[r->flag ? r->a : r->b];
		op->scale.factor = 0.7f;
		op->scale.dim = DIM;
		break;
	case KERN_OP_NORM:
		*op = op_norm(l, r->flag ? r->b : r->a, r->b, r->c % 2 ? (int)r->c : -1);
		break;
	case KERN_OP_HEAD_NORM:
		op->head_norm.x = l->field[r->a];
		op->head_norm.w = l->constant[0];
		op->head_norm.heads = HEADS;
		op->head_norm.head_dim = HEAD_DIM;
		op->head_norm.eps = 1e-5f;
		break;
	case KERN_OP_MATMUL:
		*op = op_matmul(l, r->b, r->flag ? 2 : 1,
		                (const uint32_t[]){r->flag ? R_SQUARE : R_SQUARE + r->c % 3, R_SQUARE_2},
		                (const uint32_t[]){r->a, r->c});
		break;
	case KERN_OP_ROPE: *op = op_rope(l, r->a, HEADS, &ropes[r->c % LEN(ropes)]); break;
	case KERN_OP_ACT_MUL:
		op->act_mul.y = l->field[r->a];
		op->act_mul.gate = l->field[r->b];
		op->act_mul.up = l->field[r->c];
		op->act_mul.dim = DIM;
		break;
	case KERN_OP_HEADS_MATMUL:
		op->heads_matmul.y = l->field[r->a];
		op->heads_matmul.x = l->field[r->b];
		op->heads_matmul.w = l->w[R_HEADS];
		op->heads_matmul.heads = HEADS;
		op->heads_matmul.tail = 2;
		break;
	case KERN_OP_GATHER_ROWS:
		op->gather_rows.y = l->field[r->tail ? r->a : ALL_FIELDS + r->a % TAIL_FIELDS];
		op->gather_rows.x = l->field[r->b % ALL_FIELDS];
		op->gather_rows.dim = DIM;
		break;
	case KERN_OP_EMBED:
		op->embed.y = l->field[r->a];
		op->embed.w = l->w[R_SQUARE];
		op->embed.first = 20;
		break;
	case KERN_OP_KV_WRITE:
		op->kv_write.kv = l->kv;
		op->kv_write.k = l->field[r->b];
		op->kv_write.v = l->field[r->c];
		break;
	case KERN_OP_ATTENTION:
		op->attention.kv = l->kv;
		op->attention.out = l->field[r->a];
		op->attention.q = l->field[r->b];
		op->attention.heads = HEADS;
		op->attention.window = r->flag ? 9 : 0;
		op->attention.scale = 0.35f;
		break;
	default: return experts_ops(l, r, op);
	}
	op->kind = (enum kern_op_kind)r->kind;
	op->rows = r->tail || r->kind == KERN_OP_GATHER_ROWS ? KERN_ROWS_TAIL : KERN_ROWS_ALL;
	return 1;
}

static uint32_t random_record(const struct job *j, const struct live *l, struct kern_op *op)
{
	const struct random_program *p = j->shape;
	uint32_t n = 0;
	for (uint32_t i = 0; i < p->ops && n + 4 <= OPS_MAX; i++)
		n += random_op_record(l, &p->op[i], op + n);
	return n;
}

static struct job *random_job(const char *name, uint32_t number, const struct random_program *p)
{
	static const struct {
		struct sequence seq[SEQUENCES];
	} worlds[] = {{{{0, 40}}}, {{{0, 3}, {0, 1}}}, {{{0, 90}, {0, 30}, {0, 2}}}, {{{0, 1}}}};
	struct job *j = job_new(KERN_OP_MATMUL, world_new(worlds[number % LEN(worlds)].seq, 16),
	                        "%s %u", name, number);
	static const char *const names[] = {"a", "b", "c", "d", "e", "tail a", "tail b", "tail c"};
	for (uint32_t f = 0; f < ALL_FIELDS + TAIL_FIELDS; f++)
		job_field(j, names[f], INOUT, f < ALL_FIELDS ? KERN_ROWS_ALL : KERN_ROWS_TAIL, 1, DIM, 2);
	j->field[job_field(j, "ids", OUT, KERN_ROWS_ALL, 1, USED, 0)].dense = true;
	j->field[R_IDS].type = (enum kern_dtype)TYPE_U32;
	j->field[job_field(j, "weights", OUT, KERN_ROWS_ALL, 1, USED, 0)].dense = true;
	job_field(j, "router's logits", OUT, KERN_ROWS_ALL, 1, EXPERTS, 0);
	job_field(j, "experts' act", OUT, KERN_ROWS_ALL, USED, 16, 0);
	job_kv(j, KERN_BF16, HEADS, HEAD_DIM, 0);
	job_constant(j, rand_floats(DIM, 1), DIM * sizeof(float));
	job_constant(j, rand_floats(HEAD_DIM / 2, 1), HEAD_DIM / 2 * sizeof(float));
	job_matrices(j, R_MATRICES);
	job_matrix(j, R_SQUARE, KERN_BF16, DIM, DIM);
	job_matrix(j, R_SQUARE_2, KERN_Q4_1, DIM, DIM);
	job_matrix(j, R_NARROW, KERN_BF16, DIM, DIM / 2);
	job_matrix(j, R_FLOAT, KERN_F32, DIM, DIM);
	for (uint32_t h = 0; h < HEADS; h++)
		job_matrix_of(j, R_HEADS + h, h ? 0 : HEADS, KERN_BF16, HEAD_DIM - 2, HEAD_DIM - 2);
	for (uint32_t e = 0; e < 3 * EXPERTS; e++)
		job_matrix_of(j, R_EXPERTS + e, e % EXPERTS ? 0 : EXPERTS,
		              e < 2 * EXPERTS ? KERN_Q4_1 : KERN_F32, e < 2 * EXPERTS ? 16 : DIM,
		              e < 2 * EXPERTS ? DIM : 16);
	job_matrix(j, R_ROUTER, KERN_BF16, EXPERTS, DIM);
	j->mixes = true;
	j->shape = p ? p : program_random();
	j->record = random_record;
	return j;
}

CONFORM_TEST(random_programs)
{
	enum { PROGRAMS = 24 };
	for (uint32_t i = 0; i < PROGRAMS; i++) {
		size_t mark = conform_mark();
		job_check(random_job("random program", i, NULL));
		conform_release(mark);
	}
}

/* Also where only some jobs are checked. */
static void every_job(struct job *j)
{
	unsigned thin = conform_thin;
	conform_thin = 1;
	job_check(j);
	conform_thin = thin;
}

/* What reads the rows that a norm or an activation has just written, and what only seems to. Of a
 * product, c is one more output or, without flag, the matrix: 0 for R_SQUARE, 1 R_NARROW, 2
 * R_FLOAT; of a norm, an odd c is added. */
static const struct random_program readers = {
	{
#define NORM(Y, X)                          \
	{                                       \
		KERN_OP_NORM, Y, X, 0, false, false \
	}
#define TAIL_NORM(Y, X)                    \
	{                                      \
		KERN_OP_NORM, Y, X, 6, true, false \
	}
#define MATMUL(Y, X, C)                       \
	{                                         \
		KERN_OP_MATMUL, Y, X, C, false, false \
	}
#define TAIL_MATMUL(Y, X)                    \
	{                                        \
		KERN_OP_MATMUL, Y, X, 6, true, false \
	}
#define MATMUL_2(Y, X, Y_2)                    \
	{                                          \
		KERN_OP_MATMUL, Y, X, Y_2, false, true \
	}
		/* 0 is not the 0 of before, nor that of the program for more rows */
		MATMUL(2, 0, 0),
		NORM(0, 1),
		MATMUL(3, 0, 0),
		NORM(0, 3),
		MATMUL(2, 0, 1),
		MATMUL(3, 0, 2),
		MATMUL(4, 0, 0),
		NORM(0, 4),
		MATMUL(2, 4, 0),
		MATMUL(3, 0, 0),
		{KERN_OP_NORM, 0, 3, 2, false, true},
		MATMUL(2, 3, 0), /* in place */
		{KERN_OP_NORM, 0, 2, 3, false, true},
		MATMUL(1, 3, 0),
		MATMUL(4, 2, 0),
		TAIL_NORM(5, 6),
		TAIL_MATMUL(7, 5),
		TAIL_NORM(5, 7),
		MATMUL(2, 1, 0),
		TAIL_MATMUL(6, 5),
		{KERN_OP_ACT_MUL, 0, 1, 2, false, false},
		MATMUL_2(3, 0, 4),
		/* the second type of weights needs more of x */
		MATMUL(2, 3, 0),
		MATMUL_2(0, 3, 4),
		NORM(0, 4),
		MATMUL(2, 0, 0),
		MATMUL_2(3, 0, 4),
		/* by then 0 is another product's */
		NORM(0, 3),
		MATMUL(2, 0, 0),
		MATMUL(0, 4, 2),
		MATMUL(3, 0, 0),
		NORM(0, 3),
		MATMUL(2, 0, 0),
		{KERN_OP_SCALE, 0, 0, 0, false, true},
		MATMUL(4, 0, 0),
		NORM(0, 4),
		{KERN_OP_SCALE, 0, 0, 0, false, true},
		MATMUL(3, 0, 0),
		NORM(0, 3),
		{KERN_OP_EXPERTS_DOWN, 2, 0, 0, false, false},
		MATMUL(4, 0, 0),
		NORM(0, 4),
		{KERN_OP_EXPERTS_DOWN, 0, 0, 0, false, true},
		MATMUL(3, 0, 0),
	},
	44};

CONFORM_TEST(rows_just_written)
{
	every_job(random_job("what reads rows just written", 2, &readers));
}

/* In one program, or in one for each operation. */
static void run_ops(const struct device *dev, const struct kern_op *op, uint32_t n, bool apart,
                    const struct kern_limits *limits, const struct kern_mem *batch)
{
	uint32_t each = apart ? 1 : n;
	for (uint32_t i = 0; i < n; i += each) {
		struct kern_program *p = program_get(dev, op + i, each, limits);
		program_run(dev, p, batch);
		dev->ops->program_destroy(&p);
	}
}

/* A norm of some rows, a product of these, then one of others: the same bits as a program for
 * each. */
CONFORM_TEST(other_rows)
{
	enum { ROWS = 9, TAIL = 3 };
	const struct sequence seq[SEQUENCES] = {{0, ROWS}};
	const struct world *w = world_new(seq, 16);
	const struct step st = {1, {{0, 0, ROWS, TAIL}}, false, false};
	const struct kern_limits limits = world_limits(w);
	EACH_TARGET(dev, 1)
	{
		if (dev->target->precision.rows_vary) {
			SKIP_PART("%s: a row's bits may depend on its batch", dev->target->name);
			continue;
		}
		struct kern_weight *weight;
		struct kern_mem batch = batch_get(dev, w, &st, NULL),
						mem = mem_get(dev, KERN_MEM_DEVICE, 4 * ROWS * DIM * sizeof(float));
		struct kern_tensor x = {mem.dev, DIM, KERN_F32},
						   y = {kern_at(x.at, ROWS * DIM * sizeof(float)), DIM, KERN_F32};
		struct kern_tensor z = {kern_at(y.at, ROWS * DIM * sizeof(float)), DIM, KERN_F32},
						   u = {kern_at(z.at, ROWS * DIM * sizeof(float)), DIM, KERN_F32};
		float *given = rand_floats(4 * ROWS * DIM, 1), got[2][ROWS * DIM];
		weight = weight_get(dev, KERN_BF16, 1, DIM, DIM, rand_weight(KERN_BF16, DIM, DIM));
		for (uint32_t i = 0; i < 4; i++) {
			/* the tail first, or last; one program, or one for each operation */
			enum kern_rows first = i / 2 ? KERN_ROWS_ALL : KERN_ROWS_TAIL,
						   last = i / 2 ? KERN_ROWS_TAIL : KERN_ROWS_ALL;
			struct kern_op op[3] = {
				{.kind = KERN_OP_NORM,
			     .rows = first,
			     .norm = {y, x, {.at = {0}}, x.at, DIM, 1e-5f}},
				{.kind = KERN_OP_MATMUL, .rows = first, .matmul = {y, 1, {{weight, {0}, u}}}},
				{.kind = KERN_OP_MATMUL, .rows = last, .matmul = {y, 1, {{weight, {0}, z}}}}};
			mem_put(dev, mem.dev, given, 4 * ROWS * DIM * sizeof(float));
			run_ops(dev, op, LEN(op), i % 2, &limits, &batch);
			mem_take(dev, got[i % 2], z.at, sizeof got[0]);
			EXPECT(i % 2 == 0 || !memcmp(got[0], got[1], sizeof got[0]),
			       "%s: other bits than a program for each operation has",
			       i / 2 ? "all, then the tail" : "the tail, then all");
		}
		dev->ops->weight_destroy(dev->d, &weight);
		dev->ops->mem_free(dev->d, &batch);
		dev->ops->mem_free(dev->d, &mem);
	}
}

/* An activation of more columns than a block has threads, then the product that reads it: the same
 * bits as a program for each. */
CONFORM_TEST(a_wide_activation)
{
	enum { ROWS = 3, ACT_DIM = 1100, OUT_AT = 3 * ROWS * ACT_DIM, FLOATS = OUT_AT + ROWS * DIM };
	const struct sequence seq[SEQUENCES] = {{0, ROWS}};
	const struct world *w = world_new(seq, 16);
	const struct step st = {1, {{0, 0, ROWS, 1}}, false, false};
	const struct kern_limits limits = world_limits(w);
	EACH_TARGET(dev, 1)
	{
		if (dev->target->precision.rows_vary) {
			SKIP_PART("%s: a row's bits may depend on its batch", dev->target->name);
			continue;
		}
		struct kern_weight *weight;
		struct kern_mem batch = batch_get(dev, w, &st, NULL),
						mem = mem_get(dev, KERN_MEM_DEVICE, FLOATS * sizeof(float));
		struct kern_tensor gate = {mem.dev, ACT_DIM, KERN_F32},
						   up = {kern_at(gate.at, ROWS * ACT_DIM * sizeof(float)), ACT_DIM,
		                         KERN_F32},
						   act = {kern_at(up.at, ROWS * ACT_DIM * sizeof(float)), ACT_DIM,
		                          KERN_F32},
						   y = {kern_at(mem.dev, OUT_AT * sizeof(float)), DIM, KERN_F32};
		struct kern_op op[2] = {{.kind = KERN_OP_ACT_MUL,
		                         .act_mul = {act, gate, up, KERN_SILU, ACT_DIM}},
		                        {.kind = KERN_OP_MATMUL, .matmul = {act, 1, {{NULL, {0}, y}}}}};
		float *given = rand_floats(FLOATS, 1), got[2][ROWS * DIM];
		weight = weight_get(dev, KERN_BF16, 1, DIM, ACT_DIM, rand_weight(KERN_BF16, DIM, ACT_DIM));
		op[1].matmul.p[0].w = weight;
		for (uint32_t apart = 0; apart < 2; apart++) {
			mem_put(dev, mem.dev, given, FLOATS * sizeof(float));
			run_ops(dev, op, LEN(op), apart, &limits, &batch);
			mem_take(dev, got[apart], y.at, sizeof got[0]);
		}
		EXPECT(!memcmp(got[0], got[1], sizeof got[0]),
		       "other bits than a program for each operation has");
		dev->ops->weight_destroy(dev->d, &weight);
		dev->ops->mem_free(dev->d, &batch);
		dev->ops->mem_free(dev->d, &mem);
	}
}

/* --- operations on heads, one after the other ---------------------------- */

/* Heads of one row, from column `at` on. KV_WRITE: at is K, `other` V; ROPE: other is which of
 * the ropes. */
struct head_op {
	enum kern_op_kind kind;
	uint32_t at, heads, dim, other;
};
enum { HEAD_OPS = 9, HEAD_PROGRAMS = 16, WIDE = 96, LATENT = 16, LATENT_DIM = LATENT + HEAD_DIM };
/* Sequences of operations, each with attention behind it, which shows what KV holds. */
struct head_programs {
	const char *name;
	bool latent;
	struct head_op op[HEAD_PROGRAMS][HEAD_OPS];
};
#define HNORM(AT, HEADS_, DIM_)                \
	{                                          \
		KERN_OP_HEAD_NORM, AT, HEADS_, DIM_, 0 \
	}
#define TURN(AT, HEADS_, DIM_, ROPE)         \
	{                                        \
		KERN_OP_ROPE, AT, HEADS_, DIM_, ROPE \
	}
#define STORE(K_, V_)                  \
	{                                  \
		KERN_OP_KV_WRITE, K_, 0, 0, V_ \
	}

static const struct head_programs head_programs[] = {
	{"heads",
     false,
     {
		 {TURN(0, 6, 8, 0), STORE(32, 48)},
		 {HNORM(0, 4, 8), HNORM(32, 2, 8), TURN(0, 6, 8, 1), STORE(32, 48)},
		 {HNORM(0, 4, 8), HNORM(32, 2, 8), TURN(0, 4, 8, 2), TURN(32, 2, 8, 2), STORE(32, 48)},
		 {TURN(0, 6, 8, 0), HNORM(0, 4, 8), HNORM(32, 2, 8), STORE(32, 48)},
		 {STORE(32, 48), TURN(0, 6, 8, 0), HNORM(32, 2, 8)},
		 {HNORM(48, 2, 8), STORE(48, 32), TURN(32, 4, 8, 3)},
		 /* ropes that differ */
		 {TURN(0, 4, 8, 0), TURN(0, 4, 8, 3), TURN(0, 4, 8, 1), STORE(0, 8)},
		 {HNORM(0, 4, 8), TURN(0, 4, 8, 4), STORE(0, 8)}, /* of no element */
		 {HNORM(0, 2, 8), HNORM(16, 2, 8), HNORM(32, 2, 8), TURN(0, 4, 8, 0), TURN(32, 2, 8, 0),
          HNORM(0, 6, 8), TURN(0, 6, 8, 0), STORE(32, 48)},
	 }},
	{"heads across heads",
     false,
     {
		 {STORE(32, 48), TURN(32, 2, 8, 0), STORE(32, 48)},
		 {STORE(0, 16), STORE(80, 64), HNORM(0, 12, 8)},
		 {HNORM(0, 3, 16), TURN(0, 6, 8, 0), HNORM(32, 1, 16), STORE(32, 48)},
		 {HNORM(0, 4, 8), HNORM(4, 4, 8), TURN(2, 4, 8, 0), STORE(4, 12)},
		 {HNORM(32, 2, 8), HNORM(36, 1, 8), TURN(32, 2, 8, 0), STORE(32, 48)},
		 {HNORM(8, 2, 8), STORE(8, 8), TURN(0, 4, 8, 0), STORE(8, 12), HNORM(8, 2, 8)},
	 }},
	{"latents",
     true,
     {
		 {HNORM(48, 1, LATENT), TURN(16, 2, LATENT_DIM, 0), TURN(48 + LATENT, 1, 8, 0),
          STORE(48, 0)},
		 {TURN(48 + LATENT, 1, 8, 0), HNORM(48, 1, LATENT), STORE(48, 0),
          TURN(16, 2, LATENT_DIM, 0)},
		 {TURN(48 + LATENT, 1, 8, 0), HNORM(48, 1, LATENT_DIM), STORE(48, 0),
          TURN(16, 2, LATENT_DIM, 1)},
	 }},
};

static struct kern_tensor columns_from(const struct live *l, uint32_t field, uint32_t at)
{
	struct kern_tensor t = l->field[field];
	t.at = kern_at(t.at, at * (t.type == KERN_F32 ? sizeof(float) : sizeof(uint16_t)));
	return t;
}

/* Each sequence has KV of its own in a block. */
static struct kern_kv_layer kv_of(const struct live *l, uint32_t number)
{
	struct kern_kv_layer kv = l->kv;
	kv.base = kern_at(kv.base, number * (kv.block_stride_bytes / HEAD_PROGRAMS));
	return kv;
}

static struct kern_op head_op_record(const struct live *l, const struct head_op *h, uint32_t number)
{
	struct kern_op op = {.kind = h->kind};
	struct kern_tensor x = columns_from(l, 0, h->at);
	if (h->kind == KERN_OP_HEAD_NORM) {
		op.head_norm.x = x;
		op.head_norm.w = l->constant[0];
		op.head_norm.heads = h->heads;
		op.head_norm.head_dim = h->dim;
		op.head_norm.eps = 1e-5f;
	} else if (h->kind == KERN_OP_ROPE) {
		op = op_rope(l, 0, h->heads, &ropes[h->other % LEN(ropes)]);
		op.rope.x = x;
		op.rope.head_dim = h->dim;
		if (h->other == LEN(ropes))
			op.rope.rope.dims = 0;
	} else {
		op.kv_write.kv = kv_of(l, number);
		op.kv_write.k = x;
		op.kv_write.v = columns_from(l, 0, h->other);
	}
	return op;
}

static struct kern_op head_attention(const struct live *l, bool latent, uint32_t number)
{
	struct kern_op op = {.kind = KERN_OP_ATTENTION};
	op.attention.kv = kv_of(l, number);
	op.attention.heads = latent ? HEADS / 2 : HEADS;
	op.attention.out = columns_from(l, 1, number * HEADS * HEAD_DIM);
	op.attention.q = l->field[0];
	op.attention.scale = 0.35f;
	return op;
}

static uint32_t heads_record(const struct job *j, const struct live *l, struct kern_op *op)
{
	const struct head_programs *p = j->shape;
	uint32_t n = 0;
	for (uint32_t i = 0; i < HEAD_PROGRAMS && p->op[i][0].kind; i++) {
		for (uint32_t k = 0; k < HEAD_OPS && p->op[i][k].kind; k++)
			op[n++] = head_op_record(l, &p->op[i][k], i);
		op[n++] = head_attention(l, p->latent, i);
	}
	return n;
}

static struct job *heads_job(uint32_t number, const struct head_programs *p)
{
	static const struct {
		struct sequence seq[SEQUENCES];
	} worlds[] = {{{{0, 21}}}, {{{0, 70}, {0, 3}}}, {{{0, 1}, {0, 2}}}};
	struct job *j = job_new(KERN_OP_ROPE, world_new(worlds[number % LEN(worlds)].seq, 16), "%s %u",
	                        p->name, number);
	job_field(j, "wide", INOUT, KERN_ROWS_ALL, 1, WIDE, 2);
	job_field(j, "attention", OUT, KERN_ROWS_ALL, 1, HEAD_PROGRAMS * HEADS * HEAD_DIM, 0);
	job_kv(j, kv_types[number % KV_TYPES], p->latent ? 1 : KV_HEADS,
	       p->latent ? LATENT_DIM : HEAD_DIM, p->latent ? LATENT : 0);
	j->kv.block_stride_bytes *= HEAD_PROGRAMS;
	job_constant(j, rand_floats(DIM, 1), DIM * sizeof(float));
	job_constant(j, rand_floats(HEAD_DIM / 2, 1), HEAD_DIM / 2 * sizeof(float));
	j->mixes = true;
	j->shape = p;
	j->record = heads_record;
	return j;
}

CONFORM_TEST(heads_in_turn)
{
	for (uint32_t i = 0; i < LEN(head_programs); i++)
		every_job(heads_job(i, &head_programs[i]));
}

/* Mostly whole heads of a grid, so that many operations have the same ones. */
static struct head_op head_op_random(void)
{
	static const enum kern_op_kind kinds[] = {KERN_OP_HEAD_NORM, KERN_OP_HEAD_NORM, KERN_OP_ROPE,
	                                          KERN_OP_ROPE, KERN_OP_KV_WRITE};
	struct head_op h = {kinds[rand_below(LEN(kinds))], 0, 1 + rand_below(5),
	                    rand_below(5) ? HEAD_DIM : 2 * HEAD_DIM, 0};
	h.at = rand_below(5) ? HEAD_DIM * rand_below(6) : 2 * rand_below(24);
	while (h.heads > 1 && h.at + h.heads * h.dim > WIDE)
		h.heads--;
	h.other = h.kind == KERN_OP_KV_WRITE ? HEAD_DIM * rand_below(8)
	          : rand_below(3)            ? 0
	                                     : rand_below(LEN(ropes));
	return h;
}

CONFORM_TEST(random_heads)
{
	enum { JOBS = 5, PROGRAMS = 7 };
	for (uint32_t i = 0; i < JOBS; i++) {
		size_t mark = conform_mark();
		struct head_programs p = {"random heads", false, {{{.kind = KERN_OP_EMBED}}}};
		rand_seed(i);
		for (uint32_t k = 0; k < PROGRAMS; k++) {
			for (uint32_t n = 0; n + 2 < HEAD_OPS; n++)
				p.op[k][n] = head_op_random();
			p.op[k][HEAD_OPS - 2] = (struct head_op)STORE(8, 16);
		}
		job_check(heads_job(i, &p));
		conform_release(mark);
	}
}
