/* router_rig.h - the attempts of a router without network or text: what they send is recorded, what
 * workers send is made by hand. */
#ifndef TESTS_ROUTER_RIG_H
#define TESTS_ROUTER_RIG_H

#include "tests/unit/registry_defaults.h"
#include "daemons/router/attempt/attempt.h"
#include "util/clock.h"
#include "util/err.h"
#include "util/mem.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct rig {
	struct registry g;
	struct attempts e;
	struct attempt_caller caller;
	char log[8192];   /* "submit p1 #1 5 [d1 d2]; cancel p1 #1; " */
	int refuse;       /* the next `refuse` submits return ERR_FULL */
	int asks_prompt;  /* the last submit asked for log-probabilities of the prompt */
	char out[4096];   /* "10 11 12 stop" */
	int n_prompt;     /* prompt log-probabilities that arrived, one after the other */
	float prompt[16]; /* (n_prompt) */
	float embedding[4];
	int n_embeddings, no_memory; /* no_memory: the owner has none for it */
	int ended;
	uint32_t stop_at; /* the owner says stop at this token id */
	int abort_now;
	struct attempt *s;
	int destroy_at_end;
};

/* of all requests, however often they are submitted */
static const unsigned char rig_salt[32] = "the cache salt of some tenant";

static inline int rig_send(void *arg, struct worker_record *w, enum msg_type type,
                           const struct msg_head *head, const void *body)
{
	struct rig *r = arg;
	size_t n = strlen(r->log);
	ck_assert(worker_is_up(w));
	if (r->refuse && type == MSG_REQUEST_SUBMIT) {
		r->refuse--;
		return ERR_FULL;
	}
	if (type == MSG_REQUEST_CANCEL) {
		snprintf(r->log + n, sizeof r->log - n, "cancel %s #%u; ", w->name, head->attempt);
		return 0;
	}
	const Pds__Submit *m = body;
	r->asks_prompt = m->request->sampling->prompt_logprobs;
	ck_assert_uint_eq(m->request->cache_salt.len, sizeof rig_salt);
	ck_assert_mem_eq(m->request->cache_salt.data, rig_salt, sizeof rig_salt);
	n += (size_t)snprintf(r->log + n, sizeof r->log - n, "submit %s #%u %zu", w->name,
	                      head->attempt, m->request->n_tokens);
	for (size_t i = 0; i < m->n_candidates; i++)
		n += (size_t)snprintf(r->log + n, sizeof r->log - n, " %s", m->candidates[i]->name);
	snprintf(r->log + n, sizeof r->log - n, "; ");
	return 0;
}

/* Where an attempt stands: its state, or how it has ended. */
enum standing { NEW = ATTEMPT_NEW, WAITING, SUBMITTED, RUNNING, DONE, FAILED, CANCELLED };

static inline enum standing standing(const struct attempt *a)
{
	return a->state != ATTEMPT_ENDED              ? (enum standing)a->state
	       : a->end.finish == ANSWER_FINISH_ERROR ? FAILED
	       : a->end.finish == ANSWER_FINISH_ABORT ? CANCELLED
	                                              : DONE;
}

static inline const char *standing_name(enum standing s)
{
	static const char *const names[] = {"new",  "waiting", "submitted", "running",
	                                    "done", "failed",  "cancelled"};
	return names[s];
}

static inline enum attempt_verdict rig_tokens(void *owner, struct attempt *s,
                                              Pds__Token *const *tokens, size_t n,
                                              enum answer_finish last)
{
	struct rig *r = owner;
	(void)s;
	for (size_t i = 0; i < n; i++) {
		size_t at = strlen(r->out);
		snprintf(r->out + at, sizeof r->out - at, "%u ", tokens[i]->id);
		if (r->stop_at && tokens[i]->id == r->stop_at)
			return ATTEMPT_STOP;
	}
	if (r->abort_now)
		return ATTEMPT_ABORT;
	if (last != ANSWER_FINISH_NONE)
		strcat(r->out, answer_finish_name(last));
	return ATTEMPT_GO;
}

static inline void rig_prompt(void *owner, struct attempt *s, const Pds__PromptLogprobs *m,
                              size_t from, size_t n)
{
	struct rig *r = owner;
	ck_assert_str_eq(r->out, ""); /* before the first token */
	ck_assert_uint_eq(from + n, m->n_logprobs);
	ck_assert_uint_eq(m->first + from, (size_t)r->n_prompt + 1);
	for (size_t i = 0; i < n; i++)
		r->prompt[r->n_prompt++] = m->logprobs[from + i];
	ck_assert_uint_eq(s->got.prompt_rows, (uint32_t)r->n_prompt + 1);
}

static inline int rig_embedding(void *owner, struct attempt *s, const float *values)
{
	struct rig *r = owner;
	(void)s;
	if (r->no_memory)
		return -1;
	memcpy(r->embedding, values, sizeof r->embedding);
	r->n_embeddings++;
	return 0;
}

static inline void rig_ended(void *owner, struct attempt *s)
{
	struct rig *r = owner;
	ck_assert(attempt_ended(s));
	r->ended++;
	if (r->destroy_at_end)
		attempt_destroy(&r->s);
}

static const struct attempt_hooks rig_hooks = {
	.tokens = rig_tokens, .prompt = rig_prompt, .embedding = rig_embedding, .ended = rig_ended};

/* A worker comes up; the pointer only has to differ from NULL. */
static inline struct worker_record *rig_up(struct rig *r, const char *name, const char *role,
                                           uint64_t epoch)
{
	Pds__WorkerInfo w = PDS__WORKER_INFO__INIT;
	w.role = (char *)role;
	w.endpoint = (char *)"ipc:///none";
	w.model_fingerprint = (char *)"f";
	w.site = (char *)"s";
	w.numerics = (char *)"cpu-r3:tp1:bf16";
	w.layout = (char *)"l";
	w.context_tokens = 2048;
	w.vocab = 1000;
	w.hidden = 4;
	return registry_up(&r->g, (struct peer *)r, name, epoch, &w, clock_us());
}

static inline void rig_down(struct rig *r, struct worker_record *w)
{
	registry_down(&r->g, w, clock_us());
	attempts_worker_down(&r->e, w, "killed", WORKER_LOST);
}

static inline struct rig *rig_new(void)
{
	struct rig *r = mem_zalloc(sizeof *r);
	struct attempts_opts o = {
		.max_attempts = 3, .retry_wait_us = 10000000, .arg = r, .send = rig_send};
	registry_defaults(&r->g, 30000000);
	attempts_init(&r->e, &r->g, &o);
	attempt_caller_init(&r->caller, 1);
	return r;
}

static inline void rig_free(struct rig *r)
{
	attempt_destroy(&r->s);
	ck_assert_uint_eq(attempts_count(&r->e), 0);
	ck_assert(r->e.live.next == &r->e.live);
	ck_assert(r->e.waiting.next == &r->e.waiting);
	ck_assert_uint_eq(r->e.queue.n, 0);
	ck_assert_uint_eq(r->e.n_prefill_only, 0);
	list_each(it, &r->g.workers) { /* nothing stays charged to any worker */
		const struct worker_record *w = list_entry(it, struct worker_record, node);
		ck_assert_uint_eq(w->tokens_in_flight, 0);
		ck_assert_uint_eq(w->backlog_tokens, 0);
		ck_assert_uint_eq(w->requests, 0);
		ck_assert_uint_eq(w->starting, 0);
	}
	attempts_fini(&r->e);
	registry_fini(&r->g);
	free(r);
}

static inline struct attempt *rig_seq(struct rig *r, uint32_t max_tokens, int prompt_logprobs)
{
	static const uint32_t prompt[] = {1, 2, 3, 4, 5};
	struct attempt_spec spec = {.tokens = prompt,
	                            .prompt_tokens = 5,
	                            .max_tokens = max_tokens,
	                            .cache_salt = rig_salt,
	                            .caller = &r->caller,
	                            .begun_us = clock_us(),
	                            .deadline_us = clock_us() + 60000000};
	pds__sampling__init(&spec.sampling);
	spec.sampling.prompt_logprobs = prompt_logprobs;
	return r->s = attempt_new(&r->e, &spec, &rig_hooks, r);
}

/* --- what workers say --- */

/* Log-probabilities of n prompt tokens from `first` on: token i's is -i. */
static inline void rig_told(struct rig *r, struct worker_record *w, struct reqid id,
                            uint32_t attempt, uint32_t first, size_t n)
{
	float logprobs[16];
	uint32_t ranks[16];
	Pds__PromptLogprobs m = PDS__PROMPT_LOGPROBS__INIT;
	struct msg_head head = {.req = id, .attempt = attempt};
	for (size_t i = 0; i < n; i++) {
		logprobs[i] = -(float)(first + i);
		ranks[i] = 1;
	}
	m.first = first;
	m.logprobs = logprobs;
	m.ranks = ranks;
	m.n_logprobs = m.n_ranks = n;
	attempts_prompt(&r->e, w, &head, &m);
}

/* n_prompt: log-probabilities of so many prompt tokens come before. */
static inline void rig_first_full(struct rig *r, struct worker_record *w, struct reqid id,
                                  uint32_t attempt, uint32_t index, uint32_t token,
                                  const char *decode, uint64_t epoch, Pds__Finish finish,
                                  size_t n_prompt)
{
	Pds__Token t = PDS__TOKEN__INIT;
	Pds__FirstToken m = PDS__FIRST_TOKEN__INIT;
	struct msg_head head = {.req = id, .attempt = attempt};
	if (n_prompt)
		rig_told(r, w, id, attempt, 1, n_prompt);
	t.id = token;
	m.index = index;
	m.token = &t;
	m.decode = (char *)decode;
	m.decode_epoch = epoch;
	m.finish = finish;
	attempts_first_token(&r->e, w, &head, &m);
}

static inline void rig_first(struct rig *r, struct worker_record *w, uint32_t attempt,
                             uint32_t index, uint32_t token, const char *decode, uint64_t epoch)
{
	rig_first_full(r, w, r->s->id, attempt, index, token, decode, epoch, PDS__FINISH__FINISH_NONE,
	               0);
}

/* n tokens: token, token + 1, ... */
static inline void rig_tokens_from(struct rig *r, struct worker_record *w, struct reqid id,
                                   uint32_t attempt, uint32_t index, uint32_t token, size_t n,
                                   Pds__Finish finish)
{
	Pds__Token t[32], *tp[32];
	Pds__SequenceTokens s = PDS__SEQUENCE_TOKENS__INIT, *sp[1] = {&s};
	Pds__Tokens m = PDS__TOKENS__INIT;
	for (size_t i = 0; i < n; i++) {
		pds__token__init(&t[i]);
		t[i].id = token + (uint32_t)i;
		tp[i] = &t[i];
	}
	s.request_hi = id.hi;
	s.request_lo = id.lo;
	s.attempt = attempt;
	s.index = index;
	s.tokens = tp;
	s.n_tokens = n;
	s.finish = finish;
	m.sequences = sp;
	m.n_sequences = 1;
	attempts_tokens(&r->e, w, &m);
}

static inline void rig_more(struct rig *r, struct worker_record *w, uint32_t attempt,
                            uint32_t index, uint32_t token, size_t n)
{
	rig_tokens_from(r, w, r->s->id, attempt, index, token, n, PDS__FINISH__FINISH_NONE);
}

/* blame: whose failure it is said to be; "": nobody's. */
static inline void rig_fail_by(struct rig *r, struct worker_record *w, uint32_t attempt,
                               Pds__Fault fault, int retry, const char *blame)
{
	Pds__Failed m = PDS__FAILED__INIT;
	struct msg_head head = {.req = r->s->id, .attempt = attempt};
	m.fault = fault;
	m.text = (char *)"so it is";
	m.retry = retry;
	m.blame = (char *)blame;
	attempts_failed(&r->e, w, &head, &m);
}

static inline void rig_fail(struct rig *r, struct worker_record *w, uint32_t attempt,
                            Pds__Fault fault, int retry)
{
	rig_fail_by(r, w, attempt, fault, retry, "");
}

#endif
