/* backend.h - shared by the host files of the CUDA backend: the device, memory, weights, programs.
 * C, and C++ for the .cu files.
 *
 * A program is planned from its operations: an array of launches (plan.h) for each of a few batch
 * sizes, captured as CUDA graphs. A run copies its batch to the device and launches the smallest
 * graph that fits. Kernels read the number of rows from that copy. */
#ifndef CUDA_BACKEND_H
#define CUDA_BACKEND_H

#include "kernels/device.h"
#include "kernels/ops.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
	CUDA_MAX_HEAD_DIM = 640, /* DeepSeek: latent plus rotated part are 576 */
	CUDA_MAX_DIM = 1 << 20,  /* columns of a weight */
	CUDA_MAX_ROWS = 1 << 22, /* of a weight */
	/* columns of an activation row, all heads together: a grid's height in blocks of 256 */
	CUDA_MAX_COLUMNS = 65535 * 256,
	CUDA_SIZES = 11, /* most graphs of a program */
	CUDA_RANKS_MAX = 16,
	CUDA_STAGES_MAX = 16,
	/* oldest driver: the runtime's major version, and at least 12.8, which has what is used here */
	CUDA_DRIVER_MIN = CUDART_VERSION >= 13000 ? CUDART_VERSION / 1000 * 1000 : 12080
};

/* --- device -------------------------------------------------------------- */

struct kern_device {
	int index;
	char name[64];
	size_t memory_bytes;
	int multiprocessors, shared_max; /* shared_max: bytes of shared memory per block */
	/* The device has wgmma, and the self-test found that it has the bits of mma.sync. */
	int wgmma;
	const char
		*no_wgmma; /* why it is not used, for kern_info.kernels; "": it is, or there is none */
	/* work of the device does not end (cuda_hang): nothing more is asked of it, and nothing that it
	 * may use is freed */
	int hangs;
	/* for the self-test: attention_prefill.cu also where it does not pay; least chunks of an item
	 * of attention_decode.cu */
	int prefill_always;
	uint32_t attention_least;
	/* kernels may start before the previous one is done (kernel.h, grid_wait) */
	int overlaps;
	/* kern_config.activations is BF16: products and attention round activations */
	int bf16_activations;
	int fast;          /* variant "fast": products with BF16 weights by cuBLASLt */
	struct lt *lt;     /* of variant "fast", else NULL (lt.c) */
	struct nccl *nccl; /* of variant "fast" in a group, and of a pipeline, else NULL (nccl.c) */
	char error[400];   /* the latest */
	char broken[300];  /* why every further call fails; empty: the device works */
	char numerics[48];
	struct kern_group group;
	struct kern_pipe pipe;
	struct cuda_peers *peers; /* the group's state; NULL: no group */
	cudaStream_t loading;     /* for weights */
	struct staging *staging;  /* weight.cu */
	/* Progress: kernels increment *pulse (pinned); a thread then calls `progressed` (watch.c). */
	volatile uint64_t *pulse;
	struct kern_mem pulse_mem, pulse_count; /* pulse's; what kernels have stored there last */
	struct cuda_watch *watch;
	uint64_t steps, rows, launches, busy_ns; /* atomic: read from any thread */
	void *nvml;                              /* the device for nvml.c; NULL: unavailable */
};

struct kern_stream {
	struct kern_device *dev;
	cudaStream_t stream;
	cudaEvent_t begin[KERN_FLIGHTS], end[KERN_FLIGHTS]; /* of run n: n % KERN_FLIGHTS */
	uint64_t runs, timed; /* started; whose time is counted in busy_ns, or was not taken */
};

int cuda_stream_new(struct kern_device *dev, struct kern_stream **ret_stream);
void cuda_stream_destroy(struct kern_stream **s);

/* Stores the text of an error; returns code. */
int cuda_fail(struct kern_device *dev, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Returns 0, or KERN_ENOMEM, KERN_EDEVICE or KERN_ELOST and a text for a failed call: "doing: the
 * runtime's message". Errors from which the device cannot recover are remembered. */
int cuda_check(struct kern_device *dev, cudaError_t rc, const char *doing);
/* The same for a call that pins host memory. */
int cuda_check_pinned(struct kern_device *dev, cudaError_t rc, size_t bytes);
int cuda_check_driver(struct kern_device *dev, CUresult rc, const char *doing);
/* Makes it the calling thread's device. KERN_ELOST if the device hangs. */
int cuda_choose(struct kern_device *dev);
uint64_t cuda_now_ns(void);
/* Polls until the stream is empty, for at most limit_ns: then cudaErrorNotReady. */
cudaError_t cuda_drain(cudaStream_t stream, uint64_t limit_ns);
/* Gives up a device whose work does not end, with the current text as the reason. Its memory stays
 * allocated until the process ends, because the driver would wait for the work to free it. */
void cuda_hang(struct kern_device *dev);
/* The driver function of that name. The object is not linked to the driver, so that it loads on
 * machines without one. */
void *cuda_driver(const char *name);
/* Loads a library from this object's folder, else from the system's search path, and its functions.
 * Returns 1; or 0 and the loader's message. */
struct cuda_symbol {
	const char *name;
	void *slot; /* a pointer to a function */
};
int cuda_library(const char *library, const struct cuda_symbol *all, size_t n, char *why,
                 size_t size);
/* For a list X(NAME) of functions: members of a struct `api`, pointers to them with their names;
 * and their struct cuda_symbol. */
#define CUDA_MEMBER(NAME) __typeof__(NAME) *NAME;
#define CUDA_SYMBOL(NAME) {#NAME, &api.NAME},

/* --- memory (memory.c) --------------------------------------------------- */

int cuda_mem_new(struct kern_device *dev, enum kern_memory kind, size_t bytes,
                 struct kern_mem *ret_mem);
int cuda_mem_share(struct kern_device *dev, const struct kern_mem *mem, int *ret_fd);
int cuda_mem_map(struct kern_device *dev, int fd, size_t bytes, struct kern_mem *ret_mem);
int cuda_mem_pin(struct kern_device *dev, void *host, size_t bytes, struct kern_mem *ret_mem);
void cuda_mem_free(struct kern_device *dev, struct kern_mem *mem);

/* Checks that there is a driver, that it is recent enough, and that it has this device. 0, or
 * KERN_ENOTSUP and a message with the remedy. */
int cuda_find(int index, struct cudaDeviceProp *ret_prop, char *errbuf, size_t errlen);

/* Without a device: maps the memory behind a descriptor into the address space of device `index`,
 * whose context is current. Errors are returned as a text. */
int cuda_shared_map(int index, int fd, size_t bytes, CUdeviceptr *ret_at, char *errbuf,
                    size_t errlen);
void cuda_shared_unmap(int index, CUdeviceptr at, size_t bytes);
/* Lets device `reader`, which is current, read memory that device `index` has, and tries it on the
 * stream: 1 if what stands at its end arrives. 0: the hardware cannot, or it does not arrive (some
 * IOMMUs redirect such reads), or PDSERVE_CUDA_PEERS is 0. */
int cuda_shared_reaches(int index, CUdeviceptr at, size_t bytes, int reader, cudaStream_t stream);

/* --- weights (weight.cu) ------------------------------------------------- */

/* Matrices (n, k) in the order in which kernels read them, see weight.h. */
struct kern_weight {
	enum kern_dtype dtype;
	uint32_t count, n, k;
	uint32_t whole;      /* rows of the matrices that these are parts of; 0: n */
	int plain;           /* BF16 in row-major order, for cuBLASLt */
	unsigned char *data; /* on the device */
	size_t stride;       /* bytes between matrices */
};

int cuda_weight_new(struct kern_device *dev, enum kern_dtype dtype, uint32_t count, uint32_t n,
                    uint32_t k, struct kern_weight **ret_w);
int cuda_weight_load(struct kern_device *dev, struct kern_weight *w, uint32_t i, const void *data,
                     size_t row_bytes);
void cuda_weight_destroy(struct kern_device *dev, struct kern_weight **w);
void cuda_weight_part_of(struct kern_weight *w, uint32_t n);
void cuda_staging_free(struct kern_device *dev);

/* --- programs (program.c) ------------------------------------------------ */

int cuda_program_new(struct kern_device *dev, const struct kern_op *ops, size_t n,
                     const struct kern_limits *limits, struct kern_program **ret_p);
void cuda_program_destroy(struct kern_program **p);
int cuda_run(struct kern_stream *s, struct kern_program *p, const struct kern_mem *batch);
/* kern_ops.sync and sync_previous: waits for all runs but the latest `but`, 0 or 1. */
int cuda_wait(struct kern_stream *s, unsigned but);

/* --- groups (peers.c) ---------------------------------------------------- */

/* Follows the operands of a GROUP memory. The second part is used only in this rank's copy. */
struct cuda_signals {
	/* number of the latest collective that each rank has reached; written by that rank */
	uint32_t arrived[CUDA_RANKS_MAX];
	uint32_t probe[CUDA_RANKS_MAX][4]; /* a pattern of each rank: whether what it writes arrives */
	/* of this rank: number of its latest collective; blocks of the current one that have copied; 1:
	 * the group is broken, for collectives of this memory */
	uint32_t number, blocks, dead;
};

/* A GROUP memory. What this rank writes at an offset for the others, it writes at that offset of
 * each target: the copies of all other ranks in ascending order, or, where devices cannot access
 * each other's memory, one in host memory that all ranks map. */
struct cuda_window {
	struct cuda_window *next;
	struct kern_mem own, target[CUDA_RANKS_MAX];
	unsigned targets;
	int staged;        /* the target is in host memory */
	size_t signals_at; /* offset of struct cuda_signals, in every copy */
};

/* Values of cuda_peers.fault. */
enum { FAULT_NONE, FAULT_BROKEN = 1, FAULT_LATE = 2 /* plus the number of the late rank */ };

struct cuda_peers {
	struct cuda_window *window;        /* the latest first */
	struct kern_mem fault_mem, broken; /* PINNED; broken: the page of kern_group.broken */
	const uint32_t *broken_at;         /* kern_group.broken on the device; NULL: none */
	/* pinned: why a collective has failed; stored by kernels, on the device: fault_mem.dev, or by
	 * peers_break */
	volatile uint32_t *fault;
};

int peers_open(struct kern_device *dev);
void peers_close(struct kern_device *dev);
/* Returns KERN_EDEVICE and a text if a collective has failed; KERN_OK also without a group. */
int peers_check(struct kern_device *dev);
/* Ends the waits of this device's collectives, and skips later ones; no-op without a group. */
void peers_break(struct kern_device *dev);
/* kern_group.exchange and kern_pipe.exchange; KERN_EDEVICE and a text if that is broken. */
int peers_exchange(struct kern_device *dev, const void *mine, size_t bytes, int fd, void *ret_all,
                   int *ret_fds);
int stages_exchange(struct kern_device *dev, const void *mine, size_t bytes, void *ret_all);
int peers_mem_new(struct kern_device *dev, size_t bytes, struct kern_mem *ret_mem);
void peers_mem_free(struct kern_device *dev, kern_ptr at);
/* The window in which all of [at, at + bytes) lies; NULL: none. bytes 0: any */
const struct cuda_window *peers_window(const struct kern_device *dev, kern_ptr at, size_t bytes);

/* group.cu: writes this rank's pattern to all targets, and waits until it is written; looks whether
 * those of all others have arrived in this rank's copy. */
int group_probe_write(struct kern_device *dev, const struct cuda_window *w);
int group_probe_read(struct kern_device *dev, const struct cuda_window *w, int *ret_arrived);

/* --- products by cuBLASLt (lt.c), for the variant fast ------------------- */

/* y (rows, n) = x (rows, k) W^T. x and y are dense; n and k are multiples of 8, all addresses of 16
 * bytes. */
struct lt_product {
	const void *x, *w; /* bfloat16 */
	float *y;
	size_t x_ld;
	uint32_t rows, n, k;
};

/* Loads the library. KERN_ENOTSUP and a message with the remedy if it is missing. */
int lt_open(struct kern_device *dev, struct lt **ret_lt);
void lt_close(struct lt **lt);
/* Launches on that stream, which may be capturing. The device's products share a workspace, so they
 * run one after the other. */
int lt_launch(struct kern_device *dev, const struct lt_product *product, cudaStream_t stream);

/* --- NCCL (nccl.c): sums over the ranks for the variant fast, transfers between stages ---- */

struct nccl_call {
	enum { NCCL_SUM, NCCL_SEND, NCCL_RECV } kind;
	uint32_t peer; /* the stage; not of a sum */
	void *x;
	size_t count;         /* a sum: values; else bytes */
	enum kern_dtype type; /* of a sum: KERN_F32 or KERN_BF16 */
};

/* Loads the library and makes the communicators in dev->nccl: the group's for the variant fast,
 * unless ranks share a GPU, and the pipeline's. No-op for a device that needs neither.
 * KERN_ENOTSUP and a message with the remedy if the library is missing. All ranks and stages call
 * it. */
int nccl_open(struct kern_device *dev);
/* kern_ops.reduces */
int nccl_reduces(const struct kern_device *dev);
/* Also ends work in progress that uses it. No-op for NULL. */
void nccl_close(struct nccl **n);
/* Launches on that stream, which may be capturing. The first transfer with a stage waits until that
 * one launches it as well. */
int nccl_launch(struct kern_device *dev, const struct nccl_call *call, cudaStream_t stream);
/* Waits for the event, or, if that is NULL, for the stream, as long as group and pipeline are
 * intact. After an error the communicators cannot be used any more, and the stream is empty unless
 * the device hangs. */
int nccl_wait(struct kern_device *dev, cudaEvent_t event, cudaStream_t stream);
/* KERN_EDEVICE and the reason if communicators cannot be used any more; KERN_OK also without. */
int nccl_check(struct kern_device *dev);

/* --- self-test at open (selftest.c) -------------------------------------- */

/* Returns 0, or KERN_ENOTSUP and a text if a row's bits depend on the other rows; KERN_EDEVICE if a
 * kernel does not end. */
int cuda_selftest(struct kern_device *dev);
/* PDSERVE_CUDA_WGMMA in the environment. 0: wgmma is not used, by a device or a program. Another
 * number: a device where it has other bits than mma.sync is rejected; above 1 attention_prefill.cu
 * is also used where it does not pay. -1: it is not set. */
int cuda_wgmma(void);

/* --- temperature and clocks (nvml.c) ------------------------------------- */

/* The device at that PCI bus id, for the driver's management library; NULL if unavailable. */
void *nvml_find(const char *bus);
/* Sets the known fields; no-op for NULL. Any thread. */
void nvml_read(void *device, struct kern_info *ret);

/* --- progress (watch.c) -------------------------------------------------- */

/* Starts a thread that calls `progressed` each time *pulse has grown, while growth is expected. */
int watch_new(volatile uint64_t *pulse, void (*progressed)(void *arg), void *arg,
              struct cuda_watch **ret_w);
void watch_expect(struct cuda_watch *w, uint64_t growth);
/* Cancels all expected growth. */
void watch_forget(struct cuda_watch *w);
void watch_destroy(struct cuda_watch **w);

#ifdef __cplusplus
}
#endif
#endif
