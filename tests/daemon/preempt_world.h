/* preempt_world.h - decode_world.h with a storage daemon beside it that this process plays: it
 * keeps real blocks, and answers each question at once, when the test says so, twice, or never.
 * The process that has the worker's memory is a child that does nothing, so that storage can be
 * killed. */
#ifndef TESTS_PREEMPT_WORLD_H
#define TESTS_PREEMPT_WORLD_H

#include "decode_world.h"

#define STORED_MAX 512u

/* by hand: the test takes the message and answers, or does not */
enum manner { AT_ONCE, TWICE, BY_HAND };

struct stored {
	unsigned char hash[32], *data;
};

static struct {
	pid_t holder;
	enum manner put, get, lookup, fence;
	struct stored block[STORED_MAX];
	/* n_written: blocks that were sent, whether it had them or not */
	uint32_t n, n_written;
	uint32_t puts, gets, lookups, fences; /* messages that were answered */
	void (*before)(int step);             /* called at every step of storage; NULL: nothing */
	int step;
} S;

/* --- its process --------------------------------------------------------- */

static inline void storage_holder(void)
{
	char path[128];
	struct handover_hello h;
	struct kv_layout l;
	struct err e = {0};
	struct handover_fds fds;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	close_range(3, ~0u, 0); /* links of this process must not live on in that one */
	snprintf(path, sizeof path, "%s/storage.sock", W.dir);
	unlink(path);
	int ls = sock_listen(path, 0600, &e), conn = ls < 0 ? -1 : sock_accept(ls);
	if (conn < 0 || handover_receive(conn, &h, &l, &fds, &e) < 0 ||
	    handover_answer(conn, STORAGE->epoch, 0, "", "", -1) < 0)
		_exit(1);
	for (;;)
		pause();
}

static inline void storage_open(void)
{
	S.holder = fork();
	if (S.holder == 0)
		storage_holder();
	ck_assert_int_gt(S.holder, 0);
	side_open(STORAGE);
}

static inline int storage_ready(void)
{
	return STORAGE->p && strstr(ctl("status"), "\"storage_ready\":true") != NULL;
}

static inline void storage_kill(void)
{
	side_close(STORAGE);
	if (S.holder)
		process_kill(&S.holder);
}

/* What it kept is still there, as on a disk. */
static inline void storage_again(void)
{
	STORAGE->epoch++;
	storage_open();
}

/* --- what it does -------------------------------------------------------- */

static inline int step_and_live(void)
{
	if (S.before)
		S.before(S.step);
	S.step++;
	return STORAGE->c != NULL; /* 0: killed at this step */
}

static inline struct stored *stored_find(const unsigned char *hash)
{
	for (uint32_t i = 0; i < S.n; i++)
		if (memcmp(S.block[i].hash, hash, 32) == 0)
			return &S.block[i];
	return NULL;
}

/* Pieces [from, to) of a block, out of the worker's region or into it; data is the whole
 * block's. */
static inline void pieces_move(uint32_t block, unsigned char *data, uint32_t from, uint32_t to,
                               int in)
{
	unsigned char *at = data;
	for (uint32_t l = 0; l < to; at += W.layout.piece_bytes[l++])
		if (l >= from)
			memcpy(in ? piece(l, block) : at, in ? at : piece(l, block), W.layout.piece_bytes[l]);
}

static inline uint64_t generation_of(uint32_t block)
{
	return __atomic_load_n((uint64_t *)(uintptr_t)&W.shared.region.generations[block],
	                       __ATOMIC_ACQUIRE);
}

static inline void commit(const unsigned char *hash, const unsigned char *data)
{
	if (stored_find(hash))
		return;
	ck_assert_uint_lt(S.n, STORED_MAX);
	struct stored *s = &S.block[S.n++];
	memcpy(s->hash, hash, 32);
	s->data = mem_alloc(W.layout.block_bytes);
	memcpy(s->data, data, W.layout.block_bytes);
}

static inline void storage_forget(void)
{
	while (S.n)
		free(S.block[--S.n].data);
}

static inline void say_storage(enum msg_type type, const ProtobufCMessage *body)
{
	if (STORAGE->p)
		chan_send(STORAGE->c, STORAGE->p, type, NULL, body);
}

static inline void say_done(uint64_t batch, Pds__StoreItem **items, size_t n,
                            const Pds__StoreCode *code)
{
	Pds__StoreDone d = PDS__STORE_DONE__INIT;
	Pds__StoreResult *r = mem_array(n + 1, sizeof *r), **list = mem_array(n + 1, sizeof *list);
	for (size_t i = 0; i < n; i++) {
		pds__store_result__init(&r[i]);
		r[i].hash = items[i]->hash;
		r[i].block = items[i]->block;
		r[i].generation = items[i]->generation;
		r[i].code = code[i];
		r[i].tier = code[i] == PDS__STORE_CODE__STORE_OK ? "memory" : "";
		r[i].text = "";
		list[i] = &r[i];
	}
	d.batch = batch;
	d.n_results = n;
	d.results = list;
	say_storage(MSG_STORE_DONE, &d.base);
	free(list);
	free(r);
}

/* Copy, check, data, index. */
static inline Pds__StoreCode store_item(const Pds__StoreItem *it)
{
	unsigned char *data = mem_alloc(W.layout.block_bytes);
	pieces_move(it->block, data, 0, W.layout.layers, 0);
	__asm__ volatile("" ::: "memory"); /* the copy is made before the generation is read */
	int holds = generation_of(it->block) == it->generation;
	if (holds)
		commit(it->hash.data, data);
	free(data);
	return holds ? PDS__STORE_CODE__STORE_OK : PDS__STORE_CODE__STORE_VOID;
}

static inline void answer_put(const Pds__StorePut *m)
{
	Pds__StoreCode *code = mem_array(m->n_items, sizeof *code);
	if (!step_and_live())
		goto out;
	for (size_t i = 0; i < m->n_items; i++)
		code[i] = store_item(m->items[i]);
	S.n_written += (uint32_t)m->n_items;
	if (!step_and_live())
		goto out;
	for (int i = 0; i <= (S.put == TWICE); i++)
		say_done(m->batch, m->items, m->n_items, code);
	S.puts++;
out:
	free(code);
}

static inline void answer_get(const Pds__StoreGet *m)
{
	Pds__StoreCode *code = mem_array(m->n_items, sizeof *code);
	if (!step_and_live())
		goto out;
	for (size_t i = 0; i < m->n_items; i++) {
		const struct stored *s = stored_find(m->items[i]->hash.data);
		code[i] = s ? PDS__STORE_CODE__STORE_OK : PDS__STORE_CODE__STORE_MISS;
		if (!s)
			continue;
		pieces_move(m->items[i]->block, s->data, 0, 1, 1);
		if (i == 0 && !step_and_live())
			goto out;
		pieces_move(m->items[i]->block, s->data, 1, W.layout.layers, 1);
	}
	if (!step_and_live())
		goto out;
	for (int i = 0; i <= (S.get == TWICE); i++)
		say_done(m->batch, m->items, m->n_items, code);
	S.gets++;
out:
	free(code);
}

static inline void answer_lookup(const Pds__StoreLookup *m)
{
	Pds__StoreFound f = PDS__STORE_FOUND__INIT;
	uint32_t tiers[STORED_MAX];
	if (!step_and_live())
		return;
	f.batch = m->batch;
	while (f.leading < m->n_hashes && stored_find(m->hashes[f.leading].data))
		tiers[f.leading++] = 1;
	f.n_tiers = f.leading;
	f.tiers = tiers;
	for (int i = 0; i <= (S.lookup == TWICE); i++)
		say_storage(MSG_STORE_FOUND, &f.base);
	S.lookups++;
}

static inline void answer_fence(const Pds__StoreFence *m)
{
	Pds__StoreFenced a = PDS__STORE_FENCED__INIT;
	a.batch = m->batch;
	for (int i = 0; i <= (S.fence == TWICE); i++)
		say_storage(MSG_STORE_FENCED, &a.base);
	S.fences++;
}

static inline void storage_turn(void)
{
	ProtobufCMessage *m;
	if (S.put != BY_HAND && (m = take(STORAGE, MSG_STORE_PUT, 0)))
		answer_put((const Pds__StorePut *)m);
	if (S.lookup != BY_HAND && (m = take(STORAGE, MSG_STORE_LOOKUP, 0)))
		answer_lookup((const Pds__StoreLookup *)m);
	if (S.get != BY_HAND && (m = take(STORAGE, MSG_STORE_GET, 0)))
		answer_get((const Pds__StoreGet *)m);
	if (S.fence != BY_HAND && (m = take(STORAGE, MSG_STORE_FENCE, 0)))
		answer_fence((const Pds__StoreFence *)m);
}

/* --- the world of a test ------------------------------------------------- */

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define VARIANT "variant=auto"
#else
/* slow enough for the second to come before the first has ended */
#define VARIANT "variant=reference"
#endif

/* Nothing is late by itself, however slow the machine; settings of the test say otherwise. */
static inline void preempt_begin_as(const char *const *settings)
{
	world_begin_as(settings);
	storage_open();
	W.each = storage_turn;
	UNTIL(STORAGE->p);
	UNTIL(storage_ready());
}
#define preempt_begin(...)                                                                  \
	preempt_begin_as((const char *const[]){"storage=storage", "kv_blocks=21", VARIANT,      \
	                                       "growth_ratio=0", "storage_read=always",         \
	                                       "output_caching=false", "preempt_wait_ms=60000", \
	                                       "restore_wait_ms=600000", ##__VA_ARGS__, NULL})

static inline void preempt_end(void)
{
	world_end();
	storage_kill();
	storage_forget();
}

/* Answers of the undisturbed; requests n and n + 2, n + 4 ... up to LEARNT ask the same. */
#define LEARNT 40u
static struct answer want[IDS];
static uint32_t pair = 1; /* the first of the two sequences that run now */

static inline struct prompt growing(uint32_t n, uint32_t tokens, uint32_t answer)
{
	struct prompt p = tokens_of(tokens);
	for (uint32_t i = 0; i < tokens; i++)
		long_tokens[i] = 3 + (i * 37 + n * 101) % 300;
	p.max_tokens = answer;
	return p;
}

/* What one test has learnt the next ones, which are processes of their own, know. */
static struct known {
	uint32_t n, tokens;
	struct answer answer;
} (*known)[16];

__attribute__((constructor)) static void known_init(void)
{
	known = mmap(NULL, sizeof *known, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (known == MAP_FAILED)
		abort();
}

static inline struct known *known_place(uint32_t n, uint32_t tokens, uint32_t answer)
{
	for (size_t i = 0; i < sizeof *known / sizeof **known; i++) {
		struct known *k = &(*known)[i];
		if (k->n == 0 || (k->n == n && k->tokens == tokens && k->answer.n == answer))
			return k;
	}
	ck_abort_msg("too many are learnt");
	return NULL;
}

/* The answer of request n when it is alone, as request n + LEARNT; nothing of it stays in the
 * index. */
static inline void learn(uint32_t n, uint32_t tokens, uint32_t answer)
{
	struct known *k = known_place(n, tokens, answer);
	if (k->n) {
		want[n] = k->answer;
		return;
	}
	say_submit(n + LEARNT, growing(n, tokens, answer));
	UNTIL(ended(n + LEARNT));
	want[n] = D.answer[n + LEARNT];
	ck_assert_uint_eq(want[n].n, answer);
	k->answer = want[n];
	k->tokens = tokens;
	k->n = n;
	UNTIL(requests_are("[]"));
	ctl("flush");
}

static inline void same(uint32_t n)
{
	expect_tokens(n, want[n].id, want[n].n);
}

/* Two sequences of 100 tokens that grow by 160, up to 17 blocks, in a pool of 21: the younger, 2,
 * is preempted when it has about 10, comes back when 1 has ended, and finds a few of them in the
 * index. */
#define PAIR 100, 160 /* prompt, answer */

static inline void learn_pair(void)
{
	learn(1, PAIR);
	learn(2, PAIR);
}

/* All at once: the worker goes on when it has them. */
static inline void together(void (*submit)(void))
{
	daemon_stop();
	submit();
	pump_for(20000);
	daemon_go_on();
}

static inline void say_pair(void)
{
	say_submit(pair, growing(1, PAIR));
	say_submit(pair + 1, growing(2, PAIR));
}

static inline void submit_pair(void)
{
	together(say_pair);
}

static inline void same_pair(void)
{
	same(pair);
	same(pair + 1);
	UNTIL(metric("preemptions_total") >= 1);
}

/* The same two from the beginning, as other requests; storage has nothing of them. */
static inline void pair_again(void)
{
	storage_forget();
	UNTIL(requests_are("[]") && kv_count("readers") == 0);
	ctl("flush");
	want[pair + 2] = want[pair];
	want[pair + 3] = want[pair + 1];
	pair += 2;
	ck_assert_uint_lt(pair + 1, LEARNT);
}

#endif
