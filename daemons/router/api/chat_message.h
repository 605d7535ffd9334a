/* chat_message.h - the text of one chat answer split into pieces: thoughts, content and calls of
 * tools, in the order in which the model wrote them, each collected until it is sent to the
 * client, or to the end of the request if a later event repeats it. */
#ifndef ROUTER_CHAT_MESSAGE_H
#define ROUTER_CHAT_MESSAGE_H

#include "text/reasoning.h"
#include "text/toolcall.h"
#include "util/buf.h"

#include <stddef.h>

struct message_opts {
	const struct toolcall_format *calls;      /* NULL: the text is not searched for calls */
	struct toolcall_tools *tools;             /* with calls */
	const struct reasoning_format *reasoning; /* NULL: nor for thoughts */
	enum reasoning_at at;                     /* the state at the answer's beginning */
	int marks_reasoning;                      /* thoughts stay in the text, with their markers */
	int drop_reasoning;                       /* thoughts are not sent */
	int one_call;                             /* the answer ends with its first call */
	/* the request names the function: the call is no choice, so the finish reason stays "stop" */
	int named;
};

enum message_kind { MESSAGE_THOUGHTS, MESSAGE_CONTENT, MESSAGE_CALL };

struct message_piece {
	enum message_kind kind;
	struct buf text; /* of a call: its arguments */
	/* MESSAGE_CONTENT: the log-probabilities of its tokens, of the answer's rows */
	uint32_t row_from, row_to;
	/* MESSAGE_CALL */
	unsigned index;
	int begins;      /* this piece has id and name */
	int is_complete; /* its arguments are a complete JSON object */
	char id[TOOLCALL_ID_SIZE], name[TOOLCALL_NAME_MAX + 1];
};

struct message {
	const struct message_opts *opts;
	struct quota *quota; /* of which texts take their memory */
	const char *seed;    /* for the ids of calls */
	unsigned choice;
	struct toolcall *toolcall; /* NULL: no search for calls */
	struct reasoning *split;   /* NULL: no search for thoughts */
	int finished, enough;      /* enough: the answer ends here, because of one_call */
	int is_cut;                /* the last call is not complete so far */
	/* the quota had no room for some text, which is missing with all that followed it */
	int lost_text;
	/* since message_given */
	struct message_piece *pieces;
	size_t n_pieces, pieces_size;
	uint32_t n_rows, n_tokens; /* see message_feed */
	/* of those, how many belong to a piece; and how many tokens belong to thoughts */
	uint32_t rows_given, tokens_given, thought_tokens;
};

/* opts, q and seed must outlive the message; seed may be set later, before the first text. */
struct message *message_new(const struct message_opts *opts, struct quota *q, const char *seed,
                            unsigned choice);
void message_destroy(struct message **m);
/* n_tokens, n_rows: of the answer so far, with this text and what is held back. The new ones belong
 * to the last piece, or to the first one if there is none yet. */
void message_feed(struct message *m, const char *text, size_t len, uint32_t n_tokens,
                  uint32_t n_rows);
/* Call it after the last message_feed; may be repeated. ended: the model has ended the answer,
 * with a token that is not in the text. */
void message_finish(struct message *m, int ended);
unsigned message_count(const struct message *m);                       /* calls that have begun */
size_t message_bytes(const struct message *m, enum message_kind kind); /* of all such pieces */
int message_is_empty(const struct message *m); /* no piece since message_given */
int message_is_full(const struct message *m);  /* the quota was exceeded, and text is missing */
void message_given(struct message *m);         /* the pieces were sent, and are freed */

#endif
