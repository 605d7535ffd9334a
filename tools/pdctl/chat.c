/* chat.c - `pdctl chat`: a conversation with the model over the router's HTTP interface; the answer
 * is printed as it streams.
 *
 * With a text as argument: one question, exit status 0 if it was answered. Without: each line of
 * input is a turn, until end of file. With --json the output is one object with the text, the
 * request's id and the usage figures. */
#include "pdctl.h"

#include "util/err.h"
#include "util/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINE_BYTES_MAX (1 << 20)
#define CHAT_TEMPERATURE 0.7
#define CHAT_MIN_P 0.05

struct turn {
	int print, failed;
	struct buf line, answer, error;
	char id[128], finish[32];
	json_t *usage;
};

static void take_event(struct turn *t, const json_t *event)
{
	const json_t *choice = json_array_get(json_object_get(event, "choices"), 0),
				 *error = json_object_get(event, "error");
	const char *id = json_string_value(json_object_get(event, "id")),
			   *finish = json_string_value(json_object_get(choice, "finish_reason"));
	const char *text = json_string_value(
		json_object_get(json_object_get(choice, "delta"), "content"));
	if (error) {
		const char *message = json_string_value(json_object_get(error, "message"));
		buf_adds(&t->error, message ? message : "an error without a message");
	}
	if (id)
		snprintf(t->id, sizeof t->id, "%s", id);
	if (finish)
		snprintf(t->finish, sizeof t->finish, "%s", finish);
	if (json_is_object(json_object_get(event, "usage"))) {
		json_decref(t->usage);
		t->usage = json_incref(json_object_get(event, "usage"));
	}
	if (text) {
		buf_adds(&t->answer, text);
		if (t->print) {
			fputs(text, stdout);
			fflush(stdout);
		}
	}
}

static void take_line(struct turn *t)
{
	const char *s = t->line.data;
	if (s && strncmp(s, "data: ", 6) == 0 && strcmp(s + 6, "[DONE]") != 0) {
		json_t *event = json_loads(s + 6, 0, NULL);
		if (event)
			take_event(t, event);
		json_decref(event);
	}
	buf_reset(&t->line);
}

static int on_body(void *arg, int status, const char *data, size_t n)
{
	struct turn *t = arg;
	if (status != 200) {
		t->failed = 1;
		buf_add(&t->line, data, n);
		return 0;
	}
	for (size_t i = 0; i < n; i++) {
		if (data[i] == '\n')
			take_line(t);
		else if (data[i] != '\r')
			buf_addc(&t->line, data[i]);
	}
	return 0;
}

/* The message of an error answer, or the start of the answer if it has none. */
static void take_failure(struct turn *t)
{
	json_t *j = t->line.data ? json_loads(t->line.data, 0, NULL) : NULL;
	if (j && json_object_get(j, "error"))
		take_event(t, j);
	else
		buf_printf(&t->error, "the router refused: %.300s",
		           t->line.data ? t->line.data : "no text");
	json_decref(j);
}

static void turn_fini(struct turn *t)
{
	buf_fini(&t->line);
	buf_fini(&t->answer);
	buf_fini(&t->error);
	json_decref(t->usage);
}

/* The key for a router with api_keys_file; NULL: none. */
static const char *key_of_user(void)
{
	const char *key = getenv("OPENAI_API_KEY");
	return key && *key ? key : NULL;
}

/* Sends the conversation and adds the answer to it. Returns an exit code. The API's default,
 * temperature 1 without min_p, makes small models ramble, so the default here is the usual choice
 * of people who chat. */
static int ask(const struct options *o, const char *base, json_t *messages, struct turn *t)
{
	json_t *request = json_pack("{s:O,s:b,s:{s:b},s:f,s:f}", "messages", messages, "stream", 1,
	                            "stream_options", "include_usage", 1, "temperature",
	                            CHAT_TEMPERATURE, "min_p", CHAT_MIN_P);
	if (o->members)
		json_object_update(request, o->members);
	char *body = json_dumps(request, JSON_COMPACT), *why = NULL;
	struct http_hooks hooks = {.arg = t, .body = on_body};
	buf_init(&t->line, LINE_BYTES_MAX);
	buf_init(&t->answer, 0);
	buf_init(&t->error, 0);
	int r = http_post(base, "/v1/chat/completions", key_of_user(), body, &hooks, &why);
	if (t->failed)
		take_failure(t);
	json_decref(request);
	free(body);
	if (r < 0) {
		fprintf(stderr, "%spdctl: %s: %s\n", t->answer.len && t->print ? "\n" : "", base, why);
		free(why);
		return EXIT_UNREACHABLE;
	}
	if (t->error.len) {
		fprintf(stderr, "%spdctl: %s\n", t->answer.len && t->print ? "\n" : "", t->error.data);
		return EXIT_REFUSED;
	}
	json_array_append_new(messages, json_pack("{s:s,s:s}", "role", "assistant", "content",
	                                          t->answer.data ? t->answer.data : ""));
	return EXIT_DONE;
}

static int one_turn(const struct options *o, const char *base, json_t *messages, const char *text)
{
	struct turn t = {.print = !o->json};
	json_array_append_new(messages, json_pack("{s:s,s:s}", "role", "user", "content", text));
	int code = ask(o, base, messages, &t);
	if (code == EXIT_DONE && o->json) {
		json_t *j = json_pack("{s:s,s:s,s:s,s:O?}", "id", t.id, "text",
		                      t.answer.data ? t.answer.data : "", "finish_reason", t.finish,
		                      "usage", t.usage);
		print_json(j);
		json_decref(j);
	} else if (code == EXIT_DONE) {
		printf("\n");
		fprintf(stderr, "[%s, finish: %s]\n", t.id, t.finish);
	} else {
		json_array_remove(messages, json_array_size(messages) - 1);
	}
	fflush(stdout);
	turn_fini(&t);
	return code;
}

static int conversation(const struct options *o, const char *base, json_t *messages)
{
	char *line = NULL;
	size_t size = 0;
	int code = EXIT_DONE, person = isatty(STDIN_FILENO);
	ssize_t n;
	while (code != EXIT_UNREACHABLE) {
		if (person)
			fputs("> ", stderr);
		if ((n = getline(&line, &size, stdin)) < 0)
			break;
		while (n && (line[n - 1] == '\n' || line[n - 1] == '\r'))
			line[--n] = 0;
		if (n)
			code = one_turn(o, base, messages, line);
	}
	free(line);
	return code;
}

/* The router's HTTP address: -u, or from its configuration. */
static int find_base(const struct options *o, char *out, size_t size)
{
	struct target t;
	json_t *j;
	if (o->http) {
		snprintf(out, size, "%s", o->http);
		return EXIT_DONE;
	}
	int r = target_one(o, "router", &t);
	if (r != EXIT_DONE || (r = ask_json(o, &t, "status", NULL, 0, &j)) != EXIT_DONE)
		return r;
	const char *listen = json_string_value(json_object_get(j, "http"));
	const char *colon = listen ? strrchr(listen, ':') : NULL;
	int host = colon && strncmp(listen, "0.0.0.0:", 8) != 0 ? (int)(colon - listen) : 0;
	snprintf(out, size, "http://%.*s:%" JSON_INTEGER_FORMAT, host ? host : 9,
	         host ? listen : "127.0.0.1", json_integer_value(json_object_get(j, "port")));
	int tls = json_is_true(json_object_get(j, "tls"));
	json_decref(j);
	if (!tls)
		return EXIT_DONE;
	fprintf(stderr, "pdctl: the router's HTTP interface uses TLS (http_tls_cert), and chat speaks "
	                "plain HTTP only: use curl or a client of OpenAI's API\n");
	return EXIT_REFUSED;
}

int chat_command(const struct options *o, char *const *args, size_t n_args)
{
	char base[300];
	int code = find_base(o, base, sizeof base);
	if (code != EXIT_DONE)
		return code;
	json_t *messages = json_array();
	if (o->system)
		json_array_append_new(messages,
		                      json_pack("{s:s,s:s}", "role", "system", "content", o->system));
	if (n_args) {
		struct buf text;
		buf_init(&text, 0);
		for (size_t i = 0; i < n_args; i++)
			buf_printf(&text, "%s%s", i ? " " : "", args[i]);
		code = one_turn(o, base, messages, text.data);
		buf_fini(&text);
	} else {
		code = conversation(o, base, messages);
	}
	json_decref(messages);
	return code;
}
