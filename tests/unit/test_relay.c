/* test_relay.c - what a worker passes on of its storage's tiers: links and clock are this file's
 * own, so that links are full, storage goes and comes, and routers restart in every order. At
 * the end of each story every router knows what storage has, or nothing where there is none. */
/* run: threads */
#include "daemons/worker/storage/relay.h"
#include "util/mem.h"

#include <check.h>
#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUTERS 3
#define HASHES 24u
#define PIECE 4096u

/* --- the fakes: what relay.c calls of svc and libevent ------------------- */

struct peer {
	char name[16];
	int up, full;      /* full: its link takes nothing */
	unsigned begun;    /* bits of tiers: a list has begun on this link */
	uint32_t knows[3]; /* bits of hashes, by tier */
	unsigned messages, resets;
};

static struct {
	struct relay_stats stats;
	struct peer router[ROUTERS], storage;
	uint32_t has[3];    /* what storage has, by tier */
	uint32_t marked[3]; /* what this worker takes it to have */
	int tells;          /* it was asked in this life of the link */
	struct {
		uint32_t tier, stored, removed;
		int reset;
	} queue[4096]; /* said by storage, not arrived */
	unsigned head, tail;
	int timer, timers; /* pending; how often it was set */
	uint64_t timer_us;
	event_callback_fn timer_fn;
	void *timer_arg;
	struct relay *r;
} W;

static char the_event;

struct event_base *svc_base(struct svc *s)
{
	(void)s;
	return NULL;
}
const char *peer_name(const struct peer *p)
{
	return p->name;
}
struct event *event_new(struct event_base *base, evutil_socket_t fd, short what,
                        event_callback_fn fn, void *arg)
{
	(void)base;
	(void)fd;
	(void)what;
	W.timer_fn = fn;
	W.timer_arg = arg;
	return (struct event *)&the_event;
}
int event_add(struct event *ev, const struct timeval *t)
{
	(void)ev;
	W.timer = 1;
	W.timers++;
	W.timer_us = (uint64_t)t->tv_sec * 1000000u + (uint64_t)t->tv_usec;
	return 0;
}
int event_del(struct event *ev)
{
	(void)ev;
	W.timer = 0;
	return 0;
}
int event_pending(const struct event *ev, short what, struct timeval *t)
{
	(void)ev;
	(void)what;
	(void)t;
	return W.timer;
}
void event_free(struct event *ev)
{
	(void)ev;
	W.timer = 0;
}

static void storage_says(uint32_t tier, int reset, uint32_t stored, uint32_t removed)
{
	ck_assert_uint_lt(W.tail, sizeof W.queue / sizeof *W.queue);
	W.queue[W.tail].tier = tier;
	W.queue[W.tail].reset = reset;
	W.queue[W.tail].stored = stored;
	W.queue[W.tail++].removed = removed;
}

static void storage_lists(void)
{
	W.tells = 1;
	for (uint32_t t = 1; t <= 2; t++) {
		storage_says(t, 1, W.has[t] & 0x555555, 0);
		storage_says(t, 0, W.has[t] & ~0x555555u, 0);
	}
}

static uint32_t bits_of(const uint64_t *hash, size_t n)
{
	uint32_t bits = 0;
	for (size_t i = 0; i < n; i++) {
		ck_assert_uint_lt(hash[i], HASHES);
		bits |= 1u << hash[i];
	}
	return bits;
}

int svc_send(struct svc *s, struct peer *p, enum msg_type type, const struct msg_head *head,
             const void *body)
{
	(void)s;
	(void)head;
	ck_assert_msg(p->up, "sent to %s, whose link is down", p->name);
	if (p->full)
		return ERR_FULL;
	if (p == &W.storage) {
		ck_assert_int_eq(type, MSG_STORE_LIST);
		storage_lists();
		return 0;
	}
	const Pds__KvEvents *m = body;
	ck_assert_int_eq(type, MSG_KV_EVENTS);
	ck_assert(m->tier == 1 || m->tier == 2);
	ck_assert_msg(m->reset || p->begun & 1u << m->tier,
	              "%s hears of tier %u before its list has begun", p->name, m->tier);
	if (m->reset)
		p->knows[m->tier] = 0;
	p->begun |= 1u << m->tier;
	p->knows[m->tier] &= ~bits_of(m->removed, m->n_removed);
	p->knows[m->tier] |= bits_of(m->stored, m->n_stored);
	p->messages++;
	p->resets += m->reset != 0;
	return 0;
}

/* --- the stage ----------------------------------------------------------- */

static void begin(void)
{
	memset(&W, 0, sizeof W);
	for (int i = 0; i < ROUTERS; i++)
		snprintf(W.router[i].name, sizeof W.router[i].name, "router-%d", i);
	strcpy(W.storage.name, "storage");
	W.r = relay_new(NULL, &W.stats);
}

static void end(void)
{
	relay_destroy(&W.r);
	ck_assert_ptr_null(W.r);
}

static void fire(void)
{
	if (!W.timer)
		return;
	W.timer = 0;
	W.timer_fn(-1, EV_TIMEOUT, W.timer_arg);
}

static void say(struct peer *from, uint32_t tier, int reset, uint32_t stored, uint32_t removed)
{
	uint64_t s[HASHES], r[HASHES];
	Pds__KvEvents m = PDS__KV_EVENTS__INIT;
	m.tier = tier;
	m.reset = reset;
	m.stored = s;
	m.removed = r;
	for (uint32_t h = 0; h < HASHES; h++) {
		if (stored >> h & 1)
			s[m.n_stored++] = h;
		if (removed >> h & 1)
			r[m.n_removed++] = h;
	}
	if (from == &W.storage && tier < 3)
		W.marked[tier] = ((reset ? 0 : W.marked[tier]) & ~removed) | stored;
	relay_events(W.r, from, &m);
}

/* n of storage's messages arrive. */
static void arrive(unsigned n)
{
	for (; n && W.head < W.tail; n--, W.head++)
		say(&W.storage, W.queue[W.head].tier, W.queue[W.head].reset, W.queue[W.head].stored,
		    W.queue[W.head].removed);
	if (W.head == W.tail)
		W.head = W.tail = 0;
}

static void storage_up(void)
{
	W.storage.up = 1;
	W.tells = 0;
	relay_storage_up(W.r, &W.storage);
}

static void storage_down(void)
{
	W.storage.up = 0;
	W.head = W.tail = 0;
	relay_storage_down(W.r, &W.storage);
}

static void router_up(int i)
{
	struct peer *p = &W.router[i];
	memset(p->knows, 0, sizeof p->knows);
	p->begun = 0;
	p->up = 1;
	relay_router_up(W.r, p);
}

static void router_down(int i)
{
	W.router[i].up = 0;
	W.router[i].full = 0;
	relay_router_down(W.r, &W.router[i]);
}

static void storage_changes(uint32_t tier, uint32_t stored, uint32_t removed)
{
	W.has[tier] = (W.has[tier] & ~removed) | stored;
	if (W.storage.up && W.tells)
		storage_says(tier, 0, stored, removed & ~stored);
}

static void calm(void)
{
	for (int i = 0; i < 100 && (W.timer || W.head < W.tail); i++) {
		arrive(UINT32_MAX);
		fire();
	}
	ck_assert_msg(!W.timer, "it goes on asking");
}

static void check_routers(int something)
{
	for (int i = 0; i < ROUTERS; i++)
		for (uint32_t t = 1; W.router[i].up && t <= 2; t++)
			ck_assert_msg(W.router[i].knows[t] == (something ? W.has[t] : 0),
			              "router %d, tier %u: knows %x, storage has %x", i, t,
			              W.router[i].knows[t], something ? W.has[t] : 0);
}

static void check_marks(void)
{
	for (uint32_t t = 1; t <= 2; t++)
		ck_assert_msg(W.marked[t] == W.has[t], "tier %u: %x is marked, storage has %x", t,
		              W.marked[t], W.has[t]);
}

/* --- stories ------------------------------------------------------------- */

TEST_CASE("relay", .timeout_s = 120);

/* Whoever comes last: storage, a router, or the role in which it is read. */
TEST_LOOP(lists_begin_when_all_are_there, 0, 3)
{
	begin();
	W.has[1] = 0xff;
	W.has[2] = 0xff00;
	for (int k = 0; k < 3; k++) {
		ck_assert_uint_eq(W.stats.asked, 0);
		int what = (_i + k) % 3;
		if (what == 0)
			storage_up();
		else if (what == 1)
			router_up(0);
		else
			relay_reads(W.r, 1);
		fire();
	}
	ck_assert_uint_eq(W.stats.asked, 1);
	calm();
	check_routers(1);
	ck_assert_uint_eq(W.router[0].messages, 4);
	storage_changes(1, 0xf00, 0xf);
	storage_changes(2, 0xf, 0xf00);
	calm();
	check_routers(1);
	ck_assert_uint_eq(W.stats.asked, 1);
	ck_assert_uint_eq(W.stats.cut, 0);
	end();
}

/* Those that come up together are asked for once; one that comes later has the lists said again
 * to all, in their order. */
TEST(routers_come_and_go)
{
	begin();
	W.has[1] = 0xabc;
	storage_up();
	relay_reads(W.r, 1);
	fire();
	ck_assert_uint_eq(W.stats.asked, 0); /* nobody to tell */
	router_up(0);
	router_up(1);
	calm();
	ck_assert_uint_eq(W.stats.asked, 1);
	check_routers(1);
	router_up(2);
	storage_changes(1, 0, 0xc);
	arrive(1);
	/* a change before the list's beginning is nothing to it */
	ck_assert_uint_eq(W.router[2].messages, 0);
	fire();
	arrive(1);
	ck_assert_uint_eq(W.router[2].resets, 1);
	calm();
	check_routers(1);
	router_down(1);
	storage_changes(2, 1, 0);
	calm();
	check_routers(1);
	router_up(1);
	calm();
	check_routers(1);
	ck_assert_uint_eq(W.stats.asked, 3);
	end();
}

/* Storage's end empties its tiers, also at a router whose link is full just then. */
TEST_LOOP(storage_gone, 0, 2)
{
	begin();
	W.has[1] = W.has[2] = 0xfff;
	relay_reads(W.r, 1);
	storage_up();
	router_up(0);
	router_up(1);
	calm();
	check_routers(1);
	W.router[1].full = _i;
	unsigned resets = W.router[0].resets;
	storage_down();
	ck_assert_uint_eq(W.router[0].knows[1] + W.router[0].knows[2], 0);
	ck_assert_uint_eq(W.router[0].resets, resets + 2);
	if (_i) {
		ck_assert_uint_eq(W.router[1].knows[1], 0xfff);
		fire();
		ck_assert_uint_eq(W.router[1].knows[1], 0xfff);
		W.router[1].full = 0;
		fire();
	}
	check_routers(0);
	ck_assert_int_eq(W.timer, 0);
	ck_assert_uint_eq(W.router[0].resets, resets + 2); /* said once */
	router_up(2);
	calm();
	ck_assert_uint_eq(W.router[2].messages, 0);
	W.has[1] = 7;
	W.has[2] = 0;
	storage_up();
	calm();
	check_routers(1);
	end();
}

/* A link that takes nothing in the middle of a list, or of changes: what was lost comes with the
 * next list, which is asked for ever more seldom. */
TEST_LOOP(full_links, 0, 4)
{
	begin();
	W.has[1] = W.has[2] = 0xffffff;
	relay_reads(W.r, 1);
	storage_up();
	router_up(0);
	router_up(1);
	fire();
	arrive((unsigned)_i);
	W.router[1].full = 1;
	arrive(100);
	ck_assert_uint_eq(W.router[0].knows[1], 0xffffff);
	uint64_t pauses[8];
	for (int k = 0; k < 8; k++) {
		ck_assert_int_eq(W.timer, 1);
		pauses[k] = W.timer_us;
		fire();
		arrive(100);
	}
	ck_assert_uint_eq(pauses[0], 200000);
	ck_assert_uint_eq(pauses[1], 400000);
	ck_assert_uint_eq(pauses[7], 10000000);
	uint64_t cuts = W.stats.cut;
	ck_assert_uint_ge(cuts, 16);
	W.router[1].full = 0;
	storage_changes(1, 0, 0xff);
	calm();
	check_routers(1);
	unsigned asked = (unsigned)W.stats.asked;
	storage_changes(1, 0, 0xff00);
	W.router[0].full = 1;
	arrive(100);
	ck_assert_uint_eq(W.stats.cut, cuts + 1);
	storage_changes(2, 0, 0xff00);
	arrive(100);
	W.router[0].full = 0;
	calm();
	check_routers(1);
	ck_assert_uint_eq(W.stats.asked, asked + 1);
	end();
}

/* A worker that decodes does not read from storage: nobody is told, and what was told is taken
 * back. */
TEST(role_is_switched)
{
	begin();
	W.has[1] = 0xf0f;
	storage_up();
	router_up(0);
	calm();
	ck_assert_uint_eq(W.stats.asked, 0);
	ck_assert_uint_eq(W.router[0].messages, 0);
	relay_reads(W.r, 1);
	calm();
	check_routers(1);
	relay_reads(W.r, 1);
	ck_assert_int_eq(W.timer, 0);
	relay_reads(W.r, 0);
	check_routers(0);
	storage_changes(1, 1, 2);
	calm();
	check_routers(0);
	relay_reads(W.r, 1);
	calm();
	check_routers(1);
	end();
}

/* Who writes goes by what storage has, with routers or without; what it lost while the link was
 * down is known when that is up again. Routers hear nothing of it. */
TEST(heard_for_oneself)
{
	begin();
	W.has[1] = 0xf0f;
	W.has[2] = 0xff0;
	storage_up();
	calm();
	ck_assert_uint_eq(W.stats.asked, 0);
	relay_writes(W.r, 1);
	relay_writes(W.r, 1);
	calm();
	ck_assert_uint_eq(W.stats.asked, 1);
	check_marks();
	storage_changes(2, 1, 0xf0);
	calm();
	check_marks();
	storage_down();
	W.has[1] = 0x3;
	W.has[2] = 0;
	storage_up();
	router_up(0);
	W.router[0].full = 1;
	W.storage.full = 1;
	arrive(UINT32_MAX);
	fire();
	ck_assert_uint_eq(W.stats.asked, 1);
	W.storage.full = 0;
	calm();
	ck_assert_uint_eq(W.stats.asked, 2);
	check_marks();
	ck_assert_uint_eq(W.router[0].messages, 0);
	router_up(1);
	calm();
	ck_assert_uint_eq(W.stats.asked, 2);
	relay_writes(W.r, 0);
	storage_down();
	storage_up();
	calm();
	ck_assert_uint_eq(W.stats.asked, 2);
	end();
}

/* What is none of storage's tiers, comes from somebody else, or is longer than a piece: dropped,
 * counted, and the next one counts. */
TEST(hostile_events)
{
	static uint64_t many[PIECE + 1];
	static const uint32_t tiers[] = {0, 3, 4, 31, 32, 33, 63, UINT32_MAX};
	struct peer other = {.name = "decode-1", .up = 1};
	begin();
	say(&W.storage, 1, 1, 1, 0); /* before its link is up here */
	ck_assert_uint_eq(W.stats.bad, 1);
	W.has[1] = 0xff;
	relay_reads(W.r, 1);
	storage_up();
	router_up(0);
	calm();
	unsigned had = W.router[0].messages;
	for (unsigned i = 0; i < sizeof tiers / sizeof *tiers; i++)
		say(&W.storage, tiers[i], 1, 0xf, 0);
	say(&other, 1, 1, 0, 0);
	Pds__KvEvents m = PDS__KV_EVENTS__INIT;
	m.tier = 1;
	m.stored = m.removed = many;
	m.n_stored = PIECE + 1;
	relay_events(W.r, &W.storage, &m);
	m.n_stored = 0;
	m.n_removed = PIECE + 1;
	relay_events(W.r, &W.storage, &m);
	ck_assert_uint_eq(W.stats.bad, 1 + sizeof tiers / sizeof *tiers + 3);
	ck_assert_uint_eq(W.router[0].messages, had);
	m.n_removed = PIECE;
	relay_events(W.r, &W.storage, &m);
	ck_assert_uint_eq(W.router[0].messages, had + 1);
	relay_storage_down(W.r, &other); /* another peer's end is nothing */
	ck_assert_uint_eq(W.router[0].knows[1], 0xfe);
	relay_events(NULL, &W.storage, &m);
	relay_router_up(NULL, &other);
	relay_router_down(NULL, &other);
	relay_storage_up(NULL, &other);
	relay_storage_down(NULL, &other);
	relay_reads(NULL, 1);
	end();
}

/* Everything in every order. */
TEST_LOOP(walks, 0, 4)
{
	uint64_t cuts = 0, asked = 0, told = 0;
	for (unsigned round = 0; round < 400; round++) {
		unsigned seed = round * 4 + (unsigned)_i;
		int reads = 0, writes = 0;
		begin();
		for (int step = 0; step < 400; step++) {
			unsigned what = (unsigned)rand_r(&seed) % 41, i = (unsigned)rand_r(&seed) % ROUTERS;
			uint32_t bits = (uint32_t)rand_r(&seed) % (1u << HASHES), tier = 1 + i % 2;
			if (what < 12)
				arrive(1 + i);
			else if (what < 18)
				fire();
			else if (what < 26)
				storage_changes(tier, bits & 0xf0f0f, bits & 0xf0f0f0);
			else if (what < 29)
				W.router[i].up ? router_down((int)i) : router_up((int)i);
			else if (what < 33)
				W.router[i].full = W.router[i].up && what == 29;
			else if (what < 35)
				W.storage.full = what == 33;
			else if (what < 36)
				relay_reads(W.r, reads = !reads || i);
			else if (what < 37)
				W.storage.up ? storage_down() : storage_up();
			else if (what < 38 && W.storage.up && W.tells)
				storage_lists(); /* it has lost count itself */
			else if (what == 40)
				relay_writes(W.r, writes = !writes);
		}
		for (int i = 0; i < ROUTERS; i++)
			W.router[i].full = 0;
		W.storage.full = 0;
		calm();
		check_routers(W.storage.up && reads);
		if (W.storage.up && writes)
			check_marks();
		cuts += W.stats.cut;
		asked += W.stats.asked;
		told += W.stats.hashes;
		end();
	}
	ck_assert_uint_gt(cuts, 500);
	ck_assert_uint_gt(asked, 1000);
	ck_assert_uint_gt(told, 10000);
}

TEST_START(quiet)
{
	log_init("test", NULL);
	log_set_level("error");
}
