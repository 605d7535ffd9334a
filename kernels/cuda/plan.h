/* plan.h - from recorded operations to kernel launches. Each family of operations (rows.cu,
 * linear.cu, ...) has its kernels and the functions that plan them.
 *
 * A program is planned for each of its sizes (largest numbers of rows), twice: first only to count
 * the memory that it needs, then with that memory. Planning functions need not distinguish: they
 * request memory and add launches. Addresses of the first pass are invalid and must not be
 * dereferenced. What an operation cannot do is rejected by plan_fail; the first error is kept, and
 * later calls do nothing. */
#ifndef CUDA_PLAN_H
#define CUDA_PLAN_H

#include "kernels/cuda/backend.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { LAUNCH_ARGS = 448 }; /* bytes of a kernel's argument struct */

/* The library that makes a launch of none of our kernels. */
enum launch_by { BY_LT, BY_NCCL };

struct launch {
	const void *kernel; /* NULL: a library's, of what is in args */
	enum launch_by by;  /* struct lt_product, struct nccl_call */
	const char *name;
	uint32_t grid[2], threads, shared; /* shared: bytes of dynamic shared memory */
	uint32_t cluster;                  /* blocks of a cluster, neighbours in x; 0: there are none */
	uint32_t args_bytes;
	unsigned char args[LAUNCH_ARGS] __attribute__((aligned(8)));
};

/* Prepared activations (ready.h): for linear_mma.cu, as the device's are, rounded or not; exact
 * ones, only where those are rounded; rounded ones for linear_wide.cu. */
enum ready_kind { READY_MMA, READY_EXACT, READY_WIDE, READY_KINDS };

/* Memory that operations share: its contents are valid only until the next operation that uses
 * it. */
enum plan_room {
	ROOM_PARTIAL,
	ROOM_GATHERED,
	ROOM_EXPERT_OUT,
	ROOM_OTHER,
	ROOM_READY, /* one for each kind */
	PLAN_ROOMS = ROOM_READY + (int)READY_KINDS
};

/* In ROOM_READY + kind: x (R, k) as of operation `since`, with or without sums; since NULL:
 * none. */
struct prepared {
	const struct kern_op *since;
	struct kern_tensor x;
	uint32_t k;
	enum kern_rows rows;
	bool sums;
};

/* Which experts rows have chosen, of those first .. first + experts - 1: ids (R, used). */
struct choice {
	const uint32_t *ids;
	uint32_t used, first, experts;
	enum kern_rows rows;
};

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
	unsigned progress;                  /* number of progress operations */
	struct prepared ready[READY_KINDS]; /* private to linear.cu */
	/* by which pairs are sorted, as long as rows have not chosen again; ids NULL: none. Of
	 * experts.cu */
	struct choice sorted;
	/* lists of work that attention operations share; private to attention.cu */
	struct {
		uint32_t key[7];
		void *memory;
	} lists[8];
	unsigned list_count;
};

/* Keeps the first error; its text names the operation. Returns it. */
int plan_fail(struct plan *p, int code, const char *fmt, ...)
	__attribute__((format(printf, 2 + 1, 4)));
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

/* A launch of a library; args: its struct, copied. */
void plan_library(struct plan *p, enum launch_by by, const void *args, size_t args_bytes);

/* most rows of the current operation */
static inline uint32_t plan_rows(const struct plan *p)
{
	return p->op->rows == KERN_ROWS_ALL ? p->rows : p->tail_rows;
}

static inline uint32_t plan_least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static inline uint32_t element_bytes(const struct kern_tensor *t)
{
	return t->type == KERN_F32 ? 4 : 2;
}

/* Bytes occupied by a tensor's rows, including the padding between them. */
struct extent {
	uintptr_t from, to;
};

static inline struct extent tensor_extent(const struct kern_tensor *t, size_t rows, size_t columns)
{
	struct extent e = {t->at.v, t->at.v + ((rows - 1) * t->ld + columns) * element_bytes(t)};
	return e;
}

static inline bool extents_apart(struct extent a, struct extent b)
{
	return a.to <= b.from || b.to <= a.from;
}

/* plan_NAME plans the current operation, which is checked. In heads.cu, where one function plans
 * all kinds, it may go on with those that follow directly */
#define plan_head_norm plan_heads
#define plan_rope plan_heads
#define plan_kv_write plan_heads
#define plan_send plan_transfer
#define plan_recv plan_transfer
#define PLAN_DECLARED(KIND, NAME) void plan_##NAME(struct plan *p);
KERN_OPERATIONS(PLAN_DECLARED)
/* A barrier of all ranks, with_progress: only for batches with progress. Returns the word on the
 * device that is nonzero if the group is broken; NULL: no group. */
const uint32_t *plan_meet(struct plan *p, bool with_progress);

#ifdef __cplusplus
}
#endif
#endif
