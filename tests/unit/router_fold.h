/* router_fold.h - answers of /v1/responses and /v1/messages, whole or streamed, as one line:
 * T(THOUGHTS)C(TEXT)NAME(ARGUMENTS)..|END. The order, numbers and repetitions of a stream's events
 * are checked on the way. */
#ifndef TESTS_ROUTER_FOLD_H
#define TESTS_ROUTER_FOLD_H

#include "router_client.h"

#define RESPONSES "/v1/responses"
#define MESSAGES "/v1/messages"

static inline const char *text_of(const json_t *o, const char *name)
{
	const char *s = json_string_value(json_object_get(o, name));
	return s ? s : "";
}

static inline int number_of(const json_t *o, const char *name)
{
	ck_assert_msg(json_is_integer(json_object_get(o, name)), "%s", name);
	return (int)json_integer_value(json_object_get(o, name));
}

/* As JSON without white space, if it is JSON. */
static inline void add_arguments(struct buf *line, const char *name, const char *text)
{
	json_t *o = json_loads(text, 0, NULL);
	char *same = o ? json_dumps(o, JSON_COMPACT) : mem_strdup(text);
	buf_printf(line, "%s(%s)", name, same);
	free(same);
	json_decref(o);
}

struct fold {
	struct buf line, text; /* text: of the item that is open */
	char type[64], name[64], id[80];
	int is_open, n;
	uint64_t events;
	json_t *last; /* responses: the last event's */
};

static inline void fold_begin(struct fold *f, const char *type, const char *name, int index)
{
	ck_assert(!f->is_open);
	ck_assert_int_eq(index, f->n);
	f->is_open = 1;
	buf_reset(&f->text);
	snprintf(f->type, sizeof f->type, "%s", type);
	snprintf(f->name, sizeof f->name, "%s", name);
}

static inline void fold_end(struct fold *f, int index)
{
	const char *text = f->text.data ? f->text.data : "";
	ck_assert(f->is_open);
	ck_assert_int_eq(index, f->n++);
	f->is_open = 0;
	if (*f->name)
		add_arguments(&f->line, f->name, text);
	else
		buf_printf(&f->line, "%s(%s)", f->type, text);
}

/* --- messages --- */

static inline void take_block(struct fold *f, const char *type, const json_t *o)
{
	const json_t *block = json_object_get(o, "content_block"), *d = json_object_get(o, "delta");
	int index = number_of(o, "index");
	if (strcmp(type, "content_block_start") == 0) {
		const char *kind = text_of(block, "type");
		fold_begin(f, strcmp(kind, "thinking") == 0 ? "T" : "C", text_of(block, "name"), index);
		ck_assert(strcmp(kind, "tool_use") != 0 || json_is_object(json_object_get(block, "input")));
		ck_assert_int_eq(*f->type == 'T', json_is_string(json_object_get(block, "signature")));
	} else if (strcmp(type, "content_block_stop") == 0) {
		ck_assert_int_eq(*f->type == 'T', *f->id != 0);
		f->id[0] = 0;
		fold_end(f, index);
	} else {
		const char *kind = text_of(d, "type"), *want = *f->name          ? "input_json_delta"
		                                               : *f->type == 'T' ? "thinking_delta"
		                                                                 : "text_delta";
		ck_assert_str_eq(type, "content_block_delta");
		ck_assert(f->is_open && index == f->n);
		if (strcmp(kind, "signature_delta") == 0) {
			snprintf(f->id, sizeof f->id, "%s", text_of(d, "signature"));
			return;
		}
		ck_assert_str_eq(kind, want);
		buf_adds(&f->text, text_of(d, *f->name          ? "partial_json"
		                              : *f->type == 'T' ? "thinking"
		                                                : "text"));
	}
}

static inline void take_messages_event(struct fold *f, const char *type, const json_t *o)
{
	const json_t *m = json_object_get(o, "message"), *d = json_object_get(o, "delta");
	if (f->events == 1) {
		ck_assert_str_eq(type, "message_start");
		ck_assert(json_is_array(json_object_get(m, "content")));
		ck_assert_int_gt(number_of(json_object_get(m, "usage"), "input_tokens"), 0);
	} else if (strcmp(type, "message_delta") == 0) {
		ck_assert(!f->is_open);
		buf_printf(&f->line, "|%s%s%s", text_of(d, "stop_reason"),
		           json_is_string(json_object_get(d, "stop_sequence")) ? ":" : "",
		           text_of(d, "stop_sequence"));
		ck_assert_int_gt(number_of(json_object_get(o, "usage"), "output_tokens"), 0);
	} else if (strcmp(type, "message_stop") != 0) {
		take_block(f, type, o);
	}
}

static inline void take_message(struct fold *f, const json_t *m)
{
	const json_t *content = json_object_get(m, "content");
	for (size_t i = 0; i < json_array_size(content); i++) {
		const json_t *b = json_array_get(content, i);
		if (strcmp(text_of(b, "type"), "tool_use") == 0) {
			char *input = json_dumps(json_object_get(b, "input"), JSON_COMPACT);
			buf_printf(&f->line, "%s(%s)", text_of(b, "name"), input);
			free(input);
		} else {
			int thinks = strcmp(text_of(b, "type"), "thinking") == 0;
			ck_assert_int_eq(thinks, *text_of(b, "signature") != 0);
			buf_printf(&f->line, thinks ? "T(%s)" : "C(%s)",
			           text_of(b, thinks ? "thinking" : "text"));
		}
	}
	buf_printf(&f->line, "|%s%s%s", text_of(m, "stop_reason"),
	           json_is_string(json_object_get(m, "stop_sequence")) ? ":" : "",
	           text_of(m, "stop_sequence"));
}

/* --- responses --- */

static inline const char *text_of_item(const json_t *item)
{
	const json_t *part = json_array_get(json_object_get(item, "content"), 0);
	return text_of(part ? part : item, part ? "text" : "arguments");
}

static inline void take_response(struct fold *f, const json_t *r)
{
	const json_t *output = json_object_get(r, "output"),
				 *why = json_object_get(r, "incomplete_details");
	for (size_t i = 0; i < json_array_size(output); i++) {
		const json_t *item = json_array_get(output, i);
		const char *type = text_of(item, "type"), *text = text_of_item(item);
		if (strcmp(type, "function_call") == 0)
			add_arguments(&f->line, text_of(item, "name"), text);
		else
			buf_printf(&f->line, *type == 'r' ? "T(%s)" : "C(%s)", text);
		if (strcmp(text_of(item, "status"), "incomplete") == 0)
			buf_adds(&f->line, "..");
	}
	buf_printf(&f->line, "|%s%s%s", text_of(r, "status"), why && json_is_object(why) ? ":" : "",
	           text_of(why, "reason"));
}

static inline void take_item_event(struct fold *f, const char *type, const json_t *o)
{
	const json_t *item = json_object_get(o, "item"), *part = json_object_get(o, "part");
	int index = number_of(o, "output_index");
	size_t n = strlen(type);
	if (strcmp(type, "response.output_item.added") == 0) {
		const char *kind = text_of(item, "type");
		fold_begin(f, *kind == 'r' ? "T" : "C", text_of(item, "name"), index);
		snprintf(f->id, sizeof f->id, "%s", text_of(item, "id"));
		ck_assert_str_eq(text_of(item, "status"), "in_progress");
		return;
	}
	ck_assert(f->is_open && index == f->n);
	ck_assert_str_eq(f->id, text_of(item ? item : o, item ? "id" : "item_id"));
	if (strcmp(type, "response.output_item.done") == 0) {
		ck_assert_str_eq(text_of_item(item), f->text.data ? f->text.data : "");
		fold_end(f, index);
	} else if (strcmp(type, "response.content_part.added") == 0) {
		ck_assert_str_eq(text_of(part, "text"), "");
	} else if (strcmp(type, "response.content_part.done") == 0) {
		ck_assert_str_eq(text_of(part, "text"), f->text.data ? f->text.data : "");
	} else if (strcmp(type + n - 6, ".delta") == 0) {
		ck_assert(strstr(type, *f->name          ? "function_call_arguments"
		                       : *f->type == 'T' ? "reasoning_text"
		                                         : "output_text"));
		buf_adds(&f->text, text_of(o, "delta"));
	} else {
		ck_assert_str_eq(type + n - 5, ".done");
		ck_assert_str_eq(text_of(o, *f->name ? "arguments" : "text"),
		                 f->text.data ? f->text.data : "");
	}
}

static inline void take_responses_event(struct fold *f, const char *type, const json_t *o)
{
	const json_t *r = json_object_get(o, "response");
	ck_assert_int_eq(number_of(o, "sequence_number"), (int)f->events - 1);
	if (f->events <= 2) {
		ck_assert_str_eq(type, f->events == 1 ? "response.created" : "response.in_progress");
		ck_assert_str_eq(text_of(r, "status"), "in_progress");
	} else if (!r) {
		take_item_event(f, type, o);
	} else {
		struct fold whole = {.n = 0};
		ck_assert(!f->is_open || strcmp(type, "response.failed") == 0);
		ck_assert(strstr(type, text_of(r, "status")));
		buf_init(&whole.line, 0);
		take_response(&whole, r);
		/* items as they came are those of the whole, but for what says where it was cut */
		const char *end = strrchr(whole.line.data, '|');
		buf_printf(&f->line, "%s%s", strstr(whole.line.data, "..") ? ".." : "", end);
		if (strcmp(text_of(r, "status"), "failed") != 0)
			ck_assert_str_eq(f->line.data, whole.line.data);
		buf_fini(&whole.line);
	}
}

/* The body of an answer; one in chunks is put together in place. */
static inline char *body_of(char *answer)
{
	char *body = strstr(answer, "\r\n\r\n"), *to;
	ck_assert_msg(body && strncmp(answer, "HTTP/1.1 200", 12) == 0, "%.600s", answer);
	body += 4;
	if (!strstr(answer, "chunked"))
		return body;
	to = body;
	for (char *at = body, *end = body + strlen(body); at < end;) {
		size_t n = strtoul(at, &at, 16);
		ck_assert(at + 2 + n <= end);
		memmove(to, at + 2, n);
		to += n;
		at += 2 + n + 2;
	}
	*to = 0;
	return body;
}

/* As strstr, which under a sanitizer reads all of the text each time. */
static inline const char *find(const char *at, const char *what)
{
	size_t n = strlen(what);
	while (*at && strncmp(at, what, n) != 0)
		at++;
	return *at ? at : NULL;
}

/* The line of an answer, whole or a stream. */
static inline char *line_of(const char *path, char *answer)
{
	struct fold f = {.n = 0};
	int is_stream = strstr(answer, "event: ") != NULL, responses = strcmp(path, RESPONSES) == 0;
	const char *at = body_of(answer);
	buf_init(&f.line, 0);
	buf_init(&f.text, 0);
	while (is_stream && (at = find(at, "event: "))) {
		char type[64];
		json_t *o = json_loads(find(at, "data: ") + 6, JSON_DISABLE_EOF_CHECK, NULL);
		ck_assert_msg(o != NULL, "%.300s", at);
		snprintf(type, sizeof type, "%.*s", (int)strcspn(at + 7, "\n"), at + 7);
		ck_assert_str_eq(type, text_of(o, "type"));
		f.events++;
		if (responses)
			take_responses_event(&f, type, o);
		else
			take_messages_event(&f, type, o);
		json_decref(o);
		at += 7;
	}
	if (!is_stream) {
		json_t *o = json_loads(at, 0, NULL);
		ck_assert_msg(o != NULL, "%.300s", at);
		if (responses)
			take_response(&f, o);
		else
			take_message(&f, o);
		json_decref(o);
	}
	buf_fini(&f.text);
	return f.line.data;
}

#endif
