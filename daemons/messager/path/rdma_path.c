/* rdma_path.c - the sender of RDMA: paths and outgoings (path.h).
 *
 * What is to be sent of a lease is a bit for each (layer, block). Posting clears it; a work request
 * that is lost with its queue pair sets it again. So a block is sent until a READ behind its WRITE
 * has completed. Lists take turns between the leases of a path, and each lease's writes in a list
 * are followed by a READ of their last bytes, which alone asks for a completion (rdma.h says why).
 *
 * A source block is read until its work request has completed or its queue pair is destroyed:
 * outgoing_end waits for the first for drain_us, then does the second. */
#include "rdma_nic.h"
#include "rdma_side.h"
#include "util/check.h"
#include "util/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIST_MAX 32u         /* work requests of one doorbell */
#define SEGMENT_WRITES 15u   /* of one lease, before the next one's turn */
#define RUN_BYTES (1u << 20) /* of one WRITE, unless a piece is larger */
#define ASK_RETRIES 4u       /* retry_us without a key until it is asked for, and between */

/* A lane. Its NIC is the nearest to most pools of this host. */
struct rdma_sender {
	struct rdma_qp q;
	struct list outgoings;
	uint64_t in_flight; /* bytes */
	/* the OFFER to be answered next */
	struct {
		int offered;
		uint64_t session;
		uint32_t round;
		struct rdma_address address;
	} offer;
	/* messages owed */
	int accept_owed, reset_owed, ask_owed;
	uint64_t ask_at_us; /* 0: no outgoing lacks a key */
	uint64_t done[RDMA_LEASES_MAX];
	uint32_t n_done;
	/* canary */
	unsigned char *canary; /* what is written, then what is read back; RDMA_CANARY_BYTES each */
	struct ibv_mr *canary_mr;
	uint64_t canary_to; /* the receiver's; 0: it has none */
	uint32_t canary_key;
	int canary_out;
	uint64_t canary_from_us, canary_next_us;
	struct ibv_send_wr wr[LIST_MAX];
	struct ibv_sge sge[LIST_MAX];
	uint32_t n; /* of the list that is being made */
};

struct rdma_outgoing {
	struct list node;
	struct rdma_due due;
	/* constant */
	const struct {
		struct rdma_sender *p;
		struct outgoing_opts o; /* src and dst: copies */
		uint64_t lease, at;     /* its number; address of D's pool there */
		struct rdma_pool *pool; /* of o.from */
		uint64_t total_bytes;
		uint32_t words; /* of unwritten, for each layer */
	};
	/* the key is valid for one queue pair */
	uint64_t key_session;
	uint32_t key_round, key;
	/* what is to be posted */
	uint64_t *unwritten; /* (layers, words) a bit for each block */
	uint32_t *left;      /* (layers) bits set */
	uint32_t low;        /* layers below have none */
	/* what is posted, written but not yet flushed, delivered, and delivered but not yet told */
	uint32_t posted;
	uint64_t written_bytes, written, delivered_bytes, untold_bytes;
	int closed; /* the receiver has said CLOSE */
	int failed_told;
};

static struct rdma_sender *sender_of(struct rdma_qp *q)
{
	return (struct rdma_sender *)((char *)q - offsetof(struct rdma_sender, q));
}

/* --- what is to be sent ----------------------------------------------------- */

static void todo_set(struct rdma_outgoing *o, uint32_t layer, uint32_t first, uint32_t n)
{
	for (uint32_t i = first; i < first + n; i++)
		o->unwritten[(size_t)layer * o->words + i / 64] |= 1ull << i % 64;
	o->left[layer] += n;
	if (layer < o->low)
		o->low = layer;
}

static int todo_has(const struct rdma_outgoing *o, uint32_t layer, uint32_t block)
{
	return o->unwritten[(size_t)layer * o->words + block / 64] >> block % 64 & 1;
}

/* Takes the next run of blocks that are neighbours in both pools. n 0: there is none. */
static struct rdma_note todo_take(struct rdma_outgoing *o)
{
	const struct outgoing_opts *c = &o->o;
	struct rdma_note run = {.work = RDMA_WORK_WRITE, .of = o};
	while (o->low < c->layout->layers && o->left[o->low] == 0)
		o->low++;
	if (o->low == c->layout->layers)
		return run;
	uint64_t *words = o->unwritten + (size_t)o->low * o->words;
	uint32_t w = 0;
	while (words[w] == 0)
		w++;
	run.layer = o->low;
	run.first = w * 64 + (uint32_t)__builtin_ctzll(words[w]);
	size_t piece = c->layout->piece_bytes[run.layer];
	for (uint32_t i = run.first;; i++) {
		words[i / 64] &= ~(1ull << i % 64);
		run.n++;
		if (i + 1 == c->blocks || !todo_has(o, run.layer, i + 1) ||
		    c->src[i + 1] != c->src[i] + 1 || c->dst[i + 1] != c->dst[i] + 1 ||
		    (run.n + 1) * piece > RUN_BYTES)
			break;
	}
	o->left[run.layer] -= run.n;
	return run;
}

static int has_todo(const struct rdma_outgoing *o)
{
	for (uint32_t l = o->low; l < o->o.layout->layers; l++)
		if (o->left[l])
			return 1;
	return 0;
}

static int has_key(const struct rdma_outgoing *o)
{
	const struct rdma_qp *q = &o->p->q;
	return o->key_round != 0 && o->key_round == q->round && o->key_session == q->session;
}

/* The pool's registration with the present NIC; NULL: it was refused. */
static const struct ibv_mr *source_of(const struct rdma_outgoing *o)
{
	return o->pool->mr[o->p->q.nic->index].source;
}

static uint64_t run_bytes(const struct rdma_note *run)
{
	const struct rdma_outgoing *o = run->of;
	return run->n * o->o.layout->piece_bytes[run->layer];
}

/* --- posting ------------------------------------------------------------------ */

static struct ibv_send_wr *list_add(struct rdma_sender *p, const struct rdma_note *note,
                                    enum ibv_wr_opcode op, struct ibv_sge sge, uint64_t to,
                                    uint32_t key)
{
	uint32_t i = p->n++;
	uint64_t number;
	*rdma_qp_note(&p->q, i, &number) = *note;
	p->sge[i] = sge;
	p->wr[i] = (struct ibv_send_wr){.wr_id = number,
	                                .sg_list = &p->sge[i],
	                                .num_sge = 1,
	                                .opcode = op,
	                                .wr.rdma = {.remote_addr = to, .rkey = key}};
	if (i > 0)
		p->wr[i - 1].next = &p->wr[i];
	return &p->wr[i];
}

static uint32_t list_room(const struct rdma_sender *p)
{
	uint32_t room = rdma_qp_room(&p->q);
	return (room < LIST_MAX ? room : LIST_MAX) - p->n;
}

static void list_add_write(struct rdma_outgoing *o, const struct rdma_note *run)
{
	const struct outgoing_opts *c = &o->o;
	uint64_t from = kv_piece_offset(c->layout, c->from->blocks, run->layer, c->src[run->first]);
	uint64_t to = kv_piece_offset(c->layout, c->to_blocks, run->layer, c->dst[run->first]);
	struct ibv_sge sge = {.addr = (uintptr_t)c->from->pool->host + from,
	                      .length = (uint32_t)run_bytes(run),
	                      .lkey = source_of(o)->lkey};
	list_add(o->p, run, IBV_WR_RDMA_WRITE, sge, o->at + to, o->key);
	o->p->in_flight += run_bytes(run);
	o->posted++;
}

/* Reads the last bytes of the list's last WRITE. */
static void list_add_flush(struct rdma_outgoing *o)
{
	struct rdma_sender *p = o->p;
	const struct ibv_send_wr *last = &p->wr[p->n - 1];
	uint32_t bytes = last->sg_list->length < RDMA_FLUSH_BYTES ? last->sg_list->length
	                                                          : RDMA_FLUSH_BYTES;
	const struct rdma_nic *nic = p->q.nic;
	struct ibv_sge sge = {.addr = (uintptr_t)nic->scratch,
	                      .length = bytes,
	                      .lkey = nic->scratch_mr->lkey};
	struct rdma_note note = {.work = RDMA_WORK_FLUSH, .of = o};
	uint64_t at = last->wr.rdma.remote_addr + last->sg_list->length - bytes;
	list_add(p, &note, IBV_WR_RDMA_READ, sge, at, o->key)->send_flags = IBV_SEND_SIGNALED;
	o->posted++;
}

static int window_has_room(const struct rdma_sender *p)
{
	return p->in_flight < p->q.t->opts.window_bytes;
}

/* Some writes of one lease, and their READ. */
static void list_add_segment(struct rdma_outgoing *o)
{
	uint32_t n = 0;
	while (n < SEGMENT_WRITES && list_room(o->p) >= 2 && window_has_room(o->p)) {
		struct rdma_note run = todo_take(o);
		if (run.n == 0)
			break;
		list_add_write(o, &run);
		n++;
	}
	if (n > 0)
		list_add_flush(o);
}

/* The first of the path's outgoings that can be sent; it then becomes the last. */
static struct rdma_outgoing *next_sender(struct rdma_sender *p)
{
	list_each(it, &p->outgoings) {
		struct rdma_outgoing *o = list_entry(it, struct rdma_outgoing, node);
		if (!o->closed && has_key(o) && source_of(o) && has_todo(o)) {
			list_remove(it);
			list_push_back(&p->outgoings, it);
			return o;
		}
	}
	return NULL;
}

static void path_post(struct rdma_sender *p)
{
	struct rdma_outgoing *o;
	do {
		rdma_qp_poll(&p->q);
		p->n = 0;
		while (list_room(p) >= 2 && window_has_room(p) && (o = next_sender(p)))
			list_add_segment(o);
		if (p->n > 0)
			rdma_qp_post(&p->q, p->wr, p->n);
	} while (p->n > 0);
}

/* --- canary --------------------------------------------------------------------- */

static void canary_fill(struct rdma_sender *p)
{
	uint64_t x = p->q.shown.canaries + p->q.shown.canaries_lost + p->q.psn + 1;
	for (size_t i = 0; i < RDMA_CANARY_BYTES; i += sizeof x) {
		x = x * 6364136223846793005ull + 1442695040888963407ull;
		memcpy(p->canary + i, &x, sizeof x);
	}
	memset(p->canary + RDMA_CANARY_BYTES, 0, RDMA_CANARY_BYTES);
}

static int canary_is_registered(struct rdma_sender *p)
{
	struct err err;
	if (p->canary_mr)
		return 1;
	p->canary_mr = rdma_register(p->q.nic, p->canary, 2 * RDMA_CANARY_BYTES, IBV_ACCESS_LOCAL_WRITE,
	                             "a canary", &err);
	if (!p->canary_mr)
		rdma_qp_count_error(&p->q, "%s", err.text);
	return p->canary_mr != NULL;
}

static void canary_post(struct rdma_sender *p)
{
	struct rdma *t = p->q.t;
	if (p->q.state != RDMA_QP_UP || !t->opts.canary_us || !p->canary_to || p->canary_out ||
	    !rdma_is_time(t, p->canary_next_us) || rdma_qp_room(&p->q) < 2)
		return;
	p->canary_next_us = t->now_us + t->opts.canary_us;
	if (!canary_is_registered(p))
		return;
	canary_fill(p);
	p->n = 0;
	struct ibv_sge sge = {(uintptr_t)p->canary, RDMA_CANARY_BYTES, p->canary_mr->lkey};
	struct rdma_note note = {.work = RDMA_WORK_CANARY_WRITE};
	list_add(p, &note, IBV_WR_RDMA_WRITE, sge, p->canary_to, p->canary_key);
	sge.addr += RDMA_CANARY_BYTES;
	note.work = RDMA_WORK_CANARY;
	list_add(p, &note, IBV_WR_RDMA_READ, sge, p->canary_to, p->canary_key)
		->send_flags = IBV_SEND_SIGNALED;
	p->canary_out = 1;
	p->canary_from_us = rdma_now(t);
	rdma_qp_post(&p->q, p->wr, p->n);
}

static void canary_back(struct rdma_sender *p)
{
	uint64_t us = rdma_now(p->q.t) - p->canary_from_us;
	p->canary_out = 0;
	if (memcmp(p->canary, p->canary + RDMA_CANARY_BYTES, RDMA_CANARY_BYTES) != 0) {
		p->q.shown.canaries_lost++;
		snprintf(p->q.broken, sizeof p->q.broken, "the canary came back with other bytes");
		return;
	}
	p->q.shown.canaries++;
	p->q.shown.canary_us = us ? us : 1;
	p->q.shown.canary_mbit_s = 2ull * RDMA_CANARY_BYTES * 8 / (us ? us : 1);
}

/* --- the queue pair's ------------------------------------------------------------- */

/* More than a message has room for are dropped: the receiver then waits close_us. */
static void add_done(struct rdma_sender *p, uint64_t lease)
{
	if (p->n_done < RDMA_LEASES_MAX)
		p->done[p->n_done++] = lease;
	rdma_qp_owes(&p->q);
}

static void outgoing_settle(struct rdma_outgoing *o)
{
	if (!o->closed || o->posted > 0 || o->failed_told)
		return;
	add_done(o->p, o->lease);
	rdma_tell(o->p->q.t, &o->due);
}

static void path_completed(struct rdma_qp *q, const struct rdma_note *w)
{
	struct rdma_sender *p = sender_of(q);
	struct rdma_outgoing *o = w->of;
	q->tried = 0; /* its NIC reaches the receiver's */
	switch (w->work) {
	case RDMA_WORK_WRITE:
		p->in_flight -= run_bytes(w);
		o->posted--;
		o->written_bytes += run_bytes(w);
		o->written++;
		break;
	case RDMA_WORK_FLUSH:
		o->posted--;
		q->shown.bytes += o->written_bytes;
		q->shown.frames += o->written;
		o->delivered_bytes += o->written_bytes;
		o->untold_bytes += o->written_bytes;
		o->written_bytes = o->written = 0;
		/* before `delivered`, so that it arrives before KV_READY */
		if (o->delivered_bytes == o->total_bytes)
			add_done(p, o->lease);
		rdma_tell(q->t, &o->due);
		outgoing_settle(o);
		break;
	case RDMA_WORK_CANARY: canary_back(p); break;
	default: break;
	}
}

static void path_lost(struct rdma_qp *q, const struct rdma_note *w)
{
	struct rdma_sender *p = sender_of(q);
	struct rdma_outgoing *o = w->of;
	switch (w->work) {
	case RDMA_WORK_WRITE:
		p->in_flight -= run_bytes(w);
		o->posted--;
		q->shown.repeated_bytes += run_bytes(w);
		todo_set(o, w->layer, w->first, w->n);
		break;
	case RDMA_WORK_FLUSH: o->posted--; break;
	case RDMA_WORK_CANARY:
		p->canary_out = 0;
		q->shown.canaries_lost++;
		break;
	default: break;
	}
	if (o)
		outgoing_settle(o);
}

static void path_drained(struct rdma_qp *q)
{
	sender_of(q)->reset_owed = !sender_of(q)->offer.offered;
}

static void path_destroyed(struct rdma_qp *q)
{
	CHECK(sender_of(q)->in_flight == 0);
}

/* NULL: all that reach the other end's address have been tried, or there is none. */
static struct rdma_nic *next_nic(const struct rdma_qp *q)
{
	int tried;
	return rdma_nic_choose(q, NULL, &q->other, &tried);
}

/* The receiver's NIC is to blame, not that all ports of this host are down. */
static int reaches_none(const struct rdma_qp *q)
{
	int active = 0;
	for (unsigned i = 0; i < q->t->n_nics; i++)
		active |= rdma_nic_is_active(q->t->nics[i]);
	return active && !next_nic(q);
}

/* With the NIC, so that no lease waits for it later. What is refused is counted, and the leases of
 * that pool wait in vain. */
static void register_pools(struct rdma_qp *q)
{
	struct err err;
	list_each(it, &q->t->pools)
		if (!rdma_pool_source(list_entry(it, struct rdma_pool, in), q->nic, &err))
			rdma_qp_count_error(q, "%s", err.text);
}

static void take_address(struct rdma_qp *q, const struct rdma_address *a)
{
	if (memcmp(&q->other.gid, &a->gid, sizeof a->gid) != 0)
		q->tried = 0;
	q->other = *a;
	q->other_known = 1;
}

static int path_may_begin(struct rdma_qp *q)
{
	struct rdma_sender *p = sender_of(q);
	if (!p->offer.offered)
		return 0;
	if (q->session != p->offer.session)
		p->n_done = 0; /* leases of an earlier intake */
	p->offer.offered = p->reset_owed = 0;
	q->session = p->offer.session;
	q->round = p->offer.round;
	take_address(q, &p->offer.address);
	struct rdma_nic *nic = next_nic(q);
	if (!nic) {
		q->tried = 0;
		nic = next_nic(q);
	}
	if (!nic) {
		snprintf(q->why, sizeof q->why,
		         "no RDMA device here is active and reaches the other end's");
		p->reset_owed = 1;
		rdma_qp_owes(q);
		return 0;
	}
	rdma_qp_use(q, nic);
	register_pools(q);
	return 1;
}

static void path_leaves_nic(struct rdma_qp *q)
{
	rdma_unregister(q->t, &sender_of(q)->canary_mr);
}

static int lacks_key(const struct rdma_outgoing *o)
{
	return !o->closed && !has_key(o) && has_todo(o);
}

static void ask_for_keys(struct rdma_sender *p)
{
	struct rdma *t = p->q.t;
	int lacking = 0;
	if (p->q.state == RDMA_QP_UP)
		list_each(it, &p->outgoings)
			lacking |= lacks_key(list_entry(it, struct rdma_outgoing, node));
	if (!lacking) {
		p->ask_at_us = 0;
		return;
	}
	if (p->ask_at_us && rdma_is_time(t, p->ask_at_us)) {
		p->ask_owed = 1;
		p->ask_at_us = 0;
		rdma_qp_owes(&p->q);
	}
	if (!p->ask_at_us)
		p->ask_at_us = t->now_us + ASK_RETRIES * t->opts.retry_us;
	rdma_is_time(t, p->ask_at_us);
}

static void path_turn(struct rdma_qp *q)
{
	struct rdma_sender *p = sender_of(q);
	if (q->state == RDMA_QP_RTS && rdma_qp_repeats(q)) {
		p->accept_owed = 1;
		rdma_qp_owes(q);
	}
	if (q->state == RDMA_QP_RESET && q->round && !p->offer.offered && rdma_qp_repeats(q)) {
		p->reset_owed = 1;
		rdma_qp_owes(q);
	}
	canary_post(p);
	path_post(p);
	ask_for_keys(p);
}

/* --- messages ---------------------------------------------------------------------- */

static int say_head(const struct rdma_qp *q, struct rdma_msg *m, enum rdma_kind kind)
{
	m->kind = kind;
	m->session = q->session;
	m->round = q->round;
	m->n = 0;
	return 1;
}

static int say_ask(struct rdma_sender *p, struct rdma_msg *m)
{
	say_head(&p->q, m, RDMA_ASK);
	list_each(it, &p->outgoings) {
		struct rdma_outgoing *o = list_entry(it, struct rdma_outgoing, node);
		if (lacks_key(o) && m->n < RDMA_LEASES_MAX)
			m->lease[m->n++].lease = o->lease;
	}
	return m->n > 0;
}

static int path_say(struct rdma_qp *q, struct rdma_msg *m)
{
	struct rdma_sender *p = sender_of(q);
	if (!q->round)
		return 0;
	if (p->accept_owed) {
		p->accept_owed = 0;
		if (q->state == RDMA_QP_RTS) {
			rdma_qp_address(q, &m->address);
			return say_head(q, m, RDMA_ACCEPT);
		}
	}
	if (p->reset_owed) {
		p->reset_owed = 0;
		if (q->state == RDMA_QP_RESET) {
			snprintf(m->text, sizeof m->text, "%s", q->why);
			return say_head(q, m, reaches_none(q) ? RDMA_REFUSE : RDMA_RESET);
		}
	}
	/* not before the next queue pair is up: writes of the last one may still be on their way, and
	 * the receiver has ended it by then */
	if (p->n_done > 0 && q->state == RDMA_QP_UP) {
		say_head(q, m, RDMA_DONE);
		m->n = p->n_done;
		for (uint32_t i = 0; i < m->n; i++)
			m->lease[i].lease = p->done[i];
		p->n_done = 0;
		return 1;
	}
	if (p->ask_owed) {
		p->ask_owed = 0;
		return say_ask(p, m);
	}
	return 0;
}

/* The others are repeated anyway. */
static void path_unsaid(struct rdma_qp *q, const struct rdma_msg *m)
{
	if (m->kind == RDMA_DONE)
		for (uint32_t i = 0; i < m->n; i++)
			add_done(sender_of(q), m->lease[i].lease);
}

static const struct rdma_qp_end path_end = {.role = "path",
                                            .access = 0,
                                            .blames_nic = 1,
                                            .may_begin = path_may_begin,
                                            .completed = path_completed,
                                            .lost = path_lost,
                                            .drained = path_drained,
                                            .destroyed = path_destroyed,
                                            .leaves_nic = path_leaves_nic,
                                            .turn = path_turn,
                                            .say = path_say,
                                            .unsaid = path_unsaid};

static void take_offer(struct rdma_sender *p, const struct rdma_msg *m)
{
	struct rdma_qp *q = &p->q;
	if (m->session == q->session && m->round == q->round) {
		p->accept_owed = q->state == RDMA_QP_RTS;
		p->reset_owed = q->state == RDMA_QP_RESET;
		rdma_qp_owes(q);
		return;
	}
	if (m->session == q->session && m->round < q->round)
		return;
	p->offer.offered = 1;
	p->offer.session = m->session;
	p->offer.round = m->round;
	p->offer.address = m->address;
	p->canary_to = m->canary_bytes >= RDMA_CANARY_BYTES ? m->canary_at : 0;
	p->canary_key = m->canary_key;
	rdma_qp_give_up(q, "the other end has made a new queue pair");
}

/* The receiver's pool is gone, and its leases with it. */
static void take_end(struct rdma_sender *p, const struct rdma_msg *m)
{
	struct rdma_qp *q = &p->q;
	if (p->offer.offered && m->session == p->offer.session)
		p->offer.offered = 0;
	if (m->session != q->session)
		return;
	rdma_qp_give_up(q, "the other end's pool is gone");
	q->session = 0;
	q->round = 0;
	rdma_tell(q->t, &q->side->due);
}

static struct rdma_outgoing *find_outgoing(struct rdma_sender *p, uint64_t lease)
{
	list_each(it, &p->outgoings) {
		struct rdma_outgoing *o = list_entry(it, struct rdma_outgoing, node);
		if (o->lease == lease)
			return o;
	}
	return NULL;
}

static void take_keys(struct rdma_sender *p, const struct rdma_msg *m)
{
	if (m->session != p->q.session || m->round != p->q.round)
		return;
	for (uint32_t i = 0; i < m->n; i++) {
		struct rdma_outgoing *o = find_outgoing(p, m->lease[i].lease);
		/* one that has a key keeps it: a window has one at a time */
		if (!o || has_key(o))
			continue;
		o->key_session = m->session;
		o->key_round = m->round;
		o->key = m->lease[i].key;
	}
}

static void take_close(struct rdma_sender *p, const struct rdma_msg *m)
{
	if (m->session != p->q.session)
		return;
	for (uint32_t i = 0; i < m->n; i++) {
		struct rdma_outgoing *o = find_outgoing(p, m->lease[i].lease);
		if (!o || o->delivered_bytes == o->total_bytes) {
			add_done(p, m->lease[i].lease);
		} else if (!o->closed) {
			o->closed = 1;
			outgoing_settle(o);
		}
	}
}

static struct rdma_sender *sender_new(struct rdma_side *s, unsigned lane)
{
	struct rdma_sender *p = mem_zalloc(sizeof *p);
	list_init(&p->outgoings);
	p->canary = mem_zalloc(2 * RDMA_CANARY_BYTES);
	rdma_qp_init(&p->q, s, lane);
	return p;
}

static struct rdma_sender *sender_get(struct rdma_side *s, unsigned lane)
{
	return s->lanes[lane] ? sender_of(s->lanes[lane]) : sender_new(s, lane);
}

int rdma_path_said(struct path *path, const void *bytes, size_t n, struct err *err)
{
	struct rdma_side *s = (struct rdma_side *)path;
	struct rdma_msg m;
	int e = rdma_msg_read(bytes, n, &m, err);
	if (e < 0) {
		s->errors++;
		return e;
	}
	if (m.kind != RDMA_OFFER && m.kind != RDMA_READY && m.kind != RDMA_KEYS &&
	    m.kind != RDMA_CLOSE && m.kind != RDMA_END)
		return err_set(err, ERR_INVALID, "RDMA message of kind %d, which only a sender sends",
		               (int)m.kind);
	if (m.kind != RDMA_OFFER && !s->lanes[m.lane])
		return 0;
	struct rdma_sender *p = sender_get(s, m.lane);
	switch (m.kind) {
	case RDMA_OFFER: take_offer(p, &m); break;
	case RDMA_READY:
		if (m.session == p->q.session && m.round == p->q.round)
			p->q.ready = 1;
		break;
	case RDMA_KEYS: take_keys(p, &m); break;
	case RDMA_CLOSE: take_close(p, &m); break;
	default: take_end(p, &m); break;
	}
	rdma_soon(s->t);
	return 0;
}

/* --- life of an outgoing -------------------------------------------------------------- */

static void outgoing_tell(struct rdma_due *d)
{
	struct rdma_outgoing *o = list_entry(d, struct rdma_outgoing, due);
	uint64_t bytes = o->untold_bytes;
	int fails = o->closed && o->posted == 0 && !o->failed_told;
	if (bytes) {
		o->untold_bytes = 0;
		if (fails)
			rdma_tell(o->p->q.t, d);
		o->o.delivered(o->o.arg, bytes);
	} else if (fails) {
		o->failed_told = 1;
		o->o.failed(o->o.arg, ERR_STALE, "the receiver has closed the lease");
	}
}

/* The handle is the receiver's word, the rest the caller's: both must be of one pool. */
static int outgoing_check(const struct outgoing_opts *o, struct rdma_handle *h, struct err *err)
{
	int e = rdma_handle_read(o->handle, o->handle_bytes, h, err);
	if (e < 0)
		return e;
	if (h->bytes != (uint64_t)o->to_blocks * o->layout->block_bytes)
		return err_set(err, ERR_INVALID,
		               "RDMA handle of a pool of %llu bytes, but %u blocks of %zu bytes were named",
		               (unsigned long long)h->bytes, o->to_blocks, o->layout->block_bytes);
	for (uint32_t i = 0; i < o->blocks; i++)
		if (o->src[i] >= o->from->blocks || o->dst[i] >= o->to_blocks)
			return err_set(err, ERR_INVALID, "block %u to %u, but the pools have %u and %u blocks",
			               o->src[i], o->dst[i], o->from->blocks, o->to_blocks);
	return 0;
}

static uint32_t *copy_list(const uint32_t *from, uint32_t n)
{
	uint32_t *to = mem_array(n ? n : 1, sizeof *to);
	if (n)
		memcpy(to, from, n * sizeof *to);
	return to;
}

int rdma_outgoing_new(struct path *path, const struct outgoing_opts *o, struct outgoing **ret,
                      struct err *err)
{
	struct rdma_side *s = (struct rdma_side *)path;
	struct rdma_handle h;
	struct err own;
	err = err ? err : &own;
	if (outgoing_check(o, &h, err) < 0)
		return err->code;
	struct rdma_pool *pool = rdma_pool_get(s->t, o->from, err);
	if (!pool)
		return err->code;
	struct rdma_sender *p = sender_get(s, h.lane);
	if (p->q.nic && !rdma_pool_source(pool, p->q.nic, err))
		return err->code;
	struct outgoing_opts copy = *o;
	copy.handle = NULL;
	copy.handle_bytes = 0;
	copy.src = copy_list(o->src, o->blocks);
	copy.dst = copy_list(o->dst, o->blocks);
	uint32_t words = (o->blocks + 63) / 64;
	struct rdma_outgoing init = {.p = p,
	                             .o = copy,
	                             .lease = h.lease,
	                             .at = h.at,
	                             .pool = pool,
	                             .total_bytes = (uint64_t)o->blocks * o->layout->block_bytes,
	                             .words = words ? words : 1,
	                             .key_session = h.session,
	                             .key_round = h.round,
	                             .key = h.key,
	                             .low = o->layout->layers,
	                             .due.tell = outgoing_tell};
	struct rdma_outgoing *n = mem_alloc(sizeof *n);
	memcpy(n, &init, sizeof *n);
	n->unwritten = mem_array((size_t)o->layout->layers * n->words, sizeof *n->unwritten);
	n->left = mem_array(o->layout->layers, sizeof *n->left);
	list_init(&n->due.node);
	list_push_back(&p->outgoings, &n->node);
	if (n->total_bytes == 0)
		add_done(p, n->lease);
	*ret = (struct outgoing *)n;
	return 0;
}

void rdma_outgoing_send(struct outgoing *outgoing, uint32_t layer, uint32_t first, uint32_t n)
{
	struct rdma_outgoing *o = (struct rdma_outgoing *)outgoing;
	CHECK(layer < o->o.layout->layers && first <= o->o.blocks && n <= o->o.blocks - first);
	todo_set(o, layer, first, n);
	rdma_soon(o->p->q.t);
}

void rdma_outgoing_end(struct outgoing **outgoing)
{
	struct rdma_outgoing *o = (struct rdma_outgoing *)*outgoing;
	if (!o)
		return;
	struct rdma_qp *q = &o->p->q;
	uint64_t until = rdma_now(q->t) + q->t->opts.drain_us;
	while (o->posted > 0 && q->state == RDMA_QP_UP && rdma_now(q->t) < until)
		rdma_qp_poll(q);
	if (o->posted > 0)
		rdma_qp_finish(q, "a transfer was ended while its bytes were outstanding");
	CHECK(o->posted == 0);
	if (o->delivered_bytes != o->total_bytes && !o->failed_told)
		add_done(o->p, o->lease);
	list_remove(&o->node);
	list_remove(&o->due.node);
	free((uint32_t *)o->o.src);
	free((uint32_t *)o->o.dst);
	free(o->unwritten);
	free(o->left);
	free(o);
	*outgoing = NULL;
}

/* --- life of a path -------------------------------------------------------------------- */

struct path *rdma_path_new(void *transport, const struct path_peer *peer,
                           const struct path_hooks *hooks)
{
	struct rdma_side *s = mem_zalloc(sizeof *s);
	rdma_side_init(s, transport, &path_end, peer, hooks);
	return (struct path *)s;
}

void rdma_path_destroy(struct path **path)
{
	struct rdma_side *s = (struct rdma_side *)*path;
	if (!s)
		return;
	for (unsigned i = 0; i < RDMA_LANES_MAX; i++) {
		struct rdma_sender *p = s->lanes[i] ? sender_of(s->lanes[i]) : NULL;
		if (!p)
			continue;
		CHECK(list_empty(&p->outgoings));
		rdma_qp_fini(&p->q);
		free(p->canary);
		free(p);
	}
	rdma_side_fini(s);
	free(s);
	*path = NULL;
}

void rdma_path_state(const struct path *path, struct path_state *ret)
{
	rdma_side_show((const struct rdma_side *)path, ret);
}
