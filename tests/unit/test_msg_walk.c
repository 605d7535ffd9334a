/* test_msg_walk.c - random walks over two chans in one process: bursts of messages of all types,
 * both ways, while a seeded fault layer on both sides loses, repeats, delays and cuts; in half of
 * the walks lives end and begin as well. What must hold stands in msg_pair.h; it is checked at each
 * message that comes.
 *
 * Walks run some at a time, since most of their time is waiting. MSG_WALKS=N runs N seeds
 * (default 100), MSG_SEED=S begins at S. A failure names its seed. */
#include "msg_pair.h"

#define AT_ONCE 24

struct walk {
	uint64_t seed, state;
	struct side a, b;
	char fault[2][200];
	int restarts, steps;
	struct event *next;
};

static struct walk walks[AT_ONCE]; /* seed 0: none */
static uint64_t seeds_from, seeds_to;

static void end_walk(struct walk *w);
static void begin_next(struct walk *w);

static long number(const char *name, long otherwise)
{
	const char *s = getenv(name);
	return s && *s ? atol(s) : otherwise;
}

static uint32_t draw(struct walk *w, uint32_t below)
{
	uint64_t z = w->state += 0x9e3779b97f4a7c15u;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return (uint32_t)((z ^ (z >> 31)) % below);
}

static void check_holds(const struct walk *w)
{
	ck_assert_msg(!w->a.wrong, "seed %llu: %s", (unsigned long long)w->seed, w->a.problem);
	ck_assert_msg(!w->b.wrong, "seed %llu: %s", (unsigned long long)w->seed, w->b.problem);
	if (!w->restarts)
		ck_assert_msg(!w->a.downs && !w->b.downs,
		              "seed %llu: a link went down (%s, %s) though both lives last",
		              (unsigned long long)w->seed, w->a.why, w->b.why);
}

static void burst(struct walk *w, struct side *s)
{
	uint32_t n = draw(w, 4) ? draw(w, 6) : draw(w, 60);
	while (n--)
		say_type(s, numbered_type(draw(w, 1000)));
}

static void restart(struct walk *w, struct side *s)
{
	side_stop(s);
	check_holds(w);
	side_start(base, s);
}

static void step(struct walk *w)
{
	burst(w, &w->a);
	burst(w, &w->b);
	if (!w->restarts || draw(w, 12))
		return;
	switch (draw(w, 4)) {
	case 0: restart(w, &w->a); return;
	case 1: restart(w, &w->b); return;
	case 2:
		restart(w, &w->a);
		restart(w, &w->b);
		return;
	default: restart(w, &w->b); restart(w, &w->a);
	}
}

static void on_step(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	struct walk *w = arg;
	check_holds(w);
	if (w->steps > 0) {
		w->steps--;
		step(w);
	} else if (pair_settled(&w->a, &w->b)) {
		end_walk(w);
		begin_next(w);
		return;
	}
	event_add(w->next, &(struct timeval){.tv_usec = 500 + draw(w, 4000)});
}

static void open_walk(struct walk *w, uint64_t seed)
{
	static const char *const forms[] = {
		"seed=%u drop=%u%% repeat=%u%%",
		"seed=%u drop=%u%% delay=%u%%:0-8ms",
		"seed=%u noack=%u%% repeat=%u%% cut=0.5%%",
		"seed=%u noack=%u%% repeat=%u%% delay=10%%:1-3ms",
		"seed=%u drop=%u%% type=ACK:drop=%u%% type=HELLO:drop=30%%:repeat=30%% "
		"type=WELCOME:drop=30%%:repeat=30%%",
		"seed=%u drop=%u%% repeat=%u%% cut=0.4%% delay=5%%:0-5ms noack=20%% type=HELLO:repeat=50%%",
	};
	*w = (struct walk){.seed = seed, .state = seed, .restarts = seed % 2, .steps = 15};
	struct chan_opts o[2];
	for (int i = 0; i < 2; i++) {
		/* the goodbye of a life that shares the process with its peer is the only sign of its
		 * end */
		snprintf(w->fault[i], sizeof w->fault[i], forms[draw(w, sizeof forms / sizeof *forms)],
		         draw(w, 1u << 30), 1 + draw(w, 10), 1 + draw(w, 10));
		o[i] = pair_opts(8000);
		o[i].window_messages = draw(w, 2) ? 16 : 256;
		if (w->restarts)
			/* half of it is how long the name of a life whose goodbye was lost stays taken */
			o[i].silence_us = 1000000;
	}
	char id[32];
	snprintf(id, sizeof id, "w%llu", (unsigned long long)seed);
	pair_open_faulty(base, &w->a, &w->b, id, &o[0], w->fault[0], &o[1], w->fault[1]);
	w->next = event_new(base, -1, 0, on_step, w);
	event_add(w->next, &(struct timeval){.tv_usec = 5000});
}

static void end_walk(struct walk *w)
{
	event_free(w->next);
	pair_close(&w->a, &w->b);
	check_holds(w);
}

static void check_settled(const struct walk *w)
{
	ck_assert_msg(w->seed == 0,
	              "seed %llu: not settled: a %s said %llu heard %llu of session %llu; b %s said "
	              "%llu heard %llu of session %llu; sessions %llu %llu; %s | %s",
	              (unsigned long long)w->seed, w->a.p ? "up" : "down",
	              (unsigned long long)w->a.said, (unsigned long long)w->a.heard,
	              (unsigned long long)w->a.heard_session, w->b.p ? "up" : "down",
	              (unsigned long long)w->b.said, (unsigned long long)w->b.heard,
	              (unsigned long long)w->b.heard_session, (unsigned long long)w->a.session,
	              (unsigned long long)w->b.session, w->fault[0], w->fault[1]);
}

/* A walk that is over makes room for the next seed. */
static void begin_next(struct walk *w)
{
	if (seeds_from < seeds_to)
		open_walk(w, seeds_from++);
	else
		w->seed = 0;
	for (int i = 0; i < AT_ONCE; i++)
		if (walks[i].seed)
			return;
	event_base_loopbreak(base);
}

TEST_CASE("walks", .timeout_s = 86400);

TEST(random_walks)
{
	seeds_from = (uint64_t)number("MSG_SEED", 1);
	seeds_to = seeds_from + (uint64_t)number("MSG_WALKS", 100);
	base = event_base_new();
	for (int i = 0; i < AT_ONCE && seeds_from < seeds_to; i++)
		open_walk(&walks[i], seeds_from++);
	event_base_loopexit(base, &(struct timeval){.tv_sec = number("MSG_LIMIT_S", 300)});
	event_base_dispatch(base);
	for (int i = 0; i < AT_ONCE; i++)
		check_settled(&walks[i]);
	event_base_free(base);
}

TEST_START(quiet)
{
	log_set_level(getenv("MSG_LOG") ? getenv("MSG_LOG") : "error");
}
