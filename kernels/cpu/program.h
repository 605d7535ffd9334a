/* program.h - a recorded program as the CPU runs it: the array of operations cut into phases for
 * the crew (crew.h).
 *
 * Operations that compute a row from that row alone follow each other within one phase, a few rows
 * an item; products, attention and what else reads other rows have phases of their own. All
 * memory is allocated by program_new. */
#ifndef CPU_PROGRAM_H
#define CPU_PROGRAM_H

#include "kernels/cpu/cpu.h"
#include "kernels/sample.h"

#include <stdatomic.h>

enum { CPU_CHUNK = 256 }; /* positions of a sequence that attention takes together */

struct kern_program {
	struct kern_device *dev;
	struct kern_limits limits;
	const struct kern_batch *batch; /* of the present run */
	size_t ops;
	struct crew_phase *phase;
	size_t phases;
	struct cpu_block *blocks; /* all memory that the phases name, freed with the program */
	unsigned char *piece;     /* what is left of a block for small things: */
	size_t piece_left;
	struct cpu_cut *cut[8]; /* how attention is cut; few differ */
	unsigned cuts;
	struct cpu_angles *angles[4]; /* sine and cosine of each row, one for each rope */
	unsigned angle_tables;
	float **scratch; /* of each worker, and: */
	struct kern_sampler **sampler;
	size_t scratch_floats;
	/* activations made ready: records, rounded rows; each for the largest product */
	unsigned char *rec;
	float *rounded, *partial, *gathered, *given;
	size_t rec_bytes, rounded_floats, partial_floats, gathered_floats, given_floats;
	atomic_bool broken; /* the group did not meet */
};

/* Memory that lives as long as the program, zeroed; NULL when there is none. */
void *cpu_program_alloc(struct kern_program *p, size_t bytes);

int cpu_program_new(struct kern_device *dev, const struct kern_op *ops, size_t n,
                    const struct kern_limits *limits, struct kern_program **ret_p);
void cpu_program_destroy(struct kern_program **p);
int cpu_run(struct kern_stream *s, struct kern_program *p, const struct kern_mem *batch);

/* Are chunks of the present batch done apart? They are while their states fit the room that was
 * made. */
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
