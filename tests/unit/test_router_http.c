/* test_router_http.c - the HTTP edge by itself, against clients that pipeline and read nothing, trickle, or come in crowds. They are sockets of the test's own on
 * the loop's thread; the handler counts and answers. */
#include "daemons/router/http.h"
#include "util/clock.h"
#include "util/log.h"

#include <arpa/inet.h>
#include <check.h>
#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define WAIT_US 20000000u
/* Turns the loop, and does each time what follows the condition, until that holds. */
#define UNTIL(cond, ...) \
	for (uint64_t until_end = clock_us() + WAIT_US; !(cond); turn()) { \
		ck_assert_msg(clock_us() < until_end, "not within %u s: %s", WAIT_US / 1000000u, #cond); \
		__VA_ARGS__; \
	}

static struct event_base *base;
static struct http_server *server;
static struct http_opts opts;
static unsigned handled;
static size_t answer_bytes;
static char answer[100000];

/* One turn of the loop: what is there, or a few milliseconds. */
static void turn(void)
{
	struct timeval t = {.tv_usec = 2000};
	event_base_loopexit(base, &t);
	event_base_loop(base, EVLOOP_ONCE);
}

static void handle(void *arg, struct http_conn *c, struct http_request *q)
{
	(void)arg;
	(void)q;
	handled++;
	http_reply(c, 200, "text/plain", NULL, answer, answer_bytes);
}

static void set_up(void)
{
	base = event_base_new();
	opts = (struct http_opts){.listen = "127.0.0.1:0", .max_header_bytes = 4096, .max_body_bytes = 1u << 20, .out_bytes_max = 1u << 20, .max_connections = 100,
	                          .idle_us = 60000000, .read_us = 60000000, .write_us = 60000000};
	memset(answer, 'a', sizeof answer);
	answer_bytes = 1000;
	handled = 0;
}

static void begin(void)
{
	struct err err = {0};
	ck_assert_msg(http_new(base, &opts, handle, NULL, &server, &err) == 0, "%s", err.text);
}

static void tear_down(void)
{
	http_destroy(&server);
	event_base_free(base);
}

static int dial(void)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)http_port(server)), .sin_addr = {htonl(INADDR_LOOPBACK)}};
	int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
	ck_assert_int_ge(fd, 0);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	ck_assert_int_eq(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
	fcntl(fd, F_SETFL, O_NONBLOCK);
	return fd;
}

static void say(int fd, const char *text)
{
	ck_assert_int_eq((int)send(fd, text, strlen(text), 0), (int)strlen(text));
}

/* As much as the socket takes now. */
static size_t push(int fd, const char *bytes, size_t n)
{
	ssize_t k = n ? send(fd, bytes, n, 0) : 0;
	return k > 0 ? (size_t)k : 0;
}

/* What is there to read is read; *closed is set at its end. */
static size_t take(int fd, int *closed)
{
	static char room[1u << 16];
	size_t sum = 0;
	for (ssize_t k; (k = recv(fd, room, sizeof room, 0)) != 0; sum += (size_t)k)
		if (k < 0) {
			*closed |= errno != EAGAIN;
			return sum;
		}
	*closed = 1;
	return sum;
}

/* A client that pipelines and reads nothing has few of its requests answered, the rest when it reads: each once. */
START_TEST(answers_that_nobody_takes)
{
	static const char one[] = "GET / HTTP/1.1\r\n\r\n";
	enum { N = 2000, BYTES = N * (sizeof one - 1) };
	char *all = malloc(BYTES);
	size_t sent = 0, got = 0;
	int closed = 0;
	answer_bytes = 20000;              /* all of them are more than the system takes */
	for (int i = 0; i < N; i++)
		memcpy(all + (size_t)i * (sizeof one - 1), one, sizeof one - 1);
	begin();
	int fd = dial();
	for (unsigned quiet = 0; quiet < 50; turn()) {   /* until nothing moves any more */
		size_t k = push(fd, all + sent, BYTES - sent);
		unsigned before = handled;
		turn();
		quiet = k || handled != before ? 0 : quiet + 1;
		sent += k;
	}
	ck_assert_uint_gt(handled, 20);
	ck_assert_msg(handled < N / 2, "%u of %d requests were answered to one who reads nothing", handled, N);
	UNTIL(handled == N, sent += push(fd, all + sent, BYTES - sent), got += take(fd, &closed));
	UNTIL(got / N > answer_bytes && got % N == 0, got += take(fd, &closed));
	ck_assert_int_eq(closed, 0);
	close(fd);
	free(all);
}
END_TEST

/* One answer is larger than all that may wait: the request behind it is answered when it was read. */
START_TEST(behind_a_large_answer)
{
	enum { N = 400 };
	size_t got = 0;
	int closed = 0;
	answer_bytes = sizeof answer;
	opts.read_us = 200000;             /* it waits for its client, not for its request's bytes: no 408 */
	begin();
	int fd = dial();
	static char all[N * 20];
	for (int i = 0; i < N; i++)
		strcat(all, "GET / HTTP/1.1\r\n\r\n");
	say(fd, all);
	for (uint64_t end = clock_us() + 1500000; clock_us() < end;)   /* three looks at the limits */
		turn();
	ck_assert_uint_lt(handled, N);
	UNTIL(handled == N, got += take(fd, &closed));
	UNTIL(got > N * sizeof answer, got += take(fd, &closed));
	ck_assert_int_eq(closed, 0);
	close(fd);
}
END_TEST

/* Empty lines before a request are no request, in whatever pieces they come. */
START_TEST(empty_lines)
{
	static const char *const pieces[][5] = {
		{"\r\n", "GET / HTTP/1.1\r\n\r\n"},
		{"\r", "\n", "GET / HTTP/1.1\r\n\r\n"},
		{"\r\n\r", "\nGET / HTTP/1.1\r\n\r", "\n"},
		{"\r\n\r\n\r\nG", "ET / HTTP/1.1\r", "\n\r", "\n"},
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
END_TEST

/* They do not keep a connection open either. */
START_TEST(empty_lines_for_ever)
{
	int closed = 0;
	opts.idle_us = opts.read_us = 300000;
	begin();
	int fd = dial();
	UNTIL(closed, push(fd, "\r", 1u - (size_t)_i), turn(), push(fd, "\r\n" + 1 - _i, 1u + (size_t)_i), take(fd, &closed));
	ck_assert_uint_eq(handled, 0);
	close(fd);
}
END_TEST

START_TEST(trailer_without_end)
{
	static char line[1000];
	char room[512] = "";
	begin();
	int fd = dial();
	memset(line, 'x', sizeof line - 1);
	memcpy(line, "a: ", 3);
	memcpy(line + sizeof line - 3, "\r\n", 2);
	say(fd, "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n");
	UNTIL(recv(fd, room, sizeof room - 1, 0) > 0, push(fd, line, sizeof line - 1));
	ck_assert_msg(strncmp(room, "HTTP/1.1 431 ", 13) == 0, "%s", room);
	ck_assert_uint_eq(handled, 0);
	close(fd);
}
END_TEST

static void look(const int *fd, int n, int *told, int *cut)
{
	char room[512];
	for (int i = 0; i < n; i++) {
		ssize_t k = recv(fd[i], room, sizeof room, MSG_PEEK);
		*told += k > 13 && memcmp(room, "HTTP/1.1 503 ", 13) == 0;
		*cut += k == 0;
	}
}

/* Past the limit clients are told so, and past an eighth more of them nobody is: descriptors are left. */
START_TEST(crowd)
{
	enum { N = 80 };
	int fd[N], told = 0, cut = 0;
	opts.max_connections = 24;
	begin();
	for (int i = 0; i < N; i++) {
		fd[i] = dial();
		turn();
	}
	UNTIL(told + cut == N - 24, told = cut = 0, look(fd, N, &told, &cut));
	ck_assert_uint_eq(http_accepted(server), 24 + 3 + 16);
	ck_assert_int_eq(told, 3 + 16);
	ck_assert_int_eq(cut, N - 24 - 3 - 16);
	for (int i = 0; i < N; i++)
		close(fd[i]);
	UNTIL(http_connections(server) == 0);
	fd[0] = dial();                    /* and all is as before */
	say(fd[0], "GET / HTTP/1.1\r\n\r\n");
	UNTIL(handled == 1);
	close(fd[0]);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("router_http");
	TCase *c = tcase_create("edge");
	log_init("test", NULL);
	log_set_level("error");
	signal(SIGPIPE, SIG_IGN);   /* as the daemon skeleton does */
	tcase_set_timeout(c, 60);
	tcase_add_checked_fixture(c, set_up, tear_down);
	tcase_add_test(c, answers_that_nobody_takes);
	tcase_add_test(c, behind_a_large_answer);
	tcase_add_loop_test(c, empty_lines, 0, 4);
	tcase_add_loop_test(c, empty_lines_for_ever, 0, 2);
	tcase_add_test(c, trailer_without_end);
	tcase_add_test(c, crowd);
	suite_add_tcase(suite, c);
	SRunner *sr = srunner_create(suite);
	srunner_run_all(sr, CK_NORMAL);
	int failed = srunner_ntests_failed(sr);
	srunner_free(sr);
	return failed ? 1 : 0;
}
