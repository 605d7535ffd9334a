/* cpu.h - shared by the files of the CPU backend: the device, weights, prepared activations, and
 * the table that a variant implements. */
#ifndef CPU_CPU_H
#define CPU_CPU_H

#include "kernels/cpu/crew.h"
#include "kernels/host_memory.h"
#include "kernels/numbers.h"
#include "kernels/ops.h"

#include <math.h>
#include <pthread.h>
#include <stdbool.h>

enum {
	CPU_MAX_HEAD_DIM = 640, /* DeepSeek: latent plus rotated part are 576 */
	CPU_MAX_DIM = 1 << 20,
	CPU_MAX_COLUMNS = 1 << 24, /* of an activation row, over all heads */
	CPU_TILE_ROWS = 4,         /* rows of activations prepared for products together */
	CPU_ALIGN = 64             /* bytes, of matrices */
};

/* --- products ------------------------------------------------------------ */

/* Matrices (n, k): panels (see pack.c) if `packed`, else rows in the file's format. */
struct kern_weight {
	enum kern_dtype dtype;
	uint32_t count, n, k;
	bool packed;
	size_t panel_bytes, stride; /* stride: bytes between matrices */
	unsigned char *data;
	struct cpu_chunk *chunk; /* the arena chunk that contains data */
};

/* Matrix i of a weight, which owns the memory. */
static inline struct kern_weight cpu_matrix(const struct kern_weight *w, uint32_t i)
{
	struct kern_weight one = *w;
	one.count = 1;
	one.data += i * w->stride;
	return one;
}

/* Activations as products read them, in tiles of rows; tile t's records are at rec + t *
 * tile_bytes. */
struct cpu_ready {
	uint32_t k;
	const float *x; /* the rows themselves, ldx apart */
	size_t ldx;
	/* quantised records, if a weight needs them; tile_bytes: stride of the tiles */
	unsigned char *rec;
	size_t tile_bytes;
	/* rounded to bfloat16, ld_rounded apart; NULL: not needed. fast: (k + 1) / 2 pairs; reference:
	 * k floats */
	float *rounded;
	size_t ld_rounded;
};

/* A product over consecutive rows starting with the first row of a tile: y (rows, n) = x W^T +
 * bias. */
struct cpu_part {
	const struct kern_weight *w;
	const float *bias;
	float *y;
	size_t ldy;
	struct cpu_ready in;
	uint32_t rows;
};

/* --- attention ----------------------------------------------------------- */

struct att_tile {
	const struct kern_span *span;
	uint32_t row, rows, first_chunk, chunks, partial;
};

/* The tiles of the current batch, shared by all attention operations that are cut alike. */
struct cpu_cut {
	enum kern_rows rows;
	uint32_t window, tile_rows;
	uint32_t heads;                  /* items per tile */
	struct att_tile *tile;           /* room for the most tiles of a batch */
	uint32_t tiles, chunks, longest; /* longest: most rows of a tile, at most tile_rows */
	bool apart;                      /* chunks are computed separately and joined, see cpu_apart */
};

struct cpu_attention {
	struct kern_program *p;
	const struct cpu_cut *cut;
	float *out;
	const float *q;
	size_t ldo, ldq;
	uint32_t heads, window;
	struct kern_kv_layer kv;
	float scale;
	const float *sinks; /* (heads) or NULL */
	/* parts per KV head, into which its query heads are divided; parts of all KV heads; query heads
	 * per part */
	uint32_t parts, items, group;
};

/* One implementation of the operations that do arithmetic. */
struct cpu_variant {
	const char *name, *numerics;
	bool packed;    /* wants packed weights */
	bool vdpbf16ps; /* may use that instruction */
	/* a is added to x, or NULL */
	void (*rms_norm)(float *y, float *x, const float *a, const float *w, uint32_t dim, float eps);
	void (*rope)(float *x, uint32_t heads, uint32_t head_dim, const struct kern_rope *rope,
	             const float *cos_sin);
	void (*act_mul)(float *y, const float *gate, const float *up, enum kern_act act, uint32_t dim);
	/* bytes of a tile's records for `groups` groups per row, 0: no records; floats of a rounded
	 * row */
	size_t (*tile_bytes)(uint32_t groups);
	size_t (*rounded_floats)(uint32_t k);
	/* prepares rows [from, to), `from` a multiple of CPU_TILE_ROWS; rec NULL: without quantising */
	void (*make_ready)(const struct cpu_ready *r, uint32_t from, uint32_t to);
	/* columns are grouped into panels; scratch: k floats */
	uint32_t (*panels)(const struct kern_weight *w);
	void (*product)(const struct cpu_part *part, const struct cpu_variant *v, uint32_t panel,
	                uint32_t end, float *scratch);
	/* attention. att_share: sets parts, items and group, and returns the rows per tile. Floats of a
	 * worker's scratch; floats of a chunk's state. Two phases, the second only if chunks are
	 * computed separately (NULL: never) */
	void (*att_share)(struct cpu_attention *a, uint32_t *ret_tile_rows);
	size_t (*att_scratch)(const struct cpu_attention *a, uint32_t positions);
	size_t (*att_state)(const struct cpu_attention *a, uint32_t longest);
	void (*att_item)(const void *attention, uint32_t item, unsigned worker);
	void (*att_join)(const void *attention, uint32_t item, unsigned worker);
};

extern const struct cpu_variant cpu_variant_reference, cpu_variant_plain;
#if defined(__x86_64__)
extern const struct cpu_variant cpu_variant_avx2, cpu_variant_avx512, cpu_variant_avx512bf16;
#endif

/* --- device -------------------------------------------------------------- */

struct kern_device {
	struct host_device host; /* first */
	const struct cpu_variant *variant;
	struct crew *crew;
	struct kern_group group;
	struct kern_pipe pipe;
	bool bf16_activations; /* kern_config.activations */
	char numerics[32];
	pthread_mutex_t lock;          /* the crew runs one program at a time */
	struct cpu_chunk *arena;       /* weights; protected by lock */
	void (*progressed)(void *arg); /* kern_config */
	void *progressed_arg;
};

struct kern_stream {
	struct kern_device *dev;
};

static inline float *cpu_f32(kern_ptr p)
{
	return (float *)(void *)p.v;
}

/* row r of a float matrix */
static inline float *cpu_row(const struct kern_tensor *t, uint32_t r)
{
	return cpu_f32(t->at) + r * t->ld;
}

/* size.c: kern_ops.program_bytes */
size_t cpu_program_bytes(const struct cpu_variant *v, unsigned threads, bool bf16,
                         const struct kern_limits *l, const struct kern_shape *s);

/* group.c: kern_ops.mem_new */
int cpu_mem_new(struct kern_device *dev, enum kern_memory kind, size_t bytes,
                struct kern_mem *ret_mem);

int cpu_fail(struct kern_device *dev, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* allocates zeroed memory in a chunk of the arena, which counts its users; NULL: out of memory */
void *cpu_arena_alloc(struct cpu_chunk **arena, size_t bytes, struct cpu_chunk **ret_chunk);
void cpu_arena_release(struct cpu_chunk **arena, struct cpu_chunk *chunk);

/* --- numbers ------------------------------------------------------------- */

/* converts count values (whole blocks) of a row from the file's format to float; KV types: without
 * their scale */
void cpu_dequantise(float *out, enum kern_dtype dtype, const void *src, uint32_t count);
/* MXFP4: for each nibble, twice the value plus 16 */
extern const unsigned char cpu_mxfp4_codes[16];
size_t cpu_weight_bytes(const struct kern_weight *w);
/* packs rows that are row_bytes apart into w->data, which is zeroed */
void cpu_weight_pack(struct kern_weight *w, const void *src, size_t row_bytes, struct crew *crew);
void cpu_weight_row(const struct kern_weight *w, uint32_t row, float *out);

/* --- KV ------------------------------------------------------------------ */

static inline unsigned char *cpu_kv_plane(const struct kern_kv_layer *kv, uint32_t block,
                                          uint32_t head, int is_v)
{
	size_t plane = kv->latent ? head : 2 * (size_t)head + (size_t)is_v;
	return (unsigned char *)kv->base.v + block * kv->block_stride_bytes +
	       plane * kern_kv_plane_bytes(kv);
}

/* the scales of a plane's tokens, if the type has scales */
static inline float *cpu_kv_scales(const struct kern_kv_layer *kv, const unsigned char *plane)
{
	return (float *)(void *)(uintptr_t)(plane + kern_dtype_bytes(kv->dtype, kv->head_dim) *
	                                                kv->block_tokens);
}

/* stores k and v (NULL with a latent) of all KV heads in slot `slot` */
void cpu_kv_row(const struct kern_kv_layer *kv, uint32_t slot, const float *k, const float *v);

/* elements that attention outputs per head */
static inline uint32_t cpu_kv_out_dim(const struct kern_kv_layer *kv)
{
	return kv->latent ? kv->latent : kv->head_dim;
}

#endif
