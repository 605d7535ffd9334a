/* test_msg_ends.c - how a link's ends know of each other: heartbeats at work and idle, goodbyes
 * to one who is busy and to one who is stopped, and how soon silence is noticed. */
/* run: waits */
#include "msg_rogue.h"

#include <signal.h>
#include <sys/wait.h>

/* --- heartbeats ---------------------------------------------------------- */

#define LATE_US 50000u /* of a turn of 20 ms: this process had no processor */

static int was_late;

/* One turn of 20 ms; notes when it took much longer. */
static void turn(void)
{
	uint64_t from = clock_us();
	pump_ms(base, 20);
	was_late |= clock_us() - from > LATE_US;
}

static uint64_t sent_in(struct side *a, struct side *b, int work, unsigned ms)
{
	struct chan_counts from[2], to[2];
	chan_counts(a->c, &from[0]);
	chan_counts(b->c, &from[1]);
	for (uint64_t end = clock_us() + ms * 1000u; clock_us() < end; turn())
		if (work && a->p)
			say_type(a, MSG_PEERS);
	chan_counts(a->c, &to[0]);
	chan_counts(b->c, &to[1]);
	return to[0].sent - from[0].sent + to[1].sent - from[1].sent;
}

TEST_CASE("msg ends", .timeout_s = 120, .setup = base_setup, .teardown = base_teardown);

/* A router and its worker: at work a beat each 20 ms either way, without work a fifth of that;
 * neither goes down. A busy machine may keep this process from beating: only then once more. */
TEST(an_idle_link_sleeps)
{
	struct side a, b;
	struct chan_opts oa = pair_opts(0), ob = oa;
	oa.program = "pdrouterd";
	oa.silence_us = ob.silence_us = 2000000;
	pair_open(base, &a, &b, "idle", &oa, &ob);
	until_up(&a, &b);
	uint64_t busy = 0, idle = 0;
	was_late = 1;
	for (int tries = 0; tries < 10 && was_late && (idle < 4 || idle > 26 || busy < 3 * idle);
	     tries++) {
		was_late = 0;
		busy = sent_in(&a, &b, 1, 1000);
		pump_ms(base, 1300); /* ACTIVE_US, and the last acknowledgement */
		idle = sent_in(&a, &b, 0, 1000);
	}
	ck_assert_msg(idle >= 4 && idle <= 26 && busy >= 3 * idle,
	              "%u messages at work, %u in an idle second", (unsigned)busy, (unsigned)idle);
	ck_assert_uint_eq(a.downs + b.downs, 0);
	until_settled(&a, &b, "idle");
	pair_close(&a, &b);
}

/* The peer bears less silence than our pace would give it: it is heard often enough. */
TEST(beats_as_often_as_the_peer_bears)
{
	struct side a, b;
	struct chan_opts oa = pair_opts(0), ob = oa;
	oa.heartbeat_us = ob.heartbeat_us = 5000000;
	ob.silence_us = 400000;
	oa.program = "pdrouterd";
	pair_open(base, &a, &b, "bears", &oa, &ob);
	until_up(&a, &b);
	pump_ms(base, 1800);
	ck_assert_msg(b.downs == 0, "%s", b.why);
	pair_close(&a, &b);
}

/* Without a router the side that connects hears the other every five of its own heartbeat_us, not
 * the other's: from its silence it concludes that the other is stopped. A turn that this process
 * had no processor for does not count. */
TEST(who_connects_sets_the_pace)
{
	struct side a, b;
	struct chan_opts oa = pair_opts(0), ob = oa;
	uint64_t longest_us = 0;
	oa.heartbeat_us = 1000000;
	pair_open(base, &a, &b, "pace", &oa, &ob);
	until_up(&a, &b);
	pump_ms(base, 500);
	for (int turns = 0, good = 0; turns < 500 && good < 50; turns++, good++) {
		was_late = 0;
		turn();
		if (was_late)
			good = -15; /* and what is late because of it */
		else if (good >= 0 && clock_us() - peer_heard_us(b.p) > longest_us)
			longest_us = clock_us() - peer_heard_us(b.p);
	}
	ck_assert_msg(longest_us < 5 * 20000 * 3 / 2, "silent for %u us", (unsigned)longest_us);
	pair_close(&a, &b);
}

/* --- goodbyes ------------------------------------------------------------ */

static int report_fd;

static void child_down(void *arg, struct peer *p, const char *why)
{
	(void)arg;
	(void)p;
	ssize_t n = write(report_fd, why, strlen(why));
	_exit(n < 0);
}

/* Busy for a while, while the goodbye and the end of the connection arrive. */
static void child_message(void *arg, struct peer *p, enum msg_type t, const struct msg_head *h,
                          const ProtobufCMessage *body)
{
	(void)arg;
	(void)p;
	(void)h;
	(void)body;
	if (t == MSG_KV_DENY)
		usleep(60000);
}

static pid_t child_who_hears(int *ret_fd)
{
	int fds[2];
	ck_assert_int_eq(pipe(fds), 0);
	pid_t pid = fork();
	if (pid == 0) {
		struct chan_opts o = pair_opts(0);
		struct chan_hooks h = {.down = child_down, .message = child_message};
		struct err err = {0};
		struct chan *c;
		close(fds[0]);
		report_fd = fds[1];
		o.program = "test";
		o.name = "busy";
		o.epoch = 5;
		struct event_base *b = event_base_new();
		if (chan_new(b, &o, &h, &c, &err) < 0)
			_exit(3);
		chan_connect(c, endpoint, NULL, 0);
		event_base_dispatch(b);
		_exit(4);
	}
	close(fds[1]);
	*ret_fd = fds[0];
	return pid;
}

/* This process lives on: only the goodbye can tell that its chan has ended. */
TEST(goodbye_is_heard_by_the_busy)
{
	for (int i = 0; i < 5; i++) {
		struct side a = {.name = "bound", .epoch = 10, .opts = pair_opts(0)};
		int fd, status;
		char why[100] = "";
		snprintf(a.bind, sizeof a.bind, "%s", endpoint);
		pid_t pid = child_who_hears(&fd);
		side_start(base, &a);
		for (uint64_t end = clock_us() + 30000000; !a.p; pump_ms(base, 2))
			ck_assert(clock_us() < end);
		ck_assert_int_eq(say_type(&a, MSG_KV_DENY), 0);
		pump_ms(base, 1);
		side_stop(&a);
		ck_assert(read(fd, why, sizeof why - 1) > 0);
		ck_assert_str_eq(why, "it said goodbye");
		close(fd);
		waitpid(pid, &status, 0);
	}
}

/* Its goodbye is behind more messages than one turn of the loop reads, and its process has ended
 * before any of them is read: it said goodbye. */
TEST(goodbye_behind_many_messages)
{
	struct side a = {.name = "bound", .epoch = 10, .opts = pair_opts(0)}, b;
	int status;
	snprintf(a.bind, sizeof a.bind, "%s", endpoint);
	pid_t pid = fork();
	if (pid == 0) {
		struct event_base *own = event_base_new();
		b = (struct side){.name = "ends", .epoch = 20, .opts = a.opts};
		snprintf(b.to, sizeof b.to, "%s", endpoint);
		side_start(own, &b);
		while (!b.p)
			pump_ms(own, 2);
		for (int i = 0; i < 3000; i++)
			if (say_type(&b, MSG_KV_GRANT) < 0)
				_exit(1);
		side_stop(&b);
		_exit(0);
	}
	side_start(base, &a);
	for (uint64_t end = clock_us() + 30000000; !a.p; event_base_loop(base, EVLOOP_ONCE))
		ck_assert(clock_us() < end);
	ck_assert(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	for (uint64_t end = clock_us() + 30000000; !a.downs; pump_ms(base, 2))
		ck_assert(clock_us() < end);
	ck_assert_str_eq(a.why, "it said goodbye");
	ck_assert_uint_gt(a.total, 2900);
	side_stop(&a);
}

/* One who is stopped costs the one who ends a moment, not more. */
TEST(goodbye_does_not_wait_for_the_stopped)
{
	struct side a = {.name = "bound", .epoch = 10, .opts = pair_opts(0)};
	int fd, status;
	snprintf(a.bind, sizeof a.bind, "%s", endpoint);
	pid_t pid = child_who_hears(&fd);
	side_start(base, &a);
	for (uint64_t end = clock_us() + 30000000; !a.p; pump_ms(base, 2))
		ck_assert(clock_us() < end);
	kill(pid, SIGSTOP);
	uint64_t from = clock_us();
	side_stop(&a);
	uint64_t took = clock_us() - from;
	ck_assert_msg(took >= 200000 && took < 30000000, "%llu us", (unsigned long long)took);
	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
	close(fd);
}

/* Stopped, so that neither the end of its process nor a goodbye tells: without work between the
 * two after twice the silence, with work after once. */
TEST(stopped_peer_is_noticed)
{
	for (int work = 0; work < 2; work++) {
		struct side a = {.name = "bound", .epoch = 10, .opts = pair_opts(0)};
		int fd, status;
		snprintf(a.bind, sizeof a.bind, "%s", endpoint);
		a.opts.program = "pdrouterd";
		a.opts.silence_us = 800000;
		pid_t pid = child_who_hears(&fd);
		side_start(base, &a);
		for (uint64_t end = clock_us() + 30000000; !a.p; pump_ms(base, 2))
			ck_assert(clock_us() < end);
		pump_ms(base, work ? 50 : 1200);
		kill(pid, SIGSTOP);
		uint64_t from = clock_us(), took = 0;
		if (work)
			ck_assert_int_eq(say_type(&a, MSG_PEERS), 0);
		while (!a.downs && (took = clock_us() - from) < 60000000)
			pump_ms(base, 5);
		ck_assert_str_eq(a.why, "silent for too long");
		ck_assert_msg(took >= (work ? 500000u : 1000000u) && took < 30000000u, "%s: %llu us",
		              work ? "at work" : "idle", (unsigned long long)took);
		kill(pid, SIGKILL);
		waitpid(pid, &status, 0);
		close(fd);
		side_stop(&a);
	}
}

/* Its connection has ended, so the socket takes nothing: what is sent to it meanwhile keeps neither
 * it nor others alive. */
TEST(vanished_peer_is_noticed_at_work)
{
	struct side a;
	struct rogue g;
	struct chan_opts o = pair_opts(0);
	o.program = "pdrouterd";
	o.silence_us = 800000;
	with_rogue(&a, &g, o, 800);
	rogue_close(&g);
	for (uint64_t end = clock_us() + 60000000; !a.downs && clock_us() < end; pump_ms(base, 20))
		say_type(&a, MSG_PEERS);
	ck_assert_str_eq(a.why, "silent for too long");
	side_stop(&a);
}

/* --- HELLOs --------------------------------------------------------------- */

struct silent { /* reads what comes to the endpoint, and answers nothing */
	void *ctx, *z;
	unsigned hellos;
};

static void silent_open(struct silent *g)
{
	int zero = 0;
	*g = (struct silent){.ctx = zmq_ctx_new()};
	g->z = zmq_socket(g->ctx, ZMQ_ROUTER);
	zmq_setsockopt(g->z, ZMQ_LINGER, &zero, sizeof zero);
	ck_assert_int_eq(zmq_bind(g->z, endpoint), 0);
}

static void silent_close(struct silent *g)
{
	zmq_close(g->z);
	zmq_ctx_term(g->ctx);
}

/* Until so many have come. */
static void silent_hears(struct silent *g, unsigned n)
{
	for (uint64_t end = clock_us() + 60000000; g->hellos < n;) {
		int more = 1;
		size_t len = sizeof more;
		ck_assert_msg(clock_us() < end, "%u HELLOs came", g->hellos);
		if (zmq_recv(g->z, NULL, 0, ZMQ_DONTWAIT) < 0) {
			pump_ms(base, 2);
			continue;
		}
		while (zmq_getsockopt(g->z, ZMQ_RCVMORE, &more, &len) == 0 && more)
			zmq_recv(g->z, NULL, 0, 0);
		g->hellos++;
	}
}

static void dial(struct side *b, uint64_t resend_us)
{
	*b = (struct side){.name = "dials", .epoch = 2000, .opts = pair_opts(resend_us)};
	snprintf(b->to, sizeof b->to, "%s", endpoint);
	side_start(base, b);
}

/* HELLOs without an answer come after 20, 40, 80 and then each 160 ms. */
TEST(hello_is_repeated_ever_later)
{
	struct silent g;
	struct side b;
	silent_open(&g);
	uint64_t from = clock_us();
	dial(&b, 20000);
	silent_hears(&g, 8);
	ck_assert_uint_ge(clock_us() - from, 20000 + 40000 + 80000 + 3 * 160000);
	silent_close(&g);
	side_stop(&b);
}

/* Who was silent so long ends, and another listens there: it need not wait for the next HELLO,
 * which is due 2.4 s after the last. Nor if nobody listens for a while. */
TEST(who_comes_up_hears_hello_at_once)
{
	for (int pause = 0; pause < 2; pause++) {
		struct silent g;
		struct side a = {.name = "bound", .epoch = 1000, .opts = pair_opts(0)}, b;
		snprintf(a.bind, sizeof a.bind, "%s", endpoint);
		silent_open(&g);
		dial(&b, 0);
		silent_hears(&g, 4); /* 0, 300, 900, 2100 ms */
		silent_close(&g);
		pump_ms(base, pause ? 300 : 1);
		uint64_t from = clock_us();
		side_start(base, &a);
		until_up(&a, &b);
		ck_assert_uint_lt(clock_us() - from, 1500000);
		ck_assert_uint_eq(a.downs + b.downs, 0);
		pair_close(&a, &b);
	}
}

/* A link whose window was full restarts. Until then nothing goes out, though there be room: the
 * peer would see a gap. */
TEST(nothing_follows_what_did_not_fit)
{
	struct side a, b;
	struct chan_opts oa = pair_opts(0), ob = oa;
	oa.window_messages = 64;
	pair_open(base, &a, &b, "hole", &oa, &ob);
	until_up(&a, &b);
	while (say_type(&a, MSG_PEERS) == 0)
		;
	ck_assert_uint_eq(a.full, 1);
	chan_restart(a.c, a.p);
	ck_assert_int_eq(say_type(&a, MSG_PEERS), ERR_CLOSED);
	ck_assert_uint_eq(a.downs, 0);
	for (uint64_t end = clock_us() + 20000000; !a.downs || !a.p || !b.p; pump_ms(base, 2))
		ck_assert_msg(clock_us() < end, "the link does not restart");
	ck_assert_str_eq(a.why, "its window is full");
	ck_assert_int_eq(say_type(&a, MSG_PEERS), 0);
	until_settled(&a, &b, "after the restart");
	pair_close(&a, &b);
}
