/* choices.h - what completions and chat share: OpenAI's answers as a list of choices. An event is
 * written by hand into one buffer: the common beginning of a request's events is made once
 * (choices_head), and of an ordinary token only its number and its text are formatted. */
#ifndef ROUTER_CHOICES_H
#define ROUTER_CHOICES_H

#include "dialect.h"
#include "daemons/router/attempt/attempt.h"

struct prompt;

/* Into request.reply.head; object: "chat.completion", .. */
void choices_head(struct request *q, const char *object);
enum choices_event {
	CHOICES_OPENS, /* before the answer's first token */
	CHOICES_GOES_ON,
	CHOICES_ENDS
};

/* An event up to {"index":N of its choice, and all that follows the choices. */
void choices_event_begin(const struct answer *ans, struct buf *out);
void choices_event_end(const struct answer *ans, enum choices_event which, struct buf *out);
/* ,"finish_reason":..; finish: of the answer; NONE: the answer goes on */
void choices_add_finish(const struct answer *ans, enum answer_finish finish, struct buf *out);
/* ,"prompt_token_ids":[..], once in a stream and if they are wanted */
void choices_add_prompt_ids(struct answer *ans, struct buf *out);
/* ,"token_ids":[..], those since the last event, if they are wanted */
void choices_add_ids(const struct answer *ans, int is_last, struct buf *out);
size_t choices_prompt_ids_behind(const struct answer *ans); /* bytes; 0: not wanted, or sent */
void choices_stream_end(struct request *q, struct buf *out);
void choices_stream_error(struct request *q, const struct api_error *e, struct buf *out);

/* dialect.parts: the head, choices by put_choice, and the end, after put_end (NULL: nothing). */
int choices_parts(struct request *q, uint32_t stage, struct answer_parts *p,
                  void (*put_choice)(struct answer *ans, struct answer_parts *p),
                  void (*put_end)(struct request *q, struct answer_parts *p));
void choices_put_ids(const struct answer *ans, struct answer_parts *p);
/* The prompt's ids and log-probabilities, if they are wanted: in a choice of a completion, or in a
 * complete chat answer. */
void choices_put_prompt(const struct request *q, const struct prompt *prompt,
                        struct answer_parts *p);

#endif
