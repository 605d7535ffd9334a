/* engine.c - see engine.h: opens a model on a device; its memory.
 *
 * Invariant: everything that a step needs is allocated in engine_open, after a check that the
 * machine has room for it. Errors are returned; an engine that failed to open leaves nothing
 * behind. */
#include "engine/mla.h"
#include "engine/moe.h"
#include "kv/pool.h"
#include "util/check.h"
#include "util/least.h"
#include "util/machine.h"
#include "util/mem.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- options ------------------------------------------------------------- */

static int check_opts(const struct engine_opts *o, struct err *err)
{
	const struct {
		const char *name;
		uint32_t v, max;
	} fields[] = {
		{"block_tokens", o->block_tokens, 4096},
		{"max_rows", o->max_rows, 1u << 20},
		{"max_logits", o->max_logits, 1u << 20},
		{"max_spans", o->max_spans, 1u << 16},
	};
	for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
		if (fields[i].v < 1 || fields[i].v > fields[i].max)
			return err_set(err, ERR_INVALID, "%s is %u, limits are 1 and %u", fields[i].name,
			               fields[i].v, fields[i].max);
	const struct {
		const char *name;
		uint32_t v;
	} processes[] = {{"tensor_parallel", o->tp}, {"pipeline_parallel", o->pp}};
	for (size_t i = 0; i < sizeof processes / sizeof *processes; i++)
		if (processes[i].v > TP_RANKS_MAX)
			return err_set(err, ERR_INVALID, "%s is %u, limits are 1 and %d", processes[i].name,
			               processes[i].v, TP_RANKS_MAX);
	if (most(o->tp, 1) * most(o->pp, 1) > TP_RANKS_MAX)
		return err_set(err, ERR_INVALID,
		               "pipeline_parallel is %u, tensor_parallel %u: %u processes, the limit is %d",
		               o->pp, o->tp, o->pp * o->tp, TP_RANKS_MAX);
	if (!o->model_path)
		return err_set(err, ERR_INVALID, "no model path");
	return 0;
}

/* --- memory -------------------------------------------------------------- */

/* Rows of most buffers. With few spans all rows may go to the head, so buffers for the rows of a
 * whole step also serve the tail. */
static size_t most_rows(const struct engine *e)
{
	return most(e->opts.max_rows, e->opts.max_logits);
}

/* Hands out memory from its beginning; with base 0 it only counts. */
struct carve {
	kern_ptr base;
	size_t bytes;
};

static kern_ptr take(struct carve *c, size_t elements)
{
	size_t at = c->bytes;
	c->bytes += (elements * sizeof(float) + 63) & ~(size_t)63;
	return c->base.v && elements ? kern_at(c->base, at) : (kern_ptr){0};
}

static struct kern_tensor take_tensor(struct carve *c, size_t rows, size_t width)
{
	return (struct kern_tensor){take(c, rows * width), width, KERN_F32};
}

/* What products alone read, or give to be added to x. */
static struct kern_tensor take_rounded(const struct engine *e, struct carve *c, size_t rows,
                                       size_t width)
{
	struct kern_tensor t = take_tensor(c, e->rounds ? (rows + 1) / 2 : rows, width);
	t.type = e->rounds ? KERN_BF16 : KERN_F32;
	return t;
}

/* own: scratch of this rank alone; group: operands of collectives. */
static void carve_scratch(struct engine *e, struct carve *own, struct carve *group)
{
	const struct model_conf *c = &e->conf;
	struct scratch *s = &e->s;
	size_t rows = most_rows(e), tail = e->opts.max_logits, qkv = engine_qkv_width(e);
	s->x = take_tensor(own, rows, c->hidden);
	s->h = take_tensor(own, rows, c->hidden);
	s->qkv = take_tensor(own, rows, qkv);
	s->gate_up = take_tensor(own, rows, 2 * most(e->shard.ffn.count, e->shard.shared.count));
	s->tail_x = take_tensor(own, tail, c->hidden);
	s->tail_qkv = take_tensor(own, tail, qkv);
	s->route = take_tensor(own, rows, c->experts.count);
	s->route_ids = take(own, rows * c->experts.active);
	s->route_weights = take(own, rows * c->experts.active);
	s->kept = take(engine_ranks(e) > 1 ? group : own,
	               e->flights > 1 ? e->limits.results * sizeof(struct kern_kept) / 4 : 0);
	s->histories = take(own, (size_t)e->limits.histories * (1 + e->limits.history_tokens));
	s->mla_q_a = take_tensor(own, rows, c->mla.q_rank);
	size_t latents = c->mla.kv_rank ? e->shard.heads.count : 0;
	s->mla_q = take_rounded(e, own, rows, latents * mla_width(c));
	s->mla_out = take_rounded(e, own, rows, latents * c->mla.kv_rank);
	s->att = take_rounded(e, group, rows, (size_t)c->heads * engine_att_width(c));
	s->sum = s->output = take_tensor(group, rows, c->hidden);
	s->output.type = e->rounds ? KERN_BF16 : KERN_F32;
	s->part = take_tensor(own, rows, e->reduces ? (c->hidden + 1) / 2 : 0);
	s->part.ld = c->hidden;
	s->part.type = KERN_BF16;
	s->act = take_rounded(e, group, rows, most(c->ffn, c->experts.shared_ffn));
	s->expert_act = take_rounded(e, engine_has_whole_experts(e) ? own : group,
	                             rows * c->experts.active, c->experts.ffn);
	s->pairs = take_tensor(group, e->shard.exchanges ? rows * c->experts.active : 0, c->hidden);
	s->logits = take_tensor(group, e->stage ? 0 : tail, c->vocab);
}

static unsigned processes(const struct engine *e)
{
	return engine_stages(e) * engine_ranks(e);
}

/* Takes the place of one of the processes. */
static void become(struct engine *e, unsigned process)
{
	e->stage = process / engine_ranks(e);
	e->rank = process % engine_ranks(e);
	ranks_share_out(e);
}

static int size_of_process(struct engine *e, unsigned process, struct weights_size *ret,
                           struct err *err)
{
	unsigned own = engine_process(e);
	become(e, process);
	int rc = weights_size(e, ret, err);
	become(e, own);
	return rc;
}

/* Of this host. */
static unsigned host_processes(const struct engine *e)
{
	return e->opts.host_processes ? e->opts.host_processes
	                              : processes(e) - e->opts.n_remote * engine_ranks(e);
}

/* Bytes of this process's weights; the mean of those that share memory. */
static int weight_bytes(struct engine *e, uint64_t *ret, struct err *err)
{
	unsigned all = e->ops->own_memory ? 1 : host_processes(e);
	uint64_t sum = 0;
	for (unsigned p = 0; p < all; p++) {
		struct weights_size size;
		int rc = size_of_process(e, all > 1 ? e->opts.host_first + p : engine_process(e), &size,
		                         err);
		if (rc)
			return rc;
		sum += size.matrix_bytes + size.vector_bytes;
	}
	*ret = sum / all;
	return 0;
}

/* Bytes of this process for steps, without what the device needs for the programs. */
static uint64_t step_bytes(struct engine *e)
{
	unsigned sharing = e->ops->own_memory ? 1 : engine_ranks(e);
	struct carve own = {0}, group = {0};
	carve_scratch(e, &own, &group);
	return (e->sim ? 0 : own.bytes + group.bytes / sharing) +
	       e->flights * (e->limits.batch_bytes + e->opts.max_logits * sizeof(struct kern_drawn));
}

int engine_device_of(const struct engine *e, unsigned process)
{
	return e->opts.device_index + (int)(process / most(e->opts.ranks_per_device, 1));
}

static struct kern_config device_config(const struct engine *e)
{
	const struct engine_opts *o = &e->opts;
	return (struct kern_config){.variant = o->variant,
	                            .threads = ranks_threads(o),
	                            .device_index = engine_device_of(e, engine_process(e)),
	                            .activations = o->activations,
	                            .progressed = o->progressed,
	                            .progressed_arg = o->progressed_arg,
	                            .options = e->sim ? &e->sim->options : NULL};
}

/* What products with a matrix per head read, at most, with latent attention. */
static uint64_t latent_columns(const struct engine *e)
{
	const struct model_mla *d = &e->conf.mla;
	return (uint64_t)e->shard.heads.count * (d->kv_rank ? most(d->kv_rank, d->nope) : 0);
}

/* With several ranks this overestimates: it assumes that a rank has all columns. */
size_t engine_program_bytes(const struct engine *e)
{
	enum { LAYER_OPS = 32 }; /* upper bound: operations of a layer (record.c, moe.c, mla.c) */
	const struct model_conf *c = &e->conf;
	const struct model_experts *x = &c->experts;
	const struct kern_config conf = device_config(e);
	struct kern_shape s = {.ops = (size_t)c->layers * LAYER_OPS,
	                       .heads = c->heads,
	                       .angles = c->ropes * c->rope_dims,
	                       .experts = x->count,
	                       .used = x->active,
	                       .expert_layers = x->active ? c->layers : 0,
	                       .expert_in = x->active ? (uint32_t)most(c->hidden, x->ffn) : 0,
	                       .expert_out = x->active ? (uint32_t)most(2ull * x->ffn, c->hidden) : 0};
	s.kv.kv_heads = engine_cache_heads(c);
	s.kv.head_dim = c->mla.kv_rank ? mla_width(c) : c->head_dim;
	s.kv.latent = c->mla.kv_rank;
	s.in = (uint32_t)most(most(c->hidden, most(c->ffn, x->shared_ffn)),
	                      most(c->heads * engine_att_width(c), latent_columns(e)));
	s.in = (uint32_t)most(s.in, c->mla.q_rank);
	return e->ops->program_bytes(&conf, &e->limits, &s);
}

/* On a device with its own memory once that is open. */
static int check_memory(struct engine *e, struct err *err)
{
	unsigned sharing = host_processes(e);
	struct kern_info device = {0};
	if (e->dev)
		e->ops->info(e->dev, &device);
	if (e->ops->own_memory && most(e->opts.ranks_per_device, 1) < sharing)
		sharing = (unsigned)most(e->opts.ranks_per_device, 1);
	uint64_t weights, step = step_bytes(e),
					  have = device.memory_bytes ? device.free_bytes : machine_memory("");
	int rc = weight_bytes(e, &weights, err);
	if (rc)
		return rc;
	step += device.memory_bytes ? 0 : engine_program_bytes(e) * (e->opts.hidden ? 2 : 1);
	if (weights + step > have / sharing)
		return err_set(
			err, ERR_NOMEM,
			"%.160s: memory%s%s: found %llu MiB available, expected %llu MiB for weights and %llu "
			"MiB for steps of %u tokens: lower max_batched_tokens or use a smaller model",
			e->path, device.memory_bytes ? " of " : "", device.name, (unsigned long long)have >> 20,
			(unsigned long long)weights >> 20, (unsigned long long)step >> 20, e->opts.max_rows);
	return 0;
}

static int alloc_mem(struct engine *e, enum kern_memory kind, size_t bytes, struct kern_mem *ret,
                     struct err *err)
{
	int rc = e->ops->mem_new(e->dev, kind, bytes, ret);
	if (rc && e->tp && tp_why(e->tp)) /* another rank has failed */
		return err_set(err, ERR_IO, "%s", tp_why(e->tp));
	return rc ? engine_device_error(e, rc, "cannot allocate a step's memory", err) : 0;
}

static int alloc_batch(struct engine *e, struct err *err)
{
	size_t bytes;
	if (!e->tp)
		return alloc_mem(e, KERN_MEM_PINNED, e->flights * e->limits.batch_bytes, &e->batch, err);
	void *shared = tp_shared_bytes(e->tp, &bytes);
	int rc = e->ops->mem_pin(e->dev, shared, bytes, &e->batch);
	return rc ? engine_device_error(e, rc, "cannot pin the ranks' shared memory", err) : 0;
}

static int alloc_scratch(struct engine *e, struct err *err)
{
	struct carve own = {0}, group = {0};
	carve_scratch(e, &own, &group);
	int rc = alloc_mem(e, KERN_MEM_DEVICE, own.bytes, &e->own, err);
	if (!rc)
		rc = alloc_mem(e, KERN_MEM_GROUP, group.bytes, &e->group, err);
	if (!rc)
		rc = alloc_batch(e, err);
	if (!rc)
		rc = alloc_mem(e, KERN_MEM_PINNED, e->limits.results * sizeof(struct kern_drawn),
		               &e->results, err);
	own = (struct carve){.base = e->own.dev};
	group = (struct carve){.base = e->group.dev};
	carve_scratch(e, &own, &group);
	for (uint32_t i = 0; i < e->flights; i++)
		e->flight[i].drawn = mem_array(e->opts.max_spans, sizeof *e->flight[i].drawn);
	if (e->opts.hidden)
		e->hidden_rows = mem_array((size_t)ENGINE_HIDDEN_ROWS * e->conf.hidden,
		                           sizeof *e->hidden_rows);
	e->listed = mem_array(e->opts.max_spans, sizeof *e->listed);
	return rc;
}

void engine_drop_programs(struct engine *e)
{
	for (int i = 0; i < PASSES; i++) {
		if (e->program[i])
			e->ops->program_destroy(&e->program[i]);
		if (e->finish[i])
			e->ops->program_destroy(&e->finish[i]);
	}
}

static void free_memory(struct engine *e)
{
	struct kern_mem *const all[] = {&e->batch, &e->results, &e->group,
	                                &e->own,   &e->board,   &e->pool};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		e->ops->mem_free(e->dev, all[i]);
}

/* --- opening ------------------------------------------------------------- */

static int open_device(struct engine *e, struct err *err)
{
	char text[256] = "";
	const struct engine_opts *o = &e->opts;
	struct kern_config conf = device_config(e);
	ranks_connect(e, &conf);
	int rc = e->ops->open(&conf, &e->dev, text, sizeof text);
	if (rc)
		return err_set(err, rc == KERN_ENOMEM ? ERR_NOMEM : ERR_UNSUPPORTED,
		               "cannot open device %s, variant %.40s: %s", e->ops->name,
		               o->variant ? o->variant : "auto", text);
	e->reduces = engine_ranks(e) > 1 && e->ops->reduces && e->ops->reduces(e->dev);
	rc = e->ops->stream_new(e->dev, &e->stream);
	if (rc)
		return engine_device_error(e, rc, "cannot create a stream", err);
	return 0;
}

static int set_layout(struct engine *e, struct err *err)
{
	struct engine_info *i = &e->info;
	const struct model_conf *c = &e->conf;
	int rc = e->sim ? kv_layout_uniform(&i->kv, c->layers, 1, e->sim->kv_dim, e->opts.block_tokens,
	                                    e->opts.kv_type)
	         : c->mla.kv_rank ? kv_layout_latent(&i->kv, c->layers, mla_width(c),
	                                             e->opts.block_tokens, e->opts.kv_type)
	                          : kv_layout_uniform(&i->kv, c->layers, c->kv_heads, c->head_dim,
	                                              e->opts.block_tokens, e->opts.kv_type);
	if (rc)
		return err_set(
			err, ERR_INVALID,
			"KV layout: %u layers, %u heads of %u, blocks of %u tokens exceed the size of "
			"a block",
			c->layers, c->kv_heads, c->head_dim, e->opts.block_tokens);
	return 0;
}

static int fill_info(struct engine *e, struct err *err)
{
	struct engine_info *i = &e->info;
	const struct model_conf *c = &e->conf;
	snprintf(i->name, sizeof i->name, "%s", c->name);
	snprintf(i->arch, sizeof i->arch, "%s", c->family->name[c->source]);
	i->layers = c->layers;
	i->hidden = c->hidden;
	i->has_hidden = e->opts.hidden;
	i->overlap = e->flights > 1;
	i->histories = e->limits.histories;
	i->history_tokens = e->limits.history_tokens;
	i->heads = c->heads;
	i->kv_heads = c->kv_heads;
	i->head_dim = c->head_dim;
	i->vocab = c->vocab;
	i->context = c->context;
	i->n_eos = c->n_eos;
	memcpy(i->eos, c->eos, sizeof c->eos);
	snprintf(i->numerics, sizeof i->numerics, "%s:tp1:%s", e->ops->numerics(e->dev),
	         kv_type_name(e->opts.kv_type));
	snprintf(i->backend, sizeof i->backend, "%s", e->ops->name);
	i->device = e->opts.device_index;
	i->params = e->sim ? e->sim->params : 0;
	return set_layout(e, err);
}

/* A longer sequence is remembered in part. */
static uint32_t history_tokens(const struct engine *e)
{
	enum { TOKENS_MAX = 32 << 10 };
	return e->conf.context < TOKENS_MAX ? e->conf.context : TOKENS_MAX;
}

/* Words for masks and lists of a step: for every span two masks, all tokens that it can have seen,
 * and an eighth of the longest lists, up to LISTS_MAX words in total; at least all that one span
 * may need. */
static size_t plan_lists(const struct engine *e)
{
	enum { LISTS_MAX = 16 << 20 };
	const struct engine_opts *o = &e->opts;
	size_t vocab = e->conf.vocab, masks = (vocab + 63) / 64 * 4,
		   seen = 2 * (vocab < e->conf.context ? vocab : e->conf.context);
	size_t all = (masks + ENGINE_DRAW_LISTS_MAX / 8 + seen) * o->max_spans,
		   one = seen + (masks + ENGINE_DRAW_LISTS_MAX) * most(o->max_draws, 1);
	one = most(one, o->histories ? history_tokens(e) : 0);
	return most(all < LISTS_MAX ? all : LISTS_MAX, one);
}

/* All sequences of a step may be as long as the context: they may share their blocks. Only where
 * that takes more than 64 MiB a step may be refused for it, but not one of a single sequence. */
static uint32_t plan_table(const struct engine *e)
{
	enum { TABLE_MAX = 16 << 20 };
	uint64_t one = ((uint64_t)e->conf.context + e->opts.block_tokens - 1) / e->opts.block_tokens;
	return (uint32_t)most(one, least(one * e->opts.max_spans, TABLE_MAX));
}

static void plan_step(struct engine *e)
{
	const struct engine_opts *o = &e->opts;
	size_t span = sizeof(struct kern_span) / 4, progress = sizeof(struct kern_progress) / 4,
		   draw = sizeof(struct kern_draw) / 4, advance = sizeof(struct kern_advance) / 4,
		   lists = plan_lists(e);
	e->flights = o->overlap && e->ops->queued && engine_stages(e) == 1 ? KERN_FLIGHTS : 1;
	e->max_table = plan_table(e);
	size_t words = sizeof(struct kern_batch) / 4 + 3 * (size_t)o->max_rows +
	               (1 + draw) * o->max_logits + (2 * span + progress + advance) * o->max_spans +
	               e->max_table + lists;
	e->list_words = (uint32_t)lists;
	e->limits = (struct kern_limits){.rows = o->max_rows,
	                                 .tail_rows = o->max_logits,
	                                 .spans = o->max_spans,
	                                 .positions = e->conf.context,
	                                 .vocab = e->conf.vocab,
	                                 .results = e->flights * o->max_logits,
	                                 .batch_bytes = (words + 15) / 16 * 64};
	if (e->flights > 1 && o->histories) {
		e->limits.histories = o->histories;
		e->limits.history_tokens = history_tokens(e);
	}
	for (uint32_t i = 0; i < e->conf.ropes; i++)
		e->rope[i] = (struct kern_rope){.style = e->conf.rope_style,
		                                .dims = e->conf.rope_dims,
		                                .scale = e->conf.rope[i].scale};
}

static int open_model(struct engine *e, struct err *err)
{
	int rc;
	if (!e->ops->modelled) {
		rc = model_open(e->path, &e->conf, &e->src, err);
		e->src_open = rc == 0;
		/* another host's copy may be damaged where an outline does not look */
		if (!rc && engine_process(e) == e->opts.host_first)
			e->print = fingerprint_begin(&e->conf, &e->src);
		return rc || !engine_process(e) ? rc : ranks_check_outline(e, err);
	}
	e->sim = mem_zalloc(sizeof *e->sim);
	rc = model_sim_open(e->path, e->opts.kv_type, e->sim, err);
	e->conf = e->sim->conf;
	memcpy(e->info.fingerprint, e->sim->fingerprint, sizeof e->info.fingerprint);
	return rc;
}

static int find_backend(struct engine *e, struct err *err)
{
	char text[512] = "";
	e->ops = kern_backend(e->opts.backend ? e->opts.backend : "cpu", text, sizeof text);
	return e->ops ? 0 : err_set(err, ERR_UNSUPPORTED, "%s", text);
}

/* With several processes the group starts before the device is opened, which is told of it. */
static int open_group(struct engine *e, struct err *err)
{
	int rc = processes(e) > 1 ? ranks_check(e, err) : 0;
	if (rc)
		return rc;
	ranks_share_out(e);
	plan_step(e);
	/* if all of a host share memory, the first one checks it: process 0 before the others start */
	rc = e->ops->own_memory || engine_process(e) != e->opts.host_first ? 0 : check_memory(e, err);
	if (!rc && processes(e) > 1 && !e->tp)
		rc = ranks_start(e, err);
	return rc;
}

/* Ranks may share a device: they check its memory when all have opened it and none has begun to
 * load. */
static int check_devices(struct engine *e, struct err *err)
{
	int rc = ranks_await(e, err);
	if (!rc)
		rc = check_memory(e, err);
	return rc ? rc : ranks_await(e, err);
}

/* Whether each product that reads att, act, expert_act or mla_out rounds it to bfloat16: then they
 * are stored so, as is mla_q, which attention rounds, with the same bits, and what is added to x is
 * rounded as well, by one rank as by many. Ranks send half as much. */
static int input_is_rounded(const struct engine *e)
{
	static const enum model_role roles[] = {MODEL_O, MODEL_DOWN, MODEL_SHARED_DOWN, MODEL_KV_B};
	int rounds = e->ops->rounds && e->ops->rounds(e->dev);
	for (uint32_t layer = 0; layer < e->conf.layers && rounds; layer++) {
		struct model_tensor t;
		for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
			if (model_has_role(&e->conf, roles[i], layer) &&
			    !model_role_get(&e->src, &e->conf, roles[i], layer, &t, NULL))
				rounds &= t.dtype != KERN_F32 && t.dtype != KERN_F16;
		if (e->conf.mla.kv_rank && !model_latent_get(&e->src, &e->conf, 1, layer, &t, NULL))
			rounds &= t.dtype != KERN_F32 && t.dtype != KERN_F16;
		if (e->conf.layer[layer].experts &&
		    !model_expert_get(&e->src, &e->conf, MODEL_EXPERT_DOWN, layer, 0, &t, NULL)) {
			rounds &= t.dtype != KERN_F32 && t.dtype != KERN_F16;
			free(t.own);
		}
	}
	return rounds;
}

/* Opens the device first, so that a missing device is reported before a model is read; last, if the
 * device needs to know the model or the group. */
static int open_parts(struct engine *e, struct err *err)
{
	int rc = find_backend(e, err), first = !rc && !e->ops->modelled && processes(e) == 1;
	if (first)
		rc = open_device(e, err);
	if (!rc)
		rc = open_model(e, err);
	if (!rc)
		rc = open_group(e, err);
	if (!rc && !first)
		rc = open_device(e, err);
	if (!rc && e->reduces)
		ranks_share_out(e);
	if (!rc)
		e->rounds = input_is_rounded(e);
	return rc || !e->ops->own_memory ? rc : check_devices(e, err);
}

/* What process 0 does not load itself. */
static int count_other_stages(struct engine *e, struct err *err)
{
	int rc = 0;
	for (unsigned s = 1; !engine_process(e) && s < engine_stages(e) && !rc; s++) {
		struct weights_size size = {0};
		rc = size_of_process(e, s * engine_ranks(e), &size, err);
		e->info.params += size.params;
		e->info.weight_bytes += size.file_bytes;
	}
	return rc;
}

static int open_steps(struct engine *e, struct err *err)
{
	int rc;
	if ((rc = open_parts(e, err)) || (rc = fill_info(e, err)) ||
	    (rc = count_other_stages(e, err)) || (rc = weights_load(e, err)) ||
	    (rc = alloc_scratch(e, err)))
		return rc;
	fingerprint_end(&e->print, e->info.fingerprint);
	if ((rc = ranks_ready(e, err)))
		return rc;
	if (e->src_open)
		model_close(&e->src);
	e->src_open = 0;
	return 0;
}

int engine_open(const struct engine_opts *opts, struct engine **ret_e, struct err *err)
{
	return engine_open_rank(opts, opts->progressed != NULL, NULL, NULL, ret_e, err);
}

int engine_open_rank(const struct engine_opts *opts, int has_progress, const char *outline,
                     struct tp *tp, struct engine **ret_e, struct err *err)
{
	int rc = check_opts(opts, err);
	if (rc)
		return rc;
	if (sodium_init() < 0)
		return err_set(err, ERR_IO, "cannot initialise libsodium");
	struct engine *e = mem_zalloc(sizeof *e);
	e->opts = *opts;
	e->tp = tp;
	e->has_progress = has_progress;
	e->outline = outline;
	e->stage = tp ? tp_rank(tp) / engine_ranks(e) : 0;
	e->rank = tp ? tp_rank(tp) % engine_ranks(e) : 0;
	e->opts.model_path = e->path = mem_strdup(opts->model_path);
	rc = open_steps(e, err);
	e->opts.backend = e->opts.variant = e->outline =
		NULL; /* the caller's strings; not needed any more */
	if (rc)
		engine_close(&e);
	else
		*ret_e = e;
	return rc;
}

void engine_close(struct engine **ep)
{
	struct engine *e = *ep;
	if (!e)
		return;
	if (e->dev) {
		if (e->stream)
			e->ops->sync(e->stream);
		engine_drop_programs(e);
		free_memory(e);
		weights_free(e);
		if (e->stream)
			e->ops->stream_destroy(&e->stream);
		e->ops->close(&e->dev);
	}
	/* another process's group belongs to its main, which may still report an error */
	if (!engine_process(e))
		tp_destroy(&e->tp);
	fingerprint_end(&e->print, NULL);
	if (e->src_open)
		model_close(&e->src);
	for (uint32_t i = 0; i < e->flights; i++)
		free(e->flight[i].drawn);
	free(e->copy);
	free(e->hidden_rows);
	free(e->listed);
	free(e->sim);
	free(e->path);
	free(e->lost);
	free(e);
	*ep = NULL;
}

const struct engine_info *engine_info(const struct engine *e)
{
	return &e->info;
}

void engine_counters(const struct engine *e, struct kern_counters *ret)
{
	e->ops->counters(e->dev, ret);
}

uint64_t engine_memory_bytes(const char *backend, int device)
{
	char text[512];
	const struct kern_ops *ops = kern_backend(backend, text, sizeof text);
	return ops && ops->memory_bytes ? ops->memory_bytes(device) : 0;
}

void engine_device_info(const struct engine *e, struct kern_info *ret)
{
	e->ops->info(e->dev, ret);
}

uint64_t engine_pulse(const struct engine *e)
{
	struct kern_counters c;
	e->ops->counters(e->dev, &c);
	return c.pulse + (e->tp ? tp_waits(e->tp) : 0);
}

/* --- planning ------------------------------------------------------------ */

/* An upper estimate of the device memory of a step's program, as kernels/cuda lays it out: prepared
 * inputs of products, what experts give, states of attention, lists of sampling. */
static uint64_t gpu_program_bytes(const struct engine *e)
{
	enum { PROCESSORS = 160, CHUNK = 256, SAMPLED_AT_ONCE = 64, ID_BYTES = 12, TILE = 32 };
	const uint64_t states_most = 64u << 20;
	const struct model_conf *c = &e->conf;
	const struct model_experts *x = &c->experts;
	uint64_t rows = (most_rows(e) + 63) / 64 * 64, pairs = rows * x->active,
			 input = e->opts.activations == KERN_BF16 ? 2 : 6,
			 out = c->mla.kv_rank ? c->mla.kv_rank : c->head_dim, columns = c->hidden;
	columns = most(columns, most(c->ffn, x->shared_ffn));
	columns = most(columns, (uint64_t)c->heads * engine_att_width(c));
	columns = most(columns, most(c->mla.q_rank, latent_columns(e)));
	uint64_t summed = e->shard.exchanges ? 0 : e->reduces ? c->hidden : e->shard.hidden.count;
	/* what experts read has an order of its own */
	uint64_t ready = (rows * columns + (pairs ? most(rows * c->hidden, pairs * x->ffn) : 0)) *
	                 input,
			 given = pairs * most(2 * e->shard.expert.count, summed) * sizeof(float),
			 divided = (c->context / CHUNK + 1) * rows * (c->heads + TILE * c->kv_heads) *
	                   (out + 8) * sizeof(float),
			 runs = 4 * PROCESSORS * TILE * (out + 32) * sizeof(float),
			 lists = least(e->opts.max_logits, SAMPLED_AT_ONCE) * (uint64_t)c->vocab * ID_BYTES;
	return ready + ready / 8 + given + pairs * 8 + least(divided, states_most) + runs + lists +
	       e->limits.batch_bytes;
}

/* The sizes of the process that needs most. */
static int plan_processes(struct engine *e, struct engine_plan *p, struct err *err)
{
	for (unsigned i = 0; i < processes(e); i++) {
		struct weights_size size;
		int rc = size_of_process(e, i, &size, err);
		if (rc)
			return rc;
		become(e, i);
		plan_step(e);
		p->params += e->rank ? 0 : size.params;
		p->weight_bytes = most(p->weight_bytes, size.matrix_bytes + size.vector_bytes);
		p->matrix_bytes = most(p->matrix_bytes, size.matrix_bytes);
		p->step_bytes = most(p->step_bytes, step_bytes(e));
		p->program_bytes = most(p->program_bytes, gpu_program_bytes(e) * (e->opts.hidden ? 2 : 1));
		p->block_bytes = most(p->block_bytes, engine_pool_bytes(e, 1));
	}
	return 0;
}

int engine_plan(const struct engine_opts *opts, struct engine_plan *ret, struct err *err)
{
	/* what this file asks a device of, that a GPU answers */
	static const struct kern_ops gpu = {.name = "cuda",
	                                    .own_memory = 1,
	                                    .queued = 1,
	                                    .ranks_max = KERN_PARTS_MAX,
	                                    .stages_max = KERN_PARTS_MAX};
	struct engine *e = mem_zalloc(sizeof *e);
	struct engine_plan p = {0};
	int rc = check_opts(opts, err);
	e->opts = *opts;
	e->ops = &gpu;
	/* if each has NCCL */
	e->reduces = opts->tp > 1 && opts->variant && strcmp(opts->variant, "fast") == 0;
	if (!rc && !(rc = model_describe(opts->model_path, &e->conf, &e->src, err))) {
		if (opts->tp > gpu.ranks_max)
			rc = err_set(err, ERR_UNSUPPORTED, "tensor_parallel is %u, at most %u GPUs", opts->tp,
			             gpu.ranks_max);
		else if (!(rc = ranks_check_model(e, err)) && !(rc = set_layout(e, err)))
			rc = plan_processes(e, &p, err);
		snprintf(p.name, sizeof p.name, "%s", e->conf.name);
		p.context = e->conf.context;
		model_close(&e->src);
	}
	free(e);
	if (!rc)
		*ret = p;
	return rc;
}
