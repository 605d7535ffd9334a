/* program.c - programs: what an operation does to the word of each row, and its cost.
 *
 * A token's x passes through the layers: each mixes in its chain (attention), so the logits depend
 * on every layer's KV of the whole prefix. Every row is computed from that row alone.
 *
 * Costs accumulate from one KV write to the next, so a replay charges one layer at a time. Products
 * read every weight once and use it once per row (kern_operands); attention counts the positions
 * that rows attend to and reads the KV of their sequences; a layer has one launch, at its KV write.
 * Programs do not express tensor parallelism, as the device has no group: an addition to the
 * residual stream (a norm that adds) counts as a ring all-reduce of 16-bit rows. */
#include "kernels/advance.h"
#include "kernels/operands.h"
#include "kernels/sim/sim.h"

#include <stdlib.h>
#include <string.h>

/* A recorded operation over columns: y = f(x, a). */
struct sim_op {
	struct kern_op op;
	int (*run)(struct kern_program *p, const struct sim_op *o);
	uint64_t *y[KERN_PRODUCTS_MAX], *x, *a;
	size_t ys;
	struct sim_cost cost;
};

static uint32_t rows_of(const struct kern_program *p, const struct sim_op *o)
{
	return o->op.rows == KERN_ROWS_ALL ? p->batch->rows : p->batch->tail_rows;
}

/* --- logits -------------------------------------------------------------- */

static int is_eos(const struct sim_options *o, uint32_t id)
{
	for (uint32_t i = 0; i < o->n_eos; i++)
		if (o->eos[i] == id)
			return 1;
	return 0;
}

/* Chooses the most likely token for a row's word, and a few less likely ones. Only eos_rate
 * produces eos. */
static void choose_peaks(const struct sim_options *o, uint32_t vocab, uint64_t x,
                         uint32_t peak[SIM_PEAKS])
{
	for (uint32_t i = 0; i < SIM_PEAKS; i++) {
		uint64_t h = sim_mix(x, i + 1);
		uint32_t id = (uint32_t)(h % vocab);
		while (is_eos(o, id) && o->n_eos < vocab)
			id = (id + 1) % vocab;
		peak[i] = id;
	}
	if (o->n_eos && (double)(sim_mix(x, SIM_PEAKS + 1) >> 11) * 0x1p-53 < o->eos_rate)
		peak[0] = o->eos[0];
}

/* Logits are zero except for SIM_PEAKS entries. Writes only the differences from the row's last
 * use. */
static int run_logits(struct kern_program *p, const struct sim_op *o)
{
	static const float height[SIM_PEAKS] = {14.0f, 13.0f, 12.25f, 11.5f, 10.75f};
	const struct kern_tensor *y = &o->op.matmul.p[0].y;
	if (p->dev->wrote_logits != p)
		p->floors = 0;
	p->dev->wrote_logits = p;
	for (uint32_t r = 0; r < rows_of(p, o); r++) {
		uint32_t *peak = p->peak + (size_t)r * SIM_PEAKS;
		float *row = (float *)y->at.v + r * y->ld;
		if (r == p->floors) {
			memset(row, 0, p->table->n * sizeof *row);
			memset(peak, 0, SIM_PEAKS * sizeof *peak);
			p->floors++;
		}
		for (int i = 0; i < SIM_PEAKS; i++)
			row[peak[i]] = 0.0f;
		choose_peaks(&p->dev->opt, p->table->n, o->x[r], peak);
		for (int i = SIM_PEAKS; i-- > 0;)
			row[peak[i]] = height[i];
	}
	return KERN_OK;
}

/* --- other operations on row words --------------------------------------- */

static int run_embed(struct kern_program *p, const struct sim_op *o)
{
	const uint32_t *token = kern_part(p->batch, p->batch->tokens);
	for (uint32_t r = 0; r < p->batch->rows; r++)
		o->y[0][r] = sim_mix(p->dev->opt.seed, token[r]);
	return KERN_OK;
}

static int run_gather_rows(struct kern_program *p, const struct sim_op *o)
{
	const uint32_t *index = kern_part(p->batch, p->batch->tail_index);
	for (uint32_t r = 0; r < p->batch->tail_rows; r++)
		o->y[0][r] = o->x[index[r]];
	return KERN_OK;
}

static int run_copy(struct kern_program *p, const struct sim_op *o)
{
	for (size_t i = 0; i < o->ys; i++)
		memmove(o->y[i], o->x, rows_of(p, o) * sizeof *o->x);
	return KERN_OK;
}

static int run_add(struct kern_program *p, const struct sim_op *o)
{
	for (uint32_t r = 0; r < rows_of(p, o); r++)
		o->y[0][r] = o->x[r] = sim_mix(o->x[r], o->a[r]);
	return KERN_OK;
}

static int run_attention(struct kern_program *p, const struct sim_op *o)
{
	const struct kern_batch *b = p->batch;
	int tail = o->op.rows == KERN_ROWS_TAIL;
	const struct kern_span *sp = kern_part(b, tail ? b->tail_span : b->span);
	for (const struct kern_span *end = sp + (tail ? b->tail_spans : b->spans); sp < end; sp++)
		for (uint32_t i = 0; i < sp->rows; i++)
			o->y[0][sp->row + i] = sim_kv_chain(&o->op.attention.kv,
			                                    kern_part(b, b->table + sp->table),
			                                    sp->position + i);
	return KERN_OK;
}

/* Charges the work since the last KV write: the longer of computing and reading memory, plus
 * overhead. */
static void charge(struct kern_program *p)
{
	sim_clock_charge(p->dev,
	                 (p->compute_ns > p->memory_ns ? p->compute_ns : p->memory_ns) + p->fixed_ns);
	p->compute_ns = p->memory_ns = p->fixed_ns = 0;
}

static int run_kv_write(struct kern_program *p, const struct sim_op *o)
{
	charge(p);
	return sim_kv_write(p, &o->op.kv_write.kv, o->x);
}

static int run_progress(struct kern_program *p, const struct sim_op *o)
{
	const struct kern_batch *b = p->batch;
	const struct kern_progress *told = kern_part(b, b->progress);
	if (!b->progress)
		return KERN_OK;
	sim_clock_wait(p->dev);
	for (uint32_t i = 0; i < b->spans; i++)
		if (told[i].word.v)
			__atomic_store_n((uint64_t *)told[i].word.v + o->op.progress.layer * told[i].stride,
			                 told[i].value, __ATOMIC_RELEASE);
	if (p->dev->progressed)
		p->dev->progressed(p->dev->progressed_arg);
	return KERN_OK;
}

/* Costs no simulated time: sampling is negligible compared to the forward pass. */
static int run_sample(struct kern_program *p, const struct sim_op *o)
{
	const struct kern_batch *b = p->batch;
	const struct kern_tensor *logits = &o->op.sample.logits;
	for (uint32_t r = 0; b->draws && r < b->tail_rows; r++)
		kern_sample(p->sampler, (const float *)logits->at.v + r * logits->ld, b, r, &o->op);
	return KERN_OK;
}

/* The norm that ends a program: only the host reads its result, so rows have elements: the first
 * ones are a function of the row's word, the others are as they were, zero. */
static int run_result(struct kern_program *p, const struct sim_op *o)
{
	const struct kern_tensor *y = &o->op.norm.y;
	int rc = o->op.norm.a.at.v ? run_add(p, o) : run_copy(p, o);
	for (uint32_t r = 0; r < rows_of(p, o); r++)
		for (uint32_t i = 0; i < SIM_ELEMENTS && i < o->op.norm.dim; i++)
			((float *)y->at.v)[r * y->ld + i] = (float)((double)(sim_mix(o->y[0][r], i) >> 11) *
			                                                0x1p-52 -
			                                            1.0);
	return rc;
}

/* --- recording ----------------------------------------------------------- */

/* The row words of a matrix; NULL: too many matrices. */
static uint64_t *column(struct kern_program *p, const struct kern_tensor *t)
{
	size_t i = 0;
	while (i < p->columns && p->matrix[i].v != t->at.v)
		i++;
	if (i == SIM_COLUMNS)
		return NULL;
	p->columns += i == p->columns;
	p->matrix[i] = t->at;
	return p->word + i * p->column_rows;
}

static int record_advance(struct kern_program *p, struct sim_op *o)
{
	p->advance = &o->op; /* done before the other operations, see sim_run */
	return KERN_OK;
}

static int record_embed(struct kern_program *p, struct sim_op *o)
{
	o->run = run_embed;
	p->table = o->op.embed.w;
	if (o->op.embed.first || p->table->n <= SIM_PEAKS)
		return sim_fail(
			p->dev, KERN_EINVAL,
			"embed: %u tokens from %u on, a simulated model needs more than %d, from 0 on",
			p->table->n, o->op.embed.first, SIM_PEAKS);
	return KERN_OK;
}

static int record_gather_rows(struct kern_program *p, struct sim_op *o)
{
	(void)p;
	o->run = run_gather_rows;
	return KERN_OK;
}

static int record_norm(struct kern_program *p, struct sim_op *o)
{
	const struct sim_options *d = &p->dev->opt;
	if (!o->op.norm.a.at.v)
		return KERN_OK;
	o->run = run_add;
	o->a = column(p, &o->op.norm.a);
	if (d->tp > 1)
		o->cost = (struct sim_cost){.launch = 1e3 * d->exchange_us / 2,
		                            .exchange = 1e9 * o->op.norm.dim * 2.0 * 2.0 * (d->tp - 1.0) /
		                                        d->tp / d->link_bandwidth};
	return KERN_OK;
}

/* The embedding's table is the head. Logits, and the norm that ends a program, are the only tensors
 * with real elements. */
static int record_matmul(struct kern_program *p, struct sim_op *o)
{
	const struct kern_product *head = &o->op.matmul.p[0];
	if (head->w != p->table)
		return KERN_OK;
	o->run = run_logits;
	return head->y.type == KERN_F32
	           ? KERN_OK
	           : sim_fail(p->dev, KERN_EINVAL,
	                      "matmul: logits of type %s: a simulated model needs f32",
	                      kern_dtype_name(head->y.type));
}

static int record_sample(struct kern_program *p, struct sim_op *o)
{
	o->run = run_sample;
	if (!p->table || p->table->n != p->limits.vocab)
		return sim_fail(p->dev, KERN_EINVAL, "sample from %u ids, a simulated model has %u",
		                p->limits.vocab, p->table ? p->table->n : 0);
	if (p->sampler)
		return KERN_OK;
	p->sampler_memory = calloc(1, kern_sampler_bytes(p->limits.vocab) + 63);
	if (!p->sampler_memory)
		return KERN_ENOMEM;
	p->sampler = kern_sampler_init((void *)(((uintptr_t)p->sampler_memory + 63) & ~(uintptr_t)63),
	                               p->limits.vocab);
	return KERN_OK;
}

static int record_kv_write(struct kern_program *p, struct sim_op *o)
{
	p->layers++;
	o->run = run_kv_write;
	o->x = column(p, &o->op.kv_write.v);
	o->cost.launch = 1e3 * p->dev->opt.launch_us;
	return sim_kv_check(p, &o->op.kv_write.kv);
}

static int record_progress(struct kern_program *p, struct sim_op *o)
{
	(void)p;
	o->run = run_progress;
	return KERN_OK;
}

static int record_attention(struct kern_program *p, struct sim_op *o)
{
	const struct sim_options *d = &p->dev->opt;
	const struct kern_op *op = &o->op;
	const struct kern_kv_layer *kv = &op->attention.kv;
	o->run = run_attention;
	if (op->attention.window || kv->latent)
		return sim_fail(
			p->dev, KERN_ENOTSUP,
			"attention with a window of %u and a latent of %u: a simulated model supports neither",
			op->attention.window, kv->latent);
	o->cost = (struct sim_cost){
		.attended = 1e9 * 4.0 * op->attention.heads * kv->head_dim / (d->flops * d->tp),
		.context = 1e9 * 2.0 * kv->kv_heads * kv->head_dim * d->kv_bytes / (d->bandwidth * d->tp)};
	return sim_kv_check(p, kv);
}

/* What is particular to an operation. The others copy the row words of what they read to what they
 * write. */
static int (*const record_of[KERN_OPS])(struct kern_program *p, struct sim_op *o) = {
	[KERN_OP_ADVANCE] = record_advance,         [KERN_OP_EMBED] = record_embed,
	[KERN_OP_GATHER_ROWS] = record_gather_rows, [KERN_OP_NORM] = record_norm,
	[KERN_OP_MATMUL] = record_matmul,           [KERN_OP_KV_WRITE] = record_kv_write,
	[KERN_OP_PROGRESS] = record_progress,       [KERN_OP_ATTENTION] = record_attention,
	[KERN_OP_SAMPLE] = record_sample,
};

static int record(struct kern_program *p, const struct kern_op *op)
{
	const struct sim_options *d = &p->dev->opt;
	struct sim_op *o = &p->op[p->ops++];
	struct kern_operands all;
	kern_operands(op, &p->limits, &all);
	*o = (struct sim_op){
		.op = *op,
		.run = run_copy,
		.cost = {.row = 1e9 * d->weight_flops * all.multiplied / (d->flops * d->tp),
	             .once = 1e9 * d->weight_bytes * all.read / (d->bandwidth * d->tp)}};
	for (uint32_t i = 0; i < all.n; i++) {
		const struct kern_operand *of = &all.of[i];
		if (of->rows_each && of->access != KERN_READ)
			o->y[o->ys++] = column(p, &of->x);
		if (of->rows_each && of->access != KERN_WRITE && !o->x)
			o->x = column(p, &of->x);
	}
	int rc = record_of[op->kind] ? record_of[op->kind](p, o) : KERN_OK;
	return rc || p->columns < SIM_COLUMNS
	           ? rc
	           : sim_fail(p->dev, KERN_EINVAL, "a program with more than %d matrices",
	                      SIM_COLUMNS - 1);
}

size_t sim_program_bytes(const struct kern_config *conf, const struct kern_limits *limits,
                         const struct kern_shape *shape)
{
	(void)conf;
	size_t rows = limits->rows > limits->tail_rows ? limits->rows : limits->tail_rows;
	return shape->ops * sizeof(struct sim_op) +
	       rows * (SIM_COLUMNS * sizeof(uint64_t) + SIM_PEAKS * sizeof(uint32_t)) +
	       limits->spans * 2 * sizeof(uint64_t) +
	       (limits->vocab ? kern_sampler_bytes(limits->vocab) : 0);
}

int sim_program_new(struct kern_device *dev, const struct kern_op *ops, size_t n,
                    const struct kern_limits *limits, struct kern_program **ret_p)
{
	struct kern_bounds bounds = {.modelled = 1,
	                             .types = 1 << KERN_F32 | 1 << KERN_F16 | 1 << KERN_BF16,
	                             .columns = UINT32_MAX,
	                             .head_dim = UINT32_MAX};
	int rc = kern_program_check(ops, n, limits, &bounds, dev->host.error, sizeof dev->host.error);
	struct kern_program *p = rc ? NULL : calloc(1, sizeof *p);
	if (rc)
		return rc;
	if (!p)
		return sim_fail(dev, KERN_ENOMEM, "out of memory for a program");
	*p = (struct kern_program){.dev = dev, .limits = *limits};
	p->column_rows = limits->rows > limits->tail_rows ? limits->rows : limits->tail_rows;
	p->op = calloc(n, sizeof *p->op);
	p->word = calloc(SIM_COLUMNS, p->column_rows * sizeof *p->word);
	p->hash = calloc(limits->spans, sizeof *p->hash);
	p->peak = calloc(p->column_rows, SIM_PEAKS * sizeof *p->peak);
	rc = p->op && p->word && p->hash && p->peak ? KERN_OK : KERN_ENOMEM;
	for (size_t i = 0; !rc && i < n; i++)
		rc = record(p, &ops[i]);
	if (!rc && n && ops[n - 1].kind == KERN_OP_NORM)
		p->op[n - 1].run = run_result;
	if (rc == KERN_ENOMEM)
		sim_fail(dev, rc, "out of memory for a program of %zu operations over %zu rows", n,
		         p->column_rows);
	if (rc)
		sim_program_destroy(&p);
	else
		*ret_p = p;
	return rc;
}

void sim_program_destroy(struct kern_program **pp)
{
	struct kern_program *p = *pp;
	if (!p)
		return;
	free(p->op);
	free(p->hash);
	free(p->word);
	free(p->peak);
	free(p->sampler_memory);
	free(p);
	*pp = NULL;
}

/* --- a replay ------------------------------------------------------------ */

static struct sim_amount amount(const struct kern_span *sp, uint32_t spans)
{
	struct sim_amount a = {0};
	for (uint32_t i = 0; i < spans; i++) {
		double rows = sp[i].rows, position = sp[i].position;
		a.rows += rows;
		a.attended += rows * position + 0.5 * rows * (rows + 1.0);
		a.context += position + rows;
	}
	return a;
}

static void account(struct kern_program *p, const struct sim_op *o)
{
	const struct sim_cost *c = &o->cost;
	const struct sim_amount *a = &p->amount[o->op.rows];
	if (a->rows == 0)
		return;
	p->compute_ns += c->row * a->rows + c->attended * a->attended;
	p->memory_ns += c->once + c->context * a->context;
	p->fixed_ns += c->launch + c->exchange * a->rows;
}

int sim_run(struct kern_stream *s, struct kern_program *p, const struct kern_mem *batch)
{
	struct kern_device *dev = s->dev;
	uint64_t now = sim_clock_now();
	const struct kern_batch *b = p->batch = batch->host;
	int rc = kern_batch_check(batch, &p->limits, dev->host.error, sizeof dev->host.error);
	if (rc)
		return rc;
	sim_clock_begin(dev, now);
	if (p->advance)
		kern_advance_spans(batch, p->advance, &p->limits);
	sim_kv_tables(p);
	atomic_fetch_add_explicit(&dev->steps, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&dev->rows, b->rows, memory_order_relaxed);
	p->amount[KERN_ROWS_ALL] = amount(kern_part(b, b->span), b->spans);
	p->amount[KERN_ROWS_TAIL] = amount(kern_part(b, b->tail_span), b->tail_spans);
	p->compute_ns = p->memory_ns = p->fixed_ns = 0;
	for (size_t i = 0; !rc && i < p->ops; i++) {
		account(p, &p->op[i]);
		rc = p->op[i].run(p, &p->op[i]);
		atomic_fetch_add_explicit(&dev->pulse, 1, memory_order_relaxed);
	}
	if (!rc)
		charge(p);
	return rc;
}
