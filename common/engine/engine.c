/* engine.c - see engine.h: opens a model on a device; its memory, the KV pool.
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
	if (o->tp > TP_RANKS_MAX)
		return err_set(err, ERR_INVALID, "tensor_parallel is %u, limits are 1 and %d", o->tp,
		               TP_RANKS_MAX);
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
	s->kept = take(e->opts.tp > 1 ? group : own,
	               e->flights > 1 ? e->limits.results * sizeof(struct kern_kept) / 4 : 0);
	s->histories = take(own, (size_t)e->limits.histories * (1 + e->limits.history_tokens));
	s->mla_q_a = take_tensor(own, rows, c->mla.q_rank);
	s->mla_q = take_tensor(own, rows, c->mla.kv_rank ? (size_t)e->mla_heads * mla_width(c) : 0);
	s->mla_out = take_tensor(own, rows, (size_t)e->mla_heads * c->mla.kv_rank);
	s->att = take_tensor(group, rows, (size_t)c->heads * engine_att_width(c));
	s->sum = take_tensor(group, rows, c->hidden);
	s->act = take_tensor(group, rows, most(c->ffn, c->experts.shared_ffn));
	s->expert_act = take_tensor(group, rows * c->experts.active, c->experts.ffn);
	s->logits = take_tensor(group, tail, c->vocab);
}

/* Bytes of this rank's matrices on the device; the mean of ranks that share memory. */
static uint64_t matrix_bytes(struct engine *e)
{
	uint64_t sum = 0;
	if (e->sim)
		return 0;
	for (uint32_t layer = 0; layer < e->conf.layers; layer++)
		for (int role = layer ? MODEL_ROLE_LAST_GLOBAL + 1 : 0; role < MODEL_ROLES; role++) {
			struct model_tensor t;
			enum model_role part = (enum model_role)role;
			if (model_has_role(&e->conf, part, layer) &&
			    !model_role_get(&e->src, &e->conf, part, layer, &t, NULL))
				sum += weights_bytes(e, part, &t);
		}
	for (uint32_t layer = 0; layer < e->conf.layers; layer++)
		sum += moe_bytes(e, layer);
	return e->ops->own_memory ? sum : sum / most(e->opts.tp, 1);
}

int engine_device_of(const struct engine *e, unsigned rank)
{
	return e->opts.device_index + (int)(rank / most(e->opts.ranks_per_device, 1));
}

static struct kern_config device_config(const struct engine *e)
{
	const struct engine_opts *o = &e->opts;
	return (struct kern_config){.variant = o->variant,
	                            .threads = ranks_threads(o),
	                            .device_index = engine_device_of(e, e->rank),
	                            .activations = o->activations,
	                            .progressed = o->progressed,
	                            .progressed_arg = o->progressed_arg,
	                            .options = e->sim ? &e->sim->options : NULL};
}

/* With several ranks this overestimates: it assumes that a rank has all columns. */
size_t engine_program_bytes(const struct engine *e)
{
	/* upper bounds: operations of a layer (record.c, moe.c), and of each group of heads with latent
	 * attention (mla.c) */
	enum { LAYER_OPS = 24, LATENT_OPS = 8 };
	const struct model_conf *c = &e->conf;
	const struct model_experts *x = &c->experts;
	const struct kern_config conf = device_config(e);
	uint32_t parts = c->mla.kv_rank ? (c->heads + e->mla_heads - 1) / e->mla_heads : 0;
	struct kern_shape s = {.ops = (size_t)c->layers * (LAYER_OPS + parts * LATENT_OPS),
	                       .heads = c->heads,
	                       .angles = c->ropes * c->rope_dims,
	                       .experts = x->count,
	                       .used = x->active,
	                       .expert_layers = x->active ? c->layers : 0,
	                       .expert_in = x->active ? (uint32_t)most(c->hidden, x->ffn) : 0,
	                       .expert_out = x->active ? (uint32_t)most(2ull * x->ffn, c->hidden) : 0};
	s.kv.kv_heads = c->mla.kv_rank ? 1 : c->kv_heads;
	s.kv.head_dim = c->mla.kv_rank ? mla_width(c) : c->head_dim;
	s.kv.latent = c->mla.kv_rank;
	s.in = (uint32_t)most(most(c->hidden, most(c->ffn, x->shared_ffn)),
	                      most(c->heads * engine_att_width(c), e->mla_heads * mla_width(c)));
	s.in = (uint32_t)most(s.in, c->mla.q_rank);
	return e->ops->program_bytes(&conf, &e->limits, &s);
}

/* On a device with its own memory once that is open. */
static int check_memory(struct engine *e, struct err *err)
{
	unsigned ranks = e->opts.tp ? e->opts.tp : 1, sharing = ranks;
	struct carve own = {0}, group = {0};
	carve_scratch(e, &own, &group);
	struct kern_info device = {0};
	if (e->dev)
		e->ops->info(e->dev, &device);
	if (e->ops->own_memory && most(e->opts.ranks_per_device, 1) < ranks)
		sharing = (unsigned)most(e->opts.ranks_per_device, 1);
	uint64_t weights = matrix_bytes(e),
			 have = device.memory_bytes ? device.free_bytes : machine_memory("");
	uint64_t step = (e->sim ? 0 : own.bytes + group.bytes / (e->ops->own_memory ? 1 : ranks)) +
	                e->flights *
	                    (e->limits.batch_bytes + e->opts.max_logits * sizeof(struct kern_drawn));
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
		return err_set(err, ERR_IO, "%.300s", tp_why(e->tp));
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

static void drop_programs(struct engine *e)
{
	struct kern_program **const all[] = {&e->program, &e->hidden_program};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (*all[i])
			e->ops->program_destroy(all[i]);
}

static void free_memory(struct engine *e)
{
	struct kern_mem *const all[] = {&e->batch, &e->results, &e->group,
	                                &e->own,   &e->board,   &e->pool};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		e->ops->mem_free(e->dev, all[i]);
}

/* --- opening ------------------------------------------------------------- */

static int device_barrier(void *tp)
{
	return tp_barrier(tp, TP_STEP_LIMIT_S);
}

static int device_exchange(void *tp, const void *mine, size_t bytes, int fd, void *ret_all,
                           int *ret_fds)
{
	_Static_assert((int)TP_EXCHANGE_BYTES >= (int)KERN_EXCHANGE_MAX, "the ranks can carry it");
	return tp_exchange(tp, mine, bytes, fd, ret_all, ret_fds);
}

static int open_device(struct engine *e, struct err *err)
{
	char text[256] = "";
	const struct engine_opts *o = &e->opts;
	struct kern_config conf = device_config(e);
	if (e->tp)
		conf.group = (struct kern_group){.rank = tp_rank(e->tp),
		                                 .ranks = tp_ranks(e->tp),
		                                 .meet = device_barrier,
		                                 .exchange = device_exchange,
		                                 .broken = tp_failed_word(e->tp),
		                                 .limit_s = TP_STEP_LIMIT_S,
		                                 .arg = e->tp};
	int rc = e->ops->open(&conf, &e->dev, text, sizeof text);
	if (rc)
		return err_set(err, rc == KERN_ENOMEM ? ERR_NOMEM : ERR_UNSUPPORTED,
		               "cannot open device %s, variant %.40s: %s", e->ops->name,
		               o->variant ? o->variant : "auto", text);
	rc = e->ops->stream_new(e->dev, &e->stream);
	if (rc)
		return engine_device_error(e, rc, "cannot create a stream", err);
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
		   draw = sizeof(struct kern_draw) / 4, continued = sizeof(struct kern_continued) / 4,
		   lists = plan_lists(e);
	e->flights = o->overlap && e->ops->queued ? KERN_FLIGHTS : 1;
	e->max_table = plan_table(e);
	size_t words = sizeof(struct kern_batch) / 4 + 3 * (size_t)o->max_rows +
	               (1 + draw) * o->max_logits + (2 * span + progress + continued) * o->max_spans +
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
	e->mla_heads = mla_heads_at_once(&e->conf, (uint32_t)most_rows(e));
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
		if (!rc && !e->rank)
			e->print = fingerprint_begin(&e->conf, &e->src);
		else if (!rc)
			/* rank 0 has told this rank which outline to expect */
			model_outline(&e->conf, &e->src, e->info.fingerprint);
		return rc;
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

/* With several ranks the group starts before the device is opened, which is told of it. */
static int open_group(struct engine *e, struct err *err)
{
	int rc = e->opts.tp > 1 ? ranks_check(e, err) : 0;
	if (rc)
		return rc;
	plan_step(e);
	ranks_share_out(e);
	/* if ranks share memory, rank 0 checks it for all before the others start */
	rc = e->ops->own_memory || e->rank ? 0 : check_memory(e, err);
	if (!rc && e->opts.tp > 1 && !e->tp)
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

/* Opens the device first, so that a missing device is reported before a model is read; last, if the
 * device needs to know the model or the group. */
static int open_parts(struct engine *e, struct err *err)
{
	int rc = find_backend(e, err), first = !rc && !e->ops->modelled && e->opts.tp < 2;
	if (first)
		rc = open_device(e, err);
	if (!rc)
		rc = open_model(e, err);
	if (!rc)
		rc = open_group(e, err);
	if (!rc && !first)
		rc = open_device(e, err);
	return rc || !e->ops->own_memory ? rc : check_devices(e, err);
}

static int open_steps(struct engine *e, struct err *err)
{
	int rc;
	if ((rc = open_parts(e, err)) || (rc = fill_info(e, err)) || (rc = weights_load(e, err)) ||
	    (rc = alloc_scratch(e, err)))
		return rc;
	if (!e->rank && (rc = ranks_await(e, err)))
		return rc;
	fingerprint_end(&e->print, e->info.fingerprint);
	if (e->src_open)
		model_close(&e->src);
	e->src_open = 0;
	return 0;
}

int engine_open(const struct engine_opts *opts, struct engine **ret_e, struct err *err)
{
	return engine_open_rank(opts, opts->progressed != NULL, NULL, ret_e, err);
}

int engine_open_rank(const struct engine_opts *opts, int has_progress, struct tp *tp,
                     struct engine **ret_e, struct err *err)
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
	e->rank = tp ? tp_rank(tp) : 0;
	e->opts.model_path = e->path = mem_strdup(opts->model_path);
	rc = open_steps(e, err);
	e->opts.backend = e->opts.variant = NULL; /* the caller's strings; not needed any more */
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
		drop_programs(e);
		free_memory(e);
		weights_free(e);
		if (e->stream)
			e->ops->stream_destroy(&e->stream);
		e->ops->close(&e->dev);
	}
	if (!e->rank) /* another rank's group belongs to its main, which may still report an error */
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

void engine_device_info(const struct engine *e, struct kern_info *ret)
{
	e->ops->info(e->dev, ret);
}

uint64_t engine_pulse(const struct engine *e)
{
	struct kern_counters c;
	e->ops->counters(e->dev, &c);
	return c.pulse;
}

/* --- board and KV pool --------------------------------------------------- */

int engine_attach_board(struct engine *e, void *board, size_t bytes, struct err *err)
{
	if (e->board.host)
		return err_set(err, ERR_EXISTS, "a progress board of %zu bytes is already attached",
		               e->board.bytes);
	int rc = e->ops->mem_pin(e->dev, board, bytes, &e->board);
	return rc ? engine_device_error(e, rc, "cannot pin the progress board", err) : 0;
}

/* Parts that the pool is divided into, of which this rank has the one of its number. */
static uint32_t pool_parts(const struct engine *e)
{
	return e->tp && e->ops->own_memory ? tp_ranks(e->tp) : 1;
}

size_t engine_pool_bytes(const struct engine *e, uint32_t blocks)
{
	const struct kv_layout *l = &e->info.kv;
	return kv_part_offset(l, blocks, e->rank % pool_parts(e), pool_parts(e), l->layers, 0);
}

static struct kern_kv_layer pool_layer(const struct engine *e, uint32_t blocks, uint32_t i)
{
	static const enum kern_dtype dtype[] = {[KV_BF16] = KERN_BF16,
	                                        [KV_F16] = KERN_F16,
	                                        [KV_F32] = KERN_F32,
	                                        [KV_INT8] = KERN_I8,
	                                        [KV_FP8] = KERN_F8};
	const struct kv_layout *l = &e->info.kv;
	const struct model_conf *c = &e->conf;
	const struct tp_share *own = &e->shard.kv_heads;
	uint32_t parts = pool_parts(e), part = e->rank % parts;
	size_t head = l->piece_bytes[i] / l->layer[i].heads;
	struct kern_kv_layer kv = {
		.base = kern_at(e->pool.dev, kv_part_offset(l, blocks, part, parts, i, 0) +
	                                     (parts > 1 ? 0 : own->begin * head)),
		.block_stride_bytes = parts > 1 ? own->count * head : l->piece_bytes[i],
		.kv_heads = c->mla.kv_rank ? 1 : e->shard.kv_heads.count,
		.head_dim = c->mla.kv_rank ? mla_width(c) : c->head_dim,
		.latent = c->mla.kv_rank,
		.block_tokens = l->block_tokens,
		.dtype = dtype[l->type],
		.layer = i,
	};
	CHECK(e->sim || (c->mla.kv_rank ? 1 : 2) * l->layer[i].heads * kern_kv_plane_bytes(&kv) ==
	                    l->piece_bytes[i]);
	return kv;
}

int engine_use_pool(struct engine *e, uint32_t blocks, struct err *err)
{
	for (uint32_t i = 0; i < e->info.kv.layers; i++)
		e->kv[i] = pool_layer(e, blocks, i);
	e->kv_blocks = blocks;
	return engine_record(e, err);
}

int engine_device_room(struct engine *e, uint64_t *ret_bytes, struct err *err)
{
	const struct tp_share *own = &e->shard.kv_heads;
	struct kern_info device;
	e->pool.dev = e->own.dev; /* any address will do: nothing runs */
	int rc = engine_use_pool(e, 1, err);
	e->ops->info(e->dev, &device);
	drop_programs(e);
	e->pool.dev = (kern_ptr){0};
	*ret_bytes = pool_parts(e) > 1 ? device.free_bytes / own->count * own->total
	                               : device.free_bytes;
	return rc || device.free_bytes
	           ? rc
	           : err_set(
					 err, ERR_IO,
					 "the device does not report how much of its memory is free: set kv_memory_mb");
}

int engine_pool_room(struct engine *e, uint64_t *ret_bytes, struct err *err)
{
	return e->tp ? ranks_room(e, ret_bytes, err) : engine_device_room(e, ret_bytes, err);
}

int engine_share_pool(struct engine *e, int *ret_fd, struct err *err)
{
	int rc = e->ops->mem_share(e->dev, &e->pool, ret_fd);
	return rc ? engine_device_error(e, rc, "cannot share the KV pool", err) : 0;
}

/* The descriptors are closed on an error, or if the caller wants none. */
int engine_new_pool(struct engine *e, uint32_t blocks, struct kv_data *ret_data, struct err *err)
{
	if (e->pool.dev.v)
		return err_set(err, ERR_EXISTS, "the KV pool already exists, with %u blocks", e->kv_blocks);
	if (blocks < 1 || blocks == KV_BLOCK_NONE)
		return err_set(err, ERR_INVALID, "KV pool of %u blocks, limits are 1 and %u", blocks,
		               KV_BLOCK_NONE - 1);
	struct kv_data data = {.device = {e->info.device}, .fd = {-1}};
	int rc = e->ops->mem_new(e->dev, KERN_MEM_SHARED, engine_pool_bytes(e, blocks), &e->pool);
	if (rc)
		return engine_device_error(
			e, rc,
			"cannot create the KV pool (lower kv_blocks, kv_memory_mb or kv_memory_fraction)", err);
	rc = engine_use_pool(e, blocks, err);
	if (!rc && e->tp)
		rc = ranks_attach(e, blocks, &data, err);
	if (!rc && ret_data && pool_parts(e) == 1 && !(rc = engine_share_pool(e, data.fd, err)))
		data.parts = 1;
	if (!rc && ret_data)
		*ret_data = data;
	else
		kv_data_close(&data);
	return rc;
}

const struct kern_mem *engine_pool(const struct engine *e)
{
	return &e->pool;
}
