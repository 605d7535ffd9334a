/* reply_messages.c - answers to /v1/messages: blocks of thinking, text and tool_use, one for each
 * piece of the message. In a stream a piece that goes on is a delta of the block that is open.
 *
 * A tool's input is JSON in the answer itself: an incomplete one is {} in a complete answer; in
 * a stream it is sent as the model wrote it. */
#include "daemons/router/request/request.h"

#include <string.h>

static void messages_head(struct request *q)
{
	struct buf *head = &q->reply.head;
	buf_printf(head,
	           "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", q->id);
	buf_add_json(head, q->prep.model->name, strlen(q->prep.model->name));
}

/* Clients run the calls of an answer with "tool_use", so an answer whose last call is incomplete
 * has another reason. One that was aborted has "max_tokens", the closest reason that SDKs know. */
static void add_stop(const struct answer *ans, struct buf *out)
{
	int stops = ans->finish == ANSWER_FINISH_STOP,
		calls = message_count(ans->message) > 0 && !ans->message->is_cut,
		by_string = stops && !calls && ans->stopped >= 0;
	size_t len;
	buf_printf(out, "\"stop_reason\":\"%s\",\"stop_sequence\":",
	           !stops      ? "max_tokens"
	           : calls     ? "tool_use"
	           : by_string ? "stop_sequence"
	                       : "end_turn");
	if (by_string) {
		const char *s = stop_string(ans->request->prep.p.stop, (size_t)ans->stopped, &len);
		buf_add_json(out, s, len);
	} else {
		ADD(out, "null");
	}
}

/* Anthropic counts the prompt's cached tokens separately. */
static void add_messages_usage(const struct request *q, uint32_t generated, struct buf *out)
{
	struct reply_usage u = reply_usage(q);
	buf_printf(out,
	           "\"usage\":{\"input_tokens\":%u,\"cache_creation_input_tokens\":0,"
	           "\"cache_read_input_tokens\":%u,\"output_tokens\":%u}",
	           u.prompt - u.cached, u.cached, generated);
}

/* --- streams ------------------------------------------------------------- */

/* The event and its first member; it ends with }\n\n. */
static void messages_event(const char *type, struct buf *out)
{
	buf_printf(out, "event: %s\ndata: {\"type\":\"%s\"", type, type);
}

static void block_event(const struct request *q, const char *type, struct buf *out)
{
	messages_event(type, out);
	ADD(out, ",\"index\":");
	buf_add_uint(out, q->reply.events.items - 1);
}

/* Clients send thinking back only with a signature, so it has one, which nothing checks. */
static void end_block(struct request *q, struct buf *out)
{
	if (!q->reply.events.in_block)
		return;
	q->reply.events.in_block = 0;
	if (q->reply.events.kind == MESSAGE_THOUGHTS) {
		block_event(q, "content_block_delta", out);
		buf_printf(out, ",\"delta\":{\"type\":\"signature_delta\",\"signature\":\"%s\"}}\n\n",
		           q->id);
	}
	block_event(q, "content_block_stop", out);
	ADD(out, "}\n\n");
}

/* Adds the piece to the open block, or opens one for it. */
static void add_to_block(struct request *q, const struct message_piece *p, struct buf *out)
{
	static const char *const empty[] = {
		[MESSAGE_THOUGHTS] = "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"",
		[MESSAGE_CONTENT] = "{\"type\":\"text\",\"text\":\"\"",
		[MESSAGE_CALL] = "{\"type\":\"tool_use\",\"input\":{}",
	};
	static const char *const deltas[] = {
		[MESSAGE_THOUGHTS] = "\"thinking_delta\",\"thinking\":",
		[MESSAGE_CONTENT] = "\"text_delta\",\"text\":",
		[MESSAGE_CALL] = "\"input_json_delta\",\"partial_json\":",
	};
	if (!q->reply.events.in_block || q->reply.events.kind != p->kind || p->begins) {
		end_block(q, out);
		q->reply.events.in_block = 1;
		q->reply.events.kind = p->kind;
		q->reply.events.items++;
		block_event(q, "content_block_start", out);
		ADD(out, ",\"content_block\":");
		buf_adds(out, empty[p->kind]);
		if (p->kind == MESSAGE_CALL) {
			buf_printf(out, ",\"id\":\"%s\",\"name\":", p->id);
			buf_add_json(out, p->name, strlen(p->name));
		}
		ADD(out, "}}\n\n");
	}
	if (!p->text.len)
		return;
	block_event(q, "content_block_delta", out);
	ADD(out, ",\"delta\":{\"type\":");
	buf_adds(out, deltas[p->kind]);
	buf_add_json(out, p->text.data, p->text.len);
	ADD(out, "}}\n\n");
}

static int messages_chunk(struct answer *ans, size_t text_len, size_t max_size, struct buf *out)
{
	struct request *q = ans->request;
	(void)text_len; /* all text is in the message */
	(void)max_size;
	if (!q->reply.events.begun) {
		messages_event("message_start", out);
		ADD(out, ",\"message\":");
		buf_add(out, q->reply.head.data, q->reply.head.len);
		ADD(out, ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,");
		add_messages_usage(q, 0, out);
		reply_add_warnings(q, out);
		ADD(out, "}}\n\n");
		q->reply.events.begun = 1;
	}
	for (size_t i = 0; i < ans->message->n_pieces; i++)
		add_to_block(q, &ans->message->pieces[i], out);
	if (ans->finish == ANSWER_FINISH_NONE)
		return 1;
	end_block(q, out);
	messages_event("message_delta", out);
	ADD(out, ",\"delta\":{");
	add_stop(ans, out);
	ADD(out, "},");
	add_messages_usage(q, ans->n_tokens, out);
	ADD(out, "}\n\n");
	messages_event("message_stop", out);
	ADD(out, "}\n\n");
	return 1;
}

static int messages_is_empty(const struct answer *ans)
{
	return ans->request->reply.events.begun && ans->finish == ANSWER_FINISH_NONE &&
	       message_is_empty(ans->message);
}

static void messages_stream_error(struct request *q, const struct api_error *e, struct buf *out)
{
	(void)q;
	ADD(out, "event: error\ndata: ");
	api_error_json_messages(e, out);
	ADD(out, "\n\n");
}

/* --- complete answers ---------------------------------------------------- */

static void put_block(const struct request *q, const struct message_piece *c,
                      struct answer_parts *p)
{
	if (c->kind == MESSAGE_CALL) {
		buf_printf(&p->text, "{\"type\":\"tool_use\",\"id\":\"%s\",\"name\":", c->id);
		buf_add_json(&p->text, c->name, strlen(c->name));
		buf_adds(&p->text, ",\"input\":");
		if (c->is_complete && c->text.len)
			parts_bytes(p, c->text.data, c->text.len);
		else
			buf_adds(&p->text, "{}");
		buf_addc(&p->text, '}');
		return;
	}
	int thinks = c->kind == MESSAGE_THOUGHTS;
	buf_adds(&p->text,
	         thinks ? "{\"type\":\"thinking\",\"thinking\":" : "{\"type\":\"text\",\"text\":");
	parts_string(p, c->text.data, c->text.len);
	if (thinks)
		buf_printf(&p->text, ",\"signature\":\"%s\"", q->id);
	buf_addc(&p->text, '}');
}

static int messages_parts(struct request *q, uint32_t stage, struct answer_parts *p)
{
	const struct answer *ans = &q->answers[0];
	size_t at = (size_t)stage * REPLY_PIECES, end = at + REPLY_PIECES, n = ans->message->n_pieces;
	if (stage && at >= n)
		return 0;
	if (stage == 0) {
		buf_add(&p->text, q->reply.head.data, q->reply.head.len);
		buf_adds(&p->text, ",\"content\":[");
	}
	for (; at < end && at < n; at++) {
		buf_adds(&p->text, at ? "," : "");
		put_block(q, &ans->message->pieces[at], p);
	}
	if (end < n)
		return 1;
	buf_adds(&p->text, "],");
	add_stop(ans, &p->text);
	buf_addc(&p->text, ',');
	add_messages_usage(q, ans->n_tokens, &p->text);
	reply_add_warnings(q, &p->text);
	buf_addc(&p->text, '}');
	return 1;
}

const struct dialect dialect_messages = {.id_prefix = "msg_",
                                         .id_header = "Request-Id",
                                         .splits = SPLITS_ALWAYS,
                                         .head = messages_head,
                                         .chunk = messages_chunk,
                                         .is_empty = messages_is_empty,
                                         .parts = messages_parts,
                                         .error = api_error_json_messages,
                                         .stream_error = messages_stream_error};
