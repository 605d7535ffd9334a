/* harmony.h - the messages of the harmony format (gpt-oss), which reasoning.h and toolcall.h read.
 *
 *   <|start|>assistant<|channel|>analysis<|message|>THOUGHTS<|end|>
 *   <|start|>assistant<|channel|>commentary<|message|>words to the user before a call<|end|>
 *   <|start|>assistant<|channel|>commentary to=functions.N <|constrain|>json<|message|>{..}<|call|>
 *   <|start|>assistant to=functions.N<|channel|>commentary json<|message|>{..}<|call|>
 *   <|start|>assistant<|channel|>final<|message|>ANSWER<|return|>
 *
 * The prompt ends with <|start|>assistant. Models also write heads that are none of these: words
 * after the channel, a channel twice or of no known name, no <|message|>, no <|start|>. A head is
 * read by what of it is known. */
#ifndef TEXT_HARMONY_H
#define TEXT_HARMONY_H

#include <stddef.h>

#define HARMONY_HEAD_MAX 512 /* bytes; the names of tools have up to 128 */

/* The head that reasoning.h writes behind arguments that end within a string, in place of the
 * marker there: toolcall.h ends the call and drops it. */
#define HARMONY_BREAK "<|end|><|start|>assistant<|channel|>final<|message|>"

enum harmony_mark {
	HARMONY_TEXT,    /* no marker is here */
	HARMONY_PART,    /* the text ends within what may be one */
	HARMONY_STARTS,  /* <|start|>: a message begins */
	HARMONY_CHANNEL, /* <|channel|>: in a head, which may begin with it */
	HARMONY_ENDS,    /* <|end|>, <|call|>, <|return|>: the message ends */
};
/* What s begins with. final: no more text comes. ret_len: of the marker. */
enum harmony_mark harmony_mark_at(const char *s, size_t n, int final, size_t *ret_len);

enum harmony_kind { HARMONY_THOUGHTS, HARMONY_ANSWER, HARMONY_CALL };

struct harmony_head {
	enum harmony_kind kind;
	size_t len;            /* the body begins behind it */
	size_t name, name_len; /* of a call: the function's, without the namespace */
	int whole;             /* it ends with <|message|> */
};

/* 1: the head of a message is read. 0: more text is needed; never from HARMONY_HEAD_MAX bytes on,
 * or when final. -1: no message begins here. Without <|message|> a head ends where the next marker
 * comes, at its limit, or with the answer: what follows its known words is the body. Where the
 * answer ends within such a word, that is no text. */
int harmony_head_read(const char *s, size_t n, int final, struct harmony_head *ret);

#endif
