/* event.c - see event.h. Scanning an event of 300 bytes takes well under a microsecond. */
#include "event.h"

#include "util/err.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX 64

struct scan {
	const char *p, *end;
	struct event_parts *out;
	int depth;
};

/* Each returns 0, or -1 if the text is not JSON; then the position is undefined. */
typedef int value_fn(struct scan *s);
static int skip_value(struct scan *s);

static void space(struct scan *s)
{
	while (s->p < s->end && (*s->p == ' ' || *s->p == '\n' || *s->p == '\r' || *s->p == '\t'))
		s->p++;
}

static int next_is(struct scan *s, char c)
{
	space(s);
	if (s->p >= s->end || *s->p != c)
		return 0;
	s->p++;
	return 1;
}

/* The opening quote is already consumed. A quote ends the string if it is preceded by an even
 * number of backslashes. */
static int string_rest(struct scan *s, struct slice *ret)
{
	const char *from = s->p, *at = from;
	for (;;) {
		const char *q = memchr(at, '"', (size_t)(s->end - at)), *b = q;
		if (!q)
			return -1;
		while (b > from && b[-1] == '\\')
			b--;
		at = q + 1;
		if (((q - b) & 1) == 0) {
			*ret = (struct slice){from, (size_t)(q - from)};
			s->p = at;
			return 0;
		}
	}
}

/* Returns the value in *ret if it is a string; skips any other value and leaves *ret unchanged. */
static int string_or_skip(struct scan *s, struct slice *ret)
{
	if (next_is(s, '"'))
		return string_rest(s, ret);
	return skip_value(s);
}

static int word(struct scan *s)
{
	const char *from = s->p;
	while (s->p < s->end && ((*s->p >= '0' && *s->p <= '9') || (*s->p >= 'a' && *s->p <= 'z') ||
	                         *s->p == '-' || *s->p == '+' || *s->p == '.' || *s->p == 'E'))
		s->p++;
	return s->p > from ? 0 : -1;
}

struct event_key {
	const char *name;
	value_fn *fn;
};

/* Parses an object and passes the members listed in the table to their functions. */
static int object_rest(struct scan *s, const struct event_key *keys, size_t n)
{
	struct slice name = {0};
	if (next_is(s, '}'))
		return 0;
	do {
		if (!next_is(s, '"') || string_rest(s, &name) < 0 || !next_is(s, ':'))
			return -1;
		size_t i = 0;
		while (i < n &&
		       (strlen(keys[i].name) != name.n || memcmp(keys[i].name, name.at, name.n) != 0))
			i++;
		if ((i < n ? keys[i].fn(s) : skip_value(s)) < 0)
			return -1;
	} while (next_is(s, ','));
	return next_is(s, '}') ? 0 : -1;
}

static int array_rest(struct scan *s, value_fn *element)
{
	if (next_is(s, ']'))
		return 0;
	do {
		if (element(s) < 0)
			return -1;
	} while (next_is(s, ','));
	return next_is(s, ']') ? 0 : -1;
}

static int skip_value(struct scan *s)
{
	struct slice unused;
	int r;
	if (s->depth >= DEPTH_MAX)
		return -1;
	s->depth++;
	if (next_is(s, '"'))
		r = string_rest(s, &unused);
	else if (next_is(s, '{'))
		r = object_rest(s, NULL, 0);
	else if (next_is(s, '['))
		r = array_rest(s, skip_value);
	else
		r = word(s);
	s->depth--;
	return r;
}

/* Parses an object using the table, or skips any other value. */
static int object_or_skip(struct scan *s, const struct event_key *keys, size_t n)
{
	if (next_is(s, '{'))
		return object_rest(s, keys, n);
	return skip_value(s);
}

/* --- members of interest ------------------------------------------------- */

static int on_text(struct scan *s)
{
	return string_or_skip(s, &s->out->text);
}

static int on_finish(struct scan *s)
{
	return string_or_skip(s, &s->out->finish);
}

/* A flat list of numbers, or null. */
static int on_ids(struct scan *s)
{
	uint32_t n = 0;
	if (!next_is(s, '['))
		return skip_value(s);
	const char *from = s->p;
	for (; s->p < s->end && *s->p != ']'; s->p++) {
		n += *s->p == ',';
		if ((*s->p < '0' || *s->p > '9') && *s->p != ',' && *s->p != ' ')
			return -1;
	}
	if (s->p >= s->end)
		return -1;
	struct slice ids = {from, (size_t)(s->p - from)};
	s->p++;
	if (ids.n == 0 || s->out->n_ids)
		return 0;
	s->out->ids = ids;
	s->out->n_ids = n + 1;
	return 0;
}

static int on_number(struct scan *s, uint64_t *ret)
{
	uint64_t v = 0;
	space(s);
	const char *from = s->p;
	for (; s->p < s->end && *s->p >= '0' && *s->p <= '9' && v < UINT64_MAX / 20; s->p++)
		v = v * 10 + (uint64_t)(*s->p - '0');
	if (s->p == from || (s->p < s->end && (*s->p == '.' || *s->p == 'e' || *s->p == 'E' ||
	                                       (*s->p >= '0' && *s->p <= '9')))) {
		s->p = from;
		return skip_value(s); /* not a whole number, or an absurdly large one */
	}
	*ret = v;
	return 0;
}

static int on_prompt_tokens(struct scan *s)
{
	return on_number(s, &s->out->prompt_tokens);
}

static int on_completion_tokens(struct scan *s)
{
	return on_number(s, &s->out->completion_tokens);
}

static int on_cached_tokens(struct scan *s)
{
	return on_number(s, &s->out->cached_tokens);
}

static int on_details(struct scan *s)
{
	static const struct event_key keys[] = {{"cached_tokens", on_cached_tokens}};
	return object_or_skip(s, keys, 1);
}

static int on_usage(struct scan *s)
{
	static const struct event_key keys[] = {{"prompt_tokens", on_prompt_tokens},
	                                        {"completion_tokens", on_completion_tokens},
	                                        {"prompt_tokens_details", on_details}};
	space(s);
	s->out->has_usage |= s->p < s->end && *s->p == '{';
	return object_or_skip(s, keys, 3);
}

static int on_message(struct scan *s)
{
	return string_or_skip(s, &s->out->error);
}

static int on_error(struct scan *s)
{
	static const struct event_key keys[] = {{"message", on_message}};
	space(s);
	if (s->p < s->end && *s->p == 'n')
		return skip_value(s); /* null */
	s->out->is_error = 1;
	if (next_is(s, '"'))
		return string_rest(s, &s->out->error);
	return object_or_skip(s, keys, 1);
}

static int on_delta(struct scan *s)
{
	static const struct event_key keys[] = {{"content", on_text}};
	return object_or_skip(s, keys, 1);
}

static int on_choice(struct scan *s)
{
	static const struct event_key keys[] = {{"text", on_text},
	                                        {"delta", on_delta},
	                                        {"finish_reason", on_finish},
	                                        {"token_ids", on_ids}};
	s->out->n_choices++;
	return object_or_skip(s, keys, 4);
}

static int on_choices(struct scan *s)
{
	if (!next_is(s, '['))
		return skip_value(s);
	return array_rest(s, on_choice);
}

int event_scan(const char *json, size_t n, struct event_parts *ret)
{
	static const struct event_key keys[] = {{"choices", on_choices},
	                                        {"usage", on_usage},
	                                        {"error", on_error}};
	struct scan s = {.p = json, .end = json + n, .out = ret};
	memset(ret, 0, sizeof *ret);
	if (!next_is(&s, '{') || object_rest(&s, keys, 3) < 0)
		return -1;
	space(&s);
	return s.p == s.end ? 0 : -1;
}

/* --- lines --------------------------------------------------------------- */

void sse_init(struct sse *s)
{
	memset(s, 0, sizeof *s);
}

void sse_fini(struct sse *s)
{
	free(s->line);
	free(s->event);
	sse_init(s);
}

static int append(char **at, size_t *len, size_t *size, const char *data, size_t n)
{
	if (n > SSE_EVENT_MAX - *len)
		return ERR_FULL;
	if (*len + n > *size) {
		*size = (*len + n) * 2 < 512 ? 512 : (*len + n) * 2;
		*at = mem_grow(*at, *size, 1);
	}
	if (n)
		memcpy(*at + *len, data, n);
	*len += n;
	return 0;
}

/* Handles a complete line without its end. Comments and fields other than `data` are ignored. */
static int on_line(struct sse *s, const char *line, size_t n, sse_event_fn *fn, void *arg)
{
	if (n && line[n - 1] == '\r')
		n--;
	if (n == 0) {
		int code = s->has_event ? fn(arg, s->event, s->event_len) : 0;
		s->event_len = 0;
		s->has_event = 0;
		return code;
	}
	if (n < 5 || memcmp(line, "data:", 5) != 0)
		return 0;
	size_t skip = n > 5 && line[5] == ' ' ? 6 : 5;
	if (s->has_event && append(&s->event, &s->event_len, &s->event_size, "\n", 1) < 0)
		return ERR_FULL;
	s->has_event = 1;
	return append(&s->event, &s->event_len, &s->event_size, line + skip, n - skip);
}

int sse_feed(struct sse *s, const char *data, size_t n, sse_event_fn *fn, void *arg)
{
	const char *end = data + n, *eol;
	int code = 0;
	while (data < end && code == 0 && (eol = memchr(data, '\n', (size_t)(end - data))) != NULL) {
		size_t k = (size_t)(eol - data);
		if (s->line_len) {
			code = append(&s->line, &s->line_len, &s->line_size, data, k);
			if (code == 0)
				code = on_line(s, s->line, s->line_len, fn, arg);
			s->line_len = 0;
		} else {
			code = on_line(s, data, k, fn, arg);
		}
		data = eol + 1;
	}
	return code ? code : append(&s->line, &s->line_len, &s->line_size, data, (size_t)(end - data));
}
