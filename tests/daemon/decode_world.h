/* decode_world.h - a real pddecoded on the tiny golden model, and this process as everybody that it
 * talks to: a router, a prefill worker and a messager with the descriptor socket, each with a name
 * and an epoch of its own. What arrives is kept until a test asks for it; tokens are put
 * together as a router does, and an index that comes twice or too early fails the test at once.
 * One world for each test, in check's forked process. */
#ifndef TESTS_DECODE_WORLD_H
#define TESTS_DECODE_WORLD_H

#include "kv/handover.h"
#include "kv/pool.h"
#include "pool_memory.h"
#include "msg/chan.h"
#include "util/clock.h"
#include "util/list.h"
#include "util/mem.h"
#include "util/sock.h"
#include "tempdir.h"
#include "world_run.h"

#include <check.h>
#include <event2/event.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define WAIT_US 120000000u /* a sanitizer on a busy machine; who waits for less says so */
#define IDS 64u            /* request ids of the tests: 1 .. 63; above that those of settle() */
#define ANSWER_MAX 512u
#define BLOCK_TOKENS 16u

/* Waits, with all links alive. */
#define UNTIL(cond)                                                  \
	for (uint64_t until_end = clock_us() + WAIT_US; !(cond); pump()) \
	ck_assert_msg(clock_us() < until_end, "not within %u s: %s", WAIT_US / 1000000u, #cond)

struct side {
	const char *name, *program;
	uint64_t epoch;
	struct chan *c;
	struct peer *p; /* the decode worker, while it is up */
};

struct got {
	struct list node;
	struct side *at;
	enum msg_type type;
	struct msg_head head;
	ProtobufCMessage *body;
};

struct answer {
	uint32_t n, id[ANSWER_MAX];
	Pds__Finish finish;
};

struct prompt {
	const uint32_t *tokens;
	uint32_t n, max_tokens;
	uint64_t deadline_us; /* from now; 0: far away */
};

struct world {
	char dir[TEST_FOLDER_BYTES], bin[544];
	pid_t daemon, child; /* child: the messager's process, if it is not this one */
	int listener, conn;
	struct event_base *base;
	struct side router, prefill, messager;
	struct list got, old;
	struct answer answer[IDS];
	Pds__WorkerInfo *info; /* what the worker says of itself to the router */
	uint64_t epoch;        /* the worker's */
	int draining;          /* by its last heartbeat, as are the rates */
	uint32_t compute_rate, memory_rate, disk_rate, beats;
	struct kv_layout layout;
	struct pool_memory shared;
	unsigned char *kv; /* of the short prompt, layer by layer */
	uint32_t settled;
	char *text; /* the last answer to pdctl's question */
};
static struct world W;
static char bin_dir[512];
static const char *world_option;     /* one more KEY=VALUE for the daemon */
static const char *world_options[9]; /* and more */
/* the form of the next request's answer, which then ends where that does; NULL: none */
static const char *world_regex;
static Pds__Pooling world_pooling; /* of the next request */
static const char *world_salt;     /* cache salt of requests from now on; NULL: none */
static void (*world_each)(void);   /* in every round of waiting; NULL: nothing */

/* What the messager's process is to do to D's memory (it maps it, as the real one does): write
 * over these blocks for as long as `on` is set. */
struct late_writes {
	_Atomic int on, busy; /* busy: it is in a round, which it ends when `on` is taken back */
	_Atomic uint32_t rounds;
	uint32_t n, blocks[64];
};
static struct late_writes *late;

/* The golden model's short prompt and its greedy continuation
 * (tests/data/golden/llama/golden.json). */
static const uint32_t short_prompt[] = {247, 163, 95, 106, 68, 212, 302};
static const uint32_t short_answer[] = {160, 290, 37, 266, 214, 105, 245, 29, 283, 246};
static uint32_t long_tokens[1024];

static inline struct prompt short_of(uint32_t max_tokens)
{
	return (struct prompt){short_prompt, 7, max_tokens, 0};
}

static inline struct prompt tokens_of(uint32_t n)
{
	for (uint32_t i = 0; i < 1024; i++)
		long_tokens[i] = 3 + (i * 37 + n) % 300; /* n: no two share a prefix */
	return (struct prompt){long_tokens, n, 8, 0};
}

/* --- what arrives -------------------------------------------------------- */

static inline ProtobufCMessage *body_copy(const ProtobufCMessage *m)
{
	size_t n = protobuf_c_message_get_packed_size(m);
	unsigned char *b = mem_alloc(n + 1);
	protobuf_c_message_pack(m, b);
	ProtobufCMessage *copy = protobuf_c_message_unpack(m->descriptor, NULL, n, b);
	free(b);
	ck_assert_ptr_nonnull(copy);
	return copy;
}

static inline void take_tokens(const Pds__Tokens *m)
{
	for (size_t i = 0; i < m->n_sequences; i++) {
		const Pds__SequenceTokens *s = m->sequences[i];
		ck_assert_uint_lt(s->request_lo, IDS);
		struct answer *a = &W.answer[s->request_lo];
		ck_assert_msg(s->index == a->n, "request %u: token index %u, %u is next",
		              (unsigned)s->request_lo, s->index, a->n);
		ck_assert_msg(a->finish == PDS__FINISH__FINISH_NONE, "request %u: a token after the end",
		              (unsigned)s->request_lo);
		for (size_t k = 0; k < s->n_tokens && a->n < ANSWER_MAX; k++)
			a->id[a->n++] = s->tokens[k]->id;
		a->finish = s->finish;
	}
}

static inline void on_message(void *arg, struct peer *p, enum msg_type type,
                              const struct msg_head *head, const ProtobufCMessage *body)
{
	(void)p;
	if (type == MSG_HEARTBEAT) {
		const Pds__Heartbeat *hb = (const Pds__Heartbeat *)body;
		W.draining = hb->draining;
		W.compute_rate = hb->compute_tokens_per_s;
		W.memory_rate = hb->memory_tokens_per_s;
		W.disk_rate = hb->disk_tokens_per_s;
		W.beats += arg == &W.router;
		return;
	}
	if (type == MSG_REQUEST_TOKENS) {
		take_tokens((const Pds__Tokens *)body);
		return;
	}
	struct got *g = mem_zalloc(sizeof *g);
	g->at = arg;
	g->type = type;
	g->head = *head;
	g->body = body_copy(body);
	list_push_back(&W.got, &g->node);
}

static inline void on_up(void *arg, struct peer *p)
{
	struct side *s = arg;
	s->p = p;
	if (s == &W.router) {
		W.epoch = peer_epoch(p);
		if (!W.info)
			W.info = (Pds__WorkerInfo *)body_copy(&peer_worker(p)->base);
	}
}

static inline void on_down(void *arg, struct peer *p, const char *why)
{
	(void)p;
	(void)why;
	((struct side *)arg)->p = NULL;
}

static inline int describe_prefill(void *arg, Pds__WorkerInfo *w)
{
	(void)arg;
	*w = *W.info;
	w->role = "prefill";
	w->endpoint = "ipc:///nowhere";
	return 1;
}

/* --- the messager's descriptor socket ------------------------------------ */

static inline int listen_sock(void)
{
	char path[128];
	struct err e = {0};
	snprintf(path, sizeof path, "%s/messager.sock", W.dir);
	int fd = sock_listen(path, 0600, &e);
	ck_assert_msg(fd >= 0, "%s", e.text);
	return fd;
}

static inline void answer_worker(int conn, int map)
{
	struct handover_hello h;
	struct kv_layout l;
	struct err e = {0};
	int fds[3];
	ck_assert_msg(handover_receive(conn, &h, &l, fds, &e) == 0, "%s", e.text);
	ck_assert_int_ge(fds[2], 0); /* its ring, for when it is a prefill worker */
	close(fds[2]);
	if (map) {
		W.layout = l;
		ck_assert_msg(pool_memory_map(&W.shared, &l, h.blocks, fds[0], fds[1], &e) == 0, "%s",
		              e.text);
	}
	ck_assert_int_eq(handover_answer(conn, W.messager.epoch, 0, "", "", -1), 0);
}

/* The messager as a process of its own: it has the memory until it is killed; SIGUSR1 makes it
 * close its connection and live on, SIGUSR2 makes it write (struct late_writes). */
static volatile sig_atomic_t close_now, write_now;

static inline void on_usr1(int sig)
{
	(void)sig;
	close_now = 1;
}

static inline void on_usr2(int sig)
{
	(void)sig;
	write_now = 1;
}

static inline void write_late(void)
{
	write_now = 0;
	late->busy = 1;
	while (late->on) {
		for (uint32_t l = 0; l < W.layout.layers; l++)
			for (uint32_t i = 0; i < late->n; i++)
				memset(W.shared.data +
				           kv_piece_offset(&W.layout, W.shared.region.blocks, l, late->blocks[i]),
				       0x42, W.layout.piece_bytes[l]);
		late->rounds++;
	}
	late->busy = 0;
}

static inline void messager_process(void)
{
	sigset_t block, old;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	signal(SIGUSR1, on_usr1);
	signal(SIGUSR2, on_usr2);
	sigemptyset(&block);
	sigaddset(&block, SIGUSR1);
	sigaddset(&block, SIGUSR2);
	sigprocmask(SIG_BLOCK, &block, &old);
	int l = listen_sock(), conn = sock_accept(l);
	answer_worker(conn, 1);
	while (!close_now) {
		sigsuspend(&old);
		if (write_now)
			write_late();
	}
	close(conn);
	close(l);
	for (;;)
		pause();
}

static inline void child_kill(void)
{
	kill(W.child, SIGKILL);
	ck_assert_int_eq(waitpid(W.child, NULL, 0), W.child);
	W.child = 0;
}

/* --- life ---------------------------------------------------------------- */

static inline void pump(void)
{
	event_base_loop(W.base, EVLOOP_NONBLOCK);
	if (W.listener >= 0 && W.conn < 0) {
		int fd = sock_accept(W.listener);
		if (fd >= 0) {
			W.conn = fd;
			answer_worker(fd, 1);
		}
	}
	if (world_each)
		world_each();
	usleep(500);
}

static inline void pump_for(uint64_t us)
{
	for (uint64_t end = clock_us() + us; clock_us() < end;)
		pump();
}

static inline void side_open(struct side *s)
{
	char endpoint[128];
	struct err e = {0};
	int worker = s == &W.prefill;
	snprintf(endpoint, sizeof endpoint, "ipc://%s/%s.ipc", W.dir, s->name);
	struct chan_opts o = {.program = s->program,
	                      .name = s->name,
	                      .epoch = s->epoch,
	                      .bind = worker ? NULL : endpoint,
	                      .heartbeat_us = 200000,
	                      .silence_us = WAIT_US,
	                      .window_messages = 1024,
	                      .window_bytes = 1u << 24,
	                      .peers_max = 8,
	                      .message_bytes_max = 1u << 20};
	struct chan_hooks h = {.arg = s,
	                       .describe = worker ? describe_prefill : NULL,
	                       .up = on_up,
	                       .down = on_down,
	                       .message = on_message};
	ck_assert_msg(chan_new(W.base, &o, &h, &s->c, &e) == 0, "%s", e.text);
	if (worker)
		chan_connect(s->c, W.info->endpoint, "decode", 1);
}

static inline void side_close(struct side *s)
{
	chan_destroy(&s->c);
	s->p = NULL;
}

static inline void daemon_start(uint32_t blocks, uint32_t lease_ms)
{
	char rundir[96], kv[32], lease[32], parent[32];
	snprintf(rundir, sizeof rundir, "rundir=%s", W.dir);
	snprintf(kv, sizeof kv, "kv_blocks=%u", blocks);
	snprintf(lease, sizeof lease, "lease_ms=%u", lease_ms);
	snprintf(parent, sizeof parent, "%d", (int)getpid());
	snprintf(W.bin, sizeof W.bin, "%s/pddecoded", bin_dir);
	char *argv[48] = {W.bin,
	                  "-o",
	                  rundir,
	                  "-o",
	                  kv,
	                  "-o",
	                  lease,
	                  "-o",
	                  "model=tests/data/golden/llama",
	                  "-o",
	                  "block_tokens=16",
	                  "-o",
	                  "storage=none",
	                  "-o",
	                  "threads=1",
	                  "-o",
	                  "kv_type=f32",
	                  "-o",
	                  "log_level=error",
	                  "--die-with-parent",
	                  parent,
	                  world_option ? "-o" : NULL,
	                  (char *)(uintptr_t)world_option,
	                  NULL};
	size_t at = 0;
	while (argv[at])
		at++;
	for (size_t i = 0; i < sizeof world_options / sizeof *world_options && world_options[i]; i++) {
		argv[at++] = "-o";
		argv[at++] = (char *)(uintptr_t)world_options[i];
	}
	W.daemon = vfork();
	if (W.daemon == 0) {
		execv(W.bin, argv);
		_exit(127);
	}
	ck_assert_int_gt(W.daemon, 0);
}

/* Killed and started again: its next life, with memory of its own (not for a messager in a
 * process of its own). */
static inline void daemon_restart(uint32_t blocks, uint32_t lease_ms)
{
	uint64_t old = W.epoch;
	kill(W.daemon, SIGKILL);
	ck_assert_int_eq(waitpid(W.daemon, NULL, 0), W.daemon);
	close(W.conn);
	W.conn = -1;
	pool_memory_fini(&W.shared);
	memset(&W.shared, 0, sizeof W.shared);
	daemon_start(blocks, lease_ms);
	UNTIL(W.epoch != old && W.router.p && W.messager.p && W.prefill.p &&
	      peer_epoch(W.prefill.p) == W.epoch && W.shared.data);
}

static inline void settle(struct side *s);

static inline void world_begin(uint32_t blocks, uint32_t lease_ms, int child)
{
	list_init(&W.got);
	list_init(&W.old);
	W.listener = W.conn = -1;
	W.router = (struct side){"router", "pdrouterd", 1000, NULL, NULL};
	W.prefill = (struct side){"prefill", "pdprefilld", 4000, NULL, NULL};
	W.messager = (struct side){"messager", "pdmessagerd", 3000, NULL, NULL};
	late = mmap(NULL, sizeof *late, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert_ptr_ne(late, MAP_FAILED);
	test_folder(W.dir, "decoded");
	if (child && (W.child = fork()) == 0)
		messager_process();
	W.base = event_base_new();
	side_open(&W.router);
	side_open(&W.messager);
	if (!child) {
		W.listener = listen_sock();
		fcntl(W.listener, F_SETFL, O_NONBLOCK);
	}
	daemon_start(blocks, lease_ms);
	UNTIL(W.router.p && W.messager.p && (child || W.shared.data));
	side_open(&W.prefill);
	UNTIL(W.prefill.p);
	settle(&W.router); /* the daemon knows the router's link, too: without it no reservation */
}

static inline const char *ctl(const char *command)
{
	char endpoint[128];
	struct err err = {0};
	snprintf(endpoint, sizeof endpoint, "ipc://%s/decode.ipc", W.dir);
	free(W.text);
	W.text = NULL;
	int r = chan_ask(endpoint, NULL, command, NULL, 0, WAIT_US, &W.text, &err);
	ck_assert_msg(r == 0, "%s: %s", command, err.text);
	return W.text;
}

static inline uint32_t kv_count(const char *name)
{
	char key[32];
	snprintf(key, sizeof key, "\"%s\":", name);
	const char *text = ctl("kv"), *at = strstr(text, key);
	ck_assert_msg(at != NULL, "no %s in %s", key, text);
	return (uint32_t)strtoul(at + strlen(key), NULL, 10);
}

static inline int requests_are(const char *want)
{
	const char *text = ctl("requests");
	return strcmp(want, "[]") == 0 ? strcmp(text, want) == 0 : strstr(text, want) != NULL;
}

/* Nothing is held, leased or waited for, and no block is lost; then the worker ends in order. Blocks
 * of a request that is gone may wait a moment for storage's fence. */
static inline void world_end(void)
{
	int status;
	char rm[96];
	UNTIL(requests_are("[]"));
	UNTIL(kv_count("held") == 0 && kv_count("leased") == 0);
	ck_assert_uint_eq(kv_count("sum"), kv_count("blocks"));
	kill(W.daemon, SIGTERM);
	ck_assert_int_eq(waitpid(W.daemon, &status, 0), W.daemon);
	ck_assert_msg(status == 0, "pddecoded ended with wait status %#x", (unsigned)status);
	if (W.child)
		child_kill();
	struct side *sides[] = {&W.router, &W.prefill, &W.messager};
	for (int i = 0; i < 3; i++)
		if (sides[i]->c)
			side_close(sides[i]);
	snprintf(rm, sizeof rm, "rm -r %s", W.dir);
	ck_assert_int_eq(system(rm), 0);
}

/* --- words of the tests -------------------------------------------------- */

static inline void say(struct side *s, enum msg_type type, uint32_t n, const ProtobufCMessage *body)
{
	struct msg_head h = {{7, n}, 1, clock_us() + 60000000u};
	ck_assert_ptr_nonnull(s->p);
	ck_assert_int_eq(chan_send(s->c, s->p, type, &h, body), 0);
}

/* The oldest of this type (about this request) that no test has had yet; NULL: none so far. */
static inline ProtobufCMessage *take(struct side *s, enum msg_type type, uint32_t n)
{
	list_each_safe(it, nx, &W.got) {
		struct got *g = list_entry(it, struct got, node);
		if (g->at != s || g->type != type || g->head.req.lo != n)
			continue;
		list_remove(it);
		list_push_back(&W.old, it);
		return g->body;
	}
	return NULL;
}

static inline ProtobufCMessage *await(struct side *s, enum msg_type type, uint32_t n)
{
	ProtobufCMessage *m;
	for (uint64_t end = clock_us() + WAIT_US; !(m = take(s, type, n)); pump())
		ck_assert_msg(clock_us() < end, "%s gets no %s about request %u", s->name,
		              msg_type_find(type)->name, n);
	return m;
}
#define WANT(Type, side, type, n) ((const Type *)await(&W.side, MSG_##type, n))
#define NONE(side, type, n)                                                                      \
	ck_assert_msg(take(&W.side, MSG_##type, n) == NULL, #side " got " #type " about request %u", \
	              (unsigned)(n))

static inline void fill_request(Pds__Request *r, Pds__Sampling *s, const struct prompt *p)
{
	static Pds__Constraint form;
	pds__request__init(r);
	pds__sampling__init(s);
	r->tokens = (uint32_t *)p->tokens;
	r->n_tokens = p->n;
	r->prompt_tokens = p->n;
	r->max_tokens = p->max_tokens;
	r->sampling = s;
	r->ignore_eos = 1;
	s->top_p = 1;
	s->seed = 1;
	s->logprobs = -1;
	if (world_salt)
		r->cache_salt = (ProtobufCBinaryData){32, (uint8_t *)(uintptr_t)world_salt};
	r->pooling = world_pooling;
	world_pooling = PDS__POOLING__POOLING_NONE;
	if (!world_regex)
		return;
	pds__constraint__init(&form);
	form.kind = PDS__CONSTRAINT_KIND__CONSTRAINT_REGEX;
	form.text = (char *)(uintptr_t)world_regex;
	r->constraint = &form;
	r->ignore_eos = 0;
	world_regex = NULL;
}

static inline void say_submit(uint32_t n, struct prompt p)
{
	Pds__Submit m = PDS__SUBMIT__INIT;
	Pds__Request r;
	Pds__Sampling s;
	fill_request(&r, &s, &p);
	m.request = &r;
	say(&W.router, MSG_REQUEST_SUBMIT, n, &m.base);
}

static inline void say_reserve(uint32_t n, uint32_t attempt, struct prompt p)
{
	Pds__Reserve m = PDS__RESERVE__INIT;
	Pds__Request r;
	Pds__Sampling s;
	struct msg_head h = {{7, n}, attempt, clock_us() + (p.deadline_us ? p.deadline_us : 60000000u)};
	fill_request(&r, &s, &p);
	m.request = &r;
	m.router = (char *)W.router.name;
	m.router_epoch = W.router.epoch;
	ck_assert_int_eq(chan_send(W.prefill.c, W.prefill.p, MSG_KV_RESERVE, &h, &m.base), 0);
}

static inline const Pds__Grant *reserve(uint32_t n, struct prompt p)
{
	say_reserve(n, 1, p);
	return WANT(Pds__Grant, prefill, KV_GRANT, n);
}

static inline void say_cancel(struct side *s, uint32_t n)
{
	Pds__Cancel m = PDS__CANCEL__INIT;
	m.reason = "the test says so";
	say(s, MSG_REQUEST_CANCEL, n, &m.base);
}

static inline void say_open(struct side *s, uint32_t n, Pds__Lease l)
{
	Pds__LeaseOpen m = PDS__LEASE_OPEN__INIT;
	m.lease = &l;
	m.prefill = (char *)W.prefill.name;
	m.prefill_epoch = W.prefill.epoch;
	say(s, MSG_LEASE_OPEN, n, &m.base);
}

static inline void say_revoked(struct side *s, uint32_t n, Pds__Lease l)
{
	Pds__LeaseRevoked m = PDS__LEASE_REVOKED__INIT;
	m.lease = &l;
	say(s, MSG_LEASE_REVOKED, n, &m.base);
}

static inline void say_ready(struct side *s, uint32_t n, Pds__Lease l)
{
	Pds__KvReady m = PDS__KV_READY__INIT;
	m.lease = &l;
	m.prefill = (char *)W.prefill.name;
	m.prefill_epoch = W.prefill.epoch;
	say(s, MSG_KV_READY, n, &m.base);
}

static inline void say_first(uint32_t n, Pds__Lease l, uint32_t token)
{
	Pds__FirstToken m = PDS__FIRST_TOKEN__INIT;
	Pds__Token t = PDS__TOKEN__INIT;
	t.id = token;
	m.token = &t;
	m.decode = "decode";
	m.decode_epoch = l.epoch;
	m.lease_id = l.id;
	m.lease_generation = l.generation;
	say(&W.prefill, MSG_REQUEST_FIRST_TOKEN, n, &m.base);
}

static inline void opened(uint32_t n, Pds__Lease l, int refused)
{
	say_open(&W.messager, n, l);
	const Pds__LeaseOpened *o = WANT(Pds__LeaseOpened, messager, LEASE_OPENED, n);
	ck_assert_int_eq(o->refused, refused);
	ck_assert_str_eq(o->prefill, W.prefill.name);
	ck_assert_uint_eq(o->prefill_epoch, W.prefill.epoch);
}

/* KV_READY is acknowledged, whatever has become of the lease. */
static inline void ready_acked(uint32_t n)
{
	const Pds__KvReadyAck *a = WANT(Pds__KvReadyAck, messager, KV_READY_ACK, n);
	ck_assert_str_eq(a->prefill, W.prefill.name);
	ck_assert_uint_eq(a->prefill_epoch, W.prefill.epoch);
}

static inline Pds__Lease no_lease(void)
{
	Pds__Lease l = PDS__LEASE__INIT;
	l.id = 1000000;
	l.epoch = W.epoch;
	l.generation = 1000000;
	return l;
}

/* Links keep their order: what this side said before has been dealt with, and what was sent to
 * it has arrived. */
static inline void settle(struct side *s)
{
	static const uint32_t outside[] = {100000};
	uint32_t n = IDS + ++W.settled;
	if (s == &W.messager) {
		say_ready(s, n, no_lease());
		await(s, MSG_KV_READY_ACK, n);
	} else if (s == &W.prefill) {
		say_first(n, no_lease(), 1);
		await(s, MSG_REQUEST_FIRST_TOKEN_ACK, n);
	} else {
		say_submit(n, (struct prompt){outside, 1, 1, 0});
		await(s, MSG_REQUEST_FAILED, n);
	}
}

/* What a prefill worker would compute for the short prompt: the worker computes it once by
 * itself, in the one block that is not zero then. */
static inline void learn_kv(uint32_t n)
{
	uint32_t at = KV_BLOCK_NONE;
	say_submit(n, short_of(1));
	UNTIL(W.answer[n].finish == PDS__FINISH__FINISH_LENGTH);
	ck_assert_uint_eq(W.answer[n].id[0], short_answer[0]);
	for (uint32_t b = 0; b < W.shared.region.blocks; b++) {
		const unsigned char *piece = W.shared.data +
		                             kv_piece_offset(&W.layout, W.shared.region.blocks, 0, b);
		for (size_t i = 0; i < W.layout.piece_bytes[0]; i++)
			if (piece[i]) {
				ck_assert(at == KV_BLOCK_NONE || at == b);
				at = b;
			}
	}
	ck_assert_uint_ne(at, KV_BLOCK_NONE);
	W.kv = mem_alloc(W.layout.block_bytes);
	unsigned char *to = W.kv;
	for (uint32_t l = 0; l < W.layout.layers; to += W.layout.piece_bytes[l++])
		memcpy(to, W.shared.data + kv_piece_offset(&W.layout, W.shared.region.blocks, l, at),
		       W.layout.piece_bytes[l]);
}

/* The messager's copy. */
static inline void fill_kv(const Pds__Grant *g)
{
	const unsigned char *from = W.kv;
	ck_assert_uint_eq(g->n_blocks, 1);
	for (uint32_t l = 0; l < W.layout.layers; from += W.layout.piece_bytes[l++])
		memcpy(W.shared.data + kv_piece_offset(&W.layout, W.shared.region.blocks, l, g->blocks[0]),
		       from, W.layout.piece_bytes[l]);
}

/* A lease that the messager may write to. */
static inline Pds__Lease written(uint32_t n, struct prompt p)
{
	Pds__Lease l = *reserve(n, p)->lease;
	opened(n, l, 0);
	return l;
}

/* A lease for the short prompt whose KV the messager has copied (after learn_kv): both halves of
 * the join are to come. */
static inline Pds__Lease filled(uint32_t n, uint32_t max_tokens)
{
	const Pds__Grant *g = reserve(n, short_of(max_tokens));
	opened(n, *g->lease, 0);
	fill_kv(g);
	return *g->lease;
}

static inline void join(uint32_t n, Pds__Lease l)
{
	say_ready(&W.messager, n, l);
	say_first(n, l, short_answer[0]);
}

/* A sequence that a prefill worker and the messager have handed over as they should: it decodes
 * from the first token on. */
static inline Pds__Lease joined(uint32_t n, uint32_t max_tokens)
{
	Pds__Lease l = filled(n, max_tokens);
	join(n, l);
	return l;
}

/* The answer to request n has ended, with so many tokens. */
static inline void expect_length(uint32_t n, uint32_t tokens)
{
	UNTIL(W.answer[n].finish != PDS__FINISH__FINISH_NONE);
	ck_assert_uint_eq(W.answer[n].n, tokens);
}

static inline void expect_answer(uint32_t n, uint32_t tokens)
{
	UNTIL(W.answer[n].finish != PDS__FINISH__FINISH_NONE);
	ck_assert_int_eq(W.answer[n].finish, PDS__FINISH__FINISH_LENGTH);
	ck_assert_uint_eq(W.answer[n].n, tokens);
	for (uint32_t i = 0; i < tokens; i++)
		ck_assert_msg(W.answer[n].id[i] == short_answer[i], "token %u is %u, golden is %u", i,
		              W.answer[n].id[i], short_answer[i]);
}

/* --- the program --------------------------------------------------------- */

/* The daemons lie beside the test. First in main. */
static inline void world_main(const char *program)
{
	const char *slash = strrchr(program, '/');
	log_set_level("error");
	snprintf(bin_dir, sizeof bin_dir, "%.*s/../bin", slash ? (int)(slash - program) : 1,
	         slash ? program : ".");
}

#endif
