/* plan.h - from recorded operations to kernel launches. Each family of operations (rows.cu,
 * linear.cu, ...) has its kernels and the functions that plan them.
 *
 * A program is planned for each of its sizes (largest numbers of rows), twice: first only to count
 * the memory that it needs, then with that memory. Planning functions need not distinguish: they
 * request memory and add launches. Addresses of the first pass are invalid and must not be
 * dereferenced. */
#ifndef CUDA_PLAN_H
#define CUDA_PLAN_H

#include "kernels/cuda/backend.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { LAUNCH_ARGS = 448 }; /* bytes of a kernel's argument struct */

/* What a launch is as a phase of a chain (chain.cu). */
enum phase_kind {
	PHASE_NONE, /* it cannot be one */
	PHASE_GATHER,
	PHASE_SCALE,
	PHASE_NORM,
	PHASE_ACT,
	PHASE_HEADS,
	PHASE_MERGE,
	PHASE_READY,
	PHASE_TAILS,
	PHASE_PRODUCT
};

struct launch {
	const void *kernel; /* NULL: a cuBLASLt product, struct lt_product in args */
	const char *name;
	uint32_t grid[2], threads, shared; /* shared: bytes of dynamic shared memory */
	uint32_t cluster;                  /* blocks of a cluster, neighbours in x; 0: there are none */
	enum phase_kind phase;
	/* PHASE_PRODUCT: the kernel of chains with such products, and its name */
	const void *chain;
	const char *chain_name;
	uint32_t args_bytes;
	unsigned char args[LAUNCH_ARGS] __attribute__((aligned(8)));
};

/* Memory that operations share: its contents are valid only until the next operation that uses
 * it. */
enum plan_room { ROOM_READY, ROOM_PARTIAL, ROOM_GATHERED, ROOM_GIVEN, ROOM_OTHER, PLAN_ROOMS };

struct plan {
	struct kern_device *dev;
	const struct kern_limits *limits;
	/* the current one; after planning several at once, the last of them */
	const struct kern_op *op;
	const struct kern_op *end; /* one past the program's last */
	/* of the current size; spans: of all rows and of the tail's */
	uint32_t rows, tail_rows, spans;
	const struct kern_batch *batch; /* in device memory */
	struct launch *launch;
	size_t launches, launch_room;
	bool wgmma;    /* may be used: the device has it, and it is not switched off */
	bool counting; /* the first pass */
	int rc;        /* the first KERN_E*; later calls do nothing */
	/* memory */
	unsigned char *memory; /* of the program */
	size_t room[PLAN_ROOMS], room_at[PLAN_ROOMS], kept, kept_at;
	unsigned progress; /* number of progress operations */
	/* the prepared activations in ROOM_READY: of x (R, k) as of operation `since`, with or without
	 * sums; since NULL: none. Private to linear.cu */
	struct {
		const struct kern_op *since;
		struct kern_tensor x;
		uint32_t k;
		enum kern_rows rows;
		bool sums;
	} ready;
	/* state shared by the program's attention and experts operations; private to their files */
	void *cuts, *groups;
};

/* Keeps the first error; its text names the operation. Returns it. */
int plan_fail(struct plan *p, int code, const char *fmt, ...)
	__attribute__((format(printf, 2 + 1, 4)));
/* Checks a matrix of activations (float32, bfloat16 or float16) with `columns` columns; an address
 * of float32 or ids. Returns the plan's error. */
int plan_tensor(struct plan *p, const struct kern_tensor *t, size_t columns);
int plan_address(struct plan *p, kern_ptr a);
/* At least `bytes` of a room, which all operations share. */
void *plan_room(struct plan *p, enum plan_room room, size_t bytes);
/* Zeroed memory that lives as long as the program and is shared by all its sizes; `bytes` may
 * therefore depend on the limits, but not on the size. data: its contents (the same in all sizes),
 * or NULL. */
void *plan_keep(struct plan *p, const void *data, size_t bytes);
/* args: the kernel's argument, copied. Returns the launch; NULL while counting or after an error */
struct launch *plan_launch(struct plan *p, const char *name, const void *kernel, uint32_t grid_x,
                           uint32_t grid_y, uint32_t threads, size_t shared, const void *args,
                           size_t args_bytes);
#define PLAN(P, KERNEL, X, Y, THREADS, SHARED, ARGS) \
	plan_launch(P, #KERNEL, (const void *)KERNEL, X, Y, THREADS, SHARED, &(ARGS), sizeof(ARGS))
/* Lets a launch become a phase of a chain; no-op for NULL. */
void plan_phase(struct launch *l, enum phase_kind phase);
#define PLAN_PHASE(P, PHASE, ...) plan_phase(PLAN(P, __VA_ARGS__), PHASE)

void plan_library(struct plan *p, const struct lt_product *product); /* for variant "fast" */

/* most rows of the current operation */
static inline uint32_t plan_rows(const struct plan *p)
{
	return p->op->rows == KERN_ROWS_ALL ? p->rows : p->tail_rows;
}

/* Bytes occupied by a tensor's rows, including the padding between them. */
struct extent {
	uintptr_t from, to;
};

static inline struct extent tensor_extent(const struct kern_tensor *t, size_t rows, size_t columns)
{
	struct extent e = {t->at.v,
	                   t->at.v + ((rows - 1) * t->ld + columns) * (t->type == KERN_F32 ? 4 : 2)};
	return e;
}

static inline bool extents_apart(struct extent a, struct extent b)
{
	return a.to <= b.from || b.to <= a.from;
}

/* rows.cu: embed, gather_rows, scale, norm, act_mul */
void plan_row_op(struct plan *p);
/* heads.cu: head_norm, rope, kv_write; also plans the heads operations that follow directly */
void plan_heads(struct plan *p);
void plan_progress(struct plan *p); /* rows.cu */
void plan_matmul(struct plan *p);   /* linear.cu */
void plan_heads_matmul(struct plan *p);
void plan_attention(struct plan *p);   /* attention.cu */
void plan_route(struct plan *p);       /* route.cu */
void plan_experts_act(struct plan *p); /* experts.cu */
void plan_experts_down(struct plan *p);
void plan_sample(struct plan *p);     /* sample.cu */
void plan_continue(struct plan *p);   /* continue.cu */
void plan_collective(struct plan *p); /* group.cu */
/* chain.cu: lets a launch of a product for few rows become a phase of a chain, if there is a kernel
 * for chains with weights of that type and that number of parts. */
void plan_chain_product(struct launch *l, int type, int parts);
/* Merges the planned launches into chains. *ret_memory: device memory that they use, to be freed
 * with cudaFree when no graph needs it; set only if there are chains and p->rc is 0. */
void plan_chains(struct plan *p, void **ret_memory);
/* A barrier of all ranks for batches with progress. Returns the word on the device that is nonzero
 * if the group is broken; NULL: no group. */
const uint32_t *plan_meet_progress(struct plan *p);

#ifdef __cplusplus
}
#endif
#endif
