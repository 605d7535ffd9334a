/* build.h - what the files share that cut operations into phases (program.c, rows.c, products.c,
 * experts.c, cut.c). */
#ifndef CPU_BUILD_H
#define CPU_BUILD_H

#include "kernels/cpu/program.h"

/* --- phases of rows (rows.c) --- */

struct row_step {
	/* rows [from, to) of the phase's; from is a multiple of CPU_TILE_ROWS */
	void (*run)(const struct row_step *s, const struct kern_program *p, uint32_t from, uint32_t to);
	const struct kern_op *op;
	const void *with; /* what it needs beside the operation */
};

enum { ROW_STEPS_MAX = 8 };
struct row_phase {
	struct kern_program *p;
	enum kern_rows rows;
	size_t work; /* elements of a row that the steps touch */
	uint32_t steps;
	struct row_step step[ROW_STEPS_MAX];
};

struct build {
	struct kern_program *p;
	struct row_phase *open;        /* the last phase, if it is one of rows */
	const struct cpu_group *group; /* the last grouping of pairs by expert */
	const struct kern_op *op;      /* the present one; what it is built of lies behind it */
	size_t room;                   /* of p->phase */
	int rc;                        /* the first KERN_E*; all that follows does nothing */
};

int build_fail(struct build *b, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
void *build_alloc(struct build *b, size_t bytes);
void build_phase(struct build *b, uint32_t (*items)(const void *),
                 void (*item)(const void *, uint32_t, unsigned), const void *ctx);
/* Appends to the open phase of rows, or begins one; work: elements of a row. */
void build_row_step(struct build *b, const struct kern_op *op,
                    void (*run)(const struct row_step *, const struct kern_program *, uint32_t,
                                uint32_t),
                    const void *with, size_t work);
/* A tensor of float32, `columns` wide; an address of float32 or ids; else the build fails and names
 * the operation. */
int build_tensor(struct build *b, const struct kern_op *op, const struct kern_tensor *t,
                 size_t columns);
int build_address(struct build *b, const struct kern_op *op, kern_ptr p);
uint32_t build_max_rows(const struct build *b, enum kern_rows rows);

/* what a row needs of itself alone */
void build_rows(struct build *b, const struct kern_op *op);
void build_matmul(struct build *b, const struct kern_op *op);
void build_heads_matmul(struct build *b, const struct kern_op *op);
void build_experts_act(struct build *b, const struct kern_op *op);
void build_experts_down(struct build *b, const struct kern_op *op);
void build_attention(struct build *b, const struct kern_op *op);
void build_progress(struct build *b, const struct kern_op *op); /* group.c */
void build_collective(struct build *b, const struct kern_op *op);

/* --- products (products.c) --- */

/* How activations are made ready for products with some weights: nothing to do, quantised,
 * rounded. */
struct cpu_make {
	uint32_t k;
	size_t tile_bytes, ld_rounded; /* 0: not quantised; not rounded */
};

static inline size_t more(size_t a, size_t b)
{
	return a > b ? a : b;
}

struct cpu_make build_make(struct build *b, const struct kern_op *op,
                           const struct kern_weight *const *w, uint32_t n);
/* The program's room for `rows` rows that are made ready so. */
void build_ready_room(struct build *b, const struct cpu_make *m, size_t rows, size_t tiles);
/* Rows x, from record and rounded row `tile` and `row` of the program's on. */
struct cpu_ready cpu_ready_at(const struct kern_program *p, const struct cpu_make *m,
                              const float *x, size_t ldx, size_t tile, size_t row);

/* Panels of an item: small enough to share the work out evenly and to stay in the second-level
 * cache, and few enough to claim cheaply. total_bytes: of all weights of the phase; many: rows
 * of more than a tile. */
uint32_t cpu_panels_per_item(const struct kern_program *p, const struct kern_weight *w,
                             size_t total_bytes, int many);
size_t cpu_packed_bytes(const struct kern_program *p, const struct kern_weight *w);

/* Floats for chunks that are done apart: less than the most that such a batch needs, and no more
 * than 64 MiB. */
size_t cpu_partial_floats(const struct cpu_variant *v, const struct cpu_attention *a,
                          unsigned threads, uint32_t positions);
/* cut.c: cuts the present batch for all attention of the program */
void cpu_cut_batch(struct kern_program *p);

/* Items of `work` elements each, `count` of them, taken together so that claiming costs little
 * and threads get equal shares. */
uint32_t cpu_grain(const struct kern_program *p, uint32_t count, size_t work, uint32_t multiple);

#endif
