/* chat_request.h - from the body of a chat request (/v1/chat/completions, or /tokenize with
 * messages) to the text of its prompt: messages, tools, tool_choice, add_generation_prompt,
 * continue_final_message, documents, chat_template_kwargs, reasoning_effort, in OpenAI's and vLLM's
 * words.
 *
 * The router and pdctl both build prompts with these functions alone, so that what an operator is
 * shown is what a worker computes. A template itself is never taken from a request. What is
 * accepted is bounded in count, depth and size, because templates and parsers walk through it. */
#ifndef TEXT_CHAT_REQUEST_H
#define TEXT_CHAT_REQUEST_H

#include "text/body.h"
#include "text/chat_set.h"
#include "util/buf.h"

#include <stdint.h>

enum chat_choice { CHAT_CHOICE_NONE, CHAT_CHOICE_AUTO, CHAT_CHOICE_REQUIRED, CHAT_CHOICE_NAMED };

struct chat_tools {
	/* what the template sees of them, the body's own; NULL: none, or tool_choice is "none" */
	const json_t *tools;
	enum chat_choice choice; /* NONE where there are no tools */
};

/* What the body says about tools: checked and chosen. 0 or -1 with the error set. */
int chat_tools_read(const json_t *body, struct chat_tools *ret, struct body_error *e);

/* The prompt's text, appended to out, which is empty and has a limit (chat_request_text_max);
 * its quota, if it has one, gives what rendering needs, too. now_s: for the template's
 * strftime_now. 0 or -1 with the error set. */
int chat_request_render(const struct chat_set *chats, const json_t *body,
                        const struct chat_tools *tools, int64_t now_s, struct buf *out,
                        struct body_error *e);
size_t chat_request_text_max(size_t body_bytes);

#endif
