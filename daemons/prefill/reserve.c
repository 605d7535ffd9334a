/* reserve.c - the way to a grant: which candidate is asked when, and which jobs are parked until
 * then. All of it runs on the loop's thread.
 *
 * A job asks one candidate at a time: the first in its order that may be asked now, because its
 * link is up, it is not closed in this attempt, the time that it hinted at has come, and fewer than
 * max_inflight_prefill of our requests are in flight there. Only a link that is not up yet holds
 * back the candidates behind it, for LINK_WAIT_US. If none may be asked the job is parked and holds
 * nothing; when a place, a link or a time comes, the job that is parked longest is looked at first.
 * So a slow or full decode worker holds up only jobs that have no other candidate. A candidate is
 * closed when it denies without a hint, is gone, or is left for one that is expected to grant much
 * sooner; after the last one the attempt fails, and the router places it again. Nothing here waits
 * past the deadline.
 *
 * A job that leaves a queue does not return to it, so it leaves only where the wait elsewhere is
 * less than half of the rest here. Each second a decode worker tells waiting jobs when it expects
 * to have room. For other candidates the last value that they told any job is used; a candidate
 * that told nothing lately may have room, and is tried after LATE_US. */
#include "prefill.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

#define LATE_US 2000000u  /* a candidate of which nothing is known may be tried after this wait */
#define KNOWN_US 2000000u /* how long a value that a candidate told is used */
/* a decode worker tells each second: one that is silent for this long has no estimate */
#define SILENT_US 3500000u
#define SOONER_US 500000u /* the least gain that is worth leaving for */
/* for the link to a candidate, or that candidate's link to the router, to come up */
#define LINK_WAIT_US 3000000u
#define HINT_MIN_US 20000u /* shortest time before a candidate that denied is asked again */

/* --- targets ------------------------------------------------------------- */

struct decode_target *target_get(struct prefill *s, const char *name, uint64_t epoch)
{
	list_each(it, &s->targets) {
		struct decode_target *t = list_entry(it, struct decode_target, node);
		if (t->epoch == epoch && strcmp(t->name, name) == 0) {
			t->refs++;
			return t;
		}
	}
	struct decode_target *t = mem_zalloc(sizeof *t);
	snprintf(t->name, sizeof t->name, "%s", name);
	t->epoch = epoch;
	t->refs = 1;
	struct peer *p = chan_find(svc_chan(s->w->svc), name, TAG_WORKER);
	t->peer = p && peer_epoch(p) == epoch ? p : NULL;
	list_push_back(&s->targets, &t->node);
	return t;
}

static void target_put(struct decode_target *t)
{
	if (--t->refs)
		return;
	list_remove(&t->node);
	free(t);
}

void reserve_link(struct prefill *s, struct peer *p, int up)
{
	list_each(it, &s->targets) {
		struct decode_target *t = list_entry(it, struct decode_target, node);
		if (!up && t->peer == p) {
			t->peer = NULL;
			t->ended_in_order = peer_said_goodbye(p);
		} else if (up && strcmp(t->name, peer_name(p)) == 0 && t->epoch == peer_epoch(p))
			t->peer = p;
	}
	stage_soon(s, SOON_PLACE);
}

/* --- parked -------------------------------------------------------------- */

static void park(struct job *j)
{
	struct prefill *s = prefill_of(j->w);
	if (!list_empty(&j->wait))
		return;
	struct list *at = s->parked.prev;
	while (at != &s->parked && list_entry(at, struct job, wait)->run.seq > j->run.seq)
		at = at->prev;
	list_push_front(at, &j->wait); /* behind `at` */
	j->w->stats.parked++;
	log_req(LOG_DEBUG, &j->run.req.id, "parked", "attempt=%u candidates=%u", j->run.req.attempt,
	        j->reserve.n);
}

static int may_ask_candidate(const struct prefill *s, const struct candidate *c, uint64_t now)
{
	return !c->closed && c->target->peer && c->target->inflight < s->w->conf.max_inflight_prefill &&
	       now >= c->not_before_us;
}

static int any_room(const struct prefill *s)
{
	list_each(it, &s->targets) {
		const struct decode_target *t = list_entry(it, struct decode_target, node);
		if (t->peer && t->inflight < s->w->conf.max_inflight_prefill)
			return 1;
	}
	return 0;
}

void reserve_parked(struct prefill *s)
{
	uint64_t now = clock_us();
	list_each_safe(it, nx, &s->parked) {
		struct job *j = list_entry(it, struct job, wait);
		if (!any_room(s))
			return;
		for (uint32_t i = 0; i < j->reserve.n; i++)
			if (may_ask_candidate(s, &j->reserve.candidate[i], now)) {
				job_step(j, JE_CHECK);
				break;
			}
	}
}

/* --- asking -------------------------------------------------------------- */

static void close_candidate(struct job *j, struct candidate *c, Pds__Fault fault, const char *text)
{
	c->closed = 1;
	j->reserve.why_fault = fault;
	int is_its = fault == PDS__FAULT__FAULT_INTERNAL || fault == PDS__FAULT__FAULT_DRAINING;
	j->reserve.why_blame = is_its ? c->target->name : NULL;
	snprintf(j->reserve.why, sizeof j->reserve.why, "%s", text);
}

void reserve_skip(struct job *j, struct candidate *c, const char *why)
{
	close_candidate(j, c, PDS__FAULT__FAULT_PEER_LOST, why);
}

static int ask_candidate(struct job *j, struct candidate *c)
{
	struct job_reserve *r = &j->reserve;
	struct decode_target *t = c->target;
	Pds__Reserve m = PDS__RESERVE__INIT;
	Pds__Request request;
	Pds__Sampling sampling;
	struct msg_head h;
	request_copy_fill(&j->run.req, &request, &sampling);
	m.request = &request;
	m.router = j->run.req.router;
	m.router_epoch = j->run.req.router_epoch;
	m.messager = (char *)j->w->conf.messager;
	request_copy_head(&j->run.req, &h);
	/* taken before the send: the answer may be on its way when the call returns */
	uint64_t now = clock_us();
	if (svc_send(j->w->svc, t->peer, MSG_KV_RESERVE, &h, &m.base) < 0) {
		close_candidate(j, c, PDS__FAULT__FAULT_OVERLOADED,
		                "the link to the decode worker is full");
		return 0;
	}
	list_remove(&j->wait); /* parked no more */
	r->asked = c;
	r->inflight = t;
	r->asked_us = now;
	r->queued_us = 0;
	r->room_at_us = ROOM_AT_UNKNOWN;
	t->inflight++;
	return 1;
}

/* A decode worker that ended in order gave the attempt back; it is not lost. */
Pds__Fault reserve_gone_fault(const struct decode_target *t)
{
	return t->ended_in_order ? PDS__FAULT__FAULT_DRAINING : PDS__FAULT__FAULT_PEER_LOST;
}

/* 1: the link to the candidate is awaited, before the next one is considered. A link to a later
 * life of that worker does not count. */
static int await_link(struct job *j, struct candidate *c, uint64_t now)
{
	struct peer *p = chan_find(svc_chan(j->w->svc), c->target->name, TAG_WORKER);
	if (c->target->ended_in_order || (p && peer_epoch(p) > c->target->epoch)) {
		close_candidate(j, c, reserve_gone_fault(c->target),
		                "every decode worker that was named is gone");
		return 0;
	}
	if (!c->since_us)
		c->since_us = now;
	if (now - c->since_us <= LINK_WAIT_US)
		return 1;
	close_candidate(j, c, PDS__FAULT__FAULT_PEER_LOST,
	                "the link to the decode worker does not come up");
	return 0;
}

enum reserve_verdict reserve_place(struct job *j)
{
	uint64_t now = clock_us();
	int open = 0;
	for (uint32_t i = 0; i < j->reserve.n; i++) {
		struct candidate *c = &j->reserve.candidate[i];
		if (c->closed)
			continue;
		if (!c->target->peer) {
			if (!await_link(j, c, now))
				continue;
			open = 1;
			break;
		}
		c->since_us = 0;
		if (may_ask_candidate(prefill_of(j->w), c, now) && ask_candidate(j, c))
			return RESERVE_ASKED;
		open |= !c->closed;
	}
	if (!open)
		return RESERVE_NONE_LEFT;
	park(j);
	return RESERVE_MUST_WAIT;
}

struct worker_failure reserve_failure(const struct job *j)
{
	const struct job_reserve *r = &j->reserve;
	return (struct worker_failure){
		.fault = r->why_fault, .retry = 1, .text = r->why, .blame = r->why_blame};
}

void reserve_uncount(struct job *j)
{
	if (!j->reserve.inflight)
		return;
	j->reserve.inflight->inflight--;
	j->reserve.inflight = NULL;
	stage_soon(prefill_of(j->w), SOON_PLACE);
}

void reserve_cancel(struct job *j, const char *why)
{
	struct peer *p = job_decode(j);
	if (p) {
		Pds__Cancel c = PDS__CANCEL__INIT;
		struct msg_head h;
		request_copy_head(&j->run.req, &h);
		c.reason = (char *)why;
		svc_send(j->w->svc, p, MSG_REQUEST_CANCEL, &h, &c.base);
	}
	j->reserve.asked = NULL;
	reserve_uncount(j);
}

void reserve_close(struct job *j, Pds__Fault fault, const char *text)
{
	close_candidate(j, j->reserve.asked, fault, text);
	reserve_cancel(j, "another decode worker is asked");
}

void reserve_fini(struct job *j)
{
	reserve_uncount(j);
	for (uint32_t i = 0; i < j->reserve.n; i++)
		target_put(j->reserve.candidate[i].target);
	free(j->reserve.candidate);
}

/* --- answers ------------------------------------------------------------- */

/* For a new reservation; 0: there is room now. */
static void note_room(struct decode_target *t, uint64_t at_us, uint64_t now)
{
	t->told_us = now;
	t->room_at_us = at_us;
}

void reserve_queued(struct job *j, const Pds__Queued *m)
{
	struct decode_target *t = j->reserve.asked->target;
	uint64_t now = clock_us();
	int again = j->reserve.queued_us != 0;
	j->reserve.queued_us = now;
	j->reserve.asked->routerless_us = 0; /* it has the link, or has it again */
	j->reserve.room_at_us = m->estimate_us ? now + m->estimate_us : ROOM_AT_UNKNOWN;
	/* a later reservation waits at least as long */
	if (!again || j->reserve.room_at_us >= t->room_at_us)
		note_room(t, j->reserve.room_at_us, now);
	log_req(again ? LOG_DEBUG : LOG_INFO, &j->run.req.id, "reserve_queued",
	        "decode=%s position=%u estimate_us=%llu", t->name, m->position,
	        (unsigned long long)m->estimate_us);
}

/* It has no link to the router, and has had none for as long as a link is awaited. */
static int is_routerless(struct candidate *c, const Pds__Deny *m)
{
	uint64_t now = clock_us();
	if (m->fault != PDS__FAULT__FAULT_PEER_LOST)
		return 0;
	if (!c->routerless_us)
		c->routerless_us = now;
	return now - c->routerless_us > LINK_WAIT_US;
}

/* A candidate that gave a hint may be asked again after that time, if the deadline allows. */
void reserve_denied(struct job *j, const Pds__Deny *m)
{
	struct candidate *c = j->reserve.asked;
	uint64_t wait = m->retry_after_us && m->retry_after_us < HINT_MIN_US ? HINT_MIN_US
	                                                                     : m->retry_after_us;
	if (wait && m->fault != PDS__FAULT__FAULT_PEER_LOST) /* which is no word about room */
		note_room(c->target, clock_us() + wait, clock_us());
	j->reserve.asked = NULL;
	reserve_uncount(j);
	j->w->stats.denied++;
	log_req(LOG_INFO, &j->run.req.id, "reserve_denied",
	        "attempt=%u decode=%s fault=%d retry_after_us=%llu text=%s", j->run.req.attempt,
	        c->target->name, m->fault, (unsigned long long)m->retry_after_us, log_quote(m->text));
	if (wait && (!j->reserve.room_after_us || wait < j->reserve.room_after_us))
		j->reserve.room_after_us = wait;
	if (wait && wait < clock_left_us(j->run.req.deadline_us) && !is_routerless(c, m))
		c->not_before_us = clock_us() + wait;
	else
		close_candidate(j, c, m->fault, m->text);
}

static int grant_fits(const struct job *j, const Pds__Grant *g)
{
	uint32_t bt = j->w->info->kv.block_tokens, n = j->run.req.n_tokens;
	return g->lease->epoch == j->reserve.asked->target->epoch && g->cached_tokens % bt == 0 &&
	       g->cached_tokens < n &&
	       g->n_blocks == worker_blocks_for(j->w, n) - g->cached_tokens / bt &&
	       g->n_blocks <= RING_BLOCKS_MAX;
}

int reserve_granted(struct job *j, const Pds__Grant *g)
{
	struct job_lease *l = &j->lease;
	if (!grant_fits(j, g))
		return 0;
	l->id = *g->lease;
	l->length_us = g->lease_us;
	stage_leased(prefill_of(j->w), g->lease_us);
	l->cached_tokens = g->cached_tokens;
	l->n_dst = (uint32_t)g->n_blocks;
	l->dst = mem_array(l->n_dst, sizeof *l->dst);
	memcpy(l->dst, g->blocks, l->n_dst * sizeof *l->dst);
	uint64_t now = clock_us();
	j->reserve_us = now - j->reserve.asked_us;
	if (!j->reserve.queued_us)
		note_room(j->reserve.asked->target, 0, now);
	stat_observe_us(&j->w->stats.reserve_seconds, j->reserve_us);
	return 1;
}

static uint64_t from_now(uint64_t at_us, uint64_t now)
{
	return at_us == ROOM_AT_UNKNOWN ? ROOM_AT_UNKNOWN : at_us > now ? at_us - now : 0;
}

/* Time until the asked candidate grants. */
static uint64_t rest_here(const struct job *j, uint64_t now)
{
	int told = j->reserve.queued_us && now - j->reserve.queued_us < SILENT_US;
	return told ? from_now(j->reserve.room_at_us, now) : ROOM_AT_UNKNOWN;
}

/* How long a new reservation would wait there. Not known if the worker told nothing lately: it may
 * have room, and is tried when the job has waited for LATE_US. */
static uint64_t wait_there(const struct job *j, const struct decode_target *t, uint64_t now)
{
	int known = t->told_us && now - t->told_us < KNOWN_US;
	uint64_t us = from_now(t->room_at_us, now);
	if (known || (t->told_us && us && us != ROOM_AT_UNKNOWN))
		return us;
	return now - j->reserve.asked_us > LATE_US ? 0 : ROOM_AT_UNKNOWN;
}

/* The candidate that is expected to grant much sooner; NULL: none is. */
static struct candidate *sooner(const struct job *j, uint64_t now)
{
	uint64_t least = rest_here(j, now) / 2;
	struct candidate *best = NULL;
	for (uint32_t i = 0; i < j->reserve.n; i++) {
		struct candidate *c = &j->reserve.candidate[i];
		if (c == j->reserve.asked || !may_ask_candidate(prefill_of(j->w), c, now))
			continue;
		uint64_t us = wait_there(j, c->target, now);
		if (us == ROOM_AT_UNKNOWN || us + SOONER_US >= least)
			continue;
		least = us + SOONER_US;
		best = c;
	}
	return best;
}

int reserve_move(struct job *j)
{
	struct candidate *to = sooner(j, clock_us());
	if (!to)
		return 1;
	close_candidate(j, j->reserve.asked, PDS__FAULT__FAULT_NO_ROOM, "no decode worker has room");
	reserve_cancel(j, "another decode worker has room sooner");
	return ask_candidate(j, to);
}
