/* test_prefill_daemon.c - a pdprefilld process between a played router, decode workers and
 * messager: what it asks, publishes, sends and gives back, and how each request ends. Every test
 * ends with a daemon that holds nothing (at_rest) and that leaves in order. */
#include "prefill_world.h"

#include <dirent.h>

/* --- asking a decode worker ---------------------------------------------- */

START_TEST(test_reserve_is_what_was_submitted)
{
	world_begin("kv_blocks=64");
	char endpoint[128];
	endpoint_of("decode-1", endpoint);
	Pds__Peer d = PDS__PEER__INIT, *list = &d;
	Pds__Peers m = PDS__PEERS__INIT;
	d.name = (char *)"decode-1";
	d.endpoint = endpoint;
	d.role = (char *)"decode";
	d.epoch = D1->epoch;
	m.peers = &list;
	m.n_peers = 1;
	say(ROUTER, MSG_PEERS, 0, &m);
	UNTIL(D1->p); /* before any request */
	say_submit((struct ask){.req = 1, .n = 50, .to = "12"});
	UNTIL(count(D1, MSG_KV_RESERVE, 1));
	const Pds__Reserve *r = LATEST(Pds__Reserve, D1, KV_RESERVE, 1);
	ck_assert_uint_eq(last_got(D1, MSG_KV_RESERVE, 1)->head.attempt, 1);
	ck_assert_uint_eq(r->request->n_tokens, 50);
	ck_assert_int_eq(memcmp(r->request->tokens, words, 50 * sizeof *words), 0);
	ck_assert_uint_eq(r->request->prompt_tokens, 50);
	ck_assert_uint_eq(r->request->max_tokens, 8);
	ck_assert_uint_eq(r->request->stop_ids[0], 319);
	ck_assert_uint_eq(r->request->sampling->seed, 77);
	ck_assert_uint_eq(r->request->cache_salt.len, sizeof salt);
	ck_assert_mem_eq(r->request->cache_salt.data, salt, sizeof salt);
	ck_assert_str_eq(r->router, "router");
	ck_assert_uint_eq(r->router_epoch, ROUTER->epoch);
	pump_for(50000);
	ck_assert_uint_eq(count(D2, MSG_KV_RESERVE, 1), 0);
	ck_assert_uint_eq(count(D1, MSG_KV_RESERVE, 1), 1);
	say_cancel(ROUTER, 1);
	world_end();
}
END_TEST

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
START_TEST(test_peers_that_left)
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
END_TEST

/* Only a router says who the others are. */
START_TEST(test_peers_from_a_decode_worker)
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
END_TEST

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
START_TEST(test_the_messagers_address_is_told)
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
END_TEST

/* A worker without keys can reach no other host, whatever its messager can. */
START_TEST(test_without_keys_no_messager_is_told)
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
END_TEST

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
START_TEST(test_the_messager_is_told_of_others)
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
END_TEST

/* A decode worker of another host whose key is missing: one line in the log, and its requests fail
 * at once or go to the next candidate. */
START_TEST(test_no_key_of_a_decode_worker)
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
END_TEST

START_TEST(test_grant_that_does_not_fit)
{
	static const struct {
		const char *name;
		int epoch_off;
		uint32_t cached, blocks;
	} bad[] = {
		{"cached_tokens no multiple of the block", 0, 8, 4},
		{"a block too few", 0, 0, 3},
		{"a block too many", 0, 0, 5},
		{"no block", 0, 0, 0},
		{"another epoch", 1, 0, 4},
		{"all of the prompt cached", 0, 64, 0},
		{"blocks as if nothing were cached", 0, 32, 4},
	};
	world_begin("kv_blocks=64");
	for (uint64_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		uint64_t req = i + 1;
		say_submit((struct ask){.req = req, .n = 64, .to = "12"});
		for (struct side *d = D1; d <= D2; d++) {
			UNTIL(count(d, MSG_KV_RESERVE, req));
			say_grant(d, req, req + 500, d->epoch + (uint64_t)bad[i].epoch_off, bad[i].cached,
			          bad[i].blocks);
			UNTIL(count(d, MSG_REQUEST_CANCEL, req));
		}
		const Pds__Failed *f = failed(req);
		ck_assert_msg(f->fault == PDS__FAULT__FAULT_INTERNAL && f->retry, "%s: fault %d, retry %d",
		              bad[i].name, f->fault, f->retry);
		ck_assert_str_eq(f->blame, "decode-2");
		at_rest();
		ck_assert_msg(count(ROUTER, MSG_REQUEST_FIRST_TOKEN, req) == 0, "%s: was computed",
		              bad[i].name);
	}
	world_end();
}
END_TEST

START_TEST(test_grant_is_taken_once)
{
	world_begin("kv_blocks=64");
	say_submit((struct ask){.req = 1, .n = 64, .to = "2"});
	UNTIL(count(D2, MSG_KV_RESERVE, 1));
	say_cancel(ROUTER, 1); /* the link to D2 is up now */
	say_submit((struct ask){.req = 2, .n = 64, .to = "12"});
	UNTIL(count(D1, MSG_KV_RESERVE, 2));
	say_grant(D2, 2, 900, D2->epoch, 0, 4);
	say_deny(D2, 2, PDS__FAULT__FAULT_NO_ROOM, "nobody asked");
	pump_for(50000);
	ck_assert_uint_eq(reserving(), 1);
	say_grant(D1, 2, 502, D1->epoch, 0, 4);
	say_grant(D1, 2, 901, D1->epoch, 0, 4);
	struct transfer t = transfer_of(2);
	ck_assert_uint_eq(transfer_now.lease_id, 502);
	ck_assert_str_eq(transfer_now.decode, "decode-1");
	first_token(2);
	say_grant(D1, 2, 902, D1->epoch, 0, 4);
	pump_for(50000);
	ck_assert_uint_eq(told("status", "ring_used"), 1);
	UNTIL(handed_over() == 1);
	ck_assert_uint_eq(told("status", "waiting"), 0);
	finish(D1, 2, &t);
	world_end();
}
END_TEST

START_TEST(test_deny)
{
	world_begin("kv_blocks=64");
	say_submit((struct ask){.req = 1, .n = 64, .to = "12"});
	UNTIL(count(D1, MSG_KV_RESERVE, 1));
	say_deny(D1, 1, PDS__FAULT__FAULT_NO_ROOM, "decode-1 is full");
	say_deny(D1, 1, PDS__FAULT__FAULT_NO_ROOM, "decode-1 is full");
	UNTIL(count(D2, MSG_KV_RESERVE, 1));
	pump_for(50000);
	ck_assert_uint_eq(count(ROUTER, MSG_REQUEST_FAILED, 1), 0);
	say_deny(D2, 1, PDS__FAULT__FAULT_DRAINING, "decode-2 is draining");
	const Pds__Failed *f = failed(1);
	ck_assert_int_eq(f->fault, PDS__FAULT__FAULT_DRAINING);
	ck_assert_str_eq(f->text, "decode-2 is draining");
	ck_assert_int_eq(f->retry, 1);
	at_rest();
	say_submit((struct ask){.req = 2, .n = 64, .to = "12"}); /* denied, then served by the next */
	UNTIL(count(D1, MSG_KV_RESERVE, 2));
	say_deny(D1, 2, PDS__FAULT__FAULT_NO_ROOM, "decode-1 is full");
	grant(D2, 2, 64);
	struct transfer t = transfer_of(2);
	ck_assert_str_eq(transfer_now.decode, "decode-2");
	ck_assert_str_eq(first_token(2)->decode, "decode-2");
	finish(D2, 2, &t);
	world_end();
}
END_TEST

/* One does not answer for 2 s, one has no link for 3 s: cancelled where it was asked, and the
 * next is asked. */
START_TEST(test_late_candidate)
{
	world_begin("kv_blocks=64");
	uint64_t begun = clock_us();
	say_submit((struct ask){.req = 1, .n = 64, .to = "12"});
	say_submit((struct ask){.req = 2, .n = 64, .to = "92"});
	say_submit((struct ask){.req = 3, .n = 64, .to = "9"});
	UNTIL(count(D1, MSG_REQUEST_CANCEL, 1) && count(D2, MSG_KV_RESERVE, 1));
	ck_assert_uint_ge(clock_us() - begun, 1900000);
	ck_assert_uint_eq(count(D1, MSG_KV_RESERVE, 1), 1);
	say_grant(D1, 1, 900, D1->epoch, 0, 4); /* too late */
	grant(D2, 1, 64);
	struct transfer one = transfer_of(1);
	ck_assert_uint_eq(transfer_now.lease_id, 501);
	first_token(1);
	finish(D2, 1, &one);
	grant(D2, 2, 64);
	struct transfer two = transfer_of(2);
	first_token(2);
	finish(D2, 2, &two);
	ck_assert_int_eq(failed(3)->fault, PDS__FAULT__FAULT_PEER_LOST);
	ck_assert_int_eq(failed(3)->retry, 1);
	world_end();
}
END_TEST

/* m11, m15: eight requests for a full decode worker hold no block and no thread; one for the
 * other is served at once. */
START_TEST(m11_m15_parked_with_blocks_or_thread)
{
	world_begin("kv_blocks=8", "prepare_threads=1");
	for (uint64_t r = 1; r <= 8; r++)
		say_submit((struct ask){.req = r, .n = 64, .to = "1"});
	for (uint64_t r = 1; r <= 8; r++)
		UNTIL(count(D1, MSG_KV_RESERVE, r));
	ck_assert_uint_eq(kv_count("held"), 0);
	ck_assert_uint_eq(told("status", "ring_used"), 0);
	struct transfer t = to_computed(D2, (struct ask){.req = 9, .n = 128, .to = "2"});
	ck_assert_uint_eq(kv_count("held"), 8);
	ck_assert_uint_eq(reserving(), 8);
	finish(D2, 9, &t);
	for (uint64_t r = 1; r <= 8; r++)
		say_cancel(ROUTER, r);
	world_end();
}
END_TEST

/* Granted, and no room here: it waits, keeps its lease alive, and runs when another's blocks or
 * slot come back. */
START_TEST(test_granted_and_blocked)
{
	static const char *const tight[2][3] = {{"kv_blocks=8", "ring_slots=8"},
	                                        {"kv_blocks=64", "ring_slots=1"}};
	world_begin_as(tight[_i]);
	struct transfer one = to_computed(D1, (struct ask){.req = 1, .n = 100, .to = "1"});
	say_submit((struct ask){.req = 2, .n = 100, .to = "1", .seed = 2});
	grant(D1, 2, 100);
	UNTIL(told("status", _i ? "slot" : "blocked") == 1);
	UNTIL(renewals(D1, 502) >= 1);
	ck_assert_uint_eq(count(ROUTER, MSG_REQUEST_FIRST_TOKEN, 2), 0);
	kv_sent(1, &one); /* from here on the first holds nothing but the request */
	struct transfer two = transfer_of(2);
	first_token(2);
	ack(D1, 1);
	finish(D1, 2, &two);
	world_end();
}
END_TEST

/* --- a grant's way to the end -------------------------------------------- */

/* The KV of the common prompt's full blocks, as the first transfer had it; later transfers name
 * blocks with the same bytes. */
static void check_src(uint32_t skip, uint32_t full)
{
	static unsigned char *kv;
	static uint32_t known;
	int first = !kv;
	if (first) {
		known = full;
		kv = mem_array(full, W.layout.block_bytes);
	}
	for (uint32_t l = 0; l < W.layout.layers; l++)
		for (uint32_t b = skip; b < full; b++) {
			unsigned char *at = kv + W.layout.before_bytes[l] * known + b * W.layout.piece_bytes[l];
			const unsigned char *here = piece(l, transfer_now.src[b - skip]);
			if (first)
				memcpy(at, here, W.layout.piece_bytes[l]);
			ck_assert_msg(memcmp(at, here, W.layout.piece_bytes[l]) == 0,
			              "src[%u] of layer %u is not block %u of the prompt", b - skip, l, b);
		}
}

START_TEST(test_transfer_and_first_token)
{
	static const struct {
		uint32_t n, cached;
		int ack_first;
	} cases[] = {{150, 0, 0}, {150, 0, 1}, {150, 32, 0}, {150, 144, 1}, {16, 0, 0}, {1, 0, 1}};
	world_begin("kv_blocks=64");
	for (uint64_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		uint64_t req = i + 1;
		uint32_t n = cases[i].n, skip = cases[i].cached / BLOCK, blocks = blocks_for(n) - skip;
		say_submit((struct ask){.req = req, .n = n, .to = "1"});
		UNTIL(count(D1, MSG_KV_RESERVE, req));
		say_grant(D1, req, req + 500, D1->epoch, cases[i].cached, blocks);
		struct transfer t = transfer_of(req);
		ck_assert_int_eq(t.state, RING_PENDING);
		ck_assert_uint_eq(transfer_now.attempt, 1);
		ck_assert_uint_eq(transfer_now.lease_id, req + 500);
		ck_assert_uint_eq(transfer_now.lease_epoch, D1->epoch);
		ck_assert_uint_eq(transfer_now.lease_generation, req + 505);
		ck_assert_str_eq(transfer_now.decode, "decode-1");
		ck_assert_uint_eq(transfer_now.first_token, cases[i].cached);
		ck_assert_uint_eq(transfer_now.tokens, n);
		ck_assert_uint_eq(transfer_now.blocks, blocks);
		ck_assert_int_eq(ring_transfer_check(&transfer_now, BLOCK, W.hello.blocks, 200), 0);
		for (uint32_t b = 0; b < blocks; b++)
			ck_assert_uint_eq(transfer_now.dst[b], 100 + b);
		const Pds__FirstToken *r = first_token(req);
		ck_assert(computed(&t, n));
		check_src(skip, n / BLOCK);
		ck_assert(n != 150 || r->token->id == golden_first);
		UNTIL(count(D1, MSG_REQUEST_FIRST_TOKEN, req));
		const Pds__FirstToken *d = LATEST(Pds__FirstToken, D1, REQUEST_FIRST_TOKEN, req);
		for (const Pds__FirstToken *s = r;; s = d) {
			ck_assert_uint_eq(s->index, 0);
			ck_assert_uint_eq(s->token->id, r->token->id);
			ck_assert_uint_eq(s->lease_id, req + 500);
			ck_assert_uint_eq(s->lease_generation, req + 505);
			ck_assert_str_eq(s->decode, "decode-1");
			ck_assert_uint_eq(s->decode_epoch, D1->epoch);
			ck_assert_int_eq(s->finish, PDS__FINISH__FINISH_NONE);
			if (s == d)
				break;
		}
		if (cases[i].ack_first)
			ack(D1, req);
		else
			kv_sent(req, &t);
		pump_for(30000);
		UNTIL(handed_over() == 1);
		UNTIL(kv_count("held") == (cases[i].ack_first ? blocks_for(n) : 0));
		if (cases[i].ack_first)
			kv_sent(req, &t);
		else
			ack(D1, req);
		flush();
		ck_assert_uint_eq(count(D1, MSG_REQUEST_CANCEL, req), 0);
		ck_assert_uint_eq(count(ROUTER, MSG_REQUEST_FAILED, req), 0);
	}
	world_end();
}
END_TEST

enum { COVERED = 320, FULL = COVERED / BLOCK };

/* Copies each block of the transfer at the moment that the board says it is there. 0: all was there
 * when this process looked. */
static int copy_as_told(const struct transfer *t, const struct ring_transfer *of,
                        unsigned char *copy)
{
	int half_way = 0;
	uint32_t taken[8] = {0};
	ck_assert_uint_le(W.hello.layers, 8);
	for (int done = 0; !done; event_base_loop(W.base, EVLOOP_NONBLOCK)) {
		done = 1;
		for (uint32_t l = 0; l < W.hello.layers; l++) {
			uint32_t p = ring_progress(W.ring, t->slot, l, t->gen);
			ck_assert_uint_le(p, COVERED);
			ck_assert_uint_ge(p, taken[l] * BLOCK);
			for (; (taken[l] + 1) * BLOCK <= p; taken[l]++)
				memcpy(copy + W.layout.before_bytes[l] * FULL + taken[l] * W.layout.piece_bytes[l],
				       piece(l, of->src[taken[l]]), W.layout.piece_bytes[l]);
			half_way |= p > 0 && p < COVERED;
			done &= p == COVERED;
		}
	}
	return half_way;
}

static void holds(const struct ring_transfer *of, const unsigned char *copy)
{
	for (uint32_t l = 0; l < W.hello.layers; l++)
		for (uint32_t b = 0; b < FULL; b++)
			ck_assert_msg(memcmp(copy + W.layout.before_bytes[l] * FULL +
			                         b * W.layout.piece_bytes[l],
			                     piece(l, of->src[b]), W.layout.piece_bytes[l]) == 0,
			              "layer %u, block %u changed after progress had covered it", l, b);
}

/* What progress covers is final: copied the moment that the board says so, it is what is there
 * at the end, and what a second run computes. */
START_TEST(bm2_word_before_kernel)
{
	static struct ring_transfer of;
	struct transfer t;
	uint64_t req = 0;
	world_begin("kv_blocks=64");
	unsigned char *copy = mem_array(FULL, W.layout.block_bytes);
	for (int half_way = 0; !half_way;) {
		ck_assert_uint_lt(++req, 20);
		say_submit((struct ask){.req = req, .n = COVERED, .to = "1"});
		grant(D1, req, COVERED);
		t = transfer_of(req);
		of = transfer_now;
		half_way = copy_as_told(&t, &of, copy);
		first_token(req);
		holds(&of, copy);
		finish(D1, req, &t);
		flush();
	}
	t = to_computed(D1, (struct ask){.req = ++req, .n = COVERED, .to = "1"});
	holds(&transfer_now, copy);
	finish(D1, req, &t);
	free(copy);
	world_end();
}
END_TEST

/* s-p-ends-at-kvsent: whichever of KV_SENT and the acknowledgement comes first, the lease is
 * renewed until the other has come, and not after. */
START_TEST(s_p_ends_at_kvsent)
{
	world_begin("kv_blocks=64");
	struct transfer one = to_computed(D1, (struct ask){.req = 1, .n = 64, .to = "1"}),
					two = to_computed(D2, (struct ask){.req = 2, .n = 64, .to = "2"});
	kv_sent(1, &one);
	say_ack(D1, 1, 999); /* of another lease: counts for nothing */
	ack(D2, 2);
	unsigned before1 = renewals(D1, 501), before2 = renewals(D2, 502);
	UNTIL(renewals(D1, 501) >= before1 + 2 && renewals(D2, 502) >= before2 + 2);
	ck_assert_uint_eq(handed_over(), 2);
	ack(D1, 1);
	kv_sent(2, &two);
	at_rest();
	before1 = renewals(D1, 501);
	before2 = renewals(D2, 502);
	pump_for(900000);
	ck_assert_uint_eq(renewals(D1, 501), before1);
	ck_assert_uint_eq(renewals(D2, 502), before2);
	world_end();
}
END_TEST

START_TEST(test_kv_sent_before_first_token)
{
	world_begin("kv_blocks=64");
	uint64_t req = 1;
	struct transfer t = to_running(D1, &req, "1");
	kv_sent(req, &t);
	transfer_failed(req, t.slot, t.gen); /* what was sent cannot fail */
	daemon_go_on();
	first_token(req);
	UNTIL(kv_count("held") == 0);
	ck_assert_uint_eq(handed_over(), 1);
	ack(D1, req);
	at_rest();
	ck_assert_uint_eq(count(ROUTER, MSG_REQUEST_FAILED, req), 0);
	world_end();
}
END_TEST

START_TEST(test_other_generations_are_ignored)
{
	world_begin("kv_blocks=64");
	struct transfer old = to_computed(D1, (struct ask){.req = 1, .n = 64, .to = "1"});
	finish(D1, 1, &old);
	at_rest();
	struct transfer t = to_computed(D1, (struct ask){.req = 2, .n = 64, .to = "1"});
	const struct {
		uint32_t slot;
		uint64_t gen;
	} wrong[] = {{t.slot, t.gen + 1}, {t.slot, t.gen - 1}, {old.slot, old.gen},
	             {t.slot + 1, t.gen}, {100000, t.gen},     {UINT32_MAX, 0}};
	for (unsigned i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		if (wrong[i].slot == t.slot && wrong[i].gen == t.gen)
			continue;
		say_kv_sent(2, wrong[i].slot, wrong[i].gen);
		transfer_failed(2, wrong[i].slot, wrong[i].gen);
	}
	ack(D1, 2);
	pump_for(100000);
	ck_assert_uint_eq(handed_over(), 1);
	ck_assert_uint_eq(kv_count("held"), 4);
	ck_assert_uint_eq(count(ROUTER, MSG_REQUEST_FAILED, 2), 0);
	kv_sent(2, &t);
	at_rest();
	t = to_computed(D1, (struct ask){.req = 3, .n = 64, .to = "1"});
	transfer_failed(3, t.slot, t.gen); /* its own: the attempt ends with what the messager says */
	const Pds__Failed *f = failed(3);
	ck_assert_int_eq(f->fault, PDS__FAULT__FAULT_LEASE_LOST);
	ck_assert_str_eq(f->text, "the lease was refused");
	ck_assert_str_eq(f->blame, "");
	ck_assert_int_eq(f->retry, 1);
	UNTIL(count(D1, MSG_REQUEST_CANCEL, 3));
	world_end();
}
END_TEST

/* --- early ends ---------------------------------------------------------- */

static void cancelled_quietly(struct side *d, uint64_t req, unsigned first_tokens)
{
	UNTIL(count(d, MSG_REQUEST_CANCEL, req));
	UNTIL(requests_are("[]"));
	pump_for(50000);
	ck_assert_uint_eq(count(ROUTER, MSG_REQUEST_FAILED, req), 0);
	ck_assert_uint_eq(count(ROUTER, MSG_REQUEST_FIRST_TOKEN, req), first_tokens);
	ck_assert_uint_eq(count(d, MSG_REQUEST_CANCEL, req), 1);
	at_rest();
}

START_TEST(test_cancel_waiting_for_grant)
{
	world_begin("kv_blocks=64");
	say_submit((struct ask){.req = 1, .n = 64, .to = "12"});
	UNTIL(count(D1, MSG_KV_RESERVE, 1));
	say_cancel(ROUTER, 1);
	cancelled_quietly(D1, 1, 0);
	say_grant(D1, 1, 501, D1->epoch, 0, 4); /* was under way */
	pump_for(50000);
	ck_assert_uint_eq(count(D2, MSG_KV_RESERVE, 1), 0);
	world_end();
}
END_TEST

START_TEST(test_cancel_granted)
{
	world_begin("kv_blocks=8");
	struct transfer other = to_computed(D2, (struct ask){.req = 1, .n = 100, .to = "2"});
	say_submit((struct ask){.req = 2, .n = 100, .to = "1", .seed = 2});
	grant(D1, 2, 100);
	UNTIL(told("status", "blocked") == 1);
	say_cancel(ROUTER, 2);
	UNTIL(count(D1, MSG_REQUEST_CANCEL, 2));
	UNTIL(told("status", "blocked") == 0);
	finish(D2, 1, &other);
	cancelled_quietly(D1, 2, 0);
	world_end();
}
END_TEST

START_TEST(test_cancel_running)
{
	world_begin("kv_blocks=64");
	uint64_t req = 1;
	struct transfer t = to_running(D1, &req, "1");
	say_cancel(ROUTER, req);
	daemon_go_on();
	UNTIL(transfer_is_void(&t));
	cancelled_quietly(D1, req, 0);
	/* it was not computed to its end */
	ck_assert_uint_ne(told("status", "prompt_tokens") % LONG, 0);
	world_end();
}
END_TEST

START_TEST(test_cancel_computed)
{
	world_begin("kv_blocks=64");
	struct transfer t = to_computed(D1, (struct ask){.req = 1, .n = 64, .to = "1"});
	say_cancel(ROUTER, 1);
	UNTIL(transfer_is_void(&t));
	ck_assert_int_lt(ring_mark_sent(W.ring, t.slot, t.gen), 0);
	cancelled_quietly(D1, 1, 1);
	world_end();
}
END_TEST

/* Nobody answers any more: the messager, or the decode worker with its acknowledgement. */
START_TEST(test_stalled)
{
	world_begin("kv_blocks=64", "stall_ms=2000");
	struct transfer one = to_computed(D1, (struct ask){.req = 1, .n = 64, .to = "1"}),
					two = to_computed(D2, (struct ask){.req = 2, .n = 64, .to = "2"});
	uint64_t begun = clock_us();
	kv_sent(2, &two);
	for (uint64_t r = 1; r <= 2; r++) {
		const Pds__Failed *f = failed(r);
		ck_assert_int_eq(f->fault, PDS__FAULT__FAULT_STALLED);
		ck_assert_int_eq(f->retry, 1);
		ck_assert_ptr_nonnull(strstr(f->text, r == 1 ? "messager" : "decode worker"));
		/* a messager's failure is no worker's */
		ck_assert_str_eq(f->blame, r == 1 ? "" : "decode-2");
		UNTIL(count(r == 1 ? D1 : D2, MSG_REQUEST_CANCEL, r));
	}
	ck_assert_uint_lt(clock_us() - begun, 30000000);
	UNTIL(transfer_is_void(&one));
	world_end();
}
END_TEST

/* A transfer that the messager found malformed is this worker's failure; one that stalled while its
 * steps go on is not. */
START_TEST(test_failed_transfers)
{
	static const struct {
		Pds__Fault fault;
		const char *blame;
	} rows[] = {{PDS__FAULT__FAULT_INTERNAL, "prefill"},
	            {PDS__FAULT__FAULT_STALLED, ""},
	            {PDS__FAULT__FAULT_LEASE_LOST, ""}};
	world_begin("kv_blocks=64");
	for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
		uint64_t req = i + 1;
		struct transfer t = to_computed(D1, (struct ask){.req = req, .n = 64, .to = "1"});
		say_transfer_failed(req, t.slot, t.gen, rows[i].fault, "so it is");
		const Pds__Failed *f = failed(req);
		ck_assert_int_eq(f->fault, rows[i].fault);
		ck_assert_int_eq(f->retry, 1);
		ck_assert_str_eq(f->blame, rows[i].blame);
	}
	world_end();
}
END_TEST

/* A decode worker whose end comes without a goodbye: that is its failure. */
START_TEST(test_decode_worker_falls_silent)
{
	world_begin("kv_blocks=64", "silence_ms=2000");
	side_close(D1);
	D1->fault = "type=GOODBYE:dir=out:drop=100%";
	side_again(D1, D1->epoch + 1);
	to_computed(D1, (struct ask){.req = 1, .n = 64, .to = "1"});
	side_close(D1);
	const Pds__Failed *f = failed(1);
	ck_assert_int_eq(f->fault, PDS__FAULT__FAULT_PEER_LOST);
	ck_assert_int_eq(f->retry, 1);
	ck_assert_str_eq(f->blame, "decode-1");
	D1->fault = NULL;
	side_again(D1, D1->epoch + 1);
	world_end();
}
END_TEST

/* pdctl asks while threads take blocks for many. What can go wrong is for the race detector to
 * see. */
START_TEST(test_asked_while_blocks_are_taken)
{
	enum { MANY = 40 };
	world_begin("kv_blocks=400", "prepare_threads=1", "max_inflight_prefill=100");
	for (uint64_t round = 0; round < 4; round++) {
		for (uint64_t i = 1; i <= MANY; i++)
			say_submit((struct ask){.req = round * MANY + i, .n = 64, .to = "1"});
		UNTIL(count(D1, MSG_KV_RESERVE, round * MANY + MANY));
		for (uint64_t i = 1; i <= MANY; i++) {
			grant(D1, round * MANY + i, 64);
			if (i % 4 == 0)
				ctl("requests");
		}
		for (uint64_t i = 1; i <= MANY; i++)
			say_cancel(ROUTER, round * MANY + i);
		at_rest();
	}
	world_end();
}
END_TEST

static void expect_lost(uint64_t req)
{
	const Pds__Failed *f = failed(req);
	ck_assert_int_eq(f->fault, PDS__FAULT__FAULT_DRAINING); /* it ended in order: no loss */
	ck_assert_int_eq(f->retry, 1);
	ck_assert_str_eq(f->blame, "");
}

START_TEST(test_decode_worker_dies)
{
	world_begin("kv_blocks=34");
	say_submit((struct ask){.req = 1, .n = 64, .to = "12"}); /* asked, another is left */
	say_submit((struct ask){.req = 2, .n = 64, .to = "1"});  /* asked, the last one */
	UNTIL(count(D1, MSG_KV_RESERVE, 1) && count(D1, MSG_KV_RESERVE, 2));
	struct transfer three = to_computed(D1, (struct ask){.req = 3, .n = 64, .to = "12"});
	/* it waits 3 s for a link, and fails then: the others do not wait so long */
	say_submit((struct ask){.req = 4, .n = 64, .to = "9"});
	UNTIL(reserving() == 3);
	side_close(D1);
	UNTIL(count(D2, MSG_KV_RESERVE, 1) && count(ROUTER, MSG_REQUEST_FAILED, 2));
	ck_assert_uint_eq(count(ROUTER, MSG_REQUEST_FAILED, 4), 0);
	grant(D2, 1, 64);
	struct transfer one = transfer_of(1);
	first_token(1);
	expect_lost(2);
	expect_lost(3);
	ck_assert_int_eq(failed(4)->fault, PDS__FAULT__FAULT_PEER_LOST);
	UNTIL(transfer_is_void(&three));
	finish(D2, 1, &one);
	at_rest();
	side_again(D1, D1->epoch + 1); /* its next life */
	uint64_t req = 10;
	struct transfer long_one = to_running(D1, &req, "12");
	/* granted, and waits for blocks */
	say_submit((struct ask){.req = 20, .n = 100, .to = "12", .seed = 20});
	daemon_go_on();
	grant(D1, 20, 100);
	UNTIL(told("status", "blocked") == 1 || count(ROUTER, MSG_REQUEST_FIRST_TOKEN, req));
	side_close(D1);
	expect_lost(req);
	expect_lost(20);
	UNTIL(transfer_is_void(&long_one));
	ck_assert_uint_eq(count(D2, MSG_KV_RESERVE, req), 0);
	side_again(D1, D1->epoch + 1);
	struct transfer t = to_computed(D1, (struct ask){.req = 30, .n = 64, .to = "1"});
	finish(D1, 30, &t);
	world_end();
}
END_TEST

START_TEST(test_router_dies)
{
	world_begin("kv_blocks=64");
	say_submit((struct ask){.req = 1, .n = 64, .to = "12"});
	struct transfer two = to_computed(D1, (struct ask){.req = 2, .n = 64, .to = "1"});
	uint64_t req = 10;
	UNTIL(count(D1, MSG_KV_RESERVE, 1));
	struct transfer three = to_running(D2, &req, "2");
	/* its goodbye and the end of the connection are there together when the daemon goes on */
	side_close(ROUTER);
	daemon_go_on();
	UNTIL(count(D1, MSG_REQUEST_CANCEL, 1) && count(D1, MSG_REQUEST_CANCEL, 2) &&
	      count(D2, MSG_REQUEST_CANCEL, req));
	UNTIL(transfer_is_void(&two) && transfer_is_void(&three));
	at_rest();
	/* its next life hears nothing of the former's requests and is served */
	side_again(ROUTER, ROUTER->epoch + 1);
	UNTIL(ROUTER->p);
	struct transfer t = to_computed(D1, (struct ask){.req = 20, .n = 64, .to = "1"});
	finish(D1, 20, &t);
	at_rest();
	for (uint64_t r = 1; r <= req; r++)
		ck_assert_uint_eq(count(ROUTER, MSG_REQUEST_FAILED, r), 0);
	world_end();
}
END_TEST

START_TEST(test_first_token_ends_the_answer)
{
	world_begin("kv_blocks=64");
	say_submit((struct ask){.req = 1, .n = 150, .to = "1", .max_tokens = 1});
	grant(D1, 1, 150);
	const Pds__FirstToken *f = first_token(1);
	ck_assert_int_eq(f->finish, PDS__FINISH__FINISH_LENGTH);
	ck_assert_uint_eq(f->token->id, golden_first);
	UNTIL(count(D1, MSG_REQUEST_CANCEL, 1));
	at_rest();
	ck_assert_uint_eq(count(D1, MSG_REQUEST_FIRST_TOKEN, 1), 0);
	world_end();
}
END_TEST

/* --- submitting ---------------------------------------------------------- */

START_TEST(test_submitted_twice)
{
	world_begin("kv_blocks=64");
	struct ask a = {.req = 1, .n = 64, .to = "1"};
	say_submit(a);
	say_submit(a);
	struct transfer t = to_computed(D1, a);
	say_submit(a);
	pump_for(100000);
	ck_assert_uint_eq(count(D1, MSG_KV_RESERVE, 1), 1);
	ck_assert_uint_eq(count(ROUTER, MSG_REQUEST_FIRST_TOKEN, 1), 1);
	ck_assert_uint_eq(count(D1, MSG_REQUEST_FIRST_TOKEN, 1), 1);
	ck_assert_uint_eq(told("status", "ring_used"), 1);
	finish(D1, 1, &t);
	world_end();
}
END_TEST

START_TEST(test_prefix_of_a_finished_request)
{
	static const struct {
		uint32_t n, own_from, cached;
	} cases[] = {{150, 150, 144}, {150, 80, 80}, {150, 70, 64}, {64, 64, 48}, {150, 5, 0}};
	world_begin("kv_blocks=64");
	for (uint64_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct ask a = {.req = 10 * i + 1,
		                .n = cases[i].n,
		                .to = "1",
		                .seed = 3,
		                .own_from = cases[i].own_from};
		uint32_t want = alone(a);
		struct transfer t = to_computed(D1, (struct ask){.req = 10 * i + 2, .n = 160, .to = "1"});
		finish(D1, 10 * i + 2, &t);
		at_rest();
		a.req = 10 * i + 3;
		t = to_computed(D1, a);
		const Pds__FirstToken *f = LATEST(Pds__FirstToken, ROUTER, REQUEST_FIRST_TOKEN, a.req);
		ck_assert_msg(f->timing->cached_tokens == cases[i].cached && f->token->id == want,
		              "%u tokens, own from %u: %u cached, not %u; token %u, alone %u", a.n,
		              a.own_from, f->timing->cached_tokens, cases[i].cached, f->token->id, want);
		ck_assert(computed(&t, a.n));
		finish(D1, a.req, &t);
	}
	world_end();
}
END_TEST

/* A second one with the same beginning while the first is half done: it uses no more than what
 * is there. */
START_TEST(test_prefix_of_a_running_request)
{
	world_begin("kv_blocks=64");
	uint64_t req = 10;
	uint32_t cached = 0, want[TRIES];
	for (unsigned i = 0; i < TRIES; i++)
		want[i] = alone((struct ask){.req = 1 + i, .n = 300, .to = "1", .seed = 10 + i});
	/* parked: one of them has the beginning of whichever is met half way */
	for (unsigned i = 0; i < TRIES; i++)
		say_submit((struct ask){.req = 20 + i, .n = 300, .to = "2", .seed = 10 + i});
	for (unsigned i = 0; i < TRIES; i++)
		UNTIL(count(D2, MSG_KV_RESERVE, 20 + i));
	struct transfer first = to_running(D1, &req, "1");
	uint64_t next = req + 10;
	grant(D2, next, 300);
	for (unsigned i = 0; i < TRIES; i++)
		if (20 + i != next)
			say_cancel(ROUTER, 20 + i);
	daemon_go_on();
	struct transfer second = transfer_of(next);
	for (uint32_t l = 0; l < W.hello.layers; l++) {
		uint32_t said = ring_progress(W.ring, second.slot, l, second.gen);
		/* who takes the blocks now gets computed ones; from 288 on it computes its own */
		ck_assert_uint_le(said < 288 ? said : 288, ring_progress(W.ring, first.slot, l, first.gen));
	}
	const Pds__FirstToken *f = first_token(next);
	cached = f->timing->cached_tokens;
	ck_assert_uint_eq(cached % BLOCK, 0);
	ck_assert_uint_le(cached, 288);
	ck_assert_uint_eq(f->token->id, want[req - 10]);
	first_token(req);
	finish(D1, req, &first);
	finish(D2, next, &second);
	world_end();
}
END_TEST

START_TEST(test_refused)
{
	static const struct {
		const char *name, *to;
		uint32_t n;
		Pds__Fault fault;
		int retry;
	} cases[] = {
		{"larger than the pool", "1", 129, PDS__FAULT__FAULT_TOO_LARGE, 0},
		/* the router has not heard of a switched role */
		{"no decode worker", "", 64, PDS__FAULT__FAULT_DRAINING, 1},
	};
	world_begin("kv_blocks=8", "max_jobs=2");
	for (uint64_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		say_submit((struct ask){.req = i + 1, .n = cases[i].n, .to = cases[i].to});
		const Pds__Failed *f = failed(i + 1);
		ck_assert_msg(f->fault == cases[i].fault && f->retry == cases[i].retry && f->text[0],
		              "%s: fault %d, retry %d", cases[i].name, f->fault, f->retry);
		ck_assert_uint_eq(count(D1, MSG_KV_RESERVE, i + 1), 0);
	}
	for (uint64_t r = 10; r < 13; r++)
		say_submit((struct ask){.req = r, .n = 128, .to = "1"});
	ck_assert_int_eq(failed(12)->fault, PDS__FAULT__FAULT_OVERLOADED);
	ck_assert_int_eq(failed(12)->retry, 1);
	UNTIL(count(D1, MSG_KV_RESERVE, 10) && count(D1, MSG_KV_RESERVE, 11));
	say_cancel(ROUTER, 10);
	say_cancel(ROUTER, 11);
	world_end();
}
END_TEST

START_TEST(test_prompt_logprobs)
{
	world_begin("kv_blocks=64", "max_batched_tokens=128");
	for (uint64_t r = 1; r <= 2; r++) {
		/* the second may not use what the first left in the cache */
		struct transfer t = to_computed(
			D1, (struct ask){.req = r, .n = 150, .to = "1", .prompt_logprobs = 1});
		const Pds__FirstToken *f = LATEST(Pds__FirstToken, ROUTER, REQUEST_FIRST_TOKEN, r);
		ck_assert_uint_eq(prompt_logprobs(r), 149);
		ck_assert_uint_eq(f->timing->cached_tokens, 0);
		ck_assert_uint_eq(f->token->id, golden_first);
		finish(D1, r, &t);
	}
	world_end();
}
END_TEST

int main(int argc, char **argv)
{
	(void)argc;
	world_main(argv[0]);
	Suite *s = suite_create("prefill_daemon");
	TCase *c = world_case(s, "ask");
	tcase_add_test(c, test_reserve_is_what_was_submitted);
	tcase_add_test(c, test_peers_that_left);
	tcase_add_test(c, test_peers_from_a_decode_worker);
	tcase_add_test(c, test_the_messagers_address_is_told);
	tcase_add_test(c, test_without_keys_no_messager_is_told);
	tcase_add_test(c, test_the_messager_is_told_of_others);
	tcase_add_test(c, test_no_key_of_a_decode_worker);
	tcase_add_test(c, test_grant_that_does_not_fit);
	tcase_add_test(c, test_grant_is_taken_once);
	tcase_add_test(c, test_deny);
	tcase_add_test(c, test_late_candidate);
	tcase_add_test(c, m11_m15_parked_with_blocks_or_thread);
	tcase_add_loop_test(c, test_granted_and_blocked, 0, 2);
	c = world_case(s, "grant");
	tcase_add_test(c, test_transfer_and_first_token);
	tcase_add_test(c, bm2_word_before_kernel);
	tcase_add_test(c, s_p_ends_at_kvsent);
	tcase_add_test(c, test_kv_sent_before_first_token);
	tcase_add_test(c, test_other_generations_are_ignored);
	c = world_case(s, "end");
	tcase_add_test(c, test_cancel_waiting_for_grant);
	tcase_add_test(c, test_cancel_granted);
	tcase_add_test(c, test_cancel_running);
	tcase_add_test(c, test_cancel_computed);
	tcase_add_test(c, test_stalled);
	tcase_add_test(c, test_failed_transfers);
	tcase_add_test(c, test_asked_while_blocks_are_taken);
	tcase_add_test(c, test_decode_worker_falls_silent);
	tcase_add_test(c, test_decode_worker_dies);
	tcase_add_test(c, test_router_dies);
	tcase_add_test(c, test_first_token_ends_the_answer);
	c = world_case(s, "submit");
	tcase_add_test(c, test_submitted_twice);
	tcase_add_test(c, test_prefix_of_a_finished_request);
	tcase_add_test(c, test_prefix_of_a_running_request);
	tcase_add_test(c, test_refused);
	tcase_add_test(c, test_prompt_logprobs);
	return world_run(s);
}
