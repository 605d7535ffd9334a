/* test_routers.c - links to hosts by name, and routers that DNS names, against a name server whose
 * answers change: routers added, removed and moved, and a server that fails. */
/* run: waits */
#include "daemons/worker/links/routers.h"
#include "dns_rig.h"
#include "msg_pair.h"

#include <sys/stat.h>

#define ROUTERS 3u
#define TAG 1

static struct dns dns;
static struct side routers[ROUTERS], worker;
static struct keys *router_keys[ROUTERS], *worker_keys;
static char names[ROUTERS][12], hosts[ROUTERS][24], listens[ROUTERS][64];
static char folders[ROUTERS][TEST_FOLDER_BYTES], folder[TEST_FOLDER_BYTES];
static const char *const addresses[ROUTERS] = {"127.0.0.10", "127.0.0.11", "127.0.0.12"};
static int port;
static struct routers *set;

static int free_port(void)
{
	int s = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof a;
	ck_assert(bind(s, (struct sockaddr *)&a, sizeof a) == 0);
	ck_assert(getsockname(s, (struct sockaddr *)&a, &len) == 0);
	close(s);
	return ntohs(a.sin_port);
}

static void copy_key(const char *from, const char *name, const char *to)
{
	char path[200], text[KEY_FILE_BYTES] = "";
	snprintf(path, sizeof path, "%s/%s.pub", from, name);
	FILE *f = fopen(path, "r");
	ck_assert(f && fread(text, 1, sizeof text - 1, f) > 0 && fclose(f) == 0);
	snprintf(path, sizeof path, "%s/known/%s.pub", to, name);
	f = fopen(path, "w");
	ck_assert(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

static struct keys *make_key(const char *in, const char *name, enum key_role role)
{
	struct keys *k = NULL;
	struct err err = {0};
	ck_assert_msg(keys_generate(in, name, role, &err) == 0, "%s", err.text);
	ck_assert_msg(keys_open(in, name, &k, &err) == 0, "%s", err.text);
	return k;
}

/* at first all with the same port */
static void router_start(unsigned i, const char *address)
{
	snprintf(listens[i], sizeof listens[i], "tcp://%s:%d", address, port);
	routers[i].opts.listen = listens[i];
	side_start(base, &routers[i]);
}

static void on_down(void *arg, struct peer *p, const char *why)
{
	side_down(arg, p, why);
	routers_down(set, p);
}

static void setup(void)
{
	struct err err = {0};
	struct chan_opts o = pair_opts(0);
	struct chan_hooks h = {.arg = &worker, .up = side_up, .down = on_down};
	base_setup();
	dns_start(&dns, base);
	port = free_port();
	o.silence_us = 200000; /* a goodbye is lost here: it is not waited for on one thread */
	test_folder(folder, "worker");
	worker_keys = make_key(folder, "decode-1", KEY_WORKER);
	for (unsigned i = 0; i < ROUTERS; i++) {
		snprintf(names[i], sizeof names[i], "router-%u", i);
		snprintf(hosts[i], sizeof hosts[i], "router-%u.r.test", i);
		test_folder(folders[i], names[i]);
		router_keys[i] = make_key(folders[i], names[i], KEY_ROUTER);
		copy_key(folders[i], names[i], folder);
		copy_key(folder, "decode-1", folders[i]);
		keys_reload(router_keys[i]);
		routers[i] = (struct side){.name = names[i], .epoch = 1000 * (i + 1), .opts = o};
		routers[i].opts.program = "pdrouterd";
		routers[i].opts.keys = router_keys[i];
		router_start(i, addresses[i]);
		dns_add(&dns, hosts[i], T_A, addresses[i], 0);
	}
	keys_reload(worker_keys);
	worker = (struct side){.name = "decode-1", .epoch = 9000, .opts = o};
	o.program = "pddecoded";
	o.name = "decode-1";
	o.epoch = 9000;
	o.keys = worker_keys;
	o.peers_max = 32;
	o.dns_servers = dns.servers;
	ck_assert_msg(chan_new(base, &o, &h, &worker.c, &err) == 0, "%s", err.text);
	set = routers_new(&(struct routers_opts){.base = base,
	                                         .chan = worker.c,
	                                         .tag = TAG,
	                                         .resolve_us = 40000,
	                                         .dns_servers = dns.servers});
}

static void teardown(void)
{
	routers_destroy(&set);
	chan_destroy(&worker.c);
	for (unsigned i = 0; i < ROUTERS; i++) {
		chan_destroy(&routers[i].c);
		keys_close(&router_keys[i]);
	}
	keys_close(&worker_keys);
	dns_stop(&dns);
	base_teardown();
}

static struct peer *link_to(const char *name)
{
	for (struct peer *p = chan_next(worker.c, NULL); p; p = chan_next(worker.c, p))
		if (strcmp(peer_expected(p), name) == 0)
			return p;
	return NULL;
}

/* "0+ 1-": linked to router-0, which is up, and to router-1, which is down */
static const char *links(void)
{
	static char text[64];
	*text = 0;
	for (unsigned i = 0; i < ROUTERS; i++) {
		struct peer *p = link_to(names[i]);
		if (p)
			snprintf(text + strlen(text), sizeof text - strlen(text), "%s%u%c", *text ? " " : "", i,
			         peer_is_up(p) ? '+' : '-');
	}
	return text;
}

static void until_links(const char *want)
{
	for (uint64_t end = clock_us() + 5000000; strcmp(links(), want) != 0; pump_ms(base, 2))
		ck_assert_msg(clock_us() < end, "links are \"%s\", not \"%s\"", links(), want);
}

/* For as long as several questions take. */
static void stays(const char *want)
{
	unsigned asked = dns.asked;
	for (uint64_t end = clock_us() + 250000; clock_us() < end; pump_ms(base, 2))
		ck_assert_str_eq(links(), want);
	if (dns.fault != DNS_SILENT)
		ck_assert_uint_gt(dns.asked, asked + 2);
}

static void add(const char *entry)
{
	struct err err = {0};
	ck_assert_msg(routers_add(set, entry, &err) == 0, "%s", err.text);
}

static void add_by_name(unsigned i)
{
	char entry[100];
	snprintf(entry, sizeof entry, "%s@tcp://%s:%d", names[i], hosts[i], port);
	add(entry);
}

/* The service has the routers whose digits are in `which`. */
static void serve(const char *which)
{
	unsigned n = 0;
	for (unsigned i = 0; i < dns.n; i++)
		if (dns.records[i].type != T_SRV)
			dns.records[n++] = dns.records[i];
	dns.n = n;
	for (; *which; which++)
		dns_add(&dns, "_pd._tcp.r.test", T_SRV, hosts[*which - '0'], (unsigned)port);
}

/* --- links to a host's name ------------------------------------------------ */

TEST_CASE("routers", .timeout_s = 60, .setup = setup, .teardown = teardown);

TEST(a_name_that_moves)
{
	add_by_name(0);
	until_links("0+");
	for (unsigned life = 0; life < 3; life++) {
		static const char *const address[] = {"127.0.0.20", "127.0.0.21", "127.0.0.10"};
		chan_destroy(&routers[0].c);
		until_links("0-");
		dns.records[0].value = address[life];
		router_start(0, address[life]);
		until_links("0+");
	}
}

TEST(a_name_that_appears)
{
	dns_clear(&dns);
	add_by_name(0);
	for (uint64_t end = clock_us() + 10000000; dns.asked < 2; pump_ms(base, 2))
		ck_assert(clock_us() < end);
	ck_assert_str_eq(links(), "0-");
	dns_add(&dns, hosts[0], T_A, "127.0.0.10", 0);
	until_links("0+");
}

/* Nobody listens at the other address. */
TEST(several_addresses_are_tried)
{
	dns_clear(&dns);
	dns_add(&dns, hosts[0], T_A, "127.0.0.30", 0);
	dns_add(&dns, hosts[0], T_A, "127.0.0.10", 0);
	add_by_name(0);
	until_links("0+");
}

/* Whatever DNS does, a link that is up stays up, and one that is down comes back where it was. */
TEST_LOOP(dns_fails_and_links_stay, DNS_SILENT, DNS_SERVFAIL + 1)
{
	add_by_name(0);
	until_links("0+");
	dns.fault = (enum dns_fault)_i;
	chan_destroy(&routers[0].c);
	until_links("0-");
	pump_ms(base, 200);
	router_start(0, "127.0.0.10");
	until_links("0+");
}

TEST(ipv6)
{
	struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
	int s = socket(AF_INET6, SOCK_STREAM, 0);
	int there = s >= 0 && bind(s, (struct sockaddr *)&a, sizeof a) == 0;
	if (s >= 0)
		close(s);
	if (!there)
		return; /* this machine has no IPv6 */
	chan_destroy(&routers[0].c);
	router_start(0, "[::1]");
	dns_clear(&dns);
	dns_add(&dns, hosts[0], T_AAAA, "::1", 0);
	add_by_name(0);
	until_links("0+");
	/* an address in the endpoint */
	chan_destroy(&routers[1].c);
	port = free_port();
	router_start(1, "[::1]");
	char entry[100];
	snprintf(entry, sizeof entry, "%s@tcp://[::1]:%d", names[1], port);
	add(entry);
	until_links("0+ 1+");
}

/* --- routers of a service -------------------------------------------------- */

TEST(routers_come_and_go)
{
	add("srv://_pd._tcp.r.test");
	serve("");
	for (uint64_t end = clock_us() + 10000000; dns.asked < 2; pump_ms(base, 2))
		ck_assert(clock_us() < end);
	serve("01");
	until_links("0+ 1+");
	serve("201");
	until_links("0+ 1+ 2+");
	/* one that is up stays although DNS does not name it, until it is down */
	serve("0");
	stays("0+ 1+ 2+");
	chan_destroy(&routers[1].c);
	until_links("0+ 2+");
	/* one that is down stays as long as DNS names it */
	chan_destroy(&routers[0].c);
	until_links("0- 2+");
	stays("0- 2+");
	serve("2");
	until_links("2+");
	serve("02");
	router_start(0, "127.0.0.10");
	until_links("0+ 2+");
}

/* A failure of DNS ends nothing: not what is up, not what is down. That there is no such name
 * (NXDOMAIN) is an answer. */
TEST_LOOP(dns_fails_and_routers_stay, DNS_SILENT, DNS_SERVFAIL + 1)
{
	serve("01");
	add("srv://_pd._tcp.r.test");
	until_links("0+ 1+");
	chan_destroy(&routers[1].c);
	until_links("0+ 1-");
	dns.fault = (enum dns_fault)_i;
	stays("0+ 1-");
	dns.fault = DNS_NONE;
	serve("");
	until_links("0+");
}

/* DNS says where a router is, not who is one. */
TEST(only_keys_of_routers)
{
	struct err err = {0};
	char path[200];
	snprintf(path, sizeof path, "%s/known/router-2.pub", folder);
	unlink(path);
	chan_keys_reload(worker.c);
	ck_assert_int_eq(keys_generate(folder, "decode-7", KEY_WORKER, &err), 0);
	copy_key(folder, "decode-7", folder);
	serve("02");
	dns_add(&dns, "_pd._tcp.r.test", T_SRV, "decode-7.r.test", (unsigned)port);
	dns_add(&dns, "_pd._tcp.r.test", T_SRV, "nobody.r.test", (unsigned)port);
	/* at the address of another router */
	dns_add(&dns, "_pd._tcp.r.test", T_SRV, hosts[1], (unsigned)port);
	dns.records[1].value = "127.0.0.12";
	add("srv://_pd._tcp.r.test");
	until_links("0+ 1-");
	stays("0+ 1-");
	ck_assert_ptr_null(link_to("decode-7"));
	ck_assert_ptr_null(link_to("nobody"));
	copy_key(folders[2], "router-2", folder); /* a key that is added counts */
	until_links("0+ 1- 2+");
}

/* The same router at another port. */
TEST(a_router_gets_another_port)
{
	serve("0");
	add("srv://_pd._tcp.r.test");
	until_links("0+");
	chan_destroy(&routers[0].c);
	until_links("0-");
	port = free_port();
	router_start(0, "127.0.0.10");
	serve("0");
	until_links("0+");
}

TEST(one_link_to_a_router)
{
	serve("01");
	add_by_name(0);
	add("srv://_pd._tcp.r.test");
	add("srv://_pd._tcp.r.test");
	until_links("0+ 1+");
	stays("0+ 1+");
	unsigned n = 0;
	for (struct peer *p = chan_next(worker.c, NULL); p; p = chan_next(worker.c, p))
		n++;
	ck_assert_uint_eq(n, 2);
	/* the configuration names it: what DNS says does not end it */
	serve("1");
	chan_destroy(&routers[0].c);
	until_links("0- 1+");
	stays("0- 1+");
}

TEST(bad_entries)
{
	static const char *const bad[] = {"srv://", "srv://_pd._tcp.r.test:7000", "srv://a@b",
	                                  "dns://r.test:7000", "nobody@tcp://r.test:7000"};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct err err = {0};
		ck_assert_msg(routers_add(set, bad[i], &err) < 0, "%s", bad[i]);
		ck_assert_ptr_nonnull(strstr(err.text, bad[i]));
	}
	ck_assert_str_eq(links(), "");
}
