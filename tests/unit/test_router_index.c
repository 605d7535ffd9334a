/* test_router_index.c - what the router knows of the workers' prefix indexes (events, overflow,
 * restarts, expectations), the hashes that it asks with, and the breaker. */
#include "tests/unit/registry_defaults.h"
#include "daemons/router/place/prefixes.h"
#include "hash_chain.h"
#include "router_rig.h"

#include <sodium.h>

#define COUNT(a) (int)(sizeof(a) / sizeof *(a))

static uint32_t leading(const struct kv_index *ix, const uint64_t *h, size_t n, uint64_t now)
{
	struct kv_match m;
	kv_index_match(ix, h, n, now, &m);
	return m.blocks;
}

/* --- the set ------------------------------------------------------------- */

TEST_CASE("index", .timeout_s = 60);

TEST(leading_blocks_only)
{
	static const uint64_t h[] = {11, 0, UINT64_MAX, 44, 55};
	struct kv_index *ix = kv_index_new(100);
	struct kv_match m;
	ck_assert_uint_eq(leading(ix, h, 5, 0), 0);
	ck_assert_int_eq(kv_index_store(ix, 11, 0), 0);
	ck_assert_int_eq(kv_index_store(ix, 44, 0), 0);
	ck_assert_uint_eq(leading(ix, h, 5, 0), 1); /* a hole ends the match */
	kv_index_store(ix, 0, 1);
	kv_index_store(ix, UINT64_MAX, 0);
	kv_index_store(ix, UINT64_MAX, 2);
	kv_index_store(ix, 55, 2);
	kv_index_match(ix, h, 5, 0, &m);
	ck_assert_uint_eq(m.blocks, 5);
	/* behind the one in host memory nothing can be used before that is read */
	ck_assert_uint_eq(m.device, 1);
	ck_assert_uint_eq(m.memory, 3);
	ck_assert_uint_eq(m.disk, 1);
	kv_index_remove(ix, 55, 2);
	ck_assert_uint_eq(leading(ix, h, 2, 0), 2);
	ck_assert_uint_eq(leading(ix, h, 0, 0), 0);
	kv_index_remove(ix, 0, 0); /* another tier's */
	ck_assert_uint_eq(leading(ix, h, 5, 0), 4);
	kv_index_remove(ix, 0, 1);
	ck_assert_uint_eq(leading(ix, h, 5, 0), 1);
	ck_assert_uint_eq(kv_index_count(ix, 0), 3);
	ck_assert_uint_eq(kv_index_count(ix, 1), 0);
	ck_assert_uint_eq(kv_index_count(ix, 2), 1);
	ck_assert_uint_eq(kv_index_count(ix, KV_TIERS), 0);
	kv_index_destroy(&ix);
}

TEST(duplicates_and_tiers)
{
	struct kv_index *ix = kv_index_new(10);
	for (int i = 0; i < 3; i++)
		for (unsigned tier = 0; tier < KV_TIERS; tier++)
			ck_assert_int_eq(kv_index_store(ix, 7, tier), 0);
	ck_assert_int_eq(kv_index_store(ix, 7, KV_TIERS), ERR_INVALID);
	ck_assert_int_eq(kv_index_store(ix, 7, UINT32_MAX), ERR_INVALID);
	kv_index_remove(ix, 7, UINT32_MAX);
	kv_index_clear(ix, UINT32_MAX);
	for (unsigned tier = KV_TIERS; tier--;) {
		static const uint64_t seven = 7;
		struct kv_match m;
		kv_index_match(ix, &seven, 1, 0, &m);
		/* the best one counts, which goes last */
		ck_assert_uint_eq(m.device, 1);
		ck_assert_uint_eq(kv_index_count(ix, tier), 1);
		kv_index_remove(ix, 7, tier);
		kv_index_remove(ix, 7, tier);
		ck_assert_uint_eq(kv_index_count(ix, tier), 0);
	}
	kv_index_destroy(&ix);
}

/* A tier that begins a new list, or is gone: its blocks are forgotten and no others. */
TEST_LOOP(clear_of_a_tier, 0, KV_TIERS)
{
	enum { N = 3000 };
	struct kv_index *ix = kv_index_new(N);
	for (uint64_t i = 0; i < N; i++)
		for (unsigned tier = 0; tier < KV_TIERS; tier++)
			if (i % 7 % (tier + 2) == 0)
				ck_assert_int_eq(kv_index_store(ix, i, tier), 0);
	kv_index_clear(ix, (unsigned)_i);
	kv_index_clear(ix, (unsigned)_i);
	for (uint64_t i = 0; i < N; i++) {
		struct kv_match m;
		unsigned want = 0;
		for (unsigned tier = KV_TIERS; tier--;)
			want = i % 7 % (tier + 2) == 0 && tier != (unsigned)_i ? tier + 1 : want;
		kv_index_match(ix, &i, 1, 0, &m);
		ck_assert_uint_eq(m.device, want == 1);
		ck_assert_uint_eq(m.memory, want == 2);
		ck_assert_uint_eq(m.disk, want > 2);
	}
	for (uint64_t i = 0; i < N; i++)
		ck_assert_int_eq(kv_index_store(ix, i, (unsigned)_i), 0);
	ck_assert_uint_eq(kv_index_count(ix, (unsigned)_i), N);
	kv_index_destroy(&ix);
}

/* However much storage has, the device keeps its room in the index, and the other way round. */
TEST(storage_leaves_the_device_its_room)
{
	struct kv_index *ix = kv_index_new(1000);
	for (uint64_t i = 0; i < 5000; i++)
		ck_assert_int_eq(kv_index_store(ix, i, 1 + i % 2), i < 1000 ? 0 : ERR_FULL);
	ck_assert_int_eq(kv_index_store(ix, 0, 2), 0); /* is known below already */
	ck_assert_uint_eq(kv_index_dropped(ix, 1), 2000);
	ck_assert_uint_eq(kv_index_dropped(ix, 2), 2000);
	for (uint64_t i = 500; i < 2000; i++)
		ck_assert_int_eq(kv_index_store(ix, i, 0), i < 1500 ? 0 : ERR_FULL);
	ck_assert_int_eq(kv_index_store(ix, 1400, 2), ERR_FULL);
	ck_assert_uint_eq(kv_index_dropped(ix, 0), 500);
	kv_index_clear(ix, 1);
	ck_assert_uint_eq(kv_index_dropped(ix, 1), 0);
	ck_assert_uint_eq(kv_index_dropped(ix, 2), 2001);
	ck_assert_int_eq(kv_index_store(ix, 1400, 2), 0);
	ck_assert_uint_eq(kv_index_count(ix, 0), 1000);
	ck_assert_uint_eq(kv_index_count(ix, 1), 0);
	ck_assert_uint_eq(kv_index_count(ix, 2), 502);
	kv_index_destroy(&ix);
}

TEST(full_takes_no_more)
{
	struct kv_index *ix = kv_index_new(1000);
	for (uint64_t i = 0; i < 1500; i++)
		ck_assert_int_eq(kv_index_store(ix, i, 0), i < 1000 ? 0 : ERR_FULL);
	ck_assert_int_eq(kv_index_store(ix, 5, 0), 0); /* is there already */
	ck_assert_uint_eq(kv_index_count(ix, 0), 1000);
	ck_assert_uint_eq(kv_index_dropped(ix, 0), 500);
	kv_index_remove(ix, 1499, 0); /* was never taken in */
	ck_assert_uint_eq(kv_index_count(ix, 0), 1000);
	kv_index_remove(ix, 999, 0);
	ck_assert_int_eq(kv_index_store(ix, 1499, 0), 0);
	kv_index_set_max(ix, 10);
	ck_assert_uint_eq(kv_index_count(ix, 0), 1000); /* what is there stays */
	ck_assert_int_eq(kv_index_store(ix, 2000, 0), ERR_FULL);
	kv_index_clear(ix, 0);
	ck_assert_uint_eq(kv_index_count(ix, 0), 0);
	ck_assert_uint_eq(kv_index_dropped(ix, 0), 0);
	ck_assert_int_eq(kv_index_store(ix, 2000, 0), 0);
	kv_index_destroy(&ix);
}

/* Against a plain array; few values, so that runs of slots grow, shrink and wrap around. */
TEST_LOOP(against_a_plain_set, 0, 3)
{
	enum { VALUES = 700, MAX = 400 };
	static uint8_t has[VALUES];
	uint64_t step[] = {1, (uint64_t)1 << 40, 0x9e3779b97f4a7c15u};
	unsigned seed = 7 + (unsigned)_i;
	size_t device = 0, below = 0;
	struct kv_index *ix = kv_index_new(MAX);
	memset(has, 0, sizeof has);
	for (int i = 0; i < 200000; i++) {
		unsigned v = (unsigned)rand_r(&seed) % VALUES, tier = (unsigned)rand_r(&seed) % KV_TIERS;
		uint8_t bit = (uint8_t)(1u << tier), had = has[v];
		uint64_t hash = v * step[_i];
		int phase = i / 20000 % 2; /* mostly in, mostly out */
		if (i % 30011 == 30010) {
			kv_index_clear(ix, tier);
			for (unsigned k = 0; k < VALUES; k++)
				has[k] &= (uint8_t)~bit;
			device = below = 0;
			for (unsigned k = 0; k < VALUES; k++) {
				device += has[k] & 1;
				below += has[k] > 1;
			}
			continue;
		}
		if ((rand_r(&seed) % 100 < 70) != phase) {
			int room = had & bit || (tier ? had > 1 || below < MAX : device < MAX);
			ck_assert_int_eq(kv_index_store(ix, hash, tier), room ? 0 : ERR_FULL);
			has[v] |= room ? bit : 0;
		} else {
			kv_index_remove(ix, hash, tier);
			has[v] &= (uint8_t)~bit;
		}
		device += (size_t)(has[v] & 1) - (had & 1);
		below += (size_t)(has[v] > 1) - (had > 1);
		ck_assert_uint_eq(kv_index_count(ix, 0), device);
		if (i % 500 == 0)
			for (unsigned k = 0; k < VALUES; k++) {
				uint64_t h = k * step[_i];
				struct kv_match m;
				kv_index_match(ix, &h, 1, 0, &m);
				ck_assert_uint_eq(m.device, has[k] & 1);
				ck_assert_uint_eq(m.memory, !(has[k] & 1) && has[k] & 2);
				ck_assert_uint_eq(m.disk, !(has[k] & 3) && has[k]);
			}
	}
	kv_index_destroy(&ix);
}

TEST(expected_blocks)
{
	static const uint64_t h[] = {1, 2, 3, 4};
	struct kv_index *ix = kv_index_new(100);
	struct kv_match m;
	kv_index_store(ix, 1, 0);
	kv_index_expect(ix, h, 4, 1000);
	kv_index_match(ix, h, 4, 999, &m);
	ck_assert_uint_eq(m.blocks, 4);
	ck_assert_uint_eq(m.device, 4);
	ck_assert_uint_eq(kv_index_count(ix, 0), 1);   /* a guess is no entry */
	ck_assert_uint_eq(leading(ix, h, 4, 1000), 1); /* its time is over */
	kv_index_expect(ix, h, 4, 5000);
	kv_index_store(ix, 2, 0);
	kv_index_remove(ix, 3, 0); /* the worker has spoken of 2 and 3 */
	ck_assert_uint_eq(leading(ix, h, 4, 1000), 2);
	kv_index_remove(ix, 2, 0);
	ck_assert_uint_eq(leading(ix, h, 4, 1000), 1); /* and 2 does not come back as a guess */
	kv_index_expect(ix, h, 4, 9000);
	kv_index_store(ix, 2, 1);
	kv_index_remove(ix, 3, 2);
	/* what storage has says nothing of what the worker will have */
	kv_index_clear(ix, 1);
	kv_index_match(ix, h, 4, 1000, &m);
	ck_assert_uint_eq(m.device, 4);
	kv_index_clear(ix, 0);
	ck_assert_uint_eq(leading(ix, h, 4, 1000), 0);
	kv_index_expect(ix, h, 0, 9000);
	kv_index_destroy(&ix);
}

TEST(more_expected_than_there_is_room_for)
{
	enum { N = 40000 };
	static uint64_t h[N];
	struct kv_index *ix = kv_index_new(100);
	size_t hits = 0;
	for (size_t i = 0; i < N; i++) {
		/* without a pattern, as real hashes are */
		h[i] = (i + 1) * 0x9e3779b97f4a7c15u;
		h[i] = (h[i] ^ h[i] >> 30) * 0xbf58476d1ce4e5b9u;
		h[i] = (h[i] ^ h[i] >> 27) * 0x94d049bb133111ebu;
		h[i] ^= h[i] >> 31;
	}
	kv_index_expect(ix, h, N, 1000);
	for (size_t i = 0; i < N; i++)
		hits += leading(ix, &h[i], 1, 10);
	ck_assert_uint_ge(hits, 12000);
	ck_assert_uint_le(hits, 16384);
	kv_index_clear(ix, 0);
	/* as many as are under way with long prompts: nearly all are kept */
	kv_index_expect(ix, h, 4000, 1000);
	for (size_t i = hits = 0; i < 4000; i++)
		hits += leading(ix, &h[i], 1, 10);
	ck_assert_uint_ge(hits, 3600);
	kv_index_destroy(&ix);
}

/* --- events -------------------------------------------------------------- */

static struct worker_record *up(struct registry *g, const char *name, uint64_t epoch,
                                uint32_t block_tokens)
{
	Pds__WorkerInfo w = PDS__WORKER_INFO__INIT;
	w.role = (char *)"prefill";
	w.model_fingerprint = (char *)"f";
	w.site = (char *)"s";
	w.numerics = (char *)"n";
	w.layout = (char *)"l";
	w.block_tokens = block_tokens;
	w.blocks = 100;
	return registry_up(g, (struct peer *)g, name, epoch, &w, clock_us());
}

static void tell(struct registry *g, struct worker_record *w, int reset, uint32_t tier,
                 const uint64_t *stored, size_t n_stored, const uint64_t *removed, size_t n_removed)
{
	Pds__KvEvents m = PDS__KV_EVENTS__INIT;
	m.reset = reset;
	m.tier = tier;
	m.stored = (uint64_t *)stored;
	m.n_stored = n_stored;
	m.removed = (uint64_t *)removed;
	m.n_removed = n_removed;
	registry_kv_events(g, w, &m);
}

TEST(events_of_a_worker)
{
	static const uint64_t h[] = {1, 2, 3, 4, 5};
	struct registry g;
	registry_defaults(&g, 1000000);
	struct worker_record *w = up(&g, "p1", 1, 64);
	tell(&g, w, 1, 0, h, 3, NULL, 0);
	ck_assert_uint_eq(leading(w->index, h, 5, 0), 3);
	tell(&g, w, 0, 0, h + 3, 2, NULL, 0); /* the list goes on */
	tell(&g, w, 0, 0, h, 5, NULL, 0);     /* told again */
	ck_assert_uint_eq(registry_index_entries(&g, 0), 5);
	tell(&g, w, 0, 0, NULL, 0, h + 3, 1);
	ck_assert_uint_eq(leading(w->index, h, 5, 0), 3);
	tell(&g, w, 1, 0, h, 1, NULL, 0); /* a new list: the old one is forgotten */
	ck_assert_uint_eq(registry_index_entries(&g, 0), 1);
	tell(&g, w, 1, 0, NULL, 0, NULL, 0); /* an empty one */
	ck_assert_uint_eq(registry_index_entries(&g, 0), 0);
	tell(&g, w, 0, 0, NULL, 0, h, 5); /* gone is gone */
	ck_assert_uint_eq(g.events_bad, 0);
	tell(&g, w, 1, 4, h, 5, NULL, 0);
	tell(&g, w, 1, UINT32_MAX, h, 5, NULL, 0);
	ck_assert_uint_eq(g.events_bad, 2);
	tell(&g, up(&g, "odd", 1, 0), 1, 0, h, 5, NULL, 0); /* told no block size */
	ck_assert_uint_eq(g.events_bad, 3);
	ck_assert_uint_eq(registry_index_entries(&g, 0), 0);
	registry_fini(&g);
}

/* Storage's tiers have lists of their own; what is said of one tier is about no other. */
TEST(events_of_its_storage)
{
	static const uint64_t h[] = {1, 2, 3, 4, 5};
	struct registry g;
	registry_defaults(&g, 1000000);
	struct worker_record *w = up(&g, "p1", 1, 64);
	tell(&g, w, 1, 1, h, 4, NULL, 0); /* before the worker's own list */
	tell(&g, w, 1, 2, h, 5, NULL, 0);
	tell(&g, w, 1, 0, h, 2, NULL, 0);
	struct kv_match m;
	kv_index_match(w->index, h, 5, 0, &m);
	ck_assert(m.device == 2 && m.memory == 2 && m.disk == 1 && m.blocks == 5);
	tell(&g, w, 0, 1, NULL, 0, h, 5); /* evicted to disk */
	kv_index_match(w->index, h, 5, 0, &m);
	ck_assert(m.device == 2 && m.memory == 0 && m.disk == 3);
	tell(&g, w, 1, 0, NULL, 0, NULL, 0); /* the worker's index was flushed */
	kv_index_match(w->index, h, 5, 0, &m);
	ck_assert(m.device == 0 && m.disk == 5);
	/* storage lost count, and restarts with memory */
	tell(&g, w, 1, 1, h, 1, NULL, 0);
	tell(&g, w, 1, 2, NULL, 0, NULL, 0); /* its disk is gone */
	kv_index_match(w->index, h, 5, 0, &m);
	ck_assert(m.memory == 1 && m.disk == 0 && m.blocks == 1);
	tell(&g, w, 1, 1, NULL, 0, NULL, 0); /* storage is */
	ck_assert_uint_eq(leading(w->index, h, 5, 0), 0);
	/* one message says both: stored is the last word */
	tell(&g, w, 0, 3, h, 5, h, 5);
	ck_assert_uint_eq(worker_known(w, 3), 5);
	tell(&g, w, 1, 1, h, 2, NULL, 0);
	registry_down(&g, w, clock_us());
	ck_assert_uint_eq(worker_known(w, 1) + worker_known(w, 3), 0);
	up(&g, "p1", 2, 64);
	ck_assert_uint_eq(worker_known(w, 1), 0);
	ck_assert_uint_eq(g.events_bad, 0);
	registry_fini(&g);
}

TEST(index_of_a_worker_that_goes_and_comes)
{
	static const uint64_t h[] = {1, 2, 3};
	struct registry g;
	char why[200];
	registry_defaults(&g, 1000000);
	struct worker_record *w = up(&g, "p1", 1, 64), *o = up(&g, "p2", 1, 64);
	tell(&g, w, 1, 0, h, 3, NULL, 0);
	tell(&g, o, 1, 0, h, 2, NULL, 0);
	ck_assert_uint_eq(g.roots.n, 1);
	registry_down(&g, w, clock_us());
	ck_assert_ptr_null(w->index);
	ck_assert_uint_eq(registry_index_entries(&g, 0), 2);
	tell(&g, w, 1, 0, h, 3, NULL, 0); /* what was still under way */
	ck_assert_ptr_null(w->index);
	ck_assert_ptr_eq(up(&g, "p1", 2, 64), w);
	ck_assert_ptr_null(w->index); /* it says anew what it has */
	tell(&g, w, 1, 0, h, 1, NULL, 0);
	ck_assert_uint_eq(registry_index_entries(&g, 0), 3);
	/* the same life on a new link: a whole list will come */
	up(&g, "p1", 2, 64);
	ck_assert_uint_eq(registry_index_entries(&g, 0), 2);
	Pds__WorkerInfo info = PDS__WORKER_INFO__INIT;
	tell(&g, w, 1, 0, h, 3, NULL, 0);
	info.role = (char *)"decode";
	info.model_fingerprint = (char *)"f";
	info.site = (char *)"s";
	info.numerics = (char *)"n";
	info.layout = (char *)"l";
	info.block_tokens = 64;
	ck_assert_int_eq(registry_update(&g, w, &info, why, sizeof why), 0);
	ck_assert_int_eq(w->role, ROLE_DECODE);
	ck_assert_uint_eq(registry_index_entries(&g, 0), 5); /* another role, the same blocks */
	info.block_tokens = 32;
	ck_assert_int_eq(registry_update(&g, w, &info, why, sizeof why), 0);
	ck_assert_uint_eq(registry_index_entries(&g, 0), 2); /* other blocks: other hashes */
	ck_assert_uint_eq(g.roots.n, 2);
	info.role = (char *)"poet";
	ck_assert_int_lt(registry_update(&g, w, &info, why, sizeof why), 0);
	ck_assert_ptr_nonnull(strstr(why, "poet"));
	info.role = (char *)"mixed";
	info.model_fingerprint = (char *)"another";
	ck_assert_int_lt(registry_update(&g, w, &info, why, sizeof why), 0);
	ck_assert_int_eq(w->role, ROLE_DECODE);
	registry_fini(&g);
}

TEST(index_is_bounded)
{
	enum { N = 5000 };
	static uint64_t h[N];
	struct registry g;
	registry_defaults(&g, 1000000);
	registry_set_index_max(&g, 1024);
	struct worker_record *w = up(&g, "p1", 1, 64);
	for (uint64_t i = 0; i < N; i++)
		h[i] = i;
	tell(&g, w, 1, 0, h, N, NULL, 0);
	ck_assert_uint_eq(registry_index_entries(&g, 0), 1024);
	ck_assert_uint_eq(g.index_dropped, N - 1024);
	/* the first ones: beginnings of prefixes */
	ck_assert_uint_eq(leading(w->index, h, N, 0), 1024);
	tell(&g, w, 0, 0, NULL, 0, h + 512, 512);
	tell(&g, w, 0, 0, h + 512, 600, NULL, 0);
	ck_assert_uint_eq(registry_index_entries(&g, 0), 1024);
	ck_assert_uint_eq(g.index_dropped, N - 1024 + 88);
	registry_set_index_max(&g, 4096); /* as SIGHUP does */
	tell(&g, w, 1, 0, h, N, NULL, 0);
	ck_assert_uint_eq(registry_index_entries(&g, 0), 4096);
	registry_fini(&g);
}

/* --- hashes -------------------------------------------------------------- */

TEST(hashes_are_those_of_the_workers)
{
	uint32_t tokens[200];
	struct kv_root root = {.model_fingerprint = "f", .numerics = "n", .layout = "l"};
	struct kv_hash top, chain[12];
	struct registry g;
	struct prefixes p;
	size_t n;
	for (uint32_t i = 0; i < 200; i++)
		tokens[i] = i * 7;
	registry_defaults(&g, 1000000);
	struct worker_record *w = up(&g, "p1", 1, 16), *o = up(&g, "p2", 1, 64);
	up(&g, "p3", 1, 64);
	up(&g, "p4", 1, 0);
	ck_assert_uint_eq(g.roots.n, 2); /* once for all that are alike */
	prefixes_make(&g.roots, NULL, tokens, 200, &p);
	kv_hash_root(&root, &top);
	ck_assert_uint_eq(hash_chain(&top, tokens, 200, 16, chain), 12);
	const uint64_t *h = prefixes_find(&p, &w->prefix, &n);
	ck_assert_uint_eq(n, 12);
	for (size_t i = 0; i < n; i++) {
		uint64_t want;
		/* on a little-endian host, as events.c sends it */
		memcpy(&want, chain[i].b, sizeof want);
		ck_assert_uint_eq(h[i], want);
	}
	ck_assert_ptr_nonnull(prefixes_find(&p, &o->prefix, &n));
	ck_assert_uint_eq(n, 3);
	ck_assert_ptr_null(prefixes_find(&p, &registry_find(&g, "p4")->prefix, &n));
	ck_assert_ptr_null(prefixes_find(NULL, &w->prefix, &n));
	prefixes_fini(&p);
	/* with a salt, under the same root: as a worker hashes it */
	static const unsigned char salt[CACHE_SALT_BYTES] = "tenant";
	prefixes_make(&g.roots, salt, tokens, 200, &p);
	kv_hash_salt(&top, salt, &top);
	hash_chain(&top, tokens, 200, 16, chain);
	h = prefixes_find(&p, &w->prefix, &n);
	ck_assert_uint_eq(n, 12);
	for (size_t i = 0; i < n; i++)
		ck_assert_uint_eq(h[i], prefix_short(&chain[i]));
	prefixes_fini(&p);
	prefixes_make(&g.roots, NULL, tokens, 15, &p); /* no full block */
	ck_assert_ptr_null(prefixes_find(&p, &w->prefix, &n));
	ck_assert_uint_eq(n, 0);
	prefixes_fini(&p);
	registry_fini(&g);
}

TEST(kinds_of_workers_are_bounded)
{
	struct registry g;
	char name[8];
	registry_defaults(&g, 1000000);
	for (uint32_t i = 1; i <= 9; i++) {
		snprintf(name, sizeof name, "p%u", i);
		up(&g, name, 1, i);
	}
	ck_assert_uint_eq(g.roots.n, PREFIX_ROOTS_MAX);
	for (uint32_t i = 1; i <= 6; i++) {
		snprintf(name, sizeof name, "p%u", i);
		registry_down(&g, registry_find(&g, name), clock_us());
	}
	ck_assert_uint_eq(g.roots.n, 3);
	registry_fini(&g);
}

/* --- the breaker --------------------------------------------------------- */

/* A script: g, b: an outcome; p: a placement; a digit: so many times 100 ms pass; C, O, H: the
 * state is closed, open, half open; y, n: it takes a request or does not; R: a new life; K: the
 * same after a crash, soon after it began, L: long after. Opens at 50 % of at least 4 outcomes
 * in 1 s, for 500 ms. */
static const char *const breaker_scripts[] = {
	"CyggggbbbC bO n",                     /* 3 of 7, then 4 of 8 */
	"bbbC bO 4O 1Hy pn gCy bbbC",          /* a trial that succeeds: all is forgotten */
	"bbbbO 5Hy pbO 5O 4O 1H pbO 9O 9O 2H", /* trials that fail: twice as long, four times */
	"bbbbO 5H pn 5n 1y",                   /* a trial whose outcome never comes: the next one */
	"bbb9 3bC",                            /* the window passes */
	"bbbbO ggggO bbbO 5H",                 /* outcomes of requests from before change nothing */
	"bbbbO 5H gH bH",                      /* nor do they while nobody is on trial */
	"bbbbO R Hy pgC",                      /* restarted: tried at once */
	"bbbbO K O 4O 1Hy",                    /* a crash does not shorten it */
	/* the first life that ended so: a trial at once; the window is a new one */
	"K Hy pn gC bbb",
	/* the second one: left out first, then for longer, whatever its trials were */
	"K K O 4O 1Hy pgC K O 9O 1H",
	"K K K K K K K O R Hy pgC K Hy", /* an end in order is the end of the row */
	"K K O 5H Lp L Hy gH",           /* so is a long life */
	/* a new life does not forget what the last one did wrong */
	"bbC R C bbO",
};

TEST_LOOP(breaker_states, 0, COUNT(breaker_scripts))
{
	static const struct breaker_opts o = {
		.window_us = 1000000, .open_us = 500000, .error_pct = 50, .min_requests = 4};
	struct breaker b = {0};
	uint64_t now = 1000000000;
	for (const char *s = breaker_scripts[_i]; *s; s++) {
		enum breaker_state is = breaker_state(&b, now);
		if (*s == 'g' || *s == 'b')
			breaker_outcome(&b, &o, *s == 'g', now);
		else if (*s == 'p')
			breaker_placed(&b, now);
		else if (*s >= '0' && *s <= '9')
			now += (uint64_t)(*s - '0') * 100000;
		else if (*s == 'y' || *s == 'n')
			ck_assert_msg(breaker_takes(&b, &o, now) == (*s == 'y'), "%s: at %s",
			              breaker_scripts[_i], s);
		else if (*s == 'R')
			breaker_restart(&b, now);
		else if (*s == 'K' || *s == 'L')
			breaker_crashed(&b, &o, *s == 'K' ? 1000 : 10 * o.window_us, now);
		else if (*s != ' ')
			ck_assert_msg(is == (*s == 'C'   ? BREAKER_CLOSED
			                     : *s == 'O' ? BREAKER_OPEN
			                                 : BREAKER_HALF_OPEN),
			              "%s: at %s it is %s", breaker_scripts[_i], s, breaker_state_name(is));
	}
}

TEST(breaker_limits)
{
	struct breaker_opts o = {.window_us = 4, .open_us = 1000, .error_pct = 50, .min_requests = 1};
	struct breaker b = {0};
	uint64_t now = 1000;
	for (int i = 0; i < 20; i++) { /* never longer than the most */
		ck_assert_int_eq(breaker_outcome(&b, &o, 0, now), 1);
		ck_assert_uint_le(b.until_us - now, BREAKER_OPEN_TIMES_MAX * o.open_us);
		now = b.until_us;
		breaker_placed(&b, now);
	}
	memset(&b, 0, sizeof b);
	o.error_pct = 0;
	for (int i = 0; i < 100; i++)
		ck_assert_int_eq(breaker_outcome(&b, &o, 0, now), 0);
	ck_assert_int_eq(breaker_state(&b, now), BREAKER_CLOSED);
}

TEST_START(cryptography)
{
	if (sodium_init() < 0)
		exit(1);
	log_init("test", NULL);
	log_set_level("error");
}
