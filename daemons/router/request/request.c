/* request.c - see request.h: the states of a request, and how it begins and ends.
 *
 * What always holds: a request is in router.requests from begin to free; while it is IN_POOL or
 * ABANDONED the event loop does not touch its prep, but for prep.job.skip; only request_step
 * changes its state, and nothing else frees it. */
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

#define TURN_US 1000u /* for steps of all requests, between two looks at the descriptors */
/* of prompts that are submitted in one step: a fraction of a millisecond */
#define START_TOKENS 32768u
/* of one request, so that its client's other requests do not wait behind all of its inputs */
#define EMBEDDINGS_AT_ONCE 64u
#define ANSWER_BYTES (sizeof(struct answer) + sizeof(struct attempt) + ANSWER_IDS_BYTES)
/* far more than one step writes; the ids of one prompt at most */
#define OUT_MAX (64u << 20)

static const char *id_of(const struct request *q)
{
	return *q->id ? q->id : "-";
}

/* --- what the client is told --------------------------------------------- */

uint32_t router_retry_after_s(const struct router *r)
{
	return registry_retry_after_s(&r->registry, r->attempts.queued_tokens, r->conf.retry_after_s,
	                              r->conf.retry_after_max_s);
}

void router_error_headers(struct router *r, const struct api_error *e, char *out, size_t size)
{
	uint32_t s = router_retry_after_s(r), most_s = r->conf.retry_after_max_s;
	uint32_t least_s = e->retry_after_s < most_s ? e->retry_after_s : most_s;
	s = e->by_key ? e->retry_after_s : s > least_s ? s : least_s;
	out[0] = 0;
	if (e->status == 429 || e->status == 503)
		snprintf(out, size, "Retry-After: %u\r\n", s);
}

void request_headers(const struct request *q, const struct api_error *e, char *out)
{
	size_t n = 0;
	out[0] = 0;
	if (e)
		router_error_headers(q->r, e, out, REQUEST_HEADERS_MAX);
	n = strlen(out);
	n += who_headers(&q->who, q->id, out + n, REQUEST_HEADERS_MAX - n);
	if (*q->id && q->dialect->id_header)
		n += (size_t)snprintf(out + n, REQUEST_HEADERS_MAX - n, "%s: %s\r\n", q->dialect->id_header,
		                      q->id);
	if (q->tenant)
		tenant_headers(q->tenant, clock_us(), out + n);
}

/* Was any part of it submitted to a worker? */
static int has_cost(const struct request *q)
{
	for (uint32_t i = 0; i < q->n_answers; i++)
		if (q->answers[i].attempt && q->answers[i].attempt->number)
			return 1;
	return 0;
}

/* What was not served for want of room or workers takes nothing of the key; a request that is wrong
 * counts. The client is told so in the same answer. */
static void give_back(struct request *q, int status)
{
	if (q->tenant && (status == 429 || status >= 500) && !has_cost(q))
		tenant_give_back(q->tenant, q->taken_tokens, clock_us());
}

/* A status, or an event in a stream that has begun. The connection is not the request's any
 * more. */
static void tell_failure(struct request *q, const struct api_error *e)
{
	struct buf text;
	char extra[REQUEST_HEADERS_MAX];
	int streams = http_is_streaming(q->conn);
	give_back(q, e->status);
	api_count_error(q->r, q->path, e->status);
	request_log_end(q, "request_failed", e->status, e->param, e->text);
	buf_init(&text, 0);
	if (streams) {
		q->dialect->stream_error(q, e, &text);
		if (parts_have_begun(&q->reply.parts) || q->reply.events.ended > 1 ||
		    http_stream_add(q->conn, text.data, text.len) < 0)
			http_drop(q->conn); /* also if part of an event is out */
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
		               "this server works at (max_requests); send requests of fewer",
		               (unsigned long long)work, (unsigned long long)max);
	if (r->n_answers + work > max)
		return api_fault(&p->error, 429,
		                 "%u requests are at work here; with %llu more that is over the limit of "
		                 "%u (max_requests)",
		                 r->n_answers, (unsigned long long)work, r->conf.max_requests);
	if (!fair_share(c->answers + work - 1, max - r->n_answers - (work - 1)))
		return api_fault(&p->error, 429,
		                 "%u answers of this client are at work here; with %llu more of it too few "
		                 "of the %u places that are left would remain for others (max_requests); "
		                 "send this request when some have ended",
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

/* Of answer i, just before it starts; the first one's id is the request's. */
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
	spec.sampling.prompt_logprobs = p->sampling.prompt_logprobs && k == 0; /* one tells them */
	ans->attempt = attempt_new(&q->r->attempts, &spec, &answer_hooks, ans);
	if (q->r->wake)
		q->r->wake(q->r);
}

/* max_tokens 0 without log-probabilities: the prompt is the answer. */
static void answer_without_worker(struct request *q)
{
	draw_id(q, NULL);
	q->dialect->head(q);
	q->n_started = q->n_ended = q->n_answers;
	for (uint32_t i = 0; i < q->n_answers; i++) {
		q->answers[i].finish = ANSWER_FINISH_LENGTH;
		if (q->prep.p.stream)
			answer_send_later(&q->answers[i]);
	}
}

/* code: of attempt_start */
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
	} else { /* it is the client's */
		ans->attempt->end.status = e->status;
		attempt_cancel(ans->attempt, e->text);
	}
}

/* LATER: when one that has been started has ended */
enum start_verdict { START_DONE, START_MORE, START_LATER, START_FAILED };

/* Makes and submits some of the attempts. FAILED: the error is set. */
static enum start_verdict start_some(struct request *q)
{
	for (size_t tokens = 0; q->n_started < q->n_answers && tokens < START_TOKENS;) {
		struct answer *ans = &q->answers[q->n_started];
		if (q->prep.kind == KIND_EMBEDDING && q->n_started - q->n_ended >= EMBEDDINGS_AT_ONCE)
			return START_LATER;
		if (!ans->attempt)
			make_attempt(q, q->n_started);
		int r = attempt_start(ans->attempt);
		if (r < 0 && q->n_started && q->prep.kind == KIND_EMBEDDING) {
			attempt_wait(ans->attempt);
		} else if (r < 0) {
			refuse_start(q, r);
			return START_FAILED;
		}
		q->n_started++;
		tokens += ans->prompt->tokens.n;
	}
	return q->n_started < q->n_answers ? START_MORE : START_DONE;
}

/* --- how it ends before its answers do ----------------------------------- */

/* status: for the summary of the attempts; 0: that of a client that left */
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

static void stop(struct request *q)
{
	struct api_error e = {0};
	api_fault(&e, 503, "this server was stopped before the answer was complete");
	cancel_all(q, e.status, e.text);
	tell_failure(q, &e);
}

static void note_client_gone(struct request *q)
{
	request_log_end(q, "client_gone", REQUEST_CLIENT_GONE, "", "the client hung up before the end");
	q->conn = NULL;
	cancel_all(q, 0, "the client is gone");
}

void request_cut(struct request *q)
{
	api_count_error(q->r, q->path, 503);
	request_log_end(q, "answer_cut", 503, "",
	                "there is no room or no memory for the rest of the answer");
	http_drop(q->conn);
}

/* Events that end the request in most states; 1: the client has been told what is to be told. */
static int ends(struct request *q, enum request_event e)
{
	switch (e) {
	case REQUEST_ON_FAILURE: tell_failure(q, &q->prep.error); return 1;
	case REQUEST_ON_CLIENT_GONE: note_client_gone(q); return 1;
	case REQUEST_ON_STOP: stop(q); return 1;
	case REQUEST_ON_SHUTDOWN: http_drop(q->conn); return 1;
	default: return 0;
	}
}

/* The answers end with what there is. 0, or -1 with the error set: there is nothing to end, because
 * an embedding has no part, or the beginning of a stream is not there yet. */
static int abort_answers(struct request *q)
{
	static const char why[] = "aborted on request";
	int has_part = q->prep.kind != KIND_EMBEDDING;
	for (size_t i = 0; q->prep.p.stream && has_part && i < q->prep.n_prompts; i++)
		has_part = prompt_is_told(&q->prep, &q->prep.prompts[i]);
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
			answer_send_later(ans);
	}
	q->n_started = q->n_ended = q->n_answers;
	return 0;
}

/* A complete answer holds memory that others need. */
static void drop_slow_client(struct request *q)
{
	char why[128];
	snprintf(why, sizeof why, "%zu bytes of the answer were not read (request_timeout_ms)",
	         http_unsent(q->conn));
	api_count_error(q->r, q->path, 504);
	request_log_end(q, "answer_not_taken", 504, "", why);
	http_drop(q->conn);
}

/* --- states -------------------------------------------------------------- */

/* The request is refused, prepared here, or given to a text thread. */
static enum request_state step_new(struct request *q, enum request_event e)
{
	struct request_prepare *p = &q->prep;
	CHECK(e == REQUEST_ON_ENTER);
	if (!p->error.status &&
	    (p->is_gzip || p->body.len > q->r->conf.text_inline_bytes || request_prepare_is_slow(p))) {
		if (text_pool_put(q->r->text, &q->caller->text, &p->job, p->body.len) == 0)
			return REQUEST_IN_POOL;
		api_fault(&p->error, 429, "too many long prompts wait to be tokenized");
	}
	if (p->error.status) {
		tell_failure(q, &p->error);
		return REQUEST_END;
	}
	request_prepare(&p->job);
	return REQUEST_PREPARED;
}

static enum request_state step_in_pool(struct request *q, enum request_event e)
{
	switch (e) {
	case REQUEST_ON_PREPARED: return REQUEST_PREPARED;
	case REQUEST_ON_CLIENT_GONE:
	case REQUEST_ON_STOP:
		ends(q, e);
		text_job_skip(&q->prep.job);
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

static void log_unknown(const struct buf *warnings)
{
	char text[512];
	snprintf(text, sizeof text, "%.*s", (int)warnings->len, warnings->data);
	log_warn("unknown_parameters", "warnings=%s", log_quote(text));
}

static enum request_state step_prepared(struct request *q, enum request_event e)
{
	struct request_prepare *p = &q->prep;
	CHECK(e == REQUEST_ON_ENTER);
	stat_observe_us(q->r->stats, STAT_PREPARE, p->prepared_us - q->begun_us);
	if (p->warnings.len && once_may_log(&q->r->unknown, p->warnings.data, p->warnings.len))
		log_unknown(&p->warnings);
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
		answer_without_worker(q);
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
	switch (start_some(q)) {
	case START_DONE: return REQUEST_RUNNING;
	case START_MORE: request_work_soon(q); break;
	case START_LATER: break;
	case START_FAILED: tell_failure(q, &q->prep.error); return REQUEST_END;
	}
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

/* The client has request_timeout_ms once more to take what is left. */
static void restart_deadline(struct request *q)
{
	q->deadline_us = clock_us() + q->r->conf.request_timeout_us;
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
	if (e == REQUEST_ON_ENTER && q->n_behind)
		restart_deadline(q);
	else if (e == REQUEST_ON_ENTER)
		v = q->prep.p.stream ? WRITE_ALL : write_whole(q);
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
	if (e == REQUEST_ON_STOP) /* it is complete: the client may still take it */
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
	[REQUEST_NEW] = {"new", TO(IN_POOL) | TO(PREPARED) | TO(END), step_new},
	[REQUEST_IN_POOL] = {"in_pool", TO(PREPARED) | TO(ABANDONED) | TO(END), step_in_pool},
	[REQUEST_ABANDONED] = {"abandoned", TO(END), step_abandoned},
	[REQUEST_PREPARED] = {"prepared", TO(STARTING) | TO(ANSWERED) | TO(END), step_prepared},
	[REQUEST_STARTING] = {"starting", TO(RUNNING) | TO(ANSWERED) | TO(END), step_starting},
	[REQUEST_RUNNING] = {"running", TO(ANSWERED) | TO(END), step_running},
	[REQUEST_ANSWERED] = {"answered", TO(WRITING) | TO(END), step_answered},
	[REQUEST_WRITING] = {"writing", TO(END), step_writing},
	[REQUEST_END] = {"end", 0, NULL},
};

static void request_enter(struct request *q, enum request_state to)
{
	if (!(states[q->state].next & 1u << to))
		PANIC("request %s: illegal step %s -> %s", id_of(q), states[q->state].name,
		      states[to].name);
	log_debug("request_state", "id=%s from=%s to=%s", id_of(q), states[q->state].name,
	          states[to].name);
	q->state = to;
}

void request_uncount(struct request *q)
{
	q->r->n_answers -= q->counted;
	q->caller->answers -= q->counted;
	q->counted = 0;
}

/* A timer of no time, so that the loop looks at its descriptors before the next turn; an event that
 * activates itself would not let it. */
static void wake_turns(struct router *r)
{
	static const struct timeval now = {0, 0};
	CHECK(event_add(r->turns.ev, &now) == 0);
}

/* Places that its answers had are free: other requests may take them, outside of everybody's
 * stack. */
static void request_free(struct request *q)
{
	struct router *r = q->r;
	for (uint32_t i = 0; i < q->n_answers; i++)
		answer_fini(&q->answers[i]);
	free(q->answers);
	if (r->attempts.room && r->attempts.queue.n)
		wake_turns(r);
	r->n_requests--;
	request_uncount(q);
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

void request_step(struct request *q, enum request_event e)
{
	for (;;) {
		enum request_state to = states[q->state].step(q, e);
		if (to == q->state)
			return;
		request_enter(q, to);
		if (to == REQUEST_END)
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
		wake_turns(r);
}

void request_work_soon(struct request *q)
{
	struct router *r = q->r;
	if (!list_empty(&q->turn))
		return;
	if (list_empty(&r->turns.waiting))
		wake_turns(r);
	list_push_back(&r->turns.waiting, &q->turn);
}

/* --- events -------------------------------------------------------------- */

static void client_gone(void *arg)
{
	request_step(arg, REQUEST_ON_CLIENT_GONE);
}

static void prepared(struct text_job *j)
{
	request_step((struct request *)j, REQUEST_ON_PREPARED);
}

/* seen: what the workers allow; 0: unknown */
static uint32_t context_of(const struct router *r, uint32_t seen)
{
	uint32_t n = seen ? seen : r->model->context, limit = r->conf.max_model_len;
	return limit && (!n || limit < n) ? limit : n;
}

uint32_t router_context(const struct router *r)
{
	return context_of(r, registry_context(&r->registry));
}

/* Only workers that make embeddings count. */
static void set_embed_limits(const struct router *r, struct request_prepare *p)
{
	p->prompt_max = registry_embedding_max(&r->registry);
	p->context = context_of(r, p->prompt_max);
	p->embed = (struct embed_params){.hidden = registry_hidden(&r->registry),
	                                 .never = registry_never_embeds(&r->registry),
	                                 .inputs_max = r->conf.embedding_inputs_max,
	                                 .pooling = r->conf.embeds_mean ? PDS__POOLING__POOLING_MEAN
	                                                                : PDS__POOLING__POOLING_LAST};
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
                                   const struct http_head *head, const struct http_body *body)
{
	struct request *q = mem_zalloc(sizeof *q);
	struct request_prepare *p = &q->prep;
	p->job.work = request_prepare;
	p->job.done = prepared;
	p->kind = kind;
	p->model = r->model;
	p->created_s = (int64_t)time(NULL);
	p->context = p->max_model_len = router_context(r);
	p->prompt_max = registry_prompt_max(&r->registry);
	p->vocab = registry_vocab(&r->registry);
	if (!p->vocab) /* not known, it may be larger than the tokenizer's */
		p->vocab = INT32_MAX;
	p->max_answers = r->conf.max_choices;
	if (kind == KIND_EMBEDDING)
		set_embed_limits(r, p);
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
	q->path = api_path(head);
	q->begun_us = clock_us();
	q->deadline_us = q->begun_us + r->conf.request_timeout_us;
	list_init(&q->turn);
	list_push_back(&r->requests, &q->node);
	r->n_requests++;
	return q;
}

void request_begin(struct router *r, struct http_conn *conn, enum request_kind kind,
                   const struct http_head *head, const struct http_body *body, struct tenant *t)
{
	struct request *q = request_new(r, conn, kind, head, body);
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
		          "%u requests are at work here, which is the limit (max_requests)",
		          r->conf.max_requests);
	else if (!fair_share(q->caller->requests - 1, r->conf.max_requests - (r->n_requests - 1)))
		api_fault(&q->prep.error, 429,
		          "%u requests of this client are at work here, and %u places are left for all "
		          "(max_requests); send this one when some have ended",
		          q->caller->requests - 1, r->conf.max_requests - (r->n_requests - 1));
	else
		pin_read(q, head);
	request_step(q, REQUEST_ON_ENTER);
}

int request_id_parse(const char *text, struct reqid *ret)
{
	const char *end = strpbrk(text, "-_"), *hex = end ? end + 1 : text; /* of the prefix */
	return strlen(hex) == 32 ? reqid_parse(hex, ret) : ERR_INVALID;
}

/* Clients know a request by the id of its first attempt, which may have ended before others. */
static struct request *find_request(struct router *r, const struct reqid *id)
{
	struct attempt *a = attempts_find(&r->attempts, id);
	if (a)
		return ((struct answer *)a->owner)->request;
	list_each(n, &r->requests) {
		struct request *q = list_entry(n, struct request, node);
		if ((q->state == REQUEST_STARTING || q->state == REQUEST_RUNNING) &&
		    memcmp(&q->answers[0].attempt->id, id, sizeof *id) == 0)
			return q;
	}
	return NULL;
}

int request_abort(struct router *r, const struct reqid *id, const struct tenant *of)
{
	struct request *q = find_request(r, id);
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
