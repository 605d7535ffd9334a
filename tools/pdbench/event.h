/* event.h - one event of a completion's stream: what pdbench needs of its JSON, found in one pass
 * and without copies.
 *
 * The scanner checks the shape of the whole text (brackets, strings, nothing behind the end,
 * bounded depth) but not every letter of numbers. Slices point into the event's text. */
#ifndef PDBENCH_EVENT_H
#define PDBENCH_EVENT_H

#include <stddef.h>
#include <stdint.h>

struct slice {
	const char *at;
	size_t n;
};

struct event_parts {
	struct slice ids; /* "12,7": the new tokens of the first choice that has any */
	uint32_t n_ids;
	struct slice text;   /* new text, as it is written between the quotes */
	struct slice finish; /* finish_reason, if it is a string */
	unsigned n_choices;
	int has_usage;
	uint64_t prompt_tokens, completion_tokens, cached_tokens;
	int is_error;
	/* its message, as it is written between the quotes; may be empty */
	struct slice error;
};

/* 0, or -1: no JSON object. */
int event_scan(const char *json, size_t n, struct event_parts *ret);

/* --- the lines of a stream --- */

#define SSE_EVENT_MAX (16u << 20)

struct sse {
	char *line, *event; /* the beginning of a line; the data lines of an event */
	size_t line_len, line_size, event_len, event_size;
	int has_event;
};

typedef int sse_event_fn(void *arg, const char *data, size_t n); /* nonzero ends the reading */

void sse_init(struct sse *s);
void sse_fini(struct sse *s);
void sse_reset(struct sse *s); /* keeps the memory */
/* 0; what the function returned; or ERR_FULL: a line or an event is longer than SSE_EVENT_MAX. */
int sse_feed(struct sse *s, const char *data, size_t n, sse_event_fn *fn, void *arg);

#endif
