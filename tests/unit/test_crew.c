/* test_crew.c - the CPU backend's threads: every item once, a phase after the one before,
 * whatever the threads do. */
/* run: threads */
#include "kernels/cpu/crew.h"

#include <check.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PHASES = 40, ITEMS = 64 };

/* What a run has done: how often each item, and how many items of each phase. */
struct job {
	struct job_phase {
		struct job *job;
		unsigned index, items;
	} phase[PHASES];
	atomic_uint times[PHASES][ITEMS], done[PHASES], asked[PHASES], early;
	unsigned threads, delay; /* 1 in `delay` items sleeps; 0: none */
	unsigned long sum;       /* plain: written by one item, read by all of the next phase */
};

static uint32_t count(const void *ctx)
{
	const struct job_phase *p = ctx;
	if (p->index && atomic_load(&p->job->done[p->index - 1]) != p->job->phase[p->index - 1].items)
		atomic_fetch_add(&p->job->early, 1);
	atomic_fetch_add(&p->job->asked[p->index], 1);
	return p->items;
}

static void nap(unsigned us)
{
	nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
}

static void item(const void *ctx, uint32_t i, unsigned worker)
{
	const struct job_phase *p = ctx;
	struct job *j = p->job;
	ck_assert_uint_lt(worker, j->threads);
	ck_assert_uint_lt(i, p->items);
	if (p->index && atomic_load(&j->done[p->index - 1]) != j->phase[p->index - 1].items)
		atomic_fetch_add(&j->early, 1);
	if (j->delay && (p->index * 31 + i * 7) % j->delay == 0)
		nap(200);
	if (p->items == 1)
		j->sum += p->index;
	else if (j->sum > PHASES * PHASES)
		atomic_fetch_add(&j->early, 1);
	atomic_fetch_add(&j->times[p->index][i], 1);
	atomic_fetch_add(&j->done[p->index], 1);
}

/* Phases of none, one and many items in turn. */
static void job_init(struct job *j, unsigned seed, unsigned threads, unsigned delay)
{
	memset(j, 0, sizeof *j);
	j->threads = threads;
	j->delay = delay;
	for (unsigned i = 0; i < PHASES; i++) {
		seed = seed * 1664525u + 1013904223u;
		unsigned r = seed >> 20;
		j->phase[i] = (struct job_phase){j, i, r % 5 == 0 ? 0 : r % 3 == 0 ? 1 : r % ITEMS + 1};
	}
}

static void check_job(const struct job *j, unsigned phases)
{
	ck_assert_uint_eq(atomic_load(&j->early), 0);
	for (unsigned p = 0; p < phases; p++) {
		ck_assert_msg(atomic_load(&j->asked[p]) == 1, "phase %u was opened %u times", p,
		              atomic_load(&j->asked[p]));
		for (unsigned i = 0; i < j->phase[p].items; i++)
			if (atomic_load(&j->times[p][i]) != 1)
				ck_abort_msg("item %u of phase %u was done %u times", i, p,
				             atomic_load(&j->times[p][i]));
	}
}

static void run(struct crew *c, struct job *j, unsigned phases)
{
	struct crew_phase phase[PHASES] = {{0}};
	for (unsigned i = 0; i < phases; i++)
		phase[i] = (struct crew_phase){.items = count, .item = item, .ctx = &j->phase[i]};
	crew_run(c, phase, phases);
	memset(phase, 0xff, sizeof phase); /* nobody reads them after the run */
	check_job(j, phases);
}

static const struct {
	unsigned threads, runs, delay;
} kinds[] = {
	{1, 50, 0}, {2, 1000, 0}, {3, 500, 0}, {8, 100, 0}, {2, 50, 9}, {5, 50, 13}, {96, 10, 0},
};

TEST_CASE("all", .timeout_s = 120);

/* Longer and shorter runs follow each other without a pause, on more threads than there are
 * cores. */
TEST_LOOP(test_every_item_once_in_order, 0, sizeof kinds / sizeof *kinds)
{
	struct crew *c = crew_new(kinds[_i].threads);
	struct job *j = malloc(sizeof *j);
	ck_assert_ptr_nonnull(c);
	ck_assert_uint_eq(crew_threads(c), kinds[_i].threads);
	for (unsigned r = 0; r < kinds[_i].runs; r++) {
		uint64_t before = crew_pulse(c);
		unsigned phases = r % 7 == 0 ? r % 3 : PHASES - r % 11;
		job_init(j, r, kinds[_i].threads, kinds[_i].delay);
		run(c, j, phases);
		ck_assert_uint_ge(crew_pulse(c), before + phases / 4);
	}
	free(j);
	crew_destroy(&c);
	ck_assert_ptr_null(c);
}

/* Threads that sleep are woken, for a run and for a phase. */
TEST(test_sleepers_wake)
{
	struct crew *c = crew_new(4);
	struct job *j = malloc(sizeof *j);
	for (unsigned r = 0; r < 30; r++) {
		nap(300); /* longer than a thread spins */
		job_init(j, r, 4, 3);
		run(c, j, PHASES);
	}
	free(j);
	crew_destroy(&c);
}

static uint32_t two(const void *ctx)
{
	(void)ctx;
	return 2;
}

/* Long enough for a thread that is woken to come for the second one. */
static void long_item(const void *ctx, uint32_t i, unsigned worker)
{
	atomic_uint *workers = (atomic_uint *)(uintptr_t)ctx;
	(void)i;
	atomic_fetch_or(workers, 1u << worker);
	nap(3000);
}

TEST(test_items_are_shared)
{
	struct crew *c = crew_new(2);
	unsigned shared = 0;
	for (int i = 0; i < 100 && shared < 3; i++) {
		atomic_uint workers = 0;
		struct crew_phase phase = {.items = two, .item = long_item, .ctx = &workers};
		/* the other thread sleeps by then, the first times perhaps not yet */
		nap(2000);
		crew_run(c, &phase, 1);
		shared += atomic_load(&workers) == 3;
	}
	ck_assert_uint_eq(shared, 3);
	crew_destroy(&c);
}

enum { SLOW_ITEMS = 20 };

static uint32_t slow_count(const void *ctx)
{
	(void)ctx;
	return SLOW_ITEMS;
}

static void slow_for_the_first(const void *ctx, uint32_t i, unsigned worker)
{
	atomic_uint *done_by = (atomic_uint *)(uintptr_t)ctx;
	atomic_store(&done_by[i], worker + 1);
	if (!worker)
		nap(1000);
}

/* Whoever is done with its own share takes from the others'. */
TEST(test_shares_are_taken_over)
{
	struct crew *c = crew_new(2);
	unsigned over = 0;
	for (int r = 0; r < 200 && over < 3; r++) {
		atomic_uint done_by[SLOW_ITEMS] = {0};
		struct crew_phase phase = {.items = slow_count, .item = slow_for_the_first, .ctx = done_by};
		crew_run(c, &phase, 1);
		for (unsigned i = 0; i < SLOW_ITEMS; i++)
			ck_assert_uint_ne(atomic_load(&done_by[i]), 0);
		for (unsigned i = 0; i < SLOW_ITEMS / 2; i++) /* of the first thread's share */
			if (atomic_load(&done_by[i]) == 2) {
				over++;
				break;
			}
	}
	ck_assert_uint_eq(over, 3);
	crew_destroy(&c);
}

/* --- room --------------------------------------------------------------- */

/* A crew takes memory for the runs that it is asked for, not for the longest that there could be.
 */
TEST(test_memory_is_that_of_the_longest_run)
{
	struct mallinfo2 before = mallinfo2();
	struct crew *c = crew_new(64);
	struct mallinfo2 with = mallinfo2();
	size_t had = before.hblkhd + before.uordblks, has = with.hblkhd + with.uordblks;
	ck_assert_ptr_nonnull(c);
	ck_assert_msg(has - had < 1 << 20, "a crew without a program takes %zu bytes", has - had);
	ck_assert_int_eq(crew_grow(c, 1000), 0);
	with = mallinfo2();
	has = with.hblkhd + with.uordblks;
	ck_assert_msg(has - had < 6 << 20, "room for 1000 phases of 64 threads takes %zu bytes",
	              has - had);
	ck_assert_int_eq(crew_grow(c, SIZE_MAX / 64), -1);
	crew_destroy(&c);
}

static uint32_t one(const void *ctx)
{
	(void)ctx;
	return 3;
}

static void add_one(const void *ctx, uint32_t i, unsigned worker)
{
	(void)i, (void)worker;
	atomic_fetch_add((atomic_uint *)(uintptr_t)ctx, 1);
}

/* Runs become longer while threads may still be late from the run before; there is no longest. */
TEST(test_room_grows_between_runs)
{
	enum { MOST = 100000 };
	atomic_uint times = 0;
	struct crew_phase *phase = calloc(MOST, sizeof *phase);
	unsigned want = 0;
	for (size_t i = 0; i < MOST; i++)
		phase[i] = (struct crew_phase){.items = one, .item = add_one, .ctx = &times};
	for (unsigned r = 0; r < 20; r++) {
		struct crew *c = crew_new(1 + r % 5);
		for (size_t n = 1 + r; n < (r ? 3000 : MOST); n += n / 3 + 1) {
			ck_assert_int_eq(crew_grow(c, n), 0);
			crew_run(c, phase, n);
			ck_assert_uint_eq(atomic_load(&times), want += 3 * (unsigned)n);
			crew_run(c, phase, n / 2);
			ck_assert_uint_eq(atomic_load(&times), want += 3 * (unsigned)(n / 2));
		}
		crew_destroy(&c);
	}
	struct crew *c = crew_new(2);
	ck_assert_int_eq(crew_grow(c, MOST), 0);
	crew_run(c, phase, MOST);
	ck_assert_uint_eq(atomic_load(&times), want + 3 * MOST);
	crew_destroy(&c);
	free(phase);
}

/* A thread that was woken for a run and comes only when there is more room: it must end with the
 * crew, and work in later runs. */
TEST(test_late_threads_of_an_older_room_end)
{
	enum { LONGER = 300, MS = 1000 };
	struct crew_phase phase[LONGER];
	atomic_uint times = 0;
	for (size_t i = 0; i < LONGER; i++)
		phase[i] = (struct crew_phase){.items = one, .item = add_one, .ctx = &times};
	for (unsigned r = 0; r < 30; r++) {
		struct crew *c = crew_new(2);
		usleep(2 * MS); /* the other thread sleeps */
		crew_run(c, phase, 1);
		ck_assert_int_eq(crew_grow(c, LONGER), 0);
		usleep(MS);
		crew_destroy(&c);
	}
	ck_assert_uint_eq(atomic_load(&times), 30 * 3);
}
