/* program.c - programs: checked, planned for each of a few sizes, captured as CUDA graphs, run.
 *
 * program_new rejects what cannot run; a batch beyond the limits is rejected before anything runs.
 * `sync` reports device errors. */
#include "kernels/cuda/plan.h"
#include "kernels/operands.h"

#include <stdlib.h>
#include <string.h>

/* A graph for batches up to this size. */
struct size {
	uint32_t rows, tail_rows, spans;
	cudaGraphExec_t graph;
	size_t launches; /* in the graph */
};

struct kern_program {
	struct kern_device *dev;
	struct kern_limits limits;
	struct size size[CUDA_SIZES];
	unsigned sizes, progress;
	unsigned char *memory;
	size_t batch_at; /* offset of the device's copy of the batch */
};

/* --- planning ------------------------------------------------------------ */

#define PLAN_FUNCTION(KIND, NAME) [KIND] = plan_##NAME,
static void (*const plan_op[KERN_OPS])(struct plan *p) = {KERN_OPERATIONS(PLAN_FUNCTION)};

static void plan_all(struct plan *p, const struct size *s, const struct kern_op *ops, size_t n)
{
	p->rows = s->rows;
	p->tail_rows = s->tail_rows;
	p->spans = s->spans;
	p->launches = p->kept_at = 0;
	p->progress = 0;
	p->sorted.ids = NULL;
	p->list_count = 0;
	memset(p->ready, 0, sizeof p->ready);
	p->end = ops + n;
	for (p->op = ops; p->op < p->end && !p->rc; p->op++)
		plan_op[p->op->kind](p);
	p->op = NULL;
}

/* Sizes: one row and few, as in decoding, and the limits, with some in between; more of them with
 * cuBLASLt, which multiplies all rows of a size, not only the batch's. Results do not depend on the
 * size that a batch runs in, except with variant "fast". */
static void choose_sizes(struct kern_program *p)
{
	static const uint32_t own[] = {1, 16, 64, 512, UINT32_MAX},
						  fast[CUDA_SIZES] = {8,   16,   32,   64,   128,       256,
	                                          512, 1024, 2048, 4096, UINT32_MAX};
	const uint32_t *rows = p->dev->fast ? fast : own;
	const struct kern_limits *l = &p->limits;
	uint32_t most = l->rows > l->tail_rows ? l->rows : l->tail_rows;
	most = most > l->spans ? most : l->spans;
	for (unsigned i = 0;; i++) {
		p->size[p->sizes++] = (struct size){.rows = plan_least(rows[i], l->rows),
		                                    .tail_rows = plan_least(rows[i], l->tail_rows),
		                                    .spans = plan_least(rows[i], l->spans)};
		if (rows[i] >= most)
			break;
	}
}

/* --- graphs -------------------------------------------------------------- */

static cudaError_t launch_one(const struct launch *l, int overlaps, cudaStream_t stream)
{
	void *args[] = {(void *)(uintptr_t)l->args};
	cudaLaunchAttribute attrs[2];
	cudaLaunchConfig_t config;
	memset(attrs, 0, sizeof attrs);
	memset(&config, 0, sizeof config);
	config.gridDim = (struct dim3){l->grid[0], l->grid[1], 1};
	config.blockDim = (struct dim3){l->threads, 1, 1};
	config.dynamicSmemBytes = l->shared;
	config.stream = stream;
	config.attrs = attrs;
	if (overlaps) { /* every kernel waits for the previous ones (grid_wait in kernel.h) */
		attrs[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
		attrs[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
	}
	if (l->cluster) {
		attrs[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
		attrs[config.numAttrs].val.clusterDim.x = l->cluster;
		attrs[config.numAttrs].val.clusterDim.y = 1;
		attrs[config.numAttrs++].val.clusterDim.z = 1;
	}
	return cudaLaunchKernelExC(&config, l->kernel, args);
}

static int allow_shared(struct kern_device *dev, const struct launch *l)
{
	enum { ALWAYS_ALLOWED = 48 << 10 };
	if (l->shared <= ALWAYS_ALLOWED)
		return KERN_OK;
	return cuda_check(dev,
	                  cudaFuncSetAttribute(l->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
	                                       dev->shared_max),
	                  l->name);
}

/* Uses the loading stream, which is idle while programs are created. */
static int capture(struct plan *p, struct size *s)
{
	struct kern_device *dev = p->dev;
	cudaGraph_t graph = NULL;
	cudaError_t launched = cudaSuccess;
	size_t i = 0;
	int rc = KERN_OK;
	for (; i < p->launches && !rc; i++)
		rc = allow_shared(dev, &p->launch[i]);
	if (rc ||
	    (rc = cuda_check(dev, cudaStreamBeginCapture(dev->loading, cudaStreamCaptureModeRelaxed),
	                     "capturing a program")))
		return rc;
	for (i = 0; i < p->launches && launched == cudaSuccess && !rc; i++) {
		const struct launch *l = &p->launch[i];
		/* Our kernel must not start before what a library launched is done, because it may
		 * capture anything, not only kernels. The library's own launches may overlap our previous
		 * kernel if they wait for its end themselves, as such launches must. */
		if (l->kernel)
			launched = launch_one(l, dev->overlaps && i && l[-1].kernel, dev->loading);
		else if (l->by == BY_LT)
			rc = lt_launch(dev, (const struct lt_product *)(const void *)l->args, dev->loading);
		else
			rc = nccl_launch(dev, (const struct nccl_call *)(const void *)l->args, dev->loading);
	}
	/* end the capture before handling an error: a capturing stream cannot be queried */
	cudaError_t end = cudaStreamEndCapture(dev->loading, &graph);
	if (!rc)
		rc = cuda_check(dev, launched, i ? p->launch[i - 1].name : "capturing a program");
	else { /* a library may have failed because the device is lost */
		cudaError_t state = cudaStreamQuery(dev->loading);
		cudaGetLastError();
		rc = state == cudaSuccess || state == cudaErrorNotReady
		         ? rc
		         : cuda_check(dev, state, "capturing a program");
	}
	if (!rc)
		rc = cuda_check(dev, end, "capturing a program");
	if (!rc)
		rc = cuda_check(dev, cudaGraphInstantiate(&s->graph, graph, 0), "creating a graph");
	if (graph)
		cudaGraphDestroy(graph);
	s->launches = p->launches;
	return rc;
}

/* --- creating and destroying --------------------------------------------- */

void cuda_program_destroy(struct kern_program **pp)
{
	struct kern_program *p = *pp;
	if (!p || p->dev->hangs)
		return;
	for (unsigned i = 0; i < p->sizes; i++)
		if (p->size[i].graph)
			cudaGraphExecDestroy(p->size[i].graph);
	if (p->memory)
		cudaFree(p->memory);
	free(p);
	*pp = NULL;
}

/* Allocates the counted memory for all sizes: rooms, kept memory, the batch. */
static int program_alloc(struct kern_program *p, struct plan *plan)
{
	struct kern_mem mem;
	size_t bytes = (plan->kept + 255) / 256 * 256;
	for (unsigned i = 0; i < PLAN_ROOMS; i++) {
		plan->room_at[i] = bytes;
		bytes += plan->room[i];
	}
	p->batch_at = bytes;
	int rc = cuda_mem_new(p->dev, KERN_MEM_DEVICE, bytes + p->limits.batch_bytes, &mem);
	if (rc)
		return rc;
	plan->memory = p->memory = (unsigned char *)mem.dev.v;
	plan->batch = (const struct kern_batch *)(const void *)(p->memory + p->batch_at);
	plan->counting = false;
	return cuda_check(p->dev, cudaDeviceSynchronize(), "clearing memory");
}

static int program_build(struct kern_program *p, struct plan *plan, const struct kern_op *ops,
                         size_t n)
{
	for (unsigned i = 0; i < p->sizes && !plan->rc; i++)
		plan_all(plan, &p->size[i], ops, n);
	if (!plan->rc)
		plan->rc = program_alloc(p, plan);
	for (unsigned i = 0; i < p->sizes && !plan->rc; i++) {
		plan_all(plan, &p->size[i], ops, n);
		if (!plan->rc && plan->launches)
			plan->rc = capture(plan, &p->size[i]);
	}
	/* streams do not wait for the copies of constants, so wait here */
	if (!plan->rc)
		plan->rc = cuda_check(p->dev, cudaStreamSynchronize(0), "writing a program's constants");
	p->progress = plan->progress;
	free(plan->launch);
	return plan->rc;
}

int cuda_program_new(struct kern_device *dev, const struct kern_op *ops, size_t n,
                     const struct kern_limits *limits, struct kern_program **ret_p)
{
	struct kern_bounds bounds = {.ranks = dev->group.ranks,
	                             .reduces = nccl_reduces(dev),
	                             .pipe = &dev->pipe,
	                             .types = 1 << KERN_F32 | 1 << KERN_F16 | 1 << KERN_BF16,
	                             .columns = CUDA_MAX_COLUMNS,
	                             .head_dim = CUDA_MAX_HEAD_DIM};
	int rc = kern_program_check(ops, n, limits, &bounds, dev->error, sizeof dev->error);
	if (rc || (rc = cuda_choose(dev)))
		return rc;
	struct kern_program *p = calloc(1, sizeof *p);
	if (!p)
		return cuda_fail(dev, KERN_ENOMEM, "out of memory for a program of %zu operations", n);
	p->dev = dev;
	p->limits = *limits;
	choose_sizes(p);
	struct plan plan = {.dev = dev,
	                    .limits = &p->limits,
	                    .wgmma = dev->wgmma && cuda_wgmma() != 0,
	                    .batch = (const struct kern_batch *)(uintptr_t)256,
	                    .counting = true};
	rc = program_build(p, &plan, ops, n);
	if (rc)
		cuda_program_destroy(&p);
	else
		*ret_p = p;
	return rc;
}

/* --- running ------------------------------------------------------------- */

static const struct size *size_for(const struct kern_program *p, const struct kern_batch *b)
{
	unsigned i = 0;
	while (i + 1 < p->sizes && (b->rows > p->size[i].rows || b->tail_rows > p->size[i].tail_rows ||
	                            b->spans > p->size[i].spans || b->tail_spans > p->size[i].spans))
		i++;
	return &p->size[i];
}

/* Adds up the time of runs that are complete, all before run `end`. Of more than KERN_FLIGHTS runs
 * that nobody has waited for, the older ones are not counted: their events were used again. */
static int count_time(struct kern_stream *s, uint64_t end)
{
	uint64_t from = s->runs > KERN_FLIGHTS ? s->runs - KERN_FLIGHTS : 0;
	int rc = KERN_OK;
	for (from = from > s->timed ? from : s->timed; from < end && !rc; from++) {
		float ms = 0;
		rc = cuda_check(s->dev,
		                cudaEventElapsedTime(&ms, s->begin[from % KERN_FLIGHTS],
		                                     s->end[from % KERN_FLIGHTS]),
		                "reading the time of a run");
		if (ms > 0) /* else a run that failed has taken the event of its begin */
			__atomic_fetch_add(&s->dev->busy_ns, (uint64_t)((double)ms * 1e6), __ATOMIC_RELAXED);
	}
	s->timed = end > s->timed ? end : s->timed;
	return rc;
}

int cuda_wait(struct kern_stream *s, unsigned but)
{
	struct kern_device *dev = s->dev;
	uint64_t end = s->runs > but ? s->runs - but : 0;
	int rc = cuda_choose(dev);
	/* the latest run begins after all work before it */
	cudaEvent_t begin = but && s->runs ? s->begin[(s->runs - 1) % KERN_FLIGHTS] : NULL;
	if (!rc && dev->nccl && (begin || !but))
		rc = nccl_wait(dev, begin, s->stream);
	else if (!rc && begin)
		rc = cuda_check(dev, cudaEventSynchronize(begin), "waiting for the device");
	else if (!rc && !but)
		rc = cuda_check(dev, cudaStreamSynchronize(s->stream), "waiting for the device");
	if (!rc)
		rc = count_time(s, end);
	if (!rc && dev->broken[0])
		rc = cuda_fail(dev, KERN_ELOST, "%s", dev->broken);
	return rc ? rc : peers_check(dev);
}

int cuda_run(struct kern_stream *s, struct kern_program *p, const struct kern_mem *batch)
{
	struct kern_device *dev = s->dev;
	const struct kern_batch *b = batch->host;
	int rc = kern_batch_check(batch, &p->limits, dev->error, sizeof dev->error);
	if (!rc && dev->broken[0])
		rc = cuda_fail(dev, KERN_ELOST, "%s", dev->broken);
	if (!rc && !(rc = nccl_check(dev)))
		rc = peers_check(dev);
	if (!rc)
		rc = cuda_choose(dev);
	unsigned flight = s->runs % KERN_FLIGHTS;
	if (!rc)
		rc = cuda_check(dev, cudaEventRecord(s->begin[flight], s->stream), "timing a run");
	if (!rc)
		rc = cuda_check(dev,
		                cudaMemcpyAsync(p->memory + p->batch_at, (const void *)batch->dev.v,
		                                (size_t)b->words * 4, cudaMemcpyDefault, s->stream),
		                "copying a batch");
	const struct size *size = rc ? NULL : size_for(p, b);
	/* once it runs, rank 0 of a group may lay out the next step in the same memory */
	uint32_t progress = b->progress, rows = b->rows;
	if (!rc && size->graph)
		rc = cuda_check(dev, cudaGraphLaunch(size->graph, s->stream), "running a program");
	if (!rc)
		rc = cuda_check(dev, cudaEventRecord(s->end[flight], s->stream), "timing a run");
	if (rc)
		return rc;
	s->runs++;
	if (progress && dev->watch && p->progress)
		watch_expect(dev->watch, p->progress);
	__atomic_fetch_add(&dev->steps, 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&dev->rows, rows, __ATOMIC_RELAXED);
	__atomic_fetch_add(&dev->launches, size->launches, __ATOMIC_RELAXED);
	return KERN_OK;
}
