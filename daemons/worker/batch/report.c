/* report.c - the tokens of a step, from the schedule thread to the routers: one message per router
 * for all its sequences. A sequence has one entry in it, with all tokens that the step brought. */
#include "batch.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

struct report_entry {
	char router[48];
	uint64_t router_epoch;
	Pds__SequenceTokens s;
	Pds__Timing timing, prompt;
	uint32_t first; /* its s.n_tokens tokens begin at token_report.token[first] */
	int sent;
};

struct token_report {
	struct worker *w;
	uint32_t n, capacity;
	struct report_entry *entry;
	uint32_t n_tokens, token_capacity;
	Pds__Token **token;
};

struct token_report *report_new(struct worker *w)
{
	struct token_report *t = mem_zalloc(sizeof *t);
	t->w = w;
	return t;
}

void report_timing(const struct run *r, Pds__Timing *t)
{
	pds__timing__init(t);
	t->queue_us = r->queue_us;
	t->prefill_us = r->first_us ? r->first_us - r->begin_us : 0;
	t->transfer_us = r->transfer_us;
	t->decode_us = r->first_us ? clock_us() - r->first_us : 0;
	t->cached_tokens = r->cached_tokens;
	t->chunks = r->chunks;
	t->preemptions = r->preemptions;
}

static struct report_entry *report_entry_add(struct token_report *t, const struct run *r,
                                             uint32_t index)
{
	if (t->n == t->capacity) {
		t->capacity = t->capacity ? t->capacity * 2 : 8;
		t->entry = mem_grow(t->entry, t->capacity, sizeof *t->entry);
	}
	struct report_entry *e = &t->entry[t->n++];
	memcpy(e->router, r->req.router, sizeof e->router);
	e->router_epoch = r->req.router_epoch;
	e->first = t->n_tokens;
	e->sent = 0;
	pds__sequence_tokens__init(&e->s);
	e->s.request_hi = r->req.id.hi;
	e->s.request_lo = r->req.id.lo;
	e->s.attempt = r->req.attempt;
	e->s.index = index;
	return e;
}

void report_token(struct token_report *t, const struct run *r, uint32_t index,
                  const struct kern_drawn *drawn, Pds__Finish finish)
{
	const struct request_copy *req = &r->req;
	struct report_entry *e = t->n ? &t->entry[t->n - 1] : NULL;
	if (!e || e->s.request_hi != req->id.hi || e->s.request_lo != req->id.lo ||
	    e->s.attempt != req->attempt)
		e = report_entry_add(t, r, index);
	if (t->n_tokens == t->token_capacity) {
		t->token_capacity = t->token_capacity ? t->token_capacity * 2 : 8;
		t->token = mem_grow(t->token, t->token_capacity, sizeof *t->token);
	}
	t->token[t->n_tokens++] = drawn_token(drawn, req->sampling.logprobs >= 0);
	e->s.n_tokens++;
	e->s.finish = finish;
	/* the attempt's first token and its last one carry the timing */
	if (index == req->given_tokens - req->prompt_tokens || finish != PDS__FINISH__FINISH_NONE) {
		report_timing(r, &e->timing);
		e->s.timing = &e->timing;
	}
}

void report_prompt(struct token_report *t, const Pds__Timing *prompt)
{
	struct report_entry *e = &t->entry[t->n - 1];
	e->prompt = *prompt;
	e->s.prompt = &e->prompt;
}

static void report_free(struct token_report *t)
{
	for (uint32_t i = 0; i < t->n_tokens; i++)
		free(t->token[i]);
	free(t->token);
	free(t->entry);
	free(t);
}

/* To the router of entry `from`, with all others of that router. list: room for all. */
static void send_to(struct token_report *t, uint32_t from, Pds__SequenceTokens **list)
{
	struct worker *w = t->w;
	const struct report_entry *first = &t->entry[from];
	Pds__Tokens m = PDS__TOKENS__INIT;
	m.sequences = list;
	for (uint32_t i = from; i < t->n; i++) {
		struct report_entry *e = &t->entry[i];
		if (e->sent || e->router_epoch != first->router_epoch ||
		    strcmp(e->router, first->router) != 0)
			continue;
		e->s.tokens = t->token + e->first;
		if (e->s.timing) /* the array may have moved since */
			e->s.timing = &e->timing;
		if (e->s.prompt)
			e->s.prompt = &e->prompt;
		list[m.n_sequences++] = &e->s;
		e->sent = 1;
	}
	struct peer *p = worker_router(w, first->router, first->router_epoch);
	if (p)
		worker_send_awaited(w, p, MSG_REQUEST_TOKENS, NULL, &m.base);
}

static void report_deliver(struct svc *s, void *report)
{
	struct token_report *t = report;
	(void)s;
	Pds__SequenceTokens **list = mem_array(t->n, sizeof *list);
	for (uint32_t i = 0; i < t->n; i++)
		if (!t->entry[i].sent)
			send_to(t, i, list);
	free(list);
	report_free(t);
}

void report_send(struct token_report *t)
{
	if (t->n)
		svc_post(t->w->svc, report_deliver, t);
	else
		report_free(t);
}
