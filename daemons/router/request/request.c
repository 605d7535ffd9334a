/* request.c - see request.h: how a request begins, is prepared, runs and ends. write.c has how its
 * answer is written.
 *
 * What always holds: a request is in router.requests from begin to free; only while in_pool is set
 * does a text thread touch it, and then nobody else does but to note that the client is gone; after
 * `over` nothing of it is sent but a whole answer that is being written. */
#include "request.h"
#include "util/check.h"
#include "util/clock.h"
#include "util/mem.h"

#include <math.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* of prompts that are sent to workers in one step: a fraction of a millisecond */
#define START_TOKENS 32768u
#define ANSWER_BYTES (sizeof(struct answer) + sizeof(struct attempt) + ANSWER_IDS_BYTES)
/* what is written in one step is far less; a prompt's ids at most */
#define OUT_MAX (64u << 20)

static void prompt_fini(struct prompt *p)
{
	token_list_fini(&p->tokens);
	prefixes_fini(&p->prefixes);
	buf_fini(&p->text);
	buf_fini(&p->ids);
	rows_fini(&p->rows);
}

void request_free(struct request *q)
{
	q->over = 1;
	if (q->in_pool)
		return; /* prepared() frees it */
	for (uint32_t i = 0; i < q->n_answers; i++)
		answer_fini(&q->answers[i]);
	for (size_t i = 0; i < q->n_prompts; i++)
		prompt_fini(&q->prompts[i]);
	q->r->n_requests--;
	q->r->n_answers -= q->counted;
	list_remove(&q->node);
	pace_remove(&q->paced);
	json_decref(q->parsed);
	toolcall_tools_destroy(&q->message.tools);
	params_fini(&q->p);
	free(q->constraint.text);
	buf_fini(&q->head);
	buf_fini(&q->out);
	parts_fini(&q->parts);
	free(q->answers);
	free(q->prompts);
	free(q->pin);
	http_body_free(&q->body);
	quota_fini(&q->quota);
	free(q);
}

static void client_gone(void *arg)
{
	struct request *q = arg;
	log_info("client_gone", "id=%s answers=%u ended=%u", *q->id ? q->id : "-", q->n_answers,
	         q->n_ended);
	q->conn = NULL;
	for (uint32_t i = 0; i < q->n_answers; i++)
		if (q->answers[i].attempt)
			attempt_cancel(q->answers[i].attempt, "the client is gone");
	text_job_skip(&q->job);
	request_free(q);
}

uint32_t router_retry_after_s(const struct router *r)
{
	return registry_retry_after_s(&r->registry, r->conf.retry_after_s, r->conf.retry_after_max_s);
}

void request_headers(const struct request *q, int status, uint32_t least_s, char *out, size_t size)
{
	uint32_t s = router_retry_after_s(q->r), most_s = q->r->conf.retry_after_max_s;
	if (least_s > most_s)
		least_s = most_s;
	out[0] = 0;
	if (status == 429 || status == 503)
		snprintf(out, size, "Retry-After: %u\r\n", s > least_s ? s : least_s);
	if (*q->id) {
		size_t n = strlen(out);
		snprintf(out + n, size - n, "X-Request-Id: %s\r\n", q->id);
	}
}

void request_fail(struct request *q, const struct api_error *e)
{
	struct buf text;
	char extra[160];
	q->over = 1;
	stat_add(q->r->stats, e->status < 500 ? STAT_REFUSED : STAT_FAILED, 1);
	log_info("request_failed", "id=%s status=%d param=%s why=%s", *q->id ? q->id : "-", e->status,
	         log_quote(e->param), log_quote(e->text));
	buf_init(&text, 0);
	buf_adds(&text, q->streaming ? "data: " : "");
	api_error_json(e, &text);
	if (q->conn && q->streaming) {
		buf_adds(&text, "\n\ndata: [DONE]\n\n");
		if (http_stream_add(q->conn, text.data, text.len) < 0)
			http_drop(q->conn);
		else
			http_stream_end(q->conn);
	} else if (q->conn) {
		request_headers(q, e->status, e->retry_after_s, extra, sizeof extra);
		http_reply(q->conn, e->status, "application/json", extra, text.data, text.len);
	}
	q->conn = NULL;
	buf_fini(&text);
	request_free(q);
}

/* --- preparing ----------------------------------------------------------- */

static int check_model(struct request *q, const json_t *o)
{
	const json_t *v = json_object_get(o, "model");
	if (!v || json_is_null(v))
		return 0; /* there is one */
	if (!json_is_string(v))
		return api_bad(&q->error, "model", "model must be a string, got %s", param_show(v));
	if (strcmp(json_string_value(v), q->model->name) == 0)
		return 0;
	api_fault(&q->error, 404, "the model %s does not exist; this server has %s", param_show(v),
	          q->model->name);
	snprintf(q->error.param, sizeof q->error.param, "model");
	q->error.code = "model_not_found";
	return -1;
}

/* Is there a number that 64 bits do not hold? */
static int has_huge(const json_t *v)
{
	const char *name;
	const json_t *member;
	size_t i;
	if (json_is_object(v)) {
		json_object_foreach((json_t *)v, name, member)
			if (has_huge(member))
				return 1;
	} else if (json_is_array(v)) {
		json_array_foreach((json_t *)v, i, member)
			if (has_huge(member))
				return 1;
	}
	return json_is_real(v) && fabs(json_real_value(v)) >= 0x1p63;
}

/* A body that was not taken: no JSON, or JSON with an integer too large for the reader, which is
 * then named as any other value out of range. */
static void refuse_body(struct request *q, const json_error_t *bad)
{
	json_t *o = NULL;
	json_error_t again;
	if (json_error_code(bad) == json_error_numeric_overflow)
		o = json_load(q->body.data, q->body.len, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &again);
	const char *name;
	const json_t *v;
	api_bad(&q->error, NULL, "the body is not valid JSON: %s (line %d, column %d)", bad->text,
	        bad->line, bad->column);
	json_object_foreach(o, name, v) {
		if (has_huge(v)) {
			api_bad(&q->error, name,
			        "%.64s has a number out of range: integers are from %lld to %lld, got %s", name,
			        (long long)INT64_MIN, (long long)INT64_MAX, param_show(v));
			break;
		}
	}
	json_decref(o);
}

/* NULL with the error set. The body is gone then, one way or the other. */
static json_t *read_body(struct request *q)
{
	json_error_t bad;
	json_t *o = json_load(q->body.data, q->body.len, JSON_ALLOW_NUL, &bad);
	if (!o && json_error_code(&bad) == json_error_out_of_memory)
		budget_refuse(q, NULL, "its body as JSON");
	else if (!o)
		refuse_body(q, &bad);
	else if (!json_is_object(o))
		api_bad(&q->error, NULL, "the body must be a JSON object, got %s", param_show(o));
	http_body_free(&q->body);
	if (!q->error.status)
		return o;
	json_decref(o);
	return NULL;
}

static int prepare_by_kind(struct request *q, const json_t *o)
{
	static int (*const by_kind[])(struct request *, const json_t *) = {
		[REQUEST_COMPLETION] = api_completions_prepare,
		[REQUEST_CHAT] = api_chat_prepare,
		[REQUEST_TOKENIZE] = api_tokenize_prepare,
		[REQUEST_DETOKENIZE] = api_detokenize_prepare,
	};
	return check_model(q, o) < 0 ? -1 : by_kind[q->kind](q, o);
}

/* What needs the prompts' tokens alone: the JSON is gone. */
static void prepare_prompts(struct request *q)
{
	for (size_t i = 0; q->roots.n && i < q->n_prompts; i++)
		prefixes_make(&q->roots, q->prompts[i].tokens.ids, q->prompts[i].tokens.n,
		              &q->prompts[i].prefixes);
	if (prompt_keep(q) == 0)
		budget_keep(q);
}

static void prepare(struct text_job *j)
{
	struct request *q = (struct request *)j;
	json_account_begin(&q->json);
	json_t *o = q->parsed ? q->parsed : read_body(q);
	q->parsed = NULL;
	int r = o ? prepare_by_kind(q, o) : -1;
	json_decref(o);
	if ((json_account_end() < 0 || q->quota.over) && !q->refused)
		/* JSON was missing where it was looked for: whatever came of that does not count */
		budget_refuse(q, NULL, "its body");
	else if (r == 0)
		prepare_prompts(q);
	q->prepared_us = clock_us();
}

/* Compiling a constraint takes milliseconds, however short it is. */
static int is_slow(const json_t *o)
{
	static const char *const slow[] = {"response_format", "guided_json",        "guided_regex",
	                                   "guided_choice",   "structured_outputs", "tool_choice"};
	for (size_t i = 0; i < sizeof slow / sizeof *slow; i++)
		if (param_is_set(o, slow[i]))
			return 1;
	return 0;
}

static void draw_id(struct request *q, const struct reqid *first)
{
	struct reqid id;
	randombytes_buf(&id, sizeof id);
	snprintf(q->id, sizeof q->id, "%s-%s", q->kind == REQUEST_CHAT ? "chatcmpl" : "cmpl",
	         log_reqid(first ? first : &id));
}

/* 0 or -1 with the error set. */
static int make_answers(struct request *q)
{
	uint32_t n = (uint32_t)(q->n_prompts * q->p.n);
	if (quota_take(&q->quota, n * ANSWER_BYTES) < 0)
		return budget_refuse(q, "n", "its answers");
	q->answers = mem_try_array(n, sizeof *q->answers);
	if (!q->answers)
		return api_fault(&q->error, 503, "this server has no memory for %u answers", n);
	q->n_answers = n;
	q->r->n_answers += q->counted = n;
	for (uint32_t i = 0; i < n; i++)
		answer_init(&q->answers[i], q, &q->prompts[i / q->p.n], i);
	return budget_answers(q);
}

static void make_attempts(struct request *q)
{
	struct attempt_spec spec = {.max_tokens = q->score_only ? 1 : q->p.max_tokens,
	                            .sampling = q->p.sampling,
	                            .stop_ids = q->p.stop_ids,
	                            .n_stop_ids = q->p.n_stop_ids,
	                            .ignore_eos = q->p.ignore_eos,
	                            .begun_us = q->begun_us,
	                            .deadline_us = q->deadline_us,
	                            .constraint = q->constraint.kind ? &q->constraint : NULL,
	                            .pin = q->pin,
	                            .session = q->session ? q->session : q->p.session};
	uint64_t seed = q->p.sampling.seed;
	for (uint32_t i = 0; i < q->n_answers; i++) {
		struct answer *ans = &q->answers[i];
		if (!q->p.has_seed && i % q->p.n == 0)
			randombytes_buf(&seed, sizeof seed);
		spec.tokens = ans->prompt->tokens.ids;
		spec.prompt_tokens = (uint32_t)ans->prompt->tokens.n;
		spec.prefixes = ans->prompt->prefixes.n ? &ans->prompt->prefixes : NULL;
		spec.sampling.seed = seed + i % q->p.n;
		/* one for each prompt tells them */
		spec.sampling.prompt_logprobs = q->p.sampling.prompt_logprobs && i % q->p.n == 0;
		spec.beside = i % q->p.n ? q->answers[i - i % q->p.n].attempt : NULL;
		ans->attempt = attempt_new(&q->r->attempts, &spec, &answer_hooks, ans);
	}
	if (q->r->wake)
		q->r->wake(q->r);
}

/* max_tokens 0 without log-probabilities: the prompt is the answer. */
static void answer_at_once(struct request *q)
{
	draw_id(q, NULL);
	reply_head(q);
	q->n_started = q->n_ended = q->n_answers;
	for (uint32_t i = 0; i < q->n_answers; i++) {
		q->answers[i].finish = ANSWER_FINISH_LENGTH;
		if (q->p.stream)
			answer_send(q, &q->answers[i]);
	}
	request_finish(q);
}

static void fail_start(struct request *q, int code)
{
	struct api_error e = {0};
	if (code == ERR_FULL)
		api_bad(&e, "max_tokens",
		        "prompt and max_tokens together are longer than any worker takes");
	else if (q->pin)
		api_fault(&e, 503, "a worker that the request is pinned to is not ready to take it");
	else
		api_fault(&e, 503, "no worker is ready to take this request");
	for (uint32_t k = q->n_started; k < q->n_answers; k++)
		q->answers[k].attempt->end.status = e.status;
	request_fail(q, &e);
}

int request_start_some(struct request *q)
{
	for (size_t tokens = 0; q->n_started < q->n_answers && tokens < START_TOKENS;) {
		struct answer *ans = &q->answers[q->n_started];
		int r = attempt_start(ans->attempt);
		if (r < 0) {
			fail_start(q, r);
			return -1;
		}
		q->n_started++;
		tokens += ans->prompt->tokens.n;
	}
	return q->n_started < q->n_answers;
}

static void start(struct request *q)
{
	struct api_error e = {0};
	uint64_t n = (uint64_t)q->n_prompts * q->p.n;
	if (q->r->n_answers + n > q->r->conf.max_requests) {
		api_fault(&e, 429,
		          "%u requests are at work here; with %llu more that is over the limit of %u "
		          "(max_requests)",
		          q->r->n_answers, (unsigned long long)n, q->r->conf.max_requests);
		request_fail(q, &e);
		return;
	}
	if (make_answers(q) < 0) {
		request_fail(q, &q->error);
		return;
	}
	q->quota.begun = 1;
	if (q->p.max_tokens == 0 && !q->score_only) {
		answer_at_once(q);
		return;
	}
	make_attempts(q);
	draw_id(q, &q->answers[0].attempt->id);
	reply_head(q);
	if (request_start_some(q) > 0)
		pace_add(&q->r->pace, &q->paced);
}

static void prepared(struct text_job *j)
{
	struct request *q = (struct request *)j;
	q->in_pool = 0;
	if (q->over) {
		request_free(q);
		return;
	}
	stat_observe_us(q->r->stats, STAT_PREPARE, q->prepared_us - q->begun_us);
	if (q->error.status)
		request_fail(q, &q->error);
	else if (q->kind == REQUEST_TOKENIZE || q->kind == REQUEST_DETOKENIZE)
		request_write(q);
	else
		start(q);
}

static struct request *request_new(struct router *r, struct http_conn *conn, enum request_kind kind,
                                   const struct http_head *head, const struct http_body *body)
{
	struct request *q = mem_zalloc(sizeof *q);
	uint32_t seen = registry_context(&r->registry);
	quota_init(&q->quota, &r->memory, r->conf.request_memory_bytes);
	q->json.quota = body->len > JSON_SMALL ? &q->quota : NULL;
	paced_init(&q->paced, request_step);
	parts_init(&q->parts);
	buf_init_quota(&q->out, 0, &q->quota);
	pds__constraint__init(&q->constraint);
	q->constraint.text = NULL;
	q->job.work = prepare;
	q->job.done = prepared;
	q->r = r;
	q->model = r->model;
	q->conn = conn;
	q->kind = kind;
	q->body = *body;
	q->context = q->max_model_len = seen ? seen : r->model->context;
	q->vocab = registry_vocab(&r->registry);
	if (!q->vocab)
		q->vocab = r->model->tokenizer ? tokenizer_size(r->model->tokenizer) : INT32_MAX;
	q->max_choices = r->conf.max_choices;
	if (policy_uses_prefixes(&r->registry.policy))
		q->roots = r->registry.roots;
	if (*head->session_id)
		q->session = policy_key(head->session_id, strlen(head->session_id));
	q->begun_us = clock_us();
	q->deadline_us = q->begun_us + r->conf.request_timeout_us;
	q->created_s = (int64_t)time(NULL);
	list_push_back(&r->requests, &q->node);
	r->n_requests++;
	return q;
}

/* 1: the request has ended. */
static int refuse_at_once(struct request *q, const struct http_head *head)
{
	struct router *r = q->r;
	if (r->n_requests > r->conf.max_requests)
		api_fault(&q->error, 429, "%u requests are at work here, which is the limit (max_requests)",
		          r->conf.max_requests);
	else
		pin_read(q, head);
	if (!q->error.status)
		return 0;
	request_fail(q, &q->error);
	return 1;
}

static void prepare_elsewhere(struct request *q)
{
	struct api_error e = {0};
	q->in_pool = 1;
	if (text_pool_put(q->r->text, &q->job) == 0)
		return;
	q->in_pool = 0;
	api_fault(&e, 429, "too many long prompts wait to be tokenized (text_queue)");
	request_fail(q, &e);
}

void request_begin(struct router *r, struct http_conn *conn, enum request_kind kind,
                   const struct http_head *head, const struct http_body *body)
{
	struct request *q = request_new(r, conn, kind, head, body);
	http_on_gone(conn, client_gone, q);
	if (refuse_at_once(q, head))
		return;
	if (body->len > r->conf.text_inline_bytes) {
		prepare_elsewhere(q);
		return;
	}
	json_account_begin(&q->json);
	q->parsed = read_body(q);
	if (json_account_end() < 0)
		budget_refuse(q, NULL, "its body");
	if (q->parsed && is_slow(q->parsed)) {
		if (json_account_charge(&q->json, &q->quota) == 0)
			prepare_elsewhere(q);
		else
			budget_refuse(q, NULL, "its body as JSON"), request_fail(q, &q->error);
		return;
	}
	if (q->parsed)
		prepare(&q->job);
	q->prepared_us = clock_us();
	prepared(&q->job);
}

/* --- answering ----------------------------------------------------------- */

uint32_t request_prompt_tokens(const struct request *q)
{
	size_t n = 0;
	for (size_t i = 0; i < q->n_prompts; i++)
		n += q->prompts[i].tokens.n;
	return (uint32_t)n;
}

uint32_t request_output_tokens(const struct request *q)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < q->n_answers; i++)
		n += q->answers[i].n_tokens;
	return n;
}

uint32_t request_cached_tokens(const struct request *q)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < q->n_answers; i += q->p.n)
		n += q->answers[i].attempt ? q->answers[i].attempt->got.times.cached_tokens : 0;
	return n;
}

static void count_choice(const struct request *q, const struct answer *ans)
{
	struct stat_set *st = q->r->stats;
	uint64_t now = clock_us();
	const struct attempt *s = ans->attempt;
	if (!s)
		return;
	if (ans->finish == ANSWER_FINISH_STOP || ans->finish == ANSWER_FINISH_LENGTH)
		stat_add(st, ans->finish == ANSWER_FINISH_STOP ? STAT_SUCCESS_STOP : STAT_SUCCESS_LENGTH,
		         1);
	stat_observe_us(st, STAT_E2E, now - q->begun_us);
	if (s->got.first_us)
		stat_observe_us(st, STAT_TTFT, s->got.first_us - q->begun_us);
	if (s->got.first_us && ans->n_tokens > 1)
		stat_observe_us(st, STAT_TPOT, (now - s->got.first_us) / (ans->n_tokens - 1));
}

void request_answer_ended(struct request *q, struct answer *ans)
{
	CHECK(!ans->ended);
	ans->ended = 1;
	count_choice(q, ans);
	if (++q->n_ended == q->n_answers && q->conn)
		request_finish(q);
}

/* A stream that has not got what it begins with has nothing to end with. */
static int is_told(const struct request *q)
{
	for (size_t i = 0; q->p.stream && i < q->n_prompts; i++)
		if (!prompt_is_told(q, &q->prompts[i]))
			return 0;
	return 1;
}

static void cancel_all(struct request *q, const char *why)
{
	for (uint32_t i = 0; i < q->n_answers; i++)
		if (q->answers[i].attempt && !attempt_ended(q->answers[i].attempt))
			attempt_cancel(q->answers[i].attempt, why);
}

int request_abort(struct router *r, const struct reqid *id)
{
	struct attempt *a = attempts_find(&r->attempts, id);
	if (!a)
		return ERR_NOTFOUND;
	struct request *q = ((struct answer *)a->owner)->request;
	if (!is_told(q)) {
		struct api_error e = {0};
		api_fault(&e, 503, "aborted on request");
		cancel_all(q, e.text);
		request_fail(q, &e);
		return 0;
	}
	q->n_started = q->n_answers;
	for (uint32_t i = 0; i < q->n_answers; i++) {
		struct answer *ans = &q->answers[i];
		if (ans->ended)
			continue;
		attempt_cancel(ans->attempt, "aborted on request");
		answer_finish(ans, ANSWER_FINISH_ABORT);
		ans->ended = 1;
		q->n_ended++;
		if (q->p.stream)
			answer_send(q, ans);
	}
	request_finish(q);
	return 0;
}

void requests_init(struct router *r)
{
	list_init(&r->requests);
	pace_init(&r->pace, r->base);
	buf_init(&r->out, OUT_MAX);
}

void requests_fini(struct router *r)
{
	pace_fini(&r->pace);
	buf_fini(&r->out);
}

/* An answer that is complete has request_timeout_ms once more to be taken: it holds memory that
 * others need. */
void requests_tick(struct router *r, uint64_t now)
{
	list_each_safe(n, next, &r->requests) {
		struct request *q = list_entry(n, struct request, node);
		if (!q->conn || q->in_pool || q->n_ended < q->n_answers || now < q->deadline_us)
			continue;
		log_warn("answer_not_taken",
		         "id=%s bytes=%zu why=\"the client reads too slowly (request_timeout_ms)\"",
		         *q->id ? q->id : "-", http_unsent(q->conn));
		stat_add(r->stats, STAT_FAILED, 1);
		http_drop(q->conn);
		request_free(q);
	}
}

/* Ends as a failure does: with a status or an error event, and in the log as what it was. */
void request_stop_all(struct router *r)
{
	list_each_safe(n, next, &r->requests) {
		struct request *q = list_entry(n, struct request, node);
		struct api_error e = {0};
		api_fault(&e, 503, "this server was stopped before the answer was complete");
		if (q->over)
			continue;
		for (uint32_t i = 0; i < q->n_answers; i++) {
			struct attempt *s = q->answers[i].attempt;
			if (!s || attempt_ended(s))
				continue;
			s->end.status = e.status;
			attempt_cancel(s, e.text);
		}
		text_job_skip(&q->job);
		request_fail(q, &e);
	}
}

void request_abort_all(struct router *r)
{
	while (!list_empty(&r->requests)) {
		struct request *q = list_entry(r->requests.next, struct request, node);
		if (q->conn)
			http_drop(q->conn);
		q->conn = NULL;
		q->in_pool = 0; /* the pool has ended */
		request_free(q);
	}
}
