/* test_messager_forged.c - transfers that do not fit the pools or the lease, published or changed
 * in shared memory by a broken or hostile prefill worker; answers and revocations by one who is not
 * the lease's decode worker: such a transfer fails, nobody else is touched, and not a byte is
 * written outside of the lease. */
/* run: parser */
#include "messager_steps.h"

#include <sys/mman.h>

/* Changes the fields of the published transfer in shared memory, as only a broken or hostile P
 * would. */
static void forge(size_t offset, const void *value, size_t n)
{
	size_t size = (size_t)lseek(ring_fd(r->ring), 0, SEEK_END);
	unsigned char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, ring_fd(r->ring), 0);
	const struct reqid id = {7, r->lease};
	unsigned char *at = memmem(p, size, &id, sizeof id);
	ck_assert_ptr_nonnull(at);
	memcpy(at + offset, value, n);
	munmap(p, size);
}

#define FIELD(f) offsetof(struct ring_transfer, f)
static const struct {
	const char *what;
	size_t offset;
	uint32_t value[4];
	size_t n;
} forged[] = {
	{"source block past the pool", FIELD(src) + 8, {RIG_BLOCKS}, 4},
	{"destination block past the pool", FIELD(dst), {UINT32_MAX}, 4},
	{"no blocks", FIELD(blocks), {0}, 4},
	{"too many blocks", FIELD(blocks), {UINT32_MAX}, 4},
	{"more blocks than its tokens", FIELD(blocks), {4}, 4},
	{"fewer blocks than its tokens", FIELD(blocks), {2}, 4},
	{"first token within a block", FIELD(first_token), {2}, 4},
	{"first token past the end", FIELD(first_token), {11}, 4},
	{"tokens without end", FIELD(tokens), {UINT32_MAX}, 4},
	{"decode worker is the prefill worker", FIELD(decode), {0}, 0},
	{"no request id", FIELD(req), {0}, 16},
	{"no attempt", FIELD(attempt), {0}, 4},
};

TEST_LOOP(a_malformed_transfer_fails_and_harms_nobody, 0, sizeof forged / sizeof *forged)
{
	rig_publish(r, 1, 0, 10);
	if (strcmp(forged[_i].what, "decode worker is the prefill worker") == 0)
		forge(FIELD(decode), "prefill-1", 10);
	else
		forge(forged[_i].offset, forged[_i].value, forged[_i].n);
	turn(MOVER_IDLE);
	rig_opened(r, 0);
	turn(MOVER_IDLE);
	ck_assert_uint_eq(rig_written(r), 0);
	ck_assert_uint_eq(r->n_ended, 1);
	ck_assert_int_eq(r->last_end, END_MALFORMED);
	if (rig_count(r, MSG_TRANSFER_FAILED))
		failed(END_MALFORMED, PDS__FAULT__FAULT_INTERNAL, "ring slot 0 of prefill-1");
	/* the slot serves the next transfer as if nothing had been */
	ring_cancel(r->ring, r->slot, r->gen);
	ring_retire(r->ring, r->slot, r->gen);
	rig_publish(r, 2, 0, 10);
	turn(MOVER_OPEN);
	rig_opened(r, 0);
	rig_compute(r, 3, 10);
	turn(MOVER_OPEN);
	ck_assert(rig_all_arrived(r, 3));
}

TEST(a_name_without_end)
{
	char name[RING_NAME_MAX];
	memset(name, 'x', sizeof name);
	rig_publish(r, 1, 0, 10);
	forge(FIELD(decode), name, sizeof name);
	turn(MOVER_IDLE);
	failed(END_MALFORMED, PDS__FAULT__FAULT_INTERNAL, "out of range");
}

TEST(fields_that_change_later_change_nothing)
{
	opened();
	rig_compute(r, 3, 10);
	forge(FIELD(dst), &(uint32_t){UINT32_MAX}, 4);
	forge(FIELD(blocks), &(uint32_t){UINT32_MAX}, 4);
	turn(MOVER_OPEN);
	ck_assert(rig_all_arrived(r, 3));
}

TEST(a_slot_marked_by_somebody_else)
{
	opened();
	ring_mark_sent(r->ring, r->slot, r->gen);
	turn(MOVER_IDLE);
	failed(END_MALFORMED, PDS__FAULT__FAULT_INTERNAL, "marked sent by somebody else");
}

TEST(two_transfers_of_one_lease)
{
	opened();
	uint32_t first = r->slot;
	uint64_t first_gen = r->gen;
	rig_publish(r, 1, 0, 10);
	turn(MOVER_OPEN);
	ck_assert_uint_eq(mover_open_transfers(r->m), 1);
	ck_assert_ptr_nonnull(
		strstr(rig_last(r, MSG_TRANSFER_FAILED)->text, "lease 1 has a transfer already"));
	/* but when the first was cancelled meanwhile the second is asked for */
	ring_cancel(r->ring, r->slot, r->gen);
	ring_retire(r->ring, r->slot, r->gen);
	turn(MOVER_OPEN);
	rig_publish(r, 1, 0, 10);
	ring_cancel(r->ring, first, first_gen);
	turn(MOVER_OPEN);
	ck_assert_uint_eq(mover_open_transfers(r->m), 1);
	ck_assert_uint_eq(rig_count(r, MSG_LEASE_OPEN), 2);
}

TEST(layouts_must_be_equal)
{
	struct kv_layout other;
	struct pool_memory region;
	struct kv_region mapped;
	struct err e = {0};
	kv_layout_uniform(&other, RIG_LAYERS, 1, 8, RIG_BLOCK_TOKENS, KV_F32);
	mover_remove(r->m, r->wd);
	ck_assert_int_eq(pool_memory_new(&region, &other, RIG_BLOCKS, &e), 0);
	struct kv_data part = one_part(dup(region.region.data.fd[0]));
	ck_assert_int_eq(kv_region_map(&mapped, &other, RIG_BLOCKS, "cpu",
	                               dup(region.region.control_fd), &part, &e),
	                 0);
	mover_add(r->m, "decode-1", D_EPOCH, &other, &mapped, NULL);
	rig_publish(r, 1, 0, 10);
	turn(MOVER_IDLE);
	failed(END_MALFORMED, PDS__FAULT__FAULT_INTERNAL,
	       "prefill-1 has 3x1x4:f32:4, decode-1 has 3x1x8:f32:4");
	pool_memory_fini(&region);
}

/* --- the lease's blocks -------------------------------------------------- */

/* What P's ring names; D has leased blocks 10, 11, 12 for tokens 0 to 10. */
static const struct {
	const char *what;
	uint32_t first_token, tokens, n, dst[5];
	const char *text;
} foreign[] = {
	{"another's block first",
     0,
     10,
     3,
     {0, 11, 12},
     "block 0 of decode-1 for the tokens from 0 on, but its lease 1 has block 10 there"},
	{"another's block last",
     0,
     10,
     3,
     {10, 11, 23},
     "block 23 of decode-1 for the tokens from 8 on, but its lease 1 has block 12 there"},
	{"its own in another order",
     0,
     10,
     3,
     {11, 10, 12},
     "block 11 of decode-1 for the tokens from 0 on, but its lease 1 has block 10 there"},
	{"one of its own twice",
     0,
     10,
     3,
     {10, 10, 12},
     "block 10 of decode-1 for the tokens from 4 on, but its lease 1 has block 11 there"},
	{"fewer tokens",
     0,
     8,
     2,
     {10, 11},
     "tokens 0 to 8 in 2 blocks, but lease 1 of decode-1 is of tokens 0 to 10 in 3 blocks"},
	{"fewer tokens in as many blocks",
     0,
     9,
     3,
     {10, 11, 12},
     "tokens 0 to 9 in 3 blocks, but lease 1 of decode-1 is of tokens 0 to 10 in 3 blocks"},
	{"more tokens",
     0,
     17,
     5,
     {10, 11, 12, 13, 14},
     "tokens 0 to 17 in 5 blocks, but lease 1 of decode-1 is of tokens 0 to 10 in 3 blocks"},
	{"tokens further on",
     4,
     14,
     3,
     {10, 11, 12},
     "tokens 4 to 14 in 3 blocks, but lease 1 of decode-1 is of tokens 0 to 10 in 3 blocks"},
};

static void publish_foreign(int i)
{
	static struct ring_transfer t;
	rig_transfer(r, &t, 1, 0, 10);
	rig_grant(r, &t);
	t.first_token = foreign[i].first_token;
	t.tokens = foreign[i].tokens;
	t.blocks = foreign[i].n;
	for (uint32_t b = 0; b < t.blocks; b++) {
		t.src[b] = 2 + b;
		t.dst[b] = foreign[i].dst[b];
	}
	r->lease = 1;
	ck_assert_int_eq(ring_publish(r->ring, &t, &r->slot, &r->gen), 0);
}

TEST_LOOP(blocks_that_are_not_the_leases, 0, sizeof foreign / sizeof *foreign)
{
	publish_foreign(_i);
	rig_compute(r, 5, 17);
	turn(MOVER_OPEN);
	rig_opened(r, 0);
	turn(MOVER_IDLE);
	failed(END_MALFORMED, PDS__FAULT__FAULT_INTERNAL, foreign[_i].text);
	const char *said = rig_last(r, MSG_TRANSFER_FAILED)->text;
	ck_assert_ptr_eq(strstr(said, "ring slot 0 of prefill-1 names "), said);
	rig_opened(r, 0); /* repeated */
	turn(MOVER_IDLE);
	ck_assert_uint_eq(rig_written(r), 0);
	ck_assert_uint_eq(rig_count(r, MSG_KV_READY), 0);
	word_is(RING_PENDING);
}

/* The first messager was shown the truth; the second reads what P has made of it since. */
TEST(a_restarted_messager_asks_for_the_blocks_again)
{
	mover_set_limits(r->m, &(struct mover_limits){RIG_STALL_US, 1});
	opened();
	rig_compute(r, 3, 10);
	turn(MOVER_BUSY);
	forge(FIELD(dst), &(uint32_t){20}, 4);
	rig_restart(r);
	memset(r->d.data, 0, r->d.region.data_bytes);
	turn(MOVER_OPEN);
	rig_opened(r, 0);
	turn(MOVER_IDLE);
	failed(END_MALFORMED, PDS__FAULT__FAULT_INTERNAL,
	       "block 20 of decode-1 for the tokens from 0 on, but its lease 1 has block 10 there");
	ck_assert_uint_eq(rig_written(r), 0);
}

/* D's own answer may be wrong as well. */
TEST_LOOP(an_answer_that_does_not_hold, 0, 4)
{
	struct answer a;
	asked();
	rig_compute(r, 3, 10);
	rig_answer(r, &a, 1, 5, D_EPOCH);
	if (_i == 0)
		a.b.n_blocks = a.b.n_generations = 0;
	else if (_i == 1)
		a.b.n_generations = 2;
	else if (_i == 2)
		a.b.n_blocks = 2;
	else
		a.blocks[1] = UINT32_MAX;
	mover_lease_opened(r->m, "decode-1", D_EPOCH, &a.b);
	turn(MOVER_IDLE);
	ck_assert_int_eq(r->last_end, END_MALFORMED);
	ck_assert_uint_eq(rig_written(r), 0);
}

/* D has handed a block out again without a revocation: nothing more is written into it, and the
 * transfer ends. */
TEST_LOOP(a_block_that_decode_has_reused, 0, 6)
{
	const uint32_t at = 10 + (uint32_t)_i % 3;
	const size_t piece = r->layout.piece_bytes[0];
	int begun = _i >= 3;
	if (begun)
		mover_set_limits(r->m, &(struct mover_limits){RIG_STALL_US, piece});
	opened();
	rig_compute(r, 3, 10);
	if (begun)
		turn(MOVER_BUSY); /* the first piece, of block 10 */
	r->d.region.generations[at]++;
	mover_set_limits(r->m, &(struct mover_limits){RIG_STALL_US, 1 << 20});
	turn(MOVER_IDLE);
	char text[80];
	snprintf(text, sizeof text,
	         "decode-1 has reused block %u of lease 1: its generation is 1, the lease's 0", at);
	failed(END_REVOKED, PDS__FAULT__FAULT_LEASE_LOST, text);
	ck_assert_uint_eq(rig_count(r, MSG_KV_READY), 0);
	for (uint32_t l = 0; l < RIG_LAYERS; l++) /* what was there before may stay */
		ck_assert_int_eq(rig_piece(r, &r->d, l, at)[0],
		                 begun && l == 0 && at == 10 ? rig_value(1, 0, 2) : 0);
}

/* --- who says it --------------------------------------------------------- */

static struct pool_memory second;
static struct ring *second_ring;

/* prefill-2, whose pool is full of 0xBB and whose ring names, as computed, lease 1 of prefill-1,
 * and rightly in all. */
static void attach_second(struct ring_transfer *t, enum ring_state state)
{
	struct kv_region p;
	struct ring *ring;
	struct err e = {0};
	uint32_t slot;
	uint64_t gen;
	ck_assert_int_eq(pool_memory_new(&second, &r->layout, RIG_BLOCKS, &e), 0);
	memset(second.data, 0xBB, second.region.data_bytes);
	ck_assert_int_eq(ring_create(RIG_SLOTS, RIG_LAYERS, P_EPOCH, &second_ring, &e), 0);
	ck_assert_int_eq(ring_publish(second_ring, t, &slot, &gen), 0);
	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		*ring_progress_word(second_ring, slot, l) = ring_progress_value(gen, t->tokens);
	if (state == RING_SENT)
		ck_assert_int_eq(ring_mark_sent(second_ring, slot, gen), 0);
	int control = dup(second.region.control_fd), shared = dup(ring_fd(second_ring));
	struct kv_data part = one_part(dup(second.region.data.fd[0]));
	ck_assert_int_eq(kv_region_map(&p, &r->layout, RIG_BLOCKS, "cpu", control, &part, &e), 0);
	ck_assert_int_eq(ring_map(shared, RIG_SLOTS, RIG_LAYERS, P_EPOCH, &ring, &e), 0);
	mover_add(r->m, "prefill-2", P_EPOCH, &r->layout, &p, ring);
}

static void second_fini(void)
{
	ring_destroy(&second_ring);
	pool_memory_fini(&second);
}

static void answer_to(const char *prefill, int refused)
{
	struct answer a;
	rig_answer(r, &a, 1, 5, D_EPOCH);
	a.b.prefill = (char *)prefill;
	a.b.refused = refused;
	mover_lease_opened(r->m, "decode-1", D_EPOCH, &a.b);
}

/* Another prefill worker's ring names the lease too, before or after its own: each is asked for by
 * itself, D refuses the other's, and the lease's own transfer does not notice. */
TEST_LOOP(a_lease_of_another_prefill_worker, 0, 2)
{
	static struct ring_transfer t;
	rig_transfer(r, &t, 1, 0, 10);
	if (_i)
		asked();
	attach_second(&t, RING_PENDING);
	turn(MOVER_OPEN);
	if (!_i)
		rig_post(r, &t);
	rig_compute(r, 3, 10);
	turn(MOVER_OPEN);
	ck_assert_uint_eq(mover_open_transfers(r->m), 2);
	ck_assert_uint_eq(rig_count(r, MSG_LEASE_OPEN), 2);
	ck_assert_str_eq(r->said[_i].prefill, "prefill-2");
	ck_assert_str_eq(r->said[!_i].prefill, "prefill-1");
	answer_to("prefill-3", 0);
	answer_to("", 0);
	turn(MOVER_OPEN);
	ck_assert_uint_eq(rig_written(r), 0);
	answer_to("prefill-2", 1);
	ck_assert_str_eq(rig_last(r, MSG_TRANSFER_FAILED)->to, "prefill-2");
	ck_assert_int_eq(r->last_end, END_REFUSED);
	answer_to("prefill-1", 0);
	turn(MOVER_OPEN);
	ck_assert(rig_all_arrived(r, 3));
	ck_assert_uint_eq(rig_count(r, MSG_TRANSFER_FAILED), 1);
	rig_ack(r);
	turn(MOVER_IDLE);
	ck_assert_int_eq(r->last_end, END_SENT);
	second_fini();
}

/* ... or says that all of it is there: KV_READY says whose ring says so, and its acknowledgement
 * ends that one's transfer, not the lease's own. */
TEST(another_prefill_worker_says_that_it_is_sent)
{
	static struct ring_transfer t;
	Pds__Lease l = PDS__LEASE__INIT;
	Pds__KvReadyAck ack = PDS__KV_READY_ACK__INIT;
	rig_transfer(r, &t, 1, 0, 10);
	posted();
	attach_second(&t, RING_SENT);
	turn(MOVER_OPEN);
	ck_assert_uint_eq(rig_count(r, MSG_KV_READY), 2);
	ck_assert_str_eq(rig_last(r, MSG_KV_READY)->prefill, "prefill-2");
	l.id = 1;
	l.epoch = D_EPOCH;
	l.generation = 5;
	ack.lease = &l;
	ack.prefill = "prefill-2";
	ack.prefill_epoch = P_EPOCH;
	mover_kv_ready_ack(r->m, "decode-1", D_EPOCH, &ack);
	turn(MOVER_OPEN);
	ck_assert_uint_eq(rig_count(r, MSG_KV_SENT), 1);
	ck_assert_str_eq(rig_last(r, MSG_KV_SENT)->to, "prefill-2");
	rig_ack(r);
	turn(MOVER_IDLE);
	ck_assert_str_eq(rig_last(r, MSG_KV_SENT)->to, "prefill-1");
	second_fini();
}

/* D's answer to an earlier or a later life of this prefill worker, and one of another life of D:
 * not this transfer's. */
TEST_LOOP(words_about_another_life, 0, 3)
{
	struct answer a;
	asked();
	rig_compute(r, 3, 10);
	rig_answer(r, &a, 1, 5, D_EPOCH);
	a.b.prefill_epoch = P_EPOCH + (_i == 0) - (_i == 1);
	mover_lease_opened(r->m, "decode-1", D_EPOCH + (_i == 2), &a.b);
	turn(MOVER_OPEN);
	ck_assert_uint_eq(rig_written(r), 0);
	rig_opened(r, 0);
	turn(MOVER_OPEN);
	ck_assert(rig_all_arrived(r, 3));
}

/* A decode worker of the same epoch revokes and opens another's leases: nothing comes of it, and
 * the revocation by the right one is answered to that one. */
TEST(words_of_another_decode_worker)
{
	Pds__Lease l = PDS__LEASE__INIT;
	Pds__LeaseRevoke revoke = PDS__LEASE_REVOKE__INIT;
	const struct msg_head head = {{7, 1}, 1, 0};
	struct answer a;
	asked();
	rig_compute(r, 3, 10);
	rig_answer(r, &a, 1, 5, D_EPOCH);
	mover_lease_opened(r->m, "decode-2", D_EPOCH, &a.b);
	l.id = 1;
	l.epoch = D_EPOCH;
	l.generation = 5;
	revoke.lease = &l;
	mover_lease_revoke(r->m, "decode-2", D_EPOCH, &head, &revoke);
	turn(MOVER_OPEN);
	ck_assert_uint_eq(rig_written(r), 0);
	ck_assert_uint_eq(mover_open_transfers(r->m), 1);
	rig_opened(r, 0);
	turn(MOVER_OPEN);
	ck_assert(rig_all_arrived(r, 3));
	rig_revoke(r);
	ck_assert_str_eq(rig_last(r, MSG_LEASE_REVOKED)->to, "decode-1");
	failed(END_REVOKED, PDS__FAULT__FAULT_LEASE_LOST, "decode-1 has revoked lease 1");
}
