/* reasoning_int.h - shared by the files of reasoning: formats, parts of an answer, its state. */
#ifndef TEXT_REASONING_INT_H
#define TEXT_REASONING_INT_H

#include "text/reasoning.h"
#include "text/toolcall_int.h"
#include "util/buf.h"

struct reasoning_format {
	const char *name;
	struct reasoning_form form;
	const char *answer_open, *answer_close; /* optional markers around the answer; NULL: none */
	const char *detect[3];   /* a template that contains one of these uses this format */
	const char *channels[8]; /* harmony: its markers; NULL: reasoning comes first */
};

enum reasoning_part {
	BEGIN, /* white space, maybe the opening marker */
	/* in reasoning that the prompt opened: white space, maybe the opening marker */
	LEAD,
	FIRST, /* in reasoning: leading white space */
	THOUGHTS,
	/* after reasoning: white space, maybe the answer's opening marker */
	ANSWER_LEAD,
	ANSWER_FIRST, /* after that marker: white space */
	ANSWER,
	WRAPPED, /* an answer that the closing marker may end */
	TAIL,    /* after that marker: white space */
	/* harmony only: */
	HEAD,          /* between messages */
	MESSAGE_FIRST, /* in reasoning: leading white space */
	MESSAGE_THOUGHTS,
	MESSAGE_ANSWER,
	MESSAGE_CALL
};

struct reasoning {
	const struct reasoning_format *f;
	reasoning_sink *sink;
	void *arg;
	enum reasoning_part part;
	int final;
	unsigned said; /* harmony: bit 1: reasoning was emitted, bit 0: answer text was */
	/* emit an empty line first: there was a message of this kind before */
	int gap;
	struct tc_json arguments; /* scans the arguments of the current call */
	int reads_json;           /* 1: the scan is still inside valid JSON */
	struct buf in;
	size_t start; /* text before it is settled */
	size_t space; /* [start, space) is white space; space <= start: not scanned yet */
};

/* Returns the position after the white space at start. Scans each byte only once, however often it
 * is called. */
static inline size_t reasoning_skip_space(struct reasoning *r)
{
	if (r->space < r->start)
		r->space = r->start;
	while (r->space < r->in.len && text_is_space(r->in.data[r->space]))
		r->space++;
	return r->space;
}

/* reasoning_harmony.c */
enum reasoning_at reasoning_last_message(const char *prompt, size_t len);
enum reasoning_part reasoning_message_part(enum reasoning_at at); /* in which an answer starts */
int reasoning_message_step(struct reasoning *r);                  /* 0: more text is needed */

#endif
