/* rdma_qp.c - see rdma_qp.h for the drawing.
 *
 * A queue pair that fails is not repaired: it is moved to ERR, so that the device flushes what is
 * outstanding, drained, destroyed, and another one is made. Destroying is what ends all access of
 * the device to memory; draining before it saves what did arrive from being sent twice. */
#include "rdma_nic.h"
#include "rdma_side.h"
#include "util/check.h"
#include "util/log.h"
#include "util/map.h"
#include "util/mem.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define DOUBLINGS 6    /* of pauses */
#define ACK_TIMEOUT 14 /* 4.096 us << 14 = 67 ms until a packet is sent again */
#define ACK_RETRIES 7
#define HOP_LIMIT 64
#define READS_MAX 16
#define POLL_BATCH 16

typedef enum rdma_qp_state rdma_qp_step_fn(struct rdma_qp *q, enum rdma_qp_event e);
static rdma_qp_step_fn step_reset, step_init, step_rtr, step_rts, step_up, step_err, step_drained;

#define TO(s) (1u << RDMA_QP_##s)
static const struct {
	unsigned next; /* states that may follow */
	rdma_qp_step_fn *step;
} states[RDMA_QP_STATE_COUNT] = {
	[RDMA_QP_RESET] = {TO(INIT), step_reset},
	[RDMA_QP_INIT] = {TO(RTR) | TO(ERR), step_init},
	[RDMA_QP_RTR] = {TO(RTS) | TO(ERR), step_rtr},
	[RDMA_QP_RTS] = {TO(UP) | TO(ERR), step_rts},
	[RDMA_QP_UP] = {TO(ERR), step_up},
	[RDMA_QP_ERR] = {TO(DRAINED), step_err},
	[RDMA_QP_DRAINED] = {TO(RESET), step_drained},
};

static const char *state_name(enum rdma_qp_state s)
{
	static const char *const names[] = {
#define X(name, text) [RDMA_QP_##name] = text,
		RDMA_QP_STATES(X)
#undef X
	};
	return names[s];
}

static int is_live(const struct rdma_qp *q)
{
	return q->state != RDMA_QP_RESET && q->state < RDMA_QP_ERR;
}

static void rdma_qp_enter(struct rdma_qp *q, enum rdma_qp_state s)
{
	if (!(states[q->state].next & 1u << s))
		PANIC("queue pair in state %s cannot become %s", state_name(q->state), state_name(s));
	log_debug("rdma_qp_state", "role=%s peer=%s lane=%u round=%u from=%s to=%s", q->end->role,
	          log_quote(q->side->peer.name), q->lane, q->round, state_name(q->state),
	          state_name(s));
	q->state = s;
	q->since_us = rdma_now(q->t);
	q->repeat_us = q->t->opts.retry_us;
	q->repeat_at_us = 0;
	rdma_qp_owes(q);
	rdma_tell(q->t, &q->side->due);
}

static enum rdma_qp_state after_event(struct rdma_qp *q, enum rdma_qp_event e)
{
	if (e == RDMA_QP_ON_FAIL && is_live(q))
		return RDMA_QP_ERR;
	return q->state;
}

void rdma_qp_step(struct rdma_qp *q, enum rdma_qp_event e)
{
	enum rdma_qp_state next = after_event(q, e);
	if (next == q->state && e != RDMA_QP_ON_FAIL)
		next = states[q->state].step(q, e);
	while (next != q->state) {
		rdma_qp_enter(q, next);
		next = states[q->state].step(q, RDMA_QP_ON_ENTER);
	}
}

/* --- failures ------------------------------------------------------------ */

void rdma_qp_count_error(struct rdma_qp *q, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(q->shown.last_error, sizeof q->shown.last_error, fmt, ap);
	va_end(ap);
	q->shown.errors++;
	q->shown.last_error_at_us = rdma_now(q->t);
	log_warn("rdma_error", "role=%s peer=%s lane=%u device=%s round=%u error=%s", q->end->role,
	         log_quote(q->side->peer.name), q->lane, q->nic ? q->nic->device : "-", q->round,
	         log_quote(q->shown.last_error));
}

void rdma_qp_mark_tried(struct rdma_qp *q)
{
	q->tried |= 1u << q->nic->index;
}

static void pause_after_failure(struct rdma_qp *q)
{
	uint64_t now = rdma_now(q->t);
	/* before it is up the other end may have been slow, which says nothing about the NIC */
	if (q->end->blames_nic && q->state == RDMA_QP_UP && q->tail == 0)
		rdma_qp_mark_tried(q);
	if (q->state == RDMA_QP_UP && now - q->since_us >= q->t->opts.timeout_us)
		q->fails = 0;
	q->not_before_us = now + (q->t->opts.retry_us << (q->fails < DOUBLINGS ? q->fails : DOUBLINGS));
	q->fails++;
}

void rdma_qp_blame_nic(struct rdma_qp *q, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(q->why, sizeof q->why, fmt, ap);
	va_end(ap);
	rdma_qp_count_error(q, "%s", q->why);
	pause_after_failure(q);
	rdma_qp_mark_tried(q);
	rdma_is_time(q->t, q->not_before_us);
}

void rdma_qp_give_up(struct rdma_qp *q, const char *why)
{
	if (!is_live(q))
		return;
	if (why != q->why)
		snprintf(q->why, sizeof q->why, "%s", why);
	rdma_qp_step(q, RDMA_QP_ON_FAIL);
}

static void fail_with(struct rdma_qp *q, const char *why)
{
	rdma_qp_count_error(q, "%s", why);
	pause_after_failure(q);
	rdma_qp_give_up(q, why);
}

void rdma_qp_fail(struct rdma_qp *q, const char *fmt, ...)
{
	char why[RDMA_TEXT_MAX];
	va_list ap;
	if (!is_live(q))
		return;
	va_start(ap, fmt);
	vsnprintf(why, sizeof why, fmt, ap);
	va_end(ap);
	fail_with(q, why);
}

void rdma_qp_finish(struct rdma_qp *q, const char *why)
{
	rdma_qp_give_up(q, why);
	while (q->state == RDMA_QP_ERR)
		rdma_qp_step(q, RDMA_QP_ON_TURN);
}

/* --- making and destroying ------------------------------------------------ */

static int modify(struct rdma_qp *q, struct ibv_qp_attr *a, int mask)
{
	return q->t->v->modify_qp(q->qp, a, mask | IBV_QP_STATE);
}

/* A busy queue pair or completion queue would be our bug. Any other error means that the device is
 * gone, and with it its access to memory. */
static void destroy(struct rdma_qp *q)
{
	const struct verbs *v = q->t->v;
	int e = q->qp ? v->destroy_qp(q->qp) : 0;
	if (e == 0 && q->cq)
		e = v->destroy_cq(q->cq);
	CHECK(e != EBUSY && e != EINVAL);
	if (e)
		log_error("rdma_destroy_failed", "device=%s error=%s", q->nic->device, strerror(e));
	q->qp = NULL;
	q->cq = NULL;
}

static const char *make(struct rdma_qp *q)
{
	const struct rdma *t = q->t;
	const struct rdma_nic *nic = q->nic;
	if (!(q->cq = t->v->create_cq(nic->ctx, (int)t->opts.depth, q, nic->channel, 0)))
		return "create a completion queue";
	struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC,
	                                .send_cq = q->cq,
	                                .recv_cq = q->cq,
	                                .cap = {.max_send_wr = t->opts.depth,
	                                        .max_recv_wr = 1,
	                                        .max_send_sge = 1,
	                                        .max_recv_sge = 1}};
	if (!(q->qp = t->v->create_qp(nic->pd, &init)))
		return "create a queue pair";
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT,
	                        .port_num = nic->port_num,
	                        .qp_access_flags = (unsigned)q->end->access};
	if ((errno = modify(q, &a, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)))
		return "initialize a queue pair";
	if ((errno = t->v->req_notify_cq(q->cq, 0)))
		return "arm a completion queue";
	return NULL;
}

static int begin(struct rdma_qp *q)
{
	/* also one that is replaced on purpose: the other end could ask for that all the time */
	q->not_before_us = rdma_now(q->t) + q->t->opts.retry_us;
	q->head = q->tail = q->flushed = 0;
	q->notify = q->ready = 0;
	q->broken[0] = 0;
	if (getrandom(&q->psn, sizeof q->psn, 0) != (ssize_t)sizeof q->psn)
		q->psn = (uint32_t)map_hash(&q->round, sizeof q->round);
	q->psn &= 0xffffff;
	const char *what = make(q);
	if (!what)
		return 1;
	rdma_qp_blame_nic(q, "cannot %s on %s: %s", what, q->nic->device, strerror(errno));
	destroy(q);
	return 0;
}

/* RDMA READs of the other end that this end executes at a time */
static uint8_t reads_served(const struct rdma_nic *n)
{
	return (uint8_t)(n->attr.max_qp_rd_atom < READS_MAX ? n->attr.max_qp_rd_atom : READS_MAX);
}

static int to_rtr(struct rdma_qp *q)
{
	const struct rdma_nic *n = q->nic;
	int ethernet = n->port.link_layer == IBV_LINK_LAYER_ETHERNET;
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = q->other.mtu < n->port.active_mtu ? (enum ibv_mtu)q->other.mtu
	                                                  : n->port.active_mtu,
		.dest_qp_num = q->other.qpn,
		.rq_psn = q->other.psn,
		.max_dest_rd_atomic = reads_served(n),
		.min_rnr_timer = 12,
		.ah_attr = {.dlid = q->other.lid, .port_num = n->port_num, .is_global = ethernet}};
	if (ethernet)
		a.ah_attr.grh = (struct ibv_global_route){.dgid = q->other.gid,
		                                          .sgid_index = (uint8_t)n->gid_index,
		                                          .hop_limit = HOP_LIMIT,
		                                          .traffic_class = q->t->opts.traffic_class};
	return modify(q, &a,
	              IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
	                  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

static int to_rts(struct rdma_qp *q)
{
	int reads = q->nic->attr.max_qp_init_rd_atom;
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTS,
	                        .timeout = ACK_TIMEOUT,
	                        .retry_cnt = ACK_RETRIES,
	                        .rnr_retry = ACK_RETRIES,
	                        .sq_psn = q->psn,
	                        .max_rd_atomic = (uint8_t)(q->other.reads < reads ? q->other.reads
	                                                                          : reads)};
	return modify(q, &a,
	              IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
	                  IBV_QP_MAX_QP_RD_ATOMIC);
}

/* --- the states ----------------------------------------------------------- */

/* For the step that returns ERR next. */
static void record_failure(struct rdma_qp *q, const char *what, int error)
{
	rdma_qp_count_error(q, "%s%s%s", what, error ? ": " : "", error ? strerror(error) : "");
	snprintf(q->why, sizeof q->why, "%s", q->shown.last_error);
	pause_after_failure(q);
}

static enum rdma_qp_state step_reset(struct rdma_qp *q, enum rdma_qp_event e)
{
	/* not on entering: whoever ended the last one may be about to free q */
	if (e != RDMA_QP_ON_TURN || !rdma_is_time(q->t, q->not_before_us) || !q->end->may_begin(q))
		return RDMA_QP_RESET;
	return begin(q) ? RDMA_QP_INIT : RDMA_QP_RESET;
}

static enum rdma_qp_state step_init(struct rdma_qp *q, enum rdma_qp_event e)
{
	(void)e;
	if (!q->other_known)
		return RDMA_QP_INIT;
	if (!rdma_nic_reaches(q->nic, &q->other)) {
		record_failure(q, "the other end's NIC is on another link layer or InfiniBand subnet", 0);
		return RDMA_QP_ERR;
	}
	int error = to_rtr(q);
	if (error == 0)
		return RDMA_QP_RTR;
	record_failure(q, "cannot connect the queue pair to the other end's address", error);
	rdma_qp_mark_tried(q);
	return RDMA_QP_ERR;
}

static enum rdma_qp_state step_rtr(struct rdma_qp *q, enum rdma_qp_event e)
{
	(void)e;
	int error = to_rts(q);
	if (error == 0)
		return RDMA_QP_RTS;
	record_failure(q, "cannot start the queue pair", error);
	return RDMA_QP_ERR;
}

static enum rdma_qp_state step_rts(struct rdma_qp *q, enum rdma_qp_event e)
{
	(void)e;
	if (q->ready)
		return RDMA_QP_UP;
	if (!rdma_is_time(q->t, q->since_us + q->t->opts.timeout_us))
		return RDMA_QP_RTS;
	record_failure(q, "the other end did not say that it is ready", 0);
	return RDMA_QP_ERR;
}

static enum rdma_qp_state step_up(struct rdma_qp *q, enum rdma_qp_event e)
{
	if (e == RDMA_QP_ON_ENTER) {
		q->shown.restarts += q->round > 1;
		log_notice("rdma_up", "role=%s peer=%s lane=%u device=%s round=%u", q->end->role,
		           log_quote(q->side->peer.name), q->lane, q->nic->device, q->round);
	}
	if (q->head == q->tail || !rdma_is_time(q->t, q->progress_us + q->t->opts.timeout_us))
		return RDMA_QP_UP;
	char what[96];
	snprintf(what, sizeof what, "no completion for %" PRIu64 " ms of %" PRIu64 " work requests",
	         q->t->opts.timeout_us / 1000, q->head - q->tail);
	record_failure(q, what, 0);
	return RDMA_QP_ERR;
}

static enum rdma_qp_state step_err(struct rdma_qp *q, enum rdma_qp_event e)
{
	if (e == RDMA_QP_ON_ENTER) {
		struct ibv_qp_attr a = {.qp_state = IBV_QPS_ERR};
		int error = modify(q, &a, 0);
		if (error)
			log_warn("rdma_modify_failed", "device=%s error=%s", q->nic->device, strerror(error));
	}
	rdma_qp_poll(q);
	if (q->flushed >= q->head || rdma_now(q->t) - q->since_us >= q->t->opts.drain_us)
		return RDMA_QP_DRAINED;
	rdma_is_time(q->t, q->since_us + q->t->opts.drain_us);
	return RDMA_QP_ERR;
}

static enum rdma_qp_state step_drained(struct rdma_qp *q, enum rdma_qp_event e)
{
	(void)e;
	for (; q->tail < q->head; q->tail++)
		q->end->lost(q, &q->notes[q->tail % q->t->opts.depth]);
	q->end->drained(q);
	destroy(q);
	q->end->destroyed(q);
	return RDMA_QP_RESET;
}

/* --- work requests --------------------------------------------------------- */

static const char *work_name(enum rdma_work w)
{
	static const char *const names[] = {"write",  "flush",  "canary's write",
	                                    "canary", "window", "window"};
	return names[w];
}

static void take_completion(struct rdma_qp *q, const struct ibv_wc *wc)
{
	uint64_t number = wc->wr_id;
	if (number < q->tail || number >= q->head) {
		snprintf(q->broken, sizeof q->broken,
		         "completion of work request %" PRIu64 ", but %" PRIu64 " to %" PRIu64
		         " are outstanding",
		         number, q->tail, q->head);
		return;
	}
	q->progress_us = rdma_now(q->t);
	if (q->flushed < number + 1)
		q->flushed = number + 1;
	if (wc->status == IBV_WC_SUCCESS) {
		for (; q->tail <= number; q->tail++)
			q->end->completed(q, &q->notes[q->tail % q->t->opts.depth]);
	} else if (q->broken[0] == 0) {
		snprintf(q->broken, sizeof q->broken, "%s: %s (vendor error %u)",
		         work_name(q->notes[number % q->t->opts.depth].work),
		         q->t->v->wc_status_str(wc->status), wc->vendor_err);
	}
}

void rdma_qp_poll(struct rdma_qp *q)
{
	struct ibv_wc wc[POLL_BATCH];
	int n;
	if (!q->cq)
		return;
	if (q->notify) {
		q->notify = 0;
		if (q->t->v->req_notify_cq(q->cq, 0))
			snprintf(q->broken, sizeof q->broken, "cannot arm the completion queue");
	}
	do {
		n = q->t->v->poll_cq(q->cq, POLL_BATCH, wc);
		for (int i = 0; i < n; i++)
			take_completion(q, &wc[i]);
	} while (n == POLL_BATCH);
	if (n < 0)
		snprintf(q->broken, sizeof q->broken, "cannot read the completion queue");
	if (q->broken[0] && is_live(q))
		fail_with(q, q->broken);
}

uint32_t rdma_qp_room(const struct rdma_qp *q)
{
	return q->state == RDMA_QP_UP && !q->broken[0]
	           ? q->t->opts.depth - (uint32_t)(q->head - q->tail)
	           : 0;
}

struct rdma_note *rdma_qp_note(struct rdma_qp *q, uint32_t at, uint64_t *ret_number)
{
	CHECK(at < rdma_qp_room(q));
	*ret_number = q->head + at;
	return &q->notes[(q->head + at) % q->t->opts.depth];
}

void rdma_qp_post(struct rdma_qp *q, struct ibv_send_wr *list, uint32_t n)
{
	struct ibv_send_wr *bad = NULL;
	if (q->head == q->tail)
		q->progress_us = rdma_now(q->t);
	int error = q->t->v->post_send(q->qp, list, &bad);
	uint32_t posted = n;
	if (error && bad)
		posted = (uint32_t)(bad->wr_id - q->head);
	q->head += posted;
	for (uint32_t i = posted; i < n; i++)
		q->end->lost(q, &q->notes[(q->head + i - posted) % q->t->opts.depth]);
	if (!error)
		return;
	/* not here: the caller may be within a step of its own */
	snprintf(q->broken, sizeof q->broken, "cannot post %u work requests: %s", n, strerror(error));
	rdma_soon(q->t);
}

void rdma_qp_address(const struct rdma_qp *q, struct rdma_address *ret)
{
	const struct rdma_nic *n = q->nic;
	*ret = (struct rdma_address){.gid = n->gid,
	                             .qpn = q->qp->qp_num,
	                             .psn = q->psn,
	                             .lid = n->port.lid,
	                             .mtu = (uint8_t)n->port.active_mtu,
	                             .link_layer = n->port.link_layer,
	                             .reads = reads_served(n)};
}

/* --- telling --------------------------------------------------------------- */

void rdma_qp_owes(struct rdma_qp *q)
{
	rdma_tell(q->t, &q->due);
}

int rdma_qp_repeats(struct rdma_qp *q)
{
	if (!rdma_is_time(q->t, q->repeat_at_us))
		return 0;
	q->repeat_at_us = q->t->now_us + q->repeat_us;
	if (q->repeat_us < q->t->opts.retry_us << DOUBLINGS)
		q->repeat_us *= 2;
	rdma_is_time(q->t, q->repeat_at_us);
	return 1;
}

/* One message is sent a call: the hook may destroy q. */
static void qp_tell(struct rdma_due *d)
{
	struct rdma_qp *q = list_entry(d, struct rdma_qp, due);
	struct rdma *t = q->t;
	struct rdma_msg m;
	if (!rdma_is_time(t, q->say_at_us) || !q->end->say(q, &m))
		return;
	m.lane = q->lane;
	t->told = &q->node;
	rdma_qp_owes(q);
	if (rdma_side_say(q->side, &m) < 0 && t->told) {
		q->end->unsaid(q, &m);
		q->say_at_us = t->now_us + t->opts.retry_us;
		rdma_is_time(t, q->say_at_us);
	}
	t->told = NULL;
}

void rdma_qp_use(struct rdma_qp *q, struct rdma_nic *nic)
{
	if (q->nic != nic && q->nic)
		q->end->leaves_nic(q);
	q->nic = nic;
}

void rdma_qp_init(struct rdma_qp *q, struct rdma_side *side, unsigned lane)
{
	struct rdma *t = side->t;
	q->t = t;
	q->side = side;
	q->end = side->end;
	q->lane = lane;
	q->notes = mem_array(t->opts.depth, sizeof *q->notes);
	q->state = RDMA_QP_RESET;
	q->repeat_us = t->opts.retry_us;
	q->due.tell = qp_tell;
	list_init(&q->due.node);
	list_push_back(&t->qps, &q->node);
	side->lanes[lane] = q;
	snprintf(q->why, sizeof q->why, "its queue pairs are not connected yet");
	rdma_tell(t, &side->due);
}

void rdma_qp_fini(struct rdma_qp *q)
{
	rdma_qp_finish(q, "the link has ended");
	if (q->nic)
		q->end->leaves_nic(q);
	if (q->t->told == &q->node)
		q->t->told = NULL;
	list_remove(&q->node);
	list_remove(&q->due.node);
	q->side->lanes[q->lane] = NULL;
	rdma_tell(q->t, &q->side->due);
	free(q->notes);
}
