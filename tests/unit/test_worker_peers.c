/* test_worker_peers.c - the other workers, as several routers name them (daemons/worker/links/
 * peer_lists.h). */
#include "daemons/worker/links/peer_lists.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct peer_lists lists;
static int routers[PEER_LISTS_MAX];
#define ROUTER(i) ((const struct peer *)&routers[i])

static void teardown(void)
{
	peer_lists_fini(&lists);
}

/* text: "NAME:EPOCH:ENDPOINT[:MESSAGER] ..." */
static void names(unsigned router, const char *text)
{
	char copy[400], *rest = copy;
	Pds__Peer peer[8], *list[8];
	Pds__Peers m = PDS__PEERS__INIT;
	snprintf(copy, sizeof copy, "%s", text);
	for (char *word; (word = strsep(&rest, " "));) {
		if (!*word)
			continue;
		Pds__Peer *p = list[m.n_peers] = &peer[m.n_peers];
		pds__peer__init(p);
		p->role = (char *)"decode";
		p->name = strsep(&word, ":");
		p->epoch = strtoull(strsep(&word, ":"), NULL, 10);
		p->endpoint = strsep(&word, ":");
		if (word)
			p->messager = word;
		m.n_peers++;
	}
	m.peers = list;
	ck_assert_int_eq(peer_lists_take(&lists, ROUTER(router), &m), 0);
	memset(copy, '!', sizeof copy); /* the lists have copies */
}

static const char *joined(int with_messager)
{
	static char text[600];
	size_t n = 0;
	Pds__Peers m;
	text[0] = 0;
	peer_lists_union(&lists, with_messager, &m);
	for (size_t i = 0; i < m.n_peers; i++) {
		const Pds__Peer *p = m.peers[i];
		ck_assert_str_eq(p->role, "decode");
		n += (size_t)snprintf(text + n, sizeof text - n, "%s%s:%llu:%s%s%s", n ? " " : "", p->name,
		                      (unsigned long long)p->epoch, p->endpoint, *p->messager ? ":" : "",
		                      p->messager);
	}
	free(m.peers);
	return text;
}

static const struct {
	const char *first, *second, *all, *with_messager;
} rows[] = {
	{"", "", "", ""},
	{"d1:5:x", "", "d1:5:x", ""},
	{"d2:5:y d1:5:x", "d3:5:z:m", "d1:5:x d2:5:y d3:5:z:m", "d3:5:z:m"},
	{"d1:5:x:m", "d1:5:x:m", "d1:5:x:m", "d1:5:x:m"},
	/* one router has not heard of the next life, or of the messager, yet */
	{"d1:5:x:m", "d1:6:y", "d1:6:y", ""},
	{"d1:6:y", "d1:5:x:m", "d1:6:y", ""},
	{"d1:5:x", "d1:5:x:m", "d1:5:x:m", "d1:5:x:m"},
	{"d1:5:x:m", "d1:5:x", "d1:5:x:m", "d1:5:x:m"},
};

TEST_CASE("worker_peers", .teardown = teardown);

TEST_LOOP(two_routers, 0, sizeof rows / sizeof *rows)
{
	names(0, rows[_i].first);
	names(1, rows[_i].second);
	ck_assert_str_eq(joined(0), rows[_i].all);
	ck_assert_str_eq(joined(1), rows[_i].with_messager);
}

TEST(the_last_list_of_a_router_counts)
{
	char want[PEER_LISTS_MAX * 8] = "";
	ck_assert_str_eq(joined(0), ""); /* none has said anything */
	names(0, "d1:5:x d2:5:y");
	names(1, "d2:5:y d3:5:z");
	names(0, "d4:5:w");
	ck_assert_str_eq(joined(0), "d2:5:y d3:5:z d4:5:w");
	names(1, "");
	ck_assert_str_eq(joined(0), "d4:5:w");
	for (unsigned i = 0; i < PEER_LISTS_MAX; i++) { /* as many routers as can be configured */
		char text[16];
		snprintf(text, sizeof text, "w%02u:1:e", i);
		snprintf(want + strlen(want), sizeof want - strlen(want), "%s%.6s", i ? " " : "", text);
		names(i, text);
	}
	const char *got = joined(0);
	for (unsigned i = 0; i < PEER_LISTS_MAX; i++)
		ck_assert_int_eq(strncmp(got + i * 8, want + i * 7, 6), 0);
}

/* A router that DNS does not name any more; another one takes its place. */
TEST(routers_come_and_go)
{
	Pds__Peers none = PDS__PEERS__INIT;
	for (unsigned i = 0; i < 3 * PEER_LISTS_MAX; i++) {
		unsigned k = i % PEER_LISTS_MAX;
		names(k, "d:1:a");
		peer_lists_drop(&lists, ROUTER(k));
	}
	ck_assert_str_eq(joined(0), "");
	for (unsigned i = 0; i < PEER_LISTS_MAX; i++)
		ck_assert_int_eq(peer_lists_take(&lists, ROUTER(i), &none), 0);
	ck_assert_int_eq(peer_lists_take(&lists, (const struct peer *)&none, &none), ERR_FULL);
	peer_lists_drop(&lists, (const struct peer *)&none);
	ck_assert_uint_eq(lists.n, PEER_LISTS_MAX);
}
