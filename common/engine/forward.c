/* forward.c - one forward pass over a batch of spans, by the device's operations alone.
 *
 * Order: check everything, lay the batch out in one host buffer, upload it, enqueue all layers, wait once. Nothing is written to the KV
 * pool before every span has been checked. In the last layer only the rows whose logits are wanted go on past the KV write; as each row
 * is computed from itself alone (kernels.h), that changes no bit.
 * With several ranks each runs the same operations over its own heads and columns (struct shard). What the next product needs in whole is
 * gathered in memory that all see: written, then met (`step_gather`), then read. A buffer is written again only after one more meeting than
 * its readers': sum and att of a layer, then act.
 * A bad span is the caller's error and is returned; so is a failure of the device or of a rank. */
#include "engine/mla.h"
#include "engine/moe.h"
#include "util/check.h"

#include <stdatomic.h>
#include <string.h>

#define SPAN_WORDS (sizeof(struct kern_span) / sizeof(uint32_t))

static uint32_t wanted_rows(const struct engine_span *s)
{
	return s->logits == ENGINE_LOGITS_ALL ? s->n : s->logits == ENGINE_LOGITS_LAST ? 1 : 0;
}

static uint32_t table_length(const struct engine *e, const struct engine_span *s)
{
	return (uint32_t)(((uint64_t)s->position + s->n + e->opts.block_tokens - 1) / e->opts.block_tokens);
}

/* --- checks ------------------------------------------------------------------------------------------------------------- */

static int check_span(const struct engine *e, const struct engine_span *s, uint32_t index, struct err *err)
{
	if (s->n < 1 || s->n > e->opts.max_rows)
		return err_set(err, ERR_INVALID, "span %u: %u tokens, limits are 1 and %u", index, s->n, e->opts.max_rows);
	if ((uint64_t)s->position + s->n > e->info.context)
		return err_set(err, ERR_INVALID, "span %u: positions %u up to %llu, the model's context is %u", index, s->position,
		               (unsigned long long)s->position + s->n - 1, e->info.context);
	for (uint32_t i = 0; i < s->n; i++)
		if (s->tokens[i] >= e->info.vocab)
			return err_set(err, ERR_INVALID, "span %u: token %u is id %u, the vocabulary has %u", index, i, s->tokens[i], e->info.vocab);
	for (uint32_t i = 0; i < table_length(e, s); i++)
		if (s->blocks[i] >= e->kv_blocks)
			return err_set(err, ERR_INVALID, "span %u: entry %u of the block table is block %u, the pool has %u", index, i, s->blocks[i], e->kv_blocks);
	return 0;
}

/* Sums over the spans of one step. */
struct totals {
	uint64_t rows, logits, table;
};

static int check_step(const struct engine *e, const struct engine_span *spans, uint32_t n, struct totals *ret, struct err *err)
{
	uint64_t rows = 0, logits = 0, table = 0;
	if (!e->kv_dev)
		return err_set(err, ERR_INVALID, "no KV pool is attached");
	if (n < 1 || n > e->opts.max_spans)
		return err_set(err, ERR_INVALID, "%u spans in one step, limits are 1 and %u", n, e->opts.max_spans);
	for (uint32_t i = 0; i < n; i++) {
		int rc = check_span(e, &spans[i], i, err);
		if (rc)
			return rc;
		rows += spans[i].n;
		logits += wanted_rows(&spans[i]);
		table += table_length(e, &spans[i]);
	}
	if (rows > e->opts.max_rows)
		return err_set(err, ERR_INVALID, "%llu tokens in one step, the limit is %u", (unsigned long long)rows, e->opts.max_rows);
	if (logits > e->opts.max_logits)
		return err_set(err, ERR_INVALID, "%llu rows of logits in one step, the limit is %u", (unsigned long long)logits, e->opts.max_logits);
	if (table > e->opts.max_table)
		return err_set(err, ERR_INVALID, "%llu block table entries in one step, the limit is %u", (unsigned long long)table, e->opts.max_table);
	*ret = (struct totals){rows, logits, table};
	return 0;
}

/* --- the batch ---------------------------------------------------------------------------------------------------------- */

static void add_span(struct step *st, const struct engine_span *s)
{
	struct engine *e = st->e;
	struct kern_batch *a = &st->all;
	uint32_t *host = e->b.host;
	memcpy(host + e->b.tokens + a->rows, s->tokens, s->n * sizeof *s->tokens);
	for (uint32_t i = 0; i < s->n; i++)
		host[e->b.positions + a->rows + i] = s->position + i;
	struct kern_span k = {.row = a->rows, .rows = s->n, .position = s->position, .table = a->table_len};
	memcpy(host + e->b.spans + a->spans * SPAN_WORDS, &k, sizeof k);
	uint32_t blocks = table_length(e, s);
	memcpy(host + e->b.table + a->table_len, s->blocks, blocks * sizeof *s->blocks);
	a->spans++;
	a->rows += s->n;
	a->table_len += blocks;
}

/* The rows of s that go to the head; its rows in the whole batch end at `end`, its table starts at `table`. */
static void add_tail(struct step *st, struct engine_span *s, uint32_t end, uint32_t table)
{
	struct engine *e = st->e;
	struct kern_batch *t = &st->tail;
	uint32_t n = wanted_rows(s), *host = e->b.host;
	s->logits_row = t->rows;
	if (!n)
		return;
	for (uint32_t i = 0; i < n; i++) {
		host[e->b.tail_index + t->rows + i] = end - n + i;
		host[e->b.tail_positions + t->rows + i] = s->position + s->n - n + i;
	}
	struct kern_span k = {.row = t->rows, .rows = n, .position = s->position + s->n - n, .table = table};
	memcpy(host + e->b.tail_spans + t->spans * SPAN_WORDS, &k, sizeof k);
	t->spans++;
	t->rows += n;
}

/* Where the parts lie, without a hole, so that a small step uploads little. */
static void place(struct batch_words *b, const struct totals *t, uint32_t spans)
{
	size_t at = 0;
	const struct {
		size_t *offset, words;
	} parts[] = {
		{&b->tokens, t->rows},       {&b->positions, t->rows},        {&b->spans, spans * SPAN_WORDS},      {&b->table, t->table},
		{&b->tail_index, t->logits}, {&b->tail_positions, t->logits}, {&b->tail_spans, spans * SPAN_WORDS},
	};
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		*parts[i].offset = at;
		at += parts[i].words;
	}
	b->used = at;
	CHECK(b->used <= b->words);
}

static void lay_out(struct step *st, const struct totals *t)
{
	struct batch_words *b = &st->e->b;
	place(b, t, st->spans);
	for (uint32_t i = 0; i < st->spans; i++) {
		uint32_t table = st->all.table_len;
		add_span(st, &st->span[i]);
		add_tail(st, &st->span[i], st->all.rows, table);
	}
	st->whole_tail = st->tail.rows == st->all.rows;
}

/* The parts as the device sees them. */
static void point(struct step *st)
{
	const struct batch_words *b = &st->e->b;
	st->all.tokens = b->dev + b->tokens;
	st->all.positions = b->dev + b->positions;
	st->all.span = (const struct kern_span *)(b->dev + b->spans);
	st->all.span_host = (const struct kern_span *)(b->host + b->spans);
	st->all.block_table = st->tail.block_table = b->dev + b->table;
	st->tail.table_len = st->all.table_len;
	st->tail.tokens = NULL;
	st->tail.positions = b->dev + b->tail_positions;
	st->tail.span = (const struct kern_span *)(b->dev + b->tail_spans);
	st->tail.span_host = (const struct kern_span *)(b->host + b->tail_spans);
}

/* --- operations --------------------------------------------------------------------------------------------------------- */

void step_project(struct step *st, float *y, const float *x, uint32_t rows, const struct kern_weight *w, const float *bias, struct tp_share own,
                  uint32_t n)
{
	struct kern_product p = {.w = w, .bias = bias, .y = y + own.begin, .ldy = n};
	if (own.count)
		RUN(st, matmul, x, rows, &p, 1);
}

/* --- several ranks ------------------------------------------------------------------------------------------------------ */

void step_gather(struct step *st)
{
	struct engine *e = st->e;
	if (!e->tp)
		return;
	if (st->rc)
		tp_fail(e->tp, e->ops->last_error(e->dev));
	if (tp_meet(e->tp, TP_STEP_LIMIT_S) && !st->rc)
		st->rc = KERN_EDEVICE;
}

void step_place_own(struct step *st, float *all, uint32_t n, const float *own, struct tp_share share, uint32_t rows)
{
	if (all == own || st->rc)
		return;
	for (uint32_t r = 0; r < rows; r++)
		memcpy(all + (size_t)r * n + share.begin, own + (size_t)r * share.count, share.count * sizeof *own);
}

/* Each rank looks up the tokens of its rows of the table. */
static void embed_share(struct step *st)
{
	struct engine *e = st->e;
	struct tp_share own = e->shard.vocab;
	uint32_t rows = st->all.rows, hidden = e->conf.hidden;
	for (uint32_t r = 0; r < rows; r++) {
		uint32_t token = st->all.tokens[r] - own.begin;
		if (st->all.tokens[r] >= own.begin && token < own.count)
			RUN(st, embed, e->s.sum + (size_t)r * hidden, e->embed, &token, 1);
	}
	step_gather(st);
	if (!st->rc)
		memcpy(e->s.x, e->s.sum, (size_t)rows * hidden * sizeof(float));
}

static void embed(struct step *st)
{
	struct engine *e = st->e;
	if (e->tp)
		embed_share(st);
	else
		RUN(st, embed, e->s.x, e->embed, st->all.tokens, st->all.rows);
	if (e->conf.embed_scale != 1.0f)
		RUN(st, scale, e->s.x, e->conf.embed_scale, (size_t)st->all.rows * e->conf.hidden);
}

/* x += sum, normed itself first or scaled where the family does that; then h, what the next product
 * reads. sum is for all ranks to read: with others, it is scaled in h. */
static void add_norm(struct step *st, float *x, const float *post, const float *next, uint32_t rows)
{
	const struct model_conf *c = &st->e->conf;
	struct scratch *s = &st->e->s;
	size_t count = (size_t)rows * c->hidden;
	float *add = post || (c->residual_scale != 1.0f && st->e->tp) ? s->h : s->sum;
	if (post)
		RUN(st, rms_norm, s->h, s->sum, post, rows, c->hidden, c->norm_eps);
	else if (add != s->sum && !st->rc)
		memcpy(add, s->sum, count * sizeof *add);
	if (c->residual_scale != 1.0f)
		RUN(st, scale, add, c->residual_scale, count);
	RUN(st, add_rms_norm, s->h, x, add, next, rows, c->hidden, c->norm_eps);
}

static void attention_in(struct step *st, uint32_t l)
{
	struct engine *e = st->e;
	const struct model_conf *c = &e->conf;
	const struct layer *w = &e->layer[l];
	struct scratch *s = &e->s;
	uint32_t heads = e->shard.heads.count, kv_heads = e->shard.kv_heads.count, rows = st->all.rows;
	uint32_t q_dim = heads * c->head_dim, kv_dim = kv_heads * c->head_dim, ld = engine_qkv_width(e);
	const struct kern_product p[] = {
		{.w = w->q, .bias = w->q_bias, .y = s->qkv, .ldy = ld},
		{.w = w->k, .bias = w->k_bias, .y = s->qkv + q_dim, .ldy = ld},
		{.w = w->v, .bias = w->v_bias, .y = s->qkv + q_dim + kv_dim, .ldy = ld},
	};
	RUN(st, matmul, s->h, rows, p, 3);
	if (c->qk_norm) {
		RUN(st, head_norm, s->qkv, ld, heads, c->head_dim, w->q_norm, rows, c->norm_eps);
		RUN(st, head_norm, s->qkv + q_dim, ld, kv_heads, c->head_dim, w->k_norm, rows, c->norm_eps);
	}
	/* the heads of k follow those of q: one call turns both */
	RUN(st, rope, s->qkv, ld, heads + kv_heads, c->head_dim, &e->rope[c->layer[l].rope], st->all.positions, rows);
	RUN(st, kv_write, &e->kv[l], s->qkv + q_dim, s->qkv + q_dim + kv_dim, ld, &st->all);
}

/* From h to sum, which all ranks may read then. */
static void feed_forward(struct step *st, uint32_t l, uint32_t rows)
{
	struct engine *e = st->e;
	const struct model_conf *c = &e->conf;
	const struct layer *w = &e->layer[l];
	struct scratch *s = &e->s;
	const struct shard *own = &e->shard;
	uint32_t ffn = own->ffn.count;
	const struct kern_product p[] = {
		{.w = w->gate, .bias = w->gate_bias, .y = s->gate_up, .ldy = 2 * (size_t)ffn},
		{.w = w->up, .bias = w->up_bias, .y = s->gate_up + ffn, .ldy = 2 * (size_t)ffn},
	};
	if (ffn) {
		RUN(st, matmul, s->h, rows, p, 2);
		RUN(st, act_mul, s->own_act, s->gate_up, s->gate_up + ffn, 2 * (size_t)ffn, c->act, rows, ffn);
	}
	step_place_own(st, s->act, c->ffn, s->own_act, own->ffn, rows);
	step_gather(st);
	step_project(st, s->sum, s->act, rows, w->down, w->down_bias, own->hidden, c->hidden);
	step_gather(st);
}

/* From the queries to the sum for the residual stream, which is added with the next norm (add_norm). */
static void attention_and_mlp(struct step *st, uint32_t l, float *x, const float *qkv, const struct kern_batch *b)
{
	struct engine *e = st->e;
	const struct model_conf *c = &e->conf;
	const struct layer *w = &e->layer[l];
	struct scratch *s = &e->s;
	const struct shard *own = &e->shard;
	uint32_t width = engine_att_width(c);
	const struct tp_share att = {own->heads.begin * width, own->heads.count * width};
	if (w->mla)
		mla_attention(st, l, qkv, b);
	else
		RUN(st, attention, s->own_att, qkv, engine_qkv_width(e), own->heads.count, &e->kv[l], c->attn_scale, c->layer[l].window, w->sinks, b);
	step_place_own(st, s->att, c->heads * width, s->own_att, att, b->rows);
	step_gather(st);
	step_project(st, s->sum, s->att, b->rows, w->o, w->o_bias, own->hidden, c->hidden);
	step_gather(st);
	add_norm(st, x, w->attn_post_norm, w->ffn_norm, b->rows);
	if (w->moe)
		moe_run(st, l, b->rows);
	else
		feed_forward(st, l, b->rows);
}

/* The KV of layer l is in the pool, all ranks' heads of it: say so for every span that has a progress board, and to the caller. */
static void publish(struct step *st, uint32_t l, engine_layer_hook *hook, void *hook_arg)
{
	if (!st->publish)
		return;
	step_gather(st);
	for (uint32_t i = 0; i < st->spans; i++)
		if (st->span[i].progress)
			RUN(st, signal, &st->span[i].progress[l * st->span[i].progress_stride], st->span[i].progress_value);
	if (hook && !st->rc)
		hook(hook_arg, l);
}

/* The last layer past its KV write, for the wanted rows alone; then the head. */
static void last_layer(struct step *st)
{
	struct engine *e = st->e;
	const struct model_conf *c = &e->conf;
	struct scratch *s = &e->s;
	uint32_t rows = st->tail.rows;
	if (!rows)
		return;
	float *x = s->x, *qkv = s->qkv;
	if (!st->whole_tail) {
		const uint32_t *index = e->b.dev + e->b.tail_index;
		RUN(st, gather_rows, s->tail_x, s->x, index, rows, c->hidden);
		RUN(st, gather_rows, s->tail_qkv, s->qkv, index, rows, engine_qkv_width(e));
		x = s->tail_x;
		qkv = s->tail_qkv;
	}
	attention_and_mlp(st, c->layers - 1, x, qkv, &st->tail);
	add_norm(st, x, e->layer[c->layers - 1].ffn_post_norm, e->final_norm, rows);
	step_project(st, s->logits, s->h, rows, e->head, NULL, e->shard.vocab, c->vocab);
	if (!e->logits_shared)
		RUN(st, download, e->host_logits, s->logits, (size_t)rows * c->vocab * sizeof(float));
}

static void run_layers(struct step *st, engine_layer_hook *hook, void *hook_arg)
{
	struct engine *e = st->e;
	const struct model_conf *c = &e->conf;
	struct scratch *s = &e->s;
	RUN(st, upload, e->b.dev, e->b.host, e->b.used * sizeof(uint32_t));
	embed(st);
	RUN(st, rms_norm, s->h, s->x, e->layer[0].attn_norm, st->all.rows, c->hidden, c->norm_eps);
	for (uint32_t l = 0; l < c->layers; l++) {
		if (e->layer[l].mla)
			mla_in(st, l);
		else
			attention_in(st, l);
		publish(st, l, hook, hook_arg);
		atomic_fetch_add_explicit(&e->pulse, 1, memory_order_relaxed);
		if (l + 1 == c->layers)
			break;
		attention_and_mlp(st, l, s->x, s->qkv, &st->all);
		add_norm(st, s->x, e->layer[l].ffn_post_norm, e->layer[l + 1].attn_norm, st->all.rows);
	}
	last_layer(st);
	step_gather(st);                /* all logits are there, and nobody reads this batch any more */
}

static void tell_ranks(const struct step *st)
{
	const struct engine *e = st->e;
	if (!e->tp)
		return;
	struct rank_step order = {
		.rows = st->all.rows, .spans = st->all.spans, .table_len = st->all.table_len, .tail_rows = st->tail.rows, .tail_spans = st->tail.spans,
		.whole_tail = st->whole_tail, .publish = st->publish, .at = e->b,
	};
	_Static_assert(sizeof order <= TP_ORDER_BYTES, "an order takes a step");
	tp_order(e->tp, TP_STEP, &order, sizeof order);
}

void engine_rank_step(struct engine *e, const struct rank_step *order)
{
	struct step st = {.e = e, .whole_tail = order->whole_tail, .publish = order->publish};
	uint32_t *host = e->b.host, *dev = e->b.dev;
	e->b = order->at;
	e->b.host = host;
	e->b.dev = dev;
	st.all.rows = order->rows;
	st.all.spans = order->spans;
	st.all.table_len = order->table_len;
	st.tail.rows = order->tail_rows;
	st.tail.spans = order->tail_spans;
	point(&st);
	run_layers(&st, NULL, NULL);
	e->ops->sync(e->stream);
}

const char *engine_broken(const struct engine *e)
{
	return e->tp ? tp_why(e->tp) : NULL;
}

uint64_t engine_pulse(const struct engine *e)
{
	return atomic_load_explicit(&e->pulse, memory_order_relaxed);
}

static int step_error(struct engine *e, int kern_rc, struct err *err)
{
	if (engine_broken(e))
		return err_set(err, ERR_IO, "forward pass: %.300s", engine_broken(e));
	engine_device_error(e, kern_rc, "forward pass", err);
	return err ? (err->code = ERR_IO) : ERR_IO;
}

int engine_step(struct engine *e, struct engine_span *spans, uint32_t n_spans, engine_layer_hook *hook, void *hook_arg, struct err *err)
{
	struct totals totals = {0};
	int rc = check_step(e, spans, n_spans, &totals, err);
	if (rc)
		return rc;
	if (engine_broken(e))
		return step_error(e, 0, err);
	struct step st = {.e = e, .span = spans, .spans = n_spans, .publish = hook != NULL};
	for (uint32_t i = 0; i < n_spans; i++)
		st.publish |= spans[i].progress != NULL;
	lay_out(&st, &totals);
	point(&st);
	tell_ranks(&st);
	run_layers(&st, hook, hook_arg);
	/* also after an error: the host buffers must not be in use any more */
	int sync = e->ops->sync(e->stream);
	return st.rc || sync ? step_error(e, st.rc ? st.rc : sync, err) : 0;
}

const float *engine_logits(const struct engine *e, uint32_t row)
{
	CHECK(row < e->opts.max_logits);
	return e->host_logits + (size_t)row * e->info.vocab;
}
