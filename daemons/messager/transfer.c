/* transfer.c - the life of one transfer: see mover.h for the drawing, and the messager process of
 * the model for the rules.
 *
 * States have a step function each, in one table with the states that may follow. A step says
 * whether the transfer moved, stays, or is gone. Ends: transfer_drop (quietly) or transfer_fail (P
 * is told, with a sentence). Nothing here is fatal but a wrong transition, which is a bug. */
#include "copy.h"
#include "mover_priv.h"
#include "util/check.h"
#include "util/mem.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum step { STEP_STAY, STEP_MOVED, STEP_GONE };

static enum step step_found(struct transfer *t), step_asked(struct transfer *t),
	step_open(struct transfer *t), step_marked(struct transfer *t), step_posted(struct transfer *t),
	step_acked(struct transfer *t);

#define TO(s) (1u << TRANSFER_##s)
static const struct {
	unsigned next; /* states that may follow */
	enum step (*step)(struct transfer *t);
	enum ring_state word; /* what the slot must say meanwhile */
} states[TRANSFER_STATE_COUNT] = {
	[TRANSFER_FOUND] = {TO(ASKED) | TO(MARKED) | TO(CLOSED), step_found, RING_PENDING},
	[TRANSFER_ASKED] = {TO(OPEN) | TO(CLOSED), step_asked, RING_PENDING},
	[TRANSFER_OPEN] = {TO(MARKED) | TO(CLOSED), step_open, RING_PENDING},
	[TRANSFER_MARKED] = {TO(POSTED) | TO(CLOSED), step_marked, RING_SENT},
	[TRANSFER_POSTED] = {TO(ACKED) | TO(MARKED) | TO(CLOSED), step_posted, RING_SENT},
	[TRANSFER_ACKED] = {TO(CLOSED), step_acked, RING_SENT},
	[TRANSFER_CLOSED] = {0, NULL, RING_FREE},
};

const char *transfer_state_name(enum transfer_state s)
{
	static const char *const names[] = {
#define X(name, text) [TRANSFER_##name] = text,
		TRANSFER_STATES(X)
#undef X
	};
	CHECK(s < TRANSFER_STATE_COUNT);
	return names[s];
}

const char *transfer_end_name(enum transfer_end e)
{
	static const char *const names[] = {
#define X(name, text) [END_##name] = text,
		TRANSFER_ENDS(X)
#undef X
	};
	CHECK(e < END_COUNT);
	return names[e];
}

static void transfer_enter(struct transfer *t, enum transfer_state s)
{
	if (!(states[t->state].next & 1u << s))
		PANIC("transfer in state %s cannot become %s", transfer_state_name(t->state),
		      transfer_state_name(s));
	log_req(LOG_DEBUG, &t->head.req, "transfer_state",
	        "from=%s to=%s worker=%s slot=%u generation=%" PRIu64, transfer_state_name(t->state),
	        transfer_state_name(s), t->p->name, t->slot, t->gen);
	t->state = s;
	t->since_us = t->m->now_us;
}

/* --- ends ---------------------------------------------------------------- */

static void transfer_report(const struct transfer *t, enum transfer_end end, const char *why)
{
	struct transfer_report r = {.req = t->head.req,
	                            .end = end,
	                            .bytes = t->bytes,
	                            .copy_us = t->copy_us,
	                            .tail_us = t->tail_us,
	                            .life_us = t->m->now_us - t->found_us,
	                            .pieces = t->pieces,
	                            .runs = t->runs};
	if (end == END_SENT)
		log_req(LOG_INFO, &r.req, "transfer_done",
		        "attempt=%u from=%s to=%s bytes=%" PRIu64 " copy_us=%" PRIu64 " tail_us=%" PRIu64
		        " life_us=%" PRIu64 " pieces=%u coalesced=%u again=%d",
		        t->head.attempt, t->p->name, t->lease.decode, r.bytes, r.copy_us, r.tail_us,
		        r.life_us, r.pieces, r.runs, t->was_sent);
	else
		log_req(LOG_INFO, &r.req, "transfer_ended",
		        "attempt=%u from=%s to=%s end=%s in=%s bytes=%" PRIu64 " why=%s", t->head.attempt,
		        t->p->name, log_quote(t->lease.decode), transfer_end_name(end),
		        transfer_state_name(t->state), r.bytes, log_quote(why));
	if (t->m->out.ended)
		t->m->out.ended(t->m->out.arg, &r);
}

static void transfer_free(struct transfer *t)
{
	free(t->src);
	free(t->dst);
	free(t->dst_gen);
	free(t->sent);
	free(t->seen);
	free(t);
}

void transfer_drop(struct transfer *t, enum transfer_end end, const char *why)
{
	struct slot_note *n = &t->p->notes[t->slot];
	transfer_report(t, end, why);
	transfer_enter(t, TRANSFER_CLOSED);
	CHECK(n->transfer == t);
	n->transfer = NULL;
	list_remove(&t->node);
	t->m->n_transfers--;
	if (t->m->cut == t)
		t->m->cut = NULL;
	transfer_free(t);
}

__attribute__((format(printf, 4, 5))) static enum step transfer_fail(struct transfer *t,
                                                                     enum transfer_end end,
                                                                     Pds__Fault fault,
                                                                     const char *fmt, ...)
{
	char text[384];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	struct mover *m = t->m;
	struct mover_worker *p = t->p;
	uint32_t slot = t->slot;
	transfer_drop(t, end, text);
	note_fail(m, p, slot, fault, text);
	return STEP_GONE;
}

void transfer_peer_gone(struct transfer *t, const char *who)
{
	transfer_fail(t, END_PEER_GONE, PDS__FAULT__FAULT_PEER_LOST,
	              "%s has ended while its KV was on the way", who);
}

/* --- a new transfer ---------------------------------------------------------- */

static struct transfer *transfer_new(struct mover *m, struct mover_worker *p, uint32_t slot,
                                     uint64_t gen)
{
	const struct ring_transfer *r = &m->scratch;
	struct transfer *t = mem_zalloc(sizeof *t);
	t->m = m;
	t->p = p;
	t->slot = slot;
	t->gen = gen;
	t->head = (struct msg_head){r->req, r->attempt, r->deadline_us};
	uint64_t last = m->now_us + TRANSFER_LIFE_MAX_US;
	if (t->head.deadline_us == 0 || t->head.deadline_us > last)
		t->head.deadline_us = last;
	t->lease = lease_key_of(r->decode, r->lease_id, r->lease_epoch, r->lease_generation);
	t->first_token = r->first_token;
	t->tokens = r->tokens;
	t->blocks = r->blocks;
	t->src = mem_array(t->blocks, sizeof *t->src);
	t->dst = mem_array(t->blocks, sizeof *t->dst);
	memcpy(t->src, r->src, t->blocks * sizeof *t->src);
	memcpy(t->dst, r->dst, t->blocks * sizeof *t->dst);
	t->sent = mem_array(p->layout.layers, sizeof *t->sent);
	t->seen = mem_array(p->layout.layers, sizeof *t->seen);
	t->found_us = t->since_us = t->progress_us = m->now_us;
	t->state = TRANSFER_FOUND;
	return t;
}

static int lease_is_taken(struct mover *m, const struct mover_worker *p, const struct lease_key *k)
{
	struct transfer *other = mover_transfer_of_lease(m, p, k);
	uint64_t gen;
	if (!other)
		return 0;
	enum ring_state s = ring_peek(other->p->ring, other->slot, &gen);
	if (gen == other->gen && s == states[other->state].word)
		return 1;
	transfer_drop(other, END_CANCELLED, "cancelled; its lease has another transfer");
	return 0;
}

/* What P does not hear it does not hear: it gives such a transfer up by itself. */
static void say_seen(struct transfer *t)
{
	Pds__TransferSeen seen = PDS__TRANSFER_SEEN__INIT;
	seen.slot = t->slot;
	seen.generation = t->gen;
	mover_send(t->m, t->p->name, t->p->epoch, MSG_TRANSFER_SEEN, &t->head, &seen.base);
}

void transfer_found(struct mover *m, struct mover_worker *p, uint32_t slot, uint64_t gen,
                    enum ring_state state)
{
	const struct ring_transfer *r = &m->scratch;
	const struct lease_key key = lease_key_of(r->decode, r->lease_id, r->lease_epoch,
	                                          r->lease_generation);
	int taken = lease_is_taken(m, p, &key);
	struct transfer *t = transfer_new(m, p, slot, gen);
	p->notes[slot].transfer = t;
	p->notes[slot].head = t->head;
	list_push_back(&m->transfers, &t->node);
	m->n_transfers++;
	t->was_sent = state == RING_SENT;
	log_req(LOG_DEBUG, &t->head.req, "transfer_found",
	        "worker=%s slot=%u generation=%" PRIu64 " to=%s tokens=%u blocks=%u sent=%d", p->name,
	        slot, gen, log_quote(t->lease.decode), t->tokens, t->blocks, t->was_sent);
	if (r->want_seen)
		say_seen(t);
	if (taken)
		transfer_fail(t, END_MALFORMED, PDS__FAULT__FAULT_INTERNAL,
		              "ring slot %u of %s: lease %" PRIu64 " has a transfer already", slot, p->name,
		              key.id);
	else if (strcmp(t->lease.decode, p->name) == 0)
		transfer_fail(t, END_MALFORMED, PDS__FAULT__FAULT_INTERNAL,
		              "ring slot %u of %s: asks for a copy to itself", slot, p->name);
	else if (!t->was_sent && revoked_has(m->revoked, &key))
		transfer_fail(t, END_REVOKED, PDS__FAULT__FAULT_LEASE_LOST, "%s has revoked lease %" PRIu64,
		              t->lease.decode, key.id);
}

/* --- steps --------------------------------------------------------------- */

static int stalled(const struct transfer *t, uint64_t since_us)
{
	return t->m->now_us > since_us && t->m->now_us - since_us >= t->m->limits.stall_us;
}

static enum step fail_stalled(struct transfer *t, const char *for_what)
{
	return transfer_fail(t, END_STALLED, PDS__FAULT__FAULT_STALLED,
	                     "waited %" PRIu64 " ms for %s of %s (limit %" PRIu64 " ms)",
	                     (t->m->now_us - t->since_us) / 1000, for_what, t->lease.decode,
	                     t->m->limits.stall_us / 1000);
}

/* D's memory and both links are here. Both pools must be alike, and the transfer must fit them,
 * before anything is asked. */
static enum step ask(struct transfer *t, struct mover_worker *d)
{
	if (strcmp(t->p->layout_text, d->layout_text) != 0)
		return transfer_fail(t, END_MALFORMED, PDS__FAULT__FAULT_INTERNAL,
		                     "KV layouts differ: %s has %s, %s has %s", t->p->name,
		                     t->p->layout_text, d->name, d->layout_text);
	if (t->p->region.pool->by != d->region.pool->by)
		return transfer_fail(
			t, END_MALFORMED, PDS__FAULT__FAULT_INTERNAL,
			"KV of %s is memory of backend %s, of %s of %s: nothing copies between them",
			t->p->name, t->p->region.pool->by->name, d->name, d->region.pool->by->name);
	struct ring_transfer *r = &t->m->scratch;
	r->first_token = t->first_token;
	r->tokens = t->tokens;
	r->blocks = t->blocks;
	_Static_assert(sizeof r->decode == sizeof t->lease.decode, "both names have one size");
	memcpy(r->decode, t->lease.decode, sizeof r->decode);
	memcpy(r->src, t->src, t->blocks * sizeof *r->src);
	memcpy(r->dst, t->dst, t->blocks * sizeof *r->dst);
	if (ring_transfer_check(r, d->layout.block_tokens, t->p->region.blocks, d->region.blocks) < 0)
		return transfer_fail(
			t, END_MALFORMED, PDS__FAULT__FAULT_INTERNAL,
			"ring slot %u of %s: tokens %u to %u in %u blocks do not fit pools of %u "
			"and %u blocks of %u tokens",
			t->slot, t->p->name, t->first_token, t->tokens, t->blocks, t->p->region.blocks,
			d->region.blocks, d->layout.block_tokens);
	t->d = d;
	t->said = 0;
	transfer_enter(t, TRANSFER_ASKED);
	return STEP_MOVED;
}

/* While D is waited for, P computes: that is progress of P, for the others' sake. */
static void watch_worker(struct transfer *t)
{
	uint32_t done = ring_progress(t->p->ring, t->slot, 0, t->gen);
	if (done > t->watched) {
		t->watched = done;
		t->p->progress_us = t->m->now_us;
	}
}

static enum step step_found(struct transfer *t)
{
	struct mover_worker *d = mover_find(t->m, t->lease.decode);
	if (d && d->epoch > t->lease.epoch)
		return transfer_fail(t, END_PEER_GONE, PDS__FAULT__FAULT_PEER_LOST,
		                     "%s has restarted: its epoch is %" PRIu64 ", the lease's %" PRIu64,
		                     t->lease.decode, d->epoch, t->lease.epoch);
	if (t->was_sent) {
		transfer_enter(t, TRANSFER_MARKED);
		return STEP_MOVED;
	}
	watch_worker(t);
	int mapped = d && d->epoch == t->lease.epoch;
	if (mapped && mover_is_linked(t->m, d->name, d->epoch) &&
	    mover_is_linked(t->m, t->p->name, t->p->epoch))
		return ask(t, d);
	if (!stalled(t, t->since_us))
		return STEP_STAY;
	return fail_stalled(t, mapped ? "a link" : "the memory");
}

static enum step step_asked(struct transfer *t)
{
	watch_worker(t);
	if (!t->said) {
		Pds__Lease lease;
		Pds__LeaseOpen open = PDS__LEASE_OPEN__INIT;
		mover_lease_fill(&lease, &t->lease);
		open.lease = &lease;
		open.prefill = t->p->name;
		open.prefill_epoch = t->p->epoch;
		t->said = mover_send(t->m, t->lease.decode, t->lease.epoch, MSG_LEASE_OPEN, &t->head,
		                     &open.base) == 0;
	}
	return stalled(t, t->since_us) ? fail_stalled(t, "the answer to LEASE_OPEN") : STEP_STAY;
}

/* Blocks that may be sent when so many tokens are computed: full ones, and the last one once
 * nothing of it is missing. */
static uint32_t blocks_ready(const struct transfer *t, uint32_t tokens)
{
	if (tokens >= t->tokens)
		return t->blocks;
	return tokens <= t->first_token ? 0 : (tokens - t->first_token) / t->p->layout.block_tokens;
}

/* Reads the board. 1 when all layers of all tokens are computed. */
static int look(struct transfer *t)
{
	int all = 1;
	for (uint32_t l = 0; l < t->p->layout.layers; l++) {
		uint32_t done = ring_progress(t->p->ring, t->slot, l, t->gen);
		if (done > t->tokens)
			done = t->tokens;
		if (done > t->seen[l]) {
			t->seen[l] = done;
			t->progress_us = t->p->progress_us = t->m->now_us;
		}
		all &= t->seen[l] == t->tokens;
	}
	if (all && !t->computed_us)
		t->computed_us = t->m->now_us;
	return all;
}

/* Begins to copy what is computed and not yet sent, within the turn's budget. 1 when nothing of
 * that is left; ERR_STALE: D has reused the block of *ret_stale; ERR_IO: the device; ERR_CLOSED:
 * it is lost. */
static int copy_begin(struct transfer *t, struct copy_sum *sum, uint32_t *ret_stale,
                      struct err *err)
{
	struct mover *m = t->m;
	const struct copy_pools pools = {&t->p->layout,       t->p->region.pool,
	                                 t->d->region.pool,   t->p->region.blocks,
	                                 t->d->region.blocks, t->d->region.generations};
	for (uint32_t l = 0; l < t->p->layout.layers; l++) {
		uint32_t ready = blocks_ready(t, t->seen[l]), from = t->sent[l], n;
		if (from >= ready)
			continue;
		if (m->budget == 0)
			return 0;
		const struct copy_list list = {t->src + from, t->dst + from, t->dst_gen + from,
		                               ready - from};
		int r = copy_layer(&pools, l, &list, m->budget, sum, &n, err);
		size_t bytes = n * t->p->layout.piece_bytes[l];
		m->budget -= bytes < m->budget ? bytes : m->budget;
		m->bytes += bytes;
		t->bytes += bytes;
		t->pieces += n;
		t->sent[l] += n;
		*ret_stale = t->sent[l];
		if (r < 0 || t->sent[l] < ready)
			return r;
	}
	return 1;
}

/* The same, and no write is in flight on return. */
static int copy(struct transfer *t, uint32_t *ret_stale, struct err *err)
{
	struct copy_sum sum = {0};
	int r = copy_begin(t, &sum, ret_stale, err), waited = copy_wait(&sum, err);
	t->runs += sum.runs;
	return waited < 0 ? waited : r;
}

/* The lease ended at D without a revocation, which D owes its writer: D's fault. */
static enum step fail_reused(struct transfer *t, uint32_t at)
{
	uint64_t is = atomic_load_explicit(&t->d->region.generations[t->dst[at]], memory_order_relaxed);
	log_req(LOG_WARN, &t->head.req, "block_reused",
	        "worker=%s block=%u generation=%" PRIu64 " leased=%" PRIu64, t->lease.decode,
	        t->dst[at], is, t->dst_gen[at]);
	return transfer_fail(t, END_REVOKED, PDS__FAULT__FAULT_LEASE_LOST,
	                     "%s has reused block %u of lease %" PRIu64 ": its generation is %" PRIu64
	                     ", the lease's %" PRIu64,
	                     t->lease.decode, t->dst[at], t->lease.id, is, t->dst_gen[at]);
}

static enum step step_open(struct transfer *t)
{
	struct mover *m = t->m;
	int all = look(t);
	uint32_t stale = 0;
	uint64_t bytes = t->bytes, begin = m->out.now_us(m->out.arg);
	struct err err = {0};
	int done = copy(t, &stale, &err);
	uint64_t end = m->out.now_us(m->out.arg);
	if (t->bytes != bytes)
		t->copy_us += end - begin;
	if (done == ERR_CLOSED && m->out.lost)
		m->out.lost(m->out.arg, err.text);
	if (done == ERR_IO || done == ERR_CLOSED)
		return transfer_fail(t, END_COPY_FAILED, PDS__FAULT__FAULT_INTERNAL, "KV of %s to %s: %s",
		                     t->p->name, t->d->name, err.text);
	if (done < 0)
		return fail_reused(t, stale);
	if (!done) {
		m->more = 1;
		if (!m->cut)
			m->cut = t;
		return STEP_STAY;
	}
	if (!all)
		return STEP_STAY; /* transfer_waits says how long */
	t->tail_us = end - t->computed_us;
	if (ring_mark_sent(t->p->ring, t->slot, t->gen) < 0) {
		transfer_drop(t, END_CANCELLED, "cancelled by the prefill worker");
		return STEP_GONE;
	}
	transfer_enter(t, TRANSFER_MARKED);
	return STEP_MOVED;
}

static enum step step_marked(struct transfer *t)
{
	Pds__Lease lease;
	Pds__KvReady ready = PDS__KV_READY__INIT;
	mover_lease_fill(&lease, &t->lease);
	ready.lease = &lease;
	ready.prefill = t->p->name;
	ready.prefill_epoch = t->p->epoch;
	ready.bytes = t->bytes;
	ready.copy_us = t->copy_us;
	ready.tail_us = t->tail_us;
	if (mover_send(t->m, t->lease.decode, t->lease.epoch, MSG_KV_READY, &t->head, &ready.base) ==
	    0) {
		t->unlinked_us = 0;
		transfer_enter(t, TRANSFER_POSTED);
		return STEP_MOVED;
	}
	return stalled(t, t->since_us) ? fail_stalled(t, "the link") : STEP_STAY;
}

/* D's acknowledgement may take as long as the deadline lets it, but only over a link that is
 * there. */
static enum step step_posted(struct transfer *t)
{
	if (mover_is_linked(t->m, t->lease.decode, t->lease.epoch)) {
		t->unlinked_us = 0;
		return STEP_STAY;
	}
	if (!t->unlinked_us)
		t->unlinked_us = t->m->now_us;
	return stalled(t, t->unlinked_us) ? fail_stalled(t, "the link (KV_READY is not acknowledged)")
	                                  : STEP_STAY;
}

static enum step step_acked(struct transfer *t)
{
	Pds__KvSent sent = PDS__KV_SENT__INIT;
	sent.slot = t->slot;
	sent.generation = t->gen;
	if (mover_send(t->m, t->p->name, t->p->epoch, MSG_KV_SENT, &t->head, &sent.base) < 0)
		return STEP_STAY;
	transfer_drop(t, END_SENT, "");
	return STEP_GONE;
}

/* Is the slot still this transfer's, and is there time? */
static enum step transfer_watch(struct transfer *t)
{
	uint64_t gen;
	enum ring_state word = ring_peek(t->p->ring, t->slot, &gen),
					want = t->state == TRANSFER_FOUND && t->was_sent ? RING_SENT
	                                                                 : states[t->state].word;
	if (gen == t->gen && word == RING_SENT && want == RING_PENDING)
		return transfer_fail(t, END_MALFORMED, PDS__FAULT__FAULT_INTERNAL,
		                     "ring slot %u of %s was marked sent by somebody else", t->slot,
		                     t->p->name);
	if (gen != t->gen || word != want) {
		transfer_drop(t, END_CANCELLED, "cancelled by the prefill worker");
		return STEP_GONE;
	}
	if (t->m->now_us >= t->head.deadline_us)
		return transfer_fail(t, END_DEADLINE, PDS__FAULT__FAULT_DEADLINE,
		                     "the request's deadline has passed %s, after %" PRIu64 " ms",
		                     t->state == TRANSFER_OPEN ? "while its KV was being sent"
		                                               : "before its KV was handed over",
		                     (t->m->now_us - t->found_us) / 1000);
	return STEP_STAY;
}

void transfer_run(struct transfer *t)
{
	enum step s = transfer_watch(t);
	while (s != STEP_GONE && (s = states[t->state].step(t)) == STEP_MOVED)
		;
}

/* P computes its jobs in an order of its own, and may pass one over that it has begun: who still is
 * in P's schedule waits for its turn as long as P progresses with others, to its deadline at most.
 * For a transfer that is not in P's schedule only its own progress counts. */
void transfer_waits(struct transfer *t)
{
	if (t->state != TRANSFER_OPEN || t->computed_us)
		return;
	int in_hand = ring_in_schedule(t->p->ring, t->slot, t->gen);
	if (in_hand && t->p->progress_us > t->progress_us)
		t->progress_us = t->p->progress_us;
	if (!stalled(t, t->progress_us))
		return;
	uint32_t behind = 0;
	for (uint32_t l = 1; l < t->p->layout.layers; l++)
		if (t->seen[l] < t->seen[behind])
			behind = l;
	transfer_fail(t, END_STALLED, PDS__FAULT__FAULT_STALLED,
	              "prefill on %s made no progress%s for %" PRIu64
	              " ms: layer %u has %u of %u tokens (limit %" PRIu64 " ms)",
	              t->p->name, in_hand ? "" : " with this prompt, which is not in its schedule,",
	              (t->m->now_us - t->progress_us) / 1000, behind, t->seen[behind], t->tokens,
	              t->m->limits.stall_us / 1000);
}

/* --- what D says --------------------------------------------------------- */

/* The destination named by P is checked here, and nowhere else: the blocks that P's ring named
 * must be just those that D names, in order, for the same tokens. 0, or 1 and in `why` what each of
 * them says. */
static int differs(const struct transfer *t, const Pds__LeaseOpened *b, char *why, size_t size)
{
	const uint32_t bt = t->p->layout.block_tokens;
	if (b->cached_tokens != t->first_token || b->tokens != t->tokens || b->n_blocks != t->blocks ||
	    b->n_generations != b->n_blocks)
		return snprintf(why, size,
		                "tokens %u to %u in %u blocks, but lease %" PRIu64
		                " of %s is of tokens %u to %u in %zu blocks of %zu generations",
		                t->first_token, t->tokens, t->blocks, t->lease.id, t->lease.decode,
		                b->cached_tokens, b->tokens, b->n_blocks, b->n_generations) > 0;
	for (uint32_t i = 0; i < t->blocks; i++)
		if (b->blocks[i] != t->dst[i])
			return snprintf(why, size,
			                "block %u of %s for the tokens from %u on, but its lease %" PRIu64
			                " has block %u there",
			                t->dst[i], t->lease.decode, t->first_token + i * bt, t->lease.id,
			                b->blocks[i]) > 0;
	return 0;
}

void transfer_opened(struct transfer *t, const Pds__LeaseOpened *b)
{
	char why[256];
	if (t->state != TRANSFER_ASKED)
		return;
	if (b->refused) {
		transfer_fail(t, END_REFUSED, PDS__FAULT__FAULT_LEASE_LOST,
		              "%s refused to open lease %" PRIu64
		              " for %s: it has ended there, or is another's",
		              t->lease.decode, t->lease.id, t->p->name);
		return;
	}
	if (differs(t, b, why, sizeof why)) {
		log_req(LOG_WARN, &t->head.req, "lease_differs", "worker=%s slot=%u decode=%s why=%s",
		        t->p->name, t->slot, t->lease.decode, log_quote(why));
		transfer_fail(t, END_MALFORMED, PDS__FAULT__FAULT_INTERNAL,
		              "ring slot %u of %s names %s: nothing was written", t->slot, t->p->name, why);
		return;
	}
	t->dst_gen = mem_array(t->blocks, sizeof *t->dst_gen);
	memcpy(t->dst_gen, b->generations, t->blocks * sizeof *t->dst_gen);
	transfer_enter(t, TRANSFER_OPEN);
	t->progress_us = t->m->now_us;
}

void transfer_revoked(struct transfer *t)
{
	transfer_fail(t, END_REVOKED, PDS__FAULT__FAULT_LEASE_LOST, "%s has revoked lease %" PRIu64,
	              t->lease.decode, t->lease.id);
}

void transfer_acked(struct transfer *t)
{
	if (t->state == TRANSFER_POSTED)
		transfer_enter(t, TRANSFER_ACKED);
}

void transfer_relinked(struct transfer *t)
{
	if (t->state == TRANSFER_ASKED)
		t->said = 0;
	else if (t->state == TRANSFER_POSTED)
		transfer_enter(t, TRANSFER_MARKED);
}
