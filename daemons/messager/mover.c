/* mover.c - workers, their rings, and messages from their links; the transfers themselves are in
 * transfer.c. See mover.h.
 *
 * Each generation of a slot becomes a transfer once; the slot's note then names the open transfer,
 * or how it ended. A message that a link's full window refuses is sent at a later turn. When a link
 * comes up, failures and answers to revocations are sent again, and slots marked as sent become
 * transfers again, because messages may have been lost with the previous link. */
#include "mover_priv.h"

#include "util/check.h"
#include "util/mem.h"
#include "util/once.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define each_worker(it, m) list_each(it, &(m)->workers)
#define worker_entry(it) list_entry(it, struct mover_worker, node)
#define transfer_entry(it) list_entry(it, struct transfer, node)

static void now(struct mover *m)
{
	m->now_us = m->out.now_us(m->out.arg);
}

struct mover *mover_new(const struct mover_out *out, const struct mover_limits *limits)
{
	struct mover *m = mem_zalloc(sizeof *m);
	m->out = *out;
	m->limits = *limits;
	list_init(&m->workers);
	list_init(&m->transfers);
	m->revoked = revoked_new(REVOKED_MAX);
	return m;
}

void mover_shutdown(struct mover *m)
{
	list_each_safe(it, nx, &m->transfers)
		transfer_step(transfer_entry(it), TRANSFER_ON_SHUTDOWN);
}

void mover_destroy(struct mover **mp)
{
	struct mover *m = *mp;
	if (!m)
		return;
	mover_shutdown(m);
	list_each_safe(it, nx, &m->workers)
		mover_remove(m, worker_entry(it));
	revoked_destroy(&m->revoked);
	free(m);
	*mp = NULL;
}

void mover_set_limits(struct mover *m, const struct mover_limits *limits)
{
	m->limits = *limits;
}

/* The way to this epoch of a worker, if it is of another host; else NULL. */
static const struct mover_via *via_of(const struct mover *m, const char *name, uint64_t epoch)
{
	const struct mover_worker *w = mover_find(m, name);
	return w && w->epoch == epoch ? w->via : NULL;
}

int mover_is_linked(const struct mover *m, const char *name, uint64_t epoch)
{
	const struct mover_via *via = via_of(m, name, epoch);
	return via ? via->linked(via->arg) : m->out.linked(m->out.arg, name, epoch);
}

int mover_send(const struct mover *m, const char *name, uint64_t epoch, enum msg_type type,
               const struct msg_head *head, const ProtobufCMessage *body)
{
	const struct mover_via *via = via_of(m, name, epoch);
	if (!mover_is_linked(m, name, epoch))
		return ERR_CLOSED;
	return via ? via->send(via->arg, type, head, body)
	           : m->out.send(m->out.arg, name, epoch, type, head, body);
}

int mover_tell(const struct mover *m, const char *name, uint64_t epoch, enum msg_type type,
               const struct msg_head *head, const ProtobufCMessage *body)
{
	if (!m->out.linked(m->out.arg, name, epoch))
		return ERR_CLOSED;
	return m->out.send(m->out.arg, name, epoch, type, head, body);
}

void mover_lease_fill(Pds__Lease *out, const struct lease_key *k)
{
	pds__lease__init(out);
	out->id = k->id;
	out->epoch = k->epoch;
	out->generation = k->generation;
}

/* --- notes of slots ------------------------------------------------------ */

static void note_clear(struct mover *m, struct slot_note *n)
{
	CHECK(!n->transfer);
	m->n_untold -= n->untold != 0;
	free(n->text);
	memset(n, 0, sizeof *n);
}

static void note_tell(struct mover *m, struct mover_worker *w, uint32_t slot)
{
	struct slot_note *n = &w->notes[slot];
	Pds__TransferFailed f = PDS__TRANSFER_FAILED__INIT;
	f.slot = slot;
	f.generation = n->gen;
	f.fault = n->fault;
	f.text = n->text;
	/* without a link: sent when the link comes up */
	int again = mover_send(m, w->name, w->epoch, MSG_TRANSFER_FAILED, &n->head, &f.base) ==
	            ERR_FULL;
	m->n_untold = m->n_untold - (n->untold != 0) + (again != 0);
	n->untold = again;
}

void note_fail(struct mover *m, struct mover_worker *w, uint32_t slot, Pds__Fault fault,
               const char *text)
{
	struct slot_note *n = &w->notes[slot];
	free(n->text);
	n->text = mem_strdup(text);
	n->fault = fault;
	n->failed = 1;
	if (n->head.req.hi || n->head.req.lo)
		note_tell(m, w, slot);
}

/* A transfer that cannot be read, or that has no request id or attempt to name it by. */
static void note_malformed(struct mover *m, struct mover_worker *w, uint32_t slot, const char *why)
{
	const struct ring_transfer *t = &m->scratch;
	struct transfer_report r = {.req = t->req, .end = END_MALFORMED};
	char text[160];
	snprintf(text, sizeof text, "ring slot %u of %s: %s", slot, w->name, why);
	log_req(LOG_WARN, &r.req, "transfer_malformed", "worker=%s slot=%u why=%s", w->name, slot,
	        log_quote(text));
	w->notes[slot].head = (struct msg_head){t->req, t->attempt ? t->attempt : 1, 0};
	note_fail(m, w, slot, PDS__FAULT__FAULT_INTERNAL, text);
	if (m->out.ended)
		m->out.ended(m->out.arg, &r);
}

static void slot_take_up(struct mover *m, struct mover_worker *w, uint32_t slot)
{
	struct slot_note *n = &w->notes[slot];
	uint64_t gen = 0;
	enum ring_state state = RING_FREE;
	memset(&m->scratch.req, 0, sizeof m->scratch.req);
	m->scratch.attempt = 0;
	int r = ring_read(w->ring, slot, &m->scratch, &gen, &state);
	if (r == ERR_STALE)
		return;
	n->known = 1;
	n->gen = gen;
	if (r < 0)
		note_malformed(m, w, slot, "its counts or its decode worker's name are out of range");
	else if ((!m->scratch.req.hi && !m->scratch.req.lo) || !m->scratch.attempt)
		note_malformed(m, w, slot, "no request id or attempt");
	else
		transfer_found(m, w, slot, gen, state);
}

static void slot_look(struct mover *m, struct mover_worker *w, uint32_t slot)
{
	struct slot_note *n = &w->notes[slot];
	uint64_t gen;
	enum ring_state s = ring_peek(w->ring, slot, &gen);
	if (n->known && n->gen != gen) {
		if (n->transfer)
			transfer_step(n->transfer, TRANSFER_ON_CANCELLED);
		note_clear(m, n);
	}
	if (!n->known && (s == RING_PENDING || s == RING_SENT))
		slot_take_up(m, w, slot);
	else if (n->untold && s != RING_PENDING && s != RING_SENT)
		/* P has given the transfer up; a VOID slot becomes no transfer again */
		note_clear(m, n);
	else if (n->untold)
		note_tell(m, w, slot);
}

/* --- workers ------------------------------------------------------------- */

struct mover_worker *mover_add(struct mover *m, const char *name, uint64_t epoch,
                               const struct kv_layout *layout, const struct kv_region *region,
                               struct ring *ring)
{
	struct mover_worker *w = mover_find(m, name);
	CHECK(strlen(name) < RING_NAME_MAX && (!w || w->via));
	if (w) /* it has moved to this host */
		mover_remove(m, w);
	w = mem_zalloc(sizeof *w);
	strcpy(w->name, name);
	w->epoch = epoch;
	w->layout = *layout;
	w->region = *region;
	w->blocks = region->blocks;
	w->ring = ring;
	kv_layout_text(layout, w->layout_text, sizeof w->layout_text);
	if (ring)
		w->notes = mem_array(ring_slots(ring), sizeof *w->notes);
	list_push_back(&m->workers, &w->node);
	return w;
}

struct mover_worker *mover_add_remote(struct mover *m, const char *name, uint64_t epoch,
                                      const char *layout_text, uint32_t blocks,
                                      struct mover_via *via)
{
	struct mover_worker *w = mover_find(m, name);
	if (w && w->via && w->epoch < epoch) { /* it has restarted on yet another host */
		mover_remove(m, w);
		w = NULL;
	}
	if (w) {
		if (once_may_log(&m->logged, name, strlen(name)))
			log_warn("pool_refused", "worker=%s messager=%s why=%s", name, via->name,
			         log_quote(w->via ? "another messager has a worker of this name"
			                          : "a worker of this host has this name"));
		return NULL;
	}
	w = mem_zalloc(sizeof *w);
	snprintf(w->name, sizeof w->name, "%s", name);
	snprintf(w->layout_text, sizeof w->layout_text, "%s", layout_text);
	w->epoch = epoch;
	w->blocks = blocks;
	w->via = via;
	list_push_back(&m->workers, &w->node);
	return w;
}

struct mover_worker *mover_next_of(const struct mover *m, const struct mover_via *via,
                                   const struct mover_worker *after)
{
	const struct list *from = after ? &after->node : &m->workers;
	for (struct list *it = from->next; it != &m->workers; it = it->next)
		if (worker_entry(it)->via == via)
			return worker_entry(it);
	return NULL;
}

const struct mover_via *mover_worker_via(const struct mover_worker *w)
{
	return w->via;
}

uint64_t mover_worker_epoch(const struct mover_worker *w)
{
	return w->epoch;
}

const char *mover_worker_name(const struct mover_worker *w)
{
	return w->name;
}

static void drop_transfers_of(struct mover *m, struct mover_worker *p)
{
	for (uint32_t i = 0; p->ring && i < ring_slots(p->ring); i++) {
		struct slot_note *n = &p->notes[i];
		if (n->transfer)
			transfer_step(n->transfer, TRANSFER_ON_PREFILL_GONE);
		note_clear(m, n);
	}
}

/* All transfers under leases of this epoch of a decode worker. */
static void step_transfers_to(struct mover *m, const char *name, uint64_t epoch,
                              enum transfer_event e)
{
	list_each_safe(it, nx, &m->transfers) {
		struct transfer *t = transfer_entry(it);
		if (t->lease.epoch == epoch && strcmp(t->lease.decode, name) == 0)
			transfer_step(t, e);
	}
}

void mover_remove(struct mover *m, struct mover_worker *w)
{
	now(m);
	drop_transfers_of(m, w);
	step_transfers_to(m, w->name, w->epoch, TRANSFER_ON_DECODE_GONE);
	revoked_forget(m->revoked, w->name, w->epoch);
	list_remove(&w->node);
	if (!w->via) {
		if (m->out.unmap)
			m->out.unmap(m->out.arg, &w->region);
		kv_region_fini(&w->region);
		ring_destroy(&w->ring);
		free(w->notes);
	}
	free(w);
}

struct mover_worker *mover_find(const struct mover *m, const char *name)
{
	each_worker(it, m) {
		if (strcmp(worker_entry(it)->name, name) == 0)
			return worker_entry(it);
	}
	return NULL;
}

/* --- messages ------------------------------------------------------------ */

struct transfer *mover_transfer_of_lease(struct mover *m, const struct mover_worker *p,
                                         const struct lease_key *k)
{
	list_each(it, &m->transfers) {
		if (transfer_entry(it)->p == p && memcmp(&transfer_entry(it)->lease, k, sizeof *k) == 0)
			return transfer_entry(it);
	}
	return NULL;
}

/* Only the epoch of D that granted a lease may send messages about it. */
static int lease_of(const char *name, uint64_t epoch, const Pds__Lease *l, struct lease_key *ret)
{
	if (!l || l->epoch != epoch) {
		log_warn("lease_of_another", "peer=%s epoch=%" PRIu64 " lease_epoch=%" PRIu64, name, epoch,
		         l ? l->epoch : 0);
		return ERR_INVALID;
	}
	*ret = lease_key_of(name, l->id, l->epoch, l->generation);
	return 0;
}

/* A message of D about a lease is for the transfer in that prefill worker's ring, and for no other
 * that names the lease. */
static struct transfer *transfer_to(struct mover *m, const char *name, uint64_t epoch,
                                    const Pds__Lease *l, const char *prefill,
                                    uint64_t prefill_epoch)
{
	struct lease_key k;
	struct mover_worker *p = mover_find(m, prefill);
	if (lease_of(name, epoch, l, &k) < 0 || !p || p->epoch != prefill_epoch)
		return NULL;
	return mover_transfer_of_lease(m, p, &k);
}

void mover_lease_opened(struct mover *m, const char *name, uint64_t epoch,
                        const Pds__LeaseOpened *b)
{
	now(m);
	struct transfer *t = transfer_to(m, name, epoch, b->lease, b->prefill, b->prefill_epoch);
	m->opened = b;
	if (t)
		transfer_step(t, TRANSFER_ON_OPENED);
	m->opened = NULL;
}

static int answer_revoke(struct mover *m, struct revoked_lease *e)
{
	Pds__Lease lease;
	Pds__LeaseRevoked b = PDS__LEASE_REVOKED__INIT;
	e->owed = 0;
	if (m->out.fence && !m->out.fence(m->out.arg, &e->lease))
		return 1; /* mover_revoke_fenced follows */
	mover_lease_fill(&lease, &e->lease);
	b.lease = &lease;
	const struct msg_head head = {e->req, e->attempt, 0};
	e->owed = mover_send(m, e->lease.decode, e->lease.epoch, MSG_LEASE_REVOKED, &head, &b.base) ==
	          ERR_FULL;
	return !e->owed;
}

static void step_transfers_of(struct mover *m, const struct lease_key *k, int in_order)
{
	m->in_order = in_order;
	list_each_safe(it, nx, &m->transfers) {
		if (memcmp(&transfer_entry(it)->lease, k, sizeof *k) == 0)
			transfer_step(transfer_entry(it), TRANSFER_ON_REVOKED);
	}
}

/* Final, whether or not the lease has a transfer. No write of ours is in flight between turns. */
void mover_lease_revoke(struct mover *m, const char *name, uint64_t epoch,
                        const struct msg_head *head, const Pds__LeaseRevoke *b)
{
	struct lease_key k;
	now(m);
	if (lease_of(name, epoch, b->lease, &k) < 0)
		return;
	struct revoked_lease *e = revoked_add(m->revoked, &k, m->now_us);
	e->req = head->req;
	e->attempt = head->attempt ? head->attempt : 1;
	e->in_order = b->fault == PDS__FAULT__FAULT_DRAINING;
	step_transfers_of(m, &k, e->in_order);
	if (!answer_revoke(m, e))
		m->n_owed++;
}

void mover_revoke_fenced(struct mover *m, const struct lease_key *lease)
{
	struct revoked_lease *e = revoked_find(m->revoked, lease);
	now(m);
	if (e && !answer_revoke(m, e))
		m->n_owed++;
}

void mover_remote_revoked(struct mover *m, const struct mover_worker *w, const Pds__LeaseRevoke *b)
{
	struct lease_key k;
	now(m);
	if (lease_of(w->name, w->epoch, b->lease, &k) == 0)
		step_transfers_of(m, &k, b->fault == PDS__FAULT__FAULT_DRAINING);
}

void mover_kv_ready_ack(struct mover *m, const char *name, uint64_t epoch, const Pds__KvReadyAck *b)
{
	now(m);
	struct transfer *t = transfer_to(m, name, epoch, b->lease, b->prefill, b->prefill_epoch);
	if (t)
		transfer_step(t, TRANSFER_ON_ACKED);
}

/* P may have missed how its transfers ended: failures are sent again, a slot that is still SENT
 * becomes a transfer again. */
static void say_again(struct mover *m, struct mover_worker *p)
{
	for (uint32_t i = 0; i < ring_slots(p->ring); i++) {
		struct slot_note *n = &p->notes[i];
		if (!n->known || n->transfer)
			continue;
		if (!n->failed) {
			uint64_t gen;
			if (ring_peek(p->ring, i, &gen) == RING_SENT)
				note_clear(m, n);
		} else if (!n->untold && (n->head.req.hi || n->head.req.lo)) {
			n->untold = 1;
			m->n_untold++;
		}
	}
}

struct life {
	struct mover *m;
	const char *name;
	uint64_t epoch;
};

static int owe_again(struct revoked_lease *e, void *arg)
{
	const struct life *d = arg;
	if (e->lease.epoch == d->epoch && strcmp(e->lease.decode, d->name) == 0) {
		e->owed = 1;
		d->m->n_owed++;
	}
	return 1;
}

void mover_linked(struct mover *m, const char *name, uint64_t epoch)
{
	now(m);
	revoked_each(m->revoked, owe_again, &(struct life){m, name, epoch})
		;
	struct mover_worker *w = mover_find(m, name);
	if (w && w->epoch == epoch && w->ring)
		say_again(m, w);
	step_transfers_to(m, name, epoch, TRANSFER_ON_RELINKED);
}

/* --- a turn -------------------------------------------------------------- */

static int answer_owed(struct revoked_lease *e, void *arg)
{
	struct mover *m = arg;
	if (e->owed && !answer_revoke(m, e))
		m->n_owed++;
	return 1;
}

static struct mover_local local_of(const struct mover_worker *w)
{
	return (struct mover_local){w->name, w->epoch, w->layout_text, &w->layout, &w->region};
}

int mover_find_local(const struct mover *m, const char *name, uint64_t epoch,
                     struct mover_local *ret)
{
	const struct mover_worker *w = mover_find(m, name);
	if (!w || w->via || w->epoch != epoch)
		return 0;
	*ret = local_of(w);
	return 1;
}

void mover_each_local(const struct mover *m, void (*fn)(void *arg, const struct mover_local *w),
                      void *arg)
{
	each_worker(it, m) {
		const struct mover_worker *w = worker_entry(it);
		const struct mover_local l = local_of(w);
		if (!w->via)
			fn(arg, &l);
	}
}

enum mover_turn mover_turn(struct mover *m)
{
	now(m);
	m->budget = m->limits.slice_bytes;
	m->more = 0;
	m->cut = NULL;
	each_worker(it, m) {
		struct mover_worker *w = worker_entry(it);
		for (uint32_t i = 0; w->ring && i < ring_slots(w->ring); i++)
			slot_look(m, w, i);
	}
	list_each_safe(it, nx, &m->transfers)
		transfer_step(transfer_entry(it), TRANSFER_ON_TURN);
	list_each_safe(it, nx, &m->transfers) {
		if (transfer_entry(it)->state == TRANSFER_OPEN)
			transfer_step(transfer_entry(it), TRANSFER_ON_TURN_END);
	}
	if (m->cut) { /* the others come first next time */
		list_remove(&m->cut->node);
		list_push_back(&m->transfers, &m->cut->node);
	}
	if (m->n_owed) {
		m->n_owed = 0;
		revoked_each(m->revoked, answer_owed, m)
			;
	}
	if (m->more)
		return MOVER_BUSY;
	return m->n_transfers || m->n_untold || m->n_owed ? MOVER_OPEN : MOVER_IDLE;
}

void mover_sleeping(struct mover *m, int sleeping)
{
	each_worker(it, m) {
		if (worker_entry(it)->ring)
			ring_sleeping(worker_entry(it)->ring, sleeping);
	}
}

/* --- pdctl --------------------------------------------------------------- */

uint32_t mover_open_transfers(const struct mover *m)
{
	return m->n_transfers;
}

int mover_revoked_in_order(const struct mover *m, const struct lease_key *lease)
{
	const struct revoked_lease *e = revoked_find(m->revoked, lease);
	return e && e->in_order;
}

uint32_t mover_revoked(const struct mover *m)
{
	return revoked_count(m->revoked);
}

uint64_t mover_bytes(const struct mover *m)
{
	return m->bytes;
}

static void add_text(struct buf *out, const char *key, const char *value)
{
	buf_printf(out, "\"%s\":", key);
	buf_add_json(out, value, strlen(value));
	buf_addc(out, ',');
}

void mover_transfers_json(const struct mover *m, struct buf *out)
{
	uint64_t t_now = m->out.now_us(m->out.arg);
	buf_addc(out, '[');
	list_each(it, &m->transfers) {
		const struct transfer *t = transfer_entry(it);
		uint32_t least = t->blocks;
		for (uint32_t l = 0; l < t->p->layout.layers; l++)
			least = t->sent[l] < least ? t->sent[l] : least;
		buf_printf(out, "%s{\"request\":\"%s\",\"attempt\":%u,", it == m->transfers.next ? "" : ",",
		           log_reqid(&t->head.req), t->head.attempt);
		add_text(out, "state", transfer_state_name(t->state));
		add_text(out, "from", t->p->name);
		add_text(out, "to", t->lease.decode);
		buf_printf(
			out,
			"\"slot\":%u,\"generation\":%" PRIu64
			",\"first_token\":%u,\"tokens\":%u,\"blocks\":%u,\"blocks_sent\":%u,\"bytes\":%" PRIu64
			",\"age_ms\":%" PRIu64 ",\"deadline_ms\":%" PRId64 "}",
			t->slot, t->gen, t->first_token, t->tokens, t->blocks, least, t->bytes,
			(t_now - t->found_us) / 1000, ((int64_t)t->head.deadline_us - (int64_t)t_now) / 1000);
	}
	buf_addc(out, ']');
}

void mover_workers_json(const struct mover *m, struct buf *out)
{
	buf_addc(out, '[');
	each_worker(it, m) {
		const struct mover_worker *w = worker_entry(it);
		buf_addc(out, it == m->workers.next ? '{' : ',');
		if (it != m->workers.next)
			buf_addc(out, '{');
		add_text(out, "name", w->name);
		add_text(out, "layout", w->layout_text);
		if (w->via)
			add_text(out, "messager", w->via->name);
		buf_printf(out, "\"epoch\":%" PRIu64 ",\"blocks\":%u,\"ring_slots\":%u,\"linked\":%s}",
		           w->epoch, w->blocks, w->ring ? ring_slots(w->ring) : 0,
		           mover_is_linked(m, w->name, w->epoch) ? "true" : "false");
	}
	buf_addc(out, ']');
}
