/* trace_spans.c - places what the events of requests tell on one time axis: a lane for each daemon,
 * spans in it, arrows between the lanes.
 *
 * A daemon logs durations at their end, so most spans end at their event. The clocks of several
 * hosts may differ, and logs are untrusted: no span ends before it begins or lies outside of the
 * span of its request in that lane, which covers all events there. */
#include "trace.h"

#include "util/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The span that an event tells of. It has the length of the field `us`; it ends at the event, or
 * earlier by the fields `after`. */
static const struct rule {
	const char *event, *name, *us, *after[4];
	enum span_kind kind;
	unsigned row;
	/* it begins at the daemon's event `accepted`, later by the fields `after`: what comes between
	 * it and the rest of the request is then a gap at its own place */
	int from_accepted;
} rules[] = {
	{"prefill_done", "queue", "queue_us", {0}, SPAN_WAIT, 0, 1},
	{"prefill_done", "prepare", "prepare_us", {"queue_us"}, SPAN_WAIT, 0, 1},
	{"prefill_done", "reserve", "reserve_us", {"queue_us", "prepare_us"}, SPAN_WAIT, 0, 1},
	{"prefill_done", "schedule", "schedule_us", {"prefill_us"}, SPAN_WAIT, 0, 0},
	{"prefill_done", "prefill", "prefill_us", {0}, SPAN_PREFILL, 0, 0},
	{"share_end", "shared prefix", "waited_us", {0}, SPAN_WAIT, 1, 0},
	{"read", "read storage", "took_us", {0}, SPAN_STORED, 1, 0},
	{"transfer_done", "KV transfer", "life_us", {0}, SPAN_KV, 0, 0},
	{"granted", "wait for room", "wait_us", {0}, SPAN_WAIT, 0, 0},
	{"joined", "receive KV", "transfer_us", {"wait_us"}, SPAN_KV, 0, 0},
	{"joined", "wait for first token", "wait_us", {0}, SPAN_WAIT, 0, 0},
	{"decode_done", "decode", "decode_us", {0}, SPAN_DECODE, 0, 0},
	{"restored", "restore", "took_us", {0}, SPAN_STORED, 1, 0},
};
#define RULES (sizeof rules / sizeof *rules)

/* What one daemon sends to another: between two events of the same attempt. With `us` it was sent
 * and received that much before the second event. */
static const struct link {
	const char *from, *to, *name, *us;
} links[] = {
	{"submitted", "accepted", "prompt", NULL},
	{"accepted", "granted", "reserve", NULL},
	{"accepted", "transfer_done", "KV", "life_us"},
	{"transfer_done", "joined", "KV", NULL},
	{"prefill_done", "joined", "first token", NULL},
	{"joined", "first_token", "first token", NULL},
	{"decode_done", "request_done", "last token", NULL},
};
#define LINKS (sizeof links / sizeof *links)

static size_t find_lane(const struct trace_picture *p, const struct event *e)
{
	size_t i = 0;
	while (i < p->n_lanes && strcmp(p->lanes[i].daemon, e->daemon) != 0)
		i++;
	return i;
}

double trace_picture_at(const struct trace_picture *p, const struct event *e)
{
	return (double)e->at_us - p->first_us + p->before_us;
}

static int by_program(const void *a, const void *b)
{
	const struct lane *x = a, *y = b;
	return x->program != y->program ? (int)x->program - (int)y->program
	                                : strcmp(x->daemon, y->daemon);
}

static int make_lanes(struct trace_picture *p, struct trace *t)
{
	for (size_t i = 0; i < t->n; i++) {
		if (find_lane(p, &t->events[i]) < p->n_lanes)
			continue;
		if (p->n_lanes == TRACE_LANES_MAX) {
			fprintf(stderr, "pdctl: not drawn: these lines name more than %d daemons\n",
			        TRACE_LANES_MAX);
			return -1;
		}
		p->lanes = mem_grow(p->lanes, p->n_lanes + 1, sizeof *p->lanes);
		p->lanes[p->n_lanes++] = (struct lane){t->events[i].daemon, t->events[i].program};
	}
	if (p->n_lanes)
		qsort(p->lanes, p->n_lanes, sizeof *p->lanes, by_program);
	for (size_t i = 0; i < t->n; i++)
		t->events[i].lane = find_lane(p, &t->events[i]);
	return 0;
}

static void add_span(struct trace_picture *p, const struct trace_span *s)
{
	p->spans = mem_grow(p->spans, p->n_spans + 1, sizeof *p->spans);
	p->spans[p->n_spans++] = *s;
}

/* The event of this name and attempt, of the same daemon or of another one: the last before `at`,
 * else the first after it, because a daemon logs a message when it has been sent. */
static const struct event *partner(const struct trace *t, const struct event *at, const char *name,
                                   int same_daemon)
{
	const struct event *found = NULL;
	int is_end = strcmp(at->name, "request_done") == 0;
	double attempt = trace_number(at->fields, is_end ? "attempts" : "attempt");
	for (size_t i = 0; i < t->n && !(found && &t->events[i] > at); i++) {
		const struct event *e = &t->events[i];
		if (e->request == at->request && strcmp(e->name, name) == 0 &&
		    trace_number(e->fields, "attempt") == attempt &&
		    (strcmp(e->daemon, at->daemon) == 0) == same_daemon)
			found = e;
	}
	return found;
}

static void add_by_rule(struct trace_picture *p, const struct event *e, const struct rule *r)
{
	double us = trace_number(e->fields, r->us), after = 0, at = trace_picture_at(p, e);
	const struct event *begin = r->from_accepted ? partner(p->trace, e, "accepted", 1) : NULL;
	if (us <= 0)
		return;
	for (size_t i = 0; r->after[i]; i++)
		after += trace_number(e->fields, r->after[i]);
	double to = begin ? trace_picture_at(p, begin) + after + us : at - after;
	add_span(p,
	         &(struct trace_span){e->request, e->lane, r->row, r->kind, r->name, to - us, to, e});
}

/* The router's summary may be logged later than the request ended. */
static void add_request(struct trace_picture *p, const struct event *done)
{
	const struct event *first = NULL;
	double total = trace_number(done->fields, "total_us"),
		   first_us = trace_number(done->fields, "first_token_us");
	for (const struct event *e = done; e-- > p->trace->events && e->request == done->request;)
		if (strcmp(e->name, "first_token") == 0)
			first = e;
	double from = first ? trace_picture_at(p, first) - first_us : trace_picture_at(p, done) - total;
	size_t lane = done->lane;
	if (first_us > 0)
		add_span(p, &(struct trace_span){done->request, lane, 0, SPAN_WAIT, "until first token",
		                                 from, from + first_us, done});
	if (first_us > 0 && total > first_us)
		add_span(p, &(struct trace_span){done->request, lane, 0, SPAN_DECODE, "other tokens",
		                                 from + first_us, from + total, done});
}

/* A worker that prefills for itself logs no prefill_done: the router's summary has its times. */
static void add_local_prefill(struct trace_picture *p, const struct event *done)
{
	const struct event *accepted = partner(p->trace, done, "accepted", 0);
	if (!accepted || trace_number(accepted->fields, "local") != 1)
		return;
	size_t lane = accepted->lane;
	double at = trace_picture_at(p, accepted), queue = trace_number(done->fields, "queue_us"),
		   prefill = trace_number(done->fields, "prefill_us");
	add_span(p, &(struct trace_span){done->request, lane, 0, SPAN_WAIT, "queue", at, at + queue,
	                                 done});
	add_span(p, &(struct trace_span){done->request, lane, 0, SPAN_PREFILL, "prefill", at + queue,
	                                 at + queue + prefill, done});
}

/* A span for each lane and request that covers its events and its other spans. */
static void add_wholes(struct trace_picture *p)
{
	const struct trace *t = p->trace;
	size_t parts = p->n_spans, begin = 0;
	for (size_t r = 0; r < t->n_ids; r++) {
		size_t end = begin;
		while (end < t->n && t->events[end].request == r)
			end++;
		for (size_t lane = 0; lane < p->n_lanes; lane++) {
			struct trace_span whole = {.request = r, .lane = lane, .name = t->ids[r]};
			for (size_t i = begin; i < end; i++) {
				double at = trace_picture_at(p, &t->events[i]);
				if (t->events[i].lane != lane)
					continue;
				if (!whole.of || at < whole.from_us)
					whole.from_us = at;
				if (!whole.of || at > whole.to_us)
					whole.to_us = at;
				whole.of = &t->events[i];
			}
			for (size_t i = 0; i < parts; i++)
				if (p->spans[i].lane == lane && p->spans[i].request == r &&
				    p->spans[i].from_us < whole.from_us)
					whole.from_us = p->spans[i].from_us;
			if (whole.of)
				add_span(p, &whole);
		}
		begin = end;
	}
}

/* By lane, request and row, then by time, a longer one before those that it covers. */
static int by_place(const void *a, const void *b)
{
	const struct trace_span *x = a, *y = b;
	if (x->lane != y->lane || x->request != y->request)
		return x->lane != y->lane ? (x->lane > y->lane ? 1 : -1) : x->request > y->request ? 1 : -1;
	if (x->row != y->row)
		return x->row > y->row ? 1 : -1;
	if ((x->kind == SPAN_WHOLE) != (y->kind == SPAN_WHOLE))
		return x->kind == SPAN_WHOLE ? -1 : 1;
	if (x->from_us != y->from_us)
		return x->from_us > y->from_us ? 1 : -1;
	return (x->to_us < y->to_us) - (x->to_us > y->to_us);
}

/* Of two spans of a row one lies within the other, or they follow each other: one that overlaps the
 * end of an earlier one begins later. All lie within the whole, the first of their request. */
static void make_nest(struct trace_picture *p)
{
	size_t whole = 0, row = 0;
	for (size_t i = 0; i < p->n_spans; i++) {
		struct trace_span *s = &p->spans[i];
		if (s->kind == SPAN_WHOLE)
			whole = row = i;
		if (s->row != p->spans[row].row)
			row = i;
		double from = p->spans[whole].from_us, to = p->spans[whole].to_us;
		s->from_us = fmin(fmax(s->from_us, from), to);
		s->to_us = fmin(s->to_us, to);
		for (size_t k = row; k < i; k++)
			if (s->from_us < p->spans[k].to_us && s->to_us > p->spans[k].to_us)
				s->from_us = p->spans[k].to_us;
		s->to_us = fmax(s->to_us, s->from_us);
	}
}

/* The axis begins with the earliest span. Spans move as events do (trace_picture_at), so that both
 * are rounded alike: what began with an event still does. */
static void shift(struct trace_picture *p)
{
	double least = 0;
	for (size_t i = 0; i < p->n_spans; i++)
		least = p->spans[i].from_us < least ? p->spans[i].from_us : least;
	p->before_us = -least;
	for (size_t i = 0; i < p->n_spans; i++) {
		struct trace_span *s = &p->spans[i];
		s->from_us += p->before_us;
		s->to_us += p->before_us;
		p->end_us = s->to_us > p->end_us ? s->to_us : p->end_us;
	}
}

/* The span that covers all of a request in a lane. */
static const struct trace_span *whole_of(const struct trace_picture *p, const struct event *e)
{
	size_t i = 0;
	while (p->spans[i].kind != SPAN_WHOLE || p->spans[i].lane != e->lane ||
	       p->spans[i].request != e->request)
		i++;
	return &p->spans[i];
}

/* Each end lies within its daemon's span, and it does not point back: a daemon may log later than
 * it says. Where that cannot be, the clocks differ, and it begins where it ends. */
static void add_arrow(struct trace_picture *p, const struct link *l, const struct event *to)
{
	const struct event *from = partner(p->trace, to, l->from, 0);
	if (!from)
		return;
	const struct trace_span *sender = whole_of(p, from), *receiver = whole_of(p, to);
	double from_us = trace_picture_at(p, from), to_us = trace_picture_at(p, to);
	if (l->us)
		from_us = to_us = fmax(to_us - trace_number(to->fields, l->us), from_us);
	if (from_us > to_us)
		from_us = fmax(to_us, sender->from_us);
	from_us = fmin(from_us, sender->to_us);
	to_us = fmin(fmax(fmax(to_us, from_us), receiver->from_us), receiver->to_us);
	p->arrows = mem_grow(p->arrows, p->n_arrows + 1, sizeof *p->arrows);
	p->arrows[p->n_arrows++] = (struct arrow){
		.name = l->name,
		.request = to->request,
		.from_lane = from->lane,
		.to_lane = to->lane,
		.from_us = fmin(from_us, to_us),
		.to_us = to_us,
	};
}

int trace_picture_init(struct trace_picture *p, struct trace *t)
{
	*p = (struct trace_picture){.trace = t};
	for (size_t i = 0; i < t->n; i++)
		if (!i || (double)t->events[i].at_us < p->first_us)
			p->first_us = (double)t->events[i].at_us;
	if (make_lanes(p, t) < 0)
		return -1;
	for (size_t i = 0; i < t->n; i++) {
		for (size_t k = 0; k < RULES; k++)
			if (strcmp(t->events[i].name, rules[k].event) == 0)
				add_by_rule(p, &t->events[i], &rules[k]);
		if (strcmp(t->events[i].name, "request_done") == 0) {
			add_request(p, &t->events[i]);
			add_local_prefill(p, &t->events[i]);
		}
	}
	add_wholes(p);
	if (p->n_spans)
		qsort(p->spans, p->n_spans, sizeof *p->spans, by_place);
	make_nest(p);
	shift(p);
	for (size_t i = 0; i < t->n; i++)
		for (size_t k = 0; k < LINKS; k++)
			if (strcmp(t->events[i].name, links[k].to) == 0)
				add_arrow(p, &links[k], &t->events[i]);
	return 0;
}

void trace_picture_fini(struct trace_picture *p)
{
	free(p->lanes);
	free(p->spans);
	free(p->arrows);
}
