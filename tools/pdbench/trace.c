/* trace.c - see trace.h. A single invalid line makes the whole file invalid. */
#include "trace.h"

#include "draw.h"
#include "util/mem.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct trace_reader {
	const char *path;
	unsigned long line;
	uint32_t block_tokens;
	struct bench_trace *t;
	size_t size;
	struct err *err;
};

static int wrong(const struct trace_reader *r, const char *text)
{
	return err_set(r->err, ERR_INVALID, "%s:%lu: %s", r->path, r->line, text);
}

static int read_number(const struct trace_reader *r, const json_t *o, const char *name, double min,
                       double max, double *ret)
{
	const json_t *v = json_object_get(o, name);
	char *shown = v ? json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
	int bad = !json_is_number(v) || json_number_value(v) < min || json_number_value(v) > max;
	if (bad)
		err_set(r->err, ERR_INVALID, "%s:%lu: %s must be a number from %g to %g, got %.60s",
		        r->path, r->line, name, min, max, shown ? shown : "nothing");
	else
		*ret = json_number_value(v);
	free(shown);
	return bad ? ERR_INVALID : 0;
}

static int read_hashes(const struct trace_reader *r, const json_t *o, struct trace_record *rec)
{
	const json_t *list = json_object_get(o, "hash_ids");
	char text[160];
	size_t want = (rec->input_tokens + (size_t)r->block_tokens - 1) / r->block_tokens,
		   n = json_array_size(list);
	if (!json_is_array(list) || n != want) {
		snprintf(text, sizeof text,
		         "hash_ids must have an id for each of the %zu blocks of %u tokens (input_length "
		         "%u), got %s%zu",
		         want, r->block_tokens, rec->input_tokens,
		         json_is_array(list) ? "" : "not a list: ", n);
		return wrong(r, text);
	}
	rec->hashes = mem_array(n, sizeof *rec->hashes);
	rec->n_hashes = (uint32_t)n;
	for (size_t i = 0; i < n; i++) {
		const json_t *id = json_array_get(list, i);
		if (!json_is_integer(id)) {
			snprintf(text, sizeof text, "hash_ids[%zu] must be a whole number", i);
			return wrong(r, text);
		}
		rec->hashes[i] = (uint64_t)json_integer_value(id);
	}
	return 0;
}

static int read_record(const struct trace_reader *r, const json_t *o, struct trace_record *rec)
{
	double in, out, at = 0;
	if (!json_is_object(o))
		return wrong(r, "the line must be a JSON object");
	if (read_number(r, o, "input_length", 1, TRACE_TOKENS_MAX, &in) < 0 ||
	    read_number(r, o, "output_length", 1, TRACE_TOKENS_MAX, &out) < 0)
		return ERR_INVALID;
	rec->input_tokens = (uint32_t)in;
	rec->output_tokens = (uint32_t)out;
	if (!r->block_tokens)
		return 0;
	if (read_number(r, o, "timestamp", 0, 1e15, &at) < 0)
		return ERR_INVALID;
	rec->at_us = (uint64_t)(at * 1000);
	return read_hashes(r, o, rec);
}

static int read_line(struct trace_reader *r, const char *text, size_t n)
{
	json_error_t why;
	char sentence[256];
	json_t *o = json_loadb(text, n, 0, &why);
	if (!o) {
		snprintf(sentence, sizeof sentence, "not JSON: %s", why.text);
		return wrong(r, sentence);
	}
	if (r->t->n == r->size) {
		r->size = r->size ? r->size * 2 : 256;
		r->t->records = mem_grow(r->t->records, r->size, sizeof *r->t->records);
	}
	/* counted before parsing, so that trace_fini frees it after an error */
	struct trace_record *rec = &r->t->records[r->t->n++];
	memset(rec, 0, sizeof *rec);
	int code = read_record(r, o, rec);
	json_decref(o);
	return code;
}

static int by_time(const void *a, const void *b)
{
	const struct trace_record *x = a, *y = b;
	if (x->at_us != y->at_us)
		return x->at_us < y->at_us ? -1 : 1;
	return x->hashes < y->hashes ? -1 : x->hashes > y->hashes;
}

static void in_order(struct bench_trace *t)
{
	int sorted = 1;
	for (size_t i = 1; i < t->n && sorted; i++)
		sorted = t->records[i - 1].at_us <= t->records[i].at_us;
	if (!sorted)
		qsort(t->records, t->n, sizeof *t->records, by_time);
}

static void from_zero(struct bench_trace *t)
{
	uint64_t first = t->n ? t->records[0].at_us : 0;
	for (size_t i = 0; i < t->n; i++)
		t->records[i].at_us -= first;
}

static int read_all(struct trace_reader *r, FILE *f)
{
	char *line = NULL;
	size_t size = 0;
	ssize_t n;
	int code = 0;
	while (code == 0 && (n = getline(&line, &size, f)) >= 0) {
		r->line++;
		if ((size_t)n > TRACE_LINE_MAX)
			code = err_set(r->err, ERR_INVALID, "%s:%lu: the line has %zd bytes, more than %u",
			               r->path, r->line, n, TRACE_LINE_MAX);
		else if (r->t->n >= TRACE_RECORDS_MAX)
			code = err_set(r->err, ERR_INVALID, "%s: more than %u lines", r->path,
			               TRACE_RECORDS_MAX);
		else if (strspn(line, " \t\r\n") < (size_t)n)
			code = read_line(r, line, (size_t)n);
	}
	free(line);
	if (code == 0 && ferror(f))
		code = err_set(r->err, ERR_IO, "cannot read %s: %s", r->path, strerror(errno));
	if (code == 0 && !r->t->n)
		code = err_set(r->err, ERR_INVALID, "%s has no records", r->path);
	return code;
}

int trace_read(const char *path, uint32_t block_tokens, struct bench_trace *ret, struct err *err)
{
	FILE *f = fopen(path, "re");
	if (!f)
		return err_set(err, ERR_IO, "cannot open %s: %s", path, strerror(errno));
	*ret = (struct bench_trace){0};
	struct trace_reader r = {.path = path, .block_tokens = block_tokens, .t = ret, .err = err};
	int code = read_all(&r, f);
	fclose(f);
	if (code < 0) {
		trace_fini(ret);
		return code;
	}
	in_order(ret);
	from_zero(ret);
	return 0;
}

void trace_fini(struct bench_trace *t)
{
	for (size_t i = 0; i < t->n; i++)
		free(t->records[i].hashes);
	free(t->records);
	*t = (struct bench_trace){0};
}

uint64_t trace_conversation(const struct trace_record *r)
{
	return r->n_hashes ? r->hashes[r->n_hashes > 1] : 0;
}

void trace_sample(struct bench_trace *t, double share, uint64_t seed)
{
	size_t kept = 0;
	for (size_t i = 0; i < t->n; i++) {
		struct trace_record *r = &t->records[i];
		double at = (double)(draw_mix(trace_conversation(r) * 0x9E3779B97F4A7C15u +
		                              draw_mix(seed)) >>
		                     11) *
		            0x1p-53;
		if (share >= 1 || at < share)
			t->records[kept++] = *r;
		else
			free(r->hashes);
	}
	t->n = kept;
	from_zero(t);
}
