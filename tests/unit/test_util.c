/* test_util.c - the small containers and texts that everything stands on: map, buf, arena, list,
 * log, err. */
/* run: threads */
#include "util/arena.h"
#include "util/buf.h"
#include "util/clock.h"
#include "util/endpoint.h"
#include "util/err.h"
#include "util/list.h"
#include "util/log.h"
#include "util/map.h"
#include "util/mem.h"

#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- map ----------------------------------------------------------------- */

TEST_CASE("util", .timeout_s = 60);

TEST(map_basics)
{
	struct map *m = map_new(4);
	int a, b;
	ck_assert_ptr_null(map_get(m, "aaaa"));
	ck_assert_ptr_null(map_remove(m, "aaaa"));
	ck_assert_ptr_null(map_put(m, "aaaa", &a));
	ck_assert_ptr_eq(map_put(m, "aaaa", &b), &a);
	ck_assert_uint_eq(map_count(m), 1);
	ck_assert_ptr_null(map_put(m, "a\0\0a", &a)); /* keys are bytes */
	ck_assert_ptr_null(map_get(m, "a\0\0b"));
	ck_assert_ptr_eq(map_remove(m, "aaaa"), &b);
	ck_assert_ptr_null(map_get(m, "aaaa"));
	ck_assert_uint_eq(map_count(m), 1);
	map_destroy(&m);
	ck_assert_ptr_null(m);
	map_destroy(&m);
}

/* Against an array, with far more removals than the table has slots: neither growth nor
 * tombstones may lose or hang anything. */
TEST_LOOP(map_against_an_array, 0, 2)
{
	enum { KEYS = 500, OPS = 200000 };
	void *want[KEYS] = {0};
	size_t count = 0;
	struct map *m = _i ? map_new_random_keys(sizeof(uint64_t)) : map_new(sizeof(uint64_t));
	srand(7);
	for (int i = 0; i < OPS; i++) {
		uint64_t k = (uint64_t)rand() % (i < OPS / 2 ? KEYS : 8);
		void *v = (void *)(uintptr_t)(rand() % 1000 + 1);
		if (rand() % 2) {
			ck_assert_ptr_eq(map_put(m, &k, v), want[k]);
			count += !want[k];
			want[k] = v;
		} else {
			ck_assert_ptr_eq(map_remove(m, &k), want[k]);
			count -= want[k] != NULL;
			want[k] = NULL;
		}
		ck_assert_uint_eq(map_count(m), count);
		k = (uint64_t)rand() % KEYS;
		ck_assert_ptr_eq(map_get(m, &k), want[k]);
	}
	size_t it = 0, seen = 0;
	const void *key;
	void *val;
	while (map_next(m, &it, &key, &val)) {
		uint64_t k;
		memcpy(&k, key, sizeof k);
		ck_assert_ptr_eq(val, want[k]);
		seen++;
		ck_assert_ptr_eq(map_remove(m, &k), val); /* the present one may go */
	}
	ck_assert_uint_eq(seen, count);
	ck_assert_uint_eq(map_count(m), 0);
	map_destroy(&m);
}

/* --- buf ----------------------------------------------------------------- */

TEST(buf_bound)
{
	struct buf b;
	buf_init(&b, 10);
	ck_assert_ptr_null(b.data);
	ck_assert_int_eq(buf_adds(&b, "12345"), 0);
	ck_assert_int_eq(buf_printf(&b, "%d", 6789), 0);
	ck_assert_str_eq(b.data, "123456789");
	ck_assert_int_eq(buf_adds(&b, "ab"), ERR_FULL);
	ck_assert_int_eq(buf_addc(&b, 'a'), ERR_FULL); /* nothing is added behind a gap */
	ck_assert_int_eq(buf_printf(&b, "%s", ""), ERR_FULL);
	ck_assert(b.full);
	ck_assert_str_eq(b.data, "123456789");
	buf_reset(&b);
	ck_assert(!b.full);
	ck_assert_uint_eq(b.len, 0);
	ck_assert_int_eq(buf_adds(&b, "0123456789"), 0);
	ck_assert_int_eq(buf_add(&b, "x", SIZE_MAX), ERR_FULL);
	buf_fini(&b);
	buf_init(&b, 0);
	for (int i = 0; i < 10000; i++)
		ck_assert_int_eq(buf_add(&b, "a\0b", 3), 0);
	ck_assert_uint_eq(b.len, 30000);
	ck_assert_int_eq(b.data[b.len], 0);
	buf_fini(&b);
}

TEST(buf_json)
{
	static const struct {
		const char *in;
		size_t n;
		const char *want;
	} t[] = {
		{"", 0, "\"\""},
		{"plain text", 10, "\"plain text\""},
		{"a\"b\\c/", 6, "\"a\\\"b\\\\c/\""},
		{"\b\t\n\f\r", 5, "\"\\b\\t\\n\\f\\r\""},
		{"\0\1\v\x1f\x7f", 5, "\"\\u0000\\u0001\\u000b\\u001f\\u007f\""},
		{"gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80", 15,
	     "\"gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80\""},
		{"\xff", 1, "\"\xEF\xBF\xBD\""},
		{"\xc3", 1, "\"\xEF\xBF\xBD\""}, /* cut */
		{"\xe2\x82z", 3, "\"\xEF\xBF\xBD\xEF\xBF\xBDz\""},
		{"\xc0\xaf", 2, "\"\xEF\xBF\xBD\xEF\xBF\xBD\""}, /* longer than it need be */
		{"\xe0\x80\xaf", 3, "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\""},
		{"\xed\xa0\x80", 3, "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\""}, /* a surrogate */
		{"\xf4\x90\x80\x80", 4, "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\""},
	};
	for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
		struct buf b;
		buf_init(&b, 0);
		ck_assert_int_eq(buf_add_json(&b, t[i].in, t[i].n), 0);
		ck_assert_msg(strcmp(b.data, t[i].want) == 0, "case %zu: %s", i, b.data);
		buf_fini(&b);
	}
}

/* --- arena, list --------------------------------------------------------- */

static int is_all(const unsigned char *p, size_t n, unsigned char v)
{
	for (size_t i = 0; i < n; i++)
		if (p[i] != v)
			return 0;
	return 1;
}

TEST(arena_pieces)
{
	static const size_t sizes[] = {1, 15, 16, 17, 2048, 2049, 100000, 0, 3, 8192, 7};
	enum { N = sizeof sizes / sizeof *sizes, ROUNDS = 50 };
	unsigned char *p[N * ROUNDS];
	struct arena *a = arena_new();
	for (int i = 0; i < N * ROUNDS; i++) {
		p[i] = arena_alloc(a, sizes[i % N]);
		ck_assert_uint_eq((uintptr_t)p[i] % 16, 0);
		ck_assert(is_all(p[i], sizes[i % N], 0));
		memset(p[i], i & 0xFF, sizes[i % N]);
	}
	for (int i = 0; i < N * ROUNDS; i++) /* nothing overlaps */
		ck_assert(is_all(p[i], sizes[i % N], (unsigned char)i));
	ck_assert_str_eq(arena_printf(a, "%s-%d", "x", 42), "x-42");
	arena_destroy(&a);
	ck_assert_ptr_null(a);
	arena_destroy(&a);
}

struct item {
	int v;
	struct list node;
};

TEST(list_order)
{
	struct list head = LIST_INIT(head);
	struct item it[4] = {{.v = 0}, {.v = 1}, {.v = 2}, {.v = 3}};
	int v = 0;
	ck_assert(list_empty(&head));
	list_push_back(&head, &it[1].node);
	list_push_back(&head, &it[2].node);
	list_push_front(&head, &it[0].node);
	list_push_back(&head, &it[3].node);
	list_each(i, &head)
		ck_assert_int_eq(list_entry(i, struct item, node)->v, v++);
	ck_assert_int_eq(v, 4);
	list_remove(&it[2].node);
	ck_assert(list_empty(&it[2].node));
	list_remove(&it[2].node); /* of no list: changes nothing */
	list_each_safe(i, nx, &head)
		list_remove(i);
	ck_assert(list_empty(&head));
}

/* --- log, err, mem ------------------------------------------------------- */

TEST(log_quoting)
{
	char lots[1000], quotes[1000];
	ck_assert_str_eq(log_quote("plain"), "\"plain\"");
	ck_assert_str_eq(log_quote("a \"b\" \\"), "\"a \\\"b\\\" \\\\\"");
	ck_assert_str_eq(log_quote("two\nlines\t\x7f"), "\"two lines  \"");
	ck_assert_str_eq(log_quote(NULL), "\"\"");
	ck_assert_str_eq(log_quote("gr\xc3\xbc"), "\"gr\xc3\xbc\"");
	memset(lots, 'x', sizeof lots);
	memset(quotes, '"', sizeof quotes);
	lots[sizeof lots - 1] = quotes[sizeof quotes - 1] = 0;
	ck_assert_uint_le(strlen(log_quote(lots)), 260);
	ck_assert_uint_le(strlen(log_quote(quotes)), 260);
	const char *a = log_quote("a"), *b = log_quote("b"); /* both in one line */
	ck_assert_str_eq(a, "\"a\"");
	ck_assert_str_eq(b, "\"b\"");
}

TEST(reqid_texts)
{
	struct reqid id = {1, 2}, back;
	ck_assert_str_eq(log_reqid(&id), "00000000000000010000000000000002");
	ck_assert_int_eq(reqid_parse("00000000-0000-0001-0000-000000000002", &back), 0);
	ck_assert_uint_eq(back.hi, 1);
	ck_assert_uint_eq(back.lo, 2);
	ck_assert_int_eq(reqid_parse("FEDCBA9876543210fedcba9876543210", &back), 0);
	ck_assert_uint_eq(back.hi, 0xfedcba9876543210u);
	ck_assert_uint_eq(back.lo, 0xfedcba9876543210u);
	static const char *const bad[] = {"",
	                                  "-",
	                                  "0",
	                                  "0000000000000001000000000000000",
	                                  "000000000000000100000000000000023",
	                                  "0000000000000001000000000000000g",
	                                  " 0000000000000010000000000000002"};
	id = back;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		ck_assert_int_eq(reqid_parse(bad[i], &back), ERR_INVALID);
	ck_assert_mem_eq(&id, &back, sizeof id);
}

static size_t capture(char *out, size_t size, void (*emit)(void))
{
	int p[2], old = dup(STDERR_FILENO);
	ck_assert_int_eq(pipe(p), 0);
	dup2(p[1], STDERR_FILENO);
	emit();
	dup2(old, STDERR_FILENO);
	close(p[1]);
	close(old);
	ssize_t n = read(p[0], out, size - 1);
	close(p[0]);
	ck_assert_int_ge(n, 0);
	out[n] = 0;
	return (size_t)n;
}

static void emit_line(void)
{
	struct reqid id = {0xab, 0xcd};
	log_req(LOG_INFO, &id, "unit", "n=%d text=%s", 7, log_quote("a\nb"));
	log_debug("quiet", "x=%d", 1);
}

static void emit_long(void)
{
	char lots[5000];
	memset(lots, 'y', sizeof lots);
	lots[sizeof lots - 1] = 0;
	log_warn("long", "text=%s", lots);
}

TEST(log_lines)
{
	char out[8192];
	log_init("pdtest", "one");
	ck_assert_int_eq(log_set_level("loud"), ERR_INVALID);
	ck_assert_int_eq(log_set_level("info"), 0);
	ck_assert_str_eq(log_level_name(), "info");
	capture(out, sizeof out, emit_line);
	ck_assert_str_eq(strstr(out, " level="),
	                 " level=info prog=pdtest name=one req=00000000000000ab00000000000000cd "
	                 "event=unit n=7 text=\"a b\"\n");
	size_t n = capture(out, sizeof out, emit_long);
	ck_assert_uint_le(n, 2048);
	ck_assert_ptr_eq(strchr(out, '\n'), out + n - 1);
	ck_assert_int_eq(out[n - 2], 'y');
}

TEST(err_texts)
{
	struct err e = {0};
	char lots[1000];
	ck_assert_int_eq(err_set(&e, ERR_FULL, "queue of %d", 8), ERR_FULL);
	ck_assert_str_eq(e.text, "queue of 8");
	ck_assert_int_eq(err_prefix(&e, "worker %s", "w1"), ERR_FULL);
	ck_assert_str_eq(e.text, "worker w1: queue of 8");
	ck_assert_int_eq(err_set(NULL, ERR_IO, "x"), ERR_IO);
	ck_assert_int_eq(err_prefix(NULL, "x"), ERR_INVALID);
	memset(lots, 'z', sizeof lots);
	lots[sizeof lots - 1] = 0;
	err_set(&e, ERR_IO, "%s", lots);
	ck_assert_uint_eq(strlen(e.text), sizeof e.text - 1);
	err_prefix(&e, "%s", lots);
	ck_assert_uint_eq(strlen(e.text), sizeof e.text - 1);
	for (int code = ERR_CORRUPT; code <= 0; code++)
		ck_assert_str_ne(err_name(code), "unknown");
	ck_assert_str_eq(err_name(ERR_OK), "ok");
	ck_assert_str_eq(err_name(ERR_CORRUPT), "corrupt");
	ck_assert_str_eq(err_name(ERR_CORRUPT - 1), "unknown");
	ck_assert_str_eq(err_name(1), "unknown");
}

TEST(mem_and_clock)
{
	char *s = mem_printf("%s %d", "n", 5);
	ck_assert_str_eq(s, "n 5");
	free(s);
	ck_assert_ptr_null(mem_strdup(NULL));
	unsigned char *z = mem_array(100, 3);
	for (int i = 0; i < 300; i++)
		ck_assert_uint_eq(z[i], 0);
	z = mem_grow(z, 1000, 3);
	z[2999] = 1;
	free(z);
	uint64_t now = clock_us();
	ck_assert_uint_eq(clock_left_us(now - 1), 0);
	ck_assert_uint_gt(clock_left_us(now + 60000000), 59000000);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* which stop at the size */
TEST_EXIT(overflowing_array_is_fatal, 1)
{
	mem_array(SIZE_MAX / 2, 4);
}
#endif

/* --- endpoint -------------------------------------------------------------- */

static const struct {
	const char *text;
	int address, wildcard, remote; /* remote: behind "decode-1@tcp://" */
} endpoints[] = {
	{"10.0.0.1:7000", 1, 0, 1},
	{"node-3.cluster:65535", 1, 0, 1},
	{"[fd00::1]:7000", 1, 0, 1},
	{"0.0.0.0:7000", 1, 1, 0},
	{"0:7000", 1, 1, 0},
	{"000.0.0.0:7000", 1, 1, 0},
	{"*:7000", 1, 1, 0},
	{"[::]:7000", 1, 1, 0},
	{":::7000", 1, 1, 0},
	{"[0:0:0:0:0:0:0:0]:7000", 1, 1, 0},
	{"10.0.0.1:*", 0, 1, 0},
	{"10.0.0.1:0", 0, 1, 0},
	{"10.0.0.1:00", 0, 1, 0},
	{"10.0.0.1", 0, 0, 0},
	{"10.0.0.1:", 0, 0, 0},
	{":7000", 0, 0, 0},
	{"10.0.0.1:65536", 0, 0, 0},
	{"10.0.0.1:-1", 0, 0, 0},
	{"10.0.0.1:7000x", 0, 0, 0},
	{"10.0.0.1:7000/x", 0, 0, 0},
	{"a b:7000", 0, 0, 0},
	{"a\"b:7000", 0, 0, 0},
	{"x@10.0.0.1:7000", 0, 0, 0},
	{"tcp://10.0.0.1:7000", 0, 0, 0},
	{"1.2.3.4.5:80", 0, 0, 0},
	{"256.0.0.1:80", 0, 0, 0},
	{"1.2:80", 0, 0, 0},
	{"[fe80::1%eth0]:80", 1, 0, 1},
	{"[fe80::zz]:80", 0, 0, 0},
	{"h:80:90", 0, 0, 0},
	{"a_b.example-1.org:80", 1, 0, 1},
	{"", 0, 0, 0},
};

TEST_LOOP(endpoint_forms, 0, sizeof endpoints / sizeof *endpoints)
{
	char text[300];
	ck_assert_int_eq(endpoint_is_address(endpoints[_i].text), endpoints[_i].address);
	ck_assert_int_eq(endpoint_is_wildcard(endpoints[_i].text), endpoints[_i].wildcard);
	snprintf(text, sizeof text, "decode-1@tcp://%s", endpoints[_i].text);
	ck_assert_int_eq(endpoint_is_remote(text), endpoints[_i].remote);
	ck_assert_int_eq(endpoint_is_remote_of(text, "decode-1"), endpoints[_i].remote);
}

TEST(endpoint_names)
{
	static const char *const bad[] = {
		"tcp://h:1",    "@tcp://h:1",    "a/b@tcp://h:1", ".a@tcp://h:1", "a@ipc://h:1",
		"a@@tcp://h:1", "a b@tcp://h:1", "a@tcp:/h:1",    "a@tcp://",     ""};
	char text[300];
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		ck_assert_msg(!endpoint_is_remote(bad[i]), "%s", bad[i]);
	ck_assert_int_eq(endpoint_is_remote_of("a@tcp://h:1", "a"), 1);
	ck_assert_int_eq(endpoint_is_remote_of("ab@tcp://h:1", "a"), 0);
	ck_assert_int_eq(endpoint_is_remote_of("a@tcp://h:1", "ab"), 0);
	for (int n = 1; n < 250; n++) { /* long names, long hosts */
		memset(text, 'x', (size_t)n);
		memcpy(text + n, "@tcp://h:1", 11);
		ck_assert_int_eq(endpoint_is_remote(text), n <= 47);
		memcpy(text, "a@tcp://", 8);
		memset(text + 8, 'h', (size_t)n);
		memcpy(text + 8 + n, ":1", 3);
		ck_assert_int_eq(endpoint_is_remote(text), n < 128);
	}
}
