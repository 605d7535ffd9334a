/* message.h - the text of one chat answer split into thoughts, content and calls of tools, each
 * collected until it is sent to the client. */
#ifndef ROUTER_MESSAGE_H
#define ROUTER_MESSAGE_H

#include "daemons/router/api/parts.h"
#include "text/reasoning.h"
#include "text/toolcall.h"
#include "util/buf.h"

#include <stddef.h>

struct message_opts {
	const struct toolcall_format *calls;      /* NULL: calls are not looked for */
	struct toolcall_tools *tools;             /* with calls */
	const struct reasoning_format *reasoning; /* NULL: thoughts are not looked for */
	enum reasoning_at at;                     /* where the answer begins */
	int marks_reasoning;                      /* thoughts stay in the text, with what marks them */
	int drop_reasoning;                       /* thoughts are not sent */
	int one_call;                             /* the answer ends with its first call */
	/* the request names the function: as the call is expected, the finish reason stays "stop" */
	int named;
};

struct message_call {
	unsigned index;
	int begins; /* this piece has id and name */
	char id[TOOLCALL_ID_SIZE], name[TOOLCALL_NAME_MAX + 1];
	struct buf arguments;
};

struct message {
	const struct message_opts *opts;
	struct quota *quota; /* that texts are taken from */
	const char *seed;    /* of ids; the call's */
	unsigned choice;
	struct toolcall *toolcall; /* NULL: not looked for */
	struct reasoning *split;   /* NULL: not looked for */
	int finished, enough;      /* enough: the answer ends here, because of one_call */
	/* the quota had no room for some text: only what came before it is here */
	int lost_text;
	/* since message_given */
	struct buf reasoning, content;
	struct message_call *calls;
	size_t n_calls, calls_size;
};

/* NULL: there is nothing to look for. opts, q and seed must outlive it; seed may be filled in
 * later, before the first text. */
struct message *message_new(const struct message_opts *opts, struct quota *q, const char *seed,
                            unsigned choice);
void message_destroy(struct message **m);
void message_feed(struct message *m, const char *text, size_t len);
/* The answer has ended; may be repeated. ended: by the model, with a token that is not in the
 * text. */
void message_finish(struct message *m, int ended);
unsigned message_count(const struct message *m); /* calls that have begun */
int message_is_empty(const struct message *m);   /* nothing since message_given */
/* the quota was exceeded: what came after that is not in the message */
int message_is_full(const struct message *m);
void message_given(struct message *m);

/* Members of `message` (whole: content and refusal always) or of `delta` (only what there is),
 * without braces, the first without a comma. */
void message_add(const struct message *m, int whole, struct answer_parts *out);

#endif
