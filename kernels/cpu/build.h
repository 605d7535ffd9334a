/* build.h - shared by the files that compile operations into phases (program.c, rows.c, products.c,
 * experts.c, cut.c). */
#ifndef CPU_BUILD_H
#define CPU_BUILD_H

#include "kernels/cpu/program.h"

/* --- phases of rows (rows.c) --- */

struct row_step {
	/* processes rows [from, to) of the phase; from is a multiple of CPU_TILE_ROWS */
	void (*run)(const struct row_step *s, const struct kern_program *p, uint32_t from, uint32_t to);
	const struct kern_op *op;
	const void *with; /* further data of the step */
};

enum { ROW_STEPS_MAX = 8 };
struct row_phase {
	struct kern_program *p;
	enum kern_rows rows;
	size_t work; /* elements per row that the steps touch */
	uint32_t steps;
	struct row_step step[ROW_STEPS_MAX];
};

struct build {
	struct kern_program *p;
	struct row_phase *open;        /* the last phase, if it is a row phase */
	const struct cpu_group *group; /* the last grouping of pairs by expert */
	const struct kern_op *op; /* the program's copy of the operation; its allocations follow it */
	size_t room;              /* of p->phase */
	int rc;                   /* the first KERN_E*; later build calls do nothing */
};

int build_fail(struct build *b, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
void *build_alloc(struct build *b, size_t bytes);
void build_phase(struct build *b, uint32_t (*items)(const void *),
                 void (*item)(const void *, uint32_t, unsigned), const void *ctx);
/* Appends a step to the open row phase, or starts a new one; work: elements per row. */
void build_row_step(struct build *b, const struct kern_op *op,
                    void (*run)(const struct row_step *, const struct kern_program *, uint32_t,
                                uint32_t),
                    const void *with, size_t work);
uint32_t build_max_rows(const struct build *b, enum kern_rows rows);

/* build_NAME of each operation, which is checked; op is the program's copy */
#define BUILD_DECLARED(KIND, NAME) void build_##NAME(struct build *b, const struct kern_op *op);
KERN_OPERATIONS(BUILD_DECLARED)

/* --- products (products.c) --- */

/* How activations are prepared for products with some weights: not at all, quantised, or
 * rounded. */
struct cpu_make {
	uint32_t k;
	size_t tile_bytes, ld_rounded; /* 0: not quantised; not rounded */
};

static inline size_t max_size(size_t a, size_t b)
{
	return a > b ? a : b;
}

struct cpu_make build_make(const struct build *b, const struct kern_weight *const *w, uint32_t n);
/* Reserves room in the program for `rows` rows prepared in this way. */
void build_ready_room(struct build *b, const struct cpu_make *m, size_t rows, size_t tiles);
/* Rows x, using the program's records from tile `tile` on and rounded rows from `row` on. */
struct cpu_ready cpu_ready_at(const struct kern_program *p, const struct cpu_make *m,
                              const float *x, size_t ldx, size_t tile, size_t row);

/* Panels per item: small enough for an even distribution and the L2 cache, few enough items to
 * claim cheaply. total_bytes: of all weights of the phase; many: more than one tile of rows. */
uint32_t cpu_panels_per_item(const struct kern_program *p, const struct kern_weight *w,
                             size_t total_bytes, int many);

/* Floats for the states of chunks computed separately, at most 64 MiB; a batch that needs more is
 * not split. */
size_t cpu_partial_floats(const struct cpu_variant *v, const struct cpu_attention *a,
                          unsigned threads, uint32_t positions);
/* cut.c: cuts the current batch for all attention operations of the program */
void cpu_cut_batch(struct kern_program *p);

/* Number of items to claim together, out of `count` items of `work` elements each, so that claiming
 * is cheap and threads get equal shares. */
uint32_t cpu_grain(const struct kern_program *p, uint32_t count, size_t work, uint32_t multiple);

#endif
