/* world.h - the world of a test: one real daemon of this build, and this process as everybody that
 * it talks to. Each peer that is played (struct side) has a link, a name and an epoch; the
 * messager takes the daemon's memory, too. What arrives is kept, in order, and nothing is answered
 * by itself. What belongs to one role is in decode_world.h and prefill_world.h.
 *
 * No test is decided by a fixed time: tests wait for a state (UNTIL), at most WAIT_US. One world
 * for each test, in check's forked process; the daemon ends with it. */
#ifndef TESTS_WORLD_H
#define TESTS_WORLD_H

#include "kv/handover.h"
#include "kv/ring.h"
#include "pool_memory.h"
#include "msg/chan.h"
#include "tests/fault/fault.h"
#include "util/clock.h"
#include "util/list.h"
#include "util/mem.h"
#include "util/sock.h"
#include "tempdir.h"

#include <check.h>
#include <event2/event.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define WAIT_US 120000000u /* a sanitizer on a busy machine; tests have longer (world_case) */
#define GOLDEN "tests/data/golden/llama"
#define BLOCK 16u /* tokens */
#define COUNT(a) (int)(sizeof(a) / sizeof(*a))

struct side {
	const char *name, *program;
	uint64_t epoch;
	const char *to;    /* a prefill worker: whom it connects to; NULL: others connect to it */
	const char *fault; /* of its link when that opens (tests/fault/fault.h); NULL: none */
	struct chan *c;
	struct peer *p; /* the daemon, while the link is up */
};

struct got {
	struct list node;
	struct side *at;
	enum msg_type type;
	struct msg_head head;
	ProtobufCMessage *body;
	int taken;
};

static struct side sides[] = {
	{"router", "pdrouterd", 1000, NULL, NULL, NULL, NULL},
	{"messager", "pdmessagerd", 2000, NULL, NULL, NULL, NULL},
	{"storage", "pdstoraged", 3000, NULL, NULL, NULL, NULL},
	{"prefill", "pdprefilld", 4000, "decode", NULL, NULL, NULL},
	{"prefill-2", "pdprefilld", 5000, "decode", NULL, NULL, NULL},
	{"decode-1", "pddecoded", 6000, NULL, NULL, NULL, NULL},
	{"decode-2", "pddecoded", 7000, NULL, NULL, NULL, NULL},
};
#define ROUTER (&sides[0])
#define MESSAGER (&sides[1])
#define STORAGE (&sides[2])
#define PREFILL (&sides[3])
#define PREFILL_2 (&sides[4])
#define D1 (&sides[5])
#define D2 (&sides[6])

static struct {
	char bin[512], dir[TEST_FOLDER_BYTES];
	const char *name;    /* of the daemon's role and of its endpoint */
	const char *program; /* in bin; NULL: pdNAMEd */
	/* settings KEY=VALUE, up to NULL; those of the test win */
	const char *const *of_role, *of_test[24];
	pid_t daemon, beside; /* beside: another real daemon; 0: none */
	struct event_base *base;
	struct event *tick;
	struct list got;
	/* of the role: hears it first; 1: it is not kept. NULL: all is kept */
	int (*hear)(struct side *s, enum msg_type type, const ProtobufCMessage *body);
	void (*each)(void);    /* in every round of waiting; NULL: nothing */
	Pds__WorkerInfo *info; /* what the worker says of itself to the router */
	uint64_t epoch;        /* the worker's */
	unsigned downs;        /* links of all sides that have ended */
	uint64_t deadline_us;  /* of what is said from now on; 0: none */
	/* the messager's socket, -1: none, and the worker's connection to it */
	int door, attached;
	int door_waits;     /* the worker is let in when the router's link is up */
	const char *remote; /* in the messager's reply; NULL: it is on no network */
	struct handover_hello hello;
	struct kv_layout layout;
	struct pool_memory shared;
	struct ring *ring;
	char *text; /* the last answer to pdctl's question */
} W = {.door = -1, .attached = -1};

/* --- waiting ------------------------------------------------------------- */

static inline void memory_take(int conn);

static inline void pump(void)
{
	event_base_loop(W.base, EVLOOP_ONCE); /* the tick ends it within a millisecond */
	if (W.door >= 0 && W.attached < 0 && (!W.door_waits || ROUTER->p) &&
	    (W.attached = sock_accept(W.door)) >= 0)
		memory_take(W.attached);
	if (W.each)
		W.each();
}

/* For what must not happen: how long it has had time to. */
static inline void pump_for(uint64_t us)
{
	for (uint64_t end = clock_us() + us; clock_us() < end;)
		pump();
}

static inline const char *daemon_says(void);

#define UNTIL_(cond, text, turn)                                                               \
	for (uint64_t until_end = clock_us() + WAIT_US; !(cond); turn)                             \
	ck_assert_msg(clock_us() < until_end, "not within %u s: %s; %s", WAIT_US / 1000000u, text, \
	              daemon_says())
/* Waits, with all links alive. */
#define UNTIL(cond) UNTIL_(cond, #cond, pump())
/* For what is soon over: `turn` takes less than the millisecond of pump(). */
#define UNTIL_BY(cond, turn) UNTIL_(cond, #cond, turn)
#define GLANCE() event_base_loop(W.base, EVLOOP_NONBLOCK)

/* --- pdctl's questions --------------------------------------------------- */

static inline void endpoint_of(const char *name, char out[128])
{
	snprintf(out, 128, "ipc://%s/%s.ipc", W.dir, name);
}

static inline int ctl_code(const char *command, const char *arg, uint64_t wait_us, struct err *err)
{
	char endpoint[128], *args[] = {(char *)(uintptr_t)arg};
	endpoint_of(W.name, endpoint);
	free(W.text);
	W.text = NULL;
	return chan_ask(endpoint, NULL, command, args, arg != NULL, wait_us, &W.text, err);
}

/* The answer, valid until the next question. */
static inline const char *ctl(const char *command)
{
	struct err err = {0};
	int r = ctl_code(command, NULL, WAIT_US, &err);
	ck_assert_msg(r == 0, "%s: %s", command, err.text);
	return W.text;
}

static inline const char *daemon_says(void)
{
	static char text[8192];
	static const char *const commands[] = {"requests", "status", "kv"};
	size_t n = 0;
	for (int i = 0; i < COUNT(commands) && n < sizeof text; i++) {
		struct err err = {0};
		int r = ctl_code(commands[i], NULL, 1000000, &err);
		n += (size_t)snprintf(text + n, sizeof text - n, "%s %.2500s; ", commands[i],
		                      r == 0 ? W.text : err.text);
	}
	return text;
}

/* The number after "key": in what the command says. */
static inline uint32_t told(const char *command, const char *key)
{
	char quoted[48];
	snprintf(quoted, sizeof quoted, "\"%s\":", key);
	const char *text = ctl(command), *at = strstr(text, quoted);
	ck_assert_msg(at != NULL, "%s lacks %s: %s", command, key, text);
	return (uint32_t)strtoul(at + strlen(quoted), NULL, 10);
}

static inline uint32_t kv_count(const char *name)
{
	return told("kv", name);
}

/* A figure of /metrics. */
static inline uint64_t metric(const char *name)
{
	char line[128];
	snprintf(line, sizeof line, "\npdserve_%s_%s{", W.name, name);
	const char *at = strstr(ctl("metrics"), line);
	ck_assert_msg(at != NULL, "metrics lack %s", name);
	return strtoull(strchr(at, ' '), NULL, 10);
}

static inline int requests_are(const char *want)
{
	const char *text = ctl("requests");
	return strcmp(want, "[]") == 0 ? strcmp(text, want) == 0 : strstr(text, want) != NULL;
}

/* The answer to `role [WORD]`; refused: the sentence. */
static inline const char *ask_role(const char *word, int refused)
{
	static char text[512];
	struct err err = {0};
	int r = ctl_code("role", word, WAIT_US, &err);
	snprintf(text, sizeof text, "%s", r < 0 ? err.text : W.text);
	ck_assert_msg((r < 0) == refused, "role %s: %d %s", word ? word : "", r, text);
	return text;
}

static inline int role_is(const char *role)
{
	char want[64];
	snprintf(want, sizeof want, "{\"role\":\"%s\",\"switching\":null}", role);
	return strcmp(ask_role(NULL, 0), want) == 0;
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

static inline void on_message(void *arg, struct peer *p, enum msg_type type,
                              const struct msg_head *head, const ProtobufCMessage *body)
{
	(void)p;
	if ((W.hear && W.hear(arg, type, body)) || type == MSG_HEARTBEAT)
		return;
	struct got *g = mem_zalloc(sizeof *g);
	g->at = arg;
	g->type = type;
	g->head = *head;
	g->body = body_copy(body);
	list_push_back(&W.got, &g->node);
}

static inline int got_is(const struct got *g, const struct side *s, enum msg_type type, uint64_t n)
{
	return g->at == s && g->type == type && g->head.req.lo == n;
}

/* How many of this type (about this request) have arrived. */
static inline unsigned count(const struct side *s, enum msg_type type, uint64_t n)
{
	unsigned r = 0;
	list_each(it, &W.got)
		r += (unsigned)got_is(list_entry(it, struct got, node), s, type, n);
	return r;
}

/* The latest of them; it must be there. */
static inline const struct got *last_got(const struct side *s, enum msg_type type, uint64_t n)
{
	const struct got *r = NULL;
	list_each(it, &W.got)
		if (got_is(list_entry(it, struct got, node), s, type, n))
			r = list_entry(it, struct got, node);
	ck_assert_msg(r != NULL, "%s has got no %s about request %u", s->name,
	              msg_type_find(type)->name, (unsigned)n);
	return r;
}

/* The oldest of them that the test has not taken yet; NULL: none so far. */
static inline ProtobufCMessage *take(struct side *s, enum msg_type type, uint64_t n)
{
	list_each(it, &W.got) {
		struct got *g = list_entry(it, struct got, node);
		if (g->taken || !got_is(g, s, type, n))
			continue;
		g->taken = 1;
		return g->body;
	}
	return NULL;
}

static inline ProtobufCMessage *await(struct side *s, enum msg_type type, uint64_t n)
{
	ProtobufCMessage *m;
	for (uint64_t end = clock_us() + WAIT_US; !(m = take(s, type, n)); pump())
		ck_assert_msg(clock_us() < end, "%s gets no %s about request %u; %s", s->name,
		              msg_type_find(type)->name, (unsigned)n, daemon_says());
	return m;
}
/* WANT takes the oldest, LATEST looks at the latest, NONE: none is left. */
#define WANT(Type, side, type, n) ((const Type *)await(side, MSG_##type, n))
#define LATEST(Type, side, type, n) ((const Type *)last_got(side, MSG_##type, n)->body)
#define NONE(side, type, n)                                                                   \
	ck_assert_msg(take(side, MSG_##type, n) == NULL, #side " got " #type " about request %u", \
	              (unsigned)(n))

/* --- links --------------------------------------------------------------- */

static inline void on_up(void *arg, struct peer *p)
{
	struct side *s = arg;
	s->p = p;
	if (s != ROUTER)
		return;
	W.epoch = peer_epoch(p);
	if (!W.info)
		W.info = (Pds__WorkerInfo *)body_copy(&peer_worker(p)->base);
}

static inline void on_down(void *arg, struct peer *p, const char *why)
{
	struct side *s = arg;
	(void)why;
	W.downs++;
	if (s->p == p)
		s->p = NULL;
}

/* A prefill worker is of the daemon's own kind. */
static inline int describe_prefill(void *arg, Pds__WorkerInfo *w)
{
	(void)arg;
	*w = *W.info;
	w->role = "prefill";
	w->endpoint = "ipc:///nowhere";
	return 1;
}

static inline void side_open(struct side *s)
{
	char endpoint[128];
	struct err e = {0};
	endpoint_of(s->to ? s->to : s->name, endpoint);
	struct chan_opts o = {.program = s->program,
	                      .name = s->name,
	                      .epoch = s->epoch,
	                      .bind = s->to ? NULL : endpoint,
	                      .heartbeat_us = 200000,
	                      .silence_us = WAIT_US,
	                      .window_messages = 1024,
	                      .window_bytes = 1u << 24,
	                      .peers_max = 8,
	                      .message_bytes_max = 1u << 20};
	struct chan_hooks h = {.arg = s,
	                       .describe = s->to ? describe_prefill : NULL,
	                       .up = on_up,
	                       .down = on_down,
	                       .message = on_message};
	fault_next(s->fault);
	ck_assert_msg(chan_new(W.base, &o, &h, &s->c, &e) == 0, "%s", e.text);
	if (s->to)
		chan_connect(s->c, endpoint, s->to, 1);
}

/* Says goodbye, as a process that ends does. */
static inline void side_close(struct side *s)
{
	s->p = NULL;
	if (s->c)
		chan_destroy(&s->c);
}

/* Another life of it, or the same one over a new link. */
static inline void side_again(struct side *s, uint64_t epoch)
{
	side_close(s);
	s->epoch = epoch;
	side_open(s);
}

/* With the daemon's end of the link. */
static inline void link_again(struct side *s, uint64_t epoch)
{
	side_again(s, epoch);
	UNTIL(s->p);
}

/* About request n (0: about none), in its first attempt. */
static inline void say(struct side *s, enum msg_type type, uint64_t n, const void *body)
{
	struct msg_head h = {{n ? 7 : 0, n}, 1, W.deadline_us};
	ck_assert_ptr_nonnull(s->p);
	ck_assert_int_eq(chan_send(s->c, s->p, type, &h, body), 0);
}

/* --- the messager's socket ----------------------------------------------- */

static inline void door_open(void)
{
	char path[128];
	struct err e = {0};
	snprintf(path, sizeof path, "%s/messager.sock", W.dir);
	W.door = sock_listen(path, 0600, &e);
	ck_assert_msg(W.door >= 0, "%s", e.text);
	fcntl(W.door, F_SETFL, O_NONBLOCK);
}

static inline void memory_take(int conn)
{
	struct err e = {0};
	struct handover_fds fds;
	int bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	ck_assert_msg(handover_receive(conn, &W.hello, &W.layout, &fds, &e) == 0, "%s", e.text);
	ck_assert_uint_eq(W.hello.block_tokens, BLOCK);
	ck_assert_msg(pool_memory_map(&W.shared, &W.layout, W.hello.blocks, fds.control, fds.data.fd[0],
	                              &e) == 0 &&
	                  ring_map(fds.ring, W.hello.ring_slots, W.hello.ring_layers, W.hello.epoch,
	                           &W.ring, &e) == 0,
	              "%s", e.text);
	ck_assert_int_eq(handover_answer(conn, MESSAGER->epoch, 0, "", W.remote ? W.remote : "", bell),
	                 0);
	close(bell);
}

static inline void memory_drop(void)
{
	if (W.attached < 0)
		return;
	close(W.attached);
	W.attached = -1;
	ring_destroy(&W.ring);
	pool_memory_fini(&W.shared);
}

static inline unsigned char *piece(uint32_t layer, uint32_t block)
{
	return W.shared.data + kv_piece_offset(&W.layout, W.shared.region.blocks, layer, block);
}

/* --- processes ----------------------------------------------------------- */

/* Starts a program of this build with these settings, lists of them up to NULL; it ends with this
 * process. "fault=RULES" is no setting: the daemon gets these faults (tests/fault/fault.h). */
static inline pid_t process_start(const char *program, const char *const *const *lists)
{
	char path[600], rundir[96], parent[24];
	const char *argv[64] = {path, "--die-with-parent", parent, "-o", rundir,
	                        "-o", "log_level=error"};
	size_t n = 7;
	const char *fault = NULL;
	snprintf(parent, sizeof parent, "%d", (int)getpid());
	snprintf(rundir, sizeof rundir, "rundir=%s", W.dir);
	for (; *lists; lists++)
		for (const char *const *o = *lists; *o; o++) {
			if (strncmp(*o, "fault=", 6) == 0) {
				fault = *o + 6;
				continue;
			}
			ck_assert_uint_lt(n + 2, sizeof argv / sizeof *argv);
			argv[n++] = "-o";
			argv[n++] = *o;
		}
	snprintf(path, sizeof path, "%s/%s%s", W.bin, fault ? "../faulty/" : "", program);
	if (fault)
		setenv("PDSERVE_FAULT", fault, 1);
	pid_t pid = vfork();
	if (pid == 0) {
		execv(path, (char *const *)(uintptr_t)argv);
		_exit(127);
	}
	ck_assert_int_gt(pid, 0);
	unsetenv("PDSERVE_FAULT");
	return pid;
}

static inline void process_kill(pid_t *pid)
{
	kill(*pid, SIGKILL);
	ck_assert_int_eq(waitpid(*pid, NULL, 0), *pid);
	*pid = 0;
}

/* It was told to end, or ends by itself: in order. */
static inline void process_ended(pid_t *pid)
{
	int status;
	UNTIL(waitpid(*pid, &status, WNOHANG) == *pid);
	ck_assert_msg(status == 0, "a daemon ended with wait status %#x", (unsigned)status);
	*pid = 0;
}

static inline void daemon_start(void)
{
	/* a busy machine may keep a process from its heartbeats for long */
	static const char *const settings[] = {"model=" GOLDEN,
	                                       "block_tokens=16",
	                                       "storage=none",
	                                       "threads=1",
	                                       "kv_type=f32",
	                                       "silence_ms=10000",
	                                       NULL};
	char program[32];
	snprintf(program, sizeof program, "pd%sd", W.name);
	W.daemon = process_start(W.program ? W.program : program,
	                         (const char *const *const[]){settings, W.of_role, W.of_test, NULL});
}

/* When this returns it stands; it finds all that was said meanwhile at once when it goes on. */
static inline void daemon_stop(void)
{
	int status;
	kill(W.daemon, SIGSTOP);
	ck_assert_int_eq(waitpid(W.daemon, &status, WUNTRACED), W.daemon);
	ck_assert_msg(WIFSTOPPED(status), "the daemon has ended, wait status %#x", (unsigned)status);
}

static inline void daemon_go_on(void)
{
	kill(W.daemon, SIGCONT);
}

/* --- the world of a test ------------------------------------------------- */

static inline void on_tick(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	(void)arg;
}

static inline void world_folder(void)
{
	test_folder(W.dir, "world");
}

/* In the world's folder, with the router; its role decides who comes then. */
static inline void world_open(const char *name, const char *const *of_role,
                              const char *const *of_test)
{
	struct timeval ms = {0, 1000};
	list_init(&W.got);
	W.name = name;
	W.of_role = of_role;
	for (size_t i = 0; of_test[i]; i++) {
		ck_assert_uint_lt(i + 1, sizeof W.of_test / sizeof *W.of_test);
		W.of_test[i] = of_test[i];
	}
	W.base = event_base_new();
	W.tick = event_new(W.base, -1, EV_PERSIST, on_tick, NULL);
	event_add(W.tick, &ms);
	side_open(ROUTER);
}

static inline int slots_are_free(void)
{
	const char *key = "\"ring_used\":", *at = strstr(ctl("status"), key);
	return !at || atoi(at + strlen(key)) == 0; /* a decode worker uses no ring */
}

/* Nothing is held, leased, read or waited for, and no block is lost. Blocks of a request that is
 * gone may wait a moment for storage's fence; write-outs end by themselves. */
static inline void at_rest(void)
{
	UNTIL(requests_are("[]"));
	UNTIL(kv_count("held") + kv_count("leased") + kv_count("readers") == 0);
	UNTIL(slots_are_free());
	ck_assert_uint_eq(kv_count("sum"), kv_count("blocks"));
}

/* The daemon was told to end, or ends by itself. */
static inline void world_ended(void)
{
	char rm[96];
	process_ended(&W.daemon);
	if (W.beside) {
		kill(W.beside, SIGCONT);
		kill(W.beside, SIGTERM);
		process_ended(&W.beside);
	}
	for (int i = 0; i < COUNT(sides); i++)
		side_close(&sides[i]);
	memory_drop();
	if (W.door >= 0)
		close(W.door);
	event_free(W.tick);
	event_base_free(W.base);
	snprintf(rm, sizeof rm, "rm -r %s", W.dir);
	ck_assert_int_eq(system(rm), 0);
}

static inline void world_end(void)
{
	at_rest();
	kill(W.daemon, SIGTERM);
	world_ended();
}

/* --- requests ------------------------------------------------------------ */

struct prompt {
	const uint32_t *tokens;
	uint32_t n, max_tokens;
	uint64_t deadline_us; /* from now; 0: none */
	const char *regex;    /* the form of the answer, which ends where that does; NULL: free */
	Pds__Pooling pooling;
	const char *salt; /* 32 bytes; NULL: none */
};

struct request {
	Pds__Request r;
	Pds__Sampling s;
	Pds__Constraint form;
};

static inline void request_fill(struct request *q, const struct prompt *p)
{
	pds__request__init(&q->r);
	pds__sampling__init(&q->s);
	pds__constraint__init(&q->form);
	q->form.kind = PDS__CONSTRAINT_KIND__CONSTRAINT_REGEX;
	q->form.text = (char *)(uintptr_t)p->regex;
	q->s.top_p = 1;
	q->s.seed = 1;
	q->s.logprobs = -1;
	q->r.sampling = &q->s;
	q->r.tokens = (uint32_t *)(uintptr_t)p->tokens;
	q->r.n_tokens = q->r.prompt_tokens = p->n;
	q->r.max_tokens = p->max_tokens;
	q->r.pooling = p->pooling;
	q->r.constraint = p->regex ? &q->form : NULL;
	q->r.ignore_eos = !p->regex;
	if (p->salt)
		q->r.cache_salt = (ProtobufCBinaryData){32, (uint8_t *)(uintptr_t)p->salt};
}

static inline void say_cancel(struct side *s, uint64_t n)
{
	Pds__Cancel m = PDS__CANCEL__INIT;
	m.reason = "the test says so";
	say(s, MSG_REQUEST_CANCEL, n, &m);
}

/* --- the program --------------------------------------------------------- */

/* The daemons that belong to this build lie beside the folder of the tests. */
TEST_START(world_start)
{
	const char *slash = strrchr(argv[0], '/');
	log_set_level("error");
	snprintf(W.bin, sizeof W.bin, "%.*s/../bin", slash ? (int)(slash - argv[0]) : 1,
	         slash ? argv[0] : ".");
}

/* A wait that fails ends a test before its time is up. */
TEST_CASE("process", .timeout_s = 300);

#endif
