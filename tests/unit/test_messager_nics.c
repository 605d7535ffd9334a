/* Several NICs: which one each pool's queue pair takes, what happens when one dies, and right bytes
 * meanwhile. Devices fake0 and fake2 are the sender's, fake1 and fake3 the receiver's. */
#include "daemons/messager/path/rdma_nic.h"
#include "daemons/messager/path/rdma_side.h"
#include "rdma_world.h"
#include "util/log.h"

#include <inttypes.h>
#include <sys/stat.h>

static void nics_reset(uint64_t seed)
{
	fake_reset(seed);
	fake.devices = 4;
	devices_a = "fake0, fake2";
	devices_b = "fake1,fake3";
	memset(&nodes, 0xff, sizeof nodes);
}

static const char *nic_of(const void *side, unsigned lane)
{
	const struct rdma_qp *q = ((const struct rdma_side *)side)->lanes[lane];
	return q && q->qp ? q->nic->device : "none";
}

static void wait_up(void)
{
	for (int steps = 0; !w->path_up || !w->intake_up; world_step())
		ck_assert_int_lt(++steps, STEPS_MAX);
}

static void wait_down(void)
{
	for (int steps = 0; w->path_up || w->intake_up; world_step())
		ck_assert_int_lt(++steps, STEPS_MAX);
}

/* --- the list --------------------------------------------------------------- */

/* The number of NICs; on failure ERR_*. */
static int count_nics(const char *list, struct err *err)
{
	struct event_base *base = event_base_new();
	struct rdma_opts o = RDMA_OPTS_DEFAULT;
	struct rdma *t = NULL;
	o.device = list;
	o.port = 2;
	int n = rdma_transport_new(base, &fake_verbs, &o, &t, err);
	if (n == 0)
		n = (int)t->n_nics;
	rdma_transport_destroy(&t);
	ck_assert_uint_eq(fake.live, 0);
	event_base_free(base);
	return n;
}

TEST(test_list)
{
	/* devices with a bit in `down` have no active port */
	static const struct {
		const char *list;
		int down, want;
		const char *error;
	} cases[] = {
		{"", 0, 4, NULL},
		{" , ", 0, 4, NULL},
		{"", 4, 3, NULL},
		{"", 15, ERR_NOTFOUND, "no active port"},
		{"fake1", 0, 1, NULL},
		{"fake1, fake3", 0, 2, NULL},
		{"fake3 fake1 ,fake3", 0, 2, NULL},
		{"fake1,fake3", 2, 2, NULL}, /* it may come up later */
		{"fake1,fake3", 10, ERR_NOTFOUND, "no active port"},
		{"fake1, mlx5_7", 0, ERR_NOTFOUND,
	     "no RDMA device mlx5_7 on this host: it has fake0, fake1, fake2, fake3"},
		{"fake", 0, ERR_NOTFOUND,
	     "no RDMA device fake on this host: it has fake0, fake1, fake2, fake3"},
		{"fake11", 0, ERR_NOTFOUND, "no RDMA device fake11 on this host"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct err err = {0};
		nics_reset(1);
		for (int d = 0; d < FAKE_DEVICES; d++)
			fake.device[d].down = cases[i].down >> d & 1;
		int got = count_nics(cases[i].list, &err);
		ck_assert_msg(got == cases[i].want && (!cases[i].error || strstr(err.text, cases[i].error)),
		              "\"%s\": %d %s", cases[i].list, got, err.text);
	}
}

/* What the kernel says. */
TEST(test_kernel_nodes)
{
	char dir[] = "/tmp/test_nics.XXXXXX", name[64];
	const struct verbs *v = verbs_load(NULL);
	if (!v) /* libibverbs is not installed */
		return;
	struct ibv_device d = {0};
	ck_assert_ptr_nonnull(mkdtemp(dir));
	snprintf(d.ibdev_path, sizeof d.ibdev_path, "%s", dir);
	ck_assert_int_eq(v->device_node(&d), -1);
	snprintf(name, sizeof name, "%s/device", dir);
	ck_assert_int_eq(mkdir(name, 0700), 0);
	snprintf(name, sizeof name, "%s/device/numa_node", dir);
	FILE *f = fopen(name, "w");
	ck_assert(f && fputs("5\n", f) >= 0 && fclose(f) == 0);
	ck_assert_int_eq(v->device_node(&d), 5);
	ck_assert_int_eq(unlink(name), 0);
	snprintf(name, sizeof name, "%s/device", dir);
	ck_assert(rmdir(name) == 0 && rmdir(dir) == 0);

	/* the node of this memory, if the kernel tells; none of what is not mapped */
	unsigned char *memory = calloc(1, 1 << 20);
	int node = v->memory_node(memory, 1 << 20);
	snprintf(name, sizeof name, "/sys/devices/system/node/node%d", node);
	ck_assert_msg(node == -1 || access(name, F_OK) == 0, "node %d", node);
	ck_assert_int_eq(v->memory_node(NULL, 1 << 20), -1);
	free(memory);
}

/* --- the choice ------------------------------------------------------------- */

/* Pools and devices in NUMA nodes; which device each pool's queue pair has at either end. */
TEST_LOOP(test_nearest, 0, 7)
{
	static const struct {
		int device[FAKE_DEVICES], src[POOLS], dst[POOLS];
		const char *sender[POOLS], *receiver[POOLS];
	} cases[] = {
		{{0, 0, 1, 1}, {0, 0}, {0, 1}, {"fake0", "fake0"}, {"fake1", "fake3"}},
		{{0, 0, 1, 1}, {1, 1}, {1, 0}, {"fake2", "fake2"}, {"fake3", "fake1"}},
		{{0, 1, 1, 0}, {1, 1}, {0, 0}, {"fake2", "fake2"}, {"fake3", "fake3"}},
		/* pools of both nodes: to each device one is near */
		{{0, 0, 1, 1}, {0, 1}, {1, 1}, {"fake0", "fake2"}, {"fake3", "fake3"}},
		/* unknown: all are equally near */
		{{0, 0, 1, 1}, {-1, -1}, {-1, -1}, {"fake0", "fake2"}, {"fake1", "fake3"}},
		{{-1, -1, -1, -1}, {1, 1}, {0, 0}, {"fake0", "fake2"}, {"fake1", "fake3"}},
		/* far from all */
		{{0, 0, 0, 0}, {1, 1}, {1, 1}, {"fake0", "fake2"}, {"fake1", "fake3"}},
	};
	nics_reset(20 + (uint64_t)_i);
	for (int d = 0; d < FAKE_DEVICES; d++)
		fake.device[d].node = cases[_i].device[d];
	memcpy(nodes.src, cases[_i].src, sizeof nodes.src);
	memcpy(nodes.dst, cases[_i].dst, sizeof nodes.dst);
	world_make(POOLS);
	wait_up();
	for (unsigned i = 0; i < POOLS; i++) {
		ck_assert_str_eq(nic_of(w->path, i), cases[_i].sender[i]);
		ck_assert_str_eq(nic_of(w->intake, i), cases[_i].receiver[i]);
	}
	run_world(0);
	ck_assert_uint_eq(w->whole, LEASES);
	world_free();
}

static int say_nothing(void *arg, const void *bytes, size_t n)
{
	(void)arg;
	(void)bytes;
	(void)n;
	return 0;
}

static void up_nothing(void *arg, int up, const char *why)
{
	(void)arg;
	(void)up;
	(void)why;
}

/* Several senders write one pool: their queue pairs are spread over the NICs that are near. */
TEST(test_spread)
{
	enum { SENDERS = 6 };
	const struct path_hooks hooks = {NULL, say_nothing, up_nothing};
	const struct path_peer peer = {.name = "another"};
	struct intake *more[SENDERS];
	int n[FAKE_DEVICES] = {0};
	nics_reset(30);
	devices_b = "";
	fake.device[0].node = fake.device[3].node = 1; /* near are fake1 and fake2 */
	nodes.dst[0] = 0;
	world_make(1);
	rdma_path_ops.intake_destroy(&w->intake);
	for (int i = 0; i < SENDERS; i++)
		more[i] = rdma_path_ops.intake_new(w->b, &peer, &hooks);
	for (int k = 0; k < 10; k++)
		rdma_turn(w->b);
	for (int i = 0; i < SENDERS; i++)
		n[nic_of(more[i], 0)[4] - '0']++;
	ck_assert(n[0] == 0 && n[1] == SENDERS / 2 && n[2] == SENDERS / 2 && n[3] == 0);
	for (int i = 0; i < SENDERS; i++)
		rdma_path_ops.intake_destroy(&more[i]);
	world_free();
}

/* Devices that cannot reach each other, by link layer, subnet, or as it turns out when nothing
 * arrives; for each the only two that can, which are not the nearest. */
TEST_LOOP(test_reach, 0, 6)
{
	enum { ETH = IBV_LINK_LAYER_ETHERNET, IB = IBV_LINK_LAYER_INFINIBAND };
	static const struct {
		uint8_t layer[FAKE_DEVICES];
		unsigned char subnet[FAKE_DEVICES];
		int cut[FAKE_DEVICES];
		const char *sender, *receiver;
	} cases[] = {
		{{IB, ETH, ETH, ETH}, {1}, {0}, "fake2", "fake1"},
		{{IB, ETH, IB, IB}, {1, 0, 2, 2}, {0}, "fake2", "fake3"},
		{{IB, IB, IB, IB}, {1, 2, 3, 3}, {0}, "fake2", "fake3"},
		{{IB, IB, IB, IB}, {1, 2, 2, 3}, {0}, "fake2", "fake1"},
		{{ETH, ETH, ETH, ETH}, {0}, {10, 5, 2, 1}, "fake2", "fake3"},
		{{ETH, ETH, ETH, ETH}, {0}, {2, 5, 10, 4}, "fake0", "fake3"},
	};
	struct path_state s;
	nics_reset(40 + (uint64_t)_i);
	for (int d = 0; d < FAKE_DEVICES; d++) {
		fake.device[d].node = d >= 2;
		fake.device[d].link_layer = cases[_i].layer[d];
		fake.device[d].subnet = cases[_i].subnet[d];
		fake.device[d].cut = cases[_i].cut[d];
	}
	nodes.src[0] = nodes.dst[0] = 0;
	world_make(1);
	run_world(0);
	ck_assert_uint_eq(w->whole, LEASES);
	ck_assert_str_eq(nic_of(w->path, 0), cases[_i].sender);
	ck_assert_str_eq(nic_of(w->intake, 0), cases[_i].receiver);
	rdma_path_ops.path_state(w->path, &s);
	ck_assert_int_eq(strncmp(s.via, cases[_i].sender, 5), 0);
	world_free();
}

/* A receiver that is slow to say that it is ready, longer than the sender waits: that is not the
 * NIC's fault, and both keep the nearest ones. */
TEST(test_slow_peer)
{
	nics_reset(48);
	for (int d = 0; d < FAKE_DEVICES; d++)
		fake.device[d].node = d >= 2;
	nodes.src[0] = nodes.dst[0] = 0;
	world_make(1);
	const struct rdma_side *side = (const struct rdma_side *)w->path;
	int steps = 0;
	while (!side->lanes[0] || !side->lanes[0]->fails) {
		for (unsigned i = 0; i < w->to_path.n; i++)
			if (w->to_path.m[i].bytes[1] == RDMA_READY)
				w->to_path.m[i].at_us = fake.us + 1000000u;
		world_step();
		ck_assert_int_lt(++steps, STEPS_MAX);
	}
	for (unsigned i = 0; i < w->to_path.n; i++)
		w->to_path.m[i].at_us = fake.us;
	run_world(0);
	ck_assert_uint_eq(w->whole, LEASES);
	ck_assert_str_eq(nic_of(w->path, 0), "fake0");
	ck_assert_str_eq(nic_of(w->intake, 0), "fake1");
	world_free();
}

/* None of the sender's reaches any of the receiver's: both say so, and nothing else happens. */
TEST(test_reach_none)
{
	struct path_state s;
	nics_reset(50);
	fake.device[0].link_layer = fake.device[2].link_layer = IBV_LINK_LAYER_INFINIBAND;
	world_make(1);
	for (int k = 0; k < 3000; k++)
		world_step();
	ck_assert(!w->path_up && !w->intake_up && w->ups == 0);
	rdma_path_ops.path_state(w->path, &s);
	ck_assert_str_eq(s.up, "no RDMA device here is active and reaches the other end's");
	rdma_path_ops.intake_state(w->intake, &s);
	ck_assert_msg(strstr(s.last_error, "no RDMA device here is active and reaches") != NULL, "%s",
	              s.last_error);
	world_free();
}

/* --- NICs that die ----------------------------------------------------------- */

/* How the device of the receiver's queue pair dies, in the middle of its leases. */
enum { PORT_DOWN, FATAL, GONE, DEATHS };

static void kill_device(unsigned device, int how)
{
	switch (how) {
	case PORT_DOWN: fake_port(device, 0); break;
	case FATAL:
		fake.device[device].down = 1;
		fake_event(device, IBV_EVENT_DEVICE_FATAL);
		break;
	default:
		fake.device[device].down = fake.device[device].gone = 1;
		fake_event(device, IBV_EVENT_PORT_ERR); /* wakes the loop */
	}
}

TEST_LOOP(test_device_dies, 0, 4 * DEATHS)
{
	struct path_state to, from;
	int at_receiver = _i % 2, how = _i / 2 % DEATHS;
	unsigned first = at_receiver ? 1 : 0, other = first + 2;
	nics_reset(60 + (uint64_t)_i);
	fake.no_windows = _i >= 2 * DEATHS;
	for (int d = 0; d < FAKE_DEVICES; d++)
		fake.device[d].node = d >= 2;
	nodes.src[0] = nodes.dst[0] = 0;
	world_make(1);
	const void *side = at_receiver ? (void *)w->intake : (void *)w->path;
	wait_up();
	ck_assert_str_eq(nic_of(side, 0), at_receiver ? "fake1" : "fake0");
	while (w->whole < 3 && leases_step(0))
		world_step();
	kill_device(first, how);
	run_world(0);
	wait_up();
	ck_assert_uint_eq(w->whole, LEASES);
	ck_assert_str_eq(nic_of(side, 0), at_receiver ? "fake3" : "fake2");
	rdma_path_ops.path_state(w->path, &to);
	rdma_path_ops.intake_state(w->intake, &from);
	ck_assert(to.restarts > 0 && from.restarts > 0 && to.errors + from.errors > 0);
	struct rdma *t = at_receiver ? w->b : w->a;
	ck_assert(!rdma_nic_is_active(t->nics[0]));
	/* the loop is not kept awake by a device that cannot be read */
	ck_assert_int_eq(event_pending(t->nics[0]->on_async, EV_READ, NULL) != 0, how != GONE);
	/* the near one comes back, and is used again when the other dies */
	if (how == PORT_DOWN) {
		fake_port(first, 1);
		fake_port(other, 0);
		wait_down();
		wait_up();
		ck_assert_str_eq(nic_of(side, 0), at_receiver ? "fake1" : "fake0");
	}
	world_free();
}

TEST(test_all_die)
{
	struct path_state s;
	nics_reset(70);
	world_make(POOLS);
	wait_up();
	rdma_path_ops.intake_state(w->intake, &s);
	ck_assert_str_eq(s.via, "fake1 port 2, GID 3 127.0.0.1, MTU 1024, 103.1 Gbit/s, windows; fake3 "
	                        "port 2, GID 3 127.0.0.1, MTU 1024, 103.1 Gbit/s, windows");
	fake_port(1, 0);
	wait_down();
	wait_up();
	rdma_path_ops.intake_state(w->intake, &s);
	ck_assert_str_eq(s.via, "fake3 port 2, GID 3 127.0.0.1, MTU 1024, 103.1 Gbit/s, windows, 2 "
	                        "queue pairs");
	fake_port(3, 0);
	wait_down();
	for (int k = 0; k < 3000; k++)
		world_step();
	rdma_path_ops.intake_state(w->intake, &s);
	ck_assert_str_eq(s.up, "no RDMA device of this host has an active port");
	fake_port(1, 1);
	wait_up();
	run_world(0);
	ck_assert_uint_eq(w->whole, LEASES);
	world_free();
}

/* The sender has no port for a while: that is no reason for the receiver to take a NIC that is
 * far. */
TEST(test_sender_is_down)
{
	nics_reset(77);
	fake.device[3].node = 1;
	nodes.dst[0] = 0;
	world_make(1);
	wait_up();
	fake_port(0, 0);
	fake_port(2, 0);
	wait_down();
	for (int k = 0; k < 1000; k++) {
		world_step();
		ck_assert_str_ne(nic_of(w->intake, 0), "fake3");
	}
	fake_port(0, 1);
	wait_up();
	ck_assert_str_eq(nic_of(w->intake, 0), "fake1");
	world_free();
}

/* The other NIC is far, so the pool is registered with it only now: it refuses that for a while. */
TEST(test_other_is_full)
{
	struct path_state s;
	nics_reset(75);
	fake.device[3].node = 1;
	nodes.dst[0] = 0;
	world_make(1);
	wait_up();
	fake.device[3].full = 1;
	fake_port(1, 0);
	for (int k = 0; k < 3000; k++)
		world_step();
	rdma_path_ops.intake_state(w->intake, &s);
	ck_assert(s.up && strstr(s.up, "cannot register") && strstr(s.up, "fake3"));
	ck_assert(s.errors > 3 && s.errors < 20); /* its pauses double */
	fake.device[3].full = 0;
	wait_up();
	run_world(0);
	ck_assert_uint_eq(w->whole, LEASES);
	ck_assert_str_eq(nic_of(w->intake, 0), "fake3");
	world_free();
}

/* --- pools that come and go ---------------------------------------------------- */

/* Its lane ends at both ends, also if END is lost, and the next pool gets a lane anew. */
TEST_LOOP(test_lane_ends, 0, 2)
{
	struct path_state s;
	nics_reset(80 + (uint64_t)_i);
	world_make(POOLS);
	wait_up();
	w->drop = _i ? RDMA_END : 0;
	rdma_pool_gone(w->b, &w->dst[1].region);
	ck_assert_str_eq(nic_of(w->intake, 1), "none");
	for (int k = 0; k < 2000; k++)
		world_step();
	w->drop = 0;
	for (int k = 0; k < 20000; k++)
		world_step();
	ck_assert(w->path_up && w->intake_up);
	ck_assert_str_eq(nic_of(w->path, 1), "none");
	rdma_path_ops.path_state(w->path, &s);
	uint64_t errors = s.errors;
	for (int k = 0; k < 5000; k++)
		world_step();
	rdma_path_ops.path_state(w->path, &s);
	ck_assert(!s.up && s.errors == errors);
	pool_add(w->b, &w->dst[1]);
	for (int k = 0; k < 2000; k++)
		world_step();
	ck_assert_str_ne(nic_of(w->path, 1), "none");
	run_world(0);
	ck_assert_uint_eq(w->whole, LEASES);
	world_free();
}

TEST(test_too_many_pools)
{
	struct kv_region more[RDMA_LANES_MAX];
	struct err err;
	nics_reset(90);
	world_make(1);
	for (unsigned i = 1; i <= RDMA_LANES_MAX; i++) {
		more[i - 1] = w->dst[0].region;
		int e = rdma_pool_add(w->b, &more[i - 1], &err);
		ck_assert_int_eq(e, i < RDMA_LANES_MAX ? 0 : ERR_FULL);
	}
	ck_assert_str_eq(err.text, "RDMA has 64 KV pools already (limit 64)");
	for (unsigned i = 1; i < RDMA_LANES_MAX; i++)
		rdma_pool_gone(w->b, &more[i - 1]);
	world_free();
}

/* --- seeds ---------------------------------------------------------------------- */

static uint64_t sum_kills, sum_restarts, sum_repeated, sum_whole, sum_ports;

static void seed_run(uint64_t seed)
{
	struct path_state s;
	nics_reset(seed);
	fake.no_windows = seed % 3 == 0;
	for (int d = 0; d < FAKE_DEVICES; d++)
		fake.device[d].node = (int)fake_below(3) - 1;
	for (int i = 0; i < POOLS; i++) {
		nodes.src[i] = (int)fake_below(3) - 1;
		nodes.dst[i] = (int)fake_below(3) - 1;
	}
	world_make(POOLS);
	world_trouble();
	w->ports = fake_below(8);
	fake.slow = (int)fake_below(2);
	run_world(1);
	rdma_path_ops.path_state(w->path, &s);
	sum_kills += fake.kills;
	sum_ports += fake.port_events;
	sum_restarts += s.restarts;
	sum_repeated += s.repeated_bytes;
	sum_whole += w->whole;
	world_free();
}

TEST_LOOP(test_seeds, 0, 4)
{
	sum_kills = sum_restarts = sum_repeated = sum_whole = sum_ports = 0;
	for (uint64_t seed = 1; seed <= 100; seed++)
		seed_run(10000 + (uint64_t)_i * 100 + seed);
	ck_assert_msg(sum_kills > 50 && sum_restarts > 50 && sum_repeated && sum_whole > 50 &&
	                  sum_ports > 50,
	              "kills %" PRIu64 ", restarts %" PRIu64 ", repeated %" PRIu64 ", whole %" PRIu64
	              ", ports %" PRIu64,
	              sum_kills, sum_restarts, sum_repeated, sum_whole, sum_ports);
}

TEST_START(one_seed)
{
	if (argc > 1) { /* one seed, for a debugger */
		log_set_level("debug");
		seed_run(strtoull(argv[1], NULL, 10));
		exit(0);
	}
	log_set_level(getenv("RDMA_LOG") ? "debug" : "error");
}
