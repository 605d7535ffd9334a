/* test_messager_walk.c - random walks through the hand-over: the real transfer machine, ring and
 * pools; P and D as the model has them.
 *
 * As in the model, messages are a set: delivered in any order, some twice, lost when the messager
 * is killed. After each step: nothing was written into a block of D that is nobody's (a); when D
 * takes KV_READY the KV is complete and its own (b); at the end nothing is open (c). The walk of
 * a seed is always the same: a failure names seed and step. */
/* run: long */
#include "messager_rig.h"

#include <check.h>
#include <stdlib.h>

#define POISON 0xEE
#define TRANSFERS_MAX 4096u
#define NET_MAX 256u
#define WALKS 100u

enum d_state { D_NONE, D_LEASED, D_QUARANTINE, D_READY, D_FREE };

struct job { /* one lease; its number is the index */
	enum d_state d;
	uint64_t writer; /* epoch of the messager that D registered, 0: none */
	int p_live;      /* P has not given it up, nor finished it */
	uint32_t slot, blocks, tokens, src[8], dst[8], done[RIG_LAYERS];
	uint64_t gen;
};

struct net {
	enum msg_type type;
	uint32_t job;
	uint64_t epoch; /* of the messager that sent it, or that it is for */
	int refused;
	uint32_t slot;
	uint64_t gen;
};

static struct rig rig, *r = &rig;
static struct job jobs[TRANSFERS_MAX];
static uint32_t n_jobs, src_owner[RIG_BLOCKS], dst_owner[RIG_BLOCKS];
static struct net net[NET_MAX];
static unsigned n_net, seed, step_no;
static uint64_t epoch; /* of the present messager */
static unsigned n_delivered, n_sent, n_cancelled, n_restarts, n_refused, n_revoked;

/* not ck_assert: that writes a line to check's log each time */
#define ENSURE(cond) \
	((cond) ? (void)0 : ck_abort_msg("walk %d step %u: %s", walk_no, step_no, #cond))
static int walk_no;

static unsigned draw(unsigned n)
{
	return (unsigned)rand_r(&seed) % n;
}

static void put(struct net m)
{
	CHECK(n_net < NET_MAX);
	net[n_net++] = m;
}

/* --- D ------------------------------------------------------------------- */

static void d_free(uint32_t j)
{
	for (uint32_t b = 0; b < RIG_BLOCKS; b++) {
		if (dst_owner[b] != j)
			continue;
		dst_owner[b] = 0;
		for (uint32_t l = 0; l < RIG_LAYERS; l++)
			memset(rig_piece(r, &r->d, l, b), POISON, r->layout.piece_bytes[l]);
	}
	jobs[j].d = D_FREE;
}

static void d_revoke(uint32_t j)
{
	put((struct net){.type = MSG_LEASE_REVOKE, .job = j, .epoch = jobs[j].writer});
}

/* A cancel that P sent, or the lease's own end. */
static void d_drop(uint32_t j)
{
	if (jobs[j].d == D_READY)
		d_free(j);
	if (jobs[j].d != D_LEASED)
		return;
	if (!jobs[j].writer) {
		d_free(j);
		return;
	}
	jobs[j].d = D_QUARANTINE;
	d_revoke(j);
}

static void check_complete(uint32_t j)
{
	const struct job *x = &jobs[j];
	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		for (uint32_t i = 0; i < x->blocks; i++)
			for (size_t k = 0; k < r->layout.piece_bytes[l]; k++)
				ENSURE(rig_piece(r, &r->d, l, x->dst[i])[k] == rig_value(j, l, x->src[i]));
}

static void d_takes(const struct net *m)
{
	struct job *x = &jobs[m->job];
	if (m->epoch < x->writer || m->epoch < epoch)
		return; /* an older writer's, or one's whose process is dead */
	if (m->type == MSG_LEASE_OPEN) {
		int refused = x->d != D_LEASED;
		if (!refused)
			x->writer = m->epoch;
		n_refused += (unsigned)refused;
		put((struct net){
			.type = MSG_LEASE_OPENED, .job = m->job, .epoch = m->epoch, .refused = refused});
	} else if (m->type == MSG_KV_READY) {
		if (x->d == D_LEASED) {
			check_complete(m->job);
			x->d = D_READY;
			n_delivered++;
		}
		put((struct net){.type = MSG_KV_READY_ACK, .job = m->job, .epoch = m->epoch});
	} else if (x->d == D_QUARANTINE && m->epoch == x->writer) {
		d_free(m->job);
	}
}

/* --- P ------------------------------------------------------------------- */

static void p_end(uint32_t j)
{
	struct job *x = &jobs[j];
	ring_cancel(r->ring, x->slot, x->gen);
	ring_retire(r->ring, x->slot, x->gen); /* the test's device is always drained */
	x->p_live = 0;
	for (uint32_t b = 0; b < RIG_BLOCKS; b++) {
		if (src_owner[b] != j)
			continue;
		src_owner[b] = 0;
		for (uint32_t l = 0; l < RIG_LAYERS; l++) /* at once another sequence's */
			memset(rig_piece(r, &r->p, l, b), 0x77, r->layout.piece_bytes[l]);
	}
}

static void p_takes(const struct net *m)
{
	struct job *x = &jobs[m->job];
	if (!x->p_live || x->slot != m->slot || x->gen != m->gen)
		return;
	p_end(m->job);
	if (m->type == MSG_KV_SENT) {
		ENSURE(x->d == D_READY || x->d == D_FREE || x->d == D_QUARANTINE);
		n_sent++;
	} else {
		d_drop(m->job);
	}
}

static int take_blocks(uint32_t *owner, uint32_t j, uint32_t n, uint32_t *out)
{
	uint32_t free = 0;
	for (uint32_t b = 0; b < RIG_BLOCKS; b++)
		free += owner[b] == 0;
	if (free < n)
		return 0;
	for (uint32_t i = 0; i < n;) {
		uint32_t b = draw(RIG_BLOCKS);
		if (owner[b])
			continue;
		owner[b] = j;
		out[i++] = b;
	}
	return 1;
}

static void p_publishes(void)
{
	static struct ring_transfer t;
	uint32_t j = n_jobs, n = 1 + draw(4);
	if (j + 1 >= TRANSFERS_MAX || ring_used(r->ring) == RIG_SLOTS)
		return;
	struct job *x = &jobs[j];
	memset(x, 0, sizeof *x);
	if (!take_blocks(dst_owner, j, n, x->dst))
		return;
	n_jobs++;
	if (!take_blocks(src_owner, j, n, x->src)) {
		d_free(j);
		return;
	}
	x->d = D_LEASED;
	x->p_live = 1;
	x->blocks = n;
	x->tokens = (n - 1) * RIG_BLOCK_TOKENS + 1 + draw(RIG_BLOCK_TOKENS);
	rig_transfer(r, &t, j, 0, x->tokens);
	memcpy(t.src, x->src, sizeof x->src);
	memcpy(t.dst, x->dst, sizeof x->dst);
	for (uint32_t i = 0; i < n; i++)
		r->d.region.generations[x->dst[i]]++; /* D hands them out anew */
	rig_grant(r, &t);
	ENSURE(ring_publish(r->ring, &t, &x->slot, &x->gen) == 0);
}

static void p_computes(uint32_t j)
{
	struct job *x = &jobs[j];
	uint32_t l = draw(RIG_LAYERS);
	if (!x->p_live || x->done[l] == x->tokens)
		return;
	uint32_t to = draw(3) ? x->tokens : x->done[l] + 1 + draw(x->tokens - x->done[l]);
	for (uint32_t i = x->done[l] / RIG_BLOCK_TOKENS; i < x->blocks && i * RIG_BLOCK_TOKENS < to;
	     i++) {
		int whole = to == x->tokens || (i + 1) * RIG_BLOCK_TOKENS <= to;
		memset(rig_piece(r, &r->p, l, x->src[i]), rig_value(j, l, x->src[i]) ^ (whole ? 0 : 0x55),
		       r->layout.piece_bytes[l]);
	}
	x->done[l] = to;
	__atomic_store_n(ring_progress_word(r->ring, x->slot, l), ring_progress_value(x->gen, to),
	                 __ATOMIC_RELEASE);
}

/* --- the messager -------------------------------------------------------- */

static int walk_send(void *arg, const char *name, uint64_t to_epoch, enum msg_type type,
                     const struct msg_head *head, const ProtobufCMessage *body)
{
	struct net m = {.type = type, .job = (uint32_t)head->req.lo, .epoch = epoch};
	(void)arg;
	(void)name;
	(void)to_epoch;
	if (n_net > NET_MAX / 2 || draw(20) == 0)
		return ERR_FULL;
	if (type == MSG_KV_SENT) {
		m.slot = ((const Pds__KvSent *)body)->slot;
		m.gen = ((const Pds__KvSent *)body)->generation;
	} else if (type == MSG_TRANSFER_FAILED) {
		m.slot = ((const Pds__TransferFailed *)body)->slot;
		m.gen = ((const Pds__TransferFailed *)body)->generation;
	}
	put(m);
	return 0;
}

static void m_takes(const struct net *m)
{
	if (m->epoch != epoch)
		return; /* for a messager that is dead */
	r->lease = m->job;
	if (m->type == MSG_LEASE_OPENED)
		rig_opened(r, m->refused);
	else if (m->type == MSG_LEASE_REVOKE)
		rig_revoke(r);
	else
		rig_ack(r);
	n_revoked += m->type == MSG_LEASE_REVOKE;
}

static void m_start(void)
{
	const struct mover_out out = {.arg = r,
	                              .now_us = rig_now,
	                              .linked = rig_linked,
	                              .send = walk_send,
	                              .ended = rig_ended,
	                              .wake = rig_wake};
	const struct mover_limits limits = {RIG_STALL_US, r->layout.piece_bytes[0] * (1 + draw(4))};
	r->m = mover_new(&out, &limits);
	rig_attach_p(r);
	rig_attach_d(r);
}

/* Killed: what it sent may be lost; end of file and pidfd are D's fence for that epoch. */
static void m_dies(void)
{
	mover_destroy(&r->m);
	n_restarts++;
	for (unsigned i = n_net; i-- > 0;)
		if (net[i].epoch == epoch && draw(2))
			net[i] = net[--n_net];
	for (uint32_t j = 1; j < n_jobs; j++) {
		if (jobs[j].writer != epoch)
			continue;
		jobs[j].writer = 0;
		if (jobs[j].d == D_QUARANTINE)
			d_free(j);
	}
	epoch++;
	m_start();
}

static uint32_t some_job(void)
{
	uint32_t recent = n_jobs - 1 < 8 ? n_jobs - 1 : 8;
	return recent ? n_jobs - 1 - draw(recent) : 0;
}

static void p_cancels(uint32_t j)
{
	if (!jobs[j].p_live)
		return;
	p_end(j);
	put((struct net){.type = MSG_REQUEST_CANCEL, .job = j});
	n_cancelled++;
}

/* P runs beside the messager: what it does may come between any two of its looks at the clock,
 * between a copy and the mark, too. */
static void beside(struct rig *x)
{
	(void)x;
	uint32_t j = some_job();
	switch (j ? draw(12) : 11) {
	case 0:
		p_cancels(j);
		p_publishes();
		for (int k = 0; k < 4; k++)
			p_computes(some_job());
		break;
	case 1:
	case 2: p_computes(j); break;
	}
}

/* --- the walk ------------------------------------------------------------ */

static void deliver(void)
{
	if (!n_net)
		return;
	unsigned i = draw(n_net);
	struct net m = net[i];
	if (draw(8)) /* else it comes once more */
		net[i] = net[--n_net];
	switch (m.type) {
	case MSG_REQUEST_CANCEL: d_drop(m.job); break;
	case MSG_LEASE_OPEN:
	case MSG_KV_READY:
	case MSG_LEASE_REVOKED: d_takes(&m); break;
	case MSG_KV_SENT:
	case MSG_TRANSFER_FAILED: p_takes(&m); break;
	default: m_takes(&m);
	}
}

static void check_poison(void)
{
	for (uint32_t b = 0; b < RIG_BLOCKS; b++)
		for (uint32_t l = 0; l < RIG_LAYERS && !dst_owner[b]; l++)
			for (size_t k = 0; k < r->layout.piece_bytes[l]; k++)
				ENSURE(rig_piece(r, &r->d, l, b)[k] == POISON);
}

static void step(void)
{
	uint32_t j = some_job();
	switch (draw(20)) {
	case 0:
	case 1: p_publishes(); break;
	case 2:
	case 3:
	case 4:
	case 5:
		if (j)
			p_computes(j);
		break;
	case 6:
		if (j && draw(4) == 0)
			p_cancels(j);
		break;
	case 7:
		if (j && draw(6) == 0)
			d_drop(j); /* the lease expires */
		else if (j && jobs[j].d == D_READY && !jobs[j].p_live)
			d_free(j); /* the sequence has ended */
		break;
	case 8:
		if (draw(30) == 0)
			m_dies();
		break;
	case 9: r->now_us += 1000; break;
	case 10:
	case 11:
	case 12:
	case 13: deliver(); break;
	default:
		r->on_clock = beside;
		r->kill_at = draw(60) ? 0 : 1 + draw(6); /* in the middle of its turn */
		if (RIG_ALIVE(r)) {
			mover_turn(r->m);
			r->on_clock = NULL;
			r->kill_at = 0;
		} else {
			r->on_clock = NULL;
			m_dies();
		}
	}
	check_poison();
}

/* Everybody goes on until nothing moves. */
static void quiesce(void)
{
	for (unsigned round = 0; round < 400; round++, step_no++) {
		for (uint32_t j = 1; j < n_jobs; j++)
			for (int k = 0; k < 4; k++)
				p_computes(j);
		while (n_net && draw(64))
			deliver();
		mover_turn(r->m);
		check_poison();
		for (uint32_t j = 1; j < n_jobs; j++)
			if (jobs[j].d == D_READY && !jobs[j].p_live)
				d_free(j);
	}
	for (uint32_t j = 1; j < n_jobs; j++)
		if (jobs[j].d == D_LEASED && !jobs[j].p_live)
			d_drop(j);
	for (unsigned round = 0; round < 200; round++) {
		while (n_net && draw(64))
			deliver();
		mover_turn(r->m);
	}
}

static void begin(unsigned number)
{
	rig_init(r);
	mover_destroy(&r->m);
	seed = number * 7919 + 1;
	walk_no = (int)number;
	n_jobs = 1; /* 0 is nobody */
	n_net = step_no = 0;
	epoch = 1;
	memset(src_owner, 0, sizeof src_owner);
	memset(dst_owner, 0, sizeof dst_owner);
	memset(r->d.data, POISON, r->d.region.data_bytes);
	m_start();
}

TEST_CASE("transfer", .timeout_s = 120);

TEST_LOOP(walk, 0, getenv("SAN") && *getenv("SAN") && !getenv("PD_FULL") ? 1 : 4)
{
	n_delivered = n_sent = n_cancelled = n_restarts = n_refused = n_revoked = 0;
	for (unsigned k = 0; k < WALKS; k++) {
		begin((unsigned)_i * WALKS + k);
		for (step_no = 0; step_no < 1500; step_no++)
			step();
		quiesce();
		ENSURE(mover_open_transfers(r->m) == 0);
		ENSURE(ring_used(r->ring) == 0);
		for (uint32_t j = 1; j < n_jobs; j++)
			ENSURE(!jobs[j].p_live && jobs[j].d == D_FREE);
		rig_fini(r);
	}
	/* the walks go everywhere */
	ck_assert_uint_gt(n_delivered, 500);
	ck_assert_uint_gt(n_sent, 500);
	ck_assert_uint_gt(n_cancelled, 200);
	ck_assert_uint_gt(n_restarts, 200);
	ck_assert_uint_gt(n_refused, 50);
	ck_assert_uint_gt(n_revoked, 200);
	if (getenv("WALK_VERBOSE"))
		printf("delivered %u sent %u cancelled %u restarts %u refused %u revoked %u\n", n_delivered,
		       n_sent, n_cancelled, n_restarts, n_refused, n_revoked);
}

TEST_START(quiet)
{
	log_set_level("error");
}
