/* pdbench_server.h - a scripted HTTP server for pdbench's tests: a thread for each connection, each
 * request handed to the test's function, which answers with what it likes, as slow and as broken
 * as it likes. */
#ifndef TEST_PDBENCH_SERVER_H
#define TEST_PDBENCH_SERVER_H

#include "util/clock.h"
#include "util/mem.h"

#include <check.h>
#include <errno.h>
#include <jansson.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct server;
struct request {
	struct server *s;
	int fd;
	unsigned number;        /* of this server's, from 0 */
	unsigned on_connection; /* from 0 */
	const char *head, *body;
	json_t *json; /* of the body, or NULL */
	unsigned max_tokens;
};
/* 0: the connection is kept; nonzero: it is closed. */
typedef int answer_fn(struct request *q);

struct server {
	int fd;
	unsigned port;
	answer_fn *fn;
	void *arg;
	pthread_t thread;
	atomic_int stopping, threads, inside, inside_most;
	/* gone: clients that left before the end of an answer */
	atomic_uint requests, connections, gone;
	size_t piece; /* answers are written so many bytes at a time; 0: at once */
	pthread_mutex_t lock;
};

/* 0, or -1: the client is gone. */
static inline int say_bytes(struct request *q, const char *data, size_t n)
{
	size_t piece = q->s->piece ? q->s->piece : n;
	for (size_t at = 0; at < n;) {
		size_t k = n - at < piece ? n - at : piece;
		ssize_t sent = send(q->fd, data + at, k, MSG_NOSIGNAL);
		if (sent <= 0) {
			q->s->gone++;
			return -1;
		}
		at += (size_t)sent;
	}
	return 0;
}

static inline int say(struct request *q, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
static inline int say(struct request *q, const char *fmt, ...)
{
	char text[8192];
	va_list ap;
	va_start(ap, fmt);
	int n = vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	return say_bytes(q, text, (size_t)n);
}

static inline int say_chunk(struct request *q, const char *text)
{
	return say(q, "%zx\r\n%s\r\n", strlen(text), text);
}

static inline int say_stream_head(struct request *q)
{
	return say(
		q,
		"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
}

/* One token as this suite's router says it. */
static inline int say_token(struct request *q, unsigned i, unsigned id, int last)
{
	char text[512];
	snprintf(text, sizeof text,
	         "data: "
	         "{\"choices\":[{\"index\":0,\"text\":\"t%u\",\"finish_reason\":%s,\"token_ids\":[%u]}]"
	         ",\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":%u,"
	         "\"prompt_tokens_details\":{\"cached_tokens\":3}}}\n\n",
	         i, last ? "\"length\"" : "null", id, i + 1);
	return say_chunk(q, text);
}

static inline int say_end(struct request *q)
{
	return say_chunk(
			   q, "data: "
				  "{\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":0}}\n\n") ||
	       say_chunk(q, "data: [DONE]\n\n") || say(q, "0\r\n\r\n");
}

/* A whole sound answer. */
static inline int say_all(struct request *q, unsigned tokens)
{
	int gone = say_stream_head(q);
	for (unsigned i = 0; i < tokens && !gone; i++)
		gone = say_token(q, i, 1000 + i, i + 1 == tokens);
	return gone || say_end(q);
}

struct server_conn {
	struct server *s;
	int fd;
};

/* A request's head and body, or -1 at the connection's end. */
static inline int read_request(int fd, char **ret_head, char **ret_body)
{
	size_t n = 0, size = 1u << 24;
	char *text = malloc(size), *end = NULL;
	while (text && n < size - 1) {
		ssize_t k = recv(fd, text + n, size - 1 - n, 0);
		if (k <= 0)
			break;
		n += (size_t)k;
		text[n] = 0;
		if (!end)
			end = strstr(text, "\r\n\r\n");
		const char *length = end ? strstr(text, "Content-Length: ") : NULL;
		size_t want = length ? strtoul(length + 16, NULL, 10) : 0;
		if (end && n >= (size_t)(end + 4 - text) + want) {
			*ret_body = strdup(end + 4);
			*end = 0;
			*ret_head = text;
			return 0;
		}
	}
	free(text);
	return -1;
}

static void *conn_thread(void *arg)
{
	struct server_conn *c = arg;
	struct server *s = c->s;
	unsigned n = 0;
	char *head, *body;
	int over = 0;
	while (!over && !atomic_load(&s->stopping) && read_request(c->fd, &head, &body) == 0) {
		struct request q = {.s = s,
		                    .fd = c->fd,
		                    .on_connection = n++,
		                    .head = head,
		                    .body = body,
		                    .json = json_loads(body, 0, NULL)};
		q.max_tokens = (unsigned)json_integer_value(json_object_get(q.json, "max_tokens"));
		q.number = atomic_fetch_add(&s->requests, 1);
		int inside = atomic_fetch_add(&s->inside, 1) + 1, most = atomic_load(&s->inside_most);
		while (inside > most && !atomic_compare_exchange_weak(&s->inside_most, &most, inside))
			;
		over = s->fn(&q);
		atomic_fetch_sub(&s->inside, 1);
		json_decref(q.json);
		free(head);
		free(body);
	}
	close(c->fd);
	free(c);
	atomic_fetch_sub(&s->threads, 1);
	return NULL;
}

static void *server_thread(void *arg)
{
	struct server *s = arg;
	int one = 1;
	for (;;) {
		int fd = accept4(s->fd, NULL, NULL, SOCK_CLOEXEC);
		struct timeval limit = {.tv_sec = 60};
		pthread_t t;
		if (fd < 0)
			return NULL;
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
		setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
		struct server_conn *c = malloc(sizeof *c);
		*c = (struct server_conn){s, fd};
		s->connections++;
		atomic_fetch_add(&s->threads, 1);
		pthread_create(&t, NULL, conn_thread, c);
		pthread_detach(t);
	}
}

static inline struct server *server_new(answer_fn *fn, void *arg)
{
	struct server *s = mem_zalloc(sizeof *s);
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	socklen_t n = sizeof a;
	s->fn = fn;
	s->arg = arg;
	pthread_mutex_init(&s->lock, NULL);
	s->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(bind(s->fd, (struct sockaddr *)&a, sizeof a), 0);
	ck_assert_int_eq(listen(s->fd, 1024), 0);
	getsockname(s->fd, (struct sockaddr *)&a, &n);
	s->port = ntohs(a.sin_port);
	ck_assert_int_eq(pthread_create(&s->thread, NULL, server_thread, s), 0);
	return s;
}

/* The clients are gone already: their connections' threads end by themselves. */
static inline void server_destroy(struct server **ps)
{
	struct server *s = *ps;
	atomic_store(&s->stopping, 1);
	shutdown(s->fd, SHUT_RDWR);
	pthread_join(s->thread, NULL);
	close(s->fd);
	for (uint64_t end = clock_us() + 30000000; atomic_load(&s->threads) && clock_us() < end;)
		usleep(1000);
	ck_assert_int_eq(atomic_load(&s->threads), 0);
	pthread_mutex_destroy(&s->lock);
	free(s);
	*ps = NULL;
}

#endif
