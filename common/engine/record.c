/* record.c - the programs of steps: a forward pass over a batch, to logits and draws or to the
 * hidden states after the final norm, built only from the device's operations.
 *
 * After the last layer's KV write only the tail continues, the rows whose logits are wanted; since
 * each row is computed independently (kernels/ops.h), this changes no bit.
 * With several ranks each records the same operations over its own heads and columns (struct
 * shard). A buffer that the next product needs as a whole is in GROUP memory: written, then
 * gathered, then read. It is overwritten only after one more gather, when all ranks have
 * finished reading: in each layer att, output and act take turns.
 * Where the device reduces, o and down are divided by the columns that they read instead: each rank
 * multiplies what it has itself, and the products are added up over the ranks.
 * With several stages each records its own layers, between a receive and a send of x, to which the
 * last layer's output was added; the last one sends its rows back to stage 0, which has a second
 * program for them, the final norm and the head. */
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
	t.at = kern_at(t.at, from * (t.type == KERN_F32 ? sizeof(float) : sizeof(uint16_t)));
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
	return (struct kern_gathered){
		.x = x, .parts = parts, .dim = share.total * width, .unit = share.unit * width};
}

void record_gather(struct recorder *r, struct kern_gathered a, const struct kern_gathered *b)
{
	struct kern_op op = {.kind = KERN_OP_GATHER, .gather = {.tensors = 1, .t = {a}}};
	if (b)
		op.gather.t[op.gather.tensors++] = *b;
	if (engine_ranks(r->e) > 1)
		record(r, op);
}

void record_sum(struct recorder *r, int summed)
{
	const struct scratch *s = &r->e->s;
	r->added = summed ? s->part : s->output;
	if (summed)
		record(r, (struct kern_op){.kind = KERN_OP_REDUCE, .reduce = {s->part, r->e->conf.hidden}});
	else
		record_gather(r, gathered(s->output, 1, r->e->shard.hidden, 1), NULL);
}

/* What is added to x next: w times x, of which this rank has its share, each element of it `width`
 * columns. */
static void record_output(struct recorder *r, struct kern_tensor x, struct tp_share own,
                          uint32_t width, const struct kern_weight *w, kern_ptr bias, int summed)
{
	const struct scratch *s = &r->e->s;
	struct tp_share all = {.begin = 0, .count = r->e->conf.hidden};
	if (!summed)
		record_gather(r, gathered(x, 1, own, width), NULL);
	record_project(r, summed ? s->part : s->output, summed ? columns(x, own.begin * width) : x, w,
	               bias, summed ? all : r->e->shard.hidden);
	record_sum(r, summed);
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

/* Where all ranks get rows of x: in GROUP memory, from which each takes them. */
static struct kern_tensor arriving(const struct engine *e)
{
	return engine_ranks(e) > 1 ? e->s.sum : e->s.x;
}

/* x = what has arrived, times `scale`. */
static void record_take(struct recorder *r, float scale)
{
	struct engine *e = r->e;
	if (engine_ranks(e) > 1 || scale != 1.0f)
		record(r, (struct kern_op){.kind = KERN_OP_SCALE,
		                           .scale = {.y = e->s.x,
		                                     .x = arriving(e),
		                                     .factor = scale,
		                                     .dim = e->conf.hidden}});
}

/* Each rank looks up the tokens that are in its rows of the table. */
static void record_embed(struct recorder *r)
{
	struct engine *e = r->e;
	struct kern_tensor y = arriving(e);
	if (e->embed) /* NULL if this rank has no rows, of a small table */
		record(r,
		       (struct kern_op){.kind = KERN_OP_EMBED,
		                        .embed = {.y = y, .w = e->embed, .first = e->shard.vocab.begin}});
	record_gather(r,
	              (struct kern_gathered){.x = y,
	                                     .parts = 1,
	                                     .dim = e->conf.hidden,
	                                     .unit = e->shard.vocab.unit,
	                                     .ids = e->shard.vocab.total},
	              NULL);
	record_take(r, e->conf.embed_scale);
}

/* To the next stage; from the last one to stage 0. */
static void record_send(struct recorder *r, struct kern_tensor x)
{
	struct engine *e = r->e;
	uint32_t peer = (e->stage + 1) % engine_stages(e);
	record(r, (struct kern_op){.kind = KERN_OP_SEND, .send = {x, e->conf.hidden, peer}});
	/* after it no rank of this stage reads the batch, or `output`, any more */
	if (engine_ranks(e) > 1)
		record(r, (struct kern_op){.kind = KERN_OP_BARRIER});
}

static void record_receive(struct recorder *r)
{
	struct engine *e = r->e;
	uint32_t peer = (e->stage + engine_stages(e) - 1) % engine_stages(e);
	record(r, (struct kern_op){.kind = KERN_OP_RECV, .recv = {arriving(e), e->conf.hidden, peer}});
}

/* x += sum, which some families norm or scale first; then h, the input of the next product. */
static void record_add_norm(struct recorder *r, struct kern_tensor x, kern_ptr post, kern_ptr next)
{
	const struct scratch *s = &r->e->s;
	const struct model_conf *c = &r->e->conf;
	const struct kern_tensor *add = &r->added;
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

/* Reports that the KV of layer l is in the pool; of other stages process 0 does (step.c). */
static void record_progress(struct recorder *r, uint32_t l)
{
	if (r->e->has_progress && !r->e->stage)
		record(r, (struct kern_op){.kind = KERN_OP_PROGRESS, .progress = {l}});
}

/* From the queries to `output`, which is added to the residual stream with the next norm. */
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
	record_output(r, s->att, own->heads, att, w->o, w->o_bias, w->o_summed);
	record_add_norm(r, x, w->attn_post_norm, w->ffn_norm);
	if (w->moe) {
		moe_record(r, l);
		return;
	}
	record_gated(r, s->act, own->ffn, w->gate, w->gate_bias, w->up, w->up_bias);
	record_output(r, s->act, own->ffn, 1, w->down, w->down_bias, w->down_summed);
}

/* --- the whole step ------------------------------------------------------ */

/* All rows of this stage, up to the model's last KV write, or to x after the stage's last layer. */
static void record_body(struct recorder *r)
{
	struct engine *e = r->e;
	struct tp_share own = e->shard.layers;
	uint32_t end = own.begin + own.count;
	if (e->s.kept.v)
		record(r, (struct kern_op){.kind = KERN_OP_ADVANCE,
		                           .advance = {.kept = e->s.kept,
		                                       .histories = e->s.histories,
		                                       .block_tokens = e->opts.block_tokens,
		                                       .match = e->opts.history_match}});
	if (e->stage) {
		record_receive(r);
		record_take(r, 1.0f);
	} else {
		record_embed(r);
	}
	record_norm(r, e->s.h, e->s.x, NULL, e->layer[own.begin].attn_norm);
	for (uint32_t l = own.begin; l < end; l++) {
		if (e->layer[l].mla)
			mla_in(r, l);
		else
			record_qkv(r, l);
		record_progress(r, l);
		if (l + 1 == e->conf.layers)
			break;
		record_layer(r, l, e->s.x, e->s.qkv);
		/* the next stage computes its norm itself: any will do here, nothing reads what it gives */
		record_add_norm(r, e->s.x, e->layer[l].ffn_post_norm,
		                e->layer[l + 1 == end ? l : l + 1].attn_norm);
	}
}

/* The last layer after its KV write, for the tail only. next: the norm of what it gives */
static void record_tail(struct recorder *r, kern_ptr next)
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
	record_add_norm(r, s->tail_x, e->layer[last].ffn_post_norm, next);
}

/* All rows go on, because a mean needs them all. */
static void record_rest(struct recorder *r, kern_ptr next)
{
	struct engine *e = r->e;
	uint32_t last = e->conf.layers - 1;
	record_layer(r, last, e->s.x, e->s.qkv);
	record_add_norm(r, e->s.x, e->layer[last].ffn_post_norm, next);
}

/* From h, the tail after the final norm, to the draws. */
static void record_logits(struct recorder *r)
{
	struct engine *e = r->e;
	const struct scratch *s = &e->s;
	record_project(r, s->logits, s->h, e->head, (kern_ptr){0}, e->shard.vocab);
	/* after this gather no other rank reads the batch any more */
	record_gather(r, gathered(s->logits, 1, e->shard.vocab, 1), NULL);
	if (engine_ranks(e) > 1)
		r->op[r->n - 1].gather.to_first = 1;
	record(r, (struct kern_op){
				  .kind = KERN_OP_SAMPLE,
				  .sample = {.logits = s->logits, .results = e->results.dev, .kept = s->kept}});
	if (engine_ranks(e) > 1 && s->kept.v)
		record(r, (struct kern_op){.kind = KERN_OP_BROADCAST,
		                           .broadcast = {s->kept,
		                                         e->limits.results * sizeof(struct kern_kept)}});
}

/* The same for hidden states. */
static void record_states(struct recorder *r)
{
	struct engine *e = r->e;
	struct kern_tensor h = e->s.h;
	if (e->conf.logit_scale != 1.0f) /* which the norm's weights contain (weights.c) */
		record(r, (struct kern_op){.kind = KERN_OP_SCALE,
		                           .scale = {h, h, 1.0f / e->conf.logit_scale, e->conf.hidden}});
	/* after it no other rank reads the batch, or `output`, any more */
	if (engine_ranks(e) > 1)
		record(r, (struct kern_op){.kind = KERN_OP_BARRIER});
}

static int new_program(struct engine *e, struct recorder *r, struct kern_program **ret_p,
                       struct err *err)
{
	int rc = e->ops->program_new(e->dev, r->op, r->n, &e->limits, ret_p);
	free(r->op);
	return rc ? engine_device_error(e, rc, "cannot prepare a step", err) : 0;
}

static int record_program(struct engine *e, enum pass pass, struct err *err)
{
	struct recorder r = {.e = e, .rows = KERN_ROWS_ALL};
	int is_tail = pass == PASS_TOKENS, one = engine_stages(e) == 1;
	record_body(&r);
	if (engine_is_last_stage(e)) {
		kern_ptr next = one ? e->final_norm : e->layer[e->conf.layers - 1].attn_norm;
		(is_tail ? record_tail : record_rest)(&r, next);
	}
	if (one)
		(is_tail ? record_logits : record_states)(&r);
	else
		record_send(&r, is_tail && engine_is_last_stage(e) ? e->s.tail_x : e->s.x);
	return new_program(e, &r, &e->program[pass], err);
}

/* What stage 0 of several does when the rows come back. */
static int record_finish(struct engine *e, enum pass pass, struct err *err)
{
	int is_tail = pass == PASS_TOKENS;
	struct recorder r = {.e = e, .rows = is_tail ? KERN_ROWS_TAIL : KERN_ROWS_ALL};
	if (e->stage || engine_stages(e) == 1)
		return 0;
	record_receive(&r);
	record_norm(&r, e->s.h, arriving(e), NULL, e->final_norm);
	(is_tail ? record_logits : record_states)(&r);
	return new_program(e, &r, &e->finish[pass], err);
}

int engine_record(struct engine *e, struct err *err)
{
	int rc = 0;
	for (int i = 0; i < (e->opts.hidden ? PASSES : PASS_HIDDEN) && !rc; i++)
		if (!(rc = record_program(e, (enum pass)i, err)))
			rc = record_finish(e, (enum pass)i, err);
	return rc;
}
