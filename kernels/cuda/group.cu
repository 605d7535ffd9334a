/* group.cu - collectives of a group of devices. A rank copies its columns into the other ranks'
 * copies of the operand (peers.c), then writes the number of the collective to each of them, and
 * waits for theirs. So what others wrote is in this rank's memory when the kernel ends. A rank may
 * be a collective ahead of another: by the rule of struct kern_group it then overwrites nothing
 * that the other still reads, and numbers only grow, so nothing else needs a barrier.
 *
 * Only the last block to finish copying writes numbers and waits, so a grid may be larger than what
 * the device runs at once; and the kernel after it is launched only when it is done, because blocks
 * that wait for it would take room that a rank on the same device may need. The wait ends when the
 * group is broken, a rank is late, or the host has given up (peers_break); the device then skips
 * the copies and waits of all later collectives of this memory, and `sync` reports it
 * (peers_check).
 *
 * With a copy in host memory (staged), ranks write to that one, and a second kernel reads from
 * it. */
#include "kernels/cuda/kernel.h"

enum {
	THREADS = 512,
	BLOCK_BYTES = 16384, /* that a block copies, unless there are too many blocks */
	BLOCKS_MAX = 64,
	LOOK_POLLS = 128 /* polls of a waiting loop between looks at the clock and the host */
};

/* A tensor in the window: (R, parts) lines, or `lines` lines unless that is 0. This rank's columns
 * of each line, in bytes. */
struct moved {
	size_t at, line_bytes; /* at: offset of the first line */
	uint32_t lines, parts, begin, bytes, whole, unit;
	/* ids_end 0: each rank writes its columns; else whole lines: those of rows whose token, or
	 * with `chosen` of lines whose id there, is in [ids, ids_end) */
	uint32_t ids, ids_end;
	/* each target gets its columns alone, its kern_share of `dim` elements of `size` bytes in units
	 * of share_unit */
	const uint32_t *chosen;
	uint32_t dim, size, share_unit;
};

struct group_args {
	const struct kern_batch *batch;
	unsigned char *own, *to[CUDA_RANKS_MAX - 1];
	struct cuda_signals *mine; /* in this rank's copy */
	const uint32_t *arrived;   /* (ranks), the numbers that others have written */
	const uint32_t *broken;    /* a word of the host, or NULL */
	uint32_t *fault;           /* of the host */
	size_t signals_at;
	uint64_t limit_ns;
	uint32_t rank, ranks, targets, copied_to; /* copied_to: how many targets get the data */
	uint32_t tensors;
	int rows;
	bool with_progress; /* only for a batch with progress */
	struct moved t[KERN_GATHERED_MAX];
};

/* --- copying ------------------------------------------------------------- */

static __device__ inline bool own_line(const struct group_args &a, const struct moved &t,
                                       uint32_t line)
{
	if (!t.ids_end)
		return true;
	uint32_t id = t.chosen ? t.chosen[line] : batch_words(a.batch, a.batch->tokens)[line / t.parts];
	return id >= t.ids && id < t.ids_end;
}

/* Calls f(line, unit) for the units of all lines that a thread copies: every n-th one, n being the
 * threads of the grid. */
template <typename F>
static __device__ inline void each_unit(const struct group_args &a, const struct moved &t,
                                        uint32_t units, F f)
{
	size_t all = (size_t)(t.lines ? t.lines : batch_rows(a.batch, a.rows) * t.parts) * units;
	for (size_t i = blockIdx.x * THREADS + threadIdx.x; i < all; i += gridDim.x * THREADS)
		f((uint32_t)(i / units), (uint32_t)(i % units));
}

/* From this rank's copy to the targets first .. end - 1: `bytes` from `begin` of each line. */
template <typename T>
static __device__ void copy_columns(const struct group_args &a, const struct moved &t,
                                    uint32_t begin, uint32_t bytes, uint32_t first, uint32_t end)
{
	if (first == end)
		return;
	each_unit(a, t, bytes / sizeof(T), [&](uint32_t line, uint32_t unit) {
		size_t at = t.at + line * t.line_bytes + begin + unit * sizeof(T);
		if (!own_line(a, t, line))
			return;
		T v = *(const T *)(a.own + at);
		for (uint32_t k = first; k < end; k++)
			store_far((T *)(a.to[k] + at), v);
	});
}

template <typename T>
static __device__ void copy_out(const struct group_args &a, const struct moved &t)
{
	if (!t.chosen) {
		copy_columns<T>(a, t, t.begin, t.bytes, 0, a.copied_to);
		return;
	}
	if (a.targets < a.ranks - 1) { /* a copy in host memory, from which all read */
		copy_columns<T>(a, t, 0, t.whole, 0, a.copied_to);
		return;
	}
	for (uint32_t k = 0; k < a.targets; k++) {
		uint32_t rank = k + (k >= a.rank), from = kern_share(t.dim, t.share_unit, rank, a.ranks),
				 to = kern_share(t.dim, t.share_unit, rank + 1, a.ranks);
		copy_columns<T>(a, t, from * t.size, (to - from) * t.size, k, k + 1);
	}
}

static __device__ inline words<4> load_far(const words<4> *at)
{
	words<4> v;
#ifdef __CUDACC__
	asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
	             : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3])
	             : "l"(at)
	             : "memory");
#else
	v = *at;
#endif
	return v;
}

template <typename T> static __device__ inline T load_far(const T *at)
{
	return *(const volatile T *)at;
}

/* What other ranks wrote, from the copy in host memory to this rank's. */
template <typename T>
static __device__ void copy_in(const struct group_args &a, const struct moved &t)
{
	uint32_t begin = t.begin / sizeof(T), count = t.bytes / sizeof(T);
	each_unit(a, t, t.whole / sizeof(T), [&](uint32_t line, uint32_t unit) {
		size_t at = t.at + line * t.line_bytes + unit * sizeof(T);
		bool own = t.ids_end ? own_line(a, t, line) : unit - begin < count,
			 wanted = !t.chosen || unit - begin < count;
		if (!own && wanted)
			*(T *)(a.own + at) = load_far((const T *)(a.to[0] + at));
	});
}

/* --- meeting ------------------------------------------------------------- */

/* Waits until rank r has reached the collective; false: it does not. */
static __device__ bool await(const struct group_args &a, uint32_t r, uint32_t number)
{
	uint64_t begun = 0;
	for (uint32_t poll = 0;; poll++) {
		if ((int32_t)(load_acquire_system(&a.arrived[r]) - number) >= 0)
			return true;
		if (poll % LOOK_POLLS) {
			wait_a_little();
			continue;
		}
		uint64_t now = clock_ns();
		begun = begun ? begun : now;
		uint32_t fault = load_acquire_system(a.fault); /* the host's, or of another rank */
		if (!fault && a.broken && load_acquire_system(a.broken))
			fault = FAULT_BROKEN;
		else if (!fault && now - begun >= a.limit_ns)
			fault = FAULT_LATE + r;
		if (!fault)
			continue;
		store_release_system(a.fault, fault);
		return false;
	}
}

/* Returns when all ranks have copied. All threads of one block. */
static __device__ void meet(const struct group_args &a)
{
	uint32_t t = threadIdx.x, number = a.mine->number + 1;
	__syncthreads();
	if (t < a.targets)
		store_release_system(&((struct cuda_signals *)(a.to[t] + a.signals_at))->arrived[a.rank],
		                     number);
	__syncthreads(); /* no thread waits before all numbers are written */
	bool late = t < a.ranks && t != a.rank && !await(a, t, number);
	if (__syncthreads_or(late) && t == 0)
		a.mine->dead = 1;
	if (t == 0)
		a.mine->number = number;
}

KERNEL_APART(group_push, THREADS, struct group_args)
{
	if (a.mine->dead || (a.with_progress && !a.batch->progress))
		return;
	for (uint32_t i = 0; i < a.tensors; i++)
		switch (a.t[i].unit) {
		case 16: copy_out<words<4>>(a, a.t[i]); break;
		case 4: copy_out<uint32_t>(a, a.t[i]); break;
		default: copy_out<uint16_t>(a, a.t[i]);
		}
	/* the last block to get here acts for all */
	__threadfence_system();
	__syncthreads();
	bool last = false;
	if (threadIdx.x == 0 && !(last = gridDim.x == 1)) {
		last = atomicAdd(&a.mine->blocks, 1u) == gridDim.x - 1;
		if (last)
			a.mine->blocks = 0;
		__threadfence_system();
	}
	if (__syncthreads_or(last))
		meet(a);
}

KERNEL(group_pull, THREADS, struct group_args)
{
	if (a.mine->dead)
		return;
	for (uint32_t i = 0; i < a.tensors; i++)
		switch (a.t[i].unit) {
		case 16: copy_in<words<4>>(a, a.t[i]); break;
		case 4: copy_in<uint32_t>(a, a.t[i]); break;
		default: copy_in<uint16_t>(a, a.t[i]);
		}
}

/* --- whether writes arrive ----------------------------------------------- */

struct probe_args {
	struct cuda_signals *to[CUDA_RANKS_MAX - 1];
	uint32_t rank, targets;
};

static __host__ __device__ inline uint32_t probe_word(uint32_t rank, uint32_t i)
{
	return 0x9e3779b9u * (4 * rank + i + 1);
}

KERNEL(group_probe, WARP, struct probe_args)
{
	if (threadIdx.x >= a.targets)
		return;
	words<4> v;
	for (uint32_t i = 0; i < 4; i++)
		v.w[i] = probe_word(a.rank, i);
	*(words<4> *)a.to[threadIdx.x]->probe[a.rank] = v;
}

int group_probe_write(struct kern_device *dev, const struct cuda_window *w)
{
	struct probe_args a = {};
	void *args[] = {&a};
	struct dim3 grid = {1, 1, 1}, block = {WARP, 1, 1};
	a.rank = dev->group.rank;
	for (; a.targets < w->targets; a.targets++)
		a.to[a.targets] = (struct cuda_signals *)(w->target[a.targets].dev.v + w->signals_at);
	int rc = cuda_check(
		dev, cudaLaunchKernel((const void *)group_probe, grid, block, args, 0, dev->loading),
		"writing to other GPUs");
	return rc ? rc : cuda_check(dev, cudaStreamSynchronize(dev->loading), "writing to other GPUs");
}

int group_probe_read(struct kern_device *dev, const struct cuda_window *w, int *ret_arrived)
{
	struct cuda_signals s;
	int rc = cuda_check(dev,
	                    cudaMemcpy(&s, (const void *)(w->own.dev.v + w->signals_at), sizeof s,
	                               cudaMemcpyDefault),
	                    "reading what other GPUs wrote");
	*ret_arrived = 1;
	for (unsigned r = 0; r < dev->group.ranks && !rc; r++)
		for (uint32_t i = 0; i < 4 && r != dev->group.rank; i++)
			*ret_arrived &= s.probe[r][i] == probe_word(r, i);
	return rc;
}

/* --- planning ------------------------------------------------------------ */

/* The largest unit that divides everything. */
static uint32_t unit_of(const struct moved *t)
{
	size_t all = t->at | t->line_bytes | t->begin | t->bytes | t->whole | t->size * t->share_unit;
	return all % 16 == 0 ? 16 : all % 4 == 0 ? 4 : 2;
}

static const struct cuda_window *window_of(struct plan *p, kern_ptr at, size_t bytes)
{
	const struct cuda_window *w = peers_window(p->dev, at, bytes);
	if (!w)
		plan_fail(p, KERN_EINVAL, "%zu bytes at %#zx are not in GROUP memory", bytes, (size_t)at.v);
	return w;
}

static struct group_args args_of(struct plan *p, const struct cuda_window *w)
{
	const struct kern_device *dev = p->dev;
	struct group_args a = {};
	a.batch = p->batch;
	a.own = (unsigned char *)w->own.dev.v;
	for (unsigned i = 0; i < w->targets; i++)
		a.to[i] = (unsigned char *)w->target[i].dev.v;
	a.mine = (struct cuda_signals *)(a.own + w->signals_at);
	a.arrived = w->staged ? ((struct cuda_signals *)(a.to[0] + w->signals_at))->arrived
	                      : a.mine->arrived;
	a.broken = dev->peers->broken_at;
	a.fault = (uint32_t *)dev->peers->fault_mem.dev.v;
	a.signals_at = w->signals_at;
	a.limit_ns = dev->group.limit_s * 1000000000ull;
	a.rank = dev->group.rank;
	a.ranks = dev->group.ranks;
	a.targets = a.copied_to = w->targets;
	a.rows = p->op->rows;
	return a;
}

static uint32_t blocks_for(size_t bytes)
{
	size_t blocks = (bytes + BLOCK_BYTES - 1) / BLOCK_BYTES;
	return blocks < 1 ? 1 : blocks > BLOCKS_MAX ? (uint32_t)BLOCKS_MAX : (uint32_t)blocks;
}

static void launch(struct plan *p, const struct cuda_window *w, const struct group_args *a,
                   bool pulls)
{
	size_t out = 0, in = 0;
	for (uint32_t i = 0; i < a->tensors; i++) {
		const struct moved *t = &a->t[i];
		size_t lines = t->lines ? t->lines : (size_t)plan_rows(p) * t->parts;
		out += a->copied_to ? lines * t->bytes : 0;
		in += lines * t->whole;
	}
	PLAN(p, group_push, blocks_for(out), 1, THREADS, 0, *a);
	if (w->staged && pulls)
		PLAN(p, group_pull, blocks_for(in), 1, THREADS, 0, *a);
}

static struct moved moved_of(const struct plan *p, const struct cuda_window *w,
                             const struct kern_gathered *g)
{
	unsigned rank = p->dev->group.rank, ranks = p->dev->group.ranks;
	uint32_t size = element_bytes(&g->x), first = kern_share(g->dim, g->unit, rank, ranks),
			 end = kern_share(g->dim, g->unit, rank + 1, ranks);
	struct moved m = {};
	m.at = g->x.at.v - w->own.dev.v;
	m.line_bytes = g->x.ld * size;
	m.parts = g->parts;
	m.whole = g->dim * size;
	m.chosen = (const uint32_t *)g->chosen.v;
	m.begin = g->ids && !m.chosen ? 0 : first * size;
	m.bytes = g->ids && !m.chosen ? m.whole : (end - first) * size;
	if (g->ids) {
		m.ids = kern_share(g->ids, m.chosen ? 1 : g->unit, rank, ranks);
		m.ids_end = kern_share(g->ids, m.chosen ? 1 : g->unit, rank + 1, ranks);
	}
	if (m.chosen) {
		m.dim = g->dim;
		m.size = size;
		m.share_unit = g->unit;
	}
	m.unit = unit_of(&m);
	return m;
}

void plan_gather(struct plan *p)
{
	const struct kern_op *op = p->op;
	const struct cuda_window *w = NULL;
	struct group_args a = {};
	for (uint32_t i = 0; p->dev->group.ranks > 1 && i < op->gather.tensors; i++) {
		const struct kern_gathered *g = &op->gather.t[i];
		size_t lines = (size_t)plan_rows(p) * g->parts;
		struct extent e = tensor_extent(&g->x, lines ? lines : 1, g->dim);
		const struct cuda_window *in = window_of(p, g->x.at, e.to - e.from);
		if (w && in && in != w)
			plan_fail(p, KERN_EINVAL, "tensors in two GROUP memories");
		if (!p->rc && !w)
			a = args_of(p, w = in);
		if (!p->rc)
			a.t[a.tensors++] = moved_of(p, w, g);
	}
	if (!w || p->rc)
		return;
	if (op->gather.to_first) /* rank 0 is the first target of every other rank */
		a.copied_to = a.rank ? 1 : 0;
	launch(p, w, &a, !op->gather.to_first || !a.rank);
}

/* A line that is rank 0's. */
void plan_broadcast(struct plan *p)
{
	const struct kern_op *op = p->op;
	const struct cuda_window *w = p->dev->group.ranks > 1
	                                  ? window_of(p, op->broadcast.at, op->broadcast.bytes)
	                                  : NULL;
	if (!w)
		return;
	if (op->broadcast.bytes > UINT32_MAX) {
		plan_fail(p, KERN_EINVAL, "%zu bytes: at most 2^32 - 1", op->broadcast.bytes);
		return;
	}
	struct group_args a = args_of(p, w);
	struct moved m = {};
	m.at = op->broadcast.at.v - w->own.dev.v;
	m.lines = m.parts = 1;
	m.line_bytes = m.whole = (uint32_t)op->broadcast.bytes;
	m.bytes = a.rank ? 0 : m.whole;
	m.unit = unit_of(&m);
	a.t[a.tensors++] = m;
	launch(p, w, &a, a.rank != 0);
}

const uint32_t *plan_meet(struct plan *p, bool with_progress)
{
	const struct cuda_window *w = p->dev->group.ranks > 1 ? window_of(p, kern_ptr{0}, 0) : NULL;
	if (!w)
		return NULL;
	struct group_args a = args_of(p, w);
	a.with_progress = with_progress;
	launch(p, w, &a, false);
	return &a.mine->dead;
}

void plan_barrier(struct plan *p)
{
	plan_meet(p, false);
}

void plan_reduce(struct plan *p)
{
	const struct kern_tensor *x = &p->op->reduce.x;
	if (p->dev->group.ranks < 2)
		return;
	struct nccl_call sum = {nccl_call::NCCL_SUM, 0, (void *)x->at.v,
	                        (size_t)plan_rows(p) * p->op->reduce.dim, x->type};
	plan_library(p, BY_NCCL, &sum, sizeof sum);
}

/* Between the same rank of two stages. A graph moves all rows of its size. */
void plan_transfer(struct plan *p)
{
	bool sends = p->op->kind == KERN_OP_SEND;
	const struct kern_transfer *t = sends ? &p->op->send : &p->op->recv;
	size_t bytes = (size_t)plan_rows(p) * t->dim * element_bytes(&t->x);
	if (!sends && p->dev->group.ranks > 1 && !window_of(p, t->x.at, bytes))
		return;
	struct nccl_call call = {sends ? nccl_call::NCCL_SEND : nccl_call::NCCL_RECV, t->peer,
	                         (void *)t->x.at.v, bytes, t->x.type};
	plan_library(p, BY_NCCL, &call, sizeof call);
}
