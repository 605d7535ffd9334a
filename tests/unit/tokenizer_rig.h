/* tokenizer_rig.h - reference rows for tokenizer tests: reading them, and comparing what a
 * tokenizer gives with what they say. */
#ifndef TESTS_TOKENIZER_RIG_H
#define TESTS_TOKENIZER_RIG_H

#include "format/gguf.h"
#include "text/tokenizer.h"
#include "text/unicode.h"
#include "util/mem.h"

#include <check.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DATA "tests/data/tokenizer"

/* A file with one JSON value a line. */
struct rows {
	json_t **v;
	size_t n;
};

static inline struct rows rows_read(const char *path)
{
	struct rows r = {0};
	char *line = NULL;
	size_t size = 0;
	FILE *f = fopen(path, "r");
	ck_assert_msg(f != NULL, "cannot open %s", path);
	for (ssize_t len; (len = getline(&line, &size, f)) > 0;) {
		r.v = mem_grow(r.v, r.n + 1, sizeof *r.v);
		r.v[r.n] = json_loadb(line, (size_t)len, JSON_ALLOW_NUL | JSON_DECODE_ANY, NULL);
		ck_assert_msg(r.v[r.n] != NULL, "%s:%zu is not JSON", path, r.n + 1);
		r.n++;
	}
	free(line);
	fclose(f);
	return r;
}

static inline void rows_free(struct rows *r)
{
	for (size_t i = 0; i < r->n; i++)
		json_decref(r->v[i]);
	free(r->v);
}

/* From a GGUF file, or from a folder. */
static inline struct tokenizer *load(const char *path)
{
	struct gguf *g = NULL;
	struct tokenizer *t = NULL;
	struct err err = {0};
	size_t n = strlen(path);
	if (n < 5 || strcmp(path + n - 5, ".gguf")) {
		ck_assert_msg(tokenizer_from_folder(path, &t, &err) == 0, "%s", err.text);
		return t;
	}
	ck_assert_msg(gguf_open(path, &g, &err) == 0, "%s", err.text);
	ck_assert_msg(tokenizer_from_gguf(g, &t, &err) == 0, "%s", err.text);
	gguf_close(&g);
	return t;
}

/* What a row wants, as an array of ids: of the variant where the row has it, plain where that
 * differs. */
static inline const json_t *row_ids(const json_t *row, const char *variant, int plain)
{
	const json_t *other = variant ? json_object_get(row, variant) : NULL,
				 *from = other ? other : row, *p = json_object_get(from, "plain");
	return plain && p ? p : json_object_get(from, "ids");
}

static inline int ids_equal(const struct tokenizer *t, const json_t *text, unsigned flags,
                            const json_t *want)
{
	struct token_list got = {0};
	ck_assert_int_eq(
		tokenizer_encode(t, json_string_value(text), json_string_length(text), flags, 0, &got), 0);
	int same = got.n == json_array_size(want);
	for (size_t i = 0; same && i < got.n; i++)
		same = got.ids[i] == json_integer_value(json_array_get(want, i));
	token_list_fini(&got);
	return same;
}

/* The stream's pieces are whole UTF-8, and they add up to the bytes with U+FFFD for each maximal
 * ill-formed part. */
static inline void check_stream(const struct tokenizer *t, const uint32_t *ids, size_t n,
                                unsigned flags, const struct buf *bytes)
{
	struct buf stream, want;
	struct detok d;
	uint32_t cp;
	buf_init(&stream, 0);
	buf_init(&want, 0);
	detok_init(&d, t, flags);
	for (size_t i = 0; i <= n; i++) {
		size_t at = stream.len;
		ck_assert_int_eq(i < n ? detok_feed(&d, ids[i], &stream) : detok_finish(&d, &stream), 0);
		for (int step; at < stream.len; at += (size_t)step)
			if ((step = utf8_step(stream.data + at, stream.len - at, &cp)) <= 0)
				ck_abort_msg("a piece of the stream is not whole UTF-8");
	}
	for (size_t i = 0; i < bytes->len;) {
		int step = utf8_step(bytes->data + i, bytes->len - i, &cp);
		size_t took = step > 0 ? (size_t)step : step < 0 ? (size_t)-step : bytes->len - i;
		buf_add(&want, step > 0 ? bytes->data + i : "\xef\xbf\xbd", step > 0 ? took : 3);
		i += took;
	}
	ck_assert_uint_eq(stream.len, want.len);
	ck_assert(!want.len || !memcmp(stream.data, want.data, want.len));
	buf_fini(&stream);
	buf_fini(&want);
}

/* Judged by the bytes: "hex" where they are not UTF-8, else those of "text". */
static inline int decode_equal(const struct tokenizer *t, const json_t *row)
{
	const json_t *list = json_object_get(row, "ids"), *text = json_object_get(row, "text"),
				 *hex = json_object_get(row, "hex");
	size_t n = json_array_size(list);
	uint32_t *ids = mem_array(n, sizeof *ids);
	struct buf bytes;
	buf_init(&bytes, 0);
	for (size_t i = 0; i < n; i++)
		ids[i] = (uint32_t)json_integer_value(json_array_get(list, i));
	ck_assert_int_eq(tokenizer_decode(t, ids, n, 0, &bytes), 0);
	check_stream(t, ids, n, 0, &bytes);
	int same = hex ? bytes.len * 2 == json_string_length(hex)
	               : bytes.len == json_string_length(text) &&
	                     !memcmp(bytes.data, json_string_value(text), bytes.len);
	for (size_t i = 0; same && hex && i < bytes.len; i++) {
		char two[3];
		snprintf(two, sizeof two, "%02x", (unsigned char)bytes.data[i]);
		same = !memcmp(two, json_string_value(hex) + 2 * i, 2);
	}
	buf_fini(&bytes);
	free(ids);
	return same;
}

static inline void check_decode(const struct tokenizer *t, const char *kind, const char *path)
{
	struct rows r = rows_read(path);
	size_t bad = 0;
	for (size_t i = 0; i < r.n; i++)
		if (!decode_equal(t, r.v[i]) && bad++ < 20)
			printf("%s: decode row %zu differs\n", kind, i);
	printf("%s: %zu of %zu decode rows equal, at once and streamed\n", kind, r.n - bad, r.n);
	ck_assert_uint_eq(bad, 0);
	rows_free(&r);
}

#endif
