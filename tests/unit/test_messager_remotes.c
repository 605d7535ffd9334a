/* test_messager_remotes.c - the sender's links (remote.c): which messagers it connects to, and what
 * it believes of those at the other end. The links are this file's own, the paths are
 * path_fake.h. */
#include "daemons/messager/remote.h"
#include "messager_steps.h"
#include "path_fake.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>

/* --- the links: what remote.c calls of svc and chan ---------------------- */

struct peer {
	char endpoint[300];
	int open, up;
	const char *refusal;
	unsigned sent[128]; /* by type */
};

static struct peer peers[2 * REMOTES_MAX];
static unsigned n_peers;
static int no_connections, no_keys; /* chan_connect fails */

struct chan *svc_chan(struct svc *s)
{
	(void)s;
	return NULL;
}
struct peer *chan_connect(struct chan *c, const char *to, const char *expected, int tag)
{
	(void)c, (void)expected;
	ck_assert_int_eq(tag, REMOTE_TAG);
	if (no_connections)
		return NULL;
	ck_assert_uint_lt(n_peers, sizeof peers / sizeof *peers);
	struct peer *p = &peers[n_peers++];
	*p = (struct peer){.open = 1};
	snprintf(p->endpoint, sizeof p->endpoint, "%s", to);
	return p;
}
void chan_disconnect(struct chan *c, struct peer *p)
{
	(void)c;
	ck_assert(p->open && !p->up);
	p->open = 0;
}
int chan_send(struct chan *c, struct peer *p, enum msg_type type, const struct msg_head *head,
              const ProtobufCMessage *body)
{
	(void)c, (void)head, (void)body;
	ck_assert(p->open);
	p->sent[type]++;
	return p->up ? 0 : ERR_CLOSED;
}
int svc_send(struct svc *s, struct peer *p, enum msg_type type, const struct msg_head *head,
             const void *body)
{
	(void)s;
	return chan_send(NULL, p, type, head, body);
}
int chan_has_keys_for(struct chan *c, const char *endpoint, const char *expected_name)
{
	(void)c, (void)endpoint, (void)expected_name;
	return !no_keys;
}
const char *peer_address(const struct peer *p)
{
	return p->endpoint;
}
static void (*timer_fn)(struct svc *s, void *arg);
static void *timer_arg;
struct svc_timer *svc_timer_add(struct svc *s, uint64_t interval_us,
                                void (*fn)(struct svc *s, void *arg), void *arg)
{
	(void)s, (void)interval_us;
	timer_fn = fn;
	timer_arg = arg;
	return NULL;
}
void svc_timer_del(struct svc_timer **t)
{
	(void)t;
}
int peer_is_up(const struct peer *p)
{
	ck_assert(p->open);
	return p->up;
}
const char *peer_refusal(const struct peer *p)
{
	return p->refusal;
}
uint64_t peer_epoch(const struct peer *p)
{
	(void)p;
	return 7;
}

/* --- steps --------------------------------------------------------------- */

static struct remotes *of;
static struct transports transports;

static void remotes_setup(void)
{
	setup();
	memset(&fake, 0, sizeof fake);
	n_peers = 0;
	no_connections = no_keys = 0;
	transports = (struct transports){.at = {{&fake_ops, NULL}}, .n = 1};
	of = remotes_new(NULL, r->m, &transports);
}

static void remotes_teardown(void)
{
	mover_shutdown(r->m);
	remotes_destroy(&of);
	ck_assert_int_eq(fake.paths, 0);
	ck_assert_uint_eq(fake.n_out, 0);
	teardown();
}

#define NAMED_MAX (REMOTES_MAX + 8)
/* a name of RING_NAME_MAX - 1 characters */
#define LONGEST "ddddddddddddddddddddddddddddddddddddddddddddddd"

/* Workers that every list names with each of its messagers. */
static const char *const known[] = {"d-0",      "d-1",      "d-2",       "d-3",  "d-4",
                                    "decode-1", "decode-2", "prefill-1", LONGEST};
#define KNOWN (sizeof known / sizeof *known)

/* A worker of this host names n messagers. */
static void names(const char *worker, const char *const *endpoints, size_t n)
{
	static Pds__Peer peer[NAMED_MAX * KNOWN], *list[NAMED_MAX * KNOWN];
	Pds__Peers m = PDS__PEERS__INIT;
	ck_assert_uint_le(n, NAMED_MAX);
	for (size_t i = 0; i < n * KNOWN; i++) {
		pds__peer__init(&peer[i]);
		peer[i].name = (char *)(uintptr_t)known[i % KNOWN];
		peer[i].messager = (char *)(uintptr_t)endpoints[i / KNOWN];
		list[i] = &peer[i];
	}
	m.peers = list;
	m.n_peers = n * KNOWN;
	remotes_named(of, worker, &m);
}
#define NAMES(worker, ...)                            \
	names(worker, (const char *const[]){__VA_ARGS__}, \
	      sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))

#define A "m-a@tcp://10.0.0.1:7000"
#define B "m-b@tcp://10.0.0.2:7000"
#define C "m-c@tcp://host-3:7000"

static unsigned open_links(void)
{
	unsigned n = 0;
	for (unsigned i = 0; i < n_peers; i++)
		n += peers[i].open != 0;
	return n;
}

/* The link to this endpoint; NULL: none is open. */
static struct peer *link_to(const char *endpoint)
{
	struct peer *found = NULL;
	for (unsigned i = 0; i < n_peers; i++)
		if (peers[i].open && strcmp(peers[i].endpoint, endpoint) == 0) {
			ck_assert_ptr_null(found); /* one each */
			found = &peers[i];
		}
	return found;
}

static void comes_up(struct peer *p)
{
	p->up = 1;
	remotes_up(of, p);
}

static void goes_down(struct peer *p)
{
	p->up = 0;
	remotes_down(of, p, "the test says so");
}

static void says_path(struct peer *p, const char *transport)
{
	Pds__Path m = PDS__PATH__INIT;
	m.transport = (char *)(uintptr_t)transport;
	remotes_message(of, p, MSG_PATH, &m.base);
}

struct pool {
	const char *worker;
	uint64_t epoch;
	uint32_t blocks;
};

static void says_pools(struct peer *p, const struct pool *pools, size_t n)
{
	static Pds__Pool pool[16], *list[16];
	static char layout[96];
	Pds__Pools m = PDS__POOLS__INIT;
	ck_assert_uint_le(n, sizeof pool / sizeof *pool);
	kv_layout_text(&r->layout, layout, sizeof layout);
	for (size_t i = 0; i < n; i++) {
		pds__pool__init(&pool[i]);
		pool[i].worker = (char *)(uintptr_t)pools[i].worker;
		pool[i].epoch = pools[i].epoch;
		pool[i].blocks = pools[i].blocks;
		pool[i].layout = layout;
		list[i] = &pool[i];
	}
	m.pools = list;
	m.n_pools = n;
	remotes_message(of, p, MSG_POOLS, &m.base);
}
#define POOLS(p, ...)                                 \
	says_pools(p, (const struct pool[]){__VA_ARGS__}, \
	           sizeof((const struct pool[]){__VA_ARGS__}) / sizeof(struct pool))

/* A messager that is named, up, and has a path. */
static struct peer *ready(const char *endpoint)
{
	names(endpoint, &endpoint, 1); /* the worker's name does not matter */
	struct peer *p = link_to(endpoint);
	ck_assert_ptr_nonnull(p);
	comes_up(p);
	says_path(p, "fake");
	return p;
}

static uint64_t epoch_of(const char *worker)
{
	const struct mover_worker *w = mover_find(r->m, worker);
	return w ? mover_worker_epoch(w) : 0;
}

/* Workers of the messager that has this one; 0: there is no such worker. */
static unsigned workers_with(const char *worker)
{
	unsigned n = 0;
	const struct mover_worker *w = mover_find(r->m, worker);
	if (!w)
		return 0;
	const struct mover_via *via = mover_worker_via(w);
	for (w = mover_next_of(r->m, via, NULL); w; w = mover_next_of(r->m, via, w))
		n++;
	return n;
}

/* --- which messagers ----------------------------------------------------- */

TEST_CASE("remotes", .setup = remotes_setup, .teardown = remotes_teardown);

TEST(what_all_workers_name)
{
	NAMES("p-1", A, "", B, A);
	ck_assert_uint_eq(n_peers, 2);
	NAMES("p-2", B, C);
	ck_assert_uint_eq(n_peers, 3);
	NAMES("p-1", A);
	ck_assert_uint_eq(open_links(), 3); /* p-2 names B, too */
	remotes_named(of, "p-3", NULL);     /* has never named any */
	remotes_named(of, "p-2", NULL);
	ck_assert_uint_eq(open_links(), 1);
	ck_assert_ptr_nonnull(link_to(A));
	names("p-1", NULL, 0);
	ck_assert_uint_eq(open_links(), 0);
	NAMES("p-1", B);
	ck_assert_ptr_nonnull(link_to(B));
	ck_assert_uint_eq(n_peers, 4);
}

TEST(a_link_that_is_up_stays)
{
	NAMES("p-1", A, B);
	struct peer *a = link_to(A), *b = link_to(B);
	comes_up(a);
	comes_up(b);
	NAMES("p-1", A);
	ck_assert_uint_eq(open_links(), 2);
	goes_down(a);
	ck_assert(a->open); /* named: chan connects again */
	goes_down(b);
	ck_assert(!b->open);
	ck_assert_uint_eq(n_peers, 2);
}

TEST(messagers_have_a_limit)
{
	static char text[NAMED_MAX][64];
	static const char *list[NAMED_MAX];
	for (unsigned i = 0; i < NAMED_MAX; i++) {
		snprintf(text[i], sizeof text[i], "m-%u@tcp://10.1.%u.%u:7000", i, i / 250, i % 250 + 1);
		list[i] = text[i];
	}
	names("p-1", list, NAMED_MAX);
	ck_assert_uint_eq(open_links(), REMOTES_MAX);
	ck_assert_ptr_null(link_to(text[REMOTES_MAX]));
	NAMES("p-2", A);
	ck_assert_ptr_null(link_to(A));
	names("p-1", list, 3); /* there is room again, for who names it again */
	ck_assert_uint_eq(open_links(), 3);
	NAMES("p-2", A);
	ck_assert_uint_eq(open_links(), 4);
}

TEST(malformed_endpoints)
{
	static char long_name[100], long_host[400];
	memset(long_name, 'n', 48);
	strcpy(long_name + 48, "@tcp://h:1");
	strcpy(long_host, "m@tcp://");
	memset(long_host + 8, 'h', 380);
	strcpy(long_host + 388, ":1");
	NAMES("p-1", "m", "tcp://h:1", "@tcp://h:1", "m@tcp://", "m@tcp://h", "m@tcp://h:0",
	      "m@tcp://h:65536", "m@tcp://:1", "m@tcp://*:1", "m@tcp://0.0.0.0:1", "m@ipc:///tmp/x",
	      "m@@tcp://h:1", "../m@tcp://h:1", "m n@tcp://h:1", long_name, long_host);
	ck_assert_uint_eq(n_peers, 0);
	NAMES("p-1", A); /* the rest of the list counts */
	ck_assert_uint_eq(n_peers, 1);
}

TEST_LOOP(a_link_that_cannot_be_made, 0, 2)
{
	no_connections = _i == 0;
	no_keys = _i == 1;
	NAMES("p-1", A);
	timer_fn(NULL, timer_arg);
	ck_assert_uint_eq(open_links(), 0);
	no_connections = no_keys = 0;
	timer_fn(NULL, timer_arg); /* without another list */
	ck_assert_uint_eq(open_links(), 1);
	comes_up(link_to(A));
	timer_fn(NULL, timer_arg);
	ck_assert_uint_eq(n_peers, 1);
}

/* A messager's workers count once a worker of this host has named them with it. */
TEST(a_worker_that_is_named_later)
{
	static const Pds__Peers none = PDS__PEERS__INIT;
	struct peer *a = ready(A);
	Pds__Peer named = PDS__PEER__INIT, *list = &named;
	Pds__Peers m = none;
	POOLS(a, {"d-9", 5, 24});
	ck_assert_uint_eq(epoch_of("d-9"), 0);
	named.name = "d-9";
	named.messager = B; /* another's */
	m.peers = &list;
	m.n_peers = 1;
	remotes_named(of, "p-1", &m);
	ck_assert_uint_eq(epoch_of("d-9"), 0);
	named.messager = A;
	remotes_named(of, "p-1", &m);
	ck_assert_uint_eq(epoch_of("d-9"), 5);
	remotes_named(of, "p-1", NULL); /* what is there stays */
	ck_assert_uint_eq(epoch_of("d-9"), 5);
}

/* --- what they say ------------------------------------------------------- */

TEST(path_of_another_transport)
{
	NAMES("p-1", A);
	struct peer *a = link_to(A);
	comes_up(a);
	ck_assert_uint_eq(a->sent[MSG_PATH], 1); /* which transports we have */
	says_path(a, "rdma");
	says_path(a, "");
	ck_assert_int_eq(fake.paths, 0);
	says_path(a, "fake");
	ck_assert_int_eq(fake.paths, 1);
	ck_assert_int_eq(fake.said, 1);
	says_path(a, "rdma"); /* the path stays what it is, and does not hear it */
	ck_assert_int_eq(fake.said, 1);
	says_path(a, "fake");
	ck_assert_int_eq(fake.said, 2);
	ck_assert_int_eq(fake.paths, 1);
}

/* Transfers to its workers fail at once, with the reason, until it takes what this one has. */
TEST_LOOP(a_messager_that_refuses, 0, 2)
{
	NAMES("p-1", A);
	struct peer *a = link_to(A);
	comes_up(a);
	POOLS(a, {"d-1", 5, 24});
	ck_assert_uint_eq(workers_with("d-1"), 1);
	ck_assert_ptr_null(remotes_unreachable(of, LONGEST));
	says_path(a, "rdma");
	ck_assert_uint_eq(workers_with("d-1"), 0);
	POOLS(a, {"d-1", 5, 24});
	ck_assert_uint_eq(workers_with("d-1"), 0);
	const char *why = remotes_unreachable(of, LONGEST);
	ck_assert_ptr_nonnull(why);
	ck_assert_ptr_nonnull(strstr(why, "takes KV over rdma only"));
	ck_assert_ptr_nonnull(strstr(why, "it has: fake"));
	if (_i == 0) {
		goes_down(a); /* it may have another configuration when it is back */
		comes_up(a);
		POOLS(a, {"d-1", 5, 24});
	} else
		says_path(a, "fake");
	ck_assert_uint_eq(workers_with("d-1"), 1);
	ck_assert_ptr_null(remotes_unreachable(of, LONGEST));
}

TEST(a_link_that_ends)
{
	struct peer *a = ready(A);
	POOLS(a, {"d-1", 5, 24}, {"d-2", 6, 24});
	ck_assert_uint_eq(workers_with("d-1"), 2);
	goes_down(a);
	ck_assert_uint_eq(workers_with("d-1") + workers_with("d-2"), 0);
	ck_assert_int_eq(fake.paths, 0);
	comes_up(a);
	ck_assert_uint_eq(a->sent[MSG_PATH], 2);
	says_path(a, "fake");
	POOLS(a, {"d-1", 5, 24});
	ck_assert_uint_eq(epoch_of("d-1"), 5);
	ck_assert_uint_eq(workers_with("d-1"), 1);
}

TEST(a_list_replaces_the_one_before)
{
	struct peer *a = ready(A);
	POOLS(a, {"d-1", 5, 24}, {"d-2", 6, 24}, {"d-3", 7, 24});
	POOLS(a, {"d-3", 7, 24}, {"d-2", 8, 24}, {"d-4", 9, 24});
	ck_assert_uint_eq(epoch_of("d-1"), 0);
	ck_assert_uint_eq(epoch_of("d-2"), 8);
	ck_assert_uint_eq(epoch_of("d-3"), 7);
	ck_assert_uint_eq(epoch_of("d-4"), 9);
	ck_assert_uint_eq(workers_with("d-2"), 3);
	says_pools(a, NULL, 0);
	ck_assert_uint_eq(workers_with("d-2") + workers_with("d-3") + workers_with("d-4"), 0);
}

TEST(hostile_lists)
{
	struct peer *a = ready(A), *b = ready(B);
	ck_assert_uint_eq(strlen(LONGEST), RING_NAME_MAX - 1);
	POOLS(a, {"", 5, 24}, {"e" LONGEST, 5, 24}, {LONGEST, 5, 24}, {"d-0", 5, 0}, {"d-1", 5, 24},
	      {"d-1", 6, 24}, {"nobody-named-it", 5, 24}, {"decode-1", D_EPOCH + 1, 24},
	      {"prefill-1", P_EPOCH, 24});
	ck_assert_uint_eq(workers_with("d-1"), 2); /* and the longest name */
	ck_assert_uint_eq(epoch_of(LONGEST), 5);
	ck_assert_uint_eq(epoch_of("d-1"), 5);
	ck_assert_ptr_null(mover_worker_via(mover_find(r->m, "decode-1")));
	ck_assert_ptr_null(mover_worker_via(mover_find(r->m, "prefill-1")));
	/* another messager's worker, of its present life and an older one; a later one has moved */
	const struct mover_via *via = mover_worker_via(mover_find(r->m, "d-1"));
	POOLS(b, {"d-1", 5, 24});
	POOLS(b, {"d-1", 4, 24});
	ck_assert_ptr_eq(mover_worker_via(mover_find(r->m, "d-1")), via);
	POOLS(b, {"d-1", 6, 24});
	ck_assert_ptr_ne(mover_worker_via(mover_find(r->m, "d-1")), via);
}

/* --- leases -------------------------------------------------------------- */

static void says_opened(struct peer *p, uint64_t epoch)
{
	struct answer a;
	rig_answer(r, &a, 1, 5, epoch);
	a.b.decode = "decode-1";
	remotes_message(of, p, MSG_LEASE_OPENED, &a.b.base);
}

static void says_revoke(struct peer *p)
{
	Pds__Lease l = PDS__LEASE__INIT;
	Pds__LeaseRevoke m = PDS__LEASE_REVOKE__INIT;
	l.id = 1;
	l.epoch = D_EPOCH;
	l.generation = 5;
	m.lease = &l;
	m.decode = "decode-1";
	remotes_message(of, p, MSG_LEASE_REVOKE, &m.base);
}

static void says_ack(struct peer *p)
{
	Pds__Lease l = PDS__LEASE__INIT;
	Pds__KvReadyAck m = PDS__KV_READY_ACK__INIT;
	l.id = 1;
	l.epoch = D_EPOCH;
	l.generation = 5;
	m.lease = &l;
	m.decode = "decode-1";
	m.prefill = "prefill-1";
	m.prefill_epoch = P_EPOCH;
	remotes_message(of, p, MSG_KV_READY_ACK, &m.base);
}

/* A transfer to a worker of A. What B says of it is not heard. */
TEST_LOOP(only_its_messager_speaks_for_a_worker, 0, 2)
{
	mover_remove(r->m, r->wd);
	r->wd = NULL;
	struct peer *a = ready(A), *b = ready(B);
	POOLS(a, {"decode-1", D_EPOCH, RIG_BLOCKS});
	POOLS(b, {"decode-2", D_EPOCH, RIG_BLOCKS});
	rig_publish(r, 1, 0, 10);
	turn(MOVER_OPEN);
	ck_assert_uint_eq(a->sent[MSG_LEASE_OPEN], 1);
	ck_assert_uint_eq(b->sent[MSG_LEASE_OPEN], 0);
	says_opened(b, D_EPOCH);
	says_opened(a, D_EPOCH + 1);
	ck_assert_uint_eq(fake.n_out, 0);
	says_opened(a, D_EPOCH);
	ck_assert_uint_eq(fake.n_out, 1);
	says_revoke(b);
	ck_assert_uint_eq(fake.n_out, 1);
	if (_i == 0) {
		says_revoke(a);
		ck_assert_int_eq(r->last_end, END_REVOKED);
		return;
	}
	rig_compute(r, 3, 10);
	turn(MOVER_OPEN);
	fake.out[0]->o.delivered(fake.out[0]->o.arg, 3 * r->layout.block_bytes);
	turn(MOVER_OPEN);
	ck_assert_uint_eq(a->sent[MSG_KV_READY], 1);
	says_ack(b);
	turn(MOVER_OPEN);
	ck_assert_uint_eq(rig_count(r, MSG_KV_SENT), 0);
	says_ack(a);
	turn(MOVER_IDLE);
	ck_assert_uint_eq(rig_count(r, MSG_KV_SENT), 1);
	ck_assert_int_eq(r->last_end, END_SENT);
}

/* Its transfers fail, and nothing of them is left on the path. */
TEST_LOOP(a_link_ends_under_a_transfer, 0, 2)
{
	mover_remove(r->m, r->wd);
	r->wd = NULL;
	struct peer *a = ready(A);
	POOLS(a, {"decode-1", D_EPOCH, RIG_BLOCKS});
	rig_publish(r, 1, 0, 10);
	turn(MOVER_OPEN);
	says_opened(a, D_EPOCH);
	ck_assert_uint_eq(fake.n_out, 1);
	if (_i == 0)
		goes_down(a);
	else
		remotes_destroy(&of);
	ck_assert_uint_eq(fake.n_out, 0);
	ck_assert_int_eq(fake.paths, 0);
	failed(END_PEER_GONE, PDS__FAULT__FAULT_PEER_LOST, "the link to its messager, has ended");
	ck_assert_ptr_null(mover_find(r->m, "decode-1"));
}

TEST(strangers_are_not_heard)
{
	struct peer other = {.open = 1, .up = 1};
	ready(A);
	remotes_up(of, &other);
	says_path(&other, "fake");
	POOLS(&other, {"d-1", 5, 24});
	remotes_down(of, &other, "the test says so");
	ck_assert_int_eq(fake.paths, 1);
	ck_assert_ptr_null(mover_find(r->m, "d-1"));
	ck_assert_uint_eq(other.sent[MSG_PATH], 0);
}

TEST(links_are_shown)
{
	struct buf out;
	struct peer *b;
	buf_init(&out, 0);
	ready(A);
	NAMES("p-1", B);
	b = link_to(B);
	comes_up(b);
	says_path(b, "rdma");
	ck_assert_uint_eq(remotes_json(of, &out), 2);
	buf_addc(&out, '\0');
	ck_assert_ptr_nonnull(
		strstr(out.data, "\"messager\":\"m-a\",\"transport\":\"fake\",\"up\":true"));
	ck_assert_ptr_nonnull(
		strstr(out.data, "\"messager\":\"m-b\",\"transport\":\"-\",\"up\":false"));
	ck_assert_ptr_nonnull(strstr(out.data, "it takes KV over rdma only"));
	buf_fini(&out);
	/* a link that has never come up, because the other side speaks another protocol */
	NAMES("p-2", C);
	b = link_to(C);
	b->refusal = "it speaks protocol 4";
	buf_init(&out, 0);
	ck_assert_uint_eq(remotes_json(of, &out), 3);
	buf_addc(&out, '\0');
	ck_assert_ptr_nonnull(strstr(out.data, "it speaks protocol 4"));
	buf_fini(&out);
}

TEST_START(quiet)
{
	log_set_level("error");
}
