/* small.c - programs, batches and operations of tests that need no job. */
#include "tests/conform/conform.h"

struct kern_program *program_get(const struct device *dev, const struct kern_op *op, size_t n,
                                 const struct kern_limits *limits)
{
	struct kern_program *p = NULL;
	device_ok(dev, dev->ops->program_new(dev->d, op, n, limits, &p), "program_new");
	EXPECT(p, "program_new returned no program");
	return p;
}

struct kern_mem batch_get(const struct device *dev, const struct world *w, const struct step *st,
                          const struct kern_progress *progress)
{
	struct kern_mem m = mem_get(dev, KERN_MEM_PINNED, batch_bytes(w));
	batch_write(w, st, 0, progress, m.host);
	return m;
}

struct kern_op op_scale(kern_ptr y, kern_ptr x, float factor, uint32_t dim)
{
	struct kern_op op = {.kind = KERN_OP_SCALE};
	op.scale.y = (struct kern_tensor){y, dim, KERN_F32};
	op.scale.x = (struct kern_tensor){x, dim, KERN_F32};
	op.scale.factor = factor;
	op.scale.dim = dim;
	return op;
}

void program_run(const struct device *dev, struct kern_program *p, const struct kern_mem *batch)
{
	device_ok(dev, dev->ops->run(dev->s, p, batch), "run");
	device_ok(dev, dev->ops->sync(dev->s), "sync");
}
