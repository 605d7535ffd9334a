/* test_conform_programs.c - programs of many operations: a whole step of a model, and random programs. What one operation writes another takes, so a device that begins
 * one too early, or keeps what is stale, gives other bits than a program for each operation does. */
#include "tests/conform/conform.h"

#include <math.h>
#include <string.h>

enum { DIM = 32, FFN = 80, HEADS = 4, KV_HEADS = 2, HEAD_DIM = 8 };

/* --- a step of a model ------------------------------------------------------------------------------------------------------------------- */

enum { H, N, Q, K, V, ATT, O, GATE, UP, ACT, T, LOGITS, STEP_FIELDS };
static const struct { const char *name; uint32_t columns; } step_fields[STEP_FIELDS] = {
	{"h", DIM}, {"n", DIM}, {"q", HEADS * HEAD_DIM}, {"k", KV_HEADS * HEAD_DIM}, {"v", KV_HEADS * HEAD_DIM}, {"att", HEADS * HEAD_DIM}, {"o", DIM},
	{"gate", FFN}, {"up", FFN}, {"act", FFN}, {"t", DIM}, {"logits", VOCABULARY},
};
static const struct { enum kern_dtype type; uint32_t n, k; } step_matrices[] = {
	{KERN_BF16, VOCABULARY, DIM}, {KERN_Q8_0, HEADS * HEAD_DIM, DIM}, {KERN_Q4_0, KV_HEADS * HEAD_DIM, DIM}, {KERN_BF16, KV_HEADS * HEAD_DIM, DIM},
	{KERN_Q4_1, DIM, HEADS * HEAD_DIM}, {KERN_Q5_0, FFN, DIM}, {KERN_F16, FFN, DIM}, {KERN_F32, DIM, FFN},
};
enum { W_EMBED, W_Q, W_K, W_V, W_O, W_GATE, W_UP, W_DOWN };

static struct kern_op op_matmul(const struct live *l, uint32_t x, uint32_t products, const uint32_t *w, const uint32_t *y)
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
static const struct kern_rope ropes[] = {{KERN_ROPE_HALF, HEAD_DIM, 1, {0}}, {KERN_ROPE_INTERLEAVED, HEAD_DIM, 1, {0}}, {KERN_ROPE_HALF, HEAD_DIM / 2, 1.25f, {0}}, {KERN_ROPE_HALF, HEAD_DIM, 1.25f, {0}}};

static struct kern_op op_rope(const struct live *l, uint32_t x, uint32_t heads, const struct kern_rope *rope)
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
	op[n++].gather.t[0] = (struct kern_gathered){l->field[O], 1, (uint32_t)l->field[O].ld, 16, 0};
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
	struct job *j = job_new(KERN_OP_MATMUL, world_new(seq, block_tokens), "a step of a model, KV of %s", kern_dtype_name(kv));
	job_kv(j, kv, KV_HEADS, HEAD_DIM, 0);
	for (uint32_t f = 0; f < STEP_FIELDS; f++)
		job_field(j, step_fields[f].name, OUT, f < T ? KERN_ROWS_ALL : KERN_ROWS_TAIL, 1, step_fields[f].columns, 0);
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
	static const struct { struct sequence seq[SEQUENCES]; uint32_t block_tokens; enum kern_dtype kv; } cases[] = {
		{{{0, 1}}, 16, KERN_F32}, {{{0, 70}, {9, 1}, {300, 5}}, 16, KERN_BF16}, {{{0, 2}, {0, 3}, {5, 1}, {17, 1}}, 64, KERN_F8}, {{{100, 130}, {1, 1}}, 7, KERN_I8},
		{{{0, 31}, {500, 2}}, 16, KERN_F16},
	};
	for (uint32_t i = 0; i < LEN(cases); i++) {
		size_t mark = conform_mark();
		job_check(step_job(cases[i].seq, cases[i].block_tokens, cases[i].kv));
		conform_release(mark);
	}
}

/* --- random programs ------------------------------------------------------------------------------------------------------------------------ */

/* Fields 0 to 4 have rows for all, 5 to 7 for the tail; a field of ids and one of weights. */
enum { ALL_FIELDS = 5, TAIL_FIELDS = 3, RANDOM_OPS = 28, EXPERTS = 6, USED = 2 };
enum { R_IDS = ALL_FIELDS + TAIL_FIELDS, R_WEIGHTS, R_LOGITS };
enum { R_SQUARE, R_SQUARE_2, R_HEADS, R_EXPERTS = R_HEADS + HEADS, R_ROUTER = R_EXPERTS + 3 * EXPERTS, R_MATRICES };

struct random_op { uint32_t kind, a, b, c; bool tail, flag; };
struct random_program { struct random_op op[RANDOM_OPS]; };

/* Three different fields of a kind. */
static void three(struct random_op *op)
{
	uint32_t n = op->tail ? TAIL_FIELDS : ALL_FIELDS, base = op->tail ? ALL_FIELDS : 0, first = rand_below(n), step = 1 + rand_below(n > 3 ? 2 : 1);
	op->a = base + first;
	op->b = base + (first + step) % n;
	op->c = base + (first + 2 * step) % n;
}

static struct random_program *program_random(void)
{
	static const uint32_t kinds[] = {KERN_OP_SCALE, KERN_OP_NORM, KERN_OP_NORM, KERN_OP_HEAD_NORM, KERN_OP_MATMUL, KERN_OP_MATMUL, KERN_OP_ROPE, KERN_OP_ACT_MUL,
	                                 KERN_OP_HEADS_MATMUL, KERN_OP_GATHER_ROWS, KERN_OP_ATTENTION, KERN_OP_EXPERTS_DOWN, KERN_OP_EMBED};
	struct random_program *p = conform_alloc(1, sizeof *p);
	bool written = false;
	for (uint32_t i = 0; i < RANDOM_OPS; i++) {
		struct random_op *op = &p->op[i];
		op->kind = kinds[rand_below(LEN(kinds))];
		op->tail = rand_below(3) == 0 && op->kind != KERN_OP_ROPE && op->kind != KERN_OP_EXPERTS_DOWN && op->kind != KERN_OP_EMBED;
		op->flag = rand_bits() % 2;
		three(op);
		if (op->kind == KERN_OP_ATTENTION && !written) {       /* KV is written once, and read after it */
			op->kind = KERN_OP_KV_WRITE;
			op->tail = false;
			three(op);
			written = true;
		}
	}
	return p;
}

/* The experts of a row in three operations; the others are one. */
static uint32_t experts_ops(const struct live *l, const struct random_op *r, struct kern_op *op)
{
	struct kern_experts e = {EXPERTS, l->w + R_EXPERTS, l->w + R_EXPERTS + EXPERTS, l->w + R_EXPERTS + 2 * EXPERTS, {0}, {0}, {0}};
	op[0] = op_matmul(l, r->b, 1, &(const uint32_t){R_ROUTER}, &(const uint32_t){R_LOGITS});
	op[1].kind = KERN_OP_ROUTE;
	op[1].route.router = (struct kern_router){.experts = EXPERTS, .used = USED, .normalise = 1, .scale = 1};
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

static uint32_t random_op_record(const struct live *l, const struct random_op *r, struct kern_op *op)
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
		*op = op_matmul(l, r->b, r->flag ? 2 : 1, (const uint32_t[]){R_SQUARE, R_SQUARE_2}, (const uint32_t[]){r->a, r->c});
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
		op->heads_matmul.w = l->w + R_HEADS;
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
	for (uint32_t i = 0; i < RANDOM_OPS && n + 4 <= OPS_MAX; i++)
		n += random_op_record(l, &p->op[i], op + n);
	return n;
}

static struct job *random_job(uint32_t number)
{
	static const struct { struct sequence seq[SEQUENCES]; } worlds[] = {{{{0, 40}}}, {{{0, 3}, {0, 1}}}, {{{0, 90}, {0, 30}, {0, 2}}}, {{{0, 1}}}};
	struct job *j = job_new(KERN_OP_MATMUL, world_new(worlds[number % LEN(worlds)].seq, 16), "random program %u", number);
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
	for (uint32_t h = 0; h < HEADS; h++)
		job_matrix(j, R_HEADS + h, KERN_BF16, HEAD_DIM - 2, HEAD_DIM - 2);
	for (uint32_t e = 0; e < 3 * EXPERTS; e++)
		job_matrix(j, R_EXPERTS + e, KERN_F32, e < 2 * EXPERTS ? 16 : DIM, e < 2 * EXPERTS ? DIM : 16);
	job_matrix(j, R_ROUTER, KERN_F32, EXPERTS, DIM);
	j->mixes = true;
	j->shape = program_random();
	j->record = random_record;
	return j;
}

CONFORM_TEST(random_programs)
{
	enum { PROGRAMS = 24 };
	for (uint32_t i = 0; i < PROGRAMS; i++) {
		size_t mark = conform_mark();
		job_check(random_job(i));
		conform_release(mark);
	}
}
