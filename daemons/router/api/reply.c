/* reply.c - answers in OpenAI's JSON, whole and as stream events. An event is written by hand into
 * one buffer: what all events of a request begin with is made once (reply_head), and nothing of an
 * ordinary token is formatted but its number and its text. A whole answer is made answer by answer,
 * as a list of parts, and written from that. */
#include "daemons/router/request/request.h"

#include <stdio.h>
#include <string.h>

#define ADD(out, literal) buf_add(out, literal, sizeof literal - 1)

#define EVENT "data: " /* of the head: only events begin with it */

void reply_head(struct request *q)
{
	struct buf *head = &q->reply.head;
	const char *object = q->prep.kind != KIND_CHAT ? "text_completion"
	                     : q->prep.p.stream        ? "chat.completion.chunk"
	                                               : "chat.completion";
	ADD(head, EVENT "{\"id\":\"");
	buf_adds(head, q->id);
	ADD(head, "\",\"object\":\"");
	buf_adds(head, object);
	ADD(head, "\",\"created\":");
	buf_add_uint(head, (uint64_t)q->prep.created_s);
	ADD(head, ",\"model\":");
	buf_add_json(head, q->prep.model->name, strlen(q->prep.model->name));
	char fingerprint[20];
	ADD(head, ",\"system_fingerprint\":");
	if (registry_fingerprint(&q->r->registry, fingerprint, sizeof fingerprint))
		buf_printf(head, "\"%s\"", fingerprint);
	else
		ADD(head, "null");
	ADD(head, ",\"choices\":[");
}

static void add_prompt_ids(const struct prompt *p, struct buf *out)
{
	buf_adds(out, ",\"prompt_token_ids\":[");
	buf_add(out, p->ids.data, p->ids.len);
	buf_addc(out, ']');
}

/* finish: of the answer, or NONE if more of it follows */
static void add_finish(const struct answer *ans, enum answer_finish finish, struct buf *out)
{
	size_t len;
	if (finish == ANSWER_FINISH_NONE) {
		ADD(out, ",\"finish_reason\":null");
		return;
	}
	int calls = ans->finish == ANSWER_FINISH_STOP && ans->message && message_count(ans->message) &&
	            !ans->request->prep.message.named;
	ADD(out, ",\"finish_reason\":\"");
	buf_adds(out, calls ? "tool_calls" : answer_finish_name(ans->finish));
	ADD(out, "\",\"stop_reason\":");
	if (ans->stopped >= 0) {
		const char *s = stop_string(ans->request->prep.p.stop, (size_t)ans->stopped, &len);
		buf_add_json(out, s, len);
	} else if (ans->stop_id >= 0) {
		buf_add_uint(out, (uint64_t)ans->stop_id);
	} else {
		buf_adds(out, "null");
	}
}

/* "usage": the prompts' tokens, the answers' tokens, and how many of the former were cached. */
static void add_usage(const struct request *q, struct buf *out)
{
	uint32_t in = 0, gen = 0, cached = 0;
	for (size_t i = 0; i < q->prep.n_prompts; i++)
		in += (uint32_t)q->prep.prompts[i].tokens.n;
	for (uint32_t i = 0; i < q->n_answers; i++) {
		const struct answer *ans = &q->answers[i];
		gen += ans->n_tokens;
		if (i % q->prep.p.n == 0 && ans->attempt)
			cached += ans->attempt->got.times.cached_tokens;
	}
	ADD(out, "{\"prompt_tokens\":");
	buf_add_uint(out, in);
	ADD(out, ",\"completion_tokens\":");
	buf_add_uint(out, gen);
	ADD(out, ",\"total_tokens\":");
	buf_add_uint(out, in + gen);
	ADD(out, ",\"prompt_tokens_details\":{\"cached_tokens\":");
	buf_add_uint(out, cached);
	ADD(out, "}}");
}

/* --- streams ------------------------------------------------------------- */

#define ECHO_PIECE 8192u /* of an event: bytes of the prompt's text */
#define ROWS_PIECE 128u  /* and log-probabilities of its tokens */

/* The answer shows its prompt's log-probabilities before its own. */
static int echoes_rows(const struct request *q)
{
	return q->prep.p.echo && q->prep.p.logprobs >= 0;
}

size_t reply_opening_bytes(const struct answer *ans)
{
	const struct request *q = ans->request;
	size_t n = 0;
	if (q->prep.p.echo)
		n += ans->prompt->text.len - ans->given.echo;
	if (echoes_rows(q))
		n += (ans->prompt->tokens.n - ans->given.rows) * (64 + 48 * (size_t)q->prep.p.logprobs);
	if (q->prep.p.return_token_ids && !ans->given.prompt_ids)
		n += ans->prompt->ids.len;
	return n;
}

/* The piece of a stream's beginning that goes into one event. */
struct opening {
	size_t echo;   /* bytes, from given.echo on */
	uint32_t rows; /* from given.rows on */
	int is_last;
};

static struct opening next_opening(const struct answer *ans)
{
	const struct request *q = ans->request;
	const struct prompt *p = ans->prompt;
	struct opening o = {0};
	size_t text = q->prep.p.echo ? p->text.len - ans->given.echo : 0;
	uint32_t rows = echoes_rows(q) ? p->rows.n - ans->given.rows : 0;
	o.echo = text ? buf_json_piece(p->text.data + ans->given.echo, text, ECHO_PIECE) : 0;
	o.rows = rows < ROWS_PIECE ? rows : ROWS_PIECE;
	o.is_last = o.echo == text && o.rows == rows;
	return o;
}

/* One of the arrays: of the prompt's rows those of the opening, then the answer's own. */
static void add_array(const struct answer *ans, const struct opening *o, enum row_shape shape,
                      struct buf *out)
{
	const struct request *q = ans->request;
	uint32_t most = (uint32_t)q->prep.p.logprobs, own = o->is_last ? ans->rows.n : 0;
	if (o->rows)
		logprob_rows(q->prep.model, &ans->prompt->rows, ans->given.rows, ans->given.rows + o->rows,
		             shape, most, out);
	if (o->rows && own)
		buf_addc(out, ',');
	logprob_rows(q->prep.model, &ans->rows, 0, own, shape, most, out);
}

static void add_logprobs(const struct answer *ans, const struct opening *o, struct buf *out)
{
	const struct request *q = ans->request;
	if (q->prep.p.logprobs < 0 || (!o->rows && !(o->is_last && ans->rows.n))) {
		ADD(out, ",\"logprobs\":null");
		return;
	}
	if (q->prep.kind == KIND_CHAT) {
		ADD(out, ",\"logprobs\":{\"content\":[");
		add_array(ans, o, ROW_CHAT, out);
	} else {
		ADD(out, ",\"logprobs\":{\"tokens\":[");
		add_array(ans, o, ROW_NAME, out);
		ADD(out, "],\"token_logprobs\":[");
		add_array(ans, o, ROW_VALUE, out);
		ADD(out, "],\"top_logprobs\":[");
		add_array(ans, o, ROW_TOP, out);
		ADD(out, "],\"text_offset\":[");
		add_array(ans, o, ROW_OFFSET, out);
	}
	ADD(out, "]}");
}

static void add_ids(const struct answer *ans, const struct opening *o, struct buf *out)
{
	ADD(out, ",\"token_ids\":[");
	for (uint32_t i = ans->given.ids; o->is_last && i < ans->n_tokens; i++) {
		if (i > ans->given.ids)
			buf_addc(out, ',');
		buf_add_uint(out, ans->attempt->got.out[i]);
	}
	buf_addc(out, ']');
}

/* "text" of a completion, its quotes included: of the prompt what is echoed, then the answer's. */
static void add_text(const struct answer *ans, const struct opening *o, size_t text_len,
                     struct buf *out)
{
	ADD(out, ",\"text\":\"");
	if (o->echo)
		buf_add_json_part(out, ans->prompt->text.data + ans->given.echo, o->echo);
	if (o->is_last && text_len)
		buf_add_json_part(out, ans->text.data, text_len);
	buf_addc(out, '"');
}

static void add_delta(const struct answer *ans, size_t text_len, struct buf *out)
{
	struct answer_parts *parts = &ans->request->reply.parts;
	if (ans->message) {
		ADD(out, ",\"delta\":{");
		parts_reset(parts);
		message_add(ans->message, 0, parts);
		parts_write(parts, ans->request->prep.model, out, SIZE_MAX);
		buf_addc(out, '}');
		return;
	}
	ADD(out, ",\"delta\":{\"content\":\"");
	buf_add_json_part(out, ans->text.data, text_len);
	ADD(out, "\"}");
}

static void event_begin(const struct answer *ans, struct buf *out)
{
	const struct buf *head = &ans->request->reply.head;
	buf_add(out, head->data, head->len);
	ADD(out, "{\"index\":");
	buf_add_uint(out, ans->index);
}

static void add_warnings(const struct request *q, struct buf *out)
{
	ADD(out, ",\"warnings\":[");
	buf_add(out, q->prep.warnings.data, q->prep.warnings.len);
	buf_addc(out, ']');
}

/* What stands behind the choices. */
static void event_end(struct request *q, struct buf *out)
{
	if (q->prep.warnings.len && !q->reply.warned)
		add_warnings(q, out);
	q->reply.warned = 1;
	if (q->prep.p.continuous_usage) {
		ADD(out, ",\"usage\":");
		add_usage(q, out);
	} else if (q->prep.p.include_usage) {
		ADD(out, ",\"usage\":null");
	}
	ADD(out, "}\n\n");
}

static void add_role_event(struct answer *ans, struct buf *out)
{
	struct request *q = ans->request;
	event_begin(ans, out);
	ADD(out, ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
	         "\"finish_reason\":null}]");
	if (q->prep.p.return_token_ids)
		add_prompt_ids(ans->prompt, out);
	ans->given.prompt_ids = 1;
	event_end(q, out);
}

int reply_chunk(struct answer *ans, size_t text_len, struct buf *out)
{
	struct request *q = ans->request;
	const struct params *p = &q->prep.p;
	struct opening o = next_opening(ans);
	if (q->prep.kind == KIND_CHAT && !ans->given.role)
		add_role_event(ans, out);
	ans->given.role = 1;
	event_begin(ans, out);
	if (q->prep.kind == KIND_CHAT)
		add_delta(ans, text_len, out);
	else
		add_text(ans, &o, text_len, out);
	add_logprobs(ans, &o, out);
	add_finish(ans, o.is_last ? ans->finish : ANSWER_FINISH_NONE, out);
	if (p->return_token_ids && !ans->given.prompt_ids) {
		add_prompt_ids(ans->prompt, out);
		ans->given.prompt_ids = 1;
	}
	if (p->return_token_ids)
		add_ids(ans, &o, out);
	ADD(out, "}]");
	event_end(q, out);
	ans->given.echo += o.echo;
	ans->given.rows += o.rows;
	return o.is_last;
}

int reply_is_empty(const struct answer *ans)
{
	const struct request *q = ans->request;
	int ids = q->prep.p.return_token_ids && ans->given.ids < ans->n_tokens;
	return ans->finish == ANSWER_FINISH_NONE && message_is_empty(ans->message) && !ans->rows.n &&
	       !ids && !q->prep.p.continuous_usage;
}

void reply_usage_chunk(struct request *q, struct buf *out)
{
	buf_add(out, q->reply.head.data, q->reply.head.len);
	ADD(out, "],\"usage\":");
	add_usage(q, out);
	ADD(out, "}\n\n");
}

/* --- whole --------------------------------------------------------------- */

static void put_text(const struct answer *ans, struct answer_parts *p)
{
	const struct buf *echo = &ans->prompt->text;
	const char *text = ans->text.data ? ans->text.data : "";
	if (!ans->request->prep.p.echo || !echo->len) {
		parts_string(p, text, ans->text.len);
		return;
	}
	buf_addc(&p->text, '"');
	parts_inside(p, echo->data, echo->len);
	parts_inside(p, text, ans->text.len);
	buf_addc(&p->text, '"');
}

static void put_array(const struct answer *ans, const char *name, enum row_shape shape,
                      struct answer_parts *p)
{
	const struct request *q = ans->request;
	uint32_t most = (uint32_t)q->prep.p.logprobs;
	buf_printf(&p->text, "\"%s\":[", name);
	if (echoes_rows(q))
		parts_rows(p, &ans->prompt->rows, shape, most);
	if (echoes_rows(q) && ans->prompt->rows.n && ans->rows.n)
		buf_addc(&p->text, ',');
	parts_rows(p, &ans->rows, shape, most);
	buf_addc(&p->text, ']');
}

static void put_logprobs(const struct answer *ans, struct answer_parts *p)
{
	const struct request *q = ans->request;
	buf_adds(&p->text, ",\"logprobs\":");
	if (q->prep.p.logprobs < 0) {
		buf_adds(&p->text, "null");
		return;
	}
	buf_addc(&p->text, '{');
	if (q->prep.kind == KIND_CHAT) {
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

static void put_prompt_ids(const struct prompt *prompt, struct answer_parts *p)
{
	buf_adds(&p->text, ",\"prompt_token_ids\":[");
	parts_bytes(p, prompt->ids.data, prompt->ids.len);
	buf_addc(&p->text, ']');
}

static void put_prompt_logprobs(const struct request *q, const struct prompt *prompt,
                                struct answer_parts *p)
{
	if (q->prep.p.prompt_logprobs < 0)
		return;
	buf_adds(&p->text, ",\"prompt_logprobs\":[");
	parts_rows(p, &prompt->rows, ROW_PROMPT, (uint32_t)q->prep.p.prompt_logprobs);
	buf_addc(&p->text, ']');
}

static void put_ids(const struct answer *ans, struct answer_parts *p)
{
	if (!ans->request->prep.p.return_token_ids)
		return;
	buf_adds(&p->text, ",\"token_ids\":[");
	if (ans->attempt)
		parts_ids(p, ans->attempt->got.out, ans->n_tokens);
	buf_addc(&p->text, ']');
}

static void put_answer(struct answer *ans, struct answer_parts *p)
{
	const struct request *q = ans->request;
	buf_adds(&p->text, ans->index ? ",{\"index\":" : "{\"index\":");
	buf_add_uint(&p->text, ans->index);
	buf_addc(&p->text, ',');
	if (ans->message) {
		buf_adds(&p->text, "\"message\":{\"role\":\"assistant\",");
		message_add(ans->message, 1, p);
		buf_addc(&p->text, '}');
	} else {
		buf_adds(&p->text, q->prep.kind == KIND_CHAT
		                       ? "\"message\":{\"role\":\"assistant\",\"content\":"
		                       : "\"text\":");
		put_text(ans, p);
		buf_adds(&p->text, q->prep.kind == KIND_CHAT ? ",\"refusal\":null}" : "");
	}
	put_logprobs(ans, p);
	add_finish(ans, ans->finish, &p->text);
	if (q->prep.kind != KIND_CHAT && q->prep.p.return_token_ids)
		put_prompt_ids(ans->prompt, p);
	if (q->prep.kind != KIND_CHAT)
		put_prompt_logprobs(q, ans->prompt, p);
	put_ids(ans, p);
	buf_addc(&p->text, '}');
}

static void put_end(struct request *q, struct answer_parts *p)
{
	buf_addc(&p->text, ']');
	if (q->prep.kind == KIND_CHAT && q->prep.p.return_token_ids)
		put_prompt_ids(&q->prep.prompts[0], p);
	if (q->prep.kind == KIND_CHAT)
		put_prompt_logprobs(q, &q->prep.prompts[0], p);
	if (q->prep.warnings.len)
		add_warnings(q, &p->text);
	buf_adds(&p->text, ",\"usage\":");
	add_usage(q, &p->text);
	buf_addc(&p->text, '}');
}

/* Makes the next list of parts. 0: there is none. */
static int next_stage(struct request *q)
{
	struct answer_parts *p = &q->reply.parts;
	uint32_t stage = q->reply.stage++;
	parts_reset(p);
	if (q->prep.kind == KIND_TOKENIZE || q->prep.kind == KIND_DETOKENIZE) {
		parts_bytes(p, q->prep.out.data, stage ? 0 : q->prep.out.len);
		return stage == 0;
	}
	if (stage == 0) {
		const struct buf *head = &q->reply.head;
		size_t skip = sizeof EVENT - 1;
		buf_add(&p->text, head->data + skip, head->len - skip);
	} else if (stage <= q->n_answers) {
		put_answer(&q->answers[stage - 1], p);
	} else if (stage == q->n_answers + 1) {
		put_end(q, p);
	}
	return stage <= q->n_answers + 1;
}

int reply_more(struct request *q, struct buf *out, size_t max_size)
{
	do
		if (!parts_write(&q->reply.parts, q->prep.model, out, max_size))
			return 0;
	while (next_stage(q));
	return 1;
}
