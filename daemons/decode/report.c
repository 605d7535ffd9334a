/* report.c - what a step produced, from the schedule thread to the routers: one message a step for
 * all sequences of a router. A sequence stands in it once, with all tokens that the step brought
 * it. */
#include "decode.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

struct entry {
	char router[48];
	uint64_t router_epoch;
	Pds__SequenceTokens s;
	Pds__Timing timing;
	uint32_t first; /* its tokens: s.n_tokens of report.token from here on */
};

struct report {
	struct worker *w;
	uint32_t n, room;
	struct entry *entry;
	uint32_t n_tokens, room_tokens;
	Pds__Token **token;
};

struct report *report_new(struct worker *w)
{
	struct report *r = mem_zalloc(sizeof *r);
	r->w = w;
	return r;
}

void report_timing(const struct sequence *q, Pds__Timing *t)
{
	uint64_t now = clock_us();
	pds__timing__init(t);
	t->queue_us = q->prefill[0]         ? q->joined_us - q->ready_us
	              : q->prefill_begin_us ? q->prefill_begin_us - q->accepted_us
	                                    : 0;
	t->prefill_us = q->prefill[0] || !q->first_us ? 0 : q->first_us - q->prefill_begin_us;
	t->transfer_us = q->prefill[0] ? q->ready_us - q->granted_us : 0;
	t->decode_us = q->first_us ? now - q->first_us : 0;
	t->cached_tokens = q->cached_tokens;
	t->chunks = q->chunks;
	t->preemptions = q->preemptions;
}

static struct entry *add_entry(struct report *r, struct sequence *q, uint32_t index)
{
	if (r->n == r->room) {
		r->room = r->room ? r->room * 2 : 8;
		r->entry = mem_grow(r->entry, r->room, sizeof *r->entry);
	}
	struct entry *e = &r->entry[r->n++];
	memcpy(e->router, q->req.router, sizeof e->router);
	e->router_epoch = q->req.router_epoch;
	pds__sequence_tokens__init(&e->s);
	e->s.request_hi = q->req.id.hi;
	e->s.request_lo = q->req.id.lo;
	e->s.attempt = q->req.attempt;
	e->s.index = index;
	e->first = r->n_tokens;
	return e;
}

static void add_token(struct report *r, Pds__Token *t)
{
	if (r->n_tokens == r->room_tokens) {
		r->room_tokens = r->room_tokens ? r->room_tokens * 2 : 8;
		r->token = mem_grow(r->token, r->room_tokens, sizeof *r->token);
	}
	r->token[r->n_tokens++] = t;
}

/* The tokens of one sequence come one behind the other. */
void report_token(struct report *r, struct sequence *q, uint32_t index, const struct kern_drawn *s,
                  Pds__Finish finish)
{
	struct entry *e = r->n ? &r->entry[r->n - 1] : NULL;
	if (!e || e->s.request_hi != q->req.id.hi || e->s.request_lo != q->req.id.lo ||
	    e->s.attempt != q->req.attempt)
		e = add_entry(r, q, index);
	add_token(r, drawn_token(s, q->req.sampling.logprobs >= 0));
	e->s.n_tokens++;
	e->s.finish = finish;
	if (index != q->req.given_tokens - q->req.prompt_tokens && finish == PDS__FINISH__FINISH_NONE)
		return;
	report_timing(q, &e->timing);
	e->s.timing = &e->timing;
}

static void report_free(struct report *r)
{
	for (uint32_t i = 0; i < r->n_tokens; i++)
		free(r->token[i]);
	free(r->token);
	free(r->entry);
	free(r);
}

static void send_to(struct report *r, uint32_t from, Pds__SequenceTokens **list,
                    unsigned char *done)
{
	struct worker *w = r->w;
	Pds__Tokens m = PDS__TOKENS__INIT;
	m.sequences = list;
	for (uint32_t i = from; i < r->n; i++) {
		struct entry *e = &r->entry[i];
		if (done[i] || e->router_epoch != r->entry[from].router_epoch ||
		    strcmp(e->router, r->entry[from].router) != 0)
			continue;
		e->s.tokens = r->token + e->first;
		if (e->s.timing)
			e->s.timing = &e->timing; /* the array may have moved since */
		list[m.n_sequences++] = &e->s;
		done[i] = 1;
	}
	struct peer *p = worker_router(w, r->entry[from].router, r->entry[from].router_epoch);
	if (p)
		svc_send(w->svc, p, MSG_REQUEST_TOKENS, NULL, &m.base);
}

static void deliver(struct svc *s, void *arg)
{
	struct report *r = arg;
	(void)s;
	unsigned char *done = mem_array(r->n, 1);
	Pds__SequenceTokens **list = mem_array(r->n, sizeof *list);
	for (uint32_t i = 0; i < r->n; i++)
		if (!done[i])
			send_to(r, i, list, done);
	free(done);
	free(list);
	report_free(r);
}

void report_send(struct report *r)
{
	if (r->n) {
		svc_post(r->w->svc, deliver, r);
		return;
	}
	report_free(r);
}
