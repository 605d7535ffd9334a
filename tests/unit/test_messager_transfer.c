/* test_messager_transfer.c - the messager's transfer machine against a real ring and two real
 * pools, event by event. Names in brackets are the model's counterexamples (tests/model/README.md)
 * that the messager guards against. */
#include "messager_steps.h"

#include "daemons/messager/mover_priv.h"

#include <sys/eventfd.h>

/* --- the way of a transfer that ends well ------------------------------------ */

TEST(life_of_a_transfer)
{
	turn(MOVER_IDLE);
	asked();
	const struct said *s = rig_last(r, MSG_LEASE_OPEN);
	ck_assert_str_eq(s->to, "decode-1");
	ck_assert_uint_eq(s->epoch, D_EPOCH);
	ck_assert_uint_eq(s->req.lo, 1);
	rig_compute(r, 3, 10);
	turn(MOVER_OPEN);
	ck_assert_uint_eq(rig_written(r), 0); /* not before the answer */
	rig_opened(r, 0);
	turn(MOVER_OPEN);
	ck_assert(rig_all_arrived(r, 3));
	ck_assert_uint_eq(rig_count(r, MSG_KV_READY), 1);
	turn(MOVER_OPEN);
	ck_assert_uint_eq(rig_count(r, MSG_KV_SENT), 0);
	rig_ack(r);
	turn(MOVER_IDLE);
	s = rig_last(r, MSG_KV_SENT);
	ck_assert_ptr_nonnull(s);
	ck_assert_str_eq(s->to, "prefill-1");
	ck_assert_uint_eq(s->slot, r->slot);
	ck_assert_uint_eq(s->slot_gen, r->gen);
	ck_assert_int_eq(r->last_end, END_SENT);
	ck_assert_uint_eq(r->report.bytes, 3 * r->layout.block_bytes);
	ck_assert_uint_eq(r->report.pieces, 3 * RIG_LAYERS);
	ck_assert_uint_eq(r->n_said, 3);
	/* the slot is still SENT: it is not taken up twice */
	turn(MOVER_IDLE);
	ring_retire(r->ring, r->slot, r->gen);
	turn(MOVER_IDLE);
	ck_assert_uint_eq(r->n_said, 3);
}

/* tokens computed in layer 0 -> blocks of layer 0 that D has; 10 tokens in blocks of 4 */
static const struct {
	uint32_t tokens, blocks;
} partial[] = {{0, 0}, {3, 0}, {4, 1}, {7, 1}, {8, 2}, {9, 2}, {10, 3}, {4000000000u, 3}};

TEST_LOOP(full_blocks_as_they_fill_the_last_one_once, 0, sizeof partial / sizeof *partial)
{
	opened();
	rig_compute_layer(r, 0, 2, 3, partial[_i].tokens);
	turn(MOVER_OPEN);
	ck_assert(rig_arrived(r, 0, partial[_i].blocks));
	ck_assert_uint_eq(rig_written(r), partial[_i].blocks * r->layout.piece_bytes[0]);
	turn(MOVER_OPEN);
	rig_compute(r, 3, 10);
	turn(MOVER_OPEN);
	rig_ack(r);
	turn(MOVER_IDLE);
	ck_assert(rig_all_arrived(r, 3));
	ck_assert_uint_eq(r->report.pieces, 3 * RIG_LAYERS); /* each piece once */
}

TEST(only_what_decode_lacks)
{
	rig_publish(r, 1, 8, 10);
	turn(MOVER_OPEN);
	rig_opened(r, 0);
	rig_compute(r, 1, 8); /* P's own cached prefix */
	turn(MOVER_OPEN);
	ck_assert_uint_eq(rig_written(r), 0);
	rig_compute(r, 1, 10);
	turn(MOVER_OPEN);
	ck_assert(rig_all_arrived(r, 1));
}

TEST(progress_of_another_generation_is_none)
{
	opened();
	rig_compute(r, 3, 10);
	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		*ring_progress_word(r->ring, r->slot, l) = ring_progress_value(r->gen + 1, 10);
	turn(MOVER_OPEN);
	ck_assert_uint_eq(rig_written(r), 0);
}

static const struct {
	uint32_t src[4], dst[4], runs; /* per layer */
} runs[] = {
	{{2, 3, 4, 5}, {10, 11, 12, 13}, 1},  {{2, 3, 4, 5}, {10, 11, 13, 14}, 2},
	{{2, 3, 9, 10}, {10, 11, 12, 13}, 2}, {{5, 4, 3, 2}, {10, 11, 12, 13}, 4},
	{{2, 3, 4, 5}, {13, 12, 11, 10}, 4},  {{2, 2, 2, 2}, {10, 11, 12, 13}, 4},
};

TEST_LOOP(neighbours_are_copied_in_one_go, 0, sizeof runs / sizeof *runs)
{
	static struct ring_transfer t;
	rig_transfer(r, &t, 1, 0, 16);
	memcpy(t.src, runs[_i].src, sizeof runs[_i].src);
	memcpy(t.dst, runs[_i].dst, sizeof runs[_i].dst);
	rig_post(r, &t);
	turn(MOVER_OPEN);
	rig_opened(r, 0);
	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		rig_compute_layer(r, l, 0, RIG_BLOCKS, 16);
	turn(MOVER_OPEN);
	rig_ack(r);
	turn(MOVER_IDLE);
	ck_assert_uint_eq(r->report.runs, runs[_i].runs * RIG_LAYERS);
	ck_assert_uint_eq(r->report.pieces, 4 * RIG_LAYERS);
	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		for (int i = 0; i < 4; i++)
			ck_assert_mem_eq(rig_piece(r, &r->d, l, t.dst[i]), rig_piece(r, &r->p, l, t.src[i]),
			                 r->layout.piece_bytes[l]);
}

/* More pieces than are copied at once, from and to blocks without neighbours. */
TEST(scattered_blocks_of_a_long_transfer)
{
	static struct ring_transfer t;
	const uint32_t blocks = RIG_BLOCKS - 2;
	rig_transfer(r, &t, 1, 0, blocks * RIG_BLOCK_TOKENS);
	for (uint32_t i = 0; i < blocks; i++) {
		t.src[i] = i;
		t.dst[i] = RIG_BLOCKS - 1 - i;
		r->d.region.generations[t.dst[i]] = 100 + i;
	}
	rig_post(r, &t);
	turn(MOVER_OPEN);
	rig_opened(r, 0);
	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		rig_compute_layer(r, l, 0, RIG_BLOCKS, blocks * RIG_BLOCK_TOKENS);
	turn(MOVER_OPEN);
	rig_ack(r);
	turn(MOVER_IDLE);
	ck_assert_int_eq(r->last_end, END_SENT);
	ck_assert_uint_eq(r->report.runs, blocks * RIG_LAYERS);
	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		for (uint32_t i = 0; i < blocks; i++)
			ck_assert_mem_eq(rig_piece(r, &r->d, l, t.dst[i]), rig_piece(r, &r->p, l, t.src[i]),
			                 r->layout.piece_bytes[l]);
}

TEST(a_turn_copies_no_more_than_a_slice)
{
	const size_t piece = r->layout.piece_bytes[0];
	mover_set_limits(r->m, &(struct mover_limits){RIG_STALL_US, 2 * piece});
	opened();
	rig_compute(r, 3, 10);
	for (unsigned n = 1; n <= 4; n++) {
		turn(MOVER_BUSY);
		ck_assert_uint_eq(mover_bytes(r->m), 2 * n * piece);
	}
	turn(MOVER_OPEN);
	ck_assert(rig_all_arrived(r, 3));
}

TEST(a_slice_smaller_than_a_piece_still_moves)
{
	mover_set_limits(r->m, &(struct mover_limits){RIG_STALL_US, 1});
	opened();
	rig_compute(r, 3, 10);
	for (unsigned n = 1; n < 9; n++)
		turn(MOVER_BUSY);
	turn(MOVER_OPEN);
	ck_assert(rig_all_arrived(r, 3));
}

TEST(transfers_take_turns)
{
	const size_t piece = r->layout.piece_bytes[0];
	mover_set_limits(r->m, &(struct mover_limits){RIG_STALL_US, 3 * piece});
	static struct ring_transfer t;
	for (uint64_t lease = 1; lease <= 2; lease++) {
		rig_transfer(r, &t, lease, 0, 36);
		for (int i = 0; i < 9; i++)
			t.dst[i] = (uint32_t)((lease - 1) * 9) + (uint32_t)i;
		rig_post(r, &t);
		rig_compute(r, 9, 36);
	}
	turn(MOVER_OPEN);
	for (r->lease = 1; r->lease <= 2; r->lease++)
		rig_opened(r, 0);
	turn(MOVER_BUSY);
	turn(MOVER_BUSY);
	ck_assert(rig_piece(r, &r->d, 0, 0)[0]); /* both have begun */
	ck_assert(rig_piece(r, &r->d, 0, 9)[0]);
}

/* --- model: the counterexamples that the messager guards against --------- */

TEST(m4_restarted_unasked)
{
	mover_set_limits(r->m, &(struct mover_limits){RIG_STALL_US, 1});
	opened();
	rig_compute(r, 3, 10);
	turn(MOVER_BUSY);
	rig_restart(r);
	/* D has freed the blocks: the old messager is gone */
	memset(r->d.data, 0, r->d.region.data_bytes);
	turn(MOVER_OPEN);
	turn(MOVER_OPEN);
	ck_assert_uint_eq(rig_count(r, MSG_LEASE_OPEN), 2);
	ck_assert_uint_eq(rig_written(r), 0);
	rig_opened(r, 1);
	turn(MOVER_IDLE);
	ck_assert_uint_eq(rig_written(r), 0);
	failed(END_REFUSED, PDS__FAULT__FAULT_LEASE_LOST, "refused to open lease 1");
}

TEST(m5_ack_while_copying)
{
	mover_set_limits(r->m, &(struct mover_limits){RIG_STALL_US, 1});
	opened();
	rig_compute(r, 3, 10);
	turn(MOVER_BUSY);
	ck_assert_uint_ne(rig_written(r), 0);
	rig_revoke(r);
	ck_assert_uint_eq(rig_count(r, MSG_LEASE_REVOKED), 1); /* at once, not at a later turn */
	memset(r->d.data, 0, r->d.region.data_bytes);
	failed(END_REVOKED, PDS__FAULT__FAULT_LEASE_LOST, "revoked lease 1");
	for (int i = 0; i < 5; i++)
		turn(MOVER_IDLE);
	ck_assert_uint_eq(rig_written(r), 0);
	word_is(RING_PENDING);
	rig_revoke(r); /* repeated: answered the same */
	ck_assert_uint_eq(rig_count(r, MSG_LEASE_REVOKED), 2);
}

TEST(m17_cancel_forgotten)
{
	asked();
	rig_compute(r, 3, 10);
	rig_revoke(r);
	ck_assert_uint_eq(rig_count(r, MSG_LEASE_REVOKED), 1);
	rig_opened(r, 0);
	turn(MOVER_IDLE);
	ck_assert_uint_eq(rig_written(r), 0);
	failed(END_REVOKED, PDS__FAULT__FAULT_LEASE_LOST, "revoked lease 1");
	/* published again under the same lease, and the answer comes once more */
	ring_cancel(r->ring, r->slot, r->gen);
	ring_retire(r->ring, r->slot, r->gen);
	rig_publish(r, 1, 0, 10);
	rig_compute(r, 3, 10);
	turn(MOVER_IDLE);
	rig_opened(r, 0);
	turn(MOVER_IDLE);
	ck_assert_uint_eq(rig_count(r, MSG_LEASE_OPEN), 1);
	ck_assert_uint_eq(rig_written(r), 0);
}

TEST(m17_cancel_forgotten_without_a_transfer)
{
	r->lease = 1;
	rig_revoke(r);
	ck_assert_uint_eq(rig_count(r, MSG_LEASE_REVOKED), 1);
	ck_assert_uint_eq(mover_revoked(r->m), 1);
	rig_publish(r, 1, 0, 10);
	turn(MOVER_IDLE);
	failed(END_REVOKED, PDS__FAULT__FAULT_LEASE_LOST, "revoked lease 1");
	ck_assert_uint_eq(rig_count(r, MSG_LEASE_OPEN), 0);
	rig_publish(r, 2, 0, 10); /* another lease is not touched */
	turn(MOVER_OPEN);
	ck_assert_uint_eq(rig_count(r, MSG_LEASE_OPEN), 1);
}

/* The machine looks at the clock between the last copy and the mark; there P cancels. */
static void cancel_before_mark(struct rig *x)
{
	if (rig_written(x) == 3 * x->layout.block_bytes) {
		x->on_clock = NULL;
		ck_assert_int_eq(ring_cancel(x->ring, x->slot, x->gen), 0);
	}
}

static void reuse_before_mark(struct rig *x)
{
	if (rig_written(x) != 3 * x->layout.block_bytes)
		return;
	uint64_t gen = x->gen;
	uint32_t slot = x->slot;
	x->on_clock = NULL;
	ck_assert_int_eq(ring_cancel(x->ring, slot, gen), 0);
	ring_retire(x->ring, slot, gen);
	rig_publish(x, 2, 0, 10);
	ck_assert_uint_eq(x->slot, slot);
}

TEST(m8_cancel_not_in_slot)
{
	opened();
	rig_compute(r, 3, 10);
	r->on_clock = cancel_before_mark;
	turn(MOVER_IDLE);
	ck_assert_ptr_null(r->on_clock);
	ck_assert_uint_eq(rig_count(r, MSG_KV_READY), 0);
	ck_assert_uint_eq(rig_count(r, MSG_TRANSFER_FAILED), 0);
	ck_assert_int_eq(r->last_end, END_CANCELLED);
	word_is(RING_VOID);
}

TEST(bm8_bm9_the_mark_never_hits_the_next_transfer_of_the_slot)
{
	opened();
	rig_compute(r, 3, 10);
	r->on_clock = reuse_before_mark;
	turn(MOVER_IDLE);
	ck_assert_ptr_null(r->on_clock);
	ck_assert_uint_eq(rig_count(r, MSG_KV_READY), 0);
	word_is(RING_PENDING);
	turn(MOVER_OPEN);
	ck_assert_uint_eq(rig_last(r, MSG_LEASE_OPEN)->lease, 2);
}

TEST(m19_bm10_ready_before_mark)
{
	posted();
	ck_assert_int_eq(rig_last(r, MSG_KV_READY)->word, RING_SENT);
}

TEST(m19_ready_before_mark_nothing_is_written_again)
{
	posted();
	rig_restart(r);
	memset(r->d.data, 0, r->d.region.data_bytes);
	r->n_said = 0;
	turn(MOVER_OPEN);
	ck_assert_uint_eq(rig_count(r, MSG_LEASE_OPEN), 0);
	ck_assert_uint_eq(rig_count(r, MSG_KV_READY), 1);
	rig_opened(r, 0); /* late, of the old messager's question */
	turn(MOVER_OPEN);
	rig_ack(r);
	turn(MOVER_IDLE);
	ck_assert_uint_eq(rig_written(r), 0);
	ck_assert_uint_eq(rig_count(r, MSG_KV_SENT), 1);
}

TEST(s_kvsent_at_once)
{
	posted();
	for (int i = 0; i < 3; i++)
		turn(MOVER_OPEN);
	ck_assert_uint_eq(rig_count(r, MSG_KV_SENT), 0);
	/* KV_READY was lost with the messager: it is posted again */
	rig_restart(r);
	turn(MOVER_OPEN);
	ck_assert_uint_eq(rig_count(r, MSG_KV_READY), 2);
	rig_ack(r);
	rig_ack(r);
	turn(MOVER_IDLE);
	rig_ack(r);
	turn(MOVER_IDLE);
	ck_assert_uint_eq(rig_count(r, MSG_KV_SENT), 1);
}

/* m14: an answer of another life of D, or about another generation of the lease, opens nothing */
static const struct {
	uint64_t lease, generation, epoch;
} strangers[] = {{1, 5, D_EPOCH - 1}, {1, 5, D_EPOCH + 1}, {1, 4, D_EPOCH}, {2, 5, D_EPOCH}};

TEST_LOOP(m14_old_m_asks_late_answers_of_another_life, 0, sizeof strangers / sizeof *strangers)
{
	asked();
	rig_compute(r, 3, 10);
	rig_opened_by(r, strangers[_i].lease, strangers[_i].generation, strangers[_i].epoch, 0);
	rig_opened_by(r, strangers[_i].lease, strangers[_i].generation, strangers[_i].epoch, 1);
	turn(MOVER_OPEN);
	ck_assert_uint_eq(rig_written(r), 0);
	rig_opened(r, 0);
	turn(MOVER_OPEN);
	ck_assert(rig_all_arrived(r, 3));
}

TEST(an_answer_in_another_workers_name_is_dropped)
{
	struct answer a;
	asked();
	rig_compute(r, 3, 10);
	rig_answer(r, &a, 1, 5, D_EPOCH);
	mover_lease_opened(r->m, "decode-2", D_EPOCH, &a.b);
	mover_lease_opened(r->m, "prefill-1", P_EPOCH, &a.b);
	a.b.lease = NULL;
	mover_lease_opened(r->m, "decode-1", D_EPOCH, &a.b);
	turn(MOVER_OPEN);
	ck_assert_uint_eq(rig_written(r), 0);
}

/* --- cancel and restart between every two steps -------------------------- */

TEST_LOOP(restart_between_any_two_steps, 0, STEPS)
{
	for (int i = 0; i <= _i; i++)
		way(i);
	rig_restart(r);
	for (int round = 0; round < 3; round++) {
		mover_turn(r->m);
		rig_opened(r, 0);
		if (_i >= 0)
			rig_compute(r, 3, 10);
		mover_turn(r->m);
		rig_ack(r);
		mover_turn(r->m);
	}
	ck_assert(rig_all_arrived(r, 3));
	word_is(RING_SENT);
	ck_assert_uint_ge(rig_count(r, MSG_KV_SENT), 1);
	ck_assert_uint_eq(rig_count(r, MSG_TRANSFER_FAILED), 0);
	ck_assert_uint_eq(mover_open_transfers(r->m), 0);
}

TEST_LOOP(cancel_after_each_step, 0, STEPS)
{
	for (int i = 0; i <= _i; i++)
		way(i);
	size_t written = rig_written(r);
	unsigned said = r->n_said;
	int late = ring_cancel(r->ring, r->slot, r->gen);
	ck_assert_int_eq(late, _i >= 5 ? ERR_STALE : 0);
	if (late)
		ring_retire(r->ring, r->slot, r->gen);
	turn(MOVER_IDLE);
	rig_opened(r, 0);
	rig_compute_layer(r, 1, 2, 3, 10);
	rig_ack(r);
	turn(MOVER_IDLE);
	ck_assert_uint_eq(rig_written(r), written);
	ck_assert_uint_eq(r->n_said, said); /* closed without a word */
	rig_revoke(r);                      /* D is told by P, and asks for the fence */
	ck_assert_uint_eq(rig_count(r, MSG_LEASE_REVOKED), 1);
}

/* D ends in order, or switches its role: that is no loss, whichever comes first, its word or P's
 * transfer; and what comes after its word does not change it. */
TEST_LOOP(given_back_in_order, 0, 3)
{
	r->lease = 1;
	if (_i == 0)
		rig_revoke_by(r, PDS__FAULT__FAULT_DRAINING);
	rig_publish(r, 1, 0, 10);
	turn(_i ? MOVER_OPEN : MOVER_IDLE);
	if (_i == 1)
		rig_revoke_by(r, PDS__FAULT__FAULT_DRAINING);
	if (_i == 2) { /* after another lease, which it has revoked for another reason */
		r->lease = 2;
		rig_revoke(r);
		r->lease = 1;
		rig_revoke_by(r, PDS__FAULT__FAULT_DRAINING);
	}
	mover_remove(r->m, r->wd);
	failed(END_REVOKED, PDS__FAULT__FAULT_DRAINING, "given back lease 1");
}

TEST_LOOP(revoke_after_each_step, 0, STEPS)
{
	for (int i = 0; i <= _i; i++)
		way(i);
	size_t written = rig_written(r);
	rig_revoke(r);
	ck_assert_uint_eq(rig_count(r, MSG_LEASE_REVOKED), 1);
	if (_i >= 1 && _i < 7)
		failed(END_REVOKED, PDS__FAULT__FAULT_LEASE_LOST, "revoked lease 1");
	rig_opened(r, 0);
	rig_compute(r, 3, 10);
	turn(MOVER_IDLE);
	rig_ack(r);
	turn(MOVER_IDLE);
	ck_assert_uint_eq(rig_written(r), written);
}

TEST(json_names_the_transfers)
{
	struct buf b;
	opened();
	buf_init(&b, 0);
	mover_transfers_json(r->m, &b);
	ck_assert_ptr_nonnull(
		strstr(b.data, "\"state\":\"open\",\"from\":\"prefill-1\",\"to\":\"decode-1\",\"slot\":0"));
	mover_workers_json(r->m, &b);
	ck_assert_ptr_nonnull(strstr(
		b.data, "\"name\":\"decode-1\",\"layout\":\"3x1x4:f32:4\",\"epoch\":200,\"blocks\":24"));
	buf_fini(&b);
}

/* --- doorbell ------------------------------------------------------------ */

TEST(the_bell_rings_only_a_sleeper)
{
	int bell = eventfd(0, EFD_NONBLOCK);
	uint64_t n;
	ring_set_bell(r->ring, dup(bell));
	opened();
	mover_sleeping(r->m, 1);
	turn(MOVER_OPEN);
	rig_compute_layer(r, 0, 2, 3, 4);
	ring_bell(r->ring);
	ck_assert_int_eq(read(bell, &n, sizeof n), sizeof n);
	mover_sleeping(r->m, 0);
	turn(MOVER_OPEN);
	ck_assert(rig_arrived(r, 0, 1));
	ring_bell(r->ring);
	ck_assert_int_lt(read(bell, &n, sizeof n), 0);
	close(bell);
}

/* --- devices whose copies are done later, or fail ------------------------ */

static struct kern_piece late[64];
static struct kern_copy late_copy;
static uint64_t begun, waited;

static int copy_later(const struct kern_copy *c, uint64_t *ret_number, char *errbuf, size_t errlen)
{
	(void)errbuf, (void)errlen;
	ck_assert_uint_le(late_copy.n + c->n, sizeof late / sizeof *late);
	memcpy(late + late_copy.n, c->piece, c->n * sizeof *late);
	late_copy = (struct kern_copy){
		.to = c->to, .from = c->from, .piece = late, .n = late_copy.n + c->n};
	*ret_number = ++begun;
	return 0;
}

static int copy_now(struct kern_pool *pool, uint64_t number, char *errbuf, size_t errlen)
{
	uint64_t n;
	ck_assert_ptr_eq(pool, late_copy.to);
	ck_assert_uint_eq(number, begun); /* one wait for all of a turn */
	waited++;
	int rc = kern_host_copies.copy(&late_copy, &n, errbuf, errlen);
	late_copy.n = 0;
	return rc;
}

static int copy_fails(struct kern_pool *pool, uint64_t number, char *errbuf, size_t errlen)
{
	(void)pool, (void)number;
	snprintf(errbuf, errlen, "the device fell off");
	return KERN_EDEVICE;
}

static int copy_fails_at_once(const struct kern_copy *c, uint64_t *ret_number, char *errbuf,
                              size_t errlen)
{
	return copy_fails(c->to, *ret_number = 0, errbuf, errlen);
}

/* The pools' backend from now on; closing is the host's. */
static void backend_is(struct kern_copies *c,
                       int (*copy)(const struct kern_copy *, uint64_t *, char *, size_t),
                       int (*wait)(struct kern_pool *, uint64_t, char *, size_t))
{
	*c = kern_host_copies;
	c->name = "test";
	if (copy)
		c->copy = copy;
	if (wait)
		c->wait = wait;
	r->wp->region.pool->by = r->wd->region.pool->by = c;
}

/* Nothing is in flight when a turn ends: not when all is said to be there, and not when only
 * some of it is. */
TEST(copies_that_end_later_are_waited_for)
{
	static struct kern_copies c;
	backend_is(&c, copy_later, copy_now);
	opened();
	rig_compute(r, 1, 5);
	turn(MOVER_OPEN);
	ck_assert(rig_arrived(r, 0, 1));
	ck_assert_uint_eq(waited, 1);
	rig_compute(r, 3, 10);
	turn(MOVER_OPEN);
	ck_assert(rig_all_arrived(r, 3));
	ck_assert_uint_eq(waited, 2);
	ck_assert_uint_eq(rig_count(r, MSG_KV_READY), 1);
}

/* Also before a transfer ends because D has reused one of its blocks: what was begun before is
 * done. */
TEST(a_stale_block_does_not_leave_copies_in_flight)
{
	static struct kern_copies c;
	backend_is(&c, copy_later, copy_now);
	opened();
	r->d.region.generations[12]++;
	rig_compute(r, 3, 10);
	turn(MOVER_IDLE);
	failed(END_REVOKED, PDS__FAULT__FAULT_LEASE_LOST, "has reused block 12");
	ck_assert_uint_eq(late_copy.n, 0);
	ck_assert(rig_arrived(r, 0, 2));
}

TEST_LOOP(a_copy_that_fails_fails_its_transfer, 0, 2)
{
	static struct kern_copies c;
	backend_is(&c, _i ? copy_fails_at_once : NULL, copy_fails);
	opened();
	rig_compute(r, 3, 10);
	turn(MOVER_IDLE);
	failed(END_COPY_FAILED, PDS__FAULT__FAULT_INTERNAL, "KV of prefill-1 to decode-1: ");
	failed(END_COPY_FAILED, PDS__FAULT__FAULT_INTERNAL, "the device fell off");
	ck_assert_uint_eq(rig_count(r, MSG_KV_READY), 0);
	word_is(RING_PENDING);
}

TEST(nothing_copies_between_backends)
{
	static struct kern_copies c;
	backend_is(&c, NULL, NULL);
	r->wp->region.pool->by = &kern_host_copies;
	rig_publish(r, 1, 0, 10);
	turn(MOVER_IDLE);
	failed(END_MALFORMED, PDS__FAULT__FAULT_INTERNAL,
	       "KV of prefill-1 is in memory of cpu, of decode-1 in memory of test");
	ck_assert_uint_eq(rig_count(r, MSG_LEASE_OPEN), 0);
}
