/* reserve.c - the way to a grant: which candidate is asked when, and who is parked until then. All
 * of it runs on the loop's thread.
 *
 * A job asks one candidate at a time, the first in its order that may be asked now: its link is up,
 * it has not been given up in this attempt, the time that it hinted at has come, and fewer than
 * max_inflight_prefill of our requests are in flight there. Only a link that is not up yet holds
 * back those behind it in the order, for LINK_WAIT_US. Is there none, the job is parked, holding
 * nothing; who is parked longest is asked for first as soon as a place, a link or a time has come.
 * So a decode worker that is slow or full keeps only those who want no other. A candidate is given
 * up when it denies without a hint, is gone, or is left for one that is expected to grant much
 * sooner; after the last the attempt fails, and the router places it again. Nothing here waits past
 * the deadline.
 *
 * Whoever leaves a queue does not come back to it, so a job leaves only where the wait elsewhere is
 * less than half of what is left here. Each second a decode worker tells those who wait when it
 * expects to have room. For the other candidates counts what they last told any job; one that told
 * nothing lately may have room, and is tried after LATE_US. */
#include "prefill.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

#define LATE_US 2000000u  /* may be tried after so long here, if nothing is known of it */
#define KNOWN_US 2000000u /* how long what a candidate told is used */
/* it tells each second: one that is silent for so long has no estimate */
#define SILENT_US 3500000u
#define SOONER_US 500000u     /* the least gain that is worth leaving for */
#define LINK_WAIT_US 3000000u /* for the link to a candidate to come up */
#define HINT_MIN_US 20000u    /* whatever a denial says, it is not asked again before */

/* --- targets ------------------------------------------------------------- */

struct target *target_get(struct prefill *s, const char *name, uint64_t epoch)
{
	list_each(it, &s->targets) {
		struct target *t = list_entry(it, struct target, node);
		if (t->epoch == epoch && strcmp(t->name, name) == 0) {
			t->refs++;
			return t;
		}
	}
	struct target *t = mem_zalloc(sizeof *t);
	snprintf(t->name, sizeof t->name, "%s", name);
	t->epoch = epoch;
	t->refs = 1;
	struct peer *p = chan_find(svc_chan(s->w->svc), name);
	t->peer = p && peer_is_up(p) && peer_epoch(p) == epoch ? p : NULL;
	list_push_back(&s->targets, &t->node);
	return t;
}

void target_put(struct target *t)
{
	if (--t->refs)
		return;
	list_remove(&t->node);
	free(t);
}

void reserve_link(struct prefill *s, struct peer *p, int up)
{
	list_each(it, &s->targets) {
		struct target *t = list_entry(it, struct target, node);
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
	if (j->parked)
		return;
	struct list *at = s->parked.prev;
	while (at != &s->parked && list_entry(at, struct job, wait)->seq > j->seq)
		at = at->prev;
	list_push_front(at, &j->wait); /* behind `at` */
	j->parked = 1;
	gate_stalled(j);
	stat_add(svc_stats(j->w->svc), WS_PARKED, 1);
	log_req(LOG_DEBUG, &j->req.id, "parked", "attempt=%u candidates=%u", j->req.attempt,
	        j->n_candidates);
}

static void unpark(struct job *j)
{
	if (j->parked)
		list_remove(&j->wait);
	j->parked = 0;
}

static int may_ask(const struct prefill *s, const struct candidate *c, uint64_t now)
{
	return !c->closed && c->target->peer && c->target->inflight < s->max_inflight &&
	       now >= c->not_before_us;
}

static int any_room(const struct prefill *s)
{
	list_each(it, &s->targets) {
		const struct target *t = list_entry(it, struct target, node);
		if (t->peer && t->inflight < s->max_inflight)
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
		for (uint32_t i = 0; i < j->n_candidates; i++)
			if (may_ask(s, &j->candidate[i], now)) {
				reserve_place(j);
				break;
			}
	}
}

/* --- asking -------------------------------------------------------------- */

static void close_candidate(struct job *j, struct candidate *c, Pds__Fault fault, const char *text)
{
	c->closed = 1;
	j->why_fault = fault;
	j->why_blame = fault == PDS__FAULT__FAULT_INTERNAL ? c->target->name : NULL;
	snprintf(j->why, sizeof j->why, "%s", text);
}

static int ask(struct job *j, uint32_t at)
{
	struct target *t = j->candidate[at].target;
	Pds__Reserve m = PDS__RESERVE__INIT;
	Pds__Request r;
	Pds__Sampling s;
	struct msg_head h;
	request_copy_fill(&j->req, &r, &s);
	m.request = &r;
	m.router = j->req.router;
	m.router_epoch = j->req.router_epoch;
	job_head(j, &h);
	/* before it leaves: the answer may be under way when the call returns */
	uint64_t now = clock_us();
	if (svc_send(j->w->svc, t->peer, MSG_KV_RESERVE, &h, &m.base) < 0) {
		close_candidate(j, &j->candidate[at], PDS__FAULT__FAULT_OVERLOADED,
		                "the link to the decode worker is full");
		return 0;
	}
	unpark(j);
	j->at = at;
	j->asked = j->counted = 1;
	j->asked_us = now;
	j->queued_us = 0;
	j->room_at_us = RESERVE_FAR;
	t->inflight++;
	return 1;
}

/* Of one that ended in order the attempt is given back, not lost. */
Pds__Fault reserve_gone_fault(const struct target *t)
{
	return t->ended_in_order ? PDS__FAULT__FAULT_DRAINING : PDS__FAULT__FAULT_PEER_LOST;
}

/* The link to a candidate in our order is awaited for a while before the next is thought of; a
 * later life of it will not be it. */
static int await_link(struct job *j, struct candidate *c, uint64_t now)
{
	struct peer *p = chan_find(svc_chan(j->w->svc), c->target->name);
	if (c->target->ended_in_order || (p && peer_is_up(p) && peer_epoch(p) > c->target->epoch)) {
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

void reserve_place(struct job *j)
{
	struct prefill *s = prefill_of(j->w);
	uint64_t now = clock_us();
	int open = 0;
	for (uint32_t i = 0; i < j->n_candidates; i++) {
		struct candidate *c = &j->candidate[i];
		if (c->closed)
			continue;
		if (!c->target->peer) {
			if (!await_link(j, c, now))
				continue;
			open = 1;
			break;
		}
		c->since_us = 0;
		if (may_ask(s, c, now) && ask(j, i))
			return;
		open |= !c->closed;
	}
	if (open)
		park(j);
	else
		job_fail_by(j, j->why_fault, 1, j->why, j->why_blame);
}

void reserve_uncount(struct job *j)
{
	if (!j->counted)
		return;
	j->counted = 0;
	j->candidate[j->at].target->inflight--;
	stage_soon(prefill_of(j->w), SOON_PLACE);
}

void reserve_cancel(struct job *j, const char *why)
{
	struct peer *p = job_decode(j);
	if (j->asked && p) {
		Pds__Cancel c = PDS__CANCEL__INIT;
		struct msg_head h;
		job_head(j, &h);
		c.reason = (char *)why;
		svc_send(j->w->svc, p, MSG_REQUEST_CANCEL, &h, &c.base);
	}
	j->asked = 0;
	reserve_uncount(j);
}

void reserve_close(struct job *j, Pds__Fault fault, const char *text)
{
	close_candidate(j, &j->candidate[j->at], fault, text);
	reserve_cancel(j, "another decode worker is asked");
	reserve_place(j);
}

void reserve_leave(struct job *j)
{
	unpark(j);
	reserve_uncount(j);
	for (uint32_t i = 0; i < j->n_candidates; i++)
		target_put(j->candidate[i].target);
	free(j->candidate);
	j->candidate = NULL;
	j->n_candidates = 0;
}

/* --- answers ------------------------------------------------------------- */

/* For a new reservation; 0: there is room now. */
static void note_room(struct target *t, uint64_t at_us, uint64_t now)
{
	t->told_us = now;
	t->room_at_us = at_us;
}

void reserve_queued(struct job *j, const Pds__Queued *m)
{
	struct target *t = j->candidate[j->at].target;
	uint64_t now = clock_us();
	int again = j->queued_us != 0;
	j->queued_us = now;
	j->room_at_us = m->estimate_us ? now + m->estimate_us : RESERVE_FAR;
	/* who comes later waits at least for as long */
	if (!again || j->room_at_us >= t->room_at_us)
		note_room(t, j->room_at_us, now);
	log_req(again ? LOG_DEBUG : LOG_INFO, &j->req.id, "reserve_queued",
	        "decode=%s position=%u estimate_us=%llu", t->name, m->position,
	        (unsigned long long)m->estimate_us);
	reserve_check(j, now);
}

/* With a hint the candidate stays one, from then on: no use if that is past the deadline. */
void reserve_denied(struct job *j, const Pds__Deny *m)
{
	struct candidate *c = &j->candidate[j->at];
	uint64_t wait = m->retry_after_us && m->retry_after_us < HINT_MIN_US ? HINT_MIN_US
	                                                                     : m->retry_after_us;
	if (wait)
		note_room(c->target, clock_us() + wait, clock_us());
	j->asked = 0;
	reserve_uncount(j);
	stat_add(svc_stats(j->w->svc), WS_DENIED, 1);
	log_req(LOG_INFO, &j->req.id, "reserve_denied",
	        "attempt=%u decode=%s fault=%d retry_after_us=%llu text=%s", j->req.attempt,
	        c->target->name, m->fault, (unsigned long long)m->retry_after_us, log_quote(m->text));
	if (wait && (!j->room_after_us || wait < j->room_after_us))
		j->room_after_us = wait;
	if (wait && wait < clock_left_us(j->req.deadline_us))
		c->not_before_us = clock_us() + wait;
	else
		close_candidate(j, c, m->fault, m->text);
	reserve_place(j);
}

static int grant_fits(const struct job *j, const Pds__Grant *g)
{
	uint32_t bt = j->w->info->kv.block_tokens, n = j->req.n_tokens;
	return g->lease->epoch == j->candidate[j->at].target->epoch && g->cached_tokens % bt == 0 &&
	       g->cached_tokens < n &&
	       g->n_blocks == worker_blocks_for(j->w, n) - g->cached_tokens / bt &&
	       g->n_blocks <= RING_BLOCKS_MAX;
}

void reserve_granted(struct job *j, const Pds__Grant *g, const char *from)
{
	if (j->state != JOB_RESERVE || !j->asked || strcmp(from, job_decode_name(j)) != 0)
		return; /* repeated, or from a candidate that was given up (and cancelled) */
	if (!grant_fits(j, g)) {
		reserve_close(j, PDS__FAULT__FAULT_INTERNAL,
		              "the decode worker's grant does not fit the prompt");
		return;
	}
	j->lease = *g->lease;
	j->leased = 1;
	j->lease_us = g->lease_us;
	stage_leased(prefill_of(j->w), g->lease_us);
	j->d_cached = g->cached_tokens;
	j->n_dst = (uint32_t)g->n_blocks;
	j->dst = mem_array(j->n_dst, sizeof *j->dst);
	memcpy(j->dst, g->blocks, j->n_dst * sizeof *j->dst);
	j->granted_us = clock_us();
	j->reserve_us = j->granted_us - j->asked_us;
	if (!j->queued_us)
		note_room(j->candidate[j->at].target, 0, j->granted_us);
	stat_observe_us(svc_stats(j->w->svc), WS_RESERVE_SECONDS, j->reserve_us);
	if (!share_wait(j, j->probed))
		job_take(j);
}

static uint64_t from_now(uint64_t at_us, uint64_t now)
{
	return at_us == RESERVE_FAR ? RESERVE_FAR : at_us > now ? at_us - now : 0;
}

/* How long it will be until the candidate that is asked grants. */
static uint64_t rest_here(const struct job *j, uint64_t now)
{
	int told = j->queued_us && now - j->queued_us < SILENT_US;
	return told ? from_now(j->room_at_us, now) : RESERVE_FAR;
}

/* How long a new reservation would wait there. Of one that told nothing lately it is not known:
 * it may have room, and is tried when the job has waited for a while. */
static uint64_t wait_there(const struct job *j, const struct target *t, uint64_t now)
{
	int known = t->told_us && now - t->told_us < KNOWN_US;
	uint64_t us = from_now(t->room_at_us, now);
	if (known || (t->told_us && us && us != RESERVE_FAR))
		return us;
	return now - j->asked_us > LATE_US ? 0 : RESERVE_FAR;
}

/* The candidate to go to; the present one if there is none that is much better. */
static uint32_t sooner(const struct job *j, uint64_t now)
{
	uint64_t least = rest_here(j, now) / 2;
	uint32_t best = j->at;
	for (uint32_t i = 0; i < j->n_candidates; i++) {
		const struct candidate *c = &j->candidate[i];
		if (i == j->at || !may_ask(prefill_of(j->w), c, now))
			continue;
		uint64_t us = wait_there(j, c->target, now);
		if (us == RESERVE_FAR || us + SOONER_US >= least)
			continue;
		least = us + SOONER_US;
		best = i;
	}
	return best;
}

void reserve_check(struct job *j, uint64_t now)
{
	if (!j->asked) {
		reserve_place(j);
		return;
	}
	uint32_t to = sooner(j, now);
	if (to == j->at)
		return;
	close_candidate(j, &j->candidate[j->at], PDS__FAULT__FAULT_NO_ROOM,
	                "no decode worker has room");
	reserve_cancel(j, "another decode worker has room sooner");
	if (!ask(j, to))
		reserve_place(j);
}
