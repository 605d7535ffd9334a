/* conform.h - the conformance rig: any backend against a plain reference, through nothing but
 * struct kern_ops. README.md says what is demanded of an operation, what is covered and what is
 * not.
 *
 * A job is one operation (or a few that belong together) of one shape, with its inputs and a
 * function that computes a row in double precision. job_check runs it on every target with all that
 * is demanded. Tests live in test_conform_X.c, each a program; build/test/conform has all of
 * them. */
#ifndef TESTS_CONFORM_H
#define TESTS_CONFORM_H

#include "kernels/device.h"
#include "kernels/ops.h"

#include <check.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LEN(a) (sizeof(a) / sizeof *(a))

/* One of so many shapes runs: the environment's CONFORM_THIN, else more where sanitizers make
 * everything slow. */
extern unsigned conform_thin;

/* --- tests --------------------------------------------------------------- */

struct conform_test {
	const char *name;
	const TTest *test;
	struct conform_test *next;
};
void conform_register(struct conform_test *t);

/* With CONFORM_TRACE in the environment: says on standard error what begins, as lines "AT ...". So
 * does conform_about. The last one tells where a device hangs. */
void conform_begin(const char *what, const char *name);

/* A test of libcheck that registers itself. */
#define CONFORM_TEST(NAME)                                                 \
	static void NAME##_fn(void);                                           \
	static void NAME##_run(int _i __attribute__((unused)))                 \
	{                                                                      \
		conform_begin("", #NAME);                                          \
		NAME##_fn();                                                       \
	}                                                                      \
	__attribute__((constructor)) static void NAME##_register(void)         \
	{                                                                      \
		static const TTest test = {#NAME, NAME##_run, __FILE__, __LINE__}; \
		static struct conform_test t = {#NAME, &test, NULL};               \
		conform_register(&t);                                              \
	}                                                                      \
	static void NAME##_fn(void)

/* What a failure is said to be about: target, job, run. Kept until it is replaced; `level` 0
 * drops what later levels said. */
void conform_about(unsigned level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void conform_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
#define EXPECT(cond, ...)              \
	do {                               \
		if (!(cond))                   \
			conform_fail(__VA_ARGS__); \
	} while (0)

/* Zeroed memory that lives until the test ends. */
void *conform_alloc(size_t count, size_t size);
/* Frees what was allocated since the mark. */
size_t conform_mark(void);
void conform_release(size_t mark);

void rand_seed(uint32_t seed);
uint32_t rand_bits(void);
uint32_t rand_below(uint32_t n);
float rand_unit(void);                     /* -1 .. 1 */
float *rand_floats(size_t n, float scale); /* of conform_alloc */

/* --- targets and devices ------------------------------------------------- */

/* What a target's products round, beyond float32 sums. */
struct precision {
	/* quantised weights: of activations, as a part of the largest magnitude of their 32; 0:
	 * float32 */
	double group_step;
	/* BF16 weights: activations are rounded to bfloat16 first */
	bool bf16_activations;
	/* tensor cores multiply single bfloat16 numbers: activations of E4M3 weights are rounded as
	 * well, and queries, K, weights and V of attention */
	bool bf16_mma;
	/* a row's bits may depend on its batch, where there are products with weights */
	bool rows_vary;
};

struct target {
	char name[48], backend[16], variant[24];
	enum kern_dtype activations;
	const struct kern_ops *ops;
	struct precision precision;
	bool absent; /* this machine lacks what it needs */
};

extern struct target conform_targets[16];
extern unsigned conform_target_count;

struct device {
	const struct target *target;
	const struct kern_ops *ops;
	struct kern_device *d;
	struct kern_stream *s;
	unsigned threads;
};

/* Opened once a test, or in one process (CK_FORK=no) once for all; closed when it ends. Only the
 * CPU's depend on the number of threads: of other backends there is one device, and one more by
 * ANOTHER. NULL: the target is absent (said once). */
enum { ANOTHER = 4 };
struct device *device_get(struct target *t, unsigned threads);
/* Fails the test with the device's last error unless rc is 0. */
void device_ok(const struct device *dev, int rc, const char *what);
struct kern_mem mem_get(const struct device *dev, enum kern_memory kind, size_t bytes);
/* Seconds until the others know that a group is broken: one, where not much else runs. */
enum { NOTICED_S = 20 };
/* upload and sync */
void mem_put(const struct device *dev, kern_ptr dst, const void *src, size_t bytes);
/* A weight of matrices in dense rows, one after the other. */
struct kern_weight *weight_get(const struct device *dev, enum kern_dtype type, uint32_t count,
                               uint32_t n, uint32_t k, const void *data);
/* download and sync */
void mem_take(const struct device *dev, void *dst, kern_ptr src, size_t bytes);

/* Every target once: rounded activations (kern_config.activations) change nothing but products,
 * and attention of some. */
#define EACH_TARGET(dev, threads)                                                 \
	for (unsigned t_ = 0; t_ < conform_target_count; t_++)                        \
		for (struct device *dev = conform_targets[t_].activations == KERN_F32     \
		                              ? device_get(&conform_targets[t_], threads) \
		                              : NULL;                                     \
		     dev && (conform_about(0, "%s", dev->target->name), true); dev = NULL)

/* --- jobs ---------------------------------------------------------------- */

enum { FIELDS = 16, CONSTS = 6, SEQUENCES = 8, OPS_MAX = 64 };
enum { TYPE_U32 = KERN_DTYPE_COUNT }; /* of a field of ids */

/* Rows under test: of several sequences, each at consecutive positions. With KV, the positions
 * before hold history. */
struct sequence {
	uint32_t position, rows;
};

struct world {
	struct sequence seq[SEQUENCES];
	uint32_t sequences, block_tokens; /* what follows is filled by world_init */
	/* a sequence's first row, of those under test and of those with history; then the number */
	uint32_t live[SEQUENCES + 1], all[SEQUENCES + 1];
	uint32_t deepest; /* position + 1 */
	uint32_t blocks;  /* of the pool */
	uint32_t *table[SEQUENCES];
	uint32_t *token; /* of a row under test */
};

enum direction { IN, OUT, INOUT };

/* A buffer with a row for each row of the batch, or of its tail: (rows, sub, columns). */
struct field {
	const char *name;
	enum direction dir;
	enum kern_rows rows;
	enum kern_dtype type;  /* in the device's memory */
	uint32_t sub, columns; /* sub: 1, or how many rows of the buffer a row has */
	bool dense;            /* ld is columns */
	bool history;          /* has data for the rows of the history too */
	/* what it is given, (rows, sub, columns); ids by their bits */
	float *data;
};

struct matrix {
	enum kern_dtype type;
	uint32_t n, k;
	size_t row_bytes; /* 0: dense */
	unsigned char *data;
	float *value; /* (n, k): what the data mean */
	/* of the matrices from here on, which are one weight; 0: those of a weight that has begun */
	uint32_t count;
};

static inline unsigned char *matrix_row(const struct matrix *m, uint32_t row)
{
	return m->data + row * (m->row_bytes ? m->row_bytes : kern_dtype_bytes(m->type, m->k));
}

struct job;

/* A job on a device. */
struct live {
	const struct job *job;
	const struct device *dev;
	struct kern_tensor field[FIELDS];
	kern_ptr constant[CONSTS];
	struct kern_weight **w; /* of job->matrix; NULL: of a weight that has begun before */
	struct kern_kv_layer kv;
	struct live_own *own;
};

/* What a row of every OUT and INOUT field must be, (sub, columns); bound 0: that, rounded to the
 * field's type. */
struct expect {
	double *value[FIELDS], *bound[FIELDS];
	bool untouched; /* the row keeps what was there */
};

/* What a device gave for the rows under test. */
struct result {
	uint64_t id;         /* of a run */
	float *out[FIELDS];  /* as data; NULL: not an output */
	bool *have[FIELDS];  /* (rows): whether the field has the row */
	unsigned char *pool; /* KV, as it was at the end */
	unsigned char fill;  /* what unwritten bytes of the pool hold */
};

struct job {
	char name[128];
	uint32_t number;        /* of the test's jobs */
	enum kern_op_kind kind; /* for the statistics */
	struct world world;
	uint32_t fields, constants, matrices;
	struct field field[FIELDS];
	struct {
		const void *data;
		size_t bytes;
	} constant[CONSTS];
	struct matrix *matrix;
	bool has_kv;
	struct kern_kv_layer kv; /* the shape; base is filled for each device */
	/* of its attention: how a row sees others; 0: all before it */
	uint32_t window;
	/* no run with NaN and infinities: the rows are special enough */
	bool clean;
	/* any field of a row may reach later rows by KV, not only those with history */
	bool mixes;
	const void *shape; /* the family's own */
	/* returns how many */
	uint32_t (*record)(const struct job *j, const struct live *l, struct kern_op *ops);
	/* the history's program, which has only the fields with history; may be NULL */
	uint32_t (*record_history)(const struct job *j, const struct live *l, struct kern_op *ops);
	/* NULL: rows are only compared with each other */
	void (*row)(const struct job *j, const struct precision *p, const struct result *r,
	            uint32_t row, struct expect *e);
	/* a check of its own instead */
	void (*check_row)(const struct job *j, const struct precision *p, const struct result *r,
	                  uint32_t row, bool poisoned);
	/* KV and the bytes around it; what has the same inputs in `base`, a run of `of` that was
	 * checked, may be compared with that; NULL: none was */
	void (*check_pool)(const struct job *j, const struct result *r, const struct job *of,
	                   const struct result *base);
};

/* Jobs with KV (kv.c). Fields of K and V come first, V only without a latent; the pool is
 * checked. */
enum { KV_TYPES = 5 };
extern const enum kern_dtype kv_types[KV_TYPES];
struct job *kv_job(enum kern_op_kind kind, const struct sequence *seq, uint32_t block_tokens,
                   enum kern_dtype type, uint32_t kv_heads, uint32_t head_dim, uint32_t latent,
                   const char *name);
uint32_t kv_write_record(const struct job *j, const struct live *l, struct kern_op *op);
/* K or V of a position, as it was given. */
const float *kv_given(const struct job *j, uint32_t seq, uint32_t position, uint32_t head,
                      uint32_t is_v);
double kv_top(enum kern_dtype t); /* the largest code of a type with scales */

void world_init(struct world *w, const struct sequence *seq, uint32_t sequences,
                uint32_t block_tokens, uint32_t vocabulary);
/* One of conform_alloc, with tokens below VOCABULARY. */
enum { VOCABULARY = 97 };
struct world *world_new(const struct sequence *seq, uint32_t block_tokens);
uint32_t world_sequence(const struct world *w, uint32_t row); /* of a row under test */
static inline uint32_t world_rows(const struct world *w)
{
	return w->live[w->sequences];
}
static inline uint32_t world_position(const struct world *w, uint32_t row)
{
	uint32_t s = world_sequence(w, row);
	return w->seq[s].position + row - w->live[s];
}

struct job *job_new(enum kern_op_kind kind, const struct world *w, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Adds a field of random data (rows x sub x columns, about +-scale; some rows zero, some tiny,
 * some with an outlier); returns its number. */
uint32_t job_field(struct job *j, const char *name, enum direction dir, enum kern_rows rows,
                   uint32_t sub, uint32_t columns, float scale);
uint32_t job_field_history(struct job *j, const char *name, uint32_t columns, float scale);
uint32_t job_constant(struct job *j, const void *data, size_t bytes);
void job_matrices(struct job *j, uint32_t count);
/* random; job_matrix_of: the first, or with count 0 a further one, of a weight's `count` */
void job_matrix(struct job *j, uint32_t i, enum kern_dtype type, uint32_t n, uint32_t k);
void job_matrix_of(struct job *j, uint32_t i, uint32_t count, enum kern_dtype type, uint32_t n,
                   uint32_t k);
void job_kv(struct job *j, enum kern_dtype type, uint32_t kv_heads, uint32_t head_dim,
            uint32_t latent);
/* The field's rows have nothing between them, as ids and weights of experts. */
void job_dense(struct job *j, uint32_t field, int type);
static inline uint32_t id_of(float bits)
{
	uint32_t id;
	memcpy(&id, &bits, 4);
	return id;
}
/* A row's data of a field. */
const float *job_data(const struct job *j, uint32_t field, uint32_t row);

/* All that is demanded of a job, on all targets; with activations of every type that a target
 * has. */
void job_check(struct job *j);
/* The next job is not one that CONFORM_THIN leaves out. */
void job_next_counts(void);

/* --- single runs (rig.c) ------------------------------------------------- */

/* rows of one sequence in a step; the last `tail` of them go to the tail */
struct part {
	uint32_t seq, position, rows, tail;
};
struct step {
	uint32_t parts;
	struct part part[SEQUENCES];
	bool history, tail_reversed;
};
struct schedule {
	uint32_t steps;
	struct step *step;
	char name[48];
};

enum order {
	ORDER_WHOLE,
	ORDER_ALONE,
	ORDER_CHUNKS,
	ORDER_REVERSED,
	ORDER_ONE_BY_ONE,
	ORDER_MIXED
};
/* Steps that take every row once, after steps for the history, if wanted; `chunk`: rows of a
 * sequence in a step (CHUNKS), or the seed (MIXED). */
struct schedule schedule_make(const struct world *w, enum order order, uint32_t chunk,
                              bool history);

/* The job on a device, with its buffers in memory of that kind; each in memory of its own (DEVICE)
 * or side by side in one. split: each operation is a program. NULL and the error if the backend
 * refuses the program. */
struct live *live_new(const struct job *j, const struct device *dev, enum kern_memory kind,
                      bool split, int *ret_rc);
void live_free(struct live **l);
/* Runs the schedule with the inputs of `data` (the same shape) from a pool of `fill` bytes.
 * Returns what came out; fails if anything else was written. */
struct result *live_run(struct live *l, const struct job *data, const struct schedule *s,
                        unsigned char fill);
struct result *result_new(const struct job *j);
/* What a row of a buffer holds that nobody has written. */
#define UNWRITTEN 0x7fd57fd5u
size_t job_pool_bytes(const struct job *j);

/* Writes the batch of a step to `to` (at least live_batch_bytes), its parts in an order that
 * changes with `salt`, with rubbish between them. */
size_t batch_bytes(const struct world *w);
void batch_write(const struct world *w, const struct step *st, uint32_t salt,
                 const struct kern_progress *progress, void *to);
struct kern_limits world_limits(const struct world *w);

/* Without a job: a program, which must be made; a batch in pinned memory; an operation y = x *
 * factor of dense rows. */
struct kern_program *program_get(const struct device *dev, const struct kern_op *op, size_t n,
                                 const struct kern_limits *limits);
struct kern_mem batch_get(const struct device *dev, const struct world *w, const struct step *st,
                          const struct kern_progress *progress);
/* and sync */
void program_run(const struct device *dev, struct kern_program *p, const struct kern_mem *batch);
struct kern_op op_scale(kern_ptr y, kern_ptr x, float factor, uint32_t dim);

/* --- the reference (reference.c, formats.c) ------------------------------ */

/* a matrix in the file's format, values of about +-1; of conform_alloc */
unsigned char *rand_weight(enum kern_dtype t, uint32_t n, uint32_t k);
/* value i of a row in the file's format; KV types: without their scale */
double format_value(enum kern_dtype t, const unsigned char *row, uint32_t i);
/* the values of a row; a NaN among the codes of an E4M3 block makes all of it NaN */
void format_row(enum kern_dtype t, const unsigned char *row, uint32_t k, float *ret);
double format_f8(unsigned code);
/* x in F32, F16 or BF16, to nearest, ties to even */
float format_round(enum kern_dtype t, double x);
/* of F16, BF16; x is such a value */
uint16_t format_bits(enum kern_dtype t, float x);
/* the most that such a rounding of x changes it by */
double format_error(enum kern_dtype t, double x);

/* value (n) = W x, and bound: what float32 sums and the target's rounding of x may make of it;
 * see reference.c */
void ref_product(const struct precision *p, const struct matrix *w, const double *x, double *value,
                 double *bound);
double ref_act(enum kern_act act, double x); /* of a gate */
double ref_up(enum kern_act act, double x);  /* what it is multiplied by */
/* act(gate) * up, of a gate and an up that may be off by their bounds */
void ref_act_mul(enum kern_act act, double gate, double gate_bound, double up, double up_bound,
                 double *value, double *bound);
/* The numbers of a row, in double precision. */
double *ref_doubles(const float *x, uint32_t n);
/* K or V of a position of a sequence, (head_dim), from the bytes of the pool */
void ref_kv(const struct job *j, const unsigned char *pool, uint32_t seq, uint32_t position,
            uint32_t head, bool is_v, double *out);
/* offset of its first byte, and of its scale */
size_t ref_kv_at(const struct job *j, uint32_t seq, uint32_t position, uint32_t head, bool is_v,
                 size_t *ret_scale);

/* The largest part of its bound that an operation used; shown with CONFORM_SHOW=1. */
void conform_stat(enum kern_op_kind kind, double part);
void conform_stats_show(void);

#endif
