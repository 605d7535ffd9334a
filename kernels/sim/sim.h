/* sim.h - the simulated device's state, shared by device.c (opening, memory), program.c (recording
 * and replay), clock.c (modelled time) and kv.c (chains in the pool).
 *
 * A row of any activation matrix is one 64-bit word, kept by the program. In the pool a token of a
 * layer has two words: K is the layer's chain up to this token, V the input of this token. */
#ifndef SIM_SIM_H
#define SIM_SIM_H

#include "kernels/host_memory.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "kernels/sample.h"
#include "kernels/sim/options.h"

#include <stdatomic.h>

enum {
	SIM_PEAKS = 5,
	SIM_ELEMENTS = 16,
	SIM_COLUMNS = 64,
	SIM_LAYERS_MAX = 256,
	SIM_RECORDS = 1 << 24
};

/* Modelled time. done_ns: when the work enqueued so far is complete; may be before or after the
 * present. */
struct sim_clock {
	uint64_t done_ns;
	uint64_t previous_ns; /* when the work before the latest run is complete */
	uint64_t woke_ns;     /* when the latest wait for all work returned */
	/* how late that sleep ended; the next step may start this much earlier */
	uint64_t late_ns;
	double rest_ns; /* remainder of rounding to whole nanoseconds */
};

struct kern_stream {
	struct kern_device *dev;
};

struct kern_device {
	struct host_device host; /* first */
	struct sim_options opt;
	struct kern_stream stream; /* work runs immediately, so one stream serves for all */
	void (*progressed)(void *arg);
	void *progressed_arg;
	struct sim_clock clock;
	uint64_t *record; /* (SIM_RECORDS); see kv.c */
	/* the last program that wrote logits; only for comparison, it may have been freed */
	const struct kern_program *wrote_logits;
	uint64_t step;
	_Atomic uint64_t pulse, busy_ns, steps, rows, kv_faults;
};

struct kern_weight {
	enum kern_dtype dtype;
	uint32_t count, n, k;
};

/* An operation's modelled time in nanoseconds: computing, reading memory, and overhead. */
struct sim_cost {
	double row, attended;    /* computing: per row; per row and attended position */
	double once, context;    /* memory: weights; per token of the spans' contexts */
	double launch, exchange; /* overhead: fixed; per row */
};

/* The size of a batch for one kind of rows. */
struct sim_amount {
	double rows, attended, context;
};

struct kern_program {
	struct kern_device *dev;
	struct kern_limits limits;
	struct sim_op *op;
	size_t ops;
	const struct kern_op *advance; /* completes a batch's spans; NULL: there is no such operation */
	kern_ptr matrix[SIM_COLUMNS];  /* the matrix whose row words are in each column */
	size_t columns, column_rows;
	uint64_t *word;                  /* (SIM_COLUMNS, column_rows) */
	const struct kern_weight *table; /* the embedding, which also serves as the head */
	/* (column_rows, SIM_PEAKS) indices of logits above the floor */
	uint32_t *peak;
	void *sampler_memory;
	struct kern_sampler *sampler;
	uint32_t floors; /* rows of logits filled with the floor */
	uint32_t layers, block_tokens;
	const struct kern_batch *batch;         /* of the current replay, as are: */
	struct sim_amount amount[2];            /* by enum kern_rows */
	double compute_ns, memory_ns, fixed_ns; /* not charged yet */
	/* (limits.spans) hashes of the table entries that cover a span's context, without and with
	 * its rows */
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
/* a step starts, submitted by the host at now_ns */
void sim_clock_begin(struct kern_device *dev, uint64_t now_ns);
/* adds modelled time, before the time scale */
void sim_clock_charge(struct kern_device *dev, double ns);
/* sleeps until the charged time is over, or nearly */
void sim_clock_wait(struct kern_device *dev);
/* waits until all steps, or all but the latest, are over */
void sim_clock_end(struct kern_device *dev);
void sim_clock_end_previous(struct kern_device *dev);

/* kv.c: checks that the device supports a pool; hashes the batch's block tables, once for all
 * layers; writes the rows' words to the pool; returns K of a position. */
int sim_kv_check(struct kern_program *p, const struct kern_kv_layer *kv);
void sim_kv_tables(struct kern_program *p);
int sim_kv_write(struct kern_program *p, const struct kern_kv_layer *kv, const uint64_t *v);
uint64_t sim_kv_chain(const struct kern_kv_layer *kv, const uint32_t *table, uint32_t position);

#endif
