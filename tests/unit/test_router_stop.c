/* test_router_stop.c - the router ends: whatever state a request is in, its client is told so, in
 * HTTP, and the workers have nothing left of it. */
/* run: threads */
#include "router_client.h"
#include "util/log.h"

#include <signal.h>

static void turn(struct world *w)
{
	event_base_loop(w->base, EVLOOP_ONCE);
}

/* As main.c does: draining, and after a while nobody is waited for any more. */
static void drain(struct world *w)
{
	w->r.draining = 1;
	http_drain(w->r.http);
}

static void expire(struct world *w)
{
	requests_stop(&w->r);
	http_drain(w->r.http);
}

static unsigned submitted(const struct world *w)
{
	unsigned n = 0;
	list_each(it, &w->running)
		n++;
	return n;
}

/* What the state is reached by, and what the client has then got. */
static const struct {
	const char *name, *path, *body; /* body NULL: a long one */
	int mute;                       /* workers answer nothing */
	unsigned pause_at;              /* or so many tokens */
	int gate;                       /* the text thread is busy */
	unsigned sequences;             /* at work when it is stopped */
	int stream;                     /* has begun */
} states[] = {
	{"on a text thread", "/v1/completions", NULL, .gate = 1},
	{"at a worker, nothing came", "/v1/completions", "{\"prompt\":[1]}", .mute = 1, .sequences = 1},
	{"several", "/v1/completions", "{\"prompt\":[[1],[2]],\"n\":2,\"max_tokens\":50}",
     .pause_at = 5, .sequences = 4},
	{"in the middle of an answer", "/v1/completions", "{\"prompt\":[1],\"max_tokens\":50}",
     .pause_at = 5, .sequences = 1},
	{"before its stream has begun", "/v1/completions", "{\"prompt\":[1],\"stream\":true}",
     .mute = 1, .sequences = 1},
	{"in the middle of a stream", "/v1/completions",
     "{\"prompt\":[1],\"max_tokens\":50,\"stream\":true}", .pause_at = 5, .sequences = 1,
     .stream = 1},
	{"in the middle of several streams", "/v1/completions",
     "{\"prompt\":[[1],[2]],\"n\":2,\"max_tokens\":50,\"stream\":true}", .pause_at = 5,
     .sequences = 4, .stream = 1},
};

TEST_CASE("stop", .timeout_s = 60);

TEST_LOOP(stopped, 0, sizeof states / sizeof *states)
{
	struct world *w = world_new(NULL, 1u << 20);
	struct gate g;
	char *big = long_body();
	struct ask a = {.port = http_port(w->r.http),
	                .path = states[_i].path,
	                .body = states[_i].body ? states[_i].body : big};
	pthread_t t;
	w->mute = states[_i].mute;
	w->pause_at = states[_i].pause_at;
	if (states[_i].gate)
		gate_shut(w, &g);
	ck_assert_int_eq(pthread_create(&t, NULL, ask_thread, &a), 0);
	while (w->r.n_requests == 0 || submitted(w) < states[_i].sequences)
		turn(w);
	/* until all are at the place where workers pause */
	for (int more = 1; more && w->pause_at; turn(w)) {
		more = 0;
		list_each(it, &w->running)
			more |= list_entry(it, struct world_attempt, node)->index < w->pause_at;
	}
	drain(w);
	for (int i = 0; i < 10; i++) /* what runs goes on while there is time */
		turn(w);
	ck_assert_uint_eq(w->r.n_requests, 1);
	expire(w);
	while (!atomic_load(&a.over))
		turn(w);
	pthread_join(t, NULL);
	has(a.out, states[_i].stream ? "HTTP/1.1 200 OK" : "HTTP/1.1 503 Service Unavailable");
	has(a.out, "this server was stopped before the answer was complete");
	has(a.out, states[_i].stream ? "\r\ndata: {\"error\":{" : "Retry-After: 1\r\n");
	if (states[_i].stream)
		has(a.out, "data: [DONE]\n\n\r\n0\r\n\r\n");
	ck_assert_uint_eq(submitted(w), 0); /* cancelled at the workers */
	ck_assert_uint_eq(w->r.attempts.counts.cancelled, states[_i].sequences);
	ck_assert_uint_eq(attempts_count(&w->r.attempts), 0);
	if (states[_i].gate) {
		ck_assert_uint_eq(w->r.n_requests, 1); /* the thread's still */
		sem_post(&g.open);
		while (!atomic_load(&g.done) || w->r.n_requests)
			turn(w);
		ck_assert_uint_eq(w->r.attempts.counts.started, 0);
	}
	ck_assert_uint_eq(w->r.n_requests, 0);
	while (http_busy(w->r.http))
		turn(w);
	free(a.out);
	free(big);
	world_free(w);
}

static atomic_int passed;

static void gate_passed(struct text_job *j)
{
	(void)j;
	atomic_store(&passed, 1);
}

/* When the end has begun to wait for the thread. */
static void *open_gate(void *arg)
{
	usleep(50000);
	sem_post(&((struct gate *)arg)->open);
	return NULL;
}

/* The only thread is busy: the end of the router does not wait for what it would do next. */
TEST(stopped_behind_a_queue)
{
	enum { N = 20 };
	struct world *w = world_new(NULL, 1u << 20);
	struct gate g;
	char *big = long_body();
	struct ask a[N];
	pthread_t t[N];
	gate_shut(w, &g);
	for (int i = 0; i < N; i++) {
		a[i] = (struct ask){.port = http_port(w->r.http), .path = "/v1/completions", .body = big};
		ck_assert_int_eq(pthread_create(&t[i], NULL, ask_thread, &a[i]), 0);
	}
	while (w->r.n_requests < N)
		turn(w);
	struct gate behind = {.job = {.work = gate_passed, .done = gate_done}};
	ck_assert_int_eq(text_pool_put(w->r.text, &w->other, &behind.job, 1), 0);
	drain(w);
	expire(w);
	for (int i = 0; i < N; i++) {
		while (!atomic_load(&a[i].over))
			turn(w);
		pthread_join(t[i], NULL);
		has(a[i].out, "HTTP/1.1 503 ");
		free(a[i].out);
	}
	pthread_t opener;
	ck_assert_int_eq(pthread_create(&opener, NULL, open_gate, &g), 0);
	text_pool_destroy(&w->r.text); /* waits for what is at work, not for what is behind it */
	pthread_join(opener, NULL);
	ck_assert_int_eq(atomic_load(&passed), 0);
	ck_assert_uint_eq(w->r.n_requests, N);
	free(big);
	world_free(w); /* frees the calls */
}

/* What comes on connections that are open is told to come again; who asks how it stands is told
 * that. */
TEST(new_requests_while_draining)
{
	static const struct {
		const char *head, *body, *status, *part;
	} asks[] = {
		{"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 14\r\n\r\n",
	     "{\"prompt\":[1]}", "HTTP/1.1 503 ", "shutting down"},
		{"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: "
	     "100000\r\n\r\n",
	     "", "HTTP/1.1 503 ", "Retry-After: "},
		{"GET /ready HTTP/1.1\r\nHost: x\r\n\r\n", "", "HTTP/1.1 503 ", "draining"},
		{"GET /live HTTP/1.1\r\nHost: x\r\n\r\n", "", "HTTP/1.1 200 ", "Connection: close"},
	};
	enum { N = sizeof asks / sizeof *asks };
	struct world *w = world_new(NULL, 1u << 20);
	int fd[N];
	for (int i = 0; i < N; i++)
		fd[i] = dial(http_port(w->r.http));
	while (http_connections(w->r.http) < N)
		turn(w);
	drain(w);
	for (int i = 0; i < N; i++) {
		char text[20000] = "";
		size_t n = 0;
		ck_assert_int_gt((int)send(fd[i], asks[i].head, strlen(asks[i].head), 0), 0);
		ck_assert_int_ge((int)send(fd[i], asks[i].body, strlen(asks[i].body), 0), 0);
		for (ssize_t k = -1; k; turn(w)) {
			k = recv(fd[i], text + n, sizeof text - 1 - n, MSG_DONTWAIT);
			n += k > 0 ? (size_t)k : 0;
		}
		ck_assert_msg(strncmp(text, asks[i].status, 13) == 0, "%s", text);
		has(text, asks[i].part);
		close(fd[i]);
	}
	while (http_busy(w->r.http))
		turn(w);
	world_free(w);
}

TEST_START(quiet)
{
	log_init("test", NULL);
	log_set_level("error");
	signal(SIGPIPE, SIG_IGN); /* as the daemon skeleton does */
}
