/* prefill_world.h - a pdprefilld of its own and everybody that it talks to, in one process: router,
 * two decode workers and the messager are links (chan.h) of the test, which also takes the daemon's
 * memory as the messager does and so sees the ring, the board and the KV.
 *
 * What the daemon says is kept flat in seen[], in order; nothing is answered by itself. The model
 * is the tiny golden one, computed by the reference kernels in steps of 16 tokens: slow enough to
 * meet a prompt half way (to_running). A test that fails leaves its folder in /tmp; the daemon
 * ends with its parent. */
#ifndef TESTS_PREFILL_WORLD_H
#define TESTS_PREFILL_WORLD_H

#include "kv/handover.h"
#include "pool_memory.h"
#include "kv/ring.h"
#include "msg/chan.h"
#include "util/clock.h"
#include "util/mem.h"
#include "util/sock.h"
#include "tempdir.h"
#include "world_run.h"

#include <check.h>
#include <event2/event.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define GOLDEN "tests/data/golden/llama"
#define BLOCK 16u
#define LONG 480u
#define WAIT_US 120000000u /* a busy machine; tests have 300 s: until() ends first, says why */
/* who is stopped while a goodbye comes hears of the end by silence alone (these peers share one
 * process): well within WAIT_US */
#define SILENCE "silence_ms=3000"
#define SEEN_MAX 1024u
#ifdef __SANITIZE_THREAD__
/* as slow under this sanitizer as the reference is without: a prompt is met half way, and none
 * takes seconds */
#define VARIANT "variant=auto"
#else
#define VARIANT "variant=reference"
#endif

enum who { ROUTER, D1, D2, MESSAGER, N_NODES };

struct node {
	const char *name;
	uint64_t epoch;
	struct chan *c;
	struct peer *p; /* the link to the prefill worker, NULL while it is down */
};

/* What came from the prefill worker, flat. */
struct seen {
	enum who who;
	enum msg_type type;
	uint64_t req;
	/* epoch: of the router (RESERVE), the decode worker (FIRST_TOKEN, KV_RENEW) */
	uint64_t lease, lease_generation, epoch;
	uint32_t attempt, index, token, cached, n_prompt;
	/* n_prompt tokens, one behind the other, each logprob below 0, each rank above */
	int right_prompt;
	uint32_t n_values; /* of an embedding */
	float values[4];   /* its first ones */
	Pds__Finish finish;
	Pds__Fault fault;
	int retry;
	uint64_t retry_after_us;
	/* name: of the router or of the decode worker, as epoch */
	char text[200], name[48];
	char blame[48];
	uint32_t tokens[LONG], n_tokens, prompt_tokens, max_tokens, stop_id;
	uint64_t seed;
};

/* A request. Zeros stand for: attempt 1, max_tokens 8, the common prompt. */
struct ask {
	uint64_t req;
	uint32_t n;
	/* candidates in order: '1', '2', '9', who never answers a HELLO, or 'f', who is on another host
	 * and whose key is missing here */
	const char *to;
	uint32_t seed, own_from; /* with a seed the tokens from own_from on are this request's own */
	uint32_t max_tokens;
	int prompt_logprobs;
	Pds__Pooling pooling;
	const char *regex; /* of the answer; NULL: free */
};

struct transfer {
	uint32_t slot;
	uint64_t gen;
	enum ring_state state;
};

static char program[512], dir[TEST_FOLDER_BYTES];
static pid_t pid;
static struct event_base *base;
static struct event *timer;
static struct node node[N_NODES] = {
	{.name = "router"}, {.name = "decode-1"}, {.name = "decode-2"}, {.name = "messager"}};
static uint64_t epochs = 1000;
static struct seen *seen;
static unsigned n_seen;
static uint32_t words[LONG], golden_first;
static int door = -1, attached = -1;
static struct handover_hello hello;
static struct kv_layout layout;
static struct pool_memory shared;
static int door_waits; /* the messager takes the memory once the router's link is up */
static const char *messager_remote = ""; /* in its reply to the hand-over */
static struct ring *ring;
static uint64_t deadline_us; /* of what is said from now on, 0: none */
static pid_t storage;
static struct ring_transfer transfer_now; /* fields of the last transfer that transfer_of found */

/* --- waiting ------------------------------------------------------------- */

static void pump(void)
{
	event_base_loop(base, EVLOOP_ONCE);
}

static inline void pump_for(uint64_t us)
{
	for (uint64_t until = clock_us() + us; clock_us() < until;)
		pump();
}

static inline void never(const char *cond);

#define WAIT(cond)                                                    \
	do {                                                              \
		for (uint64_t until_ = clock_us() + WAIT_US; !(cond); pump()) \
			if (clock_us() >= until_)                                 \
				never(#cond);                                         \
	} while (0)

/* --- the messager's door ------------------------------------------------- */

static inline void take_memory(void)
{
	struct err err = {0};
	int fds[3], bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	ck_assert_msg(handover_receive(attached, &hello, &layout, fds, &err) == 0, "%s", err.text);
	ck_assert_uint_eq(hello.block_tokens, BLOCK);
	ck_assert_int_eq(pool_memory_map(&shared, &layout, hello.blocks, fds[0], fds[1], &err), 0);
	ck_assert_int_eq(
		ring_map(fds[2], hello.ring_slots, hello.ring_layers, hello.epoch, &ring, &err), 0);
	ck_assert_int_eq(handover_answer(attached, node[MESSAGER].epoch, 0, "", messager_remote, bell),
	                 0);
	close(bell);
}

static inline void on_tick(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	(void)arg;
	if (attached >= 0 || door < 0 || (door_waits && !node[ROUTER].p))
		return;
	attached = sock_accept(door);
	if (attached >= 0)
		take_memory();
}

/* --- links --------------------------------------------------------------- */

static inline void on_up(void *arg, struct peer *p)
{
	((struct node *)arg)->p = p;
}

static inline void on_down(void *arg, struct peer *p, const char *why)
{
	struct node *n = arg;
	(void)why;
	if (n->p == p)
		n->p = NULL;
}

/* of all requests */
static const unsigned char submit_salt[32] = "the cache salt of some tenant";

static inline void see_reserve(struct seen *s, const Pds__Reserve *m)
{
	const Pds__Request *r = m->request;
	s->n_tokens = (uint32_t)r->n_tokens;
	ck_assert_uint_le(r->n_tokens, LONG);
	memcpy(s->tokens, r->tokens, r->n_tokens * sizeof *r->tokens);
	s->prompt_tokens = r->prompt_tokens;
	ck_assert_uint_eq(r->cache_salt.len, sizeof submit_salt);
	ck_assert_mem_eq(r->cache_salt.data, submit_salt, sizeof submit_salt);
	s->max_tokens = r->max_tokens;
	s->stop_id = r->n_stop_ids ? r->stop_ids[0] : 0;
	s->seed = r->sampling->seed;
	snprintf(s->name, sizeof s->name, "%s", m->router);
	s->epoch = m->router_epoch;
}

static inline void see_first(struct seen *s, const Pds__FirstToken *m)
{
	s->index = m->index;
	s->token = m->token->id;
	s->lease = m->lease_id;
	s->lease_generation = m->lease_generation;
	s->finish = m->finish;
	s->cached = m->timing ? m->timing->cached_tokens : 0;
	snprintf(s->name, sizeof s->name, "%s", m->decode);
	s->epoch = m->decode_epoch;
}

static inline void see_prompt(struct seen *s, const Pds__PromptLogprobs *m)
{
	s->index = m->first;
	s->n_prompt = (uint32_t)m->n_logprobs;
	s->right_prompt = m->n_ranks == m->n_logprobs;
	for (size_t i = 0; i < m->n_logprobs && s->right_prompt; i++)
		s->right_prompt = m->logprobs[i] < 0 && m->ranks[i] > 0;
}

/* All slices of the attempt so far together. */
static inline void sum_prompt(struct seen *first)
{
	first->right_prompt = 1;
	for (size_t i = 0; i < n_seen; i++) {
		const struct seen *s = &seen[i];
		if (s->type != MSG_REQUEST_PROMPT_LOGPROBS || s->req != first->req ||
		    s->attempt != first->attempt)
			continue;
		first->right_prompt &= s->right_prompt && s->index == first->n_prompt + 1;
		first->n_prompt += s->n_prompt;
	}
}

/* "NAME ROLE EPOCH ENDPOINT MESSAGER;" of each. */
static inline void see_peers(struct seen *s, const Pds__Peers *m)
{
	size_t n = 0;
	for (size_t i = 0; i < m->n_peers && n < sizeof s->text; i++)
		n += (size_t)snprintf(s->text + n, sizeof s->text - n, "%s %s %llu %s %s;",
		                      m->peers[i]->name, m->peers[i]->role,
		                      (unsigned long long)m->peers[i]->epoch, m->peers[i]->endpoint,
		                      m->peers[i]->messager);
}

static inline struct seen *see(enum who who, enum msg_type type)
{
	ck_assert_uint_lt(n_seen, SEEN_MAX);
	seen[n_seen] = (struct seen){.who = who, .type = type};
	return &seen[n_seen];
}

static inline void on_message(void *arg, struct peer *p, enum msg_type type,
                              const struct msg_head *h, const ProtobufCMessage *body)
{
	struct seen *s = see((enum who)((struct node *)arg - node), type);
	(void)p;
	if (type == MSG_KV_RENEW) { /* one for each lease in it */
		const Pds__Renew *m = (const Pds__Renew *)body;
		for (size_t i = 0; i < m->n_lease_ids; i++, n_seen++) {
			s = see(s->who, type);
			s->lease = m->lease_ids[i];
			s->epoch = m->epoch;
		}
		return;
	}
	if (type == MSG_PEERS)
		see_peers(s, (const Pds__Peers *)body);
	if (type == MSG_WORKER_UPDATE)
		snprintf(s->text, sizeof s->text, "%s",
		         ((const Pds__WorkerUpdate *)body)->worker->messager);
	n_seen += type == MSG_PEERS || type == MSG_WORKER_UPDATE;
	if (!h->req.lo)
		return; /* heartbeats */
	s->req = h->req.lo;
	s->attempt = h->attempt;
	if (type == MSG_KV_RESERVE)
		see_reserve(s, (const Pds__Reserve *)body);
	if (type == MSG_REQUEST_PROMPT_LOGPROBS)
		see_prompt(s, (const Pds__PromptLogprobs *)body);
	if (type == MSG_REQUEST_FIRST_TOKEN) {
		see_first(s, (const Pds__FirstToken *)body);
		sum_prompt(s);
	}
	if (type == MSG_REQUEST_EMBEDDING) {
		const Pds__Embedding *m = (const Pds__Embedding *)body;
		s->n_values = (uint32_t)m->n_values;
		s->cached = m->timing ? m->timing->cached_tokens : 0;
		memcpy(s->values, m->values, sizeof s->values);
	}
	if (type == MSG_REQUEST_FAILED) {
		const Pds__Failed *m = (const Pds__Failed *)body;
		s->fault = m->fault;
		s->retry = m->retry;
		s->retry_after_us = m->retry_after_us;
		snprintf(s->text, sizeof s->text, "%s", m->text);
		snprintf(s->blame, sizeof s->blame, "%s", m->blame);
	}
	n_seen++;
}

static inline void endpoint_of(const char *name, char out[128])
{
	snprintf(out, 128, "ipc://%s/%s.ipc", dir, name);
}

/* of the links of those that are opened next, as fault.h says; NULL: none */
static const char *node_fault;

static inline void node_open(enum who w)
{
	static const char *const programs[N_NODES] = {"pdrouterd", "pddecoded", "pddecoded",
	                                              "pdmessagerd"};
	char endpoint[128];
	struct err err = {0};
	endpoint_of(node[w].name, endpoint);
	node[w].epoch = ++epochs;
	struct chan_opts o = {
		.program = programs[w],
		.name = node[w].name,
		.epoch = node[w].epoch,
		.bind = endpoint,
		.heartbeat_us = 100000,
		.silence_us = 5000000,
		.window_messages = 1000,
		.window_bytes = 1 << 20,
		.peers_max = 8,
		.message_bytes_max = 1 << 20,
		.fault = node_fault,
	};
	struct chan_hooks h = {.arg = &node[w], .up = on_up, .down = on_down, .message = on_message};
	ck_assert_msg(chan_new(base, &o, &h, &node[w].c, &err) == 0, "%s", err.text);
}

/* Says goodbye, as a process that ends does. */
static inline void node_close(enum who w)
{
	node[w].p = NULL;
	chan_destroy(&node[w].c);
}

static inline void say(enum who from, enum msg_type type, uint64_t req, const void *body)
{
	struct msg_head h = {{0, req}, 1, deadline_us};
	ck_assert_ptr_nonnull(node[from].p);
	ck_assert_int_eq(chan_send(node[from].c, node[from].p, type, &h, body), 0);
}

static inline unsigned count(enum who who, enum msg_type type, uint64_t req)
{
	unsigned n = 0;
	for (unsigned i = 0; i < n_seen; i++)
		n += seen[i].who == who && seen[i].type == type && seen[i].req == req;
	return n;
}

static inline const struct seen *last(enum who who, enum msg_type type, uint64_t req)
{
	for (unsigned i = n_seen; i-- > 0;)
		if (seen[i].who == who && seen[i].type == type && seen[i].req == req)
			return &seen[i];
	ck_abort_msg("%s has no message %d of request %llu", node[who].name, (int)type,
	             (unsigned long long)req);
	return NULL;
}

static inline unsigned renewals(enum who who, uint64_t lease)
{
	unsigned n = 0;
	for (unsigned i = 0; i < n_seen; i++)
		n += seen[i].who == who && seen[i].type == MSG_KV_RENEW && seen[i].lease == lease &&
		     seen[i].epoch == node[who].epoch;
	return n;
}

/* --- the daemon ---------------------------------------------------------- */

static inline void daemon_start(const char *const *extra)
{
	char text[8][96], parent[32];
	const char *argv[64] = {"pdprefilld", "--die-with-parent", parent};
	int n = 3;
	snprintf(parent, sizeof parent, "%d", (int)getpid());
	snprintf(text[0], sizeof text[0], "rundir=%s", dir);
	const char *const fixed[] = {text[0],
	                             "name=prefill",
	                             "model=" GOLDEN,
	                             "storage=none",
	                             "threads=1",
	                             VARIANT,
	                             "kv_type=f32",
	                             "block_tokens=16",
	                             "max_batched_tokens=16",
	                             "log_level=error",
	                             SILENCE,
	                             "stall_ms=60000",
	                             NULL};
	for (const char *const *o = fixed; *o; o++) {
		argv[n++] = "-o";
		argv[n++] = *o;
	}
	for (; *extra; extra++) {
		argv[n++] = "-o";
		argv[n++] = *extra;
	}
	pid = fork();
	if (pid == 0) {
		execv(program, (char *const *)argv);
		_exit(127);
	}
	ck_assert_int_gt(pid, 0);
}

static char *ctl(const char *command)
{
	char endpoint[128], *text = NULL;
	struct err err = {0};
	endpoint_of("prefill", endpoint);
	int r = chan_ask(endpoint, NULL, command, NULL, 0, WAIT_US, &text, &err);
	ck_assert_msg(r == 0, "%s: %s", command, err.text);
	return text;
}

/* What was waited for has not come: with what the daemon is at. */
static inline void never(const char *cond)
{
	ck_abort_msg("not within %u s: %s; requests %s; status %s", WAIT_US / 1000000u, cond,
	             ctl("requests"), ctl("status"));
}

/* The number after "key": in what the command says. */
static uint32_t told(const char *command, const char *key)
{
	char quoted[48], *text = ctl(command);
	snprintf(quoted, sizeof quoted, "\"%s\":", key);
	const char *at = strstr(text, quoted);
	ck_assert_msg(at != NULL, "%s lacks %s: %s", command, key, text);
	uint32_t v = (uint32_t)strtoul(at + strlen(quoted), NULL, 10);
	free(text);
	return v;
}

/* Jobs without a lease that are past the look-up. */
static inline uint32_t reserving(void)
{
	return told("status", "parked") + told("status", "asked");
}

/* Jobs whose first token was sent. */
static inline uint32_t handed_over(void)
{
	return told("status", "computed") + told("status", "acked") + told("status", "moved");
}

/* A counter of /metrics. */
static inline uint64_t metric(const char *name)
{
	char *text = ctl("metrics"), line[128];
	snprintf(line, sizeof line, "\npdserve_prefill_%s{", name);
	const char *at = strstr(text, line);
	ck_assert_msg(at != NULL, "metrics lack %s", name);
	uint64_t v = strtoull(strchr(at + 1, ' '), NULL, 10);
	free(text);
	return v;
}

/* A real pdstoraged beside the daemon, which must be configured with storage=storage; it ends in
 * end(). extra: its configuration beside the common one. */
static inline void storage_start_with(const char *const *extra)
{
	char path[600], rundir[96], parent[32];
	const char *argv[32] = {"pdstoraged", "--die-with-parent", parent};
	int n = 3;
	snprintf(path, sizeof path, "%.*spdstoraged", (int)(strrchr(program, '/') + 1 - program),
	         program);
	snprintf(rundir, sizeof rundir, "rundir=%s", dir);
	snprintf(parent, sizeof parent, "%d", (int)getpid());
	const char *const fixed[] = {rundir, "name=storage", "memory_mb=16", "log_level=error", NULL};
	for (const char *const *list = fixed; list; list = list == fixed ? extra : NULL)
		for (const char *const *o = list; *o; o++) {
			argv[n++] = "-o";
			argv[n++] = *o;
		}
	storage = fork();
	if (storage == 0) {
		execv(path, (char *const *)argv);
		_exit(127);
	}
	ck_assert_int_gt(storage, 0);
}

static inline void storage_start(void)
{
	storage_start_with((const char *const[]){NULL});
}

/* It is killed: what it had in memory is gone. */
static inline void storage_kill(void)
{
	int status;
	kill(storage, SIGKILL);
	ck_assert_int_eq(waitpid(storage, &status, 0), storage);
	storage = 0;
}

static inline void storage_end(void)
{
	int status;
	if (!storage)
		return;
	kill(storage, SIGCONT);
	kill(storage, SIGTERM);
	ck_assert_int_eq(waitpid(storage, &status, 0), storage);
	storage = 0;
}

static char still_there[1024];

static int no_requests(void)
{
	char *text = ctl("requests");
	int r = strcmp(text, "[]") == 0;
	snprintf(still_there, sizeof still_there, "%s", text);
	free(text);
	return r;
}

/* Nothing is held: no request, no block, no slot. */
static void at_rest(void)
{
	for (uint64_t until = clock_us() + WAIT_US; !no_requests(); pump())
		ck_assert_msg(clock_us() < until, "requests are still there: %s", still_there);
	ck_assert_uint_eq(told("kv", "held"), 0);
	ck_assert_uint_eq(told("kv", "leased"), 0);
	/* write-outs end by themselves */
	for (uint64_t until = clock_us() + WAIT_US; told("kv", "readers"); pump())
		ck_assert_msg(clock_us() < until, "storage still reads %u blocks", told("kv", "readers"));
	ck_assert_uint_eq(told("kv", "sum"), told("kv", "blocks"));
	ck_assert_uint_eq(told("status", "ring_used"), 0);
}

static inline void flush(void)
{
	at_rest();
	free(ctl("flush"));
}

static inline void load_words(void)
{
	json_t *p = json_load_file(GOLDEN "/prompt.json", 0, NULL),
		   *g = json_load_file(GOLDEN "/golden.json", 0, NULL);
	ck_assert(p && g);
	json_t *given = json_object_get(p, "long");
	uint32_t x = 7;
	for (uint32_t i = 0; i < LONG; i++) {
		x = x * 1103515245u + 12345u;
		words[i] = i < json_array_size(given)
		               ? (uint32_t)json_integer_value(json_array_get(given, i))
		               : 3 + (x >> 8) % 317;
	}
	json_t *greedy = json_object_get(json_object_get(json_object_get(g, "continuations"), "long"),
	                                 "greedy");
	golden_first = (uint32_t)json_integer_value(json_array_get(greedy, 0));
	json_decref(p);
	json_decref(g);
}

/* Everybody up, the daemon attached. extra: its configuration beside the common one. */
static inline void begin(const char *const *extra)
{
	char path[128];
	struct err err = {0};
	struct timeval ms = {0, 1000};
	log_set_level("error");
	load_words();
	test_folder(dir, "prefilld");
	seen = mem_array(SEEN_MAX, sizeof *seen);
	base = event_base_new();
	timer = event_new(base, -1, EV_PERSIST, on_tick, NULL);
	event_add(timer, &ms);
	for (enum who w = ROUTER; w < N_NODES; w++)
		node_open(w);
	snprintf(path, sizeof path, "%s/messager.sock", dir);
	ck_assert_msg((door = sock_listen(path, 0600, &err)) >= 0, "%s", err.text);
	fcntl(door, F_SETFL, O_NONBLOCK);
	daemon_start(extra);
	WAIT(ring && node[ROUTER].p && node[MESSAGER].p);
}

/* The daemon was told to end, or ends by itself. */
static inline void ended(void)
{
	int status;
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_msg(status == 0, "the daemon ended with wait status %#x", (unsigned)status);
	storage_end();
	for (enum who w = ROUTER; w < N_NODES; w++)
		node_close(w);
	ring_destroy(&ring);
	pool_memory_fini(&shared);
	close(attached);
	close(door);
	event_free(timer);
	event_base_free(base);
	free(seen);
	char rm[96];
	snprintf(rm, sizeof rm, "rm -r %s", dir);
	ck_assert_int_eq(system(rm), 0);
}

static inline void end(void)
{
	at_rest();
	kill(pid, SIGTERM);
	ended();
}

/* --- words of the tests -------------------------------------------------- */

static inline void fill_tokens(const struct ask *a, uint32_t *out)
{
	for (uint32_t i = 0; i < a->n; i++)
		out[i] = a->seed && i >= a->own_from ? 3 + (words[i] * 7 + a->seed * 31) % 317 : words[i];
}

static inline void submit(struct ask a)
{
	uint32_t tokens[LONG], stop_id = 319;
	char endpoint[4][128];
	Pds__Sampling s = PDS__SAMPLING__INIT;
	Pds__Request r = PDS__REQUEST__INIT;
	Pds__Submit m = PDS__SUBMIT__INIT;
	Pds__Constraint form = PDS__CONSTRAINT__INIT;
	Pds__Candidate c[4], *list[4];
	fill_tokens(&a, tokens);
	s.top_p = 1;
	s.seed = 77;
	s.logprobs = a.prompt_logprobs ? 0 : -1;
	s.prompt_logprobs = a.prompt_logprobs;
	r.tokens = tokens;
	r.n_tokens = r.prompt_tokens = a.n;
	r.max_tokens = a.max_tokens ? a.max_tokens : 8;
	r.pooling = a.pooling;
	r.sampling = &s;
	r.stop_ids = &stop_id;
	r.n_stop_ids = 1;
	r.ignore_eos = 1;
	r.cache_salt = (ProtobufCBinaryData){sizeof submit_salt, (uint8_t *)(uintptr_t)submit_salt};
	form.kind = PDS__CONSTRAINT_KIND__CONSTRAINT_REGEX;
	form.text = (char *)a.regex;
	r.constraint = a.regex ? &form : NULL;
	m.request = &r;
	m.candidates = list;
	for (const char *p = a.to; *p; p++) {
		enum who w = *p == '1' ? D1 : D2;
		const char *name = *p == '9' ? "decode-9" : *p == 'f' ? "far-1" : node[w].name;
		endpoint_of(name, endpoint[m.n_candidates]);
		if (*p == 'f')
			snprintf(endpoint[m.n_candidates], 128, "far-1@tcp://127.0.0.1:9");
		pds__candidate__init(&c[m.n_candidates]);
		c[m.n_candidates].name = (char *)name;
		c[m.n_candidates].endpoint = endpoint[m.n_candidates];
		c[m.n_candidates].epoch = *p == '9' || *p == 'f' ? 9 : node[w].epoch;
		list[m.n_candidates] = &c[m.n_candidates];
		m.n_candidates++;
	}
	say(ROUTER, MSG_REQUEST_SUBMIT, a.req, &m);
}

static inline uint32_t blocks_for(uint32_t tokens)
{
	return (tokens + BLOCK - 1) / BLOCK;
}

/* Destination blocks are 100 on. */
static inline void grant_as(enum who from, uint64_t req, uint64_t lease, uint64_t epoch,
                            uint32_t cached, uint32_t n_blocks)
{
	Pds__Lease l = PDS__LEASE__INIT;
	Pds__Grant g = PDS__GRANT__INIT;
	uint32_t blocks[64];
	for (uint32_t i = 0; i < 64; i++)
		blocks[i] = 100 + i;
	ck_assert_uint_le(n_blocks, 64);
	l.id = lease;
	l.epoch = epoch;
	l.generation = lease + 5;
	g.lease = &l;
	g.lease_us = 3000000;
	g.cached_tokens = cached;
	g.blocks = blocks;
	g.n_blocks = n_blocks;
	say(from, MSG_KV_GRANT, req, &g);
}

/* Waits to be asked; the lease of a request is its number + 500. */
static inline void grant(enum who from, uint64_t req, uint32_t n)
{
	WAIT(count(from, MSG_KV_RESERVE, req));
	grant_as(from, req, req + 500, node[from].epoch, 0, blocks_for(n));
}

static inline void deny_for(enum who from, uint64_t req, Pds__Fault fault, const char *text,
                            uint64_t retry_us)
{
	Pds__Deny d = PDS__DENY__INIT;
	d.fault = fault;
	d.text = (char *)text;
	d.retry_after_us = retry_us;
	say(from, MSG_KV_DENY, req, &d);
}

static inline void deny(enum who from, uint64_t req, Pds__Fault fault, const char *text)
{
	deny_for(from, req, fault, text, 0);
}

static inline void cancel(uint64_t req)
{
	Pds__Cancel c = PDS__CANCEL__INIT;
	c.reason = (char *)"the client left";
	say(ROUTER, MSG_REQUEST_CANCEL, req, &c);
}

static inline void kv_sent_as(uint64_t req, uint32_t slot, uint64_t gen)
{
	Pds__KvSent m = PDS__KV_SENT__INIT;
	m.slot = slot;
	m.generation = gen;
	say(MESSAGER, MSG_KV_SENT, req, &m);
}

static inline void kv_sent(uint64_t req, const struct transfer *t)
{
	ck_assert_int_eq(ring_mark_sent(ring, t->slot, t->gen), 0);
	kv_sent_as(req, t->slot, t->gen);
}

static inline void transfer_failed_as(uint64_t req, uint32_t slot, uint64_t gen, Pds__Fault fault,
                                      const char *text)
{
	Pds__TransferFailed m = PDS__TRANSFER_FAILED__INIT;
	m.slot = slot;
	m.generation = gen;
	m.fault = fault;
	m.text = (char *)text;
	say(MESSAGER, MSG_TRANSFER_FAILED, req, &m);
}

static inline void transfer_failed(uint64_t req, uint32_t slot, uint64_t gen)
{
	transfer_failed_as(req, slot, gen, PDS__FAULT__FAULT_LEASE_LOST, "the lease was refused");
}

static inline void ack_as(enum who from, uint64_t req, uint64_t lease)
{
	Pds__FirstTokenAck m = PDS__FIRST_TOKEN_ACK__INIT;
	m.lease_id = lease;
	say(from, MSG_REQUEST_FIRST_TOKEN_ACK, req, &m);
}

static inline void ack(enum who from, uint64_t req)
{
	ack_as(from, req, req + 500);
}

static inline int find_transfer(uint64_t req, struct transfer *ret)
{
	for (uint32_t s = 0; s < ring_slots(ring); s++)
		if (ring_read(ring, s, &transfer_now, &ret->gen, &ret->state) == 0 &&
		    transfer_now.req.lo == req) {
			ret->slot = s;
			return 1;
		}
	return 0;
}

static inline struct transfer transfer_of(uint64_t req)
{
	struct transfer t = {0};
	WAIT(find_transfer(req, &t));
	return t;
}

/* No messager may take it any more. */
static inline int transfer_is_void(const struct transfer *t)
{
	uint64_t gen;
	enum ring_state s = ring_peek(ring, t->slot, &gen);
	return gen != t->gen || (s != RING_PENDING && s != RING_SENT);
}

static inline int computed(const struct transfer *t, uint32_t tokens)
{
	for (uint32_t l = 0; l < hello.layers; l++)
		if (ring_progress(ring, t->slot, l, t->gen) != tokens)
			return 0;
	return 1;
}

static inline const struct seen *first_token(uint64_t req)
{
	WAIT(count(ROUTER, MSG_REQUEST_FIRST_TOKEN, req));
	return last(ROUTER, MSG_REQUEST_FIRST_TOKEN, req);
}

static inline const struct seen *failed(uint64_t req)
{
	WAIT(count(ROUTER, MSG_REQUEST_FAILED, req));
	return last(ROUTER, MSG_REQUEST_FAILED, req);
}

/* Granted, computed; waits for KV_SENT and the acknowledgement. */
static inline struct transfer to_computed(enum who d, struct ask a)
{
	submit(a);
	grant(d, a.req, a.n);
	struct transfer t = transfer_of(a.req);
	first_token(a.req);
	WAIT(count(d, MSG_REQUEST_FIRST_TOKEN, a.req));
	return t;
}

static inline void finish(enum who d, uint64_t req, const struct transfer *t)
{
	kv_sent(req, t);
	ack(d, req);
}

/* Its first token, as computed with nothing else in the daemon. */
static inline uint32_t alone(struct ask a)
{
	flush();
	struct transfer t = to_computed(D1, a);
	const struct seen *f = last(ROUTER, MSG_REQUEST_FIRST_TOKEN, a.req);
	ck_assert_uint_eq(f->cached, 0);
	finish(D1, a.req, &t);
	flush();
	return f->token;
}

/* A prompt of LONG tokens, met half way: the daemon is stopped there. One that was done before
 * this process looked is let go, and another tried. */
static inline struct transfer to_running(enum who d, uint64_t *req, const char *to)
{
	for (unsigned i = 0; i < 5; i++, (*req)++) {
		submit((struct ask){.req = *req, .n = LONG, .to = to, .seed = (uint32_t)*req});
		grant(d, *req, LONG);
		struct transfer t = transfer_of(*req);
		while (ring_progress(ring, t.slot, 0, t.gen) == 0 && !transfer_is_void(&t))
			event_base_loop(base, EVLOOP_NONBLOCK);
		kill(pid, SIGSTOP);
		if (ring_progress(ring, t.slot, 0, t.gen) < LONG / 2)
			return t;
		kill(pid, SIGCONT);
		first_token(*req);
		finish(d, *req, &t);
		WAIT(transfer_is_void(&t)); /* others may be under way: not at_rest */
	}
	ck_abort_msg("a prompt of %u tokens is always computed before this process sees it half done",
	             LONG);
	return (struct transfer){0};
}

/* The daemons that belong to this build lie beside the folder of the tests. First in main. */
static inline void world_main(const char *self)
{
	const char *slash = strrchr(self, '/');
	snprintf(program, sizeof program, "%.*s/../bin/pdprefilld", slash ? (int)(slash - self) : 1,
	         slash ? self : ".");
}

#define BEGIN(...) begin((const char *const[]){__VA_ARGS__, NULL})

#endif
