/* harmony.h - parses message heads of the harmony format (gpt-oss) for reasoning.h and toolcall.h.
 *
 *   <|start|>assistant<|channel|>analysis<|message|>REASONING<|end|>
 *   <|start|>assistant<|channel|>commentary<|message|>words to the user before a call<|end|>
 *   <|start|>assistant<|channel|>commentary to=functions.N <|constrain|>json<|message|>{..}<|call|>
 *   <|start|>assistant to=functions.N<|channel|>commentary json<|message|>{..}<|call|>
 *   <|start|>assistant<|channel|>final<|message|>ANSWER<|return|>
 *
 * The prompt ends with <|start|>assistant. Models also write malformed heads: words after the
 * channel, a repeated or unknown channel, no <|message|>, no <|start|>. The known words of such a
 * head decide. */
#ifndef TEXT_HARMONY_H
#define TEXT_HARMONY_H

#include <stddef.h>

#define HARMONY_HEAD_MAX 512 /* in bytes; tool names have up to 128 */

/* reasoning.h writes this head instead of the marker when a call's arguments end inside a string:
 * toolcall.h ends the call there and drops the head. */
#define HARMONY_BREAK "<|end|><|start|>assistant<|channel|>final<|message|>"

enum harmony_mark {
	HARMONY_TEXT,    /* no marker */
	HARMONY_PART,    /* the text ends inside what may be a marker */
	HARMONY_STARTS,  /* <|start|>: a message starts */
	HARMONY_CHANNEL, /* <|channel|>: part of a head; may start it */
	HARMONY_ENDS,    /* <|end|>, <|call|>, <|return|>: the message ends */
};
/* The marker at the start of s. final: no more text follows. *ret_len: the marker's length. */
enum harmony_mark harmony_mark_at(const char *s, size_t n, int final, size_t *ret_len);

enum harmony_kind { HARMONY_THOUGHTS, HARMONY_ANSWER, HARMONY_CALL };

struct harmony_head {
	enum harmony_kind kind;
	size_t len; /* of the head; the body follows */
	/* of a call: offset and length of the function's name without the namespace */
	size_t name, name_len;
	int whole; /* 1: it ends with <|message|> */
};

/* Parses the head of a message at the start of s. Returns 1: parsed; 0: more text is needed (never
 * if final or n >= HARMONY_HEAD_MAX); -1: no message starts here.
 *
 * A head without <|message|> ends at the next marker, at its size limit or with the answer; what
 * follows its known words is the body. If the answer ends inside such a word, that word is not
 * text. */
int harmony_head_read(const char *s, size_t n, int final, struct harmony_head *ret);

#endif
