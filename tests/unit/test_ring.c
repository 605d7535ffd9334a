/* test_ring.c - the transfer ring and progress board between a prefill worker (P) and the messager
 * (M).
 *
 * Tests named bm... and s_slot_not_closed are the counterexamples of the protocol's model
 * (tests/model, board), as far as they show at this level: what P's and M's calls must do when the
 * other side acts at the worst moment. That moment is reached by protecting the memory that a call
 * is about to touch: the fault's handler plays the other side, lifts the protection, and the
 * call goes on. Not expressible here: bm2 (a progress word before its kernel: the device's
 * order) and s-drain-not-blocks (blocks are not the ring's). */
/* run: threads */
#include "ring_pair.h"

#include <signal.h>
#include <sys/mman.h>

/* --- life of a slot ------------------------------------------------------ */

TEST_CASE("ring", .timeout_s = 120, .teardown = close_both);

TEST(life_of_a_transfer)
{
	uint64_t g;
	open_both(4);
	for (uint32_t s = 0; s < 4; s++)
		ck_assert_int_eq(ring_peek(M, s, &g), RING_FREE);
	ck_assert_int_eq(ring_read(M, 0, &got, &g, &state), ERR_STALE);
	publish(41);
	ck_assert_int_eq(ring_peek(M, slot, &g), RING_PENDING);
	ck_assert_uint_eq(g, gen);
	ck_assert_int_eq(ring_read(M, slot, &got, &g, &state), 0);
	ck_assert_int_eq(state, RING_PENDING);
	ck_assert_uint_eq(g, gen);
	ck_assert(is_transfer(&got, 41));
	for (uint32_t i = 0; i < LAYERS; i++)
		ck_assert_uint_eq(ring_progress(M, slot, i, gen), 0);
	device_store(1, gen, 128);
	ck_assert_uint_eq(ring_progress(M, slot, 0, gen), 0);
	ck_assert_uint_eq(ring_progress(M, slot, 1, gen), 128);
	ck_assert_uint_eq(ring_progress(M, slot, 1, gen + 1), 0);
	ck_assert_int_eq(ring_mark_sent(M, slot, gen), 0);
	ck_assert_int_eq(ring_mark_sent(M, slot, gen), ERR_STALE);
	ck_assert_int_eq(ring_read(M, slot, &got, &g, &state), 0);
	ck_assert_int_eq(state, RING_SENT);
	ck_assert_uint_eq(ring_used(P), 1);
	ring_retire(P, slot, gen + 1); /* another's: ignored */
	ck_assert_uint_eq(ring_used(P), 1);
	ring_retire(P, slot, gen);
	ring_retire(P, slot, gen); /* repeated: ignored */
	ck_assert_uint_eq(ring_used(P), 0);
	ck_assert_int_eq(ring_peek(M, slot, &g), RING_FREE);
	ck_assert_uint_eq(g, gen + 1);
}

/* steps begun since it was last said to be in hand -> does it count? */
static const struct {
	uint32_t steps;
	int in;
} in_hand[] = {{0, 1}, {1, 1}, {2, 0}, {3, 0}, {1000, 0}};

TEST_LOOP(transfers_in_hand, 0, sizeof in_hand / sizeof *in_hand)
{
	open_both(4);
	for (unsigned i = 0; i < 7; i++)
		ring_step(P);
	publish(1);
	ck_assert(ring_in_schedule(M, slot, gen)); /* as it was just published */
	ck_assert(!ring_in_schedule(M, slot, gen + 1));
	ck_assert(!ring_in_schedule(M, slot + 1, gen));
	for (int again = 0; again < 2; again++) {
		for (uint32_t i = 0; i < in_hand[_i].steps; i++)
			ring_step(P);
		ck_assert_int_eq(ring_in_schedule(M, slot, gen), in_hand[_i].in);
		ring_schedule(P, slot, gen);
		ck_assert(ring_in_schedule(M, slot, gen));
	}
	for (uint32_t i = 0; i < LAYERS; i++)
		ck_assert_uint_eq(ring_progress(M, slot, i, gen), 0); /* that word is no layer's */
	ring_retire(P, slot, gen);
	for (int i = 0; i < 3; i++)
		ring_step(P);
	publish(2);
	ck_assert(ring_in_schedule(M, slot, gen));
	ring_schedule(P, slot, gen - 1); /* late, of the transfer before */
	ck_assert(!ring_in_schedule(M, slot, gen));
}

TEST(full_ring)
{
	uint32_t s;
	uint64_t g, gens[3];
	open_both(3);
	for (int round = 0; round < 3; round++) {
		uint32_t seen = 0;
		for (uint64_t i = 0; i < 3; i++) {
			publish(i + 1);
			seen |= 1u << slot;
			gens[slot] = gen;
		}
		ck_assert_uint_eq(seen, 7);
		ck_assert_int_eq(ring_publish(P, transfer_of(&transfer, 9), &s, &g), ERR_FULL);
		for (s = 0; s < 3; s++) {
			ck_assert_int_eq(ring_cancel(P, s, gens[s]), 0);
			ring_retire(P, s, gens[s]);
		}
	}
}

TEST(largest_transfer)
{
	open_both(1);
	transfer_of(&transfer, 1);
	transfer.blocks = RING_BLOCKS_MAX;
	transfer.tokens = 64 + RING_BLOCKS_MAX * 64;
	for (uint32_t i = 0; i < RING_BLOCKS_MAX; i++)
		transfer.src[i] = ~(transfer.dst[i] = i);
	ck_assert_int_eq(ring_publish(P, &transfer, &slot, &gen), 0);
	ck_assert_int_eq(ring_read(M, slot, &got, &gen, &state), 0);
	ck_assert_mem_eq(&got, &transfer, sizeof transfer);
}

/* M dies and a new one maps the ring: all that it needs is there. */
TEST(restarted_messager_finds_everything)
{
	uint64_t g;
	open_both(4);
	publish(5);
	uint32_t sent = slot;
	ck_assert_int_eq(ring_mark_sent(M, slot, gen), 0);
	publish(6);
	device_store(2, gen, 64);
	ring_destroy(&M);
	ck_assert_int_eq(ring_map(dup(ring_fd(P)), 4, LAYERS, EPOCH, &M, &e), 0);
	ck_assert_int_eq(ring_read(M, sent, &got, &g, &state), 0);
	ck_assert_int_eq(state, RING_SENT);
	ck_assert(is_transfer(&got, 5));
	ck_assert_int_eq(ring_read(M, slot, &got, &g, &state), 0);
	ck_assert_int_eq(state, RING_PENDING);
	ck_assert(is_transfer(&got, 6));
	ck_assert_uint_eq(ring_progress(M, slot, 2, g), 64);
}

/* --- counterexamples of the model ---------------------------------------- */

TEST(bm1_no_gen_in_word)
{
	open_both(1);
	publish(1);
	uint64_t old = gen;
	for (uint32_t i = 0; i < LAYERS; i++)
		device_store(i, old, 64);
	ck_assert_int_eq(ring_cancel(P, slot, gen), 0);
	ring_retire(P, slot, gen);
	publish(2);
	for (uint32_t i = 0; i < LAYERS; i++) {
		/* also of a transfer 2^32 generations ago nothing is left */
		ck_assert_uint_eq(*ring_progress_word(P, slot, i), 0);
		device_store(i, old, 64);
		ck_assert_uint_eq(ring_progress(M, slot, i, gen), 0);
	}
}

TEST(bm3_plain_mark)
{
	uint64_t g;
	open_both(1);
	publish(1);
	ck_assert_int_eq(ring_cancel(P, slot, gen), 0); /* while M copied */
	ck_assert_int_eq(ring_mark_sent(M, slot, gen), ERR_STALE);
	ck_assert_int_eq(ring_peek(M, slot, &g), RING_VOID);
	ck_assert_int_eq(ring_read(M, slot, &got, &g, &state), ERR_STALE);
	ck_assert_int_eq(ring_cancel(P, slot, gen), ERR_STALE);
}

TEST(bm8_mark_without_generation)
{
	uint64_t g;
	open_both(1);
	publish(1);
	uint64_t old = gen;
	ck_assert_int_eq(ring_cancel(P, slot, gen), 0);
	ring_retire(P, slot, gen);
	publish(2);
	ck_assert_int_eq(ring_mark_sent(M, slot, old), ERR_STALE);
	ck_assert_int_eq(ring_peek(M, slot, &g), RING_PENDING);
	ck_assert_uint_eq(g, gen);
	/* nor does a late cancel hit the next transfer */
	ck_assert_int_eq(ring_cancel(P, slot, old), ERR_STALE);
	ck_assert_int_eq(ring_peek(M, slot, &g), RING_PENDING);
	ring_retire(P, slot, old); /* nor a late end */
	ck_assert_uint_eq(ring_used(P), 1);
}

/* KvReady is posted by whom ring_mark_sent tells so: then the cancel has lost, and P must not
 * reuse. */
TEST(bm10_ready_before_mark_defeats_the_cancel)
{
	uint64_t g;
	open_both(1);
	publish(1);
	ck_assert_int_eq(ring_mark_sent(M, slot, gen), 0);
	ck_assert_int_eq(ring_cancel(P, slot, gen), ERR_STALE);
	ck_assert_int_eq(ring_peek(M, slot, &g), RING_SENT);
	ck_assert_uint_eq(ring_used(P), 1);
}

TEST(bm6_gen_wraps)
{
	open_both(1);
	transfer_of(&transfer, 0);
	ck_assert_int_eq(ring_publish(P, &transfer, &slot, &gen), 0);
	const uint64_t first = gen;
	for (uint64_t last = gen; last < first + 70000; last = gen) {
		ring_retire(P, slot, gen);
		ck_assert_int_eq(ring_publish(P, &transfer, &slot, &gen), 0);
		ck_assert_uint_gt(gen, last);
	}
	ck_assert_int_eq(ring_mark_sent(M, slot, first), ERR_STALE);
	ck_assert_int_eq(ring_mark_sent(M, slot, first + 256), ERR_STALE);
	ck_assert_int_eq(ring_mark_sent(M, slot, first + 65536), ERR_STALE);
	ck_assert_int_eq(ring_mark_sent(M, slot, gen), 0);
}

/* Without a drain a store of transfer 1 may come when transfer 2 has the slot: it is not taken for
 * 2's progress. That it cannot undo 2's is the drain's duty, before ring_retire. */
TEST(bm7_no_drain_late_store_is_nobodys_progress)
{
	open_both(1);
	publish(1);
	uint64_t old = gen;
	ring_cancel(P, slot, gen);
	ring_retire(P, slot, gen);
	device_store(0, old, 64);
	publish(2);
	device_store(0, gen, 32);
	ck_assert_uint_eq(ring_progress(M, slot, 0, gen), 32);
	device_store(0, old, 64);
	ck_assert_uint_eq(ring_progress(M, slot, 0, gen), 0);
}

/* --- the other side acts in the middle of a call ------------------------- */

static struct {
	unsigned char *page;
	size_t bytes;
	void (*act)(void);
	volatile int faults;
} trap;

static void on_fault(int sig, siginfo_t *info, void *ctx)
{
	(void)ctx;
	unsigned char *at = info->si_addr;
	if (trap.faults || at < trap.page || at >= trap.page + trap.bytes) {
		signal(sig, SIG_DFL);
		return;
	}
	trap.faults = 1;
	mprotect(trap.page, trap.bytes, PROT_READ | PROT_WRITE);
	trap.act();
}

/* The next touch (or, with PROT_READ, the next store) of the block numbers of r's only slot
 * calls act first. The ring holds transfer 0x5EED. */
static void set_trap(struct ring *r, int prot, void (*act)(void))
{
	uint32_t *w = (uint32_t *)ring_progress_word(r, 0, 0);
	while (*--w != 0x5EED + 600 - 1) /* the last of src or dst, downwards from the board */
		;
	trap.page = (unsigned char *)((uintptr_t)w & ~(uintptr_t)4095);
	trap.bytes = 4096;
	trap.act = act;
	trap.faults = 0;
	struct sigaction sa = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
	sigaction(SIGSEGV, &sa, NULL);
	ck_assert_int_eq(mprotect(trap.page, trap.bytes, prot), 0);
}

/* The next store into the word of r's only slot calls act first. */
static void set_word_trap(struct ring *r, void (*act)(void))
{
	/* ring.c: header, words, fields, board */
	size_t fields = (offsetof(struct ring_transfer, src) + 8u * RING_BLOCKS_MAX + 63) / 64 * 64;
	set_trap(r, PROT_READ | PROT_WRITE, act);
	trap.page = (unsigned char *)ring_progress_word(r, 0, 0) - (fields + 4095) / 4096 * 4096 - 4096;
	ck_assert_int_eq(mprotect(trap.page, trap.bytes, PROT_READ), 0);
}

static struct ring_transfer *long_transfer(uint64_t id)
{
	transfer_of(&transfer, id);
	transfer.blocks = 600;
	transfer.tokens = 64 + 600 * 64;
	for (uint32_t i = 0; i < 600; i++)
		transfer.src[i] = transfer.dst[i] = (uint32_t)id + i;
	return &transfer;
}

static void publish_long(uint64_t id)
{
	ck_assert_int_eq(ring_publish(P, long_transfer(id), &slot, &gen), 0);
}

static int read_result;
static uint64_t read_gen;
static enum ring_state read_state;

static void m_reads(void)
{
	read_result = ring_read(M, 0, &got, &read_gen, &read_state);
	read_state = ring_peek(M, 0, &read_gen);
}

static void check_closed_while_published(void)
{
	set_trap(P, PROT_READ, m_reads);
	publish_long(0x6000);
	ck_assert_int_eq(trap.faults, 1);
	ck_assert_int_eq(read_result, ERR_STALE);
	ck_assert_int_eq(read_state, RING_CLOSED);
	ck_assert_uint_eq(read_gen, gen);
	ck_assert_int_eq(ring_read(M, 0, &got, &read_gen, &read_state), 0);
	ck_assert_uint_eq(got.req.hi, 0x6000);
}

TEST(bm4_word_before_fields)
{
	open_both(1);
	publish_long(0x5EED);
	ring_cancel(P, slot, gen);
	ring_retire(P, slot, gen);
	check_closed_while_published();
}

/* Transfer 1 was marked already when P cancelled it. While P writes the next transfer's fields, M
 * must not find (old generation, SENT) with them. */
TEST(s_slot_not_closed)
{
	open_both(1);
	publish_long(0x5EED);
	ck_assert_int_eq(ring_mark_sent(M, slot, gen), 0);
	ck_assert_int_eq(ring_cancel(P, slot, gen), ERR_STALE);
	ring_retire(P, slot, gen);
	check_closed_while_published();
}

static void p_reuses(void) /* in the handler: nothing of libcheck */
{
	ring_cancel(P, slot, gen);
	ring_retire(P, slot, gen);
	ring_publish(P, long_transfer(0x6000), &slot, &gen);
}

static void p_cancels(void)
{
	ring_cancel(P, slot, gen);
}

TEST(slot_reused_while_it_is_read)
{
	open_both(1);
	publish_long(0x5EED);
	read_gen = 0;
	set_trap(M, PROT_NONE, p_reuses);
	ck_assert_int_eq(ring_read(M, 0, &got, &read_gen, &read_state), ERR_STALE);
	ck_assert_int_eq(trap.faults, 1);
	ck_assert_uint_eq(read_gen, 0);
	ck_assert_int_eq(ring_read(M, 0, &got, &read_gen, &read_state), 0);
	ck_assert_uint_eq(got.req.hi, 0x6000);
}

/* P cancels and reuses the slot at the very instruction with which M marks it. */
TEST(bm9_check_then_store_at_the_store)
{
	open_both(1);
	publish_long(0x5EED);
	uint64_t old = gen;
	set_word_trap(M, p_reuses);
	ck_assert_int_eq(ring_mark_sent(M, 0, old), ERR_STALE);
	ck_assert_int_eq(trap.faults, 1);
	ck_assert_int_eq(ring_peek(M, 0, &read_gen), RING_PENDING);
	ck_assert_uint_eq(read_gen, gen);
	ck_assert_uint_ne(gen, old);
}

TEST(transfer_cancelled_while_it_is_read)
{
	open_both(1);
	publish_long(0x5EED);
	set_trap(M, PROT_NONE, p_cancels);
	ck_assert_int_eq(ring_read(M, 0, &got, &read_gen, &read_state), ERR_STALE);
	ck_assert_int_eq(trap.faults, 1);
}
