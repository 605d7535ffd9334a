/* registry.c - see registry.h.
 *
 * All workers that are up serve the same model: the first one's fingerprint decides, and others are
 * refused until it is gone. Workers with other numerics or another layout are admitted, but never
 * paired (place.c). Strings from a worker are copied, with limits. Its index is dropped when it
 * goes down, because a worker reports everything again on each new link. */
#include "registry.h"
#include "msg/codec.h"
#include "util/err.h"
#include "util/least.h"
#include "util/log.h"
#include "util/mem.h"

#include <math.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What no operator knows better. Sending a token's KV takes a tenth of computing it, as a rough
 * guess for any network that is fit for it. A worker reports what it has computed within a step or
 * two, and what it has not reported after seconds will not come. A session stays where its KV is
 * while that worker has at most twice the others' load: to compute the KV again costs as much. */
static const struct policy_opts fixed_policy = {.kv_transfer_weight = 0.1,
                                                .kv_predict_us = 5000000,
                                                .session_fallback = POLICY_KV_AWARE,
                                                .session_overload = 2};
/* Ten outcomes, since of fewer one failure would be a large share; half a minute, since a worker
 * that failed longer ago may have been repaired. */
static const struct breaker_opts fixed_breaker = {.min_requests = 10, .window_us = 30000000};

void registry_init(struct registry *g, uint64_t stuck_us)
{
	memset(g, 0, sizeof *g);
	g->policy = fixed_policy;
	g->breaker = fixed_breaker;
	list_init(&g->workers);
	g->stuck_us = stuck_us;
	randombytes_buf(&g->draw, sizeof g->draw);
}

static void free_info(struct worker_record *w)
{
	free(w->endpoint);
	free(w->model);
	free(w->fingerprint);
	free(w->numerics);
	free(w->layout);
	free(w->site);
	free(w->remote);
	free(w->messager);
}

/* Hand-overs with w may succeed now. */
static void forget_failed(struct registry *g, const struct worker_record *w)
{
	for (unsigned i = g->n_failed; i-- > 0;)
		if (g->failed[i].p == w || g->failed[i].d == w)
			g->failed[i] = g->failed[--g->n_failed];
}

static void free_worker(struct registry *g, struct worker_record *w)
{
	forget_failed(g, w);
	list_remove(&w->node);
	kv_index_destroy(&w->index);
	free_info(w);
	free(w);
}

void registry_fini(struct registry *g)
{
	list_each_safe(n, next, &g->workers)
		free_worker(g, list_entry(n, struct worker_record, node));
	free(g->options);
	g->options = NULL;
}

static const char *text(const char *s)
{
	return s ? s : "";
}

/* Checks what a worker reports of itself, in HELLO or later. Its endpoints are sent to other
 * workers, in messages with a limit; the name in `remote` selects the key that they expect. */
static int check_info(const char *name, const Pds__WorkerInfo *w, char *reason, size_t reason_len)
{
	enum worker_role role;
	if (worker_role_parse(w->role, &role) < 0) {
		snprintf(reason, reason_len, "role \"%.32s\" is not prefill, decode or mixed",
		         text(w->role));
		return ERR_INVALID;
	}
	if (strlen(text(w->endpoint)) > MSG_ENDPOINT_MAX) {
		snprintf(reason, reason_len, "the worker's endpoint has %zu bytes, allowed %u",
		         strlen(w->endpoint), MSG_ENDPOINT_MAX);
		return ERR_INVALID;
	}
	const char *remote = text(w->remote), *messager = text(w->messager);
	if (*remote && !endpoint_is_remote_of(remote, name)) {
		snprintf(reason, reason_len,
		         "the worker's remote endpoint \"%.60s\" is not %.47s@tcp://...", remote, name);
		return ERR_INVALID;
	}
	if (*messager && !endpoint_is_remote(messager)) {
		snprintf(reason, reason_len, "the worker's messager \"%.60s\" is not NAME@tcp://HOST:PORT",
		         messager);
		return ERR_INVALID;
	}
	return 0;
}

int registry_admit(const struct registry *g, const char *name, const Pds__WorkerInfo *w,
                   uint32_t vocab_min, char *reason, size_t reason_len)
{
	if (!*name || strlen(name) >= WORKER_NAME_MAX) {
		snprintf(reason, reason_len, "a worker's name must have 1 to %d bytes",
		         WORKER_NAME_MAX - 1);
		return ERR_INVALID;
	}
	if (check_info(name, w, reason, reason_len) < 0)
		return ERR_INVALID;
	if (vocab_min && w->vocab && w->vocab < vocab_min) {
		snprintf(
			reason, reason_len,
			"the worker's vocabulary has %u tokens, the router's tokenizer %u: not the same model",
			w->vocab, vocab_min);
		return ERR_INVALID;
	}
	list_each(n, &g->workers) {
		const struct worker_record *o = list_entry(n, struct worker_record, node);
		if (!worker_is_up(o) || strcmp(o->name, name) == 0 ||
		    strcmp(o->fingerprint, text(w->model_fingerprint)) == 0)
			continue;
		snprintf(reason, reason_len, "model fingerprint %.64s differs from %.64s that %s serves",
		         text(w->model_fingerprint), o->fingerprint, o->name);
		return ERR_INVALID;
	}
	return 0;
}

struct worker_record *registry_find(const struct registry *g, const char *name)
{
	list_each(n, &g->workers) {
		struct worker_record *w = list_entry(n, struct worker_record, node);
		if (strcmp(w->name, name) == 0)
			return w;
	}
	return NULL;
}

static void forget_worker(struct registry *g, struct worker_record *w)
{
	free_worker(g, w);
	g->n_workers--;
}

/* Replaces the one that is down longest if there are too many. */
static struct worker_record *add_worker(struct registry *g, const char *name)
{
	if (g->n_workers >= WORKERS_MAX) {
		struct worker_record *longest = NULL;
		list_each(n, &g->workers) {
			struct worker_record *o = list_entry(n, struct worker_record, node);
			if (!worker_is_up(o) && (!longest || o->down_us < longest->down_us))
				longest = o;
		}
		if (longest)
			forget_worker(g, longest);
	}
	struct worker_record *w = mem_zalloc(sizeof *w);
	snprintf(w->name, sizeof w->name, "%s", name);
	w->name_key = policy_key(w->name, strlen(w->name));
	list_push_back(&g->workers, &w->node);
	list_init(&w->prefills);
	list_init(&w->decodes);
	g->options = mem_grow(g->options, ++g->n_workers, sizeof *g->options);
	return w;
}

/* Also counts the decode workers. */
static void collect_roots(struct registry *g)
{
	g->roots.n = g->n_decode = 0;
	list_each(n, &g->workers) {
		const struct worker_record *w = list_entry(n, struct worker_record, node);
		if (!worker_is_up(w))
			continue;
		prefix_root_add(&g->roots, &w->prefix);
		g->n_decode += w->role == ROLE_DECODE;
	}
}

static void set_info(struct worker_record *w, const Pds__WorkerInfo *info)
{
	free_info(w);
	worker_role_parse(info->role, &w->role);
	w->endpoint = mem_strdup(text(info->endpoint));
	w->model = mem_strdup(text(info->model));
	w->fingerprint = mem_strdup(text(info->model_fingerprint));
	w->numerics = mem_strdup(text(info->numerics));
	w->layout = mem_strdup(text(info->layout));
	w->site = mem_strdup(text(info->site));
	w->remote = mem_strdup(text(info->remote));
	w->messager = mem_strdup(text(info->messager));
	w->blocks = info->blocks;
	w->block_tokens = info->block_tokens;
	w->max_sequences = info->max_sequences;
	w->context_tokens = info->context_tokens;
	w->handover_tokens = info->handover_tokens;
	w->vocab = info->vocab;
	w->hidden = info->hidden;
	w->step_tokens = info->step_tokens;
	w->drained = info->drained;
	struct kv_root root = {.model_fingerprint = w->fingerprint,
	                       .numerics = w->numerics,
	                       .layout = w->layout};
	struct prefix_root had = w->prefix;
	kv_hash_root(&root, &w->prefix.hash);
	w->prefix.block_tokens = w->block_tokens;
	if (w->index && !prefix_root_same(&had, &w->prefix))
		kv_index_destroy(&w->index);
}

/* A new process of the worker has connected. If the one before ended without a goodbye, it was
 * killed or has crashed, or was unreachable for so long that its end was not seen. */
static void begin_life(struct registry *g, struct worker_record *w, uint64_t now_us)
{
	if (w->epoch && w->ended_in_order) {
		breaker_restart(&w->breaker, now_us);
	} else if (w->epoch) {
		breaker_crashed(&w->breaker, &g->breaker,
		                (worker_is_up(w) ? now_us : w->down_us) - w->life_us, now_us);
		g->breaker_opened += breaker_state(&w->breaker, now_us) == BREAKER_OPEN;
		uint64_t left_us = w->breaker.until_us > now_us ? w->breaker.until_us - now_us : 0;
		log_warn("worker_restarted", "worker=%s crashes=%u breaker=%s for_ms=%llu", w->name,
		         w->breaker.crashes, breaker_state_name(breaker_state(&w->breaker, now_us)),
		         (unsigned long long)left_us / 1000);
	}
	w->life_us = now_us;
	w->ended_in_order = 0;
}

struct worker_record *registry_up(struct registry *g, struct peer *peer, const char *name,
                                  uint64_t epoch, const Pds__WorkerInfo *info, uint64_t now_us)
{
	struct worker_record *w = registry_find(g, name);
	if (!w)
		w = add_worker(g, name);
	if (w->epoch != epoch) {
		begin_life(g, w, now_us);
		forget_failed(g, w);
	}
	g->n_up += !worker_is_up(w);
	w->peer = peer;
	w->epoch = epoch;
	set_info(w, info);
	kv_index_destroy(&w->index);
	memset(&w->beat, 0, sizeof w->beat);
	w->has_heartbeat = 0;
	w->other_sequences = 0;
	w->other_tokens = 0;
	w->promised_blocks = 0;
	w->window = WORKER_STARTING_MAX;
	w->up_us = w->beat_us = w->progress_us = now_us;
	w->up_no = ++g->ups;
	collect_roots(g);
	return w;
}

int registry_update(struct registry *g, struct worker_record *w, const Pds__WorkerInfo *info,
                    char *reason, size_t reason_len)
{
	if (check_info(w->name, info, reason, reason_len) < 0)
		return ERR_INVALID;
	if (strcmp(text(info->model_fingerprint), w->fingerprint) != 0) {
		snprintf(reason, reason_len,
		         "a worker cannot change its model within one life: %.64s instead of %.64s",
		         text(info->model_fingerprint), w->fingerprint);
		return ERR_INVALID;
	}
	/* it has another messager, so hand-overs may succeed now */
	if (strcmp(text(info->site), w->site) != 0 || strcmp(text(info->messager), w->messager) != 0)
		forget_failed(g, w);
	set_info(w, info);
	collect_roots(g);
	return 0;
}

void registry_down(struct registry *g, struct worker_record *w, uint64_t now_us)
{
	g->n_up -= worker_is_up(w);
	w->peer = NULL;
	w->down_us = now_us;
	kv_index_destroy(&w->index);
	collect_roots(g);
}

void registry_ended_in_order(struct worker_record *w)
{
	w->ended_in_order = 1;
}

/* --- blocks of a worker -------------------------------------------------- */

void registry_kv_events(struct registry *g, struct worker_record *w, const Pds__KvEvents *m)
{
	if (m->tier >= KV_TIERS || !w->block_tokens || !worker_is_up(w)) {
		g->events_bad++;
		return;
	}
	g->events++;
	if (!w->index)
		w->index = kv_index_new(g->index_entries_max);
	if (m->reset)
		kv_index_clear(w->index, m->tier);
	uint64_t dropped = kv_index_dropped(w->index, m->tier);
	for (size_t i = 0; i < m->n_removed; i++)
		kv_index_remove(w->index, m->removed[i], m->tier);
	for (size_t i = 0; i < m->n_stored; i++)
		kv_index_store(w->index, m->stored[i], m->tier);
	if (!dropped && kv_index_dropped(w->index, m->tier))
		log_warn("kv_index_full",
		         "worker=%s tier=%u entries=%zu effect=\"further blocks are not tracked\"", w->name,
		         m->tier, kv_index_count(w->index, m->tier));
	g->index_dropped += kv_index_dropped(w->index, m->tier) - dropped;
}

void registry_set_index_max(struct registry *g, size_t entries)
{
	g->index_entries_max = entries;
	list_each(n, &g->workers) {
		struct worker_record *w = list_entry(n, struct worker_record, node);
		if (w->index)
			kv_index_set_max(w->index, entries);
	}
}

size_t registry_index_entries(const struct registry *g, unsigned tier)
{
	size_t sum = 0;
	list_each(n, &g->workers) {
		const struct worker_record *w = list_entry(n, struct worker_record, node);
		sum += worker_known(w, tier);
	}
	return sum;
}

size_t worker_known(const struct worker_record *w, unsigned tier)
{
	return w->index ? kv_index_count(w->index, tier) : 0;
}

/* --- health and rates ---------------------------------------------------- */

void registry_outcome(struct registry *g, struct worker_record *w, int good, uint64_t now_us)
{
	if (!breaker_outcome(&w->breaker, &g->breaker, good, now_us))
		return;
	g->breaker_opened += w->breaker.open;
	if (w->breaker.open)
		log_warn("breaker_opened", "worker=%s for_ms=%llu", w->name,
		         (unsigned long long)((w->breaker.until_us - now_us) / 1000));
	else
		log_notice("breaker_closed", "worker=%s", w->name);
}

static struct handover_failed *failed_of(struct registry *g, const struct worker_record *p,
                                         const struct worker_record *d)
{
	for (unsigned i = 0; i < g->n_failed; i++)
		if (g->failed[i].p == p && g->failed[i].d == d)
			return &g->failed[i];
	return NULL;
}

void registry_handover(struct registry *g, const struct worker_record *p,
                       const struct worker_record *d, int good, uint64_t now_us)
{
	struct handover_failed *f = failed_of(g, p, d);
	if (good) {
		if (f)
			*f = g->failed[--g->n_failed];
		return;
	}
	if (!f && g->n_failed < HANDOVERS_FAILED_MAX)
		f = &g->failed[g->n_failed++];
	if (!f) {
		f = g->failed;
		for (unsigned i = 1; i < HANDOVERS_FAILED_MAX; i++)
			f = g->failed[i].until_us < f->until_us ? &g->failed[i] : f;
	}
	*f = (struct handover_failed){p, d, now_us + g->breaker.open_us};
	log_warn("handover_failed", "prefill=%s decode=%s for_ms=%llu", p->name, d->name,
	         (unsigned long long)g->breaker.open_us / 1000);
}

void registry_handover_tried(struct registry *g, const struct worker_record *p,
                             const struct worker_record *d, uint64_t now_us)
{
	struct handover_failed *f = failed_of(g, p, d);
	if (f)
		f->until_us = now_us + g->breaker.open_us;
}

int registry_handover_takes(const struct registry *g, const struct worker_record *p,
                            const struct worker_record *d, uint64_t now_us)
{
	const struct handover_failed *f = failed_of((struct registry *)(uintptr_t)g, p, d);
	return !f || f->until_us <= now_us;
}

void registry_started(struct worker_record *w)
{
	w->window = (uint32_t)least(w->window + 1, WORKER_STARTING_MAX);
}

void registry_full(struct worker_record *w)
{
	w->window = (uint32_t)most(1, w->starting);
}

void registry_answered(struct registry *g, uint32_t tokens)
{
	g->answer_tokens = g->answer_tokens > 0 ? g->answer_tokens * 0.98 + tokens * 0.02 : tokens;
}

/* The rate is limited to UINT32_MAX tokens/s, because pdctl reads no number above INT64_MAX. */
static void measure(double *rate, uint64_t tokens, uint64_t us)
{
	double now = fmin((double)tokens * 1e6 / (double)us, UINT32_MAX);
	double keep = exp(-(double)us / RATE_US);
	*rate = *rate > 0 ? *rate * keep + now * (1 - keep) : now;
}

uint32_t registry_retry_after_s(const struct registry *g, uint64_t queued, uint32_t min_s,
                                uint32_t max_s)
{
	double backlog = (double)queued, prompt_rate = 0, output_rate = 0, s = 0;
	list_each(n, &g->workers) {
		const struct worker_record *w = list_entry(n, struct worker_record, node);
		if (!worker_is_up(w))
			continue;
		backlog += (double)w->backlog_tokens;
		prompt_rate += w->backlog_tokens || w->role != ROLE_DECODE ? w->prompt_rate : 0;
		output_rate += w->output_rate;
	}
	if (prompt_rate > 0)
		s += backlog / prompt_rate;
	if (output_rate > 0)
		s += g->answer_tokens / output_rate;
	return s <= min_s ? min_s : s >= max_s ? max_s : (uint32_t)ceil(s);
}

void registry_beat(struct worker_record *w, const Pds__Heartbeat *b, uint64_t now_us)
{
	if (b->progress != w->beat.progress || b->running == 0)
		w->progress_us = now_us;
	/* Totals grow until the worker restarts. An interval without work is ignored; one with work
	 * for a part of the time makes the rate too low, never too high. */
	uint64_t us = now_us - w->beat_us;
	int measures = w->has_heartbeat && us >= 1000;
	if (measures && b->prompt_tokens > w->beat.prompt_tokens)
		measure(&w->prompt_rate, b->prompt_tokens - w->beat.prompt_tokens, us);
	if (measures && b->generated_tokens > w->beat.generated_tokens)
		measure(&w->output_rate, b->generated_tokens - w->beat.generated_tokens, us);
	/* Sequences beyond ours belong to other routers. Computed here, while the heartbeat's
	 * numbers and ours are of the same time. */
	uint64_t sequences = (uint64_t)b->running + b->waiting,
			 held = (uint64_t)b->blocks_held * w->block_tokens,
			 ours = w->tokens_in_flight - w->backlog_tokens;
	w->other_sequences = sequences > w->requests ? sequences - w->requests : 0;
	w->other_tokens = w->other_sequences && held > ours ? held - ours : 0;
	w->has_heartbeat = 1;
	w->promised_blocks = 0;
	w->beat.progress = b->progress;
	w->beat.running = b->running;
	w->beat.waiting = b->waiting;
	w->beat.blocks_free = b->blocks_free;
	w->beat.blocks_held = b->blocks_held;
	/* pdctl reads no larger number in the router's answers */
	w->beat.prompt_tokens = least(b->prompt_tokens, INT64_MAX);
	w->beat.generated_tokens = least(b->generated_tokens, INT64_MAX);
	w->beat.preemptions = least(b->preemptions, INT64_MAX);
	w->beat.cached_tokens = least(b->cached_tokens, INT64_MAX);
	/* WORKER_UPDATE reports the end of a drain; a heartbeat sent before it must not undo that */
	w->beat.draining = b->draining && (b->ending || !w->drained);
	w->beat.ending = b->ending;
	w->beat.compute_tokens_per_s = b->compute_tokens_per_s;
	w->beat.memory_tokens_per_s = b->memory_tokens_per_s;
	w->beat.disk_tokens_per_s = b->disk_tokens_per_s;
	w->beat_us = now_us;
}

void registry_forget(struct registry *g, uint64_t now_us)
{
	list_each_safe(n, next, &g->workers) {
		struct worker_record *w = list_entry(n, struct worker_record, node);
		if (!worker_is_up(w) && now_us - w->down_us > WORKER_FORGET_US)
			forget_worker(g, w);
	}
}

int worker_is_up(const struct worker_record *w)
{
	return w->peer != NULL;
}

int worker_drains(const struct worker_record *w)
{
	return w->drained || w->beat.draining;
}

int worker_is_near(const struct worker_record *p, const struct worker_record *d)
{
	return *p->site && strcmp(p->site, d->site) == 0;
}

int worker_reaches(const struct worker_record *p, const struct worker_record *d)
{
	return worker_is_near(p, d) || (*p->messager && *d->messager && *d->remote);
}

const char *worker_endpoint(const struct worker_record *p, const struct worker_record *d)
{
	return worker_is_near(p, d) ? d->endpoint : d->remote;
}

size_t registry_peers(const struct registry *g, const struct worker_record *to, Pds__Peer *ret)
{
	size_t n = 0;
	list_each(it, &g->workers) {
		struct worker_record *w = list_entry(it, struct worker_record, node);
		if (w == to || !worker_is_up(w) || !worker_reaches(to, w))
			continue;
		Pds__Peer *p = &ret[n++];
		pds__peer__init(p);
		p->name = w->name;
		p->endpoint = (char *)worker_endpoint(to, w);
		p->role = (char *)worker_role_name(w->role);
		p->epoch = w->epoch;
		if (!worker_is_near(to, w))
			p->messager = w->messager;
	}
	return n;
}

int worker_is_stuck(const struct registry *g, const struct worker_record *w, uint64_t now_us)
{
	return w->beat.running > 0 && now_us > w->progress_us && now_us - w->progress_us > g->stuck_us;
}

uint32_t worker_longest(const struct worker_record *w)
{
	uint64_t pool = (uint64_t)w->blocks * w->block_tokens;
	return pool && (!w->context_tokens || pool < w->context_tokens) ? (uint32_t)pool
	                                                                : w->context_tokens;
}

/* Over workers of these roles; if none is up, over all. */
static uint32_t longest(const struct registry *g, unsigned roles)
{
	uint32_t of_roles = 0, of_all = 0;
	list_each(it, &g->workers) {
		const struct worker_record *w = list_entry(it, struct worker_record, node);
		uint32_t n = worker_is_up(w) ? worker_longest(w) : 0;
		of_all = most(of_all, n);
		if (roles >> w->role & 1)
			of_roles = most(of_roles, n);
	}
	return of_roles ? of_roles : of_all;
}

uint32_t registry_context(const struct registry *g)
{
	return longest(g, 1u << ROLE_DECODE | 1u << ROLE_MIXED);
}

uint32_t registry_embedding_max(const struct registry *g)
{
	uint32_t n = 0;
	list_each(it, &g->workers) {
		const struct worker_record *w = list_entry(it, struct worker_record, node);
		if (worker_is_up(w) && w->hidden)
			n = most(n, worker_longest(w));
	}
	return n;
}

int registry_fingerprint(const struct registry *g, char *out, size_t size)
{
	const struct worker_record *one = NULL;
	list_each(it, &g->workers) {
		const struct worker_record *w = list_entry(it, struct worker_record, node);
		if (!worker_is_up(w))
			continue;
		if (one && memcmp(&w->prefix.hash, &one->prefix.hash, sizeof one->prefix.hash) != 0)
			return 0;
		one = w;
	}
	if (one) {
		const unsigned char *h = (const unsigned char *)&one->prefix.hash;
		snprintf(out, size, "fp_%02x%02x%02x%02x%02x%02x", h[0], h[1], h[2], h[3], h[4], h[5]);
	}
	return one != NULL;
}

uint32_t registry_prompt_max(const struct registry *g)
{
	return longest(g, 1u << ROLE_PREFILL | 1u << ROLE_MIXED);
}

uint32_t registry_vocab(const struct registry *g)
{
	uint32_t least = 0;
	list_each(n, &g->workers) {
		const struct worker_record *w = list_entry(n, struct worker_record, node);
		if (worker_is_up(w) && w->vocab && (!least || w->vocab < least))
			least = w->vocab;
	}
	return least;
}

uint32_t registry_hidden(const struct registry *g)
{
	uint32_t least = 0;
	list_each(n, &g->workers) {
		const struct worker_record *w = list_entry(n, struct worker_record, node);
		if (worker_is_up(w) && w->hidden && (!least || w->hidden < least))
			least = w->hidden;
	}
	return least;
}

int registry_never_embeds(const struct registry *g)
{
	list_each(n, &g->workers)
		if (list_entry(n, struct worker_record, node)->hidden)
			return 0;
	return g->n_up > 0;
}

/* The cost of reading from storage there; null where placement does not use it. */
static void add_read_weights(const struct worker_record *w, struct buf *out)
{
	static const char *const names[] = {NULL, "memory", "disk"};
	for (unsigned tier = 1; tier <= 2; tier++) {
		int measured;
		double weight = policy_read_weight(w, tier, &measured);
		if (w->role == ROLE_PREFILL)
			buf_printf(out, ",\"%s_weight\":%.3f,\"%s_weight_by\":\"%s\"", names[tier], weight,
			           names[tier], measured ? "rates" : "setting");
		else
			buf_printf(out, ",\"%s_weight\":null,\"%s_weight_by\":null", names[tier], names[tier]);
	}
}

void registry_json(const struct registry *g, uint64_t now_us, struct buf *out)
{
	buf_addc(out, '[');
	list_each(n, &g->workers) {
		const struct worker_record *w = list_entry(n, struct worker_record, node);
		int up = worker_is_up(w);
		const char *state = !up                             ? "down"
		                    : w->beat.draining              ? "draining"
		                    : w->drained                    ? "drained"
		                    : worker_is_stuck(g, w, now_us) ? "stuck"
		                                                    : "up";
		/* which workers it hands KV over to, or takes it from: those of its site, or of all
		 * hosts */
		const char *handover = w->role == ROLE_MIXED || !*w->site                         ? "none"
		                       : !*w->messager || (w->role == ROLE_DECODE && !*w->remote) ? "site"
		                                                                                  : "hosts";
		buf_printf(out, "%s{\"name\":", n == g->workers.next ? "" : ",");
		buf_add_json(out, w->name, strlen(w->name));
		buf_printf(out, ",\"role\":\"%s\",\"state\":\"%s\",\"epoch\":\"%016llx\",\"endpoint\":",
		           worker_role_name(w->role), state, (unsigned long long)w->epoch);
		buf_add_json(out, w->endpoint, strlen(w->endpoint));
		buf_adds(out, ",\"site\":");
		buf_add_json(out, w->site, strlen(w->site));
		buf_adds(out, ",\"remote\":");
		buf_add_json(out, w->remote, strlen(w->remote));
		buf_adds(out, ",\"messager\":");
		buf_add_json(out, w->messager, strlen(w->messager));
		buf_printf(out, ",\"handover\":\"%s\"", handover);
		buf_adds(out, ",\"model\":");
		buf_add_json(out, w->model, strlen(w->model));
		buf_adds(out, ",\"numerics\":");
		buf_add_json(out, w->numerics, strlen(w->numerics));
		buf_printf(out, ",\"for_s\":%llu,\"heard_ms_ago\":%llu",
		           (unsigned long long)((now_us - (up ? w->up_us : w->down_us)) / 1000000),
		           (unsigned long long)((now_us - w->beat_us) / 1000));
		buf_printf(out,
		           ",\"requests\":%u,\"tokens_in_flight\":%llu,\"running\":%u,\"waiting\":%u,"
		           "\"blocks\":%u,\"blocks_free\":%u,\"blocks_held\":%u",
		           w->requests, (unsigned long long)w->tokens_in_flight, w->beat.running,
		           w->beat.waiting, w->blocks, w->beat.blocks_free, w->beat.blocks_held);
		buf_printf(out,
		           ",\"prompt_tokens\":%llu,\"generated_tokens\":%llu,\"cached_tokens\":%llu,"
		           "\"preemptions\":%llu,\"context_tokens\":%u",
		           (unsigned long long)w->beat.prompt_tokens,
		           (unsigned long long)w->beat.generated_tokens,
		           (unsigned long long)w->beat.cached_tokens,
		           (unsigned long long)w->beat.preemptions, w->context_tokens);
		buf_printf(out,
		           ",\"backlog_tokens\":%llu,\"prompt_tokens_per_s\":%.0f,\"generated_tokens_per_"
		           "s\":%.0f,\"kv_index\":%zu,\"kv_memory\":%zu,\"kv_disk\":%zu,\"breaker\":\"%s\"",
		           (unsigned long long)w->backlog_tokens, w->prompt_rate, w->output_rate,
		           worker_known(w, 0), worker_known(w, 1), worker_known(w, 2),
		           breaker_state_name(breaker_state(&w->breaker, now_us)));
		buf_printf(out, ",\"crashes\":%u", w->breaker.crashes);
		buf_printf(
			out, ",\"compute_tokens_per_s\":%u,\"memory_tokens_per_s\":%u,\"disk_tokens_per_s\":%u",
			w->beat.compute_tokens_per_s, w->beat.memory_tokens_per_s, w->beat.disk_tokens_per_s);
		add_read_weights(w, out);
		buf_addc(out, '}');
	}
	buf_addc(out, ']');
}
