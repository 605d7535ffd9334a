/* sim.h - the simulated device's own state, shared by device.c (life, memory), clock.c (modelled time), kv.c (chains in the pool) and
 * ops.c (what rows carry).
 *
 * A row of any matrix carries one 64-bit word in its first eight bytes. In the pool a token of a layer has two words: K holds the chain
 * of the layer up to this token, V what went into it, so that chain(t) = sim_chain(chain(t - 1), V(t), t, layer) can be checked anywhere. */
#ifndef SIM_SIM_H
#define SIM_SIM_H

#include "kernels/kernels.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum { SIM_PEAKS = 5, SIM_REGIONS = 8 };

/* Modelled time. `done_ns` is when the work enqueued so far is done; the host may be ahead of it or behind it. */
struct sim_clock {
	uint64_t done_ns;
	uint64_t woke_ns;          /* when the latest sync returned */
	uint64_t late_ns;          /* by how much that was late: the next step may begin by so much earlier */
	double rest_ns;            /* what rounding to whole nanoseconds left over */
};

/* Registered host memory that may hold a pool; the records of kv.c for it. */
struct sim_region {
	unsigned char *host;
	size_t bytes;
	uint64_t *record;          /* (layers, blocks), mapped at first use; see kv.c */
	size_t record_bytes;
	uint32_t blocks;
};

/* The block tables of the present step: hashes over the entries that cover a span's context, and its context with its rows. */
struct sim_tables {
	uint64_t step;             /* of which step they are */
	uint32_t room;
	struct sim_table_hash {
		uint64_t before, after;
	} *hash;
};

/* Rows of logits: which entries are above the floor. */
struct sim_logits {
	float *y;
	size_t ldy;
	uint32_t rows, room;       /* rows that were written at y */
	uint32_t *peak;            /* (room, SIM_PEAKS) */
};

struct kern_device {
	struct kern_sim sim;
	uint32_t max_rows;
	struct sim_clock clock;
	struct sim_region region[SIM_REGIONS];
	struct sim_tables tables;
	struct sim_logits logits;
	uint64_t step;
	_Atomic uint64_t busy_ns, steps, rows, kv_faults;
	char error[256];
};

struct kern_stream {
	struct kern_device *dev;
};

struct kern_weight {
	uint32_t n, k;
};

int sim_fail(struct kern_device *dev, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* --- words ---------------------------------------------------------------------------------------------------------------- */

static inline uint64_t sim_mix(uint64_t a, uint64_t b)
{
	uint64_t x = (a ^ (b * 0x9e3779b97f4a7c15u)) * 0xd6e8feb86659fd93u;
	x ^= x >> 32;
	x *= 0xff51afd7ed558ccdu;
	return x ^ x >> 29;
}

static inline uint64_t sim_row_get(const float *row)
{
	uint64_t v;
	memcpy(&v, row, sizeof v);
	return v;
}

static inline void sim_row_set(float *row, uint64_t v)
{
	memcpy(row, &v, sizeof v);
}

/* --- clock.c ---------------------------------------------------------------------------------------------------------------- */

void sim_clock_begin(struct kern_device *dev);                    /* a step begins */
void sim_clock_charge(struct kern_device *dev, double ns);        /* modelled, before the time scale */
void sim_clock_wait(struct kern_device *dev);                     /* until what was charged is done, or nearly */
void sim_clock_end(struct kern_device *dev);                      /* waits; the step is over */
double sim_layer_ns(const struct kern_sim *m, const struct kern_batch *batch);

/* --- kv.c ------------------------------------------------------------------------------------------------------------------- */

/* K of a row's position, where kv_write put it. */
uint64_t sim_kv_chain(const struct kern_kv_layer *kv, const uint32_t *table, uint32_t position);
int sim_op_kv_write(struct kern_stream *s, const struct kern_kv_layer *kv, const float *k, const float *v, size_t ld,
                    const struct kern_batch *batch);
void sim_records_free(struct sim_region *r);

/* --- ops.c ------------------------------------------------------------------------------------------------------------------ */

int sim_op_embed(struct kern_stream *s, float *y, const struct kern_weight *w, const uint32_t *tokens, uint32_t rows);
int sim_op_rms_norm(struct kern_stream *s, float *y, const float *x, const float *w, uint32_t rows, uint32_t dim, float eps);
int sim_op_add_rms_norm(struct kern_stream *s, float *y, float *x, const float *a, const float *w, uint32_t rows, uint32_t dim, float eps);
int sim_op_head_norm(struct kern_stream *s, float *x, size_t ldx, uint32_t heads, uint32_t head_dim, const float *w, uint32_t rows, float eps);
int sim_op_matmul(struct kern_stream *s, const float *x, uint32_t rows, const struct kern_product *p, uint32_t products);
int sim_op_rope(struct kern_stream *s, float *x, size_t ldx, uint32_t heads, uint32_t head_dim, const struct kern_rope *rope,
                const uint32_t *positions, uint32_t rows);
int sim_op_attention(struct kern_stream *s, float *out, const float *q, size_t ldq, uint32_t heads, const struct kern_kv_layer *kv,
                     float scale, uint32_t window, const float *sinks, const struct kern_batch *batch);
int sim_op_act_mul(struct kern_stream *s, float *y, const float *gate, const float *up, size_t ld, enum kern_act act, uint32_t rows,
                   uint32_t dim);
int sim_op_gather_rows(struct kern_stream *s, float *y, const float *x, const uint32_t *index, uint32_t count, uint32_t dim);
int sim_op_route(struct kern_stream *s, uint32_t *ids, float *weights, const float *logits, const struct kern_router *router, uint32_t rows);
int sim_op_experts_act(struct kern_stream *s, float *y, const float *x, const uint32_t *ids, uint32_t used, const struct kern_experts *experts,
                       enum kern_act act, uint32_t rows);
int sim_op_experts_down(struct kern_stream *s, float *y, size_t ldy, const float *x, const uint32_t *ids, const float *weights, uint32_t used,
                        const struct kern_experts *experts, int add, uint32_t rows);
int sim_op_heads_matmul(struct kern_stream *s, float *y, size_t ldy, const float *x, size_t ldx, struct kern_weight *const *w, uint32_t heads,
                        uint32_t tail, uint32_t rows);
int sim_op_scale(struct kern_stream *s, float *x, float factor, size_t count);

#endif
