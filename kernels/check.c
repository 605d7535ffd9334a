/* check.c - checks of weights and programs that apply to every backend, made when a weight is
 * created or a program recorded. Each backend checks its own limits. */
#include "kernels/kernels.h"

#include <stdarg.h>
#include <stdio.h>

enum { ROWS_MAX = 1 << 20, KV_HEADS_MAX = 1 << 16 };

struct check_report {
	const struct kern_op *op;
	int first; /* of the program */
	char *buf;
	size_t len;
};

__attribute__((format(printf, 2, 3))) static int refuse(const struct check_report *r,
                                                        const char *fmt, ...)
{
	va_list ap;
	int n = snprintf(r->buf, r->len, "%s: ", kern_op_name(r->op->kind));
	va_start(ap, fmt);
	if (n > 0 && (size_t)n < r->len)
		vsnprintf(r->buf + n, r->len - (size_t)n, fmt, ap);
	va_end(ap);
	return KERN_EINVAL;
}

static int check_rows(const struct check_report *r, const struct kern_limits *l, int want)
{
	static const char *const name[] = {[KERN_ROWS_ALL] = "all rows", [KERN_ROWS_TAIL] = "the tail"};
	if ((unsigned)r->op->rows > KERN_ROWS_TAIL)
		return refuse(r, "kind of rows %u is unknown, expected 0 or 1", (unsigned)r->op->rows);
	if (r->op->rows == KERN_ROWS_TAIL && !l->tail_rows)
		return refuse(r, "over the tail, but limits.tail_rows is 0");
	return want < 0 || r->op->rows == (enum kern_rows)want
	           ? KERN_OK
	           : refuse(r, "must be over %s", name[want]);
}

static int check_act(const struct check_report *r, enum kern_act act)
{
	return (unsigned)act <= KERN_SWIGLU_CLAMPED
	           ? KERN_OK
	           : refuse(r, "activation %u is unknown", (unsigned)act);
}

static int check_weights(const struct check_report *r, struct kern_weight *const *w, uint32_t n)
{
	if (!w)
		return refuse(r, "no array of %u weights", n);
	for (uint32_t i = 0; i < n; i++)
		if (!w[i])
			return refuse(r, "weight %u of %u is missing", i, n);
	return KERN_OK;
}

static int check_continue(const struct check_report *r, const struct kern_limits *l)
{
	const struct kern_op *op = r->op;
	if (!r->first)
		return refuse(r, "must be the first operation of a program");
	if (!op->carry_on.kept.v || op->carry_on.kept.v % 4 || !op->carry_on.block_tokens)
		return refuse(r,
		              "from what was kept at %#zx, in blocks of %u tokens: expected an address "
		              "aligned to 4 bytes, and at least 1",
		              (size_t)op->carry_on.kept.v, op->carry_on.block_tokens);
	if (l->histories && (!op->carry_on.histories.v || op->carry_on.histories.v % 4 ||
	                     !op->carry_on.match || op->carry_on.match > KERN_MATCH_LONG ||
	                     !l->history_tokens || l->history_tokens > KERN_HISTORY_MAX))
		return refuse(r,
		              "%u histories of %u tokens at %#zx, matches of %u: expected an address "
		              "aligned to 4 bytes, 1 to %d tokens and matches of 1 to %d",
		              l->histories, l->history_tokens, (size_t)op->carry_on.histories.v,
		              op->carry_on.match, KERN_HISTORY_MAX, KERN_MATCH_LONG);
	return check_rows(r, l, KERN_ROWS_ALL);
}

static int check_products(const struct check_report *r)
{
	uint32_t n = r->op->matmul.products;
	if (!n || n > KERN_PRODUCTS_MAX)
		return refuse(r, "%u products, limits are 1 and %d", n, KERN_PRODUCTS_MAX);
	for (uint32_t i = 0; i < n; i++)
		if (!r->op->matmul.p[i].w)
			return refuse(r, "weight %u of %u is missing", i, n);
	return KERN_OK;
}

static int check_gather(const struct check_report *r, const struct kern_limits *l)
{
	uint32_t n = r->op->gather.tensors;
	if (!n || n > KERN_GATHERED_MAX)
		return refuse(r, "%u tensors, limits are 1 and %d", n, KERN_GATHERED_MAX);
	for (uint32_t i = 0; i < n; i++)
		if (!r->op->gather.t[i].parts || !r->op->gather.t[i].unit)
			return refuse(
				r, "tensor %u of %u: %u parts, shared out in units of %u: must be at least 1", i, n,
				r->op->gather.t[i].parts, r->op->gather.t[i].unit);
	return check_rows(r, l, -1);
}

static int check_kv(const struct check_report *r, const struct kern_kv_layer *kv)
{
	if (!kv->base.v || kv->base.v % 4 || kv->block_stride_bytes % 4)
		return refuse(r, "KV layer at %#zx with blocks %zu bytes apart: not aligned to 4 bytes",
		              (size_t)kv->base.v, kv->block_stride_bytes);
	if (!kv->head_dim || kv->head_dim % 4 || kv->latent > kv->head_dim || kv->latent % 4)
		return refuse(r,
		              "KV heads of %u elements, latent %u: must be multiples of 4, the "
		              "latent no larger",
		              kv->head_dim, kv->latent);
	if (!kv->block_tokens || !kv->kv_heads || kv->kv_heads > KV_HEADS_MAX)
		return refuse(
			r,
			"KV layer with %u heads and blocks of %u tokens: heads are 1 to %d, tokens at least 1",
			kv->kv_heads, kv->block_tokens, KV_HEADS_MAX);
	if ((unsigned)kv->dtype > KERN_BF16 && kv->dtype != KERN_I8 && kv->dtype != KERN_F8)
		return refuse(r, "KV type %s (%u): must be f32, f16, bf16, int8 or fp8",
		              kern_dtype_name(kv->dtype), (unsigned)kv->dtype);
	return KERN_OK;
}

static int check_attention(const struct check_report *r)
{
	uint32_t heads = r->op->attention.heads, kv_heads = r->op->attention.kv.kv_heads;
	int rc = check_kv(r, &r->op->attention.kv);
	if (!rc && (!heads || heads % kv_heads))
		return refuse(r, "%u heads over %u KV heads: must be a multiple", heads, kv_heads);
	return rc;
}

static int check_rope(const struct check_report *r)
{
	const struct kern_rope *rope = &r->op->rope.rope;
	if ((unsigned)rope->style > KERN_ROPE_INTERLEAVED)
		return refuse(r, "style %u is unknown", (unsigned)rope->style);
	if (rope->dims % 2 || rope->dims > r->op->rope.head_dim)
		return refuse(r, "over %u of %u elements: must be even and at most all", rope->dims,
		              r->op->rope.head_dim);
	return KERN_OK;
}

static int check_router(const struct check_report *r, const struct kern_router *x)
{
	uint32_t groups = x->groups > 1 ? x->groups : 1, of = x->groups > 1 ? x->groups_used : 1;
	if ((unsigned)x->score > KERN_SCORE_SIGMOID)
		return refuse(r, "scores of kind %u are unknown", (unsigned)x->score);
	if (!x->experts || x->experts > KERN_EXPERTS_MAX || !x->used || x->used > KERN_EXPERTS_USED_MAX)
		return refuse(r, "to %u of %u experts, limits are %d and %d", x->used, x->experts,
		              KERN_EXPERTS_USED_MAX, KERN_EXPERTS_MAX);
	if (x->experts % groups || (groups > 1 && x->experts / groups < 2) || of < 1 || of > groups ||
	    x->used > x->experts / groups * of)
		return refuse(r, "to %u of %u experts in %u of %u groups", x->used, x->experts, of, groups);
	return KERN_OK;
}

static int check_experts(const struct check_report *r, uint32_t experts, uint32_t used)
{
	if (!used || used > KERN_EXPERTS_USED_MAX || !experts || experts > KERN_EXPERTS_MAX ||
	    used > experts)
		return refuse(r, "%u of %u experts, limits are %d and %d", used, experts,
		              KERN_EXPERTS_USED_MAX, KERN_EXPERTS_MAX);
	return KERN_OK;
}

static int check_op(const struct check_report *r, const struct kern_limits *l)
{
	const struct kern_op *op = r->op;
	int rc = KERN_OK;
	switch (op->kind) {
	case KERN_OP_CONTINUE: return check_continue(r, l);
	case KERN_OP_EMBED:
		if (!op->embed.w)
			return refuse(r, "the weight is missing");
		return check_rows(r, l, KERN_ROWS_ALL);
	case KERN_OP_GATHER_ROWS: return check_rows(r, l, KERN_ROWS_TAIL);
	case KERN_OP_MATMUL: return (rc = check_rows(r, l, -1)) ? rc : check_products(r);
	case KERN_OP_ROPE: return (rc = check_rows(r, l, KERN_ROWS_ALL)) ? rc : check_rope(r);
	case KERN_OP_KV_WRITE:
		return (rc = check_rows(r, l, KERN_ROWS_ALL)) ? rc : check_kv(r, &op->kv_write.kv);
	case KERN_OP_ATTENTION: return (rc = check_rows(r, l, -1)) ? rc : check_attention(r);
	case KERN_OP_ACT_MUL: return (rc = check_rows(r, l, -1)) ? rc : check_act(r, op->act_mul.act);
	case KERN_OP_ROUTE:
		return (rc = check_rows(r, l, -1)) ? rc : check_router(r, &op->route.router);
	case KERN_OP_EXPERTS_ACT:
		if ((rc = check_rows(r, l, -1)) || (rc = check_act(r, op->experts_act.act)) ||
		    (rc = check_experts(r, op->experts_act.experts.experts, op->experts_act.used)) ||
		    (rc = check_weights(r, op->experts_act.experts.gate, op->experts_act.experts.experts)))
			return rc;
		return check_weights(r, op->experts_act.experts.up, op->experts_act.experts.experts);
	case KERN_OP_EXPERTS_DOWN:
		if ((rc = check_rows(r, l, -1)) ||
		    (rc = check_experts(r, op->experts_down.experts.experts, op->experts_down.used)))
			return rc;
		return check_weights(r, op->experts_down.experts.down, op->experts_down.experts.experts);
	case KERN_OP_HEADS_MATMUL:
		if (!op->heads_matmul.heads)
			return refuse(r, "no heads");
		return (rc = check_rows(r, l, -1))
		           ? rc
		           : check_weights(r, op->heads_matmul.w, op->heads_matmul.heads);
	case KERN_OP_SAMPLE:
		if (!l->vocab || !op->sample.results.v || op->sample.results.v % 4)
			return refuse(r,
			              "from %u ids to results at %#zx: expected at least 1, and an address "
			              "aligned to 4 bytes",
			              l->vocab, (size_t)op->sample.results.v);
		if (op->sample.kept.v % 4)
			return refuse(r, "keeps draws at %#zx: not aligned to 4 bytes",
			              (size_t)op->sample.kept.v);
		return check_rows(r, l, KERN_ROWS_TAIL);
	case KERN_OP_GATHER: return check_gather(r, l);
	case KERN_OP_BROADCAST:
		if (!op->broadcast.at.v || op->broadcast.at.v % 4 || !op->broadcast.bytes ||
		    op->broadcast.bytes % 4 || op->broadcast.bytes > UINT32_MAX / 2)
			return refuse(r,
			              "of %zu bytes at %#zx: expected an address aligned to 4 bytes, and a "
			              "multiple of 4 bytes below 2 GiB",
			              op->broadcast.bytes, (size_t)op->broadcast.at.v);
		return check_rows(r, l, -1);
	case KERN_OP_SCALE:
	case KERN_OP_NORM:
	case KERN_OP_HEAD_NORM:
	case KERN_OP_PROGRESS:
	case KERN_OP_BARRIER: return check_rows(r, l, -1);
	default: refuse(r, "operation %u is unknown", (unsigned)op->kind); return KERN_ENOTSUP;
	}
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
                       unsigned ranks, char *errbuf, size_t errlen)
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
		int rc = check_op(&(struct check_report){&ops[i], i == 0, errbuf, errlen}, l);
		if (rc)
			return rc;
	}
	uint32_t results = l->results ? l->results : l->tail_rows;
	if (ranks > 1 && !kept_arrive(ops, n, results)) {
		snprintf(
			errbuf, errlen,
			"%u draws are kept in a group of %u ranks, of which one draws: a broadcast of them "
			"must follow the sample operation",
			results, ranks);
		return KERN_EINVAL;
	}
	return KERN_OK;
}

int kern_weight_check(enum kern_dtype dtype, uint32_t n, uint32_t k, size_t row_bytes, char *errbuf,
                      size_t errlen)
{
	if ((unsigned)dtype >= KERN_WEIGHT_DTYPES)
		snprintf(errbuf, errlen, "weight of type %s (%u): not a weight type",
		         kern_dtype_name(dtype), (unsigned)dtype);
	else if (!n || !k || !kern_dtype_bytes(dtype, k))
		snprintf(errbuf, errlen, "weight of %u rows of %u values does not fit type %s", n, k,
		         kern_dtype_name(dtype));
	else if (row_bytes && row_bytes < kern_dtype_bytes(dtype, k))
		snprintf(errbuf, errlen, "weight of type %s: rows are %zu bytes apart, %u values take %zu",
		         kern_dtype_name(dtype), row_bytes, k, kern_dtype_bytes(dtype, k));
	else
		return KERN_OK;
	return KERN_EINVAL;
}
