/* reply.c - answers in OpenAI's JSON, whole and as stream events. Events are written by hand into
 * one buffer and cost a few microseconds; a whole answer is made choice by choice, as a list of
 * parts, and written from that. */
#include "call.h"

#include <stdio.h>
#include <string.h>

void reply_head(struct call *c)
{
	const char *object = c->kind != CALL_CHAT ? "text_completion"
	                     : c->p.stream        ? "chat.completion.chunk"
	                                          : "chat.completion";
	buf_printf(&c->head, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", c->id,
	           object, (long long)c->created_s);
	buf_add_json(&c->head, c->model->name, strlen(c->model->name));
}

static void add_prompt_ids(const struct prompt *p, struct buf *out)
{
	buf_adds(out, ",\"prompt_token_ids\":[");
	buf_add(out, p->ids.data, p->ids.len);
	buf_addc(out, ']');
}

/* finish: of the choice, or NONE while there is more of it */
static void add_finish(const struct choice *ch, enum seq_finish finish, struct buf *out)
{
	size_t len;
	if (finish == SEQ_FINISH_NONE) {
		buf_adds(out, ",\"finish_reason\":null");
		return;
	}
	int calls = ch->finish == SEQ_FINISH_STOP && ch->message && message_count(ch->message) &&
	            !ch->call->message.named;
	buf_printf(out, ",\"finish_reason\":\"%s\",\"stop_reason\":",
	           calls ? "tool_calls" : seq_finish_name(ch->finish));
	if (ch->stopped >= 0) {
		const char *s = stop_string(ch->call->p.stop, (size_t)ch->stopped, &len);
		buf_add_json(out, s, len);
	} else if (ch->stop_id >= 0) {
		buf_printf(out, "%lld", (long long)ch->stop_id);
	} else {
		buf_adds(out, "null");
	}
}

static void add_usage(const struct call *c, struct buf *out)
{
	uint32_t in = call_prompt_tokens(c), gen = call_output_tokens(c);
	buf_printf(out,
	           "{\"prompt_tokens\":%u,\"completion_tokens\":%u,\"total_tokens\":%u,\"prompt_tokens_"
	           "details\":{\"cached_tokens\":%u}}",
	           in, gen, in + gen, call_cached_tokens(c));
}

/* --- streams ------------------------------------------------------------- */

#define ECHO_PIECE 8192u /* of an event: bytes of the prompt's text */
#define ROWS_PIECE 128u  /* and log-probabilities of its tokens */

/* Whether the choice shows its prompt's log-probabilities among its own. */
static int echoes_rows(const struct call *c)
{
	return c->p.echo && c->p.logprobs >= 0;
}

size_t reply_opening_bytes(const struct choice *ch)
{
	const struct call *c = ch->call;
	size_t n = 0;
	if (c->p.echo)
		n += ch->prompt->text.len - ch->echo_given;
	if (echoes_rows(c))
		n += (ch->prompt->tokens.n - ch->rows_given) * (64 + 48 * (size_t)c->p.logprobs);
	if (c->p.return_token_ids && !ch->ids_sent)
		n += ch->prompt->ids.len;
	return n;
}

/* What of the opening goes into this event; all when it is 0 after it. */
struct opening {
	size_t echo;   /* bytes, from echo_given on */
	uint32_t rows; /* from rows_given on */
	int is_last;
};

static struct opening next_opening(const struct choice *ch)
{
	const struct call *c = ch->call;
	const struct prompt *p = ch->prompt;
	struct opening o = {0};
	size_t text = c->p.echo ? p->text.len - ch->echo_given : 0;
	uint32_t rows = echoes_rows(c) ? p->rows.n - ch->rows_given : 0;
	o.echo = text ? buf_json_piece(p->text.data + ch->echo_given, text, ECHO_PIECE) : 0;
	o.rows = rows < ROWS_PIECE ? rows : ROWS_PIECE;
	o.is_last = o.echo == text && o.rows == rows;
	return o;
}

/* One of the arrays: of the prompt's rows those of the opening, then the choice's own. */
static void add_array(const struct choice *ch, const struct opening *o, enum row_shape shape,
                      struct buf *out)
{
	const struct call *c = ch->call;
	uint32_t most = (uint32_t)c->p.logprobs, own = o->is_last ? ch->rows.n : 0;
	logprob_rows(c->model, &ch->prompt->rows, ch->rows_given, ch->rows_given + o->rows, shape, most,
	             out);
	if (o->rows && own)
		buf_addc(out, ',');
	logprob_rows(c->model, &ch->rows, 0, own, shape, most, out);
}

static void add_logprobs(const struct choice *ch, const struct opening *o, struct buf *out)
{
	const struct call *c = ch->call;
	buf_adds(out, ",\"logprobs\":");
	if (c->p.logprobs < 0 || (!o->rows && !(o->is_last && ch->rows.n))) {
		buf_adds(out, "null");
		return;
	}
	if (c->kind == CALL_CHAT) {
		buf_adds(out, "{\"content\":[");
		add_array(ch, o, ROW_CHAT, out);
	} else {
		buf_adds(out, "{\"tokens\":[");
		add_array(ch, o, ROW_NAME, out);
		buf_adds(out, "],\"token_logprobs\":[");
		add_array(ch, o, ROW_VALUE, out);
		buf_adds(out, "],\"top_logprobs\":[");
		add_array(ch, o, ROW_TOP, out);
		buf_adds(out, "],\"text_offset\":[");
		add_array(ch, o, ROW_OFFSET, out);
	}
	buf_adds(out, "]}");
}

static void add_ids(const struct choice *ch, const struct opening *o, struct buf *out)
{
	if (!ch->call->p.return_token_ids)
		return;
	buf_adds(out, ",\"token_ids\":[");
	for (uint32_t i = ch->ids_given; o->is_last && i < ch->n_tokens; i++) {
		if (i > ch->ids_given)
			buf_addc(out, ',');
		buf_add_uint(out, ch->seq->out[i]);
	}
	buf_addc(out, ']');
}

static void add_completion_delta(struct choice *ch, const struct opening *o, size_t text_len,
                                 struct buf *out)
{
	const struct prompt *p = ch->prompt;
	buf_printf(out, ",\"choices\":[{\"index\":%u,\"text\":\"", ch->index);
	if (o->echo)
		buf_add_json_part(out, p->text.data + ch->echo_given, o->echo);
	if (o->is_last && text_len)
		buf_add_json_part(out, ch->text.data, text_len);
	buf_addc(out, '"');
	add_logprobs(ch, o, out);
	add_finish(ch, o->is_last ? ch->finish : SEQ_FINISH_NONE, out);
	if (ch->call->p.return_token_ids && !ch->ids_sent)
		add_prompt_ids(p, out);
	ch->ids_sent = 1;
	add_ids(ch, o, out);
	buf_adds(out, "}]");
}

static void add_chat_delta(struct choice *ch, const struct opening *o, size_t text_len,
                           struct buf *out)
{
	struct parts *parts = &ch->call->parts;
	buf_printf(out, ",\"choices\":[{\"index\":%u,\"delta\":{", ch->index);
	if (ch->message) {
		parts_reset(parts);
		message_add(ch->message, 0, parts);
		parts_write(parts, ch->call->model, out, SIZE_MAX);
	} else {
		buf_adds(out, "\"content\":");
		buf_add_json(out, ch->text.data ? ch->text.data : "", text_len);
	}
	buf_addc(out, '}');
	add_logprobs(ch, o, out);
	add_finish(ch, ch->finish, out);
	add_ids(ch, o, out);
	buf_adds(out, "}]");
}

static void event_begin(const struct call *c, struct buf *out)
{
	buf_adds(out, "data: ");
	buf_add(out, c->head.data, c->head.len);
}

static void event_end(const struct call *c, struct buf *out)
{
	if (c->p.continuous_usage) {
		buf_adds(out, ",\"usage\":");
		add_usage(c, out);
	} else if (c->p.include_usage) {
		buf_adds(out, ",\"usage\":null");
	}
	buf_adds(out, "}\n\n");
}

static void add_role_event(struct choice *ch, struct buf *out)
{
	const struct call *c = ch->call;
	event_begin(c, out);
	buf_printf(out,
	           ",\"choices\":[{\"index\":%u,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
	           "\"logprobs\":null,\"finish_reason\":null}]",
	           ch->index);
	if (c->p.return_token_ids)
		add_prompt_ids(ch->prompt, out);
	ch->ids_sent = 1;
	event_end(c, out);
}

int reply_chunk(struct call *c, struct choice *ch, size_t text_len, struct buf *out)
{
	struct opening o = next_opening(ch);
	if (c->kind == CALL_CHAT && !ch->role_sent)
		add_role_event(ch, out);
	ch->role_sent = 1;
	event_begin(c, out);
	if (c->kind == CALL_CHAT)
		add_chat_delta(ch, &o, text_len, out);
	else
		add_completion_delta(ch, &o, text_len, out);
	event_end(c, out);
	ch->echo_given += o.echo;
	ch->rows_given += o.rows;
	return o.is_last;
}

int reply_is_empty(const struct choice *ch)
{
	const struct call *c = ch->call;
	int ids = c->p.return_token_ids && ch->ids_given < ch->n_tokens;
	return ch->finish == SEQ_FINISH_NONE && message_is_empty(ch->message) && !ch->rows.n && !ids &&
	       !c->p.continuous_usage;
}

void reply_usage_chunk(struct call *c, struct buf *out)
{
	event_begin(c, out);
	buf_adds(out, ",\"choices\":[],\"usage\":");
	add_usage(c, out);
	buf_adds(out, "}\n\n");
}

/* --- whole --------------------------------------------------------------- */

static void put_text(const struct choice *ch, struct parts *p)
{
	const struct buf *echo = &ch->prompt->text;
	const char *text = ch->text.data ? ch->text.data : "";
	if (!ch->call->p.echo || !echo->len) {
		parts_string(p, text, ch->text.len);
		return;
	}
	buf_addc(&p->text, '"');
	parts_inside(p, echo->data, echo->len);
	parts_inside(p, text, ch->text.len);
	buf_addc(&p->text, '"');
}

static void put_array(const struct choice *ch, const char *name, enum row_shape shape,
                      struct parts *p)
{
	const struct call *c = ch->call;
	uint32_t most = (uint32_t)c->p.logprobs;
	buf_printf(&p->text, "\"%s\":[", name);
	if (echoes_rows(c))
		parts_rows(p, &ch->prompt->rows, shape, most);
	if (echoes_rows(c) && ch->prompt->rows.n && ch->rows.n)
		buf_addc(&p->text, ',');
	parts_rows(p, &ch->rows, shape, most);
	buf_addc(&p->text, ']');
}

static void put_logprobs(const struct choice *ch, struct parts *p)
{
	const struct call *c = ch->call;
	buf_adds(&p->text, ",\"logprobs\":");
	if (c->p.logprobs < 0) {
		buf_adds(&p->text, "null");
		return;
	}
	buf_addc(&p->text, '{');
	if (c->kind == CALL_CHAT) {
		put_array(ch, "content", ROW_CHAT, p);
	} else {
		put_array(ch, "tokens", ROW_NAME, p);
		buf_addc(&p->text, ',');
		put_array(ch, "token_logprobs", ROW_VALUE, p);
		buf_addc(&p->text, ',');
		put_array(ch, "top_logprobs", ROW_TOP, p);
		buf_addc(&p->text, ',');
		put_array(ch, "text_offset", ROW_OFFSET, p);
	}
	buf_addc(&p->text, '}');
}

static void put_prompt_ids(const struct prompt *prompt, struct parts *p)
{
	buf_adds(&p->text, ",\"prompt_token_ids\":[");
	parts_bytes(p, prompt->ids.data, prompt->ids.len);
	buf_addc(&p->text, ']');
}

static void put_prompt_logprobs(const struct call *c, const struct prompt *prompt, struct parts *p)
{
	if (c->p.prompt_logprobs < 0)
		return;
	buf_adds(&p->text, ",\"prompt_logprobs\":[");
	parts_rows(p, &prompt->rows, ROW_PROMPT, (uint32_t)c->p.prompt_logprobs);
	buf_addc(&p->text, ']');
}

static void put_ids(const struct choice *ch, struct parts *p)
{
	if (!ch->call->p.return_token_ids)
		return;
	buf_adds(&p->text, ",\"token_ids\":[");
	if (ch->seq)
		parts_ids(p, ch->seq->out, ch->n_tokens);
	buf_addc(&p->text, ']');
}

static void put_choice(struct choice *ch, struct parts *p)
{
	const struct call *c = ch->call;
	buf_printf(&p->text, "%s{\"index\":%u,", ch->index ? "," : "", ch->index);
	if (ch->message) {
		buf_adds(&p->text, "\"message\":{\"role\":\"assistant\",");
		message_add(ch->message, 1, p);
		buf_addc(&p->text, '}');
	} else {
		buf_adds(&p->text, c->kind == CALL_CHAT ? "\"message\":{\"role\":\"assistant\",\"content\":"
		                                        : "\"text\":");
		put_text(ch, p);
		buf_adds(&p->text, c->kind == CALL_CHAT ? ",\"refusal\":null}" : "");
	}
	put_logprobs(ch, p);
	add_finish(ch, ch->finish, &p->text);
	if (c->kind != CALL_CHAT && c->p.return_token_ids)
		put_prompt_ids(ch->prompt, p);
	if (c->kind != CALL_CHAT)
		put_prompt_logprobs(c, ch->prompt, p);
	put_ids(ch, p);
	buf_addc(&p->text, '}');
}

static void put_end(struct call *c, struct parts *p)
{
	buf_addc(&p->text, ']');
	if (c->kind == CALL_CHAT && c->p.return_token_ids)
		put_prompt_ids(&c->prompts[0], p);
	if (c->kind == CALL_CHAT)
		put_prompt_logprobs(c, &c->prompts[0], p);
	buf_adds(&p->text, ",\"usage\":");
	add_usage(c, &p->text);
	buf_addc(&p->text, '}');
}

/* Makes the next list of parts. 0: there is none. */
static int next_stage(struct call *c)
{
	struct parts *p = &c->parts;
	uint32_t stage = c->stage++;
	parts_reset(p);
	if (c->kind == CALL_TOKENIZE || c->kind == CALL_DETOKENIZE) {
		parts_bytes(p, c->out.data, stage ? 0 : c->out.len);
		return stage == 0;
	}
	if (stage == 0) {
		buf_add(&p->text, c->head.data, c->head.len);
		buf_adds(&p->text, ",\"choices\":[");
	} else if (stage <= c->n_choices) {
		put_choice(&c->choices[stage - 1], p);
	} else if (stage == c->n_choices + 1) {
		put_end(c, p);
	}
	return stage <= c->n_choices + 1;
}

int reply_more(struct call *c, struct buf *out, size_t most)
{
	do
		if (!parts_write(&c->parts, c->model, out, most))
			return 0;
	while (next_stage(c));
	return 1;
}
