/* plan.h - from recorded operations to launches of kernels. Each family of operations (rows.cu,
 * linear.cu, ...) has its kernels and the functions that plan them.
 *
 * A program is planned for each of its sizes (largest numbers of rows), twice: the first time only
 * to count how much memory it needs, the second time with that memory. A planning function need
 * not care: it asks for memory, and launches. Addresses of the first time point nowhere; nothing
 * is read through them. */
#ifndef CUDA_PLAN_H
#define CUDA_PLAN_H

#include "kernels/cuda/backend.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { LAUNCH_ARGS = 448 }; /* bytes of a kernel's argument, a struct */

struct launch {
	const void *kernel; /* NULL: a product by cuBLASLt, a struct lt_product in args */
	const char *name;
	uint32_t grid[3], threads, shared; /* shared: bytes of dynamic shared memory */
	uint32_t args_bytes;
	unsigned char args[LAUNCH_ARGS];
};

/* Memory that operations use one after the other: what is there is only good until the next
 * operation. */
enum plan_room { ROOM_READY, ROOM_PARTIAL, ROOM_GATHERED, ROOM_GIVEN, ROOM_OTHER, PLAN_ROOMS };

struct plan {
	struct kern_device *dev;
	const struct kern_limits *limits;
	/* the present one; what plans several at once leaves the last of them here */
	const struct kern_op *op;
	const struct kern_op *end; /* behind the program's last */
	/* of the present size; spans are those of all rows, and of the tail's */
	uint32_t rows, tail_rows, spans;
	const struct kern_batch *batch; /* the device's copy */
	struct launch *launch;
	size_t launches, launch_room;
	bool counting; /* the first time */
	int rc;        /* the first KERN_E*; all that follows does nothing */
	/* memory */
	unsigned char *memory; /* of the program */
	size_t room[PLAN_ROOMS], room_at[PLAN_ROOMS], kept, kept_at;
	unsigned progress; /* how many progress operations */
	/* whose activations are in ROOM_READY: x (R, k), as they were before operation `since`, with
	 * sums or without; since NULL: nobody's. linear.cu's own */
	struct {
		const struct kern_op *since;
		struct kern_tensor x;
		uint32_t k;
		enum kern_rows rows;
		bool sums;
	} ready;
	/* what attention and experts of the program have in common; of these files alone */
	void *cuts, *groups;
};

/* The first error stays; its text names the operation. Returns it. */
int plan_fail(struct plan *p, int code, const char *fmt, ...)
	__attribute__((format(printf, 2 + 1, 4)));
/* A matrix of activations of float32, bfloat16 or float16, `columns` wide; an address of float32
 * or ids. Returns the plan's error. */
int plan_tensor(struct plan *p, const struct kern_tensor *t, size_t columns);
int plan_address(struct plan *p, kern_ptr a);
/* At least `bytes` of a room, the same for every operation that asks. */
void *plan_room(struct plan *p, enum plan_room room, size_t bytes);
/* Zeroed memory that lives as long as the program, and is the same in all sizes of it: so `bytes`
 * may depend on the limits, but not on the size. data: what it holds (the same in all sizes), or
 * NULL. */
void *plan_keep(struct plan *p, const void *data, size_t bytes);
/* args: the kernel's argument, copied */
void plan_launch(struct plan *p, const char *name, const void *kernel, uint32_t grid_x,
                 uint32_t grid_y, uint32_t threads, size_t shared, const void *args,
                 size_t args_bytes);
#define PLAN(P, KERNEL, X, Y, THREADS, SHARED, ARGS) \
	plan_launch(P, #KERNEL, (const void *)KERNEL, X, Y, THREADS, SHARED, &(ARGS), sizeof(ARGS))

void plan_library(struct plan *p, const struct lt_product *product); /* of the variant fast */

/* of the present operation, at most */
static inline uint32_t plan_rows(const struct plan *p)
{
	return p->op->rows == KERN_ROWS_ALL ? p->rows : p->tail_rows;
}

/* Bytes that a tensor's rows take, with what lies between them. */
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
/* heads.cu: head_norm, rope, kv_write, and those that follow */
void plan_heads(struct plan *p);
void plan_progress(struct plan *p); /* rows.cu */
void plan_matmul(struct plan *p);   /* linear.cu */
void plan_heads_matmul(struct plan *p);
void plan_attention(struct plan *p);   /* attention.cu */
void plan_route(struct plan *p);       /* route.cu */
void plan_experts_act(struct plan *p); /* experts.cu */
void plan_experts_down(struct plan *p);
void plan_sample(struct plan *p);     /* sample.cu */
void plan_collective(struct plan *p); /* group.cu */

#ifdef __cplusplus
}
#endif
#endif
