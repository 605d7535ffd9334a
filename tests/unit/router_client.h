/* router_client.h - a client of the router of router_world.h, on a thread of its own, and what
 * tests look for in its answers. */
#ifndef TESTS_ROUTER_CLIENT_H
#define TESTS_ROUTER_CLIENT_H

#include "router_world.h"

#include <check.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

struct ask {
	unsigned port;
	const char *path, *body;
	const char *fields; /* header lines; NULL: none */
	size_t leave_after; /* closes when it has read so much; 0: stays to the end */
	int leave_at_once;
	atomic_int over;
	char *out;
	size_t n;
};

static inline int dial(unsigned port)
{
	struct sockaddr_in to = {.sin_family = AF_INET,
	                         .sin_port = htons((uint16_t)port),
	                         .sin_addr = {htonl(INADDR_LOOPBACK)}};
	struct timeval limit = {.tv_sec = 20};
	int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	ck_assert_int_eq(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
	return fd;
}

/* A whole answer, after the path that was asked, as a file of the folder that PD_ANSWERS names:
 * tests/e2e/test_openai_spec.py holds it against OpenAI's specification. */
static inline void keep_answer(const struct ask *a)
{
	static atomic_uint n;
	const char *folder = getenv("PD_ANSWERS");
	char name[PATH_MAX];
	if (!folder)
		return;
	snprintf(name, sizeof name, "%s/%d-%u", folder, (int)getpid(), atomic_fetch_add(&n, 1));
	FILE *f = fopen(name, "w");
	ck_assert_msg(f != NULL, "cannot write %s", name);
	fprintf(f, "%s\n", a->path);
	fwrite(a->out, 1, a->n, f);
	fclose(f);
}

static inline void *ask_thread(void *arg)
{
	struct ask *a = arg;
	char *head = mem_printf(
		"POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%sContent-Length: %zu\r\n\r\n",
		a->path, a->fields ? a->fields : "", strlen(a->body));
	int fd = dial(a->port);
	ck_assert_int_eq((int)send(fd, head, strlen(head), 0), (int)strlen(head));
	for (size_t done = 0, len = strlen(a->body); done < len;) {
		ssize_t k = send(fd, a->body + done, len - done, 0);
		ck_assert_int_gt((int)k, 0);
		done += (size_t)k;
	}
	a->out = mem_zalloc(1u << 22);
	while (!a->leave_at_once) {
		ssize_t k = recv(fd, a->out + a->n, (1u << 22) - 1 - a->n, 0);
		if (k <= 0)
			break;
		a->n += (size_t)k;
		if (a->leave_after && a->n >= a->leave_after)
			break;
	}
	close(fd);
	free(head);
	if (!a->leave_at_once && !a->leave_after)
		keep_answer(a);
	atomic_store(&a->over, 1); /* the router's tick wakes the loop often enough to see it */
	return NULL;
}

static inline uint64_t accepted(const struct world *w)
{
	struct http_counts n;
	http_counts(w->r.http, &n);
	return n.accepted;
}

/* Runs the router until the client has its answer or has left; then until nothing of the call is
 * left. */
static inline char *ask_full(struct world *w, struct ask *a)
{
	pthread_t t;
	uint64_t before = accepted(w);
	a->port = http_port(w->r.http);
	ck_assert_int_eq(pthread_create(&t, NULL, ask_thread, a), 0);
	while (!atomic_load(&a->over))
		event_base_loop(w->base, EVLOOP_ONCE);
	pthread_join(t, NULL);
	for (uint64_t end = clock_us() + 60000000;
	     (accepted(w) == before || w->r.n_requests || http_connections(w->r.http)) &&
	     clock_us() < end;)
		event_base_loop(w->base, EVLOOP_ONCE);
	ck_assert_uint_eq(w->r.n_requests, 0);
	ck_assert_uint_eq(w->r.n_answers, 0);
	ck_assert_uint_eq(attempts_count(&w->r.attempts), 0);
	ck_assert_uint_eq(http_connections(w->r.http), 0);
	ck_assert(w->running.next == &w->running);
	return a->out;
}

static inline char *ask(struct world *w, const char *path, const char *body)
{
	struct ask a = {.path = path, .body = body};
	return ask_full(w, &a);
}

/* All values of "text" or "content" in an answer, one after the other. */
static inline char *texts(const char *answer, const char *key)
{
	char *out = mem_zalloc(strlen(answer) + 1), *at = out, want[32];
	snprintf(want, sizeof want, "\"%s\":\"", key);
	for (const char *p = answer; (p = strstr(p, want));)
		for (p += strlen(want); *p != '"'; p++) {
			if (*p == '\\' && p[1] == 'n')
				*at++ = '\n', p++;
			else if (*p == '\\')
				*at++ = *++p;
			else
				*at++ = *p;
		}
	return out;
}

static inline unsigned count(const char *text, const char *part)
{
	unsigned n = 0;
	for (const char *p = text; (p = strstr(p, part)); p += strlen(part))
		n++;
	return n;
}

static inline void has(const char *text, const char *part)
{
	ck_assert_msg(strstr(text, part) != NULL, "\"%s\" is not in: %.600s", part, text);
}

/* --- the only text thread is held up --- */

struct gate {
	struct text_job job;
	sem_t open;
	atomic_int done;
};

static inline void wait_at_gate(struct text_job *j)
{
	sem_wait(&((struct gate *)j)->open);
}

static inline void gate_done(struct text_job *j)
{
	atomic_store(&((struct gate *)j)->done, 1);
}

static inline void gate_shut(struct world *w, struct gate *g)
{
	*g = (struct gate){.job = {.work = wait_at_gate, .done = gate_done}};
	sem_init(&g->open, 0, 0);
	ck_assert_int_eq(text_pool_put(w->r.text, &w->other, &g->job, 1), 0);
}

/* One that goes to a text thread. */
static inline char *long_body(void)
{
	char *big = mem_alloc(20000), *at = big + sprintf(big, "{\"max_tokens\":2,\"prompt\":[1");
	while (at < big + 10000)
		at += sprintf(at, ",2");
	strcpy(at, "]}");
	return big;
}

#endif
