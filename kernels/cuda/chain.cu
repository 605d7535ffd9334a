/* chain.cu - chains: a layer's launches as one, whose blocks wait for one another on the device.
 *
 * With few rows and small matrices a layer's time is mostly that of its launches, and of the first
 * loads of each. A chain runs the same functions over the same blocks as its launches would, its
 * phases; so the bits are the same. Blocks are numbered in the order in which they start (their
 * ticket), and a block of a phase waits until all blocks of the phase before are done. It waits
 * only for blocks that have started, so it cannot wait forever, however few of them have room on
 * the device. Before it waits, it prefetches its part of the weights.
 *
 * Launches become a chain only if the device has room for all their blocks at once: with more, each
 * block would first wait for its ticket and its arguments, where a launch is cheaper. */
#include "kernels/cuda/attention.h"
#include "kernels/cuda/heads.h"
#include "kernels/cuda/linear_mma.h"
#include "kernels/cuda/rows.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum {
	PHASES_MAX = 32,
	CHAIN_THREADS = SPLIT_WARPS_MAX * WARP, /* most of a block */
	/* between counters, so that blocks that wait for different ones share no line of the cache */
	LINE_BYTES = 128,
	LINE_WORDS = LINE_BYTES / sizeof(uint32_t)
};

struct phase {
	enum phase_kind kind;
	uint32_t width, height, threads; /* threads: of its blocks; the chain's may have more */
	alignas(8) unsigned char args[LAUNCH_ARGS];
};

struct chain_args {
	const struct phase *phase; /* in device memory */
	/* 1 + phases of them, zero between runs: the next ticket; a phase's blocks that are done */
	uint32_t *counters;
	uint32_t phases, begin[PHASES_MAX + 1]; /* a phase's first ticket; the end */
	uint32_t own_at; /* offset of struct chain_block in shared memory, behind what phases use */
};

/* What a block reads of its work before it waits. */
struct chain_block {
	struct phase phase;
	struct product product; /* of PHASE_PRODUCT: what task.of points to */
	uint32_t ticket;
};

/* --- in the kernel ------------------------------------------------------- */

static __device__ inline uint32_t *done_blocks(const struct chain_args &a, uint32_t phase)
{
	return a.counters + (1 + phase) * LINE_WORDS;
}

static __device__ inline uint32_t phase_blocks(const struct chain_args &a, uint32_t phase)
{
	return a.begin[phase + 1] - a.begin[phase];
}

static __device__ inline void copy_words(void *to, const void *from, size_t bytes)
{
	for (uint32_t i = threadIdx.x; i < bytes / 4; i += blockDim.x)
		((uint32_t *)to)[i] = ((const uint32_t *)from)[i];
}

/* The block's phase, which is copied to shared memory, and its number there. */
static __device__ inline uint32_t begin_block(const struct chain_args &a, struct chain_block *w,
                                              uint32_t *ret_number)
{
	if (threadIdx.x == 0)
		w->ticket = atomicAdd(a.counters, 1u);
	__syncthreads();
	uint32_t phase = 0;
	while (phase + 1 < a.phases && w->ticket >= a.begin[phase + 1])
		phase++;
	copy_words(&w->phase, &a.phase[phase], sizeof w->phase);
	*ret_number = w->ticket - a.begin[phase];
	__syncthreads();
	return phase;
}

/* The block's part of a product, and the product itself in shared memory. False: no work. */
template <int TYPE>
static __device__ inline bool begin_product(const struct product_args &a, struct chain_block *w,
                                            uint32_t number, struct task *ret)
{
	if (a.chosen.groups) /* which are known only after the wait */
		return true;
	if (!task_find(a, PRODUCT_SPLIT, number, ret))
		return false;
	copy_words(&w->product, ret->of, sizeof w->product);
	ret->of = &w->product;
	__syncthreads();
	if (threadIdx.x < w->phase.threads && !ret->first)
		fetch_weights<TYPE>(a, *ret, SIZE_MAX / 2);
	return true;
}

/* Waits until all that the phase needs is written. */
static __device__ inline void wait_for_phase_before(const struct chain_args &a, uint32_t phase)
{
	grid_wait();
	if (phase && threadIdx.x == 0) {
		const uint32_t *done = done_blocks(a, phase - 1);
		while (load_relaxed(done) < phase_blocks(a, phase - 1))
			wait_a_little();
		load_acquire(done);
	}
	__syncthreads();
}

/* A phase's arguments. By value where a loop uses them: as far as the compiler knows, each store
 * might change them, so it would load them again. (Those of heads are too many for registers.) */
template <typename ARGS> static __device__ inline const ARGS &args_of(const struct phase &f)
{
	static_assert(sizeof(ARGS) <= LAUNCH_ARGS && alignof(ARGS) <= 8, "a phase holds its arguments");
	return *(const ARGS *)f.args;
}

template <typename ARGS> static __device__ inline ARGS args_copy(const struct phase &f)
{
	return args_of<ARGS>(f);
}

static __device__ inline void do_phase(const struct phase &f, struct block_place at)
{
	switch (f.kind) {
	case PHASE_GATHER: gather_row(args_of<struct move_args>(f), at); break;
	case PHASE_SCALE: scale_row(args_of<struct move_args>(f), at); break;
	case PHASE_NORM: norm_row(args_copy<struct norm_args>(f), at); break;
	case PHASE_ACT: act_row(args_copy<struct act_args>(f), at); break;
	case PHASE_HEADS: do_steps(args_of<struct heads_args>(f), at); break;
	case PHASE_MERGE: merge_row(args_copy<struct attention_args>(f), at); break;
	case PHASE_READY: make_row_ready(args_copy<struct ready_args>(f), at); break;
	case PHASE_TAILS: copy_tail(args_of<struct tail_args>(f), at); break;
	case PHASE_NONE:
	case PHASE_PRODUCT: break;
	}
}

/* Counts a block as done. The last of all sets the counters to zero for the next run: nobody waits
 * any more. */
static __device__ inline void count_done(const struct chain_args &a, uint32_t phase)
{
	__threadfence();
	uint32_t before = atomicAdd(done_blocks(a, phase), 1u);
	if (phase + 1 == a.phases && before + 1 == phase_blocks(a, phase))
		for (uint32_t i = 0; i <= a.phases; i++)
			a.counters[i * LINE_WORDS] = 0;
}

/* Every thread waits (grid_wait) before it ends. */
template <int TYPE, int PARTS> static __device__ inline void run_chain(const struct chain_args &a)
{
	struct chain_block *w = (struct chain_block *)(shared_memory() + a.own_at);
	uint32_t number, phase = begin_block(a, w, &number);
	const struct phase &f = w->phase;
	const struct product_args &product = args_of<struct product_args>(f);
	struct task t;
	bool multiplies = f.kind == PHASE_PRODUCT && begin_product<TYPE>(product, w, number, &t);
	wait_for_phase_before(a, phase);
	if (threadIdx.x >= f.threads)
		return; /* barriers do not wait for threads that have ended */
	if (multiplies && product.chosen.groups)
		multiplies = task_find(product, PRODUCT_SPLIT, number, &t);
	if (multiplies)
		do_split<TYPE, PARTS>(product, t);
	else
		do_phase(f, block_place{number % f.width, number / f.width, f.height, f.threads});
	__syncthreads();
	if (threadIdx.x == 0)
		count_done(a, phase);
}

#define CHAIN_KERNELS(TYPE)                                          \
	KERNEL_EARLY(chain_##TYPE##_1, CHAIN_THREADS, struct chain_args) \
	{                                                                \
		run_chain<KERN_##TYPE, 1>(a);                                \
	}                                                                \
	KERNEL_EARLY(chain_##TYPE##_3, CHAIN_THREADS, struct chain_args) \
	{                                                                \
		run_chain<KERN_##TYPE, 3>(a);                                \
	}
FOR_PANEL_TYPES(CHAIN_KERNELS)

void plan_chain_product(struct launch *l, int type, int parts)
{
	static const struct {
		int type;
		struct {
			const void *kernel;
			const char *name;
		} of[2];
	} all[] = {
#define NAMED(NAME) {(const void *)NAME, #NAME}
#define ENTRY(TYPE) {KERN_##TYPE, {NAMED(chain_##TYPE##_1), NAMED(chain_##TYPE##_3)}},
		FOR_PANEL_TYPES(ENTRY)};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (all[i].type == type) {
			l->phase = PHASE_PRODUCT;
			l->chain = all[i].of[parts > 1].kernel;
			l->chain_name = all[i].of[parts > 1].name;
		}
}

/* --- planning ------------------------------------------------------------ */

/* Launches that become a chain: `n` of them from launch[first] on. */
struct chain {
	size_t first, n;
	const void *kernel; /* NULL: no product yet */
	const char *name;
	uint32_t threads, shared;
	size_t blocks;
};

/* Threads that a chain's blocks must have for this launch. An activation works with any number, and
 * more than the other phases need would take room. */
static uint32_t needed_threads(const struct launch *l)
{
	enum { ACT_THREADS = 256 };
	return l->phase == PHASE_ACT && l->threads > (uint32_t)ACT_THREADS ? (uint32_t)ACT_THREADS
	                                                                   : l->threads;
}

static uint32_t shared_of(const struct chain *c)
{
	return c->shared + (uint32_t)sizeof(struct chain_block);
}

/* Whether the device has room for all blocks of the chain at once. */
static bool has_room(struct plan *p, const struct chain *c)
{
	int each = 0;
	p->rc = cuda_check(p->dev,
	                   cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, c->kernel,
	                                                                 (int)c->threads, shared_of(c)),
	                   c->name);
	return !p->rc && c->blocks <= (size_t)each * (size_t)p->dev->multiprocessors;
}

/* Adds the next launch. False: it does not fit. */
static bool chain_take(struct plan *p, struct chain *c, const struct launch *l)
{
	struct chain more = *c;
	if (l->phase == PHASE_NONE || c->n == PHASES_MAX ||
	    (l->chain && c->kernel && l->chain != c->kernel))
		return false;
	if (l->chain) {
		more.kernel = l->chain;
		more.name = l->chain_name;
	}
	more.n++;
	more.threads = needed_threads(l) > c->threads ? needed_threads(l) : c->threads;
	more.shared = l->shared > c->shared ? (l->shared + 7) / 8 * 8 : c->shared;
	more.blocks += (size_t)l->grid[0] * l->grid[1];
	if (more.kernel && !has_room(p, &more))
		return false;
	*c = more;
	return true;
}

/* A chain's phases, up to its counters; both. */
static size_t phases_bytes(const struct chain *c)
{
	return (c->n * sizeof(struct phase) + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
}

static size_t chain_bytes(const struct chain *c)
{
	return phases_bytes(c) + (1 + c->n) * (size_t)LINE_BYTES;
}

/* Finds the chains, each as long as possible. Returns their number. */
static size_t find_chains(struct plan *p, struct chain *ret_chain, size_t *ret_bytes)
{
	size_t chains = 0;
	*ret_bytes = 0;
	for (size_t i = 0; i < p->launches && !p->rc;) {
		struct chain c = {i};
		while (i + c.n < p->launches && chain_take(p, &c, &p->launch[i + c.n]))
			continue;
		if (c.kernel && c.n > 1) {
			ret_chain[chains++] = c;
			*ret_bytes += chain_bytes(&c);
		}
		i += c.kernel && c.n ? c.n : 1;
	}
	return chains;
}

/* Writes a chain's phases to `host`, which will be at `device`; sets its launch, which may be one
 * of those that it replaces. */
static void put_chain(const struct plan *p, const struct chain *c, unsigned char *host,
                      unsigned char *device, struct launch *ret_l)
{
	struct phase *phase = (struct phase *)host;
	struct chain_args a = {};
	struct launch l = {};
	a.phase = (const struct phase *)device;
	a.counters = (uint32_t *)(device + phases_bytes(c));
	a.phases = (uint32_t)c->n;
	a.own_at = c->shared;
	for (size_t i = 0; i < c->n; i++) {
		const struct launch *of = &p->launch[c->first + i];
		phase[i].kind = of->phase;
		phase[i].width = of->grid[0];
		phase[i].height = of->grid[1];
		phase[i].threads = of->threads < c->threads ? of->threads : c->threads;
		memcpy(phase[i].args, of->args, of->args_bytes);
		a.begin[i + 1] = a.begin[i] + of->grid[0] * of->grid[1];
	}
	l.kernel = c->kernel;
	l.name = c->name;
	l.grid[0] = (uint32_t)c->blocks;
	l.grid[1] = 1;
	l.threads = c->threads;
	l.shared = shared_of(c);
	l.args_bytes = sizeof a;
	static_assert(sizeof a <= sizeof l.args, "a launch holds a chain");
	memcpy(l.args, &a, sizeof a);
	*ret_l = l;
}

/* Replaces launches by their chains; host and device: where phases are put. */
static void put_chains(struct plan *p, const struct chain *chain, size_t chains,
                       unsigned char *host, unsigned char *device)
{
	size_t n = 0, at = 0;
	for (size_t i = 0; i < p->launches;) {
		if (!chains || i != chain->first) {
			p->launch[n++] = p->launch[i++];
			continue;
		}
		put_chain(p, chain, host + at, device + at, &p->launch[n++]);
		at += chain_bytes(chain);
		i += chain->n;
		chain++;
		chains--;
	}
	p->launches = n;
}

void plan_chains(struct plan *p, void **ret_memory)
{
	const char *wanted = getenv("PDSERVE_CUDA_CHAINS");
	if ((wanted && strcmp(wanted, "0") == 0) || !p->launches)
		return;
	struct chain *chain = (struct chain *)calloc(p->launches, sizeof *chain);
	struct kern_mem mem = {};
	unsigned char *host = NULL;
	size_t bytes = 0, chains = chain ? find_chains(p, chain, &bytes) : 0;
	if (!p->rc && chains)
		host = (unsigned char *)calloc(1, bytes);
	if (!chain || (!p->rc && chains && !host))
		plan_fail(p, KERN_ENOMEM, "out of memory for the chains of %zu launches", p->launches);
	if (host && !(p->rc = cuda_mem_new(p->dev, KERN_MEM_DEVICE, bytes, &mem))) {
		put_chains(p, chain, chains, host, (unsigned char *)mem.dev.v);
		p->rc = cuda_check(p->dev, cudaMemcpy((void *)mem.dev.v, host, bytes, cudaMemcpyDefault),
		                   "writing a program's chains");
		if (p->rc)
			cuda_mem_free(p->dev, &mem);
		else
			*ret_memory = (void *)mem.dev.v;
	}
	free(host);
	free(chain);
}
