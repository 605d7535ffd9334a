/* bench_limits.c - what this machine can do at most, beside which benchmarks put their figures:
 * memory read once by all threads, and products in registers alone, by every instruction for them
 * that the CPU has.
 *
 *   bench_limits [-t threads] [-s MiB,MiB,...] [-r repeats] [-p 0] [-c]
 *
 *   read MIB median GB/S best GB/S          the buffer in equal parts, one for each thread, in huge
 *                                           pages if the system gives them
 *   peak NAME KIND median GOP/S best GOP/S  KIND: int8, f32 or bf16; a product with its addition is
 *                                           two operations
 *
 * -p 0: no peaks. -c: by the process's processor time, for machines that others use too; right
 * with one thread. */
#include "util/clock.h"
#include "util/mem.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum {
	THREADS_MAX = 256,
	SIZES_MAX = 16,
	REPEATS_MAX = 64,
	HUGE_PAGE = 2 << 20,
	PEAK_ROUNDS = 400000
};

/* One thread's share of a measurement: bytes of memory, or rounds of a loop. */
typedef void work_fn(const unsigned char *mem, size_t amount);

struct crew {
	unsigned threads;
	pthread_barrier_t begin, end;
	pthread_t id[THREADS_MAX];
	work_fn *fn; /* NULL: the thread ends */
	unsigned char *mem;
	size_t amount; /* of each thread */
	int cpu_time;
};

struct member {
	struct crew *c;
	unsigned index;
};

/* --- reading ------------------------------------------------------------- */

static volatile uint64_t sink; /* keeps the sums from being left out */

static void read_plain(const unsigned char *mem, size_t bytes)
{
	const uint64_t *p = (const void *)mem;
	uint64_t sum[4] = {0};
	for (size_t i = 0; i + 4 <= bytes / 8; i += 4)
		for (int k = 0; k < 4; k++)
			sum[k] += p[i + (size_t)k];
	sink = sum[0] + sum[1] + sum[2] + sum[3];
}

static void touch(const unsigned char *mem, size_t bytes)
{
	memset((unsigned char *)mem, 1, bytes);
}

#if defined(__x86_64__)
/* Four cache lines a turn, asked for a little ahead: hardware prefetchers stop at the end of a
 * page. */
__attribute__((target("avx2"))) static void read_avx2(const unsigned char *mem, size_t bytes)
{
	__m256i sum[8] = {0};
	for (size_t i = 0; i + 256 <= bytes; i += 256) {
		for (int k = 0; k < 4; k++)
			_mm_prefetch((const char *)mem + i + 4096 + k * 64, _MM_HINT_T0);
#pragma GCC unroll 8
		for (int k = 0; k < 8; k++)
			sum[k] = _mm256_xor_si256(sum[k], _mm256_load_si256((const void *)(mem + i + k * 32)));
	}
	for (int k = 1; k < 8; k++)
		sum[0] = _mm256_xor_si256(sum[0], sum[k]);
	sink = (uint64_t)_mm256_extract_epi64(sum[0], 0);
}

/* --- products in registers ----------------------------------------------- */

/* ACCUMULATORS of them at work, so that none waits for its own result of the turn before. Inline
 * assembly, so that nothing is left out or reordered. */
enum { ACCUMULATORS = 12 };
#define EACH _Pragma("GCC unroll 12") for (int k = 0; k < ACCUMULATORS; k++)
#define PEAK(name, isa, reg, constraint, instructions)                                     \
	__attribute__((target(isa))) static void name(const unsigned char *mem, size_t rounds) \
	{                                                                                      \
		(void)mem;                                                                         \
		reg a = {0}, b = {0}, acc[ACCUMULATORS] = {0};                                     \
		for (size_t i = 0; i < rounds; i++)                                                \
			EACH __asm__ volatile(instructions                                             \
			                      : "+" constraint(acc[k])                                 \
			                      : constraint(a), constraint(b));                         \
	}

PEAK(peak_vnni512, "avx512f,avx512vnni", __m512i, "v", "vpdpbusd %2, %1, %0")
PEAK(peak_vnni256, "avx512f,avx512vl,avx512vnni", __m256i, "v", "vpdpbusd %2, %1, %0")
PEAK(peak_avxvnni, "avx2,avxvnni", __m256i, "x", "%{vex%} vpdpbusd %2, %1, %0")
PEAK(peak_fma512, "avx512f", __m512, "v", "vfmadd231ps %2, %1, %0")
PEAK(peak_fma256, "avx2,fma", __m256, "x", "vfmadd231ps %2, %1, %0")
PEAK(peak_bf16, "avx512f,avx512bf16", __m512, "v", "vdpbf16ps %2, %1, %0")

/* Without VNNI: products of bytes to pairs of 16 bits, which are added up. */
__attribute__((target("avx2"))) static void peak_maddubs(const unsigned char *mem, size_t rounds)
{
	(void)mem;
	__m256i a = {0}, b = {0}, acc[ACCUMULATORS] = {0}, t;
	for (size_t i = 0; i < rounds; i++)
		EACH __asm__ volatile("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0"
		                      : "+x"(acc[k]), "=&x"(t)
		                      : "x"(a), "x"(b));
}
#endif

static const struct peak {
	const char *name, *kind, *feature; /* feature as gcc calls it */
	work_fn *fn;
	double ops; /* of one instruction (or pair of them) */
} peaks[] = {
#if defined(__x86_64__)
	{"vpdpbusd-512", "int8", "avx512vnni", peak_vnni512, 128},
	{"vpdpbusd-256", "int8", "avx512vnni", peak_vnni256, 64},
	{"vpdpbusd-vex", "int8", "avxvnni", peak_avxvnni, 64},
	{"vpmaddubsw-256", "int8", "avx2", peak_maddubs, 64},
	{"vfmadd-512", "f32", "avx512f", peak_fma512, 32},
	{"vfmadd-256", "f32", "fma", peak_fma256, 16},
	{"vdpbf16ps-512", "bf16", "avx512bf16", peak_bf16, 64},
#else
	{0},
#endif
};

static int has(const char *feature)
{
#if defined(__x86_64__)
	const struct {
		const char *name;
		int yes;
	} known[] = {
		{"avx2", __builtin_cpu_supports("avx2")},
		{"fma", __builtin_cpu_supports("fma")},
		{"avx512f", __builtin_cpu_supports("avx512f")},
		{"avx512vnni", __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vl")},
		{"avxvnni", __builtin_cpu_supports("avxvnni")},
		{"avx512bf16", __builtin_cpu_supports("avx512bf16")},
	};
	for (size_t i = 0; feature && i < sizeof known / sizeof *known; i++)
		if (!strcmp(known[i].name, feature))
			return known[i].yes;
#endif
	(void)feature;
	return 0;
}

/* --- the threads --------------------------------------------------------- */

/* Each on a core of its own: threads that are woken together may share one for longer than a
 * measurement lasts. */
static void pin(unsigned index)
{
	cpu_set_t all, one;
	if (sched_getaffinity(0, sizeof all, &all) != 0)
		return;
	unsigned left = index % (unsigned)CPU_COUNT(&all);
	CPU_ZERO(&one);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &all) && left-- == 0)
			CPU_SET(cpu, &one);
	pthread_setaffinity_np(pthread_self(), sizeof one, &one);
}

static void *member_main(void *arg)
{
	struct member *m = arg;
	struct crew *c = m->c;
	pin(m->index);
	for (;;) {
		pthread_barrier_wait(&c->begin);
		if (!c->fn)
			return NULL;
		c->fn(c->mem + (c->mem ? m->index * c->amount : 0), c->amount);
		pthread_barrier_wait(&c->end);
	}
}

static double now(const struct crew *c)
{
	struct timespec t;
	clock_gettime(c->cpu_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Seconds from the moment that all begin to the moment that all have ended. */
static double crew_run(struct crew *c, work_fn *fn, unsigned char *mem, size_t amount)
{
	c->fn = fn;
	c->mem = mem;
	c->amount = amount;
	double from = now(c);
	pthread_barrier_wait(&c->begin);
	if (fn)
		pthread_barrier_wait(&c->end);
	return (now(c) - from) / (c->cpu_time ? c->threads : 1);
}

static int double_cmp(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static void measure(struct crew *c, const char *what, work_fn *fn, unsigned char *mem,
                    size_t amount, double units, unsigned repeats)
{
	double rate[REPEATS_MAX];
	crew_run(c, fn, mem, amount);
	for (unsigned i = 0; i < repeats; i++)
		rate[i] = units * c->threads / crew_run(c, fn, mem, amount) * 1e-9;
	qsort(rate, repeats, sizeof *rate, double_cmp);
	printf("%s median %.1f best %.1f\n", what, rate[repeats / 2], rate[repeats - 1]);
	fflush(stdout);
}

static void measure_read(struct crew *c, double mib, unsigned repeats)
{
	char what[48];
	size_t each = (size_t)(mib * 1048576 / c->threads) / 256 * 256, bytes = each * c->threads;
	unsigned char *mem = aligned_alloc(HUGE_PAGE, (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
	if (!mem || !each) {
		fprintf(stderr, "bench_limits: no memory for %.1f MiB\n", mib);
		exit(1);
	}
	madvise(mem, bytes, MADV_HUGEPAGE);
	crew_run(c, touch, mem, each);
	snprintf(what, sizeof what, "read %.1f", mib);
	work_fn *fn = read_plain;
#if defined(__x86_64__)
	fn = has("avx2") ? read_avx2 : fn;
#endif
	measure(c, what, fn, mem, each, (double)each, repeats);
	free(mem);
}

static void measure_peaks(struct crew *c, unsigned repeats)
{
	for (size_t i = 0; i < sizeof peaks / sizeof *peaks; i++) {
		char what[64];
		const struct peak *p = &peaks[i];
		if (!has(p->feature))
			continue;
		snprintf(what, sizeof what, "peak %s %s", p->name, p->kind);
#if defined(__x86_64__)
		measure(c, what, p->fn, NULL, PEAK_ROUNDS, p->ops * ACCUMULATORS * PEAK_ROUNDS, repeats);
#endif
	}
}

static int usage(void)
{
	fprintf(stderr,
	        "usage: bench_limits [-t threads (1..%d)] [-s MiB,MiB,...] [-r repeats (1..%d)] [-p 0] "
	        "[-c]\n",
	        THREADS_MAX, REPEATS_MAX);
	return 2;
}

int main(int argc, char **argv)
{
	struct crew c = {.threads = (unsigned)sysconf(_SC_NPROCESSORS_ONLN)};
	struct member m[THREADS_MAX];
	unsigned repeats = 11, n = 0;
	int with_peaks = 1;
	double mib[SIZES_MAX];
	for (int o; (o = getopt(argc, argv, "t:s:r:p:c")) != -1;) {
		switch (o) {
		case 't': c.threads = (unsigned)atoi(optarg); break;
		case 's':
			for (char *s = strtok(optarg, ","); s && n < SIZES_MAX; s = strtok(NULL, ","))
				mib[n++] = atof(s);
			break;
		case 'r': repeats = (unsigned)atoi(optarg); break;
		case 'p': with_peaks = atoi(optarg); break;
		case 'c': c.cpu_time = 1; break;
		default: return usage();
		}
	}
	if (optind != argc || c.threads < 1 || c.threads > THREADS_MAX || repeats < 1 ||
	    repeats > REPEATS_MAX)
		return usage();
	pthread_barrier_init(&c.begin, NULL, c.threads + 1);
	pthread_barrier_init(&c.end, NULL, c.threads + 1);
	for (unsigned i = 0; i < c.threads; i++) {
		m[i] = (struct member){&c, i};
		if (pthread_create(&c.id[i], NULL, member_main, &m[i])) {
			fprintf(stderr, "bench_limits: cannot start thread %u\n", i);
			return 1;
		}
	}
	for (unsigned i = 0; i < n; i++)
		measure_read(&c, mib[i], repeats);
	if (with_peaks)
		measure_peaks(&c, repeats);
	crew_run(&c, NULL, NULL, 0);
	for (unsigned i = 0; i < c.threads; i++)
		pthread_join(c.id[i], NULL);
	return 0;
}
