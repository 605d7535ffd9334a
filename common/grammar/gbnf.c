/* gbnf.c - see gbnf.h. The text is parsed to one tree for each rule; each tree is then built from
 * its end to its start. GBNF_NEST_MAX bounds the parser's recursion, nfa_step the builder's
 * work. */
#include "gbnf.h"
#include "points.h"
#include "util/arena.h"

#include <string.h>

#define NAME_SHOWN 60

enum gbnf_kind { G_EMPTY, G_TEXT, G_SET, G_RULE, G_CAT, G_ALT, G_REPEAT };

struct gbnf_tree {
	enum gbnf_kind kind;
	const char *text; /* TEXT: with escapes replaced */
	size_t len;
	struct point_range *range; /* SET: n of them */
	uint32_t n;
	struct gbnf_rule *rule;         /* RULE */
	struct gbnf_tree *left, *right; /* CAT, ALT; REPEAT: left */
	uint32_t min, max;
};

struct gbnf_rule {
	const char *name;
	size_t len;
	struct gbnf_tree *body; /* NULL: not defined (yet) */
	uint32_t number;        /* of the network's rule */
	unsigned line;          /* of its first mention */
	struct gbnf_rule *next;
};

struct gbnf_parser {
	const char *at, *end;
	unsigned line, nest;
	struct arena *arena;
	char *text; /* for literals: as large as the grammar, and an escape is never shorter than its
	             * character */
	struct gbnf_rule *rules;
	uint32_t n_rules;
	struct err *err;
};

static void *bad(struct gbnf_parser *p, int code, const char *what)
{
	if (!p->err->code)
		err_set(p->err, code, "%s in line %u of the grammar", what, p->line);
	return NULL;
}

static int next_is(const struct gbnf_parser *p, char c)
{
	return p->at < p->end && *p->at == c;
}

static int take(struct gbnf_parser *p, char c)
{
	if (!next_is(p, c))
		return 0;
	p->at++;
	return 1;
}

/* Over blanks and comments; with lines: over ends of lines, too. */
static void skip(struct gbnf_parser *p, int lines)
{
	while (p->at < p->end) {
		if (*p->at == '#')
			while (p->at < p->end && *p->at != '\n')
				p->at++;
		else if (*p->at == ' ' || *p->at == '\t' || *p->at == '\r')
			p->at++;
		else if (*p->at == '\n' && lines)
			p->line += *p->at++ == '\n';
		else
			return;
	}
}

static struct gbnf_tree *tree_new(struct gbnf_parser *p, enum gbnf_kind kind,
                                  struct gbnf_tree *left, struct gbnf_tree *right)
{
	struct gbnf_tree *t = arena_alloc(p->arena, sizeof *t);
	t->kind = kind;
	t->left = left;
	t->right = right;
	return t;
}

/* --- characters ---------------------------------------------------------- */

static int take_hex(struct gbnf_parser *p, unsigned digits, uint32_t *ret)
{
	uint32_t v = 0;
	for (; digits; digits--, p->at++) {
		char c = p->at < p->end ? *p->at : 0;
		int d = c >= '0' && c <= '9'   ? c - '0'
		        : c >= 'a' && c <= 'f' ? c - 'a' + 10
		        : c >= 'A' && c <= 'F' ? c - 'A' + 10
		                               : -1;
		if (d < 0 || v >> 28)
			return bad(p, ERR_INVALID, "an escape without its hexadecimal digits"), -1;
		v = v << 4 | (uint32_t)d;
	}
	*ret = v;
	return 0;
}

static int take_escape(struct gbnf_parser *p, uint32_t *ret)
{
	char c = p->at < p->end ? *p->at++ : 0;
	switch (c) {
	case 'n': *ret = '\n'; return 0;
	case 'r': *ret = '\r'; return 0;
	case 't': *ret = '\t'; return 0;
	case 'x': return take_hex(p, 2, ret);
	case 'u': return take_hex(p, 4, ret);
	case 'U': return take_hex(p, 8, ret);
	case '\\':
	case '"':
	case '[':
	case ']':
	case '-':
	case '^': *ret = (unsigned char)c; return 0;
	default: return bad(p, ERR_INVALID, "an unknown escape"), -1;
	}
}

/* One character of a literal or of [...]. */
static int take_point(struct gbnf_parser *p, uint32_t *ret)
{
	if (take(p, '\\')) {
		if (take_escape(p, ret) < 0)
			return -1;
	} else {
		unsigned n = point_take(p->at, (size_t)(p->end - p->at), ret);
		if (!n)
			return bad(p, ERR_INVALID, "invalid UTF-8"), -1;
		p->line += *ret == '\n';
		p->at += n;
	}
	if (*ret > POINT_LAST || (*ret >= 0xd800 && *ret < 0xe000))
		return bad(p, ERR_INVALID, "an escape that is no character"), -1;
	return 0;
}

static struct gbnf_tree *parse_text(struct gbnf_parser *p)
{
	struct gbnf_tree *t = tree_new(p, G_TEXT, NULL, NULL);
	unsigned line = p->line;
	p->at++;
	t->text = p->text;
	while (!next_is(p, '"')) {
		uint32_t c;
		if (p->at == p->end) {
			p->line = line;
			return bad(p, ERR_INVALID, "a \" without its end");
		}
		if (take_point(p, &c) < 0)
			return NULL;
		unsigned n = point_put(c, (unsigned char *)p->text);
		p->text += n;
		t->len += n;
	}
	p->at++;
	return t;
}

/* Keeps the characters of s, or all others. */
static struct gbnf_tree *tree_set(struct gbnf_parser *p, struct point_set *s, int negate)
{
	struct gbnf_tree *t = tree_new(p, G_SET, NULL, NULL);
	points_merge(s);
	if (negate)
		points_negate(s);
	if (!s->n)
		return bad(p, ERR_INVALID, "a [...] without a character");
	t->n = s->n;
	t->range = arena_array(p->arena, s->n, sizeof *t->range);
	memcpy(t->range, s->r, s->n * sizeof *t->range);
	return t;
}

static struct gbnf_tree *parse_set(struct gbnf_parser *p)
{
	struct point_set s;
	unsigned line = p->line;
	s.n = 0;
	p->at++;
	int negate = take(p, '^');
	while (!next_is(p, ']')) {
		uint32_t lo, hi;
		if (p->at == p->end) {
			p->line = line;
			return bad(p, ERR_INVALID, "a [ without ]");
		}
		if (take_point(p, &lo) < 0)
			return NULL;
		hi = lo;
		if (next_is(p, '-') && p->at + 1 < p->end && p->at[1] != ']') {
			p->at++;
			if (take_point(p, &hi) < 0)
				return NULL;
		}
		if (hi < lo)
			return bad(p, ERR_INVALID, "a range that ends before it starts");
		if (points_add(&s, lo, hi) < 0)
			return bad(p, ERR_FULL, "more than 512 ranges in [...]");
	}
	p->at++;
	return tree_set(p, &s, negate);
}

/* --- rules --------------------------------------------------------------- */

static int is_of_name(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
	       c == '_';
}

static struct gbnf_rule *take_name(struct gbnf_parser *p)
{
	const char *name = p->at;
	while (p->at < p->end && is_of_name(*p->at))
		p->at++;
	size_t len = (size_t)(p->at - name);
	if (!len)
		return bad(p, ERR_INVALID, "an item, or the name of a rule, is missing");
	for (struct gbnf_rule *r = p->rules; r; r = r->next)
		if (r->len == len && memcmp(r->name, name, len) == 0)
			return r;
	if (p->n_rules++ == GBNF_RULES_MAX)
		return bad(p, ERR_FULL, "more than 1024 rules");
	struct gbnf_rule *r = arena_alloc(p->arena, sizeof *r);
	*r = (struct gbnf_rule){.name = name, .len = len, .line = p->line, .next = p->rules};
	return p->rules = r;
}

static struct gbnf_tree *parse_alternatives(struct gbnf_parser *p);

static struct gbnf_tree *parse_group(struct gbnf_parser *p)
{
	unsigned line = p->line;
	p->at++;
	if (++p->nest > GBNF_NEST_MAX)
		return bad(p, ERR_FULL, "groups nest more than 100 deep");
	struct gbnf_tree *t = parse_alternatives(p);
	p->nest--;
	if (!t || take(p, ')'))
		return t;
	p->line = line;
	return bad(p, ERR_INVALID, "a ( without )");
}

static struct gbnf_tree *parse_item(struct gbnf_parser *p)
{
	struct point_set s;
	struct gbnf_tree *t;
	switch (*p->at) {
	case '"': return parse_text(p);
	case '[': return parse_set(p);
	case '(': return parse_group(p);
	case '.':
		p->at++;
		s.n = 0;
		return tree_set(p, &s, 1);
	default: break;
	}
	struct gbnf_rule *r = take_name(p);
	if (!r)
		return NULL;
	t = tree_new(p, G_RULE, NULL, NULL);
	t->rule = r;
	return t;
}

static int take_number(struct gbnf_parser *p, uint32_t *ret)
{
	const char *from = p->at;
	uint32_t v = 0;
	for (; p->at < p->end && *p->at >= '0' && *p->at <= '9'; p->at++)
		v = v > NFA_REPEAT_MAX ? v : v * 10 + (uint32_t)(*p->at - '0');
	*ret = v;
	return p->at > from;
}

/* 1: there is one. */
static int take_repeat(struct gbnf_parser *p, uint32_t *min, uint32_t *max)
{
	*min = next_is(p, '+');
	*max = next_is(p, '?') ? 1 : NFA_UNBOUNDED;
	if (take(p, '*') || take(p, '+') || take(p, '?'))
		return 1;
	if (!take(p, '{'))
		return 0;
	skip(p, 0);
	int has_min = take_number(p, min);
	*max = *min;
	skip(p, 0);
	if (take(p, ',')) {
		skip(p, 0);
		if (!take_number(p, max))
			*max = NFA_UNBOUNDED;
		skip(p, 0);
	}
	if (!has_min || !take(p, '}') || *max < *min)
		bad(p, ERR_INVALID, "a counter must be {m}, {m,} or {m,n}");
	return 1;
}

static struct gbnf_tree *parse_repeated(struct gbnf_parser *p)
{
	struct gbnf_tree *t = parse_item(p);
	uint32_t min, max;
	if (!t)
		return NULL;
	skip(p, p->nest > 0);
	if (!take_repeat(p, &min, &max))
		return t;
	t = tree_new(p, G_REPEAT, t, NULL);
	t->min = min;
	t->max = max;
	skip(p, p->nest > 0);
	if (p->at < p->end && strchr("*+?{", *p->at))
		bad(p, ERR_INVALID, "a repetition of a repetition");
	return p->err->code ? NULL : t;
}

static int ends_sequence(const struct gbnf_parser *p)
{
	return p->at == p->end || *p->at == '\n' || *p->at == '|' || *p->at == ')';
}

static struct gbnf_tree *parse_sequence(struct gbnf_parser *p)
{
	struct gbnf_tree *all = NULL;
	for (skip(p, p->nest > 0); !ends_sequence(p); skip(p, p->nest > 0)) {
		struct gbnf_tree *t = parse_repeated(p);
		if (!t)
			return NULL;
		all = all ? tree_new(p, G_CAT, all, t) : t;
	}
	return all ? all : tree_new(p, G_EMPTY, NULL, NULL);
}

/* 1: a | follows, perhaps in a later line. Else nothing is skipped. */
static int take_or(struct gbnf_parser *p)
{
	struct gbnf_parser was = *p;
	skip(p, 1);
	if (take(p, '|')) {
		skip(p, 1);
		return 1;
	}
	p->at = was.at;
	p->line = was.line;
	return 0;
}

static struct gbnf_tree *parse_alternatives(struct gbnf_parser *p)
{
	struct gbnf_tree *all = parse_sequence(p);
	while (all && take_or(p)) {
		struct gbnf_tree *t = parse_sequence(p);
		if (!t)
			return NULL;
		all = tree_new(p, G_ALT, all, t);
	}
	return all;
}

static void parse_rule(struct gbnf_parser *p)
{
	struct gbnf_rule *r = take_name(p);
	if (!r)
		return;
	skip(p, 0);
	if (p->end - p->at < 3 || memcmp(p->at, "::=", 3) != 0) {
		bad(p, ERR_INVALID, "a rule's name without ::= after it");
		return;
	}
	p->at += 3;
	skip(p, 1);
	if (r->body) {
		bad(p, ERR_INVALID, "a rule that is defined already");
		return;
	}
	r->body = parse_alternatives(p);
	if (r->body && p->at < p->end && *p->at != '\n')
		bad(p, ERR_INVALID, "a ) without (");
}

/* The rule root, or NULL with the error set. */
static struct gbnf_rule *check_rules(struct gbnf_parser *p)
{
	struct gbnf_rule *root = NULL;
	for (struct gbnf_rule *r = p->rules; r && !p->err->code; r = r->next) {
		if (!r->body)
			err_set(p->err, ERR_INVALID, "the rule %.*s is used in line %u, and not defined",
			        r->len < NAME_SHOWN ? (int)r->len : NAME_SHOWN, r->name, r->line);
		if (r->len == 4 && memcmp(r->name, "root", 4) == 0)
			root = r;
	}
	if (!root && !p->err->code)
		err_set(p->err, ERR_INVALID, "the grammar has no rule root");
	return p->err->code ? NULL : root;
}

/* --- the builder --------------------------------------------------------- */

static uint32_t build(struct nfa *f, const struct gbnf_tree *t, uint32_t next);

static uint32_t build_unit(struct nfa *f, void *arg, uint32_t next)
{
	return build(f, arg, next);
}

static uint32_t build(struct nfa *f, const struct gbnf_tree *t, uint32_t next)
{
	if (nfa_step(f) < 0)
		return 0;
	switch (t->kind) {
	case G_EMPTY: return next;
	case G_TEXT: return nfa_bytes(f, t->text, t->len, next);
	case G_SET: return points_build(f, t->range, t->n, 0, next);
	case G_RULE: return nfa_call(f, t->rule->number, next);
	case G_CAT:
		for (; t->kind == G_CAT; t = t->left) /* long texts are nested to the left */
			next = build(f, t->right, next);
		return build(f, t, next);
	case G_ALT: {
		uint32_t way = build(f, t->right, next);
		for (t = t->left; t->kind == G_ALT && !f->err.code; t = t->left)
			way = nfa_split(f, build(f, t->right, next), way);
		return nfa_split(f, build(f, t, next), way);
	}
	case G_REPEAT: return nfa_repeat(f, build_unit, t->left, t->min, t->max, next);
	}
	return 0;
}

int gbnf_build(struct nfa *f, const char *text, size_t len, uint32_t next, uint32_t *ret_begin,
               struct err *err)
{
	struct err own = {0};
	struct gbnf_parser p = {
		.at = text, .end = text + len, .line = 1, .arena = arena_new(), .err = &own};
	p.text = arena_alloc(p.arena, len + POINT_BYTES_MAX);
	for (skip(&p, 1); p.at < p.end && !own.code; skip(&p, 1))
		parse_rule(&p);
	struct gbnf_rule *root = own.code ? NULL : check_rules(&p);
	for (struct gbnf_rule *r = p.rules; r && root; r = r->next)
		r->number = nfa_rule(f);
	for (struct gbnf_rule *r = p.rules; r && root && !f->err.code; r = r->next)
		nfa_rule_set(f, r->number, build(f, r->body, 0));
	if (root)
		*ret_begin = nfa_call(f, root->number, next);
	arena_destroy(&p.arena);
	return own.code ? err_set(err, own.code, "%s", own.text) : 0;
}
