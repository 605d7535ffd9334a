/* test_msg_strangers.c - who is at the other end of a link, what of it is believed, and what one
 * bad message costs: that message. */
/* run: waits */
#include "msg/process.h"
#include "msg_rogue.h"
#include "skip.h"
#include "util/version.h"

#include <grp.h>
#include <pthread.h>
#include <sys/wait.h>

#define PATIENCE_US 30000000u

/* A side that is bound, and another of this process that is up on it. */
static void open_pair(struct side *a, struct side *b, struct chan_opts o)
{
	pair_open(base, a, b, "pair.ipc", &o, &o);
	until_settled(a, b, "the links come up");
	snprintf(endpoint, sizeof endpoint, "%s", a->bind);
}

static const char *wait_refusal(struct rogue *g)
{
	for (uint64_t end = clock_us() + PATIENCE_US; !g->refusal[0] && !g->link; rogue_read(g)) {
		ck_assert(clock_us() < end);
		pump_ms(base, 2);
	}
	return g->refusal;
}

/* Another process, which is this program with the name of a function of `strangers`: its exit
 * status, 0 if it met what it expects. This one's loop turns meanwhile. */
static int in_another_process(const char *stranger)
{
	int status = 0;
	pid_t pid = fork();
	if (pid == 0) {
		execl("/proc/self/exe", "stranger", stranger, endpoint, NULL);
		_exit(127);
	}
	for (uint64_t end = clock_us() + PATIENCE_US; waitpid(pid, &status, WNOHANG) == 0;
	     pump_ms(base, 2))
		ck_assert(clock_us() < end);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Who may use the control socket beside our own user: processes with its group, as their first or
 * as one of the others. */
TEST(a_group_is_the_process_s_own)
{
	if (geteuid() != 0)
		SKIP("only root may give a process other groups");
	int ready[2];
	ck_assert_int_eq(pipe(ready), 0);
	pid_t pid = fork();
	if (pid == 0) {
		static const gid_t others[] = {4001, 4002};
		char c = setgroups(2, others) == 0 && setgid(4003) == 0;
		if (write(ready[1], &c, 1) == 1)
			pause();
		_exit(0);
	}
	char ok = 0;
	ck_assert(read(ready[0], &ok, 1) == 1 && ok);
	static const struct {
		uint32_t gid;
		int local, known, want; /* known: its process id can be seen from here */
	} rows[] = {{4001, 1, 1, 1}, {4002, 1, 1, 1}, {4003, 1, 1, 1}, {4003, 1, 0, 1},
	            {4001, 1, 0, 0}, {4004, 1, 1, 0}, {400, 1, 1, 0},  {40011, 1, 1, 0},
	            {0, 1, 1, 0},    {4001, 0, 1, 0}, {4003, 0, 1, 0}};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct process_origin o = {.is_local = rows[i].local,
		                           .uid = 4000,
		                           .gid = 4003,
		                           .pid = rows[i].known ? (uint32_t)pid : 0};
		ck_assert_msg(process_origin_in_group(&o, rows[i].gid) == rows[i].want, "row %zu: group %u",
		              i, rows[i].gid);
	}
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

/* A connection is that of one process, of one user. */
TEST(an_origin_is_all_of_it)
{
	const struct process_origin one = {1, 10, 20, 30, "k"}, other[] = {{0, 10, 20, 30, "k"},
	                                                                   {1, 11, 20, 30, "k"},
	                                                                   {1, 10, 21, 30, "k"},
	                                                                   {1, 10, 20, 31, "k"},
	                                                                   {1, 10, 20, 30, "l"}};
	ck_assert(process_origin_same(&one, &one));
	for (size_t i = 0; i < sizeof other / sizeof *other; i++)
		ck_assert_msg(!process_origin_same(&one, &other[i]), "row %zu", i);
}

/* A process says which one it is in its own namespace; the kernel says which one it is in ours. */
TEST(a_process_of_another_namespace)
{
	const struct process_origin o = {
		.is_local = 1, .uid = geteuid(), .gid = getegid(), .pid = (uint32_t)getpid()};
	Pds__Process p;
	char why[160] = "";
	process_self(&p);
	ck_assert_int_eq(process_origin_check(&o, &p, why, sizeof why), 0);
	p.pid++;
	ck_assert_int_eq(process_origin_check(&o, &p, why, sizeof why), ERR_INVALID);
	p.pid_namespace++;
	ck_assert_int_eq(process_origin_check(&o, &p, why, sizeof why), 0);
}

/* Without root's rights: our own user's processes and root's are believed, no others. */
TEST(whose_processes_are_believed)
{
	int status;
	pid_t pid = fork();
	if (pid == 0) {
		Pds__Process p;
		char why[160];
		if (geteuid() == 0 && (setgid(65534) < 0 || setuid(65534) < 0))
			_exit(1);
		process_self(&p);
		struct process_origin o = {.is_local = 1, .uid = geteuid(), .pid = (uint32_t)getpid()};
		if (process_origin_check(&o, &p, why, sizeof why) < 0)
			_exit(2);
		o.uid = 0;
		if (process_origin_check(&o, &p, why, sizeof why) < 0)
			_exit(3);
		o.uid = geteuid() + 1;
		_exit(process_origin_check(&o, &p, why, sizeof why) < 0 ? 0 : 4);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0);
}

/* After a HELLO: 0 when it is refused with a sentence that holds want. */
static int await_refusal(struct rogue *g, const char *want)
{
	for (uint64_t end = clock_us() + PATIENCE_US; !g->refusal[0]; rogue_read(g)) {
		if (g->link || clock_us() > end)
			return 2;
		usleep(2000);
	}
	return strstr(g->refusal, want) ? 0 : 3;
}

/* The name, the public epoch and a larger number: all that a HELLO says is what the living peer
 * would say. */
static int take_over(void)
{
	struct rogue g;
	rogue_open(&g, endpoint);
	g.epoch = 2001; /* of pair_open's second side */
	rogue_hello(&g, "dials", 1000, 0);
	return await_refusal(&g, "which lives");
}

/* As take_over, from a peer whose process nobody watches. */
static int take_over_rogue(void)
{
	struct rogue g;
	rogue_open(&g, endpoint);
	rogue_hello(&g, "rogue", 1000, 0);
	return await_refusal(&g, "which lives");
}

TEST_CASE("strangers", .timeout_s = 120, .setup = base_setup, .teardown = base_teardown);

TEST(a_link_is_not_taken_over)
{
	struct side a, b;
	open_pair(&a, &b, pair_opts(0));
	ck_assert_uint_eq(b.epoch, 2001);
	ck_assert_int_eq(in_another_process("take_over"), 0);
	ck_assert_uint_eq(a.downs + b.downs, 0);
	ck_assert_int_eq(say_type(&a, MSG_KV_DENY), 0);
	until_settled(&a, &b, "the link goes on");
	pair_close(&a, &b);
}

/* Nor that of a peer that stands still: half of the silence that it may keep frees its name for a
 * later life, and never for another process of the same epoch. */
TEST(a_silent_link_is_not_taken_over)
{
	struct side a;
	struct rogue g;
	struct chan_opts o = pair_opts(0);
	o.silence_us = 8000000;
	with_rogue(&a, &g, o, 0);
	for (uint64_t from = clock_us(); clock_us() - from < o.silence_us / 2;)
		pump_ms(base, 50);
	ck_assert_int_eq(in_another_process("take_over_rogue"), 0);
	ck_assert_uint_eq(a.ups, 1);
	ck_assert_uint_eq(a.downs, 0);
	without_rogue(&a, &g);
}

/* Speaks on over the link of "rogue", whose connection is gone: its routing id, epoch, link and
 * next numbers. Libzmq gives it the id as soon as it has noticed the end of that connection. */
static int speak_on(void)
{
	struct rogue g;
	Pds__Peers peers = PDS__PEERS__INIT;
	for (int i = 0; i < 20; i++) {
		rogue_open_as(&g, endpoint, "chosen");
		g.link = 1;
		g.their_epoch = 1000;
		for (uint64_t number = 1; number <= 4; number++)
			rogue_send(&g, "rogue", MSG_PEERS, number, 0, &peers.base);
		usleep(10000);
		rogue_close(&g);
	}
	return 0;
}

TEST(a_link_is_not_continued_by_another_process)
{
	struct side a = {.name = "bound", .epoch = 1000, .opts = pair_opts(0)};
	struct rogue g;
	struct chan_counts counts;
	snprintf(a.bind, sizeof a.bind, "%s", endpoint);
	side_start(base, &a);
	rogue_open_as(&g, endpoint, "chosen");
	rogue_hello(&g, "rogue", 1, 0);
	for (uint64_t end = clock_us() + PATIENCE_US; !a.p || !g.link; rogue_read(&g)) {
		ck_assert(clock_us() < end);
		pump_ms(base, 2);
	}
	rogue_close(&g);
	ck_assert_int_eq(in_another_process("speak_on"), 0);
	chan_counts(a.c, &counts);
	ck_assert_msg(counts.bad >= 4, "%llu messages were bad", (unsigned long long)counts.bad);
	ck_assert_msg(a.total == 0, "%u messages of another process were heard", (unsigned)a.total);
	side_stop(&a);
}

/* Whose end a daemon watches is not what a stranger says. */
static int name_another_process(void)
{
	Pds__Hello h = PDS__HELLO__INIT;
	Pds__Process parent;
	struct rogue g;
	process_self(&parent);
	parent.pid = (uint32_t)getppid();
	rogue_open(&g, endpoint);
	rogue_describe(&h, &parent);
	h.nth = 1;
	rogue_send(&g, "rogue", MSG_HELLO, 0, 0, &h.base);
	return await_refusal(&g, "the connection is from process");
}

static int name_another_host(void)
{
	Pds__Hello h = PDS__HELLO__INIT;
	Pds__Process there;
	struct rogue g;
	process_self(&there);
	there.boot_id = (char *)"00000000-0000-0000-0000-000000000000";
	rogue_open(&g, endpoint);
	rogue_describe(&h, &there);
	h.nth = 1;
	rogue_send(&g, "rogue", MSG_HELLO, 0, 0, &h.base);
	return await_refusal(&g, "another host");
}

TEST(a_process_is_what_the_kernel_says)
{
	struct side a = {.name = "bound", .epoch = 1000, .opts = pair_opts(0)};
	snprintf(a.bind, sizeof a.bind, "%s", endpoint);
	side_start(base, &a);
	ck_assert_int_eq(in_another_process("name_another_host"), 0);
	ck_assert_int_eq(in_another_process("name_another_process"), 0);
	ck_assert_uint_eq(a.ups, 0);
	side_stop(&a);
}

static int as_another_user(void)
{
	struct rogue g;
	if (setgid(65534) < 0 || setuid(65534) < 0)
		return 4;
	rogue_open(&g, endpoint);
	rogue_hello(&g, "rogue", 1, 0);
	return await_refusal(&g, "runs as user 65534");
}

TEST(another_user_is_no_daemon_of_ours)
{
	struct side a = {.name = "bound", .epoch = 1000, .opts = pair_opts(0)};
	/* no file, so no permissions */
	snprintf(endpoint, sizeof endpoint, "ipc://@pdserve-test-%d", (int)getpid());
	snprintf(a.bind, sizeof a.bind, "%s", endpoint);
	side_start(base, &a);
	if (geteuid() == 0) /* else there is no other user to be */
		ck_assert_int_eq(in_another_process("as_another_user"), 0);
	ck_assert_uint_eq(a.ups, 0);
	side_stop(&a);
}

/* --- versions ------------------------------------------------------------ */

TEST(another_version_is_told)
{
	struct side a = {.name = "bound", .epoch = 1000, .opts = pair_opts(0)};
	struct rogue g;
	char want[80];
	snprintf(a.bind, sizeof a.bind, "%s", endpoint);
	side_start(base, &a);
	rogue_open(&g, endpoint);
	g.version = PROTOCOL_VERSION + 7;
	rogue_hello(&g, "newer", 1, 0);
	snprintf(want, sizeof want, "newer speaks protocol version %u, this daemon %u", g.version,
	         PROTOCOL_VERSION);
	ck_assert_str_eq(wait_refusal(&g), want);
	ck_assert_uint_eq(a.ups, 0);
	rogue_close(&g);
	side_stop(&a);
}

/* The one that connects hears it as well, from a WELCOME that it cannot take. */
TEST(another_version_is_heard)
{
	struct side b = {.name = "dials", .epoch = 2000, .opts = pair_opts(0)};
	struct rogue g = {.ctx = zmq_ctx_new(), .epoch = 77, .version = PROTOCOL_VERSION + 7};
	Pds__Welcome w = PDS__WELCOME__INIT;
	unsigned char rid[64], rest[4096];
	int n = -1, big = (int)sizeof rest;
	uint64_t last = 0, apart = 0;
	g.z = zmq_socket(g.ctx, ZMQ_ROUTER);
	ck_assert_int_eq(zmq_bind(g.z, endpoint), 0);
	snprintf(b.to, sizeof b.to, "%s", endpoint);
	side_start(base, &b);
	for (uint64_t end = clock_us() + PATIENCE_US; n < 0; pump_ms(base, 2)) {
		ck_assert(clock_us() < end);
		n = zmq_recv(g.z, rid, sizeof rid, ZMQ_DONTWAIT);
	}
	zmq_recv(g.z, rest, (size_t)big, 0);
	zmq_recv(g.z, rest, (size_t)big, 0);
	w.program = (char *)"pdrouterd";
	zmq_send(g.z, rid, (size_t)n, ZMQ_SNDMORE);
	rogue_send(&g, "newer", MSG_WELCOME, 0, 0, &w.base);
	/* HELLO comes each 300 ms, of one that was refused each 1.2 s */
	for (uint64_t end = clock_us() + PATIENCE_US; apart < 900000; pump_ms(base, 2)) {
		ck_assert_msg(clock_us() < end, "HELLO comes each %u ms", (unsigned)(apart / 1000));
		if (zmq_recv(g.z, rest, (size_t)big, ZMQ_DONTWAIT) < 0)
			continue;
		zmq_recv(g.z, rest, (size_t)big, 0);
		zmq_recv(g.z, rest, (size_t)big, 0);
		apart = last ? clock_us() - last : 0;
		last = clock_us();
	}
	ck_assert_uint_eq(b.ups, 0);
	side_stop(&b);
	rogue_close(&g);
}

/* --- long bodies --------------------------------------------------------- */

static size_t heard_hashes[16];
static unsigned n_heard;

static void hear_events(void *arg, struct peer *p, enum msg_type t, const struct msg_head *h,
                        const ProtobufCMessage *body)
{
	const Pds__KvEvents *m = (const Pds__KvEvents *)body;
	(void)arg;
	(void)p;
	if (t != MSG_KV_EVENTS)
		return; /* a heartbeat */
	ck_assert_uint_eq(h->req.lo, n_heard + 1);
	for (size_t i = 0; i < m->n_stored; i++)
		ck_assert_uint_eq(m->stored[i], i * 0x9e3779b97f4a7c15u + n_heard);
	heard_hashes[n_heard++] = m->n_stored;
}

static int say_events(struct side *s, uint64_t nth, size_t n)
{
	Pds__KvEvents m = PDS__KV_EVENTS__INIT;
	struct msg_head head = {.req = {0, nth}};
	m.n_stored = n;
	m.stored = mem_array(n, sizeof *m.stored);
	for (size_t i = 0; i < n; i++)
		m.stored[i] = i * 0x9e3779b97f4a7c15u + nth - 1;
	int r = chan_send(s->c, s->p, MSG_KV_EVENTS, &head, &m.base);
	free(m.stored);
	return r;
}

/* A side that hears KV_EVENTS, and one that says them. */
static void open_listener(struct chan **c, struct side *b, struct chan_opts o, const char *fault)
{
	struct chan_hooks h = {.message = hear_events};
	struct err err = {0};
	n_heard = 0;
	*b = (struct side){.name = "dials", .epoch = 2000, .opts = o, .fault = fault};
	snprintf(b->to, sizeof b->to, "%s", endpoint);
	o.program = "test";
	o.name = "listener";
	o.epoch = 1000;
	o.bind = endpoint;
	fault_next(fault);
	ck_assert_int_eq(chan_new(base, &o, &h, c, &err), 0);
	side_start(base, b);
	for (uint64_t end = clock_us() + PATIENCE_US; !b->p; pump_ms(base, 2))
		ck_assert(clock_us() < end);
}

static void hear(unsigned n)
{
	for (uint64_t end = clock_us() + PATIENCE_US; n_heard < n; pump_ms(base, 2))
		ck_assert_msg(clock_us() < end, "%u of %u heard", n_heard, n);
}

/* One hash has 8 bytes: shorter than a part, exactly one, one more, many. */
static const size_t lengths[] = {
	1, MSG_PART_BYTES / 8 - 8, MSG_PART_BYTES / 8, MSG_PART_BYTES / 8 + 1, 100000, 3, 130000};
#define N_LENGTHS (sizeof lengths / sizeof *lengths)

TEST_LOOP(long_bodies_arrive_whole, 0, 5)
{
	static const char *const faults[] = {"", "seed=5 drop=10%", "seed=6 repeat=20% drop=5%",
	                                     "seed=7 dir=in:delay=50%:1-3ms drop=5%", "seed=8 cut=2%"};
	struct chan *a;
	struct side b;
	struct chan_opts o = pair_opts(20000);
	o.window_bytes = 8u << 20;
	open_listener(&a, &b, o, faults[_i]);
	for (size_t i = 0; i < N_LENGTHS; i++)
		ck_assert_int_eq(say_events(&b, i + 1, lengths[i]), 0);
	hear(N_LENGTHS);
	for (size_t i = 0; i < N_LENGTHS; i++)
		ck_assert_uint_eq(heard_hashes[i], lengths[i]);
	chan_destroy(&b.c);
	chan_destroy(&a);
}

/* What the other side would refuse is refused here, by itself; what lacks room leaves nothing of
 * it in the window. */
TEST(too_long_fails_alone)
{
	struct chan *a;
	struct side b;
	struct chan_opts o = pair_opts(0);
	Pds__Renew renew = PDS__RENEW__INIT;
	Pds__Grant grant = PDS__GRANT__INIT;
	struct msg_head head = {.req = {1, 1}, .attempt = 1};
	o.window_bytes = 600000;
	open_listener(&a, &b, o, NULL);
	/* message_bytes_max is 1 MiB */
	ck_assert_int_eq(say_events(&b, 1, (1 << 20) / 8 + 1), ERR_INVALID);
	ck_assert_int_eq(say_events(&b, 1, 600000 / 8 + 1), ERR_FULL);
	/* it has no lease */
	ck_assert_int_eq(chan_send(b.c, b.p, MSG_KV_GRANT, &head, &grant.base), ERR_INVALID);
	renew.n_lease_ids = MSG_PART_BYTES / 8 + 1;
	renew.lease_ids = mem_array(renew.n_lease_ids, 8);
	ck_assert_int_eq(chan_send(b.c, b.p, MSG_KV_RENEW, NULL, &renew.base), ERR_INVALID);
	free(renew.lease_ids);
	ck_assert_int_eq(say_events(&b, 1, 500), 0);
	ck_assert_int_eq(say_events(&b, 2, 50000), 0);
	hear(2);
	ck_assert_uint_eq(b.downs, 0);
	chan_destroy(&b.c);
	chan_destroy(&a);
}

/* --- bad messages -------------------------------------------------------- */

static void send_part(struct rogue *g, uint64_t seq, int more, const void *body, size_t len)
{
	unsigned char head[512];
	Pds__Envelope e = PDS__ENVELOPE__INIT;
	e.version = PROTOCOL_VERSION;
	e.type = MSG_KV_EVENTS;
	e.sender = (char *)"rogue";
	e.epoch = g->epoch;
	e.seq = seq;
	e.ack_epoch = g->their_epoch;
	e.link = g->link;
	e.more = more;
	zmq_send(g->z, head, pds__envelope__pack(&e, head), ZMQ_SNDMORE);
	zmq_send(g->z, body, len, 0);
}

/* A KV_EVENTS of n hashes, packed. The caller frees it. */
static unsigned char *pack_events(size_t n, size_t *ret_len)
{
	Pds__KvEvents m = PDS__KV_EVENTS__INIT;
	m.n_stored = n;
	m.stored = mem_array(n, sizeof *m.stored);
	unsigned char *b = mem_alloc(*ret_len = pds__kv_events__get_packed_size(&m));
	pds__kv_events__pack(&m, b);
	free(m.stored);
	return b;
}

static void until_heard(struct side *a, uint64_t total)
{
	for (uint64_t end = clock_us() + PATIENCE_US; a->types_heard[MSG_KV_EVENTS] < total;
	     pump_ms(base, 2))
		ck_assert(clock_us() < end);
}

/* A link goes on after a body that does not decode, or one that never ends: it costs what it
 * stood for. */
TEST(a_bad_body_costs_itself)
{
	struct side a;
	struct rogue g;
	struct chan_counts counts;
	with_rogue(&a, &g, pair_opts(0), 0);
	size_t len, at = 0;
	uint64_t seq = 3;
	unsigned char *much = pack_events(200000, &len); /* 1.6 MB, allowed 1 MiB */
	send_part(&g, 1, 0, "\xff\xff\xff", 3);
	send_part(&g, 2, 0, "", 0);
	until_heard(&a, 1);
	for (; len - at > MSG_PART_BYTES; at += MSG_PART_BYTES)
		send_part(&g, seq++, 1, much + at, MSG_PART_BYTES);
	send_part(&g, seq++, 0, much + at, len - at);
	send_part(&g, seq++, 0, "", 0);
	until_heard(&a, 2);
	ck_assert_uint_eq(a.types_heard[MSG_KV_EVENTS], 2);
	chan_counts(a.c, &counts);
	ck_assert_uint_eq(counts.bad, 2);
	ck_assert_uint_eq(a.downs, 0);
	free(much);
	without_rogue(&a, &g);
}

/* A frame beyond what a part may have ends that connection, not the daemon, and is not read. */
TEST(a_frame_too_long_is_cut_off)
{
	struct side a;
	struct rogue g;
	with_rogue(&a, &g, pair_opts(0), 0);
	size_t len;
	unsigned char *much = pack_events(500000, &len);
	send_part(&g, 1, 0, much, len);
	pump_ms(base, 200);
	rogue_close(&g);
	rogue_open(&g, endpoint);
	g.epoch = 78;
	rogue_hello(&g, "second", 1, 0);
	for (uint64_t end = clock_us() + PATIENCE_US; !g.link; rogue_read(&g)) {
		ck_assert(clock_us() < end);
		pump_ms(base, 2);
	}
	ck_assert_uint_eq(a.types_heard[MSG_KV_EVENTS], 0);
	free(much);
	without_rogue(&a, &g);
}

TEST(connections_have_a_limit)
{
	struct side b = {.name = "dials", .epoch = 2000, .opts = pair_opts(0)};
	side_start(base, &b);
	for (int i = 0; i < 4; i++)
		ck_assert_ptr_nonnull(chan_connect(b.c, endpoint, NULL, 1));
	ck_assert_ptr_null(chan_connect(b.c, endpoint, NULL, 1));
	side_stop(&b);
}

/* --- pdctl --------------------------------------------------------------- */

#define ANSWER_BYTES (4u << 20)
#define QUESTIONS 40u /* 160 MiB of answers; the limit is 64 */

static unsigned n_asked;

static int answer_at_length(void *arg, struct chan_asked *asked, const struct process_origin *who,
                            const char *command, char *const *args, size_t n_args, char **ret_text)
{
	(void)asked;
	(void)arg;
	(void)who;
	(void)command;
	(void)args;
	(void)n_args;
	n_asked++;
	*ret_text = mem_zalloc(ANSWER_BYTES + 1);
	memset(*ret_text, 'x', ANSWER_BYTES);
	return 0;
}

static void ask(struct rogue *g)
{
	Pds__CtlRequest q = PDS__CTL_REQUEST__INIT;
	q.command = (char *)"metrics";
	rogue_send(g, "rogue", MSG_CTL_REQUEST, 0, 0, &q.base);
}

/* The code of the next answer. */
static int read_answer(struct rogue *g)
{
	zmq_msg_t f[2];
	struct msg_in in;
	struct err err = {0};
	uint64_t end = clock_us() + PATIENCE_US;
	zmq_msg_init(&f[0]);
	zmq_msg_init(&f[1]);
	for (; zmq_msg_recv(&f[0], g->z, ZMQ_DONTWAIT) < 0; pump_ms(base, 1))
		ck_assert(clock_us() < end);
	ck_assert_int_ge(zmq_msg_recv(&f[1], g->z, 0), 0);
	int r = msg_decode(zmq_msg_data(&f[0]), zmq_msg_size(&f[0]), zmq_msg_data(&f[1]),
	                   zmq_msg_size(&f[1]), &in, &err);
	ck_assert_int_eq(r, 0);
	const Pds__CtlReply *a = (const Pds__CtlReply *)in.body;
	int code = a->code;
	if (code)
		ck_assert_ptr_nonnull(strstr(a->text, "are not yet read, the limit is 128 MiB"));
	else
		ck_assert_uint_eq(strlen(a->text), ANSWER_BYTES);
	msg_in_fini(&in);
	zmq_msg_close(&f[0]);
	zmq_msg_close(&f[1]);
	return code;
}

/* A question of another protocol is answered in the form that all of them have; nothing is done. */
TEST(question_of_another_version)
{
	struct chan_hooks h = {.ctl = answer_at_length};
	struct chan_opts o = pair_opts(0);
	struct err err = {0};
	struct rogue g;
	struct chan *c;
	Pds__CtlRequest q = PDS__CTL_REQUEST__INIT;
	unsigned char head[512], body[512];
	char want[160];
	int n;
	o.program = "test";
	o.name = "bound";
	o.epoch = 1000;
	o.bind = endpoint;
	ck_assert_int_eq(chan_new(base, &o, &h, &c, &err), 0);
	rogue_open(&g, endpoint);
	g.version = PROTOCOL_VERSION + 7;
	q.command = (char *)"stop";
	n_asked = 0;
	rogue_send(&g, "pdctl", MSG_CTL_REQUEST, 0, 0, &q.base);
	for (uint64_t end = clock_us() + PATIENCE_US;
	     (n = zmq_recv(g.z, head, sizeof head, ZMQ_DONTWAIT)) < 0; pump_ms(base, 1))
		ck_assert(clock_us() < end);
	Pds__Envelope *e = pds__envelope__unpack(NULL, (size_t)n, head);
	n = zmq_recv(g.z, body, sizeof body, 0);
	Pds__CtlReply *a = pds__ctl_reply__unpack(NULL, (size_t)n, body);
	ck_assert(e && a);
	ck_assert_uint_eq(e->version, PROTOCOL_VERSION);
	ck_assert_uint_eq(e->type, MSG_CTL_REPLY);
	ck_assert_int_eq(a->code, ERR_UNSUPPORTED);
	snprintf(want, sizeof want, "runs protocol %u (version %s), this pdctl speaks %u",
	         PROTOCOL_VERSION, build_version(), g.version);
	ck_assert_str_eq(a->text, want);
	ck_assert_uint_eq(n_asked, 0);
	pds__envelope__free_unpacked(e, NULL);
	pds__ctl_reply__free_unpacked(a, NULL);
	rogue_close(&g);
	chan_destroy(&c);
}

/* What a daemon of another protocol answers to each message, NULL: nothing. */
struct other_daemon {
	const char *to_question, *to_hello;
	int code;
	const char *want; /* what pdctl says */
	uint32_t version;
	const char *late; /* its answer to the question, after the HELLO */
};

static void *ask_other_daemon(void *arg)
{
	struct err err = {0};
	char *text = NULL;
	(void)arg;
	uint64_t begun = clock_us();
	int r = chan_ask(endpoint, NULL, "stop", NULL, 0, 500000, &text, &err);
	ck_assert_uint_lt(clock_us() - begun, 600000);
	char *out = mem_printf("%d %s", r, err.text);
	free(text);
	return out;
}

/* Plays the daemon until the asking thread has its answer. */
static void play_other_daemon(struct rogue *g, const struct other_daemon *d)
{
	for (int i = 0; i < 2; i++) {
		unsigned char rid[64], head[512], rest[512];
		int n = zmq_recv(g->z, rid, sizeof rid, 0);
		Pds__Envelope *e = pds__envelope__unpack(NULL, (size_t)zmq_recv(g->z, head, sizeof head, 0),
		                                         head);
		zmq_recv(g->z, rest, sizeof rest, 0);
		ck_assert_uint_eq(e->type, i ? MSG_HELLO : MSG_CTL_REQUEST);
		pds__envelope__free_unpacked(e, NULL);
		Pds__CtlReply a = PDS__CTL_REPLY__INIT;
		Pds__Welcome w = PDS__WELCOME__INIT;
		a.code = d->code;
		a.text = (char *)d->to_question;
		w.refused = 1;
		w.reason = (char *)d->to_hello;
		if (i ? d->to_hello : d->to_question) {
			zmq_send(g->z, rid, (size_t)n, ZMQ_SNDMORE);
			rogue_send(g, "other", i ? MSG_WELCOME : MSG_CTL_REPLY, 0, 0, i ? &w.base : &a.base);
		}
		if (i && d->late) {
			a.text = (char *)d->late;
			zmq_send(g->z, rid, (size_t)n, ZMQ_SNDMORE);
			rogue_send(g, "other", MSG_CTL_REPLY, 0, 0, &a.base);
		}
		if (d->to_question)
			return;
	}
}

TEST(pdctl_asks_another_version)
{
	static const struct other_daemon rows[] = {
		{"runs protocol 12 (version 1.2.0)", NULL, ERR_UNSUPPORTED,
	     "-9 runs protocol 12 (version 1.2.0)", .version = 12},
		{"{}", NULL, 0, "-9 {}", .version = 12}, /* whatever it says, it is no answer */
		{NULL, "pdctl speaks another version", 0, "-9 runs protocol 12, this pdctl speaks ",
	     .version = 12},
		{NULL, NULL, 0, "-7 no answer from ", .version = 12},
		{NULL, "pdctl has no links", 0, "-7 no answer from ", .version = PROTOCOL_VERSION},
		{NULL, "pdctl has no links", 0, "0 ", .version = PROTOCOL_VERSION, .late = "{}"}};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct rogue g = {.ctx = zmq_ctx_new(), .epoch = 77, .version = rows[i].version};
		int zero = 0;
		pthread_t t;
		void *said;
		g.z = zmq_socket(g.ctx, ZMQ_ROUTER);
		zmq_setsockopt(g.z, ZMQ_LINGER, &zero, sizeof zero);
		ck_assert_int_eq(zmq_bind(g.z, endpoint), 0);
		ck_assert_int_eq(pthread_create(&t, NULL, ask_other_daemon, NULL), 0);
		play_other_daemon(&g, &rows[i]);
		pthread_join(t, &said);
		ck_assert_msg(strncmp(said, rows[i].want, strlen(rows[i].want)) == 0, "%s", (char *)said);
		free(said);
		rogue_close(&g);
	}
}

/* pdctl says HELLO to learn the protocol: that is no peer, and nothing to log or count. */
TEST(hello_of_pdctl)
{
	struct chan_hooks h = {.ctl = answer_at_length};
	struct chan_opts o = pair_opts(0);
	struct chan_counts n = {0};
	struct err err = {0};
	struct rogue g;
	struct chan *c;
	Pds__Hello q = PDS__HELLO__INIT;
	unsigned char head[512], body[512];
	int len;
	o.program = "test";
	o.name = "bound";
	o.epoch = 1000;
	o.bind = endpoint;
	ck_assert_int_eq(chan_new(base, &o, &h, &c, &err), 0);
	rogue_open(&g, endpoint);
	q.program = (char *)"pdctl";
	rogue_send(&g, "pdctl", MSG_HELLO, 0, 0, &q.base);
	for (uint64_t end = clock_us() + PATIENCE_US;
	     (len = zmq_recv(g.z, head, sizeof head, ZMQ_DONTWAIT)) < 0; pump_ms(base, 1))
		ck_assert(clock_us() < end);
	Pds__Envelope *e = pds__envelope__unpack(NULL, (size_t)len, head);
	len = zmq_recv(g.z, body, sizeof body, 0);
	Pds__Welcome *w = pds__welcome__unpack(NULL, (size_t)len, body);
	ck_assert(e && w);
	ck_assert_uint_eq(e->version, PROTOCOL_VERSION);
	ck_assert_uint_eq(e->type, MSG_WELCOME);
	ck_assert_int_eq(w->refused, 1);
	chan_counts(c, &n);
	ck_assert_uint_eq(n.hellos_refused, 0);
	ck_assert_ptr_null(chan_next(c, NULL));
	pds__envelope__free_unpacked(e, NULL);
	pds__welcome__free_unpacked(w, NULL);
	rogue_close(&g);
	chan_destroy(&c);
}

/* Who asks and does not read costs a bounded number of bytes; when it has read it is answered
 * again. */
TEST(answers_that_nobody_reads_are_bounded)
{
	struct chan_hooks h = {.ctl = answer_at_length};
	struct chan_opts o = pair_opts(0);
	struct chan_counts n = {0};
	struct err err = {0};
	struct rogue g = {.ctx = zmq_ctx_new(), .epoch = 77, .version = PROTOCOL_VERSION};
	struct chan *c;
	int zero = 0, one = 1;
	unsigned full = 0;
	o.program = "test";
	o.name = "bound";
	o.epoch = 1000;
	o.bind = endpoint;
	ck_assert_int_eq(chan_new(base, &o, &h, &c, &err), 0);
	g.z = zmq_socket(g.ctx, ZMQ_DEALER);
	zmq_setsockopt(g.z, ZMQ_LINGER, &zero, sizeof zero);
	zmq_setsockopt(g.z, ZMQ_RCVHWM, &one, sizeof one);
	ck_assert_int_eq(zmq_connect(g.z, endpoint), 0);
	for (unsigned i = 0; i < QUESTIONS; i++)
		ask(&g);
	for (uint64_t end = clock_us() + PATIENCE_US; n.received < QUESTIONS; chan_counts(c, &n)) {
		ck_assert(clock_us() < end);
		pump_ms(base, 2);
	}
	ck_assert_msg(n_asked > 32 && n_asked < 38,
	              "%u answers were made, 32 have 128 MiB, our own user's bound", n_asked);
	for (unsigned i = 0; i < QUESTIONS; i++)
		full += read_answer(&g) == ERR_FULL;
	ck_assert_uint_eq(n_asked + full, QUESTIONS);
	ask(&g);
	ck_assert_int_eq(read_answer(&g), 0);
	rogue_close(&g);
	chan_destroy(&c);
}

static int stranger_main(const char *name, const char *where)
{
	static const struct {
		const char *name;
		int (*fn)(void);
	} strangers[] = {
		{"take_over", take_over},
		{"take_over_rogue", take_over_rogue},
		{"speak_on", speak_on},
		{"name_another_process", name_another_process},
		{"name_another_host", name_another_host},
		{"as_another_user", as_another_user},
	};
	snprintf(endpoint, sizeof endpoint, "%s", where);
	for (size_t i = 0; i < sizeof strangers / sizeof *strangers; i++)
		if (strcmp(strangers[i].name, name) == 0)
			return strangers[i].fn();
	return 126;
}

TEST_START(stranger)
{
	if (argc == 3)
		exit(stranger_main(argv[1], argv[2]));
	log_set_level(getenv("MSG_LOG") ? getenv("MSG_LOG") : "error");
}
