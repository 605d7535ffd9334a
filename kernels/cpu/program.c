/* program.c - see program.h: compiles recorded operations into phases, and runs them.
 *
 * program_new rejects what cannot run; a batch beyond the limits is rejected before anything runs.
 * Only a broken group of ranks or pipeline is reported after the run. */
#include "kernels/cpu/build.h"

#include "kernels/advance.h"
#include "kernels/operands.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct cpu_block {
	struct cpu_block *next;
};
enum { PIECE = 64 << 10, SMALL = 4 << 10, NEAR_MAX = 2 << 10 };

/* --- building ------------------------------------------------------------ */

static void *alloc_block(struct kern_program *p, size_t bytes)
{
	/* calloc: untouched pages use no memory */
	struct cpu_block *block = bytes > SIZE_MAX - 128 ? NULL : calloc(1, bytes + 128);
	if (!block)
		return NULL;
	block->next = p->blocks;
	p->blocks = block;
	return (void *)(((uintptr_t)(block + 1) + 63) & ~(uintptr_t)63);
}

/* Small allocations are placed one after the other, in the order in which a run reads them. */
void *cpu_program_alloc(struct kern_program *p, size_t bytes)
{
	if (bytes > SMALL)
		return alloc_block(p, bytes);
	bytes = (bytes + 63) / 64 * 64;
	if (bytes > p->piece_left) {
		if (!(p->piece = alloc_block(p, PIECE)))
			return NULL;
		p->piece_left = PIECE;
	}
	p->piece += bytes;
	p->piece_left -= bytes;
	return p->piece - bytes;
}

int build_fail(struct build *b, int code, const char *fmt, ...)
{
	if (b->rc)
		return b->rc;
	va_list ap;
	va_start(ap, fmt);
	host_fail(b->p->dev, 0, fmt, ap);
	va_end(ap);
	return b->rc = code;
}

void *build_alloc(struct build *b, size_t bytes)
{
	void *mem = cpu_program_alloc(b->p, bytes);
	if (!mem)
		build_fail(b, KERN_ENOMEM, "out of memory for a program: %zu bytes", bytes);
	return mem;
}

void build_phase(struct build *b, uint32_t (*items)(const void *),
                 void (*item)(const void *, uint32_t, unsigned), const void *ctx)
{
	struct kern_program *p = b->p;
	b->open = NULL;
	if (b->rc)
		return;
	if (p->phases == b->room) {
		size_t room = b->room ? 2 * b->room : 64;
		struct crew_phase *grown = realloc(p->phase, room * sizeof *grown);
		if (!grown) {
			build_fail(b, KERN_ENOMEM, "out of memory for %zu phases", room);
			return;
		}
		p->phase = grown;
		b->room = room;
	}
	/* the previous phase's description ends here; it may include parts of this one's */
	size_t bytes = p->phases ? (uintptr_t)p->piece - (uintptr_t)p->phase[p->phases - 1].near : 0;
	if (p->phases)
		p->phase[p->phases - 1].near_bytes = bytes < NEAR_MAX ? bytes : 0;
	p->phase[p->phases++] = (struct crew_phase){
		.items = items, .item = item, .ctx = ctx, .near = b->op};
}

uint32_t build_max_rows(const struct build *b, enum kern_rows rows)
{
	return rows == KERN_ROWS_ALL ? b->p->limits.rows : b->p->limits.tail_rows;
}

/* --- sampling ------------------------------------------------------------ */

struct sample_phase {
	struct kern_program *p;
	const struct kern_op *op;
};

static uint32_t sample_items(const void *ctx)
{
	const struct kern_batch *b = ((const struct sample_phase *)ctx)->p->batch;
	return b->draws ? b->tail_rows : 0;
}

static void sample_item(const void *ctx, uint32_t item, unsigned worker)
{
	const struct sample_phase *ph = ctx;
	const struct kern_op *op = ph->op;
	const struct kern_batch *b = ph->p->batch;
	kern_sample(ph->p->sampler[worker], cpu_row(&op->sample.logits, item), b, item, op);
}

void build_sample(struct build *b, const struct kern_op *op)
{
	struct kern_program *p = b->p;
	unsigned threads = crew_threads(p->dev->crew);
	struct sample_phase *ph = build_alloc(b, sizeof *ph);
	if (b->rc || p->dev->group.rank)
		return;
	*ph = (struct sample_phase){p, op};
	p->sampler = build_alloc(b, threads * sizeof *p->sampler);
	for (unsigned i = 0; i < threads && !b->rc; i++) {
		void *mem = build_alloc(b, kern_sampler_bytes(p->limits.vocab));
		if (mem)
			p->sampler[i] = kern_sampler_init(mem, p->limits.vocab);
	}
	build_phase(b, sample_items, sample_item, ph);
}

/* Spans are completed before a run is shared out among threads. Ranks share the batch. */
void build_advance(struct build *b, const struct kern_op *op)
{
	if (b->p->dev->group.ranks > 1)
		build_fail(b, KERN_ENOTSUP, "%s: not in a group of %u ranks", kern_op_name(op->kind),
		           b->p->dev->group.ranks);
	b->p->advance = op;
}

/* --- start and end ------------------------------------------------------- */

#define BUILD_FUNCTION(KIND, NAME) [KIND] = build_##NAME,
static void (*const build_op[KERN_OPS])(struct build *b, const struct kern_op *op) = {
	KERN_OPERATIONS(BUILD_FUNCTION)};

static void build_memory(struct build *b)
{
	struct kern_program *p = b->p;
	unsigned threads = crew_threads(p->dev->crew);
	p->scratch = build_alloc(b, threads * sizeof *p->scratch);
	for (unsigned i = 0; i < threads && !b->rc; i++)
		p->scratch[i] = build_alloc(b, p->scratch_floats * sizeof(float));
	p->rec = build_alloc(b, p->rec_bytes);
	p->rounded = build_alloc(b, p->rounded_floats * sizeof(float));
	p->partial = build_alloc(b, p->partial_floats * sizeof(float));
	p->gathered = build_alloc(b, p->gathered_floats * sizeof(float));
	p->given = build_alloc(b, p->given_floats * sizeof(float));
}

void cpu_program_destroy(struct kern_program **pp)
{
	struct kern_program *p = *pp;
	if (!p)
		return;
	for (struct cpu_block *block = p->blocks, *next; block; block = next) {
		next = block->next;
		free(block);
	}
	free(p->phase);
	free(p);
	*pp = NULL;
}

int cpu_program_new(struct kern_device *dev, const struct kern_op *ops, size_t n,
                    const struct kern_limits *limits, struct kern_program **ret_p)
{
	struct kern_program *p = calloc(1, sizeof *p);
	if (!p)
		return cpu_fail(dev, KERN_ENOMEM, "out of memory for a program of %zu operations", n);
	p->dev = dev;
	p->limits = *limits;
	p->ops = n;
	struct kern_bounds bounds = {.ranks = dev->group.ranks,
	                             .pipe = &dev->pipe,
	                             .types = 1 << KERN_F32,
	                             .columns = CPU_MAX_COLUMNS,
	                             .head_dim = CPU_MAX_HEAD_DIM};
	struct build b = {.p = p,
	                  .rc = kern_program_check(ops, n, limits, &bounds, dev->host.error,
	                                           sizeof dev->host.error)};
	for (size_t i = 0; i < n && !b.rc; i++) {
		struct kern_op *op = build_alloc(&b, sizeof *op);
		if (!op)
			break;
		*op = ops[i];
		b.op = op;
		build_op[op->kind](&b, op);
	}
	if (!b.rc)
		build_memory(&b);
	pthread_mutex_lock(&dev->lock);
	if (!b.rc && crew_grow(dev->crew, p->phases))
		build_fail(&b, KERN_ENOMEM, "out of memory for a program of %zu phases", p->phases);
	pthread_mutex_unlock(&dev->lock);
	if (b.rc)
		cpu_program_destroy(&p);
	else
		*ret_p = p;
	return b.rc;
}

/* --- running ------------------------------------------------------------- */

int cpu_run(struct kern_stream *s, struct kern_program *p, const struct kern_mem *batch)
{
	struct kern_device *dev = s->dev;
	int rc = kern_batch_check(batch, &p->limits, dev->host.error, sizeof dev->host.error);
	if (rc)
		return rc;
	pthread_mutex_lock(&dev->lock);
	p->batch = batch->host;
	if (p->advance)
		kern_advance_spans(batch, p->advance, &p->limits);
	cpu_cut_batch(p);
	crew_run(dev->crew, p->phase, p->phases);
	pthread_mutex_unlock(&dev->lock);
	unsigned broken = atomic_load(&p->broken);
	if (broken >= CPU_BROKEN_PIPE)
		return cpu_fail(dev, KERN_EDEVICE,
		                "the pipeline of stages is broken: rows did not pass between stage %u and "
		                "stage %u",
		                dev->pipe.stage, broken - CPU_BROKEN_PIPE);
	return broken ? cpu_fail(dev, KERN_EDEVICE, "the group of ranks is broken") : KERN_OK;
}
