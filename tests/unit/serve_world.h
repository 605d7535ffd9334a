/* serve_world.h - what the tests of the storage daemon's side of the conversation share: real
 * hand-over, copy threads and memory tier; the links are this file's own, so that every order of
 * messages can be played. A gate in front of the tier holds copies where a test wants them. */
#ifndef TESTS_SERVE_WORLD_H
#define TESTS_SERVE_WORLD_H

#include "daemons/storage/memory.h"
#include "daemons/storage/storage.h"

#include "kv/hash.h"
#include "pool_memory.h"
#include "util/clock.h"
#include "util/mem.h"
#include "util/sock.h"
#include "tempdir.h"

#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- the fakes: what the daemon's parts call of svc and chan ------------- */

struct peer {
	char name[HANDOVER_NAME_MAX];
	uint64_t epoch;
	int up;
};

#define PEERS 3
static struct peer peers[PEERS];
static struct event_base *base;
static struct storage st;
static char dir[TEST_FOLDER_BYTES];
static int draining;

static struct {
	void (*fn)(struct svc *, void *);
	void *arg;
} posts[8192];
static unsigned n_posts;
static pthread_mutex_t post_lock = PTHREAD_MUTEX_INITIALIZER;

/* Answers as they were sent, packed and unpacked again. */
static struct said {
	struct peer *to;
	enum msg_type type;
	ProtobufCMessage *body;
} said[8192];
static unsigned n_said;

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
const char *svc_name(const struct svc *s)
{
	(void)s;
	return "storage";
}
uint64_t svc_epoch(const struct svc *s)
{
	(void)s;
	return 1;
}
const char *svc_remote(const struct svc *s)
{
	(void)s;
	return "";
}
void *svc_data(const struct svc *s)
{
	(void)s;
	return &st;
}
int svc_draining(const struct svc *s)
{
	(void)s;
	return draining;
}
void svc_sock_path(const struct svc *s, const char *name, char *out, size_t size)
{
	(void)s;
	snprintf(out, size, "%s/%s.sock", dir, name);
}
void svc_post(struct svc *s, void (*fn)(struct svc *, void *), void *arg)
{
	(void)s;
	pthread_mutex_lock(&post_lock);
	ck_assert_uint_lt(n_posts, 8192);
	posts[n_posts].fn = fn;
	posts[n_posts++].arg = arg;
	pthread_mutex_unlock(&post_lock);
}
struct peer *chan_find(struct chan *c, const char *name, int tag)
{
	(void)c;
	(void)tag;
	for (unsigned i = 0; i < PEERS; i++)
		if (peers[i].up && strcmp(peers[i].name, name) == 0)
			return &peers[i];
	return NULL;
}
const char *peer_name(const struct peer *p)
{
	return p->name;
}
uint64_t peer_epoch(const struct peer *p)
{
	return p->epoch;
}
struct peer *chan_next(struct chan *c, struct peer *after)
{
	(void)c;
	return !after ? peers : after < peers + PEERS - 1 ? after + 1 : NULL;
}
int peer_is_up(const struct peer *p)
{
	return p->up;
}
int peer_tag(const struct peer *p)
{
	(void)p;
	return 0;
}
/* All of them are this process. */
const struct process_origin *peer_origin(const struct peer *p)
{
	static struct process_origin self;
	(void)p;
	self = (struct process_origin){
		.is_local = 1, .uid = geteuid(), .gid = getegid(), .pid = (uint32_t)getpid()};
	return &self;
}
int svc_send(struct svc *s, struct peer *p, enum msg_type type, const struct msg_head *head,
             const void *body)
{
	(void)s;
	(void)head;
	const ProtobufCMessage *m = body;
	size_t n = protobuf_c_message_get_packed_size(m);
	unsigned char *b = mem_alloc(n + 1);
	protobuf_c_message_pack(m, b);
	ck_assert_uint_lt(n_said, 8192);
	said[n_said++] = (struct said){p, type, protobuf_c_message_unpack(m->descriptor, NULL, n, b)};
	ck_assert_ptr_nonnull(said[n_said - 1].body);
	free(b);
	return 0;
}

/* --- the gate ------------------------------------------------------------ */

static struct gate {
	struct tier tier, *inner;
	/* copies wait behind their last byte, before the tier hears of it */
	atomic_int closed;
	atomic_int inside;
	/* this generation changes when the tier is asked, that is after the check before the copy */
	_Atomic uint64_t *bump;
} gate;

struct gate_op {
	struct tier_op op; /* what the tier sees; first */
	struct tier_op *outer;
};

static inline int gate_move(struct tier_op *op, const struct tier_span *span, unsigned n)
{
	int r = tier_op_move(((struct gate_op *)op)->outer, span, n);
	op->sum = ((struct gate_op *)op)->outer->sum;
	atomic_fetch_add(&gate.inside, 1);
	while (atomic_load(&gate.closed))
		usleep(200);
	atomic_fetch_sub(&gate.inside, 1);
	return r;
}

static inline void gate_done(struct tier_op *op, int code, enum tier_id tier, const char *text)
{
	struct tier_op *outer = ((struct gate_op *)op)->outer;
	free(op);
	outer->done(outer, code, tier, text);
}

static inline struct tier_op *gate_pass(struct tier_op *op)
{
	if (gate.bump)
		atomic_fetch_add(gate.bump, 1);
	if (!atomic_load(&gate.closed))
		return op;
	struct gate_op *g = mem_zalloc(sizeof *g);
	g->op = (struct tier_op){
		.key = op->key, .bytes = op->bytes, .move = gate_move, .done = gate_done};
	g->outer = op;
	return &g->op;
}
static inline void gate_put(struct tier *t, struct tier_op *op)
{
	(void)t;
	gate.inner->ops->put(gate.inner, gate_pass(op));
}
static inline void gate_get(struct tier *t, struct tier_op *op)
{
	(void)t;
	gate.inner->ops->get(gate.inner, gate_pass(op));
}
static inline void gate_lookup(struct tier *t, struct tier_find *f)
{
	(void)t;
	gate.inner->ops->lookup(gate.inner, f);
}
static const struct tier_ops gate_ops = {.put = gate_put, .get = gate_get, .lookup = gate_lookup};

/* --- a worker ------------------------------------------------------------ */

#define BLOCKS 8u
static struct kv_layout layout;
static struct pool_memory shared; /* worker-0's */
static int sock;

static inline void loop(void)
{
	event_base_loop(base, EVLOOP_NONBLOCK);
	for (;;) {
		pthread_mutex_lock(&post_lock);
		if (!n_posts) {
			pthread_mutex_unlock(&post_lock);
			return;
		}
		void (*fn)(struct svc *, void *) = posts[0].fn;
		void *arg = posts[0].arg;
		memmove(&posts[0], &posts[1], --n_posts * sizeof posts[0]);
		pthread_mutex_unlock(&post_lock);
		fn(NULL, arg);
	}
}

/* Runs the loop until so many answers were given, at most half a minute. */
static inline void loop_until_said(unsigned n)
{
	for (uint64_t until = clock_us() + 30000000; n_said < n && clock_us() < until; usleep(100))
		loop();
	loop();
}

static inline void forget_said(void)
{
	for (unsigned i = 0; i < n_said; i++)
		protobuf_c_message_free_unpacked(said[i].body, NULL);
	n_said = 0;
}

static inline unsigned char pattern(uint32_t name, uint32_t layer, size_t at)
{
	return (unsigned char)(name * 37u + layer * 11u + at * 3u + (at >> 8));
}

static inline unsigned char *piece(uint32_t block, uint32_t layer)
{
	return shared.data + kv_piece_offset(&layout, BLOCKS, layer, block);
}

static inline void block_fill(uint32_t block, uint32_t name)
{
	for (uint32_t l = 0; l < layout.layers; l++)
		for (size_t i = 0; i < layout.piece_bytes[l]; i++)
			piece(block, l)[i] = pattern(name, l, i);
}

static inline int block_holds(uint32_t block, uint32_t name)
{
	for (uint32_t l = 0; l < layout.layers; l++)
		for (size_t i = 0; i < layout.piece_bytes[l]; i++)
			if (piece(block, l)[i] != pattern(name, l, i))
				return 0;
	return 1;
}

static inline int block_zero(uint32_t block)
{
	for (uint32_t l = 0; l < layout.layers; l++)
		for (size_t i = 0; i < layout.piece_bytes[l]; i++)
			if (piece(block, l)[i])
				return 0;
	return 1;
}

static inline void block_clear(uint32_t block)
{
	for (uint32_t l = 0; l < layout.layers; l++)
		memset(piece(block, l), 0, layout.piece_bytes[l]);
}

static struct handover_reply reply; /* the latest */

/* Hands p over as `name`, as memory of that backend; the socket, or -1 with the reply's code in
 * *ret_code. */
static inline int hand_over_of(const char *backend, const char *name, uint64_t epoch,
                               const struct kv_layout *l, const struct pool_memory *p,
                               int *ret_code)
{
	char path[128];
	struct handover_hello h;
	struct err err = {0};
	int bell = -1;
	svc_sock_path(NULL, "storage", path, sizeof path);
	int s = sock_connect(path, &err);
	ck_assert_int_ge(s, 0);
	handover_hello_init(&h, name, epoch, l, p->region.blocks, backend);
	struct peer *link = chan_find(NULL, name, 0), was = *link;
	link->epoch = epoch;
	ck_assert_int_eq(pool_memory_offer(p, s, &h, -1, &err), 0);
	for (int i = 0; i < 20; i++)
		loop();
	ck_assert_int_eq(handover_result(s, &reply, &bell, &err), 0);
	*ret_code = reply.code;
	if (reply.code == 0)
		return s;
	*link = was;
	close(s);
	return -1;
}

static inline int hand_over(const char *name, uint64_t epoch, const struct kv_layout *l,
                            const struct pool_memory *p, int *ret_code)
{
	return hand_over_of("cpu", name, epoch, l, p, ret_code);
}

static inline void start_with(uint64_t capacity, unsigned threads)
{
	struct err err = {0};
	test_folder(dir, "storage");
	base = event_base_new();
	memset(&st, 0, sizeof st);
	st.conf.workers_max = 4; /* half of them by one process */
	list_init(&st.findings);
	ck_assert_int_eq(tier_memory_new(capacity, &gate.inner, &err), 0);
	gate.tier.ops = &gate_ops;
	gate.bump = NULL;
	atomic_store(&gate.closed, 0);
	st.tier = &gate.tier;
	st.copier = copier_new(st.tier, threads, serve_finished, &st);
	ck_assert_int_eq(clients_start(&st, &err), 0);
	for (unsigned i = 0; i < PEERS; i++) {
		snprintf(peers[i].name, sizeof peers[i].name, "worker-%u", i);
		peers[i].epoch = 100 + i;
		peers[i].up = 1;
	}
	ck_assert_int_eq(kv_layout_uniform(&layout, 3, 2, 16, 16, KV_F32), 0);
	layout.layer[1].heads = 3; /* layers that differ */
	ck_assert_int_eq(kv_layout_finish(&layout), 0);
	ck_assert_int_eq(pool_memory_new(&shared, &layout, BLOCKS, &err), 0);
}

static inline void set_up(void)
{
	int code;
	start_with(64 << 20, 2);
	sock = hand_over("worker-0", 100, &layout, &shared, &code);
	ck_assert_int_ge(sock, 0);
}

/* With one copy thread. */
static inline void set_up_one(void)
{
	int code;
	start_with(64 << 20, 1);
	sock = hand_over("worker-0", 100, &layout, &shared, &code);
	ck_assert_int_ge(sock, 0);
}

static inline void tear_down(void)
{
	char path[128];
	atomic_store(&gate.closed, 0);
	list_each(it, &st.clients)
		serve_cancel(list_entry(it, struct storage_client, link));
	copier_destroy(&st.copier);
	loop();
	serve_forget(&st);
	clients_stop(&st);
	gate.inner->ops->destroy(gate.inner);
	if (sock >= 0)
		close(sock);
	pool_memory_fini(&shared);
	forget_said();
	event_base_free(base);
	svc_sock_path(NULL, "storage", path, sizeof path);
	unlink(path);
	strcat(path, ".lock");
	unlink(path);
	rmdir(dir);
}

static inline struct kv_hash hash_of(uint32_t name)
{
	struct kv_hash h = {{0}};
	memcpy(h.b, &name, sizeof name);
	return h;
}

#define ASK_MAX 64u /* items */

/* One message of n items: names[i] into or out of block blocks[i], under its present generation. */
static inline void ask(struct peer *p, enum msg_type type, uint64_t batch, const uint32_t *names,
                       const uint32_t *blocks, size_t n)
{
	struct kv_hash hash[ASK_MAX];
	Pds__StoreItem item[ASK_MAX], *list[ASK_MAX];
	ck_assert_uint_le(n, ASK_MAX);
	for (size_t i = 0; i < n; i++) {
		hash[i] = hash_of(names[i]);
		pds__store_item__init(&item[i]);
		item[i].hash = (ProtobufCBinaryData){.len = 32, .data = hash[i].b};
		item[i].block = blocks[i];
		item[i].generation = blocks[i] < BLOCKS ? atomic_load(&shared.region.generations[blocks[i]])
		                                        : 0;
		list[i] = &item[i];
	}
	Pds__StorePut put = PDS__STORE_PUT__INIT;
	Pds__StoreGet get = PDS__STORE_GET__INIT;
	put.batch = get.batch = batch;
	put.items = get.items = list;
	put.n_items = get.n_items = n;
	if (type == MSG_STORE_PUT)
		serve_put(NULL, p, NULL, &put.base);
	else
		serve_get(NULL, p, NULL, &get.base);
}

static inline void fence(struct peer *p, uint64_t batch)
{
	Pds__StoreFence m = PDS__STORE_FENCE__INIT;
	m.batch = batch;
	serve_fence(NULL, p, NULL, &m.base);
}

static inline uint32_t lookup(struct peer *p, const uint32_t *names, size_t n)
{
	struct kv_hash hash[16];
	ProtobufCBinaryData list[16];
	Pds__StoreLookup m = PDS__STORE_LOOKUP__INIT;
	for (size_t i = 0; i < n; i++) {
		hash[i] = hash_of(names[i]);
		list[i] = (ProtobufCBinaryData){.len = 32, .data = hash[i].b};
	}
	m.batch = 9999;
	m.hashes = list;
	m.n_hashes = n;
	forget_said();
	serve_lookup(NULL, p, NULL, &m.base);
	loop_until_said(1);
	ck_assert_uint_eq(n_said, 1);
	ck_assert_int_eq(said[0].type, MSG_STORE_FOUND);
	ck_assert_ptr_eq(said[0].to, p);
	ck_assert_uint_eq(((Pds__StoreFound *)said[0].body)->batch, m.batch);
	return ((Pds__StoreFound *)said[0].body)->leading;
}

/* Letters of the results of answer i, which must be DONE of this batch. */
static inline const char *codes_of(unsigned i, uint64_t batch)
{
	static char text[64];
	static const char letter[] = "omvfec";
	ck_assert_uint_gt(n_said, i);
	ck_assert_int_eq(said[i].type, MSG_STORE_DONE);
	const Pds__StoreDone *d = (const Pds__StoreDone *)said[i].body;
	ck_assert_uint_eq(d->batch, batch);
	ck_assert_uint_lt(d->n_results, sizeof text);
	for (size_t k = 0; k < d->n_results; k++) {
		text[k] = letter[d->results[k]->code];
		ck_assert_str_eq(d->results[k]->tier, text[k] == 'o' ? "memory" : "");
		ck_assert_int_eq(d->results[k]->text[0] != 0, text[k] != 'o' && text[k] != 'm');
	}
	text[d->n_results] = 0;
	return text;
}

/* Asks and waits for the one answer. */
static inline const char *ask_wait(struct peer *p, enum msg_type type, uint64_t batch,
                                   const uint32_t *names, const uint32_t *blocks, size_t n)
{
	forget_said();
	ask(p, type, batch, names, blocks, n);
	loop_until_said(1);
	ck_assert_uint_eq(n_said, 1);
	return codes_of(0, batch);
}

#define W (&peers[0])

static inline void wait_inside(int n)
{
	for (int i = 0; i < 150000 && atomic_load(&gate.inside) != n; i++)
		usleep(200);
	ck_assert_int_eq(atomic_load(&gate.inside), n);
}

static inline unsigned n_clients(void)
{
	unsigned n = 0;
	list_each(it, &st.clients)
		n++;
	return n;
}

#endif
