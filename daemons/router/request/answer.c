/* answer.c - one answer: its attempt's tokens become text, a stop string cuts the text, and write.c
 * sends it if the client wants a stream.
 *
 * What always holds: `text` is what was decoded and not yet sent, and ends where a stop string ends
 * the answer. What is sent is complete UTF-8, because detok gives complete characters, and a stop
 * string begins with one. */
#include "request.h"
#include "daemons/router/api/embeddings.h"
#include "text/unicode.h"
#include "util/clock.h"
#include "util/err.h"

#include <stdlib.h>
#include <string.h>

void answer_init(struct answer *ans, struct request *q, struct prompt *prompt, uint32_t index)
{
	const struct message_opts *m = &q->prep.message;
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
	if (q->dialect->splits == SPLITS_ALWAYS ||
	    (q->dialect->splits == SPLITS_IF_ASKED && (m->calls || m->reasoning)))
		ans->message = message_new(m, &q->prep.quota, q->id, index);
}

void answer_fini(struct answer *ans)
{
	attempt_destroy(&ans->attempt);
	message_destroy(&ans->message);
	buf_fini(&ans->text);
	rows_fini(&ans->rows);
	free(ans->embedding);
}

/* Looks for stop strings in the new text, text[from ..]. Returns 1 if it found one and cut the
 * text. */
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

/* Returns 1 if the answer ends: a stop string is complete, or there is no memory for the token.
 * silent: the token is not part of the answer's text. */
static int add_token(struct answer *ans, const Pds__Token *t, int silent)
{
	const struct request *q = ans->request;
	const struct message_opts *m = &q->prep.message;
	size_t from = ans->text.len;
	if (q->prep.p.logprobs >= 0 && rows_add_token(&ans->rows, t, (uint32_t)ans->chars) < 0)
		return ans->lost = 1;
	ans->n_tokens++;
	if (silent || !q->prep.model->tokenizer)
		return 0;
	/* the text of a special token is left out, unless it is a marker that the message looks for */
	unsigned wanted = m->calls ? MODEL_MARKS_CALLS : 0;
	wanted |= m->reasoning || m->marks_reasoning ? MODEL_MARKS_REASONING : 0;
	int skips = q->prep.p.skip_special && !(model_marker(q->prep.model, t->id) & wanted);
	ans->detok.flags &= ~(unsigned)DECODE_SKIP_SPECIAL;
	ans->detok.flags |= skips ? DECODE_SKIP_SPECIAL : 0;
	detok_feed(&ans->detok, t->id, &ans->text);
	ans->lost = ans->text.full;
	return scan_new(ans, from) | ans->lost;
}

/* Passes the text to the message, except for its end if that may begin a stop string. */
static void pass_text(struct answer *ans)
{
	const struct stop_set *stop = ans->request->prep.p.stop;
	if (ans->message) {
		size_t held = ans->finish == ANSWER_FINISH_NONE && stop ? stop_held(stop, &ans->scan) : 0,
			   n = ans->text.len - held;
		message_feed(ans->message, ans->text.data, n, ans->n_tokens, ans->rows.n);
		ans->lost |= message_is_full(ans->message);
		if (held)
			memmove(ans->text.data, ans->text.data + n, held);
		ans->text.len = held;
		if (ans->finish != ANSWER_FINISH_NONE)
			message_finish(ans->message, ans->model_ended);
	}
	if (ans->lost && ans->finish == ANSWER_FINISH_STOP)
		ans->finish = ANSWER_FINISH_LENGTH;
}

void answer_finish(struct answer *ans, enum answer_finish finish)
{
	size_t from = ans->text.len;
	if (ans->finish != ANSWER_FINISH_NONE)
		return;
	ans->finish = finish;
	if (ans->request->prep.model->tokenizer) {
		detok_finish(&ans->detok, &ans->text); /* an incomplete character becomes U+FFFD */
		ans->lost |= ans->text.full;
		if (scan_new(ans, from))
			ans->finish = ANSWER_FINISH_STOP;
	}
	pass_text(ans);
}

/* --- hooks of its attempt ------------------------------------------------ */

/* Adds them one by one, so that the text does not depend on how many arrive together. Returns 1 if
 * the answer ends before the last of them, or with a stop string. */
static int add_tokens(struct answer *ans, Pds__Token *const *tokens, size_t n,
                      enum answer_finish last)
{
	const struct params *p = &ans->request->prep.p;
	for (size_t i = 0; i < n && !ans->lost; i++) {
		int is_last = i == n - 1, ends = last == ANSWER_FINISH_STOP && is_last;
		uint32_t id = tokens[i]->id;
		/* this token has ended the attempt: an end of sequence, the marker behind a call, or one of
		 * the request's stop tokens */
		for (size_t k = 0; ends && k < p->n_stop_ids; k++)
			if (p->stop_ids[k] == id)
				ans->stop_id = id;
		if (ends)
			ans->model_ended = ans->stop_id < 0 ||
			                   model_marker(ans->request->prep.model, id) & MODEL_MARKS_LAST;
		if (add_token(ans, tokens[i], ends && !p->include_stop))
			return 1;
		if (is_last || !ans->message)
			continue;
		pass_text(ans);
		if (ans->message->enough)
			return 1;
	}
	return 0;
}

enum attempt_verdict answer_tokens(void *owner, struct attempt *a, Pds__Token *const *tokens,
                                   size_t n, enum answer_finish last)
{
	struct answer *ans = owner;
	/* the attempt's list of tokens grows with the answer, and is charged as it grows */
	size_t bytes = a->got.size * sizeof *a->got.out;
	uint64_t now = clock_us();
	int stop = 0;
	if (bytes > ans->charged) {
		ans->lost |= quota_take(&ans->request->prep.quota, bytes - ans->charged) < 0;
		ans->charged = bytes;
	}
	/* tokens that arrive together (accepted drafts) share the time since the ones before */
	for (size_t i = 0; ans->last_us && i < n; i++)
		stat_observe_us(&ans->request->r->stats.itl, (now - ans->last_us) / n);
	ans->last_us = now;
	if (ans->request->tenant)
		tenant_generated(ans->request->tenant, n, now);
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
	pass_text(ans);
	if (ans->finish == ANSWER_FINISH_NONE &&
	    (ans->lost || (ans->message && ans->message->enough))) {
		answer_finish(ans, ans->lost ? ANSWER_FINISH_LENGTH : ANSWER_FINISH_STOP);
		stop = 1;
	}
	if (ans->request->prep.p.stream && write_answer(ans) < 0)
		return ATTEMPT_ABORT;
	return stop ? ATTEMPT_STOP : ATTEMPT_GO;
}

void answer_prompt(void *owner, struct attempt *a, const Pds__PromptLogprobs *m, size_t from,
                   size_t n)
{
	struct answer *ans = owner;
	struct request *q = ans->request;
	(void)a;
	prompt_add_rows(&q->prep, ans->prompt, m, from, n);
	if (q->n_behind && prompt_rows_complete(&q->prep, ans->prompt))
		request_work_soon(q);
}

int answer_embedding(void *owner, struct attempt *a, const float *values)
{
	struct answer *ans = owner;
	(void)a;
	ans->finish = ANSWER_FINISH_STOP;
	return embeddings_keep(ans, values);
}
