/* event.h - extracts what pdbench needs from the JSON of one event of a completion's stream, in one
 * pass and without copying.
 *
 * The scanner checks the structure of the whole text (brackets, strings, nothing after the end,
 * bounded depth), but not the exact syntax of numbers. Slices point into the event's text. */
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
	struct slice text;   /* new text, still JSON-escaped */
	struct slice finish; /* finish_reason, if it is a string */
	unsigned n_choices;
	int has_usage;
	uint64_t prompt_tokens, completion_tokens, cached_tokens;
	int is_error;
	/* its message, still JSON-escaped; may be empty */
	struct slice error;
};

/* Returns 0, or -1: not a JSON object. */
int event_scan(const char *json, size_t n, struct event_parts *ret);

/* --- server-sent events --- */

#define SSE_EVENT_MAX (16u << 20)

struct sse {
	char *line, *event; /* start of an incomplete line; data lines of the current event */
	size_t line_len, line_size, event_len, event_size;
	int has_event;
};

typedef int sse_event_fn(void *arg, const char *data, size_t n); /* nonzero stops reading */

void sse_init(struct sse *s);
void sse_fini(struct sse *s);
/* Returns 0, the nonzero result of fn, or ERR_FULL: a line or an event exceeds SSE_EVENT_MAX. */
int sse_feed(struct sse *s, const char *data, size_t n, sse_event_fn *fn, void *arg);

#endif
