/* toolcall_int.h - what the files of toolcall share.
 *
 * One machine: `step` is the state, a function that reads from `at` on and says whether it can go
 * on (TC_GO) or needs more text (TC_MORE; with `final` set that is the end). The text that is
 * not settled lies in `in` from `start`; positions that a state keeps are counted from `start`. */
#ifndef TEXT_TOOLCALL_INT_H
#define TEXT_TOOLCALL_INT_H

#include "text/space.h"
#include "text/toolcall.h"
#include "util/buf.h"

#include <stdint.h>

enum tc_go { TC_MORE, TC_GO };
enum tc_match { TC_NO, TC_YES, TC_PART }; /* PART: a beginning of it, and then the text ends */

typedef enum tc_go tc_step(struct toolcall *t);

/* --- JSON, byte by byte (toolcall_json.c) --- */

#define TC_DEPTH_MAX 128

struct tc_json {
	unsigned state, depth, hex;
	int key;                             /* the string at hand is a key */
	const char *rest;                    /* of the literal at hand */
	uint64_t objects[TC_DEPTH_MAX / 64]; /* bit: the level is an object */
};

enum {
	TC_JSON_KEY = 1, /* the byte opens a key of the outermost object */
	TC_JSON_KEY_END = 2,
	TC_JSON_VALUE = 4,        /* the byte begins the value of a member of the outermost object */
	TC_JSON_VALUE_END = 8,    /* it is that value's last one */
	TC_JSON_VALUE_ENDED = 16, /* the one before it was: a number */
	TC_JSON_END = 32,         /* the outermost value is complete with this byte */
	TC_JSON_BAD = 64,         /* no JSON goes on so; the scanner must not be used again */
};

/* The outermost value must be an object or an array. Control characters in strings are let
 * through. */
void tc_json_init(struct tc_json *j);
unsigned tc_json_byte(struct tc_json *j, unsigned char c);

/* --- formats --- */

struct tc_tagged { /* the family that writes a name, a separator and JSON */
	const char *call, *sep;
};

struct tc_xml {                          /* the family that writes parameters in tags */
	const char *call, *name_end;         /* NULL: the name follows the trigger */
	const char *param, *key_end, *value; /* value NULL: it follows key_end */
	const char *value_end, *call_end;
	/* one behind key_end and one before value_end are not the value's */
	int trims_newline;
	int typed; /* behind key_end: true"> or false">, whether it is a string */
};

struct toolcall_format {
	const char *name;
	const char *triggers[3]; /* NULL-terminated, as the lists below */
	/* what may follow a call, each once, in this order, white space between */
	const char *closers[4];
	const char *inner[8];  /* other markers that may be special tokens */
	const char *detect[3]; /* a template that has all of these writes this format */
	tc_step *open;         /* behind a trigger */
	/* an answer that begins with this may be a call without a trigger; 0: none */
	char bare;
	const char *name_key; /* of JSON call objects */
	int short_ids;
	/* within a string of the arguments: the call breaks off there, and this is dropped; NULL:
	 * none does */
	const char *breaks;
	/* the marker of those above that ends the answer; NULL: none does */
	const char *last;
	struct tc_tagged tagged;
	struct tc_xml xml;
};

extern const struct toolcall_format toolcall_formats[]; /* ends with a NULL name */

enum { /* types that a schema allows */
	   TC_STRING = 1,
	   TC_INTEGER = 2,
	   TC_NUMBER = 4,
	   TC_BOOLEAN = 8,
	   TC_NULL = 16,
	   TC_OBJECT = 32,
	   TC_ARRAY = 64,
	   TC_TYPES = 127
};

int tc_tools_has(const struct toolcall_tools *t, const char *name);
/* Types of a parameter; TC_STRING where the schema names none. */
unsigned tc_tools_types(const struct toolcall_tools *t, const char *name, const char *key);
unsigned tc_schema_types(const json_t *schema); /* 0 where it names none */

/* --- the machine --- */

struct tc_object { /* a call object of JSON */
	struct tc_json scan;
	enum { TC_OTHER, TC_NAME, TC_ARGS } member;
	size_t from;               /* of the key or the name at hand */
	size_t args_from, args_to; /* arguments that came before the name, or as a string */
	int named, has_args, held; /* held: args_* are complete */
	/* the arguments are given out as they come: [start, at) is the next piece */
	int streaming;
};

struct toolcall {
	const struct toolcall_format *f;
	const struct toolcall_tools *tools;
	toolcall_sink *sink;
	void *arg;
	tc_step *step;
	struct buf in;
	size_t start, at;
	size_t trigger;   /* which one opened the candidate at hand */
	int final, ended; /* ended: by the model, as toolcall_finish says it */
	int fresh, after_call, is_bare, in_array, begun;
	unsigned calls, closer;
	char name[TOOLCALL_NAME_MAX + 1];
	int in_string, escaped; /* within the arguments given out */
	struct tc_object object;
	/* of the XML and Python families: so many were written; a value is held, from `start` on */
	int params, holding;
	unsigned quote, nesting; /* Python: within that value; quote 0: outside of strings */
	unsigned types;
	uint8_t first[256]; /* bytes that triggers begin with */
};

enum tc_match tc_compare(const struct toolcall *t, size_t at, const char *s);
enum tc_go tc_content(struct toolcall *t); /* the state outside of calls */
/* The state behind a call: markers that belong to it. Entered with at == start. */
enum tc_go tc_close(struct toolcall *t);
/* The candidate is none, or the call that has begun breaks off: what is unsettled before pos is
 * content or was the call's; reading goes on at pos. */
enum tc_go tc_break(struct toolcall *t, size_t pos);
/* name[] is known to be a tool's. */
void tc_begin(struct toolcall *t);
void tc_end(struct toolcall *t);
void tc_give(struct toolcall *t, const char *s, size_t n); /* arguments, as they are */
/* arguments that are JSON already, control characters in strings escaped */
void tc_copy(struct toolcall *t, const char *s, size_t n);
/* arguments: the inside of a JSON string */
void tc_give_string(struct toolcall *t, const char *s, size_t n);
/* Takes a name into name[]; 0 if it is none of the tools'. */
int tc_take_name(struct toolcall *t, const char *s, size_t n);

/* toolcall_json.c: states */
enum tc_go tc_json_open(struct toolcall *t);      /* { or [ must follow */
enum tc_go tc_json_arguments(struct toolcall *t); /* at a {, the call has begun */
void tc_json_start(struct toolcall *t);           /* before tc_json_arguments */

/* --- heads of calls: short, and read anew whenever more text comes --- */

#define TC_HEAD_MAX 1024

struct tc_cursor {
	const struct toolcall *t;
	size_t at, end; /* end: of what may be read */
	int part;       /* the text ended where more of it could decide */
};
void tc_cursor_init(struct tc_cursor *c, const struct toolcall *t, size_t at);
void tc_cursor_space(struct tc_cursor *c);
int tc_cursor_literal(struct tc_cursor *c, const char *s); /* 1: read */
int tc_cursor_name(struct tc_cursor *c, size_t *ret_from, size_t *ret_len);
int tc_cursor_peek(struct tc_cursor *c); /* the next byte, or -1 */
/* The head is none: breaks there, or waits. */
enum tc_go tc_cursor_no(struct toolcall *t, const struct tc_cursor *c);

/* The head is read up to the { of the arguments, where the cursor is; n bytes of `in` from `from`
 * on are the name. */
enum tc_go tc_begin_object(struct toolcall *t, const struct tc_cursor *c, size_t from, size_t n);

enum tc_go tc_tagged_open(struct toolcall *t);
enum tc_go tc_harmony_open(struct toolcall *t);
enum tc_go tc_mistral_open(struct toolcall *t);
enum tc_go tc_xml_open(struct toolcall *t);
enum tc_go tc_python_open(struct toolcall *t);

#endif
