/* test_wire.c - messages between two hosts: they arrive as they were sent, nothing that was changed
 * on the way is taken, and an end that lies, stops or ends never hangs the other. */
/* run: threads parser */
#include "util/wire.h"
#include "util/clock.h"
#include "util/mem.h"

#include "test.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

TEST_CASE("wire", .timeout_s = 60);

enum { BIG = 300000, SMALL = 100 };

/* An asking end, which has a thread for its handshake, and a listener. */
struct rig {
	struct wire_ticket ticket;
	int listener;
	uint16_t port;
	struct wire *asker, *taker;
	int asked; /* result of wire_connect */
	struct err err;
};

static void *ask(void *arg)
{
	struct rig *r = arg;
	r->asked = wire_connect("127.0.0.1", r->port, &r->ticket, &r->asker, &r->err);
	return NULL;
}

static void rig_listen(struct rig *r)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	socklen_t size = sizeof a;
	*r = (struct rig){.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
	ck_assert(bind(r->listener, (struct sockaddr *)&a, sizeof a) == 0 &&
	          listen(r->listener, 4) == 0 &&
	          getsockname(r->listener, (struct sockaddr *)&a, &size) == 0);
	r->port = ntohs(a.sin_port);
	wire_ticket_make(&r->ticket);
}

static int take_hello(struct rig *r, unsigned char *hello)
{
	int fd = accept(r->listener, NULL, NULL);
	ck_assert_int_eq(recv(fd, hello, WIRE_HELLO_BYTES, MSG_WAITALL), WIRE_HELLO_BYTES);
	return fd;
}

static void rig_free(struct rig *r)
{
	wire_destroy(&r->asker);
	wire_destroy(&r->taker);
	close(r->listener);
}

static void rig_open(struct rig *r)
{
	unsigned char hello[WIRE_HELLO_BYTES];
	pthread_t t;
	rig_listen(r);
	pthread_create(&t, NULL, ask, r);
	int fd = take_hello(r, hello);
	ck_assert(wire_hello_id(hello) == r->ticket.id);
	ck_assert_int_eq(wire_accept(fd, hello, &r->ticket, &r->taker), 0);
	pthread_join(t, NULL);
	ck_assert_msg(r->asked == 0, "%s", r->err.text);
}

static unsigned char *some_bytes(size_t n)
{
	unsigned char *at = mem_alloc(n + 1);
	for (size_t i = 0; i < n; i++)
		at[i] = (unsigned char)(i * 7 + (i >> 8));
	return at;
}

/* --- messages ------------------------------------------------------------ */

struct sender {
	struct wire *w;
	const unsigned char *data;
	const size_t *sizes;
	unsigned n;
};

static void *send_all(void *arg)
{
	const struct sender *s = arg;
	for (unsigned i = 0; i < s->n; i++)
		ck_assert_int_eq(wire_send(s->w, i + 1, s->data, s->sizes[i], 20), 0);
	return NULL;
}

static void passes(struct wire *from, struct wire *to)
{
	static const size_t sizes[] = {0, 1, 65535, 65536, 65537, 131072, BIG, 3};
	enum { SIZES = sizeof sizes / sizeof *sizes };
	unsigned char *want = some_bytes(BIG), *got = some_bytes(BIG);
	struct sender s = {from, want, sizes, SIZES};
	pthread_t t;
	pthread_create(&t, NULL, send_all, &s);
	for (unsigned i = 0; i < SIZES; i++) {
		uint32_t type = 0;
		size_t n = 99;
		memset(got, 0, BIG);
		ck_assert_int_eq(wire_recv(to, 20, &type, got, BIG, &n), 0);
		ck_assert_uint_eq(type, i + 1);
		ck_assert_uint_eq(n, sizes[i]);
		ck_assert(memcmp(got, want, n) == 0);
	}
	pthread_join(t, NULL);
	free(want);
	free(got);
}

TEST(messages_arrive_in_both_directions)
{
	struct rig r;
	rig_open(&r);
	passes(r.asker, r.taker);
	passes(r.taker, r.asker);
	rig_free(&r);
}

struct flood {
	struct wire *w;
	const unsigned char *data;
	int rc;
};
enum { FLOOD = 200 };

static void *send_flood(void *arg)
{
	struct flood *f = arg;
	for (int i = 0; i < FLOOD && !f->rc; i++)
		f->rc = wire_send(f->w, 1, f->data, BIG, 60);
	return NULL;
}

/* The limit is the caller's, also while the other host acknowledges and its process does not
 * read. */
TEST(an_end_may_be_busy_for_as_long_as_the_sender_allows)
{
	struct rig r;
	uint32_t type;
	size_t n;
	unsigned char *data = some_bytes(BIG), *got = some_bytes(BIG);
	pthread_t t;
	rig_open(&r);
	struct flood f = {r.asker, data, 0};
	pthread_create(&t, NULL, send_flood, &f);
	sleep(WIRE_GONE_S + 3);
	for (int i = 0; i < FLOOD; i++)
		ck_assert_msg(wire_recv(r.taker, 60, &type, got, BIG, &n) == 0 && n == BIG, "message %d",
		              i);
	pthread_join(t, NULL);
	ck_assert_int_eq(f.rc, 0);
	rig_free(&r);
	free(data);
	free(got);
}

TEST(what_is_longer_than_there_is_room_for_ends_the_wire)
{
	static const size_t sizes[] = {SMALL + 1, 65536 + 1};
	unsigned char *data = some_bytes(BIG), got[SMALL];
	for (unsigned i = 0; i < 2; i++) {
		struct rig r;
		uint32_t type;
		size_t n;
		rig_open(&r);
		ck_assert_int_eq(wire_send(r.asker, 1, data, sizes[i], 5), 0);
		ck_assert_int_eq(wire_recv(r.taker, 5, &type, got, SMALL, &n), ERR_CORRUPT);
		ck_assert_int_eq(wire_recv(r.taker, 5, &type, got, SMALL, &n), ERR_CLOSED);
		ck_assert_int_eq(wire_send(r.taker, 1, data, 1, 5), ERR_CLOSED);
		rig_free(&r);
	}
	free(data);
}

/* --- somebody between the ends ------------------------------------------- */

enum { RECORD_HEAD = 12, SEAL = 17, RECORD = RECORD_HEAD + SMALL + SEAL };

/* The asker's records are read from `raw`; what is written to `forged` arrives at the taker. */
static void rig_between(struct rig *r, int *raw, int *forged)
{
	unsigned char hello[WIRE_HELLO_BYTES], welcome[41];
	int pair[2];
	pthread_t t;
	rig_listen(r);
	pthread_create(&t, NULL, ask, r);
	*raw = take_hello(r, hello);
	ck_assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
	ck_assert_int_eq(wire_accept(pair[0], hello, &r->ticket, &r->taker), 0);
	*forged = pair[1];
	ck_assert_int_eq(recv(*forged, welcome, sizeof welcome, MSG_WAITALL), sizeof welcome);
	ck_assert_int_eq(send(*raw, welcome, sizeof welcome, 0), sizeof welcome);
	pthread_join(t, NULL);
	ck_assert_int_eq(r->asked, 0);
}

static int arrives(struct rig *r)
{
	unsigned char got[SMALL];
	uint32_t type;
	size_t n;
	return wire_recv(r->taker, 5, &type, got, sizeof got, &n);
}

static void records(struct rig *r, int raw, unsigned char *out, unsigned n)
{
	unsigned char *data = some_bytes(SMALL);
	for (unsigned i = 0; i < n; i++)
		ck_assert_int_eq(wire_send(r->asker, 1, data, SMALL, 5), 0);
	ck_assert_int_eq(recv(raw, out, (size_t)n * RECORD, MSG_WAITALL), (ssize_t)n * RECORD);
	free(data);
}

TEST(nothing_that_was_changed_is_taken)
{
	/* of type, length of the message, length of the record, data, MAC */
	static const unsigned at[] = {0, 4, 8, RECORD_HEAD, RECORD_HEAD + SMALL / 2, RECORD - 1};
	for (unsigned i = 0; i < sizeof at / sizeof *at; i++) {
		struct rig r;
		unsigned char b[RECORD];
		int raw, forged;
		rig_between(&r, &raw, &forged);
		records(&r, raw, b, 1);
		ck_assert_int_eq(send(forged, b, RECORD, 0), RECORD);
		ck_assert_int_eq(arrives(&r), 0);
		records(&r, raw, b, 1);
		b[at[i]] ^= 1;
		ck_assert_int_eq(send(forged, b, RECORD, 0), RECORD);
		shutdown(forged, SHUT_WR); /* a longer record does not arrive whole */
		int rc = arrives(&r);
		ck_assert_msg(rc == ERR_CORRUPT || (at[i] == 8 && rc == ERR_CLOSED), "byte %u: %d", at[i],
		              rc);
		ck_assert_int_eq(arrives(&r), ERR_CLOSED);
		close(raw);
		close(forged);
		rig_free(&r);
	}
}

TEST(records_are_taken_once_and_in_order)
{
	for (unsigned story = 0; story < 3; story++) {
		struct rig r;
		unsigned char b[2 * RECORD];
		int raw, forged;
		rig_between(&r, &raw, &forged);
		records(&r, raw, b, 2);
		if (story == 0) { /* the first one twice */
			send(forged, b, RECORD, 0);
			ck_assert_int_eq(arrives(&r), 0);
			send(forged, b, RECORD, 0);
		} else if (story == 1) { /* the first one left out */
			send(forged, b + RECORD, RECORD, 0);
		} else { /* back to where it comes from */
			send(raw, b, RECORD, 0);
			struct wire *taker = r.taker;
			r.taker = r.asker;
			r.asker = taker;
		}
		ck_assert_int_eq(arrives(&r), ERR_CORRUPT);
		close(raw);
		close(forged);
		rig_free(&r);
	}
}

TEST(a_message_that_stops_in_the_middle_ends_the_wire)
{
	struct rig r;
	unsigned char b[RECORD];
	int raw, forged;
	rig_between(&r, &raw, &forged);
	records(&r, raw, b, 1);
	send(forged, b, RECORD - 5, 0);
	unsigned char got[SMALL];
	uint32_t type;
	size_t n;
	uint64_t begun_us = clock_us();
	ck_assert_int_eq(wire_recv(r.taker, 1, &type, got, sizeof got, &n), ERR_CORRUPT);
	ck_assert_uint_lt(clock_us() - begun_us, 3000000);
	ck_assert_int_eq(arrives(&r), ERR_CLOSED);
	close(raw);
	close(forged);
	rig_free(&r);
}

/* --- handshakes ---------------------------------------------------------- */

TEST(a_wrong_secret_is_refused_by_both_ends)
{
	struct rig r;
	struct wire_ticket other;
	unsigned char hello[WIRE_HELLO_BYTES], welcome[41] = {0};
	pthread_t t;
	rig_listen(&r);
	other = r.ticket;
	other.secret[5] ^= 1;
	pthread_create(&t, NULL, ask, &r);
	int fd = take_hello(&r, hello);
	ck_assert_int_eq(wire_accept(fd, hello, &other, &r.taker), ERR_CORRUPT);
	/* a listener that does not have it, either */
	ck_assert_int_eq(send(fd, welcome, sizeof welcome, 0), sizeof welcome);
	pthread_join(t, NULL);
	ck_assert_int_eq(r.asked, ERR_CORRUPT);
	close(fd);
	/* HELLO that was changed */
	for (unsigned at = 8; at < WIRE_HELLO_BYTES; at += 12) {
		pthread_create(&t, NULL, ask, &r);
		fd = take_hello(&r, hello);
		hello[at] ^= 1;
		ck_assert_int_eq(wire_accept(fd, hello, &r.ticket, &r.taker), ERR_CORRUPT);
		close(fd);
		pthread_join(t, NULL);
		ck_assert_int_eq(r.asked, ERR_CLOSED);
	}
	hello[0] ^= 1;
	ck_assert(wire_hello_id(hello) == 0);
	rig_free(&r);
}

TEST(a_listener_that_says_nothing_is_given_up)
{
	struct rig r;
	rig_listen(&r);
	uint64_t begun_us = clock_us();
	ask(&r);
	ck_assert_int_eq(r.asked, ERR_TIMEOUT);
	ck_assert_uint_lt(clock_us() - begun_us, (WIRE_HELLO_LIMIT_S + 2) * 1000000u);
	ck_assert(strstr(r.err.text, "127.0.0.1") != NULL);
	close(r.listener);
	ask(&r);
	ck_assert_int_eq(r.asked, ERR_IO);
	r.listener = -1;
	rig_free(&r);
}

/* --- an end that stops or ends ------------------------------------------- */

/* A process that has the asking end and receives; the taker's end is here. */
static pid_t rig_fork(struct rig *r)
{
	rig_open(r);
	pid_t pid = fork();
	if (pid == 0) {
		unsigned char *got = some_bytes(BIG);
		uint32_t type;
		size_t n;
		wire_destroy(&r->taker);
		while (wire_recv(r->asker, 0, &type, got, BIG, &n) == 0)
			wire_send(r->asker, type, got, n, 5);
		_exit(0);
	}
	wire_destroy(&r->asker);
	return pid;
}

struct killer {
	pid_t pid;
	int sig;
	uint64_t at_us;
};

static void *kill_soon(void *arg)
{
	struct killer *k = arg;
	usleep(200000);
	k->at_us = clock_us();
	kill(k->pid, k->sig);
	return NULL;
}

TEST(an_end_that_is_killed_is_noticed_at_once)
{
	struct rig r;
	unsigned char got[SMALL];
	uint32_t type;
	size_t n;
	pthread_t t;
	struct killer k = {.pid = rig_fork(&r), .sig = SIGKILL};
	ck_assert_int_eq(wire_send(r.taker, 7, "abc", 3, 5), 0);
	ck_assert_int_eq(wire_recv(r.taker, 5, &type, got, sizeof got, &n), 0);
	ck_assert(type == 7 && n == 3 && memcmp(got, "abc", 3) == 0);
	pthread_create(&t, NULL, kill_soon, &k);
	ck_assert_int_eq(wire_recv(r.taker, 30, &type, got, sizeof got, &n), ERR_CLOSED);
	pthread_join(t, NULL);
	ck_assert_uint_lt(clock_us() - k.at_us, 1000000);
	waitpid(k.pid, NULL, 0);
	rig_free(&r);
}

TEST(an_end_that_is_stopped_costs_no_more_than_the_limit)
{
	struct rig r;
	unsigned char *data = some_bytes(BIG);
	uint32_t type;
	size_t n;
	pid_t pid = rig_fork(&r);
	kill(pid, SIGSTOP);
	uint64_t begun_us = clock_us();
	ck_assert_int_eq(wire_recv(r.taker, 1, &type, data, BIG, &n), ERR_TIMEOUT);
	/* the kernel takes some messages, then no more */
	int rc = 0;
	for (unsigned i = 0; !rc && i < 1000; i++)
		rc = wire_send(r.taker, 1, data, BIG, 1);
	ck_assert_int_eq(rc, ERR_TIMEOUT);
	ck_assert_uint_lt(clock_us() - begun_us, 10000000);
	ck_assert_int_eq(wire_recv(r.taker, 1, &type, data, BIG, &n), ERR_CLOSED);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	free(data);
	rig_free(&r);
}
