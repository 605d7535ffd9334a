/* fuzz_trace.c - lines of a log, as `pdctl trace` reads and draws them; and behind "=== t.jsonl" a
 * trace of requests, as pdbench reads it. What is shown of a line is of one request, and safe in a
 * terminal, in JSON and in XML; spans lie on the time axis, within each other. A trace that is
 * taken is in order and within its limits; else the sentence names file or line. */
#include "tests/fuzz/fuzz.h"
#include "text/unicode.h"
#include "tools/pdbench/trace.h"
#include "tools/pdctl/trace.h"
#include "util/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define EVENTS 64u
#define REQUESTS 8u

/* --- lines --------------------------------------------------------------- */

static int is_plain(const char *s)
{
	for (; *s; s++)
		if (*s <= ' ' || *s > '~')
			return 0;
	return 1;
}

static void check_line(const struct line_head *h)
{
	uint32_t cp;
	char value[64];
	must(h->at_us && (unsigned)h->program < PROGRAMS && strlen(h->req) == 32);
	must(h->name[0] && strlen(h->name) < TRACE_NAME_BYTES && is_plain(h->name));
	must(h->event[0] && strlen(h->event) < TRACE_NAME_BYTES && is_plain(h->event));
	for (size_t n = strlen(h->fields), i = 0; i < n;) {
		int step = utf8_step(h->fields + i, n - i, &cp);
		must(step > 0 && cp >= ' ' && !(cp >= 127 && cp < 160));
		i += (size_t)step;
	}
	if (trace_field(h->fields, "attempt", value, sizeof value))
		must(strlen(value) < sizeof value);
	double us = trace_number(h->fields, "prefill_us");
	must(us >= 0 && us < 1e15);
}

static void add_event(struct trace *t, const struct line_head *h)
{
	size_t r = 0;
	while (r < t->n_ids && strcmp(t->ids[r], h->req) != 0)
		r++;
	if (t->n == EVENTS || r == REQUESTS)
		return;
	if (r == t->n_ids)
		memcpy(t->ids[t->n_ids++], h->req, 33);
	struct event *e = &t->events[t->n++];
	*e = (struct event){.at_us = h->at_us, .request = r, .program = h->program};
	memcpy(e->daemon, h->name, strlen(h->name) + 1);
	memcpy(e->name, h->event, strlen(h->event) + 1);
	e->fields = mem_strdup(h->fields);
}

static int by_time(const void *a, const void *b)
{
	const struct event *x = a, *y = b;
	if (x->request != y->request)
		return x->request > y->request ? 1 : -1;
	return (x->at_us > y->at_us) - (x->at_us < y->at_us);
}

static void check_picture(const struct trace_picture *p)
{
	const struct trace_span *whole = NULL;
	for (size_t i = 0; i < p->n_spans; i++) {
		const struct trace_span *s = &p->spans[i];
		must(s->from_us >= 0 && s->from_us <= s->to_us && s->to_us <= p->end_us);
		must(s->lane < p->n_lanes && s->request < p->trace->n_ids && s->name && s->name[0]);
		whole = s->kind == SPAN_WHOLE ? s : whole;
		must(whole && s->lane == whole->lane && s->request == whole->request);
		must(s->from_us >= whole->from_us && s->to_us <= whole->to_us);
		for (const struct trace_span *b = whole; b < s; b++) /* apart, or one in the other */
			must(b->row != s->row || b == whole || s->from_us >= b->to_us || s->to_us <= b->to_us);
	}
	for (size_t i = 0; i < p->n_arrows; i++) {
		const struct arrow *a = &p->arrows[i];
		must(a->from_us <= a->to_us && isfinite(a->from_us) && isfinite(a->to_us));
		must(a->from_lane < p->n_lanes && a->to_lane < p->n_lanes);
		for (size_t k = 0; k < p->n_spans; k++) /* it ends within its daemon's span */
			must(p->spans[k].kind != SPAN_WHOLE || p->spans[k].lane != a->to_lane ||
			     p->spans[k].request != a->request ||
			     (a->to_us >= p->spans[k].from_us && a->to_us <= p->spans[k].to_us));
	}
}

static void run_lines(char *text)
{
	static char ids[REQUESTS][33];
	struct trace t = {.ids = ids, .events = mem_array(EVENTS, sizeof(struct event))};
	struct trace_picture p;
	struct line_head h;
	for (char *line = text, *next; line; line = next) {
		if ((next = strchr(line, '\n')))
			*next++ = 0;
		if (trace_line_split(line, &h) < 0)
			continue;
		check_line(&h);
		add_event(&t, &h);
	}
	qsort(t.events, t.n, sizeof *t.events, by_time);
	if (trace_picture_init(&p, &t) == 0)
		check_picture(&p);
	trace_picture_fini(&p);
	for (size_t i = 0; i < t.n; i++)
		free(t.events[i].fields);
	free(t.events);
}

/* --- a trace of requests ------------------------------------------------- */

static void run_trace(const char *path, uint32_t block_tokens)
{
	struct bench_trace t;
	struct err err = {0};
	if (trace_read(path, block_tokens, &t, &err) < 0) {
		must(strstr(err.text, path) != NULL);
		return;
	}
	fuzz_accepted();
	must(t.n >= 1 && t.n <= TRACE_RECORDS_MAX && t.records[0].at_us == 0);
	for (size_t i = 0; i < t.n; i++) {
		const struct trace_record *r = &t.records[i];
		must(r->input_tokens >= 1 && r->input_tokens <= TRACE_TOKENS_MAX);
		must(r->output_tokens >= 1 && r->output_tokens <= TRACE_TOKENS_MAX);
		must(r->at_us <= 1000000000000000000 && (!i || r->at_us >= r[-1].at_us));
		must(!block_tokens ||
		     r->n_hashes == (r->input_tokens + (size_t)block_tokens - 1) / block_tokens);
	}
	trace_sample(&t, 0.5, 1);
	must(!t.n || t.records[0].at_us == 0);
	trace_fini(&t);
}

FUZZ(trace, 1 << 13)
{
	const uint8_t *split = memmem(data, size, "=== t.jsonl\n", 12);
	char *text = mem_alloc(size + 1);
	size_t n = split ? (size_t)(split - data) : size;
	memcpy(text, data, n);
	text[n] = 0;
	run_lines(text);
	free(text);
	if (!split)
		return 0;
	char *path = mem_printf("%s/t.jsonl", fuzz_files(split, size - n));
	run_trace(path, 0);
	run_trace(path, 512);
	free(path);
	return 0;
}
