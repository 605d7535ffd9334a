/* http_rig.h - the HTTP edge by itself, and its clients: sockets of the test's own on the loop's
 * thread, from several addresses. The handlers count and answer. */
#ifndef TESTS_HTTP_RIG_H
#define TESTS_HTTP_RIG_H

#include "http/http.h"
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
#define UNTIL(cond, ...)                                                                         \
	for (uint64_t until_end = clock_us() + WAIT_US; !(cond); turn()) {                           \
		ck_assert_msg(clock_us() < until_end, "not within %u s: %s", WAIT_US / 1000000u, #cond); \
		__VA_ARGS__;                                                                             \
	}

static struct event_base *base;
static struct http_server *server;
static struct http_opts opts;
static unsigned heads, handled;
static size_t answer_bytes;
static char answer[100000];

enum { HELD_MAX = 256 };
static struct http_body held[HELD_MAX];
static struct http_conn *held_conn[HELD_MAX];
static unsigned n_held;

/* One turn of the loop: what is there, or a few milliseconds. */
static inline void turn(void)
{
	struct timeval t = {.tv_usec = 2000};
	event_base_loopexit(base, &t);
	event_base_loop(base, EVLOOP_ONCE);
}

/* Paths: /no is refused at its head; /hold is not answered, its body kept; /stream begins a stream;
 * all others get `answer`. */
static inline int head(void *arg, struct http_conn *c, struct http_head *h, size_t *body_max)
{
	(void)arg;
	(void)body_max;
	heads++;
	if (strcmp(h->path, "/no") != 0)
		return 0;
	http_reply(c, 401, "text/plain", NULL, "no", 2);
	return 1;
}

static inline void request(void *arg, struct http_conn *c, struct http_request *q)
{
	(void)arg;
	handled++;
	if (strcmp(q->head->path, "/hold") == 0) {
		ck_assert_uint_lt(n_held, HELD_MAX);
		held_conn[n_held] = c;
		held[n_held++] = q->body;
		q->body.data = NULL;
	} else if (strcmp(q->head->path, "/stream") == 0) {
		ck_assert_uint_lt(n_held, HELD_MAX);
		http_stream_begin(c, "text/plain", NULL);
		held_conn[n_held++] = c;
	} else {
		http_reply(c, 200, "text/plain", NULL, answer, answer_bytes);
	}
}

static inline void set_up(void)
{
	base = event_base_new();
	opts = (struct http_opts){.setting = "http_listen",
	                          .listen = "127.0.0.1:0",
	                          .max_header_bytes = 4096,
	                          .max_body_bytes = 1u << 20,
	                          .in_bytes_max = 8u << 20,
	                          .out_bytes_max = 1u << 20,
	                          .out_total_max = 1u << 30,
	                          .max_connections = 200,
	                          .idle_us = 60000000,
	                          .read_us = 60000000,
	                          .write_us = 60000000};
	memset(answer, 'a', sizeof answer);
	answer_bytes = 1000;
	heads = handled = n_held = 0;
}

static inline void begin(void)
{
	struct err err = {0};
	struct http_handlers handlers = {.head = head, .request = request};
	ck_assert_msg(http_new(base, &opts, &handlers, NULL, &server, &err) == 0, "%s", err.text);
}

static inline void tear_down(void)
{
	for (unsigned i = 0; i < n_held; i++)
		http_body_free(&held[i]);
	memset(held, 0, sizeof held);
	http_destroy(&server);
	event_base_free(base);
}

static inline struct http_counts counts(void)
{
	struct http_counts n;
	http_counts(server, &n);
	return n;
}

/* From 127.0.0.`from`. */
static inline int dial_from(unsigned from)
{
	struct sockaddr_in me = {.sin_family = AF_INET,
	                         .sin_addr = {htonl(INADDR_LOOPBACK - 1 + from)}};
	struct sockaddr_in to = {.sin_family = AF_INET,
	                         .sin_port = htons((uint16_t)http_port(server)),
	                         .sin_addr = {htonl(INADDR_LOOPBACK)}};
	int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
	ck_assert_int_ge(fd, 0);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	ck_assert_int_eq(bind(fd, (struct sockaddr *)&me, sizeof me), 0);
	ck_assert_int_eq(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
	fcntl(fd, F_SETFL, O_NONBLOCK);
	return fd;
}

static inline int dial(void)
{
	return dial_from(1);
}

static inline void say(int fd, const char *text)
{
	ck_assert_int_eq((int)send(fd, text, strlen(text), 0), (int)strlen(text));
}

/* As much as the socket takes now. */
static inline size_t push(int fd, const char *bytes, size_t n)
{
	ssize_t k = n ? send(fd, bytes, n, 0) : 0;
	return k > 0 ? (size_t)k : 0;
}

/* What is there to read is read; *closed is set at its end. */
static inline size_t take(int fd, int *closed)
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

/* Adds what there is to read to text; *closed is set at its end. */
static inline void listen_to(int fd, char *text, size_t size, int *closed)
{
	size_t n = strlen(text);
	ssize_t k = recv(fd, text + n, size - 1 - n, 0);
	if (k > 0)
		text[n + (size_t)k] = 0;
	*closed |= k == 0 || (k < 0 && errno != EAGAIN);
}

static inline void answered(int fd, const char *begin, int *closed)
{
	char text[2048] = "";
	int end = 0;
	UNTIL(strstr(text, "\r\n\r\n") || end, listen_to(fd, text, sizeof text, &end));
	ck_assert_msg(strncmp(text, begin, strlen(begin)) == 0, "%s", text);
	if (closed)
		*closed = end;
}

TEST_START(edge_quiet)
{
	log_init("test", NULL);
	log_set_level("error");
	signal(SIGPIPE, SIG_IGN); /* as the daemon skeleton does */
}

TEST_CASE("edge", .timeout_s = 60, .setup = set_up, .teardown = tear_down);

#endif
