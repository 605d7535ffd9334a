/* test_router_http.c - requests at the HTTP edge, of clients that pipeline and read nothing, that
 * trickle, or that send what nobody asked for; and the bytes that may wait in either direction.
 * Crowds of connections: test_router_http_crowd.c. */
/* run: waits */
#include "http_rig.h"

#include <pthread.h>

/* A client that pipelines and reads nothing has few of its requests answered, the rest when it
 * reads: each once. */
TEST(answers_that_nobody_takes)
{
	static const char one[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
	enum { N = 2000, BYTES = N * (sizeof one - 1) };
	char *all = malloc(BYTES);
	size_t sent = 0, got = 0;
	int closed = 0;
	answer_bytes = 20000; /* all of them are more than the system takes */
	for (int i = 0; i < N; i++)
		memcpy(all + (size_t)i * (sizeof one - 1), one, sizeof one - 1);
	begin();
	int fd = dial();
	for (unsigned quiet = 0; quiet < 50; turn()) { /* until nothing moves any more */
		size_t k = push(fd, all + sent, BYTES - sent);
		unsigned before = handled;
		turn();
		quiet = k || handled != before ? 0 : quiet + 1;
		sent += k;
	}
	ck_assert_uint_gt(handled, 20);
	ck_assert_msg(handled < N / 2, "%u of %d requests were answered to one who reads nothing",
	              handled, N);
	UNTIL(handled == N, sent += push(fd, all + sent, BYTES - sent), got += take(fd, &closed));
	UNTIL(got / N > answer_bytes && got % N == 0, got += take(fd, &closed));
	ck_assert_int_eq(closed, 0);
	close(fd);
	free(all);
}

/* One answer is larger than all that may wait: the request behind it is answered when it was
 * read. */
TEST(behind_a_large_answer)
{
	enum { N = 400 };
	size_t got = 0;
	int closed = 0;
	answer_bytes = sizeof answer;
	/* it waits for its client, not for its request's bytes: no 408 */
	opts.read_us = 200000;
	begin();
	int fd = dial();
	static char all[N * 32];
	for (int i = 0; i < N; i++)
		strcat(all, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
	say(fd, all);
	for (uint64_t end = clock_us() + 1500000; clock_us() < end;) /* three looks at the limits */
		turn();
	ck_assert_uint_lt(handled, N);
	UNTIL(handled == N, got += take(fd, &closed));
	UNTIL(got > N * sizeof answer, got += take(fd, &closed));
	ck_assert_int_eq(closed, 0);
	close(fd);
}

/* Empty lines before a request are no request, in whatever pieces they come. */
TEST_LOOP(empty_lines, 0, 4)
{
	static const char *const pieces[][5] = {
		{"\r\n", "GET / HTTP/1.1\r\nHost: x\r\n\r\n"},
		{"\r", "\n", "GET / HTTP/1.1\r\nHost: x\r\n\r\n"},
		{"\r\n\r", "\nGET / HTTP/1.1\r\nHost: x\r\n\r", "\n"},
		{"\r\n\r\n\r\nG", "ET / HTTP/1.1\r\nHost: x\r", "\n\r", "\n"},
	};
	size_t got = 0;
	int closed = 0;
	answer_bytes = 10;
	begin();
	int fd = dial();
	UNTIL(http_connections(server) == 1);
	for (int i = 0; i < 5 && pieces[_i][i]; i++) {
		say(fd, pieces[_i][i]);
		for (int k = 0; k < 5; k++)
			turn();
	}
	UNTIL(got += take(fd, &closed));
	ck_assert_uint_eq(handled, 1);
	ck_assert_int_eq(closed, 0);
	close(fd);
}

/* They do not keep a connection open either. */
TEST_LOOP(empty_lines_for_ever, 0, 2)
{
	int closed = 0;
	opts.idle_us = opts.read_us = 300000;
	opts.max_header_bytes = 1u << 20; /* its time ends it, not its size */
	begin();
	int fd = dial();
	UNTIL(closed, push(fd, "\r", 1u - (size_t)_i), turn(),
	      push(fd, "\r\n" + 1 - _i, 1u + (size_t)_i), take(fd, &closed));
	ck_assert_uint_eq(handled, 0);
	close(fd);
}

TEST(trailer_without_end)
{
	static char line[1000];
	char room[512] = "";
	begin();
	int fd = dial();
	memset(line, 'x', sizeof line - 1);
	memcpy(line, "a: ", 3);
	memcpy(line + sizeof line - 3, "\r\n", 2);
	say(fd, "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n");
	UNTIL(recv(fd, room, sizeof room - 1, 0) > 0, push(fd, line, sizeof line - 1));
	ck_assert_msg(strncmp(room, "HTTP/1.1 431 ", 13) == 0, "%s", room);
	ck_assert_uint_eq(handled, 0);
	close(fd);
}

/* --- what is decided at the head ----------------------------------------- */

/* Who is refused at the head is neither asked for the body nor is anything of it kept; he sees the
 * answer although he sends on. */
TEST_LOOP(refused_at_the_head, 0, 2)
{
	static const char *const requests[] = {
		"POST /no HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1000000\r\n\r\n",
		"POST /no HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nTransfer-Encoding: "
		"chunked\r\n\r\n",
	};
	static char body[100000];
	begin();
	int fd = dial(), closed = 0;
	size_t sent = 0;
	say(fd, requests[_i]);
	answered(fd, "HTTP/1.1 401 ", NULL);
	UNTIL(closed, {
		sent += push(fd, body, sizeof body);
		take(fd, &closed);
		ck_assert_uint_lt(counts().in_bytes, 20000);
	});
	ck_assert_uint_gt(sent, 0);
	ck_assert_uint_eq(heads, 1);
	ck_assert_uint_eq(handled, 0);
	close(fd);
	UNTIL(counts().connections == 0);
	ck_assert_uint_eq(counts().in_bytes, 0);
}

/* Without a body the connection stays. */
TEST(refused_and_kept)
{
	begin();
	int fd = dial();
	for (int i = 0; i < 3; i++) {
		say(fd, "GET /no HTTP/1.1\r\nHost: x\r\n\r\n");
		answered(fd, "HTTP/1.1 401 ", NULL);
	}
	say(fd, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
	answered(fd, "HTTP/1.1 200 ", NULL);
	ck_assert_uint_eq(heads, 4);
	ck_assert_uint_eq(handled, 1);
	close(fd);
}

TEST(asked_for_the_body)
{
	begin();
	int fd = dial();
	say(fd, "POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
	answered(fd, "HTTP/1.1 100 Continue\r\n\r\n", NULL);
	say(fd, "abc");
	answered(fd, "HTTP/1.1 200 ", NULL);
	say(fd,
	    "POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 9000000\r\n\r\n");
	answered(fd, "HTTP/1.1 413 ", NULL);
	ck_assert_uint_eq(handled, 1);
	close(fd);
}

/* --- bytes --------------------------------------------------------------- */

#define LARGE (1u << 20)

/* All of it, as fast as the edge takes it; or until an answer is there. */
static void upload(int fd, const char *path, size_t len)
{
	static char zeros[LARGE];
	char text[200], peek[4];
	size_t sent = 0;
	snprintf(text, sizeof text, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n", path,
	         len);
	say(fd, text);
	UNTIL(sent == len || recv(fd, peek, 1, MSG_PEEK) > 0, sent += push(fd, zeros, len - sent));
}

static void *free_all(void *arg)
{
	(void)arg;
	for (unsigned i = 0; i < n_held; i++)
		http_body_free(&held[i]);
	return NULL;
}

/* An address may hold half of the bytes that there are, and leaves enough to the next one; what is
 * freed, on any thread, is room again. */
TEST(bytes_of_addresses)
{
	int fd[8], other;
	begin(); /* 8 MiB */
	for (unsigned i = 0; i < 8; i++) {
		fd[i] = dial();
		upload(fd[i], "/hold", LARGE - 2048);
		if (i < 4) {
			UNTIL(n_held == i + 1);
		} else {
			answered(fd[i], "HTTP/1.1 503 ", NULL);
		}
		ck_assert_uint_le(counts().in_bytes, 4u << 20);
	}
	ck_assert_uint_eq(n_held, 4);
	other = dial(); /* a small request of the same address */
	say(other, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
	answered(other, "HTTP/1.1 200 ", NULL);
	other = dial_from(2);
	upload(other, "/hold", LARGE);
	UNTIL(n_held == 5);
	upload(dial_from(3), "/", LARGE);
	UNTIL(handled == 7);
	pthread_t t;
	ck_assert_int_eq(pthread_create(&t, NULL, free_all, NULL), 0);
	pthread_join(t, NULL);
	UNTIL(counts().in_bytes < 100000); /* heads, while their requests are not answered */
	int again = dial();
	upload(again, "/", LARGE);
	answered(again, "HTTP/1.1 200 ", NULL);
}

/* Nobody says how long they will be: refused on the way, and nothing is kept. */
TEST(bytes_of_chunks)
{
	enum { N = 7 };
	static char chunk[65536 + 8];
	char text[N][512] = {{0}};
	int fd[N], over[N] = {0}, refused = 0;
	size_t at[N] = {0}, rounds[N] = {0};
	int n = sprintf(chunk, "%x\r\n", 65536 - 8);
	memset(chunk + n, 'x', 65536 - 8);
	memcpy(chunk + n + 65536 - 8, "\r\n", 2);
	size_t size = (size_t)n + 65536 - 6;
	begin();
	for (int i = 0; i < N; i++) {
		fd[i] = dial();
		say(fd[i], "POST /hold HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
	}
	/* up to 15 chunks each, none complete */
	for (int i = 0; refused < 2; i = (i + 1) % N, turn()) {
		if (!over[i] && rounds[i] < 15) {
			size_t k = push(fd[i], chunk + at[i], size - at[i]);
			at[i] = at[i] + k == size ? rounds[i]++, 0 : at[i] + k;
		}
		listen_to(fd[i], text[i], sizeof text[i], &over[i]);
		if (!over[i] && *text[i] && strncmp(text[i], "HTTP/1.1 503 ", 13) == 0) {
			over[i] = 1;
			refused++;
		}
		ck_assert_uint_le(counts().in_bytes, 4u << 20);
	}
	for (int i = 0; i < N; i++)
		close(fd[i]);
	UNTIL(counts().connections == 0);
	ck_assert_uint_eq(counts().in_bytes, 0);
}

/* What one client sends behind a request that is being answered stays in the system's buffers, but
 * for a little, and his end behind it is seen all the same. */
static int gone;

static void on_gone(void *arg)
{
	(void)arg;
	gone++;
}

TEST(much_behind_a_request)
{
	static char more[50000];
	begin();
	gone = 0;
	int fd = dial();
	say(fd, "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
	UNTIL(n_held == 1);
	http_on_gone(held_conn[0], on_gone, NULL);
	memset(more, 'x', sizeof more);
	size_t sent = push(fd, more, sizeof more);
	ck_assert_uint_gt(sent, 30000);
	UNTIL(counts().in_bytes > 16000);
	for (int i = 0; i < 20; i++) {
		turn();
		ck_assert_uint_lt(counts().in_bytes, 20000);
	}
	ck_assert_int_eq(gone, 0);
	close(fd);
	UNTIL(gone == 1);
	UNTIL(counts().connections == 0);
}

/* Clients that take nothing share what may wait for them; who has little waiting gets on. */
TEST(unread_streams)
{
	enum { GREEDY = 6 };
	static char piece[16384];
	int fd[GREEDY + 1], small = 4096;
	opts.out_bytes_max = 4u << 20;
	opts.out_total_max = 8u << 20;
	begin();
	for (unsigned i = 0; i <= GREEDY; i++) {
		fd[i] = dial();
		setsockopt(fd[i], SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
		say(fd[i], "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
		UNTIL(n_held == i + 1);
	}
	/* until the kernel takes no more of it either */
	for (int refused = 0; refused < 100 * GREEDY;) {
		for (int i = 0; i < GREEDY; i++)
			refused = http_stream_add(held_conn[i], piece, sizeof piece) < 0 ? refused + 1 : 0;
		turn();
		ck_assert_uint_le(counts().out_bytes, 4u << 20);
	}
	ck_assert_uint_gt(counts().out_bytes, 5u << 19); /* their address has 4 MiB */
	ck_assert_int_eq(http_stream_add(held_conn[GREEDY], piece, sizeof piece), 0);
	for (unsigned i = 0; i <= GREEDY; i++)
		close(fd[i]);
	UNTIL(counts().connections == 0);
	ck_assert_uint_eq(counts().out_bytes, 0);
}

/* An address with many such clients leaves to others what it has itself, and a little to each
 * stream. */
TEST(unread_streams_of_an_address)
{
	enum { GREEDY = 40, MAX = 8u << 20 };
	static char piece[4096];
	int fd[GREEDY + 1], small = 4096, moved = 1;
	size_t given = 0;
	opts.out_bytes_max = 4u << 20;
	opts.out_total_max = MAX;
	begin();
	for (unsigned i = 0; i <= GREEDY; i++) {
		fd[i] = dial_from(i < GREEDY ? 1 : 2);
		setsockopt(fd[i], SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
		say(fd[i], "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
		UNTIL(n_held == i + 1);
	}
	for (unsigned quiet = 0; quiet < 50; quiet = moved ? 0 : quiet + 1, turn()) {
		moved = 0;
		for (int i = 0; i < GREEDY; i++)
			while (http_stream_add(held_conn[i], piece, sizeof piece) == 0)
				moved = 1;
		ck_assert_uint_le(counts().out_bytes, MAX / 2 + GREEDY * HTTP_SURE_BYTES);
	}
	for (; given < 1500000 && http_stream_add(held_conn[GREEDY], piece, sizeof piece) == 0; turn())
		given += sizeof piece;
	ck_assert_uint_ge(given, 1500000);
	for (unsigned i = 0; i <= GREEDY; i++)
		close(fd[i]);
	UNTIL(counts().connections == 0);
	ck_assert_uint_eq(counts().out_bytes, 0);
}

/* Who has nothing waiting may always leave a little, whatever others have left. */
TEST(a_little_always_fits)
{
	static char piece[HTTP_SURE_BYTES - 500]; /* and the head */
	opts.out_total_max = 1000;
	begin();
	int fd = dial(), closed = 0;
	say(fd, "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
	UNTIL(n_held == 1);
	ck_assert_uint_ge(http_room(held_conn[0]), sizeof piece);
	ck_assert_int_eq(http_stream_add(held_conn[0], piece, sizeof piece), 0);
	ck_assert_uint_lt(http_room(held_conn[0]), sizeof piece);
	ck_assert_int_eq(http_stream_add(held_conn[0], piece, sizeof piece), ERR_FULL);
	UNTIL(http_unsent(held_conn[0]) == 0, take(fd, &closed));
	ck_assert_int_eq(http_stream_add(held_conn[0], piece, sizeof piece), 0);
	http_stream_end(held_conn[0]);
	close(fd);
}

static void count_call(void *arg)
{
	++*(unsigned *)arg;
}

/* Who waits for room is asked again, although his client has taken all there was. */
TEST(asked_again)
{
	unsigned asked = 0;
	int closed = 0;
	begin();
	int fd = dial();
	say(fd, "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
	UNTIL(n_held == 1);
	http_on_taken(held_conn[0], count_call, &asked);
	UNTIL(asked >= 3);
	http_drop(held_conn[0]);
	UNTIL(closed, take(fd, &closed));
	ck_assert_uint_eq(counts().cut, 1);
	close(fd);
}

/* A whole answer for which there is no room is not given; its client is told so. */
TEST(whole_answer_without_room)
{
	opts.out_total_max = 300000;
	begin();
	int fd = dial(), closed = 0;
	answer_bytes = 90000; /* more than half of the address's half */
	say(fd, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
	answered(fd, "HTTP/1.1 503 ", NULL);
	UNTIL(closed, take(fd, &closed));
	close(fd);
	fd = dial();
	answer_bytes = 70000;
	say(fd, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
	answered(fd, "HTTP/1.1 200 ", NULL);
	close(fd);
}
