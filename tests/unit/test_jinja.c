/* test_jinja.c - the template interpreter construct by construct: tests/data/jinja/cases.jsonl has
 * small templates with what Jinja2 itself renders for them, or its error. Then the bounds:
 * hostile templates and data end soon, with an error that names the limit. */
/* run: parser */
#include "jinja/jinja.h"
#include "util/mem.h"

#include <check.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DATA "tests/data/jinja/cases.jsonl"

struct result {
	int rc; /* of jinja_template_new when `loaded` is 0 */
	int loaded;
	struct err err;
	struct buf out;
};

static struct result render(const char *text, size_t len, const json_t *vars,
                            const struct jinja_run *limits, size_t out_max)
{
	struct result x = {0};
	struct jinja_template *t;
	const json_t *layers[] = {vars};
	struct jinja_run run = limits ? *limits : (struct jinja_run){0};
	run.layers = layers;
	run.n_layers = vars != NULL;
	buf_init(&x.out, out_max);
	x.rc = jinja_template_new(text, len, &t, &x.err);
	if (x.rc < 0)
		return x;
	x.loaded = 1;
	x.rc = jinja_render(t, &run, &x.out, &x.err);
	jinja_template_destroy(&t);
	return x;
}

/* "UndefinedError: 'x' is undefined" -> what stands behind the type */
static const char *words(const char *error)
{
	const char *colon = strstr(error, ": ");
	return colon ? colon + 2 : error;
}

static int as_wanted(const json_t *row, const struct result *x)
{
	const json_t *text = json_object_get(row, "text");
	const char *error = json_string_value(json_object_get(row, "error"));
	if (text)
		return x->rc == 0 && x->out.len == json_string_length(text) &&
		       !memcmp(x->out.data ? x->out.data : "", json_string_value(text), x->out.len);
	if (!strncmp(error, "TemplateSyntaxError", 19))
		return x->rc == ERR_INVALID && !x->loaded && !strncmp(x->err.text, "line ", 5);
	/* of the compiler there, here when it is reached */
	if (!strncmp(error, "TemplateAssertionError", 22))
		return x->rc == ERR_INVALID;
	if (!strncmp(error, "TemplateError: ", 15))
		return x->rc == ERR_INVALID && x->loaded && !strcmp(x->err.text, words(error));
	/* these say what a template's author needs: word by word */
	if (!strncmp(error, "UndefinedError: ", 16) && x->rc == ERR_INVALID)
		return strstr(x->err.text, words(error)) != NULL;
	return x->rc < 0 && x->loaded && !strncmp(x->err.text, "line ", 5);
}

TEST_CASE("jinja", .timeout_s = 120);

TEST(cases)
{
	char *line = NULL;
	size_t size = 0, rows = 0, wrong = 0;
	FILE *f = fopen(DATA, "r");
	ck_assert(f != NULL && getline(&line, &size, f) > 0);
	json_t *head = json_loads(line, JSON_ALLOW_NUL, NULL),
		   *vars = json_object_get(head, "variables");
	ck_assert(vars != NULL);
	for (; getline(&line, &size, f) > 0; rows++) {
		json_t *row = json_loads(line, JSON_ALLOW_NUL, NULL),
			   *text = json_object_get(row, "template");
		ck_assert(text != NULL);
		struct result x = render(json_string_value(text), json_string_length(text), vars, NULL, 0);
		if (!as_wanted(row, &x)) {
			wrong++;
			printf("%s    got %d \"%s\" \"%s\"\n", line, x.rc, x.rc ? x.err.text : "",
			       x.out.data ? x.out.data : "");
		}
		buf_fini(&x.out);
		json_decref(row);
	}
	free(line);
	fclose(f);
	json_decref(head);
	fflush(stdout);
	ck_assert_msg(wrong == 0, "%zu of %zu differ", wrong, rows);
	ck_assert_uint_ge(rows, 900);
}

/* --- bounds -------------------------------------------------------------- */

#define LOOP(body)                                                                        \
	"{% for a in range(1000) %}{% for b in range(1000) %}{% for c in range(1000) %}" body \
	"{% endfor %}{% endfor %}{% endfor %}"

static const struct {
	const char *text, *why;
	int rc;
} hostile[] = {
	{LOOP(""), "more than", ERR_FULL},
	{LOOP("x"), "more than", ERR_FULL},
	{"{{ 'a' * 10**12 }}", "repeated 1000000000000 times", ERR_FULL},
	{"{{ 'a' * 10**8 }}", "bytes of memory", ERR_FULL},
	{"{{ [0] * 10**12 }}", "more than", ERR_FULL},
	{"{{ 10**30 }}", "does not fit 64 bits", ERR_INVALID},
	{"{{ 2**63 }}", "does not fit 64 bits", ERR_INVALID},
	{"{{ -9223372036854775807 - 2 }}", "does not fit 64 bits", ERR_INVALID},
	{"{{ 99999999999999999999 }}", "does not fit 64 bits", ERR_INVALID},
	{"{{ range(10**9) }}", "MAX_RANGE (100000)", ERR_FULL},
	{"{{ range(-9223372036854775807, 9223372036854775807) }}", "MAX_RANGE", ERR_FULL},
	{"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "deeper than 200", ERR_FULL},
	{"{% macro m(x) %}{{ m([x]) }}{% endmacro %}{{ m(1) }}", "deeper than 200", ERR_FULL},
	{"{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", "deeper than 200", ERR_FULL},
	{"{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor "
     "%}",
     "bytes of memory", ERR_FULL},
	{"{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor "
     "%}",
     "more than", ERR_FULL},
	{"{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor "
     "%}{{ ns.x }}",
     "nested too deep", ERR_FULL},
	{"{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor "
     "%}{{ ns.x|tojson }}",
     "nested too deep", ERR_FULL},
	{"{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor "
     "%}{{ ns.x == [ns.x] }}",
     "nested too deep", ERR_FULL},
	{"{% set ns = namespace() %}{% set ns.self = ns %}{{ ns }}", "nested too deep", ERR_FULL},
	{"{% for i in range(100000) %}xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx{% endfor %}",
     "longer than 1000000 bytes", ERR_FULL},
	{"{{ '%99999d' % 1 }}", "wider than 10000", ERR_FULL},
	{"{{ '{:99999}'.format(1) }}", "wider than 10000", ERR_FULL},
	{"{{ '%*d' % (10**9, 1) }}", "wider than 10000", ERR_FULL},
	{"{{ 'a'.center(10**10) }}", "bytes of memory", ERR_FULL},
	{"{{ '\\t'.expandtabs(2**31 - 1) }}", "bytes of memory", ERR_FULL},
	{"{{ ('\\t' * 100000).expandtabs(100000) }}", "bytes of memory", ERR_FULL},
	{"{{ '\\t'.expandtabs(10**12) }}", "does not fit 32 bits", ERR_INVALID},
	{"{{ '%c' % 0xd800 }}", "a surrogate", ERR_INVALID},
	{"{{ ('ab' * 100000).replace('', 'x' * 10000) }}", "more than", ERR_FULL},
	{"{{ 'a'|indent(10**10) }}", "bytes of memory", ERR_FULL},
	{"{{ [[[1]]]|tojson(indent=10**7) }}", "bytes of memory", ERR_FULL},
	{"{% set x = 'ab' * 2000 %}{% for i in range(100000) %}{{ x.count('b') }}{% endfor %}",
     "more than 3000000 steps", ERR_FULL},
	{"{% set x = range(100000)|list %}{% for i in x %}{{ -1 in x }}{% endfor %}",
     "more than 3000000 steps", ERR_FULL},
	{"{% for i in range(100000) %}{{ ('a' * 20000) == ('a' * 20000) }}{% endfor %}", "more than",
     ERR_FULL},
	{"{{ [1]|batch(10**9)|list }}", "from 1 to 100000", ERR_INVALID},
	{"{{ strftime_now('%c' * 1000) }}", "longer than 255", ERR_FULL},
	{"{{ 1|round(10**9) }}", "beyond 300", ERR_FULL},
};

TEST_LOOP(bounds, 0, sizeof hostile / sizeof *hostile)
{
	const struct jinja_run limits = {.steps_max = 3000000, .memory_max = 16u << 20};
	struct result x = render(hostile[_i].text, strlen(hostile[_i].text), NULL, &limits, 1000000);
	ck_assert_msg(x.rc == hostile[_i].rc && strstr(x.err.text, hostile[_i].why), "got %d %s", x.rc,
	              x.err.text);
	buf_fini(&x.out);
}

/* A text that nests by repetition: open n times, middle, close n times. */
static const struct {
	const char *open, *middle, *close, *why;
} nested[] = {
	{"(", "1", ")", "deeper than 100"},   {"[", "", "]", "deeper than 100"},
	{"{1:", "1", "}", "deeper than 100"}, {"not ", "1", "", "deeper than 100"},
	{"-", "1", "", "deeper than 100"},    {"1 if 1 else ", "1", "", "deeper than 100"},
	{"", "1", "+1", "in a row"},          {"", "s", ".a", "in a row"},
	{"", "s", "()", "in a row"},          {"", "s", "|list", "in a row"},
	{"", "s", "[0]", "in a row"},         {"", "1", " == 1", "more than 64 comparisons"},
	{"", "1", " and 1", "in a row"},
};

TEST_LOOP(deep_expressions, 0, sizeof nested / sizeof *nested)
{
	struct buf b;
	buf_init(&b, 0);
	buf_adds(&b, "{{ ");
	for (int i = 0; i < 20000; i++)
		buf_adds(&b, nested[_i].open);
	buf_adds(&b, nested[_i].middle);
	for (int i = 0; i < 20000; i++)
		buf_adds(&b, nested[_i].close);
	buf_adds(&b, " }}");
	struct result x = render(b.data, b.len, NULL, NULL, 0);
	ck_assert_msg(!x.loaded && x.rc == ERR_INVALID &&
	                  (strstr(x.err.text, nested[_i].why) || strstr(x.err.text, "255 brackets")),
	              "got %d %s", x.rc, x.err.text);
	buf_fini(&x.out);
	buf_fini(&b);
}

TEST(deep_statements)
{
	struct buf b;
	buf_init(&b, 0);
	for (int i = 0; i < 5000; i++)
		buf_adds(&b, "{% if 1 %}");
	struct result x = render(b.data, b.len, NULL, NULL, 0);
	ck_assert_msg(!x.loaded && strstr(x.err.text, "nested deeper than 100"), "got %d %s", x.rc,
	              x.err.text);
	buf_reset(&b);
	buf_adds(&b, "{% if 0 %}");
	for (int i = 0; i < 5000; i++) /* a long chain is no nesting */
		buf_adds(&b, "{% elif 0 %}a");
	buf_adds(&b, "{% else %}b{% endif %}");
	buf_fini(&x.out);
	x = render(b.data, b.len, NULL, NULL, 0);
	ck_assert_msg(x.rc == 0 && x.out.len == 1, "got %d %s", x.rc, x.err.text);
	buf_fini(&x.out);
	buf_fini(&b);
}

TEST(deep_data)
{
	json_t *o = json_object(), *v = json_integer(1);
	for (int i = 0; i < 200; i++)
		v = json_pack("[o]", v);
	json_object_set_new(o, "x", v);
	struct result x = render("{{ x }}", 7, o, NULL, 0);
	ck_assert_msg(x.rc == ERR_FULL && strstr(x.err.text, "data is nested deeper than 128"),
	              "got %d %s", x.rc, x.err.text);
	buf_fini(&x.out);
	x = render("{{ y }}", 7, o, NULL, 0); /* what is not used is not looked at */
	ck_assert_int_eq(x.rc, 0);
	buf_fini(&x.out);
	json_decref(o);
}

/* A long text put together piece by piece takes memory in proportion to its length, not to its
 * square. */
TEST(accumulates)
{
	static const char text[] = "{% set ns = namespace(a='', b='') %}{% for i in range(20000) %}{% "
							   "set ns.a = ns.a + 'one piece of text' %}"
							   "{% set ns.b = ns.b ~ 'another' ~ i %}{% endfor %}{{ ns.a|length }} "
							   "{{ ns.b|length }} {{ ns.a[:20] }}";
	const struct jinja_run limits = {.memory_max = 16u << 20};
	struct result x = render(text, sizeof text - 1, NULL, &limits, 0);
	ck_assert_msg(x.rc == 0 && x.out.data &&
	                  !strcmp(x.out.data, "340000 228890 one piece of textone"),
	              "got %d %s %s", x.rc, x.err.text, x.out.data);
	buf_fini(&x.out);
}

/* Keys that an unkeyed hash (FNV-1a, lengths mixed in) would all put into one slot: a lookup is not
 * a walk past the others. Their order is that of the data. */
TEST(chosen_keys)
{
	enum { KEYS = 1000, LOW = 8191 };
	const struct jinja_run limits = {.steps_max = 20 * KEYS};
	json_t *o = json_object(), *vars = json_object();
	char key[8] = "", first[8] = "", want[32];
	for (unsigned i = 0; json_object_size(o) < KEYS; i++) {
		uint64_t h = 14695981039346656037u ^ 6;
		for (int k = 0; k < 6; k++) {
			key[k] = "0123456789abcdef"[i >> (20 - 4 * k) & 15];
			h = (h ^ (unsigned char)key[k]) * 1099511628211u;
		}
		if (((h ^ h >> 29) & LOW) != 77)
			continue;
		if (!*first)
			strcpy(first, key);
		json_object_set_new(o, key, json_integer(i));
	}
	json_object_set_new(vars, "x", o);
	static const char text[] =
		"{{ x|length }} {{ x|list|first }} {{ x|list|last in x }} {{ (x|dictsort)[0][0] }}";
	struct result x = render(text, strlen(text), vars, &limits, 0);
	ck_assert_msg(x.rc == 0, "%s", x.err.text);
	snprintf(want, sizeof want, "1000 %s True", first);
	ck_assert_msg(!strncmp(x.out.data, want, strlen(want)), "%.*s", (int)x.out.len, x.out.data);
	buf_fini(&x.out);
	json_decref(vars);
}

/* What was grown in place is not changed by another string that begins with it. */
TEST(grown_strings_are_values)
{
	static const char text[] =
		"{% set a = 'x' * 300 %}{% set b = a + 'B' %}{% set c = b + 'C' %}{% set d = b + 'D' %}{{ "
		"c[-2:] }}{{ d[-2:] }}{{ b[-1:] }}{{ (b + b)|length }}";
	struct result x = render(text, sizeof text - 1, NULL, NULL, 0);
	ck_assert_msg(x.rc == 0 && !strcmp(x.out.data, "BCBDB602"), "%s", x.out.data);
	buf_fini(&x.out);
}

TEST(no_utf8)
{
	static const char text[] =
		"\xff{{ '\xfe\xc3'|upper }}{{ ['\xff']|tojson }}{{ '\xe2\x82'|length }}{{ "
		"'\xf0\x9f'[::-1]|trim }}{{ {'\xff': '\xc0\x80'} }}";
	json_t *o = json_object();
	json_object_set_new(o, "x", json_stringn_nocheck("a\xff", 2));
	struct result x = render(text, sizeof text - 1, o, NULL, 0);
	ck_assert_msg(x.rc == 0 && x.out.data[0] == '\xff', "%d %s", x.rc, x.err.text);
	buf_fini(&x.out);
	json_decref(o);
}

TEST(too_long)
{
	size_t len = JINJA_TEMPLATE_BYTES_MAX + 1;
	char *text = mem_zalloc(len);
	struct result x = render(text, len, NULL, NULL, 0);
	ck_assert(x.rc == ERR_INVALID && !x.loaded && strstr(x.err.text, "more than 4194304"));
	buf_fini(&x.out);
	free(text);
}
