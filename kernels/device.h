/* device.h - the contract between the engine and a device: memory, streams, weights and programs.
 * The headers of the contract (device.h, ops.h, batch.h, group.h, tensor.h) depend on nothing else
 * of pdserve.
 *
 * A model step is a program: an array of operations (struct kern_op), recorded once for its largest
 * shape and replayed. Everything that differs between steps (number of rows, tokens, KV locations)
 * is in the batch passed to each replay (struct kern_batch). A backend (kernels/cpu, kernels/sim,
 * or a shared object loaded by name) compiles the array into its own form: phases of a thread crew,
 * a graph of launches.
 *
 * Rules for every backend:
 *  - A device address is a kern_ptr, which the host cannot dereference. `upload` and `download`
 *    copy; KERN_MEM_PINNED and KERN_MEM_SHARED memory may also have a host address (struct
 *    kern_mem).
 *  - Work on one stream runs in order. `upload`, `download` and `run` may return before it
 *    completes; `sync` returns when all of it has, `sync_previous` when all before the latest run
 *    has. Host memory passed to them may be changed or freed only after that. Streams of a device
 *    are not ordered with respect to each other; the caller ensures that a program runs on one
 *    stream at a time.
 *  - Whatever a program, a batch or a run refers to (memory, weights, constants) is read when it
 *    runs, and may be freed or destroyed only once that run is complete.
 *  - A replay allocates nothing.
 *  - Functions return 0 or a negative KERN_E*; `last_error` returns the text of the device's latest
 *    error. An error of asynchronous work may be reported by a later call on the stream, at the
 *    latest by `sync`. `program_new` rejects what cannot run at all (unsupported shapes, types,
 *    type combinations or sizes) with a message that names the operation; callers use it to query
 *    capabilities. It also rejects unknown enum values, missing or misaligned weights and
 *    addresses, and overlapping rows. The caller ensures that enough memory lies behind each
 *    address.
 *  - One thread at a time calls functions of a device and its streams; `counters` and `info` may be
 *    called from any thread.
 *
 * ops.h says what a program's operations compute, and which rules hold for all of them. */
#ifndef KERNELS_DEVICE_H
#define KERNELS_DEVICE_H

#include "kernels/error.h"
#include "kernels/group.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KERN_ABI 22u /* raised when a struct or a signature below changes */

struct kern_device; /* backend state: threads, contexts, scratch */
struct kern_stream;
/* matrices (count, n, k), repacked by the backend; compute y = x W^T, with the first one unless an
 * operation is of heads or experts */
struct kern_weight;
struct kern_program;
/* How every backend's struct kern_weight begins. */
struct kern_matrices {
	enum kern_dtype dtype;
	uint32_t count, n, k;
};
struct kern_op;     /* ops.h */
struct kern_limits; /* batch.h */

/* --- memory -------------------------------------------------------------- */

enum kern_memory {
	KERN_MEM_DEVICE, /* device memory; host is NULL */
	KERN_MEM_PINNED, /* host memory that the device reads and writes in place */
	/* device memory that other processes can map through a descriptor; host is NULL where the host
	 * cannot address it */
	KERN_MEM_SHARED,
	/* operands of collectives. All ranks of a group call mem_new for it in the same order with the
	 * same sizes; it waits for all of them. Ranks whose devices share memory get the same memory,
	 * others a copy each, at corresponding addresses. Without a group: as DEVICE */
	KERN_MEM_GROUP
};

struct kern_mem {
	kern_ptr dev;
	void *host;
	size_t bytes;
	enum kern_memory kind;
	void *own; /* private to the backend */
	int fd;    /* private to the backend */
};

/* --- devices ------------------------------------------------------------- */

enum { KERN_THREADS_MAX = 256 };

struct kern_config {
	/* NULL or "auto": the best for this machine. cpu: "plain", "avx2", "avx512", "avx512bf16", or
	 * "reference", which keeps every product in float32 (no quantised activations). cuda: "fast"
	 * multiplies BF16 weights with cuBLASLt and always uses KERN_BF16 activations; with it a row's
	 * bits may depend on its batch (contrary to invariant I8) */
	const char *variant;
	unsigned threads; /* cpu: at most KERN_THREADS_MAX; 0 is 1 */
	int device_index;
	/* KERN_F32 (0), or KERN_BF16: products with BF16 weights round activations to BF16. cuda with
	 * KERN_BF16 also rounds for quantised weights, and attention rounds queries, K, V and softmax
	 * weights */
	enum kern_dtype activations;
	struct kern_group group;
	struct kern_pipe pipe;
	/* called from any thread soon after KERN_OP_PROGRESS of a batch with progress; must not block;
	 * may be NULL */
	void (*progressed)(void *arg);
	void *progressed_arg;
	/* backend-specific, or NULL (sim: struct sim_options of kernels/sim/options.h) */
	const void *options;
};

/* Device facts for the operator. Zeros and an empty name: the device is the host, or unknown. */
struct kern_info {
	char name[64]; /* "NVIDIA H100 80GB HBM3" */
	/* which of the backend's kernels are in use: "avx512", "wgmma"; empty: it has only one kind */
	char kernels[80];
	uint64_t memory_bytes, free_bytes;
	uint32_t temperature_c, power_w, clock_mhz, memory_clock_mhz;
	uint64_t memory_errors; /* uncorrectable, since the driver was loaded */
};

/* Runs of a stream that were started and not waited for: with more, busy_ns may leave out older
 * ones. */
enum { KERN_FLIGHTS = 2 };

/* Counters since the device was opened. */
struct kern_counters {
	/* grows while a replay advances: per layer, or at least per replay */
	uint64_t pulse;
	/* time with work in progress; this and the fields below are 0 where not counted */
	uint64_t busy_ns;
	uint64_t steps;
	uint64_t rows;      /* summed over the steps */
	uint64_t launches;  /* of kernels, summed over the steps */
	uint64_t kv_faults; /* steps that found invalid KV: wrong, stale or torn */
};

/* --- a backend ----------------------------------------------------------- */

/* The largest shapes of a program's operations, for kern_ops.program_bytes; 0: no such
 * operation. */
struct kern_shape {
	size_t ops;
	/* columns that a product reads, for a heads_matmul over all heads */
	uint32_t in;
	uint32_t heads;          /* of attention */
	struct kern_kv_layer kv; /* attention's KV heads, head_dim and latent */
	uint32_t angles;         /* dims summed over all distinct ropes */
	uint32_t experts, used;  /* used: per row */
	/* columns: expert_in: read; expert_out: written, gate and up together */
	uint32_t expert_layers, expert_in, expert_out;
};

struct kern_ops {
	uint32_t abi;        /* KERN_ABI */
	const char *name;    /* "cpu", "sim" */
	unsigned ranks_max;  /* largest group; 1: no groups */
	unsigned stages_max; /* longest pipeline; 1: none */
	/* 1: computes nothing, models time; needs `options`, and weights have no data */
	int modelled;
	/* 1: a device has memory of its own, which the ranks of a group do not share */
	int own_memory;
	/* 1: `run` returns while the device works, so the host can prepare the next run meanwhile */
	int queued;

	/* Bytes of memory of the device with that index, which need not be open; 0: there is no such
	 * device. NULL: devices have no memory of their own */
	uint64_t (*memory_bytes)(int index);
	/* device; ret_ values are written only on success */
	int (*open)(const struct kern_config *conf, struct kern_device **ret_dev, char *errbuf,
	            size_t errlen);
	void (*close)(struct kern_device **dev);
	/* part of the numerics id: "cpu-r4", with KERN_BF16 activations "cpu-r4-bf16act". Equal texts
	 * promise equal bits (all CPU variants but "reference" share one text), except for cuda's
	 * variant "fast" */
	const char *(*numerics)(const struct kern_device *dev);
	const char *(*last_error)(const struct kern_device *dev);
	/* nonzero: KERN_OP_REDUCE works on this device, in its group. NULL: on no device */
	int (*reduces)(const struct kern_device *dev);
	/* nonzero: this device rounds to bfloat16 what attention reads, and products with weights of
	 * other types than float16 and float32. NULL: no device does */
	int (*rounds)(const struct kern_device *dev);
	/* counters and info: from any thread, at any time */
	void (*counters)(const struct kern_device *dev, struct kern_counters *ret);
	void (*info)(const struct kern_device *dev, struct kern_info *ret);

	/* memory: zeroed, aligned to at least 64 bytes. GROUP memory is not shared or mapped by the two
	 * functions below */
	int (*mem_new)(struct kern_device *dev, enum kern_memory kind, size_t bytes,
	               struct kern_mem *ret_mem);
	/* mem_share: a descriptor of SHARED memory for other processes; the caller closes it. mem_map:
	 * the memory behind such a descriptor, as SHARED memory. ENOTSUP where the device cannot */
	int (*mem_share)(struct kern_device *dev, const struct kern_mem *mem, int *ret_fd);
	int (*mem_map)(struct kern_device *dev, int fd, size_t bytes, struct kern_mem *ret_mem);
	/* registers the caller's host memory (a shared mapping) as PINNED; it stays the caller's, who
	 * keeps it mapped until mem_free */
	int (*mem_pin)(struct kern_device *dev, void *host, size_t bytes, struct kern_mem *ret_mem);
	/* clears *mem; no-op for a cleared one */
	void (*mem_free)(struct kern_device *dev, struct kern_mem *mem);

	int (*stream_new)(struct kern_device *dev, struct kern_stream **ret_stream);
	void (*stream_destroy)(struct kern_stream **stream);
	int (*upload)(struct kern_stream *s, kern_ptr dst, const void *src, size_t bytes);
	int (*download)(struct kern_stream *s, void *dst, kern_ptr src, size_t bytes);
	int (*sync)(struct kern_stream *s);
	/* Like sync, for all work before the latest run: that one may still be in progress. */
	int (*sync_previous)(struct kern_stream *s);

	/* memory for `count` matrices (n, k), at least 1, of zeros */
	int (*weight_new)(struct kern_device *dev, enum kern_dtype dtype, uint32_t count, uint32_t n,
	                  uint32_t k, struct kern_weight **ret_w);
	/* Loads matrix `i`, once. `data` is host memory in the file's format, n rows of k, row_bytes
	 * apart (0: dense; larger for a column range of a wider matrix); may be unmapped after the call
	 * returns. sim: not read, may be NULL */
	int (*weight_load)(struct kern_device *dev, struct kern_weight *w, uint32_t i, const void *data,
	                   size_t row_bytes);
	void (*weight_destroy)(struct kern_device *dev, struct kern_weight **w);
	/* Says that w's matrices have some of the rows of matrices with `n` rows: products with w get
	 * the bits of products with the whole ones. Before a program uses w. NULL: bits do not depend
	 * on n */
	void (*weight_part_of)(struct kern_weight *w, uint32_t n);

	/* Upper estimate of the host memory that a program takes besides what its operations refer to;
	 * callable before there is a device or a weight. 0: unknown. Never NULL. */
	size_t (*program_bytes)(const struct kern_config *conf, const struct kern_limits *limits,
	                        const struct kern_shape *shape);
	/* Copies the operations; whatever they refer to must outlive the program. One program of a
	 * device runs at a time. */
	int (*program_new)(struct kern_device *dev, const struct kern_op *ops, size_t n,
	                   const struct kern_limits *limits, struct kern_program **ret_p);
	void (*program_destroy)(struct kern_program **p);
	/* Replays the program over a batch that is PINNED memory or a part of it (dev and host offset
	 * alike). The batch must not change before the run is complete; each run may use another one.
	 * Returns EINVAL, before anything runs, for a batch that kern_batch_check rejects. */
	int (*run)(struct kern_stream *s, struct kern_program *p, const struct kern_mem *batch);
};

/* The backend called `name`: a built-in one, or the shared object pdserve-NAME.so (load.h). NULL
 * and a message in errbuf if there is none or its ABI differs. */
const struct kern_ops *kern_backend(const char *name, char *errbuf, size_t errlen);

/* For backends: returns 0, or KERN_EINVAL and a message; the second for the arguments of
 * weight_load. */
int kern_weight_check(enum kern_dtype dtype, uint32_t count, uint32_t n, uint32_t k, char *errbuf,
                      size_t errlen);
int kern_load_check(enum kern_dtype dtype, uint32_t count, uint32_t k, uint32_t i, const void *data,
                    size_t row_bytes, char *errbuf, size_t errlen);

extern const struct kern_ops kern_cpu_ops, kern_sim_ops;

#ifdef __cplusplus
}
#endif

#endif
