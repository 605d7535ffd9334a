/* request.c - see request.h: the states of a request, and how it begins and ends.
 *
 * What always holds: a request is in router.requests from begin to free; while it is IN_POOL or
 * ABANDONED the event loop does not touch its prep; only request_step changes its state, and
 * nothing else frees it. */
#include "request.h"
#include "daemons/router/api/embeddings.h"
#include "util/check.h"
#include "util/clock.h"
#include "util/err.h"
#include "util/least.h"
#include "util/map.h"
#include "util/mem.h"

#include <event2/event.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TURN_US 1000u /* for steps of all requests, before the loop polls its descriptors again */
/* tokens of the prompts that are submitted in one step, which takes a fraction of a millisecond */
#define START_TOKENS 32768u
/* a request's embeddings at workers; the limit keeps room for its client's other requests */
#define EMBEDDINGS_AT_ONCE 64u
#define ANSWER_BYTES (sizeof(struct answer) + sizeof(struct attempt) + ANSWER_IDS_BYTES)
/* limit of router.out, far more than one step writes */
#define OUT_MAX (64u << 20)
/* Bodies up to this size are handled on the event loop: they take less than a thread's wake-up. */
#define TEXT_INLINE_BYTES 4096u
#define EMBEDDING_INPUTS_MAX 2048u /* OpenAI's limit: clients split their batches by it */

/* Passes the event to the state, and enters states until one stays. Then the request may be
 * gone. */
static void request_step(struct request *q, enum request_event e);

/* --- errors -------------------------------------------------------------- */

/* Answers with the error's status, or ends a stream that has begun with an event. Then the
 * connection is not the request's any more. */
static void tell_failure(struct request *q, const struct api_error *e)
{
	struct buf text;
	char extra[REQUEST_HEADERS_MAX];
	int streams = http_is_streaming(q->conn), was_submitted = 0;
	for (uint32_t i = 0; i < q->n_answers && !was_submitted; i++)
		was_submitted = q->answers[i].attempt && q->answers[i].attempt->number;
	/* A request refused for lack of capacity is refunded to the key's quota; an invalid one is not.
	 * The headers below show it. */
	if (q->tenant && (e->status == 429 || e->status >= 500) && !was_submitted)
		tenant_give_back(q->tenant, q->taken_tokens, clock_us());
	request_log_end(q, "request_failed", e->status, e->param, e->text);
	buf_init(&text, 0);
	if (streams) {
		q->dialect->stream_error(q, e, &text);
		if (parts_have_begun(&q->reply.parts) || q->reply.events.ended > 1 ||
		    http_stream_add(q->conn, text.data, text.len) < 0)
			http_drop(q->conn); /* no room for the event, or a part of another one was sent */
		else
			http_stream_end(q->conn);
	} else {
		q->dialect->error(e, &text);
		request_headers(q, e, extra);
		http_reply(q->conn, e->status, "application/json", extra, text.data, text.len);
	}
	q->conn = NULL;
	buf_fini(&text);
}

/* --- how answers begin --------------------------------------------------- */

static void draw_id(struct request *q, const struct reqid *first)
{
	struct reqid id;
	randombytes_buf(&id, sizeof id);
	snprintf(q->id, sizeof q->id, "%s%s", q->dialect->id_prefix, log_reqid(first ? first : &id));
}

/* 0 or -1 with the error set. */
static int make_answers(struct request *q)
{
	struct request_prepare *p = &q->prep;
	struct router *r = q->r;
	struct caller *c = q->caller;
	uint64_t n = (uint64_t)p->n_prompts * p->p.n;
	int embeds = p->kind == KIND_EMBEDDING;
	uint64_t work = embeds ? least(n, EMBEDDINGS_AT_ONCE) : n, max = r->conf.max_requests;
	if (work > max || !fair_share(work - 1, max - (work - 1)))
		return api_bad(&p->error, embeds ? "input" : "n",
		               "%llu answers at once are more than one client may have of the %llu that "
		               "this server runs at once (max_requests); send requests of fewer",
		               (unsigned long long)work, (unsigned long long)max);
	if (r->n_answers + work > max)
		return api_fault(&p->error, 429,
		                 "%u answers are running here; with %llu more that is over the limit of "
		                 "%u (max_requests)",
		                 r->n_answers, (unsigned long long)work, r->conf.max_requests);
	if (!fair_share(c->answers + work - 1, max - r->n_answers - (work - 1)))
		return api_fault(
			&p->error, 429,
			"%u answers of this client are running here; with %llu more too few of the "
			"%u places that are left would remain for others (max_requests); send "
			"this request when some have ended",
			c->answers, (unsigned long long)work, (uint32_t)max - r->n_answers);
	if (q->tenant && !embeds && tenant_take_answers(q->tenant, (uint32_t)n, &p->error) < 0)
		return -1;
	q->running = embeds ? 1 : (uint32_t)n;
	if (quota_take(&p->quota, n * (ANSWER_BYTES + embeddings_bytes(p))) < 0)
		return embeds
		           ? budget_refuse(p, "input", "its embeddings (send fewer inputs or dimensions)")
		           : budget_refuse(p, "n", "its answers");
	q->answers = mem_try_array(n, sizeof *q->answers);
	if (!q->answers)
		return api_fault(&p->error, 503, "this server has no memory for %u answers", (uint32_t)n);
	q->n_answers = (uint32_t)n;
	q->counted = (uint32_t)work;
	r->n_answers += q->counted;
	c->answers += q->counted;
	for (uint32_t i = 0; i < n; i++)
		answer_init(&q->answers[i], q, &p->prompts[i / p->p.n], i);
	return budget_answers(q);
}

/* The attempt of `owner`, an answer, has ended. */
static void attempt_has_ended(void *owner, struct attempt *a)
{
	struct answer *ans = owner;
	struct request *q = ans->request;
	struct api_error *e = &q->prep.error;
	if (a->end.finish == ANSWER_FINISH_ERROR) {
		api_fault(e, a->end.status, "%s", a->end.why);
		e->retry_after_s = (uint32_t)((a->end.retry_after_us + 999999) / 1000000);
	} else if (a->end.finish == ANSWER_FINISH_ABORT) {
		api_fault(e, 503, CLIENT_TOO_SLOW);
	} else if (ans->finish == ANSWER_FINISH_NONE) {
		answer_finish(ans, a->end.finish);
		if (q->prep.p.stream && write_answer(ans) < 0)
			api_fault(e, 503, CLIENT_TOO_SLOW);
	}
	if (e->status) {
		request_step(q, REQUEST_ON_FAILURE);
		return;
	}
	request_count_answer(ans);
	if (++q->n_ended == q->n_answers) {
		request_count_longest(q);
		request_step(q, REQUEST_ON_ANSWERED);
	} else if (q->state == REQUEST_STARTING) { /* step_starting may have waited for it */
		request_work_soon(q);
	}
}

static const struct attempt_hooks answer_hooks = {.tokens = answer_tokens,
                                                  .prompt = answer_prompt,
                                                  .embedding = answer_embedding,
                                                  .ended = attempt_has_ended};

/* Makes the attempt of answer i, just before it starts. The first attempt's id is the request's. */
static void make_attempt(struct request *q, uint32_t i)
{
	const struct params *p = &q->prep.p;
	struct answer *ans = &q->answers[i];
	const struct prompt *prompt = ans->prompt;
	uint32_t k = i % p->n; /* among those of its prompt */
	struct attempt_spec spec = {.tokens = prompt->tokens.ids,
	                            .prompt_tokens = (uint32_t)prompt->tokens.n,
	                            .max_tokens = q->prep.score_only ? 1 : p->max_tokens,
	                            .open_end = !p->has_max_tokens,
	                            .sampling = p->sampling,
	                            .stop_ids = p->stop_ids,
	                            .n_stop_ids = p->n_stop_ids,
	                            .ignore_eos = p->ignore_eos,
	                            .pooling = q->prep.embed.pooling,
	                            .hidden = q->prep.embed.hidden,
	                            .begun_us = q->begun_us,
	                            .deadline_us = q->deadline_us,
	                            .constraint = q->prep.constraint.kind ? &q->prep.constraint : NULL,
	                            .cache_salt = q->prep.has_salt ? q->prep.cache_salt : NULL,
	                            .prefixes = prompt->prefixes.n ? &prompt->prefixes : NULL,
	                            .beside = k ? q->answers[i - k].attempt : NULL,
	                            .pin = q->pin,
	                            .session = q->session ? q->session : p->session,
	                            .caller = &q->caller->places,
	                            .key = q->tenant ? q->tenant->name : NULL,
	                            .client = q->who.address};
	if (k == 0 && p->has_seed)
		q->seed = p->sampling.seed;
	else if (k == 0)
		randombytes_buf(&q->seed, sizeof q->seed);
	spec.sampling.seed = q->seed + k;
	spec.sampling.prompt_logprobs = p->sampling.prompt_logprobs && k == 0; /* once a prompt */
	ans->attempt = attempt_new(&q->r->attempts, &spec, &answer_hooks, ans);
	if (q->r->wake)
		q->r->wake(q->r);
}

/* Sets the error for the client after attempt_start failed with this code, and ends the attempt. */
static void refuse_start(struct request *q, int code)
{
	struct api_error *e = &q->prep.error;
	struct answer *ans = &q->answers[q->n_started];
	const char *max = request_kind_max_tokens(q->prep.kind);
	if (code == ERR_FULL && q->prep.kind == KIND_EMBEDDING)
		api_bad(e, "input", "input %u has %zu tokens, which is longer than any worker takes",
		        ans->index, ans->prompt->tokens.n);
	else if (code == ERR_FULL)
		api_bad(e, max, "prompt and %s together are longer than any worker takes", max);
	else if (q->pin)
		api_fault(e, 503, "a worker that the request is pinned to is not ready to take it");
	else
		api_fault(e, 503, "no worker is ready to take this request");
	if (e->status >= 500) {
		attempt_refuse(ans->attempt, e->status, e->text);
	} else { /* the client's error */
		ans->attempt->end.status = e->status;
		attempt_cancel(ans->attempt, e->text);
	}
}

/* --- how it ends before its answers do ----------------------------------- */

/* status: for the attempts' log lines; 0: 499, the client has left */
static void cancel_all(struct request *q, int status, const char *why)
{
	for (uint32_t i = 0; i < q->n_answers; i++) {
		struct attempt *a = q->answers[i].attempt;
		if (!a || attempt_ended(a))
			continue;
		if (status)
			a->end.status = status;
		attempt_cancel(a, why);
	}
}

/* Handles the events that end a request in most states. Returns 1 if e is one of them; then the
 * client has been told, and nothing runs at workers unless e is a failure or a shutdown. */
static int ends(struct request *q, enum request_event e)
{
	switch (e) {
	case REQUEST_ON_FAILURE: tell_failure(q, &q->prep.error); return 1;
	case REQUEST_ON_CLIENT_GONE:
		request_log_end(q, "client_gone", REQUEST_CLIENT_GONE, "",
		                "the client hung up before the end");
		q->conn = NULL;
		cancel_all(q, 0, "the client is gone");
		return 1;
	case REQUEST_ON_STOP: {
		struct api_error stopped = {0};
		api_fault(&stopped, 503, "this server was stopped before the answer was complete");
		cancel_all(q, stopped.status, stopped.text);
		tell_failure(q, &stopped);
		return 1;
	}
	case REQUEST_ON_SHUTDOWN: http_drop(q->conn); return 1;
	default: return 0;
	}
}

/* Ends the answers: the client gets what has been generated so far. 0, or -1 with the error set:
 * that is not possible, because there is no part of an embedding, or the prompt's
 * log-probabilities at the beginning of a stream have not arrived yet. */
static int abort_answers(struct request *q)
{
	static const char why[] = "aborted on request";
	int has_part = q->prep.kind != KIND_EMBEDDING;
	for (size_t i = 0; q->prep.p.stream && has_part && i < q->prep.n_prompts; i++)
		has_part = prompt_rows_complete(&q->prep, &q->prep.prompts[i]);
	if (!has_part) {
		cancel_all(q, 503, why);
		return api_fault(&q->prep.error, 503, "%s", why);
	}
	for (uint32_t i = 0; i < q->n_answers; i++) {
		struct answer *ans = &q->answers[i];
		if (ans->attempt && attempt_ended(ans->attempt))
			continue;
		if (ans->attempt)
			attempt_cancel(ans->attempt, why);
		answer_finish(ans, ANSWER_FINISH_ABORT);
		if (q->prep.p.stream)
			write_answer_in_steps(ans);
	}
	q->n_started = q->n_ended = q->n_answers;
	return 0;
}

/* The client has not read its complete answer, whose memory others need. */
static void drop_slow_client(struct request *q)
{
	char why[128];
	snprintf(why, sizeof why, "%zu bytes of the answer were not read (request_timeout_ms)",
	         http_unsent(q->conn));
	request_log_end(q, "answer_not_taken", 504, "", why);
	http_drop(q->conn);
}

/* --- states -------------------------------------------------------------- */

/* The request is refused, prepared here, or given to a text thread. */
static enum request_state step_begin(struct request *q, enum request_event e)
{
	struct request_prepare *p = &q->prep;
	CHECK(e == REQUEST_ON_ENTER);
	if (!p->error.status &&
	    (p->is_gzip || p->body.len > TEXT_INLINE_BYTES || request_parse_is_slow(p))) {
		if (text_pool_put(q->r->text, &q->caller->text, &q->job, p->body.len) == 0)
			return REQUEST_IN_POOL;
		api_fault(&p->error, 429, "too many long prompts wait to be tokenized");
	}
	if (p->error.status) {
		tell_failure(q, &p->error);
		return REQUEST_END;
	}
	request_parse(p);
	return REQUEST_PREPARED;
}

static enum request_state step_in_pool(struct request *q, enum request_event e)
{
	switch (e) {
	case REQUEST_ON_PREPARED: return REQUEST_PREPARED;
	case REQUEST_ON_CLIENT_GONE:
	case REQUEST_ON_STOP:
		ends(q, e);
		text_job_skip(&q->job);
		return REQUEST_ABANDONED;
	case REQUEST_ON_SHUTDOWN: http_drop(q->conn); return REQUEST_END;
	default: return REQUEST_IN_POOL;
	}
}

static enum request_state step_abandoned(struct request *q, enum request_event e)
{
	(void)q;
	if (e == REQUEST_ON_PREPARED || e == REQUEST_ON_SHUTDOWN)
		return REQUEST_END;
	return REQUEST_ABANDONED;
}

static enum request_state step_prepared(struct request *q, enum request_event e)
{
	struct request_prepare *p = &q->prep;
	char text[512];
	CHECK(e == REQUEST_ON_ENTER);
	stat_observe_us(&q->r->stats.prepare, p->prepared_us - q->begun_us);
	if (p->warnings.len && once_may_log(&q->r->unknown, p->warnings.data, p->warnings.len)) {
		snprintf(text, sizeof text, "%.*s", (int)p->warnings.len, p->warnings.data);
		log_warn("unknown_parameters", "warnings=%s", log_quote(text));
	}
	if (!p->error.status && !request_kind_needs_workers(p->kind))
		return REQUEST_ANSWERED;
	if (!p->error.status && q->tenant &&
	    tenant_take_prompt(q->tenant, request_prompt_tokens(p), clock_us(), &p->error) == 0)
		q->taken_tokens = request_prompt_tokens(p);
	if (p->error.status || make_answers(q) < 0) {
		tell_failure(q, &p->error);
		return REQUEST_END;
	}
	p->quota.begun = 1;
	if (p->p.max_tokens == 0 && !p->score_only) {
		/* no token is wanted: the prompt is the answer */
		draw_id(q, NULL);
		q->dialect->head(q);
		q->n_started = q->n_ended = q->n_answers;
		for (uint32_t i = 0; i < q->n_answers; i++) {
			q->answers[i].finish = ANSWER_FINISH_LENGTH;
			if (p->p.stream)
				write_answer_in_steps(&q->answers[i]);
		}
		return REQUEST_ANSWERED;
	}
	make_attempt(q, 0);
	draw_id(q, &q->answers[0].attempt->id);
	q->dialect->head(q);
	return REQUEST_STARTING;
}

static enum request_state step_starting(struct request *q, enum request_event e)
{
	if (ends(q, e))
		return REQUEST_END;
	if (e == REQUEST_ON_ABORT) {
		if (abort_answers(q) == 0)
			return REQUEST_ANSWERED;
		tell_failure(q, &q->prep.error);
		return REQUEST_END;
	}
	if (e != REQUEST_ON_ENTER && e != REQUEST_ON_TURN)
		return REQUEST_STARTING;
	int embeds = q->prep.kind == KIND_EMBEDDING;
	for (size_t tokens = 0; q->n_started < q->n_answers && tokens < START_TOKENS;) {
		struct answer *ans = &q->answers[q->n_started];
		if (embeds && q->n_started - q->n_ended >= EMBEDDINGS_AT_ONCE)
			return REQUEST_STARTING; /* attempt_has_ended goes on */
		if (!ans->attempt)
			make_attempt(q, q->n_started);
		int r = attempt_start(ans->attempt);
		if (r < 0 && q->n_started && embeds) {
			attempt_wait(ans->attempt);
		} else if (r < 0) {
			refuse_start(q, r);
			tell_failure(q, &q->prep.error);
			return REQUEST_END;
		}
		q->n_started++;
		tokens += ans->prompt->tokens.n;
	}
	if (q->n_started == q->n_answers)
		return REQUEST_RUNNING;
	request_work_soon(q);
	return REQUEST_STARTING;
}

static enum request_state step_running(struct request *q, enum request_event e)
{
	if (ends(q, e))
		return REQUEST_END;
	switch (e) {
	case REQUEST_ON_ENTER:
		if (q->n_behind) /* of answers that began while others were not started yet */
			request_work_soon(q);
		return REQUEST_RUNNING;
	case REQUEST_ON_TURN:
		if (write_behind(q) != WRITE_REFUSED)
			return REQUEST_RUNNING;
		break;
	case REQUEST_ON_ANSWERED: return REQUEST_ANSWERED;
	case REQUEST_ON_ABORT:
		if (abort_answers(q) == 0)
			return REQUEST_ANSWERED;
		break;
	default: return REQUEST_RUNNING;
	}
	tell_failure(q, &q->prep.error);
	return REQUEST_END;
}

/* The client has request_timeout_ms again to read the rest of the answer. */
static void restart_deadline(struct request *q)
{
	q->deadline_us = clock_us() + q->r->conf.request_timeout_us;
}

/* Its answers run no more: others may have their places. */
static void uncount_answers(struct request *q)
{
	q->r->n_answers -= q->counted;
	q->caller->answers -= q->counted;
	q->counted = 0;
}

static enum request_state step_answered(struct request *q, enum request_event e)
{
	enum write_verdict v = WRITE_LATER;
	if (ends(q, e))
		return REQUEST_END;
	if (e == REQUEST_ON_DEADLINE) {
		drop_slow_client(q);
		return REQUEST_END;
	}
	if (e == REQUEST_ON_ENTER && !q->prep.p.stream)
		uncount_answers(q); /* they do not count while the client reads */
	if (e == REQUEST_ON_ENTER && q->n_behind)
		restart_deadline(q);
	else if (e == REQUEST_ON_ENTER && q->prep.p.stream)
		v = WRITE_ALL;
	else if (e == REQUEST_ON_ENTER)
		v = write_complete(q);
	else if (e == REQUEST_ON_TURN)
		v = write_behind(q);
	if (v == WRITE_REFUSED)
		tell_failure(q, &q->prep.error);
	else if (v == WRITE_LATER && q->prep.p.stream)
		return REQUEST_ANSWERED;
	else if (v == WRITE_LATER)
		return REQUEST_WRITING;
	else if (v == WRITE_ALL && q->prep.p.stream)
		write_stream_end(q);
	return REQUEST_END;
}

static enum request_state step_writing(struct request *q, enum request_event e)
{
	if (e == REQUEST_ON_STOP) /* the answer is complete, and the client may still read it */
		return REQUEST_WRITING;
	if (ends(q, e))
		return REQUEST_END;
	if (e == REQUEST_ON_ENTER)
		restart_deadline(q);
	if (e == REQUEST_ON_DEADLINE)
		drop_slow_client(q);
	else if (e != REQUEST_ON_TURN || write_more(q) == WRITE_LATER)
		return REQUEST_WRITING;
	return REQUEST_END;
}

#define TO(s) (1u << REQUEST_##s)
static const struct {
	const char *name;
	unsigned next; /* states that may follow */
	enum request_state (*step)(struct request *q, enum request_event e);
} states[] = {
	[REQUEST_NEW] = {"new", TO(IN_POOL) | TO(PREPARED) | TO(END), step_begin},
	[REQUEST_IN_POOL] = {"in_pool", TO(PREPARED) | TO(ABANDONED) | TO(END), step_in_pool},
	[REQUEST_ABANDONED] = {"abandoned", TO(END), step_abandoned},
	[REQUEST_PREPARED] = {"prepared", TO(STARTING) | TO(ANSWERED) | TO(END), step_prepared},
	[REQUEST_STARTING] = {"starting", TO(RUNNING) | TO(ANSWERED) | TO(END), step_starting},
	[REQUEST_RUNNING] = {"running", TO(ANSWERED) | TO(END), step_running},
	[REQUEST_ANSWERED] = {"answered", TO(WRITING) | TO(END), step_answered},
	[REQUEST_WRITING] = {"writing", TO(END), step_writing},
	[REQUEST_END] = {"end", 0, NULL},
};

static void request_free(struct request *q)
{
	struct router *r = q->r;
	for (uint32_t i = 0; i < q->n_answers; i++)
		answer_fini(&q->answers[i]);
	free(q->answers);
	if (r->attempts.room && r->attempts.queue.n) /* attempts of others may take its places */
		requests_wake(r);
	r->n_requests--;
	uncount_answers(q);
	list_remove(&q->node);
	list_remove(&q->turn);
	buf_fini(&q->reply.head);
	parts_fini(&q->reply.parts);
	free(q->pin);
	request_prepare_fini(&q->prep);
	caller_put(r->callers, q->caller);
	if (q->tenant)
		tenant_end(q->tenant, q->running);
	free(q);
}

static void request_step(struct request *q, enum request_event e)
{
	for (;;) {
		enum request_state next = states[q->state].step(q, e), from = q->state;
		if (next == from)
			return;
		if (!(states[from].next & 1u << next))
			PANIC("request %s: illegal step %s -> %s", *q->id ? q->id : "-", states[from].name,
			      states[next].name);
		log_debug("request_state", "id=%s from=%s to=%s", *q->id ? q->id : "-", states[from].name,
		          states[next].name);
		q->state = next;
		if (next == REQUEST_END)
			break;
		e = REQUEST_ON_ENTER;
	}
	if (!q->status && e != REQUEST_ON_SHUTDOWN)
		request_log_end(q, "request_served", 200, "", "");
	request_free(q);
}

/* --- turns: work in steps ------------------------------------------------ */

static void on_turn(evutil_socket_t fd, short what, void *arg)
{
	struct router *r = arg;
	uint64_t end = clock_us() + TURN_US;
	(void)fd;
	(void)what;
	attempts_take_turns(&r->attempts, clock_us());
	do {
		if (list_empty(&r->turns.waiting))
			return;
		struct list *n = r->turns.waiting.next;
		list_remove(n);
		request_step(list_entry(n, struct request, turn), REQUEST_ON_TURN);
	} while (clock_us() < end);
	if (!list_empty(&r->turns.waiting))
		requests_wake(r);
}

/* --- events -------------------------------------------------------------- */

static void client_gone(void *arg)
{
	request_step(arg, REQUEST_ON_CLIENT_GONE);
}

static void parse_on_thread(struct text_job *j)
{
	struct request_prepare *p = &((struct request *)j)->prep;
	request_parse(p);
	j->more = p->extra_bytes;
}

static void prepared(struct text_job *j)
{
	request_step((struct request *)j, REQUEST_ON_PREPARED);
}

/* workers: what the workers allow; 0: unknown. Returns 0 if no limit is known. */
static uint32_t shortest_context(const struct router *r, uint32_t workers)
{
	uint32_t n = workers ? workers : r->model->context, limit = r->conf.max_model_len;
	return limit && (!n || limit < n) ? limit : n;
}

uint32_t router_context(const struct router *r)
{
	return shortest_context(r, registry_context(&r->registry));
}

static const struct dialect *const dialects[] = {
	[KIND_COMPLETION] = &dialect_completions,
	[KIND_CHAT] = &dialect_chat,
	[KIND_RESPONSES] = &dialect_responses,
	[KIND_MESSAGES] = &dialect_messages,
	[KIND_COUNT_TOKENS] = &dialect_messages_json,
	[KIND_TOKENIZE] = &dialect_json,
	[KIND_DETOKENIZE] = &dialect_json,
	[KIND_EMBEDDING] = &dialect_embeddings,
};

static struct request *request_new(struct router *r, struct http_conn *conn, enum request_kind kind,
                                   unsigned path, const struct http_head *head,
                                   const struct http_body *body)
{
	struct request *q = mem_zalloc(sizeof *q);
	struct request_prepare *p = &q->prep;
	q->job.work = parse_on_thread;
	q->job.done = prepared;
	p->kind = kind;
	p->model = r->model;
	p->created_s = (int64_t)time(NULL);
	p->context = p->max_model_len = router_context(r);
	p->prompt_max = registry_prompt_max(&r->registry);
	p->vocab = registry_vocab(&r->registry);
	if (!p->vocab) /* not known, it may be larger than the tokenizer's */
		p->vocab = INT32_MAX;
	p->max_answers = r->conf.max_choices;
	if (kind == KIND_EMBEDDING) { /* limits of the workers that make embeddings */
		p->prompt_max = registry_embedding_max(&r->registry);
		p->context = shortest_context(r, p->prompt_max);
		p->embed = (struct embed_params){.hidden = registry_hidden(&r->registry),
		                                 .never = registry_never_embeds(&r->registry),
		                                 .inputs_max = EMBEDDING_INPUTS_MAX,
		                                 .pooling = r->conf.embeds_mean
		                                                ? PDS__POOLING__POOLING_MEAN
		                                                : PDS__POOLING__POOLING_LAST};
	}
	p->default_max_tokens = r->conf.default_max_tokens;
	p->refuse_unknown = r->conf.refuse_unknown;
	if (policy_uses_prefixes(&r->registry.policy))
		p->roots = r->registry.roots;
	p->body = *body;
	p->is_gzip = strcasecmp(head->encoding, "gzip") == 0;
	p->body_max = r->conf.http.max_body_bytes;
	quota_init(&p->quota, &r->memory, r->conf.request_memory_bytes);
	p->json.quota = p->is_gzip || body->len > JSON_SMALL ? &p->quota : NULL;
	pds__constraint__init(&p->constraint);
	p->constraint.text = NULL;
	buf_init_quota(&p->out, 0, &p->quota);
	buf_init_quota(&p->warnings, 0, &p->quota);
	buf_init_quota(&p->echo, 0, &p->quota);
	parts_init(&q->reply.parts);
	q->dialect = dialects[kind];
	q->r = r;
	q->conn = conn;
	if (*head->session_id)
		q->session = policy_key(head->session_id, strlen(head->session_id));
	q->path = path;
	q->begun_us = clock_us();
	q->deadline_us = q->begun_us + r->conf.request_timeout_us;
	list_init(&q->turn);
	list_push_back(&r->requests, &q->node);
	r->n_requests++;
	return q;
}

void request_begin(struct router *r, struct http_conn *conn, enum request_kind kind, unsigned path,
                   const struct http_head *head, const struct http_body *body, struct tenant *t)
{
	struct request *q = request_new(r, conn, kind, path, head, body);
	http_on_gone(conn, client_gone, q);
	q->caller = t ? caller_get(r->callers, t, policy_key(t->name, strlen(t->name)))
	              : caller_get(r->callers, body->client, http_client_id(body->client));
	q->running = 1;
	who_init(&q->who, conn, head, t);
	if (t) {
		q->tenant = t;
		tenant_begin(t, q->begun_us);
		if (!t->shared_cache)
			memcpy(q->prep.salt_name, t->name, sizeof q->prep.salt_name);
	}
	if (r->n_requests > r->conf.max_requests)
		api_fault(&q->prep.error, 429,
		          "%u requests are running here, which is the limit (max_requests)",
		          r->conf.max_requests);
	else if (!fair_share(q->caller->requests - 1, r->conf.max_requests - (r->n_requests - 1)))
		api_fault(&q->prep.error, 429,
		          "%u requests of this client are running here, and %u places are left for all "
		          "(max_requests); send this one when some have ended",
		          q->caller->requests - 1, r->conf.max_requests - (r->n_requests - 1));
	else
		pin_read(q, head);
	request_step(q, REQUEST_ON_ENTER);
}

int request_abort(struct router *r, const struct reqid *id, const struct tenant *of)
{
	struct attempt *a = attempts_find(&r->attempts, id);
	struct request *q = a ? ((struct answer *)a->owner)->request : NULL;
	/* clients know a request by its first attempt's id, and that one may have ended before
	 * others */
	list_each(n, &r->requests) {
		struct request *other = list_entry(n, struct request, node);
		int runs = other->state == REQUEST_STARTING || other->state == REQUEST_RUNNING;
		if (!q && runs && memcmp(&other->answers[0].attempt->id, id, sizeof *id) == 0)
			q = other;
	}
	if (!q || (of && q->tenant != of))
		return ERR_NOTFOUND;
	request_step(q, REQUEST_ON_ABORT);
	return 0;
}

/* --- all requests -------------------------------------------------------- */

void requests_init(struct router *r)
{
	list_init(&r->requests);
	list_init(&r->turns.waiting);
	r->callers = map_new(sizeof(void *));
	r->turns.ev = event_new(r->base, -1, 0, on_turn, r);
	CHECK(r->turns.ev);
	buf_init(&r->out, OUT_MAX);
}

void requests_fini(struct router *r)
{
	event_free(r->turns.ev);
	r->turns.ev = NULL;
	map_destroy(&r->callers);
	buf_fini(&r->out);
}

void requests_tick(struct router *r, uint64_t now)
{
	list_each_safe(n, next, &r->requests) {
		struct request *q = list_entry(n, struct request, node);
		if (now >= q->deadline_us)
			request_step(q, REQUEST_ON_DEADLINE);
	}
}

void requests_stop(struct router *r)
{
	list_each_safe(n, next, &r->requests)
		request_step(list_entry(n, struct request, node), REQUEST_ON_STOP);
}

void requests_shut_down(struct router *r)
{
	list_each_safe(n, next, &r->requests)
		request_step(list_entry(n, struct request, node), REQUEST_ON_SHUTDOWN);
}
