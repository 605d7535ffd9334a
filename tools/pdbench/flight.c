/* flight.c - see flight.h. An answer counts only if it is complete: status 200, all events valid,
 * as many tokens as requested, [DONE] at the end. */
#include "flight.h"

#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

#define BODY_KEPT 4096u

struct flight *flight_new(struct bench_turn *t, size_t record, struct bench_run *r)
{
	struct flight *f = mem_zalloc(sizeof *f);
	f->run = r;
	f->turn = t;
	f->record = record;
	f->leave_at = -1;
	list_init(&f->node);
	sse_init(&f->sse);
	buf_init(&f->answer, 0);
	buf_init(&f->body, BODY_KEPT);
	return f;
}

void flight_free(struct flight *f)
{
	list_remove(&f->node);
	sse_fini(&f->sse);
	buf_fini(&f->answer);
	buf_fini(&f->body);
	free(f);
}

/* Stores text from a server: truncated, without control characters, with the most common escapes
 * decoded. */
static void set_fault(struct flight *f, const char *prefix, const char *text, size_t n)
{
	size_t k = (size_t)snprintf(f->fault, sizeof f->fault, "%s", prefix);
	for (size_t i = 0; i < n && k < sizeof f->fault - 1; i++) {
		if (text[i] == '\\' && i + 1 < n && (text[i + 1] == '"' || text[i + 1] == '\\'))
			i++;
		f->fault[k++] = (unsigned char)text[i] < ' ' || text[i] == 127 ? ' ' : text[i];
	}
	f->fault[k] = 0;
}

/* Number of tokens in an event: the number of token ids, or the increase of the running count, or
 * else one per piece of text. */
static uint32_t tokens_of(struct flight *f, const struct event_parts *e,
                          const struct bench_record *rec)
{
	if (e->n_ids)
		return e->n_ids;
	if (e->has_usage && e->n_choices) {
		f->by_usage = 1;
		return e->completion_tokens > rec->output_tokens &&
		               e->completion_tokens - rec->output_tokens < UINT32_MAX
		           ? (uint32_t)(e->completion_tokens - rec->output_tokens)
		           : 0;
	}
	return !f->by_usage && e->n_choices && e->text.n ? 1 : 0;
}

static void keep_answer(struct flight *f, const struct event_parts *e)
{
	if (!run_wants_answer(f->run, f))
		return;
	const struct slice *s = run_options(f->run)->text ? &e->text : &e->ids;
	if (!run_options(f->run)->text && s->n && f->answer.len)
		buf_addc(&f->answer, ',');
	buf_add(&f->answer, s->n ? s->at : "", s->n);
}

static void take_usage(struct flight *f, const struct event_parts *e)
{
	struct bench_record *rec = run_record(f->run, f);
	rec->prompt_tokens = (uint32_t)e->prompt_tokens;
	rec->cached_tokens = (uint32_t)e->cached_tokens;
	if (!e->n_choices && e->completion_tokens > rec->output_tokens &&
	    e->completion_tokens < UINT32_MAX)
		/* the final count of a server whose pieces are not single tokens */
		rec->output_tokens = (uint32_t)e->completion_tokens;
}

static int on_event(void *arg, const char *data, size_t n)
{
	struct flight *f = arg;
	struct event_parts e;
	if (n == 6 && memcmp(data, "[DONE]", 6) == 0) {
		f->done = 1;
		return 0;
	}
	if (event_scan(data, n, &e) < 0) {
		set_fault(f, "the stream has an event that is not JSON: ", data, n);
		return 1;
	}
	if (e.is_error) {
		set_fault(f,
		          "the stream ended with an error: ", e.error.n ? e.error.at : "without a message",
		          e.error.n ? e.error.n : 17);
		return 1;
	}
	if (e.has_usage)
		take_usage(f, &e);
	if (e.finish.n)
		snprintf(f->finish, sizeof f->finish, "%.*s", e.finish.n < 20 ? (int)e.finish.n : 20,
		         e.finish.at);
	uint32_t k = tokens_of(f, &e, run_record(f->run, f));
	if (k || e.text.n)
		keep_answer(f, &e);
	if (k)
		run_tokens(f->run, f, k, f->now_us);
	f->leaving = f->leave_at > 0 && run_record(f->run, f)->output_tokens >= (uint64_t)f->leave_at;
	return f->leaving;
}

static int on_body(void *arg, int status, const char *data, size_t n, uint64_t now_us)
{
	struct flight *f = arg;
	f->now_us = now_us;
	run_record(f->run, f)->status = (int16_t)status;
	if (status != 200) {
		size_t room = BODY_KEPT - f->body.len;
		buf_add(&f->body, data, n < room ? n : room);
		return 0;
	}
	int code = sse_feed(&f->sse, data, n, on_event, f);
	if (code < 0)
		snprintf(f->fault, sizeof f->fault, "the stream has an event of more than %u bytes",
		         SSE_EVENT_MAX);
	return code;
}

/* Stores the message of an OpenAI error body, or else the start of the body. */
static void status_fault(struct flight *f)
{
	struct event_parts e;
	const char *text = f->body.data ? f->body.data : "";
	size_t n = f->body.len;
	if (event_scan(text, n, &e) == 0 && e.is_error && e.error.n) {
		text = e.error.at;
		n = e.error.n;
	}
	set_fault(f, "", text, n < 150 ? n : 150);
	if (!*f->fault)
		snprintf(f->fault, sizeof f->fault, "(no body)");
}

static enum outcome judge(struct flight *f, int status, const struct err *why)
{
	const struct bench_record *rec = run_record(f->run, f);
	if (f->leaving)
		return OUTCOME_LEFT;
	if (*f->fault)
		return OUTCOME_FAILED;
	if (why)
		set_fault(f, "", why->text, strlen(why->text));
	else if (status != 200)
		status_fault(f);
	else if (!f->done)
		snprintf(f->fault, sizeof f->fault, "the stream ended without [DONE]");
	else if (rec->output_tokens == 0)
		snprintf(f->fault, sizeof f->fault, "the answer has no token");
	else if (!run_options(f->run)->natural_end && !run_options(f->run)->any_length &&
	         rec->output_tokens != rec->max_tokens)
		snprintf(f->fault, sizeof f->fault,
		         "the answer has %u tokens of %u (finish_reason %s; --natural-end allows it)",
		         rec->output_tokens, rec->max_tokens, *f->finish ? f->finish : "none");
	return *f->fault ? OUTCOME_FAILED : OUTCOME_OK;
}

static void on_end(void *arg, int status, const struct err *why, uint64_t now_us)
{
	struct flight *f = arg;
	run_record(f->run, f)->status = (int16_t)status;
	enum outcome outcome = judge(f, status, why);
	char fault[sizeof f->fault];
	memcpy(fault, f->fault, sizeof fault);
	run_ended(f->run, f, outcome, fault, now_us);
}

const struct call_hooks flight_hooks = {on_body, on_end};
