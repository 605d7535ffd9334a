/* room.c - what the model's context leaves to an answer of `pdctl chat`.
 *
 * A conversation that no longer fits loses its oldest turns, never the system message. The server
 * counts the tokens (/tokenize); if it cannot, nothing is dropped, and it refuses what is too
 * long. */
#include "chat.h"

#include <stdlib.h>
#include <string.h>

#define COUNT_BYTES_MAX (64 << 20) /* of an answer of /tokenize */

static int on_count(void *arg, int status, const char *data, size_t n)
{
	struct buf *b = arg;
	return status != 200 || buf_add(b, data, n) < 0;
}

/* The tokens of a prompt of these messages. */
static struct room count_tokens(struct chat *c, const json_t *messages)
{
	static const char *const also[] = {"model",
	                                   "tools",
	                                   "chat_template_kwargs",
	                                   "reasoning_effort",
	                                   "add_generation_prompt",
	                                   "continue_final_message"};
	json_t *request = json_pack("{s:O}", "messages", messages), *answer = NULL;
	struct room room = {0};
	struct buf text;
	char *why = NULL;
	for (size_t i = 0; i < sizeof also / sizeof *also; i++)
		json_object_set(request, also[i], json_object_get(c->set, also[i]));
	char *body = json_dumps(request, JSON_COMPACT);
	buf_init(&text, COUNT_BYTES_MAX);
	struct http_hooks hooks = {.arg = &text, .body = on_count, .stop_fd = c->stop_fd};
	if (http_post(&c->server, "/tokenize", body, &hooks, &why) == 0 && text.len)
		answer = json_loads(text.data, JSON_ALLOW_NUL, NULL);
	room.prompt = json_integer_value(json_object_get(answer, "count"));
	room.context = json_integer_value(json_object_get(answer, "max_model_len"));
	json_decref(answer);
	json_decref(request);
	buf_fini(&text);
	free(body);
	free(why);
	return room;
}

static int is_role(const json_t *messages, size_t i, const char *role)
{
	const char *is = json_string_value(json_object_get(json_array_get(messages, i), "role"));
	return is && strcmp(is, role) == 0;
}

/* Removes the oldest turn but not the last message. Returns 0 if there is none. */
static int drop_oldest(json_t *messages)
{
	size_t first = is_role(messages, 0, "system");
	if (json_array_size(messages) < first + 2)
		return 0;
	do
		json_array_remove(messages, first);
	while (json_array_size(messages) > first + 1 && !is_role(messages, first, "user"));
	return 1;
}

struct room chat_make_room(struct chat *c, long long limit)
{
	json_t *kept = json_copy(c->messages);
	struct room r = count_tokens(c, kept), first = r;
	long long want = limit && limit < r.context / 4 ? limit : r.context / 4;
	int dropped = 0;
	while (r.context && r.prompt + want > r.context && drop_oldest(kept)) {
		dropped++;
		r = count_tokens(c, kept);
	}
	int fits = r.context && r.prompt < r.context;
	if (dropped && fits) {
		json_array_clear(c->messages);
		json_array_extend(c->messages, kept);
		chat_note(
			c,
			"(the context of %lld tokens is full: the oldest %d turn%s of the conversation %s "
			"dropped)",
			r.context, dropped, dropped == 1 ? "" : "s", dropped == 1 ? "is" : "are");
	}
	json_decref(kept);
	return fits ? r : first;
}
