/* test_messager_inbound.c - leases that another host's messager writes: what D and the other end
 * are told, and when. The path is path_fake.h; D is attached as in messager_rig.h. Tests named
 * after a line of tests/model/table fail if the rule that the line omits is omitted here. The last
 * test walks through random orders of all events. */
#include "daemons/messager/inbound.h"
#include "messager_steps.h"
#include "path_fake.h"

#include <stdlib.h>

static struct inbounds *in;
static struct transports transports;
static struct inbound_link *link_a, *link_b;
static int peer_a, peer_b; /* only their addresses matter */
static int link_full;

/* What the other ends were sent. */
static struct {
	void *peer;
	enum msg_type type;
	int refused;
	size_t handle_bytes;
	uint64_t lease;
	char transport[64]; /* of PATH */
	Pds__Fault fault;
} told[512];
static unsigned n_told;

static int send_link(void *arg, void *peer, enum msg_type type, const struct msg_head *head,
                     const ProtobufCMessage *body)
{
	(void)arg, (void)head;
	if (link_full)
		return ERR_FULL;
	if (n_told == sizeof told / sizeof *told)
		n_told = 0;
	told[n_told].peer = peer;
	told[n_told].type = type;
	told[n_told].lease = 0;
	told[n_told].fault = PDS__FAULT__FAULT_NONE;
	if (type == MSG_PATH)
		snprintf(told[n_told].transport, sizeof told->transport, "%s",
		         ((const Pds__Path *)body)->transport);
	if (type == MSG_LEASE_OPENED) {
		const Pds__LeaseOpened *m = (const Pds__LeaseOpened *)body;
		ck_assert_str_eq(m->decode, "decode-1");
		told[n_told].refused = m->refused;
		told[n_told].handle_bytes = m->handle.len;
		told[n_told].lease = m->lease->id;
	}
	if (type == MSG_LEASE_REVOKE)
		told[n_told].fault = ((const Pds__LeaseRevoke *)body)->fault;
	n_told++;
	return 0;
}

static unsigned count_told(void *peer, enum msg_type type)
{
	unsigned n = 0;
	for (unsigned i = 0; i < n_told; i++)
		n += told[i].type == type && told[i].peer == peer;
	return n;
}

static void wake(void *arg)
{
	(void)arg;
}

static int fence(void *arg, const struct lease_key *k)
{
	(void)arg;
	return inbound_fence(in, k);
}

/* The link comes up, and the other end says which transports it has. */
static struct inbound_link *link_up(void *peer, const char *name, const char *list)
{
	Pds__Path m = PDS__PATH__INIT;
	struct inbound_link *l = inbound_up(in, peer, name, 7);
	m.data = (ProtobufCBinaryData){strlen(list), (uint8_t *)list};
	inbound_path(l, &m);
	return l;
}

static void in_setup(void)
{
	setup();
	memset(&fake, 0, sizeof fake);
	mover_shutdown(r->m);
	mover_destroy(&r->m);
	const struct mover_limits limits = {RIG_STALL_US, 1 << 20};
	r->m = mover_new(&(struct mover_out){.arg = r,
	                                     .now_us = rig_now,
	                                     .linked = rig_linked,
	                                     .send = rig_send,
	                                     .ended = rig_ended,
	                                     .fence = fence},
	                 &limits);
	rig_attach_d(r);
	transports = (struct transports){.at = {{&fake_ops, NULL}}, .n = 1};
	in = inbound_new(&(struct inbound_out){NULL, send_link, wake}, r->m, &transports);
	n_told = 0;
	link_full = 0;
	link_a = link_up(&peer_a, "messager-a", "rdma,fake");
	link_b = link_up(&peer_b, "messager-a", "fake");
	ck_assert_uint_eq(count_told(&peer_a, MSG_POOLS), 1);
}

static void in_teardown(void)
{
	inbound_destroy(&in);
	ck_assert_uint_eq(fake.n_in, 0);
	ck_assert_int_eq(fake.intakes, 0);
	teardown();
}

static Pds__Lease lease(uint64_t id)
{
	Pds__Lease l = PDS__LEASE__INIT;
	l.id = id;
	l.epoch = D_EPOCH;
	l.generation = 5;
	return l;
}

static void ask(struct inbound_link *l, uint64_t id)
{
	Pds__Lease k = lease(id);
	Pds__LeaseOpen m = PDS__LEASE_OPEN__INIT;
	m.lease = &k;
	m.decode = "decode-1";
	m.prefill = "prefill-9";
	m.prefill_epoch = P_EPOCH;
	r->n_said = 0;
	inbound_lease_open(l, &(struct msg_head){{7, id}, 1, 0}, &m);
}

static void answer(uint64_t id, int refused)
{
	static struct ring_transfer t;
	struct answer a;
	rig_transfer(r, &t, id, 0, 10);
	rig_grant(r, &t);
	rig_answer(r, &a, id, 5, D_EPOCH);
	a.b.refused = refused;
	a.b.prefill = "prefill-9";
	a.b.prefill_epoch = P_EPOCH;
	inbound_lease_opened(in, "decode-1", D_EPOCH, &a.b);
}

static void ready(struct inbound_link *l, uint64_t id)
{
	Pds__Lease k = lease(id);
	Pds__KvReady m = PDS__KV_READY__INIT;
	m.lease = &k;
	m.decode = "decode-1";
	m.prefill = "prefill-9";
	m.prefill_epoch = P_EPOCH;
	m.bytes = 77;
	r->n_said = 0;
	inbound_kv_ready(l, &(struct msg_head){{7, id}, 1, 0}, &m);
}

static void acked(uint64_t id)
{
	Pds__Lease k = lease(id);
	Pds__KvReadyAck m = PDS__KV_READY_ACK__INIT;
	m.lease = &k;
	m.prefill = "prefill-9";
	m.prefill_epoch = P_EPOCH;
	inbound_kv_ready_ack(in, "decode-1", D_EPOCH, &m);
}

static void d_revokes(uint64_t id)
{
	r->lease = id;
	r->n_said = 0;
	rig_revoke(r);
}

static void ask_and_open(struct inbound_link *l, uint64_t id)
{
	ask(l, id);
	ck_assert_uint_eq(rig_count(r, MSG_LEASE_OPEN), 1);
	ck_assert_str_eq(rig_last(r, MSG_LEASE_OPEN)->prefill, "prefill-9");
	ck_assert_str_eq(rig_last(r, MSG_LEASE_OPEN)->messager, "messager-a");
	answer(id, 0);
}

static void new_link(void)
{
	r->n_said = 0;
	mover_linked(r->m, "decode-1", D_EPOCH);
	inbound_linked(in, "decode-1", D_EPOCH);
}

TEST_CASE("inbound", .setup = in_setup, .teardown = in_teardown);

TEST(all_of_it)
{
	ask_and_open(link_a, 1);
	ck_assert_uint_eq(count_told(&peer_a, MSG_LEASE_OPENED), 1);
	ck_assert_uint_eq(told[n_told - 1].handle_bytes, 1);
	ck_assert_uint_eq(fake.n_in, 1);
	ck_assert_uint_eq(fake.in[0]->o.blocks, 3);
	ck_assert_uint_eq(fake.in[0]->dst_last, 12);
	fake.in[0]->complete = 1;
	ready(link_a, 1);
	ck_assert_uint_eq(fake.n_in, 0);
	ck_assert_uint_eq(rig_count(r, MSG_KV_READY), 1);
	ck_assert_str_eq(rig_last(r, MSG_KV_READY)->messager, "messager-a");
	ck_assert_uint_eq(count_told(&peer_a, MSG_KV_READY_ACK), 0);
	acked(1);
	ck_assert_uint_eq(count_told(&peer_a, MSG_KV_READY_ACK), 1);
	ck_assert_uint_eq(inbound_count(in), 0);
	acked(1); /* again: nobody waits for it */
	ck_assert_uint_eq(count_told(&peer_a, MSG_KV_READY_ACK), 1);
}

TEST(rm5_ready_before_closed)
{
	ask_and_open(link_a, 1);
	fake.in[0]->complete = 1;
	fake.closes_later = 1;
	ready(link_a, 1);
	inbound_turn(in);
	ck_assert_uint_eq(rig_count(r, MSG_KV_READY), 0);
	fake_closed(fake.in[0]);
	ck_assert_uint_eq(rig_count(r, MSG_KV_READY), 1);
}

/* The sender said KV_READY with bytes missing. */
TEST(rm4_an_incomplete_lease_is_refused)
{
	ask_and_open(link_a, 1);
	ready(link_a, 1);
	ck_assert_uint_eq(rig_count(r, MSG_KV_READY), 0);
	ck_assert_uint_eq(count_told(&peer_a, MSG_LEASE_REVOKE), 1);
	ck_assert_uint_eq(inbound_count(in), 0);
}

/* In each state of the lease; with 6 and 7 the path needs time to close it. */
TEST_LOOP(rm2_revoked_is_said_when_it_is_closed, 0, 8)
{
	fake.closes_later = _i >= 6;
	if (_i > 0)
		ask(link_a, 1);
	if (_i > 1)
		answer(1, 0);
	if (_i == 3 || _i == 4 || _i == 5 || _i == 7) {
		fake.in[0]->complete = 1;
		r->full = _i == 3;
		ready(link_a, 1);
		r->full = 0;
	}
	if (_i == 5) {
		link_full = 1;
		acked(1);
	}
	d_revokes(1);
	if (_i >= 6) {
		ck_assert_uint_eq(rig_count(r, MSG_LEASE_REVOKED), 0);
		new_link(); /* which sends what is owed */
		turn(MOVER_IDLE);
		ck_assert_uint_eq(rig_count(r, MSG_LEASE_REVOKED), 0);
		fake_closed(fake.in[0]);
		ck_assert_uint_eq(rig_count(r, MSG_KV_READY), 0);
	}
	ck_assert_uint_eq(rig_count(r, MSG_LEASE_REVOKED), 1);
	ck_assert_uint_eq(fake.n_in, 0);
	ck_assert_uint_eq(count_told(&peer_a, MSG_LEASE_REVOKE), _i > 0 && _i != 5);
	link_full = 0;
	inbound_turn(in);
	ck_assert_uint_eq(inbound_count(in), 0);
}

/* Why D revokes a lease goes on to the host of the prefill worker. */
TEST_LOOP(a_lease_is_given_back_in_order, 0, 2)
{
	Pds__Fault fault = _i ? PDS__FAULT__FAULT_DRAINING : PDS__FAULT__FAULT_LEASE_LOST;
	ask_and_open(link_a, 1);
	n_told = 0;
	r->lease = 1;
	rig_revoke_by(r, fault);
	ck_assert_uint_eq(n_told, 1);
	ck_assert_int_eq(told[0].type, MSG_LEASE_REVOKE);
	ck_assert_int_eq(told[0].fault, fault);
}

/* The other host counts as dead: that alone closes nothing. */
TEST_LOOP(rm1_partition_is_no_fence, 0, 2)
{
	fake.closes_later = _i;
	ask_and_open(link_a, 1);
	inbound_down(link_a);
	ck_assert_int_eq(fake.intakes, 1 + _i);
	d_revokes(1);
	ck_assert_uint_eq(rig_count(r, MSG_LEASE_REVOKED), !_i);
	turn(MOVER_IDLE);
	ck_assert_uint_eq(rig_count(r, MSG_LEASE_REVOKED), !_i);
	if (_i)
		fake_closed(fake.in[0]);
	ck_assert_uint_eq(rig_count(r, MSG_LEASE_REVOKED), 1);
	ck_assert_int_eq(fake.intakes, 1);
	ck_assert_uint_eq(count_told(&peer_a, MSG_LEASE_REVOKE), 0);
}

/* KV_READY has come: D is told although the other end is gone. */
TEST(the_link_ends_after_ready)
{
	ask_and_open(link_a, 1);
	fake.in[0]->complete = 1;
	fake.closes_later = 1;
	ready(link_a, 1);
	inbound_down(link_a);
	fake_closed(fake.in[0]);
	ck_assert_uint_eq(rig_count(r, MSG_KV_READY), 1);
	acked(1);
	ck_assert_uint_eq(inbound_count(in), 0);
	ck_assert_int_eq(fake.intakes, 1);
}

/* The link ends with the lease open, and the sender asks again over the next one. */
TEST(rm6_the_old_handle_closes_with_its_link)
{
	ask_and_open(link_a, 1);
	inbound_down(link_a);
	ck_assert_uint_eq(fake.n_in, 0);
	ck_assert_uint_eq(inbound_count(in), 0);
	link_a = link_up(&peer_a, "messager-a", "fake");
	ask_and_open(link_a, 1);
	ck_assert_uint_eq(fake.n_in, 1);
	ck_assert_uint_eq(count_told(&peer_a, MSG_LEASE_OPENED), 2);
}

/* As before, but the path needs time to close: the question waits for it. */
TEST(rm17_asked_while_the_old_handle_closes)
{
	fake.closes_later = 1;
	ask_and_open(link_a, 1);
	inbound_down(link_a);
	link_a = link_up(&peer_a, "messager-a", "fake");
	ask(link_a, 1);
	ck_assert_int_eq(inbound_turn(in), 1);
	ck_assert_uint_eq(rig_count(r, MSG_LEASE_OPEN), 0);
	fake_closed(fake.in[0]);
	ck_assert_uint_eq(fake.n_in, 0);
	inbound_turn(in);
	ck_assert_uint_eq(rig_count(r, MSG_LEASE_OPEN), 1);
	answer(1, 0);
	ck_assert_uint_eq(fake.n_in, 1);
}

/* The sender has restarted, and its last life's link is still up: the new question waits until the
 * old life cannot write any more. */
TEST(rm14_asked_again_over_another_link)
{
	fake.closes_later = 1;
	ask_and_open(link_a, 1);
	ask(link_b, 1);
	inbound_turn(in);
	ck_assert_uint_eq(rig_count(r, MSG_LEASE_OPEN), 0);
	fake_closed(fake.in[0]);
	inbound_turn(in);
	ck_assert_uint_eq(rig_count(r, MSG_LEASE_OPEN), 1);
	answer(1, 0);
	ck_assert_uint_eq(count_told(&peer_b, MSG_LEASE_OPENED), 1);
	ck_assert_uint_eq(count_told(&peer_a, MSG_LEASE_OPENED), 1);
}

TEST(rm14_what_it_opened_closes_first)
{
	ask(link_a, 1);
	ask(link_a, 1);
	ck_assert_uint_eq(inbound_count(in), 1);
	answer(1, 0);
	ck_assert_uint_eq(fake.n_in, 1);
	ask(link_a, 1); /* after the answer */
	ck_assert_uint_eq(fake.n_in, 0);
	ck_assert_uint_eq(rig_count(r, MSG_LEASE_OPEN), 1);
	answer(1, 0);
	ck_assert_uint_eq(fake.n_in, 1);
}

TEST(rm23_revoked_before_it_is_opened)
{
	ask(link_a, 1);
	d_revokes(1);
	ck_assert_uint_eq(rig_count(r, MSG_LEASE_REVOKED), 1);
	answer(1, 0);
	ck_assert_uint_eq(fake.n_in, 0);
	ck_assert_uint_eq(inbound_count(in), 0);
	ck_assert_uint_eq(count_told(&peer_a, MSG_LEASE_REVOKE), 1);
	ck_assert_uint_eq(count_told(&peer_a, MSG_LEASE_OPENED), 0);
}

/* Answers of D to nobody's question: before one was passed on, to the question of an ended link, a
 * second time, and after the transfer. */
TEST(rm24_answer_not_asked_for)
{
	fake.closes_later = 1;
	answer(1, 0);
	ck_assert_uint_eq(fake.n_in, 0);
	ask(link_b, 1);
	inbound_down(link_b);
	link_b = link_up(&peer_b, "messager-a", "fake");
	answer(1, 0);
	ck_assert_uint_eq(fake.n_in, 0);
	ask_and_open(link_b, 1);
	answer(1, 0);
	ck_assert_uint_eq(fake.n_in, 1);
	ask(link_a, 1); /* waits for the handle of link_b to close */
	answer(1, 0);
	ck_assert_uint_eq(fake.n_in, 1);
	ck_assert_uint_eq(count_told(&peer_a, MSG_LEASE_OPENED), 0);
	fake_closed(fake.in[0]);
	inbound_turn(in);
	answer(1, 0);
	ck_assert_uint_eq(fake.n_in, 1);
	fake.in[0]->complete = 1;
	fake.closes_later = 0;
	ready(link_a, 1);
	acked(1);
	answer(1, 0);
	ck_assert_uint_eq(fake.n_in, 0);
	ck_assert_uint_eq(inbound_count(in), 0);
}

/* A restarted sender's slot is marked, and this process does not know the lease. */
TEST(rm8_ready_of_an_unknown_lease)
{
	ready(link_a, 1);
	inbound_turn(in);
	ck_assert_uint_eq(rig_count(r, MSG_KV_READY), 1);
	acked(1);
	ck_assert_uint_eq(count_told(&peer_a, MSG_KV_READY_ACK), 1);
}

/* The same, while the path of the sender's last life may still write: that link is up, or has
 * ended. */
TEST_LOOP(rm16_ready_while_the_old_handle_closes, 0, 2)
{
	fake.closes_later = 1;
	ask_and_open(link_b, 1);
	if (_i) {
		inbound_down(link_b);
		link_b = link_up(&peer_b, "messager-a", "fake");
	}
	ready(link_a, 1);
	ck_assert_int_eq(inbound_turn(in), 1);
	ck_assert_uint_eq(rig_count(r, MSG_KV_READY), 0);
	fake_closed(fake.in[0]);
	inbound_turn(in);
	ck_assert_uint_eq(rig_count(r, MSG_KV_READY), 1);
	acked(1);
	ck_assert_uint_eq(count_told(&peer_a, MSG_KV_READY_ACK), 1);
}

TEST(refused)
{
	ask(link_a, 1);
	answer(1, 1);
	ck_assert_uint_eq(count_told(&peer_a, MSG_LEASE_OPENED), 1);
	ck_assert_int_eq(told[n_told - 1].refused, 1);
	ask(link_a, 2);
	fake.refuses = 1;
	answer(2, 0);
	ck_assert_int_eq(told[n_told - 1].refused, 1);
	fake.refuses = 0;
	ask(link_a, 3);
	link_full = 1; /* the answer cannot be passed on: the lease stays closed */
	answer(3, 0);
	ck_assert_uint_eq(fake.n_in, 0);
	ck_assert_uint_eq(inbound_count(in), 0);
}

TEST_LOOP(blocks_that_are_not_there, 0, 3)
{
	struct answer a;
	static struct ring_transfer t;
	ask(link_a, 1);
	rig_transfer(r, &t, 1, 0, 10);
	rig_grant(r, &t);
	rig_answer(r, &a, 1, 5, D_EPOCH);
	a.b.prefill = "prefill-9";
	a.b.prefill_epoch = P_EPOCH;
	if (_i == 0)
		a.blocks[2] = RIG_BLOCKS;
	else if (_i == 1)
		a.b.n_generations--;
	else
		a.b.n_blocks = a.b.n_generations = 0;
	inbound_lease_opened(in, "decode-1", D_EPOCH, &a.b);
	ck_assert_uint_eq(fake.n_in, 0);
	ck_assert_int_eq(told[n_told - 1].refused, 1);
}

TEST(another_worker_answers)
{
	struct answer a;
	static struct ring_transfer t;
	ask(link_a, 1);
	rig_transfer(r, &t, 1, 0, 10);
	rig_grant(r, &t);
	rig_answer(r, &a, 1, 5, D_EPOCH);
	a.b.prefill = "prefill-9";
	a.b.prefill_epoch = P_EPOCH;
	inbound_lease_opened(in, "decode-2", D_EPOCH, &a.b);
	inbound_lease_opened(in, "decode-1", D_EPOCH + 1, &a.b);
	ck_assert_uint_eq(fake.n_in, 0);
	inbound_lease_opened(in, "decode-1", D_EPOCH, &a.b);
	ck_assert_uint_eq(fake.n_in, 1);
}

TEST(decode_ends)
{
	ask_and_open(link_a, 1);
	inbound_worker_gone(in, "decode-1", D_EPOCH);
	mover_remove(r->m, r->wd);
	inbound_pools_changed(in);
	ck_assert_uint_eq(fake.n_in, 0);
	ck_assert_uint_eq(count_told(&peer_a, MSG_POOLS), 2);
	ask(link_a, 2); /* it is not here any more */
	ck_assert_int_eq(told[n_told - 1].refused, 1);
}

TEST(asked_when_decode_is_linked)
{
	r->d_linked = 0;
	ask(link_a, 1);
	ck_assert_uint_eq(rig_count(r, MSG_LEASE_OPEN), 0);
	ck_assert_int_eq(inbound_turn(in), 1);
	r->d_linked = 1;
	inbound_turn(in);
	ck_assert_uint_eq(rig_count(r, MSG_LEASE_OPEN), 1);
}

TEST(rm26_asked_again_over_a_new_link_to_decode)
{
	ask(link_a, 1);
	ck_assert_uint_eq(rig_count(r, MSG_LEASE_OPEN), 1);
	new_link();
	ck_assert_uint_eq(rig_count(r, MSG_LEASE_OPEN), 1);
	answer(1, 0);
	ck_assert_uint_eq(fake.n_in, 1);
}

TEST(rm25_ready_again_over_a_new_link_to_decode)
{
	ask_and_open(link_a, 1);
	fake.in[0]->complete = 1;
	ready(link_a, 1);
	ck_assert_uint_eq(rig_count(r, MSG_KV_READY), 1);
	new_link();
	ck_assert_uint_eq(rig_count(r, MSG_KV_READY), 1);
	acked(1);
	ck_assert_uint_eq(count_told(&peer_a, MSG_KV_READY_ACK), 1);
}

TEST(full_windows)
{
	ask_and_open(link_a, 1);
	fake.in[0]->complete = 1;
	r->full = 1;
	ready(link_a, 1);
	ck_assert_int_eq(inbound_turn(in), 1);
	r->full = 0;
	inbound_turn(in);
	ck_assert_uint_eq(rig_count(r, MSG_KV_READY), 1);
	link_full = 1;
	acked(1);
	inbound_pools_changed(in);
	ck_assert_int_eq(inbound_turn(in), 1);
	link_full = 0;
	ck_assert_int_eq(inbound_turn(in), 0);
	ck_assert_uint_eq(count_told(&peer_a, MSG_KV_READY_ACK), 1);
	ck_assert_uint_eq(count_told(&peer_a, MSG_POOLS), 2);
}

/* Of a messager with no transport in common nothing is taken; both ends say why. */
TEST_LOOP(no_transport_in_common, 0, 5)
{
	static const char *const lists[] = {"", "rdma", "fak", "fakes,xfake", "rdma,,tcp"};
	int peer;
	struct inbound_link *l = link_up(&peer, "messager-c", lists[_i]);
	ck_assert_int_eq(fake.intakes, 2);
	ck_assert_uint_eq(count_told(&peer, MSG_PATH), 1);
	ck_assert_str_eq(told[n_told - 1].transport, "fake");
	struct buf out;
	buf_init(&out, 0);
	inbound_json(in, &out, 1);
	buf_addc(&out, '\0');
	ck_assert_ptr_nonnull(strstr(out.data, "takes KV over fake only"));
	ck_assert_ptr_nonnull(strstr(out.data, *lists[_i] ? lists[_i] : "none"));
	buf_fini(&out);
	ask(l, 1);
	ck_assert_uint_eq(rig_count(r, MSG_LEASE_OPEN), 0);
	ck_assert_int_eq(told[n_told - 1].refused, 1);
	inbound_down(l);
}

TEST_LOOP(decode_ends_while_the_path_closes, 0, 2)
{
	fake.closes_later = 1;
	ask_and_open(link_a, 1);
	if (_i == 0) {
		fake.in[0]->complete = 1;
		ready(link_a, 1);
	} else
		d_revokes(1);
	inbound_worker_gone(in, "decode-1", D_EPOCH);
	ck_assert_uint_eq(fake.n_in, 0); /* before its memory is unmapped */
	ck_assert_uint_eq(inbound_count(in), 0);
	ck_assert_uint_eq(rig_count(r, MSG_KV_READY), 0);
}

/* A lease belongs to the messager that asked for it. */
TEST(another_messagers_lease)
{
	int peer;
	struct inbound_link *c = link_up(&peer, "messager-c", "fake");
	ask_and_open(link_a, 1);
	ask(c, 1);
	ck_assert_int_eq(told[n_told - 1].refused, 1);
	ready(c, 1);
	ck_assert_uint_eq(rig_count(r, MSG_KV_READY), 0);
	ck_assert_uint_eq(count_told(&peer, MSG_LEASE_REVOKE), 1);
	ck_assert_uint_eq(fake.n_in, 1);
	inbound_down(c);
	fake.in[0]->complete = 1;
	ready(link_a, 1);
	ck_assert_uint_eq(rig_count(r, MSG_KV_READY), 1);
}

/* KV_READY that waits for the link to D goes before a later question for the same lease. */
TEST(no_question_before_ready)
{
	ask_and_open(link_a, 1);
	fake.in[0]->complete = 1;
	r->full = 1;
	ready(link_a, 1);
	r->full = 0;
	ask(link_b, 1);
	ck_assert_uint_eq(r->n_said, 2);
	ck_assert_int_eq(r->said[0].type, MSG_KV_READY);
	ck_assert_int_eq(r->said[1].type, MSG_LEASE_OPEN);
}

/* Nothing was opened under this handle. */
TEST(ready_without_an_answer)
{
	ask(link_a, 1);
	ready(link_a, 1);
	ck_assert_uint_eq(rig_count(r, MSG_KV_READY), 0);
	ck_assert_uint_eq(count_told(&peer_a, MSG_LEASE_REVOKE), 1);
	ck_assert_uint_eq(inbound_count(in), 0);
}

TEST(too_many)
{
	r->d_linked = 0; /* so that all wait */
	for (uint32_t i = 1; i <= INBOUND_LEASES_MAX; i++)
		ask(link_a, i);
	ck_assert_uint_eq(inbound_count(in), INBOUND_LEASES_MAX);
	n_told = 0;
	ask(link_a, INBOUND_LEASES_MAX + 1);
	ck_assert_int_eq(told[0].refused, 1);
	ask(link_b, INBOUND_LEASES_MAX + 1); /* the limit is a link's */
	ck_assert_uint_eq(inbound_count(in), INBOUND_LEASES_MAX + 1);
}

/* --- a walk --------------------------------------------------------------- */

enum { WALK_LEASES = 4, WALK_STEPS = 400 };

static uint64_t seed;

static unsigned draw(unsigned n)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (unsigned)(seed >> 33) % n;
}

static unsigned open_of(uint64_t id)
{
	unsigned n = 0;
	for (unsigned i = 0; i < fake.n_in; i++)
		n += fake.in[i]->state != FAKE_CLOSED && fake.in[i]->dst0 == 4 * id;
	return n;
}

/* What D hears must be true at that moment. */
static int walk_send(void *arg, const char *name, uint64_t epoch, enum msg_type type,
                     const struct msg_head *head, const ProtobufCMessage *body)
{
	if (type == MSG_KV_READY)
		ck_assert_uint_eq(open_of(((const Pds__KvReady *)body)->lease->id), 0);
	if (type == MSG_LEASE_REVOKED)
		ck_assert_uint_eq(open_of(((const Pds__LeaseRevoked *)body)->lease->id), 0);
	if (r->n_said == 64)
		r->n_said = 0;
	return rig_send(arg, name, epoch, type, head, body);
}

static void walk_answer(uint64_t id)
{
	static struct ring_transfer t;
	struct answer a;
	rig_transfer(r, &t, id, 0, 10);
	for (uint32_t i = 0; i < 3; i++)
		t.dst[i] = (uint32_t)(4 * id + i);
	rig_grant(r, &t);
	rig_answer(r, &a, id, 5, D_EPOCH);
	a.b.refused = draw(8) == 0;
	a.b.prefill = "prefill-9";
	a.b.prefill_epoch = P_EPOCH;
	inbound_lease_opened(in, "decode-1", D_EPOCH, &a.b);
}

static void relink(struct inbound_link **l, void *peer, const char *name)
{
	inbound_down(*l);
	*l = link_up(peer, name, "fake");
}

static void walk_step(void)
{
	uint64_t id = 1 + draw(WALK_LEASES);
	struct inbound_link *l = draw(2) ? link_a : link_b;
	fake.closes_later = draw(2) != 0;
	switch (draw(10)) {
	case 0:
	case 1: ask(l, id); break;
	case 2:
	case 3: walk_answer(id); break;
	case 4: ready(l, id); break;
	case 5: acked(id); break;
	case 6: d_revokes(id); break;
	case 7:
		if (draw(4) == 0)
			relink(&link_a, &peer_a, "messager-a");
		else if (draw(4) == 0)
			relink(&link_b, &peer_b, "messager-a");
		else
			new_link();
		break;
	case 8:
		for (unsigned i = 0; i < fake.n_in; i++)
			if (fake.in[i]->state == FAKE_CLOSING && draw(2)) {
				fake_closed(fake.in[i]);
				break;
			}
		break;
	default:
		for (unsigned i = 0; i < fake.n_in; i++)
			fake.in[i]->complete |= draw(2) != 0;
		r->d_linked = draw(4) != 0;
		r->full = draw(4) == 0;
		link_full = draw(6) == 0;
	}
	inbound_turn(in);
	mover_turn(r->m);
	for (uint64_t k = 1; k <= WALK_LEASES; k++)
		ck_assert_uint_le(open_of(k), 1); /* a lease has one writer */
}

TEST_LOOP(random_orders, 0, 200)
{
	const struct mover_limits limits = {RIG_STALL_US, 1 << 20};
	seed = (uint64_t)_i + 1;
	inbound_destroy(&in);
	mover_destroy(&r->m);
	r->m = mover_new(&(struct mover_out){.arg = r,
	                                     .now_us = rig_now,
	                                     .linked = rig_linked,
	                                     .send = walk_send,
	                                     .ended = rig_ended,
	                                     .fence = fence},
	                 &limits);
	rig_attach_d(r);
	in = inbound_new(&(struct inbound_out){NULL, send_link, wake}, r->m, &transports);
	link_a = link_up(&peer_a, "messager-a", "rdma,fake");
	link_b = link_up(&peer_b, "messager-a", "fake");
	for (int i = 0; i < WALK_STEPS; i++)
		walk_step();
	/* all is quiet: every lease is revoked, and each revocation is answered */
	r->d_linked = 1;
	r->full = link_full = fake.closes_later = 0;
	for (uint64_t k = 1; k <= WALK_LEASES; k++) {
		d_revokes(k);
		while (open_of(k)) {
			for (unsigned i = 0; i < fake.n_in; i++)
				if (fake.in[i]->state == FAKE_CLOSING)
					fake_closed(fake.in[i]);
		}
		ck_assert_ptr_nonnull(rig_last(r, MSG_LEASE_REVOKED));
		acked(k);
	}
	inbound_turn(in);
	ck_assert_uint_eq(inbound_count(in), 0);
	ck_assert_uint_eq(fake.n_in, 0);
}
