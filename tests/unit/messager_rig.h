/* messager_rig.h - a prefill worker, a decode worker and their links in one process, for driving
 * the messager's transfer machine event by event.
 *
 * Time stands still unless a test moves it. What the machine sends is kept as struct said;
 * nothing is delivered by itself. */
#ifndef TEST_MESSAGER_RIG_H
#define TEST_MESSAGER_RIG_H

#include "daemons/messager/mover.h"
#include "pool_memory.h"
#include "util/check.h"

#include <setjmp.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define RIG_BLOCKS 24u
#define RIG_LAYERS 3u
#define RIG_BLOCK_TOKENS 4u
#define RIG_SLOTS 4u
#define RIG_STALL_US 2000000u
#define P_EPOCH 100u
#define D_EPOCH 200u

#define RIG_LEASES 4096u

/* What D has granted: the blocks that it names when the messager asks. */
struct grant {
	uint32_t first_token, tokens, n, blocks[RIG_BLOCKS];
	uint64_t generations[RIG_BLOCKS];
};

struct said {
	enum msg_type type;
	char to[RING_NAME_MAX];
	char prefill[RING_NAME_MAX], messager[RING_NAME_MAX]; /* of LEASE_OPEN and KV_READY */
	uint64_t epoch, lease, slot_gen;
	struct reqid req;
	uint32_t slot;
	Pds__Fault fault;
	char text[400];
	enum ring_state word; /* of slot 0 at that moment */
};

struct rig {
	struct mover *m;
	struct kv_layout layout;
	struct pool_memory p, d; /* the owners' mappings */
	struct ring *ring;       /* P's */
	_Atomic uint64_t now_us;
	int p_linked, d_linked, full; /* full: the window takes nothing */
	struct said said[64];
	unsigned n_said;
	void (*on_clock)(struct rig *r); /* called whenever the machine looks at the clock */
	unsigned clock_calls;
	/* Points: whenever the machine asks for something outside itself - the clock, before and after
	 * each message. All that it does to shared memory lies between two points. kill_at 1: killed
	 * at the next one, n: at the n-th; 0: not. */
	unsigned points, kill_at;
	sigjmp_buf killed; /* set by RIG_ALIVE */
	void (*on_point)(struct rig *r);
	enum transfer_end last_end;
	unsigned n_ended, wakes;
	const char *unreachable; /* why D is */
	struct transfer_report report;
	uint32_t slot; /* of the transfer that rig_publish made last */
	uint64_t gen;
	uint64_t lease;
	struct mover_worker *wp, *wd;
	struct grant grants[RIG_LEASES]; /* by lease */
};

static void rig_point(struct rig *r)
{
	r->points++;
	if (r->on_point)
		r->on_point(r);
	if (r->kill_at && --r->kill_at == 0)
		siglongjmp(r->killed, 1);
}

/* if (RIG_ALIVE(r)) { calls of the machine } else { it was killed at a point in them:
 * rig_restart } */
#define RIG_ALIVE(r) (sigsetjmp((r)->killed, 0) == 0)

static uint64_t rig_now(void *arg)
{
	struct rig *r = arg;
	rig_point(r);
	r->clock_calls++;
	if (r->on_clock)
		r->on_clock(r);
	return r->now_us;
}

static int rig_linked(void *arg, const char *name, uint64_t epoch)
{
	struct rig *r = arg;
	if (strcmp(name, "prefill-1") == 0 || strcmp(name, "prefill-2") == 0)
		return r->p_linked && epoch == P_EPOCH;
	return strcmp(name, "decode-1") == 0 && r->d_linked && epoch == D_EPOCH;
}

static int rig_send(void *arg, const char *name, uint64_t epoch, enum msg_type type,
                    const struct msg_head *head, const ProtobufCMessage *body)
{
	struct rig *r = arg;
	rig_point(r);
	if (r->full)
		return ERR_FULL;
	CHECK(head->attempt && (head->req.hi || head->req.lo) && r->n_said < 64);
	struct said *s = &r->said[r->n_said++];
	uint64_t gen;
	*s = (struct said){
		.type = type, .epoch = epoch, .req = head->req, .word = ring_peek(r->ring, 0, &gen)};
	strcpy(s->to, name);
	if (type == MSG_LEASE_OPEN) {
		const Pds__LeaseOpen *o = (const Pds__LeaseOpen *)body;
		s->lease = o->lease->id;
		snprintf(s->prefill, sizeof s->prefill, "%s", o->prefill);
		snprintf(s->messager, sizeof s->messager, "%s", o->messager);
		CHECK(o->prefill_epoch == P_EPOCH);
	} else if (type == MSG_LEASE_REVOKED) {
		s->lease = ((const Pds__LeaseRevoked *)body)->lease->id;
	} else if (type == MSG_KV_READY) {
		const Pds__KvReady *k = (const Pds__KvReady *)body;
		s->lease = k->lease->id;
		snprintf(s->prefill, sizeof s->prefill, "%s", k->prefill);
		snprintf(s->messager, sizeof s->messager, "%s", k->messager);
		CHECK(k->prefill_epoch == P_EPOCH);
	} else if (type == MSG_KV_SENT) {
		s->slot = ((const Pds__KvSent *)body)->slot;
		s->slot_gen = ((const Pds__KvSent *)body)->generation;
	} else if (type == MSG_TRANSFER_FAILED) {
		const Pds__TransferFailed *f = (const Pds__TransferFailed *)body;
		s->slot = f->slot;
		s->slot_gen = f->generation;
		s->fault = f->fault;
		snprintf(s->text, sizeof s->text, "%s", f->text);
	}
	rig_point(r);
	return 0;
}

static void rig_wake(void *arg)
{
	((struct rig *)arg)->wakes++;
}

static void rig_ended(void *arg, const struct transfer_report *rep)
{
	struct rig *r = arg;
	r->last_end = rep->end;
	r->report = *rep;
	r->n_ended++;
}

static void rig_attach_p(struct rig *r)
{
	struct kv_region p;
	struct ring *ring;
	struct err e = {0};
	struct kv_data part = one_part(dup(r->p.region.data.fd[0]));
	if (kv_region_map(&p, &r->layout, RIG_BLOCKS, "cpu", dup(r->p.region.control_fd), &part, &e) <
	        0 ||
	    ring_map(dup(ring_fd(r->ring)), RIG_SLOTS, RIG_LAYERS, P_EPOCH, &ring, &e) < 0)
		PANIC("%s", e.text);
	r->wp = mover_add(r->m, "prefill-1", P_EPOCH, &r->layout, &p, ring);
}

static void rig_attach_d(struct rig *r)
{
	struct kv_region d;
	struct err e = {0};
	struct kv_data part = one_part(dup(r->d.region.data.fd[0]));
	if (kv_region_map(&d, &r->layout, RIG_BLOCKS, "cpu", dup(r->d.region.control_fd), &part, &e) <
	    0)
		PANIC("%s", e.text);
	r->wd = mover_add(r->m, "decode-1", D_EPOCH, &r->layout, &d, NULL);
}

static const char *rig_unreachable(void *arg, const char *decode)
{
	ck_assert_str_eq(decode, "decode-1");
	return ((struct rig *)arg)->unreachable;
}

static struct mover *rig_mover(struct rig *r)
{
	const struct mover_out out = {.arg = r,
	                              .now_us = rig_now,
	                              .linked = rig_linked,
	                              .send = rig_send,
	                              .ended = rig_ended,
	                              .wake = rig_wake,
	                              .unreachable = rig_unreachable};
	const struct mover_limits limits = {RIG_STALL_US, 1 << 20};
	return mover_new(&out, &limits);
}

static void rig_init(struct rig *r)
{
	struct err e = {0};
	memset(r, 0, sizeof *r);
	r->now_us = 1000000;
	r->p_linked = r->d_linked = 1;
	kv_layout_uniform(&r->layout, RIG_LAYERS, 1, 4, RIG_BLOCK_TOKENS, KV_F32);
	if (pool_memory_new(&r->p, &r->layout, RIG_BLOCKS, &e) < 0 ||
	    pool_memory_new(&r->d, &r->layout, RIG_BLOCKS, &e) < 0 ||
	    ring_create(RIG_SLOTS, RIG_LAYERS, P_EPOCH, &r->ring, &e) < 0)
		PANIC("%s", e.text);
	r->m = rig_mover(r);
	rig_attach_p(r);
	rig_attach_d(r);
}

static void rig_fini(struct rig *r)
{
	r->on_clock = r->on_point = NULL;
	r->kill_at = 0;
	mover_destroy(&r->m);
	ring_destroy(&r->ring);
	pool_memory_fini(&r->p);
	pool_memory_fini(&r->d);
}

/* The messager is killed and a new one starts: it knows nothing but what shared memory says. */
__attribute__((unused)) static void rig_restart(struct rig *r)
{
	void (*hook)(struct rig * r) = r->on_clock, (*point)(struct rig * r) = r->on_point;
	unsigned kill_at = r->kill_at;
	r->on_clock = r->on_point = NULL;
	r->kill_at = 0;
	mover_destroy(&r->m);
	r->m = rig_mover(r);
	rig_attach_p(r);
	rig_attach_d(r);
	r->on_clock = hook;
	r->on_point = point;
	r->kill_at = kill_at;
}

/* --- P ------------------------------------------------------------------- */

static void rig_transfer(struct rig *r, struct ring_transfer *t, uint64_t lease,
                         uint32_t first_token, uint32_t tokens)
{
	memset(t, 0, sizeof *t);
	t->req = (struct reqid){7, lease};
	t->attempt = 1;
	t->lease_id = lease;
	t->lease_epoch = D_EPOCH;
	t->lease_generation = 5;
	strcpy(t->decode, "decode-1");
	t->deadline_us = r->now_us + 60000000;
	t->first_token = first_token;
	t->tokens = tokens;
	t->blocks = (tokens - first_token + RIG_BLOCK_TOKENS - 1) / RIG_BLOCK_TOKENS;
	for (uint32_t i = 0; i < t->blocks; i++) {
		t->src[i] = 2 + i;
		t->dst[i] = 10 + i;
	}
}

/* D has granted a lease of just what the transfer names. */
static void rig_grant(struct rig *r, const struct ring_transfer *t)
{
	CHECK(t->lease_id < RIG_LEASES && t->blocks <= RIG_BLOCKS);
	struct grant *g = &r->grants[t->lease_id];
	*g = (struct grant){.first_token = t->first_token, .tokens = t->tokens, .n = t->blocks};
	for (uint32_t i = 0; i < g->n; i++) {
		g->blocks[i] = t->dst[i];
		g->generations[i] = r->d.region.generations[t->dst[i]];
	}
}

static void rig_post(struct rig *r, const struct ring_transfer *t)
{
	rig_grant(r, t);
	int e = ring_publish(r->ring, t, &r->slot, &r->gen);
	CHECK(e == 0);
	r->lease = t->lease_id;
}

__attribute__((unused)) static void rig_publish(struct rig *r, uint64_t lease, uint32_t first_token,
                                                uint32_t tokens)
{
	static struct ring_transfer t;
	rig_transfer(r, &t, lease, first_token, tokens);
	rig_post(r, &t);
}

static unsigned char *rig_piece(const struct rig *r, const struct pool_memory *of, uint32_t layer,
                                uint32_t block)
{
	return of->data + kv_piece_offset(&r->layout, RIG_BLOCKS, layer, block);
}

static unsigned char rig_value(uint64_t lease, uint32_t layer, uint32_t block)
{
	return (unsigned char)(1 + (lease * 41 + layer * 17 + block * 3) % 250);
}

/* P computes all blocks of the layer up to `tokens` of the last published transfer, and says so. */
static void rig_compute_layer(struct rig *r, uint32_t layer, uint32_t first_block,
                              uint32_t n_blocks, uint32_t tokens)
{
	for (uint32_t b = first_block; b < first_block + n_blocks; b++)
		memset(rig_piece(r, &r->p, layer, b), rig_value(r->lease, layer, b),
		       r->layout.piece_bytes[layer]);
	__atomic_store_n(ring_progress_word(r->ring, r->slot, layer),
	                 ring_progress_value(r->gen, tokens), __ATOMIC_RELEASE);
}

__attribute__((unused)) static void rig_compute(struct rig *r, uint32_t n_blocks, uint32_t tokens)
{
	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		rig_compute_layer(r, l, 2, n_blocks, tokens);
}

/* --- D ------------------------------------------------------------------- */

/* The answer as D would give it, for tests that change something of it before they pass it on. */
struct answer {
	Pds__Lease lease;
	Pds__LeaseOpened b;
	uint32_t blocks[RIG_BLOCKS];
	uint64_t generations[RIG_BLOCKS];
};

static void rig_answer(const struct rig *r, struct answer *a, uint64_t lease, uint64_t generation,
                       uint64_t epoch)
{
	const struct grant *g = &r->grants[lease % RIG_LEASES];
	pds__lease__init(&a->lease);
	pds__lease_opened__init(&a->b);
	a->lease.id = lease;
	a->lease.epoch = epoch;
	a->lease.generation = generation;
	a->b.lease = &a->lease;
	a->b.prefill = "prefill-1";
	a->b.prefill_epoch = P_EPOCH;
	a->b.cached_tokens = g->first_token;
	a->b.tokens = g->tokens;
	a->b.blocks = a->blocks;
	a->b.generations = a->generations;
	a->b.n_blocks = a->b.n_generations = g->n;
	for (uint32_t i = 0; i < g->n; i++) {
		a->blocks[i] = g->blocks[i];
		a->generations[i] = g->generations[i];
	}
}

static void rig_opened_by(struct rig *r, uint64_t lease, uint64_t generation, uint64_t epoch,
                          int refused)
{
	struct answer a;
	rig_answer(r, &a, lease, generation, epoch);
	a.b.refused = refused;
	mover_lease_opened(r->m, "decode-1", epoch, &a.b);
}

static void rig_opened(struct rig *r, int refused)
{
	rig_opened_by(r, r->lease, 5, D_EPOCH, refused);
}

static inline void rig_revoke_by(struct rig *r, Pds__Fault fault)
{
	Pds__Lease l = PDS__LEASE__INIT;
	Pds__LeaseRevoke b = PDS__LEASE_REVOKE__INIT;
	const struct msg_head head = {{7, r->lease}, 1, 0};
	l.id = r->lease;
	l.epoch = D_EPOCH;
	l.generation = 5;
	b.lease = &l;
	b.fault = fault;
	mover_lease_revoke(r->m, "decode-1", D_EPOCH, &head, &b);
}

static inline void rig_revoke(struct rig *r)
{
	rig_revoke_by(r, PDS__FAULT__FAULT_LEASE_LOST);
}

static void rig_ack(struct rig *r)
{
	Pds__Lease l = PDS__LEASE__INIT;
	Pds__KvReadyAck b = PDS__KV_READY_ACK__INIT;
	l.id = r->lease;
	l.epoch = D_EPOCH;
	l.generation = 5;
	b.lease = &l;
	b.prefill = "prefill-1";
	b.prefill_epoch = P_EPOCH;
	mover_kv_ready_ack(r->m, "decode-1", D_EPOCH, &b);
}

/* --- what was said ------------------------------------------------------- */

__attribute__((unused)) static unsigned rig_count(const struct rig *r, enum msg_type type)
{
	unsigned n = 0;
	for (unsigned i = 0; i < r->n_said; i++)
		n += r->said[i].type == type;
	return n;
}

__attribute__((unused)) static const struct said *rig_last(const struct rig *r, enum msg_type type)
{
	for (unsigned i = r->n_said; i-- > 0;)
		if (r->said[i].type == type)
			return &r->said[i];
	return NULL;
}

/* Bytes of D's pool that are not zero. */
static size_t rig_written(const struct rig *r)
{
	size_t n = 0;
	for (size_t i = 0; i < r->d.region.data_bytes; i++)
		n += r->d.data[i] != 0;
	return n;
}

/* 1 when D has exactly these blocks of the transfer (10 + i of layer l), right in every byte. */
static int rig_arrived(const struct rig *r, uint32_t layer, uint32_t blocks)
{
	for (uint32_t i = 0; i < blocks; i++)
		for (size_t k = 0; k < r->layout.piece_bytes[layer]; k++)
			if (rig_piece(r, &r->d, layer, 10 + i)[k] != rig_value(r->lease, layer, 2 + i))
				return 0;
	return 1;
}

__attribute__((unused)) static int rig_all_arrived(const struct rig *r, uint32_t blocks)
{
	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		if (!rig_arrived(r, l, blocks))
			return 0;
	return rig_written(r) == (size_t)blocks * r->layout.block_bytes;
}

#endif
