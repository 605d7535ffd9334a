/* chat_request.h - renders the body of a chat request (/v1/chat/completions, or /tokenize with
 * messages) to the text of its prompt. Reads messages, tools, tool_choice, add_generation_prompt,
 * continue_final_message, documents, chat_template_kwargs and reasoning_effort, named as by OpenAI
 * and vLLM.
 *
 * The router and pdctl both build prompts with these functions only, so an operator sees exactly
 * what a worker computes. The template never comes from a request. Count, depth and size of the
 * input are bounded because templates and parsers traverse all of it. */
#ifndef TEXT_CHAT_REQUEST_H
#define TEXT_CHAT_REQUEST_H

#include "text/body.h"
#include "text/chat_set.h"
#include "util/buf.h"

#include <stdint.h>

#define CHAT_PARTS_MAX 4096 /* of a message's content */
#define CHAT_CALLS_MAX 128  /* of a message */
#define CHAT_TOOLS_MAX 128

enum chat_choice { CHAT_CHOICE_NONE, CHAT_CHOICE_AUTO, CHAT_CHOICE_REQUIRED, CHAT_CHOICE_NAMED };

struct chat_tools {
	/* tools that the template sees, elements of the body's; NULL: none, or tool_choice is "none" */
	json_t *tools;
	enum chat_choice choice; /* NONE if there are no tools */
	const char *named;       /* the function's name, the body's; NULL: not CHAT_CHOICE_NAMED */
	int generic;             /* set by the caller: calls have the generic format */
};

/* Checks tools and tool_choice of the body, which outlives what is read. Returns 0, or -1 with the
 * error set and nothing to free. */
int chat_tools_read(const json_t *body, struct chat_tools *ret, struct body_error *e);
void chat_tools_fini(struct chat_tools *t);

/* Appends the prompt's text to out, which is empty and has a limit (chat_request_text_max). Memory
 * for rendering also comes from out's quota, if it has one. now_s: for the template's strftime_now.
 * Returns 0, or -1 with the error set. */
int chat_request_render(const struct chat_set *chats, const json_t *body,
                        const struct chat_tools *tools, int64_t now_s, struct buf *out,
                        struct body_error *e);
size_t chat_request_text_max(size_t body_bytes);

#endif
