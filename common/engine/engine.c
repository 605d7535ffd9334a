/* engine.c - see engine.h: opening a model on a device, its memory, the KV pool.
 *
 * Always: everything that a step needs is allocated in engine_open, after a check that the machine has room for it.
 * Errors are returned; an engine that failed to open leaves nothing behind. */
#include "engine/mla.h"
#include "engine/moe.h"
#include "util/check.h"
#include "util/mem.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const struct kern_ops *const backends[] = {&kern_cpu_ops, &kern_sim_ops};

/* --- options ------------------------------------------------------------------------------------------------------------ */

static int check_opts(const struct engine_opts *o, struct err *err)
{
	const struct {
		const char *name;
		uint32_t v, max;
	} fields[] = {
		{"block_tokens", o->block_tokens, 4096}, {"max_rows", o->max_rows, 1u << 20},   {"max_logits", o->max_logits, 1u << 20},
		{"max_spans", o->max_spans, 1u << 16},   {"max_table", o->max_table, 1u << 26},
	};
	for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
		if (fields[i].v < 1 || fields[i].v > fields[i].max)
			return err_set(err, ERR_INVALID, "%s is %u, limits are 1 and %u", fields[i].name, fields[i].v, fields[i].max);
	if (o->tp > TP_RANKS_MAX)
		return err_set(err, ERR_INVALID, "tensor_parallel is %u, limits are 1 and %d", o->tp, TP_RANKS_MAX);
	if (!o->model_path)
		return err_set(err, ERR_INVALID, "no model path");
	return 0;
}

static const struct kern_ops *find_backend(const char *name, struct err *err)
{
	for (size_t i = 0; i < sizeof backends / sizeof *backends; i++)
		if (!name || strcmp(backends[i]->name, name) == 0) {
			CHECK(backends[i]->abi == KERN_ABI);
			return backends[i];
		}
	err_set(err, ERR_UNSUPPORTED, "backend: found %.40s, expected one of: cpu, sim", name);
	return NULL;
}

/* --- memory ------------------------------------------------------------------------------------------------------------- */

/* The number behind `key` in a file of lines, UINT64_MAX if there is none ("max" of a cgroup included). */
static uint64_t read_number(const char *path, const char *key)
{
	char line[256];
	uint64_t v = UINT64_MAX;
	FILE *f = fopen(path, "re");
	while (f && fgets(line, sizeof line, f))
		if (strncmp(line, key, strlen(key)) == 0 && sscanf(line + strlen(key), "%lu", &v) == 1)
			break;
	if (f)
		fclose(f);
	return v;
}

/* What the process may still take: the machine's free memory, and its own control group's limit. */
static uint64_t memory_available(void)
{
	uint64_t kib = read_number("/proc/meminfo", "MemAvailable:");
	uint64_t machine = kib == UINT64_MAX ? kib : kib * 1024, group = UINT64_MAX;
	char line[512], path[640];
	FILE *f = fopen("/proc/self/cgroup", "re");
	while (f && fgets(line, sizeof line, f))
		if (strncmp(line, "0::", 3) == 0) {
			line[strcspn(line, "\n")] = 0;
			snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.max", line + 3);
			group = read_number(path, "");
		}
	if (f)
		fclose(f);
	return machine < group ? machine : group;
}

/* A buffer of a step and its size; the last three exist per row of logits. */
struct part {
	float **p;
	size_t floats;
};

static size_t more(size_t a, size_t b)
{
	return a > b ? a : b;
}

enum { SCRATCH_PARTS = 14 };

struct tp_sizes engine_whole_sizes(const struct engine *e)
{
	const struct model_conf *c = &e->conf;
	size_t rows = e->opts.max_rows;
	return (struct tp_sizes){.att = rows * c->heads * engine_att_width(c), .sum = rows * c->hidden,
	                         .act = rows * more(c->ffn, moe_act_floats(c, c->experts.ffn, c->experts.shared_ffn)),
	                         .logits = (size_t)e->opts.max_logits * c->vocab, .words = e->b.words};
}

/* What this rank has of its own: with others, att, sum, act and logits are parts of what all share (share_scratch). */
static void scratch_parts(struct engine *e, struct part out[SCRATCH_PARTS])
{
	const struct model_conf *c = &e->conf;
	const struct shard *own = &e->shard;
	struct scratch *s = &e->s;
	/* with few spans all rows may be wanted, so the buffers of a whole step serve the tail as well */
	size_t rows = e->opts.max_rows, tail = e->opts.max_logits;
	size_t att = (size_t)own->heads.count * engine_att_width(c), qkv = engine_qkv_width(e);
	size_t act = more(own->ffn.count, moe_act_floats(c, own->expert.count, own->shared.count)), mla = e->mla_heads * rows;
	struct tp_sizes whole = engine_whole_sizes(e);
	const struct part parts[SCRATCH_PARTS] = {
		{&s->x, rows * c->hidden},             {&s->h, rows * c->hidden},           {&s->qkv, rows * qkv},
		{&s->own_att, rows * att},             {&s->sum, e->tp ? 0 : whole.sum},    {&s->gate_up, rows * 2 * more(own->ffn.count, own->shared.count)},
		{&s->own_act, rows * act},             {&s->tail_x, tail * c->hidden},      {&s->tail_qkv, tail * qkv},
		{&s->logits, e->tp ? 0 : whole.logits}, {&s->route, rows * moe_route_floats(c)}, {&s->mla_q_a, rows * c->mla.q_rank},
		{&s->mla_q, mla * mla_width(c)},       {&s->mla_out, mla * c->mla.kv_rank},
	};
	memcpy(out, parts, sizeof parts);
}

static uint64_t matrix_bytes(struct engine *e)
{
	uint64_t sum = 0;
	if (e->sim)
		return 0;
	for (uint32_t layer = 0; layer < e->conf.layers; layer++)
		for (int role = layer ? MODEL_ROLE_LAST_GLOBAL + 1 : 0; role < MODEL_ROLES; role++) {
			struct model_tensor t;
			enum model_role part = (enum model_role)role;
			if (model_has_role(&e->conf, part, layer) && !model_role_get(&e->src, &e->conf, part, layer, &t, NULL))
				sum += t.bytes;
		}
	for (uint32_t layer = 0; layer < e->conf.layers; layer++)
		sum += moe_bytes(e, layer);
	return sum;
}

static int check_memory(struct engine *e, struct err *err)
{
	struct part parts[SCRATCH_PARTS];
	unsigned ranks = e->opts.tp ? e->opts.tp : 1;
	uint64_t weights = matrix_bytes(e) / ranks, step = e->b.words * sizeof(uint32_t), have = memory_available();
	scratch_parts(e, parts);
	for (int i = 0; i < SCRATCH_PARTS; i++)
		step += parts[i].floats * sizeof(float);
	if (weights + step > have / ranks)
		return err_set(err, ERR_NOMEM, "%.160s: memory: found %llu MiB available, expected %llu MiB for weights and %llu MiB for steps of %u tokens",
		               e->path, (unsigned long long)have >> 20, (unsigned long long)weights >> 20, (unsigned long long)step >> 20, e->opts.max_rows);
	return 0;
}

static int alloc_part(struct engine *e, size_t bytes, void *ret_p, struct err *err)
{
	void *p = NULL;
	int rc = e->ops->alloc(e->dev, bytes, &p);
	if (rc)
		return engine_device_error(e, rc, "cannot allocate a step's memory", err);
	memcpy(ret_p, &p, sizeof p);
	return 0;
}

/* Logits go straight to host memory where the device's operations are done when they return; else they are copied there. */
static int alloc_logits(struct engine *e, struct err *err)
{
	size_t bytes = (size_t)e->opts.max_logits * e->conf.vocab * sizeof(float);
	void *host = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *dev = NULL;
	if (host == MAP_FAILED)
		return err_set(err, ERR_NOMEM, "cannot map %zu bytes for %u rows of logits: %m", bytes, e->opts.max_logits);
	e->host_logits = host;
	e->host_logits_bytes = bytes;
	madvise(host, bytes, MADV_HUGEPAGE);
	memset(host, 0, bytes);   /* touched now, not in the first steps */
	if (!e->info.synchronous)
		return alloc_part(e, bytes, &e->s.logits, err);
	int rc = e->ops->host_register(e->dev, host, bytes, &dev);
	if (rc)
		return engine_device_error(e, rc, "cannot register the logits", err);
	e->logits_shared = 1;
	e->s.logits = dev;
	return 0;
}

/* What all ranks see, in the mapping that they share. */
static int share_scratch(struct engine *e, struct err *err)
{
	struct scratch *s = &e->s;
	struct tp_view v = tp_view(e->tp);
	int rc = e->ops->host_register(e->dev, v.base, v.bytes, &e->tp_dev);
	if (rc)
		return engine_device_error(e, rc, "cannot register what the ranks share", err);
	CHECK(e->tp_dev == v.base);            /* gather by memcpy, see ranks_check */
	s->att = v.att;
	s->sum = v.sum;
	s->act = v.act;
	s->logits = e->host_logits = v.logits;
	e->logits_shared = 1;
	e->b.host = v.words;
	return 0;
}

static int alloc_scratch(struct engine *e, struct err *err)
{
	struct part parts[SCRATCH_PARTS];
	scratch_parts(e, parts);
	for (int i = 0; i < SCRATCH_PARTS; i++) {
		int rc = !parts[i].floats ? 0 : parts[i].p == &e->s.logits ? alloc_logits(e, err) : alloc_part(e, parts[i].floats * sizeof(float), parts[i].p, err);
		if (rc)
			return rc;
	}
	int rc = e->tp ? share_scratch(e, err) : 0;
	if (rc)
		return rc;
	if (!e->tp) {
		e->s.att = e->s.own_att;
		e->s.act = e->s.own_act;
		e->b.host = mem_array(e->b.words, sizeof *e->b.host);
	}
	return alloc_part(e, e->b.words * sizeof *e->b.host, &e->b.dev, err);
}

static void free_scratch(struct engine *e)
{
	struct part parts[SCRATCH_PARTS];
	scratch_parts(e, parts);
	if (e->tp_dev) {
		e->ops->host_unregister(e->dev, tp_view(e->tp).base);
		e->s.sum = e->s.logits = e->host_logits = NULL;
		e->b.host = NULL;
	} else if (e->logits_shared) {
		e->ops->host_unregister(e->dev, e->host_logits);
		e->s.logits = NULL;
	}
	for (int i = 0; i < SCRATCH_PARTS; i++)
		if (*parts[i].p)
			e->ops->free(e->dev, *parts[i].p);
	if (e->b.dev)
		e->ops->free(e->dev, e->b.dev);
	free(e->b.host);
	if (e->host_logits)
		munmap(e->host_logits, e->host_logits_bytes);
}

/* --- opening ------------------------------------------------------------------------------------------------------------ */

static int open_device(struct engine *e, struct err *err)
{
	char text[256] = "";
	const struct engine_opts *o = &e->opts;
	struct kern_config conf = {.variant = o->variant, .threads = o->tp > 1 ? ranks_threads(o) : o->threads, .max_rows = o->max_rows > o->max_logits ? o->max_rows : o->max_logits,
	                           .activations = o->activations, .sim = e->sim ? &e->sim->sim : NULL};
	int rc = e->ops->open(&conf, &e->dev, text, sizeof text);
	if (rc)
		return err_set(err, rc == KERN_ENOMEM ? ERR_NOMEM : ERR_UNSUPPORTED, "cannot open device %s, variant %.40s: %s", e->ops->name,
		               o->variant ? o->variant : "auto", text);
	rc = e->ops->stream_new(e->dev, &e->stream);
	if (rc)
		return engine_device_error(e, rc, "cannot make a stream", err);
	e->info.synchronous = e->ops->is_synchronous(e->dev);
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
	i->heads = c->heads;
	i->kv_heads = c->kv_heads;
	i->head_dim = c->head_dim;
	i->vocab = c->vocab;
	i->context = c->context;
	i->n_eos = c->n_eos;
	memcpy(i->eos, c->eos, sizeof c->eos);
	snprintf(i->numerics, sizeof i->numerics, "%s:tp1:%s", e->ops->numerics(e->dev), kv_type_name(e->opts.kv_type));
	if (e->sim) {
		snprintf(i->fingerprint, sizeof i->fingerprint, "%s", e->sim->fingerprint);
		i->params = e->sim->params;
	} else
		model_fingerprint(c, &e->src, i->fingerprint);
	int rc = c->mla.kv_rank ? kv_layout_latent(&i->kv, c->layers, mla_width(c), e->opts.block_tokens, e->opts.kv_type)
	                        : kv_layout_uniform(&i->kv, c->layers, c->kv_heads, c->head_dim, e->opts.block_tokens, e->opts.kv_type);
	if (rc)
		return err_set(err, ERR_INVALID, "KV layout: %u layers, %u heads of %u, blocks of %u tokens exceed what a block may hold", c->layers, c->kv_heads,
		               c->head_dim, e->opts.block_tokens);
	return 0;
}

static void plan_step(struct engine *e)
{
	const struct engine_opts *o = &e->opts;
	size_t span_words = sizeof(struct kern_span) / sizeof(uint32_t);
	e->b.words = 2 * (size_t)o->max_rows + 2 * (size_t)o->max_logits + o->max_table + 2 * span_words * o->max_spans;
	e->mla_heads = mla_heads_at_once(&e->conf, o->max_rows);
	for (uint32_t i = 0; i < e->conf.ropes; i++)
		e->rope[i] = (struct kern_rope){.style = e->conf.rope_style, .dims = e->conf.rope_dims, .scale = e->conf.rope[i].scale};
}

static int open_model(struct engine *e, struct err *err)
{
	int rc;
	if (e->ops != &kern_sim_ops) {
		rc = model_open(e->path, &e->conf, &e->src, err);
		e->src_open = rc == 0;
		return rc;
	}
	e->sim = mem_zalloc(sizeof *e->sim);
	rc = model_sim_open(e->path, e->opts.kv_type, e->sim, err);
	e->conf = e->sim->conf;
	return rc;
}

static int open_steps(struct engine *e, struct err *err)
{
	int rc;
	e->ops = find_backend(e->opts.backend, err);
	if (!e->ops)
		return ERR_UNSUPPORTED;
	/* a device that is not there is said before a model is read; a simulated one needs its description first */
	if (e->ops == &kern_sim_ops)
		rc = (rc = open_model(e, err)) ? rc : open_device(e, err);
	else
		rc = (rc = open_device(e, err)) ? rc : open_model(e, err);
	if (rc)
		return rc;
	plan_step(e);
	if (e->opts.tp > 1 && (rc = ranks_check(e, err)))
		return rc;
	ranks_share_out(e);
	if ((rc = fill_info(e, err)) || (rc = check_memory(e, err)))
		return rc;
	if (e->opts.tp > 1 && !e->tp && (rc = ranks_start(e, err)))
		return rc;
	if ((rc = weights_load(e, err)) || (rc = alloc_scratch(e, err)))
		return rc;
	if (!e->rank && (rc = ranks_await(e, err)))
		return rc;
	for (uint32_t i = 0; i < e->conf.ropes; i++)
		e->rope[i].inv_freq = e->inv_freq[i];
	if (e->src_open && !e->borrows) {
		model_close(&e->src);
		e->src_open = 0;
	}
	return 0;
}

int engine_open(const struct engine_opts *opts, struct engine **ret_e, struct err *err)
{
	return engine_open_rank(opts, NULL, ret_e, err);
}

int engine_open_rank(const struct engine_opts *opts, struct tp *tp, struct engine **ret_e, struct err *err)
{
	int rc = check_opts(opts, err);
	if (rc)
		return rc;
	if (sodium_init() < 0)
		return err_set(err, ERR_IO, "libsodium cannot be initialised");
	struct engine *e = mem_zalloc(sizeof *e);
	e->opts = *opts;
	e->tp = tp;
	e->rank = tp ? tp_rank(tp) : 0;
	e->opts.model_path = e->path = mem_strdup(opts->model_path);
	rc = open_steps(e, err);
	e->opts.backend = e->opts.variant = NULL;   /* the caller's, and not needed any more */
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
		if (e->kv_dev)
			e->ops->host_unregister(e->dev, e->kv_host);
		free_scratch(e);
		weights_free(e);
		if (e->stream)
			e->ops->stream_destroy(&e->stream);
		e->ops->close(&e->dev);
	}
	if (!e->rank)
		tp_destroy(&e->tp);    /* another rank's is its main's, which may have a reason to tell */
	if (e->src_open)
		model_close(&e->src);
	free(e->sim);
	free(e->path);
	free(e);
	*ep = NULL;
}

const struct engine_info *engine_info(const struct engine *e)
{
	return &e->info;
}

void engine_counters(const struct engine *e, struct kern_counters *ret)
{
	*ret = (struct kern_counters){0};
	if (e->ops->counters)
		e->ops->counters(e->dev, ret);
}

/* --- KV pool ------------------------------------------------------------------------------------------------------------ */

int engine_attach_own(struct engine *e, void *data, uint32_t blocks, size_t bytes, struct err *err)
{
	static const enum kern_dtype dtype[] = {[KV_BF16] = KERN_BF16, [KV_F16] = KERN_F16, [KV_F32] = KERN_F32, [KV_INT8] = KERN_I8, [KV_FP8] = KERN_F8};
	const struct kv_layout *l = &e->info.kv;
	const struct model_conf *c = &e->conf;
	if (e->kv_dev)
		return err_set(err, ERR_EXISTS, "a KV pool of %u blocks is attached already", e->kv_blocks);
	if (!data || blocks < 1 || bytes / l->block_bytes < blocks)
		return err_set(err, ERR_INVALID, "KV pool of %u blocks in %zu bytes, expected at least one block and %zu bytes for each", blocks, bytes,
		               l->block_bytes);
	void *dev = NULL;
	int rc = e->ops->host_register(e->dev, data, bytes, &dev);
	if (rc)
		return engine_device_error(e, rc, "cannot register the KV pool", err);
	for (uint32_t i = 0; i < l->layers; i++) {
		e->kv[i] = (struct kern_kv_layer){
			.base = (unsigned char *)dev + kv_piece_offset(l, blocks, i, 0) + e->shard.kv_heads.begin * (l->piece_bytes[i] / l->layer[i].heads),
			.block_stride_bytes = l->piece_bytes[i],
			.kv_heads = c->mla.kv_rank ? 1 : e->shard.kv_heads.count,
			.head_dim = c->mla.kv_rank ? mla_width(c) : c->head_dim,
			.latent = c->mla.kv_rank,
			.block_tokens = l->block_tokens,
			.dtype = dtype[l->type],
			.layer = i,
		};
		CHECK((c->mla.kv_rank ? 1 : 2) * l->layer[i].heads * kern_kv_plane_bytes(&e->kv[i]) == l->piece_bytes[i]);
	}
	e->kv_host = data;
	e->kv_dev = dev;
	e->kv_blocks = blocks;
	return 0;
}

int engine_attach_kv(struct engine *e, void *data, int fd, uint32_t blocks, size_t bytes, struct err *err)
{
	int rc = engine_attach_own(e, data, blocks, bytes, err);
	return rc || !e->tp ? rc : ranks_attach(e, fd, blocks, bytes, err);
}
