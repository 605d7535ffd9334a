/* test_conf.c - configuration: what is taken, what is refused and with which words, what a
 * reload changes. */
/* run: parser */
#include "svc/conf_int.h"
#include "util/mem.h"
#include "tempdir.h"

#include <check.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct conf_key common_table[] = {
	{"name", CONF_STRING, "x", 1, 8, "", 0, "Name", NULL, {0}},
	{"level", CONF_STRING, "info", 0, 0, "", 1, "Level", "debug|info|warn", {0}},
	CONF_END,
};
static const struct conf_key own_table[] = {
	{"threads", CONF_INT, "2", 1, 64, "threads", 0, "Threads", NULL, {0}},
	{"limit_ms", CONF_INT, "500", 0, 9007199254740991, "ms", 1, "limit", NULL, {0}},
	{"ratio", CONF_FLOAT, "0.5", 0, 1, "", 1, "kv_aware: ratio", NULL, {0}},
	{"offload", CONF_BOOL, "true", 0, 0, "", 1, "Offload", NULL, {0}},
	{"routers", CONF_LIST, "a b", 0, 3, "", 1, "Routers", NULL, {0}},
	{"free",
     CONF_INT,
     "-1",
     0,
     0,
     "",
     0,
     "No limits at all, and a help that needs more than one line: it goes on and on, word after "
     "word, until the line is full and another one has to begin",
     NULL,
     {0}},
	CONF_END,
};
static const struct conf_key required_table[] = {
	{"model", CONF_STRING, "", 1, 100, "", 0, "Model file", NULL, {0}},
	CONF_END,
};
static const struct conf_key *const tables[] = {common_table, own_table, NULL};

static char path[TEST_FOLDER_BYTES];

static const struct conf_value *value(const struct conf *c, const char *key)
{
	return &conf_entry_find(c, key)->value;
}

static void write_file(const char *text)
{
	FILE *f = fopen(path, "w");
	ck_assert_ptr_nonnull(f);
	fputs(text, f);
	fclose(f);
}

static void make_path(void)
{
	test_file(path, "x.conf");
	write_file("");
}

static void remove_path(void)
{
	unlink(path);
}

TEST_CASE("conf", .setup = make_path, .teardown = remove_path);

TEST(test_defaults)
{
	struct conf *c;
	ck_assert_int_eq(conf_load(tables, NULL, NULL, 0, &c, NULL), 0);
	ck_assert_str_eq(value(c, "name")->text, "x");
	ck_assert_int_eq(value(c, "threads")->integer, 2);
	ck_assert_int_eq(value(c, "free")->integer, -1);
	ck_assert_double_eq(value(c, "ratio")->real, 0.5);
	ck_assert_int_eq(value(c, "offload")->integer, 1);
	ck_assert_int_eq(value(c, "routers")->n_items, 2);
	ck_assert_str_eq(value(c, "routers")->items[0], "a");
	ck_assert_str_eq(value(c, "routers")->items[1], "b");
	conf_destroy(&c);
	ck_assert_ptr_null(c);
}

TEST(test_file_and_options)
{
	struct conf *c;
	struct err err = {0};
	char *const options[] = {(char *)"threads=9", (char *)"routers=ipc://a  ipc://b",
	                         (char *)"offload=no", (char *)"name=n=1"};
	write_file("threads = 4;\nlimit_ms = 5000000000L;\nratio = 1;\nrouters = [\"q\"];\nlevel = "
	           "\"debug\";\n");
	ck_assert_msg(conf_load(tables, path, options, 4, &c, &err) == 0, "%s", err.text);
	ck_assert_int_eq(value(c, "threads")->integer, 9);
	ck_assert_int_eq(value(c, "limit_ms")->integer, 5000000000);
	ck_assert_double_eq(value(c, "ratio")->real, 1);
	ck_assert_str_eq(value(c, "level")->text, "debug");
	ck_assert_str_eq(value(c, "name")->text, "n=1");
	ck_assert_int_eq(value(c, "offload")->integer, 0);
	ck_assert_int_eq(value(c, "routers")->n_items, 2);
	ck_assert_str_eq(value(c, "routers")->items[1], "ipc://b");
	conf_destroy(&c);
}

#define NOT_WHOLE " is out of range: whole numbers are -9223372036854775808 to 9223372036854775807"

static const struct {
	const char *file, *option, *want; /* @ stands for the file's path */
} refusals[] = {
	{"threads = 0;", NULL, "@:1: threads = 0 is out of range: 1 to 64 threads"},
	{"\n\nthreads = 65;", NULL, "@:3: threads = 65 is out of range: 1 to 64 threads"},
	{"threads = \"four\";", NULL,
     "@:1: threads = four is of the wrong type: want a whole number (1 to 64 threads)"},
	{"threads = 1.5;", NULL,
     "@:1: threads = 1.5 is of the wrong type: want a whole number (1 to 64 threads)"},
	{"thread = 1;", NULL, "@:1: unknown key \"thread\"; did you mean \"threads\"?"},
	{"colour = 1;", NULL, "@:1: unknown key \"colour\""},
	{"ratio = 1.01;", NULL, "@:1: ratio = 1.01 is out of range: 0 to 1"},
	{"offload = 1;", NULL, "@:1: offload = 1 is of the wrong type: want true or false"},
	{"name = \"123456789\";", NULL, "@:1: name = 123456789 is out of range: 1 to 8 bytes"},
	{"level = \"loud\";", NULL, "@:1: level = loud is out of range: one of debug|info|warn"},
	{"level = \"debug|info\";", NULL,
     "@:1: level = debug|info is out of range: one of debug|info|warn"},
	{"routers = [\"a\",\"b\",\"c\",\"d\"];", NULL,
     "@:1: routers = a b c d is out of range: 0 to 3 items"},
	{"routers = (\"a\", 2);", NULL, "@:1: routers: item 2 is not a text in double quotes"},
	{"routers = [\"a\", \"b c\"];", NULL, "@:1: routers: item 2 is empty or has white space"},
	{"routers = [\"\"];", NULL, "@:1: routers: item 1 is empty or has white space"},
	{"routers = \"a\";", NULL,
     "@:1: routers = a is of the wrong type: want a list of texts: [ \"a\", \"b\" ] (0 to 3 "
     "items)"},
	{"threads = { a = 1; };", NULL,
     "@:1: threads = {...} is of the wrong type: want a whole number (1 to 64 threads)"},
	{"threads = 1\nthreads = 2;", NULL, "@:2: duplicate setting name"},
	{"threads = ;", NULL, "@:1: syntax error"},
	{"threads = 4294967298;", NULL, "@:1: threads = 4294967298 is out of range: 1 to 64 threads"},
	{"ratio = 4294967297;", NULL, "@:1: ratio = 4.2949673e+09 is out of range: 0 to 1"},
	{"free = 99999999999999999999;", NULL, "@:1: free = 99999999999999999999" NOT_WHOLE},
	{"free = 99999999999999999999LL;", NULL, "@:1: free = 99999999999999999999" NOT_WHOLE},
	{"free = -9223372036854775809;", NULL, "@:1: free = -9223372036854775809" NOT_WHOLE},
	{"free = 0xFFFFFFFFFFFFFFFF;", NULL, "@:1: free = 0xFFFFFFFFFFFFFFFF" NOT_WHOLE},
	{"# 1\n/* 2\n3 */ ratio = 0.5 limit_ms = 9223372036854775808", NULL,
     "@:3: limit_ms = 9223372036854775808" NOT_WHOLE},
	{"a-1 = 2;", NULL, "@:1: unknown key \"a-1\""},
	{"threads = 5LLL;", NULL, "@:1: syntax error"},
	{"threads = 4;\n  @include \"/dev/null\"\n", NULL,
     "@:2: @include is not supported: all settings are in one file"},
	{"99999999999999999999", NULL, "@:1: syntax error"},
	{"", "free=99999999999999999999",
     "option -o: free = 99999999999999999999 is of the wrong type: want a whole number "
     "(-9223372036854775808 to 9223372036854775807)"},
	{"", "threads=x",
     "option -o: threads = x is of the wrong type: want a whole number (1 to 64 threads)"},
	{"", "threads=4x",
     "option -o: threads = 4x is of the wrong type: want a whole number (1 to 64 threads)"},
	{"", "ratio=0.5x", "option -o: ratio = 0.5x is of the wrong type: want a number (0 to 1)"},
	{"", "offload=maybe", "option -o: offload = maybe is of the wrong type: want true or false"},
	{"", "threads=99999999999999999999",
     "option -o: threads = 99999999999999999999 is of the wrong type: want a whole number (1 to 64 "
     "threads)"},
	{"", "ratio=nan", "option -o: ratio = nan is of the wrong type: want a number (0 to 1)"},
	{"", "threads", "option -o threads: want key=value"},
	{"", "=3", "option -o =3: want key=value"},
	{"", "nmae=3", "option -o: unknown key \"nmae\"; did you mean \"name\"?"},
	{"", "name=", "option -o: name =  is out of range: 1 to 8 bytes"},
};

TEST_LOOP(test_refused, 0, sizeof refusals / sizeof *refusals)
{
	struct conf *c = NULL;
	struct err err = {0};
	char *option[] = {(char *)refusals[_i].option};
	write_file(refusals[_i].file);
	ck_assert_int_eq(conf_load(tables, path, option, option[0] != NULL, &c, &err), ERR_INVALID);
	const char *want = refusals[_i].want;
	char *full = *want == '@' ? mem_printf("%s%s", path, want + 1) : mem_strdup(want);
	ck_assert_str_eq(err.text, full);
	ck_assert_ptr_null(c);
	free(full);
}

/* A file's numbers are those of -o, however they are written. */
static const struct {
	const char *file, *key;
	int64_t want;
} numbers[] = {
	{"limit_ms = 5000000000;", "limit_ms", 5000000000},
	{"limit_ms = 2147483648L;", "limit_ms", 2147483648},
	{"free = 9223372036854775807;", "free", INT64_MAX},
	{"free = -9223372036854775808;", "free", INT64_MIN},
	{"free = +7LL;", "free", 7},
	{"free = -7;", "free", -7},
	{"free = 010;", "free", 10},
	{"free = 0xffffffff;", "free", 4294967295},
	{"free = 0X7FFFFFFFFFFFFFFFL;", "free", INT64_MAX},
	{"threads = 3 free = 5", "threads", 3},
	{"/* free = 6 */ // free = 7\n# free = 8\nfree:9", "free", 9},
	{"level = \"in\" /* 99999999999999999999 @ */ \"fo\"; free = 5;", "free", 5},
	{"name = \"\\\\\"; free = 5; # \"", "free", 5},
	{"name = \"\\\"@ 9\"; free = 5; # 99999999999999999999 @include \"x\"", "free", 5},
};

TEST_LOOP(test_numbers, 0, sizeof numbers / sizeof *numbers)
{
	struct conf *c;
	struct err err = {0};
	write_file(numbers[_i].file);
	ck_assert_msg(conf_load(tables, path, NULL, 0, &c, &err) == 0, "%s", err.text);
	ck_assert_int_eq(value(c, numbers[_i].key)->integer, numbers[_i].want);
	conf_destroy(&c);
}

TEST(test_fractions)
{
	static const char *const halves[] = {"0.5", ".5", "5e-1", "5.E-1", "+0.5e+0", "0.05E1"};
	for (size_t i = 0; i < sizeof halves / sizeof *halves; i++) {
		struct conf *c;
		struct err err = {0};
		char text[64];
		snprintf(text, sizeof text, "ratio = %s; threads = 3;", halves[i]);
		write_file(text);
		ck_assert_msg(conf_load(tables, path, NULL, 0, &c, &err) == 0, "%s", err.text);
		ck_assert_double_eq(value(c, "ratio")->real, 0.5);
		ck_assert_int_eq(value(c, "threads")->integer, 3);
		conf_destroy(&c);
	}
}

TEST(test_no_text)
{
	struct conf *c;
	struct err err = {0};
	FILE *f = fopen(path, "w");
	fwrite("free = 1;\0threads = 2;", 1, 22, f);
	fclose(f);
	ck_assert_int_eq(conf_load(tables, path, NULL, 0, &c, &err), ERR_INVALID);
	ck_assert_ptr_nonnull(strstr(err.text, "x.conf: byte 9 is NUL"));
}

TEST(test_no_file)
{
	struct conf *c;
	struct err err = {0};
	ck_assert_int_eq(conf_load(tables, "/nonexistent/x.conf", NULL, 0, &c, &err), ERR_IO);
	ck_assert_ptr_nonnull(strstr(err.text, "/nonexistent/x.conf"));
	ck_assert_int_lt(conf_load(tables, "/tmp", NULL, 0, &c, &err), 0);
}

TEST(test_required)
{
	static const struct conf_key *const with[] = {common_table, required_table, NULL};
	struct conf *c;
	struct err err = {0};
	char *option[] = {(char *)"model=m.gguf"};
	ck_assert_int_eq(conf_load(with, NULL, NULL, 0, &c, &err), ERR_INVALID);
	ck_assert_str_eq(err.text,
	                 "configuration: the key \"model\" is missing and has no default: Model file");
	ck_assert_int_eq(conf_load(with, NULL, option, 1, &c, &err), 0);
	ck_assert_str_eq(value(c, "model")->text, "m.gguf");
	conf_destroy(&c);
}

struct applied {
	struct conf *c;
	int calls, code;
	double seen;
};

static int apply(void *arg, struct err *err)
{
	struct applied *a = arg;
	a->calls++;
	a->seen = value(a->c, "ratio")->real;
	return a->code ? err_set(err, a->code, "so it is") : 0;
}

/* Who is to make the new values work cannot: the old ones are back. */
TEST(test_reload_that_cannot_be_applied)
{
	struct applied a = {.code = ERR_IO};
	struct err err = {0};
	char *changed, *refused;
	write_file("threads = 4; ratio = 0.25;");
	ck_assert_int_eq(conf_load(tables, path, NULL, 0, &a.c, &err), 0);
	write_file("threads = 5; ratio = 0.75;");
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(conf_reload(a.c, apply, &a, &changed, &refused, &err), a.code);
		ck_assert_str_eq(err.text, i ? "" : "so it is");
		ck_assert_int_eq(a.calls, i + 1);
		ck_assert_double_eq(a.seen, 0.75);
		ck_assert_double_eq(value(a.c, "ratio")->real, i ? 0.75 : 0.25);
		ck_assert(i ? !strcmp(changed, "ratio") && !strcmp(refused, "threads")
		            : !changed && !refused);
		free(changed);
		free(refused);
		a.code = 0;
		err = (struct err){0};
	}
	conf_destroy(&a.c);
}

TEST(test_reload)
{
	struct conf *c;
	struct err err = {0};
	char *changed, *refused;
	char *option[] = {(char *)"limit_ms=7"};
	write_file("threads = 4; ratio = 0.25; routers = [];");
	ck_assert_int_eq(conf_load(tables, path, option, 1, &c, &err), 0);
	write_file("threads = 5; ratio = 0.75; offload = false; limit_ms = 100;");
	ck_assert_int_eq(conf_reload(c, NULL, NULL, &changed, &refused, &err), 0);
	ck_assert_str_eq(changed, "ratio offload routers");
	ck_assert_str_eq(refused, "threads");
	ck_assert_int_eq(value(c, "threads")->integer, 4);
	ck_assert_int_eq(value(c, "limit_ms")->integer, 7);
	ck_assert_double_eq(value(c, "ratio")->real, 0.75);
	ck_assert_int_eq(value(c, "offload")->integer, 0);
	free(changed);
	free(refused);
	write_file("ratio = 2;");
	ck_assert_int_eq(conf_reload(c, NULL, NULL, &changed, &refused, &err), ERR_INVALID);
	ck_assert_double_eq(value(c, "ratio")->real, 0.75);
	write_file("threads = 4; ratio = 0.75; offload = false;");
	ck_assert_int_eq(conf_reload(c, NULL, NULL, &changed, &refused, &err), 0);
	ck_assert_ptr_null(changed);
	ck_assert_ptr_null(refused);
	conf_destroy(&c);
}

/* A default that depends on another key, and one that is known only at start: both are shown as
 * the default, and are no change when the file is read again. */
TEST(test_defaults_that_depend)
{
	static const struct conf_key slots_table[] = {
		{"slots", CONF_INT, "4; name=gpu: 16", 1, 64, "slots", 0, "slots", NULL, {0}},
		{"routers", CONF_LIST, "a; name=gpu: b", 0, 3, "", 0, "Routers", NULL, {0}},
		CONF_END,
	};
	static const struct conf_key *const dependent[] = {common_table, slots_table, NULL};
	static const struct {
		const char *file, *value, *shown, *source;
	} cases[] = {
		{"", "4", "\"default\":\"4\"", "\"source\":\"default\""},
		{"name = \"gpu\";", "16", "\"default\":\"16\"", "\"source\":\"default of name gpu\""},
		{"name = \"gpu\"; slots = 4;", "4", "\"default\":\"16\"", "x.conf:1\""},
		{"slots = 16;", "16", "\"default\":\"4\"", "x.conf:1\""},
	};
	struct conf *c;
	struct err err = {0};
	struct buf b;
	char *changed, *refused;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		write_file(cases[i].file);
		ck_assert_msg(conf_load(dependent, path, NULL, 0, &c, &err) == 0, "%s", err.text);
		ck_assert_int_eq(value(c, "slots")->integer, atoi(cases[i].value));
		buf_init(&b, 0);
		conf_json(c, &b);
		ck_assert_msg(strstr(b.data, cases[i].shown) && strstr(b.data, cases[i].source), "%s",
		              b.data);
		buf_fini(&b);
		conf_set_default(c, "slots", "8", "default of a small one");
		int set = strstr(cases[i].file, "slots") != NULL;
		ck_assert_int_eq(value(c, "slots")->integer, set ? atoi(cases[i].value) : 8);
		ck_assert_int_eq(conf_reload(c, NULL, NULL, &changed, &refused, &err), 0);
		ck_assert(!changed && !refused);
		ck_assert_int_eq(value(c, "slots")->integer, set ? atoi(cases[i].value) : 8);
		conf_destroy(&c);
	}
	buf_init(&b, 0);
	conf_help(dependent, &b);
	ck_assert_ptr_nonnull(strstr(b.data, "1 to 64 slots. Default with name gpu: 16.\n#slots = 4;"));
	ck_assert_ptr_nonnull(strstr(b.data, "#routers = [\"a\"];"));
	buf_fini(&b);
}

TEST(test_json)
{
	struct conf *c;
	struct buf b;
	buf_init(&b, 0);
	write_file("threads = 4; routers = [\"a\\\"b\"];");
	ck_assert_int_eq(conf_load(tables, path, NULL, 0, &c, NULL), 0);
	conf_json(c, &b);
	json_t *j = json_loads(b.data, 0, NULL);
	ck_assert_ptr_nonnull(j);
	json_t *threads = json_object_get(j, "threads");
	ck_assert_int_eq(json_integer_value(json_object_get(threads, "value")), 4);
	ck_assert_str_eq(json_string_value(json_object_get(threads, "unit")), "threads");
	ck_assert_int_eq(
		strncmp(json_string_value(json_object_get(threads, "source")), path, strlen(path)), 0);
	ck_assert_str_eq(json_string_value(json_array_get(
						 json_object_get(json_object_get(j, "routers"), "value"), 0)),
	                 "a\"b");
	ck_assert(json_is_true(json_object_get(json_object_get(j, "offload"), "value")));
	ck_assert_str_eq(json_string_value(json_object_get(json_object_get(j, "level"), "source")),
	                 "default");
	json_decref(j);
	buf_fini(&b);
	conf_destroy(&c);
}

/* What -h and etc/ show must be a file that loads and says nothing but defaults, with and
 * without its comment signs. */
TEST(test_help_is_a_file)
{
	struct conf *c;
	struct err err = {0};
	struct buf b;
	buf_init(&b, 0);
	conf_help(tables, &b);
	ck_assert_ptr_nonnull(strstr(b.data, "# Threads. Range: 1 to 64 threads.\n#threads = 2;\n"));
	ck_assert_ptr_nonnull(
		strstr(b.data, "# Limit. Range: 0 to 9007199254740991 ms. SIGHUP reloads it.\n"));
	ck_assert_ptr_nonnull(strstr(b.data, "# kv_aware: ratio. Range: 0 to 1. SIGHUP reloads it.\n"));
	ck_assert_ptr_nonnull(strstr(b.data, "\n#routers = [\"a\", \"b\"];\n"));
	for (const char *line = b.data; *line; line += strcspn(line, "\n") + 1)
		ck_assert_uint_le(strcspn(line, "\n"), 110);
	for (char *p = b.data; p; p = strstr(p, "\n#") ? strstr(p, "\n#") + 1 : NULL)
		if (p[0] == '#' && p[1] != ' ')
			*p = ' ';
	write_file(b.data);
	ck_assert_msg(conf_load(tables, path, NULL, 0, &c, &err) == 0, "%s", err.text);
	ck_assert_int_eq(value(c, "threads")->integer, 2);
	ck_assert_int_eq(value(c, "free")->integer, -1);
	ck_assert_int_eq(value(c, "routers")->n_items, 2);
	ck_assert_str_eq(value(c, "routers")->items[1], "b");
	conf_destroy(&c);
	buf_fini(&b);
}

/* A key of earlier versions names what replaced it, from a file, an option, and at a reload. */
TEST(a_removed_key_says_what_to_do)
{
	static const struct conf_key some[] = {
		{"level", CONF_INT, "3", 0, 9, "", 1, "a level", NULL, {0}},
		CONF_GONE("depth", "set level instead"),
		CONF_END};
	const struct conf_key *const both[] = {some, NULL};
	char *const options[] = {(char *)"depth=3"};
	struct conf *c;
	struct err err = {0};
	ck_assert_int_eq(conf_load(both, NULL, options, 1, &c, &err), ERR_INVALID);
	ck_assert_str_eq(err.text, "option -o: the key \"depth\" exists no more: set level instead");
	struct buf out;
	buf_init(&out, 0);
	conf_help(both, &out);
	ck_assert_ptr_null(strstr(out.data, "depth"));
	buf_fini(&out);
}

/* Each value is where its key's place says, in the unit of the field. */
TEST(values_are_put_into_a_structure)
{
	struct values {
		int on, choice;
		uint32_t count;
		uint64_t wait_us;
		size_t bytes;
		double share;
		const char *name;
		int port;
		struct conf_items routers;
	} v = {0};
	static const struct conf_key some[] = {
		{"on", CONF_BOOL, "true", 0, 0, "", 0, "a", NULL, CONF_TO(struct values, on)},
		{"mode", CONF_STRING, "c", 0, 0, "", 0, "b", "a|bb|c", CONF_TO(struct values, choice)},
		{"count", CONF_INT, "7", 0, 9, "", 0, "c", NULL, CONF_TO(struct values, count)},
		{"wait_ms", CONF_INT, "9000000", 0, 1e9, "ms", 0, "d", NULL,
	     CONF_US(struct values, wait_us)},
		{"size_mb", CONF_INT, "5000", 0, 9999, "MiB", 0, "e", NULL,
	     CONF_BYTES(struct values, bytes)},
		{"share", CONF_FLOAT, "0.25", 0, 1, "", 0, "f", NULL, CONF_TO(struct values, share)},
		{"name", CONF_STRING, "x", 0, 9, "", 0, "g", NULL, CONF_TO(struct values, name)},
		{"port", CONF_INT, "-3", -9, 9, "", 0, "h", NULL, CONF_TO(struct values, port)},
		{"routers", CONF_LIST, "x yy", 0, 3, "", 0, "i", NULL, CONF_TO(struct values, routers)},
		CONF_GONE("other", "x"),
		CONF_END};
	const struct conf_key *const one[] = {some, NULL};
	struct conf *c;
	struct err err = {0};
	ck_assert_int_eq(conf_load(one, NULL, NULL, 0, &c, &err), 0);
	conf_fill(c, some, &v);
	ck_assert(v.on == 1 && v.choice == 2 && v.count == 7 && v.share == 0.25);
	ck_assert_uint_eq(v.wait_us, 9000000000u);
	ck_assert_uint_eq(v.bytes, (size_t)5000 << 20);
	ck_assert_str_eq(v.name, "x");
	ck_assert(v.port == -3 && v.routers.n == 2 && strcmp(v.routers.item[1], "yy") == 0);
	conf_destroy(&c);
}
