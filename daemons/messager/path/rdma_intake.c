/* rdma_intake.c - see rdma_intake.h for the drawing. lease_step alone changes the state of a lease.
 *
 * `closed` rests on what the device has done, never on what the sender has said: the completion of
 * a local invalidation, after which the window's key opens nothing; or the destruction of the queue
 * pair. The exception is a lease without a window for which DONE has arrived: its sender could
 * write the pool until the queue pair ends in any case (rdma.h). */
#include "rdma_intake.h"
#include "rdma_nic.h"
#include "rdma_side.h"
#include "util/check.h"
#include "util/log.h"
#include "util/mem.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

typedef enum rdma_lease_state rdma_lease_step_fn(struct rdma_lease *l, enum rdma_lease_event e);
static rdma_lease_step_fn step_wait, step_bind, step_open, step_leave, step_unbind, step_closed;

#define TO(s) (1u << RDMA_LEASE_##s)
static const struct {
	unsigned next; /* states that may follow */
	rdma_lease_step_fn *step;
} states[RDMA_LEASE_STATE_COUNT] = {
	[RDMA_LEASE_WAIT] = {TO(BIND) | TO(OPEN) | TO(CLOSED), step_wait},
	[RDMA_LEASE_BIND] = {TO(OPEN) | TO(LEAVE) | TO(WAIT), step_bind},
	[RDMA_LEASE_OPEN] = {TO(LEAVE) | TO(UNBIND) | TO(CLOSED) | TO(WAIT), step_open},
	[RDMA_LEASE_LEAVE] = {TO(UNBIND) | TO(CLOSED), step_leave},
	[RDMA_LEASE_UNBIND] = {TO(CLOSED), step_unbind},
	[RDMA_LEASE_CLOSED] = {0, step_closed},
};

static const char *state_name(enum rdma_lease_state s)
{
	static const char *const names[] = {
#define X(name, text) [RDMA_LEASE_##name] = text,
		RDMA_LEASE_STATES(X)
#undef X
	};
	return names[s];
}

static void rdma_lease_enter(struct rdma_lease *l, enum rdma_lease_state s)
{
	if (!(states[l->state].next & 1u << s))
		PANIC("lease in state %s cannot become %s", state_name(l->state), state_name(s));
	log_debug("rdma_lease_state", "peer=%s lease=%" PRIu64 " from=%s to=%s",
	          log_quote(l->i->q.side->peer.name), l->number, state_name(l->state), state_name(s));
	l->state = s;
	l->since_us = rdma_now(l->i->q.t);
}

static void rdma_lease_step(struct rdma_lease *l, enum rdma_lease_event e)
{
	enum rdma_lease_state next = states[l->state].step(l, e);
	while (next != l->state) {
		rdma_lease_enter(l, next);
		next = states[l->state].step(l, RDMA_LEASE_ON_ENTER);
	}
}

static struct rdma_receiver *receiver_of(struct rdma_qp *q)
{
	return (struct rdma_receiver *)((char *)q - offsetof(struct rdma_receiver, q));
}

static struct rdma_lease *lease_at(struct list *node)
{
	return list_entry(node, struct rdma_lease, node);
}

/* --- memory windows ----------------------------------------------------------- */

static void window_free(struct rdma_receiver *i, struct rdma_window *w)
{
	int e = w->mw ? i->q.t->v->dealloc_mw(w->mw) : 0;
	CHECK(e != EBUSY && e != EINVAL);
	w->mw = NULL;
}

static int window_take(struct rdma_receiver *i, struct rdma_window *w)
{
	if (i->n_spare > 0) {
		*w = i->spare[--i->n_spare];
		return 1;
	}
	const struct rdma_nic *n = i->q.nic;
	if (!(w->mw = n->t->v->alloc_mw(n->pd, IBV_MW_TYPE_2))) {
		rdma_qp_count_error(&i->q, "cannot allocate a memory window on %s: %s (the device has %d)",
		                    n->device, strerror(errno), n->attr.max_mw);
		return 0;
	}
	w->key = w->mw->rkey;
	return 1;
}

static void window_put(struct rdma_receiver *i, struct rdma_window *w)
{
	if (i->n_spare == RDMA_SPARE_WINDOWS)
		window_free(i, w);
	else
		i->spare[i->n_spare++] = *w;
	w->mw = NULL;
}

/* Posts one work request of a lease's window. 0: there is no room. Should posting fail, the queue
 * pair does at its next poll. */
static int window_post(struct rdma_lease *l, struct ibv_send_wr *wr, enum rdma_work work)
{
	struct rdma_qp *q = &l->i->q;
	uint64_t number;
	if (rdma_qp_room(q) == 0)
		return 0;
	*rdma_qp_note(q, 0, &number) = (struct rdma_note){.work = work, .of = l};
	wr->wr_id = number;
	wr->send_flags |= IBV_SEND_SIGNALED;
	rdma_qp_post(q, wr, 1);
	return 1;
}

static int window_bind(struct rdma_lease *l, struct ibv_mr *mr)
{
	if (rdma_qp_room(&l->i->q) == 0 || !window_take(l->i, &l->window))
		return 0;
	l->window.key = ibv_inc_rkey(l->window.key);
	l->key = l->window.key;
	struct ibv_send_wr wr = {.opcode = IBV_WR_BIND_MW,
	                         .bind_mw = {.mw = l->window.mw,
	                                     .rkey = l->key,
	                                     .bind_info = {.mr = mr,
	                                                   .addr = (uintptr_t)mr->addr,
	                                                   .length = mr->length,
	                                                   .mw_access_flags = IBV_ACCESS_REMOTE_WRITE |
	                                                                      IBV_ACCESS_REMOTE_READ}}};
	return window_post(l, &wr, RDMA_WORK_BIND);
}

/* In order behind the binding, should that not have completed yet. */
static int window_unbind(struct rdma_lease *l)
{
	struct ibv_send_wr wr = {.opcode = IBV_WR_LOCAL_INV,
	                         .send_flags = IBV_SEND_FENCE,
	                         .invalidate_rkey = l->key};
	return window_post(l, &wr, RDMA_WORK_UNBIND);
}

/* --- the states ----------------------------------------------------------------- */

static void owe_close(struct rdma_receiver *i, uint64_t lease)
{
	/* more than a message has room for are dropped: their senders ask when they lack a key */
	if (i->n_close < RDMA_LEASES_MAX)
		i->close[i->n_close++] = lease;
	rdma_qp_owes(&i->q);
}

static enum rdma_lease_state step_wait(struct rdma_lease *l, enum rdma_lease_event e)
{
	const struct rdma_qp *q = &l->i->q;
	if (e == RDMA_LEASE_ON_CLOSE) {
		owe_close(l->i, l->number);
		return RDMA_LEASE_CLOSED;
	}
	if (l->done || e == RDMA_LEASE_ON_GONE || q->state != RDMA_QP_UP)
		return RDMA_LEASE_WAIT;
	if (!rdma_is_time(q->t, l->retry_at_us))
		return RDMA_LEASE_WAIT;
	struct err err;
	struct ibv_mr *mr = rdma_pool_dest(l->i->pool, q->nic, &err);
	if (!mr)
		rdma_qp_count_error(&l->i->q, "%s", err.text);
	if (mr && !q->nic->windows) {
		l->key = mr->rkey;
		return RDMA_LEASE_OPEN;
	}
	if (mr && window_bind(l, mr))
		return RDMA_LEASE_BIND;
	l->retry_at_us = rdma_now(q->t) + q->t->opts.retry_us;
	rdma_is_time(q->t, l->retry_at_us);
	return RDMA_LEASE_WAIT;
}

static enum rdma_lease_state step_bind(struct rdma_lease *l, enum rdma_lease_event e)
{
	(void)l;
	switch (e) {
	case RDMA_LEASE_ON_BOUND: return RDMA_LEASE_OPEN;
	case RDMA_LEASE_ON_GONE: return RDMA_LEASE_WAIT;
	case RDMA_LEASE_ON_CLOSE: return RDMA_LEASE_LEAVE;
	default: return RDMA_LEASE_BIND;
	}
}

static enum rdma_lease_state step_open(struct rdma_lease *l, enum rdma_lease_event e)
{
	switch (e) {
	case RDMA_LEASE_ON_ENTER:
		l->key_owed = 1;
		rdma_qp_owes(&l->i->q);
		return RDMA_LEASE_OPEN;
	case RDMA_LEASE_ON_GONE: return RDMA_LEASE_WAIT;
	case RDMA_LEASE_ON_CLOSE:
		if (!l->done)
			return RDMA_LEASE_LEAVE;
		if (!l->window.mw)
			return RDMA_LEASE_CLOSED;
		return window_unbind(l) ? RDMA_LEASE_UNBIND : RDMA_LEASE_LEAVE;
	default: return RDMA_LEASE_OPEN;
	}
}

static int leave_is_over(const struct rdma_lease *l)
{
	return l->done || rdma_is_time(l->i->q.t, l->since_us + l->i->q.t->opts.close_us);
}

/* Without a window and without DONE, intake_turn ends the queue pair when the time is over. */
static enum rdma_lease_state step_leave(struct rdma_lease *l, enum rdma_lease_event e)
{
	if (e == RDMA_LEASE_ON_GONE)
		return RDMA_LEASE_CLOSED;
	if (e == RDMA_LEASE_ON_ENTER && !l->done)
		owe_close(l->i, l->number);
	if (!l->window.mw)
		return l->done ? RDMA_LEASE_CLOSED : RDMA_LEASE_LEAVE;
	return leave_is_over(l) && window_unbind(l) ? RDMA_LEASE_UNBIND : RDMA_LEASE_LEAVE;
}

static enum rdma_lease_state step_unbind(struct rdma_lease *l, enum rdma_lease_event e)
{
	(void)l;
	return e == RDMA_LEASE_ON_UNBOUND || e == RDMA_LEASE_ON_GONE ? RDMA_LEASE_CLOSED
	                                                             : RDMA_LEASE_UNBIND;
}

static enum rdma_lease_state step_closed(struct rdma_lease *l, enum rdma_lease_event e)
{
	if (e == RDMA_LEASE_ON_ENTER)
		rdma_tell(l->i->q.t, &l->due);
	return RDMA_LEASE_CLOSED;
}

/* --- the queue pair's --------------------------------------------------------------- */

static void intake_completed(struct rdma_qp *q, const struct rdma_note *w)
{
	struct rdma_lease *l = w->of;
	if (w->work == RDMA_WORK_BIND)
		l->window.mw->rkey = l->key; /* the next binding names the present key */
	else
		window_put(receiver_of(q), &l->window);
	rdma_lease_step(l, w->work == RDMA_WORK_BIND ? RDMA_LEASE_ON_BOUND : RDMA_LEASE_ON_UNBOUND);
}

/* intake_drained deals with the leases. */
static void intake_lost(struct rdma_qp *q, const struct rdma_note *w)
{
	(void)q;
	(void)w;
}

/* Windows first: some devices keep a queue pair alive while a window refers to it. Freeing a window
 * ends its binding, whatever state that is in. */
static void intake_drained(struct rdma_qp *q)
{
	list_each(it, &receiver_of(q)->leases)
		window_free(receiver_of(q), &lease_at(it)->window);
}

static void intake_destroyed(struct rdma_qp *q)
{
	list_each(it, &receiver_of(q)->leases)
		rdma_lease_step(lease_at(it), RDMA_LEASE_ON_GONE);
}

static void canary_register(struct rdma_receiver *i)
{
	struct err err;
	if (!i->canary_mr)
		i->canary_mr = rdma_register(i->q.nic, i->canary, RDMA_CANARY_BYTES,
		                             IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
		                                 IBV_ACCESS_REMOTE_READ,
		                             "a canary", &err);
	if (!i->canary_mr)
		rdma_qp_count_error(&i->q, "%s", err.text);
}

/* A NIC whose port comes up is an event, and every event has a turn. */
static int intake_may_begin(struct rdma_qp *q)
{
	struct rdma_receiver *i = receiver_of(q);
	struct err err;
	int tried;
	struct rdma_nic *nic = rdma_nic_choose(q, i->pool, NULL, &tried);
	if (!nic && tried) {
		q->tried = 0;
		nic = rdma_nic_choose(q, i->pool, NULL, &tried);
	}
	if (!nic) {
		snprintf(q->why, sizeof q->why, "no RDMA device of this host has an active port");
		return 0;
	}
	rdma_qp_use(q, nic);
	/* now, so that no lease waits for it later (a lease without memory windows has a key of its
	 * own: rdma_pool_dest) */
	if (!rdma_pool_source(i->pool, nic, &err)) {
		rdma_qp_blame_nic(q, "%s", err.text);
		return 0;
	}
	canary_register(i);
	q->round++;
	q->other_known = 0;
	i->ready_owed = 0;
	return 1;
}

static void intake_leaves_nic(struct rdma_qp *q)
{
	struct rdma_receiver *i = receiver_of(q);
	while (i->n_spare > 0)
		window_free(i, &i->spare[--i->n_spare]);
	rdma_unregister(q->t, &i->canary_mr);
}

static void intake_turn(struct rdma_qp *q)
{
	struct rdma_receiver *i = receiver_of(q);
	int overdue = 0;
	if (q->state == RDMA_QP_INIT && rdma_qp_repeats(q)) {
		i->offer_owed = 1;
		rdma_qp_owes(q);
	}
	list_each(it, &i->leases) {
		struct rdma_lease *l = lease_at(it);
		rdma_lease_step(l, RDMA_LEASE_ON_TURN);
		overdue |= l->state == RDMA_LEASE_LEAVE && !l->window.mw && leave_is_over(l);
	}
	if (overdue)
		rdma_qp_give_up(q, "a lease was closed that its sender might still write");
}

static int say_head(const struct rdma_qp *q, struct rdma_msg *m, enum rdma_kind kind)
{
	m->kind = kind;
	m->session = q->session;
	m->round = q->round;
	m->n = 0;
	return 1;
}

static int say_keys(struct rdma_receiver *i, struct rdma_msg *m)
{
	say_head(&i->q, m, RDMA_KEYS);
	list_each(it, &i->leases) {
		struct rdma_lease *l = lease_at(it);
		if (!l->key_owed || m->n == RDMA_KEYS_MAX)
			continue;
		l->key_owed = 0;
		if (l->state == RDMA_LEASE_OPEN)
			m->lease[m->n++] = (struct rdma_key){l->number, l->key};
	}
	return m->n > 0;
}

static int intake_say(struct rdma_qp *q, struct rdma_msg *m)
{
	struct rdma_receiver *i = receiver_of(q);
	if (i->offer_owed) {
		i->offer_owed = 0;
		if (q->state == RDMA_QP_INIT) {
			rdma_qp_address(q, &m->address);
			m->canary_at = i->canary_mr ? (uintptr_t)i->canary : 0;
			m->canary_key = i->canary_mr ? i->canary_mr->rkey : 0;
			m->canary_bytes = i->canary_mr ? RDMA_CANARY_BYTES : 0;
			return say_head(q, m, RDMA_OFFER);
		}
	}
	if (i->ready_owed && q->state == RDMA_QP_UP) {
		i->ready_owed = 0;
		return say_head(q, m, RDMA_READY);
	}
	if (i->n_close > 0) {
		say_head(q, m, RDMA_CLOSE);
		m->n = i->n_close;
		for (uint32_t n = 0; n < m->n; n++)
			m->lease[n].lease = i->close[n];
		i->n_close = 0;
		return q->round != 0;
	}
	return q->state == RDMA_QP_UP && say_keys(i, m);
}

static struct rdma_lease *find_lease(struct rdma_receiver *i, uint64_t number)
{
	list_each(it, &i->leases)
		if (lease_at(it)->number == number)
			return lease_at(it);
	return NULL;
}

static void intake_unsaid(struct rdma_qp *q, const struct rdma_msg *m)
{
	struct rdma_receiver *i = receiver_of(q);
	for (uint32_t n = 0; m->kind == RDMA_CLOSE && n < m->n; n++)
		owe_close(i, m->lease[n].lease);
	for (uint32_t n = 0; m->kind == RDMA_KEYS && n < m->n; n++) {
		struct rdma_lease *l = find_lease(i, m->lease[n].lease);
		if (l)
			l->key_owed = 1;
	}
	if (m->kind == RDMA_READY)
		i->ready_owed = 1;
}

static const struct rdma_qp_end intake_end = {.role = "intake",
                                              .access = IBV_ACCESS_REMOTE_WRITE |
                                                        IBV_ACCESS_REMOTE_READ,
                                              .may_begin = intake_may_begin,
                                              .completed = intake_completed,
                                              .lost = intake_lost,
                                              .drained = intake_drained,
                                              .destroyed = intake_destroyed,
                                              .leaves_nic = intake_leaves_nic,
                                              .turn = intake_turn,
                                              .say = intake_say,
                                              .unsaid = intake_unsaid};

/* --- messages -------------------------------------------------------------------------- */

static void take_accept(struct rdma_receiver *i, const struct rdma_msg *m)
{
	struct rdma_qp *q = &i->q;
	if (m->round != q->round)
		return;
	if (q->state == RDMA_QP_INIT && !q->other_known) {
		q->other = m->address;
		q->other_known = q->ready = 1;
	}
	i->ready_owed = 1;
	rdma_qp_owes(q);
}

static void take_done(struct rdma_receiver *i, const struct rdma_msg *m)
{
	for (uint32_t n = 0; n < m->n; n++) {
		struct rdma_lease *l = find_lease(i, m->lease[n].lease);
		if (l)
			l->done = 1;
	}
}

static void take_ask(struct rdma_receiver *i, const struct rdma_msg *m)
{
	for (uint32_t n = 0; n < m->n; n++) {
		struct rdma_lease *l = find_lease(i, m->lease[n].lease);
		if (!l || l->state >= RDMA_LEASE_LEAVE)
			owe_close(i, m->lease[n].lease);
		else
			l->key_owed = l->state == RDMA_LEASE_OPEN;
	}
	rdma_qp_owes(&i->q);
}

int rdma_intake_said(struct intake *intake, const void *bytes, size_t n, struct err *err)
{
	struct rdma_side *s = (struct rdma_side *)intake;
	struct rdma_msg m;
	int e = rdma_msg_read(bytes, n, &m, err);
	if (e < 0) {
		s->errors++;
		return e;
	}
	if (m.kind != RDMA_ACCEPT && m.kind != RDMA_RESET && m.kind != RDMA_REFUSE &&
	    m.kind != RDMA_DONE && m.kind != RDMA_ASK)
		return err_set(err, ERR_INVALID, "RDMA message of kind %d, which only a receiver sends",
		               (int)m.kind);
	struct rdma_receiver *i = s->lanes[m.lane] ? receiver_of(s->lanes[m.lane]) : NULL;
	if (!i || m.session != i->q.session) {
		rdma_side_owe_end(s, m.lane, m.session);
		return 0;
	}
	switch (m.kind) {
	case RDMA_ACCEPT: take_accept(i, &m); break;
	case RDMA_RESET:
	case RDMA_REFUSE:
		if (m.round != i->q.round)
			break;
		if (m.kind == RDMA_REFUSE)
			rdma_qp_mark_tried(&i->q);
		rdma_qp_fail(&i->q, "the other end: %s", m.text);
		break;
	case RDMA_DONE: take_done(i, &m); break;
	default: take_ask(i, &m); break;
	}
	rdma_soon(s->t);
	return 0;
}

/* --- life of a lane -------------------------------------------------------------------------- */

static struct rdma_receiver *receiver_new(struct rdma_side *s, struct rdma_pool *pool)
{
	struct rdma_receiver *i = mem_zalloc(sizeof *i);
	list_init(&i->leases);
	i->pool = pool;
	i->canary = mem_zalloc(RDMA_CANARY_BYTES);
	rdma_qp_init(&i->q, s, pool->lane);
	while (i->q.session == 0)
		if (getrandom(&i->q.session, sizeof i->q.session, 0) < 0)
			i->q.session = rdma_now(i->q.t);
	return i;
}

/* Nothing is written after it returns. */
static void receiver_destroy(struct rdma_receiver *i)
{
	rdma_qp_finish(&i->q, "the link has ended");
	while (!list_empty(&i->leases)) {
		struct rdma_lease *l = lease_at(i->leases.next);
		if (l->state != RDMA_LEASE_CLOSED)
			rdma_lease_step(l, RDMA_LEASE_ON_CLOSE);
		CHECK(l->state == RDMA_LEASE_CLOSED);
		list_remove(&l->due.node);
		list_remove(&l->node);
		free(l);
	}
	rdma_qp_fini(&i->q);
	free(i->canary);
	free(i);
}

void rdma_intakes_add(struct rdma *t, struct rdma_pool *p)
{
	list_each(it, &t->intakes)
		receiver_new(list_entry(it, struct rdma_side, node), p);
}

void rdma_intakes_remove(struct rdma *t, const struct rdma_pool *p)
{
	list_each(it, &t->intakes) {
		struct rdma_side *s = list_entry(it, struct rdma_side, node);
		uint64_t session = s->lanes[p->lane]->session;
		receiver_destroy(receiver_of(s->lanes[p->lane]));
		rdma_side_owe_end(s, p->lane, session);
	}
}

/* --- life of a lease ------------------------------------------------------------------------ */

static void lease_tell(struct rdma_due *d)
{
	struct rdma_lease *l = list_entry(d, struct rdma_lease, due);
	l->closed(l->arg);
}

static int lease_check(const struct incoming_opts *o, struct err *err)
{
	for (uint32_t k = 0; k < o->blocks; k++) {
		if (o->dst[k] >= o->to->blocks)
			return err_set(err, ERR_INVALID, "block %u of a pool of %u", o->dst[k], o->to->blocks);
		uint64_t is = atomic_load_explicit(&o->to->generations[o->dst[k]], memory_order_acquire);
		if (is != o->generations[k])
			return err_set(err, ERR_STALE,
			               "block %u has generation %" PRIu64 ", the lease's is %" PRIu64,
			               o->dst[k], is, o->generations[k]);
	}
	return 0;
}

int rdma_incoming_new(struct intake *intake, const struct incoming_opts *o, struct incoming **ret,
                      unsigned char *handle, size_t *ret_handle_bytes, struct err *err)
{
	struct rdma_side *s = (struct rdma_side *)intake;
	struct rdma *t = s->t;
	struct err own;
	err = err ? err : &own;
	if (lease_check(o, err) < 0)
		return err->code;
	struct rdma_pool *pool = rdma_pool_get(t, o->to, err);
	if (!pool)
		return err->code;
	struct rdma_receiver *i = receiver_of(s->lanes[pool->lane]);
	if (i->q.nic && !rdma_pool_dest(pool, i->q.nic, err))
		return err->code;
	struct rdma_lease *l = mem_alloc(sizeof *l);
	struct rdma_lease init = {.i = i,
	                          .number = ++t->leases,
	                          .arg = o->arg,
	                          .closed = o->closed,
	                          .state = RDMA_LEASE_WAIT,
	                          .since_us = rdma_now(t),
	                          .due.tell = lease_tell};
	memcpy(l, &init, sizeof *l);
	list_init(&l->due.node);
	list_push_back(&i->leases, &l->node);
	rdma_qp_poll(&i->q);
	rdma_lease_step(l, RDMA_LEASE_ON_TURN);
	struct rdma_handle h = {.lane = i->q.lane,
	                        .session = i->q.session,
	                        .lease = l->number,
	                        .at = (uintptr_t)o->to->pool->host,
	                        .bytes = o->to->pool->bytes};
	if (l->state == RDMA_LEASE_OPEN) {
		h.round = i->q.round;
		h.key = l->key;
		l->key_owed = 0;
	}
	rdma_handle_write(&h, handle);
	*ret_handle_bytes = RDMA_HANDLE_BYTES;
	*ret = (struct incoming *)l;
	rdma_soon(t);
	return 0;
}

int rdma_incoming_complete(const struct incoming *incoming)
{
	(void)incoming;
	return 1;
}

int rdma_incoming_close(struct incoming *incoming)
{
	struct rdma_lease *l = (struct rdma_lease *)incoming;
	rdma_qp_poll(&l->i->q);
	rdma_lease_step(l, RDMA_LEASE_ON_CLOSE);
	rdma_soon(l->i->q.t);
	if (l->state != RDMA_LEASE_CLOSED)
		return 0;
	list_remove(&l->due.node);
	return 1;
}

void rdma_incoming_free(struct incoming **incoming)
{
	struct rdma_lease *l = (struct rdma_lease *)*incoming;
	if (!l)
		return;
	CHECK(l->state == RDMA_LEASE_CLOSED);
	list_remove(&l->node);
	list_remove(&l->due.node);
	free(l);
	*incoming = NULL;
}

void rdma_incoming_drop(struct incoming **incoming)
{
	struct rdma_lease *l = (struct rdma_lease *)*incoming;
	if (l->state != RDMA_LEASE_CLOSED && !rdma_incoming_close(*incoming))
		rdma_qp_finish(&l->i->q, "the memory of a lease is about to be unmapped");
	rdma_incoming_free(incoming);
}

/* --- life of an intake ----------------------------------------------------------------------- */

struct intake *rdma_intake_new(void *transport, const struct path_peer *peer,
                               const struct path_hooks *hooks)
{
	struct rdma_side *s = mem_zalloc(sizeof *s);
	struct rdma *t = transport;
	rdma_side_init(s, t, &intake_end, peer, hooks);
	list_push_back(&t->intakes, &s->node);
	list_each(it, &t->pools)
		receiver_new(s, list_entry(it, struct rdma_pool, in));
	return (struct intake *)s;
}

void rdma_intake_destroy(struct intake **intake)
{
	struct rdma_side *s = (struct rdma_side *)*intake;
	if (!s)
		return;
	for (unsigned i = 0; i < RDMA_LANES_MAX; i++)
		if (s->lanes[i])
			receiver_destroy(receiver_of(s->lanes[i]));
	rdma_side_fini(s);
	free(s);
	*intake = NULL;
}

void rdma_intake_state(const struct intake *intake, struct path_state *ret)
{
	rdma_side_show((const struct rdma_side *)intake, ret);
}
