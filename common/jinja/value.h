/* value.h - inside common/jinja: the values of a rendering, as Python has them, and what can be
 * done to them.
 *
 * All values live in the rendering's arena and are never freed one by one; a string may also point
 * into the template or the caller's JSON. Errors leave by longjmp to jinja_render (jin_fail):
 * nothing in these files holds memory outside the arena and the buffers that struct jin lists. */
#ifndef JINJA_VALUE_H
#define JINJA_VALUE_H

#include "util/arena.h"
#include "util/buf.h"
#include "util/err.h"

#include <jansson.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>

struct node;
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
	/* STR: 1 is Markup (of `safe` and `escape`); VIEW: view_kind; UNDEF: undef_kind */
	uint8_t sub;
	uint8_t aux; /* UNDEF_ATTR, UNDEF_UNSAFE: type of the object that lacks the attribute */
	union {
		int64_t i; /* INT, BOOL */
		double f;
		const char *s; /* STR: UTF-8, may hold NUL; UNDEF: name or text */
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
	struct jv *keys, *vals; /* in order of insertion */
	size_t n, size;
	uint32_t *index; /* once there are many: open addressing, place + 1 */
	size_t index_size;
};

struct jiter { /* generators; JOINER, CYCLER: `at` alone, or both */
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
	struct scope *up; /* NULL: the template's own variables, struct jin.root */
	struct scope_var *vars;
	uint32_t n, size;
	int captured; /* a macro looks at it: not to be used again */
};

struct jmacro {
	const struct node *def; /* N_MACRO or N_CALL_BLOCK */
	struct scope *scope;
};

struct jloop {
	const struct node *def;
	struct jlist *items;
	size_t at; /* of the present item */
	unsigned depth;
	struct scope *scope; /* around the loop */
	int changed_set;
	struct jv changed;
};

struct jbuf {
	struct buf b;
	struct jbuf *up;
};

/* One rendering. */
struct jin {
	const struct jinja_template *t;
	struct arena *arena;
	struct jv *root; /* by number of the name */
	uint8_t *root_set;
	struct scope *scope;
	struct buf *out; /* where output goes at present */
	struct jbuf *bufs, *spare;
	uint64_t steps, steps_max;
	size_t memory, memory_max, output_max;
	struct quota *quota;
	const char *stack; /* address at the start */
	unsigned macros;   /* how deep */
	uint32_t line;
	int64_t now_s;
	struct {
		char *base;
		size_t used, size;
	} tips[8]; /* strings that can be added to in place */
	unsigned tip;
	jmp_buf bad;
	struct err *err;
	int code;
};

enum { RANGE_MAX = 100000, MACRO_DEPTH_MAX = 200, DATA_DEPTH_MAX = 128, STACK_MAX = 2 << 20 };

/* --- errors and bounds */
_Noreturn void jin_fail(struct jin *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* raise_exception */
_Noreturn void jin_raise(struct jin *r, const char *text, size_t len);
_Noreturn void jin_over(struct jin *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* v was used where it may not */
_Noreturn void jin_undefined(struct jin *r, struct jv v);
void jin_step(struct jin *r, uint64_t n);
void jin_stack(struct jin *r);
void *jin_alloc(struct jin *r, size_t count, size_t size);

/* --- text under way; buffers form a stack */
struct buf *buf_open(struct jin *r);
struct jv buf_close(struct jin *r); /* what the innermost holds, as a string */
void text_add(struct jin *r, struct buf *b, const char *s, size_t len);
void text_adds(struct jin *r, struct buf *b, const char *s);

/* --- making values */
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
struct jv jv_text(const char *s); /* of a constant */
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
/* NULL: absent; a key that cannot be hashed is an error */
const struct jv *dict_get(struct jin *r, const struct jdict *d, struct jv key);
const struct jv *dict_get_text(struct jin *r, const struct jdict *d, const char *s, size_t len);

/* --- looking at them */
const char *jv_type_name(enum jv_type t); /* as Python's type(x).__name__ */
int jv_truth(struct jin *r, struct jv v);
int jv_is_number(struct jv v); /* INT, BOOL, FLOAT */
double jv_number(struct jv v);
int jv_equal(struct jin *r, struct jv a, struct jv b);
/* an error where Python has no order */
int jv_less(struct jin *r, struct jv a, struct jv b, const char *op);
int jv_contains(struct jin *r, struct jv item, struct jv in);
int jv_can_iterate(struct jv v);
int64_t jv_length(struct jin *r, struct jv v); /* -1: has none */
/* everything that it yields; not to be changed */
struct jlist *jv_items(struct jin *r, struct jv v);
struct jv jv_attr(struct jin *r, struct jv o, struct jv name); /* o.name */
struct jv jv_item(struct jin *r, struct jv o, struct jv key);  /* o[key] */
/* NONE where a part is left out */
struct jv jv_slice(struct jin *r, struct jv o, const struct jv part[3]);
struct jv jv_call(struct jin *r, struct jv f, const struct jargs *a);

/* --- as text */
void jv_show(struct jin *r, struct buf *b, struct jv v); /* str(v) */
void jv_repr(struct jin *r, struct buf *b, struct jv v);
struct jv jv_to_str(struct jin *r, struct jv v);
void float_repr(double f, char out[40]);
struct jv str_concat(struct jin *r, struct jv a, struct jv b);
struct jv str_escape(struct jin *r, struct jv v); /* Markup */
struct jv str_repeat(struct jin *r, struct jv s, int64_t times);
struct jv jv_tojson(struct jin *r, const struct jargs *a);

/* --- operators */
struct jv op_binary(struct jin *r, uint8_t token, struct jv a, struct jv b);
struct jv op_negate(struct jin *r, struct jv v);
struct jv str_percent(struct jin *r, struct jv format, struct jv args);
struct jv str_format(struct jin *r, struct jv format, const struct jargs *a);

/* --- arguments of builtins: by place or keyword; NULL when not given */
const struct jv *arg_get(const struct jargs *a, size_t at, const char *name);
int64_t arg_int(struct jin *r, const struct jv *v, int64_t def, const char *what);

/* --- builtins, by name; NULL: none */
struct builtin {
	const char *name;
	/* filters and tests: the first argument is what they stand behind */
	struct jv (*call)(struct jin *r, const struct jargs *a);
	uint8_t most;      /* arguments, the first included */
	const char *names; /* of those after the first, "a,b,c" */
};
const struct builtin *filter_find(const char *s, size_t len);
const struct builtin *test_find(const char *s, size_t len);
struct jv builtin_call(struct jin *r, const struct builtin *f, const char *kind,
                       const struct jargs *a);
/* UNDEF of kind NAME: no such attribute */
struct jv method_find(struct jin *r, struct jv o, const char *s, size_t len);
struct jv method_call(struct jin *r, const struct jmethod *m, const struct jargs *a);
/* vals by keys; equal ones keep their order */
void sort_values(struct jin *r, struct jv *keys, struct jv *vals, size_t n, int reverse);
struct jv global_find(const char *s, size_t len); /* UNDEF: none */
struct jv loop_attr(struct jin *r, struct jloop *l, const char *s, size_t len);

/* --- Unicode, code points */
/* bytes, at least 1; anything ill-formed is one byte, U+FFFD */
int cp_step(const char *s, size_t n, uint32_t *ret_cp);
int cp_put(char out[4], uint32_t cp);
int cp_is_space(uint32_t cp);
int cp_is_printable(uint32_t cp);
enum cp_kind { CP_ALPHA, CP_ALNUM, CP_DECIMAL, CP_DIGIT, CP_UPPER, CP_LOWER, CP_SPACE };
/* as str.isalpha and its like say of one character */
int cp_is(enum cp_kind kind, uint32_t cp);
/* upper 1: str.upper(), 0: str.lower() */
void text_case(struct jin *r, struct buf *b, const char *s, size_t len, int upper);
size_t text_length(const char *s, size_t len);
/* bytes of so many code points, at most len */
size_t text_offset(const char *s, size_t len, size_t chars);
void text_strip(const char **s, size_t *len, const struct jv *chars, int left, int right);

/* eval.c for the rest */
struct jv eval(struct jin *r, const struct node *n);
enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE };
enum flow exec_list(struct jin *r, const struct node_list *l);
struct scope *scope_push(struct jin *r);
void scope_set(struct jin *r, uint32_t name, struct jv v);
struct jv macro_call(struct jin *r, const struct jmacro *m, const struct jargs *a);
struct jv loop_call(struct jin *r, struct jloop *l, const struct jargs *a);

#endif
