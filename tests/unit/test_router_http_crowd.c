/* test_router_http_crowd.c - more connections at the HTTP edge than there is room for: who stays,
 * who gives way, who is told so, when descriptors run out and when the edge is drained. */
/* run: waits */
#include "http_rig.h"

#include <sys/syscall.h>

/* In place of libc's, for libevent as well. */
static int accept_fails;
static unsigned accept_failed;

int accept4(int listener, struct sockaddr *addr, socklen_t *len, int flags)
{
	if (accept_fails) {
		accept_failed++;
		errno = ENFILE;
		return -1;
	}
	return (int)syscall(SYS_accept4, listener, addr, len, flags);
}

static void hold(int fd)
{
	unsigned n = n_held;
	say(fd, "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
	UNTIL(n_held == n + 1);
}

static int is_open(int fd)
{
	char c;
	return recv(fd, &c, 1, MSG_PEEK) < 0 && errno == EAGAIN;
}

/* They give way to whoever comes, those first that have waited longest; with half of all one
 * address gives way to itself. */
TEST(idle_ones_make_room)
{
	enum { N = 60 };
	int fd[N], others[20], open = 0;
	opts.max_connections = 24;
	begin();
	for (int i = 0; i < N; i++) {
		fd[i] = dial();
		if (i % 3 == 1)
			say(fd[i], "GET / HTTP/1.1\r\nHos"); /* no whole head either */
		UNTIL(counts().accepted == (unsigned)i + 1);
	}
	ck_assert_uint_eq(counts().connections, 12);
	ck_assert_uint_eq(counts().closed_waiting, N - 12);
	for (int i = 0; i < N; i++)
		open += is_open(fd[i]) && i >= N - 12;
	ck_assert_int_eq(open, 12);
	/* others come, each once: the address that has most gives way when all are taken */
	for (unsigned i = 0; i < 20; i++) {
		others[i] = dial_from(2 + i);
		UNTIL(counts().accepted == N + i + 1);
		ck_assert_uint_le(counts().connections, 24);
	}
	ck_assert_uint_eq(counts().connections, 24);
	/* and the large address goes on: it takes its own places, although they are the younger ones */
	for (int i = 0; i < 8; i++) {
		fd[i] = dial();
		UNTIL(counts().accepted == N + 20 + (unsigned)i + 1);
		ck_assert_uint_eq(counts().connections, 24);
	}
	for (unsigned i = 0; i < 20; i++)
		ck_assert_int_eq(is_open(others[i]), 1);
	say(others[0], "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
	answered(others[0], "HTTP/1.1 200 ", NULL);
	for (int i = 0; i < N; i++)
		close(fd[i]);
	for (int i = 0; i < 20; i++)
		close(others[i]);
	UNTIL(counts().connections == 0);
}

/* Nor does one give way that has not taken its answer, until it has. */
TEST(untaken_answers_stay)
{
	enum { N = 400 };
	static const char one[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
	size_t got = 0;
	int fd, late, closed = 0;
	opts.max_per_address = 1;
	answer_bytes = sizeof answer;
	begin();
	fd = dial();
	for (int i = 0; i < N; i++)
		say(fd, one);
	for (unsigned quiet = 0, before = 0; quiet < 20; turn()) {
		quiet = handled == before ? quiet + 1 : 0;
		before = handled;
	}
	ck_assert_uint_lt(handled, N);
	late = dial();
	answered(late, "HTTP/1.1 503 ", NULL);
	close(late);
	UNTIL(got > N * sizeof answer, got += take(fd, &closed));
	ck_assert_int_eq(closed, 0);
	UNTIL(got % N == 0, got += take(fd, &closed));
	late = dial();
	say(late, one);
	answered(late, "HTTP/1.1 200 ", NULL);
	ck_assert_int_eq(is_open(fd), 0);
	close(fd);
	close(late);
}

/* Busy ones stay. Who comes then is told so, a few of an address, past which they are closed;
 * another address comes in. */
TEST(busy_ones_stay)
{
	enum { N = 60 };
	int fd[N], told = 0, cut = 0;
	char c[14];
	opts.max_connections = 24;
	begin();
	for (int i = 0; i < N; i++) {
		fd[i] = dial();
		if (i < 12)
			hold(fd[i]);
		turn();
	}
	UNTIL(told + cut == N - 12, {
		told = cut = 0;
		for (int i = 12; i < N; i++) {
			ssize_t k = recv(fd[i], c, sizeof c, MSG_PEEK);
			told += k > 13 && memcmp(c, "HTTP/1.1 503 ", 13) == 0;
			cut += k == 0 || (k < 0 && errno != EAGAIN);
		}
	});
	ck_assert_int_eq(told, 16);
	ck_assert_uint_eq(counts().closed_waiting, 0);
	ck_assert_uint_le(counts().connections + 1, http_descriptors(24));
	int other = dial_from(2);
	say(other, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
	answered(other, "HTTP/1.1 200 ", NULL);
	for (int i = 0; i < N; i++)
		close(fd[i]);
	close(other);
	UNTIL(counts().connections == 0);
}

TEST(cap_of_an_address)
{
	int fd[6];
	opts.max_per_address = 3;
	begin();
	for (int i = 0; i < 3; i++) {
		fd[i] = dial();
		hold(fd[i]);
	}
	fd[3] = dial();
	answered(fd[3], "HTTP/1.1 503 ", NULL);
	fd[4] = dial_from(2);
	hold(fd[4]);
	/* that one waits now, and makes room for the next */
	http_reply(held_conn[1], 200, "text/plain", NULL, "x", 1);
	answered(fd[1], "HTTP/1.1 200 ", NULL);
	fd[5] = dial();
	hold(fd[5]);
	UNTIL(counts().closed_waiting == 1);
	ck_assert_int_eq(is_open(fd[1]), 0);
	ck_assert_int_eq(is_open(fd[0]), 1);
	for (int i = 0; i < 6; i++)
		close(fd[i]);
}

/* Its request has arrived but is not parsed yet when the next one comes: another gives way. */
TEST(one_whose_request_has_just_arrived_stays)
{
	int fd[4];
	opts.max_per_address = 3;
	begin();
	for (unsigned i = 0; i < 3; i++) {
		fd[i] = dial();
		UNTIL(counts().accepted == i + 1);
	}
	turn(); /* so that the listener is not ready before fd[0] is */
	turn();
	say(fd[0], "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); /* the longest waiting */
	fd[3] = dial();
	answered(fd[0], "HTTP/1.1 200 ", NULL);
	UNTIL(counts().closed_waiting == 1);
	ck_assert_int_eq(is_open(fd[1]), 0);
	for (int i = 0; i < 4; i++)
		close(fd[i]);
}

/* The table is full of others. Who is busy here comes in once more only at the cost of an address
 * that has more. */
TEST(full_of_others)
{
	int fd[9];
	opts.max_connections = 8;
	begin();
	for (unsigned i = 0; i < 8; i++) {
		fd[i] = dial_from(i < 3 ? 1 : i - 1); /* 3, 1, 1, 1, 1, 1 */
		if (i == 3 || i == 4)
			hold(fd[i]);
		UNTIL(counts().accepted == i + 1);
	}
	fd[8] = dial_from(2); /* has one, busy: the three make room */
	hold(fd[8]);
	UNTIL(counts().closed_waiting == 1);
	ck_assert_int_eq(is_open(fd[0]), 0);
	int late = dial_from(2); /* has two, as the others have at most */
	answered(late, "HTTP/1.1 503 ", NULL);
	for (int i = 1; i < 9; i++)
		ck_assert_int_eq(is_open(fd[i]), 1);
	for (int i = 0; i < 9; i++)
		close(fd[i]);
	close(late);
}

/* Out of descriptors for a moment, with nobody connected: who came then is accepted afterwards. */
TEST(no_descriptors_for_a_moment)
{
	begin();
	int fd = dial();
	UNTIL(counts().connections == 1);
	close(fd);
	UNTIL(counts().connections == 0);
	for (uint64_t end = clock_us() + 1200000; clock_us() < end;) /* the tick has ended */
		turn();
	accept_fails = 1;
	fd = dial();
	UNTIL(accept_failed);
	accept_fails = 0;
	say(fd, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
	answered(fd, "HTTP/1.1 200 ", NULL);
	close(fd);
}

/* --- the end ------------------------------------------------------------- */

/* Whatever a client has sent: it is told, and its connection closes. */
TEST(drained)
{
	int part, body, waits, busy, closed = 0;
	begin();
	part = dial();
	say(part, "GET / HT");
	body = dial();
	say(body, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc");
	waits = dial();
	busy = dial();
	hold(busy);
	UNTIL(counts().accepted == 4 && heads == 2);
	ck_assert_int_eq(http_busy(server), 1);
	int late = dial(); /* not accepted yet */
	say(late, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
	http_drain(server);
	answered(part, "HTTP/1.1 503 ", NULL);
	answered(body, "HTTP/1.1 503 ", NULL);
	answered(late, "HTTP/1.1 200 ", NULL); /* what the handlers say to it */
	say(waits, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
	answered(waits, "HTTP/1.1 200 ", NULL);
	UNTIL(closed, take(waits, &closed));
	http_reply(held_conn[0], 200, "text/plain", NULL, "x", 1);
	answered(busy, "HTTP/1.1 200 ", NULL);
	for (closed = 0; !closed; turn())
		take(busy, &closed);
	close(part);
	close(body);
	UNTIL(!http_busy(server));
	close(late);
	close(waits);
	close(busy);
}
