/* test_decode_marks.c - a decode worker and what it takes storage to have: blocks that storage is
 * known to have are not written again, so it must hear of those that storage drops. One block
 * that is missing makes all behind it useless. */
/* run: threads waits */
#include "preempt_world.h"

#define ASKED 100, 60 /* prompt, answer: nine full blocks */
#define BLOCKS 9u

static void say_list(uint32_t tier, int reset, uint32_t from, uint32_t to, int removed)
{
	Pds__KvEvents m = PDS__KV_EVENTS__INIT;
	uint64_t hash[STORED_MAX];
	for (uint32_t i = from; i < to; i++)
		memcpy(&hash[i - from], S.block[i].hash, sizeof hash[0]);
	m.reset = reset;
	m.tier = tier;
	*(removed ? &m.n_removed : &m.n_stored) = to - from;
	*(removed ? &m.removed : &m.stored) = hash;
	say_storage(MSG_KV_EVENTS, &m.base);
}

/* The sequence runs and ends, and what storage lacks of it is written. */
static void through(uint32_t n)
{
	say_submit(n, growing(1, ASKED));
	UNTIL(ended(n) && requests_are("[]"));
	UNTIL(kv_count("due") + kv_count("writing") == 0);
}

static void begin(const char *option)
{
	preempt_begin("output_caching=true", option);
	await(STORAGE, MSG_STORE_LIST, 0);
	say_list(1, 1, 0, 0, 0);
	say_list(2, 1, 0, 0, 0);
	through(1);
	UNTIL(kv_count("cached_stored") == BLOCKS);
	ck_assert_uint_eq(S.n, BLOCKS);
	S.n_written = 0;
}

/* Nothing was dropped: nothing is sent. */
TEST_LOOP(known_to_be_there, 0, 2)
{
	begin(_i ? "kv_events_ms=0" : NULL);
	through(2);
	ck_assert_uint_eq(S.n_written, 0);
	preempt_end();
}

TEST_LOOP(dropped_one_by_one, 0, 2)
{
	begin(_i ? "kv_events_ms=0" : NULL);
	say_list(1, 0, 2, 5, 1);
	UNTIL(kv_count("cached_stored") == BLOCKS - 3);
	through(2);
	UNTIL(kv_count("cached_stored") == BLOCKS);
	ck_assert_uint_eq(S.n_written, 3);
	preempt_end();
}

/* The link was down for a while, and storage tells from the beginning: what it does not name is
 * gone. */
TEST(dropped_while_nobody_heard)
{
	begin(NULL);
	side_close(STORAGE);
	UNTIL(strstr(ctl("status"), "\"storage_ready\":false"));
	side_open(STORAGE);
	await(STORAGE, MSG_STORE_LIST, 0);
	ck_assert_uint_eq(kv_count("cached_stored"), BLOCKS);
	say_list(1, 1, 0, 2, 0);
	say_list(1, 0, 4, BLOCKS, 0);
	UNTIL(kv_count("cached_stored") == BLOCKS - 2);
	through(2);
	UNTIL(kv_count("cached_stored") == BLOCKS);
	ck_assert_uint_eq(S.n_written, 2);
	preempt_end();
}

/* A list of one tier says nothing of another's. */
TEST(each_tier_for_itself)
{
	begin(NULL);
	say_list(2, 1, 0, 0, 0);
	say_list(2, 0, 0, 4, 0);
	say_list(1, 1, 0, 0, 0);
	UNTIL(kv_count("cached_stored") == 4);
	say_list(2, 1, 0, 0, 0);
	UNTIL(kv_count("cached_stored") == 0);
	preempt_end();
}

/* Who writes nothing asks nothing. */
TEST(no_interest)
{
	preempt_begin("save_preempted_kv=false");
	say_submit(1, growing(1, 20, 4));
	UNTIL(ended(1));
	pump_for(100000);
	ck_assert_ptr_null(take(STORAGE, MSG_STORE_LIST, 0));
	preempt_end();
}
