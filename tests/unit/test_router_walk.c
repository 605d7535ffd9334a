/* test_router_walk.c - random walks: honest workers, links that delay and repeat, deaths, restarts,
 * silences, failures, clients that leave, workers that drain, switch their role, stand still, are
 * told to end, drop leases before they are named and tell what they hold, under all policies. After
 * each walk every sequence has ended, each token was seen once and in order,
 * nothing stays charged, no worker goes on with what has ended, and the router knows what each
 * worker holds. */
#include "tests/unit/registry_defaults.h"
#include "daemons/router/attempt/attempt.h"
#include "util/clock.h"
#include "util/err.h"
#include "util/mem.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORKERS 6
#define SEQS 12
#define STEPS 600

#define PROMPTS 4
#define PROMPT_TOKENS 3

enum kind { SUBMIT, CANCEL, FIRST, TOKENS, FAILED, BEAT, UPDATE, EVENTS };

static const char *const role_names[] = {"prefill", "decode", "mixed"};

/* Something under way; for SUBMIT and a job also what is to be done. */
struct item {
	struct list node;
	enum kind kind;
	struct reqid id;
	uint32_t attempt, index, n, max_tokens;
	int decode, n_cand, cand[PLACE_CANDIDATES_MAX]; /* workers' numbers */
	uint64_t epoch, cand_epoch[PLACE_CANDIDATES_MAX];
	int finish;
	int role, draining, ending, reset;
	/* FAILED: of a reservation or lease, by a decode worker */
	int lost;
	unsigned tier;
	/* EVENTS: bits, one for each block of each prompt */
	unsigned stored, removed;
};

struct actor {
	const char *name;
	int role, first_role, draining;
	unsigned has[3]; /* blocks, as in item.stored, by tier: its own, its storage's */
	uint64_t epoch;
	int alive, down; /* down: to the router, though it may live */
	int stuck;       /* it does not work, and says so */
	struct worker_record *w;
	struct list in, out, jobs, tombstones;
};

struct owner {
	struct walk *walk;
	struct attempt *s;
	uint32_t seen, max_tokens;
	int ended;
};

struct walk {
	unsigned seed;
	int calm; /* nothing fails any more */
	struct registry g;
	struct attempts e;
	struct attempt_caller callers[2];
	struct actor a[WORKERS];
	struct owner o[SEQS];
	uint64_t epochs;
	struct prefixes prefixes[PROMPTS];
	unsigned switches;
};

static unsigned draw(struct walk *w, unsigned n)
{
	return (unsigned)rand_r(&w->seed) / 7 % n;
}

/* What the model says at place i, whoever computes it. */
static uint32_t token_at(const struct reqid *id, uint32_t i)
{
	return (uint32_t)(id->lo % 1000) + i * 3;
}

static struct item *put(struct list *l, struct item it)
{
	struct item *n = mem_alloc(sizeof *n);
	*n = it;
	list_init(&n->node);
	list_push_back(l, &n->node);
	return n;
}

static void drop(struct item *it)
{
	list_remove(&it->node);
	free(it);
}

static void clear(struct list *l)
{
	while (!list_empty(l))
		drop(list_entry(l->next, struct item, node));
}

static int is_job(const struct item *it, const struct reqid *id, uint32_t attempt)
{
	return it->id.hi == id->hi && it->id.lo == id->lo && it->attempt == attempt;
}

static struct item *find(struct list *l, const struct reqid *id, uint32_t attempt)
{
	list_each(n, l)
		if (is_job(list_entry(n, struct item, node), id, attempt))
			return list_entry(n, struct item, node);
	return NULL;
}

/* --- the router's side --- */

static int actor_number(struct walk *w, const char *name)
{
	for (int i = 0; i < WORKERS; i++)
		if (strcmp(w->a[i].name, name) == 0)
			return i;
	ck_abort_msg("no worker %s", name);
	return -1;
}

static int on_send(void *arg, struct worker_record *to, enum msg_type type,
                   const struct msg_head *head, const void *body)
{
	struct walk *w = arg;
	struct actor *a = &w->a[actor_number(w, to->name)];
	struct item it = {.kind = CANCEL, .id = head->req, .attempt = head->attempt};
	ck_assert(!a->down);
	if (type == MSG_REQUEST_SUBMIT) {
		const Pds__Submit *m = body;
		if (draw(w, 40) == 0)
			return ERR_FULL;
		ck_assert(!to->beat.draining);
		ck_assert_int_eq(to->role == ROLE_PREFILL && m->request->max_tokens > 1,
		                 m->n_candidates > 0);
		for (size_t i = 0; i < m->n_candidates; i++)
			ck_assert_int_eq(registry_find(&w->g, m->candidates[i]->name)->role, ROLE_DECODE);
		it.kind = SUBMIT;
		it.index = (uint32_t)m->request->n_tokens - m->request->prompt_tokens;
		it.max_tokens = m->request->max_tokens;
		ck_assert_uint_lt(it.index, it.max_tokens);
		for (uint32_t i = 0; i < it.index; i++)
			ck_assert_uint_eq(m->request->tokens[m->request->prompt_tokens + i],
			                  token_at(&it.id, i));
		for (size_t i = 0; i < m->n_candidates; i++) {
			it.cand[i] = actor_number(w, m->candidates[i]->name);
			it.cand_epoch[i] = m->candidates[i]->epoch;
		}
		it.n_cand = (int)m->n_candidates;
	}
	put(&a->in, it);
	return 0;
}

static enum attempt_verdict on_tokens(void *owner, struct attempt *s, Pds__Token *const *tokens,
                                      size_t n, enum answer_finish last)
{
	struct owner *o = owner;
	(void)last;
	for (size_t i = 0; i < n; i++)
		ck_assert_uint_eq(tokens[i]->id, token_at(&s->id, o->seen++));
	return draw(o->walk, 200) == 0   ? ATTEMPT_STOP
	       : draw(o->walk, 300) == 0 ? ATTEMPT_ABORT
	                                 : ATTEMPT_GO;
}

static void on_ended(void *owner, struct attempt *s)
{
	struct owner *o = owner;
	ck_assert_int_eq(o->ended, 0);
	o->ended = 1;
	if (s->end.finish == ANSWER_FINISH_LENGTH)
		ck_assert_uint_eq(o->seen, o->max_tokens);
	attempt_destroy(&o->s);
}

static const struct attempt_hooks hooks = {.tokens = on_tokens, .ended = on_ended};

/* --- the workers' side --- */

static int finish_at(const struct item *job, uint32_t next)
{
	return next >= job->max_tokens;
}

/* A prefill worker has computed the first token: tells the router, and hands over to a candidate
 * that it can reach. */
static void prefill_done(struct walk *w, struct actor *p, struct item *job)
{
	struct item it = {.kind = FIRST,
	                  .id = job->id,
	                  .attempt = job->attempt,
	                  .index = job->index,
	                  .n = 1,
	                  .decode = -1};
	it.finish = finish_at(job, job->index + 1);
	for (int i = 0; i < job->n_cand && it.decode < 0 && !it.finish; i++) {
		struct actor *d = &w->a[job->cand[i]];
		struct item lost = {.kind = FAILED, .id = job->id, .attempt = job->attempt, .lost = 1};
		if (d->alive && d->epoch == job->cand_epoch[i] && d->role == ROLE_DECODE && !d->draining) {
			if (!draw(w, 5)) { /* left for another; it may tell of what it had there */
				if (!w->calm && draw(w, 2))
					put(&d->out, lost);
				continue;
			}
			it.decode = job->cand[i];
			it.epoch = d->epoch;
			if (!w->calm && !draw(w, 10))
				put(&d->out, lost); /* the lease is gone: nobody decodes */
			else if (!find(&d->tombstones, &job->id, job->attempt))
				put(&d->jobs, (struct item){.kind = TOKENS,
				                            .id = job->id,
				                            .attempt = job->attempt,
				                            .index = job->index,
				                            .max_tokens = job->max_tokens});
		}
	}
	if (it.decode < 0 && !it.finish)
		it.kind = FAILED;
	put(&p->out, it);
	drop(job);
}

/* A job that the router has given up never comes to its end by itself: somebody must tell its
 * worker. */
static void decode_step(struct walk *w, struct actor *d, struct item *job)
{
	const struct attempt *s = attempts_find(&w->e, &job->id);
	if (!s || s->number != job->attempt) {
		put(&d->out, (struct item){.kind = TOKENS,
		                           .id = job->id,
		                           .attempt = job->attempt,
		                           .index = job->index,
		                           .n = 1});
		return;
	}
	uint32_t left = job->max_tokens - job->index, n = 1 + draw(w, 3);
	struct item it = {.kind = TOKENS,
	                  .id = job->id,
	                  .attempt = job->attempt,
	                  .index = job->index,
	                  .n = n < left ? n : left};
	job->index += it.n;
	it.finish = finish_at(job, job->index);
	put(&d->out, it);
	if (it.finish)
		drop(job);
}

static void take(struct actor *a, const struct item *m)
{
	if (m->kind == CANCEL) {
		struct item *job = find(&a->jobs, &m->id, m->attempt);
		if (job)
			drop(job);
		if (!find(&a->tombstones, &m->id, m->attempt))
			put(&a->tombstones, *m);
	} else if (a->draining || (a->role == ROLE_PREFILL) != (m->n_cand > 0)) {
		/* it was something else when the router sent this */
		put(&a->out, (struct item){.kind = FAILED, .id = m->id, .attempt = m->attempt});
	} else if (!find(&a->tombstones, &m->id, m->attempt) && !find(&a->jobs, &m->id, m->attempt)) {
		put(&a->jobs, *m);
	}
}

/* Something happens to the worker itself. A role is switched only when it has drained. */
static void live(struct walk *w, struct actor *a)
{
	unsigned what = draw(w, 6), bit = 1u << draw(w, PROMPTS * PROMPT_TOKENS), tier = draw(w, 3);
	if (what == 0 && !w->calm)
		put(&a->out,
		    (struct item){.kind = BEAT, .draining = a->draining = 1, .ending = (int)draw(w, 2)});
	else if (what == 1 && a->draining && list_empty(&a->jobs)) {
		a->role = (int)draw(w, 3);
		a->draining = 0;
		w->switches++;
		put(&a->out, (struct item){.kind = UPDATE, .role = a->role});
		put(&a->out, (struct item){.kind = BEAT});
	} else if (what == 2 && a->draining)
		put(&a->out, (struct item){.kind = BEAT, .draining = a->draining = 0});
	else if (what == 3 && a->has[tier] & bit) {
		put(&a->out, (struct item){.kind = EVENTS, .tier = tier, .removed = bit});
		a->has[tier] &= ~bit;
	} else if (what == 4 && tier && draw(w, 4) == 0) {
		/* its storage is gone, or a tier of it restarts */
		a->has[tier] &= draw(w, 2) ? 0x3c3 : 0;
		put(&a->out,
		    (struct item){.kind = EVENTS, .tier = tier, .reset = 1, .stored = a->has[tier]});
	} else {
		put(&a->out, (struct item){.kind = EVENTS, .tier = tier, .stored = bit});
		a->has[tier] |= bit;
	}
}

static void work(struct walk *w, struct actor *a)
{
	unsigned n = 0;
	struct item *job = NULL;
	if (a->stuck)
		return;
	list_each(it, &a->jobs)
		if (draw(w, ++n) == 0)
			job = list_entry(it, struct item, node);
	if (!job)
		return;
	if (!w->calm && draw(w, 30) == 0) {
		put(&a->out, (struct item){.kind = FAILED, .id = job->id, .attempt = job->attempt});
		drop(job);
	} else if (job->kind == SUBMIT && job->n_cand) {
		prefill_done(w, a, job);
	} else {
		decode_step(w, a, job);
	}
}

/* --- the links --- */

static void say_tokens(struct walk *w, struct actor *a, const struct item *m)
{
	Pds__Token t[8], *tp[8];
	Pds__SequenceTokens s = PDS__SEQUENCE_TOKENS__INIT, *sp[1] = {&s};
	Pds__Tokens all = PDS__TOKENS__INIT;
	for (uint32_t i = 0; i < m->n; i++) {
		pds__token__init(&t[i]);
		t[i].id = token_at(&m->id, m->index + i);
		tp[i] = &t[i];
	}
	s.request_hi = m->id.hi;
	s.request_lo = m->id.lo;
	s.attempt = m->attempt;
	s.index = m->index;
	s.tokens = tp;
	s.n_tokens = m->n;
	s.finish = m->finish ? PDS__FINISH__FINISH_LENGTH : PDS__FINISH__FINISH_NONE;
	all.sequences = sp;
	all.n_sequences = 1;
	attempts_tokens(&w->e, a->w, &all);
}

static size_t hashes_of(const struct walk *w, const struct actor *a, unsigned bits, uint64_t *out)
{
	size_t n = 0, have;
	for (unsigned i = 0; i < PROMPTS * PROMPT_TOKENS; i++)
		if (bits >> i & 1)
			out[n++] = prefixes_find(&w->prefixes[i / PROMPT_TOKENS], &a->w->prefix,
			                         &have)[i % PROMPT_TOKENS];
	return n;
}

static void say_events(struct walk *w, struct actor *a, const struct item *m)
{
	uint64_t stored[PROMPTS * PROMPT_TOKENS], removed[PROMPTS * PROMPT_TOKENS];
	Pds__KvEvents e = PDS__KV_EVENTS__INIT;
	e.reset = m->reset;
	e.tier = m->tier;
	e.n_stored = hashes_of(w, a, m->stored, e.stored = stored);
	e.n_removed = hashes_of(w, a, m->removed, e.removed = removed);
	registry_kv_events(&w->g, a->w, &e);
}

static void fill_info(Pds__WorkerInfo *info, int role)
{
	pds__worker_info__init(info);
	info->role = (char *)role_names[role];
	info->model_fingerprint = info->numerics = info->layout = info->site = (char *)"x";
	info->context_tokens = 1000;
	info->block_tokens = 1;
	info->blocks = 100;
}

static void say_itself(struct walk *w, struct actor *a, const struct item *m)
{
	Pds__Heartbeat b = PDS__HEARTBEAT__INIT;
	Pds__WorkerInfo info;
	char why[200];
	if (m->kind == BEAT) {
		b.draining = m->draining;
		b.ending = m->ending;
		b.running = (uint32_t)a->stuck;
		b.progress = a->stuck ? a->w->beat.progress : draw(w, 1000);
		b.blocks_free = draw(w, 20);
		b.prompt_tokens = a->w->beat.prompt_tokens + draw(w, 100);
		registry_beat(a->w, &b, clock_us());
	} else {
		fill_info(&info, m->role);
		ck_assert_int_eq(registry_update(&w->g, a->w, &info, why, sizeof why), 0);
		attempts_worker_up(&w->e);
	}
}

static void say(struct walk *w, struct actor *a, const struct item *m)
{
	static const Pds__Fault faults[] = {PDS__FAULT__FAULT_STALLED, PDS__FAULT__FAULT_NO_ROOM,
	                                    PDS__FAULT__FAULT_DRAINING};
	struct msg_head head = {.req = m->id, .attempt = m->attempt};
	if (m->kind == EVENTS) {
		say_events(w, a, m);
	} else if (m->kind == BEAT || m->kind == UPDATE) {
		say_itself(w, a, m);
	} else if (m->kind == TOKENS) {
		say_tokens(w, a, m);
	} else if (m->kind == FAILED) {
		Pds__Failed f = PDS__FAILED__INIT;
		f.fault = m->lost ? PDS__FAULT__FAULT_LEASE_LOST : faults[draw(w, 3)];
		f.retry = m->lost || draw(w, 10) != 0;
		f.blame = (char *)w->a[draw(w, WORKERS)].name;
		attempts_failed(&w->e, a->w, &head, &f);
	} else {
		Pds__Token t = PDS__TOKEN__INIT;
		Pds__FirstToken f = PDS__FIRST_TOKEN__INIT;
		t.id = token_at(&m->id, m->index);
		f.index = m->index;
		f.token = &t;
		f.decode = m->decode >= 0 ? (char *)w->a[m->decode].name : NULL;
		f.decode_epoch = m->epoch;
		f.finish = m->finish ? PDS__FINISH__FINISH_LENGTH : PDS__FINISH__FINISH_NONE;
		attempts_first_token(&w->e, a->w, &head, &f);
	}
}

/* One message, either way; what comes to the router may come twice. */
static void deliver(struct walk *w, struct actor *a)
{
	if (a->down)
		return;
	if (!list_empty(&a->in) && a->alive && draw(w, 2)) {
		struct item *m = list_entry(a->in.next, struct item, node);
		take(a, m);
		drop(m);
	} else if (!list_empty(&a->out)) {
		struct item m = *list_entry(a->out.next, struct item, node);
		drop(list_entry(a->out.next, struct item, node));
		for (unsigned k = 1 + (draw(w, 6) == 0); k && !a->down; k--)
			say(w, a, &m);
	}
}

static void up(struct walk *w, struct actor *a)
{
	Pds__WorkerInfo info;
	/* a new link: the worker tells its state anew, not by old messages */
	list_each_safe(n, next, &a->out)
		if (list_entry(n, struct item, node)->kind >= BEAT)
			drop(list_entry(n, struct item, node));
	fill_info(&info, a->role);
	put(&a->out, (struct item){.kind = BEAT, .draining = a->draining});
	for (unsigned t = 3; t--;) {
		put(&a->out,
		    (struct item){.kind = EVENTS, .tier = t, .reset = 1, .stored = a->has[t] & 0x555});
		put(&a->out, (struct item){.kind = EVENTS, .tier = t, .stored = a->has[t] & ~0x555u});
	}
	a->alive = 1;
	a->down = 0;
	a->stuck = 0;
	a->w = registry_up(&w->g, (struct peer *)w, a->name, a->epoch, &info, clock_us());
	attempts_worker_up(&w->e);
}

static void down(struct walk *w, struct actor *a)
{
	if (a->down)
		return;
	enum worker_end how = a->alive && draw(w, 2) ? WORKER_LINK_RESTART
	                      : draw(w, 2)           ? WORKER_GOODBYE
	                                             : WORKER_LOST;
	a->down = 1;
	registry_down(&w->g, a->w, clock_us());
	if (how == WORKER_GOODBYE)
		registry_ended_in_order(a->w);
	attempts_worker_down(&w->e, a->w, "down", how);
}

static void die(struct walk *w, struct actor *a)
{
	a->alive = 0;
	memset(a->has, 0, sizeof a->has);
	a->draining = 0;
	clear(&a->in);
	clear(&a->out);
	clear(&a->jobs);
	clear(&a->tombstones);
	down(w, a);
}

/* The first two share a beginning. */
static const uint32_t prompts[PROMPTS][PROMPT_TOKENS] = {
	{1, 2, 3}, {1, 2, 4}, {5, 6, 7}, {8, 9, 10}};

static void begin(struct walk *w, struct owner *o)
{
	unsigned k = draw(w, PROMPTS);
	struct attempt_spec spec = {.tokens = prompts[k],
	                            .prompt_tokens = PROMPT_TOKENS,
	                            .max_tokens = 1 + draw(w, 12),
	                            .begun_us = clock_us(),
	                            .deadline_us = clock_us() + 3600000000u,
	                            .prefixes = draw(w, 4) ? &w->prefixes[k] : NULL,
	                            .session = draw(w, 3),
	                            .caller = &w->callers[draw(w, 2)]};
	if (o->s)
		return;
	pds__sampling__init(&spec.sampling);
	*o = (struct owner){.walk = w, .max_tokens = spec.max_tokens};
	o->s = attempt_new(&w->e, &spec, &hooks, o);
	if (attempt_start(o->s) < 0)
		attempt_destroy(&o->s);
}

/* As the router has it after stuck_us without progress. */
static void stand_still(struct actor *a, int still)
{
	if (a->down)
		return;
	a->stuck = still;
	a->w->beat.running = (uint32_t)still;
	a->w->progress_us = still ? 1 : clock_us();
}

static void step(struct walk *w, int faults)
{
	struct actor *a = &w->a[draw(w, WORKERS)];
	unsigned what = draw(w, faults ? 103 : 90);
	if (what < 50)
		deliver(w, a);
	else if (what < 90)
		!a->alive ? (void)0 : draw(w, 5) ? work(w, a) : live(w, a);
	else if (what < 92)
		die(w, a);
	else if (what < 94)
		down(w, a);
	else if (what < 97 && a->down) {
		a->epoch = a->alive ? a->epoch : ++w->epochs;
		up(w, a);
	} else if (what == 97) {
		struct owner *o = &w->o[draw(w, SEQS)];
		attempt_destroy(&o->s);
	} else if (what == 98) {
		attempts_tick(&w->e, clock_us() + 2000000);
	} else if (what == 99 || what == 100) {
		stand_still(a, !a->stuck);
	} else if (what == 101) {
		attempts_tick(&w->e, clock_us());
	} else {
		begin(w, &w->o[draw(w, SEQS)]);
	}
}

/* What has not been said yet is said; then the router knows exactly what the worker holds. */
static void check_index(struct walk *w, struct actor *a)
{
	uint64_t h[PROMPTS * PROMPT_TOKENS];
	size_t distinct = 0;
	while (!list_empty(&a->out)) {
		struct item m = *list_entry(a->out.next, struct item, node);
		drop(list_entry(a->out.next, struct item, node));
		say(w, a, &m);
	}
	hashes_of(w, a, ~0u, h);
	for (unsigned i = 0; i < PROMPTS * PROMPT_TOKENS; i++) {
		struct kv_match m;
		unsigned same = i / PROMPT_TOKENS == 1 && i % PROMPT_TOKENS < 2 ? i - PROMPT_TOKENS : i;
		distinct += a->has[0] >> i & 1;
		kv_index_match(a->w->index, &h[i], 1, UINT64_MAX, &m);
		ck_assert_uint_eq(h[same], h[i]);
		unsigned tier = a->has[0] >> i & 1   ? 0
		                : a->has[1] >> i & 1 ? 1
		                : a->has[2] >> i & 1 ? 2
		                                     : 3;
		if (same == i && i > 1)
			ck_assert(m.device == (tier == 0) && m.memory == (tier == 1) && m.disk == (tier == 2));
	}
	ck_assert_uint_le(kv_index_count(a->w->index, 0), distinct);
}

/* No more faults, all workers there: everything comes to its end. */
static void settle(struct walk *w)
{
	w->calm = 1;
	for (int i = 0; i < WORKERS; i++)
		if (w->a[i].down) {
			w->a[i].epoch = w->a[i].alive ? w->a[i].epoch : ++w->epochs;
			up(w, &w->a[i]);
		}
	for (int i = 0; i < WORKERS; i++) {
		w->a[i].role = w->a[i].first_role;
		w->a[i].draining = 0;
		stand_still(&w->a[i], 0);
		put(&w->a[i].out, (struct item){.kind = UPDATE, .role = w->a[i].role});
		put(&w->a[i].out, (struct item){.kind = BEAT});
	}
	for (int i = 0; i < 20000; i++) {
		step(w, 0);
		if (i % 500 == 499)
			attempts_tick(&w->e, clock_us() + 2000000);
	}
	ck_assert_uint_eq(attempts_count(&w->e), 0);
	for (int i = 0; i < WORKERS; i++) {
		ck_assert_uint_eq(w->a[i].w->tokens_in_flight, 0);
		ck_assert_uint_eq(w->a[i].w->requests, 0);
		ck_assert_uint_eq(w->a[i].w->backlog_tokens, 0);
		ck_assert_msg(list_empty(&w->a[i].jobs), "worker %s goes on with what has ended",
		              w->a[i].name);
	}
	ck_assert_uint_eq(w->e.counts.mismatches, 0);
	for (int i = 0; i < WORKERS; i++)
		check_index(w, &w->a[i]);
}

TEST_CASE("walk", .timeout_s = 120);

TEST_LOOP(random_walks, 0, 4)
{
	static const char *const names[] = {"p1", "p2", "d1", "d2", "d3", "m1"};
	static const int roles[] = {ROLE_PREFILL, ROLE_PREFILL, ROLE_DECODE,
	                            ROLE_DECODE,  ROLE_DECODE,  ROLE_MIXED};
	struct attempts_counts sum = {0};
	uint64_t switches = 0, opened = 0;
	for (unsigned seed = 1; seed <= 150; seed++) {
		struct walk *w = mem_zalloc(sizeof *w);
		struct attempts_opts o = {
			.max_attempts = 3, .retry_wait_us = 10000000, .arg = w, .send = on_send};
		w->seed = seed * 100 + (unsigned)_i;
		registry_defaults(&w->g, 30000000);
		attempt_caller_init(&w->callers[0], 1);
		attempt_caller_init(&w->callers[1], 2);
		attempts_init(&w->e, &w->g, &o);
		w->g.draw = seed;
		w->g.breaker.min_requests = 2 + seed % 3;
		w->g.breaker.open_us = 1;
		w->g.policy.policy[PLACE_PREFILL] = seed % POLICIES;
		w->g.policy.policy[PLACE_DECODE] = seed / POLICIES % POLICIES;
		for (int i = 0; i < WORKERS; i++) {
			struct actor *a = &w->a[i];
			*a = (struct actor){
				.name = names[i], .role = roles[i], .first_role = roles[i], .epoch = ++w->epochs};
			list_init(&a->in);
			list_init(&a->out);
			list_init(&a->jobs);
			list_init(&a->tombstones);
			up(w, a);
		}
		for (int i = 0; i < PROMPTS; i++)
			prefixes_make(&w->g.roots, NULL, prompts[i], PROMPT_TOKENS, &w->prefixes[i]);
		for (int i = 0; i < SEQS / 2; i++)
			begin(w, &w->o[i]);
		for (int i = 0; i < STEPS; i++)
			step(w, 1);
		settle(w);
		sum.done += w->e.counts.done;
		sum.failed += w->e.counts.failed;
		sum.cancelled += w->e.counts.cancelled;
		sum.retries += w->e.counts.retries;
		sum.duplicates += w->e.counts.duplicates;
		sum.stale += w->e.counts.stale;
		switches += w->switches;
		opened += w->g.breaker_opened;
		for (int i = 0; i < WORKERS; i++) {
			clear(&w->a[i].in);
			clear(&w->a[i].out);
			clear(&w->a[i].jobs);
			clear(&w->a[i].tombstones);
		}
		for (int i = 0; i < PROMPTS; i++)
			prefixes_fini(&w->prefixes[i]);
		attempts_fini(&w->e);
		registry_fini(&w->g);
		free(w);
	}
	/* the walks did go where it matters */
	ck_assert_uint_gt(sum.done, 300);
	ck_assert_uint_gt(sum.failed, 10);
	ck_assert_uint_gt(sum.cancelled, 30);
	ck_assert_uint_gt(sum.retries, 300);
	ck_assert_uint_gt(sum.duplicates, 300);
	ck_assert_uint_gt(sum.stale, 300);
	ck_assert_uint_gt(switches, 80);
	ck_assert_uint_gt(opened, 30);
}

TEST_START(quiet)
{
	log_init("test", NULL);
	log_set_level("error");
}
