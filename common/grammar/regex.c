/* regex.c - see regex.h. The expression is parsed to a tree, which is then built from its end to
 * its start. REGEX_NEST_MAX bounds the parser's recursion, the limit on nodes the builder's work.
 * Where ECMAScript and Python differ (\d, \w, \s, their complements, line ends), only what both
 * match is allowed: \d, \w and \s are ASCII, and \D, \W, \S and [^...] leave out what is a digit,
 * a word character or white space for either. */
#include "regex.h"
#include "points.h"
#include "util/arena.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

enum tree_kind { T_EMPTY, T_RANGES, T_CAT, T_ALT, T_REPEAT };

struct tree {
	enum tree_kind kind;
	struct point_range *range; /* RANGES: sorted, disjoint, not adjacent */
	uint32_t n;
	struct tree *left, *right; /* CAT, ALT; REPEAT: left */
	uint32_t min, max;
	int open_begin, open_end; /* top-level alternatives: no ^, no $ */
};

struct parser {
	const char *text;
	size_t len, at;
	struct arena *arena;
	struct err *err;
	unsigned nest;
	int json;
	/* The class that is being read, once with the fewest characters for \d, \w and \s that an
	 * engine has and once with the most. Every engine matches what is in both at the end. */
	struct point_set least, most;
};

/* --- characters ---------------------------------------------------------- */

static int bad(struct parser *p, int code, size_t at, const char *what)
{
	if (p->err && !p->err->code)
		err_set(p->err, code, "%s at offset %zu of the regular expression", what, at);
	return code;
}

static int more(const struct parser *p)
{
	return p->at < p->len;
}

static int next_is(const struct parser *p, char c)
{
	return more(p) && p->text[p->at] == c;
}

static int take_point(struct parser *p, uint32_t *ret)
{
	unsigned n = point_take(p->text + p->at, p->len - p->at, ret);
	p->at += n;
	return n ? 0 : bad(p, ERR_INVALID, p->at, "invalid UTF-8");
}

static int take_hex(struct parser *p, unsigned digits, uint32_t *ret)
{
	uint32_t v = 0;
	for (unsigned i = 0; i < digits; i++, p->at++) {
		char c = more(p) ? p->text[p->at] : 0;
		int d = c >= '0' && c <= '9'   ? c - '0'
		        : c >= 'a' && c <= 'f' ? c - 'a' + 10
		        : c >= 'A' && c <= 'F' ? c - 'A' + 10
		                               : -1;
		if (d < 0)
			return bad(p, ERR_INVALID, p->at, "a hexadecimal digit is missing");
		v = v << 4 | (uint32_t)d;
	}
	*ret = v;
	return 0;
}

static int take_u(struct parser *p, size_t begin, uint32_t *ret)
{
	uint32_t low;
	int r = take_hex(p, 4, ret);
	if (r < 0 || *ret < 0xd800 || *ret >= 0xe000)
		return r;
	if (*ret >= 0xdc00 || p->len - p->at < 6 || p->text[p->at] != '\\' || p->text[p->at + 1] != 'u')
		return bad(p, ERR_INVALID, begin, "an unpaired surrogate");
	p->at += 2;
	if ((r = take_hex(p, 4, &low)) < 0)
		return r;
	if (low < 0xdc00 || low >= 0xe000)
		return bad(p, ERR_INVALID, begin, "an unpaired surrogate");
	*ret = 0x10000 + ((*ret - 0xd800) << 10 | (low - 0xdc00));
	return 0;
}

/* --- sets of characters -------------------------------------------------- */

static int range_add(struct parser *p, uint32_t lo, uint32_t hi)
{
	return points_add(&p->least, lo, hi) < 0 || points_add(&p->most, lo, hi) < 0
	           ? bad(p, ERR_FULL, p->at, "more than 512 ranges in [...]")
	           : 0;
}

static const struct point_range digits[] = {{'0', '9'}},
								words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
								spaces[] = {{'\t', '\r'}, {' ', ' '}},
								all_spaces[] = {{'\t', '\r'},     {0x1c, ' '},
                                                {0x85, 0x85},     {0xa0, 0xa0},
                                                {0x1680, 0x1680}, {0x2000, 0x200a},
                                                {0x2028, 0x2029}, {0x202f, 0x202f},
                                                {0x205f, 0x205f}, {0x3000, 0x3000},
                                                {0xfeff, 0xfeff}},
								line_ends[] = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

/* At least what Python's \d matches, the decimal digits of Unicode. Some rare scripts are in it
 * whole: each range costs nodes. */
static const struct point_range all_digits[] = {
	{0x30, 0x39},       {0x660, 0x669},     {0x6f0, 0x6f9},     {0x7c0, 0x7c9},
	{0x966, 0x96f},     {0x9e6, 0x9ef},     {0xa66, 0xa6f},     {0xae6, 0xaef},
	{0xb66, 0xb6f},     {0xbe6, 0xbef},     {0xc66, 0xc6f},     {0xce6, 0xcef},
	{0xd66, 0xd6f},     {0xde6, 0xdef},     {0xe50, 0xe59},     {0xed0, 0xed9},
	{0xf20, 0xf29},     {0x1040, 0x1049},   {0x1090, 0x1099},   {0x17e0, 0x17e9},
	{0x1810, 0x1819},   {0x1946, 0x194f},   {0x19d0, 0x19d9},   {0x1a80, 0x1a89},
	{0x1a90, 0x1a99},   {0x1b50, 0x1b59},   {0x1bb0, 0x1bb9},   {0x1c40, 0x1c49},
	{0x1c50, 0x1c59},   {0xa620, 0xa629},   {0xa8d0, 0xa8d9},   {0xa900, 0xa909},
	{0xa9d0, 0xa9d9},   {0xa9f0, 0xa9f9},   {0xaa50, 0xaa59},   {0xabf0, 0xabf9},
	{0xff10, 0xff19},   {0x104a0, 0x104a9}, {0x10d30, 0x10d49}, {0x11000, 0x11fff},
	{0x16a60, 0x16d7f}, {0x1ccf0, 0x1ccf9}, {0x1d7ce, 0x1d7ff}, {0x1e140, 0x1e5ff},
	{0x1e950, 0x1e959}, {0x1fbf0, 0x1fbf9}};

/* At least what Python's \w matches. Beyond ASCII, this is all but the blocks of punctuation,
 * symbols, emoji and private use, and common combining marks. */
static const struct point_range all_words[] = {
	{0x30, 0x39},       {0x41, 0x5a},        {0x5f, 0x5f},       {0x61, 0x7a},
	{0xaa, 0xaa},       {0xb2, 0xb3},        {0xb5, 0xb5},       {0xb9, 0xba},
	{0xbc, 0xbe},       {0xc0, 0xd6},        {0xd8, 0xf6},       {0xf8, 0x2ff},
	{0x370, 0x1fff},    {0x2065, 0x2065},    {0x2070, 0x209f},   {0x20c1, 0x20cf},
	{0x20f1, 0x218f},   {0x2427, 0x243f},    {0x244b, 0x24ff},   {0x2776, 0x2793},
	{0x2b74, 0x2b75},   {0x2b96, 0x2b96},    {0x2c00, 0x2fff},   {0x3005, 0x3007},
	{0x3021, 0x302f},   {0x3031, 0xdfff},    {0xf900, 0xfdff},   {0xfe10, 0xfe2f},
	{0xfe53, 0xfe53},   {0xfe67, 0xfefe},    {0xff00, 0xff00},   {0xff10, 0xff19},
	{0xff21, 0xff3a},   {0xff41, 0xff5a},    {0xff66, 0xffdf},   {0xffe7, 0xfffc},
	{0xfffe, 0x1f1e5},  {0x1f200, 0x1f2ff},  {0x1fb00, 0xe001f}, {0xe0080, 0xeffff},
	{0xffffe, 0xfffff}, {0x10fffe, 0x10ffff}};

#define COUNT(a) (uint32_t)(sizeof(a) / sizeof *(a))

static int add_to(struct point_set *s, const struct point_range *r, uint32_t n, int negate)
{
	struct point_set own = {.n = n};
	int code = 0;
	memcpy(own.r, r, n * sizeof *r);
	if (negate)
		points_negate(&own);
	for (uint32_t i = 0; i < own.n && code == 0; i++)
		code = points_add(s, own.r[i].lo, own.r[i].hi);
	return code;
}

/* A class or its complement: `least` is what every engine has in it, `most` what any has. */
static int add_named(struct parser *p, const struct point_range *least, uint32_t n_least,
                     const struct point_range *most, uint32_t n_most, int negate)
{
	return add_to(&p->least, least, n_least, negate) < 0 ||
	               add_to(&p->most, most, n_most, negate) < 0
	           ? bad(p, ERR_FULL, p->at, "more than 512 ranges in [...]")
	           : 0;
}

/* After a backslash. Returns 1 with one character in *ret, 0 with a class added, or an error. */
static int take_escape(struct parser *p, uint32_t *ret)
{
	static const char plain[] = "^$\\.*+?()[]{}|/-\"'`~!@#%&=:;<>, ", control[] = "n\nr\rt\tf\fv\v";
	size_t begin = p->at - 1;
	if (!more(p))
		return bad(p, ERR_INVALID, begin, "nothing after the \\");
	char c = p->text[p->at++];
	switch (c) {
	case 'd':
	case 'D': return add_named(p, digits, COUNT(digits), all_digits, COUNT(all_digits), c == 'D');
	case 'w':
	case 'W': return add_named(p, words, COUNT(words), all_words, COUNT(all_words), c == 'W');
	case 's':
	case 'S': return add_named(p, spaces, COUNT(spaces), all_spaces, COUNT(all_spaces), c == 'S');
	case 'x': return take_hex(p, 2, ret) < 0 ? ERR_INVALID : 1;
	case 'u': return take_u(p, begin, ret) < 0 ? ERR_INVALID : 1;
	case '0':
		if (more(p) && p->text[p->at] >= '0' && p->text[p->at] <= '9')
			return bad(p, ERR_UNSUPPORTED, begin, "an octal escape is not supported");
		*ret = 0;
		return 1;
	case 'b':
	case 'B': return bad(p, ERR_UNSUPPORTED, begin, "a word boundary is not supported");
	case 'p':
	case 'P': return bad(p, ERR_UNSUPPORTED, begin, "a Unicode property is not supported");
	default: break;
	}
	for (unsigned i = 0; control[i]; i += 2)
		if (c == control[i]) {
			*ret = (uint32_t)control[i + 1];
			return 1;
		}
	if (c >= '1' && c <= '9')
		return bad(p, ERR_UNSUPPORTED, begin, "a back reference is not supported");
	if (!strchr(plain, c))
		return bad(p, ERR_UNSUPPORTED, begin, "unknown escape");
	*ret = (unsigned char)c;
	return 1;
}

/* One member of [...]: returns 1 with its character, 0 if it was a class, or an error. */
static int take_member(struct parser *p, uint32_t *ret)
{
	if (!next_is(p, '\\'))
		return take_point(p, ret) < 0 ? ERR_INVALID : 1;
	p->at++;
	return take_escape(p, ret);
}

static int class_members(struct parser *p, size_t begin)
{
	while (more(p) && !next_is(p, ']')) {
		uint32_t lo, hi;
		size_t at = p->at;
		if (next_is(p, '[') && p->at + 1 < p->len && strchr(":.=", p->text[p->at + 1]))
			return bad(p, ERR_UNSUPPORTED, at, "a POSIX class is not supported");
		int r = take_member(p, &lo);
		if (r < 0)
			return r;
		int dash = next_is(p, '-') && p->at + 1 < p->len && p->text[p->at + 1] != ']';
		if (r == 0 && dash)
			return bad(p, ERR_INVALID, at, "a range that starts with a class");
		if (r == 0)
			continue;
		hi = lo;
		if (dash) {
			p->at++;
			if ((r = take_member(p, &hi)) < 0)
				return r;
			if (r == 0 || hi < lo)
				return bad(p, ERR_INVALID, at, "a range that ends before it starts");
		}
		if ((r = range_add(p, lo, hi)) < 0)
			return r;
	}
	if (!more(p))
		return bad(p, ERR_INVALID, begin, "a [ without ]");
	p->at++;
	return 0;
}

static struct tree *tree_new(struct parser *p, enum tree_kind kind, struct tree *left,
                             struct tree *right)
{
	struct tree *t = arena_alloc(p->arena, sizeof *t);
	t->kind = kind;
	t->left = left;
	t->right = right;
	return t;
}

/* What every engine has in the class that was read, or in its complement. */
static struct tree *tree_class(struct parser *p, int negate, size_t begin)
{
	struct point_set *s = &p->least;
	points_merge(&p->least);
	points_merge(&p->most);
	if (negate) {
		points_negate(&p->least);
		points_negate(&p->most);
	}
	if (points_intersect(s, &p->most) < 0)
		return bad(p, ERR_FULL, begin, "more than 512 ranges in [...]"), NULL;
	if (s->n == 0)
		return bad(p, ERR_INVALID, begin, "a [^...] that leaves no character"), NULL;
	struct tree *t = tree_new(p, T_RANGES, NULL, NULL);
	t->n = s->n;
	t->range = arena_array(p->arena, s->n, sizeof *t->range);
	memcpy(t->range, s->r, s->n * sizeof *t->range);
	return t;
}

static struct tree *tree_point(struct parser *p, uint32_t c)
{
	struct tree *t = tree_new(p, T_RANGES, NULL, NULL);
	t->n = 1;
	t->range = arena_alloc(p->arena, sizeof *t->range);
	*t->range = (struct point_range){c, c};
	return t;
}

static struct tree *parse_class(struct parser *p)
{
	size_t begin = p->at++;
	int negate = next_is(p, '^');
	p->at += (size_t)negate;
	if (next_is(p, ']'))
		return bad(p, ERR_UNSUPPORTED, begin,
		           "a [...] that starts with ] means different things to different engines: write "
		           "\\]"),
		       NULL;
	return class_members(p, begin) < 0 ? NULL : tree_class(p, negate, begin);
}

/* --- the parser ---------------------------------------------------------- */

static struct tree *parse_alternatives(struct parser *p, int top);

/* After "(?". Skips the names of groups. */
static int group_kind(struct parser *p, size_t begin)
{
	if (next_is(p, ':')) {
		p->at++;
		return 0;
	}
	size_t name = p->at + (next_is(p, 'P') ? 1 : 0);
	if (name + 1 < p->len && p->text[name] == '<' && p->text[name + 1] != '=' &&
	    p->text[name + 1] != '!') {
		const char *end = memchr(p->text + name, '>', p->len - name);
		if (!end)
			return bad(p, ERR_INVALID, begin, "a group name without >");
		p->at = (size_t)(end - p->text) + 1;
		return 0;
	}
	if (more(p) && strchr("=!<", p->text[p->at]))
		return bad(p, ERR_UNSUPPORTED, begin, "lookahead and lookbehind are not supported");
	return bad(p, ERR_UNSUPPORTED, begin, "a group of this kind is not supported");
}

static struct tree *parse_group(struct parser *p)
{
	size_t begin = p->at++;
	if (next_is(p, '?')) {
		p->at++;
		if (group_kind(p, begin) < 0)
			return NULL;
	}
	if (++p->nest > REGEX_NEST_MAX)
		return bad(p, ERR_FULL, begin, "groups nest more than 100 deep"), NULL;
	struct tree *t = parse_alternatives(p, 0);
	p->nest--;
	if (t && !next_is(p, ')'))
		return bad(p, ERR_INVALID, begin, "a ( without )"), NULL;
	p->at++;
	return t;
}

static struct tree *parse_atom(struct parser *p)
{
	size_t begin = p->at;
	uint32_t c;
	p->least.n = p->most.n = 0;
	switch (p->text[p->at]) {
	case '(': return parse_group(p);
	case '[': return parse_class(p);
	case '.':
		p->at++;
		add_named(p, line_ends, COUNT(line_ends), line_ends, COUNT(line_ends), 1);
		return tree_class(p, 0, begin);
	case '*':
	case '+':
	case '?': return bad(p, ERR_INVALID, p->at, "nothing to repeat"), NULL;
	case '^':
	case '$': return bad(p, ERR_UNSUPPORTED, p->at, "an anchor inside is not supported"), NULL;
	case '\\':
		p->at++;
		switch (take_escape(p, &c)) {
		case 0: return tree_class(p, 0, begin);
		case 1: return tree_point(p, c);
		default: return NULL;
		}
	default: return take_point(p, &c) < 0 ? NULL : tree_point(p, c);
	}
}

static int take_count(struct parser *p, size_t *at, uint32_t *ret)
{
	uint32_t v = 0;
	size_t from = *at;
	for (; *at < p->len && p->text[*at] >= '0' && p->text[*at] <= '9'; ++*at)
		v = v > NFA_REPEAT_MAX ? v : v * 10 + (uint32_t)(p->text[*at] - '0');
	*ret = v;
	return *at > from;
}

/* Parses a counter "{m}", "{m,}" or "{m,n}" at p->at and moves behind it. Returns 1; 0 if there is
 * none and the { stands for itself; or an error. */
static int take_counter(struct parser *p, uint32_t *ret_min, uint32_t *ret_max)
{
	size_t at = p->at + 1;
	if (at < p->len && p->text[at] == ',' && at + 1 < p->len && p->text[at + 1] >= '0' &&
	    p->text[at + 1] <= '9')
		return bad(p, ERR_UNSUPPORTED, p->at,
		           "{,n} means different things to different engines: write {0,n}");
	if (!take_count(p, &at, ret_min))
		return 0;
	*ret_max = *ret_min;
	if (at < p->len && p->text[at] == ',') {
		at++;
		if (!take_count(p, &at, ret_max))
			*ret_max = NFA_UNBOUNDED;
	}
	if (at >= p->len || p->text[at] != '}')
		return 0;
	if (*ret_min > NFA_REPEAT_MAX || (*ret_max != NFA_UNBOUNDED && *ret_max > NFA_REPEAT_MAX))
		return bad(p, ERR_FULL, p->at, "a counter above 10000");
	if (*ret_max < *ret_min)
		return bad(p, ERR_INVALID, p->at, "a counter with max < min");
	p->at = at + 1;
	return 1;
}

static struct tree *parse_repeat(struct parser *p)
{
	struct tree *t = parse_atom(p), *r;
	uint32_t min, max;
	if (!t || !more(p))
		return t;
	size_t begin = p->at;
	char c = p->text[p->at];
	int is_counter = c == '{' ? take_counter(p, &min, &max) : 0;
	if (is_counter < 0)
		return NULL;
	if (c == '*' || c == '+' || c == '?') {
		min = c == '+';
		max = c == '?' ? 1 : NFA_UNBOUNDED;
		p->at++;
	} else if (!is_counter) {
		return t;
	}
	if (next_is(p, '?'))
		p->at++;
	if (next_is(p, '+'))
		return bad(p, ERR_UNSUPPORTED, begin, "a possessive repetition is not supported"), NULL;
	uint32_t ignored;
	if (next_is(p, '*') || next_is(p, '?') ||
	    (next_is(p, '{') && take_counter(p, &ignored, &ignored) != 0))
		return bad(p, ERR_INVALID, begin, "a repetition of a repetition"), NULL;
	r = tree_new(p, T_REPEAT, t, NULL);
	r->min = min;
	r->max = max;
	return r;
}

static struct tree *parse_sequence(struct parser *p, int top)
{
	struct tree *all = NULL;
	int open_begin = 1, open_end = 1;
	for (; top && next_is(p, '^'); p->at++)
		open_begin = 0;
	while (more(p) && !next_is(p, '|') && !next_is(p, ')')) {
		if (top && next_is(p, '$') && (p->at + 1 == p->len || p->text[p->at + 1] == '|')) {
			p->at++;
			open_end = 0;
			break;
		}
		struct tree *t = parse_repeat(p);
		if (!t)
			return NULL;
		all = all ? tree_new(p, T_CAT, all, t) : t;
	}
	if (!all)
		all = tree_new(p, T_EMPTY, NULL, NULL);
	if (top) {
		/* a node of its own for the flags */
		all = tree_new(p, T_CAT, all, tree_new(p, T_EMPTY, NULL, NULL));
		all->open_begin = open_begin;
		all->open_end = open_end;
	}
	return all;
}

static struct tree *parse_alternatives(struct parser *p, int top)
{
	struct tree *all = parse_sequence(p, top);
	while (all && next_is(p, '|')) {
		p->at++;
		struct tree *t = parse_sequence(p, top);
		if (!t)
			return NULL;
		all = tree_new(p, T_ALT, all, t);
	}
	return all;
}

/* --- the builder --------------------------------------------------------- */

struct unit {
	const struct tree *tree;
	int json;
};

static uint32_t build(struct nfa *f, const struct tree *t, int json, uint32_t next);

static uint32_t build_unit(struct nfa *f, void *arg, uint32_t next)
{
	const struct unit *u = arg;
	return build(f, u->tree, u->json, next);
}

static uint32_t build_any(struct nfa *f, void *arg, uint32_t next)
{
	return points_build(f, &(struct point_range){0, POINT_LAST}, 1, *(const int *)arg, next);
}

static uint32_t build(struct nfa *f, const struct tree *t, int json, uint32_t next)
{
	struct unit u;
	if (nfa_step(f) < 0)
		return 0;
	switch (t->kind) {
	case T_EMPTY: return next;
	case T_RANGES: return points_build(f, t->range, t->n, json, next);
	case T_CAT:
		for (; t->kind == T_CAT; t = t->left) /* long texts are nested to the left */
			next = build(f, t->right, json, next);
		return build(f, t, json, next);
	case T_ALT: {
		uint32_t way = build(f, t->right, json, next);
		for (t = t->left; t->kind == T_ALT && !f->err.code; t = t->left)
			way = nfa_split(f, build(f, t->right, json, next), way);
		return nfa_split(f, build(f, t, json, next), way);
	}
	case T_REPEAT:
		u = (struct unit){t->left, json};
		return nfa_repeat(f, build_unit, &u, t->min, t->max, next);
	}
	return 0;
}

/* A top-level alternative, with arbitrary text around it where no anchor forbids that. */
static uint32_t build_top(struct nfa *f, const struct tree *t, const struct regex_opts *o,
                          uint32_t next)
{
	int json = o->json;
	if (f->err.code)
		return 0;
	if (t->kind == T_ALT) {
		uint32_t way = build_top(f, t->right, o, next);
		for (t = t->left; t->kind == T_ALT && !f->err.code; t = t->left)
			way = nfa_split(f, build_top(f, t->right, o, next), way);
		return nfa_split(f, build_top(f, t, o, next), way);
	}
	if (o->search && t->open_end)
		next = nfa_repeat(f, build_any, &json, 0, NFA_UNBOUNDED, next);
	next = build(f, t, json, next);
	return o->search && t->open_begin ? nfa_repeat(f, build_any, &json, 0, NFA_UNBOUNDED, next)
	                                  : next;
}

int regex_build(struct nfa *f, const char *text, size_t len, const struct regex_opts *o,
                uint32_t next, uint32_t *ret_begin, struct err *err)
{
	struct err own = {0};
	struct parser p = {
		.text = text, .len = len, .arena = arena_new(), .err = &own, .json = o->json};
	struct tree *t = parse_alternatives(&p, 1);
	if (t && more(&p))
		bad(&p, ERR_INVALID, p.at, "a ) without (");
	if (!own.code)
		*ret_begin = build_top(f, t, o, next);
	arena_destroy(&p.arena);
	return own.code ? err_set(err, own.code, "%s", own.text) : 0;
}
