/* test_decode_room.c - blocks for the rows of a step, on a pool of its own: a draft has as many
 * rows as there is room for, and loses them with its blocks; phases of a run, their lists and
 * counts. */
#include "daemons/worker/batch/batch.h"

#include <signal.h>
#include <string.h>

#define BT 16u
#define BLOCKS 8u

static _Atomic uint64_t generations[BLOCKS];
static struct engine_info info;
static struct worker w;
static struct batcher b;
static struct run q[2];
static struct run_shared shared[2];
static uint32_t tokens[256], others[BLOCKS];

static void begin(void)
{
	memset(q, 0, sizeof q);
	memset(shared, 0, sizeof shared);
	memset(&b, 0, sizeof b);
	info.kv.block_tokens = BT;
	w = (struct worker){.info = &info, .region = {.blocks = BLOCKS}};
	w.pool = kv_pool_new(BLOCKS, BT, generations);
	b.w = &w;
	pthread_mutex_init(&b.locked.lock, NULL);
	list_init(&b.own.running);
	list_init(&b.own.waiting);
	list_init(&b.own.restores);
}

static void end(void)
{
	for (uint32_t i = 0; i < 2; i++) {
		seq_blocks_release(&q[i].blocks, &w);
		seq_blocks_fini(&q[i].blocks);
	}
	kv_pool_verify(w.pool);
	kv_pool_destroy(&w.pool);
	pthread_mutex_destroy(&b.locked.lock);
}

/* A sequence that has so many tokens, blocks for them, and a draft. */
static void runs(uint32_t i, uint32_t n_tokens, uint32_t ahead)
{
	struct run *r = &q[i];
	r->shared = &shared[i];
	r->req = (struct request_copy){.id = {1, i}, .tokens = tokens, .n_tokens = n_tokens};
	r->ahead = ahead;
	r->born_us = i;
	list_init(&r->node);
	while (r->blocks.n < worker_blocks_for(&w, n_tokens))
		ck_assert(seq_blocks_add(&r->blocks, &w, &r->req));
	run_enter(&b, r, RUN_RUNNING);
}

/* All but so many blocks are somebody's. */
static void leave_free(uint32_t n)
{
	struct kv_stats ks;
	kv_pool_stats(w.pool, &ks);
	ck_assert_int_eq(kv_pool_take(w.pool, ks.by_state[KV_FREE] - n, KV_LEASED,
	                              &(struct reqid){9, 9}, others),
	                 0);
}

static const struct {
	uint32_t tokens, ahead, free, blocks, want;
} rows[] = {
	{20, 12, 0, 2, 12}, /* to the end of its block */
	{20, 13, 0, 2, 12}, /* and no further, when there is no other */
	{20, 13, 1, 3, 13}, {20, 28, 1, 3, 28},
	{20, 29, 1, 3, 28}, {20, 60, 1, 3, 28}, /* all that there is, not all or nothing */
	{20, 60, 3, 5, 60}, {32, 5, 0, 2, 0},   /* its blocks are full */
	{32, 5, 1, 3, 5},   {20, 0, 1, 2, 0},
};

TEST_CASE("room", .setup = begin, .teardown = end);

TEST_LOOP(a_draft_has_the_rows_it_has_room_for, 0, sizeof rows / sizeof *rows)
{
	runs(0, rows[_i].tokens, rows[_i].ahead);
	leave_free(rows[_i].free);
	preempt_grow(&b);
	ck_assert_uint_eq(q[0].ahead, rows[_i].want);
	ck_assert_uint_eq(q[0].blocks.n, rows[_i].blocks);
	ck_assert_uint_le(q[0].req.n_tokens + q[0].ahead, q[0].blocks.n * BT);
}

/* A draft never takes what a running one needs for its next token. */
TEST(drafts_come_after_all_tokens)
{
	runs(0, 16, 16);
	runs(1, 16, 16);
	q[1].req.n_tokens = 17; /* it has just got it, and needs a block */
	leave_free(1);
	preempt_grow(&b);
	ck_assert_uint_eq(q[1].blocks.n, 2);
	ck_assert_uint_eq(q[1].ahead, 15);
	ck_assert_uint_eq(q[0].blocks.n, 1);
	ck_assert_uint_eq(q[0].ahead, 0);
}

/* What gives way takes no draft along: it would have its rows in a step that was planned without
 * them. */
TEST(no_draft_while_it_waits)
{
	runs(0, 17, 9);
	preempt_wait_again(&b, &q[0]);
	ck_assert_uint_eq(q[0].ahead, 0);
	ck_assert_uint_eq(q[0].blocks.n, 0);
	ck_assert_int_eq(run_phase(&q[0]), RUN_PREEMPTED);
	ck_assert(b.own.waiting.next == &q[0].node);
}

/* Each phase has its list and its counts. */
TEST(phases_have_lists_and_counts)
{
	static const struct {
		enum run_phase phase;
		uint32_t running, preempted;
	} walk[] = {{RUN_RESTORING, 2, 0}, {RUN_RUNNING, 2, 0},   {RUN_PREEMPTED, 1, 1},
	            {RUN_RUNNING, 2, 0},   {RUN_RESTORING, 2, 0}, {RUN_PREEMPTED, 1, 1}};
	runs(0, 20, 0);
	runs(1, 20, 0);
	for (size_t i = 0; i < sizeof walk / sizeof *walk; i++) {
		run_enter(&b, &q[0], walk[i].phase);
		ck_assert_uint_eq(b.own.n_running, walk[i].running);
		ck_assert_uint_eq(b.shared.preempted, walk[i].preempted);
		/* the older of the two comes first */
		ck_assert((walk[i].running == 2 ? &b.own.running : &b.own.waiting)->next == &q[0].node);
	}
}

TEST_SIGNAL(only_a_running_one_reads, SIGABRT)
{
	runs(0, 20, 0);
	run_enter(&b, &q[0], RUN_PREEMPTED);
	run_enter(&b, &q[0], RUN_RESTORING);
}
