/* tcp_ends.h - over tcp_rig.h: a test that speaks the protocol of data connections itself, as the
 * sender's end (struct liar) or the receiver's (struct bad_end), and says what it wants. */
#ifndef TEST_TCP_ENDS_H
#define TEST_TCP_ENDS_H

#include "tcp_rig.h"
#include "util/least.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>

/* --- connections --------------------------------------------------------- */

static inline int dial(const struct rig *r)
{
	const struct sockaddr_in to = {.sin_family = AF_INET,
	                               .sin_port = htons(tcp_transport_port(r->receiver)),
	                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	ck_assert_int_eq(connect(fd, (const struct sockaddr *)&to, sizeof to), 0);
	return fd;
}

/* Runs the loop until fd has given n bytes, or has ended. Returns how many. */
static inline size_t hear(struct rig *r, int fd, void *at, size_t n)
{
	size_t have = 0;
	uint64_t until_us = clock_us() + WAIT_US;
	while (have < n) {
		ck_assert_msg(clock_us() < until_us, "waited too long for %zu bytes", n);
		event_base_loop(r->base, EVLOOP_NONBLOCK);
		ssize_t got = recv(fd, (char *)at + have, n - have, MSG_DONTWAIT);
		if (got == 0 || (got < 0 && errno != EAGAIN))
			break;
		have += got > 0 ? (size_t)got : 0;
	}
	return have;
}

static inline void is_closed(struct rig *r, int fd)
{
	char c;
	ck_assert_uint_eq(hear(r, fd, &c, 1), 0);
	close(fd);
}

static inline uint64_t intake_errors(const struct rig *r)
{
	struct path_state s;
	OPS->intake_state(r->intake, &s);
	return s.errors;
}

static inline void still_works(struct rig *r)
{
	struct lease l;
	lease_open(&l, r, 40, 8);
	lease_send_all(&l);
	RIG_WAIT(r, l.bytes == lease_all(&l));
	lease_check(&l);
	lease_end(&l);
}

/* --- the sender's end ---------------------------------------------------- */

struct liar {
	int fd;
	struct setup setup;
	unsigned char hello[HELLO_BYTES], welcome[WELCOME_BYTES];
	struct frame_keys keys, back;
	uint64_t number;
};

/* Everything up to PROOF. Another one with the same `connection` takes its place. */
static inline void greet(struct rig *r, struct liar *a, enum cipher cipher, uint32_t connection)
{
	RIG_WAIT(r, r->setup_bytes);
	ck_assert_int_eq(setup_get(r->setup, r->setup_bytes, &a->setup), 0);
	struct hello h = {a->setup.pair, connection, cipher, {0}};
	randombytes_buf(h.nonce, sizeof h.nonce);
	hello_put(a->hello, &h, a->setup.secret);
	a->fd = dial(r);
	a->number = 1;
	ck_assert_int_eq(send(a->fd, a->hello, HELLO_BYTES, 0), HELLO_BYTES);
	ck_assert_uint_eq(hear(r, a->fd, a->welcome, WELCOME_BYTES), WELCOME_BYTES);
	ck_assert_int_eq(welcome_verify(a->welcome, a->hello, a->setup.secret), 0);
}

static inline void enter_as(struct rig *r, struct liar *a, enum cipher cipher, uint32_t connection)
{
	unsigned char proof[PROOF_BYTES];
	greet(r, a, cipher, connection);
	proof_put(proof, a->hello, a->welcome, a->setup.secret);
	ck_assert_int_eq(send(a->fd, proof, sizeof proof, 0), sizeof proof);
	ck_assert_int_eq(
		frame_keys_init(&a->keys, cipher, FRAMES_OUT, a->hello, a->welcome, a->setup.secret), 0);
	frame_keys_init(&a->back, CIPHER_NONE, FRAMES_BACK, a->hello, a->welcome, a->setup.secret);
}

static inline void leave(struct liar *a)
{
	close(a->fd);
	frame_keys_fini(&a->keys);
	frame_keys_fini(&a->back);
}

/* The receiver has closed its connection. */
static inline void is_thrown_out(struct rig *r, struct liar *a)
{
	is_closed(r, a->fd);
	frame_keys_fini(&a->keys);
	frame_keys_fini(&a->back);
}

static inline void enter(struct rig *r, struct liar *a, enum cipher cipher)
{
	enter_as(r, a, cipher, 7);
}

/* A frame with bytes, as DATA of a lease. */
struct lie {
	const char *what;
	struct frame f;
	int length; /* relative to what the fields say */
	int bad_mac, bad_tag,
		tamper;                 /* changed on the way: the header, the tag, a byte of the payload */
	enum frame_refusal refused; /* answered; NOT: the connection is closed */
	int of_another_lease;
};

static inline void tell_lie(struct rig *r, struct liar *a, const struct lease *l,
                            const struct lie *lie)
{
	unsigned char text[FRAME_HEAD_BYTES + 40000];
	struct frame f = lie->f;
	const struct tcp_incoming *n = (struct tcp_incoming *)l->in;
	uint32_t bytes = (uint32_t)((int)(f.n * r->layout.piece_bytes[0]) + lie->length);
	f.type = f.type ? f.type : FRAME_DATA;
	f.number += a->number++;
	f.handle = n->handle;
	f.generation = n->generation + (unsigned)lie->of_another_lease;
	f.length = f.length ? f.length : bytes;
	bytes = (uint32_t)least(f.length, 30000);
	unsigned char *at = text + FRAME_HEAD_BYTES;
	memset(at, 'L', bytes);
	frame_put(text, &f, &a->keys);
	frame_seal_begin(&a->keys, text, f.number);
	frame_seal_add(&a->keys, at, bytes, at);
	frame_seal_end(&a->keys, at + bytes);
	at[5] ^= (unsigned char)lie->tamper;
	at[bytes + 3] ^= (unsigned char)lie->bad_tag;
	bytes += FRAME_TAG_BYTES;
	text[30] ^= (unsigned char)lie->bad_mac;
	ck_assert_int_eq(send(a->fd, text, FRAME_HEAD_BYTES + bytes, MSG_NOSIGNAL),
	                 FRAME_HEAD_BYTES + bytes);
}

/* --- the receiver's end -------------------------------------------------- */

struct bad_end {
	int listener, fd;
	struct setup setup;
	struct path *path;
	struct frame_keys back;
	int up;
};

static inline int bad_end_says(void *arg, const void *bytes, size_t n)
{
	(void)arg, (void)bytes, (void)n;
	return 0;
}
static inline void bad_end_up(void *arg, int up, const char *why)
{
	(void)why;
	((struct bad_end *)arg)->up += up;
}

/* A second path of r's sender, to an end that this test plays. */
static inline void bad_end_new(struct rig *r, struct bad_end *b)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t bytes = sizeof at;
	unsigned char text[SETUP_BYTES];
	const struct path_hooks hooks = {b, bad_end_says, bad_end_up};
	const struct path_peer peer = {.name = "bad", .host = "127.0.0.1"};
	struct err err;
	*b = (struct bad_end){.listener = socket(AF_INET, SOCK_STREAM, 0)};
	ck_assert_int_eq(bind(b->listener, (struct sockaddr *)&at, sizeof at), 0);
	ck_assert_int_eq(listen(b->listener, 8), 0);
	getsockname(b->listener, (struct sockaddr *)&at, &bytes);
	b->setup = (struct setup){
		.kind = SETUP_TELL, .port = ntohs(at.sin_port), .connections = 1, .pair = 99};
	b->path = OPS->path_new(r->sender, &peer, &hooks);
	ck_assert_int_eq(OPS->path_said(b->path, text, setup_put(text, &b->setup), &err), 0);
}

static inline void bad_end_accept(struct rig *r, struct bad_end *b)
{
	unsigned char hello[HELLO_BYTES], welcome[WELCOME_BYTES], proof[PROOF_BYTES], nonce[32] = {1};
	uint64_t until_us = clock_us() + WAIT_US;
	while ((b->fd = accept4(b->listener, NULL, NULL, SOCK_NONBLOCK)) < 0) {
		ck_assert_uint_lt(clock_us(), until_us);
		event_base_loop(r->base, EVLOOP_NONBLOCK);
		fcntl(b->listener, F_SETFL, O_NONBLOCK);
	}
	ck_assert_uint_eq(hear(r, b->fd, hello, HELLO_BYTES), HELLO_BYTES);
	welcome_put(welcome, hello, nonce, b->setup.secret);
	ck_assert_int_eq(send(b->fd, welcome, WELCOME_BYTES, 0), WELCOME_BYTES);
	ck_assert_uint_eq(hear(r, b->fd, proof, PROOF_BYTES), PROOF_BYTES);
	ck_assert_int_eq(proof_verify(proof, hello, nonce, b->setup.secret), 0);
	frame_keys_init(&b->back, CIPHER_NONE, FRAMES_BACK, hello, nonce, b->setup.secret);
}

static inline void bad_end_free(struct bad_end *b)
{
	OPS->path_destroy(&b->path);
	frame_keys_fini(&b->back);
	close(b->fd);
	close(b->listener);
}

#endif
