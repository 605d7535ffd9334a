/* chat_turns.h - adapts a conversation to its chat template. Templates differ in what they accept
 * in an assistant message with tool calls: how many calls, whether content and reasoning too, and
 * arguments as an object or as a string. */
#ifndef TEXT_CHAT_TURNS_H
#define TEXT_CHAT_TURNS_H

#include "text/chat.h"

/* For templates that accept one call per message: splits each message of `list` that has several
 * calls into one message per call, each followed by its own tool results. Content and reasoning
 * stay with the first. sent_calls: for each message, its calls as the client sent them, or null.
 *
 * Both lists are replaced, also on error. Returns 0 or ERR_NOMEM. keeps_last: do not split the last
 * message, because the answer continues it. */
int chat_turns_split_calls(json_t **list, json_t **sent_calls, int keeps_last);

/* Renders `list` as the messages. If the template refuses it, rewords `list` and in->tools and
 * tries again; `list` may be changed, in->tools is restored. The error is that of the first try. */
int chat_turns_render(const struct chat_template *t, struct chat_render *in, json_t *list,
                      const json_t *sent_calls, struct buf *out, struct err *err);

#endif
