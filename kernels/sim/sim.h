/* sim.h - the simulated device's own state, shared by device.c (life, memory), program.c (recording
 * and replay), clock.c (modelled time) and kv.c (chains in the pool).
 *
 * A row of any matrix of activations carries one 64-bit word, kept by the program. In the pool a
 * token of a layer has two words: K holds the chain of the layer up to this token, V what went
 * into it. */
#ifndef SIM_SIM_H
#define SIM_SIM_H

#include "kernels/host_memory.h"
#include "kernels/kernels.h"
#include "kernels/sample.h"
#include "kernels/sim/options.h"

#include <stdatomic.h>

enum { SIM_PEAKS = 5, SIM_COLUMNS = 64, SIM_LAYERS_MAX = 256, SIM_RECORDS = 1 << 24 };

/* Modelled time. `done_ns` is when the work enqueued so far is done; the host may be ahead of it
 * or behind it. */
struct sim_clock {
	uint64_t done_ns;
	uint64_t woke_ns; /* when the latest sync returned */
	/* by how much that was late: the next step may begin by so much earlier */
	uint64_t late_ns;
	double rest_ns; /* what rounding to whole nanoseconds left over */
};

struct kern_stream {
	struct kern_device *dev;
};

struct kern_device {
	struct host_device host; /* first */
	struct sim_options opt;
	struct kern_stream stream; /* runs work at once, so that one is as good as several */
	void (*progressed)(void *arg);
	void *progressed_arg;
	struct sim_clock clock;
	uint64_t *record; /* (SIM_RECORDS); see kv.c */
	/* the latest program that did; not to be read, it may be gone */
	const struct kern_program *wrote_logits;
	uint64_t step;
	_Atomic uint64_t pulse, busy_ns, steps, rows, kv_faults;
};

struct kern_weight {
	uint32_t n, k;
};

/* What an operation takes, in modelled nanoseconds: of computing, of reading memory, and what
 * comes on top. */
struct sim_cost {
	double row, attended;    /* computing: per row; per row and position that it attends to */
	double once, context;    /* memory: weights; per token of the spans' contexts */
	double launch, exchange; /* on top: fixed; per row */
};

/* What a batch has of one kind of rows. */
struct sim_amount {
	double rows, attended, context;
};

struct kern_program {
	struct kern_device *dev;
	struct kern_limits limits;
	struct sim_op *op;
	size_t ops;
	kern_ptr matrix[SIM_COLUMNS]; /* whose rows' words each column has */
	size_t columns, column_rows;
	uint64_t *word;                  /* (SIM_COLUMNS, column_rows) */
	const struct kern_weight *table; /* the embedding, which is the head as well */
	/* (column_rows, SIM_PEAKS) entries of logits that are above the floor */
	uint32_t *peak;
	void *sampler_memory;
	struct kern_sampler *sampler;
	uint32_t floors; /* rows of logits that have one */
	uint32_t layers, block_tokens;
	const struct kern_batch *batch;         /* of the present replay, and: */
	struct sim_amount amount[2];            /* by enum kern_rows */
	double compute_ns, memory_ns, fixed_ns; /* not charged yet */
	/* (limits.spans) of the block tables: over what covers a span's context, and its context
	 * with its rows */
	uint64_t (*hash)[2];
};

static inline uint64_t sim_mix(uint64_t a, uint64_t b)
{
	uint64_t x = (a ^ (b * 0x9e3779b97f4a7c15u)) * 0xd6e8feb86659fd93u;
	x ^= x >> 32;
	x *= 0xff51afd7ed558ccdu;
	return x ^ x >> 29;
}

int sim_fail(struct kern_device *dev, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

size_t sim_program_bytes(const struct kern_config *conf, const struct kern_limits *limits,
                         const struct kern_shape *shape);
int sim_program_new(struct kern_device *dev, const struct kern_op *ops, size_t n,
                    const struct kern_limits *limits, struct kern_program **ret_p);
void sim_program_destroy(struct kern_program **p);
int sim_run(struct kern_stream *s, struct kern_program *p, const struct kern_mem *batch);

/* clock.c */
uint64_t sim_clock_now(void);
/* a step begins, which the host gave at now_ns */
void sim_clock_begin(struct kern_device *dev, uint64_t now_ns);
/* modelled, before the time scale */
void sim_clock_charge(struct kern_device *dev, double ns);
/* until what was charged is done, or nearly */
void sim_clock_wait(struct kern_device *dev);
void sim_clock_end(struct kern_device *dev); /* waits; the step is over */

/* kv.c: whether the device can have that pool; hashes of the batch's block tables, once for all
 * layers; the words of its rows to the pool; K of a position. */
int sim_kv_check(struct kern_program *p, const struct kern_kv_layer *kv);
void sim_kv_tables(struct kern_program *p);
int sim_kv_write(struct kern_program *p, const struct kern_kv_layer *kv, const uint64_t *v);
uint64_t sim_kv_chain(const struct kern_kv_layer *kv, const uint32_t *table, uint32_t position);

#endif
