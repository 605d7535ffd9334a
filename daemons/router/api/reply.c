/* reply.c - answers in OpenAI's JSON, whole and as stream events. Events are written by hand into
 * one buffer and cost a few microseconds; a whole answer is made answer by answer, as a list of
 * parts, and written from that. */
#include "daemons/router/request/request.h"

#include <stdio.h>
#include <string.h>

void reply_head(struct request *q)
{
	const char *object = q->kind != REQUEST_CHAT ? "text_completion"
	                     : q->p.stream           ? "chat.completion.chunk"
	                                             : "chat.completion";
	buf_printf(&q->head, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", q->id,
	           object, (long long)q->created_s);
	buf_add_json(&q->head, q->model->name, strlen(q->model->name));
}

static void add_prompt_ids(const struct prompt *p, struct buf *out)
{
	buf_adds(out, ",\"prompt_token_ids\":[");
	buf_add(out, p->ids.data, p->ids.len);
	buf_addc(out, ']');
}

/* finish: of the answer, or NONE while there is more of it */
static void add_finish(const struct answer *ans, enum answer_finish finish, struct buf *out)
{
	size_t len;
	if (finish == ANSWER_FINISH_NONE) {
		buf_adds(out, ",\"finish_reason\":null");
		return;
	}
	int calls = ans->finish == ANSWER_FINISH_STOP && ans->message && message_count(ans->message) &&
	            !ans->request->message.named;
	buf_printf(out, ",\"finish_reason\":\"%s\",\"stop_reason\":",
	           calls ? "tool_calls" : answer_finish_name(ans->finish));
	if (ans->stopped >= 0) {
		const char *s = stop_string(ans->request->p.stop, (size_t)ans->stopped, &len);
		buf_add_json(out, s, len);
	} else if (ans->stop_id >= 0) {
		buf_printf(out, "%lld", (long long)ans->stop_id);
	} else {
		buf_adds(out, "null");
	}
}

static void add_usage(const struct request *q, struct buf *out)
{
	uint32_t in = request_prompt_tokens(q), gen = request_output_tokens(q);
	buf_printf(out,
	           "{\"prompt_tokens\":%u,\"completion_tokens\":%u,\"total_tokens\":%u,\"prompt_tokens_"
	           "details\":{\"cached_tokens\":%u}}",
	           in, gen, in + gen, request_cached_tokens(q));
}

/* --- streams ------------------------------------------------------------- */

#define ECHO_PIECE 8192u /* of an event: bytes of the prompt's text */
#define ROWS_PIECE 128u  /* and log-probabilities of its tokens */

/* Whether the answer shows its prompt's log-probabilities among its own. */
static int echoes_rows(const struct request *q)
{
	return q->p.echo && q->p.logprobs >= 0;
}

size_t reply_opening_bytes(const struct answer *ans)
{
	const struct request *q = ans->request;
	size_t n = 0;
	if (q->p.echo)
		n += ans->prompt->text.len - ans->echo_given;
	if (echoes_rows(q))
		n += (ans->prompt->tokens.n - ans->rows_given) * (64 + 48 * (size_t)q->p.logprobs);
	if (q->p.return_token_ids && !ans->ids_sent)
		n += ans->prompt->ids.len;
	return n;
}

/* What of the opening goes into this event; all when it is 0 after it. */
struct opening {
	size_t echo;   /* bytes, from echo_given on */
	uint32_t rows; /* from rows_given on */
	int is_last;
};

static struct opening next_opening(const struct answer *ans)
{
	const struct request *q = ans->request;
	const struct prompt *p = ans->prompt;
	struct opening o = {0};
	size_t text = q->p.echo ? p->text.len - ans->echo_given : 0;
	uint32_t rows = echoes_rows(q) ? p->rows.n - ans->rows_given : 0;
	o.echo = text ? buf_json_piece(p->text.data + ans->echo_given, text, ECHO_PIECE) : 0;
	o.rows = rows < ROWS_PIECE ? rows : ROWS_PIECE;
	o.is_last = o.echo == text && o.rows == rows;
	return o;
}

/* One of the arrays: of the prompt's rows those of the opening, then the answer's own. */
static void add_array(const struct answer *ans, const struct opening *o, enum row_shape shape,
                      struct buf *out)
{
	const struct request *q = ans->request;
	uint32_t most = (uint32_t)q->p.logprobs, own = o->is_last ? ans->rows.n : 0;
	logprob_rows(q->model, &ans->prompt->rows, ans->rows_given, ans->rows_given + o->rows, shape,
	             most, out);
	if (o->rows && own)
		buf_addc(out, ',');
	logprob_rows(q->model, &ans->rows, 0, own, shape, most, out);
}

static void add_logprobs(const struct answer *ans, const struct opening *o, struct buf *out)
{
	const struct request *q = ans->request;
	buf_adds(out, ",\"logprobs\":");
	if (q->p.logprobs < 0 || (!o->rows && !(o->is_last && ans->rows.n))) {
		buf_adds(out, "null");
		return;
	}
	if (q->kind == REQUEST_CHAT) {
		buf_adds(out, "{\"content\":[");
		add_array(ans, o, ROW_CHAT, out);
	} else {
		buf_adds(out, "{\"tokens\":[");
		add_array(ans, o, ROW_NAME, out);
		buf_adds(out, "],\"token_logprobs\":[");
		add_array(ans, o, ROW_VALUE, out);
		buf_adds(out, "],\"top_logprobs\":[");
		add_array(ans, o, ROW_TOP, out);
		buf_adds(out, "],\"text_offset\":[");
		add_array(ans, o, ROW_OFFSET, out);
	}
	buf_adds(out, "]}");
}

static void add_ids(const struct answer *ans, const struct opening *o, struct buf *out)
{
	if (!ans->request->p.return_token_ids)
		return;
	buf_adds(out, ",\"token_ids\":[");
	for (uint32_t i = ans->ids_given; o->is_last && i < ans->n_tokens; i++) {
		if (i > ans->ids_given)
			buf_addc(out, ',');
		buf_add_uint(out, ans->attempt->got.out[i]);
	}
	buf_addc(out, ']');
}

static void add_completion_delta(struct answer *ans, const struct opening *o, size_t text_len,
                                 struct buf *out)
{
	const struct prompt *p = ans->prompt;
	buf_printf(out, ",\"choices\":[{\"index\":%u,\"text\":\"", ans->index);
	if (o->echo)
		buf_add_json_part(out, p->text.data + ans->echo_given, o->echo);
	if (o->is_last && text_len)
		buf_add_json_part(out, ans->text.data, text_len);
	buf_addc(out, '"');
	add_logprobs(ans, o, out);
	add_finish(ans, o->is_last ? ans->finish : ANSWER_FINISH_NONE, out);
	if (ans->request->p.return_token_ids && !ans->ids_sent)
		add_prompt_ids(p, out);
	ans->ids_sent = 1;
	add_ids(ans, o, out);
	buf_adds(out, "}]");
}

static void add_chat_delta(struct answer *ans, const struct opening *o, size_t text_len,
                           struct buf *out)
{
	struct parts *parts = &ans->request->parts;
	buf_printf(out, ",\"choices\":[{\"index\":%u,\"delta\":{", ans->index);
	if (ans->message) {
		parts_reset(parts);
		message_add(ans->message, 0, parts);
		parts_write(parts, ans->request->model, out, SIZE_MAX);
	} else {
		buf_adds(out, "\"content\":");
		buf_add_json(out, ans->text.data ? ans->text.data : "", text_len);
	}
	buf_addc(out, '}');
	add_logprobs(ans, o, out);
	add_finish(ans, ans->finish, out);
	add_ids(ans, o, out);
	buf_adds(out, "}]");
}

static void event_begin(const struct request *q, struct buf *out)
{
	buf_adds(out, "data: ");
	buf_add(out, q->head.data, q->head.len);
}

static void event_end(const struct request *q, struct buf *out)
{
	if (q->p.continuous_usage) {
		buf_adds(out, ",\"usage\":");
		add_usage(q, out);
	} else if (q->p.include_usage) {
		buf_adds(out, ",\"usage\":null");
	}
	buf_adds(out, "}\n\n");
}

static void add_role_event(struct answer *ans, struct buf *out)
{
	const struct request *q = ans->request;
	event_begin(q, out);
	buf_printf(out,
	           ",\"choices\":[{\"index\":%u,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
	           "\"logprobs\":null,\"finish_reason\":null}]",
	           ans->index);
	if (q->p.return_token_ids)
		add_prompt_ids(ans->prompt, out);
	ans->ids_sent = 1;
	event_end(q, out);
}

int reply_chunk(struct request *q, struct answer *ans, size_t text_len, struct buf *out)
{
	struct opening o = next_opening(ans);
	if (q->kind == REQUEST_CHAT && !ans->role_sent)
		add_role_event(ans, out);
	ans->role_sent = 1;
	event_begin(q, out);
	if (q->kind == REQUEST_CHAT)
		add_chat_delta(ans, &o, text_len, out);
	else
		add_completion_delta(ans, &o, text_len, out);
	event_end(q, out);
	ans->echo_given += o.echo;
	ans->rows_given += o.rows;
	return o.is_last;
}

int reply_is_empty(const struct answer *ans)
{
	const struct request *q = ans->request;
	int ids = q->p.return_token_ids && ans->ids_given < ans->n_tokens;
	return ans->finish == ANSWER_FINISH_NONE && message_is_empty(ans->message) && !ans->rows.n &&
	       !ids && !q->p.continuous_usage;
}

void reply_usage_chunk(struct request *q, struct buf *out)
{
	event_begin(q, out);
	buf_adds(out, ",\"choices\":[],\"usage\":");
	add_usage(q, out);
	buf_adds(out, "}\n\n");
}

/* --- whole --------------------------------------------------------------- */

static void put_text(const struct answer *ans, struct parts *p)
{
	const struct buf *echo = &ans->prompt->text;
	const char *text = ans->text.data ? ans->text.data : "";
	if (!ans->request->p.echo || !echo->len) {
		parts_string(p, text, ans->text.len);
		return;
	}
	buf_addc(&p->text, '"');
	parts_inside(p, echo->data, echo->len);
	parts_inside(p, text, ans->text.len);
	buf_addc(&p->text, '"');
}

static void put_array(const struct answer *ans, const char *name, enum row_shape shape,
                      struct parts *p)
{
	const struct request *q = ans->request;
	uint32_t most = (uint32_t)q->p.logprobs;
	buf_printf(&p->text, "\"%s\":[", name);
	if (echoes_rows(q))
		parts_rows(p, &ans->prompt->rows, shape, most);
	if (echoes_rows(q) && ans->prompt->rows.n && ans->rows.n)
		buf_addc(&p->text, ',');
	parts_rows(p, &ans->rows, shape, most);
	buf_addc(&p->text, ']');
}

static void put_logprobs(const struct answer *ans, struct parts *p)
{
	const struct request *q = ans->request;
	buf_adds(&p->text, ",\"logprobs\":");
	if (q->p.logprobs < 0) {
		buf_adds(&p->text, "null");
		return;
	}
	buf_addc(&p->text, '{');
	if (q->kind == REQUEST_CHAT) {
		put_array(ans, "content", ROW_CHAT, p);
	} else {
		put_array(ans, "tokens", ROW_NAME, p);
		buf_addc(&p->text, ',');
		put_array(ans, "token_logprobs", ROW_VALUE, p);
		buf_addc(&p->text, ',');
		put_array(ans, "top_logprobs", ROW_TOP, p);
		buf_addc(&p->text, ',');
		put_array(ans, "text_offset", ROW_OFFSET, p);
	}
	buf_addc(&p->text, '}');
}

static void put_prompt_ids(const struct prompt *prompt, struct parts *p)
{
	buf_adds(&p->text, ",\"prompt_token_ids\":[");
	parts_bytes(p, prompt->ids.data, prompt->ids.len);
	buf_addc(&p->text, ']');
}

static void put_prompt_logprobs(const struct request *q, const struct prompt *prompt,
                                struct parts *p)
{
	if (q->p.prompt_logprobs < 0)
		return;
	buf_adds(&p->text, ",\"prompt_logprobs\":[");
	parts_rows(p, &prompt->rows, ROW_PROMPT, (uint32_t)q->p.prompt_logprobs);
	buf_addc(&p->text, ']');
}

static void put_ids(const struct answer *ans, struct parts *p)
{
	if (!ans->request->p.return_token_ids)
		return;
	buf_adds(&p->text, ",\"token_ids\":[");
	if (ans->attempt)
		parts_ids(p, ans->attempt->got.out, ans->n_tokens);
	buf_addc(&p->text, ']');
}

static void put_answer(struct answer *ans, struct parts *p)
{
	const struct request *q = ans->request;
	buf_printf(&p->text, "%s{\"index\":%u,", ans->index ? "," : "", ans->index);
	if (ans->message) {
		buf_adds(&p->text, "\"message\":{\"role\":\"assistant\",");
		message_add(ans->message, 1, p);
		buf_addc(&p->text, '}');
	} else {
		buf_adds(&p->text, q->kind == REQUEST_CHAT
		                       ? "\"message\":{\"role\":\"assistant\",\"content\":"
		                       : "\"text\":");
		put_text(ans, p);
		buf_adds(&p->text, q->kind == REQUEST_CHAT ? ",\"refusal\":null}" : "");
	}
	put_logprobs(ans, p);
	add_finish(ans, ans->finish, &p->text);
	if (q->kind != REQUEST_CHAT && q->p.return_token_ids)
		put_prompt_ids(ans->prompt, p);
	if (q->kind != REQUEST_CHAT)
		put_prompt_logprobs(q, ans->prompt, p);
	put_ids(ans, p);
	buf_addc(&p->text, '}');
}

static void put_end(struct request *q, struct parts *p)
{
	buf_addc(&p->text, ']');
	if (q->kind == REQUEST_CHAT && q->p.return_token_ids)
		put_prompt_ids(&q->prompts[0], p);
	if (q->kind == REQUEST_CHAT)
		put_prompt_logprobs(q, &q->prompts[0], p);
	buf_adds(&p->text, ",\"usage\":");
	add_usage(q, &p->text);
	buf_addc(&p->text, '}');
}

/* Makes the next list of parts. 0: there is none. */
static int next_stage(struct request *q)
{
	struct parts *p = &q->parts;
	uint32_t stage = q->stage++;
	parts_reset(p);
	if (q->kind == REQUEST_TOKENIZE || q->kind == REQUEST_DETOKENIZE) {
		parts_bytes(p, q->out.data, stage ? 0 : q->out.len);
		return stage == 0;
	}
	if (stage == 0) {
		buf_add(&p->text, q->head.data, q->head.len);
		buf_adds(&p->text, ",\"choices\":[");
	} else if (stage <= q->n_answers) {
		put_answer(&q->answers[stage - 1], p);
	} else if (stage == q->n_answers + 1) {
		put_end(q, p);
	}
	return stage <= q->n_answers + 1;
}

int reply_more(struct request *q, struct buf *out, size_t most)
{
	do
		if (!parts_write(&q->parts, q->model, out, most))
			return 0;
	while (next_stage(q));
	return 1;
}
