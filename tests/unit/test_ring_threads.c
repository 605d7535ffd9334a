/* test_ring_threads.c - the transfer ring and progress board when both sides act in the same
 * instant, its doorbell, and what either end does with a ring that a hostile other end writes to:
 * no mixture of two transfers is read, no bell is lost, nothing is followed out of bounds. */
/* run: threads long */
#include "ring_pair.h"
#include "util/clock.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>

/* --- threads ------------------------------------------------------------- */

#define TRANSFERS 20000u
static _Atomic int stop;

/* M's side of the race: takes what it reads only when it is one whole transfer of that generation
 * (transfer id and generation are equal here). */
static void *reader(void *arg)
{
	static struct ring_transfer t;
	uint64_t g, seen = 0, *count = arg;
	while (!atomic_load(&stop)) {
		enum ring_state s;
		if (ring_read(M, 0, &t, &g, &s) < 0)
			continue;
		ck_assert_msg(is_transfer(&t, g), "generation %llu has a mixture of transfers",
		              (unsigned long long)g);
		ck_assert_uint_ge(g, seen);
		seen = g;
		uint32_t tokens = ring_progress(M, 0, 0, g);
		ck_assert(tokens == 0 || tokens == (uint32_t)g % 1000 + 1);
		*count += ring_mark_sent(M, 0, g) == 0;
	}
	return NULL;
}

TEST_CASE("ring threads", .timeout_s = 120, .teardown = close_both);

TEST(bm9_check_then_store)
{
	pthread_t t;
	uint64_t marked = 0, cancelled = 0, id = 1;
	open_both(1);
	ck_assert_int_eq(pthread_create(&t, NULL, reader, &marked), 0);
	for (; id <= TRANSFERS; id++) {
		publish(id);
		ck_assert_uint_eq(gen, id);
		device_store(0, gen, (uint32_t)gen % 1000 + 1);
		if (id % 8 == 0)
			sched_yield();
		cancelled += ring_cancel(P, slot, gen) == 0;
		ring_retire(P, slot, gen);
	}
	atomic_store(&stop, 1);
	pthread_join(t, NULL);
	ck_assert_uint_eq(marked + cancelled, TRANSFERS); /* each ended in exactly one way */
}

/* P waits for M to have seen each step and M for the bell alone: a lost ring ends in M's poll. */
static _Atomic uint32_t seen_tokens;

static void *sleeper(void *arg)
{
	int bell = *(int *)arg;
	for (uint32_t want = 1; want <= TRANSFERS; want++) {
		while (ring_progress(M, 0, 0, 1) < want) {
			ring_sleeping(M, 1);
			if (ring_progress(M, 0, 0, 1) < want) {
				struct pollfd p = {.fd = bell, .events = POLLIN};
				ck_assert_int_eq(poll(&p, 1, 20000), 1);
			}
			ring_sleeping(M, 0);
			eventfd_t v;
			eventfd_read(bell, &v);
		}
		atomic_store(&seen_tokens, want);
	}
	return NULL;
}

TEST(no_bell_is_lost)
{
	pthread_t t;
	int bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	open_both(1);
	ring_set_bell(P, dup(bell));
	publish(1);
	ck_assert_uint_eq(gen, 1);
	ck_assert_int_eq(pthread_create(&t, NULL, sleeper, &bell), 0);
	for (uint32_t i = 1; i <= TRANSFERS; i++) {
		device_store(0, gen, i);
		ring_bell(P);
		while (atomic_load(&seen_tokens) < i)
			sched_yield();
	}
	pthread_join(t, NULL);
	close(bell);
}

/* Both act in the same instant, many times: either M sees the progress or P sees that M sleeps.
 * Fewer times where two threads do not get two processors at once. */
#define ROUNDS 100000u
#define ROUNDS_US 20000000u
static _Atomic uint32_t at_gate, last_round = ROUNDS;

static void gate(uint32_t count) /* waits until both have come here for the count-th time */
{
	atomic_fetch_add(&at_gate, 1);
	for (int spins = 0; atomic_load(&at_gate) < 2 * count; spins++)
		if (spins > 2000)
			sched_yield();
}

static void *rings(void *arg)
{
	(void)arg;
	for (uint32_t i = 1; i <= atomic_load(&last_round); i++) {
		gate(2 * i - 1);
		/* has `sleeping` at hand: a look that is not ordered behind the store would be early */
		ring_bell(P);
		device_store(0, gen, i);
		ring_bell(P);
		gate(2 * i);
	}
	return NULL;
}

TEST(progress_or_bell_is_seen)
{
	pthread_t t;
	uint32_t lost = 0;
	int bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	open_both(1);
	ring_set_bell(P, dup(bell));
	publish(1);
	ck_assert_int_eq(pthread_create(&t, NULL, rings, NULL), 0);
	uint64_t until = clock_us() + ROUNDS_US;
	for (uint32_t i = 1; i <= atomic_load(&last_round); i++) {
		ring_sleeping(M, 0);
		if (i >= 1000 && clock_us() >= until)
			atomic_store(&last_round, i); /* the other thread is not past the gate */
		gate(2 * i - 1);
		for (volatile uint32_t wait = i % 128; wait; wait--)
			;
		ring_sleeping(M, 1);
		uint32_t seen = ring_progress(M, 0, 0, gen);
		gate(2 * i);
		eventfd_t v;
		lost += eventfd_read(bell, &v) < 0 && seen < i;
	}
	pthread_join(t, NULL);
	ck_assert_uint_eq(lost, 0);
	close(bell);
}

/* --- bell ---------------------------------------------------------------- */

TEST(bell_rings_only_while_the_messager_sleeps)
{
	eventfd_t v;
	int bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	open_both(1);
	ring_bell(P);
	ring_sleeping(M, 1);
	ring_bell(P); /* no bell yet: nothing to do */
	ring_set_bell(P, dup(bell));
	ring_sleeping(M, 0);
	ring_bell(P);
	ck_assert_int_lt(eventfd_read(bell, &v), 0);
	ring_sleeping(M, 1);
	ring_bell(P);
	ring_bell(P);
	ck_assert_int_eq(eventfd_read(bell, &v), 0);
	ck_assert_uint_eq(v, 2);
	ring_set_bell(P, -1);
	ring_bell(P);
	ck_assert_int_lt(eventfd_read(bell, &v), 0);
	close(bell);
}

TEST(strange_bells_neither_block_nor_kill)
{
	int full = eventfd(0, EFD_CLOEXEC), p[2]; /* one that blocks, at its limit */
	open_both(1);
	ring_sleeping(M, 1);
	ck_assert_int_eq(eventfd_write(full, UINT64_MAX - 1), 0);
	ring_set_bell(P, dup(full));
	ring_bell(P);
	ck_assert_int_eq(pipe2(p, O_CLOEXEC), 0);
	close(p[0]);
	ring_set_bell(P, p[1]); /* nobody reads: a write would raise SIGPIPE */
	ring_bell(P);
	ck_assert_int_lt(fcntl(p[1], F_GETFD), 0);
	ring_set_bell(P, 999);
	ring_bell(P);
	close(full);
}

/* --- what M is handed ---------------------------------------------------- */

/* stores v into the header, at byte `at` */
static void wipe(struct ring *r, size_t at, uint64_t v)
{
	uint64_t *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, ring_fd(r), 0);
	ck_assert_ptr_ne(p, MAP_FAILED);
	memcpy((unsigned char *)p + at, &v, sizeof v);
	munmap(p, 4096);
}

TEST(forged_rings_are_refused)
{
	struct stat st;
	open_both(4);
	struct ring *r = NULL;
	ck_assert_int_eq(fstat(ring_fd(P), &st), 0);
	int bare = memfd_create("bare", MFD_CLOEXEC),
		zeros = memfd_create("zeros", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	ck_assert_int_eq(ftruncate(bare, st.st_size), 0);
	ck_assert_int_eq(ftruncate(zeros, st.st_size), 0);
	ck_assert_int_eq(fcntl(zeros, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	const struct {
		int fd;
		uint32_t slots, layers;
		uint64_t epoch;
		int want;
	} t[] = {
		{ring_fd(P), 5, LAYERS, EPOCH, ERR_INVALID},
		{ring_fd(P), 4, LAYERS + 1, EPOCH, ERR_CORRUPT},
		{ring_fd(P), 4, 200, EPOCH, ERR_INVALID},
		{ring_fd(P), 4, LAYERS, EPOCH + 1, ERR_STALE},
		{ring_fd(P), 0, LAYERS, EPOCH, ERR_INVALID},
		{ring_fd(P), 4, 0, EPOCH, ERR_INVALID},
		{ring_fd(P), UINT32_MAX, LAYERS, EPOCH, ERR_INVALID},
		{ring_fd(P), 4, UINT32_MAX, EPOCH, ERR_INVALID},
		{bare, 4, LAYERS, EPOCH, ERR_INVALID},
		{zeros, 4, LAYERS, EPOCH, ERR_CORRUPT},
		{ring_fd(P), 4, LAYERS, EPOCH, 0},
	};
	for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
		int fd = dup(t[i].fd);
		int got_r = ring_map(fd, t[i].slots, t[i].layers, t[i].epoch, &r, &e);
		ck_assert_msg(got_r == t[i].want, "case %zu: %s", i, e.text);
		ck_assert_int_eq(fcntl(fd, F_GETFD) >= 0, got_r == 0);
		ring_destroy(&r);
	}
	ck_assert_int_eq(ring_map(-1, 4, LAYERS, EPOCH, &r, &e), ERR_INVALID);
	wipe(P, 0, 0);
	ck_assert_int_eq(ring_map(dup(ring_fd(P)), 4, LAYERS, EPOCH, &r, &e), ERR_CORRUPT);
	ck_assert_int_eq(ring_create(0, LAYERS, EPOCH, &r, &e), ERR_INVALID);
	ck_assert_int_eq(ring_create(RING_SLOTS_MAX + 1, LAYERS, EPOCH, &r, &e), ERR_INVALID);
	ck_assert_int_lt(ftruncate(ring_fd(P), 4096), 0); /* sealed */
	close(bare);
	close(zeros);
}

TEST(transfer_that_does_not_fit_the_pools)
{
	static const struct {
		uint32_t first, tokens, blocks, src1, dst1;
		int want;
	} t[] = {
		{64, 256, 3, 9, 19, 0},
		{64, 193, 3, 9, 19, 0},
		{0, 192, 3, 9, 19, 0},
		{64, 192, 3, 9, 19, ERR_CORRUPT},
		{64, 257, 3, 9, 19, ERR_CORRUPT},
		{32, 200, 3, 9, 19, ERR_CORRUPT},
		{64, 256, 3, 10, 19, ERR_CORRUPT},
		{64, 256, 3, 9, 20, ERR_CORRUPT},
		{64, 256, 3, UINT32_MAX, 19, ERR_CORRUPT},
		{64, 64, 0, 9, 19, ERR_CORRUPT},
		{64, 0, 1, 9, 19, ERR_CORRUPT},
		{0, UINT32_MAX, 3, 9, 19, ERR_CORRUPT},
		{0, UINT32_MAX, UINT32_MAX / 64 + 1, 9, 19, ERR_CORRUPT},
		{UINT32_MAX - 63, 10, 3, 9, 19, ERR_CORRUPT},
	};
	for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
		memset(&transfer, 0, sizeof transfer);
		strcpy(transfer.decode, "decode-1");
		transfer.first_token = t[i].first;
		transfer.tokens = t[i].tokens;
		transfer.blocks = t[i].blocks;
		transfer.src[1] = t[i].src1;
		transfer.dst[1] = t[i].dst1;
		ck_assert_msg(ring_transfer_check(&transfer, 64, 10, 20) == t[i].want, "case %zu", i);
	}
}

/* The name of the decode worker goes into messages and logs. */
TEST(transfer_with_a_name_that_is_none)
{
	static const struct {
		const char *name;
		int want;
	} names[] = {
		{"decode-1", 0},        {"", ERR_CORRUPT},     {"two words", ERR_CORRUPT},
		{"tab\t", ERR_CORRUPT}, {"\x7f", ERR_CORRUPT}, {"caf\xc3\xa9", ERR_CORRUPT},
		{"\xff", ERR_CORRUPT},  {NULL, ERR_CORRUPT}, /* without an end */
	};
	const size_t n = sizeof names / sizeof *names;
	open_both(n);
	for (size_t i = 0; i < n; i++) {
		transfer_of(&transfer, i);
		memset(transfer.decode, names[i].name ? 0 : 'x', sizeof transfer.decode);
		if (names[i].name)
			strcpy(transfer.decode, names[i].name);
		ck_assert_int_eq(ring_publish(P, &transfer, &slot, &gen), 0);
		ck_assert_msg(ring_read(M, slot, &got, &gen, &state) == names[i].want, "row %zu", i);
	}
}

static struct {
	_Atomic uint64_t *at;
	size_t words;
	uint64_t seed;
} noise;

static uint64_t draw(uint64_t *s)
{
	*s ^= *s << 13;
	*s ^= *s >> 7;
	*s ^= *s << 17;
	return *s;
}

/* A name that can be believed, or nothing else of a transfer ever is. */
static void noise_name(uint32_t s)
{
	/* ring.c */
	size_t fields = 4096 + 4096,
		   bytes = (offsetof(struct ring_transfer, src) + 8u * RING_BLOCKS_MAX + 63) / 64 * 64;
	_Atomic uint64_t *to = noise.at +
	                       (fields + s * bytes + offsetof(struct ring_transfer, decode)) / 8;
	uint64_t name[RING_NAME_MAX / 8] = {0};
	memcpy(name, "decode-1", 8);
	for (size_t i = 0; i < RING_NAME_MAX / 8; i++)
		atomic_store_explicit(&to[i], name[i], memory_order_relaxed);
}

/* A hostile writer: random words anywhere, and often ones that look right, so that reads get
 * past the first checks. */
static void *make_noise(void *arg)
{
	(void)arg;
	while (!atomic_load(&stop))
		for (int i = 0; i < 1000; i++) {
			uint64_t v = draw(&noise.seed), kind = v % 4;
			size_t at = draw(&noise.seed) % (kind == 0   ? noise.words
			                                 : kind == 1 ? 1024
			                                             : noise.words / 2);
			uint64_t w = kind == 0   ? v
			             : kind == 1 ? (v % 8) << 8 | (v >> 32) % 8
			                         : (v >> 40) % 5000 | ((v >> 20) % 5000) << 32;
			atomic_store_explicit(&noise.at[at], w, memory_order_relaxed);
			if (i % 8 == 0)
				noise_name((uint32_t)(v >> 60) % 2);
		}
	return NULL;
}

static void noise_start(pthread_t *t)
{
	struct stat st;
	ck_assert_int_eq(fstat(ring_fd(P), &st), 0);
	noise.at = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, ring_fd(P), 0);
	noise.words = (size_t)st.st_size / 8;
	noise.seed = 88172645463325252u;
	ck_assert_int_eq(pthread_create(t, NULL, make_noise, NULL), 0);
}

TEST(hostile_prefill_worker)
{
	pthread_t t;
	uint64_t g, outcome[3] = {0}, begun = clock_us();
	open_both(2);
	noise_start(&t);
	while (clock_us() - begun < 500000 || outcome[0] < 10 || outcome[1] < 10 || outcome[2] < 10) {
		/* it gets everywhere */
		ck_assert_uint_lt(clock_us() - begun, 60000000);
		for (uint32_t s = 0; s < 2; s++) {
			ck_assert_int_le((int)ring_peek(M, s, &g), RING_VOID);
			g = UINT64_MAX;
			int r = ring_read(M, s, &got, &g, &state);
			outcome[r == 0 ? 0 : r == ERR_STALE ? 1 : 2]++;
			if (r == 0) {
				ck_assert(got.blocks >= 1 && got.blocks <= RING_BLOCKS_MAX &&
				          got.first_token < got.tokens);
				ck_assert(state == RING_PENDING || state == RING_SENT);
				ck_assert_ptr_nonnull(memchr(got.decode, 0, sizeof got.decode));
				if (ring_transfer_check(&got, 1, 4096, 4096) == 0)
					for (uint32_t i = 0; i < got.blocks; i++)
						ck_assert(got.src[i] < 4096 && got.dst[i] < 4096);
			} else if (r == ERR_CORRUPT) {
				ck_assert_uint_ne(g, UINT64_MAX);
			}
			for (uint32_t i = 0; i < LAYERS; i++)
				ring_progress(M, s, i, g);
			ring_mark_sent(M, s, g);
		}
		ring_sleeping(M, 1);
	}
	atomic_store(&stop, 1);
	pthread_join(t, NULL);
}

TEST(hostile_messager)
{
	pthread_t t;
	uint64_t g[4], last[4] = {0}, until = clock_us() + 500000;
	open_both(4);
	noise_start(&t);
	while (clock_us() < until) {
		uint32_t busy = 0, s;
		for (int i = 0; i < 4; i++) {
			uint64_t new_gen;
			ck_assert_int_eq(ring_publish(P, transfer_of(&transfer, 3), &s, &new_gen), 0);
			ck_assert_uint_lt(s, 4);
			ck_assert_uint_eq(busy & 1u << s, 0); /* no slot is given out twice */
			ck_assert_uint_gt(new_gen, last[s]);
			busy |= 1u << s;
			last[s] = g[s] = new_gen;
		}
		ck_assert_int_eq(ring_publish(P, &transfer, &s, &(uint64_t){0}), ERR_FULL);
		for (s = 0; s < 4; s++) {
			ring_bell(P);
			ring_cancel(P, s, g[s]);
			ring_retire(P, s, g[s]);
		}
		ck_assert_uint_eq(ring_used(P), 0);
	}
	atomic_store(&stop, 1);
	pthread_join(t, NULL);
}
