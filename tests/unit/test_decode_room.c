/* test_decode_room.c - blocks for the rows of a step, on a pool of its own: a draft has as many
 * rows as there is room for, and loses them with its blocks. */
#include "daemons/decode/decode.h"

#include "world_run.h"

#include <string.h>

#define BT 16u
#define BLOCKS 8u

static _Atomic uint64_t generations[BLOCKS];
static struct engine_info info;
static struct worker w;
static struct decode d;
static struct sequence q[2];
static uint32_t tokens[256], others[BLOCKS];

static void begin(void)
{
	memset(q, 0, sizeof q);
	memset(&d, 0, sizeof d);
	info.kv.block_tokens = BT;
	w = (struct worker){.info = &info, .region = {.blocks = BLOCKS}, .state = &d};
	w.pool = kv_pool_new(BLOCKS, BT, generations);
	d.w = &w;
	pthread_mutex_init(&d.lock, NULL);
	list_init(&d.running);
	list_init(&d.waiting);
	list_init(&d.restores);
}

static void end(void)
{
	for (uint32_t i = 0; i < 2; i++) {
		if (q[i].n_blocks)
			kv_pool_release(w.pool, q[i].blocks, q[i].n_blocks);
		free(q[i].blocks);
	}
	kv_pool_verify(w.pool);
	kv_pool_destroy(&w.pool);
	pthread_mutex_destroy(&d.lock);
}

/* A sequence that has so many tokens, blocks for them, and a draft. */
static void runs(uint32_t i, uint32_t n_tokens, uint32_t ahead)
{
	struct sequence *s = &q[i];
	s->w = &w;
	s->req = (struct request_copy){.id = {1, i}, .tokens = tokens, .n_tokens = n_tokens};
	s->ahead = ahead;
	s->born_us = i;
	s->running = 1;
	s->n_blocks = worker_blocks_for(&w, n_tokens);
	s->room_blocks = s->n_blocks;
	s->blocks = calloc(s->n_blocks, sizeof *s->blocks);
	ck_assert_int_eq(kv_pool_take(w.pool, s->n_blocks, KV_HELD, &s->req.id, s->blocks), 0);
	list_push_back(&d.running, &s->batch);
	d.n_running++;
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

START_TEST(a_draft_has_the_rows_it_has_room_for)
{
	runs(0, rows[_i].tokens, rows[_i].ahead);
	leave_free(rows[_i].free);
	room_grow(&d);
	ck_assert_uint_eq(q[0].ahead, rows[_i].want);
	ck_assert_uint_eq(q[0].n_blocks, rows[_i].blocks);
	ck_assert_uint_le(q[0].req.n_tokens + q[0].ahead, q[0].n_blocks * BT);
}
END_TEST

/* A draft never takes what a running one needs for its next token. */
START_TEST(drafts_come_after_all_tokens)
{
	runs(0, 16, 16);
	runs(1, 16, 16);
	q[1].req.n_tokens = 17; /* it has just got it, and needs a block */
	leave_free(1);
	room_grow(&d);
	ck_assert_uint_eq(q[1].n_blocks, 2);
	ck_assert_uint_eq(q[1].ahead, 15);
	ck_assert_uint_eq(q[0].n_blocks, 1);
	ck_assert_uint_eq(q[0].ahead, 0);
}
END_TEST

/* What gives way takes no draft along: it would have its rows in a step that was planned without
 * them. */
START_TEST(no_draft_while_it_waits)
{
	runs(0, 17, 9);
	room_wait_again(&d, &q[0]);
	ck_assert_uint_eq(q[0].ahead, 0);
	ck_assert_uint_eq(q[0].n_blocks, 0);
	ck_assert_int_eq(q[0].running, 0);
	ck_assert(d.waiting.next == &q[0].batch);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("decode_room");
	TCase *c = tcase_create("room");
	tcase_add_checked_fixture(c, begin, end);
	tcase_add_loop_test(c, a_draft_has_the_rows_it_has_room_for, 0,
	                    (int)(sizeof rows / sizeof *rows));
	tcase_add_test(c, drafts_come_after_all_tokens);
	tcase_add_test(c, no_draft_while_it_waits);
	suite_add_tcase(s, c);
	return world_run(s);
}
