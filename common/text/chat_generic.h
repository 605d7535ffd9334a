/* chat_generic.h - tools for a chat template that knows nothing of them: they are described in the
 * message of the system, and calls and their results are ordinary messages, in the form of
 * toolcall_generic.c. */
#ifndef TEXT_CHAT_GENERIC_H
#define TEXT_CHAT_GENERIC_H

#include "text/chat_request.h"

/* Replaces `list`, messages as a template sees them, also on error. tools: those that are
 * described, if there are any. q: for texts; NULL: no limit. 0 or ERR_NOMEM. */
int chat_generic_reword(json_t **list, const struct chat_tools *tools, struct quota *q);
/* For a template that refuses a message of the system: its text begins the next message. 0: there
 * is none, or no next one. */
int chat_generic_join_system(json_t *list, struct quota *q);

#endif
