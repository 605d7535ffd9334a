/* logprob.c - rows of log-probabilities as JSON, in both of OpenAI's shapes and in vLLM's for
 * prompts.
 *
 * Completions: parallel arrays; a token that is not valid UTF-8 is written bytes:\xe2\x80, like
 * OpenAI's, so that keys of top_logprobs stay distinct. Chat: objects with the token's exact
 * bytes. Infinite values become -9999, because JSON has none. */
#include "logprob.h"
#include "text/tokenizer.h"
#include "text/unicode.h"
#include "util/err.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* --- rows ---------------------------------------------------------------- */

void rows_init(struct row_list *l, uint32_t top, struct quota *q)
{
	memset(l, 0, sizeof *l);
	l->top = top;
	l->quota = q;
}

void rows_fini(struct row_list *l)
{
	quota_free(l->quota, l->data, l->size * row_bytes(l->top));
	l->data = NULL;
	l->n = l->size = 0;
}

int rows_reserve(struct row_list *l, uint32_t n)
{
	if (n <= l->size)
		return 0;
	unsigned char *data = quota_grow(l->quota, l->data, l->size, n, row_bytes(l->top));
	if (!data)
		return ERR_NOMEM;
	l->data = data;
	l->size = n;
	return 0;
}

struct row *rows_add(struct row_list *l)
{
	if (l->n == l->size && rows_reserve(l, l->size ? l->size + l->size / 2 : 4) < 0 &&
	    rows_reserve(l, l->n + 1) < 0)
		return NULL;
	struct row *r = rows_at(l, l->n++);
	memset(r, 0, row_bytes(l->top));
	return r;
}

int rows_add_token(struct row_list *l, const Pds__Token *t, uint32_t offset)
{
	struct row *r = rows_add(l);
	if (!r)
		return ERR_NOMEM;
	r->id = t->id;
	r->logprob = t->logprob;
	r->offset = offset;
	r->n_top = t->n_top < l->top ? (uint32_t)t->n_top : l->top;
	for (uint32_t i = 0; i < r->n_top; i++)
		r->top[i] = (struct row_top){t->top[i]->id, t->top[i]->logprob};
	return 0;
}

void row_take(struct row *r, uint32_t top, const Pds__PromptLogprobs *m, size_t i)
{
	size_t n_top = m->n_top_ids / m->n_logprobs;
	r->logprob = m->logprobs[i];
	r->rank = m->ranks[i];
	r->n_top = n_top < top ? (uint32_t)n_top : top;
	for (size_t k = 0; k < r->n_top; k++)
		r->top[k] = (struct row_top){m->top_ids[i * n_top + k], m->top_logprobs[i * n_top + k]};
}

/* --- JSON ---------------------------------------------------------------- */

#define DIGITS 7 /* as "%.7g" */

/* A value from 1e-4 up to 1e7 as "%.7g", 20 times as fast: a float's 24 bits times 10^10 is exact
 * in a double, so the value is rounded once. */
static size_t fixed_number(double v, char *out)
{
	static const double power[] = {1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10};
	char digit[DIGITS];
	int e = 6;
	while (e > 0 && v < power[e])
		e--;
	while (e <= 0 && e > -4 && v * power[-e] < 1)
		e--;
	long n = lrint(v * power[DIGITS - 1 - e]);
	if (n == 10000000) {
		n /= 10;
		e++;
	}
	for (int i = DIGITS; i-- > 0; n /= 10)
		digit[i] = (char)('0' + n % 10);
	size_t len = 0, used = DIGITS;
	while (used > 1 && digit[used - 1] == '0' && (int)used - 1 > e)
		used--;
	if (e < 0) {
		memcpy(out, "0.000", 5);
		len = (size_t)(1 - e);
	}
	for (size_t i = 0; i < used; i++) {
		if (e >= 0 && (int)i == e + 1)
			out[len++] = '.';
		out[len++] = digit[i];
	}
	return len;
}

/* As "%.7g". */
static void logprob_number(float v, struct buf *out)
{
	char text[32];
	double d = isfinite(v) ? (double)v : -9999.0, size = fabs(d);
	size_t n = 0;
	if (size >= 1e-4 && size < 9999999) {
		text[0] = '-';
		n = (size_t)(d < 0);
		n += fixed_number(size, text + n);
	} else {
		n = (size_t)snprintf(text, sizeof text, "%.7g", d);
	}
	buf_add(out, text, n);
}

/* Returns a token's bytes; if the vocabulary lacks it, "token_id:N", written to room. */
static const char *token_bytes(const struct model *m, uint32_t id, char room[32], size_t *ret_len)
{
	static const char prefix[] = "token_id:";
	const char *bytes = m->tokenizer ? tokenizer_bytes(m->tokenizer, id, ret_len) : NULL;
	if (bytes)
		return bytes;
	char *end = room + 31, *at = end;
	do
		*--at = (char)('0' + id % 10);
	while (id /= 10);
	at -= sizeof prefix - 1;
	memcpy(at, prefix, sizeof prefix - 1);
	*ret_len = (size_t)(end - at);
	return at;
}

/* The token's text as a JSON string of the completions shape. */
static void add_token_name(const struct model *m, uint32_t id, struct buf *out)
{
	char room[32];
	size_t n;
	const char *s = token_bytes(m, id, room, &n);
	int step = 1;
	uint32_t cp;
	for (size_t i = 0; i < n && step > 0; i += (size_t)step)
		step = utf8_step(s + i, n - i, &cp);
	if (step > 0) {
		buf_add_json(out, s, n);
		return;
	}
	buf_adds(out, "\"bytes:");
	for (size_t i = 0; i < n; i++)
		buf_printf(out, "\\\\x%02x", (unsigned char)s[i]);
	buf_addc(out, '"');
}

static void add_top(const struct model *m, const struct row *r, uint32_t most, struct buf *out)
{
	uint32_t n = r->n_top < most ? r->n_top : most;
	int seen = 0;
	buf_addc(out, '{');
	for (uint32_t i = 0; i < n; i++) {
		seen |= r->top[i].id == r->id;
		if (i)
			buf_addc(out, ',');
		add_token_name(m, r->top[i].id, out);
		buf_addc(out, ':');
		logprob_number(r->top[i].logprob, out);
	}
	if (!seen) {
		if (n)
			buf_addc(out, ',');
		add_token_name(m, r->id, out);
		buf_addc(out, ':');
		logprob_number(r->logprob, out);
	}
	buf_addc(out, '}');
}

/* --- chat: {"token", "logprob", "bytes", "top_logprobs"} ----------------- */

static void add_object(const struct model *m, uint32_t id, float logprob, struct buf *out)
{
	char room[32];
	size_t n;
	const char *s = token_bytes(m, id, room, &n);
	buf_adds(out, "{\"token\":");
	buf_add_json(out, s, n);
	buf_adds(out, ",\"logprob\":");
	logprob_number(logprob, out);
	buf_adds(out, ",\"bytes\":[");
	for (size_t i = 0; i < n; i++) {
		if (i)
			buf_addc(out, ',');
		buf_add_uint(out, (unsigned char)s[i]);
	}
	buf_addc(out, ']');
}

/* --- prompts: {"ID": {"logprob", "rank", "decoded_token"}, ...}, the prompt's own token first
 * --- */

static void add_prompt_entry(const struct model *m, uint32_t id, float logprob, uint32_t rank,
                             struct buf *out)
{
	char room[32];
	size_t n;
	const char *s = token_bytes(m, id, room, &n);
	buf_addc(out, '"');
	buf_add_uint(out, id);
	buf_adds(out, "\":{\"logprob\":");
	logprob_number(logprob, out);
	buf_adds(out, ",\"rank\":");
	buf_add_uint(out, rank);
	buf_adds(out, ",\"decoded_token\":");
	buf_add_json(out, s, n);
	buf_addc(out, '}');
}

void logprob_row(const struct model *m, const struct row *r, enum row_shape shape, uint32_t most,
                 struct buf *out)
{
	int none = r->n_top == ROW_NONE;
	switch (shape) {
	case ROW_NAME: add_token_name(m, r->id, out); break;
	case ROW_OFFSET: buf_add_uint(out, r->offset); break;
	case ROW_VALUE:
		if (none)
			buf_adds(out, "null");
		else
			logprob_number(r->logprob, out);
		break;
	case ROW_TOP:
		if (none)
			buf_adds(out, "null");
		else
			add_top(m, r, most, out);
		break;
	case ROW_CHAT:
		add_object(m, r->id, r->logprob, out);
		buf_adds(out, ",\"top_logprobs\":[");
		for (uint32_t i = 0; i < r->n_top && i < most; i++) {
			if (i)
				buf_addc(out, ',');
			add_object(m, r->top[i].id, r->top[i].logprob, out);
			buf_addc(out, '}');
		}
		buf_adds(out, "]}");
		break;
	case ROW_PROMPT:
		if (none) {
			buf_adds(out, "null");
			break;
		}
		buf_addc(out, '{');
		add_prompt_entry(m, r->id, r->logprob, r->rank, out);
		for (uint32_t i = 0; i < r->n_top && i < most; i++) {
			if (r->top[i].id == r->id)
				continue;
			buf_addc(out, ',');
			add_prompt_entry(m, r->top[i].id, r->top[i].logprob, i + 1, out);
		}
		buf_addc(out, '}');
		break;
	}
}

void logprob_rows(const struct model *m, const struct row_list *l, uint32_t from, uint32_t to,
                  enum row_shape shape, uint32_t most, struct buf *out)
{
	for (uint32_t i = from; i < to; i++) {
		if (i > from)
			buf_addc(out, ',');
		logprob_row(m, rows_at(l, i), shape, most, out);
	}
}
