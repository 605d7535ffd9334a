/* grid.c - runs a kernel's grid: see cuda_host.h. Only one thread at a time may run grids.
 *
 * Blocks start in a seeded order. A few are resident at a time, each in a place of its own with
 * fibres and shared memory; a random one runs next, for a random number of rounds over its fibres,
 * and when it ends the next block takes its place. A block may wait only for blocks that have
 * started: a grid of more blocks than there are places never ends if each waits for all others. */
#include "tests/cuda_host/runtime.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
	THREADS_MAX = 1024,
	WARP = 32,
	BLOCKS_MAX = 4, /* resident */
	TURN_ROUNDS_LOG = 5,
	SLOW_BLOCKS = 4, /* one of so many has a slow warp, */
	SLOW_ROUNDS = 8, /* which takes part in one of so many rounds */
	NONE_SLOW = THREADS_MAX,
	STACK_BYTES = 256 << 10,
	EXCHANGE = 32,
	SLEEP_US = 20
};

enum fibre_state { READY, WAITS_BLOCK, WAITS_WARP, DONE };

struct fibre {
	struct cuda_host_thread me; /* first */
	enum fibre_state state;
	struct block *block;
	void *stack; /* stack pointer while it does not run */
	unsigned exchanges;
};

struct warp {
	unsigned arrived, wanted;
	unsigned char slot[2][WARP][EXCHANGE];
};

/* A place for a resident block. */
struct block {
	unsigned first; /* of its fibres; a multiple of WARP */
	unsigned alive; /* threads; 0: the place is free */
	unsigned at_barrier, barrier_sum, barrier_result;
	unsigned paused; /* fibres that this round ran up to a cuda_host_pause */
	unsigned slow;   /* its first fibre: a warp that misses most rounds; NONE_SLOW: no warp */
	unsigned char *shared;
	/* in a cluster's first block: threads that wait for all of the cluster; how often all came */
	unsigned at_cluster, cluster_met;
};

/* Copies into shared memory that a thread has started and not waited for, and what it has told to
 * barriers that it does when those before it are done. */
enum { COPIES_MAX = 128 };
struct copies {
	unsigned n;
	struct {
		uint64_t *barrier; /* NULL: a copy */
		void *to;
		const void *from; /* NULL: zeros */
		size_t bytes;
	} of[COPIES_MAX];
};

static struct fibre fibre[THREADS_MAX];
static struct copies copies[THREADS_MAX]; /* the fibre's */
static struct warp warp[THREADS_MAX / WARP];
static struct block block[BLOCKS_MAX];
static unsigned char *stacks;
static void *scheduler;   /* its stack */
static unsigned threads;  /* of a block */
static size_t shared_max; /* bytes of a block's shared memory */
static unsigned cluster;  /* blocks of a cluster, in places next to each other */
static const struct cuda_host_kernel *kernel;
static const void *kernel_args;
static uint32_t seed = 1;

struct cuda_host_thread *cuda_host_now;

static struct cuda_host_kernel *kernels;

void cuda_host_register(struct cuda_host_kernel *k)
{
	k->next = kernels;
	kernels = k;
}

const struct cuda_host_kernel *cuda_host_find(const void *fn)
{
	const struct cuda_host_kernel *k = kernels;
	while (k && k->fn != fn)
		k = k->next;
	return k;
}

void cuda_host_seed(uint32_t s)
{
	seed = s * 2654435761u | 1;
}

uint32_t cuda_host_random(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 17;
	return seed ^= seed << 5;
}

/* --- fibres -------------------------------------------------------------- */

/* Saves the callee-saved registers and stores the stack pointer in *save; continues at `load`. */
void cuda_host_switch(void **save, void *load);
#if defined(__x86_64__)
__asm__(".text\n.globl cuda_host_switch\n.hidden cuda_host_switch\n.type cuda_host_switch, "
        "@function\ncuda_host_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n.size cuda_host_switch, "
        ".-cuda_host_switch\n");
enum { KEPT_WORDS = 6 };
#elif defined(__aarch64__)
__asm__(".text\n.globl cuda_host_switch\n.hidden cuda_host_switch\n.type cuda_host_switch, "
        "%function\ncuda_host_switch:\n"
        "sub sp, sp, #160\n"
        "stp x19, x20, [sp]\nstp x21, x22, [sp, #16]\nstp x23, x24, [sp, #32]\nstp x25, x26, [sp, "
        "#48]\nstp x27, x28, [sp, #64]\nstp x29, x30, [sp, #80]\n"
        "stp d8, d9, [sp, #96]\nstp d10, d11, [sp, #112]\nstp d12, d13, [sp, #128]\nstp d14, d15, "
        "[sp, #144]\n"
        "mov x9, sp\nstr x9, [x0]\nmov sp, x1\n"
        "ldp x19, x20, [sp]\nldp x21, x22, [sp, #16]\nldp x23, x24, [sp, #32]\nldp x25, x26, [sp, "
        "#48]\nldp x27, x28, [sp, #64]\nldp x29, x30, [sp, #80]\n"
        "ldp d8, d9, [sp, #96]\nldp d10, d11, [sp, #112]\nldp d12, d13, [sp, #128]\nldp d14, d15, "
        "[sp, #144]\n"
        "add sp, sp, #160\nret\n.size cuda_host_switch, .-cuda_host_switch\n");
#else
#error "fibres: no switch for this processor"
#endif

static struct fibre *now(void)
{
	return (struct fibre *)(void *)cuda_host_now;
}

static void leave(struct fibre *f)
{
	cuda_host_switch(&f->stack, scheduler);
}

static void fibre_main(void)
{
	kernel->run(kernel_args);
	struct fibre *f = now();
	f->state = DONE;
	f->block->alive--;
	leave(f);
	abort();
}

static void *stack_begin(unsigned i)
{
	unsigned char *top = stacks + (size_t)(i + 1) * STACK_BYTES;
#if defined(__x86_64__)
	void (*entry)(void) = fibre_main;
	/* when it starts, the stack is 8 beyond a multiple of 16, as after a call */
	top -= 16;
	memset(top, 0, 16);
	memcpy(top, &entry, sizeof entry);
	top -= KEPT_WORDS * 8;
	memset(top, 0, KEPT_WORDS * 8);
#else
	void (*entry)(void) = fibre_main;
	top -= 160;
	memset(top, 0, 160);
	memcpy(top + 88, &entry, sizeof entry); /* x30 */
#endif
	return top;
}

__attribute__((noreturn)) static void die(const char *what)
{
	fprintf(stderr, "cuda_host: kernel %s, block (%u, %u), thread %u: %s\n", kernel->name,
	        cuda_host_now ? cuda_host_now->block.x : 0, cuda_host_now ? cuda_host_now->block.y : 0,
	        cuda_host_now ? cuda_host_now->thread.x : 0, what);
	abort();
}

/* --- barriers and exchanges ---------------------------------------------- */

unsigned char *cuda_host_shared(void)
{
	return now()->block->shared;
}

void cuda_host_pause(void)
{
	struct fibre *f = now();
	f->block->paused++;
	leave(f);
}

uint64_t cuda_host_clock_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void copy_add(uint64_t *barrier, void *to, const void *from, size_t bytes)
{
	struct copies *c = &copies[now() - fibre];
	if (c->n == COPIES_MAX)
		die("has more copies in progress than are counted here");
	c->of[c->n].barrier = barrier;
	c->of[c->n].to = to;
	c->of[c->n].from = from;
	c->of[c->n++].bytes = bytes;
}

void cuda_host_copy_async(void *to, const void *from, size_t bytes, int there)
{
	if (((uintptr_t)to | (uintptr_t)from) % bytes)
		die("copies bytes from or to an address that is not a multiple of their number");
	copy_add(NULL, to, there ? from : NULL, bytes);
}

void cuda_host_barrier_arrive_copied(uint64_t *barrier)
{
	copy_add(barrier, NULL, NULL, 0);
}

static void barrier_change(uint64_t *barrier, int arrived, int32_t bytes);

/* Does the first n. */
static void copies_do(struct copies *c, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		if (c->of[i].barrier)
			barrier_change(c->of[i].barrier, 1, 0);
		else if (c->of[i].from)
			memcpy(c->of[i].to, c->of[i].from, c->of[i].bytes);
		else
			memset(c->of[i].to, 0, c->of[i].bytes);
	memmove(c->of, c->of + n, (c->n - n) * sizeof c->of[0]);
	c->n -= n;
}

void cuda_host_copy_wait(void)
{
	struct copies *c = &copies[now() - fibre];
	copies_do(c, c->n);
}

/* Does copies of one thread of the block up to the next of which it tells a barrier. */
static void copies_come(const struct block *b)
{
	struct copies *c = &copies[b->first + cuda_host_random() % threads];
	for (unsigned i = 0; i < c->n; i++)
		if (c->of[i].barrier) {
			copies_do(c, i + 1);
			return;
		}
}

/* --- clusters and barriers in shared memory ------------------------------ */

unsigned cuda_host_cluster_rank(void)
{
	return cuda_host_now->block.x % cluster;
}

static struct block *peer(unsigned rank)
{
	struct block *b = now()->block - cuda_host_cluster_rank() + rank;
	if (!b->shared)
		die("uses shared memory of a block that has ended");
	return b;
}

void *cuda_host_peer(const void *own, unsigned rank)
{
	return peer(rank)->shared + ((const unsigned char *)own - now()->block->shared);
}

void cuda_host_cluster_meet(void)
{
	struct block *first = peer(0);
	unsigned met = first->cluster_met;
	if (++first->at_cluster == threads * cluster) {
		first->at_cluster = 0;
		first->cluster_met++;
	}
	while (first->cluster_met == met)
		cuda_host_pause();
}

/* A barrier's word: the last bit of its phase's number, threads still to arrive in it, threads in
 * each, announced bytes still to come (negative: they came first). */
struct barrier_word {
	uint32_t phase : 1, left : 15, count : 16;
	int32_t bytes;
};

/* Copies in progress that a barrier counts. */
enum { BULKS_MAX = 512 };
static struct bulk {
	struct block *block;
	void *to;
	const void *from;
	uint32_t bytes;
	uint64_t *barrier;
} bulk[BULKS_MAX];
static unsigned bulks;

static void barrier_change(uint64_t *barrier, int arrived, int32_t bytes)
{
	struct barrier_word w;
	memcpy(&w, barrier, sizeof w);
	if (arrived && !w.left)
		die("more threads arrive at a barrier than its phase has");
	w.left = (w.left - (uint32_t)arrived) & 0x7fff;
	w.bytes += bytes;
	if (!w.left && !w.bytes) {
		w.phase ^= 1u;
		w.left = w.count & 0x7fff;
	}
	memcpy(barrier, &w, sizeof w);
}

void cuda_host_barrier_init(uint64_t *barrier, unsigned count)
{
	struct barrier_word w = {0, count & 0x7fff, count & 0xffff, 0};
	memcpy(barrier, &w, sizeof w);
}

void cuda_host_barrier_arrive(uint64_t *barrier, uint32_t bytes)
{
	barrier_change(barrier, 1, (int32_t)bytes);
}

void cuda_host_copy_bulk(void *to, const void *from, uint32_t bytes, uint64_t *barrier)
{
	if (((uintptr_t)to | (uintptr_t)from | bytes) % 16)
		die("bulk copy of bytes or from or to an address that is not a multiple of 16");
	if (bulks == BULKS_MAX)
		die("has more bulk copies in progress than are counted here");
	struct block *b = now()->block - cuda_host_cluster_rank();
	while ((unsigned char *)barrier < b->shared ||
	       (unsigned char *)barrier >= b->shared + shared_max)
		b++;
	bulk[bulks++] = (struct bulk){b, to, from, bytes, barrier};
}

/* Does one copy of the block, or none. */
static void bulk_do(struct block *b)
{
	if (!bulks)
		return;
	struct bulk *one = &bulk[cuda_host_random() % bulks], did = *one;
	if (did.block != b)
		return;
	memcpy(did.to, did.from, did.bytes);
	*one = bulk[--bulks];
	barrier_change(did.barrier, 0, -(int32_t)did.bytes);
}

void cuda_host_barrier_wait(uint64_t *barrier, unsigned phase)
{
	for (;;) {
		struct barrier_word w;
		memcpy(&w, barrier, sizeof w);
		if (w.phase != phase)
			return;
		bulk_do(now()->block);
		copies_come(now()->block);
		cuda_host_pause();
	}
}

static void wake(enum fibre_state waiting, unsigned from, unsigned to)
{
	for (unsigned i = from; i < to; i++)
		if (fibre[i].state == waiting)
			fibre[i].state = READY;
}

static void barrier_pass(struct block *b)
{
	b->barrier_result = b->barrier_sum;
	b->at_barrier = b->barrier_sum = 0;
	wake(WAITS_BLOCK, b->first, b->first + threads);
}

int cuda_host_block_meet(int value)
{
	struct fibre *f = now();
	struct block *b = f->block;
	b->barrier_sum += value != 0;
	f->state = WAITS_BLOCK;
	if (++b->at_barrier == b->alive)
		barrier_pass(b);
	leave(f);
	return (int)b->barrier_result;
}

const unsigned char *cuda_host_warp_meet(unsigned mask, const void *mine, size_t bytes)
{
	struct fibre *f = now();
	unsigned first = (unsigned)(f - fibre) / WARP * WARP, end = f->block->first + threads,
			 buffer = f->exchanges++ & 1;
	struct warp *w = &warp[first / WARP];
	if (!(mask >> f->me.lane & 1))
		die("exchange with a mask that lacks its own lane");
	if (w->arrived && w->wanted != mask)
		die("lanes exchange with different masks");
	/* block_round detects lanes that end later */
	for (unsigned i = 0; i < WARP && !w->arrived; i++)
		if (mask >> i & 1 && (first + i >= end || fibre[first + i].state == DONE ||
		                      fibre[first + i].state == WAITS_BLOCK))
			die("exchange with a lane that does not take part");
	if (bytes > EXCHANGE)
		die("exchange of more bytes than a slot holds");
	if (bytes)
		memcpy(w->slot[buffer][f->me.lane], mine, bytes);
	w->wanted = mask;
	w->arrived |= 1u << f->me.lane;
	f->state = WAITS_WARP;
	if (w->arrived == mask) {
		w->arrived = 0;
		wake(WAITS_WARP, first, first + WARP < end ? first + WARP : end);
	}
	leave(f);
	return &w->slot[buffer][0][0];
}

/* --- tensor cores -------------------------------------------------------- */

static double bf16(uint32_t pair, int high)
{
	union {
		uint32_t u;
		float f;
	} v = {high ? pair & 0xffff0000u : pair << 16};
	return (double)v.f;
}

static double power_of_2(int e) /* -1022 .. 1023 */
{
	union {
		uint64_t u;
		double d;
	} v = {(uint64_t)(e + 1023) << 52};
	return v.d;
}

enum { PRODUCTS = 16 };

#if defined(__x86_64__)
#define WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WIDE
#endif

/* The sum of the products and d: each truncated below 2^-24 of the largest, their sum to float32.
 * Products that are all zeros leave d as it is. Most of a test's time is spent here. */
static WIDE float cut_sum(const double *x, const double *y, float d)
{
	double term[PRODUCTS], all = 0;
	uint64_t bits[PRODUCTS];
	int64_t top = 0;
	int32_t sum = 0; /* at most 17 terms below 2^25 */
	for (unsigned i = 0; i < PRODUCTS; i++)
		term[i] = x[i] * y[i];
	memcpy(bits, term, sizeof bits);
	for (unsigned i = 0; i < PRODUCTS; i++) {
		int64_t u = (int64_t)(bits[i] & INT64_MAX);
		top = u > top ? u : top;
	}
	if (!top)
		return d;
	union {
		double d;
		uint64_t u;
	} r = {(double)d};
	int64_t last = (int64_t)(r.u & INT64_MAX);
	top = last > top ? last : top;
	int e = (int)(top >> 52) - 1023;
	if (e > 127) { /* infinite, NaN or overflow */
		for (unsigned i = 0; i < PRODUCTS; i++)
			all += term[i];
		return (float)(all + (double)d);
	}
	double step = power_of_2(e - 24), inverse = power_of_2(24 - e);
	for (unsigned i = 0; i < PRODUCTS; i++)
		sum += (int32_t)(term[i] * inverse);
	sum += (int32_t)((double)d * inverse);
	r.d = (double)sum * step;
	if (fabs(r.d) >= 0x1p-126)
		r.u &= ~(uint64_t)0x1fffffff;
	return (float)r.d;
}

/* A warp's operands, for the current exchange and the next. */
static struct {
	double a[16][PRODUCTS], b[8][PRODUCTS];
} matrices[THREADS_MAX / WARP][2];

void cuda_host_mma(float d[4], const uint32_t a[4], const uint32_t b[2])
{
	const struct fibre *f = now();
	unsigned lane = cuda_host_now->lane, g = lane / 4, t = lane % 4,
			 warp_of = (unsigned)(f - fibre) / WARP, buffer = f->exchanges & 1;
	for (unsigned i = 0; i < 8; i++)
		matrices[warp_of][buffer].a[g + i / 2 % 2 * 8][2 * t + i % 2 + i / 4 * 8] = bf16(a[i / 2],
		                                                                                 i % 2);
	for (unsigned i = 0; i < 4; i++)
		matrices[warp_of][buffer].b[g][2 * t + i % 2 + i / 2 * 8] = bf16(b[i / 2], i % 2);
	cuda_host_warp_meet(0xffffffffu, NULL, 0);
	for (unsigned out = 0; out < 4; out++)
		d[out] = cut_sum(matrices[warp_of][buffer].a[g + out / 2 * 8],
		                 matrices[warp_of][buffer].b[2 * t + out % 2], d[out]);
}

/* What a thread has started of wgmma and not waited for. */
enum { WGMMA_MAX = 32, LATE_ODDS = 1024, LATE_ROUNDS = 64 };
static bool wgmma_differs; /* CUDA_HOST_WGMMA=0 */
static struct wgmmas {
	unsigned n, group;
	struct {
		float *d;
		unsigned columns, group;
		double a[2][PRODUCTS]; /* rows lane / 4 and lane / 4 + 8 */
		uint64_t b;
		int by_k, add;
	} of[WGMMA_MAX];
} wgmmas[THREADS_MAX];

/* Element (k, n) of an operand (kernels/cuda/kernel.h, enum wgmma_layout). */
static double operand_value(const unsigned char *shared, uint64_t b, int by_k, unsigned k,
                            unsigned n)
{
	size_t at = (size_t)(b & 0x3fff) << 4, leading = (size_t)(b >> 16 & 0x3fff) << 4,
		   stride = (size_t)(b >> 32 & 0x3fff) << 4;
	uint16_t h;
	if (b >> 62 == 0) {
		at += k / 8 * leading + n / 8 * stride + n % 8 * 16 + k % 8 * 2;
	} else {
		at += by_k ? n / 64 * leading + k / 8 * stride + k % 8 * 128 + n % 64 * 2
		           : n / 8 * stride + n % 8 * 128 + k * 2;
		at ^= at >> 3 & 0x70;
	}
	memcpy(&h, shared + at, sizeof h);
	return bf16(h, 0);
}

/* Does the first `count`. */
static void wgmmas_do(struct wgmmas *w, unsigned count)
{
	unsigned t = cuda_host_now->lane % 4;
	const unsigned char *shared = cuda_host_shared();
	for (unsigned i = 0; i < count; i++)
		for (unsigned n = 0; n < w->of[i].columns; n += n % 2 ? 7 : 1) {
			double b[PRODUCTS];
			for (unsigned k = 0; k < PRODUCTS; k++)
				b[k] = operand_value(shared, w->of[i].b, w->of[i].by_k, k, n + 2 * t);
			for (unsigned h = 0; h < 2; h++) {
				float *d = w->of[i].d + n / 8 * 4 + 2 * h + n % 2;
				*d = cut_sum(w->of[i].a[h], b, w->of[i].add ? *d : 0);
				if (wgmma_differs)
					*d *= 1 + 0x1p-20f;
			}
		}
	memmove(w->of, w->of + count, (w->n - count) * sizeof w->of[0]);
	w->n -= count;
}

void cuda_host_wgmma(float *d, unsigned n, const uint32_t a[4], uint64_t b, int by_k, int add)
{
	struct wgmmas *w = &wgmmas[now() - fibre];
	const unsigned char *all = cuda_host_warp_meet(0xffffffffu, a, 16);
	unsigned g = cuda_host_now->lane / 4;
	if (threads % (4 * WARP))
		die("wgmma in a block that is not made of whole warpgroups");
	if (w->n == WGMMA_MAX)
		die("has started more wgmma than are counted here");
	w->of[w->n].d = d;
	w->of[w->n].columns = n;
	w->of[w->n].group = w->group;
	w->of[w->n].b = b;
	w->of[w->n].by_k = by_k;
	w->of[w->n].add = add;
	for (unsigned t = 0; t < 4; t++) {
		uint32_t r[4];
		memcpy(r, all + 32 * (4 * g + t), sizeof r);
		for (unsigned i = 0; i < 8; i++)
			w->of[w->n].a[i / 2 % 2][2 * t + i % 2 + i / 4 * 8] = bf16(r[i / 2], i % 2);
	}
	w->n++;
	if (cuda_host_random() & 1)
		wgmmas_do(w, w->n);
}

void cuda_host_wgmma_commit(void)
{
	wgmmas[now() - fibre].group++;
}

void cuda_host_wgmma_wait(unsigned pending)
{
	struct wgmmas *w = &wgmmas[now() - fibre];
	unsigned n = 0;
	/* now and then a warp falls behind the others of its group */
	for (unsigned late = cuda_host_random() % LATE_ODDS ? 0 : LATE_ROUNDS; late; late--)
		cuda_host_pause();
	while (n < w->n && w->of[n].group + pending < w->group)
		n++;
	wgmmas_do(w, n);
	cuda_host_warp_meet(0xffffffffu, NULL, 0);
}

/* --- a grid -------------------------------------------------------------- */

static void block_begin(struct block *b, struct dim3 grid, size_t at, size_t shared_bytes)
{
	struct dim3 index = {(unsigned)(at % grid.x), (unsigned)(at / grid.x), 0};
	b->alive = threads;
	b->at_barrier = b->barrier_sum = 0;
	b->slow = cuda_host_random() % SLOW_BLOCKS
	              ? NONE_SLOW
	              : b->first + cuda_host_random() % threads / WARP * WARP;
	/* allocated at its exact size, so that AddressSanitizer detects accesses beyond it */
	b->shared = malloc(shared_bytes ? shared_bytes : 1);
	memset(b->shared, 0xa5, shared_bytes);
	memset(&warp[b->first / WARP], 0, (threads + WARP - 1) / WARP * sizeof *warp);
	for (unsigned i = 0; i < threads; i++) {
		struct fibre *f = &fibre[b->first + i];
		f->me = (struct cuda_host_thread){{i, 0, 0}, index, {threads, 1, 1}, grid, i % WARP};
		f->state = READY;
		f->block = b;
		f->exchanges = 0;
		copies[b->first + i].n = 0;
		wgmmas[b->first + i].n = wgmmas[b->first + i].group = 0;
		f->stack = stack_begin(b->first + i);
	}
}

__attribute__((noreturn)) static void die_waiting(const struct block *b)
{
	unsigned i = b->first;
	while (fibre[i].state == DONE)
		i++;
	cuda_host_now = &fibre[i].me;
	die("deadlock: waits for lanes that never arrive");
}

/* Runs each of the block's fibres once. Returns false if all that ran did so up to a
 * cuda_host_pause. */
static bool block_round(struct block *b)
{
	unsigned start = cuda_host_random() % threads, back = cuda_host_random() & 1, ran = 0,
			 left_out = 0, slow = cuda_host_random() % SLOW_ROUNDS ? b->slow : NONE_SLOW;
	b->paused = 0;
	for (unsigned i = 0; i < threads; i++) {
		unsigned which = start + (back ? threads - i : i);
		struct fibre *f = &fibre[b->first + (which < threads ? which : which - threads)];
		if (f->state != READY)
			continue;
		if ((unsigned)(f - fibre) / WARP * WARP == slow) {
			left_out++;
			continue;
		}
		ran++;
		cuda_host_now = &f->me;
		cuda_host_switch(&scheduler, f->stack);
	}
	/* threads that have ended do not count for a barrier */
	if (b->alive && b->at_barrier == b->alive)
		barrier_pass(b);
	else if (!ran && !left_out)
		die_waiting(b);
	return ran > b->paused || left_out;
}

/* Runs the block for a random number of rounds, or until it ends or only waits for others. Turns
 * differ much in length so that either of two blocks may get far ahead. Returns false if it only
 * waited. */
static bool block_turn(struct block *b)
{
	unsigned rounds = 1u << cuda_host_random() % (TURN_ROUNDS_LOG + 1);
	bool moved = block_round(b), on = moved;
	while (--rounds && b->alive && on)
		on = block_round(b);
	return moved;
}

/* Starts a cluster in the places from `first` on. */
static void cluster_begin(struct block *first, struct dim3 grid, size_t number, size_t shared_bytes)
{
	first->at_cluster = first->cluster_met = 0;
	for (unsigned i = 0; i < cluster; i++)
		block_begin(first + i, grid, number * cluster + i, shared_bytes);
}

static bool cluster_is_free(const struct block *first)
{
	bool any = false;
	for (unsigned i = 0; i < cluster; i++)
		any |= first[i].alive != 0;
	return !any;
}

static void run_blocks(struct dim3 grid, unsigned places, size_t shared_bytes)
{
	size_t blocks = (size_t)grid.x * grid.y, clusters = blocks / cluster,
		   first = cuda_host_random() % clusters;
	size_t started = 0, ended = 0;
	bool back = cuda_host_random() & 1;
	unsigned idle = 0; /* places, as bits, that have been empty or waiting since a block moved */
	while (ended < blocks) {
		unsigned at = cuda_host_random() % places;
		struct block *b = &block[at], *lead = &block[at / cluster * cluster];
		if (started < clusters && cluster_is_free(lead)) {
			cluster_begin(lead, grid, (first + (back ? clusters - started : started)) % clusters,
			              shared_bytes);
			started++;
		}
		idle |= 1u << at;
		if (b->alive && block_turn(b))
			idle = 0;
		if (!idle && !b->alive) {
			for (unsigned i = 0; i < bulks; i++)
				if (bulk[i].block == b)
					die("ends before its bulk copies have come");
			free(b->shared);
			b->shared = NULL;
			ended++;
		}
		if (idle == (1u << places) - 1) { /* all wait for another process */
			usleep(SLEEP_US);
			idle = 0;
		}
	}
}

int cuda_host_grid(const struct cuda_host_kernel *k, struct dim3 grid, unsigned blocks_each,
                   unsigned block_threads, size_t shared_bytes, const void *args)
{
	size_t blocks = (size_t)grid.x * grid.y;
	unsigned width = (block_threads + WARP - 1) / WARP * WARP, places = THREADS_MAX / width;
	if (!stacks) {
		stacks = mmap(NULL, (size_t)THREADS_MAX * STACK_BYTES, PROT_READ | PROT_WRITE,
		              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (stacks == MAP_FAILED)
			abort();
	}
	wgmma_differs = !cuda_host_environment("CUDA_HOST_WGMMA", 1);
	kernel = k;
	kernel_args = args;
	threads = block_threads;
	cluster = blocks_each;
	shared_max = shared_bytes;
	places = places < BLOCKS_MAX ? places : BLOCKS_MAX;
	places = (places < blocks ? places : (unsigned)blocks) / cluster * cluster;
	if (!places)
		die("a cluster of more blocks than run at the same time here");
	for (unsigned i = 0; i < places; i++) /* also after a fork amid a grid of the parent */
		block[i] = (struct block){.first = i * width};
	run_blocks(grid, places, shared_bytes);
	cuda_host_now = NULL;
	return 0;
}
