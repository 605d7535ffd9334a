/* transfer.c - the life of one transfer: see mover.h for the drawing, and the messager process of
 * the model for the rules.
 *
 * transfer_step alone changes the state and frees the object. Each state has a step function, in
 * one table with the states that may follow; it acts on an event and returns the next state.
 * Helpers return verdicts. Before CLOSED is returned, record_end says why, and whether P is told.
 * Only a wrong transition is fatal: it is our bug. */
#include "copy.h"
#include "mover_priv.h"
#include "util/check.h"
#include "util/mem.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum transfer_state transfer_step_fn(struct transfer *t, enum transfer_event e);
static transfer_step_fn step_found, step_resumed, step_asked, step_open, step_marked, step_posted,
	step_acked, step_closed;

#define TO(s) (1u << TRANSFER_##s)
static const struct {
	unsigned next; /* states that may follow */
	transfer_step_fn *step;
	enum ring_state word; /* what the slot must say meanwhile */
} states[TRANSFER_STATE_COUNT] = {
	[TRANSFER_FOUND] = {TO(ASKED) | TO(CLOSED), step_found, RING_PENDING},
	[TRANSFER_RESUMED] = {TO(MARKED) | TO(CLOSED), step_resumed, RING_SENT},
	[TRANSFER_ASKED] = {TO(FOUND) | TO(OPEN) | TO(CLOSED), step_asked, RING_PENDING},
	[TRANSFER_OPEN] = {TO(MARKED) | TO(CLOSED), step_open, RING_PENDING},
	[TRANSFER_MARKED] = {TO(POSTED) | TO(CLOSED), step_marked, RING_SENT},
	[TRANSFER_POSTED] = {TO(MARKED) | TO(ACKED) | TO(CLOSED), step_posted, RING_SENT},
	[TRANSFER_ACKED] = {TO(CLOSED), step_acked, RING_SENT},
	[TRANSFER_CLOSED] = {0, step_closed, RING_FREE},
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

static const char *transfer_end_name(enum transfer_end e)
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

/* --- the path to another host --------------------------------------------- */

static void path_delivered(void *arg, uint64_t bytes)
{
	struct transfer *t = arg;
	struct mover *m = t->m;
	m->now_us = m->out.now_us(m->out.arg);
	t->bytes += bytes;
	m->bytes += bytes;
	t->d->via->progress_us = m->now_us;
	m->out.wake(m->out.arg);
}

static void path_failed(void *arg, int code, const char *why)
{
	struct transfer *t = arg;
	t->path.failed = code;
	snprintf(t->path.why, sizeof t->path.why, "%s", why);
	t->m->out.wake(t->m->out.arg);
}

/* 0, or ERR_INVALID: the handle that D's messager gave is malformed. */
static int path_begin(struct transfer *t, const ProtobufCBinaryData *handle, struct err *err)
{
	const struct outgoing_opts o = {.handle = handle->data,
	                                .handle_bytes = handle->len,
	                                .layout = &t->p->layout,
	                                .from = &t->p->region,
	                                .src = t->src,
	                                .dst = t->dst,
	                                .blocks = t->blocks,
	                                .to_blocks = t->d->blocks,
	                                .arg = t,
	                                .delivered = path_delivered,
	                                .failed = path_failed};
	t->d->via->progress_us = t->m->now_us;
	return t->d->via->ops->outgoing_new(t->d->via->path, &o, &t->outgoing, err);
}

/* Nothing of P's blocks is read afterwards. */
static void path_end(struct transfer *t)
{
	if (t->outgoing)
		t->d->via->ops->outgoing_end(&t->outgoing);
}

/* --- how it ends --------------------------------------------------------- */

/* For the step that returns CLOSED next. FAULT_NONE: P is not told. */
__attribute__((format(printf, 4, 5))) static void record_end(struct transfer *t,
                                                             enum transfer_end how,
                                                             Pds__Fault fault, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(t->end.why, sizeof t->end.why, fmt, ap);
	va_end(ap);
	t->end.how = how;
	t->end.fault = fault;
	t->end.in = t->state;
}

static int stalled(const struct transfer *t, uint64_t since_us)
{
	return t->m->now_us > since_us && t->m->now_us - since_us >= t->m->limits.stall_us;
}

static void record_stall(struct transfer *t, const char *for_what)
{
	record_end(t, END_STALLED, PDS__FAULT__FAULT_STALLED,
	           "waited %" PRIu64 " ms for %s of %s (limit %" PRIu64 " ms)",
	           (t->m->now_us - t->since_us) / 1000, for_what, t->lease.decode,
	           t->m->limits.stall_us / 1000);
}

static void transfer_report(const struct transfer *t)
{
	const struct transfer_report r = {.req = t->head.req,
	                                  .from = t->p->name,
	                                  .to = t->lease.decode,
	                                  .end = t->end.how,
	                                  .bytes = t->bytes,
	                                  .copy_us = t->copy_us,
	                                  .tail_us = t->tail_us,
	                                  .life_us = t->m->now_us - t->found_us,
	                                  .pieces = t->pieces,
	                                  .runs = t->runs};
	if (r.end == END_SENT)
		log_req(LOG_INFO, &r.req, "transfer_done",
		        "attempt=%u from=%s to=%s bytes=%" PRIu64 " copy_us=%" PRIu64 " tail_us=%" PRIu64
		        " life_us=%" PRIu64 " pieces=%u coalesced=%u resumed=%d",
		        t->head.attempt, t->p->name, t->lease.decode, r.bytes, r.copy_us, r.tail_us,
		        r.life_us, r.pieces, r.runs, r.pieces == 0);
	else
		log_req(LOG_INFO, &r.req, "transfer_ended",
		        "attempt=%u from=%s to=%s end=%s in=%s bytes=%" PRIu64 " why=%s", t->head.attempt,
		        t->p->name, log_quote(t->lease.decode), transfer_end_name(r.end),
		        transfer_state_name(t->end.in), r.bytes, log_quote(t->end.why));
	if (t->m->out.ended)
		t->m->out.ended(t->m->out.arg, &r);
}

static enum transfer_state step_closed(struct transfer *t, enum transfer_event e)
{
	struct slot_note *n = &t->p->notes[t->slot];
	(void)e;
	path_end(t);
	transfer_report(t);
	CHECK(n->transfer == t);
	n->transfer = NULL;
	list_remove(&t->node);
	t->m->n_transfers--;
	if (t->m->cut == t)
		t->m->cut = NULL;
	if (t->end.fault != PDS__FAULT__FAULT_NONE)
		note_fail(t->m, t->p, t->slot, t->end.fault, t->end.why);
	return TRANSFER_CLOSED;
}

static void transfer_free(struct transfer *t)
{
	CHECK(!t->outgoing);
	free(t->src);
	free(t->dst);
	free(t->dst_gen);
	free(t->sent);
	free(t->seen);
	free(t);
}

/* --- found --------------------------------------------------------------- */

static uint32_t *copy_of(const uint32_t *numbers, uint32_t n)
{
	return memcpy(mem_array(n, sizeof *numbers), numbers, n * sizeof *numbers);
}

static struct transfer *transfer_new(struct mover *m, struct mover_worker *p, uint32_t slot,
                                     uint64_t gen, enum ring_state word)
{
	const struct ring_transfer *r = &m->scratch;
	const uint64_t last_us = m->now_us + TRANSFER_LIFE_MAX_US,
				   until_us = r->deadline_us && r->deadline_us < last_us ? r->deadline_us : last_us;
	const struct transfer first = {.m = m,
	                               .p = p,
	                               .slot = slot,
	                               .gen = gen,
	                               .head = {r->req, r->attempt, until_us},
	                               .lease = lease_key_of(r->decode, r->lease_id, r->lease_epoch,
	                                                     r->lease_generation),
	                               .first_token = r->first_token,
	                               .tokens = r->tokens,
	                               .blocks = r->blocks,
	                               .src = copy_of(r->src, r->blocks),
	                               .dst = copy_of(r->dst, r->blocks),
	                               .found_us = m->now_us,
	                               .state = word == RING_SENT ? TRANSFER_RESUMED : TRANSFER_FOUND,
	                               .since_us = m->now_us,
	                               .sent = mem_array(p->layout.layers, sizeof(uint32_t)),
	                               .seen = mem_array(p->layout.layers, sizeof(uint32_t))};
	return memcpy(mem_zalloc(sizeof first), &first, sizeof first);
}

enum slot_verdict { SLOT_OURS, SLOT_FORGED, SLOT_GONE };

/* Is the slot still this transfer's? FORGED: somebody else has marked it sent. */
static enum slot_verdict slot_of(const struct transfer *t)
{
	uint64_t gen;
	enum ring_state word = ring_peek(t->p->ring, t->slot, &gen), want = states[t->state].word;
	if (gen != t->gen)
		return SLOT_GONE;
	if (word == want)
		return SLOT_OURS;
	return word == RING_SENT && want == RING_PENDING ? SLOT_FORGED : SLOT_GONE;
}

void transfer_found(struct mover *m, struct mover_worker *p, uint32_t slot, uint64_t gen,
                    enum ring_state word)
{
	struct transfer *t = transfer_new(m, p, slot, gen, word),
					*other = mover_transfer_of_lease(m, p, &t->lease);
	if (other && slot_of(other) != SLOT_OURS) /* P cancelled it before it published this one */
		transfer_step(other, TRANSFER_ON_CANCELLED);
	p->notes[slot].transfer = t;
	p->notes[slot].head = t->head;
	list_push_back(&m->transfers, &t->node);
	m->n_transfers++;
	log_req(LOG_DEBUG, &t->head.req, "transfer_found",
	        "worker=%s slot=%u generation=%" PRIu64 " to=%s tokens=%u blocks=%u state=%s", p->name,
	        slot, gen, log_quote(t->lease.decode), t->tokens, t->blocks,
	        transfer_state_name(t->state));
	transfer_step(t, TRANSFER_ON_FOUND);
}

/* --- what any state does ------------------------------------------------- */

/* P is to blame for nothing if D gives the lease back in order. */
static void record_revoked(struct transfer *t, int in_order)
{
	record_end(t, END_REVOKED, in_order ? PDS__FAULT__FAULT_DRAINING : PDS__FAULT__FAULT_LEASE_LOST,
	           "%s has %s lease %" PRIu64, t->lease.decode, in_order ? "given back" : "revoked",
	           t->lease.id);
}

/* May a new transfer start? 0: its end is recorded. */
static int is_admissible(struct transfer *t)
{
	if (mover_transfer_of_lease(t->m, t->p, &t->lease) != t)
		record_end(t, END_MALFORMED, PDS__FAULT__FAULT_INTERNAL,
		           "ring slot %u of %s: lease %" PRIu64 " has a transfer already", t->slot,
		           t->p->name, t->lease.id);
	else if (strcmp(t->lease.decode, t->p->name) == 0)
		record_end(t, END_MALFORMED, PDS__FAULT__FAULT_INTERNAL,
		           "ring slot %u of %s: asks for a copy to itself", t->slot, t->p->name);
	else if (t->state == TRANSFER_FOUND && revoked_has(t->m->revoked, &t->lease))
		record_revoked(t, mover_revoked_in_order(t->m, &t->lease));
	else
		return 1;
	return 0;
}

static void record_cancel(struct transfer *t)
{
	record_end(t, END_CANCELLED, PDS__FAULT__FAULT_NONE, "cancelled by the prefill worker");
}

/* Is the slot still ours, and is there time? 0: its end is recorded. */
static int is_alive(struct transfer *t)
{
	enum slot_verdict slot = slot_of(t);
	if (slot == SLOT_FORGED)
		record_end(t, END_MALFORMED, PDS__FAULT__FAULT_INTERNAL,
		           "ring slot %u of %s was marked sent by somebody else", t->slot, t->p->name);
	else if (slot == SLOT_GONE)
		record_cancel(t);
	else if (t->m->now_us >= t->head.deadline_us)
		record_end(t, END_DEADLINE, PDS__FAULT__FAULT_DEADLINE,
		           "the request's deadline has passed %s, after %" PRIu64 " ms",
		           t->state == TRANSFER_OPEN ? "while its KV was being sent"
		                                     : "before its KV was handed over",
		           (t->m->now_us - t->found_us) / 1000);
	else
		return 1;
	return 0;
}

/* Another host's messager is told which of its workers is meant. */
static char *decode_for_messager(const struct transfer *t)
{
	const struct mover_worker *d = mover_find(t->m, t->lease.decode);
	return d && d->via ? (char *)t->lease.decode : (char *)protobuf_c_empty_string;
}

static int send_kv_ready(const struct transfer *t)
{
	Pds__Lease lease;
	Pds__KvReady ready = PDS__KV_READY__INIT;
	mover_lease_fill(&lease, &t->lease);
	ready.lease = &lease;
	ready.prefill = t->p->name;
	ready.prefill_epoch = t->p->epoch;
	ready.decode = decode_for_messager(t);
	ready.bytes = t->bytes;
	ready.copy_us = t->copy_us;
	ready.tail_us = t->tail_us;
	return mover_send(t->m, t->lease.decode, t->lease.epoch, MSG_KV_READY, &t->head, &ready.base);
}

/* Comes before the state's own step, which acts on the event only if the state stays. */
static enum transfer_state transfer_common(struct transfer *t, enum transfer_event e)
{
	const char *way;
	switch (e) {
	case TRANSFER_ON_FOUND: return is_admissible(t) ? t->state : TRANSFER_CLOSED;
	case TRANSFER_ON_TURN: return is_alive(t) ? t->state : TRANSFER_CLOSED;
	case TRANSFER_ON_CANCELLED: record_cancel(t); return TRANSFER_CLOSED;
	case TRANSFER_ON_REVOKED: record_revoked(t, t->m->in_order); return TRANSFER_CLOSED;
	case TRANSFER_ON_PREFILL_GONE:
		if (t->state == TRANSFER_MARKED) /* D may have the first token already */
			send_kv_ready(t);
		record_end(t, END_PEER_GONE, PDS__FAULT__FAULT_NONE, "the prefill worker has ended");
		return TRANSFER_CLOSED;
	case TRANSFER_ON_DECODE_GONE:
		way = t->d && t->d->via ? ", or the link to its messager," : "";
		path_end(t);
		t->d = NULL;
		if (t->state == TRANSFER_ACKED) /* D had all it needs; P learns of its end by itself */
			return t->state;
		record_end(t, END_PEER_GONE, PDS__FAULT__FAULT_PEER_LOST,
		           "%s%s has ended while its KV was on the way", t->lease.decode, way);
		return TRANSFER_CLOSED;
	case TRANSFER_ON_SHUTDOWN:
		record_end(t, END_PEER_GONE, PDS__FAULT__FAULT_NONE, "the messager ends");
		return TRANSFER_CLOSED;
	default: return t->state;
	}
}

void transfer_step(struct transfer *t, enum transfer_event e)
{
	enum transfer_state next = transfer_common(t, e);
	if (next == t->state)
		next = states[t->state].step(t, e);
	while (next != t->state) {
		transfer_enter(t, next);
		next = states[t->state].step(t, TRANSFER_ON_ENTER);
	}
	if (t->state == TRANSFER_CLOSED)
		transfer_free(t);
}

/* --- FOUND and RESUMED --------------------------------------------------- */

/* Both pools must be alike, and the transfer must fit them, before anything is asked. 0: its end is
 * recorded. */
static int fits(struct transfer *t, const struct mover_worker *d)
{
	const struct kv_region *from = &t->p->region;
	struct ring_transfer *r = &t->m->scratch;
	r->first_token = t->first_token;
	r->tokens = t->tokens;
	r->blocks = t->blocks;
	memcpy(r->src, t->src, t->blocks * sizeof *r->src);
	memcpy(r->dst, t->dst, t->blocks * sizeof *r->dst);
	if (strcmp(t->p->layout_text, d->layout_text) != 0)
		record_end(t, END_MALFORMED, PDS__FAULT__FAULT_INTERNAL,
		           "KV layouts differ: %s has %s, %s has %s", t->p->name, t->p->layout_text,
		           d->name, d->layout_text);
	else if (!d->via && from->pool->by != d->region.pool->by)
		record_end(t, END_MALFORMED, PDS__FAULT__FAULT_INTERNAL,
		           "cannot copy between backends: KV of %s is in memory of %s, of %s in memory "
		           "of %s",
		           t->p->name, from->pool->by->name, d->name, d->region.pool->by->name);
	else if (ring_transfer_check(r, t->p->layout.block_tokens, from->blocks, d->blocks) < 0)
		record_end(t, END_MALFORMED, PDS__FAULT__FAULT_INTERNAL,
		           "ring slot %u of %s: tokens %u to %u in %u blocks do not fit pools of %u and %u "
		           "blocks of %u tokens",
		           t->slot, t->p->name, t->first_token, t->tokens, t->blocks, from->blocks,
		           d->blocks, t->p->layout.block_tokens);
	else
		return 1;
	return 0;
}

static int send_lease_open(const struct transfer *t)
{
	Pds__Lease lease;
	Pds__LeaseOpen open = PDS__LEASE_OPEN__INIT;
	mover_lease_fill(&lease, &t->lease);
	open.lease = &lease;
	open.prefill = t->p->name;
	open.prefill_epoch = t->p->epoch;
	open.decode = decode_for_messager(t);
	return mover_send(t->m, t->lease.decode, t->lease.epoch, MSG_LEASE_OPEN, &t->head, &open.base);
}

/* 1: its end is recorded. */
static int decode_has_restarted(struct transfer *t, const struct mover_worker *d)
{
	if (!d || d->epoch <= t->lease.epoch)
		return 0;
	record_end(t, END_PEER_GONE, PDS__FAULT__FAULT_PEER_LOST,
	           "%s has restarted: its epoch is %" PRIu64 ", the lease's %" PRIu64, t->lease.decode,
	           d->epoch, t->lease.epoch);
	return 1;
}

/* Reads the board for one layer. 1: all its tokens are computed. */
static int look(struct transfer *t, uint32_t layer)
{
	uint32_t done = ring_progress(t->p->ring, t->slot, layer, t->gen);
	if (done > t->tokens)
		done = t->tokens;
	if (done > t->seen[layer]) {
		t->seen[layer] = done;
		t->progress_us = t->p->progress_us = t->m->now_us;
	}
	return t->seen[layer] == t->tokens;
}

static enum transfer_state step_found(struct transfer *t, enum transfer_event e)
{
	struct mover_worker *d = mover_find(t->m, t->lease.decode);
	(void)e;
	if (decode_has_restarted(t, d))
		return TRANSFER_CLOSED;
	look(t, 0); /* P's progress counts for its other transfers while this one waits for D */
	int mapped = d && d->epoch == t->lease.epoch;
	if (mapped && mover_is_linked(t->m, d->name, d->epoch) &&
	    mover_is_linked(t->m, t->p->name, t->p->epoch)) {
		if (!fits(t, d))
			return TRANSFER_CLOSED;
		t->d = d;
		if (send_lease_open(t) == 0)
			return TRANSFER_ASKED;
	}
	const struct mover_out *out = &t->m->out;
	const char *why = d || !out->unreachable ? NULL : out->unreachable(out->arg, t->lease.decode);
	if (why) {
		record_end(t, END_PEER_GONE, PDS__FAULT__FAULT_PEER_LOST, "no way to %s: %s",
		           t->lease.decode, why);
		return TRANSFER_CLOSED;
	}
	if (!stalled(t, t->since_us))
		return TRANSFER_FOUND;
	record_stall(t, mapped ? "a link" : "the memory");
	return TRANSFER_CLOSED;
}

static enum transfer_state step_resumed(struct transfer *t, enum transfer_event e)
{
	(void)e;
	if (decode_has_restarted(t, mover_find(t->m, t->lease.decode)))
		return TRANSFER_CLOSED;
	return TRANSFER_MARKED;
}

/* --- ASKED --------------------------------------------------------------- */

/* The only check of the destination that P's ring names: its blocks must be exactly those that D
 * names, in order, for the same tokens. Returns 1 if they differ, with what each says in `why`. */
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

/* Takes D's answer, m->opened. 0: the lease does not open, and the end is recorded. */
static int take_answer(struct transfer *t)
{
	const Pds__LeaseOpened *b = t->m->opened;
	struct err err = {0};
	char why[256];
	if (b->refused) {
		record_end(t, END_REFUSED, PDS__FAULT__FAULT_LEASE_LOST,
		           "%s refused to open lease %" PRIu64
		           " for %s: it has ended there, or belongs to another prefill worker",
		           t->lease.decode, t->lease.id, t->p->name);
	} else if (differs(t, b, why, sizeof why)) {
		log_req(LOG_WARN, &t->head.req, "lease_differs", "worker=%s slot=%u decode=%s why=%s",
		        t->p->name, t->slot, t->lease.decode, log_quote(why));
		record_end(t, END_MALFORMED, PDS__FAULT__FAULT_INTERNAL,
		           "ring slot %u of %s names %s: nothing was written", t->slot, t->p->name, why);
	} else if (t->d->via) {
		if (path_begin(t, &b->handle, &err) == 0)
			return 1;
		record_end(t, END_MALFORMED, PDS__FAULT__FAULT_INTERNAL, "handle of lease %" PRIu64 ": %s",
		           t->lease.id, err.text);
	} else {
		t->dst_gen = mem_array(t->blocks, sizeof *t->dst_gen);
		memcpy(t->dst_gen, b->generations, t->blocks * sizeof *t->dst_gen);
		return 1;
	}
	return 0;
}

static enum transfer_state step_asked(struct transfer *t, enum transfer_event e)
{
	if (e == TRANSFER_ON_RELINKED)
		return TRANSFER_FOUND;
	if (e == TRANSFER_ON_OPENED)
		return take_answer(t) ? TRANSFER_OPEN : TRANSFER_CLOSED;
	look(t, 0); /* as in FOUND */
	if (!stalled(t, t->since_us))
		return TRANSFER_ASKED;
	record_stall(t, "the answer to LEASE_OPEN");
	return TRANSFER_CLOSED;
}

/* --- OPEN ---------------------------------------------------------------- */

/* Blocks that may be sent when `tokens` are computed: full ones, and the last one when all of its
 * tokens are. */
static uint32_t blocks_ready(const struct transfer *t, uint32_t tokens)
{
	if (tokens >= t->tokens)
		return t->blocks;
	return tokens <= t->first_token ? 0 : (tokens - t->first_token) / t->p->layout.block_tokens;
}

/* Begins to copy what is computed and not yet sent, within the turn's budget. 1: nothing of that is
 * left. 0: the budget has ended. ERR_STALE: D has reused the block of *ret_stale; ERR_IO: the
 * device; ERR_CLOSED: the device is lost. */
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

/* D has reused a block without revoking the lease from its writer: D's fault. */
static void record_reuse(struct transfer *t, uint32_t at)
{
	uint64_t is = atomic_load_explicit(&t->d->region.generations[t->dst[at]], memory_order_relaxed);
	log_req(LOG_WARN, &t->head.req, "block_reused",
	        "worker=%s block=%u generation=%" PRIu64 " leased=%" PRIu64, t->lease.decode,
	        t->dst[at], is, t->dst_gen[at]);
	record_end(t, END_REVOKED, PDS__FAULT__FAULT_LEASE_LOST,
	           "%s has reused block %u of lease %" PRIu64 ": its generation is %" PRIu64
	           ", the lease's %" PRIu64,
	           t->lease.decode, t->dst[at], t->lease.id, is, t->dst_gen[at]);
}

/* Reads the board. 1: all layers of all tokens are computed. */
static int look_at_all(struct transfer *t)
{
	int all = 1;
	for (uint32_t l = 0; l < t->p->layout.layers; l++)
		all &= look(t, l);
	if (all && !t->computed_us)
		t->computed_us = t->m->now_us;
	return all;
}

enum copied { COPIED_ALL, COPIED_SOME, COPIED_FAILED };

/* Copies what is computed and not yet sent; no write is in flight on return. SOME: the turn's
 * budget has ended. FAILED: its end is recorded. */
static enum copied copy_computed(struct transfer *t)
{
	struct mover *m = t->m;
	struct copy_sum sum = {0};
	struct err err = {0};
	uint32_t stale = 0;
	uint64_t bytes = t->bytes, begin_us = m->out.now_us(m->out.arg);
	int r = copy_begin(t, &sum, &stale, &err), waited = copy_wait(&sum, &err);
	uint64_t end_us = m->out.now_us(m->out.arg);
	r = waited < 0 ? waited : r;
	t->runs += sum.runs;
	if (t->bytes != bytes)
		t->copy_us += end_us - begin_us;
	t->tail_us = t->computed_us ? end_us - t->computed_us : 0;
	if (r > 0)
		return COPIED_ALL;
	if (r == 0) {
		m->more = 1;
		if (!m->cut)
			m->cut = t;
		return COPIED_SOME;
	}
	if (r == ERR_CLOSED && m->out.lost)
		m->out.lost(m->out.arg, err.text);
	if (r == ERR_STALE)
		record_reuse(t, stale);
	else
		record_end(t, END_COPY_FAILED, PDS__FAULT__FAULT_INTERNAL, "KV of %s to %s: %s", t->p->name,
		           t->d->name, err.text);
	return COPIED_FAILED;
}

/* Gives the path what is computed and new. ALL: everything has arrived. */
static enum copied send_computed(struct transfer *t)
{
	const struct path_ops *ops = t->d->via->ops;
	uint64_t whole = 0;
	for (uint32_t l = 0; l < t->p->layout.layers; l++) {
		uint32_t ready = blocks_ready(t, t->seen[l]), from = t->sent[l];
		whole += (uint64_t)t->blocks * t->p->layout.piece_bytes[l];
		if (t->path.failed || from >= ready)
			continue;
		ops->outgoing_send(t->outgoing, l, from, ready - from);
		t->pieces += ready - from;
		t->sent[l] = ready;
		t->given_us = t->m->now_us;
	}
	t->tail_us = t->computed_us ? t->m->now_us - t->computed_us : 0;
	if (!t->path.failed)
		return t->bytes == whole ? COPIED_ALL : COPIED_SOME;
	if (t->path.failed == ERR_CLOSED && t->m->out.lost)
		t->m->out.lost(t->m->out.arg, t->path.why);
	if (t->path.failed == ERR_STALE)
		record_end(t, END_REVOKED, PDS__FAULT__FAULT_LEASE_LOST,
		           "%s takes no more of lease %" PRIu64 ": %s", t->lease.decode, t->lease.id,
		           t->path.why);
	else
		record_end(t, END_COPY_FAILED, PDS__FAULT__FAULT_INTERNAL, "KV of %s to %s: %s", t->p->name,
		           t->lease.decode, t->path.why);
	return COPIED_FAILED;
}

/* A path notices within seconds that a connection carries nothing, and sends again over another. */
#define PATH_STALLS 4u

static int path_stalled(const struct transfer *t, uint64_t since_us)
{
	return t->m->now_us >= since_us + PATH_STALLS * t->m->limits.stall_us;
}

/* Has nothing arrived over the path for too long, although something is on it? Others' bytes on the
 * same path count: this one waits for its turn. 1: its end is recorded. */
static int path_is_stalled(struct transfer *t)
{
	uint64_t given = 0;
	for (uint32_t l = 0; l < t->p->layout.layers; l++)
		given += (uint64_t)t->sent[l] * t->p->layout.piece_bytes[l];
	if (given == t->bytes || !path_stalled(t, t->d->via->progress_us) ||
	    !path_stalled(t, t->given_us))
		return 0;
	record_end(t, END_STALLED, PDS__FAULT__FAULT_STALLED,
	           "nothing has arrived at %s over the path to %s for %" PRIu64 " ms: %" PRIu64
	           " of %" PRIu64 " bytes have (limit %" PRIu64 " ms)",
	           t->lease.decode, t->d->via->name, (t->m->now_us - t->d->via->progress_us) / 1000,
	           t->bytes, given, PATH_STALLS * t->m->limits.stall_us / 1000);
	return 1;
}

/* P computes its jobs in its own order, and may pass over one that it has begun. A job in P's
 * schedule waits for its turn as long as P progresses with others, to its deadline at most. For one
 * that is not in the schedule only its own progress counts. 1: its end is recorded. */
static int prefill_is_stalled(struct transfer *t)
{
	int in_schedule = ring_in_schedule(t->p->ring, t->slot, t->gen);
	if (in_schedule && t->p->progress_us > t->progress_us)
		t->progress_us = t->p->progress_us;
	if (!stalled(t, t->progress_us))
		return 0;
	uint32_t behind = 0;
	for (uint32_t l = 1; l < t->p->layout.layers; l++)
		if (t->seen[l] < t->seen[behind])
			behind = l;
	if (t->seen[behind] == t->tokens)
		return 0; /* all is computed: what is left is ours to copy */
	record_end(t, END_STALLED, PDS__FAULT__FAULT_STALLED,
	           "prefill on %s made no progress%s for %" PRIu64
	           " ms: layer %u has %u of %u tokens (limit %" PRIu64 " ms)",
	           t->p->name, in_schedule ? "" : " with this prompt, which is not in its schedule,",
	           (t->m->now_us - t->progress_us) / 1000, behind, t->seen[behind], t->tokens,
	           t->m->limits.stall_us / 1000);
	return 1;
}

/* Copies only within a turn: outside there is no budget. */
static enum transfer_state step_open(struct transfer *t, enum transfer_event e)
{
	if (e == TRANSFER_ON_ENTER)
		t->progress_us = t->m->now_us;
	if (e == TRANSFER_ON_TURN_END && (prefill_is_stalled(t) || (t->outgoing && path_is_stalled(t))))
		return TRANSFER_CLOSED;
	if (e != TRANSFER_ON_TURN)
		return TRANSFER_OPEN;
	int all = look_at_all(t);
	enum copied copied = t->outgoing ? send_computed(t) : copy_computed(t);
	if (copied == COPIED_FAILED)
		return TRANSFER_CLOSED;
	if (copied == COPIED_SOME || !all)
		return TRANSFER_OPEN;
	path_end(t);
	if (ring_mark_sent(t->p->ring, t->slot, t->gen) == 0)
		return TRANSFER_MARKED;
	record_cancel(t);
	return TRANSFER_CLOSED;
}

/* --- MARKED, POSTED, ACKED ----------------------------------------------- */

static enum transfer_state step_marked(struct transfer *t, enum transfer_event e)
{
	(void)e;
	if (send_kv_ready(t) == 0)
		return TRANSFER_POSTED;
	if (!stalled(t, t->since_us))
		return TRANSFER_MARKED;
	record_stall(t, "the link (KV_READY is not acknowledged)");
	return TRANSFER_CLOSED;
}

/* D may take until the deadline to acknowledge, but only over a link that is up. */
static enum transfer_state step_posted(struct transfer *t, enum transfer_event e)
{
	if (e == TRANSFER_ON_ACKED)
		return TRANSFER_ACKED;
	if (e == TRANSFER_ON_RELINKED || !mover_is_linked(t->m, t->lease.decode, t->lease.epoch))
		return TRANSFER_MARKED;
	return TRANSFER_POSTED;
}

static enum transfer_state step_acked(struct transfer *t, enum transfer_event e)
{
	Pds__KvSent sent = PDS__KV_SENT__INIT;
	(void)e;
	sent.slot = t->slot;
	sent.generation = t->gen;
	if (mover_send(t->m, t->p->name, t->p->epoch, MSG_KV_SENT, &t->head, &sent.base) < 0)
		return TRANSFER_ACKED;
	record_end(t, END_SENT, PDS__FAULT__FAULT_NONE, "D has acknowledged");
	return TRANSFER_CLOSED;
}
