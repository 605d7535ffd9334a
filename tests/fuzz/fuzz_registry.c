/* fuzz_registry.c - what workers tell a router about themselves: HELLO's description, changes of
 * it, heartbeats, which blocks they hold. The input is a list of steps, each with a message's
 * bytes, which first pass msg/codec.h. A worker is refused with a sentence, or is one that can be
 * placed on, shown and compared with the others; what the router keeps of it stays within its
 * limits. */
#include "tests/unit/registry_defaults.h"
#include "daemons/router/place/place.h"
#include "msg/codec.h"
#include "tests/fuzz/fuzz.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define NAMES 3u
#define ENTRIES_MAX 16u
#define TOKENS 64u

static struct {
	struct registry g;
	uint64_t now_us, epoch;
	uint32_t tokens[TOKENS];
} w;

/* The next bytes as a message of this type. 0, and m must not be freed: it is none. */
static int message(struct fuzz_input *in, enum msg_type type, struct msg_in *m)
{
	struct err err = {0};
	size_t n;
	const uint8_t *body = fuzz_take_bytes(in, &n);
	Pds__Envelope e = PDS__ENVELOPE__INIT;
	*m = (struct msg_in){.env = &e, .info = msg_type_find(type)};
	e.sender = (char *)"decode-1";
	int rc = msg_decode_body(m, body, n, &err);
	m->env = NULL;
	if (rc == 0)
		return 1;
	must(err.text[0]);
	msg_in_fini(m);
	return 0;
}

static const char *name_of(unsigned i)
{
	static const char *const names[NAMES] = {"prefill-1", "decode-1", "mixed-1"};
	return names[i % NAMES];
}

/* --- steps --------------------------------------------------------------- */

/* As links_up: a link that comes up again was down. */
static void step_up(struct fuzz_input *in)
{
	struct msg_in m;
	char why[256] = "";
	const char *name = name_of((unsigned)fuzz_take(in, 1));
	if (!message(in, MSG_WORKER_UPDATE, &m))
		return;
	const Pds__WorkerInfo *info = ((const Pds__WorkerUpdate *)m.body)->worker;
	struct worker_record *had = registry_find(&w.g, name);
	if (had && worker_is_up(had))
		registry_down(&w.g, had, w.now_us);
	if (registry_admit(&w.g, name, info, 0, why, sizeof why) == 0) {
		struct worker_record *r = registry_up(&w.g, (struct peer *)&w, name, ++w.epoch, info,
		                                      w.now_us);
		fuzz_accepted();
		must(r && worker_is_up(r) && registry_find(&w.g, name) == r);
	} else {
		must(why[0]);
	}
	msg_in_fini(&m);
}

static void step_message(struct fuzz_input *in, enum msg_type type)
{
	struct msg_in m;
	char why[256] = "";
	struct worker_record *r = registry_find(&w.g, name_of((unsigned)fuzz_take(in, 1)));
	if (!message(in, type, &m))
		return;
	if (r && worker_is_up(r) && type == MSG_HEARTBEAT)
		registry_beat(r, (const Pds__Heartbeat *)m.body, w.now_us);
	else if (r && worker_is_up(r) && type == MSG_KV_EVENTS)
		registry_kv_events(&w.g, r, (const Pds__KvEvents *)m.body);
	else if (r && worker_is_up(r))
		must(registry_update(&w.g, r, ((const Pds__WorkerUpdate *)m.body)->worker, why,
		                     sizeof why) == 0 ||
		     why[0]);
	msg_in_fini(&m);
}

static void step_down(struct fuzz_input *in)
{
	struct worker_record *r = registry_find(&w.g, name_of((unsigned)fuzz_take(in, 1)));
	if (r && worker_is_up(r))
		registry_down(&w.g, r, w.now_us);
	w.now_us += (unsigned)fuzz_take(in, 1) * 10000000ull;
	registry_forget(&w.g, w.now_us);
}

static void step_place(struct fuzz_input *in)
{
	struct prefixes prefixes;
	struct placement p;
	unsigned how = (unsigned)fuzz_take(in, 1);
	prefixes_make(&w.g.roots, NULL, w.tokens, 1 + how % TOKENS, &prefixes);
	const struct place_query query = {.tokens = 1 + how % TOKENS,
	                                  .total_tokens = 10 + how,
	                                  .prefixes = &prefixes,
	                                  .hidden = (unsigned)fuzz_take(in, 1),
	                                  .avoid = name_of(how),
	                                  .session = how};
	for (unsigned i = 0; i < PLACE_STAGES; i++)
		w.g.policy.policy[i] = how % POLICIES;
	int possible = place_possible(&w.g, &query), rc = place_choose(&w.g, &query, w.now_us, &p);
	must(possible == (rc == 0) && (rc == 0 || rc == ERR_NOTFOUND || rc == ERR_FULL));
	if (rc == 0) {
		must(worker_is_up(p.first) && p.n_decode <= PLACE_CANDIDATES_MAX);
		must(p.hit_tokens <= query.tokens && p.stored_tokens <= p.hit_tokens);
		for (unsigned i = 0; i < p.n_decode; i++)
			must(worker_is_up(p.decode[i]) && p.decode[i] != p.first);
	}
	prefixes_fini(&prefixes);
}

/* --- what always holds --------------------------------------------------- */

static void check(void)
{
	struct buf b;
	Pds__Peer peers[NAMES];
	char text[512];
	must(w.g.n_workers <= NAMES && w.g.n_up <= w.g.n_workers && w.g.roots.n <= PREFIX_ROOTS_MAX);
	for (unsigned i = 0; i < NAMES; i++) {
		const struct worker_record *r = registry_find(&w.g, name_of(i));
		for (unsigned tier = 0; r && tier < 4; tier++)
			must(worker_known(r, tier) <= ENTRIES_MAX);
		if (r && worker_is_up(r))
			must(registry_peers(&w.g, r, peers) <= w.g.n_up);
	}
	buf_init(&b, 0);
	registry_json(&w.g, w.now_us, &b);
	json_t *o = json_loadb(b.data, b.len, 0, NULL);
	must(o && json_array_size(o) == w.g.n_workers);
	json_decref(o);
	buf_fini(&b);
	uint32_t s = registry_retry_after_s(&w.g, 0, 1, 60);
	must(s >= 1 && s <= 60 && registry_fingerprint(&w.g, text, sizeof text) <= 1);
}

FUZZ(registry, 1 << 12)
{
	struct fuzz_input in = {data, data + size};
	w.now_us = 1000000000;
	w.epoch = 0;
	registry_defaults(&w.g, 1000000);
	registry_set_index_max(&w.g, ENTRIES_MAX);
	while (in.at < in.end) {
		switch ((unsigned)fuzz_take(&in, 1) % 6) {
		case 0: step_up(&in); break;
		case 1: step_message(&in, MSG_HEARTBEAT); break;
		case 2: step_message(&in, MSG_KV_EVENTS); break;
		case 3: step_message(&in, MSG_WORKER_UPDATE); break;
		case 4: step_down(&in); break;
		case 5: step_place(&in); break;
		}
		w.now_us += 1000;
	}
	check();
	registry_fini(&w.g);
	return 0;
}
