/* test_store.c - the worker's storage client alone: link, attachment and loop are this file's own,
 * so that every order of events can be played. Each test says what is asked, what storage does,
 * and what completions come. */
/* run: threads */
#include "daemons/worker/links/attach.h"
#include "daemons/worker/storage/client.h"

#include "util/clock.h"
#include "util/mem.h"

#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- the fakes: what store.c calls of svc, chan and attach --------------- */

struct peer {
	uint64_t epoch;
};

struct sent {
	enum msg_type type;
	uint64_t batch;
	size_t n;
	unsigned char hash0;
	uint32_t block0;
	uint64_t generation0;
};

static struct event_base *base;
static struct peer peer;
static struct attach_hooks attached;
static struct sent sent[64];
static unsigned n_sent;
static int send_fails;
static struct {
	void (*fn)(struct svc *, void *);
	void *arg;
} posts[64];
static unsigned n_posts;
static struct store_completion *completed[64];
static unsigned n_done;
static pthread_mutex_t post_lock = PTHREAD_MUTEX_INITIALIZER;

struct event_base *svc_base(struct svc *s)
{
	(void)s;
	return base;
}
struct chan *svc_chan(struct svc *s)
{
	(void)s;
	return NULL;
}
void svc_post(struct svc *s, void (*fn)(struct svc *, void *), void *arg)
{
	(void)s;
	pthread_mutex_lock(&post_lock);
	posts[n_posts].fn = fn;
	posts[n_posts++].arg = arg;
	pthread_mutex_unlock(&post_lock);
}
void svc_ipc_endpoint(const struct svc *s, const char *name, char *out, size_t size)
{
	(void)s;
	snprintf(out, size, "ipc://%s", name);
}
void svc_sock_path(const struct svc *s, const char *name, char *out, size_t size)
{
	(void)s;
	snprintf(out, size, "%s.sock", name);
}
int svc_send(struct svc *s, struct peer *p, enum msg_type type, const struct msg_head *head,
             const void *body)
{
	(void)s;
	(void)head;
	ck_assert_ptr_eq(p, &peer);
	if (send_fails)
		return send_fails;
	struct sent m = {.type = type};
	if (type == MSG_STORE_PUT || type == MSG_STORE_GET) {
		const Pds__StoreGet *g = body; /* a put has the same fields */
		m.batch = g->batch;
		m.n = g->n_items;
		m.hash0 = g->items[0]->hash.data[0];
		m.block0 = g->items[0]->block;
		m.generation0 = g->items[0]->generation;
	} else if (type == MSG_STORE_LOOKUP) {
		m.batch = ((const Pds__StoreLookup *)body)->batch;
		m.n = ((const Pds__StoreLookup *)body)->n_hashes;
	} else {
		m.batch = ((const Pds__StoreFence *)body)->batch;
	}
	ck_assert_uint_lt(n_sent, 64);
	sent[n_sent++] = m;
	return 0;
}
struct peer *chan_connect(struct chan *c, const char *endpoint, const char *expected_name, int tag)
{
	(void)c;
	(void)tag;
	ck_assert_str_eq(endpoint, "ipc://storage");
	ck_assert_str_eq(expected_name, "storage");
	return &peer;
}
static struct store *st;
/* As the real one: the link goes down within it. */
void chan_disconnect(struct chan *c, struct peer *p)
{
	(void)c;
	store_down(st, p, "disconnected");
}
uint64_t peer_epoch(const struct peer *p)
{
	return p->epoch;
}
struct attach *attach_new(struct svc *s, const char *what, const char *path,
                          const struct handover_hello *hello, const struct handover_fds *fds,
                          const struct attach_hooks *hooks)
{
	(void)s;
	(void)what;
	(void)hello;
	ck_assert_str_eq(path, "storage.sock");
	ck_assert_int_eq(fds->ring, -1);
	attached = *hooks;
	return (struct attach *)&attached;
}
void attach_destroy(struct attach **a)
{
	*a = NULL;
}

/* --- the stage of a test ------------------------------------------------- */

#define EPOCH 77u
#define BATCHES 4u

static void loop(void)
{
	pthread_mutex_lock(&post_lock);
	unsigned n = n_posts;
	n_posts = 0;
	pthread_mutex_unlock(&post_lock);
	for (unsigned i = 0; i < n; i++)
		posts[i].fn(NULL, posts[i].arg);
	event_base_loop(base, EVLOOP_NONBLOCK);
}

/* Goes on until it is true, however busy the machine is. */
#define UNTIL(cond)                                                                \
	for (uint64_t until_end = clock_us() + 60000000; !(cond); usleep(500), loop()) \
	ck_assert_msg(clock_us() < until_end, "not within 60 s: %s", #cond)

static void link_up(uint64_t epoch)
{
	peer.epoch = epoch;
	store_up(st, &peer);
}

static void on_done(void *arg, struct store_completion *c)
{
	(void)arg;
	ck_assert_uint_lt(n_done, sizeof completed / sizeof *completed);
	completed[n_done++] = c;
}

/* The oldest completion; NULL: there is none. */
static struct store_completion *take(void)
{
	struct store_completion *c = n_done ? completed[0] : NULL;
	n_done -= c != NULL;
	memmove(completed, completed + 1, n_done * sizeof *completed);
	return c;
}

static void set_up(void)
{
	base = event_base_new();
	n_sent = n_posts = n_done = 0;
	send_fails = 0;
	st = store_new(NULL, &(struct store_opts){.name = "storage",
	                                          .fds = {-1, -1, {0}},
	                                          .batches_max = BATCHES,
	                                          .done = on_done});
	link_up(EPOCH);
	attached.on(attached.arg, EPOCH, -1);
	ck_assert_int_eq(store_ready(st), 1);
}

static void tear_down(void)
{
	store_destroy(&st);
	loop();
	event_base_free(base);
}

static struct store_item items[3];

static uint64_t ask(enum store_op op, uint32_t n, uint64_t deadline_us)
{
	struct kv_hash hash[3];
	uint64_t batch = 0;
	for (uint32_t i = 0; i < 3; i++) {
		memset(items[i].hash.b, (int)(10 + i), sizeof items[i].hash.b);
		items[i].block = 5 + i;
		items[i].generation = 100 + i;
		hash[i] = items[i].hash;
	}
	int r = op == STORE_OP_PUT   ? store_put(st, items, n, deadline_us, &items[0], &batch)
	        : op == STORE_OP_GET ? store_get(st, items, n, deadline_us, &items[0], &batch)
	                             : store_lookup(st, hash, n, 0, deadline_us, &items[0], &batch);
	ck_assert_int_eq(r, 0);
	ck_assert_uint_ne(batch, 0);
	return batch;
}

static uint64_t ask_and_send(enum store_op op, uint32_t n, uint64_t deadline_us)
{
	uint64_t batch = ask(op, n, deadline_us);
	loop();
	return batch;
}

/* Storage's answer; one letter for each item: o OK, m miss, v void, f full, e error, c
 * cancelled, x OK for another block. */
static void answer_from(struct peer *from, uint64_t batch, const char *codes)
{
	static const char letter[] = "omvfec";
	Pds__StoreResult r[8], *list[8];
	Pds__StoreDone d = PDS__STORE_DONE__INIT;
	for (d.n_results = 0; codes[d.n_results]; d.n_results++) {
		size_t i = d.n_results;
		pds__store_result__init(&r[i]);
		r[i].hash = (ProtobufCBinaryData){.len = 32, .data = items[i % 3].hash.b};
		r[i].block = items[i % 3].block + (codes[i] == 'x');
		r[i].generation = items[i % 3].generation;
		r[i].code = codes[i] == 'x' ? PDS__STORE_CODE__STORE_OK
		                            : (Pds__StoreCode)(strchr(letter, codes[i]) - letter);
		r[i].tier = codes[i] == 'o' ? "memory" : "";
		r[i].text = codes[i] == 'e' ? "bad weather" : "";
		list[i] = &r[i];
	}
	d.batch = batch;
	d.results = list;
	store_message(st, from, &d.base);
}

static void answer(uint64_t batch, const char *codes)
{
	answer_from(&peer, batch, codes);
}

static void fenced(uint64_t batch)
{
	Pds__StoreFenced m = PDS__STORE_FENCED__INIT;
	m.batch = batch;
	store_message(st, &peer, &m.base);
}

static void found(uint64_t batch, uint32_t leading)
{
	Pds__StoreFound m = PDS__STORE_FOUND__INIT;
	m.batch = batch;
	m.leading = leading;
	store_message(st, &peer, &m.base);
}

static unsigned count_sent(enum msg_type type, uint64_t batch)
{
	unsigned n = 0;
	for (unsigned i = 0; i < n_sent; i++)
		n += sent[i].type == type && sent[i].batch == batch;
	return n;
}

static void none(void)
{
	ck_assert_uint_eq(n_done, 0);
}

/* The one completion that is there: of this batch, with this code, letters of its results, and
 * whether the blocks are quiet. */
static void one(uint64_t batch, int code, const char *codes, int quiet)
{
	static const char letter[] = "omvfec";
	struct store_completion *c = take();
	ck_assert_ptr_nonnull(c);
	ck_assert_uint_eq(c->batch, batch);
	ck_assert_int_eq(c->code, code);
	ck_assert_int_eq(c->quiet, quiet);
	ck_assert_ptr_eq(c->user, &items[0]);
	ck_assert_int_eq(c->text[0] != 0, code != 0);
	ck_assert_uint_eq(c->n, strlen(codes));
	for (uint32_t i = 0; i < c->n; i++) {
		ck_assert_int_eq(letter[c->result[i].code], codes[i]);
		ck_assert_uint_eq(c->result[i].item.block, items[i].block);
		ck_assert_str_eq(store_tier_name(c->result[i].tier), codes[i] == 'o' ? "memory" : "");
	}
	if (c->op != STORE_OP_LOOKUP)
		ck_assert_uint_eq(c->leading, strspn(codes, "o"));
	store_completion_free(&c);
}

/* --- answers ------------------------------------------------------------- */

TEST_CASE("client", .timeout_s = 120, .setup = set_up, .teardown = tear_down);

TEST(test_answers)
{
	static const struct {
		enum store_op op;
		const char *answer, *want;
	} row[] = {
		{STORE_OP_PUT, "ooo", "ooo"}, {STORE_OP_PUT, "vfo", "vfo"}, {STORE_OP_PUT, "eoc", "eoc"},
		{STORE_OP_GET, "ooo", "ooo"}, {STORE_OP_GET, "oom", "oom"}, {STORE_OP_GET, "mmm", "mmm"},
		{STORE_OP_GET, "oxe", "oee"},
	};
	for (unsigned i = 0; i < sizeof row / sizeof row[0]; i++) {
		uint64_t b = ask_and_send(row[i].op, 3, 0);
		none();
		answer(b, row[i].answer);
		ck_assert_int_eq(n_done, 1);
		one(b, 0, row[i].want, 1);
		none();
		answer(b, row[i].answer); /* repeated: completed already */
		none();
	}
}

TEST(test_message)
{
	uint64_t b = ask_and_send(STORE_OP_GET, 2, 0);
	ck_assert_uint_eq(n_sent, 1);
	ck_assert_int_eq(sent[0].type, MSG_STORE_GET);
	ck_assert_uint_eq(sent[0].batch, b);
	ck_assert_uint_eq(sent[0].n, 2);
	ck_assert_uint_eq(sent[0].hash0, 10);
	ck_assert_uint_eq(sent[0].block0, 5);
	ck_assert_uint_eq(sent[0].generation0, 100);
	answer(b, "oo");
	one(b, 0, "oo", 1);
}

TEST(test_lookup)
{
	static const struct {
		uint32_t says, want;
	} row[] = {{0, 0}, {2, 2}, {3, 3}, {4000000000u, 3}};
	for (unsigned i = 0; i < sizeof row / sizeof row[0]; i++) {
		uint64_t b = ask_and_send(STORE_OP_LOOKUP, 3, 0);
		found(b, row[i].says);
		struct store_completion *c = take();
		ck_assert_ptr_nonnull(c);
		ck_assert_int_eq(c->code, 0);
		ck_assert_uint_eq(c->leading, row[i].want);
		ck_assert_uint_eq(c->n, 0);
		store_completion_free(&c);
	}
}

/* Answers that do not fit what was asked: an error for the asker, no crash, nothing delivered. */
TEST(test_wrong_answers)
{
	struct peer stranger = {EPOCH};
	uint64_t b = ask_and_send(STORE_OP_GET, 3, 0);
	answer(b + 1, "ooo");
	found(b, 3);
	fenced(b); /* nobody asked for a fence */
	answer_from(&stranger, b, "ooo");
	peer.epoch = EPOCH - 1; /* an older life */
	answer(b, "ooo");
	peer.epoch = EPOCH;
	none();
	answer(b, "oo");
	one(b, ERR_INVALID, "eee", 1);
	b = ask_and_send(STORE_OP_LOOKUP, 3, 0);
	answer(b, "ooo");
	none();
	found(b, 1);
	one(b, 0, "", 1);
}

/* --- bounds -------------------------------------------------------------- */

TEST(test_bounds)
{
	struct store_item it = {.block = 1};
	uint64_t batch[BATCHES], b;
	ck_assert_int_eq(store_put(st, &it, 0, 0, NULL, &b), ERR_INVALID);
	ck_assert_int_eq(store_get(st, &it, STORE_ITEMS_MAX + 1, 0, NULL, &b), ERR_INVALID);
	for (unsigned i = 0; i < BATCHES; i++)
		batch[i] = ask_and_send(STORE_OP_PUT, 1, 0);
	ck_assert_int_eq(store_put(st, &it, 1, 0, NULL, &b), ERR_FULL);
	answer(batch[0], "o");
	one(batch[0], 0, "o", 1);
	ck_assert_int_eq(store_put(st, &it, 1, 0, &items[0], &b), 0);
}

/* Who asked may be gone by then. */
TEST(test_destroyed_with_batches)
{
	ask_and_send(STORE_OP_PUT, 1, 0);
	ask_and_send(STORE_OP_LOOKUP, 2, 0);
	store_destroy(&st);
	ck_assert_uint_eq(n_done, 0);
	loop();
	event_base_free(base);
	set_up();
}

TEST(test_not_ready)
{
	struct store_item it = {.block = 1};
	/* in hand when the link goes: never sent, so quiet at once */
	uint64_t b = ask(STORE_OP_GET, 1, 0);
	store_down(st, &peer, "silence");
	ck_assert_int_eq(store_ready(st), 0);
	loop();
	one(b, ERR_CLOSED, "e", 1);
	ck_assert_uint_eq(n_sent, 0);
	ck_assert_int_eq(store_get(st, &it, 1, 0, NULL, NULL), ERR_CLOSED);
	link_up(EPOCH + 1); /* another life than the one that has our memory */
	ck_assert_int_eq(store_ready(st), 0);
	attached.gone(attached.arg, EPOCH);
	attached.on(attached.arg, EPOCH + 1, -1);
	ck_assert_int_eq(store_ready(st), 1);
	send_fails = ERR_FULL;
	b = ask_and_send(STORE_OP_PUT, 1, 0);
	one(b, ERR_FULL, "c", 1);
}

/* --- deadlines and fences ------------------------------------------------ */

TEST(test_timeout_put_lookup)
{
	uint64_t late_us = clock_us() + 400000, put = ask_and_send(STORE_OP_PUT, 2, late_us);
	uint64_t look = ask_and_send(STORE_OP_LOOKUP, 2, late_us);
	UNTIL(n_done);
	ck_assert_uint_ge(clock_us(), late_us);
	UNTIL(count_sent(MSG_STORE_FENCE, put));
	one(put, ERR_TIMEOUT, "cc", 0); /* storage may still read: void by generation */
	one(look, ERR_TIMEOUT, "", 1);
	ck_assert_uint_eq(count_sent(MSG_STORE_FENCE, put), 1);
	answer(put, "oo");
	fenced(put);
	none();
}

TEST(pm5_timer_frees_restore)
{
	static const struct {
		const char *then; /* F fenced, D done with "om", G gone, U down and up, - nothing */
		int code;
		const char *codes;
	} row[] = {
		{"F", ERR_TIMEOUT, "cc"},  {"D", ERR_TIMEOUT, "om"}, /* partial hits count */
		{"DF", ERR_TIMEOUT, "om"}, {"G", ERR_TIMEOUT, "cc"}, {"UF", ERR_TIMEOUT, "cc"},
	};
	for (unsigned i = 0; i < sizeof row / sizeof row[0]; i++) {
		uint64_t b = ask_and_send(STORE_OP_GET, 2, clock_us() + 300000);
		UNTIL(count_sent(MSG_STORE_FENCE, b));
		none(); /* out of time, but the blocks may still be written */
		for (const char *s = row[i].then; *s; s++) {
			if (*s == 'F')
				fenced(b);
			else if (*s == 'D')
				answer(b, "om");
			else if (*s == 'G')
				attached.gone(attached.arg, EPOCH);
			else {
				store_down(st, &peer, "silence");
				loop();
				none();
				unsigned asked = count_sent(MSG_STORE_FENCE, b);
				link_up(EPOCH);
				/* at once, not only each second */
				ck_assert_uint_eq(count_sent(MSG_STORE_FENCE, b), asked + 1);
				none();
			}
		}
		one(b, row[i].code, row[i].codes, 1);
		none();
		attached.on(attached.arg, EPOCH, -1);
	}
}

/* A fence that nobody answers is asked for again each second; a late deadline is no reason to
 * complete. */
TEST(test_fence_again)
{
	uint64_t late_us = clock_us() + 300000, b = ask_and_send(STORE_OP_GET, 1, late_us);
	UNTIL(count_sent(MSG_STORE_FENCE, b) == 1);
	UNTIL(count_sent(MSG_STORE_FENCE, b) == 2);
	ck_assert_uint_gt(clock_us() - late_us, 900000); /* the first was sent later than that */
	none();
	fenced(b);
	one(b, ERR_TIMEOUT, "c", 1);
}

TEST(test_deadline_before_sending)
{
	uint64_t b = ask(STORE_OP_GET, 1, clock_us() - 1);
	loop();
	one(b, ERR_TIMEOUT, "c", 1);
	ck_assert_uint_eq(n_sent, 0);
}

/* --- storage goes -------------------------------------------------------- */

TEST(test_storage_dies)
{
	uint64_t put = ask_and_send(STORE_OP_PUT, 1, 0), get = ask_and_send(STORE_OP_GET, 2, 0),
			 look = ask_and_send(STORE_OP_LOOKUP, 1, 0);
	store_down(st, &peer, "process ended");
	one(put, ERR_CLOSED, "e", 0);
	one(look, ERR_CLOSED, "", 1);
	/* the get's blocks: only when the process is known to be gone */
	none();
	link_up(EPOCH + 1);
	loop();
	/* the next life says nothing about the last one's writes */
	none();
	fenced(get);
	none();
	attached.gone(attached.arg, EPOCH + 9); /* another one's end */
	none();
	attached.gone(attached.arg, EPOCH);
	one(get, ERR_CLOSED, "ee", 1);
}

TEST(test_gone_first)
{
	uint64_t put = ask_and_send(STORE_OP_PUT, 1, 0), get = ask_and_send(STORE_OP_GET, 1, 0);
	attached.gone(attached.arg, EPOCH);
	one(put, ERR_CLOSED, "e", 1); /* dead: it does not read */
	one(get, ERR_CLOSED, "e", 1);
	store_down(st, &peer, "process ended");
	none();
}

/* --- cancel -------------------------------------------------------------- */

TEST(test_cancel)
{
	uint64_t a = ask_and_send(STORE_OP_GET, 1, 0), b = ask_and_send(STORE_OP_GET, 1, 0);
	store_cancel(st, 0);
	store_cancel(st, b + 5);
	store_cancel(st, a);
	loop();
	none();
	ck_assert_uint_eq(count_sent(MSG_STORE_FENCE, a), 1);
	ck_assert_uint_eq(count_sent(MSG_STORE_FENCE, b), 0);
	fenced(a);
	one(a, ERR_CANCELLED, "c", 1);
	answer(b, "o");
	one(b, 0, "o", 1);
}

/* --- threads ------------------------------------------------------------- */

/* Threads ask and cancel while the loop answers: each batch completes once. */
static atomic_uint asked_n;
static void *ask_many(void *arg)
{
	struct store_item it = {.block = 1};
	for (unsigned i = 0; i < 400; i++) {
		uint64_t b;
		if (store_put(st, &it, 1, 0, NULL, &b) == 0) {
			atomic_fetch_add(&asked_n, 1);
			if (i % 3 == 0)
				store_cancel(st, b);
		} else {
			usleep(50);
		}
	}
	return arg;
}

TEST(test_threads)
{
	pthread_t th[2];
	unsigned got = 0, running = 1;
	memset(items, 0, sizeof items);
	items[0].block = 1;
	atomic_store(&asked_n, 0);
	for (unsigned i = 0; i < 2; i++)
		pthread_create(&th[i], NULL, ask_many, NULL);
	for (uint64_t until = clock_us() + 400000; running;) {
		running = clock_us() < until;
		loop();
		for (unsigned i = 0; i < n_sent; i++)
			if (sent[i].type == MSG_STORE_PUT)
				answer(sent[i].batch, "o");
		n_sent = 0;
		for (struct store_completion *c; (c = take()); got++)
			store_completion_free(&c);
	}
	for (unsigned i = 0; i < 2; i++)
		pthread_join(th[i], NULL);
	loop(); /* what was asked meanwhile is sent */
	store_down(st, &peer, "process ended");
	attached.gone(attached.arg, EPOCH);
	for (struct store_completion *c; (c = take()); got++)
		store_completion_free(&c);
	ck_assert_uint_gt(got, 0);
	ck_assert_uint_eq(got, atomic_load(&asked_n));
}
