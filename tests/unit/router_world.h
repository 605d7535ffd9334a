/* router_world.h - a whole router in one process: its HTTP edge on a free port, and a prefill and a
 * decode worker that answer from a script, a token a turn of the loop for all sequences at once.
 * Clients are the test's own sockets. */
#ifndef TESTS_ROUTER_WORLD_H
#define TESTS_ROUTER_WORLD_H

#include "tests/unit/registry_defaults.h"
#include "daemons/router/request/request.h"
#include "util/check.h"
#include "util/clock.h"
#include "util/mem.h"

#include <event2/event.h>
#include <event2/thread.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct world_attempt {
	struct list node;
	struct reqid id;
	uint32_t number, index, max_tokens, prompt_tokens;
	int prompt_logprobs, prompt_top, logprobs;
	int pooling, refused; /* refused: the worker was too full for it */
	struct worker_record *to;
};

struct world {
	struct router r;
	struct model model;
	struct event_base *base;
	struct event *turn, *tick;
	struct worker_record *p, *d;
	struct list running;
	const uint32_t *script; /* token i of every answer; NULL: i + 10 */
	size_t n_script;
	uint32_t stop_at;  /* the model ends the answer at this index, 0: never */
	uint32_t pause_at; /* no worker goes on at this index, 0: never */
	unsigned burst;    /* tokens that the decode worker sends at once; 0: one */
	int mute;          /* no worker answers at all */
	uint32_t cached;   /* tokens that first tokens say were cached */
	unsigned places;   /* beyond so many the prefill worker refuses embeddings; 0: never */
	unsigned most;     /* embeddings that it had at once */
	void (*each)(struct world *w); /* before each embedding */
	struct text_caller other;      /* of jobs that are no request's */
	unsigned cancels;
	unsigned told;        /* sequences that asked for their prompt's log-probabilities */
	uint32_t stop_ids[4]; /* of the last request, */
	size_t n_stop_ids;    /* so many, of which these are the first */
	/* the constraint of the last request, as far as it fits; "": none */
	char form[2048];
};

static inline void world_wake(struct world *w)
{
	event_active(w->turn, EV_TIMEOUT, 0);
}

/* Refused embeddings are told before others are answered. */
static inline void world_take_pooled(struct world *w, struct world_attempt *s)
{
	unsigned n = 1;
	list_each(it, &w->running)
		n += !list_entry(it, struct world_attempt, node)->refused;
	s->refused = w->places && n > w->places;
	if (s->refused) {
		list_push_front(&w->running, &s->node);
		return;
	}
	w->most = n > w->most ? n : w->most;
	list_push_back(&w->running, &s->node);
}

static inline int world_send(void *arg, struct worker_record *to, enum msg_type type,
                             const struct msg_head *head, const void *body)
{
	struct world *w = arg;
	if (type == MSG_REQUEST_CANCEL) {
		w->cancels++;
		list_each_safe(n, next, &w->running) {
			struct world_attempt *s = list_entry(n, struct world_attempt, node);
			if (s->id.hi == head->req.hi && s->id.lo == head->req.lo &&
			    s->number == head->attempt) {
				list_remove(n);
				free(s);
			}
		}
		return 0;
	}
	const Pds__Submit *m = body;
	struct world_attempt *s = mem_zalloc(sizeof *s);
	s->id = head->req;
	s->number = head->attempt;
	s->index = (uint32_t)m->request->n_tokens - m->request->prompt_tokens;
	s->max_tokens = m->request->max_tokens;
	s->prompt_tokens = m->request->prompt_tokens;
	s->prompt_logprobs = m->request->sampling->prompt_logprobs;
	s->prompt_top = m->request->sampling->prompt_top;
	w->told += (unsigned)s->prompt_logprobs;
	s->logprobs = m->request->sampling->logprobs;
	s->to = to;
	w->n_stop_ids = m->request->n_stop_ids;
	for (size_t i = 0; i < w->n_stop_ids && i < 4; i++)
		w->stop_ids[i] = m->request->stop_ids[i];
	snprintf(w->form, sizeof w->form, "%s",
	         m->request->constraint ? m->request->constraint->text : "");
	s->pooling = m->request->pooling != PDS__POOLING__POOLING_NONE;
	if (s->pooling)
		world_take_pooled(w, s);
	else
		list_push_back(&w->running, &s->node);
	world_wake(w);
	return 0;
}

static inline Pds__Finish world_finish(const struct world *w, const struct world_attempt *s)
{
	if (w->stop_at && s->index == w->stop_at)
		return PDS__FINISH__FINISH_STOP;
	return s->index + 1 >= s->max_tokens ? PDS__FINISH__FINISH_LENGTH : PDS__FINISH__FINISH_NONE;
}

/* Alternative k: id 100 + k, -2 - k. */
static inline void world_token(const struct world *w, const struct world_attempt *s, Pds__Token *t)
{
	static Pds__TopLogprob alt[20], *alts[20];
	size_t n = s->logprobs > 0 ? (size_t)s->logprobs : 0;
	for (uint32_t k = 0; k < n; k++) {
		pds__top_logprob__init(&alt[k]);
		alt[k].id = 100 + k;
		alt[k].logprob = -2.0f - (float)k;
		alts[k] = &alt[k];
	}
	pds__token__init(t);
	t->n_top = n;
	t->top = alts;
	t->id = w->script ? w->script[s->index % w->n_script] : s->index + 10;
	t->logprob = -0.25f * (float)(s->index + 1);
}

#define WORLD_SLICE 64u

/* Log-probabilities of a prompt, in slices: -1.5 for each token, and for alternative k -2 - k
 * with id 100 + k. */
static inline void world_tell(struct world *w, const struct world_attempt *s)
{
	static float logprobs[WORLD_SLICE], top[WORLD_SLICE * 20];
	static uint32_t ranks[WORLD_SLICE], ids[WORLD_SLICE * 20];
	struct msg_head head = {.req = s->id, .attempt = s->number};
	struct worker_record *from = s->to;
	uint32_t n = s->prompt_tokens, k = (uint32_t)s->prompt_top;
	for (uint32_t first = 1; first < n; first += WORLD_SLICE) {
		Pds__PromptLogprobs m = PDS__PROMPT_LOGPROBS__INIT;
		m.first = first;
		m.n_logprobs = m.n_ranks = n - first < WORLD_SLICE ? n - first : WORLD_SLICE;
		m.n_top_ids = m.n_top_logprobs = m.n_logprobs * k;
		for (size_t i = 0; i < m.n_logprobs; i++) {
			logprobs[i] = -1.5f;
			ranks[i] = 3;
			for (uint32_t j = 0; j < k; j++) {
				ids[i * k + j] = 100 + j;
				top[i * k + j] = -2.0f - (float)j;
			}
		}
		m.logprobs = logprobs;
		m.ranks = ranks;
		m.top_ids = ids;
		m.top_logprobs = top;
		attempts_prompt(&w->r.attempts, from, &head, &m);
	}
}

/* The last of the four elements is the number of tokens. */
static inline void world_embed(struct world *w, struct world_attempt *s)
{
	struct msg_head head = {.req = s->id, .attempt = s->number};
	float values[] = {3, 4, 0, (float)s->prompt_tokens};
	Pds__Embedding m = PDS__EMBEDDING__INIT;
	Pds__Failed full = PDS__FAILED__INIT;
	struct worker_record *from = s->to;
	int refused = s->refused;
	if (w->each && !refused)
		w->each(w);
	list_remove(&s->node);
	free(s);
	m.n_values = 4;
	m.values = values;
	full.fault = PDS__FAULT__FAULT_OVERLOADED;
	full.retry = 1;
	full.text = (char *)"the prefill worker is full";
	full.blame = (char *)"";
	if (refused)
		attempts_failed(&w->r.attempts, from, &head, &full);
	else
		attempts_embedding(&w->r.attempts, from, &head, &m);
}

/* The prefill worker's part: all first tokens and embeddings. */
static inline void world_first(struct world *w, struct world_attempt *s)
{
	Pds__Token t;
	Pds__FirstToken m = PDS__FIRST_TOKEN__INIT;
	struct msg_head head = {.req = s->id, .attempt = s->number};
	if (s->pooling) {
		world_embed(w, s);
		return;
	}
	world_token(w, s, &t);
	Pds__Timing timing = PDS__TIMING__INIT;
	timing.cached_tokens = w->cached;
	m.timing = &timing;
	if (s->prompt_logprobs)
		world_tell(w, s);
	m.index = s->index;
	m.token = &t;
	m.decode = w->d->name;
	m.decode_epoch = w->d->epoch;
	m.finish = world_finish(w, s);
	struct world_attempt copy = *s;
	s->to = w->d;
	s->index++;
	if (m.finish != PDS__FINISH__FINISH_NONE) {
		list_remove(&s->node);
		free(s);
	}
	attempts_first_token(&w->r.attempts, copy.to, &head, &m);
}

#define WORLD_BATCH 256
#define WORLD_BURST 8

/* The next tokens of s. */
static inline void world_next(const struct world *w, struct world_attempt *s, Pds__Token *t,
                              Pds__Token **tp, Pds__SequenceTokens *st)
{
	pds__sequence_tokens__init(st);
	st->request_hi = s->id.hi;
	st->request_lo = s->id.lo;
	st->attempt = s->number;
	st->index = s->index;
	st->tokens = tp;
	do {
		world_token(w, s, &t[st->n_tokens]);
		tp[st->n_tokens] = &t[st->n_tokens];
		st->n_tokens++;
		st->finish = world_finish(w, s);
		s->index++;
	} while (st->n_tokens < w->burst && st->finish == PDS__FINISH__FINISH_NONE);
}

static inline void world_step(struct world *w)
{
	static Pds__Token t[WORLD_BATCH][WORLD_BURST], *tp[WORLD_BATCH][WORLD_BURST];
	static Pds__SequenceTokens st[WORLD_BATCH], *sp[WORLD_BATCH];
	Pds__Tokens m = PDS__TOKENS__INIT;
	list_each_safe(n, next, &w->running) {
		struct world_attempt *s = list_entry(n, struct world_attempt, node);
		size_t i = m.n_sequences;
		if (s->to != w->d || i == WORLD_BATCH || (w->pause_at && s->index >= w->pause_at))
			continue;
		world_next(w, s, t[i], tp[i], &st[i]);
		sp[i] = &st[i];
		m.n_sequences++;
		if (st[i].finish != PDS__FINISH__FINISH_NONE) {
			list_remove(n);
			free(s);
		}
	}
	m.sequences = sp;
	attempts_tokens(&w->r.attempts, w->d, &m);
}

static inline void world_turn(evutil_socket_t fd, short what, void *arg)
{
	struct world *w = arg;
	int again = 0;
	(void)fd;
	(void)what;
	if (w->mute)
		return;
	for (int more = 1; more;) { /* first tokens; a sequence may vanish under any of them */
		more = 0;
		list_each_safe(n, next, &w->running) {
			struct world_attempt *s = list_entry(n, struct world_attempt, node);
			if (s->to == w->p && !(w->pause_at && s->index >= w->pause_at)) {
				world_first(w, s);
				more = 1;
				break;
			}
		}
	}
	world_step(w);
	list_each(n, &w->running)
		again |= !(w->pause_at && list_entry(n, struct world_attempt, node)->index >= w->pause_at);
	if (again)
		world_wake(w);
}

static inline void world_tick(evutil_socket_t fd, short what, void *arg)
{
	struct world *w = arg;
	(void)fd;
	(void)what;
	attempts_tick(&w->r.attempts, clock_us());
}

static inline void world_job_done(evutil_socket_t fd, short what, void *arg)
{
	struct text_job *j = arg;
	(void)fd;
	(void)what;
	j->done(j);
}

static inline void world_post(void *arg, struct text_job *j)
{
	struct world *w = arg;
	struct timeval now = {0};
	CHECK(event_base_once(w->base, -1, EV_TIMEOUT, world_job_done, j, &now) == 0);
}

static inline struct worker_record *world_worker(struct world *w, const char *name,
                                                 const char *role)
{
	Pds__WorkerInfo info = PDS__WORKER_INFO__INIT;
	info.role = (char *)role;
	info.model_fingerprint = (char *)"f";
	info.site = (char *)"s";
	info.numerics = (char *)"n";
	info.layout = (char *)"l";
	info.context_tokens = 8192;
	info.vocab = 49152;
	info.hidden = strcmp(role, "prefill") == 0 ? 4 : 0;
	return registry_up(&w->r.registry, (struct peer *)w, name, 7, &info, clock_us());
}

static size_t world_out_total = 1u << 30; /* of the next world */
static uint64_t world_write_us = 60000000;

/* model: as opened, or NULL for a router without text. */
static inline struct world *world_new(const struct model *model, size_t out_bytes_max)
{
	struct world *w = mem_zalloc(sizeof *w);
	struct err err = {0};
	CHECK(sodium_init() >= 0);
	json_account_setup();
	evthread_use_pthreads();
	w->base = event_base_new();
	list_init(&w->running);
	snprintf(w->model.name, sizeof w->model.name, "test");
	if (model) {
		w->model = *model;
		snprintf(w->model.name, sizeof w->model.name, "test");
	}
	w->r.base = w->base;
	w->r.model = &w->model;
	w->r.conf = (struct router_conf){.max_requests = 4096,
	                                 .max_choices = 128,
	                                 .request_timeout_us = 60000000,
	                                 .request_memory_bytes = 64u << 20,
	                                 .http.out_bytes_max = out_bytes_max};
	w->r.memory.size = 128u << 20;
	requests_init(&w->r);
	registry_defaults(&w->r.registry, 30000000);
	struct attempts_opts so = {
		.max_attempts = 3, .retry_wait_us = 2000000, .arg = w, .send = world_send};
	attempts_init(&w->r.attempts, &w->r.registry, &so);
	text_caller_init(&w->other);
	w->r.text = text_pool_new(1, 64, world_post, w);
	struct http_opts ho = {.setting = "http_listen",
	                       .listen = "127.0.0.1:0",
	                       .max_header_bytes = 8192,
	                       .max_body_bytes = 1u << 20,
	                       .in_bytes_max = 16u << 20,
	                       .out_bytes_max = out_bytes_max,
	                       .out_total_max = world_out_total,
	                       .max_connections = 1000,
	                       .idle_us = 60000000,
	                       .read_us = 60000000,
	                       .write_us = world_write_us};
	struct http_handlers handlers = {.head = api_head, .request = api_request};
	if (http_new(w->base, &ho, &handlers, &w->r, &w->r.http, &err) < 0)
		PANIC("%s", err.text);
	w->p = world_worker(w, "p1", "prefill");
	w->d = world_worker(w, "d1", "decode");
	w->turn = event_new(w->base, -1, 0, world_turn, w);
	w->tick = event_new(w->base, -1, EV_PERSIST, world_tick, w);
	struct timeval each = {.tv_usec = 20000};
	event_add(w->tick, &each);
	return w;
}

static inline void world_free(struct world *w)
{
	text_pool_destroy(&w->r.text);
	requests_shut_down(&w->r);
	requests_fini(&w->r);
	list_each_safe(n, next, &w->running)
		free(list_entry(n, struct world_attempt, node));
	http_destroy(&w->r.http);
	api_keys_fini(&w->r.keys);
	attempts_fini(&w->r.attempts);
	registry_fini(&w->r.registry);
	event_free(w->turn);
	event_free(w->tick);
	event_base_free(w->base);
	free(w);
}

#endif
