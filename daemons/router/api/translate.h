/* translate.h - what the dialects that are made into a chat request share: responses.c, messages.c.
 * The translated body is what a client of /v1/chat/completions would have sent, so that all that
 * follows (templates, tools, forms, limits) is the same; errors name the members of the client's
 * own body.
 *
 * Functions that return a pointer return NULL, and those that return a number -1, if there is no
 * memory (request_parse tells the client), or with q->error set. */
#ifndef ROUTER_TRANSLATE_H
#define ROUTER_TRANSLATE_H

#include "prepare.h"

#define TRANSLATE_PATH_MAX 96

/* "input[3].content[1]" */
struct translate_path {
	char text[TRANSLATE_PATH_MAX];
};
struct translate_path translate_path(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* "PATH must be MUST, got VALUE". -1 */
int translate_bad(struct request_prepare *q, const char *path, const char *must, const json_t *got);
/* "PATH is not supported by this server: WHY". -1 */
int translate_refuse(struct request_prepare *q, const char *path, const char *why);
/* The type of v, which is an object; else NULL with the error set. */
const char *translate_type(struct request_prepare *q, const char *path, const json_t *v);

/* Content as chat has it: a list of text parts. */
int translate_add_text(json_t *parts, const json_t *text);
/* v, a string, as content with one part. */
json_t *translate_string(const json_t *v);
/* Appends a message without content; borrowed by the caller. */
json_t *translate_add_message(json_t *messages, const char *role);
/* Appends a message of the system, or adds to the last message if that is one. content: taken */
int translate_add_system(json_t *messages, json_t *content);
/* Appends to the tool calls of this message of the assistant. at: the call's place in the body */
int translate_add_call(struct request_prepare *q, const char *path, json_t *message,
                       const json_t *id, const json_t *name, const json_t *arguments);
/* Adds to its thoughts, which become one string in translate_prepare. */
int translate_add_thoughts(json_t *message, const json_t *text);
/* The answer to a call. content: taken */
int translate_add_result(json_t *messages, const json_t *id, json_t *content);
/* The tool of a chat request. NULL members are left out. */
int translate_add_tool(json_t *tools, const json_t *name, const json_t *description,
                       const json_t *parameters, const json_t *strict);
/* Makes the tools of a chat request: read appends one of the body's to `tools`. */
int translate_tools(struct request_prepare *q, const json_t *o, json_t *chat,
                    int (*read)(struct request_prepare *q, const char *path, const json_t *tool,
                                json_t *tools));
/* tool_choice that names a function */
int translate_choose(json_t *chat, const json_t *name);
/* A form of the answer by a schema. strict: or NULL */
int translate_schema(json_t *chat, const json_t *schema, const json_t *strict);
/* Sets the template's variable for thinking, by both names that templates use. */
int translate_thinking(json_t *chat, int on);

/* A name of chat's in an error, and the dialect's for it. One that begins with a dot may be
 * anywhere in a path. */
struct translate_name {
	const char *chat, *own;
};
/* Prepares the translated body. An error about it becomes one about the client's: its parameter,
 * and the path that its text begins with. chat: taken */
int translate_prepare(struct request_prepare *q, json_t *chat, const struct translate_name *names,
                      int (*prepare)(struct request_prepare *q, const json_t *chat));

#endif
