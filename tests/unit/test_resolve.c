/* test_resolve.c - questions to DNS, answered by a name server on the same loop: what it says, and
 * what a broken or hostile one does. */
#include "msg/resolve.h"
#include "dns_rig.h"
#include "util/clock.h"

static struct event_base *base;
static struct dns dns;
static struct resolve_answer got;
static unsigned n_got;

static void setup(void)
{
	base = event_base_new();
	dns_start(&dns, base);
	n_got = 0;
}

static void teardown(void)
{
	dns_stop(&dns);
	event_base_free(base);
}

static void pump_ms(unsigned ms)
{
	struct timeval tv = {ms / 1000, ms % 1000 * 1000};
	event_base_loopexit(base, &tv);
	event_base_dispatch(base);
}

static void take(void *arg, const struct resolve_answer *a)
{
	(void)arg;
	got = *a;
	n_got++;
}

static const struct resolve_answer *ask(enum resolve_kind kind, const char *name)
{
	unsigned before = n_got;
	resolve_start(base, dns.servers, kind, name, take, NULL);
	ck_assert_uint_eq(n_got, before); /* never from within resolve_start */
	for (uint64_t end = clock_us() + 2 * RESOLVE_LIMIT_US; n_got == before; pump_ms(2))
		ck_assert_msg(clock_us() < end, "no answer about %s", name);
	return &got;
}

static int has(const struct resolve_answer *a, const char *host)
{
	for (unsigned i = 0; i < a->n; i++)
		if (strcmp(a->records[i].host, host) == 0)
			return 1;
	return 0;
}

TEST_CASE("resolve", .timeout_s = 60, .setup = setup, .teardown = teardown);

TEST(addresses_of_both_families)
{
	dns_add(&dns, "r.test", T_A, "127.0.0.3", 0);
	dns_add(&dns, "r.test", T_A, "127.0.0.4", 0);
	dns_add(&dns, "r.test", T_AAAA, "fd00::7", 0);
	const struct resolve_answer *a = ask(RESOLVE_ADDRESSES, "r.test.");
	ck_assert_int_eq(a->code, 0);
	ck_assert_uint_eq(a->n, 3);
	ck_assert(has(a, "127.0.0.3") && has(a, "127.0.0.4") && has(a, "fd00::7"));
}

TEST(records_of_a_service)
{
	dns_add(&dns, "_pd._tcp.r.test", T_SRV, "router-1.r.test", 7001);
	dns_add(&dns, "_pd._tcp.r.test", T_SRV, "router-0.r.test", 7000);
	dns_add(&dns, "_pd._tcp.r.test", T_SRV, "router-1.r.test", 7001);
	const struct resolve_answer *a = ask(RESOLVE_SERVICE, "_pd._tcp.r.test.");
	ck_assert_int_eq(a->code, 0);
	ck_assert_uint_eq(a->n, 2);
	ck_assert_str_eq(a->records[0].host, "router-0.r.test");
	ck_assert_uint_eq(a->records[0].port, 7000);
	ck_assert_str_eq(a->records[1].host, "router-1.r.test");
	ck_assert_uint_eq(a->records[1].port, 7001);
}

/* What DNS denies, and what it fails to say, are two things. */
TEST(denied_and_failed)
{
	dns_add(&dns, "r.test", T_SRV, "router-0.r.test", 7000);
	for (int service = 0; service < 2; service++)
		ck_assert_int_eq(ask(service ? RESOLVE_SERVICE : RESOLVE_ADDRESSES, "no.test.")->code,
		                 ERR_NOTFOUND);
	ck_assert_int_eq(ask(RESOLVE_ADDRESSES, "r.test.")->code, ERR_NOTFOUND);
	dns.fault = DNS_SERVFAIL;
	for (int service = 0; service < 2; service++) {
		const struct resolve_answer *a = ask(service ? RESOLVE_SERVICE : RESOLVE_ADDRESSES,
		                                     "r.test.");
		ck_assert(a->code < 0 && a->code != ERR_NOTFOUND);
		ck_assert_uint_eq(a->n, 0);
	}
}

static void count(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	++*(unsigned *)arg;
}

/* A server that says nothing ends the question in time, and the loop goes on meanwhile. */
TEST(silence_ends)
{
	unsigned ticks = 0;
	struct timeval tv = {0, 10000};
	struct event *tick = event_new(base, -1, EV_PERSIST, count, &ticks);
	event_add(tick, &tv);
	dns.fault = DNS_SILENT;
	uint64_t begun = clock_us();
	ck_assert_int_eq(ask(RESOLVE_SERVICE, "r.test.")->code, ERR_TIMEOUT);
	ck_assert_uint_lt(clock_us() - begun, 2 * RESOLVE_LIMIT_US);
	ck_assert_uint_gt(ticks, 20);
	event_free(tick);
}

/* The answer does not fit into a datagram, nor into what we keep. */
TEST(truncated_comes_whole_by_tcp)
{
	static char names[40][40];
	for (unsigned i = 0; i < 40; i++) {
		snprintf(names[i], sizeof names[i], "router-%02u.r.test", (i * 7) % 40);
		dns_add(&dns, "r.test", T_SRV, names[i], 7000);
	}
	dns.fault = DNS_TRUNCATES;
	const struct resolve_answer *a = ask(RESOLVE_SERVICE, "r.test.");
	ck_assert_int_eq(a->code, 0);
	ck_assert_uint_eq(dns.asked_tcp, 1);
	ck_assert_uint_eq(a->n, RESOLVE_MAX);
	ck_assert_uint_eq(a->left_out, 40 - RESOLVE_MAX);
	for (unsigned i = 0; i < a->n; i++) {
		char want[40];
		snprintf(want, sizeof want, "router-%02u.r.test", i);
		ck_assert_str_eq(a->records[i].host, want);
	}
}

TEST(bad_names_are_left_out)
{
	dns_add(&dns, "r.test", T_SRV, "rou\nter.r.test", 7000);
	dns_add(&dns, "r.test", T_SRV, "a@b.r.test", 7000);
	dns_add(&dns, "r.test", T_SRV, "", 7000);
	dns_add(&dns, "r.test", T_SRV, "router-0.r.test", 0);
	ck_assert_int_eq(ask(RESOLVE_SERVICE, "r.test.")->code, ERR_NOTFOUND);
	ck_assert_uint_eq(got.n, 0);
	dns_add(&dns, "r.test", T_SRV, "router-1.r.test", 7000);
	ck_assert_int_eq(ask(RESOLVE_SERVICE, "r.test.")->code, 0);
	ck_assert_uint_eq(got.n, 1);
	ck_assert_uint_eq(got.left_out, 4);
}

struct garbled {
	struct resolve *question;
	unsigned answers;
};

static void take_garbled(void *arg, const struct resolve_answer *a)
{
	struct garbled *g = arg;
	g->question = NULL;
	g->answers++;
	ck_assert_uint_le(a->n, RESOLVE_MAX);
	ck_assert(a->code <= 0 && (a->code == 0) == (a->n > 0));
	for (unsigned i = 0; i < a->n; i++)
		ck_assert_ptr_null(strpbrk(a->records[i].host, " @/\n\\"));
	n_got++;
}

/* Answers with changed, missing and added bytes. What c-ares drops would be asked again after a
 * second: those questions are cancelled. */
TEST(garbage)
{
	enum { ROUNDS = 40, AT_ONCE = 50 };
	dns_add(&dns, "r.test", T_A, "127.0.0.3", 0);
	dns_add(&dns, "r.test", T_AAAA, "fd00::7", 0);
	dns_add(&dns, "r.test", T_SRV, "router-0.r.test", 7000);
	dns_add(&dns, "r.test", T_SRV, "router-1.r.test", 7001);
	dns.fault = DNS_GARBAGE;
	for (unsigned round = 0; round < ROUNDS; round++) {
		struct garbled all[AT_ONCE] = {0};
		unsigned asked = dns.asked;
		for (unsigned i = 0; i < AT_ONCE; i++)
			all[i].question = resolve_start(base, dns.servers,
			                                i % 2 ? RESOLVE_SERVICE : RESOLVE_ADDRESSES, "r.test.",
			                                take_garbled, &all[i]);
		for (uint64_t end = clock_us() + 10000000; dns.asked < asked + AT_ONCE; pump_ms(2))
			ck_assert(clock_us() < end);
		pump_ms(10);
		for (unsigned i = 0; i < AT_ONCE; i++) {
			ck_assert_uint_le(all[i].answers, 1);
			resolve_cancel(&all[i].question);
		}
	}
	ck_assert_uint_gt(n_got, ROUNDS); /* most are dropped as no answers at all */
}

TEST(cancelled_is_not_answered)
{
	struct resolve *r = NULL;
	dns_add(&dns, "r.test", T_A, "127.0.0.3", 0);
	resolve_cancel(&r); /* none */
	for (unsigned i = 0; i < 2; i++) {
		/* the server has not seen it yet; it has, and does not answer */
		dns.fault = i ? DNS_SILENT : DNS_NONE;
		r = resolve_start(base, dns.servers, RESOLVE_ADDRESSES, "r.test.", take, NULL);
		if (i)
			pump_ms(20);
		resolve_cancel(&r);
		ck_assert_ptr_null(r);
	}
	dns.fault = DNS_NONE;
	pump_ms(20);
	ck_assert_uint_eq(n_got, 0);
	ck_assert_int_eq(ask(RESOLVE_ADDRESSES, "r.test.")->code, 0);
}

TEST(servers_are_checked)
{
	struct err err = {0};
	ck_assert_int_eq(resolve_check_servers("", &err), 0);
	ck_assert_int_eq(resolve_check_servers("127.0.0.1", &err), 0);
	ck_assert_int_eq(resolve_check_servers("127.0.0.1:5300,[::1]:53", &err), 0);
	ck_assert_int_eq(resolve_check_servers("ns.example.org", &err), ERR_INVALID);
	ck_assert_ptr_nonnull(strstr(err.text, "dns_servers = \"ns.example.org\""));
}
