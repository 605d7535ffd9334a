/* ops.c - describes each operation of a program: over which rows it may run, what it reads and
 * writes, and what else must hold. Checks made when a program is recorded follow from it, and so do
 * the simulator's costs and what a backend needs to know of dependencies.
 *
 * An operation's function has its name (KERN_OPERATIONS). It may refuse several things; the first
 * is reported. */
#include "kernels/operands.h"

#include "kernels/device.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { ROWS_MAX = 1 << 20, KV_HEADS_MAX = 1 << 16 };

struct description {
	const struct kern_op *op;
	const struct kern_limits *limits;
	const struct kern_bounds *bounds;
	int first; /* of the program */
	struct kern_operands *operands;
	char *errbuf;
	size_t errlen;
	int rc;
};

__attribute__((format(printf, 2, 3))) static void refuse(struct description *d, const char *fmt,
                                                         ...)
{
	va_list ap;
	if (d->rc)
		return;
	int n = snprintf(d->errbuf, d->errlen, "%s: ", kern_op_name(d->op->kind));
	va_start(ap, fmt);
	if (n > 0 && (size_t)n < d->errlen)
		vsnprintf(d->errbuf + n, d->errlen - (size_t)n, fmt, ap);
	va_end(ap);
	d->rc = KERN_EINVAL;
}

/* --- parts of descriptions ------------------------------------------------ */

static void only_over(struct description *d, enum kern_rows rows)
{
	if (d->op->rows != rows)
		refuse(d, "must be over %s", rows == KERN_ROWS_ALL ? "all rows" : "the tail");
}

static void operand(struct description *d, const char *name, enum kern_access access,
                    struct kern_tensor x, size_t columns, uint32_t rows_each)
{
	if (!x.at.v || x.at.v % 4)
		refuse(d, "%s at %#zx is missing or not aligned to 4 bytes", name, (size_t)x.at.v);
	d->operands->of[d->operands->n++] = (struct kern_operand){name, access, x, columns, rows_each};
}

/* Activations: `each` rows for each row of the operation. */
static void tensor(struct description *d, const char *name, enum kern_access access,
                   const struct kern_tensor *x, size_t columns, uint32_t each)
{
	uint32_t most = d->bounds->columns;
	unsigned types = d->bounds->types;
	if (!d->rc && ((unsigned)x->type >= KERN_DTYPE_COUNT || !(types >> x->type & 1))) {
		refuse(d, "%s of type %s: this device has activations of f32%s", name,
		       kern_dtype_name(x->type), types == 1 << KERN_F32 ? "" : ", f16 and bf16");
		d->rc = d->rc ? KERN_ENOTSUP : d->rc;
	}
	if (!columns || columns > most)
		refuse(d, "%s has rows of %zu columns, limits are 1 and %u", name, columns, most);
	if (x->ld < columns)
		refuse(d, "%s has rows of %zu columns that are %zu apart", name, columns, x->ld);
	operand(d, name, access, *x, columns, each);
}

/* Float32 or ids, dense: `columns` for each row of the operation. */
static void array(struct description *d, const char *name, enum kern_access access, kern_ptr at,
                  size_t columns)
{
	operand(d, name, access, (struct kern_tensor){at, columns, KERN_F32}, columns, 1);
}

/* Words that are not of a row. */
static void words(struct description *d, const char *name, enum kern_access access, kern_ptr at,
                  size_t n)
{
	operand(d, name, access, (struct kern_tensor){at, n, KERN_F32}, n, 0);
}

/* Float32 of the model, which a modelled device has not. */
static void constants(struct description *d, const char *name, kern_ptr at, size_t n)
{
	if (at.v || !d->bounds->modelled)
		words(d, name, KERN_READ, at, n);
}

static void optional(struct description *d, const char *name, kern_ptr at, size_t n)
{
	if (at.v)
		constants(d, name, at, n);
}

static struct kern_matrices weight(struct description *d, const char *name,
                                   const struct kern_weight *w)
{
	struct kern_matrices m = {0};
	if (w)
		memcpy(&m, w, sizeof m);
	else
		refuse(d, "weight %s is missing", name);
	return m;
}

/* Each row is multiplied by `used` of `count` such matrices, on average. */
static void products(struct description *d, struct kern_matrices m, uint32_t count, double used)
{
	d->operands->multiplied += (double)m.n * m.k * used;
	d->operands->read += (double)m.n * m.k * count;
}

static void activation(struct description *d, enum kern_act act)
{
	if ((unsigned)act > KERN_SWIGLU_CLAMPED)
		refuse(d, "activation %u is unknown", (unsigned)act);
}

static void head_size(struct description *d, uint32_t head_dim)
{
	if (head_dim > d->bounds->head_dim)
		refuse(d, "heads of %u elements, the limit is %u", head_dim, d->bounds->head_dim);
}

static void kv_layer(struct description *d, const struct kern_kv_layer *kv)
{
	if (!kv->base.v || kv->base.v % 4 || kv->block_stride_bytes % 4)
		refuse(d, "KV layer at %#zx with blocks %zu bytes apart: not aligned to 4 bytes",
		       (size_t)kv->base.v, kv->block_stride_bytes);
	if (!kv->head_dim || kv->head_dim % 4 || kv->latent > kv->head_dim || kv->latent % 4)
		refuse(d,
		       "KV heads of %u elements, latent %u: must be multiples of 4, the latent no larger",
		       kv->head_dim, kv->latent);
	if (!kv->block_tokens || !kv->kv_heads || kv->kv_heads > KV_HEADS_MAX)
		refuse(d,
		       "KV layer with %u heads and blocks of %u tokens: heads are 1 to %d, tokens at "
		       "least 1",
		       kv->kv_heads, kv->block_tokens, KV_HEADS_MAX);
	if ((unsigned)kv->dtype > KERN_BF16 && kv->dtype != KERN_I8 && kv->dtype != KERN_F8)
		refuse(d, "KV type %s (%u): must be f32, f16, bf16, int8 or fp8",
		       kern_dtype_name(kv->dtype), (unsigned)kv->dtype);
	head_size(d, kv->head_dim);
	if (!d->bounds->modelled && !d->rc &&
	    kv->block_stride_bytes / kern_kv_planes(kv) < kern_kv_plane_bytes(kv))
		refuse(d, "KV blocks are %zu bytes apart, too little for %u planes of %zu bytes",
		       kv->block_stride_bytes, kern_kv_planes(kv), kern_kv_plane_bytes(kv));
}

/* --- operations ----------------------------------------------------------- */

static uint32_t results_of(const struct kern_limits *l)
{
	return l->results ? l->results : l->tail_rows;
}

static void advance(struct description *d, const struct kern_op *op)
{
	const struct kern_limits *l = d->limits;
	only_over(d, KERN_ROWS_ALL);
	if (!d->first)
		refuse(d, "must be the first operation of a program");
	if (!op->advance.block_tokens)
		refuse(d, "blocks of 0 tokens");
	words(d, "kept", KERN_READ, op->advance.kept,
	      results_of(l) * sizeof(struct kern_kept) / sizeof(uint32_t));
	if (!l->histories)
		return;
	if (!op->advance.match || op->advance.match > KERN_MATCH_LONG || !l->history_tokens ||
	    l->history_tokens > KERN_HISTORY_MAX)
		refuse(d, "histories of %u tokens, matches of %u: expected 1 to %d tokens and 1 to %d",
		       l->history_tokens, op->advance.match, KERN_HISTORY_MAX, KERN_MATCH_LONG);
	words(d, "histories", KERN_UPDATE, op->advance.histories,
	      l->histories * (1 + (size_t)l->history_tokens));
}

static void embed(struct description *d, const struct kern_op *op)
{
	only_over(d, KERN_ROWS_ALL);
	uint32_t columns = weight(d, "w", op->embed.w).k;
	tensor(d, "y", KERN_WRITE, &op->embed.y, columns, 1);
}

static void gather_rows(struct description *d, const struct kern_op *op)
{
	only_over(d, KERN_ROWS_TAIL);
	tensor(d, "y", KERN_WRITE, &op->gather_rows.y, op->gather_rows.dim, 1);
	tensor(d, "x", KERN_READ, &op->gather_rows.x, op->gather_rows.dim, 1);
}

static void scale(struct description *d, const struct kern_op *op)
{
	tensor(d, "y", KERN_WRITE, &op->scale.y, op->scale.dim, 1);
	tensor(d, "x", KERN_READ, &op->scale.x, op->scale.dim, 1);
}

static void norm(struct description *d, const struct kern_op *op)
{
	int adds = op->norm.a.at.v != 0;
	tensor(d, "y", KERN_WRITE, &op->norm.y, op->norm.dim, 1);
	tensor(d, "x", adds ? KERN_UPDATE : KERN_READ, &op->norm.x, op->norm.dim, 1);
	if (adds)
		tensor(d, "a", KERN_READ, &op->norm.a, op->norm.dim, 1);
	constants(d, "w", op->norm.w, op->norm.dim);
}

static void head_norm(struct description *d, const struct kern_op *op)
{
	size_t columns = (size_t)op->head_norm.heads * op->head_norm.head_dim;
	tensor(d, "x", KERN_UPDATE, &op->head_norm.x, columns, 1);
	constants(d, "w", op->head_norm.w, op->head_norm.head_dim);
}

static void matmul(struct description *d, const struct kern_op *op)
{
	uint32_t n = op->matmul.products, columns = 0;
	if (!n || n > KERN_PRODUCTS_MAX) {
		refuse(d, "%u products, limits are 1 and %d", n, KERN_PRODUCTS_MAX);
		return;
	}
	for (uint32_t i = 0; i < n; i++) {
		const struct kern_product *p = &op->matmul.p[i];
		struct kern_matrices w = weight(d, "w", p->w);
		products(d, w, 1, 1);
		columns = i ? columns : w.k;
		if (w.k != columns)
			refuse(d, "product %u has %u columns, product 0 has %u: must be equal", i, w.k,
			       columns);
		tensor(d, "y", KERN_WRITE, &p->y, w.n, 1);
		optional(d, "bias", p->bias, w.n);
	}
	tensor(d, "x", KERN_READ, &op->matmul.x, columns, 1);
}

static void rope(struct description *d, const struct kern_op *op)
{
	const struct kern_rope *rope = &op->rope.rope;
	uint32_t dim = op->rope.head_dim;
	only_over(d, KERN_ROWS_ALL);
	if ((unsigned)rope->style > KERN_ROPE_INTERLEAVED)
		refuse(d, "style %u is unknown", (unsigned)rope->style);
	if (rope->dims % 2 || rope->dims > dim)
		refuse(d, "over %u of %u elements: must be even and at most all", rope->dims, dim);
	head_size(d, dim);
	tensor(d, "x", KERN_UPDATE, &op->rope.x, (size_t)op->rope.heads * dim, 1);
	if (rope->dims)
		constants(d, "inv_freq", rope->inv_freq, rope->dims / 2);
}

static void kv_write(struct description *d, const struct kern_op *op)
{
	const struct kern_kv_layer *kv = &op->kv_write.kv;
	size_t columns = (size_t)kv->kv_heads * kv->head_dim;
	only_over(d, KERN_ROWS_ALL);
	kv_layer(d, kv);
	tensor(d, "k", KERN_READ, &op->kv_write.k, columns, 1);
	if (!kv->latent)
		tensor(d, "v", KERN_READ, &op->kv_write.v, columns, 1);
}

static void progress(struct description *d, const struct kern_op *op)
{
	(void)d, (void)op; /* its words are in the batch */
}

static void attention(struct description *d, const struct kern_op *op)
{
	const struct kern_kv_layer *kv = &op->attention.kv;
	uint32_t heads = op->attention.heads;
	kv_layer(d, kv);
	if (!heads || (kv->kv_heads && heads % kv->kv_heads))
		refuse(d, "%u heads over %u KV heads: must be a multiple", heads, kv->kv_heads);
	tensor(d, "out", KERN_WRITE, &op->attention.out,
	       (size_t)heads * (kv->latent ? kv->latent : kv->head_dim), 1);
	tensor(d, "q", KERN_READ, &op->attention.q, (size_t)heads * kv->head_dim, 1);
	optional(d, "sinks", op->attention.sinks, heads);
}

static void act_mul(struct description *d, const struct kern_op *op)
{
	activation(d, op->act_mul.act);
	tensor(d, "y", KERN_WRITE, &op->act_mul.y, op->act_mul.dim, 1);
	tensor(d, "gate", KERN_READ, &op->act_mul.gate, op->act_mul.dim, 1);
	tensor(d, "up", KERN_READ, &op->act_mul.up, op->act_mul.dim, 1);
}

static void route(struct description *d, const struct kern_op *op)
{
	const struct kern_router *x = &op->route.router;
	uint32_t groups = x->groups > 1 ? x->groups : 1, of = x->groups > 1 ? x->groups_used : 1;
	if ((unsigned)x->score > KERN_SCORE_SIGMOID)
		refuse(d, "scores of kind %u are unknown", (unsigned)x->score);
	if (!x->experts || x->experts > KERN_EXPERTS_MAX || !x->used || x->used > KERN_EXPERTS_USED_MAX)
		refuse(d, "to %u of %u experts, limits are %d and %d", x->used, x->experts,
		       KERN_EXPERTS_USED_MAX, KERN_EXPERTS_MAX);
	if (x->experts % groups || (groups > 1 && x->experts / groups < 2) || of < 1 || of > groups ||
	    x->used > x->experts / groups * of)
		refuse(d, "to %u of %u experts in %u of %u groups", x->used, x->experts, of, groups);
	tensor(d, "logits", KERN_READ, &op->route.logits, x->experts, 1);
	array(d, "ids", KERN_WRITE, op->route.ids, x->used);
	array(d, "weights", KERN_WRITE, op->route.weights, x->used);
	optional(d, "bias", x->bias, x->experts);
}

/* The matrices of a range of the experts, of which a row chooses `used`. */
static struct kern_matrices experts(struct description *d, const char *name,
                                    const struct kern_experts *x, const struct kern_weight *w,
                                    uint32_t used)
{
	struct kern_matrices m = weight(d, name, w);
	if (!used || used > KERN_EXPERTS_USED_MAX || !x->experts || x->experts > KERN_EXPERTS_MAX ||
	    used > x->experts)
		refuse(d, "%u of %u experts, limits are %d and %d", used, x->experts, KERN_EXPERTS_USED_MAX,
		       KERN_EXPERTS_MAX);
	else if (x->first > x->experts || x->count > x->experts - x->first)
		refuse(d, "%u experts from %u on, there are %u", x->count, x->first, x->experts);
	else
		products(d, m, x->count, (double)used * x->count / x->experts);
	if (m.count < x->count)
		refuse(d, "%u experts, %s has %u matrices", x->count, name, m.count);
	return m;
}

static void experts_act(struct description *d, const struct kern_op *op)
{
	const struct kern_experts *x = &op->experts_act.experts;
	uint32_t used = op->experts_act.used;
	struct kern_matrices gate = experts(d, "gate", x, x->gate, used),
						 up = experts(d, "up", x, x->up, used);
	activation(d, op->experts_act.act);
	if (up.n != gate.n || up.k != gate.k)
		refuse(d, "gate is (%u, %u), up (%u, %u): must be equal", gate.n, gate.k, up.n, up.k);
	tensor(d, "y", KERN_WRITE, &op->experts_act.y, gate.n, used);
	tensor(d, "x", KERN_READ, &op->experts_act.x, gate.k, 1);
	array(d, "ids", KERN_READ, op->experts_act.ids, used);
	optional(d, "gate_bias", x->gate_bias, (size_t)x->count * gate.n);
	optional(d, "up_bias", x->up_bias, (size_t)x->count * gate.n);
}

static void experts_down(struct description *d, const struct kern_op *op)
{
	const struct kern_experts *x = &op->experts_down.experts;
	uint32_t used = op->experts_down.used;
	int pairs = op->experts_down.pairs;
	struct kern_matrices down = experts(d, "down", x, x->down, used);
	if (pairs && op->experts_down.add)
		refuse(d, "pairs are not added to anything");
	tensor(d, "y", op->experts_down.add ? KERN_UPDATE : KERN_WRITE, &op->experts_down.y, down.n,
	       pairs ? used : 1);
	tensor(d, "x", KERN_READ, &op->experts_down.x, down.k, used);
	array(d, "ids", KERN_READ, op->experts_down.ids, used);
	if (!pairs)
		array(d, "weights", KERN_READ, op->experts_down.weights, used);
	optional(d, "down_bias", x->down_bias, (size_t)x->count * down.n);
}

static void experts_sum(struct description *d, const struct kern_op *op)
{
	uint32_t used = op->experts_sum.used;
	if (!used || used > KERN_EXPERTS_USED_MAX)
		refuse(d, "of %u experts, limits are 1 and %d", used, KERN_EXPERTS_USED_MAX);
	tensor(d, "y", op->experts_sum.add ? KERN_UPDATE : KERN_WRITE, &op->experts_sum.y,
	       op->experts_sum.dim, 1);
	tensor(d, "x", KERN_READ, &op->experts_sum.x, op->experts_sum.dim, used);
	array(d, "ids", KERN_READ, op->experts_sum.ids, used);
	array(d, "weights", KERN_READ, op->experts_sum.weights, used);
}

static void heads_matmul(struct description *d, const struct kern_op *op)
{
	uint32_t heads = op->heads_matmul.heads, tail = op->heads_matmul.tail;
	struct kern_matrices w = weight(d, "w", op->heads_matmul.w);
	if (!heads || w.count != heads)
		refuse(d, "%u heads, %u matrices: must be equal, and at least 1", heads, w.count);
	products(d, w, heads, heads);
	tensor(d, "y", KERN_WRITE, &op->heads_matmul.y, heads * ((size_t)w.n + tail), 1);
	tensor(d, "x", KERN_READ, &op->heads_matmul.x, heads * ((size_t)w.k + tail), 1);
}

static void gather(struct description *d, const struct kern_op *op)
{
	uint32_t n = op->gather.tensors;
	if (!n || n > KERN_GATHERED_MAX) {
		refuse(d, "%u tensors, limits are 1 and %d", n, KERN_GATHERED_MAX);
		return;
	}
	for (uint32_t i = 0; i < n; i++) {
		const struct kern_gathered *t = &op->gather.t[i];
		if (!t->parts || !t->unit)
			refuse(d, "tensor %u of %u: %u parts, shared out in units of %u: must be at least 1", i,
			       n, t->parts, t->unit);
		tensor(d, "x", KERN_UPDATE, &t->x, t->dim, t->parts);
		if (t->chosen.v && (!t->ids || op->gather.to_first))
			refuse(d, "tensor %u of %u: parts of chosen ids: expected ids, and no first rank", i,
			       n);
		if (t->chosen.v)
			array(d, "chosen", KERN_READ, t->chosen, t->parts);
	}
}

static void broadcast(struct description *d, const struct kern_op *op)
{
	size_t bytes = op->broadcast.bytes;
	if (!bytes || bytes % 4 || bytes > UINT32_MAX / 2)
		refuse(d, "of %zu bytes: expected a multiple of 4 bytes below 2 GiB", bytes);
	words(d, "at", KERN_UPDATE, op->broadcast.at, bytes / 4);
}

static void barrier(struct description *d, const struct kern_op *op)
{
	(void)d, (void)op;
}

static void reduce(struct description *d, const struct kern_op *op)
{
	const struct kern_tensor *x = &op->reduce.x;
	if (d->bounds->ranks > 1 && !d->bounds->reduces)
		refuse(d, "sums over ranks need the variant fast of cuda, and a GPU for each rank");
	if (x->ld != op->reduce.dim || (x->type != KERN_F32 && x->type != KERN_BF16))
		refuse(d, "of rows of %u columns, %zu apart, of type %s: expected dense f32 or bf16",
		       op->reduce.dim, x->ld, kern_dtype_name(x->type));
	tensor(d, "x", KERN_UPDATE, x, op->reduce.dim, 1);
}

static void transfer(struct description *d, const struct kern_transfer *t, enum kern_access access)
{
	const struct kern_pipe *pipe = d->bounds->pipe;
	enum kern_dtype type = t->x.type;
	if (t->x.ld != t->dim || (type != KERN_F32 && type != KERN_F16 && type != KERN_BF16))
		refuse(d, "of rows of %u columns, %zu apart, of type %s: expected dense f32, f16 or bf16",
		       t->dim, t->x.ld, kern_dtype_name(type));
	if (!pipe || pipe->stages < 2)
		refuse(d, "with stage %u: the device is not a stage of a pipeline", t->peer);
	else if (t->peer >= pipe->stages || t->peer == pipe->stage)
		refuse(d, "with stage %u: this is stage %u of %u, expected another one, from 0 on", t->peer,
		       pipe->stage, pipe->stages);
	tensor(d, "x", access, &t->x, t->dim, 1);
}

static void send(struct description *d, const struct kern_op *op)
{
	transfer(d, &op->send, KERN_READ);
}

static void recv(struct description *d, const struct kern_op *op)
{
	transfer(d, &op->recv, KERN_WRITE);
}

static void sample(struct description *d, const struct kern_op *op)
{
	const struct kern_tensor *logits = &op->sample.logits;
	uint32_t results = results_of(d->limits);
	only_over(d, KERN_ROWS_TAIL);
	if (!d->limits->vocab || logits->type != KERN_F32)
		refuse(d, "from %u ids, logits of type %s: expected at least 1, and f32", d->limits->vocab,
		       kern_dtype_name(logits->type));
	tensor(d, "logits", KERN_READ, logits, d->limits->vocab, 1);
	words(d, "results", KERN_WRITE, op->sample.results,
	      results * sizeof(struct kern_drawn) / sizeof(uint32_t));
	if (op->sample.kept.v)
		words(d, "kept", KERN_WRITE, op->sample.kept,
		      results * sizeof(struct kern_kept) / sizeof(uint32_t));
}

/* --- all of them ---------------------------------------------------------- */

#define OPERATION(KIND, NAME) [KIND] = {#NAME, NAME},
static const struct {
	const char *name;
	void (*describe)(struct description *d, const struct kern_op *op);
} operations[KERN_OPS] = {KERN_OPERATIONS(OPERATION)};

const char *kern_op_name(enum kern_op_kind k)
{
	return (unsigned)k < KERN_OPS ? operations[k].name : "unknown";
}

void kern_operands(const struct kern_op *op, const struct kern_limits *limits,
                   struct kern_operands *ret)
{
	/* the operation has been checked, so what is refused now does not matter */
	static const struct kern_bounds any = {.modelled = 1};
	struct description d = {.op = op, .limits = limits, .bounds = &any, .operands = ret};
	memset(ret, 0, sizeof *ret);
	operations[op->kind].describe(&d, op);
}

static void check_op(struct description *d)
{
	const struct kern_op *op = d->op;
	if ((unsigned)op->kind >= KERN_OPS) {
		refuse(d, "operation %u is unknown", (unsigned)op->kind);
		d->rc = KERN_ENOTSUP;
		return;
	}
	if ((unsigned)op->rows > KERN_ROWS_TAIL)
		refuse(d, "kind of rows %u is unknown, expected 0 or 1", (unsigned)op->rows);
	if (op->rows == KERN_ROWS_TAIL && !d->limits->tail_rows)
		refuse(d, "over the tail, but limits.tail_rows is 0");
	operations[op->kind].describe(d, op);
}

/* Whether the draws that the program keeps reach all ranks. */
static int kept_arrive(const struct kern_op *ops, size_t n, uint32_t results)
{
	int arrive = 1;
	kern_ptr kept = {0};
	for (size_t i = 0; i < n; i++)
		if (ops[i].kind == KERN_OP_SAMPLE) {
			kept = ops[i].sample.kept;
			arrive = !kept.v;
		} else if (ops[i].kind == KERN_OP_BROADCAST && ops[i].broadcast.at.v == kept.v)
			arrive |= ops[i].broadcast.bytes >= results * sizeof(struct kern_kept);
	return arrive;
}

int kern_program_check(const struct kern_op *ops, size_t n, const struct kern_limits *l,
                       const struct kern_bounds *bounds, char *errbuf, size_t errlen)
{
	if (!l->rows || l->rows > ROWS_MAX || l->tail_rows > ROWS_MAX || !l->spans ||
	    l->spans > ROWS_MAX) {
		snprintf(errbuf, errlen,
		         "a program for %u rows, %u of the tail and %u spans: limits are 1 (the "
		         "tail: 0) and %d",
		         l->rows, l->tail_rows, l->spans, ROWS_MAX);
		return KERN_EINVAL;
	}
	for (size_t i = 0; i < n; i++) {
		struct kern_operands operands = {.n = 0};
		struct description d = {&ops[i], l, bounds, i == 0, &operands, errbuf, errlen, KERN_OK};
		check_op(&d);
		if (d.rc)
			return d.rc;
	}
	if (bounds->ranks > 1 && !kept_arrive(ops, n, results_of(l))) {
		snprintf(
			errbuf, errlen,
			"%u draws are kept in a group of %u ranks, of which one draws: a broadcast of them "
			"must follow the sample operation",
			results_of(l), bounds->ranks);
		return KERN_EINVAL;
	}
	return KERN_OK;
}
