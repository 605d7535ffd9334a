/* program.h - a recorded program as the CPU runs it: operations compiled into phases for the crew
 * (crew.h).
 *
 * Consecutive operations that compute a row from that row alone share a phase, with a few rows per
 * item; products, attention and other operations that read other rows have their own phases.
 * program_new allocates all memory. */
#ifndef CPU_PROGRAM_H
#define CPU_PROGRAM_H

#include "kernels/cpu/cpu.h"
#include "kernels/sample.h"

#include <stdatomic.h>

enum { CPU_CHUNK = 256 };                       /* positions per chunk of attention */
enum { CPU_BROKEN_GROUP = 1, CPU_BROKEN_PIPE }; /* of kern_program.broken */

struct kern_program {
	struct kern_device *dev;
	struct kern_limits limits;
	const struct kern_batch *batch; /* of the current run */
	size_t ops;
	const struct kern_op *advance; /* completes a batch's spans; NULL: there is no such operation */
	struct crew_phase *phase;
	size_t phases;
	struct cpu_block *blocks; /* all memory referenced by the phases, freed with the program */
	unsigned char *piece;     /* remainder of a block for small allocations */
	size_t piece_left;
	struct cpu_cut *cut[8]; /* the distinct ways of cutting attention; few */
	unsigned cuts;
	struct cpu_angles *angles[4]; /* sine and cosine of each row, one table per distinct rope */
	unsigned angle_tables;
	float **scratch; /* per worker, as is: */
	struct kern_sampler **sampler;
	size_t scratch_floats;
	/* prepared activations: records, rounded rows; each sized for the largest product */
	unsigned char *rec;
	float *rounded, *partial, *gathered, *given;
	size_t rec_bytes, rounded_floats, partial_floats, gathered_floats, given_floats;
	/* 0; or the group's barrier has failed; or a transfer, plus the stage that it was with */
	atomic_uint broken;
};

/* Zeroed memory that lives as long as the program; NULL: out of memory. */
void *cpu_program_alloc(struct kern_program *p, size_t bytes);

int cpu_program_new(struct kern_device *dev, const struct kern_op *ops, size_t n,
                    const struct kern_limits *limits, struct kern_program **ret_p);
void cpu_program_destroy(struct kern_program **p);
int cpu_run(struct kern_stream *s, struct kern_program *p, const struct kern_mem *batch);

/* Whether chunks of the current batch are computed separately: if their states fit the allocated
 * room. */
int cpu_apart(const struct cpu_attention *a);

static inline uint32_t cpu_rows(const struct kern_program *p, enum kern_rows rows)
{
	return rows == KERN_ROWS_ALL ? p->batch->rows : p->batch->tail_rows;
}

static inline const uint32_t *cpu_table(const struct kern_program *p, const struct kern_span *span)
{
	return (const uint32_t *)kern_part(p->batch, p->batch->table) + span->table;
}

#endif
