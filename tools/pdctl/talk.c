/* talk.c - the conversation of `pdctl chat`: turns and commands, from a terminal or a pipe.
 *
 * At a terminal Ctrl-C ends the answer, not the conversation, and an error of the server leaves it
 * as it was. From a pipe Ctrl-C ends the program as usual, a server that cannot be reached ends the
 * conversation, and the exit status is that of the worst turn. */
#include "chat.h"
#include "line.h"

#include "term.h"
#include "util/mem.h"
#include "util/near.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define TALK_ENDS (-1) /* of a command: end the conversation */

static int help_command(struct chat *c, const char *text);

static size_t first_turn(const struct chat *c)
{
	const char *role = json_string_value(json_object_get(json_array_get(c->messages, 0), "role"));
	return role && strcmp(role, "system") == 0;
}

static int bye_command(struct chat *c, const char *text)
{
	(void)c;
	(void)text;
	return TALK_ENDS;
}

static int system_command(struct chat *c, const char *text)
{
	size_t has = first_turn(c);
	if (!*text && !has) {
		chat_note(c, "no system message is set");
	} else if (!*text) {
		chat_note(c, "%s",
		          json_string_value(json_object_get(json_array_get(c->messages, 0), "content")));
	} else {
		json_t *m = json_pack("{s:s,s:s}", "role", "system", "content", text);
		if (!m) {
			chat_note(c, "the text is not UTF-8");
			return EXIT_USAGE;
		}
		if (has)
			json_array_remove(c->messages, 0);
		json_array_insert_new(c->messages, 0, m);
	}
	return EXIT_DONE;
}

static int show_set(struct chat *c)
{
	const char *name;
	json_t *v;
	json_object_foreach(c->set, name, v) {
		char *text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
		chat_note(c, "%s %s", name, text ? text : "?");
		free(text);
	}
	if (!json_object_size(c->set))
		chat_note(c,
		          "nothing is set; chat's defaults: temperature 0.7, min_p 0.05, max_tokens 1024");
	return EXIT_DONE;
}

/* A value is JSON, otherwise text; "default" unsets. The server is asked whether it takes it. */
static int set_command(struct chat *c, const char *text)
{
	static const char *const ours[] = {"messages", "stream", "stream_options", "n"};
	char name[64], *why = NULL;
	size_t n = strcspn(text, " \t=");
	const char *value = text + n + strspn(text + n, " \t=");
	if (!*text)
		return show_set(c);
	snprintf(name, sizeof name, "%.*s", (int)n, text);
	if (!*value || n >= sizeof name) {
		chat_note(c, "/set takes a name and a value: /set temperature 0.2");
		return EXIT_USAGE;
	}
	for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
		if (strcmp(name, ours[i]) == 0) {
			chat_note(c, "%s cannot be set in a conversation", name);
			return EXIT_USAGE;
		}
	if (strcmp(value, "default") == 0) {
		json_object_del(c->set, name);
		return EXIT_DONE;
	}
	json_t *v = json_loads(value, JSON_DECODE_ANY, NULL);
	v = v ? v : json_string(value);
	int code = v ? chat_try_member(c, name, v, &why) : EXIT_USAGE;
	if (code == EXIT_DONE)
		json_object_set(c->set, name, v);
	else
		chat_note(c, "not set: %s", why ? why : "the value is not UTF-8");
	json_decref(v);
	free(why);
	return code;
}

static int clear_command(struct chat *c, const char *text)
{
	(void)text;
	size_t first = first_turn(c);
	while (json_array_size(c->messages) > first)
		json_array_remove(c->messages, json_array_size(c->messages) - 1);
	return EXIT_DONE;
}

static int regen_command(struct chat *c, const char *text)
{
	size_t n = json_array_size(c->messages);
	(void)text;
	if (n < first_turn(c) + 2) {
		chat_note(c, "there is no answer yet");
		return EXIT_USAGE;
	}
	json_t *answer = json_incref(json_array_get(c->messages, n - 1)),
		   *question = json_incref(json_array_get(c->messages, n - 2));
	json_array_remove(c->messages, n - 1);
	json_array_remove(c->messages, n - 2);
	int added, code = chat_turn(c, json_string_value(json_object_get(question, "content")), &added);
	if (!added) {
		json_array_append(c->messages, question);
		json_array_append(c->messages, answer);
	}
	json_decref(question);
	json_decref(answer);
	return code;
}

static const struct talk_command {
	const char *name, *args, *help;
	int (*fn)(struct chat *c, const char *text);
} commands[] = {
	{"help", "", "this list", help_command},
	{"system", "[TEXT]", "show or set the system message", system_command},
	{"set", "[NAME VALUE]",
     "show or set what requests have: temperature, top_p, max_tokens, seed, ...; VALUE default "
     "unsets",
     set_command},
	{"regen", "", "another answer instead of the last one", regen_command},
	{"clear", "", "forget the conversation, not the system message", clear_command},
	{"bye", "", "end", bye_command},
};
#define COMMANDS (sizeof commands / sizeof *commands)

static int help_command(struct chat *c, const char *text)
{
	(void)text;
	for (size_t i = 0; i < COMMANDS; i++)
		chat_note(c, "/%-7s %-13s %s", commands[i].name, commands[i].args, commands[i].help);
	chat_note(c, "Several lines: between \"\"\" and \"\"\", or each but the last ends with \\.");
	chat_note(c, "Ctrl-C ends an answer, Ctrl-D the conversation.");
	return EXIT_DONE;
}

/* A slash and a word of letters; other texts with a slash go to the model. */
static int is_command(const char *input)
{
	size_t n = *input == '/' ? strspn(input + 1, "abcdefghijklmnopqrstuvwxyz") : 0;
	return n && (!input[1 + n] || input[1 + n] == ' ' || input[1 + n] == '\n');
}

static int run_command(struct chat *c, const char *input)
{
	char name[32];
	snprintf(name, sizeof name, "%.*s", (int)strcspn(input + 1, " \n"), input + 1);
	struct nearest near = {.word = name};
	for (size_t i = 0; i < COMMANDS; i++) {
		const char *text = input + 1 + strlen(name);
		if (strcmp(commands[i].name, name) == 0)
			return commands[i].fn(c, text + strspn(text, " \n"));
		nearest_try(&near, commands[i].name);
	}
	chat_note(c, "unknown command /%s; %s/%s%s", name, near.best ? "did you mean " : "",
	          near.best ? near.best : "help", near.best ? "?" : " lists them");
	return EXIT_USAGE;
}

static int take_input(struct chat *c, const char *input)
{
	if (is_command(input))
		return run_command(c, input);
	if (strspn(input, " \t\n") == strlen(input))
		return EXIT_DONE;
	return chat_turn(c, input, NULL);
}

/* SIGINT stays blocked: while a line is edited Ctrl-C is a key, and while an input is at work it is
 * read from stop_fd. One that came too late is forgotten. */
static int talk_at_terminal(struct chat *c, struct lines *l)
{
	struct signalfd_siginfo got;
	sigset_t interrupts;
	char *input;
	int code = EXIT_DONE;
	sigemptyset(&interrupts);
	sigaddset(&interrupts, SIGINT);
	sigprocmask(SIG_BLOCK, &interrupts, NULL);
	c->stop_fd = signalfd(-1, &interrupts, SFD_NONBLOCK | SFD_CLOEXEC);
	chat_note(c, "/help lists the commands; Ctrl-C ends an answer, Ctrl-D the conversation");
	while (code != TALK_ENDS && (input = lines_next(l, "(Ctrl-D or /bye ends the conversation)"))) {
		code = take_input(c, input);
		while (read(c->stop_fd, &got, sizeof got) > 0)
			;
		free(input);
	}
	close(c->stop_fd);
	return EXIT_DONE;
}

static int talk_from_pipe(struct chat *c, struct lines *l)
{
	char *input;
	int code = EXIT_DONE, worst = EXIT_DONE;
	while (code != TALK_ENDS && code != EXIT_UNREACHABLE && (input = lines_next(l, ""))) {
		code = take_input(c, input);
		worst = code > worst ? code : worst;
		free(input);
	}
	return worst;
}

int chat_talk(struct chat *c)
{
	struct lines *l = lines_open();
	c->capped = 1;
	int code = lines_edited(l) ? talk_at_terminal(c, l) : talk_from_pipe(c, l);
	lines_close(&l);
	return code;
}
