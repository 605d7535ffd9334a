/* call.c - see call.h: how a call begins, is prepared, runs and ends. write.c has how its answer is
 * written.
 *
 * What always holds: a call is in router.calls from begin to free; only while in_pool is set does a
 * text thread touch it, and then nobody else does but to note that the client is gone; after
 * `over` nothing of it is sent but a whole answer that is being written. */
#include "call.h"
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
#define CHOICE_BYTES (sizeof(struct choice) + sizeof(struct seq) + CHOICE_IDS_BYTES)
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

void call_free(struct call *c)
{
	c->over = 1;
	if (c->in_pool)
		return; /* prepared() frees it */
	for (uint32_t i = 0; i < c->n_choices; i++)
		choice_fini(&c->choices[i]);
	for (size_t i = 0; i < c->n_prompts; i++)
		prompt_fini(&c->prompts[i]);
	c->r->n_calls--;
	c->r->n_sequences -= c->counted;
	list_remove(&c->node);
	pace_remove(&c->paced);
	json_decref(c->parsed);
	toolcall_tools_destroy(&c->message.tools);
	params_fini(&c->p);
	free(c->constraint.text);
	buf_fini(&c->head);
	buf_fini(&c->out);
	parts_fini(&c->parts);
	free(c->choices);
	free(c->prompts);
	free(c->pin);
	http_body_free(&c->body);
	quota_fini(&c->quota);
	free(c);
}

static void client_gone(void *arg)
{
	struct call *c = arg;
	log_info("client_gone", "id=%s choices=%u ended=%u", *c->id ? c->id : "-", c->n_choices,
	         c->n_ended);
	c->conn = NULL;
	for (uint32_t i = 0; i < c->n_choices; i++)
		if (c->choices[i].seq)
			seq_cancel(c->choices[i].seq, "the client is gone");
	text_job_skip(&c->job);
	call_free(c);
}

uint32_t router_retry_after_s(const struct router *r)
{
	return registry_retry_after_s(&r->registry, r->conf.retry_after_s, r->conf.retry_after_max_s);
}

void call_headers(const struct call *c, int status, uint32_t least_s, char *out, size_t size)
{
	uint32_t s = router_retry_after_s(c->r), most_s = c->r->conf.retry_after_max_s;
	if (least_s > most_s)
		least_s = most_s;
	out[0] = 0;
	if (status == 429 || status == 503)
		snprintf(out, size, "Retry-After: %u\r\n", s > least_s ? s : least_s);
	if (*c->id) {
		size_t n = strlen(out);
		snprintf(out + n, size - n, "X-Request-Id: %s\r\n", c->id);
	}
}

void call_fail(struct call *c, const struct api_error *e)
{
	struct buf text;
	char extra[160];
	c->over = 1;
	stat_add(c->r->stats, e->status < 500 ? STAT_REFUSED : STAT_FAILED, 1);
	log_info("call_failed", "id=%s status=%d param=%s why=%s", *c->id ? c->id : "-", e->status,
	         log_quote(e->param), log_quote(e->text));
	buf_init(&text, 0);
	buf_adds(&text, c->streaming ? "data: " : "");
	api_error_json(e, &text);
	if (c->conn && c->streaming) {
		buf_adds(&text, "\n\ndata: [DONE]\n\n");
		if (http_stream_add(c->conn, text.data, text.len) < 0)
			http_drop(c->conn);
		else
			http_stream_end(c->conn);
	} else if (c->conn) {
		call_headers(c, e->status, e->retry_after_s, extra, sizeof extra);
		http_reply(c->conn, e->status, "application/json", extra, text.data, text.len);
	}
	c->conn = NULL;
	buf_fini(&text);
	call_free(c);
}

/* --- preparing ----------------------------------------------------------- */

static int check_model(struct call *c, const json_t *o)
{
	const json_t *v = json_object_get(o, "model");
	if (!v || json_is_null(v))
		return 0; /* there is one */
	if (!json_is_string(v))
		return api_bad(&c->error, "model", "model must be a string, got %s", param_show(v));
	if (strcmp(json_string_value(v), c->model->name) == 0)
		return 0;
	api_fault(&c->error, 404, "the model %s does not exist; this server has %s", param_show(v),
	          c->model->name);
	snprintf(c->error.param, sizeof c->error.param, "model");
	c->error.code = "model_not_found";
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
static void refuse_body(struct call *c, const json_error_t *bad)
{
	json_t *o = NULL;
	json_error_t again;
	if (json_error_code(bad) == json_error_numeric_overflow)
		o = json_load(c->body.data, c->body.len, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &again);
	const char *name;
	const json_t *v;
	api_bad(&c->error, NULL, "the body is not valid JSON: %s (line %d, column %d)", bad->text,
	        bad->line, bad->column);
	json_object_foreach(o, name, v) {
		if (has_huge(v)) {
			api_bad(&c->error, name,
			        "%.64s has a number out of range: integers are from %lld to %lld, got %s", name,
			        (long long)INT64_MIN, (long long)INT64_MAX, param_show(v));
			break;
		}
	}
	json_decref(o);
}

/* NULL with the error set. The body is gone then, one way or the other. */
static json_t *read_body(struct call *c)
{
	json_error_t bad;
	json_t *o = json_load(c->body.data, c->body.len, JSON_ALLOW_NUL, &bad);
	if (!o && json_error_code(&bad) == json_error_out_of_memory)
		budget_refuse(c, NULL, "its body as JSON");
	else if (!o)
		refuse_body(c, &bad);
	else if (!json_is_object(o))
		api_bad(&c->error, NULL, "the body must be a JSON object, got %s", param_show(o));
	http_body_free(&c->body);
	if (!c->error.status)
		return o;
	json_decref(o);
	return NULL;
}

static int prepare_by_kind(struct call *c, const json_t *o)
{
	static int (*const by_kind[])(struct call *, const json_t *) = {
		[CALL_COMPLETION] = api_completions_prepare,
		[CALL_CHAT] = api_chat_prepare,
		[CALL_TOKENIZE] = api_tokenize_prepare,
		[CALL_DETOKENIZE] = api_detokenize_prepare,
	};
	return check_model(c, o) < 0 ? -1 : by_kind[c->kind](c, o);
}

/* What needs the prompts' tokens alone: the JSON is gone. */
static void prepare_prompts(struct call *c)
{
	for (size_t i = 0; c->roots.n && i < c->n_prompts; i++)
		prefixes_make(&c->roots, c->prompts[i].tokens.ids, c->prompts[i].tokens.n,
		              &c->prompts[i].prefixes);
	if (prompt_keep(c) == 0)
		budget_keep(c);
}

static void prepare(struct text_job *j)
{
	struct call *c = (struct call *)j;
	json_account_begin(&c->json);
	json_t *o = c->parsed ? c->parsed : read_body(c);
	c->parsed = NULL;
	int r = o ? prepare_by_kind(c, o) : -1;
	json_decref(o);
	if ((json_account_end() < 0 || c->quota.over) && !c->refused)
		/* JSON was missing where it was looked for: whatever came of that does not count */
		budget_refuse(c, NULL, "its body");
	else if (r == 0)
		prepare_prompts(c);
	c->prepared_us = clock_us();
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

static void draw_id(struct call *c, const struct reqid *first)
{
	struct reqid id;
	randombytes_buf(&id, sizeof id);
	snprintf(c->id, sizeof c->id, "%s-%s", c->kind == CALL_CHAT ? "chatcmpl" : "cmpl",
	         log_reqid(first ? first : &id));
}

/* 0 or -1 with the error set. */
static int make_choices(struct call *c)
{
	uint32_t n = (uint32_t)(c->n_prompts * c->p.n);
	if (quota_take(&c->quota, n * CHOICE_BYTES) < 0)
		return budget_refuse(c, "n", "its answers");
	c->choices = mem_try_array(n, sizeof *c->choices);
	if (!c->choices)
		return api_fault(&c->error, 503, "this server has no memory for %u answers", n);
	c->n_choices = n;
	c->r->n_sequences += c->counted = n;
	for (uint32_t i = 0; i < n; i++)
		choice_init(&c->choices[i], c, &c->prompts[i / c->p.n], i);
	return budget_answers(c);
}

static void make_sequences(struct call *c)
{
	struct seq_spec spec = {.max_tokens = c->score_only ? 1 : c->p.max_tokens,
	                        .sampling = c->p.sampling,
	                        .stop_ids = c->p.stop_ids,
	                        .n_stop_ids = c->p.n_stop_ids,
	                        .ignore_eos = c->p.ignore_eos,
	                        .begun_us = c->begun_us,
	                        .deadline_us = c->deadline_us,
	                        .constraint = c->constraint.kind ? &c->constraint : NULL,
	                        .pin = c->pin,
	                        .session = c->session ? c->session : c->p.session};
	uint64_t seed = c->p.sampling.seed;
	for (uint32_t i = 0; i < c->n_choices; i++) {
		struct choice *ch = &c->choices[i];
		if (!c->p.has_seed && i % c->p.n == 0)
			randombytes_buf(&seed, sizeof seed);
		spec.tokens = ch->prompt->tokens.ids;
		spec.prompt_tokens = (uint32_t)ch->prompt->tokens.n;
		spec.prefixes = ch->prompt->prefixes.n ? &ch->prompt->prefixes : NULL;
		spec.sampling.seed = seed + i % c->p.n;
		/* one for each prompt tells them */
		spec.sampling.prompt_logprobs = c->p.sampling.prompt_logprobs && i % c->p.n == 0;
		spec.beside = i % c->p.n ? c->choices[i - i % c->p.n].seq : NULL;
		ch->seq = seq_new(&c->r->seqs, &spec, &choice_hooks, ch);
	}
	if (c->r->wake)
		c->r->wake(c->r);
}

/* max_tokens 0 without log-probabilities: the prompt is the answer. */
static void answer_at_once(struct call *c)
{
	draw_id(c, NULL);
	reply_head(c);
	c->n_started = c->n_ended = c->n_choices;
	for (uint32_t i = 0; i < c->n_choices; i++) {
		c->choices[i].finish = SEQ_FINISH_LENGTH;
		if (c->p.stream)
			call_chunk(c, &c->choices[i]);
	}
	call_finish(c);
}

static void fail_start(struct call *c, int code)
{
	struct api_error e = {0};
	if (code == ERR_FULL)
		api_bad(&e, "max_tokens",
		        "prompt and max_tokens together are longer than any worker takes");
	else if (c->pin)
		api_fault(&e, 503, "a worker that the request is pinned to is not ready to take it");
	else
		api_fault(&e, 503, "no worker is ready to take this request");
	for (uint32_t k = c->n_started; k < c->n_choices; k++)
		c->choices[k].seq->status = e.status;
	call_fail(c, &e);
}

int call_start_some(struct call *c)
{
	for (size_t tokens = 0; c->n_started < c->n_choices && tokens < START_TOKENS;) {
		struct choice *ch = &c->choices[c->n_started];
		int r = seq_start(ch->seq);
		if (r < 0) {
			fail_start(c, r);
			return -1;
		}
		c->n_started++;
		tokens += ch->prompt->tokens.n;
	}
	return c->n_started < c->n_choices;
}

static void start(struct call *c)
{
	struct api_error e = {0};
	uint64_t n = (uint64_t)c->n_prompts * c->p.n;
	if (c->r->n_sequences + n > c->r->conf.max_requests) {
		api_fault(&e, 429,
		          "%u requests are at work here; with %llu more that is over the limit of %u "
		          "(max_requests)",
		          c->r->n_sequences, (unsigned long long)n, c->r->conf.max_requests);
		call_fail(c, &e);
		return;
	}
	if (make_choices(c) < 0) {
		call_fail(c, &c->error);
		return;
	}
	c->quota.begun = 1;
	if (c->p.max_tokens == 0 && !c->score_only) {
		answer_at_once(c);
		return;
	}
	make_sequences(c);
	draw_id(c, &c->choices[0].seq->id);
	reply_head(c);
	if (call_start_some(c) > 0)
		pace_add(&c->r->pace, &c->paced);
}

static void prepared(struct text_job *j)
{
	struct call *c = (struct call *)j;
	c->in_pool = 0;
	if (c->over) {
		call_free(c);
		return;
	}
	stat_observe_us(c->r->stats, STAT_PREPARE, c->prepared_us - c->begun_us);
	if (c->error.status)
		call_fail(c, &c->error);
	else if (c->kind == CALL_TOKENIZE || c->kind == CALL_DETOKENIZE)
		call_write(c);
	else
		start(c);
}

static struct call *call_new(struct router *r, struct http_conn *conn, enum call_kind kind,
                             const struct http_head *head, const struct http_body *body)
{
	struct call *c = mem_zalloc(sizeof *c);
	uint32_t seen = registry_context(&r->registry);
	quota_init(&c->quota, &r->memory, r->conf.request_memory_bytes);
	c->json.quota = body->len > JSON_SMALL ? &c->quota : NULL;
	paced_init(&c->paced, call_step);
	parts_init(&c->parts);
	buf_init_quota(&c->out, 0, &c->quota);
	pds__constraint__init(&c->constraint);
	c->constraint.text = NULL;
	c->job.work = prepare;
	c->job.done = prepared;
	c->r = r;
	c->model = r->model;
	c->conn = conn;
	c->kind = kind;
	c->body = *body;
	c->context = c->max_model_len = seen ? seen : r->model->context;
	c->vocab = registry_vocab(&r->registry);
	if (!c->vocab)
		c->vocab = r->model->tokenizer ? tokenizer_size(r->model->tokenizer) : INT32_MAX;
	c->max_choices = r->conf.max_choices;
	if (policy_uses_prefixes(&r->registry.policy))
		c->roots = r->registry.roots;
	if (*head->session_id)
		c->session = policy_key(head->session_id, strlen(head->session_id));
	c->begun_us = clock_us();
	c->deadline_us = c->begun_us + r->conf.request_timeout_us;
	c->created_s = (int64_t)time(NULL);
	list_push_back(&r->calls, &c->node);
	r->n_calls++;
	return c;
}

/* 1: the call has ended. */
static int refuse_at_once(struct call *c, const struct http_head *head)
{
	struct router *r = c->r;
	if (r->n_calls > r->conf.max_requests)
		api_fault(&c->error, 429, "%u requests are at work here, which is the limit (max_requests)",
		          r->conf.max_requests);
	else
		pin_read(c, head);
	if (!c->error.status)
		return 0;
	call_fail(c, &c->error);
	return 1;
}

static void prepare_elsewhere(struct call *c)
{
	struct api_error e = {0};
	c->in_pool = 1;
	if (text_pool_put(c->r->text, &c->job) == 0)
		return;
	c->in_pool = 0;
	api_fault(&e, 429, "too many long prompts wait to be tokenized (text_queue)");
	call_fail(c, &e);
}

void call_begin(struct router *r, struct http_conn *conn, enum call_kind kind,
                const struct http_head *head, const struct http_body *body)
{
	struct call *c = call_new(r, conn, kind, head, body);
	http_on_gone(conn, client_gone, c);
	if (refuse_at_once(c, head))
		return;
	if (body->len > r->conf.text_inline_bytes) {
		prepare_elsewhere(c);
		return;
	}
	json_account_begin(&c->json);
	c->parsed = read_body(c);
	if (json_account_end() < 0)
		budget_refuse(c, NULL, "its body");
	if (c->parsed && is_slow(c->parsed)) {
		if (json_account_charge(&c->json, &c->quota) == 0)
			prepare_elsewhere(c);
		else
			budget_refuse(c, NULL, "its body as JSON"), call_fail(c, &c->error);
		return;
	}
	if (c->parsed)
		prepare(&c->job);
	c->prepared_us = clock_us();
	prepared(&c->job);
}

/* --- answering ----------------------------------------------------------- */

uint32_t call_prompt_tokens(const struct call *c)
{
	size_t n = 0;
	for (size_t i = 0; i < c->n_prompts; i++)
		n += c->prompts[i].tokens.n;
	return (uint32_t)n;
}

uint32_t call_output_tokens(const struct call *c)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < c->n_choices; i++)
		n += c->choices[i].n_tokens;
	return n;
}

uint32_t call_cached_tokens(const struct call *c)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < c->n_choices; i += c->p.n)
		n += c->choices[i].seq ? c->choices[i].seq->times.cached_tokens : 0;
	return n;
}

static void count_choice(const struct call *c, const struct choice *ch)
{
	struct stat_set *st = c->r->stats;
	uint64_t now = clock_us();
	const struct seq *s = ch->seq;
	if (!s)
		return;
	if (ch->finish == SEQ_FINISH_STOP || ch->finish == SEQ_FINISH_LENGTH)
		stat_add(st, ch->finish == SEQ_FINISH_STOP ? STAT_SUCCESS_STOP : STAT_SUCCESS_LENGTH, 1);
	stat_observe_us(st, STAT_E2E, now - c->begun_us);
	if (s->first_us)
		stat_observe_us(st, STAT_TTFT, s->first_us - c->begun_us);
	if (s->first_us && ch->n_tokens > 1)
		stat_observe_us(st, STAT_TPOT, (now - s->first_us) / (ch->n_tokens - 1));
}

void call_choice_ended(struct call *c, struct choice *ch)
{
	CHECK(!ch->ended);
	ch->ended = 1;
	count_choice(c, ch);
	if (++c->n_ended == c->n_choices && c->conn)
		call_finish(c);
}

/* A stream that has not got what it begins with has nothing to end with. */
static int is_told(const struct call *c)
{
	for (size_t i = 0; c->p.stream && i < c->n_prompts; i++)
		if (!prompt_is_told(c, &c->prompts[i]))
			return 0;
	return 1;
}

static void cancel_all(struct call *c, const char *why)
{
	for (uint32_t i = 0; i < c->n_choices; i++)
		if (c->choices[i].seq && !seq_ended(c->choices[i].seq))
			seq_cancel(c->choices[i].seq, why);
}

int call_abort(struct router *r, const struct reqid *id)
{
	struct seq *s = seqs_find(&r->seqs, id);
	if (!s)
		return ERR_NOTFOUND;
	struct call *c = ((struct choice *)s->owner)->call;
	if (!is_told(c)) {
		struct api_error e = {0};
		api_fault(&e, 503, "aborted on request");
		cancel_all(c, e.text);
		call_fail(c, &e);
		return 0;
	}
	c->n_started = c->n_choices;
	for (uint32_t i = 0; i < c->n_choices; i++) {
		struct choice *ch = &c->choices[i];
		if (ch->ended)
			continue;
		seq_cancel(ch->seq, "aborted on request");
		choice_finish(ch, SEQ_FINISH_ABORT);
		ch->ended = 1;
		c->n_ended++;
		if (c->p.stream)
			call_chunk(c, ch);
	}
	call_finish(c);
	return 0;
}

void calls_init(struct router *r)
{
	list_init(&r->calls);
	pace_init(&r->pace, r->base);
	buf_init(&r->out, OUT_MAX);
}

void calls_fini(struct router *r)
{
	pace_fini(&r->pace);
	buf_fini(&r->out);
}

/* An answer that is complete has request_timeout_ms once more to be taken: it holds memory that
 * others need. */
void calls_tick(struct router *r, uint64_t now)
{
	list_each_safe(n, next, &r->calls) {
		struct call *c = list_entry(n, struct call, node);
		if (!c->conn || c->in_pool || c->n_ended < c->n_choices || now < c->deadline_us)
			continue;
		log_warn("answer_not_taken",
		         "id=%s bytes=%zu why=\"the client reads too slowly (request_timeout_ms)\"",
		         *c->id ? c->id : "-", http_unsent(c->conn));
		stat_add(r->stats, STAT_FAILED, 1);
		http_drop(c->conn);
		call_free(c);
	}
}

/* Ends as a failure does: with a status or an error event, and in the log as what it was. */
void call_stop_all(struct router *r)
{
	list_each_safe(n, next, &r->calls) {
		struct call *c = list_entry(n, struct call, node);
		struct api_error e = {0};
		api_fault(&e, 503, "this server was stopped before the answer was complete");
		if (c->over)
			continue;
		for (uint32_t i = 0; i < c->n_choices; i++) {
			struct seq *s = c->choices[i].seq;
			if (!s || seq_ended(s))
				continue;
			s->status = e.status;
			seq_cancel(s, e.text);
		}
		text_job_skip(&c->job);
		call_fail(c, &e);
	}
}

void call_abort_all(struct router *r)
{
	while (!list_empty(&r->calls)) {
		struct call *c = list_entry(r->calls.next, struct call, node);
		if (c->conn)
			http_drop(c->conn);
		c->conn = NULL;
		c->in_pool = 0; /* the pool has ended */
		call_free(c);
	}
}
