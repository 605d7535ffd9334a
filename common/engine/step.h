/* step.h - one step of the forward pass, as its parts see it: forward.c, moe.c, mla.c. */
#ifndef ENGINE_STEP_H
#define ENGINE_STEP_H

#include "engine/engine_impl.h"

/* What one step is made of: the whole batch, and the rows that go to the head. */
struct step {
	struct engine *e;
	struct engine_span *span;
	uint32_t spans;
	struct kern_batch all, tail;
	int whole_tail;    /* every row goes to the head */
	int publish;       /* somebody is told of each layer */
	int rc;            /* the first KERN_E*; later operations are left out */
};

/* Each runs an operation of the table unless an earlier one failed. */
#define RUN(st, op, ...) ((void)((st)->rc || ((st)->rc = (st)->e->ops->op((st)->e->stream, __VA_ARGS__))))

/* This rank's columns of y (rows, n); none when there are fewer columns than ranks. */
void step_project(struct step *st, float *y, const float *x, uint32_t rows, const struct kern_weight *w, const float *bias, struct tp_share own,
                  uint32_t n);
/* What every rank has written is there for all to read. */
void step_gather(struct step *st);
/* This rank's columns to their place among all (rows, n); its device works in host memory (engine.c sees to that). */
void step_place_own(struct step *st, float *all, uint32_t n, const float *own, struct tp_share share, uint32_t rows);

#endif
