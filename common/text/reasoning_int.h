/* reasoning_int.h - what the files of reasoning share: formats, parts of an answer, its text. */
#ifndef TEXT_REASONING_INT_H
#define TEXT_REASONING_INT_H

#include "text/reasoning.h"
#include "text/toolcall_int.h"
#include "util/buf.h"

struct reasoning_format {
	const char *name;
	struct reasoning_form form;
	const char *answer_open, *answer_close; /* around the answer, if they are there; NULL: none */
	const char *detect[3];   /* a template that has one of these writes this format */
	const char *channels[8]; /* harmony: its markers; else NULL, and thoughts come first */
};

enum part {
	BEGIN, /* white space, perhaps the opening marker */
	/* within thoughts that the prompt opened: white space, perhaps the opening marker */
	LEAD,
	FIRST, /* within thoughts: white space */
	THOUGHTS,
	/* behind thoughts: white space, perhaps the answer's opening marker */
	ANSWER_LEAD,
	ANSWER_FIRST, /* behind that marker: white space */
	ANSWER,
	WRAPPED, /* an answer that its closing marker may end */
	TAIL,    /* behind that marker: white space */
	/* harmony */
	HEAD,          /* between messages */
	MESSAGE_FIRST, /* within thoughts: white space */
	MESSAGE_THOUGHTS,
	MESSAGE_ANSWER,
	MESSAGE_CALL
};

struct reasoning {
	const struct reasoning_format *f;
	reasoning_sink *sink;
	void *arg;
	enum part part;
	int final;
	unsigned said;            /* harmony: bit 1: thoughts were given, bit 0: of the answer */
	int gap;                  /* an empty line comes first: a message of its kind came before */
	struct tc_json arguments; /* of the call at hand, up to where they were read */
	int reads_json;           /* they go on there */
	struct buf in;
	size_t start; /* what lies before is settled */
	size_t space; /* from start to here is white space; not behind start: unknown */
};

/* Behind the white space at start. However often it is called, each byte is looked at once. */
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
enum part reasoning_message_part(enum reasoning_at at); /* in which an answer begins */
int reasoning_message_step(struct reasoning *r);        /* 0: more text is needed */

#endif
