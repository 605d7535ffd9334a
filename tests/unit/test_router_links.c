/* test_router_links.c - whom the router tells of the other workers, and how often (links.c). The
 * links and the timer are this file's own: a list is due when the test says that its time has
 * come. */
#include "tests/unit/registry_defaults.h"
#include "daemons/router/router.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

#define WORKERS 64u

/* --- what links.c calls of svc and chan ---------------------------------- */

struct peer {
	char name[8];
	uint64_t epoch;
	Pds__WorkerInfo info;
	struct worker_record *data;
	unsigned lists;    /* PEERS that it was sent */
	uint64_t names[2]; /* bits of the workers that the last one has */
	unsigned wrong;    /* entries of another life */
	const char *role;  /* the role in its last entry */
};

static struct {
	struct router r;
	struct peer peers[2 * WORKERS];
	void (*due)(struct svc *s, void *arg); /* of the timer; NULL: none runs */
	void *arg;
	uint64_t wait_us;
	unsigned timers;
} T;

static char the_timer;

void *svc_data(const struct svc *s)
{
	(void)s;
	return &T.r;
}
struct svc_timer *svc_timer_add(struct svc *s, uint64_t interval_us,
                                void (*fn)(struct svc *s, void *arg), void *arg)
{
	(void)s;
	ck_assert(!T.due);
	T.due = fn;
	T.arg = arg;
	T.wait_us = interval_us;
	T.timers++;
	return (struct svc_timer *)&the_timer;
}
void svc_timer_del(struct svc_timer **t)
{
	T.due = NULL;
	*t = NULL;
}
int svc_send(struct svc *s, struct peer *p, enum msg_type type, const struct msg_head *head,
             const void *body)
{
	const Pds__Peers *m = body;
	(void)s, (void)head;
	ck_assert_int_eq(type, MSG_PEERS);
	p->lists++;
	memset(p->names, 0, sizeof p->names);
	for (size_t i = 0; i < m->n_peers; i++) {
		unsigned k = (unsigned)strtoul(m->peers[i]->name + 1, NULL, 10);
		ck_assert_uint_eq(p->names[k / 64] >> k % 64 & 1, 0);
		p->names[k / 64] |= UINT64_C(1) << k % 64;
		p->wrong += m->peers[i]->epoch != T.peers[k].epoch;
		p->role = m->peers[i]->role;
	}
	return 0;
}
void svc_refuse(struct svc *s, const struct peer *p, enum msg_type type, const char *why)
{
	(void)s, (void)p, (void)type;
	ck_abort_msg("refused: %s", why);
}
const char *peer_name(const struct peer *p)
{
	return p->name;
}
uint64_t peer_epoch(const struct peer *p)
{
	return p->epoch;
}
const Pds__WorkerInfo *peer_worker(const struct peer *p)
{
	return &p->info;
}
void *peer_data(const struct peer *p)
{
	return p->data;
}
void peer_set_data(struct peer *p, void *data)
{
	p->data = data;
}
int peer_said_goodbye(const struct peer *p)
{
	(void)p;
	return 1;
}
int peer_link_restarts(const struct peer *p)
{
	(void)p;
	return 0;
}

/* --- steps --------------------------------------------------------------- */

static void setup(void)
{
	struct attempts_opts o = {.max_attempts = 1, .send = links_send};
	static struct model model;
	memset(&T, 0, sizeof T);
	T.r.model = &model;
	registry_defaults(&T.r.registry, 1000000);
	attempts_init(&T.r.attempts, &T.r.registry, &o);
}

static void teardown(void)
{
	attempts_fini(&T.r.attempts);
	registry_fini(&T.r.registry);
}

static void comes(unsigned k)
{
	struct peer *p = &T.peers[k];
	snprintf(p->name, sizeof p->name, "w%u", k);
	pds__worker_info__init(&p->info);
	p->info.role = k % 2 ? "decode" : "prefill";
	p->info.model_fingerprint = "f";
	p->info.site = "s";
	p->epoch++;
	links_up(NULL, p);
}

static void goes(unsigned k)
{
	links_down(NULL, &T.peers[k], "it has said goodbye");
}

static unsigned lists_sent(void)
{
	unsigned n = 0;
	for (size_t i = 0; i < sizeof T.peers / sizeof *T.peers; i++)
		n += T.peers[i].lists;
	return n;
}

/* The time of the list that is due comes; `up`: so many workers then. */
static void time_comes(unsigned up)
{
	ck_assert_uint_ge(T.wait_us, 1000);
	ck_assert_uint_le(T.wait_us, 1000u * (up + 1)); /* not more than it takes all to come */
	ck_assert(T.due != NULL);
	T.due(NULL, T.arg);
	ck_assert(!T.due); /* one list, and then it knows of no change */
}

/* Workers [0, n) that are not `gone` know of all the others that are not, in their last life. */
static void all_know(unsigned n, unsigned gone)
{
	for (unsigned i = 0; i < n; i++) {
		const struct peer *p = &T.peers[i];
		if (i == gone)
			continue;
		ck_assert_uint_eq(p->wrong, 0);
		for (unsigned k = 0; k < 2 * WORKERS; k++)
			ck_assert_msg((p->names[k / 64] >> k % 64 & 1) == (k < n && k != i && k != gone),
			              "worker %u of %u, %u is gone: worker %u", i, n, gone, k);
	}
}
#define NONE_GONE UINT32_MAX

/* --- tests --------------------------------------------------------------- */

TEST_CASE("peers", .setup = setup, .teardown = teardown);

TEST(all_at_once)
{
	for (unsigned i = 0; i < WORKERS; i++)
		comes(i);
	ck_assert_uint_eq(T.timers, 1);
	ck_assert_uint_eq(lists_sent(), 0);
	time_comes(WORKERS);
	all_know(WORKERS, NONE_GONE);
	ck_assert_uint_eq(lists_sent(), WORKERS); /* not WORKERS * WORKERS */
	/* later, and alone */
	comes(WORKERS);
	time_comes(WORKERS + 1);
	all_know(WORKERS + 1, NONE_GONE);
	ck_assert_uint_eq(lists_sent(), 2 * WORKERS + 1);
	ck_assert_uint_eq(T.timers, 2);
}

/* In the time that one list takes to become due others come: what waits is not put off by that. */
TEST(one_after_the_other)
{
	for (unsigned i = 0; i < WORKERS; i++) {
		comes(i);
		ck_assert(T.due != NULL);
		if (i % 16 == 15)
			time_comes(i + 1);
	}
	all_know(WORKERS, NONE_GONE);
	ck_assert_uint_eq(lists_sent(), 16 + 32 + 48 + 64);
}

TEST(one_goes)
{
	for (unsigned i = 0; i < WORKERS; i++)
		comes(i);
	time_comes(WORKERS);
	goes(5);
	time_comes(WORKERS);
	all_know(WORKERS, 5);
	ck_assert_uint_eq(T.peers[5].lists, 1);
	ck_assert_uint_eq(lists_sent(), 2 * WORKERS - 1);
	/* it is back within the time of a list that is due for another change */
	goes(6);
	comes(6);
	comes(5);
	time_comes(WORKERS);
	all_know(WORKERS, NONE_GONE);
	ck_assert_uint_eq(lists_sent(), 3 * WORKERS - 1);
}

/* The last one goes before its list is due: there is nobody to tell. */
TEST(nobody_is_left)
{
	comes(0);
	goes(0);
	time_comes(1);
	ck_assert_uint_eq(lists_sent(), 0);
	comes(1);
	time_comes(1);
	ck_assert_uint_eq(T.peers[1].lists, 1); /* an empty list */
	ck_assert_uint_eq(T.peers[1].names[0], 0);
}

static const struct svc_msg *handler_of(enum msg_type type)
{
	const struct svc_msg *m = links_messages;
	while (m->type != type)
		m++;
	return m;
}

static uint64_t preemptions_after(unsigned worker, uint64_t told)
{
	Pds__Heartbeat b = PDS__HEARTBEAT__INIT;
	struct msg_head head = {0};
	b.preemptions = told;
	handler_of(MSG_HEARTBEAT)->fn(NULL, &T.peers[worker], &head, &b.base);
	return T.r.stats.preemptions;
}

/* What workers have preempted since their links came up; a worker that restarts, or whose
 * link does, is not counted twice. */
TEST(preemptions_are_added_up)
{
	comes(0);
	comes(1);
	ck_assert_uint_eq(preemptions_after(0, 500), 0); /* of before */
	ck_assert_uint_eq(preemptions_after(0, 503), 3);
	ck_assert_uint_eq(preemptions_after(1, 0), 3);
	ck_assert_uint_eq(preemptions_after(1, 4), 7);
	ck_assert_uint_eq(preemptions_after(0, 503), 7);
	goes(0);
	comes(0);
	ck_assert_uint_eq(preemptions_after(0, 2), 7);
	ck_assert_uint_eq(preemptions_after(0, 1), 7); /* nonsense */
	ck_assert_uint_eq(preemptions_after(0, 3), 9);
}

TEST(a_role_is_switched)
{
	Pds__WorkerUpdate m = PDS__WORKER_UPDATE__INIT;
	struct msg_head head = {0};
	comes(0);
	comes(1);
	time_comes(2);
	ck_assert_str_eq(T.peers[0].role, "decode");
	Pds__WorkerInfo info = T.peers[1].info;
	info.role = "mixed";
	m.worker = &info;
	handler_of(MSG_WORKER_UPDATE)->fn(NULL, &T.peers[1], &head, &m.base);
	time_comes(2);
	ck_assert_str_eq(T.peers[0].role, "mixed");
	ck_assert_uint_eq(lists_sent(), 4);
}

TEST_START(quiet)
{
	log_set_level("error");
}
