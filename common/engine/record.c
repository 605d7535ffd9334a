/* record.c - the programs of steps: a forward pass over a batch, to logits and draws or to the
 * hidden states after the final norm, built only from the device's operations.
 *
 * After the last layer's KV write only the tail continues, the rows whose logits are wanted; since
 * each row is computed independently (kernels.h), this changes no bit.
 * With several ranks each records the same operations over its own heads and columns (struct
 * shard). A buffer that the next product needs as a whole is in GROUP memory: written, then
 * gathered, then read. It is overwritten only after one more gather, when all ranks have
 * finished reading: in each layer att, sum and act take turns. */
#include "engine/mla.h"
#include "engine/moe.h"
#include "util/mem.h"

#include <stdlib.h>

void record(struct recorder *r, struct kern_op op)
{
	if (r->n == r->room) {
		r->room = r->room ? 2 * r->room : 256;
		r->op = mem_grow(r->op, r->room, sizeof *r->op);
	}
	op.rows = r->rows;
	r->op[r->n++] = op;
}

struct kern_tensor columns(struct kern_tensor t, size_t from)
{
	t.at = kern_at(t.at, from * sizeof(float));
	return t;
}

void record_project(struct recorder *r, struct kern_tensor y, struct kern_tensor x,
                    const struct kern_weight *w, kern_ptr bias, struct tp_share own)
{
	if (own.count)
		record(r, (struct kern_op){
					  .kind = KERN_OP_MATMUL,
					  .matmul = {.x = x,
		                         .products = 1,
		                         .p = {{.w = w, .bias = bias, .y = columns(y, own.begin)}}}});
}

struct kern_gathered gathered(struct kern_tensor x, uint32_t parts, struct tp_share share,
                              uint32_t width)
{
	return (struct kern_gathered){x, parts, share.total * width, share.unit * width, 0};
}

void record_gather(struct recorder *r, struct kern_gathered a, const struct kern_gathered *b)
{
	struct kern_op op = {.kind = KERN_OP_GATHER, .gather = {.tensors = 1, .t = {a}}};
	if (b)
		op.gather.t[op.gather.tensors++] = *b;
	if (r->e->tp)
		record(r, op);
}

static void gather_sum(struct recorder *r)
{
	record_gather(r, gathered(r->e->s.sum, 1, r->e->shard.hidden, 1), NULL);
}

void record_gated(struct recorder *r, struct kern_tensor act, struct tp_share own,
                  const struct kern_weight *gate, kern_ptr gate_bias, const struct kern_weight *up,
                  kern_ptr up_bias)
{
	const struct scratch *s = &r->e->s;
	struct kern_tensor to_gate = s->gate_up, to_up = columns(s->gate_up, own.count);
	if (!own.count)
		return;
	record(r,
	       (struct kern_op){.kind = KERN_OP_MATMUL,
	                        .matmul = {.x = s->h,
	                                   .products = 2,
	                                   .p = {{gate, gate_bias, to_gate}, {up, up_bias, to_up}}}});
	record(r, (struct kern_op){.kind = KERN_OP_ACT_MUL,
	                           .act_mul = {columns(act, own.begin), to_gate, to_up, r->e->conf.act,
	                                       own.count}});
}

static void record_norm(struct recorder *r, struct kern_tensor y, struct kern_tensor x,
                        const struct kern_tensor *added, kern_ptr w)
{
	const struct model_conf *c = &r->e->conf;
	record(r, (struct kern_op){.kind = KERN_OP_NORM,
	                           .norm = {.y = y,
	                                    .x = x,
	                                    .a = added ? *added : (struct kern_tensor){.ld = 0},
	                                    .w = w,
	                                    .dim = c->hidden,
	                                    .eps = c->norm_eps}});
}

/* --- a layer ------------------------------------------------------------- */

/* Each rank looks up the tokens that are in its rows of the table. */
static void record_embed(struct recorder *r)
{
	struct engine *e = r->e;
	float scale = e->conf.embed_scale;
	struct kern_tensor y = e->tp ? e->s.sum : e->s.x;
	if (e->embed) /* NULL if this rank has no rows, of a small table */
		record(r,
		       (struct kern_op){.kind = KERN_OP_EMBED,
		                        .embed = {.y = y, .w = e->embed, .first = e->shard.vocab.begin}});
	record_gather(
		r, (struct kern_gathered){y, 1, e->conf.hidden, e->shard.vocab.unit, e->shard.vocab.total},
		NULL);
	if (e->tp || scale != 1.0f)
		record(r, (struct kern_op){
					  .kind = KERN_OP_SCALE,
					  .scale = {.y = e->s.x, .x = y, .factor = scale, .dim = e->conf.hidden}});
}

/* x += sum, which some families norm or scale first; then h, the input of the next product. */
static void record_add_norm(struct recorder *r, struct kern_tensor x, kern_ptr post, kern_ptr next)
{
	const struct scratch *s = &r->e->s;
	const struct model_conf *c = &r->e->conf;
	const struct kern_tensor *add = &s->sum;
	if (post.v) {
		record_norm(r, s->h, *add, NULL, post);
		add = &s->h;
	}
	if (c->residual_scale != 1.0f) {
		record(r,
		       (struct kern_op){
				   .kind = KERN_OP_SCALE,
				   .scale = {.y = s->h, .x = *add, .factor = c->residual_scale, .dim = c->hidden}});
		add = &s->h;
	}
	record_norm(r, s->h, x, add, next);
}

static void record_head_norm(struct recorder *r, struct kern_tensor x, uint32_t heads, kern_ptr w)
{
	const struct model_conf *c = &r->e->conf;
	record(r, (struct kern_op){.kind = KERN_OP_HEAD_NORM,
	                           .head_norm = {x, w, heads, c->head_dim, c->norm_eps}});
}

static void record_qkv(struct recorder *r, uint32_t l)
{
	struct engine *e = r->e;
	const struct model_conf *c = &e->conf;
	const struct layer *w = &e->layer[l];
	uint32_t heads = e->shard.heads.count, kv_heads = e->shard.kv_heads.count;
	struct kern_tensor q = e->s.qkv, k = columns(q, heads * c->head_dim),
					   v = columns(k, kv_heads * c->head_dim);
	record(r, (struct kern_op){.kind = KERN_OP_MATMUL,
	                           .matmul = {.x = e->s.h,
	                                      .products = 3,
	                                      .p = {{w->q, w->q_bias, q},
	                                            {w->k, w->k_bias, k},
	                                            {w->v, w->v_bias, v}}}});
	if (c->qk_norm) {
		record_head_norm(r, q, heads, w->q_norm);
		record_head_norm(r, k, kv_heads, w->k_norm);
	}
	/* the heads of k follow those of q in memory: one operation rotates both */
	record(r,
	       (struct kern_op){.kind = KERN_OP_ROPE,
	                        .rope = {q, e->rope[c->layer[l].rope], heads + kv_heads, c->head_dim}});
	record(r, (struct kern_op){.kind = KERN_OP_KV_WRITE, .kv_write = {e->kv[l], k, v}});
}

/* Reports that the KV of layer l is in the pool. */
static void record_progress(struct recorder *r, uint32_t l)
{
	if (r->e->has_progress)
		record(r, (struct kern_op){.kind = KERN_OP_PROGRESS, .progress = {l}});
}

/* From the queries to `sum`, which is added to the residual stream with the next norm. */
static void record_layer(struct recorder *r, uint32_t l, struct kern_tensor x,
                         struct kern_tensor qkv)
{
	struct engine *e = r->e;
	const struct model_conf *c = &e->conf;
	const struct layer *w = &e->layer[l];
	const struct scratch *s = &e->s;
	const struct shard *own = &e->shard;
	uint32_t att = engine_att_width(c);
	if (w->mla)
		mla_attention(r, l, qkv);
	else
		record(r, (struct kern_op){.kind = KERN_OP_ATTENTION,
		                           .attention = {.kv = e->kv[l],
		                                         .out = columns(s->att, own->heads.begin * att),
		                                         .q = qkv,
		                                         .heads = own->heads.count,
		                                         .window = c->layer[l].window,
		                                         .scale = c->attn_scale,
		                                         .sinks = w->sinks}});
	record_gather(r, gathered(s->att, 1, own->heads, att), NULL);
	record_project(r, s->sum, s->att, w->o, w->o_bias, own->hidden);
	gather_sum(r);
	record_add_norm(r, x, w->attn_post_norm, w->ffn_norm);
	if (w->moe) {
		moe_record(r, l);
		return;
	}
	record_gated(r, s->act, own->ffn, w->gate, w->gate_bias, w->up, w->up_bias);
	record_gather(r, gathered(s->act, 1, own->ffn, 1), NULL);
	record_project(r, s->sum, s->act, w->down, w->down_bias, own->hidden);
	gather_sum(r);
}

/* --- the whole step ------------------------------------------------------ */

/* The last layer after its KV write, for the tail only; then the head. */
static void record_tail(struct recorder *r)
{
	struct engine *e = r->e;
	const struct model_conf *c = &e->conf;
	const struct scratch *s = &e->s;
	uint32_t last = c->layers - 1;
	r->rows = KERN_ROWS_TAIL;
	record(r, (struct kern_op){.kind = KERN_OP_GATHER_ROWS,
	                           .gather_rows = {s->tail_x, s->x, c->hidden}});
	record(r, (struct kern_op){.kind = KERN_OP_GATHER_ROWS,
	                           .gather_rows = {s->tail_qkv, s->qkv, engine_qkv_width(e)}});
	record_layer(r, last, s->tail_x, s->tail_qkv);
	record_add_norm(r, s->tail_x, e->layer[last].ffn_post_norm, e->final_norm);
	record_project(r, s->logits, s->h, e->head, (kern_ptr){0}, e->shard.vocab);
	/* after this gather no other rank reads the batch any more */
	record_gather(r, gathered(s->logits, 1, e->shard.vocab, 1), NULL);
	if (e->tp)
		r->op[r->n - 1].gather.to_first = 1;
	record(r, (struct kern_op){
				  .kind = KERN_OP_SAMPLE,
				  .sample = {.logits = s->logits, .results = e->results.dev, .kept = s->kept}});
	if (e->tp && s->kept.v)
		record(r, (struct kern_op){.kind = KERN_OP_BROADCAST,
		                           .broadcast = {s->kept,
		                                         e->limits.results * sizeof(struct kern_kept)}});
}

/* All rows, up to the last layer's KV write. */
static void record_body(struct recorder *r)
{
	struct engine *e = r->e;
	const struct model_conf *c = &e->conf;
	if (e->s.kept.v)
		record(r, (struct kern_op){.kind = KERN_OP_CONTINUE,
		                           .carry_on = {.kept = e->s.kept,
		                                        .histories = e->s.histories,
		                                        .block_tokens = e->opts.block_tokens,
		                                        .match = e->opts.history_match}});
	record_embed(r);
	record_norm(r, e->s.h, e->s.x, NULL, e->layer[0].attn_norm);
	for (uint32_t l = 0; l < c->layers; l++) {
		if (e->layer[l].mla)
			mla_in(r, l);
		else
			record_qkv(r, l);
		record_progress(r, l);
		if (l + 1 == c->layers)
			break;
		record_layer(r, l, e->s.x, e->s.qkv);
		record_add_norm(r, e->s.x, e->layer[l].ffn_post_norm, e->layer[l + 1].attn_norm);
	}
}

/* All rows go on, to the final norm, because a mean needs them all. */
static void record_hidden(struct recorder *r)
{
	struct engine *e = r->e;
	uint32_t last = e->conf.layers - 1;
	struct kern_tensor h = e->s.h;
	record_layer(r, last, e->s.x, e->s.qkv);
	record_add_norm(r, e->s.x, e->layer[last].ffn_post_norm, e->final_norm);
	if (e->conf.logit_scale != 1.0f) /* which the norm's weights contain (weights.c) */
		record(r, (struct kern_op){.kind = KERN_OP_SCALE,
		                           .scale = {h, h, 1.0f / e->conf.logit_scale, e->conf.hidden}});
	/* after it no other rank reads the batch, or `sum`, any more */
	if (e->tp)
		record(r, (struct kern_op){.kind = KERN_OP_BARRIER});
}

static int new_program(struct engine *e, void (*rest)(struct recorder *r),
                       struct kern_program **ret_p, struct err *err)
{
	struct recorder r = {.e = e, .rows = KERN_ROWS_ALL};
	record_body(&r);
	rest(&r);
	int rc = e->ops->program_new(e->dev, r.op, r.n, &e->limits, ret_p);
	free(r.op);
	return rc ? engine_device_error(e, rc, "cannot prepare a step", err) : 0;
}

int engine_record(struct engine *e, struct err *err)
{
	int rc = new_program(e, record_tail, &e->program, err);
	return rc || !e->opts.hidden ? rc : new_program(e, record_hidden, &e->hidden_program, err);
}
