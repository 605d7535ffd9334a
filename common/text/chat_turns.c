/* chat_turns.c - see chat_turns.h. The unchanged list is what the reference renders, so it is tried
 * first; only a conversation that the template refuses is reworded. */
#include "text/chat_turns.h"

#include <string.h>

static const char *const reasoning_names[] = {"reasoning_content", "thinking", "reasoning"};

/* Index of the call, among n, that tool message m answers: found by id, else `place`. */
static size_t call_of_result(const json_t *calls, const json_t *m, size_t place)
{
	const char *id = json_string_value(json_object_get(m, "tool_call_id")), *of;
	size_t n = json_array_size(calls);
	for (size_t i = 0; id && *id && i < n; i++)
		if ((of = json_string_value(json_object_get(json_array_get(calls, i), "id"))) &&
		    strcmp(id, of) == 0)
			return i;
	return place < n ? place : n - 1;
}

static int is_result(const json_t *m)
{
	const json_t *role = json_object_get(m, "role");
	return json_is_string(role) && strcmp(json_string_value(role), "tool") == 0;
}

/* A message with only call k. The first also keeps the content and the reasoning. NULL: out of
 * memory. */
static json_t *one_call(const json_t *m, const json_t *calls, size_t k)
{
	json_t *own = json_copy((json_t *)m);
	for (int i = 0; k > 0 && i < 3; i++)
		json_object_del(own, reasoning_names[i]);
	if (k > 0)
		json_object_del(own, "content");
	if (json_object_set_new(own, "tool_calls", json_pack("[O]", json_array_get(calls, k))) == 0)
		return own;
	json_decref(own);
	return NULL;
}

/* Splits message `at` of the list, whose tool results are at + 1 to end - 1: appends messages to
 * out, and their calls as sent to out_sent. Returns non-zero if out of memory. */
static int split(const json_t *list, size_t at, size_t end, const json_t *sent, json_t *out,
                 json_t *out_sent)
{
	const json_t *m = json_array_get(list, at), *calls = json_object_get(m, "tool_calls");
	json_t *results = json_array(); /* an array per call */
	int bad = !results;
	for (size_t k = 0; k < json_array_size(calls); k++)
		bad |= json_array_append_new(results, json_array());
	for (size_t i = at + 1; i < end; i++) {
		json_t *result = json_array_get(list, i);
		bad |= json_array_append(json_array_get(results, call_of_result(calls, result, i - at - 1)),
		                         result);
	}
	for (size_t k = 0; k < json_array_size(calls); k++) {
		json_t *own = json_array_get(results, k);
		bad |= json_array_append_new(out, one_call(m, calls, k));
		bad |= json_array_append_new(out_sent, json_pack("[O]", json_array_get(sent, k)));
		bad |= json_array_extend(out, own);
		for (size_t i = 0; i < json_array_size(own); i++)
			bad |= json_array_append_new(out_sent, json_null());
	}
	json_decref(results);
	return bad;
}

int chat_turns_split_calls(json_t **list, json_t **sent_calls, int keeps_last)
{
	size_t n = json_array_size(*list);
	json_t *out = json_array(), *out_sent = json_array();
	int bad = 0;
	for (size_t i = 0, end; i < n; i = end) {
		json_t *m = json_array_get(*list, i), *sent = json_array_get(*sent_calls, i);
		end = i + 1;
		if ((keeps_last && end == n) || json_array_size(json_object_get(m, "tool_calls")) < 2) {
			bad |= json_array_append(out, m);
			bad |= json_array_append(out_sent, sent);
			continue;
		}
		while (is_result(json_array_get(*list, end)))
			end++;
		bad |= split(*list, i, end, sent, out, out_sent);
	}
	json_decref(*list);
	json_decref(*sent_calls);
	*list = out;
	*sent_calls = out_sent;
	return bad ? ERR_NOMEM : 0;
}

/* A copy of the list where, in each assistant message that has reasoning, content and calls, the
 * content is appended to the reasoning. NULL: there is no such message. */
static json_t *content_to_reasoning(const json_t *list)
{
	json_t *out = json_copy((json_t *)list);
	int any = 0;
	for (size_t i = 0; i < json_array_size(list); i++) {
		json_t *m = json_array_get(list, i), *content = json_object_get(m, "content");
		json_t *thoughts = NULL;
		size_t calls = json_array_size(json_object_get(m, "tool_calls"));
		for (int k = 0; k < 3 && !json_string_length(thoughts); k++)
			thoughts = json_object_get(m, reasoning_names[k]);
		if (!calls || !json_string_length(content) || !json_string_length(thoughts))
			continue;
		json_t *own = json_copy(m);
		for (int k = 0; k < 3; k++)
			json_object_del(own, reasoning_names[k]);
		json_object_del(own, "content");
		json_t *both = json_pack("s%++%", json_string_value(thoughts), json_string_length(thoughts),
		                         "\n\n", json_string_value(content), json_string_length(content));
		json_object_set_new(own, "reasoning_content", both);
		any |= json_array_set_new(out, i, own) == 0;
	}
	if (any)
		return out;
	json_decref(out);
	return NULL;
}

/* A copy of the tools where a missing description is "". NULL: all have one. */
static json_t *with_descriptions(const json_t *tools)
{
	json_t *out = json_copy((json_t *)tools);
	int any = 0;
	for (size_t i = 0; i < json_array_size(tools); i++) {
		const json_t *tool = json_array_get(tools, i), *f = json_object_get(tool, "function");
		if (json_is_string(json_object_get(f, "description")))
			continue;
		json_t *own = json_copy((json_t *)tool), *own_f = json_copy((json_t *)f);
		json_object_set_new(own_f, "description", json_string(""));
		json_object_set_new(own, "function", own_f);
		any |= json_array_set_new(out, i, own) == 0;
	}
	if (any)
		return out;
	json_decref(out);
	return NULL;
}

/* Sets content to "" in assistant messages that have calls but no content. Returns 0 if there are
 * none. */
static int add_empty_content(json_t *list, const json_t *sent_calls)
{
	int any = 0;
	for (size_t i = 0; i < json_array_size(list); i++) {
		json_t *own = json_array_get(list, i), *calls = json_array_get(sent_calls, i);
		if (json_array_size(calls) && !json_is_string(json_object_get(own, "content")))
			any |= json_object_set_new(own, "content", json_string("")) == 0;
	}
	return any;
}

/* Restores the calls as the client sent them, with arguments as a string. Returns 0 if there are
 * none. */
static int restore_calls(json_t *list, const json_t *sent_calls)
{
	int any = 0;
	for (size_t i = 0; i < json_array_size(list); i++) {
		json_t *calls = json_array_get(sent_calls, i);
		if (json_array_size(calls))
			any |= json_object_set(json_array_get(list, i), "tool_calls", calls) == 0;
	}
	return any;
}

static int render_again(const struct chat_template *t, const struct chat_render *in,
                        struct buf *out)
{
	struct err later = {0};
	buf_reset(out);
	return chat_template_render(t, in, out, &later);
}

/* Tries rewordings from the smallest to the largest change. Added descriptions stay for later
 * tries. */
int chat_turns_render(const struct chat_template *t, struct chat_render *in, json_t *list,
                      const json_t *sent_calls, struct buf *out, struct err *err)
{
	const json_t *sent = in->tools;
	json_t *tools = NULL, *messages = NULL;
	in->messages = list;
	int r = chat_template_render(t, in, out, err);
	if (r == ERR_INVALID && (tools = with_descriptions(sent))) {
		in->tools = tools;
		r = render_again(t, in, out);
	}
	if (r == ERR_INVALID && (messages = content_to_reasoning(list))) {
		in->messages = messages;
		r = render_again(t, in, out);
		in->messages = list;
	}
	if (r == ERR_INVALID && add_empty_content(list, sent_calls))
		r = render_again(t, in, out);
	if (r == ERR_INVALID && restore_calls(list, sent_calls))
		r = render_again(t, in, out);
	in->tools = sent;
	json_decref(messages);
	json_decref(tools);
	return r;
}
