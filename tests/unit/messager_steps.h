/* messager_steps.h - the usual steps of a transfer over messager_rig.h, for tests that begin in the
 * middle of one: published and asked for, opened, all posted; and what a test expects at the
 * end. */
#ifndef TEST_MESSAGER_STEPS_H
#define TEST_MESSAGER_STEPS_H

#include "messager_rig.h"

#include <check.h>

static struct rig rig, *r = &rig;

static inline void setup(void)
{
	rig_init(r);
}

static inline void teardown(void)
{
	rig_fini(r);
}

static inline void turn(enum mover_turn want)
{
	ck_assert_int_eq(mover_turn(r->m), want);
}

/* Publishes 10 tokens in 3 blocks and goes on until LEASE_OPEN is out. */
static inline void asked(void)
{
	rig_publish(r, 1, 0, 10);
	turn(MOVER_OPEN);
	ck_assert_uint_eq(rig_count(r, MSG_LEASE_OPEN), 1);
}

static inline void opened(void)
{
	asked();
	rig_opened(r, 0);
}

static inline void posted(void)
{
	opened();
	rig_compute(r, 3, 10);
	turn(MOVER_OPEN);
	ck_assert_uint_eq(rig_count(r, MSG_KV_READY), 1);
}

static inline void failed(enum transfer_end end, Pds__Fault fault, const char *text)
{
	const struct said *s = rig_last(r, MSG_TRANSFER_FAILED);
	ck_assert_ptr_nonnull(s);
	ck_assert_str_eq(s->to, "prefill-1");
	ck_assert_int_eq(s->fault, fault);
	ck_assert_msg(strstr(s->text, text) != NULL, "text is: %s", s->text);
	ck_assert_uint_eq(s->slot, r->slot);
	ck_assert_uint_eq(s->slot_gen, r->gen);
	ck_assert_int_eq(r->last_end, end);
	ck_assert_uint_eq(mover_open_transfers(r->m), 0);
}

static inline void word_is(enum ring_state want)
{
	uint64_t gen;
	ck_assert_int_eq(ring_peek(r->ring, r->slot, &gen), want);
	ck_assert_uint_eq(gen, r->gen);
}

enum { STEPS = 8 };

/* One step of the way, by P, D or the messager. After the last the transfer has ended well. */
static inline void way(int step)
{
	switch (step) {
	case 0: rig_publish(r, 1, 0, 10); break;
	case 2: rig_opened(r, 0); break;
	case 3: rig_compute_layer(r, 0, 2, 3, 10); break;
	case 5: rig_compute(r, 3, 10); break;
	case 7: rig_ack(r); break;
	}
	mover_turn(r->m);
}

TEST_START(steps_quiet)
{
	log_set_level("error");
}

/* Each test has a rig of its own. */
TEST_CASE("steps", .setup = setup, .teardown = teardown);

#endif
