/* test_decode_follow.c - worker/links/events.c by itself, between a real pool and links that are
 * played here: full for a while, gone, new. However they behave, each router knows the index
 * once its link takes messages again. */
#include "daemons/worker/links/events.h"
#include "util/mem.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define IDS 300u
#define BLOCKS 64u
#define ROUTERS 2

/* --- what the worker stands on, played ----------------------------------- */

struct peer {
	const char *name;
	int full; /* so many messages more are not taken; -1: none is */
	unsigned char heard[IDS];
	unsigned messages, resets, refused;
};

static struct peer router[ROUTERS];
static struct event_base *base;
static struct events_stats stats;
static struct kv_pool *pool;
static struct events *ev;
static _Atomic uint64_t gens[BLOCKS];
static void (*posted)(struct svc *s, void *arg);
static void *posted_arg;

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

void svc_post(struct svc *s, void (*fn)(struct svc *s, void *arg), void *arg)
{
	(void)s;
	posted = fn;
	posted_arg = arg;
}

const char *peer_name(const struct peer *p)
{
	return p->name;
}

int chan_send(struct chan *c, struct peer *p, enum msg_type type, const struct msg_head *head,
              const ProtobufCMessage *body)
{
	const Pds__KvEvents *m = (const Pds__KvEvents *)body;
	(void)c;
	(void)head;
	ck_assert_int_eq(type, MSG_KV_EVENTS);
	if (p->full) {
		p->full -= p->full > 0;
		p->refused++;
		return ERR_FULL;
	}
	p->messages++;
	p->resets += m->reset;
	ck_assert(p->resets > 0); /* a list comes before any change */
	ck_assert_uint_le(m->n_stored + m->n_removed, 4096);
	ck_assert(m->reset || m->n_stored + m->n_removed > 0);
	if (m->reset)
		memset(p->heard, 0, sizeof p->heard);
	for (size_t i = 0; i < m->n_removed; i++)
		p->heard[m->removed[i]] = 0;
	for (size_t i = 0; i < m->n_stored; i++)
		p->heard[m->stored[i]] = 1;
	return 0;
}

/* --- the pool ------------------------------------------------------------ */

static struct kv_hash H(uint64_t id) {
	struct kv_hash h = {{0}};
	memcpy(h.b, &id, sizeof id);
	return h;
}

static void
put(uint32_t id)
{
	static const struct reqid A = {1, 1};
	struct kv_hash h = H(id);
	uint32_t b;
	ck_assert_int_eq(kv_pool_take(pool, 1, KV_HELD, &A, &b), 0);
	kv_pool_publish(pool, b, &h, NULL);
	kv_pool_release(pool, &b, 1);
}

static void work(unsigned changes)
{
	while (changes--)
		put((uint32_t)rand() % IDS);
	if (rand() % 50 == 0)
		kv_pool_flush(pool);
}

static void run(void)
{
	if (posted)
		posted(NULL, posted_arg);
	posted = NULL;
	event_base_loop(base, EVLOOP_NONBLOCK);
}

static int knows(const struct peer *p)
{
	for (uint32_t id = 0; id < IDS; id++) {
		struct kv_hash h = H(id);
		if (p->heard[id] != kv_pool_probe(pool, &h, 1))
			return 0;
	}
	return p->resets > 0;
}

/* Until it knows; the clock is that of event_base, with an interval of 200 us. */
static void expect_knows(const struct peer *p)
{
	for (int i = 0; i < 150000 && !knows(p); i++) {
		run();
		usleep(200);
	}
	ck_assert_msg(knows(p), "%s does not know the index after %u messages, %u lists, %u refused",
	              p->name, p->messages, p->resets, p->refused);
}

static void begin(void)
{
	memset(router, 0, sizeof router);
	memset(&stats, 0, sizeof stats);
	router[0].name = "router";
	router[1].name = "router-2";
	base = event_base_new();
	pool = kv_pool_new(BLOCKS, 16, gens);
	ev = events_new(NULL, pool, 200, &stats);
	ck_assert_ptr_nonnull(ev);
	srand(5);
}

static void end(void)
{
	events_destroy(&ev);
	kv_pool_destroy(&pool);
	event_base_free(base);
}

TEST_CASE("events", .timeout_s = 60);

TEST(link_is_full_for_a_while)
{
	struct peer *p = &router[0];
	begin();
	work(30);
	p->full = 3; /* even the first list is not taken at once */
	events_up(ev, p);
	expect_knows(p);
	for (int round = 0; round < 60; round++) {
		p->full = rand() % 4;
		work((unsigned)rand() % 40);
		if (rand() % 2)
			run();
		expect_knows(p);
	}
	ck_assert_uint_eq(p->resets, 1); /* nothing was lost meanwhile */
	ck_assert_uint_gt(p->refused, 10);
	ck_assert_uint_eq(stats.overflows, 0);
	end();
}

/* More changes than are kept: one list more, and the other router is not concerned. */
TEST(link_is_full_for_long)
{
	begin();
	events_up(ev, &router[0]);
	events_up(ev, &router[1]);
	expect_knows(&router[0]);
	expect_knows(&router[1]);
	router[0].full = -1;
	for (int i = 0; i < 60; i++) {
		work(40); /* the record keeps 1024 */
		for (int k = 0; k < 3; k++) {
			usleep(200);
			run();
		}
		expect_knows(&router[1]);
	}
	unsigned refused = router[0].refused;
	ck_assert_uint_gt(refused, 3);
	ck_assert_uint_lt(refused, 60); /* it is tried more and more rarely */
	ck_assert_uint_eq(router[0].resets, 1);
	router[0].full = 0;
	expect_knows(&router[0]);
	ck_assert_uint_eq(router[0].resets, 2);
	ck_assert_uint_eq(router[1].resets, 1);
	ck_assert_uint_ge(stats.overflows, 1);
	end();
}

TEST(routers_come_and_go)
{
	int up[ROUTERS] = {0};
	begin();
	for (int round = 0; round < 400; round++) {
		int i = rand() % ROUTERS;
		work((unsigned)rand() % 20);
		if (rand() % 5 == 0) {
			if (up[i]) {
				events_down(ev, &router[i]);
			} else {
				router[i].resets = 0;
				events_up(ev, &router[i]);
			}
			up[i] = !up[i];
		}
		run();
		if (round % 20 == 0)
			for (i = 0; i < ROUTERS; i++)
				if (up[i])
					expect_knows(&router[i]);
	}
	end();
}

/* Nobody listens, nothing ticks; nothing changes, nothing is sent. */
TEST(quiet_when_there_is_nothing_to_say)
{
	begin();
	work(50);
	run();
	ck_assert_int_eq(event_base_get_num_events(base, EVENT_BASE_COUNT_ADDED), 0);
	events_up(ev, &router[0]);
	expect_knows(&router[0]);
	for (int i = 0; i < 20; i++) {
		usleep(300);
		run();
	}
	ck_assert_int_eq(event_base_get_num_events(base, EVENT_BASE_COUNT_ADDED), 0);
	unsigned messages = router[0].messages;
	put(1000 % IDS);
	put(1000 % IDS);
	expect_knows(&router[0]);
	ck_assert_uint_le(router[0].messages, messages + 1);
	ck_assert_ptr_null(events_new(NULL, pool, 0, &stats));
	events_up(NULL, &router[0]);
	events_down(NULL, &router[0]);
	end();
}

TEST_START(quiet)
{
	log_set_level("error");
}
