/* tests.c - the tests, used after `is`. */
#include "jinja/value.h"

#include <string.h>

#define TEST(name) static struct jv name(struct jin *r, const struct jargs *a)

static const struct jv *test_argument(struct jin *r, const struct jargs *a)
{
	if (a->n < 2)
		jin_fail(r, "a test needs an argument");
	return &a->v[1];
}

TEST(is_defined)
{
	(void)r;
	return jv_bool(a->v[0].type != J_UNDEF);
}

TEST(is_undefined)
{
	(void)r;
	return jv_bool(a->v[0].type == J_UNDEF);
}

TEST(is_none)
{
	(void)r;
	return jv_bool(a->v[0].type == J_NONE);
}

TEST(is_boolean)
{
	(void)r;
	return jv_bool(a->v[0].type == J_BOOL);
}

TEST(is_true)
{
	(void)r;
	return jv_bool(a->v[0].type == J_BOOL && a->v[0].i);
}

TEST(is_false)
{
	(void)r;
	return jv_bool(a->v[0].type == J_BOOL && !a->v[0].i);
}

TEST(is_integer)
{
	(void)r;
	return jv_bool(a->v[0].type == J_INT);
}

TEST(is_float)
{
	(void)r;
	return jv_bool(a->v[0].type == J_FLOAT);
}

TEST(is_number)
{
	(void)r;
	return jv_bool(jv_is_number(a->v[0]));
}

TEST(is_string)
{
	(void)r;
	return jv_bool(a->v[0].type == J_STR);
}

TEST(is_mapping)
{
	(void)r;
	return jv_bool(a->v[0].type == J_DICT);
}

TEST(is_iterable)
{
	(void)r;
	return jv_bool(jv_can_iterate(a->v[0]));
}

/* has a length and can be subscripted */
TEST(is_sequence)
{
	uint8_t t = a->v[0].type;
	(void)r;
	return jv_bool(t == J_STR || t == J_LIST || t == J_TUPLE || t == J_DICT || t == J_RANGE ||
	               t == J_UNDEF);
}

TEST(is_callable)
{
	uint8_t t = a->v[0].type;
	(void)r;
	return jv_bool(t == J_FUNC || t == J_METHOD || t == J_MACRO || t == J_LOOP || t == J_JOINER ||
	               t == J_UNDEF);
}

TEST(is_escaped)
{
	(void)r;
	return jv_bool(a->v[0].type == J_STR && a->v[0].sub);
}

TEST(is_in)
{
	return jv_bool(jv_contains(r, a->v[0], *test_argument(r, a)));
}

TEST(is_eq)
{
	return jv_bool(jv_equal(r, a->v[0], *test_argument(r, a)));
}

TEST(is_ne)
{
	return jv_bool(!jv_equal(r, a->v[0], *test_argument(r, a)));
}

TEST(is_lt)
{
	return jv_bool(jv_less(r, a->v[0], *test_argument(r, a), "<"));
}

TEST(is_gt)
{
	return jv_bool(jv_less(r, *test_argument(r, a), a->v[0], ">"));
}

TEST(is_le)
{
	return jv_bool(jv_less(r, a->v[0], *test_argument(r, a), "<=") ||
	               jv_equal(r, a->v[0], a->v[1]));
}

TEST(is_ge)
{
	return jv_bool(jv_less(r, *test_argument(r, a), a->v[0], ">=") ||
	               jv_equal(r, a->v[0], a->v[1]));
}

TEST(is_sameas)
{
	struct jv x = a->v[0], y = *test_argument(r, a);
	return jv_bool(x.type == y.type &&
	               (x.type == J_NONE ||
	                (x.type == J_STR || jv_is_number(x) ? jv_equal(r, x, y) : x.list == y.list)));
}

static int64_t remainder_of(struct jin *r, struct jv v, int64_t by)
{
	if (v.type == J_UNDEF)
		jin_undefined(r, v);
	if (v.type != J_INT && v.type != J_BOOL)
		jin_fail(r, "a test of divisibility needs an integer, not %s",
		         jv_type_name((enum jv_type)v.type));
	if (by == 0)
		jin_fail(r, "integer division or modulo by zero");
	return by == -1 ? 0 : v.i % by;
}

TEST(is_odd)
{
	return jv_bool(remainder_of(r, a->v[0], 2) != 0);
}

TEST(is_even)
{
	return jv_bool(remainder_of(r, a->v[0], 2) == 0);
}

TEST(is_divisible)
{
	return jv_bool(remainder_of(r, a->v[0], arg_int(r, test_argument(r, a), 1, "divisibleby")) ==
	               0);
}

static struct jv is_case(struct jin *r, struct jv v, int upper)
{
	const char *word = upper ? "isupper" : "islower";
	struct jargs none = {0};
	struct jv m = method_find(r, jv_to_str(r, v), word, strlen(word));
	return method_call(r, m.method, &none);
}

TEST(is_upper)
{
	return is_case(r, a->v[0], 1);
}

TEST(is_lower)
{
	return is_case(r, a->v[0], 0);
}

static struct jv is_known(struct jin *r, struct jv v,
                          const struct builtin *(*find)(const char *, size_t))
{
	if (v.type != J_STR)
		jin_fail(r, "the name of a filter or test must be a string");
	return jv_bool(find(v.s, v.len) != NULL);
}

TEST(is_filter)
{
	return is_known(r, a->v[0], filter_find);
}

TEST(is_test)
{
	return is_known(r, a->v[0], test_find);
}

const struct builtin *test_find(const char *s, size_t len)
{
	static const struct builtin table[] = {
		{"defined", is_defined, 1, ""},
		{"undefined", is_undefined, 1, ""},
		{"none", is_none, 1, ""},
		{"boolean", is_boolean, 1, ""},
		{"true", is_true, 1, ""},
		{"false", is_false, 1, ""},
		{"integer", is_integer, 1, ""},
		{"float", is_float, 1, ""},
		{"number", is_number, 1, ""},
		{"string", is_string, 1, ""},
		{"mapping", is_mapping, 1, ""},
		{"iterable", is_iterable, 1, ""},
		{"sequence", is_sequence, 1, ""},
		{"callable", is_callable, 1, ""},
		{"escaped", is_escaped, 1, ""},
		{"in", is_in, 2, ""},
		{"eq", is_eq, 2, ""},
		{"==", is_eq, 2, ""},
		{"equalto", is_eq, 2, ""},
		{"ne", is_ne, 2, ""},
		{"!=", is_ne, 2, ""},
		{"lt", is_lt, 2, ""},
		{"<", is_lt, 2, ""},
		{"lessthan", is_lt, 2, ""},
		{"gt", is_gt, 2, ""},
		{">", is_gt, 2, ""},
		{"greaterthan", is_gt, 2, ""},
		{"le", is_le, 2, ""},
		{"<=", is_le, 2, ""},
		{"ge", is_ge, 2, ""},
		{">=", is_ge, 2, ""},
		{"sameas", is_sameas, 2, ""},
		{"odd", is_odd, 1, ""},
		{"even", is_even, 1, ""},
		{"divisibleby", is_divisible, 2, ""},
		{"upper", is_upper, 1, ""},
		{"lower", is_lower, 1, ""},
		{"filter", is_filter, 1, ""},
		{"test", is_test, 1, ""},
	};
	for (size_t i = 0; i < sizeof table / sizeof *table; i++)
		if (strlen(table[i].name) == len && !memcmp(table[i].name, s, len))
			return &table[i];
	return NULL;
}
