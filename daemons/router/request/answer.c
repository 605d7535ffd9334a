/* answer.c - one answer: tokens become text, a stop string cuts it, what may be the beginning of
 * one waits, the rest is sent if the client wants a stream.
 *
 * What always holds: `text` is what was decoded and not yet sent; it has nothing after a stop
 * string; what is sent is whole UTF-8 (detok gives whole characters, and a stop string begins with
 * one). */
#include "daemons/router/api/embeddings.h"
#include "text/unicode.h"
#include "util/clock.h"
#include "util/err.h"

#include <stdlib.h>
#include <string.h>

#define BEHIND_BYTES 16384u /* a stream that is further behind is written in steps */

/* Has the answer a message? */
static int is_split(const struct request *q)
{
	const struct message_opts *m = &q->prep.message;
	return q->dialect->splits == SPLITS_ALWAYS ||
	       (q->dialect->splits == SPLITS_IF_ASKED && (m->calls || m->reasoning));
}

void answer_init(struct answer *ans, struct request *q, struct prompt *prompt, uint32_t index)
{
	memset(ans, 0, sizeof *ans);
	ans->request = q;
	ans->prompt = prompt;
	ans->index = index;
	ans->stopped = -1;
	ans->stop_id = -1;
	ans->charged = ANSWER_IDS_BYTES;
	ans->chars = q->prep.p.echo ? prompt->chars : 0;
	buf_init_quota(&ans->text, 0, &q->prep.quota);
	rows_init(&ans->rows, q->prep.p.logprobs > 0 ? (uint32_t)q->prep.p.logprobs : 0,
	          &q->prep.quota);
	if (q->prep.model->tokenizer)
		detok_init(&ans->detok, q->prep.model->tokenizer,
		           DECODE_CONTINUES | (q->prep.p.skip_special ? DECODE_SKIP_SPECIAL : 0));
	if (is_split(q))
		ans->message = message_new(&q->prep.message, &q->prep.quota, q->id, index);
}

void answer_fini(struct answer *ans)
{
	attempt_destroy(&ans->attempt);
	message_destroy(&ans->message);
	buf_fini(&ans->text);
	rows_fini(&ans->rows);
	free(ans->embedding);
}

/* Looks for stop strings in the new text, text[from ..]. 1: one was found, and the text is cut. */
static int scan_new(struct answer *ans, size_t from)
{
	const struct params *p = &ans->request->prep.p;
	size_t end, len;
	if (ans->text.len == from)
		return 0;
	if (p->stop && ans->n_tokens <= p->min_tokens) {
		stop_pass(p->stop, &ans->scan, ans->text.data + from, ans->text.len - from);
	} else if (p->stop) {
		int which = stop_feed(p->stop, &ans->scan, ans->text.data + from, ans->text.len - from,
		                      &end);
		if (which >= 0) {
			ans->stopped = which;
			stop_string(p->stop, (size_t)which, &len);
			ans->text.len = from + end - (p->include_stop ? 0 : len);
			ans->text.data[ans->text.len] = 0;
			return 1;
		}
	}
	ans->chars += utf8_count(ans->text.data + from, ans->text.len - from);
	return 0;
}

/* After the last token: an incomplete character becomes U+FFFD. */
static void flush_text(struct answer *ans)
{
	size_t from = ans->text.len;
	if (!ans->request->prep.model->tokenizer)
		return;
	detok_finish(&ans->detok, &ans->text);
	ans->lost |= ans->text.full;
	if (scan_new(ans, from))
		ans->finish = ANSWER_FINISH_STOP;
}

/* The text of a special token is left out, unless it is a marker that this answer looks for. */
static int is_skipped(const struct answer *ans, uint32_t id)
{
	const struct request *q = ans->request;
	const struct message_opts *m = &q->prep.message;
	unsigned wanted = m->calls ? MODEL_MARKS_CALLS : 0;
	wanted |= m->reasoning || m->marks_reasoning ? MODEL_MARKS_REASONING : 0;
	return q->prep.p.skip_special && !(model_marker(q->prep.model, id) & wanted);
}

/* 1: the answer ends: a stop string is complete, or there is no memory for the token. silent: the
 * token ends the answer and is not part of its text. */
static int add_token(struct answer *ans, const Pds__Token *t, int silent)
{
	const struct request *q = ans->request;
	size_t from = ans->text.len;
	if (q->prep.p.logprobs >= 0 && rows_add_token(&ans->rows, t, (uint32_t)ans->chars) < 0)
		return ans->lost = 1;
	ans->n_tokens++;
	if (silent || !q->prep.model->tokenizer)
		return 0;
	ans->detok.flags &= ~(unsigned)DECODE_SKIP_SPECIAL;
	ans->detok.flags |= is_skipped(ans, t->id) ? DECODE_SKIP_SPECIAL : 0;
	detok_feed(&ans->detok, t->id, &ans->text);
	ans->lost = ans->text.full;
	return scan_new(ans, from) | ans->lost;
}

/* The attempt ended with this token: an end of sequence, the marker after a call, or a stop token
 * that the client named. */
static void note_stop_id(struct answer *ans, uint32_t id)
{
	const struct params *p = &ans->request->prep.p;
	for (size_t i = 0; i < p->n_stop_ids; i++)
		if (p->stop_ids[i] == id)
			ans->stop_id = id;
	ans->model_ended = ans->stop_id < 0 ||
	                   model_marker(ans->request->prep.model, id) & MODEL_MARKS_LAST;
}

static void feed_message(struct answer *ans)
{
	size_t n = ans->text.len, held = 0;
	if (ans->finish == ANSWER_FINISH_NONE && ans->request->prep.p.stop)
		held = stop_held(ans->request->prep.p.stop, &ans->scan);
	n -= held;
	message_feed(ans->message, ans->text.data, n, ans->n_tokens, ans->rows.n);
	ans->lost |= message_is_full(ans->message);
	if (held)
		memmove(ans->text.data, ans->text.data + n, held);
	ans->text.len = held;
	if (ans->finish != ANSWER_FINISH_NONE)
		message_finish(ans->message, ans->model_ended);
}

/* Text goes to the message, except for what may be the beginning of a stop string. */
static void settle_text(struct answer *ans)
{
	if (ans->message)
		feed_message(ans);
	if (ans->lost && ans->finish == ANSWER_FINISH_STOP)
		ans->finish = ANSWER_FINISH_LENGTH;
}

void answer_finish(struct answer *ans, enum answer_finish finish)
{
	if (ans->finish != ANSWER_FINISH_NONE)
		return;
	ans->finish = finish;
	flush_text(ans);
	settle_text(ans);
}

/* The attempt's list of tokens grows with the answer, so it is charged as it grows. */
static void charge_ids(struct answer *ans)
{
	size_t bytes = ans->attempt->got.size * sizeof *ans->attempt->got.out;
	if (bytes <= ans->charged)
		return;
	ans->lost |= quota_take(&ans->request->prep.quota, bytes - ans->charged) < 0;
	ans->charged = bytes;
}

/* --- to the client ------------------------------------------------------- */

/* Tokens that wait while their stream is behind are bounded as those that the client does not take;
 * those that are kept anyway, by the request's quota. */
static int wait_behind(const struct answer *ans)
{
	size_t bytes = ans->text.len + ans->rows.n * row_bytes(ans->rows.top);
	if (ans->request->dialect->keeps)
		return 0;
	return bytes > ans->request->r->conf.http.out_bytes_max ? ERR_FULL : 0;
}

/* The text up to n, and all else, is the client's now. */
static void forget_sent(struct answer *ans, size_t n)
{
	if (n < ans->text.len)
		memmove(ans->text.data, ans->text.data + n, ans->text.len - n);
	ans->text.len -= n;
	ans->given.ids = ans->n_tokens;
	if (ans->request->dialect->keeps)
		return;
	if (ans->message)
		message_given(ans->message);
	ans->rows.n = 0;
}

int answer_send_event(struct answer *ans, size_t max_size)
{
	struct request *q = ans->request;
	struct buf *out = &q->r->out;
	size_t n = ans->message ? 0 : ans->text.len;
	if (!ans->message && ans->finish == ANSWER_FINISH_NONE && q->prep.p.stop)
		n -= stop_held(q->prep.p.stop, &ans->scan);
	buf_reset(out);
	if (q->dialect->chunk(ans, n, max_size, out))
		forget_sent(ans, n);
	if (out->full)
		return ERR_FULL;
	return out->len ? http_stream_add(q->conn, out->data, out->len) : 0;
}

size_t answer_behind(const struct answer *ans)
{
	size_t (*behind)(const struct answer *) = ans->request->dialect->behind;
	return behind ? behind(ans) : 0;
}

void answer_send_later(struct answer *ans)
{
	struct request *q = ans->request;
	write_begin_stream(q);
	q->n_behind += !ans->behind;
	ans->behind = 1;
	write_soon(q);
}

int answer_send(struct answer *ans)
{
	struct request *q = ans->request;
	if (ans->behind)
		return wait_behind(ans);
	if (q->dialect->is_empty(ans))
		return 0;
	write_begin_stream(q);
	do {
		size_t behind = answer_behind(ans);
		if (behind > BEHIND_BYTES || (behind && !prompt_is_told(&q->prep, ans->prompt))) {
			answer_send_later(ans);
			return 0;
		}
		if (answer_send_event(ans, BEHIND_BYTES) < 0)
			return ERR_FULL;
	} while (answer_behind(ans));
	return 0;
}

/* --- what its attempt says ----------------------------------------------- */

/* Tokens that come together (several drafts were accepted) share the time since the last ones. */
static void observe_tokens(struct answer *ans, size_t n)
{
	uint64_t now = clock_us();
	for (size_t i = 0; ans->last_us && i < n; i++)
		stat_observe_us(ans->request->r->stats, STAT_ITL, (now - ans->last_us) / n);
	ans->last_us = now;
}

/* Token by token, whether they come alone or together. 1: the answer ends before the last of them,
 * or with a stop string. */
static int add_tokens(struct answer *ans, Pds__Token *const *tokens, size_t n,
                      enum answer_finish last)
{
	for (size_t i = 0; i < n && !ans->lost; i++) {
		int is_last = i == n - 1, ends = last == ANSWER_FINISH_STOP && is_last;
		if (ends)
			note_stop_id(ans, tokens[i]->id);
		if (add_token(ans, tokens[i], ends && !ans->request->prep.p.include_stop))
			return 1;
		if (is_last || !ans->message)
			continue;
		settle_text(ans);
		if (ans->message->enough)
			return 1;
	}
	return 0;
}

static enum attempt_verdict on_tokens(void *owner, struct attempt *s, Pds__Token *const *tokens,
                                      size_t n, enum answer_finish last)
{
	struct answer *ans = owner;
	int stop = 0;
	(void)s;
	charge_ids(ans);
	observe_tokens(ans, n);
	if (ans->request->tenant)
		tenant_generated(ans->request->tenant, n, clock_us());
	if (ans->request->prep.score_only) {
		answer_finish(ans, ANSWER_FINISH_LENGTH);
		stop = 1;
	}
	if (!stop)
		stop = add_tokens(ans, tokens, n, last);
	if (stop)
		ans->finish = ans->finish != ANSWER_FINISH_NONE ? ans->finish
		              : ans->lost                       ? ANSWER_FINISH_LENGTH
		                                                : ANSWER_FINISH_STOP;
	else if (last != ANSWER_FINISH_NONE)
		answer_finish(ans, ans->lost ? ANSWER_FINISH_LENGTH : last);
	settle_text(ans);
	if (ans->finish == ANSWER_FINISH_NONE &&
	    (ans->lost || (ans->message && ans->message->enough))) {
		answer_finish(ans, ans->lost ? ANSWER_FINISH_LENGTH : ANSWER_FINISH_STOP);
		stop = 1;
	}
	if (ans->request->prep.p.stream && answer_send(ans) < 0)
		return ATTEMPT_ABORT;
	return stop ? ATTEMPT_STOP : ATTEMPT_GO;
}

static void on_prompt(void *owner, struct attempt *s, const Pds__PromptLogprobs *m, size_t from,
                      size_t n)
{
	struct answer *ans = owner;
	struct request *q = ans->request;
	(void)s;
	prompt_add_rows(&q->prep, ans->prompt, m, from, n);
	if (q->n_behind && prompt_is_told(&q->prep, ans->prompt))
		request_work_soon(q);
}

static int on_embedding(void *owner, struct attempt *s, const float *values)
{
	struct answer *ans = owner;
	(void)s;
	ans->finish = ANSWER_FINISH_STOP;
	return embeddings_keep(ans, values);
}

static void count_answer(const struct answer *ans)
{
	const struct request *q = ans->request;
	struct stat_set *st = q->r->stats;
	uint64_t now = clock_us();
	const struct attempt *s = ans->attempt;
	if (ans->finish == ANSWER_FINISH_STOP || ans->finish == ANSWER_FINISH_LENGTH)
		stat_add(st, ans->finish == ANSWER_FINISH_STOP ? STAT_SUCCESS_STOP : STAT_SUCCESS_LENGTH,
		         1);
	stat_observe_us(st, STAT_E2E, now - q->begun_us);
	stat_observe(st, STAT_ANSWER_PROMPT, ans->prompt->tokens.n);
	if (!s->got.first_us)
		return;
	stat_observe_us(st, STAT_TTFT, s->got.first_us - q->begun_us);
	stat_observe_us(st, STAT_QUEUE, s->got.times.turn_us + s->got.times.queue_us);
	if (s->got.times.prefill_us) /* else the worker that computed the prompt did not tell it */
		stat_observe_us(st, STAT_PREFILL, s->got.times.prefill_us);
	stat_observe_us(st, STAT_DECODE, now - s->got.first_us);
	stat_observe(st, STAT_ANSWER_TOKENS, ans->n_tokens);
	if (ans->n_tokens > 1) {
		uint64_t us = (now - s->got.first_us) / (ans->n_tokens - 1);
		stat_observe_us(st, STAT_TPOT, us);
		stat_observe_us(st, STAT_REQUEST_TPOT, us);
	}
}

/* When all answers have ended. */
static void count_longest(const struct request *q)
{
	for (uint32_t i = 0, longest = 0; i < q->n_answers; i++) {
		if (i % q->prep.p.n == 0)
			longest = 0;
		if (q->answers[i].n_tokens > longest)
			longest = q->answers[i].n_tokens;
		if (longest && (i + 1) % q->prep.p.n == 0)
			stat_observe(q->r->stats, STAT_ANSWER_LONGEST, longest);
	}
}

static void on_ended(void *owner, struct attempt *s)
{
	struct answer *ans = owner;
	struct request *q = ans->request;
	struct api_error *e = &q->prep.error;
	if (s->end.finish == ANSWER_FINISH_ERROR) {
		api_fault(e, s->end.status, "%s", s->end.why);
		e->retry_after_s = (uint32_t)((s->end.retry_after_us + 999999) / 1000000);
	} else if (s->end.finish == ANSWER_FINISH_ABORT) {
		api_fault(e, 503, CLIENT_TOO_SLOW);
	} else if (ans->finish == ANSWER_FINISH_NONE) {
		answer_finish(ans, s->end.finish);
		if (q->prep.p.stream && answer_send(ans) < 0)
			api_fault(e, 503, CLIENT_TOO_SLOW);
	}
	if (e->status) {
		request_step(q, REQUEST_ON_FAILURE);
		return;
	}
	count_answer(ans);
	if (++q->n_ended == q->n_answers) {
		count_longest(q);
		request_step(q, REQUEST_ON_ANSWERED);
	} else if (q->state == REQUEST_STARTING) { /* the next one may have waited for it */
		request_work_soon(q);
	}
}

const struct attempt_hooks answer_hooks = {
	.tokens = on_tokens, .prompt = on_prompt, .embedding = on_embedding, .ended = on_ended};
