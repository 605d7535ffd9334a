/* reply_responses.c - answers to /v1/responses: items of reasoning, of a message and of function
 * calls, one for each piece of the message (chat_message.h).
 *
 * A stream is a row of events that build on each other: the response is created; each item is
 * added, its text comes in deltas and is then repeated three times; the last event repeats the
 * response. So the message is kept to its end, within the request's quota. An event is made
 * as a list of parts that refer to it; what is long is written in steps (answer.behind). A list
 * refers only to memory that does not move: to items that have ended, while the text of a delta is
 * copied. */
#include "daemons/router/request/request.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define DELTA_BYTES 4096u

/* Events of an item, in this order. */
enum step { ITEM_ADDED, PART_ADDED, DELTAS, TEXT_DONE, PART_DONE, ITEM_DONE };

static const struct {
	const char *id_prefix, *event, *text; /* event: the middle of the name of its text's events */
	const char *part;                     /* type of the item's one part; NULL: it has none */
} kinds[] = {
	[MESSAGE_THOUGHTS] = {"rs_", "reasoning_text", "text", "reasoning_text"},
	[MESSAGE_CONTENT] = {"msg_", "output_text", "text", "output_text"},
	[MESSAGE_CALL] = {"fc_", "function_call_arguments", "arguments", NULL},
};

static void responses_head(struct request *q)
{
	struct buf *head = &q->reply.head;
	buf_printf(head, "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%lld,\"model\":", q->id,
	           (long long)q->prep.created_s);
	buf_add_json(head, q->prep.model->name, strlen(q->prep.model->name));
	buf_adds(head,
	         ",\"background\":false,\"previous_response_id\":null,\"service_tier\":\"default\","
	         "\"store\":false,\"truncation\":\"disabled\"");
}

/* --- items --------------------------------------------------------------- */

static size_t count_items(const struct answer *ans)
{
	size_t n = ans->message->n_pieces;
	/* an empty answer has one item, an empty message */
	return n || ans->finish == ANSWER_FINISH_NONE ? n : 1;
}

static const struct message_piece *item_at(const struct answer *ans, size_t i)
{
	static const struct message_piece empty = {.kind = MESSAGE_CONTENT,
	                                           .text = {.data = (char *)""}};
	return i < ans->message->n_pieces ? &ans->message->pieces[i] : &empty;
}

/* Puts the item's id: the request's id without its prefix, and the item's number. */
static void put_item_id(const struct answer *ans, size_t i, struct answer_parts *p)
{
	const struct request *q = ans->request;
	buf_printf(&p->text, "\"%s%s_%zu\"", kinds[item_at(ans, i)->kind].id_prefix,
	           q->id + strlen(q->dialect->id_prefix), i);
}

static void put_rows(const struct answer *ans, uint32_t from, uint32_t to, struct answer_parts *p)
{
	int most = ans->request->prep.p.logprobs;
	buf_adds(&p->text, ",\"logprobs\":[");
	if (most >= 0 && from < to)
		parts_rows(p, &ans->rows, from, to, ROW_CHAT, (uint32_t)most);
	buf_addc(&p->text, ']');
}

/* has_text: 0 for an item that has just been added */
static void put_part(const struct answer *ans, const struct message_piece *c, int has_text,
                     struct answer_parts *p)
{
	buf_printf(&p->text, "{\"type\":\"%s\",\"text\":", kinds[c->kind].part);
	parts_string(p, c->text.data, has_text ? c->text.len : 0);
	if (c->kind == MESSAGE_CONTENT) {
		buf_adds(&p->text, ",\"annotations\":[]");
		put_rows(ans, c->row_from, has_text ? c->row_to : c->row_from, p);
	}
	buf_addc(&p->text, '}');
}

static void put_item(const struct answer *ans, size_t i, int is_done, struct answer_parts *p)
{
	const struct message_piece *c = item_at(ans, i);
	int cut = (ans->finish != ANSWER_FINISH_STOP && i + 1 >= ans->message->n_pieces) ||
	          (c->kind == MESSAGE_CALL && !c->is_complete);
	buf_adds(&p->text, "{\"id\":");
	put_item_id(ans, i, p);
	buf_printf(&p->text, ",\"status\":\"%s\"",
	           !is_done ? "in_progress"
	           : cut    ? "incomplete"
	                    : "completed");
	if (c->kind == MESSAGE_CALL) {
		buf_printf(&p->text, ",\"type\":\"function_call\",\"call_id\":\"%s\",\"name\":", c->id);
		buf_add_json(&p->text, c->name, strlen(c->name));
		buf_adds(&p->text, ",\"arguments\":");
		parts_string(p, c->text.data ? c->text.data : "", is_done ? c->text.len : 0);
	} else {
		buf_adds(&p->text, c->kind == MESSAGE_THOUGHTS
		                       ? ",\"type\":\"reasoning\",\"summary\":[],\"encrypted_content\":null"
		                       : ",\"type\":\"message\",\"role\":\"assistant\"");
		buf_adds(&p->text, ",\"content\":[");
		if (is_done)
			put_part(ans, c, 1, p);
		buf_addc(&p->text, ']');
	}
	buf_addc(&p->text, '}');
}

/* --- the response -------------------------------------------------------- */

/* Puts the members up to `output`, which begin and end of a response have in common. */
static void put_state(const struct request *q, const char *status, const char *error,
                      const char *incomplete, struct answer_parts *p)
{
	buf_add(&p->text, q->reply.head.data, q->reply.head.len);
	buf_printf(&p->text, ",\"status\":\"%s\",\"error\":", status);
	buf_adds(&p->text, error);
	buf_printf(&p->text, ",\"incomplete_details\":%s", incomplete);
	parts_bytes(p, q->prep.echo.data, q->prep.echo.len);
	buf_adds(&p->text, ",\"output\":[");
}

/* Adds the warnings once, in the first event of a stream. */
static void add_warnings(struct request *q, struct answer_parts *p)
{
	if (!q->reply.warned)
		reply_add_warnings(q, &p->text);
	q->reply.warned = 1;
}

static int has_list(const struct answer *ans, uint32_t i)
{
	return (size_t)i * REPLY_PIECES < count_items(ans);
}

/* List number i of the complete response. */
static void put_response(const struct answer *ans, uint32_t i, struct answer_parts *p)
{
	struct request *q = ans->request;
	int complete = ans->finish == ANSWER_FINISH_STOP, full = ans->finish == ANSWER_FINISH_LENGTH;
	size_t at = (size_t)i * REPLY_PIECES, end = at + REPLY_PIECES;
	if (i == 0)
		put_state(q, complete ? "completed" : "incomplete", "null",
		          full ? "{\"reason\":\"max_output_tokens\"}" : "null", p);
	for (; at < end && at < count_items(ans); at++) {
		buf_adds(&p->text, at ? "," : "");
		put_item(ans, at, 1, p);
	}
	if (has_list(ans, i + 1))
		return;
	buf_addc(&p->text, ']');
	if (complete)
		buf_printf(&p->text, ",\"completed_at\":%lld", (long long)time(NULL));
	struct reply_usage u = reply_usage(q);
	buf_printf(&p->text,
	           ",\"usage\":{\"input_tokens\":%u,\"input_tokens_details\":{\"cached_tokens\":%u,"
	           "\"cache_write_tokens\":0},\"output_tokens\":%u,\"output_tokens_details\":{"
	           "\"reasoning_tokens\":%u},\"total_tokens\":%u}",
	           u.prompt, u.cached, u.generated, ans->message->thought_tokens,
	           u.prompt + u.generated);
	add_warnings(q, p);
	buf_addc(&p->text, '}');
}

static int responses_parts(struct request *q, uint32_t stage, struct answer_parts *p)
{
	if (!has_list(&q->answers[0], stage))
		return 0;
	put_response(&q->answers[0], stage, p);
	return 1;
}

/* --- streams ------------------------------------------------------------- */

/* The event and its first members; it ends with }\n\n. */
static void responses_event(struct request *q, const char *type, struct answer_parts *p)
{
	buf_printf(&p->text,
	           "event: response.%s\ndata: {\"type\":\"response.%s\",\"sequence_number\":%llu", type,
	           type, (unsigned long long)q->reply.events.number++);
}

/* An event of the item that is open. is_of_part: of its one part */
static void item_event(const struct answer *ans, const char *type, int is_of_part,
                       struct answer_parts *p)
{
	struct request *q = ans->request;
	uint32_t i = q->reply.events.items;
	responses_event(q, type, p);
	buf_printf(&p->text, ",\"output_index\":%u,\"item_id\":", i);
	put_item_id(ans, i, p);
	buf_adds(&p->text, is_of_part ? ",\"content_index\":0" : "");
}

static void put_item_event(const struct answer *ans, int is_done, struct answer_parts *p)
{
	struct request *q = ans->request;
	responses_event(q, is_done ? "output_item.done" : "output_item.added", p);
	buf_printf(&p->text, ",\"output_index\":%u,\"item\":", q->reply.events.items);
	put_item(ans, q->reply.events.items, is_done, p);
}

static void put_part_event(const struct answer *ans, const struct message_piece *c, int is_done,
                           struct answer_parts *p)
{
	item_event(ans, is_done ? "content_part.done" : "content_part.added", 1, p);
	buf_adds(&p->text, ",\"part\":");
	put_part(ans, c, is_done, p);
}

static void put_delta(const struct answer *ans, const struct message_piece *c,
                      struct answer_parts *p)
{
	struct request *q = ans->request;
	size_t at = q->reply.events.bytes,
		   n = buf_json_piece(c->text.data + at, c->text.len - at, DELTA_BYTES);
	uint32_t from = q->reply.events.rows > c->row_from ? q->reply.events.rows : c->row_from;
	char type[48];
	snprintf(type, sizeof type, "%s.delta", kinds[c->kind].event);
	item_event(ans, type, c->kind != MESSAGE_CALL, p);
	buf_adds(&p->text, ",\"delta\":");
	buf_add_json(&p->text, c->text.data + at, n);
	if (c->kind == MESSAGE_CONTENT) {
		put_rows(ans, from, c->row_to, p);
		q->reply.events.rows = c->row_to;
	}
	q->reply.events.bytes += n;
}

/* The next event of the item that is open. 0: there is none now. */
static int next_of_item(const struct answer *ans, struct answer_parts *p)
{
	struct request *q = ans->request;
	const struct message_piece *c = item_at(ans, q->reply.events.items);
	char type[48];
	int has_part = kinds[c->kind].part != NULL;
	int has_ended = ans->finish != ANSWER_FINISH_NONE ||
	                q->reply.events.items + 1 < ans->message->n_pieces;
	if (q->reply.events.step == DELTAS && q->reply.events.bytes == c->text.len) {
		if (!has_ended)
			return 0;
		q->reply.events.step = TEXT_DONE;
	}
	switch ((enum step)q->reply.events.step) {
	case ITEM_ADDED:
		put_item_event(ans, 0, p);
		q->reply.events.bytes = 0;
		q->reply.events.step = has_part ? PART_ADDED : DELTAS;
		break;
	case PART_ADDED:
		put_part_event(ans, c, 0, p);
		q->reply.events.step = DELTAS;
		break;
	case DELTAS: put_delta(ans, c, p); break;
	case TEXT_DONE:
		snprintf(type, sizeof type, "%s.done", kinds[c->kind].event);
		item_event(ans, type, c->kind != MESSAGE_CALL, p);
		buf_printf(&p->text, ",\"%s\":", kinds[c->kind].text);
		parts_string(p, c->text.data ? c->text.data : "", c->text.len);
		if (c->kind == MESSAGE_CONTENT)
			put_rows(ans, c->row_from, c->row_to, p);
		if (c->kind == MESSAGE_CALL) {
			buf_adds(&p->text, ",\"name\":");
			buf_add_json(&p->text, c->name, strlen(c->name));
		}
		q->reply.events.step = has_part ? PART_DONE : ITEM_DONE;
		break;
	case PART_DONE:
		put_part_event(ans, c, 1, p);
		q->reply.events.step = ITEM_DONE;
		break;
	case ITEM_DONE:
		put_item_event(ans, 1, p);
		q->reply.events.items++;
		q->reply.events.step = ITEM_ADDED;
		break;
	}
	return 1;
}

/* Makes the next event, or the next list of the last one. 0: there is none now. */
static int next_event(const struct answer *ans, struct answer_parts *p)
{
	struct request *q = ans->request;
	if (q->reply.events.begun < 2) {
		responses_event(q, q->reply.events.begun ? "in_progress" : "created", p);
		q->reply.events.begun++;
		buf_adds(&p->text, ",\"response\":");
		put_state(q, "in_progress", "null", "null", p);
		buf_adds(&p->text, "],\"usage\":null");
		add_warnings(q, p);
		buf_addc(&p->text, '}');
	} else if (q->reply.events.items < count_items(ans)) {
		if (!next_of_item(ans, p))
			return 0;
	} else if (ans->finish != ANSWER_FINISH_NONE && has_list(ans, q->reply.events.ended)) {
		/* the last event, in several lists if there are many items */
		if (q->reply.events.ended == 0) {
			responses_event(q, ans->finish == ANSWER_FINISH_STOP ? "completed" : "incomplete", p);
			buf_adds(&p->text, ",\"response\":");
		}
		put_response(ans, q->reply.events.ended++, p);
		if (has_list(ans, q->reply.events.ended))
			return 1;
	} else {
		return 0;
	}
	buf_adds(&p->text, "}\n\n");
	return 1;
}

static int responses_chunk(struct answer *ans, size_t text_len, size_t max_size, struct buf *out)
{
	struct answer_parts *p = &ans->request->reply.parts;
	(void)text_len; /* all text is in the message */
	do {
		if (!parts_write(p, ans->request->prep.model, out, max_size))
			return 0;
		parts_reset(p);
	} while (next_event(ans, p));
	return 1;
}

static int responses_is_empty(const struct answer *ans)
{
	const struct request *q = ans->request;
	size_t i = q->reply.events.items, n = count_items(ans);
	int is_told = i == n || (i + 1 == n && q->reply.events.step == DELTAS &&
	                         q->reply.events.bytes == item_at(ans, i)->text.len);
	return q->reply.events.begun && ans->finish == ANSWER_FINISH_NONE && is_told;
}

static size_t responses_behind(const struct answer *ans)
{
	const struct answer_parts *p = &ans->request->reply.parts;
	return p->at < p->n ? SIZE_MAX : 0;
}

static void responses_stream_error(struct request *q, const struct api_error *e, struct buf *out)
{
	struct answer_parts p;
	struct buf error;
	parts_init(&p);
	buf_init(&error, 0);
	buf_printf(&error, "{\"code\":\"%s\",\"message\":",
	           e->status == 429 ? "rate_limit_exceeded" : "server_error");
	buf_add_json(&error, e->text, strlen(e->text));
	buf_addc(&error, '}');
	if (parts_are_unsent(&q->reply.parts))
		q->reply.events.number--; /* that event is never sent */
	responses_event(q, "failed", &p);
	buf_adds(&p.text, ",\"response\":");
	put_state(q, "failed", error.data, "null", &p);
	buf_adds(&p.text, "],\"usage\":null}}\n\n");
	parts_write(&p, q->prep.model, out, SIZE_MAX);
	buf_fini(&error);
	parts_fini(&p);
}

const struct dialect dialect_responses = {.id_prefix = "resp_",
                                          .splits = SPLITS_ALWAYS,
                                          .keeps = 1,
                                          .head = responses_head,
                                          .chunk = responses_chunk,
                                          .is_empty = responses_is_empty,
                                          .behind = responses_behind,
                                          .parts = responses_parts,
                                          .error = api_error_json,
                                          .stream_error = responses_stream_error};
