/* http_cases.h - tests/data/http-cases.json: bytes of a client, the statuses it must get, and
 * whether the connection stays. Request smuggling as it was published (CL.TE, TE.CL, TE.TE, CL.0,
 * 0.CL, chunk extensions, trailers), and the rest of what RFC 9110 and 9112 do not allow.
 * tests/e2e/test_http.py sends the same to a real router. */
#ifndef TESTS_HTTP_CASES_H
#define TESTS_HTTP_CASES_H

#include "util/buf.h"
#include "util/mem.h"

#include <check.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

struct http_case {
	const char *name;
	struct buf bytes;
	int statuses[8];
	size_t n;
	int kept;
};

static json_t *http_cases;

static inline size_t http_cases_count(void)
{
	json_error_t bad;
	if (!http_cases)
		http_cases = json_load_file("tests/data/http-cases.json", JSON_ALLOW_NUL, &bad);
	ck_assert_msg(http_cases != NULL, "tests/data/http-cases.json:%d: %s", bad.line, bad.text);
	return json_array_size(http_cases);
}

/* Code points up to 255 are bytes. */
static inline void http_case_add(struct buf *b, const json_t *text, json_int_t times)
{
	const char *s = json_string_value(text), *end = s + json_string_length(text);
	for (json_int_t i = 0; i < times; i++)
		for (const char *p = s; p < end; p++)
			if ((unsigned char)*p < 0x80)
				buf_addc(b, *p);
			else
				buf_addc(b, (char)((*p & 3) << 6 | (p[1] & 0x3f))), p++;
}

/* A text, or several; [text, n] stands for n of it. */
static inline void http_case_bytes(struct buf *b, const json_t *v)
{
	size_t i;
	const json_t *part;
	buf_init(b, 0);
	if (json_is_string(v))
		http_case_add(b, v, 1);
	json_array_foreach(v, i, part)
		http_case_add(b, json_is_string(part) ? part : json_array_get(part, 0),
		              json_is_string(part) ? 1 : json_integer_value(json_array_get(part, 1)));
}

static inline void http_case_read(size_t i, struct http_case *c)
{
	ck_assert_uint_lt(i, http_cases_count());
	const json_t *o = json_array_get(http_cases, i), *list = json_object_get(o, "statuses"), *v;
	size_t k;
	memset(c, 0, sizeof *c);
	c->name = json_string_value(json_object_get(o, "name"));
	http_case_bytes(&c->bytes, json_object_get(o, "bytes"));
	json_array_foreach(list, k, v)
		c->statuses[c->n++] = (int)json_integer_value(v);
	c->kept = strcmp(json_string_value(json_object_get(o, "end")), "kept") == 0;
}

#endif
