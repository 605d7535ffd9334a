/* prefill_world.h - the world of a pdprefilld: router, two decode workers and the messager are
 * played, so a test sees the ring, the board and the KV.
 *
 * The model is the tiny golden one, computed by the reference kernels in steps of 16 tokens: slow
 * enough to meet a prompt half way (to_running). */
#ifndef TESTS_PREFILL_WORLD_H
#define TESTS_PREFILL_WORLD_H

#include "world.h"

#include <jansson.h>

#define LONG 480u
#define TRIES 8u /* of to_running */
#ifdef __SANITIZE_THREAD__
/* as slow under this sanitizer as the reference is without: a prompt is met half way, and none
 * takes seconds */
#define VARIANT "variant=auto"
#else
#define VARIANT "variant=reference"
#endif

/* A request. Zeros stand for: attempt 1, max_tokens 8, the common prompt. */
struct ask {
	uint64_t req;
	uint32_t n;
	/* candidates in order: '1', '2', '9', who never answers a HELLO, or 'f', who is on another host
	 * and whose key is missing here */
	const char *to;
	uint32_t seed, own_from; /* with a seed the tokens from own_from on are this request's own */
	uint32_t max_tokens;
	int prompt_logprobs;
	Pds__Pooling pooling;
	const char *regex; /* of the answer; NULL: free */
};

struct transfer {
	uint32_t slot;
	uint64_t gen;
	enum ring_state state;
};

static uint32_t words[LONG], golden_first;
static struct ring_transfer transfer_now; /* fields of the last transfer that transfer_of found */

/* --- what the daemon says of itself -------------------------------------- */

/* Jobs without a lease that are past the look-up. */
static inline uint32_t reserving(void)
{
	return told("status", "reserve");
}

/* Jobs whose first token was sent. */
static inline uint32_t handed_over(void)
{
	return told("status", "handover");
}

static inline unsigned renewals(const struct side *d, uint64_t lease)
{
	unsigned n = 0;
	list_each(it, &W.got) {
		const struct got *g = list_entry(it, struct got, node);
		const Pds__Renew *m = (const Pds__Renew *)g->body;
		for (size_t i = 0; got_is(g, d, MSG_KV_RENEW, 0) && i < m->n_lease_ids; i++)
			n += m->lease_ids[i] == lease && m->epoch == d->epoch;
	}
	return n;
}

/* Of how many of the prompt's tokens it has told the log-probabilities, one behind the other. */
static inline uint32_t prompt_logprobs(uint64_t req)
{
	uint32_t n = 0;
	list_each(it, &W.got) {
		const struct got *g = list_entry(it, struct got, node);
		const Pds__PromptLogprobs *m = (const Pds__PromptLogprobs *)g->body;
		if (!got_is(g, ROUTER, MSG_REQUEST_PROMPT_LOGPROBS, req))
			continue;
		ck_assert_uint_eq(m->first, n + 1);
		ck_assert_uint_eq(m->n_ranks, m->n_logprobs);
		for (size_t i = 0; i < m->n_logprobs; i++)
			ck_assert(m->logprobs[i] < 0 && m->ranks[i] > 0);
		n += (uint32_t)m->n_logprobs;
	}
	return n;
}

/* --- a real pdstoraged ---------------------------------------------------- */

/* Beside the daemon, which must be configured with storage=storage; it ends with the world. */
static inline void storage_start_with(const char *const *settings)
{
	static const char *const common[] = {"memory_mb=16", NULL};
	W.beside = process_start("pdstoraged", (const char *const *const[]){common, settings, NULL});
}

static inline void storage_start(void)
{
	storage_start_with((const char *const[]){NULL});
}

/* What it had in memory is gone. */
static inline void storage_kill(void)
{
	process_kill(&W.beside);
}

/* --- the world of a test ------------------------------------------------- */

static inline void flush(void)
{
	at_rest();
	ctl("flush");
}

static inline void load_words(void)
{
	json_t *p = json_load_file(GOLDEN "/prompt.json", 0, NULL),
		   *g = json_load_file(GOLDEN "/golden.json", 0, NULL);
	ck_assert(p && g);
	json_t *given = json_object_get(p, "long");
	uint32_t x = 7;
	for (uint32_t i = 0; i < LONG; i++) {
		x = x * 1103515245u + 12345u;
		words[i] = i < json_array_size(given)
		               ? (uint32_t)json_integer_value(json_array_get(given, i))
		               : 3 + (x >> 8) % 317;
	}
	json_t *greedy = json_object_get(json_object_get(json_object_get(g, "continuations"), "long"),
	                                 "greedy");
	golden_first = (uint32_t)json_integer_value(json_array_get(greedy, 0));
	json_decref(p);
	json_decref(g);
}

static inline void world_begin_as(const char *const *settings)
{
	static const char *const of_role[] = {VARIANT, "max_batched_tokens=16", "stall_ms=60000", NULL};
	load_words();
	world_folder();
	world_open("prefill", of_role, settings);
	side_open(D1);
	side_open(D2);
	side_open(MESSAGER);
	door_open();
	daemon_start();
	UNTIL(W.ring && ROUTER->p && MESSAGER->p);
}
#define world_begin(...) world_begin_as((const char *const[]){__VA_ARGS__, NULL})

/* --- words of the tests -------------------------------------------------- */

static inline void fill_tokens(const struct ask *a, uint32_t *out)
{
	for (uint32_t i = 0; i < a->n; i++)
		out[i] = a->seed && i >= a->own_from ? 3 + (words[i] * 7 + a->seed * 31) % 317 : words[i];
}

/* The cache salt of all requests. */
static const char salt[32] = "the cache salt of some tenant";

static inline void say_submit(struct ask a)
{
	uint32_t tokens[LONG], stop_id = 319;
	char endpoint[4][128];
	struct request q;
	Pds__Submit m = PDS__SUBMIT__INIT;
	Pds__Candidate c[4], *list[4];
	fill_tokens(&a, tokens);
	request_fill(&q, &(struct prompt){.tokens = tokens,
	                                  .n = a.n,
	                                  .max_tokens = a.max_tokens ? a.max_tokens : 8,
	                                  .regex = a.regex,
	                                  .pooling = a.pooling,
	                                  .salt = salt});
	q.s.seed = 77;
	q.s.logprobs = a.prompt_logprobs ? 0 : -1;
	q.s.prompt_logprobs = a.prompt_logprobs;
	q.r.stop_ids = &stop_id;
	q.r.n_stop_ids = 1;
	m.request = &q.r;
	m.candidates = list;
	for (const char *p = a.to; *p; p++) {
		const struct side *d = *p == '1' ? D1 : D2;
		const char *name = *p == '9' ? "decode-9" : *p == 'f' ? "far-1" : d->name;
		endpoint_of(name, endpoint[m.n_candidates]);
		if (*p == 'f')
			snprintf(endpoint[m.n_candidates], 128, "far-1@tcp://127.0.0.1:9");
		pds__candidate__init(&c[m.n_candidates]);
		c[m.n_candidates].name = (char *)(uintptr_t)name;
		c[m.n_candidates].endpoint = endpoint[m.n_candidates];
		c[m.n_candidates].epoch = *p == '9' || *p == 'f' ? 9 : d->epoch;
		list[m.n_candidates] = &c[m.n_candidates];
		m.n_candidates++;
	}
	say(ROUTER, MSG_REQUEST_SUBMIT, a.req, &m);
}

static inline uint32_t blocks_for(uint32_t tokens)
{
	return (tokens + BLOCK - 1) / BLOCK;
}

/* Destination blocks are 100 on. */
static inline void say_grant(struct side *from, uint64_t req, uint64_t lease, uint64_t epoch,
                             uint32_t cached, uint32_t n_blocks)
{
	Pds__Lease l = PDS__LEASE__INIT;
	Pds__Grant g = PDS__GRANT__INIT;
	uint32_t blocks[64];
	for (uint32_t i = 0; i < 64; i++)
		blocks[i] = 100 + i;
	ck_assert_uint_le(n_blocks, 64);
	l.id = lease;
	l.epoch = epoch;
	l.generation = lease + 5;
	g.lease = &l;
	g.lease_us = 3000000;
	g.cached_tokens = cached;
	g.blocks = blocks;
	g.n_blocks = n_blocks;
	say(from, MSG_KV_GRANT, req, &g);
}

/* Waits to be asked; the lease of a request is its number + 500. */
static inline void grant(struct side *from, uint64_t req, uint32_t n)
{
	UNTIL(count(from, MSG_KV_RESERVE, req));
	say_grant(from, req, req + 500, from->epoch, 0, blocks_for(n));
}

static inline void say_deny_for(struct side *from, uint64_t req, Pds__Fault fault, const char *text,
                                uint64_t retry_us)
{
	Pds__Deny d = PDS__DENY__INIT;
	d.fault = fault;
	d.text = (char *)text;
	d.retry_after_us = retry_us;
	say(from, MSG_KV_DENY, req, &d);
}

static inline void say_deny(struct side *from, uint64_t req, Pds__Fault fault, const char *text)
{
	say_deny_for(from, req, fault, text, 0);
}

static inline void say_kv_sent(uint64_t req, uint32_t slot, uint64_t gen)
{
	Pds__KvSent m = PDS__KV_SENT__INIT;
	m.slot = slot;
	m.generation = gen;
	say(MESSAGER, MSG_KV_SENT, req, &m);
}

static inline void kv_sent(uint64_t req, const struct transfer *t)
{
	ck_assert_int_eq(ring_mark_sent(W.ring, t->slot, t->gen), 0);
	say_kv_sent(req, t->slot, t->gen);
}

static inline void say_transfer_failed(uint64_t req, uint32_t slot, uint64_t gen, Pds__Fault fault,
                                       const char *text)
{
	Pds__TransferFailed m = PDS__TRANSFER_FAILED__INIT;
	m.slot = slot;
	m.generation = gen;
	m.fault = fault;
	m.text = (char *)text;
	say(MESSAGER, MSG_TRANSFER_FAILED, req, &m);
}

static inline void transfer_failed(uint64_t req, uint32_t slot, uint64_t gen)
{
	say_transfer_failed(req, slot, gen, PDS__FAULT__FAULT_LEASE_LOST, "the lease was refused");
}

static inline void say_ack(struct side *from, uint64_t req, uint64_t lease)
{
	Pds__FirstTokenAck m = PDS__FIRST_TOKEN_ACK__INIT;
	m.lease_id = lease;
	say(from, MSG_REQUEST_FIRST_TOKEN_ACK, req, &m);
}

static inline void ack(struct side *from, uint64_t req)
{
	say_ack(from, req, req + 500);
}

static inline int find_transfer(uint64_t req, struct transfer *ret)
{
	for (uint32_t s = 0; s < ring_slots(W.ring); s++)
		if (ring_read(W.ring, s, &transfer_now, &ret->gen, &ret->state) == 0 &&
		    transfer_now.req.lo == req) {
			ret->slot = s;
			return 1;
		}
	return 0;
}

static inline struct transfer transfer_of(uint64_t req)
{
	struct transfer t = {0};
	UNTIL(find_transfer(req, &t));
	return t;
}

/* No messager may take it any more. */
static inline int transfer_is_void(const struct transfer *t)
{
	uint64_t gen;
	enum ring_state s = ring_peek(W.ring, t->slot, &gen);
	return gen != t->gen || (s != RING_PENDING && s != RING_SENT);
}

static inline int computed(const struct transfer *t, uint32_t tokens)
{
	for (uint32_t l = 0; l < W.hello.layers; l++)
		if (ring_progress(W.ring, t->slot, l, t->gen) != tokens)
			return 0;
	return 1;
}

static inline const Pds__FirstToken *first_token(uint64_t req)
{
	UNTIL(count(ROUTER, MSG_REQUEST_FIRST_TOKEN, req));
	return LATEST(Pds__FirstToken, ROUTER, REQUEST_FIRST_TOKEN, req);
}

/* How many requests from `from` on had their first token before this one. */
static inline unsigned first_tokens_before(uint64_t req, uint64_t from)
{
	unsigned n = 0;
	list_each(it, &W.got) {
		const struct got *g = list_entry(it, struct got, node);
		if (got_is(g, ROUTER, MSG_REQUEST_FIRST_TOKEN, req))
			break;
		n += g->at == ROUTER && g->type == MSG_REQUEST_FIRST_TOKEN && g->head.req.lo >= from;
	}
	return n;
}

static inline const Pds__Failed *failed(uint64_t req)
{
	UNTIL(count(ROUTER, MSG_REQUEST_FAILED, req));
	return LATEST(Pds__Failed, ROUTER, REQUEST_FAILED, req);
}

/* Granted, computed; waits for KV_SENT and the acknowledgement. */
static inline struct transfer to_computed(struct side *d, struct ask a)
{
	say_submit(a);
	grant(d, a.req, a.n);
	struct transfer t = transfer_of(a.req);
	first_token(a.req);
	UNTIL(count(d, MSG_REQUEST_FIRST_TOKEN, a.req));
	return t;
}

static inline void finish(struct side *d, uint64_t req, const struct transfer *t)
{
	kv_sent(req, t);
	ack(d, req);
}

/* Its first token, as computed with nothing else in the daemon. */
static inline uint32_t alone(struct ask a)
{
	flush();
	struct transfer t = to_computed(D1, a);
	const Pds__FirstToken *f = LATEST(Pds__FirstToken, ROUTER, REQUEST_FIRST_TOKEN, a.req);
	ck_assert_uint_eq(f->timing->cached_tokens, 0);
	finish(D1, a.req, &t);
	flush();
	return f->token->id;
}

/* A prompt of LONG tokens, met half way: the daemon is stopped there. One that was done before
 * this process looked is let go, and another tried. */
static inline struct transfer to_running(struct side *d, uint64_t *req, const char *to)
{
	for (unsigned i = 0; i < TRIES; i++, (*req)++) {
		say_submit((struct ask){.req = *req, .n = LONG, .to = to, .seed = (uint32_t)*req});
		grant(d, *req, LONG);
		struct transfer t = transfer_of(*req);
		UNTIL_BY(ring_progress(W.ring, t.slot, 0, t.gen) || transfer_is_void(&t), GLANCE());
		daemon_stop();
		if (ring_progress(W.ring, t.slot, 0, t.gen) < LONG / 2)
			return t;
		daemon_go_on();
		first_token(*req);
		finish(d, *req, &t);
		UNTIL(transfer_is_void(&t)); /* others may be under way: not at_rest */
	}
	ck_abort_msg("a prompt of %u tokens is always computed before this process sees it half done",
	             LONG);
	return (struct transfer){0};
}

#endif
