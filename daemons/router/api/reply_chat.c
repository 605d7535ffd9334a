/* reply_chat.c - answers to /v1/chat/completions: one message for each choice, in a stream as
 * deltas. */
#include "choices.h"

#include <string.h>

static void head(struct request *q)
{
	choices_head(q, q->prep.p.stream ? "chat.completion.chunk" : "chat.completion");
}

/* --- the message --------------------------------------------------------- */

/* All pieces of a kind as one string. */
static void put_pieces(const struct message *m, const char *name, enum message_kind kind,
                       struct answer_parts *p)
{
	buf_printf(&p->text, "\"%s\":\"", name);
	for (size_t i = 0; i < m->n_pieces; i++)
		if (m->pieces[i].kind == kind)
			parts_inside(p, m->pieces[i].text.data, m->pieces[i].text.len);
	buf_addc(&p->text, '"');
}

static void put_call(const struct message_piece *c, int whole, struct answer_parts *p)
{
	buf_addc(&p->text, '{');
	if (!whole)
		buf_printf(&p->text, "\"index\":%u%s", c->index, c->begins ? "," : "");
	if (c->begins)
		buf_printf(&p->text, "\"id\":\"%s\",\"type\":\"function\"", c->id);
	buf_adds(&p->text, ",\"function\":{");
	if (c->begins) {
		buf_adds(&p->text, "\"name\":");
		buf_add_json(&p->text, c->name, strlen(c->name));
		buf_addc(&p->text, ',');
	}
	buf_adds(&p->text, "\"arguments\":");
	parts_string(p, c->text.data ? c->text.data : "", c->text.len);
	buf_adds(&p->text, "}}");
}

static void put_calls(const struct message *m, int whole, const char *comma, struct answer_parts *p)
{
	size_t n = 0;
	for (size_t i = 0; i < m->n_pieces; i++) {
		if (m->pieces[i].kind != MESSAGE_CALL)
			continue;
		if (n++ == 0)
			buf_printf(&p->text, "%s\"tool_calls\":[", comma);
		else
			buf_addc(&p->text, ',');
		put_call(&m->pieces[i], whole, p);
	}
	if (n)
		buf_addc(&p->text, ']');
}

/* Members of `message` (whole: content and refusal always) or of `delta` (only what there is),
 * without braces, the first without a comma. vLLM and SGLang name thoughts reasoning_content, newer
 * vLLM reasoning: both are sent. */
static void put_message(const struct message *m, int whole, struct answer_parts *p)
{
	const char *comma = "";
	if (message_bytes(m, MESSAGE_CONTENT) || (whole && !m->n_pieces)) {
		put_pieces(m, "content", MESSAGE_CONTENT, p);
		comma = ",";
	} else if (whole) {
		buf_adds(&p->text, "\"content\":null");
		comma = ",";
	}
	if (whole)
		buf_adds(&p->text, ",\"refusal\":null");
	if (message_bytes(m, MESSAGE_THOUGHTS)) {
		buf_adds(&p->text, comma);
		put_pieces(m, "reasoning_content", MESSAGE_THOUGHTS, p);
		buf_addc(&p->text, ',');
		put_pieces(m, "reasoning", MESSAGE_THOUGHTS, p);
		comma = ",";
	}
	put_calls(m, whole, comma, p);
}

/* --- streams ------------------------------------------------------------- */

static void add_delta(const struct answer *ans, size_t text_len, struct buf *out)
{
	struct answer_parts *parts = &ans->request->reply.parts;
	if (ans->message) {
		ADD(out, ",\"delta\":{");
		parts_reset(parts);
		put_message(ans->message, 0, parts);
		parts_write(parts, ans->request->prep.model, out, SIZE_MAX);
		buf_addc(out, '}');
		return;
	}
	ADD(out, ",\"delta\":{\"content\":\"");
	buf_add_json_part(out, ans->text.data, text_len);
	ADD(out, "\"}");
}

static void add_logprobs(const struct answer *ans, struct buf *out)
{
	const struct request *q = ans->request;
	if (q->prep.p.logprobs < 0 || !ans->rows.n) {
		ADD(out, ",\"logprobs\":null");
		return;
	}
	ADD(out, ",\"logprobs\":{\"content\":[");
	logprob_rows(q->prep.model, &ans->rows, 0, ans->rows.n, ROW_CHAT, (uint32_t)q->prep.p.logprobs,
	             out);
	ADD(out, "],\"refusal\":null}");
}

static void add_role_event(struct answer *ans, struct buf *out)
{
	choices_event_begin(ans, out);
	ADD(out, ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
	         "\"finish_reason\":null}]");
	choices_add_prompt_ids(ans, out);
	choices_event_end(ans, CHOICES_OPENS, out);
}

static int chunk(struct answer *ans, size_t text_len, size_t max_size, struct buf *out)
{
	(void)max_size;
	if (!ans->given.role)
		add_role_event(ans, out);
	ans->given.role = 1;
	choices_event_begin(ans, out);
	add_delta(ans, text_len, out);
	add_logprobs(ans, out);
	choices_add_finish(ans, ans->finish, out);
	choices_add_ids(ans, 1, out);
	ADD(out, "}]");
	choices_event_end(ans, ans->finish == ANSWER_FINISH_NONE ? CHOICES_GOES_ON : CHOICES_ENDS, out);
	return 1;
}

static int is_empty(const struct answer *ans)
{
	const struct params *p = &ans->request->prep.p;
	int ids = p->return_token_ids && ans->given.ids < ans->n_tokens;
	return ans->message && ans->finish == ANSWER_FINISH_NONE && message_is_empty(ans->message) &&
	       !ans->rows.n && !ids && !p->continuous_usage;
}

/* --- whole --------------------------------------------------------------- */

static void put_logprobs(const struct answer *ans, struct answer_parts *p)
{
	int most = ans->request->prep.p.logprobs;
	buf_adds(&p->text, most < 0 ? ",\"logprobs\":null" : ",\"logprobs\":{\"content\":[");
	if (most < 0)
		return;
	parts_rows(p, &ans->rows, 0, ans->rows.n, ROW_CHAT, (uint32_t)most);
	buf_adds(&p->text, "],\"refusal\":null}");
}

static void put_choice(struct answer *ans, struct answer_parts *p)
{
	buf_adds(&p->text, "\"message\":{\"role\":\"assistant\",");
	if (ans->message) {
		put_message(ans->message, 1, p);
	} else {
		buf_adds(&p->text, "\"content\":");
		parts_string(p, ans->text.data ? ans->text.data : "", ans->text.len);
		buf_adds(&p->text, ",\"refusal\":null");
	}
	buf_addc(&p->text, '}');
	put_logprobs(ans, p);
	choices_add_finish(ans, ans->finish, &p->text);
	choices_put_ids(ans, p);
}

static void put_end(struct request *q, struct answer_parts *p)
{
	choices_put_prompt(q, &q->prep.prompts[0], p);
}

static int whole(struct request *q, uint32_t stage, struct answer_parts *p)
{
	return choices_whole(q, stage, p, put_choice, put_end);
}

const struct dialect dialect_chat = {.id_prefix = "chatcmpl-",
                                     .splits = SPLITS_IF_ASKED,
                                     .head = head,
                                     .chunk = chunk,
                                     .is_empty = is_empty,
                                     .behind = choices_prompt_ids_behind,
                                     .stream_end = choices_stream_end,
                                     .whole = whole,
                                     .error = api_error_json,
                                     .stream_error = choices_stream_error};
