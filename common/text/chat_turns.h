/* chat_turns.h - a conversation as a chat template takes it. Templates differ in what they take of
 * an assistant that called tools: how many calls in a message, with what words and thoughts,
 * arguments as an object or as a string. */
#ifndef TEXT_CHAT_TURNS_H
#define TEXT_CHAT_TURNS_H

#include "text/chat.h"

/* For a template that takes one call in a message: messages of `list` with several become one for
 * each, with the results behind it that are its own; what else a message says stays with the first.
 * came: to each message the calls as the client sent them, or null. Both lists are replaced, also
 * when it fails: 0, or ERR_NOMEM. keeps_last: the last message stays whole, as the answer continues
 * it. */
int chat_turns_split_calls(json_t **list, json_t **came, int keeps_last);

/* chat_template_render of `list`, which is changed, as `messages`: as it stands, and where the
 * template refuses that, said otherwise. in->tools may have to be said otherwise as well. The error
 * is that of the list as it stood. */
int chat_turns_render(const struct chat_template *t, struct chat_render *in, json_t *list,
                      const json_t *came, struct buf *out, struct err *err);

#endif
