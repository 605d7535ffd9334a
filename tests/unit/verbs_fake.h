/* verbs_fake.h - an RDMA fabric in this process, behind the table of verbs.h. It moves real bytes,
 * and is as unkind as the specification allows, by a seed:
 *
 *  - Bytes of a WRITE reach memory in any order and at any time until a READ of the same queue pair
 *    is executed behind it, even after its completion, and also after its sender has gone. What is
 *    still on its way when a window is invalidated, or the receiving queue pair is destroyed, is
 *    placed or dropped in that call; a queue pair in ERR may still place.
 *  - Source bytes are read at any time until the completion, or until the queue pair is destroyed.
 *  - Completions come late, in order; the completion channel wakes up more often than it must.
 *  - Queue pairs are killed (retries exceeded, flushes), or hang until they are destroyed.
 *  - Allocations are refused.
 *  - Ports go down and come up (fake_port), and devices cannot reach each other (fake.cut).
 *
 * It fails the test for what a device would not forgive: more work requests than a send queue
 * holds, addresses beyond a registration or with the wrong key, completion queues that overflow,
 * objects destroyed while others use them. fake.live counts objects. Virtual time: fake_us.
 *
 * Here are queue pairs and what moves between them; what they are made of, and the state of it all,
 * is in verbs_fake_objects.h. */
#ifndef VERBS_FAKE_H
#define VERBS_FAKE_H

#include "verbs_fake_objects.h"

/* --- queue pairs ------------------------------------------------------------- */

static inline struct ibv_qp *fake_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *a)
{
	struct fake_qp *q = fake_new(sizeof *q);
	if (!q)
		return NULL;
	ck_assert(a->qp_type == IBV_QPT_RC && a->cap.max_send_wr <= FAKE_DEPTH && !a->sq_sig_all);
	ck_assert(a->send_cq->context == pd->context);
	q->v.pd = pd;
	q->v.send_cq = a->send_cq;
	q->v.qp_num = 100 + ++fake.qpns;
	q->depth = a->cap.max_send_wr;
	q->state = IBV_QPS_RESET;
	((struct fake_cq *)a->send_cq)->qps++;
	fake.qp[fake_place(fake.qp)] = q;
	return &q->v;
}

static inline int fake_modify_qp(struct ibv_qp *v, struct ibv_qp_attr *a, int mask)
{
	struct fake_qp *q = (struct fake_qp *)v;
	const int init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	const int rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
	                IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	const int rts = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
	                IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
	if (a->qp_state != IBV_QPS_ERR && fake_chance(fake.knobs.refuse))
		return ETIMEDOUT;
	switch (a->qp_state) {
	case IBV_QPS_INIT:
		ck_assert(q->state == IBV_QPS_RESET && mask == init);
		q->access = a->qp_access_flags;
		break;
	case IBV_QPS_RTR:
		ck_assert(q->state == IBV_QPS_INIT && mask == rtr);
		q->dest = a->dest_qp_num;
		q->rq_psn = a->rq_psn;
		break;
	case IBV_QPS_RTS:
		ck_assert(q->state == IBV_QPS_RTR && mask == rts && a->max_rd_atomic > 0);
		q->sq_psn = a->sq_psn;
		break;
	default: ck_assert(a->qp_state == IBV_QPS_ERR && mask == IBV_QP_STATE);
	}
	q->state = a->qp_state;
	return 0;
}

static inline struct fake_mr *fake_find_mr(uint32_t key)
{
	for (int i = 0; i < FAKE_MAX; i++)
		if (fake.mr[i] && fake.mr[i]->v.lkey == key)
			return fake.mr[i];
	return NULL;
}

static inline int fake_within(uint64_t at, uint64_t bytes, uint64_t from, uint64_t size)
{
	return at >= from && bytes <= size && at - from <= size - bytes;
}

/* May this queue pair's other end access that? *ret_mw: by which window. */
static inline int fake_allows(const struct fake_qp *q, uint64_t at, uint32_t bytes, uint32_t key,
                              int access, struct fake_mw **ret_mw)
{
	*ret_mw = NULL;
	if (!(q->access & (unsigned)access))
		return 0;
	for (int i = 0; i < FAKE_MAX; i++) {
		struct fake_mw *w = fake.mw[i];
		if (!w || !w->mr || w->key != key || w->qp != q)
			continue;
		*ret_mw = w;
		return fake_within(at, bytes, w->at, w->bytes);
	}
	struct fake_mr *m = fake_find_mr(key);
	return m && m->access & access && m->v.pd == q->v.pd &&
	       fake_within(at, bytes, (uintptr_t)m->v.addr, m->v.length);
}

static inline size_t fake_device_of(const struct fake_qp *q)
{
	return (size_t)(q->v.pd->context->device - fake_device);
}

static inline int fake_reaches(const struct fake_qp *q, const struct fake_qp *to)
{
	size_t from = fake_device_of(q), at = fake_device_of(to);
	return !fake.device[from].down && !fake.device[at].down && !(fake.device[from].cut >> at & 1);
}

/* The connected queue pair, if it can receive. */
static inline struct fake_qp *fake_other(const struct fake_qp *q)
{
	for (int i = 0; i < FAKE_MAX; i++) {
		struct fake_qp *o = fake.qp[i];
		if (o && o->v.qp_num == q->dest && o->dest == q->v.qp_num && o->rq_psn == q->sq_psn &&
		    (o->state == IBV_QPS_RTR || o->state == IBV_QPS_RTS))
			return fake_reaches(q, o) ? o : NULL;
	}
	return NULL;
}

static inline void fake_complete(struct fake_qp *q, enum ibv_wc_status status)
{
	struct fake_wqe *w = &q->q[q->done % FAKE_DEPTH];
	struct fake_cq *cq = (struct fake_cq *)q->v.send_cq;
	q->done++;
	if (status == IBV_WC_SUCCESS && !(w->wr.send_flags & IBV_SEND_SIGNALED))
		return;
	ck_assert_msg(cq->n < (unsigned)cq->v.cqe, "a completion queue of %d overflows", cq->v.cqe);
	cq->of[cq->n] = q;
	cq->wc[cq->n++] = (struct ibv_wc){.wr_id = w->wr.wr_id,
	                                  .status = status,
	                                  .qp_num = q->v.qp_num};
	if (cq->armed) {
		cq->armed = 0;
		fake_wake(cq);
	}
	if (fake_chance(fake.knobs.spurious))
		fake_wake(cq);
}

static inline const unsigned char *fake_source(uint64_t at, size_t bytes)
{
	const unsigned char *p = (const unsigned char *)(uintptr_t)at;
	ck_assert_msg(!fake.no_read || p >= fake.no_read + fake.no_read_bytes ||
	                  p + bytes <= fake.no_read,
	              "a device reads source blocks after outgoing_end");
	return p;
}

/* Places a part of a WRITE, read from its source now. */
static inline void fake_write_some(struct fake_wqe *w, uint64_t bytes)
{
	uint64_t left = w->sge.length - w->placed;
	bytes = bytes < left ? bytes : left;
	memcpy((void *)(uintptr_t)(w->wr.wr.rdma.remote_addr + w->placed),
	       fake_source(w->sge.addr + w->placed, bytes), bytes);
	w->placed += bytes;
}

/* What is left of a WRITE goes to the receiving device, to be placed at any time. */
static inline void fake_leave(struct fake_qp *q, struct fake_qp *to, uint64_t number)
{
	struct fake_wqe *w = &q->q[number % FAKE_DEPTH];
	uint64_t left = w->sge.length - w->placed;
	struct fake_mw *mw;
	if (w->wr.opcode != IBV_WR_RDMA_WRITE || left == 0 || !to || fake_below(4) == 0)
		return;
	uint64_t at = w->wr.wr.rdma.remote_addr + w->placed;
	if (!fake_allows(to, at, (uint32_t)left, w->wr.wr.rdma.rkey, IBV_ACCESS_REMOTE_WRITE, &mw))
		return;
	struct fake_pending *p = malloc(sizeof *p + left);
	*p = (struct fake_pending){.next = to->pending, .mw = mw, .to = at, .bytes = (uint32_t)left};
	memcpy(p->data, fake_source(w->sge.addr + w->placed, left), left);
	to->pending = p;
	w->placed = w->sge.length;
}

static inline int fake_destroy_qp(struct ibv_qp *v)
{
	struct fake_qp *q = (struct fake_qp *)v, *other = fake_other(q);
	struct fake_cq *cq = (struct fake_cq *)v->send_cq;
	ck_assert_msg(q->unacked == 0, "would wait for ever for %u acknowledgements", q->unacked);
	ck_assert_msg(q->windows == 0, "a queue pair ends under %u windows", q->windows);
	for (; q->done < q->arrived; q->done++)
		fake_leave(q, other, q->done);
	fake_settle(q, NULL);
	for (unsigned i = 0; i < cq->n; i++)
		if (cq->of[i] == q)
			cq->of[i] = NULL;
	cq->qps--;
	fake_forget(fake.qp, q);
	return fake_free(q);
}

static inline void fake_fail(struct fake_qp *q, enum ibv_wc_status status)
{
	if (q->done < q->arrived)
		fake_leave(q, fake_other(q), q->done);
	q->state = IBV_QPS_ERR;
	fake_complete(q, status);
	fake.kills++;
}

/* The device reports a queue pair that it has moved to ERR. */
static inline void fake_report(struct fake_qp *q)
{
	uint64_t one = 1;
	q->reports++;
	ck_assert(write(q->v.pd->context->async_fd, &one, sizeof one) == sizeof one);
}

static inline int fake_get_async_event(struct ibv_context *c, struct ibv_async_event *ret)
{
	struct fake_context *f = (struct fake_context *)c;
	uint64_t n;
	if (fake.device[c->device - fake_device].gone) {
		errno = EIO;
		return -1;
	}
	if (f->events) {
		f->events = 0;
		*ret = (struct ibv_async_event){.element.port_num = 2, .event_type = f->event};
		return 0;
	}
	for (int i = 0; i < FAKE_MAX; i++) {
		struct fake_qp *q = fake.qp[i];
		if (!q || q->v.pd->context != c || q->reports == 0)
			continue;
		q->reports--;
		q->unacked++;
		*ret = (struct ibv_async_event){.element.qp = &q->v, .event_type = IBV_EVENT_QP_ACCESS_ERR};
		return 0;
	}
	if (read(c->async_fd, &n, sizeof n) < 0)
		errno = EAGAIN;
	errno = EAGAIN;
	return -1;
}

static inline void fake_ack_async_event(struct ibv_async_event *e)
{
	if (e->event_type == IBV_EVENT_QP_ACCESS_ERR)
		((struct fake_qp *)e->element.qp)->unacked--;
}

/* A key that opens nothing: both ends' queue pairs go to ERR. */
static inline void fake_refuse(struct fake_qp *q, struct fake_qp *to)
{
	to->state = IBV_QPS_ERR;
	fake_report(to);
	fake_fail(q, IBV_WC_REM_ACCESS_ERR);
}

static inline void fake_read(struct fake_qp *q, struct fake_qp *to, struct fake_wqe *w)
{
	struct fake_mw *mw;
	if (!fake_allows(to, w->wr.wr.rdma.remote_addr, w->sge.length, w->wr.wr.rdma.rkey,
	                 IBV_ACCESS_REMOTE_READ, &mw)) {
		fake_refuse(q, to);
		return;
	}
	while (to->pending) { /* bytes written before it go first */
		struct fake_pending *p = to->pending;
		memcpy((void *)(uintptr_t)p->to, p->data, p->bytes);
		to->pending = p->next;
		free(p);
	}
	memcpy((void *)(uintptr_t)w->sge.addr, (void *)(uintptr_t)w->wr.wr.rdma.remote_addr,
	       w->sge.length);
	if (fake.corrupts && w->sge.length > 1000) {
		fake.corrupts--;
		((unsigned char *)(uintptr_t)w->sge.addr)[fake_below(w->sge.length)] ^= 1;
	}
	fake_complete(q, IBV_WC_SUCCESS);
}

static inline void fake_local(struct fake_qp *q, struct fake_wqe *w)
{
	if (w->wr.opcode == IBV_WR_BIND_MW) {
		struct fake_mw *mw = (struct fake_mw *)w->wr.bind_mw.mw;
		mw->mr = (struct fake_mr *)w->wr.bind_mw.bind_info.mr;
		ck_assert(mw->v.pd == q->v.pd && mw->mr->v.pd == q->v.pd);
		ck_assert(mw->mr->access & IBV_ACCESS_MW_BIND && mw->mr->access & IBV_ACCESS_LOCAL_WRITE);
		mw->at = w->wr.bind_mw.bind_info.addr;
		mw->bytes = w->wr.bind_mw.bind_info.length;
		ck_assert_msg(w->mw_key == mw->key && w->wr.bind_mw.rkey != mw->key &&
		                  w->wr.bind_mw.rkey >> 8 == mw->key >> 8,
		              "a window of key %08x is bound as %08x, to %08x", mw->key, w->mw_key,
		              w->wr.bind_mw.rkey);
		mw->key = w->wr.bind_mw.rkey;
		mw->qp = q;
		mw->mr->windows++;
		q->windows++;
	} else {
		struct fake_mw *mw = NULL;
		for (int i = 0; i < FAKE_MAX; i++)
			if (fake.mw[i] && fake.mw[i]->mr && fake.mw[i]->key == w->wr.invalidate_rkey)
				mw = fake.mw[i];
		ck_assert_msg(mw != NULL, "an invalidation of a window that is not bound");
		fake_unbind(mw);
	}
	fake_complete(q, IBV_WC_SUCCESS);
}

/* The next work request that has not arrived: WRITEs overtake each other, nothing else does. */
static inline void fake_arrive(struct fake_qp *q)
{
	struct fake_wqe *w = &q->q[q->arrived % FAKE_DEPTH];
	struct fake_qp *to = fake_other(q);
	struct fake_mw *mw;
	int local = w->wr.opcode == IBV_WR_BIND_MW || w->wr.opcode == IBV_WR_LOCAL_INV;
	if (w->wr.opcode != IBV_WR_RDMA_WRITE && q->done < q->arrived)
		return;
	if (!local && !to) {
		if (q->done == q->arrived && fake_below(8) == 0) {
			q->arrived++;
			fake_fail(q, IBV_WC_RETRY_EXC_ERR);
		}
		return;
	}
	if (w->wr.opcode == IBV_WR_RDMA_WRITE) {
		if (fake_allows(to, w->wr.wr.rdma.remote_addr, w->sge.length, w->wr.wr.rdma.rkey,
		                IBV_ACCESS_REMOTE_WRITE, &mw)) {
			q->arrived++;
		} else if (q->done == q->arrived) {
			q->arrived++;
			w->placed = w->sge.length;
			fake_refuse(q, to);
		}
		return;
	}
	q->arrived++;
	if (local)
		fake_local(q, w);
	else
		fake_read(q, to, w);
}

static inline void fake_place_pending(struct fake_qp *q)
{
	struct fake_pending *p = q->pending;
	if (!p || fake_below(fake.slow ? 64 : 3))
		return;
	memcpy((void *)(uintptr_t)p->to, p->data, p->bytes);
	q->pending = p->next;
	free(p);
	fake.late++;
}

static inline void fake_step_qp(struct fake_qp *q)
{
	fake_place_pending(q);
	if (q->hangs)
		return;
	if (q->state == IBV_QPS_ERR) {
		if (q->done == q->posted || fake_below(3) == 0)
			return;
		if (q->done < q->arrived)
			fake_leave(q, fake_other(q), q->done);
		if (q->arrived == q->done)
			q->arrived++;
		fake_complete(q, IBV_WC_WR_FLUSH_ERR);
		return;
	}
	if (q->state != IBV_QPS_RTS || q->done == q->posted)
		return;
	if (fake_chance(fake.knobs.hang)) {
		q->hangs = 1;
		fake.hangs++;
		return;
	}
	if (fake_chance(fake.knobs.kill)) {
		if (q->arrived == q->done)
			q->arrived++;
		fake_fail(q, IBV_WC_RETRY_EXC_ERR);
		return;
	}
	if (q->arrived < q->posted && q->arrived < q->done + 8 && fake_below(2))
		fake_arrive(q);
	if (q->done == q->arrived || q->state != IBV_QPS_RTS)
		return;
	/* the key was checked when it arrived; a window may have ended since */
	struct fake_qp *to = fake_other(q);
	struct fake_wqe
		*w = &q->q[(q->done + fake_below((unsigned)(q->arrived - q->done))) % FAKE_DEPTH];
	struct fake_mw *mw;
	if (!to)
		fake_fail(q, IBV_WC_RETRY_EXC_ERR);
	else if (!fake_allows(to, w->wr.wr.rdma.remote_addr, w->sge.length, w->wr.wr.rdma.rkey,
	                      IBV_ACCESS_REMOTE_WRITE, &mw))
		fake_refuse(q, to);
	else if (fake_below(2))
		fake_write_some(w, 1 + fake_below(200));
	else {
		fake_leave(q, to, q->done);
		fake_write_some(&q->q[q->done % FAKE_DEPTH], UINT64_MAX);
		fake_complete(q, IBV_WC_SUCCESS);
	}
}

static inline void fake_step(void)
{
	for (int i = 0; i < FAKE_MAX; i++)
		if (fake.qp[i])
			for (unsigned n = fake_below(12); n > 0; n--)
				fake_step_qp(fake.qp[i]);
}

static inline int fake_poll_cq(struct ibv_cq *v, int n, struct ibv_wc *ret)
{
	struct fake_cq *q = (struct fake_cq *)v;
	if (fake_below(4) == 0)
		fake_step();
	unsigned k = (unsigned)n < q->n ? (unsigned)n : q->n;
	memcpy(ret, q->wc, k * sizeof *ret);
	for (unsigned i = 0; i < k; i++)
		for (uint64_t s = q->of[i] ? q->of[i]->freed : 0; q->of[i] && s < q->of[i]->posted; s++)
			if (q->of[i]->q[s % FAKE_DEPTH].wr.wr_id == ret[i].wr_id)
				q->of[i]->freed = s + 1;
	q->n -= k;
	memmove(q->wc, q->wc + k, q->n * sizeof *q->wc);
	memmove(q->of, q->of + k, q->n * sizeof(struct fake_qp *));
	return (int)k;
}

static inline void fake_check_local(const struct fake_qp *q, const struct ibv_send_wr *wr)
{
	if (wr->opcode != IBV_WR_RDMA_WRITE && wr->opcode != IBV_WR_RDMA_READ)
		return;
	ck_assert_int_eq(wr->num_sge, 1);
	struct fake_mr *m = fake_find_mr(wr->sg_list->lkey);
	ck_assert_msg(m && m->v.pd == q->v.pd &&
	                  fake_within(wr->sg_list->addr, wr->sg_list->length, (uintptr_t)m->v.addr,
	                              m->v.length),
	              "%u bytes that are not registered", wr->sg_list->length);
	ck_assert(wr->opcode == IBV_WR_RDMA_WRITE || m->access & IBV_ACCESS_LOCAL_WRITE);
}

static inline int fake_post_send(struct ibv_qp *v, struct ibv_send_wr *wr,
                                 struct ibv_send_wr **ret_bad)
{
	struct fake_qp *q = (struct fake_qp *)v;
	ck_assert_msg(((struct fake_cq *)v->send_cq)->n == 0,
	              "posted before the completion queue was drained");
	fake.doorbells++;
	for (; wr; wr = wr->next) {
		ck_assert(q->state == IBV_QPS_RTS || q->state == IBV_QPS_ERR);
		ck_assert_msg(q->posted - q->freed < q->depth, "more than %u work requests", q->depth);
		fake_check_local(q, wr);
		if (fake_chance(fake.knobs.refuse / 4)) {
			*ret_bad = wr;
			return ENOMEM;
		}
		struct fake_wqe *w = &q->q[q->posted++ % FAKE_DEPTH];
		*w = (struct fake_wqe){.wr = *wr};
		if (wr->num_sge)
			w->sge = *wr->sg_list;
		if (wr->opcode == IBV_WR_BIND_MW)
			w->mw_key = wr->bind_mw.mw->rkey;
		fake.writes += wr->opcode == IBV_WR_RDMA_WRITE;
		fake.posts++;
	}
	return 0;
}

static inline const char *fake_wc_status_str(enum ibv_wc_status s)
{
	return s == IBV_WC_RETRY_EXC_ERR    ? "transport retry counter exceeded"
	       : s == IBV_WC_REM_ACCESS_ERR ? "remote access error"
	       : s == IBV_WC_WR_FLUSH_ERR   ? "flushed"
	                                    : "error";
}

static inline const char *fake_event_type_str(enum ibv_event_type e)
{
	(void)e;
	return "event";
}

static const struct verbs fake_verbs = {
	.get_device_list = fake_get_device_list,
	.free_device_list = fake_free_device_list,
	.get_device_name = fake_get_device_name,
	.open_device = fake_open_device,
	.close_device = fake_close_device,
	.query_device = fake_query_device,
	.query_port = fake_query_port,
	.query_gid = fake_query_gid,
	.get_async_event = fake_get_async_event,
	.ack_async_event = fake_ack_async_event,
	.alloc_pd = fake_alloc_pd,
	.dealloc_pd = fake_dealloc_pd,
	.reg_mr = fake_reg_mr,
	.dereg_mr = fake_dereg_mr,
	.alloc_mw = fake_alloc_mw,
	.dealloc_mw = fake_dealloc_mw,
	.create_comp_channel = fake_create_comp_channel,
	.destroy_comp_channel = fake_destroy_comp_channel,
	.create_cq = fake_create_cq,
	.destroy_cq = fake_destroy_cq,
	.req_notify_cq = fake_req_notify_cq,
	.get_cq_event = fake_get_cq_event,
	.ack_cq_events = fake_ack_cq_events,
	.poll_cq = fake_poll_cq,
	.create_qp = fake_create_qp,
	.modify_qp = fake_modify_qp,
	.destroy_qp = fake_destroy_qp,
	.post_send = fake_post_send,
	.wc_status_str = fake_wc_status_str,
	.event_type_str = fake_event_type_str,
	.device_node = fake_device_node,
	.memory_node = fake_memory_node,
};

static inline void fake_reset(uint64_t seed)
{
	ck_assert_uint_eq(fake.live, 0);
	memset(&fake, 0, sizeof fake);
	fake.seed = seed * 0x9e3779b97f4a7c15ull + 1;
	fake.us = 1000;
	fake.devices = 1;
	for (int i = 0; i < FAKE_DEVICES; i++)
		fake.device[i].link_layer = IBV_LINK_LAYER_ETHERNET;
}

#endif
