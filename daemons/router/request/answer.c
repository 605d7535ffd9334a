/* answer.c - one answer in the making: tokens become text, stop strings cut it, what may be the
 * beginning of one waits.
 *
 * What always holds: text holds what was decoded and not yet given to the client; it never holds
 * anything behind a stop string; what is given to the client is whole UTF-8 (detok gives whole
 * characters, and a stop string begins with one). */
#include "request.h"
#include "text/unicode.h"
#include "util/check.h"

#include <string.h>

void answer_init(struct answer *ans, struct request *q, struct prompt *prompt, uint32_t index)
{
	memset(ans, 0, sizeof *ans);
	ans->request = q;
	ans->prompt = prompt;
	ans->index = index;
	ans->stopped = -1;
	ans->stop_id = -1;
	ans->charged = ANSWER_IDS_BYTES;
	ans->chars = q->p.echo ? prompt->chars : 0;
	buf_init_quota(&ans->text, 0, &q->quota);
	rows_init(&ans->rows, q->p.logprobs > 0 ? (uint32_t)q->p.logprobs : 0, &q->quota);
	if (q->model->tokenizer)
		detok_init(&ans->detok, q->model->tokenizer,
		           DECODE_CONTINUES | (q->p.skip_special ? DECODE_SKIP_SPECIAL : 0));
	if (q->kind == REQUEST_CHAT)
		ans->message = message_new(&q->message, &q->quota, q->id, index);
}

void answer_fini(struct answer *ans)
{
	attempt_destroy(&ans->attempt);
	message_destroy(&ans->message);
	buf_fini(&ans->text);
	rows_fini(&ans->rows);
}

/* New text is at text[from ..]: 1 if a stop string ended it there (the text is cut). */
static int scan_new(struct answer *ans, size_t from)
{
	const struct params *p = &ans->request->p;
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

/* No more tokens come: half a character that is left becomes U+FFFD. */
static void flush_text(struct answer *ans)
{
	size_t from = ans->text.len;
	if (!ans->request->model->tokenizer)
		return;
	detok_finish(&ans->detok, &ans->text);
	ans->lost |= ans->text.full;
	if (scan_new(ans, from))
		ans->finish = ANSWER_FINISH_STOP;
}

/* A special token's text is left out, unless it marks what is looked for in this answer. */
static int is_skipped(const struct answer *ans, uint32_t id)
{
	const struct request *q = ans->request;
	const struct message_opts *m = &q->message;
	unsigned wanted = m->calls ? MODEL_MARKS_CALLS : 0;
	wanted |= m->reasoning || m->marks_reasoning ? MODEL_MARKS_REASONING : 0;
	return q->p.skip_special && !(model_marker(q->model, id) & wanted);
}

/* One token: 1 if a stop string is complete, or the answer ends as there is no memory for the
 * token. silent: it ends the answer and is not part of its text. */
static int add_token(struct answer *ans, const Pds__Token *t, int silent)
{
	const struct request *q = ans->request;
	size_t from = ans->text.len;
	if (q->p.logprobs >= 0 && rows_add_token(&ans->rows, t, (uint32_t)ans->chars) < 0)
		return ans->lost = 1;
	ans->n_tokens++;
	if (silent || !q->model->tokenizer)
		return 0;
	ans->detok.flags &= ~(unsigned)DECODE_SKIP_SPECIAL;
	ans->detok.flags |= is_skipped(ans, t->id) ? DECODE_SKIP_SPECIAL : 0;
	detok_feed(&ans->detok, t->id, &ans->text);
	ans->lost = ans->text.full;
	return scan_new(ans, from) | ans->lost;
}

/* The attempt ended with this token: an end of sequence, the marker behind a call, or one that the
 * client named. */
static void note_stop_id(struct answer *ans, uint32_t id)
{
	const struct params *p = &ans->request->p;
	for (size_t i = 0; i < p->n_stop_ids; i++)
		if (p->stop_ids[i] == id)
			ans->stop_id = id;
	ans->model_ended = ans->stop_id < 0 || model_marker(ans->request->model, id) & MODEL_MARKS_LAST;
}

static void feed_message(struct answer *ans)
{
	size_t n = ans->text.len, held = 0;
	if (ans->finish == ANSWER_FINISH_NONE && ans->request->p.stop)
		held = stop_held(ans->request->p.stop, &ans->scan);
	n -= held;
	message_feed(ans->message, ans->text.data, n);
	ans->lost |= message_is_full(ans->message);
	if (held)
		memmove(ans->text.data, ans->text.data + n, held);
	ans->text.len = held;
	if (ans->finish != ANSWER_FINISH_NONE)
		message_finish(ans->message, ans->model_ended);
}

/* Text that is settled goes to the message: all but what may be the beginning of a stop string. */
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

/* The attempt's own list of tokens grows with the answer. */
static void charge_ids(struct answer *ans)
{
	size_t bytes = ans->attempt->got.size * sizeof *ans->attempt->got.out;
	if (bytes <= ans->charged)
		return;
	ans->lost |= quota_take(&ans->request->quota, bytes - ans->charged) < 0;
	ans->charged = bytes;
}

static enum attempt_verdict on_tokens(void *owner, struct attempt *s, Pds__Token *const *tokens,
                                      size_t n, enum answer_finish last)
{
	struct answer *ans = owner;
	int stop = 0;
	(void)s;
	charge_ids(ans);
	if (ans->request->score_only) {
		answer_finish(ans, ANSWER_FINISH_LENGTH);
		stop = 1;
	}
	for (size_t i = 0; i < n && !stop && !ans->lost; i++) {
		int ends = last == ANSWER_FINISH_STOP && i == n - 1;
		if (ends)
			note_stop_id(ans, tokens[i]->id);
		stop = add_token(ans, tokens[i], ends && !ans->request->p.include_stop);
	}
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
	if (ans->request->p.stream && answer_send(ans->request, ans) < 0)
		return ATTEMPT_ABORT;
	return stop ? ATTEMPT_STOP : ATTEMPT_GO;
}

static void on_prompt(void *owner, struct attempt *s, const Pds__PromptLogprobs *m, size_t from,
                      size_t n)
{
	struct answer *ans = owner;
	(void)s;
	prompt_add_rows(ans->request, ans->prompt, m, from, n);
	if (prompt_is_told(ans->request, ans->prompt))
		request_prompt_told(ans->request);
}

static void on_ended(void *owner, struct attempt *s)
{
	struct answer *ans = owner;
	struct request *q = ans->request;
	if (s->state == ATTEMPT_FAILED) {
		struct api_error e = {0};
		api_fault(&e, s->end.status, "%s", s->end.why);
		e.retry_after_s = (uint32_t)((s->end.retry_after_us + 999999) / 1000000);
		request_fail(q, &e);
		return;
	}
	if (s->state == ATTEMPT_CANCELLED) {
		struct api_error e = {0};
		api_fault(&e, 503, REQUEST_NOT_TAKEN);
		request_fail(q, &e);
		return;
	}
	if (ans->finish == ANSWER_FINISH_NONE) {
		answer_finish(ans, s->end.finish);
		if (q->p.stream && answer_send(q, ans) < 0) {
			struct api_error e = {0};
			api_fault(&e, 503, REQUEST_NOT_TAKEN);
			request_fail(q, &e);
			return;
		}
	}
	request_answer_ended(q, ans);
}

const struct attempt_hooks answer_hooks = {.tokens = on_tokens,
                                           .prompt = on_prompt,
                                           .ended = on_ended};
