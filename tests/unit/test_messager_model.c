/* test_messager_model.c - the messager's transfer machine killed at every point of its life, in
 * every order with what P does beside it; against a P on a thread of its own; and against a P whose
 * memory is noise. The rules are those of the protocol's models (tests/model/README.md); named
 * sequences are in test_messager_transfer.c, random ones in test_messager_walk.c.
 *
 * A point (messager_rig.h) is where the machine asks for something outside itself, so that what it
 * does to shared memory is cut between any two of its steps: before and after each piece, the
 * mark, each message. */
#include "messager_rig.h"
#include "util/clock.h"

#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define BLOCKS 3u
#define TOKENS 10u

static struct rig rig, *r = &rig;

/* --- one life, killed and disturbed -------------------------------------- */

/* What happens at which point, counted from the publication; 0: not. */
struct plan {
	unsigned kill[2]; /* the second is counted from the restart */
	unsigned cancel;  /* P cancels, and its blocks are at once another's */
	int reuse;        /* ... and so is the slot: a transfer of another lease, complete at once */
	/* what the messager said in the turn that it was killed in is lost: 1 all, 2 KV_READY alone */
	int lose;
};

static struct plan plan;
static unsigned at; /* points so far */
static int cancelled, ready[3], sent[3];
static uint64_t gens[3], d_frozen; /* by lease; how D's pool was when it took KV_READY */
static const struct plan *shown;

#define ENSURE(cond)                                                                              \
	((cond)                                                                                       \
	     ? (void)0                                                                                \
	     : ck_abort_msg("killed at %u and %u, cancelled at %u (reuse %d, lose %d), point %u: %s", \
	                    shown->kill[0], shown->kill[1], shown->cancel, shown->reuse, shown->lose, \
	                    at, #cond))

static uint64_t sum_of(const struct pool_memory *g, uint32_t from, uint32_t n)
{
	uint64_t h = 1469598103934665603ull;
	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		for (uint32_t b = from; b < from + n; b++)
			for (size_t k = 0; k < r->layout.piece_bytes[l]; k++)
				h = (h ^ rig_piece(r, g, l, b)[k]) * 1099511628211ull;
	return h;
}

static void publish(uint64_t lease)
{
	static struct ring_transfer t;
	rig_transfer(r, &t, lease, 0, TOKENS);
	for (uint32_t i = 0; i < BLOCKS; i++)
		t.dst[i] = 10 + (uint32_t)(lease - 1) * BLOCKS + i;
	rig_post(r, &t);
	gens[lease] = r->gen;
}

static void at_point(struct rig *x)
{
	if (++at != plan.cancel || ring_cancel(x->ring, x->slot, x->gen) < 0)
		return;
	cancelled = 1;
	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		for (uint32_t b = 2; b < 2 + BLOCKS; b++)
			memset(rig_piece(x, &x->p, l, b), 0xAA, x->layout.piece_bytes[l]);
	ring_retire(x->ring, x->slot, x->gen);
	if (plan.reuse) {
		publish(2);
		rig_compute(x, BLOCKS, TOKENS);
	}
}

/* The next step of P's device: one layer of the first transfer up to where a block ends. */
static void device(unsigned round)
{
	static const uint32_t tokens[] = {4, 8, 10};
	if (!cancelled && round < 3 * RIG_LAYERS)
		rig_compute_layer(r, round % RIG_LAYERS, 2, round / RIG_LAYERS + 1,
		                  tokens[round / RIG_LAYERS]);
}

static void d_takes_ready(uint64_t lease)
{
	ENSURE(lease == 2 || !cancelled || sent[1] || ready[1]);
	if (!ready[lease])
		for (uint32_t l = 0; l < RIG_LAYERS; l++)
			for (uint32_t i = 0; i < BLOCKS; i++)
				for (size_t k = 0; k < r->layout.piece_bytes[l]; k++)
					ENSURE(rig_piece(r, &r->d, l, 10 + (uint32_t)(lease - 1) * BLOCKS + i)[k] ==
					       rig_value(lease, l, 2 + i));
	ready[lease] = 1;
	d_frozen = sum_of(&r->d, 10, BLOCKS * (uint32_t)lease);
}

/* D and P take what the messager has said, and answer; 0 when there was nothing. The machine may
 * be killed while it takes an answer. */
static int answer_next(unsigned *taken)
{
	if (*taken == r->n_said)
		return 0;
	const struct said s = r->said[(*taken)++];
	r->lease = s.lease;
	if (s.type == MSG_LEASE_OPEN) {
		rig_opened(r, ready[s.lease] || (s.lease == 1 && cancelled));
	} else if (s.type == MSG_KV_READY) {
		d_takes_ready(s.lease);
		rig_ack(r);
	} else if (s.type == MSG_KV_SENT) {
		uint64_t lease = s.slot_gen == gens[1] ? 1 : 2;
		ENSURE(s.slot_gen == gens[lease] && ready[lease]);
		sent[lease] = 1;
		ring_retire(r->ring, s.slot, s.slot_gen);
	} else {
		ENSURE(s.type == MSG_TRANSFER_FAILED && s.slot_gen == gens[1] && cancelled);
	}
	return 1;
}

static void lose(int which, unsigned from)
{
	unsigned n = from;
	for (unsigned i = from; i < r->n_said; i++)
		if (!which || (which == 2 && r->said[i].type != MSG_KV_READY))
			r->said[n++] = r->said[i];
	r->n_said = n;
}

static void live_once(const struct plan *p)
{
	unsigned taken = 0, kills = 0;
	volatile unsigned round;
	plan = *p;
	shown = p;
	at = 0;
	cancelled = ready[1] = ready[2] = sent[1] = sent[2] = 0;
	rig_restart(r);
	memset(r->d.data, 0, r->d.region.data_bytes);
	r->n_said = 0;
	publish(1);
	r->on_point = at_point;
	r->kill_at = p->kill[0];
	for (round = 0; round < 60; round++) {
		unsigned before = r->n_said;
		if (RIG_ALIVE(r)) {
			device(round);
			mover_turn(r->m);
			while (answer_next(&taken))
				;
			mover_turn(r->m);
			r->now_us += 1000;
		} else {
			ENSURE(kills < 2);
			lose(p->lose, before > taken ? before : taken);
			r->kill_at = 0;
			rig_restart(r);
			mover_set_limits(r->m, &(struct mover_limits){RIG_STALL_US, 1});
			r->kill_at = kills++ ? 0 : p->kill[1];
		}
		if (ready[1] || ready[2])
			/* nothing is written after KV_READY */
			ENSURE(sum_of(&r->d, 10, BLOCKS * (ready[2] ? 2 : 1)) == d_frozen);
	}
	r->on_point = NULL;
	r->kill_at = 0;
	ENSURE(cancelled || sent[1]);
	ENSURE(!cancelled || !p->reuse || sent[2]);
	ENSURE(mover_open_transfers(r->m) == 0);
	ENSURE(ring_used(r->ring) == 0);
}

static void live(struct plan p)
{
	mover_set_limits(r->m, &(struct mover_limits){RIG_STALL_US, 1});
	live_once(&p);
}

static void setup(void)
{
	rig_init(r);
}

static void teardown(void)
{
	rig_fini(r);
}

/* Points of a life that nobody disturbs. */
static unsigned length(void)
{
	live((struct plan){0});
	return at;
}

TEST_CASE("points", .timeout_s = 300, .setup = setup, .teardown = teardown);

TEST_LOOP(killed_at_every_point, 0, 3)
{
	unsigned n = length();
	ck_assert_uint_gt(n, 40);
	for (unsigned k = 1; k <= n; k++)
		live((struct plan){.kill = {k}, .lose = _i});
}

/* Steps through the points: further apart where each is slow. */
static unsigned slower(unsigned step)
{
	return getenv("SAN") && *getenv("SAN") ? 5 * step : step;
}

TEST_LOOP(killed_twice, 0, 3)
{
	unsigned n = length();
	for (unsigned k = 1; k <= n; k += slower(3))
		for (unsigned k2 = 1; k2 <= n; k2 += slower(8))
			live((struct plan){.kill = {k, k2}, .lose = _i});
}

TEST_LOOP(cancelled_at_every_point, 0, 2)
{
	unsigned n = length();
	for (unsigned c = 1; c <= n; c++)
		live((struct plan){.cancel = c, .reuse = _i});
}

TEST_LOOP(cancelled_and_killed, 0, 4)
{
	unsigned n = length();
	for (unsigned c = 1; c <= n; c++)
		for (unsigned k = 1 + c % slower(10); k <= n; k += slower(10))
			live((struct plan){.kill = {k}, .cancel = c, .reuse = _i & 1, .lose = _i >> 1});
}

/* --- progress out of order ----------------------------------------------- */

/* Repeated and backwards, of another generation in between (a device that stores late): what was
 * seen stays seen, each piece is sent once. */
TEST(progress_repeated_and_backwards)
{
	static const uint32_t tokens[] = {8, 4, 8, 0, 3, 9, 10, 2, 10};
	rig_publish(r, 1, 0, TOKENS);
	mover_turn(r->m);
	rig_opened(r, 0);
	for (uint32_t b = 0; b < BLOCKS; b++)
		for (uint32_t l = 0; l < RIG_LAYERS; l++)
			memset(rig_piece(r, &r->p, l, 2 + b), rig_value(1, l, 2 + b), r->layout.piece_bytes[l]);
	for (unsigned i = 0; i < sizeof tokens / sizeof *tokens; i++)
		for (uint32_t l = 0; l < RIG_LAYERS; l++) {
			uint64_t *word = ring_progress_word(r->ring, r->slot, (l + i) % RIG_LAYERS);
			*word = ring_progress_value(r->gen, tokens[i]);
			mover_turn(r->m);
			*word = ring_progress_value(r->gen - 1, TOKENS);
			mover_turn(r->m);
		}
	ck_assert_uint_eq(rig_count(r, MSG_KV_READY), 1);
	rig_ack(r);
	mover_turn(r->m);
	ck_assert(rig_all_arrived(r, BLOCKS));
	ck_assert_uint_eq(r->report.pieces, BLOCKS * RIG_LAYERS);
}

/* All was computed before the messager looked for the first time, or before D's memory or link
 * was there. */
TEST_LOOP(progress_before_the_transfer_is_seen, 0, 3)
{
	if (_i == 1)
		mover_remove(r->m, r->wd);
	if (_i == 2)
		r->d_linked = 0;
	rig_publish(r, 1, 0, TOKENS);
	rig_compute(r, BLOCKS, TOKENS);
	mover_turn(r->m);
	if (_i == 1)
		rig_attach_d(r);
	if (_i == 2) {
		r->d_linked = 1;
		mover_linked(r->m, "decode-1", D_EPOCH);
	}
	mover_turn(r->m);
	ck_assert_uint_eq(rig_written(r), 0);
	rig_opened(r, 0);
	mover_turn(r->m);
	rig_ack(r);
	mover_turn(r->m);
	ck_assert(rig_all_arrived(r, BLOCKS));
	ck_assert_uint_eq(rig_count(r, MSG_KV_SENT), 1);
}

/* Every slot has a transfer, computed in another order than published, and P can publish no more;
 * the messager is killed in the middle of it. All arrive, each slot comes back, and serves
 * again. */
TEST(a_ring_that_is_full)
{
	static struct ring_transfer t;
	uint32_t slot;
	uint64_t gen[RIG_SLOTS + 1], any;
	unsigned taken = 0, n_ready = 0, n_sent = 0;
	for (int again = 0; again < 2; again++) {
		for (uint64_t lease = 1; lease <= RIG_SLOTS; lease++) {
			rig_transfer(r, &t, lease + 10u * (unsigned)again, 0, TOKENS);
			for (uint32_t i = 0; i < BLOCKS; i++)
				t.dst[i] = 10 + (uint32_t)(lease - 1) * BLOCKS + i;
			rig_post(r, &t);
			gen[r->slot] = r->gen;
		}
		ck_assert_int_eq(ring_publish(r->ring, &t, &slot, &any), ERR_FULL);
		for (unsigned round = 0; round < 12; round++) {
			mover_turn(r->m);
			if (round == 3)
				rig_restart(r);
			for (uint32_t l = 0; round < RIG_SLOTS && l < RIG_LAYERS; l++)
				*ring_progress_word(r->ring, RIG_SLOTS - 1 - round,
				                    l) = ring_progress_value(gen[RIG_SLOTS - 1 - round], TOKENS);
			for (; taken < r->n_said; taken++) {
				const struct said s = r->said[taken];
				r->lease = s.lease;
				if (s.type == MSG_LEASE_OPEN)
					rig_opened(r, 0);
				else if (s.type == MSG_KV_READY)
					n_ready++, rig_ack(r);
				else if (s.type == MSG_KV_SENT)
					n_sent++, ring_retire(r->ring, s.slot, s.slot_gen);
			}
		}
		ck_assert_uint_eq(n_sent, (unsigned)(again + 1) * RIG_SLOTS);
		ck_assert_uint_ge(n_ready, n_sent);
		ck_assert_uint_eq(ring_used(r->ring), 0);
	}
}

/* --- P on a thread of its own -------------------------------------------- */

#define RACES (race_transfers())
static _Atomic uint64_t done_gen; /* KV_SENT has come for this generation */
static _Atomic int race_over;
static unsigned race_cancelled, race_sent;

static uint64_t race_transfers(void)
{
	return getenv("SAN") && *getenv("SAN") ? 300 : 2000;
}

static unsigned draw(unsigned *seed, unsigned n)
{
	return (unsigned)rand_r(seed) % n;
}

static void pause_some(unsigned *seed)
{
	if (draw(seed, 4) == 0)
		usleep(draw(seed, 60));
	else if (draw(seed, 2))
		sched_yield();
}

/* P: one transfer after the other in one slot, its blocks always the same: a mark that a cancel
 * should have defeated shows as foreign KV at D. */
static void *racing_prefill(void *arg)
{
	static struct ring_transfer t;
	unsigned seed = *(unsigned *)arg;
	for (uint64_t lease = 1; lease <= RACES; lease++) {
		uint32_t slot;
		uint64_t gen;
		rig_transfer(r, &t, lease, 0, TOKENS);
		rig_grant(r, &t);
		ck_assert_int_eq(ring_publish(r->ring, &t, &slot, &gen), 0);
		pause_some(&seed);
		unsigned stop = draw(&seed, 3) ? 99 : draw(&seed, RIG_LAYERS + 2);
		for (uint32_t l = 0; l < RIG_LAYERS && l < stop; l++) {
			for (uint32_t b = 2; b < 2 + BLOCKS; b++)
				memset(rig_piece(r, &r->p, l, b), rig_value(lease, l, b), r->layout.piece_bytes[l]);
			__atomic_store_n(ring_progress_word(r->ring, slot, l), ring_progress_value(gen, TOKENS),
			                 __ATOMIC_RELEASE);
			pause_some(&seed);
		}
		if (stop != 99 && ring_cancel(r->ring, slot, gen) == 0) {
			race_cancelled++;
		} else {
			for (uint64_t end = clock_us() + 60000000; atomic_load(&done_gen) != gen;
			     pause_some(&seed))
				ck_assert_msg(clock_us() < end, "transfer %llu never ends",
				              (unsigned long long)lease);
			race_sent++;
		}
		ring_retire(r->ring, slot, gen);
	}
	atomic_store(&race_over, 1);
	return NULL;
}

/* D: complete and its own, or the mark was wrong. (Its lease is given back when P cancels; here
 * all transfers name the same blocks.) */
static void race_answers(void)
{
	for (unsigned i = 0; i < r->n_said; i++) {
		const struct said s = r->said[i];
		r->lease = s.lease;
		if (s.type == MSG_LEASE_OPEN) {
			rig_opened(r, 0);
		} else if (s.type == MSG_KV_READY) {
			ck_assert_msg(rig_arrived(r, 0, BLOCKS) && rig_arrived(r, 1, BLOCKS) &&
			                  rig_arrived(r, 2, BLOCKS),
			              "lease %llu: foreign or torn KV", (unsigned long long)s.lease);
			rig_ack(r);
		} else if (s.type == MSG_KV_SENT) {
			atomic_store(&done_gen, s.slot_gen);
		}
	}
	r->n_said = 0;
}

TEST_LOOP(prefill_races_with_the_messager, 0, 2)
{
	pthread_t t;
	unsigned seed = 11 + (unsigned)_i, other = 77;
	mover_set_limits(r->m, &(struct mover_limits){60000000, _i ? 1 : 1 << 20});
	ck_assert_int_eq(pthread_create(&t, NULL, racing_prefill, &seed), 0);
	while (!atomic_load(&race_over)) {
		mover_turn(r->m);
		race_answers();
		pause_some(&other);
		if (draw(&other, 200) == 0) {
			rig_restart(r);
			mover_set_limits(r->m, &(struct mover_limits){60000000, _i ? 1 : 1 << 20});
		}
		r->now_us++;
	}
	pthread_join(t, NULL);
	ck_assert_uint_gt(race_sent, RACES / 4);
	ck_assert_uint_gt(race_cancelled, RACES / 20);
}

/* --- a P whose memory is noise ------------------------------------------- */

/* Where things are in the ring's memory (ring.c); forge_is_right checks it. */
#define PAGE 4096u
#define HEAD_BYTES ((offsetof(struct ring_transfer, src) + 63) / 64 * 64)
#define FIELDS_AT (PAGE + PAGE)
#define FIELDS_BYTES ((offsetof(struct ring_transfer, src) + 8u * RING_BLOCKS_MAX + 63) / 64 * 64)

#define NOISE_LEASES 6u /* lease n: n blocks from 10 on */

static unsigned char *noise_at;
static size_t noise_bytes;
static _Atomic int noise_over;
static _Atomic uint64_t forged;

static void store_words(size_t at_byte, const void *from, size_t bytes)
{
	for (size_t i = 0; i < bytes / 4; i++)
		atomic_store_explicit((_Atomic uint32_t *)(noise_at + at_byte) + i,
		                      ((const uint32_t *)from)[i], memory_order_relaxed);
}

static uint32_t odd_number(unsigned *seed, uint32_t usual)
{
	static const uint32_t odd[] = {
		0,          1,         RIG_BLOCKS - 1, RIG_BLOCKS, RING_BLOCKS_MAX, RING_BLOCKS_MAX + 1,
		0x7FFFFFFF, UINT32_MAX};
	return draw(seed, 12) ? usual : odd[draw(seed, 8)];
}

/* A transfer that is right but for a field here and there, under a word of any state; `lease` makes
 * it one of a few. */
static void forge_slot(unsigned *seed, uint32_t slot, uint64_t lease, int odd)
{
	struct ring_transfer t;
	uint32_t n = (uint32_t)lease;
	memset(&t, 0, offsetof(struct ring_transfer, src));
	rig_transfer(r, &t, lease, 0, n * RIG_BLOCK_TOKENS - 1);
	if (odd) {
		t.req.lo = odd_number(seed, 7);
		t.attempt = odd_number(seed, 1);
		t.first_token = odd_number(seed, 0);
		t.tokens = odd_number(seed, t.tokens);
		t.blocks = odd_number(seed, t.blocks);
		t.deadline_us = draw(seed, 8) ? t.deadline_us : draw(seed, 2) ? 0 : UINT64_MAX;
		if (draw(seed, 16) == 0)
			memset(t.decode, draw(seed, 2) ? 'x' : 0, sizeof t.decode);
		for (uint32_t i = 0; i < n; i++) {
			t.src[i] = odd_number(seed, t.src[i]);
			t.dst[i] = odd_number(seed, t.dst[i]);
		}
	}
	size_t at_byte = FIELDS_AT + slot * FIELDS_BYTES;
	store_words(at_byte, &t, offsetof(struct ring_transfer, src));
	store_words(at_byte + offsetof(struct ring_transfer, src), t.src, n * 4);
	store_words(at_byte + offsetof(struct ring_transfer, src) + 4u * RING_BLOCKS_MAX, t.dst, n * 4);
	uint64_t word = (uint64_t)(1 + draw(seed, 6)) << 8 | (odd ? draw(seed, 7) : RING_PENDING);
	atomic_store_explicit((_Atomic uint64_t *)(noise_at + PAGE) + slot, word, memory_order_release);
	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		atomic_store((_Atomic uint64_t *)ring_progress_word(r->ring, slot, l),
		             ring_progress_value(word >> 8, odd ? odd_number(seed, t.tokens) : 0));
	atomic_fetch_add(&forged, 1);
}

static void *make_noise(void *arg)
{
	unsigned seed = *(unsigned *)arg;
	while (!atomic_load(&noise_over)) {
		uint32_t kind = draw(&seed, 4),
				 word = ((uint32_t)draw(&seed, 65536) << 16) ^ draw(&seed, 65536);
		if (kind < 2)
			forge_slot(&seed, draw(&seed, RIG_SLOTS), 1 + draw(&seed, NOISE_LEASES), 1);
		for (int i = 0; kind == 2 && i < 64; i++) /* anywhere behind the header */
			atomic_store_explicit((_Atomic uint32_t *)noise_at +
			                          (PAGE + draw(&seed, (unsigned)(noise_bytes - PAGE))) / 4,
			                      word * 2654435761u * (uint32_t)i, memory_order_relaxed);
		if (kind == 3)
			pause_some(&seed);
	}
	return NULL;
}

static void noise_answers(unsigned *seed)
{
	for (unsigned i = 0; i < r->n_said; i++) {
		const struct said s = r->said[i];
		r->lease = s.lease;
		ck_assert(s.type != MSG_TRANSFER_FAILED || s.slot < RIG_SLOTS);
		if (s.type == MSG_LEASE_OPEN)
			rig_opened(r, draw(seed, 8) == 0);
		else if (s.type == MSG_KV_READY)
			rig_ack(r);
		if (draw(seed, 16) == 0 && s.lease)
			rig_revoke(r);
	}
	r->n_said = 0;
}

static void noise_setup(void)
{
	struct stat st;
	rig_init(r);
	ck_assert_int_eq(fstat(ring_fd(r->ring), &st), 0);
	noise_bytes = (size_t)st.st_size;
	noise_at = mmap(NULL, noise_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring_fd(r->ring), 0);
	ck_assert_ptr_ne(noise_at, MAP_FAILED);
}

TEST_CASE("noise", .timeout_s = 300, .setup = noise_setup, .teardown = teardown);

TEST(forge_is_right)
{
	static struct ring_transfer t;
	unsigned seed = 5;
	uint64_t gen;
	enum ring_state s;
	for (uint32_t slot = 0; slot < RIG_SLOTS; slot++) {
		forge_slot(&seed, slot, 3, 0);
		ck_assert_int_eq(ring_read(r->ring, slot, &t, &gen, &s), 0);
		ck_assert_uint_eq(t.lease_id, 3);
		ck_assert_int_eq(ring_transfer_check(&t, RIG_BLOCK_TOKENS, RIG_BLOCKS, RIG_BLOCKS), 0);
		ck_assert_uint_eq(t.src[0], 2);
		ck_assert_uint_eq(t.dst[0], 10);
	}
}

static size_t foreign_bytes(void)
{
	size_t n = 0;
	for (uint32_t b = 0; b < RIG_BLOCKS; b++)
		for (uint32_t l = 0; l < RIG_LAYERS && (b < 10 || b >= 10 + NOISE_LEASES); l++)
			for (size_t k = 0; k < r->layout.piece_bytes[l]; k++)
				n += rig_piece(r, &r->d, l, b)[k] != 0;
	return n;
}

/* A worker that writes anything anywhere into its ring and board while the messager reads them: no
 * crash, no write into a block that D has not leased, nor beside its pool (whose mapping ends where
 * the pool ends), no turn without end, no more open transfers than slots. Then a transfer of an
 * honest worker goes through the same messager. */
TEST_LOOP(hostile_worker, 0, 2)
{
	pthread_t t;
	unsigned seed = 1000 + (unsigned)_i, other = 5 + (unsigned)_i;
	unsigned ends[END_COUNT] = {0};
	uint64_t until = clock_us() + 60000000, longest = 0;
	static struct ring_transfer granted;
	for (uint64_t lease = 1; lease <= NOISE_LEASES; lease++) {
		rig_transfer(r, &granted, lease, 0, (uint32_t)lease * RIG_BLOCK_TOKENS - 1);
		rig_grant(r, &granted);
	}
	memset(r->p.data, 0xBB, r->p.region.data_bytes);
	ck_assert_int_eq(pthread_create(&t, NULL, make_noise, &seed), 0);
	while (ends[END_MALFORMED] < 300 || ends[END_CANCELLED] < 30 || ends[END_SENT] < 10 ||
	       ends[END_REVOKED] + ends[END_REFUSED] < 10) { /* it gets everywhere */
		ck_assert_uint_lt(clock_us(), until);
		unsigned before = r->n_ended;
		uint64_t begun = clock_us();
		mover_turn(r->m);
		uint64_t took = clock_us() - begun;
		longest = took > longest ? took : longest;
		ck_assert_uint_le(mover_open_transfers(r->m), RIG_SLOTS);
		ends[r->last_end] += r->n_ended != before;
		if (r->n_ended == before)
			sched_yield(); /* nothing changes until the other thread runs */
		before = r->n_ended;
		noise_answers(&other);
		ends[r->last_end] += r->n_ended != before;
		r->now_us += draw(&other, 100000);
		if (draw(&other, 300) == 0)
			rig_restart(r);
	}
	atomic_store(&noise_over, 1);
	pthread_join(t, NULL);
	ck_assert_uint_gt(rig_written(r), 0);
	ck_assert_uint_eq(foreign_bytes(), 0);
	ck_assert_uint_lt(longest, 20000000);
	/* the hostile one is gone */
	mover_remove(r->m, r->wp);
	ring_destroy(&r->ring);
	struct err e = {0};
	ck_assert_int_eq(ring_create(RIG_SLOTS, RIG_LAYERS, P_EPOCH, &r->ring, &e), 0);
	rig_attach_p(r);
	memset(r->d.data, 0, r->d.region.data_bytes);
	rig_publish(r, 50, 0, TOKENS);
	mover_turn(r->m);
	rig_opened(r, 0);
	rig_compute(r, BLOCKS, TOKENS);
	mover_turn(r->m);
	rig_ack(r);
	mover_turn(r->m);
	ck_assert(rig_all_arrived(r, BLOCKS));
}

TEST_START(quiet)
{
	log_set_level("error");
}
