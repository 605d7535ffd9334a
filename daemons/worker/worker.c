/* worker.c - start, event hooks and stop of a worker, apart from its stage: model, pool, links to
 * router, messager and storage.
 *
 * The role selects the stage: prefill runs the prefill stage; decode and mixed run the decode
 * stage, which also prefills requests that arrive without a candidate. role.c switches it live.
 * Start-up problems are fatal, with a sentence; after the start nothing that a peer does is
 * fatal. */
#include "worker.h"
#include "engine/model.h"
#include "engine/tp.h"
#include "links/pipeline.h"
#include "seq/constraint.h"
#include "stage.h"
#include "util/check.h"
#include "util/clock.h"
#include "util/json_load.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static enum worker_role default_role;

uint32_t worker_blocks_for(const struct worker *w, uint32_t tokens)
{
	uint32_t bt = w->info->kv.block_tokens;
	return (tokens + bt - 1) / bt;
}

uint32_t worker_handover_tokens(const struct worker *w)
{
	return RING_BLOCKS_MAX * w->info->kv.block_tokens;
}

int worker_check_handover(const struct worker *w, uint32_t tokens, struct err *err)
{
	if (tokens <= worker_handover_tokens(w))
		return 0;
	return err_set(err, ERR_FULL,
	               "%u tokens have %u KV blocks, a hand-over takes at most %u: raise block_tokens "
	               "(%u)",
	               tokens, worker_blocks_for(w, tokens), RING_BLOCKS_MAX, w->info->kv.block_tokens);
}

/* --- start --------------------------------------------------------------- */

static void choose_role(struct worker *w, const char *text)
{
	enum worker_role r = default_role;
	worker_role_parse(text, &r); /* "default" is none */
	role_init(w, r);
}

/* --- the engine has failed for good: the process ends, the service manager restarts it, and the
 * router resubmits its attempts elsewhere --- */

static void end_broken(struct svc *s, void *arg)
{
	struct worker *w = worker_of(s);
	(void)arg;
	if (w->engine && engine_broken(w->engine))
		svc_leave(engine_broken(w->engine));
}

static void engine_is_broken(void *arg, const char *why)
{
	struct worker *w = arg;
	log_error("engine_broken", "why=%s", log_quote(why));
	svc_post(w->svc, end_broken, NULL);
}

/* The device has stored progress words on the board. On a thread of the device. */
static void progressed(void *arg)
{
	struct worker *w = arg;
	if (w->ring)
		ring_bell(w->ring);
}

static int shares_pool(const struct worker_conf *c)
{
	return strcmp(c->messager, "none") != 0 || strcmp(c->storage, "none") != 0;
}

static int check_values(const struct worker_conf *c, struct err *err)
{
	if (c->block_tokens % 8)
		return err_set(err, ERR_INVALID, "block_tokens %u is no multiple of 8", c->block_tokens);
	if (c->remote_stages >= c->pipeline_parallel)
		return err_set(err, ERR_INVALID,
		               "remote_stages is %u of %u (pipeline_parallel): the worker itself is "
		               "the first stage",
		               c->remote_stages, c->pipeline_parallel);
	if (c->remote_stages && shares_pool(c))
		return err_set(err, ERR_UNSUPPORTED,
		               "remote_stages is %u: KV that is on other hosts can be neither handed over "
		               "nor stored: set messager and storage to \"none\"",
		               c->remote_stages);
	return 0;
}

static int check(struct svc *s, struct err *err)
{
	struct worker_conf c;
	struct model_conf conf;
	struct model_source source;
	conf_fill(svc_conf(s), worker_keys, &c);
	int r = check_values(&c, err);
	for (unsigned i = 0; i < c.routers.n && r == 0; i++)
		r = routers_check(c.routers.item[i], err);
	if (r == 0)
		r = svc_check_file("model", c.model, err);
	/* a simulated one is a few lines, which its backend reads */
	if (r < 0 || !*c.model || strcmp(c.backend, "sim") == 0)
		return r;
	json_account_setup();
	r = model_open(c.model, &conf, &source, err);
	if (r == 0)
		model_close(&source);
	return r;
}

/* memory_bytes: of the GPU; 0: unknown, or none. A step of 8192 tokens takes memory that a small
 * one wants for KV. */
static void fill_conf(const struct svc *s, uint64_t memory_bytes, struct worker_conf *ret)
{
	const uint64_t small_bytes = 40000000000;
	if (memory_bytes && memory_bytes < small_bytes)
		conf_set_default(svc_conf(s), "max_batched_tokens", "2048",
		                 "default of a GPU with less than 40 GB");
	conf_fill(svc_conf(s), worker_keys, ret);
}

/* All but what is called back. */
static int engine_opts_of(const struct worker_conf *c, struct engine_opts *ret_o, struct err *err)
{
	uint32_t tokens = c->max_batched_tokens, sequences = c->max_sequences,
			 logits = (sequences > 64 ? sequences : 64) + (c->speculative ? WORKER_DRAFT_ROWS : 0);
	struct engine_opts o = {
		.model_path = c->model,
		.backend = c->backend,
		.variant = c->variant,
		.device_index = c->device,
		.threads = c->threads,
		.tp = c->tensor_parallel,
		.pp = c->pipeline_parallel,
		.expert_parallel = c->expert_parallel,
		.ranks_per_device = c->ranks_per_device,
		.pool_shared = shares_pool(c),
		.activations = strcmp(c->activation_type, "bf16") == 0 ? KERN_BF16 : KERN_F32,
		.block_tokens = c->block_tokens,
		.hidden = c->embeddings,
		.overlap = c->overlap_steps,
		.max_rows = tokens > logits ? tokens : logits,
		.max_logits = logits,
		.max_draws = c->speculative ? 1 + WORKER_DRAFT_TOKENS : 1,
		.max_spans = sequences,
		.histories = c->speculative ? sequences : 0,
		.history_match = c->speculative ? c->spec_ngram_min : 0,
	};
	int r = check_values(c, err);
	if (r < 0)
		return r;
	if (!o.model_path[0])
		return err_set(err, ERR_INVALID,
		               "no model: set `model` to a GGUF file or a Hugging Face folder");
	if (kv_type_parse(c->kv_type, &o.kv_type) < 0)
		return err_set(err, ERR_INVALID, "kv_type %s is unknown", c->kv_type);
	*ret_o = o;
	return 0;
}

static int open_engine(struct worker *w, struct err *err)
{
	struct worker_conf *c = &w->conf;
	struct engine_opts o;
	fill_conf(w->svc, engine_memory_bytes(c->backend, c->device), c);
	int r = engine_opts_of(c, &o, err);
	if (r < 0)
		return r;
	o.broken = engine_is_broken;
	o.broken_arg = o.progressed_arg = w;
	if (strcmp(c->messager, "none") != 0)
		o.progressed = progressed;
	w->max_logits = o.max_logits;
	struct tp_remote remote[TP_RANKS_MAX] = {{0}};
	o.remote = remote;
	o.n_remote = c->remote_stages;
	if (o.n_remote)
		r = pipeline_gather(w->svc, o.pp, o.n_remote, c->stage_port, remote, err);
	if (r == 0)
		r = engine_open(&o, &w->engine, err);
	for (unsigned i = 0; i < o.n_remote; i++)
		wire_destroy(&remote[i].wire); /* those that the engine has not taken */
	return r;
}

/* --- --plan-memory ------------------------------------------------------- */

static double gib(double bytes)
{
	return bytes / (1 << 30);
}

/* A line for so many GPUs: what each must hold, and how many tokens of KV fit beside it. */
static void plan_line(double kv_fraction, const struct engine_opts *o, const double *free_gib,
                      size_t sizes, struct buf *out)
{
	struct engine_plan p;
	struct err err = {0};
	if (engine_plan(o, &p, &err) < 0) {
		buf_printf(out, "%5u  %s\n", o->tp * o->pp, err.text);
		return;
	}
	double fixed = (double)p.weight_bytes + (double)p.step_bytes + (double)p.program_bytes,
		   token = (double)p.block_bytes / o->block_tokens;
	buf_printf(out, "%5u %9.2f %9.2f %9.2f %9.2f %9.2f", o->tp * o->pp, gib((double)p.weight_bytes),
	           gib((double)p.step_bytes), gib((double)p.program_bytes),
	           token * p.context / (1 << 30), gib(fixed));
	for (size_t i = 0; i < sizes; i++) {
		double left = (free_gib[i] * (1 << 30) - fixed) * kv_fraction;
		uint64_t blocks = left > 0 ? (uint64_t)(left / (double)p.block_bytes) : 0;
		if (blocks < 2)
			buf_printf(out, " %12s", "no");
		else
			buf_printf(out, " %12llu", (unsigned long long)blocks * o->block_tokens);
	}
	buf_adds(out, "\n");
}

static int plan_head(const struct engine_opts *o, const double *free_gib, size_t sizes,
                     struct buf *out, struct err *err)
{
	struct engine_opts one = *o;
	struct engine_plan p;
	char stages[32] = "";
	one.tp = 1;
	if (o->pp > 1)
		snprintf(stages, sizeof stages, ", %u stages", o->pp);
	int r = engine_plan(&one, &p, err);
	if (r < 0)
		return r;
	buf_printf(
		out,
		"%s: %.1f billion parameters, context of %u tokens; steps of %u tokens, %u sequences, "
		"KV in %s%s\n"
		"GiB of each GPU; programs: an upper estimate; fits: tokens of KV beside that\n"
		" GPUs   weights     steps  programs KV/context  all but KV",
		p.name, (double)p.params / 1e9, p.context, o->max_rows, o->max_spans,
		kv_type_name(o->kv_type), stages);
	for (size_t i = 0; i < sizes; i++)
		buf_printf(out, " fits %4.0f GiB", free_gib[i]);
	buf_adds(out, "\n");
	return 0;
}

/* By the arithmetic that the engine checks memory with when it opens the model. */
static int plan(struct svc *s, const char *arg, struct buf *out, struct err *err)
{
	/* what is free on GPUs of 80 and of 141 GB */
	double free_gib[] = {79, 139};
	enum { GPUS_MOST = 16 };
	struct worker_conf c;
	struct engine_opts o;
	char *end = NULL;
	size_t sizes = arg ? 1 : 2;
	if (arg)
		free_gib[0] = strtod(arg, &end);
	if (arg && (!(free_gib[0] >= 1 && free_gib[0] <= 4096) || *end)) /* nan is no size either */
		return err_set(err, ERR_INVALID, "--plan-memory=%.40s: expected 1 to 4096 GiB", arg);
	fill_conf(s, (uint64_t)(free_gib[0] * (1 << 30)), &c);
	if (strcmp(c.backend, "cuda") != 0)
		return err_set(err, ERR_INVALID,
		               "backend is %s: --plan-memory is for GPUs (-o backend=cuda)", c.backend);
	json_account_setup();
	int r = engine_opts_of(&c, &o, err);
	if (r == 0)
		r = plan_head(&o, free_gib, sizes, out, err);
	unsigned set = o.tp;
	for (o.tp = 1; o.tp <= GPUS_MOST && r == 0; o.tp++)
		if (!(o.tp & (o.tp - 1)) || o.tp == set)
			plan_line(c.kv_memory_fraction, &o, free_gib, sizes, out);
	return r;
}

static int pool_bytes(const struct worker *w, uint64_t *ret, struct err *err)
{
	enum { DEFAULT_MB = 512 };
	struct kern_info device;
	int rc = 0;
	engine_device_info(w->engine, &device);
	*ret = w->conf.kv_memory_bytes;
	if (!*ret)
		*ret = (uint64_t)DEFAULT_MB << 20;
	if (!w->conf.kv_memory_bytes && device.memory_bytes &&
	    (rc = engine_pool_room(w->engine, ret, err)) == 0)
		*ret = (uint64_t)((double)*ret * w->conf.kv_memory_fraction);
	return rc;
}

static int open_pool(struct worker *w, struct err *err)
{
	const struct kv_layout *l = &w->info->kv;
	uint64_t bytes = w->conf.kv_blocks * l->block_bytes, blocks;
	struct kv_data data;
	int r = bytes ? 0 : pool_bytes(w, &bytes, err);
	if (r < 0)
		return r;
	blocks = bytes / l->block_bytes;
	if (blocks < 2 || blocks > UINT32_MAX)
		return err_set(err, ERR_INVALID,
		               "a KV pool of %llu MiB (kv_blocks, kv_memory_mb, kv_memory_fraction) holds "
		               "%llu blocks of %zu bytes, at least 2 are needed",
		               (unsigned long long)bytes >> 20, (unsigned long long)blocks, l->block_bytes);
	r = engine_new_pool(w->engine, (uint32_t)blocks, &data, err);
	if (r < 0 || (r = kv_region_create(&w->region, l, (uint32_t)blocks, &data, err)) < 0)
		return r;
	w->pool = kv_pool_new(w->region.blocks, l->block_tokens, w->region.generations);
	kv_layout_text(l, w->layout, sizeof w->layout);
	struct kv_root root = {.model_fingerprint = w->info->fingerprint,
	                       .numerics = w->info->numerics,
	                       .layout = w->layout};
	kv_hash_root(&root, &w->root);
	rates_init(&w->rates, w->conf.storage_read, l->block_tokens, l->block_bytes);
	w->events = events_new(w->svc, w->pool, w->conf.kv_events_us, &w->stats.events);
	return 0;
}

static void messager_on(void *arg, uint64_t epoch, int bell_fd)
{
	struct worker *w = arg;
	(void)epoch;
	if (w->ring)
		ring_set_bell(w->ring, bell_fd);
	else if (bell_fd >= 0)
		close(bell_fd);
	tell_messager_seen(w);
	tell_messager(w, 1); /* it takes PEERS only from workers whose memory it has */
}

static void messager_gone(void *arg, uint64_t epoch)
{
	struct worker *w = arg;
	tell_messager_seen(w);
	if (w->ring)
		ring_set_bell(w->ring, -1);
	if (w->state && w->stage->messager_gone)
		w->stage->messager_gone(w, epoch);
}

static void storage_done(void *worker, struct store_completion *c)
{
	struct store_asker *a = c->user;
	a->answered(worker, a, c);
}

static int attach_board(struct worker *w, struct err *err)
{
	size_t bytes;
	void *ring = ring_mapping(w->ring, &bytes);
	return engine_attach_board(w->engine, ring, bytes, err);
}

static int attach_messager(struct worker *w, struct handover_hello *hello, struct err *err)
{
	const char *name = w->conf.messager;
	char path[256], endpoint[256];
	/* for every role, because the role may be switched */
	uint32_t slots = w->conf.ring_slots;
	int r = ring_create(slots, w->info->layers, svc_epoch(w->svc), &w->ring, err);
	if (r < 0 || (r = attach_board(w, err)) < 0)
		return r;
	hello->ring_slots = slots;
	hello->ring_layers = w->info->layers;
	struct attach_hooks hooks = {w, messager_on, messager_gone};
	svc_sock_path(w->svc, name, path, sizeof path);
	svc_ipc_endpoint(w->svc, name, endpoint, sizeof endpoint);
	const struct handover_fds fds = {w->region.control_fd, ring_fd(w->ring), w->region.data};
	w->messager_attach = attach_new(w->svc, "messager", path, hello, &fds, &hooks);
	tell_messager_awaited(w);
	return worker_connect(w, endpoint, name, TAG_MESSAGER, err);
}

static void storage_ready(void *arg, uint64_t epoch)
{
	writeout_storage_ready(((struct worker *)arg)->writeout, epoch);
}

static int attach_storage(struct worker *w, const struct handover_hello *hello, struct err *err)
{
	const char *name = w->conf.storage;
	struct store_opts o = {.name = name,
	                       .tag = TAG_STORAGE,
	                       .hello = hello,
	                       .fds = {w->region.control_fd, -1, w->region.data},
	                       .batches_max = 256,
	                       .on_ready = storage_ready,
	                       .done = storage_done,
	                       .arg = w};
	w->store = store_new(w->svc, &o);
	if (!w->store)
		return err_set(err, ERR_IO, "cannot connect to the storage %s", name);
	w->relay = relay_new(w->svc, &w->stats.relay);
	w->writeout = writeout_new(w);
	return 0;
}

static int start(struct svc *s, struct err *err)
{
	struct worker *w = mem_zalloc(sizeof *w);
	const struct worker_conf *c = &w->conf;
	w->svc = s;
	w->region.control_fd = -1;
	svc_set_data(s, w);
	json_account_setup();
	tell_init(w);
	conf_fill(svc_conf(s), worker_keys, &w->conf);
	choose_role(w, c->role);
	worker_find_drained(w);
	int r = open_engine(w, err);
	if (r < 0)
		return r;
	w->info = engine_info(w->engine);
	w->constraints = constraints_new(c->model, w->info, c->constraint_memory_bytes);
	if ((r = tasks_new(&w->compiler, "compiler", 0, err)) < 0)
		return r;
	if ((r = open_pool(w, err)) < 0)
		return r;
	struct handover_hello hello;
	handover_hello_init(&hello, svc_name(s), svc_epoch(s), &w->info->kv, w->region.blocks,
	                    w->info->backend);
	if (strcmp(c->storage, "none") != 0)
		if ((r = attach_storage(w, &hello, err)) < 0)
			return r;
	if (strcmp(c->messager, "none") != 0)
		if ((r = attach_messager(w, &hello, err)) < 0)
			return r;
	if ((r = w->stage->start(w, err)) < 0)
		return r;
	svc_handle(s, w->stage->messages);
	worker_relay_by_role(w);
	struct kern_info device;
	engine_device_info(w->engine, &device);
	log_notice(
		"worker_ready",
		"role=%s model=%s numerics=%s kernels=%s layout=%s blocks=%u kv_mb=%zu weight_mb=%llu "
		"tp=%u pp=%u remote_stages=%u activation_type=%s max_batched_tokens=%u max_sequences=%u "
		"embeddings=%s",
		worker_role_name(w->role), log_quote(w->info->name), w->info->numerics,
		log_quote(device.kernels), w->layout, w->region.blocks, w->region.data_bytes >> 20,
		(unsigned long long)(w->info->weight_bytes >> 20), c->tensor_parallel, c->pipeline_parallel,
		c->remote_stages, c->activation_type, c->max_batched_tokens, c->max_sequences,
		c->embeddings ? "true" : "false");
	return worker_connect_routers(w, err);
}

static int reload(struct svc *s, struct err *err)
{
	struct worker_conf c;
	(void)err;
	conf_fill(svc_conf(s), worker_keys, &c);
	worker_of(s)->conf.role_switch_timeout_us = c.role_switch_timeout_us;
	return 0;
}

void worker_relay_by_role(struct worker *w)
{
	const struct worker_conf *c = &w->conf;
	int saves = w->role != ROLE_PREFILL && (c->output_caching || c->save_preempted_kv);
	relay_reads(w->relay, w->role == ROLE_PREFILL && w->rates.mode != RATES_NEVER);
	relay_writes(w->relay, saves || c->kv_eviction != EVICT_RECYCLE);
}

/* --- hooks --------------------------------------------------------------- */

static void up(struct svc *s, struct peer *p)
{
	struct worker *w = worker_of(s);
	if (peer_tag(p) == TAG_MESSAGER) {
		w->messager = p;
		tell_messager_seen(w);
		tell_messager(w, 1);
	}
	if (peer_tag(p) == TAG_ROUTER) {
		events_up(w->events, p);
		if (w->events)
			relay_router_up(w->relay, p);
		tell_router_up(w);
	}
	if (peer_tag(p) == TAG_STORAGE)
		relay_storage_up(w->relay, p);
	if (w->store)
		store_up(w->store, p);
	if (w->state)
		w->stage->peer_up(w, p);
}

static void down(struct svc *s, struct peer *p, const char *why)
{
	struct worker *w = worker_of(s);
	if (p == w->messager) {
		w->messager = NULL;
		if (w->messager_attach)
			tell_messager_seen(w);
	}
	if (peer_tag(p) == TAG_ROUTER) {
		routers_down(w->routers, p);
		events_down(w->events, p);
		relay_router_down(w->relay, p);
	}
	relay_storage_down(w->relay, p);
	if (w->store)
		store_down(w->store, p, why);
	if (w->state) /* NULL: the stage has stopped already, links end last */
		w->stage->peer_down(w, p, why);
}

void worker_count_device(struct worker *w)
{
	struct kern_counters c;
	engine_counters(w->engine, &c);
	w->stats.device_busy_us = c.busy_ns / 1000;
	w->stats.device_steps = c.steps;
	w->stats.kv_faults = c.kv_faults;
}

static uint32_t per_second(double per_us)
{
	return per_us < UINT32_MAX / 1e6 ? (uint32_t)(per_us * 1e6) : UINT32_MAX;
}

static void say_rates(struct worker *w, Pds__Heartbeat *hb)
{
	struct rates_view v;
	rates_view(&w->rates, &v);
	hb->compute_tokens_per_s = per_second(v.compute_tokens_us);
	hb->memory_tokens_per_s = per_second(v.read_tokens_us[STORE_TIER_MEMORY]);
	hb->disk_tokens_per_s = per_second(v.read_tokens_us[STORE_TIER_DISK]);
}

static void heartbeat(struct svc *s, struct peer *p, Pds__Heartbeat *hb)
{
	struct worker *w = worker_of(s);
	struct kv_stats ks;
	(void)p;
	say_rates(w, hb);
	kv_pool_stats(w->pool, &ks);
	w->stats.evicted_stored = ks.evicted_stored;
	w->stats.evicted_lost = ks.evictions - ks.evicted_stored;
	if (w->store)
		store_counts(w->store, &w->stats.store);
	hb->blocks_free = ks.by_state[KV_FREE] + ks.evictable;
	hb->blocks_held = ks.by_state[KV_HELD] + ks.by_state[KV_LEASED];
	hb->progress = w->progress + engine_pulse(w->engine);
	hb->prompt_tokens = w->stats.prompt_tokens;
	hb->cached_tokens = w->stats.cached_tokens;
	hb->generated_tokens = w->stats.generated_tokens;
	hb->preemptions = w->stats.preemptions;
	/* routers of a build before WorkerInfo.drained learn it from here */
	hb->draining = svc_draining(s) || w->sw.active || w->drained;
	hb->ending = svc_draining(s);
	w->stage->heartbeat(w, hb);
	worker_count_device(w);
	w->stats.running = hb->running;
	w->stats.waiting = hb->waiting;
	w->stats.blocks_free = hb->blocks_free;
	w->stats.blocks_held = hb->blocks_held;
}

/* The gauges are what a heartbeat says, which is rare or never without work or without a router. */
static void refresh(struct svc *s)
{
	Pds__Heartbeat hb = PDS__HEARTBEAT__INIT;
	heartbeat(s, NULL, &hb);
}

static const char *role_name(struct svc *s)
{
	return worker_role_name(worker_of(s)->role);
}

static void on_peers(struct svc *s, struct peer *p, const struct msg_head *head,
                     const ProtobufCMessage *body)
{
	struct worker *w = worker_of(s);
	(void)head;
	if (peer_lists_take(&w->peer_lists, p, (const Pds__Peers *)body) < 0)
		log_warn("peers_dropped", "router=%s why=\"lists of %u routers are kept\"", peer_name(p),
		         PEER_LISTS_MAX);
	role_tell_peers(w);
	tell_messager(w, 0);
}

static void to_store(struct svc *s, struct peer *p, const struct msg_head *head,
                     const ProtobufCMessage *body)
{
	struct worker *w = worker_of(s);
	(void)head;
	if (w->store)
		store_message(w->store, p, body);
}

/* Changes of storage's tiers: passed on to the routers, and noted in the pool, which remembers what
 * storage has. */
static void on_kv_events(struct svc *s, struct peer *p, const struct msg_head *head,
                         const ProtobufCMessage *body)
{
	struct worker *w = worker_of(s);
	const Pds__KvEvents *m = (const Pds__KvEvents *)body;
	(void)head;
	relay_events(w->relay, p, m);
	if (m->reset)
		kv_pool_doubt_stored(w->pool, m->tier);
	kv_pool_note_stored(w->pool, m->tier, m->removed, m->n_removed, 0);
	kv_pool_note_stored(w->pool, m->tier, m->stored, m->n_stored, 1);
}

static void drain(struct svc *s)
{
	struct worker *w = worker_of(s);
	role_give_up(w);
	w->stage->drain(w);
}

static int idle(struct svc *s)
{
	struct worker *w = worker_of(s);
	return w->stage->idle(w) || watch_gives_up(w);
}

static void stop(struct svc *s)
{
	struct worker *w = worker_of(s);
	if (watch_gives_up(w))
		svc_leave("told to end while a step makes no progress");
	w->stage->stop(w);
	role_fini(w);
	tell_fini(w);
	routers_destroy(&w->routers);
	if (w->store) {
		writeout_destroy(&w->writeout);
		store_destroy(&w->store);
	}
	if (w->messager_attach)
		attach_leave_open(&w->messager_attach);
	tasks_destroy(&w->compiler);
	constraints_destroy(&w->constraints);
	engine_close(&w->engine);
	events_destroy(&w->events);
	relay_destroy(&w->relay);
	kv_pool_destroy(&w->pool);
	rates_fini(&w->rates);
	if (w->ring)
		ring_destroy(&w->ring);
	kv_region_fini(&w->region);
	svc_set_data(s, NULL);
	peer_lists_fini(&w->peer_lists);
	free(w);
}

int worker_main(int argc, char **argv, const char *program, const char *default_name,
                enum worker_role role)
{
	/* role_stray...: for messages meant for the other role; the stage's own handlers replace them
	 * (svc_handle) */
	static const struct svc_msg messages[] = {
		{MSG_PEERS, on_peers, TAG_ROUTER},
		{MSG_REQUEST_SUBMIT, role_stray, TAG_ROUTER},
		{MSG_REQUEST_CANCEL, role_stray, 0},
		{MSG_REQUEST_FIRST_TOKEN, role_stray_first_token, 0},
		{MSG_REQUEST_FIRST_TOKEN_ACK, role_stray, TAG_WORKER},
		{MSG_KV_RESERVE, role_stray_reserve, 0},
		{MSG_KV_QUEUED, role_stray, TAG_WORKER},
		{MSG_KV_GRANT, role_stray, TAG_WORKER},
		{MSG_KV_DENY, role_stray, TAG_WORKER},
		{MSG_KV_RENEW, role_stray, 0},
		{MSG_LEASE_OPEN, role_stray_lease_open, TAG_MESSAGER},
		{MSG_LEASE_REVOKED, role_stray, TAG_MESSAGER},
		{MSG_KV_READY, role_stray_kv_ready, TAG_MESSAGER},
		{MSG_KV_SENT, role_stray, TAG_MESSAGER},
		{MSG_TRANSFER_FAILED, role_stray, TAG_MESSAGER},
		{MSG_STORE_DONE, to_store, TAG_STORAGE},
		{MSG_STORE_FOUND, to_store, TAG_STORAGE},
		{MSG_STORE_FENCED, to_store, TAG_STORAGE},
		{MSG_KV_EVENTS, on_kv_events, TAG_STORAGE},
		{0},
	};
	default_role = role;
	struct svc_hooks hooks = {
		.program = program,
		.default_name = default_name,
		.keys = worker_keys,
		.stats = worker_stats,
		.messages = messages,
		.ctl = worker_ctl,
		.advertises = 1,
		.check = check,
		.plan = plan,
		.start = start,
		.reload = reload,
		.drain = drain,
		.idle = idle,
		.stop = stop,
		.status = worker_status,
		.role = role_name,
		.refresh = refresh,
		.describe = worker_describe_hook,
		.admit = worker_admit,
		.up = up,
		.down = down,
		.heartbeat = heartbeat,
	};
	return svc_main(argc, argv, &hooks);
}
