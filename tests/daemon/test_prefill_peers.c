/* test_prefill_peers.c - a pdprefilld between played peers: whom it connects to, and what it tells
 * others of its messager, on this host and on others. */
/* run: waits */
#include "prefill_world.h"

#include <dirent.h>

static void say_peers(struct side *from, const char *const *names, size_t n)
{
	char endpoint[64][128];
	Pds__Peer peer[64], *list[64];
	Pds__Peers m = PDS__PEERS__INIT;
	for (size_t i = 0; i < n; i++) {
		pds__peer__init(&peer[i]);
		endpoint_of(names[i], endpoint[i]);
		peer[i].name = (char *)names[i];
		peer[i].endpoint = endpoint[i];
		peer[i].role = (char *)"decode";
		list[i] = &peer[i];
	}
	m.peers = list;
	m.n_peers = n;
	say(from, MSG_PEERS, 0, &m);
}

static unsigned descriptors(void)
{
	char path[64];
	unsigned n = 0;
	snprintf(path, sizeof path, "/proc/%d/fd", (int)W.daemon);
	DIR *d = opendir(path);
	ck_assert_ptr_nonnull(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* Decode workers come and go under new names: what no router names any more costs nothing. */
TEST(test_peers_that_left)
{
	static const char *const first[] = {"decode-1"};
	char names[30][32];
	const char *gone[30];
	world_begin("kv_blocks=64");
	say_peers(ROUTER, first, 1);
	UNTIL(D1->p);
	unsigned before = descriptors();
	for (int i = 0; i < 30; i++) {
		snprintf(names[i], sizeof names[i], "gone-%d", i);
		gone[i] = names[i];
	}
	say_peers(ROUTER, gone, 30);
	/* one for each link, and one or two of before may have been a connection's */
	UNTIL(descriptors() >= before + 28);
	say_peers(ROUTER, first, 1);
	UNTIL(descriptors() <= before + 2);
	ck_assert_ptr_nonnull(D1->p);
	world_end();
}

/* Only a router says who the others are. */
TEST(test_peers_from_a_decode_worker)
{
	static const char *const first[] = {"decode-1"}, *const second[] = {"decode-2"};
	world_begin("kv_blocks=64");
	say_peers(ROUTER, first, 1);
	UNTIL(D1->p);
	say_peers(D1, second, 1);
	say_submit((struct ask){.req = 1, .n = 50, .to = "1"});
	UNTIL(count(D1, MSG_KV_RESERVE, 1));
	say_deny(D1, 1, PDS__FAULT__FAULT_TOO_LARGE, "no"); /* behind its PEERS on one link */
	UNTIL(count(ROUTER, MSG_REQUEST_FAILED, 1));
	pump_for(300000); /* in which it would connect */
	ck_assert_ptr_null(D2->p);
	world_end();
}

/* --- several hosts --- */

static char own_keys[TEST_FOLDER_BYTES], keys_option[TEST_FOLDER_BYTES + 8], log_path[128];

/* A folder with the daemon's own key; it goes with the test's. */
static void make_keys(void)
{
	struct err err = {0};
	test_folder(own_keys, "prefill_keys");
	ck_assert_msg(keys_generate(own_keys, "prefill", KEY_WORKER, &err) == 0, "%s", err.text);
	snprintf(keys_option, sizeof keys_option, "keys=%s", own_keys);
	snprintf(log_path, sizeof log_path, "%s/log", own_keys);
}

static unsigned logged(const char *text)
{
	static char log[65536];
	FILE *f = fopen(log_path, "r");
	unsigned n = 0;
	log[f ? fread(log, 1, sizeof log - 1, f) : 0] = 0;
	if (f)
		fclose(f);
	for (const char *at = log; (at = strstr(at, text)); at++)
		n++;
	return n;
}

static void say_far(const char *const *names, size_t n)
{
	Pds__Peer peer[4], *list[4];
	char endpoint[4][128];
	Pds__Peers m = PDS__PEERS__INIT;
	for (size_t i = 0; i < n; i++) {
		pds__peer__init(&peer[i]);
		snprintf(endpoint[i], sizeof endpoint[i], "%s@tcp://127.0.0.1:9", names[i]);
		peer[i].name = (char *)names[i];
		peer[i].endpoint = endpoint[i];
		peer[i].role = (char *)"decode";
		peer[i].epoch = 7;
		peer[i].messager = (char *)"messager-b@tcp://127.0.0.1:9";
		list[i] = &peer[i];
	}
	m.peers = list;
	m.n_peers = n;
	say(ROUTER, MSG_PEERS, 0, &m);
}

/* The messager's address is told in HELLO, or as soon as the messager is attached. */
TEST(test_the_messagers_address_is_told)
{
	make_keys();
	W.remote = "messager@tcp://10.0.0.9:7003";
	W.door_waits = 1;
	world_begin("kv_blocks=64", keys_option);
	const Pds__WorkerInfo *info = peer_worker(ROUTER->p);
	ck_assert_str_eq(info->messager, "");
	ck_assert_str_eq(info->remote, ""); /* it does not listen */
	UNTIL(count(ROUTER, MSG_WORKER_UPDATE, 0));
	ck_assert_str_eq(LATEST(Pds__WorkerUpdate, ROUTER, WORKER_UPDATE, 0)->worker->messager,
	                 W.remote);
	/* a router that comes later hears it too: in HELLO here, and once more */
	link_again(ROUTER, ROUTER->epoch + 1);
	ck_assert_str_eq(peer_worker(ROUTER->p)->messager, W.remote);
	world_end();
}

/* A worker without keys can reach no other host, whatever its messager can. */
TEST(test_without_keys_no_messager_is_told)
{
	W.remote = "messager@tcp://10.0.0.9:7003";
	world_begin("kv_blocks=64", "keys=/nonexistent");
	pump_for(100000);
	ck_assert_str_eq(peer_worker(ROUTER->p)->messager, "");
	list_each(it, &W.got) {
		const struct got *g = list_entry(it, struct got, node);
		ck_assert(g->type != MSG_WORKER_UPDATE ||
		          !*((const Pds__WorkerUpdate *)g->body)->worker->messager);
	}
	world_end();
}

/* "NAME ROLE EPOCH ENDPOINT MESSAGER;" of each that the messager was last told of. */
static const char *peers_told(void)
{
	static char text[512];
	const Pds__Peers *m = LATEST(Pds__Peers, MESSAGER, PEERS, 0);
	size_t n = 0;
	text[0] = 0;
	for (size_t i = 0; i < m->n_peers && n < sizeof text; i++)
		n += (size_t)snprintf(text + n, sizeof text - n, "%s %s %llu %s %s;", m->peers[i]->name,
		                      m->peers[i]->role, (unsigned long long)m->peers[i]->epoch,
		                      m->peers[i]->endpoint, m->peers[i]->messager);
	return text;
}

/* The messager is told of the messagers of other hosts, and of each change; a worker without a
 * messager there, and one of this host, are none of its business. */
TEST(test_the_messager_is_told_of_others)
{
	static const char *const near[] = {"decode-1"}, *const far[] = {"far-1", "far-2"};
	static const char
		one[] = "far-1 decode 7 far-1@tcp://127.0.0.1:9 messager-b@tcp://127.0.0.1:9;",
		two[] = "far-2 decode 7 far-2@tcp://127.0.0.1:9 messager-b@tcp://127.0.0.1:9;";
	char both[200];
	make_keys();
	world_begin("kv_blocks=64", keys_option);
	say_peers(ROUTER, near, 1);
	UNTIL(D1->p);
	pump_for(100000);
	ck_assert_uint_eq(count(MESSAGER, MSG_PEERS, 0), 0);
	say_far(far, 1);
	UNTIL(count(MESSAGER, MSG_PEERS, 0) == 1);
	ck_assert_str_eq(peers_told(), one);
	say_far(far, 1); /* nothing new */
	say_far(far, 2);
	UNTIL(count(MESSAGER, MSG_PEERS, 0) == 2);
	snprintf(both, sizeof both, "%s%s", one, two);
	ck_assert_str_eq(peers_told(), both);
	/* the next messager is told at once */
	side_again(MESSAGER, MESSAGER->epoch + 1);
	UNTIL(count(MESSAGER, MSG_PEERS, 0) == 3);
	ck_assert_str_eq(peers_told(), both);
	say_peers(ROUTER, near, 1);
	UNTIL(count(MESSAGER, MSG_PEERS, 0) == 4);
	ck_assert_str_eq(peers_told(), "");
	/* also that it is nobody any more */
	side_again(MESSAGER, MESSAGER->epoch + 1);
	UNTIL(count(MESSAGER, MSG_PEERS, 0) == 5);
	ck_assert_str_eq(peers_told(), "");
	world_end();
}

/* A decode worker of another host whose key is missing: one line in the log, and its requests fail
 * at once or go to the next candidate. */
TEST(test_no_key_of_a_decode_worker)
{
	static const char *const far[] = {"far-1", "far-2"};
	make_keys();
	ck_assert_ptr_nonnull(freopen(log_path, "w", stderr)); /* the daemon inherits it */
	world_begin("kv_blocks=64", keys_option, "log_level=warn");
	for (int i = 0; i < 20; i++)
		say_far(far, 2);
	UNTIL(logged("event=peers_skipped") == 1);
	ck_assert_uint_eq(logged("decode=\"far-1 far-2\""), 1);
	ck_assert_uint_eq(logged("event=connect_failed"), 0);
	say_submit((struct ask){.req = 1, .n = 50, .to = "f"});
	UNTIL(count(ROUTER, MSG_REQUEST_FAILED, 1));
	ck_assert(strstr(LATEST(Pds__Failed, ROUTER, REQUEST_FAILED, 1)->text, "no keys"));
	say_submit((struct ask){.req = 2, .n = 50, .to = "f1"});
	UNTIL(count(D1, MSG_KV_RESERVE, 2));
	say_cancel(ROUTER, 2);
	ck_assert_uint_eq(logged("event=connect_failed"), 0);
	ck_assert_uint_eq(logged("event=peers_skipped"), 1);
	world_end();
}
