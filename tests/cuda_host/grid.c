/* grid.c - runs a kernel's grid: see cuda_host.h. Only one thread at a time may run grids. */
#include "tests/cuda_host/grid.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { THREADS_MAX = 1024, WARP = 32, STACK_BYTES = 256 << 10, EXCHANGE = 32 };

enum fibre_state { READY, WAITS_BLOCK, WAITS_WARP, DONE };

struct fibre {
	struct cuda_host_thread me; /* first */
	enum fibre_state state;
	void *stack; /* stack pointer while it does not run */
	unsigned exchanges;
};

struct warp {
	unsigned arrived, wanted;
	unsigned char slot[2][WARP][EXCHANGE];
};

static struct fibre fibre[THREADS_MAX];
static struct warp warp[THREADS_MAX / WARP];
static unsigned char *stacks;
static void *scheduler; /* its stack */
static unsigned threads, alive, at_barrier, barrier_sum, barrier_result;
static unsigned char *shared;
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

static void leave(struct fibre *f)
{
	cuda_host_switch(&f->stack, scheduler);
}

static void fibre_main(void)
{
	kernel->run(kernel_args);
	struct fibre *f = (struct fibre *)(void *)cuda_host_now;
	f->state = DONE;
	alive--;
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
	return shared;
}

void cuda_host_pause(void)
{
	usleep(20);
}

uint64_t cuda_host_clock_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void wake(enum fibre_state waiting, unsigned from, unsigned to)
{
	for (unsigned i = from; i < to; i++)
		if (fibre[i].state == waiting)
			fibre[i].state = READY;
}

int cuda_host_block_meet(int value)
{
	struct fibre *f = (struct fibre *)(void *)cuda_host_now;
	barrier_sum += value != 0;
	f->state = WAITS_BLOCK;
	if (++at_barrier == alive) {
		barrier_result = barrier_sum;
		at_barrier = barrier_sum = 0;
		wake(WAITS_BLOCK, 0, threads);
	}
	leave(f);
	return (int)barrier_result;
}

const unsigned char *cuda_host_warp_meet(unsigned mask, const void *mine, size_t bytes)
{
	struct fibre *f = (struct fibre *)(void *)cuda_host_now;
	unsigned first = (unsigned)(f - fibre) / WARP * WARP, buffer = f->exchanges++ & 1;
	struct warp *w = &warp[first / WARP];
	if (!(mask >> f->me.lane & 1))
		die("exchange with a mask that lacks its own lane");
	if (w->arrived && w->wanted != mask)
		die("lanes exchange with different masks");
	/* run_block detects lanes that end later */
	for (unsigned i = 0; i < WARP && !w->arrived; i++)
		if (mask >> i & 1 && (first + i >= threads || fibre[first + i].state == DONE ||
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
		wake(WAITS_WARP, first, first + WARP < threads ? first + WARP : threads);
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
	const struct fibre *f = (const struct fibre *)(const void *)cuda_host_now;
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

/* --- a grid -------------------------------------------------------------- */

static void run_block(struct dim3 grid, struct dim3 at)
{
	struct dim3 block = {threads, 1, 1};
	alive = threads;
	at_barrier = barrier_sum = 0;
	memset(warp, 0, (threads + WARP - 1) / WARP * sizeof *warp);
	for (unsigned i = 0; i < threads; i++) {
		struct fibre *f = &fibre[i];
		f->me = (struct cuda_host_thread){{i, 0, 0}, at, block, grid, i % WARP};
		f->state = READY;
		f->exchanges = 0;
		f->stack = stack_begin(i);
	}
	for (unsigned before = ~0u; alive;) {
		unsigned start = cuda_host_random() % threads, back = cuda_host_random() & 1, ran = 0;
		for (unsigned i = 0; i < threads; i++) {
			unsigned which = start + (back ? threads - i : i);
			struct fibre *f = &fibre[which < threads ? which : which - threads];
			if (f->state != READY)
				continue;
			ran++;
			cuda_host_now = &f->me;
			cuda_host_switch(&scheduler, f->stack);
		}
		/* threads that have ended do not count for a barrier */
		if (alive && at_barrier == alive) {
			barrier_result = barrier_sum;
			at_barrier = barrier_sum = 0;
			wake(WAITS_BLOCK, 0, threads);
		} else if (!ran && !before)
			die("deadlock: waits for lanes that never arrive");
		before = ran;
	}
}

int cuda_host_grid(const struct cuda_host_kernel *k, struct dim3 grid, unsigned block_threads,
                   size_t shared_bytes, const void *args)
{
	size_t blocks = (size_t)grid.x * grid.y;
	if (!stacks) {
		stacks = mmap(NULL, (size_t)THREADS_MAX * STACK_BYTES, PROT_READ | PROT_WRITE,
		              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (stacks == MAP_FAILED)
			abort();
	}
	kernel = k;
	kernel_args = args;
	threads = block_threads;
	size_t first = cuda_host_random() % blocks;
	int back = cuda_host_random() & 1;
	for (size_t i = 0; i < blocks; i++) {
		size_t at = (first + (back ? blocks - i : i)) % blocks;
		/* allocated at its exact size, so that AddressSanitizer detects accesses beyond it */
		shared = malloc(shared_bytes ? shared_bytes : 1);
		memset(shared, 0xa5, shared_bytes);
		run_block(grid, (struct dim3){(unsigned)(at % grid.x), (unsigned)(at / grid.x), 0});
		free(shared);
	}
	cuda_host_now = NULL;
	return 0;
}
