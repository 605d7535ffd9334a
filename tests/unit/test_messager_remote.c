/* test_messager_remote.c - transfers to a decode worker of another host: what the path gets and
 * when, and how each way for it to end looks. The path is path_fake.h. Tests named after a line of
 * tests/model/table fail if the rule that the line omits is omitted here. */
#include "daemons/messager/mover_priv.h"

#include "messager_steps.h"
#include "path_fake.h"

static struct mover_via via;
static int via_is_linked;

static int linked(void *arg)
{
	(void)arg;
	return via_is_linked;
}

static int via_send(void *arg, enum msg_type type, const struct msg_head *head,
                    const ProtobufCMessage *body)
{
	if (type == MSG_LEASE_OPEN)
		ck_assert_str_eq(((const Pds__LeaseOpen *)body)->decode, "decode-1");
	if (type == MSG_KV_READY)
		ck_assert_str_eq(((const Pds__KvReady *)body)->decode, "decode-1");
	return rig_send(arg, "decode-1", D_EPOCH, type, head, body);
}

static void remote_setup(void)
{
	char text[96];
	setup();
	memset(&fake, 0, sizeof fake);
	mover_remove(r->m, r->wd);
	kv_layout_text(&r->layout, text, sizeof text);
	via_is_linked = 1;
	via = (struct mover_via){.arg = r,
	                         .name = "messager-2",
	                         .linked = linked,
	                         .send = via_send,
	                         .ops = &fake_ops,
	                         .path = fake_ops.path_new(NULL, NULL, &(struct path_hooks){0})};
	r->wd = mover_add_remote(r->m, "decode-1", D_EPOCH, text, RIG_BLOCKS, &via);
	ck_assert_ptr_nonnull(r->wd);
	r->d_linked = 0; /* there is no link to D itself */
}

static void remote_teardown(void)
{
	mover_shutdown(r->m);
	ck_assert_uint_eq(fake.n_out, 0);
	fake_ops.path_destroy(&via.path);
	ck_assert_int_eq(fake.paths, 0);
	teardown();
}

static struct outgoing *out(void)
{
	ck_assert_uint_eq(fake.n_out, 1);
	return fake.out[0];
}

static void deliver(uint64_t bytes)
{
	out()->o.delivered(out()->o.arg, bytes);
}

static uint64_t whole(void)
{
	return 3 * r->layout.block_bytes;
}

TEST_CASE("remote", .setup = remote_setup, .teardown = remote_teardown);

TEST(all_of_it)
{
	opened();
	ck_assert_uint_eq(out()->o.blocks, 3);
	ck_assert_uint_eq(out()->o.dst[2], 12);
	ck_assert_uint_eq(out()->o.to_blocks, RIG_BLOCKS);
	rig_compute_layer(r, 0, 2, 3, 8); /* two of three blocks */
	turn(MOVER_OPEN);
	ck_assert_uint_eq(out()->given, 2 * r->layout.piece_bytes[0]);
	turn(MOVER_OPEN);
	ck_assert_uint_eq(out()->given, 2 * r->layout.piece_bytes[0]); /* each once */
	rig_compute(r, 3, 10);
	turn(MOVER_OPEN);
	ck_assert_uint_eq(out()->given, whole());
	deliver(whole());
	ck_assert_uint_eq(r->wakes, 1);
	turn(MOVER_OPEN);
	word_is(RING_SENT);
	ck_assert_uint_eq(fake.n_out, 0); /* P may reuse its blocks after the mark */
	ck_assert_uint_eq(rig_count(r, MSG_KV_READY), 1);
	rig_ack(r);
	turn(MOVER_IDLE);
	ck_assert_uint_eq(rig_count(r, MSG_KV_SENT), 1);
	ck_assert_int_eq(r->last_end, END_SENT);
	ck_assert_uint_eq(r->report.bytes, whole());
	ck_assert_uint_eq(rig_written(r), 0); /* not by us */
}

/* All is sent, but one byte is not acknowledged. */
TEST(rm4_mark_when_delivered)
{
	opened();
	rig_compute(r, 3, 10);
	turn(MOVER_OPEN);
	ck_assert_uint_eq(out()->given, whole());
	deliver(whole() - 1);
	turn(MOVER_OPEN);
	word_is(RING_PENDING);
	ck_assert_uint_eq(rig_count(r, MSG_KV_READY), 0);
	deliver(1);
	turn(MOVER_OPEN);
	word_is(RING_SENT);
	ck_assert_uint_eq(rig_count(r, MSG_KV_READY), 1);
}

static const struct {
	int code;
	enum transfer_end end;
	Pds__Fault fault;
	const char *text;
} failures[] = {
	{ERR_STALE, END_REVOKED, PDS__FAULT__FAULT_LEASE_LOST, "takes no more of lease 1: it ended"},
	{ERR_IO, END_COPY_FAILED, PDS__FAULT__FAULT_INTERNAL, "it ended"},
};

TEST_LOOP(the_path_fails, 0, sizeof failures / sizeof *failures)
{
	opened();
	rig_compute(r, 3, 10);
	turn(MOVER_OPEN);
	out()->o.failed(out()->o.arg, failures[_i].code, "it ended");
	turn(MOVER_IDLE);
	failed(failures[_i].end, failures[_i].fault, failures[_i].text);
	ck_assert_uint_eq(fake.n_out, 0);
}

/* After each step of the way the link, and with it the remote worker, goes. */
TEST_LOOP(the_link_ends, 0, 5)
{
	if (_i > 0)
		asked();
	if (_i > 1)
		rig_opened(r, 0);
	if (_i > 2) {
		rig_compute(r, 3, 10);
		turn(MOVER_OPEN);
	}
	if (_i > 3) {
		deliver(whole());
		turn(MOVER_OPEN);
	}
	mover_remove(r->m, r->wd);
	ck_assert_uint_eq(fake.n_out, 0);
	if (_i > 0)
		failed(END_PEER_GONE, PDS__FAULT__FAULT_PEER_LOST,
		       "or the link to its messager, has ended");
}

TEST(p_cancels)
{
	opened();
	rig_compute(r, 3, 10);
	turn(MOVER_OPEN);
	ck_assert_int_eq(ring_cancel(r->ring, r->slot, r->gen), 0);
	turn(MOVER_IDLE);
	ck_assert_int_eq(r->last_end, END_CANCELLED);
	ck_assert_uint_eq(fake.n_out, 0);
}

TEST(p_ends)
{
	opened();
	rig_compute(r, 3, 10);
	turn(MOVER_OPEN);
	mover_remove(r->m, r->wp);
	ck_assert_uint_eq(fake.n_out, 0);
	ck_assert_int_eq(r->last_end, END_PEER_GONE);
}

TEST(nothing_arrives)
{
	opened();
	rig_compute(r, 3, 10);
	turn(MOVER_OPEN);
	r->now_us += 4 * RIG_STALL_US - 1;
	deliver(8); /* progress */
	turn(MOVER_OPEN);
	r->now_us += 4 * RIG_STALL_US - 1;
	via.progress_us = r->now_us; /* of another transfer on the same path */
	turn(MOVER_OPEN);
	r->now_us += 4 * RIG_STALL_US - 1;
	turn(MOVER_OPEN);
	r->now_us += 1;
	turn(MOVER_IDLE);
	failed(END_STALLED, PDS__FAULT__FAULT_STALLED, "8 of 1152 bytes have (limit 8000 ms)");
}

/* While P computes slowly, nothing is on the path: that is no stall of the path. */
TEST(nothing_to_send_is_no_stall)
{
	opened();
	rig_compute_layer(r, 0, 2, 3, 8);
	turn(MOVER_OPEN);
	deliver(out()->given);
	for (uint32_t i = 0; i < 6; i++) {
		r->now_us += RIG_STALL_US - 1;
		rig_compute_layer(r, 1 + i / 3, 2, 3, i % 3 + 1); /* less than a block */
		turn(MOVER_OPEN);
	}
	rig_compute_layer(r, 1, 2, 3, 8);
	turn(MOVER_OPEN); /* given just now, although nothing has arrived for long */
	ck_assert_uint_eq(rig_count(r, MSG_TRANSFER_FAILED), 0);
}

TEST(a_malformed_handle)
{
	asked();
	fake.bad_handle = 1;
	rig_opened(r, 0);
	failed(END_MALFORMED, PDS__FAULT__FAULT_INTERNAL, "handle of lease 1: a handle of 0 bytes");
}

TEST(other_blocks_than_the_lease)
{
	struct answer a;
	asked();
	rig_answer(r, &a, 1, 5, D_EPOCH);
	a.blocks[1]++;
	mover_lease_opened(r->m, "decode-1", D_EPOCH, &a.b);
	failed(END_MALFORMED, PDS__FAULT__FAULT_INTERNAL, "nothing was written");
	ck_assert_uint_eq(fake.n_out, 0);
}

TEST_LOOP(it_is_revoked, 0, 2)
{
	Pds__Lease l = PDS__LEASE__INIT;
	Pds__LeaseRevoke b = PDS__LEASE_REVOKE__INIT;
	opened();
	rig_compute(r, 3, 10);
	turn(MOVER_OPEN);
	b.lease = &l;
	b.fault = _i ? PDS__FAULT__FAULT_DRAINING : PDS__FAULT__FAULT_NONE;
	l.id = 1;
	l.epoch = D_EPOCH;
	l.generation = 4;
	mover_remote_revoked(r->m, r->wd, &b); /* another one */
	ck_assert_uint_eq(fake.n_out, 1);
	l.generation = 5;
	mover_remote_revoked(r->m, r->wd, &b);
	ck_assert_uint_eq(fake.n_out, 0);
	if (_i)
		failed(END_REVOKED, PDS__FAULT__FAULT_DRAINING, "decode-1 has given back lease 1");
	else
		failed(END_REVOKED, PDS__FAULT__FAULT_LEASE_LOST, "decode-1 has revoked lease 1");
	ck_assert_uint_eq(rig_count(r, MSG_LEASE_REVOKED), 0); /* its messager answers D */
}

TEST(it_waits_for_the_link)
{
	/* a later life of the worker is another one, and not known here yet */
	ck_assert_int_eq(mover_is_linked(r->m, "decode-1", D_EPOCH), 1);
	ck_assert_int_eq(mover_is_linked(r->m, "decode-1", D_EPOCH + 1), 0);
	via_is_linked = 0;
	rig_publish(r, 1, 0, 10);
	turn(MOVER_OPEN);
	ck_assert_uint_eq(rig_count(r, MSG_LEASE_OPEN), 0);
	via_is_linked = 1;
	turn(MOVER_OPEN);
	ck_assert_uint_eq(rig_count(r, MSG_LEASE_OPEN), 1);
}

/* Its memory is not known: waits, unless there is no way to its messager. */
TEST(no_way_to_its_messager)
{
	mover_remove(r->m, r->wd);
	rig_publish(r, 1, 0, 10);
	turn(MOVER_OPEN);
	r->unreachable = "there is no key of messager-2";
	turn(MOVER_IDLE);
	failed(END_PEER_GONE, PDS__FAULT__FAULT_PEER_LOST,
	       "no way to decode-1: there is no key of messager-2");
}

/* A restarted messager finds the slot marked: it posts KV_READY and sends nothing. */
TEST(rm7_marked_by_an_earlier_one)
{
	char text[96];
	opened();
	rig_compute(r, 3, 10);
	turn(MOVER_OPEN);
	deliver(whole());
	turn(MOVER_OPEN);
	mover_shutdown(r->m);
	mover_destroy(&r->m);
	r->m = rig_mover(r);
	rig_attach_p(r);
	kv_layout_text(&r->layout, text, sizeof text);
	r->wd = mover_add_remote(r->m, "decode-1", D_EPOCH, text, RIG_BLOCKS, &via);
	turn(MOVER_OPEN);
	ck_assert_uint_eq(rig_count(r, MSG_KV_READY), 2);
	ck_assert_uint_eq(rig_count(r, MSG_LEASE_OPEN), 1);
	ck_assert_uint_eq(fake.n_out, 0);
}

/* What an ended link has delivered does not count for the next transfer, whatever the blocks. */
TEST(rm15_bytes_of_an_ended_link_do_not_count)
{
	char text[96];
	opened();
	rig_compute(r, 3, 10);
	turn(MOVER_OPEN);
	deliver(whole() - 8);
	turn(MOVER_OPEN);
	mover_remove(r->m, r->wd);
	failed(END_PEER_GONE, PDS__FAULT__FAULT_PEER_LOST, "has ended");
	ck_assert_int_eq(ring_cancel(r->ring, r->slot, r->gen), 0);
	ring_retire(r->ring, r->slot, r->gen);
	kv_layout_text(&r->layout, text, sizeof text);
	r->wd = mover_add_remote(r->m, "decode-1", D_EPOCH, text, RIG_BLOCKS, &via);
	r->n_said = 0;
	rig_publish(r, 2, 0, 10);
	turn(MOVER_OPEN);
	rig_opened(r, 0);
	rig_compute(r, 3, 10);
	turn(MOVER_OPEN);
	ck_assert_uint_eq(out()->given, whole());
	deliver(8);
	turn(MOVER_OPEN);
	word_is(RING_PENDING);
	deliver(whole() - 8);
	turn(MOVER_OPEN);
	word_is(RING_SENT);
	ck_assert_uint_eq(rig_count(r, MSG_KV_READY), 1);
}

TEST(names)
{
	char text[96];
	kv_layout_text(&r->layout, text, sizeof text);
	/* of this host, and of another messager */
	ck_assert_ptr_null(mover_add_remote(r->m, "prefill-1", 9, text, RIG_BLOCKS, &via));
	ck_assert_ptr_null(mover_add_remote(r->m, "decode-1", D_EPOCH, text, RIG_BLOCKS, &via));
	/* a later life of it, elsewhere, replaces it */
	r->wd = mover_add_remote(r->m, "decode-1", D_EPOCH + 1, text, RIG_BLOCKS, &via);
	ck_assert_ptr_nonnull(r->wd);
	ck_assert_ptr_eq(mover_next_of(r->m, &via, NULL), r->wd);
	ck_assert_ptr_null(mover_next_of(r->m, &via, r->wd));
	/* it attaches here: it has moved */
	rig_attach_d(r);
	ck_assert_ptr_null(mover_next_of(r->m, &via, NULL));
	ck_assert_ptr_nonnull(mover_find(r->m, "prefill-1"));
	ck_assert_ptr_nonnull(mover_find(r->m, "decode-1"));
}

TEST(layouts_differ)
{
	mover_remove(r->m, r->wd);
	r->wd = mover_add_remote(r->m, "decode-1", D_EPOCH, "1x1x1:f32:4", RIG_BLOCKS, &via);
	rig_publish(r, 1, 0, 10);
	turn(MOVER_IDLE);
	failed(END_MALFORMED, PDS__FAULT__FAULT_INTERNAL, "KV layouts differ");
}
