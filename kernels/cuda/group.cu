/* group.cu - collectives of a group of devices. A rank copies its columns into the other ranks'
 * copies of the operand (peers.c), then tells them the number of the collective and waits until
 * all have told it theirs. So what others wrote is in this rank's memory when the kernel ends. A
 * rank may be a collective ahead of another: by the rule of struct kern_group it then overwrites
 * nothing that the other still reads, and numbers only grow, so nothing else needs a barrier.
 *
 * Only the last block to finish copying tells and waits, so a grid may be larger than what the
 * device runs at once; and the kernel after it is launched only when it is done, because blocks
 * that wait for it would take room that a rank on the same device may need. The wait ends when the
 * group is broken or a rank is late; the device then skips the copies and waits of all later
 * collectives of this memory, and `sync` reports it (peers_check).
 *
 * With a copy in host memory (staged), ranks write to that one, and a second kernel reads from
 * it. */
#include "kernels/cuda/kernel.h"

enum {
	THREADS = 512,
	BLOCK_BYTES = 16384, /* that a block copies, unless there are too many blocks */
	BLOCKS_MAX = 64,
	LOOK_TURNS = 128 /* turns of a waiting loop between looks at the clock and the host */
};

/* Units of a copy. */
struct alignas(16) unit16 {
	uint32_t word[4];
};

/* A tensor in the window: (R, parts) lines, or `lines` lines unless that is 0. This rank's columns
 * of each line, in bytes. */
struct moved {
	size_t at, line_bytes; /* at: offset of the first line */
	uint32_t lines, parts, begin, bytes, whole, unit;
	/* ids_end 0: each rank writes its columns; else whole lines: those of rows whose token is in
	 * [ids, ids_end) */
	uint32_t ids, ids_end;
};

struct group_args {
	const struct kern_batch *batch;
	unsigned char *own, *to[CUDA_RANKS_MAX - 1];
	struct cuda_signals *mine; /* in this rank's copy */
	const uint32_t *arrived;   /* (ranks), where others tell this rank */
	const uint32_t *broken;    /* a word of the host, or NULL */
	uint32_t *fault;           /* of the host */
	size_t signals_at;
	uint64_t limit_ns;
	uint32_t rank, ranks, targets, copied_to; /* copied_to: how many targets get the data */
	uint32_t tensors;
	int rows, with_progress;
	struct moved t[KERN_GATHERED_MAX];
};

/* --- copying ------------------------------------------------------------- */

static __device__ inline bool own_line(const struct group_args &a, const struct moved &t,
                                       uint32_t row)
{
	if (!t.ids_end)
		return true;
	uint32_t id = batch_words(a.batch, a.batch->tokens)[row];
	return id >= t.ids && id < t.ids_end;
}

static __device__ inline uint32_t lines_of(const struct group_args &a, const struct moved &t)
{
	return t.lines ? t.lines : batch_rows(a.batch, a.rows) * t.parts;
}

/* The units of all lines that a thread copies: every n-th one, n being the threads of the grid. */
struct walk {
	uint32_t line, unit, lines_on, units_on, units;
};

static __device__ inline struct walk walk_begin(uint32_t units)
{
	uint32_t from = blockIdx.x * THREADS + threadIdx.x, step = gridDim.x * THREADS;
	return {from / units, from % units, step / units, step % units, units};
}

static __device__ inline void walk_on(struct walk &w)
{
	w.line += w.lines_on;
	w.unit += w.units_on;
	if (w.unit >= w.units) {
		w.unit -= w.units;
		w.line++;
	}
}

/* From this rank's copy to the targets. */
template <typename T>
static __device__ void copy_out(const struct group_args &a, const struct moved &t)
{
	uint32_t units = t.bytes / sizeof(T), lines = lines_of(a, t);
	if (!units || !a.copied_to)
		return;
	for (struct walk w = walk_begin(units); w.line < lines; walk_on(w)) {
		size_t at = t.at + w.line * t.line_bytes + t.begin + w.unit * sizeof(T);
		if (!own_line(a, t, w.line / t.parts))
			continue;
		T v = *(const T *)(a.own + at);
		for (uint32_t k = 0; k < a.copied_to; k++)
			*(T *)(a.to[k] + at) = v;
	}
}

static __device__ inline unit16 load_far(const unit16 *at)
{
	unit16 v;
#ifdef __CUDACC__
	asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
	             : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
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
	uint32_t units = t.whole / sizeof(T), lines = lines_of(a, t), begin = t.begin / sizeof(T),
			 count = t.bytes / sizeof(T);
	for (struct walk w = walk_begin(units); w.line < lines; walk_on(w)) {
		size_t at = t.at + w.line * t.line_bytes + w.unit * sizeof(T);
		bool own = t.ids_end ? own_line(a, t, w.line / t.parts) : w.unit - begin < count;
		if (!own)
			*(T *)(a.own + at) = load_far((const T *)(a.to[0] + at));
	}
}

/* --- meeting ------------------------------------------------------------- */

/* Waits until rank r has reached the collective; false: it does not. */
static __device__ bool await(const struct group_args &a, uint32_t r, uint32_t number)
{
	uint64_t begun = 0;
	for (uint32_t turn = 0;; turn++) {
		if ((int32_t)(load_acquire_system(&a.arrived[r]) - number) >= 0)
			return true;
		if (turn % LOOK_TURNS) {
			wait_a_little();
			continue;
		}
		uint64_t now = clock_ns();
		begun = begun ? begun : now;
		bool broken = a.broken && load_acquire_system(a.broken);
		if (!broken && now - begun < a.limit_ns)
			continue;
		store_release_system(a.fault, broken ? (uint32_t)FAULT_BROKEN : FAULT_LATE + r);
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
	__syncthreads(); /* nobody waits before all have told */
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
		case 16: copy_out<unit16>(a, a.t[i]); break;
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
		case 16: copy_in<unit16>(a, a.t[i]); break;
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
	struct unit16 v;
	for (uint32_t i = 0; i < 4; i++)
		v.word[i] = probe_word(a.rank, i);
	*(struct unit16 *)a.to[threadIdx.x]->probe[a.rank] = v;
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

static uint32_t element_bytes(const struct kern_tensor *t)
{
	return t->type == KERN_F32 ? 4 : 2;
}

/* Bytes of a tensor of `lines` lines. */
static size_t tensor_bytes(const struct kern_tensor *t, size_t lines, size_t columns)
{
	struct extent e = tensor_extent(t, lines ? lines : 1, columns);
	return e.to - e.from;
}

/* The largest unit that divides everything. */
static uint32_t unit_of(const struct moved *t)
{
	size_t all = t->at | t->line_bytes | t->begin | t->bytes | t->whole;
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
	size_t blocks = (out + BLOCK_BYTES - 1) / BLOCK_BYTES;
	blocks = blocks < 1 ? 1 : blocks > BLOCKS_MAX ? (size_t)BLOCKS_MAX : blocks;
	PLAN(p, group_push, (uint32_t)blocks, 1, THREADS, 0, *a);
	blocks = (in + BLOCK_BYTES - 1) / BLOCK_BYTES;
	blocks = blocks < 1 ? 1 : blocks > BLOCKS_MAX ? (size_t)BLOCKS_MAX : blocks;
	if (w->staged && pulls)
		PLAN(p, group_pull, (uint32_t)blocks, 1, THREADS, 0, *a);
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
	m.begin = g->ids ? 0 : first * size;
	m.bytes = g->ids ? m.whole : (end - first) * size;
	if (g->ids) {
		m.ids = kern_share(g->ids, g->unit, rank, ranks);
		m.ids_end = kern_share(g->ids, g->unit, rank + 1, ranks);
	}
	m.unit = unit_of(&m);
	return m;
}

static void plan_gather(struct plan *p)
{
	const struct kern_op *op = p->op;
	const struct cuda_window *w = NULL;
	struct group_args a = {};
	for (uint32_t i = 0; i < op->gather.tensors; i++) {
		const struct kern_gathered *g = &op->gather.t[i];
		if (plan_tensor(p, &g->x, g->dim) || p->dev->group.ranks < 2)
			continue;
		const struct cuda_window *in = window_of(
			p, g->x.at, tensor_bytes(&g->x, (size_t)plan_rows(p) * g->parts, g->dim));
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
static void plan_broadcast(struct plan *p)
{
	const struct kern_op *op = p->op;
	const struct cuda_window *w = p->dev->group.ranks > 1
	                                  ? window_of(p, op->broadcast.at, op->broadcast.bytes)
	                                  : NULL;
	if (!w)
		return;
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

/* A collective without data. Returns where the device notes that the group is broken. */
static const uint32_t *plan_meet(struct plan *p, int with_progress)
{
	const struct cuda_window *w = p->dev->group.ranks > 1 ? window_of(p, kern_ptr{0}, 0) : NULL;
	if (!w)
		return NULL;
	struct group_args a = args_of(p, w);
	a.with_progress = with_progress;
	launch(p, w, &a, false);
	return &a.mine->dead;
}

const uint32_t *plan_meet_progress(struct plan *p)
{
	return plan_meet(p, 1);
}

void plan_collective(struct plan *p)
{
	if (p->op->kind == KERN_OP_GATHER)
		plan_gather(p);
	else if (p->op->kind == KERN_OP_BROADCAST)
		plan_broadcast(p);
	else
		plan_meet(p, 0);
}
