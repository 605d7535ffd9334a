/* chat.c - `pdctl chat`: a turn of a conversation with the model over the router's HTTP interface;
 * the answer is printed as it streams.
 *
 * With a text as argument: one question, exit status 0 if it was answered. Without: a conversation
 * (talk.c). With --json the output is one object a turn with the text, the request's id and the
 * usage figures. */
#include "chat.h"

#include "term.h"
#include "util/err.h"
#include "util/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINE_BYTES_MAX (1 << 20)
#define CHAT_TEMPERATURE 0.7
#define CHAT_MIN_P 0.05
#define ANSWER_TOKENS 1024 /* of a conversation's answer, unless max_tokens is set */

struct turn {
	struct chat *chat;
	int print, thinking, trial;
	int failed; /* the HTTP status of a refusal; 0: none */
	struct buf line, answer, error, warnings;
	char id[128], finish[32];
	json_t *usage;
};

void chat_note(const struct chat *c, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	char *text = NULL;
	int n = vasprintf(&text, fmt, ap);
	va_end(ap);
	if (n < 0)
		return;
	fflush(stdout);
	fputs(c->dim, stderr);
	term_print(stderr, text, (size_t)n);
	fprintf(stderr, "%s\n", c->bright);
	free(text);
}

/* Ends the line of an answer that broke off, so that what follows has its own. */
static void end_line(struct turn *t)
{
	const struct buf *a = &t->answer;
	if (!t->print)
		return;
	if (t->thinking || (a->len && a->data[a->len - 1] != '\n'))
		putchar('\n');
	t->thinking = 0;
	fflush(stdout);
}

static void take_reasoning(struct turn *t, const json_t *text)
{
	if (!json_string_length(text) || !t->print || !t->chat->thoughts)
		return;
	/* dim for one piece only: Ctrl-C may end the program between two */
	printf("%s%s", t->chat->dim, t->thinking ? "" : "thinking: ");
	t->thinking = 1;
	term_print(stdout, json_string_value(text), json_string_length(text));
	fputs(t->chat->bright, stdout);
	fflush(stdout);
}

static void take_text(struct turn *t, const json_t *text)
{
	const char *s = json_string_value(text);
	size_t n = json_string_length(text);
	if (!n)
		return;
	buf_add(&t->answer, s, n);
	if (!t->print)
		return;
	if (t->thinking)
		fputs("\n\n", stdout);
	t->thinking = 0;
	term_print(stdout, s, n);
	fflush(stdout);
}

static void take_warnings(struct turn *t, const json_t *list)
{
	const json_t *w;
	size_t i;
	json_array_foreach(list, i, w)
		buf_printf(&t->warnings, "%s%s", t->warnings.len ? "; " : "",
		           json_is_string(w) ? json_string_value(w) : "a warning that is no text");
	if (t->warnings.len && !t->trial && !t->chat->warned) {
		t->chat->warned = 1;
		chat_note(t->chat, "(%s)", t->warnings.data);
	}
}

static void take_event(struct turn *t, const json_t *event)
{
	const json_t *choice = json_array_get(json_object_get(event, "choices"), 0),
				 *delta = json_object_get(choice, "delta"),
				 *error = json_object_get(event, "error"),
				 *reasoning = json_object_get(delta, "reasoning_content");
	const char *id = json_string_value(json_object_get(event, "id")),
			   *finish = json_string_value(json_object_get(choice, "finish_reason"));
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
	take_warnings(t, json_object_get(event, "warnings"));
	take_reasoning(t, reasoning ? reasoning : json_object_get(delta, "reasoning"));
	take_text(t, json_object_get(delta, "content"));
}

/* Returns 1 if the line was an event. */
static int take_line(struct turn *t)
{
	const char *s = t->line.data;
	json_t *event = NULL;
	if (t->line.full && !t->error.len)
		buf_printf(&t->error, "a line of the answer has more than %d bytes", LINE_BYTES_MAX);
	else if (s && strncmp(s, "data:", 5) == 0)
		event = json_loads(s + 5, JSON_ALLOW_NUL, NULL); /* NULL for [DONE] */
	if (event)
		take_event(t, event);
	json_decref(event);
	buf_reset(&t->line);
	return event != NULL;
}

static int on_body(void *arg, int status, const char *data, size_t n)
{
	struct turn *t = arg;
	if (status != 200) {
		t->failed = status;
		buf_add(&t->line, data, n);
		return 0;
	}
	for (size_t i = 0; i < n; i++) {
		if (data[i] == '\n' && take_line(t) && t->trial)
			return 1;
		if (data[i] != '\r' && data[i] != '\n')
			buf_addc(&t->line, data[i]);
	}
	return 0;
}

/* The message of an error answer, or the start of the answer if it has none. */
static void take_failure(struct turn *t)
{
	json_t *j = t->line.data ? json_loads(t->line.data, 0, NULL) : NULL;
	const char *says = json_string_value(json_object_get(json_object_get(j, "error"), "message"));
	/* a router's own is about header lines, of which pdctl takes care; a proxy's is not */
	if (says && t->failed == 401 && strstr(says, "the access key is missing or wrong"))
		says = NULL;
	if (t->failed == 401)
		buf_printf(&t->error,
		           "the server wants an access key, and %s: give --api-key KEY, or set "
		           "OPENAI_API_KEY%s%s%s",
		           t->chat->server.key ? "this one is wrong" : "there is none",
		           says ? " (the server says: " : "", says ? says : "", says ? ")" : "");
	else if (j && json_object_get(j, "error"))
		take_event(t, j);
	else
		buf_printf(&t->error, "the server refused: %.300s",
		           t->line.data ? t->line.data : "no text");
	json_decref(j);
}

static void turn_init(struct turn *t)
{
	buf_init(&t->line, LINE_BYTES_MAX);
	buf_init(&t->answer, 0);
	buf_init(&t->error, 0);
	buf_init(&t->warnings, 0);
}

static void turn_fini(struct turn *t)
{
	buf_fini(&t->line);
	buf_fini(&t->answer);
	buf_fini(&t->error);
	buf_fini(&t->warnings);
	json_decref(t->usage);
}

/* As http_post, with an answer that could not be read as -1 and the server's refusal as 0. */
static int post_turn(struct turn *t, const json_t *request, char **ret_why)
{
	char *body = json_dumps(request, JSON_COMPACT);
	struct http_hooks hooks = {.arg = t, .body = on_body, .stop_fd = t->chat->stop_fd};
	int r = http_post(&t->chat->server, "/v1/chat/completions", body, &hooks, ret_why);
	if (t->failed && r == 0)
		take_failure(t);
	free(body);
	return r;
}

/* --- one turn --------------------------------------------------------------- */

static const char *limit_name(const struct chat *c)
{
	return json_object_get(c->set, "max_completion_tokens") ? "max_completion_tokens"
	                                                        : "max_tokens";
}

/* Bounds the answer of a conversation by its limit and by what the context leaves. */
static struct room limit_answer(struct chat *c, json_t *request)
{
	long long limit = ANSWER_TOKENS;
	const json_t *set = json_object_get(c->set, limit_name(c));
	if (!c->capped)
		return (struct room){0};
	if (set && !json_is_integer(set))
		return (struct room){0}; /* the server says what is wrong with it */
	if (set)
		limit = json_integer_value(set);
	struct room r = chat_make_room(c, limit);
	r.bounds = r.context > r.prompt && limit > r.context - r.prompt;
	if (r.bounds)
		limit = r.context - r.prompt;
	json_object_set_new(request, limit_name(c), json_integer(limit));
	return r;
}

/* The API's default, temperature 1 without min_p, makes small models ramble, so the default here is
 * the usual choice of people who chat. */
static json_t *request_of(const struct chat *c)
{
	json_t *request = json_pack("{s:b,s:{s:b},s:f,s:f}", "stream", 1, "stream_options",
	                            "include_usage", 1, "temperature", CHAT_TEMPERATURE, "min_p",
	                            CHAT_MIN_P);
	json_object_update(request, c->set);
	return request;
}

static void note_end(const struct turn *t, const struct room *room)
{
	const struct chat *c = t->chat;
	long long n = json_integer_value(json_object_get(t->usage, "completion_tokens"));
	if (strcmp(t->finish, "length") == 0 && room->bounds)
		chat_note(c, "(cut at %lld tokens: the context of %lld is full)", n, room->context);
	else if (strcmp(t->finish, "length") == 0)
		chat_note(c,
		          c->capped ? "(cut at %lld tokens; /set max_tokens N changes the limit)"
		                    : "(cut at %lld tokens; -s max_tokens=N changes the limit)",
		          n);
	else if (!t->answer.len && !c->o->json)
		chat_note(c, "(an answer without text; finish: %s)", *t->finish ? t->finish : "none");
}

static void keep_answer(struct chat *c, const struct turn *t, const char *end)
{
	struct buf text;
	buf_init(&text, 0);
	buf_add(&text, t->answer.data, t->answer.len);
	buf_adds(&text, end);
	json_array_append_new(c->messages,
	                      json_pack("{s:s,s:o}", "role", "assistant", "content",
	                                json_stringn(text.len ? text.data : "", text.len)));
	buf_fini(&text);
}

static void print_turn(const struct turn *t)
{
	json_t *j = json_pack("{s:s,s:o,s:s,s:O?}", "id", t->id, "text",
	                      json_stringn(t->answer.len ? t->answer.data : "", t->answer.len),
	                      "finish_reason", t->finish, "usage", t->usage);
	print_json(j);
	json_decref(j);
}

/* Sends the conversation and prints the answer. Returns an exit code after it has told the user
 * the reason if that is not 0. *ret_stopped: the user ended the answer. */
static int exchange(struct chat *c, struct turn *t, struct room *ret_room, int *ret_stopped)
{
	json_t *request = request_of(c);
	char *why = NULL;
	*ret_room = limit_answer(c, request);
	json_object_set(request, "messages", c->messages);
	int r = post_turn(t, request, &why), code = EXIT_DONE;
	json_decref(request);
	end_line(t);
	*ret_stopped = r == HTTP_STOPPED;
	if (r < 0)
		code = EXIT_UNREACHABLE;
	else if (t->error.len && r == 0)
		code = EXIT_REFUSED;
	if (code != EXIT_DONE) {
		char *text = why ? mem_printf("pdctl: %s: %s\n", c->server.base, why)
		                 : mem_printf("pdctl: %s\n", t->error.data);
		term_print(stderr, text, strlen(text));
		free(text);
	}
	free(why);
	return code;
}

int chat_turn(struct chat *c, const char *text, int *ret_added)
{
	struct turn t = {.chat = c, .print = !c->o->json};
	struct room room;
	int stopped, ignored, *added = ret_added ? ret_added : &ignored;
	json_t *question = json_pack("{s:s,s:s}", "role", "user", "content", text);
	*added = 0;
	if (!question) {
		fprintf(stderr, "pdctl: the text is not UTF-8\n");
		return EXIT_USAGE;
	}
	turn_init(&t);
	json_array_append(c->messages, question);
	int code = exchange(c, &t, &room, &stopped);
	*added = code == EXIT_DONE && (!stopped || t.answer.len);
	if (*added)
		keep_answer(c, &t, stopped ? "…" : "");
	else
		json_array_remove(c->messages, json_array_size(c->messages) - 1);
	if (stopped)
		chat_note(c, t.answer.len ? "(stopped)" : "(stopped before an answer)");
	if (code == EXIT_DONE && !stopped && c->o->json)
		print_turn(&t);
	if (code == EXIT_DONE && !stopped)
		note_end(&t, &room);
	fflush(stdout);
	json_decref(question);
	turn_fini(&t);
	return code;
}

int chat_try_member(struct chat *c, const char *name, const json_t *value, char **ret_why)
{
	struct turn t = {.chat = c, .trial = 1};
	int code = EXIT_DONE;
	turn_init(&t);
	json_t *request = request_of(c);
	json_object_set_new(request, "messages",
	                    json_pack("[{s:s,s:s}]", "role", "user", "content", "-"));
	json_object_set(request, name, (json_t *)value);
	*ret_why = NULL;
	int r = post_turn(&t, request, ret_why);
	json_decref(request);
	if (r < 0) {
		code = EXIT_UNREACHABLE;
	} else if (t.error.len || (t.warnings.len && strstr(t.warnings.data, name))) {
		code = EXIT_REFUSED;
		*ret_why = mem_strdup(t.error.len ? t.error.data : t.warnings.data);
	} else if (!*t.id) {
		code = EXIT_REFUSED;
		*ret_why = mem_strdup("the server has not answered");
	}
	turn_fini(&t);
	return code;
}

/* --- the command ------------------------------------------------------------ */

/* The router's HTTP address: -u, or from its configuration. */
static int find_base(const struct options *o, char *out, size_t size)
{
	struct target t;
	json_t *j;
	if (o->http.url) {
		size_t n = strlen(o->http.url);
		while (n && o->http.url[n - 1] == '/')
			n--;
		if (n >= 3 && memcmp(o->http.url + n - 3, "/v1", 3) == 0)
			n -= 3; /* OpenAI's clients take this as part of the base address */
		snprintf(out, size, "%.*s", (int)n, o->http.url);
		return EXIT_DONE;
	}
	int r = target_one(o, "router", &t);
	if (r != EXIT_DONE || (r = ask_json(o, &t, "status", NULL, 0, &j)) != EXIT_DONE)
		return r;
	const char *listen = json_string_value(json_object_get(j, "http"));
	const char *colon = listen ? strrchr(listen, ':') : NULL;
	int host = colon && strncmp(listen, "0.0.0.0:", 8) != 0 ? (int)(colon - listen) : 0;
	snprintf(out, size, "http%s://%.*s:%" JSON_INTEGER_FORMAT,
	         json_is_true(json_object_get(j, "tls")) ? "s" : "", host ? host : 9,
	         host ? listen : "127.0.0.1", json_integer_value(json_object_get(j, "port")));
	json_decref(j);
	return EXIT_DONE;
}

static int one_question(struct chat *c, char *const *args, size_t n_args)
{
	struct buf text;
	buf_init(&text, 0);
	for (size_t i = 0; i < n_args; i++)
		buf_printf(&text, "%s%s", i ? " " : "", args[i]);
	int code = chat_turn(c, text.data, NULL);
	buf_fini(&text);
	return code;
}

int chat_command(const struct options *o, char *const *args, size_t n_args)
{
	const char *env = getenv("OPENAI_API_KEY");
	struct chat c = {.o = o, .stop_fd = -1, .dim = "", .bright = ""};
	c.server.key = o->http.key ? o->http.key : env && *env ? env : NULL;
	c.server.cacert = o->http.cacert;
	c.server.insecure = o->http.insecure;
	int code = find_base(o, c.server.base, sizeof c.server.base);
	if (code != EXIT_DONE)
		return code;
	term_init();
	c.messages = json_array();
	c.set = o->members ? json_copy(o->members) : json_object();
	c.thoughts = isatty(STDOUT_FILENO);
	if (term_has_colour(stdout) && term_has_colour(stderr)) {
		c.dim = "\033[2m";
		c.bright = "\033[0m";
	}
	if (o->system)
		json_array_append_new(c.messages,
		                      json_pack("{s:s,s:s}", "role", "system", "content", o->system));
	code = n_args ? one_question(&c, args, n_args) : chat_talk(&c);
	json_decref(c.messages);
	json_decref(c.set);
	return code;
}
