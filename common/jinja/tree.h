/* tree.h - inside common/jinja: tokens, and the tree that the parser builds and the evaluator
 * walks. Everything is in the template's arena and immutable once the template is made. */
#ifndef JINJA_TREE_H
#define JINJA_TREE_H

#include "jinja/value.h"
#include "util/arena.h"
#include "util/err.h"

#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>

enum token_kind {
	T_EOF,
	T_DATA,
	T_VAR_BEGIN,
	T_VAR_END,
	T_BLOCK_BEGIN,
	T_BLOCK_END,
	T_NAME,
	T_STR,
	T_INT,
	T_FLOAT,
	T_ADD,
	T_SUB,
	T_DIV,
	T_FLOORDIV,
	T_MUL,
	T_MOD,
	T_POW,
	T_TILDE,
	T_LBRACKET,
	T_RBRACKET,
	T_LPAREN,
	T_RPAREN,
	T_LBRACE,
	T_RBRACE,
	T_EQ,
	T_NE,
	T_GT,
	T_GTEQ,
	T_LT,
	T_LTEQ,
	T_ASSIGN,
	T_DOT,
	T_COLON,
	T_PIPE,
	T_COMMA,
	T_SEMICOLON
};

struct token {
	uint8_t kind;
	uint32_t line;
	const char *s; /* DATA, NAME, STR: its text, with escapes decoded */
	size_t len;
	int64_t i;
	double f;
};

/* State shared by lexer and parser. Errors leave by longjmp: the arena is the only memory in
 * use. */
struct parse {
	struct arena *arena;
	jmp_buf bad;
	struct err *err;
	int code;
	const char *text;
	size_t len;
	struct token *tokens;
	size_t n_tokens, tokens_size;
	size_t at; /* the parser's current token */
	unsigned nesting, loops;
	struct jinja_name *names;
	uint32_t n_names, names_size;
};

_Noreturn void parse_fail(struct parse *p, uint32_t line, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
void lex(struct parse *p);

enum node_kind {
	/* statements */
	N_TEXT,
	N_PRINT,
	N_FOR,
	N_IF,
	N_SET,
	N_SET_BLOCK,
	N_MACRO,
	N_CALL_BLOCK,
	N_FILTER_BLOCK,
	N_SCOPE,
	N_WITH,
	N_BREAK,
	N_CONTINUE,
	/* expressions */
	N_CONST,
	N_NAME,
	N_LIST,
	N_TUPLE,
	N_DICT,
	N_ATTR,
	N_ITEM,
	N_SLICE,
	N_CALL,
	N_FILTER,
	N_TEST,
	N_BINARY,
	N_AND,
	N_OR,
	N_NOT,
	N_NEG,
	N_POS,
	N_CONCAT,
	N_COMPARE,
	N_COND,
	N_NSREF
};

enum compare_op { CMP_EQ, CMP_NE, CMP_LT, CMP_LE, CMP_GT, CMP_GE, CMP_IN, CMP_NOT_IN };

struct node_list {
	struct jinja_node **v;
	uint32_t n, size;
};

struct node_args {
	struct node_list args;
	struct node_list kw_values;
	struct jv *kw_names; /* strings, one per element of kw_values */
	struct jinja_node *star, *star_star;
};

/* One struct for all kinds. Fields used by each kind:
 *   TEXT          value
 *   PRINT         a
 *   FOR           a: target, b: iterable, c: condition or NULL, list: body, more: else,
 *                 op: 1 if recursive, name: `loop`
 *   IF            a: condition, list: body, more: else, or the next elif as an IF if op is 1
 *   SET           a: target, b: value
 *   SET_BLOCK     a: target, b: filter or NULL, list: body
 *   MACRO         name, value: the name as a string, params, list: body
 *   CALL_BLOCK    a: call, params, list: body
 *   FILTER_BLOCK  a: filter whose innermost input is NULL, list: body
 *   SCOPE         list: body
 *   WITH          more: targets, args->args: values, list: body
 *   CONST         value
 *   NAME          name
 *   LIST, TUPLE   list
 *   DICT          list: keys, more: values
 *   ATTR          a: object, value: the attribute's name
 *   ITEM          a: object, b: key
 *   SLICE         a: object, list: begin, end, step, each may be NULL
 *   CALL          a: function, args
 *   FILTER, TEST  a: input, value: its name, builtin, args
 *   BINARY        op: token, a, b
 *   AND, OR       a, b
 *   NOT, NEG, POS a
 *   CONCAT        list
 *   COMPARE       a: first operand, list: the others, ops: operator before each of these
 *   COND          a: condition, b: value, c: else or NULL
 *   NSREF         name: namespace, value: the attribute's name */
struct jinja_node {
	uint8_t kind, op;
	uint16_t depth;
	uint32_t line, name;
	struct jinja_node *a, *b, *c;
	struct node_list list, more;
	struct jv value;
	struct node_args *args;
	const void *builtin; /* NULL: no such filter or test; an error only when it is evaluated */
	const uint8_t *ops;
	struct node_params *params;
};

struct node_params {
	uint32_t *names;
	struct jinja_node **defaults; /* element NULL: no default */
	uint32_t n;
	int uses_caller, uses_varargs, uses_kwargs;
};

struct jinja_name {
	const char *s;
	size_t len;
};

struct jinja_template {
	struct arena *arena;
	struct node_list body;
	/* every name that the template uses; a name's number is its index */
	struct jinja_name *names;
	uint32_t n_names;
};

/* parse_expr.c, for parse.c */
struct jinja_node *parse_node(struct parse *p, enum node_kind kind, uint32_t line);
/* updates the parent's depth; child may be NULL */
void parse_adopt(struct parse *p, struct jinja_node *parent, const struct jinja_node *child);
void parse_push(struct parse *p, struct node_list *l, struct jinja_node *n);
void parse_enter(struct parse *p);
uint32_t parse_name_id(struct parse *p, const char *s, size_t len);
const struct token *parse_expect(struct parse *p, enum token_kind kind);
int parse_skip(struct parse *p, enum token_kind kind);
int parse_is_word(const struct token *t, const char *word);
int parse_skip_word(struct parse *p, const char *word);
const char *token_show(const struct token *t, char out[80]);
struct jinja_node *parse_expression(struct parse *p);
struct jinja_node *parse_tuple(struct parse *p, int with_cond, const char *end_word,
                               int parentheses);
struct jinja_node *parse_filters(struct parse *p, struct jinja_node *input, int at_name);
struct jinja_node *parse_target(struct parse *p, int allow_tuple, int allow_ns,
                                const char *end_word);

/* parse.c */
void parse_template(struct parse *p, struct node_list *body);

#endif
