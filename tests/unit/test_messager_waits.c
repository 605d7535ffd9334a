/* test_messager_waits.c - what the messager waits for comes late, never, or its owner ends: each
 * wait has an end that names what was missing, and a new link is told again what the old one may
 * have lost. */
/* run: threads */
#include "messager_steps.h"

/* --- waits end ----------------------------------------------------------- */

TEST(stalled_prefill)
{
	opened();
	turn(MOVER_OPEN);
	rig_compute_layer(r, 0, 2, 3, 8);
	rig_compute_layer(r, 2, 2, 3, 8);
	turn(MOVER_OPEN);
	r->now_us += RIG_STALL_US - 1;
	turn(MOVER_OPEN);
	r->now_us += 1;
	turn(MOVER_IDLE);
	failed(END_STALLED, PDS__FAULT__FAULT_STALLED, "layer 1 has 0 of 10 tokens (limit 2000 ms)");
}

TEST(progress_restarts_the_stall_clock)
{
	opened();
	for (uint32_t done = 1; done < 10; done++) {
		rig_compute_layer(r, 0, 2, 3, done);
		turn(MOVER_OPEN);
		r->now_us += RIG_STALL_US - 1;
		turn(MOVER_OPEN);
	}
	ck_assert_uint_eq(rig_count(r, MSG_TRANSFER_FAILED), 0);
}

TEST(a_job_in_the_queue_is_not_stalled)
{
	opened();
	uint32_t first = r->slot;
	uint64_t first_gen = r->gen;
	rig_publish(r, 2, 0, 10);
	turn(MOVER_OPEN);
	rig_opened(r, 0);
	for (uint32_t done = 1; done < 10; done++) {
		*ring_progress_word(r->ring, first, 0) = ring_progress_value(first_gen, done);
		r->now_us += RIG_STALL_US / 2;
		turn(MOVER_OPEN);
	}
	ck_assert_uint_eq(mover_open_transfers(r->m), 2);
	r->now_us += RIG_STALL_US;
	turn(MOVER_IDLE);
	ck_assert_uint_eq(rig_count(r, MSG_TRANSFER_FAILED), 2);
}

/* One that has begun and is then passed over, as with shortest first, is not either; nor is
 * anybody while P computes for one that still waits for D. */
TEST_LOOP(a_job_that_is_passed_over_is_not_stalled, 0, 2)
{
	opened();
	*ring_progress_word(r->ring, r->slot, 0) = ring_progress_value(r->gen, 1);
	turn(MOVER_OPEN);
	r->now_us += _i == 0 ? 0 : RIG_STALL_US - 1;
	rig_publish(r, 2, 0, 10);
	turn(MOVER_OPEN);
	if (_i == 0)
		rig_opened(r, 0);
	for (uint32_t done = 1; done < 10; done++) {
		*ring_progress_word(r->ring, r->slot, 0) = ring_progress_value(r->gen, done);
		if (done > 1)
			r->now_us += RIG_STALL_US / (_i == 0 ? 2 : 10);
		turn(MOVER_OPEN);
	}
	ck_assert_uint_eq(mover_open_transfers(r->m), 2);
	r->now_us += RIG_STALL_US;
	turn(MOVER_IDLE);
	ck_assert_uint_eq(rig_count(r, MSG_TRANSFER_FAILED), 2);
}

/* A second job that the messager watches beside the first; P has both in its schedule. */
struct beside {
	uint32_t slot;
	uint64_t gen;
};

static struct beside two_jobs(void)
{
	opened();
	struct beside first = {r->slot, r->gen};
	rig_publish(r, 2, 0, 10);
	turn(MOVER_OPEN);
	rig_opened(r, 0);
	turn(MOVER_OPEN);
	return first;
}

/* A step of P computes a token of the second job; the first is in hand, or P has lost it. */
static void one_step(const struct beside *first, int in_schedule, uint32_t done)
{
	ring_step(r->ring);
	if (in_schedule)
		ring_schedule(r->ring, first->slot, first->gen);
	ring_schedule(r->ring, r->slot, r->gen);
	*ring_progress_word(r->ring, r->slot, 0) = ring_progress_value(r->gen, done);
	r->now_us += RIG_STALL_US / 2;
	turn(MOVER_OPEN);
}

/* P works on others for many times the stall limit, and says that the job waits for its turn: it is
 * not lost, and arrives. */
TEST(a_job_that_waits_for_its_turn)
{
	struct beside first = two_jobs();
	for (uint32_t done = 1; done < 10; done++)
		one_step(&first, 1, done);
	ck_assert_uint_eq(mover_open_transfers(r->m), 2);
	r->slot = first.slot;
	r->gen = first.gen;
	r->lease = 1;
	rig_compute(r, 3, 10);
	turn(MOVER_OPEN);
	ck_assert_uint_eq(rig_last(r, MSG_KV_READY)->lease, 1);
	ck_assert_uint_eq(rig_count(r, MSG_TRANSFER_FAILED), 0);
}

/* P works on others and has lost sight of this job, at once (0) or after a while in its schedule
 * (1): it ends at the stall limit, the others go on. */
TEST_LOOP(a_job_that_prefill_has_lost, 0, 2)
{
	struct beside first = two_jobs();
	uint32_t done = 1;
	if (_i)
		for (; done < 4; done++)
			one_step(&first, 1, done);
	one_step(&first, 0, done++); /* may be about to say it */
	one_step(&first, 0, done++);
	ck_assert_uint_eq(mover_open_transfers(r->m), 2);
	one_step(&first, 0, done++);
	ck_assert_uint_eq(mover_open_transfers(r->m), 1);
	const struct said *s = rig_last(r, MSG_TRANSFER_FAILED);
	ck_assert_ptr_nonnull(s);
	ck_assert_uint_eq(s->slot, first.slot);
	ck_assert_int_eq(s->fault, PDS__FAULT__FAULT_STALLED);
	ck_assert_ptr_nonnull(strstr(s->text, "no progress with this prompt, which is not in its "
	                                      "schedule, for 2000 ms"));
	for (; done < 10; done++)
		one_step(&first, 0, done);
	ck_assert_uint_eq(mover_open_transfers(r->m), 1);
}

/* Published while P is in a step that takes far longer than the limit: it is in no step's schedule
 * yet, and waits for the next. */
TEST_LOOP(a_job_that_comes_in_the_middle_of_a_long_step, 0, 2)
{
	ring_step(r->ring);
	rig_publish(r, 2, 0, 10);
	struct beside first = {r->slot, r->gen};
	ring_schedule(r->ring, r->slot, r->gen);
	turn(MOVER_OPEN);
	rig_opened(r, 0);
	rig_publish(r, 1, 0, 10);
	turn(MOVER_OPEN);
	rig_opened(r, 0);
	if (_i) { /* the next step begins without it: it was not in the schedule's inbox yet */
		ring_step(r->ring);
		ring_schedule(r->ring, first.slot, first.gen);
	}
	for (uint32_t done = 1; done < 10; done++) {
		*ring_progress_word(r->ring, first.slot, 0) = ring_progress_value(first.gen, done);
		r->now_us += RIG_STALL_US / 2;
		turn(MOVER_OPEN);
	}
	ck_assert_uint_eq(mover_open_transfers(r->m), 2);
}

/* The messager has had no processor for longer than the limit: what P has done meanwhile, for
 * whichever of the two, counts for both. */
TEST_LOOP(a_messager_that_slept, 0, 2)
{
	struct beside first = two_jobs(), *done = _i ? &first : &(struct beside){r->slot, r->gen};
	r->now_us += 3 * RIG_STALL_US;
	ring_step(r->ring);
	ring_schedule(r->ring, first.slot, first.gen);
	ring_schedule(r->ring, r->slot, r->gen);
	*ring_progress_word(r->ring, done->slot, 0) = ring_progress_value(done->gen, 1);
	turn(MOVER_OPEN);
	ck_assert_uint_eq(mover_open_transfers(r->m), 2);
}

/* In the schedule, but nobody progresses: P hangs. */
TEST(a_schedule_that_hangs)
{
	two_jobs();
	r->now_us += RIG_STALL_US;
	turn(MOVER_IDLE);
	ck_assert_uint_eq(rig_count(r, MSG_TRANSFER_FAILED), 2);
}

TEST_LOOP(deadline_after_each_step, 0, STEPS - 1)
{
	for (int i = 0; i <= _i; i++)
		way(i);
	r->now_us += 60000000;
	turn(MOVER_IDLE);
	failed(END_DEADLINE, PDS__FAULT__FAULT_DEADLINE, "deadline has passed");
	rig_ack(r);
	rig_opened(r, 0);
	turn(MOVER_IDLE);
	ck_assert_uint_eq(rig_count(r, MSG_KV_SENT), 0);
}

TEST(no_answer_to_lease_open)
{
	asked();
	r->now_us += RIG_STALL_US;
	turn(MOVER_IDLE);
	failed(END_STALLED, PDS__FAULT__FAULT_STALLED, "the answer to LEASE_OPEN of decode-1");
}

TEST(decode_comes_late)
{
	mover_remove(r->m, r->wd);
	rig_publish(r, 1, 0, 10);
	turn(MOVER_OPEN);
	r->d_linked = 0;
	rig_attach_d(r);
	r->unreachable = "it is of another host"; /* which is not asked: its memory is here */
	turn(MOVER_OPEN);
	ck_assert_uint_eq(rig_count(r, MSG_LEASE_OPEN), 0);
	r->p_linked = 0;
	r->d_linked = 1;
	turn(MOVER_OPEN);
	ck_assert_uint_eq(rig_count(r, MSG_LEASE_OPEN), 0);
	r->p_linked = 1;
	turn(MOVER_OPEN);
	ck_assert_uint_eq(rig_count(r, MSG_LEASE_OPEN), 1);
}

TEST(decode_never_comes)
{
	mover_remove(r->m, r->wd);
	rig_publish(r, 1, 0, 10);
	turn(MOVER_OPEN);
	r->now_us += RIG_STALL_US;
	turn(MOVER_IDLE);
	failed(END_STALLED, PDS__FAULT__FAULT_STALLED, "the memory of decode-1 (limit 2000 ms)");
}

TEST(decode_has_restarted)
{
	static struct ring_transfer t;
	rig_transfer(r, &t, 1, 0, 10);
	t.lease_epoch = D_EPOCH - 1;
	rig_post(r, &t);
	turn(MOVER_IDLE);
	failed(END_PEER_GONE, PDS__FAULT__FAULT_PEER_LOST, "decode-1 has restarted");
}

/* The same for one that an earlier messager has delivered: D's new life knows nothing of it. */
TEST(decode_has_restarted_since_the_mark)
{
	static struct ring_transfer t;
	rig_transfer(r, &t, 1, 0, 10);
	t.lease_epoch = D_EPOCH - 1;
	rig_post(r, &t);
	ck_assert_int_eq(ring_mark_sent(r->ring, r->slot, r->gen), 0);
	turn(MOVER_IDLE);
	failed(END_PEER_GONE, PDS__FAULT__FAULT_PEER_LOST, "decode-1 has restarted");
	ck_assert_uint_eq(rig_count(r, MSG_KV_READY), 0);
}

TEST_LOOP(decode_ends_after_each_step, 0, STEPS - 1)
{
	for (int i = 0; i <= _i; i++)
		way(i);
	mover_remove(r->m, r->wd);
	if (_i >= 1)
		failed(END_PEER_GONE, PDS__FAULT__FAULT_PEER_LOST, "decode-1 has ended");
	ck_assert_ptr_null(mover_find(r->m, "decode-1"));
}

TEST_LOOP(prefill_ends_after_each_step, 0, STEPS)
{
	for (int i = 0; i <= _i; i++)
		way(i);
	unsigned said = r->n_said;
	mover_remove(r->m, r->wp);
	turn(MOVER_IDLE);
	rig_opened(r, 0);
	rig_ack(r);
	rig_revoke(r); /* D's fence */
	turn(MOVER_IDLE);
	ck_assert_uint_eq(r->n_said, said + 1);
	ck_assert_ptr_null(mover_find(r->m, "prefill-1"));
}

/* --- links that break ---------------------------------------------------- */

TEST(kv_ready_is_posted_again_on_a_new_link)
{
	posted();
	r->d_linked = 0;
	turn(MOVER_OPEN);
	r->d_linked = 1;
	mover_linked(r->m, "decode-1", D_EPOCH);
	turn(MOVER_OPEN);
	ck_assert_uint_eq(rig_count(r, MSG_KV_READY), 2);
	r->d_linked = 0;
	turn(MOVER_OPEN);
	r->now_us += RIG_STALL_US;
	turn(MOVER_IDLE);
	failed(END_STALLED, PDS__FAULT__FAULT_STALLED, "KV_READY is not acknowledged");
}

TEST(lease_open_is_said_again_on_a_new_link)
{
	asked();
	mover_linked(r->m, "decode-1", D_EPOCH);
	turn(MOVER_OPEN);
	ck_assert_uint_eq(rig_count(r, MSG_LEASE_OPEN), 2);
	mover_linked(r->m, "decode-1", D_EPOCH + 1); /* another life: none of ours */
	turn(MOVER_OPEN);
	ck_assert_uint_eq(rig_count(r, MSG_LEASE_OPEN), 2);
}

TEST(an_end_is_said_again_on_a_new_link)
{
	posted();
	rig_ack(r);
	turn(MOVER_IDLE);
	mover_linked(r->m, "prefill-1", P_EPOCH); /* KV_SENT may be lost: the slot still says so */
	turn(MOVER_OPEN);
	ck_assert_uint_eq(rig_count(r, MSG_KV_READY), 2);
	rig_ack(r);
	turn(MOVER_IDLE);
	ck_assert_uint_eq(rig_count(r, MSG_KV_SENT), 2);
	ring_retire(r->ring, r->slot, r->gen);
	rig_publish(r, 2, 0, 10);
	turn(MOVER_OPEN);
	r->p_linked = 0;
	rig_opened(r, 1);
	turn(MOVER_IDLE); /* nothing to do until the link is up */
	ck_assert_uint_eq(rig_count(r, MSG_TRANSFER_FAILED), 0);
	r->p_linked = 1;
	mover_linked(r->m, "prefill-1", P_EPOCH);
	turn(MOVER_IDLE);
	failed(END_REFUSED, PDS__FAULT__FAULT_LEASE_LOST, "refused");
	mover_linked(r->m, "prefill-1", P_EPOCH);
	turn(MOVER_IDLE);
	ck_assert_uint_eq(rig_count(r, MSG_TRANSFER_FAILED), 2);
	ring_cancel(r->ring, r->slot, r->gen);
	mover_linked(r->m, "prefill-1", P_EPOCH);
	turn(MOVER_IDLE);
	ck_assert_uint_eq(rig_count(r, MSG_TRANSFER_FAILED), 2);
}

TEST(a_full_window_is_tried_again)
{
	r->full = 1;
	rig_publish(r, 1, 0, 10);
	turn(MOVER_OPEN);
	r->full = 0;
	turn(MOVER_OPEN);
	ck_assert_uint_eq(rig_count(r, MSG_LEASE_OPEN), 1);
	rig_opened(r, 0);
	rig_compute(r, 3, 10);
	r->full = 1;
	turn(MOVER_OPEN);
	word_is(RING_SENT);
	r->full = 0;
	turn(MOVER_OPEN);
	ck_assert_uint_eq(rig_count(r, MSG_KV_READY), 1);
	r->full = 1;
	rig_revoke(r);
	turn(MOVER_OPEN);
	ck_assert_uint_eq(rig_count(r, MSG_LEASE_REVOKED), 0);
	r->full = 0;
	turn(MOVER_IDLE);
	ck_assert_uint_eq(rig_count(r, MSG_LEASE_REVOKED), 1);
	failed(END_REVOKED, PDS__FAULT__FAULT_LEASE_LOST, "revoked");
}

/* LEASE_OPEN (0) or KV_READY (1) cannot be sent for as long as the stall limit. */
TEST_LOOP(a_window_that_stays_full, 0, 2)
{
	if (_i == 1) {
		opened();
		rig_compute(r, 3, 10);
	} else {
		rig_publish(r, 1, 0, 10);
	}
	r->full = 1;
	turn(MOVER_OPEN);
	r->now_us += RIG_STALL_US - 1;
	turn(MOVER_OPEN);
	ck_assert_uint_eq(mover_open_transfers(r->m), 1);
	r->now_us += 1;
	turn(MOVER_OPEN);
	ck_assert_uint_eq(mover_open_transfers(r->m), 0);
	r->full = 0;
	turn(MOVER_IDLE);
	failed(END_STALLED, PDS__FAULT__FAULT_STALLED,
	       _i == 1 ? "the link (KV_READY is not acknowledged)" : "a link of decode-1");
}

/* A link that restarts has lost the question; an answer to the old one opens nothing yet. */
TEST(an_answer_between_two_questions)
{
	asked();
	r->full = 1;
	mover_linked(r->m, "decode-1", D_EPOCH);
	rig_opened(r, 0);
	rig_compute(r, 3, 10);
	turn(MOVER_OPEN);
	ck_assert_uint_eq(rig_written(r), 0);
	r->full = 0;
	turn(MOVER_OPEN);
	ck_assert_uint_eq(rig_count(r, MSG_LEASE_OPEN), 2);
	rig_opened(r, 0);
	turn(MOVER_OPEN);
	ck_assert(rig_all_arrived(r, 3));
}

TEST(a_revocation_of_another_life_is_not_answered)
{
	opened();
	Pds__Lease l = PDS__LEASE__INIT;
	Pds__LeaseRevoke b = PDS__LEASE_REVOKE__INIT;
	const struct msg_head head = {{7, 1}, 1, 0};
	l.id = 1;
	l.epoch = D_EPOCH;
	l.generation = 5;
	b.lease = &l;
	mover_lease_revoke(r->m, "decode-1", D_EPOCH + 1, &head, &b);
	mover_lease_revoke(r->m, "decode-2", D_EPOCH + 1, &head, &b);
	b.lease = NULL;
	mover_lease_revoke(r->m, "decode-1", D_EPOCH, &head, &b);
	ck_assert_uint_eq(rig_count(r, MSG_LEASE_REVOKED), 0);
	ck_assert_uint_eq(mover_open_transfers(r->m), 1);
}
