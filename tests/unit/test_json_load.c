/* test_json_load.c - reading JSON within a quota: the bound is one for every shape of text, and a
 * quota or a system that has too little ends it cleanly at every size. */
/* run: parser */
#include "util/buf.h"
#include "util/json_load.h"

#include <check.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

/* --- the bound ----------------------------------------------------------- */

static size_t used, peak;

static void *count_take(size_t n)
{
	void *p = malloc(n);
	used += malloc_usable_size(p) + 8; /* and what malloc needs itself */
	peak = used > peak ? used : peak;
	return p;
}

static void count_give(void *p)
{
	used -= p ? malloc_usable_size(p) + 8 : 0;
	free(p);
}

/* Repeated, between two ends. */
static const struct {
	const char *begin, *each, *end;
	double slack; /* the bound is at most so many times what is used */
} shapes[] = {
	{"[", "1,", "1]", 2},
	{"[", "{},", "1]", 1.5},
	{"[", "[],", "1]", 1.5},
	{"[", "[1],", "1]", 2},
	{"[", "{\"a\":1},", "1]", 2},
	{"[", "\"\",", "1]", 2},
	{"[", "\"abcdefghijkl\",", "1]", 2},
	{"[", "1.5,", "1]", 2},
	{"[", "123456,", "1]", 2},
	{"[", "null,", "1]", 8},
	{"[\"", "abcd", "\"]", 3},
	{"[\"", "\\u00e9", "\"]", 6},
	{"[\"", "\\\\", "\"]", 4},
	{"", "[", "", 20},
	{"{\"k", "a", "\":1}", 3},
	{"[", " 1 , ", "1]", 2},
	{"[", "{\"abc\":[{\"d\":\"e\"}]},", "1]", 2},
	{"[", "-", "", 8},
	{"\"", "x", "", 3},
	{"[", "{\"a\":{\"b\":{\"c\":{}}}},", "1]", 2},
	{"[", "1e5,", "1]", 2},
	{"[", "9", "]", 4},
	{"[", "\"\\\"\",", "1]", 2},
};

TEST_CASE("json_load", .timeout_s = 60);

TEST_LOOP(bound_of_shapes, 0, sizeof shapes / sizeof *shapes)
{
	static const size_t times[] = {0, 1, 7, 8, 9, 100, 1000, 2000, 20000};
	json_set_alloc_funcs(count_take, count_give);
	for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
		struct buf b;
		json_error_t bad;
		buf_init(&b, 0);
		buf_adds(&b, shapes[_i].begin);
		for (size_t k = 0; k < times[i]; k++)
			buf_adds(&b, shapes[_i].each);
		buf_adds(&b, shapes[_i].end);
		used = peak = 0;
		json_decref(json_loadb(b.data, b.len, JSON_ALLOW_NUL, &bad));
		size_t bound = json_load_bytes(b.data, b.len);
		ck_assert_msg(bound >= peak, "%s%s...%s %zu times: %zu bytes, bound %zu", shapes[_i].begin,
		              shapes[_i].each, shapes[_i].end, times[i], peak, bound);
		ck_assert_uint_le(peak, b.len * JSON_LOAD_TIMES + JSON_LOAD_NESTED);
		if (times[i] >= 2000 && peak > 10000)
			ck_assert_msg((double)bound <= shapes[_i].slack * (double)peak,
			              "%s%s...%s %zu times: %zu bytes, bound %zu", shapes[_i].begin,
			              shapes[_i].each, shapes[_i].end, times[i], peak, bound);
		buf_fini(&b);
	}
	json_set_alloc_funcs(malloc, free);
}

/* Members of one object: keys that differ. */
TEST(bound_of_members)
{
	struct buf b;
	json_error_t bad;
	json_set_alloc_funcs(count_take, count_give);
	buf_init(&b, 0);
	buf_addc(&b, '{');
	for (int i = 0; i < 20000; i++)
		buf_printf(&b, "%s\"%d\":0", i ? "," : "", i);
	buf_addc(&b, '}');
	used = peak = 0;
	json_decref(json_loadb(b.data, b.len, JSON_ALLOW_NUL, &bad));
	size_t bound = json_load_bytes(b.data, b.len);
	ck_assert_uint_ge(bound, peak);
	ck_assert_uint_le(bound, 3 * peak);
	buf_fini(&b);
	json_set_alloc_funcs(malloc, free);
}

/* --- refused ------------------------------------------------------------- */

/* A text whose tree, and a string of it, grow through many sizes. */
static void body(struct buf *b)
{
	buf_init(b, 0);
	buf_adds(b, "{\"text\":\"");
	for (int i = 0; i < 3000; i++)
		buf_adds(b, "ab ");
	buf_adds(b, "\",\"list\":[");
	for (int i = 0; i < 300; i++)
		buf_adds(b, "{\"a\":[1,2]},");
	buf_adds(b, "0]}");
}

/* Whatever the quota has: all of the tree or nothing of it, and nothing stays taken. */
TEST(any_limit)
{
	struct buf b;
	json_error_t bad;
	size_t read = 0, refused = 0;
	body(&b);
	json_account_setup();
	for (size_t limit = 0; limit < 2 * json_load_bytes(b.data, b.len); limit += 977) {
		struct quota q;
		struct json_account a = {.quota = &q};
		quota_init(&q, NULL, limit);
		json_account_begin(&a);
		json_t *o = json_load(b.data, b.len, 0, &bad);
		if (o) {
			ck_assert_uint_eq(json_array_size(json_object_get(o, "list")), 301);
			ck_assert_uint_eq(json_string_length(json_object_get(o, "text")), 9000);
			ck_assert_uint_gt(q.used, 9000);
			ck_assert_uint_eq(q.used, a.used);
			read++;
		} else {
			ck_assert_int_eq(json_error_code(&bad), json_error_out_of_memory);
			ck_assert_int_eq(q.over, QUOTA_OVER_LIMIT);
			refused++;
		}
		json_decref(o);
		ck_assert_int_eq(json_account_end(), 0);
		ck_assert_uint_eq(q.used, 0);
		quota_fini(&q);
	}
	ck_assert_uint_gt(read, 10);
	ck_assert_uint_gt(refused, 10);
	json_set_alloc_funcs(malloc, free);
	buf_fini(&b);
}

/* What is made of it later is refused as everything else, and what stays is counted. */
TEST(what_stays)
{
	struct quota q;
	struct json_account a = {.quota = &q};
	struct buf b;
	json_error_t bad;
	body(&b);
	json_account_setup();
	quota_init(&q, NULL, 3 * json_load_bytes(b.data, b.len));
	json_account_begin(&a);
	json_t *o = json_load(b.data, b.len, 0, &bad), *copy[100] = {json_deep_copy(o)};
	size_t two = q.used, n = 1;
	ck_assert(o && copy[0]);
	while (n < 100 && (copy[n] = json_deep_copy(o)))
		n++;
	ck_assert_uint_gt(n, 1);
	ck_assert_uint_lt(n, 100);
	ck_assert_int_eq(q.over, QUOTA_OVER_LIMIT);
	while (n > 1)
		json_decref(copy[--n]);
	ck_assert_uint_eq(q.used, two);
	json_decref(o);
	ck_assert_int_eq(json_account_end(), 0);
	ck_assert_uint_eq(q.used, a.used);
	ck_assert_uint_ge(a.used, two / 2 - two / 100);
	ck_assert_uint_le(a.used, two / 2 + two / 100);
	json_decref(copy[0]);
	json_set_alloc_funcs(malloc, free);
	buf_fini(&b);
}
