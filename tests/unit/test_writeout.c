/* test_writeout.c - the worker's write-out alone: a real pool, and a storage, a loop and a clock of
 * this file's own, so that every order of answers can be played. Each test says what is due,
 * what is sent, what storage answers, and what the pool holds for stored. */
/* run: threads */
#include "daemons/worker/stage.h"
#include "daemons/worker/worker.h"

#include "util/clock.h"
#include "util/mem.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCKS 400u
#define BT 4u

/* --- the fakes: what writeout.c calls of svc and store ------------------- */

struct put {
	uint64_t number;
	uint32_t n;
	struct store_item item[WRITEOUT_BATCH];
	void *user;
	int cancelled, done;
};

static struct event_base *base;
static struct put wrote[256];
static uint32_t n_wrote;
static int ready, put_fails, rooms;
static struct {
	void (*fn)(struct svc *, void *);
	void *arg;
} posts[16];
static unsigned n_posts;

struct event_base *svc_base(struct svc *s)
{
	(void)s;
	return base;
}
void svc_post(struct svc *s, void (*fn)(struct svc *, void *), void *arg)
{
	(void)s;
	ck_assert_uint_lt(n_posts, 16);
	posts[n_posts].fn = fn;
	posts[n_posts++].arg = arg;
}
int store_ready(const struct store *st)
{
	(void)st;
	return ready;
}
int store_put(struct store *st, const struct store_item *items, uint32_t n, uint64_t deadline_us,
              void *user, uint64_t *ret_batch)
{
	(void)st;
	ck_assert_uint_le(deadline_us, clock_us() + WRITEOUT_US);
	if (put_fails)
		return put_fails;
	ck_assert_uint_lt(n_wrote, 256);
	struct put *p = &wrote[n_wrote++];
	*p = (struct put){.number = n_wrote, .n = n, .user = user};
	memcpy(p->item, items, n * sizeof *items);
	*ret_batch = p->number;
	return 0;
}
void store_cancel(struct store *st, uint64_t batch)
{
	(void)st;
	wrote[batch - 1].cancelled = 1;
}
void store_completion_free(struct store_completion **c)
{
	free(*c);
	*c = NULL;
}

/* --- the stage of a test ------------------------------------------------- */

static struct worker w;
static _Atomic uint64_t generations[BLOCKS];
static const struct reqid A = {1, 1};

static void on_room(struct worker *worker)
{
	ck_assert_ptr_eq(worker, &w);
	rooms++;
}

static void loop(void)
{
	unsigned n = n_posts;
	n_posts = 0;
	for (unsigned i = 0; i < n; i++)
		posts[i].fn(NULL, posts[i].arg);
	event_base_loop(base, EVLOOP_NONBLOCK);
}

/* At least so long, and so many turns that all which follows from what was done has happened,
 * however busy the machine is. */
static void loop_for(unsigned ms)
{
	uint64_t until = clock_us() + ms * 1000;
	for (unsigned turns = 0; turns < 2 * ms || clock_us() < until; turns++, usleep(500))
		loop();
}

/* Until so many were sent. */
static void sent(uint32_t n)
{
	for (uint64_t until = clock_us() + 20000000; n_wrote < n; usleep(500)) {
		ck_assert_msg(clock_us() < until, "%u batches were sent, not %u", n_wrote, n);
		loop();
	}
	ck_assert_uint_eq(n_wrote, n);
}

static void begin(enum kv_eviction eviction, uint32_t low_percent, uint32_t after)
{
	static const struct stage_ops stage = {.name = "test", .room = on_room};
	base = event_base_new();
	w = (struct worker){.stage = &stage, .state = &w, .region = {.blocks = BLOCKS}};
	w.conf.kv_eviction = eviction;
	w.conf.offload_low_percent = low_percent;
	w.conf.write_through_after = after;
	w.pool = kv_pool_new(BLOCKS, BT, generations);
	w.writeout = writeout_new(&w);
	ready = 1;
	writeout_storage_ready(w.writeout, 7);
	loop_for(20);
	ck_assert_uint_eq(n_wrote, 0);
}

static void end(void)
{
	writeout_destroy(&w.writeout);
	loop();
	kv_pool_verify(w.pool);
	struct kv_stats ks;
	kv_pool_stats(w.pool, &ks);
	ck_assert_uint_eq(ks.readers, 0);
	kv_pool_destroy(&w.pool);
	event_base_free(base);
}

static struct kv_hash H(uint32_t id) {
	struct kv_hash h = {{1}};
	memcpy(h.b + 1, &id, sizeof id);
	return h;
}

/* n blocks of a chain of their own, in use. */
static void
make(uint32_t first, uint32_t n, uint32_t *out)
{
	ck_assert_int_eq(kv_pool_take(w.pool, n, KV_HELD, &A, out), 0);
	for (uint32_t i = 0; i < n; i++) {
		struct kv_hash h = H(first + i), up = H(first + i - 1);
		kv_pool_publish(w.pool, out[i], &h, i ? &up : NULL);
	}
}

static void cache(uint32_t first, uint32_t n, uint32_t *out)
{
	make(first, n, out);
	kv_pool_release(w.pool, out, n);
}

/* Storage answers a batch. epoch: its life; code 0 and a tier, or a code of the whole batch. */
static void answer(uint32_t batch, int code, unsigned tier, uint64_t epoch)
{
	struct put *p = &wrote[batch - 1];
	struct store_completion *c = mem_zalloc(sizeof *c + p->n * sizeof c->result[0]);
	ck_assert_int_eq(p->done, 0);
	p->done = 1;
	c->op = STORE_OP_PUT;
	c->code = code;
	c->quiet = code != ERR_TIMEOUT && code != ERR_CANCELLED;
	c->epoch = epoch;
	c->n = p->n;
	for (uint32_t i = 0; i < p->n; i++) {
		c->result[i].item = p->item[i];
		c->result[i].code = code   ? PDS__STORE_CODE__STORE_CANCELLED
		                    : tier ? PDS__STORE_CODE__STORE_OK
		                           : PDS__STORE_CODE__STORE_FULL;
		c->result[i].tier = (unsigned char)tier;
	}
	struct store_asker *a = p->user;
	a->answered(&w, a, c);
}

static struct kv_stats told(void)
{
	struct kv_stats ks;
	kv_pool_verify(w.pool);
	kv_pool_stats(w.pool, &ks);
	return ks;
}

/* --- what is written when ------------------------------------------------ */

TEST_CASE("writeout", .timeout_s = 60);

TEST(recycle_writes_what_is_asked_for)
{
	uint32_t b[BLOCKS];
	begin(EVICT_RECYCLE, 20, 1);
	cache(1, 390, b);
	loop_for(30);
	ck_assert_uint_eq(n_wrote, 0);
	struct kv_hash h[10];
	for (uint32_t i = 0; i < 10; i++)
		h[i] = H(1 + i);
	ck_assert_uint_eq(kv_pool_match(w.pool, h, 10, &A, b), 10);
	ck_assert_uint_eq(kv_pool_want_stored(w.pool, b, 10), 10);
	ck_assert_uint_eq(kv_pool_want_stored(w.pool, b, 10), 0); /* they are due already */
	kv_pool_release(w.pool, b, 10);
	sent(1);
	/* one message, from the head of the chain on */
	ck_assert_uint_eq(wrote[0].n, 10);
	for (uint32_t i = 0; i < 10; i++)
		ck_assert_uint_eq(wrote[0].item[i].block, b[i]);
	ck_assert_uint_eq(told().writing, 10);
	answer(1, 0, STORE_TIER_DISK, 7);
	ck_assert_uint_eq(told().stored[STORE_TIER_DISK], 10);
	ck_assert_int_eq(rooms, 1);
	ck_assert_uint_eq(kv_pool_match(w.pool, h, 10, &A, b), 10);
	/* storage has them: no message */
	ck_assert_uint_eq(kv_pool_want_stored(w.pool, b, 10), 0);
	kv_pool_release(w.pool, b, 10);
	loop_for(20);
	ck_assert_uint_eq(n_wrote, 1);
	ck_assert_uint_eq(w.stats.written, 10);
	end();
}

/* Free and stored together are a fifth of the pool; what is stored stays matchable until it is
 * taken, and then it is not lost. */
TEST(offload_writes_the_oldest)
{
	uint32_t b[BLOCKS], t[BLOCKS];
	begin(EVICT_OFFLOAD, 20, 1);
	cache(1, 100, b);
	cache(1001, 200, b + 100);
	loop_for(20);
	ck_assert_uint_eq(n_wrote, 0); /* a hundred are free */
	cache(2001, 60, b + 300);
	sent(1);
	ck_assert_uint_eq(wrote[0].n, 40); /* of eighty */
	for (uint32_t i = 0; i < 40; i++)
		/* the tail of the oldest chain goes first */
		ck_assert_uint_eq(wrote[0].item[i].block, b[99 - i]);
	answer(1, 0, STORE_TIER_MEMORY, 7);
	ck_assert_uint_eq(told().stored[0], 40);
	ck_assert_uint_eq(told().by_state[KV_CACHED], 360);
	ck_assert_int_eq(kv_pool_take(w.pool, 70, KV_HELD, &A, t), 0);
	ck_assert_uint_eq(told().evictions, 30);
	ck_assert_uint_eq(told().evicted_stored, 30);
	/* nothing is free now: ten are stored still, seventy more are to be */
	sent(3);
	ck_assert_uint_eq(wrote[1].n, 64);
	ck_assert_uint_eq(wrote[2].n, 6);
	kv_pool_release(w.pool, t, 70);
	answer(3, 0, STORE_TIER_MEMORY, 7);
	answer(2, 0, STORE_TIER_MEMORY, 7);
	loop_for(20);
	ck_assert_uint_eq(n_wrote, 3);
	ck_assert_uint_eq(told().stored[0], 80);
	end();
}

TEST(write_through_after_two_uses)
{
	uint32_t b[8], m[8];
	struct kv_hash h[8];
	begin(EVICT_WRITE_THROUGH, 20, 2);
	cache(1, 8, b);
	for (uint32_t i = 0; i < 8; i++)
		h[i] = H(1 + i);
	for (uint32_t use = 1; use <= 3; use++) {
		uint32_t n = use == 2 ? 5 : use == 3 ? 8 : 6;
		ck_assert_uint_eq(kv_pool_match(w.pool, h, n, &A, m), n);
		kv_pool_release(w.pool, m, n);
		sent(use - 1);
	}
	/* blocks 0 to 4 were used twice after the second time, block 5 after the third; 6 and 7 once */
	ck_assert_uint_eq(wrote[0].n, 5);
	ck_assert_uint_eq(wrote[1].n, 1);
	ck_assert_uint_eq(wrote[1].item[0].block, b[5]);
	answer(1, 0, STORE_TIER_MEMORY, 7);
	answer(2, 0, STORE_TIER_MEMORY, 7);
	end();
}

TEST(write_through_at_once)
{
	uint32_t b[8];
	begin(EVICT_WRITE_THROUGH, 20, 0);
	make(1, 8, b); /* still in use */
	sent(1);
	ck_assert_uint_eq(wrote[0].n, 8);
	answer(1, 0, STORE_TIER_MEMORY, 7);
	kv_pool_release(w.pool, b, 8);
	ck_assert_uint_eq(told().stored[0], 8);
	end();
}

/* Many blocks are few messages, and never more than a quarter of the pool. */
TEST(a_bounded_number_under_way)
{
	uint32_t b[BLOCKS];
	begin(EVICT_WRITE_THROUGH, 20, 0);
	make(1, 300, b);
	sent(2);
	ck_assert_uint_eq(wrote[0].n, 64);
	ck_assert_uint_eq(wrote[1].n, 100 - 64);
	loop_for(20);
	ck_assert_uint_eq(n_wrote, 2);
	for (uint32_t done = 1; done <= n_wrote; done++) {
		answer(done, 0, STORE_TIER_MEMORY, 7);
		loop_for(10);
		struct kv_stats ks = told();
		ck_assert_uint_le(ks.writing, 100);
		ck_assert_uint_le(ks.readers, 100);
	}
	kv_pool_release(w.pool, b, 300);
	ck_assert_uint_eq(told().stored[0], 300);
	ck_assert_uint_le(n_wrote, 8);
	end();
}

/* --- storage comes, goes, and does not answer ---------------------------- */

TEST(storage_is_away)
{
	uint32_t b[8];
	begin(EVICT_WRITE_THROUGH, 20, 0);
	ready = 0;
	cache(1, 8, b);
	loop_for(30);
	ck_assert_uint_eq(n_wrote, 0);
	ck_assert_uint_eq(told().readers, 0);
	ready = 1;
	writeout_storage_ready(w.writeout, 7);
	sent(1);
	answer(1, 0, STORE_TIER_MEMORY, 7);
	end();
}

/* What was in the memory of a former life is gone, what was on its disk is not. */
TEST(storage_is_restarted)
{
	uint32_t b[30];
	begin(EVICT_WRITE_THROUGH, 20, 0);
	cache(1, 10, b);
	sent(1);
	answer(1, 0, STORE_TIER_MEMORY, 7);
	cache(101, 10, b + 10);
	sent(2);
	answer(2, 0, STORE_TIER_DISK, 7);
	cache(201, 10, b + 20);
	sent(3); /* under way when storage ends */
	ck_assert_uint_eq(told().stored[STORE_TIER_MEMORY], 10);
	ck_assert_uint_eq(told().stored[STORE_TIER_DISK], 10);
	writeout_storage_ready(w.writeout, 8);
	ck_assert_uint_eq(told().stored[STORE_TIER_MEMORY], 0);
	ck_assert_uint_eq(told().stored[STORE_TIER_DISK], 10);
	answer(3, 0, STORE_TIER_MEMORY, 7); /* late word of the former life */
	ck_assert_uint_eq(told().stored[STORE_TIER_MEMORY], 0);
	sent(4);
	ck_assert_uint_eq(wrote[3].n, 10);
	answer(4, 0, STORE_TIER_MEMORY, 8);
	/* the link was down for a moment, the life is the same */
	writeout_storage_ready(w.writeout, 8);
	loop_for(20);
	ck_assert_uint_eq(n_wrote, 4);
	ck_assert_uint_eq(told().stored[STORE_TIER_MEMORY], 10);
	end();
}

/* After a restart the oldest are written again, by the same rule. */
TEST(offload_after_a_restart)
{
	uint32_t b[BLOCKS];
	begin(EVICT_OFFLOAD, 10, 1);
	cache(1, BLOCKS, b);
	sent(1);
	ck_assert_uint_eq(wrote[0].n, 40);
	answer(1, 0, STORE_TIER_MEMORY, 7);
	loop_for(20);
	ck_assert_uint_eq(n_wrote, 1);
	writeout_storage_ready(w.writeout, 9);
	sent(2);
	ck_assert_uint_eq(wrote[1].n, 40);
	for (uint32_t i = 0; i < 40; i++)
		ck_assert_uint_eq(wrote[0].item[i].block, wrote[1].item[i].block);
	answer(2, 0, STORE_TIER_MEMORY, 9);
	end();
}

/* No answer: the pins end, the blocks can be taken, and a pause comes before the next batch; it
 * grows. */
TEST(storage_does_not_answer)
{
	uint32_t b[BLOCKS], t[BLOCKS];
	begin(EVICT_WRITE_THROUGH, 20, 0);
	cache(1, 8, b);
	sent(1);
	uint64_t at = clock_us();
	answer(1, ERR_TIMEOUT, 0, 7);
	ck_assert_uint_eq(told().readers, 0);
	ck_assert_uint_eq(w.stats.not_written, 8);
	cache(101, 8, b);
	sent(2);
	ck_assert_uint_ge(clock_us() - at, 200000);
	at = clock_us();
	answer(2, ERR_TIMEOUT, 0, 7);
	ck_assert_int_eq(kv_pool_take(w.pool, BLOCKS, KV_HELD, &A, t), 0);
	kv_pool_release(w.pool, t, BLOCKS);
	cache(201, 8, b);
	sent(3);
	ck_assert_uint_ge(clock_us() - at, 450000);
	answer(3, 0, STORE_TIER_MEMORY, 7);
	uint64_t least_us = UINT64_MAX;
	for (uint32_t n = 4; n < 14 && least_us >= 200000; n++) { /* the machine may be busy */
		cache(1 + 100 * (n - 1), 8, b);
		at = clock_us();
		sent(n);
		least_us = clock_us() - at < least_us ? clock_us() - at : least_us;
		answer(n, 0, 0, 7); /* full: no pause either */
	}
	ck_assert_uint_lt(least_us, 200000); /* no pause after an answer */
	ck_assert_uint_eq(told().stored[0], 8);
	end();
}

/* A block that storage did not take is not offered again and again, but once more when it was
 * used. */
TEST(what_failed_waits_for_its_next_use)
{
	uint32_t b[BLOCKS];
	begin(EVICT_OFFLOAD, 10, 1);
	cache(1, BLOCKS, b);
	sent(1);
	answer(1, 0, 0, 7);
	loop_for(30);
	ck_assert_uint_eq(n_wrote, 1);
	struct kv_hash h[BLOCKS];
	for (uint32_t i = 0; i < BLOCKS; i++)
		h[i] = H(1 + i);
	ck_assert_uint_eq(kv_pool_match(w.pool, h, BLOCKS, &A, b), BLOCKS);
	kv_pool_release(w.pool, b, BLOCKS);
	sent(2);
	ck_assert_uint_eq(wrote[1].n, 40);
	answer(2, 0, STORE_TIER_MEMORY, 7);
	end();
}

/* The blocks are needed before storage has answered: all of them at once, and its late word is
 * about none that was taken. */
TEST(given_up)
{
	uint32_t b[BLOCKS], t[BLOCKS];
	begin(EVICT_WRITE_THROUGH, 20, 0);
	cache(1, 60, b);
	sent(1);
	uint64_t now = clock_us();
	ck_assert_int_eq(kv_pool_take(w.pool, BLOCKS, KV_HELD, &A, t), ERR_FULL);
	ck_assert_uint_eq(writeout_next_us(w.writeout, 0) > 0, 1);
	/* not begun before that */
	ck_assert_uint_eq(writeout_give_up(w.writeout, now - 10000000), 0);
	ck_assert_uint_eq(writeout_give_up(w.writeout, now + 1), 60);
	ck_assert_uint_eq(writeout_give_up(w.writeout, now + 1), 0);
	ck_assert_uint_eq(writeout_next_us(w.writeout, 0), 0);
	ck_assert_int_eq(wrote[0].cancelled, 1);
	ck_assert_uint_eq(told().readers, 0);
	ck_assert_int_eq(kv_pool_take(w.pool, BLOCKS - 20, KV_HELD, &A, t), 0);
	uint32_t n = 0;
	for (uint32_t i = 0; i < 60; i++)
		n += generations[wrote[0].item[i].block] != wrote[0].item[i].generation;
	ck_assert_uint_eq(n, 40);
	kv_pool_release(w.pool, t, BLOCKS - 20);
	/* it had come before the fence: good for those that are still the same */
	answer(1, 0, STORE_TIER_MEMORY, 7);
	ck_assert_uint_eq(told().stored[0], 20);
	ck_assert_uint_eq(w.stats.writes_void, 60);
	ck_assert_uint_eq(writeout_give_up(NULL, now), 0);
	end();
}

/* --- sequences that give way --------------------------------------------- */

static const struct reqid B = {2, 1};

/* All at once, whatever else is under way, the last block first; what storage has or is being
 * sent is not sent again. */
TEST(saved_at_once)
{
	uint32_t b[BLOCKS];
	begin(EVICT_RECYCLE, 20, 0);
	make(1, 150, b);
	ck_assert_uint_eq(kv_pool_want_stored(w.pool, b, 10), 10);
	sent(1);
	answer(1, 0, STORE_TIER_DISK, 7);
	ck_assert_uint_eq(kv_pool_want_stored(w.pool, b + 10, 10), 10);
	sent(2);
	/* due, and not sent yet */
	ck_assert_uint_eq(kv_pool_want_stored(w.pool, b + 140, 10), 10);
	writeout_save(w.writeout, &B, b, 150);
	ck_assert_uint_eq(n_wrote, 5);
	uint32_t left = 150;
	for (uint32_t p = 2; p < 5; p++)
		for (uint32_t i = 0; i < wrote[p].n; i++) {
			struct kv_hash h = H(left);
			ck_assert_uint_eq(wrote[p].item[i].block, b[--left]);
			ck_assert_int_eq(memcmp(&wrote[p].item[i].hash, &h, sizeof h), 0);
		}
	ck_assert_uint_eq(left, 20);
	ck_assert_uint_eq(writeout_saving(w.writeout), 130);
	ck_assert_uint_eq(told().due, 0);
	kv_pool_release(w.pool, b, 150);
	writeout_save(NULL, &B, b, 150);
	loop_for(20);
	ck_assert_uint_eq(n_wrote, 5);
	for (uint32_t p = 2; p <= 5; p++)
		answer(p, 0, STORE_TIER_MEMORY, 7);
	ck_assert_uint_eq(told().stored[STORE_TIER_MEMORY], 140);
	ck_assert_uint_eq(w.stats.saved_blocks, 130);
	ck_assert_uint_eq(writeout_saving(w.writeout), 0);
	end();
}

/* Who lacks a block waits for so long and no longer. What is not taken then is stored all the
 * same, and until that is known no other is begun. */
TEST(saved_in_vain)
{
	uint32_t b[BLOCKS], t[BLOCKS];
	begin(EVICT_RECYCLE, 20, 0);
	make(1, 60, b);
	writeout_save(w.writeout, &B, b, 60);
	sent(1);
	kv_pool_release(w.pool, b, 60);
	ck_assert_int_eq(writeout_wait(w.writeout, 60000000), WRITEOUT_WAIT);
	ck_assert_uint_gt(writeout_next_us(w.writeout, 60000000), clock_us());
	ck_assert_int_eq(writeout_wait(w.writeout, UINT64_MAX), WRITEOUT_WAIT);
	ck_assert_int_eq(kv_pool_take(w.pool, BLOCKS, KV_HELD, &A, t), ERR_FULL);
	ck_assert_int_eq(writeout_wait(w.writeout, 0), WRITEOUT_VOID);
	ck_assert_int_eq(writeout_wait(w.writeout, 0), WRITEOUT_NONE);
	ck_assert_uint_eq(
		writeout_next_us(w.writeout, 0) + writeout_saving(w.writeout) + told().readers, 0);
	ck_assert_int_eq(wrote[0].cancelled, 0);
	make(101, 5, b);
	writeout_save(w.writeout, &B, b, 5);
	ck_assert_uint_eq(n_wrote, 1);
	ck_assert_int_eq(kv_pool_take(w.pool, BLOCKS - 25, KV_HELD, &A, t), 0);
	kv_pool_release(w.pool, t, BLOCKS - 25);
	answer(1, 0, STORE_TIER_MEMORY, 7);
	ck_assert_uint_eq(told().stored[0], 20);
	ck_assert_uint_eq(w.stats.saves_void, 1);
	writeout_save(w.writeout, &B, b, 5);
	ck_assert_uint_eq(n_wrote, 2);
	kv_pool_release(w.pool, b, 5);
	answer(2, 0, STORE_TIER_MEMORY, 7);
	ck_assert_int_eq(writeout_wait(NULL, 0), WRITEOUT_NONE);
	end();
}

/* Not to a storage that is away or silent; and the word of a former life is none of this one's
 * memory. */
TEST(saved_to_whom)
{
	uint32_t b[8];
	begin(EVICT_RECYCLE, 20, 0);
	make(1, 8, b);
	ready = 0;
	writeout_save(w.writeout, &B, b, 8);
	ready = 1;
	put_fails = ERR_FULL;
	writeout_save(w.writeout, &B, b, 8);
	put_fails = 0;
	ck_assert_uint_eq(n_wrote + told().readers + told().writing, 0);
	writeout_save(w.writeout, &B, b, 8);
	ck_assert_uint_eq(n_wrote, 1);
	writeout_storage_ready(w.writeout, 8);
	answer(1, 0, STORE_TIER_MEMORY, 7);
	kv_pool_release(w.pool, b, 8);
	ck_assert_uint_eq(told().stored[0], 0);
	ck_assert_uint_eq(kv_pool_match(w.pool, (struct kv_hash[]){H(1)}, 1, &A, b), 1);
	writeout_save(w.writeout, &B, b, 1);
	ck_assert_uint_eq(n_wrote, 2);
	answer(2, ERR_TIMEOUT, 0, 8);
	writeout_save(w.writeout, &B, b, 1); /* it pauses */
	ck_assert_uint_eq(n_wrote, 2);
	kv_pool_release(w.pool, b, 1);
	end();
}

TEST(cannot_send)
{
	uint32_t b[8];
	begin(EVICT_WRITE_THROUGH, 20, 0);
	put_fails = ERR_FULL;
	cache(1, 8, b);
	loop_for(30);
	struct kv_stats ks = told();
	ck_assert_uint_eq(ks.readers + ks.writing, 0);
	ck_assert_uint_eq(w.stats.not_written, 8);
	put_fails = 0;
	cache(101, 3, b);
	sent(1);
	ck_assert_uint_eq(wrote[0].n, 3);
	answer(1, 0, STORE_TIER_MEMORY, 7);
	end();
}

/* The worker ends with batches under way and a wake on its way to the loop. */
TEST(ends_in_the_middle)
{
	uint32_t b[BLOCKS];
	begin(EVICT_WRITE_THROUGH, 20, 0);
	cache(1, 100, b);
	sent(2);
	for (uint32_t i = 0; i < 2; i++)
		answer(i + 1, 0, STORE_TIER_MEMORY, 7);
	cache(501, 100, b);
	sent(4);
	answer(3, 0, STORE_TIER_MEMORY, 7);
	answer(4, 0, STORE_TIER_MEMORY, 7);
	cache(701, 100, b);
	ck_assert_uint_gt(n_posts, 0);
	end();
}

/* Somebody waits for what it would evict: that goes first, and without gathering. */
TEST(who_waits_comes_first)
{
	uint32_t b[BLOCKS], t[8];
	begin(EVICT_OFFLOAD, 1, 1);
	cache(1, BLOCKS, b);
	sent(1);
	ck_assert_uint_eq(wrote[0].n, 4);
	ck_assert_uint_eq(kv_pool_unstored_for(w.pool, 50), 50);
	writeout_hurry(w.writeout);
	ck_assert_uint_eq(n_wrote, 2);
	ck_assert_uint_eq(wrote[1].n, 46);
	ck_assert_uint_eq(wrote[1].item[0].block, b[BLOCKS - 5]);
	answer(1, 0, STORE_TIER_MEMORY, 7);
	ck_assert_uint_eq(kv_pool_unstored_for(w.pool, 50), 46);
	answer(2, 0, STORE_TIER_MEMORY, 7);
	ck_assert_uint_eq(kv_pool_unstored_for(w.pool, 50), 0);
	ck_assert_int_eq(kv_pool_take(w.pool, 8, KV_HELD, &A, t), 0);
	ck_assert_uint_eq(told().evicted_stored, 8);
	kv_pool_release(w.pool, t, 8);
	end();
}
