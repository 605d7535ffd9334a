/* operands.h - for backends: what the operations of a program read and write, and the checks that
 * follow from it (ops.c). */
#ifndef KERNELS_OPERANDS_H
#define KERNELS_OPERANDS_H

#include "kernels/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

enum kern_access { KERN_READ, KERN_WRITE, KERN_UPDATE };

/* A matrix that an operation reads or writes: activations, or an array of 4-byte elements. The
 * layers of the KV pool and the batch are none. */
struct kern_operand {
	const char *name;
	enum kern_access access;
	struct kern_tensor x; /* an array is dense float32 */
	size_t columns;
	uint32_t rows_each; /* rows of x for each row of the operation; 0: an array of a single row */
};

enum { KERN_OPERANDS_MAX = 9 };
struct kern_operands {
	uint32_t n;
	struct kern_operand of[KERN_OPERANDS_MAX];
	/* elements of weights: multiplied for each row, and read, however many rows there are */
	double multiplied, read;
};

/* What `op`, of a checked program with these limits, reads and writes. */
void kern_operands(const struct kern_op *op, const struct kern_limits *limits,
                   struct kern_operands *ret);

/* What a device can have. */
struct kern_bounds {
	unsigned ranks;               /* of its group; 0 or 1: no group */
	int reduces;                  /* KERN_OP_REDUCE works in its group */
	const struct kern_pipe *pipe; /* of which it is a stage; NULL: none */
	int modelled;                 /* kern_ops.modelled: without constants, and K and V not stored */
	unsigned types;               /* of activations: a bit 1 << enum kern_dtype for each */
	uint32_t columns;             /* of a row of activations */
	uint32_t head_dim;            /* of K and V, and of heads that are rotated */
};

/* Returns 0, or KERN_EINVAL (KERN_ENOTSUP: an unknown operation or type of activations) and a
 * message for programs that violate the contract or that the device cannot have. Does not check
 * other limits of a backend. */
int kern_program_check(const struct kern_op *ops, size_t n, const struct kern_limits *limits,
                       const struct kern_bounds *bounds, char *errbuf, size_t errlen);

#ifdef __cplusplus
}
#endif

#endif
