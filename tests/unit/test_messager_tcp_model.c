/* test_messager_tcp_model.c - data connections under the event sequences of tests/model/remote.pml.
 * Each test has the name of a line of tests/model/table, and fails if the rule that the line omits
 * is omitted here. The test itself is one of the two ends (tcp_ends.h), so that it chooses what
 * lies between two parts of a frame, and which acknowledgement is lost. */
#include "tcp_ends.h"
#include "util/log.h"

/* Time for what must not happen. What must happen is waited for (RIG_WAIT). */
static void pause_a_little(const struct rig *r)
{
	for (uint64_t until_us = clock_us() + 20000; clock_us() < until_us; usleep(500))
		event_base_loop(r->base, EVLOOP_NONBLOCK);
}

/* --- B: frames that a lease gets ----------------------------------------- */

/* Which lease a frame is of; it outlives the lease. */
struct of_lease {
	uint32_t handle, generation;
};

static struct of_lease of(const struct lease *l)
{
	const struct tcp_incoming *n = (struct tcp_incoming *)l->in;
	return (struct of_lease){n->handle, n->generation};
}

struct data_frame {
	unsigned char text[FRAME_HEAD_BYTES + 8192 + FRAME_TAG_BYTES];
	size_t bytes;
};

/* Blocks [first, first + n) of layer 0, with what the source has (from), or 'L' in every byte (from
 * NULL). The sender's next frame. */
static void frame_new(struct data_frame *d, const struct rig *r, struct liar *a, struct of_lease of,
                      uint32_t first, uint32_t n, const struct lease *from)
{
	const size_t piece = r->layout.piece_bytes[0];
	struct frame f = {.type = FRAME_DATA,
	                  .number = a->number++,
	                  .length = (uint32_t)(n * piece),
	                  .handle = of.handle,
	                  .generation = of.generation,
	                  .first = first,
	                  .n = n};
	d->bytes = FRAME_HEAD_BYTES + f.length + FRAME_TAG_BYTES;
	ck_assert_uint_le(d->bytes, sizeof d->text);
	memset(d->text, 'L', sizeof d->text);
	for (uint32_t i = 0; from && i < n; i++)
		memcpy(d->text + FRAME_HEAD_BYTES + i * piece,
		       r->from.own.data + kv_piece_offset(&r->layout, RIG_BLOCKS, 0, from->src[first + i]),
		       piece);
	frame_put(d->text, &f, &a->keys);
	frame_seal_begin(&a->keys, d->text, f.number);
	frame_seal_add(&a->keys, d->text + FRAME_HEAD_BYTES, f.length, NULL);
	frame_seal_end(&a->keys, d->text + FRAME_HEAD_BYTES + f.length);
}

static void say_part(const struct liar *a, const struct data_frame *d, size_t from, size_t to)
{
	ck_assert_int_eq(send(a->fd, d->text + from, to - from, MSG_NOSIGNAL), (ssize_t)(to - from));
}

static void say_frame(const struct liar *a, const struct data_frame *d)
{
	say_part(a, d, 0, d->bytes);
}

/* Half of the payload, whose first block is b of the lease. The receiver takes it. */
static size_t say_half(struct rig *r, const struct liar *a, const struct data_frame *d,
                       const struct lease *l, uint32_t b)
{
	size_t half = FRAME_HEAD_BYTES + (d->bytes - FRAME_HEAD_BYTES) / 2;
	say_part(a, d, 0, half);
	if (r->to.peer.pool->host)
		RIG_WAIT(r, memcmp(r->to.own.data + kv_piece_offset(&r->layout, RIG_BLOCKS, 0, l->dst[b]),
		                   d->text + FRAME_HEAD_BYTES, 64) == 0);
	else
		pause_a_little(r); /* it is in the staging buffer, where nobody sees it */
	return half;
}

static struct frame hear_frame(struct rig *r, const struct liar *a)
{
	unsigned char head[FRAME_HEAD_BYTES];
	struct frame f = {0};
	ck_assert_uint_eq(hear(r, a->fd, head, sizeof head), sizeof head);
	ck_assert_int_eq(frame_get(head, &f, &a->back), 0);
	return f;
}

static void hear_ack(struct rig *r, const struct liar *a, uint64_t frames)
{
	struct frame f = hear_frame(r, a);
	ck_assert_int_eq(f.type, FRAME_ACK);
	ck_assert_uint_eq(f.sum, frames);
}

static void hear_refusal(struct rig *r, const struct liar *a, enum frame_refusal why)
{
	struct frame f = hear_frame(r, a);
	ck_assert_int_eq(f.type, FRAME_REFUSE);
	ck_assert_uint_eq(f.n, why);
}

static void hears_nothing(const struct rig *r, const struct liar *a)
{
	char c;
	pause_a_little(r);
	ck_assert_int_eq(recv(a->fd, &c, 1, MSG_DONTWAIT), -1);
	ck_assert_int_eq(errno, EAGAIN);
}

static void close_lease(struct lease *l)
{
	ck_assert_int_eq(OPS->incoming_close(l->in), 1);
	OPS->incoming_free(&l->in);
}

static void poison(const struct rig *r)
{
	memset(r->to.own.data, POISON, r->to.own.region.data_bytes);
}

static int is_lie(const struct lease *l, uint32_t b)
{
	const struct rig *r = l->r;
	return r->to.own.data[kv_piece_offset(&r->layout, RIG_BLOCKS, 0, l->dst[b])] == 'L';
}

/* A lease of blocks 10 to 29, and an end of ours beside the pair's own. */
static struct rig *begin(struct lease *l, struct liar *a, uint32_t layers, int far)
{
	rig_random = 70;
	struct rig *r = rig_new(&rig_opts, &rig_opts, layers, 16, far);
	RIG_WAIT(r, r->up);
	lease_open(l, r, 10, 20);
	enter(r, a, CIPHER_NONE);
	return r;
}

static void end(struct rig *r, struct lease *l, struct liar *a)
{
	leave(a);
	lease_end(l);
	rig_free(r);
}

TEST_CASE("model", .timeout_s = 60);

/* D revokes between two parts of a frame: from the close on nothing is written. */
TEST_LOOP(rm2_closed_between_two_parts_of_a_frame, 0, 2)
{
	struct lease l;
	struct liar a;
	struct data_frame d;
	struct rig *r = begin(&l, &a, 1, _i);
	frame_new(&d, r, &a, of(&l), 2, 4, NULL);
	size_t half = say_half(r, &a, &d, &l, 2);
	ck_assert_int_eq(is_lie(&l, 2), !_i);
	close_lease(&l);
	poison(r);
	say_part(&a, &d, half, d.bytes);
	hear_refusal(r, &a, REFUSED_CLOSED);
	check_untouched(r, 0, RIG_BLOCKS);
	end(r, &l, &a);
}

/* A frame that was late, from a connection that the sender has given up. */
TEST_LOOP(rm3_frame_of_a_closed_handle, 0, 4)
{
	struct lease l;
	struct liar a;
	struct data_frame d;
	struct rig *r = begin(&l, &a, 1, _i & 1);
	frame_new(&d, r, &a, of(&l), 2, 4, NULL);
	if (_i & 2)
		close_lease(&l);
	else
		ck_assert_int_eq(OPS->incoming_close(l.in), 1); /* not freed yet */
	say_frame(&a, &d);
	hear_refusal(r, &a, REFUSED_CLOSED);
	check_untouched(r, 0, RIG_BLOCKS);
	if (l.in)
		OPS->incoming_free(&l.in);
	end(r, &l, &a);
}

TEST(rm10_handle_of_the_lease_before)
{
	struct lease l, next;
	struct liar a;
	struct data_frame d;
	struct rig *r = begin(&l, &a, 1, 0);
	struct of_lease first = of(&l);
	close_lease(&l);
	lease_open(&next, r, 10, 20);
	ck_assert_uint_eq(of(&next).handle, first.handle);
	frame_new(&d, r, &a, first, 2, 4, NULL);
	say_frame(&a, &d);
	hear_refusal(r, &a, REFUSED_CLOSED);
	ck_assert_uint_eq(((struct tcp_incoming *)next.in)->n_arrived, 0);
	check_untouched(r, 0, RIG_BLOCKS);
	lease_end(&next);
	end(r, &l, &a);
}

/* The link ends, or B does: another intake. */
static void intake_again(struct rig *r)
{
	const struct path_hooks hooks = {r, rig_intake_says, rig_intake_up};
	const struct path_peer peer = {.name = "m2", .epoch = 2, .host = "127.0.0.1"};
	OPS->intake_destroy(&r->intake);
	r->setup_bytes = 0;
	r->intake = OPS->intake_new(r->receiver, &peer, &hooks);
	RIG_WAIT(r, r->setup_bytes);
}

/* Neither a connection, nor a secret, nor a handle of the intake before is of use. */
TEST(rm11_what_the_intake_before_gave_out)
{
	struct lease l, next;
	struct liar a, b;
	struct data_frame d;
	struct setup now;
	unsigned char hello[HELLO_BYTES];
	struct rig *r = begin(&l, &a, 1, 0);
	struct of_lease first = of(&l);
	frame_new(&d, r, &a, first, 2, 4, NULL);
	size_t half = say_half(r, &a, &d, &l, 2);
	l.in = NULL; /* freed with its intake */
	intake_again(r);
	poison(r);
	lease_open(&next, r, 10, 20);
	ck_assert_uint_eq(of(&next).handle, first.handle);
	send(a.fd, d.text + half, d.bytes - half, MSG_NOSIGNAL);
	is_thrown_out(r, &a);
	/* HELLO as it was, and with the present pair's number */
	uint64_t refused = r->receiver->refused;
	b.fd = dial(r);
	send(b.fd, a.hello, HELLO_BYTES, 0);
	is_closed(r, b.fd);
	ck_assert_uint_eq(r->receiver->refused, refused + 1);
	ck_assert_int_eq(setup_get(r->setup, r->setup_bytes, &now), 0);
	ck_assert_int_ne(memcmp(now.secret, a.setup.secret, SECRET_BYTES), 0);
	const struct hello h = {now.pair, 7, CIPHER_NONE, {0}};
	hello_put(hello, &h, a.setup.secret);
	b.fd = dial(r);
	send(b.fd, hello, HELLO_BYTES, 0);
	is_closed(r, b.fd);
	ck_assert_uint_eq(intake_errors(r), 1);
	/* the old handle, over a connection of the present pair */
	enter(r, &b, CIPHER_NONE);
	frame_new(&d, r, &b, first, 2, 4, NULL);
	say_frame(&b, &d);
	hear_refusal(r, &b, REFUSED_CLOSED);
	check_untouched(r, 0, RIG_BLOCKS);
	lease_end(&next);
	end(r, &l, &b);
}

/* Two acknowledgements of one piece do not stand for two pieces. */
TEST_LOOP(rm13_a_piece_twice_is_one_piece, 0, 2)
{
	struct lease l;
	struct liar a;
	struct data_frame d;
	struct path_state s;
	struct rig *r = begin(&l, &a, 1, _i);
	for (uint64_t i = 1; i <= 2; i++) {
		frame_new(&d, r, &a, of(&l), 0, 10, &l);
		say_frame(&a, &d);
		hear_ack(r, &a, i);
		ck_assert_int_eq(OPS->incoming_complete(l.in), 0);
	}
	OPS->intake_state(r->intake, &s);
	ck_assert_uint_eq(s.bytes, lease_all(&l) / 2);
	ck_assert_uint_eq(s.repeated_bytes, lease_all(&l) / 2);
	frame_new(&d, r, &a, of(&l), 10, 10, &l);
	say_frame(&a, &d);
	hear_ack(r, &a, 3);
	ck_assert_int_eq(OPS->incoming_complete(l.in), 1);
	lease_check(&l);
	end(r, &l, &a);
}

/* Bytes that have arrived stay as they are, also if they are sent again and differ. */
TEST_LOOP(rm19_what_has_arrived_is_not_written_again, 0, 4)
{
	static const struct lie again = {"the same pieces", .f = {.n = 3, .first = 2}};
	struct lease l;
	struct liar a;
	struct frame f;
	struct path_state s;
	unsigned char head[FRAME_HEAD_BYTES];
	rig_random = 56;
	struct rig *r = rig_new(&rig_opts, &rig_opts, 2, 16, _i & 1);
	lease_open(&l, r, 10, 20);
	lease_send_all(&l);
	RIG_WAIT(r, l.bytes == lease_all(&l));
	enter(r, &a, _i & 2 ? CIPHER_AES256GCM : CIPHER_NONE);
	tell_lie(r, &a, &l, &again);
	ck_assert_uint_eq(hear(r, a.fd, head, sizeof head), sizeof head);
	ck_assert_int_eq(frame_get(head, &f, &a.back), 0);
	ck_assert_int_eq(f.type, FRAME_ACK);
	OPS->intake_state(r->intake, &s);
	ck_assert_uint_eq(s.bytes, lease_all(&l));
	ck_assert_uint_eq(s.repeated_bytes, 3 * r->layout.piece_bytes[0]);
	lease_check(&l);
	leave(&a);
	lease_end(&l);
	rig_free(r);
}

TEST_LOOP(rm19_a_damaged_copy, 0, 2)
{
	static const struct lie again = {"the same pieces", .f = {.n = 3, .first = 2}, .tamper = 1};
	struct lease l;
	struct liar a;
	struct rig *r = begin(&l, &a, 2, _i);
	lease_send_all(&l);
	RIG_WAIT(r, l.bytes == lease_all(&l));
	tell_lie(r, &a, &l, &again);
	is_thrown_out(r, &a);
	lease_check(&l);
	ck_assert_int_eq(OPS->incoming_complete(l.in), 1);
	lease_end(&l);
	rig_free(r);
}

/* The sender has given a connection up whose end of a frame is still on its way, and sends the
 * pieces on another. */
TEST(rm21_two_connections_do_not_write_the_same_pieces)
{
	struct lease l;
	struct liar a;
	unsigned char text[FRAME_HEAD_BYTES + 700];
	rig_random = 57;
	struct rig *r = rig_new(&rig_opts, &rig_opts, 2, 16, 0);
	RIG_WAIT(r, r->up);
	lease_open(&l, r, 10, 20);
	enter(r, &a, CIPHER_NONE);
	const struct tcp_incoming *n = (struct tcp_incoming *)l.in;
	const struct frame f = {.type = FRAME_DATA,
	                        .number = 1,
	                        .length = (uint32_t)(3 * r->layout.piece_bytes[0]),
	                        .handle = n->handle,
	                        .generation = n->generation,
	                        .first = 2,
	                        .n = 3};
	memset(text, 'L', sizeof text);
	frame_put(text, &f, &a.keys);
	ck_assert_int_eq(send(a.fd, text, sizeof text, 0), sizeof text);
	RIG_WAIT(r, r->to.own.data[kv_piece_offset(&r->layout, RIG_BLOCKS, 0, l.dst[2])] == 'L');
	lease_send_all(&l);
	RIG_WAIT(r, l.bytes == lease_all(&l));
	send(a.fd, text + FRAME_HEAD_BYTES, sizeof text - FRAME_HEAD_BYTES, MSG_NOSIGNAL);
	is_thrown_out(r, &a);
	lease_check(&l);
	lease_end(&l);
	rig_free(r);
}

TEST_LOOP(rm27_half_a_frame_is_not_acknowledged, 0, 2)
{
	struct lease l;
	struct liar a;
	struct data_frame d;
	struct rig *r = begin(&l, &a, 1, _i);
	frame_new(&d, r, &a, of(&l), 0, 10, &l);
	size_t half = say_half(r, &a, &d, &l, 0);
	hears_nothing(r, &a);
	ck_assert_uint_eq(((struct tcp_incoming *)l.in)->n_arrived, 0);
	say_part(&a, &d, half, d.bytes - 1);
	hears_nothing(r, &a);
	ck_assert_uint_eq(((struct tcp_incoming *)l.in)->n_arrived, 0);
	say_part(&a, &d, d.bytes - 1, d.bytes);
	hear_ack(r, &a, 1);
	ck_assert_uint_eq(((struct tcp_incoming *)l.in)->n_arrived, 10);
	end(r, &l, &a);
}

/* D reuses a block after its bytes were written, and before the frame's last ones: nothing of the
 * frame counts. */
TEST(a_block_that_is_reused_within_a_frame)
{
	struct lease l;
	struct liar a;
	struct data_frame d;
	struct rig *r = begin(&l, &a, 1, 0);
	frame_new(&d, r, &a, of(&l), 0, 10, &l);
	size_t half = say_half(r, &a, &d, &l, 0);
	r->to.own.region.generations[l.dst[0]]++;
	say_part(&a, &d, half, d.bytes);
	hear_refusal(r, &a, REFUSED_STALE);
	ck_assert_uint_eq(((struct tcp_incoming *)l.in)->n_arrived, 0);
	end(r, &l, &a);
}

/* The acknowledgement was lost with its connection. */
TEST_LOOP(rm28_a_repetition_is_acknowledged, 0, 2)
{
	struct lease l;
	struct liar a, b;
	struct data_frame d;
	struct rig *r = begin(&l, &a, 1, _i);
	frame_new(&d, r, &a, of(&l), 2, 4, &l);
	say_frame(&a, &d);
	RIG_WAIT(r, ((struct tcp_incoming *)l.in)->n_arrived == 4);
	leave(&a);
	enter(r, &b, CIPHER_NONE);
	frame_new(&d, r, &b, of(&l), 2, 4, &l);
	say_frame(&b, &d);
	hear_ack(r, &b, 1);
	ck_assert_uint_eq(((struct tcp_incoming *)l.in)->n_arrived, 4);
	end(r, &l, &b);
}

/* The older of two copies is dropped unacknowledged: the newer one may turn out to be damaged. */
TEST(rm29_a_dropped_copy_is_not_acknowledged)
{
	struct lease l;
	struct liar a, b;
	struct data_frame da, db;
	struct rig *r = begin(&l, &a, 1, 0);
	frame_new(&da, r, &a, of(&l), 2, 4, &l);
	say_half(r, &a, &da, &l, 2);
	enter_as(r, &b, CIPHER_NONE, 6);
	frame_new(&db, r, &b, of(&l), 0, 8, NULL);
	size_t half = say_half(r, &b, &db, &l, 0);
	is_thrown_out(r, &a);
	ck_assert_int_eq(is_lie(&l, 2), 1);
	db.text[db.bytes - 1] ^= 1;
	say_part(&b, &db, half, db.bytes);
	is_thrown_out(r, &b);
	ck_assert_uint_eq(((struct tcp_incoming *)l.in)->n_arrived, 0);
	lease_send_all(&l);
	RIG_WAIT(r, l.bytes == lease_all(&l));
	lease_check(&l);
	lease_end(&l);
	rig_free(r);
}

/* --- A: acknowledgements that a transfer gets ---------------------------- */

static struct rig *begin_bad(struct bad_end *b)
{
	struct tcp_opts o = rig_opts;
	rig_random = 71;
	o.frame_bytes = 1024; /* of two pieces */
	struct rig *r = rig_new(&o, &rig_opts, 1, 16, 0);
	bad_end_new(r, b);
	fcntl(b->listener, F_SETFL, O_NONBLOCK);
	bad_end_accept(r, b);
	RIG_WAIT(r, b->up);
	return r;
}

/* A lease of our end, and its only layer on the way. */
static void send_to(struct lease *l, struct rig *r, struct bad_end *b, uint32_t first,
                    uint32_t blocks)
{
	struct path *own = r->path;
	lease_open(l, r, first, blocks); /* for its handle: nothing will arrive */
	OPS->outgoing_end(&l->out);
	r->path = b->path;
	lease_outgoing(l);
	r->path = own;
	OPS->outgoing_send(l->out, 0, 0, blocks);
}

/* Reads a frame of two pieces. */
static void take_frame(struct rig *r, const struct bad_end *b)
{
	unsigned char text[FRAME_HEAD_BYTES + 1024];
	ck_assert_uint_eq(hear(r, b->fd, text, sizeof text), sizeof text);
}

/* answer: its number on this connection; frames: acknowledged in all. */
static void acknowledge(struct rig *r, const struct bad_end *b, uint64_t answer, uint64_t frames)
{
	unsigned char head[FRAME_HEAD_BYTES];
	const struct frame f = {.type = FRAME_ACK, .number = answer, .sum = frames};
	frame_put(head, &f, &b->back);
	ck_assert_int_eq(send(b->fd, head, sizeof head, MSG_NOSIGNAL), (ssize_t)sizeof head);
	pause_a_little(r);
}

TEST(rm12_acknowledgement_of_an_ended_transfer)
{
	struct bad_end b;
	struct lease ended, l;
	struct rig *r = begin_bad(&b);
	send_to(&ended, r, &b, 0, 2);
	take_frame(r, &b);
	OPS->outgoing_end(&ended.out);
	send_to(&l, r, &b, 2, 2);
	take_frame(r, &b);
	acknowledge(r, &b, 1, 1);
	ck_assert_uint_eq(l.bytes, 0);
	acknowledge(r, &b, 2, 2);
	RIG_WAIT(r, l.bytes);
	ck_assert_uint_eq(l.bytes, lease_all(&l));
	lease_end(&l);
	lease_end(&ended);
	bad_end_free(&b);
	rig_free(r);
}

/* The connection is cut when one of two frames is acknowledged: the other one is sent again. */
TEST(rm13_bytes_that_are_sent_again_count_once)
{
	struct bad_end b;
	struct lease l;
	struct path_state s;
	struct rig *r = begin_bad(&b);
	send_to(&l, r, &b, 0, 4);
	take_frame(r, &b);
	take_frame(r, &b);
	acknowledge(r, &b, 1, 1);
	RIG_WAIT(r, l.bytes);
	ck_assert_uint_eq(l.bytes, lease_all(&l) / 2);
	close(b.fd);
	frame_keys_fini(&b.back);
	bad_end_accept(r, &b);
	take_frame(r, &b);
	ck_assert_uint_eq(l.bytes, lease_all(&l) / 2);
	acknowledge(r, &b, 1, 1);
	RIG_WAIT(r, l.bytes > lease_all(&l) / 2);
	pause_a_little(r);
	ck_assert_uint_eq(l.bytes, lease_all(&l));
	OPS->path_state(b.path, &s);
	ck_assert_uint_eq(s.bytes, lease_all(&l));
	ck_assert_uint_eq(s.repeated_bytes, lease_all(&l) / 2);
	lease_end(&l);
	bad_end_free(&b);
	rig_free(r);
}

TEST_START(quiet)
{
	log_set_level("error");
}
