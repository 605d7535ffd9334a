/* compile.c - compiles the text of a constraint to a grammar: dispatch by kind, the pieces of a
 * structure, choices. */
#include "automaton.h"
#include "gbnf.h"
#include "json.h"
#include "regex.h"
#include "schema.h"
#include "util/json_load.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

#define PIECES_NEST_MAX 16u
#define TRIGGER_MAX 128u
#define CHOICES_MAX 10000u

struct builder {
	struct nfa *f;
	struct json_rules rules;
	struct err *err;
	struct schema_ignored *ignored;
	int strict, failed;
	unsigned nest;
};

const char *grammar_kind_name(enum grammar_kind k)
{
	static const char *const names[] = {"none",   "json_schema", "json_object", "regex",
	                                    "choice", "structure",   "gbnf"};
	return k < GRAMMAR_KINDS ? names[k] : "unknown";
}

static uint32_t bad(struct builder *b, int code, const char *text)
{
	if (!b->failed)
		err_set(b->err, code, "%s", text);
	b->failed = 1;
	return 0;
}

static json_t *parse(const char *text, size_t len, struct err *err)
{
	json_error_t e;
	json_t *v = json_load(text, len, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
	if (!v && json_error_code(&e) == json_error_out_of_memory)
		err_set(err, ERR_NOMEM, "out of memory while reading the constraint");
	else if (!v)
		err_set(err, ERR_INVALID, "not valid JSON: %.120s (line %d, column %d)", e.text, e.line,
		        e.column);
	return v;
}

/* --- choice -------------------------------------------------------------- */

static uint32_t choice(struct builder *b, const json_t *v, uint32_t next)
{
	size_t n = json_array_size(v);
	if (n == 0 || n > CHOICES_MAX)
		return bad(b, ERR_INVALID, "a choice must be an array of 1 to 10000 strings");
	struct nfa_string *list = mem_try_array(n, sizeof *list);
	uint32_t begin = 0;
	if (!list)
		return nfa_no_memory(b->f);
	for (size_t i = 0; i < n && !b->failed; i++) {
		const json_t *s = json_array_get(v, i);
		if (json_string_length(s) == 0)
			bad(b, ERR_INVALID, "each member of a choice must be a string that is not empty");
		list[i] = (struct nfa_string){json_string_value(s), json_string_length(s)};
	}
	if (!b->failed)
		begin = nfa_one_of(b->f, list, n, next);
	free(list);
	return begin;
}

/* --- free text up to a trigger ------------------------------------------- */

static uint32_t free_text(struct nfa *f, uint32_t next)
{
	struct byte_set all = {{~0ull, ~0ull, ~0ull, ~0ull}};
	uint32_t loop = nfa_loop(f);
	nfa_loop_set(f, loop, nfa_set(f, &all, loop), next);
	return loop;
}

/* Length of the longest prefix of the trigger that its first `at` bytes followed by b end with
 * (Knuth, Morris and Pratt). */
static size_t follows(const unsigned char *t, const size_t *fail, size_t at, unsigned b)
{
	while (at && t[at] != b)
		at = fail[at];
	return at + (t[at] == b);
}

/* place[i]: the node where the text ends with the first i bytes of the trigger, and no more of
 * it. */
static uint32_t until(struct nfa *f, const unsigned char *t, size_t n, uint32_t next)
{
	size_t fail[TRIGGER_MAX + 1] = {0};
	uint32_t place[TRIGGER_MAX + 1];
	for (size_t i = 2; i <= n; i++)
		fail[i] = follows(t, fail, fail[i - 1], t[i - 1]);
	for (size_t i = 0; i < n; i++)
		place[i] = nfa_loop(f);
	place[n] = next;
	for (size_t i = 0; i < n && !f->err.code; i++) {
		struct byte_set to[TRIGGER_MAX + 1];
		uint32_t way = 0;
		memset(to, 0, (n + 1) * sizeof *to);
		for (unsigned b = 0; b < 256; b++)
			byte_add(&to[follows(t, fail, i, b)], b, b);
		for (size_t k = 0; k <= n; k++) {
			if (!(to[k].w[0] | to[k].w[1] | to[k].w[2] | to[k].w[3]))
				continue;
			uint32_t part = nfa_set(f, &to[k], place[k]);
			way = way ? nfa_split(f, way, part) : part;
		}
		nfa_loop_set(f, place[i], way, way);
	}
	return place[0];
}

/* --- pieces -------------------------------------------------------------- */

static uint32_t pieces(struct builder *b, const json_t *list, uint32_t next);

static uint32_t any_of(struct builder *b, const json_t *lists, uint32_t next)
{
	uint32_t way = 0;
	if (json_array_size(lists) == 0)
		return bad(b, ERR_INVALID, "any_of must be an array with at least one array of pieces");
	for (size_t i = 0; i < json_array_size(lists) && !b->failed && !b->f->err.code; i++) {
		uint32_t part = pieces(b, json_array_get(lists, i), next);
		way = i ? nfa_split(b->f, way, part) : part; /* 0 is a valid way too: the end of the rule */
	}
	return way;
}

struct repeated {
	struct builder *b;
	const json_t *list, *separator;
};

static uint32_t repeated(struct nfa *f, void *arg, uint32_t next)
{
	const struct repeated *r = arg;
	(void)f;
	return pieces(r->b, r->list, next);
}

static uint32_t separated(struct nfa *f, void *arg, uint32_t next)
{
	const struct repeated *r = arg;
	return nfa_bytes(f, json_string_value(r->separator), json_string_length(r->separator),
	                 pieces(r->b, r->list, next));
}

static uint32_t repeat(struct builder *b, const json_t *piece, uint32_t next)
{
	const json_t *min = json_object_get(piece, "min"), *max = json_object_get(piece, "max");
	struct repeated r = {b, json_object_get(piece, "repeat"), json_object_get(piece, "separator")};
	json_int_t lo = json_integer_value(min),
			   hi = max ? json_integer_value(max) : (json_int_t)NFA_UNBOUNDED;
	if ((min && !json_is_integer(min)) || (max && !json_is_integer(max)) || lo < 0 || lo > hi ||
	    lo > NFA_REPEAT_MAX || (max && hi > NFA_REPEAT_MAX) ||
	    (r.separator && !json_is_string(r.separator)))
		return bad(
			b, ERR_INVALID,
			"repeat needs whole numbers min <= max, of at most 10000, and a string as separator");
	if (hi == 0)
		return next;
	if (!r.separator)
		return nfa_repeat(b->f, repeated, &r, (uint32_t)lo, (uint32_t)hi, next);
	uint32_t rest = nfa_repeat(b->f, separated, &r, lo ? (uint32_t)lo - 1 : 0,
	                           max ? (uint32_t)hi - 1 : NFA_UNBOUNDED, next);
	uint32_t first = repeated(b->f, &r, rest);
	return lo ? first : nfa_split(b->f, first, next);
}

static uint32_t piece(struct builder *b, const json_t *v, uint32_t next)
{
	const json_t *m;
	uint32_t begin = 0;
	int r = 0;
	if ((m = json_object_get(v, "literal")) && json_is_string(m))
		return nfa_bytes(b->f, json_string_value(m), json_string_length(m), next);
	if ((m = json_object_get(v, "schema"))) {
		r = schema_build(b->f, &b->rules, m, b->strict, next, &begin, b->ignored, b->err);
	} else if ((m = json_object_get(v, "regex")) && json_is_string(m)) {
		r = regex_build(b->f, json_string_value(m), json_string_length(m), &(struct regex_opts){0},
		                next, &begin, b->err);
	} else if ((m = json_object_get(v, "gbnf")) && json_is_string(m)) {
		r = gbnf_build(b->f, json_string_value(m), json_string_length(m), next, &begin, b->err);
	} else if ((m = json_object_get(v, "any_of"))) {
		return any_of(b, m, next);
	} else if ((m = json_object_get(v, "choice"))) {
		return choice(b, m, next);
	} else if (json_object_get(v, "repeat")) {
		return repeat(b, v, next);
	} else if ((m = json_object_get(v, "free")) && json_is_string(m) &&
	           json_string_length(m) <= TRIGGER_MAX) {
		size_t n = json_string_length(m);
		return n ? until(b->f, (const unsigned char *)json_string_value(m), n, next)
		         : free_text(b->f, next);
	} else {
		return bad(b, ERR_INVALID,
		           "each piece must be an object with literal, schema, regex, gbnf, choice, "
		           "any_of, repeat or free (a trigger of at most 128 bytes)");
	}
	b->failed |= r < 0;
	return begin;
}

static uint32_t pieces(struct builder *b, const json_t *list, uint32_t next)
{
	if (b->failed || b->f->err.code)
		return 0;
	if (!json_is_array(list))
		return bad(b, ERR_INVALID, "pieces must be an array");
	if (++b->nest > PIECES_NEST_MAX)
		return bad(b, ERR_FULL, "pieces nest more than 16 deep");
	for (size_t i = json_array_size(list); i-- > 0 && !b->failed && !b->f->err.code;)
		next = piece(b, json_array_get(list, i), next);
	b->nest--;
	return next;
}

/* --- the whole constraint ------------------------------------------------ */

static int build(enum grammar_kind kind, const char *text, size_t len, unsigned flags,
                 struct grammar *g, struct err *err)
{
	struct nfa *f = &g->f;
	struct builder b = {.f = f,
	                    .rules = {.f = f},
	                    .err = err,
	                    .ignored = &g->ignored,
	                    .strict = (flags & GRAMMAR_STRICT) != 0};
	if (kind == GRAMMAR_REGEX)
		return regex_build(f, text, len, &(struct regex_opts){0}, 0, &f->start, err);
	if (kind == GRAMMAR_GBNF)
		return gbnf_build(f, text, len, 0, &f->start, err);
	if (kind == GRAMMAR_JSON_OBJECT) {
		f->start = json_object_rule(&b.rules, 0);
		return 0;
	}
	json_t *v = parse(text, len, err);
	if (!v)
		return err->code;
	int r = 0;
	if (kind == GRAMMAR_JSON_SCHEMA)
		r = schema_build(f, &b.rules, v, b.strict, 0, &f->start, &g->ignored, err);
	else if (kind == GRAMMAR_CHOICE)
		f->start = choice(&b, v, 0);
	else
		f->start = pieces(&b, v, 0);
	json_decref(v);
	return r < 0 ? r : b.failed ? (err && err->code ? err->code : ERR_INVALID) : 0;
}

static void note_counted(struct grammar *g)
{
	for (uint32_t i = 0; i < g->f.n && !g->counted; i++)
		g->counted = g->f.node[i].alias != i;
}

int grammar_compile(enum grammar_kind kind, const char *text, size_t len, unsigned flags,
                    struct grammar **ret_g, struct err *err)
{
	struct err own = {0};
	if (kind <= GRAMMAR_NONE || kind >= GRAMMAR_KINDS)
		return err_set(err, ERR_INVALID, "constraint of unknown kind %d", (int)kind);
	if (len > GRAMMAR_TEXT_MAX)
		return err_set(err, ERR_FULL, "the constraint has %zu bytes, the limit is %u", len,
		               GRAMMAR_TEXT_MAX);
	struct grammar *g = mem_zalloc(sizeof *g);
	if (nfa_init(&g->f) < 0) {
		free(g);
		return err_set(err, ERR_NOMEM, "out of memory while compiling the constraint");
	}
	int r = build(kind, text, len, flags, g, &own);
	if (r == 0)
		r = nfa_finish(&g->f, GRAMMAR_DEPTH_MAX, &own);
	if (r == 0) {
		nfa_trim(&g->f);
		note_counted(g);
		r = automaton_probe(g, &own);
	}
	if (r < 0) {
		grammar_destroy(&g);
		return err_set(err, r, "%s", own.text);
	}
	*ret_g = g;
	return 0;
}

void grammar_destroy(struct grammar **gp)
{
	if (!*gp)
		return;
	nfa_fini(&(*gp)->f);
	free(*gp);
	*gp = NULL;
}

uint32_t grammar_nodes(const struct grammar *g)
{
	return g->f.n;
}

size_t grammar_bytes(const struct grammar *g)
{
	return sizeof *g + nfa_memory(&g->f);
}

const char *grammar_ignored(const struct grammar *g, unsigned i)
{
	return i < g->ignored.n ? g->ignored.name[i] : NULL;
}
