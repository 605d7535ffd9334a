/* toolcall_int.h - shared by the files of toolcall.
 *
 * The parser is one state machine: `step` is the state, a function that parses from `at` on. It
 * returns TC_GO to continue, or TC_MORE if it needs more text (if `final` is set, there is none).
 * Unsettled text is in `in` from `start` on; positions kept across calls are relative to
 * `start`. */
#ifndef TEXT_TOOLCALL_INT_H
#define TEXT_TOOLCALL_INT_H

#include "text/space.h"
#include "text/toolcall.h"
#include "util/buf.h"

#include <stdint.h>

enum tc_go { TC_MORE, TC_GO };
enum tc_match { TC_NO, TC_YES, TC_PART }; /* TC_PART: the text ends inside it */

typedef enum tc_go tc_step(struct toolcall *t);

/* --- JSON, byte by byte (toolcall_json.c) --- */

#define TC_DEPTH_MAX 128

struct tc_json {
	unsigned state, depth, hex;
	int key;                             /* the current string is a key */
	const char *rest;                    /* rest of the current literal */
	uint64_t objects[TC_DEPTH_MAX / 64]; /* bit set: that level is an object */
};

enum {
	TC_JSON_KEY = 1, /* this byte opens a key of the outermost object */
	TC_JSON_KEY_END = 2,
	TC_JSON_VALUE = 4,        /* this byte starts the value of a member of the outermost object */
	TC_JSON_VALUE_END = 8,    /* this byte is the last of that value */
	TC_JSON_VALUE_ENDED = 16, /* the byte before was its last: a number */
	TC_JSON_END = 32,         /* this byte completes the outermost value */
	TC_JSON_BAD = 64,         /* invalid JSON; the scanner must not be used any more */
};

/* Scans an object or an array. Accepts raw control characters in strings. Returns the TC_JSON_*
 * flags of this byte. */
void tc_json_init(struct tc_json *j);
unsigned tc_json_byte(struct tc_json *j, unsigned char c);

/* --- formats --- */

struct tc_tagged { /* family that writes a name, a separator and JSON */
	const char *call, *sep;
};

struct tc_xml {                          /* family that writes parameters in tags */
	const char *call, *name_end;         /* NULL: the name directly follows the trigger */
	const char *param, *key_end, *value; /* value NULL: the value directly follows key_end */
	const char *value_end, *call_end;
	/* one newline after key_end and one before value_end are not part of the value */
	int trims_newline;
	int typed; /* after key_end comes true"> for a string or false"> */
};

struct toolcall_format {
	const char *name;
	const char *triggers[3]; /* NULL-terminated, like the lists below */
	/* may follow a call, each once, in this order, with white space between */
	const char *closers[4];
	const char *inner[8];  /* other markers that may be special tokens */
	const char *detect[3]; /* a template that contains all of these uses this format */
	tc_step *open;         /* state after a trigger */
	/* an answer that starts with this byte may be a call without a trigger; 0: none */
	char bare;
	const char *name_key; /* alternative to "name" in JSON call objects */
	int short_ids;
	/* inside a string of the arguments, this text ends the call and is dropped; NULL: none */
	const char *breaks;
	/* the closer that ends the answer; NULL: none */
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
/* The types of a parameter; TC_STRING if the tool has none of this name. */
unsigned tc_tools_types(const struct toolcall_tools *t, const char *name, const char *key);
/* toolcall_types.c. root: the schema that a $ref refers to; never 0, TC_TYPES if the schema says
 * nothing of types. left: how many schemas and elements of lists may still be looked at, of
 * TC_STEPS_MAX; those that come after say nothing. */
#define TC_STEPS_MAX 10000
unsigned tc_schema_types(const json_t *root, const json_t *schema, int *left);
/* The schema that $ref names, among root's definitions; NULL: no $ref, or it leads elsewhere. */
const json_t *tc_schema_target(const json_t *root, const json_t *schema);

/* --- the state machine --- */

struct tc_object { /* a JSON call object */
	struct tc_json scan;
	enum { TC_OTHER, TC_NAME, TC_ARGS } member;
	size_t from;               /* start of the current key or name */
	size_t args_from, args_to; /* arguments that came before the name, or as a string */
	int named, has_args, held; /* held: args_* are complete */
	/* the arguments are emitted as they arrive: [start, at) is the next piece */
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
	size_t trigger;   /* index of the trigger that opened the current candidate */
	int final, ended; /* ended: argument of toolcall_finish */
	/* fresh: no content emitted yet; after_call: only white space since the last call; is_bare: the
	 * candidate has no trigger; in_array: inside an array of calls; begun: BEGIN was emitted */
	int fresh, after_call, is_bare, in_array, begun;
	unsigned calls, closer;
	char name[TOOLCALL_NAME_MAX + 1];
	int in_string, escaped; /* state inside the emitted arguments */
	struct tc_object object;
	/* XML and Python families. params: parameters emitted so far; holding: a value is held back
	 * from `start` on. */
	int params, holding;
	unsigned quote, nesting; /* Python: inside that value; quote 0: not in a string */
	unsigned types;
	uint8_t first[256]; /* 1: a trigger starts with this byte */
};

enum tc_match tc_compare(const struct toolcall *t, size_t at, const char *s);
enum tc_go tc_content(struct toolcall *t); /* state outside of calls */
/* State after a call: skips closers. Entered with at == start. */
enum tc_go tc_close(struct toolcall *t);
/* The candidate is no call, or the started call is broken off: unsettled text before pos is emitted
 * as content or as part of the call; parsing continues at pos. */
enum tc_go tc_break(struct toolcall *t, size_t pos);
/* Starts a call; name[] is the name of a tool. */
void tc_begin(struct toolcall *t);
void tc_end(struct toolcall *t);
void tc_say(struct toolcall *t, const char *s, size_t n);  /* emits content */
void tc_give(struct toolcall *t, const char *s, size_t n); /* emits arguments verbatim */
/* emits arguments that are JSON; escapes control characters in strings */
void tc_copy(struct toolcall *t, const char *s, size_t n);
/* emits arguments: text escaped as the inside of a JSON string */
void tc_give_string(struct toolcall *t, const char *s, size_t n);
/* Copies the name to name[]. Returns 0 if it is no tool's name, or if there are too many calls. */
int tc_take_name(struct toolcall *t, const char *s, size_t n);

/* toolcall_json.c: states */
enum tc_go tc_json_open(struct toolcall *t);      /* { or [ must follow */
enum tc_go tc_json_arguments(struct toolcall *t); /* at a {, after tc_begin */
void tc_json_start(struct toolcall *t);           /* call before tc_json_arguments */

/* --- heads of calls: short, and parsed again whenever more text arrives --- */

#define TC_HEAD_MAX 1024

struct tc_cursor {
	const struct toolcall *t;
	size_t at, end; /* end: limit of what may be read */
	int part;       /* the text ended where more of it could change the result */
};
void tc_cursor_init(struct tc_cursor *c, const struct toolcall *t, size_t at);
void tc_cursor_space(struct tc_cursor *c);
int tc_cursor_literal(struct tc_cursor *c, const char *s); /* 1: found and skipped */
int tc_cursor_name(struct tc_cursor *c, size_t *ret_from, size_t *ret_len);
int tc_cursor_peek(struct tc_cursor *c); /* the next byte; -1: none */
/* The head does not match: breaks off there, or waits for more text. */
enum tc_go tc_cursor_mismatch(struct toolcall *t, const struct tc_cursor *c);

/* The head is parsed up to the { of the arguments, where the cursor is. The name is in[from, from +
 * n). */
enum tc_go tc_begin_object(struct toolcall *t, const struct tc_cursor *c, size_t from, size_t n);

enum tc_go tc_tagged_open(struct toolcall *t);
enum tc_go tc_harmony_open(struct toolcall *t);
enum tc_go tc_mistral_open(struct toolcall *t);
enum tc_go tc_xml_open(struct toolcall *t);
/* toolcall_xml.c: 1 if a value in tags that may be of these types is read as JSON, which *s and *n
 * then are; 0: as a string. */
int tc_xml_is_json(unsigned types, const char **s, size_t *n);
enum tc_go tc_python_open(struct toolcall *t);
enum tc_go tc_generic_open(struct toolcall *t);

#endif
