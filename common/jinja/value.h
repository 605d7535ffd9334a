/* value.h - inside common/jinja: the values of a rendering, with Python's semantics, and operations
 * on them.
 *
 * All values are in the rendering's arena and never freed individually; strings may also point into
 * the template or the caller's JSON. Errors leave by longjmp to jinja_render (jin_fail), so nothing
 * in these files may own memory outside of the arena and the buffers listed in struct jin. */
#ifndef JINJA_VALUE_H
#define JINJA_VALUE_H

#include "util/arena.h"
#include "util/buf.h"
#include "util/err.h"

#include <jansson.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>

struct jinja_node;
struct node_list;
struct jinja_template;
struct method_def;

enum jv_type {
	J_UNDEF,
	J_NONE,
	J_BOOL,
	J_INT,
	J_FLOAT,
	J_STR,
	J_LIST,
	J_TUPLE,
	J_DICT,
	J_NAMESPACE,
	J_RANGE,
	J_VIEW,
	J_ITER,
	J_MACRO,
	J_FUNC,
	J_METHOD,
	J_LOOP,
	J_JOINER,
	J_CYCLER
};

enum undef_kind { UNDEF_NAME, UNDEF_ATTR, UNDEF_TEXT, UNDEF_UNSAFE };
enum view_kind { VIEW_KEYS, VIEW_VALUES, VIEW_ITEMS };

struct jv {
	uint8_t type;
	/* STR: 1 is Markup (result of `safe` or `escape`); VIEW: view_kind; UNDEF: undef_kind */
	uint8_t sub;
	uint8_t aux; /* UNDEF_ATTR, UNDEF_UNSAFE: type of the object without the attribute */
	union {
		int64_t i; /* INT, BOOL */
		double f;
		const char *s; /* STR: UTF-8, may contain NUL; UNDEF: name or message */
		struct jlist *list;
		struct jdict *dict; /* DICT, NAMESPACE, VIEW */
		struct jiter *iter;
		struct jrange *range;
		struct jmacro *macro;
		const struct jfunc *func;
		struct jmethod *method;
		struct jloop *loop;
	};
	size_t len; /* STR, UNDEF */
};

struct jlist {
	struct jv *v;
	size_t n, size;
};

struct jdict {
	struct jv *keys, *vals; /* in insertion order */
	size_t n, size;
	/* hash table with open addressing: entry + 1; NULL while there are few entries */
	uint32_t *index;
	size_t index_size;
};

struct jiter { /* a generator; JOINER and CYCLER use it too */
	struct jlist list;
	size_t at;
};

struct jrange {
	int64_t start, step, n, stop;
};

struct jargs {
	const struct jv *v; /* positional */
	size_t n;
	const struct jv *kw_names, *kw;
	size_t n_kw;
};

struct jin;
struct jfunc {
	const char *name;
	struct jv (*call)(struct jin *r, const struct jargs *a);
};

struct jmethod {
	struct jv self;
	const struct method_def *def;
};

struct scope_var {
	uint32_t name;
	struct jv v;
};

struct scope {
	struct scope *up; /* NULL: next come the template's globals, jin.root */
	struct scope_var *vars;
	uint32_t n, size;
	int captured; /* 1: a macro refers to it, so it must not be reused */
};

struct jmacro {
	const struct jinja_node *def; /* N_MACRO or N_CALL_BLOCK */
	struct scope *scope;
};

struct jloop {
	const struct jinja_node *def;
	struct jlist *items;
	size_t at; /* index of the current item */
	unsigned depth;
	struct scope *scope; /* the scope around the loop */
	int changed_set;
	struct jv changed;
};

struct jbuf {
	struct buf b;
	struct jbuf *up;
};

/* The state of one rendering. */
struct jin {
	const struct jinja_template *t;
	struct arena *arena;
	struct jv *root; /* globals, indexed by name number */
	uint8_t *root_set;
	struct scope *scope;
	struct buf *out; /* where output currently goes */
	struct jbuf *bufs, *spare;
	uint64_t steps, steps_max;
	size_t memory, memory_max;
	struct quota *quota;
	const char *stack; /* address at the start, to measure the stack's depth */
	unsigned macros;   /* nesting depth of macro calls and recursive loops */
	uint32_t line;
	int64_t now_s;
	struct {
		char *base;
		size_t used, size;
	} tips[8]; /* strings that can be appended to in place */
	unsigned tip;
	jmp_buf bad;
	struct err *err;
	int code;
};

enum { RANGE_MAX = 100000, MACRO_DEPTH_MAX = 200, DATA_DEPTH_MAX = 128, STACK_MAX = 2 << 20 };

/* --- errors and limits: these functions do not return */
_Noreturn void jin_fail(struct jin *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* for raise_exception: the message is exactly `text` */
_Noreturn void jin_raise(struct jin *r, const char *text, size_t len);
_Noreturn void jin_over(struct jin *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* fails because the undefined value v was used */
_Noreturn void jin_undefined(struct jin *r, struct jv v);
void jin_step(struct jin *r, uint64_t n);
void jin_stack(struct jin *r);
void *jin_alloc(struct jin *r, size_t count, size_t size);

/* --- text being built; buffers form a stack */
struct buf *buf_open(struct jin *r);
/* closes the innermost buffer and returns its contents as a string */
struct jv buf_close(struct jin *r);
void text_add(struct jin *r, struct buf *b, const char *s, size_t len);
void text_adds(struct jin *r, struct buf *b, const char *s);

/* --- creating values */
static inline struct jv jv_none(void)
{
	return (struct jv){.type = J_NONE};
}
static inline struct jv jv_bool(int b)
{
	return (struct jv){.type = J_BOOL, .i = !!b};
}
static inline struct jv jv_int(int64_t i)
{
	return (struct jv){.type = J_INT, .i = i};
}
static inline struct jv jv_float(double f)
{
	return (struct jv){.type = J_FLOAT, .f = f};
}
static inline struct jv jv_str(const char *s, size_t len)
{
	return (struct jv){.type = J_STR, .s = s, .len = len};
}
static inline struct jv jv_list(struct jlist *l)
{
	return (struct jv){.type = J_LIST, .list = l};
}
struct jv jv_text(const char *s); /* s: a constant, not copied */
struct jv jv_copy(struct jin *r, const char *s, size_t len);
struct jv jv_undef(enum undef_kind kind, const char *s, size_t len, uint8_t object);
struct jv jv_undef_printf(struct jin *r, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
struct jv jv_from_json(struct jin *r, const json_t *j, unsigned depth);
struct jv jv_iter(struct jin *r, struct jlist list);
struct jlist *list_new(struct jin *r, size_t size);
void list_push(struct jin *r, struct jlist *l, struct jv v);
struct jdict *dict_new(struct jin *r, size_t size);
void dict_set(struct jin *r, struct jdict *d, struct jv key, struct jv val);
/* NULL: absent; fails if the key is unhashable */
const struct jv *dict_get(struct jin *r, const struct jdict *d, struct jv key);
const struct jv *dict_get_text(struct jin *r, const struct jdict *d, const char *s, size_t len);

/* --- semantics of values */
const char *jv_type_name(enum jv_type t); /* Python's type(x).__name__ */
int jv_truth(struct jin *r, struct jv v);
int jv_is_number(struct jv v); /* INT, BOOL, FLOAT */
double jv_number(struct jv v);
int jv_equal(struct jin *r, struct jv a, struct jv b);
/* fails if Python defines no order */
int jv_less(struct jin *r, struct jv a, struct jv b, const char *op);
int jv_contains(struct jin *r, struct jv item, struct jv in);
int jv_can_iterate(struct jv v);
int64_t jv_length(struct jin *r, struct jv v); /* -1: has no length */
/* all items that iterating yields; read only */
struct jlist *jv_items(struct jin *r, struct jv v);
struct jv jv_attr(struct jin *r, struct jv o, struct jv name); /* o.name */
struct jv jv_item(struct jin *r, struct jv o, struct jv key);  /* o[key] */
/* part: begin, end, step; NONE if omitted */
struct jv jv_slice(struct jin *r, struct jv o, const struct jv part[3]);
struct jv jv_call(struct jin *r, struct jv f, const struct jargs *a);

/* --- conversion to text */
void jv_show(struct jin *r, struct buf *b, struct jv v); /* str(v) */
void jv_repr(struct jin *r, struct buf *b, struct jv v);
struct jv jv_to_str(struct jin *r, struct jv v);
void float_repr(double f, char out[40]);
struct jv str_concat(struct jin *r, struct jv a, struct jv b);
struct jv str_escape(struct jin *r, struct jv v); /* returns Markup */
struct jv str_repeat(struct jin *r, struct jv s, int64_t times);
struct jv jv_tojson(struct jin *r, const struct jargs *a);

/* --- operators */
struct jv op_binary(struct jin *r, uint8_t token, struct jv a, struct jv b);
struct jv op_negate(struct jin *r, struct jv v);
struct jv str_percent(struct jin *r, struct jv format, struct jv args);
struct jv str_format(struct jin *r, struct jv format, const struct jargs *a);
struct jv str_format_map(struct jin *r, struct jv format, struct jv map);

/* --- arguments of builtins, by position or keyword; NULL: not given */
const struct jv *arg_get(const struct jargs *a, size_t at, const char *name);
int64_t arg_int(struct jin *r, const struct jv *v, int64_t def, const char *what);

/* --- builtins by name; NULL: none */
struct builtin {
	const char *name;
	/* for filters and tests the first argument is their input */
	struct jv (*call)(struct jin *r, const struct jargs *a);
	uint8_t most;      /* maximum number of arguments, including the first */
	const char *names; /* of the arguments after the first, "a,b,c"; NULL: any */
};
const struct builtin *filter_find(const char *s, size_t len);
const struct builtin *test_find(const char *s, size_t len);
struct jv builtin_call(struct jin *r, const struct builtin *f, const char *kind,
                       const struct jargs *a);
/* UNDEF_NAME: no such attribute */
struct jv method_find(struct jin *r, struct jv o, const char *s, size_t len);
struct jv method_call(struct jin *r, const struct jmethod *m, const struct jargs *a);
/* sorts vals by keys; stable */
void sort_values(struct jin *r, struct jv *keys, struct jv *vals, size_t n, int reverse);
struct jv global_find(const char *s, size_t len); /* UNDEF: none */
struct jv loop_attr(struct jin *r, struct jloop *l, const char *s, size_t len);

/* --- Unicode, code points */
/* returns the length in bytes, at least 1; an ill-formed byte is U+FFFD */
int cp_step(const char *s, size_t n, uint32_t *ret_cp);
int cp_put(char out[4], uint32_t cp);
int cp_is_space(uint32_t cp);
int cp_is_printable(uint32_t cp);
enum cp_kind {
	CP_ALPHA,
	CP_ALNUM,
	CP_DECIMAL,
	CP_DIGIT,
	CP_NUMERIC,
	CP_UPPER,
	CP_LOWER,
	CP_TITLE, /* titlecase letters such as U+01C5, which are neither */
	CP_SPACE,
	CP_ID_START, /* may start an identifier */
	CP_ID_MORE   /* may follow in one */
};
/* as Python's str.isalpha etc. for one character */
int cp_is(enum cp_kind kind, uint32_t cp);
/* upper 1: str.upper(), 0: str.lower() */
void text_case(struct jin *r, struct buf *b, const char *s, size_t len, int upper);
size_t text_length(const char *s, size_t len);
/* length in bytes of that many code points, at most len */
size_t text_offset(const char *s, size_t len, size_t chars);
void text_strip(const char **s, size_t *len, const struct jv *chars, int left, int right);

/* eval.c */
struct jv eval(struct jin *r, const struct jinja_node *n);
enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE };
enum flow exec_list(struct jin *r, const struct node_list *l);
struct scope *scope_push(struct jin *r);
void scope_set(struct jin *r, uint32_t name, struct jv v);
struct jv macro_call(struct jin *r, const struct jmacro *m, const struct jargs *a);
struct jv loop_call(struct jin *r, struct jloop *l, const struct jargs *a);

#endif
