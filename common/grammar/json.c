/* json.c - see json.h. Recursive values use rules, so that nesting is bounded when the network is
 * walked. */
#include "json.h"
#include "regex.h"

static uint32_t one_of(struct nfa *f, const char *bytes, uint32_t next)
{
	struct byte_set s = {{0}};
	for (; *bytes; bytes++)
		byte_add(&s, (unsigned char)*bytes, (unsigned char)*bytes);
	return nfa_set(f, &s, next);
}

static uint32_t hex(struct nfa *f, uint32_t next)
{
	return one_of(f, "0123456789abcdefABCDEF", next);
}

uint32_t json_space(struct nfa *f, uint32_t next)
{
	return nfa_split(f, nfa_byte(f, ' ', next), next);
}

/* --- strings ------------------------------------------------------------- */

/* \uXXXX, without unpaired surrogates. */
static uint32_t unicode_escape(struct nfa *f, uint32_t next)
{
	uint32_t three = hex(f, hex(f, hex(f, next))), two = hex(f, hex(f, next));
	uint32_t low = nfa_bytes(f, "\\u", 2, one_of(f, "dD", one_of(f, "cdefCDEF", two)));
	uint32_t pair = one_of(f, "89abAB", hex(f, hex(f, low)));
	uint32_t other = one_of(f, "01234567", two);
	uint32_t d = one_of(f, "dD", nfa_split(f, other, pair)),
			 plain = one_of(f, "0123456789abcefABCEF", three);
	return nfa_byte(f, 'u', nfa_split(f, plain, d));
}

static uint32_t character(struct nfa *f, uint32_t next)
{
	uint32_t escape = nfa_byte(
		f, '\\', nfa_split(f, one_of(f, "\"\\/bfnrt", next), unicode_escape(f, next)));
	struct byte_set s = {{0}};
	byte_add(&s, 0x20, 0x7f);
	s.w['"' / 64] &= ~(1ull << '"' % 64);
	s.w['\\' / 64] &= ~(1ull << '\\' % 64);
	return nfa_split(f, nfa_set(f, &s, next),
	                 nfa_split(f, nfa_points(f, 0x80, 0x10ffff, next), escape));
}

static uint32_t character_unit(struct nfa *f, void *arg, uint32_t next)
{
	struct json_rules *r = arg;
	if (!r->chars) {
		uint32_t rule = nfa_rule(f);
		r->chars = rule + 1;
		if (!f->err.code)
			nfa_rule_set(f, rule, character(f, 0));
	}
	return nfa_call(f, r->chars - 1, next);
}

uint32_t json_string_rest(struct json_rules *r, uint32_t next)
{
	return nfa_repeat(r->f, character_unit, r, 0, NFA_UNBOUNDED, nfa_byte(r->f, '"', next));
}

uint32_t json_string_of(struct json_rules *r, uint32_t min, uint32_t max, uint32_t next)
{
	return nfa_byte(r->f, '"',
	                nfa_repeat(r->f, character_unit, r, min, max, nfa_byte(r->f, '"', next)));
}

static uint32_t string_body(struct json_rules *r)
{
	uint32_t loop = nfa_loop(r->f);
	nfa_loop_set(r->f, loop, character(r->f, loop), nfa_byte(r->f, '"', 0));
	return nfa_byte(r->f, '"', loop);
}

/* --- numbers ------------------------------------------------------------- */

static uint32_t digits(struct nfa *f, uint32_t next) /* zero or more */
{
	uint32_t loop = nfa_loop(f);
	nfa_loop_set(f, loop, one_of(f, "0123456789", loop), next);
	return loop;
}

static uint32_t whole(struct nfa *f, uint32_t next)
{
	uint32_t some = nfa_split(f, nfa_byte(f, '0', next), one_of(f, "123456789", digits(f, next)));
	return nfa_split(f, nfa_byte(f, '-', some), some);
}

static uint32_t fraction(struct nfa *f, uint32_t next)
{
	return nfa_split(f, nfa_byte(f, '.', one_of(f, "0123456789", digits(f, next))), next);
}

static uint32_t number_body(struct json_rules *r)
{
	struct nfa *f = r->f;
	uint32_t power = one_of(f, "0123456789", digits(f, 0));
	uint32_t exponent = one_of(f, "eE", nfa_split(f, one_of(f, "+-", power), power));
	return whole(f, fraction(f, nfa_split(f, exponent, 0)));
}

static uint32_t integer_body(struct json_rules *r)
{
	return whole(r->f, 0);
}

/* --- any value ----------------------------------------------------------- */

static uint32_t any_unit(struct nfa *f, void *arg, uint32_t next)
{
	(void)f;
	return json_any_rule(arg, next);
}

static uint32_t pair(struct json_rules *r, uint32_t next)
{
	return json_string_rule(r, nfa_byte(r->f, ':', json_space(r->f, json_any_rule(r, next))));
}

static uint32_t object_body(struct json_rules *r)
{
	struct nfa *f = r->f;
	uint32_t end = nfa_byte(f, '}', 0), rest = nfa_loop(f), first = pair(r, rest);
	nfa_loop_set(f, rest, nfa_byte(f, ',', json_space(f, first)), json_space(f, end));
	return nfa_byte(f, '{', json_space(f, nfa_split(f, first, end)));
}

static uint32_t array_body(struct json_rules *r)
{
	return json_array_of(r->f, any_unit, r, 0, NFA_UNBOUNDED, 0);
}

static uint32_t any_body(struct json_rules *r)
{
	struct nfa *f = r->f;
	uint32_t word = nfa_split(f, nfa_bytes(f, "true", 4, 0),
	                          nfa_split(f, nfa_bytes(f, "false", 5, 0),
	                                    nfa_bytes(f, "null", 4, 0)));
	uint32_t simple = nfa_split(f, json_string_rule(r, 0),
	                            nfa_split(f, json_number_rule(r, 0), word));
	if (!r->array) {
		uint32_t rule = nfa_rule(f);
		r->array = rule + 1;
		uint32_t body = array_body(r);
		if (!f->err.code)
			nfa_rule_set(f, rule, body);
	}
	return nfa_split(f, simple, nfa_split(f, nfa_call(f, r->array - 1, 0), json_object_rule(r, 0)));
}

/* The rule in *slot, built by body(r) on first use. The number is assigned before body is called,
 * because a body may refer to its own rule. */
static uint32_t shared(struct json_rules *r, uint32_t *slot, uint32_t (*body)(struct json_rules *r),
                       uint32_t next)
{
	if (!*slot) {
		uint32_t rule = nfa_rule(r->f);
		*slot = rule + 1;
		uint32_t begin = body(r);
		if (!r->f->err.code)
			nfa_rule_set(r->f, rule, begin);
	}
	return nfa_call(r->f, *slot - 1, next);
}

uint32_t json_string_rule(struct json_rules *r, uint32_t next)
{
	return shared(r, &r->string, string_body, next);
}

uint32_t json_number_rule(struct json_rules *r, uint32_t next)
{
	return shared(r, &r->number, number_body, next);
}

uint32_t json_integer_rule(struct json_rules *r, uint32_t next)
{
	return shared(r, &r->integer, integer_body, next);
}

uint32_t json_any_rule(struct json_rules *r, uint32_t next)
{
	return shared(r, &r->any, any_body, next);
}

uint32_t json_object_rule(struct json_rules *r, uint32_t next)
{
	return shared(r, &r->object, object_body, next);
}

/* --- arrays -------------------------------------------------------------- */

struct element {
	uint32_t (*value)(struct nfa *f, void *arg, uint32_t next);
	void *arg;
};

static uint32_t further(struct nfa *f, void *arg, uint32_t next)
{
	const struct element *e = arg;
	return nfa_byte(f, ',', json_space(f, e->value(f, e->arg, next)));
}

uint32_t json_array_of(struct nfa *f, uint32_t (*value)(struct nfa *f, void *arg, uint32_t next),
                       void *arg, uint32_t min, uint32_t max, uint32_t next)
{
	struct element e = {value, arg};
	uint32_t end = nfa_byte(f, ']', next), some = end;
	if (max > 0) {
		uint32_t rest = nfa_repeat(f, further, &e, min ? min - 1 : 0,
		                           max == NFA_UNBOUNDED ? max : max - 1, json_space(f, end));
		uint32_t first = value(f, arg, rest);
		some = min ? first : nfa_split(f, first, end);
	}
	return nfa_byte(f, '[', json_space(f, some));
}
