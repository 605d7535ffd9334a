/* test_model_preempt.c - pddecoded under the event sequences of the preemption model
 * (tests/model/preempt.pml): each test has the name of the line that breaks without its rule, and
 * plays that line's counterexample against the real worker; storage is this process, which does
 * what the seeded bug would let harm. The rules on storage's own side are in
 * test_storage_serve.c. */
/* run: minutes */
#include "preempt_world.h"

#include <pthread.h>
#include <stdatomic.h>

#define ITEMS 32u
#define WAIT_OPTION "preempt_wait_ms=2000" /* long enough for put_take on a busy machine */

/* What the blocks of a put held when it came. */
static struct {
	const Pds__StorePut *m;
	size_t n;
	unsigned char *was[ITEMS], *half[ITEMS];
} put;

static void put_take(void)
{
	put.m = (const Pds__StorePut *)await(STORAGE, MSG_STORE_PUT, 0);
	put.n = put.m->n_items;
	ck_assert_uint_le(put.n, ITEMS);
	for (size_t i = 0; i < put.n; i++) {
		put.was[i] = mem_alloc(W.layout.block_bytes);
		put.half[i] = mem_alloc(W.layout.block_bytes);
		pieces_move(put.m->items[i]->block, put.was[i], 0, W.layout.layers, 0);
		memcpy(put.half[i], put.was[i], W.layout.piece_bytes[0]);
		ck_assert_uint_eq(generation_of(put.m->items[i]->block), put.m->items[i]->generation);
	}
}

static void put_free(void)
{
	for (size_t i = 0; i < put.n; i++) {
		free(put.was[i]);
		free(put.half[i]);
	}
}

/* The rest of what was begun: storage copies on, in blocks that may be others' by now. Returns
 * how many copies are a mixture; none of those may pass the check. */
static uint32_t copy_the_rest(void)
{
	uint32_t mixed = 0;
	for (size_t i = 0; i < put.n; i++) {
		const Pds__StoreItem *it = put.m->items[i];
		pieces_move(it->block, put.half[i], 1, W.layout.layers, 0);
		__asm__ volatile("" ::: "memory"); /* the copy is made before the generation is read */
		int holds = generation_of(it->block) == it->generation,
			right = memcmp(put.half[i], put.was[i], W.layout.block_bytes) == 0;
		ck_assert_msg(right || !holds, "block %u has other contents under the same generation",
		              it->block);
		mixed += !right;
	}
	return mixed;
}

/* The wait ends between the two pieces, the block is refilled. */
static void wait_ends_in_the_copy(void)
{
	preempt_begin(WAIT_OPTION);
	learn_pair();
	S.put = BY_HAND;
	submit_pair();
	put_take();
	UNTIL(ended(pair));
	ck_assert_uint_ge(copy_the_rest(), 3);
	answer_put(put.m); /* which checks, after the copy: void */
	S.put = AT_ONCE;
	same_pair();
	put_free();
	preempt_end();
}

TEST(pm1_no_check)
{
	wait_ends_in_the_copy();
}

/* The check before the copy holds (put_take), the one behind it does not. */
TEST(pm2_check_before_copy)
{
	wait_ends_in_the_copy();
}

/* Stored, acknowledged, reused; the same put is carried out once more, on what is there now. */
TEST(pm4_same_gen_after_ack)
{
	preempt_begin();
	learn_pair();
	S.put = BY_HAND;
	submit_pair();
	put_take();
	answer_put(put.m);
	S.put = AT_ONCE;
	UNTIL(ended(pair));
	ck_assert_uint_ge(copy_the_rest(), 3);
	uint32_t kept = S.n;
	storage_forget(); /* else nothing would be copied */
	answer_put(put.m);
	ck_assert_uint_lt(S.n, kept);
	same_pair();
	put_free();
	preempt_end();
}

/* --- restores ------------------------------------------------------------ */

static void write_over(const Pds__StoreGet *m, unsigned char with)
{
	unsigned char *junk = mem_alloc(W.layout.block_bytes);
	memset(junk, with, W.layout.block_bytes);
	for (size_t i = 0; i < m->n_items; i++) {
		pieces_move(m->items[i]->block, junk, 0, W.layout.layers, 1);
		ck_assert_msg(generation_of(m->items[i]->block) == m->items[i]->generation,
		              "block %u is somebody else's while storage may write it", m->items[i]->block);
	}
	free(junk);
}

static uint32_t handed_out(const Pds__StoreGet *m)
{
	uint32_t n = 0;
	for (size_t i = 0; i < m->n_items; i++)
		n += generation_of(m->items[i]->block) != m->items[i]->generation;
	return n;
}

/* The restore is given up, by its limit or by a cancel; others run through all other blocks,
 * again and again, while storage writes late. */
TEST_LOOP(pm5_timer_frees_restore, 0, 2)
{
	int cancelled = _i;
	preempt_begin(cancelled ? NULL : "restore_wait_ms=1000");
	learn_pair();
	learn(23, PAIR);
	S.get = S.fence = BY_HAND;
	submit_pair();
	const Pds__StoreGet *m = (const Pds__StoreGet *)await(STORAGE, MSG_STORE_GET, 0);
	if (cancelled)
		say_cancel(ROUTER, pair + 1);
	const Pds__StoreFence *f = (const Pds__StoreFence *)await(STORAGE, MSG_STORE_FENCE, 0);
	if (!cancelled)
		same_pair();
	write_over(m, 0x42);
	say_submit(23, growing(23, PAIR));
	for (unsigned char with = 1; !ended(23); with++) {
		pump();
		write_over(m, with);
	}
	same(23);
	write_over(m, 0x43);
	answer_fence(f);
	UNTIL(kv_count("held") == 0);
	preempt_end();
}

/* The fence is acknowledged when the last write is over, not before; from then on the blocks are
 * anybody's. */
TEST(pm8_ack_while_writing)
{
	preempt_begin();
	learn_pair();
	learn(22, PAIR);
	learn(23, PAIR);
	S.get = S.fence = BY_HAND;
	submit_pair();
	const Pds__StoreGet *m = (const Pds__StoreGet *)await(STORAGE, MSG_STORE_GET, 0);
	say_cancel(ROUTER, pair + 1);
	const Pds__StoreFence *f = (const Pds__StoreFence *)await(STORAGE, MSG_STORE_FENCE, 0);
	say_submit(22, growing(22, PAIR)); /* takes whatever there is: 17 of the 21 */
	while (!ended(22)) {
		write_over(m, 0x42);
		pump();
	}
	same(22);
	write_over(m, 0x43);
	answer_fence(f);
	S.get = S.fence = AT_ONCE;
	ctl("flush");
	UNTIL(kv_count("held") == 0);
	say_submit(23, growing(23, PAIR));
	for (uint32_t n = 21; !handed_out(m); n--) {
		/* the free ones come in some order: with a second one all are used */
		ck_assert_uint_gt(n, 10);
		say_submit(n, growing(n, PAIR));
		UNTIL(ended(n));
	}
	same(23);
	preempt_end();
}

/* Storage knows the hash, and dies, or finds nothing, where the contents should be: that is
 * computed, whatever lies in the blocks. */
TEST_LOOP(pm7_index_before_data, 0, 2)
{
	int dies = _i;
	Pds__StoreCode none[ITEMS];
	for (uint32_t i = 0; i < ITEMS; i++)
		none[i] = PDS__STORE_CODE__STORE_MISS;
	preempt_begin();
	learn_pair();
	S.get = BY_HAND;
	submit_pair();
	const Pds__StoreGet *m = (const Pds__StoreGet *)await(STORAGE, MSG_STORE_GET, 0);
	write_over(m, 0x42);
	if (dies)
		storage_kill();
	else
		say_done(m->batch, m->items, m->n_items, none);
	same_pair();
	UNTIL(metric("restores_computed_total") >= 1);
	preempt_end();
}

/* --- acknowledgements of another put ------------------------------------- */

/* The sequence was saved before; that put's acknowledgement comes again when the next put of the
 * same contents is under way, and then as that one's answer. It frees no block, and nothing
 * counts as stored by it. */
TEST(pm6_old_ack_counts)
{
	Pds__StoreCode ok[ITEMS];
	for (uint32_t i = 0; i < ITEMS; i++)
		ok[i] = PDS__STORE_CODE__STORE_OK;
	preempt_begin();
	learn_pair();
	S.put = BY_HAND;
	submit_pair();
	put_take();
	answer_put(put.m);
	same_pair();
	pair_again();
	uint64_t saved = metric("preempt_saved_blocks_total");
	submit_pair();
	const Pds__StorePut *next = (const Pds__StorePut *)await(STORAGE, MSG_STORE_PUT, 0);
	say_done(put.m->batch, put.m->items, put.n, ok);
	pump_for(100000);
	ck_assert_uint_eq(kv_count("readers"), (uint32_t)next->n_items);
	ck_assert(!ended(pair));
	for (size_t i = 0; i < next->n_items; i++)
		ck_assert_uint_eq(generation_of(next->items[i]->block), next->items[i]->generation);
	say_done(next->batch, put.m->items, put.n < next->n_items ? put.n : next->n_items, ok);
	S.put = AT_ONCE;
	same_pair();
	ck_assert_uint_eq(metric("preempt_saved_blocks_total"), saved);
	put_free();
	preempt_end();
}

/* --- generation and contents --------------------------------------------- */

static struct {
	_Atomic int over;
	_Atomic uint32_t copies, stale, wrong;
} watch;

static void watch_block(size_t i, unsigned char *copy)
{
	const Pds__StoreItem *it = put.m->items[i];
	if (generation_of(it->block) != it->generation) {
		watch.stale++;
		return;
	}
	pieces_move(it->block, copy, 0, W.layout.layers, 0);
	__asm__ volatile("" ::: "memory"); /* the copy is made before the generation is read */
	if (generation_of(it->block) == it->generation &&
	    memcmp(copy, put.was[i], W.layout.block_bytes) != 0)
		watch.wrong++;
	watch.copies++;
}

/* Storage's copier, on its own thread: copy, then check. */
static void *watcher(void *arg)
{
	unsigned char *copy = mem_alloc(W.layout.block_bytes);
	(void)arg;
	while (!watch.over)
		for (size_t i = 0; i < put.n; i++)
			watch_block(i, copy);
	free(copy);
	return NULL;
}

/* At no moment are there new contents under the old generation: it is copied all the time while
 * the blocks become others'. */
TEST(pm9_contents_before_gen)
{
	pthread_t t;
	preempt_begin(WAIT_OPTION);
	learn_pair();
	S.put = BY_HAND;
	submit_pair();
	put_take();
	ck_assert_int_eq(pthread_create(&t, NULL, watcher, NULL), 0);
	UNTIL(ended(pair));
	answer_put(put.m);
	S.put = AT_ONCE;
	same_pair();
	UNTIL(watch.copies > 0 && watch.stale > 0);
	watch.over = 1;
	pthread_join(t, NULL);
	ck_assert_uint_eq(watch.wrong, 0);
	put_free();
	preempt_end();
}
