/* choice.c - one answer in the making: tokens become text, stop strings cut it, what may be the
 * beginning of one waits.
 *
 * What always holds: text holds what was decoded and not yet given to the client; it never holds
 * anything behind a stop string; what is given to the client is whole UTF-8 (detok gives whole
 * characters, and a stop string begins with one). */
#include "call.h"
#include "text/unicode.h"
#include "util/check.h"

#include <string.h>

void choice_init(struct choice *ch, struct call *c, struct prompt *prompt, uint32_t index)
{
	memset(ch, 0, sizeof *ch);
	ch->call = c;
	ch->prompt = prompt;
	ch->index = index;
	ch->stopped = -1;
	ch->stop_id = -1;
	ch->charged = CHOICE_IDS_BYTES;
	ch->chars = c->p.echo ? prompt->chars : 0;
	buf_init_quota(&ch->text, 0, &c->quota);
	rows_init(&ch->rows, c->p.logprobs > 0 ? (uint32_t)c->p.logprobs : 0, &c->quota);
	if (c->model->tokenizer)
		detok_init(&ch->detok, c->model->tokenizer,
		           DECODE_CONTINUES | (c->p.skip_special ? DECODE_SKIP_SPECIAL : 0));
	if (c->kind == CALL_CHAT)
		ch->message = message_new(&c->message, &c->quota, c->id, index);
}

void choice_fini(struct choice *ch)
{
	seq_destroy(&ch->seq);
	message_destroy(&ch->message);
	buf_fini(&ch->text);
	rows_fini(&ch->rows);
}

/* New text is at text[from ..]: 1 if a stop string ended it there (the text is cut). */
static int scan_new(struct choice *ch, size_t from)
{
	const struct params *p = &ch->call->p;
	size_t end, len;
	if (ch->text.len == from)
		return 0;
	if (p->stop && ch->n_tokens <= p->min_tokens) {
		stop_pass(p->stop, &ch->scan, ch->text.data + from, ch->text.len - from);
	} else if (p->stop) {
		int which = stop_feed(p->stop, &ch->scan, ch->text.data + from, ch->text.len - from, &end);
		if (which >= 0) {
			ch->stopped = which;
			stop_string(p->stop, (size_t)which, &len);
			ch->text.len = from + end - (p->include_stop ? 0 : len);
			ch->text.data[ch->text.len] = 0;
			return 1;
		}
	}
	ch->chars += utf8_count(ch->text.data + from, ch->text.len - from);
	return 0;
}

/* No more tokens come: half a character that is left becomes U+FFFD. */
static void flush_text(struct choice *ch)
{
	size_t from = ch->text.len;
	if (!ch->call->model->tokenizer)
		return;
	detok_finish(&ch->detok, &ch->text);
	ch->lost |= ch->text.full;
	if (scan_new(ch, from))
		ch->finish = SEQ_FINISH_STOP;
}

/* A special token's text is left out, unless it marks what is looked for in this answer. */
static int is_skipped(const struct choice *ch, uint32_t id)
{
	const struct call *c = ch->call;
	const struct message_opts *m = &c->message;
	unsigned wanted = m->calls ? MODEL_MARKS_CALLS : 0;
	wanted |= m->reasoning || m->marks_reasoning ? MODEL_MARKS_REASONING : 0;
	return c->p.skip_special && !(model_marker(c->model, id) & wanted);
}

/* One token: 1 if a stop string is complete, or the answer ends as there is no memory for the
 * token. silent: it ends the answer and is not part of its text. */
static int add_token(struct choice *ch, const Pds__Token *t, int silent)
{
	const struct call *c = ch->call;
	size_t from = ch->text.len;
	if (c->p.logprobs >= 0 && rows_add_token(&ch->rows, t, (uint32_t)ch->chars) < 0)
		return ch->lost = 1;
	ch->n_tokens++;
	if (silent || !c->model->tokenizer)
		return 0;
	ch->detok.flags &= ~(unsigned)DECODE_SKIP_SPECIAL;
	ch->detok.flags |= is_skipped(ch, t->id) ? DECODE_SKIP_SPECIAL : 0;
	detok_feed(&ch->detok, t->id, &ch->text);
	ch->lost = ch->text.full;
	return scan_new(ch, from) | ch->lost;
}

/* The sequence ended with this token: an end of sequence, the marker behind a call, or one that the
 * client named. */
static void note_stop_id(struct choice *ch, uint32_t id)
{
	const struct params *p = &ch->call->p;
	for (size_t i = 0; i < p->n_stop_ids; i++)
		if (p->stop_ids[i] == id)
			ch->stop_id = id;
	ch->model_ended = ch->stop_id < 0 || model_marker(ch->call->model, id) & MODEL_MARKS_LAST;
}

static void feed_message(struct choice *ch)
{
	size_t n = ch->text.len, held = 0;
	if (ch->finish == SEQ_FINISH_NONE && ch->call->p.stop)
		held = stop_held(ch->call->p.stop, &ch->scan);
	n -= held;
	message_feed(ch->message, ch->text.data, n);
	ch->lost |= message_is_full(ch->message);
	if (held)
		memmove(ch->text.data, ch->text.data + n, held);
	ch->text.len = held;
	if (ch->finish != SEQ_FINISH_NONE)
		message_finish(ch->message, ch->model_ended);
}

/* Text that is settled goes to the message: all but what may be the beginning of a stop string. */
static void settle_text(struct choice *ch)
{
	if (ch->message)
		feed_message(ch);
	if (ch->lost && ch->finish == SEQ_FINISH_STOP)
		ch->finish = SEQ_FINISH_LENGTH;
}

void choice_finish(struct choice *ch, enum seq_finish finish)
{
	if (ch->finish != SEQ_FINISH_NONE)
		return;
	ch->finish = finish;
	flush_text(ch);
	settle_text(ch);
}

/* The sequence's own list of tokens grows with the answer. */
static void charge_ids(struct choice *ch)
{
	size_t bytes = ch->seq->size * sizeof *ch->seq->out;
	if (bytes <= ch->charged)
		return;
	ch->lost |= quota_take(&ch->call->quota, bytes - ch->charged) < 0;
	ch->charged = bytes;
}

static enum seq_verdict on_tokens(void *owner, struct seq *s, Pds__Token *const *tokens, size_t n,
                                  enum seq_finish last)
{
	struct choice *ch = owner;
	int stop = 0;
	(void)s;
	charge_ids(ch);
	if (ch->call->score_only) {
		choice_finish(ch, SEQ_FINISH_LENGTH);
		stop = 1;
	}
	for (size_t i = 0; i < n && !stop && !ch->lost; i++) {
		int ends = last == SEQ_FINISH_STOP && i == n - 1;
		if (ends)
			note_stop_id(ch, tokens[i]->id);
		stop = add_token(ch, tokens[i], ends && !ch->call->p.include_stop);
	}
	if (stop)
		ch->finish = ch->finish != SEQ_FINISH_NONE ? ch->finish
		             : ch->lost                    ? SEQ_FINISH_LENGTH
		                                           : SEQ_FINISH_STOP;
	else if (last != SEQ_FINISH_NONE)
		choice_finish(ch, ch->lost ? SEQ_FINISH_LENGTH : last);
	settle_text(ch);
	if (ch->finish == SEQ_FINISH_NONE && (ch->lost || (ch->message && ch->message->enough))) {
		choice_finish(ch, ch->lost ? SEQ_FINISH_LENGTH : SEQ_FINISH_STOP);
		stop = 1;
	}
	if (ch->call->p.stream && call_chunk(ch->call, ch) < 0)
		return SEQ_ABORT;
	return stop ? SEQ_STOP : SEQ_GO;
}

static void on_prompt(void *owner, struct seq *s, const Pds__PromptLogprobs *m, size_t from,
                      size_t n)
{
	struct choice *ch = owner;
	(void)s;
	prompt_add_rows(ch->call, ch->prompt, m, from, n);
	if (prompt_is_told(ch->call, ch->prompt))
		call_prompt_told(ch->call);
}

static void on_ended(void *owner, struct seq *s)
{
	struct choice *ch = owner;
	struct call *c = ch->call;
	if (s->state == SEQ_FAILED) {
		struct api_error e = {0};
		api_fault(&e, s->status, "%s", s->why);
		e.retry_after_s = (uint32_t)((s->retry_after_us + 999999) / 1000000);
		call_fail(c, &e);
		return;
	}
	if (s->state == SEQ_CANCELLED) {
		struct api_error e = {0};
		api_fault(&e, 503, CALL_NOT_TAKEN);
		call_fail(c, &e);
		return;
	}
	if (ch->finish == SEQ_FINISH_NONE) {
		choice_finish(ch, s->finish);
		if (c->p.stream && call_chunk(c, ch) < 0) {
			struct api_error e = {0};
			api_fault(&e, 503, CALL_NOT_TAKEN);
			call_fail(c, &e);
			return;
		}
	}
	call_choice_ended(c, ch);
}

const struct seq_hooks choice_hooks = {.tokens = on_tokens, .prompt = on_prompt, .ended = on_ended};
