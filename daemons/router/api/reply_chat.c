/* reply_chat.c - answers to /v1/chat/completions: one message for each choice, in a stream as
 * deltas. */
#include "choices.h"
#include "daemons/router/request/request.h"

#include <string.h>

static void chat_head(struct request *q)
{
	choices_head(q, q->prep.p.stream ? "chat.completion.chunk" : "chat.completion");
}

/* --- the message --------------------------------------------------------- */

/* Puts all pieces of a kind as one string. */
static void put_pieces(const struct message *m, const char *name, enum message_kind kind,
                       struct answer_parts *p)
{
	buf_printf(&p->text, "\"%s\":\"", name);
	for (size_t i = 0; i < m->n_pieces; i++)
		if (m->pieces[i].kind == kind)
			parts_inside(p, m->pieces[i].text.data, m->pieces[i].text.len);
	buf_addc(&p->text, '"');
}

static void put_tool_call(const struct message_piece *c, int is_complete, struct answer_parts *p)
{
	buf_addc(&p->text, '{');
	if (!is_complete)
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

/* Members of `message` (is_complete: always with content and refusal) or of `delta` (only the
 * new ones), without braces. vLLM and SGLang name thoughts reasoning_content, newer vLLM
 * reasoning: both are sent. */
static void put_message(const struct message *m, int is_complete, struct answer_parts *p)
{
	const char *comma = "";
	if (message_bytes(m, MESSAGE_CONTENT) || (is_complete && !m->n_pieces)) {
		put_pieces(m, "content", MESSAGE_CONTENT, p);
		comma = ",";
	} else if (is_complete) {
		buf_adds(&p->text, "\"content\":null");
		comma = ",";
	}
	if (is_complete)
		buf_adds(&p->text, ",\"refusal\":null");
	if (message_bytes(m, MESSAGE_THOUGHTS)) {
		buf_adds(&p->text, comma);
		put_pieces(m, "reasoning_content", MESSAGE_THOUGHTS, p);
		buf_addc(&p->text, ',');
		put_pieces(m, "reasoning", MESSAGE_THOUGHTS, p);
		comma = ",";
	}
	size_t n_calls = 0;
	for (size_t i = 0; i < m->n_pieces; i++) {
		if (m->pieces[i].kind != MESSAGE_CALL)
			continue;
		if (n_calls++ == 0)
			buf_printf(&p->text, "%s\"tool_calls\":[", comma);
		else
			buf_addc(&p->text, ',');
		put_tool_call(&m->pieces[i], is_complete, p);
	}
	if (n_calls)
		buf_addc(&p->text, ']');
}

/* --- streams ------------------------------------------------------------- */

static int chat_chunk(struct answer *ans, size_t text_len, size_t max_size, struct buf *out)
{
	const struct request *q = ans->request;
	struct answer_parts *parts = &ans->request->reply.parts;
	int most = q->prep.p.logprobs;
	(void)max_size;
	if (!ans->given.role) {
		choices_event_begin(ans, out);
		ADD(out, ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
		         "\"finish_reason\":null}]");
		choices_add_prompt_ids(ans, out);
		choices_event_end(ans, CHOICES_OPENS, out);
	}
	ans->given.role = 1;
	choices_event_begin(ans, out);
	if (ans->message) {
		ADD(out, ",\"delta\":{");
		parts_reset(parts);
		put_message(ans->message, 0, parts);
		parts_write(parts, q->prep.model, out, SIZE_MAX);
		buf_addc(out, '}');
	} else {
		ADD(out, ",\"delta\":{\"content\":\"");
		buf_add_json_part(out, ans->text.data, text_len);
		ADD(out, "\"}");
	}
	if (most < 0 || !ans->rows.n) {
		ADD(out, ",\"logprobs\":null");
	} else {
		ADD(out, ",\"logprobs\":{\"content\":[");
		logprob_rows(q->prep.model, &ans->rows, 0, ans->rows.n, ROW_CHAT, (uint32_t)most, out);
		ADD(out, "],\"refusal\":null}");
	}
	choices_add_finish(ans, ans->finish, out);
	choices_add_ids(ans, 1, out);
	ADD(out, "}]");
	choices_event_end(ans, ans->finish == ANSWER_FINISH_NONE ? CHOICES_GOES_ON : CHOICES_ENDS, out);
	return 1;
}

static int chat_is_empty(const struct answer *ans)
{
	const struct params *p = &ans->request->prep.p;
	int ids = p->return_token_ids && ans->given.ids < ans->n_tokens;
	return ans->message && ans->finish == ANSWER_FINISH_NONE && message_is_empty(ans->message) &&
	       !ans->rows.n && !ids && !p->continuous_usage;
}

/* --- complete answers ---------------------------------------------------- */

static void chat_put_choice(struct answer *ans, struct answer_parts *p)
{
	int most = ans->request->prep.p.logprobs;
	buf_adds(&p->text, "\"message\":{\"role\":\"assistant\",");
	if (ans->message) {
		put_message(ans->message, 1, p);
	} else {
		buf_adds(&p->text, "\"content\":");
		parts_string(p, ans->text.data ? ans->text.data : "", ans->text.len);
		buf_adds(&p->text, ",\"refusal\":null");
	}
	buf_addc(&p->text, '}');
	buf_adds(&p->text, most < 0 ? ",\"logprobs\":null" : ",\"logprobs\":{\"content\":[");
	if (most >= 0) {
		parts_rows(p, &ans->rows, 0, ans->rows.n, ROW_CHAT, (uint32_t)most);
		buf_adds(&p->text, "],\"refusal\":null}");
	}
	choices_add_finish(ans, ans->finish, &p->text);
	choices_put_ids(ans, p);
}

static void chat_put_prompt(struct request *q, struct answer_parts *p)
{
	choices_put_prompt(q, &q->prep.prompts[0], p);
}

static int chat_parts(struct request *q, uint32_t stage, struct answer_parts *p)
{
	return choices_parts(q, stage, p, chat_put_choice, chat_put_prompt);
}

const struct dialect dialect_chat = {.id_prefix = "chatcmpl-",
                                     .splits = SPLITS_IF_ASKED,
                                     .head = chat_head,
                                     .chunk = chat_chunk,
                                     .is_empty = chat_is_empty,
                                     .behind = choices_prompt_ids_behind,
                                     .stream_end = choices_stream_end,
                                     .parts = chat_parts,
                                     .error = api_error_json,
                                     .stream_error = choices_stream_error};
