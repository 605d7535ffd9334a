/* dialect.h - the form in which a kind of request is answered: complete answers, events of a
 * stream, errors. One table of functions for each; what is common to all of them is in answer.c and
 * write.c.
 *
 *   completions, chat   OpenAI's, each event complete in itself (choices.h)
 *   responses           OpenAI's, events of items; the last event repeats all items
 *   messages            Anthropic's, events of blocks; errors in its shape
 *   embeddings          OpenAI's, never as a stream
 *   json                an answer that was made while the request was prepared (/tokenize) */
#ifndef ROUTER_DIALECT_H
#define ROUTER_DIALECT_H

#include "error.h"
#include "parts.h"
#include "util/buf.h"

#include <stddef.h>
#include <stdint.h>

#define REPLY_PIECES 64u /* limit on a message's pieces in one list of parts */
#define ADD(out, literal) buf_add(out, literal, sizeof literal - 1)

struct answer;
struct request;

struct dialect {
	const char *id_prefix; /* of the ids of requests; "": they have no id */
	const char *id_header; /* a further header with the id, beside X-Request-Id; NULL: none */
	/* An answer is split into pieces of a message. IF_ASKED: if it may have thoughts or calls */
	enum { SPLITS_NEVER, SPLITS_IF_ASKED, SPLITS_ALWAYS } splits;
	/* Events repeat what was sent before: a stream's message, and its rows of log-probabilities,
	 * stay to its end */
	int keeps;
	/* What all events and the complete answer begin with, into request.reply.head */
	void (*head)(struct request *q);
	/* Appends the next events of a stream: about max_size bytes of a long beginning or end, then
	 * text[0..text_len) or the pieces of the message, with their ids and log-probabilities. Returns
	 * 1 when everything up to text_len has been written. */
	int (*chunk)(struct answer *ans, size_t text_len, size_t max_size, struct buf *out);
	int (*is_empty)(const struct answer *ans); /* there is nothing for a chunk */
	/* about how many bytes of a stream have yet to be sent in steps; 0: none. May be NULL: never */
	size_t (*behind)(const struct answer *ans);
	void (*stream_end)(struct request *q, struct buf *out); /* NULL: appends nothing */
	/* Makes list number `stage` of the parts of a complete answer. 0: there is none. */
	int (*parts)(struct request *q, uint32_t stage, struct answer_parts *p);
	void (*error)(const struct api_error *e, struct buf *out); /* a body */
	/* the last event of a stream */
	void (*stream_error)(struct request *q, const struct api_error *e, struct buf *out);
};

extern const struct dialect dialect_completions, dialect_chat, dialect_responses, dialect_messages;
extern const struct dialect dialect_embeddings;
extern const struct dialect dialect_json, dialect_messages_json; /* they differ in their errors */

/* For errors on this path before a request has begun. */
const struct dialect *dialect_of_path(const char *path);

/* Tokens of all prompts, of these the cached ones, and of all answers. */
struct reply_usage {
	uint32_t prompt, cached, generated;
};
struct reply_usage reply_usage(const struct request *q);
/* ,"timings":{..}, as llama.cpp's server has them; the sums of all answers */
void reply_add_timings(const struct request *q, struct buf *out);
/* ,"warnings":[..]; nothing if there are none */
void reply_add_warnings(const struct request *q, struct buf *out);
/* Continues a complete answer until out has max_size bytes, or a little more. 1: to the end. */
int reply_more(struct request *q, struct buf *out, size_t max_size);

#endif
