/* pool.c - persistent threads that spin briefly for the next job, then sleep on a futex.
 *
 * `state` holds the generation, whether the job is open and how many threads are inside. A thread enters by one compare-and-swap
 * while the job is open; the caller closes the job when no item is left and waits for those inside alone. So a thread that
 * the kernel has not scheduled never delays a job: it finds the job closed. Job fields are written only while nobody is inside. */
#include "kernels/cpu/pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SPIN_NS = 50000, TURNS_PER_CLOCK = 32 };
#define OPEN 1u                    /* state: generation << 8 | inside << 1 | OPEN */
#define INSIDE 2u
#define INSIDE_MASK 0xfeu
#define GENERATION 0x100u
enum { MAX_THREADS = 64 };

struct pool {
	_Alignas(64) atomic_uint state;
	atomic_uint sleepers;      /* pool threads asleep or about to be, waiting for a new state */
	atomic_uint caller_waits;  /* the caller sleeps until nobody is inside */
	atomic_bool stop;
	_Alignas(64) atomic_uint next;
	_Alignas(64) pool_fn *fn;
	void *ctx;
	uint32_t items;
	unsigned threads, started;
	struct pool_thread { struct pool *pool; unsigned worker; pthread_t id; } thread[MAX_THREADS];
};

static void futex_wait(atomic_uint *word, unsigned seen)
{
	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(atomic_uint *word, int count)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

static uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* A wait that spins: true once SPIN_NS have passed since the first call with the same `spin`, zero at first. */
struct spin { uint64_t until; unsigned turns; };

static bool spin_over(struct spin *spin)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#endif
	if (++spin->turns % TURNS_PER_CLOCK)
		return false;
	uint64_t now = now_ns();
	if (!spin->until)
		spin->until = now + SPIN_NS;
	return now >= spin->until;
}

static void work(struct pool *p, unsigned worker)
{
	for (uint32_t i; (i = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed)) < p->items;)
		p->fn(p->ctx, i, worker);
}

static void leave(struct pool *p)
{
	unsigned left = atomic_fetch_sub_explicit(&p->state, INSIDE, memory_order_seq_cst) - INSIDE;
	if (!(left & (OPEN | INSIDE_MASK)) && atomic_load_explicit(&p->caller_waits, memory_order_seq_cst))
		futex_wake(&p->state, MAX_THREADS);
}

/* Is there a job in state s that this thread has not seen? */
static bool is_new(unsigned s, unsigned done)
{
	return (s & OPEN) && s / GENERATION != done;
}

/* Returns a state with a new job, or any state once the pool stops. */
static unsigned await_open(struct pool *p, unsigned done)
{
	for (struct spin spin = { 0 };;) {
		unsigned s = atomic_load_explicit(&p->state, memory_order_acquire);
		if (is_new(s, done) || atomic_load_explicit(&p->stop, memory_order_acquire))
			return s;
		if (!spin_over(&spin))
			continue;
		atomic_fetch_add_explicit(&p->sleepers, 1, memory_order_seq_cst);
		s = atomic_load_explicit(&p->state, memory_order_seq_cst);
		if (!is_new(s, done) && !atomic_load_explicit(&p->stop, memory_order_seq_cst))
			futex_wait(&p->state, s);
		atomic_fetch_sub_explicit(&p->sleepers, 1, memory_order_seq_cst);
		spin = (struct spin){ 0 };
	}
}

static void *thread_main(void *arg)
{
	struct pool_thread *t = arg;
	struct pool *p = t->pool;
	unsigned done = ~0u;
	for (;;) {
		unsigned s = await_open(p, done);
		if (atomic_load_explicit(&p->stop, memory_order_acquire))
			return NULL;
		if (!atomic_compare_exchange_weak_explicit(&p->state, &s, s + INSIDE, memory_order_acq_rel, memory_order_relaxed))
			continue;
		done = s / GENERATION;
		work(p, t->worker);
		leave(p);
	}
}

static void await_empty(struct pool *p)
{
	unsigned s;
	for (struct spin spin = { 0 }; (s = atomic_load_explicit(&p->state, memory_order_acquire)) & INSIDE_MASK;) {
		if (!spin_over(&spin))
			continue;
		atomic_store_explicit(&p->caller_waits, 1, memory_order_seq_cst);
		s = atomic_load_explicit(&p->state, memory_order_seq_cst);
		if (s & INSIDE_MASK)
			futex_wait(&p->state, s);
		atomic_store_explicit(&p->caller_waits, 0, memory_order_seq_cst);
	}
}

void pool_run(struct pool *p, uint32_t items, pool_fn *fn, void *ctx)
{
	if (items <= 1 || p->threads == 1) {
		for (uint32_t i = 0; i < items; i++)
			fn(ctx, i, 0);
		return;
	}
	p->fn = fn;
	p->ctx = ctx;
	p->items = items;
	atomic_store_explicit(&p->next, 0, memory_order_relaxed);
	unsigned s = atomic_load_explicit(&p->state, memory_order_relaxed);
	atomic_store_explicit(&p->state, (s & ~(GENERATION - 1)) + GENERATION + OPEN, memory_order_seq_cst);
	unsigned asleep = atomic_load_explicit(&p->sleepers, memory_order_seq_cst);
	if (asleep)
		futex_wake(&p->state, items - 1 < asleep ? (int)items - 1 : (int)asleep);
	work(p, 0);
	atomic_fetch_and_explicit(&p->state, ~OPEN, memory_order_seq_cst);
	await_empty(p);
}

struct pool *pool_new(unsigned threads)
{
	struct pool *p = aligned_alloc(64, (sizeof *p + 63) / 64 * 64);
	if (!p)
		return NULL;
	*p = (struct pool){ .threads = threads < 1 ? 1 : threads > MAX_THREADS ? MAX_THREADS : threads };
	for (unsigned i = 1; i < p->threads; i++) {
		p->thread[i] = (struct pool_thread){ .pool = p, .worker = i };
		if (pthread_create(&p->thread[i].id, NULL, thread_main, &p->thread[i])) {
			pool_destroy(&p);
			return NULL;
		}
		p->started++;
	}
	return p;
}

void pool_destroy(struct pool **pp)
{
	struct pool *p = *pp;
	if (!p)
		return;
	atomic_store_explicit(&p->stop, true, memory_order_seq_cst);
	atomic_fetch_add_explicit(&p->state, GENERATION, memory_order_seq_cst);
	futex_wake(&p->state, MAX_THREADS);
	for (unsigned i = 1; i <= p->started; i++)
		pthread_join(p->thread[i].id, NULL);
	free(p);
	*pp = NULL;
}

unsigned pool_threads(const struct pool *p)
{
	return p->threads;
}
