/* decode_world.h - the world of a pddecoded on the tiny golden model: a router, a prefill worker
 * and a messager are played. Tokens are put together as a router does; an index that comes twice or
 * too early fails the test at once. */
#ifndef TESTS_DECODE_WORLD_H
#define TESTS_DECODE_WORLD_H

#include "kv/pool.h"
#include "world.h"

#include <sys/mman.h>
#include <sys/prctl.h>

#define IDS 64u /* request ids of the tests: 1 .. 63; above that those of settle() */
#define ANSWER_MAX 512u
/* A lease that no test waits for is the default. One that a test lets expire is long enough for
 * what comes before on a busy machine. */
#define LEASE_MS 600000u
#define SHORT_MS 2000u
#define SHORT_LEASE "lease_ms=2000"

struct answer {
	uint32_t n, id[ANSWER_MAX];
	Pds__Finish finish;
	uint32_t place;      /* among the answers that have ended, from 1 */
	uint64_t prefill_us; /* the prefill worker's, with the first token */
};

static struct {
	struct answer answer[IDS];
	int draining; /* by its last heartbeat, as are the rates */
	uint32_t compute_rate, memory_rate, disk_rate, beats;
	int apart;         /* the messager is a process of its own, set before the world begins */
	pid_t child;       /* that one */
	unsigned char *kv; /* of the short prompt, layer by layer */
	uint32_t settled, n_ended;
} D; /* what the worker has said, and who is played how */

/* What the messager's process is to do to the worker's memory, which it maps as the real one does:
 * write over these blocks for as long as `on` is set. */
struct late_writes {
	_Atomic int on, busy; /* busy: it is in a round, which it ends when `on` is taken back */
	_Atomic uint32_t rounds;
	_Atomic int has_memory; /* the daemon's, with the messager's answer under way */
	uint32_t n, blocks[64];
};
static struct late_writes *late;

/* The golden model's short prompt and its greedy continuation (golden.json there). */
static const uint32_t short_prompt[] = {247, 163, 95, 106, 68, 212, 302};
static const uint32_t short_answer[] = {160, 290, 37, 266, 214, 105, 245, 29, 283, 246};
static uint32_t long_tokens[1024];

static inline struct prompt short_of(uint32_t max_tokens)
{
	return (struct prompt){.tokens = short_prompt, .n = 7, .max_tokens = max_tokens};
}

static inline struct prompt tokens_of(uint32_t n)
{
	for (uint32_t i = 0; i < 1024; i++)
		long_tokens[i] = 3 + (i * 37 + n) % 300; /* n: no two share a prefix */
	return (struct prompt){.tokens = long_tokens, .n = n, .max_tokens = 8};
}

/* With so many tokens of answer. */
static inline struct prompt asking(uint32_t n, uint32_t max_tokens)
{
	struct prompt p = tokens_of(n);
	p.max_tokens = max_tokens;
	return p;
}

/* --- what arrives -------------------------------------------------------- */

static inline void hear_tokens(const Pds__Tokens *m)
{
	for (size_t i = 0; i < m->n_sequences; i++) {
		const Pds__SequenceTokens *s = m->sequences[i];
		ck_assert_uint_lt(s->request_lo, IDS);
		struct answer *a = &D.answer[s->request_lo];
		ck_assert_msg(s->index == a->n, "request %u: token index %u, %u is next",
		              (unsigned)s->request_lo, s->index, a->n);
		ck_assert_msg(a->finish == PDS__FINISH__FINISH_NONE, "request %u: a token after the end",
		              (unsigned)s->request_lo);
		for (size_t k = 0; k < s->n_tokens && a->n < ANSWER_MAX; k++)
			a->id[a->n++] = s->tokens[k]->id;
		ck_assert_msg(!s->prompt || !s->index,
		              "request %u: the prompt's timing comes with token %u",
		              (unsigned)s->request_lo, s->index);
		if (s->prompt)
			a->prefill_us = s->prompt->prefill_us;
		a->finish = s->finish;
		if (a->finish != PDS__FINISH__FINISH_NONE)
			a->place = ++D.n_ended;
	}
}

static inline int hear(struct side *s, enum msg_type type, const ProtobufCMessage *body)
{
	if (type == MSG_REQUEST_TOKENS) {
		hear_tokens((const Pds__Tokens *)body);
		return 1;
	}
	if (type == MSG_HEARTBEAT) {
		const Pds__Heartbeat *hb = (const Pds__Heartbeat *)body;
		D.draining = hb->draining;
		D.compute_rate = hb->compute_tokens_per_s;
		D.memory_rate = hb->memory_tokens_per_s;
		D.disk_rate = hb->disk_tokens_per_s;
		D.beats += s == ROUTER;
	}
	return 0;
}

/* --- the messager as a process of its own -------------------------------- */

/* It has the memory until it is killed; SIGUSR1 makes it close its connection and live on, SIGUSR2
 * makes it write (struct late_writes). */
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
				memset(piece(l, late->blocks[i]), 0x42, W.layout.piece_bytes[l]);
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
	door_open();
	fcntl(W.door, F_SETFL, 0);
	memory_take(W.attached = sock_accept(W.door));
	late->has_memory = 1;
	while (!close_now) {
		sigsuspend(&old);
		if (write_now)
			write_late();
	}
	close(W.attached);
	close(W.door);
	for (;;)
		pause();
}

/* --- the world of a test ------------------------------------------------- */

static inline void settle(struct side *s);

static inline void decode_open(const char *const *settings)
{
	static const char *const of_role[] = {"lease_ms=600000", NULL};
	world_open("decode", of_role, settings);
	W.hear = hear;
}

/* The prefill worker comes last: it describes itself as the daemon does. */
static inline void world_begin_as(const char *const *settings)
{
	late = mmap(NULL, sizeof *late, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert_ptr_ne(late, MAP_FAILED);
	world_folder();
	if (D.apart && (D.child = fork()) == 0)
		messager_process();
	if (!D.apart)
		door_open();
	decode_open(settings);
	side_open(MESSAGER);
	daemon_start();
	UNTIL(ROUTER->p && MESSAGER->p && (D.apart ? late->has_memory : W.shared.data != NULL));
	side_open(PREFILL);
	UNTIL(PREFILL->p);
	settle(ROUTER); /* the daemon knows the router's link, too: without it no reservation */
}
#define world_begin(...) world_begin_as((const char *const[]){__VA_ARGS__, NULL})

/* The messager that had the memory is killed, and its next life is up, which D tries to hand its
 * memory to (D.apart). */
static inline void messager_next_life(void)
{
	process_kill(&D.child);
	door_open();
	link_again(MESSAGER, MESSAGER->epoch + 1);
	UNTIL(W.attached >= 0);
}

/* Killed and started again: its next life, with memory of its own (not for a messager in a
 * process of its own). */
static inline void daemon_restart(void)
{
	uint64_t old = W.epoch;
	process_kill(&W.daemon);
	memory_drop();
	daemon_start();
	UNTIL(W.epoch != old && ROUTER->p && MESSAGER->p && PREFILL->p &&
	      peer_epoch(PREFILL->p) == W.epoch && W.shared.data);
	settle(ROUTER);
}

/* --- words of the tests -------------------------------------------------- */

static inline void say_submit(uint32_t n, struct prompt p)
{
	Pds__Submit m = PDS__SUBMIT__INIT;
	struct request q;
	request_fill(&q, &p);
	m.request = &q.r;
	say(ROUTER, MSG_REQUEST_SUBMIT, n, &m);
}

static inline void say_reserve(uint32_t n, uint32_t attempt, struct prompt p)
{
	Pds__Reserve m = PDS__RESERVE__INIT;
	struct request q;
	struct msg_head h = {{7, n}, attempt, p.deadline_us ? clock_us() + p.deadline_us : 0};
	request_fill(&q, &p);
	m.request = &q.r;
	m.router = (char *)(uintptr_t)ROUTER->name;
	m.router_epoch = ROUTER->epoch;
	m.messager = (char *)(uintptr_t)MESSAGER->name;
	ck_assert_int_eq(chan_send(PREFILL->c, PREFILL->p, MSG_KV_RESERVE, &h, &m.base), 0);
}

static inline const Pds__Grant *reserve(uint32_t n, struct prompt p)
{
	say_reserve(n, 1, p);
	return WANT(Pds__Grant, PREFILL, KV_GRANT, n);
}

static inline void say_renew(struct side *s, uint64_t lease, uint64_t epoch)
{
	Pds__Renew m = PDS__RENEW__INIT;
	m.lease_ids = &lease;
	m.n_lease_ids = 1;
	m.epoch = epoch;
	say(s, MSG_KV_RENEW, 0, &m);
}

static inline void say_open_for(struct side *s, const char *messager, uint32_t n, Pds__Lease l)
{
	Pds__LeaseOpen m = PDS__LEASE_OPEN__INIT;
	m.lease = &l;
	m.messager = (char *)(uintptr_t)messager;
	m.prefill = (char *)(uintptr_t)PREFILL->name;
	m.prefill_epoch = PREFILL->epoch;
	say(s, MSG_LEASE_OPEN, n, &m);
}

static inline void say_open(struct side *s, uint32_t n, Pds__Lease l)
{
	say_open_for(s, "", n, l);
}

static inline void say_revoked(struct side *s, uint32_t n, Pds__Lease l)
{
	Pds__LeaseRevoked m = PDS__LEASE_REVOKED__INIT;
	m.lease = &l;
	say(s, MSG_LEASE_REVOKED, n, &m);
}

static inline void say_ready_for(struct side *s, const char *messager, uint32_t n, Pds__Lease l)
{
	Pds__KvReady m = PDS__KV_READY__INIT;
	m.lease = &l;
	m.messager = (char *)(uintptr_t)messager;
	m.prefill = (char *)(uintptr_t)PREFILL->name;
	m.prefill_epoch = PREFILL->epoch;
	say(s, MSG_KV_READY, n, &m);
}

static inline void say_ready(struct side *s, uint32_t n, Pds__Lease l)
{
	say_ready_for(s, "", n, l);
}

static inline void say_first(struct side *s, uint32_t n, Pds__Lease l, uint32_t token)
{
	Pds__FirstToken m = PDS__FIRST_TOKEN__INIT;
	Pds__Token t = PDS__TOKEN__INIT;
	Pds__Timing timing = PDS__TIMING__INIT;
	timing.prefill_us = 1000 + n;
	m.timing = &timing;
	t.id = token;
	m.token = &t;
	m.decode = "decode";
	m.decode_epoch = l.epoch;
	m.lease_id = l.id;
	m.lease_generation = l.generation;
	say(s, MSG_REQUEST_FIRST_TOKEN, n, &m);
}

static inline void opened(uint32_t n, Pds__Lease l, int refused)
{
	say_open(MESSAGER, n, l);
	const Pds__LeaseOpened *o = WANT(Pds__LeaseOpened, MESSAGER, LEASE_OPENED, n);
	ck_assert_int_eq(o->refused, refused);
	ck_assert_str_eq(o->prefill, PREFILL->name);
	ck_assert_uint_eq(o->prefill_epoch, PREFILL->epoch);
}

/* The two halves of a join: each is acknowledged, whatever has become of the lease. */
static inline void ready(uint32_t n, Pds__Lease l)
{
	say_ready(MESSAGER, n, l);
	const Pds__KvReadyAck *a = WANT(Pds__KvReadyAck, MESSAGER, KV_READY_ACK, n);
	ck_assert_uint_eq(a->lease->id, l.id);
	ck_assert_str_eq(a->prefill, PREFILL->name);
	ck_assert_uint_eq(a->prefill_epoch, PREFILL->epoch);
}

static inline void first(uint32_t n, Pds__Lease l, uint32_t token)
{
	say_first(PREFILL, n, l, token);
	ck_assert_uint_eq(WANT(Pds__FirstTokenAck, PREFILL, REQUEST_FIRST_TOKEN_ACK, n)->lease_id,
	                  l.id);
}

/* The messager's answer to a revocation: it writes no more. */
static inline void revoked(uint32_t n, Pds__Lease l)
{
	await(MESSAGER, MSG_LEASE_REVOKE, n);
	say_revoked(MESSAGER, n, l);
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
	uint32_t n = IDS + ++D.settled;
	if (s == MESSAGER) {
		ready(n, no_lease());
	} else if (s == PREFILL) {
		first(n, no_lease(), 1);
	} else {
		say_submit(n, (struct prompt){.tokens = outside, .n = 1, .max_tokens = 1});
		await(s, MSG_REQUEST_FAILED, n);
	}
}

static inline int ended(uint32_t n)
{
	return D.answer[n].finish != PDS__FINISH__FINISH_NONE;
}

/* The answer to request n has ended, with so many tokens. */
static inline void expect_length(uint32_t n, uint32_t tokens)
{
	UNTIL(ended(n));
	ck_assert_uint_eq(D.answer[n].n, tokens);
}

static inline void expect_tokens(uint32_t n, const uint32_t *want, uint32_t tokens)
{
	expect_length(n, tokens);
	for (uint32_t i = 0; i < tokens; i++)
		ck_assert_msg(D.answer[n].id[i] == want[i], "request %u: token %u is %u, expected %u", n, i,
		              D.answer[n].id[i], want[i]);
}

static inline void expect_answer(uint32_t n, uint32_t tokens)
{
	expect_tokens(n, short_answer, tokens);
	ck_assert_int_eq(D.answer[n].finish, PDS__FINISH__FINISH_LENGTH);
}

/* What a prefill worker would compute for the short prompt: the worker computes it once by
 * itself, in the one block that is not zero then. */
static inline void learn_kv(uint32_t n)
{
	uint32_t at = KV_BLOCK_NONE;
	say_submit(n, short_of(1));
	expect_answer(n, 1);
	for (uint32_t b = 0; b < W.shared.region.blocks; b++)
		for (size_t i = 0; i < W.layout.piece_bytes[0]; i++)
			if (piece(0, b)[i]) {
				ck_assert(at == KV_BLOCK_NONE || at == b);
				at = b;
			}
	ck_assert_uint_ne(at, KV_BLOCK_NONE);
	D.kv = mem_alloc(W.layout.block_bytes);
	unsigned char *to = D.kv;
	for (uint32_t l = 0; l < W.layout.layers; to += W.layout.piece_bytes[l++])
		memcpy(to, piece(l, at), W.layout.piece_bytes[l]);
}

/* The messager's copy. */
static inline void fill_kv(const Pds__Grant *g)
{
	const unsigned char *from = D.kv;
	ck_assert_uint_eq(g->n_blocks, 1);
	for (uint32_t l = 0; l < W.layout.layers; from += W.layout.piece_bytes[l++])
		memcpy(piece(l, g->blocks[0]), from, W.layout.piece_bytes[l]);
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
	say_ready(MESSAGER, n, l);
	say_first(PREFILL, n, l, short_answer[0]);
}

/* A sequence that a prefill worker and the messager have handed over as they should: it decodes
 * from the first token on. */
static inline Pds__Lease joined(uint32_t n, uint32_t max_tokens)
{
	Pds__Lease l = filled(n, max_tokens);
	join(n, l);
	return l;
}

#endif
