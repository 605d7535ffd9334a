/* parse_expr.c - parses expressions, from the loosest binding (`a if b else c`) to the tightest (a
 * call, an attribute, an item), in Jinja's order: `~` binds tighter than `+`, and filters and tests
 * tighter than any operator. Two depths are bounded: the recursion of the parser, and the tree,
 * into which the evaluator recurses. */
#include "jinja/tree.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { NESTING_MAX = 100, TREE_DEPTH_MAX = 400 };

_Noreturn void parse_fail(struct parse *p, uint32_t line, const char *fmt, ...)
{
	char text[300];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	p->code = err_set(p->err, ERR_INVALID, "line %u: %s", line, text);
	p->code = ERR_INVALID;
	longjmp(p->bad, 1);
}

static const struct token *look(const struct parse *p, size_t ahead)
{
	size_t at = p->at + ahead;
	return &p->tokens[at < p->n_tokens ? at : p->n_tokens - 1];
}

static const struct token *next(struct parse *p)
{
	const struct token *t = look(p, 0);
	if (t->kind != T_EOF)
		p->at++;
	return t;
}

const char *token_show(const struct token *t, char out[80])
{
	static const char *const names[] = {"the end of the template",
	                                    "text",
	                                    "{{",
	                                    "}}",
	                                    "{%",
	                                    "%}",
	                                    "",
	                                    "a string",
	                                    "a number",
	                                    "a number",
	                                    "+",
	                                    "-",
	                                    "/",
	                                    "//",
	                                    "*",
	                                    "%",
	                                    "**",
	                                    "~",
	                                    "[",
	                                    "]",
	                                    "(",
	                                    ")",
	                                    "{",
	                                    "}",
	                                    "==",
	                                    "!=",
	                                    ">",
	                                    ">=",
	                                    "<",
	                                    "<=",
	                                    "=",
	                                    ".",
	                                    ":",
	                                    "|",
	                                    ",",
	                                    ";"};
	if (t->kind != T_NAME)
		return names[t->kind];
	size_t n = t->len < 60 ? t->len : 60;
	for (size_t i = 0; i < n; i++)
		out[i] = (unsigned char)t->s[i] >= 0x20 && (unsigned char)t->s[i] < 0x7f ? t->s[i] : '?';
	out[n] = 0;
	return out;
}

const struct token *parse_expect(struct parse *p, enum token_kind kind)
{
	char got[80], want[80];
	struct token wanted = {.kind = (uint8_t)kind, .s = "a name", .len = 6};
	if (look(p, 0)->kind != kind)
		parse_fail(p, look(p, 0)->line, "expected %s, got %s", token_show(&wanted, want),
		           token_show(look(p, 0), got));
	return next(p);
}

int parse_skip(struct parse *p, enum token_kind kind)
{
	if (look(p, 0)->kind != kind)
		return 0;
	next(p);
	return 1;
}

int parse_is_word(const struct token *t, const char *word)
{
	return t->kind == T_NAME && t->len == strlen(word) && !memcmp(t->s, word, t->len);
}

int parse_skip_word(struct parse *p, const char *word)
{
	if (!parse_is_word(look(p, 0), word))
		return 0;
	next(p);
	return 1;
}

void parse_enter(struct parse *p)
{
	if (++p->nesting > NESTING_MAX)
		parse_fail(p, look(p, 0)->line, "statements and expressions are nested deeper than %d",
		           NESTING_MAX);
}

struct jinja_node *parse_node(struct parse *p, enum node_kind kind, uint32_t line)
{
	struct jinja_node *n = arena_alloc(p->arena, sizeof *n);
	n->kind = (uint8_t)kind;
	n->line = line;
	n->depth = 1;
	return n;
}

void parse_adopt(struct parse *p, struct jinja_node *parent, const struct jinja_node *child)
{
	if (!child || child->depth < parent->depth)
		return;
	parent->depth = (uint16_t)(child->depth + 1);
	if (parent->depth > TREE_DEPTH_MAX)
		parse_fail(p, parent->line,
		           "an expression has more than %d operators, calls or attributes in a row",
		           TREE_DEPTH_MAX);
}

void parse_push(struct parse *p, struct node_list *l, struct jinja_node *n)
{
	if (l->n == l->size) {
		uint32_t size = l->size ? l->size * 2 : 4;
		struct jinja_node **more = arena_array(p->arena, size, sizeof *more);
		if (l->n)
			memcpy(more, l->v, l->n * sizeof *more);
		l->v = more;
		l->size = size;
	}
	l->v[l->n++] = n;
}

static void push_child(struct parse *p, struct jinja_node *parent, struct jinja_node *child)
{
	parse_push(p, &parent->list, child);
	parse_adopt(p, parent, child);
}

uint32_t parse_name_id(struct parse *p, const char *s, size_t len)
{
	for (uint32_t i = 0; i < p->n_names; i++)
		if (p->names[i].len == len && !memcmp(p->names[i].s, s, len))
			return i;
	if (p->n_names == 4096)
		parse_fail(p, look(p, 0)->line, "the template uses more than 4096 names");
	if (p->n_names == p->names_size) {
		uint32_t size = p->names_size ? p->names_size * 2 : 64;
		struct jinja_name *more = arena_array(p->arena, size, sizeof *more);
		if (p->n_names)
			memcpy(more, p->names, p->n_names * sizeof *more);
		p->names = more;
		p->names_size = size;
	}
	p->names[p->n_names] = (struct jinja_name){s, len};
	return p->n_names++;
}

static struct jinja_node *const_node(struct parse *p, uint32_t line, struct jv v)
{
	struct jinja_node *n = parse_node(p, N_CONST, line);
	n->value = v;
	return n;
}

static struct jinja_node *binary(struct parse *p, enum node_kind kind, uint8_t op, uint32_t line,
                                 struct jinja_node *a, struct jinja_node *b)
{
	struct jinja_node *n = parse_node(p, kind, line);
	n->op = op;
	n->a = a;
	n->b = b;
	parse_adopt(p, n, a);
	parse_adopt(p, n, b);
	return n;
}

/* --- primary ------------------------------------------------------------- */

static struct jinja_node *parse_list(struct parse *p)
{
	struct jinja_node *n = parse_node(p, N_LIST, next(p)->line);
	while (look(p, 0)->kind != T_RBRACKET) {
		if (n->list.n)
			parse_expect(p, T_COMMA);
		if (look(p, 0)->kind == T_RBRACKET)
			break;
		push_child(p, n, parse_expression(p));
	}
	next(p);
	return n;
}

static struct jinja_node *parse_dict(struct parse *p)
{
	struct jinja_node *n = parse_node(p, N_DICT, next(p)->line);
	while (look(p, 0)->kind != T_RBRACE) {
		if (n->list.n)
			parse_expect(p, T_COMMA);
		if (look(p, 0)->kind == T_RBRACE)
			break;
		push_child(p, n, parse_expression(p));
		parse_expect(p, T_COLON);
		struct jinja_node *value = parse_expression(p);
		parse_push(p, &n->more, value);
		parse_adopt(p, n, value);
	}
	next(p);
	return n;
}

static struct jinja_node *parse_strings(struct parse *p)
{
	const struct token *t = next(p);
	if (look(p, 0)->kind != T_STR)
		return const_node(p, t->line, jv_str(t->s, t->len));
	size_t from = p->at - 1, len = 0;
	while (look(p, 0)->kind == T_STR)
		next(p);
	for (size_t i = from; i < p->at; i++)
		len += p->tokens[i].len;
	char *s = arena_alloc(p->arena, len + 1);
	len = 0;
	for (size_t i = from; i < p->at; i++) {
		memcpy(s + len, p->tokens[i].s, p->tokens[i].len);
		len += p->tokens[i].len;
	}
	return const_node(p, t->line, jv_str(s, len));
}

static struct jinja_node *parse_word(struct parse *p, int allow_ns)
{
	const struct token *t = next(p);
	if (parse_is_word(t, "true") || parse_is_word(t, "True"))
		return const_node(p, t->line, jv_bool(1));
	if (parse_is_word(t, "false") || parse_is_word(t, "False"))
		return const_node(p, t->line, jv_bool(0));
	if (parse_is_word(t, "none") || parse_is_word(t, "None"))
		return const_node(p, t->line, jv_none());
	struct jinja_node *n = parse_node(p, N_NAME, t->line);
	n->name = parse_name_id(p, t->s, t->len);
	if (allow_ns && parse_skip(p, T_DOT)) {
		const struct token *attr = parse_expect(p, T_NAME);
		n->kind = N_NSREF;
		n->value = jv_str(attr->s, attr->len);
	}
	return n;
}

static struct jinja_node *parse_primary(struct parse *p, int allow_ns)
{
	const struct token *t = look(p, 0);
	char got[80];
	struct jinja_node *n;
	switch (t->kind) {
	case T_NAME: return parse_word(p, allow_ns);
	case T_STR: return parse_strings(p);
	case T_INT: return const_node(p, t->line, jv_int(next(p)->i));
	case T_FLOAT: return const_node(p, t->line, jv_float(next(p)->f));
	case T_LPAREN:
		next(p);
		n = parse_tuple(p, 1, NULL, 1);
		parse_expect(p, T_RPAREN);
		return n;
	case T_LBRACKET: return parse_list(p);
	case T_LBRACE: return parse_dict(p);
	default: parse_fail(p, t->line, "unexpected %s", token_show(t, got));
	}
}

static int at_tuple_end(const struct parse *p, const char *end_word)
{
	const struct token *t = look(p, 0);
	return t->kind == T_VAR_END || t->kind == T_BLOCK_END || t->kind == T_RPAREN ||
	       (end_word && parse_is_word(t, end_word));
}

static struct jinja_node *parse_or(struct parse *p);

struct jinja_node *parse_tuple(struct parse *p, int with_cond, const char *end_word,
                               int parentheses)
{
	struct jinja_node *n = parse_node(p, N_TUPLE, look(p, 0)->line);
	char got[80];
	int is_tuple = 0;
	for (;;) {
		if (n->list.n)
			parse_expect(p, T_COMMA);
		if (at_tuple_end(p, end_word))
			break;
		push_child(p, n, with_cond ? parse_expression(p) : parse_or(p));
		if (look(p, 0)->kind != T_COMMA)
			break;
		is_tuple = 1;
	}
	if (is_tuple)
		return n;
	if (n->list.n)
		return n->list.v[0];
	if (!parentheses)
		parse_fail(p, n->line, "expected an expression, got %s", token_show(look(p, 0), got));
	return n;
}

static void check_target(struct parse *p, const struct jinja_node *n)
{
	if (n->kind != N_NAME && n->kind != N_NSREF)
		parse_fail(p, n->line, "cannot assign to this expression");
	const struct jinja_name *name = &p->names[n->name]; /* n is a name, so the array is not empty */
	if (name->len == 4 && !memcmp(name->s, "self", 4) && n->kind == N_NAME)
		parse_fail(p, n->line, "the name self is reserved");
}

struct jinja_node *parse_target(struct parse *p, int allow_tuple, int allow_ns,
                                const char *end_word)
{
	struct jinja_node *n = parse_node(p, N_TUPLE, look(p, 0)->line);
	int is_tuple = 0;
	for (;;) {
		if (n->list.n)
			parse_expect(p, T_COMMA);
		if (n->list.n && at_tuple_end(p, end_word))
			break;
		struct jinja_node *one = parse_primary(p, allow_ns);
		if (one->kind == N_TUPLE) /* nested (a, b): names only */
			for (uint32_t i = 0; i < one->list.n; i++)
				check_target(p, one->list.v[i]);
		else
			check_target(p, one);
		push_child(p, n, one);
		if (!allow_tuple || look(p, 0)->kind != T_COMMA)
			break;
		is_tuple = 1;
	}
	return is_tuple ? n : n->list.v[0];
}

/* --- calls, attributes, items, filters, tests ---------------------------- */

static struct node_args *parse_args(struct parse *p, struct jinja_node *owner)
{
	struct node_args *a = arena_alloc(p->arena, sizeof *a);
	struct node_list names = {0};
	uint32_t line = parse_expect(p, T_LPAREN)->line;
	int first = 1;
	while (look(p, 0)->kind != T_RPAREN) {
		if (!first) {
			parse_expect(p, T_COMMA);
			if (look(p, 0)->kind == T_RPAREN)
				break;
		}
		first = 0;
		struct jinja_node *v;
		if (look(p, 0)->kind == T_MUL && !a->star && !a->star_star) {
			next(p);
			v = a->star = parse_expression(p);
		} else if (look(p, 0)->kind == T_POW && !a->star_star) {
			next(p);
			v = a->star_star = parse_expression(p);
		} else if (look(p, 0)->kind == T_NAME && look(p, 1)->kind == T_ASSIGN && !a->star_star) {
			const struct token *name = next(p);
			next(p);
			parse_push(p, &names, const_node(p, name->line, jv_str(name->s, name->len)));
			v = parse_expression(p);
			parse_push(p, &a->kw_values, v);
		} else if (!a->star && !a->star_star && !names.n) {
			v = parse_expression(p);
			parse_push(p, &a->args, v);
		} else {
			parse_fail(p, line, "a positional argument after a keyword argument");
		}
		parse_adopt(p, owner, v);
	}
	parse_expect(p, T_RPAREN);
	a->kw_names = names.n ? arena_array(p->arena, names.n, sizeof *a->kw_names) : NULL;
	for (uint32_t i = 0; i < names.n; i++)
		a->kw_names[i] = names.v[i]->value;
	return a;
}

static struct jinja_node *parse_call(struct parse *p, struct jinja_node *callee)
{
	struct jinja_node *n = parse_node(p, N_CALL, look(p, 0)->line);
	n->a = callee;
	parse_adopt(p, n, callee);
	n->args = parse_args(p, n);
	return n;
}

static struct jinja_node *parse_slice_or_index(struct parse *p)
{
	struct jinja_node *n = NULL, *part[3] = {0};
	uint32_t line = look(p, 0)->line;
	if (!parse_skip(p, T_COLON)) {
		part[0] = parse_expression(p);
		if (!parse_skip(p, T_COLON))
			return part[0];
	}
	n = parse_node(p, N_SLICE, line);
	for (int i = 1; i < 3; i++) {
		uint8_t kind = look(p, 0)->kind;
		if (kind != T_COLON && kind != T_RBRACKET && kind != T_COMMA)
			part[i] = parse_expression(p);
		if (i == 1 && !parse_skip(p, T_COLON))
			break;
	}
	for (int i = 0; i < 3; i++) {
		parse_push(p, &n->list, part[i]);
		parse_adopt(p, n, part[i]);
	}
	return n;
}

static struct jinja_node *parse_subscript(struct parse *p, struct jinja_node *object)
{
	const struct token *t = next(p), *name = look(p, 0);
	if (t->kind == T_DOT) {
		next(p);
		if (name->kind == T_NAME) {
			struct jinja_node *n = binary(p, N_ATTR, 0, t->line, object, NULL);
			n->value = jv_str(name->s, name->len);
			return n;
		}
		if (name->kind != T_INT)
			parse_fail(p, name->line, "expected a name or a number after the dot");
		return binary(p, N_ITEM, 0, t->line, object, const_node(p, name->line, jv_int(name->i)));
	}
	struct jinja_node *key = NULL, *many = NULL;
	while (look(p, 0)->kind != T_RBRACKET) {
		if (key)
			parse_expect(p, T_COMMA);
		struct jinja_node *one = parse_slice_or_index(p);
		if (key && !many) {
			many = parse_node(p, N_TUPLE, t->line);
			push_child(p, many, key);
		}
		if (many)
			push_child(p, many, one);
		key = one;
	}
	next(p);
	if (!key)
		key = parse_node(p, N_TUPLE, t->line);
	struct jinja_node *n = binary(p, N_ITEM, 0, t->line, object, many ? many : key);
	if (n->b->kind == N_SLICE) {
		struct jinja_node *slice = n->b;
		slice->a = object;
		parse_adopt(p, slice, object);
		return slice;
	}
	for (uint32_t i = 0; many && i < many->list.n; i++)
		if (many->list.v[i]->kind == N_SLICE)
			parse_fail(p, t->line, "multi-dimensional slices are not supported");
	return n;
}

static struct jinja_node *parse_postfix(struct parse *p, struct jinja_node *n)
{
	for (;;) {
		uint8_t kind = look(p, 0)->kind;
		if (kind == T_DOT || kind == T_LBRACKET)
			n = parse_subscript(p, n);
		else if (kind == T_LPAREN)
			n = parse_call(p, n);
		else
			return n;
	}
}

/* Parses name or name.name, as a string constant. */
static struct jv dotted_name(struct parse *p, uint32_t *ret_line)
{
	const struct token *t = parse_expect(p, T_NAME);
	const char *s = t->s;
	size_t len = t->len;
	*ret_line = t->line;
	while (parse_skip(p, T_DOT)) {
		t = parse_expect(p, T_NAME);
		s = arena_printf(p->arena, "%.*s.%.*s", (int)len, s, (int)t->len, t->s);
		len = strlen(s);
	}
	return jv_str(s, len);
}

struct jinja_node *parse_filters(struct parse *p, struct jinja_node *input, int at_name)
{
	while (at_name || parse_skip(p, T_PIPE)) {
		uint32_t line;
		struct jv name = dotted_name(p, &line);
		struct jinja_node *n = parse_node(p, N_FILTER, line);
		n->value = name;
		n->a = input;
		n->builtin = filter_find(name.s, name.len);
		parse_adopt(p, n, input);
		if (look(p, 0)->kind == T_LPAREN)
			n->args = parse_args(p, n);
		input = n;
		at_name = 0;
	}
	return input;
}

static struct jinja_node *parse_test(struct parse *p, struct jinja_node *input)
{
	uint32_t line;
	int negated = parse_skip_word(p, "not");
	struct jv name = dotted_name(p, &line);
	struct jinja_node *n = parse_node(p, N_TEST, line);
	n->value = name;
	n->a = input;
	n->builtin = test_find(name.s, name.len);
	parse_adopt(p, n, input);
	const struct token *t = look(p, 0);
	int operand = t->kind == T_NAME || t->kind == T_STR || t->kind == T_INT || t->kind == T_FLOAT ||
	              t->kind == T_LBRACKET || t->kind == T_LBRACE;
	if (t->kind == T_LPAREN) {
		n->args = parse_args(p, n);
	} else if (operand && !parse_is_word(t, "else") && !parse_is_word(t, "or") &&
	           !parse_is_word(t, "and")) {
		if (parse_is_word(t, "is"))
			parse_fail(p, t->line, "tests cannot be chained with is");
		struct jinja_node *arg = parse_postfix(p, parse_primary(p, 0));
		n->args = arena_alloc(p->arena, sizeof *n->args);
		parse_push(p, &n->args->args, arg);
		parse_adopt(p, n, arg);
	}
	return negated ? binary(p, N_NOT, 0, line, n, NULL) : n;
}

static struct jinja_node *parse_filters_and_tests(struct parse *p, struct jinja_node *n)
{
	for (;;) {
		if (look(p, 0)->kind == T_PIPE)
			n = parse_filters(p, n, 0);
		else if (parse_skip_word(p, "is"))
			n = parse_test(p, n);
		else if (look(p, 0)->kind == T_LPAREN)
			n = parse_call(p, n);
		else
			return n;
	}
}

/* --- operators ----------------------------------------------------------- */

static struct jinja_node *parse_unary(struct parse *p, int with_filter)
{
	const struct token *t = look(p, 0);
	struct jinja_node *n;
	parse_enter(p);
	if (t->kind == T_SUB || t->kind == T_ADD) {
		next(p);
		n = binary(p, t->kind == T_SUB ? N_NEG : N_POS, 0, t->line, parse_unary(p, 0), NULL);
	} else {
		n = parse_primary(p, 0);
	}
	n = parse_postfix(p, n);
	p->nesting--;
	return with_filter ? parse_filters_and_tests(p, n) : n;
}

static struct jinja_node *parse_pow(struct parse *p)
{
	struct jinja_node *n = parse_unary(p, 1);
	while (look(p, 0)->kind == T_POW) {
		uint32_t line = next(p)->line;
		n = binary(p, N_BINARY, T_POW, line, n, parse_unary(p, 1));
	}
	return n;
}

static struct jinja_node *parse_product(struct parse *p)
{
	struct jinja_node *n = parse_pow(p);
	for (;;) {
		const struct token *t = look(p, 0);
		if (t->kind != T_MUL && t->kind != T_DIV && t->kind != T_FLOORDIV && t->kind != T_MOD)
			return n;
		next(p);
		n = binary(p, N_BINARY, t->kind, t->line, n, parse_pow(p));
	}
}

static struct jinja_node *parse_concat(struct parse *p)
{
	struct jinja_node *first = parse_product(p), *n = NULL;
	while (look(p, 0)->kind == T_TILDE) {
		uint32_t line = next(p)->line;
		if (!n) {
			n = parse_node(p, N_CONCAT, line);
			push_child(p, n, first);
		}
		push_child(p, n, parse_product(p));
	}
	return n ? n : first;
}

static struct jinja_node *parse_sum(struct parse *p)
{
	struct jinja_node *n = parse_concat(p);
	for (;;) {
		const struct token *t = look(p, 0);
		if (t->kind != T_ADD && t->kind != T_SUB)
			return n;
		next(p);
		n = binary(p, N_BINARY, t->kind, t->line, n, parse_concat(p));
	}
}

/* The comparison operator at the current token, which is consumed; -1: none. */
static int compare_op(struct parse *p)
{
	static const uint8_t ops[][2] = {{T_EQ, CMP_EQ},   {T_NE, CMP_NE}, {T_LT, CMP_LT},
	                                 {T_LTEQ, CMP_LE}, {T_GT, CMP_GT}, {T_GTEQ, CMP_GE}};
	for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
		if (parse_skip(p, (enum token_kind)ops[i][0]))
			return ops[i][1];
	if (parse_skip_word(p, "in"))
		return CMP_IN;
	if (parse_is_word(look(p, 0), "not") && parse_is_word(look(p, 1), "in")) {
		p->at += 2;
		return CMP_NOT_IN;
	}
	return -1;
}

static struct jinja_node *parse_compare(struct parse *p)
{
	struct jinja_node *first = parse_sum(p), *n = NULL;
	uint8_t *ops = NULL;
	for (;;) {
		uint32_t line = look(p, 0)->line;
		int op = compare_op(p);
		if (op < 0)
			break;
		if (!n) {
			n = parse_node(p, N_COMPARE, line);
			n->a = first;
			parse_adopt(p, n, first);
		}
		push_child(p, n, parse_sum(p));
		uint8_t *more = arena_alloc(p->arena, n->list.n);
		if (ops)
			memcpy(more, ops, n->list.n - 1);
		more[n->list.n - 1] = (uint8_t)op;
		n->ops = ops = more;
		if (n->list.n > 64)
			parse_fail(p, line, "more than 64 comparisons in a row");
	}
	return n ? n : first;
}

static struct jinja_node *parse_not(struct parse *p)
{
	const struct token *t = look(p, 0);
	if (!parse_skip_word(p, "not"))
		return parse_compare(p);
	parse_enter(p);
	struct jinja_node *n = binary(p, N_NOT, 0, t->line, parse_not(p), NULL);
	p->nesting--;
	return n;
}

static struct jinja_node *parse_and(struct parse *p)
{
	struct jinja_node *n = parse_not(p);
	while (parse_is_word(look(p, 0), "and")) {
		uint32_t line = next(p)->line;
		n = binary(p, N_AND, 0, line, n, parse_not(p));
	}
	return n;
}

static struct jinja_node *parse_or(struct parse *p)
{
	struct jinja_node *n = parse_and(p);
	while (parse_is_word(look(p, 0), "or")) {
		uint32_t line = next(p)->line;
		n = binary(p, N_OR, 0, line, n, parse_and(p));
	}
	return n;
}

struct jinja_node *parse_expression(struct parse *p)
{
	parse_enter(p);
	struct jinja_node *n = parse_or(p);
	while (parse_is_word(look(p, 0), "if")) {
		struct jinja_node *c = parse_node(p, N_COND, next(p)->line);
		c->b = n;
		c->a = parse_or(p);
		if (parse_skip_word(p, "else"))
			c->c = parse_expression(p);
		parse_adopt(p, c, c->a);
		parse_adopt(p, c, c->b);
		parse_adopt(p, c, c->c);
		n = c;
	}
	p->nesting--;
	return n;
}
