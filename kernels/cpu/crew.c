/* crew.c - see crew.h: persistent threads that execute the phases of the current run, spin briefly
 * where they must wait, then sleep on a futex.
 *
 * The items of a phase are divided into one share of consecutive items per thread. A thread takes
 * items from its own share first, which reads adjacent memory and whose claim word is uncontended,
 * then from the others'. A claim is one word, changed by compare-and-swap: the run's number and the
 * remaining claims; a claim of an earlier run means that nothing has been claimed in this one. Run
 * numbers in claims never wrap (40 bits). The thread that finishes the last item of a phase opens
 * the next one. A thread that is late, even by whole runs, finds claims of its own run used up, or
 * claims of later runs, and touches neither phases nor data, so no thread ever waits for it.
 * Opening phase n ends the run. */
#include "kernels/cpu/crew.h"
#include "kernels/device.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
	SPIN_NS = 50000,
	TURNS_PER_CLOCK = 32,
	LINE = 64,
	PHASES_PER_PULSE = 4,
	LEFT_BITS = 24,
	LEFT_MAX = (1 << LEFT_BITS) - 1
};

/* Just before the seqlock's word wraps, so that an error in handling the wrap shows in the first
 * seconds, not after months. */
#define FIRST_RUN 0x7ffffff0u

/* run << LEFT_BITS | remaining claims */
struct share {
	_Alignas(64) _Atomic uint64_t claim;
};

struct progress {
	/* run << 32 | items: low 32 bits of the run that opened it last, and its number of items */
	_Alignas(64) _Atomic uint64_t opened;
	atomic_uint turn;              /* that run, stored after `opened`; threads wait on it */
	_Alignas(64) atomic_uint done; /* completed items */
};

/* Counters for runs of up to n phases. Older ones are kept because a late thread may still read
 * them. */
struct crew_room {
	struct crew_room *older;
	size_t n;
	struct progress *phase; /* (n + 1) */
	struct share *share;    /* (n, threads) */
};

struct crew {
	/* these change together under a seqlock: `run` is odd during a change, else twice the low bits
	 * of the run's number; number counts all runs */
	_Alignas(64) atomic_uint run;
	_Atomic uint64_t number;
	_Atomic(const struct crew_phase *) phases;
	_Atomic size_t n;
	_Atomic(struct crew_room *) room;
	struct crew_room *newest;
	_Alignas(64) _Atomic uint64_t pulse;
	atomic_uint sleepers;
	atomic_bool stop;
	unsigned threads, started;
	struct crew_thread {
		struct crew *crew;
		unsigned worker;
		pthread_t id;
	} thread[KERN_THREADS_MAX];
};

/* --- waiting ------------------------------------------------------------- */

static void futex_wait(atomic_uint *word, unsigned seen)
{
	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake_all(struct crew *c, atomic_uint *word)
{
	if (atomic_load_explicit(&c->sleepers, memory_order_seq_cst))
		syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, KERN_THREADS_MAX, NULL, NULL, 0);
}

static uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* A wait while *word == seen; the caller checks again after each turn. */
struct spin {
	uint64_t until;
	unsigned turns;
};

static void wait_turn(struct crew *c, struct spin *spin, atomic_uint *word, unsigned seen)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#endif
	if (++spin->turns % TURNS_PER_CLOCK)
		return;
	uint64_t now = now_ns();
	if (!spin->until)
		spin->until = now + SPIN_NS;
	if (now < spin->until)
		return;
	atomic_fetch_add_explicit(&c->sleepers, 1, memory_order_seq_cst);
	if (atomic_load_explicit(word, memory_order_seq_cst) == seen)
		futex_wait(word, seen);
	atomic_fetch_sub_explicit(&c->sleepers, 1, memory_order_seq_cst);
	*spin = (struct spin){0};
}

/* --- one run ------------------------------------------------------------- */

struct crew_walk {
	struct crew *crew;
	const struct crew_phase *phases;
	size_t n;
	const struct crew_room *room;
	uint64_t run;
	unsigned worker;
};

static unsigned word_of(uint64_t number)
{
	return (unsigned)number << 1;
}

/* Opens phase i, and the following ones while they have no items. */
static void open_phase(const struct crew_walk *w, size_t i)
{
	for (uint32_t items = 0; !items && i <= w->n; i++) {
		struct progress *p = &w->room->phase[i];
		items = i < w->n ? w->phases[i].items(w->phases[i].ctx) : 0;
		if (i % PHASES_PER_PULSE == 0)
			atomic_fetch_add_explicit(&w->crew->pulse, 1, memory_order_relaxed);
		atomic_store_explicit(&p->done, 0, memory_order_relaxed);
		atomic_store_explicit(&p->opened, w->run << 32 | items, memory_order_release);
		atomic_store_explicit(&p->turn, (unsigned)w->run, memory_order_seq_cst);
		futex_wake_all(w->crew, &p->turn);
	}
}

static void fetch_near(const struct crew_walk *w, size_t i)
{
	for (uint32_t at = 0; i < w->n && at < w->phases[i].near_bytes; at += LINE)
		__builtin_prefetch((const char *)w->phases[i].near + at);
}

/* false: the run is over, or another run has started */
static bool await_phase(const struct crew_walk *w, size_t i, uint32_t *ret_items)
{
	struct progress *p = &w->room->phase[i];
	uint64_t opened;
	for (struct spin spin = {0};;) {
		unsigned turn = atomic_load_explicit(&p->turn, memory_order_acquire);
		opened = atomic_load_explicit(&p->opened, memory_order_acquire);
		if (opened >> 32 == (uint32_t)w->run)
			break;
		if (atomic_load_explicit(&w->crew->run, memory_order_acquire) != word_of(w->run))
			return false;
		wait_turn(w->crew, &spin, &p->turn, turn);
	}
	*ret_items = (uint32_t)opened;
	return true;
}

static uint32_t share_begin(uint32_t items, unsigned share, unsigned shares)
{
	return (uint32_t)((uint64_t)items * share / shares);
}

/* Remaining claims of a share that has `all` claims in this run. */
static uint32_t left_of(uint64_t claim, uint64_t run, uint32_t all)
{
	uint64_t last = claim >> LEFT_BITS;
	return last < run ? all : last > run ? 0 : (uint32_t)claim & LEFT_MAX;
}

/* Runs the remaining items of a share; *mine counts this thread's items of the phase. A claim takes
 * one item, or several if there are more items than a claim can count. */
static void take_share(const struct crew_walk *w, size_t i, unsigned share, uint32_t items,
                       uint32_t *mine)
{
	const struct crew_phase *phase = &w->phases[i];
	unsigned shares = w->crew->threads;
	uint32_t from = share_begin(items, share, shares), end = share_begin(items, share + 1, shares),
			 each = (end - from) / LEFT_MAX + 1;
	uint32_t all = (end - from + each - 1) / each, left;
	_Atomic uint64_t *word = &w->room->share[i * shares + share].claim;
	uint64_t claim = all ? atomic_load_explicit(word, memory_order_acquire) : 0;
	while (all && (left = left_of(claim, w->run, all))) {
		if (!atomic_compare_exchange_weak_explicit(word, &claim, w->run << LEFT_BITS | (left - 1),
		                                           memory_order_acq_rel, memory_order_acquire))
			continue;
		if (!*mine)
			fetch_near(w, i + 1); /* now, while the run cannot end */
		uint32_t first = from + (all - left) * each;
		for (uint32_t item = first; item < end && item - first < each; item++, ++*mine)
			phase->item(phase->ctx, item, w->worker);
		claim = atomic_load_explicit(word, memory_order_acquire);
	}
}

static void walk_phase(const struct crew_walk *w, size_t i, uint32_t items)
{
	struct progress *p = &w->room->phase[i];
	unsigned shares = w->crew->threads;
	uint32_t mine = 0;
	for (unsigned k = 0; k < shares; k++)
		take_share(w, i, (w->worker + k) % shares, items, &mine);
	if (mine && atomic_fetch_add_explicit(&p->done, mine, memory_order_acq_rel) + mine == items)
		open_phase(w, i + 1);
}

static void walk(const struct crew_walk *w)
{
	uint32_t items;
	for (size_t i = 0; await_phase(w, i, &items) && i < w->n; i++)
		walk_phase(w, i, items);
}

/* Waits for a run after `last`; false: the crew is stopping. */
static bool await_run(struct crew *c, unsigned last, struct crew_walk *w)
{
	for (struct spin spin = {0};;) {
		unsigned run = atomic_load_explicit(&c->run, memory_order_acquire);
		if (atomic_load_explicit(&c->stop, memory_order_acquire))
			return false;
		w->phases = atomic_load_explicit(&c->phases, memory_order_acquire);
		w->n = atomic_load_explicit(&c->n, memory_order_acquire);
		w->room = atomic_load_explicit(&c->room, memory_order_acquire);
		w->run = atomic_load_explicit(&c->number, memory_order_acquire);
		if (run == last || run & 1)
			wait_turn(c, &spin, &c->run, run);
		else if (atomic_load_explicit(&c->run, memory_order_relaxed) == run)
			return true;
	}
}

static void *thread_main(void *arg)
{
	struct crew_thread *t = arg;
	struct crew_walk w = {.crew = t->crew, .worker = t->worker};
	for (unsigned last = word_of(FIRST_RUN); await_run(t->crew, last, &w); last = word_of(w.run))
		walk(&w);
	return NULL;
}

static void run_alone(struct crew *c, const struct crew_phase *phases, size_t n)
{
	const struct crew_walk w = {.crew = c, .phases = phases, .n = n};
	for (size_t i = 0; i < n; i++, atomic_fetch_add_explicit(&c->pulse, 1, memory_order_relaxed)) {
		fetch_near(&w, i + 1);
		for (uint32_t item = 0, items = phases[i].items(phases[i].ctx); item < items; item++)
			phases[i].item(phases[i].ctx, item, 0);
	}
}

void crew_run(struct crew *c, const struct crew_phase *phases, size_t n)
{
	if (c->threads == 1) {
		run_alone(c, phases, n);
		return;
	}
	uint64_t run = atomic_load_explicit(&c->number, memory_order_relaxed) + 1;
	atomic_fetch_or_explicit(&c->run, 1, memory_order_seq_cst);
	atomic_store_explicit(&c->number, run, memory_order_relaxed);
	atomic_store_explicit(&c->phases, phases, memory_order_relaxed);
	atomic_store_explicit(&c->n, n, memory_order_relaxed);
	atomic_store_explicit(&c->room, c->newest, memory_order_relaxed);
	atomic_store_explicit(&c->run, word_of(run), memory_order_seq_cst);
	futex_wake_all(c, &c->run);
	struct crew_walk w = {.crew = c, .phases = phases, .n = n, .room = c->newest, .run = run};
	open_phase(&w, 0);
	walk(&w);
}

/* --- start and end ------------------------------------------------------- */

size_t crew_phase_bytes(unsigned threads)
{
	return threads > 1 ? sizeof(struct progress) + threads * sizeof(struct share) : 0;
}

/* At least doubles the room, so that all older ones together are no larger. New claims have run 0,
 * which precedes all runs. */
int crew_grow(struct crew *c, size_t n)
{
	struct crew_room *old = c->newest;
	if (c->threads == 1 || (old && n <= old->n))
		return 0;
	if (old && n < 2 * old->n)
		n = 2 * old->n;
	size_t each = crew_phase_bytes(c->threads), head = (sizeof *old + 63) / 64 * 64;
	struct crew_room *r = n < SIZE_MAX / each / 2 ? aligned_alloc(64, head + (n + 1) * each) : NULL;
	if (!r)
		return -1;
	memset(r, 0, head + (n + 1) * each);
	*r = (struct crew_room){.older = old,
	                        .n = n,
	                        .phase = (struct progress *)(void *)((unsigned char *)r + head)};
	r->share = (struct share *)(void *)(r->phase + n + 1);
	c->newest = r;
	return 0;
}

struct crew *crew_new(unsigned threads)
{
	struct crew *c = aligned_alloc(64, (sizeof *c + 63) / 64 * 64);
	if (!c)
		return NULL;
	*c = (struct crew){.number = FIRST_RUN,
	                   .run = word_of(FIRST_RUN),
	                   .threads = threads < 1                  ? 1
	                              : threads > KERN_THREADS_MAX ? KERN_THREADS_MAX
	                                                           : threads};
	if (crew_grow(c, CREW_PHASES)) {
		free(c);
		return NULL;
	}
	for (unsigned i = 1; i < c->threads; i++) {
		c->thread[i] = (struct crew_thread){.crew = c, .worker = i};
		if (pthread_create(&c->thread[i].id, NULL, thread_main, &c->thread[i])) {
			crew_destroy(&c);
			return NULL;
		}
		c->started++;
	}
	return c;
}

void crew_destroy(struct crew **cp)
{
	struct crew *c = *cp;
	if (!c)
		return;
	atomic_store_explicit(&c->stop, true, memory_order_seq_cst);
	atomic_fetch_or_explicit(&c->run, 1, memory_order_seq_cst);
	syscall(SYS_futex, &c->run, FUTEX_WAKE_PRIVATE, KERN_THREADS_MAX, NULL, NULL, 0);
	for (unsigned i = 1; i <= c->started; i++)
		pthread_join(c->thread[i].id, NULL);
	for (struct crew_room *r = c->newest, *older; r; r = older) {
		older = r->older;
		free(r);
	}
	free(c);
	*cp = NULL;
}

uint64_t crew_pulse(const struct crew *c)
{
	return atomic_load_explicit(&c->pulse, memory_order_relaxed);
}

unsigned crew_threads(const struct crew *c)
{
	return c->threads;
}
