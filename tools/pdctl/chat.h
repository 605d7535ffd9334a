/* chat.h - shared by the parts of `pdctl chat`: one turn over HTTP (chat.c), the room for it in the
 * model's context (room.c), and the conversation at a terminal or from a pipe (talk.c). */
#ifndef PDCTL_CHAT_H
#define PDCTL_CHAT_H

#include "pdctl.h"

struct chat {
	const struct options *o;
	struct http_peer server;
	json_t *messages;         /* the conversation so far */
	json_t *set;              /* members of each request: -s and /set */
	int capped;               /* answers have a length limit even if the user sets none */
	int stop_fd;              /* readable after Ctrl-C; -1: none */
	int warned;               /* the server's warnings about `set` were printed */
	int thoughts;             /* print the model's reasoning, too */
	const char *dim, *bright; /* escape sequences, or "" */
};

/* Sends the conversation with `text` as its next message and prints the answer as it arrives. If
 * there is an answer, or the part of one that the user stopped, both are added to the conversation
 * and *ret_added (or NULL) is 1; else neither is. Turns that chat_make_room dropped stay dropped.
 * Returns an exit code. */
int chat_turn(struct chat *c, const char *text, int *ret_added);
/* Asks the server whether requests may have this member. Returns an exit code; *ret_why (malloc'd)
 * is the reason if it is not 0. */
int chat_try_member(struct chat *c, const char *name, const json_t *value, char **ret_why);
/* What the server says of a conversation's length, in tokens. */
struct room {
	long long prompt, context; /* 0: unknown */
	int bounds;                /* it, not the limit, bounds the answer */
};
/* Drops turns until the answer has room: its limit, or a quarter of the context if that is less.
 * If even the last message alone is too long nothing is dropped, and the server says so. */
struct room chat_make_room(struct chat *c, long long limit);
/* talk.c: turns and commands until the end of input. Returns an exit code. */
int chat_talk(struct chat *c);
/* One line for the user, on stderr. */
void chat_note(const struct chat *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
